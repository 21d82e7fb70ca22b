//! Which chain a segment gets: the profile says how to decide, and the default one measures.
//!
//! Where all elements are the same, that is all there is to store. Two ways are worth their time for other numbers:
//! zstd by itself, which finds repeats (ghost zones, refined grids, what did not change), and shuffle before zstd, of
//! bytes or of bits, which finds what numbers near each other have in common. Either can be a quarter shorter than
//! the other. What tells them apart is how much of a segment comes again, perhaps far away, where no sample of a few
//! runs sees it. So that is counted over the whole segment first ([`repeats_per_mille`]), in a small part of the time
//! that coding takes. Where next to nothing comes again, a shuffle it is; where much does, zstd. Between, all are
//! tried on runs spread over the segment, a sixteenth of it, long enough to hold the nearer repeats, and what comes
//! again counts as free for zstd.
//!
//! Bytes and records are tried on the sample alone, and short segments as a whole. Bytes may be records that nobody
//! described: the distance at which most of them repeat is one more width to shuffle by.
//!
//! What else a choice may rest on is in [`super::decide`].

use super::array_to_bytes::{mixed, predict, runs};
use super::lzma_trial::{OfZstd, lzma};
use super::sample::{WHOLE_BYTES, sample};
use super::{ArrayShape, Basis, Chain, CodecError, Coded, Older, OlderPlace, Reason, Scratch, Trial, ids};
use crate::header::ElementType;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How chains are chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Profile {
    /// The better of shuffle and zstd, and zstd alone, measured for each segment; never in the way. `fast`
    #[default]
    Fast,
    /// Prediction as far as it takes little time: about as small as the best codec for each class, or smaller.
    /// `balanced`
    Balanced,
    /// Whatever makes it smallest, at the speed of xz. `max`
    Max,
    /// The chain of the mcrEngine paper. `paper`, or `paper-single` without the second pass
    Paper {
        /// With gzip over everything.
        double: bool,
    },
    /// Nothing at all. `raw`
    Raw,
    /// gzip at level 6. `gzip`
    Gzip,
    /// zstd for everything. `zstd`, `zstd-9`
    Zstd {
        /// 1 to 22.
        level: u32,
    },
    /// Shuffle and zstd for everything that has elements. `shuffle-zstd`, `shuffle-zstd-9`
    ShuffleZstd {
        /// 1 to 22.
        level: u32,
    },
    /// FPC and zstd for doubles, as the default for the rest. `fpc`, `fpc-16`
    Fpc {
        /// log2 of the table's entries, 1 to 20.
        level: u32,
    },
    /// fpzip for floats and doubles, in as many dimensions as help; as the default for the rest. `fpzip`
    Fpzip,
}

/// Finding numbers in untyped bytes and in records needs about four times the memory per byte, so such segments are a
/// quarter of the normal length.
pub(crate) const UNTYPED_SEGMENT_DIVISOR: u64 = 4;

const ZSTD_LEVEL: u32 = 3;
const SHUFFLE_ZSTD_LEVEL: u32 = 1;
/// Room for a quarter of a million places of numbers that may come again; and what bytes with much in common need,
/// like what stands between a file's variables.
const REPEATS_TABLE_LOG: u32 = 18;
const BYTES_TABLE_LOG: u32 = 15;
const FPC_LEVEL: u32 = 16;
const GZIP_LEVEL: u32 = 6;
const STRONG_ZSTD_LEVEL: u32 = 9;
/// For more bytes than these the strongest profile takes zstd at this level, beside prediction.
const MANY_BYTES_ZSTD_LEVEL: u32 = 12;
const BYTES_FEW: usize = 256 << 10;
const PCO_LEVEL: u32 = 8;

/// Fewer repeats than this are next to nothing.
const REPEATS_FEW_PER_MILLE: usize = 50;
/// With more than this, floating-point numbers need no trial. Integers may repeat and be like their neighbours as
/// well.
const REPEATS_MANY_PER_MILLE: usize = 150;
/// Bytes that zstd makes smaller than 1/8 of their length hold no numbers.
const CLEAR_DIVISOR: usize = 8;
/// Shuffling untyped bytes is tried on all of them only if it saves 1/32 of what zstd leaves of a sample.
const SHUFFLED_GAIN_DIVISOR: usize = 32;
/// fpzip is tried on the beginning of a segment, since it needs the neighbours.
const FPZIP_SAMPLE_BYTES: usize = 256 << 10;
/// Elements wider than this are not shuffled: their lanes would be too short to have anything in common.
const SHUFFLE_WIDTH_MAX: u32 = 64;

/// A profile that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no profile; there are fast, balanced, max, paper, paper-single, raw, gzip, zstd, zstd-1 to zstd-22, shuffle-zstd, \
     shuffle-zstd-1 to shuffle-zstd-22, fpc, fpc-1 to fpc-20, and fpzip"
)]
pub struct ProfileError {
    /// What was asked for.
    pub found: String,
}

impl FromStr for Profile {
    type Err = ProfileError;
    fn from_str(name: &str) -> Result<Self, ProfileError> {
        let error = || ProfileError { found: name.chars().take(80).collect() };
        let (kind, level) = match name.rsplit_once('-') {
            Some((kind, digits)) if digits.starts_with(|c: char| ('1'..='9').contains(&c)) => {
                (kind, Some(digits.parse::<u32>().map_err(|_| error())?))
            }
            _ => (name, None),
        };
        let within = |default: u32, most: u32| {
            let level = level.unwrap_or(default);
            if (1..=most).contains(&level) { Ok(level) } else { Err(error()) }
        };
        match (kind, level) {
            ("zstd", _) => Ok(Self::Zstd { level: within(ZSTD_LEVEL, 22)? }),
            ("shuffle-zstd", _) => Ok(Self::ShuffleZstd { level: within(SHUFFLE_ZSTD_LEVEL, 22)? }),
            ("fpc", _) => Ok(Self::Fpc { level: within(FPC_LEVEL, 20)? }),
            ("fast", None) => Ok(Self::Fast),
            ("balanced", None) => Ok(Self::Balanced),
            ("max", None) => Ok(Self::Max),
            ("paper", None) => Ok(Self::Paper { double: true }),
            ("paper-single", None) => Ok(Self::Paper { double: false }),
            ("raw", None) => Ok(Self::Raw),
            ("gzip", None) => Ok(Self::Gzip),
            ("fpzip", None) => Ok(Self::Fpzip),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leveled = |f: &mut fmt::Formatter<'_>, name: &str, level: u32, default: u32| {
            if level == default { f.write_str(name) } else { write!(f, "{name}-{level}") }
        };
        match *self {
            Self::Fast => f.write_str("fast"),
            Self::Balanced => f.write_str("balanced"),
            Self::Max => f.write_str("max"),
            Self::Paper { double: true } => f.write_str("paper"),
            Self::Paper { double: false } => f.write_str("paper-single"),
            Self::Raw => f.write_str("raw"),
            Self::Gzip => f.write_str("gzip"),
            Self::Zstd { level } => leveled(f, "zstd", level, ZSTD_LEVEL),
            Self::ShuffleZstd { level } => leveled(f, "shuffle-zstd", level, SHUFFLE_ZSTD_LEVEL),
            Self::Fpc { level } => leveled(f, "fpc", level, FPC_LEVEL),
            Self::Fpzip => f.write_str("fpzip"),
        }
    }
}

impl TryFrom<String> for Profile {
    type Error = ProfileError;
    fn try_from(name: String) -> Result<Self, ProfileError> {
        name.parse()
    }
}
impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

impl Profile {
    /// Whether several classes may share a segment, because their variables predict each other.
    pub fn is_together(&self) -> bool {
        matches!(self, Self::Balanced | Self::Max)
    }

    /// Whether any of its codecs wants to know how elements lie.
    pub fn looks_at_shapes(&self) -> bool {
        match self {
            Self::Balanced | Self::Max | Self::Paper { .. } | Self::Fpzip => true,
            Self::Fast | Self::Raw | Self::Gzip | Self::Zstd { .. } | Self::ShuffleZstd { .. } | Self::Fpc { .. } => {
                false
            }
        }
    }

    /// Whether it is for us to find out what suits the bytes.
    pub fn is_measured(&self) -> bool {
        matches!(self, Self::Fast | Self::Balanced | Self::Max)
    }

    /// Whether chunks stay behind their filters where taking these off does not make them much shorter.
    pub fn leaves_filters(&self) -> bool {
        matches!(self, Self::Fast | Self::Raw)
    }

    /// Whether it codes segments with what an older checkpoint has of them.
    pub fn looks_back(&self) -> bool {
        *self == Self::Max
    }

    /// Raw bytes of a segment where nothing else is said but the budget. Repeats and relations are found within a
    /// segment only, so it is long where there is memory for it.
    pub fn segment_bytes(&self, budget_bytes: u64) -> u64 {
        let has_room = budget_bytes >= self.budget_mib() << 20;
        match self {
            Self::Balanced | Self::Max if has_room => 32 << 20,
            Self::Balanced | Self::Max => 16 << 20,
            _ => 4 << 20,
        }
    }

    /// Bytes in memory for each raw byte of a segment of numbers that is fetched, merged, coded and decoded again.
    /// Measured, the most of four codes with segments of up to 16 MiB: 10.5 (on two threads 12.6) and 15 (18.6).
    pub fn memory_per_raw_byte(&self) -> u64 {
        match self {
            Self::Balanced => 12,
            Self::Max => 16,
            _ => 3,
        }
    }

    /// The same for a segment of these elements. Bytes and records are taken apart first, and each part is coded as a
    /// segment is: measured with 16 MiB of doubles in a file that nobody described, 18 (on two threads 26) and 28
    /// (37).
    pub fn memory_per_raw_byte_of(&self, element: &ElementType) -> u64 {
        let is_taken_apart = self.is_together() && element.is_taken_apart();
        self.memory_per_raw_byte() * if is_taken_apart { UNTYPED_SEGMENT_DIVISOR } else { 1 }
    }

    /// Bytes in memory for each raw byte of an older segment that one is coded with: its bytes, once more as they are
    /// arranged, its elements as bits and as numbers, where runs begin, and the same where they are decoded again.
    /// Measured as 15 with 16 MiB of doubles.
    pub fn memory_per_older_byte(&self) -> u64 {
        16
    }

    /// MiB of checkpoint in memory where nothing else is said: enough for one of its longest segments, with an older
    /// one or with files that are kept until they are stored.
    pub fn budget_mib(&self) -> u64 {
        match self {
            Self::Max => 1024,
            Self::Balanced => 512,
            _ => 256,
        }
    }
}

/// A sample, and what zstd leaves of it.
struct Quick {
    sample: Vec<u8>,
    by_zstd: Trial,
}

/// A sample and what zstd leaves of it: how the fast profile begins with bytes that nobody described, as those
/// between a file's variables.
fn in_haste(
    profile: &Profile,
    raw: &[u8],
    element: &ElementType,
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Option<Quick> {
    let is_in_haste = *profile == Profile::Fast && *element == ElementType::Bytes && basis.store.is_none();
    if !is_in_haste || raw.len() <= WHOLE_BYTES {
        return None;
    }
    let sample = sample(raw, 1);
    let by_zstd = trial(Chain::zstd_fast(BYTES_TABLE_LOG), &sample, &[], 0, basis, scratch);
    Some(Quick { sample, by_zstd })
}

/// Whether there are no numbers to speak of.
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
        return tried_in_haste(candidates, &sample, by_zstd, basis, scratch);
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

/// The chain that codes the sample best, where so much of what zstd alone leaves would be free.
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

/// The same for bytes that nobody described, of which is known what zstd leaves. Its other level is near it, and not
/// tried where something else leaves clearly less.
fn tried_in_haste(
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

/// The chain that this segment gets, and its stored bytes, which are never more than the raw ones.
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

/// As [`encode_best`], on a wider basis: what was decided before, and how fast the store is. Says why.
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
        // Of a wide element the inside may repeat as well.
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
    let quick = in_haste(profile, raw, element, basis, scratch);
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
            // By a sample it would not come near. What takes no time says whether all is like the sample.
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
    // Where numbers were found between the bytes, it was tried on both.
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

/// Whether an older segment is worth a trial, which takes longer than coding without: a part of the arrays says so,
/// and where there is none nobody does. Leaves `scratch` with the older segment of the basis.
fn may_gain(
    raw: &[u8],
    element: &ElementType,
    arrays: &[ArrayShape],
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<bool, CodecError> {
    let chains = [Chain::predict(element, MAX.prediction), Chain::since(element, MAX.prediction)];
    let [Some(predict), Some(since)] = chains else { return Ok(true) };
    // Rows that are known again by their numbers are in no part of the arrays.
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

/// Of each column one array in so many, the same of each, with what an older segment has of them. `None` where the
/// segment is too small, or the arrays do not add up.
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

/// Adds to the candidates for bytes that nobody described what a look at them speaks for, since they may be records,
/// or hold numbers between other bytes, or words that repeat byte by byte; in the balanced profile, which is in
/// haste, takes away what a sample speaks against. Gives the bytes that zstd is expected to leave, if more than that
/// need not be tried.
fn look_at_bytes(
    chains: &mut Vec<Chain>,
    profile: &Profile,
    raw: &[u8],
    arrays: &[ArrayShape],
    basis: &Basis<'_>,
    scratch: &mut Scratch,
) -> Result<usize, CodecError> {
    let Some(at) = chains.iter().position(Chain::is_zstd) else { return Ok(0) };
    let is_in_haste = *profile == Profile::Balanced && basis.store.is_none();
    let sample = sample(raw, 1);
    let stored_bytes = chains[at].encoded_bytes(&sample, &[], scratch)?;
    let is_clear = stored_bytes * CLEAR_DIVISOR < sample.len();
    if is_clear && is_in_haste {
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
    // Where there are no records, prediction is zstd at another level.
    if !are_records {
        chains.retain(|chain| chain.steps()[0].codec != ids::PREDICT);
    }
    Ok(if is_in_haste { stored_bytes * (raw.len() / sample.len()) } else { 0 })
}

fn shuffles_of_bytes() -> [Chain; 2] {
    [4, 8].map(|width| Chain::shuffle_zstd(width, SHUFFLE_ZSTD_LEVEL))
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

/// The chain, with what an encoder knows beside its steps, if the profile could choose it today too.
fn still_candidate(
    chain: Chain,
    profile: &Profile,
    element: &ElementType,
    arrays: &[ArrayShape],
    pooled: bool,
    basis: &Basis<'_>,
) -> Option<Chain> {
    let candidates = candidates(profile, element, arrays, pooled, &[], basis);
    if candidates.len() < 2 {
        return None; // there is nothing to keep, and nothing else to try where it brings less
    }
    if let Some(same) = candidates.into_iter().find(|candidate| *candidate == chain) {
        return Some(same);
    }
    // Records that nobody described may have any length.
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

/// The chains that come into question, never none.
fn candidates(
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
        // Of many bytes a high level takes long for what LZMA finds as well.
        (Profile::Max, _) => {
            let hardness = if raw.len() > BYTES_FEW { MAX_OF_MANY } else { MAX };
            predicted(element, &hardness).into_iter().chain(since(element, arrays, basis)).collect()
        }
    }
}

/// Prediction from an older checkpoint, where there is one that has as much as one of the arrays.
fn since(element: &ElementType, arrays: &[ArrayShape], basis: &Basis<'_>) -> Option<Chain> {
    let older = basis.older.filter(|older| older.places.len() == arrays.len())?;
    older.places.iter().any(|place| place.bytes > 0).then(|| Chain::since(element, MAX.prediction))?
}

/// A part of a segment that tells whether an older one helps has about so many bytes, of its arrays no fewer than one
/// in so many; and it must take so much less there, in per cent.
const PART_BYTES: usize = 256 << 10;
const PARTS_MAX: usize = 32;
const PART_GAIN_PERCENT: usize = 2;

/// What the candidates of `balanced` and `max` do.
struct Hardness {
    /// How hard to predict, as the parameter of `predict`, `since` and `mixed` stores it.
    prediction: u32,
    zstd_level: u32,
    shuffled_zstd_level: u32,
}

const BALANCED: Hardness = Hardness { prediction: 1, zstd_level: 6, shuffled_zstd_level: 3 };
const MAX: Hardness = Hardness { prediction: 2, zstd_level: 17, shuffled_zstd_level: 17 };
/// What `max` does with many bytes.
const MAX_OF_MANY: Hardness =
    Hardness { prediction: 2, zstd_level: MANY_BYTES_ZSTD_LEVEL, shuffled_zstd_level: MANY_BYTES_ZSTD_LEVEL };

/// And what it does with bytes that are clearly no numbers: there a higher level takes several times as long for next
/// to nothing of a checkpoint.
const BALANCED_CLEAR_ZSTD_LEVEL: u32 = 3;

/// Prediction where there may be numbers, and what serves other bytes.
fn predicted(element: &ElementType, hardness: &Hardness) -> Vec<Chain> {
    let Hardness { prediction, zstd_level: zstd, shuffled_zstd_level: shuffled } = *hardness;
    let others = || vec![Chain::zstd(zstd)];
    match (element, Chain::predict(element, prediction)) {
        (ElementType::Bytes, Some(predict)) => vec![predict, Chain::zstd(zstd)],
        // Numbers of other elements, as in unstructured meshes, are not near their neighbours, but repeat byte by
        // byte, or rise by the same again and again.
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

/// The candidates of the fast profile: zstd first, what is for numbers last.
fn measured(element: &ElementType, raw: &[u8]) -> Vec<Chain> {
    let zstd = Chain::zstd(ZSTD_LEVEL);
    let shuffled = |width| Chain::shuffle_zstd(width, SHUFFLE_ZSTD_LEVEL);
    let bits = |width| Chain::bitshuffle_zstd(width, SHUFFLE_ZSTD_LEVEL);
    match element {
        ElementType::Int { width: 1, .. } | ElementType::Fixed { width: 1 } => vec![zstd],
        // Numbers that nobody told us of, or records of them. Of bytes without a pattern the lower level often leaves
        // less.
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

/// What comes into question beside it where the store's speed counts: what is faster, down to nothing at all, and
/// what is stronger.
fn weighed(element: &ElementType) -> Vec<Chain> {
    let width = element.width().min(SHUFFLE_WIDTH_MAX);
    let mut chains = vec![Chain::raw(), Chain::lz4(), Chain::zstd(STRONG_ZSTD_LEVEL)];
    if width > 1 {
        chains.push(Chain::shuffle_lz4(width));
    }
    chains.extend(Chain::pco(element, PCO_LEVEL));
    chains
}

/// How many elements in a thousand begin a run of [`REPEAT_ELEMENTS`] that was there before.
///
/// An element that equals the next counts neither way, since any codec likes it. Of the runs, one in
/// [`REPEAT_SAMPLED_DIVISOR`] is looked at, by a hash of its beginning, so that a run and its repeat are both looked
/// at or neither, and few enough are remembered for the cache. Each place in the table remembers the last one only.
fn repeats_per_mille(raw: &[u8], width: u8, seen: &mut Vec<u32>) -> usize {
    match width {
        2 => repeats(raw.as_chunks::<2>().0, |&e| u64::from(u16::from_le_bytes(e)), seen),
        4 => repeats(raw.as_chunks::<4>().0, |&e| u64::from(u32::from_le_bytes(e)), seen),
        8 => repeats(raw.as_chunks::<8>().0, |&e| u64::from_le_bytes(e), seen),
        _ => 0,
    }
}

const REPEAT_ELEMENTS: usize = 4;
const REPEAT_SAMPLED_DIVISOR: usize = 64;
/// Fewer runs than this say nothing.
const REPEAT_RUNS_MIN: usize = 8;
/// Places in the table at most: 256 KiB.
const SEEN_MAX: usize = 1 << 16;

fn repeats<T>(elements: &[T], value: impl Fn(&T) -> u64, seen: &mut Vec<u32>) -> usize {
    let places = (elements.len() / REPEAT_SAMPLED_DIVISOR * 2).next_power_of_two().clamp(256, SEEN_MAX);
    seen.clear();
    seen.resize(places, 0);
    let (mut looked_at, mut again) = (0, 0);
    for run in elements.windows(REPEAT_ELEMENTS) {
        let [a, b, c, d] = run else { continue };
        let [a, b] = [value(a), value(b)];
        // Odd multipliers, from the fractions of the golden ratio and of square roots, mix all bits into the high
        // ones.
        let start = (a ^ b.rotate_left(23)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if start >> (u64::BITS - REPEAT_SAMPLED_DIVISOR.ilog2()) == 0 && a != b {
            let hash = (start ^ start >> 32)
                .wrapping_add(value(c).wrapping_mul(0xBB67_AE85_84CA_A73B))
                .wrapping_add(value(d).wrapping_mul(0x3C6E_F372_FE94_F82B))
                .wrapping_mul(0x6A09_E667_F3BC_C909);
            let place = &mut seen[(hash >> 40) as usize & (places - 1)];
            let mark = (hash >> 8) as u32 | 1; // never 0, which is an empty place
            looked_at += 1;
            again += usize::from(*place == mark);
            *place = mark;
        }
    }
    if looked_at < REPEAT_RUNS_MIN { 0 } else { again * 1000 / looked_at }
}
