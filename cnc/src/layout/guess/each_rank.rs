//! Finds files that each rank has written, and that a layout leaves out. The ranks need such files for a restart, also
//! if the files are few and small.
//!
//! Four signs show that a number is the number of a rank: a word for ranks before the number, as in `rng_rank0`; the
//! same text before the number as in the files of the ranks, as in `fold_1/best` beside `fold_1/epoch_4`; the number of
//! a checkpoint elsewhere in the name, as in `part_0004_0`; or the end of the name. If names such as
//! `mesh0.h5` end like the names of the ranks' files in checkpoints, and the files were written at once, each rank has
//! probably written one of them.

use super::numbers_end;
use super::words::{RANK_WORDS, is_picture};
use mcrengine::ids::{CheckpointId, FilePath, Rank, shape_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is known about files of each rank that a layout leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EachRank {
    /// Whether each rank has such a file.
    pub are_there: bool,
    /// Whether such files belong to no single checkpoint, so that all checkpoints lack them. Tables and pictures do
    /// not count.
    pub are_of_all: bool,
    /// The numbers of checkpoints that are in the names of such files.
    pub steps: BTreeSet<u64>,
}

/// Files whose names differ only in their numbers, and one of these numbers.
#[derive(Default)]
struct Family {
    values: BTreeSet<u64>,
    /// The other numbers of the names, if they are numbers of checkpoints.
    steps: BTreeSet<u64>,
    /// Whether a name has no other number that is the number of a checkpoint.
    has_none: bool,
    /// Whether a name is that of a table or a picture.
    has_picture: bool,
}

/// The files of the checkpoints.
#[derive(Default)]
pub(super) struct Placed {
    pub ranks: BTreeSet<Rank>,
    pub labels: BTreeSet<CheckpointId>,
    /// The texts before the numbers of ranks in the names.
    pub begins: BTreeSet<Vec<u8>>,
    /// The texts after the numbers of ranks in the names.
    pub ends: BTreeSet<Vec<u8>>,
    /// Whether there was a pause while these files were written.
    pub have_pauses: bool,
}

/// The texts before and after a number of a name.
type Around<'a> = (&'a [u8], &'a [u8]);

/// `left`: the files that the layout leaves out. `are_at_once`: whether there was no pause while these files were
/// written.
pub(super) fn of_each_rank<'a>(
    left: impl Iterator<Item = &'a FilePath>,
    placed: &Placed,
    are_at_once: impl Fn(&[&FilePath]) -> bool,
) -> EachRank {
    let Placed { ranks, labels, begins, ends, have_pauses } = placed;
    if ranks.len() < 2 {
        return EachRank::default();
    }
    let steps: BTreeSet<u64> = labels.iter().flat_map(numbers_of).collect();
    let mut families: BTreeMap<(Vec<u8>, usize), Family> = BTreeMap::new();
    // For the texts before and after a number: the files with this number, without another sign of a rank.
    let mut plain: BTreeMap<Around<'_>, BTreeMap<u64, &FilePath>> = BTreeMap::new();
    for path in left {
        let (numbers, shape) = (numbers(path.as_bytes()), shape_of(&String::from_utf8_lossy(path.as_bytes())));
        for (nth, (at, value)) in numbers.iter().enumerate() {
            let mut others =
                numbers.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, (_, value))| *value);
            let step = others.find(|value| steps.contains(value));
            let before = &path.as_bytes()[..at.start];
            if step.is_some() || is_rank_word(before) || begins.contains(before) {
                let family = families.entry((shape.clone(), nth)).or_default();
                family.values.insert(*value);
                family.steps.extend(step);
                family.has_none |= step.is_none();
                family.has_picture |= is_picture(path.name());
            } else if ends.contains(&path.as_bytes()[at.end..]) && !is_picture(path.name()) {
                let around = (before, &path.as_bytes()[at.end..]);
                plain.entry(around).or_default().insert(*value, path);
            }
        }
    }
    let are_ranks = |values: &BTreeSet<u64>| {
        let is_from = |first: u64| values.iter().copied().eq(ranks.iter().map(|rank| u64::from(rank.0) + first));
        is_from(0) || is_from(1)
    };
    let found: Vec<&Family> = families.values().filter(|family| are_ranks(&family.values)).collect();
    let of_steps = found.iter().filter(|family| !family.has_none).flat_map(|family| family.steps.iter().copied());
    let are_plain = plain.values().any(|files| {
        let values: BTreeSet<u64> = files.keys().copied().collect();
        // The names of outputs for analysis, such as `plot1` and `plot2`, often have the numbers of the checkpoints.
        // There is then a pause between them, as between the checkpoints.
        let may_be_outputs = values.is_subset(&steps) && !have_pauses;
        are_ranks(&values) && !may_be_outputs && are_at_once(&files.values().copied().collect::<Vec<_>>())
    });
    EachRank {
        are_there: !found.is_empty() || are_plain,
        are_of_all: are_plain || found.iter().any(|family| family.has_none && !family.has_picture),
        steps: of_steps.collect(),
    }
}

/// The numbers in the name of a checkpoint.
pub(super) fn numbers_of(label: &CheckpointId) -> impl Iterator<Item = u64> {
    numbers(label.label().as_bytes()).into_iter().map(|(_, value)| value)
}

/// The numbers in a name, and where they are. Numbers that need more than 64 bits, and extensions such as `h5`, are
/// left out.
fn numbers(name: &[u8]) -> Vec<(Range<usize>, u64)> {
    let name = &name[..numbers_end(name)];
    let (mut found, mut at) = (Vec::new(), 0);
    while at < name.len() {
        let end = at + name[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if let Ok(value) = std::str::from_utf8(&name[at..end]).unwrap_or_default().parse() {
            found.push((at..end, value));
        }
        at = end + 1;
    }
    found
}

/// Whether a text ends with a word that comes before the number of a rank, with at most one separator after the word.
fn is_rank_word(before: &[u8]) -> bool {
    let before =
        before.strip_suffix(b"_").or(before.strip_suffix(b".")).or(before.strip_suffix(b"-")).unwrap_or(before);
    let letters = before.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let word = before[before.len() - letters..].to_ascii_lowercase();
    RANK_WORDS.contains(&&word[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three ranks with files such as `ckpt_0004.0` and `ckpt_0004.0.h5`.
    fn placed() -> Placed {
        let labels = ["ckpt_0004", "ckpt_0005"].map(|label| label.parse().expect("valid")).into();
        let ends = [Vec::new(), b".h5".to_vec()].into();
        Placed { ranks: (0..3).map(Rank).collect(), labels, ends, ..Placed::default() }
    }

    fn found(left: &[&str]) -> (bool, Vec<u64>) {
        let left: Vec<FilePath> = left.iter().map(|name| FilePath::new(name.as_bytes()).expect("valid")).collect();
        let EachRank { are_there, steps, .. } = of_each_rank(left.iter(), &placed(), |_| false);
        (are_there, steps.into_iter().collect())
    }

    #[test]
    fn files_of_each_rank_are_found_by_the_numbers_of_all_ranks() {
        assert_eq!(found(&["part_0004_r0.bin", "part_0004_r1.bin", "part_0004_r2.bin"]), (true, vec![4]));
        assert_eq!(found(&["0004/p.1", "0004/p.2", "0004/p.3", "0005/p.1"]), (true, vec![4, 5]), "ranks from 1");
        assert_eq!(found(&["rng_rank0", "rng_rank1", "rng_rank2"]), (true, vec![]));
        assert_eq!(found(&["rng_rank0", "rng_rank1"]), (false, vec![]), "rank 2 has none");
        assert_eq!(found(&["slice_0", "slice_1", "slice_2"]), (false, vec![]), "no word for ranks");
        assert_eq!(found(&["plot_0004", "plot_0005"]), (false, vec![]));
        assert_eq!(found(&["run.txt", "99999999999999999999999"]), (false, vec![]));
    }

    #[test]
    fn files_of_each_rank_are_found_although_the_checkpoints_have_the_same_numbers() {
        let labels = ["1", "2", "3"].map(|label| format!("epoch_{label}").parse().expect("valid"));
        let of = |have_pauses: bool, left: &[&str]| {
            let left: Vec<FilePath> = left.iter().map(|name| FilePath::new(name.as_bytes()).expect("valid")).collect();
            let (begins, ends) = ([b"fold_".to_vec()].into(), [b".dat".to_vec()].into());
            let ranks = (0..3).map(Rank).collect();
            let placed = Placed { ranks, labels: labels.clone().into(), begins, ends, have_pauses };
            of_each_rank(left.iter(), &placed, |_| true).are_of_all
        };
        let (rng, best) =
            (["rng.1.dat", "rng.2.dat", "rng.3.dat"], ["fold_1/best.pt", "fold_2/best.pt", "fold_3/best.pt"]);
        assert!(of(true, &rng) && !of(false, &rng), "one file of each checkpoint has the pauses of the checkpoints");
        assert!(of(false, &best) && !of(false, &best[..2]));
    }

    #[test]
    fn one_file_of_each_rank_without_a_word_for_ranks_counts_if_the_files_were_written_at_once() {
        let are_of_all = |left: &[&str], are_at_once: bool| {
            let left: Vec<FilePath> = left.iter().map(|name| FilePath::new(name.as_bytes()).expect("valid")).collect();
            let each_rank = of_each_rank(left.iter(), &placed(), |_| are_at_once);
            (each_rank.are_there, each_rank.are_of_all)
        };
        let mesh = ["mesh0.h5", "mesh1.h5", "mesh2.h5"];
        assert_eq!(are_of_all(&mesh, true), (true, true));
        assert_eq!(are_of_all(&["geometry.1", "geometry.2", "geometry.3"], true), (true, true), "counted from 1");
        assert_eq!(are_of_all(&mesh, false), (false, false), "the files of a series");
        assert_eq!(are_of_all(&mesh[..2], true), (false, false), "rank 2 has none");
        assert_eq!(are_of_all(&["slice0.vtk", "slice1.vtk", "slice2.vtk"], true), (false, false), "another end");
        assert_eq!(are_of_all(&["a_rank0.bin", "a_rank1.bin", "a_rank2.bin"], true), (true, true));
        assert_eq!(are_of_all(&["a_rank0.csv", "a_rank1.csv", "a_rank2.csv"], true), (true, false), "tables");
    }
}
