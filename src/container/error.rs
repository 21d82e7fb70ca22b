//! What goes wrong while a container or manifest is read.

use crate::codec::CodecError;
use crate::ids::Digest;
use crate::store::{Advice, StoreError, io_advice};
use std::io;
use std::path::PathBuf;

/// Why something in the store could not be read. Says which file, which part of it, and what was found there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not there.
    #[error("{path}: not there", path = .path.display())]
    Missing {
        /// The container or manifest.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{path}: reading {len} bytes at {offset}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Bytes asked for; 0 for a directory.
        len: u64,
        /// Why.
        source: io::Error,
    },
    /// It ends too early.
    #[error("{path}: cut short: {what} needs {needed} bytes, there are {found}", path = .path.display())]
    Cut {
        /// The container or manifest.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        found: u64,
    },
    /// It begins or ends with something else.
    #[error("{path}: {what} at byte {at} does not have its mark", path = .path.display())]
    NotOurs {
        /// The container or manifest.
        path: PathBuf,
        /// Which part.
        what: &'static str,
        /// Where the mark should be.
        at: u64,
    },
    /// Written by a later release.
    #[error("{path}: format {found}, this build reads up to {newest}", path = .path.display())]
    TooNew {
        /// The container or manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that this build reads.
        newest: u32,
    },
    /// Uses something that this build does not know.
    #[error("{path}: {what}, which this build does not know", path = .path.display())]
    Unsupported {
        /// The container or manifest.
        path: PathBuf,
        /// What.
        what: String,
    },
    /// A checksum does not agree.
    #[error("{path}: {part} at byte {at} is damaged (CRC {found:08x}, recorded {recorded:08x})", path = .path.display())]
    Damaged {
        /// The container.
        path: PathBuf,
        /// Which part.
        part: String,
        /// Where it begins.
        at: u64,
        /// CRC-32C of what is there.
        found: u32,
        /// CRC-32C of what was written.
        recorded: u32,
    },
    /// A digest does not agree.
    #[error("{path}: {what} is damaged (BLAKE3 {found}, recorded {recorded})", path = .path.display())]
    Digest {
        /// The container or manifest.
        path: PathBuf,
        /// Which part.
        what: String,
        /// BLAKE3 of what is there.
        found: Digest,
        /// BLAKE3 of what was written.
        recorded: Digest,
    },
    /// Checksums agree, but what was written breaks a rule of the format.
    #[error("{path}: {part} is not valid: {what}", path = .path.display())]
    Invalid {
        /// The container or manifest.
        path: PathBuf,
        /// Which part.
        part: &'static str,
        /// Which rule is broken.
        what: String,
    },
    /// It is whole, but not what was asked for.
    #[error("{path}: {what} is {found}, expected {expected}", path = .path.display())]
    Foreign {
        /// The container or manifest.
        path: PathBuf,
        /// Which property.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The bytes of a segment are as written, and do not decode.
    #[error("{path}: segment {segment} does not decode", path = .path.display())]
    Codec {
        /// The container.
        path: PathBuf,
        /// Which segment.
        segment: u32,
        /// Why.
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

    /// An error of the store while reading, as this.
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
