//! Finds directories that are checkpoints by their names, such as `step_100`, `ckpt_10` and `DD0030`. In such a
//! directory, the number after a word such as `state` is not the number of a step: `step_100/state_3.dat` is the file
//! of a rank.

use super::{SLOT, Template, tokenize, words};
use crate::layout::{Layout, Within};
use mcrengine::ids::FilePath;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Presets with names that other codes use, too.
const GENERAL: &[&str] = &["lammps", "gadget", "gromacs"];

/// Whether a directory above this number is a checkpoint by its name.
pub(super) fn is_below_step(template: &Template<'_>, slot: usize) -> bool {
    step_directory(template, template.position(slot)).is_some()
}

/// The first number in a directory above the component at `at`, if the word before the number says that the directory
/// is a checkpoint.
fn step_directory(template: &Template<'_>, at: usize) -> Option<usize> {
    let directories = &template.text[..at];
    let end = directories.iter().rposition(|&b| b == b'/')?;
    let numbers = directories[..end].iter().filter(|b| **b == SLOT).count();
    (0..numbers).find(|slot| words::is_of_step_directory(&template.letters(*slot)))
}

/// Whether the checkpoints of a preset contradict the names of directories: a directory that is a checkpoint by its
/// name has files of several checkpoints of the preset, or several such directories have files of one.
pub(super) fn are_divided(preset: &Layout, paths: &[&FilePath]) -> bool {
    if !GENERAL.contains(&preset.name()) {
        return false;
    }
    let (mut labels, mut directories) = (BTreeMap::new(), BTreeMap::new());
    for path in paths {
        let Some((placed, Within { label: Some(label), .. })) = preset.place_within(path) else { continue };
        let (text, digits) = tokenize(path.as_bytes());
        let template = Template::new(text);
        let of_label = slots_within(&template.text, &digits, &label);
        let at = of_label.first().map_or(template.text.len(), |slot| template.position(*slot));
        let Some(directory) = step_directory(&template, at) else { continue };
        if of_label.iter().any(|slot| template.is_clear(*slot)) {
            continue;
        }
        let until = &path.as_bytes()[..end_of(&template.text, &digits, directory)];
        let of_directory: &mut BTreeSet<_> = labels.entry(until).or_default();
        of_directory.insert(placed.checkpoint.clone());
        let of_checkpoint: &mut BTreeSet<&[u8]> = directories.entry(placed.checkpoint).or_default();
        of_checkpoint.insert(until);
        if of_directory.len() > 1 || of_checkpoint.len() > 1 {
            return true;
        }
    }
    false
}

/// The slots whose numbers are in a range of the bytes of a path. `text` and `digits`: the result of [`tokenize`].
pub(super) fn slots_within(text: &[u8], digits: &[&[u8]], range: &Range<usize>) -> Vec<usize> {
    let is_within = |slot: &usize| {
        let end = end_of(text, digits, *slot);
        range.start <= end - digits[*slot].len() && end <= range.end
    };
    (0..digits.len()).filter(is_within).collect()
}

/// The end of the number of a slot in the bytes of a path.
fn end_of(text: &[u8], digits: &[&[u8]], slot: usize) -> usize {
    let until = text.iter().enumerate().filter(|(_, b)| **b == SLOT).nth(slot).map_or(text.len(), |(at, _)| at);
    until - slot + digits.iter().take(slot + 1).map(|digits| digits.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Listing;
    use std::path::Path;

    fn guess(names: &[String]) -> (Layout, Vec<FilePath>, Option<String>) {
        let at_ms = |nth: usize| 1_700_000_000_000 + nth as u64 * 100;
        let files = names.iter().enumerate().map(|(nth, name)| (name.as_str(), at_ms(nth), at_ms(nth)));
        let listing = Listing::of_times(files);
        let (layout, explanation) = Layout::guess(&listing, Path::new("/data/run7"), None);
        (layout, listing.files, explanation.asks)
    }

    /// The checkpoints, and the number of files that are in them.
    fn found(names: &[String]) -> (Vec<String>, usize) {
        let (layout, files, asks) = guess(names);
        assert_eq!(asks, None, "{names:?}");
        let placed: Vec<_> = files.iter().filter_map(|path| layout.place(path)).collect();
        let labels: BTreeSet<String> = placed.iter().map(|placed| placed.checkpoint.to_string()).collect();
        (labels.into_iter().collect(), placed.len())
    }

    #[test]
    fn a_directory_with_the_name_of_a_step_is_a_checkpoint_whatever_numbers_its_files_have() {
        let numbers = [[4711, 4713, 4718], [12, 163, 53], [300, 9, 41]];
        for directory in ["step_#", "it_#", "iter_000#", "ckpt_#", "checkpoint-#", "global_step#", "DD00#"] {
            for file in ["state.#.bin", "restart.#", "rst.#", "dump_#", "#.bin", "state.#.cpt"] {
                let of_step = |(step, numbers): (u64, &[u64; 3])| -> Vec<String> {
                    let directory = directory.replace('#', &step.to_string());
                    numbers.iter().map(|n| format!("{directory}/{}", file.replace('#', &n.to_string()))).collect()
                };
                let names: Vec<String> = [10, 20, 30].into_iter().zip(&numbers).flat_map(of_step).collect();
                let labels: Vec<_> = [10, 20, 30].map(|step| directory.replace('#', &step.to_string())).into();
                assert_eq!(found(&names), (labels, 9), "{directory}/{file}");
            }
        }
    }

    #[test]
    fn the_files_of_the_only_directory_with_the_name_of_a_step_are_one_checkpoint() {
        for name in ["step_100/restart.#", "ckpt_00100/rst.#.bin", "DD0030/state_#.dat"] {
            for numbers in [[0, 32, 64, 96], [1, 17, 33, 49], [0, 1, 2, 3], [1, 2, 3, 4]] {
                let names: Vec<String> = numbers.iter().map(|n: &u64| name.replace('#', &n.to_string())).collect();
                let (labels, files) = found(&names);
                assert_eq!((labels.len(), files), (1, 4), "{names:?}");
            }
        }
    }

    #[test]
    fn a_small_file_beside_directories_of_checkpoints_does_not_make_one_checkpoint_of_them() {
        for directory in ["checkpoint-#", "run/ckpt_#", "step_#"] {
            let of = |step: &str| {
                ["model.bin", "optimizer.pt"].map(|file| format!("{}/{file}", directory.replace('#', step)))
            };
            let steps: Vec<String> = ["500", "1000", "2000"].into_iter().flat_map(of).collect();
            let (labels, files) = found(&[steps, vec!["config.json".to_owned()]].concat());
            assert_eq!((labels.len(), files), (3, 6), "{directory}");
        }
        let (labels, files) = found(&["state_5", "state_10", "state_20", "mesh"].map(String::from));
        assert_eq!((labels.len(), files), (1, 4), "the mesh may be a part of a state");
    }

    #[test]
    fn a_preset_keeps_the_names_of_its_code_below_the_directory_of_a_step() {
        let names: Vec<String> =
            [100, 200].iter().flat_map(|n| (0..3).map(move |r| format!("step_{n}/melt.{n}.{r}"))).collect();
        let (layout, _, asks) = guess(&names);
        assert_eq!((layout.name(), asks), ("lammps", None));
        assert_eq!(found(&names), (vec!["melt.100".to_owned(), "melt.200".to_owned()], 6));
    }

    #[test]
    fn the_position_of_a_number_in_a_path_counts_all_digits_before_it() {
        let path = b"step_100/state_0007.12";
        let (text, digits) = tokenize(path);
        assert_eq!(slots_within(&text, &digits, &(9..19)), [1]);
        assert_eq!(slots_within(&text, &digits, &(0..path.len())), [0, 1, 2]);
        assert_eq!(&path[..end_of(&text, &digits, 0)], b"step_100");
    }
}
