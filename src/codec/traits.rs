//! The two kinds of codecs (`ArrayCodec` and `BytesCodec`), and the inputs of `ArrayCodec`.

use super::{CodecError, CodecId, Work};
use crate::header::Member;
use std::fmt;

pub(crate) const BIG_ENDIAN: u32 = 1 << 8;

/// The shape of one piece of a segment. Codecs that use neighbours treat the shape as a hint, because a piece may
/// begin or end in the middle of a row or of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrayShape {
    /// Number of whole elements in the piece.
    pub elements: u64,
    /// Number of elements along each dimension of the array from which the piece was cut. The slowest dimension comes
    /// first.
    pub dims: Vec<u64>,
    /// Number of elements along each dimension of a chunk, if the array is stored chunk after chunk with padded last
    /// chunks. Empty if the array is stored row after row.
    pub chunk: Vec<u64>,
    /// Number of the piece's class. Pieces of one class have the same number, and lie together in the segment.
    pub column: u32,
    /// Whether the elements of the piece are integers although the segment has floating-point numbers.
    pub is_integer: bool,
}

/// A codec that turns elements into bytes. Each chain has exactly one `ArrayCodec`. The same input gives the same
/// bytes on every host, on every thread and in every run.
pub trait ArrayCodec: Send + Sync {
    /// Number and name of the codec, as in `docs/format/codecs.md`.
    fn id(&self) -> (CodecId, &'static str);
    /// Whether the parameter is valid. The other methods are called with valid parameters only.
    fn takes(&self, param: u32) -> bool;
    /// The most bytes that `encode` can produce for `raw_bytes` bytes of input.
    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize;
    /// Memory that decoding takes for each raw byte, in bytes: the result, the buffers, and the input if another codec
    /// made it. The values are measured maxima, rounded up.
    fn memory_to_decode(&self, _param: u32) -> u64 {
        2
    }
    /// Encodes the bytes of `job` and replaces the contents of `stored` with the result.
    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError>;
    /// Decodes `stored` and replaces the contents of `raw` with exactly `raw_bytes` bytes, or fails.
    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError>;
    /// Writes the parameter as text for people.
    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The input of [`ArrayCodec::encode`].
#[derive(Clone, Copy)]
pub struct ArrayJob<'a> {
    /// The parameter of the codec's step.
    pub param: u32,
    /// The bytes to encode.
    pub raw: &'a [u8],
    /// The shape of each piece of the bytes. The list may be empty, and the shapes may have more or fewer elements
    /// than `raw`.
    pub arrays: &'a [ArrayShape],
    /// The members of a record, if they are known.
    pub members: &'a [Member],
}

/// A codec from bytes to bytes. The same input gives the same bytes, except that a newer release of a library may
/// give fewer bytes.
pub trait BytesCodec: Send + Sync {
    /// Number and name of the codec, as in `docs/format/codecs.md`.
    fn id(&self) -> (CodecId, &'static str);
    /// Whether the parameter is valid. The other methods are called with valid parameters only.
    fn takes(&self, param: u32) -> bool;
    /// The most bytes that `encode` can produce for `raw_bytes` bytes of input.
    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize;
    /// Memory that decoding takes for each raw byte, in bytes, like [`ArrayCodec::memory_to_decode`].
    fn memory_to_decode(&self) -> u64 {
        2
    }
    /// Encodes `raw` and replaces the contents of `stored` with the result.
    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError>;
    /// Decodes `stored` and replaces the contents of `raw` with at most `limit` bytes, or fails.
    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError>;
    /// Writes the parameter as text for people, in brackets.
    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if param == 0 { Ok(()) } else { write!(f, "({param})") }
    }
}
