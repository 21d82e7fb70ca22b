//! Finds the codec for a number.

use super::array_to_bytes::{columns, fpc, fpzip, mixed, pco, predict, raw, runs, since};
use super::bytes_to_bytes::{bitshuffle, gzip, lz4, lzma, shuffle, zstd};
use super::{ArrayCodec, BytesCodec, CodecError, CodecId, ids};

pub(super) enum Codec {
    Array(&'static dyn ArrayCodec),
    Bytes(&'static dyn BytesCodec),
}

impl Codec {
    pub(super) fn find(id: CodecId) -> Result<Self, CodecError> {
        Ok(match id {
            ids::RAW => Self::Array(&raw::Raw),
            ids::FPC => Self::Array(&fpc::Fpc),
            ids::FPZIP => Self::Array(&fpzip::Fpzip),
            ids::COLUMNS => Self::Array(&columns::Columns),
            ids::PREDICT => Self::Array(&predict::Predict),
            ids::RUNS => Self::Array(&runs::RunLengths),
            ids::SINCE => Self::Array(&since::Since),
            ids::MIXED => Self::Array(&mixed::Mixed),
            ids::PCO => Self::Array(&pco::Pco),
            ids::SHUFFLE => Self::Bytes(&shuffle::Shuffle),
            ids::LZ4 => Self::Bytes(&lz4::Lz4),
            ids::LZMA => Self::Bytes(&lzma::Lzma),
            ids::ZSTD => Self::Bytes(&zstd::Zstd),
            ids::GZIP => Self::Bytes(&gzip::Gzip),
            ids::BITSHUFFLE => Self::Bytes(&bitshuffle::Bitshuffle),
            CodecId(codec) => return Err(CodecError::Unknown { codec }),
        })
    }
}
