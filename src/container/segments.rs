//! Decoded segments of a group, and of the older containers that the group needs, in a partition buffer of bounded
//! size. Several threads use the buffer. A segment that several threads, ranks or other segments need is decoded only
//! once, as long as the buffer has room for the segment.

use super::decoding::DecodingMemory;
use super::index::BaseRef;
use super::set::{ContainerSet, Delivery, SegmentKey, SegmentTask};
use crate::codec::{Older, SegmentMemory, threads_of_each};
use crate::error::ReadError;
use crate::ids::Digest;
use crate::merge::{Layout, merge, runs};
use crate::partition::{
    AccessError, AfterUse, BUFFER_BYTES_MAX, BufferLayout, Candidate, ClockPro, Counters, InUse, LookAhead, Lru,
    Partition, PartitionId, PartitionList, Policy, SharedBuffer, SharedLoader, SubBufferId, TraceEvent, Use,
};
use crate::plan::Piece;
use crate::units::RawBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What is known about the order in which segments are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOrder {
    /// Every use is announced. A segment is dropped after its last use.
    Announced,
    /// Every use is announced, but further readers may come. A segment stays until another segment needs the room.
    Shared,
    /// The order of the uses is not known.
    Unknown,
}

/// A buffer for decoded segments of a [`ContainerSet`], with a limit in bytes. Even if the limit is lower, the buffer
/// has room for the longest segment, or for two segments of this length if there are bases.
pub struct SegmentBuffer {
    set: Arc<ContainerSet>,
    /// The segment of each partition, sorted.
    keys: Vec<SegmentKey>,
    bytes: u64,
    /// Whether there is room for segments that are decoded in advance.
    has_spare_room: bool,
    buffer: Arc<SharedBuffer<Order, Decoded>>,
    /// The memory of the codecs.
    decoding: Arc<DecodingMemory>,
    spool: Option<Box<dyn Spool>>,
    /// For each partition, whether it was decoded, if there is a spool.
    was_decoded: Vec<AtomicBool>,
    /// The damaged segments, each with its error. A damaged segment is not read again for each of its variables. `None`
    /// if the files may be repaired while the buffer is in use.
    damaged: Option<Mutex<BTreeMap<SegmentKey, ReadError>>>,
}

/// Keeps decoded segments outside of the memory of a buffer, for example in a file, so that the segments need not be
/// decoded again. Segments have the numbers that the buffer gives them.
pub trait Spool: Send + Sync {
    /// Keeps the bytes of a segment if there is room. The pieces of the segment are one after the other in `bytes`.
    fn put(&self, segment: u32, bytes: &[u8]);

    /// Fills `into` with the bytes of a kept segment that begin at `offset`. Returns false if the segment is not kept.
    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> bool;

    /// Whether the segment is kept.
    fn holds(&self, segment: u32) -> bool;
}

/// A decoded segment in use. The buffer keeps the segment at least until this value is dropped.
pub(super) type DecodedInUse = InUse<Order, Decoded>;

/// A decoded segment, with the bytes of each piece in one run.
#[derive(Debug)]
pub(super) struct Decoded {
    /// The bytes of all pieces. For concatenated pieces, these are the raw bytes of the segment.
    bytes: Arc<Older>,
    /// Offset of each piece, and the end of the last piece.
    start: Vec<usize>,
    layout: Layout,
    /// BLAKE3 of the raw bytes, if the segment was needed as a base.
    digest: OnceLock<Digest>,
}

impl SegmentBuffer {
    /// An empty buffer for these segments and their bases. The codecs may take as much memory as the buffer.
    pub fn new<'a>(
        set: Arc<ContainerSet>,
        tasks: impl IntoIterator<Item = &'a SegmentTask>,
        bytes: u64,
        order: ReadOrder,
    ) -> Result<Self, ReadError> {
        let mut keys: Vec<SegmentKey> = tasks.into_iter().map(SegmentKey::from).collect();
        let bases: Vec<SegmentKey> = keys.iter().filter_map(|key| set.base_of(*key)).collect();
        let together = if bases.is_empty() { 1 } else { 2 };
        keys.extend(bases);
        keys.sort_unstable();
        keys.dedup();
        let lengths = || keys.iter().map(|key| set.raw_bytes_of(*key).0);
        let refuse = |error| set.readers()[0].invalid("the partition buffer", format!("{error}"));
        let list = PartitionList::new(lengths().zip(0..).map(|(bytes, place)| Partition { place, bytes }).collect());
        let layout = BufferLayout::mixed(bytes.min(BUFFER_BYTES_MAX), lengths(), together).map_err(refuse)?;
        let (bytes, has_spare_room) = (layout.bytes(), layout.sub_buffers() >= together + 2);
        let (policy, after_use) = match order {
            ReadOrder::Announced => (Order::Known(LookAhead::default()), AfterUse::Free),
            ReadOrder::Shared => (Order::Known(LookAhead::default()), AfterUse::Keep),
            ReadOrder::Unknown if together > 1 => (Order::Nested(Lru::new()), AfterUse::Keep),
            ReadOrder::Unknown => (Order::Flat(ClockPro::new(layout.sub_buffers())), AfterUse::Keep),
        };
        let buffer = SharedBuffer::new(list.map_err(refuse)?, layout, policy, after_use).map_err(refuse)?;
        let damaged = (order != ReadOrder::Unknown).then(Default::default);
        let decoding = DecodingMemory::new(bytes);
        let (spool, was_decoded) = (None, Vec::new());
        Ok(Self { set, keys, bytes, has_spare_room, buffer, decoding, spool, was_decoded, damaged })
    }

    /// Decodes segments within `decoding`. Several buffers may share the memory.
    pub fn with_decoding(mut self, decoding: Arc<DecodingMemory>) -> Self {
        self.decoding = decoding;
        self
    }

    /// Keeps decoded segments in `spool`, if several files need the segment or if it was decoded a second time. So
    /// files with bytes in few of many segments, and many readers at the same time, do not decode a segment again and
    /// again.
    pub fn with_spool(mut self, spool: Box<dyn Spool>) -> Self {
        self.spool = Some(spool);
        self.was_decoded = self.keys.iter().map(|_| AtomicBool::new(false)).collect();
        self
    }

    /// Maximum bytes of decoded segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that the segment with the largest need takes while it is decoded, in bytes.
    pub fn largest_need(&self) -> u64 {
        self.keys.iter().map(|key| self.set.need_of(*key)).max().unwrap_or(0)
    }

    /// The containers of the segments.
    pub fn set(&self) -> &Arc<ContainerSet> {
        &self.set
    }

    /// How many of `threads` threads to use inside each segment of these tasks. 0 and 1 mean no additional threads.
    pub fn threads_of_each(&self, threads: usize, tasks: &[SegmentTask]) -> usize {
        let memory = SegmentMemory { bytes: self.decoding.limit_bytes(), per_raw_byte: 1 };
        threads_of_each(threads, memory, tasks.iter().map(|task| RawBytes(self.set.decoding_bytes(task))))
    }

    /// Decodes one segment on `threads` threads, or finds it in the buffer. Calls `each` for each wanted piece of the
    /// segment with the variable, the offset in its raw bytes, and the bytes.
    pub fn run<E: From<ReadError>>(
        &self,
        task: &SegmentTask,
        threads: usize,
        mut each: impl FnMut(crate::classify::VariableRef, u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let decoded = self.decoded(task.into(), threads)?;
        let pieces = self.set.readers()[task.container as usize].index().pieces(task.segment);
        for Delivery { piece, variable } in &task.deliveries {
            let piece = *piece as usize;
            each(*variable, pieces[piece].offset, decoded.piece(piece))?;
        }
        Ok(())
    }

    /// Decodes a segment, or finds it in the buffer. While a thread has the result, the thread must not ask for
    /// another segment.
    pub(super) fn decoded(&self, key: SegmentKey, threads: usize) -> Result<DecodedInUse, ReadError> {
        let own = &self.set.readers()[0];
        let known = self.partition_of(key);
        let partition = known.ok_or_else(|| own.invalid("the request", "the segment was not asked for".into()))?;
        if let Some(error) = self.damage_of(key) {
            self.withdraw(std::iter::once(key));
            return Err(error);
        }
        let accessed = self.buffer.access(partition, &mut Decoder { of: self, threads });
        let decoded = accessed.map_err(|error| match error {
            AccessError::Load { source, .. } => source,
            AccessError::Partition(error) => own.invalid("the partition buffer", error.to_string()),
        });
        let decoded = decoded.inspect_err(|error| self.remember_damage(key, error))?;
        if !decoded.is_loaded()
            && let Some(base) = self.base_of(partition)
        {
            // The base was announced too, but is not used, because the segment was already decoded.
            self.buffer.with_policy(|policy| policy.withdraw(base));
        }
        Ok(decoded)
    }

    fn damage_of(&self, key: SegmentKey) -> Option<ReadError> {
        let damaged = self.damaged.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.get(&key).and_then(ReadError::of_damage)
    }

    fn remember_damage(&self, key: SegmentKey, error: &ReadError) {
        if let (Some(damaged), Some(error)) = (&self.damaged, error.of_damage()) {
            damaged.lock().unwrap_or_else(PoisonError::into_inner).insert(key, error);
        }
    }

    /// Decodes a segment in advance, if the buffer has spare room and the segment is neither in the buffer nor in the
    /// spool. `segment` is a number of [`crate::image::FileReader::upcoming`].
    pub fn fetch(&self, segment: u32) -> Result<(), ReadError> {
        let is_kept = || self.spool.as_ref().is_some_and(|spool| spool.holds(segment));
        let Some(key) = self.keys.get(segment as usize).filter(|_| self.has_spare_room) else { return Ok(()) };
        if self.buffer.holds(PartitionId(segment)) || is_kept() {
            return Ok(());
        }
        self.decoded(*key, 1).map(drop)
    }

    /// The number of a segment.
    pub(crate) fn number_of(&self, key: SegmentKey) -> Option<u32> {
        self.partition_of(key).map(|PartitionId(number)| number)
    }

    /// Fills `into` with a part of a piece of a segment that is in the spool. Returns false if it is not.
    pub(super) fn spooled(&self, key: SegmentKey, piece: usize, at: usize, into: &mut [u8]) -> bool {
        let (Some(spool), Some(number)) = (&self.spool, self.number_of(key)) else { return false };
        let pieces = self.set.readers()[key.container as usize].index().pieces(key.segment);
        let before: u64 = pieces.iter().take(piece).map(|piece| piece.bytes).sum();
        spool.read(number, before + at as u64, into)
    }

    /// Announces that these segments will be used in this order.
    pub(crate) fn announce(&self, keys: impl Iterator<Item = SegmentKey>) {
        self.buffer.with_policy(|policy| keys.for_each(|key| policy.announce(self.uses_of(key))));
    }

    /// Takes back announced uses, because they will not happen.
    pub(crate) fn withdraw(&self, keys: impl Iterator<Item = SegmentKey>) {
        let uses = keys.flat_map(|key| self.uses_of(key));
        self.buffer.with_policy(|policy| uses.for_each(|partition| policy.withdraw(partition)));
    }

    /// Announces all tasks, and returns the queue from which several threads take the tasks.
    pub fn queue<'a>(&'a self, tasks: &'a [SegmentTask]) -> TaskQueue<'a> {
        self.announce(tasks.iter().map(SegmentKey::from));
        let left = tasks.iter().filter_map(|task| self.partition_of(task.into())).collect();
        TaskQueue { buffer: self, tasks, left: Mutex::new(left) }
    }

    /// The counters since the buffer was made. Each load is a segment that was read and decoded.
    pub fn counters(&self) -> Counters {
        self.buffer.counters()
    }

    /// Begins to record all uses.
    pub fn record(&self) {
        self.buffer.record();
    }

    /// The list of segments, and the recorded uses.
    pub fn recorded(&self) -> (PartitionList, Vec<TraceEvent>) {
        self.buffer.recorded()
    }

    fn partition_of(&self, key: SegmentKey) -> Option<PartitionId> {
        self.keys.binary_search(&key).ok().map(|at| PartitionId(at as u32)) // a list is shorter than 2^32
    }

    fn base_of(&self, partition: PartitionId) -> Option<PartitionId> {
        self.keys.get(partition.index()).and_then(|key| self.partition_of(self.set.base_of(*key)?))
    }

    fn uses_of(&self, key: SegmentKey) -> impl Iterator<Item = PartitionId> {
        let partition = self.partition_of(key);
        partition.and_then(|partition| self.base_of(partition)).into_iter().chain(partition)
    }

    fn load(&self, key: SegmentKey, base: Option<&Decoded>, threads: usize) -> Result<Decoded, ReadError> {
        let reader = &self.set.readers()[key.container as usize];
        let entry = &reader.index().segments()[key.segment as usize];
        let base = entry.base().zip(base).map(|(named, base)| self.raw_base(named, base)).transpose()?;
        let mut decoding = self.decoding.take(self.set.need_of(key));
        let raw = reader.decode_segment(key.segment, decoding.scratch(threads, base))?;
        let pieces = reader.index().pieces(key.segment);
        let decoded = Decoded::new(raw, pieces, entry.layout);
        let is_shared = || pieces.windows(2).any(|two| two[0].variable.file != two[1].variable.file);
        if let (Some(spool), Some(number)) = (&self.spool, self.number_of(key))
            && (self.was_decoded[number as usize].swap(true, Ordering::Relaxed) || is_shared())
        {
            spool.put(number, &decoded.bytes.raw);
        }
        Ok(decoded)
    }

    /// The raw bytes of a base, after their digest was compared.
    fn raw_base(&self, named: BaseRef, base: &Decoded) -> Result<Arc<Older>, ReadError> {
        let raw = base.raw();
        let (found, recorded) = (*base.digest.get_or_init(|| Digest::of(&raw.raw)), named.digest);
        if found != recorded {
            let own = self.set.readers()[0].path().display();
            let what = format!("segment {}, which {own} is decoded with,", named.segment);
            let path = self.set.readers()[named.reference as usize + 1].path().into();
            return Err(ReadError::Digest { path, what, found, recorded });
        }
        Ok(raw)
    }
}

/// A queue of tasks for several threads. If the queue is dropped, the announced uses of the remaining tasks are taken
/// back.
pub struct TaskQueue<'a> {
    buffer: &'a SegmentBuffer,
    /// Sorted by container and segment.
    tasks: &'a [SegmentTask],
    left: Mutex<BTreeSet<PartitionId>>,
}

impl<'a> TaskQueue<'a> {
    /// Takes the next task. If the segment of a task is in the buffer, the result is this task. If not, the result is
    /// the task after the segment that was decoded last. So readers that begin at different times use the same
    /// segments.
    pub fn take(&self) -> Option<&'a SegmentTask> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.buffer.buffer.next_of(&left)?;
        left.remove(&next);
        let key = self.buffer.keys.get(next.index())?;
        let at = self.tasks.binary_search_by_key(key, SegmentKey::from);
        at.ok().and_then(|at| self.tasks.get(at))
    }
}

impl Drop for TaskQueue<'_> {
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.buffer.withdraw(left.iter().filter_map(|partition| self.buffer.keys.get(partition.index()).copied()));
    }
}

impl Decoded {
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
        Self { bytes: Arc::new(Older { raw: bytes, places: Vec::new() }), start, layout, digest: OnceLock::new() }
    }

    /// The bytes of a piece.
    pub(super) fn piece(&self, nth: usize) -> &[u8] {
        &self.bytes.raw[self.start[nth]..self.start[nth + 1]]
    }

    /// A part of the bytes of a piece.
    pub(super) fn part(&self, nth: usize, range: Range<usize>) -> &[u8] {
        &self.piece(nth)[range]
    }

    /// The raw bytes of the segment, still merged.
    fn raw(&self) -> Arc<Older> {
        match self.layout {
            Layout::Concatenated => Arc::clone(&self.bytes),
            Layout::Interleaved(_) => {
                let pieces: Vec<&[u8]> = (0..self.start.len() - 1).map(|nth| self.piece(nth)).collect();
                Arc::new(Older { raw: merge(&pieces, self.layout), places: Vec::new() })
            }
        }
    }
}

/// Reads and decodes segments for one thread.
struct Decoder<'a> {
    of: &'a SegmentBuffer,
    /// Number of threads that a codec may use.
    threads: usize,
}

impl SharedLoader<Decoded> for Decoder<'_> {
    type Error = ReadError;

    fn base(&self, partition: PartitionId) -> Option<PartitionId> {
        self.of.base_of(partition)
    }

    fn load(&mut self, partition: PartitionId, base: Option<&Decoded>) -> Result<Decoded, ReadError> {
        self.of.load(self.of.keys[partition.index()], base, self.threads)
    }
}

/// The replacement policy. `docs/partition.md` says which policy needs the fewest loads in which case.
pub(super) enum Order {
    /// The order is known. The coming calls are announced. A return from a base to the segment that needs the base is
    /// not announced.
    Known(LookAhead),
    /// The order is unknown, and segments have bases.
    Nested(Lru),
    /// The order is unknown, and no segment has a base.
    Flat(ClockPro),
}

impl Order {
    fn announce(&mut self, partitions: impl Iterator<Item = PartitionId>) {
        if let Self::Known(known) = self {
            known.announce(partitions);
        }
    }

    fn withdraw(&mut self, partition: PartitionId) {
        if let Self::Known(known) = self {
            known.withdraw(partition);
        }
    }
}

impl Policy for Order {
    fn choose(&mut self, incoming: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        match self {
            Self::Known(policy) => policy.choose(incoming, candidates),
            Self::Nested(policy) => policy.choose(incoming, candidates),
            Self::Flat(policy) => policy.choose(incoming, candidates),
        }
    }

    fn used(&mut self, by: Use) {
        match self {
            Self::Known(policy) if by.is_call => policy.used(by),
            Self::Known(_) => {}
            Self::Nested(policy) => policy.used(by),
            Self::Flat(policy) => policy.used(by),
        }
    }

    fn is_over(&self, partition: PartitionId) -> bool {
        match self {
            Self::Known(policy) => policy.is_over(partition),
            Self::Nested(policy) => policy.is_over(partition),
            Self::Flat(policy) => policy.is_over(partition),
        }
    }

    fn emptied(&mut self, partition: PartitionId, sub_buffer: SubBufferId) {
        match self {
            Self::Known(policy) => policy.emptied(partition, sub_buffer),
            Self::Nested(policy) => policy.emptied(partition, sub_buffer),
            Self::Flat(policy) => policy.emptied(partition, sub_buffer),
        }
    }
}
