//! Reads small pieces of a file's metadata: from memory if the file is short, otherwise through a cache of pages with
//! a limited length.

use super::{H5Error, MapInput};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Maximum length in bytes of a file that is read completely into memory.
const IN_MEMORY_MAX_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 16 << 10;
const PAGES: usize = 128;

/// The bytes of a file by offset. The reader allocates at most [`IN_MEMORY_MAX_BYTES`] for these bytes, and limits
/// the number of page reads.
pub(super) struct Reader<'a> {
    file: &'a File,
    len: u64,
    whole: Cow<'a, [u8]>,
    /// A direct-mapped cache: page n is in slot n modulo [`PAGES`].
    pages: Vec<(u64, Vec<u8>)>,
    scratch: Vec<u8>,
    /// Number of pages that may still be read. A valid file needs each page only a few times.
    pages_left: u64,
}

impl<'a> Reader<'a> {
    pub fn new(input: &MapInput<'a>) -> io::Result<Self> {
        let MapInput { file, bytes: len, whole, .. } = *input;
        let mut pages = Vec::new();
        let whole = match whole {
            Some(whole) if whole.len() as u64 == len => Cow::Borrowed(whole),
            _ if len <= IN_MEMORY_MAX_BYTES => {
                let mut whole = vec![0; usize::try_from(len).unwrap_or(0)];
                file.read_exact_at(&mut whole, 0)?;
                Cow::Owned(whole)
            }
            _ => {
                pages.resize(PAGES, (u64::MAX, Vec::new()));
                Cow::Borrowed(&[][..])
            }
        };
        Ok(Self { file, len, whole, pages, scratch: Vec::new(), pages_left: len / PAGE_BYTES * 8 + 1024 })
    }

    /// Returns `len` bytes beginning at offset `at`. The bytes must lie within the file.
    pub fn get(&mut self, at: u64, len: usize) -> Result<&[u8], H5Error> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(H5Error::NotClassic { what: "metadata passes the end of the file", at });
        }
        if self.pages.is_empty() {
            let at = at as usize;
            return Ok(&self.whole[at..at + len]);
        }
        let within = (at % PAGE_BYTES) as usize;
        if within + len <= PAGE_BYTES as usize {
            let page = self.page(at / PAGE_BYTES)?;
            return Ok(&page[within..within + len]);
        }
        if len as u64 > IN_MEMORY_MAX_BYTES {
            return Err(H5Error::NotClassic { what: "a piece of metadata is larger than 2 MiB", at });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        while scratch.len() < len {
            let from = at + scratch.len() as u64;
            let page = self.page(from / PAGE_BYTES)?;
            let within = (from % PAGE_BYTES) as usize;
            let n = (page.len() - within).min(len - scratch.len());
            scratch.extend_from_slice(&page[within..within + n]);
        }
        self.scratch = scratch;
        Ok(&self.scratch)
    }

    /// Returns bytes like [`Reader::get`], but without a copy. `None` if the caller of [`Reader::new`] did not
    /// provide the content of the file.
    pub fn borrowed(&self, at: u64, len: usize) -> Option<&'a [u8]> {
        match self.whole {
            Cow::Borrowed(whole) => whole.get(usize::try_from(at).ok()?..)?.get(..len),
            Cow::Owned(_) => None,
        }
    }

    fn page(&mut self, number: u64) -> Result<&[u8], H5Error> {
        let slot = &mut self.pages[(number % PAGES as u64) as usize];
        if slot.0 != number {
            self.pages_left = self
                .pages_left
                .checked_sub(1)
                .ok_or(H5Error::NotClassic { what: "the same metadata is read too often", at: number * PAGE_BYTES })?;
            let at = number * PAGE_BYTES;
            slot.0 = u64::MAX;
            slot.1.resize((self.len - at).min(PAGE_BYTES) as usize, 0);
            self.file.read_exact_at(&mut slot.1, at)?;
            slot.0 = number;
        }
        Ok(&slot.1)
    }
}
