//! The kernel's events for single directories, by the crate `notify`.
//!
//! `notify` reads inotify on a thread of its own and calls a handler there. The handler puts each event into a queue with
//! a bound and wakes the watcher's thread through a pipe. When the kernel's queue or this queue overflows, the watcher
//! hears of it once and scans.

use notify::event::{
    AccessKind, AccessMode, CreateKind, EventKind, EventKindMask, Flag, ModifyKind, RemoveKind, RenameMode,
};
use notify::{Config, Event, INotifyWatcher, RecursiveMode, WatchPathConfig, Watcher};
use std::collections::VecDeque;
use std::io::{self, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The most events that wait to be read.
pub(super) const EVENTS_MAX: usize = 16 << 10;

/// What happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file or a link is there.
    Created,
    /// A directory is there.
    DirectoryCreated,
    /// A file or a directory came by renaming.
    MovedTo,
    /// A file that was open for writing was closed.
    Closed,
    /// A file or a directory is not there any more under this name.
    Gone,
}

/// What the kernel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelEvent {
    /// A name below a watched directory, or the directory itself.
    Change(PathBuf, Change),
    /// Events were lost.
    Overflow,
}

/// Why the kernel does not report changes.
#[derive(Debug, thiserror::Error)]
pub(super) enum KernelError {
    /// A limit of this node is reached.
    #[error("the limit {setting} is reached")]
    Limit {
        /// The setting to raise.
        setting: &'static str,
    },
    /// The directory vanished.
    #[error("it is not there")]
    Vanished,
    /// The directory may not be read.
    #[error("no permission")]
    Forbidden,
    /// Anything else.
    #[error(transparent)]
    Other(notify::Error),
}

/// A running listener. It ends when this is dropped.
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
    /// Events were lost since the last one that was read.
    is_overflown: bool,
}

impl Kernel {
    /// Listens to nothing yet. A byte in the pipe says that there are events.
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

    /// Reports changes of the names in a directory from now on. A link is only followed where `follow` says so.
    pub(super) fn add(&mut self, directory: &Path, follow: bool) -> Result<(), KernelError> {
        let config = WatchPathConfig::new(RecursiveMode::NonRecursive).with_dereference_symlinks(follow);
        self.inotify.watch_with(directory, config).map_err(|error| refused(error, "fs.inotify.max_user_watches"))
    }

    /// Reports nothing of a directory any more.
    pub(super) fn remove(&mut self, directory: &Path) {
        let _ = self.inotify.unwatch(directory); // it is gone already where the directory was deleted or moved away
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> Option<KernelEvent> {
        let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut waiting.is_overflown) {
            waiting.events.clear(); // a scan sees what they report
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
            // What an error hides is found by a scan.
            Err(error) => {
                tracing::warn!(%error, "listening to the kernel");
                waiting.is_overflown = true;
            }
        }
        drop(waiting);
        if was_empty {
            let _ = (&self.wake).write(&[1]); // a broken pipe: the watcher's thread has ended
        }
    }
}

/// `None`: the watcher does not need it.
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
