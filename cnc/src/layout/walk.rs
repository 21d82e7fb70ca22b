//! Walks over a directory, and finds its files and their checkpoints. All limits are in [`ScanLimits`].
//!
//! A symbolic link to a directory outside of the root is followed if the directory has the same owner as the root,
//! because output directories often lie on another file system. All other links are only reported.

use super::of_job::{is_own_output, is_settings};
use super::{Layout, is_own_name};
use crate::timeline::Timeline;
use mcrengine::ids::{CheckpointId, FILE_PATH_MAX, FilePath, Rank, natural_cmp, shape_of};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A label with the order that users expect: `it_9` is before `it_10`. Labels that are numbers are ordered by their
/// value: `0.25` is before `0.5`, and `0.5` is before `1e3`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointLabel(pub CheckpointId);

impl Ord for CheckpointLabel {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.0.as_str(), other.0.as_str());
        let by_number = match (number(a), number(b)) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        by_number.then_with(|| natural_cmp(a.as_bytes(), b.as_bytes()))
    }
}
impl PartialOrd for CheckpointLabel {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The value of a label. `None` if the label is not a number.
fn number(label: &str) -> Option<f64> {
    let is_digits = label.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    label.parse().ok().filter(|number: &f64| is_digits && number.is_finite())
}

/// Limits of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Maximum depth of directories. Default: half of [`FILE_PATH_MAX`]. No path is deeper, because each component
    /// takes at least two bytes.
    pub depth: usize,
    /// Maximum number of files and directories. Default 4,194,304.
    pub entries: usize,
    /// Files, and directories with everything below, that are left out. Relative to the root of the walk. Default: none.
    pub leave_out: Vec<PathBuf>,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { depth: FILE_PATH_MAX / 2, entries: 4 << 20, leave_out: Vec::new() }
    }
}

/// A path that a walk left out, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The path.
    pub path: PathBuf,
    /// The reason.
    pub reason: &'static str,
    /// Whether the skipped path may contain files of a checkpoint. The value is true for a directory, and for a file
    /// whose path or length cannot be read.
    pub hides_files: bool,
}

/// The content of a directory tree.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Regular files, sorted by name.
    pub files: Vec<FilePath>,
    /// Modification time of each file, or the time of its last change, whichever is earlier. No application can set
    /// the time of the last change.
    pub modified: Vec<SystemTime>,
    /// The file whose modification time is the furthest after its last change, and the difference of the two times.
    /// Such a file shows that a clock is wrong. Differences below 2 s are ignored.
    pub ahead: Option<(FilePath, Duration)>,
    /// The first file that was modified before the year 2000, by its modification time. Either a clock was wrong when
    /// the file was written, or a copy did not keep the time.
    pub undated: Option<FilePath>,
    /// The time when each file was begun, if it is known. The time is the creation time of the file, or the
    /// modification time if the modification time is earlier. A copy may have such an earlier time. If the
    /// application wrote the file again under its name, the time is the modification time. If the file system has no
    /// creation times, the time is 60 s before the modification time.
    pub begun: Vec<SystemTime>,
    /// The creation time of each file, or the modification time if it is earlier. In contrast to `begun`, the time
    /// stays the same if the application writes the file again under its name. Empty if the times are not known.
    pub created: Vec<SystemTime>,
    /// Length of each file in bytes.
    pub bytes: Vec<u64>,
    /// Symbolic links that were not followed, sorted by name.
    pub links: Vec<PathBuf>,
    /// Symbolic links to directories that were followed, and the target directories.
    pub through: Vec<(PathBuf, PathBuf)>,
    /// Paths that are not readable, or that are neither files nor directories (sockets, devices). At most
    /// [`SKIPPED_MAX`] paths.
    pub skipped: Vec<Skipped>,
    /// Number of all skipped paths.
    pub skipped_count: u64,
}

impl Listing {
    /// Removes everything below a directory, for example a store that lies in the application's directory.
    pub fn leave_out(&mut self, below: &Path) {
        let kept: Vec<bool> = self.files.iter().map(|path| !path.as_path().starts_with(below)).collect();
        self.retain(&kept);
        self.links.retain(|path| !path.starts_with(below));
        let before = self.skipped.len();
        self.skipped.retain(|skipped| !skipped.path.starts_with(below));
        self.skipped_count -= (before - self.skipped.len()) as u64;
    }

    /// Removes the files for which `is_left_out` is true.
    pub fn leave_out_files(&mut self, is_left_out: impl Fn(&FilePath) -> bool) {
        let kept: Vec<bool> = self.files.iter().map(|path| !is_left_out(path)).collect();
        self.retain(&kept);
    }

    /// Removes the files that were not modified since the given time.
    pub fn only_since(&mut self, since: SystemTime) {
        let kept: Vec<bool> = self.modified.iter().map(|modified| *modified >= since).collect();
        self.retain(&kept);
    }

    /// Removes the files that have the given modification times.
    pub fn leave_out_unchanged(&mut self, before: &BTreeMap<FilePath, SystemTime>) {
        let is_unchanged = |(path, modified): (&FilePath, &SystemTime)| before.get(path) == Some(modified);
        let kept: Vec<bool> = self.files.iter().zip(&self.modified).map(|file| !is_unchanged(file)).collect();
        self.retain(&kept);
    }

    /// A listing of files with a name, and the times when the file was begun and ended, in milliseconds since 1970.
    #[cfg(test)]
    pub(super) fn of_times<'a>(files: impl Iterator<Item = (&'a str, u64, u64)>) -> Self {
        let at = |ms: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let mut listing = Self::default();
        for (name, begun_ms, ended_ms) in files {
            listing.files.push(FilePath::new(name.as_bytes()).expect("valid"));
            listing.begun.push(at(begun_ms));
            listing.modified.push(at(ended_ms));
        }
        listing
    }

    fn retain(&mut self, kept: &[bool]) {
        let mut keep = kept.iter();
        self.files.retain(|_| *keep.next().unwrap_or(&true));
        let mut keep = kept.iter();
        self.modified.retain(|_| *keep.next().unwrap_or(&true));
        let mut keep = kept.iter();
        self.begun.retain(|_| *keep.next().unwrap_or(&true));
        let mut keep = kept.iter();
        self.created.retain(|_| *keep.next().unwrap_or(&true));
        let mut keep = kept.iter();
        self.bytes.retain(|_| *keep.next().unwrap_or(&true));
    }
}

/// The checkpoints below a directory.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The checkpoints sorted by label. Each checkpoint has its files sorted by name. Files that belong to no single
    /// rank have rank 0 here.
    pub checkpoints: BTreeMap<CheckpointLabel, Vec<(FilePath, Rank)>>,
    /// Modification time of the newest file of each checkpoint.
    pub modified: BTreeMap<CheckpointLabel, SystemTime>,
    /// The time when the first file of each checkpoint was begun.
    pub begun: BTreeMap<CheckpointLabel, SystemTime>,
    /// Files that belong to no checkpoint.
    pub unplaced: Vec<FilePath>,
    /// Symbolic links that were not followed, see [`Listing::links`].
    pub links: Vec<PathBuf>,
    /// The times when the files of each checkpoint were written.
    pub timeline: Timeline,
    /// The skipped paths, see [`Listing::skipped`].
    pub skipped: Vec<Skipped>,
    /// Number of all skipped paths, see [`Listing::skipped_count`].
    pub skipped_count: u64,
}

/// Maximum number of entries in [`Listing::skipped`].
pub const SKIPPED_MAX: usize = 1000;

/// Minimum time without a write between two checkpoints that an application wrote one after the other. Copied files
/// follow one another without a pause.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Minimum difference of the modification times that shows the order of two checkpoints, if no pause is known. If
/// files were copied without their times, the times show the order of the copies, and differ by less than this
/// minimum.
const CONTRADICTION_MIN: Duration = Duration::from_secs(60);
/// Minimum time between two checkpoints of a code that counts from the beginning again, or uses a few names in turn.
const STEP_MIN: Duration = Duration::from_secs(1);

/// A checkpoint's label and its files, see [`Scan::checkpoints`].
pub type Labelled = (CheckpointId, Vec<(FilePath, Rank)>);

impl Scan {
    /// Returns the checkpoints, oldest first, and a message if this order is not the order of the names. The order is
    /// the order in which the application wrote the checkpoints. Checkpoints whose names differ only in their numbers
    /// are ordered by these numbers if the checkpoints were written without a pause. The files of such checkpoints
    /// may be copies, and have the time of the copy.
    pub fn in_order(self) -> (Vec<Labelled>, Option<String>) {
        let written = self.written();
        let time = |label: &CheckpointLabel| written.get(label).copied().unwrap_or(SystemTime::UNIX_EPOCH);
        let mut newest: Option<&CheckpointLabel> = None;
        let mut contradiction = None;
        for label in self.checkpoints.keys() {
            match newest {
                Some(before) if time(label) < time(before) => {
                    contradiction.get_or_insert_with(|| {
                        format!("{} was written after {}: the order is that of the files' times", before.0, label.0)
                    });
                }
                _ => newest = Some(label),
            }
        }
        let mut order: Vec<_> = self.checkpoints.into_iter().collect();
        order.sort_by_key(|(label, _)| time(label)); // stable: equal times keep the order of the names
        (order.into_iter().map(|(label, files)| (label.0, files)).collect(), contradiction)
    }

    /// The newest checkpoint in the order of [`Scan::in_order`] and a reason, if another checkpoint may be the newest.
    /// Some applications keep older states under higher numbers: they copy `restart.1` to `restart.2` before they write
    /// `restart.1` again. If the copies are quick, the times do not show whether all files are copies of numbered
    /// steps. A doubt needs at least three checkpoints that count from 0 or 1, with times in the opposite order.
    pub fn may_be_rotated(&self) -> Option<(CheckpointId, String)> {
        let mut spans = self.spans().into_values().filter(|spans| spans.len() > 2);
        let spans = spans.find(|spans| {
            let (first, last) = (last_number_of(spans[0].label), last_number_of(spans[spans.len() - 1].label));
            let are_reversed = spans.windows(2).all(|pair| pair[0].ended > pair[1].ended);
            let are_at_once = spans.windows(2).all(|pair| !has_pause(&pair[1], &pair[0]));
            first <= 1 && last - first < spans.len() as u64 && are_reversed && are_at_once
        })?;
        let (newest, oldest) = (&spans[spans.len() - 1].label.0, &spans[0].label.0);
        let why = format!(
            "the files of {oldest} were written after those of {newest}, within less than a second, as in a code that \
             copies its older states to higher numbers, or in copies of a directory: it is uncertain whether {newest} \
             or {oldest} is the newest checkpoint"
        );
        Some((newest.clone(), why))
    }

    /// The time when the application wrote each checkpoint. Checkpoints that may be copies in any order have the same
    /// time.
    fn written(&self) -> BTreeMap<CheckpointLabel, SystemTime> {
        self.spans().into_values().flat_map(order_of_shape).collect()
    }

    /// The times of the checkpoints whose names differ only in their numbers, in the order of the names.
    fn spans(&self) -> BTreeMap<Vec<u8>, Vec<Span<'_>>> {
        let mut shapes: BTreeMap<Vec<u8>, Vec<Span<'_>>> = BTreeMap::new();
        for label in self.checkpoints.keys() {
            let ended = self.modified.get(label).copied().unwrap_or(SystemTime::UNIX_EPOCH);
            let begun = self.begun.get(label).copied().unwrap_or(ended);
            shapes.entry(shape_of(label.0.as_str())).or_default().push(Span { label, begun, ended });
        }
        shapes
    }
}

/// The time in which the files of a checkpoint were written.
#[derive(Clone, Copy)]
struct Span<'a> {
    label: &'a CheckpointLabel,
    begun: SystemTime,
    ended: SystemTime,
}

/// The times that order checkpoints whose names differ only in their numbers. `spans` is in the order of the names.
///
/// A pause divides the checkpoints into bursts. All checkpoints of a burst get the time at which the burst ended. If
/// a checkpoint of the burst is older than a checkpoint with a smaller number, by [`CONTRADICTION_MIN`] or more, each
/// checkpoint of the burst keeps its own time.
fn order_of_shape(spans: Vec<Span<'_>>) -> Vec<(CheckpointLabel, SystemTime)> {
    let numbered: Vec<_> = spans.iter().map(|span| (last_number_of(span.label), span.ended)).collect();
    if begins_again(&numbered) {
        return spans.into_iter().map(|span| (span.label.clone(), span.ended)).collect();
    }
    let mut in_time = spans;
    in_time.sort_by_key(|span| span.ended);
    let mut times = Vec::with_capacity(in_time.len());
    for burst in in_time.chunk_by(|before, after| !has_pause(before, after)) {
        let mut by_name = burst.to_vec();
        by_name.sort_by_key(|span| span.label);
        let mut newest = SystemTime::UNIX_EPOCH;
        let contradicts = by_name.iter().any(|span| {
            newest = newest.max(span.ended);
            span.ended + CONTRADICTION_MIN <= newest
        });
        let end = burst.last().map_or(SystemTime::UNIX_EPOCH, |last| last.ended);
        times.extend(burst.iter().map(|span| (span.label.clone(), if contradicts { span.ended } else { end })));
    }
    times
}

fn has_pause(before: &Span<'_>, after: &Span<'_>) -> bool {
    before.ended + PAUSE_MIN <= after.begun
}

/// The last number in a name; 0 if the name has no number.
fn last_number_of(label: &CheckpointLabel) -> u64 {
    let digits = |part: &&str| !part.is_empty();
    let last = label.0.as_str().split(|c: char| !c.is_ascii_digit()).rfind(digits);
    last.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Whether an application counted to the highest number and then began again with the lowest number, with at least
/// [`STEP_MIN`] between two checkpoints, or used two numbers in turn. If there are three or more numbers, a number
/// must be missing between the newest checkpoint and the next number. Without a missing number, the files may be
/// copies that were made in another order. `numbered` has the numbers and times in the order of the numbers.
fn begins_again(numbered: &[(u64, SystemTime)]) -> bool {
    let is_later = |one: SystemTime, other: SystemTime| one + STEP_MIN <= other;
    let mut breaks = numbered.windows(2).filter(|pair| !is_later(pair[0].1, pair[1].1));
    let (Some([before, after]), None) = (breaks.next(), breaks.next()) else { return false };
    let wraps = numbered.last().zip(numbered.first()).is_some_and(|(last, first)| is_later(last.1, first.1));
    let step =
        numbered.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].0)).filter(|step| *step > 0).min().unwrap_or(1);
    wraps && (numbered.len() == 2 || after.0.saturating_sub(before.0) > step)
}

/// Why a directory could not be walked.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The directory itself cannot be read. Unreadable directories below this directory are [`Skipped`].
    #[error("{}: cannot be read", path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// There are more files and directories than [`ScanLimits::entries`].
    #[error("{}: more than {limit} files and directories below it; name a directory further down", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

/// Lists the files below `root`, sorted by name.
pub fn list(root: &Path, limits: &ScanLimits) -> Result<Listing, ScanError> {
    let (mut found_files, mut skipped, mut skipped_count) = (Vec::new(), Vec::new(), 0);
    let (mut links, mut through, mut ahead, mut undated) = (Vec::new(), Vec::new(), None, None);
    let mut see = |found: Found<'_>| match found {
        Found::File(path, metadata) => {
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let changed = changed_at(&metadata).unwrap_or(modified);
            let by = modified.duration_since(changed).unwrap_or_default();
            if by >= AHEAD_MIN && ahead.as_ref().is_none_or(|(_, most)| by > *most) {
                ahead = Some((path.clone(), by));
            }
            if modified < SystemTime::UNIX_EPOCH + SINCE_1970_MIN && undated.as_ref().is_none_or(|first| path < *first)
            {
                undated = Some(path.clone());
            }
            let modified = modified.min(changed);
            let begun = match metadata.created() {
                Ok(created) if is_rewritten(created, modified, metadata.len()) => modified,
                Ok(created) => created.min(modified),
                Err(_) => modified - CONTRADICTION_MIN,
            };
            let created = metadata.created().map_or(begun, |created| created.min(modified));
            found_files.push((path, modified, begun, created, metadata.len()));
        }
        Found::Directory(path) => {
            let name = root.join(path);
            let is_link = !path.as_os_str().is_empty() && name.is_symlink();
            through.extend(is_link.then(|| name.canonicalize().ok()).flatten().map(|real| (path.to_owned(), real)));
        }
        Found::Link(path) => links.push(path.to_owned()),
        Found::Skipped(path, reason) | Found::Unreadable(Unreadable { path, reason, .. }) => {
            skipped_count += 1;
            if skipped.len() < SKIPPED_MAX {
                let hides_files = reason != IS_NO_FILE;
                skipped.push(Skipped { path: path.to_owned(), reason, hides_files });
            }
        }
    };
    walk(root, Path::new(""), limits, &mut see)?;
    found_files.sort();
    links.sort();
    let mut listing = Listing { links, through, ahead, undated, skipped, skipped_count, ..Listing::default() };
    for (path, modified, begun, created, bytes) in found_files {
        listing.files.push(path);
        listing.modified.push(modified);
        listing.begun.push(begun);
        listing.created.push(created);
        listing.bytes.push(bytes);
    }
    Ok(listing)
}

/// Minimum difference of times that means that a clock is wrong. The clock of the node that writes a file may be a
/// little ahead.
const AHEAD_MIN: Duration = Duration::from_secs(2);

/// Time from 1970 to 2000. No file of a simulation is older.
const SINCE_1970_MIN: Duration = Duration::from_secs(946_684_800);

/// The time of a file's last change.
fn changed_at(metadata: &Metadata) -> Option<SystemTime> {
    let since_1970 = Duration::new(metadata.ctime().try_into().ok()?, metadata.ctime_nsec().try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since_1970)
}

/// A file counts as written again if at least [`STEP_MIN`] passed from its creation to its last change, and the file
/// has fewer bytes than this number for each second of this time. Copies are faster.
const COPY_BYTES_PER_S_MIN: u64 = 4_000_000;

/// Whether an application wrote a file again under its name, long after the file was created. The time when the
/// application began to write the present content is then not known.
fn is_rewritten(created: SystemTime, modified: SystemTime, bytes: u64) -> bool {
    let took = modified.duration_since(created).unwrap_or_default();
    took >= STEP_MIN && bytes < took.as_secs().saturating_mul(COPY_BYTES_PER_S_MIN)
}

/// Finds the checkpoints below `root`.
pub fn scan(root: &Path, layout: &Layout, limits: &ScanLimits) -> Result<Scan, ScanError> {
    Ok(sort(list(root, limits)?, layout))
}

/// Groups the files of a listing into checkpoints.
pub fn sort(listing: Listing, layout: &Layout) -> Scan {
    let Listing { links, skipped, skipped_count, .. } = listing;
    let mut scan = Scan { links, skipped, skipped_count, ..Scan::default() };
    let begun = listing.begun.into_iter().map(Some).chain(std::iter::repeat(None));
    for ((path, modified), begun) in listing.files.into_iter().zip(listing.modified).zip(begun) {
        match layout.place(&path) {
            Some(placed) => {
                let since_1970 = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                scan.timeline.add(&placed.checkpoint, i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX));
                let label = CheckpointLabel(placed.checkpoint);
                let newest = scan.modified.entry(label.clone()).or_insert(modified);
                *newest = modified.max(*newest);
                let begun = begun.unwrap_or(modified).min(modified);
                let first = scan.begun.entry(label.clone()).or_insert(begun);
                *first = begun.min(*first);
                scan.checkpoints.entry(label).or_default().push((path, placed.rank.unwrap_or(Rank(0))));
            }
            None => scan.unplaced.push(path),
        }
    }
    scan
}

pub(crate) const IS_NO_FILE: &str = "it is neither a file nor a directory";

/// A result of a walk.
pub(crate) enum Found<'a> {
    /// The path of a directory, reported before the content of the directory. The path is relative to the root, and
    /// empty for the root itself.
    Directory(&'a Path),
    /// A regular file, and its metadata from `lstat`.
    File(FilePath, Metadata),
    /// A symbolic link that is not followed.
    Link(&'a Path),
    /// An entry that is neither a file nor a directory nor a link, or whose path is too long or too deep. The text is
    /// the reason.
    Skipped(&'a Path, &'static str),
    /// A directory or a file that cannot be read.
    Unreadable(Unreadable<'a>),
}

/// A directory or a file that a walk cannot read.
pub(crate) struct Unreadable<'a> {
    /// The path, relative to the root.
    pub(crate) path: &'a Path,
    /// Whether the path is a file.
    pub(crate) is_file: bool,
    /// What cannot be read.
    pub(crate) reason: &'static str,
    /// The error of the operating system.
    pub(crate) error: io::Error,
}

/// Decides which links are followed.
pub(crate) struct Through<'a> {
    root: &'a Path,
    /// The real path and the owner of the root. Path and owner are read when the first link is found.
    real: Option<Option<(PathBuf, u32)>>,
    /// Directories to which links led, as device and inode.
    entered: BTreeSet<(u64, u64)>,
}

impl<'a> Through<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Self { root, real: None, entered: BTreeSet::new() }
    }

    /// Whether a link is followed. A followed link must lead to a directory that has the owner of the root, that is
    /// neither below nor above the root, and that no earlier link reached. A link that is a second name of another
    /// link is not followed. Example: `latest -> DD0018`, where `DD0018` is a link to a directory.
    pub(crate) fn is_open(&mut self, link: &Path) -> bool {
        let real =
            self.real.get_or_insert_with(|| Some((self.root.canonicalize().ok()?, self.root.metadata().ok()?.uid())));
        let Some((root, owner)) = real else { return false };
        let name = self.root.join(link);
        let Ok(stat) = name.metadata() else { return false }; // the link is dangling
        if !stat.is_dir() || stat.uid() != *owner {
            return false;
        }
        let Ok(end) = name.canonicalize() else { return false };
        let is_elsewhere = !end.starts_with(&*root) && !root.starts_with(&end);
        is_elsewhere && !is_second_name(self.root, root, link, &end) && self.entered.insert((stat.dev(), stat.ino()))
    }
}

/// Whether a link to the directory `end` is only a second name, because the walk finds `end` elsewhere. There are
/// three cases. The link leads to another entry below the root. Or the link leads to a directory behind the link
/// through which the walk came here. Or another entry in the link's directory has the name of `end` and leads to
/// `end`.
fn is_second_name(root: &Path, real_root: &Path, link: &Path, end: &Path) -> bool {
    let (name, Ok(text)) = (root.join(link), root.join(link).read_link()) else { return false };
    let Some(above) = name.parent().and_then(|above| above.canonicalize().ok()) else { return false };
    let first = text.components().fold(above.clone(), |mut at, component| {
        match component {
            Component::ParentDir => drop(at.pop()),
            other => at.push(other), // an absolute path replaces the path
        }
        at
    });
    let is_below_root = || first.starts_with(real_root) || text.starts_with(root);
    let led_here = || link.ancestors().skip(1).filter(|above| root.join(above).is_symlink());
    let is_behind =
        || led_here().any(|above| root.join(above).canonicalize().is_ok_and(|behind| end.starts_with(behind)));
    let twin = end.file_name().filter(|name| Some(*name) != link.file_name()).map(|name| above.join(name));
    is_below_root() || is_behind() || twin.is_some_and(|twin| twin.canonicalize().is_ok_and(|other| other == *end))
}

/// Walks over `root/below`, without the user's settings and without the output files of this process. Reports each
/// directory before the content of the directory is read. So the caller can watch the directory before the content is
/// read, and misses no change.
pub(crate) fn walk(
    root: &Path,
    below: &Path,
    limits: &ScanLimits,
    see: &mut dyn FnMut(Found<'_>),
) -> Result<(), ScanError> {
    let mut entries = 0usize;
    let mut open = vec![below.to_owned()];
    let mut through = Through::new(root);
    while let Some(directory) = open.pop() {
        see(Found::Directory(&directory));
        let absolute = root.join(&directory);
        let listed = match std::fs::read_dir(&absolute) {
            Ok(listed) => listed,
            Err(source) if directory == below => {
                return Err(ScanError::Unreadable { path: absolute.components().collect(), source });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // the directory was removed
            Err(error) => {
                let reason = "the directory cannot be read";
                see(Found::Unreadable(Unreadable { path: &directory, is_file: false, reason, error }));
                continue;
            }
        };
        for entry in listed {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let reason = "the directory cannot be read to its end";
                    see(Found::Unreadable(Unreadable { path: &directory, is_file: false, reason, error }));
                    break;
                }
            };
            entries += 1;
            if entries > limits.entries {
                return Err(ScanError::TooMany { path: root.to_owned(), limit: limits.entries });
            }
            let path = directory.join(entry.file_name());
            let bytes = path.as_os_str().as_bytes();
            if is_own_name(entry.file_name().as_bytes()) || limits.leave_out.contains(&path) {
                continue;
            }
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // the entry was removed
                Err(error) => {
                    let reason = "its type cannot be read";
                    see(Found::Unreadable(Unreadable { path: &path, is_file: true, reason, error }));
                    continue;
                }
            };
            if is_settings(bytes) && !kind.is_dir() {
                continue;
            }
            if kind.is_dir() {
                if path.components().count() > limits.depth || bytes.len() >= FILE_PATH_MAX {
                    see(Found::Skipped(&path, "the directory is too deep"));
                } else {
                    open.push(path);
                }
            } else if kind.is_file() {
                match (FilePath::new(bytes), entry.metadata()) {
                    (Ok(_), Ok(metadata)) if is_own_output(&metadata) => {}
                    (Ok(path), Ok(metadata)) => see(Found::File(path, metadata)),
                    (Err(_), _) => see(Found::Skipped(&path, "the path is too long")),
                    (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
                    (_, Err(error)) => {
                        let reason = "its length cannot be read";
                        see(Found::Unreadable(Unreadable { path: &path, is_file: true, reason, error }));
                    }
                }
            } else if kind.is_symlink() {
                let is_short = path.components().count() <= limits.depth && bytes.len() < FILE_PATH_MAX;
                match is_short && through.is_open(&path) {
                    true => open.push(path),
                    false => see(Found::Link(&path)),
                }
            } else {
                see(Found::Skipped(&path, IS_NO_FILE));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_files_and_says_what_it_skipped() {
        let root = tempfile::tempdir().expect("a directory");
        for file in ["t9/r0", "t9/r1", "t10/r0", "t10/.mcr-lock", ".mcr-aside-1/x", ".mcrc", "readme"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            std::fs::write(path, file).expect("written");
        }
        std::os::unix::fs::symlink("/", root.path().join("t9/link")).expect("linked");
        let layout = Layout::from_patterns(&["{checkpoint}/r{rank}"], 0).expect("valid");
        let scan = scan(root.path(), &layout, &ScanLimits::default()).expect("scanned");
        let labels: Vec<_> = scan.checkpoints.keys().map(|label| label.0.as_str()).collect();
        assert_eq!(labels, ["t9", "t10"], "by number, not by letter");
        let t9 = &scan.checkpoints[&CheckpointLabel("t9".parse().expect("valid"))];
        assert_eq!(
            t9.iter().map(|(path, rank)| (path.to_string(), rank.0)).collect::<Vec<_>>(),
            [("t9/r0".to_owned(), 0), ("t9/r1".to_owned(), 1)]
        );
        assert_eq!(scan.unplaced.iter().map(ToString::to_string).collect::<Vec<_>>(), [".mcrc", "readme"]);
        assert_eq!((scan.links, scan.skipped_count), (vec![PathBuf::from("t9/link")], 0));
    }

    #[test]
    fn a_store_within_the_directory_is_left_out_with_all_that_is_in_it() {
        let root = tempfile::tempdir().expect("a directory");
        for file in ["a", "store/job/x/group-0000.mcr", "store/job/runs", "storehouse"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            std::fs::write(path, file).expect("written");
        }
        std::os::unix::fs::symlink("/", root.path().join("store/link")).expect("linked");
        let mut listing = list(root.path(), &ScanLimits::default()).expect("listed");
        listing.leave_out(Path::new("store"));
        assert_eq!(listing.files.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "storehouse"]);
        assert_eq!((listing.bytes, listing.modified.len(), listing.skipped_count), (vec![1, 10], 2, 0));
    }

    #[test]
    fn quick_copies_under_higher_numbers_make_the_highest_number_doubtful() {
        let layout = Layout::from_patterns(&["restart.{checkpoint}"], 0).expect("valid");
        let doubtful = |files: &[(&str, u64)]| {
            let at = |ms: u64| 1_700_000_000_000 + ms;
            let scan = sort(Listing::of_times(files.iter().map(|(name, ms)| (*name, at(*ms), at(*ms)))), &layout);
            scan.may_be_rotated().map(|(label, _)| label.to_string())
        };
        let [one, two, three] = ["restart.1", "restart.2", "restart.3"];
        assert_eq!(doubtful(&[(one, 6), (two, 2), (three, 0)]).as_deref(), Some("3"));
        assert_eq!(doubtful(&[(one, 0), (two, 2), (three, 6)]), None, "copies in the order of the steps");
        assert_eq!(doubtful(&[(one, 2), (two, 6), (three, 0)]), None, "copies in any order");
        assert_eq!(doubtful(&[(one, 900), (two, 2), (three, 0)]), None, "the pause shows the order");
        assert_eq!(doubtful(&[(one, 6), (two, 2)]), None);
        assert_eq!(doubtful(&[("restart.11", 6), ("restart.12", 2), ("restart.13", 0)]), None);
    }

    fn order_of(files: &[(&str, u64)]) -> (Vec<String>, Option<String>) {
        let root = tempfile::tempdir().expect("a directory");
        for (name, seconds) in files {
            let file = std::fs::File::create(root.path().join(name)).expect("made");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds)).expect("set");
        }
        let layout = Layout::from_patterns(&["{checkpoint}"], 0).expect("valid");
        let (order, contradiction) = scan(root.path(), &layout, &ScanLimits::default()).expect("scanned").in_order();
        (order.into_iter().map(|(label, _)| label.to_string()).collect(), contradiction)
    }

    #[test]
    fn a_second_name_of_a_directory_is_no_second_checkpoint() {
        use std::os::unix::fs::symlink;
        let (root, scratch) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        for file in ["DD1/data", "out/DD2/data"] {
            let path = scratch.path().join(file);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            std::fs::write(path, file).expect("written");
        }
        let links = [
            ("DD1", scratch.path().join("DD1")),
            ("latest", "DD1".into()),
            ("again", scratch.path().join("DD1")),
            ("absolute", root.path().join("DD1")),
            ("out", scratch.path().join("out")),
            ("out/latest", "DD2".into()),
            ("out/whole", scratch.path().join("out")),
        ];
        for (link, to) in links {
            symlink(to, root.path().join(link)).expect("linked");
        }
        let listing = list(root.path(), &ScanLimits::default()).expect("listed");
        assert_eq!(listing.files.iter().map(ToString::to_string).collect::<Vec<_>>(), ["DD1/data", "out/DD2/data"]);
        assert_eq!(listing.through.iter().map(|(link, _)| link).collect::<BTreeSet<_>>().len(), 2);
        assert_eq!(listing.links, ["absolute", "again", "latest", "out/latest", "out/whole"].map(PathBuf::from));
    }

    #[test]
    fn labels_that_are_numbers_are_ordered_by_their_value() {
        let (order, contradiction) =
            order_of(&[("0.5", 0), ("1", 0), ("0.25", 0), ("1.5e-05", 0), ("10", 0), ("x", 0)]);
        assert_eq!(
            (&order[..], contradiction),
            (&["1.5e-05", "0.25", "0.5", "1", "10", "x"].map(String::from)[..], None)
        );
    }

    #[test]
    fn names_used_in_turn_are_ordered_by_when_they_were_written_and_copies_by_their_names() {
        let (order, contradiction) = order_of(&[("restart.1", 9000), ("restart.2", 8000)]);
        assert_eq!(order, ["restart.2", "restart.1"], "the code was writing them in turn");
        assert!(contradiction.is_some_and(|line| line.contains("restart.1 was written after restart.2")));
        let (order, _) = order_of(&[("step_9", 9005), ("step_10", 9003), ("step_11", 9001)]);
        assert_eq!(order, ["step_11", "step_10", "step_9"], "the code counts down");
        let (order, _) = order_of(&[("step_3", 9000), ("step_4", 9000), ("step_2", 9001), ("step_1", 9002)]);
        assert_eq!(order, ["step_3", "step_4", "step_2", "step_1"], "copies, and then a code that counts down");
        let (order, _) = order_of(&[("step_998", 9000), ("step_999", 9003), ("step_1", 9006), ("step_2", 9009)]);
        assert_eq!(order, ["step_998", "step_999", "step_1", "step_2"], "the code began to count again");
        let (order, _) = order_of(&[("chk_1", 9000), ("chk_0", 9005)]);
        assert_eq!(order, ["chk_1", "chk_0"], "two numbers in turn");
        let (order, _) = order_of(&[("chk_1", 9000), ("chk_0", 9000)]);
        assert_eq!(order, ["chk_0", "chk_1"], "copies");
        let (order, _) = order_of(&[("01-JAN", 9000), ("01-FEB", 9002), ("01-MAR", 9004), ("01-APR", 9006)]);
        assert_eq!(order, ["01-JAN", "01-FEB", "01-MAR", "01-APR"], "the letters differ");
        let (order, _) = order_of(&[("state_prev", 1000), ("state", 2000)]);
        assert_eq!(order, ["state_prev", "state"], "the newest is the last; the names have no influence");
    }

    #[test]
    fn copies_without_a_pause_between_them_are_ordered_by_their_names() {
        let order_of = |files: &[(&str, u64, u64)]| {
            let layout = Layout::from_patterns(&["{checkpoint}"], 0).expect("valid");
            let (order, _) = sort(Listing::of_times(files.iter().copied()), &layout).in_order();
            order.into_iter().map(|(label, _)| label.to_string()).collect::<Vec<_>>()
        };
        let copies = [("step_10", 9000, 9300), ("step_11", 9301, 9900), ("step_9", 9901, 9950)];
        assert_eq!(order_of(&copies), ["step_9", "step_10", "step_11"]);
        let written = [("step_10", 9000, 9300), ("step_11", 9400, 9900), ("step_9", 9960, 9990)];
        assert_eq!(order_of(&written), ["step_10", "step_11", "step_9"]);
    }

    #[test]
    fn a_walk_has_bounds() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(root.path().join("a/b/c")).expect("made");
        std::fs::write(root.path().join("a/b/c/x"), "x").expect("written");
        let listing =
            list(root.path(), &ScanLimits { depth: 2, entries: 100, ..ScanLimits::default() }).expect("listed");
        assert_eq!((listing.files.len(), listing.skipped[0].reason), (0, "the directory is too deep"));
        let error = list(root.path(), &ScanLimits { depth: 9, entries: 3, ..ScanLimits::default() })
            .expect_err("four entries")
            .to_string();
        assert!(error.contains("more than 3"), "{error}");
        let error = list(&root.path().join("none"), &ScanLimits::default()).expect_err("no such directory");
        assert!(matches!(error, ScanError::Unreadable { .. }), "{error}");
    }
}
