//! Decides when an agent may end, and when `mcr flush` gets its answer. This module does no I/O, and its callers pass
//! the time.
//!
//! A drain and a flush have the same steps. First the watcher scans all files once more. Then all written files
//! settle, and the agent reads and announces them. Then the aggregators answer. A drain waits for all files,
//! including files that are written during the drain. A flush waits only for the checkpoints that existed when the
//! flush began.

use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// In [`Uncommitted::why`]: the text between the reason and the reason why an earlier attempt failed.
pub const EARLIER_FAILURE: &str = "; an earlier attempt failed: ";

/// The progress of a rank's part of a checkpoint that is not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Some files have not been at rest for long enough.
    Unsettled,
    /// The files are settled, but they are not announced to the aggregator of this link.
    Unsent(usize),
    /// The rank is announced. Either the aggregator has not answered, or the rank's group has committed and other
    /// groups have not.
    Unanswered,
    /// The rank's part cannot be committed, so waiting longer does not help.
    Lost,
}

/// A rank's part of a checkpoint that is not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The application's name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// The rank.
    pub rank: Rank,
    /// The progress of the rank's part.
    pub place: Place,
    /// Why the rank's part is not committed, as text for users.
    pub why: String,
}

/// What a drain or a flush is waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The watcher has not finished the scan.
    Rescanning,
    /// Some written files are not settled.
    Settling,
    /// All files are settled, and some ranks are not announced.
    Sending,
    /// All ranks are announced, and some announcements are not answered.
    Waiting,
    /// The wait is over.
    Done {
        /// The parts that are not committed, with at most one entry for each rank of a checkpoint.
        uncommitted: Vec<Item>,
        /// The deadline ended the wait. With more time, more ranks might have been committed.
        time_was_up: bool,
    },
}

/// One drain or one flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    state: State,
    deadline_ms: u64,
    /// Number of the scan that the watcher must have finished.
    request: u64,
    /// The checkpoints for which a flush waits, known after its scan. `None`: all checkpoints count.
    targets: Option<BTreeSet<CheckpointId>>,
    is_flush: bool,
}

impl Drain {
    /// Makes a drain. The drain waits for all written files, at most until the deadline.
    pub fn of_everything(request: u64, deadline_ms: u64) -> Self {
        Self { state: State::Rescanning, deadline_ms, request, targets: None, is_flush: false }
    }

    /// Makes a flush. The flush waits for the checkpoints that exist when the scan is finished, at most until the
    /// deadline. The flush does not wait for later checkpoints.
    pub fn of_what_is_there(request: u64, deadline_ms: u64) -> Self {
        Self { is_flush: true, ..Self::of_everything(request, deadline_ms) }
    }

    /// Records that the watcher was asked for a new scan. Only the result of the newest scan counts.
    pub fn ask(&mut self, request: u64) {
        self.request = request;
        if !matches!(self.state, State::Done { .. }) {
            self.state = State::Rescanning;
        }
    }

    /// What the drain or the flush is waiting for.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The deadline, in milliseconds.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// The checkpoints for which a flush waits. `None` before the flush's scan is finished.
    pub fn targets(&self) -> Option<&BTreeSet<CheckpointId>> {
        self.targets.as_ref()
    }

    /// Whether the watcher has finished the requested scan. `scanned` is the number of the last finished scan.
    pub fn has_scanned(&self, scanned: u64) -> bool {
        scanned >= self.request
    }

    /// Computes the next state. `scanned` is the number of the last scan that the watcher finished. `items` are the
    /// parts of checkpoints that are not committed now. The list is complete when `scanned` has reached the requested
    /// scan.
    pub fn step(&mut self, scanned: u64, items: &[Item], now_ms: u64) -> &State {
        if matches!(self.state, State::Done { .. }) {
            return &self.state;
        }
        let has_scanned = self.has_scanned(scanned);
        if has_scanned && self.is_flush && self.targets.is_none() {
            self.targets = Some(items.iter().map(|item| item.checkpoint.clone()).collect());
        }
        let counts = |item: &&Item| self.targets.as_ref().is_none_or(|these| these.contains(&item.checkpoint));
        let left: Vec<&Item> = items.iter().filter(counts).collect();
        let any = |is: fn(Place) -> bool| left.iter().any(|item| is(item.place));
        let next = match () {
            () if !has_scanned => State::Rescanning,
            () if any(|place| place == Place::Unsettled) => State::Settling,
            () if any(|place| matches!(place, Place::Unsent(_))) => State::Sending,
            () if any(|place| place == Place::Unanswered) => State::Waiting,
            () => State::Done { uncommitted: one_each(&left), time_was_up: false },
        };
        let is_over = matches!(next, State::Done { .. });
        self.state = match now_ms >= self.deadline_ms && !is_over {
            true => State::Done { uncommitted: one_each(&left), time_was_up: true },
            false => next,
        };
        &self.state
    }

    /// Whether all ranks of this link are announced: no rank is unsettled, and no rank is unsent on this link.
    pub fn is_announced(&self, scanned: u64, items: &[Item], link: usize) -> bool {
        let counts = |item: &&Item| self.targets.as_ref().is_none_or(|these| these.contains(&item.checkpoint));
        self.has_scanned(scanned)
            && items.iter().filter(counts).all(|item| match item.place {
                Place::Unsettled => false,
                Place::Unsent(of) => of != link,
                Place::Unanswered | Place::Lost => true,
            })
    }
}

/// For each rank of a checkpoint, the item with the least progress.
fn one_each(items: &[&Item]) -> Vec<Item> {
    let mut each: BTreeMap<(&CheckpointId, Rank), &Item> = BTreeMap::new();
    for item in items {
        let first = each.entry((&item.checkpoint, item.rank)).or_insert(item);
        if item.place < first.place {
            *first = item;
        }
    }
    each.into_values().cloned().collect()
}

/// One line of a report: all ranks of a checkpoint that are not committed for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncommitted {
    /// The application's name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// The ranks, in increasing order.
    pub ranks: Vec<Rank>,
    /// The reason.
    pub why: String,
}

/// Groups the ranks of a checkpoint by reason.
pub fn by_reason(items: Vec<Item>) -> Vec<Uncommitted> {
    let mut each: BTreeMap<(CheckpointId, String), Vec<Rank>> = BTreeMap::new();
    for item in items {
        each.entry((item.checkpoint, item.why)).or_default().push(item.rank);
    }
    each.into_iter().map(|((checkpoint, why), ranks)| Uncommitted { checkpoint, ranks, why }).collect()
}

/// Ranks as text with ranges, for example `0-3,7`. At most 16 ranges are written.
pub struct RankRanges<'a>(pub &'a [Rank]);

impl fmt::Display for RankRanges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RANGES_MAX: usize = 16;
        let follows = |a: &Rank, b: &Rank| a.0.checked_add(1) == Some(b.0);
        for (i, range) in self.0.chunk_by(follows).enumerate() {
            if i == RANGES_MAX {
                return f.write_str(",...");
            }
            let comma = if i == 0 { "" } else { "," };
            match range {
                [one] => write!(f, "{comma}{}", one.0)?,
                [first, .., last] => write!(f, "{comma}{}-{}", first.0, last.0)?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(checkpoint: &str, rank: u32, place: Place) -> Item {
        let why = format!("{place:?}");
        Item { checkpoint: checkpoint.parse().expect("valid"), rank: Rank(rank), place, why }
    }

    #[test]
    fn a_drain_scans_settles_sends_waits_and_is_done() {
        let mut drain = Drain::of_everything(3, 20_000);
        let steps = [
            (2, vec![], State::Rescanning),
            (3, vec![item("a", 0, Place::Unsettled), item("a", 1, Place::Unsent(0))], State::Settling),
            (3, vec![item("a", 0, Place::Unsent(0)), item("a", 1, Place::Unanswered)], State::Sending),
            (3, vec![item("a", 0, Place::Unanswered)], State::Waiting),
            // A file that is written during the drain counts too.
            (3, vec![item("b", 0, Place::Unsettled)], State::Settling),
            (3, vec![], State::Done { uncommitted: vec![], time_was_up: false }),
        ];
        for (now_ms, (scanned, items, expected)) in (0..).zip(steps) {
            assert_eq!(*drain.step(scanned, &items, now_ms), expected);
        }
    }

    #[test]
    fn nothing_written_ends_a_drain_with_the_answer_of_the_watcher() {
        let mut drain = Drain::of_everything(1, 20_000);
        assert_eq!(*drain.step(0, &[], 0), State::Rescanning, "before the scan, the list of items is not complete");
        assert_eq!(*drain.step(1, &[], 1), State::Done { uncommitted: vec![], time_was_up: false });
    }

    #[test]
    fn a_drain_ends_at_its_bound_whatever_it_is_at_and_names_what_is_left() {
        for (scanned, place) in
            [(0, Place::Unsettled), (1, Place::Unsettled), (1, Place::Unsent(7)), (1, Place::Unanswered)]
        {
            let mut drain = Drain::of_everything(1, 500);
            let items = [item("a", 2, place)];
            assert!(!matches!(drain.step(scanned, &items, 499), State::Done { .. }));
            let expected = State::Done { uncommitted: items.to_vec(), time_was_up: true };
            assert_eq!(*drain.step(scanned, &items, 500), expected);
            assert_eq!(*drain.step(1, &[], 501), expected, "a wait that has ended stays ended");
        }
    }

    #[test]
    fn what_cannot_be_committed_any_more_is_named_and_not_waited_for() {
        let mut drain = Drain::of_everything(1, 20_000);
        let lost = item("a", 1, Place::Lost);
        assert_eq!(*drain.step(1, &[lost.clone(), item("a", 0, Place::Unanswered)], 1), State::Waiting);
        let expected = State::Done { uncommitted: vec![lost.clone()], time_was_up: false };
        assert_eq!(*drain.step(1, &[lost], 2), expected);
    }

    #[test]
    fn a_flush_waits_for_what_was_there_when_it_began_and_for_nothing_later() {
        let mut flush = Drain::of_what_is_there(1, 20_000);
        assert_eq!(*flush.step(1, &[item("a", 0, Place::Unsettled)], 0), State::Settling);
        let later = item("b", 0, Place::Unsettled);
        assert_eq!(*flush.step(1, &[item("a", 0, Place::Unanswered), later.clone()], 1), State::Waiting);
        assert_eq!(*flush.step(1, &[later], 2), State::Done { uncommitted: vec![], time_was_up: false });
    }

    #[test]
    fn an_aggregator_is_told_that_all_is_announced_without_regard_to_the_others() {
        let drain = Drain::of_everything(1, 20_000);
        let items = [item("a", 0, Place::Unsent(1)), item("a", 1, Place::Unanswered)];
        assert!(drain.is_announced(1, &items, 0) && !drain.is_announced(1, &items, 1));
        assert!(!drain.is_announced(0, &[], 0), "before the scan, the list of items is not complete");
        assert!(!drain.is_announced(1, &[item("a", 0, Place::Unsettled)], 0));
    }

    #[test]
    fn ranks_of_one_reason_are_one_line() {
        let mut items: Vec<Item> = [0, 1, 2, 7].map(|rank| item("a", rank, Place::Unanswered)).to_vec();
        items.push(item("a", 3, Place::Lost));
        let told: Vec<_> = by_reason(items).iter().map(|u| format!("{} {}", RankRanges(&u.ranks), u.why)).collect();
        assert_eq!(told, ["3 Lost", "0-2,7 Unanswered"]);
    }
}
