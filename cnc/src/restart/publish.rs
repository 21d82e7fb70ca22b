//! Publishes restored files: all files of a checkpoint get their final names together, and no existing file is lost.
//!
//! Before the publication, all files are verified and durable under temporary names. The following steps run under a
//! lock of the target directory:
//!
//! 1. A restart that was killed during its publication is completed. If temporary files of the killed restart are
//!    missing, the publication is undone.
//! 2. Existing files under the final names are found. An existing file with the same content stays. An existing file
//!    with other content is moved to `.mcr-aside-N/`. A file of a later step is also moved to this directory. Such a
//!    file does not belong to the checkpoint, and has the shape of restored files. In addition, the file is newer than
//!    all restored files of its shape, or its name is later (`later.rs`). An application that starts from the newest
//!    file, or from the file with the largest number, would use such a file. The shape of a file is its path with
//!    every run of digits replaced by `#`. A newer pointer file that is not part of the checkpoint is moved, too
//!    (`stale.rs`), and a link to a moved file or directory. If the checkpoints of a job have names such as `a` and
//!    `b`, newer files of the other checkpoints are moved, too.
//!
//!    The user's settings `mcr.toml` are an exception: an existing file stays, because an older version may name
//!    another store.
//! 3. The journal `.mcr-publish-WHERE-PROCESS` lists every move and every rename. The journal is durable before the
//!    first move or rename.
//! 4. The files are moved, then renamed. The journal is removed when all moves and renames are durable.

use super::aside::make_aside;
use super::directories::{directory, failed, inner_of, link_above, would_lead_out};
use super::existing::{compare, file_print, find_existing, is_same_link, mark_existing};
use super::journal::{Recovered, Steps, recover_locked, remove_journal};
use super::later::{Later, shape};
use super::leftovers;
use super::lock::{LOCK_WAIT, lock};
use super::stale::Stale;
use super::target::Target;
use super::{RestoreError, RestoredFile, VerifiedFile, sync_dirs};
use crate::fingerprint::Fingerprint;
use crate::layout::is_ours;
use crate::layout::of_job::is_settings;
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{FilePath, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Maximum number of files and directories that the search for newer files examines.
const ENTRIES_MAX: usize = 4 << 20;

/// Options of a publication.
#[derive(Clone, Debug, Default)]
pub struct Publish {
    /// All files of the checkpoint, including files that this node does not restore. Files of this set are not moved
    /// aside, even if they are newer.
    pub of_checkpoint: BTreeSet<FilePath>,
    /// Files of other checkpoints whose names differ from the name of this checkpoint in more than numbers. Such a file
    /// is moved aside if it is newer than all restored files.
    pub of_others: BTreeSet<FilePath>,
    /// The label of the checkpoint, if the names of checkpoints count the steps of the job. Files with a later label
    /// are moved aside, even if they are older. `None` if the application uses a few names in turn.
    pub label: Option<String>,
    /// Whether the restored files are a copy for inspection, and the application continues. If the files are a copy,
    /// newer files of the application are not moved aside, and existing files with the same content are not marked as
    /// restored.
    pub is_copy: bool,
    /// Whether the files and all renames are made durable.
    pub sync: bool,
    /// Directories of the checkpoint, with their permission bits.
    pub directories: BTreeMap<FilePath, u32>,
}

/// Why a file was moved aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A restored file with other content replaces the file.
    Replaced,
    /// The file is newer than the restored files.
    Newer,
    /// The name of the file belongs to a later step.
    Later,
    /// The file is a link with the name of a directory of the checkpoint. A copy does not write through links.
    Link,
    /// The file is a link to a file or directory that is moved aside, as `latest -> step_9`.
    LeadsAside,
}

/// A file that was moved aside, or that a publication would move aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// Path below the target directory. After the move, the file has the same path below `.mcr-aside-N`.
    pub path: FilePath,
    /// The reason.
    pub why: Why,
    /// Whether the file was written after all restored files. False for links and pointer files.
    pub is_newer: bool,
}

/// The result of a publication.
#[derive(Debug, Default)]
pub struct Published {
    /// All files of the publication, including files that already existed with the same content.
    pub files: Vec<RestoredFile>,
    /// Number of files that already existed with the same content.
    pub unchanged: usize,
    /// Files that were moved aside.
    pub aside: Vec<Aside>,
    /// The directory below the target directory to which the files were moved.
    pub aside_to: Option<String>,
    /// Whether the moved files may be a whole checkpoint that is newer than the restored checkpoint.
    pub hides_newer: bool,
    /// Links that were not created. Such a link leads to a directory elsewhere, or a directory has its name.
    pub not_made: Vec<FilePath>,
    /// Whether the checkpoint has other settings `mcr.toml`, and the existing settings stay.
    pub keeps_settings: bool,
    /// Links below the target directory through which files were restored.
    pub through: Vec<FilePath>,
    /// The journal of the publication, if it has moved what the user must know about.
    pub unreported: Option<Unreported>,
}

/// The journal of a publication whose moved files may be a newer checkpoint. If the process is killed before it has
/// told the user, the next restart finds the journal, and tells the user.
#[derive(Debug)]
pub struct Unreported {
    to: PathBuf,
    journal: String,
    sync: bool,
}

impl Unreported {
    /// Removes the journal, because the user was told about the moved files.
    pub fn reported(self) -> Result<(), RestoreError> {
        remove_journal(&self.to, &self.journal, self.sync)
    }
}

/// The existing files that stay, and the existing files that must be moved aside.
#[derive(Debug, Default)]
struct Plan {
    /// Indices in the list of files to publish. For these files, the existing file stays.
    kept: BTreeSet<usize>,
    aside: Vec<Aside>,
}

/// Gives all files of a checkpoint their final names, or no file its final name.
pub fn publish_all(
    target: &Arc<Target>,
    files: Vec<VerifiedFile>,
    how: &Publish,
) -> Result<(Published, Recovered), RestoreError> {
    target.make()?;
    let to = target.path();
    target.make_directories(how.directories.keys())?;
    let (files, not_made) = without_links_out(to, without_repeated(files));
    let (settings, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| {
        let is_same = || file.compared.is_some_and(|(_, is_same)| is_same);
        keeps_existing(to, &file.header.path) && !is_same()
    });
    let wanted: Vec<Wanted<'_>> = files.iter().map(Wanted::of).collect();
    // The search for newer files runs before the lock is taken, because the search may take long.
    let searched = search(to, &wanted, how)?;
    let _lock = lock(to, LOCK_WAIT)?;
    let recovered = recover_locked(to)?;
    searched.littered.iter().for_each(|dir| leftovers::remove_in(&to.join(dir)));
    let plan = plan(to, &wanted, &searched.later)?;
    let hides_newer = !how.is_copy && may_be_whole(&plan.aside, &wanted);
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
    // The restored files are recorded before the first restored file gets its final name. Thereby an agent never
    // considers a restored file a new file of the application.
    crate::restored::record(to, &unmarked).map_err(|e| failed(to, "recording what is restored", e))?;
    let files = with_hard_links(target, files, &plan.kept);
    let renames = (files.iter().enumerate())
        .filter(|(place, _)| !plan.kept.contains(place))
        .map(|(_, file)| {
            let is = (file.print.inode, file.print.bytes, file.print.modified_ns);
            (file.header.path.clone(), file.temporary.name().clone(), is)
        })
        .collect();
    let moves: Vec<FilePath> = plan.aside.iter().map(|aside| aside.path.clone()).collect();
    let (aside, links) = match target.moved_links() {
        Some((name, links)) => (Some(name), links),
        None if moves.is_empty() => (None, Vec::new()),
        None => (Some(make_aside(to, &moves)?), Vec::new()),
    };
    let steps = Steps { synced: how.sync, aside: aside.clone(), moves, hides_newer, renames };
    if !steps.renames.is_empty() || !steps.moves.is_empty() {
        let name = steps.write_journal(to)?;
        if let Err(error) = steps.forward(to) {
            // If the undo fails too, the journal stays, and the next restart reads it.
            steps.undo(to)?;
            remove_journal(to, &name, how.sync)?;
            return Err(error);
        }
        if how.sync {
            steps.sync(to, &published.files)?;
        }
        match hides_newer {
            true => published.unreported = Some(Unreported { to: to.to_owned(), journal: name, sync: how.sync }),
            false => remove_journal(to, &name, how.sync)?,
        }
    }
    if how.sync {
        let inner = |path: &FilePath| Some(RestoredFile { path: inner_of(path).ok()?, bytes: 0 });
        sync_dirs(to, &how.directories.keys().filter_map(inner).collect::<Vec<_>>())?;
    }
    target.set_modes(&how.directories)?;
    target.keep();
    let through: BTreeSet<FilePath> = published.files.iter().filter_map(|file| link_above(to, &file.path)).collect();
    published.through = through.into_iter().collect();
    (published.not_made, published.aside_to) = (not_made, aside);
    published.aside = with_links(plan.aside, links);
    (published.keeps_settings, published.hides_newer) = (!settings.is_empty(), hides_newer);
    Ok((published, recovered))
}

/// Adds links that were moved aside to a list of moved files.
fn with_links(mut aside: Vec<Aside>, links: impl IntoIterator<Item = FilePath>) -> Vec<Aside> {
    aside.extend(links.into_iter().map(|path| Aside { path, why: Why::Link, is_newer: false }));
    aside.sort_by(|a, b| a.path.cmp(&b.path));
    aside
}

/// Removes the files whose path a file of a lower rank has. Each node with a local disk may have a pointer file or a
/// link of the same name, and the files of all nodes may be restored to one directory.
fn without_repeated(files: Vec<VerifiedFile>) -> Vec<VerifiedFile> {
    let first = first_of_each_path(files.iter().map(|file| &*file.header));
    let (files, repeated): (Vec<_>, Vec<_>) =
        files.into_iter().enumerate().partition(|(place, _)| first.contains(place));
    if let Some((_, file)) = repeated.first() {
        tracing::warn!(
            path = %file.header.path, rank = file.header.rank.0, files = repeated.len(),
            "another rank has a pointer file or a link of this name: that of the lowest rank is restored"
        );
    }
    files.into_iter().map(|(_, file)| file).collect()
}

/// For each path, the place of the file to restore. If several ranks have a companion of the same path, this is the
/// companion of the lowest rank. All other files have different paths.
fn first_of_each_path<'a>(headers: impl Iterator<Item = &'a FileHeader>) -> BTreeSet<usize> {
    let mut first: BTreeMap<&FilePath, (bool, Rank, usize)> = BTreeMap::new();
    for (place, header) in headers.enumerate() {
        let this = (header.kind.is_companion(), header.rank, place);
        first.entry(&header.path).and_modify(|other| *other = this.min(*other)).or_insert(this);
    }
    first.into_values().map(|(_, _, place)| place).collect()
}

/// Removes two kinds of links from the files to publish. The first kind leads to a directory elsewhere, through which
/// the next restart would write. The second kind has the name of a directory, and cannot be created. So a link never
/// makes the restore of a checkpoint fail.
fn without_links_out(to: &Path, files: Vec<VerifiedFile>) -> (Vec<VerifiedFile>, Vec<FilePath>) {
    if files.iter().all(|file| file.header.kind != FileKind::SymbolicLink) {
        return (files, Vec::new());
    }
    let links: BTreeSet<FilePath> = files.iter().filter_map(|file| link_above(to, &file.header.path)).collect();
    let through: Vec<PathBuf> = links.iter().filter_map(|link| to.join(link.as_path()).canonicalize().ok()).collect();
    let cannot_be = |file: &VerifiedFile| {
        let text = (file.header.kind == FileKind::SymbolicLink).then(|| file.temporary.link_text()).flatten();
        let is_taken = || find_existing(to, &file.header.path).is_err();
        text.is_some_and(|text| would_lead_out(to, &file.header.path, &text, &through) || is_taken())
    };
    let (out, files): (Vec<_>, Vec<_>) = files.into_iter().partition(cannot_be);
    (files, out.into_iter().map(|file| file.header.path.clone()).collect())
}

/// Whether this is the path of the user's settings, and such a file exists.
fn keeps_existing(to: &Path, path: &FilePath) -> bool {
    is_settings(path.as_bytes()) && to.join(path.as_path()).symlink_metadata().is_ok()
}

/// Replaces a restored file by a hard link, if it was a hard link of another file of the checkpoint. The new link
/// leads to the temporary file of the other file, or to the existing file that stays in place of the other file. On a
/// file system without hard links, the restored file stays.
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

/// Whether the files that are moved aside may be a whole checkpoint: of the files that were written after all restored
/// files, either those with the names of restored files or the others are at least as many as the restored files.
fn may_be_whole(aside: &[Aside], wanted: &[Wanted<'_>]) -> bool {
    let restored = wanted.iter().filter(|wanted| wanted.is_of_a_rank()).count();
    let (same, others): (Vec<_>, Vec<_>) =
        aside.iter().filter(|aside| aside.is_newer).partition(|aside| aside.why == Why::Replaced);
    restored > 0 && same.len().max(others.len()) >= restored
}

/// The existing files that a publication of these files would move aside, and [`Published::hides_newer`]. This function
/// changes nothing.
pub fn preview(to: &Path, files: &[&FileHeader], how: &Publish) -> Result<(Vec<Aside>, bool), RestoreError> {
    if !to.exists() {
        return Ok((Vec::new(), false));
    }
    let link = |header: &FileHeader| link_above(to, &header.path).filter(|_| how.is_copy);
    let links: BTreeSet<FilePath> = files.iter().filter_map(|header| link(header)).collect();
    // A copy moves a link aside, so that no file exists below the name of the link.
    let first = first_of_each_path(files.iter().copied());
    let free = files.iter().enumerate().filter(|(place, _)| first.contains(place)).map(|(_, header)| header);
    let free = free.filter(|header| link(header).is_none() && !keeps_existing(to, &header.path));
    let wanted: Vec<Wanted<'_>> = free.map(|header| Wanted { header, compared: None }).collect();
    let aside = with_links(plan(to, &wanted, &search(to, &wanted, how)?.later)?.aside, links);
    let hides_newer = !how.is_copy && may_be_whole(&aside, &wanted);
    Ok((aside, hides_newer))
}

/// A file to publish, and the result of its comparison with the existing file.
struct Wanted<'a> {
    header: &'a FileHeader,
    compared: Option<(Fingerprint, bool)>,
}

impl<'a> Wanted<'a> {
    fn of(file: &'a VerifiedFile) -> Self {
        Self { header: &file.header, compared: file.compared }
    }

    /// Whether a rank wrote the file for this checkpoint. A pointer file or a link is written anew for each checkpoint.
    fn is_of_a_rank(&self) -> bool {
        self.header.kind.is_file() && !self.header.kind.is_companion()
    }
}

/// The time at which the last of the files was written.
fn last_written(wanted: &[Wanted<'_>]) -> Option<i64> {
    wanted.iter().filter(|wanted| wanted.is_of_a_rank()).map(|wanted| wanted.header.modified_ns).max()
}

/// Plans which existing files stay and which existing files are moved aside. Existing files are the files under final
/// names, and the files of later steps that still exist.
fn plan(to: &Path, wanted: &[Wanted<'_>], later: &[Aside]) -> Result<Plan, RestoreError> {
    let mut plan = Plan::default();
    let last_written = last_written(wanted);
    for (place, file) in wanted.iter().enumerate() {
        let path = &file.header.path;
        let Some(stat) = find_existing(to, path)? else { continue };
        let print = file_print(&stat);
        let same = match (print, file.compared) {
            _ if file.header.kind == FileKind::SymbolicLink => is_same_link(to, file.header),
            (None, _) => false,
            (Some(print), Some((before, same))) if before == print => same,
            (Some(_), _) => compare(to, file.header).is_some_and(|(_, same)| same),
        };
        match same {
            true => drop(plan.kept.insert(place)),
            false => {
                let is_newer = file.is_of_a_rank() && print.is_some_and(|print| Some(print.modified_ns) > last_written);
                plan.aside.push(Aside { path: path.clone(), why: Why::Replaced, is_newer });
            }
        }
    }
    for aside in later {
        if find_existing(to, &aside.path)?.is_some() {
            plan.aside.push(aside.clone());
        }
    }
    plan.aside.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(plan)
}

/// The result of a search in the target directory.
#[derive(Default)]
struct Searched {
    /// Files that are newer than all restored files of the same shape, or that have a later name.
    later: Vec<Aside>,
    /// Directories with temporary files of other restarts, relative to the target directory.
    littered: BTreeSet<PathBuf>,
}

/// Searches the target directory. Many nodes may search one directory at the same time. Therefore only directories of
/// the right shape are read, and only the times of matching files are requested.
fn search(to: &Path, wanted: &[Wanted<'_>], how: &Publish) -> Result<Searched, RestoreError> {
    let mut found = Searched::default();
    let mut newest: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    for Wanted { header, .. } in wanted.iter().filter(|wanted| !wanted.header.kind.is_companion()) {
        let newest = newest.entry(shape(header.path.as_bytes())).or_insert(i64::MIN);
        *newest = header.modified_ns.max(*newest);
    }
    let above = |shape: &Vec<u8>| -> Vec<Vec<u8>> {
        let ends = shape.iter().enumerate().filter(|(_, b)| **b == b'/');
        ends.map(|(at, _)| shape[..at].to_vec()).collect()
    };
    let newest_of_all = newest.values().copied().max();
    let of_others: BTreeSet<&FilePath> = how.of_others.difference(&how.of_checkpoint).collect();
    let shapes_of_others = of_others.iter().map(|path| shape(path.as_bytes()));
    let directories: BTreeSet<Vec<u8>> =
        newest.keys().cloned().chain(shapes_of_others).flat_map(|shape| above(&shape)).collect();
    if how.is_copy {
        newest.clear(); // a copy moves no newer files aside
    }
    let ours: BTreeSet<&FilePath> = wanted.iter().map(|file| &file.header.path).collect();
    let later = how.label.as_ref().map_or_else(Later::default, |label| {
        Later::new(label, ours.iter().copied().chain(&how.of_checkpoint).map(FilePath::as_bytes))
    });
    let stale = Stale::new(ours.iter().copied().chain(&how.of_checkpoint).collect(), how.label.as_deref());
    let is_of_checkpoint = |path: &FilePath| ours.contains(path) || how.of_checkpoint.contains(path);
    let mut links = Vec::new();
    let (mut open, mut entries) = (vec![PathBuf::new()], 0usize);
    while let Some(dir) = open.pop() {
        let listed = match std::fs::read_dir(to.join(&dir)) {
            Ok(listed) => listed,
            Err(error) if dir.as_os_str().is_empty() => return Err(failed(to, "looking for newer files", error)),
            Err(_) => continue, // the directory was removed, or there is no permission to read it
        };
        for entry in listed.flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                tracing::warn!(
                    to = %to.display(), ENTRIES_MAX,
                    "too many files to examine: some newer files may not be moved aside"
                );
                return Ok(found);
            }
            let path = dir.join(entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            let shape = shape(path.as_os_str().as_bytes());
            if is_ours(entry.file_name().as_bytes()) {
                if entry.file_name().to_str().is_some_and(leftovers::is_of_another_process) {
                    found.littered.insert(dir.clone());
                }
            } else if (kind.is_dir() || kind.is_symlink()) && directories.contains(&shape) {
                let inner = FilePath::new(path.as_os_str().as_bytes()).and_then(|path| inner_of(&path));
                if kind.is_dir() || inner.is_ok_and(|inner| directory(to, &inner, None).is_ok()) {
                    open.push(path);
                }
            } else if kind.is_symlink() {
                links.extend(FilePath::new(path.as_os_str().as_bytes()).ok().filter(|path| !is_of_checkpoint(path)));
            } else if kind.is_file() {
                let Ok(path) = FilePath::new(path.as_os_str().as_bytes()) else { continue };
                let of_other = newest_of_all.filter(|_| of_others.contains(&path));
                let of_shape = newest.get(&shape).copied().or(of_other);
                let is_pointer = !how.is_copy && of_shape.is_none() && stale.may_be(&path);
                let Some(newest) = of_shape.or(newest_of_all.filter(|_| is_pointer)) else { continue };
                let modified_ns = entry.metadata().map_or(i64::MIN, |stat| Fingerprint::of(&stat).modified_ns);
                let why = match modified_ns > newest {
                    true if is_pointer && !stale.leads_on(&to.join(path.as_path())) => continue,
                    true => Why::Newer,
                    false if later.has(path.as_bytes()) => Why::Later,
                    false => continue,
                };
                if !is_of_checkpoint(&path) {
                    let is_newer = !is_pointer && Some(modified_ns) > newest_of_all;
                    found.later.push(Aside { path, why, is_newer });
                }
            }
        }
    }
    let moved: BTreeSet<&FilePath> = found.later.iter().map(|aside| &aside.path).collect();
    let stays = |dir: &Path| ours.iter().copied().chain(&how.of_checkpoint).any(|path| path.as_path().starts_with(dir));
    links.retain(|link| {
        let end = end_of_link(to, link);
        end.is_some_and(|end| moved.iter().any(|path| path.as_path().starts_with(&end)) && !stays(&end))
    });
    found.later.extend(links.into_iter().map(|path| Aside { path, why: Why::LeadsAside, is_newer: false }));
    Ok(found)
}

/// The path to which a symbolic link leads, relative to the target directory. `None` if the link leads to the target
/// directory itself or out of it. Links in the path are not followed.
fn end_of_link(to: &Path, link: &FilePath) -> Option<PathBuf> {
    let text = std::fs::read_link(to.join(link.as_path())).ok()?;
    let end = match text.is_absolute() {
        true => text.strip_prefix(std::path::absolute(to).ok()?).ok()?.to_owned(),
        false => link.as_path().parent()?.join(text),
    };
    let mut path = PathBuf::new();
    for part in end.components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    (path != PathBuf::new()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::whole;
    use crate::restart::FileRestorer;
    use mcrengine::ids::Digest;

    /// A verified file of a checkpoint that was written at this time.
    fn verified(to: &Path, path: &str, content: &str, modified_ns: i64) -> VerifiedFile {
        let (bytes, digest) = (content.len() as u64, Digest::of(content.as_bytes()));
        let header = FileHeader {
            path: FilePath::new(path.as_bytes()).expect("valid"),
            rank: Rank(0),
            bytes,
            kind: FileKind::Regular,
            mode: 0o644,
            modified_ns,
            digest,
            variables: vec![whole(digest, bytes)],
        };
        let restorer = FileRestorer::create(to, Arc::new(header)).expect("created");
        restorer.write(0, 0, content.as_bytes()).expect("written");
        restorer.verify(false).expect("verified")
    }

    #[test]
    fn existing_settings_are_not_replaced_by_the_settings_of_a_checkpoint() {
        let to = tempfile::tempdir().expect("a directory");
        let publish = |content: &str| {
            let files = vec![verified(to.path(), "mcr.toml", content, 1), verified(to.path(), "state", "state", 1)];
            publish_all(&Target::new(to.path()), files, &Publish::default()).expect("published").0
        };
        let is = || std::fs::read_to_string(to.path().join("mcr.toml")).expect("there");
        assert!(!publish("first").keeps_settings);
        assert_eq!(is(), "first", "there were no settings");
        let published = publish("second");
        assert!(published.keeps_settings && published.aside.is_empty());
        assert_eq!(is(), "first");
        assert!(!publish("first").keeps_settings, "the settings are the same");
    }

    #[test]
    fn a_newer_pointer_file_that_the_checkpoint_does_not_have_is_moved_aside() {
        let to = tempfile::tempdir().expect("a directory");
        let is = |name: &str, step: u32| {
            std::fs::write(to.path().join(name), format!("case.cpl.r.000{step}.nc\n")).expect("written");
        };
        is("rpointer.drv", 4);
        is("rpointer.ice", 3);
        is("notes.txt", 4);
        let publish = |is_copy: bool| {
            let files = vec![verified(to.path(), "case.cpl.r.0003.nc", "state", 1_000_000_000)];
            let how = Publish { is_copy, label: Some("0003".to_owned()), ..Publish::default() };
            publish_all(&Target::new(to.path()), files, &how).expect("published").0
        };
        assert_eq!(publish(true).aside, [], "the application continues with its own files");
        let aside = publish(false).aside;
        let drv = FilePath::new(&b"rpointer.drv"[..]).expect("valid");
        let drv = Aside { path: drv, why: Why::Newer, is_newer: false };
        assert_eq!(aside, [drv], "the other pointer names the restored checkpoint");
        assert!(!to.path().join("rpointer.drv").exists() && to.path().join("rpointer.ice").exists());
    }

    #[test]
    fn the_next_restart_knows_of_a_newer_checkpoint_that_was_moved_aside_until_the_user_was_told() {
        let to = tempfile::tempdir().expect("a directory");
        std::fs::write(to.path().join("out_3.0"), "step 3").expect("written");
        let files = vec![verified(to.path(), "out_2.0", "step 2", 1_000_000_000)];
        let how = Publish { label: Some("2".to_owned()), ..Publish::default() };
        let published = publish_all(&Target::new(to.path()), files, &how).expect("published").0;
        assert!(published.hides_newer, "{published:?}");
        let before = recover_locked(to.path()).expect("read").aside.expect("the journal is there");
        assert!(before.hides_newer && before.to == ".mcr-aside-1" && before.files.len() == 1, "{before:?}");

        std::fs::write(to.path().join("out_4.0"), "step 4").expect("written");
        let files = vec![verified(to.path(), "out_2.0", "step 2", 1_000_000_000)];
        let published = publish_all(&Target::new(to.path()), files, &how).expect("published").0;
        published.unreported.expect("files were moved").reported().expect("removed");
        assert_eq!(recover_locked(to.path()).expect("read"), Recovered::default());
    }

    #[test]
    fn of_pointer_files_of_one_path_that_of_the_lowest_rank_is_restored() {
        let to = tempfile::tempdir().expect("a directory");
        let of_rank = |rank: u32, kind: FileKind| {
            let mut file = verified(to.path(), "latest", &format!("of rank {rank}"), 1);
            file.header = Arc::new(FileHeader { rank: Rank(rank), kind, ..(*file.header).clone() });
            file
        };
        let files = [4, 2, 6].map(|rank| of_rank(rank, FileKind::Pointer));
        let published = publish_all(&Target::new(to.path()), files.into(), &Publish::default()).expect("published").0;
        assert_eq!((published.files.len(), published.aside.len()), (1, 0));
        assert_eq!(std::fs::read(to.path().join("latest")).expect("there"), b"of rank 2");
        let left = std::fs::read_dir(to.path()).expect("there").flatten().filter(|e| e.path().extension().is_some());
        assert_eq!(left.count(), 0, "no temporary file is left");
        let files = [(0, FileKind::Pointer), (3, FileKind::Regular)].map(|(rank, kind)| of_rank(rank, kind));
        publish_all(&Target::new(to.path()), files.into(), &Publish::default()).expect("published");
        assert_eq!(
            std::fs::read(to.path().join("latest")).expect("there"),
            b"of rank 3",
            "a file of a rank comes first"
        );
    }

    #[test]
    fn a_link_to_a_later_step_is_moved_aside_with_the_step() {
        let to = tempfile::tempdir().expect("a directory");
        let at = |name: &str| to.path().join(name);
        for step in ["s1", "s3"] {
            std::fs::create_dir(at(step)).expect("made");
            std::fs::write(at(step).join("d.0"), step).expect("written");
        }
        let first = std::fs::File::options().write(true).open(at("s1/d.0")).expect("there");
        first.set_modified(std::time::UNIX_EPOCH).expect("set");
        let absolute = at("s3/d.0");
        let links = [("latest", "s3"), ("newest", "./x/../s3/d.0"), ("whole", absolute.to_str().expect("UTF-8"))];
        let others = [("first", "s1"), ("self", "."), ("out", ".."), ("restored", "s2/d.0"), ("root", "/")];
        for (name, end) in links.iter().chain(&others) {
            std::os::unix::fs::symlink(end, at(name)).expect("made");
        }
        let publish = |is_copy: bool| {
            let files = vec![verified(to.path(), "s2/d.0", "state", 1_000_000_000)];
            let how = Publish { is_copy, label: Some("s2".to_owned()), ..Publish::default() };
            publish_all(&Target::new(to.path()), files, &how).expect("published").0.aside
        };
        assert_eq!(publish(true), []);
        let moved: Vec<_> = publish(false).into_iter().map(|aside| (aside.path.to_string(), aside.why)).collect();
        let expected = ["latest", "newest", "whole"].map(|name| (name.to_owned(), Why::LeadsAside));
        assert_eq!(moved.iter().filter(|(_, why)| *why == Why::LeadsAside).cloned().collect::<Vec<_>>(), expected);
        assert!(others.iter().all(|(name, _)| at(name).is_symlink()) && !at("latest").is_symlink());
    }

    #[test]
    fn files_of_one_shape_differ_in_numbers_alone() {
        let shape_of = |text: &str| String::from_utf8(shape(text.as_bytes())).expect("text");
        assert_eq!(shape_of("DD0018/DD0018.cpu0003"), "DD#/DD#.cpu#");
        assert_eq!(shape_of("DD9/DD10.cpu1"), shape_of("DD0018/DD0018.cpu0003"));
        assert_ne!(shape_of("plt001.h5"), shape_of("chk001.h5"));
    }
}
