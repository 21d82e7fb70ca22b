//! Looks at single files, and decides whether they are settled.

use super::writers::Writers;
use super::{BATCH, Core, Tracked, WatchEvent};
use crate::clock::ahead_ns;
use crate::fingerprint::Fingerprint;
use crate::h5::{End, hdf5_end};
use crate::layout::Placed;
use crate::layout::of_job::is_own_output;
use crate::restored::Put;
use crate::settle::{FileState, Gone, Hint, Look, Verdict};
use mcrengine::ids::{FilePath, Rank};
use nix::fcntl::OFlag;
use std::fs::Metadata;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file that was written at most this number of milliseconds before the application failed may be cut.
const AT_END_MS: u64 = 1000;

impl Core {
    pub(super) fn look(&mut self, path: FilePath, hint: Hint) {
        if !self.files.contains_key(&path) && self.layout.place(&path).is_none() {
            return;
        }
        let is_of_application = |stat: &Metadata| stat.is_file() && !is_own_output(stat);
        let stat = std::fs::symlink_metadata(self.root.join(path.as_path())).ok().filter(is_of_application);
        if stat.is_none() && self.directory.was_renamed(&self.root) {
            self.rescan_ms = Some(0); // the directory was renamed, and the scan looks at the file
            return;
        }
        self.look_at(path, hint, stat);
    }

    pub(super) fn look_anew(&mut self, path: &FilePath) {
        if let Some(tracked) = self.files.get_mut(path) {
            let (checkpoint, rank) = (tracked.placed.checkpoint.clone(), tracked.placed.rank.unwrap_or(Rank(0)));
            // If the file is not settled, the kernel may already have reported that the new content was closed.
            if tracked.settled.take().is_some() {
                tracked.state = FileState::default();
            }
            self.readiness.forget_announced(&checkpoint, rank);
        }
        self.look(path.clone(), Hint::Scan);
    }

    pub(super) fn look_at(&mut self, path: FilePath, hint: Hint, stat: Option<Metadata>) {
        let now_ms = self.now_ms();
        if !self.files.contains_key(&path) {
            let Some(placed) = stat.as_ref().and_then(|_| self.layout.place(&path)) else { return };
            if placed.rank.is_some_and(|rank| !self.options.own.watches(rank)) {
                return; // several agents may see the same directory, and each agent tracks only the files of its ranks
            }
            if self.files.len() >= self.options.limits.entries {
                let limit = self.options.limits.entries;
                return self.too_many(&format!("more than {limit} files to watch: {path} and others are left out"));
            }
            self.options.own.file_found(now_ms);
            let (state, settled) = (FileState::default(), None);
            let tracked = Tracked { placed, state, settled, due_ms: None, scan: 0, reported_cut: None, open: false };
            self.files.insert(path.clone(), tracked);
        }
        let tracked = self.files.get_mut(&path).expect("the file was inserted above");
        if let Some(due_ms) = tracked.due_ms.take() {
            self.due.remove(&(due_ms, path.clone()));
        }
        let linked = stat.as_ref().is_some_and(|stat| stat.nlink() > 1);
        // The kernel reports a new hard link as a created file. But no process has the file open, so no close will
        // follow.
        let hint = if hint == Hint::Created && linked { Hint::MovedTo } else { hint };
        let seen = stat.as_ref().map(Fingerprint::from);
        if seen.is_some() {
            tracked.scan = self.scans;
            if tracked.settled == seen {
                return;
            }
        }
        let is_new = tracked.state == FileState::default(); // a settled file also has the default state
        if seen.is_some() && (tracked.settled.take().is_some() || is_new) {
            let Placed { checkpoint, rank } = &tracked.placed;
            self.readiness.put(now_ms, checkpoint, *rank, &path, None);
        }
        match tracked.state.observe(
            &self.options.rules,
            now_ms,
            hint,
            seen,
            seen.and_then(|seen| age_ms(&self.root, &seen)),
        ) {
            Look::Gone => self.gone(&path),
            Look::Examine => drop(self.examine.insert(path)),
            Look::Wait(at_ms) => {
                tracked.due_ms = Some(at_ms);
                self.due.insert((at_ms, path));
            }
        }
    }

    fn gone(&mut self, path: &FilePath) {
        let Some(tracked) = self.files.remove(path) else { return };
        let is_own = self.readiness.takes(&tracked.placed);
        let Placed { checkpoint, rank } = tracked.placed;
        self.readiness.set_restored(path, false);
        if let Some(marked) = self.layout.marked(path) {
            self.readiness.mark(&marked, false);
        }
        let was_announced = self.readiness.remove(self.now_ms(), &checkpoint, rank, path);
        tracing::debug!(%checkpoint, %path, was_announced, "vanished");
        if !is_own && !was_announced {
            return;
        }
        let rank = rank.unwrap_or(Rank(0));
        self.tell(WatchEvent::Vanished { checkpoint, rank, path: path.clone(), was_announced });
    }

    /// Examines the files that have been at rest for long enough. `/proc` is searched once for all these files.
    pub(super) fn conclude(&mut self) {
        let paths = std::iter::from_fn(|| self.examine.pop_first()).take(BATCH);
        let paths: Vec<_> = paths.collect();
        let prints: Vec<_> = paths
            .into_iter()
            .filter_map(|path| {
                let stat = std::fs::symlink_metadata(self.root.join(path.as_path())).ok().filter(Metadata::is_file);
                Some((path, Fingerprint::from(&stat?)))
            })
            .collect();
        let writers = Writers::of(prints.iter().map(|(path, print)| (path.name(), *print)));
        for (path, print) in prints {
            let end = self.end_of(&path, print.bytes);
            let now_ms = self.now_ms();
            let Some(tracked) = self.files.get_mut(&path) else { continue };
            let Placed { checkpoint, rank } = &tracked.placed;
            let open_for_writing = writers.hold(&print);
            tracked.open = open_for_writing == Some(true);
            match tracked.state.conclude(&self.options.rules, now_ms, open_for_writing, end) {
                Verdict::Settled(settled) if settled == print => {
                    tracked.settled = Some(settled);
                    // The state and the report of this content do not apply to the content of a later write.
                    (tracked.state, tracked.reported_cut) = (FileState::default(), None);
                    let put = self.restored.put(&path, &settled);
                    if put == Some(Put::Below) {
                        tracing::debug!(%checkpoint, %path, "a restart wrote the file for inspection; it is not saved");
                        self.readiness.remove(now_ms, checkpoint, *rank, &path);
                        continue;
                    }
                    self.readiness.set_restored(&path, put.is_some() && !self.takes_restored);
                    self.readiness.put(now_ms, checkpoint, *rank, &path, Some(settled));
                    if end != End::Agrees {
                        self.readiness.set_may_be_cut(checkpoint, *rank);
                        let failed_ms = self.gone.filter(|(gone, _)| *gone == Gone::Failed).map(|(_, at_ms)| at_ms);
                        let since_ms = failed_ms.map(|failed_ms| now_ms.saturating_sub(failed_ms) + AT_END_MS);
                        if since_ms.is_some_and(|most_ms| age_ms(&self.root, &print).is_none_or(|age| age <= most_ms)) {
                            self.readiness.set_written_at_end(checkpoint, *rank);
                        }
                    }
                    if let Some(marked) = self.layout.marked(&path) {
                        self.readiness.mark(&marked, true);
                    }
                    tracing::debug!(%checkpoint, %path, bytes = settled.bytes, "settled");
                }
                Verdict::Settled(_) => {
                    // The file changed between the two calls of `stat`.
                    tracked.due_ms = Some(now_ms);
                    self.due.insert((now_ms, path));
                }
                Verdict::Wait(Some(at_ms)) => {
                    tracked.due_ms = Some(at_ms);
                    self.due.insert((at_ms, path));
                }
                Verdict::Wait(None) => {}
                Verdict::Cut(why) => {
                    let last_reported = tracked.reported_cut.replace(why);
                    let is_own = self.readiness.takes(&tracked.placed);
                    let (checkpoint, rank) = (checkpoint.clone(), rank.unwrap_or(Rank(0)));
                    if last_reported.is_none() && is_own {
                        self.tell(WatchEvent::Cut { checkpoint, rank, path, why });
                    }
                }
            }
        }
    }

    fn end_of(&self, path: &FilePath, bytes: u64) -> End {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let open =
            std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.root.join(path.as_path()));
        // If the file cannot be opened here, the capture fails later, and its error is reported.
        open.and_then(|file| hdf5_end(path, bytes, |at, into| file.read_at(into, at))).unwrap_or(End::Unknown)
    }
}

/// Age in milliseconds of the last change of a file. `None` if the file's time is ahead of all clocks.
fn age_ms(root: &Path, print: &Fingerprint) -> Option<u64> {
    let changed_ns = print.changed_ns.max(print.modified_ns);
    let age_ns = Fingerprint { changed_ns, ..*print }.age_ns(ahead_ns(root));
    u64::try_from(age_ns).ok().map(|ns| ns / 1_000_000)
}
