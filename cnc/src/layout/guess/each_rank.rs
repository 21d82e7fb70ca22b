//! Finds files that each rank has written, and that a layout leaves out. The ranks need such files for a restart, also
//! if the files are few and small.

use super::words::RANK_WORDS;
use mcrengine::ids::{CheckpointId, FilePath, Rank, shape_of};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What is known about files of each rank that a layout leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EachRank {
    /// Whether each rank has such a file.
    pub are_there: bool,
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
}

/// `left`: the files that the layout leaves out. `ranks` and `labels`: the ranks and the checkpoints of the other
/// files.
pub(super) fn of_each_rank<'a>(
    left: impl Iterator<Item = &'a FilePath>,
    ranks: &BTreeSet<Rank>,
    labels: &BTreeSet<CheckpointId>,
) -> EachRank {
    if ranks.len() < 2 {
        return EachRank::default();
    }
    let steps: BTreeSet<u64> = labels.iter().flat_map(numbers_of).collect();
    let mut families: BTreeMap<(Vec<u8>, usize), Family> = BTreeMap::new();
    for path in left {
        let (numbers, shape) = (numbers(path.as_bytes()), shape_of(&String::from_utf8_lossy(path.as_bytes())));
        for (nth, (at, value)) in numbers.iter().enumerate() {
            let mut others =
                numbers.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, (_, value))| *value);
            let step = others.find(|value| steps.contains(value));
            if step.is_some() || is_rank_word(&path.as_bytes()[..at.start]) {
                let family = families.entry((shape.clone(), nth)).or_default();
                family.values.insert(*value);
                family.steps.extend(step);
                family.has_none |= step.is_none();
            }
        }
    }
    let are_ranks = |family: &&Family| {
        let is_from = |first: u64| family.values.iter().copied().eq(ranks.iter().map(|rank| u64::from(rank.0) + first));
        is_from(0) || is_from(1)
    };
    let found: Vec<&Family> = families.values().filter(are_ranks).collect();
    let steps =
        found.iter().filter(|family| !family.has_none).flat_map(|family| family.steps.iter().copied()).collect();
    EachRank { are_there: !found.is_empty(), steps }
}

/// The numbers in the name of a checkpoint.
pub(super) fn numbers_of(label: &CheckpointId) -> impl Iterator<Item = u64> {
    numbers(label.label().as_bytes()).into_iter().map(|(_, value)| value)
}

/// The numbers in a name, and where they are. Numbers that need more than 64 bits are left out.
fn numbers(name: &[u8]) -> Vec<(Range<usize>, u64)> {
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

    fn found(left: &[&str]) -> (bool, Vec<u64>) {
        let left: Vec<FilePath> = left.iter().map(|name| FilePath::new(name.as_bytes()).expect("valid")).collect();
        let labels = ["ckpt_0004", "ckpt_0005"].map(|label| label.parse().expect("valid")).into();
        let EachRank { are_there, steps } = of_each_rank(left.iter(), &(0..3).map(Rank).collect(), &labels);
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
}
