//! Finds out whether the configured path leads to another directory now.
//!
//! A symbolic link in the path may be changed while the agent runs, or the watched directory may be renamed and a new
//! directory may be made in its place. A directory may also be mounted over the watched directory. The kernel reports
//! no event for a changed path, because events belong to directories. Therefore the path is checked every 5 s.
//!
//! The watched directory stays open, so that it is found under its new name. If a new directory takes its place, the
//! watcher first waits until all known files are reported, and then changes to the new directory. The watcher names
//! the ranks of the old directory that are not saved.

use super::{Core, WatchEvent, is_local};
use crate::companions::Versions;
use crate::layout::Placed;
use crate::restored::Restored;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Interval in milliseconds between two checks of the path.
pub(super) const PATH_CHECK_MS: u64 = 5000;
/// Interval in milliseconds between two checks whether the files of a directory that is left are saved.
const LEAVING_CHECK_MS: u64 = 250;
/// Time in milliseconds after the last report of a rank in which its files are read.
const READING_MS: u64 = 3000;
/// Minimum time in milliseconds before the watcher leaves a directory whose remaining files cannot be saved. A rank
/// that becomes ready at the next examination also counts as a rank that cannot be saved.
const HOPELESS_MS: u64 = 1000;
/// Maximum time in milliseconds before the watcher leaves a directory.
const LEAVING_MAX_MS: u64 = 30_000;
/// Maximum time in milliseconds before the watcher leaves a directory, if a drain or a flush waits for the new
/// directory.
const HURRIED_LEAVING_MAX_MS: u64 = 8000;

/// The watched directory.
pub(super) struct Root {
    /// The open directory, which keeps its identity if it is renamed. `None` if the directory could not be opened.
    open: Option<File>,
    /// Device and inode of the directory. `None` if the metadata could not be read.
    identity: Option<(u64, u64)>,
    /// The directory to which the configured path no longer leads, if this directory has files that must still be
    /// saved.
    pub(super) apart: Option<Arc<Path>>,
    /// Time when the configured path was first seen to lead to a new directory.
    leaving_since_ms: Option<u64>,
    /// Time of the last report of a rank.
    pub(super) reported_ms: Option<u64>,
}

impl Root {
    pub(super) fn open(path: &Path) -> Self {
        let (open, identity) = (File::open(path).ok(), identity_of(path));
        Self { open, identity, apart: None, leaving_since_ms: None, reported_ms: None }
    }

    /// Whether another directory, or none, has this path now.
    fn is_elsewhere(&self, path: &Path) -> bool {
        self.identity.is_some() && identity_of(path) != self.identity
    }

    /// Whether the directory exists under another path.
    pub(super) fn was_renamed(&self, path: &Path) -> bool {
        self.is_elsewhere(path) && self.whereabouts(path).is_some()
    }

    /// Whether a new directory waits until this directory is left.
    pub(super) fn is_being_left(&self) -> bool {
        self.leaving_since_ms.is_some()
    }

    /// The present path of the directory. `None` if the directory was removed, or cannot be found.
    fn whereabouts(&self, path: &Path) -> Option<PathBuf> {
        if !self.is_elsewhere(path) {
            return path.is_dir().then(|| path.to_owned());
        }
        let named = std::fs::read_link(format!("/proc/self/fd/{}", self.open.as_ref()?.as_raw_fd())).ok()?;
        (!self.is_elsewhere(&named)).then_some(named)
    }
}

impl Core {
    /// If the configured path leads to another directory, begins to watch the other directory. The next scan finds
    /// the files in the other directory, as at the start.
    pub(super) fn follow_path(&mut self) {
        let now_ms = self.now_ms();
        self.path_check_ms = now_ms.saturating_add(PATH_CHECK_MS);
        let real = self.configured.canonicalize().ok().filter(|real| real.is_dir());
        let is_same = |real: &PathBuf| !self.directory.is_elsewhere(real);
        if real.as_ref().is_some_and(|real| *real == self.root && is_same(real)) {
            (self.directory.apart, self.directory.leaving_since_ms) = (None, None);
            return;
        }
        let old = self.directory.whereabouts(&self.root);
        if let Some(old) = old.as_ref().filter(|old| **old != self.root && real.as_ref() != Some(*old)) {
            // The directory was renamed. A scan finds its files under the new name.
            if real.is_none() {
                self.tell(WatchEvent::Trouble(format!(
                    "{} was renamed to {}: the agent saves the files in it, and is trying again until a directory has \
                     the old name",
                    self.configured.display(),
                    old.display()
                )));
            }
            self.root.clone_from(old);
            self.directory.apart = Some(old.as_path().into());
            self.path_check_ms = now_ms.saturating_add(LEAVING_CHECK_MS);
            self.rescan_ms = Some(0);
            self.listen_anew();
            return;
        }
        // If the path leads to no directory, nobody can write through it, so the last directory stays watched.
        let Some(real) = real else { return };
        if old.is_some() && !is_same(&real) {
            self.directory.apart = Some(self.root.as_path().into());
            let since_ms = *self.directory.leaving_since_ms.get_or_insert(now_ms);
            let most_ms = if self.report.is_some() { HURRIED_LEAVING_MAX_MS } else { LEAVING_MAX_MS };
            let is_read = self.directory.reported_ms.is_none_or(|at_ms| at_ms.saturating_add(READING_MS) <= now_ms);
            let (pending, leaving_ms) = (self.pending(now_ms), now_ms.saturating_sub(since_ms));
            let are_hopeless = leaving_ms >= HOPELESS_MS && pending.iter().all(|pending| pending.hopeless);
            let is_saved = is_read && (pending.is_empty() || are_hopeless);
            if leaving_ms < most_ms && !is_saved {
                self.path_check_ms = now_ms.saturating_add(LEAVING_CHECK_MS);
                return;
            }
            self.leave();
        }
        let was = std::mem::replace(&mut self.root, real);
        self.directory = Root::open(&self.root);
        self.restored = Restored::load(&self.root);
        self.versions = Versions::default();
        self.rescan_ms = Some(0);
        self.listen_anew();
        if was == self.root {
            return; // the directory was removed and made again, or another directory was mounted over it
        }
        self.through.clear();
        self.unreadable.clear();
        self.lost = 0;
        self.options.rules.local &= self.options.local.unwrap_or_else(|| is_local(&self.root));
        self.tell(WatchEvent::Trouble(format!(
            "the path leads to {} now, and no longer to {}: the agent watches the new directory and saves what is in \
             it",
            self.root.display(),
            was.display()
        )));
    }

    /// Forgets all files of the directory that is no longer watched, and names the ranks that are not saved.
    fn leave(&mut self) {
        let now_ms = self.now_ms();
        for pending in self.pending(now_ms) {
            self.tell(WatchEvent::LeftBehind { pending, directory: self.root.clone() });
        }
        self.tell(WatchEvent::Left { directory: self.root.clone() });
        for (path, tracked) in std::mem::take(&mut self.files) {
            let Placed { checkpoint, rank } = tracked.placed;
            self.readiness.remove(now_ms, &checkpoint, rank, &path);
            self.readiness.set_restored(&path, false);
            if let Some(marked) = self.layout.marked(&path) {
                self.readiness.mark(&marked, false);
            }
        }
        self.due.clear();
        self.examine.clear();
    }
}

/// Device and inode of a directory. `None` if the metadata cannot be read.
fn identity_of(directory: &Path) -> Option<(u64, u64)> {
    directory.metadata().ok().map(|stat| (stat.dev(), stat.ino()))
}
