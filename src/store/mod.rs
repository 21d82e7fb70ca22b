//! The store of containers and manifests: a directory tree with only the operations that a commit needs.
//!
//! Each operation of [`Store`] is one step. Each step can fail, and can be the last step before a crash. A test can
//! stop the store after every operation ([`faulty`]). Only this module creates, renames, syncs or removes files on
//! the parallel file system.
//!
//! Names that begin with a dot are temporary. Readers ignore temporary names ([`visible`]).

#[cfg(test)]
mod contract;
pub mod faulty;
pub mod memory;
#[cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "files are made, renamed, synced and deleted here"))]
pub mod posix;

pub use faulty::{Fault, FaultyStore, Read};
pub use memory::{MemoryFile, MemoryStore, Survival};
pub use posix::PosixStore;

pub use crate::error::{Advice, StoreError};

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A tree of directories and files. All paths are relative to the root of the tree.
pub trait Store: Send + Sync {
    /// Path of the root, for error messages.
    fn root(&self) -> &Path;
    /// Creates one directory. Returns `false` if the directory already existed. The name is durable after
    /// [`Store::sync_dir`] of the parent directory.
    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError>;
    /// Creates an empty file in `dir`. The temporary name of the file is a dot, `name`, a dot, and a unique text.
    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError>;
    /// Renames a file or directory in one step, and replaces a file or empty directory that had the new name. The new
    /// name is durable after [`Store::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError>;
    /// Renames like [`Store::rename`], but returns `false` and changes nothing if a file already has the new name. If
    /// several processes try at the same time, exactly one process gets `true`.
    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError>;
    /// How long ago a file was last modified, by the clock of the file system that holds it.
    fn age(&self, path: &Path) -> Result<Duration, StoreError>;
    /// Makes the created, renamed and removed names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError>;
    /// The length of a file, and the modification time of a file or directory, without opening the file or directory.
    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        let stat = |bytes, is_dir| Stat { bytes, modified_unix_ms: None, is_dir };
        match self.open(path) {
            Ok(file) => Ok(stat(file.len(), false)),
            Err(error) => self.list_dir(path).map(|_| stat(0, true)).map_err(|_| error),
        }
    }
    /// The entries of a directory, including temporary names, sorted by name. Names that are not UTF-8 are left out,
    /// because this program makes no such names.
    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError>;
    /// Removes a file. Succeeds if the file does not exist.
    fn remove_file(&self, path: &Path) -> Result<(), StoreError>;
    /// Removes an empty directory. Succeeds if the directory does not exist.
    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError>;
    /// Whether any process still has the [`TempFile`] through which this file was written, even if the file was
    /// renamed since. `false` if the file system has no locks.
    fn is_held(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

/// A file that is being written under a temporary name. If the value is dropped before the file is renamed, the file
/// is removed, if possible.
pub trait TempFile: Send {
    /// Temporary path of the file.
    fn path(&self) -> &Path;
    /// Appends all of these bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Makes the bytes of the file durable.
    fn sync(&mut self) -> Result<(), StoreError>;
}

/// A file open for reading.
#[expect(clippy::len_without_is_empty, reason = "no caller asks whether a file is empty")]
pub trait StoredFile: Send + Sync {
    /// Length of the file when it was opened, in bytes.
    fn len(&self) -> u64;
    /// Fills all of `into` with the bytes that start at `offset`.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// Properties of a file or directory that can be read without opening the file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Length of a file, in bytes. The value has no meaning for a directory.
    pub bytes: u64,
    /// Time of the last modification, in milliseconds since 1970, by the clock of the store. `None` if the time is
    /// not known.
    pub modified_unix_ms: Option<i64>,
    /// Whether the path is a directory.
    pub is_dir: bool,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Whether the path is a directory.
    pub is_dir: bool,
}

/// Whether readers use a name. Names that begin with a dot are temporary, and readers ignore temporary names.
pub fn visible(name: &str) -> bool {
    !name.starts_with('.')
}

/// Creates a directory below the root and all directories on the path to it. The directories are durable when this
/// function returns.
pub fn create_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    make_dirs(store, dir)?;
    sync_dirs(store, dir)
}

/// Creates a directory below the root and all directories on the path to it. The directories are durable after
/// [`sync_dirs`].
pub fn make_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    let mut made = PathBuf::new();
    for component in dir.components() {
        made.push(component);
        store.create_dir(&made)?;
    }
    Ok(())
}

/// Makes a directory and all directories on the path to it durable, starting at the root. Directories that already
/// existed are synced too, because the process that created them may have died before it synced them.
pub fn sync_dirs(store: &dyn Store, dir: &Path) -> Result<(), StoreError> {
    let mut parent = PathBuf::new();
    for component in dir.components() {
        store.sync_dir(&parent)?;
        parent.push(component);
    }
    Ok(())
}
