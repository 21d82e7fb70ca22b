//! What an agent needs to know before it ends: which drains and flushes still wait for commits, and which ranks are
//! neither committed nor being saved.

use crate::drain::{Drain, Uncommitted};
use crate::settle::ReadyRank;
use crate::watch::{Pending, Unreadable};
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Minimum time between two steps of a wait. The minimum limits the load, because each step examines all files and
/// ranks that are not committed.
pub(super) const STEP_INTERVAL: Duration = Duration::from_millis(5);
/// Delay before a rank is announced again after the aggregator rejected the rank for a temporary reason, or after a
/// file of the rank could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delay before a retry while a drain or a flush is waiting.
pub(super) const AWAITED_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of running flushes and drains. Further flushes wait.
pub(super) const FLUSHES_MAX: usize = 16;
/// Maximum number of remembered ranks that their aggregator abandoned. The limit is also the maximum number of
/// remembered checkpoints that only some groups have committed.
const REMEMBERED_MAX: usize = 4096;

/// How the agent must end.
#[derive(Clone, Copy, Debug)]
pub struct DrainOrder {
    /// Time at which the agent must have ended.
    pub until: Instant,
    /// What is known about the job's processes that write the files.
    pub processes: Processes,
}

/// The state of the processes that write the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// The processes may still write.
    MayRun,
    /// The processes have ended, so files need no further quiet time. A process may have been killed while it was
    /// writing.
    Gone,
    /// The processes have ended with success, so each process has written all of its files.
    EndedWell,
    /// The processes have just ended without success. A file that was written last may be cut.
    Failed,
}

/// How an agent ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Written files that are not committed. The agent announces these files again at its next start.
    pub uncommitted: Vec<Uncommitted>,
    /// Directories that cannot be read. Files that are not committed may be in these directories.
    pub unreadable: Vec<Unreadable>,
    /// Whether the drain ended because its maximum time had passed.
    pub time_was_up: bool,
    /// Whether the agent failed before the drain. If the agent failed, it is not known which files are committed.
    pub failed: bool,
}

impl Drained {
    /// The result if the agent itself failed.
    pub(super) fn failed() -> Self {
        Self { failed: true, ..Self::default() }
    }
}

/// A request to commit all files that were written before the request.
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
    /// The ranks that were committed since the request, with the checkpoint's name in the store.
    pub committed: Vec<(CheckpointId, Vec<Rank>)>,
    /// The written ranks that are not committed.
    pub uncommitted: Vec<Uncommitted>,
    /// Directories that cannot be read, see [`Drained::unreadable`].
    pub unreadable: Vec<Unreadable>,
    /// Whether the flush ended because its maximum time had passed.
    pub time_was_up: bool,
}

pub(super) type RankKey = (CheckpointId, Rank);

/// One wait until all written files are committed.
pub(super) struct Wait {
    pub(super) drain: Drain,
    pub(super) kind: Kind,
    pub(super) committed: BTreeMap<CheckpointId, BTreeSet<Rank>>,
}

pub(super) enum Kind {
    /// The agent ends. The set contains the links whose aggregators know that all ranks are announced.
    Stop(BTreeSet<usize>),
    Flush(oneshot::Sender<Flushed>),
    /// The aggregator of this link is about to end, and asked for all written files.
    Look(usize),
}

/// The waits, and the ranks that are neither committed nor being saved.
#[derive(Default)]
pub(super) struct Ending {
    pub(super) waits: Vec<Wait>,
    /// Number of the last request that the watcher answered. `pending` is the watcher's answer.
    pub(super) scanned: u64,
    pub(super) pending: Vec<Pending>,
    /// The directories that the watcher could not read, from the same answer.
    pub(super) unreadable: Vec<Unreadable>,
    /// For each rank that will be announced again, the reason.
    pub(super) troubles: BTreeMap<RankKey, String>,
    /// Ranks that their aggregator abandoned and will not save.
    pub(super) given_up: BTreeMap<RankKey, GivenUp>,
    /// Checkpoints that some groups have committed and other groups have not, by the checkpoint's name in the store.
    pub(super) partly: BTreeMap<CheckpointId, Partly>,
    /// Time of the last write to the newest committed file, in nanoseconds since 1970.
    pub(super) newest_ns: i64,
    /// When the last step of all waits was made.
    pub(super) stepped: Option<Instant>,
    /// Whether a step was left out, because it came too soon after the last step.
    pub(super) is_owed: bool,
}

pub(super) struct GivenUp {
    pub(super) why: String,
    pub(super) modified_ns: i64,
    /// Whether a drain or a flush was waiting when the rank was abandoned.
    pub(super) awaited: bool,
    /// Whether the rank's files were complete and disappeared before they were saved. If the files were only renamed,
    /// these files are later committed under their new names with the same modification time.
    pub(super) vanished: bool,
}

pub(super) struct Partly {
    pub(super) label: CheckpointId,
    pub(super) ranks: BTreeSet<Rank>,
    pub(super) modified_ns: i64,
    /// The files of these ranks. Empty if another checkpoint that is not whole is newer.
    files: Vec<FilePath>,
}

fn modified_ns(ready: &ReadyRank) -> i64 {
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

    pub(super) fn scanned(&mut self, request: u64, pending: Vec<Pending>, unreadable: Vec<Unreadable>) {
        (self.scanned, self.pending, self.unreadable) = (request, pending, unreadable);
    }

    /// Records why a rank has to be announced again. Returns the time of the next attempt.
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

    /// Records a rank in a directory that is not watched any more. The rank is named at the end, also if a newer
    /// checkpoint is committed.
    pub(super) fn left_behind(&mut self, key: RankKey, directory: &Path, why: &str, modified_ns: i64) {
        let why = format!("{} was replaced by another directory before the rank was saved: {why}", directory.display());
        tracing::warn!(checkpoint = %key.0, rank = key.1.0, why, "not saved; save the files with mcr save");
        if self.given_up.len() >= REMEMBERED_MAX {
            self.given_up.pop_first();
        }
        self.given_up.insert(key, GivenUp { why, modified_ns, awaited: true, vanished: false });
    }

    /// Handles a file of a rank that disappeared. `ready` is given if the rank still had to be saved.
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

    /// Removes the records about a rank, because the rank is ready again or its files are gone.
    pub(super) fn begins_anew(&mut self, key: &RankKey) {
        self.given_up.remove(key);
        self.troubles.remove(key);
    }

    /// Records that a rank's part of a checkpoint is committed. `exists` says whether all groups of the checkpoint
    /// are committed.
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
            files: Vec::new(),
        });
        partly.ranks.insert(ready.rank);
        partly.files.extend(ready.files.iter().map(|file| file.path.clone()));
        partly.modified_ns = partly.modified_ns.max(modified_ns);
        let newest_ns = self.partly.values().map(|partly| partly.modified_ns).max();
        for partly in self.partly.values_mut().filter(|partly| Some(partly.modified_ns) < newest_ns) {
            partly.files = Vec::new();
        }
        if exists {
            self.exists(checkpoint);
        }
    }

    /// The committed files of the newest checkpoint, if this checkpoint is not whole. The next agent announces these
    /// files again. Otherwise it would not know that the newest checkpoint is not whole.
    pub(super) fn files_of_parts(&self) -> BTreeSet<&FilePath> {
        let newest = self.partly.values().filter(|partly| partly.modified_ns >= self.newest_ns);
        newest.flat_map(|partly| &partly.files).collect()
    }

    /// Records that all groups of a checkpoint are committed. Returns whether this was not known before.
    pub(super) fn exists(&mut self, checkpoint: &CheckpointId) -> bool {
        let Some(partly) = self.partly.remove(checkpoint) else { return false };
        self.newest_ns = self.newest_ns.max(partly.modified_ns);
        for wait in &mut self.waits {
            wait.committed.entry(checkpoint.clone()).or_default().extend(&partly.ranks);
        }
        true
    }

    /// The latest time of the next step of a wait. If a step was left out, the time may have passed.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.waits.iter().map(|wait| wait.drain.deadline_ms()).min()?;
        let soon = self.stepped.map(|stepped| stepped + STEP_INTERVAL);
        let soon = soon.filter(|soon| self.is_owed || *soon > Instant::now());
        let deadline = self.at(first);
        Some(soon.map_or(deadline, |soon| soon.min(deadline)))
    }

    fn at(&self, ms: u64) -> Instant {
        epoch() + Duration::from_millis(ms)
    }
}

/// The time from which deadlines in milliseconds are counted. Every deadline of this process is later than this time.
fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

pub(super) fn ms_of(at: Instant) -> u64 {
    at.saturating_duration_since(epoch()).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;

    #[test]
    fn a_step_that_was_left_out_is_due_even_if_its_time_has_passed() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let drain = Drain::of_everything(1, ms_of(deadline));
        let mut ending = Ending::default();
        ending.waits.push(Wait { drain, kind: Kind::Look(0), committed: BTreeMap::new() });
        ending.stepped = Some(Instant::now().checked_sub(STEP_INTERVAL * 2).expect("the clock runs for 10 ms"));
        assert!(
            ending.due().is_some_and(|at| at > Instant::now() + Duration::from_secs(30)),
            "only an event makes a step necessary"
        );
        ending.is_owed = true;
        assert!(ending.due().is_some_and(|at| at <= Instant::now()));
    }
}
