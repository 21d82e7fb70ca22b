//! The candidates for a segment: the chains of codecs that a profile compares.

use super::array_to_bytes::predict;
use super::profile::{SHUFFLE_ZSTD_LEVEL, ZSTD_LEVEL};
use super::{ArrayShape, Basis, Chain, Profile, ids};
use crate::header::ElementType;

/// log2 of the number of entries in zstd's table for numbers that may repeat.
pub(super) const REPEATS_TABLE_LOG: u32 = 18;
/// log2 of the number of entries in zstd's table for untyped bytes, which contain many repeats at short distances.
pub(super) const BYTES_TABLE_LOG: u32 = 15;
const GZIP_LEVEL: u32 = 6;
const STRONG_ZSTD_LEVEL: u32 = 9;
/// In profile `max`, segments above 256 KiB (`BYTES_FEW`) get zstd at this level as a candidate.
const MANY_BYTES_ZSTD_LEVEL: u32 = 12;
const BYTES_FEW: usize = 256 << 10;
const PCO_LEVEL: u32 = 8;

/// Elements with more bytes than this number are not shuffled, because each lane would be too short to contain
/// similar bytes.
pub(super) const SHUFFLE_WIDTH_MAX: u32 = 64;

/// Settings of the candidates of `balanced` and `max`.
pub(super) struct Hardness {
    /// Effort of the prediction, as in the parameter of `predict`, `since` and `mixed`.
    pub prediction: u32,
    pub zstd_level: u32,
    pub shuffled_zstd_level: u32,
}

pub(super) const BALANCED: Hardness = Hardness { prediction: 1, zstd_level: 6, shuffled_zstd_level: 3 };
pub(super) const MAX: Hardness = Hardness { prediction: 2, zstd_level: 17, shuffled_zstd_level: 17 };
/// Settings of `max` for segments above `BYTES_FEW`.
const MAX_OF_MANY: Hardness =
    Hardness { prediction: 2, zstd_level: MANY_BYTES_ZSTD_LEVEL, shuffled_zstd_level: MANY_BYTES_ZSTD_LEVEL };

/// Returns the chain together with the record members that the encoder needs. Returns `None` if the chain is not a
/// candidate of the profile.
pub(super) fn still_candidate(
    chain: Chain,
    profile: &Profile,
    element: &ElementType,
    arrays: &[ArrayShape],
    pooled: bool,
    basis: &Basis<'_>,
) -> Option<Chain> {
    let candidates = candidates(profile, element, arrays, pooled, &[], basis);
    if candidates.len() < 2 {
        return None; // with one candidate there was no choice, so no decision is kept
    }
    if let Some(same) = candidates.into_iter().find(|candidate| *candidate == chain) {
        return Some(same);
    }
    // Untyped records may have any length.
    let is_records = |width| chain == Chain::shuffle_zstd(width, SHUFFLE_ZSTD_LEVEL);
    let is_shuffled = *profile == Profile::Fast
        && *element == ElementType::Bytes
        && chain.working_steps().first().is_some_and(|step| is_records(step.param));
    let is_of_many = *profile == Profile::Max && predicted(element, &MAX_OF_MANY).contains(&chain);
    let is_mixed = profile.is_together()
        && *element == ElementType::Bytes
        && (chain.steps()[0].codec == ids::MIXED || shuffles_of_bytes().contains(&chain));
    let is_slow = *profile == Profile::Max && Chain::lzmas().contains(&chain);
    (is_shuffled || is_of_many || is_mixed || is_slow || chain.is_raw()).then_some(chain)
}

/// The candidates for a segment. The list is never empty.
pub(super) fn candidates(
    profile: &Profile,
    element: &ElementType,
    arrays: &[ArrayShape],
    pooled: bool,
    raw: &[u8],
    basis: &Basis<'_>,
) -> Vec<Chain> {
    let is_a_grid = || arrays.iter().any(|array| array.dims.iter().filter(|&&n| n > 1).count() > 1);
    match (profile, element) {
        (Profile::Raw, _) => vec![Chain::raw()],
        (Profile::Gzip, _) => vec![Chain::gzip(GZIP_LEVEL)],
        (Profile::Zstd { level }, _) => vec![Chain::zstd(*level)],
        (Profile::ShuffleZstd { level }, _) => vec![Chain::shuffle_zstd(element.width(), *level)],
        (Profile::Paper { double }, _) => vec![Chain::paper(element, *double, pooled)],
        (Profile::Fpc { level }, ElementType::Float { width: 8, order }) => {
            vec![Chain::fpc(*level, *order).then_zstd(1)]
        }
        (Profile::Fpzip, ElementType::Float { width: width @ (4 | 8), order }) => {
            let dimensions = if is_a_grid() { &[1, 2, 3][..] } else { &[1] };
            dimensions.iter().map(|&n| Chain::fpzip(*width, *order, n)).collect()
        }
        (Profile::Fast, _) if basis.store.is_some() => {
            measured(element, raw).into_iter().chain(weighed(element)).collect()
        }
        (Profile::Fast | Profile::Fpc { .. } | Profile::Fpzip, _) => measured(element, raw),
        (Profile::Balanced, _) if basis.store.is_some() => {
            predicted(element, &BALANCED).into_iter().chain([Chain::shuffle_zstd(element.width().min(8), 1)]).collect()
        }
        (Profile::Balanced, _) => predicted(element, &BALANCED),
        // For long segments, a high level of zstd takes a long time, and LZMA finds the same repeats.
        (Profile::Max, _) => {
            let hardness = if raw.len() > BYTES_FEW { MAX_OF_MANY } else { MAX };
            predicted(element, &hardness).into_iter().chain(since(element, arrays, basis)).collect()
        }
    }
}

/// Prediction from an older checkpoint, if the older segment contains bytes of at least one array.
pub(super) fn since(element: &ElementType, arrays: &[ArrayShape], basis: &Basis<'_>) -> Option<Chain> {
    let older = basis.older.filter(|older| older.places.len() == arrays.len())?;
    older.places.iter().any(|place| place.bytes > 0).then(|| Chain::since(element, MAX.prediction))?
}

/// The candidates of `balanced` and `max`: prediction where the elements may be numbers, and chains for other bytes.
fn predicted(element: &ElementType, hardness: &Hardness) -> Vec<Chain> {
    let Hardness { prediction, zstd_level: zstd, shuffled_zstd_level: shuffled } = *hardness;
    let others = || vec![Chain::zstd(zstd)];
    match (element, Chain::predict(element, prediction)) {
        (ElementType::Bytes, Some(predict)) => vec![predict, Chain::zstd(zstd)],
        // Indices of other elements, as in unstructured meshes, are not similar to their neighbours, but they repeat
        // byte by byte or rise by a constant step.
        (ElementType::Int { width, .. }, Some(predict)) => {
            let width = u32::from(*width);
            vec![predict, Chain::shuffle_zstd(width, shuffled), Chain::bitshuffle_zstd(width, shuffled)]
        }
        (_, Some(predict)) => vec![predict],
        (ElementType::Int { width: 1, .. } | ElementType::Fixed { width: 1 }, None) => others(),
        (ElementType::Compound { .. }, None) => others().into_iter().chain(Chain::columns(element)).collect(),
        (_, None) if element.width() <= SHUFFLE_WIDTH_MAX => {
            others().into_iter().chain([Chain::shuffle_zstd(element.width(), shuffled)]).collect()
        }
        (_, None) => others(),
    }
}

/// The candidates of the fast profile: zstd first, chains for numbers last.
fn measured(element: &ElementType, raw: &[u8]) -> Vec<Chain> {
    let zstd = Chain::zstd(ZSTD_LEVEL);
    let shuffled = |width| Chain::shuffle_zstd(width, SHUFFLE_ZSTD_LEVEL);
    let bits = |width| Chain::bitshuffle_zstd(width, SHUFFLE_ZSTD_LEVEL);
    match element {
        ElementType::Int { width: 1, .. } | ElementType::Fixed { width: 1 } => vec![zstd],
        // Untyped bytes may be numbers or records of numbers. For bytes without a pattern, level 1 of zstd often
        // leaves fewer bytes than level 3.
        ElementType::Bytes => {
            let records = predict::record_bytes(raw).filter(|&bytes| bytes > 8);
            let records = records.and_then(|bytes| u32::try_from(bytes).ok()).map(shuffled);
            [zstd, Chain::zstd(1), shuffled(4), shuffled(8)].into_iter().chain(records).collect()
        }
        ElementType::Int { .. } | ElementType::Float { .. } => {
            vec![Chain::zstd_fast(REPEATS_TABLE_LOG), shuffled(element.width()), bits(element.width())]
        }
        ElementType::Fixed { width } if *width <= SHUFFLE_WIDTH_MAX => vec![zstd, shuffled(*width)],
        ElementType::Fixed { .. } => vec![zstd],
        ElementType::Compound { .. } => [zstd].into_iter().chain(Chain::columns(element)).collect(),
    }
}

/// Additional candidates if the choice depends on the store's speed: faster chains, including `raw`, and stronger
/// chains.
fn weighed(element: &ElementType) -> Vec<Chain> {
    let width = element.width().min(SHUFFLE_WIDTH_MAX);
    let mut chains = vec![Chain::raw(), Chain::lz4(), Chain::zstd(STRONG_ZSTD_LEVEL)];
    if width > 1 {
        chains.push(Chain::shuffle_lz4(width));
    }
    chains.extend(Chain::pco(element, PCO_LEVEL));
    chains
}

pub(super) fn shuffles_of_bytes() -> [Chain; 2] {
    [4, 8].map(|width| Chain::shuffle_zstd(width, SHUFFLE_ZSTD_LEVEL))
}
