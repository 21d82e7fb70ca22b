//! Finds files that belong to a checkpoint only because of its number, as `header.300` beside the directory `step_300`.

use super::beside::{has_pause, is_beside_states};
use super::words::is_picture;
use super::{SLOT, Times, number, push_literal, tokenize};
use crate::layout::pointers::is_temporary;
use crate::layout::{Layout, Pattern};
use mcrengine::ids::FilePath;
use std::collections::{BTreeMap, BTreeSet};

/// Adds the files that the layout leaves out, if their names have one number, and the values of this number are the
/// numbers of all checkpoints. They belong to no single rank. The names of the checkpoints must differ only in a number
/// at their end. If the values are those of the ranks, too, and the files were written at once, each rank has probably
/// written one of them.
pub(super) fn with_files_of_the_same_numbers(mut layout: Layout, paths: &[&FilePath], times: &Times<'_>) -> Layout {
    let is_other =
        |path: &FilePath| !is_beside_states(path) && !is_temporary(path.as_bytes()) && !is_picture(path.name());
    let (mut labels, mut ranks) = (BTreeSet::new(), BTreeSet::new());
    let mut others = BTreeMap::<Vec<u8>, BTreeMap<&[u8], &FilePath>>::new();
    for path in paths {
        if let Some(placed) = layout.place(path) {
            labels.insert(placed.checkpoint);
            ranks.extend(placed.rank.map(|rank| u64::from(rank.0)));
            continue;
        }
        let (text, digits) = tokenize(path.as_bytes());
        if let ([number], true) = (&digits[..], is_other(path)) {
            others.entry(text).or_default().insert(*number, path);
        }
    }
    let split = |label: &str| -> (String, Vec<u8>) {
        let before = label.trim_end_matches(|c: char| c.is_ascii_digit());
        (before.to_owned(), label.as_bytes()[before.len()..].to_vec())
    };
    let (before, numbers): (BTreeSet<_>, BTreeSet<_>) = labels.iter().map(|label| split(label.as_str())).unzip();
    let (Some(before), 1, 2..) = (before.first(), before.len(), numbers.len()) else { return layout };
    if layout.name() != "guessed" || before.bytes().any(|byte| byte.is_ascii_digit()) {
        return layout;
    }
    let are_of_ranks = |files: &BTreeMap<&[u8], &FilePath>| {
        let values: BTreeSet<u64> = files.keys().map(|digits| number(digits)).collect();
        let is_from = |first: u64| values.iter().copied().eq(ranks.iter().map(|rank| rank + first));
        (is_from(0) || is_from(1)) && !has_pause(files.values().map(|path| times.of_file(path)))
    };
    for (text, files) in others {
        if !files.keys().copied().eq(numbers.iter().map(Vec::as_slice)) || are_of_ranks(&files) {
            continue;
        }
        let mut regex = String::new();
        for byte in text {
            match byte {
                SLOT => regex.push_str("(?P<checkpoint>[0-9]+)"),
                _ => push_literal(&mut regex, byte),
            }
        }
        if let Ok(pattern) = Pattern::of_number(&regex, before) {
            layout.push(pattern);
        }
    }
    layout
}

#[cfg(test)]
mod tests {
    use crate::layout::{Layout, Listing};
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The checkpoints of three steps of four ranks and of other files, with their number of files.
    fn found(others: &[&str]) -> BTreeMap<String, usize> {
        let steps = [100, 200, 300].map(|step| [0, 1, 2, 3].map(|rank| format!("step_{step}/field.{rank}.bin")));
        let files = steps.as_flattened().iter().map(String::as_str).chain(others.iter().copied());
        let at = 1_700_000_000_000;
        let listing = Listing::of_times(files.map(|name| (name, at, at)));
        let (layout, explanation) = Layout::guess(&listing, Path::new("/data/run7"), None);
        assert_eq!(explanation.asks, None);
        let mut found = BTreeMap::new();
        for path in &listing.files {
            let Some(placed) = layout.place(path) else { continue };
            assert_eq!(placed.rank.is_some(), path.to_string().starts_with("step"), "{path}");
            *found.entry(placed.checkpoint.to_string()).or_default() += 1;
        }
        found
    }

    #[test]
    fn a_file_with_the_number_of_each_checkpoint_belongs_to_this_checkpoint() {
        let each = |files: usize| [100, 200, 300].map(|step| (format!("step_{step}"), files)).into();
        assert_eq!(found(&["header.100", "header.200", "header.300"]), each(5));
        assert_eq!(found(&["meta/100.xml", "meta/200.xml", "meta/300.xml"]), each(5));
        assert_eq!(found(&["header.100", "header.200"]), each(4), "the last step has none");
        assert_eq!(found(&["slice.100.png", "slice.200.png", "slice.300.png"]), each(4), "pictures");
    }

    #[test]
    fn a_file_of_each_rank_is_no_file_of_the_checkpoint_with_the_number_of_the_rank() {
        let steps = (1..=3).flat_map(|step| (1..=3).map(move |fold| (format!("fold_{fold}/epoch_{step}.pt"), step)));
        let best = (1..=3).map(|fold| (format!("fold_{fold}/best.pt"), 3));
        let files: Vec<(String, u64)> = steps.chain(best).map(|(name, step)| (name, step * 60_000)).collect();
        let listing = Listing::of_times(files.iter().map(|(name, at)| (name.as_str(), *at, *at)));
        let (layout, _) = Layout::guess(&listing, Path::new("/data/run7"), None);
        let placed = listing.files.iter().filter(|path| layout.place(path).is_some());
        assert!(placed.clone().count() == 9 && placed.clone().all(|path| path.to_string().contains("epoch")));
    }
}
