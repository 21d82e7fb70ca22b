//! Guesses the layout from file names if the configuration names no layout.
//!
//! First, the guess tries the presets with distinctive names. If no preset fits, the numbers in the names decide.
//! Names that differ only in their digits form a template. A number is the rank if its values are 0 to n-1 (or 1 to
//! n) for all combinations of the other numbers. The label is the beginning of a path component up to a number that
//! distinguishes the checkpoints. Files without a rank belong to the checkpoint with the same label. If the names
//! show neither ranks nor checkpoints, all files form one checkpoint, and the explanation says so.
//!
//! Not every number that varies distinguishes checkpoints: `step1/rank0_var0` and `step1/rank0_var1` are parts of one
//! checkpoint (see `steps`). A directory such as `step_100` is one checkpoint (see `directories`). Checkpoints that
//! were begun in quick succession may be parts of one checkpoint (see `in_time`).
//!
//! A guess is used only if `MOST_PERCENT` of the files match it (`FEW_PERCENT`, if the names say which are restart
//! files), and if the files of a label are of one run. Otherwise all files are one checkpoint, or the user is asked.

use super::pointers::{POINTER_BYTES_MAX, is_pointer_name, is_restart_name, is_temporary};
use super::{Layout, Listing, Pattern, label_of, presets};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};
use words::{CHECKPOINT_WORDS, PART_WORDS, RANK_WORDS, is_image, is_of_kind};

mod alongside;
mod beside;
mod dates;
mod directories;
mod each_rank;
mod grids;
mod in_time;
mod of_a_node;
mod ranks;
mod runs;
mod steps;
mod times;
mod turns;
mod words;

pub(super) use beside::unplaced;
pub use beside::{MaybeShared, Unplaced};
pub(super) use runs::elsewhere;

/// The reasons for the guess. The user can check these reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The reasons, one on each line.
    pub lines: Vec<String>,
    /// Whether the names determined the layout. If false, all files are one checkpoint of rank 0.
    pub certain: bool,
    /// Whether more files may show another layout. With this layout the present files make one checkpoint, or they were
    /// begun at once and one of two numbers in their names may be the rank. If true, `certain` is false.
    pub awaits_files: bool,
    /// Whether the names show neither ranks nor checkpoints, so that all files are one checkpoint. If true, `certain`
    /// is false.
    pub is_whole: bool,
    /// Whether the name of a file shows its rank.
    pub shows_ranks: bool,
    /// A question for the user. `Some` means that the layout must not be used. The text says why, and which options
    /// the user can specify instead.
    pub asks: Option<String>,
    /// Whether the question is whether files are the ranks of one checkpoint, or one checkpoint each. Only the times of
    /// the files can answer it.
    pub may_be_ranks: bool,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Maximum number of paths that a guess examines.
const PATHS_MAX: usize = 200_000;
/// Maximum number of numbers in a name. A name with more numbers has no rank.
const SLOTS_MAX: usize = 16;
/// Maximum number of templates with a rank that become patterns. The templates with the most files are taken.
const TEMPLATES_MAX: usize = 64;

/// A guess is wrong if its checkpoints have less than this percentage of the files, and less than this percentage of
/// the bytes. If the guess is wrong, all files form one checkpoint.
const FEW_PERCENT: u128 = 50;

/// How files are handled whose names do not show a checkpoint, if there is only one checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// The files belong to this checkpoint.
    IsTaken,
    /// The files belong to no checkpoint.
    IsLeft,
}

/// `ranks`: the number of ranks, if it is known. If there is only one rank, a number in a name counts as a rank only
/// if it follows a word for ranks, such as `rank` or `proc`.
pub(super) fn guess(listing: &Listing, directory: &Path, rest: Rest, ranks: Option<u32>) -> (Layout, Explanation) {
    let all = beside::of_application(listing);
    let mut temporary = listing.files.iter().filter(|path| is_temporary(path.as_bytes()));
    let (first, more) = (temporary.next(), temporary.count());
    let are_all = all.is_empty();
    let (layout, mut explanation) = guess_of(all, listing, directory, rest, ranks);
    let has_rank = |path: &FilePath| layout.place(path).is_some_and(|placed| placed.rank.is_some());
    explanation.shows_ranks = listing.files.iter().any(has_rank);
    let Some(first) = first else { return (layout, explanation) };
    let files = counted(1 + more, "file");
    if explanation.is_whole {
        // No file is left out if the names do not show the checkpoints.
        explanation.asks = are_all.then(|| {
            format!(
                "only {files} with a temporary name (such as {first}): an application renames such a file when the \
                 file is whole. If these files are whole, give --layout single"
            )
        });
        return (layout, explanation);
    }
    explanation.lines.push(format!("{files} with a temporary name (such as {first}) in no checkpoint"));
    (layout.without_temporary(), explanation)
}

/// Guesses the layout from these files of the listing.
fn guess_of(
    all: Vec<(&FilePath, u64)>,
    listing: &Listing,
    directory: &Path,
    rest: Rest,
    ranks: Option<u32>,
) -> (Layout, Explanation) {
    let paths: Vec<&FilePath> = all.iter().map(|(path, _)| *path).take(PATHS_MAX).collect();
    let times = Times::of(listing);
    let preset = presets::telling(&paths).find_map(|preset| fits(&preset, &paths, &times, ranks));
    let guessed = preset.or_else(|| times::in_directories(&paths)).or_else(|| {
        let of_state = beside::of_states(&paths);
        // While the application runs, its states may follow later.
        if rest == Rest::IsLeft && of_state.iter().all(|path| is_image(path.name())) {
            return None;
        }
        let label = label_of_directory(directory);
        let guess = |paths: &[&FilePath]| from_numbers(paths, &times, &label, ranks, rest);
        beside::with_pointer_names(guess(&of_state)?, &of_state, &paths, guess)
    });
    let Some((layout, explanation)) = guessed else {
        let (layout, mut explanation) = all_one_checkpoint(label_of_directory(directory));
        if listing.files.is_empty() {
            explanation.lines = vec!["there are no files yet".to_owned()];
        }
        explanation.asks = dates::in_one_checkpoint(&layout, &paths);
        return (layout, explanation);
    };
    if explanation.asks.is_some() {
        return (layout, explanation);
    }
    if let Some(asks) = in_time::asks(&layout, &paths, &times.created, ranks) {
        return (layout, Explanation { asks: Some(asks), may_be_ranks: true, certain: false, ..explanation });
    }
    if let Some(asks) = dates::in_one_checkpoint(&layout, &paths).or_else(|| runs::mixed(&layout, &paths)) {
        return (layout, Explanation { asks: Some(asks), certain: false, ..explanation });
    }
    // A pointer file matches no layout, because it is saved with the checkpoint that was the newest at its time.
    let is_pointer = |(path, bytes): &(&FilePath, u64)| *bytes <= POINTER_BYTES_MAX && is_pointer_name(path.name());
    let (pointers, all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|file| is_pointer(file) && layout.place(file.0).is_none());
    let paths: Vec<_> = all.iter().map(|(path, _)| *path).take(PATHS_MAX).collect();
    let layout = alongside::with_files_of_the_same_numbers(layout, &paths, &times);
    let (layout, mut explanation) = take_the_rest(layout, explanation, &paths, rest);
    explanation.lines.extend(beside::lines_of_pointers(&layout, &paths, pointers.iter().map(|(path, _)| *path)));
    weigh(layout, explanation, &all, directory, rest)
}

/// Checks whether most of the existing files belong to checkpoints of the layout. Logs are not counted. Pictures are
/// not counted while the application runs.
fn weigh(
    layout: Layout,
    mut explanation: Explanation,
    all: &[(&FilePath, u64)],
    directory: &Path,
    rest: Rest,
) -> (Layout, Explanation) {
    let (mut labels, mut files, mut bytes, mut unplaced) = (BTreeSet::new(), 0usize, 0u128, Vec::new());
    let (mut logs, mut bytes_of_logs, mut are_restarts) = (0usize, 0u128, true);
    for (path, size) in all {
        match layout.place(path) {
            Some(placed) => {
                labels.insert(placed.checkpoint);
                are_restarts &= is_restart_name(path.as_bytes());
                files += 1;
                bytes += u128::from(*size);
            }
            None if layout.may_leave(path) || rest == Rest::IsLeft && is_image(path.name()) => {
                logs += 1;
                bytes_of_logs += u128::from(*size);
            }
            None => unplaced.push(*path),
        }
    }
    let all_bytes: u128 = all.iter().map(|(_, size)| u128::from(*size)).sum();
    let percent = |part: u128, whole: u128| (part * 100).checked_div(whole).unwrap_or(100);
    let shares = [percent(files as u128, (all.len() - logs) as u128), percent(bytes, all_bytes - bytes_of_logs)];
    let left = all.len() - files;
    // If there is only one checkpoint, files that belong to no checkpoint give no information about the layout.
    let is_judged = rest == Rest::IsTaken || labels.len() != 1;
    // If the code itself names its restart files, the other files may be more than usual.
    let are_named = are_restarts && !unplaced.iter().any(|path| is_restart_name(path.as_bytes()));
    let percent_min = if are_named { FEW_PERCENT } else { beside::MOST_PERCENT };
    let few = is_judged && shares.iter().any(|share| *share < percent_min);
    let named_after = unplaced.iter().find(|path| beside::is_named_after(path, &labels));
    let Some(first) = named_after.or(unplaced.first().filter(|_| few)) else {
        let of_files = match left {
            0 => format!("all {}", counted(all.len(), "file")),
            _ => format!("{files} of {}", counted(all.len(), "file")),
        };
        let name = if layout.name() == "guessed" { "by the numbers in the names" } else { layout.name() };
        explanation.lines.insert(0, format!("{name} ({}, {of_files})", counted(labels.len(), "checkpoint")));
        return (layout, explanation);
    };
    let whose = match layout.name() {
        "guessed" => "the numbers in the names".to_owned(),
        name => format!("names such as those of {name}"),
    };
    let few = format!("{whose} place {files} of {} files", all.len());
    if shares.iter().all(|share| *share < FEW_PERCENT) {
        let (layout, mut explanation) = all_one_checkpoint(label_of_directory(directory));
        explanation.lines.push(format!("{few}, which is too few for a guess"));
        return (layout, explanation);
    }
    let asks = format!(
        "{few} ({} % of the bytes), and {left} would be left out (first: {first}). Say which files form a checkpoint \
         with --layout: a preset, a pattern with {{checkpoint}} and {{rank}}, or \"single\" for all files as one \
         checkpoint",
        shares[1]
    );
    (layout, Explanation { asks: Some(asks), certain: false, ..explanation })
}

/// Returns the preset if the preset fits. More than half of the files must match the preset, no rank may be missing
/// (but see [`of_a_node::are_all`]), and the labels of the preset must not be labels of parts. If the job has only one
/// rank, a preset that finds several ranks does not fit. `known_ranks`: the number of ranks of the job.
fn fits(
    preset: &Layout,
    paths: &[&FilePath],
    times: &Times<'_>,
    known_ranks: Option<u32>,
) -> Option<(Layout, Explanation)> {
    let mut ranks: BTreeMap<CheckpointId, BTreeSet<u32>> = BTreeMap::new();
    let mut placed_count = 0usize;
    for placed in paths.iter().filter_map(|path| preset.place(path)) {
        placed_count += 1;
        ranks.entry(placed.checkpoint).or_default().extend(placed.rank.map(|rank| rank.0));
    }
    let gap = |ranks: &BTreeSet<u32>| ranks.last().is_some_and(|&last| last as usize + 1 != ranks.len());
    let most = ranks.values().max_by_key(|ranks| ranks.len())?;
    let logs = paths.iter().filter(|path| preset.may_leave(path)).count();
    let is_minority = placed_count * 2 <= paths.len() - logs;
    let splits = paths.iter().any(|path| dates::splits_a_date(preset, path));
    let has_too_many = known_ranks == Some(1) && most.len() > 1;
    let has_gap = || gap(most) && !of_a_node::are_all(preset, paths, times, &ranks, known_ranks);
    // Enzo writes its dumps `DD` and `RD` independently of each other.
    let are_halves = preset.name() != "enzo" && steps::are_two_families(ranks.keys());
    let divides = directories::are_divided(preset, paths);
    let is_other = is_minority || has_gap() || splits || has_too_many || are_halves || divides;
    if is_other || steps::are_of_ranks_or_parts(ranks.keys()) {
        return None;
    }
    // If the preset finds no rank although numbers in the names are ranks, the names do not come from the preset's
    // code.
    let has_ranks = ranks.values().any(|ranks| !ranks.is_empty());
    if !has_ranks && templates_of(paths, &Times::default()).iter().any(|template| template.says_rank()) {
        return None;
    }
    let awaits_files = steps::may_be_products(ranks.keys());
    Some((preset.clone(), Explanation { certain: !awaits_files, awaits_files, ..Explanation::default() }))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// If there is only one checkpoint, adds the remaining files to this checkpoint. If there are several checkpoints,
/// mentions the remaining files in the explanation.
fn take_the_rest(
    mut layout: Layout,
    mut explanation: Explanation,
    paths: &[&FilePath],
    taken: Rest,
) -> (Layout, Explanation) {
    let mut labels = BTreeSet::new();
    let (mut rest, mut attendants) = (Vec::new(), Vec::new());
    for path in paths {
        match layout.place(path) {
            Some(placed) => drop(labels.insert(placed.checkpoint)),
            None if layout.attends(path.name()) => attendants.push(path),
            None => rest.push(path),
        }
    }
    if let Some(first) = attendants.first() {
        let files = counted(attendants.len(), "file");
        explanation.lines.push(format!("{files} (such as {first}) saved with each checkpoint in the same directory"));
    }
    let only = labels.first().filter(|_| labels.len() == 1 && taken == Rest::IsTaken);
    if let (Some(first), Some(only)) = (rest.first(), only) {
        explanation.lines.push(format!("{} (such as {first}) saved with rank 0", counted(rest.len(), "other file")));
        layout.push(Pattern::everything(only.clone()));
    } else if let Some(first) = rest.first() {
        // A file without such a name may still be saved with a checkpoint, if its content names the checkpoint.
        let files = counted(rest.len(), "other file");
        explanation.lines.push(format!("{files} (such as {first}) not named after a checkpoint"));
    }
    (layout, explanation)
}

pub(super) fn label_of_directory(directory: &Path) -> CheckpointId {
    use std::os::unix::ffi::OsStrExt;
    let absolute = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = absolute.file_name().and_then(|name| label_of(name.as_bytes()).ok());
    name.unwrap_or_else(|| "checkpoint".parse().expect("a valid name"))
}

fn all_one_checkpoint(label: CheckpointId) -> (Layout, Explanation) {
    let line = format!("the names show neither ranks nor checkpoints: all files are checkpoint {label}, rank 0");
    (Layout::single(label), Explanation { lines: vec![line], is_whole: true, ..Explanation::default() })
}

/// The byte that replaces a run of digits or a date in a template. No path contains this byte.
const SLOT: u8 = 0;

/// A run of digits or a date, as a regular expression.
const NUMBER: &str = "(?:[0-9]{1,2}-[A-Za-z]{3}-[0-9]{4}|\
                      [0-9]{4,6}-[0-9]{2}-[0-9]{2}(?:[-_](?:[0-9]{5}|[0-9]{2}(?:[-_:.][0-9]{2}){1,2})|\
                      T(?:[0-9]{4,6}|[0-9]{2}(?:[-_:.][0-9]{2}){1,2})Z?)?|\
                      [0-9]{8}T[0-9]{4,6}Z?|[0-9]{2}(?::[0-9]{2}){1,2}|[0-9]+)";

/// A set of names that differ only in their digits.
struct Template<'a> {
    /// The name, with a [`SLOT`] for each run of digits.
    text: Vec<u8>,
    /// For each name of the template: the digits in each slot.
    rows: Vec<Vec<&'a [u8]>>,
    /// For each name of the template: when the file was begun. `None` if the time is not known.
    begun: Vec<Option<SystemTime>>,
    /// For each name of the template: when the file was last modified. `None` if the time is not known.
    modified: Vec<Option<SystemTime>>,
}

/// When the files of a listing were created, begun and last modified. Empty if the times are not known.
#[derive(Default)]
struct Times<'a> {
    created: BTreeMap<&'a FilePath, SystemTime>,
    begun: BTreeMap<&'a FilePath, SystemTime>,
    modified: BTreeMap<&'a FilePath, SystemTime>,
}

impl<'a> Times<'a> {
    /// The times of a listing. If the listing does not say when files were begun, the times of modification are used.
    /// If the listing does not say when files were created, the times when they were begun are used.
    fn of(listing: &'a Listing) -> Self {
        let begun = if listing.begun.is_empty() { &listing.modified } else { &listing.begun };
        let created = if listing.created.is_empty() { begun } else { &listing.created };
        let all = |times: &[SystemTime]| listing.files.iter().zip(times.iter().copied()).collect();
        Self { created: all(created), begun: all(begun), modified: all(&listing.modified) }
    }

    /// When the file was begun and last modified. `None` if a time is not known.
    fn of_file(&self, path: &FilePath) -> Option<(SystemTime, SystemTime)> {
        Some((*self.begun.get(path)?, *self.modified.get(path)?))
    }
}

/// The number of a template that is the rank.
#[derive(Clone)]
struct RankSlot {
    slot: usize,
    /// All slots that always contain the number of the rank, including `slot`. For example, `processor3/out.3`
    /// contains the number twice.
    linked: Vec<usize>,
    first: u64,
    ranks: u64,
}

fn from_numbers(
    paths: &[&FilePath],
    times: &Times<'_>,
    otherwise: &CheckpointId,
    known_ranks: Option<u32>,
    rest: Rest,
) -> Option<(Layout, Explanation)> {
    let templates = templates_of(paths, times);
    let one_rank = known_ranks == Some(1);
    let mut ranks: Vec<Option<RankSlot>> = templates.iter().map(|template| template.find_rank(one_rank)).collect();
    ranks::drop_contradictions(&templates, &mut ranks);
    ranks::adopt(&templates, &mut ranks);
    of_a_node::find(&templates, &mut ranks, known_ranks);
    of_a_node::find_only(&templates, &mut ranks, known_ranks);
    let turns = turns::Turns::remove(&templates, &mut ranks, known_ranks);
    // Files with pauses between them are steps. Two such files may also be two ranks, if the pause was not long.
    let (mut are_steps, mut may_be_steps) = (turns.are_there(), false);
    for (template, rank) in templates.iter().zip(&mut ranks) {
        let unknown = rank.as_ref().filter(|rank| known_ranks.map(u64::from) != Some(rank.ranks));
        let written = |pause| unknown.map_or(0, |rank| template.written_in_order(rank, pause));
        let files = written(steps::SERIES_MIN);
        may_be_steps |= files == 2;
        if files > 2 || written(steps::RANKS_APART_MAX) == 2 {
            (*rank, are_steps) = (None, true);
        }
    }
    let any_rank = ranks.iter().any(Option::is_some);
    let (span, hidden, asks) = match steps::find_span(&templates, &ranks) {
        Some(span) if !any_rank && turns::are_in_turn(&templates, &span.text) => (Some(span.text), span.hides, None),
        Some(span) if any_rank || is_series(&templates, &span.text, one_rank || are_steps) => {
            (Some(span.text), span.hides, span.asks)
        }
        None if any_rank => (None, false, None),
        _ => return None,
    };
    let may_change = span.as_ref().is_some_and(|span| steps::may_change(&templates, &ranks, span));
    let is_open = |span: &Vec<u8>| !any_rank && !one_rank && grids::may_become_one(&templates, span);
    let awaits_files = may_change || span.is_none() && may_be_steps || span.as_ref().is_some_and(is_open);

    let first = ranks.iter().flatten().map(|rank| rank.first).min().unwrap_or(0);
    let first_rank = u32::from(first == 1);
    let rank_count = ranks.iter().flatten().map(|rank| rank.ranks + rank.first - first).max().unwrap_or(0);
    let mut ranked: Vec<_> =
        templates.iter().zip(&ranks).filter_map(|(t, rank)| rank.as_ref().map(|rank| (t, rank))).collect();
    ranked.sort_by_key(|(template, _)| std::cmp::Reverse(template.rows.len()));
    let mut patterns = Vec::new();
    for (template, rank) in ranked.iter().take(TEMPLATES_MAX) {
        patterns.extend(match &span {
            Some(span) => {
                template.regex(rank, Some(span)).and_then(|regex| Pattern::from_regex(&regex, first_rank).ok())
            }
            None => template.regex(rank, None).and_then(|r| Pattern::constant(&r, otherwise.clone(), first_rank).ok()),
        });
    }
    if let Some(span) = &span {
        // A later file in another directory with the name of a rank's file may be of another run. Without these
        // patterns, such a file would belong to rank 0.
        let elsewhere = ranked.iter().filter_map(|(template, rank)| template.elsewhere(rank, span));
        let elsewhere = elsewhere.filter(|_| ranked.len() <= TEMPLATES_MAX && rest == Rest::IsLeft);
        patterns.extend(elsewhere.filter_map(|regex| Pattern::refusal(&regex)));
        // If the label is only a number, the number of a rank must not become a label.
        let is_number = !span.iter().any(u8::is_ascii_alphabetic);
        let unlabeled = ranked.iter().filter(|(template, rank)| is_number && template.find(span, Some(rank)).is_none());
        let unlabeled = unlabeled.filter_map(|(template, rank)| template.regex(rank, None));
        patterns.extend(unlabeled.take(TEMPLATES_MAX).filter_map(|regex| Pattern::refusal(&regex)));
        patterns.push(Pattern::from_regex(&span_regex(span), first_rank).ok()?);
    }
    let layout = Layout::new("guessed", patterns).ok()?;

    let mut lines = Vec::new();
    // Without the label, the files of a template belong to no checkpoint.
    let has_label =
        |(t, rank): &&(&Template<'_>, &RankSlot)| span.as_ref().is_none_or(|span| t.find(span, Some(rank)).is_some());
    match ranked.iter().find(has_label).or(ranked.first()) {
        Some((template, rank)) => lines.push(format!(
            "the rank is # in {}: {}, counted from {first}",
            show(&template.text, &[rank.slot]),
            counted(usize::try_from(rank_count).unwrap_or(usize::MAX), "rank")
        )),
        None => lines.push("no number is a rank: all files belong to rank 0".to_owned()),
    }
    match &span {
        Some(span) => lines.push(format!("the name of a checkpoint has the form {}", show(span, &[]))),
        None => lines.push(format!("no number distinguishes checkpoints: all files are checkpoint {otherwise}")),
    }
    let grid = || grids::asks(&templates, span.as_deref().unwrap_or_default());
    let gap = || templates.iter().find_map(steps::rank_with_gaps).or_else(grid).filter(|_| !any_rank && !one_rank);
    let two_runs = || turns.asks(&templates, paths, span.as_deref()?);
    let asks = asks.or_else(two_runs).or_else(gap).or_else(|| {
        let (template, rank) = ranked.iter().find(|(template, rank)| template.contradicts(rank))?;
        Some(format!(
            "the number # in {} would be the rank, but the files of one number were written after those of the other, as \
             steps are. Say with --layout which number is the step and which one is the rank: a pattern with {{checkpoint}} \
             and {{rank}}",
            show(&template.text, &[rank.slot])
        ))
    });
    // `runs::mixed` examines the numbers before the label later, and may ask the user. Therefore this line is only a
    // hint.
    if hidden {
        lines.push("some different checkpoints would get the same name: specify the layout".to_owned());
    }
    let certain = !hidden && asks.is_none() && !awaits_files;
    Some((layout, Explanation { lines, certain, asks, awaits_files, ..Explanation::default() }))
}

fn templates_of<'a>(paths: &[&'a FilePath], times: &Times<'_>) -> Vec<Template<'a>> {
    let mut templates: BTreeMap<Vec<u8>, Template<'a>> = BTreeMap::new();
    for path in paths {
        let (text, digits) = tokenize(path.as_bytes());
        let new = Template::new(text.clone());
        let template = templates.entry(text).or_insert(new);
        template.rows.push(digits);
        template.begun.push(times.begun.get(path).copied());
        template.modified.push(times.modified.get(path).copied());
    }
    templates.into_values().collect()
}

/// File name extensions that contain a digit.
const EXTENSIONS: &[&[u8]] = &[
    b"h5", b"hdf5", b"he5", b"h4", b"hdf4", b"nc3", b"nc4", b"mat5", b"bz2", b"bp3", b"bp4", b"bp5", b"md5", b"xdmf3",
];

/// The length of a path without an extension that contains a digit.
fn numbers_end(path: &[u8]) -> usize {
    let extension = path.iter().rposition(|&b| b == b'.' || b == b'/').map_or(path.len(), |dot| dot + 1);
    if EXTENSIONS.contains(&&path[extension..]) { extension } else { path.len() }
}

fn tokenize(path: &[u8]) -> (Vec<u8>, Vec<&[u8]>) {
    let numbers_end = numbers_end(path);
    let (mut text, mut digits) = (Vec::with_capacity(path.len()), Vec::new());
    let mut at = 0;
    while at < path.len() {
        let rest = &path[at..numbers_end.max(at)];
        let run = dates::date_length(rest).unwrap_or_else(|| digits_in(rest));
        if run > 0 {
            text.push(SLOT);
            digits.push(&path[at..at + run]);
            at += run;
        } else {
            text.push(path[at]);
            at += 1;
        }
    }
    (text, digits)
}

/// The number of digits at the beginning of a text.
fn digits_in(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// Whether the text of a slot is a date or a time. The text of a date or a time has characters other than digits.
fn is_date(digits: &[u8]) -> bool {
    !digits.iter().all(u8::is_ascii_digit)
}

/// The value of a run of digits, or of all digits of a date. If the value does not fit into 64 bits, the result is
/// `u64::MAX`, which is never a rank.
fn number(digits: &[u8]) -> u64 {
    let digits = digits.iter().filter(|b| b.is_ascii_digit());
    digits.fold(0u64, |n, &digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

/// The meaning of a number. The letters before the number show the meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Checkpoint,
    /// The number of a part of the state, such as a variable.
    Part,
    Neutral,
    Rank,
}

impl Template<'_> {
    /// A template without names.
    fn new(text: Vec<u8>) -> Self {
        Self { text, rows: Vec::new(), begun: Vec::new(), modified: Vec::new() }
    }

    fn slots(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// Position of a slot in the text.
    fn position(&self, slot: usize) -> usize {
        self.text.iter().enumerate().filter(|(_, b)| **b == SLOT).nth(slot).map_or(self.text.len(), |(at, _)| at)
    }

    /// The letters before a slot, with the separators around them: `_p` in `checkpoints_s26_p3`.
    fn lead(&self, slot: usize) -> &[u8] {
        let end = self.position(slot);
        let word = end - self.text[..end].iter().rev().take_while(|b| matches!(b, b'_' | b'-' | b'.')).count();
        let start = word - self.text[..word].iter().rev().take_while(|b| b.is_ascii_alphabetic()).count();
        &self.text[start..end]
    }

    /// The letters before a slot, in lower case.
    fn letters(&self, slot: usize) -> Vec<u8> {
        self.lead(slot).iter().filter(|b| b.is_ascii_alphabetic()).map(u8::to_ascii_lowercase).collect()
    }

    /// Whether a number is the number of a checkpoint because of the word before it, and this word does not only name
    /// a kind of file.
    fn is_clear(&self, slot: usize) -> bool {
        self.word(slot) == Word::Checkpoint && !is_of_kind(&self.letters(slot))
    }

    fn word(&self, slot: usize) -> Word {
        if self.rows.iter().any(|row| is_date(row[slot])) {
            return Word::Checkpoint;
        }
        match &self.letters(slot)[..] {
            word if RANK_WORDS.contains(&word) => Word::Rank,
            word if is_of_kind(word) && directories::is_below_step(self, slot) => Word::Neutral,
            word if CHECKPOINT_WORDS.contains(&word) && self.follows_checkpoint(slot) => Word::Neutral,
            word if CHECKPOINT_WORDS.contains(&word) => Word::Checkpoint,
            word if PART_WORDS.contains(&word) => Word::Part,
            _ => Word::Neutral,
        }
    }

    /// Whether a letter is directly before a slot, as in `hdf5`.
    fn follows_letter(&self, slot: usize) -> bool {
        let at = self.position(slot);
        at > 0 && self.text.get(at - 1).is_some_and(u8::is_ascii_alphabetic)
    }

    /// The numbers that are a part of a word, as in `sod_hdf5_chk_0003` and `Sedov3d_rk2.00010`. Such a number has
    /// one value and directly follows a letter. The letters mean neither checkpoints nor ranks nor parts. Another
    /// number in the same component may be the step.
    fn in_words(&self, rank: Option<&RankSlot>) -> BTreeSet<usize> {
        let has_one_value = |slot: usize| self.rows.iter().all(|row| row[slot] == self.rows[0][slot]);
        let may_be =
            |slot: &usize| self.follows_letter(*slot) && self.word(*slot) == Word::Neutral && has_one_value(*slot);
        let in_words: BTreeSet<usize> = (0..self.slots()).filter(may_be).collect();
        let component = |slot: usize| self.text[..self.position(slot)].iter().filter(|b| **b == b'/').count();
        let is_other = |slot: &usize| !in_words.contains(slot) && !rank.is_some_and(|rank| rank.linked.contains(slot));
        let others: BTreeSet<usize> = (0..self.slots()).filter(is_other).map(component).collect();
        in_words.into_iter().filter(|slot| others.contains(&component(*slot))).collect()
    }

    fn linked(&self, slot: usize) -> Vec<usize> {
        let same = |other: &usize| self.rows.iter().all(|row| number(row[*other]) == number(row[slot]));
        (0..self.slots()).filter(same).collect()
    }

    /// Whether a number is not the checkpoint, although a word before it usually means checkpoints, as in
    /// `sim.00010.rst.3`. The word must stand between two numbers, and the times of the files must show that the
    /// first number is the checkpoint. All files with one value of the first number were written nearly at once, long
    /// before the files with its next value. The second number does not have this order.
    fn follows_checkpoint(&self, slot: usize) -> bool {
        let before = &self.text[..self.position(slot) - self.lead(slot).len()];
        let is_between = before.iter().rev().find(|b| !matches!(b, b'_' | b'-' | b'.')) == Some(&SLOT);
        let at_once = |times: &[Range<SystemTime>]| {
            let lasts = |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default();
            times.windows(2).all(|pair| {
                let longest = pair.iter().map(|range| lasts(range.start, range.end)).max().unwrap_or_default();
                longest * 10 <= lasts(pair[0].start, pair[1].start)
            })
        };
        is_between && self.in_order(slot - 1).is_some_and(|times| at_once(&times)) && self.in_order(slot).is_none()
    }

    /// For each value of a number, the time range in which the files with this value were written. `None` if the time
    /// ranges of two values overlap, if a time is unknown, or if the number has only one value.
    fn in_order(&self, slot: usize) -> Option<Vec<Range<SystemTime>>> {
        let mut times: BTreeMap<u64, Range<SystemTime>> = BTreeMap::new();
        for (row, modified) in self.rows.iter().zip(&self.modified) {
            let time = (*modified)?;
            let range = times.entry(number(row[slot])).or_insert(time..time);
            *range = time.min(range.start)..time.max(range.end);
        }
        let mut times: Vec<_> = times.into_values().collect();
        times.sort_by_key(|range| range.start);
        (times.len() > 1 && times.windows(2).all(|pair| pair[0].end < pair[1].start)).then_some(times)
    }

    /// Whether the times of the files show that the number in `rank` is no rank, but probably a step. The times show
    /// this if the files of each value were written after the files of the value before, and no other varying number
    /// of the names was written in order. Without another varying number, the times show nothing.
    fn contradicts(&self, rank: &RankSlot) -> bool {
        let others: Vec<usize> = self.varying().filter(|slot| !rank.linked.contains(slot)).collect();
        let times = || self.modified.iter().flatten();
        let took = times().max().zip(times().min()).and_then(|(last, first)| last.duration_since(*first).ok());
        self.word(rank.slot) != Word::Rank
            && took.is_some_and(|took| took >= steps::SERIES_MIN)
            && !others.is_empty()
            && self.in_order(rank.slot).is_some()
            && others.into_iter().all(|slot| self.in_order(slot).is_none())
    }

    /// The number of values of a rank, if there was at least this pause between the files of each rank and the files of
    /// the rank before, the names have no other number that varies, and no word says that the number is a rank.
    /// Otherwise 0. Ranks that write in turn make no pause.
    fn written_in_order(&self, rank: &RankSlot, pause: Duration) -> usize {
        let has_others = self.varying().any(|slot| !rank.linked.contains(&slot));
        if has_others || self.word(rank.slot) == Word::Rank {
            return 0;
        }
        let times = self.begun.iter().zip(&self.modified).map(|(begun, modified)| Some((*begun)?..(*modified)?));
        let numbers = self.rows.iter().map(|row| number(row[rank.slot]));
        let mut files: Vec<(u64, Option<Range<SystemTime>>)> = numbers.zip(times).collect();
        files.sort_by_key(|(number, _)| *number);
        let has_pause = |pair: &[(u64, Option<Range<SystemTime>>)]| match (&pair[0].1, &pair[1].1) {
            (Some(before), Some(after)) => before.end + pause <= after.start,
            _ => false,
        };
        if files.windows(2).all(has_pause) { files.len() } else { 0 }
    }

    /// Whether a number in the names is the rank, and follows a word for ranks.
    fn says_rank(&self) -> bool {
        self.find_rank(true).is_some()
    }

    /// The number in the names that is the rank. A number after a word for ranks is preferred. Otherwise the last
    /// possible number is the rank. If `after_word` is true, only a number after a word for ranks is accepted.
    fn find_rank(&self, after_word: bool) -> Option<RankSlot> {
        if self.rows.len() < 2 || self.slots() > SLOTS_MAX {
            return None;
        }
        let slots = (0..self.slots()).filter(|slot| !after_word || self.word(*slot) == Word::Rank);
        let candidates = slots.filter_map(|slot| Some((self.word(slot), self.try_rank(slot, false)?)));
        let found = candidates.max_by_key(|(word, rank)| (*word, rank.slot)).map(|(_, rank)| rank)?;
        if !self.contradicts(&found) {
            return Some(found);
        }
        // The times show that this number is the step. Another number is the rank if all steps have all its values, as
        // on a node that has only the ranks 4 to 7.
        let others = (0..self.slots()).rev().filter(|slot| !found.linked.contains(slot));
        others.filter_map(|slot| self.try_rank(slot, true)).next().or(Some(found))
    }

    /// The rank, if this number can be the rank. With `of_a_node`, the ranks may begin with any number, and every step
    /// must have all ranks.
    fn try_rank(&self, slot: usize, of_a_node: bool) -> Option<RankSlot> {
        let word = self.word(slot);
        if word == Word::Checkpoint || times::is_of_time(self, slot) {
            return None;
        }
        let linked = self.linked(slot);
        let mut sets: BTreeMap<Vec<&[u8]>, BTreeSet<u64>> = BTreeMap::new();
        for row in &self.rows {
            let others = row.iter().enumerate().filter(|(i, _)| !linked.contains(i)).map(|(_, digits)| *digits);
            let is_new = sets.entry(others.collect()).or_default().insert(number(row[slot]));
            if !is_new {
                return None; // `1` and `01` both occur, so this number is not a rank
            }
        }
        let first = sets.values().filter_map(BTreeSet::first).copied().min()?;
        let last = sets.values().filter_map(BTreeSet::last).copied().max()?;
        let ranks = (last - first).checked_add(1)?;
        // A node may see only its own ranks, for example 32 to 63. A range that begins above 1 is accepted only after
        // a word for ranks.
        if ranks < 2 || (first > 1 && word != Word::Rank && !of_a_node) {
            return None;
        }
        let whole = sets.values().filter(|set| set.len() as u64 == ranks).count();
        if of_a_node && (whole < 2 || whole < sets.len()) {
            return None;
        }
        // The newest checkpoint may still be incomplete. Therefore only half of the checkpoints must have all ranks.
        (whole > 0 && (whole * 2 >= sets.len() || word == Word::Rank)).then_some(RankSlot {
            slot,
            linked,
            first,
            ranks,
        })
    }

    /// Finds the span in the text. Returns the position of the span, and the number of its first slot. The span must
    /// be at the beginning of a component or after a separator. No letter or digit may follow the span, and the span
    /// must not contain the rank.
    fn find(&self, span: &[u8], rank: Option<&RankSlot>) -> Option<(usize, usize)> {
        let slots_before = |at: usize| self.text[..at].iter().filter(|b| **b == SLOT).count();
        let span_slots = span.iter().filter(|b| **b == SLOT).count();
        (0..self.text.len()).filter(|&at| self.text[at..].starts_with(span)).find_map(|at| {
            let begins = at == 0 || !self.text[at - 1].is_ascii_alphanumeric() && self.text[at - 1] != SLOT;
            let ends = self.text.get(at + span.len()).is_none_or(|b| !b.is_ascii_alphanumeric() && *b != SLOT);
            let slot = slots_before(at);
            let holds_rank = rank.is_some_and(|rank| rank.linked.iter().any(|r| (slot..slot + span_slots).contains(r)));
            (begins && ends && !holds_rank).then_some((at, slot))
        })
    }

    /// A regular expression for names of this form below any directory. `None` if the template does not contain the
    /// span.
    fn elsewhere(&self, rank: &RankSlot, span: &[u8]) -> Option<String> {
        let (label, _) = self.find(span, Some(rank))?;
        let first = rank.linked.iter().map(|slot| self.position(*slot)).fold(label, usize::min);
        let start = self.text[..first].iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
        let mut out = String::from("(?:.*/)?");
        for &byte in &self.text[start..] {
            match byte {
                SLOT => out.push_str(NUMBER),
                _ => push_literal(&mut out, byte),
            }
        }
        Some(out)
    }

    /// A regular expression for the names of this template. `None` if the template does not contain the span.
    fn regex(&self, rank: &RankSlot, span: Option<&[u8]>) -> Option<String> {
        let label = match span {
            Some(span) => self.find(span, Some(rank)).map(|(start, _)| start..start + span.len())?,
            None => 0..0,
        };
        let (mut slot, mut out) = (0, String::new());
        for (at, &byte) in self.text.iter().enumerate() {
            if at == label.start && !label.is_empty() {
                out.push_str("(?P<checkpoint>");
            }
            match byte {
                SLOT if rank.slot == slot => out.push_str("(?P<rank>[0-9]+)"),
                SLOT => out.push_str(NUMBER),
                _ => push_literal(&mut out, byte),
            }
            slot += usize::from(byte == SLOT);
            if at + 1 == label.end {
                out.push(')');
            }
        }
        Some(out)
    }
}

fn push_literal(out: &mut String, byte: u8) {
    match byte {
        b' '..=b'~' => out.push_str(&regex::escape(char::from(byte).encode_utf8(&mut [0; 4]))),
        _ => out.push_str(&format!("(?-u:\\x{byte:02x})")),
    }
}

/// A template as text for users: `#` for the given slots, and `N` for the other slots.
fn show(text: &[u8], slots: &[usize]) -> String {
    let (mut slot, mut out) = (0, Vec::with_capacity(text.len()));
    for &byte in text {
        match byte {
            SLOT => {
                out.push(if slots.contains(&slot) { b'#' } else { b'N' });
                slot += 1;
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// For files without ranks: whether each value of the span's last number is a checkpoint. If the values are not
/// checkpoints, all files form one checkpoint. The files of the only rank are checkpoints if the application wrote
/// them one after the other, at least 1 s apart. Other files, such as `config.json`, are no objection if the names of
/// directories clearly say that they are checkpoints.
fn is_series(templates: &[Template<'_>], span: &[u8], one_rank: bool) -> bool {
    let mut values = BTreeSet::new();
    let (mut says, mut has_others, mut are_directories) = (false, false, true);
    let mut in_order = one_rank;
    for template in templates {
        let Some((_, slot)) = template.find(span, None) else {
            has_others = true;
            continue;
        };
        let last = slot + span.iter().filter(|b| **b == SLOT).count() - 1;
        says |= template.word(last) == Word::Checkpoint;
        are_directories &= template.is_clear(last) && template.text[template.position(last)..].contains(&b'/');
        let apart = |times: &[Range<SystemTime>]| {
            let begins = |pair: &[Range<SystemTime>]| pair[1].start.duration_since(pair[0].end);
            times.windows(2).all(|pair| begins(pair).is_ok_and(|apart| apart >= steps::SERIES_MIN))
        };
        in_order &= template.in_order(last).is_some_and(|times| apart(&times));
        values.extend(template.rows.iter().map(|row| number(row[last])));
    }
    let dense = values.last().zip(values.first()).is_some_and(|(last, first)| last - first < values.len() as u64);
    values.len() > 1 && (says || !dense || in_order) && (are_directories || !has_others)
}

/// A regular expression for files without a rank: the label may occur anywhere in the path.
fn span_regex(span: &[u8]) -> String {
    let mut out = String::from("(?:.*?[^0-9A-Za-z])??(?P<checkpoint>");
    for &byte in span {
        match byte {
            SLOT => out.push_str(NUMBER),
            _ => push_literal(&mut out, byte),
        }
    }
    out.push_str(")(?:[^0-9A-Za-z].*)?");
    out
}

#[cfg(test)]
mod run_directories;
#[cfg(test)]
mod tests;
