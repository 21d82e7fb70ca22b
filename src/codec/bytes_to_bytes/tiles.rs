//! Shuffles with AVX2, 32 elements at a time. The results equal the results of the portable code, and these functions
//! are four to eight times as fast. On processors without AVX2 these functions do nothing, and the portable code does
//! all the work.
//!
//! A tile is 32 elements of W bytes, where W is 2, 4 or 8. A tile fills W registers. Each register has two rows of 16
//! bytes: the first row belongs to the elements 0 to 15, and the second row to the elements 16 to 31. First, the
//! bytes of a row are sorted by their position in the element, which gives W units of 16 / W bytes. Then the W x W
//! units of the registers are transposed. One step (`unpack`) interleaves the units of a register in the first half
//! of the registers with the units of the matching register in the second half. Such a step rotates the bits of the
//! register number and the unit number together by one bit. After log2(W) steps, register number and unit number have
//! therefore changed places.
//!
//! Loads and stores are written as moves of 8 bytes, which need no unsafe code. The compiler joins four moves into
//! one.

#[cfg(target_arch = "x86_64")]
use crate::codec::registers::has_avx2;

/// Shuffles the elements that fill whole tiles. Returns the number of these elements.
pub(super) fn shuffle(elements: &[u8], width: usize, count: usize, lanes: &mut [u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
        // SAFETY: the processor has AVX2.
        return unsafe {
            match width {
                2 => avx2::shuffle::<2>(elements, count, lanes),
                4 => avx2::shuffle::<4>(elements, count, lanes),
                8 => avx2::shuffle::<8>(elements, count, lanes),
                _ => 0,
            }
        };
    }
    let _ = (elements, width, count, lanes);
    0
}

/// The inverse of [`shuffle`].
pub(super) fn unshuffle(lanes: &[u8], width: usize, count: usize, elements: &mut [u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
        // SAFETY: the processor has AVX2.
        return unsafe {
            match width {
                2 => avx2::unshuffle::<2>(lanes, count, elements),
                4 => avx2::unshuffle::<4>(lanes, count, elements),
                8 => avx2::unshuffle::<8>(lanes, count, elements),
                _ => 0,
            }
        };
    }
    let _ = (lanes, width, count, elements);
    0
}

/// Writes part of a lane of bytes into its 8 planes of bits, from byte `at` of each plane on. Only whole tiles are
/// written. Returns the number of bytes written to each plane.
pub(super) fn to_planes(lane: &[u8], planes: &mut [u8], at: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::to_planes(lane, planes, at) };
    }
    let _ = (lane, planes, at);
    0
}

/// The inverse of [`to_planes`].
pub(super) fn to_lane(planes: &[u8], at: usize, lane: &mut [u8]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 is called")]
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::to_lane(planes, at, lane) };
    }
    let _ = (planes, at, lane);
    0
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_extract_epi64, _mm256_set_epi64x, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_shuffle_epi8, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_unpackhi_epi16, _mm256_unpackhi_epi32,
        _mm256_unpackhi_epi64, _mm256_unpacklo_epi16, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
    };

    /// Number of elements of a tile. The tile has the same number of bytes in each lane.
    const TILE: usize = 32;

    type Row = [u8; 16];

    #[target_feature(enable = "avx2")]
    pub(super) fn shuffle<const W: usize>(elements: &[u8], count: usize, lanes: &mut [u8]) -> usize {
        let mut done = 0;
        let order = order::<W>(Towards::Units);
        for tile in elements.as_chunks::<16>().0.chunks_exact(2 * W) {
            let (first, second) = tile.split_at(W);
            let mut rows = [_mm256_setzero_si256(); W];
            for (k, row) in rows.iter_mut().enumerate() {
                *row = _mm256_shuffle_epi8(load(&first[k], &second[k]), order);
            }
            store_lanes(transpose(rows), lanes, count, done);
            done += TILE;
        }
        done
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn unshuffle<const W: usize>(lanes: &[u8], count: usize, elements: &mut [u8]) -> usize {
        let mut done = 0;
        let order = order::<W>(Towards::Elements);
        for tile in elements.as_chunks_mut::<16>().0.chunks_exact_mut(2 * W) {
            let rows = transpose(load_lanes::<W>(lanes, count, done));
            let (first, second) = tile.split_at_mut(W);
            for (k, row) in rows.into_iter().enumerate() {
                store(_mm256_shuffle_epi8(row, order), &mut first[k], &mut second[k]);
            }
            done += TILE;
        }
        done
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn to_planes(lane: &[u8], planes: &mut [u8], at: usize) -> usize {
        let (plane_bytes, mut done) = (planes.len() / 8, at);
        let order = order::<8>(Towards::Units);
        for tile in lane.as_chunks::<16>().0.chunks_exact(16) {
            let (first, second) = tile.split_at(8);
            let mut rows = [_mm256_setzero_si256(); 8];
            for (k, row) in rows.iter_mut().enumerate() {
                *row = _mm256_shuffle_epi8(transpose_bits(load(&first[k], &second[k])), order);
            }
            store_lanes(transpose(rows), planes, plane_bytes, done);
            done += TILE;
        }
        done - at
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn to_lane(planes: &[u8], at: usize, lane: &mut [u8]) -> usize {
        let (plane_bytes, mut done) = (planes.len() / 8, at);
        let order = order::<8>(Towards::Elements);
        for tile in lane.as_chunks_mut::<16>().0.chunks_exact_mut(16) {
            let rows = transpose(load_lanes::<8>(planes, plane_bytes, done));
            let (first, second) = tile.split_at_mut(8);
            for (k, row) in rows.into_iter().enumerate() {
                store(transpose_bits(_mm256_shuffle_epi8(row, order)), &mut first[k], &mut second[k]);
            }
            done += TILE;
        }
        done - at
    }

    /// The order into which the bytes of a row are moved.
    enum Towards {
        Units,
        Elements,
    }

    /// For each byte of a row, the position that its new value comes from.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn order<const W: usize>(towards: Towards) -> __m256i {
        let per_unit = 16 / W;
        let mut order: Row = [0; 16];
        for element in 0..per_unit {
            for byte in 0..W {
                let (in_units, in_elements) = (byte * per_unit + element, element * W + byte);
                match towards {
                    Towards::Units => order[in_units] = in_elements as u8,
                    Towards::Elements => order[in_elements] = in_units as u8,
                }
            }
        }
        load(&order, &order)
    }

    /// Transposes registers and units, as described at the top of this file.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose<const W: usize>(mut rows: [__m256i; W]) -> [__m256i; W] {
        for _ in 0..W.ilog2() {
            let mut joined = rows;
            for k in 0..W / 2 {
                let (a, b) = (rows[k], rows[k + W / 2]);
                (joined[2 * k], joined[2 * k + 1]) = match W {
                    8 => (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)),
                    4 => (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)),
                    _ => (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)),
                };
            }
            rows = joined;
        }
        rows
    }

    /// Transposes each word of 8 bytes as a matrix of 8 x 8 bits (Warren, Hacker's Delight, section 7-3).
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose_bits(words: __m256i) -> __m256i {
        let swap = |words, swap| _mm256_xor_si256(words, swap);
        let differ =
            |words, shifted, mask| _mm256_and_si256(_mm256_xor_si256(words, shifted), _mm256_set1_epi64x(mask));
        let a = differ(words, _mm256_srli_epi64::<7>(words), 0x00AA_00AA_00AA_00AA);
        let words = swap(words, _mm256_xor_si256(a, _mm256_slli_epi64::<7>(a)));
        let b = differ(words, _mm256_srli_epi64::<14>(words), 0x0000_CCCC_0000_CCCC);
        let words = swap(words, _mm256_xor_si256(b, _mm256_slli_epi64::<14>(b)));
        let c = differ(words, _mm256_srli_epi64::<28>(words), 0x0000_0000_F0F0_F0F0);
        swap(words, _mm256_xor_si256(c, _mm256_slli_epi64::<28>(c)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_lanes<const W: usize>(lanes: &[u8], lane_bytes: usize, at: usize) -> [__m256i; W] {
        let mut rows = [_mm256_setzero_si256(); W];
        for (j, row) in rows.iter_mut().enumerate() {
            let (halves, _) = lanes[j * lane_bytes + at..][..TILE].as_chunks::<16>();
            *row = load(&halves[0], &halves[1]);
        }
        rows
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store_lanes<const W: usize>(rows: [__m256i; W], lanes: &mut [u8], lane_bytes: usize, at: usize) {
        for (j, row) in rows.into_iter().enumerate() {
            let (halves, _) = lanes[j * lane_bytes + at..][..TILE].as_chunks_mut::<16>();
            let (first, second) = halves.split_at_mut(1);
            store(row, &mut first[0], &mut second[0]);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(first: &Row, second: &Row) -> __m256i {
        let word = |row: &Row, n: usize| i64::from_le_bytes(row.as_chunks::<8>().0[n]);
        _mm256_set_epi64x(word(second, 1), word(second, 0), word(first, 1), word(first, 0))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(rows: __m256i, first: &mut Row, second: &mut Row) {
        first[..8].copy_from_slice(&_mm256_extract_epi64::<0>(rows).to_le_bytes());
        first[8..].copy_from_slice(&_mm256_extract_epi64::<1>(rows).to_le_bytes());
        second[..8].copy_from_slice(&_mm256_extract_epi64::<2>(rows).to_le_bytes());
        second[8..].copy_from_slice(&_mm256_extract_epi64::<3>(rows).to_le_bytes());
    }
}
