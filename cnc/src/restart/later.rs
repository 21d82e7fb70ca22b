//! Finds files whose names show that they belong to a later step than the restored checkpoint.
//!
//! A start of a job may end before its first checkpoint is committed, and leave the files of many steps. The next
//! start begins with the first step again, so its checkpoints are newer than these files, although the names of the
//! files have larger numbers. An application that continues from the largest number would use these files after a
//! restart.
//!
//! The label of the restored checkpoint (`step_000052`) shows which numbers in a path count the steps. Only files
//! whose paths differ from a restored path in numbers alone are compared. All other numbers, such as ranks, are
//! ignored.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// The shape of a file: its path with every run of digits replaced by `#`. Files of the same kind from different
/// ranks or steps have the same shape.
pub(super) fn shape(path: &[u8]) -> Vec<u8> {
    let mut shape: Vec<u8> = path.iter().map(|b| if b.is_ascii_digit() { b'#' } else { *b }).collect();
    shape.dedup_by(|b, a| (*a, *b) == (b'#', b'#'));
    shape
}

/// Where the paths of one shape have the label of the checkpoint.
#[derive(Debug)]
struct Columns {
    /// The runs of digits in the path of one file of the checkpoint.
    restored: Vec<Vec<u8>>,
    /// For each occurrence of the label, the indices of its runs of digits. An index is removed if the files of the
    /// checkpoint have different numbers there.
    occurrences: Vec<Vec<usize>>,
}

/// Decides whether the name of a file is later than the names of the restored checkpoint.
#[derive(Debug, Default)]
pub(super) struct Later(BTreeMap<Vec<u8>, Columns>);

impl Later {
    /// Finds the label in the paths of the checkpoint.
    pub(super) fn new<'a>(label: &str, paths: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut later: BTreeMap<Vec<u8>, Columns> = BTreeMap::new();
        for path in paths {
            let runs = runs(path);
            match later.entry(shape(path)) {
                Entry::Vacant(entry) => {
                    let restored = runs.iter().map(|run| path[run.clone()].to_vec()).collect();
                    entry.insert(Columns { restored, occurrences: occurrences(label.as_bytes(), path, &runs) });
                }
                Entry::Occupied(mut entry) => {
                    let Columns { restored, occurrences } = entry.get_mut();
                    // A path with the character `#` may have fewer numbers than other paths of its shape.
                    let is_same = |column: &usize| number(path, &runs, *column) == Some(restored[*column].as_slice());
                    occurrences.retain(|columns| columns.iter().all(is_same));
                }
            }
        }
        later.retain(|_, columns| !columns.occurrences.is_empty());
        Self(later)
    }

    /// Whether the path has the shape of restored files, and all its labels are later than the restored label.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        let Some(Columns { restored, occurrences }) = self.0.get(&shape(path)) else { return false };
        let runs = runs(path);
        let is_later = |columns: &Vec<usize>| {
            let mut orders = columns.iter().map(|&column| order(path, runs.get(column)?, &restored[column]));
            orders.find(|order| *order != Some(Ordering::Equal)).flatten() == Some(Ordering::Greater)
        };
        occurrences.iter().all(is_later)
    }
}

/// The runs of digits of a path.
fn runs(path: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in path.iter().enumerate().filter(|(_, byte)| byte.is_ascii_digit()) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn number<'a>(path: &'a [u8], runs: &[Range<usize>], column: usize) -> Option<&'a [u8]> {
    path.get(runs.get(column)?.clone())
}

/// For each occurrence of the label in the path, the indices of the runs of digits that belong to the label. A label
/// that begins or ends within a run of digits is not an occurrence.
fn occurrences(label: &[u8], path: &[u8], runs: &[Range<usize>]) -> Vec<Vec<usize>> {
    let mut occurrences = Vec::new();
    for (at, _) in path.windows(label.len().max(1)).enumerate().filter(|(_, window)| *window == label) {
        let end = at + label.len();
        let touched = || runs.iter().enumerate().filter(|(_, run)| run.start < end && run.end > at);
        if touched().all(|(_, run)| run.start >= at && run.end <= end) {
            occurrences.push(touched().map(|(column, _)| column).collect::<Vec<_>>());
        }
    }
    occurrences.retain(|columns| !columns.is_empty());
    occurrences
}

/// Compares a number in a path with the number in the same place of a restored path. `None` if the number may be the
/// part after a decimal point, and its order as such a part differs from its order as a whole number.
fn order(path: &[u8], run: &Range<usize>, restored: &[u8]) -> Option<Ordering> {
    let number = path.get(run.clone())?;
    let without_zeros = |run: &[u8]| -> Vec<u8> { run.iter().skip_while(|byte| **byte == b'0').copied().collect() };
    let (a, b) = (without_zeros(number), without_zeros(restored));
    let whole = a.len().cmp(&b.len()).then_with(|| a.cmp(&b));
    let is_after_point = run.start >= 2 && path[run.start - 1] == b'.' && path[run.start - 2].is_ascii_digit();
    (!is_after_point || number.cmp(restored) == whole).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_later(label: &str, restored: &[&str], path: &str) -> bool {
        Later::new(label, restored.iter().map(|path| path.as_bytes())).has(path.as_bytes())
    }

    #[test]
    fn only_the_numbers_of_the_label_count_steps() {
        let restored = ["rank_0/step_52.dat", "rank_1/step_52.dat"];
        for (path, later) in [
            ("rank_0/step_53.dat", true),
            ("rank_9/step_53.dat", true),
            ("rank_0/step_0100.dat", true),
            ("rank_9/step_51.dat", false),
            ("rank_9/step_52.dat", false),
            ("rank_9/step_9.dat", false),
            ("rank_0/step_53.log", false),
            ("rank_0/plot_53.dat", false),
        ] {
            assert_eq!(is_later("step_52", &restored, path), later, "{path}");
        }
    }

    #[test]
    fn a_label_may_occur_twice_and_may_be_a_date() {
        assert!(is_later("DD0018", &["DD0018/DD0018.cpu0000"], "DD0019/DD0019.cpu0003"));
        assert!(!is_later("DD0018", &["DD0018/DD0018.cpu0000"], "DD0019/DD0018.cpu0003"));
        let restored = ["wrfrst_d01_2026-11-30_23:00:00"];
        assert!(is_later("2026-11-30_23:00:00", &restored, "wrfrst_d01_2026-12-01_00:00:00"));
        assert!(is_later("2026-11-30_23:00:00", &restored, "wrfrst_d02_2026-12-01_00:00:00"));
        assert!(!is_later("2026-11-30_23:00:00", &restored, "wrfrst_d02_2026-11-30_22:30:00"));
    }

    #[test]
    fn names_that_cannot_be_compared_are_not_later() {
        assert!(!is_later("final", &["final.rank_0.dat"], "final.rank_1.dat"), "the label has no number");
        assert!(!is_later("it_1", &["it_1#2.dat"], "it_#.dat"), "the name has no number");
        assert!(!is_later("it_1", &["it_1.dat", "it_#.dat"], "it_2.dat"), "a file of the checkpoint has no number");
        assert!(!is_later("it_1", &["out/rank_0.dat"], "out/rank_1.dat"), "the paths have no label");
        assert!(!is_later("1", &["run_1/1.dat"], "run_1/2.dat"), "the label may be either number");
        assert!(!is_later("1", &["run_1/1.dat"], "run_2/1.dat"), "the label may be either number");
        assert!(is_later("1", &["rank_0/1.dat", "rank_1/1.dat"], "rank_0/2.dat"), "ranks differ");
        assert!(!is_later("t_0.5", &["t_0.5.rank_0"], "t_0.125.rank_0"), "0.125 is earlier than 0.5");
        assert!(!is_later("t_0.125", &["t_0.125.rank_0"], "t_0.5.rank_0"), "5 may be a whole number");
        assert!(is_later("t_0.125", &["t_0.125.rank_0"], "t_0.250.rank_0"));
        assert!(is_later("t_0.5", &["t_0.5.rank_0"], "t_1.25.rank_0"));
    }
}
