//! Where containers and manifests lie: a directory tree with just the operations that a commit needs.
//!
//! Each operation of [`Store`] is one step that can fail, or be the last before a crash, so that a test can stop after
//! every one of them ([`faulty`]). Only this module creates, renames, syncs or removes files on the parallel file system.
//!
//! Names that begin with a dot are temporary; no reader looks at them ([`visible`]).

#[cfg(test)]
mod contract;
pub mod faulty;
pub mod memory;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "files are made, renamed, synced and deleted here"))]
pub mod posix;

pub use faulty::{Fault, FaultyStore};
pub use memory::{MemoryStore, Survival};
pub use posix::PosixStore;

use crate::container::error::ReadError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A tree of directories and files. All paths are relative to its root.
pub trait Store: Send + Sync {
    /// Where it is, for messages.
    fn root(&self) -> &Path;
    /// Makes one directory. `false` if it was there. Durable after [`Store::sync_dir`] of its parent.
    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError>;
    /// Makes an empty file with a temporary name in `dir`: a dot, `name`, a dot, and something unique.
    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError>;
    /// Gives a file another name in one step; a file that had that name is gone. Durable after [`Store::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError>;
    /// As [`Store::rename`], but `false`, with nothing changed, where a file of the new name is there already. Of several
    /// processes that try at once, one gets `true`.
    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError>;
    /// How long ago a file was last modified, by the clock of the file system that holds it.
    fn age(&self, path: &Path) -> Result<Duration, StoreError>;
    /// Makes what was created, renamed and removed in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError>;
    /// The length of a file and the age of a file or directory, without opening it.
    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        let stat = |bytes, is_dir| Stat { bytes, modified_unix_ms: None, is_dir };
        match self.open(path) {
            Ok(file) => Ok(stat(file.len(), false)),
            Err(error) => self.list_dir(path).map(|_| stat(0, true)).map_err(|_| error),
        }
    }
    /// What is in a directory, temporary names too, sorted by name. Names that are not UTF-8 are left out: none is ours.
    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError>;
    /// Removes a file; that it was not there is no error.
    fn remove_file(&self, path: &Path) -> Result<(), StoreError>;
    /// Removes an empty directory; that it was not there is no error.
    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError>;
    /// Whether the [`TempFile`] that this file was written by still exists, in any process, under whatever name the
    /// file is now. `false` where the file system cannot tell.
    fn is_held(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

/// A file being written under a temporary name. Dropped before it was renamed, it is removed if that can be done.
pub trait TempFile: Send {
    /// Its temporary path.
    fn path(&self) -> &Path;
    /// Puts all of these bytes at its end.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Makes its bytes durable.
    fn sync(&mut self) -> Result<(), StoreError>;
}

/// A file open for reading.
#[expect(clippy::len_without_is_empty, reason = "the length of a file, which is never asked whether it is empty")]
pub trait StoredFile: Send + Sync {
    /// Its length in bytes, at the time it was opened.
    fn len(&self) -> u64;
    /// Fills all of `into` with the bytes from `offset` on.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// What is known of a file or directory without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its length in bytes; of a directory nothing that means anything.
    pub bytes: u64,
    /// When it was last modified, in milliseconds since 1970, by the clock of the store. `None` where the store does not know.
    pub modified_unix_ms: Option<i64>,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Whether readers look at a name: temporary ones begin with a dot.
pub fn visible(name: &str) -> bool {
    !name.starts_with('.')
}

/// Makes a directory below the root and all that lead to it, durably.
pub fn create_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    make_dirs(store, dir)?;
    sync_dirs(store, dir)
}

/// Makes a directory below the root and all that lead to it. Durable after [`sync_dirs`].
pub fn make_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    let mut made = PathBuf::new();
    for component in dir.components() {
        made.push(component);
        store.create_dir(&made)?;
    }
    Ok(())
}

/// Makes a directory and all that lead to it durable, from the root on. Also where they were there before: whoever made them
/// may have died before this step.
pub fn sync_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    let mut parent = PathBuf::new();
    for component in dir.components() {
        store.sync_dir(&parent)?;
        parent.push(component);
    }
    Ok(())
}

/// What the reader of an error does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    /// The same again may work.
    Retry,
    /// This checkpoint cannot be read; the one before may be whole.
    OlderCheckpoint,
    /// A newer build of this program reads it.
    Upgrade,
    /// The file system is full, or a quota used up.
    FreeSpace,
    /// The group is already committed under this id: save under another generation of it.
    NewGeneration,
    /// The operator must give this user access.
    Permissions,
    /// A mistake of this program: please report it.
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

/// What goes wrong while something is written, committed or pruned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("{path}: {what} failed", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done to it.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A valid manifest, or one of a kept checkpoint, stands on what would be replaced.
    #[error("{path}: already committed, and a committed file is never changed", path = .path.display())]
    Committed {
        /// The container or manifest.
        path: PathBuf,
    },
    /// Another process, or another thread of this one, is writing the same group of the same checkpoint.
    #[error("{path}: another process is saving this just now", path = .path.display())]
    Busy {
        /// The container.
        path: PathBuf,
    },
    /// What is to be written contradicts itself.
    #[error("{path}: cannot be written: {what}", path = .path.display())]
    Contents {
        /// The container or manifest.
        path: PathBuf,
        /// Which rule is broken.
        what: String,
    },
    /// More of something than the format has room for.
    #[error("{path}: {found} {what}, and the format takes {limit}", path = .path.display())]
    TooLarge {
        /// The container or manifest.
        path: PathBuf,
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
    /// What is already in the store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl StoreError {
    /// What to do next.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Io { source, .. } => io_advice(source),
            Self::Committed { .. } => Advice::NewGeneration,
            Self::Busy { .. } => Advice::Retry,
            Self::Contents { .. } | Self::TooLarge { .. } => Advice::Report,
            Self::Read(error) => error.advice(),
        }
    }

    /// Whether a file or directory was not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
