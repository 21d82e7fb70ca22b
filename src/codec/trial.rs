//! Chooses the chain of a segment. The profile determines how to choose; the default profile measures.
//!
//! If all elements are equal, only one element is stored. For other numbers there are two good methods. The first
//! method is zstd alone, which finds repeats (ghost zones, refined grids, unchanged values). The second method
//! shuffles bytes or bits and then runs zstd, which finds equal bytes or bits of neighbouring numbers. Each method
//! can leave 25 % fewer bytes than the other method. The better method depends on the share of the segment that
//! repeats. A sample of a few runs misses repeats that are far apart, so [`repeats_per_mille`] first counts the
//! repeats of the whole segment. Counting takes a small part of the time of coding. A segment with very few repeats
//! gets a shuffle, and a segment of floating-point numbers with many repeats gets zstd alone. For any other segment,
//! all candidates are tried on a sample of 1/16 of the bytes. The sample consists of runs from places all over the
//! segment, and each run is long enough to contain repeats at short distances. The sample does not show repeats that
//! are far apart, so the result of zstd alone is reduced by the share of repeats in the whole segment.
//!
//! For bytes and records, no repeats are counted, and the candidates are tried on the sample. For short segments, the
//! candidates are tried on the whole segment. Untyped bytes may be records: the distance at which most bytes repeat
//! is an additional candidate for the shuffle width.
//!
//! [`super::decide`] describes the other inputs of a choice.

use super::array_to_bytes::{mixed, predict, runs};
use super::candidates::{
    BALANCED, BYTES_TABLE_LOG, MAX, SHUFFLE_WIDTH_MAX, candidates, shuffles_of_bytes, still_candidate,
};
use super::lzma_trial::{OfZstd, lzma};
use super::profile::ZSTD_LEVEL;
use super::repeats::repeats_per_mille;
use super::sample::{WHOLE_BYTES, sample};
use super::{ArrayShape, Basis, Chain, CodecError, Coded, Older, OlderPlace, Profile, Reason, Scratch, Trial, ids};
use crate::header::ElementType;
use std::sync::Arc;
use std::time::Duration;

/// A segment with fewer repeats than this number counts as a segment without repeats.
const REPEATS_FEW_PER_MILLE: usize = 50;
/// Floating-point numbers with at least this many repeats need no trial. Integers need a trial, because integers may
/// repeat and also be similar to their neighbours.
const REPEATS_MANY_PER_MILLE: usize = 150;
/// If zstd makes bytes smaller than 1/8 of their length, the bytes count as bytes without numbers.
const CLEAR_DIVISOR: usize = 8;
/// For untyped bytes, a chain with another codec counts as better than zstd only if the chain saves more than 1/32 of
/// the bytes that zstd leaves of a sample.
const SHUFFLED_GAIN_DIVISOR: usize = 32;
/// fpzip is tried on this number of bytes at the beginning of a segment. Elements of samples from several places
/// would lack their neighbours.
const FPZIP_SAMPLE_BYTES: usize = 256 << 10;
/// A sample, and the result of zstd on the sample.
struct Quick {
    sample: Vec<u8>,
    by_zstd: Trial,
}

/// Takes a sample of untyped bytes, such as the bytes between a file's variables, and codes it with zstd. Only the
/// fast profile makes this trial, and makes it before all other trials.
fn quick_zstd(
    profile: &Profile,
    raw: &[u8],
    element: &ElementType,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Option<Quick> {
    let is_quick = *profile == Profile::Fast && *element == ElementType::Bytes && basis.store.is_none();
    if !is_quick || raw.len() <= WHOLE_BYTES {
        return None;
    }
    let sample = sample(raw, 1);
    let by_zstd = trial(Chain::zstd_fast(BYTES_TABLE_LOG), &sample, &[], 0, basis, scratch);
    Some(Quick { sample, by_zstd })
}

/// Whether the sample holds almost no numbers, because zstd makes the sample smaller than 1/8 of its length.
fn is_clear(quick: &Quick) -> bool {
    quick.by_zstd.stored_bytes * CLEAR_DIVISOR < quick.sample.len()
}

fn chosen(
    mut candidates: Vec<Chain>,
    quick: Option<Quick>,
    raw: &[u8],
    element: &ElementType,
    arrays: &[ArrayShape],
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> (Chain, Reason) {
    if candidates.len() < 2 {
        return (candidates.pop().unwrap_or_else(Chain::raw), Reason::Only);
    }
    let is_about_neighbours = candidates.iter().all(|chain| chain.steps()[0].codec == ids::FPZIP);
    if is_about_neighbours {
        return tried(candidates, &raw[..raw.len().min(FPZIP_SAMPLE_BYTES)], arrays, 0, basis, scratch);
    }
    if let Some(Quick { sample, by_zstd }) = quick {
        return tried_after_zstd(candidates, &sample, by_zstd, basis, scratch);
    }
    let repeats = match element {
        _ if raw.len() <= WHOLE_BYTES => 0,
        ElementType::Int { width, .. } | ElementType::Float { width, .. } => {
            let repeats = repeats_per_mille(raw, *width, &mut scratch.seen);
            if repeats < REPEATS_FEW_PER_MILLE && basis.store.is_none() {
                candidates.remove(0);
            }
            let is_float = matches!(element, ElementType::Float { .. });
            if repeats >= REPEATS_MANY_PER_MILLE && is_float && basis.store.is_none() {
                return (candidates.swap_remove(0), Reason::Repeats(repeats));
            }
            repeats
        }
        ElementType::Bytes | ElementType::Fixed { .. } | ElementType::Compound { .. } => 0,
    };
    tried(candidates, &sample(raw, element.width() as usize), &[], repeats, basis, scratch)
}

/// The chain that codes the sample best. The result of zstd alone is reduced by `free_per_mille` thousandths, because
/// zstd finds more repeats in the whole segment than in the sample.
fn tried(
    chains: Vec<Chain>,
    sample: &[u8],
    arrays: &[ArrayShape],
    free_per_mille: usize,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> (Chain, Reason) {
    let trial = |chain| trial(chain, sample, arrays, free_per_mille, basis, scratch);
    best_of(chains.into_iter().map(trial).collect(), sample, basis)
}

/// The chain that codes a sample of untyped bytes best. `by_zstd` is the result of zstd. Other parameters of zstd
/// give similar results, so these parameters are not tried if a chain with another codec saves more than 1/32 of the
/// bytes.
fn tried_after_zstd(
    chains: Vec<Chain>,
    sample: &[u8],
    by_zstd: Trial,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> (Chain, Reason) {
    let near = by_zstd.stored_bytes - by_zstd.stored_bytes / SHUFFLED_GAIN_DIVISOR;
    let known = by_zstd.chain.clone();
    let mut trials = vec![by_zstd];
    let (of_zstd, others): (Vec<_>, Vec<_>) =
        chains.into_iter().filter(|chain| *chain != known).partition(Chain::is_zstd);
    trials.extend(others.into_iter().map(|chain| trial(chain, sample, &[], 0, basis, scratch)));
    if trials.iter().all(|trial| trial.stored_bytes >= near) {
        trials.extend(of_zstd.into_iter().map(|chain| trial(chain, sample, &[], 0, basis, scratch)));
    }
    best_of(trials, sample, basis)
}

fn trial(
    chain: Chain,
    sample: &[u8],
    arrays: &[ArrayShape],
    free_per_mille: usize,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Trial {
    let begun = basis.now();
    let bytes = chain.encoded_bytes(sample, arrays, scratch).unwrap_or(usize::MAX / 1000);
    let took = basis.now().saturating_sub(begun);
    let coding = if chain.is_raw() { Duration::ZERO } else { took };
    let stored_bytes = if chain.is_zstd() { bytes * (1000 - free_per_mille) / 1000 } else { bytes };
    Trial { chain, stored_bytes, coding }
}

fn best_of(trials: Vec<Trial>, sample: &[u8], basis: &Basis<'_>) -> (Chain, Reason) {
    let best = trials.iter().min_by_key(|trial| basis.cost(trial)).map_or_else(Chain::raw, |best| best.chain.clone());
    (best, Reason::Tried { sample_bytes: sample.len(), trials })
}

/// Chooses the chain of a segment and encodes it. The stored bytes are never more than the raw bytes.
pub fn encode_best(
    profile: &Profile,
    raw: &[u8],
    element: &ElementType,
    arrays: &[ArrayShape],
    pooled: bool,
    scratch: &mut Scratch,
) -> Result<(Chain, Vec<u8>), CodecError> {
    let coded = encode_chosen(profile, raw, element, arrays, pooled, &Basis::NOTHING, scratch)?;
    Ok((coded.chain, coded.stored))
}

/// Encodes like [`encode_best`], with additional inputs: earlier decisions, the speed of the store, and an older
/// segment. The result includes the reason of the choice.
pub fn encode_chosen(
    profile: &Profile,
    raw: &[u8],
    element: &ElementType,
    arrays: &[ArrayShape],
    pooled: bool,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<Coded, CodecError> {
    scratch.set_older(basis.older.cloned());
    if profile.is_measured()
        && runs::is_constant(raw, element.width() as usize)
        && let Some(chain) = Chain::runs(element.width())
    {
        // A wide element may contain repeated bytes, so zstd codes the result.
        let is_wide = element.width() > SHUFFLE_WIDTH_MAX;
        let chain = if is_wide { chain.then_zstd(ZSTD_LEVEL) } else { chain };
        let stored = chain.encode(raw, arrays, scratch)?;
        if stored.len() < raw.len() {
            return Ok(Coded { chain, stored, reason: Reason::Constant });
        }
    }
    if let Some(kept) = basis.kept
        && let Some(chain) =
            kept.chain().and_then(|chain| still_candidate(chain, profile, element, arrays, pooled, basis))
    {
        let coded = encode(chain, raw, arrays, Reason::Kept, scratch)?;
        if kept.expects(raw.len(), coded.stored.len()) {
            return Ok(coded);
        }
    }
    let quick = quick_zstd(profile, raw, element, basis, scratch);
    if let Some(clear) = quick.as_ref().filter(|quick| is_clear(quick)) {
        let (chain, reason) = best_of(vec![clear.by_zstd.clone()], &clear.sample, basis);
        return encode(chain, raw, arrays, reason, scratch);
    }
    let mut chains = candidates(profile, element, arrays, pooled, raw, basis);
    let by_zstd = match *element == ElementType::Bytes && profile.is_together() && raw.len() > WHOLE_BYTES {
        true => look_at_bytes(&mut chains, profile, raw, arrays, basis, scratch)?,
        false => 0,
    };
    let are_measured_whole = raw.len() <= WHOLE_BYTES || matches!(profile, Profile::Balanced | Profile::Max);
    let is_slow = *profile == Profile::Max && chains.iter().any(Chain::is_zstd);
    if !are_measured_whole || chains.len() < 2 && !is_slow {
        let (chain, reason) = chosen(chains, quick, raw, element, arrays, basis, scratch);
        return encode(chain, raw, arrays, reason, scratch);
    }
    if raw.len() > WHOLE_BYTES
        && chains.iter().any(Chain::needs_older)
        && !may_gain(raw, element, arrays, basis, scratch)?
    {
        chains.retain(|chain| !chain.needs_older());
    }
    let mut trials: Vec<Trial> = Vec::with_capacity(chains.len());
    let mut best: Option<(u128, Chain, Vec<u8>)> = None;
    for chain in chains {
        if chain.is_zstd()
            && let Some(least) = trials.iter().map(|trial| trial.stored_bytes).min()
            && least + least / 8 < by_zstd
        {
            // By the estimate from the sample, zstd leaves many more bytes than another chain. A fast level of zstd
            // shows whether the whole segment is like the sample.
            let quickly = Chain::zstd(1).encoded_bytes(raw, arrays, scratch)?;
            if least + least / 16 < quickly {
                continue;
            }
        }
        let begun = basis.now();
        let stored_bytes = chain.encoded_bytes(raw, arrays, scratch)?;
        let trial = Trial { chain, stored_bytes, coding: basis.now().saturating_sub(begun) };
        let cost = basis.cost(&trial);
        if stored_bytes < raw.len() && best.as_ref().is_none_or(|(least, ..)| cost < *least) {
            best = Some((cost, trial.chain.clone(), scratch.front.clone()));
        }
        trials.push(trial);
    }
    // If numbers were found between the bytes, codec `mixed` has already tried LZMA on the numbers and on the other
    // bytes.
    if is_slow && !trials.iter().any(|trial| trial.chain.steps()[0].codec == ids::MIXED) {
        let begun = basis.now();
        let by_zstd = trials.iter().find(|trial| trial.chain.is_zstd());
        let by_zstd = by_zstd.map(|trial| OfZstd { chain: &trial.chain, stored_bytes: trial.stored_bytes });
        let least = best.as_ref().map_or(raw.len(), |(.., stored)| stored.len());
        if let Some(by_zstd) = by_zstd
            && let Some((chain, stored)) = lzma(raw, &Chain::lzmas(), by_zstd, least, scratch)?
        {
            let coding = basis.now().saturating_sub(begun);
            let trial = Trial { chain: chain.clone(), stored_bytes: stored.len(), coding };
            let cost = basis.cost(&trial);
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, chain, stored));
            }
            trials.push(trial);
        }
    }
    let unchanged = Trial { chain: Chain::raw(), stored_bytes: raw.len(), coding: Duration::ZERO };
    let (chain, stored) = match best {
        Some((cost, chain, stored)) if cost < basis.cost(&unchanged) => (chain, stored),
        _ => (Chain::raw(), raw.to_vec()),
    };
    Ok(Coded { chain, stored, reason: Reason::Tried { sample_bytes: raw.len(), trials } })
}

/// Whether to try coding the whole segment with the older segment. Such a trial takes longer than coding without an
/// older segment. A trial on a part of the arrays gives the answer. If no part of the arrays can be taken, the answer
/// is `true`. This function leaves the basis's older segment in `scratch`.
fn may_gain(
    raw: &[u8],
    element: &ElementType,
    arrays: &[ArrayShape],
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<bool, CodecError> {
    let chains = [Chain::predict(element, MAX.prediction), Chain::since(element, MAX.prediction)];
    let [Some(predict), Some(since)] = chains else { return Ok(true) };
    // Rows that are matched by their identification numbers cannot be measured on a part of the arrays.
    if basis.older.is_some_and(|older| predict::has_known_rows(since.steps()[0].param, raw, arrays, older)) {
        return Ok(true);
    }
    let Some(part) = basis.older.and_then(|older| part_of(raw, element.width() as usize, arrays, older)) else {
        return Ok(true);
    };
    let (raw, arrays, older) = part;
    scratch.set_older(Some(Arc::new(older)));
    let alone = predict.encoded_bytes(&raw, &arrays, scratch)?;
    let with = since.encoded_bytes(&raw, &arrays, scratch)?;
    scratch.set_older(basis.older.cloned());
    Ok(with * 100 < alone * (100 - PART_GAIN_PERCENT))
}

/// Selects about [`PART_BYTES`] of the segment for a trial, but at least one of [`PARTS_MAX`] arrays of each class,
/// together with the older bytes of the selected arrays. `None` if the segment is too small, or if the lengths of the
/// arrays do not add up to the length of the segment.
fn part_of(
    raw: &[u8],
    width: usize,
    arrays: &[ArrayShape],
    older: &Older,
) -> Option<(Vec<u8>, Vec<ArrayShape>, Older)> {
    let part = (raw.len() / PART_BYTES).min(PARTS_MAX);
    if part < 2 || older.places.len() != arrays.len() {
        return None;
    }
    let mut found: (Vec<u8>, Vec<ArrayShape>, Older) = Default::default();
    let (mut left, mut column, mut nth) = (raw, None, 0);
    for (array, place) in arrays.iter().zip(&older.places) {
        let bytes = usize::try_from(array.elements).ok()?.checked_mul(width)?;
        let (own, rest) = left.split_at_checked(bytes)?;
        left = rest;
        nth = if column == Some(array.column) { nth + 1 } else { 0 };
        column = Some(array.column);
        if nth % part == part / 2 {
            found.0.extend_from_slice(own);
            found.1.push(array.clone());
            let from = found.2.raw.len();
            let older = older.raw.get(place.from..place.from.checked_add(place.bytes)?)?;
            found.2.raw.extend_from_slice(older);
            found.2.places.push(OlderPlace { from, ..*place });
        }
    }
    (left.is_empty() && found.0.len() * 2 > PART_BYTES).then_some(found)
}

/// Adjusts the candidates for untyped bytes to the contents of the bytes. Untyped bytes may be records, numbers
/// between other bytes, or words that repeat byte by byte. Records keep the candidate `predict`, numbers add `mixed`,
/// and words add a shuffle. Returns the number of bytes that zstd is expected to leave, or 0 if zstd must be tried in
/// any case.
fn look_at_bytes(
    chains: &mut Vec<Chain>,
    profile: &Profile,
    raw: &[u8],
    arrays: &[ArrayShape],
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<usize, CodecError> {
    let Some(at) = chains.iter().position(Chain::is_zstd) else { return Ok(0) };
    let is_quick = *profile == Profile::Balanced && basis.store.is_none();
    let sample = sample(raw, 1);
    let stored_bytes = chains[at].encoded_bytes(&sample, &[], scratch)?;
    let is_clear = stored_bytes * CLEAR_DIVISOR < sample.len();
    if is_clear && is_quick {
        chains[at] = Chain::zstd(BALANCED_CLEAR_ZSTD_LEVEL);
    }
    let are_records = !is_clear && predict::is_of_records(raw, arrays);
    if !is_clear && !are_records {
        let mut best = (stored_bytes - stored_bytes / SHUFFLED_GAIN_DIVISOR, None);
        for chain in shuffles_of_bytes() {
            let stored_bytes = chain.encoded_bytes(&sample, &[], scratch)?;
            if stored_bytes < best.0 {
                best = (stored_bytes, Some(chain));
            }
        }
        let hardness = if *profile == Profile::Max { MAX } else { BALANCED };
        let mixed = mixed::is_of_numbers(raw, arrays).then(|| Chain::mixed(hardness.prediction));
        chains.splice(at..at, mixed.into_iter().chain(best.1));
    }
    // Without records, codec `predict` would be zstd at another level.
    if !are_records {
        chains.retain(|chain| chain.steps()[0].codec != ids::PREDICT);
    }
    Ok(if is_quick { stored_bytes * (raw.len() / sample.len()) } else { 0 })
}

fn encode(
    chain: Chain,
    raw: &[u8],
    arrays: &[ArrayShape],
    reason: Reason,
    scratch: &mut Scratch,
) -> Result<Coded, CodecError> {
    if !chain.is_raw() && chain.encoded_bytes(raw, arrays, scratch)? < raw.len() {
        return Ok(Coded { chain, stored: scratch.front.clone(), reason });
    }
    Ok(Coded { chain: Chain::raw(), stored: raw.to_vec(), reason })
}

/// An older segment is first tried on a part of the segment: about 256 KiB, but at least 1/32 of its arrays. The
/// older segment must save at least 2 % of the part's stored bytes.
const PART_BYTES: usize = 256 << 10;
const PARTS_MAX: usize = 32;
const PART_GAIN_PERCENT: usize = 2;

/// zstd's level in profile `balanced` for bytes that clearly hold no numbers. For such bytes, a higher level takes
/// several times as long and saves almost no bytes.
const BALANCED_CLEAR_ZSTD_LEVEL: u32 = 3;
