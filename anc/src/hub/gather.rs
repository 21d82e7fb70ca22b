//! The state of one checkpoint of one group after its first announcement.

use crate::fetch::Announced;
use crate::group::Phase;
use crate::observe::Observer;
use mcr_proto::v1;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, FilePath, Grouping, Rank};
use mcrengine::units::{RawBytes, StoredBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// First wait in milliseconds after the commit of a group. After the wait, the hub checks whether the other groups
/// are committed too.
pub(super) const LOOK_FIRST_MS: u64 = 500;
/// Maximum wait in milliseconds between two checks of the other groups.
pub(super) const LOOK_LONGEST_MS: u64 = 60_000;
/// Maximum wait in milliseconds between two checks of the other groups while agents or the aggregator end.
pub(super) const LOOK_LEAVING_MS: u64 = 200;

/// One checkpoint of one group.
pub(super) struct Gather {
    pub(super) phase: Phase,
    pub(super) grouping: Grouping,
    pub(super) announced: BTreeMap<Rank, Announced>,
    /// The announcements that arrived during the flush.
    pub(super) next: BTreeMap<Rank, Announced>,
    /// For each committed rank: the digest of its files, and the time when they were written.
    pub(super) committed: BTreeMap<Rank, (Digest, i64)>,
    /// The last announcement of each rank. The last announcement may be an announcement of earlier files with the
    /// same names, or a withdrawn announcement.
    pub(super) last: BTreeMap<Rank, Seen>,
    /// The ranks that overwrote their files.
    pub(super) overwritten: BTreeMap<Rank, Overwritten>,
    /// When the ranks wrote the files of the last committed content without doubt, in nanoseconds since 1970. In each
    /// step, a rank writes its files about as long after the other ranks.
    pub(super) usual_ns: BTreeMap<Rank, i64>,
    /// The committed content that this content replaces, if the committed content may lack a part of its step.
    pub(super) may_complete: Option<CheckpointId>,
    /// Whether a rank wrote a further part of its step after the commit.
    pub(super) is_late_part: bool,
    /// Whether the hub has read the newest incarnation from the store because a rank overwrote its files.
    pub(super) has_asked: bool,
    /// The last failure, as text for the user.
    pub(super) problem: String,
    pub(super) exists: bool,
    /// The digest of the committed container.
    pub(super) container: Option<Digest>,
    /// The sessions whose ranks were committed.
    pub(super) sessions: BTreeSet<u64>,
    /// Whether the checkpoint was abandoned after the drain began.
    pub(super) given_up_while_draining: bool,
    /// The ranks whose agents know that the group is committed, but not yet that all groups are committed. Each rank
    /// has its node and the number of its announcement.
    pub(super) untold: BTreeMap<Rank, (String, u64)>,
    /// The time of the next check whether all groups are committed, and the wait after this check, both in
    /// milliseconds.
    pub(super) look: (u64, u64),
    /// When the hub last checked after the commit whether all groups are committed.
    pub(super) looked_ms: Option<u64>,
    pub(super) raw_bytes: RawBytes,
    pub(super) stored_bytes: StoredBytes,
    pub(super) since: Instant,
    pub(super) flush_ms: u64,
    pub(super) progress: Arc<Progress>,
    /// Number of the checkpoint in the order of arrival.
    pub(super) serial: u64,
    /// When a flush first found that the application had written the committed content again.
    pub(super) unchanged_since: Option<Instant>,
    /// When a flush first refused the files of some ranks, because they are of an earlier step.
    pub(super) refused_since: Option<Instant>,
    /// Whether the hub searches the store for the announced files.
    pub(super) search: Search,
}

/// Whether the hub searches the store for a checkpoint that a group gathers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// No search is needed. The agents saw how the files were written.
    #[default]
    None,
    /// A rank announced files that existed before its agent began to watch.
    Due,
    /// The hub has searched for the files with their times of writing.
    Done,
    /// The time to wait for the missing ranks is over. The announced ranks may have written their files again without
    /// a change, so the hub searches for the same content with any time of writing.
    LastDue,
    /// The hub has searched for the same content.
    LastDone,
}

/// A rank has overwritten files that it had announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overwritten {
    /// A lower bound in nanoseconds since 1970. A file that was written before this bound does not belong to the new
    /// content.
    pub(super) half_ns: i64,
    /// When the overwritten files were written, by this process's steady clock.
    pub(super) was_written_ns: Option<i64>,
}

impl Overwritten {
    /// The latest bound in `all`. Overwritten files of the previous incarnation, which ended at `began_ns`, give no
    /// bound, because their times do not depend on the steps of this incarnation.
    pub(super) fn not_before_ns(all: impl Iterator<Item = Self>, began_ns: Option<i64>) -> Option<i64> {
        let is_of_this = |one: &Self| one.was_written_ns.zip(began_ns).is_none_or(|(was, began)| was >= began);
        all.filter(is_of_this).map(|one| one.half_ns).max()
    }
}

/// The files of a rank in its last announcement.
pub(super) struct Seen {
    pub(super) modified_ns: i64,
    /// When the files were written, by this process's steady clock.
    pub(super) written_ns: Option<i64>,
    /// Path, digest and length in bytes of each file.
    pub(super) files: Vec<(FilePath, Digest, u64)>,
}

pub(super) fn modified_ns(files: &[FileHeader]) -> i64 {
    files.iter().map(|file| file.modified_ns).max().unwrap_or(i64::MIN)
}

impl Gather {
    /// Notes an announcement of a rank. If the rank has overwritten the files of its last announcement, the time
    /// halfway between the old files and the new files becomes a bound. A file of another rank from before this bound
    /// belongs to the previous content. This rule assumes that writing a checkpoint takes less than half of the time
    /// between two checkpoints. There is no bound if the rank wrote a further part of the same step.
    pub(super) fn saw(&mut self, rank: Rank, announced: &Announced, is_same_step: bool) {
        let seen = Seen {
            modified_ns: announced.written_unix_ns,
            written_ns: announced.link.clock.to_ours(announced.changed_clock_ns),
            files: announced.files.iter().map(|file| (file.path.clone(), file.digest, file.bytes)).collect(),
        };
        if let Some(before) = self.last.get(&rank) {
            let differs = |(path, digest, _): &(FilePath, Digest, u64)| {
                before.files.iter().any(|(p, d, _)| p == path && d != digest)
            };
            if seen.modified_ns < before.modified_ns {
                self.overwritten.clear(); // the files were copied back, so their times give no bound
            } else if !is_same_step && seen.files.iter().any(differs) {
                let half_ns = before.modified_ns + (seen.modified_ns.saturating_sub(before.modified_ns)) / 2;
                let later = self.overwritten.get(&rank).filter(|other| other.half_ns >= half_ns).copied();
                let this = Overwritten { half_ns, was_written_ns: before.written_ns };
                self.overwritten.insert(rank, later.unwrap_or(this));
            }
        }
        self.last.insert(rank, seen);
    }

    /// The latest bound for the files of a rank. The bound is earlier if the rank usually writes before the rank that
    /// overwrote its files. `began_ns`: the beginning of the incarnation, see [`Overwritten::not_before_ns`].
    pub(super) fn not_before_ns(&self, rank: Rank, began_ns: Option<i64>) -> Option<i64> {
        // Before the first commit, the first files of the ranks show this.
        let usual_ns = |rank: &Rank| match self.usual_ns.is_empty() {
            true => self.announced.get(rank)?.first_ms.map(|ms| ms.saturating_mul(1_000_000)),
            false => self.usual_ns.get(rank).copied(),
        };
        let ours_ns = usual_ns(&rank);
        let before_ns = |other: &Rank| Some(usual_ns(other)?.saturating_sub(ours_ns?).max(0));
        let adapted = self.overwritten.iter().map(|(other, overwritten)| Overwritten {
            half_ns: overwritten.half_ns.saturating_sub(before_ns(other).unwrap_or(0)),
            ..*overwritten
        });
        Overwritten::not_before_ns(adapted, began_ns)
    }
}

/// Number of bytes that the running flush has processed so far.
pub(super) struct Progress {
    pub(super) raw_bytes: AtomicU64,
    pub(super) stored_bytes: AtomicU64,
    /// Number of raw bytes that the flush will process; 0 if the plan is not made yet.
    pub(super) planned_bytes: AtomicU64,
    pub(super) began: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        let [raw_bytes, stored_bytes, planned_bytes] = Default::default();
        Self { raw_bytes, stored_bytes, planned_bytes, began: Instant::now() }
    }
}

impl Observer for Progress {
    fn planned(&self, _: usize, raw_bytes: RawBytes) {
        self.planned_bytes.fetch_add(raw_bytes.0, Ordering::Relaxed);
    }

    fn segment(&self, raw_bytes: RawBytes, stored_bytes: StoredBytes) {
        self.raw_bytes.fetch_add(raw_bytes.0, Ordering::Relaxed);
        self.stored_bytes.fetch_add(stored_bytes.0, Ordering::Relaxed);
    }
}

/// Informs an agent that the aggregator has dropped its announcement. `retry` says whether to announce again later.
pub(super) fn give_back(announced: &Announced, label: &CheckpointId, rank: Rank, reason: String, retry: bool) {
    let (label, rank, announce_id) = (label.to_string(), rank.0, announced.announce_id);
    let told = v1::Abandoned { label, rank, reason, retry, announce_id, whole: false };
    announced.link.send(v1::to_agent::Message::Abandoned(told));
}

pub(super) fn is_over(phase: &Phase) -> bool {
    matches!(phase, Phase::Committed(_) | Phase::Abandoned(_))
}

/// A digest of the paths and contents of a rank's files.
pub(super) fn content(files: &[FileHeader]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        hasher.update(&(file.path.as_bytes().len() as u64).to_le_bytes());
        hasher.update(file.path.as_bytes());
        hasher.update(&file.digest.0);
    }
    hasher.finalize().into()
}
