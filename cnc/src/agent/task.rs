//! The state that the task of an agent owns.

use super::before::Before;
use super::ending::{Ending, RankKey};
use super::left_out::LeftOut;
use super::saved::Saved;
use crate::capture::{CaptureError, CaptureMode, Verdicts};
use crate::config::CncConfig;
use crate::fingerprint::Fingerprint;
use crate::h5::MapSource;
use crate::serve::{Held, Order};
use crate::sessions::Sessions;
use crate::settle::ReadyRank;
use crate::source::Descriptors;
use crate::state::AgentState;
use crate::watch::Watcher;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Rank};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) struct Link {
    pub(super) orders: mpsc::Sender<Order>,
    /// The mode that the aggregator wants. `None` until the first session has begun.
    pub(super) mode: Option<CaptureMode>,
    /// Whether the aggregator's last answer refused this agent. A drain does not wait for such a link.
    pub(super) is_refused: bool,
}

pub(super) struct HeldRank {
    pub(super) announce_id: u64,
    pub(super) link: usize,
    pub(super) mode: CaptureMode,
    pub(super) ready: ReadyRank,
}

/// Files of a rank that are deleted when all groups of their checkpoint are committed.
pub(super) struct ToDelete {
    pub(super) checkpoint: CheckpointId,
    pub(super) key: RankKey,
    pub(super) files: Vec<(FilePath, Fingerprint)>,
}

/// The result of one capture.
pub(super) struct Captured {
    pub(super) ready: ReadyRank,
    pub(super) link: usize,
    pub(super) mode: CaptureMode,
    pub(super) result: Result<Held, (FilePath, CaptureError)>,
}

pub(super) struct Core {
    pub(super) config: CncConfig,
    pub(super) sessions: Sessions,
    pub(super) watcher: Watcher,
    pub(super) maps: Arc<dyn MapSource>,
    pub(super) verdicts: Arc<Verdicts>,
    /// `None` if the layout was not guessed.
    pub(super) left_out: Option<Arc<LeftOut>>,
    pub(super) before: Arc<Before>,
    /// Whether the application has ended with success, with all its processes, so no file is written again.
    pub(super) has_ended_well: bool,
    pub(super) state: AgentState,
    pub(super) state_changed: bool,
    /// Ranks that were not announced, because the state file names all their files as committed. `None` after the first
    /// aggregator has answered whether the store has a checkpoint of the job. All files of these ranks are in
    /// [`Core::state`], so there are at most as many ranks as files.
    pub(super) skipped: Option<Vec<ReadyRank>>,
    /// The checkpoint that was last reported as vanished.
    pub(super) vanished: Option<CheckpointId>,
    /// If the state file has more names than this number, the names of deleted files are removed from the state file.
    pub(super) state_files_max: usize,
    pub(super) links: Vec<Link>,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) ready: VecDeque<ReadyRank>,
    /// Ranks that are being captured. The number of these ranks is limited, so that the application can use the
    /// processors.
    pub(super) capturing: BTreeSet<RankKey>,
    pub(super) held: BTreeMap<RankKey, HeldRank>,
    /// Ranks in [`Core::ready`] whose files are announced as whole files, because the aggregator had no memory for a
    /// more detailed description.
    pub(super) whole: BTreeSet<RankKey>,
    /// Committed ranks that the aggregator asked the agent to announce again.
    pub(super) asked_for: BTreeSet<RankKey>,
    /// Ranks that the aggregator rejected for a temporary reason, and ranks with a file that could not be read. Each
    /// rank becomes ready again at the given time.
    pub(super) again: Vec<(tokio::time::Instant, ReadyRank)>,
    /// Files of committed checkpoints, to be deleted. The files of a checkpoint are deleted when all its groups are
    /// committed.
    pub(super) to_delete: VecDeque<ToDelete>,
    /// The ranks of checkpoints whose files this agent has deleted, the oldest first.
    pub(super) deleted: VecDeque<RankKey>,
    pub(super) next_announce: u64,
    /// Rejections that are already in the log at level `warn`.
    pub(super) given_up: BTreeSet<(CheckpointId, String)>,
    pub(super) done_to: mpsc::Sender<Captured>,
    /// Ranks of a directory that is not watched any more, which were reported before and are not yet committed.
    pub(super) left: BTreeMap<RankKey, PathBuf>,
    pub(super) ending: Ending,
    /// The checkpoints that are not yet reported as saved.
    pub(super) saved: Saved,
}

impl Core {
    pub(super) fn link_of(&self, rank: Rank) -> usize {
        let group = GroupId(rank.0 / self.config.group_size);
        group.0 as usize % self.links.len().max(1)
    }
}
