//! Measures how far this node's clock is ahead of the clock of a file system. The file system's clock sets the times
//! of files.
//!
//! A parallel file system has its own clock, and the clock of a node may be wrong by a minute. The age of a file must
//! be a difference of two times of one clock. Therefore this module creates a temporary file, and compares the file's
//! time with this node's clock.

use rustix::fs::{Mode, OFlags, open};
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum age of a measurement that is used. Within this time, two clocks drift by less than a millisecond, and it is
/// rare that a clock is set.
const MEASUREMENT_AGE_MAX: Duration = Duration::from_secs(30);
/// Clock difference above which a warning is logged: 2 s.
const WARNING_MIN_NS: i64 = 2_000_000_000;
/// Maximum number of directories whose measurements are cached.
const DIRECTORIES_MAX: usize = 64;

/// How far this node's clock is ahead of the file system's clock, in nanoseconds, with an accuracy of some
/// milliseconds. The result is negative if this node's clock is behind, and 0 if no file can be created.
pub fn ahead_ns(dir: &Path) -> i64 {
    static KNOWN: Mutex<Option<HashMap<PathBuf, (Instant, i64)>>> = Mutex::new(None);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = known().as_ref().and_then(|all| all.get(dir)).copied();
    if let Some((_, ahead_ns)) = before.filter(|(at, _)| at.elapsed() < MEASUREMENT_AGE_MAX) {
        return ahead_ns;
    }
    let ahead_ns = measure(dir).unwrap_or(0);
    let was_ns = before.map_or(0, |(_, ahead_ns)| ahead_ns);
    if ahead_ns.abs() > WARNING_MIN_NS && (ahead_ns - was_ns).abs() > WARNING_MIN_NS {
        tracing::warn!(
            dir = %dir.display(), ahead_s = ahead_ns / 1_000_000_000,
            "this node's clock is ahead of the file system's clock (behind, if negative); set both clocks right"
        );
    }
    let mut known = known();
    let all = known.get_or_insert_default();
    if all.len() >= DIRECTORIES_MAX {
        all.clear();
    }
    all.insert(dir.to_owned(), (Instant::now(), ahead_ns));
    ahead_ns
}

/// Time since `file_ns`, in nanoseconds. `file_ns` is a time of the file system's clock, in nanoseconds since 1970.
/// `ahead_ns` is the result of [`ahead_ns`].
pub fn age_ns(file_ns: i64, ahead_ns: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = now.map_or(0, |now| i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
    now_ns.saturating_sub(ahead_ns).saturating_sub(file_ns)
}

fn measure(dir: &Path) -> io::Result<i64> {
    // An unnamed file is invisible, and closing its descriptor removes it.
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = match open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file).metadata()?,
        Err(_) => made_with_a_name(dir)?,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let made_ns = made.ctime().saturating_mul(1_000_000_000).saturating_add(made.ctime_nsec());
    Ok(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX).saturating_sub(made_ns))
}

#[expect(clippy::disallowed_methods, reason = "a temporary file, removed before this returns")]
fn made_with_a_name(dir: &Path) -> io::Result<Metadata> {
    // This name is one of mcrEngine's own names, so no layout considers the file a file of the application.
    let path = dir.join(format!(".mcr-state-clock-{}.tmp", std::process::id()));
    let _ = std::fs::remove_file(&path); // a killed process with the same process number may have left this file
    let made = OpenOptions::new().write(true).create_new(true).open(&path)?.metadata();
    std::fs::remove_file(&path)?;
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_file_system_is_asked_without_a_trace() {
        let dir = tempfile::tempdir().expect("a directory");
        // In this test both clocks are the same clock. File times advance in steps of up to 10 ms.
        let second = 1_000_000_000;
        assert!((-second..second).contains(&measure(dir.path()).expect("a file can be made")));
        let named = made_with_a_name(dir.path()).expect("made");
        assert!(named.ctime() > 0);
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
        assert!((-second..second).contains(&ahead_ns(dir.path())));
        assert_eq!(ahead_ns(Path::new("/proc/nowhere")), 0);
    }
}
