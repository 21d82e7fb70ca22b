//! Examines existing files that have the final names of restored files, and compares their content.

use super::RestoreError;
use super::directories::{directory, failed};
use crate::fingerprint::Fingerprint;
use mcrengine::header::FileHeader;
use mcrengine::ids::{Digest, FilePath};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const DIRECTORY_IN_THE_WAY: &str = "a directory has the name of a file of the checkpoint (move the directory away, or \
                                    restore into another place)";

/// The metadata of the existing file under a final name. `None` if there is no file. A directory under this name is
/// an error.
pub(super) fn find_existing(to: &Path, path: &FilePath) -> Result<Option<FileStat>, RestoreError> {
    let dir = match directory(to, path, None) {
        Err(RestoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match fstatat(&dir, OsStr::from_bytes(path.name()), AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(failed(&to.join(path.as_path()), "reading its metadata", error)),
        Ok(stat) if kind(&stat) == SFlag::S_IFDIR => {
            Err(failed(&to.join(path.as_path()), DIRECTORY_IN_THE_WAY, io::ErrorKind::IsADirectory))
        }
        Ok(stat) => Ok(Some(stat)),
    }
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The fingerprint of a regular file. `None` for any other kind of file.
pub(super) fn file_print(stat: &FileStat) -> Option<Fingerprint> {
    (kind(stat) == SFlag::S_IFREG).then(|| Fingerprint::of_stat(stat))
}

/// Whether a link with the same target exists under the final name.
pub(super) fn is_same_link(to: &Path, header: &FileHeader) -> bool {
    let text = || {
        let dir = directory(to, &header.path, None).ok()?;
        readlinkat(&dir, OsStr::from_bytes(header.path.name())).ok()
    };
    text().is_some_and(|text| Digest::of(text.as_bytes()) == header.digest)
}

/// Compares the existing file with the content that is restored. Returns the fingerprint of the existing file, and
/// whether the contents are equal. `None` if no file of the right length exists, if the existing file cannot be read,
/// or if it changed during the comparison.
pub(super) fn compare(to: &Path, header: &FileHeader) -> Option<(Fingerprint, bool)> {
    let print = file_print(&find_existing(to, &header.path).ok()??).filter(|print| print.bytes == header.bytes)?;
    let dir = directory(to, &header.path, None).ok()?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(&dir, OsStr::from_bytes(header.path.name()), flags, Mode::empty()).ok()?;
    drop(dir);
    let (mut file, mut hasher, mut buffer) = (File::from(file), blake3::Hasher::new(), vec![0; 1 << 20]);
    if Fingerprint::of(&file.metadata().ok()?) != print {
        return None;
    }
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => drop(hasher.update(&buffer[..n])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let same = Digest::from(hasher.finalize()) == header.digest;
    (Fingerprint::of(&file.metadata().ok()?) == print).then_some((print, same))
}

/// Marks an existing file as restored. Returns the file if it cannot be marked.
pub(super) fn mark_existing(to: &Path, path: &FilePath) -> Option<(FilePath, Fingerprint)> {
    let print = file_print(&find_existing(to, path).ok()??)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let open = directory(to, path, None).ok()?;
    let file = openat(&open, OsStr::from_bytes(path.name()), flags, Mode::empty()).map(File::from);
    let marked = file.is_ok_and(|file| crate::restored::mark(&file, path).is_ok());
    (!marked).then(|| (path.clone(), print))
}
