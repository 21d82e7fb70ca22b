//! Codecs, and chains of them: how the raw bytes of a segment become its stored bytes, and back.
//!
//! The folders are the signatures. A [`Chain`] is exactly one codec of `array_to_bytes/`, which knows what an element
//! is, then any number from `bytes_to_bytes/`, which do not, at most [`STEPS_MAX`] in all. Encoding runs it forwards,
//! decoding backwards. Everything here is lossless, bit for bit, whatever the bytes are and however long: bytes after
//! the last whole element travel verbatim.
//!
//! The codecs, their numbers and their parameters are in `docs/format/codecs.md`; the numbers are in `ids.rs`.
//!
//! Decoding trusts nothing: whoever calls [`Chain::decode`] says how long the result must be, and has checked that
//! length against a limit. What the stored bytes claim never decides how much is allocated.

mod array_to_bytes;
mod bytes_to_bytes;
mod candidates;
mod chain;
mod decide;
mod error;
mod ids;
mod lzma_trial;
mod older;
mod profile;
mod registers;
mod repeats;
mod sample;
mod table;
mod threads;
mod traits;
mod trial;
mod work;

pub(crate) use array_to_bytes::predict::LANES_POINT_MAX;
pub use chain::{Chain, STEPS_MAX, Step};
pub use decide::{
    Basis, Coded, DECISIONS_MAX, Deciding, Decision, Decisions, KEPT_CHECKPOINTS_MAX, Reason, StoreRate, Trial,
    shared_name, since_name,
};
pub use error::{CodecError, SEGMENT_BYTES_MAX};
pub use ids::CodecId;
pub use older::{Older, OlderPlace};
pub(crate) use profile::UNTYPED_SEGMENT_DIVISOR;
pub use profile::{Profile, ProfileError};
pub use threads::{SegmentMemory, cores, threads_of_each};
pub(crate) use traits::BIG_ENDIAN;
pub use traits::{ArrayCodec, ArrayJob, ArrayShape, BytesCodec};
pub use trial::{encode_best, encode_chosen};
pub(crate) use work::resize_for_overwrite;
pub use work::{Scratch, Work};

#[cfg(test)]
mod tests;
