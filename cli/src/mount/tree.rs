//! The directories and files of a mount: jobs, their complete checkpoints, and the files of the checkpoints.
//!
//! The list of the files of a checkpoint is read from the indexes of its containers when a process first looks into
//! the checkpoint. The list stays in memory, because a committed checkpoint never changes.

use crate::output::tell;
use mcrengine::container::ContainerReader;
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{CheckpointId, Digest, GroupId, JobId};
use mcrengine::manifest::CheckpointState;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Number of the root directory.
pub const ROOT: u64 = 1;

/// A group of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupAt {
    pub job: JobId,
    pub checkpoint: CheckpointId,
    pub group: GroupId,
    /// BLAKE3 of the index of the group's container. If the checkpoint is replaced, the digest is another one.
    pub index_digest: Digest,
}

/// A file in the containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAt {
    pub group: Arc<GroupAt>,
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

/// A directory, file or link.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub bytes: u64,
    pub mode: u32,
    pub modified_ns: i64,
    /// Number of names of a file. Always 1 for a directory, because the number of its directories may be unknown.
    pub links: u32,
    pub parent: u64,
    children: BTreeMap<OsString, u64>,
}

impl Node {
    fn directory(kind: Kind, parent: u64, modified_ns: i64) -> Self {
        Self { kind, bytes: 0, mode: 0o755, modified_ns, links: 1, parent, children: BTreeMap::new() }
    }
}

/// What must be read from the store before the children of a directory are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The names of all jobs.
    Jobs,
    /// The states of all checkpoints of a job.
    Checkpoints(JobId),
    /// The state of one checkpoint.
    Checkpoint(JobId, CheckpointId),
    /// The indexes of all groups of a checkpoint.
    Files { job: JobId, id: CheckpointId, groups: u32 },
}

/// All nodes that were looked at. The tree itself reads nothing.
pub struct Tree {
    /// The only job that is shown; `None` shows all jobs.
    job: Option<JobId>,
    /// The node with the number n has the index n - 1.
    nodes: Vec<Node>,
    /// Damaged checkpoints that were reported, at most [`TOLD_MAX`].
    told: BTreeSet<(JobId, CheckpointId)>,
}

/// Maximum number of damaged checkpoints that are reported.
const TOLD_MAX: usize = 1024;

impl Tree {
    /// A tree with only the root.
    pub fn new(job: Option<JobId>) -> Self {
        Self { job, nodes: vec![Node::directory(Kind::Root, ROOT, 0)], told: BTreeSet::new() }
    }

    /// A node that was looked up before.
    pub fn node(&self, number: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// What must be read before [`Self::child`] finds the child with this name.
    pub fn unknown_child(&self, parent: u64, name: &OsStr) -> Option<Unknown> {
        match &self.node(parent)?.kind {
            Kind::Root if self.child(parent, name).is_some() => None,
            // A checkpoint may have been removed or replaced, so its state is read each time.
            Kind::Job(job) => {
                let id = name.to_str().and_then(|name| name.parse::<CheckpointId>().ok())?;
                Some(Unknown::Checkpoint(job.clone(), id))
            }
            _ => self.unknown_children(parent),
        }
    }

    /// What must be read before [`Self::children`] has all children.
    pub fn unknown_children(&self, number: u64) -> Option<Unknown> {
        match &self.node(number)?.kind {
            Kind::Root => Some(Unknown::Jobs),
            Kind::Job(job) => Some(Unknown::Checkpoints(job.clone())),
            Kind::Checkpoint { job, id, groups, is_loaded: false } => {
                Some(Unknown::Files { job: job.clone(), id: id.clone(), groups: *groups })
            }
            Kind::Checkpoint { .. } | Kind::Directory | Kind::File(_) | Kind::Link(_) => None,
        }
    }

    /// The number of a child; `None` if there is no such child.
    pub fn child(&self, parent: u64, name: &OsStr) -> Option<u64> {
        self.node(parent).and_then(|node| node.children.get(name).copied())
    }

    /// The children of a directory, sorted by name.
    pub fn children(&self, number: u64) -> Vec<(OsString, u64)> {
        let children = self.node(number).map(|node| &node.children).into_iter().flatten();
        children.map(|(name, number)| (name.clone(), *number)).collect()
    }

    /// Sets the jobs of the store.
    pub fn set_jobs(&mut self, jobs: Vec<JobId>) {
        let shown: Vec<JobId> =
            jobs.into_iter().filter(|job| self.job.as_ref().is_none_or(|only| only == job)).collect();
        self.retain(ROOT, |name| shown.iter().any(|job| OsStr::new(job.as_str()) == name));
        for job in shown {
            let name = OsString::from(job.as_str());
            if self.child(ROOT, &name).is_none() {
                self.add(ROOT, &name, Node::directory(Kind::Job(job), ROOT, 0));
            }
        }
    }

    /// Sets the checkpoints of a job.
    pub fn set_checkpoints(&mut self, number: u64, job: &JobId, states: &[CheckpointState]) {
        let shown: BTreeSet<&OsStr> =
            states.iter().filter(|state| is_shown(state)).map(|state| OsStr::new(state.id.as_str())).collect();
        self.retain(number, |name| shown.contains(name));
        states.iter().for_each(|state| self.set_checkpoint(number, job, &state.id, Some(state)));
    }

    /// Sets one checkpoint of a job. `state` is `None` if the checkpoint does not exist.
    pub fn set_checkpoint(&mut self, parent: u64, job: &JobId, id: &CheckpointId, state: Option<&CheckpointState>) {
        let name = OsString::from(id.as_str());
        if let Some(state) = state.filter(|state| state.is_damaged && !state.is_pruned) {
            self.tell_of_damage(job, state);
        }
        let Some(state) = state.filter(|state| is_shown(state)) else {
            return self.retain(parent, |other| other != name);
        };
        let created_ns = i64::try_from(state.created_unix_ms).unwrap_or(0).saturating_mul(1_000_000);
        let known = self.child(parent, &name).and_then(|known| self.node(known));
        // A checkpoint that was saved again is another directory, because programs may have files of the old one open.
        if known.is_none_or(|known| known.modified_ns != created_ns) {
            let kind = Kind::Checkpoint { job: job.clone(), id: id.clone(), groups: state.groups, is_loaded: false };
            self.add(parent, &name, Node::directory(kind, parent, created_ns));
        }
    }

    /// Says once why a damaged checkpoint is not shown.
    fn tell_of_damage(&mut self, job: &JobId, state: &CheckpointState) {
        if self.told.len() < TOLD_MAX && self.told.insert((job.clone(), state.id.clone())) {
            let why = state.problems.first().map(|why| format!(": {why}")).unwrap_or_default();
            tell(format!("{job}/{} is not shown, because it is damaged{why}", state.id));
        }
    }

    /// Adds the files of a checkpoint, unless another thread has added them.
    pub fn set_files(&mut self, number: u64, job: &JobId, id: &CheckpointId, readers: &[ContainerReader]) {
        match self.node_mut(number) {
            Some(Node { kind: Kind::Checkpoint { is_loaded, .. }, .. }) if !*is_loaded => *is_loaded = true,
            _ => return,
        }
        for (group, reader) in (0..).map(GroupId).zip(readers) {
            let index_digest = reader.index_digest();
            let group = Arc::new(GroupAt { job: job.clone(), checkpoint: id.clone(), group, index_digest });
            let mut numbers: Vec<u64> = Vec::new();
            for (file, header) in (0..).zip(reader.index().files()) {
                let at = FileAt { group: Arc::clone(&group), file };
                let named = match header.kind {
                    FileKind::HardLink(before) => {
                        numbers.len().checked_sub(before.get() as usize).map(|place| numbers[place])
                    }
                    _ => None,
                };
                numbers.push(self.add_file(number, at, header, named));
            }
        }
    }

    fn node_mut(&mut self, number: u64) -> Option<&mut Node> {
        self.nodes.get_mut(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    fn retain(&mut self, number: u64, is_kept: impl Fn(&OsStr) -> bool) {
        if let Some(node) = self.node_mut(number) {
            node.children.retain(|name, _| is_kept(name));
        }
    }

    fn add(&mut self, parent: u64, name: &OsStr, node: Node) -> u64 {
        self.nodes.push(node);
        let number = self.nodes.len() as u64;
        self.name(parent, name, number);
        number
    }

    fn name(&mut self, parent: u64, name: &OsStr, number: u64) {
        if let Some(parent) = self.node_mut(parent) {
            parent.children.insert(name.to_owned(), number);
        }
    }

    /// Adds a file and the directories on its path. `named`: for a hard link, the node that the link names.
    fn add_file(&mut self, checkpoint: u64, at: FileAt, header: &FileHeader, named: Option<u64>) -> u64 {
        let mut parts: Vec<&OsStr> =
            header.path.as_bytes().split(|byte| *byte == b'/').map(OsStr::from_bytes).collect();
        let name = parts.pop().unwrap_or_default();
        let mut parent = checkpoint;
        for part in parts {
            let known = self.child(parent, part);
            parent = known.unwrap_or_else(|| {
                self.add(parent, part, Node::directory(Kind::Directory, parent, header.modified_ns))
            });
        }
        if let Some(first) = named {
            self.name(parent, name, first);
            if let Some(node) = self.node_mut(first) {
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
        if let Some(known) = self.child(parent, name) {
            if let Some(node) = self.node_mut(known) {
                (node.mode, node.modified_ns) = (header.mode, header.modified_ns);
            }
            return known;
        }
        let (bytes, mode, modified_ns) = (header.bytes, header.mode, header.modified_ns);
        self.add(parent, name, Node { kind, bytes, mode, modified_ns, links: 1, parent, children: BTreeMap::new() })
    }
}

fn is_shown(state: &CheckpointState) -> bool {
    state.is_complete() && !state.is_pruned
}
