//! Finds directories whose names are times, such as `0.1`, `0.2` and `1` of a serial OpenFOAM case. Each of them is a
//! checkpoint. Neither of the two numbers in such a name is a rank or a step.

use super::{Explanation, SLOT, Template, Times, templates_of};
use crate::layout::presets::beside;
use crate::layout::{Layout, Pattern};
use mcrengine::ids::FilePath;
use std::collections::BTreeSet;

/// A file of each OpenFOAM case. Its directories of times may have whole numbers only, such as `100`.
const CASE_FILE: &[u8] = b"system/controlDict";

/// The name of a directory of a time, as a regular expression.
const TIME: &str = r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?";

/// The layout in which each directory of a time is a checkpoint. `None` if there are no such directories, if they are
/// in several directories, or if the names of most files have a rank.
pub(super) fn in_directories(paths: &[&FilePath]) -> Option<(Layout, Explanation)> {
    let above_times: BTreeSet<&[u8]> = paths.iter().filter_map(|path| above_time(path.as_bytes())).collect();
    let above_case = paths.iter().filter_map(|path| path.as_bytes().strip_suffix(CASE_FILE));
    let above_case = above_case.filter(|above| above.is_empty() || above.ends_with(b"/"));
    let all: BTreeSet<&[u8]> = above_times.iter().copied().chain(above_case).collect();
    let (Some(above), 1) = (all.first().and_then(|above| std::str::from_utf8(above).ok()), all.len()) else {
        return None;
    };
    let templates = templates_of(paths, &Times::default());
    let ranked = templates.iter().filter(|template| template.find_rank(false).is_some());
    if ranked.map(|template| template.rows.len()).sum::<usize>() * 2 > paths.len() {
        return None;
    }
    let regex = format!("{}(?P<checkpoint>{TIME})/.*", regex::escape(above));
    let mut layout = Layout::new("guessed", vec![Pattern::from_regex(&regex, 0).ok()?]).ok()?;
    layout.beside = beside("openfoam");
    let times: BTreeSet<_> = paths.iter().filter_map(|path| Some(layout.place(path)?.checkpoint)).collect();
    if times.is_empty() || times.len() < 2 && above_times.is_empty() {
        return None;
    }
    let lines = vec![format!("the name of a checkpoint is the time in the name of a directory, as in {above}0.5")];
    let certain = times.len() > 1;
    Some((layout, Explanation { lines, certain, awaits_files: !certain, ..Explanation::default() }))
}

/// The path above the first directory with a name such as `0.5`.
fn above_time(path: &[u8]) -> Option<&[u8]> {
    let starts = std::iter::once(0).chain((1..path.len()).filter(|&at| path[at - 1] == b'/'));
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let is_time = |start: &usize| {
        let end = path[*start..].iter().position(|&byte| byte == b'/').map(|length| start + length);
        let mut numbers = end.map_or(&[][..], |end| &path[*start..end]).split(|&byte| byte == b'.');
        numbers.by_ref().take(2).filter(|digits| is_number(digits)).count() == 2 && numbers.next().is_none()
    };
    starts.take_while(|at| *at < path.len()).find(is_time).map(|start| &path[..start])
}

/// Whether a number is a part of a time that is the whole name of a directory.
pub(super) fn is_of_time(template: &Template<'_>, slot: usize) -> bool {
    let (text, at) = (&template.text, template.position(slot));
    let start = text[..at].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    text[start..].starts_with(&[SLOT, b'.', SLOT, b'/'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Listing;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// The checkpoints of files in these directories, which were written 60 s apart, with their number of files.
    fn found(directories: &[&str], files: &[&str], more: &[&str]) -> (BTreeMap<String, usize>, Explanation) {
        let of = |(nth, of): (usize, &&str)| files.iter().map(|file| (format!("{of}/{file}"), nth as u64)).collect();
        let mut all: Vec<(String, u64)> = directories.iter().enumerate().flat_map::<Vec<_>, _>(of).collect();
        all.extend(more.iter().map(|name| ((*name).to_owned(), 0)));
        let at = |minute: u64| 1_700_000_000_000 + minute * 60_000;
        let listing = Listing::of_times(all.iter().map(|(name, minute)| (name.as_str(), at(*minute), at(*minute))));
        let (layout, explanation) = Layout::guess(&listing, Path::new("/data/run7"), None);
        let mut found = BTreeMap::new();
        for placed in listing.files.iter().filter_map(|path| layout.place(path)) {
            assert_eq!(placed.rank, None);
            *found.entry(placed.checkpoint.to_string()).or_default() += 1;
        }
        (found, explanation)
    }

    #[test]
    fn a_directory_with_the_name_of_a_time_is_a_checkpoint_without_ranks() {
        let times = ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1", "1.1", "1.2", "1e-05"];
        let case = ["system/controlDict", "system/fvSchemes", "constant/transportProperties"];
        for (times, more) in
            [(&times[..], &case[..]), (&times[1..], &case[..0]), (&times[..3], &case[..0]), (&times[1..3], &case[..0])]
        {
            let (found, explanation) = self::found(times, &["U", "p", "phi", "uniform/time", "alpha.1"], more);
            let expected = times.iter().map(|time| ((*time).to_owned(), 5)).collect();
            assert_eq!((found, explanation.asks), (expected, None), "{times:?}");
            assert!(explanation.certain);
        }
        let (found, _) = self::found(&["case/100", "case/200"], &["U", "p"], &["case/system/controlDict"]);
        assert_eq!(found, [("100".to_owned(), 2), ("200".to_owned(), 2)].into());
        assert!(!self::found(&["0.1"], &["U"], &[]).1.certain, "more files may show more");
    }

    #[test]
    fn a_time_counts_only_as_the_whole_name_of_a_directory() {
        assert_eq!(above_time(b"case/0.5/U"), Some(&b"case/"[..]));
        for name in ["0.5", "t0.5/U", "0.5.1/U", "v0.5", "0./U", ".5/U", "0.5a/U"] {
            assert_eq!(above_time(name.as_bytes()), None, "{name}");
        }
    }
}
