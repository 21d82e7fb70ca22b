//! Compares fetched bytes with the digests of their headers. A flush compares digests only in this module.
//!
//! | bytes | compared |
//! |---|---|
//! | in a file whose bytes the source has already compared ([`Source::is_checked`]) | never |
//! | of a variable that is whole in one segment | on arrival, while the bytes are in the CPU cache: [`Arriving`] |
//! | of a variable in several segments | in the order of the segments, before each segment is written: [`Spread`] |

use crate::source::{FetchError, Source};
use mcrengine::classify::VariableRef;
use mcrengine::header::FileHeader;
use mcrengine::ids::Digest;
use mcrengine::merge::runs;
use mcrengine::plan::{Piece, SegmentPlan};
use std::collections::HashMap;

/// The files of a flush, and the source of their bytes.
#[derive(Clone, Copy)]
pub(crate) struct Digests<'a> {
    pub source: &'a dyn Source,
    pub files: &'a [FileHeader],
}

/// Compares the digests of the variables that are whole in one segment.
pub(crate) struct Arriving<'a> {
    digests: Digests<'a>,
    segment: &'a SegmentPlan,
    /// Hashes the bytes of the piece whose bytes are arriving.
    hasher: blake3::Hasher,
    hashed_bytes: u64,
    changed: Option<FetchError>,
}

/// Compares the digests of the variables that are spread over several segments.
pub(crate) struct Spread<'a> {
    digests: Digests<'a>,
    open: HashMap<VariableRef, OpenDigest>,
}

/// A variable whose last byte has not yet arrived.
#[derive(Default)]
struct OpenDigest {
    hasher: blake3::Hasher,
    hashed_bytes: u64,
}

impl<'a> Digests<'a> {
    pub fn arriving(self, segment: &'a SegmentPlan) -> Arriving<'a> {
        Arriving { digests: self, segment, hasher: blake3::Hasher::new(), hashed_bytes: 0, changed: None }
    }

    pub fn spread(self) -> Spread<'a> {
        Spread { digests: self, open: HashMap::new() }
    }

    /// Whether a segment has bytes for [`Spread`].
    pub fn has_parts(&self, segment: &SegmentPlan) -> bool {
        segment.pieces.iter().any(|piece| self.is_part(piece))
    }

    fn is_whole(&self, piece: &Piece) -> bool {
        !self.source.is_checked(piece.variable.file) && piece.bytes == piece.variable.of(self.files).raw_bytes.0
    }

    fn is_part(&self, piece: &Piece) -> bool {
        !self.source.is_checked(piece.variable.file) && piece.bytes != piece.variable.of(self.files).raw_bytes.0
    }

    fn compare(&self, variable: VariableRef, found: Digest) -> Result<(), FetchError> {
        if found == variable.of(self.files).digest {
            return Ok(());
        }
        let file = &self.files[variable.file as usize];
        Err(FetchError::Changed { rank: file.rank, file: file.path.to_string() })
    }
}

impl Arriving<'_> {
    /// Takes the next bytes of a piece. The pieces arrive one after the other, and the bytes of each piece arrive in
    /// order.
    pub fn push(&mut self, nth: usize, bytes: &[u8]) {
        let piece = &self.segment.pieces[nth];
        if !self.digests.is_whole(piece) {
            return;
        }
        let digest = if bytes.len() as u64 == piece.bytes {
            Digest::of(bytes)
        } else {
            self.hasher.update(bytes);
            self.hashed_bytes += bytes.len() as u64;
            if self.hashed_bytes < piece.bytes {
                return;
            }
            self.hashed_bytes = 0;
            let digest = self.hasher.finalize();
            self.hasher.reset();
            digest.into()
        };
        if let Err(error) = self.digests.compare(piece.variable, digest) {
            self.changed.get_or_insert(error);
        }
    }

    /// Returns the first difference as an error, if there is any.
    pub fn finish(self) -> Result<(), FetchError> {
        self.changed.map_or(Ok(()), Err)
    }
}

impl Spread<'_> {
    /// Takes the raw bytes of the next segment of the plan. The segment may have no parts of variables.
    pub fn push(&mut self, segment: &SegmentPlan, raw: &[u8]) -> Result<(), FetchError> {
        let lens: Vec<usize> = segment.pieces.iter().map(|piece| piece.bytes as usize).collect(); // at most 1 GiB
        runs(&lens, segment.layout, |run| {
            let piece = &segment.pieces[run.piece];
            if self.digests.is_part(piece) {
                let open = self.open.entry(piece.variable).or_default();
                open.hasher.update(&raw[run.in_segment.clone()]);
                open.hashed_bytes += run.in_segment.len() as u64;
            }
        });
        for piece in &segment.pieces {
            let raw_bytes = piece.variable.of(self.digests.files).raw_bytes.0;
            if self.open.get(&piece.variable).is_some_and(|open| open.hashed_bytes == raw_bytes)
                && let Some(open) = self.open.remove(&piece.variable)
            {
                self.digests.compare(piece.variable, open.hasher.finalize().into())?;
            }
        }
        Ok(())
    }
}
