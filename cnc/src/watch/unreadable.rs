//! Directories below the watched directory that cannot be read. The files in such a directory may be a checkpoint, so
//! a flush and the end of the agent report the directory. Each directory is read again after 1 s, and then at
//! increasing intervals of up to 60 s.
//!
//! Some directories belong to no application, for example `lost+found`. Such a directory exists before the agent
//! begins to watch. Therefore a directory counts only if it appeared or changed later.

use super::{Core, Unreadable, UnreadableHere, WatchEvent};
use crate::layout::walk;
use crate::settle::Hint;
use mcrengine::ids::FilePath;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of remembered directories.
const UNREADABLE_MAX: usize = 4096;
/// Maximum delay in milliseconds before the directories are read again.
const RETRY_MAX_MS: u64 = 60_000;

/// What one walk could not read, by directory.
pub(super) type Failed = BTreeMap<PathBuf, Failure>;

/// Why a directory could not be read.
pub(super) struct Failure {
    /// Whether the directory was read, and a file of a checkpoint in it cannot be read.
    pub(super) is_file: bool,
    pub(super) error: String,
}

impl Core {
    /// Adds a path that cannot be read to the failures of a walk. A file is added with the name of its directory, and
    /// only if the layout says that the file belongs to a checkpoint of this agent.
    pub(super) fn failed(&self, found: walk::Unreadable<'_>, failed: &mut Failed) {
        let walk::Unreadable { path, is_file, reason, error } = found;
        tracing::debug!(path = %path.display(), reason, %error, "cannot be read");
        let failure = match is_file {
            false => Failure { is_file, error: error.to_string() },
            true => {
                let placed = FilePath::new(path.as_os_str().as_bytes()).ok().and_then(|path| self.layout.place(&path));
                if !placed.is_some_and(|placed| placed.rank.is_none_or(|rank| self.options.own.watches(rank))) {
                    return;
                }
                Failure { is_file, error: format!("{}: {reason}: {error}", path.display()) }
            }
        };
        let directory = if is_file { path.parent().unwrap_or(path) } else { path };
        if failed.len() < UNREADABLE_MAX {
            failed.entry(directory.to_owned()).or_insert(failure);
        }
    }

    /// Handles the result of a walk. If a directory in or under `below` was unreadable before, and did not fail in
    /// this walk, it was read or no longer exists.
    pub(super) fn was_walked(&mut self, below: &Path, failed: Failed) {
        self.unreadable.retain(|path, _| {
            let stays = failed.contains_key(path) || !path.starts_with(below);
            if !stays {
                tracing::info!(path = %self.root.join(path).display(), "the directory can be read again, or is gone");
            }
            stays
        });
        failed.into_iter().for_each(|(path, failure)| self.cannot_read(path, failure));
        if self.unreadable.is_empty() {
            self.retry_ms = None;
        }
    }

    fn cannot_read(&mut self, path: PathBuf, Failure { is_file, error }: Failure) {
        let full: PathBuf = self.root.join(&path).components().collect();
        let changed_ns =
            full.metadata().ok().map(|stat| stat.ctime().saturating_mul(1_000_000_000) + stat.ctime_nsec());
        let counts = is_file || self.is_begun || changed_ns.is_some_and(|at_ns| at_ns >= self.options.since_ns);
        if let Some(known) = self.unreadable.get_mut(&path) {
            known.error = error;
            known.counts |= is_file || changed_ns.is_some_and(|at_ns| at_ns >= self.options.since_ns);
            return;
        }
        if self.unreadable.len() >= UNREADABLE_MAX {
            return;
        }
        let what = match counts {
            true => {
                "files in it are not saved, and each flush and the end of the agent report it as not committed; let \
                 the user of the agent read it (owner and mode), or repair the file system; the agent tries again"
            }
            false => {
                "it is older than this agent, so it is not taken for a checkpoint, and files in it are not saved; if \
                 checkpoints are in it, let the user of the agent read it (owner and mode); the agent tries again"
            }
        };
        self.tell(WatchEvent::Trouble(format!("{} cannot be read: {error}: {what}", full.display())));
        self.unreadable.insert(path, UnreadableHere { error, counts });
        self.retries = 0;
        self.retry_ms = Some(self.now_ms().saturating_add(1000));
    }

    /// Tries to read the directories again.
    pub(super) fn retry_unreadable(&mut self) {
        self.retries = self.retries.saturating_add(1);
        let delay_ms = (1000u64 << self.retries.min(6)).min(RETRY_MAX_MS);
        self.retry_ms = Some(self.now_ms().saturating_add(delay_ms));
        let paths: Vec<_> = self.unreadable.keys().cloned().collect();
        for path in paths {
            if self.unreadable.contains_key(&path) {
                self.walk(&path, Hint::Scan);
            }
        }
    }

    /// The unreadable directories that may contain files of the application.
    pub(super) fn unreadable(&self) -> Vec<Unreadable> {
        let counted = self.unreadable.iter().filter(|(_, unreadable)| unreadable.counts);
        let full = |path: &Path| self.root.join(path).components().collect();
        counted.map(|(path, of)| Unreadable { path: full(path), why: of.error.clone() }).collect()
    }
}
