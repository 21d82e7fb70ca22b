//! A container and the older containers to which the container refers. Together, these containers hold the bytes of
//! every variable of the group.

use super::index::{Index, Placement};
use super::reader::ContainerReader;
use crate::classify::VariableRef;
use crate::error::ReadError;
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::manifest;
use crate::store::Store;
use crate::units::{RawBytes, StoredBytes};
use std::sync::Arc;

/// The container of a committed group and the older containers to which the container refers. The index digest of
/// each container agrees with the manifest or the reference that names it.
pub struct ContainerSet {
    /// The group's own container first, then the older containers in the order of [`Index::references`].
    readers: Vec<ContainerReader>,
}

/// A segment of one of the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentKey {
    /// Index of the container in [`ContainerSet::readers`].
    pub container: u32,
    /// Number of the segment in the container.
    pub segment: u32,
}

/// One segment to read and decode, and the variables that need bytes of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTask {
    /// 0 for the group's own container. For an older container, the index in [`Index::references`] plus one.
    pub container: u32,
    /// Number of the segment in the container.
    pub segment: u32,
    /// The pieces to be passed to variables, sorted by piece, then by variable.
    pub deliveries: Vec<Delivery>,
    /// Raw bytes of the segment.
    pub raw_bytes: RawBytes,
    /// Stored bytes of the segment.
    pub stored_bytes: StoredBytes,
}

/// A piece of a segment, and a variable of the group that has the bytes of this piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// Index among the pieces of the segment.
    pub piece: u32,
    /// The variable, in the group that is restored.
    pub variable: VariableRef,
}

impl From<&SegmentTask> for SegmentKey {
    fn from(task: &SegmentTask) -> Self {
        Self { container: task.container, segment: task.segment }
    }
}

impl ContainerSet {
    /// Opens the containers of a committed group and compares each container with the digest in the manifest or in
    /// the reference.
    pub fn open(store: &dyn Store, job: &JobId, checkpoint: &CheckpointId, group: GroupId) -> Result<Self, ReadError> {
        let manifest = manifest::read_manifest(store, job, checkpoint, group)?;
        let own = ContainerReader::open(store, job, checkpoint, group)?;
        let foreign = |reader: &ContainerReader, what, expected: &dyn ToString, found: &dyn ToString| {
            let (path, expected, found) = (reader.path().into(), expected.to_string(), found.to_string());
            Err(ReadError::Foreign { path, what, expected, found })
        };
        if own.bytes() != manifest.container.bytes {
            return foreign(&own, "its length", &manifest.container.bytes, &own.bytes());
        }
        if own.index_digest() != manifest.container.index_digest {
            return foreign(&own, "the digest of its index", &manifest.container.index_digest, &own.index_digest());
        }
        let mut readers = vec![own];
        for i in 0..readers[0].index().references().len() {
            let reference = Arc::clone(&readers[0].index().references()[i]);
            let older = ContainerReader::open(store, job, &reference.checkpoint, reference.group)?;
            if older.index_digest() != reference.index_digest {
                return foreign(&older, "the digest of its index", &reference.index_digest, &older.index_digest());
            }
            if !older.holds_all(readers[0].index(), i as u32) {
                let what = format!("{} needs bytes that prune removed from it", readers[0].path().display());
                return Err(older.invalid("the table of kept segments", what));
            }
            readers.push(older);
        }
        let set = Self { readers };
        set.check_references()?;
        set.check_bases()?;
        Ok(set)
    }

    /// The index of the group's own container.
    pub fn index(&self) -> &Index {
        self.readers[0].index()
    }

    /// The group's own container, then the older containers.
    pub fn readers(&self) -> &[ContainerReader] {
        &self.readers
    }

    /// Checks that no base has a base itself. Also checks that each variable to which a reference leads is in
    /// segments without a base.
    fn check_bases(&self) -> Result<(), ReadError> {
        for (number, segment) in self.index().segments().iter().enumerate() {
            let Some(base) = segment.base() else { continue };
            let older = &self.readers[base.reference as usize + 1];
            let found = older.index().segments().get(base.segment as usize);
            if !found.is_some_and(|found| found.dependencies.is_empty()) {
                let (older, n) = (older.path().display(), base.segment);
                let what = format!("the base of segment {number}, segment {n} of {older}, is missing or has a base");
                return Err(self.readers[0].invalid("the index", what));
            }
        }
        if !self.readers[1..].iter().any(|reader| reader.index().has_bases()) {
            return Ok(());
        }
        for (at, header) in self.index().variables() {
            let Some(Placement::External { reference, at: older }) = self.index().placement(at) else { continue };
            let index = self.readers[reference as usize + 1].index();
            if index.pieces_of(older).any(|(segment, _)| !index.segments()[segment as usize].dependencies.is_empty()) {
                let what = format!("variable {:?} refers to bytes that need a third container", header.path);
                return Err(self.readers[0].invalid("the index", what));
            }
        }
        Ok(())
    }

    /// Checks that every reference leads to a variable of the same length and digest, and that the variable has
    /// pieces in the older container.
    fn check_references(&self) -> Result<(), ReadError> {
        for (at, header) in self.index().variables() {
            let Some(Placement::External { reference, at: older }) = self.index().placement(at) else { continue };
            let reader = &self.readers[reference as usize + 1];
            let is_there = reader.index().placement(older) == Some(Placement::Pieces);
            let same = |other: &crate::header::VariableHeader| {
                other.raw_bytes == header.raw_bytes && other.digest == header.digest
            };
            if !is_there || !reader.index().variable(older).is_some_and(same) {
                let what = format!(
                    "variable {:?} refers to bytes that {} does not hold",
                    header.path,
                    reader.path().display()
                );
                return Err(self.readers[0].invalid("the index", what));
            }
        }
        Ok(())
    }

    /// The container that has the pieces of a variable, and the variable's position in that container.
    pub(super) fn holder(&self, at: VariableRef) -> Option<(u32, VariableRef)> {
        let placement = self.index().placement(at)?;
        match placement {
            Placement::Pieces => Some((0, at)),
            Placement::External { reference, at } => Some((reference + 1, at)),
            Placement::SameAs(target) => match self.index().placement(target)? {
                Placement::Pieces => Some((0, target)),
                Placement::External { reference, at } => Some((reference + 1, at)),
                Placement::SameAs(_) => None, // such an index is refused
            },
        }
    }

    /// The segments that hold the wanted variables, in the order of reading. Each segment occurs once.
    pub fn tasks(&self, wanted: impl Fn(VariableRef) -> bool) -> Vec<SegmentTask> {
        let mut deliveries: Vec<(u32, u32, Delivery)> = Vec::new();
        for (variable, _) in self.index().variables().filter(|(at, _)| wanted(*at)) {
            let Some((container, source)) = self.holder(variable) else { continue };
            let index = self.readers[container as usize].index();
            for (segment, piece) in index.pieces_of(source) {
                let piece = (piece - index.segments()[segment as usize].pieces.start) as u32;
                deliveries.push((container, segment, Delivery { piece, variable }));
            }
        }
        deliveries.sort_unstable();
        let task = |same: &[(u32, u32, Delivery)]| {
            let (container, segment) = (same[0].0, same[0].1);
            let entry = &self.readers[container as usize].index().segments()[segment as usize];
            let deliveries = same.iter().map(|(_, _, delivery)| *delivery).collect();
            SegmentTask { container, segment, deliveries, raw_bytes: entry.raw_bytes, stored_bytes: entry.stored_bytes }
        };
        deliveries.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).map(task).collect()
    }

    /// The error if the group has no file with this number.
    pub fn no_file(&self, file: u32) -> ReadError {
        self.readers[0].invalid("the index", format!("it has no file {file}"))
    }

    /// Stored bytes of a task's segment, plus the stored bytes of the segment's base.
    pub fn stored_bytes_of(&self, task: &SegmentTask) -> u64 {
        let of_base = self.base_of(task.into()).map(|base| {
            let older = self.readers[base.container as usize].index();
            older.segments()[base.segment as usize].stored_bytes.0
        });
        task.stored_bytes.0 + of_base.unwrap_or(0)
    }

    /// Raw and stored bytes of a task's segment, plus the raw and stored bytes of the segment's base.
    pub fn task_bytes(&self, task: &SegmentTask) -> u64 {
        let base = self.base_of(task.into());
        task.raw_bytes.0 + base.map_or(0, |base| self.raw_bytes_of(base).0) + self.stored_bytes_of(task)
    }

    /// Memory that decoding a segment takes, in bytes, with its stored bytes and without its base.
    pub(super) fn need_of(&self, key: SegmentKey) -> u64 {
        let entry = &self.readers[key.container as usize].index().segments()[key.segment as usize];
        entry.chain.decoding_bytes(entry.raw_bytes).saturating_add(entry.stored_bytes.0)
    }

    /// Memory that decoding a task's segment or its base takes, in bytes, with the stored bytes.
    pub(super) fn decoding_bytes(&self, task: &SegmentTask) -> u64 {
        let base = self.base_of(task.into()).map_or(0, |base| self.need_of(base));
        self.need_of(task.into()).max(base)
    }

    /// Raw bytes of a segment.
    pub(super) fn raw_bytes_of(&self, key: SegmentKey) -> RawBytes {
        self.readers[key.container as usize].index().segments()[key.segment as usize].raw_bytes
    }

    /// The base of a segment. Only segments of the group's own container have a base, and a base has no base, as was
    /// checked when the set was opened.
    pub(super) fn base_of(&self, key: SegmentKey) -> Option<SegmentKey> {
        let base = self.readers[0].index().segments().get(key.segment as usize)?.base()?;
        (key.container == 0).then_some(SegmentKey { container: base.reference + 1, segment: base.segment })
    }
}
