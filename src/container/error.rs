//! Errors while a container or manifest is read.

use crate::codec::CodecError;
use crate::ids::Digest;
use crate::store::{Advice, StoreError, io_advice};
use std::io;
use std::path::PathBuf;

/// Why something in the store could not be read. The error names the file, the part of the file, and what was found
/// there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file does not exist.
    #[error("{path}: does not exist", path = .path.display())]
    Missing {
        /// The container or manifest.
        path: PathBuf,
    },
    /// The file system returned an error.
    #[error("{path}: reading {len} bytes at {offset}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Offset of the first byte that was asked for.
        offset: u64,
        /// Bytes asked for; 0 for a directory.
        len: u64,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file ends too early.
    #[error("{path}: cut short: {what} needs {needed} bytes, there are {found}", path = .path.display())]
    Cut {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file is cut.
        what: &'static str,
        /// Bytes that the part needs.
        needed: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The file does not begin or end with the mark of the format.
    #[error("{path}: {what} at byte {at} does not have the mark of the format", path = .path.display())]
    NotOurs {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// Where the mark should be.
        at: u64,
    },
    /// The file was written by a later release.
    #[error("{path}: format {found}, this build reads up to {newest}", path = .path.display())]
    TooNew {
        /// The container or manifest.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// The newest version that this build reads.
        newest: u32,
    },
    /// The file uses something that this build does not know.
    #[error("{path}: {what}, which this build does not know", path = .path.display())]
    Unsupported {
        /// The container or manifest.
        path: PathBuf,
        /// What this build does not know.
        what: String,
    },
    /// A checksum does not agree with the bytes.
    #[error("{path}: {part} at byte {at} is damaged (CRC {found:08x}, recorded {recorded:08x})", path = .path.display())]
    Damaged {
        /// The container.
        path: PathBuf,
        /// Which part of the container.
        part: String,
        /// Offset of the part.
        at: u64,
        /// CRC-32C of the bytes that were read.
        found: u32,
        /// CRC-32C that was recorded when the part was written.
        recorded: u32,
    },
    /// A digest does not agree with the bytes.
    #[error("{path}: {what} is damaged (BLAKE3 {found}, recorded {recorded})", path = .path.display())]
    Digest {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file.
        what: String,
        /// BLAKE3 of the bytes that were read.
        found: Digest,
        /// BLAKE3 that was recorded when the part was written.
        recorded: Digest,
    },
    /// The checksums agree, but the contents break a rule of the format.
    #[error("{path}: {part} is not valid: {what}", path = .path.display())]
    Invalid {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file.
        part: &'static str,
        /// Which rule is broken.
        what: String,
    },
    /// The file is undamaged, but it is not the one that was asked for.
    #[error("{path}: {what} is {found}, expected {expected}", path = .path.display())]
    Foreign {
        /// The container or manifest.
        path: PathBuf,
        /// Which property differs.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// The stored bytes of a segment are undamaged but do not decode.
    #[error("{path}: segment {segment} does not decode", path = .path.display())]
    Codec {
        /// The container.
        path: PathBuf,
        /// Number of the segment.
        segment: u32,
        /// The error of the codec.
        source: CodecError,
    },
}

impl ReadError {
    /// What a restart should do next.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof => Advice::OlderCheckpoint,
            Self::Io { source, .. } => io_advice(source),
            Self::TooNew { .. } | Self::Unsupported { .. } => Advice::Upgrade,
            Self::Missing { .. }
            | Self::Cut { .. }
            | Self::NotOurs { .. }
            | Self::Damaged { .. }
            | Self::Digest { .. }
            | Self::Invalid { .. }
            | Self::Foreign { .. }
            | Self::Codec { .. } => Advice::OlderCheckpoint,
        }
    }

    /// Converts an error of the store that occurred while reading.
    pub(crate) fn from_store(error: StoreError) -> Self {
        match error {
            StoreError::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => Self::Missing { path },
            StoreError::Io { path, source, .. } => Self::Io { path, offset: 0, len: 0, source },
            StoreError::Read(error) => error,
            StoreError::Committed { path }
            | StoreError::Busy { path }
            | StoreError::Contents { path, .. }
            | StoreError::TooLarge { path, .. } => {
                Self::Io { path, offset: 0, len: 0, source: io::Error::other("a writer's error while reading") }
            }
        }
    }
}
