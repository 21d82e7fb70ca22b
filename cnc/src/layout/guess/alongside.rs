//! Finds files that belong to a checkpoint only because of its number, as `header.300` beside the directory `step_300`.

use super::beside::is_beside_states;
use super::words::is_picture;
use super::{SLOT, push_literal, tokenize};
use crate::layout::pointers::is_temporary;
use crate::layout::{Layout, Pattern};
use mcrengine::ids::FilePath;
use std::collections::{BTreeMap, BTreeSet};

/// Adds the files that the layout leaves out, if their names have one number, and the values of this number are the
/// numbers of all checkpoints. They belong to no single rank. The names of the checkpoints must differ only in a number
/// at their end.
pub(super) fn with_files_of_the_same_numbers(mut layout: Layout, paths: &[&FilePath]) -> Layout {
    let is_other =
        |path: &FilePath| !is_beside_states(path) && !is_temporary(path.as_bytes()) && !is_picture(path.name());
    let (mut labels, mut others) = (BTreeSet::new(), BTreeMap::<Vec<u8>, BTreeSet<&[u8]>>::new());
    for path in paths {
        if let Some(placed) = layout.place(path) {
            labels.insert(placed.checkpoint);
            continue;
        }
        let (text, digits) = tokenize(path.as_bytes());
        if let ([number], true) = (&digits[..], is_other(path)) {
            others.entry(text).or_default().insert(*number);
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
    for (text, values) in others {
        if !values.into_iter().eq(numbers.iter().map(Vec::as_slice)) {
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
}
