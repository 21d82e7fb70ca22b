//! Finds files that an application uses in turn, such as `restart.a` and `restart.b`. The application always
//! overwrites the older file, so that the other file stays whole.

use crate::ids::{FilePath, Rank};

/// A file and the time when the application wrote it.
#[derive(Clone, Copy, Debug)]
pub struct WrittenFile<'a> {
    /// The file's rank. `None` if the file belongs to no single rank.
    pub rank: Option<Rank>,
    /// Path below the watched directory.
    pub path: &'a FilePath,
    /// Modification time in nanoseconds since 1970.
    pub at_ns: i128,
}

/// Words for older files, and for files that are used in turn.
const OLDER_WORDS: [&[u8]; 9] = [b"backup", b"bak", b"old", b"prev", b"previous", b"last", b"new", b"odd", b"even"];

/// Whether two names differ only in one letter, in a number, or in a word for an older file, as in `restart.a` and
/// `restart.b`, or `state` and `state_prev`. Applications use such names in turn.
pub fn may_be_used_in_turn(one: &FilePath, other: &FilePath) -> bool {
    const WORDS: [&[u8]; 6] = [b"old", b"new", b"prev", b"bak", b"odd", b"even"];
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let front = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let rest = one.len().min(other.len()) - front;
    let back = one.iter().rev().zip(other.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let differs = |name: &[u8]| {
        let middle: Vec<u8> = name[front..name.len() - back].iter().filter(|b| !b"._-".contains(b)).copied().collect();
        middle.len() <= 1 || middle.iter().all(u8::is_ascii_digit) || WORDS.contains(&&middle[..])
    };
    differs(one) && differs(other)
}

/// Whether two file names differ only in one letter, in a number, or in a word for an older file
/// ([`may_be_used_in_turn`]), and begin with the same letter.
pub fn are_named_in_turn(one: &FilePath, other: &FilePath) -> bool {
    let letter = |path: &FilePath| path.as_bytes().rsplit(|b| *b == b'/').next().and_then(|name| name.first().copied());
    may_be_used_in_turn(one, other) && letter(one) == letter(other)
}

/// The runs of letters and digits in a path, in lower case.
pub fn words_of(path: &FilePath) -> Vec<Vec<u8>> {
    let words = path.as_bytes().split(|byte| !byte.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(<[u8]>::to_ascii_lowercase).collect()
}

/// Whether two paths differ only in words for older files, wherever these words stand: `old_restart`, `prev/restart`.
pub fn are_older_copies(one: &FilePath, other: &FilePath) -> bool {
    let without = |words: &[Vec<u8>]| -> Vec<Vec<u8>> {
        words.iter().filter(|word| !OLDER_WORDS.contains(&&word[..])).cloned().collect()
    };
    let (one, other) = (words_of(one), words_of(other));
    one != other && without(&one) == without(&other)
}

/// Whether two durations differ by at most a quarter of the shorter duration.
pub fn are_alike(one: i128, other: i128) -> bool {
    one.max(other) * 4 <= one.min(other) * 5
}

/// Whether an application uses several sets of files in turn. `files` is sorted by time. A new set begins after each
/// pause that is about as long as the longest pause between two files. All sets have the same number of files, and
/// each file has a partner in the previous set. If there are more than two sets, each set must have more than one
/// file, because an application may also number the files of one step. `are_partners` compares the names of two files
/// of a rank.
pub fn are_sets_in_turn(files: &[WrittenFile<'_>], are_partners: fn(&FilePath, &FilePath) -> bool) -> bool {
    let after = |pair: &[WrittenFile<'_>]| pair[1].at_ns - pair[0].at_ns;
    let Some(longest) = files.windows(2).map(after).max().filter(|longest| *longest > 0) else { return false };
    let sets: Vec<&[WrittenFile<'_>]> = files.chunk_by(|a, b| !are_alike(b.at_ns - a.at_ns, longest)).collect();
    let has_partner = |file: &WrittenFile<'_>, before: &[WrittenFile<'_>]| {
        before.iter().any(|other| other.rank == file.rank && are_partners(other.path, file.path))
    };
    sets.windows(2).all(|pair| pair[0].len() == pair[1].len() && pair[1].iter().all(|file| has_partner(file, pair[0])))
        && (sets.len() == 2 || files.len() > sets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_turn(files: &[(&str, i128)]) -> bool {
        let paths: Vec<FilePath> =
            files.iter().map(|(name, _)| FilePath::new(name.as_bytes()).expect("valid")).collect();
        let files: Vec<WrittenFile<'_>> = (paths.iter().zip(files))
            .map(|(path, (_, at_ns))| WrittenFile { rank: None, path, at_ns: *at_ns })
            .collect();
        are_sets_in_turn(&files, may_be_used_in_turn)
    }

    #[test]
    fn sets_of_files_whose_names_differ_in_a_letter_are_used_in_turn() {
        assert!(in_turn(&[("r.a", 0), ("r.b", 10)]));
        assert!(in_turn(&[("a/x", 0), ("a/y", 2), ("b/x", 10), ("b/y", 12)]));
        assert!(in_turn(&[("a/x", 0), ("a/y", 2), ("b/x", 10), ("b/y", 12), ("c/x", 20), ("c/y", 22)]));
        assert!(!in_turn(&[("a/x", 0), ("a/y", 2), ("b/x", 10)]), "a set is not whole");
        assert!(!in_turn(&[("WAVECAR", 0), ("CHGCAR", 10)]));
        assert!(!in_turn(&[("r1", 0), ("r2", 10), ("r3", 20)]), "the three files may be of one step");
    }

    #[test]
    fn names_in_turn_begin_with_the_same_letter() {
        let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
        assert!(are_named_in_turn(&path("d/restart.a"), &path("d/restart.b")));
        assert!(may_be_used_in_turn(&path("d/r0"), &path("d/s0")) && !are_named_in_turn(&path("d/r0"), &path("d/s0")));
    }
}
