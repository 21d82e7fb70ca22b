//! Publishes restored files: all files of a checkpoint get their final names together, and no existing file is lost.
//!
//! Before this, all files are verified and durable under temporary names. The following steps run under a lock of the
//! target directory:
//!
//! 1. A restart that was killed during its publication is completed. If its temporary files are gone, it is undone.
//! 2. Existing files in the way are found. A file with the same content stays. A file with other content is moved to
//!    `.mcr-aside-N/`. A file is also moved there if it is newer than all restored files of its shape (its path with
//!    every run of digits replaced) and does not belong to the checkpoint: an application that starts from the newest
//!    file would use it.
//! 3. The journal `.mcr-publish-WHERE-PROCESS` lists every move and every rename. It is durable before the first of
//!    them.
//! 4. The files are moved, then renamed. The journal is removed when all moves and renames are durable.
//!
//! The journal consists of a line `mcr-publish 1`, a line of JSON ([`Journal`]) and a line `blake3 HEX` over both. In
//! paths, a backslash and each byte that is not printable ASCII is written as `\xNN`.

use super::target::{Target, directory, failed, inner_of, would_lead_out};
use super::{RestoreError, RestoredFile, VerifiedFile, leftovers, sync_dirs};
use crate::fingerprint::Fingerprint;
use crate::here::here;
use crate::layout::is_ours;
use crate::sealed;
use crate::source::lock as locked;
use crate::state::{escape, unescape};
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{Digest, FilePath};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KIND: &str = "mcr-publish";
const VERSION: u32 = 1;
const LOCK: &str = ".mcr-lock";
const ASIDE_PREFIX: &str = ".mcr-aside-";
/// Maximum time that a restart waits for one other restart that publishes into the same directory.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Maximum time that a restart waits for all others: a thousand nodes may restore into one directory at once.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(900);
/// Maximum number of files and directories examined in the search for newer files.
const ENTRIES_MAX: usize = 4 << 20;
/// Maximum number of directories for moved files in one target directory.
const ASIDE_MAX: u32 = 10_000;

/// Options of a publication.
#[derive(Clone, Debug, Default)]
pub struct Publish {
    /// All files of the checkpoint, including those that are not restored here. None of them is moved aside for being
    /// newer.
    pub of_checkpoint: BTreeSet<FilePath>,
    /// The restored files are a copy for inspection, and the application continues. Its newer files are not moved
    /// aside, and existing files with the same content are not marked as restored.
    pub is_copy: bool,
    /// Whether everything is made durable.
    pub sync: bool,
    /// Directories of the checkpoint, with their permission bits.
    pub directories: BTreeMap<FilePath, u32>,
}

/// Why a file was moved aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A restored file with other content takes its place.
    Replaced,
    /// It is newer than the restored files.
    Newer,
}

/// A file that was moved aside, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// Path below the target directory. The path below the directory that the file is moved to is the same.
    pub path: FilePath,
    /// The reason.
    pub why: Why,
}

/// The result of a publication.
#[derive(Debug, Default)]
pub struct Published {
    /// All files, including those that were already there.
    pub files: Vec<RestoredFile>,
    /// Number of files that were already there with the same content.
    pub unchanged: usize,
    /// Files that were moved aside.
    pub aside: Vec<Aside>,
    /// Where they were moved to, below the target directory.
    pub aside_to: Option<String>,
    /// Links that were not created, because they lead to directories elsewhere or because a directory has their name.
    pub not_made: Vec<FilePath>,
}

/// What happened to restarts that were killed during their publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of restarts whose files all have their final names now.
    pub completed: usize,
    /// Number of restarts whose changes were all reverted.
    pub undone: usize,
}

/// What is in the way of the restored files.
#[derive(Debug, Default)]
struct Plan {
    /// Indices of files that stay as they are.
    kept: BTreeSet<usize>,
    aside: Vec<Aside>,
}

/// All changes of a publication, with enough information to repeat or undo them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    /// Whether the temporary files were durable before the journal was written.
    synced: bool,
    /// The directory for moved files, below the target directory.
    aside: Option<String>,
    /// Paths of the moved files.
    moves: Vec<String>,
    renames: Vec<Rename>,
}

/// A temporary file, and its final name in the same directory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rename {
    path: String,
    temporary: String,
    inode: u64,
    bytes: u64,
    modified_ns: i64,
}

/// A journal with checked paths.
struct Steps {
    synced: bool,
    aside: Option<String>,
    moves: Vec<FilePath>,
    renames: Vec<(FilePath, CString, Identity)>,
}

/// Identifies a restored file: inode, length in bytes, modification time in nanoseconds.
type Identity = (u64, u64, i64);

/// Gives all files of a checkpoint their final names, or none of them.
pub fn publish_all(
    target: &Arc<Target>,
    files: Vec<VerifiedFile>,
    how: &Publish,
) -> Result<(Published, Recovered), RestoreError> {
    target.make()?;
    let to = target.path();
    target.make_directories(how.directories.keys())?;
    let (files, not_made) = without_links_out(to, files);
    let wanted: Vec<Wanted<'_>> = files.iter().map(Wanted::of).collect();
    // This runs before the lock is taken, since it may take long.
    let newer = newer(to, &wanted, how)?;
    let _lock = lock(to, LOCK_WAIT)?;
    let recovered = recover_locked(to)?;
    let plan = plan(to, &wanted, &newer)?;
    let mut published = Published { unchanged: plan.kept.len(), ..Published::default() };
    let mut unmarked = Vec::new();
    for (place, file) in files.iter().enumerate() {
        published.files.push(RestoredFile { path: file.header.path.clone(), bytes: file.header.bytes });
        match plan.kept.contains(&place) {
            false => unmarked.extend(file.unmarked()),
            true if how.is_copy => {}
            true => unmarked.extend(mark_existing(to, &file.header.path)),
        }
    }
    // Record this before any file has its final name, so that an agent never takes a restored file for a new one.
    crate::restored::record(to, &unmarked).map_err(|e| failed(to, "recording what is restored", e))?;
    let files = with_hard_links(target, files, &plan.kept);
    let renames = (files.iter().enumerate())
        .filter(|(place, _)| !plan.kept.contains(place))
        .map(|(_, file)| {
            let is = (file.print.inode, file.print.bytes, file.print.modified_ns);
            (file.header.path.clone(), file.temporary.name().clone(), is)
        })
        .collect();
    let aside = if plan.aside.is_empty() { None } else { Some(make_aside(to)?) };
    let moves: Vec<FilePath> = plan.aside.iter().map(|aside| aside.path.clone()).collect();
    let steps = Steps { synced: how.sync, aside: aside.clone(), moves, renames };
    if !steps.renames.is_empty() || !steps.moves.is_empty() {
        let name = format!("{}{}", leftovers::JOURNAL_PREFIX, here());
        sealed::write(to, &name, KIND, VERSION, &steps.journal(), how.sync)
            .map_err(|e| failed(to, "writing the journal of its renames", e))?;
        if let Err(error) = steps.forward(to) {
            // If the undo fails too, the journal stays for the next restart.
            steps.undo(to)?;
            remove_journal(to, &name, how.sync)?;
            return Err(error);
        }
        if how.sync {
            steps.sync(to, &published.files)?;
        }
        remove_journal(to, &name, how.sync)?;
    }
    if how.sync {
        let inner = |path: &FilePath| Some(RestoredFile { path: inner_of(path).ok()?, bytes: 0 });
        sync_dirs(to, &how.directories.keys().filter_map(inner).collect::<Vec<_>>())?;
    }
    target.set_modes(&how.directories)?;
    target.keep();
    (published.not_made, published.aside, published.aside_to) = (not_made, plan.aside, aside);
    Ok((published, recovered))
}

/// Removes links that must not or cannot be created: links to directories elsewhere, because the next restart would
/// write through them, and links whose name belongs to a directory. The restore of a checkpoint never fails because
/// of a link.
fn without_links_out(to: &Path, files: Vec<VerifiedFile>) -> (Vec<VerifiedFile>, Vec<FilePath>) {
    let cannot_be = |file: &VerifiedFile| {
        let text = (file.header.kind == FileKind::SymbolicLink).then(|| file.temporary.link_text()).flatten();
        let is_taken = || find_existing(to, &file.header.path).is_err();
        text.is_some_and(|text| would_lead_out(to, &file.header.path, &text) || is_taken())
    };
    let (out, files): (Vec<_>, Vec<_>) = files.into_iter().partition(cannot_be);
    (files, out.into_iter().map(|file| file.header.path.clone()).collect())
}

/// Creates hard links for files that are hard links of each other: of the temporary file, or of the existing file
/// with the same content. On a file system without hard links, the copies stay.
fn with_hard_links(target: &Arc<Target>, mut files: Vec<VerifiedFile>, kept: &BTreeSet<usize>) -> Vec<VerifiedFile> {
    if files.iter().all(|file| file.named.is_none()) {
        return files;
    }
    let place: BTreeMap<FilePath, usize> =
        files.iter().enumerate().map(|(place, file)| (file.header.path.clone(), place)).collect();
    for second in 0..files.len() {
        let first = files[second].named.as_ref().and_then(|named| place.get(named).copied());
        let Some(first) = first.filter(|first| *first != second && !kept.contains(&second)) else { continue };
        let path = files[first].header.path.clone();
        let name = match kept.contains(&first) {
            true => CString::new(path.name()).unwrap_or_default(),
            false => files[first].temporary.name().clone(),
        };
        if let Some(print) = files[second].temporary.link_to(target, &path, &name) {
            files[second].print = print;
        }
    }
    files
}

/// What would be moved aside for these files. Changes nothing.
pub fn preview(to: &Path, files: &[&FileHeader], how: &Publish) -> Result<Vec<Aside>, RestoreError> {
    if !to.exists() {
        return Ok(Vec::new());
    }
    let wanted: Vec<Wanted<'_>> = files.iter().map(|header| Wanted { header, compared: None }).collect();
    Ok(plan(to, &wanted, &newer(to, &wanted, how)?)?.aside)
}

/// Completes or undoes restarts that were killed during their publication into this directory.
pub fn recover(to: &Path) -> Result<Recovered, RestoreError> {
    if journals(to)?.is_empty() {
        return Ok(Recovered::default());
    }
    let _lock = lock(to, LOCK_WAIT)?;
    recover_locked(to)
}

/// Whether a killed restart left something to complete or to undo.
pub fn is_interrupted(to: &Path) -> bool {
    journals(to).is_ok_and(|journals| !journals.is_empty())
}

// Examination.

/// A file to publish, and the result of its comparison with the existing file.
struct Wanted<'a> {
    header: &'a FileHeader,
    compared: Option<(Fingerprint, bool)>,
}

impl<'a> Wanted<'a> {
    fn of(file: &'a VerifiedFile) -> Self {
        Self { header: &file.header, compared: file.compared }
    }
}

/// Finds what is in the way: existing files under final names, and the newer files that still exist.
fn plan(to: &Path, wanted: &[Wanted<'_>], newer: &[FilePath]) -> Result<Plan, RestoreError> {
    let mut plan = Plan::default();
    for (place, file) in wanted.iter().enumerate() {
        let path = &file.header.path;
        let Some(stat) = find_existing(to, path)? else { continue };
        let same = match (file_print(&stat), file.compared) {
            _ if file.header.kind == FileKind::SymbolicLink => is_same_link(to, file.header),
            (None, _) => false,
            (Some(print), Some((before, same))) if before == print => same,
            (Some(_), _) => compare(to, file.header).is_some_and(|(_, same)| same),
        };
        match same {
            true => drop(plan.kept.insert(place)),
            false => plan.aside.push(Aside { path: path.clone(), why: Why::Replaced }),
        }
    }
    for path in newer {
        if find_existing(to, path)?.is_some() {
            plan.aside.push(Aside { path: path.clone(), why: Why::Newer });
        }
    }
    plan.aside.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(plan)
}

/// Finds files that have the shape of restored files and are newer than all of those. Many nodes may search one
/// directory at the same time, so only directories of the right shape are read, and only the times of matching files
/// are requested.
fn newer(to: &Path, wanted: &[Wanted<'_>], how: &Publish) -> Result<Vec<FilePath>, RestoreError> {
    let mut newer = Vec::new();
    if how.is_copy {
        return Ok(newer);
    }
    let mut newest: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    for Wanted { header, .. } in wanted.iter().filter(|wanted| !wanted.header.kind.is_companion()) {
        let newest = newest.entry(shape(header.path.as_bytes())).or_insert(i64::MIN);
        *newest = header.modified_ns.max(*newest);
    }
    let above = |shape: &Vec<u8>| -> Vec<Vec<u8>> {
        let ends = shape.iter().enumerate().filter(|(_, b)| **b == b'/');
        ends.map(|(at, _)| shape[..at].to_vec()).collect()
    };
    let directories: BTreeSet<Vec<u8>> = newest.keys().flat_map(above).collect();
    let ours: BTreeSet<&FilePath> = wanted.iter().map(|file| &file.header.path).collect();
    let (mut open, mut entries) = (vec![PathBuf::new()], 0usize);
    while let Some(dir) = open.pop() {
        let listed = match std::fs::read_dir(to.join(&dir)) {
            Ok(listed) => listed,
            Err(error) if dir.as_os_str().is_empty() => return Err(failed(to, "looking for newer files", error)),
            Err(_) => continue, // it is gone, or may not be read
        };
        for entry in listed.flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                tracing::warn!(
                    to = %to.display(), ENTRIES_MAX,
                    "too many files: some newer files may not be moved aside"
                );
                return Ok(newer);
            }
            let path = dir.join(entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            let shape = shape(path.as_os_str().as_bytes());
            if is_ours(entry.file_name().as_bytes()) {
                continue;
            } else if (kind.is_dir() || kind.is_symlink()) && directories.contains(&shape) {
                let inner = FilePath::new(path.as_os_str().as_bytes()).and_then(|path| inner_of(&path));
                if kind.is_dir() || inner.is_ok_and(|inner| directory(to, &inner, None).is_ok()) {
                    open.push(path);
                }
            } else if let (true, Some(newest)) = (kind.is_file(), newest.get(&shape)) {
                let modified_ns = entry.metadata().map_or(i64::MIN, |stat| Fingerprint::of(&stat).modified_ns);
                let Ok(path) = FilePath::new(path.as_os_str().as_bytes()) else { continue };
                if modified_ns > *newest && !ours.contains(&path) && !how.of_checkpoint.contains(&path) {
                    newer.push(path);
                }
            }
        }
    }
    Ok(newer)
}

/// A path with every run of digits replaced. Files of different ranks or steps that belong together have the same
/// shape.
fn shape(path: &[u8]) -> Vec<u8> {
    let mut shape: Vec<u8> = path.iter().map(|b| if b.is_ascii_digit() { b'#' } else { *b }).collect();
    shape.dedup_by(|b, a| (*a, *b) == (b'#', b'#'));
    shape
}

const DIRECTORY_IN_THE_WAY: &str = "a directory has the name of a file of the checkpoint (move the directory away, or \
                                    restore into another place)";

/// The metadata of what exists under a final name. A directory there is an error.
fn find_existing(to: &Path, path: &FilePath) -> Result<Option<FileStat>, RestoreError> {
    let dir = match directory(to, path, None) {
        Err(RestoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match fstatat(&dir, OsStr::from_bytes(path.name()), AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(failed(&to.join(path.as_path()), "reading its metadata", error)),
        Ok(stat) if kind(&stat) == SFlag::S_IFDIR => {
            Err(failed(&to.join(path.as_path()), DIRECTORY_IN_THE_WAY, io::ErrorKind::IsADirectory))
        }
        Ok(stat) => Ok(Some(stat)),
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The fingerprint of a regular file.
fn file_print(stat: &FileStat) -> Option<Fingerprint> {
    (kind(stat) == SFlag::S_IFREG).then(|| Fingerprint::of_stat(stat))
}

/// Whether a link with this target exists there.
fn is_same_link(to: &Path, header: &FileHeader) -> bool {
    let text = || {
        let dir = directory(to, &header.path, None).ok()?;
        readlinkat(&dir, OsStr::from_bytes(header.path.name())).ok()
    };
    text().is_some_and(|text| Digest::of(text.as_bytes()) == header.digest)
}

/// Compares the existing file with the content that is restored. Returns its fingerprint and whether the content is
/// the same. `None`: no file of that length exists, it cannot be read, or it changed meanwhile.
pub(super) fn compare(to: &Path, header: &FileHeader) -> Option<(Fingerprint, bool)> {
    let print = file_print(&find_existing(to, &header.path).ok()??).filter(|print| print.bytes == header.bytes)?;
    let dir = directory(to, &header.path, None).ok()?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(&dir, OsStr::from_bytes(header.path.name()), flags, Mode::empty()).ok()?;
    drop(dir);
    let (mut file, mut hasher, mut buffer) = (File::from(file), blake3::Hasher::new(), vec![0; 1 << 20]);
    if Fingerprint::of(&file.metadata().ok()?) != print {
        return None;
    }
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => drop(hasher.update(&buffer[..n])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let same = Digest::from(hasher.finalize()) == header.digest;
    (Fingerprint::of(&file.metadata().ok()?) == print).then_some((print, same))
}

/// Marks an existing file as restored. Returns the file if it cannot be marked.
fn mark_existing(to: &Path, path: &FilePath) -> Option<(FilePath, Fingerprint)> {
    let print = file_print(&find_existing(to, path).ok()??)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let open = directory(to, path, None).ok()?;
    let file = openat(&open, OsStr::from_bytes(path.name()), flags, Mode::empty()).map(File::from);
    let marked = file.is_ok_and(|file| crate::restored::mark(&file, path).is_ok());
    (!marked).then(|| (path.clone(), print))
}

// Steps.

impl Steps {
    fn journal(&self) -> Journal {
        let rename = |(path, temporary, is): &(FilePath, CString, Identity)| Rename {
            path: escape(path.as_bytes()),
            temporary: escape(temporary.as_bytes()),
            inode: is.0,
            bytes: is.1,
            modified_ns: is.2,
        };
        Journal {
            synced: self.synced,
            aside: self.aside.clone(),
            moves: self.moves.iter().map(|path| escape(path.as_bytes())).collect(),
            renames: self.renames.iter().map(rename).collect(),
        }
    }

    /// `None` if the journal contains something that this program never writes.
    fn of(journal: Journal) -> Option<Self> {
        let path = |text: &String| FilePath::new(unescape(text)?).ok();
        let is_aside = |name: &String| name.strip_prefix(ASIDE_PREFIX).is_some_and(|n| n.parse::<u32>().is_ok());
        if !journal.aside.as_ref().is_none_or(is_aside) || (journal.aside.is_none() && !journal.moves.is_empty()) {
            return None;
        }
        let rename = |rename: &Rename| {
            let temporary = Some(&rename.temporary).filter(|name| leftovers::is_temporary(name))?;
            let is = (rename.inode, rename.bytes, rename.modified_ns);
            Some((path(&rename.path)?, CString::new(temporary.as_bytes()).ok()?, is))
        };
        Some(Self {
            synced: journal.synced,
            moves: journal.moves.iter().map(path).collect::<Option<_>>()?,
            renames: journal.renames.iter().map(rename).collect::<Option<_>>()?,
            aside: journal.aside,
        })
    }

    fn aside_of(&self, to: &Path) -> PathBuf {
        to.join(self.aside.as_deref().unwrap_or(ASIDE_PREFIX))
    }

    /// Moves and renames everything that is not moved and renamed yet. Steps that are done already are skipped.
    fn forward(&self, to: &Path) -> Result<(), RestoreError> {
        let aside = self.aside_of(to);
        let restored: BTreeMap<&FilePath, Identity> = self.renames.iter().map(|(path, _, is)| (path, *is)).collect();
        for path in &self.moves {
            let is_new = |stat: &FileStat| restored.get(path).is_some_and(|is| identity(stat) == Some(*is));
            if find_existing(to, path)?.is_some_and(|stat| !is_new(&stat)) {
                move_file(to, &aside, path)?;
            }
        }
        for (path, temporary, is) in &self.renames {
            let stands = find_existing(to, path)?;
            if stands.as_ref().and_then(identity) == Some(*is) {
                continue;
            }
            let at = to.join(path.as_path());
            if stands.is_some() {
                // Nothing existed there when the steps were planned.
                return Err(RestoreError::Occupied { path: at });
            }
            let dir = directory(to, path, None)?;
            renameat(&dir, temporary.as_c_str(), &dir, OsStr::from_bytes(path.name()))
                .map_err(|e| failed(&at, "renaming it to its final name", e))?;
        }
        for path in self.moves.iter().filter(|path| !restored.contains_key(path)) {
            remove_empty(to, path);
        }
        Ok(())
    }

    /// Reverts everything to the state before the first step.
    fn undo(&self, to: &Path) -> Result<(), RestoreError> {
        for (path, temporary, is) in &self.renames {
            let Ok(dir) = directory(to, path, None) else { continue };
            let _ = unlinkat(&dir, temporary.as_c_str(), UnlinkatFlags::NoRemoveDir);
            if find_existing(to, path)?.as_ref().and_then(identity) == Some(*is) {
                unlinkat(&dir, OsStr::from_bytes(path.name()), UnlinkatFlags::NoRemoveDir)
                    .map_err(|e| failed(&to.join(path.as_path()), "taking it back", e))?;
            }
        }
        let aside = self.aside_of(to);
        for path in &self.moves {
            if find_existing(&aside, path)?.is_some() && find_existing(to, path)?.is_none() {
                move_file(&aside, to, path)?;
                remove_empty(&aside, path);
            }
        }
        if self.aside.is_some() {
            let _ = std::fs::remove_dir(&aside); // it stays if it is not empty
        }
        Ok(())
    }

    /// Whether every file exists under its temporary or its final name.
    fn can_go_forward(&self, to: &Path) -> bool {
        self.renames.iter().all(|(path, temporary, is)| {
            let is_there = |name: &[u8]| {
                let dir = directory(to, path, None).ok()?;
                identity(&fstatat(&dir, OsStr::from_bytes(name), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?)
            };
            [temporary.as_bytes(), path.name()].into_iter().any(|name| is_there(name) == Some(*is))
        })
    }

    fn sync(&self, to: &Path, published: &[RestoredFile]) -> Result<(), RestoreError> {
        sync_dirs(to, published)?;
        let from = |path: &FilePath| RestoredFile { path: path.clone(), bytes: 0 };
        if self.aside.is_some() {
            sync_dirs(&self.aside_of(to), &self.moves.iter().map(from).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

fn identity(stat: &FileStat) -> Option<Identity> {
    let is_ours = matches!(kind(stat), SFlag::S_IFREG | SFlag::S_IFLNK);
    is_ours.then(|| Fingerprint::of_stat(stat)).map(|print| (print.inode, print.bytes, print.modified_ns))
}

/// Creates the first directory `.mcr-aside-N` whose name is free.
fn make_aside(to: &Path) -> Result<String, RestoreError> {
    for n in 1..=ASIDE_MAX {
        let name = format!("{ASIDE_PREFIX}{n}");
        match std::fs::create_dir(to.join(&name)) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&to.join(name), "creating it", error)),
        }
    }
    Err(failed(to, "moving files aside: there are 10000 .mcr-aside-N; remove some", io::ErrorKind::AlreadyExists))
}

/// Moves a file to the same relative path below another directory.
fn move_file(from: &Path, to: &Path, path: &FilePath) -> Result<(), RestoreError> {
    let at = from.join(path.as_path());
    let made = Mutex::default();
    let (source, dest) = (directory(from, path, None)?, directory(to, path, Some(&made))?);
    let name = OsStr::from_bytes(path.name());
    if fstatat(&dest, name, AtFlags::AT_SYMLINK_NOFOLLOW) != Err(Errno::ENOENT) {
        return Err(RestoreError::Occupied { path: to.join(path.as_path()) });
    }
    renameat(&source, name, &dest, name).map_err(|e| {
        locked(&made).iter().rev().for_each(|dir| drop(std::fs::remove_dir(dir)));
        failed(&at, "moving it aside", e)
    })
}

/// Removes the empty directories above a path, up to `to`.
fn remove_empty(to: &Path, path: &FilePath) {
    let above = path.as_path().ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
    for dir in above {
        if std::fs::remove_dir(to.join(dir)).is_err() {
            return;
        }
    }
}

// Recovery after a kill.

/// Names of the journals in a directory. Empty if the directory does not exist.
fn journals(to: &Path) -> Result<Vec<String>, RestoreError> {
    let listed = match std::fs::read_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| failed(to, "reading the directory", e))?,
    };
    let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(leftovers::JOURNAL_PREFIX)).collect())
}

fn recover_locked(to: &Path) -> Result<Recovered, RestoreError> {
    let mut recovered = Recovered::default();
    for name in journals(to)? {
        // On a file system without locks, the process may still be running.
        if leftovers::is_at_work(&name) == Some(true) && !name.ends_with(&here()) {
            continue;
        }
        let journal = match name.ends_with(".new") {
            true => Err("it was never finished".to_owned()),
            false => sealed::read::<Journal>(&to.join(&name), KIND, VERSION),
        };
        match journal.and_then(|journal| Steps::of(journal).ok_or_else(|| "it names impossible paths".to_owned())) {
            Ok(steps) => {
                // After a crash of the node, bytes that were never synced may differ from the bytes that were
                // compared.
                let is_safe = steps.synced || leftovers::is_at_work(&name).is_some();
                if is_safe && steps.can_go_forward(to) && steps.forward(to).is_ok() {
                    recovered.completed += 1;
                } else {
                    steps.undo(to)?;
                    recovered.undone += 1;
                }
                let renamed =
                    |(path, ..): &(FilePath, CString, Identity)| RestoredFile { path: path.clone(), bytes: 0 };
                let there: Vec<_> = steps.renames.iter().map(renamed).collect();
                let _ = steps.sync(to, &there); // a directory that was made for the files may be gone
            }
            Err(why) => tracing::warn!(journal = name, why, "the journal of a restart cannot be used"),
        }
        remove_journal(to, &name, true)?;
    }
    Ok(recovered)
}

fn remove_journal(to: &Path, name: &str, sync: bool) -> Result<(), RestoreError> {
    let remove = || {
        std::fs::remove_file(to.join(name))?;
        if sync { File::open(to)?.sync_all() } else { Ok(()) }
    };
    remove().map_err(|e| failed(to, "removing the journal of its renames", e))
}

// Locking.

/// The lock of a directory during a publication. Dropping it removes the lock file.
struct Lock {
    path: PathBuf,
    /// `None`: the file system has no locks.
    _held: Option<File>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self._held.is_some() {
            // The lock is still held here. A waiting restart then finds another lock file or none, and starts again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock(to: &Path, wait: Duration) -> Result<Lock, RestoreError> {
    let (path, started) = (to.join(LOCK), Instant::now());
    // Each holder creates a new lock file.
    let (mut holder, mut since) = (None, started);
    loop {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut open = File::options();
        open.read(true).write(true).create(true).truncate(false).mode(0o666).custom_flags(flags.bits());
        let file = open.open(&path);
        let file = file.map_err(|e| failed(&path, "opening the lock", e))?;
        match file.try_lock() {
            Ok(()) => {
                let (held, named) = (file.metadata(), std::fs::symlink_metadata(&path));
                if let (Ok(held), Ok(named)) = (held, named)
                    && (held.dev(), held.ino()) == (named.dev(), named.ino())
                {
                    return Ok(Lock { path, _held: Some(file) });
                }
            }
            Err(TryLockError::WouldBlock) => {
                let now = std::fs::symlink_metadata(&path).ok().map(|m| (m.ino(), m.ctime(), m.ctime_nsec()));
                if now != holder {
                    (holder, since) = (now, Instant::now());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::Error(error)) => {
                tracing::warn!(
                    path = %path.display(), %error,
                    "the file system has no locks: let no other restart write there now"
                );
                let _ = std::fs::remove_file(&path);
                return Ok(Lock { path, _held: None });
            }
        }
        if since.elapsed() >= wait || started.elapsed() >= LOCK_WAIT_MAX {
            return Err(RestoreError::Busy { path: to.to_owned(), waited_s: started.elapsed().as_secs() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as left by a restart that was killed after some of its steps: `a` and `d/b` are restored over
    /// existing files, `d/c` is newer and moved aside, and `e/f` is restored where nothing existed.
    fn killed_after(steps_done: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let to = dir.path();
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let here = here().replace(&std::process::id().to_string(), &child.id().to_string());
        child.wait().expect("it ends");
        for inner in ["d", "e", ".mcr-aside-1"] {
            std::fs::create_dir(to.join(inner)).expect("made");
        }
        for old in ["a", "d/b", "d/c"] {
            std::fs::write(to.join(old), "old").expect("written");
        }
        let path = |text: &str| FilePath::new(text.as_bytes()).expect("valid");
        let mut renames = Vec::new();
        for (nth, new) in ["a", "d/b", "e/f"].into_iter().enumerate() {
            let temporary = CString::new(format!(".mcr-restart-{here}-{nth}.tmp")).expect("no NUL");
            let at = to.join(new).with_file_name(temporary.to_str().expect("text"));
            std::fs::write(&at, "new").expect("written");
            let is = Fingerprint::of(&at.metadata().expect("there"));
            renames.push((path(new), temporary, (is.inode, is.bytes, is.modified_ns)));
        }
        let moves = ["a", "d/b", "d/c"].map(path).to_vec();
        let steps = Steps { synced: true, aside: Some(".mcr-aside-1".into()), moves, renames };
        let name = format!("{}{here}", leftovers::JOURNAL_PREFIX);
        sealed::write(to, &name, KIND, VERSION, &steps.journal(), true).expect("written");
        for path in steps.moves.iter().take(steps_done) {
            move_file(to, &steps.aside_of(to), path).expect("moved");
        }
        for (path, temporary, _) in steps.renames.iter().take(steps_done.saturating_sub(3)) {
            let at = to.join(path.as_path());
            std::fs::rename(at.with_file_name(temporary.to_str().expect("text")), at).expect("renamed");
        }
        dir
    }

    fn files(to: &Path) -> Vec<String> {
        let mut all = Vec::new();
        let mut open = vec![to.to_owned()];
        while let Some(at) = open.pop() {
            for entry in std::fs::read_dir(&at).expect("readable").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let relative = path.strip_prefix(to).expect("below").display().to_string();
                all.push(format!("{relative} {}", std::fs::read_to_string(&path).expect("text")));
            }
        }
        all.sort();
        all
    }

    #[test]
    fn a_restart_that_was_killed_while_it_published_is_completed_by_the_next_one() {
        for steps_done in 0..=6 {
            let dir = killed_after(steps_done);
            // Another restart that first cleans up the directory must not remove the temporary files.
            for inner in ["", "d", "e"] {
                leftovers::remove_once(&File::open(dir.path().join(inner)).expect("opened").into());
            }
            assert!(is_interrupted(dir.path()), "{steps_done}");
            assert_eq!(recover(dir.path()).expect("done"), Recovered { completed: 1, undone: 0 }, "{steps_done}");
            let expected = [".mcr-aside-1/a old", ".mcr-aside-1/d/b old", ".mcr-aside-1/d/c old"];
            let expected = expected.into_iter().chain(["a new", "d/b new", "e/f new"]);
            assert_eq!(files(dir.path()), expected.collect::<Vec<_>>(), "{steps_done}");
            assert_eq!(recover(dir.path()).expect("done"), Recovered::default(), "once");
        }
    }

    #[test]
    fn a_restart_that_was_killed_is_undone_where_a_temporary_file_is_gone() {
        for steps_done in 0..=5 {
            let dir = killed_after(steps_done);
            let left = std::fs::read_dir(dir.path().join("e")).expect("readable").flatten().next().expect("a file");
            std::fs::remove_file(left.path()).expect("removed");
            assert_eq!(recover(dir.path()).expect("done"), Recovered { completed: 0, undone: 1 }, "{steps_done}");
            assert_eq!(files(dir.path()), ["a old", "d/b old", "d/c old"], "{steps_done}");
            assert!(!dir.path().join(".mcr-aside-1").exists());
        }
    }

    #[test]
    fn a_lock_is_waited_for_with_a_deadline_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = lock(dir.path(), LOCK_WAIT).expect("free");
        let refused = lock(dir.path(), Duration::from_millis(50)).err().expect("held").to_string();
        assert!(refused.contains("another restart"), "{refused}");
        drop(held);
        drop(lock(dir.path(), Duration::ZERO).expect("free again"));
        assert_eq!(files(dir.path()), [""; 0]);
    }

    #[test]
    fn files_of_one_shape_differ_in_numbers_alone() {
        let shape_of = |text: &str| String::from_utf8(shape(text.as_bytes())).expect("text");
        assert_eq!(shape_of("DD0018/DD0018.cpu0003"), "DD#/DD#.cpu#");
        assert_eq!(shape_of("DD9/DD10.cpu1"), shape_of("DD0018/DD0018.cpu0003"));
        assert_ne!(shape_of("plt001.h5"), shape_of("chk001.h5"));
    }
}
