//! A store in a directory of a POSIX file system: the parallel file system of a cluster, or a local disk.
//!
//! Directories get mode 0700 and files get mode 0600, so that no user can read another user's checkpoint.

use super::{Entry, Stat, Store, StoreError, StoredFile, TempFile};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// A store in a directory.
#[derive(Debug)]
pub struct PosixStore {
    root: PathBuf,
    /// Whether a file system was mounted at the root when the store was opened.
    is_mounted: bool,
    /// Device and inode of the root when the store was opened.
    identity: (u64, u64),
    /// Directories above the root that must be synced, because directories were created on the path to the root.
    unsynced: Mutex<Vec<PathBuf>>,
}

impl PosixStore {
    /// Opens a store in an existing directory.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        match std::fs::metadata(&root) {
            Ok(found) if found.is_dir() => {
                let (is_mounted, identity) = (is_mount_point(&root) == Some(true), identity_of(&found));
                Ok(Self { is_mounted, identity, root, unsynced: Mutex::default() })
            }
            Ok(_) => Err(failed(&root, "opening the store", io::ErrorKind::NotADirectory.into())),
            Err(source) => Err(failed(&root, "opening the store", source)),
        }
    }

    /// Opens a store in a directory. Creates the directory and its missing parents. All created directories are
    /// durable after the first [`Store::sync_dir`] of the root.
    pub fn create(root: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = root.into();
        // The parent of the root is synced even if the root existed: the process that created the root may have died
        // before it synced the parent.
        let is_made = |dir: &Path| dir == root || !dir.exists();
        let made = root.ancestors().take_while(|dir| is_made(dir)).filter_map(Path::parent);
        let here = |dir: &Path| if dir.as_os_str().is_empty() { ".".into() } else { dir.into() };
        let mut unsynced: Vec<PathBuf> = made.map(here).collect();
        unsynced.reverse(); // puts the topmost directory first
        (DirBuilder::new().recursive(true).mode(0o700).create(&root))
            .map_err(|source| failed(&root, "creating the store", source))?;
        Ok(Self { unsynced: Mutex::new(unsynced), ..Self::open(root)? })
    }

    /// The path of a file or directory of the store. Fails if the store's file system was mounted and is not mounted
    /// now. Without this check, checkpoints would be written to the local disk below the mount point, and no program
    /// would find them.
    fn path(&self, below: &Path) -> Result<PathBuf, StoreError> {
        if self.is_mounted && is_mount_point(&self.root) == Some(false) {
            let why = "the file system that was mounted here is not mounted any more; mount it again";
            return Err(failed(&self.root, "using the store", io::Error::new(io::ErrorKind::NotConnected, why)));
        }
        Ok(self.root.join(below))
    }

    /// Does the same as [`PosixStore::path`], for files and directories that are to be created. Fails also if another
    /// directory took the place of the root, for example an empty directory after the store was moved. Without this
    /// check, a daemon would save there, and after the store is back no program would find these checkpoints.
    fn path_to_create(&self, below: &Path) -> Result<PathBuf, StoreError> {
        let path = self.path(below)?;
        if let Ok(found) = std::fs::metadata(&self.root)
            && !self.is_same(&found)
        {
            let why = "another directory is in its place since mcr started; put the store back, or start mcr again to \
                       save to this directory";
            return Err(failed(&self.root, "using the store", io::Error::new(io::ErrorKind::NotConnected, why)));
        }
        Ok(path)
    }

    /// Whether the root is the directory that was opened. A file system may get another device number when it is
    /// mounted again, so the inode must be the same, and the directory must not be empty.
    fn is_same(&self, found: &Metadata) -> bool {
        let is_empty = || std::fs::read_dir(&self.root).is_ok_and(|mut entries| entries.next().is_none());
        identity_of(found) == self.identity || (found.ino() == self.identity.1 && !is_empty())
    }
}

fn identity_of(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Whether a directory is on another file system than the directory above it. `None` if one of the directories cannot
/// be examined.
fn is_mount_point(dir: &Path) -> Option<bool> {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    Some(device(dir)? != device(&dir.join(".."))?)
}

fn failed(path: &Path, what: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.into(), what, source }
}

/// Treats the removal of a file that does not exist as a success.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Store for PosixStore {
    fn root(&self) -> &Path {
        &self.root
    }

    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError> {
        let path = self.path_to_create(dir)?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
            Err(source) => Err(failed(&path, "creating the directory", source)),
        }
    }

    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
        const TRIES: u32 = 16;
        let mut tried = 0;
        loop {
            // The operating system seeds the random number, so two nodes do not choose the same name. `create_new`
            // fails if the name exists.
            let unique = RandomState::new().hash_one(tried);
            let path = dir.join(format!(".{name}.{unique:016x}"));
            let full = self.path_to_create(&path)?;
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&full) {
                Ok(file) => {
                    // The operating system releases the lock when the process ends. Another process may hold the lock
                    // for a moment to test whether the file is held, so the lock is tried several times. For file
                    // systems without locks, see `is_held`.
                    while tried < TRIES && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                        tried += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return Ok(Box::new(PosixTemp { file, path, full, written: 0 }));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < TRIES => tried += 1,
                Err(source) => return Err(failed(&full, "creating the file", source)),
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let (from, to) = (self.path(from)?, self.root.join(to));
        std::fs::rename(from, &to).map_err(|source| failed(&to, "renaming into place", source))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError> {
        let (from, to) = (self.path(from)?, self.root.join(to));
        let refuse = |source| failed(&to, "renaming to a free name", source);
        match std::fs::hard_link(&from, &to) {
            Ok(()) => gone(std::fs::remove_file(&from)).map(|()| true).map_err(refuse),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(refuse(error)),
            // Some file systems have no hard links. A file system without hard links and without `renameat2` cannot
            // be used as a store.
            Err(_) => match renameat2(AT_FDCWD, &from, AT_FDCWD, &to, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) => Ok(true),
                Err(Errno::EEXIST) => Ok(false),
                Err(errno) => Err(refuse(errno.into())),
            },
        }
    }

    fn age(&self, path: &Path) -> Result<Duration, StoreError> {
        let path = self.path(path)?;
        let age = || {
            let modified = std::fs::metadata(&path)?.modified()?;
            // A new file gets its time from the clock of the file system, which may differ from the clock of this
            // node.
            let name = format!(".clock.{:016x}", RandomState::new().hash_one(&path));
            let probe = path.with_file_name(name);
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe);
            let now = made.and_then(|file| file.metadata()?.modified());
            let _ = std::fs::remove_file(&probe);
            // If the store cannot create a file at present, use the clock of this node.
            let now = now.unwrap_or_else(|_| std::time::SystemTime::now());
            Ok(now.duration_since(modified).unwrap_or(Duration::ZERO))
        };
        age().map_err(|source| failed(&path, "reading its age", source))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        if dir.as_os_str().is_empty() {
            let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
            for above in unsynced.drain(..) {
                // A directory of another user may be unreadable. Such a directory is not synced.
                let _ = File::open(above).and_then(|dir| dir.sync_all());
            }
        }
        let path = self.path(dir)?;
        File::open(&path)
            .and_then(|dir| dir.sync_all())
            .map_err(|source| failed(&path, "syncing the directory", source))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        let path = self.path(path)?;
        let open = || {
            let file = File::open(&path)?;
            let found = file.metadata()?;
            match found.is_file() {
                true => Ok(PosixFile { len: found.len(), file }),
                false => Err(io::ErrorKind::IsADirectory.into()),
            }
        };
        open().map(|file| Box::new(file) as _).map_err(|source| failed(&path, "opening", source))
    }

    fn stat(&self, path: &Path) -> Result<Stat, StoreError> {
        let path = self.path(path)?;
        let found = std::fs::metadata(&path).map_err(|source| failed(&path, "looking at", source))?;
        let modified_unix_ms = found.modified().ok().and_then(|time| match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).ok(),
            Err(before) => i64::try_from(before.duration().as_millis()).ok().map(|ms| -ms),
        });
        Ok(Stat { bytes: found.len(), modified_unix_ms, is_dir: found.is_dir() })
    }

    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError> {
        let path = self.path(dir)?;
        let list = || {
            let mut entries = Vec::new();
            for entry in std::fs::read_dir(&path)? {
                let entry = entry?;
                if let Ok(name) = entry.file_name().into_string() {
                    entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
                }
            }
            entries.sort();
            Ok(entries)
        };
        list().map_err(|source| failed(&path, "listing", source))
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        let path = self.path(path)?;
        gone(std::fs::remove_file(&path)).map_err(|source| failed(&path, "removing", source))
    }

    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError> {
        let path = self.path(dir)?;
        gone(std::fs::remove_dir(&path)).map_err(|source| failed(&path, "removing the directory", source))
    }

    fn is_held(&self, path: &Path) -> bool {
        let locked = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        File::open(self.root.join(path)).is_ok_and(locked)
    }
}

struct PosixTemp {
    file: File,
    /// Path relative to the root.
    path: PathBuf,
    full: PathBuf,
    /// Number of bytes written so far.
    written: u64,
}

impl TempFile for PosixTemp {
    fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|source| failed(&self.full, "writing", source))?;
        begin_writing_out(&self.file, self.written, bytes.len());
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.file.sync_all().map_err(|source| failed(&self.full, "syncing", source))
    }
}

/// Asks the operating system to start writing `len` bytes to the disk, without waiting. The sync at the end then has
/// less work. On a system without this call, the sync does all the work.
fn begin_writing_out(file: &File, offset: u64, len: usize) {
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "no crate that we use has the call")]
    // SAFETY: `file` is borrowed for the whole call, so the descriptor stays open. The call takes no pointer.
    unsafe {
        use nix::libc::{SYNC_FILE_RANGE_WRITE, off64_t, sync_file_range};
        use std::os::fd::AsRawFd;
        sync_file_range(file.as_raw_fd(), offset as off64_t, len as off64_t, SYNC_FILE_RANGE_WRITE);
    }
}

impl Drop for PosixTemp {
    fn drop(&mut self) {
        // After a rename, no file has the temporary name, because no other process chooses the same name.
        let _ = std::fs::remove_file(&self.full);
    }
}

struct PosixFile {
    file: File,
    len: u64,
}

impl StoredFile for PosixFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_on_the_way_to_a_store_is_synced_from_the_top_with_its_root() {
        let temp = tempfile::tempdir().expect("a directory");
        let (above, root) = (temp.path().join("a"), temp.path().join("a/b"));
        let unsynced = |store: &PosixStore| store.unsynced.lock().expect("not poisoned").clone();
        let store = PosixStore::create(&root).expect("made");
        assert_eq!(unsynced(&store), [temp.path(), &above]);
        store.sync_dir(Path::new("")).expect("synced");
        assert!(unsynced(&store).is_empty());
        let again = PosixStore::create(&root).expect("there");
        assert_eq!(unsynced(&again), [above], "the process that created it may have died before the sync");
        assert!(unsynced(&PosixStore::open(&root).expect("there")).is_empty());
    }

    #[test]
    fn nothing_is_created_in_a_directory_that_took_the_place_of_the_store() {
        let temp = tempfile::tempdir().expect("a directory");
        let (root, away) = (temp.path().join("store"), temp.path().join("away"));
        let store = PosixStore::create(&root).expect("made");
        assert!(store.create_dir(Path::new("job")).expect("created"));
        std::fs::rename(&root, &away).expect("moved");
        std::fs::create_dir(&root).expect("made");
        let error = store.create_dir(Path::new("job")).expect_err("it is another directory");
        assert!(crate::error_chain::error_chain(&error).contains("another directory is in its place"), "{error:?}");
        assert!(store.create_temp(Path::new(""), "file").is_err());
        assert_eq!(std::fs::read_dir(&root).expect("lists").count(), 0);
        std::fs::remove_dir(&root).expect("removed");
        std::fs::rename(&away, &root).expect("moved back");
        store.create_temp(Path::new("job"), "file").expect("created");
    }
}
