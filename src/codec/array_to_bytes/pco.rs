//! Codec pcodec, from the `pco` crate. The crate itself finds whether to store differences, whether all numbers are
//! multiples of a common base, and into which bins to sort the numbers. Takes integers of 2, 4 or 8 bytes and
//! floating-point numbers of 4 or 8 bytes, in both byte orders. Restores every bit.
//!
//! Source: M. Loncaric, J. Jeppesen, M. Zinberg, "Pcodec: better compression for numerical sequences", 2025
//! (arXiv:2502.06112). The codec `predict` also uses pcodec, for the residuals of predictions. This codec uses pcodec
//! for the numbers, without a prediction.
//!
//! Payload: a standalone pco file (format 1.x) of all whole elements, then the bytes after the last whole element.
//! The file stores numbers, so the byte order of the elements is recorded in the parameter only.

use crate::codec::{ArrayCodec, ArrayJob, BIG_ENDIAN, CodecError, CodecId, Work, ids, resize_for_overwrite};
use pco::ChunkConfig;
use pco::data_types::Number;
use pco::standalone::{guarantee, simple_compress, simple_decompress_into};
use std::fmt;

/// Flags of the parameter: the elements are integers; the integers are unsigned.
const INTEGERS: u32 = 1 << 9;
const UNSIGNED: u32 = 1 << 10;
const LEVEL_SHIFT: u32 = 16;
pub(crate) const LEVEL_MAX: u32 = 12;

pub(crate) struct Pco;

/// The kind of the elements.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Float,
    Signed,
    Unsigned,
}

/// The parameter for elements of the given width, byte order and kind.
pub(crate) fn param(width: u8, is_big: bool, kind: Kind, level: u32) -> u32 {
    let kind = match kind {
        Kind::Float => 0,
        Kind::Signed => INTEGERS,
        Kind::Unsigned => INTEGERS | UNSIGNED,
    };
    let big = if is_big { BIG_ENDIAN } else { 0 };
    u32::from(width) | big | kind | level.clamp(1, LEVEL_MAX) << LEVEL_SHIFT
}

fn failed(source: pco::errors::PcoError) -> CodecError {
    CodecError::Library { codec: "pco", source: Box::new(source) }
}

/// Calls a generic function with the number type that a parameter names.
macro_rules! with_type {
    ($param:expr, $function:ident($($argument:expr),*)) => {
        match ($param & 0xFF, $param & (INTEGERS | UNSIGNED)) {
            (4, 0) => $function::<f32, 4>($($argument),*),
            (8, 0) => $function::<f64, 8>($($argument),*),
            (2, INTEGERS) => $function::<i16, 2>($($argument),*),
            (4, INTEGERS) => $function::<i32, 4>($($argument),*),
            (8, INTEGERS) => $function::<i64, 8>($($argument),*),
            (2, _) => $function::<u16, 2>($($argument),*),
            (4, _) => $function::<u32, 4>($($argument),*),
            _ => $function::<u64, 8>($($argument),*),
        }
    };
}

impl ArrayCodec for Pco {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::PCO, "pco")
    }

    fn takes(&self, param: u32) -> bool {
        let (width, kind, level) = (param & 0xFF, param & (INTEGERS | UNSIGNED), param >> LEVEL_SHIFT);
        let is_type = match width {
            2 => kind & INTEGERS != 0,
            4 | 8 => kind != UNSIGNED,
            _ => false,
        };
        is_type && param & 0xF800 == 0 && (1..=LEVEL_MAX).contains(&level)
    }

    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize {
        with_type!(param, most(raw_bytes))
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        with_type!(job.param, encode(job, stored))
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        _: &mut Work,
    ) -> Result<(), CodecError> {
        with_type!(param, decode(param, stored, raw_bytes, raw))
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match param & (INTEGERS | UNSIGNED) {
            0 => 'f',
            INTEGERS => 'i',
            _ => 'u',
        };
        let big = if param & BIG_ENDIAN != 0 { "be" } else { "" };
        write!(f, "({letter}{}{big}, level {})", (param & 0xFF) * 8, param >> LEVEL_SHIFT)
    }
}

/// Conversion between a number and its bytes in little-endian order.
trait Bytes<const WIDTH: usize>: Number {
    fn from_bytes(bytes: [u8; WIDTH]) -> Self;
    fn to_bytes(self) -> [u8; WIDTH];
}
macro_rules! bytes {
    ($($number:ty)*) => {$(
        impl Bytes<{ size_of::<$number>() }> for $number {
            fn from_bytes(bytes: [u8; size_of::<$number>()]) -> Self {
                Self::from_le_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; size_of::<$number>()] {
                self.to_le_bytes()
            }
        }
    )*};
}
bytes!(u16 u32 u64 i16 i32 i64 f32 f64);

fn most<T: Bytes<WIDTH>, const WIDTH: usize>(raw_bytes: usize) -> usize {
    let config = ChunkConfig::default();
    // The default paging is always valid, so `file_size` succeeds. The fallback is larger than any file that pco
    // writes.
    let file = guarantee::file_size::<T::L>(raw_bytes / WIDTH, &config.paging_spec);
    file.unwrap_or(raw_bytes * 2 + 4096) + raw_bytes % WIDTH
}

fn encode<T: Bytes<WIDTH>, const WIDTH: usize>(job: ArrayJob<'_>, stored: &mut Vec<u8>) -> Result<(), CodecError> {
    let (elements, tail) = job.raw.as_chunks::<WIDTH>();
    let is_big = job.param & BIG_ENDIAN != 0;
    let number = |element: &[u8; WIDTH]| {
        let mut bytes = *element;
        if is_big {
            bytes.reverse();
        }
        T::from_bytes(bytes)
    };
    let numbers: Vec<T> = elements.iter().map(number).collect();
    let level = (job.param >> LEVEL_SHIFT) as usize;
    *stored = simple_compress(&numbers, &ChunkConfig::default().with_compression_level(level)).map_err(failed)?;
    stored.extend_from_slice(tail);
    Ok(())
}

fn decode<T: Bytes<WIDTH>, const WIDTH: usize>(
    param: u32,
    stored: &[u8],
    raw_bytes: usize,
    raw: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let damaged = |what| CodecError::Damaged { codec: "pco", what };
    let tail_at =
        stored.len().checked_sub(raw_bytes % WIDTH).ok_or_else(|| damaged("the stored bytes end too early"))?;
    let (file, tail) = stored.split_at(tail_at);
    let mut numbers = vec![T::from_bytes([0; WIDTH]); raw_bytes / WIDTH];
    let progress = simple_decompress_into(file, &mut numbers).map_err(failed)?;
    if progress.n_processed != numbers.len() || !progress.finished {
        return Err(damaged("the number of elements is wrong"));
    }
    resize_for_overwrite(raw, raw_bytes);
    let (elements, raw_tail) = raw.as_chunks_mut::<WIDTH>();
    for (element, number) in elements.iter_mut().zip(numbers) {
        *element = number.to_bytes();
        if param & BIG_ENDIAN != 0 {
            element.reverse();
        }
    }
    raw_tail.copy_from_slice(tail);
    Ok(())
}
