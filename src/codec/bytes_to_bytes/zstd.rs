//! Codec Zstandard (RFC 8878), from the `zstd` crate. Takes any bytes. Restores every bit.
//!
//! A segment is one frame. The frame records its length, but no checksum, because the container has a checksum.
//! Decoding works from buffer to buffer, so no window is allocated, even if the frame asks for a large window.
//!
//! The parameter is a level of the library, or the sum of [`TABLE`] and the binary logarithm of the number of entries
//! in a hash table. A table parameter selects the library's strategy *fast* with matches of at least five bytes. This
//! strategy looks for a repeat of a place in one table. With 2^18 entries, this table remembers more places than the
//! two tables of level 3 (2^17 and 2^16 entries). Therefore this strategy finds more distant repeats, in less time.
//! Decoding needs no table.

use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids};
use std::fmt;
use std::ops::RangeInclusive;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, ResetDirective, Strategy};

pub(crate) const LEVEL_MAX: u32 = 22;
/// Parameters above this number give the size of the hash table.
pub(crate) const TABLE: u32 = 256;
/// The table parameters: 2^10 to 2^20 entries of 4 bytes.
const TABLES: RangeInclusive<u32> = TABLE + 10..=TABLE + 20;
/// Binary logarithm of the window. The profiles that use table parameters have no segment longer than this window.
const WINDOW_LOG: u32 = 22;
/// Length of the shortest repeat that the compressor looks for, in bytes.
const MATCH_BYTES_MIN: u32 = 5;

pub(crate) struct Zstd;

/// The compressor, with the parameter of its last use, and the decompressor. One compressor is used for all
/// parameters, and clears its tables when the parameter changes. One compressor for each parameter would need much
/// more memory at high levels.
#[derive(Default)]
pub(crate) struct Contexts {
    compressor: Option<(u32, Compressor<'static>)>,
    decompressor: Option<Decompressor<'static>>,
}

fn failed(source: std::io::Error) -> CodecError {
    CodecError::Library { codec: "zstd", source: Box::new(source) }
}

impl BytesCodec for Zstd {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::ZSTD, "zstd")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=LEVEL_MAX).contains(&param) || TABLES.contains(&param)
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        zstd::zstd_safe::compress_bound(raw_bytes)
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let (of, mut compressor) = match work.kept::<Contexts>().compressor.take() {
            Some((of, compressor)) => (Some(of), compressor),
            None => (None, Compressor::new(1).map_err(failed)?),
        };
        if of != Some(param) {
            prepare(&mut compressor, param).map_err(failed)?;
        }
        make_room(stored, self.max_encoded_bytes(raw.len()));
        compressor.compress_to_buffer(raw, stored).map_err(failed)?;
        work.kept::<Contexts>().compressor = Some((param, compressor));
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
        let decompressor = match &mut work.kept::<Contexts>().decompressor {
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

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match param.checked_sub(TABLE) {
            Some(log) => write!(f, "(fast 2^{log})"),
            None => write!(f, "({param})"),
        }
    }
}

/// Configures the compressor for a parameter, and removes all earlier settings.
fn prepare(compressor: &mut Compressor<'static>, param: u32) -> std::io::Result<()> {
    let reset = compressor.context_mut().reset(ResetDirective::SessionAndParameters);
    reset.map_err(|code| std::io::Error::other(zstd::zstd_safe::get_error_name(code)))?;
    let Some(table_log) = param.checked_sub(TABLE) else {
        return compressor.set_compression_level(param as i32); // the value is at most 22
    };
    let parameters = [
        CParameter::CompressionLevel(1),
        CParameter::Strategy(Strategy::ZSTD_fast),
        CParameter::WindowLog(WINDOW_LOG),
        CParameter::HashLog(table_log),
        CParameter::MinMatch(MATCH_BYTES_MIN),
    ];
    parameters.into_iter().try_for_each(|parameter| compressor.set_parameter(parameter))
}

/// Empties the buffer and ensures that the buffer has room for `bytes` bytes. `reserve` is not used, because
/// `reserve` would copy the old contents when the buffer grows.
fn make_room(buffer: &mut Vec<u8>, bytes: usize) {
    buffer.clear();
    if buffer.capacity() < bytes {
        *buffer = Vec::with_capacity(bytes);
    }
}
