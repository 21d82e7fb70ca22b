//! What a codec is: the two signatures, and what they are given.

use super::{CodecError, CodecId, Work};
use crate::header::Member;
use std::fmt;

pub(crate) const BIG_ENDIAN: u32 = 1 << 8;

/// What one piece of a segment is: how many elements, and how they lie. Advice for the codecs that look at
/// neighbours, never a promise: a piece may be cut in the middle of a row, or of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayShape {
    /// Whole elements of the piece.
    pub elements: u64,
    /// Extents of the array that the piece was cut from, slowest first.
    pub dims: Vec<u64>,
    /// Extents of its chunks, if it lies chunk after chunk, the last ones filled up; none if row after row.
    pub chunk: Vec<u64>,
    /// Pieces of one class have the same number; the classes of a segment come one after the other.
    pub column: u32,
    /// Integers, in a segment of real numbers.
    pub is_integer: bool,
}

/// The codec that turns elements into bytes; exactly one per chain. Pure: the same input gives the same bytes on
/// every host, thread and run.
pub trait ArrayCodec: Send + Sync {
    /// Number and name, as in `docs/format/codecs.md`.
    fn id(&self) -> (CodecId, &'static str);
    /// Whether the parameter is valid. The other methods are called with valid ones only.
    fn takes(&self, param: u32) -> bool;
    /// The most bytes that `encode` gives for `raw_bytes` bytes of input.
    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize;
    /// Replaces `stored` by the code of `raw`.
    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError>;
    /// Replaces `raw` by what was encoded, exactly `raw_bytes` bytes, or fails.
    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError>;
    /// The parameter for people.
    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// What an [`ArrayCodec`] is to encode.
#[derive(Clone, Copy)]
pub struct ArrayJob<'a> {
    /// The parameter of its step.
    pub param: u32,
    /// The bytes.
    pub raw: &'a [u8],
    /// How they lie, piece by piece; may be empty or not add up.
    pub arrays: &'a [ArrayShape],
    /// The members of a record, where known.
    pub members: &'a [Member],
}

/// A codec from bytes to bytes. Pure, except that a newer release of a library may find shorter bytes.
pub trait BytesCodec: Send + Sync {
    /// Number and name, as in `docs/format/codecs.md`.
    fn id(&self) -> (CodecId, &'static str);
    /// Whether the parameter is valid. The other methods are called with valid ones only.
    fn takes(&self, param: u32) -> bool;
    /// The most bytes that `encode` gives for `raw_bytes` bytes of input.
    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize;
    /// Replaces `stored` by the code of `raw`.
    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError>;
    /// Replaces `raw` by what was encoded, at most `limit` bytes, or fails.
    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError>;
    /// The parameter for people, with its brackets.
    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if param == 0 { Ok(()) } else { write!(f, "({param})") }
    }
}
