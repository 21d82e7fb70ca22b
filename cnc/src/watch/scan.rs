//! Finds the files that the watcher must look at, from the kernel's events and from scans of directories.

use super::kernel::{self, Change, Kernel, KernelError, KernelEvent};
use super::unreadable::{Failed, Failure};
use super::{Core, Tracked, WatchEvent, is_local};
use crate::layout::of_job::is_settings;
use crate::layout::walk::{Found, walk};
use crate::layout::{ScanError, is_ours};
use crate::settle::Hint;
use mcrengine::ids::FilePath;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RESCAN_INTERVAL: Duration = Duration::from_secs(60);

impl Core {
    pub(super) fn listen_anew(&mut self) {
        self.directories.clear();
        self.blind = false;
        self.kernel = None;
        if self.options.listen {
            let listening = self.wake.try_clone().map_err(|error| KernelError::Other(error.into()));
            match listening.and_then(Kernel::listen) {
                Ok(kernel) => self.kernel = Some(kernel),
                Err(error) => self.go_blind(&error),
            }
        }
    }

    fn go_blind(&mut self, error: &KernelError) {
        if !self.blind {
            let advice = match error {
                KernelError::Limit { setting } => format!("; raise {setting}"),
                _ => String::new(),
            };
            tracing::warn!(%error, "the kernel does not report all changes: the directory is scanned periodically");
            let what = format!("the kernel does not report all changes ({error}): scanning instead{advice}");
            self.tell(WatchEvent::Trouble(what));
        }
        self.blind = true;
    }

    pub(super) fn read_events(&mut self) {
        // The number of events is limited, so that a directory with endless writes does not block the other work.
        for _ in 0..kernel::EVENTS_MAX {
            match self.kernel.as_ref().and_then(Kernel::next) {
                None => return,
                Some(KernelEvent::Overflow) => {
                    tracing::warn!("the kernel dropped events: the directory is scanned");
                    self.listen_anew();
                    self.rescan_ms = Some(0);
                }
                Some(KernelEvent::Change(path, change)) => self.on_change(&path, change),
            }
        }
    }

    fn on_change(&mut self, path: &Path, change: Change) {
        let Ok(path) = path.strip_prefix(&self.root) else { return };
        let Some(name) = path.file_name() else {
            if change == Change::Gone {
                // The watched directory itself was removed. A new directory may be created under its name.
                self.listen_anew();
                self.rescan_ms = Some(0);
            }
            return;
        };
        let is_left_out = self.options.limits.leave_out.iter().any(|left| path.starts_with(left));
        if is_left_out || is_ours(name.as_bytes()) || is_settings(path.as_os_str().as_bytes()) {
            return;
        }
        let path = path.to_owned();
        let is_directory = || std::fs::symlink_metadata(self.root.join(&path)).is_ok_and(|stat| stat.is_dir());
        if change == Change::DirectoryCreated || (change == Change::MovedTo && is_directory()) {
            let hint = if change == Change::MovedTo { Hint::MovedTo } else { Hint::Scan };
            self.walk(&path, hint);
            return;
        }
        if change == Change::Gone && self.directories.contains(&path) && !self.through.contains(&path) {
            return self.forget_below(&path);
        }
        if self.on_link_or_pointer(&path, change) {
            return;
        }
        let Ok(path) = FilePath::new(path.as_os_str().as_bytes()) else { return };
        let hint = match change {
            Change::Closed => Hint::CloseWrite,
            Change::MovedTo => Hint::MovedTo,
            Change::Created | Change::DirectoryCreated => Hint::Created,
            Change::Gone => Hint::Scan, // `look` checks whether the file still exists
        };
        self.look(path, hint);
    }

    /// Looks at every file. If the scan did not see a tracked file, the file was removed.
    pub(super) fn scan(&mut self) {
        self.follow_path();
        self.scans += 1;
        self.links.clear();
        let whole = self.walk(&PathBuf::new(), Hint::Scan);
        if whole {
            let unseen = |tracked: &Tracked| tracked.scan != self.scans;
            let gone: Vec<_> = self.files.iter().filter(|(_, t)| unseen(t)).map(|(path, _)| path.clone()).collect();
            gone.into_iter().for_each(|path| self.look(path, Hint::Scan));
        }
        let every = match self.options.rescan {
            Some(every) => Some(every).filter(|every| !every.is_zero()),
            None => (self.blind || self.kernel.is_none() || !self.options.rules.local).then_some(RESCAN_INTERVAL),
        };
        if !std::mem::replace(&mut self.is_begun, true) {
            self.readiness.begun();
        }
        let retry = (self.lost > 0).then(|| Duration::from_secs(1 << self.lost.min(6)).min(RESCAN_INTERVAL));
        self.rescan_ms = retry.or(every).map(|wait| self.now_ms().saturating_add(wait.as_millis() as u64));
    }

    /// Looks at every file below a directory. Each directory is watched before it is read, so no change is missed.
    /// Returns false if the directory `below` could not be read, or if there are too many files and directories.
    pub(super) fn walk(&mut self, below: &Path, hint: Hint) -> bool {
        let (root, limits) = (self.root.clone(), self.options.limits.clone());
        let mut failed = Failed::new();
        let walked = walk(&root, below, &limits, &mut |found| match found {
            Found::Directory(path) => self.watch(path),
            Found::File(path, stat) => self.look_at(path, hint, Some(stat)),
            Found::Link(path) => self.saw_link(path),
            Found::Skipped(path, reason) => tracing::debug!(path = %path.display(), reason, "skipped"),
            Found::Unreadable(unreadable) => self.failed(unreadable, &mut failed),
        });
        match walked {
            Ok(()) => {
                self.lost = 0;
                self.was_walked(below, failed);
                true
            }
            Err(ScanError::Unreadable { source, .. }) if !below.as_os_str().is_empty() => {
                tracing::debug!(path = %below.display(), %source, "a directory vanished, or cannot be read");
                let is_gone = matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
                if !is_gone {
                    failed.insert(below.to_owned(), Failure { is_file: false, error: source.to_string() });
                }
                self.was_walked(below, failed);
                false
            }
            Err(error @ ScanError::Unreadable { .. }) => {
                self.lost = self.lost.saturating_add(1);
                if self.lost == 1 {
                    self.tell(WatchEvent::Trouble(format!("{error}; trying again until the directory can be read")));
                    let all: Vec<_> = self.files.keys().cloned().collect();
                    all.into_iter().for_each(|path| self.look(path, Hint::Scan));
                    self.listen_anew();
                }
                false
            }
            Err(error @ ScanError::TooMany { .. }) => {
                self.too_many(&error.to_string());
                false
            }
        }
    }

    pub(super) fn too_many(&mut self, what: &str) {
        if !self.reported_too_many {
            self.reported_too_many = true;
            self.tell(WatchEvent::Trouble(what.to_owned()));
        }
    }

    fn watch(&mut self, path: &Path) {
        let name = self.root.join(path);
        let is_link = !path.as_os_str().is_empty() && name.is_symlink();
        if is_link && self.through.insert(path.to_owned()) && !is_local(&name) && self.options.local.is_none() {
            // Another node may write to this file system, and the kernel does not report changes that other nodes
            // make.
            self.options.rules.local = false;
            self.rescan_ms = self.rescan_ms.or(Some(self.now_ms().saturating_add(RESCAN_INTERVAL.as_millis() as u64)));
        }
        let Some(kernel) = &mut self.kernel else { return };
        match kernel.add(&name, is_link) {
            Ok(()) => drop(self.directories.insert(path.to_owned())),
            Err(KernelError::Vanished) => {}
            Err(KernelError::Forbidden) => tracing::debug!(path = %path.display(), "watching is not permitted"),
            Err(error) => self.go_blind(&error),
        }
    }

    /// Forgets a directory that was removed or renamed, and looks at all files below this directory.
    pub(super) fn forget_below(&mut self, directory: &Path) {
        let watched = |path: &Path| path.starts_with(directory);
        self.links.retain(|path| !watched(path));
        let left: Vec<_> = self.directories.iter().filter(|path| watched(path)).cloned().collect();
        for path in left {
            self.directories.remove(&path);
            if let Some(kernel) = &mut self.kernel {
                kernel.remove(&self.root.join(path));
            }
        }
        let below: Vec<_> = self.files.keys().filter(|path| watched(path.as_path())).cloned().collect();
        below.into_iter().for_each(|path| self.look(path, Hint::Scan));
    }
}
