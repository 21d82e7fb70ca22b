//! Decides when a file is settled, and when a rank's part of a checkpoint is ready. This module does no I/O, and its
//! callers pass the time.
//!
//! A file is settled if four conditions hold. The file was closed after writing, or renamed to its name. No process
//! that `/proc` shows has the file open for writing. The file has been at rest for some time. If the file is HDF5,
//! its superblock agrees with its length. A rank is ready if all its known files are settled and nothing indicates
//! that more files will follow.

mod gone;
mod own;
mod readiness;
mod ready;
mod rewrites;
mod usual;

use crate::fingerprint::Fingerprint;
use crate::h5::End;
pub use gone::Gone;
pub use own::{Answer, NodeRanks, OwnRanks};
pub use readiness::Readiness;
pub use ready::{ReadyRank, SettledFile, WaitingRank, Why};

/// How long files and checkpoints must stay unchanged before they count as finished, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleRules {
    /// Minimum time at rest of a file after the kernel reported that the file was closed or renamed, in milliseconds.
    /// Default 200.
    pub quiet_ms: u64,
    /// Minimum time at rest of a file that only a scan found, in milliseconds. Only a scan finds a file if the kernel
    /// dropped events or the file system is a network file system. Default 2000.
    pub scan_quiet_ms: u64,
    /// Minimum time at rest of a file in doubt, in milliseconds. A file is in doubt if its superblock contradicts its
    /// length, or if the kernel did not report that the file was closed. Default 30000.
    pub doubt_quiet_ms: u64,
    /// Minimum time at rest of a checkpoint after its last event, before its ranks count as complete, in
    /// milliseconds. Default 500.
    pub checkpoint_quiet_ms: u64,
    /// Whether only this node writes to the file system. If only this node writes, `/proc` shows all writers, the
    /// file system uses this node's clock, and inotify reports every change.
    pub local: bool,
}

impl Default for SettleRules {
    fn default() -> Self {
        Self { quiet_ms: 200, scan_quiet_ms: 2_000, doubt_quiet_ms: 30_000, checkpoint_quiet_ms: 500, local: false }
    }
}

impl SettleRules {
    /// The rules after the job's processes have ended. The files do not change any more, so no quiet time is needed.
    #[must_use]
    pub fn without_quiet_times(self) -> Self {
        Self { quiet_ms: 0, scan_quiet_ms: 0, doubt_quiet_ms: 0, checkpoint_quiet_ms: 0, ..self }
    }
}

/// Minimum delay before the watcher checks again whether a file is open for writing, in milliseconds.
const OPEN_AGAIN_MS: u64 = 50;

/// The reason why the watcher looks at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The file was created. The process that created the file probably still has it open.
    Created,
    /// The content of the file changed.
    Modified,
    /// A process that had the file open for writing closed it.
    CloseWrite,
    /// The file was renamed to this name.
    MovedTo,
    /// There was no event: a scan found the file, or a wait has ended.
    Scan,
}

/// The state of a file that is not yet settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileState {
    seen: Option<Fingerprint>,
    still_since_ms: u64,
    /// Whether the kernel reported a close after writing, or a rename to this name, after the last change.
    closed: bool,
    /// Whether the kernel reported the creation of the file. On a local file system, the kernel will then also report
    /// that the file is closed.
    born: bool,
    /// Whether a writer has closed the file at least once.
    was_closed: bool,
    rest_ms: u64,
}

/// The result of a first, cheap look at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The file does not exist.
    Gone,
    /// The file has not been at rest for long enough. Look again at this time, in milliseconds.
    Wait(u64),
    /// The file has been at rest for long enough. Next, find out which processes have the file open, read its
    /// superblock, and call [`FileState::conclude`].
    Examine,
}

/// The result of a thorough look at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file is complete.
    Settled(Fingerprint),
    /// Look again at this time, in milliseconds. `None`: wait for an event of the kernel.
    Wait(Option<u64>),
    /// The file is at rest but incomplete: its writer died, or it is not a checkpoint. The file is not saved unless
    /// it changes.
    Cut(&'static str),
}

impl FileState {
    /// Time of the last write in nanoseconds since 1970. `None` if the file was not seen.
    pub fn modified_ns(&self) -> Option<i64> {
        self.seen.map(|seen| seen.modified_ns)
    }

    /// Takes the first look at a file. `now_ms` is a clock that never goes back. `seen` is the result of `lstat`.
    /// `age_ms` is the time since the last change by the wall clock. The age is used only if the file system uses
    /// this node's clock.
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
            // If the content changed after the file was closed, a process has opened the file again and must close it
            // again. A new name, mode or owner does not change the content.
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
            // A file that was created and not yet closed is being written, and the kernel will report when the file
            // is closed. After the first close, a change may be only a new modification time, and then no further
            // close follows.
            _ if self.born && !self.closed && !self.was_closed && rules.local => {
                Look::Wait(now_ms.saturating_add(rules.doubt_quiet_ms))
            }
            left_ms => Look::Wait(now_ms.saturating_add(left_ms)),
        }
    }

    /// Takes the thorough look, with the `now_ms` of the look that returned [`Look::Examine`]. `open_for_writing` is
    /// `None` if it is unknown whether a process has the file open for writing.
    pub fn conclude(&self, rules: &SettleRules, now_ms: u64, open_for_writing: Option<bool>, end: End) -> Verdict {
        let Some(seen) = self.seen else { return Verdict::Wait(None) };
        let rested = |needed_ms: u64, then: Verdict| match needed_ms.saturating_sub(self.rest_ms) {
            0 => then,
            left_ms => Verdict::Wait(Some(now_ms.saturating_add(left_ms))),
        };
        if open_for_writing == Some(true) {
            // On a local file system the kernel will report that the file is closed. On other file systems the
            // watcher looks again, with growing delays.
            let (least_ms, most_ms) = (rules.scan_quiet_ms.max(1), rules.doubt_quiet_ms.max(1));
            let again_ms = self.rest_ms.clamp(least_ms, most_ms.max(least_ms)).max(OPEN_AGAIN_MS);
            return Verdict::Wait((!rules.local).then(|| now_ms.saturating_add(again_ms)));
        }
        let no_writer = open_for_writing == Some(false) && rules.local;
        match end {
            End::Unknown | End::Agrees if self.born && !self.closed && !no_writer && rules.local => {
                rested(rules.doubt_quiet_ms, Verdict::Settled(seen))
            }
            End::Unknown | End::Agrees => Verdict::Settled(seen),
            End::Longer => rested(rules.doubt_quiet_ms, Verdict::Settled(seen)),
            End::Shorter => rested(rules.doubt_quiet_ms, Verdict::Cut("it is shorter than its HDF5 superblock says")),
            End::Unwritten => rested(rules.doubt_quiet_ms, Verdict::Cut("the HDF5 superblock was never written")),
            End::Marked => rested(rules.doubt_quiet_ms, Verdict::Cut("HDF5 marked the file as open for writing")),
        }
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
        // After 30 s the file has grown, and no close was reported.
        assert_eq!(file.observe(&LOCAL, 30_000, Hint::Scan, Some(print(5, 2)), Some(10_000)), Look::Examine);
        assert_eq!(file.conclude(&LOCAL, 30_000, None, End::Unknown), Verdict::Wait(Some(50_000)));
        assert_eq!(file.conclude(&LOCAL, 30_000, Some(true), End::Unknown), Verdict::Wait(None));
        // No process has the file open: the event was lost, or the file was linked to this name.
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
}
