//! Compares the checkpoints of a guess with the times when their files were created. All ranks create the files of a
//! checkpoint at about the same time, also if writing them takes long. A code needs time from one checkpoint to the
//! next. If the checkpoints of a guess were created in quick succession, they may be parts of one checkpoint. If the
//! names do not show clearly that each of them is a step, the user is asked.

use super::directories::slots_within;
use super::steps::{SERIES_MIN, is_counted};
use super::words::{is_loose, is_of_time};
use super::{CHECKPOINT_WORDS, SLOT, Template, Word, grids, number, show, tokenize};
use crate::layout::pointers::{is_restart_name, may_be_left};
use crate::layout::{Layout, Within};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// Layouts that are not the names of one code. The names of a code show its steps, also if the files were copied.
const GENERAL: &[&str] = &["guessed", "lammps"];

/// Minimum pause between the last file of a step and the first file of the next step, if the step has several files.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Files of checkpoints whose names differ only in numbers.
struct Family<'a> {
    template: Template<'a>,
    /// The slots of the name of the checkpoint, and of the rank.
    of_label: Vec<usize>,
    rank: Option<usize>,
    files: Vec<File<'a>>,
}

struct File<'a> {
    path: &'a FilePath,
    label: CheckpointId,
    /// `None` if the time is not known.
    created: Option<SystemTime>,
}

/// The question for the user, if the checkpoints of a layout may be parts of one checkpoint. `ranks`: the number of
/// ranks, if it is known.
pub(super) fn asks(
    layout: &Layout,
    paths: &[&FilePath],
    created: &BTreeMap<&FilePath, SystemTime>,
    ranks: Option<u32>,
) -> Option<String> {
    let families = families_of(layout, paths, created);
    if families.iter().all(|family| family.rank.is_none())
        && let Some(asks) = may_be_ranks(&families, ranks)
    {
        return Some(asks);
    }
    // In an archive without times, all files have the time 0.
    let is_known = |file: &File<'_>| file.created.is_some_and(|at| at != SystemTime::UNIX_EPOCH);
    if !GENERAL.contains(&layout.name()) || !families.iter().flat_map(|family| &family.files).any(is_known) {
        return None;
    }
    families.iter().find_map(|family| family.grid_asks(ranks).or_else(|| family.asks_for_another_number()))
}

fn families_of<'a>(
    layout: &Layout,
    paths: &[&'a FilePath],
    created: &BTreeMap<&FilePath, SystemTime>,
) -> Vec<Family<'a>> {
    let mut families: BTreeMap<Vec<u8>, Family<'a>> = BTreeMap::new();
    for path in paths.iter().filter(|path| !may_be_left(path.as_bytes())) {
        let Some(placed) = layout.place(path) else { continue };
        let within = layout.place_within(path).map_or_else(Within::default, |(_, within)| within);
        let (text, digits) = tokenize(path.as_bytes());
        let slots = |range| slots_within(&text, &digits, &range);
        let new = || Family {
            template: Template::new(text.clone()),
            of_label: within.label.map(slots).unwrap_or_default(),
            rank: within.rank.map(slots).and_then(|slots| slots.first().copied()),
            files: Vec::new(),
        };
        let family = families.entry(text.clone()).or_insert_with(new);
        family.files.push(File { path, label: placed.checkpoint, created: created.get(path).copied() });
        family.template.rows.push(digits);
        family.template.begun.push(None);
        family.template.modified.push(None);
    }
    families.into_values().collect()
}

/// The question if the checkpoints of a layout without ranks may be the ranks of one checkpoint. The checkpoints may be
/// ranks if all checkpoints have the same files except for one number, this number counts from 0 or 1 without gaps, and
/// the files were created in quick succession. If each checkpoint has several files, a word such as `step` before the
/// number shows that the checkpoints are no ranks: several files are often copied at once. But if each checkpoint has a
/// file `restart.0` and its older copy `backup-restart.0`, only a word that names no kind of file shows this. Such a
/// word is also enough if the job has only one rank.
///
/// Other short numbers without such a word, as in `fort.10` and `fort.20`, may be the numbers of parts.
fn may_be_ranks(families: &[Family<'_>], ranks: Option<u32>) -> Option<String> {
    let mut labels: BTreeMap<&CheckpointId, usize> = BTreeMap::new();
    let files = || families.iter().flat_map(|family| &family.files);
    files().for_each(|file| *labels.entry(&file.label).or_default() += 1);
    let is_one_each = labels.values().all(|files| *files == 1);
    let has_one_of_each = || families.iter().all(|family| family.files.len() == labels.len());
    let are_alike = is_one_each || has_one_of_each() && are_quick(files().map(|file| (&file.label, file.created)));
    if !are_alike {
        return None;
    }
    let is_copy_of =
        |copy: &Family<'_>| families.iter().any(|of| is_older_copy(&copy.template.text, &of.template.text));
    let has_copies = families.iter().any(is_copy_of);
    families.iter().find_map(|family| {
        let Family { template, files, .. } = family;
        let mut varying = (0..template.slots()).filter(|slot| family.values(*slot).len() > 1);
        let slot = varying.next()?;
        let is_linked = |other: usize| template.linked(slot).contains(&other);
        let values = family.values(slot);
        let are_counted = is_counted(&values);
        let is_only = varying.all(is_linked) && values.len() == files.len();
        let may_be = is_only && (are_counted || family.may_be_parts(slot));
        let is_said = if has_copies { template.is_clear(slot) } else { template.word(slot) == Word::Checkpoint };
        let is_step = !is_one_each && is_said || ranks == Some(1) && template.is_clear(slot);
        (may_be && !is_step && family.are_checkpoints_quick()).then(|| {
            format!(
                "{} and {} other files differ only in a number, and most of them were begun within 1 s of another: \
                 they may be the {} of one checkpoint, or one checkpoint each. Say with --layout what the number \
                 is: for ranks {{checkpoint}}_{{rank}}.h5 or a similar pattern, for checkpoints a pattern without \
                 {{rank}}, or \"single\" for all files as one checkpoint",
                files[0].path,
                files.len() - 1,
                if are_counted { "ranks" } else { "parts" }
            )
        })
    })
}

/// Words before the name of a file that name an older copy of it.
const COPY_WORDS: [&[u8]; 5] = [b"backup", b"bak", b"old", b"prev", b"previous"];

/// Whether the name of a file is the name of another file after a word such as `backup-`.
fn is_older_copy(copy: &[u8], of: &[u8]) -> bool {
    let name = |path: &[u8]| path.rsplit(|&b| b == b'/').next().unwrap_or_default().to_ascii_lowercase();
    let (copy, of) = (name(copy), name(of));
    let before = copy.strip_suffix(&of[..]).and_then(|before| before.split_last());
    before.is_some_and(|(last, word)| b"-_.".contains(last) && COPY_WORDS.contains(&word))
}

impl<'a> Family<'a> {
    fn values(&self, slot: usize) -> BTreeSet<u64> {
        self.template.rows.iter().map(|row| number(row[slot])).collect()
    }

    /// The slots with several values. Of slots that always contain the same number, only the first slot is there.
    fn varying(&self, slots: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for slot in slots.filter(|slot| self.values(*slot).len() > 1) {
            if !self.template.linked(slot).iter().any(|linked| found.contains(linked)) {
                found.push(slot);
            }
        }
        found
    }

    /// The slots that distinguish the checkpoints.
    fn of_checkpoints(&self) -> Vec<usize> {
        self.varying(self.of_label.iter().copied())
    }

    /// Whether this number may be the number of a part, such as the unit of a Fortran file: no word shows that it is a
    /// step or that the files are restart files, it has at most three digits and does not begin with 0, and it is no
    /// fraction as in `a_1.5`.
    fn may_be_parts(&self, slot: usize) -> bool {
        let is_short = |digits: &[u8]| digits.len() <= 3 && digits.first() != Some(&b'0');
        let says_step = |slot| self.template.word(slot) == Word::Checkpoint && !is_loose(&self.template.letters(slot));
        let is_said = self.template.linked(slot).into_iter().any(says_step);
        let before = &self.template.text[..self.template.position(slot)];
        let is_fraction = before.strip_suffix(b".").is_some_and(|before| before.ends_with(&[SLOT]));
        let are_restarts = self.files.iter().any(|file| is_restart_name(file.path.as_bytes()));
        !is_said && !is_fraction && !are_restarts && self.template.rows.iter().all(|row| is_short(row[slot]))
    }

    fn are_checkpoints_quick(&self) -> bool {
        are_quick(self.files.iter().map(|file| (&file.label, file.created)))
    }

    /// The question if the number of the checkpoints may be a part of the rank, as in a grid of processes, or the rank
    /// itself: it counts from 0 or 1 without gaps, as ranks do.
    fn grid_asks(&self, ranks: Option<u32>) -> Option<String> {
        let (rank, of_checkpoints) = (self.rank?, self.of_checkpoints());
        let [slot] = of_checkpoints[..] else { return None };
        let may_be = !self.template.is_clear(slot) && (is_counted(&self.values(slot)) || self.may_be_parts(slot));
        let is_known = ranks.is_some_and(|ranks| self.values(rank).len() == ranks as usize);
        // A checkpoint often has its own directory, and the numbers of a grid of processes are in one name.
        let between = slot.min(rank)..slot.max(rank);
        let position = |slot| self.template.position(slot);
        let has_directory = self.template.text[position(between.start)..position(between.end)].contains(&b'/');
        // A number without letters, directly after the number of a rank, may be the second number of a grid.
        let is_bare = self.template.letters(slot).is_empty();
        let is_rank = self.template.word(rank) == Word::Rank && !is_bare;
        let is_said = is_known || has_directory || is_rank || self.have_pauses();
        (may_be && !is_said && self.are_checkpoints_quick()).then(|| {
            format!(
                "the number # in {} would be the number of the checkpoint, but most of these {} checkpoints were \
                 begun within 1 s of another, as the ranks of one checkpoint are. Say with --layout which number is \
                 the step: a pattern with {{checkpoint}} and {{rank}}, in which * stands for other numbers, or \
                 \"single\" for all files as one checkpoint",
                show(&self.template.text, &[slot]),
                self.values(slot).len()
            )
        })
    }

    /// Whether each checkpoint has several files, which were created at once, long before the files of the next
    /// checkpoint. Then also short pauses are pauses between steps.
    fn have_pauses(&self) -> bool {
        let mut times: BTreeMap<&CheckpointId, Vec<SystemTime>> = BTreeMap::new();
        for file in &self.files {
            times.entry(&file.label).or_default().extend(file.created);
        }
        let mut times: Vec<Vec<SystemTime>> = times.into_values().collect();
        times.iter_mut().for_each(|times| times.sort_unstable());
        times.sort_unstable();
        let lasts = |from: &Vec<SystemTime>| from.last()?.duration_since(*from.first()?).ok();
        times.iter().all(|times| times.len() > 1)
            && times.windows(2).all(|pair| {
                let longest = pair.iter().filter_map(lasts).max().unwrap_or_default();
                let pause = pair[1][0].duration_since(pair[0][pair[0].len() - 1]).unwrap_or_default();
                pause >= PAUSE_MIN.max(longest * 10)
            })
    }

    /// The question if the checkpoints were begun in quick succession, and if another number may be the step. The times
    /// show this number if there was a pause from each of its values to the next one. The name of a directory shows
    /// this number if the directory has several checkpoints.
    fn asks_for_another_number(&self) -> Option<String> {
        let of_checkpoints = self.of_checkpoints();
        if of_checkpoints.is_empty() || !self.are_checkpoints_quick() {
            return None;
        }
        let is_clear = |slot: &usize| self.template.is_clear(*slot);
        let is_time = |slot: &usize| is_of_time(&self.template.letters(*slot));
        let are_clear = of_checkpoints.iter().all(is_clear);
        let others =
            self.varying(0..self.template.slots()).into_iter().filter(|slot| !are_clear && self.is_paced(*slot));
        let are_steps = are_clear && of_checkpoints.iter().all(is_time);
        let is_it = |slot: &usize| {
            let is_clearer = !are_clear || is_time(slot) && !are_steps;
            is_clearer && self.is_of_directory(*slot) && self.has_several_checkpoints(*slot)
        };
        let slot = others.chain((0..self.template.slots()).filter(is_it)).next()?;
        let labels: BTreeSet<&CheckpointId> = self.files.iter().map(|file| &file.label).collect();
        Some(format!(
            "the names show {} checkpoints such as {}, but most of them were begun within 1 s of another, and the \
             number # in {} may be the step. Say with --layout which number is the step: a pattern with \
             {{checkpoint}}, such as {}, with {{rank}} in place of the * that is the rank; or \"single\" for all \
             files as one checkpoint",
            labels.len(),
            self.files[0].label,
            show(&self.template.text, &[slot]),
            grids::pattern(&self.template, slot)
        ))
    }

    /// Whether there was usually a pause of at least [`SERIES_MIN`] from the first files of one value of a number to
    /// the first files of its next value, and at least half of the values have several checkpoints.
    fn is_paced(&self, slot: usize) -> bool {
        let values = || self.template.rows.iter().map(|row| number(row[slot]));
        let mut labels: BTreeMap<u64, BTreeSet<&CheckpointId>> = BTreeMap::new();
        for (value, file) in values().zip(&self.files) {
            labels.entry(value).or_default().insert(&file.label);
        }
        let several = labels.values().filter(|labels| labels.len() > 1).count();
        let is_other = !matches!(self.template.word(slot), Word::Rank | Word::Part);
        let distance = usual_distance(values().zip(self.files.iter().map(|file| file.created)));
        is_other && several * 2 >= labels.len() && distance.is_some_and(|distance| distance >= SERIES_MIN)
    }

    /// Whether this number is in the name of a directory above the name of the checkpoint, and is the whole name or
    /// follows a word for checkpoints.
    fn is_of_directory(&self, slot: usize) -> bool {
        let Template { text, .. } = &self.template;
        let at = self.of_label.first().map_or(0, |first| self.template.position(*first));
        let component = text[..at].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let position = self.template.position(slot);
        if position >= component {
            return false;
        }
        let begins = position == 0 || text[position - 1] == b'/';
        begins && text.get(position + 1) == Some(&b'/') || CHECKPOINT_WORDS.contains(&&self.template.letters(slot)[..])
    }

    /// Whether several checkpoints have all of their files below the directory with one value of this number.
    fn has_several_checkpoints(&self, slot: usize) -> bool {
        let mut values: BTreeMap<&CheckpointId, BTreeSet<u64>> = BTreeMap::new();
        for (row, file) in self.template.rows.iter().zip(&self.files) {
            values.entry(&file.label).or_default().insert(number(row[slot]));
        }
        let mut seen = BTreeSet::new();
        values.values().filter(|values| values.len() == 1).any(|values| !seen.insert(values.first().copied()))
    }
}

/// Whether most of these checkpoints, ranks or steps were begun within [`SERIES_MIN`] of the one before. False if there
/// is only one, or if a time is unknown.
fn are_quick<K: Ord>(files: impl Iterator<Item = (K, Option<SystemTime>)>) -> bool {
    usual_distance(files).is_some_and(|distance| distance < SERIES_MIN)
}

/// The usual time (the median) from the begin of one checkpoint, rank or step to the begin of the next one. `files`:
/// for each file, the checkpoint, the rank or the step, and when the file was created.
fn usual_distance<K: Ord>(files: impl Iterator<Item = (K, Option<SystemTime>)>) -> Option<Duration> {
    let mut begins: BTreeMap<K, SystemTime> = BTreeMap::new();
    for (of, created) in files {
        let created = created?;
        let begin = begins.entry(of).or_insert(created);
        *begin = created.min(*begin);
    }
    let mut times: Vec<SystemTime> = begins.into_values().collect();
    times.sort_unstable();
    let mut distances: Vec<Duration> =
        times.windows(2).map(|pair| pair[1].duration_since(pair[0]).unwrap_or_default()).collect();
    distances.sort_unstable();
    distances.get(distances.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use crate::layout::{Explanation, Layout, Listing};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    /// A time after 1970, in milliseconds.
    const BEGAN_MS: u64 = 1_700_000_000_000;

    /// Guesses the layout of files with a name, and the millisecond in which each file was written.
    fn guess(files: &[(String, u64)]) -> (Layout, Explanation) {
        guess_of_ranks(files, None)
    }

    fn guess_of_ranks(files: &[(String, u64)], ranks: Option<u32>) -> (Layout, Explanation) {
        let at = |(name, at_ms): &'_ (String, u64)| (name.clone(), BEGAN_MS + at_ms);
        let files: Vec<(String, u64)> = files.iter().map(at).collect();
        let listing = Listing::of_times(files.iter().map(|(name, at_ms)| (name.as_str(), *at_ms, *at_ms)));
        Layout::guess(&listing, Path::new("/data/run7"), ranks)
    }

    /// The files of steps, 60 s apart. `form` has `S` for the step, and `X` and `Y` for the two numbers of a file. All
    /// files of a step are written within 0.4 s, in another order than their numbers have.
    fn files(form: &str, steps: &[u64], numbers: &[(u64, u64)]) -> Vec<(String, u64)> {
        let mut files = Vec::new();
        for (nth, step) in (0..).zip(steps) {
            for (number, (x, y)) in (0..).zip(numbers) {
                let name = form.replace('S', &step.to_string()).replace('X', &x.to_string());
                files.push((name.replace('Y', &y.to_string()), nth * 60_000 + number * 7 % 5 * 80));
            }
        }
        files
    }

    fn of_one(numbers: &[u64]) -> Vec<(u64, u64)> {
        numbers.iter().map(|number| (*number, 0)).collect()
    }

    /// For each checkpoint, the number of its files.
    fn placed(layout: &Layout, files: &[(String, u64)]) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for (name, _) in files {
            let path = mcrengine::ids::FilePath::new(name.as_bytes()).expect("valid");
            if let Some(placed) = layout.place(&path) {
                *found.entry(placed.checkpoint.to_string()).or_default() += 1;
            }
        }
        found
    }

    #[track_caller]
    fn assert_asks(files: &[(String, u64)], says: &str) {
        let (layout, explanation) = guess(files);
        let asks = explanation.asks.unwrap_or_default();
        assert!(
            asks.contains(says) && asks.contains("--layout"),
            "{files:?}\n{layout}\n{:?}\n{asks}",
            explanation.lines
        );
        assert!(!explanation.certain && explanation.may_be_ranks, "{files:?}");
    }

    #[test]
    fn a_rank_before_the_step_is_not_the_number_of_a_checkpoint() {
        let ranks = of_one(&[0, 1, 2, 3]);
        for form in ["state.X.S", "dump.X.S", "state.000X.0000S"] {
            for steps in [&[0][..], &[0, 1], &[0, 1, 2]] {
                let files = files(form, steps, &ranks);
                assert_asks(&files, "as the ranks of one checkpoint are");
            }
        }
        // The numbers of the ranks have gaps.
        assert_asks(&files("state.X.S", &[0, 1, 2], &of_one(&[0, 32, 64])), "such as state.*.{checkpoint}");
        // The word before the number of the rank, or before the step, shows the meaning.
        for form in ["rankX/rst.S", "state_pX.S", "X.step_S"] {
            let files = files(form, &[0, 1, 2], &ranks);
            let (layout, explanation) = guess(&files);
            assert_eq!((explanation.asks, placed(&layout, &files).len()), (None, 3), "{form}");
        }
    }

    #[test]
    fn the_files_of_one_step_of_a_grid_of_processes_are_not_several_checkpoints() {
        let grid: Vec<(u64, u64)> = (0..3).flat_map(|x| [(x, 0), (x, 1)]).collect();
        for form in ["u.00S.pxX.pyY", "rst_00X_00Y.bin", "u_X_Y.dat", "run/state.X.Y"] {
            let at_once = files(form, &[10], &grid);
            let in_order: Vec<_> = at_once.iter().zip(0..).map(|((name, _), nth)| (name.clone(), nth * 5)).collect();
            assert_asks(&in_order, "as the ranks of one checkpoint are");
            let (layout, explanation) = guess(&at_once);
            let is_one = placed(&layout, &at_once).into_values().eq([6]);
            assert!(explanation.asks.is_some() || is_one, "{form}: {layout}\n{explanation}");
        }
        let in_directory = files("stepS/rst_00X_00Y.bin", &[10], &grid);
        let (layout, explanation) = guess(&in_directory);
        assert_eq!(explanation.asks, None);
        assert_eq!(placed(&layout, &in_directory), [("step10".to_owned(), 6)].into());
        // The steps of two ranks, with a pause between the steps.
        for form in ["rst_S_X.bin", "u_S_X.dat", "u.S.X"] {
            let steps = files(form, &[0, 1, 2], &of_one(&[0, 1]));
            let (layout, explanation) = guess(&steps);
            assert_eq!((explanation.asks, placed(&layout, &steps).len()), (None, 3), "{form}");
        }
        let short = |form: &str, pause_ms: u64| -> Vec<(String, u64)> {
            let all = files(form, &[1, 2, 3], &of_one(&[0, 1])).into_iter();
            all.map(|(name, at_ms)| (name, at_ms / 60_000 * pause_ms + at_ms % 2)).collect()
        };
        assert_eq!(guess(&short("rst.S.X", 500)).1.asks, None, "a short pause after each step");
        assert!(guess(&short("rst.S.X", 2)).1.asks.is_some());
        assert_eq!(guess(&short("cS/f_X.bin", 2)).1.asks, None, "each step has its directory");
        // The word `step` is clear, also if the files were copied at once.
        let copied: Vec<_> =
            files("step_S.X", &[0, 1, 2], &of_one(&[0, 1])).into_iter().map(|(name, _)| (name, 0)).collect();
        assert_eq!(guess(&copied).1.asks, None);
    }

    #[test]
    fn files_that_were_written_in_one_directory_at_once_are_not_several_checkpoints() {
        let of_step = [&[4711, 4713, 4718, 4720, 4777][..], &[163, 12, 53, 16, 14], &[9, 300, 41, 208, 77]];
        for form in ["S/cellX", "outS/cellX", "outS/obj_X", "S/pX.chk", "outS/X.bin", "S/restart.X", "ckpt.S.X"] {
            let files: Vec<_> = (1..4)
                .zip(of_step)
                .flat_map(|(step, ids)| {
                    let of = files(form, &[step * 10], &of_one(ids));
                    of.into_iter().map(move |(name, at_ms)| (name, at_ms + step * 60_000))
                })
                .collect();
            let (layout, explanation) = guess(&files);
            let is_right = placed(&layout, &files).values().all(|files| *files == 5);
            assert!(explanation.asks.is_some() || is_right, "{form}: {layout}\n{explanation}");
        }
        for form in ["S/state_X.dat", "ckpt/S/data.X", "run/dump_S/dump.X", "step_S/ckpt_X.bin"] {
            assert_asks(&files(form, &[100], &of_one(&[0, 32, 64, 96])), "may be the step");
        }
        // Files that were written one after the other are steps, also below a directory with a number.
        for form in ["X/restart.S", "dump_X/dump.S", "runX/restart.S"] {
            let series = files(form, &[100, 200, 300], &of_one(&[7]));
            let (layout, explanation) = guess(&series);
            assert_eq!((explanation.asks, placed(&layout, &series).len()), (None, 3), "{form}");
        }
    }

    #[test]
    fn the_second_number_of_a_grid_is_no_checkpoint_although_a_word_for_ranks_is_before_the_first_number() {
        let tiles = |form: &str, first: &[u64], second: &[u64], pause_ms: u64| -> Vec<(String, u64)> {
            let name = |x: &u64, y: &u64| form.replace('X', &x.to_string()).replace('Y', &y.to_string());
            let numbered = second.iter().zip(0..).flat_map(|(y, nth)| first.iter().map(move |x| (x, y, nth)));
            numbered.map(|(x, y, nth)| (name(x, y), nth * pause_ms)).collect()
        };
        for (form, first, second) in [
            ("tile_X_Y.bin", &[1, 2, 3][..], &[1, 2][..]),
            ("proc_0X_0Y/u.dat", &[0, 1, 2], &[0, 1]),
            ("spinX_Y.bin", &[1, 2], &[128, 256]),
        ] {
            assert_asks(&tiles(form, first, second, 2), "begun within 1 s of another");
            assert_eq!(guess(&tiles(form, first, second, 5_000)).1.asks, None, "{form}: these are steps");
        }
    }

    #[test]
    fn files_with_short_numbers_that_were_written_at_once_are_not_several_checkpoints() {
        let files = |names: &[&str], pause_ms: u64| -> Vec<(String, u64)> {
            names.iter().zip(0..).map(|(name, nth)| ((*name).to_owned(), nth * pause_ms)).collect()
        };
        for names in [
            &["fort.10", "fort.20", "fort.30"][..],
            &["fort.11", "fort.12", "fort.13", "fort.21"],
            &["T300/state.bin", "T350/state.bin", "T400/state.bin"],
            &["w25/a", "w25/b", "w50/a", "w50/b"],
        ] {
            assert_asks(&files(names, 30), "they may be the parts of one checkpoint");
        }
        for (names, pause_ms) in [
            (&["fort.10", "fort.20", "fort.30"][..], 2_000),
            (&["step_10.dat", "step_20.dat", "step_30.dat"], 30),
            (&["u.0010", "u.0020", "u.0030"], 30),
            (&["melt.1000", "melt.2000", "melt.3000"], 30),
        ] {
            assert_eq!(guess(&files(names, pause_ms)).1.asks, None, "{names:?}");
        }
    }

    #[test]
    fn ranks_that_keep_older_copies_of_their_files_are_not_steps() {
        let of_ranks = |form: &str, at_ms: u64| -> Vec<(String, u64)> {
            (0..4).map(|rank| (form.replace('X', &rank.to_string()), at_ms + rank)).collect()
        };
        for copies in ["rf/backup-restart.X", "rf/old_restart.X", "rf/prev.restart.X"] {
            let files = [of_ranks(copies, 0), of_ranks("rf/restart.X", 60_000)].concat();
            assert_asks(&files, "they may be the ranks of one checkpoint");
        }
        let steps = [of_ranks("rf/mesh-restart.X", 0), of_ranks("rf/restart.X", 60_000)].concat();
        assert_eq!(guess(&steps).1.asks, None, "copies of steps");
    }

    #[test]
    fn ranks_that_write_in_quick_succession_are_not_steps() {
        let apart = |form: &str, ranks: std::ops::Range<u64>, pause_ms: u64| -> Vec<(String, u64)> {
            ranks.map(|rank| (form.replace('X', &rank.to_string()), rank * pause_ms)).collect()
        };
        assert_asks(&apart("restartfiles/restart.X", 1..9, 400), "they may be the ranks of one checkpoint");
        assert_asks(&apart("state_X.dat", 0..4, 900), "they may be the ranks of one checkpoint");
        let steps = apart("state_X.dat", 0..4, 1000);
        let (layout, explanation) = guess(&steps);
        assert_eq!((explanation.asks, placed(&layout, &steps).len()), (None, 4));
        // A job with one rank has no ranks to confuse with steps.
        for (form, of_one) in [("step_X.h5", true), ("state_X.h5", false)] {
            let files = apart(form, 1..9, 400);
            let asks = |ranks| guess_of_ranks(&files, ranks).1.asks;
            assert_eq!((asks(None).is_some(), asks(Some(1)).is_none()), (true, of_one), "{form}");
        }
        let in_step = apart("step_100/state_X.dat", 0..8, 400);
        let (layout, explanation) = guess(&in_step);
        assert_eq!(explanation.asks, None);
        assert_eq!(placed(&layout, &in_step), [("step_100".to_owned(), 8)].into());
        let ranks: BTreeSet<_> = in_step
            .iter()
            .filter_map(|(name, _)| layout.place(&mcrengine::ids::FilePath::new(name.as_bytes()).ok()?)?.rank)
            .collect();
        assert_eq!(ranks.len(), 8, "the number after the word is the rank");
    }
}
