//! Finds the processes that have a file open for writing. Only processes that `/proc` shows are found.
//!
//! A lease would be more reliable, but it would delay the application's next `open`, so no lease is ever taken.
//! `/proc` does not show processes on other nodes or in other containers, the open files of other users (unless this
//! process runs as root), and memory mappings of closed files.

use crate::fingerprint::Fingerprint;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum number of descriptors that one search examines. If there are more descriptors, it is unknown whether a
/// file has a writer.
const DESCRIPTORS_MAX: usize = 1 << 18;
/// Value of `/proc/self/ns/pid` for a process that sees every process of the node.
const NODE_NAMESPACE: &[u8] = b"pid:[4026531836]";

/// The result of one search in `/proc`.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// Device and inode of each file that a process has open for writing, and the number of this process.
    held: HashMap<(u64, u64), u32>,
    /// Whether every process of this node could be examined.
    saw_all: bool,
}

impl Writers {
    /// Searches for writers of these files, which are given by name and fingerprint.
    pub(crate) fn of<'a>(files: impl Iterator<Item = (&'a [u8], Fingerprint)>) -> Self {
        Self::except(None, files)
    }

    /// Searches for writers like [`Self::of`], but ignores processes of this program. Processes of this program write
    /// none of the files. But these processes may have descriptors of files, because their output is redirected or
    /// their parent left a descriptor open.
    pub(crate) fn of_others<'a>(files: impl Iterator<Item = (&'a [u8], Fingerprint)>) -> Self {
        let own = std::fs::metadata("/proc/self/exe").ok().map(|own| (own.dev(), own.ino()));
        Self::except(own, files)
    }

    /// Searches for writers, and ignores processes that run the program with this device and inode.
    fn except<'a>(program: Option<(u64, u64)>, files: impl Iterator<Item = (&'a [u8], Fingerprint)>) -> Self {
        let mut wanted: HashMap<&[u8], HashSet<(u64, u64)>> = HashMap::new();
        for (name, print) in files {
            wanted.entry(name).or_default().insert((print.device, print.inode));
        }
        let mut found = Self::default();
        if wanted.is_empty() {
            return found;
        }
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        found.saw_all = namespace.is_ok_and(|link| link.as_os_str().as_bytes() == NODE_NAMESPACE);
        let Ok(processes) = std::fs::read_dir("/proc") else {
            found.saw_all = false;
            return found;
        };
        let mut left = DESCRIPTORS_MAX;
        for process in processes.flatten() {
            let number = process.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(number) = number {
                found.look_at(number, &process.path(), program, &wanted, &mut left);
            }
        }
        found
    }

    fn look_at(
        &mut self,
        number: u32,
        process: &Path,
        left_out: Option<(u64, u64)>,
        wanted: &HashMap<&[u8], HashSet<(u64, u64)>>,
        left: &mut usize,
    ) {
        let entries = match std::fs::read_dir(process.join("fd")) {
            Ok(entries) => entries,
            Err(error) => {
                // A process that has ended has no open files. A process that this user has no permission to examine
                // may have open files.
                self.saw_all &= error.kind() != std::io::ErrorKind::PermissionDenied;
                return;
            }
        };
        for entry in entries.flatten() {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => {
                    self.saw_all = false;
                    return;
                }
            }
            let path = entry.path();
            let Ok(target) = std::fs::read_link(&path) else { continue };
            let Some(files) = target.file_name().and_then(|name| wanted.get(name.as_bytes())) else { continue };
            // The permission bits of the link say whether the file is open for writing (proc_pid_fd(5)). `metadata`
            // follows the link to the file.
            let for_writing = std::fs::symlink_metadata(&path).is_ok_and(|link| link.mode() & 0o200 != 0);
            let Some(file) = for_writing.then(|| std::fs::metadata(&path).ok()).flatten() else { continue };
            let is_left_out = || {
                let program = std::fs::metadata(process.join("exe")).ok();
                left_out.is_some() && program.map(|program| (program.dev(), program.ino())) == left_out
            };
            if let Some(file) = files.get(&(file.dev(), file.ino()))
                && !is_left_out()
            {
                self.held.insert(*file, number);
            }
        }
    }

    /// Whether a process has the file open for writing. `None` if no writer was found and some processes could not be
    /// examined.
    pub(crate) fn hold(&self, print: &Fingerprint) -> Option<bool> {
        match self.holder(print) {
            Some(_) => Some(true),
            None => self.saw_all.then_some(false),
        }
    }

    /// Whether a process has any of the files open for writing.
    pub(crate) fn hold_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// The number of a process that has the file open for writing. `None` if no such process was found.
    pub(crate) fn holder(&self, print: &Fingerprint) -> Option<u32> {
        self.held.get(&(print.device, print.inode)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_seen_and_a_reader_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("held.bin");
        let holds = || {
            let print = Fingerprint::from(&std::fs::metadata(&path).expect("there"));
            Writers::of(std::iter::once((&b"held.bin"[..], print))).hold(&print)
        };
        let writer = std::fs::File::create(&path).expect("made");
        assert_eq!(holds(), Some(true));
        drop(writer);
        let _reader = std::fs::File::open(&path).expect("opened");
        assert_ne!(holds(), Some(true));
    }
}
