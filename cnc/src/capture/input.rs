//! Reads the bytes of a file that is being described.

use crate::holes::Sparse;
use mcrengine::gathered::Gathered;
use mcrengine::header::Extent;
use mcrengine::ids::Digest;
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};

/// The bytes of a file: in memory if the file is short, otherwise read into one buffer on demand.
pub(super) struct Input<'a> {
    file: Sparse<'a>,
    pub(super) bytes: u64,
    pub(super) whole: Option<Vec<u8>>,
    buffer: Vec<u8>,
    /// `Some` if the caller keeps the bytes of the file. The function then decides whether further bytes are kept.
    pub(super) keep: Option<&'a mut dyn FnMut(u64) -> bool>,
    /// The raw bytes of chunks, see [`super::Image::chunks`].
    pub(super) chunks: HashMap<usize, Vec<Vec<u8>>>,
}

/// Maximum length of a file that is read once and kept in memory while it is described.
const IN_MEMORY_MAX_BYTES: u64 = 4 << 20;
/// Number of bytes of one read.
pub(super) const BUFFER_BYTES: u64 = 1 << 20;

thread_local! {
    /// The buffer of the last short file. The next short file reuses the buffer, because the first access to a new
    /// page takes as long as reading bytes into the page.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        SPARE.set(self.whole.take().unwrap_or_default());
    }
}

impl<'a> Input<'a> {
    /// Reads a short file into memory. The file must have been opened just before, so its read position is 0.
    pub(super) fn new(file: &'a File, metadata: &Metadata, keep: &'a mut dyn FnMut(u64) -> bool) -> io::Result<Self> {
        let bytes = metadata.len();
        let mut kept = None;
        let whole = match usize::try_from(bytes) {
            Ok(len) if bytes <= IN_MEMORY_MAX_BYTES => {
                kept = keep(bytes).then_some(keep);
                let mut whole = if kept.is_some() { Vec::new() } else { SPARE.take() };
                // `read_exact_at` would need initialized memory, so `read_to_end` is used.
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
    pub(super) fn may_keep(&mut self, bytes: u64) -> bool {
        self.keep.as_mut().is_some_and(|keep| keep(bytes))
    }

    /// Returns bytes of the file. The range must lie within the file, and is at most one chunk of
    /// [`mcrengine::header::FILTERED_CHUNK_MAX`] bytes.
    pub(super) fn get(&mut self, offset: u64, bytes: u64) -> io::Result<&[u8]> {
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
    pub(super) fn digest(&mut self) -> io::Result<Digest> {
        let all = [Extent { offset: 0, stored_bytes: self.bytes, raw_bytes: self.bytes }];
        match &self.whole {
            Some(whole) => Ok(Digest::of(whole)),
            None => again(self, &all),
        }
    }
}

/// The digest of a variable without filters. Reads the variable's extents in the order of its raw bytes.
pub(super) fn again(input: &mut Input<'_>, extents: &[Extent]) -> io::Result<Digest> {
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
