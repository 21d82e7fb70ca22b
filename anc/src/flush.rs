//! A whole group announced: from headers to a committed checkpoint.

use crate::budget::{Budget, Lease};
use crate::compress::{CompressError, compress};
use crate::observe::Observer;
use crate::source::{FetchError, Source, Wanted};
use mcrengine::classify::{Naming, VariableRef, classify};
use mcrengine::codec::{Chain, Profile, Scratch};
use mcrengine::container::{ContainerWriter, Contents, ReadError, StoredSegment};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, GroupId, Grouping, JobId};
use mcrengine::manifest::{self, Manifest, ManifestDraft};
use mcrengine::merge::{Layout, merge, runs};
use mcrengine::plan::{PlanOptions, SegmentPlan, plan};
use mcrengine::reuse::{ReuseIndex, reusable};
use mcrengine::store::{Store, StoreError};
use mcrengine::units::{RawBytes, StoredBytes};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

/// How checkpoints are made: what the operator decides once.
#[derive(Clone, Debug)]
pub struct FlushOptions {
    /// Scheme, block and segment lengths.
    pub plan: PlanOptions,
    /// Which names agree.
    pub naming: Naming,
    /// Which codecs.
    pub profile: Profile,
    /// Decode every segment again before it is written.
    pub verify: bool,
    /// Do not store again what the newest checkpoint or another rank already holds.
    pub reuse: bool,
    /// Threads that compress.
    pub threads: usize,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self {
            plan: PlanOptions::default(),
            naming: Naming::default(),
            profile: Profile::Default,
            verify: true,
            reuse: true,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// One flush: whose, where to, with what.
pub struct Flush<'a> {
    /// The directory or bucket.
    pub store: &'a dyn Store,
    /// The job.
    pub job: JobId,
    /// Under which name it is committed.
    pub checkpoint: CheckpointId,
    /// The group.
    pub group: GroupId,
    /// How the job's ranks fall into groups.
    pub grouping: Grouping,
    /// GROUP_SIZE.
    pub group_size: u32,
    /// Identity of the application run, or empty.
    pub run: String,
    /// The files of the group's ranks, in rank order.
    pub files: Vec<FileHeader>,
    /// Where their bytes are.
    pub source: &'a dyn Source,
    /// How.
    pub options: &'a FlushOptions,
    /// What bounds the memory.
    pub budget: &'a Arc<Budget>,
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// Milliseconds since 1970, for the manifest.
    pub now_unix_ms: u64,
}

/// Why a flush failed. Nothing of it exists then, but for a temporary file that no reader looks at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A rank's bytes could not be had, or are not those that were announced.
    #[error("fetching")]
    Fetch(#[from] FetchError),
    /// The store refused.
    #[error("writing to the store")]
    Store(#[from] StoreError),
    /// The store could not be read.
    #[error("reading from the store")]
    Read(#[from] ReadError),
    /// A codec failed.
    #[error(transparent)]
    Compress(#[from] CompressError),
    /// A mistake of ours. Nothing was committed.
    #[error("the flush panicked: {0}; report this")]
    Panicked(String),
}

/// Runs a part of a flush on a thread that others wait for: a panic is told as an error, so that they do not wait for ever.
pub(crate) fn unpanicked<T>(work: impl FnOnce() -> Result<T, FlushError>) -> Result<T, FlushError> {
    // What the work leaves half done is thrown away with the flush.
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(FlushError::Panicked(text.unwrap_or_else(|| "without a message".into())))
    })
}

/// The whole path of DESIGN section 6 for one group, top to bottom: classify, plan, fetch and merge, compress, write,
/// commit. Before this returns no restart sees the group's part; afterwards every restart does.
pub fn flush_checkpoint(flush: Flush<'_>) -> Result<Manifest, FlushError> {
    let started = Instant::now();
    let Flush { store, files, options, .. } = &flush;
    let sequence = manifest::next_sequence(*store, &flush.job)?;
    let reuse = if options.reuse { newest_of_group(&flush) } else { ReuseIndex::empty() };

    let classes = classify(files, &options.naming);
    let reused = if options.reuse { reusable(files, &reuse) } else { Vec::new() };
    let skip: HashSet<VariableRef> = reused.iter().map(|(variable, _)| *variable).collect();
    let segments = plan(files, &classes, &options.plan, |variable| skip.contains(&variable));
    flush.observer.planned(segments.len(), segments.iter().map(|s| s.raw_bytes).sum());

    let mut writer = ContainerWriter::create(*store, &flush.job, &flush.checkpoint, flush.group)?;
    fetch_merge_compress(&flush, &segments, |segment, stored| {
        flush.observer.segment(stored.raw_bytes, StoredBytes(stored.stored.len() as u64));
        Ok(writer.append(segment, stored)?)
    })?;
    let draft = ManifestDraft {
        sequence,
        ranks: flush.grouping.ranks(),
        group_size: flush.group_size,
        run: flush.run.clone(),
        profile: options.profile.to_string(),
        created_unix_ms: flush.now_unix_ms,
        elapsed_ms: started.elapsed().as_millis() as u64,
    };
    let (scheme, block_bytes) = (options.plan.scheme, options.plan.block_bytes.get());
    let sealed = writer.seal(*store, Contents { scheme, block_bytes, classes, files: flush.files, reused })?;
    Ok(manifest::commit(flush.store, sealed, draft)?)
}

/// What the newest checkpoint of this group holds, or nothing where there is none or it cannot be read: reuse saves
/// bytes, it is never a reason to fail.
fn newest_of_group(flush: &Flush<'_>) -> ReuseIndex {
    let newest = manifest::list(flush.store, &flush.job).ok().and_then(|all| {
        (all.into_iter().filter(|state| state.id != flush.checkpoint))
            .find_map(|state| manifest::read_manifest(flush.store, &flush.job, &state.id, flush.group).ok())
    });
    let Some(newest) = newest else { return ReuseIndex::empty() };
    ReuseIndex::load(flush.store, &flush.job, &newest).unwrap_or_else(|error| {
        tracing::warn!(checkpoint = %newest.checkpoint, %error, "cannot reuse the checkpoint before; storing everything");
        ReuseIndex::empty()
    })
}

/// Raw bytes of a segment, while they are leased. Fetched or merged, compressed and decoded bytes exist at a time: 3 x.
struct RawSegment {
    index: usize,
    raw: Vec<u8>,
    lease: Lease,
}

const LEASE_PER_RAW_BYTE: u64 = 3;

/// The least budget, in bytes, with which segments of this length can be made.
pub fn least_budget(segment_bytes: u64) -> u64 {
    segment_bytes * LEASE_PER_RAW_BYTE
}

/// Fetches, merges and compresses all segments, several at a time within the budget, and gives them to `write` in order.
///
/// Fetching threads take segments and leases in the order of the plan, so the segment that is written next always has
/// its lease, and nobody waits for what comes later. The first error stops the taking; what was taken is finished.
fn fetch_merge_compress(
    flush: &Flush<'_>,
    segments: &[SegmentPlan],
    mut write: impl FnMut(&SegmentPlan, &StoredSegment) -> Result<(), FlushError>,
) -> Result<(), FlushError> {
    let threads = flush.options.threads.clamp(1, segments.len().max(1));
    let next = Mutex::new(0..segments.len());
    let spare = Mutex::new(Vec::new());
    let (to_compress, raw_segments) = mpsc::sync_channel::<RawSegment>(threads);
    let raw_segments = Mutex::new(raw_segments);
    // Bounded by the leases that its messages hold.
    let (to_write, finished) = mpsc::channel::<Result<(usize, StoredSegment, Option<Vec<u8>>, Lease), FlushError>>();
    let stopped = AtomicBool::new(false);
    let files = &flush.files;

    std::thread::scope(|scope| {
        for _ in 0..flush.source.parallel().clamp(1, segments.len().max(1)) {
            let (next, spare, stopped, to_compress, to_write) =
                (&next, &spare, &stopped, to_compress.clone(), to_write.clone());
            scope.spawn(move || {
                loop {
                    let (index, lease) = {
                        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                        let Some(index) = next.next().filter(|_| !stopped.load(Ordering::Relaxed)) else { break };
                        (index, flush.budget.lease(segments[index].raw_bytes.0 * LEASE_PER_RAW_BYTE))
                    };
                    let buffer = spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
                    match unpanicked(|| Ok(fetch_segment(flush.source, &segments[index], buffer)?)) {
                        Ok(raw) => {
                            if to_compress.send(RawSegment { index, raw, lease }).is_err() {
                                break;
                            }
                        }
                        Err(error) => {
                            let _ = to_write.send(Err(error));
                            break;
                        }
                    }
                }
            });
        }
        for _ in 0..threads {
            let (raw_segments, spare, to_write) = (&raw_segments, &spare, to_write.clone());
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                loop {
                    let received = raw_segments.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(RawSegment { index, raw, lease }) = received else { break };
                    let segment = &segments[index];
                    let done = unpanicked(|| {
                        let all_whole = check_whole(flush.source, segment, files, &raw)?;
                        if matches!(flush.options.profile, Profile::Raw) {
                            // Stored as it is: no other buffer, and nothing to decode. An empty one says where to look.
                            let raw_bytes = RawBytes(raw.len() as u64);
                            let stored = StoredSegment { chain: Chain::raw(), raw_bytes, stored: raw };
                            return Ok((index, stored, (!all_whole).then(Vec::new), lease));
                        }
                        let stored =
                            compress(&flush.options.profile, segment, files, &raw, flush.options.verify, &mut scratch)?;
                        if !all_whole {
                            return Ok((index, stored, Some(raw), lease));
                        }
                        spare.lock().unwrap_or_else(PoisonError::into_inner).push(raw);
                        Ok((index, stored, None, lease))
                    });
                    if to_write.send(done).is_err() {
                        break;
                    }
                }
            });
        }
        drop((to_compress, to_write));

        let mut result = Ok(());
        let mut early = BTreeMap::new();
        let mut parts = PartDigests::default();
        let mut due = 0;
        for done in finished {
            match done {
                Ok((index, stored, raw, lease)) => drop(early.insert(index, (stored, raw, lease))),
                Err(error) => {
                    stopped.store(true, Ordering::Relaxed);
                    result = result.and(Err(error));
                }
            }
            while let Some((stored, raw, lease)) = early.remove(&due) {
                if result.is_ok() {
                    result = unpanicked(|| {
                        let in_part = raw.as_ref().map(|raw| if raw.is_empty() { &stored.stored } else { raw });
                        in_part.map_or(Ok(()), |raw| parts.check(&segments[due], files, raw))?;
                        write(&segments[due], &stored)
                    })
                    .inspect_err(|_| stopped.store(true, Ordering::Relaxed));
                }
                if matches!(flush.options.profile, Profile::Raw) {
                    spare.lock().unwrap_or_else(PoisonError::into_inner).push(stored.stored);
                }
                drop(lease);
                due += 1;
            }
            if result.is_err() {
                early.clear(); // gives the leases back, so that whoever waits for one can see that it is over
            }
        }
        result
    })
}

/// Fetches the pieces of a segment and merges them, straight into place where they are only put after each other.
fn fetch_segment(source: &dyn Source, segment: &SegmentPlan, mut buffer: Vec<u8>) -> Result<Vec<u8>, FetchError> {
    let raw_bytes = usize::try_from(segment.raw_bytes.0).expect("a segment is at most 1 GiB");
    buffer.resize(raw_bytes, 0);
    let mut rest = &mut buffer[..];
    let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(segment.pieces.len());
    for piece in &segment.pieces {
        let into;
        (into, rest) = rest.split_at_mut(piece.bytes as usize);
        wanted.push(Wanted { variable: piece.variable, offset: piece.offset, into });
    }
    source.fetch(&mut wanted)?;
    if segment.layout == Layout::Concatenated {
        return Ok(buffer);
    }
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(segment.pieces.len());
    let mut rest = &buffer[..];
    for piece in &segment.pieces {
        let (bytes, after) = rest.split_at(piece.bytes as usize);
        pieces.push(bytes);
        rest = after;
    }
    Ok(merge(&pieces, segment.layout))
}

/// Compares the digest of every variable that is whole in this segment; false if some are only in part.
fn check_whole(
    source: &dyn Source,
    segment: &SegmentPlan,
    files: &[FileHeader],
    raw: &[u8],
) -> Result<bool, FlushError> {
    if source.is_checked() {
        return Ok(true);
    }
    let is_whole = |i: usize| segment.pieces[i].bytes == segment.pieces[i].variable.of(files).raw_bytes.0;
    for_each_hashed(segment, raw, is_whole, |i, hasher| compare(segment.pieces[i].variable, files, hasher))?;
    Ok((0..segment.pieces.len()).all(is_whole))
}

/// Digests of variables that are spread over several segments; those come in order.
#[derive(Default)]
struct PartDigests {
    open: HashMap<VariableRef, (blake3::Hasher, u64)>,
}

impl PartDigests {
    fn check(&mut self, segment: &SegmentPlan, files: &[FileHeader], raw: &[u8]) -> Result<(), FlushError> {
        let lens: Vec<usize> = segment.pieces.iter().map(|p| p.bytes as usize).collect();
        runs(&lens, segment.layout, |run| {
            let piece = &segment.pieces[run.piece];
            if piece.bytes != piece.variable.of(files).raw_bytes.0 {
                let (hasher, bytes) = self.open.entry(piece.variable).or_default();
                hasher.update(&raw[run.in_segment.clone()]);
                *bytes += run.in_segment.len() as u64;
            }
        });
        for piece in &segment.pieces {
            let raw_bytes = piece.variable.of(files).raw_bytes.0;
            if self.open.get(&piece.variable).is_some_and(|(_, bytes)| *bytes == raw_bytes)
                && let Some((hasher, _)) = self.open.remove(&piece.variable)
            {
                compare(piece.variable, files, &hasher)?;
            }
        }
        Ok(())
    }
}

/// Hashes the chosen pieces of a merged segment, whatever the layout.
fn for_each_hashed(
    segment: &SegmentPlan,
    raw: &[u8],
    chosen: impl Fn(usize) -> bool,
    mut done: impl FnMut(usize, &blake3::Hasher) -> Result<(), FlushError>,
) -> Result<(), FlushError> {
    let lens: Vec<usize> = segment.pieces.iter().map(|p| p.bytes as usize).collect();
    let mut open: HashMap<usize, blake3::Hasher> = HashMap::new();
    let mut result = Ok(());
    runs(&lens, segment.layout, |run| {
        if result.is_err() || !chosen(run.piece) {
            return;
        }
        let bytes = &raw[run.in_segment.clone()];
        if bytes.len() == lens[run.piece] {
            result = done(run.piece, blake3::Hasher::new().update(bytes));
            return;
        }
        let hasher = open.entry(run.piece).or_default();
        hasher.update(bytes);
        if run.in_piece.end == lens[run.piece] {
            result = done(run.piece, hasher);
            open.remove(&run.piece);
        }
    });
    result
}

fn compare(variable: VariableRef, files: &[FileHeader], hasher: &blake3::Hasher) -> Result<(), FlushError> {
    if Digest::from(hasher.finalize()) == variable.of(files).digest {
        return Ok(());
    }
    let file = &files[variable.file as usize];
    Err(FetchError::Changed { rank: file.rank, file: file.path.to_string() }.into())
}
