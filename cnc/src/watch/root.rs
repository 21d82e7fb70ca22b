//! Finds out whether the configured path leads to another directory now.
//!
//! A symbolic link in the path may be changed while the agent runs. The kernel reports no event for this change,
//! because events belong to directories, not to paths. A directory may also be mounted over the watched directory.

use super::{Core, WatchEvent, is_local};
use crate::restored::Restored;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Interval in milliseconds between two checks of a path that contains a symbolic link.
pub(super) const PATH_CHECK_MS: u64 = 5000;

impl Core {
    /// If the configured path leads to another directory, begins to watch this directory. The next scan finds the
    /// files in it, as at the start.
    pub(super) fn follow_path(&mut self) {
        self.path_check_ms = self.path_check_ms.map(|_| self.now_ms().saturating_add(PATH_CHECK_MS));
        // If the path leads to no directory, nobody can write through it, so the last directory stays watched.
        let Some(real) = self.configured.canonicalize().ok().filter(|real| real.is_dir()) else { return };
        let identity = identity_of(&real);
        if real == self.root && (identity == self.identity || identity.is_none()) {
            return;
        }
        let was = std::mem::replace(&mut self.root, real);
        self.identity = identity;
        self.restored = Restored::load(&self.root);
        self.rescan_ms = Some(0);
        self.listen_anew();
        if was == self.root {
            return; // the directory was removed and made again, or another directory was mounted over it
        }
        self.path_check_ms = Some(self.now_ms().saturating_add(PATH_CHECK_MS));
        self.through.clear();
        self.unreadable.clear();
        self.lost = 0;
        self.options.rules.local &= self.options.local.unwrap_or_else(|| is_local(&self.root));
        self.tell(WatchEvent::Trouble(format!(
            "the path leads to {} now, and no longer to {}: the agent watches the new directory and saves what is in \
             it; files in the old directory that are not yet saved are not saved any more",
            self.root.display(),
            was.display()
        )));
    }
}

/// Device and inode of a directory. `None` if they cannot be read.
pub(super) fn identity_of(directory: &Path) -> Option<(u64, u64)> {
    directory.metadata().ok().map(|stat| (stat.dev(), stat.ino()))
}
