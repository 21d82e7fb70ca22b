//! The walk over a directory: which files are there, and which checkpoints they make. Bounded, and follows no link.

use super::{Layout, is_ours};
use mcrengine::ids::{CheckpointId, FILE_PATH_MAX, FilePath, Rank, natural_cmp};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A label in the order people give it: `it_9` before `it_10`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointLabel(pub CheckpointId);

impl Ord for CheckpointLabel {
    fn cmp(&self, other: &Self) -> Ordering {
        natural_cmp(self.0.as_str().as_bytes(), other.0.as_str().as_bytes())
    }
}
impl PartialOrd for CheckpointLabel {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How far a walk goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Directories inside each other. Default 16.
    pub depth: usize,
    /// Files and directories in all. Default 4 Mi.
    pub entries: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self { depth: 16, entries: 4 << 20 }
    }
}

/// Something that a walk did not take, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Where.
    pub path: PathBuf,
    /// Why.
    pub reason: &'static str,
}

/// What lies below a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Regular files, in the order of their names.
    pub files: Vec<FilePath>,
    /// Neither files nor directories (links, sockets, devices), or not readable, at most [`SKIPPED_MAX`] of them.
    pub skipped: Vec<Skipped>,
}

/// The checkpoints below a directory.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The oldest label first, each with its files in the order of their names. Files of no rank are of rank 0 here.
    pub checkpoints: BTreeMap<CheckpointLabel, Vec<(FilePath, Rank)>>,
    /// Files that the layout gives to no checkpoint.
    pub unplaced: Vec<FilePath>,
    /// See [`Listing::skipped`].
    pub skipped: Vec<Skipped>,
}

/// The most that [`Listing::skipped`] tells.
pub const SKIPPED_MAX: usize = 1000;

/// Why a directory could not be walked.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The directory itself cannot be read; below it, that is [`Skipped`].
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// Which directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// More than [`ScanLimits::entries`].
    #[error("{}: more than {limit} files and directories below it; name a directory further down", path.display())]
    TooMany {
        /// Which directory.
        path: PathBuf,
        /// How many were allowed.
        limit: usize,
    },
}

/// The files below `root`, in the order of their names.
pub fn list(root: &Path, limits: &ScanLimits) -> Result<Listing, ScanError> {
    let mut listing = Listing::default();
    let mut see = |found: Found<'_>| match found {
        Found::File(path, _) => listing.files.push(path),
        Found::Directory(_) => {}
        Found::Skipped(path, reason) if listing.skipped.len() < SKIPPED_MAX => {
            listing.skipped.push(Skipped { path: path.to_owned(), reason });
        }
        Found::Skipped(..) => {}
    };
    walk(root, Path::new(""), limits, &mut see)?;
    listing.files.sort();
    Ok(listing)
}

/// The checkpoints below `root`.
pub fn scan(root: &Path, layout: &Layout, limits: &ScanLimits) -> Result<Scan, ScanError> {
    Ok(sort(list(root, limits)?, layout))
}

/// The checkpoints that a directory's files make.
pub fn sort(listing: Listing, layout: &Layout) -> Scan {
    let mut scan = Scan { skipped: listing.skipped, ..Scan::default() };
    for path in listing.files {
        match layout.place(&path) {
            Some(placed) => {
                let files = scan.checkpoints.entry(CheckpointLabel(placed.checkpoint)).or_default();
                files.push((path, placed.rank.unwrap_or(Rank(0))));
            }
            None => scan.unplaced.push(path),
        }
    }
    scan
}

/// What a walk meets.
pub(crate) enum Found<'a> {
    /// A directory, before what is in it; its path is relative to the root, empty for the root itself.
    Directory(&'a Path),
    /// A regular file, and what `lstat` says about it.
    File(FilePath, Metadata),
    /// Neither, or not readable.
    Skipped(&'a Path, &'static str),
}

/// Walks over `root/below`. Tells a directory before it reads it, so that a watch may be set first.
pub(crate) fn walk(
    root: &Path,
    below: &Path,
    limits: &ScanLimits,
    see: &mut dyn FnMut(Found<'_>),
) -> Result<(), ScanError> {
    let mut entries = 0usize;
    let mut open = vec![below.to_owned()];
    while let Some(directory) = open.pop() {
        see(Found::Directory(&directory));
        let absolute = root.join(&directory);
        let listed = match std::fs::read_dir(&absolute) {
            Ok(listed) => listed,
            Err(source) if directory == below => return Err(ScanError::Unreadable { path: absolute, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // it vanished meanwhile
            Err(_) => {
                see(Found::Skipped(&directory, "the directory cannot be read"));
                continue;
            }
        };
        for entry in listed {
            let Ok(entry) = entry else {
                see(Found::Skipped(&directory, "the directory cannot be read to its end"));
                break;
            };
            entries += 1;
            if entries > limits.entries {
                return Err(ScanError::TooMany { path: root.to_owned(), limit: limits.entries });
            }
            let path = directory.join(entry.file_name());
            let bytes = path.as_os_str().as_bytes();
            if is_ours(entry.file_name().as_bytes()) {
                continue;
            }
            let Ok(kind) = entry.file_type() else { continue }; // it vanished meanwhile
            if kind.is_dir() {
                if path.components().count() > limits.depth || bytes.len() >= FILE_PATH_MAX {
                    see(Found::Skipped(&path, "the directory is too deep"));
                } else {
                    open.push(path);
                }
            } else if kind.is_file() {
                match (FilePath::new(bytes), entry.metadata()) {
                    (Ok(path), Ok(metadata)) => see(Found::File(path, metadata)),
                    (Err(_), _) => see(Found::Skipped(&path, "the path is too long")),
                    (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
                    (_, Err(_)) => see(Found::Skipped(&path, "its length cannot be read")),
                }
            } else if kind.is_symlink() {
                see(Found::Skipped(&path, "it is a symbolic link"));
            } else {
                see(Found::Skipped(&path, "it is neither a file nor a directory"));
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
        for file in ["t9/r0", "t9/r1", "t10/r0", "t10/.mcr-r1.tmp", ".mcr/x", "readme"] {
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
        assert_eq!(scan.unplaced.iter().map(ToString::to_string).collect::<Vec<_>>(), ["readme"]);
        assert_eq!(scan.skipped, [Skipped { path: "t9/link".into(), reason: "it is a symbolic link" }]);
    }

    #[test]
    fn a_walk_has_bounds() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(root.path().join("a/b/c")).expect("made");
        std::fs::write(root.path().join("a/b/c/x"), "x").expect("written");
        let listing = list(root.path(), &ScanLimits { depth: 2, entries: 100 }).expect("listed");
        assert_eq!((listing.files.len(), listing.skipped[0].reason), (0, "the directory is too deep"));
        let error = list(root.path(), &ScanLimits { depth: 9, entries: 3 }).expect_err("four entries").to_string();
        assert!(error.contains("more than 3"), "{error}");
        let error = list(&root.path().join("none"), &ScanLimits::default()).expect_err("no such directory");
        assert!(matches!(error, ScanError::Unreadable { .. }), "{error}");
    }
}
