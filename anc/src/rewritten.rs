//! Finds out which files of a rank were rewritten for a new content. The module is for applications that write their
//! files again under the same names.
//!
//! If an application ended while it was writing, some of its files belong to the new step, and the other files to the
//! previous step. The committed contents show which files a step rewrites. If only some of these files of a rank are
//! rewritten, the rank is still being written, or its process was killed.
//!
//! If the files of a step are written at different times, the times show which files belong to one step: see
//! `anc/src/rewritten/times.rs`.
//!
//! Of files that the application uses in turn, only the newest one counts: see `anc/src/rewritten/in_turn.rs`.
//!
//! Files that no step rewrites, such as a mesh, do not count. Logs and other outputs that only grow do not count
//! either, because an application appends to them at any time. A content counts as whole if it rewrites only files
//! that the previous steps did not rewrite, because some applications use two sets of files in turn.

use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, FilePath, Rank, shape_of};
use mcrengine::manifest::Manifest;
use mcrengine::turns::{are_named_in_turn, are_older_copies};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use times::{Content, Times};

pub(crate) use cut::cut;

mod cut;
mod in_turn;
mod times;

/// The result of comparing the files of a group with earlier contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewritten {
    /// Each rank has rewritten all files of a step, or all of its files, or none of its files.
    Whole,
    /// These ranks have rewritten only some files of a step. Each rank has a reason.
    Partly(Vec<(Rank, String)>),
    /// A rank has rewritten some of its files, and it is not yet known which files a step rewrites. The text is for
    /// users.
    Unknown(String),
}

/// Compares the files of a group with the contents that the group committed under the same name, the oldest first.
pub fn rewritten(own: &[Manifest], files: &[FileHeader]) -> Rewritten {
    let Some(last) = own.last() else { return Rewritten::Whole };
    let files = || files.iter().filter(|file| !file.kind.is_companion());
    let mut now = by_rank(files().map(|file| (file.rank, Content::of(file))));
    let mut then: Vec<Contents<'_>> = own.iter().map(contents_of).collect();
    let versions = own.iter().flat_map(|own| own.files.iter().map(|file| (&file.path, file.digest, file.bytes)));
    let growing = growing(versions.chain(files().map(|file| (&file.path, file.digest, file.bytes))));
    for contents in then.iter_mut().chain([&mut now]) {
        contents.values_mut().for_each(|files| files.retain(|file| !growing.contains(file.path)));
    }
    judge(&then, &now, &last.checkpoint)
}

/// The files that have the name of an output and only grow: each new content of such a file is longer than the content
/// before. `versions`: path, digest and length in bytes, the oldest first.
fn growing<'a>(versions: impl Iterator<Item = (&'a FilePath, Digest, u64)>) -> HashSet<&'a FilePath> {
    let mut last: HashMap<&FilePath, (Digest, u64, bool)> = HashMap::new();
    for (path, digest, bytes) in versions.filter(|(path, ..)| is_output_name(path)) {
        let (was, was_bytes, only_grows) = last.entry(path).or_insert((digest, bytes, true));
        *only_grows &= *was == digest || bytes > *was_bytes;
        (*was, *was_bytes) = (digest, bytes);
    }
    last.into_iter().filter(|(_, (.., only_grows))| *only_grows).map(|(path, _)| path).collect()
}

/// Whether this is the name of a file to which applications append at any time: logs and time series, and the
/// trajectories and energies of GROMACS, NAMD and LAMMPS.
fn is_output_name(path: &FilePath) -> bool {
    const ENDS: [&[u8]; 13] = [
        b".log",
        b".err",
        b".stdout",
        b".stderr",
        b".xtc",
        b".trr",
        b".edr",
        b".xvg",
        b".dcd",
        b".lammpstrj",
        b".hst",
        b".hist",
        b".jsonl",
    ];
    let path = path.as_bytes().to_ascii_lowercase();
    ENDS.iter().any(|end| path.ends_with(end))
}

/// A file that the newest committed content probably lacks, because the application wrote the file after the commit.
/// `own` has the contents that the group committed under the name in this run, the oldest first, and `files` is the
/// next content.
///
/// Only the contents of the first step can lack files. The next contents show which files a step has. A file does not
/// count if the application uses it in turn with a file of the newest content.
pub fn first_written_after<'a>(own: &[&Manifest], files: &'a [FileHeader]) -> Option<&'a FileHeader> {
    let own: Vec<Contents<'_>> = own.iter().map(|manifest| contents_of(manifest)).collect();
    files.iter().filter(|file| !file.kind.is_companion()).find(|file| is_late(&own, file.rank, &file.path))
}

fn is_late(own: &[Contents<'_>], rank: Rank, path: &FilePath) -> bool {
    let is_rewritten = own.windows(2).any(|pair| {
        let before: HashMap<&FilePath, &Content<'_>> =
            pair[0].values().flatten().map(|file| (file.path, file)).collect();
        pair[1].values().flatten().any(|file| before.get(file.path).is_some_and(|was| *was != file))
    });
    let there = own.last().and_then(|last| last.get(&rank));
    let is_new =
        there.is_some_and(|files| files.iter().all(|file| file.path != path && !may_take_turns(file.path, path)));
    is_new && !is_rewritten
}

fn may_take_turns(one: &FilePath, other: &FilePath) -> bool {
    are_named_in_turn(one, other) || are_older_copies(one, other)
}

fn judge(then: &[Contents<'_>], now: &Contents<'_>, last: &CheckpointId) -> Rewritten {
    let (mut partly, mut unknown) = (Vec::new(), None);
    for (rank, files) in now {
        let mut contents: Vec<Vec<Content<'_>>> = then.iter().filter_map(|then| then.get(rank)).cloned().collect();
        contents.push(files.clone());
        in_turn::keep_newest(&mut contents);
        let Some((files, before)) = contents.split_last() else { continue };
        let of_rank: Vec<&[Content<'_>]> = before.iter().map(Vec::as_slice).collect();
        let Some((new, old)) = differences(&of_rank, files) else { continue };
        // The times of a series of numbers are the times of several steps.
        let is_of_cycle = |file: &&Content<'_>| !continues_series(file.path, &of_rank);
        let of_cycle: Vec<Content<'_>> = files.iter().filter(is_of_cycle).copied().collect();
        match times::judge(&of_rank, &of_cycle) {
            Some(Times::OneStep) => continue,
            Some(Times::TwoSteps { awaited, is_sure: true }) => {
                let why = match old.contains(awaited) {
                    true => still_of(awaited, last, *rank),
                    false => written_before(awaited, *rank),
                };
                partly.push((*rank, why));
                continue;
            }
            Some(Times::TwoSteps { awaited, is_sure: false }) => {
                unknown.get_or_insert_with(|| {
                    format!(
                        "{awaited} was written long before the other files, as files of the step before are, and it \
                         is not known yet whether each step writes it: it is uncertain whether the files are of one \
                         step"
                    )
                });
                continue;
            }
            Some(Times::Unclear) => {
                unknown.get_or_insert_with(|| {
                    format!(
                        "the files of {rank} were written at equal intervals, so that their times do not show which files \
                         belong to one step: it is uncertain whether the files are of one step"
                    )
                });
                continue;
            }
            None => {}
        }
        // A file that continues a series of numbers does not replace an earlier file of the series.
        let continued: BTreeSet<Vec<u8>> =
            new.iter().filter(|path| continues_series(path, &of_rank)).map(|path| shape(path)).collect();
        let Some(old_file) = old.iter().find(|path| !continued.contains(&shape(path))) else { continue };
        let steps = (1..of_rank.len()).filter_map(|nth| {
            let (new, _) = differences(&of_rank[..nth], of_rank[nth])?;
            let rewritten: BTreeSet<_> =
                new.into_iter().filter(|path| !continues_series(path, &of_rank[..nth])).collect();
            (!rewritten.is_empty()).then_some(rewritten)
        });
        let steps: Vec<BTreeSet<&FilePath>> = steps.collect();
        let is_whole = steps.iter().any(|step| step.is_subset(&new));
        let awaited = steps.iter().filter(|step| !step.is_disjoint(&new)).flat_map(|step| step.difference(&new)).next();
        if let (false, Some(awaited)) = (is_whole, awaited) {
            partly.push((*rank, still_of(awaited, last, *rank)));
        }
        let known = of_rank.iter().flat_map(|files| files.iter()).map(|file| file.path).collect::<BTreeSet<_>>();
        let rewrites = new.iter().find(|path| known.contains(*path));
        if let ([then], Some(rewrites)) = (&of_rank[..], rewrites)
            && !is_older(old_file, then, &new)
        {
            unknown.get_or_insert_with(|| {
                format!(
                    "{rewrites} was written again after {last}, and {old_file} was not; whether a step writes both is not \
                     known yet: it is uncertain whether the files are of one step"
                )
            });
        }
    }
    match unknown {
        _ if !partly.is_empty() => Rewritten::Partly(partly),
        Some(why) => Rewritten::Unknown(why),
        None => Rewritten::Whole,
    }
}

/// Whether a file was written before the earlier versions of all `new` files, and longer before than the time between
/// these versions. No step rewrites such a file, because the new files were written twice after it.
fn is_older(file: &FilePath, then: &[Content<'_>], new: &BTreeSet<&FilePath>) -> bool {
    let time_of = |path: &FilePath| then.iter().find(|file| file.path == path).map(|file| i128::from(file.modified_ns));
    let times = || new.iter().filter_map(|path| time_of(path));
    let (Some(first), Some(last), Some(time)) = (times().min(), times().max(), time_of(file)) else { return false };
    first - time > (last - first).max(LAG_MIN_NS)
}

/// A file that was written less than this time before the other files may be a file of the same step.
const LAG_MIN_NS: i128 = 1_000_000_000;

/// Whether a file is in no earlier content, but an earlier content has a file whose name differs only in numbers.
fn continues_series(path: &FilePath, before: &[&[Content<'_>]]) -> bool {
    let mut earlier = before.iter().flat_map(|files| files.iter());
    let of_path = shape(path);
    earlier.clone().all(|file| file.path != path) && earlier.any(|file| shape(file.path) == of_path)
}

fn shape(path: &FilePath) -> Vec<u8> {
    shape_of(&String::from_utf8_lossy(path.as_bytes()))
}

fn still_of(awaited: &FilePath, last: &CheckpointId, rank: Rank) -> String {
    format!(
        "{awaited} still has the content of {last}, although other files of {rank} were written again: the files \
         are of two steps"
    )
}

fn written_before(awaited: &FilePath, rank: Rank) -> String {
    format!(
        "{awaited} was written about a step before other files of {rank}, although each step writes it: the files \
         are of two steps"
    )
}

/// The files of each rank in one content of a label.
type Contents<'a> = BTreeMap<Rank, Vec<Content<'a>>>;

fn contents_of(manifest: &Manifest) -> Contents<'_> {
    let files = manifest.files.iter().filter(|file| !file.kind.is_companion());
    by_rank(files.map(|file| (file.rank, Content::of_manifest(file))))
}

fn by_rank<'a>(files: impl Iterator<Item = (Rank, Content<'a>)>) -> Contents<'a> {
    let mut ranks = Contents::new();
    files.for_each(|(rank, file)| ranks.entry(rank).or_default().push(file));
    ranks
}

/// The paths of the files that are in no earlier content, and the paths of the files that are in an earlier content.
/// `None` if there is no earlier content.
fn differences<'a>(
    before: &[&[Content<'a>]],
    files: &[Content<'a>],
) -> Option<(BTreeSet<&'a FilePath>, BTreeSet<&'a FilePath>)> {
    let known: HashSet<&Content<'a>> = before.iter().flat_map(|files| files.iter()).collect();
    let is_old = |file: &&Content<'a>| known.contains(file);
    let (old, new): (Vec<_>, Vec<_>) = files.iter().partition(is_old);
    let paths = |files: Vec<&Content<'a>>| files.into_iter().map(|file| file.path).collect();
    (!before.is_empty()).then(|| (paths(new), paths(old)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges the last content of one rank. Each content is a list of files, such as `a1` for the first version of
    /// the file `a`.
    fn of(contents: &[&str]) -> &'static str {
        // The last digit is the version of a file. A file with one letter has only one version.
        let name = |file: &str| FilePath::new(&file.as_bytes()[..(file.len() - 1).max(1)]).expect("valid");
        let file = |file: &str| (name(file), Digest::of(file.as_bytes()));
        let owned: Vec<Vec<(FilePath, Digest)>> =
            contents.iter().map(|files| files.split_whitespace().map(file).collect()).collect();
        let contents: Vec<Contents<'_>> = owned
            .iter()
            .map(|files| {
                by_rank(files.iter().map(|(path, digest)| (Rank(3), Content { path, digest: *digest, modified_ns: 0 })))
            })
            .collect();
        let (now, then) = contents.split_last().expect("at least one");
        match judge(then, now, &"restart~2".parse().expect("valid")) {
            Rewritten::Whole => "whole",
            Rewritten::Partly(ranks) => {
                assert!(
                    ranks[0].0 == Rank(3) && ranks[0].1.contains("still has the content of restart~2"),
                    "{ranks:?}"
                );
                "partly"
            }
            Rewritten::Unknown(_) => "unknown",
        }
    }

    #[test]
    fn the_next_content_shows_which_files_the_content_of_the_first_step_lacks() {
        let late = |own: &[&[(&str, i64)]], name: &str| {
            let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
            let owned: Vec<Vec<(FilePath, i64)>> =
                own.iter().map(|files| files.iter().map(|(name, at)| (path(name), *at)).collect()).collect();
            let digest = Digest::of(b"");
            let own: Vec<Contents<'_>> = (owned.iter())
                .map(|files| {
                    by_rank(files.iter().map(|(path, at)| (Rank(0), Content { path, digest, modified_ns: *at })))
                })
                .collect();
            is_late(&own, Rank(0), &path(name))
        };
        assert!(!late(&[], "density"), "there is no content");
        assert!(late(&[&[("density", 1)]], "energy") && !late(&[&[("density", 1)]], "density"));
        assert!(!late(&[&[("r.a", 1)]], "r.b"), "the files are used in turn");
        assert!(!late(&[&[("restart.h5", 1)]], "prev/restart.h5"), "an older copy");
        assert!(late(&[&[("density", 1)], &[("density", 1), ("energy", 2)]], "pressure"));
        assert!(!late(&[&[("density", 1)], &[("density", 9)]], "history"), "the files of a step are known");
    }

    #[test]
    fn a_rank_that_has_rewritten_only_some_files_of_a_step_is_not_whole() {
        assert_eq!(of(&["a1 b1"]), "whole");
        assert_eq!(of(&["a1 b1", "a2 b2"]), "whole");
        assert_eq!(of(&["a1 b1", "a2 b1"]), "unknown", "a step may not write b again");
        assert_eq!(of(&["a1 b1", "a2 b2", "a3 b2"]), "partly");
        assert_eq!(of(&["a1 b1", "a2 b2", "a3 b3"]), "whole");
        assert_eq!(of(&["a1 b1", "a2 b2", "a1 b2"]), "whole", "nothing is new");
    }

    #[test]
    fn files_that_continue_a_series_of_numbers_replace_no_earlier_files() {
        assert_eq!(of(&["h1 c_11", "h2 c_11 c_21"]), "whole", "c_1 is never rewritten");
        assert_eq!(of(&["h1 c_11", "h2 c_11 c_21", "h3 c_11 c_21 c_31"]), "whole");
        assert_eq!(of(&["h1 g1 c_11", "h2 g2 c_11 c_21", "h3 g2 c_11 c_21 c_31"]), "partly", "g is still old");
        assert_eq!(of(&["c_11 c_21", "c_12 c_21"]), "unknown", "both names were there before");
    }

    #[test]
    fn files_that_no_step_rewrites_and_sets_of_files_used_in_turn_are_whole() {
        assert_eq!(of(&["m a1 b1", "m a2 b2", "m a3 b3"]), "whole", "m is never rewritten");
        assert_eq!(of(&["m a1 b1", "m a2 b2", "m a3 b2"]), "partly");
        assert_eq!(of(&["a1", "a1 b1"]), "whole", "b is new");
        assert_eq!(of(&["a1", "a1 b1", "a2 b1", "a2 b2"]), "whole", "two files in turn");
        assert_eq!(of(&["a1 p1", "a2 p1", "a3 p2", "a4 p2"]), "whole", "p is rewritten in some steps");
        // The rank uses two sets of two files in turn, and only half of a set is rewritten.
        assert_eq!(of(&["a1 b1 c1 d1", "a2 b2 c1 d1", "a2 b2 c2 d2", "a3 b2 c2 d2"]), "partly");
    }

    #[test]
    fn a_file_that_is_older_than_two_writes_of_the_other_files_is_rewritten_by_no_step() {
        let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
        let names = ["topol.tpr", "state.cpt"].map(path);
        // The times of both files in milliseconds, before and now.
        let judged = |then: [i64; 2], now: [i64; 2]| {
            let contents = |times: [i64; 2]| {
                by_rank((0..2).map(|nth| {
                    let digest = Digest::of(&times[nth].to_le_bytes());
                    (Rank(0), Content { path: &names[nth], digest, modified_ns: times[nth] * 1_000_000 })
                }))
            };
            judge(&[contents(then)], &contents(now), &"run".parse().expect("valid"))
        };
        assert_eq!(judged([0, 3_600_000], [0, 4_500_000]), Rewritten::Whole);
        assert!(
            matches!(judged([3_602_000, 3_600_000], [3_602_000, 4_500_000]), Rewritten::Unknown(_)),
            "written last"
        );
        assert!(matches!(judged([3_599_500, 3_600_000], [3_599_500, 4_500_000]), Rewritten::Unknown(_)), "too near");
    }

    #[test]
    fn a_log_that_grows_is_no_file_of_a_step() {
        let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
        let (log, state) = (path("run/md.log"), path("state.cpt"));
        let of = |versions: &[(&FilePath, u64)]| {
            let version =
                |(path, bytes): &(&FilePath, u64)| ((*path).clone(), Digest::of(&bytes.to_le_bytes()), *bytes);
            let versions: Vec<_> = versions.iter().map(version).collect();
            growing(versions.iter().map(|(path, digest, bytes)| (path, *digest, *bytes))).contains(&log)
        };
        assert!(of(&[(&log, 5), (&log, 9), (&log, 9), (&log, 12)]) && !of(&[(&state, 5), (&state, 9)]));
        assert!(!of(&[(&log, 5), (&log, 9), (&log, 5)]), "written from the beginning");
        let same_length = [(&log, Digest::of(b"1"), 1), (&log, Digest::of(b"2"), 1)];
        assert!(growing(same_length.into_iter()).is_empty());
    }
}
