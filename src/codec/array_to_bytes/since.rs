//! Codec `since`: predicts numbers like `predict`, with the bytes of the same variables in an older checkpoint as
//! additional input. Unchanged values are copied from the older segment. A changed value is predicted from its older
//! value, from its neighbours, and from the older values of its neighbours.
//!
//! Takes numbers of 4 and 8 bytes. Restores every bit. Section 10 of `docs/format/predict.md` describes the bytes.
//! Decoding needs the raw bytes of the older segment, which the container's index names. Without these bytes decoding
//! fails.

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
        // The description of the older segment takes no more bytes than the description of the segment's own arrays.
        predict::Predict.max_encoded_bytes(param, raw_bytes) * 2
    }

    fn memory_to_decode(&self, param: u32) -> u64 {
        // An estimate: half of `Profile::memory_per_older_byte`, which is for encoding and decoding together.
        const OF_OLDER: u64 = 8;
        predict::Predict.memory_to_decode(param) + OF_OLDER
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
        let wrong =
            CodecError::Damaged { codec: "since", what: "the stored bytes do not follow the format of the codec" };
        predict::decode_since(param, stored, &older, raw_bytes, raw, work).ok_or(wrong)
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        predict::Predict.show(param, f)
    }
}
