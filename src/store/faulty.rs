//! A store for tests that fails on purpose: the process dies after an operation, the disk is full, or a write is
//! torn.

use super::{Entry, MemoryStore, Stat, Store, StoreError, StoredFile, TempFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The fault, and the operation at which the fault occurs. Operations that change the store are counted from 0; reads
/// are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault. Operations are only counted.
    None,
    /// The operation `before` and all later operations do not happen, as if the process died before this operation.
    Stop {
        /// The first operation that does not happen.
        before: u64,
    },
    /// The operation `at` and all later operations do not happen. If operation `at` is a write, the first half of its
    /// bytes is written.
    Tear {
        /// The operation that happens only halfway.
        at: u64,
    },
    /// From the operation `from` on, every operation that takes space fails. A write fails after the first half of
    /// its bytes. Removing still works.
    Full {
        /// The first operation that fails.
        from: u64,
    },
}

/// A memory store with a fault. [`MemoryStore::crash`] gives the data that survives.
#[derive(Clone)]
pub struct FaultyStore {
    inner: MemoryStore,
    fault: Fault,
    operations: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
    listed: Arc<AtomicU64>,
    /// A path whose reads fail, and how many reads will fail.
    unreadable: Option<(PathBuf, Arc<AtomicUsize>)>,
}

/// Whether an operation needs space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    TakesSpace,
    TakesNone,
}

impl FaultyStore {
    /// Wraps `inner` with a fault.
    pub fn new(inner: MemoryStore, fault: Fault) -> Self {
        let (operations, refused, opened, listed) = Default::default();
        Self { inner, fault, operations, refused, opened, listed, unreadable: None }
    }

    /// Lets the next `failures` reads of a file or directory fail with an I/O error (`EIO`).
    pub fn with_failing_reads(mut self, path: impl Into<PathBuf>, failures: usize) -> Self {
        self.unreadable = Some((path.into(), Arc::new(AtomicUsize::new(failures))));
        self
    }

    /// Fails if [`Self::with_failing_reads`] asked for a failure of this read.
    fn read(&self, path: &Path) -> Result<(), StoreError> {
        let Some((_, failures)) = self.unreadable.as_ref().filter(|(unreadable, _)| unreadable == path) else {
            return Ok(());
        };
        let take = |left: usize| left.checked_sub(1);
        match failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => {
                let source = io::Error::from_raw_os_error(5);
                Err(StoreError::Io { path: path.into(), what: "reading", source })
            }
            Err(_) => Ok(()),
        }
    }

    /// Number of operations that were begun so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Number of operations that failed, including writes of which half of the bytes were written.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of files that were opened for reading or examined, whether they exist or not.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Total number of names in all directory listings.
    pub fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// The wrapped store.
    pub fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn dead(&self) -> bool {
        let now = self.operations();
        matches!(self.fault, Fault::Stop { before: n } | Fault::Tear { at: n } if now > n)
    }

    /// Counts an operation. Returns `Err((error, halfway))` if the operation fails. If `halfway` is true, half of its
    /// bytes are written.
    fn count(&self, kind: Kind) -> Result<(), (io::Error, bool)> {
        let now = self.operations.fetch_add(1, Ordering::Relaxed);
        let done = match self.fault {
            Fault::Stop { before } if now >= before => Err((io::Error::other("the process died"), false)),
            Fault::Tear { at } if now >= at => Err((io::Error::other("the process died"), now == at)),
            Fault::Full { from } if now >= from && kind == Kind::TakesSpace => {
                Err((io::ErrorKind::StorageFull.into(), true))
            }
            _ => Ok(()),
        };
        self.refused.fetch_add(u64::from(done.is_err()), Ordering::Relaxed);
        done
    }

    fn step(&self, kind: Kind, path: &Path, what: &'static str) -> Result<(), StoreError> {
        self.count(kind).map_err(|(source, _)| StoreError::Io { path: path.into(), what, source })
    }
}

impl Store for FaultyStore {
    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError> {
        self.step(Kind::TakesSpace, dir, "creating the directory")?;
        self.inner.create_dir(dir)
    }
    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
        self.step(Kind::TakesSpace, dir, "creating the file")?;
        let temp = self.inner.create_temp(dir, name)?;
        Ok(Box::new(FaultyTemp { store: self.clone(), temp: Some(temp) }))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.step(Kind::TakesNone, to, "renaming into place")?;
        self.inner.rename(from, to)
    }
    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError> {
        self.step(Kind::TakesNone, to, "renaming to a free name")?;
        self.inner.rename_new(from, to)
    }
    fn age(&self, path: &Path) -> Result<Duration, StoreError> {
        self.inner.age(path)
    }
    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.step(Kind::TakesNone, dir, "syncing the directory")?;
        self.inner.sync_dir(dir)
    }
    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.read(path)?;
        self.inner.open(path)
    }
    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.read(path)?;
        self.inner.stat(path)
    }
    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError> {
        self.read(dir)?;
        let entries = self.inner.list_dir(dir)?;
        self.listed.fetch_add(entries.len() as u64, Ordering::Relaxed);
        Ok(entries)
    }
    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.step(Kind::TakesNone, path, "removing")?;
        self.inner.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.step(Kind::TakesNone, dir, "removing the directory")?;
        self.inner.remove_dir(dir)
    }

    fn is_held(&self, path: &Path) -> bool {
        self.inner.is_held(path)
    }
}

struct FaultyTemp {
    store: FaultyStore,
    /// `None` only while the value is dropped.
    temp: Option<Box<dyn TempFile>>,
}

impl FaultyTemp {
    fn temp(&mut self) -> &mut dyn TempFile {
        self.temp.as_deref_mut().expect("taken only by drop")
    }
}

impl TempFile for FaultyTemp {
    fn path(&self) -> &Path {
        self.temp.as_deref().expect("taken only by drop").path()
    }
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self.store.count(Kind::TakesSpace) {
            Ok(()) => self.temp().append(bytes),
            Err((source, halfway)) => {
                if halfway {
                    self.temp().append(&bytes[..bytes.len() / 2])?;
                }
                Err(StoreError::Io { path: self.path().into(), what: "writing", source })
            }
        }
    }
    fn sync(&mut self) -> Result<(), StoreError> {
        match self.store.count(Kind::TakesSpace) {
            Ok(()) => self.temp().sync(),
            Err((source, _)) => Err(StoreError::Io { path: self.path().into(), what: "syncing", source }),
        }
    }
}

impl Drop for FaultyTemp {
    fn drop(&mut self) {
        let temp = self.temp.take();
        if self.store.dead() {
            std::mem::forget(temp); // a dead process does not remove its file
        }
    }
}
