//! Codec `fpzip`, a new implementation, for floats and doubles in both byte orders. The codec is bit-exact, also for
//! NaN payloads, -0 and subnormal numbers.
//!
//! Source: P. Lindstrom, M. Isenburg, "Fast and efficient compression of floating-point data", IEEE Transactions on
//! Visualization and Computer Graphics 12(5), 2006. As in the paper, each value is predicted from earlier neighbours
//! by the Lorenzo predictor. The value and the prediction are mapped to integers, and the mapping keeps the order of
//! the numbers. An adaptive range coder codes the sign and the length of their difference. The bits below the leading
//! bit are stored unchanged.
//!
//! Differences from the paper and from the `fpzip` library:
//! - The streams are not compatible with the streams of the library.
//! - The range coder is different (see `entropy.rs`).
//! - The symbols and the raw bits are stored separately.
//! - The terms of the predictor are added in another order, so that only one addition depends on the previous value.
//! - If a prediction is NaN, the previous value is the prediction.
//!
//! Decoding gives the same bytes on every host, because every host evaluates the same IEEE 754 additions of the same
//! type in the same order. Each addition is rounded to nearest, and none is fused. The bits of a computed NaN are
//! never used.
//!
//! Payload: a varint with the number of records. Each record is four varints: the number of equal grids in sequence,
//! the number of elements in x, the number of rows in y, and the number of elements of one grid. Without records, all
//! elements are one row. Next comes one block for each 65536 elements. A block has four parts: a varint with the
//! number of bytes of the symbols, a varint with the number of bytes of the raw bits, the symbols, and the raw bits.
//! The bytes after the last whole element come last.

use super::entropy::{
    BitReader, BitWriter, Model, SYMBOL_BITS_MAX, SYMBOLS_OVERHEAD_BYTES, SymbolBuffers, decode_symbols, encode_symbols,
};
use super::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use crate::codec::{
    ArrayCodec, ArrayJob, ArrayShape, BIG_ENDIAN, CodecError, CodecId, Work, ids, resize_for_overwrite,
};
use std::fmt;
use std::ops::{Add, Sub};

/// Number of elements of a block, which is called chunk in this file. The symbols of a block are coded together.
const CHUNK_ELEMENTS: usize = 1 << 16;
/// The most elements of a span, which lies within one row. The predictions of a span are prepared together.
const SPAN_ELEMENTS: usize = 512;

pub(crate) struct Fpzip;

#[derive(Default)]
pub(crate) struct Buffers {
    symbols: Vec<u8>,
    coded: Vec<u8>,
    coder: SymbolBuffers,
    bits: BitWriter,
}

fn width_of(param: u32) -> usize {
    (param & 0xFF) as usize
}

impl ArrayCodec for Fpzip {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::FPZIP, "fpzip")
    }

    fn takes(&self, param: u32) -> bool {
        let dimensions = param >> 16;
        matches!(param & 0xFF, 4 | 8) && param & 0xFE00 == 0 && (1..=3).contains(&dimensions)
    }

    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize {
        let elements = raw_bytes / width_of(param);
        let chunks = elements.div_ceil(CHUNK_ELEMENTS);
        raw_bytes
            + elements * SYMBOL_BITS_MAX.div_ceil(8)
            + chunks * (2 * VARINT_BYTES_MAX + SYMBOLS_OVERHEAD_BYTES)
            + header_bytes_max(elements)
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        match width_of(job.param) {
            4 => encode::<f32>(job, stored, work.kept::<Buffers>()),
            _ => encode::<f64>(job, stored, work.kept::<Buffers>()),
        }
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let big = param & BIG_ENDIAN != 0;
        match width_of(param) {
            4 => decode::<f32>(big, stored, raw_bytes, raw, work.kept::<Buffers>()),
            _ => decode::<f64>(big, stored, raw_bytes, raw, work.kept::<Buffers>()),
        }
        .map_err(|what| CodecError::Damaged { codec: "fpzip", what })
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if param & BIG_ENDIAN != 0 { ",be" } else { "" };
        write!(f, "({},{}d{order})", param & 0xFF, param >> 16)
    }
}

/// A binary floating-point type, with a mapping to integers in the order of its values.
trait Real: Copy + Add<Output = Self> + Sub<Output = Self> {
    type Bytes: Copy;
    const BITS: u32;
    const ZERO: Self;
    /// A value that can be added to any sum, also to -0, without a change of the sum.
    const NEUTRAL: Self;
    fn elements(bytes: &[u8]) -> (&[Self::Bytes], &[u8]);
    fn elements_mut(bytes: &mut [u8]) -> (&mut [Self::Bytes], &mut [u8]);
    /// The bits of the element, in the low bits of the result.
    fn bits(bytes: Self::Bytes, big: bool) -> u64;
    fn bytes(bits: u64, big: bool) -> Self::Bytes;
    fn from_bits(bits: u64) -> Self;
    /// The bits of the number. `None` for a NaN, because the bits of a computed NaN differ between hosts.
    fn into_bits(self) -> Option<u64>;
}

macro_rules! real {
    ($real:ident, $bits:ident) => {
        impl Real for $real {
            type Bytes = [u8; size_of::<$real>()];
            const BITS: u32 = $bits::BITS;
            const ZERO: Self = 0.0;
            const NEUTRAL: Self = -0.0;
            fn elements(bytes: &[u8]) -> (&[Self::Bytes], &[u8]) {
                bytes.as_chunks()
            }
            fn elements_mut(bytes: &mut [u8]) -> (&mut [Self::Bytes], &mut [u8]) {
                bytes.as_chunks_mut()
            }
            #[inline(always)]
            fn bits(bytes: Self::Bytes, big: bool) -> u64 {
                u64::from(if big { $bits::from_be_bytes(bytes) } else { $bits::from_le_bytes(bytes) })
            }
            #[inline(always)]
            fn bytes(bits: u64, big: bool) -> Self::Bytes {
                let bits = bits as $bits; // this cast drops the higher bits
                if big { bits.to_be_bytes() } else { bits.to_le_bytes() }
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $real::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn into_bits(self) -> Option<u64> {
                if self.is_nan() { None } else { Some(u64::from(self.to_bits())) }
            }
        }
    };
}
real!(f32, u32);
real!(f64, u64);

/// A mask of all bits of the type.
const fn mask<T: Real>() -> u64 {
    !0 >> (64 - T::BITS)
}

/// Maps the bits of a number to an integer. The integers have the same order as the numbers.
#[inline(always)]
fn ordered<T: Real>(bits: u64) -> u64 {
    let sign = 1 << (T::BITS - 1);
    if bits & sign != 0 { !bits & mask::<T>() } else { bits | sign }
}

/// The inverse of [`ordered`].
#[inline(always)]
fn unordered<T: Real>(value: u64) -> u64 {
    let sign = 1 << (T::BITS - 1);
    if value & sign != 0 { value ^ sign } else { !value & mask::<T>() }
}

/// The prediction as an ordered integer. The prediction is the previous value plus the gradient from the neighbouring
/// rows.
#[inline(always)]
fn predict<T: Real>(before_bits: u64, gradient: T) -> u64 {
    let sum = T::from_bits(before_bits) + gradient;
    ordered::<T>(sum.into_bits().unwrap_or(before_bits))
}

/// The symbol for a difference of zero. A positive difference of n bits has this symbol plus n, and a negative
/// difference of n bits has this symbol minus n.
const fn no_difference<T: Real>() -> u32 {
    T::BITS
}
const fn symbols<T: Real>() -> usize {
    2 * T::BITS as usize + 1
}

fn encode<T: Real>(job: ArrayJob<'_>, stored: &mut Vec<u8>, buffers: &mut Buffers) {
    let big = job.param & BIG_ENDIAN != 0;
    let (elements, tail) = T::elements(job.raw);
    let mut grids = grids(job.arrays, job.param >> 16, elements.len());
    stored.clear();
    put_grids(&grids, stored);
    if stored.len() > header_bytes_max(elements.len()) {
        // The arrays are so small that storing their shapes costs more than the shapes save.
        grids.clear();
        stored.clear();
        put_grids(&grids, stored);
    }
    let Buffers { symbols: chunk_symbols, coded, coder, bits } = buffers;
    let mut model = Model::new(symbols::<T>(), false);
    let mut walk = Walk::new(&grids, elements.len());
    let mut gradients = [T::ZERO; SPAN_ELEMENTS];
    let mut at = 0;
    while at < elements.len() {
        let chunk = CHUNK_ELEMENTS.min(elements.len() - at);
        let chunk_end = at + chunk;
        chunk_symbols.clear();
        chunk_symbols.reserve(chunk);
        bits.clear();
        while at < chunk_end {
            let span = walk.next(chunk_end - at);
            let gradients = &mut gradients[..span.elements];
            span.gradients(&elements[..at], big, gradients);
            let mut before = span.before::<T>(&elements[..at], big);
            for (&element, &gradient) in elements[at..].iter().zip(&*gradients) {
                let value_bits = T::bits(element, big);
                let (value, prediction) = (ordered::<T>(value_bits), predict::<T>(before, gradient));
                let below = value < prediction;
                let difference = if below { prediction - value } else { value - prediction };
                let length = 64 - difference.leading_zeros();
                let symbol = if below { no_difference::<T>() - length } else { no_difference::<T>() + length };
                chunk_symbols.push(symbol as u8); // the value is at most 128
                if length > 1 {
                    bits.put(difference ^ 1 << (length - 1), length - 1);
                }
                before = value_bits;
            }
            at += span.elements;
        }
        coded.clear();
        encode_symbols(chunk_symbols, &mut model, coder, coded);
        let bits = bits.finish();
        put_varint(coded.len() as u32, stored); // both lengths are below 65536 * 8 bytes plus a few bytes
        put_varint(bits.len() as u32, stored);
        stored.extend_from_slice(coded);
        stored.extend_from_slice(bits);
    }
    stored.extend_from_slice(tail);
}

fn decode<T: Real>(
    big: bool,
    stored: &[u8],
    raw_bytes: usize,
    raw: &mut Vec<u8>,
    buffers: &mut Buffers,
) -> Result<(), &'static str> {
    let mut rest = stored;
    let count = raw_bytes / (T::BITS / 8) as usize;
    let grids = take_grids(&mut rest, count)?;
    resize_for_overwrite(raw, raw_bytes);
    let (elements, tail) = T::elements_mut(raw);
    let mut model = Model::new(symbols::<T>(), true);
    let mut walk = Walk::new(&grids, count);
    let mut gradients = [T::ZERO; SPAN_ELEMENTS];
    let mut at = 0;
    while at < count {
        let chunk = CHUNK_ELEMENTS.min(count - at);
        let chunk_end = at + chunk;
        let (Some(coded), Some(bits)) = (take_varint(&mut rest), take_varint(&mut rest)) else {
            return Err("the lengths of a block end too early");
        };
        let Some((coded, after)) = rest.split_at_checked(coded as usize) else {
            return Err("the symbols end too early");
        };
        let Some((bits, after)) = after.split_at_checked(bits as usize) else {
            return Err("the raw bits end too early");
        };
        rest = after;
        let chunk_symbols = &mut buffers.symbols;
        resize_for_overwrite(chunk_symbols, chunk);
        if !decode_symbols(coded, chunk_symbols, &mut model) {
            return Err("the symbols do not decode to a valid final state");
        }
        let mut chunk_symbols = chunk_symbols.iter();
        let mut bits = BitReader::new(bits);
        while at < chunk_end {
            let span = walk.next(chunk_end - at);
            let (done, open) = elements.split_at_mut(at);
            let gradients = &mut gradients[..span.elements];
            span.gradients(done, big, gradients);
            let mut before = span.before::<T>(done, big);
            for ((element, &gradient), &symbol) in open.iter_mut().zip(&*gradients).zip(&mut chunk_symbols) {
                let prediction = predict::<T>(before, gradient);
                let length = u32::from(symbol).abs_diff(no_difference::<T>());
                let difference = match length {
                    0 => 0,
                    _ => 1 << (length - 1) | bits.take(length - 1),
                };
                let below = u32::from(symbol) < no_difference::<T>();
                let value =
                    if below { prediction.wrapping_sub(difference) } else { prediction.wrapping_add(difference) };
                before = unordered::<T>(value & mask::<T>());
                *element = T::bytes(before, big);
            }
            at += span.elements;
        }
        if !bits.is_at_end() {
            return Err("the number of raw bits is wrong");
        }
    }
    if rest.len() != tail.len() {
        return Err("the number of bytes after the last element is wrong");
    }
    tail.copy_from_slice(rest);
    Ok(())
}

/// Equal grids in sequence. Each plane of a grid has `y` rows, and each row has `x` elements. The last plane and the
/// last row may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grids {
    count: usize,
    x: usize,
    y: usize,
    elements: usize,
}

/// The most bytes of the header that [`encode`] writes.
fn header_bytes_max(elements: usize) -> usize {
    VARINT_BYTES_MAX + elements / 16
}

/// The grids that the shapes describe, limited to the number of elements. An empty list means that all elements are
/// one row.
///
/// Only the fastest `dimensions` dimensions are used. An array with more dimensions is a stack of grids.
fn grids(arrays: &[ArrayShape], dimensions: u32, elements: usize) -> Vec<Grids> {
    let mut grids: Vec<Grids> = Vec::new();
    let mut left = elements;
    let mut is_one_row = true;
    let mut push = |count: usize, x: usize, y: usize, elements: usize| match grids.last_mut() {
        _ if count == 0 || elements == 0 => {}
        Some(last) if (last.x, last.y, last.elements) == (x, y, elements) => last.count += count,
        _ => grids.push(Grids { count, x, y, elements }),
    };
    for array in arrays {
        let here = usize::try_from(array.elements).unwrap_or(usize::MAX).min(left);
        left -= here;
        let extents: Vec<usize> =
            array.dims.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).filter(|&n| n != 1).collect();
        let fastest = &extents[extents.len().saturating_sub(dimensions as usize)..];
        let grid = fastest.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(0);
        match *fastest {
            [.., y, x] if grid > 0 && here > x => {
                push(here / grid, x, y, grid);
                push(usize::from(here % grid > 0), x, y, here % grid);
                is_one_row = false;
            }
            _ => push(1, here, 1, here),
        }
    }
    if left > 0 {
        push(1, left, 1, left);
    }
    if is_one_row { Vec::new() } else { grids }
}

fn put_grids(grids: &[Grids], out: &mut Vec<u8>) {
    let number = |n: usize| u32::try_from(n).expect("a segment has fewer than 2^32 elements");
    put_varint(number(grids.len()), out);
    for grid in grids {
        for n in [grid.count, grid.x, grid.y, grid.elements] {
            put_varint(number(n), out);
        }
    }
}

fn take_grids(rest: &mut &[u8], elements: usize) -> Result<Vec<Grids>, &'static str> {
    let records = take_varint(rest).ok_or("the header ends too early")? as usize;
    let mut grids = Vec::with_capacity(records.min(rest.len() / 4));
    let mut covered = 0usize;
    for _ in 0..records {
        let mut number = || take_varint(rest).filter(|&n| n > 0).map(|n| n as usize);
        let (Some(count), Some(x), Some(y), Some(each)) = (number(), number(), number(), number()) else {
            return Err("a grid is incomplete or empty");
        };
        covered = count.checked_mul(each).and_then(|n| n.checked_add(covered)).ok_or("the grids are too large")?;
        grids.push(Grids { count, x, y, elements: each });
    }
    if covered != elements && records > 0 {
        return Err("the grids do not cover the elements");
    }
    Ok(grids)
}

/// Walks over all elements, span by span.
struct Walk<'a> {
    rest: &'a [Grids],
    current: Grids,
    /// Number of elements of the current grid that the walk has passed.
    done: usize,
}

impl<'a> Walk<'a> {
    fn new(grids: &'a [Grids], elements: usize) -> Self {
        match grids.split_first() {
            Some((&current, rest)) => Self { rest, current, done: 0 },
            None => Self { rest: &[], current: Grids { count: 1, x: elements, y: 1, elements }, done: 0 },
        }
    }

    /// The next run of elements in one row. `most` must be at least 1, and at least one element must be left.
    #[inline]
    fn next(&mut self, most: usize) -> Span {
        if self.done == self.current.elements {
            self.done = 0;
            self.current.count -= 1;
            if self.current.count == 0 {
                let (&current, rest) = self.rest.split_first().expect("the grids cover all elements");
                (self.current, self.rest) = (current, rest);
            }
        }
        let Grids { x, y, elements, .. } = self.current;
        let (row, in_row) = (self.done / x, self.done % x);
        let span = Span {
            elements: (x - in_row).min(elements - self.done).min(most).min(SPAN_ELEMENTS),
            has_before: in_row > 0,
            row: if row % y > 0 { Some(x) } else { None },
            plane: if row >= y { Some(x * y) } else { None },
        };
        self.done += span.elements;
        span
    }
}

/// A run of elements in one row.
struct Span {
    elements: usize,
    /// Whether the first element has a previous neighbour in its row.
    has_before: bool,
    /// Distance to the previous row in elements. `None` if this plane has no previous row.
    row: Option<usize>,
    /// Distance to the previous plane in elements. `None` if there is no previous plane.
    plane: Option<usize>,
}

impl Span {
    /// The bits of the value before the first element. At the beginning of a row, the result is the bits of 0.
    fn before<T: Real>(&self, done: &[T::Bytes], big: bool) -> u64 {
        match done.last() {
            Some(&last) if self.has_before => T::bits(last, big),
            _ => 0,
        }
    }

    /// For each element, the expected step from the previous value, computed from the neighbouring rows. The step is
    /// the Lorenzo predictor without its first term. In a corner or on an edge, the step is from the Lorenzo
    /// predictor of fewer dimensions.
    #[inline]
    fn gradients<T: Real>(&self, done: &[T::Bytes], big: bool, gradients: &mut [T]) {
        // Applies the steps along the row that begins `back` elements earlier.
        let each_step = |back: usize, gradients: &mut [T], apply: fn(T, T) -> T| {
            let from = done.len() - back;
            let value = |i: usize| T::from_bits(T::bits(done[i], big));
            let mut before = if self.has_before { value(from - 1) } else { T::ZERO };
            for (gradient, &element) in gradients.iter_mut().zip(&done[from..]) {
                let here = T::from_bits(T::bits(element, big));
                *gradient = apply(*gradient, here - before);
                before = here;
            }
        };
        gradients.fill(T::NEUTRAL);
        match (self.row, self.plane) {
            (None, None) => {}
            (Some(back), None) | (None, Some(back)) => each_step(back, gradients, |sum, step| sum + step),
            (Some(row), Some(plane)) => {
                each_step(row, gradients, |sum, step| sum + step);
                each_step(plane, gradients, |sum, step| sum + step);
                each_step(row + plane, gradients, |sum, step| sum - step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(elements: u64, dims: &[u64]) -> ArrayShape {
        ArrayShape { elements, dims: dims.into(), ..ArrayShape::default() }
    }

    #[test]
    fn integers_have_the_order_of_the_numbers_and_come_back() {
        let numbers = [f64::NEG_INFINITY, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY];
        let mapped = numbers.map(|x| ordered::<f64>(x.to_bits()));
        assert!(mapped.is_sorted_by(|a, b| a < b), "{mapped:x?}");
        assert_eq!(mapped.map(unordered::<f64>), numbers.map(f64::to_bits));
        for bits in [0, 1, 0x7FC0_1234, 0xFFC0_0001, 0x8000_0000, 0xFFFF_FFFF] {
            assert_eq!(unordered::<f32>(ordered::<f32>(bits)), bits, "{bits:x}");
        }
    }

    #[test]
    fn grids_follow_the_shapes_and_always_cover_all_elements() {
        let grids_of = |arrays: &[ArrayShape], dimensions| grids(arrays, dimensions, 4096);
        let grid = |count, x, y, elements| Grids { count, x, y, elements };
        assert_eq!(grids_of(&[shape(4096, &[16, 16, 16])], 3), [grid(1, 16, 16, 4096)]);
        assert_eq!(grids_of(&[shape(4096, &[16, 16, 16])], 2), [grid(16, 16, 16, 256)]);
        assert_eq!(grids_of(&[shape(4096, &[16, 16, 16])], 1), []);
        assert_eq!(grids_of(&[shape(4096, &[4, 4, 1, 16, 16])], 3), [grid(4, 16, 16, 1024)]);
        // An array that is cut within a plane. The shape of the elements after the array is unknown.
        assert_eq!(grids_of(&[shape(3000, &[16, 16, 16])], 3), [grid(1, 16, 16, 3000), grid(1, 1096, 1, 1096)]);
        // Shapes with more elements than the segment, and impossible dimensions.
        assert_eq!(grids_of(&[shape(u64::MAX, &[u64::MAX, 16, 16])], 2), [grid(16, 16, 16, 256)]);
        assert_eq!(grids_of(&[shape(4096, &[u64::MAX, 16, 16])], 3), []);
        assert_eq!(grids_of(&[shape(4096, &[0, 16])], 3), []);
        assert_eq!(grids_of(&[], 3), []);
    }

    #[test]
    fn shapes_that_cost_more_than_they_bring_are_left_out() {
        let arrays: Vec<ArrayShape> = (0..128).map(|i| shape(32, &[4 + i % 2 * 4, 8 - i % 2 * 4])).collect();
        let raw = vec![1; 128 * 32 * 8];
        let encoded = |arrays| {
            let mut stored = Vec::new();
            let job = ArrayJob { param: 8 | 2 << 16, raw: &raw, arrays, members: &[] };
            encode::<f64>(job, &mut stored, &mut Buffers::default());
            stored
        };
        assert_eq!(encoded(&arrays), encoded(&[]));
        assert_ne!(encoded(&arrays[..2]), encoded(&[]));
    }

    /// The field is linear in each coordinate, so the Lorenzo predictor is exact except at the edges.
    #[test]
    fn neighbours_in_three_dimensions_make_a_smooth_field_small() {
        let n = 32u64;
        let value = |i: u64| (i % n) as f64 * 3.0 + (i / n % n) as f64 * 500.0 - (i / n / n) as f64 * 7000.0;
        let raw: Vec<u8> = (0..n * n * n).flat_map(|i| value(i).to_le_bytes()).collect();
        let mut sizes = [1, 2, 3].map(|dimensions| {
            let arrays = [shape(n * n * n, &[n, n, n])];
            let job = ArrayJob { param: 8 | dimensions << 16, raw: &raw, arrays: &arrays, members: &[] };
            let mut stored = Vec::new();
            encode::<f64>(job, &mut stored, &mut Buffers::default());
            stored.len()
        });
        assert!(sizes[2] * 8 < sizes[0] && sizes[2] < sizes[1], "{sizes:?}");
        sizes.sort_unstable();
        assert!(sizes[0] * 50 < raw.len(), "{sizes:?}");
    }
}
