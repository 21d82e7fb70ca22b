//! The hub owns the state of all checkpoints in flight. Every message and every end of a flush is an event in one
//! queue.
//!
//! [`crate::group::step`] makes the decisions. The hub stores the announcements, starts each flush on a new thread,
//! and sends the results to the agents. The hub never waits for a flush, and holds no lock.

mod announced;
mod conflict;
mod drain;
mod event;
mod flush_work;
mod flushing;
mod gather;
mod history;
mod late_part;
mod search;
mod shared;
mod status;

pub use event::{Flushed, HubEvent, Searched};
pub use shared::Shared;
pub use status::StatusAsker;

use crate::attendance::Attendance;
use crate::budget::Budget;
use crate::drain::{GRACE_MS, Uncommitted, Verdict};
use crate::fetch::{AgentLink, Announced};
use crate::flush::FlushOptions;
use crate::group::{Effect, Event, Key, Phase, Reason, Times, step};
use crate::own_thread::OwnThreads;
use crate::retention::Retention;
use flush_work::{FlushWork, launch_flush};
use gather::{Gather, LOOK_FIRST_MS, content, give_back, modified_ns};
use history::History;
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use mcrengine::retention::Rules;
use mcrengine::store::Store;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of events in the queue of the hub. If the queue is full, the sender waits.
pub const HUB_QUEUE: usize = 256;
/// Maximum number of checkpoints of one group that wait for their ranks at the same time. If another checkpoint
/// begins, the checkpoint that the application wrote first is abandoned.
pub const WAITING_MAX: usize = 8;
/// Maximum number of checkpoints of all groups that the hub gathers or remembers. Announcements of further
/// checkpoints are refused.
const GATHERS_MAX: usize = 64 << 10;

/// The settings of the hub.
#[derive(Clone)]
pub struct HubOptions {
    /// How checkpoints are written.
    pub flush: FlushOptions,
    /// Number of ranks in a group (GROUP_SIZE). An agent with another group size is refused.
    pub group_size: u32,
    /// Number of ranks of a job, if the agents do not report this number.
    pub ranks: Option<u32>,
    /// How long the phases of a checkpoint last.
    pub times: Times,
    /// How long one fetch may take.
    pub fetch_deadline: Duration,
    /// Maximum time between the writing of the first and of the last file of one checkpoint.
    pub spread: Duration,
    /// Number of flushes that run at the same time.
    pub flushes: usize,
    /// Which checkpoints of a job are kept when a new checkpoint becomes complete. Without any rule, all checkpoints
    /// are kept.
    pub keep: Rules,
    /// The only start of a job that the aggregator serves. `None`: the aggregator serves all jobs.
    pub of_job: Option<OfJob>,
    /// Whether this process also has an agent. The agent then logs the complete checkpoints, and the hub does not.
    pub has_agent: bool,
}

/// One start of a job, and its number of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfJob {
    /// Identity of the start, as in [`About::identity`](crate::fetch::About::identity).
    pub identity: String,
    /// Number of nodes of the job. Each node has one agent. A drain waits until this number of agents has reported
    /// their end. Therefore the nodes of a job may end in any order.
    pub nodes: usize,
}

struct Agent {
    link: Arc<AgentLink>,
    job: JobId,
    connected: Instant,
    ranks: BTreeSet<Rank>,
    /// Whether the agent has reported that all written files are announced. The hub resets this value when the hub
    /// asks the agent for a report.
    looked: bool,
    /// When the agent reported that it will end and announce nothing more. In milliseconds of the hub's clock.
    leaving_ms: Option<u64>,
}

/// The requested end of the aggregator.
struct Draining {
    since_ms: u64,
    until_ms: u64,
    done: oneshot::Sender<Vec<Uncommitted>>,
    /// When the last event occurred that can delay the end, in milliseconds of the hub's clock.
    quiet_since_ms: u64,
}

/// The owner of the state. [`Hub::run`] handles its events.
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
    /// When the last tick began, in milliseconds of the hub's clock.
    ticked_ms: u64,
    serial: u64,
    /// Whether a thread is checking which committed checkpoints are complete in the store.
    looking: bool,
    /// Whether a thread is searching the store for announced files.
    searching: bool,
    shared: Arc<Shared>,
    /// The jobs for which an agent announced a rank that is too high for the number of ranks that the agent reports.
    /// For each job: the highest such rank, its node and its session.
    beyond: BTreeMap<JobId, (Rank, String, u64)>,
    /// Work for which the hub waits only at its end.
    own_threads: OwnThreads,
    /// Job names that two jobs use at the same time. For each name: one session of the first job, one session of the
    /// second job, and the message for both jobs.
    conflicts: BTreeMap<JobId, (u64, u64, String)>,
    /// The announcements whose refusal was already logged as a warning: session, checkpoint and reason.
    refused: BTreeSet<(u64, CheckpointId, String)>,
    draining: Option<Draining>,
    /// The nodes whose agents have reported their end. The hub uses this set only if the aggregator serves one start
    /// of a job.
    left: BTreeSet<String>,
    attendance: Arc<Attendance>,
    /// What happened to each job, for `mcr status`.
    history: History,
    /// Removes old checkpoints.
    pub(crate) retention: Retention,
    /// Starts a flush. Tests replace this function to decide when and how a flush ends.
    launch: fn(FlushWork, mpsc::Sender<HubEvent>) -> std::io::Result<()>,
}

impl Hub {
    /// Makes a hub for a store, with the sender and the receiver of its events.
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
            ticked_ms: 0,
            serial: 0,
            looking: false,
            searching: false,
            shared: Arc::default(),
            beyond: BTreeMap::new(),
            own_threads: OwnThreads::default(),
            conflicts: BTreeMap::new(),
            refused: BTreeSet::new(),
            draining: None,
            left: BTreeSet::new(),
            attendance: Arc::default(),
            history: History::default(),
            launch: launch_flush,
        };
        (hub, events, receiver)
    }

    /// The state that all flushes and the service for agents share.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// The numbers of agents, for other tasks of this process.
    pub fn attendance(&self) -> Arc<Attendance> {
        Arc::clone(&self.attendance)
    }

    /// Handles the events one after the other until shutdown. A timer tick occurs only while a checkpoint, an ending
    /// agent or the drain waits for a point in time, or while a search in the store is due.
    pub async fn run(mut self, mut events: mpsc::Receiver<HubEvent>) {
        loop {
            let event = match self.next_tick() {
                None => events.recv().await,
                Some(wait) => match tokio::time::timeout(wait.max(Duration::from_millis(1)), events.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.tick();
                        if self.end_if_drained().await {
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
            // Work whose time has come is done even if the queue of events is long.
            if self.next_tick() == Some(Duration::ZERO) {
                self.tick();
            }
            if self.end_if_drained().await {
                return;
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn next_tick(&self) -> Option<Duration> {
        let due = self.gathers.values().filter_map(|gather| match gather.phase {
            Phase::Gathering { .. } => gather.gives_up_ms(),
            Phase::Waiting { until_ms, .. } => Some(until_ms),
            Phase::Committed(_) => (!gather.untold.is_empty() && !self.looking).then_some(gather.look.0),
            Phase::Flushing { .. } | Phase::Abandoned(_) => None,
        });
        let leaving = self.agents.values().filter_map(|agent| agent.leaving_ms).map(|ms| ms + GRACE_MS);
        // The last tick has handled the agents whose grace period had ended.
        let leaving = leaving.filter(|ms| *ms > self.ticked_ms);
        let ending = self.draining.as_ref().and_then(|draining| match self.verdict(draining) {
            Verdict::GoOn(at_ms) => Some(at_ms),
            Verdict::End => None,
        });
        let search = self.search_is_due().then(|| self.now_ms());
        due.chain(leaving)
            .chain(ending)
            .chain(search)
            .min()
            .map(|due_ms| Duration::from_millis(due_ms.saturating_sub(self.now_ms())))
    }

    fn tick(&mut self) {
        self.ticked_ms = self.now_ms();
        self.give_up_what_nobody_will_announce();
        let now_ms = self.ticked_ms;
        let due =
            self.gathers.iter_mut().filter_map(|(key, gather)| (!gather.must_search_first(now_ms)).then_some(key));
        for key in due.cloned().collect::<Vec<_>>() {
            self.step(&key, Event::Tick);
        }
        self.start_look();
        self.start_search();
        self.start_flushes();
    }

    fn handle(&mut self, event: HubEvent) {
        let now_ms = self.now_ms();
        if let Some(draining) = &mut self.draining
            && !matches!(event, HubEvent::Status(_) | HubEvent::Exist(_) | HubEvent::Searched(_))
        {
            draining.quiet_since_ms = now_ms;
        }
        match event {
            HubEvent::Opened { link, job } => {
                tracing::info!(node = link.node, session = link.session, %job, "agent connected");
                if let Some(other) = self.agents.values().find(|other| {
                    is_elsewhere(other, &job, &link) && other.link.about.shared_rank(&link.about).is_some()
                }) {
                    let rank = other.link.about.shared_rank(&link.about).unwrap_or(Rank(0));
                    let other = Arc::clone(&other.link);
                    self.conflict(&job, &other, &link, rank);
                }
                self.left.remove(&link.node);
                self.history.connected(&job, &link.node);
                let (looked, leaving_ms, ranks) = (false, None, BTreeSet::new());
                if self.draining.is_some() {
                    link.send(v1::to_agent::Message::Look(v1::Look {}));
                }
                let agent = Agent { link, job, connected: Instant::now(), ranks, looked, leaving_ms };
                self.agents.insert(agent.link.session, agent);
            }
            HubEvent::Ended { session } => self.ended(session),
            HubEvent::Announced { announced, job, ranks, label, rank } => {
                self.announced(announced, job, ranks, label, rank)
            }
            HubEvent::Withdrawn { session, job, label, rank, reason } => {
                let key = Key { group: GroupId(rank.0 / self.options.group_size), job, label };
                tracing::warn!(
                    job = %key.job,
                    checkpoint = %key.label,
                    rank = rank.0,
                    reason,
                    "announcement withdrawn"
                );
                self.lose(&key, rank, session);
            }
            HubEvent::FlushEnded { key, result, elapsed } => self.flush_ended(&key, *result, elapsed),
            HubEvent::Exist(keys) => {
                self.looking = false;
                keys.iter().for_each(|key| self.exist(key));
            }
            HubEvent::Searched(searched) => self.searched(searched),
            HubEvent::Status(reply) => {
                let _ = reply.send(self.status());
            }
            HubEvent::Looked { session, leaving } => self.looked(session, leaving),
            HubEvent::Shutdown { until, done } => self.begin_drain(until, done),
        }
        self.attendance.set(self.agents.len(), self.left.len());
        self.start_flushes();
    }

    fn ended(&mut self, session: u64) {
        let Some(agent) = self.agents.remove(&session) else { return };
        let others = self.agents.values().filter(|other| other.job == agent.job).count() as u64;
        let is_leaving = agent.leaving_ms.is_some();
        tracing::info!(node = agent.link.node, session, job = %agent.job, is_leaving, others, "agent disconnected");
        let is_elsewhere = |other: &Agent| other.job == agent.job && other.link.node == agent.link.node;
        if !is_leaving && !self.agents.values().any(is_elsewhere) {
            self.history.lost(&agent.job, &agent.link.node);
        }
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

    /// Lets other aggregators save a job, if no agent of the job is connected to this aggregator.
    fn release(&self, job: &JobId) {
        if self.agents.values().any(|agent| agent.job == *job) || !self.shared.holders.holds(job) {
            return;
        }
        let (shared, job) = (self.shared(), job.clone());
        let release = move || shared.holders.release(&job);
        if let Err(error) = std::thread::Builder::new().name("release".into()).spawn(release) {
            tracing::error!(%error, "cannot start a thread to release a job");
        }
    }

    /// Removes the announcement that a rank made in session `session`.
    fn lose(&mut self, key: &Key, rank: Rank, session: u64) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let of_session = |a: Option<&Announced>| a.is_some_and(|a| a.link.session == session);
        if of_session(gather.next.get(&rank)) {
            gather.next.remove(&rank);
        }
        if of_session(gather.announced.get(&rank)) {
            // A running flush uses the announcement until its end. If the flush still needs bytes of the rank, the
            // flush fails by itself.
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
                    self.history.failed(&key.job, format!("{} was abandoned: {reason}", key.label));
                    gather.given_up_while_draining = self.draining.is_some();
                    tracing::warn!(
                        job = %key.job,
                        checkpoint = %key.label,
                        group = key.group.0,
                        kind = reason.kind(),
                        %reason,
                        "abandoned checkpoint"
                    );
                    for (rank, announced) in std::mem::take(&mut gather.announced) {
                        let why = match reason {
                            Reason::Missing(_) => format!("{reason}; {}", announced.link.about.ranks_advice()),
                            _ => reason.to_string(),
                        };
                        give_back(&announced, &key.label, rank, why, reason.may_pass());
                    }
                    if let Reason::Missing(_) | Reason::Lost(..) = reason {
                        self.doubt_part(key);
                    }
                }
            }
        }
    }
}

/// Whether agent `other` saves a job of the same name with the same identity, but from another directory.
fn is_elsewhere(other: &Agent, job: &JobId, link: &AgentLink) -> bool {
    other.job == *job
        && other.link.session != link.session
        && !other.link.has_ended()
        && other.link.about.watch != link.about.watch
        && other.link.about.identity == link.about.identity
}

#[cfg(test)]
#[path = "hub_tests.rs"]
pub(crate) mod tests;
