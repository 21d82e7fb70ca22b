//! Verifies that a checkpoint can be restored: compares every checksum and digest, and reassembles every file in
//! memory.

use crate::classify::VariableRef;
use crate::codec::{SegmentMemory, threads_of_each};
use crate::container::{ContainerSet, DIGEST_BYTES_MIN, ReadError, VariableReader};
use crate::error_chain::error_chain;
use crate::filter::put_on;
use crate::gathered::Gathered;
use crate::header::{Extent, FileHeader, VariableHeader};
use crate::ids::{CheckpointId, Digest, GroupId, JobId};
use crate::manifest::{self, Manifest};
use crate::store::{Advice, Store};
use crate::units::{RawBytes, StoredBytes};
use serde::Serialize;
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
    /// Maximum bytes of decoded segments in the cache.
    pub cache_bytes: u64,
    /// Maximum number of files that are verified at the same time. If decoding `threads` segments at once would take
    /// more than `cache_bytes`, fewer files are verified at the same time.
    pub threads: usize,
}

/// Bytes of memory that decoding a segment takes for each raw byte. The measured values are 3 to 7. The largest value
/// was measured with 4-byte floats and the profile `max`. A codec that uses several threads takes one additional byte
/// for each raw byte.
const DECODING_BYTES_PER_RAW_BYTE: u64 = 8;
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
        self.problems.extend(part.problems);
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
            verify_group(store, &manifest, options, &mut report, progress)
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
) -> Result<(), ReadError> {
    let group = Some(manifest.group);
    let set = Arc::new(ContainerSet::open(store, &manifest.job, &manifest.checkpoint, manifest.group)?);
    let own = &set.readers()[0];
    report.segments += own.index().segments().len() as u64;
    report.stored_bytes += StoredBytes(own.bytes());
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
    let reader = VariableReader::new(Arc::clone(&set), options.cache_bytes);
    // The largest segment or chunk determines the memory of a thread. Segments of older containers, and chunks whose
    // filters are applied again, are included.
    let segments = set.readers().iter().flat_map(|reader| reader.index().segments()).map(|segment| segment.raw_bytes.0);
    let filtered = files.iter().flat_map(|file| &file.variables).filter(|variable| !variable.filters.is_empty());
    let chunks = filtered.flat_map(|variable| &variable.extents).map(|extent| extent.raw_bytes);
    let largest = segments.chain(chunks).max().unwrap_or(0);
    let fit = options.cache_bytes / (largest * DECODING_BYTES_PER_RAW_BYTE).max(1);
    let threads = options.threads.min(usize::try_from(fit).unwrap_or(usize::MAX)).clamp(1, files.len().max(1));
    // Neighbouring files share segments, so each thread takes the next file instead of a range of files.
    let (next, problems) = (AtomicUsize::new(0), AtomicUsize::new(report.problems.len()));
    let found: Mutex<Vec<(usize, VerifyReport)>> = Mutex::new(Vec::with_capacity(files.len()));
    let memory = SegmentMemory { bytes: options.cache_bytes, per_raw_byte: DECODING_BYTES_PER_RAW_BYTE };
    let of_each =
        threads_of_each(options.threads, memory, own.index().segments().iter().map(|segment| segment.raw_bytes));
    let work = || {
        let mut reader = reader.beside(of_each);
        while problems.load(Ordering::Relaxed) < PROBLEMS_MAX
            && let f = next.fetch_add(1, Ordering::Relaxed)
            && let Some(file) = files.get(f)
        {
            let of_file = verify_file(&mut reader, f as u32, file, manifest.group, progress);
            problems.fetch_add(of_file.problems.len(), Ordering::Relaxed);
            found.lock().unwrap_or_else(PoisonError::into_inner).push((f, of_file));
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(f, _)| *f);
    found.into_iter().for_each(|(_, of_file)| report.add(of_file));
    Ok(())
}

fn verify_file(
    reader: &mut VariableReader,
    f: u32,
    file: &FileHeader,
    group: GroupId,
    progress: &dyn Fn(RawBytes),
) -> VerifyReport {
    let (mut report, group) = (VerifyReport::default(), Some(group));
    for (v, header) in file.variables.iter().enumerate() {
        match verify_variable(reader, VariableRef { file: f, variable: v as u32 }, header) {
            Ok(()) => {
                report.variables += 1;
                report.raw_bytes += header.raw_bytes;
                progress(header.raw_bytes);
            }
            Err(error) => report.problem(group, &error),
        }
        if report.problems.len() >= PROBLEMS_MAX {
            break;
        }
    }
    if !report.problems.is_empty() {
        return report; // the problems of the variables are already reported
    }
    match file_digest(reader, f, file) {
        Ok(found) if found == file.digest => report.files += u64::from(file.kind.is_file()),
        Ok(found) => {
            let (path, what) = (reader.set().readers()[0].path().into(), format!("file {}", file.path));
            report.problem(group, &ReadError::Digest { path, what, found, recorded: file.digest });
        }
        Err(error) => report.problem(group, &error),
    }
    report
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

/// BLAKE3 of a file as a restart would write it. Never holds a whole variable or file in memory.
pub fn file_digest(reader: &mut VariableReader, file: u32, header: &FileHeader) -> Result<Digest, ReadError> {
    let mut parts: Vec<(&Extent, u32, u64)> = Vec::new();
    for (v, variable) in header.variables.iter().enumerate() {
        let mut raw_offset = 0;
        for extent in &variable.extents {
            parts.push((extent, v as u32, raw_offset));
            raw_offset += extent.raw_bytes;
        }
    }
    parts.sort_by_key(|(extent, ..)| (extent.offset, extent.stored_bytes));
    let (mut hasher, mut buffer) = (Gathered::default(), Vec::new());
    for (extent, variable, raw_offset) in parts {
        let at = VariableRef { file, variable };
        let filters = &header.variables[variable as usize].filters;
        if filters.is_empty() {
            hash_raw(reader, at, raw_offset, extent.raw_bytes, &mut hasher, &mut buffer)?;
            continue;
        }
        // A filtered chunk has at most 64 MiB, as was checked when the index was read.
        let mut raw = vec![0; extent.raw_bytes as usize];
        reader.read(at, raw_offset, &mut raw)?;
        let refuse = |what: String| own_error(reader.set(), "a filtered chunk", format!("{}: {what}", header.path));
        let stored = put_on(filters, &raw).map_err(|error| refuse(error.to_string()))?;
        if stored.len() as u64 != extent.stored_bytes {
            return Err(refuse(format!("{} bytes after its filters, not {}", stored.len(), extent.stored_bytes)));
        }
        hasher.push(&stored);
    }
    Ok(hasher.finish())
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
