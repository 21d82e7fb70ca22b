//! When a file is settled, and when a rank's part of a checkpoint is: decisions only, no I/O, time is an argument.
//!
//! A file is settled when it was closed after writing or renamed into place, nobody holds it open for writing as far
//! as the kernel can tell, it has rested for a while, and, for HDF5, its superblock agrees with its length. A rank is
//! ready when all its files that were seen are settled and nothing says that there will be more.

mod readiness;

use crate::fingerprint::Fingerprint;
use mcrengine::ids::FilePath;
pub use readiness::{OwnRanks, Readiness, ReadyRank, SettledFile, WaitingRank, Why};

/// How long things must rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleRules {
    /// After a close or a rename that the kernel told us of. Default 200 ms.
    pub quiet_ms: u64,
    /// Where we only see that the file is there: after an overflow, on a network file system. Default 2 s.
    pub scan_quiet_ms: u64,
    /// Where something contradicts: a superblock that disagrees, a writer that should have closed. Default 30 s.
    pub doubt_quiet_ms: u64,
    /// After the last event of a checkpoint, until its ranks are taken as complete. Default 500 ms.
    pub checkpoint_quiet_ms: u64,
    /// Whether the file system is this node's own: all its writers are in `/proc`, its clock is ours, and inotify tells
    /// of every change.
    pub local: bool,
}

impl Default for SettleRules {
    fn default() -> Self {
        Self { quiet_ms: 200, scan_quiet_ms: 2_000, doubt_quiet_ms: 30_000, checkpoint_quiet_ms: 500, local: false }
    }
}

impl SettleRules {
    /// The same once the job's processes are known to be gone: whatever will be written has been written, so quiet times
    /// count as over.
    #[must_use]
    pub fn without_quiet_times(self) -> Self {
        Self { quiet_ms: 0, scan_quiet_ms: 0, doubt_quiet_ms: 0, checkpoint_quiet_ms: 0, ..self }
    }
}

/// How soon, at the earliest, it is looked again whether a file is still open for writing, in milliseconds.
const OPEN_AGAIN_MS: u64 = 50;

/// What made us look at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It was created; whoever did has it open, presumably.
    Created,
    /// Its content changed.
    Modified,
    /// A writer closed it.
    CloseWrite,
    /// It was renamed to this name.
    MovedTo,
    /// Nothing: a scan found it, or it was time to look again.
    Scan,
}

/// What an HDF5 superblock says about the file's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Not HDF5, or nothing can be told.
    Unknown,
    /// The file ends where its superblock says.
    Agrees,
    /// The file is longer than its superblock says: written since its last flush, or something was appended to it.
    Longer,
    /// The file is shorter than its superblock says: not all of it is there.
    Shorter,
    /// Named as HDF5, but its superblock was never written.
    Unwritten,
    /// Marked as open for writing: the writer is at work, or died.
    Marked,
}

/// What is known about a file that is not settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileState {
    seen: Option<Fingerprint>,
    still_since_ms: u64,
    /// Since the last change, the kernel told that a writer closed it or that it was renamed into place.
    closed: bool,
    /// The kernel reported its creation; so it will report the close too, where it reports everything.
    born: bool,
    /// A writer has closed it once.
    was_closed: bool,
    rest_ms: u64,
}

/// What a first, cheap look at a file leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is not there.
    Gone,
    /// It must rest: look again at this time.
    Wait(u64),
    /// It has rested: find out who holds it open, read its superblock, and [`FileState::conclude`].
    Examine,
}

/// What a thorough look at a file leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is whole.
    Settled(Fingerprint),
    /// Look again at this time; `None`: the kernel will tell when there is reason to.
    Wait(Option<u64>),
    /// It rests, but is not whole: its writer died, or it is no checkpoint. Not to be taken unless it changes.
    Cut(&'static str),
}

impl FileState {
    /// When the file was written last, in nanoseconds since 1970; `None`: it was not seen.
    pub fn modified_ns(&self) -> Option<i64> {
        self.seen.map(|seen| seen.modified_ns)
    }

    /// A first look, at a time in milliseconds that never goes back. `seen` is what `lstat` says, `age_ms` how long ago
    /// the last change was by the wall clock, which counts only where the file system has the same one.
    pub fn observe(
        &mut self,
        rules: &SettleRules,
        now_ms: u64,
        hint: Hint,
        seen: Option<Fingerprint>,
        age_ms: Option<u64>,
    ) -> Look {
        let Some(seen) = seen else { return Look::Gone };
        if self.seen != Some(seen) {
            // A change after the close: it was opened again, so the close before says nothing. A new name, mode or owner
            // needs no writer, and changes nothing of the content.
            let is_same_content =
                self.seen.is_some_and(|was| Fingerprint { changed_ns: seen.changed_ns, ..was } == seen);
            let closed = self.closed && is_same_content;
            *self = Self { seen: Some(seen), still_since_ms: now_ms, closed, ..*self };
        }
        match hint {
            Hint::CloseWrite | Hint::MovedTo => (self.closed, self.was_closed) = (true, true),
            Hint::Created => (self.born, self.closed) = (true, false),
            Hint::Modified => (self.still_since_ms, self.closed) = (now_ms, false),
            Hint::Scan => {}
        }
        let age_ms = age_ms.filter(|_| rules.local).unwrap_or(0);
        self.rest_ms = age_ms.max(now_ms.saturating_sub(self.still_since_ms));
        let needed_ms = if self.closed { rules.quiet_ms } else { rules.quiet_ms.max(rules.scan_quiet_ms) };
        match needed_ms.saturating_sub(self.rest_ms) {
            0 => Look::Examine,
            // The close of a file that is being written will be reported. After a first close somebody may have set its time
            // only.
            _ if self.born && !self.closed && !self.was_closed && rules.local => {
                Look::Wait(now_ms.saturating_add(rules.doubt_quiet_ms))
            }
            left_ms => Look::Wait(now_ms.saturating_add(left_ms)),
        }
    }

    /// After [`Look::Examine`], at the same time. `open_for_writing` is `None` where that cannot be known.
    pub fn conclude(&self, rules: &SettleRules, now_ms: u64, open_for_writing: Option<bool>, end: End) -> Verdict {
        let Some(seen) = self.seen else { return Verdict::Wait(None) };
        let rested = |needed_ms: u64, then: Verdict| match needed_ms.saturating_sub(self.rest_ms) {
            0 => then,
            left_ms => Verdict::Wait(Some(now_ms.saturating_add(left_ms))),
        };
        if open_for_writing == Some(true) {
            // On this node's own file system the kernel tells of the close. Elsewhere we look again, less and less often.
            let (least_ms, most_ms) = (rules.scan_quiet_ms.max(1), rules.doubt_quiet_ms.max(1));
            let again_ms = self.rest_ms.clamp(least_ms, most_ms.max(least_ms)).max(OPEN_AGAIN_MS);
            return Verdict::Wait((!rules.local).then(|| now_ms.saturating_add(again_ms)));
        }
        let nobody = open_for_writing == Some(false) && rules.local;
        match end {
            End::Unknown | End::Agrees if self.born && !self.closed && !nobody && rules.local => {
                rested(rules.doubt_quiet_ms, Verdict::Settled(seen))
            }
            End::Unknown | End::Agrees => Verdict::Settled(seen),
            End::Longer => rested(rules.doubt_quiet_ms, Verdict::Settled(seen)),
            End::Shorter => rested(rules.doubt_quiet_ms, Verdict::Cut("it is shorter than its HDF5 superblock says")),
            End::Unwritten => rested(rules.doubt_quiet_ms, Verdict::Cut("its HDF5 superblock was never written")),
            End::Marked => rested(rules.doubt_quiet_ms, Verdict::Cut("HDF5 marked it as open for writing")),
        }
    }
}

const HDF5_SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// The longest part of a superblock that we read: version 1 with 8-byte addresses ends its addresses at 60.
const SUPERBLOCK_BYTES: usize = 64;

/// What the superblock says about a file of `bytes` bytes. `read_at` fills what it can from an offset and gives how
/// much that was. Source: HDF5 File Format Specification 3.0, section II.A.
pub fn hdf5_end<E>(
    path: &FilePath,
    bytes: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<End, E> {
    let mut block = [0u8; SUPERBLOCK_BYTES];
    let mut at = 0u64;
    loop {
        block.fill(0);
        let have = if at < bytes { read_at(at, &mut block)?.min(SUPERBLOCK_BYTES) } else { 0 };
        if have >= 8 && block[..8] == HDF5_SIGNATURE {
            return Ok(end_from(&block[..have], at, bytes));
        }
        let is_begun = (1..8).contains(&bytes) && HDF5_SIGNATURE.starts_with(&block[..have.min(8)]);
        if at == 0 && is_begun && (bytes >= 4 || is_named_hdf5(path)) {
            return Ok(End::Shorter);
        }
        if at == 0 && block[..8] == [0; 8] && is_named_hdf5(path) {
            // A user block may begin with zeros; a file of nothing else has not got its superblock yet.
            let mut next = [0u8; 8];
            let user_block = bytes > 512 && read_at(512, &mut next)? == 8 && next == HDF5_SIGNATURE;
            if !user_block {
                return Ok(End::Unwritten);
            }
        }
        // A user block has 512 bytes or a power of two above.
        at = if at == 0 { 512 } else { at * 2 };
        if at >= bytes || at > 1 << 30 {
            return Ok(End::Unknown);
        }
    }
}

fn is_named_hdf5(path: &FilePath) -> bool {
    [&b".h5"[..], b".hdf5", b".he5"].iter().any(|extension| path.name().ends_with(extension))
}

fn end_from(block: &[u8], at: u64, bytes: u64) -> End {
    let address = |at: usize, width: usize| -> Option<u64> {
        let digits = block.get(at..at + width)?;
        Some(digits.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    // Less than a superblock is there only where the file ends within it.
    let Some(&version) = block.get(8) else { return End::Shorter };
    let (width_at, base_at) = match version {
        0 => (13, 24),
        1 => (13, 28),
        2 | 3 => (9, 12),
        _ => return End::Unknown,
    };
    let width = match block.get(width_at) {
        Some(&width @ (2 | 4 | 8)) => usize::from(width),
        Some(_) => return End::Unknown,
        None => return End::Shorter,
    };
    let (Some(base), Some(end)) = (address(base_at, width), address(base_at + 2 * width, width)) else {
        return End::Shorter;
    };
    let undefined = u64::MAX >> (64 - 8 * width);
    // A driver of its own (family, multi) spreads the data over several files: nothing is told about this one.
    if version < 2 && address(base_at + 3 * width, width).is_some_and(|driver| driver != undefined) {
        return End::Unknown;
    }
    if version >= 2 && block.get(11).is_some_and(|flags| flags & 0b101 != 0) {
        return End::Marked;
    }
    // Relative to the base address, which need not have followed a user block that was put before the file later.
    match end.checked_sub(base).and_then(|length| length.checked_add(at)) {
        Some(expected) if expected == bytes => End::Agrees,
        Some(expected) if expected < bytes => End::Longer,
        Some(_) => End::Shorter,
        None => End::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: SettleRules = SettleRules {
        quiet_ms: 200,
        scan_quiet_ms: 2_000,
        doubt_quiet_ms: 30_000,
        checkpoint_quiet_ms: 500,
        local: true,
    };
    const NETWORK: SettleRules = SettleRules { local: false, ..LOCAL };

    fn print(bytes: u64, at: i64) -> Fingerprint {
        Fingerprint { device: 1, inode: 2, bytes, modified_ns: at, changed_ns: at }
    }

    #[test]
    fn a_closed_file_settles_after_its_rest() {
        let mut file = FileState::default();
        let seen = Some(print(9, 1));
        assert_eq!(file.observe(&LOCAL, 1_000, Hint::CloseWrite, seen, Some(0)), Look::Wait(1_200));
        assert_eq!(file.observe(&LOCAL, 1_200, Hint::Scan, seen, Some(200)), Look::Examine);
        assert_eq!(file.conclude(&LOCAL, 1_200, None, End::Unknown), Verdict::Settled(print(9, 1)));
    }

    #[test]
    fn a_change_after_the_close_starts_anew() {
        let mut file = FileState::default();
        file.observe(&LOCAL, 1_000, Hint::CloseWrite, Some(print(9, 1)), Some(0));
        assert_eq!(file.observe(&LOCAL, 1_200, Hint::Scan, Some(print(10, 2)), Some(0)), Look::Wait(3_200));
        assert_eq!(file.observe(&LOCAL, 1_300, Hint::CloseWrite, Some(print(11, 3)), Some(0)), Look::Wait(1_500));
        assert_eq!(file.observe(&LOCAL, 1_500, Hint::Scan, Some(print(11, 3)), Some(200)), Look::Examine);
    }

    #[test]
    fn a_file_that_is_linked_or_whose_mode_or_time_is_set_after_its_close_settles_soon() {
        for (modified_ns, needed_ms) in [(1, LOCAL.quiet_ms), (7, LOCAL.scan_quiet_ms)] {
            let mut file = FileState::default();
            file.observe(&LOCAL, 0, Hint::Created, Some(print(8, 1)), Some(0));
            file.observe(&LOCAL, 10, Hint::CloseWrite, Some(print(8, 1)), Some(0));
            let touched = Fingerprint { modified_ns, changed_ns: 9, ..print(8, 1) };
            let look = file.observe(&LOCAL, 100, Hint::Scan, Some(touched), Some(0));
            assert_eq!(look, Look::Wait(100 + needed_ms));
            assert_eq!(file.observe(&LOCAL, 100 + needed_ms, Hint::Scan, Some(touched), Some(0)), Look::Examine);
            let verdict = file.conclude(&LOCAL, 100 + needed_ms, Some(false), End::Unknown);
            assert_eq!(verdict, Verdict::Settled(touched));
        }
    }

    #[test]
    fn a_file_held_open_for_writing_waits_for_the_kernel_or_looks_again_less_often() {
        let mut file = FileState::default();
        file.observe(&LOCAL, 0, Hint::CloseWrite, Some(print(9, 1)), Some(0));
        file.observe(&LOCAL, 200, Hint::Scan, Some(print(9, 1)), Some(200));
        assert_eq!(file.conclude(&LOCAL, 200, Some(true), End::Agrees), Verdict::Wait(None));
        let mut file = FileState::default();
        file.observe(&NETWORK, 0, Hint::Scan, Some(print(9, 1)), Some(0));
        for (now_ms, again_ms) in [(2_000, 4_000), (4_000, 8_000), (60_000, 90_000)] {
            assert_eq!(file.observe(&NETWORK, now_ms, Hint::Scan, Some(print(9, 1)), None), Look::Examine);
            assert_eq!(file.conclude(&NETWORK, now_ms, Some(true), End::Agrees), Verdict::Wait(Some(again_ms)));
        }
    }

    #[test]
    fn a_slow_writer_is_waited_for() {
        let mut file = FileState::default();
        assert_eq!(file.observe(&LOCAL, 0, Hint::Created, Some(print(0, 1)), Some(0)), Look::Wait(30_000));
        // 30 s later it has grown; nobody told of a close.
        assert_eq!(file.observe(&LOCAL, 30_000, Hint::Scan, Some(print(5, 2)), Some(10_000)), Look::Examine);
        assert_eq!(file.conclude(&LOCAL, 30_000, None, End::Unknown), Verdict::Wait(Some(50_000)));
        assert_eq!(file.conclude(&LOCAL, 30_000, Some(true), End::Unknown), Verdict::Wait(None));
        // Nobody has it open: the close was missed, or it was linked to this name.
        assert_eq!(file.conclude(&LOCAL, 30_000, Some(false), End::Unknown), Verdict::Settled(print(5, 2)));
    }

    #[test]
    fn an_old_file_settles_at_once_where_the_clock_is_ours() {
        let mut file = FileState::default();
        assert_eq!(file.observe(&LOCAL, 5, Hint::Scan, Some(print(9, 1)), Some(60_000)), Look::Examine);
        let mut file = FileState::default();
        assert_eq!(file.observe(&NETWORK, 5, Hint::Scan, Some(print(9, 1)), Some(60_000)), Look::Wait(2_005));
    }

    #[test]
    fn a_file_cut_short_is_never_taken() {
        let mut file = FileState::default();
        file.observe(&LOCAL, 0, Hint::CloseWrite, Some(print(9, 1)), Some(0));
        for end in [End::Shorter, End::Unwritten, End::Marked] {
            file.observe(&LOCAL, 200, Hint::Scan, Some(print(9, 1)), Some(200));
            assert_eq!(file.conclude(&LOCAL, 200, Some(false), end), Verdict::Wait(Some(30_000)), "{end:?}");
            file.observe(&LOCAL, 30_000, Hint::Scan, Some(print(9, 1)), Some(30_000));
            let verdict = file.conclude(&LOCAL, 30_000, Some(false), end);
            assert!(matches!(verdict, Verdict::Cut(_)), "{end:?}: {verdict:?}");
        }
        assert_eq!(file.observe(&LOCAL, 30_001, Hint::Scan, None, None), Look::Gone);
    }

    #[test]
    fn nothing_settles_before_it_has_rested() {
        use proptest::prelude::*;
        let hints = [Hint::Created, Hint::Modified, Hint::CloseWrite, Hint::MovedTo, Hint::Scan];
        let looks = proptest::collection::vec((0..4_000u64, 0..5usize, 0..3i64, any::<Option<bool>>()), 1..30);
        proptest!(|(looks in looks, local: bool)| {
            let rules = SettleRules { local, ..LOCAL };
            let (mut file, mut now_ms, mut changed_ms, mut content) = (FileState::default(), 0, 0, -1);
            for (wait_ms, hint, next, open) in looks {
                now_ms += wait_ms;
                if next != content {
                    (content, changed_ms) = (next, now_ms);
                }
                let seen = Some(print(9, content));
                if file.observe(&rules, now_ms, hints[hint], seen, None) == Look::Examine {
                    prop_assert!(now_ms >= changed_ms + rules.quiet_ms);
                    match file.conclude(&rules, now_ms, open, End::Agrees) {
                        Verdict::Settled(settled) => prop_assert!(settled == print(9, content) && open != Some(true)),
                        Verdict::Wait(again_ms) => prop_assert!(again_ms.is_none_or(|at| at > now_ms)),
                        Verdict::Cut(why) => prop_assert!(false, "{why}"),
                    }
                }
            }
        });
    }

    /// A superblock of this version, alone, with a file length in it.
    fn superblock(version: u8, base: u64, end: u64, flags: u8) -> Vec<u8> {
        let mut block = [&HDF5_SIGNATURE[..], &[version]].concat();
        match version {
            0 => block.extend([0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0]),
            1 => block.extend([0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0, 32, 0, 0, 0]),
            _ => block.extend([8, 8, flags]),
        }
        for address in [base, u64::MAX, end, u64::MAX] {
            block.extend(address.to_le_bytes());
        }
        block.resize(96, 0);
        block
    }

    fn end_of(name: &str, content: &[u8]) -> End {
        let path = FilePath::new(name.as_bytes()).expect("valid");
        hdf5_end::<()>(&path, content.len() as u64, |at, into| {
            let from = &content[usize::try_from(at).expect("small").min(content.len())..];
            let n = from.len().min(into.len());
            into[..n].copy_from_slice(&from[..n]);
            Ok(n)
        })
        .expect("reads")
    }

    #[test]
    fn superblocks_of_all_versions_tell_where_the_file_ends() {
        for version in 0..=3 {
            let whole = |base, end, flags| superblock(version, base, end, flags);
            assert_eq!(end_of("x", &whole(0, 96, 0)), End::Agrees, "version {version}");
            assert_eq!(end_of("x", &whole(0, 95, 0)), End::Longer, "version {version}");
            assert_eq!(end_of("x", &whole(0, 97, 0)), End::Shorter, "version {version}");
            let user_block = |base, end| [vec![0; 1024], whole(base, end, 0)].concat();
            assert_eq!(end_of("x", &user_block(1024, 1120)), End::Agrees, "version {version}");
            assert_eq!(end_of("x", &user_block(0, 96)), End::Agrees, "put before later; version {version}");
            for cut in 1..96 {
                assert_eq!(end_of("x.h5", &whole(0, 96, 0)[..cut]), End::Shorter, "version {version}, {cut} bytes");
            }
        }
        assert_eq!(end_of("x", &superblock(3, 0, 96, 1)), End::Marked);
        assert_eq!(end_of("x", &superblock(3, 0, 96, 4)), End::Marked);
        assert_eq!(end_of("x", &superblock(9, 0, 96, 0)), End::Unknown);
        assert_eq!(end_of("x.h5", b""), End::Unwritten);
        assert_eq!(end_of("x.h5", &[0; 4096]), End::Unwritten);
        assert_eq!(end_of("x.h5", b"not HDF5 whatever its name"), End::Unknown);
        assert_eq!(end_of("x.h5", &[vec![0; 512], superblock(0, 512, 608, 0)].concat()), End::Agrees);
        assert_eq!(end_of("x.bin", b""), End::Unknown);
        assert_eq!(end_of("x.bin", &[0; 4096]), End::Unknown);
    }
}
