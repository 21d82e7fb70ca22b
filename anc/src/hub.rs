//! The one owner of what is in flight: every message and every end of a flush is an event in one queue.
//!
//! Decisions are made by [`crate::group::step`]; this file keeps the announcements, starts flushes on threads of their
//! own, and tells agents. It never waits for work, and holds no lock.

use crate::budget::Budget;
use crate::fetch::{AgentLink, Announced, RemoteSource};
use crate::flush::{Flush, FlushError, FlushOptions, Spare, flush_checkpoint, unpanicked};
use crate::group::{Effect, Event, Key, Phase, Reason, Times, step};
use crate::instance::{Instance, Written, choose_instance};
use crate::observe::Observer;
use crate::retention::Retention;
use crate::source::FetchError;
use mcr_proto::v1;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::{self, Manifest};
use mcrengine::retention::Rules;
use mcrengine::runs::run_of;
use mcrengine::store::Store;
use mcrengine::units::{RawBytes, StoredBytes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Events that may wait for the hub; more than that, and whoever sends waits.
pub const HUB_QUEUE: usize = 256;
/// Checkpoints of one group that may wait for their ranks at a time; the oldest is given up for a further one.
pub const WAITING_MAX: usize = 8;
/// Checkpoints of one group that are remembered after their end, to answer agents that ask again.
const REMEMBERED_MAX: usize = 16;
/// Checkpoints of all groups that are gathered or remembered; announcements of further ones are refused.
const GATHERS_MAX: usize = 64 << 10;
/// First and longest wait before a committed group looks again whether the others are there, so that the agents hear it.
const LOOK_MS: (u64, u64) = (500, 60_000);

/// What the hub runs with.
#[derive(Clone)]
pub struct HubOptions {
    /// How checkpoints are made.
    pub flush: FlushOptions,
    /// GROUP_SIZE; agents that send by another one are refused.
    pub group_size: u32,
    /// Ranks of jobs whose agents do not say.
    pub ranks: Option<u32>,
    /// How long phases last.
    pub times: Times,
    /// How long one fetch may take.
    pub fetch_deadline: Duration,
    /// The files of one checkpoint are written within this time of one another.
    pub spread: Duration,
    /// Flushes at a time.
    pub flushes: usize,
    /// Which checkpoints of a job stay once one is complete; without any rule all.
    pub keep: Rules,
}

/// What happened.
pub enum HubEvent {
    /// An agent said hello.
    Opened {
        /// Its session.
        link: Arc<AgentLink>,
        /// Its job.
        job: JobId,
    },
    /// An agent's session has ended.
    Ended {
        /// Which.
        session: u64,
    },
    /// An agent gave sign of life.
    Heard {
        /// Which session.
        session: u64,
    },
    /// A rank is settled and described.
    Announced {
        /// Whose, where.
        announced: Announced,
        /// The job.
        job: JobId,
        /// Ranks of the job, 0 if nobody knows.
        ranks: u32,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
    },
    /// A rank's files are gone or being rewritten.
    Withdrawn {
        /// Whose session.
        session: u64,
        /// The job.
        job: JobId,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
        /// Why.
        reason: String,
    },
    /// A flush thread is done.
    FlushEnded {
        /// Of which.
        key: Key,
        /// With what.
        result: Box<Result<Flushed, FlushError>>,
        /// After how long.
        elapsed: Duration,
    },
    /// These committed checkpoints exist by now, all groups included; the others were looked for.
    Exist(Vec<Key>),
    /// Somebody asks how things are.
    Status(oneshot::Sender<v1::StatusReply>),
    /// Finish what is flushing, give up the rest, and end.
    Shutdown(oneshot::Sender<()>),
}

/// What a flush gave.
pub struct Flushed {
    /// Under which name.
    pub id: CheckpointId,
    /// Its manifest.
    pub manifest: Manifest,
    /// Whether all groups are there now.
    pub exists: bool,
    /// It was in the store already.
    pub was_there: bool,
}

/// One checkpoint of one group.
struct Gather {
    phase: Phase,
    grouping: Grouping,
    announced: BTreeMap<Rank, Announced>,
    /// Announced while the flush ran.
    next: BTreeMap<Rank, Announced>,
    /// What each rank's files were when it was committed, and when they were written.
    committed: BTreeMap<Rank, (Digest, i64)>,
    /// What each rank announced last, here or for the content before, whether it still holds or not.
    last: BTreeMap<Rank, Seen>,
    /// A rank overwrote its files; what was written before this, in nanoseconds since 1970, is not of the same content.
    not_before_ns: Option<i64>,
    /// What failed last, for people.
    problem: String,
    exists: bool,
    /// Who was told that it is committed, and not yet that it exists: node, announcement.
    untold: BTreeMap<Rank, (String, u64)>,
    /// When to look whether it exists, and how long to wait after that, in milliseconds.
    look: (u64, u64),
    raw_bytes: RawBytes,
    stored_bytes: StoredBytes,
    since: Instant,
    flush_ms: u64,
    progress: Arc<Progress>,
    /// Grows; the order of arrival.
    serial: u64,
}

/// What a rank's files were.
struct Seen {
    modified_ns: i64,
    files: Vec<(FilePath, Digest)>,
}

fn modified_ns(files: &[FileHeader]) -> i64 {
    files.iter().map(|file| file.modified_ns).max().unwrap_or(i64::MIN)
}

impl Gather {
    /// Notes what a rank announced. If it overwrote what it had announced before, whatever was written nearer to that than
    /// to this is of the content before: a checkpoint is written in less than half the time between two.
    fn saw(&mut self, rank: Rank, files: &[FileHeader]) {
        let seen = Seen {
            modified_ns: modified_ns(files),
            files: files.iter().map(|file| (file.path.clone(), file.digest)).collect(),
        };
        if let Some(before) = self.last.get(&rank) {
            let differs =
                |(path, digest): &(FilePath, Digest)| before.files.iter().any(|(p, d)| p == path && d != digest);
            if seen.modified_ns < before.modified_ns {
                self.not_before_ns = None; // put back from elsewhere: its time tells nothing
            } else if seen.files.iter().any(differs) {
                let half = before.modified_ns + (seen.modified_ns.saturating_sub(before.modified_ns)) / 2;
                self.not_before_ns = Some(self.not_before_ns.map_or(half, |at| at.max(half)));
            }
        }
        self.last.insert(rank, seen);
    }
}

/// Bytes done by the flush that runs.
#[derive(Default)]
struct Progress {
    raw_bytes: AtomicU64,
    stored_bytes: AtomicU64,
}

impl Observer for Progress {
    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        self.raw_bytes.fetch_add(raw_bytes.0, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored_bytes.0, Ordering::Relaxed);
    }
}

struct Agent {
    link: Arc<AgentLink>,
    job: JobId,
    connected: Instant,
    heard: Instant,
    ranks: BTreeSet<Rank>,
}

/// The owner of the state; [`Hub::run`] is its life.
pub struct Hub {
    store: Arc<dyn Store>,
    options: HubOptions,
    budget: Arc<Budget>,
    events: mpsc::Sender<HubEvent>,
    agents: BTreeMap<u64, Agent>,
    gathers: BTreeMap<Key, Gather>,
    queue: VecDeque<Key>,
    running: BTreeSet<Key>,
    started: Instant,
    serial: u64,
    /// A thread is looking which committed checkpoints exist.
    looking: bool,
    draining: Option<oneshot::Sender<()>>,
    /// Removes old checkpoints.
    retention: Retention,
    /// Starts a flush; a test's own one decides itself when it ends, and how.
    launch: fn(FlushWork, mpsc::Sender<HubEvent>) -> std::io::Result<()>,
}

impl Hub {
    /// A hub over a store, and the sender of its events.
    pub fn new(
        store: Arc<dyn Store>,
        options: HubOptions,
        budget: Arc<Budget>,
    ) -> (Self, mpsc::Sender<HubEvent>, mpsc::Receiver<HubEvent>) {
        let (events, receiver) = mpsc::channel(HUB_QUEUE);
        let retention = Retention::new(Arc::clone(&store), options.keep.clone());
        let hub = Self {
            retention,
            store,
            options,
            budget,
            events: events.clone(),
            agents: BTreeMap::new(),
            gathers: BTreeMap::new(),
            queue: VecDeque::new(),
            running: BTreeSet::new(),
            started: Instant::now(),
            serial: 0,
            looking: false,
            draining: None,
            launch: launch_flush,
        };
        (hub, events, receiver)
    }

    /// Until shutdown: one event after the other; a tick only while something waits for its time.
    pub async fn run(mut self, mut events: mpsc::Receiver<HubEvent>) {
        loop {
            let event = match self.next_tick() {
                None => events.recv().await,
                Some(wait) => match tokio::time::timeout(wait.max(Duration::from_millis(1)), events.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.tick();
                        continue;
                    }
                },
            };
            match event {
                Some(event) => self.handle(event),
                None => return,
            }
            // However many events there are, what is due is not put off by them.
            if self.next_tick() == Some(Duration::ZERO) {
                self.tick();
            }
            if self.running.is_empty()
                && let Some(done) = self.draining.take()
            {
                let _ = done.send(());
                return;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn next_tick(&self) -> Option<Duration> {
        let due = self.gathers.values().filter_map(|gather| match gather.phase {
            Phase::Gathering { deadline_ms, .. } => Some(deadline_ms),
            Phase::Waiting { until_ms, .. } => Some(until_ms),
            Phase::Committed(_) => (!gather.untold.is_empty() && !self.looking).then_some(gather.look.0),
            Phase::Flushing { .. } | Phase::Abandoned(_) => None,
        });
        due.min().map(|due_ms| Duration::from_millis(due_ms.saturating_sub(self.now_ms())))
    }

    fn tick(&mut self) {
        for key in self.gathers.keys().cloned().collect::<Vec<_>>() {
            self.step(&key, Event::Tick);
        }
        if self.draining.is_none() {
            self.start_look();
            self.start_flushes();
        }
    }

    /// Looks, on a thread of its own, which committed checkpoints exist by now.
    fn start_look(&mut self) {
        if self.looking {
            return;
        }
        let now_ms = self.now_ms();
        let mut due = Vec::new();
        for (key, gather) in &mut self.gathers {
            let Phase::Committed(id) = &gather.phase else { continue };
            if !gather.untold.is_empty() && now_ms >= gather.look.0 {
                gather.look = (now_ms + gather.look.1, (gather.look.1 * 2).min(LOOK_MS.1));
                due.push((key.clone(), id.clone()));
            }
        }
        if due.is_empty() {
            return;
        }
        let (store, events) = (Arc::clone(&self.store), self.events.clone());
        let look = move || {
            let exists = |key: &Key, id: &CheckpointId| {
                let look = || Ok(manifest::state(&*store, &key.job, id).is_ok_and(|state| state.is_complete()));
                unpanicked(look).unwrap_or(false)
            };
            let exist = due.into_iter().filter(|(key, id)| exists(key, id)).map(|(key, _)| key).collect();
            // Only fails when the hub is gone.
            let _ = events.blocking_send(HubEvent::Exist(exist));
        };
        self.looking = std::thread::Builder::new().name("look".into()).spawn(look).is_ok();
    }

    /// Tells the agents again, now that the other groups are there too.
    fn exist(&mut self, key: &Key) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let Phase::Committed(id) = &gather.phase else { return };
        gather.exists = true;
        tracing::debug!(job = %key.job, checkpoint = %id, group = key.group.0, "exists");
        for (rank, (node, announce_id)) in std::mem::take(&mut gather.untold) {
            let told = v1::Committed {
                label: key.label.to_string(),
                rank: rank.0,
                checkpoint: id.to_string(),
                all_groups: true,
                announce_id,
            };
            // In the session that the agent has now.
            for agent in self.agents.values().filter(|agent| agent.job == key.job && agent.link.node == node) {
                agent.link.send(v1::to_agent::Message::Committed(told.clone()));
            }
        }
    }

    fn handle(&mut self, event: HubEvent) {
        match event {
            HubEvent::Opened { link, job } => {
                tracing::info!(node = link.node, session = link.session, %job, "agent connected");
                let now = Instant::now();
                let agent = Agent { link, job, connected: now, heard: now, ranks: BTreeSet::new() };
                self.agents.insert(agent.link.session, agent);
            }
            HubEvent::Heard { session } => {
                if let Some(agent) = self.agents.get_mut(&session) {
                    agent.heard = Instant::now();
                }
            }
            HubEvent::Ended { session } => self.ended(session),
            HubEvent::Announced { announced, job, ranks, label, rank } => {
                self.announced(announced, job, ranks, label, rank)
            }
            HubEvent::Withdrawn { session, job, label, rank, reason } => {
                let key = Key { group: GroupId(rank.0 / self.options.group_size), job, label };
                tracing::warn!(job = %key.job, checkpoint = %key.label, rank = rank.0, reason, "announcement withdrawn");
                self.lose(&key, rank, session);
            }
            HubEvent::FlushEnded { key, result, elapsed } => self.flush_ended(&key, *result, elapsed),
            HubEvent::Exist(keys) => {
                self.looking = false;
                keys.iter().for_each(|key| self.exist(key));
            }
            HubEvent::Status(reply) => {
                let _ = reply.send(self.status());
            }
            HubEvent::Shutdown(done) => {
                for key in self.gathers.keys().cloned().collect::<Vec<_>>() {
                    self.step(&key, Event::Shutdown);
                }
                self.queue.clear();
                self.draining = Some(done);
            }
        }
        if self.draining.is_none() {
            self.start_flushes();
        }
    }

    fn ended(&mut self, session: u64) {
        let Some(agent) = self.agents.remove(&session) else { return };
        tracing::info!(node = agent.link.node, session, "agent gone");
        agent.link.end("its session has ended");
        let lost: Vec<(Key, Rank)> = (self.gathers.iter())
            .flat_map(|(key, gather)| {
                let of_session = |a: &Announced| a.link.session == session;
                let ranks = gather.announced.iter().chain(&gather.next).filter(move |(_, a)| of_session(a));
                ranks.map(|(rank, _)| (key.clone(), *rank))
            })
            .collect();
        for (key, rank) in lost {
            self.lose(&key, rank, session);
        }
    }

    /// A rank's announcement, made in this session, holds no longer.
    fn lose(&mut self, key: &Key, rank: Rank, session: u64) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let of_session = |a: Option<&Announced>| a.is_some_and(|a| a.link.session == session);
        if of_session(gather.next.get(&rank)) {
            gather.next.remove(&rank);
        }
        if of_session(gather.announced.get(&rank)) {
            // A flush that runs keeps the announcement, and fails by itself if it needs it.
            if !matches!(gather.phase, Phase::Flushing { .. }) {
                gather.announced.remove(&rank);
            }
            self.step(key, Event::Lost(rank));
        }
    }

    fn announced(&mut self, announced: Announced, job: JobId, ranks: u32, label: CheckpointId, rank: Rank) {
        let refuse = |announced: &Announced, label: &CheckpointId, why: String, retry: bool| {
            tracing::warn!(checkpoint = %label, rank = rank.0, why, "announcement refused");
            give_back(announced, label, rank, why, retry);
        };
        if self.draining.is_some() {
            return refuse(&announced, &label, Reason::Shutdown.to_string(), true);
        }
        let Some(grouping) = Grouping::new(ranks, self.options.group_size) else {
            return refuse(
                &announced,
                &label,
                "nobody says how many ranks the job has; set `ranks` for the agent or the aggregator".into(),
                false,
            );
        };
        if rank.0 >= grouping.ranks() {
            return refuse(&announced, &label, format!("{rank} of a job that has {} ranks", grouping.ranks()), false);
        }
        let key = Key { group: grouping.group_of(rank), job, label };
        if let Some(agent) = self.agents.get_mut(&announced.link.session) {
            agent.ranks.insert(rank);
        }
        tracing::debug!(job = %key.job, checkpoint = %key.label, rank = rank.0, files = announced.files.len(), "announced");
        let over = match self.gathers.get(&key).map(|gather| (&gather.phase, gather)) {
            None => true,
            // The same bytes written again are part of the next content, of which another rank's may differ.
            Some((Phase::Committed(_), gather)) => {
                gather.committed.get(&rank) != Some(&(content(&announced.files), modified_ns(&announced.files)))
            }
            Some((Phase::Abandoned(_), _)) => true,
            Some((_, gather)) => gather.grouping != grouping && !matches!(gather.phase, Phase::Flushing { .. }),
        };
        if over {
            if self.gathers.len() >= GATHERS_MAX && !self.gathers.contains_key(&key) {
                return refuse(
                    &announced,
                    &key.label,
                    format!("{GATHERS_MAX} checkpoints are gathered here already"),
                    true,
                );
            }
            self.begin(key.clone(), grouping);
        }
        let Some(gather) = self.gathers.get_mut(&key) else { return };
        let replaced = match gather.phase {
            Phase::Flushing { .. } => {
                // Noted now: it may be withdrawn before the flush ends, and still tells which content came before.
                gather.saw(rank, &announced.files);
                gather.next.insert(rank, announced.clone())
            }
            Phase::Committed(_) => {
                // The same content again: answer this rank alone.
                gather.announced = [(rank, announced)].into();
                return self.step(&key, Event::Announced(rank));
            }
            Phase::Gathering { .. } | Phase::Waiting { .. } | Phase::Abandoned(_) => {
                gather.saw(rank, &announced.files);
                gather.announced.insert(rank, announced.clone())
            }
        };
        if let Some(other) = replaced.filter(|other| other.link.session != announced.link.session) {
            tracing::warn!(
                job = %key.job, checkpoint = %key.label, rank = rank.0, first = other.link.node, last = announced.link.node,
                "announced in two sessions; the last one counts"
            );
            let reason = format!("node {} announced the same rank later; let one agent have it", announced.link.node);
            give_back(&other, &key.label, rank, reason, false);
        }
        self.drop_stale(&key);
        if self.gathers.get(&key).is_some_and(|gather| gather.announced.contains_key(&rank)) {
            self.step(&key, Event::Announced(rank));
        }
    }

    /// Starts to gather anew under a key, and keeps what waits and what is remembered bounded.
    fn begin(&mut self, key: Key, grouping: Grouping) {
        self.serial += 1;
        let missing = grouping.ranks_of(key.group).map(Rank).collect();
        let deadline_ms = self.now_ms() + self.options.times.gather_ms;
        let before = self.gathers.remove(&key);
        let (last, not_before_ns) = before.map_or_else(Default::default, |before| {
            for (rank, announced) in before.announced.iter().chain(&before.next) {
                let reason = "the job has another number of ranks".into();
                give_back(announced, &key.label, *rank, reason, true);
            }
            (before.last, before.not_before_ns)
        });
        let gather = Gather {
            phase: Phase::Gathering { missing, deadline_ms, attempts: 0 },
            grouping,
            announced: BTreeMap::new(),
            next: BTreeMap::new(),
            committed: BTreeMap::new(),
            last,
            not_before_ns,
            problem: String::new(),
            exists: false,
            untold: BTreeMap::new(),
            look: (0, LOOK_MS.0),
            raw_bytes: RawBytes(0),
            stored_bytes: StoredBytes(0),
            since: Instant::now(),
            flush_ms: 0,
            progress: Arc::default(),
            serial: self.serial,
        };
        self.gathers.insert(key.clone(), gather);
        let oldest = |hub: &Self, over: bool, most: usize| {
            let mut those: Vec<(u64, Key)> = (hub.gathers.iter())
                .filter(|(k, g)| {
                    k.job == key.job
                        && k.group == key.group
                        && !matches!(g.phase, Phase::Flushing { .. })
                        && over == is_over(&g.phase)
                })
                .map(|(k, g)| (g.serial, k.clone()))
                .collect();
            those.sort();
            let excess = those.len().saturating_sub(most);
            those.into_iter().take(excess).map(|(_, k)| k).collect::<Vec<_>>()
        };
        for key in oldest(self, false, WAITING_MAX) {
            self.step(&key, Event::Overtaken);
        }
        for key in oldest(self, true, REMEMBERED_MAX) {
            self.gathers.remove(&key);
        }
    }

    /// Files of one checkpoint are written within `spread` of one another, and after any that another rank has overwritten
    /// since; an older announcement under the same name belongs to a content that is being overwritten, and is awaited anew.
    fn drop_stale(&mut self, key: &Key) {
        let spread_ns = i64::try_from(self.options.spread.as_nanos()).unwrap_or(i64::MAX);
        let Some(gather) = self.gathers.get_mut(key) else { return };
        if !matches!(gather.phase, Phase::Gathering { .. } | Phase::Waiting { .. }) {
            return;
        }
        let newest = gather.announced.values().map(|a| modified_ns(&a.files)).max().unwrap_or(i64::MIN);
        let oldest = newest.saturating_sub(spread_ns).max(gather.not_before_ns.unwrap_or(i64::MIN));
        let is_stale = |a: &Announced| !a.files.is_empty() && modified_ns(&a.files) < oldest;
        let stale: Vec<Rank> = gather.announced.iter().filter(|(_, a)| is_stale(a)).map(|(rank, _)| *rank).collect();
        for rank in stale {
            tracing::warn!(job = %key.job, checkpoint = %key.label, rank = rank.0, "older than the other ranks' files; awaited anew");
            if let Some(gather) = self.gathers.get_mut(key)
                && let Some(announced) = gather.announced.remove(&rank)
            {
                let reason = "another rank has overwritten its files since; awaited anew".into();
                give_back(&announced, &key.label, rank, reason, false);
            }
            self.step(key, Event::Lost(rank));
        }
    }

    fn step(&mut self, key: &Key, event: Event) {
        let (now_ms, times) = (self.now_ms(), self.options.times);
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let mut todo = Vec::new();
        let phase = std::mem::replace(&mut gather.phase, Phase::Abandoned(Reason::Shutdown));
        gather.phase = step(phase, event, now_ms, times, &mut todo);
        for effect in todo {
            let Some(gather) = self.gathers.get_mut(key) else { return };
            match effect {
                Effect::Flush => self.queue.push_back(key.clone()),
                Effect::TellCommitted(id) => {
                    for (rank, announced) in std::mem::take(&mut gather.announced) {
                        let announce_id = announced.announce_id;
                        let told = v1::Committed {
                            label: key.label.to_string(),
                            rank: rank.0,
                            checkpoint: id.to_string(),
                            all_groups: gather.exists,
                            announce_id,
                        };
                        gather.committed.insert(rank, (content(&announced.files), modified_ns(&announced.files)));
                        if !gather.exists {
                            if gather.untold.is_empty() {
                                gather.look = (now_ms + LOOK_MS.0, LOOK_MS.0);
                            }
                            gather.untold.insert(rank, (announced.link.node.clone(), announce_id));
                        }
                        announced.link.send(v1::to_agent::Message::Committed(told));
                    }
                }
                Effect::TellAbandoned(reason) => {
                    tracing::warn!(job = %key.job, checkpoint = %key.label, group = key.group.0, %reason, "abandoned checkpoint");
                    for (rank, announced) in std::mem::take(&mut gather.announced) {
                        give_back(&announced, &key.label, rank, reason.to_string(), reason.may_pass());
                    }
                }
            }
        }
    }

    /// Starts queued flushes in order, one at a time for each group, up to the configured number.
    fn start_flushes(&mut self) {
        let mut waiting = VecDeque::new();
        while let Some(key) = self.queue.pop_front() {
            let busy = |k: &Key| k.job == key.job && k.group == key.group;
            if self.running.len() >= self.options.flushes.max(1)
                || self.running.iter().any(busy)
                || waiting.iter().any(busy)
            {
                waiting.push_back(key);
            } else {
                self.start_flush(key);
            }
        }
        self.queue = waiting;
    }

    fn start_flush(&mut self, key: Key) {
        let Some(gather) = self.gathers.get_mut(&key).filter(|g| matches!(g.phase, Phase::Flushing { .. })) else {
            return;
        };
        // Whoever is not there is awaited, whatever the phase says: a container without a rank is no checkpoint.
        let ranks = gather.grouping.ranks_of(key.group).map(Rank);
        let missing: BTreeSet<Rank> = ranks.filter(|rank| !gather.announced.contains_key(rank)).collect();
        if !missing.is_empty() {
            return self.step(&key, Event::RanksFailed(missing));
        }
        gather.progress = Arc::default();
        let (files, source) = RemoteSource::new(gather.announced.values().cloned(), self.options.fetch_deadline);
        let work = FlushWork {
            store: Arc::clone(&self.store),
            options: self.options.clone(),
            budget: Arc::clone(&self.budget),
            key: key.clone(),
            grouping: gather.grouping,
            files,
            source,
            not_before_ns: gather.not_before_ns,
            progress: Arc::clone(&gather.progress),
        };
        match (self.launch)(work, self.events.clone()) {
            Ok(()) => drop(self.running.insert(key)),
            Err(error) => self.step(&key, Event::StoreFailed(format!("no thread for the flush: {error}"))),
        }
    }

    fn flush_ended(&mut self, key: &Key, result: Result<Flushed, FlushError>, elapsed: Duration) {
        self.running.remove(key);
        let elapsed_ms = elapsed.as_millis() as u64;
        let Some(gather) = self.gathers.get_mut(key) else { return };
        gather.flush_ms = elapsed_ms;
        let next = std::mem::take(&mut gather.next);
        let grouping = gather.grouping;
        match result {
            Ok(flushed) => {
                gather.exists = flushed.exists;
                gather.raw_bytes = flushed.manifest.raw_bytes;
                gather.stored_bytes = flushed.manifest.stored_bytes;
                tracing::info!(
                    job = %key.job, checkpoint = %flushed.id, group = key.group.0, exists = flushed.exists, was_there = flushed.was_there,
                    raw_bytes = flushed.manifest.raw_bytes.0, stored_bytes = flushed.manifest.stored_bytes.0, elapsed_ms,
                    "committed group"
                );
                if flushed.exists && !flushed.was_there {
                    let in_flight = self.running.iter().map(|key| key.label.clone()).collect();
                    self.retention.completed(&key.job, in_flight);
                }
                self.step(key, Event::Flushed(flushed.id));
            }
            Err(error) => {
                tracing::warn!(job = %key.job, checkpoint = %key.label, group = key.group.0, error = error_chain(&error), "flush failed");
                gather.problem = error_chain(&error);
                let mut missing = BTreeSet::new();
                if let FlushError::Fetch(FetchError::Changed { rank, .. }) = &error {
                    missing.insert(*rank);
                    if let Some(announced) = gather.announced.remove(rank) {
                        // Its agent need not have noticed. If it has, it announces another time, and this says nothing.
                        give_back(&announced, &key.label, *rank, error_chain(&error), true);
                    }
                }
                // Whoever has lost its session since is awaited too, and announces again.
                let alive = |a: &Announced| self.agents.contains_key(&a.link.session) && !a.link.has_ended();
                gather.announced.retain(|rank, a| alive(a) || !missing.insert(*rank));
                // With everybody still there nobody announces again: what failed is tried again, a few times.
                self.step(
                    key,
                    match missing.is_empty() {
                        true => Event::StoreFailed(error_chain(&error)),
                        false => Event::RanksFailed(missing),
                    },
                );
            }
        }
        // Announced while the flush ran: the same content is answered, another one is taken as if it came now.
        for (rank, announced) in next {
            self.announced(announced, key.job.clone(), grouping.ranks(), key.label.clone(), rank);
        }
    }

    fn status(&self) -> v1::StatusReply {
        let mut newest: Vec<(&Key, &Gather)> = self.gathers.iter().collect();
        newest.sort_by_key(|(_, gather)| std::cmp::Reverse(gather.serial));
        v1::StatusReply {
            software: mcr_proto::SOFTWARE.into(),
            uptime_ms: self.now_ms(),
            store: self.store.root().display().to_string(),
            budget_bytes: self.budget.total_bytes(),
            leased_bytes: self.budget.leased_bytes(),
            agents: (self.agents.values())
                .map(|agent| v1::AgentStatus {
                    node: agent.link.node.clone(),
                    job: agent.job.to_string(),
                    connected_ms: agent.connected.elapsed().as_millis() as u64,
                    silent_ms: agent.heard.elapsed().as_millis() as u64,
                    ranks: agent.ranks.iter().take(1024).map(|rank| rank.0).collect(),
                })
                .collect(),
            checkpoints: newest.into_iter().take(64).map(|(key, gather)| gather_status(key, gather)).collect(),
        }
    }
}

/// Tells an agent that its announcement is of no use any more, and whether to announce again after a while.
fn give_back(announced: &Announced, label: &CheckpointId, rank: Rank, reason: String, retry: bool) {
    let (label, rank, announce_id) = (label.to_string(), rank.0, announced.announce_id);
    let told = v1::Abandoned { label, rank, reason, retry, announce_id };
    announced.link.send(v1::to_agent::Message::Abandoned(told));
}

/// Runs a flush on a thread of its own; whatever happens there, its end is told.
fn launch_flush(work: FlushWork, events: mpsc::Sender<HubEvent>) -> std::io::Result<()> {
    let flush = move || {
        let started = Instant::now();
        let key = work.key.clone();
        let result = Box::new(unpanicked(|| work.run()));
        // Only fails when the hub is gone, and then nobody waits.
        let _ = events.blocking_send(HubEvent::FlushEnded { key, result, elapsed: started.elapsed() });
    };
    std::thread::Builder::new().name("flush".into()).spawn(flush).map(drop)
}

fn is_over(phase: &Phase) -> bool {
    matches!(phase, Phase::Committed(_) | Phase::Abandoned(_))
}

fn gather_status(key: &Key, gather: &Gather) -> v1::CheckpointStatus {
    let (phase, reason, missing) = match &gather.phase {
        Phase::Gathering { missing, .. } => {
            ("gathering", String::new(), missing.iter().take(64).map(|r| r.0).collect())
        }
        Phase::Flushing { .. } => ("flushing", String::new(), Vec::new()),
        Phase::Waiting { attempts, .. } => {
            ("waiting", format!("failed {attempts} times, and is tried again: {}", gather.problem), Vec::new())
        }
        Phase::Committed(id) => ("committed", id.to_string(), Vec::new()),
        Phase::Abandoned(reason) => ("abandoned", reason.to_string(), Vec::new()),
    };
    let flushing = matches!(gather.phase, Phase::Flushing { .. });
    let done = |so_far: &AtomicU64, whole: u64| if flushing { so_far.load(Ordering::Relaxed) } else { whole };
    v1::CheckpointStatus {
        job: key.job.to_string(),
        label: key.label.to_string(),
        group: key.group.0,
        phase: phase.into(),
        reason,
        missing,
        raw_bytes: done(&gather.progress.raw_bytes, gather.raw_bytes.0),
        stored_bytes: done(&gather.progress.stored_bytes, gather.stored_bytes.0),
        age_ms: gather.since.elapsed().as_millis() as u64,
        flush_ms: gather.flush_ms,
    }
}

/// One digest for what a rank's files are: their paths and contents.
pub fn content(files: &[FileHeader]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(&(file.path.as_bytes().len() as u64).to_le_bytes());
        hasher.update(file.path.as_bytes());
        hasher.update(&file.digest.0);
    }
    hasher.finalize().into()
}

/// An error with its sources, in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// All that a flush thread needs.
struct FlushWork {
    store: Arc<dyn Store>,
    options: HubOptions,
    budget: Arc<Budget>,
    key: Key,
    grouping: Grouping,
    files: Vec<FileHeader>,
    source: RemoteSource,
    not_before_ns: Option<i64>,
    progress: Arc<Progress>,
}

impl FlushWork {
    fn run(self) -> Result<Flushed, FlushError> {
        let store = &*self.store;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let run = self.run_of_files()?;
        let (spread, not_before_ms) = (self.options.spread, self.not_before_ns.map(|ns| ns / 1_000_000));
        let written = Written { spread, not_before_ms, run: &run };
        let chosen = choose_instance(store, &self.key, self.grouping, &self.files, written)?;
        let (manifest, was_there) = match chosen {
            Instance::There(manifest) => (*manifest, true),
            Instance::New(checkpoint) => {
                let flush = Flush {
                    store,
                    job: self.key.job.clone(),
                    checkpoint,
                    group: self.key.group,
                    grouping: self.grouping,
                    group_size: self.options.group_size,
                    run: run.clone(),
                    sequence: None,
                    files: self.files.into(),
                    source: &self.source,
                    options: &self.options.flush,
                    budget: &self.budget,
                    spare: &Spare::default(),
                    may_commit: &|| true,
                    observer: &*self.progress,
                    now_unix_ms: now.map_or(0, |now| now.as_millis() as u64),
                };
                (flush_checkpoint(flush)?, false)
            }
        };
        let id = manifest.checkpoint.clone();
        // Only for the agents' information; what cannot be read now is found out at the restart.
        let exists = manifest::state(store, &self.key.job, &id).is_ok_and(|state| state.is_complete());
        Ok(Flushed { id, manifest, exists, was_there })
    }

    /// The run that wrote the files. A rank whose files are all from a run before is awaited anew: it is about to write
    /// them again.
    fn run_of_files(&self) -> Result<String, FlushError> {
        let mut ranks: BTreeMap<Rank, (i64, &FileHeader)> = BTreeMap::new();
        for file in &self.files {
            let newest = ranks.entry(file.rank).or_insert((i64::MIN, file));
            *newest = (newest.0.max(file.modified_ns.div_euclid(1_000_000)), newest.1);
        }
        let newest_ms = ranks.values().map(|(ms, _)| *ms).max().unwrap_or(0);
        let run = run_of(&*self.store, &self.key.job, newest_ms)?;
        match ranks.into_iter().find(|(_, (written_ms, _))| *written_ms < run.began_unix_ms) {
            Some((rank, (_, file))) => Err(FetchError::Changed { rank, file: file.path.to_string() }.into()),
            None => Ok(run.name),
        }
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
