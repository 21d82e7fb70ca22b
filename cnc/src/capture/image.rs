//! What is kept of a captured file, and the checks that are still to be made.

use mcrengine::filter;
use mcrengine::header::{Extent, Filter};
use std::collections::HashMap;
use std::ops::Range;

/// The bytes that are kept of a captured file, so that they need not be read again
/// ([`crate::source::OpenFile::with_image`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// All bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// For variables whose filters were removed: their chunks, by index of the variable.
    pub(crate) chunks: HashMap<usize, KeptChunks>,
}

/// The chunks of a variable, without their filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptChunks {
    filters: Box<[Filter]>,
    /// The raw bytes of each chunk.
    pub(crate) raw: Vec<Vec<u8>>,
    /// Chunks whose check is still to be made: the index of the chunk, and where its stored bytes are in the file.
    unproven: Vec<(usize, Range<usize>)>,
}

impl Image {
    /// Chunks that are not yet checked: whether their filters, applied again, give the stored bytes. Each is
    /// identified by its variable and by its number among the unchecked chunks of that variable. The captured file
    /// must not be committed before [`Image::proves`] has succeeded for each of them.
    pub fn unproven(&self) -> Vec<(usize, usize)> {
        let of = |(&variable, kept): (&usize, &KeptChunks)| (0..kept.unproven.len()).map(move |nth| (variable, nth));
        self.chunks.iter().flat_map(of).collect()
    }

    /// Checks one of these chunks: whether its filters, applied again, give its stored bytes. Takes as long as
    /// deflating.
    pub fn proves(&self, (variable, nth): (usize, usize)) -> bool {
        let found = self.chunks.get(&variable).and_then(|kept| {
            let (chunk, stored) = kept.unproven.get(nth)?;
            Some((&kept.filters, kept.raw.get(*chunk)?, self.bytes.get(stored.clone())?))
        });
        found.is_some_and(|(filters, raw, stored)| comes_back(filters, raw, stored))
    }
}

impl KeptChunks {
    pub(super) fn behind(filters: &[Filter]) -> Self {
        Self { filters: filters.into(), raw: Vec::new(), unproven: Vec::new() }
    }

    /// Adds the next chunk. `unproven` is the place of its stored bytes if the check is still to be made.
    pub(super) fn push(&mut self, raw: Vec<u8>, unproven: Option<&Extent>) {
        if let Some(extent) = unproven {
            let (from, bytes) = (extent.offset as usize, extent.stored_bytes as usize); // fits: the file is in memory
            self.unproven.push((self.raw.len(), from..from + bytes));
        }
        self.raw.push(raw);
    }
}

pub(super) fn comes_back(filters: &[Filter], raw: &[u8], stored: &[u8]) -> bool {
    filter::put_on(filters, raw).is_ok_and(|again| again == stored)
}
