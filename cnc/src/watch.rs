//! Watches a directory and reports which ranks of which checkpoints may be read.
//!
//! Events of the kernel (inotify) are hints. An event makes the watcher look at one file, and the decision depends
//! only on what the watcher then sees ([`crate::settle`]). The watcher scans the whole directory at the start, after
//! the kernel dropped events, and periodically on a file system that other nodes write to. The watcher does not
//! request an event for each write, so the application's writes do not become slower. While nothing happens, the
//! watcher does not wake up.
//!
//! One thread, which waits in `poll`, makes all decisions. The watcher never opens a file for writing, never locks a
//! file, and never takes a lease on a file.

mod beside;
mod kernel;
pub(crate) mod writers;

use crate::clock::ahead_ns;
use crate::fingerprint::Fingerprint;
use crate::layout::walk::{Found, walk};
use crate::layout::{Layout, Placed, ScanError, ScanLimits, is_ours};
use crate::restored::{Put, Restored};
use crate::settle::{
    End, FileState, Hint, Look, OwnRanks, Readiness, ReadyRank, SettleRules, Verdict, WaitingRank, Why, hdf5_end,
};
use crate::timeline::Timeline;
use kernel::{Change, Kernel, KernelError, KernelEvent};
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use writers::Writers;

/// Options of a watcher.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// How long files must be at rest. [`SettleRules::local`] is determined from the file system unless
    /// [`Self::local`] is set.
    pub rules: SettleRules,
    /// Whether only this node writes to the file system. `None`: determined from the type of the file system.
    pub local: Option<bool>,
    /// Whether to receive events from the kernel. Without them only scans find changes.
    pub listen: bool,
    /// Interval between scans of everything. Zero: no periodic scans. `None`: one scan each minute if the kernel
    /// cannot report all changes (other nodes write to the file system, or there are too many directories), else no
    /// periodic scans.
    pub rescan: Option<Duration>,
    /// Ranks whose files are watched.
    pub own: OwnRanks,
    /// How deep a scan goes, and how many files are watched at most.
    pub limits: ScanLimits,
    /// Maximum number of events in the queue. When the queue is full, the watcher keeps further events back.
    pub queue: usize,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            rules: SettleRules::default(),
            local: None,
            listen: true,
            rescan: None,
            own: OwnRanks::all(),
            limits: ScanLimits::default(),
            queue: 1024,
        }
    }
}

/// What a watcher reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A rank's part of a checkpoint may be read.
    Ready(ReadyRank),
    /// A file of a checkpoint does not exist any more.
    Vanished {
        /// The checkpoint's label.
        checkpoint: CheckpointId,
        /// The rank of the file; rank 0 if the file belongs to no single rank.
        rank: Rank,
        /// The file.
        path: FilePath,
        /// Whether the file was part of a [`WatchEvent::Ready`].
        was_announced: bool,
    },
    /// A file is at rest but incomplete. Its rank does not become ready before the file changes.
    Cut {
        /// The checkpoint's label.
        checkpoint: CheckpointId,
        /// The rank of the file; rank 0 if the file belongs to no single rank.
        rank: Rank,
        /// The file.
        path: FilePath,
        /// What is wrong with the file.
        why: &'static str,
    },
    /// The watching itself has a problem. The watcher continues as well as it can.
    Trouble(String),
    /// Answers [`Watcher::look_around`]: since that request the watcher has looked at every file. The event is sent
    /// again whenever the list of pending files changes. It is always sent after the [`WatchEvent::Ready`] events of
    /// files that left the list.
    Scanned {
        /// Number of the request. This event also answers all earlier requests.
        request: u64,
        /// Files and ranks that exist but were not yet reported in their present state; at most [`PENDING_MAX`].
        pending: Vec<Pending>,
    },
}

/// A file, or all files of a rank, that exist but cannot be saved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The checkpoint's label.
    pub checkpoint: CheckpointId,
    /// The rank; rank 0 if the file belongs to no single rank.
    pub rank: Rank,
    /// The file that is not settled. `None`: all existing files of the rank are settled, but the rank is not ready.
    pub path: Option<FilePath>,
    /// Why it cannot be saved yet.
    pub why: &'static str,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Waiting longer does not help.
    pub hopeless: bool,
}

/// Maximum number of entries in [`WatchEvent::Scanned`].
pub const PENDING_MAX: usize = 4096;
/// The reason if the layout has a marker file and the marker of the checkpoint does not exist.
pub const NO_MARKER: &str = "the file that marks the checkpoint as complete is not there";
/// Minimum time in milliseconds between two reports of pending files.
const REPORT_MS: u64 = 20;

/// Why a directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The path does not exist, is not a directory, or may not be read by this user.
    #[error("{}: cannot be watched; make the directory, or correct \"watch\" in the configuration", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No pipe or no thread could be created.
    #[error("the watcher cannot start")]
    Start(#[source] io::Error),
}

/// A running watcher. It stops when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    requests: Mutex<Requests>,
    wake: PipeWriter,
}

#[derive(Debug, Default)]
struct Requests {
    /// The pipe already contains a wake-up byte for these requests.
    woken: bool,
    stop: bool,
    rescan: bool,
    look: Vec<FilePath>,
    /// Number of the last [`Watcher::look_around`].
    asked: u64,
    /// The reader of the events does not need [`WatchEvent::Scanned`] any more.
    report_no_more: bool,
    /// The job's processes are gone.
    processes_gone: bool,
}

/// Maximum number of files in a request to look again. Above it the watcher scans everything.
const LOOK_MAX: usize = 4096;
/// Maximum number of events other than [`WatchEvent::Ready`] that are kept while the queue is full. Above it the
/// oldest event is dropped.
const NOTICES_MAX: usize = 1024;
/// Maximum number of files examined, and of ranks reported, in one turn. It bounds the memory used for them.
const BATCH: usize = 1024;
/// Delay in milliseconds before the watcher tries again to send to a full queue.
const FULL_MS: u64 = 50;
const RESCAN_INTERVAL: Duration = Duration::from_secs(60);

impl Watcher {
    /// Starts to watch. Files that already exist are reported too. The channel of events closes when the watcher
    /// stops.
    pub fn spawn(
        root: &Path,
        layout: Layout,
        options: WatchOptions,
    ) -> Result<(mpsc::Receiver<WatchEvent>, Self), WatchError> {
        let (events, receiver) = mpsc::channel(options.queue.max(1));
        let (wait, wake) = io::pipe().map_err(WatchError::Start)?;
        let mut core = Core::new(root, layout, options, events, wake.try_clone().map_err(WatchError::Start)?)?;
        let shared = Arc::new(Shared { requests: Mutex::default(), wake });
        let requests = Arc::clone(&shared);
        let run = move || core.run(&wait, &requests);
        let thread = std::thread::Builder::new().name("mcr-watch".into()).spawn(run).map_err(WatchError::Start)?;
        Ok((receiver, Self { shared, thread: Some(thread) }))
    }

    /// Scans everything now.
    pub fn rescan(&self) {
        self.request(|requests| requests.rescan = true);
    }

    /// Scans everything now, and then reports what is pending until [`Watcher::report_no_more`] is called. Returns
    /// the number of the request, which [`WatchEvent::Scanned`] contains.
    pub fn look_around(&self) -> u64 {
        let mut asked = 0;
        self.request(|requests| {
            requests.asked += 1;
            (requests.rescan, requests.report_no_more, asked) = (true, false, requests.asked);
        });
        asked
    }

    /// Stops sending [`WatchEvent::Scanned`].
    pub fn report_no_more(&self) {
        self.request(|requests| requests.report_no_more = true);
    }

    /// Declares that the job's processes have ended. From now on a file settles without a quiet time if no process
    /// holds it open and the end of the file is consistent.
    pub fn processes_gone(&self) {
        self.request(|requests| (requests.processes_gone, requests.rescan) = (true, true));
    }

    /// Settles this file again and then reports its rank again. For files that changed while they were read, or that
    /// could not be read.
    pub fn look_again(&self, path: &FilePath) {
        self.request(|requests| match requests.look.len() < LOOK_MAX {
            true => requests.look.push(path.clone()),
            false => requests.rescan = true,
        });
    }

    /// Stops, and waits until the thread has ended.
    pub fn stop(self) {
        drop(self);
    }

    /// Stops without waiting for the thread, which may hang in a file system.
    pub fn leave(mut self) {
        drop(self.thread.take());
    }

    fn request(&self, change: impl FnOnce(&mut Requests)) {
        let mut requests = self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut requests);
        let woken = std::mem::replace(&mut requests.woken, true);
        drop(requests);
        if !woken {
            let _ = (&self.shared.wake).write(&[1]); // if the pipe is broken, the thread has ended
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.request(|requests| requests.stop = true);
        // After `leave` there is no thread to wait for.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the watcher's thread panicked");
        }
    }
}

/// A file that belongs to a checkpoint according to the layout.
struct Tracked {
    placed: Placed,
    state: FileState,
    settled: Option<Fingerprint>,
    due_ms: Option<u64>,
    /// Number of the scan that last saw the file.
    scan: u64,
    /// If the file is at rest but incomplete: the reason that was reported.
    reported_cut: Option<&'static str>,
    /// A process had the file open for writing when the watcher last looked.
    open: bool,
}

/// The state of the watcher's thread.
struct Core {
    root: PathBuf,
    layout: Layout,
    options: WatchOptions,
    events: mpsc::Sender<WatchEvent>,
    started: Instant,
    /// `None`: the kernel reports no changes.
    kernel: Option<Kernel>,
    /// The kernel's events write a byte to this pipe to wake the thread.
    wake: PipeWriter,
    /// Directories whose changes the kernel reports, relative to the root.
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<FilePath, Tracked>,
    due: BTreeSet<(u64, FilePath)>,
    examine: BTreeSet<FilePath>,
    readiness: Readiness,
    restored: Restored,
    notices: VecDeque<WatchEvent>,
    /// Symbolic links to directories that are watched too.
    through: BTreeSet<PathBuf>,
    /// All other links.
    links: BTreeSet<PathBuf>,
    /// Why companions were told to be lost.
    told_lost: BTreeSet<&'static str>,
    /// The kernel does not report the changes of all directories.
    blind: bool,
    scans: u64,
    rescan_ms: Option<u64>,
    /// How many times in a row the watched directory could not be read.
    lost: u32,
    reported_too_many: bool,
    /// `Some` while [`WatchEvent::Scanned`] is requested.
    report: Option<Report>,
    /// Number of the last request. It is kept after the reports end.
    asked: u64,
    processes_gone: bool,
    /// The receiver of the events is closed.
    closed: bool,
}

/// The last report of pending files.
struct Report {
    request: u64,
    last_reported: Option<Vec<Pending>>,
    /// Time of the watcher's clock before which no new report is made.
    not_before_ms: u64,
}

impl Core {
    fn new(
        root: &Path,
        layout: Layout,
        mut options: WatchOptions,
        events: mpsc::Sender<WatchEvent>,
        wake: PipeWriter,
    ) -> Result<Self, WatchError> {
        let refuse = |source| WatchError::Directory { path: root.to_owned(), source };
        std::fs::read_dir(root).map_err(refuse)?;
        // The absolute path is stored, so that a change of the working directory does not change what is watched.
        let root = root.canonicalize().map_err(refuse)?;
        options.rules.local = options.local.unwrap_or_else(|| is_local(&root));
        let readiness = Readiness::new(&options.rules, &layout, options.own.clone());
        let mut core = Self {
            restored: Restored::load(&root),
            root,
            layout,
            options,
            events,
            started: Instant::now(),
            kernel: None,
            wake,
            directories: BTreeSet::new(),
            files: BTreeMap::new(),
            due: BTreeSet::new(),
            examine: BTreeSet::new(),
            readiness,
            notices: VecDeque::new(),
            through: BTreeSet::new(),
            links: BTreeSet::new(),
            told_lost: BTreeSet::new(),
            blind: false,
            scans: 0,
            rescan_ms: Some(0),
            lost: 0,
            reported_too_many: false,
            report: None,
            asked: 0,
            processes_gone: false,
            closed: false,
        };
        core.listen_anew();
        Ok(core)
    }

    fn run(&mut self, wait: &PipeReader, shared: &Shared) {
        loop {
            let next_ms = self.turn();
            if self.closed || !self.wait(wait, next_ms) {
                return;
            }
            let requests = {
                let mut requests = shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
                let asked = requests.asked;
                std::mem::replace(&mut *requests, Requests { asked, ..Requests::default() })
            };
            if requests.stop {
                return;
            }
            if requests.rescan {
                self.rescan_ms = Some(0);
            }
            for path in requests.look {
                self.look_anew(&path);
            }
            if requests.processes_gone {
                self.go_without_quiet_times();
            }
            if requests.report_no_more {
                self.report = None;
            }
            if requests.asked > self.asked {
                self.asked = requests.asked;
                self.report = Some(Report { request: requests.asked, last_reported: None, not_before_ms: 0 });
            }
        }
    }

    /// Ends all quiet times, because the job's processes have ended: files that are not settled are looked at now.
    fn go_without_quiet_times(&mut self) {
        self.processes_gone = true;
        self.options.rules = self.options.rules.without_quiet_times();
        self.readiness.without_quiet_times();
        let waiting: Vec<_> = self.files.iter().filter(|(_, t)| t.settled.is_none()).map(|(p, _)| p.clone()).collect();
        waiting.into_iter().for_each(|path| self.look(path, Hint::Scan));
    }

    /// Does everything that is due. Returns the time at which the next work is due without an event.
    fn turn(&mut self) -> Option<u64> {
        self.read_events();
        let now_ms = self.now_ms();
        if self.rescan_ms.is_some_and(|at| at <= now_ms) {
            self.scan();
        }
        while let Some((at_ms, _)) = self.due.first() {
            if *at_ms > now_ms {
                break;
            }
            let Some((_, path)) = self.due.pop_first() else { break };
            self.look(path, Hint::Scan);
        }
        self.conclude();
        let deliver_ms = self.deliver();
        let examine_ms = (!self.examine.is_empty()).then_some(now_ms);
        let report_ms = self.report();
        [deliver_ms, examine_ms, report_ms, self.due.first().map(|(at_ms, _)| *at_ms), self.rescan_ms]
            .into_iter()
            .flatten()
            .min()
    }

    /// Waits for the kernel, a request, or the given time. Returns false if waiting fails.
    fn wait(&mut self, mut wake: &PipeReader, until_ms: Option<u64>) -> bool {
        let timeout = match until_ms.map(|at_ms| at_ms.saturating_sub(self.now_ms())) {
            None => PollTimeout::NONE,
            // Adds 1 ms: the clock counts whole milliseconds, and waking up too early would waste one turn.
            Some(ms) => PollTimeout::try_from(ms.saturating_add(1)).unwrap_or(PollTimeout::MAX),
        };
        let mut waited = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "the watcher cannot wait, and ends");
                return false;
            }
        }
        let woken = waited[0].any().unwrap_or(false);
        !woken || wake.read(&mut [0; 64]).is_ok_and(|n| n > 0)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    // Events of the kernel.

    fn listen_anew(&mut self) {
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
            tracing::warn!(%error, "scanning, since the kernel does not report all changes");
            let what = format!("the kernel does not report all changes ({error}): scanning instead{advice}");
            self.tell(WatchEvent::Trouble(what));
        }
        self.blind = true;
    }

    fn read_events(&mut self) {
        // The number of events is bounded, so that a directory with endless writes does not block the other work.
        for _ in 0..kernel::EVENTS_MAX {
            match self.kernel.as_ref().and_then(Kernel::next) {
                None => return,
                Some(KernelEvent::Overflow) => {
                    tracing::warn!("the kernel dropped events: scanning");
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
                // The watched directory itself is gone. A new directory may take its place.
                self.listen_anew();
                self.rescan_ms = Some(0);
            }
            return;
        };
        if is_ours(name.as_bytes()) {
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
            Change::Gone => Hint::Scan, // the look finds out whether the file still exists
        };
        self.look(path, hint);
    }

    // Scans.

    /// Looks at every file. A tracked file that the scan did not see does not exist any more.
    fn scan(&mut self) {
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
        let retry = (self.lost > 0).then(|| Duration::from_secs(1 << self.lost.min(6)).min(RESCAN_INTERVAL));
        self.rescan_ms = retry.or(every).map(|wait| self.now_ms().saturating_add(wait.as_millis() as u64));
    }

    /// Looks at every file below a directory. Each directory is watched before it is read, so no change is missed.
    /// Returns false if the directory could not be read completely.
    fn walk(&mut self, below: &Path, hint: Hint) -> bool {
        let (root, limits) = (self.root.clone(), self.options.limits.clone());
        let walked = walk(&root, below, &limits, &mut |found| match found {
            Found::Directory(path) => self.watch(path),
            Found::File(path, stat) => self.look_at(path, hint, Some(stat)),
            Found::Link(path) => self.saw_link(path),
            Found::Skipped(path, reason) => tracing::debug!(path = %path.display(), reason, "skipped"),
        });
        match walked {
            Ok(()) => {
                self.lost = 0;
                true
            }
            Err(ScanError::Unreadable { source, .. }) if !below.as_os_str().is_empty() => {
                tracing::debug!(path = %below.display(), %source, "a directory vanished, or cannot be read");
                false
            }
            Err(error @ ScanError::Unreadable { .. }) => {
                self.lost = self.lost.saturating_add(1);
                if self.lost == 1 {
                    self.tell(WatchEvent::Trouble(format!("{error}; trying again until it is there")));
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

    fn too_many(&mut self, what: &str) {
        if !self.reported_too_many {
            self.reported_too_many = true;
            self.tell(WatchEvent::Trouble(what.to_owned()));
        }
    }

    fn watch(&mut self, path: &Path) {
        let name = self.root.join(path);
        let is_link = !path.as_os_str().is_empty() && name.is_symlink();
        if is_link && self.through.insert(path.to_owned()) && !is_local(&name) && self.options.local.is_none() {
            // Another node may write to that file system, and the kernel does not report changes made by other nodes.
            self.options.rules.local = false;
            self.rescan_ms = self.rescan_ms.or(Some(self.now_ms().saturating_add(RESCAN_INTERVAL.as_millis() as u64)));
        }
        let Some(kernel) = &mut self.kernel else { return };
        match kernel.add(&name, is_link) {
            Ok(()) => drop(self.directories.insert(path.to_owned())),
            Err(KernelError::Vanished) => {}
            Err(KernelError::Forbidden) => tracing::debug!(path = %path.display(), "not ours to watch"),
            Err(error) => self.go_blind(&error),
        }
    }

    /// A directory was removed or renamed: forgets it and looks at all files below it.
    fn forget_below(&mut self, directory: &Path) {
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

    // Files.

    fn look(&mut self, path: FilePath, hint: Hint) {
        if !self.files.contains_key(&path) && self.layout.place(&path).is_none() {
            return;
        }
        let stat = std::fs::symlink_metadata(self.root.join(path.as_path())).ok().filter(Metadata::is_file);
        self.look_at(path, hint, stat);
    }

    fn look_anew(&mut self, path: &FilePath) {
        if let Some(tracked) = self.files.get_mut(path) {
            let (checkpoint, rank) = (tracked.placed.checkpoint.clone(), tracked.placed.rank.unwrap_or(Rank(0)));
            (tracked.settled, tracked.state) = (None, FileState::default());
            self.readiness.forget_announced(&checkpoint, rank);
        }
        self.look(path.clone(), Hint::Scan);
    }

    fn look_at(&mut self, path: FilePath, hint: Hint, stat: Option<Metadata>) {
        let now_ms = self.now_ms();
        if !self.files.contains_key(&path) {
            let Some(placed) = stat.as_ref().and_then(|_| self.layout.place(&path)) else { return };
            if placed.rank.is_some_and(|rank| !self.options.own.takes(rank)) {
                return; // many agents may see the same directory; each tracks only the files of its ranks
            }
            if self.files.len() >= self.options.limits.entries {
                let limit = self.options.limits.entries;
                return self.too_many(&format!("more than {limit} files are watched: {path} and more are left out"));
            }
            let (state, settled) = (FileState::default(), None);
            let tracked = Tracked { placed, state, settled, due_ms: None, scan: 0, reported_cut: None, open: false };
            self.files.insert(path.clone(), tracked);
        }
        let tracked = self.files.get_mut(&path).expect("the file was inserted above");
        if let Some(due_ms) = tracked.due_ms.take() {
            self.due.remove(&(due_ms, path.clone()));
        }
        let linked = stat.as_ref().is_some_and(|stat| stat.nlink() > 1);
        // The kernel reports a new hard link as a creation, but no process will close it.
        let hint = if hint == Hint::Created && linked { Hint::MovedTo } else { hint };
        let seen = stat.as_ref().map(Fingerprint::from);
        if seen.is_some() {
            tracked.scan = self.scans;
            if tracked.settled == seen {
                return;
            }
        }
        let is_new = tracked.state == FileState::default(); // a settled file has the default state too
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
        let Placed { checkpoint, rank } = tracked.placed;
        self.readiness.set_restored(path, false);
        if let Some(marked) = self.layout.marked(path) {
            self.readiness.mark(&marked, false);
        }
        let was_announced = self.readiness.remove(self.now_ms(), &checkpoint, rank, path);
        tracing::debug!(%checkpoint, %path, was_announced, "vanished");
        let rank = rank.unwrap_or(Rank(0));
        self.tell(WatchEvent::Vanished { checkpoint, rank, path: path.clone(), was_announced });
    }

    /// Examines the files that have been at rest. `/proc` is searched once for all of them.
    fn conclude(&mut self) {
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
                    // A later write makes new content, so nothing reported about this content applies to it.
                    (tracked.state, tracked.reported_cut) = (FileState::default(), None);
                    let put = self.restored.put(&path, &settled);
                    if put == Some(Put::Below) {
                        tracing::debug!(%checkpoint, %path, "written by a restart for inspection");
                        self.readiness.remove(now_ms, checkpoint, *rank, &path);
                        continue;
                    }
                    self.readiness.set_restored(&path, put.is_some());
                    self.readiness.put(now_ms, checkpoint, *rank, &path, Some(settled));
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
                    let (checkpoint, rank) = (checkpoint.clone(), rank.unwrap_or(Rank(0)));
                    if last_reported.is_none() {
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
        // If the file cannot be opened here, the capture fails later with an error that is reported.
        open.and_then(|file| hdf5_end(path, bytes, |at, into| file.read_at(into, at))).unwrap_or(End::Unknown)
    }

    // Reports.

    /// Sends the list of pending files if it was requested and differs from the last one sent. Returns the time of
    /// the next attempt. A ready rank that was not delivered yet counts as pending, so between two events nothing is
    /// missing from the list.
    fn report(&mut self) -> Option<u64> {
        let now_ms = self.now_ms();
        let not_before_ms = self.report.as_ref()?.not_before_ms;
        // Do not report while a scan is due, because the files are not known yet. Do not report while the directory
        // exists but cannot be read.
        let is_gone = || self.root.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if self.rescan_ms.is_some_and(|at| at <= now_ms) || self.lost > 0 && !is_gone() {
            return None;
        }
        if now_ms < not_before_ms {
            return Some(not_before_ms);
        }
        if !self.notices.is_empty() {
            return None; // older events are delivered first
        }
        let pending = self.pending(now_ms);
        let report = self.report.as_mut()?;
        report.not_before_ms = now_ms.saturating_add(REPORT_MS);
        if report.last_reported.as_ref() == Some(&pending) {
            return None; // a change arrives with an event or at a due time
        }
        match self.events.try_send(WatchEvent::Scanned { request: report.request, pending: pending.clone() }) {
            Ok(()) => report.last_reported = Some(pending),
            Err(mpsc::error::TrySendError::Full(_)) => return Some(now_ms.saturating_add(FULL_MS)),
            Err(mpsc::error::TrySendError::Closed(_)) => self.closed = true,
        }
        None
    }

    fn pending(&self, now_ms: u64) -> Vec<Pending> {
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
                (_, true) => ("it is open for writing", false),
                (_, false) => ("it was not at rest for long enough", false),
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
                Why::Marker => (NO_MARKER, self.processes_gone),
                Why::Quiet => ("its checkpoint was not at rest for long enough", false),
                Why::Fewer => ("it has fewer files or bytes than the rank wrote before", false),
            };
            Pending { checkpoint, rank, path: None, why, modified_ns, hopeless }
        }));
        pending
    }

    fn tell(&mut self, event: WatchEvent) {
        if self.notices.len() >= NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(event);
    }

    /// Sends as many events as the queue has room for. Returns the time at which more may have to be sent.
    fn deliver(&mut self) -> Option<u64> {
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
        let timeline = if ready.is_empty() { Timeline::default() } else { self.readiness.timeline() };
        for mut ready in ready {
            // Overwriting a file in place causes no event at its start, so compare each file once more with what is
            // to be reported.
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
                    ready.companions = self.companions(&ready, &timeline);
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

/// Age in milliseconds of the last change of a file. `None` if the file's time is ahead of all clocks.
fn age_ms(root: &Path, print: &Fingerprint) -> Option<u64> {
    let changed_ns = print.changed_ns.max(print.modified_ns);
    let age_ns = Fingerprint { changed_ns, ..*print }.age_ns(ahead_ns(root));
    u64::try_from(age_ns).ok().map(|ns| ns / 1_000_000)
}

/// Whether the file system is one that only this node writes to. All other file systems may be shared.
fn is_local(root: &Path) -> bool {
    const ZFS: i64 = 0x2fc1_2fc1;
    const RAMFS: i64 = 0x8584_58f6;
    let local = [
        statfs::EXT4_SUPER_MAGIC, // ext2 and ext3 have the same number
        statfs::XFS_SUPER_MAGIC,
        statfs::BTRFS_SUPER_MAGIC,
        statfs::TMPFS_MAGIC,
        statfs::OVERLAYFS_SUPER_MAGIC,
        statfs::F2FS_SUPER_MAGIC,
        statfs::REISERFS_SUPER_MAGIC,
        statfs::FsType(ZFS),
        statfs::FsType(RAMFS),
    ];
    statfs::statfs(root).is_ok_and(|stat| local.contains(&stat.filesystem_type()))
}

#[cfg(test)]
mod tests;
