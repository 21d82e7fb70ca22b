//! Identifies the content of a file without reading the file.

use nix::sys::stat::FileStat;
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Identity, length and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of the content, name, owner or mode, in nanoseconds since 1970. No application can set
    /// this time.
    pub changed_ns: i64,
}

impl Fingerprint {
    /// Makes the fingerprint from the metadata of a file.
    pub fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Makes the fingerprint from the result of the system call `stat`.
    pub(crate) fn of_stat(stat: &FileStat) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Time when the application wrote the file, in nanoseconds since 1970. The result is the modification time or
    /// the change time, whichever is earlier. A copy of the file may keep the modification time. No application can
    /// set the change time.
    pub fn written_ns(&self) -> i64 {
        self.modified_ns.min(self.changed_ns)
    }

    /// Time since the last change, in nanoseconds. The argument `ahead_ns` is the result of
    /// [`ahead_ns`](crate::clock::ahead_ns).
    pub fn age_ns(&self, ahead_ns: i64) -> i64 {
        crate::clock::age_ns(self.changed_ns, ahead_ns)
    }

    /// Whether both fingerprints belong to the same content. The change time is not compared, because a new mode or
    /// the removal of a hard link changes it too.
    pub fn same_content(&self, other: &Self) -> bool {
        Self { changed_ns: 0, ..*self } == Self { changed_ns: 0, ..*other }
    }
}

impl From<&Metadata> for Fingerprint {
    fn from(metadata: &Metadata) -> Self {
        Self::of(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_mode_is_the_same_content_and_a_new_time_or_length_is_not() {
        let is = Fingerprint { device: 1, inode: 2, bytes: 3, modified_ns: 4, changed_ns: 5 };
        assert!(is.same_content(&Fingerprint { changed_ns: 6, ..is }));
        for other in [
            Fingerprint { device: 0, ..is },
            Fingerprint { inode: 0, ..is },
            Fingerprint { bytes: 0, ..is },
            Fingerprint { modified_ns: 0, ..is },
        ] {
            assert!(!is.same_content(&other), "{other:?}");
        }
    }
}
