//! Restores files. A file is written under a temporary name, its digest is compared with the digest of the
//! application's file, and then it is renamed to its final name.
//!
//! An incomplete file never has its final name, because the rename is the last step, after the comparison of the
//! digest. A short file is assembled in memory. A long file is written piece by piece, and read back for its digest.
//! The files of a checkpoint share a few descriptors (`directories.rs`) and get their final names together
//! (`publish.rs`). A restart removes the temporary files of killed restarts (`leftovers.rs`).
//!
//! A symbolic link below the target directory is followed only if it leads to a directory of the same owner, for
//! example to an output directory on another file system (`directories.rs`). A copy follows no such link: the link is
//! moved aside. A restart never creates a link that leads to such a directory. Therefore neither a hostile checkpoint
//! nor a prepared directory can redirect files to another place.

mod aside;
mod directories;
mod error;
mod existing;
mod journal;
mod later;
mod leftovers;
mod lock;
mod publish;
mod stale;
mod target;
mod verified;

pub use error::RestoreError;
pub use journal::{MovedBefore, Recovered, is_interrupted, recover};
pub use publish::{Aside, Publish, Published, Unreported, Why, preview, publish_all};
use target::Temporary;
pub use target::{Target, descriptors_share};
pub use verified::{RestoredFile, VerifiedFile, sync_dirs};

use crate::fingerprint::Fingerprint;
use crate::holes::Sparse;
use crate::source::starts;
use mcrengine::filter;
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{Digest, FilePath};
use nix::errno::Errno;
use nix::sys::stat::{Mode, UtimensatFlags, fchmod, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{fsync, ftruncate, symlinkat};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Length of the buffer for reading a file back, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of bytes of unfinished chunks in memory. Further chunks are kept in a spill file.
const UNFINISHED_MAX_BYTES: u64 = 64 << 20;
/// Minimum length in bytes of a block of zeros that is not written. The hole in the file reads as zeros.
const HOLE_BYTES: u64 = 64 << 10;

/// Maximum length in bytes of a file that is assembled in memory and written at once.
const IMAGE_MAX_BYTES: u64 = 4 << 20;
/// Maximum number of bytes of all files in memory. If more bytes would be needed, files are written piece by piece.
const IMAGES_MAX_BYTES: u64 = 64 << 20;
/// Number of bytes of all files that are in memory now.
static IMAGES_BYTES: AtomicU64 = AtomicU64::new(0);

/// A short file in memory. Until this value is dropped, the file counts towards [`IMAGES_MAX_BYTES`].
#[derive(Debug)]
struct Image {
    bytes: Mutex<Vec<u8>>,
    share: u64,
}

impl Image {
    /// `None` if the file is too long, or if too many other files are in memory.
    fn new(share: u64) -> Option<Self> {
        let room =
            |used: u64| used.checked_add(share).filter(|&used| share <= IMAGE_MAX_BYTES && used <= IMAGES_MAX_BYTES);
        IMAGES_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(Self { bytes: Mutex::new(vec![0; usize::try_from(share).unwrap_or(0)]), share })
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        // If another thread panicked, some bytes may be missing. The comparison of the digest detects missing bytes.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        IMAGES_BYTES.fetch_sub(self.share, Ordering::Relaxed);
    }
}

/// A file that is being restored. Dropping this value removes the temporary file.
#[derive(Debug)]
pub struct FileRestorer {
    header: Arc<FileHeader>,
    /// The final name, for messages.
    target: PathBuf,
    temporary: Temporary,
    /// The content of the file, if it is assembled in memory.
    image: Option<Image>,
    starts: Vec<Box<[u64]>>,
    written: AtomicU64,
    unfinished: Mutex<Unfinished>,
    /// The path of another file of the checkpoint, if this file is a hard link of the other file.
    named: Option<FilePath>,
}

/// Chunks of which some raw bytes are missing, by variable and extent.
#[derive(Debug, Default)]
struct Unfinished {
    chunks: HashMap<(usize, usize), Partial>,
    /// Chunks that are already written to the file.
    finished: BTreeSet<(usize, usize)>,
    in_memory: u64,
    /// A file for chunks that do not fit into memory.
    spill: Option<Temporary>,
    spill_end: u64,
}

#[derive(Debug)]
struct Partial {
    place: Place,
    /// Disjoint, sorted ranges of raw bytes that have arrived.
    runs: Vec<(u64, u64)>,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    /// Offset in the spill file.
    Spill(u64),
}

impl FileRestorer {
    /// Creates the missing directories, and a temporary file. The temporary file has the final length and lies in the
    /// directory of the final name.
    pub fn create(to: &Path, header: Arc<FileHeader>) -> Result<Self, RestoreError> {
        Self::create_in(&Target::new(to), header)
    }

    /// Creates a file like [`FileRestorer::create`]. The file is one of several files that share a few descriptors.
    pub fn create_in(to: &Arc<Target>, header: Arc<FileHeader>) -> Result<Self, RestoreError> {
        header.check()?;
        let temporary = Temporary::create(to, &header.path, "tmp")?;
        let restorer = Self {
            starts: header.variables.iter().map(starts).collect(),
            image: Image::new(header.bytes),
            target: to.path().join(header.path.as_path()),
            header,
            temporary,
            written: AtomicU64::new(0),
            unfinished: Mutex::default(),
            named: None,
        };
        let len = i64::try_from(restorer.header.bytes).unwrap_or(i64::MAX);
        ftruncate(&*restorer.temporary.file()?, len).map_err(restorer.failed("setting its length"))?;
        Ok(restorer)
    }

    /// Declares that this file is a hard link of another file of the checkpoint, if the other file is restored too.
    pub fn is_named(self, named: Option<FilePath>) -> Self {
        Self { named, ..self }
    }

    /// The description of the file.
    pub fn header(&self) -> &Arc<FileHeader> {
        &self.header
    }

    /// Takes a range of a variable's raw bytes. Ranges may be given in any order, by any thread, and more than once.
    pub fn write(&self, variable: usize, raw_offset: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        let out_of_range = || RestoreError::OutOfRange {
            path: self.target.clone(),
            variable,
            offset: raw_offset,
            bytes: bytes.len() as u64,
        };
        let header = self.header.variables.get(variable).ok_or_else(out_of_range)?;
        if raw_offset.checked_add(bytes.len() as u64).is_none_or(|end| end > header.raw_bytes.0) {
            return Err(out_of_range());
        }
        let starts = &self.starts[variable];
        let mut nth = starts.partition_point(|&start| start <= raw_offset).saturating_sub(1);
        let (mut offset, mut left) = (raw_offset, bytes);
        while !left.is_empty() {
            let extent = header.extents.get(nth).ok_or_else(out_of_range)?;
            let within = offset - starts.get(nth).copied().unwrap_or(0);
            let n = usize::try_from(extent.raw_bytes - within).unwrap_or(usize::MAX).min(left.len());
            let (piece, rest) = left.split_at(n);
            if header.filters.is_empty() {
                self.put(extent.offset + within, piece)?;
            } else {
                self.gather(variable, nth, within, piece)?;
            }
            offset += n as u64;
            left = rest;
            nth += 1;
        }
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Compares the digest of all bytes with the digest of the application's file. If `sync` is true, the bytes are
    /// on the disk before this function returns. The file gets its final name only in [`VerifiedFile::publish`], so
    /// that all files of a checkpoint can be verified before one of them replaces an older file.
    pub fn verify(mut self, sync: bool) -> Result<VerifiedFile, RestoreError> {
        let expected: u64 = self.header.variables.iter().map(|v| v.raw_bytes.0).sum();
        let written = self.written.load(Ordering::Acquire);
        if written < expected {
            return Err(RestoreError::Incomplete { path: self.target.clone(), written, expected });
        }
        let found = match self.image.take() {
            Some(image) => {
                let bytes = image.bytes();
                self.write_out(0, &bytes)?;
                Digest::of(&bytes)
            }
            None => self.digest()?,
        };
        let recorded = self.header.digest;
        if found != recorded {
            return Err(RestoreError::Digest { path: self.target.clone(), found, recorded });
        }
        if self.header.kind == FileKind::SymbolicLink {
            return self.into_link();
        }
        let file = self.temporary.file()?;
        let modified = TimeSpec::new(
            self.header.modified_ns.div_euclid(1_000_000_000),
            self.header.modified_ns.rem_euclid(1_000_000_000),
        );
        futimens(&*file, &modified, &modified).map_err(self.failed("setting its time"))?;
        let print = Fingerprint::of(&file.metadata().map_err(self.io("reading its metadata"))?);
        // The mark is set before the mode, because the mode may forbid the owner to write, and then no mark can be
        // set.
        let marked = crate::restored::mark(&file, &self.header.path);
        if let Err(error) = &marked {
            tracing::debug!(
                path = %self.header.path, %error,
                "the file cannot be marked as restored; a record file lists it"
            );
        }
        // The set-user-ID and set-group-ID bits are not restored, because no output of a simulation needs them.
        fchmod(&*file, Mode::from_bits_truncate(self.header.mode & 0o1777)).map_err(self.failed("setting its mode"))?;
        if sync {
            fsync(&*file).map_err(self.failed("syncing it"))?;
        }
        drop(file);
        self.temporary.close();
        let compared = existing::compare(self.temporary.target().path(), &self.header);
        let is_marked = marked.is_ok();
        let Self { header, temporary, named, .. } = self;
        Ok(VerifiedFile { header, temporary, print, is_marked, compared, named })
    }

    /// Creates the symbolic link whose target is the verified content.
    fn into_link(self) -> Result<VerifiedFile, RestoreError> {
        let mut text = vec![0; usize::try_from(self.header.bytes).unwrap_or(0)];
        let read = self.temporary.file()?.read_exact_at(&mut text, 0);
        read.map_err(self.io("reading it back"))?;
        let text = OsString::from_vec(text);
        let seconds = |ns: i64| TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        let modified = seconds(self.header.modified_ns);
        let stat = self.temporary.replace("making the link", |dir, name| {
            symlinkat(text.as_os_str(), dir, name.as_c_str())?;
            // Some file systems do not store the times of links.
            let _ = utimensat(dir, name.as_c_str(), &modified, &modified, UtimensatFlags::NoFollowSymlink);
            Ok(())
        })?;
        let print = Fingerprint::of_stat(&stat);
        // An agent never considers a link a checkpoint, so a link needs no mark.
        let Self { header, temporary, named, .. } = self;
        Ok(VerifiedFile { header, temporary, print, is_marked: true, compared: None, named })
    }

    /// Calls [`FileRestorer::verify`], and then [`VerifiedFile::publish`].
    pub fn finish(self, sync: bool) -> Result<RestoredFile, RestoreError> {
        self.verify(sync)?.publish()
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(Errno) -> RestoreError + use<> {
        let path = self.target.clone();
        move |source| RestoreError::Io { path, what, source: source.into() }
    }

    fn io(&self, what: &'static str) -> impl FnOnce(io::Error) -> RestoreError + use<> {
        let path = self.target.clone();
        move |source| RestoreError::Io { path, what, source }
    }

    /// Stores bytes at their offset, in memory or in the file.
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        match &self.image {
            Some(image) => {
                // `header.check` has passed, so all extents lie within the file.
                let at = at as usize;
                image.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            None => self.write_out(at, bytes),
        }
    }

    /// Writes bytes at their offset in the file. Long runs of zeros are not written.
    fn write_out(&self, at: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        let file = self.temporary.file()?;
        let writing =
            |from: usize, to: usize| file.write_all_at(&bytes[from..to], at + from as u64).map_err(self.io("writing"));
        let (mut from, mut to) = (0, 0);
        while to < bytes.len() {
            let here = at + to as u64;
            let block = ((HOLE_BYTES - here % HOLE_BYTES) as usize).min(bytes.len() - to);
            if block as u64 == HOLE_BYTES && bytes[to..to + block].iter().all(|&b| b == 0) {
                if from < to {
                    writing(from, to)?;
                }
                from = to + block;
            }
            to += block;
        }
        if from < to { writing(from, to) } else { Ok(()) }
    }

    /// Collects the raw bytes of a chunk. When no raw byte is missing, the filters are applied and the chunk is
    /// stored.
    fn gather(&self, variable: usize, nth: usize, within: u64, piece: &[u8]) -> Result<(), RestoreError> {
        let header = &self.header.variables[variable];
        let raw_bytes = header.extents[nth].raw_bytes;
        let raw = {
            let mut unfinished = self.unfinished();
            if unfinished.finished.contains(&(variable, nth)) {
                return Ok(());
            }
            if piece.len() as u64 == raw_bytes {
                unfinished.forget((variable, nth));
                None
            } else {
                match unfinished.add((variable, nth), raw_bytes, within, piece, || self.spill())? {
                    Some(raw) => Some(raw),
                    None => return Ok(()),
                }
            }
        };
        // The lock is released before the filters are applied, because compressing takes a long time.
        let raw = raw.as_deref().unwrap_or(piece);
        let extent = header.extents[nth];
        let stored = filter::put_on(&header.filters, raw).unwrap_or_default();
        if stored.len() as u64 != extent.stored_bytes {
            return Err(RestoreError::Chunk {
                path: self.target.clone(),
                variable,
                chunk: nth,
                found: stored.len() as u64,
                expected: extent.stored_bytes,
            });
        }
        self.put(extent.offset, &stored)?;
        self.unfinished().finished.insert((variable, nth));
        Ok(())
    }

    fn unfinished(&self) -> MutexGuard<'_, Unfinished> {
        // If another thread panicked, a chunk may be unfinished. The comparison of the digest detects missing bytes.
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spill(&self) -> Result<Temporary, RestoreError> {
        Temporary::create(self.temporary.target(), &self.header.path, "spill")
    }

    fn digest(&self) -> Result<Digest, RestoreError> {
        let open = self.temporary.file()?;
        let mut file = Sparse::new(&open).map_err(self.io("reading its metadata"))?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; BUFFER_BYTES.min(usize::try_from(self.header.bytes).unwrap_or(BUFFER_BYTES)).max(1)];
        let mut at = 0;
        while at < self.header.bytes {
            let n = (self.header.bytes - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..n], at).map_err(self.io("reading it back"))?;
            hasher.update(&buffer[..n]);
            at += n as u64;
        }
        Ok(hasher.finalize().into())
    }
}

impl Unfinished {
    /// Adds a range of a chunk's raw bytes. Returns the whole chunk if no byte is missing.
    fn add(
        &mut self,
        key: (usize, usize),
        raw_bytes: u64,
        within: u64,
        piece: &[u8],
        new_spill: impl FnOnce() -> Result<Temporary, RestoreError>,
    ) -> Result<Option<Vec<u8>>, RestoreError> {
        let partial = match self.chunks.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let place = if self.in_memory + raw_bytes <= UNFINISHED_MAX_BYTES {
                    self.in_memory += raw_bytes;
                    Place::Memory(vec![0; raw_bytes as usize])
                } else {
                    self.spill_end += raw_bytes;
                    Place::Spill(self.spill_end - raw_bytes)
                };
                entry.insert(Partial { place, runs: Vec::new() })
            }
        };
        match &mut partial.place {
            Place::Memory(raw) => raw[within as usize..within as usize + piece.len()].copy_from_slice(piece),
            Place::Spill(at) => {
                let spill = match &mut self.spill {
                    Some(spill) => spill,
                    none => none.insert(new_spill()?),
                };
                let write = spill.file()?.write_all_at(piece, *at + within);
                write.map_err(|source| spill.failed("keeping an unfinished chunk", source))?;
            }
        }
        insert_run(&mut partial.runs, (within, within + piece.len() as u64));
        if partial.runs != [(0, raw_bytes)] {
            return Ok(None);
        }
        match self.forget(key) {
            Some(Place::Memory(raw)) => Ok(Some(raw)),
            Some(Place::Spill(at)) => {
                let mut raw = vec![0; raw_bytes as usize];
                if let Some(spill) = &self.spill {
                    let read = spill.file()?.read_exact_at(&mut raw, at);
                    read.map_err(|source| spill.failed("reading an unfinished chunk", source))?;
                }
                Ok(Some(raw))
            }
            None => Ok(None),
        }
    }

    fn forget(&mut self, key: (usize, usize)) -> Option<Place> {
        let place = self.chunks.remove(&key)?.place;
        if let Place::Memory(raw) = &place {
            self.in_memory -= raw.len() as u64;
        }
        Some(place)
    }
}

/// Adds the range `[from, to)` to sorted, disjoint ranges. Ranges that touch are joined.
fn insert_run(runs: &mut Vec<(u64, u64)>, (mut from, mut to): (u64, u64)) {
    let first = runs.partition_point(|r| r.1 < from);
    let last = runs.partition_point(|r| r.0 <= to);
    if first < last {
        from = from.min(runs[first].0);
        to = to.max(runs[last - 1].1);
    }
    runs.splice(first..last, [(from, to)]);
}
