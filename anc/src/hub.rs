//! The one owner of what is in flight: every message and every end of a flush is an event in one queue.
//!
//! Decisions are made by [`crate::group::step`]; this file keeps the announcements, starts flushes on threads of their
//! own, and tells agents. It never waits for work, and holds no lock.

mod conflict;
mod flushing;

use crate::budget::Budget;
use crate::drain::{GRACE_MS, InFlight, Uncommitted, Verdict, decide};
use crate::fetch::{About, AgentLink, Announced, RemoteSource};
use crate::flush::FlushOptions;
use crate::flush_error::FlushError;
use crate::group::{Effect, Event, Key, Phase, Reason, Times, step};
use crate::holders::Holders;
use crate::incarnation::Currents;
use crate::instance::spoil_instance;
use crate::names::Names;
use crate::newest::NewestOfGroups;
use crate::observe::Observer;
use crate::retention::Retention;
use crate::source::FetchError;
use crate::unpanicked::unpanicked;
use conflict::apart;
use flushing::{FlushWork, RankOfFlush, launch_flush};
use mcr_proto::v1;
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, FilePath, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::{self, Manifest};
use mcrengine::retention::Rules;
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
/// Refusals that are remembered, about 100 bytes each; with more, all are said once more.
const REFUSED_MAX: usize = 64 << 10;
/// First and longest wait before a committed group looks again whether the others are there, so that the agents hear it.
const LOOK_MS: (u64, u64) = (500, 60_000);
/// The longest such wait while agents leave, or the aggregator ends.
const LOOK_LEAVING_MS: u64 = 200;

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
    /// An agent has announced all that was written; `leaving`: nothing more will come from it.
    Looked {
        /// Which session.
        session: u64,
        /// It ends once it is answered.
        leaving: bool,
    },
    /// Finish what agents have or may still announce, give up the rest, and end; at this time at the latest.
    Shutdown {
        /// The bound.
        until: Instant,
        /// What is not committed.
        done: oneshot::Sender<Vec<Uncommitted>>,
    },
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
    /// The ranks that overwrote their files.
    overwritten: BTreeMap<Rank, Overwritten>,
    /// The newest incarnation was asked for, because of what was overwritten.
    has_asked: bool,
    /// What failed last, for people.
    problem: String,
    exists: bool,
    /// The sessions whose ranks are in what was committed.
    sessions: BTreeSet<u64>,
    /// Given up after the aggregator was asked to end.
    given_up_while_draining: bool,
    /// Who was told that it is committed, and not yet that it exists: node, announcement.
    untold: BTreeMap<Rank, (String, u64)>,
    /// When to look whether it exists, and how long to wait after that, in milliseconds.
    look: (u64, u64),
    /// When it was looked last since the commit.
    looked_ms: Option<u64>,
    raw_bytes: RawBytes,
    stored_bytes: StoredBytes,
    since: Instant,
    flush_ms: u64,
    progress: Arc<Progress>,
    /// Grows; the order of arrival.
    serial: u64,
}

/// A rank overwrote what it had announced.
#[derive(Clone, Copy, Debug)]
struct Overwritten {
    /// What was written before this, in nanoseconds since 1970, is not of the same content.
    half_ns: i64,
    /// When the files were written that are gone, by this process's steady clock.
    was_written_ns: Option<i64>,
}

impl Overwritten {
    /// The latest bound of all those that hold. What an incarnation overwrites of the one before it, which ended at
    /// `began_ns`, says nothing of its own steps.
    fn not_before_ns<'a>(all: impl Iterator<Item = &'a Self>, began_ns: Option<i64>) -> Option<i64> {
        let is_of_this = |one: &&Self| one.was_written_ns.zip(began_ns).is_none_or(|(was, began)| was >= began);
        all.filter(is_of_this).map(|one| one.half_ns).max()
    }
}

/// What a rank's files were.
struct Seen {
    modified_ns: i64,
    /// By this process's steady clock.
    written_ns: Option<i64>,
    files: Vec<(FilePath, Digest)>,
}

fn modified_ns(files: &[FileHeader]) -> i64 {
    files.iter().map(|file| file.modified_ns).max().unwrap_or(i64::MIN)
}

/// What all flushes of an aggregator share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The newest incarnation of each job.
    pub currents: Currents,
    /// The newest manifest of each group.
    pub newest: NewestOfGroups,
    /// Which names are taken.
    pub names: Names,
    /// The groups of jobs without identity that this aggregator saves.
    pub holders: Holders,
}

impl Gather {
    /// Notes what a rank announced. If it overwrote what it had announced before, whatever was written nearer to that than
    /// to this is of the content before: a checkpoint is written in less than half the time between two.
    fn saw(&mut self, rank: Rank, announced: &Announced) {
        let seen = Seen {
            modified_ns: announced.written_unix_ns,
            written_ns: announced.link.clock.to_ours(announced.changed_clock_ns),
            files: announced.files.iter().map(|file| (file.path.clone(), file.digest)).collect(),
        };
        if let Some(before) = self.last.get(&rank) {
            let differs =
                |(path, digest): &(FilePath, Digest)| before.files.iter().any(|(p, d)| p == path && d != digest);
            if seen.modified_ns < before.modified_ns {
                self.overwritten.clear(); // put back from elsewhere: its time tells nothing
            } else if seen.files.iter().any(differs) {
                let half_ns = before.modified_ns + (seen.modified_ns.saturating_sub(before.modified_ns)) / 2;
                let later = self.overwritten.get(&rank).filter(|other| other.half_ns >= half_ns).copied();
                let this = Overwritten { half_ns, was_written_ns: before.written_ns };
                self.overwritten.insert(rank, later.unwrap_or(this));
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
    /// It has announced all that was written since it was asked, or since it began to end.
    looked: bool,
    /// It ends, and nothing more will come from it, since this time.
    leaving_ms: Option<u64>,
}

/// The end that was asked for.
struct Draining {
    since_ms: u64,
    until_ms: u64,
    done: oneshot::Sender<Vec<Uncommitted>>,
    /// When something happened last.
    quiet_since_ms: u64,
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
    shared: Arc<Shared>,
    /// For each job the highest rank that announced beyond the number of ranks that its agent says, its node and session.
    beyond: BTreeMap<JobId, (Rank, String, u64)>,
    /// Job names that two jobs use at once: the two sessions, and the message to both.
    conflicts: BTreeMap<JobId, (u64, u64, String)>,
    /// Whose announcements of what were refused, and that it was said.
    refused: BTreeSet<(u64, CheckpointId, Rank)>,
    draining: Option<Draining>,
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
            shared: Arc::default(),
            beyond: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            refused: BTreeSet::new(),
            draining: None,
            launch: launch_flush,
        };
        (hub, events, receiver)
    }

    /// What its flushes share, for those who greet agents.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
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
                        if self.end_if_drained() {
                            return;
                        }
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
            if self.end_if_drained() {
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
        let leaving = self.agents.values().filter_map(|agent| agent.leaving_ms).map(|ms| ms + GRACE_MS);
        // Agents that left their grace behind them have been acted upon.
        let leaving = leaving.filter(|ms| *ms > self.now_ms());
        let ending = self.draining.as_ref().and_then(|draining| match self.verdict(draining) {
            Verdict::GoOn(at_ms) => Some(at_ms),
            Verdict::End => None,
        });
        due.chain(leaving).chain(ending).min().map(|due_ms| Duration::from_millis(due_ms.saturating_sub(self.now_ms())))
    }

    fn tick(&mut self) {
        self.give_up_what_nobody_will_announce();
        for key in self.gathers.keys().cloned().collect::<Vec<_>>() {
            self.step(&key, Event::Tick);
        }
        self.start_look();
        self.start_flushes();
    }

    /// All agents of a job that are connected have said that nothing more will come: after a grace the ranks that are
    /// missing will not come either.
    fn give_up_what_nobody_will_announce(&mut self) {
        let now_ms = self.now_ms();
        let mut leaving: BTreeMap<&JobId, bool> = BTreeMap::new();
        for agent in self.agents.values() {
            let is_over = agent.leaving_ms.is_some_and(|ms| now_ms >= ms + GRACE_MS);
            *leaving.entry(&agent.job).or_insert(true) &= is_over;
        }
        for (key, gather) in &mut self.gathers {
            if leaving.get(&key.job) == Some(&true)
                && let Phase::Gathering { deadline_ms, .. } = &mut gather.phase
            {
                *deadline_ms = now_ms.min(*deadline_ms);
            }
        }
    }

    fn looked(&mut self, session: u64, leaving: bool) {
        let now_ms = self.now_ms();
        let Some(agent) = self.agents.get_mut(&session) else { return };
        agent.looked = true;
        if leaving {
            agent.leaving_ms = Some(now_ms);
        }
        let job = agent.job.clone();
        self.look_soon(|key| key.job == job);
    }

    /// Agents that leave wait for the other groups: it is looked for these now, and often.
    fn look_soon(&mut self, those: impl Fn(&Key) -> bool) {
        let now_ms = self.now_ms();
        for (_, gather) in self.gathers.iter_mut().filter(|(key, _)| those(key)) {
            gather.look = (now_ms, LOOK_LEAVING_MS);
        }
    }

    /// Begins to end: the agents are asked for what was written, and everything goes on within the bound.
    fn begin_drain(&mut self, until: Instant, done: oneshot::Sender<Vec<Uncommitted>>) {
        let now_ms = self.now_ms();
        let left_ms = until.saturating_duration_since(Instant::now()).as_millis() as u64;
        self.draining = Some(Draining { since_ms: now_ms, until_ms: now_ms + left_ms, done, quiet_since_ms: now_ms });
        for agent in self.agents.values_mut().filter(|agent| agent.leaving_ms.is_none()) {
            agent.looked = false;
            agent.link.send(v1::to_agent::Message::Look(v1::Look {}));
        }
        self.look_soon(|_| true);
    }

    fn verdict(&self, draining: &Draining) -> Verdict {
        let is = |wanted: fn(&Phase) -> bool| self.gathers.values().filter(|gather| wanted(&gather.phase)).count();
        let nodes: BTreeSet<(&JobId, &str)> = self.agents.values().map(|a| (&a.job, a.link.node.as_str())).collect();
        // The other groups may be there by now, also where nobody is left who could be told.
        let is_looked_for =
            |gather: &Gather| gather.looked_ms.is_some_and(|ms| ms >= draining.since_ms) && !self.looking;
        let awaits = |key: &Key, gather: &Gather| {
            let has_agent = || gather.untold.values().any(|(node, _)| nodes.contains(&(&key.job, node.as_str())));
            !gather.untold.is_empty() && (!is_looked_for(gather) || has_agent()) && !self.is_overtaken(key, gather)
        };
        let in_flight = InFlight {
            looking: self.agents.values().filter(|agent| !agent.looked).count(),
            flushing: self.running.len() + is(|phase| matches!(phase, Phase::Flushing { .. } | Phase::Waiting { .. })),
            gathering: self.gathers.iter().filter(|(key, gather)| self.is_given_up(key, gather)).count(),
            untold: self.gathers.iter().filter(|(key, gather)| awaits(key, gather)).count(),
        };
        decide(in_flight, self.now_ms(), draining.quiet_since_ms, draining.until_ms)
    }

    /// A later checkpoint of this group exists: whoever waits for the older one waits in vain, and was told so then.
    fn is_overtaken(&self, key: &Key, gather: &Gather) -> bool {
        self.gathers.iter().any(|(other, later)| {
            other.job == key.job && other.group == key.group && later.serial > gather.serial && later.exists
        })
    }

    /// Ranks are missing, and it is of interest still.
    fn is_given_up(&self, key: &Key, gather: &Gather) -> bool {
        let is_held = !gather.announced.is_empty();
        matches!(gather.phase, Phase::Gathering { .. }) && (is_held || !self.is_overtaken(key, gather))
    }

    /// Ends, if it was asked for and nothing more is to come: tells what is not committed, and gives up the rest.
    fn end_if_drained(&mut self) -> bool {
        if self.draining.as_ref().is_none_or(|draining| self.verdict(draining) != Verdict::End) {
            return false;
        }
        let Some(draining) = self.draining.take() else { return false };
        for agent in self.agents.values().filter(|agent| !agent.looked) {
            tracing::warn!(node = agent.link.node, job = %agent.job, "the agent did not say in time whether there is more to commit");
        }
        let mut uncommitted = Vec::new();
        for (key, gather) in &self.gathers {
            let (missing, why) = match &gather.phase {
                Phase::Gathering { missing, .. } if self.is_given_up(key, gather) => {
                    (missing.iter().copied().collect(), "ranks are missing".to_owned())
                }
                Phase::Flushing { .. } => (Vec::new(), "its flush did not end in time".to_owned()),
                Phase::Waiting { .. } => (Vec::new(), gather.problem.clone()),
                Phase::Committed(id)
                    if !gather.exists && !gather.untold.is_empty() && !self.is_overtaken(key, gather) =>
                {
                    (Vec::new(), format!("committed as {id}, but not every group of the checkpoint is"))
                }
                Phase::Abandoned(reason) if gather.given_up_while_draining => match reason {
                    Reason::Missing(ranks) => (ranks.iter().copied().collect(), "ranks are missing".to_owned()),
                    reason => (Vec::new(), reason.to_string()),
                },
                Phase::Gathering { .. } | Phase::Committed(_) | Phase::Abandoned(_) => continue,
            };
            let (job, checkpoint, group) = (key.job.clone(), key.label.clone(), key.group);
            uncommitted.push(Uncommitted { job, checkpoint, group, missing, why });
        }
        for key in self.gathers.keys().cloned().collect::<Vec<_>>() {
            self.step(&key, Event::Shutdown);
        }
        let _ = draining.done.send(uncommitted);
        true
    }

    /// Looks, on a thread of its own, which committed checkpoints exist by now.
    fn start_look(&mut self) {
        if self.looking {
            return;
        }
        let now_ms = self.now_ms();
        let hurry = self.draining.is_some() || self.agents.values().any(|agent| agent.leaving_ms.is_some());
        let mut due = Vec::new();
        for (key, gather) in &mut self.gathers {
            let Phase::Committed(id) = &gather.phase else { continue };
            if !gather.untold.is_empty() && now_ms >= gather.look.0 {
                let longest_ms = if hurry { LOOK_LEAVING_MS } else { LOOK_MS.1 };
                gather.look = (now_ms + gather.look.1, (gather.look.1 * 2).min(longest_ms));
                gather.looked_ms = Some(now_ms);
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

    /// The last group of a checkpoint was committed here: its other groups need not be looked for.
    fn exist_with(&mut self, job: &JobId, id: &CheckpointId) {
        let is_of_it = |gather: &Gather| matches!(&gather.phase, Phase::Committed(of) if of == id);
        let others = self.gathers.iter().filter(|(key, gather)| key.job == *job && is_of_it(gather));
        for key in others.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.exist(&key);
        }
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
        let now_ms = self.now_ms();
        if let Some(draining) = &mut self.draining
            && !matches!(event, HubEvent::Heard { .. } | HubEvent::Status(_) | HubEvent::Exist(_))
        {
            draining.quiet_since_ms = now_ms;
        }
        match event {
            HubEvent::Opened { link, job } => {
                tracing::info!(node = link.node, session = link.session, %job, "agent connected");
                let now = Instant::now();
                if let Some(other) = self.agents.values().find(|other| {
                    is_elsewhere(other, &job, &link) && other.link.about.shared_rank(&link.about).is_some()
                }) {
                    let rank = other.link.about.shared_rank(&link.about).unwrap_or(Rank(0));
                    let other = Arc::clone(&other.link);
                    self.conflict(&job, &other, &link, rank);
                }
                let (looked, leaving_ms, ranks) = (false, None, BTreeSet::new());
                if self.draining.is_some() {
                    link.send(v1::to_agent::Message::Look(v1::Look {}));
                }
                let agent = Agent { link, job, connected: now, heard: now, ranks, looked, leaving_ms };
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
            HubEvent::Looked { session, leaving } => self.looked(session, leaving),
            HubEvent::Shutdown { until, done } => self.begin_drain(until, done),
        }
        self.start_flushes();
    }

    fn ended(&mut self, session: u64) {
        let Some(agent) = self.agents.remove(&session) else { return };
        tracing::info!(node = agent.link.node, session, "agent gone");
        self.beyond.retain(|_, (_, _, of)| *of != session);
        self.conflicts.retain(|_, (a, b, _)| ![*a, *b].contains(&session));
        agent.link.end("its session has ended");
        self.release(&agent.job);
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

    /// Lets other aggregators save a job that has no agents here any more.
    fn release(&self, job: &JobId) {
        if self.agents.values().any(|agent| agent.job == *job) || !self.shared.holders.holds(job) {
            return;
        }
        let (shared, job) = (self.shared(), job.clone());
        let release = move || shared.holders.release(&job);
        if let Err(error) = std::thread::Builder::new().name("release".into()).spawn(release) {
            tracing::error!(%error, "no thread to let go of a job");
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

    /// Warns of a refusal once: an agent that is refused for a passing reason announces again each second.
    fn tell_refusal(&mut self, session: u64, label: &CheckpointId, rank: Rank, why: &str) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        match self.refused.insert((session, label.clone(), rank)) {
            true => tracing::warn!(checkpoint = %label, rank = rank.0, why, "announcement refused"),
            false => tracing::debug!(checkpoint = %label, rank = rank.0, why, "announcement refused again"),
        }
    }

    fn announced(&mut self, announced: Announced, job: JobId, ranks: u32, label: CheckpointId, rank: Rank) {
        let refuse = |hub: &mut Self, announced: &Announced, label: &CheckpointId, why: String, retry: bool| {
            hub.tell_refusal(announced.link.session, label, rank, &why);
            give_back(announced, label, rank, why, retry);
        };
        let Some(grouping) = Grouping::new(ranks, self.options.group_size) else {
            let why = format!(
                "{rank} NOT SAVED: the number of ranks is unknown; give --ranks, or ranks in [cnc] or [anc], or SLURM_NTASKS"
            );
            return refuse(self, &announced, &label, why, false);
        };
        let about = &announced.link.about;
        let from = |about: &About| match about.ranks {
            0 => "the newest checkpoint, or ranks in [anc]".to_owned(),
            _ => about.ranks_from.clone(),
        };
        if rank.0 >= grouping.ranks() {
            let (ranks, from) = (grouping.ranks(), from(about));
            let why =
                format!("{rank} NOT SAVED: ranks = {ranks} (from {from}) means ranks 0 to {}; set ranks", ranks - 1);
            self.beyond(&job, &label, rank, &announced, &why);
            return refuse(self, &announced, &label, why, false);
        }
        if let Some((highest, node, _)) = self.beyond.get(&job).filter(|(highest, ..)| highest.0 >= grouping.ranks()) {
            let why = format!(
                "{rank} NOT SAVED: ranks = {} (from {}), but node {node} has files of {highest}; set ranks",
                grouping.ranks(),
                from(about)
            );
            return refuse(self, &announced, &label, why, true);
        }
        let says_else = |a: &&Agent| a.job == job && ![0, grouping.ranks()].contains(&a.link.about.ranks);
        if let Some(other) = self.agents.values().find(says_else) {
            let why = format!(
                "{rank} NOT SAVED: the agents of job {job} disagree on its number of ranks: {} (node {}, from {}) and {} (node {}, from {}); \
                 nothing is saved until they agree",
                grouping.ranks(),
                announced.link.node,
                from(about),
                other.link.about.ranks,
                other.link.node,
                from(&other.link.about)
            );
            return refuse(self, &announced, &label, why, true);
        }
        let claims = |other: &&Agent| {
            is_elsewhere(other, &job, &announced.link) && (other.link.about.claims(rank) || other.ranks.contains(&rank))
        };
        if let Some(other) = self.agents.values().find(claims).map(|other| Arc::clone(&other.link)) {
            self.conflict(&job, &other, &announced.link, rank);
        }
        if let Some((_, _, why)) = self.conflicts.get(&job) {
            let why = format!("{rank} NOT SAVED: {why}");
            return refuse(self, &announced, &label, why, true);
        }
        let key = Key { group: grouping.group_of(rank), job, label };
        if let Some(agent) = self.agents.get_mut(&announced.link.session) {
            agent.ranks.insert(rank);
            // Something came after all; there may be more.
            agent.leaving_ms = agent.leaving_ms.map(|_| self.started.elapsed().as_millis() as u64);
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
                    self,
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
                gather.saw(rank, &announced);
                gather.next.insert(rank, announced.clone())
            }
            Phase::Committed(_) => {
                // The same content again: answer this rank alone.
                gather.announced = [(rank, announced)].into();
                return self.step(&key, Event::Announced(rank));
            }
            Phase::Gathering { .. } | Phase::Waiting { .. } | Phase::Abandoned(_) => {
                gather.saw(rank, &announced);
                gather.announced.insert(rank, announced.clone())
            }
        };
        if let Some(other) = replaced.filter(|other| other.link.session != announced.link.session) {
            tracing::warn!(
                job = %key.job, checkpoint = %key.label, rank = rank.0, first = other.link.node, last = announced.link.node,
                "announced in two sessions; the last one counts"
            );
            let reason = format!("node {} announced the same rank later; let one agent have it", announced.link.node);
            // Of two incarnations one is fenced, and it need not be this one.
            let retry = other.link.about.identity != announced.link.about.identity;
            give_back(&other, &key.label, rank, reason, retry);
        }
        self.drop_stale(&key);
        if self.gathers.get(&key).is_some_and(|gather| gather.announced.contains_key(&rank)) {
            self.step(&key, Event::Announced(rank));
        }
    }

    /// A rank announced that the job does not have by the number that its agent says. The checkpoint is not whole without
    /// it: a mark in the store says so to all groups and to every restart.
    fn beyond(&mut self, job: &JobId, label: &CheckpointId, rank: Rank, announced: &Announced, why: &str) {
        if self.beyond.len() >= GATHERS_MAX {
            self.beyond.clear();
        }
        let this = (rank, announced.link.node.clone(), announced.link.session);
        let highest = self.beyond.entry(job.clone()).or_insert_with(|| this.clone());
        if highest.0 < rank {
            *highest = this;
        }
        let (store, spread, written_ms) =
            (Arc::clone(&self.store), self.options.spread, announced.written_unix_ns / 1_000_000);
        let (key, why) = (Key { job: job.clone(), group: GroupId(0), label: label.clone() }, why.to_owned());
        let spoil = move || {
            let spoiled = unpanicked(|| Ok(spoil_instance(&*store, &key, written_ms, spread, &why)?));
            if let Err(error) = spoiled {
                let error = error_chain(&error);
                tracing::error!(job = %key.job, checkpoint = %key.label, error, "cannot mark a checkpoint that is not whole");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("spoil".into()).spawn(spoil) {
            tracing::error!(%error, "no thread to mark a checkpoint that is not whole");
        }
    }

    /// Starts to gather anew under a key, and keeps what waits and what is remembered bounded.
    fn begin(&mut self, key: Key, grouping: Grouping) {
        self.serial += 1;
        let missing = grouping.ranks_of(key.group).map(Rank).collect();
        let deadline_ms = self.now_ms() + self.options.times.gather_ms;
        let before = self.gathers.remove(&key);
        let (last, overwritten) = before.map_or_else(Default::default, |before| {
            for (rank, announced) in before.announced.iter().chain(&before.next) {
                let reason = "the job has another number of ranks".into();
                give_back(announced, &key.label, *rank, reason, true);
            }
            (before.last, before.overwritten)
        });
        let gather = Gather {
            phase: Phase::Gathering { missing, deadline_ms, attempts: 0 },
            grouping,
            announced: BTreeMap::new(),
            next: BTreeMap::new(),
            committed: BTreeMap::new(),
            last,
            overwritten,
            has_asked: false,
            problem: String::new(),
            exists: false,
            sessions: BTreeSet::new(),
            given_up_while_draining: false,
            untold: BTreeMap::new(),
            look: (0, LOOK_MS.0),
            looked_ms: None,
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
        let newest = gather.announced.values().map(|a| a.written_unix_ns).max().unwrap_or(i64::MIN);
        let began_ns = self.shared.currents.began_ns(&key.job);
        let not_before_ns = Overwritten::not_before_ns(gather.overwritten.values(), began_ns);
        let oldest = newest.saturating_sub(spread_ns).max(not_before_ns.unwrap_or(i64::MIN));
        let is_stale = |a: &Announced| !a.files.is_empty() && a.written_unix_ns < oldest;
        let stale: Vec<Rank> = gather.announced.iter().filter(|(_, a)| is_stale(a)).map(|(rank, _)| *rank).collect();
        // A restart may have begun another incarnation since, and then nothing was overwritten: the ranks announce
        // once more.
        let may_be_wrong = !stale.is_empty() && gather.overwritten.values().any(|one| one.was_written_ns.is_some());
        let retry = may_be_wrong && !std::mem::replace(&mut gather.has_asked, true);
        if retry {
            let (store, shared, job) = (Arc::clone(&self.store), Arc::clone(&self.shared), key.job.clone());
            apart("asking for the newest incarnation", move || {
                shared.currents.of(&*store, &job)?; // remembered there
                Ok(())
            });
        }
        for rank in stale {
            tracing::warn!(job = %key.job, checkpoint = %key.label, rank = rank.0, "older than the other ranks' files; awaited anew");
            if let Some(gather) = self.gathers.get_mut(key)
                && let Some(announced) = gather.announced.remove(&rank)
            {
                let reason = "another rank has overwritten its files since; awaited anew".into();
                give_back(&announced, &key.label, rank, reason, retry);
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
                        gather.sessions.insert(announced.link.session);
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
                                let wait_ms = if self.draining.is_some() { 0 } else { LOOK_MS.0 };
                                gather.look = (now_ms + wait_ms, LOOK_MS.0);
                                gather.looked_ms = None;
                            }
                            gather.untold.insert(rank, (announced.link.node.clone(), announce_id));
                        }
                        announced.link.send(v1::to_agent::Message::Committed(told));
                    }
                    self.spoil_mixed(&key.job);
                }
                Effect::TellAbandoned(reason) => {
                    gather.given_up_while_draining = self.draining.is_some();
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
        let of_job = self.agents.values().filter(|agent| agent.job == key.job);
        let watches = of_job.map(|agent| agent.link.about.watch.clone());
        let ranks = gather.announced.iter().map(|(rank, announced)| RankOfFlush::new(*rank, announced)).collect();
        let (files, source) = RemoteSource::new(gather.announced.values().cloned(), self.options.fetch_deadline);
        let work = FlushWork {
            store: Arc::clone(&self.store),
            options: self.options.clone(),
            budget: Arc::clone(&self.budget),
            key: key.clone(),
            grouping: gather.grouping,
            files,
            source,
            ranks,
            shared: Arc::clone(&self.shared),
            overwritten: gather.overwritten.values().copied().collect(),
            watches: watches.collect(),
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
                if flushed.exists {
                    self.exist_with(&key.job, &flushed.id);
                }
                if flushed.exists && !flushed.was_there {
                    let in_flight = self.running.iter().map(|key| key.label.clone()).collect();
                    self.retention.completed(&key.job, in_flight);
                }
                self.step(key, Event::Flushed(flushed.id));
            }
            Err(error) => {
                tracing::warn!(job = %key.job, checkpoint = %key.label, group = key.group.0, error = error_chain(&error), "flush failed");
                gather.problem = error_chain(&error);
                let event = match &error {
                    FlushError::Stale(ranks) => Self::stale(gather, &key.label, ranks, next.is_empty()),
                    error => {
                        let mut missing = BTreeSet::new();
                        if let FlushError::Fetch(FetchError::Changed { rank, .. }) = error {
                            missing.insert(*rank);
                            if let Some(announced) = gather.announced.remove(rank) {
                                // Its agent need not have noticed. If it has, it announces another time, and this says
                                // nothing.
                                give_back(&announced, &key.label, *rank, error_chain(error), true);
                            }
                        }
                        // A rank whose agent has lost its session since is awaited too, and announces again.
                        let alive = |a: &Announced| self.agents.contains_key(&a.link.session) && !a.link.has_ended();
                        gather.announced.retain(|rank, a| alive(a) || !missing.insert(*rank));
                        // With everybody still there nobody announces again: what failed is tried again, a few times.
                        match missing.is_empty() {
                            true => Event::StoreFailed(error_chain(error)),
                            false => Event::RanksFailed(missing),
                        }
                    }
                };
                self.step(key, event);
            }
        }
        // Announced while the flush ran: the same content is answered, another one is taken as if it came now.
        for (rank, announced) in next {
            self.announced(announced, key.job.clone(), grouping.ranks(), key.label.clone(), rank);
        }
        self.release(&key.job); // its last agent may have gone meanwhile
    }

    /// Ranks whose files are of another step or incarnation are awaited anew; their agents announce them once they are
    /// written again. With no rank left, the checkpoint is given up.
    fn stale(gather: &mut Gather, label: &CheckpointId, ranks: &[(Rank, String)], is_last: bool) -> Event {
        // What the rank announced tells nothing of the step that the others write.
        gather.overwritten.clear();
        for (rank, reason) in ranks {
            gather.last.remove(rank);
            if let Some(announced) = gather.announced.remove(rank) {
                give_back(&announced, label, *rank, reason.clone(), false);
            }
        }
        match ranks.first() {
            Some((_, reason)) if gather.announced.is_empty() && is_last => Event::Fenced(reason.clone()),
            _ => Event::RanksFailed(ranks.iter().map(|(rank, _)| *rank).collect()),
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
    let told = v1::Abandoned { label, rank, reason, retry, announce_id, whole: false };
    announced.link.send(v1::to_agent::Message::Abandoned(told));
}

/// Whether an agent saves a job of this name from another directory, and both are by hand.
fn is_elsewhere(other: &Agent, job: &JobId, link: &AgentLink) -> bool {
    other.job == *job
        && other.link.session != link.session
        && !other.link.has_ended()
        && other.link.about.watch != link.about.watch
        && other.link.about.identity == link.about.identity
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

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
