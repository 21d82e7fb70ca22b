//! As `predict`, with the same segment of an older checkpoint as side information: what did not change is copied from
//! there, and what did is predicted by what it was, by its own neighbours now, and by theirs then.
//!
//! Takes numbers of 4 and 8 bytes; bit-exact. The bytes are described in `predict/FORMAT.md`, section "Since".
//! Decoding needs the raw bytes of the older segment, which the container's index names; without them it fails.

use super::predict;
use crate::codec::{ArrayCodec, ArrayJob, CodecError, CodecId, Work, ids};
use std::fmt;

pub(crate) struct Since;

impl ArrayCodec for Since {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::SINCE, "since")
    }

    fn takes(&self, param: u32) -> bool {
        predict::Predict.takes(param) && !predict::is_of_bytes(param)
    }

    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize {
        // What is known is described as well, in no more than what the segment's own arrays take.
        predict::Predict.max_encoded_bytes(param, raw_bytes) * 2
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let older = work.older.clone().ok_or(CodecError::NothingOlder)?;
        predict::encode_since(job, &older, stored, work)
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let older = work.older.clone().ok_or(CodecError::NothingOlder)?;
        let wrong = CodecError::Damaged { codec: "since", what: "the stream does not say what it must" };
        predict::decode_since(param, stored, &older, raw_bytes, raw, work).ok_or(wrong)
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        predict::Predict.show(param, f)
    }
}
