//! Why a file could not be restored.

use mcrengine::header::HeaderError;
use mcrengine::ids::Digest;
use std::io;
use std::path::{Path, PathBuf};

/// Why a file could not be restored. After such an error, no part of the file is under its final name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The description of the file contradicts itself.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Bytes were given for a position that the file's description does not contain.
    #[error("{path}: variable {variable} has no {bytes} raw bytes at {offset}", path = .path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// Offset of the first given byte in the variable's raw bytes.
        offset: u64,
        /// Number of given raw bytes.
        bytes: u64,
    },
    /// After its filters were applied, a chunk does not have the length of the application's chunk.
    #[error(
        "{path}: variable {variable}, chunk {chunk}: {found} stored bytes, {expected} recorded",
        path = .path.display()
    )]
    Chunk {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// Index of the extent.
        chunk: usize,
        /// Length of the result in bytes. 0 if the filters failed.
        found: u64,
        /// Recorded length in bytes.
        expected: u64,
    },
    /// Some raw bytes were not given.
    #[error("{path}: {written} of its {expected} raw bytes were given", path = .path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// Number of raw bytes that were given.
        written: u64,
        /// Number of raw bytes of the file.
        expected: u64,
    },
    /// The restored bytes differ from the application's bytes.
    #[error("{path}: its digest is {found}, recorded {recorded}", path = .path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Digest of the written bytes.
        found: Digest,
        /// Recorded digest of the application's file.
        recorded: Digest,
    },
    /// A component of the path is a symbolic link or not a directory.
    #[error(
        "{path}: this is not a real directory; files are restored only below real directories, not through links",
        path = .path.display()
    )]
    NotADirectory {
        /// The component.
        path: PathBuf,
    },
    /// A file appeared under a final name during the publication.
    #[error(
        "{path}: another program created this file while files were published, and nothing was changed; stop that \
         program, and restart again",
        path = .path.display()
    )]
    Occupied {
        /// The final name.
        path: PathBuf,
    },
    /// Another restart publishes into the same directory.
    #[error(
        "{path}: another restart has been publishing into it for {waited_s} s; wait for its end, then restart again",
        path = .path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Time that this restart waited, in seconds.
        waited_s: u64,
    },
    /// The operating system reported an error.
    #[error("{path}: {what}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl RestoreError {
    /// The file or directory of the error. `None` if the description of a file is wrong.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Header(_) => None,
            Self::OutOfRange { path, .. }
            | Self::Chunk { path, .. }
            | Self::Incomplete { path, .. }
            | Self::Digest { path, .. }
            | Self::NotADirectory { path }
            | Self::Occupied { path }
            | Self::Busy { path, .. }
            | Self::Io { path, .. } => Some(path),
        }
    }

    /// Whether the cause of the error is the checkpoint, and not the disk of this node. If the checkpoint is the
    /// cause, another checkpoint may be restorable.
    pub fn blames_checkpoint(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::OutOfRange { .. }
            | Self::Chunk { .. }
            | Self::Incomplete { .. }
            | Self::Digest { .. } => true,
            Self::NotADirectory { .. } | Self::Occupied { .. } | Self::Busy { .. } | Self::Io { .. } => false,
        }
    }
}
