//! The shell of [`crate::drain`]: gathers what is not committed, steps the waits under way, and does what they ask for.

use super::{AGAIN, Core, FLUSHES_MAX, RankKey};
use crate::drain::{Drain, Item, Place, State, Uncommitted, by_reason};
use crate::serve::Order;
use crate::settle::ReadyRank;
use crate::watch::Pending;
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Steps are at least this far apart: each looks at everything that is not committed.
const STEP: Duration = Duration::from_millis(5);
/// Before something is tried again while somebody waits for it.
const AGAIN_SOON: Duration = Duration::from_secs(1);
/// How long the answer to an aggregator that is about to end is worth something.
const LOOK: Duration = Duration::from_secs(600);
/// Checkpoints that are remembered as given up, or as committed by some groups only.
const REMEMBERED_MAX: usize = 4096;

/// How an agent is to end.
#[derive(Clone, Copy, Debug)]
pub struct DrainOrder {
    /// When it must have ended.
    pub until: Instant,
    /// The job's processes are known to be gone, so that quiet times count as over.
    pub processes_gone: bool,
}

/// How an agent ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// What was written and is not committed; it is announced again at the next start.
    pub uncommitted: Vec<Uncommitted>,
    /// It was waited for that as long as a drain may take.
    pub time_was_up: bool,
    /// The agent ended by itself before, so that nobody knows what is committed.
    pub failed: bool,
}

impl Drained {
    /// The agent ended by a mistake of ours.
    pub(super) fn failed() -> Self {
        Self { failed: true, ..Self::default() }
    }
}

/// Somebody wants everything committed that was written so far.
#[derive(Debug)]
pub struct FlushRequest {
    /// How long to wait for it.
    pub timeout: Duration,
    /// Who waits.
    pub reply: oneshot::Sender<Flushed>,
}

/// What came of a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// What was committed meanwhile, under the name that it has in the store.
    pub committed: Vec<(CheckpointId, Vec<Rank>)>,
    /// What was written and is not committed.
    pub uncommitted: Vec<Uncommitted>,
    /// It was waited for that as long as was asked for.
    pub time_was_up: bool,
}

/// Somebody who waits for everything that was written.
pub(super) struct Wait {
    drain: Drain,
    kind: Kind,
    committed: BTreeMap<CheckpointId, BTreeSet<Rank>>,
}

enum Kind {
    /// The agent ends; these links were told that all is announced.
    Stop(BTreeSet<usize>),
    Flush(oneshot::Sender<Flushed>),
    /// An aggregator ends, and asked for what was written.
    Look(usize),
}

/// What is known about what is not committed and not on its way, and about who waits.
#[derive(Default)]
pub(super) struct Ending {
    waits: Vec<Wait>,
    /// The last scan that the watcher answered, and what was pending then.
    scanned: u64,
    pending: Vec<Pending>,
    /// Why something is tried again.
    troubles: BTreeMap<RankKey, String>,
    /// Given up by its aggregator, for good.
    given_up: BTreeMap<RankKey, GivenUp>,
    /// Committed by its group, and not yet by all; under the name in the store.
    partly: BTreeMap<CheckpointId, Partly>,
    /// When the newest committed file was written.
    newest_ns: i64,
    stepped: Option<Instant>,
}

struct GivenUp {
    why: String,
    modified_ns: i64,
    /// Somebody waited for it.
    awaited: bool,
    /// Its files were there and whole, and went before they were saved. What is renamed is committed under its new name,
    /// with the time that it had.
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

    /// When to try something again, and why it has to be.
    pub(super) fn again_at(&mut self, key: RankKey, why: String) -> Instant {
        self.troubles.insert(key, why);
        Instant::now() + if self.is_awaited() { AGAIN_SOON } else { AGAIN }
    }

    pub(super) fn gave_up(&mut self, ready: &ReadyRank, why: String) {
        let key = (ready.checkpoint.clone(), ready.rank);
        if self.given_up.len() >= REMEMBERED_MAX {
            self.given_up.pop_first();
        }
        let (modified_ns, awaited) = (modified_ns(ready), self.is_awaited());
        self.given_up.insert(key, GivenUp { why, modified_ns, awaited, vanished: false });
    }

    /// A file of a rank is gone; `ready`: the rank was to be saved.
    pub(super) fn vanished(&mut self, key: &RankKey, ready: Option<&ReadyRank>, why: String) {
        if self.given_up.get(key).is_some_and(|lost| lost.vanished) {
            return; // the next of its files
        }
        self.begins_anew(key);
        if let Some(ready) = ready {
            self.gave_up(ready, why);
            self.given_up.entry(key.clone()).and_modify(|lost| lost.vanished = true);
        }
    }

    /// A rank is ready anew, or gone: what was said of it before no longer holds.
    pub(super) fn begins_anew(&mut self, key: &RankKey) {
        self.given_up.remove(key);
        self.troubles.remove(key);
    }

    /// A rank's part is committed; `exists`: by all groups.
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

    /// A checkpoint is committed by all of its groups.
    pub(super) fn exists(&mut self, checkpoint: &CheckpointId) {
        let Some(partly) = self.partly.remove(checkpoint) else { return };
        self.newest_ns = self.newest_ns.max(partly.modified_ns);
        for wait in &mut self.waits {
            wait.committed.entry(checkpoint.clone()).or_default().extend(&partly.ranks);
        }
    }

    /// When to step again at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.waits.iter().map(|wait| wait.drain.deadline_ms()).min()?;
        let soon = self.stepped.map(|stepped| stepped + STEP).filter(|soon| *soon > Instant::now());
        let deadline = self.at(first);
        Some(soon.map_or(deadline, |soon| soon.min(deadline)))
    }

    fn at(&self, ms: u64) -> Instant {
        epoch() + Duration::from_millis(ms)
    }
}

/// What deadlines count from: a time before everything in this process.
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
            let _ = link.orders.try_send(Order::Hurry); // full: it is stuck, and so will be all that it holds
        }
        if order.processes_gone {
            self.watcher.processes_gone();
        }
        self.hasten();
        let request = self.watcher.look_around();
        let drain = Drain::of_everything(request, ms_of(order.until));
        self.begin(drain, Kind::Stop(BTreeSet::new()));
    }

    pub(super) fn begin_flush(&mut self, request: FlushRequest) {
        tracing::info!(seconds = request.timeout.as_secs(), "flush asked for");
        self.hasten();
        let asked = self.watcher.look_around();
        let until = ms_of(Instant::now()).saturating_add(request.timeout.as_millis() as u64);
        self.begin(Drain::of_what_is_there(asked, until), Kind::Flush(request.reply));
    }

    /// An aggregator is about to end.
    pub(super) fn begin_look(&mut self, link: usize) {
        self.ending.waits.retain(|wait| !matches!(wait.kind, Kind::Look(of) if of == link));
        let asked = self.watcher.look_around();
        let until = ms_of(Instant::now() + LOOK);
        self.begin(Drain::of_what_is_there(asked, until), Kind::Look(link));
    }

    fn begin(&mut self, drain: Drain, kind: Kind) {
        self.ending.stepped = None;
        self.ending.waits.push(Wait { drain, kind, committed: BTreeMap::new() });
    }

    /// What is to be tried again much later is tried again soon.
    fn hasten(&mut self) {
        let soon = Instant::now() + AGAIN_SOON;
        self.again.iter_mut().for_each(|(at, _)| *at = (*at).min(soon));
    }

    /// The watcher was told to look at a file again: whoever waits waits for that too.
    pub(super) fn ask_again(&mut self) {
        if self.ending.is_awaited() {
            let request = self.watcher.look_around();
            self.ending.waits.iter_mut().for_each(|wait| wait.drain.ask(request));
        }
    }

    /// Steps every wait; gives the end of the agent once its drain is done.
    pub(super) fn step_waits(&mut self) -> Option<Drained> {
        let now = Instant::now();
        if self.ending.waits.is_empty() || self.ending.stepped.is_some_and(|stepped| now < stepped + STEP) {
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
                        let _ = reply.send(flushed); // only fails where nobody waits any more
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

    /// All that was written and is not committed, as far as it is known here.
    fn items(&self) -> Vec<Item> {
        let ending = &self.ending;
        let mut items = Vec::new();
        let mut put = |checkpoint: &CheckpointId, rank: Rank, place: Place, why: String| {
            items.push(Item { checkpoint: checkpoint.clone(), rank, place, why });
        };
        for pending in &ending.pending {
            let Pending { checkpoint, rank, path, why, modified_ns, hopeless } = pending;
            // What a run before left behind does not become whole by waiting for it.
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
