//! Temporary files of restarts that were killed: named so that it can be told whose they are, removed by the next restart.
//!
//! Several nodes may restore into one directory of a parallel file system at the same time, and a process number means
//! nothing on another node. So a name holds where its process ran, and only a file from here whose process is gone is
//! removed at once; one from elsewhere after a day without a change.

use mcrengine::ids::Digest;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{Pid, UnlinkatFlags, unlinkat};
use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Begins every temporary name.
const PREFIX: &str = ".mcr-restart-";
/// Begins the name of a journal; where its process ran and its number follow.
pub(super) const JOURNAL_PREFIX: &str = ".mcr-publish-";
/// What is written beside the final names, and what waits for memory.
const SUFFIXES: [&str; 2] = ["tmp", "spill"];
/// A file of another node that did not change for so long is nobody's.
const ELSEWHERE_S: i64 = 24 * 60 * 60;

/// Tells the temporary names of one process apart.
static NTH: AtomicU64 = AtomicU64::new(0);

/// Where process numbers mean what they mean to us: this boot of this node, this namespace. 16 hexadecimal digits.
static HERE: LazyLock<String> = LazyLock::new(|| {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = [&boot, namespace.as_os_str().as_encoded_bytes()].concat();
    Digest::of(&text).to_string()[..16].to_owned()
});

/// Where this process runs and its number, as names have it.
pub(crate) fn here() -> String {
    format!("{}-{}", *HERE, std::process::id())
}

/// The journal of the process that gave this temporary name, see `publish.rs`. As long as it is there, its process'
/// temporary files are wanted.
fn journal_of(name: &str) -> Option<String> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
    Some(format!("{JOURNAL_PREFIX}{}-{}", parts.next()?, parts.next()?))
}

/// Whether a directory or one above it holds a journal of this name. A restart may have been into any of them.
fn has_journal(directory: &OwnedFd, journal: &str) -> bool {
    const DEPTH_MAX: usize = 256;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(mut at) = openat(directory, ".", flags, Mode::empty()) else { return true };
    for _ in 0..DEPTH_MAX {
        match fstatat(&at, journal, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => {}
            _ => return true,
        }
        let (Ok(above), Ok(here)) = (openat(&at, "..", flags, Mode::empty()), fstat(&at)) else { return true };
        if fstat(&above).is_ok_and(|above| (above.st_dev, above.st_ino) == (here.st_dev, here.st_ino)) {
            return false;
        }
        at = above;
    }
    true
}

/// Whether the process whose name a journal bears may still be at work. Of another node's nothing is known.
pub(super) fn is_at_work(journal: &str) -> Option<bool> {
    let name = format!("{PREFIX}{}-0.tmp", journal.strip_prefix(JOURNAL_PREFIX)?);
    match owner(&name)? {
        Owner::Here(process) => Some(process.is_some_and(|p| kill(p, None) != Err(Errno::ESRCH))),
        Owner::Elsewhere => None,
    }
}

/// Whether it is a name of [`temporary_name`].
pub(super) fn is_temporary(name: &str) -> bool {
    owner(name).is_some()
}

/// A name that no other process gives, short enough for any file system: `.mcr-restart-WHERE-PID-N.SUFFIX`.
pub(super) fn temporary_name(suffix: &str) -> CString {
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}{}-{}-{nth}.{suffix}", *HERE, std::process::id());
    CString::new(name).expect("the name holds no NUL")
}

/// Removes from a directory what killed restarts left there; once in the life of this process. Nothing fails by it: a
/// leftover that stays costs room.
pub(super) fn remove_once(directory: &OwnedFd) {
    /// Directories that were looked through; forgotten when there are too many.
    static LOOKED_AT: LazyLock<Mutex<HashSet<(u64, u64)>>> = LazyLock::new(Mutex::default);
    const LOOKED_AT_MAX: usize = 1 << 16;
    let Ok(stat) = fstat(directory) else { return };
    {
        let mut looked_at = LOOKED_AT.lock().unwrap_or_else(PoisonError::into_inner);
        if looked_at.len() >= LOOKED_AT_MAX {
            looked_at.clear();
        }
        if !looked_at.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
    }
    remove(directory);
}

fn remove(directory: &OwnedFd) {
    // A descriptor of its own, since reading moves its position.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(mut entries) = openat(directory, ".", flags, Mode::empty()).and_then(Dir::from_fd) else { return };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    for entry in entries.iter().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().ok().and_then(owner) else { continue };
        let nobodys = match owner {
            Owner::Here(process) => process.is_none_or(|p| kill(p, None) == Err(Errno::ESRCH)),
            Owner::Elsewhere => fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| now_s.saturating_sub(stat.st_ctime) > ELSEWHERE_S),
        };
        // First dead, then without a journal: a process that died between the two looks had written it before.
        let journal = name.to_str().ok().and_then(journal_of);
        if nobodys && journal.is_some_and(|journal| !has_journal(directory, &journal)) {
            match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => tracing::info!(?name, "removed what a killed restart left"),
                Err(error) => tracing::debug!(?name, %error, "cannot remove what a killed restart left"),
            }
        }
    }
}

/// Who made a temporary file.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// A process of ours to ask about; `None` if there can be no process of that number.
    Here(Option<Pid>),
    Elsewhere,
}

/// `None` unless it is exactly a name of [`temporary_name`].
fn owner(name: &str) -> Option<Owner> {
    let (stem, suffix) = name.strip_prefix(PREFIX)?.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut parts = stem.split('-');
    let (place, process, nth) = (parts.next()?, parts.next()?, parts.next()?);
    let hexadecimal = place.len() == 16 && place.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if parts.next().is_some() || !hexadecimal || !digits(process) || !digits(nth) || !SUFFIXES.contains(&suffix) {
        return None;
    }
    Some(match place == *HERE {
        true => Owner::Here(process.parse().ok().filter(|&p: &i32| p > 0).map(Pid::from_raw)),
        false => Owner::Elsewhere,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        let ours = temporary_name("tmp").into_string().expect("text");
        assert_eq!(owner(&ours), Some(Owner::Here(Some(Pid::this()))));
        assert!(crate::layout::is_own_name(ours.as_bytes()), "no agent and no save takes it for the application's");
        assert_eq!(owner(&ours.replace(&*HERE, "0123456789abcdef")), Some(Owner::Elsewhere));
        for other in [
            "snapshot_012.3.hdf5",
            ".mcr-restart-",
            ".mcr-restart-12-0.tmp",
            ".mcr-restart-0123456789abcdef-1-2.h5",
            ".mcr-restart-0123456789abcdef-1-2-3.tmp",
            ".mcr-restart-0123456789ABCDEF-1-2.tmp",
            ".mcr-restart-0123456789abcdef--2.tmp",
            "x.mcr-restart-0123456789abcdef-1-2.tmp",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let dead = child.id();
        child.wait().expect("it ends");
        let left = format!("{PREFIX}{}-{dead}-0.tmp", *HERE);
        let spilt = format!("{PREFIX}{}-{dead}-1.spill", *HERE);
        let living = temporary_name("tmp").into_string().expect("text");
        let elsewhere = format!("{PREFIX}0123456789abcdef-{dead}-0.tmp");
        let others = [living, elsewhere, "x.tmp".into(), format!("{PREFIX}{dead}-0.tmp")];
        for name in others.iter().chain([&left, &spilt]) {
            std::fs::write(directory.path().join(name), b"x").expect("written");
        }
        let fd: OwnedFd = std::fs::File::open(directory.path()).expect("opened").into();
        remove_once(&fd);
        let there = |name: &String| directory.path().join(name).exists();
        assert!(!there(&left) && !there(&spilt), "what a dead process left is still there");
        for name in &others {
            assert!(there(name), "{name} was removed");
        }
    }
}
