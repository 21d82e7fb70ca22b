//! A container and the older containers to which the container refers. Together, these containers hold the bytes of
//! every variable of the group.

use super::index::{BaseRef, Index, Placement};
use super::reader::ContainerReader;
use crate::classify::VariableRef;
use crate::codec::Scratch;
use crate::error::ReadError;
use crate::ids::{CheckpointId, Digest, GroupId, JobId};
use crate::manifest;
use crate::merge::{Layout, runs};
use crate::plan::Piece;
use crate::store::Store;
use crate::units::{RawBytes, StoredBytes};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The container of a committed group and the older containers to which the container refers. The index digest of
/// each container agrees with the manifest or the reference that names it.
pub struct ContainerSet {
    /// The group's own container first, then the older containers in the order of [`Index::references`].
    readers: Vec<ContainerReader>,
}

/// One segment to read and decode, and the variables that need bytes of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTask {
    /// 0 for the group's own container, else the index in [`Index::references`] plus one.
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

    /// Checks that no base has a base itself, and that no variable to which a reference leads is in a segment that
    /// has a base.
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
    fn holder(&self, at: VariableRef) -> Option<(u32, VariableRef)> {
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

    /// Reads and decodes one segment. Calls `each` for each piece of the segment with the variable, the offset in its
    /// raw bytes, and the bytes.
    pub fn run<E: From<ReadError>>(
        &self,
        task: &SegmentTask,
        scratch: &mut Scratch,
        mut each: impl FnMut(VariableRef, u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let split = self.split_segment(task.container, task.segment, scratch)?;
        let pieces = self.readers[task.container as usize].index().pieces(task.segment);
        for Delivery { piece, variable } in &task.deliveries {
            let piece = *piece as usize;
            each(*variable, pieces[piece].offset, &split.bytes[split.start[piece]..split.start[piece + 1]])?;
        }
        Ok(())
    }

    /// The raw bytes of an older segment, after their digest was compared.
    fn base_bytes(&self, base: BaseRef, scratch: &mut Scratch) -> Result<Vec<u8>, ReadError> {
        // Only segments of the group's own container have a base, as was checked when the set was opened.
        let older = &self.readers[base.reference as usize + 1];
        let raw = older.decode_segment(base.segment, scratch)?;
        let (found, recorded) = (Digest::of(&raw), base.digest);
        if found != recorded {
            let what = format!("segment {}, which {} is decoded with,", base.segment, self.readers[0].path().display());
            return Err(ReadError::Digest { path: older.path().into(), what, found, recorded });
        }
        Ok(raw)
    }

    /// Memory in bytes that decoding a task takes: the raw and stored bytes of the segment and of its base. The
    /// memory of the codecs is not included.
    pub fn task_bytes(&self, task: &SegmentTask) -> u64 {
        let base = self.readers[task.container as usize].index().segments()[task.segment as usize].base();
        let base = base.and_then(|base| {
            let older = &self.readers[base.reference as usize + 1];
            older.index().segments().get(base.segment as usize)
        });
        let of_base = base.map_or(0, |base| base.raw_bytes.0 + base.stored_bytes.0);
        task.raw_bytes.0 + task.stored_bytes.0 + of_base
    }

    fn split_segment(&self, container: u32, segment: u32, scratch: &mut Scratch) -> Result<Split, ReadError> {
        let reader = &self.readers[container as usize];
        let entry = &reader.index().segments()[segment as usize];
        let base = entry.base().map(|base| self.base_bytes(base, scratch)).transpose()?;
        let raw = reader.decode_since(segment, base, scratch)?;
        Ok(Split::new(raw, reader.index().pieces(segment), entry.layout))
    }
}

/// A decoded segment, with the bytes of each piece in one run.
struct Split {
    bytes: Vec<u8>,
    /// Offset of each piece, and the end of the last piece.
    start: Vec<usize>,
}

impl Split {
    /// `raw` is as long as all pieces together. The reader has checked this length.
    fn new(raw: Vec<u8>, pieces: &[Piece], layout: Layout) -> Self {
        let lens: Vec<usize> = pieces.iter().map(|piece| piece.bytes as usize).collect();
        let mut start = Vec::with_capacity(lens.len() + 1);
        start.push(0);
        start.extend(lens.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        }));
        let bytes = match layout {
            Layout::Concatenated => raw,
            Layout::Interleaved(_) => {
                let mut bytes = vec![0; raw.len()];
                runs(&lens, layout, |run| {
                    let to = start[run.piece];
                    bytes[to + run.in_piece.start..to + run.in_piece.end].copy_from_slice(&raw[run.in_segment]);
                });
                bytes
            }
        };
        Self { bytes, start }
    }
}

/// Reads any bytes of any variable of a group. The segments that were used last stay in a cache. Readers made by
/// [`VariableReader::beside`] share the cache.
pub struct VariableReader {
    set: Arc<ContainerSet>,
    scratch: Scratch,
    decoded: Arc<Decoded>,
}

/// A decoded segment, or `None` until it is decoded. The thread that decodes the segment holds the lock, so other
/// threads that need the segment wait.
type Slot = Arc<Mutex<Option<Arc<Split>>>>;

/// A cache of decoded segments.
struct Decoded {
    /// Maximum bytes of the cache. With the segments that are being read, the cache may exceed this maximum.
    cache_bytes: u64,
    cache: Mutex<Cache>,
}

/// A segment of one of the containers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SegmentKey {
    container: u32,
    segment: u32,
}

#[derive(Default)]
struct Cache {
    bytes: u64,
    /// Number of reads so far.
    used: u64,
    /// The time of the last use (counted in reads), the length, and the segment.
    slots: HashMap<SegmentKey, (u64, u64, Slot)>,
}

impl Decoded {
    /// The slot of a segment of `bytes` bytes. If the cache is full, the segments with the oldest last use are
    /// removed.
    fn slot(&self, key: SegmentKey, bytes: u64) -> Slot {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.used += 1;
        let now = cache.used;
        if let Some((used, _, slot)) = cache.slots.get_mut(&key) {
            *used = now;
            return Arc::clone(slot);
        }
        while cache.bytes + bytes > self.cache_bytes
            && let Some(oldest) = cache.slots.iter().min_by_key(|(_, (used, ..))| *used).map(|(key, _)| *key)
        {
            cache.bytes -= cache.slots.remove(&oldest).map_or(0, |(_, bytes, _)| bytes);
        }
        cache.bytes += bytes;
        Arc::clone(&cache.slots.entry(key).or_insert_with(|| (now, bytes, Slot::default())).2)
    }
}

impl VariableReader {
    /// Caches at most `cache_bytes` of decoded segments. The segment that is being read is always kept.
    pub fn new(set: Arc<ContainerSet>, cache_bytes: u64) -> Self {
        let decoded = Decoded { cache_bytes, cache: Mutex::default() };
        Self { set, scratch: Scratch::default(), decoded: Arc::new(decoded) }
    }

    /// Makes a reader for another thread, with the same cache. The codecs of the new reader may use `threads`
    /// threads.
    pub fn beside(&self, threads: usize) -> Self {
        let (set, decoded) = (Arc::clone(&self.set), Arc::clone(&self.decoded));
        let mut scratch = Scratch::default();
        scratch.set_threads(threads);
        Self { set, scratch, decoded }
    }

    /// The containers from which this reader reads.
    pub fn set(&self) -> &Arc<ContainerSet> {
        &self.set
    }

    /// Fills `into` with raw bytes of a variable, starting at `offset`.
    pub fn read(&mut self, variable: VariableRef, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let set = Arc::clone(&self.set);
        let refuse = |what: &str| set.readers[0].invalid("the request", what.into());
        let header = set.index().variable(variable).ok_or_else(|| refuse("there is no such variable"))?;
        let end = offset.checked_add(into.len() as u64).filter(|&end| end <= header.raw_bytes.0);
        let end = end.ok_or_else(|| refuse("it extends past the end of the variable"))?;
        let (container, source) = set.holder(variable).ok_or_else(|| refuse("there is no such variable"))?;
        let index = set.readers[container as usize].index();
        for (segment, at) in index.pieces_of(source) {
            let piece = index.all_pieces()[at];
            let (from, to) = (piece.offset.max(offset), (piece.offset + piece.bytes).min(end));
            if from >= to {
                continue;
            }
            let split = self.split(container, segment)?;
            let start = split.start[at - index.segments()[segment as usize].pieces.start];
            let bytes = &split.bytes[start + (from - piece.offset) as usize..start + (to - piece.offset) as usize];
            into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn split(&mut self, container: u32, segment: u32) -> Result<Arc<Split>, ReadError> {
        let bytes = self.set.readers[container as usize].index().segments()[segment as usize].raw_bytes.0;
        let slot = self.decoded.slot(SegmentKey { container, segment }, bytes);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(split) = &*slot {
            return Ok(Arc::clone(split));
        }
        let split = Arc::new(self.set.split_segment(container, segment, &mut self.scratch)?);
        *slot = Some(Arc::clone(&split));
        Ok(split)
    }
}
