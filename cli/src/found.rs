//! The checkpoints below a directory, for `mcr save` and `mcr bench`, and the files that belong to no checkpoint.

use crate::advice::Advised;
use crate::args::LayoutArgs;
use crate::common::{is_layout_said, layout_of};
use crate::names::leave_out_copies;
use crate::output::{counted, name_of, note, tell};
use crate::remembered::SavedFiles;
use anyhow::bail;
use lacking::{Contents, without_smaller_first};
use mcr_cnc::companions::{Beside, Companion, Surroundings, Versions, gather, leave_out_pointers};
use mcr_cnc::layout::pointers::{is_temporary, may_be_left};
use mcr_cnc::layout::{Labelled, Layout, Linked, Listing, Scan, ScanLimits, Unplaced, linked, list, mixed, sort};
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use mcrengine::manifest::Doubt;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod lacking;

/// The checkpoints and the other paths below a directory.
pub struct Found {
    /// The checkpoints, the oldest first.
    pub checkpoints: Vec<Labelled>,
    /// Links, directories and pointer files that are saved with each checkpoint.
    pub companions: BTreeMap<CheckpointId, Vec<Companion>>,
    /// Bytes of the files of all checkpoints.
    pub bytes: u64,
    /// Checkpoints that are not saved, because the application may still be writing them, or because files of ranks
    /// are links.
    pub not_whole: Vec<NotWhole>,
    /// Checkpoints of which something is uncertain.
    pub doubts: BTreeMap<CheckpointId, Doubt>,
    /// Age of the newest file, if it is younger than [`YOUNG`].
    pub newest_age: Option<Duration>,
    /// Whether file names contain the number of a rank.
    pub has_ranks: bool,
    /// Files of checkpoints whose times do not show the step of the checkpoint, see [`not_of_step`].
    pub not_of_step: BTreeSet<FilePath>,
    pub left_out: LeftOut,
}

/// A checkpoint that is not saved, and the reason.
pub struct NotWhole {
    pub checkpoint: CheckpointId,
    pub why: String,
}

/// Paths that are not saved, because they belong to no checkpoint or cannot be read.
#[derive(Default, serde::Serialize)]
pub struct LeftOut {
    /// Number of files, links, and unreadable directories that are not saved. Paths that `--layout` does not name are
    /// not counted.
    pub count: u64,
    /// The first paths, at most [`LEFT_OUT_MAX`].
    paths: Vec<NotSaved>,
    /// Whether all paths in `paths` are files, and none is a link or a directory.
    #[serde(skip)]
    are_files: bool,
    /// Number of files that `--layout` does not name, if the user gave this option.
    not_in_layout: u64,
    #[serde(skip)]
    first_unnamed: Option<String>,
}

#[derive(serde::Serialize)]
struct NotSaved {
    path: String,
    reason: &'static str,
}

/// Maximum number of paths in JSON output.
const LEFT_OUT_MAX: usize = 1000;
/// Maximum number of paths that are printed for people.
const LISTED_MAX: usize = 10;

/// If the newest file is younger than this time, its checkpoint is compared with the previous checkpoint.
const YOUNG: Duration = Duration::from_secs(60);
/// If the newest file is younger than this time, the application may still write files of the same checkpoint.
const REST: Duration = Duration::from_secs(1);
/// Maximum time to wait until the files of the newest checkpoint stop changing.
const REST_MAX: Duration = Duration::from_secs(60);

/// Finds the checkpoints below a directory, the oldest first, and the paths that belong to no checkpoint. A store
/// below the directory is skipped. If the application may still write the newest checkpoint, waits until its files
/// stop changing. `ranks`: the number of ranks, if it is known. `saved`: the files of the job that were saved before.
pub fn find_checkpoints(
    dir: &Path,
    layout: &LayoutArgs,
    ranks: Option<u32>,
    quiet: bool,
    store: Option<&Path>,
    saved: Option<&SavedFiles>,
) -> anyhow::Result<Found> {
    let mut listing = listing_without(dir, store)?;
    let mut not_whole = None;
    let (began, mut unchanged_since) = (Instant::now(), Instant::now());
    loop {
        let layout = layout_of(layout, || Ok((listing.clone(), dir.to_owned())), ranks, saved, true)?;
        let Some((newest, _)) = newest_file(&listing, &layout).filter(|(_, age)| *age < REST) else { break };
        if unchanged_since.elapsed() >= REST {
            break;
        }
        if began.elapsed() >= REST_MAX {
            let why = "its files are still written; save it again later".to_owned();
            not_whole = Some(NotWhole { checkpoint: newest, why });
            break;
        }
        std::thread::sleep(REST / 4);
        let again = listing_without(dir, store)?;
        let files_of = |listing: &Listing| -> Vec<_> {
            let all = listing.files.iter().zip(&listing.modified).zip(&listing.bytes);
            all.filter(|((path, _), _)| layout.place(path).is_some()).map(|((p, m), b)| (p.clone(), *m, *b)).collect()
        };
        if files_of(&again) != files_of(&listing) {
            unchanged_since = Instant::now();
        }
        listing = again;
    }
    let is_said = is_layout_said(layout);
    let layout = layout_of(layout, || Ok((listing.clone(), dir.to_owned())), ranks, saved, quiet)?;
    let of_checkpoints = listing.files.iter().zip(&listing.bytes).filter(|(path, _)| layout.place(path).is_some());
    let bytes = of_checkpoints.map(|(_, bytes)| bytes).sum();
    let newest = newest_file(&listing, &layout).filter(|(_, age)| *age < YOUNG);
    if let Some((path, by)) = &listing.ahead {
        tell(format!(
            "{path}: its modification time is {} s after its last change, so the clock of the node that wrote it is ahead \
             of the file system's clock; the time of the change is used. Set the clocks right",
            by.as_secs()
        ));
    }
    if let Some(path) = &listing.undated {
        tell(format!(
            "{path}: its modification time is before the year 2000: a clock was wrong when the file was written, or a \
             copy did not keep the time. The times decide which checkpoint is the newest; compare the order in mcr list"
        ));
    }
    let mixed = mixed(&listing, &layout).into_iter();
    let mut doubts: BTreeMap<_, _> = mixed.map(|(label, why)| (label, Doubt::of_step(why))).collect();
    // As in `mcr run`, a file of each rank that a guessed layout leaves out may be a part of the state.
    let left = if is_said { None } else { left_by_guess(&listing, &layout, dir) };
    let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let searched: Vec<PathBuf> = listing.through.iter().map(|(_, real)| real.clone()).chain([real]).collect();
    let linked = linked(&listing, &layout, dir);
    let not_of_step = not_of_step(&listing, &layout);
    let contents = Contents::of(&listing, &layout);
    let scan = sort(listing, &layout);

    let companions = companions_of(dir, &layout, &scan);
    let travels: BTreeSet<&Path> = companions.values().flatten().map(|companion| companion.path.as_path()).collect();
    let unplaced: Vec<&FilePath> = scan.unplaced.iter().filter(|path| !travels.contains(path.as_path())).collect();
    let mut left_out = LeftOut::default();
    if is_said {
        left_out.not_in_layout = unplaced.len() as u64;
        left_out.first_unnamed = unplaced.first().map(ToString::to_string);
    } else {
        // As in `mcr run`, these files do not change the exit status.
        let (temporary, unplaced): (Vec<&FilePath>, Vec<_>) =
            unplaced.iter().partition(|path| is_temporary(path.as_bytes()));
        let (logs, unplaced): (Vec<&FilePath>, Vec<_>) = unplaced.iter().partition(|path| layout.may_leave(path));
        if let (Some(first), false) = (logs.first(), quiet) {
            let logs = files(logs.len() as u64);
            note(format!(
                "{logs} with the name of a log, an older copy, a plot or an input not saved (first: {first})"
            ));
        }
        if let Some(first) = temporary.first() {
            note(format!(
                "{} with a temporary name not saved (first: {first}): the application renames such a file when the \
                 file is whole",
                files(temporary.len() as u64)
            ));
        }
        left_out.count = unplaced.len() as u64;
        let reason = "it belongs to no checkpoint";
        let unplaced = unplaced.iter().map(|path| NotSaved { path: path.to_string(), reason });
        left_out.paths.extend(unplaced.take(LEFT_OUT_MAX));
    }
    // If the user gave `--layout`, a link or a file that the layout does not name is not reported as left out.
    let is_missing = |path: &Path| {
        let path = FilePath::new(path.as_os_str().as_bytes()).ok();
        !is_said || path.is_none_or(|path| layout.place(&path).is_some())
    };
    // The files in a searched directory are saved, or are left out themselves.
    let is_searched = |link: &Path| {
        let end = dir.join(link).canonicalize();
        end.is_ok_and(|end| end.is_dir() && searched.iter().any(|searched| end.starts_with(searched)))
    };
    let links = scan.links.iter().filter(|link| !travels.contains(link.as_path()) && is_missing(link));
    let (aliases, links): (Vec<&PathBuf>, Vec<&PathBuf>) = links.partition(|link| is_searched(link));
    if let (Some(first), false) = (aliases.first(), quiet) {
        let links = counted(aliases.len() as u64, "symbolic link");
        note(format!(
            "{links} not saved (first: {}): the files in the directory to which it leads are found without it",
            name_of(first)
        ));
    }
    let reason = "it is a symbolic link that leads to no checkpoint";
    let links: Vec<NotSaved> = links.into_iter().map(|link| NotSaved { path: name_of(link), reason }).collect();
    let skipped: Vec<_> = scan.skipped.iter().filter(|s| s.hides_files || is_missing(&s.path)).collect();
    left_out.are_files = skipped.is_empty() && links.is_empty();
    left_out.count += (skipped.len() + links.len()) as u64 + scan.skipped_count - scan.skipped.len() as u64;
    // Unreadable directories and links are listed first, because many files below them may be missing.
    let named = skipped.iter().map(|s| NotSaved { path: name_of(&s.path), reason: s.reason });
    left_out.paths.splice(0..0, named.chain(links));
    left_out.paths.truncate(LEFT_OUT_MAX);

    for NotSaved { path, reason } in left_out.paths.iter().take(LISTED_MAX) {
        tell(format!("{path}: {reason}; left out"));
    }
    if left_out.count > LISTED_MAX as u64 {
        tell(format!("... and {} more left out", left_out.count - LISTED_MAX as u64));
    }
    if let (Some(first), true) = (unplaced.first(), is_said && !quiet) {
        note(format!("{} not named by --layout (first: {first})", files(left_out.not_in_layout)));
    }
    if let Some((label, why)) = scan.may_be_rotated() {
        doubts.entry(label).or_insert(Doubt::of_step(why));
    }
    let (checkpoints, order) = scan.in_order();
    if let Some(line) = order {
        note(line);
    }
    let not_whole = not_whole.or_else(|| fewer_files(dir, &checkpoints, newest.as_ref().map(|(newest, _)| newest)));
    if let (None, Some((label, why))) = (&not_whole, fewer_than_always(&checkpoints)) {
        doubts.entry(label).or_insert(Doubt::of_files(why));
    }
    for (label, why) in contents.lacking(&checkpoints) {
        doubts.entry(label).or_insert(Doubt::of_files(why));
    }
    for (label, _) in &checkpoints {
        if let Some(left) = left.as_ref().filter(|left| left.makes_doubtful(label)) {
            doubts.entry(label.clone()).or_insert_with(|| Doubt::of_files(why_left(left)));
        }
    }
    let (newest_age, has_ranks) = (newest.map(|(_, age)| age), layout.has_ranks());
    let not_whole = not_whole.into_iter().chain(without_links(linked)).collect();
    Ok(Found { checkpoints, companions, bytes, not_whole, doubts, newest_age, has_ranks, not_of_step, left_out })
}

/// The files that belong to no checkpoint of a guessed layout.
fn left_by_guess(listing: &Listing, layout: &Layout, dir: &Path) -> Option<Unplaced> {
    let mut listing = listing.clone();
    leave_out_pointers(&mut listing, dir, layout);
    leave_out_copies(&mut listing, dir, layout);
    layout.unplaced(&listing)
}

/// The reason for a doubt because of files that a guessed layout leaves out.
fn why_left(left: &Unplaced) -> String {
    format!(
        "the layout was guessed from the file names, and {} of {} files (first: {}) belong to no checkpoint of this \
         layout: it is uncertain whether the checkpoint has all files of its step. Give --layout",
        left.files, left.of, left.first
    )
}

/// The checkpoints that lack files of ranks, because these files are links to files elsewhere.
fn without_links(linked: Vec<Linked>) -> impl Iterator<Item = NotWhole> {
    linked.into_iter().filter(|linked| linked.is_missing).map(|Linked { checkpoint, rank, link, .. }| {
        let why = format!(
            "{rank} NOT SAVED: {} is a symbolic link to a file elsewhere, and only links to directories are followed; \
             let {rank} write a file, or copy the file here",
            name_of(&link)
        );
        NotWhole { checkpoint, why }
    })
}

/// The newest checkpoint, if this checkpoint has the same ranks as the previous checkpoint, but fewer files, or a
/// rank with less than half of the bytes. `newest` is the checkpoint with the newest file, if this file is younger
/// than [`YOUNG`].
fn fewer_files(dir: &Path, checkpoints: &[Labelled], newest: Option<&CheckpointId>) -> Option<NotWhole> {
    let [.., (before, files_before), (last, files)] = checkpoints else { return None };
    let ranks = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| *rank).collect::<BTreeSet<_>>();
    if newest != Some(last) || ranks(files) != ranks(files_before) {
        return None;
    }
    let bytes = |files: &[(FilePath, Rank)]| {
        let mut of_ranks: BTreeMap<Rank, u64> = BTreeMap::new();
        for (path, rank) in files {
            let length = std::fs::metadata(dir.join(path.as_path())).map_or(0, |about| about.len());
            *of_ranks.entry(*rank).or_default() += length;
        }
        of_ranks
    };
    let (now, then) = (bytes(files), bytes(files_before));
    let less = || now.iter().find(|(rank, bytes)| then.get(rank).is_some_and(|then| **bytes < then / 2));
    let what = match files.len() < files_before.len() {
        true => format!("it has {} and {before} has {}", self::files(files.len() as u64), files_before.len()),
        false => {
            let (rank, bytes) = less()?;
            format!("{rank} has {bytes} bytes in it and {} bytes in {before}", then.get(rank).copied().unwrap_or(0))
        }
    };
    let why = format!(
        "{what}, and its newest file is younger than {} s: it may still be written, or its writer was killed; save it \
         again later",
        YOUNG.as_secs()
    );
    Some(NotWhole { checkpoint: last.clone(), why })
}

/// The newest checkpoint, if it has fewer files than all checkpoints before, which all have one number of files and the
/// same ranks. The first checkpoint may have fewer files. Also returns the reason for a doubt.
fn fewer_than_always(checkpoints: &[Labelled]) -> Option<(CheckpointId, String)> {
    let (last, files) = checkpoints.last()?;
    let before = without_smaller_first(&checkpoints[..checkpoints.len() - 1], |(_, files)| files.len());
    let usual = before.first().map(|(_, files)| files.len())?;
    let ranks = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| *rank).collect::<BTreeSet<_>>();
    let is_usual = |(_, other): &Labelled| other.len() == usual && ranks(other) == ranks(files);
    (files.len() < usual && before.iter().all(is_usual)).then(|| {
        let why = format!(
            "it has {}, and each checkpoint before has {usual}: it is uncertain whether its writer wrote all files",
            self::files(files.len() as u64)
        );
        (last.clone(), why)
    })
}

/// Files that belong to no single rank, and that are logs or are in a directory without files of ranks. The application
/// writes such files at other times than its checkpoints: parameter files before the first step, and logs in each step.
fn not_of_step(listing: &Listing, layout: &Layout) -> BTreeSet<FilePath> {
    if !layout.has_ranks() {
        return BTreeSet::new();
    }
    let placed = || listing.files.iter().filter_map(|path| Some((path, layout.place(path)?)));
    let of_ranks: BTreeSet<_> = placed()
        .filter(|(_, at)| at.rank.is_some())
        .map(|(path, at)| (at.checkpoint, path.as_path().parent()))
        .collect();
    let is_of_step = |path: &FilePath, checkpoint: CheckpointId| {
        !may_be_left(path.as_bytes()) && of_ranks.contains(&(checkpoint, path.as_path().parent()))
    };
    let of_no_rank = placed().filter(|(_, at)| at.rank.is_none());
    of_no_rank.filter(|(path, at)| !is_of_step(path, at.checkpoint.clone())).map(|(path, _)| path.clone()).collect()
}

/// The checkpoint with the newest file, and the age of this file. The age is 0 if the file's time is in the future.
fn newest_file(listing: &Listing, layout: &Layout) -> Option<(CheckpointId, Duration)> {
    let placed = listing.files.iter().zip(&listing.modified).filter_map(|(path, at)| Some((layout.place(path)?, at)));
    let (newest, at) = placed.max_by_key(|(_, at)| **at)?;
    Some((newest.checkpoint, at.elapsed().unwrap_or_default()))
}

/// Lists a directory without the store.
fn listing_without(dir: &Path, store: Option<&Path>) -> anyhow::Result<Listing> {
    let mut listing = list(dir, &ScanLimits::default())?;
    if let Some(store) = store.and_then(|store| store.canonicalize().ok()) {
        match store.strip_prefix(dir) {
            Ok(below) if below.as_os_str().is_empty() => {
                bail!("{}: the store is this directory itself; give the store a directory of its own", name_of(dir))
            }
            Ok(below) => listing.leave_out(below),
            // The store may be in the target directory of a link.
            Err(_) => {
                for (link, real) in listing.through.clone() {
                    if let Ok(below) = store.strip_prefix(real) {
                        listing.leave_out(&link.join(below));
                    }
                }
            }
        }
    }
    Ok(listing)
}

/// The links, directories and pointer files that are saved with each checkpoint. A path that cannot be saved is
/// reported once for each reason.
fn companions_of(dir: &Path, layout: &Layout, scan: &Scan) -> BTreeMap<CheckpointId, Vec<Companion>> {
    let (mut beside, mut companions) = (Beside::default(), BTreeMap::new());
    let links: BTreeSet<PathBuf> = scan.links.iter().cloned().collect();
    let versions = Versions::default();
    let surroundings = Surroundings { timeline: &scan.timeline, links: &links, versions: &versions };
    let mut lost: BTreeMap<&str, (u64, String)> = BTreeMap::new();
    for (label, files) in &scan.checkpoints {
        let files: Vec<FilePath> = files.iter().map(|(path, _)| path.clone()).collect();
        let gathered = gather(dir, layout, &label.0, &files, Rank(0), surroundings, &mut beside);
        for one in gathered.lost {
            lost.entry(one.why).or_insert_with(|| (0, name_of(&one.first))).0 += one.count;
        }
        companions.insert(label.0.clone(), gathered.found);
    }
    for (why, (count, first)) in lost {
        tell(format!("{why}: {count} in all, first {first}"));
    }
    companions
}

fn files(count: u64) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

impl LeftOut {
    /// `112 files left out (first: a/b: ...)`. `None` if no file was left out.
    pub fn sentence(&self) -> Option<String> {
        let first = self.paths.first()?;
        let all = match self.are_files {
            true => files(self.count),
            false => format!("{} path{}", self.count, if self.count == 1 { "" } else { "s" }),
        };
        Some(format!("{all} left out (first: {}: {})", first.path, first.reason))
    }
}

/// The error if no checkpoint was found below the directory.
pub fn nothing_found(dir: &Path, layout: &LayoutArgs, left_out: &LeftOut) -> Advised {
    let first = left_out.first_unnamed.as_deref().unwrap_or("runA/rst.1.0");
    let (what, advice) = match (is_layout_said(layout), left_out.not_in_layout) {
        (true, n) if n > 0 => (
            format!("none of {} matches {:?}", files(n), layout.layout.join(", ")),
            format!("patterns are compared with the path below the directory, as in {first}"),
        ),
        _ => (
            match left_out.sentence() {
                Some(sentence) => format!("no checkpoint file was found; {sentence}"),
                None => "it holds no file".into(),
            },
            "give the directory that holds the checkpoints, or name the files with --layout".into(),
        ),
    };
    Advised::new(format!("{}: {what}", name_of(dir)), advice).at(dir)
}

/// Formats ranks as `rank 5` or `ranks 16-31, 40`.
pub fn rank_list(ranks: &[u32]) -> String {
    const SHOWN_MAX: usize = 8;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let show = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let shown = runs.iter().take(SHOWN_MAX).map(show).collect::<Vec<_>>().join(", ");
    let more = if runs.len() > SHOWN_MAX { ", ..." } else { "" };
    format!("rank{} {shown}{more}", if ranks.len() == 1 { "" } else { "s" })
}

/// Formats the ranks without files as `rank 5 has no file`.
pub fn missing_ranks(missing: &[u32], ranks: u32) -> String {
    format!("{} {} no file (of {ranks} ranks)", rank_list(missing), if missing.len() == 1 { "has" } else { "have" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_without_a_file_are_told_as_ranges() {
        assert_eq!(missing_ranks(&(16..32).collect::<Vec<_>>(), 32), "ranks 16-31 have no file (of 32 ranks)");
        assert_eq!(missing_ranks(&[5], 6), "rank 5 has no file (of 6 ranks)");
        assert_eq!(rank_list(&[0, 2, 3, 7]), "ranks 0, 2-3, 7");
        assert_eq!(rank_list(&(0..40).step_by(2).collect::<Vec<_>>()), "ranks 0, 2, 4, 6, 8, 10, 12, 14, ...");
    }
}
