//! Opens a file, and waits until its last change is so old that a later change gets a different time.

use super::error::CaptureError;
use crate::fingerprint::Fingerprint;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Opens a file for reading. A symbolic link in the last component of the path is not followed. Opening a pipe does
/// not wait for its writer.
pub(crate) fn open(name: &Path) -> Result<File, CaptureError> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(name).map_err(|source| {
        let path = name.to_owned();
        match source.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR | nix::errno::Errno::ESTALE) => {
                CaptureError::Vanished { path }
            }
            Some(nix::errno::Errno::ELOOP | nix::errno::Errno::ENXIO) => CaptureError::NotAFile { path },
            _ => CaptureError::Io { path, what: "opening the file for reading", source },
        }
    })
}

pub(crate) fn metadata(file: &File, name: &Path) -> Result<Metadata, CaptureError> {
    file.metadata().map_err(|source| CaptureError::Io { path: name.to_owned(), what: "reading its metadata", source })
}

/// Minimum age of a file's last change if the file system stores fractions of a second. Such file times advance in
/// steps of 1 to 10 ms.
const FINE_CLOCK_REST: Duration = Duration::from_millis(20);
/// Minimum age of a file's last change if the file system stores whole seconds. Some of these file systems store only
/// even seconds.
const COARSE_CLOCK_REST: Duration = Duration::from_secs(2);
/// Maximum number of attempts to find a file unchanged. If all attempts fail, the file counts as being written.
const ATTEMPTS_MAX: u32 = 5;

/// Returns the metadata of a regular file when its last change is old enough that another change would get a
/// different time. Without this wait, a write directly after the first look could not be detected.
pub(super) fn rested(file: &File, name: &Path) -> Result<Metadata, CaptureError> {
    let mut waited_for = None;
    for _ in 0..ATTEMPTS_MAX {
        let metadata = metadata(file, name)?;
        if !metadata.is_file() {
            return Err(CaptureError::NotAFile { path: name.to_owned() });
        }
        let fingerprint = Fingerprint::of(&metadata);
        // The file has not changed during the wait, so it is at rest, even if the clocks of the file server and of
        // this node differ.
        if waited_for == Some(fingerprint) {
            return Ok(metadata);
        }
        let wait = unrested(&fingerprint, now_ns());
        if wait.is_zero() {
            return Ok(metadata);
        }
        std::thread::sleep(wait);
        waited_for = Some(fingerprint);
    }
    Err(CaptureError::Changed { path: name.to_owned() })
}

/// Remaining time for which a file with these times must stay unchanged before it is read.
fn unrested(fingerprint: &Fingerprint, now_ns: i64) -> Duration {
    let whole = |ns: i64| ns % 1_000_000_000 == 0;
    let rest = match whole(fingerprint.changed_ns) && whole(fingerprint.modified_ns) {
        true => COARSE_CLOCK_REST,
        false => FINE_CLOCK_REST,
    };
    let age_ns = now_ns.saturating_sub(fingerprint.changed_ns).max(0);
    rest.saturating_sub(Duration::from_nanos(age_ns.unsigned_abs()))
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_rests_for_a_tick_of_the_clock_that_its_times_seem_to_come_from() {
        let after = |changed_ns: i64, modified_ns: i64, age_ns: i64| {
            let is = Fingerprint { device: 1, inode: 2, bytes: 3, modified_ns, changed_ns };
            unrested(&is, changed_ns + age_ns).as_nanos()
        };
        let (fine, whole) = (1_700_000_000_123_456_789, 1_700_000_000_000_000_000);
        assert_eq!(after(fine, fine, 0), 20_000_000);
        assert_eq!(after(fine, fine, 5_000_000), 15_000_000);
        assert_eq!(after(fine, fine, 20_000_000), 0);
        assert_eq!(after(fine, whole, 20_000_000), 0, "an application may set a modification time in whole seconds");
        assert_eq!(after(whole, whole, 500_000_000), 1_500_000_000);
        assert_eq!(after(fine, fine, -3_600_000_000_000), 20_000_000, "the clock of the file server is ahead");
    }
}
