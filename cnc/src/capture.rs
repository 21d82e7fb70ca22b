//! Describes one file of a checkpoint: splits the file into a skeleton and variables, and computes the digest of each
//! part.
//!
//! The file is opened read-only and is never locked. One pass reads the file from front to back through one bounded
//! buffer. The pass computes the digest of the file and of the variables whose extents are in file order. Other
//! variables, and chunks with filters, are read a second time. The filters of a chunk are removed only if applying
//! them again reproduces the stored bytes. A file whose structure cannot be read becomes one opaque variable. A
//! capture fails only if the file cannot be read, or if the file changes during the capture.

use crate::fingerprint::Fingerprint;
use crate::h5::{FileMap, MapInput, MapSource, MappedVariable};
use crate::holes::Sparse;
use mcrengine::codec::{Profile, Scratch, encode_best};
use mcrengine::container::{DIGEST_BYTES_MIN, NO_DIGEST};
use mcrengine::filter;
use mcrengine::gathered::Gathered;
use mcrengine::header::{ElementType, Extent, FileHeader, Filter, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, Rank};
use mcrengine::plan::Scheme;
use mcrengine::units::RawBytes;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tracing::debug;

mod image;
mod verdicts;
pub use image::Image;
pub use verdicts::Verdicts;

/// How files are split into variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Each file is one opaque variable. The Agnostic schemes need this mode.
    Whole,
    /// HDF5 files are split into skeleton and variables, and filters are removed from chunks.
    Apart,
    /// As [`CaptureMode::Apart`], but filters are removed only from variables that then compress much better. This
    /// mode is for fast profiles: checking that the filters can be applied again means to deflate, and that takes
    /// longer than the whole compression by a fast codec.
    ApartInHaste,
}

impl CaptureMode {
    /// The mode for a scheme and a profile.
    pub fn of(scheme: Scheme, profile: &Profile) -> Self {
        Self::wanted(scheme.takes_files_apart(), profile.leaves_filters())
    }

    /// The mode for the two flags that an aggregator sends.
    pub fn wanted(take_apart: bool, in_haste: bool) -> Self {
        match (take_apart, in_haste) {
            (true, true) => Self::ApartInHaste,
            (true, false) => Self::Apart,
            (false, _) => Self::Whole,
        }
    }
}

/// A file that was read completely and did not change meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFile {
    /// The description of the file; [`FileHeader::check`] has passed.
    pub header: FileHeader,
    /// Fingerprint of the content that was described.
    pub fingerprint: Fingerprint,
}

/// Why a file could not be captured, or why its bytes could not be read later.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file does not exist any more.
    #[error("{path}: the file does not exist any more", path = .path.display())]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The path is a directory, a device, a pipe or a symbolic link.
    #[error("{path}: the path is not a regular file", path = .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file was written during the capture or after it.
    #[error("{path}: the file changed while it was read", path = .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked for bytes that the header does not have.
    #[error("{path}: variable {variable} does not have {bytes} raw bytes at offset {offset}", path = .path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// First raw byte asked for.
        offset: u64,
        /// Raw bytes asked for.
        bytes: u64,
    },
    /// The operating system reported an error.
    #[error("{path}: {what}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl CaptureError {
    /// Whether a later capture of the same file may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Vanished { .. } | Self::Changed { .. } => true,
            Self::NotAFile { .. } | Self::OutOfRange { .. } | Self::Io { .. } => false,
        }
    }
}

/// Number of bytes that are read at a time.
const BUFFER_BYTES: u64 = 1 << 20;
/// Maximum number of variables whose digests are computed at the same time during the pass over the file. Further
/// variables are read a second time.
const HASHERS_MAX: usize = 64;
/// A chunk fails if applying its filters again does not reproduce the stored bytes, probably because another zlib
/// wrote the chunk. After this number of failed chunks no more chunks of a variable are tried, unless more chunks
/// have succeeded than failed. Each attempt takes the time of compressing the chunk.
const FAILED_CHUNKS_MAX: u32 = 2;
/// After this number of consecutive variables without a successful chunk, no more variables with the same filters are
/// tried in this file.
const FAILED_VARIABLES_MAX: u32 = 2;

/// Reads a file below `root` and describes it.
pub fn capture(
    root: &Path,
    path: &FilePath,
    rank: Rank,
    mode: CaptureMode,
    maps: &dyn MapSource,
) -> Result<CapturedFile, CaptureError> {
    capture_keeping(root, path, rank, (mode, &Verdicts::default()), maps, &mut |_| false).map(|(file, _)| file)
}

/// As [`capture`], but uses the verdicts from other files, and can also return the bytes of a short file. `keep` gets
/// a number of bytes and decides whether they stay in memory. `keep` is called first for the bytes of the file, and
/// then for the raw bytes of each variable whose filters are removed.
///
/// If the bytes are kept, variables shorter than [`DIGEST_BYTES_MIN`] get [`NO_DIGEST`], as in a container's index.
/// The bytes of such variables are never read a second time, so they need no digest. Thousands of short digests would
/// take longer than all long digests together.
pub fn capture_keeping(
    root: &Path,
    path: &FilePath,
    rank: Rank,
    (mode, verdicts): (CaptureMode, &Verdicts),
    maps: &dyn MapSource,
    keep: &mut dyn FnMut(u64) -> bool,
) -> Result<(CapturedFile, Option<Image>), CaptureError> {
    let name = root.join(path.as_path());
    let file = open(&name)?;
    let metadata = rested(&file, &name)?;
    let fingerprint = Fingerprint::of(&metadata);
    let mut input = Input::new(&file, &metadata, keep).map_err(|e| changed_if_short(e, &name))?;
    let map = match mode {
        CaptureMode::Whole => None,
        CaptureMode::Apart | CaptureMode::ApartInHaste => {
            let whole = input.whole.as_deref();
            maps.map(&MapInput { path: &name, file: &file, bytes: fingerprint.bytes, whole })
                .and_then(|map| map.check(fingerprint.bytes).map(|()| map))
                // A file without a map becomes one opaque variable, whatever the error was.
                .inspect_err(|error| debug!(file = %name.display(), %error, "described a file as one opaque variable"))
                .ok()
        }
    };
    let (digest, variables) = match map {
        Some(map) => taken_apart(&mut input, map, (mode, verdicts)),
        None => input.digest().map(|digest| (digest, vec![whole(digest, fingerprint.bytes)])),
    }
    .map_err(|e| changed_if_short(e, &name))?;
    if Fingerprint::of(&self::metadata(&file, &name)?) != fingerprint {
        return Err(CaptureError::Changed { path: name });
    }
    let mut header = FileHeader {
        path: path.clone(),
        rank,
        bytes: fingerprint.bytes,
        kind: Default::default(),
        mode: metadata.mode() & 0o7777,
        modified_ns: fingerprint.modified_ns,
        digest,
        variables,
    };
    let mut chunks = std::mem::take(&mut input.chunks);
    if header.check().is_err() {
        header.variables = vec![whole(digest, fingerprint.bytes)];
        chunks.clear();
    }
    let image = input.whole.take_if(|_| input.keep.is_some()).map(|bytes| Image { bytes, chunks });
    Ok((CapturedFile { header, fingerprint }, image))
}

/// Opens a file for reading. A symbolic link in the last component of the path is not followed. Opening a pipe does
/// not wait for its writer.
pub(crate) fn open(name: &Path) -> Result<File, CaptureError> {
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(name).map_err(|source| {
        let path = name.to_owned();
        match source.raw_os_error().map(nix::errno::Errno::from_raw) {
            Some(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR | nix::errno::Errno::ESTALE) => {
                CaptureError::Vanished { path }
            }
            Some(nix::errno::Errno::ELOOP | nix::errno::Errno::ENXIO) => CaptureError::NotAFile { path },
            _ => CaptureError::Io { path, what: "opening the file for reading", source },
        }
    })
}

pub(crate) fn metadata(file: &File, name: &Path) -> Result<Metadata, CaptureError> {
    file.metadata().map_err(|source| CaptureError::Io { path: name.to_owned(), what: "reading its metadata", source })
}

/// Minimum age of a file's last change, if the file system stores fractions of a second. Such times advance in steps
/// of 1 to 10 ms.
const FINE_CLOCK_REST: Duration = Duration::from_millis(20);
/// Minimum age of a file's last change, if the file system stores whole seconds. Some file systems store only even
/// seconds.
const COARSE_CLOCK_REST: Duration = Duration::from_secs(2);
/// Maximum number of attempts to find a file unchanged. After that the file counts as still being written.
const ATTEMPTS_MAX: u32 = 5;

/// Returns the metadata of a regular file once its last change is old enough that another change would get a
/// different time. Without this wait, a write directly after the first look could not be detected.
fn rested(file: &File, name: &Path) -> Result<Metadata, CaptureError> {
    let mut waited_for = None;
    for _ in 0..ATTEMPTS_MAX {
        let metadata = metadata(file, name)?;
        if !metadata.is_file() {
            return Err(CaptureError::NotAFile { path: name.to_owned() });
        }
        let fingerprint = Fingerprint::of(&metadata);
        // The file has not changed during the wait, so it is at rest, even if the clocks of the file server and of
        // this node differ.
        if waited_for == Some(fingerprint) {
            return Ok(metadata);
        }
        let wait = unrested(&fingerprint, now_ns());
        if wait.is_zero() {
            return Ok(metadata);
        }
        std::thread::sleep(wait);
        waited_for = Some(fingerprint);
    }
    Err(CaptureError::Changed { path: name.to_owned() })
}

/// How much longer a file with these times must stay unchanged before it is read.
fn unrested(fingerprint: &Fingerprint, now_ns: i64) -> Duration {
    let whole = |ns: i64| ns % 1_000_000_000 == 0;
    let rest = match whole(fingerprint.changed_ns) && whole(fingerprint.modified_ns) {
        true => COARSE_CLOCK_REST,
        false => FINE_CLOCK_REST,
    };
    let age_ns = now_ns.saturating_sub(fingerprint.changed_ns).max(0);
    rest.saturating_sub(Duration::from_nanos(age_ns.unsigned_abs()))
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Converts a read error. A file that ends before its recorded length was truncated during the read.
pub(crate) fn changed_if_short(source: io::Error, name: &Path) -> CaptureError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => CaptureError::Changed { path: name.to_owned() },
        _ => CaptureError::Io { path: name.to_owned(), what: "reading the file", source },
    }
}

/// The only variable of a file that is not split. The digest of this variable is the digest of the file.
pub(crate) fn whole(digest: Digest, bytes: u64) -> VariableHeader {
    let all = Extent { offset: 0, stored_bytes: bytes, raw_bytes: bytes };
    VariableHeader {
        role: Role::WholeFile,
        path: "".into(),
        element: ElementType::Bytes,
        shape: Shape([bytes].into()),
        chunk: Default::default(),
        raw_bytes: RawBytes(bytes),
        digest,
        filters: [].into(),
        extents: if bytes == 0 { [].into() } else { [all].into() },
    }
}

/// Returns the digest of the file, and its variables with their digests: first the skeleton, then the arrays by path.
fn taken_apart(
    input: &mut Input<'_>,
    map: FileMap,
    (mode, verdicts): (CaptureMode, &Verdicts),
) -> io::Result<(Digest, Vec<VariableHeader>)> {
    let skeleton = map.skeleton(input.bytes);
    let skeleton_bytes = skeleton.iter().map(|e| e.raw_bytes).sum();
    let mut variables = Vec::with_capacity(map.variables.len() + 1);
    variables.push(VariableHeader {
        role: Role::Skeleton,
        path: "".into(),
        element: ElementType::Bytes,
        shape: Shape([skeleton_bytes].into()),
        chunk: Default::default(),
        raw_bytes: RawBytes(skeleton_bytes),
        digest: PENDING,
        filters: [].into(),
        extents: skeleton,
    });
    // For each list of filters: number of consecutive variables without a successful chunk.
    let mut failed: HashMap<Box<[Filter]>, u32> = HashMap::new();
    let mut scratch = Scratch::default();
    for mapped in map.variables {
        if mapped.filters.is_empty() {
            variables.push(unfiltered(mapped));
            continue;
        }
        let failed = failed.entry(mapped.filters.clone()).or_default();
        let mode = if *failed < FAILED_VARIABLES_MAX { mode } else { CaptureMode::Whole };
        match filtered(input, mapped, (mode, verdicts), &mut variables, &mut scratch)? {
            true => *failed = 0,
            false => *failed += 1,
        }
    }
    let digest = digests(input, &mut variables)?;
    Ok((digest, variables))
}

/// Placeholder in a header until the digest is known.
const PENDING: Digest = NO_DIGEST;

fn unfiltered(mapped: MappedVariable) -> VariableHeader {
    let raw_bytes = RawBytes(mapped.extents.iter().map(|e| e.raw_bytes).sum());
    VariableHeader {
        role: mapped.role,
        path: mapped.path,
        element: mapped.element,
        shape: mapped.shape,
        chunk: mapped.chunk,
        raw_bytes,
        digest: PENDING,
        filters: [].into(),
        extents: mapped.extents.into(),
    }
}

/// In mode `ApartInHaste` filters are removed only if the sample of unfiltered chunks, compressed by a fast codec,
/// takes less than this percentage of the bytes of the stored chunks.
const UNFILTERED_MAX_PERCENT: f64 = 60.0;
/// Length of the sample of unfiltered chunks, in raw bytes.
const SAMPLE_BYTES: usize = 64 << 10;

/// Returns the first chunks without their filters. The list ends at the sample size, or before the first chunk whose
/// filters cannot be removed.
fn first_chunks(input: &mut Input<'_>, mapped: &MappedVariable) -> io::Result<Vec<Vec<u8>>> {
    let (mut first, mut bytes) = (Vec::new(), 0);
    for extent in &mapped.extents {
        if bytes >= SAMPLE_BYTES {
            break;
        }
        let chunk = input.get(extent.offset, extent.stored_bytes)?;
        let Some(raw) = without_filters(mapped, extent, chunk) else { break };
        bytes += raw.len();
        first.push(raw);
    }
    Ok(first)
}

fn without_filters(mapped: &MappedVariable, extent: &Extent, chunk: &[u8]) -> Option<Vec<u8>> {
    let raw_bytes = usize::try_from(extent.raw_bytes).ok()?;
    filter::take_off(&mapped.filters, chunk, raw_bytes).ok()
}

/// Whether the first chunks compress much better without their filters.
fn are_worth_it(mapped: &MappedVariable, first: &[Vec<u8>], scratch: &mut Scratch) -> bool {
    let width = (mapped.element.width() as usize).max(1);
    // Only the beginning of a long chunk is compressed.
    let most = (SAMPLE_BYTES / width).max(1) * width;
    let mut part = Vec::with_capacity(most);
    for raw in first {
        part.extend_from_slice(&raw[..raw.len().min(most - part.len())]);
    }
    let raw_bytes: usize = first.iter().map(Vec::len).sum();
    let stored_bytes: u64 = mapped.extents.iter().take(first.len()).map(|extent| extent.stored_bytes).sum();
    let coded = encode_best(&Profile::Fast, &part, &mapped.element, &[], false, scratch);
    let percent = |coded: usize| coded as f64 / part.len() as f64 / (stored_bytes as f64 / raw_bytes as f64) * 100.0;
    coded.is_ok_and(|(_, coded)| percent(coded.len()) < UNFILTERED_MAX_PERCENT)
}

/// Splits a variable with filters. Chunks whose filters can be removed and applied again become raw bytes of an
/// array. The other chunks are described as they are stored. Mode `Whole` tries no chunk. Mode `ApartInHaste` tries
/// chunks only if the sample compresses much better without filters. Returns whether any chunk succeeded.
fn filtered(
    input: &mut Input<'_>,
    mapped: MappedVariable,
    (mode, verdicts): (CaptureMode, &Verdicts),
    variables: &mut Vec<VariableHeader>,
    scratch: &mut Scratch,
) -> io::Result<bool> {
    let (mut array, mut stored) = (Part::default(), Part::default());
    let mut first = Vec::new();
    let is_tried = match mode {
        CaptureMode::Whole => false,
        CaptureMode::Apart => true,
        CaptureMode::ApartInHaste => {
            let raw_bytes = mapped.extents.iter().map(|extent| extent.raw_bytes).sum();
            match verdicts.are_worth_it(&mapped, raw_bytes) {
                Some(known) => known,
                None => {
                    first = first_chunks(input, &mapped)?;
                    let found = !first.is_empty() && are_worth_it(&mapped, &first, scratch);
                    if !first.is_empty() {
                        verdicts.note_worth(&mapped, raw_bytes, found);
                    }
                    found
                }
            }
        }
    };
    let mut first = first.into_iter();
    let raw_bytes = mapped.extents.iter().map(|extent| extent.raw_bytes).sum();
    let mut chunks = (is_tried && input.may_keep(raw_bytes)).then(Vec::new);
    let (mut came_back, mut failed) = (0u32, 0u32);
    for extent in &mapped.extents {
        let chunk = input.get(extent.offset, extent.stored_bytes)?;
        let is_tried = is_tried && (failed < FAILED_CHUNKS_MAX || failed < came_back);
        let raw = is_tried.then(|| first.next().or_else(|| without_filters(&mapped, extent, chunk))).flatten();
        match raw.filter(|raw| comes_back(&mapped.filters, raw, chunk)) {
            Some(raw) => {
                array.push(*extent, &raw);
                if let Some(chunks) = &mut chunks {
                    chunks.push(raw);
                }
                came_back = came_back.saturating_add(1);
            }
            None => {
                stored.push(Extent { raw_bytes: extent.stored_bytes, ..*extent }, chunk);
                failed = failed.saturating_add(1);
            }
        }
    }
    let whole = stored.extents.is_empty();
    if !array.extents.is_empty() {
        input.chunks.extend(chunks.map(|chunks| (variables.len(), chunks)));
        variables.push(VariableHeader {
            role: Role::Array,
            path: mapped.path.clone(),
            element: mapped.element,
            shape: mapped.shape,
            chunk: mapped.chunk,
            raw_bytes: RawBytes(array.raw_bytes),
            digest: array.hasher.finalize().into(),
            filters: mapped.filters,
            extents: array.extents.into(),
        });
    }
    if !whole {
        variables.push(VariableHeader {
            role: Role::StoredChunks,
            path: mapped.path,
            element: ElementType::Bytes,
            chunk: Default::default(),
            shape: Shape([stored.raw_bytes].into()),
            raw_bytes: RawBytes(stored.raw_bytes),
            digest: stored.hasher.finalize().into(),
            filters: [].into(),
            extents: stored.extents.into(),
        });
    }
    Ok(came_back > 0)
}

/// Whether applying the filters to the raw bytes reproduces the stored bytes of a chunk.
fn comes_back(filters: &[Filter], raw: &[u8], stored: &[u8]) -> bool {
    filter::put_on(filters, raw).is_ok_and(|again| again == stored)
}

/// Some chunks of a dataset and the digest of their raw bytes.
#[derive(Default)]
struct Part {
    extents: Vec<Extent>,
    raw_bytes: u64,
    hasher: blake3::Hasher,
}

impl Part {
    fn push(&mut self, extent: Extent, raw: &[u8]) {
        self.extents.push(extent);
        self.raw_bytes += extent.raw_bytes;
        self.hasher.update(raw);
    }
}

/// Computes all pending digests of variables. Returns the digest of the file.
fn digests(input: &mut Input<'_>, variables: &mut [VariableHeader]) -> io::Result<Digest> {
    let least = if input.keep.is_some() { DIGEST_BYTES_MIN } else { 0 };
    let is_pending = |v: &VariableHeader| v.digest == PENDING && v.raw_bytes.0 >= least;
    let pending: Vec<usize> = (0..variables.len()).filter(|&v| is_pending(&variables[v])).collect();
    if input.whole.is_some() {
        for v in pending {
            variables[v].digest = again(input, &variables[v].extents)?;
        }
        return input.digest();
    }
    // The extents of the variables that can be hashed in one pass over the file.
    let in_order = |v: &VariableHeader| v.extents.is_sorted_by_key(|e| e.offset);
    let mut runs: Vec<(Extent, usize)> = (pending.iter().filter(|&&v| in_order(&variables[v])))
        .flat_map(|&v| variables[v].extents.iter().map(move |e| (*e, v)))
        .collect();
    runs.sort_unstable_by_key(|(e, _)| e.offset);
    let mut last: HashMap<usize, u64> = HashMap::new();
    let mut open: HashMap<usize, Gathered> = HashMap::new();
    for (extent, v) in &runs {
        last.insert(*v, extent.offset);
    }
    let mut file = blake3::Hasher::new();
    let mut next = 0;
    let mut at = 0;
    while at < input.bytes {
        let buffer = input.get(at, BUFFER_BYTES.min(input.bytes - at))?;
        let end = at + buffer.len() as u64;
        file.update(buffer);
        while let Some((extent, v)) = runs.get(next).filter(|(e, _)| e.offset < end) {
            let extent_end = extent.offset + extent.stored_bytes;
            let slice = &buffer[(extent.offset.max(at) - at) as usize..(extent_end.min(end) - at) as usize];
            let starts = variables[*v].extents.first().is_some_and(|first| first.offset == extent.offset);
            if starts && !open.contains_key(v) && open.len() < HASHERS_MAX {
                open.insert(*v, Gathered::default());
            }
            if let Some(hasher) = open.get_mut(v) {
                hasher.push(slice);
            }
            if extent_end > end {
                break;
            }
            if last.get(v) == Some(&extent.offset)
                && let Some(hasher) = open.remove(v)
            {
                variables[*v].digest = hasher.finish();
            }
            next += 1;
        }
        at = end;
    }
    for v in pending {
        if variables[v].digest == PENDING {
            variables[v].digest = again(input, &variables[v].extents)?;
        }
    }
    Ok(file.finalize().into())
}

/// The digest of a variable without filters. Reads its extents in the order of its raw bytes.
fn again(input: &mut Input<'_>, extents: &[Extent]) -> io::Result<Digest> {
    if let [one] = extents
        && one.stored_bytes <= BUFFER_BYTES
    {
        return Ok(Digest::of(input.get(one.offset, one.stored_bytes)?));
    }
    let mut hasher = Gathered::roomy();
    for extent in extents {
        let mut done = 0;
        while done < extent.stored_bytes {
            let n = BUFFER_BYTES.min(extent.stored_bytes - done);
            hasher.push(input.get(extent.offset + done, n)?);
            done += n;
        }
    }
    Ok(hasher.finish())
}

/// The bytes of a file: in memory if the file is short, otherwise read into one buffer on demand.
struct Input<'a> {
    file: Sparse<'a>,
    bytes: u64,
    whole: Option<Vec<u8>>,
    buffer: Vec<u8>,
    /// `Some` if the caller keeps the bytes of the file. The function decides whether further bytes are kept too.
    keep: Option<&'a mut dyn FnMut(u64) -> bool>,
    /// [`Image::chunks`].
    chunks: HashMap<usize, Vec<Vec<u8>>>,
}

/// Files up to this length are read once and kept in memory while they are described.
const IN_MEMORY_MAX_BYTES: u64 = 4 << 20;

thread_local! {
    /// The buffer of the last short file. The next short file reuses it, because the first access to new pages takes
    /// the same time as reading into them.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        SPARE.set(self.whole.take().unwrap_or_default());
    }
}

impl<'a> Input<'a> {
    /// Reads a short file into memory. The file must have been opened just before, so that its read position is 0.
    fn new(file: &'a File, metadata: &Metadata, keep: &'a mut dyn FnMut(u64) -> bool) -> io::Result<Self> {
        let bytes = metadata.len();
        let mut kept = None;
        let whole = match usize::try_from(bytes) {
            Ok(len) if bytes <= IN_MEMORY_MAX_BYTES => {
                kept = keep(bytes).then_some(keep);
                let mut whole = if kept.is_some() { Vec::new() } else { SPARE.take() };
                // `read_exact_at` would need initialised memory, so `read_to_end` is used.
                whole.clear();
                whole.reserve_exact(len);
                if file.take(bytes).read_to_end(&mut whole)? != len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Some(whole)
            }
            _ => None,
        };
        let file = Sparse::of(file, metadata);
        Ok(Self { file, bytes, whole, buffer: Vec::new(), keep: kept, chunks: HashMap::new() })
    }

    /// Whether the caller wants to keep this number of bytes in addition to the bytes of the file.
    fn may_keep(&mut self, bytes: u64) -> bool {
        self.keep.as_mut().is_some_and(|keep| keep(bytes))
    }

    /// Returns bytes of the file. The range must lie within the file, and is at most one chunk of
    /// [`mcrengine::header::FILTERED_CHUNK_MAX`] bytes.
    fn get(&mut self, offset: u64, bytes: u64) -> io::Result<&[u8]> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if let Some(whole) = &self.whole {
            let at = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            return at
                .checked_add(len)
                .and_then(|end| whole.get(at..end))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
        }
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        let buffer = &mut self.buffer[..len];
        self.file.read_exact_at(buffer, offset)?;
        Ok(buffer)
    }

    /// The BLAKE3 digest of the whole file.
    fn digest(&mut self) -> io::Result<Digest> {
        let all = [Extent { offset: 0, stored_bytes: self.bytes, raw_bytes: self.bytes }];
        match &self.whole {
            Some(whole) => Ok(Digest::of(whole)),
            None => again(self, &all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_rests_for_a_tick_of_the_clock_that_its_times_seem_to_come_from() {
        let after = |changed_ns: i64, modified_ns: i64, age_ns: i64| {
            let is = Fingerprint { device: 1, inode: 2, bytes: 3, modified_ns, changed_ns };
            unrested(&is, changed_ns + age_ns).as_nanos()
        };
        let (fine, whole) = (1_700_000_000_123_456_789, 1_700_000_000_000_000_000);
        assert_eq!(after(fine, fine, 0), 20_000_000);
        assert_eq!(after(fine, fine, 5_000_000), 15_000_000);
        assert_eq!(after(fine, fine, 20_000_000), 0);
        assert_eq!(after(fine, whole, 20_000_000), 0, "an application may set a modification time in whole seconds");
        assert_eq!(after(whole, whole, 500_000_000), 1_500_000_000);
        assert_eq!(after(fine, fine, -3_600_000_000_000), 20_000_000, "the clock of the file server is ahead");
    }

    #[test]
    fn a_file_whose_bytes_are_kept_is_the_same_but_for_the_digests_of_short_variables() {
        /// A map with one variable of 4095 bytes and one variable of 4096 bytes.
        struct Two;
        impl MapSource for Two {
            fn map(&self, _: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let variable = |path: &str, offset, bytes| MappedVariable {
                    role: Role::Array,
                    path: path.into(),
                    element: ElementType::Bytes,
                    shape: Shape([bytes].into()),
                    chunk: Default::default(),
                    filters: [].into(),
                    extents: vec![Extent { offset, stored_bytes: bytes, raw_bytes: bytes }],
                };
                Ok(FileMap { variables: vec![variable("/a", 10, 4095), variable("/b", 4200, 4096)] })
            }
        }
        let root = tempfile::tempdir().expect("a directory");
        let bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 3) as u8).collect();
        std::fs::write(root.path().join("f"), &bytes).expect("written");
        let path = FilePath::new(&b"f"[..]).expect("valid");
        let capture = |keep: bool| {
            let how = (CaptureMode::Apart, &Verdicts::default());
            capture_keeping(root.path(), &path, Rank(0), how, &Two, &mut |_| keep).expect("captured")
        };
        let ((all, none), (mut kept, image)) = (capture(false), capture(true));
        assert_eq!((none, image), (None, Some(Image { bytes: bytes.clone(), chunks: HashMap::new() })));
        assert_eq!(all.header.variables[1].digest, Digest::of(&bytes[10..4105]));
        let digests: Vec<_> = kept.header.variables.iter().map(|v| v.digest).collect();
        assert_eq!(digests, [NO_DIGEST, NO_DIGEST, Digest::of(&bytes[4200..8296])], "the skeleton is short too");
        for (variable, whole) in kept.header.variables.iter_mut().zip(&all.header.variables) {
            variable.digest = whole.digest;
        }
        assert_eq!(kept, all);
    }

    #[test]
    fn chunks_that_came_out_of_filters_are_kept_as_far_as_there_is_room_and_nothing_is_read_again() {
        /// A map with two deflated chunks of 6000 raw bytes each. The field is the stored length of the first chunk,
        /// which begins at offset 0.
        struct Two(u64);
        impl MapSource for Two {
            fn map(&self, input: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let extent = |offset, stored_bytes| Extent { offset, stored_bytes, raw_bytes: 6000 };
                let variable = MappedVariable {
                    role: Role::Array,
                    path: "/rho".into(),
                    element: ElementType::F64,
                    shape: Shape([1500].into()),
                    chunk: Shape([750].into()),
                    filters: [Filter::Deflate { level: 6 }].into(),
                    extents: vec![extent(0, self.0), extent(self.0, input.bytes - self.0)],
                };
                Ok(FileMap { variables: vec![variable] })
            }
        }
        let raw: Vec<u8> = (0..1500).flat_map(|i| (f64::from(i) * 0.1).to_le_bytes()).collect();
        let stored: Vec<Vec<u8>> = (raw.chunks(6000))
            .map(|chunk| filter::put_on(&[Filter::Deflate { level: 6 }], chunk).expect("deflated"))
            .collect();
        let (root, path) = (tempfile::tempdir().expect("a directory"), FilePath::new(&b"f"[..]).expect("valid"));
        let (bytes, map) = (stored.concat(), Two(stored[0].len() as u64));
        let room = bytes.len() as u64 + 12_000;
        for (room, chunks) in [(room, 2), (room - 1, 0)] {
            std::fs::write(root.path().join("f"), &bytes).expect("written");
            let mut left = room;
            let mut keep = |bytes| left.checked_sub(bytes).map(|rest| left = rest).is_some();
            let how = (CaptureMode::Apart, &Verdicts::default());
            let captured = capture_keeping(root.path(), &path, Rank(0), how, &map, &mut keep);
            let (CapturedFile { header, fingerprint }, image) = captured.expect("captured");
            let image = image.expect("there is room for the file");
            assert_eq!(image.chunks.values().map(Vec::len).sum::<usize>(), chunks, "with room for {room}");
            assert_eq!(header.variables.last().map(|array| array.raw_bytes.0), Some(12_000));
            std::fs::remove_file(root.path().join("f")).expect("removed");
            let array = header.variables.len() - 1;
            let descriptors = crate::source::Descriptors::new(1);
            let open = crate::source::OpenFile::new(root.path(), &header, fingerprint, &descriptors);
            let mut found = vec![0; 9000];
            open.with_image(Some(image.into())).read_raw(array, 1000, &mut found).expect("in memory");
            assert_eq!(found, raw[1000..10_000]);
        }
    }

    #[test]
    fn in_haste_the_first_rank_says_for_all_whether_filters_are_taken_off() {
        /// A file that consists of one deflated chunk.
        struct Deflated(&'static str, u64);
        impl MapSource for Deflated {
            fn map(&self, input: &MapInput<'_>) -> Result<FileMap, crate::h5::H5Error> {
                let Self(path, raw_bytes) = *self;
                let variable = MappedVariable {
                    role: Role::Array,
                    path: path.into(),
                    element: ElementType::F64,
                    shape: Shape([raw_bytes / 8].into()),
                    chunk: Shape([raw_bytes / 8].into()),
                    filters: [Filter::Deflate { level: 6 }].into(),
                    extents: vec![Extent { offset: 0, stored_bytes: input.bytes, raw_bytes }],
                };
                Ok(FileMap { variables: vec![variable] })
            }
        }
        let smooth = |n: usize| -> Vec<u8> { (0..n).flat_map(|i| (1e3 + i as f64).to_le_bytes()).collect() };
        let rough = |n: usize| -> Vec<u8> {
            let random = (0..n as u64).map(|i| i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
            random.flat_map(|x| x.wrapping_mul(x | 1).to_le_bytes()).collect()
        };
        let root = tempfile::tempdir().expect("a directory");
        let name = FilePath::new(&b"f"[..]).expect("valid");
        let is_taken_off = |path, raw: Vec<u8>, verdicts: &Verdicts| {
            let stored = filter::put_on(&[Filter::Deflate { level: 6 }], &raw).expect("deflated");
            std::fs::write(root.path().join("f"), &stored).expect("written");
            let (how, map) = ((CaptureMode::ApartInHaste, verdicts), Deflated(path, raw.len() as u64));
            let (file, _) = capture_keeping(root.path(), &name, Rank(0), how, &map, &mut |_| false).expect("captured");
            file.header.variables.iter().any(|variable| variable.role == Role::Array)
        };
        assert!(!is_taken_off("/rho", rough(2000), &Verdicts::default()), "rough data keeps its filters");
        let verdicts = Verdicts::default();
        assert!(is_taken_off("/rho", smooth(2000), &verdicts), "smooth data compresses much better without filters");
        assert!(is_taken_off("/rho", rough(2000), &verdicts), "the verdict of the rank before is reused");
        assert!(!is_taken_off("/e", rough(2000), &verdicts), "a dataset with another name has no verdict yet");
        assert!(!is_taken_off("/e", smooth(2000), &verdicts), "the verdict of the rank before is reused");
        assert!(!is_taken_off("/rho", rough(6000), &verdicts), "a verdict does not apply to a much longer dataset");
        let uses = (0..Verdicts::USES + 1).filter(|_| !is_taken_off("/e", smooth(2000), &verdicts)).count();
        assert_eq!(uses as u32, Verdicts::USES - 1, "after USES uses, the first of them above, it is sampled again");
    }
}
