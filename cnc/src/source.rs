//! Reads any range of raw bytes of any variable from a captured file.
//!
//! Reads are positional and take no lock. A descriptor stays open between reads, so that a file can still be read
//! after the application renames or removes it. The number of open descriptors of all files together is limited
//! ([`Descriptors`]). Dropping an [`OpenFile`] closes its descriptor.

use crate::capture::{CaptureError, Image, changed_if_short, metadata, open};
use crate::fingerprint::Fingerprint;
use mcrengine::filter;
use mcrengine::header::{FileHeader, VariableHeader};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Limits the number of open descriptors of all files together. If too many descriptors are open, the descriptor that
/// was opened first is closed.
#[derive(Debug)]
pub struct Descriptors {
    most_open: usize,
    open: Mutex<VecDeque<Weak<Slot>>>,
}

/// Holds the descriptor of an [`OpenFile`] or of a file that is being restored.
pub(crate) type Slot = Mutex<Option<Arc<File>>>;

impl Descriptors {
    /// Allows at most `most_open` open descriptors, but at least one. Reads in progress may hold a few more
    /// descriptors.
    pub fn new(most_open: usize) -> Arc<Self> {
        Arc::new(Self { most_open: most_open.max(1), open: Mutex::new(VecDeque::new()) })
    }

    /// Registers the descriptor that was just put into `slot`. Closes the oldest descriptors if there are too many.
    pub(crate) fn add(&self, slot: &Arc<Slot>) {
        let mut open = lock(&self.open);
        open.push_back(Arc::downgrade(slot));
        if open.len() > self.most_open {
            open.retain(|slot| slot.strong_count() > 0);
        }
        while open.len() > self.most_open {
            let oldest = open.pop_front().and_then(|slot| slot.upgrade());
            // The slot that was just filled is skipped, because it may be in the queue twice.
            if let Some(oldest) = oldest.filter(|oldest| !Arc::ptr_eq(oldest, slot)) {
                lock(&oldest).take();
            }
        }
    }

    /// Closes all descriptors. Called if the process has no free descriptor.
    pub(crate) fn close_all(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        for slot in open.iter().filter_map(Weak::upgrade) {
            lock(&slot).take();
        }
    }
}

/// Locks a mutex. Ignores poisoning, because a panic leaves no data of this module in a half-changed state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A captured file whose raw bytes can be read. The header is owned, shared or borrowed.
#[derive(Debug)]
pub struct OpenFile<H = Arc<FileHeader>> {
    name: PathBuf,
    header: H,
    fingerprint: Fingerprint,
    descriptors: Arc<Descriptors>,
    slot: Arc<Slot>,
    /// For each variable with several extents: the number of raw bytes before each extent.
    starts: Vec<Box<[u64]>>,
    /// The last chunk whose filters were removed: variable, extent and raw bytes.
    last_chunk: Mutex<Option<LastChunk>>,
    /// The bytes of the file, if the capture kept them in memory. If the bytes are in memory, reads use these bytes
    /// instead of the file.
    image: Option<Arc<Image>>,
}

type LastChunk = (usize, usize, Arc<Vec<u8>>);

impl<H: Deref<Target = FileHeader>> OpenFile<H> {
    /// A file below `root`, with its header and with its fingerprint at the time of the capture. Does not open the
    /// file.
    pub fn new(root: &Path, header: H, fingerprint: Fingerprint, descriptors: &Arc<Descriptors>) -> Self {
        let starts = header.variables.iter().map(starts).collect();
        Self {
            name: root.join(header.path.as_path()),
            header,
            fingerprint,
            descriptors: Arc::clone(descriptors),
            slot: Arc::default(),
            starts,
            last_chunk: Mutex::default(),
            image: None,
        }
    }

    /// Adds the bytes that the capture kept in memory ([`crate::capture::capture_keeping`]).
    pub fn with_image(self, image: Option<Arc<Image>>) -> Self {
        Self { image: image.filter(|image| image.bytes.len() as u64 == self.header.bytes), ..self }
    }

    /// Whether reads use the bytes that the capture kept in memory.
    pub fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// The description of the file.
    pub fn header(&self) -> &H {
        &self.header
    }

    /// Fills `into` with a variable's raw bytes that begin at `offset`. Fails if the file has changed since the
    /// capture.
    pub fn read_raw(&self, variable: usize, offset: u64, into: &mut [u8]) -> Result<(), CaptureError> {
        let bytes = into.len() as u64;
        let out_of_range = || CaptureError::OutOfRange { path: self.name.clone(), variable, offset, bytes };
        let header = self.header.variables.get(variable).ok_or_else(out_of_range)?;
        if offset.checked_add(bytes).is_none_or(|end| end > header.raw_bytes.0) {
            return Err(out_of_range());
        }
        if into.is_empty() {
            return Ok(());
        }
        if self.image.is_some() {
            return self.read_extents(None, variable, header, offset, into);
        }
        let file = self.file()?;
        let read = self.read_extents(Some(&file), variable, header, offset, into);
        // If the file has changed, neither the read bytes nor a read error belong to the captured file.
        self.unchanged(&file)?;
        read
    }

    /// The descriptor of the file. Opens the file if necessary. After reading, the caller must check
    /// [`OpenFile::unchanged`].
    fn file(&self) -> Result<Arc<File>, CaptureError> {
        if let Some(file) = &*lock(&self.slot) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(open(&self.name)?);
        self.unchanged(&file)?;
        *lock(&self.slot) = Some(Arc::clone(&file));
        self.descriptors.add(&self.slot);
        Ok(file)
    }

    fn unchanged(&self, file: &File) -> Result<(), CaptureError> {
        match Fingerprint::of(&metadata(file, &self.name)?).same_content(&self.fingerprint) {
            true => Ok(()),
            false => Err(CaptureError::Changed { path: self.name.clone() }),
        }
    }

    fn read_extents(
        &self,
        file: Option<&File>,
        variable: usize,
        header: &VariableHeader,
        mut offset: u64,
        mut into: &mut [u8],
    ) -> Result<(), CaptureError> {
        let starts = &self.starts[variable];
        // The last extent that begins at or before `offset`.
        let mut nth = starts.partition_point(|&start| start <= offset).saturating_sub(1);
        while !into.is_empty() {
            let Some(extent) = header.extents.get(nth) else {
                return Err(CaptureError::OutOfRange {
                    path: self.name.clone(),
                    variable,
                    offset,
                    bytes: into.len() as u64,
                });
            };
            let within = offset - starts.get(nth).copied().unwrap_or(0);
            let n = usize::try_from(extent.raw_bytes - within).unwrap_or(usize::MAX).min(into.len());
            let (piece, rest) = into.split_at_mut(n);
            if header.filters.is_empty() {
                self.read_stored(file, piece, extent.offset + within)?;
            } else {
                let kept = self.image.as_ref().and_then(|image| image.chunks.get(&variable)?.get(nth));
                let taken_off;
                let raw = match kept {
                    Some(raw) => raw,
                    None => {
                        taken_off = self.chunk(file, variable, header, nth)?;
                        &taken_off
                    }
                };
                let from = within as usize;
                piece.copy_from_slice(&raw[from..from + n]);
            }
            into = rest;
            offset += n as u64;
            nth += 1;
        }
        Ok(())
    }

    /// Reads bytes as they are stored in the file. The bytes come from the image or from the open file.
    fn read_stored(&self, file: Option<&File>, into: &mut [u8], offset: u64) -> Result<(), CaptureError> {
        let mut in_image = |image: &Image| {
            let from = usize::try_from(offset).ok()?;
            image.bytes.get(from..from.checked_add(into.len())?).map(|bytes| into.copy_from_slice(bytes))
        };
        let read = match (&self.image, file) {
            (Some(image), _) => in_image(image).ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
            (None, Some(file)) => file.read_exact_at(into, offset),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        };
        read.map_err(|e| changed_if_short(e, &self.name))
    }

    /// The raw bytes of a chunk. The last chunk is kept in memory, because a variable is usually read from front to
    /// back.
    fn chunk(
        &self,
        file: Option<&File>,
        variable: usize,
        header: &VariableHeader,
        nth: usize,
    ) -> Result<Arc<Vec<u8>>, CaptureError> {
        if let Some((v, n, raw)) = &*lock(&self.last_chunk)
            && (*v, *n) == (variable, nth)
        {
            return Ok(Arc::clone(raw));
        }
        let extent = header.extents[nth];
        // Both lengths of the chunk are at most 64 MiB, because the header was checked.
        let mut stored = vec![0; extent.stored_bytes as usize];
        self.read_stored(file, &mut stored, extent.offset)?;
        // The filters were removed successfully at the capture. If the removal fails now, the stored bytes have
        // changed.
        let raw = filter::take_off(&header.filters, &stored, extent.raw_bytes as usize).map_err(|e| {
            let source = io::Error::new(io::ErrorKind::InvalidData, e);
            CaptureError::Io { path: self.name.clone(), what: "removing the filters of a chunk", source }
        })?;
        let raw = Arc::new(raw);
        *lock(&self.last_chunk) = Some((variable, nth, Arc::clone(&raw)));
        Ok(raw)
    }
}

/// The number of raw bytes before each extent. Empty for a variable with one extent, which is the usual case.
pub(crate) fn starts(variable: &VariableHeader) -> Box<[u64]> {
    if variable.extents.len() < 2 {
        return [].into();
    }
    let mut start = 0;
    let starts = variable.extents.iter().map(|e| {
        let here = start;
        start += e.raw_bytes;
        here
    });
    starts.collect()
}
