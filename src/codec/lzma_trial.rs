//! Decides whether to use LZMA. LZMA is slow in both directions, so its result must be clearly smaller than the best
//! other result.
//!
//! LZMA takes as much time as xz, so LZMA is tried on a sample first. A sample misses repeats that are far apart in
//! the segment, but the size of the whole segment coded with zstd includes their effect. LZMA's size for the whole
//! segment is therefore estimated as zstd's size for the whole segment, times the ratio of LZMA to zstd on the
//! sample.

use super::sample::sample_of;
use super::{Chain, CodecError, Scratch};

/// LZMA is used only if it saves 1/50 (2 %) of the bytes, because it decodes 14 to 22 times slower than zstd.
const GAIN_DIVISOR: usize = 50;
/// LZMA is not tried on segments with fewer bytes than this number.
const BYTES_MIN: usize = 1 << 10;
/// LZMA leaves at best 2/3 of the bytes that zstd leaves. The lowest measured ratio is 0.69.
const OF_ZSTD: (usize, usize) = (2, 3);
/// A sample is 1/16 of the segment, but its length stays within `SAMPLE_BYTES`.
const SAMPLE_DIVISOR: usize = 16;
const SAMPLE_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;
/// The sample is cut at multiples of this many bytes, so that words stay aligned.
const WORD: usize = 8;

fn is_clearly_less(bytes: usize, least: usize) -> bool {
    bytes + bytes / GAIN_DIVISOR < least
}

/// The result of zstd for the whole segment.
#[derive(Clone, Copy)]
pub(super) struct OfZstd<'a> {
    /// A chain of zstd alone.
    pub chain: &'a Chain,
    pub stored_bytes: usize,
}

/// Encodes the segment with the best of the given LZMA chains. Returns the chain and the stored bytes, or `None` if
/// the stored bytes are not clearly fewer than `least`.
pub(super) fn lzma(
    raw: &[u8],
    chains: &[Chain],
    zstd: OfZstd<'_>,
    least: usize,
    scratch: &mut Scratch,
) -> Result<Option<(Chain, Vec<u8>)>, CodecError> {
    let (part, of) = OF_ZSTD;
    let OfZstd { chain: zstd, stored_bytes: by_zstd } = zstd;
    if raw.len() < BYTES_MIN || !is_clearly_less(by_zstd / of * part, least) {
        return Ok(None);
    }
    let sample = sample_of(raw, WORD, (raw.len() / SAMPLE_DIVISOR).clamp(*SAMPLE_BYTES.start(), *SAMPLE_BYTES.end()));
    let mut best = (usize::MAX, &Chain::raw());
    for chain in chains {
        let bytes = chain.encoded_bytes(&sample, &[], scratch)?;
        if bytes < best.0 {
            best = (bytes, chain);
        }
    }
    let (own, chain) = best;
    let of_zstd = zstd.encoded_bytes(&sample, &[], scratch)?.max(1);
    let expected = (by_zstd as u64 * own as u64 / of_zstd as u64) as usize; // each factor is at most about 2^30
    if !is_clearly_less(expected, least) {
        return Ok(None);
    }
    let stored = chain.encode(raw, &[], scratch)?;
    Ok(is_clearly_less(stored.len(), least).then(|| (chain.clone(), stored)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(raw: &[u8], least: usize) -> Option<(Chain, usize)> {
        let (zstd, mut scratch) = (Chain::zstd(12), Scratch::default());
        let by_zstd = zstd.encoded_bytes(raw, &[], &mut scratch).expect("encodes");
        let found = lzma(
            raw,
            &Chain::lzmas(),
            OfZstd { chain: &zstd, stored_bytes: by_zstd },
            least.min(by_zstd),
            &mut scratch,
        )
        .expect("encodes");
        found.map(|(chain, stored)| {
            assert!(chain.gives_back(&stored, raw, &mut scratch).expect("decodes"));
            (chain, stored.len())
        })
    }

    /// Records of a double, a counter and four equal letters. Many repeats lie at the same distances.
    fn records(count: u32) -> Vec<u8> {
        let record = |n: u32| {
            let mixed = n.wrapping_mul(0x9E37_79B9) >> 20;
            [&(f64::from(mixed) / 7.0).to_le_bytes()[..], &n.to_le_bytes(), &[b'a' + (mixed % 11) as u8; 4]].concat()
        };
        (0..count).flat_map(record).collect()
    }

    #[test]
    fn it_is_taken_where_it_leaves_clearly_less_and_not_else() {
        let raw = records(20_000);
        let (chain, bytes) = tried(&raw, usize::MAX).expect("LZMA leaves less than zstd");
        assert_eq!(chain, Chain::lzma_of_words());
        assert_eq!(tried(&raw, bytes), None, "a chain that saves nothing is not taken");
        assert_eq!(tried(&raw[..BYTES_MIN - 1], usize::MAX), None, "a short segment is not tried");
        let noise: Vec<u8> = (0..4000u32).flat_map(|n| crate::ids::Digest::of(&n.to_le_bytes()).0).collect();
        assert_eq!(tried(&noise, usize::MAX), None);
    }
}
