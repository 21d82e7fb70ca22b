//! The directories and files of a mount: jobs, their complete checkpoints, and the files of the checkpoints.
//!
//! The list of the files of a checkpoint is read from the indexes of its containers when a process first looks into
//! the checkpoint. The list stays in memory, because a committed checkpoint never changes.

use mcrengine::container::{ContainerReader, ReadError};
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::PosixStore;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Number of the root directory.
pub const ROOT: u64 = 1;

/// A file in the containers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileAt {
    pub job: JobId,
    pub checkpoint: CheckpointId,
    pub group: GroupId,
    /// Number of the file in the group.
    pub file: u32,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    Root,
    Job(JobId),
    Checkpoint { job: JobId, id: CheckpointId, groups: u32, is_loaded: bool },
    Directory,
    File(Arc<FileAt>),
    Link(Arc<FileAt>),
}

impl Kind {
    pub fn is_dir(&self) -> bool {
        !matches!(self, Self::File(_) | Self::Link(_))
    }
}

/// A directory, file or link.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub bytes: u64,
    pub mode: u32,
    pub modified_ns: i64,
    pub links: u32,
    pub parent: u64,
    children: BTreeMap<OsString, u64>,
}

impl Node {
    fn directory(kind: Kind, parent: u64, modified_ns: i64) -> Self {
        Self { kind, bytes: 0, mode: 0o755, modified_ns, links: 2, parent, children: BTreeMap::new() }
    }
}

/// All nodes that were looked at.
pub struct Tree {
    store: Arc<PosixStore>,
    /// The only job that is shown; `None` shows all jobs.
    job: Option<JobId>,
    /// The node with the number n has the index n - 1.
    nodes: Vec<Node>,
}

impl Tree {
    /// A tree with only the root.
    pub fn new(store: Arc<PosixStore>, job: Option<JobId>) -> Self {
        Self { store, job, nodes: vec![Node::directory(Kind::Root, ROOT, 0)] }
    }

    /// A node that was looked up before.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// The number of a child; `None` if there is no such child.
    pub fn lookup(&mut self, parent: u64, name: &OsStr) -> Result<Option<u64>, ReadError> {
        let Some(node) = self.node(parent) else { return Ok(None) };
        let (kind, known) = (node.kind.clone(), node.children.get(name).copied());
        match kind {
            Kind::Job(job) if known.is_none() => {
                let Some(id) = name.to_str().and_then(|name| name.parse::<CheckpointId>().ok()) else {
                    return Ok(None);
                };
                match manifest::state(&*self.store, &job, &id) {
                    Ok(state) => Ok(is_shown(&state).then(|| self.add_checkpoint(parent, &job, &state))),
                    Err(ReadError::Missing { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            _ if known.is_some() => Ok(known),
            _ => Ok(self.list(parent)?.into_iter().find(|(found, _)| found == name).map(|(_, number)| number)),
        }
    }

    /// The children of a directory, sorted by name.
    pub fn list(&mut self, number: u64) -> Result<Vec<(OsString, u64)>, ReadError> {
        let Some(node) = self.node(number) else { return Ok(Vec::new()) };
        match node.kind.clone() {
            Kind::Root => {
                let shown = |job: &JobId| self.job.as_ref().is_none_or(|only| only == job);
                let jobs: Vec<JobId> = manifest::jobs(&*self.store)?.into_iter().filter(shown).collect();
                let add = |job: JobId| (OsString::from(job.as_str()), self.add_job(job));
                Ok(jobs.into_iter().map(add).collect())
            }
            Kind::Job(job) => {
                let states = manifest::list(&*self.store, &job)?;
                let add = |state: &CheckpointState| {
                    (OsString::from(state.id.as_str()), self.add_checkpoint(number, &job, state))
                };
                let mut all: Vec<_> = states.iter().filter(|state| is_shown(state)).map(add).collect();
                all.sort();
                Ok(all)
            }
            Kind::Checkpoint { job, id, groups, is_loaded: false } => {
                self.load(number, &job, &id, groups)?;
                Ok(self.children(number))
            }
            Kind::Checkpoint { .. } | Kind::Directory => Ok(self.children(number)),
            Kind::File(_) | Kind::Link(_) => Ok(Vec::new()),
        }
    }

    fn children(&self, number: u64) -> Vec<(OsString, u64)> {
        let children = self.node(number).map(|node| &node.children).into_iter().flatten();
        children.map(|(name, number)| (name.clone(), *number)).collect()
    }

    fn add(&mut self, parent: u64, name: &OsStr, node: Node) -> u64 {
        self.nodes.push(node);
        let number = self.nodes.len() as u64;
        self.name(parent, name, number);
        number
    }

    fn name(&mut self, parent: u64, name: &OsStr, number: u64) {
        if let Some(parent) = usize::try_from(parent - 1).ok().and_then(|at| self.nodes.get_mut(at)) {
            parent.children.insert(name.to_owned(), number);
        }
    }

    fn known(&self, parent: u64, name: &OsStr) -> Option<u64> {
        self.node(parent).and_then(|node| node.children.get(name).copied())
    }

    fn add_job(&mut self, job: JobId) -> u64 {
        let name = OsString::from(job.as_str());
        let known = self.known(ROOT, &name);
        known.unwrap_or_else(|| self.add(ROOT, &name, Node::directory(Kind::Job(job), ROOT, 0)))
    }

    fn add_checkpoint(&mut self, parent: u64, job: &JobId, state: &CheckpointState) -> u64 {
        let (name, id) = (OsString::from(state.id.as_str()), state.id.clone());
        let kind = Kind::Checkpoint { job: job.clone(), id, groups: state.groups, is_loaded: false };
        let created_ns = i64::try_from(state.created_unix_ms).unwrap_or(0).saturating_mul(1_000_000);
        let known = self.known(parent, &name);
        known.unwrap_or_else(|| self.add(parent, &name, Node::directory(kind, parent, created_ns)))
    }

    /// Adds the files of a checkpoint.
    fn load(&mut self, number: u64, job: &JobId, id: &CheckpointId, groups: u32) -> Result<(), ReadError> {
        let open = |group| ContainerReader::open(&*self.store, job, id, GroupId(group));
        let readers = (0..groups).map(open).collect::<Result<Vec<_>, _>>()?;
        for (group, reader) in (0..).map(GroupId).zip(&readers) {
            let mut numbers: Vec<u64> = Vec::new();
            for (file, header) in (0..).zip(reader.index().files()) {
                let at = FileAt { job: job.clone(), checkpoint: id.clone(), group, file };
                let named = match header.kind {
                    FileKind::HardLink(before) => {
                        numbers.len().checked_sub(before.get() as usize).map(|place| numbers[place])
                    }
                    _ => None,
                };
                numbers.push(self.add_file(number, at, header, named));
            }
        }
        if let Some(Node { kind: Kind::Checkpoint { is_loaded, .. }, .. }) = self.nodes.get_mut(number as usize - 1) {
            *is_loaded = true;
        }
        Ok(())
    }

    /// Adds a file and the directories on its path. `named`: for a hard link, the node that the link names.
    fn add_file(&mut self, checkpoint: u64, at: FileAt, header: &FileHeader, named: Option<u64>) -> u64 {
        let mut parts: Vec<&OsStr> =
            header.path.as_bytes().split(|byte| *byte == b'/').map(OsStr::from_bytes).collect();
        let name = parts.pop().unwrap_or_default();
        let mut parent = checkpoint;
        for part in parts {
            let known = self.known(parent, part);
            parent = known.unwrap_or_else(|| {
                self.add(parent, part, Node::directory(Kind::Directory, parent, header.modified_ns))
            });
        }
        if let Some(first) = named {
            self.name(parent, name, first);
            if let Some(node) = self.nodes.get_mut(first as usize - 1) {
                node.links += 1;
            }
            return first;
        }
        let at = Arc::new(at);
        let kind = match header.kind {
            FileKind::Directory => Kind::Directory,
            FileKind::SymbolicLink => Kind::Link(at),
            FileKind::Regular | FileKind::Pointer | FileKind::HardLink(_) => Kind::File(at),
        };
        // The directory may have been added already, with one of its files.
        if let Some(known) = self.known(parent, name) {
            if let Some(node) = self.nodes.get_mut(known as usize - 1) {
                (node.mode, node.modified_ns) = (header.mode, header.modified_ns);
            }
            return known;
        }
        let links = if kind.is_dir() { 2 } else { 1 };
        let (bytes, mode, modified_ns) = (header.bytes, header.mode, header.modified_ns);
        self.add(parent, name, Node { kind, bytes, mode, modified_ns, links, parent, children: BTreeMap::new() })
    }
}

fn is_shown(state: &CheckpointState) -> bool {
    state.is_complete() && !state.is_pruned
}
