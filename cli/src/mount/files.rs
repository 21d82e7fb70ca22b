//! Answers the requests of the kernel.

use super::data::{Data, DataError};
use super::tree::{Kind, Node, ROOT, Tree, Unknown};
use crate::output::tell;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use mcrengine::container::{ContainerReader, ReadError};
use mcrengine::error_chain::error_chain;
use mcrengine::ids::GroupId;
use mcrengine::manifest;
use mcrengine::store::PosixStore;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time for which the kernel may cache the names of jobs and checkpoints. The time is short, because checkpoints may
/// be pruned.
const JOB_TTL: Duration = Duration::from_secs(1);
/// Time for which the kernel may cache the files of a checkpoint. The time is long, because these files never change.
const FILE_TTL: Duration = Duration::from_secs(60);
/// Number of bytes that the kernel reads ahead of a sequential reader.
const READAHEAD_BYTES: u32 = 1 << 20;

/// An entry of a directory: its name, number and type.
type Entry = (OsString, u64, FileType);

/// The file system.
pub struct Files {
    store: Arc<PosixStore>,
    tree: Mutex<Tree>,
    data: Data,
    /// The entries of open directories, so that a directory is read from the store once for each time it is opened.
    open_dirs: Mutex<HashMap<u64, Arc<Vec<Entry>>>>,
    next_dir: AtomicU64,
    /// The message that was printed last.
    told: Mutex<String>,
    /// Owner of all files: the user who mounts.
    owner: (u32, u32),
}

impl Files {
    pub fn new(store: Arc<PosixStore>, tree: Tree, data: Data, owner: (u32, u32)) -> Self {
        let (tree, open_dirs, next_dir) = (Mutex::new(tree), Mutex::default(), AtomicU64::new(1));
        Self { store, tree, data, open_dirs, next_dir, told: Mutex::default(), owner }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is unknown about the directory with this number. The tree is not locked meanwhile, so that a slow
    /// store delays only programs that need these directories.
    fn look(&self, number: u64, unknown: Option<Unknown>) -> Result<(), ReadError> {
        let store = &*self.store;
        match unknown {
            None => {}
            Some(Unknown::Jobs) => {
                let jobs = manifest::jobs(store)?;
                self.tree().set_jobs(jobs);
            }
            Some(Unknown::Checkpoints(job)) => {
                let states = manifest::list(store, &job)?;
                self.tree().set_checkpoints(number, &job, &states);
            }
            Some(Unknown::Checkpoint(job, id)) => {
                let state = match manifest::state(store, &job, &id) {
                    Err(ReadError::Missing { .. }) => None,
                    state => Some(state?),
                };
                self.tree().set_checkpoint(number, &job, &id, state.as_ref());
            }
            Some(Unknown::Files { job, id, groups }) => {
                let open = |group| ContainerReader::open(store, &job, &id, GroupId(group));
                let readers = (0..groups).map(open).collect::<Result<Vec<_>, _>>()?;
                self.tree().set_files(number, &job, &id, &readers);
            }
        }
        Ok(())
    }

    fn entries(&self, number: u64) -> Result<Vec<Entry>, ReadError> {
        let unknown = self.tree().unknown_children(number);
        self.look(number, unknown)?;
        let tree = self.tree();
        let parent = tree.node(number).map_or(ROOT, |node| node.parent);
        let type_of = |number| tree.node(number).map_or(FileType::Directory, |node| type_of(&node.kind));
        let special = [(OsString::from("."), number), (OsString::from(".."), parent)];
        let all = special.into_iter().chain(tree.children(number));
        Ok(all.map(|(name, number)| (name, number, type_of(number))).collect())
    }

    /// Reports an error. The reading process gets only a number. Several threads often report the same error, which is
    /// printed once.
    fn failed(&self, error: &DataError) -> Errno {
        let text = error_chain(error);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told != text {
            tell(&text);
            *told = text;
        }
        match error {
            DataError::Replaced(_) => Errno::ESTALE,
            DataError::Read(_) => Errno::EIO,
        }
    }

    fn attr(&self, number: u64, node: &Node) -> FileAttr {
        let nanoseconds = Duration::from_nanos(node.modified_ns.unsigned_abs());
        let modified: SystemTime = match node.modified_ns {
            0.. => UNIX_EPOCH + nanoseconds,
            _ => UNIX_EPOCH - nanoseconds,
        };
        FileAttr {
            ino: INodeNo(number),
            size: node.bytes,
            blocks: node.bytes.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind: type_of(&node.kind),
            perm: (node.mode & 0o7777) as u16,
            nlink: node.links,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        }
    }
}

fn type_of(kind: &Kind) -> FileType {
    match kind {
        Kind::File(_) => FileType::RegularFile,
        Kind::Link(_) => FileType::Symlink,
        Kind::Root | Kind::Job(_) | Kind::Checkpoint { .. } | Kind::Directory => FileType::Directory,
    }
}

fn ttl_of(kind: &Kind) -> Duration {
    match kind {
        Kind::Root | Kind::Job(_) | Kind::Checkpoint { .. } => JOB_TTL,
        Kind::Directory | Kind::File(_) | Kind::Link(_) => FILE_TTL,
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if let Err(most) = config.set_max_readahead(READAHEAD_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = u64::from(parent);
        let unknown = self.tree().unknown_child(parent, name);
        if let Err(error) = self.look(parent, unknown) {
            return reply.error(self.failed(&error.into()));
        }
        let tree = self.tree();
        match tree.child(parent, name).and_then(|number| Some((number, tree.node(number)?))) {
            Some((number, node)) => reply.entry(&ttl_of(&node.kind), &self.attr(number, node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let number = u64::from(ino);
        match self.tree().node(number) {
            Some(node) => reply.attr(&ttl_of(&node.kind), &self.attr(number, node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let link = match self.tree().node(ino.into()) {
            Some(Node { kind: Kind::Link(at), bytes, .. }) => Some((at.clone(), *bytes)),
            _ => None,
        };
        let Some((at, bytes)) = link else { return reply.error(Errno::EINVAL) };
        match self.data.read(&at, 0, u32::try_from(bytes).unwrap_or(u32::MAX)) {
            Ok(text) => reply.data(&text),
            Err(error) => reply.error(self.failed(&error)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The bytes never change, so the kernel may keep them after the file is closed.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let at = match self.tree().node(ino.into()) {
            Some(Node { kind: Kind::File(at), .. }) => at.clone(),
            _ => return reply.error(Errno::EISDIR),
        };
        match self.data.read(&at, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(self.failed(&error)),
        }
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.entries(ino.into()) {
            Ok(entries) => {
                let handle = self.next_dir.fetch_add(1, Ordering::Relaxed);
                self.open_dirs().insert(handle, Arc::new(entries));
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(self.failed(&error.into())),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(entries) = self.open_dirs().get(&handle.0).cloned() else { return reply.error(Errno::EBADF) };
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, number, kind)) in (1..).zip(entries.iter()).skip(first) {
            if reply.add(INodeNo(*number), place, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.open_dirs().remove(&handle.0);
        reply.ok();
    }
}

impl Files {
    fn open_dirs(&self) -> MutexGuard<'_, HashMap<u64, Arc<Vec<Entry>>>> {
        self.open_dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
