//! Sends the results of the watcher: ranks that are ready, and files that are pending.

use super::{BATCH, Core, NO_MARKER, PENDING_MAX, Pending, WatchEvent};
use crate::companions::Beside;
use crate::fingerprint::Fingerprint;
use crate::layout::Placed;
use crate::settle::{Hint, WaitingRank, Why};
use crate::timeline::Timeline;
use mcrengine::ids::Rank;
use std::io;
use tokio::sync::mpsc;

/// Maximum number of kept events other than [`WatchEvent::Ready`] while the queue is full. If there are more events,
/// the oldest event is dropped.
const NOTICES_MAX: usize = 1024;
/// Delay in milliseconds before the watcher tries again to send to a full queue.
const FULL_MS: u64 = 50;
/// Minimum time in milliseconds between two reports of pending files.
const REPORT_MS: u64 = 20;

impl Core {
    /// Sends the list of pending files if the list was requested and differs from the last sent list. Returns the
    /// time of the next attempt. A ready rank counts as pending until its event is sent. Therefore each unsaved file
    /// is either in the list or in an event.
    pub(super) fn report(&mut self) -> Option<u64> {
        let now_ms = self.now_ms();
        let not_before_ms = self.report.as_ref()?.not_before_ms;
        // While a scan is due, no report is sent, because some files are not yet known. While the directory exists
        // but cannot be read, no report is sent either.
        let is_gone = || self.root.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if self.rescan_ms.is_some_and(|at| at <= now_ms) || self.lost > 0 && !is_gone() {
            return None;
        }
        if self.directory.is_being_left() {
            return None; // the new directory is scanned before the report
        }
        if now_ms < not_before_ms {
            return Some(not_before_ms);
        }
        if !self.notices.is_empty() {
            return None; // older events are sent first
        }
        let list = (self.pending(now_ms), self.unreadable());
        let report = self.report.as_mut()?;
        report.not_before_ms = now_ms.saturating_add(REPORT_MS);
        if report.last_reported.as_ref() == Some(&list) {
            return None; // the list changes only after an event or at a due time
        }
        let (pending, unreadable) = list.clone();
        match self.events.try_send(WatchEvent::Scanned { request: report.request, pending, unreadable }) {
            Ok(()) => report.last_reported = Some(list),
            Err(mpsc::error::TrySendError::Full(_)) => return Some(now_ms.saturating_add(FULL_MS)),
            Err(mpsc::error::TrySendError::Closed(_)) => self.closed = true,
        }
        None
    }

    pub(super) fn pending(&self, now_ms: u64) -> Vec<Pending> {
        let mut pending = Vec::new();
        for (path, tracked) in &self.files {
            if pending.len() >= PENDING_MAX {
                return pending;
            }
            if tracked.settled.is_some() || !self.readiness.takes(&tracked.placed) {
                continue;
            }
            let (why, hopeless) = match (&tracked.reported_cut, tracked.open) {
                (Some(why), _) if tracked.due_ms.is_none() && !self.examine.contains(path) => (*why, true),
                (_, true) => ("the file is open for writing", false),
                (_, false) => ("the file was not at rest for long enough", false),
            };
            let Placed { checkpoint, rank } = &tracked.placed;
            let modified_ns = tracked.state.modified_ns().unwrap_or(i64::MIN);
            let (checkpoint, rank, path) = (checkpoint.clone(), rank.unwrap_or(Rank(0)), Some(path.clone()));
            pending.push(Pending { checkpoint, rank, path, why, modified_ns, hopeless });
        }
        let room = PENDING_MAX - pending.len();
        pending.extend(self.readiness.waiting(now_ms, room).into_iter().map(|waiting| {
            let WaitingRank { checkpoint, rank, why, modified_ns } = waiting;
            let (why, hopeless) = match why {
                Why::Marker => (NO_MARKER, self.gone.is_some()),
                Why::Quiet => ("the checkpoint was not at rest for long enough", false),
                Why::Fewer if self.gone.is_some() => (
                    "the rank wrote fewer files or bytes than for the checkpoint before, and its process was ended",
                    true,
                ),
                Why::Fewer => ("the rank wrote fewer files or bytes than for the checkpoint before", false),
            };
            Pending { checkpoint, rank, path: None, why, modified_ns, hopeless }
        }));
        pending
    }

    pub(super) fn tell(&mut self, event: WatchEvent) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(event);
    }

    /// Sends as many events as fit into the queue. Returns the time at which further events may have to be sent, in
    /// milliseconds.
    pub(super) fn deliver(&mut self) -> Option<u64> {
        let now_ms = self.now_ms();
        let full = Some(now_ms.saturating_add(FULL_MS));
        while let Some(notice) = self.notices.pop_front() {
            match self.events.try_send(notice) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(notice)) => {
                    self.notices.push_front(notice);
                    return full;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    self.closed = true;
                    return None;
                }
            }
        }
        let (ready, next_ms) = self.readiness.due(now_ms, BATCH);
        let mut changed = ready.len() == BATCH;
        let mut beside = Beside::default();
        let timeline = if ready.is_empty() { Timeline::default() } else { self.readiness.timeline() };
        for mut ready in ready {
            // The kernel reports no event when an overwrite in place begins. Therefore each file is compared once
            // more with the fingerprint that will be reported.
            let moved = |file: &&crate::settle::SettledFile| {
                let stat = std::fs::symlink_metadata(self.root.join(file.path.as_path()));
                !stat.is_ok_and(|stat| Fingerprint::from(&stat) == file.fingerprint)
            };
            let moved: Vec<_> = ready.files.iter().filter(moved).map(|file| file.path.clone()).collect();
            if !moved.is_empty() {
                moved.into_iter().for_each(|path| self.look(path, Hint::Modified));
                changed = true;
                continue;
            }
            let events = self.events.clone();
            match events.try_reserve() {
                Ok(room) => {
                    ready.companions = self.companions(&ready, &timeline, &mut beside);
                    ready.root.clone_from(&self.directory.apart);
                    self.directory.reported_ms = Some(now_ms);
                    self.readiness.announced(&ready);
                    room.send(WatchEvent::Ready(ready));
                }
                Err(mpsc::error::TrySendError::Full(())) => return full,
                Err(mpsc::error::TrySendError::Closed(())) => {
                    self.closed = true;
                    return None;
                }
            }
        }
        if changed || !self.notices.is_empty() { Some(now_ms) } else { next_ms }
    }
}
