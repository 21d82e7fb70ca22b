//! Why a file cannot be captured.

use std::io;
use std::path::{Path, PathBuf};

/// Why a file could not be captured, or why its bytes could not be read later.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file does not exist any more.
    #[error("{path}: the file does not exist any more", path = .path.display())]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The path is a directory, a device, a pipe or a symbolic link.
    #[error("{path}: the path is not a regular file", path = .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file was written during or after the capture.
    #[error("{path}: the file changed while it was read", path = .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked for bytes that the header does not have.
    #[error("{path}: variable {variable} does not have {bytes} raw bytes at offset {offset}", path = .path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// Offset of the first requested raw byte.
        offset: u64,
        /// Number of requested raw bytes.
        bytes: u64,
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

impl CaptureError {
    /// Whether a later capture of the same file may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Vanished { .. } | Self::Changed { .. } => true,
            Self::NotAFile { .. } | Self::OutOfRange { .. } | Self::Io { .. } => false,
        }
    }
}

/// Converts a read error. A file that ends before its recorded length was truncated during the read.
pub(crate) fn changed_if_short(source: io::Error, name: &Path) -> CaptureError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => CaptureError::Changed { path: name.to_owned() },
        _ => CaptureError::Io { path: name.to_owned(), what: "reading the file", source },
    }
}
