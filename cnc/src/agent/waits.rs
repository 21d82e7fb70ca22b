//! Runs the waits of an agent. For each wait, collects all ranks that are not committed, lets [`crate::drain`] decide
//! whether the wait is over, and executes the decision.

use super::ending::{
    AWAITED_RETRY_DELAY, DrainOrder, Drained, FlushRequest, Flushed, Kind, Processes, STEP_INTERVAL, Wait, ms_of,
};
use super::task::Core;
use crate::drain::{Drain, EARLIER_FAILURE, Item, Place, State, by_reason};
use crate::serve::Order;
use crate::settle::Gone;
use crate::watch::{Pending, Unreadable};
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time in which the agent announces its ranks to an aggregator that is about to end. An aggregator does not
/// wait longer, so a later announcement has no effect.
const LOOK_TIMEOUT: Duration = Duration::from_secs(600);

impl Core {
    pub(super) fn begin_stop(&mut self, order: DrainOrder) {
        tracing::info!(
            uncommitted = self.held.len() + self.ready.len() + self.capturing.len(),
            processes_gone = order.processes != Processes::MayRun,
            "draining"
        );
        for link in &self.links {
            let _ = link.orders.try_send(Order::Hurry); // the queue is full only if the link hangs
        }
        let gone = match order.processes {
            Processes::MayRun => None,
            Processes::Gone => Some(Gone::Unknown),
            Processes::EndedWell => Some(Gone::Well { since_ns: self.before.later_ns() }),
            Processes::Failed => Some(Gone::Failed),
        };
        gone.into_iter().for_each(|gone| self.watcher.processes_gone(gone));
        self.has_ended_well |= order.processes == Processes::EndedWell;
        self.shorten_retry_delays();
        let request = self.watcher.look_around();
        let drain = Drain::of_everything(request, ms_of(order.until));
        self.begin(drain, Kind::Stop(BTreeSet::new()));
    }

    pub(super) fn begin_flush(&mut self, request: FlushRequest) {
        tracing::info!(seconds = request.timeout.as_secs(), "a flush was requested");
        self.shorten_retry_delays();
        let asked = self.watcher.look_around();
        let until = ms_of(Instant::now()).saturating_add(request.timeout.as_millis() as u64);
        self.begin(Drain::of_what_is_there(asked, until), Kind::Flush(request.reply));
    }

    /// Handles an aggregator that is about to end.
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

    /// Shortens long retry delays to [`AWAITED_RETRY_DELAY`].
    fn shorten_retry_delays(&mut self) {
        let soon = Instant::now() + AWAITED_RETRY_DELAY;
        self.again.iter_mut().for_each(|(at, _)| *at = (*at).min(soon));
    }

    /// If a wait is in progress, requests a new scan of the directory. So no wait ends before the watcher has looked
    /// at the files that were given to `look_again`. Must be called after `look_again`.
    pub(super) fn ask_again(&mut self) {
        if self.ending.is_awaited() {
            let request = self.watcher.look_around();
            self.ending.waits.iter_mut().for_each(|wait| wait.drain.ask(request));
        }
    }

    /// Makes a step of every wait. Returns the result of the drain if the drain has ended.
    pub(super) fn step_waits(&mut self) -> Option<Drained> {
        let now = Instant::now();
        if self.ending.waits.is_empty() {
            return None;
        }
        self.ending.is_owed = self.ending.stepped.is_some_and(|stepped| now < stepped + STEP_INTERVAL);
        if self.ending.is_owed {
            return None;
        }
        self.ending.stepped = Some(now);
        let (now_ms, items, scanned) = (ms_of(now), self.items(), self.ending.scanned);
        let mut end = None;
        let mut going_on = Vec::new();
        for mut wait in std::mem::take(&mut self.ending.waits) {
            let has_scanned = wait.drain.has_scanned(scanned);
            let before = std::mem::discriminant(wait.drain.state());
            let state = wait.drain.step(scanned, &items, now_ms);
            if std::mem::discriminant(state) != before {
                tracing::debug!(?state, "a wait for commits has a new state");
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
                    end = Some(Drained {
                        uncommitted,
                        unreadable: self.unreadable(has_scanned),
                        time_was_up,
                        failed: false,
                    });
                }
                (Kind::Flush(_), Some((uncommitted, time_was_up))) => {
                    let committed = wait.committed.into_iter().map(|(id, ranks)| (id, ranks.into_iter().collect()));
                    let unreadable = self.unreadable(has_scanned);
                    let flushed = Flushed { committed: committed.collect(), uncommitted, unreadable, time_was_up };
                    if let Kind::Flush(reply) = wait.kind {
                        let _ = reply.send(flushed); // this fails only if the receiver was dropped
                    }
                }
            }
        }
        self.ending.waits = going_on;
        if self.ending.waits.is_empty() {
            self.watcher.report_no_more();
            self.ending.pending.clear();
            self.ending.unreadable.clear();
        }
        end
    }

    /// The directories that could not be read. If the time was up before the watcher had looked at all files, the
    /// watched directory is one of these directories.
    fn unreadable(&self, has_scanned: bool) -> Vec<Unreadable> {
        let mut unreadable = self.ending.unreadable.clone();
        if !has_scanned {
            let why = "it was not read to its end in time".to_owned();
            unreadable.push(Unreadable { path: self.config.watch.clone(), why });
        }
        unreadable
    }

    /// All ranks that the agent has found and that are not committed.
    fn items(&self) -> Vec<Item> {
        let ending = &self.ending;
        let mut items = Vec::new();
        let mut put = |checkpoint: &CheckpointId, rank: Rank, place: Place, why: String| {
            items.push(Item { checkpoint: checkpoint.clone(), rank, place, why });
        };
        for pending in &ending.pending {
            let Pending { checkpoint, rank, path, why, modified_ns, hopeless } = pending;
            // Incomplete files that are older than the newest committed file stay incomplete, so no wait includes
            // them.
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
        // If the aggregator will not save one rank of the checkpoint, the checkpoint never becomes complete.
        let lacks_rank = |checkpoint: &CheckpointId| {
            ending.given_up.iter().any(|((label, _), lost)| label == checkpoint && !lost.vanished)
        };
        for (_, ready) in &self.again {
            let key = (ready.checkpoint.clone(), ready.rank);
            let (place, why) =
                unsent(ready.rank, ending.troubles.get(&key).map_or("it is tried again", String::as_str));
            put(&ready.checkpoint, ready.rank, if lacks_rank(&ready.checkpoint) { Place::Lost } else { place }, why);
        }
        for ((checkpoint, rank), held) in &self.held {
            let link = &self.links[held.link];
            let (place, what) = match (link.is_refused, self.sessions.is_open(held.link)) {
                (true, _) => (Place::Lost, "refuses this agent"),
                (false, false) => (Place::Unanswered, "has not committed it, and does not answer now"),
                (false, true) => (Place::Unanswered, "has not committed it"),
            };
            // The reason why an earlier attempt failed is known for one rank of the group.
            let trouble = ending.troubles.iter().find(|((failed, _), _)| failed == checkpoint);
            let trouble = trouble.map_or(String::new(), |(_, why)| format!("{EARLIER_FAILURE}{why}"));
            put(checkpoint, *rank, place, format!("the aggregator {} {what}{trouble}", address(held.link)));
        }
        for (id, partly) in ending.partly.iter().filter(|(_, partly)| partly.modified_ns >= ending.newest_ns) {
            let place = if lacks_rank(&partly.label) { Place::Lost } else { Place::Unanswered };
            for rank in &partly.ranks {
                let why = format!("its group is committed as {id}, but not every group of the checkpoint is");
                put(&partly.label, *rank, place, why);
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
