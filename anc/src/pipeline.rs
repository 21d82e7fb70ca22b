//! The threads of one flush fetch, merge, compress and write the segments of a plan, several segments at a time.
//!
//! ```text
//! Fetcher (one for each parallel fetch of the source) -> Coder (one for each thread) -> Writer (one, in order)
//! ```
//!
//! If the fetches of a source do not wait, there are no fetchers, and each coder fetches its own segments. With the
//! profile `raw` there is no compression, and each fetcher sends its segments directly to the writer.
//!
//! Threads take segments and their memory leases in the order of the plan. So the segment that is written next always
//! has its lease, and no thread waits for a later segment. After the first error no thread takes a further segment.
//! The threads finish the segments that they have taken.

use crate::budget::{Budget, Lease};
use crate::choosing::Choosing;
use crate::compress::compress;
use crate::digests::{Digests, Spread};
use crate::fetch_segment::fetch_segment;
use crate::flush_error::FlushError;
use crate::looking_back::LookingBack;
use crate::observe::Observer;
use crate::source::Source;
use crate::spare::{CodingSlot, Spare};
use crate::unpanicked::unpanicked;
use mcrengine::codec::{Basis, Chain, Profile};
use mcrengine::container::{ContainerWriter, StoredSegment};
use mcrengine::header::FileHeader;
use mcrengine::plan::SegmentPlan;
use mcrengine::store::Store;
use mcrengine::units::StoredBytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The state that the threads of one flush share.
pub(crate) struct Pipeline<'a> {
    pub source: &'a dyn Source,
    pub files: &'a [FileHeader],
    pub segments: &'a [SegmentPlan],
    pub profile: &'a Profile,
    /// Whether each segment is decoded and compared before it is written.
    pub verify: bool,
    /// Number of segments that are compressed at the same time, over all flushes that share the same [`Spare`].
    pub threads: usize,
    /// Number of threads that work on one segment.
    pub threads_of_each: usize,
    pub choosing: &'a Choosing<'a>,
    pub back: &'a LookingBack,
    pub budget: &'a Arc<Budget>,
    pub spare: &'a Spare,
    pub observer: &'a dyn Observer,
}

/// The segments that no thread has taken.
struct Queue {
    next: Mutex<Range<usize>>,
    is_stopped: AtomicBool,
}

/// A segment that a thread has taken, with the lease for the memory that the segment needs until it is written.
struct TakenSegment {
    index: usize,
    lease: Lease,
}

/// The raw bytes of a segment.
struct RawSegment {
    index: usize,
    /// The buffer begins with the bytes of the segment, and may be longer.
    buffer: Vec<u8>,
    lease: Lease,
}

/// A finished segment that waits for its turn to be written.
struct CodedSegment {
    index: usize,
    stored: StoredSegment,
    parts: Parts,
    lease: Lease,
}

/// Where the raw bytes of a segment are, if the digest of a variable covers several segments. The digests of such
/// variables are compared in the order of the segments.
enum Parts {
    None,
    InBuffer(Vec<u8>),
    /// The stored bytes are the raw bytes.
    InStored,
}

type ToWriter = Sender<Result<CodedSegment, FlushError>>;

impl Pipeline<'_> {
    /// Fetches, compresses and appends all segments. Returns the time that writing took. At the same time another
    /// thread syncs the directories of the container.
    pub fn run(&self, store: &dyn Store, container: &mut ContainerWriter) -> Result<Duration, FlushError> {
        let fetchers = self.source.parallel().min(self.segments.len());
        let coders = self.threads.clamp(1, self.segments.len().max(1));
        let queue = &Queue { next: Mutex::new(0..self.segments.len()), is_stopped: AtomicBool::new(false) };
        let (to_coders, fetched) = mpsc::sync_channel::<RawSegment>(coders);
        let fetched = &Mutex::new(fetched);
        // The leases that the messages hold limit the length of this channel.
        let (to_writer, coded) = mpsc::channel();
        let dirs = container.dirs();
        std::thread::scope(|scope| {
            for _ in 0..fetchers {
                let (to_coders, to_writer) = (to_coders.clone(), to_writer.clone());
                let fetcher = Fetcher { pipeline: self, queue, to_coders, to_writer };
                scope.spawn(move || fetcher.run());
            }
            drop(to_coders);
            for _ in 0..coders {
                let fetched = (fetchers > 0).then_some(fetched);
                let coder = Coder { pipeline: self, queue, fetched, to_writer: to_writer.clone() };
                scope.spawn(move || coder.run());
            }
            scope.spawn(move || {
                if let Err(error) = unpanicked(|| Ok(dirs.sync(store)?)) {
                    let _ = to_writer.send(Err(error));
                }
            });
            let spread = self.digests().spread();
            let (early, writing) = (BTreeMap::new(), Duration::ZERO);
            Writer { pipeline: self, queue, container, spread, early, due: 0, result: Ok(()), writing }.run(coded)
        })
    }

    fn digests(&self) -> Digests<'_> {
        Digests { source: self.source, files: self.files }
    }

    fn is_raw(&self) -> bool {
        matches!(self.profile, Profile::Raw)
    }

    fn raw_len(&self, index: usize) -> usize {
        self.segments[index].raw_bytes.0 as usize // at most 1 GiB
    }

    /// Takes the next segment when there is memory for it.
    fn take(&self, queue: &Queue) -> Option<TakenSegment> {
        let mut next = queue.next.lock().unwrap_or_else(PoisonError::into_inner);
        let index = next.next().filter(|_| !queue.is_stopped.load(Ordering::Relaxed))?;
        let segment = &self.segments[index];
        let bytes = segment.raw_bytes.0 * self.profile.memory_per_raw_byte_of(&segment.element);
        Some(TakenSegment { index, lease: self.budget.lease(bytes + self.back.memory_bytes(index, self.profile)) })
    }

    fn fetch(&self, TakenSegment { index, lease }: TakenSegment) -> Result<RawSegment, FlushError> {
        let fetch = || Ok(fetch_segment(self.digests(), &self.segments[index], self.spare.take_raw())?);
        Ok(RawSegment { index, buffer: unpanicked(fetch)?, lease })
    }

    /// Stores the segment uncompressed, without another buffer, a decoder or another thread.
    fn store_as_it_is(&self, RawSegment { index, mut buffer, lease }: RawSegment) -> CodedSegment {
        buffer.truncate(self.raw_len(index));
        let (segment, chain) = (&self.segments[index], Chain::raw());
        let parts = if self.digests().has_parts(segment) { Parts::InStored } else { Parts::None };
        let stored = StoredSegment { chain, raw_bytes: segment.raw_bytes, stored: buffer, base: None };
        CodedSegment { index, stored, parts, lease }
    }
}

struct Fetcher<'a> {
    pipeline: &'a Pipeline<'a>,
    queue: &'a Queue,
    to_coders: SyncSender<RawSegment>,
    to_writer: ToWriter,
}

impl Fetcher<'_> {
    fn run(self) {
        while let Some(taken) = self.pipeline.take(self.queue) {
            let is_wanted = match self.pipeline.fetch(taken) {
                Ok(raw) if self.pipeline.is_raw() => self.to_writer.send(Ok(self.pipeline.store_as_it_is(raw))).is_ok(),
                Ok(raw) => self.to_coders.send(raw).is_ok(),
                Err(error) => {
                    let _ = self.to_writer.send(Err(error));
                    false
                }
            };
            if !is_wanted {
                return;
            }
        }
    }
}

struct Coder<'a> {
    pipeline: &'a Pipeline<'a>,
    queue: &'a Queue,
    /// The segments that fetchers have fetched. `None` if there are no fetchers. In this case, the coder fetches its
    /// segments.
    fetched: Option<&'a Mutex<Receiver<RawSegment>>>,
    to_writer: ToWriter,
}

impl<'a> Coder<'a> {
    fn run(self) {
        while let Some((slot, fetched)) = self.next() {
            let coded = match fetched {
                Ok(raw) if self.pipeline.is_raw() => Ok(self.pipeline.store_as_it_is(raw)),
                Ok(raw) => unpanicked(|| self.code(slot, raw)),
                Err(error) => Err(error),
            };
            if self.to_writer.send(coded).is_err() {
                return;
            }
        }
    }

    /// The next segment, and a slot to compress it in.
    fn next(&self) -> Option<(CodingSlot<'a>, Result<RawSegment, FlushError>)> {
        let Some(fetched) = self.fetched else {
            // The lease is taken before the slot, because the thread that returned the lease has also left its
            // buffers for reuse. The slot is taken before the fetch, because the bytes of a segment that waits for a
            // slot drop out of the CPU caches.
            let taken = self.pipeline.take(self.queue)?;
            return Some((self.slot(), self.pipeline.fetch(taken)));
        };
        let raw = fetched.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()?;
        Some((self.slot(), Ok(raw)))
    }

    fn slot(&self) -> CodingSlot<'a> {
        self.pipeline.spare.coding_slot(self.pipeline.threads)
    }

    fn code(&self, mut slot: CodingSlot<'_>, raw: RawSegment) -> Result<CodedSegment, FlushError> {
        let RawSegment { index, buffer, lease } = raw;
        let Pipeline { files, profile, verify, choosing, back, .. } = *self.pipeline;
        let (segment, bytes) = (&self.pipeline.segments[index], &buffer[..self.pipeline.raw_len(index)]);
        slot.scratch.set_threads(self.pipeline.threads_of_each);
        let has_base = back.is_there(index);
        let basis = choosing.basis(segment, has_base);
        let (older, base) = back.read(index, &basis, &mut slot.scratch).unzip();
        let basis = Basis { older: older.as_ref(), ..basis };
        let coded = compress(profile, segment, files, bytes, verify, &basis, &mut slot.scratch);
        slot.scratch.set_older(None);
        let coded = coded?;
        self.pipeline.observer.chosen(&coded.reason);
        choosing.note(segment, has_base, index, &coded);
        let base = base.filter(|_| coded.chain.needs_older()).inspect(|_| back.used(index));
        let stored = StoredSegment { chain: coded.chain, raw_bytes: segment.raw_bytes, stored: coded.stored, base };
        let parts = match self.pipeline.digests().has_parts(segment) {
            true => Parts::InBuffer(buffer),
            false => {
                self.pipeline.spare.leave_raw(buffer);
                Parts::None
            }
        };
        Ok(CodedSegment { index, stored, parts, lease })
    }
}

/// The thread that writes the segments in the order of the plan.
struct Writer<'a> {
    pipeline: &'a Pipeline<'a>,
    queue: &'a Queue,
    container: &'a mut ContainerWriter,
    spread: Spread<'a>,
    /// Finished segments that wait until an earlier segment is written.
    early: BTreeMap<usize, CodedSegment>,
    /// The segment that is written next.
    due: usize,
    /// The first error.
    result: Result<(), FlushError>,
    writing: Duration,
}

impl Writer<'_> {
    fn run(mut self, coded: Receiver<Result<CodedSegment, FlushError>>) -> Result<Duration, FlushError> {
        for done in coded {
            match done {
                Ok(segment) => drop(self.early.insert(segment.index, segment)),
                Err(error) => self.fail(error),
            }
            while let Some(segment) = self.early.remove(&self.due) {
                self.take(segment);
                self.due += 1;
            }
            if self.result.is_err() {
                self.early.clear(); // returns the leases, so that a thread that waits for a lease can end
            }
        }
        self.result.map(|()| self.writing)
    }

    fn take(&mut self, segment: CodedSegment) {
        let CodedSegment { stored, parts, lease, .. } = segment;
        if self.result.is_ok()
            && let Err(error) = unpanicked(|| self.write(&stored, parts))
        {
            self.fail(error);
        }
        if self.pipeline.is_raw() {
            self.pipeline.spare.leave_raw(stored.stored);
        }
        drop(lease);
    }

    fn write(&mut self, stored: &StoredSegment, parts: Parts) -> Result<(), FlushError> {
        let segment = &self.pipeline.segments[self.due];
        match parts {
            Parts::None => {}
            Parts::InBuffer(buffer) => {
                self.spread.push(segment, &buffer[..self.pipeline.raw_len(self.due)])?;
                self.pipeline.spare.leave_raw(buffer);
            }
            Parts::InStored => self.spread.push(segment, &stored.stored)?,
        }
        self.pipeline.observer.segment(stored.raw_bytes, StoredBytes(stored.stored.len() as u64));
        let begun = Instant::now();
        self.container.append(segment, stored)?;
        self.writing += begun.elapsed();
        Ok(())
    }

    fn fail(&mut self, error: FlushError) {
        self.queue.is_stopped.store(true, Ordering::Relaxed);
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }
}
