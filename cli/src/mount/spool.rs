//! A temporary file for decoded segments that several files of a checkpoint need.
//!
//! A segment often has the same variable of many ranks. A program that reads rank after rank needs all segments of the
//! group for each rank. If the segments do not fit into the memory budget, they would be decoded once for each rank.
//! So the mount writes each decoded segment to a temporary file, and reads the bytes of the other ranks from the file.

use anyhow::Context;
use mcrengine::container::Spool;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum share of the free space of the file system that the temporary files may use.
const FREE_SHARE_DIVISOR: u64 = 2;

/// Where temporary files are made, and how long they may be.
#[derive(Clone, Debug)]
pub struct SpoolPlace {
    dir: PathBuf,
    /// Maximum length of each file, in bytes.
    most_bytes: u64,
}

impl SpoolPlace {
    /// Checks the directory, and gives each of `files` files an equal part of `bytes`. `None`: there is no file,
    /// because `bytes` is 0, or because no directory was asked for and the usual directory is in memory or cannot be
    /// used. Fails if a directory that was asked for cannot be used.
    pub fn new(asked: Option<&Path>, bytes: u64, files: u64) -> anyhow::Result<Option<Self>> {
        if bytes == 0 {
            return Ok(None);
        }
        let dir = asked.map_or_else(std::env::temp_dir, Path::to_owned);
        let room = || -> anyhow::Result<Option<u64>> {
            let file = tempfile::tempfile_in(&dir)?;
            let of = fstatfs(&file)?;
            let free = of.blocks_available().saturating_mul(u64::try_from(of.block_size()).unwrap_or(0));
            Ok((asked.is_some() || of.filesystem_type() != TMPFS_MAGIC).then_some(free))
        };
        let free = match room().with_context(|| format!("{}: no temporary file can be made there", dir.display())) {
            Ok(free) => free,
            Err(error) if asked.is_some() => return Err(error),
            Err(_) => None,
        };
        Ok(free.map(|free| Self { dir, most_bytes: bytes.min(free / FREE_SHARE_DIVISOR) / files.max(1) }))
    }

    /// An empty temporary file. The file has no name, so it is removed when this process ends, even if it is killed.
    pub fn make(&self) -> Option<FileSpool> {
        let file = tempfile::tempfile_in(&self.dir).ok()?;
        Some(FileSpool { file, most_bytes: self.most_bytes, kept: Mutex::default() })
    }
}

/// The temporary file of a group.
pub struct FileSpool {
    file: File,
    most_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Offset and length of each kept segment.
    places: HashMap<u32, (u64, u64)>,
    /// The end of the file, with the segments that are being written.
    end: u64,
}

impl FileSpool {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spool for FileSpool {
    fn put(&self, segment: u32, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let at = {
            let mut kept = self.kept();
            let end = kept.end.saturating_add(len);
            if end > self.most_bytes || kept.places.contains_key(&segment) {
                return;
            }
            std::mem::replace(&mut kept.end, end)
        };
        let written = self.file.write_all_at(bytes, at);
        let mut kept = self.kept();
        match written {
            Ok(()) => {
                kept.places.insert(segment, (at, len));
            }
            Err(_) => kept.end = u64::MAX, // for example, the file system is full: nothing more is written
        }
    }

    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> bool {
        let Some((at, len)) = self.kept().places.get(&segment).copied() else { return false };
        let is_there = offset.checked_add(into.len() as u64).is_some_and(|end| end <= len);
        is_there && self.file.read_exact_at(into, at + offset).is_ok()
    }

    fn holds(&self, segment: u32) -> bool {
        self.kept().places.contains_key(&segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spool_keeps_segments_until_it_is_full() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = SpoolPlace::new(Some(dir.path()), 40, 4).expect("possible").expect("a file");
        let spool = place.make().expect("made");
        spool.put(7, b"abcdef");
        spool.put(8, b"too long for it");
        spool.put(9, b"ghij");
        let mut into = [0; 3];
        assert!(spool.read(7, 2, &mut into) && &into == b"cde");
        assert!(spool.read(9, 1, &mut into) && &into == b"hij");
        assert!(!spool.read(7, 4, &mut into), "past the end of the segment");
        assert!(!spool.holds(8) && !spool.read(8, 0, &mut into));
        assert!(std::fs::read_dir(dir.path()).expect("listed").next().is_none(), "the file has no name");
        assert!(SpoolPlace::new(Some(dir.path()), 0, 4).expect("possible").is_none());
        assert!(SpoolPlace::new(Some(&dir.path().join("missing")), 40, 4).is_err());
    }
}
