//! Finds runs of doubles that repeat earlier elements, where the earlier elements are not contiguous. For example,
//! the rows of a matrix are the columns of another matrix, an array does not change if two indices are exchanged, or
//! a flow is symmetric about a diagonal.
//!
//! Unlike in `find_copies.rs`, the step from one source to the next may have any length up to `STEP_MAX`. Only
//! elements that are in no other run are searched.

use super::super::format::copies::{Run, Source, TURNED, zigzag};
use super::super::format::numbers::Elements;
use super::super::format::strides::{RUN_MIN, STEP_MAX, Strides};
use super::alike::{MIX, Slack, is_like, slack_of};
use crate::codec::array_to_bytes::varint::put;
use std::ops::Range;

/// The maximum number of earlier places that are compared with an element, nearest places first.
const DEPTH: usize = 4;
/// To decide whether to search, a share of 1 / `SAMPLED_DIVISOR` of the values is sampled. The divisor is a power of
/// 2.
const SAMPLED_DIVISOR: u64 = 32;
/// Copies with steps are stored only if at least 1/50 of the elements are in runs with steps.
const FOUND_DIVISOR: usize = 50;
/// If there are fewer elements than this number, no runs are searched.
const ELEMENTS_MIN: usize = 1 << 10;

/// Finds exact and near runs, and adds their sources to `froms`. Known elements are never sources of near runs.
pub(crate) fn find_all(
    bits: &[u64],
    known: usize,
    elements: Elements,
    twice_percent: usize,
    froms: &mut [Vec<Source>; 2],
) -> [Strides; 2] {
    [0, slack_of(elements)].map(|slack| {
        let found = find(bits, known, elements, slack, twice_percent, froms);
        let in_runs: usize = found.iter().map(|run| run.length as usize).sum();
        let mut strides = Strides::default();
        if in_runs * FOUND_DIVISOR < bits.len() {
            return strides;
        }
        let froms = &mut froms[usize::from(slack > 0)];
        froms.resize(bits.len(), 0);
        let (mut at, mut expected) = (known, 0);
        for run in found {
            let lists = &mut strides.lists;
            let Range { start, end } = run.places();
            expected += (start - at) as i64;
            put(start - at, &mut lists[0]);
            put((run.length as usize - RUN_MIN) << 1 | usize::from(run.is_turned), &mut lists[1]);
            put(zigzag(i64::from(run.from) - expected), &mut lists[2]);
            put(zigzag(run.step.into()), &mut lists[3]);
            strides.count += 1;
            run.fill(froms);
            (at, expected) = (end, run.end());
        }
        strides
    })
}

fn find(
    bits: &[u64],
    known: usize,
    elements: Elements,
    slack: Slack,
    twice_percent: usize,
    froms: &[Vec<Source>; 2],
) -> Vec<Run> {
    let key = |at: usize| (elements.magnitude(bits[at]) >> slack).wrapping_mul(MIX[0]);
    // Whether an element is in no run and differs from the element before it. Equal neighbours take few bytes even
    // without copies.
    let is_free = |at: usize| {
        froms.iter().all(|froms| froms.get(at).is_none_or(|&from| from == 0)) && (at == 0 || bits[at] != bits[at - 1])
    };
    let least = if slack > 0 { known } else { 0 };
    if bits.len() < ELEMENTS_MIN
        || bits.len() >= TURNED as usize
        || !is_worth_it(known..bits.len(), twice_percent, key, is_free)
    {
        return Vec::new();
    }
    // `last` holds the last place of each hash of a value. `before` links each place to the place before it with the
    // same hash. Different values may share a hash.
    let places = (bits.len() * 2).next_power_of_two();
    let mut last: Vec<u32> = vec![0; places];
    let mut before: Vec<u32> = vec![0; bits.len()];
    for at in least..bits.len() {
        let place = &mut last[(key(at) >> (u64::BITS - places.trailing_zeros())) as usize];
        (before[at], *place) = (*place, at as u32 + 1); // the value is below 2^31
    }
    drop(last);
    let is_like = |source: usize, is_turned: bool, at: usize| is_like(bits, elements, slack, source, is_turned, at);
    let sources = |at: usize| {
        std::iter::successors(before[at].checked_sub(1), |&at| before[at as usize].checked_sub(1)).take(DEPTH)
    };
    let mut runs = Vec::new();
    let mut at = known.max(1);
    while at + RUN_MIN <= bits.len() {
        let mut best = Run { at: at as u32, length: RUN_MIN as u32 - 1, from: 0, step: 0, is_turned: false };
        if is_free(at) && is_free(at + 1) && before[at] != 0 && before[at + 1] != 0 {
            for first in sources(at) {
                for second in sources(at + 1) {
                    let (from, step) = (i64::from(first), i64::from(second) - i64::from(first));
                    if step == 0 || step.abs() > STEP_MAX {
                        continue;
                    }
                    let is_turned = !is_like(first as usize, false, at);
                    let source = |n: usize| from + step * n as i64;
                    let is_next = |n: &usize| {
                        let at = at + n;
                        at < bits.len()
                            && (least as i64..at as i64).contains(&source(*n))
                            && is_free(at)
                            && is_like(source(*n) as usize, is_turned, at)
                    };
                    let length = (0..).take_while(is_next).count() as u32; // the value is below 2^31
                    if length > best.length {
                        best = Run { length, from: first, step: step as i32, is_turned, ..best }; // at most STEP_MAX
                    }
                }
            }
        }
        if best.length < RUN_MIN as u32 {
            at += 1;
            continue;
        }
        at = best.places().end;
        runs.push(best);
    }
    runs
}

/// Whether enough sampled values occur twice. Hashes select the sample. Equal values have the same hash, so either
/// both occurrences of a value are sampled or no occurrence is sampled.
fn is_worth_it(
    all: Range<usize>,
    twice_percent: usize,
    key: impl Fn(usize) -> u64,
    is_free: impl Fn(usize) -> bool,
) -> bool {
    let places = (all.len() / SAMPLED_DIVISOR as usize * 4).next_power_of_two().max(64);
    let mut seen = vec![0u64; places];
    let (mut looked_at, mut twice) = (0, 0);
    for at in all {
        let key = key(at);
        if (key >> 20) & (SAMPLED_DIVISOR - 1) == 0 && is_free(at) {
            let place = &mut seen[(key >> (u64::BITS - places.trailing_zeros())) as usize];
            (looked_at, twice) = (looked_at + 1, twice + usize::from(*place == key | 1));
            *place = key | 1;
        }
    }
    twice * 100 > looked_at * twice_percent
}

#[cfg(test)]
mod tests {
    use super::super::super::format::strides::read;
    use super::*;
    use proptest::prelude::*;

    const DOUBLES: Elements = Elements { width: 8, is_big: false, is_float: true };

    fn noise(n: usize) -> f64 {
        1.0 + ((n as u64).wrapping_mul(MIX[0]) >> 12) as f64 / (1u64 << 52) as f64
    }

    /// A square matrix, then the same matrix transposed and negated. Some elements of the two matrices differ by a
    /// few representable numbers.
    fn transposed(side: usize, off: u64) -> Vec<u64> {
        let at = |i: usize, j: usize| noise(i * side + j).to_bits();
        let square = (0..side).flat_map(|i| (0..side).map(move |j| (i, j)));
        let own = square.clone().map(|(i, j)| at(i, j));
        own.chain(square.map(|(i, j)| DOUBLES.negated(at(j, i) + off * ((i * 7 + j) as u64 % 100)))).collect()
    }

    #[test]
    fn rows_that_are_columns_of_what_was_before_are_runs() {
        for (off, kind) in [(0, 0), (300, 1)] {
            let bits = transposed(60, off);
            let mut froms = [vec![0; bits.len()], Vec::new()];
            let strides = find_all(&bits, 0, DOUBLES, 5, &mut froms);
            assert!(strides[1 - kind].is_empty());
            // There is one run for each row, and possibly a few additional runs.
            assert!(strides[kind].count <= 70, "{}", strides[kind].count);
            assert!(froms[kind].iter().filter(|from| **from != 0).count() >= 3500);
            let (mut bytes, mut again) = (Vec::new(), Vec::new());
            strides[kind].write(&mut bytes);
            assert_eq!(read(&mut bytes.as_slice(), 0, 0, bits.len(), &mut again), Some(()));
            assert_eq!(again, froms[kind]);
        }
    }

    #[test]
    fn noise_has_no_runs() {
        let bits: Vec<u64> = (0..5000).map(|n| noise(n).to_bits()).collect();
        let mut froms = [vec![0; bits.len()], Vec::new()];
        assert!(find_all(&bits, 0, DOUBLES, 5, &mut froms).iter().all(Strides::is_empty));
    }

    proptest! {
        #[test]
        fn every_source_is_an_element_before_and_the_lists_say_the_same(
            seed in prop::collection::vec(0u64..4000, 1100..1500),
            parts in prop::collection::vec((0usize..1100, 1usize..40, 1usize..40, any::<bool>(), 0u64..3), 0..40),
            known in 0usize..400,
        ) {
            let mut bits: Vec<u64> = seed.iter().map(|&v| (v as f64 * 1.7).to_bits()).collect();
            for (from, length, step, turn, off) in parts {
                let part: Vec<u64> = bits.iter().skip(from).step_by(step).take(length).copied().collect();
                bits.extend(part.into_iter().map(|b| if turn { DOUBLES.negated(b) } else { b } ^ off));
            }
            let mut froms = [vec![0; bits.len()], Vec::new()];
            let strides = find_all(&bits, known, DOUBLES, 5, &mut froms);
            for (kind, (strides, froms)) in strides.iter().zip(&froms).enumerate() {
                let least = if kind == 0 { 0 } else { known };
                for (at, &from) in froms.iter().enumerate().filter(|(_, from)| **from != 0) {
                    let source = (from & !TURNED) as usize - 1;
                    prop_assert!(at >= known && source < at && source >= least);
                    let value = if from & TURNED != 0 { DOUBLES.negated(bits[source]) } else { bits[source] };
                    let off = DOUBLES.ordered(value).wrapping_sub(DOUBLES.ordered(bits[at])).unsigned_abs();
                    let most = [0, slack_of(DOUBLES)][kind];
                    prop_assert!(off < 1 << most);
                }
                let (mut bytes, mut again) = (Vec::new(), vec![0; bits.len()]);
                strides.write(&mut bytes);
                prop_assert_eq!(read(&mut bytes.as_slice(), known, least, bits.len(), &mut again), Some(()));
                prop_assert!(again == *froms || froms.is_empty() && strides.is_empty());
            }
        }

        #[test]
        fn any_lists_are_runs_or_nothing(len in 0usize..300, known in 0usize..20, mut bytes in prop::collection::vec(0u8..40, 0..60)) {
            bytes.insert(0, 3);
            let mut froms = Vec::new();
            if read(&mut bytes.as_slice(), known, known, len, &mut froms).is_some() {
                prop_assert!(froms.iter().enumerate().all(|(at, &from)| (from & !TURNED) as usize <= at));
            }
        }
    }
}
