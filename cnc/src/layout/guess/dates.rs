//! Finds dates and times in names, and checks for dates that are spread over directories, such as `2026/01/r0.dat`
//! and `2026/02/r0.dat`. A guess finds its label in one component of the path, so the guess would combine all months of
//! a year into one checkpoint. The numbers may also be steps and ranks. Therefore the user is asked.

use super::{digits_in, number};
use crate::layout::{Layout, Within};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::BTreeMap;

/// If files of several dates would be one checkpoint of the layout, returns a text for the user with the options that
/// help.
pub(super) fn in_one_checkpoint(layout: &Layout, paths: &[&FilePath]) -> Option<String> {
    let mut first: BTreeMap<CheckpointId, (&[u8], &FilePath)> = BTreeMap::new();
    for path in paths {
        let Some((placed, Within { label, .. })) = layout.place_within(path) else { continue };
        let bytes = path.as_bytes();
        let starts = std::iter::once(0).chain((1..bytes.len()).filter(|&at| bytes[at - 1] == b'/'));
        let mut dates = starts.filter_map(|start| Some((start, date_in_directories(&bytes[start..])?)));
        let Some((start, length)) = dates.next() else { continue };
        if label.is_some_and(|label| label.start <= start && label.end >= start + length) {
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
        (is_it && values.contains(&number(&path[at..end]))).then_some(end)
    };
    let year = component(0, 4, 1900..=2199)?;
    let month = component(year + 1, 2, 1..=12)?;
    Some(component(month + 1, 2, 1..=31).unwrap_or(month))
}

/// The length of the date at the beginning of a text, as in `2010-10-01`, `01-OCT-2010`, `0001-02-01-00000` (with the
/// seconds of the day), `2010-10-01_00.00.00`, and `2026-01-04T000000Z`. `None` if the text does not begin with a date.
pub(super) fn date_length(text: &[u8]) -> Option<usize> {
    // The offset after a separator at `at` and the digits that follow the separator. `None` if there is no separator
    // at `at`, or if the number of digits is not `count`.
    let after = |at: usize, separators: &[u8], count: usize| {
        let digits = text.get(at).filter(|b| separators.contains(b)).map(|_| digits_in(&text[at + 1..]));
        (digits == Some(count)).then_some(at + 1 + count)
    };
    let in_range = |end: usize, most: u64| (1..=most).contains(&number(&text[end - 2..end]));
    let year = digits_in(text);
    if let Some(length) = time_length(text).or_else(|| named_month_length(text)) {
        return Some(length);
    }
    let month = after(year, b"-", 2).filter(|end| (4..=6).contains(&year) && in_range(*end, 12))?;
    let day = after(month, b"-", 2).filter(|end| in_range(*end, 31))?;
    let minute = || after(after(day, b"-_T", 2)?, b"-_:.", 2);
    let clock = || minute().map(|end| after(end, b"-_:.", 2).unwrap_or(end));
    let compact = || after(day, b"T", 6).or_else(|| after(day, b"T", 4));
    let time = after(day, b"-_T", 5).or_else(clock).or_else(compact);
    let time = time.map(|end| end + usize::from(text[day] == b'T' && text.get(end) == Some(&b'Z')));
    Some(time.unwrap_or(day))
}

/// The length of a date with the name of its month at the beginning of a text, as in `01-OCT-2010`. `None` if the
/// text does not begin with such a date.
fn named_month_length(text: &[u8]) -> Option<usize> {
    const MONTHS: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let day = digits_in(text);
    let month = text.get(day + 1..day + 4)?.to_ascii_lowercase();
    let is_date = (1..=2).contains(&day)
        && (text[day], text.get(day + 4)) == (b'-', Some(&b'-'))
        && MONTHS.contains(&&month[..])
        && digits_in(&text[day + 5..]) == 4;
    is_date.then_some(day + 9)
}

/// Whether the rank or the label that a layout finds in a path ends inside a date.
pub(super) fn splits_a_date(layout: &Layout, path: &FilePath) -> bool {
    let Some((_, within)) = layout.place_within(path) else { return false };
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if let Some(length) = date_length(&bytes[at..]) {
            let is_inside = |position: usize| (at + 1..at + length).contains(&position);
            if [&within.rank, &within.label].into_iter().flatten().any(|range| is_inside(range.end)) {
                return true;
            }
        }
        at += digits_in(&bytes[at..]).max(1);
    }
    false
}

/// The length of the time at the beginning of a text, as in `12:30`, `12:30:00`, `20260101T000000` and
/// `20260101T000000Z`. `None` if the text does not begin with a time.
fn time_length(text: &[u8]) -> Option<usize> {
    let pair = |at: usize| text.get(at) == Some(&b':') && digits_in(&text[at + 1..]) == 2;
    match digits_in(text) {
        2 if pair(2) && pair(5) => Some(8),
        2 if pair(2) => Some(5),
        8 if text.get(8) == Some(&b'T') && [4, 6].contains(&digits_in(&text[9..])) => {
            let end = 9 + digits_in(&text[9..]);
            Some(end + usize::from(text.get(end) == Some(&b'Z')))
        }
        _ => None,
    }
}
