//! The kernel's events for single directories, through the crate `notify`.
//!
//! `notify` reads inotify on its own thread and calls a handler there. The handler puts each event into a bounded
//! queue and wakes the watcher's thread through a pipe. If the kernel's queue or the handler's queue overflows, the
//! watcher gets one `Overflow` event, and scans the directory.

use notify::event::{
    AccessKind, AccessMode, CreateKind, EventKind, EventKindMask, Flag, ModifyKind, RemoveKind, RenameMode,
};
use notify::{Config, Event, INotifyWatcher, RecursiveMode, WatchPathConfig, Watcher};
use std::collections::VecDeque;
use std::io::{self, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of queued events.
pub(super) const EVENTS_MAX: usize = 16 << 10;

/// What happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file or a link was created.
    Created,
    /// A directory was created.
    DirectoryCreated,
    /// A file or a directory was renamed to this name.
    MovedTo,
    /// A file that was open for writing was closed.
    Closed,
    /// A file or a directory was removed or renamed to another name.
    Gone,
}

/// An event from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelEvent {
    /// A change of a name in a watched directory, or of the directory itself.
    Change(PathBuf, Change),
    /// Events were lost.
    Overflow,
}

/// Why the kernel cannot report changes.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelError {
    /// A limit of this node is reached.
    #[error("the limit {setting} is reached")]
    Limit {
        /// The setting to increase.
        setting: &'static str,
    },
    /// The directory was removed.
    #[error("the directory does not exist")]
    Vanished,
    /// The user has no permission to read the directory.
    #[error("no permission to read the directory")]
    Forbidden,
    /// Any other error.
    #[error(transparent)]
    Other(notify::Error),
}

/// A running listener. Dropping this value stops the listener.
pub(super) struct Kernel {
    inotify: INotifyWatcher,
    queue: Arc<Queue>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    wake: PipeWriter,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<KernelEvent>,
    /// Whether events were lost after the last event that was read.
    is_overflown: bool,
}

impl Kernel {
    /// Starts a listener that does not yet watch any directory. Whenever the queue becomes non-empty, the listener
    /// writes a byte to `wake`.
    pub(super) fn listen(wake: PipeWriter) -> Result<Self, KernelError> {
        let queue = Arc::new(Queue { waiting: Mutex::default(), wake });
        let to = Arc::clone(&queue);
        let wanted =
            EventKindMask::CREATE | EventKindMask::REMOVE | EventKindMask::MODIFY_NAME | EventKindMask::ACCESS_CLOSE;
        let config = Config::default().with_event_kinds(wanted).with_follow_symlinks(false);
        let handler = move |event: notify::Result<Event>| to.put(event);
        let inotify =
            INotifyWatcher::new(handler, config).map_err(|error| refused(error, "fs.inotify.max_user_instances"))?;
        Ok(Self { inotify, queue })
    }

    /// Starts to report changes of the names in a directory. A symbolic link is followed only if `follow` is true.
    pub(super) fn add(&mut self, directory: &Path, follow: bool) -> Result<(), KernelError> {
        let config = WatchPathConfig::new(RecursiveMode::NonRecursive).with_dereference_symlinks(follow);
        self.inotify.watch_with(directory, config).map_err(|error| refused(error, "fs.inotify.max_user_watches"))
    }

    /// Stops reporting changes of a directory.
    pub(super) fn remove(&mut self, directory: &Path) {
        let _ = self.inotify.unwatch(directory); // fails if the directory was deleted or moved away
    }

    /// The next event. `None` if the queue is empty.
    pub(super) fn next(&self) -> Option<KernelEvent> {
        let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut waiting.is_overflown) {
            waiting.events.clear(); // the scan finds the changes that these events report
            return Some(KernelEvent::Overflow);
        }
        waiting.events.pop_front()
    }
}

impl Queue {
    fn put(&self, event: notify::Result<Event>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = waiting.events.is_empty() && !waiting.is_overflown;
        match event {
            Ok(event) if event.attrs.flag() == Some(Flag::Rescan) => waiting.is_overflown = true,
            Ok(event) => match change_of(event) {
                Some(_) if waiting.events.len() >= EVENTS_MAX => waiting.is_overflown = true,
                Some((path, change)) => waiting.events.push_back(KernelEvent::Change(path, change)),
                None => return,
            },
            // A scan finds the changes that the error hides.
            Err(error) => {
                tracing::warn!(%error, "the kernel's events cannot be read; the directory is scanned");
                waiting.is_overflown = true;
            }
        }
        drop(waiting);
        if was_empty {
            let _ = (&self.wake).write(&[1]); // if the pipe is broken, the watcher's thread has ended
        }
    }
}

/// Converts an event. `None` if the watcher does not need the event.
fn change_of(mut event: Event) -> Option<(PathBuf, Change)> {
    let change = match event.kind {
        EventKind::Create(CreateKind::Folder) => Change::DirectoryCreated,
        EventKind::Create(_) => Change::Created,
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Change::Closed,
        EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Change::MovedTo,
        EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Change::Gone,
        EventKind::Remove(RemoveKind::File | RemoveKind::Folder | RemoveKind::Other | RemoveKind::Any) => Change::Gone,
        EventKind::Any | EventKind::Access(_) | EventKind::Modify(_) | EventKind::Other => return None,
    };
    event.paths.pop().map(|path| (path, change))
}

fn refused(error: notify::Error, setting: &'static str) -> KernelError {
    let io_kind = match &error.kind {
        notify::ErrorKind::Io(error) => Some((error.kind(), error.raw_os_error())),
        _ => None,
    };
    match (&error.kind, io_kind) {
        (notify::ErrorKind::MaxFilesWatch, _) => KernelError::Limit { setting },
        (_, Some((_, Some(libc_emfile)))) if libc_emfile == nix::errno::Errno::EMFILE as i32 => {
            KernelError::Limit { setting }
        }
        (notify::ErrorKind::PathNotFound, _)
        | (_, Some((io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _))) => KernelError::Vanished,
        (_, Some((io::ErrorKind::PermissionDenied, _))) => KernelError::Forbidden,
        _ => KernelError::Other(error),
    }
}
