//! Codecs and chains of codecs convert between the raw bytes and the stored bytes of a segment.
//!
//! Each folder has the codecs with one signature: from array to bytes, or from bytes to bytes. A [`Chain`] is one
//! codec of `array_to_bytes/`, then any number of codecs of `bytes_to_bytes/`, at most [`STEPS_MAX`] codecs in all.
//! Only the codec of `array_to_bytes/` uses the type of the elements. Encoding runs the codecs of the chain forwards,
//! and decoding runs them backwards. All codecs are lossless, bit for bit, for any bytes of any length. Bytes after
//! the last whole element are stored unchanged.
//!
//! `docs/format/codecs.md` lists the codecs with their numbers and parameters. `ids.rs` defines the numbers.
//!
//! Decoding does not trust the stored bytes. The caller of [`Chain::decode`] gives the length of the result, and must
//! have compared this length with a limit. A length in the stored bytes never determines how much memory is
//! allocated.

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
