//! Moves files aside, to a directory `.mcr-aside-N` below the target directory.

use super::RestoreError;
use super::directories::{directory, failed};
use crate::source::lock as locked;
use mcrengine::ids::FilePath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::fstatat;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The beginning of the names of these directories.
pub(super) const ASIDE_PREFIX: &str = ".mcr-aside-";
/// Maximum number of directories `.mcr-aside-N` in one target directory.
const ASIDE_MAX: u32 = 10_000;

/// Creates the first directory `.mcr-aside-N` whose name is free. `moves`: the files that will be moved to this
/// directory.
///
/// A file cannot be renamed to another file system. Therefore a file below a link or a mount point `out` that leads to
/// another file system is moved to `out/.mcr-aside-N`, and `.mcr-aside-N/out` becomes a link to that directory.
pub(super) fn make_aside(to: &Path, moves: &[FilePath]) -> Result<String, RestoreError> {
    let tops: BTreeSet<PathBuf> = moves.iter().filter_map(|path| elsewhere(to, path)).collect();
    for n in 1..=ASIDE_MAX {
        let name = format!("{ASIDE_PREFIX}{n}");
        if tops.iter().any(|top| to.join(top).join(&name).symlink_metadata().is_ok()) {
            continue;
        }
        match std::fs::create_dir(to.join(&name)) {
            Ok(()) => {
                tops.iter().try_for_each(|top| make_elsewhere(to, top, &name))?;
                return Ok(name);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&to.join(name), "creating it", error)),
        }
    }
    Err(failed(to, "moving files aside: there are 10000 .mcr-aside-N; remove some", io::ErrorKind::AlreadyExists))
}

/// If a file is on another file system than `to`: the uppermost directory above the file on that file system, as a path
/// below `to`.
fn elsewhere(to: &Path, path: &FilePath) -> Option<PathBuf> {
    let device = |dir: &Path| Some(std::fs::metadata(to.join(dir)).ok()?.dev());
    let mut above = path.as_path().ancestors().skip(1).skip_while(|dir| device(dir).is_none());
    let mut top = above.next()?;
    let of_file = device(top);
    for dir in above.take_while(|dir| device(dir) == of_file) {
        top = dir;
    }
    (!top.as_os_str().is_empty()).then(|| top.to_owned())
}

/// Creates the directory `name` in `top`, which is on another file system than `to`, and a link that leads to it.
fn make_elsewhere(to: &Path, top: &Path, name: &str) -> Result<(), RestoreError> {
    let (made, link) = (to.join(top).join(name), to.join(name).join(top));
    let up: PathBuf = top.components().map(|_| "..").collect();
    std::fs::create_dir(&made).map_err(|e| failed(&made, "creating it", e))?;
    let above = link.parent().map_or(Ok(()), std::fs::create_dir_all);
    above
        .and_then(|()| std::os::unix::fs::symlink(up.join(top).join(name), &link))
        .map_err(|e| failed(&link, "creating it", e))
}

/// Removes what [`make_aside`] made for a file on another file system, if it is empty.
pub(super) fn remove_elsewhere(to: &Path, name: &str, path: &FilePath) {
    let Some(top) = elsewhere(to, path) else { return };
    if std::fs::remove_dir(to.join(&top).join(name)).is_ok() {
        let _ = std::fs::remove_file(to.join(name).join(&top));
        if let Ok(top) = FilePath::new(top.as_os_str().as_bytes()) {
            remove_empty(&to.join(name), &top);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_on_another_file_system_is_removed_again() {
        let to = tempfile::tempdir().expect("a directory");
        let device = |dir: &Path| dir.metadata().map(|about| about.dev());
        let shared = Path::new("/dev/shm");
        if device(shared).is_ok_and(|shared| Some(shared) == device(to.path()).ok()) || !shared.is_dir() {
            eprintln!("SKIPPED: this machine has no second file system in /dev/shm");
            return;
        }
        let other = tempfile::tempdir_in(shared).expect("a directory");
        std::fs::create_dir_all(other.path().join("step")).expect("made");
        std::fs::write(other.path().join("step/file"), "bytes").expect("written");
        std::fs::create_dir(to.path().join("a")).expect("made");
        std::os::unix::fs::symlink(other.path(), to.path().join("a/out")).expect("linked");
        let path = FilePath::new(&b"a/out/step/file"[..]).expect("valid");
        let name = make_aside(to.path(), std::slice::from_ref(&path)).expect("made");
        let aside = to.path().join(&name);
        move_file(to.path(), &aside, &path).expect("moved");
        assert!(other.path().join(&name).join("step/file").exists() && !other.path().join("step/file").exists());
        assert_eq!(std::fs::read(aside.join(path.as_path())).expect("there"), b"bytes");
        move_file(&aside, to.path(), &path).expect("moved back");
        remove_empty(&aside, &path);
        remove_elsewhere(to.path(), &name, &path);
        assert!(other.path().join("step/file").exists() && !other.path().join(&name).exists());
        assert_eq!(std::fs::read_dir(&aside).expect("there").count(), 0);
    }
}
