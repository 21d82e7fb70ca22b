//! What is kept of a file that was captured, and the proof that may still be wanted of it.

use mcrengine::filter;
use mcrengine::header::{Extent, Filter};
use std::collections::HashMap;
use std::ops::Range;

/// What is kept of a file that was captured: whoever needs its bytes right afterwards need not read them again
/// ([`crate::source::OpenFile::with_image`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// All bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// Of variables that came out of filters, by their number.
    pub(crate) chunks: HashMap<usize, KeptChunks>,
}

/// The chunks of a variable, out of their filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptChunks {
    filters: Box<[Filter]>,
    /// The raw bytes of each.
    pub(crate) raw: Vec<Vec<u8>>,
    /// Those of which it has still to be shown that their stored bytes come back, and where in the file these are.
    unproven: Vec<(usize, Range<usize>)>,
}

impl Image {
    /// Chunks of which nobody has shown yet that their stored bytes come back, under a name for each: variable, and how many such
    /// it has before. What was captured must not be committed before each of them is [proven](Image::proves).
    pub fn unproven(&self) -> Vec<(usize, usize)> {
        let of = |(&variable, kept): (&usize, &KeptChunks)| (0..kept.unproven.len()).map(move |nth| (variable, nth));
        self.chunks.iter().flat_map(of).collect()
    }

    /// Whether the stored bytes of one of these come back. Takes as long as deflating them.
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

    /// The next chunk, and where its stored bytes are if they have still to be shown to come back.
    pub(super) fn push(&mut self, raw: Vec<u8>, unproven: Option<&Extent>) {
        if let Some(extent) = unproven {
            let (from, bytes) = (extent.offset as usize, extent.stored_bytes as usize); // of a file that is in memory
            self.unproven.push((self.raw.len(), from..from + bytes));
        }
        self.raw.push(raw);
    }
}

pub(super) fn comes_back(filters: &[Filter], raw: &[u8], stored: &[u8]) -> bool {
    filter::put_on(filters, raw).is_ok_and(|again| again == stored)
}
