//! Decides with one look whether the files of a checkpoint are complete. `mcr save` uses this module, because `mcr
//! save` does not wait as the daemons do.
//!
//! The rules are the same as in [`crate::settle`]. If a daemon would wait and look again, this module rejects the
//! file and returns the reason.

use crate::fingerprint::Fingerprint;
use crate::h5::{End, hdf5_end};
use crate::settle::SettleRules;
use crate::watch::writers::Writers;
use mcrengine::ids::FilePath;
use nix::fcntl::OFlag;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Maximum time to wait for a process that is about to close a file. A child process that is about to execute another
/// program also holds the files of its parent for a short time.
const CLOSING_WAIT_MAX: Duration = Duration::from_secs(1);

/// Judges files below one directory, after one search for processes that write these files.
pub struct Judge {
    root: PathBuf,
    writers: Writers,
    rules: SettleRules,
}

impl Judge {
    /// Finds out which of these files other processes have open for writing. Waits at most one second for processes
    /// that are about to close a file.
    pub fn new<'a>(root: &Path, files: impl Iterator<Item = &'a FilePath> + Clone) -> Self {
        let end = Instant::now() + CLOSING_WAIT_MAX;
        loop {
            let judge = Self::look(root, files.clone());
            if !judge.writers.hold_any() || Instant::now() >= end {
                return judge;
            }
            std::thread::sleep(CLOSING_WAIT_MAX / 20);
        }
    }

    fn look<'a>(root: &Path, files: impl Iterator<Item = &'a FilePath>) -> Self {
        let print_of = |path: &'a FilePath| {
            let stat = std::fs::symlink_metadata(root.join(path.as_path())).ok().filter(std::fs::Metadata::is_file);
            Some((path.name(), Fingerprint::from(&stat?)))
        };
        let writers = Writers::of_others(files.filter_map(print_of));
        Self { root: root.to_owned(), writers, rules: SettleRules::default() }
    }

    /// Returns the fingerprint of the file, or the reason why the file is incomplete. If a file cannot be read here,
    /// its capture fails later.
    pub fn look_at(&self, path: &FilePath) -> Result<Fingerprint, String> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let absolute = self.root.join(path.as_path());
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(&absolute);
        let stat = match &opened {
            Ok(file) => file.metadata(),
            Err(_) => std::fs::symlink_metadata(&absolute),
        };
        let stat = stat.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "the file does not exist any more".to_owned(),
            _ => format!("the metadata of the file cannot be read: {error}"),
        })?;
        let print = Fingerprint::from(&stat);
        if let Some(holder) = self.writers.holder(&print) {
            return Err(format!("it is open for writing by process {holder}{}", name_of(holder)));
        }
        let end = match opened {
            Ok(file) if stat.is_file() => hdf5_end(path, print.bytes, |at, into| file.read_at(into, at)),
            _ => Ok(End::Unknown),
        };
        match end.unwrap_or(End::Unknown) {
            End::Unknown | End::Agrees => Ok(print),
            End::Longer => self.longer(print, SystemTime::now()),
            End::Shorter => {
                Err(format!("the file is cut short: {} bytes are fewer than its HDF5 superblock says", print.bytes))
            }
            End::Unwritten if print.bytes == 0 => Err("the file is empty, but it has the name of an HDF5 file".into()),
            End::Unwritten => Err("the HDF5 superblock was never written".into()),
            End::Marked => Err("HDF5 marked the file as open for writing: its writer is at work, or has died".into()),
        }
    }

    /// Decides about a file that is longer than its superblock states: the writer has not flushed the file yet, or
    /// data was appended. The file is accepted if no process has it open for writing, or if it has been at rest for
    /// [`SettleRules::doubt_quiet_ms`].
    fn longer(&self, print: Fingerprint, now: SystemTime) -> Result<Fingerprint, String> {
        let now_ns = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
        let rested_ms = now_ns.saturating_sub(print.modified_ns).max(0) as u64 / 1_000_000;
        let needed_ms = self.rules.doubt_quiet_ms;
        match self.writers.hold(&print) == Some(false) || rested_ms >= needed_ms {
            true => Ok(print),
            false => Err(format!(
                "the file is longer than its HDF5 superblock says and was written {} s ago, so it may still be \
                 written; save again after {} s",
                rested_ms / 1000,
                needed_ms / 1000
            )),
        }
    }
}

fn name_of(process: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let name = name.trim_end();
    if name.is_empty() { String::new() } else { format!(" ({name})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(dir: &Path, name: &str, bytes: &[u8]) -> Result<Fingerprint, String> {
        std::fs::write(dir.join(name), bytes).expect("written");
        let path = FilePath::new(name.as_bytes()).expect("valid");
        Judge::new(dir, std::iter::once(&path)).look_at(&path)
    }

    #[test]
    fn a_file_that_a_daemon_would_not_take_is_not_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        // A superblock of version 2: signature, version, widths, flags, base address, extension address, and end of
        // the file.
        let superblock = |flags: u8, end: u64| {
            let mut bytes = b"\x89HDF\r\n\x1a\n\x02\x08\x08".to_vec();
            bytes.push(flags);
            [0, u64::MAX, end].into_iter().for_each(|address| bytes.extend(address.to_le_bytes()));
            bytes.resize(100, 1);
            bytes
        };
        assert!(look(dir.path(), "good.h5", &superblock(0, 100)).is_ok());
        assert!(look(dir.path(), "other.bin", b"").is_ok(), "an empty file without an HDF5 name is complete");
        for (bytes, word) in [
            (superblock(0, 101), "cut short"),
            (superblock(1, 100), "marked the file as open"),
            (vec![0; 4096], "never written"),
            (Vec::new(), "empty"),
        ] {
            let why = look(dir.path(), "bad.h5", &bytes).expect_err(word);
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_file_that_is_longer_than_it_says_is_taken_once_it_has_rested() {
        let dir = tempfile::tempdir().expect("a directory");
        let judge = Judge { root: dir.path().into(), writers: Writers::default(), rules: SettleRules::default() };
        let print = Fingerprint { device: 1, inode: 1, bytes: 9, modified_ns: 5_000_000_000, changed_ns: 0 };
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        assert!(judge.longer(print, at(12)).expect_err("7 s").contains("written 7 s ago"));
        assert_eq!(judge.longer(print, at(35)), Ok(print));
    }
}
