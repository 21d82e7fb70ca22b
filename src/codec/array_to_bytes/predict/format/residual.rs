//! Decodes a column's differences from bytes. Differences are stored in one of the following ways, and
//! `code_numbers.rs` finds the shortest way:
//!
//! - *none*: all numbers are zero.
//! - *pco*: `pco` (M. Loncaric, pcodec), which finds bins with a fixed number of bits each. If the numbers are not
//!   predicted, pco may also store differences of consecutive numbers, or multiples of a common number. Decoding is
//!   about as fast as reading memory. The numbers are stored as the narrowest integers that hold all numbers, because
//!   the start of each bin takes the width of one integer.
//! - *bytes*: bytes of equal significance are stored together, then compressed by zstd.
//! - *bits*: bits of equal significance are stored together, then compressed by zstd. This way is used only for
//!   numbers without prediction.

use crate::codec::bytes_to_bytes::bitshuffle::{Lanes, unshuffle_bits};
use pco::data_types::Number;
use pco::standalone::simple_decompress_into;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    None = 0,
    Pco = 1,
    Pco4 = 2,
    Pco2 = 3,
    PcoFloats = 4,
    Bytes = 5,
    Bits = 6,
}

/// Decodes `count` numbers into the buffer `values`, whose old contents are overwritten. `None` if the bytes are not
/// valid. `ordered` turns a double into its ordered integer.
pub(crate) fn decode(
    code: &[u8],
    count: usize,
    ordered: impl Fn(f64) -> i64,
    mut values: Vec<i64>,
) -> Option<Vec<i64>> {
    let (&way, code) = code.split_first()?;
    values.resize(count, 0); // old numbers are overwritten below
    match way {
        way if way == Way::None as u8 => {
            code.is_empty().then_some(())?;
            values.fill(0);
        }
        way if way == Way::Pco as u8 => from_pco(code, &mut values)?,
        way if way == Way::Pco4 as u8 => widened::<i32>(code, &mut values, i64::from)?,
        way if way == Way::Pco2 as u8 => widened::<i16>(code, &mut values, i64::from)?,
        way if way == Way::PcoFloats as u8 => widened::<f64>(code, &mut values, ordered)?,
        way if way == Way::Bytes as u8 => {
            let shuffled = zstd::bulk::decompress(code, count * 8).ok().filter(|bytes| bytes.len() == count * 8)?;
            values.fill(0);
            for (byte, plane) in shuffled.chunks_exact(count.max(1)).enumerate() {
                values.iter_mut().zip(plane).for_each(|(v, &b)| *v |= i64::from(b) << (8 * byte));
            }
        }
        way if way == Way::Bits as u8 => {
            let planes = zstd::bulk::decompress(code, count * 8).ok().filter(|planes| planes.len() == count * 8)?;
            from_bits(&planes, &mut values);
        }
        _ => return None,
    }
    Some(values)
}

/// Decoded numbers. Numbers of four bytes are kept, and widened to eight bytes one row at a time, so that the row
/// stays in the processor's cache.
#[derive(Default)]
pub(crate) struct Decoded {
    wide: Vec<i64>,
    narrow: Vec<i32>,
    is_narrow: bool,
}

impl Decoded {
    /// Decodes numbers like [`decode`]. The buffers of the last argument are reused.
    pub(crate) fn new(
        code: &[u8],
        count: usize,
        ordered: impl Fn(f64) -> i64,
        Self { wide, mut narrow, .. }: Self,
    ) -> Option<Self> {
        match code {
            [way, code @ ..] if *way == Way::Pco4 as u8 => {
                narrow.resize(count, 0); // old numbers are overwritten below
                from_pco(code, &mut narrow)?;
                Some(Self { wide, narrow, is_narrow: true })
            }
            _ => Some(Self { wide: decode(code, count, ordered, wide)?, narrow, is_narrow: false }),
        }
    }

    pub(crate) fn in_turn(&self) -> InTurn<'_> {
        InTurn { all: self, at: 0, row: Vec::new() }
    }
}

/// Reads decoded numbers in order, one row at a time.
pub(crate) struct InTurn<'a> {
    all: &'a Decoded,
    at: usize,
    row: Vec<i64>,
}

impl InTurn<'_> {
    /// The next number; `None` if no number is left.
    #[inline(always)]
    pub(crate) fn one(&mut self) -> Option<i64> {
        let at = self.at;
        self.at += 1;
        if self.all.is_narrow { self.all.narrow.get(at).map(|&n| n.into()) } else { self.all.wide.get(at).copied() }
    }

    /// The next `count` numbers; `None` if fewer numbers are left.
    #[inline(always)]
    pub(crate) fn some(&mut self, count: usize) -> Option<&[i64]> {
        let own = self.at..self.at + count;
        self.at = own.end;
        if !self.all.is_narrow {
            return self.all.wide.get(own);
        }
        self.row.clear();
        self.row.extend(self.all.narrow.get(own)?.iter().map(|&n| i64::from(n)));
        Some(&self.row)
    }
}

/// Fills `numbers` from a file of pco. Returns `None` if the file holds more or fewer numbers.
pub(crate) fn from_pco<T: Number>(code: &[u8], numbers: &mut [T]) -> Option<()> {
    let progress = simple_decompress_into(code, numbers).ok()?;
    (progress.n_processed == numbers.len() && progress.finished).then_some(())
}

/// Fills `values` like [`from_pco`], from a file with another type of numbers. `wide` converts each number.
pub(crate) fn widened<T: Number + Default>(code: &[u8], values: &mut [i64], wide: impl Fn(T) -> i64) -> Option<()> {
    let mut numbers = vec![T::default(); values.len()];
    from_pco(code, &mut numbers)?;
    values.iter_mut().zip(&numbers).for_each(|(v, &number)| *v = wide(number));
    Some(())
}

/// The inverse of `to_bits` in `code_numbers.rs`.
pub(crate) fn from_bits(planes: &[u8], values: &mut [i64]) {
    let mut bytes = vec![0; planes.len()];
    unshuffle_bits(planes, u64::BITS / 8, &mut bytes, &mut Lanes::default());
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0) {
        let zigzag = u64::from_le_bytes(*bytes);
        *value = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    }
}
