//! Files that are not part of a state: files that belong to no checkpoint, and files with names of logs, pointer files,
//! older copies and unfinished files.

use super::each_rank::{Placed, numbers_of, of_each_rank};
use super::words::{is_image, is_picture};
use super::{Explanation, Times, counted, steps};
use crate::layout::of_job::{is_batch_output, is_settings};
use crate::layout::pointers::{POINTER_BYTES_MAX, is_pointer_name, is_restart_name, is_temporary, may_be_left};
use crate::layout::{Layout, Listing, Within, is_of_a_store, is_ours};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Minimum percentage of the files and of the bytes that must belong to the checkpoints of a guess. The other files
/// may be logs and inputs, which lie next to nearly all checkpoints. Logs and inputs are rarely more than a quarter
/// of the files or bytes.
pub(super) const MOST_PERCENT: u128 = 75;

/// Files that belong to no checkpoint of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The first of these files, in the order of the names.
    pub first: FilePath,
    /// Number of these files.
    pub files: usize,
    /// Number of all files.
    pub of: usize,
    /// Whether a part of a checkpoint may be among these files: they are more than a quarter of all files, or have
    /// more than a quarter of all bytes, or one of them is named after a checkpoint or is a later state, or each rank
    /// has such a file.
    pub are_many: bool,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of all files.
    pub of_bytes: u64,
    /// Whether the checkpoints of this layout are doubtful: these files are more than a quarter of all files and have
    /// more than a quarter of all bytes, or one of them is named after a checkpoint, or each rank has such a file that
    /// belongs to no single checkpoint, or each rank has such a file and these files have more than half of all bytes.
    pub makes_doubt: bool,
    /// The numbers of the checkpoints of which each rank has such a file, and of the newest checkpoint if one of these
    /// files is a later state. These checkpoints are doubtful, too.
    pub steps: BTreeSet<u64>,
    /// The first of these files whose name says that it is a restart file.
    pub restart: Option<FilePath>,
    /// If all checkpoints of the layout have one label: these files, at most 1000. The application may
    /// write such a file again with each step, as a part of the state that all ranks share.
    pub shared: Vec<MaybeShared>,
}

/// A file without rank that may be a part of each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaybeShared {
    /// Path below the watched directory.
    pub path: FilePath,
    /// Length in bytes.
    pub bytes: u64,
    /// Creation time.
    pub created: SystemTime,
    /// Time of the last write.
    pub modified: SystemTime,
    /// Whether the file was created at the same time as the files of the checkpoint, and last written at the same time.
    pub is_of_step: bool,
}

/// Maximum number of files in [`Unplaced::shared`].
const SHARED_MAX: usize = 1000;
/// Maximum time between a file of a step and the files of the ranks.
const OF_STEP: Duration = Duration::from_secs(1);

impl Unplaced {
    /// Whether a checkpoint of the layout is doubtful because of these files.
    pub fn makes_doubtful(&self, label: &CheckpointId) -> bool {
        self.makes_doubt || numbers_of(label).any(|number| self.steps.contains(&number))
    }
}

pub(in crate::layout) fn unplaced(layout: &Layout, listing: &Listing) -> Option<Unplaced> {
    let all = of_application(listing);
    let is_pointer = |(path, bytes): &&(&FilePath, u64)| *bytes <= POINTER_BYTES_MAX && is_pointer_name(path.name());
    let other = |file: &&(&FilePath, u64)| {
        let is_of_layout = layout.place(file.0).is_some() || layout.marked(file.0).is_some();
        !is_of_layout
            && !is_pointer(file)
            && !is_image(file.0.name())
            && !layout.attends(file.0.name())
            && !layout.may_leave(file.0)
    };
    let left: Vec<_> = all.iter().filter(other).collect();
    let bytes_of = |files: &mut dyn Iterator<Item = &(&FilePath, u64)>| files.map(|(_, size)| u128::from(*size)).sum();
    let shares: [(u128, u128); 2] =
        [(left.len() as u128, all.len() as u128), (bytes_of(&mut left.iter().copied()), bytes_of(&mut all.iter()))];
    let times = Times::of(listing);
    let (mut placed, mut states) = (Placed::default(), States::default());
    let (mut has_labels, mut created, mut written) = (false, Vec::new(), Vec::new());
    for (path, _) in &all {
        if let Some(of_path) = layout.place(path) {
            states.add(path, &of_path.checkpoint, &times);
            placed.labels.insert(of_path.checkpoint);
            placed.ranks.extend(of_path.rank);
        }
        if let Some((_, Within { rank, label })) = layout.place_within(path) {
            has_labels |= label.is_some();
            if let Some(rank) = rank {
                placed.begins.insert(path.as_bytes()[..rank.start].to_vec());
                placed.ends.insert(path.as_bytes()[rank.end..].to_vec());
            }
            created.extend(times.created.get(path).copied());
            written.push(times.of_file(path));
        }
    }
    let modified = written.iter().flatten().map(|(_, modified)| *modified);
    let (created, modified) = (around(created.into_iter()), around(modified));
    placed.have_pauses = has_pause(written.into_iter());
    let are_at_once = |files: &[&FilePath]| !has_pause(files.iter().map(|path| times.of_file(path)));
    let each_rank = of_each_rank(left.iter().map(|(path, _)| *path), &placed, are_at_once);
    let labels = placed.labels;
    let last_state = left.iter().any(|(path, _)| states.is_last(path, &times));
    let newest = states.newest.filter(|_| last_state).map(|(_, label)| label);
    let is_large = |(left, all): &(u128, u128)| left * 100 > all * (100 - MOST_PERCENT);
    let is_part = left.iter().any(|(path, _)| is_named_after(path, &labels));
    let restart = left.iter().find(|(path, _)| is_restart_name(path.as_bytes()));
    let [_, (bytes, of_bytes)] = shares.map(|(left, all)| {
        let at_most = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        (at_most(left), at_most(all))
    });
    let is_in =
        |at, times: &Option<RangeInclusive<SystemTime>>| times.as_ref().is_some_and(|times| times.contains(&at));
    let may_be_shared = |(path, bytes): &&&(&FilePath, u64)| {
        let (at_first, at_last) = (*times.created.get(path)?, *times.modified.get(path)?);
        let is_of_step = is_in(at_first, &created) && is_in(at_last, &modified);
        let path = FilePath::clone(path);
        Some(MaybeShared { path, bytes: *bytes, created: at_first, modified: at_last, is_of_step })
    };
    let shared = left.iter().filter(|(path, _)| !has_labels && !is_picture(path.name()));
    let shared = shared.filter_map(|file| may_be_shared(&file)).take(SHARED_MAX).collect();
    left.first().map(|(first, _)| Unplaced {
        shared,
        first: FilePath::clone(first),
        files: left.len(),
        of: all.len(),
        are_many: is_part || last_state || each_rank.are_there || shares.iter().any(is_large),
        bytes,
        of_bytes,
        makes_doubt: is_part
            || each_rank.are_of_all
            || each_rank.are_there && bytes > of_bytes / 2
            || shares.iter().all(is_large),
        steps: each_rank.steps.into_iter().chain(newest.iter().flat_map(numbers_of)).collect(),
        restart: restart.map(|(path, _)| FilePath::clone(path)),
    })
}

/// The time from the first to the last of these times, with [`OF_STEP`] before and after. `None` if there is no time.
fn around(times: impl Iterator<Item = SystemTime> + Clone) -> Option<RangeInclusive<SystemTime>> {
    let (first, last) = (times.clone().min()?, times.max()?);
    Some(first.checked_sub(OF_STEP)?..=last.checked_add(OF_STEP)?)
}

/// Words in the name of the state that an application writes when it ends.
const LAST_WORDS: [&[u8]; 5] = [b"final", b"last", b"end", b"emergency", b"interrupted"];

/// The files of checkpoints, to recognize a later state with another name, as `state_final.npz` beside `state_400.npz`.
#[derive(Default)]
struct States {
    /// The words in the names of the files.
    words: BTreeSet<Vec<Vec<u8>>>,
    /// When the newest file was written, and its checkpoint.
    newest: Option<(SystemTime, CheckpointId)>,
}

impl States {
    fn add(&mut self, path: &FilePath, label: &CheckpointId, times: &Times<'_>) {
        self.words.insert(words_of(path.name()));
        if let Some(at) = times.modified.get(path)
            && self.newest.as_ref().is_none_or(|(newest, _)| at > newest)
        {
            self.newest = Some((*at, label.clone()));
        }
    }

    /// Whether the file is a state that was written after all checkpoints.
    fn is_last(&self, path: &FilePath, times: &Times<'_>) -> bool {
        let is_later = self.newest.as_ref().zip(times.modified.get(path)).is_some_and(|((newest, _), at)| at > newest);
        let is_last_word = |word: &Vec<u8>| LAST_WORDS.contains(&&word[..]);
        let mut words = words_of(path.name());
        let is_said = words_of(path.as_bytes()).iter().any(is_last_word);
        words.retain(|word| !is_last_word(word));
        is_later && is_said && self.words.contains(&words)
    }
}

/// The runs of letters in a name, in lower case.
fn words_of(name: &[u8]) -> Vec<Vec<u8>> {
    let words = name.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    words.map(<[u8]>::to_ascii_lowercase).collect()
}

/// Whether there was a pause of at least [`steps::SERIES_MIN`] while these files were written. True if a time is
/// unknown.
///
/// `written`: for each file, when it was begun and last modified.
pub(super) fn has_pause(written: impl Iterator<Item = Option<(SystemTime, SystemTime)>>) -> bool {
    let Some(mut written) = written.collect::<Option<Vec<_>>>() else { return true };
    written.sort_unstable();
    written.windows(2).any(|pair| pair[0].1 + steps::SERIES_MIN <= pair[1].0)
}

/// Whether the name of a file begins with the label of a checkpoint, as `rst.300` beside `rst.300.0` and `rst.300.1`.
/// Such a file is probably the part of the checkpoint that all ranks share. Pictures and tables do not count.
pub(super) fn is_named_after(path: &FilePath, labels: &BTreeSet<CheckpointId>) -> bool {
    let name = path.name();
    if is_picture(name) {
        return false;
    }
    let is_end = |at: &usize| name.get(*at).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    let beginnings = (1..=name.len()).filter(is_end).filter_map(|at| std::str::from_utf8(&name[..at]).ok());
    // A label such as `300` is too short to show that a file belongs to the checkpoint.
    let has_letter = |text: &&str| text.bytes().any(|byte| byte.is_ascii_alphabetic());
    let has_digit = |text: &&str| text.bytes().any(|byte| byte.is_ascii_digit());
    beginnings.filter(has_letter).filter(has_digit).any(|text| text.parse().is_ok_and(|label| labels.contains(&label)))
}

/// Whether this is the name of a pointer file, of a picture, or of a file without which a checkpoint is whole. The
/// numbers in such names are neither ranks nor steps of checkpoints.
pub(super) fn is_beside_states(path: &FilePath) -> bool {
    is_pointer_name(path.name()) || is_image(path.name()) || may_be_left(path.as_bytes())
}

/// The files without those of [`is_beside_states`]. If there are no others, all files.
pub(super) fn of_states<'a>(paths: &[&'a FilePath]) -> Vec<&'a FilePath> {
    let of_state: Vec<&FilePath> = paths.iter().copied().filter(|path| !is_beside_states(path)).collect();
    if of_state.is_empty() { paths.to_vec() } else { of_state }
}

/// If no number in the names distinguishes checkpoints, a file such as `rank0/restart` may be a part of the state,
/// which each rank writes again and again. This function guesses again with the files that have the names of pointer
/// files. The second guess is used if it has one checkpoint too, and places all files of the state as before.
///
/// `of_state`: the files of the first guess. `paths`: all files.
pub(super) fn with_pointer_names(
    first: (Layout, Explanation),
    of_state: &[&FilePath],
    paths: &[&FilePath],
    guess: impl Fn(&[&FilePath]) -> Option<(Layout, Explanation)>,
) -> Option<(Layout, Explanation)> {
    let has_labels = |layout: &Layout, paths: &[&FilePath]| {
        paths.iter().any(|path| layout.place_within(path).is_some_and(|(_, within)| within.label.is_some()))
    };
    if first.1.asks.is_some() || of_state.len() == paths.len() || has_labels(&first.0, of_state) {
        return Some(first);
    }
    let all: Vec<&FilePath> = paths.iter().copied().filter(|path| !may_be_left(path.as_bytes())).collect();
    let is_same = |layout: &Layout| of_state.iter().all(|path| layout.place(path) == first.0.place(path));
    let second = guess(&all)
        .filter(|(layout, explanation)| explanation.asks.is_none() && !has_labels(layout, &all) && is_same(layout));
    Some(second.unwrap_or(first))
}

/// Says which files with the names of pointer files are saved with a checkpoint of the layout, and which are not.
/// `paths`: the other files. Only pointer files in the directories above the files of checkpoints are saved.
pub(super) fn lines_of_pointers<'a>(
    layout: &Layout,
    paths: &[&FilePath],
    pointers: impl Iterator<Item = &'a FilePath>,
) -> Vec<String> {
    let (mut saved, mut left): (Vec<&FilePath>, Vec<&FilePath>) = (Vec::new(), pointers.collect());
    if !left.is_empty() {
        let placed = paths.iter().filter(|path| layout.place(path).is_some());
        let above: BTreeSet<&Path> = placed.flat_map(|path| path.as_path().ancestors().skip(1)).collect();
        let is_above = |path: &&FilePath| {
            layout.place(path).is_some() || path.as_path().parent().is_some_and(|dir| above.contains(dir))
        };
        (saved, left) = left.into_iter().partition(is_above);
    }
    let line = |files: &[&FilePath], what: &str| {
        let first = files.first()?;
        Some(format!("{} (such as {first}) {what}", counted(files.len(), "pointer file")))
    };
    let saved = line(&saved, "saved with the newest checkpoint of its time");
    saved.into_iter().chain(line(&left, "not saved, because the directory has no checkpoint")).collect()
}

/// The files of the application, without the files of mcrEngine and of the job, and without files that have temporary
/// names. Each file has its length in bytes.
pub(super) fn of_application(listing: &Listing) -> Vec<(&FilePath, u64)> {
    let is_not = [is_ours, is_of_a_store, is_temporary, is_settings, is_batch_output];
    let is_applications = |path: &FilePath| !is_not.iter().any(|is| is(path.as_bytes()));
    let sized = listing.files.iter().zip(listing.bytes.iter().copied().chain(std::iter::repeat(0)));
    sized.filter(|(path, _)| is_applications(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guesses with files of 6000 bytes that were begun at these seconds.
    fn guess(files: &[(String, u64)]) -> (Layout, Vec<String>, Listing) {
        let times = files.iter().map(|(name, second)| (name.as_str(), second * 1000, second * 1000));
        let listing = Listing { bytes: vec![6000; files.len()], ..Listing::of_times(times) };
        let (layout, explanation) = Layout::guess_while_running(&listing, Path::new("/data/run7"), Some(3));
        assert_eq!(explanation.asks, None);
        (layout, explanation.lines, listing)
    }

    #[test]
    fn restart_files_of_each_rank_that_a_guess_from_plots_leaves_out_make_all_checkpoints_doubtful() {
        let layout = Layout::from_patterns(&["{checkpoint:out_[0-9]+}.{rank}.dat"], 0).expect("valid");
        let left = |bytes: u64| {
            let plots = (1..=8).flat_map(|step| (0..2).map(move |rank| (format!("out_00{step}.{rank}.dat"), 16, step)));
            let states = [3, 6]
                .into_iter()
                .flat_map(|step| (0..2).map(move |rank| (format!("chk_00{step}.{rank}.dat"), bytes, step)));
            let files: Vec<_> = plots.chain(states).collect();
            let times = files.iter().map(|(name, _, step)| (name.as_str(), step * 1000, step * 1000));
            let listing = Listing::of_times(times);
            let bytes = files.iter().map(|(_, bytes, _)| *bytes).collect();
            layout.unplaced(&Listing { bytes, ..listing }).expect("files are left out")
        };
        let label = "out_008".parse().expect("valid");
        assert!(left(128).makes_doubtful(&label), "the restart files have two thirds of the bytes");
        assert!(!left(16).makes_doubtful(&label));
    }

    fn has_pointers(lines: &[String]) -> bool {
        lines.iter().any(|line| line.contains("pointer file"))
    }

    #[test]
    fn a_file_of_each_rank_is_part_of_the_only_checkpoint_whatever_its_name() {
        for (name, other) in [("restart", "history"), ("checkpoint", "mesh"), ("checkpoint.json", "model.bin")] {
            let files = (0..3).flat_map(|rank| [name, other].map(|name| (format!("rank{rank}/{name}"), 10)));
            let (layout, lines, listing) = guess(&files.collect::<Vec<_>>());
            for path in &listing.files {
                let rank = layout.place(path).expect("of the checkpoint").rank.expect("of a rank").0;
                assert!(path.to_string().starts_with(&format!("rank{rank}/")), "{path} of rank {rank}");
            }
            assert!(!has_pointers(&lines), "{lines:?}");
        }
    }

    #[test]
    fn a_pointer_file_beside_steps_is_no_part_of_a_step_and_is_announced_only_if_it_is_saved() {
        let steps = (1..=3).flat_map(|step| (0..3).map(move |rank| (format!("rank{rank}/step_{step}.dat"), 10 * step)));
        let pointers = (0..3).map(|rank| (format!("rank{rank}/latest"), 30));
        let steps: Vec<_> = steps.chain(pointers).collect();
        let (layout, lines, listing) = guess(&steps);
        let is_placed = |path: &&FilePath| layout.place(path).is_some();
        assert_eq!(listing.files.iter().filter(is_placed).count(), 9);
        assert!(
            lines.contains(
                &"3 pointer files (such as rank0/latest) saved with the newest checkpoint of its time".into()
            )
        );
        let elsewhere: Vec<_> = steps.into_iter().chain([("notes/latest".to_owned(), 30)]).collect();
        let (_, lines, _) = guess(&elsewhere);
        let left = "1 pointer file (such as notes/latest) not saved, because the directory has no checkpoint";
        assert!(
            lines.iter().any(|line| line.starts_with("3 pointer files")) && lines.contains(&left.into()),
            "{lines:?}"
        );
    }

    #[test]
    fn pictures_are_no_checkpoints_and_a_running_code_is_not_asked_about_them() {
        for state in ["chk_#.dat", "model_#.pt", "out_#.dat"] {
            let names = (1..=12).map(|second| (format!("frame_{second:04}.png"), 2 * second));
            let states = (1..=3).map(|nth| (state.replace('#', &format!("{:04}", 4 * nth)), 8 * nth));
            let files: Vec<(String, u64)> = names.chain(states).collect();
            let (layout, _, listing) = guess(&files);
            let placed: Vec<String> =
                listing.files.iter().filter(|path| layout.place(path).is_some()).map(ToString::to_string).collect();
            let expected: Vec<String> = files[12..].iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(placed, expected);
            assert_eq!(unplaced(&layout, &listing), None, "{state}");
        }
    }

    #[test]
    fn files_without_rank_beside_overwritten_files_of_ranks_may_be_shared_parts_of_each_step() {
        let ranks = (0..3).map(|rank| (format!("rank{rank}/field.bin"), 100));
        let others = [("global.bin", 100), ("inputs/mesh.bin", 10), ("energy.log", 100), ("table.csv", 100)];
        let files: Vec<_> = ranks.chain(others.map(|(name, second)| (name.to_owned(), second))).collect();
        let (layout, _, listing) = guess(&files);
        let shared = unplaced(&layout, &listing).expect("files are left out").shared;
        let shared: Vec<_> = shared.iter().map(|file| (file.path.to_string(), file.is_of_step)).collect();
        assert_eq!(shared, [("global.bin".to_owned(), true), ("inputs/mesh.bin".to_owned(), false)]);
        let steps = (1..=3).flat_map(|step| (0..3).map(move |rank| (format!("step_{step}/rank{rank}.bin"), 10 * step)));
        let (layout, _, listing) = guess(&steps.chain([("global.bin".to_owned(), 30)]).collect::<Vec<_>>());
        let shared = unplaced(&layout, &listing).expect("a file is left out").shared;
        assert_eq!(shared, [], "each step has another name");
    }

    #[test]
    fn a_state_of_another_name_that_was_written_after_all_checkpoints_makes_the_newest_checkpoint_doubtful() {
        let steps = ["state_100.npz", "state_200.npz", "state_300.npz"];
        let layout = Layout::from_patterns(&["{checkpoint:state_[0-9]+}.npz"], 0).expect("valid");
        let unplaced_of = |name: &'static str, at_ms: u64| {
            let files = steps.iter().zip(1..).map(|(step, nth)| (*step, nth * 60_000, nth * 60_000));
            let listing = Listing::of_times(files.chain([(name, at_ms, at_ms)]));
            unplaced(&layout, &listing).expect("one file is left out")
        };
        let newest = "state_300".parse().expect("valid");
        for name in ["state_final.npz", "final/state.npz", "state-last.npz", "emergency/state.npz"] {
            let later = unplaced_of(name, 200_000);
            assert!(later.are_many && later.makes_doubtful(&newest), "{name}");
            assert!(!later.makes_doubtful(&"state_200".parse().expect("valid")), "{name}");
            let earlier = unplaced_of(name, 100_000);
            assert!(!earlier.are_many && !earlier.makes_doubtful(&newest), "{name}");
        }
        for name in ["energy_final.npz", "state_mean.npz", "state_final.txt", "final.npz"] {
            assert!(!unplaced_of(name, 200_000).are_many, "{name}");
        }
    }
}
