//! The one owner of what is in flight: every message and every end of a flush is an event in one queue.
//!
//! Decisions are made by [`crate::group::step`]; this file keeps the announcements, starts flushes on threads of
//! their own, and tells agents. It never waits for work, and holds no lock.

mod announced;
mod conflict;
mod drain;
mod event;
mod flush_work;
mod flushing;
mod gather;
mod shared;
mod status;

pub use event::{Flushed, HubEvent};
pub use shared::Shared;

use crate::budget::Budget;
use crate::drain::{GRACE_MS, Uncommitted, Verdict};
use crate::fetch::{AgentLink, Announced};
use crate::flush::FlushOptions;
use crate::group::{Effect, Event, Key, Phase, Reason, Times, step};
use crate::retention::Retention;
use flush_work::{FlushWork, launch_flush};
use gather::{Gather, LOOK_FIRST_MS, content, give_back, modified_ns};
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use mcrengine::retention::Rules;
use mcrengine::store::Store;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Events that may wait for the hub; a sender of more waits.
pub const HUB_QUEUE: usize = 256;
/// Checkpoints of one group that may wait for their ranks at a time; the oldest is given up for a further one.
pub const WAITING_MAX: usize = 8;
/// Checkpoints of all groups that are gathered or remembered; announcements of further ones are refused.
const GATHERS_MAX: usize = 64 << 10;

/// What the hub runs with.
#[derive(Clone)]
pub struct HubOptions {
    /// How checkpoints are made.
    pub flush: FlushOptions,
    /// GROUP_SIZE; an agent with another group size is refused.
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

struct Agent {
    link: Arc<AgentLink>,
    job: JobId,
    connected: Instant,
    heard: Instant,
    ranks: BTreeSet<Rank>,
    /// It has announced all files that were written since it was asked, or since it began to end.
    looked: bool,
    /// Since when it ends, with nothing more to come from it.
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
    /// A thread looks which committed checkpoints exist.
    looking: bool,
    shared: Arc<Shared>,
    /// For each job the highest rank that announced beyond the number of ranks that its agent says, with its node and
    /// session.
    beyond: BTreeMap<JobId, (Rank, String, u64)>,
    /// Job names that two jobs use at once: the sessions of both, and the message to both.
    conflicts: BTreeMap<JobId, (u64, u64, String)>,
    /// The announcements that were refused with a warning: session, checkpoint, rank.
    refused: BTreeSet<(u64, CheckpointId, Rank)>,
    draining: Option<Draining>,
    /// Removes old checkpoints.
    pub(crate) retention: Retention,
    /// Starts a flush. A test has its own, and decides when and how the flush ends.
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

    /// What its flushes share; the service that greets agents needs it too.
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
            // Many events do not postpone what is due.
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
                                let wait_ms = if self.draining.is_some() { 0 } else { LOOK_FIRST_MS };
                                gather.look = (now_ms + wait_ms, LOOK_FIRST_MS);
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
}

/// Whether an agent saves a job of this name from another directory, and both are by hand.
fn is_elsewhere(other: &Agent, job: &JobId, link: &AgentLink) -> bool {
    other.job == *job
        && other.link.session != link.session
        && !other.link.has_ended()
        && other.link.about.watch != link.about.watch
        && other.link.about.identity == link.about.identity
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
