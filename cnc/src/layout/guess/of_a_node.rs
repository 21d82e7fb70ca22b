//! Finds ranks that the names alone do not show, if the number of ranks of the job is known: the ranks of a node that
//! sees only some of the ranks, as the files `out_0003.2` and `out_0003.3` on a local disk, and the ranks after a word
//! that usually means checkpoints, as in `restart.0.h5` and `restart.1.h5`.

use super::beside::has_pause;
use super::steps::SERIES_MIN;
use super::{Layout, RankSlot, Template, Times, Word};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::{BTreeMap, BTreeSet};

/// Whether the ranks that a preset finds are all ranks of this node, although the first ranks are missing: the job has
/// more ranks, and the files were written at once, or two checkpoints have the same only rank. `found`: the ranks of
/// each checkpoint.
pub(super) fn are_all(
    preset: &Layout,
    paths: &[&FilePath],
    times: &Times<'_>,
    found: &BTreeMap<CheckpointId, BTreeSet<u32>>,
    ranks: Option<u32>,
) -> bool {
    let most = found.values().max_by_key(|ranks| ranks.len());
    let (Some(most), Some(ranks)) = (most, ranks) else { return false };
    let (Some(first), Some(last)) = (most.first(), most.last()) else { return false };
    if found.len() > 1 && most.len() == 1 && *last < ranks && found.values().all(|ranks| ranks == most) {
        return true;
    }
    let is_dense = most.len() > 1 && (last - first) as usize + 1 == most.len() && *last < ranks;
    let of_ranks = paths.iter().filter(|path| preset.place(path).is_some_and(|placed| placed.rank.is_some()));
    is_dense && !has_pause(of_ranks.map(|path| Some((*times.begun.get(*path)?, *times.modified.get(*path)?))))
}

/// Sets the ranks of templates for which the names alone show no rank. `ranks`: the number of ranks of the job. If
/// other templates have ranks, and another number of them, only templates with all ranks of the job are taken: in
/// `restart.0.bin` to `restart.3.bin` beside `probe_0.dat` and `probe_1.dat`, the restart files are those of four
/// ranks.
pub(super) fn find(templates: &[Template<'_>], found: &mut [Option<RankSlot>], ranks: Option<u32>) {
    let Some(ranks) = ranks.map(u64::from).filter(|ranks| *ranks > 1) else { return };
    let has_all = |rank: &RankSlot| rank.ranks == ranks;
    let has_others = found.iter().any(Option::is_some);
    if found.iter().flatten().any(has_all) {
        return;
    }
    let of_node = templates.iter().map(|template| template.rank_of_a_node(ranks));
    let of_node: Vec<_> = of_node.map(|rank| rank.filter(|rank| !has_others || has_all(rank))).collect();
    if !has_others || of_node.iter().any(Option::is_some) {
        found.iter_mut().zip(of_node).for_each(|(rank, of_node)| *rank = of_node);
    }
}

/// Sets the rank of templates with the files of one rank, if each node has one rank, as `out_0003.2` and `out_0004.2`.
pub(super) fn find_only(templates: &[Template<'_>], found: &mut [Option<RankSlot>], ranks: Option<u32>) {
    let Some(ranks) = ranks.map(u64::from).filter(|ranks| *ranks > 1) else { return };
    let only: Vec<Option<RankSlot>> = (templates.iter().zip(found.iter()))
        .map(|(template, found)| template.only_rank(found.as_ref(), ranks))
        .collect();
    // Several ranks in other files show that this node has several ranks.
    if (only.iter().zip(found.iter())).all(|(only, found)| only.is_some() || found.is_none()) {
        for (rank, only) in found.iter_mut().zip(only) {
            *rank = only;
        }
    }
}

impl Template<'_> {
    /// The number that is the only rank of this node: a number that never changes, of a job with more ranks, while
    /// one other number counts the steps, with a pause before each step.
    fn only_rank(&self, found: Option<&RankSlot>, ranks: u64) -> Option<RankSlot> {
        let step = self.as_rank(self.varying().next()?);
        let is_step = |slot: &usize| step.linked.contains(slot);
        let is_written_as_steps =
            self.varying().all(|slot| is_step(&slot)) && self.written_in_order(&step, SERIES_MIN) == self.rows.len();
        if !is_written_as_steps || found.is_some_and(|found| !is_step(&found.slot)) {
            return None;
        }
        let in_words = self.in_words(None);
        let is_rank = |slot: &usize| {
            // A number before the step is more often the number of a run, as in `run3_out_0001`.
            let may_be = self.word(*slot) == Word::Rank || self.word(*slot) == Word::Neutral && *slot > step.slot;
            may_be && !is_step(slot) && !in_words.contains(slot) && super::number(self.rows[0][*slot]) < ranks
        };
        let slot = (0..self.slots()).filter(is_rank).max_by_key(|slot| (self.word(*slot), *slot))?;
        // The ranks are counted from 0, because the other nodes may have the first rank.
        let ranks = super::number(self.rows[0][slot]) + 1;
        Some(RankSlot { slot, linked: self.linked(slot), first: 0, ranks })
    }

    fn rank_of_a_node(&self, ranks: u64) -> Option<RankSlot> {
        let is_in_job = |rank: &RankSlot| rank.first.saturating_add(rank.ranks) <= ranks + u64::from(rank.first > 0);
        let varying: Vec<usize> = self.varying().collect();
        // The times show which number is the step. All steps must have all values of the rank.
        let step = varying.iter().find(|slot| self.contradicts(&self.as_rank(**slot)));
        if let Some(step) = step {
            let of_step = self.linked(*step);
            let is_plain = |slot: &usize| matches!(self.word(*slot), Word::Neutral | Word::Rank);
            let others = varying.iter().copied().rev().filter(is_plain).filter(|slot| !of_step.contains(slot));
            return others.filter_map(|slot| self.try_rank(slot, true)).find(is_in_job);
        }
        // The names have no step. Files that were written at once are those of ranks, unless a word says clearly that
        // the number is a step.
        let may_be = |slot: &usize| self.word(*slot) != Word::Part && !self.is_clear(*slot);
        let first = varying.iter().copied().rev().find(may_be)?;
        let linked = self.linked(first);
        let rank = self.as_rank(first);
        let has_others = varying.iter().any(|slot| !linked.contains(slot));
        let is_dense = rank.ranks == self.rows.len() as u64 && rank.ranks > 1;
        (!has_others && is_dense && is_in_job(&rank) && self.is_written_at_once()).then_some(rank)
    }

    /// The numbers that have more than one value.
    pub(super) fn varying(&self) -> impl Iterator<Item = usize> {
        (0..self.slots()).filter(|slot| self.rows.iter().any(|row| row[*slot] != self.rows[0][*slot]))
    }

    /// A number as if it were the rank.
    fn as_rank(&self, slot: usize) -> RankSlot {
        let values: BTreeSet<u64> = self.rows.iter().map(|row| super::number(row[slot])).collect();
        let (first, last) = (values.first().copied().unwrap_or(0), values.last().copied().unwrap_or(0));
        RankSlot { slot, linked: self.linked(slot), first, ranks: (last - first).saturating_add(1) }
    }

    /// Whether there was no pause while the files were written. False if a time is unknown.
    fn is_written_at_once(&self) -> bool {
        let times = self.begun.iter().zip(&self.modified).map(|(begun, modified)| Some(((*begun)?, (*modified)?)));
        !has_pause(times)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Explanation, Layout, Listing, Rest, guess};
    use mcrengine::ids::FilePath;
    use std::path::Path;

    /// Guesses for files that were written at these seconds, with this number of ranks.
    fn guess_of(files: &[(&str, u64)], ranks: Option<u32>) -> (Layout, Explanation) {
        let listing = Listing::of_times(files.iter().map(|(name, second)| (*name, second * 1000, second * 1000 + 40)));
        guess(&listing, Path::new("/local/run"), Rest::IsLeft, ranks)
    }

    fn placed(layout: &Layout, path: &str) -> Option<(String, Option<u32>)> {
        let placed = layout.place(&FilePath::new(path.as_bytes()).expect("valid"))?;
        Some((placed.checkpoint.to_string(), placed.rank.map(|rank| rank.0)))
    }

    #[test]
    fn a_node_with_the_last_ranks_knows_them_after_a_restart_from_any_step() {
        let files = [("out_0003.2", 10), ("out_0003.3", 10), ("out_0004.2", 60), ("out_0004.3", 60)];
        for files in [&files[..], &[&files[..], &[("out_0005.2", 110), ("out_0005.3", 110)]].concat()] {
            let (layout, explanation) = guess_of(files, Some(4));
            assert_eq!(explanation.asks, None);
            assert_eq!(placed(&layout, "out_0009.3"), Some(("out_0009".into(), Some(3))), "{layout}\n{explanation}");
        }
        // A job with two ranks has no rank 3.
        let (layout, _) = guess_of(&files, Some(2));
        assert_ne!(placed(&layout, "out_0004.3").and_then(|(_, rank)| rank), Some(3), "{layout}");
    }

    #[test]
    fn a_node_with_one_rank_knows_it_from_the_second_step_on_if_the_number_of_ranks_is_known() {
        for (form, label) in [
            ("out_S.R.dat", "out_S"),
            ("chk_S.rankR.h5", "chk_S"),
            ("out_S_R.h5", "out_S"),
            ("DDS/DDS.cpuR", "DDS"),
            ("stepS/pR.dat", "stepS"),
        ] {
            let name = |step: &str, rank: &str| form.replace('S', step).replace('R', rank);
            for (ranks, rank, steps) in [(2, "0001", &["0001", "0002"][..]), (4, "0003", &["0004", "0005", "0006"])] {
                let names: Vec<String> = steps.iter().map(|step| name(step, rank)).collect();
                let files: Vec<_> = names.iter().zip(0..).map(|(name, nth)| (name.as_str(), 10 + 60 * nth)).collect();
                let (layout, explanation) = guess_of(&files, Some(ranks));
                let last = steps[steps.len() - 1];
                let expected = Some((label.replace('S', last), rank.parse().ok()));
                assert_eq!(explanation.asks, None, "{form}");
                assert_eq!(placed(&layout, &name(last, rank)), expected, "{form} {rank}: {layout}\n{explanation}");
                assert_eq!(placed(&layout, &name(last, "0000")).map(|(_, rank)| rank), Some(Some(0)), "{form}");
            }
        }
        let of_run = [("run_1_out_0001.dat", 10), ("run_1_out_0002.dat", 80), ("run_1_out_0003.dat", 150)];
        let (layout, _) = guess_of(&of_run, Some(4));
        assert_eq!(placed(&layout, of_run[2].0).and_then(|(_, rank)| rank), None, "of a run: {layout}");
        // A number that is too large is no rank, and without the number of ranks no number is.
        for ranks in [Some(2), None] {
            let (layout, _) = guess_of(&[("out_0001.7.dat", 10), ("out_0002.7.dat", 70)], ranks);
            assert_ne!(placed(&layout, "out_0002.7.dat").and_then(|(_, rank)| rank), Some(7), "{ranks:?}");
        }
    }

    #[test]
    fn a_number_after_restart_is_the_rank_if_the_job_has_these_ranks_and_they_wrote_at_once() {
        let files = |numbers: &[u64], form: &str, pause: u64| -> Vec<(String, u64)> {
            numbers.iter().map(|n| (form.replace('X', &n.to_string()), 10 + n * pause)).collect()
        };
        let rank_of = |numbers: &[u64], form: &str, pause: u64, ranks: Option<u32>| {
            let files = files(numbers, form, pause);
            let files: Vec<(&str, u64)> = files.iter().map(|(name, second)| (name.as_str(), *second)).collect();
            let (layout, explanation) = guess_of(&files, ranks);
            let last = placed(&layout, files[files.len() - 1].0).and_then(|(_, rank)| rank);
            last.filter(|_| explanation.asks.is_none())
        };
        for form in ["restart.X.h5", "state_X.dat", "out/save_X.h5", "restart.X"] {
            assert_eq!(rank_of(&[0, 1], form, 0, Some(2)), Some(1), "{form}");
            assert_eq!(rank_of(&[2, 3], form, 0, Some(4)), Some(3), "{form} on the second node");
            assert_eq!(rank_of(&[2, 3], form, 60, Some(4)), None, "{form} are steps");
            assert_eq!(rank_of(&[2, 3], form, 0, Some(2)), None, "{form} of more ranks than the job has");
        }
        for form in ["step_X.h5", "chk_X.h5"] {
            assert_eq!(rank_of(&[0, 1], form, 0, Some(2)), None, "the word in {form} says that the number is a step");
        }
    }

    #[test]
    fn the_files_of_all_ranks_are_those_of_the_job_whatever_numbers_are_beside_them() {
        let restart = [0, 1, 2, 3].map(|rank| format!("restart.{rank}.bin"));
        let probes = [0, 1, 2].map(|probe| format!("probe_{probe}.dat"));
        let files: Vec<(&str, u64)> = restart.iter().chain(&probes).map(|name| (name.as_str(), 10)).collect();
        let (layout, _) = guess_of(&files, Some(4));
        assert_eq!(placed(&layout, "restart.3.bin"), Some(("run".into(), Some(3))), "{layout}");
        assert_eq!(placed(&layout, "probe_2.dat").and_then(|(_, rank)| rank), None, "{layout}");
    }

    #[test]
    fn files_that_were_written_at_once_are_of_the_ranks_of_this_node() {
        let (layout, _) = guess_of(&[("wave.2", 10), ("wave.3", 10)], Some(4));
        assert_eq!(placed(&layout, "wave.3"), Some(("run".into(), Some(3))), "{layout}");
        let (layout, _) = guess_of(&[("wave.2", 10), ("wave.3", 70)], Some(4));
        assert_ne!(placed(&layout, "wave.3").and_then(|(_, rank)| rank), Some(3), "steps: {layout}");
        let (layout, _) = guess_of(&[("wave.12", 10), ("wave.13", 10)], Some(4));
        assert_ne!(placed(&layout, "wave.13").and_then(|(_, rank)| rank), Some(13), "no rank of 4: {layout}");
        let large = ["wave.99999999999999999999998", "wave.99999999999999999999999"];
        let (layout, _) = guess_of(&large.map(|name| (name, 10)), Some(4));
        assert_eq!(placed(&layout, large[0]).and_then(|(_, rank)| rank), None, "too large: {layout}");
        let (layout, _) = guess_of(&[("wave.2", 10), ("wave.3", 10)], None);
        assert_ne!(placed(&layout, "wave.3").and_then(|(_, rank)| rank), Some(3), "ranks unknown: {layout}");
    }
}
