//! Finds files that an application uses in turn, and older copies of files. The application writes `ck_A`, then `ck_B`,
//! then `ck_A` again, or renames `restart` to `old_restart` before it writes `restart` again. In each content, only the
//! newest of such files is a file of the step. The others stay as they were, and are not awaited.
//!
//! Names alone do not show this, because a step may have a file `u` and a file `v`, or `u` and `u_old`. In each earlier
//! content, the times of files that are used in turn are about a step apart.

use super::times::{Content, median_interval};
use mcrengine::ids::FilePath;
use mcrengine::turns::{are_named_in_turn, are_older_copies, words_of};
use std::collections::BTreeMap;

/// Files whose times were never at least this far apart may be files of one step.
const APART_MIN_NS: i128 = 1_000_000_000;
/// Maximum number of files of a rank whose names are compared in pairs.
const FILES_MAX: usize = 512;

/// Keeps only the newest of the files that are used in turn, in each content of a rank. All of these newest files get
/// one name. `contents`: the oldest first; the last content is not committed yet.
pub(super) fn keep_newest<'a>(contents: &mut [Vec<Content<'a>>]) {
    let Some((_, before)) = contents.split_last() else { return };
    let mut versions: BTreeMap<&'a FilePath, Vec<i128>> = BTreeMap::new();
    for file in contents.iter().flatten() {
        let times = versions.entry(file.path).or_default();
        if times.last() != Some(&i128::from(file.modified_ns)) {
            times.push(i128::from(file.modified_ns));
        }
    }
    if versions.len() > FILES_MAX {
        return;
    }
    let paths: Vec<&FilePath> = versions.keys().copied().collect();
    let mut first_of: BTreeMap<&FilePath, &FilePath> = BTreeMap::new();
    for (nth, one) in paths.iter().enumerate() {
        for other in &paths[nth + 1..] {
            // Three or more such names may be three files of one step.
            let are_two = || {
                let mut more = paths.iter().filter(|path| ![one, other].contains(path));
                are_named_in_turn(one, other)
                    && !more.any(|path| are_named_in_turn(path, one) || are_named_in_turn(path, other))
            };
            let are_copies = are_older_copies(one, other);
            if !are_copies && !are_two() {
                continue;
            }
            let is_clear = are_copies || are_letters_in_turn(one, other);
            let intervals = [one, other].into_iter().filter_map(|path| median_interval(&versions[path]));
            let least = match intervals.min() {
                Some(interval) if !is_clear => APART_MIN_NS.max(interval * 2 / 5),
                None if !is_clear => continue,
                _ => APART_MIN_NS,
            };
            if are_apart(before, one, other, least) {
                let first = first_of.get(one).copied().unwrap_or(one);
                first_of.insert(other, first);
            }
        }
    }
    for files in contents.iter_mut().filter(|_| !first_of.is_empty()) {
        let mut newest: BTreeMap<&FilePath, Content<'a>> = BTreeMap::new();
        for file in files.iter() {
            let path = first_of.get(file.path).copied().unwrap_or(file.path);
            let kept = newest.entry(path).or_insert(Content { path, ..*file });
            if file.modified_ns > kept.modified_ns {
                *kept = Content { path, ..*file };
            }
        }
        *files = newest.into_values().collect();
    }
}

/// Whether the times of two files were at least this far apart, and never nearer after both were written. A file was
/// not written if the content before has the same version, under either of the two names: the file was renamed, or only
/// the other one was written. This matters for the first step after a restart, which may follow at once.
fn are_apart(contents: &[Vec<Content<'_>>], one: &FilePath, other: &FilePath, least_ns: i128) -> bool {
    let version = |files: &[Content<'_>], path: &FilePath| {
        files.iter().find(|file| file.path == path).map(|file| (file.digest, file.modified_ns))
    };
    let mut are_apart = false;
    for (nth, files) in contents.iter().enumerate() {
        let (Some(a), Some(b)) = (version(files, one), version(files, other)) else { continue };
        let before = nth.checked_sub(1).map_or(&[][..], |before| &contents[before]);
        let before = [version(before, one), version(before, other)];
        let is_apart = (i128::from(a.1) - i128::from(b.1)).abs() >= least_ns;
        if !is_apart && !before.contains(&Some(a)) && !before.contains(&Some(b)) {
            return false;
        }
        are_apart |= is_apart;
    }
    are_apart
}

/// Whether the names differ only in a letter `a` in place of a letter `b` at the end of a word.
fn are_letters_in_turn(one: &FilePath, other: &FilePath) -> bool {
    let (one, other) = (words_of(one), words_of(other));
    let differing: Vec<(&Vec<u8>, &Vec<u8>)> = one.iter().zip(&other).filter(|(one, other)| one != other).collect();
    let [(one_word, other_word)] = differing[..] else { return false };
    let (Some((one_end, one_front)), Some((other_end, other_front))) = (one_word.split_last(), other_word.split_last())
    else {
        return false;
    };
    one.len() == other.len() && one_front == other_front && matches!((one_end, other_end), (b'a', b'b') | (b'b', b'a'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::Digest;

    /// The files that are kept of the last content. Each content has pairs of a file name and a time in seconds.
    fn kept(contents: &[&[(&str, i64)]]) -> Vec<(String, i64)> {
        let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
        let owned: Vec<Vec<(FilePath, i64)>> =
            contents.iter().map(|files| files.iter().map(|(name, at)| (path(name), *at)).collect()).collect();
        let content = |(path, at): &'_ (FilePath, i64)| (path.clone(), *at);
        let owned: Vec<Vec<(FilePath, i64)>> = owned.iter().map(|files| files.iter().map(content).collect()).collect();
        let digest = Digest::of(b"");
        let mut all: Vec<Vec<Content<'_>>> = owned
            .iter()
            .map(|files| {
                files.iter().map(|(path, at)| Content { path, digest, modified_ns: at * 1_000_000_000 }).collect()
            })
            .collect();
        keep_newest(&mut all);
        let last = all.last().expect("at least one");
        last.iter().map(|file| (file.path.to_string(), file.modified_ns / 1_000_000_000)).collect()
    }

    #[test]
    fn of_files_that_are_used_in_turn_only_the_newest_is_kept() {
        for [one, other] in [
            ["ck_A.rank0", "ck_B.rank0"],
            ["restart.rank0.h5", "old_restart.rank0.h5"],
            ["restart.rank0.h5", "backup.restart.rank0.h5"],
            ["prev/restart.h5", "restart.h5"],
            ["x_odd.h5", "x_even.h5"],
        ] {
            let contents: [&[_]; 3] = [&[(one, 0)], &[(one, 0), (other, 60)], &[(one, 120), (other, 60)]];
            let least = one.min(other).to_owned();
            assert_eq!(kept(&contents), [(least, 120)], "{one} {other}");
        }
    }

    #[test]
    fn the_first_step_after_a_restart_may_follow_at_once() {
        let (one, other) = ("ck_A.rank0", "ck_B.rank0");
        let contents: [&[_]; 3] = [&[(one, 0), (other, 60)], &[(one, 60), (other, 60)], &[(one, 60), (other, 120)]];
        assert_eq!(kept(&contents), [(one.to_owned(), 120)]);
        // The file was renamed at 60 s, and the restarted application wrote it again at once.
        let (one, other) = ("old_restart.h5", "restart.h5");
        let contents: [&[_]; 3] = [&[(one, 0), (other, 60)], &[(one, 60), (other, 60)], &[(one, 60), (other, 120)]];
        assert_eq!(kept(&contents), [(one.to_owned(), 120)]);
    }

    #[test]
    fn files_that_were_once_written_together_are_all_files_of_a_step() {
        for [one, other] in [["u.dat", "u_old.dat"], ["u.dat", "v.dat"], ["field_a.h5", "field_b.h5"]] {
            let contents: [&[_]; 2] = [&[(one, 0), (other, 0)], &[(one, 60), (other, 0)]];
            assert_eq!(kept(&contents).len(), 2, "{one} {other}");
            let contents: [&[_]; 3] = [&[(one, 0), (other, 0)], &[(one, 60), (other, 0)], &[(one, 60), (other, 120)]];
            assert_eq!(kept(&contents).len(), 2, "{one} {other}");
        }
        // One step may write its files slowly, so letters other than a and b must be about a step apart.
        assert_eq!(kept(&[&[("u.dat", 0), ("v.dat", 3)], &[("u.dat", 60), ("v.dat", 3)]]).len(), 2);
        let slow: [&[_]; 3] =
            [&[("u.dat", 0), ("v.dat", 3)], &[("u.dat", 60), ("v.dat", 63)], &[("u.dat", 120), ("v.dat", 63)]];
        assert_eq!(kept(&slow).len(), 2);
    }

    #[test]
    fn three_files_that_are_written_at_equal_intervals_may_be_three_files_of_one_step() {
        let times = |at: [i64; 3]| [("chk_a", at[0]), ("chk_b", at[1]), ("chk_c", at[2])];
        assert_eq!(kept(&[&times([0, 10, 20]), &times([30, 10, 20]), &times([30, 40, 20])]).len(), 3);
    }

    #[test]
    fn other_names_are_not_used_in_turn() {
        let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
        for [one, other] in
            [["density", "energy"], ["u_x", "u_y"], ["old_mesh", "state"], ["a.h5", "b.nc"], ["rank0/a", "rank1/b"]]
        {
            let (one, other) = (path(one), path(other));
            assert!(!are_older_copies(&one, &other) && !are_letters_in_turn(&one, &other), "{one} {other}");
        }
    }
}
