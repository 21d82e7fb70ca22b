//! Runs the waits that [`crate::drain`] decides about: collects what is not committed, steps each wait, and carries
//! out its result.

use super::{Core, FLUSHES_MAX, RETRY_DELAY, RankKey};
use crate::drain::{Drain, Item, Place, State, Uncommitted, by_reason};
use crate::serve::Order;
use crate::settle::ReadyRank;
use crate::watch::Pending;
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Minimum time between two steps, because each step looks at everything that is not committed.
const STEP_INTERVAL: Duration = Duration::from_millis(5);
/// Delay before a retry while a drain or a flush waits.
const AWAITED_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time for reporting to an aggregator that is about to end. Later reports are useless.
const LOOK_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of remembered checkpoints that were given up, and of those that only some groups have committed.
const REMEMBERED_MAX: usize = 4096;

/// How the agent has to end.
#[derive(Clone, Copy, Debug)]
pub struct DrainOrder {
    /// Time at which the agent must have ended.
    pub until: Instant,
    /// The job's processes have ended, so files need no further quiet time.
    pub processes_gone: bool,
}

/// How an agent ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// What was written but not committed. It is announced again at the next start.
    pub uncommitted: Vec<Uncommitted>,
    /// The drain ended because its time was up.
    pub time_was_up: bool,
    /// The agent failed before the drain, so it is unknown what is committed.
    pub failed: bool,
}

impl Drained {
    /// The result after a failure of the agent itself.
    pub(super) fn failed() -> Self {
        Self { failed: true, ..Self::default() }
    }
}

/// A request to commit everything that was written so far.
#[derive(Debug)]
pub struct FlushRequest {
    /// Maximum time to wait.
    pub timeout: Duration,
    /// Receives the result.
    pub reply: oneshot::Sender<Flushed>,
}

/// The result of a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// What was committed since the request, under the checkpoint's name in the store.
    pub committed: Vec<(CheckpointId, Vec<Rank>)>,
    /// What was written but not committed.
    pub uncommitted: Vec<Uncommitted>,
    /// The flush ended because its time was up.
    pub time_was_up: bool,
}

/// One wait for the commit of everything that was written.
pub(super) struct Wait {
    drain: Drain,
    kind: Kind,
    committed: BTreeMap<CheckpointId, BTreeSet<Rank>>,
}

enum Kind {
    /// The agent ends. The set contains the links whose aggregators know that everything is announced.
    Stop(BTreeSet<usize>),
    Flush(oneshot::Sender<Flushed>),
    /// An aggregator is about to end and asked for everything that was written.
    Look(usize),
}

/// The waits, and what is known about ranks that are neither committed nor on their way.
#[derive(Default)]
pub(super) struct Ending {
    waits: Vec<Wait>,
    /// Number of the last request that the watcher answered, and what was pending then.
    scanned: u64,
    pending: Vec<Pending>,
    /// Why a rank is tried again.
    troubles: BTreeMap<RankKey, String>,
    /// Ranks that their aggregator gave up permanently.
    given_up: BTreeMap<RankKey, GivenUp>,
    /// Checkpoints that one group has committed but not all groups, by their name in the store.
    partly: BTreeMap<CheckpointId, Partly>,
    /// Time of the last write to the newest committed file.
    newest_ns: i64,
    stepped: Option<Instant>,
}

struct GivenUp {
    why: String,
    modified_ns: i64,
    /// A drain or a flush was waiting when the rank was given up.
    awaited: bool,
    /// The rank's files existed completely, and disappeared before they were saved. If they were only renamed, they
    /// are committed under the new name with the same time.
    vanished: bool,
}

struct Partly {
    label: CheckpointId,
    ranks: BTreeSet<Rank>,
    modified_ns: i64,
}

pub(super) fn modified_ns(ready: &ReadyRank) -> i64 {
    ready.files.iter().map(|file| file.fingerprint.modified_ns).max().unwrap_or(i64::MIN)
}

impl Ending {
    pub(super) fn new(newest_ns: i64) -> Self {
        Self { newest_ns, ..Self::default() }
    }

    pub(super) fn is_awaited(&self) -> bool {
        !self.waits.is_empty()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.waits.iter().any(|wait| matches!(wait.kind, Kind::Stop(_)))
    }

    pub(super) fn has_room(&self) -> bool {
        self.waits.len() < FLUSHES_MAX
    }

    pub(super) fn scanned(&mut self, request: u64, pending: Vec<Pending>) {
        (self.scanned, self.pending) = (request, pending);
    }

    /// Records why a rank has to be tried again. Returns the time of the next attempt.
    pub(super) fn again_at(&mut self, key: RankKey, why: String) -> Instant {
        self.troubles.insert(key, why);
        Instant::now() + if self.is_awaited() { AWAITED_RETRY_DELAY } else { RETRY_DELAY }
    }

    pub(super) fn gave_up(&mut self, ready: &ReadyRank, why: String) {
        let key = (ready.checkpoint.clone(), ready.rank);
        if self.given_up.len() >= REMEMBERED_MAX {
            self.given_up.pop_first();
        }
        let (modified_ns, awaited) = (modified_ns(ready), self.is_awaited());
        self.given_up.insert(key, GivenUp { why, modified_ns, awaited, vanished: false });
    }

    /// A file of a rank disappeared. `ready` is given if the rank still had to be saved.
    pub(super) fn vanished(&mut self, key: &RankKey, ready: Option<&ReadyRank>, why: String) {
        if self.given_up.get(key).is_some_and(|lost| lost.vanished) {
            return; // another file of the rank was handled before
        }
        self.begins_anew(key);
        if let Some(ready) = ready {
            self.gave_up(ready, why);
            self.given_up.entry(key.clone()).and_modify(|lost| lost.vanished = true);
        }
    }

    /// A rank is ready again, or gone: what was recorded about it does not apply any more.
    pub(super) fn begins_anew(&mut self, key: &RankKey) {
        self.given_up.remove(key);
        self.troubles.remove(key);
    }

    /// A rank's part is committed. `exists`: all groups of the checkpoint are committed.
    pub(super) fn committed(&mut self, ready: &ReadyRank, checkpoint: &CheckpointId, exists: bool) {
        self.begins_anew(&(ready.checkpoint.clone(), ready.rank));
        let modified_ns = modified_ns(ready);
        if self.partly.len() >= REMEMBERED_MAX {
            self.partly.pop_first();
        }
        let partly = self.partly.entry(checkpoint.clone()).or_insert_with(|| Partly {
            label: ready.checkpoint.clone(),
            ranks: BTreeSet::new(),
            modified_ns,
        });
        partly.ranks.insert(ready.rank);
        partly.modified_ns = partly.modified_ns.max(modified_ns);
        if exists {
            self.exists(checkpoint);
        }
    }

    /// All groups of a checkpoint are committed.
    pub(super) fn exists(&mut self, checkpoint: &CheckpointId) {
        let Some(partly) = self.partly.remove(checkpoint) else { return };
        self.newest_ns = self.newest_ns.max(partly.modified_ns);
        for wait in &mut self.waits {
            wait.committed.entry(checkpoint.clone()).or_default().extend(&partly.ranks);
        }
    }

    /// The latest time of the next step.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.waits.iter().map(|wait| wait.drain.deadline_ms()).min()?;
        let soon = self.stepped.map(|stepped| stepped + STEP_INTERVAL).filter(|soon| *soon > Instant::now());
        let deadline = self.at(first);
        Some(soon.map_or(deadline, |soon| soon.min(deadline)))
    }

    fn at(&self, ms: u64) -> Instant {
        epoch() + Duration::from_millis(ms)
    }
}

/// The origin of all deadlines: a time before any deadline of this process.
fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn ms_of(at: Instant) -> u64 {
    at.saturating_duration_since(epoch()).as_millis() as u64
}

impl Core {
    pub(super) fn begin_stop(&mut self, order: DrainOrder) {
        tracing::info!(
            uncommitted = self.held.len() + self.ready.len() + self.capturing.len(),
            processes_gone = order.processes_gone,
            "draining"
        );
        for link in &self.links {
            let _ = link.orders.try_send(Order::Hurry); // a full queue means a stuck link, which cannot hurry
        }
        if order.processes_gone {
            self.watcher.processes_gone();
        }
        self.shorten_retry_delays();
        let request = self.watcher.look_around();
        let drain = Drain::of_everything(request, ms_of(order.until));
        self.begin(drain, Kind::Stop(BTreeSet::new()));
    }

    pub(super) fn begin_flush(&mut self, request: FlushRequest) {
        tracing::info!(seconds = request.timeout.as_secs(), "flush asked for");
        self.shorten_retry_delays();
        let asked = self.watcher.look_around();
        let until = ms_of(Instant::now()).saturating_add(request.timeout.as_millis() as u64);
        self.begin(Drain::of_what_is_there(asked, until), Kind::Flush(request.reply));
    }

    /// An aggregator is about to end.
    pub(super) fn begin_look(&mut self, link: usize) {
        self.ending.waits.retain(|wait| !matches!(wait.kind, Kind::Look(of) if of == link));
        let asked = self.watcher.look_around();
        let until = ms_of(Instant::now() + LOOK_TIMEOUT);
        self.begin(Drain::of_what_is_there(asked, until), Kind::Look(link));
    }

    fn begin(&mut self, drain: Drain, kind: Kind) {
        self.ending.stepped = None;
        self.ending.waits.push(Wait { drain, kind, committed: BTreeMap::new() });
    }

    /// Shortens long retry delays.
    fn shorten_retry_delays(&mut self) {
        let soon = Instant::now() + AWAITED_RETRY_DELAY;
        self.again.iter_mut().for_each(|(at, _)| *at = (*at).min(soon));
    }

    /// Must be called after the watcher was asked to look at a file again, so that the waits include that file.
    pub(super) fn ask_again(&mut self) {
        if self.ending.is_awaited() {
            let request = self.watcher.look_around();
            self.ending.waits.iter_mut().for_each(|wait| wait.drain.ask(request));
        }
    }

    /// Steps every wait. Returns the result of the drain once it is done.
    pub(super) fn step_waits(&mut self) -> Option<Drained> {
        let now = Instant::now();
        if self.ending.waits.is_empty() || self.ending.stepped.is_some_and(|stepped| now < stepped + STEP_INTERVAL) {
            return None;
        }
        self.ending.stepped = Some(now);
        let (now_ms, items, scanned) = (ms_of(now), self.items(), self.ending.scanned);
        let mut end = None;
        let mut going_on = Vec::new();
        for mut wait in std::mem::take(&mut self.ending.waits) {
            let before = std::mem::discriminant(wait.drain.state());
            let state = wait.drain.step(scanned, &items, now_ms);
            if std::mem::discriminant(state) != before {
                tracing::debug!(?state, "waiting for what was written");
            }
            let done = match state {
                State::Done { uncommitted, time_was_up } => Some((by_reason(uncommitted.clone()), *time_was_up)),
                State::Rescanning | State::Settling | State::Sending | State::Waiting => None,
            };
            match (&mut wait.kind, done) {
                (Kind::Stop(told), None) => {
                    for (link, to) in self.links.iter().enumerate() {
                        if !told.contains(&link) && wait.drain.is_announced(scanned, &items, link) {
                            let _ = to.orders.try_send(Order::Looked { leaving: true });
                            told.insert(link);
                        }
                    }
                    going_on.push(wait);
                }
                (Kind::Look(link), None) if !wait.drain.is_announced(scanned, &items, *link) => going_on.push(wait),
                (Kind::Look(link), _) => {
                    let _ = self.links[*link].orders.try_send(Order::Looked { leaving: false });
                }
                (Kind::Flush(reply), None) => {
                    if !reply.is_closed() {
                        going_on.push(wait);
                    }
                }
                (Kind::Stop(_), Some((uncommitted, time_was_up))) => {
                    end = Some(Drained { uncommitted, time_was_up, failed: false });
                }
                (Kind::Flush(_), Some((uncommitted, time_was_up))) => {
                    let committed = wait.committed.into_iter().map(|(id, ranks)| (id, ranks.into_iter().collect()));
                    let flushed = Flushed { committed: committed.collect(), uncommitted, time_was_up };
                    if let Kind::Flush(reply) = wait.kind {
                        let _ = reply.send(flushed); // this fails only if the receiver is gone
                    }
                }
            }
        }
        self.ending.waits = going_on;
        if self.ending.waits.is_empty() {
            self.watcher.report_no_more();
            self.ending.pending.clear();
        }
        end
    }

    /// Everything that was written and is not committed, as far as the agent knows.
    fn items(&self) -> Vec<Item> {
        let ending = &self.ending;
        let mut items = Vec::new();
        let mut put = |checkpoint: &CheckpointId, rank: Rank, place: Place, why: String| {
            items.push(Item { checkpoint: checkpoint.clone(), rank, place, why });
        };
        for pending in &ending.pending {
            let Pending { checkpoint, rank, path, why, modified_ns, hopeless } = pending;
            // Files that an earlier run left behind do not become complete by waiting.
            let is_left_behind = *hopeless || *why == crate::watch::NO_MARKER;
            if is_left_behind && *modified_ns < ending.newest_ns {
                continue;
            }
            let why = path.as_ref().map_or_else(|| (*why).to_owned(), |path| format!("{path}: {why}"));
            put(checkpoint, *rank, if *hopeless { Place::Lost } else { Place::Unsettled }, why);
        }
        let address = |link: usize| self.config.aggregators.get(link).map_or("", String::as_str);
        let unsent = |rank: Rank, why: &str| {
            let link = self.link_of(rank);
            match (self.links[link].is_refused, self.links[link].mode) {
                (true, _) => (Place::Lost, format!("the aggregator {} refuses this agent", address(link))),
                (false, None) => (Place::Unsent(link), format!("no session with the aggregator {}", address(link))),
                (false, Some(_)) => (Place::Unsent(link), why.to_owned()),
            }
        };
        for ready in &self.ready {
            let (place, why) = unsent(ready.rank, "there was no time to read it");
            put(&ready.checkpoint, ready.rank, place, why);
        }
        for (checkpoint, rank) in &self.capturing {
            put(checkpoint, *rank, Place::Unsent(self.link_of(*rank)), "it was still being read".into());
        }
        for (_, ready) in &self.again {
            let key = (ready.checkpoint.clone(), ready.rank);
            let (place, why) =
                unsent(ready.rank, ending.troubles.get(&key).map_or("it is tried again", String::as_str));
            put(&ready.checkpoint, ready.rank, place, why);
        }
        for ((checkpoint, rank), held) in &self.held {
            let (place, what) = match self.links[held.link].is_refused {
                true => (Place::Lost, "refuses this agent"),
                false => (Place::Unanswered, "has not committed it"),
            };
            put(checkpoint, *rank, place, format!("the aggregator {} {what}", address(held.link)));
        }
        for (id, partly) in ending.partly.iter().filter(|(_, partly)| partly.modified_ns >= ending.newest_ns) {
            for rank in &partly.ranks {
                let why = format!("its group is committed as {id}, but not every group of the checkpoint is");
                put(&partly.label, *rank, Place::Unanswered, why);
            }
        }
        for ((checkpoint, rank), lost) in &ending.given_up {
            let is_newest = match lost.vanished {
                true => lost.modified_ns > ending.newest_ns,
                false => lost.awaited || lost.modified_ns >= ending.newest_ns,
            };
            if is_newest {
                put(checkpoint, *rank, Place::Lost, lost.why.clone());
            }
        }
        items
    }
}
