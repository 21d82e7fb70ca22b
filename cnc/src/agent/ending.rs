//! The waits for the commit of everything that was written, and the ranks that are neither committed nor being saved.

use crate::drain::{Drain, Uncommitted};
use crate::settle::ReadyRank;
use crate::watch::Pending;
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Minimum time between two steps of a wait. Each step examines everything that is not committed, so it takes long.
pub(super) const STEP_INTERVAL: Duration = Duration::from_millis(5);
/// Delay before a rank is announced again after the aggregator rejected it for a temporary reason.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Delay before a retry while a drain or a flush waits.
pub(super) const AWAITED_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of flushes and drains that run at the same time. Further flushes wait.
pub(super) const FLUSHES_MAX: usize = 16;
/// Maximum number of remembered ranks that were given up. Also the maximum number of remembered checkpoints that only
/// some groups have committed.
const REMEMBERED_MAX: usize = 4096;

/// How the agent has to end.
#[derive(Clone, Copy, Debug)]
pub struct DrainOrder {
    /// Time at which the agent must have ended.
    pub until: Instant,
    /// What is known about the job's processes.
    pub processes: Processes,
}

/// What is known about the processes that write the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// They may still write.
    MayRun,
    /// They have ended, so files need no further quiet time. They may have been killed while they wrote.
    Gone,
    /// They have ended with success, so that each of them has written all of its files.
    EndedWell,
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

pub(super) type RankKey = (CheckpointId, Rank);

/// One wait for the commit of everything that was written.
pub(super) struct Wait {
    pub(super) drain: Drain,
    pub(super) kind: Kind,
    pub(super) committed: BTreeMap<CheckpointId, BTreeSet<Rank>>,
}

pub(super) enum Kind {
    /// The agent ends. The set contains the links whose aggregators got the message that everything is announced.
    Stop(BTreeSet<usize>),
    Flush(oneshot::Sender<Flushed>),
    /// An aggregator is about to end and asked for everything that was written.
    Look(usize),
}

/// The waits, and the ranks that are neither committed nor being saved.
#[derive(Default)]
pub(super) struct Ending {
    pub(super) waits: Vec<Wait>,
    /// Number of the last request that the watcher answered. Its answer is in `pending`.
    pub(super) scanned: u64,
    pub(super) pending: Vec<Pending>,
    /// Why a rank will be announced again.
    pub(super) troubles: BTreeMap<RankKey, String>,
    /// Ranks that their aggregator gave up permanently.
    pub(super) given_up: BTreeMap<RankKey, GivenUp>,
    /// Checkpoints that some groups have committed and others have not, by their name in the store.
    pub(super) partly: BTreeMap<CheckpointId, Partly>,
    /// Time of the last write to the newest committed file.
    pub(super) newest_ns: i64,
    pub(super) stepped: Option<Instant>,
}

pub(super) struct GivenUp {
    pub(super) why: String,
    pub(super) modified_ns: i64,
    /// A drain or a flush was waiting when the rank was given up.
    pub(super) awaited: bool,
    /// The rank's files were complete, and disappeared before they were saved. Files that were only renamed are
    /// committed under their new names with the same time.
    pub(super) vanished: bool,
}

pub(super) struct Partly {
    pub(super) label: CheckpointId,
    pub(super) ranks: BTreeSet<Rank>,
    pub(super) modified_ns: i64,
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

    pub(super) fn scanned(&mut self, request: u64, pending: Vec<Pending>) {
        (self.scanned, self.pending) = (request, pending);
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

    /// Removes what was recorded about a rank, because the rank is ready again or its files are gone.
    pub(super) fn begins_anew(&mut self, key: &RankKey) {
        self.given_up.remove(key);
        self.troubles.remove(key);
    }

    /// Records that a rank's part is committed. `exists`: all groups of the checkpoint are committed.
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

    /// Records that all groups of a checkpoint are committed.
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

/// The time that deadlines in milliseconds count from. This time is earlier than every deadline of this process.
fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

pub(super) fn ms_of(at: Instant) -> u64 {
    at.saturating_duration_since(epoch()).as_millis() as u64
}
