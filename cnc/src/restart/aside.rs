//! Moves files aside, to a directory `.mcr-aside-N` below the target directory.

use super::RestoreError;
use super::directories::{directory, failed};
use crate::source::lock as locked;
use mcrengine::ids::FilePath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::fstatat;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

/// The beginning of the names of these directories.
pub(super) const ASIDE_PREFIX: &str = ".mcr-aside-";
/// Maximum number of directories `.mcr-aside-N` in one target directory.
const ASIDE_MAX: u32 = 10_000;

/// Creates the first directory `.mcr-aside-N` whose name is free.
pub(super) fn make_aside(to: &Path) -> Result<String, RestoreError> {
    for n in 1..=ASIDE_MAX {
        let name = format!("{ASIDE_PREFIX}{n}");
        match std::fs::create_dir(to.join(&name)) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&to.join(name), "creating it", error)),
        }
    }
    Err(failed(to, "moving files aside: there are 10000 .mcr-aside-N; remove some", io::ErrorKind::AlreadyExists))
}

/// Moves a file to another directory, keeping its relative path.
pub(super) fn move_file(from: &Path, to: &Path, path: &FilePath) -> Result<(), RestoreError> {
    let at = from.join(path.as_path());
    let made = Mutex::default();
    let (source, dest) = (directory(from, path, None)?, directory(to, path, Some(&made))?);
    let name = OsStr::from_bytes(path.name());
    if fstatat(&dest, name, AtFlags::AT_SYMLINK_NOFOLLOW) != Err(Errno::ENOENT) {
        return Err(RestoreError::Occupied { path: to.join(path.as_path()) });
    }
    renameat(&source, name, &dest, name).map_err(|e| {
        locked(&made).iter().rev().for_each(|dir| drop(std::fs::remove_dir(dir)));
        failed(&at, "moving it aside", e)
    })
}

/// Removes the empty directories above a path, up to `to`.
pub(super) fn remove_empty(to: &Path, path: &FilePath) {
    let above = path.as_path().ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
    for dir in above {
        if std::fs::remove_dir(to.join(dir)).is_err() {
            return;
        }
    }
}
