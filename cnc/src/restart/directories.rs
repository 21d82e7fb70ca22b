//! Opens directories below the target directory of a restart, without following links to directories of other users.

use super::RestoreError;
use crate::source::lock;
use mcrengine::ids::{FilePath, NameError};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat, stat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The error if an operation on a path fails.
pub(super) fn failed(path: &Path, what: &'static str, source: impl Into<io::Error>) -> RestoreError {
    RestoreError::Io { path: path.to_owned(), what, source: source.into() }
}

/// A path within a directory. For this path, [`directory`] opens the directory itself.
pub(super) fn inner_of(directory: &FilePath) -> Result<FilePath, NameError> {
    FilePath::new([directory.as_bytes(), b"/x"].concat())
}

/// Opens the directory that contains `path` below `to`. Follows only real directories, and links to directories that
/// have the owner of `to`. If `made` is given, missing directories are created and added to `made`.
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

/// The uppermost link in the place of a directory above `path`, as a path below `to`. `None` if there is no link.
pub(super) fn link_above(to: &Path, path: &FilePath) -> Option<FilePath> {
    let above: Vec<&Path> = path.as_path().ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).collect();
    let link = above.into_iter().rev().find(|dir| to.join(dir).is_symlink())?;
    FilePath::new(link.as_os_str().as_bytes()).ok()
}

/// Opens the directory to which a link leads, if the link, the directory and `to` have the same owner.
fn through_link(to: &Path, holder: &OwnedFd, name: &OsStr) -> Option<OwnedFd> {
    let owner = stat(to).ok()?.st_uid;
    let link = fstatat(holder, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let inner = openat(holder, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    (link.st_uid == owner && fstat(&inner).ok()?.st_uid == owner).then_some(inner)
}

/// Whether a link with the target `text` would lead out of `to`, to a directory through which later restarts would
/// write. If a directory above the link leads out already, the link may lead to any place in that directory. `through`:
/// the real paths of the directories outside `to` into which this restart writes; the link may lead there, too.
pub(super) fn would_lead_out(to: &Path, path: &FilePath, text: &OsStr, through: &[PathBuf]) -> bool {
    let link = to.join(path.as_path());
    let end = link.parent().unwrap_or(to).join(text);
    let (Ok(end), Ok(to_stat)) = (end.canonicalize(), stat(to)) else { return false };
    let is_below = |dir: &Path| to.join(dir).canonicalize().is_ok_and(|dir| end.starts_with(dir));
    !path.as_path().ancestors().skip(1).any(is_below)
        && !through.iter().any(|dir| end.starts_with(dir))
        && stat(&end).is_ok_and(|is| is_directory(&is) && is.st_uid == to_stat.st_uid)
}

fn is_directory(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}
