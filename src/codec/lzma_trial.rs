//! Whether LZMA, which takes long in both directions, is worth it: it must leave clearly less than all else does.
//!
//! Its time is that of xz, so that it is tried on a sample first. What a sample has in repeats far away, zstd's code
//! of the whole tells: LZMA finds these too, and is taken to stay behind or ahead of zstd by as much as in the
//! sample.

use super::sample::sample_of;
use super::{Chain, CodecError, Scratch};

/// LZMA is used only if it saves 1/50 (2 %) of the bytes, because it decodes 14 to 22 times slower than zstd.
const GAIN_DIVISOR: usize = 50;
/// Shorter bytes are not worth a trial of their own.
const BYTES_MIN: usize = 1 << 10;
/// The part of what zstd leaves that it leaves at best: 0.69 is the least that was seen.
const OF_ZSTD: (usize, usize) = (2, 3);
/// A sample is such a part, but not less, and not more.
const SAMPLE_DIVISOR: usize = 16;
const SAMPLE_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;
/// Samples keep places in words.
const WORD: usize = 8;

fn is_clearly_less(bytes: usize, least: usize) -> bool {
    bytes + bytes / GAIN_DIVISOR < least
}

/// What zstd leaves of the whole.
#[derive(Clone, Copy)]
pub(super) struct OfZstd<'a> {
    /// A chain of zstd alone.
    pub chain: &'a Chain,
    pub stored_bytes: usize,
}

/// LZMA's chain, one of some, and stored bytes, where these are clearly fewer than `least`.
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
    let expected = (by_zstd as u64 * own as u64 / of_zstd as u64) as usize; // each at most some 2^30
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

    /// Records of a word, a count and a few letters, whose distances are the same again and again.
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
        let (chain, bytes) = tried(&raw, usize::MAX).expect("less than zstd leaves");
        assert_eq!(chain, Chain::lzma_of_words());
        assert_eq!(tried(&raw, bytes), None, "no less than what there is");
        assert_eq!(tried(&raw[..BYTES_MIN - 1], usize::MAX), None, "too short");
        let noise: Vec<u8> = (0..4000u32).flat_map(|n| crate::ids::Digest::of(&n.to_le_bytes()).0).collect();
        assert_eq!(tried(&noise, usize::MAX), None);
    }
}
