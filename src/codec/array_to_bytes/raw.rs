//! Codec `raw`: the bytes of the elements, unchanged. Takes any type. Restores every bit.

use crate::codec::{ArrayCodec, ArrayJob, CodecError, CodecId, Work, ids};
use std::fmt;

pub(crate) struct Raw;

impl ArrayCodec for Raw {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::RAW, "raw")
    }

    fn takes(&self, param: u32) -> bool {
        param == 0
    }

    fn max_encoded_bytes(&self, _: u32, raw_bytes: usize) -> usize {
        raw_bytes
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        stored.clear();
        stored.extend_from_slice(job.raw);
        Ok(())
    }

    fn decode(
        &self,
        _: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        _: &mut Work,
    ) -> Result<(), CodecError> {
        if stored.len() != raw_bytes {
            return Err(CodecError::Length { found: stored.len(), expected: raw_bytes });
        }
        raw.clear();
        raw.extend_from_slice(stored);
        Ok(())
    }

    fn show(&self, _: u32, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
