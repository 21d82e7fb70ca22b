//! Finds out from modification times whether the files of a rank belong to one step.
//!
//! An application writes the files of a step one after the other, and rewrites these files in each step. So the times
//! of writing form a cycle: the files of a step, a pause, the files of the next step. The earlier contents show the
//! length of the cycle. The pause is the longest time between two successive files of the cycle. If the longest time
//! is between two files of the content, the content has files of two steps, and the files before the longest time are
//! of the previous step.

use mcrengine::header::FileHeader;
use mcrengine::ids::{Digest, FilePath};
use mcrengine::manifest::ManifestFile;
use mcrengine::turns::{WrittenFile, are_sets_in_turn, may_be_used_in_turn};
use std::collections::BTreeMap;

/// The properties that show whether a file was written again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Content<'a> {
    pub(super) path: &'a FilePath,
    pub(super) digest: Digest,
    pub(super) modified_ns: i64,
}

impl<'a> Content<'a> {
    pub(super) fn of(file: &'a FileHeader) -> Self {
        Self { path: &file.path, digest: file.digest, modified_ns: file.modified_ns }
    }

    pub(super) fn of_manifest(file: &'a ManifestFile) -> Self {
        Self { path: &file.path, digest: file.digest, modified_ns: file.modified_ns }
    }
}

/// The result of judging the times of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times<'a> {
    /// The files belong to one step.
    OneStep,
    /// The files belong to two steps. `awaited` is a file of the earlier step. `is_sure`: whether the earlier
    /// contents show that the application rewrites all files of the earlier step.
    TwoSteps { awaited: &'a FilePath, is_sure: bool },
    /// The pause and the longest time inside the content are about equal: the application uses several files in turn,
    /// or writes without a pause.
    Unclear,
}

/// Maximum number of the last rewrites of a file from which the length of the cycle is computed.
const REWRITES_MAX: usize = 8;
/// Minimum difference between the pause after a content and the longest time between two files of the content, in
/// percent of the shorter time. With a smaller difference, the times show nothing, because the application may use
/// several files in turn.
const ALIKE_PERCENT: i128 = 25;
/// A file whose interval between two rewrites is above this limit is not rewritten in each step, so its times are not
/// used. The limit is in percent of the length of the cycle. The limit is above 200, because a file that is rewritten
/// in each step has an interval of two cycles if the content between was not saved.
const RARE_PERCENT: i128 = 250;

/// Judges the files of a rank. `before` has the earlier contents of the rank, the oldest content first. Returns
/// `None` if the times show nothing.
pub fn judge<'a>(before: &[&[Content<'a>]], files: &[Content<'a>]) -> Option<Times<'a>> {
    let mut versions: BTreeMap<&FilePath, Vec<i128>> = BTreeMap::new();
    for file in before.iter().flat_map(|content| content.iter()).chain(files) {
        let times = versions.entry(file.path).or_default();
        if times.last() != Some(&i128::from(file.modified_ns)) {
            times.push(i128::from(file.modified_ns));
        }
    }
    // A file may belong to the cycle if it was written after the previous version of the newest file.
    let newest = files.iter().max_by_key(|file| file.modified_ns)?;
    let previous = |path: &FilePath| versions.get(path)?.iter().rev().nth(1).copied();
    let since = previous(newest.path)?;
    let interval = |path: &FilePath| versions.get(path).and_then(|times| median_interval(times));
    let recent = || files.iter().filter(|file| i128::from(file.modified_ns) > since);
    let cycle = recent().filter_map(|file| interval(file.path)).min().filter(|cycle| *cycle > 0)?;
    let is_rare = |path: &FilePath| interval(path).is_some_and(|own| own * 100 > cycle * RARE_PERCENT);
    let in_cycle = recent().filter(|file| !is_rare(file.path));
    let mut times: Vec<(i128, &'a FilePath)> = in_cycle.map(|file| (i128::from(file.modified_ns), file.path)).collect();
    times.sort_unstable();
    let ((first, _), (last, newest)) = (times.first()?, times.last()?);
    let longest = times.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].0)).max()?;
    let (inside, until) = longest;
    // The pause before the content is computed in two ways, because contents may be missing, and because the
    // application may take different times for its steps. The shorter result is used.
    let before = previous(newest).map(|time| first - time);
    let pause = before.unwrap_or(i128::MAX).min(cycle - (last - first)).max(0);
    let is_longer = |one: i128, other: i128| one * 100 > other * (100 + ALIKE_PERCENT);
    if is_longer(pause, inside) {
        return Some(Times::OneStep);
    }
    let sorted: Vec<WrittenFile<'_>> =
        times.iter().map(|(at_ns, path)| WrittenFile { rank: None, path, at_ns: *at_ns }).collect();
    let mut earlier = times.iter().filter(|(time, _)| *time <= until).map(|(_, path)| *path);
    let is_sure = earlier.clone().all(|path| previous(path).is_some());
    match is_longer(inside, pause) {
        true => earlier.next().map(|awaited| Times::TwoSteps { awaited, is_sure }),
        false if are_sets_in_turn(&sorted, may_be_used_in_turn) => None,
        false => Some(Times::Unclear),
    }
}

/// The median of the last intervals between the versions of a file. If there are two middle intervals, the result is
/// the shorter interval, because a longer interval may be the time of several steps. `None` if the file has had only
/// one version.
pub(super) fn median_interval(versions: &[i128]) -> Option<i128> {
    let mut intervals: Vec<i128> = versions.windows(2).rev().take(REWRITES_MAX).map(|pair| pair[1] - pair[0]).collect();
    intervals.sort_unstable();
    intervals.get(intervals.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges the last content. Each content has pairs of a file name and a time in tenths of a second.
    fn of(contents: &[&[(&str, i64)]]) -> &'static str {
        let paths: BTreeMap<&str, FilePath> = (contents.iter().flat_map(|content| content.iter()))
            .map(|(name, _)| (*name, FilePath::new(name.as_bytes()).expect("valid")))
            .collect();
        let digest = Digest::of(b"");
        let mut all: Vec<Vec<Content<'_>>> = Vec::new();
        for files in contents {
            let file = |name: &str, at: i64| Content { path: &paths[name], digest, modified_ns: at * 100_000_000 };
            all.push(files.iter().map(|(name, at)| file(name, *at)).collect());
        }
        let (now, before) = all.split_last().expect("at least one");
        let before: Vec<&[Content<'_>]> = before.iter().map(Vec::as_slice).collect();
        match judge(&before, now) {
            None => "nothing",
            Some(Times::OneStep) => "one step",
            Some(Times::TwoSteps { is_sure: true, .. }) => "two steps",
            Some(Times::TwoSteps { is_sure: false, .. }) => "perhaps two steps",
            Some(Times::Unclear) => "unclear",
        }
    }

    #[test]
    fn the_longest_time_between_two_files_separates_the_steps() {
        let (one, two) = (&[("w", 10), ("c", 18)][..], &[("w", 35), ("c", 43)][..]);
        assert_eq!(of(&[one]), "nothing", "the length of a step is not known");
        assert_eq!(of(&[one, two]), "one step");
        assert_eq!(of(&[one, two, &[("w", 60), ("c", 43)]]), "two steps");
        assert_eq!(of(&[one, two, &[("w", 60), ("c", 68)]]), "one step");
        assert_eq!(of(&[one, &[("w", 35), ("c", 18)]]), "perhaps two steps", "nobody saw that c is rewritten");
        assert_eq!(of(&[&[("w", 10)], one, two]), "one step", "the first content had only one file");
        let three = [("a", 0), ("b", 10), ("c", 20)].map(|(name, at)| (name, at + 40));
        let begun = [("a", 0), ("b", 10), ("c", 20)];
        assert_eq!(of(&[&begun, &three]), "one step");
        assert_eq!(of(&[&begun, &three, &[("a", 80), ("b", 50), ("c", 60)]]), "two steps");
        assert_eq!(of(&[&begun, &three, &[("a", 80), ("b", 90), ("c", 60)]]), "two steps");
    }

    #[test]
    fn steps_of_different_lengths_are_told_apart_by_the_pause_before_the_content() {
        let (one, two, three) = ([("a", 0), ("b", 5)], [("a", 40), ("b", 60)], [("a", 140), ("b", 150)]);
        assert_eq!(of(&[&one, &two, &three]), "one step");
        assert_eq!(of(&[&one, &two, &[("a", 140), ("b", 60)]]), "two steps");
        assert_eq!(of(&[&one, &two, &three, &[("a", 170), ("b", 150)]]), "two steps");
        assert_eq!(of(&[&one, &two, &three, &[("a", 170), ("b", 175)]]), "one step");
        // Two steps were not saved, and the next step is half written.
        let regular = |step: i64| [("a", step * 40), ("b", step * 40 + 10)];
        assert_eq!(of(&[&regular(0), &regular(1), &[("a", 160), ("b", 130)]]), "two steps");
        assert_eq!(of(&[&regular(0), &regular(1), &regular(4)]), "one step");
    }

    #[test]
    fn files_that_are_written_without_a_pause_are_unclear_and_files_that_are_used_in_turn_are_not() {
        for [one, other] in [["WAVECAR", "CHGCAR"], ["run.coor", "run.vel"]] {
            let first = [(one, 0), (other, 10)];
            assert_eq!(of(&[&first, &[(one, 20), (other, 10)], &[(one, 20), (other, 30)]]), "unclear");
        }
        let three = [("a", 0), ("b", 10), ("c", 20)];
        assert_eq!(of(&[&three, &[("a", 30), ("b", 10), ("c", 20)]]), "unclear");
        for [one, other] in [["r.a", "r.b"], ["chk.0.h5", "chk.1.h5"], ["s", "s_prev"], ["x.old", "x.new"]] {
            assert_eq!(of(&[&[(one, 0)], &[(one, 0), (other, 10)], &[(one, 20), (other, 10)]]), "nothing");
        }
    }

    #[test]
    fn files_that_are_rewritten_rarely_or_never_show_nothing() {
        assert_eq!(of(&[&[("m", 0), ("a", 10)], &[("m", 0), ("a", 20)]]), "nothing", "m is older than a step");
        let rarely = [("p", 5), ("a", 10)];
        let later = [("p", 45), ("a", 50)];
        assert_eq!(of(&[&rarely, &[("p", 5), ("a", 20)], &[("p", 5), ("a", 30)], &later]), "nothing");
    }
}
