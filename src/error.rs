//! Errors of reading from and writing to the store, each with advice on what to do next.

use crate::codec::CodecError;
use crate::ids::Digest;
use std::io;
use std::path::PathBuf;

/// What to do after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    /// Try the same operation again.
    Retry,
    /// Use an older checkpoint, because this checkpoint cannot be read.
    OlderCheckpoint,
    /// Use a newer build of this program, which can read the file.
    Upgrade,
    /// Free space: the file system is full, or a quota is used up.
    FreeSpace,
    /// Save the checkpoint under another generation of its name, because the group is already committed under the
    /// present name.
    NewGeneration,
    /// Ask the operator to give this user access.
    Permissions,
    /// Report the error, because it is a bug of this program.
    Report,
}

/// Advice for an error of the operating system.
pub(crate) fn io_advice(error: &io::Error) -> Advice {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Advice::FreeSpace,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Advice::Permissions,
        _ => Advice::Retry,
    }
}

/// An error while a container or manifest is written, committed or pruned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system returned an error.
    #[error("{path}: {what} failed", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the file system.
        source: io::Error,
    },
    /// The group has a valid manifest, or a kept checkpoint needs the container that would be replaced.
    #[error("{path}: already committed, and a committed file is never changed", path = .path.display())]
    Committed {
        /// The container or manifest.
        path: PathBuf,
    },
    /// Another process, or another thread of this process, is writing the same group of the same checkpoint.
    #[error("{path}: another process is saving this checkpoint now", path = .path.display())]
    Busy {
        /// The container.
        path: PathBuf,
    },
    /// The contents to be written contradict each other.
    #[error("{path}: cannot be written: {what}", path = .path.display())]
    Contents {
        /// The container or manifest.
        path: PathBuf,
        /// The broken rule.
        what: String,
    },
    /// A number exceeds a limit of the format.
    #[error(
        "{path}: the {what} would have {found} bytes, but the format allows at most {limit} bytes",
        path = .path.display()
    )]
    TooLarge {
        /// The container or manifest.
        path: PathBuf,
        /// The part of the file, or the kind of the file.
        what: &'static str,
        /// Length of the part, in bytes.
        found: u64,
        /// Maximum length of the part, in bytes.
        limit: u64,
    },
    /// An existing file of the store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl StoreError {
    /// What the caller should do next.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } => io_advice(source),
            Self::Committed { .. } => Advice::NewGeneration,
            Self::Busy { .. } => Advice::Retry,
            Self::Contents { .. } | Self::TooLarge { .. } => Advice::Report,
            Self::Read(error) => error.advice(),
        }
    }

    /// Whether a file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// An error while a file of the store is read. The error names the file and the part of the file.
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
    #[error("{path}: {what}", path = .path.display(), what = not_read(*offset, *len))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Offset of the first requested byte.
        offset: u64,
        /// Number of requested bytes; 0 for a directory.
        len: u64,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file ends too early.
    #[error("{path}: cut short: {what} {how}", path = .path.display(), how = cut(*needed, *found))]
    Cut {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file is cut.
        what: &'static str,
        /// Minimum number of bytes of the part.
        needed: u64,
        /// Number of bytes that the file has.
        found: u64,
    },
    /// The file does not begin or end with the mark of the format.
    #[error("{path}: {what} at byte {at} does not have the mark of the format", path = .path.display())]
    NotOurs {
        /// The container or manifest.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// Offset in the file at which the mark should be, in bytes.
        at: u64,
    },
    /// The file was written by a later release.
    #[error(
        "{path}: the file has format {found}, but this build reads only formats up to {newest}",
        path = .path.display()
    )]
    TooNew {
        /// The container or manifest.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// The newest version that this build reads.
        newest: u32,
    },
    /// The file needs a feature that this build does not have.
    #[error("{path}: {what}, which this build does not know", path = .path.display())]
    Unsupported {
        /// The container or manifest.
        path: PathBuf,
        /// The unknown feature or value.
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
        /// The broken rule.
        what: String,
    },
    /// The file is undamaged, but is not the requested file.
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

fn not_read(offset: u64, len: u64) -> String {
    match len {
        0 => "cannot be read".to_owned(),
        len => format!("{len} bytes at byte {offset} cannot be read"),
    }
}

fn cut(needed: u64, found: u64) -> String {
    match needed > found {
        true => format!("needs {needed} bytes, but there are {found}"),
        // The part has the minimum number of bytes, but does not end as it must end.
        false => format!("is not complete (the file has {found} bytes)"),
    }
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

    /// Whether the bytes of the file are damaged. An undamaged file of another job or of a later release is no damage.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Cut { .. } | Self::NotOurs { .. } | Self::Damaged { .. } | Self::Digest { .. } | Self::Invalid { .. }
        )
    }

    /// A copy of an error about damaged bytes, for a caller that does not read the same bytes again. `None` for other
    /// errors, because another attempt may succeed.
    pub(crate) fn of_damage(&self) -> Option<Self> {
        Some(match self {
            Self::Cut { path, what, needed, found } => {
                Self::Cut { path: path.clone(), what, needed: *needed, found: *found }
            }
            Self::Damaged { path, part, at, found, recorded } => {
                Self::Damaged { path: path.clone(), part: part.clone(), at: *at, found: *found, recorded: *recorded }
            }
            Self::Digest { path, what, found, recorded } => {
                Self::Digest { path: path.clone(), what: what.clone(), found: *found, recorded: *recorded }
            }
            Self::Invalid { path, part, what } => Self::Invalid { path: path.clone(), part, what: what.clone() },
            _ => return None,
        })
    }

    /// The file or directory that cannot be read.
    pub fn path(&self) -> &std::path::Path {
        match self {
            Self::Missing { path }
            | Self::Io { path, .. }
            | Self::Cut { path, .. }
            | Self::NotOurs { path, .. }
            | Self::TooNew { path, .. }
            | Self::Unsupported { path, .. }
            | Self::Damaged { path, .. }
            | Self::Digest { path, .. }
            | Self::Invalid { path, .. }
            | Self::Foreign { path, .. }
            | Self::Codec { path, .. } => path,
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
                Self::Io { path, offset: 0, len: 0, source: io::Error::other("an error of a writer while reading") }
            }
        }
    }
}

/// An error while a checkpoint is copied or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A file of one of the two stores could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Copying would change or contradict data of the destination, or the source has nothing to copy.
    #[error("{path}: {what}; {way_out}", path = .path.display())]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// Why nothing is copied.
        what: String,
        /// What the user can do.
        way_out: &'static str,
    },
}

impl From<ReadError> for CopyError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.into())
    }
}

impl CopyError {
    /// The file or directory of the error, if it is known.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            Self::Refused { path, .. } => Some(path),
            Self::Store(_) => None,
        }
    }
}
