//! The lock of a directory into which files are published.

use super::RestoreError;
use super::directories::failed;
use nix::fcntl::OFlag;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOCK: &str = ".mcr-lock";
/// Maximum time that a restart waits for one other restart that is publishing into the same directory.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Maximum total time that a restart waits for other restarts. A thousand nodes may restore into one directory at
/// once.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(900);

/// The lock of a directory during a publication. Dropping this value removes the lock file.
pub(super) struct Lock {
    path: PathBuf,
    /// `None`: the file system has no locks.
    _held: Option<File>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self._held.is_some() {
            // The lock file is removed while the lock is held. If a waiting restart then locks the removed file, the
            // restart notices the removal, and opens the lock file again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(super) fn lock(to: &Path, wait: Duration) -> Result<Lock, RestoreError> {
    let (path, started) = (to.join(LOCK), Instant::now());
    // Each restart that gets the lock creates a new lock file. So a changed lock file means that another restart
    // holds the lock.
    let (mut holder, mut since) = (None, started);
    loop {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut open = File::options();
        open.read(true).write(true).create(true).truncate(false).mode(0o666).custom_flags(flags.bits());
        let file = open.open(&path);
        let file = file.map_err(|e| failed(&path, "opening the lock", e))?;
        match file.try_lock() {
            Ok(()) => {
                let (held, named) = (file.metadata(), std::fs::symlink_metadata(&path));
                if let (Ok(held), Ok(named)) = (held, named)
                    && (held.dev(), held.ino()) == (named.dev(), named.ino())
                {
                    return Ok(Lock { path, _held: Some(file) });
                }
            }
            Err(TryLockError::WouldBlock) => {
                let now = std::fs::symlink_metadata(&path).ok().map(|m| (m.ino(), m.ctime(), m.ctime_nsec()));
                if now != holder {
                    (holder, since) = (now, Instant::now());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::Error(error)) => {
                tracing::warn!(
                    path = %path.display(), %error,
                    "the file system has no locks: no other restart may write to this directory now"
                );
                let _ = std::fs::remove_file(&path);
                return Ok(Lock { path, _held: None });
            }
        }
        if since.elapsed() >= wait || started.elapsed() >= LOCK_WAIT_MAX {
            return Err(RestoreError::Busy { path: to.to_owned(), waited_s: started.elapsed().as_secs() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_with_a_deadline_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = lock(dir.path(), LOCK_WAIT).expect("free");
        let refused = lock(dir.path(), Duration::from_millis(50)).err().expect("held").to_string();
        assert!(refused.contains("another restart"), "{refused}");
        drop(held);
        drop(lock(dir.path(), Duration::ZERO).expect("free again"));
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
