//! The directory that files are restored into, and the temporary files in it, which hold few descriptors together.
//!
//! A checkpoint may have more files than the process may open. So a temporary file is known by its name; its descriptor is
//! opened when it is needed, and the one opened longest ago is closed for it. Directories are opened only for a moment.
//! What was made on the way is removed again if nothing was published.

use super::{RestoreError, leftovers};
use crate::fingerprint::Fingerprint;
use crate::source::{Descriptors, Slot, lock};
use mcrengine::ids::{FilePath, NameError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat, stat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The most descriptors that restored files hold, where the process may have very many.
const DESCRIPTORS_MAX: usize = 256;

/// An eighth of the descriptors that this process may have: for restored files, and for threads that open more for a
/// moment. Containers, connections and the threads' own take the rest.
pub fn descriptors_share() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(limit / 8).unwrap_or(DESCRIPTORS_MAX).clamp(4, DESCRIPTORS_MAX)
}

/// A directory that files are restored into. Dropped before [`Target::keep`], it removes the directories that were made
/// for them and are empty.
#[derive(Debug)]
pub struct Target {
    to: PathBuf,
    descriptors: Arc<Descriptors>,
    /// Directories that were not there before, in the order in which they were made.
    made: Mutex<Vec<PathBuf>>,
}

impl Target {
    /// Makes nothing yet.
    pub fn new(to: &Path) -> Arc<Self> {
        Self::with_descriptors(to, descriptors_share())
    }

    /// The same, with so many descriptors at most for all files.
    pub fn with_descriptors(to: &Path, descriptors: usize) -> Arc<Self> {
        let to = if to.as_os_str().is_empty() { Path::new(".") } else { to };
        let descriptors = Descriptors::new(descriptors);
        Arc::new(Self { to: to.to_owned(), descriptors, made: Mutex::default() })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.to
    }

    /// Makes the directory, and those above it.
    pub fn make(&self) -> Result<(), RestoreError> {
        let mut missing: Vec<&Path> = self.to.ancestors().take_while(|dir| !is_there(dir)).collect();
        while let Some(dir) = missing.pop() {
            match std::fs::create_dir(dir) {
                Ok(()) => lock(&self.made).push(dir.to_owned()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {} // another restart made it meanwhile
                Err(e) => return Err(failed(dir, "creating it", e)),
            }
        }
        Ok(())
    }

    /// Makes directories of a checkpoint.
    pub(super) fn make_directories<'a>(&self, paths: impl Iterator<Item = &'a FilePath>) -> Result<(), RestoreError> {
        for path in paths {
            let inner = inner_of(path).map_err(|_| {
                failed(&self.to.join(path.as_path()), "making it: its path is too long", io::ErrorKind::InvalidInput)
            })?;
            self.make_directory(&inner)?;
        }
        Ok(())
    }

    /// Gives the directories that this restart made their modes: of the entry for it, or of the nearest one above.
    pub(super) fn set_modes(&self, directories: &BTreeMap<FilePath, u32>) -> Result<(), RestoreError> {
        let mode_of = |dir: &Path| {
            let below = dir.strip_prefix(&self.to).ok()?;
            let above = below.ancestors().filter_map(|dir| FilePath::new(dir.as_os_str().as_bytes()).ok());
            above.into_iter().find_map(|dir| directories.get(&dir).copied())
        };
        // The innermost first: one that its owner may not enter hides what is in it.
        for dir in lock(&self.made).iter().rev() {
            let Some(mode) = mode_of(dir) else { continue };
            let set = || fchmod(File::open(dir)?, Mode::from_bits_truncate(mode & 0o3777)).map_err(io::Error::from);
            set().map_err(|e| failed(dir, "setting its mode", e))?;
        }
        Ok(())
    }

    /// What was made stays.
    pub fn keep(&self) {
        lock(&self.made).clear();
    }

    /// The directory that holds `path`; made where it is missing.
    fn make_directory(&self, path: &FilePath) -> Result<OwnedFd, RestoreError> {
        /// Another restart that fails may remove a directory just before we use it.
        const TRIES: u32 = 8;
        let mut tries = 0;
        loop {
            let result = self.make().and_then(|()| directory(&self.to, path, Some(&self.made)));
            tries += 1;
            match result {
                Err(RestoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                result => return result,
            }
        }
    }

    /// Once more without the descriptors that are held, if there are none left.
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
        // The innermost first. One that is not empty is another's by now.
        for dir in lock(&self.made).drain(..).rev() {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn is_there(dir: &Path) -> bool {
    dir.as_os_str().is_empty() || dir.symlink_metadata().is_ok()
}

pub(super) fn failed(path: &Path, what: &'static str, source: impl Into<io::Error>) -> RestoreError {
    RestoreError::Io { path: path.to_owned(), what, source: source.into() }
}

/// A temporary file beside a final name. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Temporary {
    target: Arc<Target>,
    /// The final name.
    path: FilePath,
    name: CString,
    slot: Arc<Slot>,
    /// Whether there is something under the temporary name.
    is_there: bool,
}

impl Temporary {
    /// Makes it, and the directories on the way.
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
                // One of a process that had our number and died.
                Err(Errno::EEXIST) => {
                    unlinkat(&directory, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
                        .map_err(|e| failed(&at, "removing an old temporary file", e))?;
                    create()
                }
                other => other,
            };
            file.map_err(|e| failed(&at, "creating a temporary file beside it", e))
        })?;
        let slot = Arc::new(Mutex::new(Some(Arc::new(File::from(file)))));
        target.descriptors.add(&slot);
        Ok(Self { target: Arc::clone(target), path: path.clone(), name, slot, is_there: true })
    }

    /// How it becomes the file under the final name, for the journal.
    pub(super) fn name(&self) -> &CString {
        &self.name
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The descriptor, opened if need be.
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

    /// Puts something else under the temporary name: what `make` makes in this directory under this name.
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

    /// The text of the link that stands under the temporary name.
    pub(super) fn link_text(&self) -> Option<OsString> {
        let directory = directory(&self.target.to, &self.path, None).ok()?;
        readlinkat(&directory, self.name.as_c_str()).ok()
    }

    /// Makes the temporary name a second one of a file that stands beside `path` under `name`. `None`: that cannot be done, and
    /// nothing has changed.
    pub(super) fn link_to(&self, target: &Target, path: &FilePath, name: &CString) -> Option<Fingerprint> {
        let (from, into) = (directory(&target.to, path, None).ok()?, directory(&target.to, &self.path, None).ok()?);
        // First under a third name, so that the copy is there until it is not needed.
        let third = leftovers::temporary_name("tmp");
        linkat(&from, name.as_c_str(), &into, third.as_c_str(), AtFlags::empty()).ok()?;
        if let Err(error) = renameat(&into, third.as_c_str(), &into, self.name.as_c_str()) {
            tracing::debug!(path = %self.path, %error, "cannot be linked; copied");
            let _ = unlinkat(&into, third.as_c_str(), UnlinkatFlags::NoRemoveDir);
            return None;
        }
        let stat = fstatat(&into, self.name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        Some(super::publish::print_of(&stat))
    }

    /// Closes the descriptor.
    pub(super) fn close(&self) {
        lock(&self.slot).take();
    }

    pub(super) fn failed(&self, what: &'static str, source: io::Error) -> RestoreError {
        failed(&self.target.to.join(self.path.as_path()), what, source)
    }

    /// Gives it the final name. Whatever stands there is replaced.
    pub(super) fn rename(mut self) -> Result<(), RestoreError> {
        let name = CString::new(self.path.name()).expect("a path holds no NUL");
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
        // Nobody is left to hear of a failure; the name says whose leftover it is.
        self.close();
        if self.is_there
            && let Ok(directory) = self.target.with_room(|| directory(&self.target.to, &self.path, None))
        {
            let _ = unlinkat(&directory, self.name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A path in a directory.
pub(super) fn inner_of(directory: &FilePath) -> Result<FilePath, NameError> {
    FilePath::new([directory.as_bytes(), b"/x"].concat())
}

/// The directory that holds `path` below `to`, reached through directories, and links to directories of the owner of `to`.
/// Where one is missing it is made and noted in `made`, if that is given.
pub(super) fn directory(
    to: &Path,
    path: &FilePath,
    made: Option<&Mutex<Vec<PathBuf>>>,
) -> Result<OwnedFd, RestoreError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut fd = openat(AT_FDCWD, to, flags, Mode::empty()).map_err(|e| failed(to, "opening it", e))?;
    let mut so_far = to.to_owned();
    let mut components: Vec<&[u8]> = path.as_bytes().split(|&b| b == b'/').collect();
    components.pop();
    for component in components {
        let name = OsStr::from_bytes(component);
        so_far.push(name);
        if let Some(made) = made {
            match mkdirat(&fd, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) => lock(made).push(so_far.clone()),
                Err(Errno::EEXIST) => {}
                Err(e) => return Err(failed(&so_far, "creating it", e)),
            }
        }
        fd = match openat(&fd, name, flags | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(inner) => inner,
            Err(Errno::ELOOP | Errno::ENOTDIR) => match through_link(to, &fd, name) {
                Some(inner) => inner,
                None => return Err(RestoreError::NotADirectory { path: so_far }),
            },
            Err(e) => return Err(failed(&so_far, "opening it", e)),
        };
    }
    Ok(fd)
}

/// The directory that a link leads to, if the link, the directory and `to` have one owner.
fn through_link(to: &Path, holder: &OwnedFd, name: &OsStr) -> Option<OwnedFd> {
    let owner = stat(to).ok()?.st_uid;
    let link = fstatat(holder, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let inner = openat(holder, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    (link.st_uid == owner && fstat(&inner).ok()?.st_uid == owner).then_some(inner)
}

/// Whether a link that is about to be made would lead out of `to`, to a directory that later restarts would write through.
pub(super) fn would_lead_out(to: &Path, path: &FilePath, text: &OsStr) -> bool {
    let link = to.join(path.as_path());
    let end = link.parent().unwrap_or(to).join(text);
    let (Ok(end), Ok(to_real), Ok(to_stat)) = (end.canonicalize(), to.canonicalize(), stat(to)) else { return false };
    !end.starts_with(to_real) && stat(&end).is_ok_and(|is| is_directory(&is) && is.st_uid == to_stat.st_uid)
}

fn is_directory(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}
