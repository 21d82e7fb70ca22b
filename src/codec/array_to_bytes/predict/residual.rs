//! What prediction leaves of a column, as bytes: the shortest of a few ways.
//!
//! - *none*: all are zero.
//! - *pco*: `pco` (M. Loncaric, pcodec), which finds bins of a fixed number of bits each, and for numbers as they are also
//!   its own differences and multiples. Decoding runs at memory speed.
//! - *symbols*: sign and length of each number by an adaptive range coder whose model is chosen by how long the two
//!   before were, the bits below the leading one as they are.
//! - *around*: the same for grids, where the model is chosen by how long the numbers of the cells before were along each
//!   axis: what is hard to predict lies together in all of them.
//! - *bytes*: bytes of equal significance together, then zstd.
//! - *bits*: bits of equal significance together, then zstd, where there is no prediction.

use super::layout::{put, take};
use crate::codec::array_to_bytes::entropy::{
    BitReader, BitWriter, Model, SymbolBuffers, decode_symbols, encode_symbols,
};
use crate::codec::bytes_to_bytes::bitshuffle::{Lanes, shuffle_bits, unshuffle_bits};
use pco::standalone::{simple_compress, simple_decompress_into};
use pco::{ChunkConfig, DeltaSpec, ModeSpec};

/// Symbols: from -64 to 64 significant bits.
const SYMBOLS: usize = 129;
const ZERO: usize = 64;
/// Models to choose from, in a line and in a grid.
const CONTEXTS: usize = 6;
const CONTEXTS_AROUND: usize = 12;

/// For each number the places of up to three others before it, plus 1; 0 where there is none.
pub(super) type Around = [u32; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    None = 0,
    Pco = 1,
    Symbols = 2,
    Bytes = 3,
    PcoFloats = 4,
    Around = 5,
    Bits = 6,
}

/// What is to be coded: differences, or where there is no prediction the ordered numbers themselves.
pub(super) struct Numbers<'a> {
    pub values: &'a [i64],
    /// The same as doubles, where they are such and not predicted.
    pub floats: Option<&'a [f64]>,
    pub is_predicted: bool,
    /// In a grid; none in a line.
    pub around: &'a [Around],
}

/// Bytes that noise leaves of a number at least.
const NOISE_BYTES: usize = 2;
/// A level that takes next to no time.
const ZSTD_LEVEL_FAST: i32 = 1;

/// How hard to try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Effort {
    pub pco_level: usize,
    pub zstd_level: i32,
    pub symbols: bool,
}

impl Effort {
    pub(super) fn of(effort: u32) -> Self {
        match effort {
            0 => Self { pco_level: 4, zstd_level: 1, symbols: false },
            1 => Self { pco_level: 8, zstd_level: 3, symbols: false },
            _ => Self { pco_level: 8, zstd_level: 12, symbols: true },
        }
    }
}

/// The shortest code: its way, then its bytes.
pub(super) fn encode(numbers: &Numbers<'_>, effort: Effort) -> Vec<u8> {
    let values = numbers.values;
    if values.iter().all(|&v| v == 0) {
        return vec![Way::None as u8];
    }
    let mut config = ChunkConfig::default().with_compression_level(effort.pco_level);
    if numbers.is_predicted {
        config = config.with_delta_spec(DeltaSpec::NoOp).with_mode_spec(ModeSpec::Classic);
    }
    let mut best: Vec<u8> = Vec::new();
    let keep = |best: &mut Vec<u8>, way: Way, code: &[u8]| {
        if best.is_empty() || code.len() + 1 < best.len() {
            best.clear();
            best.push(way as u8);
            best.extend_from_slice(code);
        }
    };
    // It fails for configurations that do not suit the numbers only.
    if let Ok(code) = simple_compress(values, &config) {
        keep(&mut best, Way::Pco, &code);
    }
    if let Some(Ok(code)) = numbers.floats.map(|floats| simple_compress(floats, &config)) {
        keep(&mut best, Way::PcoFloats, &code);
    }
    if effort.symbols {
        match numbers.around {
            [] => keep(&mut best, Way::Symbols, &symbols::<CONTEXTS>(values, &[])),
            around => keep(&mut best, Way::Around, &symbols::<CONTEXTS_AROUND>(values, around)),
        }
    }
    if !numbers.is_predicted
        && let Ok(code) = zstd::bulk::compress(&to_bits(values), ZSTD_LEVEL_FAST)
    {
        keep(&mut best, Way::Bits, &code);
    }
    // What prediction leaves repeats no bytes, unless it is next to nothing.
    let is_short = best.len() < values.len();
    if !numbers.is_predicted || effort.symbols && is_short {
        let shuffled: Vec<u8> = (0..8).flat_map(|byte| values.iter().map(move |v| v.to_le_bytes()[byte])).collect();
        // Of many bits a number most are noise: there a high level takes long, and does not make up for much.
        let is_near = |code: Vec<u8>| code.len() < best.len() + best.len() / 4;
        let is_worth_it = best.len() < values.len() * NOISE_BYTES
            || effort.zstd_level <= ZSTD_LEVEL_FAST
            || zstd::bulk::compress(&shuffled, ZSTD_LEVEL_FAST).is_ok_and(is_near);
        if is_worth_it && let Ok(code) = zstd::bulk::compress(&shuffled, effort.zstd_level) {
            keep(&mut best, Way::Bytes, &code);
        }
        // Numbers whose bytes repeat do so themselves, perhaps, which a sample does not always show.
        if effort.symbols && !numbers.is_predicted && best[0] == Way::Bytes as u8 {
            let config = config.with_delta_spec(DeltaSpec::TryLookback);
            if let Ok(code) = simple_compress(values, &config) {
                keep(&mut best, Way::Pco, &code);
            }
        }
    }
    best
}

/// The numbers again; `None` where the bytes are not theirs. `ordered` says what doubles are as numbers, `around` which
/// others are around each.
pub(super) fn decode(
    code: &[u8],
    count: usize,
    ordered: impl Fn(f64) -> i64,
    around: impl FnOnce() -> Vec<Around>,
) -> Option<Vec<i64>> {
    let (&way, code) = code.split_first()?;
    let mut values = vec![0i64; count];
    match way {
        way if way == Way::None as u8 => code.is_empty().then_some(())?,
        way if way == Way::Pco as u8 => {
            let progress = simple_decompress_into(code, &mut values).ok()?;
            (progress.n_processed == count && progress.finished).then_some(())?;
        }
        way if way == Way::PcoFloats as u8 => {
            let mut floats = vec![0f64; count];
            let progress = simple_decompress_into(code, &mut floats).ok()?;
            (progress.n_processed == count && progress.finished).then_some(())?;
            values.iter_mut().zip(&floats).for_each(|(v, &f)| *v = ordered(f));
        }
        way if way == Way::Symbols as u8 => from_symbols::<CONTEXTS>(code, &mut values, &[])?,
        way if way == Way::Around as u8 => {
            let around = around();
            (around.len() == count).then_some(())?;
            from_symbols::<CONTEXTS_AROUND>(code, &mut values, &around)?;
        }
        way if way == Way::Bytes as u8 => {
            let shuffled = zstd::bulk::decompress(code, count * 8).ok().filter(|bytes| bytes.len() == count * 8)?;
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

/// The magnitudes, each with its sign as the lowest bit, in planes of equal bits as codec `bitshuffle` has them.
fn to_bits(values: &[i64]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|&v| ((v << 1) ^ (v >> 63)).to_le_bytes()).collect();
    let mut planes = vec![0; bytes.len()];
    shuffle_bits(&bytes, u64::BITS / 8, &mut planes, &mut Lanes::default());
    planes
}

/// The inverse of [`to_bits`].
fn from_bits(planes: &[u8], values: &mut [i64]) {
    let mut bytes = vec![0; planes.len()];
    unshuffle_bits(planes, u64::BITS / 8, &mut bytes, &mut Lanes::default());
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0) {
        let zigzag = u64::from_le_bytes(*bytes);
        *value = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    }
}

fn length(value: i64) -> u32 {
    u64::BITS - value.unsigned_abs().leading_zeros()
}

fn symbol(value: i64) -> u8 {
    let length = length(value) as usize; // at most 64
    (if value < 0 { ZERO - length } else { ZERO + length }) as u8
}

/// What the model of number `n` is chosen by, from the lengths so far: the sum of the two before, or of those around.
#[inline(always)]
fn sum_before(lengths: &[u8], around: &[Around]) -> u32 {
    let n = lengths.len();
    let back = |steps: usize| n.checked_sub(steps).map_or(0, |at| u32::from(lengths[at]));
    match around.get(n) {
        None => back(1) + back(2),
        Some(around) => {
            around.iter().map(|&at| if at == 0 { back(1) } else { u32::from(lengths[at as usize - 1]) }).sum()
        }
    }
}

/// Which model: by how the lengths of the numbers before stand to those of all.
#[inline(always)]
fn context(sum: u32, limits: &[u8]) -> usize {
    limits.iter().map(|&limit| usize::from(sum > u32::from(limit))).sum()
}

fn symbols<const MODELS: usize>(values: &[i64], around: &[Around]) -> Vec<u8> {
    let mut lengths: Vec<u8> = Vec::with_capacity(values.len());
    let mut sums: Vec<u8> = Vec::with_capacity(values.len());
    for &value in values {
        sums.push(sum_before(&lengths, around).min(255) as u8); // at most 3 times 64
        lengths.push(length(value) as u8);
    }
    // Limits that share the numbers equally among the models.
    let mut counts = [0usize; 256];
    sums.iter().for_each(|&sum| counts[usize::from(sum)] += 1);
    let mut limits = vec![u8::MAX; MODELS - 1];
    let (mut sum, mut at) = (0, 0);
    for (value, count) in counts.iter().enumerate() {
        sum += count;
        while at < limits.len() && sum * MODELS >= values.len() * (at + 1) {
            limits[at] = value as u8;
            at += 1;
        }
    }
    let mut streams: [Vec<u8>; MODELS] = std::array::from_fn(|_| Vec::new());
    let mut bits = BitWriter::default();
    for (&value, &sum) in values.iter().zip(&sums) {
        streams[context(u32::from(sum), &limits)].push(symbol(value));
        let length = length(value);
        if length > 1 {
            // Below the leading bit, which the length tells.
            bits.put(value.unsigned_abs() & !(!0 << (length - 1)), length - 1);
        }
    }
    let mut out = limits;
    let mut buffers = SymbolBuffers::default();
    for stream in &streams {
        let mut code = Vec::new();
        encode_symbols(stream, &mut Model::new(SYMBOLS, false), &mut buffers, &mut code);
        put(stream.len(), &mut out);
        put(code.len(), &mut out);
        out.extend(code);
    }
    out.extend_from_slice(bits.finish());
    out
}

fn from_symbols<const MODELS: usize>(mut code: &[u8], values: &mut [i64], around: &[Around]) -> Option<()> {
    let (limits, rest) = code.split_at_checked(MODELS - 1)?;
    code = rest;
    let mut streams: [Vec<u8>; MODELS] = std::array::from_fn(|_| Vec::new());
    let mut left = values.len();
    for stream in &mut streams {
        let count = take(&mut code)?;
        left = left.checked_sub(count)?;
        let bytes = take(&mut code)?;
        let (symbols, rest) = code.split_at_checked(bytes)?;
        code = rest;
        stream.resize(count, 0);
        decode_symbols(symbols, stream, &mut Model::new(SYMBOLS, true)).then_some(())?;
    }
    (left == 0).then_some(())?;
    let mut streams = streams.each_ref().map(|stream| stream.iter());
    let mut bits = BitReader::new(code);
    let mut lengths: Vec<u8> = Vec::with_capacity(values.len());
    for value in values {
        let symbol = usize::from(*streams[context(sum_before(&lengths, around), limits)].next()?);
        let length = symbol.abs_diff(ZERO) as u32; // at most 64
        let magnitude = if length > 1 { 1 << (length - 1) | bits.take(length - 1) } else { u64::from(length) };
        *value = if symbol < ZERO { magnitude.wrapping_neg() as i64 } else { magnitude as i64 };
        lengths.push(length as u8);
    }
    bits.is_at_end().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers() -> impl Strategy<Value = Vec<i64>> {
        prop_oneof![
            prop::collection::vec(any::<i64>(), 0..400),
            prop::collection::vec(-40i64..40, 0..400),
            prop::collection::vec(prop::sample::select(vec![i64::MIN, i64::MAX, 0, 1, -1]), 0..400),
        ]
    }

    proptest! {
        #[test]
        fn numbers_come_back_each_way(
            values in numbers(), is_predicted in any::<bool>(), symbols in any::<bool>(), places in any::<u64>(),
        ) {
            let effort = Effort { pco_level: 4, zstd_level: 3, symbols };
            let at = |n: usize, k: u64| (places.rotate_left(n as u32).wrapping_mul(k) % (n as u64 + 1)) as u32;
            let some: Vec<Around> = (0..values.len()).map(|n| [at(n, 1), at(n, 3), at(n, 7)]).collect();
            for around in [&[][..], &some] {
                let code = encode(&Numbers { values: &values, floats: None, is_predicted, around }, effort);
                prop_assert_eq!(decode(&code, values.len(), |_| 0, || around.to_vec()), Some(values.clone()));
                let planes = to_bits(&values);
                let mut again = vec![0; values.len()];
                from_bits(&planes, &mut again);
                prop_assert_eq!(&again, &values);
                let (way, code) = match around {
                    [] => (Way::Symbols, super::symbols::<CONTEXTS>(&values, around)),
                    _ => (Way::Around, super::symbols::<CONTEXTS_AROUND>(&values, around)),
                };
                let mut code: Vec<u8> = std::iter::once(way as u8).chain(code).collect();
                prop_assert_eq!(decode(&code, values.len(), |_| 0, || around.to_vec()), Some(values.clone()));
                code.pop();
                let cut = decode(&code, values.len(), |_| 0, || around.to_vec());
                prop_assert!(cut.is_none_or(|found| found != values || values.is_empty()));
            }
        }

        #[test]
        fn doubles_as_such_come_back_with_all_their_bits(bits in prop::collection::vec(any::<u64>(), 1..300)) {
            let floats: Vec<f64> = bits.iter().map(|&b| f64::from_bits(b)).collect();
            let code = simple_compress(&floats, &ChunkConfig::default()).expect("it takes doubles");
            let code: Vec<u8> = std::iter::once(Way::PcoFloats as u8).chain(code).collect();
            let values: Vec<i64> = bits.iter().map(|&b| b as i64).collect();
            prop_assert_eq!(decode(&code, bits.len(), |f| f.to_bits() as i64, Vec::new), Some(values));
        }
    }
}
