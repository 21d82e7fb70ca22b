//! A whole group announced: from headers to a committed checkpoint.

use crate::budget::{Budget, Lease};
use crate::choosing::Choosing;
use crate::compress::compress;
use crate::flush_error::FlushError;
use crate::looking_back::LookingBack;
use crate::newest::NewestOfGroups;
use crate::observe::Observer;
use crate::rate::StoreSpeed;
use crate::source::{FetchError, Source, Wanted};
use crate::spare::{Coder, Spare};
use crate::unpanicked::unpanicked;
use mcrengine::classify::{Naming, VariableRef, classify};
use mcrengine::codec::{Basis, Chain, Profile, StoreRate, cores, threads_of_each};
use mcrengine::container::{ContainerWriter, Contents, StoredSegment};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, Digest, GroupId, Grouping, JobId};
use mcrengine::manifest::{self, Manifest, ManifestDraft};
use mcrengine::merge::{Layout, merge, runs};
use mcrengine::plan::{Piece, PlanOptions, SegmentPlan};
use mcrengine::reuse::{ReuseIndex, reusable};
use mcrengine::store::Store;
use mcrengine::units::StoredBytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

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
    /// Code with what older checkpoints hold, where that is smaller, but for at least one checkpoint of so many; 1: never.
    pub whole_every: u32,
    /// Whether the store's speed counts in the choice of codecs.
    pub store_speed: StoreSpeed,
    /// Threads that compress.
    pub threads: usize,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self {
            plan: PlanOptions::default(),
            naming: Naming::default(),
            profile: Profile::Fast,
            verify: true,
            reuse: true,
            whole_every: WHOLE_EVERY,
            store_speed: StoreSpeed::Ignored,
            threads: cores(),
        }
    }
}

/// Checkpoints of which one is coded by itself, where nothing else is said.
pub const WHOLE_EVERY: u32 = 8;

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
    /// Number of the incarnation of the job, or 0.
    pub incarnation: u32,
    /// When the application wrote the newest of the files, in milliseconds since 1970.
    pub written_unix_ms: i64,
    /// The files of the group's ranks, in rank order.
    pub files: Arc<Vec<FileHeader>>,
    /// Where their bytes are.
    pub source: &'a dyn Source,
    /// How.
    pub options: &'a FlushOptions,
    /// What bounds the memory.
    pub budget: &'a Arc<Budget>,
    /// What earlier flushes left, and this one leaves.
    pub spare: &'a Spare,
    /// Why it cannot be known that all files are of one step, if it cannot.
    pub doubt: Option<String>,
    /// The newest manifest of each group, as far as earlier flushes of this process know it.
    pub newest: &'a NewestOfGroups,
    /// Asked once the container is durable: waits until the group may be committed, or says why it may not. For callers
    /// with several checkpoints under way, of which none must exist before an older one; and for an incarnation that may be
    /// over by now.
    pub may_commit: &'a (dyn Fn() -> Result<(), FlushError> + Sync),
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// Milliseconds since 1970, for the manifest.
    pub now_unix_ms: u64,
}

/// The whole path of a checkpoint for one group, top to bottom: classify, plan, fetch and merge, compress, write,
/// commit. Before this returns no restart sees the group's part; afterwards every restart does.
pub fn flush_checkpoint(flush: Flush<'_>) -> Result<Manifest, FlushError> {
    let started = Instant::now();
    let Flush { store, files, options, .. } = &flush;
    // First, so that whoever comes second is told at once.
    let mut writer = ContainerWriter::create(*store, &flush.job, &flush.checkpoint, flush.group)?;
    let newest = if options.reuse { newest_of_group(&flush) } else { None };
    let reuse = newest.as_ref().map_or_else(ReuseIndex::empty, |newest| held(&flush, newest));

    let classes = classify(files, &options.naming);
    let reused = if options.reuse { reusable(files, &reuse) } else { Vec::new() };
    let (back, segments, reused) = LookingBack::plan(&flush, newest.as_ref(), &classes, reused);
    flush.observer.planned(segments.len(), segments.iter().map(|s| s.raw_bytes).sum());

    let largest = segments.iter().max_by_key(|segment| segment.raw_bytes);
    let of_largest = largest.map_or(1, |segment| options.profile.memory_per_raw_byte_of(&segment.element));
    let per_raw_byte = of_largest + back.memory_per_raw_byte(&options.profile);
    let memory = (flush.budget.total_bytes(), per_raw_byte);
    let of_each = threads_of_each(options.threads, memory, segments.iter().map(|segment| segment.raw_bytes));
    let cores = (options.threads / of_each.max(1)).max(1) as u32; // at most 1024
    let store_rate = options.store_speed.bytes_per_s().map(|bytes_per_s| StoreRate { bytes_per_s, cores });
    let choosing = Choosing::new(&classes, &options.profile, newest.as_ref(), store_rate);
    let mut writing = Duration::ZERO;
    let dirs = writer.dirs();
    let meanwhile = || Ok(dirs.sync(*store)?);
    fetch_merge_compress(&flush, &segments, (&choosing, &back, of_each), meanwhile, |segment, stored| {
        flush.observer.segment(stored.raw_bytes, StoredBytes(stored.stored.len() as u64));
        let begun = Instant::now();
        writer.append(segment, stored)?;
        writing += begun.elapsed();
        Ok(())
    })?;
    let decisions = choosing.finish(&flush.checkpoint);
    let draft = ManifestDraft {
        incarnation: flush.incarnation,
        written_unix_ms: flush.written_unix_ms,
        doubt: flush.doubt.clone(),
        ranks: flush.grouping.ranks(),
        group_size: flush.group_size,
        profile: options.profile.to_string(),
        created_unix_ms: flush.now_unix_ms,
        elapsed_ms: started.elapsed().as_millis() as u64,
        in_a_row: back.in_a_row(),
        known: newest.as_ref().map(Manifest::known_containers).unwrap_or_default(),
        decisions,
    };
    let begun = Instant::now();
    let (scheme, block_bytes) = (options.plan.scheme, options.plan.block_bytes.get());
    let container = writer.finish(Contents { scheme, block_bytes, classes, files: Arc::clone(files), reused })?;
    let (sealed, manifest) = container.seal(*store, |container| manifest::write(*store, container, draft))?;
    options.store_speed.wrote(sealed.summary().bytes(), writing + begun.elapsed());
    let manifest = manifest?;
    (flush.may_commit)()?;
    let manifest = manifest::commit(*store, sealed, manifest)?;
    flush.newest.put(&manifest);
    Ok(manifest)
}

/// The newest checkpoint of this group, if there is one: the one that the application wrote last.
fn newest_of_group(flush: &Flush<'_>) -> Option<Manifest> {
    let (store, job, group) = (flush.store, &flush.job, flush.group);
    let known = flush.newest.get(job, group).filter(|known| known.checkpoint != flush.checkpoint);
    if known.as_ref().is_some_and(|known| manifest::is_there(store, known)) {
        return known;
    }
    flush.newest.forget(job, group);
    let newest = manifest::newest_of_group(store, job, group, Some(&flush.checkpoint)).ok().flatten()?;
    flush.newest.put(&newest);
    Some(newest)
}

/// What it holds, or nothing where it cannot be read: reuse saves bytes, it is never a reason to fail.
fn held(flush: &Flush<'_>, newest: &Manifest) -> ReuseIndex {
    ReuseIndex::load(flush.store, &flush.job, newest).unwrap_or_else(|error| {
        tracing::warn!(checkpoint = %newest.checkpoint, %error, "cannot reuse the checkpoint before; storing everything");
        ReuseIndex::empty()
    })
}

/// Raw bytes of a segment, the first of `raw`, while they are leased, with what coding needs beside them.
struct RawSegment {
    index: usize,
    raw: Vec<u8>,
    /// No digest has to wait for those of other segments.
    all_checked: bool,
    lease: Lease,
}

/// The bytes of a segment whose digests have to wait for those of other segments.
enum Unchecked {
    Nothing,
    Raw(Vec<u8>),
    /// What is stored is raw.
    Stored,
}

/// A segment that can be written.
type Coded = (usize, StoredSegment, Unchecked, Lease);

/// The least budget, in bytes, with which segments of this length can be made.
pub fn least_budget(segment_bytes: u64, profile: &Profile) -> u64 {
    segment_bytes * profile.memory_per_raw_byte()
}

/// Fetches, merges and compresses all segments, several at a time within the budget, and gives them to `write` in order.
///
/// Whoever fetches takes segments and leases in the order of the plan, so the segment that is written next always has
/// its lease, and nobody waits for what comes later. The first error stops the taking; what was taken is finished. What is to
/// be done `meanwhile` waits for the disk, and has a thread of its own.
fn fetch_merge_compress(
    flush: &Flush<'_>,
    segments: &[SegmentPlan],
    (choosing, back, threads_of_each): (&Choosing<'_>, &LookingBack, usize),
    meanwhile: impl FnOnce() -> Result<(), FlushError> + Send,
    mut write: impl FnMut(&SegmentPlan, &StoredSegment) -> Result<(), FlushError>,
) -> Result<(), FlushError> {
    let threads = flush.options.threads.clamp(1, segments.len().max(1));
    let fetching = flush.source.parallel().min(segments.len());
    let next = Mutex::new(0..segments.len());
    let (to_compress, raw_segments) = mpsc::sync_channel::<RawSegment>(threads);
    let raw_segments = Mutex::new(raw_segments);
    // Bounded by the leases that its messages hold.
    let (to_write, finished) = mpsc::channel::<Result<Coded, FlushError>>();
    let stopped = AtomicBool::new(false);
    let (files, spare) = (&flush.files[..], flush.spare);
    let bytes_of = |index: usize| segments[index].raw_bytes.0 as usize; // at most 1 GiB

    let lease_next = || -> Option<(usize, Lease)> {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        let index = next.next().filter(|_| !stopped.load(Ordering::Relaxed))?;
        let (segment, profile) = (&segments[index], &flush.options.profile);
        let bytes = segment.raw_bytes.0 * profile.memory_per_raw_byte_of(&segment.element);
        Some((index, flush.budget.lease(bytes + back.memory_bytes(index, profile))))
    };
    let fetch = |(index, lease): (usize, Lease)| -> Result<RawSegment, FlushError> {
        let fetched = unpanicked(|| Ok(fetch_segment(flush.source, &segments[index], files, spare.take_raw())?));
        fetched.map(|(raw, all_checked)| RawSegment { index, raw, all_checked, lease })
    };
    let is_raw = matches!(flush.options.profile, Profile::Raw);
    let code = |mut coder: Coder<'_>, RawSegment { index, raw, all_checked, lease }: RawSegment| {
        let (segment, bytes) = (&segments[index], &raw[..bytes_of(index)]);
        coder.scratch.set_threads(threads_of_each);
        let (options, is_there) = (flush.options, back.is_there(index));
        let basis = choosing.basis(segment, is_there);
        let (older, base) = back.read(index, &basis, &mut coder.scratch).unzip();
        let basis = Basis { older: older.as_ref(), ..basis };
        let coded = compress(&options.profile, segment, files, bytes, options.verify, &basis, &mut coder.scratch);
        coder.scratch.set_older(None);
        let coded = coded?;
        flush.observer.chosen(&coded.reason);
        choosing.note(segment, is_there, index, &coded);
        let base = base.filter(|_| coded.chain.needs_older()).inspect(|_| back.used(index));
        let stored = StoredSegment { chain: coded.chain, raw_bytes: segment.raw_bytes, stored: coded.stored, base };
        if !all_checked {
            return Ok((index, stored, Unchecked::Raw(raw), lease));
        }
        spare.leave_raw(raw);
        Ok((index, stored, Unchecked::Nothing, lease))
    };
    // Stored as it is: no other buffer, nothing to decode, and no other thread.
    let as_it_is = |RawSegment { index, mut raw, all_checked, lease }: RawSegment| {
        raw.truncate(bytes_of(index));
        let (chain, raw_bytes) = (Chain::raw(), segments[index].raw_bytes);
        let stored = StoredSegment { chain, raw_bytes, stored: raw, base: None };
        (index, stored, if all_checked { Unchecked::Nothing } else { Unchecked::Stored }, lease)
    };

    std::thread::scope(|scope| {
        for _ in 0..fetching {
            let (lease_next, fetch, as_it_is) = (&lease_next, &fetch, &as_it_is);
            let (to_compress, to_write) = (to_compress.clone(), to_write.clone());
            scope.spawn(move || {
                while let Some(fetched) = lease_next().map(fetch) {
                    let is_over = match fetched {
                        Ok(raw) if is_raw => to_write.send(Ok(as_it_is(raw))).is_err(),
                        Ok(raw) => to_compress.send(raw).is_err(),
                        Err(error) => {
                            let _ = to_write.send(Err(error));
                            true
                        }
                    };
                    if is_over {
                        break;
                    }
                }
            });
        }
        for _ in 0..threads {
            let (lease_next, fetch, code, as_it_is) = (&lease_next, &fetch, &code, &as_it_is);
            let (raw_segments, to_write) = (&raw_segments, to_write.clone());
            scope.spawn(move || {
                let receive = || raw_segments.lock().unwrap_or_else(PoisonError::into_inner).recv().ok().map(Ok);
                let coder = || spare.coder(flush.options.threads);
                let next = || match fetching {
                    // Not before it can be coded: until then it would only go out of the caches. Nor a coder before
                    // there is memory: what is used over and over is then that of whoever gave its memory back.
                    0 => lease_next().map(|leased| (coder(), fetch(leased))),
                    _ => receive().map(|fetched| (coder(), fetched)),
                };
                while let Some((coder, fetched)) = next() {
                    let coded = match fetched {
                        Ok(raw) if is_raw => Ok(as_it_is(raw)),
                        Ok(raw) => unpanicked(|| code(coder, raw)),
                        Err(error) => Err(error),
                    };
                    if to_write.send(coded).is_err() {
                        break;
                    }
                }
            });
        }
        drop(to_compress);
        scope.spawn(move || {
            if let Err(error) = unpanicked(meanwhile) {
                let _ = to_write.send(Err(error));
            }
        });

        let mut result = Ok(());
        let mut early = BTreeMap::new();
        let mut parts = PartDigests::default();
        let mut due = 0;
        for done in finished {
            match done {
                Ok((index, stored, unchecked, lease)) => drop(early.insert(index, (stored, unchecked, lease))),
                Err(error) => {
                    stopped.store(true, Ordering::Relaxed);
                    result = result.and(Err(error));
                }
            }
            while let Some((stored, unchecked, lease)) = early.remove(&due) {
                if result.is_ok() {
                    result = unpanicked(|| {
                        match unchecked {
                            Unchecked::Nothing => {}
                            Unchecked::Raw(raw) => {
                                parts.check(flush.source, &segments[due], files, &raw[..bytes_of(due)])?;
                                spare.leave_raw(raw);
                            }
                            Unchecked::Stored => parts.check(flush.source, &segments[due], files, &stored.stored)?,
                        }
                        write(&segments[due], &stored)
                    })
                    .inspect_err(|_| stopped.store(true, Ordering::Relaxed));
                }
                if is_raw {
                    spare.leave_raw(stored.stored);
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

/// Fetches the pieces of a segment and merges them, straight into place where they are only put after each other. They
/// are the first bytes of what it gives. Compares the digest of every variable that is whole in the segment, as its bytes
/// come; false if some must be compared that are not.
fn fetch_segment(
    source: &dyn Source,
    segment: &SegmentPlan,
    files: &[FileHeader],
    mut buffer: Vec<u8>,
) -> Result<(Vec<u8>, bool), FetchError> {
    let raw_bytes = usize::try_from(segment.raw_bytes.0).expect("a segment is at most 1 GiB");
    if buffer.len() < raw_bytes {
        // Not `resize`, which copies what is written over. The next one may be a little longer.
        buffer = vec![0; raw_bytes.checked_next_power_of_two().unwrap_or(raw_bytes)];
    }
    let mut rest = &mut buffer[..raw_bytes];
    let mut wanted: Vec<Wanted<'_>> = Vec::with_capacity(segment.pieces.len());
    for piece in &segment.pieces {
        let into;
        (into, rest) = rest.split_at_mut(piece.bytes as usize);
        wanted.push(Wanted { variable: piece.variable, offset: piece.offset, into });
    }
    let is_checked = |piece: &Piece| source.is_checked(piece.variable.file);
    let is_whole = |piece: &Piece| piece.bytes == piece.variable.of(files).raw_bytes.0;
    let (mut hasher, mut hashed, mut changed) = (blake3::Hasher::new(), 0, None);
    source.fetch(&mut wanted, &mut |nth, bytes| {
        let piece = &segment.pieces[nth];
        if !is_whole(piece) || is_checked(piece) {
            return;
        }
        let digest = if bytes.len() as u64 == piece.bytes {
            Digest::of(bytes)
        } else {
            hasher.update(bytes);
            hashed += bytes.len() as u64;
            if hashed < piece.bytes {
                return;
            }
            hashed = 0;
            let digest = hasher.finalize();
            hasher.reset();
            digest.into()
        };
        if let Err(error) = compare(piece.variable, files, digest) {
            changed.get_or_insert(error);
        }
    })?;
    if let Some(error) = changed {
        return Err(error);
    }
    let all_checked = segment.pieces.iter().all(|piece| is_whole(piece) || is_checked(piece));
    if segment.layout == Layout::Concatenated {
        return Ok((buffer, all_checked));
    }
    let mut pieces: Vec<&[u8]> = Vec::with_capacity(segment.pieces.len());
    let mut rest = &buffer[..];
    for piece in &segment.pieces {
        let (bytes, after) = rest.split_at(piece.bytes as usize);
        pieces.push(bytes);
        rest = after;
    }
    Ok((merge(&pieces, segment.layout), all_checked))
}

/// Digests of variables that are spread over several segments; those come in order.
#[derive(Default)]
struct PartDigests {
    open: HashMap<VariableRef, (blake3::Hasher, u64)>,
}

impl PartDigests {
    fn check(
        &mut self,
        source: &dyn Source,
        segment: &SegmentPlan,
        files: &[FileHeader],
        raw: &[u8],
    ) -> Result<(), FlushError> {
        let lens: Vec<usize> = segment.pieces.iter().map(|p| p.bytes as usize).collect();
        runs(&lens, segment.layout, |run| {
            let piece = &segment.pieces[run.piece];
            let is_part = piece.bytes != piece.variable.of(files).raw_bytes.0;
            if is_part && !source.is_checked(piece.variable.file) {
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
                compare(piece.variable, files, hasher.finalize().into())?;
            }
        }
        Ok(())
    }
}

fn compare(variable: VariableRef, files: &[FileHeader], found: Digest) -> Result<(), FetchError> {
    if found == variable.of(files).digest {
        return Ok(());
    }
    let file = &files[variable.file as usize];
    Err(FetchError::Changed { rank: file.rank, file: file.path.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::header::{ElementType, Extent, Role, Shape, VariableHeader};
    use mcrengine::ids::{FilePath, Rank};
    use mcrengine::units::RawBytes;

    /// Gives these bytes, in steps of three. Those of the first file were hashed where they are.
    struct FirstIsChecked(&'static [u8]);
    impl Source for FirstIsChecked {
        fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError> {
            let mut rest = self.0;
            for (nth, run) in wanted.iter_mut().enumerate() {
                let bytes;
                (bytes, rest) = rest.split_at(run.into.len());
                run.into.copy_from_slice(bytes);
                run.into.chunks(3).for_each(|step| filled(nth, step));
            }
            Ok(())
        }
        fn is_checked(&self, file: u32) -> bool {
            file == 0
        }
        fn parallel(&self) -> usize {
            1
        }
    }

    /// A file of one variable.
    fn file(rank: u32, bytes: u64, digest: Digest) -> FileHeader {
        let variable = VariableHeader {
            role: Role::WholeFile,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([bytes].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(bytes),
            digest,
            filters: [].into(),
            extents: [Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes }].into(),
        };
        let path = FilePath::new(format!("f{rank}").into_bytes()).expect("valid");
        FileHeader {
            path,
            rank: Rank(rank),
            bytes,
            kind: Default::default(),
            mode: 0o600,
            modified_ns: 0,
            digest,
            variables: vec![variable],
        }
    }

    fn segment(pieces: &[(u32, u64, u64)]) -> SegmentPlan {
        let piece = |&(file, offset, bytes): &(u32, u64, u64)| {
            let variable = VariableRef { file, variable: 0 };
            Piece { variable, offset, bytes }
        };
        SegmentPlan {
            class: None,
            role: Role::WholeFile,
            element: ElementType::Bytes,
            columns: Vec::new(),
            raw_bytes: pieces.iter().map(|p| RawBytes(p.2)).sum(),
            pieces: pieces.iter().map(piece).collect(),
            layout: Layout::Concatenated,
        }
    }

    #[test]
    fn bytes_that_were_not_hashed_where_they_are_are_compared_beside_those_that_were() {
        let no_digest = mcrengine::container::NO_DIGEST;
        let files = [file(0, 4, no_digest), file(1, 4, Digest::of(b"bbbb")), file(2, 2, Digest::of(b"cc"))];
        let all = segment(&[(0, 0, 4), (1, 0, 4), (2, 0, 2)]);
        let fetch = |bytes| fetch_segment(&FirstIsChecked(bytes), &all, &files, Vec::new());
        let (raw, all_checked) = fetch(b"aaaabbbbcc").expect("as announced");
        assert!(all_checked && raw.starts_with(b"aaaabbbbcc"));
        for (bytes, changed) in [(b"aaaabbbBcc", 1), (b"aaaaBbbbcc", 1), (b"aaaabbbbcC", 2)] {
            let error = fetch(bytes).expect_err("one changed");
            assert!(matches!(error, FetchError::Changed { rank: Rank(r), .. } if r == changed), "{error}");
        }
    }

    #[test]
    fn a_variable_in_two_segments_is_compared_when_its_last_byte_is_there() {
        let files = [file(0, 4, mcrengine::container::NO_DIGEST), file(1, 4, Digest::of(b"bbbb"))];
        let (front, back) = (segment(&[(0, 0, 4), (1, 0, 1)]), segment(&[(1, 1, 3)]));
        let source = FirstIsChecked(b"aaaab");
        let (raw, all_checked) = fetch_segment(&source, &front, &files, Vec::new()).expect("nothing to compare yet");
        assert!(!all_checked && raw.starts_with(b"aaaab"));
        for (rest, is_same) in [(b"bbb", true), (b"bbB", false)] {
            let mut parts = PartDigests::default();
            parts.check(&source, &front, &files, b"aaaab").expect("not whole yet");
            assert_eq!(parts.check(&source, &back, &files, rest).is_ok(), is_same);
        }
    }
}
