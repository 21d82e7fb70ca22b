//! The directory into which files are restored, and the temporary files in this directory, which share a few
//! descriptors.
//!
//! A checkpoint may have more files than a process may open. Therefore a temporary file is identified by its name,
//! and its descriptor is opened when it is needed. If too many descriptors are open, the descriptor that was opened
//! first is closed. Directories are opened only for a short time. If no file is published, the directories that the
//! restart created are removed.

use super::aside::{make_aside, move_file, remove_empty};
use super::directories::{directory, failed, inner_of, link_above};
use super::lock::{LOCK_WAIT, lock as lock_directory};
use super::{RestoreError, leftovers};
use crate::fingerprint::Fingerprint;
use crate::source::{Descriptors, Slot, lock};
use mcrengine::ids::FilePath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{FileStat, Mode, fchmod, fstatat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Maximum number of descriptors for restored files, even if the process may open more files.
const DESCRIPTORS_MAX: usize = 256;

/// Number of descriptors for restored files: one eighth of the process's limit. The other descriptors are for
/// containers, connections and other uses.
pub fn descriptors_share() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(limit / 8).unwrap_or(DESCRIPTORS_MAX).clamp(4, DESCRIPTORS_MAX)
}

/// A directory into which files are restored. If this value is dropped before [`Target::keep`] was called, the empty
/// directories that the restart created are removed.
#[derive(Debug)]
pub struct Target {
    to: PathBuf,
    descriptors: Arc<Descriptors>,
    /// Directories that this restart created, in the order of their creation.
    made: Mutex<Vec<PathBuf>>,
    /// Whether a link in the place of a directory is moved aside. If not, links to directories of the same owner are
    /// followed.
    moves_links: bool,
    moved: Mutex<Moved>,
}

/// Links that were moved aside because they had the name of a directory of the checkpoint.
#[derive(Debug, Default)]
struct Moved {
    /// The directory `.mcr-aside-N` below the target directory. `None` if no link was moved.
    aside: Option<String>,
    links: Vec<FilePath>,
}

impl Target {
    /// Makes the description of a directory. Does not create the directory.
    pub fn new(to: &Path) -> Arc<Self> {
        Self::with_descriptors(to, descriptors_share())
    }

    /// Makes a target like [`Target::new`], for a copy. A copy writes nothing outside its directory. Therefore a link
    /// in the place of a directory of the checkpoint is moved to `.mcr-aside-N`. `to` itself may be a link.
    pub fn for_copy(to: &Path) -> Arc<Self> {
        Self::with(to, descriptors_share(), true)
    }

    /// Makes a target like [`Target::new`], with a given maximum number of descriptors for all files.
    pub fn with_descriptors(to: &Path, descriptors: usize) -> Arc<Self> {
        Self::with(to, descriptors, false)
    }

    fn with(to: &Path, descriptors: usize, moves_links: bool) -> Arc<Self> {
        let to = if to.as_os_str().is_empty() { Path::new(".") } else { to };
        let descriptors = Descriptors::new(descriptors);
        Arc::new(Self { to: to.to_owned(), descriptors, made: Mutex::default(), moves_links, moved: Mutex::default() })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.to
    }

    /// Creates the directory and its missing parents.
    pub fn make(&self) -> Result<(), RestoreError> {
        let mut missing: Vec<&Path> = self.to.ancestors().take_while(|dir| !is_there(dir)).collect();
        while let Some(dir) = missing.pop() {
            match std::fs::create_dir(dir) {
                Ok(()) => lock(&self.made).push(dir.to_owned()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {} // another restart has created it
                Err(e) => return Err(failed(dir, "creating it", e)),
            }
        }
        Ok(())
    }

    /// Creates directories of a checkpoint.
    pub(super) fn make_directories<'a>(&self, paths: impl Iterator<Item = &'a FilePath>) -> Result<(), RestoreError> {
        for path in paths {
            let inner = inner_of(path).map_err(|_| {
                failed(&self.to.join(path.as_path()), "creating it: its path is too long", io::ErrorKind::InvalidInput)
            })?;
            self.make_directory(&inner)?;
        }
        Ok(())
    }

    /// Sets the modes of the directories that this restart created. A directory gets its recorded mode, or the
    /// recorded mode of the nearest directory above it.
    pub(super) fn set_modes(&self, directories: &BTreeMap<FilePath, u32>) -> Result<(), RestoreError> {
        let mode_of = |dir: &Path| {
            let below = dir.strip_prefix(&self.to).ok()?;
            let above = below.ancestors().filter_map(|dir| FilePath::new(dir.as_os_str().as_bytes()).ok());
            above.into_iter().find_map(|dir| directories.get(&dir).copied())
        };
        // The modes of inner directories are set first. The mode of an outer directory may forbid that this process
        // opens the directories below.
        for dir in lock(&self.made).iter().rev() {
            let Some(mode) = mode_of(dir) else { continue };
            let set = || fchmod(File::open(dir)?, Mode::from_bits_truncate(mode & 0o3777)).map_err(io::Error::from);
            set().map_err(|e| failed(dir, "setting its mode", e))?;
        }
        Ok(())
    }

    /// Keeps the created directories and the moved links where they are, so that dropping this value does not undo
    /// them.
    pub fn keep(&self) {
        lock(&self.made).clear();
        *lock(&self.moved) = Moved::default();
    }

    /// The directory below the target directory to which links were moved, and the links. `None` if no link was moved.
    pub(super) fn moved_links(&self) -> Option<(String, Vec<FilePath>)> {
        let moved = lock(&self.moved);
        moved.aside.clone().map(|name| (name, moved.links.clone()))
    }

    /// If this is the target of a copy, moves aside the link in the place of a directory above `path`.
    fn move_link(&self, path: &FilePath) -> Result<(), RestoreError> {
        if !self.moves_links || link_above(&self.to, path).is_none() {
            return Ok(());
        }
        let mut moved = lock(&self.moved);
        let _lock = lock_directory(&self.to, LOCK_WAIT)?;
        // Another thread or another restart may have moved the link before the locks were taken.
        let Some(link) = link_above(&self.to, path) else { return Ok(()) };
        let name = match &moved.aside {
            Some(name) => name.clone(),
            None => make_aside(&self.to, &[])?,
        };
        moved.aside = Some(name.clone());
        move_file(&self.to, &self.to.join(name), &link)?;
        moved.links.push(link);
        Ok(())
    }

    /// Opens the directory that contains `path`. Creates this directory if it is missing.
    fn make_directory(&self, path: &FilePath) -> Result<OwnedFd, RestoreError> {
        /// Maximum number of attempts. Another restart that fails may remove a directory just before this restart
        /// opens the directory.
        const TRIES: u32 = 8;
        let mut tries = 0;
        loop {
            let result = self.make().and_then(|()| self.move_link(path));
            let result = result.and_then(|()| directory(&self.to, path, Some(&self.made)));
            tries += 1;
            match result {
                Err(RestoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                result => return result,
            }
        }
    }

    /// Runs `open`. If the process has no free descriptor, closes the descriptors of restored files and runs `open`
    /// again.
    fn with_room<T>(&self, mut open: impl FnMut() -> Result<T, RestoreError>) -> Result<T, RestoreError> {
        match open() {
            Err(RestoreError::Io { source, .. }) if source.raw_os_error() == Some(Errno::EMFILE as i32) => {
                self.descriptors.close_all();
                open()
            }
            result => result,
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The innermost directory is removed first. If a directory is not empty, another program uses it, and it
        // stays.
        for dir in lock(&self.made).drain(..).rev() {
            let _ = std::fs::remove_dir(dir);
        }
        // A restart that was killed does not come here. Its links stay in `.mcr-aside-N`.
        let Moved { aside, links } = std::mem::take(&mut *lock(&self.moved));
        let Some(aside) = aside.map(|name| self.to.join(name)) else { return };
        for link in links.iter().rev() {
            let _ = move_file(&aside, &self.to, link);
            remove_empty(&aside, link);
        }
        let _ = std::fs::remove_dir(&aside);
    }
}

fn is_there(dir: &Path) -> bool {
    dir.as_os_str().is_empty() || dir.symlink_metadata().is_ok()
}

/// A temporary file in the directory of its final name. Dropping this value removes the file.
#[derive(Debug)]
pub(super) struct Temporary {
    target: Arc<Target>,
    /// The final name.
    path: FilePath,
    name: CString,
    slot: Arc<Slot>,
    /// Whether the file exists under its temporary name.
    is_there: bool,
}

impl Temporary {
    /// Creates the file, and the missing directories above it.
    pub(super) fn create(target: &Arc<Target>, path: &FilePath, suffix: &str) -> Result<Self, RestoreError> {
        let name = leftovers::temporary_name(suffix);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let owner_only = Mode::S_IRUSR | Mode::S_IWUSR;
        let at = target.to.join(path.as_path());
        let file = target.with_room(|| {
            let directory = target.make_directory(path)?;
            leftovers::remove_once(&directory);
            let create = || openat(&directory, name.as_c_str(), flags, owner_only);
            let file = match create() {
                // An ended process with the same number may have left this file.
                Err(Errno::EEXIST) => {
                    unlinkat(&directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
                        .map_err(|e| failed(&at, "removing an old temporary file", e))?;
                    create()
                }
                other => other,
            };
            file.map_err(|e| failed(&at, "creating a temporary file in its directory", e))
        })?;
        let slot = Arc::new(Mutex::new(Some(Arc::new(File::from(file)))));
        target.descriptors.add(&slot);
        Ok(Self { target: Arc::clone(target), path: path.clone(), name, slot, is_there: true })
    }

    /// The temporary name, for the journal.
    pub(super) fn name(&self) -> &CString {
        &self.name
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The descriptor of the file. Opens the file if necessary.
    pub(super) fn file(&self) -> Result<Arc<File>, RestoreError> {
        if let Some(file) = &*lock(&self.slot) {
            return Ok(Arc::clone(file));
        }
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = self.target.with_room(|| {
            let directory = directory(&self.target.to, &self.path, None)?;
            openat(&directory, self.name.as_c_str(), flags, Mode::empty())
                .map_err(|e| self.failed("opening its temporary file again", e.into()))
        })?;
        let file = Arc::new(File::from(file));
        *lock(&self.slot) = Some(Arc::clone(&file));
        self.target.descriptors.add(&self.slot);
        Ok(file)
    }

    /// Replaces the temporary file by a link. `make` creates the link under the same name in the given directory.
    pub(super) fn replace(
        &self,
        what: &'static str,
        make: impl Fn(&OwnedFd, &CString) -> nix::Result<()>,
    ) -> Result<FileStat, RestoreError> {
        self.close();
        let directory = self.target.with_room(|| directory(&self.target.to, &self.path, None))?;
        let made = unlinkat(&directory, self.name.as_c_str(), UnlinkatFlags::NoRemoveDir)
            .and_then(|()| make(&directory, &self.name))
            .and_then(|()| fstatat(&directory, self.name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW));
        made.map_err(|e| self.failed(what, e.into()))
    }

    /// The target of the link under the temporary name.
    pub(super) fn link_text(&self) -> Option<OsString> {
        let directory = directory(&self.target.to, &self.path, None).ok()?;
        readlinkat(&directory, self.name.as_c_str()).ok()
    }

    /// Replaces the temporary file by a hard link to the file `name` in the directory of `path`. `None` if no hard
    /// link can be made. In this case, the temporary file is unchanged.
    pub(super) fn link_to(&self, target: &Target, path: &FilePath, name: &CString) -> Option<Fingerprint> {
        let (from, into) = (directory(&target.to, path, None).ok()?, directory(&target.to, &self.path, None).ok()?);
        // The link is created under a third name first, so that the temporary file exists until the link exists.
        let third = leftovers::temporary_name("tmp");
        linkat(&from, name.as_c_str(), &into, third.as_c_str(), AtFlags::empty()).ok()?;
        let stat = |name: &CString| fstatat(&into, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let replaced = stat(&third).and_then(|before| {
            renameat(&into, third.as_c_str(), &into, self.name.as_c_str())?;
            Ok(stat(&self.name).unwrap_or(before))
        });
        match replaced {
            Ok(stat) => Some(Fingerprint::of_stat(&stat)),
            Err(error) => {
                tracing::debug!(path = %self.path, %error, "the hard link cannot be created; the file is a copy");
                let _ = unlinkat(&into, third.as_c_str(), UnlinkatFlags::NoRemoveDir);
                None
            }
        }
    }

    /// Closes the descriptor.
    pub(super) fn close(&self) {
        lock(&self.slot).take();
    }

    pub(super) fn failed(&self, what: &'static str, source: io::Error) -> RestoreError {
        failed(&self.target.to.join(self.path.as_path()), what, source)
    }

    /// Renames the file to its final name. An existing file under that name is replaced.
    pub(super) fn rename(mut self) -> Result<(), RestoreError> {
        let name = CString::new(self.path.name()).expect("a path contains no NUL");
        self.target.with_room(|| {
            let directory = directory(&self.target.to, &self.path, None)?;
            renameat(&directory, self.name.as_c_str(), &directory, name.as_c_str())
                .map_err(|e| self.failed("renaming it to its final name", e.into()))
        })?;
        self.is_there = false;
        self.target.keep();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A failure cannot be reported here. The temporary name shows which process created the file, so a later
        // restart can remove it.
        self.close();
        if self.is_there
            && let Ok(directory) = self.target.with_room(|| directory(&self.target.to, &self.path, None))
        {
            let _ = unlinkat(&directory, self.name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}
