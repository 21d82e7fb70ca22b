//! The number of files and bytes that a rank usually writes for a checkpoint.

use super::ready::SettledFile;

/// Number of successive checkpoints with the same number of files after which fewer files are doubtful.
const REGULAR_MIN: u32 = 2;

/// Number of checkpoints whose lengths are compared with the next one. The lengths of some codes vary.
const LAST: usize = 4;

/// Number of files and bytes that a rank writes for a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    files: usize,
    /// Number of bytes in the last checkpoints, the newest first. 0 if there were fewer checkpoints.
    last_bytes: [u64; LAST],
    /// Number of successive checkpoints with this number of files.
    checkpoints: u32,
    /// Number of successive checkpoints with this number of bytes.
    same_bytes: u32,
    /// When the newest file of the last checkpoint was written, in nanoseconds since 1970.
    newest_ns: i64,
    /// Whether a reported checkpoint of the rank grew after its report. The application then pauses while it writes.
    pub(super) appends: bool,
}

impl Usual {
    /// The state after one checkpoint with these files.
    pub(super) fn of(files: &[SettledFile]) -> Self {
        let mut last_bytes = [0; LAST];
        last_bytes[0] = files.iter().fold(0, |sum, file| file.fingerprint.bytes.saturating_add(sum));
        let newest_ns = files.iter().map(|file| file.fingerprint.written_ns()).max().unwrap_or(i64::MIN);
        Self { files: files.len(), last_bytes, checkpoints: 1, same_bytes: 1, newest_ns, appends: false }
    }

    /// Whether the application wrote this checkpoint after `other`. Checkpoints may be reported in another order.
    pub(super) fn is_later_than(&self, other: &Self) -> bool {
        self.newest_ns >= other.newest_ns
    }

    /// Number of bytes in the last checkpoint.
    pub(super) fn bytes(&self) -> u64 {
        self.last_bytes[0]
    }

    /// The state after a further checkpoint. `before`: the state before it.
    pub(super) fn after(self, before: &Self) -> Self {
        let mut after = self;
        after.appends |= before.appends;
        after.last_bytes[1..].copy_from_slice(&before.last_bytes[..LAST - 1]);
        if before.files == self.files {
            after.checkpoints = before.checkpoints.saturating_add(1);
        }
        if before.bytes() == self.bytes() {
            after.same_bytes = before.same_bytes.saturating_add(1);
        }
        after
    }

    /// Whether the rank has fewer files than `before`, or less than half of the bytes of each of the last checkpoints.
    /// Such a rank may still be writing. If the application pauses while it writes, the rank needs nine tenths of the
    /// bytes. `has_shrunk`: the rank has fewer bytes than in its last report of the same checkpoint, so it has begun to
    /// write the files again.
    pub(super) fn lacks(&self, before: Option<&Self>, has_shrunk: bool) -> bool {
        before.is_some_and(|before| {
            let usual = before.last_bytes.iter().copied().filter(|bytes| *bytes > 0).min().unwrap_or(0);
            let least = if before.appends && !has_shrunk { before.bytes() - before.bytes() / 10 } else { usual / 2 };
            self.files < before.files || self.bytes() < least
        })
    }

    /// Whether the rank has fewer bytes than `before`, although the number of bytes was the same in several
    /// checkpoints. If a process was killed, its last file is probably cut.
    pub(super) fn is_cut(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| self.bytes() < before.bytes() && before.same_bytes >= REGULAR_MIN)
    }

    /// Whether the rank has fewer files than `before`, although the number of files was the same in several
    /// checkpoints.
    pub(super) fn lacks_files(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| self.files < before.files && before.checkpoints >= REGULAR_MIN)
    }
}
