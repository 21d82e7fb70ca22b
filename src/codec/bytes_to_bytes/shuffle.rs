//! Codec `shuffle`: stores byte 0 of every element, then byte 1 of every element, and so on. Takes elements of any
//! width. Restores every bit.
//!
//! Source: the shuffle filters of HDF5 and Blosc. As in these filters, the bytes after the last whole element follow
//! unchanged, and the length stays the same. For the widths 2, 4, and 8 or more, 8 x 8 bytes at a time are transposed
//! in eight 64-bit words (Warren, Hacker's Delight, section 7-3). This code works on every processor. On processors
//! with AVX2, `tiles` does the same work for widths 2, 4 and 8.

use super::tiles;
use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids, resize_for_overwrite};
use crate::header::ELEMENT_WIDTH_MAX;

pub(crate) struct Shuffle;

impl BytesCodec for Shuffle {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::SHUFFLE, "shuffle")
    }

    fn takes(&self, param: u32) -> bool {
        (2..=ELEMENT_WIDTH_MAX).contains(&param)
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        raw_bytes
    }

    fn encode(&self, param: u32, raw: &[u8], stored: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        resize_for_overwrite(stored, raw.len());
        shuffle(raw, param as usize, stored);
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        limit: usize,
        raw: &mut Vec<u8>,
        _: &mut Work,
    ) -> Result<(), CodecError> {
        if stored.len() > limit {
            return Err(CodecError::Length { found: stored.len(), expected: limit });
        }
        resize_for_overwrite(raw, stored.len());
        unshuffle(stored, param as usize, raw);
        Ok(())
    }
}

/// Elements that are shuffled together if the width is not 2, 4 or 8.
const TILE_ELEMENTS: usize = 64;

/// Writes the shuffled elements to `lanes`, which is as long as `elements`.
pub(crate) fn shuffle(elements: &[u8], width: usize, lanes: &mut [u8]) {
    let count = elements.len() / width;
    let (whole, tail) = elements.split_at(count * width);
    let (lanes, lanes_tail) = lanes.split_at_mut(count * width);
    lanes_tail.copy_from_slice(tail);
    let in_tiles = tiles::shuffle(whole, width, count, lanes);
    let done = in_tiles
        + match width {
            2 => shuffle_words::<2>(whole, count, in_tiles, lanes),
            4 => shuffle_words::<4>(whole, count, in_tiles, lanes),
            8 => shuffle_words::<8>(whole, count, in_tiles, lanes),
            9.. => shuffle_records(whole, width, count, lanes),
            _ => 0,
        };
    for from in (done..count).step_by(TILE_ELEMENTS) {
        let to = count.min(from + TILE_ELEMENTS);
        for byte in 0..width {
            let lane = &mut lanes[byte * count + from..byte * count + to];
            for (to, element) in lane.iter_mut().zip(whole[from * width..].chunks_exact(width)) {
                *to = element[byte];
            }
        }
    }
}

/// Writes the original elements to `elements`, which is as long as `lanes`.
pub(super) fn unshuffle(lanes: &[u8], width: usize, elements: &mut [u8]) {
    let count = lanes.len() / width;
    let (lanes, tail) = lanes.split_at(count * width);
    let (whole, elements_tail) = elements.split_at_mut(count * width);
    elements_tail.copy_from_slice(tail);
    let in_tiles = tiles::unshuffle(lanes, width, count, whole);
    let done = in_tiles
        + match width {
            2 => unshuffle_words::<2>(lanes, count, in_tiles, whole),
            4 => unshuffle_words::<4>(lanes, count, in_tiles, whole),
            8 => unshuffle_words::<8>(lanes, count, in_tiles, whole),
            9.. => unshuffle_records(lanes, width, count, whole),
            _ => 0,
        };
    for from in (done..count).step_by(TILE_ELEMENTS) {
        let to = count.min(from + TILE_ELEMENTS);
        for byte in 0..width {
            let lane = &lanes[byte * count + from..byte * count + to];
            for (from, element) in lane.iter().zip(whole[from * width..].chunks_exact_mut(width)) {
                element[byte] = *from;
            }
        }
    }
}

/// Transposes a matrix of 8 x 8 bytes. Row `i` is `rows[i]`, and column `j` is its byte of significance `j`.
#[inline(always)]
pub(super) fn transpose(rows: [u64; 8]) -> [u64; 8] {
    let mut m = rows;
    for (distance, shift, mask) in
        [(1, 8, 0x00FF_00FF_00FF_00FF_u64), (2, 16, 0x0000_FFFF_0000_FFFF), (4, 32, 0x0000_0000_FFFF_FFFF)]
    {
        for i in (0..8).filter(|i| i & distance == 0) {
            let (low, high) = (m[i], m[i + distance]);
            m[i] = (low & mask) | ((high & mask) << shift);
            m[i + distance] = ((low >> shift) & mask) | (high & !mask);
        }
    }
    m
}

/// Number of elements of `WIDTH` bytes in a matrix of 8 x 8 bytes. Row `i` holds the elements `i`, `i + 8`, and so
/// on. Each row of the transposed matrix is therefore a run of 8 elements of one lane.
const fn elements_per_matrix(width: usize) -> usize {
    64 / width
}

/// Shuffles from element `from` on. Returns the number of elements shuffled.
fn shuffle_words<const WIDTH: usize>(elements: &[u8], count: usize, from: usize, lanes: &mut [u8]) -> usize {
    let step = elements_per_matrix(WIDTH);
    let elements = &elements.as_chunks::<WIDTH>().0[from..];
    let mut at = from;
    for matrix in elements.chunks_exact(step) {
        let mut rows = [0u64; 8];
        for (i, row) in rows.iter_mut().enumerate() {
            let mut bytes = [0u8; 8];
            for part in 0..8 / WIDTH {
                bytes[part * WIDTH..][..WIDTH].copy_from_slice(&matrix[i + 8 * part]);
            }
            *row = u64::from_le_bytes(bytes);
        }
        for (j, row) in transpose(rows).into_iter().enumerate() {
            let from = (j % WIDTH) * count + at + j / WIDTH * 8;
            lanes[from..from + 8].copy_from_slice(&row.to_le_bytes());
        }
        at += step;
    }
    at - from
}

/// Unshuffles from element `from` on. Returns the number of elements unshuffled.
fn unshuffle_words<const WIDTH: usize>(lanes: &[u8], count: usize, from: usize, elements: &mut [u8]) -> usize {
    let step = elements_per_matrix(WIDTH);
    let elements = &mut elements.as_chunks_mut::<WIDTH>().0[from..];
    let mut at = from;
    for matrix in elements.chunks_exact_mut(step) {
        let mut rows = [0u64; 8];
        for (j, row) in rows.iter_mut().enumerate() {
            *row = word_at(lanes, (j % WIDTH) * count + at + j / WIDTH * 8);
        }
        for (i, row) in transpose(rows).into_iter().enumerate() {
            let bytes = row.to_le_bytes();
            for part in 0..8 / WIDTH {
                matrix[i + 8 * part].copy_from_slice(&bytes[part * WIDTH..][..WIDTH]);
            }
        }
        at += step;
    }
    at - from
}

/// Positions of the words of 8 bytes that cover an element of at least 8 bytes. The last word may overlap the word
/// before it. The bytes of the overlap are moved twice.
fn columns(width: usize) -> impl Iterator<Item = usize> {
    (0..width.div_ceil(8)).map(move |nth| (nth * 8).min(width - 8))
}

/// Splits the elements into tiles. Each item is the first element of a tile, and the element after the last element
/// of the tile. The last tile may be shorter. Up to 7 elements at the end are in no tile.
fn tiles_of(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let eights = count / 8 * 8;
    (0..eights).step_by(TILE_ELEMENTS).map(move |from| (from, eights.min(from + TILE_ELEMENTS)))
}

/// Shuffles elements of more than 8 bytes. Returns the number of elements shuffled.
fn shuffle_records(elements: &[u8], width: usize, count: usize, lanes: &mut [u8]) -> usize {
    for (from, to) in tiles_of(count) {
        for column in columns(width) {
            for at in (from..to).step_by(8) {
                let row = |i: usize| word_at(elements, (at + i) * width + column);
                for (j, row) in transpose(std::array::from_fn(row)).into_iter().enumerate() {
                    lanes[(column + j) * count + at..][..8].copy_from_slice(&row.to_le_bytes());
                }
            }
        }
    }
    count / 8 * 8
}

/// Unshuffles elements of more than 8 bytes. Returns the number of elements unshuffled.
fn unshuffle_records(lanes: &[u8], width: usize, count: usize, elements: &mut [u8]) -> usize {
    for (from, to) in tiles_of(count) {
        for column in columns(width) {
            for at in (from..to).step_by(8) {
                let row = |j: usize| word_at(lanes, (column + j) * count + at);
                for (i, row) in transpose(std::array::from_fn(row)).into_iter().enumerate() {
                    elements[(at + i) * width + column..][..8].copy_from_slice(&row.to_le_bytes());
                }
            }
        }
    }
    count / 8 * 8
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Shuffles one byte at a time, as the definition says.
    fn plainly(raw: &[u8], width: usize) -> Vec<u8> {
        let count = raw.len() / width;
        let lanes = (0..width).flat_map(|byte| (0..count).map(move |i| raw[i * width + byte]));
        lanes.chain(raw[count * width..].iter().copied()).collect()
    }

    proptest! {
        #[test]
        fn shuffling_is_what_the_definition_says_and_unshuffling_undoes_it(
            raw in prop::collection::vec(any::<u8>(), 0..700),
            width in prop_oneof![Just(2usize), Just(4), Just(8), 2usize..40, Just(88), Just(1000)],
        ) {
            let mut lanes = vec![0; raw.len()];
            shuffle(&raw, width, &mut lanes);
            prop_assert_eq!(&lanes, &plainly(&raw, width));
            let mut again = vec![0; raw.len()];
            unshuffle(&lanes, width, &mut again);
            prop_assert_eq!(again, raw);
        }

        #[test]
        fn words_give_the_same_bytes_from_wherever_tiles_leave_off(
            raw in prop::collection::vec(any::<u8>(), 0..1500),
            from in prop_oneof![Just(0usize), Just(32), Just(64)],
        ) {
            let count = raw.len() / 8;
            let (whole, from) = (&raw[..count * 8], from.min(count));
            let plain = plainly(whole, 8);
            let (mut lanes, mut again) = (plain.clone(), whole.to_vec());
            (0..8).for_each(|lane| lanes[lane * count + from..(lane + 1) * count].fill(0));
            again[from * 8..].fill(0);
            let to = from + shuffle_words::<8>(whole, count, from, &mut lanes);
            prop_assert_eq!(to, from + unshuffle_words::<8>(&plain, count, from, &mut again));
            prop_assert!(count - to < 8);
            for lane in 0..8 {
                prop_assert_eq!(&lanes[lane * count..][..to], &plain[lane * count..][..to]);
            }
            prop_assert_eq!(&again[..to * 8], &whole[..to * 8]);
        }
    }
}
