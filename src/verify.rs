//! Verifies that a checkpoint can be restored: compares every checksum and digest, and reassembles every file in
//! memory.

use crate::classify::VariableRef;
use crate::container::{
    ContainerSet, DIGEST_BYTES_MIN, DecodingMemory, ReadError, ReadOrder, SegmentBuffer, SegmentKey, VariableReader,
    segments_of,
};
use crate::error_chain::error_chain;
use crate::filter::put_on;
use crate::gathered::Gathered;
use crate::header::{Extent, FileHeader, VariableHeader};
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::manifest::{self, Manifest};
use crate::parity;
use crate::partition::Recording;
use crate::store::{Advice, Store};
use crate::units::{RawBytes, StoredBytes};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The result of verifying a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Number of groups whose manifests were read.
    pub groups: u32,
    /// Number of files that were reassembled and whose digest agrees.
    pub files: u64,
    /// Number of variables whose digest agrees, or that have no digest.
    pub variables: u64,
    /// Number of segments in the checkpoint's own containers.
    pub segments: u64,
    /// Raw bytes of the variables counted in `variables`.
    pub raw_bytes: RawBytes,
    /// Total length of the containers.
    pub stored_bytes: StoredBytes,
    /// Memory that the segment with the largest need takes while it is decoded, in bytes, whatever the limit is.
    #[serde(skip)]
    pub decoding_bytes: u64,
    /// The parity files that are damaged or belong to other containers, as sentences. The checkpoint can be restored
    /// nevertheless.
    pub damaged_parity: Vec<String>,
    /// The problems found, at most [`PROBLEMS_MAX`]. Empty if the checkpoint can be restored.
    pub problems: Vec<Problem>,
}

/// A problem of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The group that has the problem, if it is known.
    pub group: Option<GroupId>,
    /// Description of the problem and its place.
    pub what: String,
    /// What to do about the problem.
    pub advice: Advice,
}

/// The resources that verifying may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Maximum memory in bytes. One half is for decoded segments, and the other half for the codecs. A segment that
    /// needs more memory is decoded nevertheless.
    pub memory_bytes: u64,
    /// Maximum number of files that are verified at the same time. With little memory, fewer files are verified at the
    /// same time.
    pub threads: usize,
}

/// The buffer has room for this number of the longest segments for each thread. Several threads do not use segments
/// exactly in the announced order, so a smaller buffer would decode many segments more than once.
const SEGMENTS_OF_A_THREAD: u64 = 8;
/// Maximum number of problems in one report. Verifying stops after about this number.
pub const PROBLEMS_MAX: usize = 1000;
/// Number of bytes that are read and hashed at once.
const STEP_BYTES: u64 = 1 << 20;

impl VerifyReport {
    /// Whether there are no problems.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds the report of a part of the checkpoint.
    fn add(&mut self, part: Self) {
        self.groups += part.groups;
        self.files += part.files;
        self.variables += part.variables;
        self.segments += part.segments;
        self.raw_bytes += part.raw_bytes;
        self.stored_bytes += part.stored_bytes;
        self.damaged_parity.extend(part.damaged_parity);
        for problem in part.problems {
            let is_same = |known: &Problem| known.what == problem.what && known.group == problem.group;
            if !self.problems.iter().any(is_same) {
                self.problems.push(problem);
            }
        }
        self.problems.truncate(PROBLEMS_MAX);
    }

    fn problem(&mut self, group: Option<GroupId>, error: &ReadError) {
        self.problems.push(Problem { group, what: error_chain(error), advice: error.advice() });
    }
}

/// Reads all of a checkpoint. `progress` is called with the raw bytes of each finished variable.
pub fn verify(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    options: VerifyOptions,
    progress: &(dyn Fn(RawBytes) + Sync),
) -> VerifyReport {
    verify_recorded(store, job, checkpoint, options, progress, &mut None)
}

/// Verifies like [`verify`], and adds the uses of segments to a recording.
pub fn verify_recorded(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    options: VerifyOptions,
    progress: &(dyn Fn(RawBytes) + Sync),
    recording: &mut Option<Recording>,
) -> VerifyReport {
    let mut report = VerifyReport::default();
    let state = match manifest::state(store, job, checkpoint) {
        Ok(state) => state,
        Err(error) => {
            report.problem(None, &error);
            return report;
        }
    };
    let advice = Advice::OlderCheckpoint;
    report.problems.extend(state.problems.into_iter().map(|what| Problem { group: None, what, advice }));
    for group in (0..state.groups).map(GroupId) {
        if report.problems.len() >= PROBLEMS_MAX {
            break;
        }
        let result = manifest::read_manifest(store, job, checkpoint, group).and_then(|manifest| {
            report.groups += 1;
            verify_group(store, &manifest, options, &mut report, progress, recording)
        });
        match result {
            Ok(()) => {}
            // `state` already reports missing groups and damaged manifests.
            Err(ReadError::Missing { path }) if path.ends_with(manifest::manifest_name(group)) => {}
            Err(error) if report.problems.iter().any(|known| known.what == error.to_string()) => {}
            Err(error) => report.problem(Some(group), &error),
        }
    }
    report
}

fn verify_group(
    store: &dyn Store,
    manifest: &Manifest,
    options: VerifyOptions,
    report: &mut VerifyReport,
    progress: &(dyn Fn(RawBytes) + Sync),
    recording: &mut Option<Recording>,
) -> Result<(), ReadError> {
    let group = Some(manifest.group);
    let set = Arc::new(ContainerSet::open(store, &manifest.job, &manifest.checkpoint, manifest.group)?);
    let own = &set.readers()[0];
    report.segments += own.index().segments().len() as u64;
    report.stored_bytes += StoredBytes(own.bytes());
    for reader in set.readers() {
        let path = reader.path().strip_prefix(store.root()).unwrap_or(reader.path());
        if let Err(error) = parity::check(store, path, reader.index_digest(), reader.bytes()) {
            report.damaged_parity.push(error_chain(&error));
        }
    }
    // Only the frame is hashed here. Later, checksums are compared for the stored bytes, and digests for the decoded
    // bytes.
    let (what, found) = ("the frame of the container", own.frame_digest()?);
    if found != manifest.container.digest {
        let (path, what, recorded) = (own.path().into(), what.into(), manifest.container.digest);
        report.problem(group, &ReadError::Digest { path, what, found, recorded });
    }
    let files = set.index().files();
    let described = files.iter().map(|f| (&f.path, f.rank, f.bytes, f.kind, f.digest));
    if !described.eq(manifest.files.iter().map(|f| (&f.path, f.rank, f.bytes, f.kind, f.digest))) {
        return Err(own_error(&set, "the list of files", "it differs from the list in the manifest".into()));
    }
    let cache_bytes = options.memory_bytes / 2;
    let decoding = DecodingMemory::new(options.memory_bytes - cache_bytes);
    let tasks = set.tasks(|_| true);
    let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, cache_bytes, ReadOrder::Announced)?;
    let segments = Arc::new(segments.with_decoding(decoding));
    report.decoding_bytes = report.decoding_bytes.max(segments.largest_need());
    let of_each = segments.threads_of_each(options.threads, &tasks);
    drop(tasks);
    // Segments of older containers, and chunks whose filters are applied again, are included.
    let lengths = set.readers().iter().flat_map(|reader| reader.index().segments()).map(|segment| segment.raw_bytes.0);
    let filtered = files.iter().flat_map(|file| &file.variables).filter(|variable| !variable.filters.is_empty());
    let chunks = filtered.flat_map(|variable| &variable.extents).map(|extent| extent.raw_bytes);
    let largest = lengths.chain(chunks).max().unwrap_or(0);
    let fit = usize::try_from(cache_bytes / (largest * SEGMENTS_OF_A_THREAD).max(1)).unwrap_or(usize::MAX);
    let threads = options.threads.min(fit).clamp(1, files.len().max(1));
    let checks: Vec<FileCheck<'_>> = (0..).zip(files).map(|(f, file)| FileCheck::new(f, file, group)).collect();
    let in_order = best_order(&checks, &set, cache_bytes);
    in_order.iter().for_each(|(steps, check)| segments.announce(check.uses_of_steps(&set, steps.clone())));
    let (left, problems) = (Mutex::new(in_order.into_iter()), AtomicUsize::new(report.problems.len()));
    if recording.is_some() {
        segments.record();
    }
    let reader = VariableReader::of(segments);
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut reader = reader.beside(of_each);
        while problems.load(Ordering::Relaxed) < PROBLEMS_MAX
            && let Some((steps, check)) = take()
        {
            let found = check.run_to(steps.end, &mut reader, progress);
            problems.fetch_add(found, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    if let Some(recording) = recording {
        recording.add(&reader.segments().recorded());
    }
    for check in checks {
        report.add(check.progress.into_inner().unwrap_or_else(PoisonError::into_inner).report);
    }
    Ok(())
}

/// Some steps of a file that one thread runs.
type Turn<'a, 'b> = (Range<usize>, &'a FileCheck<'b>);

/// The order in which the files are verified. There are two orders. Either all files advance together, step by step, or
/// the files are verified one after the other. The first order is better if a segment has the same variable of many
/// files, and the second order if a segment has many variables of a few files. The order that decodes fewer bytes with
/// this memory is taken.
fn best_order<'a, 'b>(checks: &'a [FileCheck<'b>], set: &ContainerSet, cache_bytes: u64) -> Vec<Turn<'a, 'b>> {
    let longest = checks.iter().map(|check| check.steps.len()).max().unwrap_or(0);
    let has_step = |(steps, check): &Turn<'_, '_>| steps.start < check.steps.len();
    let together = (0..longest).flat_map(|step| checks.iter().map(move |check| (step..step + 1, check)));
    let together: Vec<Turn<'_, '_>> = together.filter(has_step).collect();
    let segments = set.readers().iter().flat_map(|reader| reader.index().segments());
    if segments.map(|segment| segment.raw_bytes.0).sum::<u64>() <= cache_bytes {
        return together; // each segment is decoded once in both orders
    }
    let one_by_one: Vec<Turn<'_, '_>> = checks.iter().map(|check| (0..check.steps.len(), check)).collect();
    match loaded_bytes(&one_by_one, set, cache_bytes) < loaded_bytes(&together, set, cache_bytes) {
        true => one_by_one,
        false => together,
    }
}

/// The raw bytes of the segments that are decoded in this order, if the least recently used segments are dropped when
/// the segments take more than `cache_bytes`.
fn loaded_bytes(turns: &[Turn<'_, '_>], set: &ContainerSet, cache_bytes: u64) -> u64 {
    let bytes_of = |key: SegmentKey| {
        let reader = set.readers().get(key.container as usize);
        let segment = reader.and_then(|reader| reader.index().segments().get(key.segment as usize));
        segment.map_or(0, |segment| segment.raw_bytes.0)
    };
    let (mut last_use, mut by_use): (HashMap<SegmentKey, u64>, BTreeMap<u64, SegmentKey>) = Default::default();
    let (mut kept_bytes, mut loaded_bytes, mut now) = (0u64, 0u64, 0u64);
    for key in turns.iter().flat_map(|(steps, check)| check.uses_of_steps(set, steps.clone())) {
        now += 1;
        match last_use.insert(key, now) {
            Some(before) => drop(by_use.remove(&before)),
            None => {
                loaded_bytes += bytes_of(key);
                kept_bytes += bytes_of(key);
            }
        }
        by_use.insert(now, key);
        while kept_bytes > cache_bytes
            && by_use.len() > 1
            && let Some((_, oldest)) = by_use.pop_first()
        {
            last_use.remove(&oldest);
            kept_bytes -= bytes_of(oldest);
        }
    }
    loaded_bytes
}

/// Verifies one file: the digests of its variables, and the digest of the file as a restart would write it. Never
/// holds a whole variable or file in memory.
struct FileCheck<'a> {
    file: u32,
    header: &'a FileHeader,
    group: Option<GroupId>,
    /// The extents of all variables in the order of the file.
    parts: Vec<FilePart<'a>>,
    steps: Vec<Step>,
    progress: Mutex<Progress>,
}

/// A run of bytes of a file.
struct FilePart<'a> {
    extent: &'a Extent,
    variable: u32,
    /// Offset in the raw bytes of the variable.
    raw_offset: u64,
}

/// A step compares the digest of `variable`, and then hashes `parts` of the file. The first of these parts belongs to
/// the same variable, so that its segments are used again.
struct Step {
    variable: Option<u32>,
    parts: Range<usize>,
}

#[derive(Default)]
struct Progress {
    /// Number of finished steps.
    done: usize,
    hasher: Gathered,
    report: VerifyReport,
}

impl<'a> FileCheck<'a> {
    fn new(file: u32, header: &'a FileHeader, group: Option<GroupId>) -> Self {
        let mut parts: Vec<FilePart<'a>> = Vec::new();
        for (variable, of) in (0..).zip(&header.variables) {
            let mut raw_offset = 0;
            for extent in &of.extents {
                parts.push(FilePart { extent, variable, raw_offset });
                raw_offset += extent.raw_bytes;
            }
        }
        parts.sort_by_key(|part| (part.extent.offset, part.extent.stored_bytes));
        let mut is_new = vec![true; header.variables.len()];
        let mut steps: Vec<Step> = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            match steps.last_mut() {
                Some(step) if !is_new[part.variable as usize] => step.parts.end = n + 1,
                _ => steps.push(Step { variable: Some(part.variable), parts: n..n + 1 }),
            }
            is_new[part.variable as usize] = false;
        }
        let without_parts = (0..).zip(is_new).filter_map(|(variable, is_new)| is_new.then_some(variable));
        let end = parts.len();
        steps.extend(without_parts.map(|variable| Step { variable: Some(variable), parts: end..end }));
        if steps.is_empty() {
            steps.push(Step { variable: None, parts: 0..0 });
        }
        Self { file, header, group, parts, steps, progress: Mutex::default() }
    }

    /// The segments that these steps use, in the order of their uses.
    fn uses_of_steps(&self, set: &ContainerSet, steps: Range<usize>) -> impl Iterator<Item = SegmentKey> {
        self.steps[steps].iter().flat_map(|step| self.uses(set, step))
    }

    /// The segments that a step uses, in the order of their uses.
    fn uses(&self, set: &ContainerSet, step: &Step) -> Vec<SegmentKey> {
        let mut uses = Vec::new();
        if let Some(variable) = step.variable {
            let bytes = self.header.variables[variable as usize].raw_bytes.0;
            segments_of(set, self.at(variable), 0, bytes, |key| uses.push(key));
        }
        uses.extend(self.uses_of_parts(set, step));
        uses.dedup();
        uses
    }

    fn uses_of_parts(&self, set: &ContainerSet, step: &Step) -> Vec<SegmentKey> {
        let mut uses = Vec::new();
        for part in &self.parts[step.parts.clone()] {
            let bytes = part.extent.raw_bytes;
            segments_of(set, self.at(part.variable), part.raw_offset, bytes, |key| uses.push(key));
        }
        uses.dedup();
        uses
    }

    fn at(&self, variable: u32) -> VariableRef {
        VariableRef { file: self.file, variable }
    }

    /// Runs all unfinished steps before step `end`. If another thread runs steps of the same file, this thread first
    /// waits for that thread. Returns the number of new problems.
    fn run_to(&self, end: usize, reader: &mut VariableReader, progress: &dyn Fn(RawBytes)) -> usize {
        let mut of_file = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let before = of_file.report.problems.len();
        while of_file.done < end && of_file.report.problems.len() < PROBLEMS_MAX {
            self.run(&self.steps[of_file.done], &mut of_file, reader, progress);
            reader.rest();
            of_file.done += 1;
            if of_file.done == self.steps.len() {
                self.finish(&mut of_file, reader);
            }
        }
        of_file.report.problems.len() - before
    }

    fn run(&self, step: &Step, of_file: &mut Progress, reader: &mut VariableReader, progress: &dyn Fn(RawBytes)) {
        if let Some(variable) = step.variable {
            let header = &self.header.variables[variable as usize];
            match verify_variable(reader, self.at(variable), header) {
                Ok(()) => {
                    of_file.report.variables += 1;
                    of_file.report.raw_bytes += header.raw_bytes;
                    progress(header.raw_bytes);
                }
                Err(error) => of_file.report.problem(self.group, &error),
            }
        }
        // If a variable has a problem, the digest of the file cannot agree.
        if !of_file.report.is_good() {
            let unused = self.uses_of_parts(reader.set(), step);
            return reader.segments().withdraw(unused.into_iter());
        }
        if let Err(error) = self.hash_parts(&self.parts[step.parts.clone()], &mut of_file.hasher, reader) {
            of_file.report.problem(self.group, &error);
        }
    }

    /// Hashes these parts of the file as a restart would write them.
    fn hash_parts(
        &self,
        parts: &[FilePart<'_>],
        hasher: &mut Gathered,
        reader: &mut VariableReader,
    ) -> Result<(), ReadError> {
        let mut buffer = Vec::new();
        for FilePart { extent, variable, raw_offset } in parts {
            let at = self.at(*variable);
            let filters = &self.header.variables[*variable as usize].filters;
            if filters.is_empty() {
                hash_raw(reader, at, *raw_offset, extent.raw_bytes, hasher, &mut buffer)?;
                continue;
            }
            // A filtered chunk has at most 64 MiB, as was checked when the index was read.
            let mut raw = vec![0; extent.raw_bytes as usize];
            reader.read(at, *raw_offset, &mut raw)?;
            let path = &self.header.path;
            let refuse = |what: String| own_error(reader.set(), "a filtered chunk", format!("{path}: {what}"));
            let stored = put_on(filters, &raw).map_err(|error| refuse(error.to_string()))?;
            if stored.len() as u64 != extent.stored_bytes {
                return Err(refuse(format!("{} bytes after its filters, not {}", stored.len(), extent.stored_bytes)));
            }
            hasher.push(&stored);
        }
        Ok(())
    }

    /// Compares the digest of the file.
    fn finish(&self, of_file: &mut Progress, reader: &VariableReader) {
        let hasher = std::mem::take(&mut of_file.hasher);
        if !of_file.report.is_good() {
            return; // the problems of the variables are already reported
        }
        let (found, recorded) = (hasher.finish(), self.header.digest);
        if found == recorded {
            of_file.report.files += u64::from(self.header.kind.is_file());
            return;
        }
        let (path, what) = (reader.set().readers()[0].path().into(), format!("file {}", self.header.path));
        of_file.report.problem(self.group, &ReadError::Digest { path, what, found, recorded });
    }
}

fn verify_variable(reader: &mut VariableReader, at: VariableRef, header: &VariableHeader) -> Result<(), ReadError> {
    let (mut hasher, mut buffer) = (Gathered::default(), Vec::new());
    hash_raw(reader, at, 0, header.raw_bytes.0, &mut hasher, &mut buffer)?;
    let found = hasher.finish();
    if header.raw_bytes.0 < DIGEST_BYTES_MIN || found == header.digest {
        return Ok(());
    }
    let set = reader.set();
    let file = set.index().files().get(at.file as usize).map(|file| file.path.to_string()).unwrap_or_default();
    let (path, what) = (set.readers()[0].path().into(), format!("{file}: variable {:?}", header.path));
    Err(ReadError::Digest { path, what, found, recorded: header.digest })
}

/// Hashes `bytes` raw bytes of a variable, starting at `offset`. `buffer` is overwritten.
fn hash_raw(
    reader: &mut VariableReader,
    at: VariableRef,
    offset: u64,
    bytes: u64,
    hasher: &mut Gathered,
    buffer: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let most = bytes.min(STEP_BYTES) as usize;
    if buffer.len() < most {
        buffer.resize(most, 0);
    }
    let mut done = 0;
    while done < bytes {
        let step = (bytes - done).min(STEP_BYTES);
        let part = &mut buffer[..step as usize];
        reader.read(at, offset + done, part)?;
        hasher.push(part);
        done += step;
    }
    Ok(())
}

fn own_error(set: &ContainerSet, part: &'static str, what: String) -> ReadError {
    ReadError::Invalid { path: set.readers()[0].path().into(), part, what }
}
