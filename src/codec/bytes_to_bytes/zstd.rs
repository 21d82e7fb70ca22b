//! Zstandard (RFC 8878), by the `zstd` crate. Takes any bytes; bit-exact.
//!
//! One frame per segment, with its length but without a checksum, since the container has its own. Decoding goes from
//! buffer to buffer, so no window is allocated, whatever the frame asks for.

use crate::codec::{BytesCodec, CodecError, CodecId, Work};
use zstd::bulk::{Compressor, Decompressor};

pub(crate) const ID: CodecId = CodecId(18);
pub(crate) const LEVEL_MAX: u32 = 22;

pub(crate) struct Zstd;

/// The compressors last used, with their levels, the last first, and the decompressor. A compressor that changes its level
/// clears its tables.
#[derive(Default)]
pub(crate) struct Contexts {
    compressors: Vec<(u32, Compressor<'static>)>,
    decompressor: Option<Decompressor<'static>>,
}

/// zstd alone and after a shuffle, as profiles have them, each with a level of its own.
const COMPRESSORS_MAX: usize = 2;

fn failed(source: std::io::Error) -> CodecError {
    CodecError::Library { codec: "zstd", source: Box::new(source) }
}

impl BytesCodec for Zstd {
    fn id(&self) -> (CodecId, &'static str) {
        (ID, "zstd")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=LEVEL_MAX).contains(&param)
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        zstd::zstd_safe::compress_bound(raw_bytes)
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let compressors = &mut work.zstd.compressors;
        let mut context = match compressors.iter().position(|(level, _)| *level == param) {
            Some(at) => compressors.remove(at),
            None if compressors.len() < COMPRESSORS_MAX => (param, Compressor::new(param as i32).map_err(failed)?), // at most 22
            None => {
                let (_, mut compressor) = compressors.pop().expect("some are there");
                compressor.set_compression_level(param as i32).map_err(failed)?;
                (param, compressor)
            }
        };
        make_room(stored, self.max_encoded_bytes(raw.len()));
        context.1.compress_to_buffer(raw, stored).map_err(failed)?;
        compressors.insert(0, context);
        Ok(())
    }

    fn decode(
        &self,
        _: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let decompressor = match &mut work.zstd.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().map_err(failed)?),
        };
        make_room(raw, limit);
        decompressor.decompress_to_buffer(stored, raw).map_err(failed)?;
        if raw.len() > limit {
            return Err(CodecError::Length { found: raw.len(), expected: limit });
        }
        Ok(())
    }
}

/// Empties a buffer that has, or gets, room for so many bytes. Not `reserve`: growing, it would copy what was there.
fn make_room(buffer: &mut Vec<u8>, bytes: usize) {
    buffer.clear();
    if buffer.capacity() < bytes {
        *buffer = Vec::with_capacity(bytes);
    }
}
