//! The steps of a publication, and the journal of these steps. If a publication is interrupted, the next restart
//! reads its journal, and completes or undoes the publication.
//!
//! The journal consists of three lines: `mcr-publish 1`, a line of JSON ([`Journal`]), and `blake3 HEX` with the
//! digest of the first two lines. In paths, a backslash and each byte that is not printable ASCII are written as
//! `\xNN`.

use super::aside::{ASIDE_PREFIX, move_file, remove_elsewhere, remove_empty};
use super::directories::{directory, failed};
use super::existing::{find_existing, kind};
use super::leftovers::{self, JOURNAL_PREFIX};
use super::lock::{LOCK_WAIT, lock};
use super::{RestoreError, RestoredFile, sync_dirs};
use crate::fingerprint::Fingerprint;
use crate::here::here;
use crate::sealed;
use crate::state::{escape, unescape};
use mcrengine::ids::FilePath;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{FileStat, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KIND: &str = "mcr-publish";
const VERSION: u32 = 1;

/// Age from which on a journal of another node counts as the journal of a killed restart. Whether a process of another
/// node is running is not known. A publication usually takes less than a second.
const FRESH_MAX: Duration = Duration::from_secs(60);

/// What was found of killed restarts: how many were completed or undone, and which files the last one had moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of killed restarts that were completed. All files of these restarts have their final names now.
    pub completed: usize,
    /// Number of killed restarts that were undone. All changes of these restarts were reverted.
    pub undone: usize,
    /// What the last completed restart had moved aside.
    pub aside: Option<MovedBefore>,
}

/// The files that a killed restart had moved aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedBefore {
    /// The directory below the target directory to which the files were moved.
    pub to: String,
    /// The paths of the files, relative to that directory.
    pub files: Vec<FilePath>,
    /// Whether the files may be a whole checkpoint that is newer than the restored checkpoint.
    pub hides_newer: bool,
}

/// All changes of a publication, with enough information to repeat or undo them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    /// Whether the temporary files were durable before the journal was written.
    synced: bool,
    /// The directory below the target directory to which existing files are moved.
    aside: Option<String>,
    /// Paths of the moved files.
    moves: Vec<String>,
    /// Whether the moved files may be a whole checkpoint that is newer than the restored checkpoint.
    #[serde(default)]
    hides_newer: bool,
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
pub(super) struct Steps {
    pub(super) synced: bool,
    pub(super) aside: Option<String>,
    pub(super) moves: Vec<FilePath>,
    pub(super) hides_newer: bool,
    pub(super) renames: Vec<(FilePath, CString, Identity)>,
}

/// Identifies a restored file: inode, length in bytes, modification time in nanoseconds since 1970.
pub(super) type Identity = (u64, u64, i64);

/// Completes or undoes the restarts that were killed during their publication into this directory.
pub fn recover(to: &Path) -> Result<Recovered, RestoreError> {
    if journals(to)?.is_empty() {
        return Ok(Recovered::default());
    }
    let _lock = lock(to, LOCK_WAIT)?;
    recover_locked(to)
}

/// Whether the directory contains a journal of a killed restart, which must be completed or undone.
pub fn is_interrupted(to: &Path) -> bool {
    journals(to).is_ok_and(|journals| !journals.is_empty())
}

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
            hides_newer: self.hides_newer,
            renames: self.renames.iter().map(rename).collect(),
        }
    }

    /// Writes the journal. Returns the name of the journal.
    pub(super) fn write_journal(&self, to: &Path) -> Result<String, RestoreError> {
        let name = format!("{JOURNAL_PREFIX}{}", here());
        sealed::write(to, &name, KIND, VERSION, &self.journal(), self.synced)
            .map_err(|e| failed(to, "writing the journal of its renames", e))?;
        Ok(name)
    }

    /// Checks the paths of a journal. `None` if the journal contains something that this program never writes.
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
            hides_newer: journal.hides_newer,
            renames: journal.renames.iter().map(rename).collect::<Option<_>>()?,
            aside: journal.aside,
        })
    }

    fn aside_of(&self, to: &Path) -> PathBuf {
        to.join(self.aside.as_deref().unwrap_or(ASIDE_PREFIX))
    }

    /// Moves and renames all files of the steps. Steps that are already done are skipped.
    pub(super) fn forward(&self, to: &Path) -> Result<(), RestoreError> {
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
                // No file existed under this name when the steps were planned.
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

    /// Restores the state before the first step.
    pub(super) fn undo(&self, to: &Path) -> Result<(), RestoreError> {
        for (path, temporary, is) in &self.renames {
            let Ok(dir) = directory(to, path, None) else { continue };
            let _ = unlinkat(&dir, temporary.as_c_str(), UnlinkatFlags::NoRemoveDir);
            if find_existing(to, path)?.as_ref().and_then(identity) == Some(*is) {
                unlinkat(&dir, OsStr::from_bytes(path.name()), UnlinkatFlags::NoRemoveDir)
                    .map_err(|e| failed(&to.join(path.as_path()), "removing it again", e))?;
            }
        }
        let aside = self.aside_of(to);
        for path in &self.moves {
            if find_existing(&aside, path)?.is_some() && find_existing(to, path)?.is_none() {
                move_file(&aside, to, path)?;
                remove_empty(&aside, path);
            }
        }
        if let Some(name) = &self.aside {
            self.moves.iter().for_each(|path| remove_elsewhere(to, name, path));
            let _ = std::fs::remove_dir(&aside); // if the directory is not empty, it stays
        }
        Ok(())
    }

    /// Whether every restored file exists under its temporary name or its final name.
    fn can_go_forward(&self, to: &Path) -> bool {
        self.renames.iter().all(|(path, temporary, is)| {
            let is_there = |name: &[u8]| {
                let dir = directory(to, path, None).ok()?;
                identity(&fstatat(&dir, OsStr::from_bytes(name), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?)
            };
            [temporary.as_bytes(), path.name()].into_iter().any(|name| is_there(name) == Some(*is))
        })
    }

    pub(super) fn sync(&self, to: &Path, published: &[RestoredFile]) -> Result<(), RestoreError> {
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

/// Names of the journals in a directory. Empty if the directory does not exist.
fn journals(to: &Path) -> Result<Vec<String>, RestoreError> {
    let listed = match std::fs::read_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| failed(to, "reading the directory", e))?,
    };
    let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(JOURNAL_PREFIX)).collect())
}

pub(super) fn recover_locked(to: &Path) -> Result<Recovered, RestoreError> {
    let mut recovered = Recovered::default();
    for name in journals(to)? {
        // If the file system has no locks, or has locks only between the processes of one node, the process of the
        // journal may still be running.
        let of = name.strip_suffix(".new").unwrap_or(&name);
        let may_run = leftovers::is_at_work(of).unwrap_or_else(|| is_fresh(&to.join(&name)));
        if may_run && !of.ends_with(&here()) {
            continue;
        }
        let journal = match name.ends_with(".new") {
            true => Err("the journal is incomplete".to_owned()),
            false => sealed::read::<Journal>(&to.join(&name), KIND, VERSION),
        };
        match journal.and_then(|journal| Steps::of(journal).ok_or_else(|| "it contains invalid paths".to_owned())) {
            Ok(steps) => {
                // If a file was not synced and the node crashed, the file may differ from the verified content.
                let is_safe = steps.synced || leftovers::is_at_work(&name).is_some();
                if is_safe && steps.can_go_forward(to) && steps.forward(to).is_ok() {
                    recovered.completed += 1;
                    recovered.aside = steps.aside.clone().filter(|_| !steps.moves.is_empty()).map(|to| MovedBefore {
                        to,
                        files: steps.moves.clone(),
                        hides_newer: steps.hides_newer,
                    });
                } else {
                    steps.undo(to)?;
                    recovered.undone += 1;
                }
                let renamed =
                    |(path, ..): &(FilePath, CString, Identity)| RestoredFile { path: path.clone(), bytes: 0 };
                let there: Vec<_> = steps.renames.iter().map(renamed).collect();
                let _ = steps.sync(to, &there); // a directory that was created for the files may have been removed
            }
            Err(why) => tracing::warn!(journal = name, why, "the journal of a restart cannot be used"),
        }
        remove_journal(to, &name, true)?;
    }
    Ok(recovered)
}

/// Whether a file was written less than [`FRESH_MAX`] ago, by the clock of this node.
fn is_fresh(path: &Path) -> bool {
    let age = |stat: std::fs::Metadata| stat.modified().ok()?.elapsed().ok();
    std::fs::symlink_metadata(path).is_ok_and(|stat| age(stat).is_none_or(|age| age < FRESH_MAX))
}

pub(super) fn remove_journal(to: &Path, name: &str, sync: bool) -> Result<(), RestoreError> {
    let remove = || {
        std::fs::remove_file(to.join(name))?;
        if sync { File::open(to)?.sync_all() } else { Ok(()) }
    };
    remove().map_err(|e| failed(to, "removing the journal of its renames", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory after a restart that was killed after `steps_done` of its steps. `a` and `d/b` replace existing
    /// files, `d/c` is newer and moved aside, and `e/f` has no existing file.
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
        let steps = Steps { synced: true, aside: Some(".mcr-aside-1".into()), moves, hides_newer: true, renames };
        let name = format!("{JOURNAL_PREFIX}{here}");
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
            // If another restart cleans up the directory first, it must not remove the temporary files.
            for inner in ["", "d", "e"] {
                leftovers::remove_once(&File::open(dir.path().join(inner)).expect("opened").into());
            }
            assert!(is_interrupted(dir.path()), "{steps_done}");
            let recovered = recover(dir.path()).expect("done");
            assert_eq!((recovered.completed, recovered.undone), (1, 0), "{steps_done}");
            let aside = recovered.aside.expect("files were moved");
            assert_eq!((aside.to.as_str(), aside.files.len(), aside.hides_newer), (".mcr-aside-1", 3, true));
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
            assert_eq!(
                recover(dir.path()).expect("done"),
                Recovered { undone: 1, ..Recovered::default() },
                "{steps_done}"
            );
            assert_eq!(files(dir.path()), ["a old", "d/b old", "d/c old"], "{steps_done}");
            assert!(!dir.path().join(".mcr-aside-1").exists());
        }
    }

    /// Gives the journal in a directory another name, and this age. Returns the new name.
    fn rename_journal(to: &Path, place: &str, suffix: &str, age: Duration) -> String {
        let old = journals(to).expect("readable").pop().expect("a journal");
        let new = format!("{JOURNAL_PREFIX}{place}{suffix}");
        std::fs::rename(to.join(old), to.join(&new)).expect("renamed");
        let file = File::options().write(true).open(to.join(&new)).expect("opened");
        file.set_modified(std::time::SystemTime::now() - age).expect("set");
        new
    }

    #[test]
    fn a_journal_whose_process_may_be_running_is_left_alone() {
        let running = here().replace(&format!("-{}", std::process::id()), &format!("-{}", nix::unistd::getppid()));
        let elsewhere = "0123456789abcdef-77";
        let minutes = Duration::from_secs(300);
        let cases = [
            (running.as_str(), "", minutes, true),
            (running.as_str(), ".new", minutes, true),
            (elsewhere, "", Duration::ZERO, true),
            (elsewhere, ".new", Duration::ZERO, true),
            (elsewhere, "", minutes, false),
            (elsewhere, ".new", minutes, false),
        ];
        for (place, suffix, age, stays) in cases {
            let dir = killed_after(2);
            let name = rename_journal(dir.path(), place, suffix, age);
            let before = files(dir.path());
            let recovered = recover(dir.path()).expect("done");
            assert_eq!(dir.path().join(&name).exists(), stays, "{name}");
            match stays {
                true => assert_eq!((recovered, files(dir.path())), (Recovered::default(), before), "{name}"),
                false => assert_ne!(files(dir.path()), before, "{name}"),
            }
        }
    }
}
