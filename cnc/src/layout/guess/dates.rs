//! Checks for dates that are spread over directories, such as `2026/01/r0.dat` and `2026/02/r0.dat`. A guess finds
//! its label in one component of the path, so the guess would combine all months of a year into one checkpoint. The
//! numbers may also be steps and ranks. Therefore the user is asked.

use super::digits_in;
use crate::layout::{Layout, Within};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::BTreeMap;

/// If files of several dates would be one checkpoint of the layout, returns a text for the user with the options that
/// help.
pub(super) fn in_one_checkpoint(layout: &Layout, paths: &[&FilePath]) -> Option<String> {
    let mut first: BTreeMap<CheckpointId, (&[u8], &FilePath)> = BTreeMap::new();
    for path in paths {
        let Some((placed, Within { label: Some(label), .. })) = layout.place_within(path) else { continue };
        let bytes = path.as_bytes();
        let starts = std::iter::once(0).chain((1..bytes.len()).filter(|&at| bytes[at - 1] == b'/'));
        let mut dates = starts.filter_map(|start| Some((start, date_in_directories(&bytes[start..])?)));
        let Some((start, length)) = dates.next() else { continue };
        if label.start <= start && label.end >= start + length {
            continue; // the label contains the date
        }
        let date = &bytes[start..start + length];
        let (other, other_path) = *first.entry(placed.checkpoint.clone()).or_insert((date, path));
        if other != date {
            let has_day = date.iter().filter(|&&b| b == b'/').count() > 1;
            let pattern = format!(
                "{}{{checkpoint:[0-9]{{4}}/[0-9]{{2}}{}}}",
                if start > 0 { "**/" } else { "" },
                if has_day { "/[0-9]{2}" } else { "" }
            );
            return Some(format!(
                "{other_path} and {path} would both be files of checkpoint {}, but their directories look like dates. \
                 Say with --layout which files form a checkpoint, for example with the pattern \"{pattern}/**\", or \
                 \"{pattern}/r{{rank}}.dat\" with the number of the rank",
                placed.checkpoint
            ));
        }
    }
    None
}

/// The length of a year and a month, and of a day if there is one, as directories at the beginning of a path:
/// `2026/01` in `2026/01/r0.dat`.
fn date_in_directories(path: &[u8]) -> Option<usize> {
    let component = |at: usize, digits: usize, values: std::ops::RangeInclusive<u64>| {
        let end = at + digits;
        let is_it = digits_in(path.get(at..)?) == digits && path.get(end) == Some(&b'/');
        (is_it && values.contains(&super::number(&path[at..end]))).then_some(end)
    };
    let year = component(0, 4, 1900..=2199)?;
    let month = component(year + 1, 2, 1..=12)?;
    Some(component(month + 1, 2, 1..=31).unwrap_or(month))
}
