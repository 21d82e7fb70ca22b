//! Restored files: written beside their final names, compared with the digest of the application's file, then renamed.
//!
//! Nothing half written ever stands under a final name: the rename is the last step, after the digest of all bytes
//! equals the recorded one; those of a long file are read back for it, those of a small one were put together in memory.
//! The files of a checkpoint hold few descriptors together (`target.rs`), and get their final names together
//! (`publish.rs`).
//! Of the symbolic links below the target directory only those are followed that lead to a directory of the same owner, as
//! output directories on another file system do (`target.rs`). No link that a restart makes leads to such a directory, so
//! that a hostile checkpoint or a prepared directory leads nowhere else. What a killed restart left is removed by the next one (`leftovers.rs`).

mod leftovers;
mod publish;
mod target;

pub(crate) use leftovers::here;
pub use publish::{Aside, Publish, Published, Recovered, Why, is_interrupted, preview, publish_all, recover};
pub use target::{Target, descriptors_share};
use target::{Temporary, directory};

use crate::fingerprint::Fingerprint;
use crate::holes::Sparse;
use crate::source::starts;
use mcrengine::filter;
use mcrengine::header::{FileHeader, FileKind, HeaderError};
use mcrengine::ids::{Digest, FilePath};
use nix::errno::Errno;
use nix::sys::stat::{Mode, UtimensatFlags, fchmod, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{fsync, ftruncate, symlinkat};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a file could not be restored. Nothing of it stands under its final name then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The description of the file contradicts itself.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Bytes were given that the description has no place for.
    #[error("{path}: variable {variable} has no {bytes} raw bytes at {offset}", path = .path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// First raw byte given.
        offset: u64,
        /// Raw bytes given.
        bytes: u64,
    },
    /// A chunk that was put back behind its filters is not as long as the application's.
    #[error("{path}: variable {variable}, chunk {chunk}: {found} stored bytes, {expected} recorded", path = .path.display())]
    Chunk {
        /// The file.
        path: PathBuf,
        /// Index of the variable.
        variable: usize,
        /// Index of the extent.
        chunk: usize,
        /// Length that came out; 0 if the filters failed.
        found: u64,
        /// Length recorded.
        expected: u64,
    },
    /// Not everything was given.
    #[error("{path}: {written} of its {expected} raw bytes were given", path = .path.display())]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// Raw bytes given.
        written: u64,
        /// Raw bytes there are.
        expected: u64,
    },
    /// The restored bytes are not the application's.
    #[error("{path}: its digest is {found}, recorded {recorded}", path = .path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// Of the bytes written.
        found: Digest,
        /// Of the application's.
        recorded: Digest,
    },
    /// A component of the path is a symbolic link or no directory.
    #[error("{path}: it is a symbolic link or no directory, and restored files go through directories alone", path = .path.display())]
    NotADirectory {
        /// The component.
        path: PathBuf,
    },
    /// Something appeared under a final name while files were published.
    #[error("{path}: it appeared while files were published, and nothing was changed; end what writes there, and restart again", path = .path.display())]
    Occupied {
        /// The final name.
        path: PathBuf,
    },
    /// Another restart publishes into the same directory.
    #[error("{path}: another restart has been publishing into it for {waited_s} s; wait for its end, then restart again", path = .path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// How long it was waited for, in seconds.
        waited_s: u64,
    },
    /// The system failed.
    #[error("{path}: {what}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl RestoreError {
    /// Whether the bytes or headers that were given are at fault, so that another checkpoint may do, and not this
    /// machine's disk.
    pub fn blames_checkpoint(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::OutOfRange { .. }
            | Self::Chunk { .. }
            | Self::Incomplete { .. }
            | Self::Digest { .. } => true,
            Self::NotADirectory { .. } | Self::Occupied { .. } | Self::Busy { .. } | Self::Io { .. } => false,
        }
    }
}

/// A file whose bytes are the application's, still under a temporary name. Dropping it removes it.
#[derive(Debug)]
pub struct VerifiedFile {
    header: Arc<FileHeader>,
    temporary: Temporary,
    /// What it is; the time of the inode will be another one.
    print: Fingerprint,
    /// Whether it is marked as restored.
    is_marked: bool,
    /// A file of the same length that stands under the final name, and whether it has the same content.
    compared: Option<(Fingerprint, bool)>,
    /// The file that this is a second name for.
    named: Option<FilePath>,
}

impl VerifiedFile {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    /// Whether people would call it a file.
    pub fn is_file(&self) -> bool {
        self.header.kind.is_file()
    }

    /// Gives the file its final name. Whatever stood there, a symbolic link too, is replaced.
    pub fn publish(self) -> Result<RestoredFile, RestoreError> {
        self.temporary.rename()?;
        Ok(RestoredFile { path: self.header.path.clone(), bytes: self.header.bytes })
    }

    fn wanted(&self) -> publish::Wanted<'_> {
        publish::Wanted { header: &self.header, compared: self.compared }
    }

    /// What must be recorded as restored.
    fn unmarked(&self) -> Option<(FilePath, Fingerprint)> {
        (!self.is_marked).then(|| (self.header.path.clone(), self.print))
    }
}

/// A file that stands under its final name and is the application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredFile {
    /// Below the target directory.
    pub path: FilePath,
    /// Length in bytes.
    pub bytes: u64,
}

/// Bytes that are read back at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Raw bytes of unfinished chunks that are kept in memory; the others wait in the file system.
const UNFINISHED_MAX: u64 = 64 << 20;
/// Runs of zeros of this length, at a multiple of it in the file, are left out: the file reads as zero there anyway.
const HOLE_BYTES: u64 = 64 << 10;

/// Files up to this length are put together in memory, and written at once.
const IMAGE_MAX: u64 = 4 << 20;
/// Bytes of such files, all together; where there are more, the others are written piece by piece.
const IMAGES_MAX: u64 = 64 << 20;
/// Bytes of them that there are.
static IMAGES: AtomicU64 = AtomicU64::new(0);

/// A small file in memory. It holds its share of [`IMAGES_MAX`] until it is dropped.
#[derive(Debug)]
struct Image {
    bytes: Mutex<Vec<u8>>,
    share: u64,
}

impl Image {
    /// `None` if the file is too long, or too many others are in memory.
    fn new(share: u64) -> Option<Self> {
        let room = |used: u64| used.checked_add(share).filter(|&used| share <= IMAGE_MAX && used <= IMAGES_MAX);
        IMAGES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(Self { bytes: Mutex::new(vec![0; usize::try_from(share).unwrap_or(0)]), share })
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        // A panic of another thread leaves at worst bytes missing, which the digest finds.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        IMAGES.fetch_sub(self.share, Ordering::Relaxed);
    }
}

/// One file on its way back. Dropping it removes what was written.
#[derive(Debug)]
pub struct FileRestorer {
    header: Arc<FileHeader>,
    /// Where it will stand, for messages.
    target: PathBuf,
    temporary: Temporary,
    /// What will be in the file, if that is not written as it comes.
    image: Option<Image>,
    starts: Vec<Box<[u64]>>,
    written: AtomicU64,
    unfinished: Mutex<Unfinished>,
    /// The file that this is a second name for.
    named: Option<FilePath>,
}

/// Chunks of which some raw bytes are still missing, by variable and extent.
#[derive(Debug, Default)]
struct Unfinished {
    chunks: HashMap<(usize, usize), Partial>,
    /// Chunks that are in the file already.
    finished: BTreeSet<(usize, usize)>,
    in_memory: u64,
    /// A file for chunks that memory has no room for.
    spill: Option<Temporary>,
    spill_end: u64,
}

#[derive(Debug)]
struct Partial {
    place: Place,
    /// Disjoint runs of raw bytes that have arrived, sorted.
    runs: Vec<(u64, u64)>,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    /// From this byte of the spill file.
    Spill(u64),
}

impl FileRestorer {
    /// Makes the directories on the way, and a temporary file of the right length beside the final name.
    pub fn create(to: &Path, header: Arc<FileHeader>) -> Result<Self, RestoreError> {
        Self::create_in(&Target::new(to), header)
    }

    /// The same for one file of several, which share descriptors.
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

    /// The same, as a second name for another file of the checkpoint, where that is restored too.
    pub fn is_named(self, named: Option<FilePath>) -> Self {
        Self { named, ..self }
    }

    /// What is restored.
    pub fn header(&self) -> &Arc<FileHeader> {
        &self.header
    }

    /// Takes a run of a variable's raw bytes: any order, any thread, twice if need be.
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

    /// Compares the digest of all bytes, as they are read back, with the application's. With `sync` they are on the disk
    /// before this returns. The file has its final name after [`VerifiedFile::publish`] only, so that all files of a
    /// checkpoint can be compared before any of them replaces an older one.
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
        fchmod(&*file, Mode::from_bits_truncate(self.header.mode & 0o1777)).map_err(self.failed("setting its mode"))?;
        let modified = TimeSpec::new(
            self.header.modified_ns.div_euclid(1_000_000_000),
            self.header.modified_ns.rem_euclid(1_000_000_000),
        );
        futimens(&*file, &modified, &modified).map_err(self.failed("setting its time"))?;
        let print = Fingerprint::of(&file.metadata().map_err(self.io("asking for its state"))?);
        // As long as its owner may write.
        let marked = crate::restored::mark(&file, &self.header.path);
        if let Err(error) = &marked {
            tracing::debug!(path = %self.header.path, %error, "cannot be marked as restored; recorded beside it");
        }
        // Not what lets a program act as another user: no simulation's output needs that.
        fchmod(&*file, Mode::from_bits_truncate(self.header.mode & 0o1777)).map_err(self.failed("setting its mode"))?;
        if sync {
            fsync(&*file).map_err(self.failed("syncing it"))?;
        }
        drop(file);
        self.temporary.close();
        let compared = publish::compare(self.temporary.target().path(), &self.header);
        let is_marked = marked.is_ok();
        let Self { header, temporary, named, .. } = self;
        Ok(VerifiedFile { header, temporary, print, is_marked, compared, named })
    }

    /// Makes the link that the verified bytes are the text of.
    fn into_link(self) -> Result<VerifiedFile, RestoreError> {
        let mut text = vec![0; usize::try_from(self.header.bytes).unwrap_or(0)];
        let read = self.temporary.file()?.read_exact_at(&mut text, 0);
        read.map_err(self.io("reading it back"))?;
        let text = OsString::from_vec(text);
        let seconds = |ns: i64| TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        let modified = seconds(self.header.modified_ns);
        let stat = self.temporary.replace("making the link", |dir, name| {
            symlinkat(text.as_os_str(), dir, name.as_c_str())?;
            // Some file systems keep no times of links.
            let _ = utimensat(dir, name.as_c_str(), &modified, &modified, UtimensatFlags::NoFollowSymlink);
            Ok(())
        })?;
        let print = publish::print_of(&stat);
        // Agents take no link for a checkpoint, so it needs no mark.
        let Self { header, temporary, named, .. } = self;
        Ok(VerifiedFile { header, temporary, print, is_marked: true, compared: None, named })
    }

    /// [`FileRestorer::verify`] and [`VerifiedFile::publish`] in one.
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

    /// Puts bytes to their place.
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), RestoreError> {
        match &self.image {
            Some(image) => {
                // The header was checked: all its extents are within the file.
                let at = at as usize;
                image.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            None => self.write_out(at, bytes),
        }
    }

    /// Writes bytes to their place in the file, but for long runs of zeros.
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

    /// Keeps a run of a chunk's raw bytes; with the last one the chunk goes behind its filters and into the file.
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
        // Compressing takes long; other threads need not wait for it.
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
        // A panic of another thread leaves at worst a chunk unfinished, which the digest finds.
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spill(&self) -> Result<Temporary, RestoreError> {
        Temporary::create(self.temporary.target(), &self.header.path, "spill")
    }

    fn digest(&self) -> Result<Digest, RestoreError> {
        let open = self.temporary.file()?;
        let mut file = Sparse::new(&open).map_err(self.io("asking for its state"))?;
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
    /// Adds a run; gives the whole chunk when it was the last one missing.
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
                let place = if self.in_memory + raw_bytes <= UNFINISHED_MAX {
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

/// Adds `[from, to)` to sorted, disjoint runs, joining those that touch.
fn insert_run(runs: &mut Vec<(u64, u64)>, (mut from, mut to): (u64, u64)) {
    let first = runs.partition_point(|r| r.1 < from);
    let last = runs.partition_point(|r| r.0 <= to);
    if first < last {
        from = from.min(runs[first].0);
        to = to.max(runs[last - 1].1);
    }
    runs.splice(first..last, [(from, to)]);
}

/// Syncs every directory that holds one of the files, those above them, and `to`: after this their names last too.
pub fn sync_dirs(to: &Path, files: &[RestoredFile]) -> Result<(), RestoreError> {
    // A directory stands for itself as a path with one more component.
    let mut holders: BTreeSet<Vec<u8>> = BTreeSet::from([b"x".to_vec()]);
    for file in files {
        let bytes = file.path.as_bytes();
        for (at, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b'/') {
            holders.insert([&bytes[..=at], b"x"].concat());
        }
    }
    for holder in holders {
        let path = FilePath::new(holder).expect("a prefix of a path and a letter are a path");
        let fd = directory(to, &path, None)?;
        fsync(fd.as_fd()).map_err(|e| RestoreError::Io {
            path: to.join(path.as_path()).parent().unwrap_or(to).to_owned(),
            what: "syncing the directory",
            source: e.into(),
        })?;
    }
    Ok(())
}
