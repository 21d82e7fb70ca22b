//! Answers the requests of the kernel.

use super::data::Data;
use super::tree::{Kind, Node, ROOT, Tree};
use crate::output::tell;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use mcrengine::container::ReadError;
use mcrengine::error_chain::error_chain;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time for which the kernel may cache the names of jobs and checkpoints. The time is short, because checkpoints may
/// be pruned.
const JOB_TTL: Duration = Duration::from_secs(1);
/// Time for which the kernel may cache the files of a checkpoint. The time is long, because these files never change.
const FILE_TTL: Duration = Duration::from_secs(60);
/// Number of bytes that the kernel reads ahead of a sequential reader.
const READAHEAD_BYTES: u32 = 1 << 20;

/// The file system.
pub struct Files {
    tree: Mutex<Tree>,
    data: Data,
    /// Owner of all files: the user who mounts.
    owner: (u32, u32),
}

impl Files {
    pub fn new(tree: Tree, data: Data, owner: (u32, u32)) -> Self {
        Self { tree: Mutex::new(tree), data, owner }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Reports an error. The reading process gets only a number.
fn failed(error: &ReadError) -> Errno {
    tell(error_chain(error));
    Errno::EIO
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if let Err(most) = config.set_max_readahead(READAHEAD_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut tree = self.tree();
        match tree.lookup(parent.into(), name) {
            Ok(found) => match found.and_then(|number| Some((number, tree.node(number)?))) {
                Some((number, node)) => reply.entry(&ttl_of(&node.kind), &self.attr(number, node), Generation(0)),
                None => reply.error(Errno::ENOENT),
            },
            Err(error) => reply.error(failed(&error)),
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
            Err(error) => reply.error(failed(&error)),
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
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let number = u64::from(ino);
        let mut tree = self.tree();
        let children = match tree.list(number) {
            Ok(children) => children,
            Err(error) => return reply.error(failed(&error)),
        };
        let parent = tree.node(number).map_or(ROOT, |node| node.parent);
        let special = [(OsString::from_vec(b".".to_vec()), number), (OsString::from_vec(b"..".to_vec()), parent)];
        let all = (1..).zip(special.into_iter().chain(children));
        for (place, (name, number)) in all.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = tree.node(number).map_or(FileType::Directory, |node| type_of(&node.kind));
            if reply.add(INodeNo(number), place, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
