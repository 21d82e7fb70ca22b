//! Watches a directory and reports which ranks of which checkpoints may be read.
//!
//! Events of the kernel (inotify) are hints. An event makes the watcher look at one file. The decision about the file
//! depends only on the state of the file at this moment ([`crate::settle`]). The watcher scans the whole directory at
//! the start, after the kernel dropped events, and periodically on a file system that other nodes write to. The
//! watcher does not request an event for each write, so the application's writes do not become slower. If there are
//! no events and no work is due, the watcher only wakes up every 5 s, to see whether the configured path leads to
//! another directory now.
//!
//! One thread, which waits in `poll`, makes all decisions. The watcher never opens a file for writing, never locks a
//! file, and never takes a lease on a file.
//!
//! `scan.rs` finds the files to look at. `look.rs` decides about each of these files. `beside.rs` handles files and
//! links that match no pattern of the layout. `unreadable.rs` handles directories that cannot be read. `root.rs`
//! finds out whether the configured path leads to another directory. `report.rs` sends the results.

mod beside;
mod kernel;
mod look;
mod report;
mod root;
mod scan;
mod unreadable;
pub(crate) mod writers;

use crate::companions::Versions;
use crate::fingerprint::Fingerprint;
use crate::layout::{Layout, Placed, ScanLimits};
use crate::restored::Restored;
use crate::settle::{FileState, Gone, Hint, OwnRanks, Readiness, ReadyRank, SettleRules};
use kernel::Kernel;
use mcrengine::ids::{CheckpointId, FilePath, Rank};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Options of a watcher.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// How long files and checkpoints must stay unchanged before they count as finished. Unless [`Self::local`] is
    /// set, [`SettleRules::local`] is determined from the file system.
    pub rules: SettleRules,
    /// Whether only this node writes to the file system. `None`: determined from the type of the file system.
    pub local: Option<bool>,
    /// Whether to receive events from the kernel. Without events only scans find changes.
    pub listen: bool,
    /// Interval between scans of the whole directory. Zero: no periodic scans. `None`: one scan each minute if the
    /// kernel cannot report all changes, else no periodic scans. The kernel cannot report all changes if other nodes
    /// write to the file system, or if there are too many directories.
    pub rescan: Option<Duration>,
    /// Ranks whose files are watched.
    pub own: OwnRanks,
    /// Maximum depth of a scan, and maximum number of watched files.
    pub limits: ScanLimits,
    /// Time in nanoseconds since 1970, by the clock of the file system. If a directory that cannot be read changed at
    /// this time or later, it counts as a directory of the application. Directories that appear after the first scan
    /// always count.
    pub since_ns: i64,
    /// Maximum number of events in the queue. When the queue is full, the watcher delays further events.
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
            since_ns: i64::MAX,
            queue: 1024,
        }
    }
}

/// A report of the watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A rank's part of a checkpoint may be read.
    Ready(ReadyRank),
    /// A file of a checkpoint was removed.
    Vanished {
        /// The checkpoint's label.
        checkpoint: CheckpointId,
        /// The rank of the file. Rank 0 if the file belongs to no single rank.
        rank: Rank,
        /// The file.
        path: FilePath,
        /// Whether the file was part of a [`WatchEvent::Ready`].
        was_announced: bool,
    },
    /// A file is at rest but incomplete. The rank of the file does not become ready until the file changes.
    Cut {
        /// The checkpoint's label.
        checkpoint: CheckpointId,
        /// The rank of the file. Rank 0 if the file belongs to no single rank.
        rank: Rank,
        /// The file.
        path: FilePath,
        /// What is wrong with the file.
        why: &'static str,
    },
    /// The watched directory was replaced by another directory before this file or rank was reported.
    LeftBehind {
        /// The file or the rank.
        pending: Pending,
        /// The directory that is not watched any more.
        directory: PathBuf,
    },
    /// The watched directory was replaced by another directory. Ranks that were reported before and are not yet saved
    /// cannot be reported again.
    Left {
        /// The directory that is not watched any more.
        directory: PathBuf,
    },
    /// A problem of the watcher itself, as text. The watcher continues.
    Trouble(String),
    /// Answers [`Watcher::look_around`]: since this request the watcher has looked at every file. The event is sent
    /// again whenever the list of pending files changes. If a file left the list, its [`WatchEvent::Ready`] event is
    /// always sent before this event.
    Scanned {
        /// Number of the request. This event also answers all earlier requests.
        request: u64,
        /// Files and ranks that exist and whose present state was not yet reported. At most [`PENDING_MAX`] entries.
        pending: Vec<Pending>,
        /// Directories of the application that cannot be read. Unsaved files may be in these directories.
        unreadable: Vec<Unreadable>,
    },
}

/// A directory that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The absolute path of the directory.
    pub path: PathBuf,
    /// Why the directory, or a file in it, cannot be read.
    pub why: String,
}

/// What the watcher knows about a directory that cannot be read.
struct UnreadableHere {
    error: String,
    /// Whether files of the application may be in the directory.
    counts: bool,
}

/// A file or a rank that exists but cannot be saved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The checkpoint's label.
    pub checkpoint: CheckpointId,
    /// The rank. Rank 0 if the file belongs to no single rank.
    pub rank: Rank,
    /// The file that is not settled. `None`: all existing files of the rank are settled, but the rank is not ready.
    pub path: Option<FilePath>,
    /// Why the file or the rank cannot be saved yet.
    pub why: &'static str,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Whether waiting longer does not help.
    pub hopeless: bool,
}

/// Maximum number of entries in [`WatchEvent::Scanned`].
pub const PENDING_MAX: usize = 4096;
/// The reason for waiting if the layout has a marker file and the marker file of the checkpoint does not exist.
pub const NO_MARKER: &str = "the file that marks the checkpoint as complete is not there";

/// Why a directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The path does not exist, is not a directory, or this user has no permission to read it.
    #[error("{}: cannot be watched", path.display())]
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

/// A running watcher. Dropping this value stops the watcher.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    first_scan: Option<oneshot::Receiver<()>>,
}

#[derive(Debug)]
struct Shared {
    requests: Mutex<Requests>,
    wake: PipeWriter,
}

#[derive(Debug, Default)]
struct Requests {
    /// Whether the pipe already contains a wake-up byte for these requests.
    woken: bool,
    stop: bool,
    rescan: bool,
    look: Vec<FilePath>,
    again: Vec<(CheckpointId, Rank)>,
    /// Number of the last request of [`Watcher::look_around`].
    asked: u64,
    /// Whether to stop sending [`WatchEvent::Scanned`].
    report_no_more: bool,
    /// Whether restored files count as files of the application.
    take_restored: bool,
    /// `Some` if the job's processes have ended.
    gone: Option<Gone>,
}

/// Maximum number of files in a request to look again. If there are more files, the watcher scans the whole
/// directory.
const LOOK_MAX: usize = 4096;
/// Maximum number of files that the watcher examines in one turn of its loop, and maximum number of ranks that the
/// watcher reports in one turn. This maximum limits the memory that a turn needs.
const BATCH: usize = 1024;

impl Watcher {
    /// Starts to watch. Files that already exist are reported too. When the watcher stops, the channel of events
    /// closes.
    pub fn spawn(
        root: &Path,
        layout: Layout,
        options: WatchOptions,
    ) -> Result<(mpsc::Receiver<WatchEvent>, Self), WatchError> {
        let (events, receiver) = mpsc::channel(options.queue.max(1));
        let (wait, wake) = io::pipe().map_err(WatchError::Start)?;
        let (scanned, first_scan) = oneshot::channel();
        let mut core = Core::new(root, layout, options, events, wake.try_clone().map_err(WatchError::Start)?)?;
        core.scanned = Some(scanned);
        let shared = Arc::new(Shared { requests: Mutex::default(), wake });
        let requests = Arc::clone(&shared);
        let run = move || core.run(&wait, &requests);
        let thread = std::thread::Builder::new().name("mcr-watch".into()).spawn(run).map_err(WatchError::Start)?;
        Ok((receiver, Self { shared, thread: Some(thread), first_scan: Some(first_scan) }))
    }

    /// The receiver that gets a message when the first scan has ended, and all files that it found at rest were
    /// examined. `None` after the first call.
    pub fn first_scan(&mut self) -> Option<oneshot::Receiver<()>> {
        self.first_scan.take()
    }

    /// Scans the whole directory now.
    pub fn rescan(&self) {
        self.request(|requests| requests.rescan = true);
    }

    /// Scans the whole directory now, and then reports the pending files until [`Watcher::report_no_more`] is called.
    /// Returns the number of the request, which each [`WatchEvent::Scanned`] contains.
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
    /// has it open and its superblock does not contradict its length.
    pub fn processes_gone(&self, gone: Gone) {
        self.request(|requests| (requests.gone, requests.rescan) = (Some(gone), true));
    }

    /// Makes the watcher wait until this file has settled again, and then report its rank again. The agent calls this
    /// function for files that changed while they were being read, and for files that could not be read.
    pub fn look_again(&self, path: &FilePath) {
        self.request(|requests| match requests.look.len() < LOOK_MAX {
            true => requests.look.push(path.clone()),
            false => requests.rescan = true,
        });
    }

    /// Makes the watcher report a rank again, although the rank did not change after its last report. The request is
    /// ignored if the watcher does not know the rank, or if too many requests wait.
    pub fn report_again(&self, checkpoint: CheckpointId, rank: Rank) {
        self.request(|requests| {
            if requests.again.len() < LOOK_MAX {
                requests.again.push((checkpoint, rank));
            }
        });
    }

    /// From now on, files that a restart wrote count as files that the application wrote. Files that a restart wrote
    /// for inspection, below the watched directory, still do not count.
    pub fn take_restored(&self) {
        self.request(|requests| requests.take_restored = true);
    }

    /// Stops the watcher, and waits until its thread has ended.
    pub fn stop(self) {
        drop(self);
    }

    /// Stops the watcher without waiting for its thread, which may hang in a file system.
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
        // After `leave` there is no thread.
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
    /// The reported reason, if the file is at rest but incomplete.
    reported_cut: Option<&'static str>,
    /// Whether a process had the file open for writing when the watcher last looked.
    open: bool,
}

/// The state of the watcher's thread.
struct Core {
    /// The absolute path that the user wrote. Symbolic links in this path may be changed at any time.
    configured: PathBuf,
    /// The watched directory, without symbolic links.
    root: PathBuf,
    directory: root::Root,
    /// Time of the next check whether the configured path leads to another directory.
    path_check_ms: u64,
    layout: Layout,
    options: WatchOptions,
    events: mpsc::Sender<WatchEvent>,
    started: Instant,
    /// The source of the kernel's events. `None`: the kernel reports no changes.
    kernel: Option<Kernel>,
    /// The pipe that wakes the thread. When events of the kernel arrive, a byte is written to the pipe.
    wake: PipeWriter,
    /// Directories whose changes the kernel reports, relative to the root.
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<FilePath, Tracked>,
    due: BTreeSet<(u64, FilePath)>,
    examine: BTreeSet<FilePath>,
    readiness: Readiness,
    /// Earlier contents of pointer files and links.
    versions: Versions,
    restored: Restored,
    /// Whether restored files count as files of the application.
    takes_restored: bool,
    notices: VecDeque<WatchEvent>,
    /// Symbolic links to directories that are watched too.
    through: BTreeSet<PathBuf>,
    /// Symbolic links whose targets are not watched.
    links: BTreeSet<PathBuf>,
    /// The already reported reasons why companions cannot be saved.
    told_lost: BTreeSet<&'static str>,
    /// Whether the kernel does not report the changes of some directories.
    blind: bool,
    scans: u64,
    /// Whether the first scan has ended.
    is_begun: bool,
    /// Gets a message when the first scan has ended, and all files that it found at rest were examined.
    scanned: Option<oneshot::Sender<()>>,
    rescan_ms: Option<u64>,
    /// Directories that cannot be read, relative to the root.
    unreadable: BTreeMap<PathBuf, UnreadableHere>,
    /// Time of the next attempt to read these directories.
    retry_ms: Option<u64>,
    /// Number of attempts since the watcher last found another unreadable directory.
    retries: u32,
    /// Number of consecutive failures to read the watched directory.
    lost: u32,
    reported_too_many: bool,
    /// `Some` if [`WatchEvent::Scanned`] is requested.
    report: Option<Report>,
    /// Number of the last request of [`Watcher::look_around`]. The number is kept after the reports end.
    asked: u64,
    /// How the job's processes ended, and when this was known. `None` if they may run.
    gone: Option<(Gone, u64)>,
    /// Whether the receiver of the events is closed.
    closed: bool,
}

/// The last report of pending files.
struct Report {
    request: u64,
    last_reported: Option<(Vec<Pending>, Vec<Unreadable>)>,
    /// Earliest time of the next report, in milliseconds of the watcher's clock.
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
        // The absolute path is stored, so that a change of the working directory has no effect.
        let configured = std::path::absolute(root).map_err(refuse)?;
        let root = root.canonicalize().map_err(refuse)?;
        options.rules.local = options.local.unwrap_or_else(|| is_local(&root));
        if options.rules.local {
            options.own = options.own.in_directory_of_this_node();
        }
        let readiness = Readiness::new(&options.rules, &layout, options.own.clone());
        let mut core = Self {
            versions: Versions::default(),
            restored: Restored::load(&root),
            takes_restored: false,
            directory: root::Root::open(&root),
            path_check_ms: root::PATH_CHECK_MS,
            configured,
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
            is_begun: false,
            scanned: None,
            rescan_ms: Some(0),
            unreadable: BTreeMap::new(),
            retry_ms: None,
            retries: 0,
            lost: 0,
            reported_too_many: false,
            report: None,
            asked: 0,
            gone: None,
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
            for (checkpoint, rank) in requests.again {
                self.readiness.forget_announced(&checkpoint, rank);
            }
            if let Some(gone) = requests.gone {
                self.go_without_quiet_times(gone);
            }
            if requests.take_restored {
                self.takes_restored = true;
                self.readiness.take_restored();
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

    /// Ends all quiet times, because the job's processes have ended. Then looks at all files that are not settled.
    fn go_without_quiet_times(&mut self, gone: Gone) {
        self.gone = Some((gone, self.now_ms()));
        self.options.rules = self.options.rules.without_quiet_times();
        self.readiness.without_quiet_times(gone);
        let waiting: Vec<_> = self.files.iter().filter(|(_, t)| t.settled.is_none()).map(|(p, _)| p.clone()).collect();
        waiting.into_iter().for_each(|path| self.look(path, Hint::Scan));
    }

    /// Does all due work. Returns the time at which the next work is due without an event, in milliseconds.
    fn turn(&mut self) -> Option<u64> {
        self.read_events();
        let now_ms = self.now_ms();
        if self.path_check_ms <= now_ms {
            self.follow_path();
        }
        if self.rescan_ms.is_some_and(|at| at <= now_ms) {
            self.scan();
        }
        if self.retry_ms.is_some_and(|at| at <= now_ms) {
            self.retry_unreadable();
        }
        while let Some((at_ms, _)) = self.due.first() {
            if *at_ms > now_ms {
                break;
            }
            let Some((_, path)) = self.due.pop_first() else { break };
            self.look(path, Hint::Scan);
        }
        self.conclude();
        if self.is_begun
            && self.examine.is_empty()
            && let Some(scanned) = self.scanned.take()
        {
            let _ = scanned.send(()); // sending fails only if nobody waits
        }
        let deliver_ms = self.deliver();
        let examine_ms = (!self.examine.is_empty()).then_some(now_ms);
        let report_ms = self.report();
        let due_ms = self.due.first().map(|(at_ms, _)| *at_ms);
        [deliver_ms, examine_ms, report_ms, due_ms, self.rescan_ms, self.retry_ms, Some(self.path_check_ms)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Waits for the kernel, a request, or the given time. Returns false if the wait fails.
    fn wait(&mut self, mut wake: &PipeReader, until_ms: Option<u64>) -> bool {
        let timeout = match until_ms.map(|at_ms| at_ms.saturating_sub(self.now_ms())) {
            None => PollTimeout::NONE,
            // The wait is 1 ms longer, because the clock counts whole milliseconds, and waking up too early wastes
            // one turn.
            Some(ms) => PollTimeout::try_from(ms.saturating_add(1)).unwrap_or(PollTimeout::MAX),
        };
        let mut waited = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "the watcher ends, because waiting for events failed");
                return false;
            }
        }
        let woken = waited[0].any().unwrap_or(false);
        !woken || wake.read(&mut [0; 64]).is_ok_and(|n| n > 0)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Whether only this node writes to the file system. A file system of an unknown type counts as shared.
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
