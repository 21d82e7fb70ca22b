//! Computes how long a checkpoint must be at rest if the application writes its files again under the same names.
//!
//! Such an application writes the files of a step one after the other, makes a pause, and begins the next step. The
//! checkpoint is whole only during the pause. During a step, the files of two steps are in the directory. If these
//! files are sorted by the times of their writes, the longest gap between two consecutive times is the pause between
//! the steps. So if no file was written for longer than the longest gap, all files are of one step.
//!
//! If one process writes long after the others, the longest gap is within the step. The first contents of the files
//! show which files are written first in a step.

use mcrengine::ids::{FilePath, Rank};
use mcrengine::turns::{WrittenFile, are_alike, are_named_in_turn, are_sets_in_turn, may_be_used_in_turn};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum time at rest, in percent of the longest time between two files of the checkpoint.
const REST_PERCENT: i128 = 125;
/// A gap between two files is long if this number of gaps is longer than the time from one step to the next.
const AMBIGUOUS: i128 = 5;
/// Maximum number of files whose previous times are known. With more files, those of removed files are forgotten.
const VERSIONS_MAX: usize = 4096;
/// Maximum time for which a checkpoint that changes again and again is not announced, in multiples of the longest
/// quiet time. After this time the aggregator judges the files.
const POSTPONED_MAX: u64 = 20;

/// The previous times of the files of a checkpoint. Only files that were written again have an entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewrites {
    versions: BTreeMap<FilePath, Version>,
    /// When the newest of all replaced contents was written. This is the change time (ctime), in nanoseconds since
    /// 1970.
    newest_ns: Option<i64>,
    /// Since when the checkpoint has waited for a longer time at rest, in milliseconds of the caller's clock.
    waits_since_ms: Option<u64>,
    /// Whether some of the files existed when the watcher began. The application may then be in the middle of a step.
    is_joined: bool,
}

/// Times in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// Time of the last content that was replaced.
    last_ns: i64,
    /// Time of the content that was replaced before the last replaced content.
    before_ns: Option<i64>,
    first: First,
}

/// The first content that the application wrote to a file.
#[derive(Clone, Copy, Debug)]
enum First {
    /// The file existed when the watcher began.
    Unknown,
    /// A restart wrote the replaced content. The next content is the first one.
    Next,
    /// Time of the content, in nanoseconds since 1970.
    At(i64),
}

/// What the order of the first contents says about the present contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Some of the first contents may be older than the watcher.
    Unknown,
    /// The first contents show no order, or the present contents are not in this order.
    Unclear,
    /// All files are of one step.
    Whole,
    /// Some files are of the next step. The other files follow after about this time, in nanoseconds.
    Mixed(i128),
}

/// Times by the caller's clock, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) now_ms: u64,
    /// When a file of the checkpoint was last written.
    pub(super) written_ms: u64,
    /// The longest quiet time.
    pub(super) longest_ms: u64,
}

/// The result of judging the times of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// The time until which the checkpoint must be at rest, in milliseconds of the caller's clock.
    pub(super) until_ms: u64,
    /// If the files may be of two steps when they are taken now: when the newest of the replaced contents was written.
    /// This is the change time (ctime), in nanoseconds since 1970.
    pub(super) doubt_ns: Option<i64>,
    /// The time from the content before to the present content, in nanoseconds. 0 if the application replaced no
    /// content, or only what a restart wrote.
    pub(super) interval_ns: u64,
}

impl Rewrites {
    /// Records that the files that are known now existed when the watcher began.
    pub(super) fn joined(&mut self) {
        self.is_joined = true;
    }

    /// Records that a content is replaced, or is about to be replaced. `at_ns` is the modification time of the content,
    /// and `changed_ns` its change time. `is_restored`: a restart wrote the content.
    pub(super) fn replaced(&mut self, path: &FilePath, at_ns: i64, changed_ns: i64, is_restored: bool) {
        self.newest_ns = self.newest_ns.max(Some(changed_ns));
        let first = match () {
            () if is_restored => First::Next,
            () if self.is_joined => First::Unknown,
            () => First::At(at_ns),
        };
        let version =
            self.versions.entry(path.clone()).or_insert_with(|| Version { last_ns: at_ns, before_ns: None, first });
        if version.last_ns != at_ns {
            let first = if matches!(version.first, First::Next) { First::At(at_ns) } else { version.first };
            *version = Version { last_ns: at_ns, before_ns: Some(version.last_ns), first };
        }
    }

    /// Records that a file was removed, for example because the application renamed it before it writes the file again.
    /// `was`: the modification time and the change time of its content, if the content was known. So the renamed file
    /// does not look like a file that was written before the others in the same step.
    pub(super) fn removed(&mut self, path: &FilePath, was: Option<(i64, i64)>) {
        match was {
            Some((at_ns, changed_ns)) if self.versions.len() < VERSIONS_MAX => {
                self.replaced(path, at_ns, changed_ns, false)
            }
            _ => drop(self.versions.remove(path)),
        }
    }

    /// Records that the checkpoint was announced.
    pub(super) fn announced(&mut self) {
        self.waits_since_ms = None;
    }

    fn previous_ns(&self, file: &WrittenFile<'_>) -> Option<i128> {
        let version = self.versions.get(file.path)?;
        let before = if i128::from(version.last_ns) == file.at_ns { version.before_ns } else { Some(version.last_ns) };
        before.map(i128::from)
    }

    /// When the application wrote the first content of a file.
    fn first_ns(&self, file: &WrittenFile<'_>) -> Option<i128> {
        match self.versions.get(file.path).map(|version| version.first) {
            Some(First::At(at_ns)) => Some(i128::from(at_ns)),
            Some(First::Next) => Some(file.at_ns),
            None if !self.is_joined => Some(file.at_ns),
            Some(First::Unknown) | None => None,
        }
    }

    /// When the application wrote the first content of these files: the time of the newest one, in nanoseconds since
    /// 1970. `None` if a first content may be older than the watcher.
    pub(super) fn first_of<'a>(&self, files: impl Iterator<Item = WrittenFile<'a>>) -> Option<i64> {
        let firsts = files.map(|file| self.first_ns(&file)).collect::<Option<Vec<_>>>()?;
        i64::try_from(firsts.into_iter().max()?).ok()
    }

    /// Divides the files of a step at the longest gap between their first contents. If there is still a gap between the
    /// two parts, each step is written in this order.
    fn order(&self, step: &[WrittenFile<'_>], cycle_ns: i128) -> Order {
        let firsts = step.iter().map(|file| Some((self.first_ns(file)?, file)));
        let Some(mut firsts) = firsts.collect::<Option<Vec<_>>>() else { return Order::Unknown };
        firsts.sort_unstable_by_key(|(first_ns, _)| *first_ns);
        let gaps = firsts.windows(2).map(|pair| pair[1].0 - pair[0].0).enumerate();
        let Some((last, gap_ns)) = gaps.max_by_key(|(_, gap_ns)| *gap_ns) else { return Order::Unclear };
        let (early, late) = firsts.split_at(last + 1);
        let late_ns = late.iter().map(|(_, file)| file.at_ns).min().unwrap_or(0);
        let is_ahead = |file: &WrittenFile<'_>| file.at_ns > late_ns;
        let early_ns = early.iter().filter_map(|(_, file)| match is_ahead(file) {
            true => self.previous_ns(file),
            false => Some(file.at_ns),
        });
        // All early files were written since the late files of the step before.
        let are_rewritten = || {
            let before = late.iter().map(|(_, file)| self.previous_ns(file)).collect::<Option<Vec<_>>>();
            let before_ns = before.and_then(|before| before.into_iter().max());
            before_ns.is_some_and(|before_ns| early.iter().all(|(_, file)| file.at_ns > before_ns))
        };
        let Some(now_ns) = early_ns.max().map(|early_ns| late_ns - early_ns) else { return Order::Unclear };
        match () {
            // If the gap is nearly a whole cycle, the late files are written at once with the early files, or before
            // them, and the first content of a file was of an earlier step.
            () if now_ns <= 0 || now_ns * 10 > cycle_ns * 9 => Order::Unclear,
            // The first files were written nearly at once, in an order by chance.
            () if gap_ns * 5 < now_ns => Order::Unclear,
            () if early.iter().any(|(_, file)| is_ahead(file)) => Order::Mixed(gap_ns.max(now_ns)),
            () if are_rewritten() => Order::Whole,
            () => Order::Unclear,
        }
    }

    /// Judges the files of the checkpoint. If no file was written again, the checkpoint needs no rest.
    pub(super) fn rest<'a>(&mut self, clock: Clock, files: impl Iterator<Item = WrittenFile<'a>> + Clone) -> Rest {
        let Clock { now_ms, written_ms, longest_ms } = clock;
        let none = Rest { until_ms: written_ms, doubt_ns: None, interval_ns: 0 };
        if self.versions.is_empty() {
            return none;
        }
        // `newest` is the newest file that was written again. Files that were not written since the previous version
        // of `newest` are not written in each step, or they are still of the step before.
        let again = files.clone().filter_map(|file| Some((file, self.previous_ns(&file)?)));
        let Some((newest, since_ns)) = again.max_by_key(|(file, _)| file.at_ns) else { return none };
        let cycle_ns = newest.at_ns - since_ns;
        let is_first = self.versions.get(newest.path).is_some_and(|version| matches!(version.first, First::Next));
        // A file with the time of another file's previous version is this version under another name.
        let before: BTreeSet<(Option<Rank>, i128)> =
            files.clone().filter_map(|file| Some((file.rank, self.previous_ns(&file)?))).collect();
        let is_copy = |file: &WrittenFile<'_>| before.contains(&(file.rank, file.at_ns));
        let is_behind = |file: &WrittenFile<'_>| {
            let is_as_frequent = || self.previous_ns(file).is_some_and(|ns| (file.at_ns - ns) * 2 <= cycle_ns * 3);
            newest.at_ns - file.at_ns < cycle_ns * 2 && is_as_frequent() && !is_copy(file)
        };
        let mut step: Vec<WrittenFile<'a>> =
            files.clone().filter(|file| file.at_ns > since_ns || is_behind(file)).collect();
        step.sort_unstable_by_key(|file| file.at_ns);
        let times = || step.windows(2).map(|pair| pair[1].at_ns - pair[0].at_ns);
        let longest_ns = times().max().unwrap_or(0);
        let before_ns = step.first().map_or(0, |first| first.at_ns - since_ns);
        let is_regular = are_alike(longest_ns, before_ns);
        let are_partners = if is_regular { may_be_used_in_turn } else { are_named_in_turn };
        let are_in_turn = are_sets_in_turn(&step, are_partners);
        let order = if are_in_turn { Order::Unclear } else { self.order(&step, cycle_ns) };
        // If the order is not known, a long gap within the step may be the pause, and the pause such a gap.
        let is_ambiguous = order == Order::Unknown && longest_ns * AMBIGUOUS > cycle_ns;
        let needed_ns = match order {
            Order::Unclear if are_in_turn => times().filter(|ns| !are_alike(*ns, longest_ns)).max().unwrap_or(0),
            Order::Whole if longest_ns > before_ns => 0,
            Order::Unknown if is_ambiguous => longest_ns.max(before_ns),
            Order::Unknown | Order::Unclear | Order::Whole => longest_ns,
            Order::Mixed(gap_ns) => gap_ns.max(longest_ns),
        };
        let needed_ms = ms_of(needed_ns * REST_PERCENT / 100);
        let cycle_ms = ms_of(cycle_ns);
        let postponed_ms = cycle_ms.clamp(longest_ms, longest_ms.saturating_mul(POSTPONED_MAX));
        let since_ms = *self.waits_since_ms.get_or_insert(now_ms);
        let until_ms = written_ms.saturating_add(needed_ms.min(longest_ms));
        let rested_ms = now_ms.saturating_sub(written_ms);
        let was_pause = before_ns > longest_ns && !is_regular;
        let is_doubtful = match order {
            // The application may have been killed within a step: no rest shows that the files are of one step.
            Order::Unknown if is_ambiguous => true,
            Order::Unknown | Order::Unclear => !are_in_turn && !was_pause && rested_ms < needed_ms,
            Order::Whole => false,
            // An application that was killed never writes the other files.
            Order::Mixed(_) => true,
        };
        Rest {
            until_ms: until_ms.min(since_ms.saturating_add(postponed_ms)),
            doubt_ns: self.newest_ns.filter(|_| is_doubtful),
            interval_ns: if is_first { 0 } else { u64::try_from(cycle_ns).unwrap_or(0) },
        }
    }
}

fn ms_of(ns: i128) -> u64 {
    u64::try_from(ns / 1_000_000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time at rest that the checkpoint needs after these writes, in milliseconds, and whether there is doubt
    /// without this rest. Each write is a name and a time in milliseconds. The longest quiet time is 30 s.
    fn rest(writes: &[(&str, i64)]) -> (u64, bool) {
        rest_of(writes, false)
    }

    /// `is_joined`: the files existed when the watcher began.
    fn rest_of(writes: &[(&str, i64)], is_joined: bool) -> (u64, bool) {
        let (mut rewrites, mut now) = (Rewrites { is_joined, ..Rewrites::default() }, BTreeMap::new());
        for (name, at_ms) in writes {
            let path = FilePath::new(name.as_bytes()).expect("valid");
            if let Some(before_ns) = now.insert(path.clone(), at_ms * 1_000_000) {
                rewrites.replaced(&path, before_ns, before_ns, false);
            }
        }
        let rank_of = |path: &FilePath| if path.as_bytes() == b"restart.1" { Rank(1) } else { Rank(0) };
        let files =
            now.iter().map(|(path, at_ns)| WrittenFile { rank: Some(rank_of(path)), path, at_ns: i128::from(*at_ns) });
        let clock = Clock { now_ms: 100, written_ms: 100, longest_ms: 30_000 };
        let Rest { until_ms, doubt_ns, .. } = rewrites.rest(clock, files);
        (until_ms - 100, doubt_ns.is_some())
    }

    #[test]
    fn files_of_two_steps_need_a_longer_rest_than_the_pause_between_the_steps() {
        let step = |at: i64| [("r", at), ("s", at + 400), ("t", at + 800)];
        let whole = [step(0), step(2_000)].concat();
        let then = |writes: &[(&'static str, i64)]| rest(&[&whole[..], writes].concat());
        assert_eq!(rest(&step(0)), (0, false), "no name was written again");
        assert_eq!(rest(&whole), (500, false), "the files of a step are written 400 ms apart, after a pause");
        assert_eq!(then(&[("r", 4_000)]), (1_500, true), "the pause is 1.2 s");
        assert_eq!(then(&[("r", 4_000), ("s", 4_400)]), (1_500, true));
        assert_eq!(then(&step(4_000)), (500, false));
        assert_eq!(rest(&[&step(0)[..], &[("r", 2_000), ("new", 2_100)]].concat()), (1_500, true), "a new name");
        assert_eq!(then(&[("r", 60_000)]), (30_000, true), "at most the longest quiet time");
        assert_eq!(rest(&[("r", 0), ("s", 1_000), ("r", 5_000)]), (5_000, true), "two files of a step");
    }

    #[test]
    fn files_that_are_used_in_turn_or_that_are_never_rewritten_need_no_longer_rest() {
        assert_eq!(rest(&[("c.a", 0), ("c.b", 10_000), ("c.a", 20_000)]), (0, false));
        let sets = [("c.a", 0), ("d.a", 200), ("c.b", 10_000), ("d.b", 10_200), ("c.a", 20_000), ("d.a", 20_200)];
        assert_eq!(rest(&sets), (250, false));
        assert_eq!(rest(&[("c.a", 0), ("c.b", 10_000), ("c.a", 60_000)]), (0, false), "irregular");
        assert_eq!(rest(&[("a", 0), ("b", 10_000), ("a", 20_000)]), (0, false), "regular");
        assert_eq!(rest(&[("mesh", 0), ("w", 10), ("w", 9_000), ("w", 18_000)]), (0, false));
    }

    #[test]
    fn an_older_copy_that_was_made_by_renaming_is_no_file_of_the_step() {
        let [restart, backup] = ["restart.h5", "backup.h5"].map(|name| FilePath::new(name.as_bytes()).expect("valid"));
        let (mut rewrites, second) = (Rewrites::default(), 1_000_000_000);
        rewrites.removed(&restart, Some((0, 0)));
        rewrites.removed(&restart, Some((10 * second, 10 * second)));
        rewrites.replaced(&backup, 0, 10 * second, false);
        let files = [(&backup, 10), (&restart, 20)];
        let files = files.map(|(path, at)| WrittenFile { rank: None, path, at_ns: i128::from(at * second) });
        let rest = rewrites.rest(Clock { now_ms: 100, written_ms: 100, longest_ms: 30_000 }, files.into_iter());
        assert_eq!(rest, Rest { until_ms: 100, doubt_ns: None, interval_ns: 10 * second as u64 });
    }

    #[test]
    fn a_file_that_is_written_in_each_step_but_not_in_the_last_one_is_of_the_step_before() {
        let steps = |step: std::ops::Range<i64>, first: &'static str, second: &'static str| -> Vec<_> {
            step.flat_map(|step| [(first, step * 800), (second, step * 800 + 2)]).collect()
        };
        for (first, second) in [("restart.0", "restart.1"), ("restart.1", "restart.0")] {
            let whole = steps(0..5, first, second);
            assert!(!rest(&whole).1, "the last step is whole");
            // The names of the last step came in another order, or in the same one.
            for last in [first, second] {
                assert!(rest(&[&whole[..], &[(last, 4_000)]].concat()).1, "{last} alone is of the last step");
            }
        }
        // A file that is written less often, and one that is no longer written, are of no step.
        let seldom = [&[("mesh", 0), ("mesh", 3_195)][..], &steps(0..5, "restart.0", "restart.1")].concat();
        assert!(!rest(&seldom).1);
        let no_more = [&[("begin", 0), ("begin", 700)][..], &steps(0..5, "restart.0", "restart.1")].concat();
        assert!(!rest(&no_more).1);
    }

    #[test]
    fn a_process_that_writes_long_after_the_others_makes_no_checkpoint_of_two_steps() {
        let step = |at: i64| [("restart.0", at), ("restart.1", at + 1_500)];
        let after = |first: &[(&'static str, i64)], writes: &[(&'static str, i64)]| rest(&[first, writes].concat());
        // The pause between the steps is 0.4 s.
        assert_eq!(after(&step(0), &[("restart.0", 1_900)]), (1_875, true));
        assert_eq!(after(&step(0), &step(1_900)), (0, false));
        assert_eq!(after(&step(0), &[step(1_900), step(3_800)].concat()), (0, false));
        assert_eq!(after(&step(0), &[&step(1_900)[..], &[("restart.0", 3_800)]].concat()), (1_875, true));
        // If the agent began later, it cannot know whether 0.4 s or 1.5 s is the pause.
        let joined = |writes: &[(&'static str, i64)]| rest_of(writes, true);
        assert_eq!(joined(&[&step(0)[..], &[("restart.0", 1_900)]].concat()), (1_875, true));
        assert_eq!(joined(&[step(0), step(1_900)].concat()), (1_875, true));
        assert_eq!(joined(&[step(0), step(60_000)].concat()), (1_875, false), "the pause is far longer");
        // If the process wrote its first file in a step before, the first files do not show the order.
        let late = [("restart.0", 0), ("restart.1", 1_900), ("restart.0", 1_902)];
        let step = |at: i64| [("restart.1", at), ("restart.0", at + 2)];
        assert_eq!(after(&late, &step(3_800)), (2, false));
        assert_eq!(after(&late, &step(3_800)[..1]), (2_372, true));
    }

    #[test]
    fn a_restored_file_is_not_the_first_content_and_a_file_that_was_there_before_is_none() {
        let path = FilePath::new("restart.0".as_bytes()).expect("valid");
        let first = |is_joined: bool, is_restored: bool| {
            let mut rewrites = Rewrites { is_joined, ..Rewrites::default() };
            rewrites.replaced(&path, 1, 1, is_restored);
            let after_one = rewrites.first_ns(&WrittenFile { rank: None, path: &path, at_ns: 5 });
            rewrites.replaced(&path, 5, 5, false);
            (after_one, rewrites.first_ns(&WrittenFile { rank: None, path: &path, at_ns: 9 }))
        };
        assert_eq!(first(false, false), (Some(1), Some(1)));
        assert_eq!(first(true, true), (Some(5), Some(5)));
        assert_eq!(first(true, false), (None, None));
    }

    #[test]
    fn files_that_are_written_at_equal_intervals_are_doubtful_until_the_checkpoint_is_at_rest() {
        assert_eq!(rest(&[("w", 0), ("coor", 10_000), ("w", 20_000)]), (12_500, true));
    }

    #[test]
    fn a_checkpoint_that_is_never_at_rest_is_announced_after_a_cycle() {
        let paths = ["w", "coor"].map(|name| FilePath::new(name.as_bytes()).expect("valid"));
        let (mut rewrites, mut until) = (Rewrites::default(), Vec::new());
        rewrites.replaced(&paths[0], 0, 0, false);
        for now_ms in [50_000, 70_000, 90_000] {
            let clock = Clock { now_ms, written_ms: now_ms, longest_ms: 30_000 };
            let files = [(0, 50_000_000_000), (1, 10_000_000_000)];
            let files = files.map(|(nth, at_ns)| WrittenFile { rank: None, path: &paths[nth], at_ns });
            until.push(rewrites.rest(clock, files.into_iter()).until_ms);
        }
        assert_eq!(until, [80_000, 100_000, 100_000], "30 s at rest, and at most 50 s after the first wait");
    }
}
