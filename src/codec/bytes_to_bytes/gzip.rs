//! Codec gzip (RFC 1952) with one member, from zlib through the `flate2` crate. Takes any bytes. Restores every bit.
//!
//! The original mcrEngine uses gzip as its second pass. The gzip member has a CRC-32, and decoding compares the
//! CRC-32 with the decoded bytes.

use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

pub(crate) const LEVEL_MAX: u32 = 9;
/// Binary logarithm of zlib's window. 15 is the largest value.
const WINDOW_BITS: u8 = 15;

pub(crate) struct Gzip;

/// The compressor of the last call, with its level. The compressor is kept because it takes about 256 KiB. A
/// decompressor is small, so each call makes a new decompressor.
#[derive(Default)]
pub(crate) struct Contexts {
    compressor: Option<(u32, Compress)>,
}

fn failed(source: impl std::error::Error + Send + Sync + 'static) -> CodecError {
    CodecError::Library { codec: "gzip", source: Box::new(source) }
}

impl BytesCodec for Gzip {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::GZIP, "gzip")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=LEVEL_MAX).contains(&param)
    }

    /// The upper bound that zlib itself uses, plus room for the gzip header and trailer.
    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        raw_bytes + raw_bytes.div_ceil(8) + raw_bytes.div_ceil(64) + 64
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let compressor = match &mut work.kept::<Contexts>().compressor {
            Some((level, compressor)) if *level == param => {
                compressor.reset();
                compressor
            }
            other => &mut other.insert((param, Compress::new_gzip(Compression::new(param), WINDOW_BITS))).1,
        };
        stored.clear();
        stored.reserve(self.max_encoded_bytes(raw.len()));
        match compressor.compress_vec(raw, stored, FlushCompress::Finish).map_err(failed)? {
            Status::StreamEnd => Ok(()),
            Status::Ok | Status::BufError => {
                Err(CodecError::Damaged { codec: "gzip", what: "zlib needs more bytes than its own upper bound" })
            }
        }
    }

    fn decode(&self, _: u32, stored: &[u8], limit: usize, raw: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        let mut decompressor = Decompress::new_gzip(WINDOW_BITS);
        raw.clear();
        raw.reserve(limit);
        let status = decompressor.decompress_vec(stored, raw, FlushDecompress::Finish).map_err(failed)?;
        match status {
            Status::StreamEnd if decompressor.total_in() != stored.len() as u64 => {
                Err(CodecError::Damaged { codec: "gzip", what: "there are bytes after the end of the stream" })
            }
            Status::StreamEnd if raw.len() > limit => Err(CodecError::Length { found: raw.len(), expected: limit }),
            Status::StreamEnd => Ok(()),
            Status::Ok | Status::BufError => Err(CodecError::Damaged {
                codec: "gzip",
                what: "the stream ends too early, or its contents are too long",
            }),
        }
    }
}
