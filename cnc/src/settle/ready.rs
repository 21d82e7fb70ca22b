//! The ranks of a checkpoint that are ready, and those that wait.

use crate::companions::Companion;
use crate::fingerprint::Fingerprint;
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use mcrengine::turns::WrittenFile;
use std::path::Path;
use std::sync::Arc;

/// A file that may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledFile {
    /// Path below the watched directory.
    pub path: FilePath,
    /// Fingerprint of the file when it settled.
    pub fingerprint: Fingerprint,
}

impl SettledFile {
    pub(super) fn written(&self, rank: Rank) -> WrittenFile<'_> {
        WrittenFile { rank: Some(rank), path: &self.path, at_ns: i128::from(self.fingerprint.modified_ns) }
    }
}

/// All files that one rank saved for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyRank {
    /// The checkpoint's label.
    pub checkpoint: CheckpointId,
    /// The rank. The files of rank 0 include the files that belong to no single rank.
    pub rank: Rank,
    /// The files, sorted by name.
    pub files: Vec<SettledFile>,
    /// Links, directories and pointer files that are saved with the files, as they were when the rank became ready.
    pub companions: Vec<Companion>,
    /// The directory with the files. `None`: the watched directory.
    pub root: Option<Arc<Path>>,
    /// Whether the rank was announced before and has changed since. If the rank was announced before, the new
    /// announcement replaces the earlier announcement.
    pub again: bool,
    /// If the application was writing files again under the same names, so that the files may be of two steps: when the
    /// newest of the replaced contents was written. This is the change time (ctime), in nanoseconds since 1970.
    pub doubt_ns: Option<i64>,
    /// The time from the content before, under the same names, to this content, in nanoseconds. 0 if the application
    /// replaced no content, or only what a restart wrote.
    pub interval_ns: u64,
    /// When the application wrote the first content of this run, in nanoseconds since 1970, if this is known.
    pub first_ns: Option<i64>,
    /// Whether the rank has fewer files than usual, or fewer bytes, although it waited for more. A process that was
    /// killed while it wrote a file leaves fewer bytes.
    pub has_less: bool,
    /// Whether the application failed just after it had written a file of the rank, and nothing shows how long the file
    /// must be.
    pub is_last: bool,
}

/// A rank that was not yet reported, although all its files are settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRank {
    /// The checkpoint's label.
    pub checkpoint: CheckpointId,
    /// The rank.
    pub rank: Rank,
    /// The reason why the rank waits.
    pub why: Why,
    /// Time of the last write to the rank's newest file, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// The reason why a rank with settled files waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The file that marks the checkpoint as complete is missing.
    Marker,
    /// The checkpoint or its pointer file changed a short time ago, and must first be at rest. A rank that becomes
    /// ready at the next look has this value too.
    Quiet,
    /// The rank has fewer files than in the previous checkpoint, or clearly fewer bytes.
    Fewer,
}
