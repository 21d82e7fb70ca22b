//! Temporary files of killed restarts. The name of a temporary file identifies its process, and the next restart
//! removes the files of dead processes.
//!
//! Several nodes may restore into the same directory of a parallel file system at the same time, and a process number
//! is valid only on one node. Therefore the name also identifies the node of the process. A temporary file of this
//! node is removed at once if its process is dead. A temporary file of another node is removed after one day without
//! a change.

use crate::here::HERE;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, fstat, fstatat};
use nix::unistd::{Pid, UnlinkatFlags, unlinkat};
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Prefix of every temporary name.
const PREFIX: &str = ".mcr-restart-";
/// Prefix of the name of a journal. The node of the process and the process number follow.
pub(super) const JOURNAL_PREFIX: &str = ".mcr-publish-";
/// The two suffixes of temporary names: `tmp` for files that will get final names, and `spill` for spill files.
const SUFFIXES: [&str; 2] = ["tmp", "spill"];
/// Time without a change after which a temporary file of another node counts as abandoned, in seconds.
const ELSEWHERE_AGE_MAX_S: i64 = 24 * 60 * 60;

/// Counter that distinguishes the temporary names of one process.
static NTH: AtomicU64 = AtomicU64::new(0);

/// The name of the journal of the process that owns this temporary file, see `journal.rs`. As long as the journal
/// exists, the temporary file is needed.
fn journal_of(name: &str) -> Option<String> {
    let mut parts = name.strip_prefix(PREFIX)?.splitn(3, '-');
    Some(format!("{JOURNAL_PREFIX}{}-{}", parts.next()?, parts.next()?))
}

/// Whether this directory or a directory above it contains a journal of this name. A restart may have used any of
/// these directories as its target.
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

/// Whether the process that a journal names may still be running. `None` for a process on another node.
pub(super) fn is_at_work(journal: &str) -> Option<bool> {
    let name = format!("{PREFIX}{}-0.tmp", journal.strip_prefix(JOURNAL_PREFIX)?);
    match owner(&name)? {
        Owner::Here(process) => Some(process.is_some_and(is_alive)),
        Owner::Elsewhere => None,
    }
}

/// Whether a process of this node may still be running. A zombie is dead: in a container, the first process often never
/// waits for the dead processes that it inherits.
fn is_alive(process: Pid) -> bool {
    // The state follows the name of the program, which is in parentheses and may contain parentheses
    // (proc_pid_stat(5)).
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let is_dead =
        stat.rsplit(')').next().is_some_and(|rest| matches!(rest.trim_start().chars().next(), Some('Z' | 'X')));
    !is_dead && kill(process, None) != Err(Errno::ESRCH)
}

/// Whether [`temporary_name`] created this name.
pub(super) fn is_temporary(name: &str) -> bool {
    owner(name).is_some()
}

/// Whether this is the name of a temporary file of another process.
pub(super) fn is_of_another_process(name: &str) -> bool {
    owner(name).is_some_and(|owner| owner != Owner::Here(Some(Pid::this())))
}

/// A unique name, short enough for any file system: `.mcr-restart-WHERE-PID-N.SUFFIX`.
pub(super) fn temporary_name(suffix: &str) -> CString {
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}{}-{}-{nth}.{suffix}", *HERE, std::process::id());
    CString::new(name).expect("the name contains no NUL")
}

/// Removes the temporary files of killed restarts from a directory. Each process examines each directory only once.
/// Errors are only logged, because a file that stays only takes space.
pub(super) fn remove_once(directory: &OwnedFd) {
    /// Directories that were already examined. The set is cleared when it has `EXAMINED_MAX` entries.
    static EXAMINED: LazyLock<Mutex<HashSet<(u64, u64)>>> = LazyLock::new(Mutex::default);
    const EXAMINED_MAX: usize = 1 << 16;
    let Ok(stat) = fstat(directory) else { return };
    {
        let mut examined = EXAMINED.lock().unwrap_or_else(PoisonError::into_inner);
        if examined.len() >= EXAMINED_MAX {
            examined.clear();
        }
        if !examined.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
    }
    remove(directory);
}

/// Removes the temporary files of killed restarts from a directory.
pub(super) fn remove_in(directory: &Path) {
    match File::open(directory) {
        Ok(directory) => remove(&directory.into()),
        Err(error) => tracing::debug!(directory = %directory.display(), %error, "cannot be opened"),
    }
}

fn remove(directory: &OwnedFd) {
    // A new descriptor is opened, because reading a directory changes the position of the descriptor.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(mut entries) = openat(directory, ".", flags, Mode::empty()).and_then(Dir::from_fd) else { return };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    for entry in entries.iter().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().ok().and_then(owner) else { continue };
        let is_abandoned = match owner {
            Owner::Here(process) => process.is_none_or(|process| !is_alive(process)),
            Owner::Elsewhere => fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| now_s.saturating_sub(stat.st_ctime) > ELSEWHERE_AGE_MAX_S),
        };
        // The process is checked first, and the journal second. In this order, a journal is found even if the process
        // wrote the journal just before the process died.
        let journal = name.to_str().ok().and_then(journal_of);
        if is_abandoned && journal.is_some_and(|journal| !has_journal(directory, &journal)) {
            match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => tracing::info!(?name, "removed a temporary file of a killed restart"),
                Err(error) => tracing::debug!(?name, %error, "cannot remove a temporary file of a killed restart"),
            }
        }
    }
}

/// The node and the process that created a temporary file.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// A process of this node. `None` if no process can have this number.
    Here(Option<Pid>),
    Elsewhere,
}

/// The owner of a temporary file. `None` if the name does not have exactly the form of [`temporary_name`].
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
    fn a_dead_process_whose_parent_does_not_wait_for_it_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let process = Pid::from_raw(i32::try_from(child.id()).expect("a process number"));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while is_alive(process) && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_ne!(kill(process, None), Err(Errno::ESRCH), "the zombie still has its number");
        assert!(!is_alive(process) && is_alive(Pid::this()));
        child.wait().expect("it has ended");
    }

    #[test]
    fn only_our_own_names_have_an_owner() {
        let ours = temporary_name("tmp").into_string().expect("text");
        assert_eq!(owner(&ours), Some(Owner::Here(Some(Pid::this()))));
        assert!(crate::layout::is_own_name(ours.as_bytes()), "agents and saves ignore it");
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
        // `remove_once` is not used here, because a directory of another test may have had the same inode.
        remove(&fd);
        let there = |name: &String| directory.path().join(name).exists();
        assert!(!there(&left) && !there(&spilt), "what a dead process left is still there");
        for name in &others {
            assert!(there(name), "{name} was removed");
        }
    }
}
