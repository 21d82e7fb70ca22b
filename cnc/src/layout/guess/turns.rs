//! Finds files that were written in turn, with a pause after each file, although their names have several numbers, as
//! in `rst_0001-11`, `rst_0001-12` and `rst_0002-01`. If the pauses between the files of a year are as long as the
//! pauses between the years, each file is a step, and the month is no rank. The ranks of a job write at about the same
//! time, or with short pauses and long ones between the steps.

use super::{RankSlot, SLOT, Template, Word, label_of, number, runs};
use mcrengine::ids::FilePath;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// Minimum pause between two files that were written in turn. Ranks that write one after the other rarely wait that
/// long.
const PAUSE_MIN: Duration = Duration::from_secs(5);

/// The numbers that would be ranks, if the files were not written in turn.
#[derive(Default)]
pub(super) struct Turns {
    /// For each number: the index of its template, and the number.
    found: Vec<(usize, RankSlot)>,
}

impl Turns {
    /// Removes the ranks of templates whose files were written in turn. Such a number is no rank in the other templates
    /// either.
    pub(super) fn remove(templates: &[Template<'_>], ranks: &mut [Option<RankSlot>], known: Option<u32>) -> Self {
        let is_unknown = |rank: &RankSlot| known.map(u64::from) != Some(rank.ranks);
        let all = templates.iter().zip(ranks.iter()).enumerate();
        let in_turn = all.filter_map(|(nth, (template, rank))| {
            let rank = rank.as_ref().filter(|rank| is_unknown(rank) && template.writes_in_turn(rank))?;
            Some((nth, rank.clone()))
        });
        let found: Vec<(usize, RankSlot)> = in_turn.collect();
        let leads: BTreeSet<&[u8]> = found.iter().map(|(nth, rank)| templates[*nth].lead(rank.slot)).collect();
        for (template, rank) in templates.iter().zip(ranks) {
            if rank.as_ref().is_some_and(|rank| leads.contains(template.lead(rank.slot))) {
                *rank = None;
            }
        }
        Self { found }
    }

    pub(super) fn are_there(&self) -> bool {
        !self.found.is_empty()
    }

    /// The question if the name of a checkpoint has only the numbers that change less often, as in `run1/0003.dat` and
    /// `run2/0003.dat`. Then a checkpoint would have all steps of a run.
    pub(super) fn asks(&self, templates: &[Template<'_>], paths: &[&FilePath], span: &[u8]) -> Option<String> {
        self.found.iter().find_map(|(nth, rank)| {
            let template = &templates[*nth];
            let (_, first) = template.find(span, None)?;
            let varies = |slot: &usize| template.rows.iter().any(|row| row[*slot] != template.rows[0][*slot]);
            let is_missing = |slot: &usize| varies(slot) && !(first..first + count(span)).contains(slot);
            let missing: Vec<usize> = (0..template.slots()).filter(is_missing).collect();
            let is_inner = |slot: &usize| rank.linked.contains(slot) != (template.word(rank.slot) == Word::Rank);
            let last = missing.last().filter(|_| missing.iter().all(is_inner))?;
            let is_same = |one: &[&[u8]], other: &[&[u8]]| missing.iter().all(|slot| one[*slot] == other[*slot]);
            let name = |row: &[&[u8]]| paths.iter().find(|path| template.is_name(row, path)).copied();
            template.rows.iter().find_map(|one| {
                let other = template.rows.iter().find(|row| *row != one && is_same(row, one))?;
                Some(runs::question(name(one)?, name(other)?, &label_of(one[*last]).ok()?))
            })
        })
    }
}

/// Whether the numbers of a span are parts of one number, as in `rst_0001-12` and `t0.5`, and all files with this span
/// were written in turn.
pub(super) fn are_in_turn(templates: &[Template<'_>], span: &[u8]) -> bool {
    let texts: Vec<&[u8]> = span.split(|byte| *byte == SLOT).collect();
    let is_word = |text: &&[u8]| text.iter().any(u8::is_ascii_alphabetic);
    if texts.len() < 3 || texts[1..texts.len() - 1].iter().any(is_word) {
        return false;
    }
    let last = |template: &Template<'_>| template.find(span, None).map(|(_, first)| first + texts.len() - 2);
    let mut found = templates.iter().filter_map(|template| Some((template, last(template)?))).peekable();
    found.peek().is_some() && found.all(|(template, last)| template.is_in_turn(|slot| slot != last))
}

fn count(span: &[u8]) -> usize {
    span.iter().filter(|byte| **byte == SLOT).count()
}

/// The time in which a file was written, and its numbers that change less often and more often.
type Turn = (Range<SystemTime>, Vec<u64>, Vec<u64>);

impl Template<'_> {
    /// Whether a number that may be the rank is a part of a step. The word before a rank is no sign if it is one letter
    /// and the number has not changed before all files with its value were there.
    fn writes_in_turn(&self, rank: &RankSlot) -> bool {
        let is_rank = |slot: usize| rank.linked.contains(&slot);
        match self.word(rank.slot) {
            Word::Rank => self.letters(rank.slot).len() == 1 && self.is_in_turn(is_rank),
            _ => self.is_in_turn(|slot| !is_rank(slot)),
        }
    }

    /// Whether there was a pause after each file, and the pauses while the outer numbers stay the same are about as
    /// long as the pauses when they change. The other numbers rise while the outer numbers stay the same.
    fn is_in_turn(&self, is_outer: impl Fn(usize) -> bool) -> bool {
        let values = |row: &[&[u8]], outer: bool| -> Vec<u64> {
            (0..row.len()).filter(|slot| is_outer(*slot) == outer).map(|slot| number(row[slot])).collect()
        };
        let times = self.begun.iter().zip(&self.modified);
        let turns = self.rows.iter().zip(times).map(|(row, (begun, modified))| {
            let time = (*begun)?..(*modified)?;
            Some((time, values(row, true), values(row, false)))
        });
        let Some(mut turns) = turns.collect::<Option<Vec<Turn>>>() else { return false };
        turns.sort_by_key(|(time, _, _)| time.start);
        let (mut inner, mut outer): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
        for pair in turns.windows(2) {
            let [(before, of_before, one), (after, of_after, next)] = pair else { return false };
            let pause = after.start.duration_since(before.end).unwrap_or_default();
            match of_before == of_after {
                _ if pause < PAUSE_MIN => return false,
                true if one >= next => return false,
                true => inner.push(pause),
                false => outer.push(pause),
            }
        }
        let groups: BTreeSet<&Vec<u64>> = turns.iter().map(|(_, of, _)| of).collect();
        let shortest = inner.into_iter().min().zip(outer.iter().min());
        groups.len() == outer.len() + 1 && shortest.is_some_and(|(inner, outer)| inner * 2 >= *outer)
    }

    /// Whether a path is the name with these numbers.
    fn is_name(&self, row: &[&[u8]], path: &FilePath) -> bool {
        let (text, digits) = super::tokenize(path.as_bytes());
        text == self.text && digits == row
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::{Explanation, Layout, Listing};
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The checkpoints of files that were written at these seconds, with their number of files, and the explanation.
    fn guess(files: &[(String, u64)]) -> (BTreeMap<String, usize>, Explanation) {
        let at = |second: u64| 1_700_000_000_000 + second * 1000;
        let listing = Listing::of_times(files.iter().map(|(name, second)| (name.as_str(), at(*second), at(*second))));
        let (layout, explanation) = Layout::guess(&listing, Path::new("/data/run7"), None);
        let mut found = BTreeMap::new();
        for placed in listing.files.iter().filter_map(|path| layout.place(path)) {
            *found.entry(placed.checkpoint.to_string()).or_default() += 1;
        }
        (found, explanation)
    }

    /// The names of files with two numbers, `A` and `B`, of which B counts to the given numbers.
    fn names(form: &str, last: &[u64]) -> Vec<String> {
        let name = |a: usize, b: u64| form.replace('A', &format!("{a:04}")).replace('B', &format!("{b:02}"));
        let of = |(a, last): (usize, &u64)| (1..=*last).map(|b| name(a + 1, b)).collect::<Vec<_>>();
        last.iter().enumerate().flat_map(of).collect()
    }

    #[test]
    fn a_month_is_no_rank_if_the_months_and_the_years_have_equal_pauses() {
        for form in ["ocean_rst_A-B.nc", "A-B/rst.nc", "R.A-B/ocean.nc", "model.A.B.ckpt", "out/tA.B/u.bin"] {
            for last in [&[12, 3][..], &[12, 12], &[12, 8], &[4, 2, 1]] {
                let names = names(form, last);
                let files: Vec<_> = names.into_iter().zip((0..).map(|nth| nth * 1200 + nth % 2 * 300)).collect();
                let (found, explanation) = guess(&files);
                assert_eq!(explanation.asks, None, "{form} {last:?}");
                assert_eq!(found.len(), files.len(), "{form} {last:?}: {found:?}\n{explanation}");
            }
        }
        let both = |(name, at): (String, u64)| [(name.replace('#', "ice"), at), (name.replace('#', "sea"), at)];
        let files: Vec<_> = names("R.A-B/#.nc", &[12, 3]).into_iter().zip((0..).map(|nth| nth * 60)).collect();
        let (found, explanation) = guess(&files.into_iter().flat_map(both).collect::<Vec<_>>());
        assert!(found.len() == 15 && found.values().all(|files| *files == 2), "{found:?}\n{explanation}");
    }

    #[test]
    fn steps_with_equal_names_in_two_directories_are_of_two_runs() {
        let of_run = |run: &str, first: u64| -> Vec<(String, u64)> {
            let steps = (0..4).map(|step| (format!("{run}/000{step}.sdf"), first + step * 600));
            steps.chain([(format!("{run}/input.deck"), first)]).collect()
        };
        for runs in [["run1", "run2"], ["member_001", "member_002"]] {
            let mut files = [of_run(runs[0], 0), of_run(runs[1], 2400)].concat();
            for _ in 0..2 {
                let asks = guess(&files).1.asks.unwrap_or_default();
                let both = format!("{0}/0000.sdf and {1}/0000.sdf both look like", runs[0], runs[1]);
                assert!(asks.contains(&both) && asks.contains("seem to come from two runs"), "{runs:?}: {asks}");
                // The last step of the second run is not there yet.
                files.retain(|(name, _)| *name != format!("{}/0003.sdf", runs[1]));
            }
        }
    }

    #[test]
    fn ranks_that_write_one_after_the_other_and_wait_longer_for_the_next_step_stay_ranks() {
        for (form, pause) in [("out.A.B", 1), ("out.A.B", 2), ("out.A.B", 6), ("s.A-pB.h5", 60)] {
            let of = |nth: u64| nth / 4 * 60 + nth * pause;
            let files: Vec<_> = names(form, &[4, 4, 4]).into_iter().zip((0..).map(of)).collect();
            let (found, explanation) = guess(&files);
            assert!(explanation.shows_ranks && explanation.asks.is_none(), "{form} {pause}: {explanation:?}");
            assert_eq!(found.into_values().collect::<Vec<_>>(), [4, 4, 4], "{form} {pause}");
        }
    }
}
