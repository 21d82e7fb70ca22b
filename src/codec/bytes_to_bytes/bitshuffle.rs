//! Codec `bitshuffle`: stores bit 0 of byte 0 of every element, then bit 1 of byte 0 of every element, and so on.
//! Takes elements of any width. Restores every bit.
//!
//! Source: K. Masui et al., "A compression scheme for radio data in high performance computing", Astronomy and
//! Computing 12, 2015, and the HDF5 filter of that paper. There are two differences from the filter. A plane covers
//! the whole segment instead of a block of some kilobytes, so the next codec leaves fewer bytes. The filter also runs
//! a second codec, such as LZ4; here the chain names the next codec.
//!
//! The bytes are first shuffled by `shuffle`, which gives one lane of bytes for each byte of an element. Then the
//! bits of each lane are transposed. Each 8 bytes of a lane are a matrix of 8 x 8 bits in a 64-bit word (Warren,
//! Hacker's Delight, section 7-3), and eight words are transposed at the same time. This code works on every
//! processor. On processors with AVX2, `tiles` does the same work.
//!
//! Payload, as long as the raw bytes: M is the number of whole elements, rounded down to a multiple of 8. For each
//! byte of an element and for each bit of the byte, the lowest bit first, there is one plane of M / 8 bytes. Byte i
//! of a plane holds this bit of the elements 8 i to 8 i + 7, with element 8 i in the lowest bit. All bytes after the
//! M elements follow unchanged.

use super::shuffle::{shuffle, transpose, unshuffle};
use super::tiles;
use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids, resize_for_overwrite};
use crate::header::ELEMENT_WIDTH_MAX;

pub(crate) struct Bitshuffle;

/// Lanes of bytes of one block of elements, between the shuffle of bytes and the shuffle of bits.
#[derive(Default)]
pub(crate) struct Lanes(Vec<u8>);

impl BytesCodec for Bitshuffle {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::BITSHUFFLE, "bitshuffle")
    }

    fn takes(&self, param: u32) -> bool {
        (1..=ELEMENT_WIDTH_MAX).contains(&param)
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        raw_bytes
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        resize_for_overwrite(stored, raw.len());
        shuffle_bits(raw, param, stored, work.kept::<Lanes>());
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        if stored.len() > limit {
            return Err(CodecError::Length { found: stored.len(), expected: limit });
        }
        resize_for_overwrite(raw, stored.len());
        unshuffle_bits(stored, param, raw, work.kept::<Lanes>());
        Ok(())
    }
}

/// Turns elements of the given width into planes of bits. `raw` and `stored` are equally long.
pub(crate) fn shuffle_bits(raw: &[u8], width: u32, stored: &mut [u8], lanes: &mut Lanes) {
    let (whole, rest) = raw.split_at(whole_bytes(raw.len(), width));
    let (planes, stored_rest) = stored.split_at_mut(whole.len());
    stored_rest.copy_from_slice(rest);
    let width = width as usize;
    let count = whole.len() / width;
    for (from, elements) in blocks(count, width) {
        resize_for_overwrite(&mut lanes.0, elements * width);
        shuffle(&whole[from * width..][..elements * width], width, &mut lanes.0);
        for (lane, planes) in lanes.0.chunks_exact(elements).zip(planes.chunks_exact_mut(count)) {
            to_planes(lane, planes, from / 8);
        }
    }
}

/// The inverse of [`shuffle_bits`].
pub(crate) fn unshuffle_bits(stored: &[u8], width: u32, raw: &mut [u8], lanes: &mut Lanes) {
    let (planes, rest) = stored.split_at(whole_bytes(stored.len(), width));
    let (whole, raw_rest) = raw.split_at_mut(planes.len());
    raw_rest.copy_from_slice(rest);
    let width = width as usize;
    let count = whole.len() / width;
    for (from, elements) in blocks(count, width) {
        resize_for_overwrite(&mut lanes.0, elements * width);
        for (planes, lane) in planes.chunks_exact(count).zip(lanes.0.chunks_exact_mut(elements)) {
            to_lane(planes, from / 8, lane);
        }
        unshuffle(&lanes.0, width, &mut whole[from * width..][..elements * width]);
    }
}

/// Bytes of a block of elements. The lanes of a block stay in the first-level cache.
const BLOCK_BYTES: usize = 1 << 14;
/// A block has at least this many elements.
const BLOCK_ELEMENTS_MIN: usize = 256;

/// Splits the elements into blocks. Each item is the first element and the number of elements of a block. If `count`
/// is a multiple of 8, both numbers are multiples of 8.
fn blocks(count: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
    let elements = (BLOCK_BYTES / width).next_multiple_of(8).max(BLOCK_ELEMENTS_MIN);
    (0..count).step_by(elements).map(move |from| (from, elements.min(count - from)))
}

/// Bytes of the elements whose number is rounded down to a multiple of 8, so that each plane has whole bytes.
fn whole_bytes(bytes: usize, width: u32) -> usize {
    let width = width as usize;
    bytes / width / 8 * 8 * width
}

/// Transposes a matrix of 8 x 8 bits. Row `i` is byte `i`, and column `j` is the bit of significance `j`.
#[inline(always)]
fn transpose_bits(matrix: u64) -> u64 {
    let mut m = matrix;
    for (shift, mask) in [(7, 0x00AA_00AA_00AA_00AA_u64), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0)] {
        let swap = (m ^ (m >> shift)) & mask;
        m ^= swap ^ (swap << shift);
    }
    m
}

/// Bytes of a lane that are transposed together: 8 for each plane.
const STEP: usize = 64;

/// Writes bit 0 of all bytes of `lane` into plane 0, bit 1 into plane 1, and so on, from byte `at` of each plane on.
/// `lane` holds one byte of each element, and `planes` all 8 planes. Both lengths are multiples of 8.
fn to_planes(lane: &[u8], planes: &mut [u8], at: usize) {
    let in_tiles = tiles::to_planes(lane, planes, at);
    let (plane_bytes, mut done) = (planes.len() / 8, at + in_tiles);
    let (blocks, rest) = lane[in_tiles * 8..].as_chunks::<STEP>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        let rows: [u64; 8] = std::array::from_fn(|i| transpose_bits(u64::from_le_bytes(words[i])));
        for (bit, row) in transpose(rows).into_iter().enumerate() {
            planes[bit * plane_bytes + done..][..8].copy_from_slice(&row.to_le_bytes());
        }
        done += 8;
    }
    for (n, word) in rest.as_chunks::<8>().0.iter().enumerate() {
        for (bit, byte) in transpose_bits(u64::from_le_bytes(*word)).to_le_bytes().into_iter().enumerate() {
            planes[bit * plane_bytes + done + n] = byte;
        }
    }
}

/// The inverse of [`to_planes`].
fn to_lane(planes: &[u8], at: usize, lane: &mut [u8]) {
    let in_tiles = tiles::to_lane(planes, at, lane);
    let (plane_bytes, mut done) = (planes.len() / 8, at + in_tiles);
    let (blocks, rest) = lane[in_tiles * 8..].as_chunks_mut::<STEP>();
    for block in blocks {
        let rows: [u64; 8] = std::array::from_fn(|bit| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&planes[bit * plane_bytes + done..][..8]);
            u64::from_le_bytes(bytes)
        });
        for (word, row) in block.as_chunks_mut::<8>().0.iter_mut().zip(transpose(rows)) {
            *word = transpose_bits(row).to_le_bytes();
        }
        done += 8;
    }
    for (n, word) in rest.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let bytes: [u8; 8] = std::array::from_fn(|bit| planes[bit * plane_bytes + done + n]);
        *word = transpose_bits(u64::from_le_bytes(bytes)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Shuffles one bit at a time, as described at the top of this file.
    fn plainly(raw: &[u8], width: usize) -> Vec<u8> {
        let elements = raw.len() / width / 8 * 8;
        let mut planes = Vec::new();
        for (byte, bit) in (0..width).flat_map(|byte| (0..8).map(move |bit| (byte, bit))) {
            let bit_of = |element: usize| raw[element * width + byte] >> bit & 1;
            planes.extend((0..elements / 8).map(|i| (0..8).fold(0, |all, j| all | bit_of(8 * i + j) << j)));
        }
        planes.extend(&raw[elements * width..]);
        planes
    }

    proptest! {
        #[test]
        fn shuffling_is_what_the_definition_says_and_is_undone(
            raw in prop_oneof![
                4 => prop::collection::vec(any::<u8>(), 0..200),
                4 => prop::collection::vec(any::<u8>(), 500..2000),
                // These bytes are enough for several blocks.
                1 => prop::collection::vec(any::<u8>(), BLOCK_BYTES..3 * BLOCK_BYTES),
            ],
            width in prop_oneof![Just(1u32), Just(2), Just(4), Just(8), 1u32..40, Just(1000)],
        ) {
            let (mut planes, mut again, mut work) = (Vec::new(), Vec::new(), Work::default());
            Bitshuffle.encode(width, &raw, &mut planes, &mut work).expect("encodes");
            prop_assert_eq!(&planes, &plainly(&raw, width as usize));
            Bitshuffle.decode(width, &planes, raw.len(), &mut again, &mut work).expect("decodes");
            prop_assert_eq!(again, raw);
        }
    }
}
