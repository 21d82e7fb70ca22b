//! Zstandard (RFC 8878), by the `zstd` crate. Takes any bytes; bit-exact.
//!
//! One frame per segment, with its length but without a checksum, since the container has its own. Decoding goes from
//! buffer to buffer, so no window is allocated, whatever the frame asks for.
//!
//! The parameter is one of the library's levels, or [`TABLE`] and the binary logarithm of the entries of one hash
//! table: its strategy *fast*, which looks for what comes again at one place only, but in a table that has room for
//! every place of a segment, and from five bytes on. What comes again far away is found so in less time than at level
//! 3, which looks at two places in tables that are too small for that. Decoding needs neither.

use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids};
use std::fmt;
use std::ops::RangeInclusive;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, ResetDirective, Strategy};

pub(crate) const LEVEL_MAX: u32 = 22;
/// Parameters above it say how large a table is.
pub(crate) const TABLE: u32 = 256;
/// Binary logarithms of its entries, 4 bytes each.
const TABLES: RangeInclusive<u32> = TABLE + 10..=TABLE + 20;
/// Reaches over every segment of the profiles that take tables.
const WINDOW_LOG: u32 = 22;
/// The least bytes that are looked for.
const MATCH_BYTES_MIN: u32 = 5;

pub(crate) struct Zstd;

/// The compressor, with the parameter that it was used with last, and the decompressor. One for all parameters: it
/// clears its tables where it gets another one, but one for each would take the memory of all, which at high levels
/// is much.
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

/// From now on it compresses as the parameter says, whatever it did before.
fn prepare(compressor: &mut Compressor<'static>, param: u32) -> std::io::Result<()> {
    let reset = compressor.context_mut().reset(ResetDirective::SessionAndParameters);
    reset.map_err(|code| std::io::Error::other(zstd::zstd_safe::get_error_name(code)))?;
    let Some(table_log) = param.checked_sub(TABLE) else {
        return compressor.set_compression_level(param as i32); // at most 22
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

/// Empties a buffer that has, or gets, room for so many bytes. Not `reserve`: growing, it would copy what was there.
fn make_room(buffer: &mut Vec<u8>, bytes: usize) {
    buffer.clear();
    if buffer.capacity() < bytes {
        *buffer = Vec::with_capacity(bytes);
    }
}
