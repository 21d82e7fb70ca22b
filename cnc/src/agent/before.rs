//! Finds checkpoints that the application had overwritten by half before the agent started.

use crate::layout::{Layout, ScanLimits, list, mixed};
use crate::settle::ReadyRank;
use mcrengine::ids::CheckpointId;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

/// File times advance in steps of up to 10 ms, so a file may seem to be this much older (20 ms).
const TICK_NS: i64 = 20_000_000;

/// The checkpoints whose files were probably written in two steps before the agent started, each with the reason. An
/// agent learns the steps of the application from the writes that it sees. For files from the time before the agent
/// started, only their times show the steps.
pub(super) struct Before {
    watch: PathBuf,
    layout: Layout,
    /// When the agent began, by the clock of the file system, in nanoseconds since 1970.
    began_ns: i64,
    found: OnceLock<BTreeMap<CheckpointId, String>>,
}

impl Before {
    pub(super) fn new(watch: PathBuf, layout: Layout, began_ns: i64) -> Self {
        Self { watch, layout, began_ns, found: OnceLock::new() }
    }

    /// Files that changed since this time were changed after the agent began, in nanoseconds since 1970.
    pub(super) fn later_ns(&self) -> i64 {
        self.began_ns.saturating_sub(TICK_NS)
    }

    /// Whether one of the rank's files changed after the agent began.
    pub(super) fn is_later(&self, ready: &ReadyRank) -> bool {
        ready.files.iter().any(|file| file.fingerprint.changed_ns >= self.later_ns())
    }

    /// Whether a rank is of a checkpoint that was overwritten by half before the agent started. The directory is read
    /// once, when the first rank with only older files is captured. Must run on a thread that may block.
    pub(super) fn is_mixed(&self, ready: &ReadyRank) -> bool {
        if ready.files.iter().any(|file| file.fingerprint.modified_ns >= self.began_ns) {
            return false;
        }
        let found = self.found.get_or_init(|| {
            // The watcher reports a directory that cannot be read.
            let listing = list(&self.watch, &ScanLimits::default());
            listing.map(|listing| mixed(&listing, &self.layout)).unwrap_or_default()
        });
        let why = found.get(&ready.checkpoint);
        if let Some(why) = why {
            tracing::warn!(checkpoint = %ready.checkpoint, rank = ready.rank.0, why, "the checkpoint is doubtful");
        }
        why.is_some()
    }
}
