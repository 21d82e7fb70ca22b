//! Encodes the differences of a column as bytes. Of the ways in `residual.rs`, the shortest way is used, or a way
//! that is almost as short and decodes faster.

use super::super::format::residual::Way;
use super::effort::NumbersEffort;
use crate::codec::bytes_to_bytes::bitshuffle::{Lanes, shuffle_bits};
use crate::codec::bytes_to_bytes::shuffle::shuffle;
use pco::standalone::simple_compress;
use pco::{ChunkConfig, DeltaSpec, ModeSpec};
use std::cell::RefCell;
use zstd::bulk::Compressor;

/// The numbers to be coded: differences, or the ordered integers of the elements if there is no prediction.
pub(crate) struct Numbers<'a> {
    pub values: &'a [i64],
    /// The elements as doubles, if the elements are doubles and are not predicted.
    pub floats: Option<&'a [f64]>,
    pub is_predicted: bool,
}

/// If a number takes at least this many bytes, most of its bits are noise.
const NOISE_BYTES: usize = 2;
/// The maximum length of a run on which zstd is tried first, in numbers.
const RUN: usize = 2048;
/// If a run would be shorter than this many numbers, zstd is tried on all numbers.
const RUN_MIN: usize = 512;
/// A run has at most 1/8 of all numbers.
const RUNS_MIN: usize = 8;
/// The estimate from a run may be too high by 1/16 of the code.
const RUN_OFF_DIVISOR: usize = 16;
/// The fastest level of zstd that is used.
const ZSTD_LEVEL_FAST: i32 = 1;

/// The shortest code, or a code that is almost as short. The first byte names the way. The bytes of the code follow.
pub(crate) fn encode(numbers: &Numbers<'_>, effort: NumbersEffort) -> Vec<u8> {
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
    // pco fails only if the configuration does not suit the numbers.
    if let Some((way, code)) = to_pco(values, &config) {
        keep(&mut best, way, &code);
    }
    if let Some(Ok(code)) = numbers.floats.map(|floats| simple_compress(floats, &config)) {
        keep(&mut best, Way::PcoFloats, &code);
    }
    // If there are many numbers, a way is tried on a run first, except with the higher effort.
    let run = (values.len() / RUNS_MIN).min(RUN);
    let run = (!effort.is_thorough && run >= RUN_MIN).then(|| &values[(values.len() - run) / 2..][..run]);
    let may_be_less = |best: &[u8], planes: fn(&[i64]) -> Vec<u8>, level: i32| {
        run.is_none_or(|run| {
            let of_run = zstd(&planes(run), level);
            of_run.is_none_or(|code| code.len() * values.len() / run.len() < best.len() + best.len() / RUN_OFF_DIVISOR)
        })
    };
    if !numbers.is_predicted
        && may_be_less(&best, to_bits, ZSTD_LEVEL_FAST)
        && let Some(code) = zstd(&to_bits(values), ZSTD_LEVEL_FAST)
    {
        keep(&mut best, Way::Bits, &code);
    }
    // Bytes of differences rarely repeat, unless the differences are very small.
    let is_short = best.len() < values.len();
    if (!numbers.is_predicted || effort.is_thorough && is_short) && may_be_less(&best, to_bytes, effort.zstd_level) {
        let shuffled = to_bytes(values);
        // If numbers take many bits, most bits are noise. For noise, a high level of zstd takes a long time and saves
        // little.
        let is_near = |code: Vec<u8>| code.len() < best.len() + best.len() / 4;
        let is_worth_it = best.len() < values.len() * NOISE_BYTES
            || effort.zstd_level <= ZSTD_LEVEL_FAST
            || run.is_some()
            || zstd(&shuffled, ZSTD_LEVEL_FAST).is_some_and(is_near);
        if is_worth_it && let Some(code) = zstd(&shuffled, effort.zstd_level) {
            keep(&mut best, Way::Bytes, &code);
        }
        // If bytes repeat, whole numbers may repeat too. A sample does not always show such repeats.
        if effort.is_thorough && !numbers.is_predicted && best[0] == Way::Bytes as u8 {
            let config = config.with_delta_spec(DeltaSpec::TryLookback);
            if let Some((way, code)) = to_pco(values, &config) {
                keep(&mut best, way, &code);
            }
        }
    }
    best
}

/// Encodes the numbers by pco, as the narrowest integers that hold all of them. `None` if the configuration does not
/// suit the numbers.
fn to_pco(values: &[i64], config: &ChunkConfig) -> Option<(Way, Vec<u8>)> {
    // The bits that are set in the magnitude of any number. The sign takes one additional bit.
    let places = values.iter().fold(0, |all, &v| all | (v ^ (v >> 63)));
    let (way, code) = if i16::try_from(places).is_ok() {
        (Way::Pco2, simple_compress(&values.iter().map(|&v| v as i16).collect::<Vec<_>>(), config))
    } else if i32::try_from(places).is_ok() {
        (Way::Pco4, simple_compress(&values.iter().map(|&v| v as i32).collect::<Vec<_>>(), config))
    } else {
        (Way::Pco, simple_compress(values, config))
    };
    Some((way, code.ok()?))
}

thread_local! {
    /// Compressors that are kept for later columns, one compressor for each level. Creating a compressor takes longer
    /// than compressing a short column.
    static COMPRESSORS: RefCell<Vec<(i32, Compressor<'static>)>> = const { RefCell::new(Vec::new()) };
}

/// One zstd frame; `None` if memory for the frame cannot be allocated.
fn zstd(bytes: &[u8], level: i32) -> Option<Vec<u8>> {
    let mut all = COMPRESSORS.take();
    let kept = all.iter().position(|(of, _)| *of == level).map(|at| all.swap_remove(at));
    let (_, mut compressor) = kept.or_else(|| Some((level, Compressor::new(level).ok()?)))?;
    let code = compressor.compress(bytes).ok();
    all.push((level, compressor)); // the list has at most one entry for each level that `Effort` uses
    COMPRESSORS.set(all);
    code
}

/// The bytes of the numbers. Bytes of equal significance are contiguous.
fn to_bytes(values: &[i64]) -> Vec<u8> {
    let bytes: Vec<[u8; 8]> = values.iter().map(|v| v.to_le_bytes()).collect();
    let bytes = bytes.as_flattened();
    let mut shuffled = vec![0; bytes.len()];
    shuffle(bytes, 8, &mut shuffled);
    shuffled
}

/// The magnitudes of the numbers, each with its sign as the lowest bit, in planes of bits of equal significance, as
/// in codec `bitshuffle`.
fn to_bits(values: &[i64]) -> Vec<u8> {
    let bytes: Vec<[u8; 8]> = values.iter().map(|&v| ((v << 1) ^ (v >> 63)).to_le_bytes()).collect();
    let bytes = bytes.as_flattened();
    let mut planes = vec![0; bytes.len()];
    shuffle_bits(bytes, u64::BITS / 8, &mut planes, &mut Lanes::default());
    planes
}

#[cfg(test)]
mod tests {
    use super::super::super::format::residual::{decode, from_bits};
    use super::*;
    use proptest::prelude::*;

    fn numbers() -> impl Strategy<Value = Vec<i64>> {
        prop_oneof![
            prop::collection::vec(any::<i64>(), 0..400),
            prop::collection::vec(-40i64..40, 0..400),
            prop::collection::vec(-70_000i64..70_000, 0..400),
            prop::collection::vec(prop::sample::select(vec![i64::MIN, i64::MAX, 0, 1, -1]), 0..400),
        ]
    }

    proptest! {
        #[test]
        fn numbers_come_back_each_way(values in numbers(), is_predicted in any::<bool>(), is_thorough in any::<bool>()) {
            let effort = NumbersEffort { pco_level: 4, zstd_level: 3, is_thorough };
            let mut code = encode(&Numbers { values: &values, floats: None, is_predicted }, effort);
            prop_assert_eq!(decode(&code, values.len(), |_| 0, vec![7; 5]), Some(values.clone()));
            let planes = to_bits(&values);
            let mut again = vec![0; values.len()];
            from_bits(&planes, &mut again);
            prop_assert_eq!(&again, &values);
            code.pop();
            let cut = decode(&code, values.len(), |_| 0, vec![7; 5]);
            prop_assert!(cut.is_none_or(|found| found != values || values.is_empty()));
        }

        #[test]
        fn pco_gets_the_narrowest_integers_that_hold_all(bits in 0u32..64, noise in any::<u64>(), is_least in any::<bool>()) {
            let most = ((1u64 << bits) - 1) as i64; // the sign takes one additional bit
            let edge = if is_least { -most - 1 } else { most };
            let mut values: Vec<i64> = (0..300).map(|n| (noise.rotate_left(n) as i64) >> (63 - bits)).collect();
            values.push(edge);
            let (way, code) = to_pco(&values, &ChunkConfig::default()).expect("pco takes integers");
            let narrowest = match bits {
                0..16 => Way::Pco2,
                16..32 => Way::Pco4,
                _ => Way::Pco,
            };
            prop_assert_eq!(way, narrowest);
            let code: Vec<u8> = std::iter::once(way as u8).chain(code).collect();
            prop_assert_eq!(decode(&code, values.len(), |_| 0, vec![7; 5]), Some(values.clone()));
            for count in [values.len() - 1, values.len() + 1] {
                prop_assert_eq!(decode(&code, count, |_| 0, Vec::new()), None);
            }
        }

        #[test]
        fn doubles_as_such_come_back_with_all_their_bits(bits in prop::collection::vec(any::<u64>(), 1..300)) {
            let floats: Vec<f64> = bits.iter().map(|&b| f64::from_bits(b)).collect();
            let code = simple_compress(&floats, &ChunkConfig::default()).expect("pco takes doubles");
            let code: Vec<u8> = std::iter::once(Way::PcoFloats as u8).chain(code).collect();
            let values: Vec<i64> = bits.iter().map(|&b| b as i64).collect();
            prop_assert_eq!(decode(&code, bits.len(), |f| f.to_bits() as i64, Vec::new()), Some(values));
        }
    }
}
