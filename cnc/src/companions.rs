//! Finds the companions of a checkpoint. Companions are symbolic links, directories and pointer files that are saved
//! with the checkpoint's files.
//!
//! | companion | saved | restored as |
//! |---|---|---|
//! | symbolic link within the checkpoint's own directory | always | the same link |
//! | symbolic link elsewhere, such as `latest -> DD0018` | if it leads to the checkpoint | the same link |
//! | directory | if it is empty, or has another mode than its parent | a directory with the same mode |
//! | pointer file, such as `rpointer.ocn` | with the newest checkpoint at its time | the same file |
//! | file with the name of a pointer file in the checkpoint's own directory | always | the same file |
//! | file that the code needs for all checkpoints, such as PLUTO's `dbl.out` | always | the same file |
//!
//! If a symbolic link elsewhere leads to a file, the link is saved with the rank of this file. A pointer file is
//! saved with the checkpoint that was the newest when the pointer file was written. The pointer files of a directory
//! are saved with the lowest rank that has files of the checkpoint in or below this directory. So each rank directory
//! may have a pointer file, and each node with a local disk.
//!
//! The *own directory* of a checkpoint is the directory whose name is the checkpoint's label: `DD0018` for the file
//! `DD0018/DD0018.cpu0003`. A link to another directory belongs to a checkpoint if all files in this directory belong
//! to the checkpoint. Companions are small, so their bytes are read once and kept until the checkpoint is committed.
//! Companions do not identify a checkpoint: the same files with another link are the same checkpoint
//! ([`FileKind::is_companion`]).

use crate::capture::{Image, whole};
use crate::fingerprint::Fingerprint;
use crate::layout::of_job::{is_own_output, is_settings};
use crate::layout::pointers::is_log_name;
pub use crate::layout::pointers::{POINTER_BYTES_MAX, is_pointer_name};
use crate::layout::walk::{Found, Unreadable, walk};
use crate::layout::{Layout, Listing, ScanLimits, is_own_name};
use crate::timeline::Timeline;
use mcrengine::header::{FileHeader, FileKind, LINK_BYTES_MAX};
use mcrengine::ids::{CheckpointId, Digest, FilePath, Rank, shape_of};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// One link, directory or pointer file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Path below the watched directory.
    pub path: FilePath,
    /// The rank with which the companion is saved.
    pub rank: Rank,
    /// Kind of the companion.
    pub kind: FileKind,
    /// Fingerprint at the time when the companion was read.
    fingerprint: Fingerprint,
    /// Permission bits.
    mode: u32,
    /// The target of a link, or the bytes of a pointer file. A pointer file names the newest checkpoint, as
    /// `rpointer.ocn` does.
    content: Arc<[u8]>,
}

/// The companions of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions {
    /// The companions, sorted by path.
    pub found: Vec<Companion>,
    /// Entries of the directory that cannot be saved, by reason.
    pub lost: Vec<Lost>,
}

/// Entries of a directory that belong to a checkpoint but cannot be saved with it, all for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The first of the paths.
    pub first: PathBuf,
    /// Number of the paths.
    pub count: u64,
    /// The reason.
    pub why: &'static str,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = mcrengine::ids::FilePath::new(self.first.as_os_str().as_bytes());
        let first = first.map_or_else(|_| "?".to_owned(), |path| path.to_string());
        write!(f, "{} (first: {first}", self.why)?;
        if self.count > 1 { write!(f, "; {} of them)", self.count) } else { write!(f, ")") }
    }
}

/// Maximum number of companions of one checkpoint.
pub const COMPANIONS_MAX: usize = 16 << 10;
/// Maximum number of bytes of all companions of one checkpoint.
pub const COMPANIONS_BYTES_MAX: usize = 1 << 20;
/// Maximum length in bytes of a file that can be a pointer file without a usual name.
const UNNAMED_POINTER_BYTES_MAX: u64 = 4096;
/// In a directory with at most this number of entries, the content of files is examined. In larger directories,
/// pointer files are recognized only by their names.
const READ_ENTRIES_MAX: usize = 4096;
/// Maximum number of pointer files and links whose earlier contents are remembered.
const VERSIONED_MAX: usize = 32;
/// Maximum number of remembered contents of one pointer file or link.
const VERSIONS_MAX: usize = 16;
/// Maximum length in bytes of a remembered content.
const VERSION_BYTES_MAX: usize = 16 << 10;
/// Maximum number of words at the beginning, and at the end of a pointer file, that are looked up as files.
const LOOKED_UP_MAX: usize = 4;
/// Maximum number of words examined in a pointer file.
const WORDS_MAX: usize = 256;
/// Maximum number of examined entries of a directory that a pointer file names.
const FIRST_ENTRIES_MAX: usize = 64;
/// Maximum number of entries of a directory that is examined for files of other checkpoints.
const ENTRIES_OF_ONE_MAX: usize = 64 << 10;
/// Maximum number of directory entries that are read to find out whether a lower rank has files beside a rank.
const ENTRIES_BESIDE_MAX: usize = 4096;
/// Maximum number of files of a rank whose directories are read first.
const FIRST_MAX: usize = 64;
/// Maximum length of a chain of links, each of which leads to the next link.
const HOPS_MAX: usize = 16;
/// The usual modes of directories.
const USUAL_MODES: [u32; 2] = [0o755, 0o775];

const IS_SPECIAL: &str = "a socket, pipe or device is not saved";
const LEADS_OUT: &str = "a link leads out of the directory; the link is saved, and its target is not";
const TOO_LONG: &str = "a file that the code needs for a restart has more than 1 MiB; the file is not saved";
const TOO_MANY: &str = "a checkpoint has more than 16384 links and directories, or they have more than 1 MiB";

/// Links and possible pointer files in directories that several checkpoints share. Each directory is read only once.
#[derive(Debug, Default)]
pub struct Beside {
    directories: BTreeMap<PathBuf, Vec<Candidate>>,
    /// The lowest rank with files of a checkpoint in or below a directory.
    lowest: BTreeMap<(CheckpointId, PathBuf), Option<Rank>>,
}

impl Beside {
    /// The lowest rank with files of the checkpoint in or below a directory, see [`lowest_rank`].
    fn lowest_rank(&mut self, of: &Gathering<'_>, dir: &Path) -> Option<Rank> {
        let lowest = self.lowest.entry((of.label.clone(), dir.to_owned()));
        *lowest.or_insert_with(|| {
            let first = of.files.iter().filter_map(|path| path.as_path().parent()).take(FIRST_MAX).collect();
            lowest_rank(of.root, of.layout, Some(of.label), dir, &first)
        })
    }
}

/// A link or a file that may be a companion of a checkpoint in the same directory.
#[derive(Debug)]
enum Candidate {
    Link {
        path: PathBuf,
        stat: Metadata,
        text: PathBuf,
        end: Option<PathBuf>,
    },
    Pointer {
        path: FilePath,
        stat: Metadata,
        content: Vec<u8>,
        words: Vec<String>,
        is_named: bool,
    },
    /// A file that is saved with each checkpoint, see [`Layout::attends`].
    Attendant {
        path: FilePath,
        stat: Metadata,
        content: Vec<u8>,
    },
    /// Such a file that is too long.
    Long(FilePath),
}

/// The properties of the whole watched directory that the search for companions needs.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The times at which the checkpoints began.
    pub timeline: &'a Timeline,
    /// All symbolic links that were found in the directory.
    pub links: &'a BTreeSet<PathBuf>,
    /// Earlier contents of pointer files and links.
    pub versions: &'a Versions,
}

/// Earlier contents of pointer files, and earlier targets of links. A checkpoint is saved some time after it was
/// written, and the application may have written the pointers of the next checkpoint since.
#[derive(Debug, Default)]
pub struct Versions(BTreeMap<PathBuf, VecDeque<Candidate>>);

impl Versions {
    /// Reads a pointer file with a usual name, or a link, and remembers what was read.
    pub fn note(&mut self, root: &Path, layout: &Layout, path: &Path) {
        let is_link = root.join(path).is_symlink();
        let candidate = match is_link {
            true => link(root, path),
            false => pointer(root, layout, path),
        };
        let is_short = match &candidate {
            Some(Candidate::Link { .. }) => true,
            Some(Candidate::Pointer { content, is_named: true, .. }) => content.len() <= VERSION_BYTES_MAX,
            _ => false,
        };
        let Some(candidate) = candidate.filter(|_| is_short) else { return };
        if !self.0.contains_key(path) && self.0.len() >= VERSIONED_MAX {
            return;
        }
        let versions = self.0.entry(path.to_owned()).or_default();
        if versions.len() >= VERSIONS_MAX {
            versions.pop_front();
        }
        versions.push_back(candidate);
    }

    /// The contents of all paths in a directory. For each path, the oldest content is first.
    fn of_directory<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Candidate> {
        self.0.iter().filter(move |(path, _)| path.parent() == Some(dir)).flat_map(|(_, versions)| versions)
    }
}

/// Finds the companions of one checkpoint in the directory. `files` are the files of `rank`. For rank 0, finds all
/// companions. For any other rank, finds only links to files of this rank, directories with an unusual mode, and the
/// pointer files in directories that have no files of a lower rank. If `files` are the files of all ranks, `rank` is 0.
pub fn gather(
    root: &Path,
    layout: &Layout,
    label: &CheckpointId,
    files: &[FilePath],
    rank: Rank,
    surroundings: Surroundings<'_>,
    beside: &mut Beside,
) -> Companions {
    let mut gathering = Gathering::new(root, layout, label, files, rank);
    gathering.directories_above();
    if rank == Rank(0) {
        for own in gathering.own.clone() {
            gathering.within(&own);
        }
    }
    gathering.beside(surroundings, beside);
    gathering.links_elsewhere(surroundings.links);
    gathering.finish()
}

struct Gathering<'a> {
    root: &'a Path,
    layout: &'a Layout,
    label: &'a CheckpointId,
    rank: Rank,
    files: BTreeSet<&'a FilePath>,
    /// The checkpoint's own directories. The empty path is the root. Empty for all ranks other than rank 0.
    own: BTreeSet<PathBuf>,
    /// The checkpoint's own directories that have files of this rank.
    own_of_rank: BTreeSet<PathBuf>,
    /// The lowest rank with files in or below each directory, among `files`. Computed when it is first needed.
    lowest: OnceCell<BTreeMap<PathBuf, Rank>>,
    /// All directories above the checkpoint's files, up to the root.
    above: BTreeSet<PathBuf>,
    directories: BTreeMap<PathBuf, Metadata>,
    /// Directories that are not empty.
    filled: BTreeSet<PathBuf>,
    found: BTreeMap<FilePath, Companion>,
    bytes: usize,
    lost: BTreeMap<&'static str, Lost>,
}

impl<'a> Gathering<'a> {
    fn new(root: &'a Path, layout: &'a Layout, label: &'a CheckpointId, files: &'a [FilePath], rank: Rank) -> Self {
        Self {
            root,
            layout,
            label,
            rank,
            files: files.iter().collect(),
            own: BTreeSet::new(),
            own_of_rank: BTreeSet::new(),
            lowest: OnceCell::new(),
            above: BTreeSet::new(),
            directories: BTreeMap::new(),
            filled: BTreeSet::new(),
            found: BTreeMap::new(),
            bytes: 0,
            lost: BTreeMap::new(),
        }
    }

    /// Finds the directories above the files. Also finds the checkpoint's own directories among these directories.
    fn directories_above(&mut self) {
        let rank = self.rank;
        for path in &self.files {
            self.own_of_rank.extend(self.layout.own_directory(path));
            self.above.extend(path.as_path().ancestors().skip(1).map(Path::to_owned));
        }
        // If own directories are nested, keep only the outermost directory.
        let own = self.own_of_rank.clone();
        self.own_of_rank.retain(|dir| !dir.ancestors().skip(1).any(|above| own.contains(above)));
        if rank == Rank(0) {
            self.own = self.own_of_rank.clone();
        }
        for dir in self.above.iter().filter(|dir| !dir.as_os_str().is_empty()) {
            // Links are followed here, because directories behind links may be part of the checkpoint.
            if let Ok(stat) = std::fs::metadata(self.root.join(dir)) {
                let is_unusual = !USUAL_MODES.contains(&(stat.mode() & 0o7777));
                if stat.is_dir() && (rank == Rank(0) || is_unusual) {
                    self.directories.insert(dir.clone(), stat);
                }
                self.filled.insert(dir.clone());
            }
        }
    }

    /// Takes all companions from the checkpoint's own directory.
    fn within(&mut self, own: &Path) {
        let root = self.root;
        let mut seen = |found: Found<'_>| match found {
            Found::Directory(path) => {
                self.fill_above(path);
                if let Ok(stat) = std::fs::metadata(root.join(path)) {
                    self.directories.insert(path.to_owned(), stat);
                }
            }
            Found::File(path, _) => self.fill_above(path.as_path()),
            Found::Link(path) => {
                self.fill_above(path);
                self.link_within(path);
            }
            Found::Skipped(path, why) | Found::Unreadable(Unreadable { path, reason: why, .. }) => {
                self.fill_above(path);
                self.lose(path, if why == crate::layout::walk::IS_NO_FILE { IS_SPECIAL } else { why });
            }
        };
        // An error is ignored, because a removed directory has no companions.
        let _ = walk(root, own, &ScanLimits::default(), &mut seen);
    }

    fn fill_above(&mut self, path: &Path) {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.filled.insert(parent.to_owned());
        }
    }

    /// Takes links and pointer files from the directories that are above the files. In an own directory, only files
    /// with the names of pointer files are taken, because all links there were taken before. If the root is the own
    /// directory, the layout has only one checkpoint, and the files in the root need not belong to it.
    fn beside(&mut self, surroundings: Surroundings<'_>, beside: &mut Beside) {
        let Surroundings { timeline, versions, .. } = surroundings;
        let taken: Vec<PathBuf> = self.above.iter().filter(|dir| self.takes_beside(dir, beside)).cloned().collect();
        for dir in taken {
            let is_inside = dir.ancestors().any(|dir| self.own_of_rank.contains(dir));
            let is_outside = dir.ancestors().all(|dir| dir.as_os_str().is_empty() || !self.own_of_rank.contains(dir));
            let earlier: Vec<&Candidate> = versions.of_directory(&dir).collect();
            let now =
                beside.directories.entry(dir.clone()).or_insert_with_key(|dir| candidates(self.root, self.layout, dir));
            // For a pointer file whose content names no checkpoint, only the time says to which checkpoint it belongs.
            // The first content is taken that was written after the files of the checkpoint. If there is none, the last
            // content is taken. The value says whether the taken content was written after the files.
            let mut by_time: BTreeMap<&FilePath, bool> = BTreeMap::new();
            let oldest_ns = OnceCell::new();
            for candidate in earlier.into_iter().chain(&*now) {
                match candidate {
                    Candidate::Pointer { is_named: true, .. } if is_inside => {}
                    _ if !is_outside => continue,
                    _ => {}
                }
                match candidate {
                    Candidate::Link { path, stat, text, end } => {
                        // Without a lower rank in this directory, a link to the own directory is saved here, too.
                        let leads_here = |end: &PathBuf| self.is_ours(end) || self.leads_to_own(end);
                        if end.as_ref().is_some_and(leads_here) {
                            self.take_link(path, stat, text);
                        }
                    }
                    Candidate::Pointer { path, stat, content, words, is_named } => {
                        let names_it = match is_inside && *is_named {
                            true => Some(false),
                            false => self.is_pointer_here(path, stat, words, *is_named, timeline),
                        };
                        let Some(names_it) = names_it else { continue };
                        if !names_it && by_time.get(path) == Some(&true) {
                            continue;
                        }
                        if !names_it {
                            by_time.insert(
                                path,
                                Some(Fingerprint::of(stat).written_ns()) >= *oldest_ns.get_or_init(|| self.oldest_ns()),
                            );
                        }
                        self.take(path.as_path(), FileKind::Pointer, stat, content);
                    }
                    Candidate::Attendant { path, stat, content } => {
                        self.take(path.as_path(), FileKind::Pointer, stat, content);
                    }
                    Candidate::Long(path) => self.lose(path.as_path(), TOO_LONG),
                }
            }
        }
    }

    /// Whether the pointer files in this directory are saved with the files of this rank, or of these ranks.
    fn takes_beside(&self, dir: &Path, beside: &mut Beside) -> bool {
        let (has_rank, is_rank_0) = (self.lowest().contains_key(dir), self.rank == Rank(0));
        if is_rank_0 && (has_rank || !self.layout.has_ranks()) {
            return true;
        }
        let lowest = beside.lowest_rank(self, dir);
        // The files of rank 0 in this directory may belong to no single rank.
        lowest.is_none_or(|lowest| if is_rank_0 { lowest == Rank(0) } else { lowest >= self.rank })
    }

    /// Adds the symbolic links outside of the own directories that lead to the checkpoint to the companions.
    fn links_elsewhere(&mut self, links: &BTreeSet<PathBuf>) {
        let own = self.own_of_rank.clone();
        for path in links.iter().filter(|path| !own.iter().any(|own| path.starts_with(own))) {
            let is_found =
                || FilePath::new(path.as_os_str().as_bytes()).is_ok_and(|path| self.found.contains_key(&path));
            if is_found() || !resolve(self.root, path).is_some_and(|end| self.is_ours(&end)) {
                continue;
            }
            let name = self.root.join(path);
            if let (Ok(stat), Ok(text)) = (name.symlink_metadata(), name.read_link()) {
                self.take_link(path, &stat, &text);
            }
        }
    }

    /// Adds a symbolic link that was found inside an own directory to the companions.
    fn link_within(&mut self, path: &Path) {
        let name = self.root.join(path);
        let (Ok(stat), Ok(text)) = (name.symlink_metadata(), name.read_link()) else {
            return; // the link was removed after it was found
        };
        if resolve(self.root, path).is_none() {
            self.lose(path, LEADS_OUT);
        }
        self.take_link(path, &stat, &text);
    }

    fn take_link(&mut self, path: &Path, stat: &Metadata, text: &Path) {
        let text = text.as_os_str().as_bytes();
        if (1..=LINK_BYTES_MAX).contains(&(text.len() as u64)) {
            self.take(path, FileKind::SymbolicLink, stat, text);
        }
    }

    /// Whether a path belongs to the checkpoint and is not a file of another rank.
    fn is_ours(&self, end: &Path) -> bool {
        let is_own = || self.own.iter().any(|own| !own.as_os_str().is_empty() && end.starts_with(own));
        let Ok(file) = FilePath::new(end.as_os_str().as_bytes()) else { return is_own() };
        let is_of_another_rank = || {
            let rank = self.layout.place(&file).and_then(|placed| placed.rank);
            rank.is_some_and(|rank| rank != Rank(0))
        };
        self.files.contains(&file) || (is_own() && !is_of_another_rank()) || self.holds_only_this(end)
    }

    /// Whether a path is an own directory with files of this rank.
    fn leads_to_own(&self, end: &Path) -> bool {
        !end.as_os_str().is_empty() && self.own_of_rank.contains(end)
    }

    /// Whether a directory has files of this checkpoint and no files of other checkpoints. An example is
    /// `snapdir_012` with `snap_012.0.hdf5`.
    fn holds_only_this(&self, dir: &Path) -> bool {
        if self.rank != Rank(0) || dir.as_os_str().is_empty() || !self.above.contains(dir) {
            return false;
        }
        let mut is_shared = false;
        let mut see = |found: Found<'_>| {
            let Found::File(path, _) = found else { return };
            is_shared |= self.layout.place(&path).is_some_and(|placed| placed.checkpoint != *self.label);
        };
        let limits = ScanLimits { entries: ENTRIES_OF_ONE_MAX, ..ScanLimits::default() };
        walk(self.root, dir, &limits, &mut see).is_ok() && !is_shared
    }

    /// When the oldest of the files was last written, in nanoseconds since 1970. An application may write all files
    /// again under the same names, so the time at which the checkpoint began is too early.
    fn oldest_ns(&self) -> Option<i64> {
        let written = |path: &&FilePath| {
            let stat = std::fs::metadata(self.root.join(path.as_path())).ok()?;
            Some(Fingerprint::of(&stat).written_ns())
        };
        self.files.iter().filter_map(written).min()
    }

    /// Whether this is a pointer file of this checkpoint. `Some(true)` if its content names the checkpoint as the newest
    /// one, `Some(false)` if only the time says so, and `None` if it is no pointer file of this checkpoint.
    fn is_pointer_here(
        &self,
        path: &FilePath,
        stat: &Metadata,
        words: &[String],
        is_named: bool,
        timeline: &Timeline,
    ) -> Option<bool> {
        let known = |word: &String| self.named(path.as_path(), word).filter(|label| timeline.contains(label));
        // Most short files are no pointer files, so no files are looked up for them.
        if !is_named && !words.iter().any(|word| known(word).is_some()) {
            return None;
        }
        let mut labels = Vec::new();
        for (nth, word) in words.iter().enumerate() {
            let mut label = known(word);
            // The newest checkpoint is named at the beginning or at the end of a list.
            let is_at_end = nth < LOOKED_UP_MAX || nth + LOOKED_UP_MAX >= words.len();
            if label.is_none()
                && is_at_end
                && let Some((of_files, file)) = self.files_named(path.as_path(), word)
            {
                let is_newer = || {
                    let stat = std::fs::metadata(self.root.join(&file)).ok();
                    stat.is_some_and(|stat| Some(Fingerprint::of(&stat).written_ns()) > timeline.begun_ns(self.label))
                };
                match timeline.contains(&of_files) {
                    true => label = Some(of_files),
                    // The file names a newer checkpoint, whose files are not known yet.
                    false if is_newer() => return None,
                    false => {}
                }
            }
            labels.extend(label);
        }
        let known = timeline.newest(labels.iter());
        // A file that consists mostly of checkpoint names is a pointer file, even without a usual name. A log file
        // contains more other text.
        if !is_named && (known.is_none() || 2 * labels.len() < words.len()) {
            return None;
        }
        match known {
            Some(known) => (known == self.label).then_some(true),
            // Some applications write the pointer before the files of its checkpoint.
            None if words.iter().any(|word| self.names_other(word)) => None,
            None => (timeline.at(Fingerprint::of(stat).written_ns()) == Some(self.label)).then_some(false),
        }
    }

    /// Whether a word looks like the name of another checkpoint: it differs from a name of this checkpoint in numbers
    /// alone. The names are the label, and the beginnings of names that end with the label, as `DD0003`.
    fn names_other(&self, word: &str) -> bool {
        let label = self.label.label();
        let to_label = |name: &str| name.find(label).map(|at| name[..at + label.len()].to_owned());
        let parts = |path: &&FilePath| path.to_string().split('/').filter_map(to_label).collect::<Vec<_>>();
        let names: BTreeSet<String> = self.files.iter().flat_map(parts).chain([label.to_owned()]).collect();
        let word = word.trim_end_matches('/').rsplit('/').next().unwrap_or(word);
        // A number alone may be anything.
        let is_name = |shape: &[u8]| shape.len() > 1 && shape.contains(&b'#');
        let has_shape = |name: &String| is_name(&shape_of(name)) && shape_of(name) == shape_of(word);
        !names.contains(word) && names.iter().any(has_shape)
    }

    /// The checkpoint whose existing files a word in a pointer file names, and one of these files. The word may be the
    /// path of a file, of a directory with files, or the beginning of the names of files, as `chk_3` for `chk_3.0`.
    fn files_named(&self, pointer: &Path, word: &str) -> Option<(CheckpointId, PathBuf)> {
        let beside = pointer.parent().and_then(|parent| normal(&parent.join(word.trim_end_matches('/'))));
        let path = beside.or_else(|| Path::new(word).strip_prefix(self.root).ok().map(Path::to_owned))?;
        let placed = |path: PathBuf| {
            let placed = self.layout.place(&FilePath::new(path.as_os_str().as_bytes()).ok()?)?;
            Some((placed.checkpoint, path))
        };
        let (name, stem) = (self.root.join(&path), path.file_name()?);
        if name.is_file() {
            return placed(path);
        }
        let continues = |entry: &OsStr| {
            let rest = entry.as_bytes().strip_prefix(stem.as_bytes());
            rest.and_then(<[u8]>::first).is_some_and(|next| !next.is_ascii_alphanumeric())
        };
        let paths: Vec<PathBuf> = match std::fs::read_dir(&name) {
            Ok(entries) => {
                let entries = entries.flatten().take(FIRST_ENTRIES_MAX);
                entries.map(|entry| path.join(entry.file_name())).collect()
            }
            Err(_) => {
                let names = std::fs::read_dir(name.parent()?).ok()?.flatten().take(READ_ENTRIES_MAX);
                let names = names.map(|entry| entry.file_name()).filter(|entry| continues(entry));
                names.map(|entry| path.with_file_name(entry)).collect()
            }
        };
        // A word names a checkpoint only if all of these files belong to it.
        let mut all = paths.into_iter().filter_map(placed);
        let first = all.next()?;
        all.all(|(other, _)| other == first.0).then_some(first)
    }

    /// The checkpoint that a word in a pointer file names. The word may be the checkpoint's label, the path of one of
    /// its files, or its own directory.
    fn named(&self, pointer: &Path, word: &str) -> Option<CheckpointId> {
        let beside = normal(&pointer.parent()?.join(word));
        let below = beside.as_deref().or_else(|| Path::new(word).strip_prefix(self.root).ok());
        let placed =
            |path: &Path| Some(self.layout.place(&FilePath::new(path.as_os_str().as_bytes()).ok()?)?.checkpoint);
        let of_own = |path: &Path| self.own_of_rank.contains(path).then(|| self.label.clone());
        let label = || word.trim_end_matches('/').rsplit('/').next()?.parse().ok();
        below.and_then(|path| placed(path).or_else(|| of_own(path))).or_else(label)
    }

    fn take(&mut self, path: &Path, kind: FileKind, stat: &Metadata, content: &[u8]) {
        let Ok(path) = FilePath::new(path.as_os_str().as_bytes()) else { return };
        if self.found.len() >= COMPANIONS_MAX || self.bytes + content.len() > COMPANIONS_BYTES_MAX {
            return self.lose(path.as_path(), TOO_MANY);
        }
        self.bytes += content.len();
        let (fingerprint, mode) = (Fingerprint::of(stat), stat.mode() & 0o7777);
        let rank = if kind == FileKind::Pointer { self.rank_of(&path) } else { self.rank };
        self.found.insert(path.clone(), Companion { path, rank, kind, fingerprint, mode, content: content.into() });
    }

    /// The rank with which a pointer file is saved: the lowest rank with files in or below its directory.
    fn rank_of(&self, pointer: &FilePath) -> Rank {
        let dir = pointer.as_path().parent().unwrap_or(Path::new(""));
        self.lowest().get(dir).copied().unwrap_or(self.rank)
    }

    /// For each directory: the lowest rank with files in or below it, among the files of this search. Files that belong
    /// to no single rank do not count.
    fn lowest(&self) -> &BTreeMap<PathBuf, Rank> {
        self.lowest.get_or_init(|| {
            let mut lowest: BTreeMap<PathBuf, Rank> = BTreeMap::new();
            for path in &self.files {
                let Some(rank) = self.layout.place(path).and_then(|placed| placed.rank) else { continue };
                for dir in path.as_path().ancestors().skip(1) {
                    match lowest.get_mut(dir) {
                        Some(known) => *known = rank.min(*known),
                        None => drop(lowest.insert(dir.to_owned(), rank)),
                    }
                }
            }
            lowest
        })
    }

    fn lose(&mut self, path: &Path, why: &'static str) {
        let lost = self.lost.entry(why).or_insert_with(|| Lost { first: path.to_owned(), count: 0, why });
        lost.count += 1;
    }

    fn finish(mut self) -> Companions {
        let directories = std::mem::take(&mut self.directories);
        let mode_of = |dir: &Path| directories.get(dir).map(|stat| stat.mode() & 0o7777);
        for (path, stat) in &directories {
            let above = path.parent().and_then(mode_of);
            let is_told = above == mode_of(path) && self.filled.contains(path);
            if !path.as_os_str().is_empty() && !is_told {
                self.take(path, FileKind::Directory, stat, &[]);
            }
        }
        Companions { found: self.found.into_values().collect(), lost: self.lost.into_values().collect() }
    }
}

/// Removes the files from a listing that are saved with a checkpoint although their names do not show it: short files
/// beside checkpoints that consist mostly of the names of checkpoints, as Enzo's `OutputLog`.
pub fn leave_out_pointers(listing: &mut Listing, root: &Path, layout: &Layout) {
    let with_label = |path| Some((path, layout.place(path)?.checkpoint));
    let placed: Vec<(&FilePath, CheckpointId)> = listing.files.iter().filter_map(with_label).collect();
    let above: BTreeSet<&Path> = placed.iter().flat_map(|(path, _)| path.as_path().ancestors().skip(1)).collect();
    let labels: BTreeSet<CheckpointId> = placed.iter().map(|(_, label)| label.clone()).collect();
    let is_known = |word: &String, beside: &Path| {
        let path = normal(&beside.join(word)).and_then(|path| FilePath::new(path.as_os_str().as_bytes()).ok());
        let label = || word.trim_end_matches('/').rsplit('/').next().and_then(|name| name.parse().ok());
        let label = path.and_then(|path| layout.place(&path)).map(|placed| placed.checkpoint).or_else(label);
        label.is_some_and(|label| labels.contains(&label))
    };
    let is_pointer = |path: &FilePath| {
        let Some(Candidate::Pointer { words, .. }) = pointer(root, layout, path.as_path()) else { return false };
        let beside = path.as_path().parent().unwrap_or(Path::new(""));
        let known = words.iter().filter(|word| is_known(word, beside)).count();
        known > 0 && 2 * known >= words.len()
    };
    let may_be = |(path, bytes): &(&FilePath, &u64)| {
        let is_beside = || path.as_path().parent().is_some_and(|dir| above.contains(dir));
        **bytes <= UNNAMED_POINTER_BYTES_MAX && layout.place(path).is_none() && is_beside()
    };
    let short = listing.files.iter().zip(&listing.bytes).filter(may_be).take(READ_ENTRIES_MAX);
    let pointers: Vec<FilePath> = short.map(|(path, _)| path).filter(|path| is_pointer(path)).cloned().collect();
    pointers.iter().for_each(|path| listing.leave_out(path.as_path()));
}

/// The lowest rank with files in or below a directory, on the file system. If a label is given, only the files of this
/// checkpoint count. Files that belong to no single rank do not count. `None` if there is no file of a rank. The
/// directories `first` are read first, because the files of rank 0 are mostly beside those of other ranks. If there are
/// more than [`ENTRIES_BESIDE_MAX`] entries, the result is rank 0, whose node then saves the pointer files.
pub(crate) fn lowest_rank(
    root: &Path,
    layout: &Layout,
    label: Option<&CheckpointId>,
    dir: &Path,
    first: &BTreeSet<&Path>,
) -> Option<Rank> {
    let (mut lowest, mut open, mut entries) = (None::<Rank>, vec![dir.to_owned()], 0usize);
    open.extend(first.iter().filter(|first| first.starts_with(dir)).map(|first| first.to_path_buf()));
    let mut seen = BTreeSet::new();
    while let Some(dir) = open.pop() {
        if !seen.insert(dir.clone()) {
            continue;
        }
        // A directory that was removed, or that cannot be read, has no files.
        let Ok(listed) = std::fs::read_dir(root.join(&dir)) else { continue };
        for entry in listed.flatten() {
            entries += 1;
            if entries > ENTRIES_BESIDE_MAX || lowest == Some(Rank(0)) {
                return Some(Rank(0));
            }
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            let path = dir.join(&name);
            if is_own_name(name.as_bytes()) {
                continue;
            } else if kind.is_dir() {
                open.push(path);
            } else if let Some(placed) =
                FilePath::new(path.as_os_str().as_bytes()).ok().and_then(|path| layout.place(&path))
            {
                let rank = placed.rank.filter(|_| label.is_none_or(|label| placed.checkpoint == *label));
                lowest = lowest.into_iter().chain(rank).min();
            }
        }
    }
    lowest
}

/// The links in a directory, and the files in this directory that may be pointer files.
fn candidates(root: &Path, layout: &Layout, dir: &Path) -> Vec<Candidate> {
    let (mut found, mut files, mut entries) = (Vec::new(), Vec::new(), 0usize);
    let Ok(listed) = std::fs::read_dir(root.join(dir)) else { return found };
    let is_known = |name: &[u8]| is_pointer_name(name) || layout.attends(name);
    for entry in listed.flatten() {
        entries += 1;
        let Ok(kind) = entry.file_type() else { continue };
        let (name, path) = (entry.file_name(), dir.join(entry.file_name()));
        if found.len() >= COMPANIONS_MAX || is_own_name(name.as_bytes()) || is_settings(path.as_os_str().as_bytes()) {
            continue;
        } else if kind.is_symlink() {
            found.extend(link(root, &path));
        } else if kind.is_file() && (entries <= READ_ENTRIES_MAX || is_known(name.as_bytes())) {
            files.push(path);
        }
    }
    if entries > READ_ENTRIES_MAX {
        files.retain(|path| path.file_name().is_some_and(|name| is_known(name.as_bytes())));
    }
    found.extend(files.into_iter().filter_map(|path| pointer(root, layout, &path)));
    found
}

/// Reads a symbolic link. `None` if there is no link.
fn link(root: &Path, path: &Path) -> Option<Candidate> {
    let name = root.join(path);
    let (stat, text) = (name.symlink_metadata().ok()?, name.read_link().ok()?);
    Some(Candidate::Link { path: path.to_owned(), stat, text, end: resolve(root, path) })
}

/// Reads a file that belongs to no checkpoint and may be a pointer file. `None` if the file cannot be a pointer file.
fn pointer(root: &Path, layout: &Layout, path: &Path) -> Option<Candidate> {
    let (path, name) = (FilePath::new(path.as_os_str().as_bytes()).ok()?, root.join(path));
    let (is_named, attends) = (is_pointer_name(path.name()), layout.attends(path.name()));
    if layout.place(&path).is_some() || is_log_name(path.name()) && !attends {
        return None;
    }
    let most = match () {
        () if attends => COMPANIONS_BYTES_MAX as u64,
        () if is_named => POINTER_BYTES_MAX,
        () => UNNAMED_POINTER_BYTES_MAX,
    };
    if attends && name.symlink_metadata().is_ok_and(|stat| stat.len() > most) {
        return Some(Candidate::Long(path));
    }
    let may_be = |stat: &Metadata| stat.is_file() && stat.len() <= most && !is_own_output(stat);
    let look = || name.symlink_metadata().ok().filter(may_be);
    let (before, content) = (look()?, std::fs::read(&name).ok()?);
    // A file that changed while it was read is skipped. The next search finds the file again.
    let stat = look().filter(|after| Fingerprint::of(after) == Fingerprint::of(&before))?;
    if attends {
        return Some(Candidate::Attendant { path, stat, content });
    }
    let words = words_in(&content);
    Some(Candidate::Pointer { path, stat, content, words, is_named })
}

impl Companion {
    /// The header of the companion as a file of the given rank.
    pub fn header(&self, rank: Rank) -> FileHeader {
        let (bytes, digest) = (self.content.len() as u64, Digest::of(&self.content));
        FileHeader {
            path: self.path.clone(),
            rank,
            bytes,
            kind: self.kind,
            mode: self.mode,
            modified_ns: self.fingerprint.modified_ns,
            digest,
            variables: vec![whole(digest, bytes)],
        }
    }

    /// The content of the companion.
    pub fn image(&self) -> Arc<Image> {
        Arc::new(Image { bytes: self.content.to_vec(), chunks: Default::default() })
    }

    /// Fingerprint at the time when the companion was read.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// Marks files that are hard links of an earlier file of the same rank. Each header is given with its fingerprint.
pub fn mark_hard_links<'a>(headers: impl Iterator<Item = (&'a mut FileHeader, Fingerprint)>) {
    let mut first: BTreeMap<(u64, u64, Rank), (usize, Digest)> = BTreeMap::new();
    for (at, (header, print)) in headers.enumerate() {
        if header.kind != FileKind::Regular {
            continue;
        }
        let named = *first.entry((print.device, print.inode, header.rank)).or_insert((at, header.digest));
        let before = u32::try_from(at - named.0).ok().and_then(NonZeroU32::new);
        if let Some(before) = before.filter(|_| named.1 == header.digest) {
            header.kind = FileKind::HardLink(before);
        }
    }
}

/// The final target of a link, relative to the root. `None` if the link itself leads out of the root, or if links
/// form a cycle. If another link in the path leads out of the root, this link counts as a directory, because the walk
/// may follow it.
pub fn resolve(root: &Path, link: &Path) -> Option<PathBuf> {
    let (mut at, mut hops) = (PathBuf::new(), 0);
    let mut open: Vec<PathBuf> = parts(link).rev().collect();
    while let Some(part) = open.pop() {
        if part == Path::new("..") {
            at.pop().then_some(())?;
            continue;
        }
        let next = at.join(&part);
        let Ok(text) = root.join(&next).read_link() else {
            at = next;
            continue;
        };
        hops += 1;
        let below = match text.is_absolute() {
            true => text.strip_prefix(root).ok().map(Path::to_owned),
            false => normal(&at.join(&text)),
        };
        match below {
            _ if hops > HOPS_MAX => return None,
            Some(below) => {
                open.extend(parts(&below).rev().collect::<Vec<_>>());
                at.clear();
            }
            None if next == link => return None,
            None => at = next,
        }
    }
    Some(at)
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> + '_ {
    path.components().filter(|part| *part != Component::CurDir).map(|part| PathBuf::from(part.as_os_str()))
}

/// A relative path without `.` and `..`. `None` if the path leads out of its directory.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir if normal.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

/// The words of a pointer file that may be names. White space, quotes and common punctuation separate words. For a
/// long file, only the first and the last words are returned. A file that is not text has no words.
pub(crate) fn words_in(content: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(content) else { return Vec::new() };
    let is_between = |c: char| c.is_whitespace() || c.is_control() || "\"'`,;:=()[]{}<>".contains(c);
    let mut words: Vec<String> = text.split(is_between).filter(|word| !word.is_empty()).map(str::to_owned).collect();
    if words.len() > WORDS_MAX {
        words.drain(WORDS_MAX / 2..words.len() - WORDS_MAX / 2);
    }
    words
}

#[cfg(test)]
mod tests;
