//! Runs of elements that were there before, perhaps in reverse, perhaps with the other sign.
//!
//! Ghost zones, refined levels over coarser ones, time levels, symmetric halves: a value occurs several times, and no
//! codec of numbers sees it. So runs of at least [`RUN_MIN`] elements that occur earlier, in any column, are taken out
//! first, element by element, not byte by byte. The window is the whole segment. What is left is predicted with all of
//! its neighbours in place.

use super::layout::{put, take};
use super::numbers::Elements;
use super::residual::{self, Around, Effort, Numbers};
use super::strides::{self, Strides};
use crate::codec::threads;
use std::ops::Range;

/// Windows that are looked up together, or not at all.
const BLOCK: usize = 1 << 13;
/// Elements of a run at least.
const RUN_MIN: usize = 4;
/// And so many where neighbours are equal: few different values cost next to nothing anyhow.
const RUN_LONG: usize = 24;
/// Places that are looked at there.
const DEPTH_FEW: usize = 4;
/// Where an element is copied from: its place plus one, 0 where it is not; the top bit turns the sign.
pub(super) type From = u32;
pub(super) const TURNED: u32 = 1 << 31;
/// Parts that windows are sorted into, a power of 2.
const PARTS: usize = 64;

/// Runs: how many elements come first that are not copied, where from, how many.
#[derive(Default)]
pub(super) struct Tokens {
    pub skips: Vec<u8>,
    pub lengths: Vec<u8>,
    pub froms: Vec<u8>,
    pub count: usize,
}

/// All runs of a segment: those that are copied, and those whose source is a prediction.
pub(super) struct Runs {
    /// Of each element, exact and near; the latter none where there is no such run.
    pub froms: [Vec<From>; 2],
    pub tokens: [Tokens; 2],
    /// Those whose sources lie further apart, exact and near.
    pub strides: [Strides; 2],
}

impl Runs {
    /// None, of so many elements.
    pub(super) fn none(elements: usize) -> Self {
        Self { froms: [vec![0; elements], Vec::new()], tokens: Default::default(), strides: Default::default() }
    }
}

/// Slack of near runs, by the width of the elements.
pub(super) fn slack_of(elements: Elements) -> Slack {
    if elements.width == 4 { 6 } else { 20 }
}

/// Finds the runs of a segment, on one thread or two. The first `known` elements need not be found; others may be copied
/// from them, but not nearly: what is near them is better predicted.
pub(super) fn find_all(bits: &[u64], known: usize, elements: Elements, effort: u32, threads: usize) -> Runs {
    let (depth, part, looked_at_part) = if effort > 1 { (32, 1, 8) } else { (4, 2, 32) };
    let worth = |slack: Slack| {
        let hashes = || hashes(bits, elements, slack);
        let blocks = blocks(bits, hashes(), looked_at_part);
        let is_worth = effort > 1 || blocks.are_worth_it(bits, elements, slack);
        // Hashed again where it is: to keep hashes in new memory takes longer.
        is_worth.then(|| (before(&hashes().collect::<Vec<_>>(), part, &blocks.repeat), blocks.repeat))
    };
    let nearly = || elements.is_float.then(|| worth(slack_of(elements))).flatten();
    let exactly = || match worth(0) {
        Some((before, repeat)) => find(bits, known, elements, 0, &[], (&before, &repeat), (depth, part)),
        None => (vec![0; bits.len()], Tokens::default()),
    };
    let ((exact, exact_tokens), near) = threads::both(threads, exactly, nearly);
    let (near, near_tokens) = match near {
        Some((before, repeat)) => {
            find(bits, known, elements, slack_of(elements), &exact, (&before, &repeat), (depth, part))
        }
        None => (Vec::new(), Tokens::default()),
    };
    let near = if near_tokens.count > 0 { near } else { Vec::new() };
    let mut froms = [exact, near];
    let strides = match elements.is_float && elements.width == 8 {
        true => strides::find_all(bits, known, elements, effort, &mut froms),
        false => Default::default(),
    };
    Runs { froms, tokens: [exact_tokens, near_tokens], strides }
}

/// Where windows come again.
struct Blocks {
    /// Of each block of windows, whether any of them comes again elsewhere, or was there before.
    repeat: Vec<bool>,
    /// And how many of those looked at do whose neighbours are not all different.
    alike: Vec<u32>,
    /// Windows looked at, and those that come again.
    looked_at: usize,
    again: usize,
    /// The same of those whose neighbours are all different.
    differing: [usize; 2],
}

/// One window in so many that must come again, for elements of 8 bytes; nearly the same ones of 4 bytes save half as much.
const ONE_IN: usize = 100;
const ONE_IN_OF_SHORT: usize = 40;
/// Below this many elements nobody asks whether it is worth it.
const FEW: usize = 1 << 12;
/// Elements that tell what a block costs as it is, and how many blocks are asked.
const PRICED: usize = 1 << 10;
const BLOCKS_PRICED: usize = 4;
/// Bits of an element that it must cost.
const PRICE_BITS: usize = 2;

/// Looks at one window in so many (a power of 2), as its hash says, so that a window and its repeat are both looked at or neither.
fn blocks(bits: &[u64], hashes: impl Iterator<Item = u32>, part: u32) -> Blocks {
    let places = (bits.len() / part as usize * 4).next_power_of_two().max(64);
    let mut seen: Vec<(u32, u32)> = vec![(0, 0); places]; // hash, or 0, and place
    let windows = bits.len().saturating_sub(RUN_MIN - 1);
    let mut blocks = Blocks {
        repeat: vec![windows < BLOCK; windows.div_ceil(BLOCK)],
        alike: vec![0; windows.div_ceil(BLOCK)],
        looked_at: 0,
        again: 0,
        differing: [0; 2],
    };
    for ((at, hash), window) in (0u32..).zip(hashes).zip(bits.windows(RUN_MIN)) {
        if hash & (part - 1) == 0 {
            if window.iter().all(|&value| value == window[0]) {
                blocks.repeat[at as usize / BLOCK] = true;
                continue; // a constant costs nothing anyhow
            }
            let differ = usize::from(window.windows(2).all(|pair| pair[0] != pair[1]));
            let place = &mut seen[(hash / part) as usize & (places - 1)];
            blocks.looked_at += 1;
            blocks.differing[0] += differ;
            if place.0 == hash | 1 {
                blocks.again += 1;
                blocks.differing[1] += differ;
                blocks.alike[at as usize / BLOCK] += 1 - differ as u32;
                [at, place.1].into_iter().for_each(|at| blocks.repeat[at as usize / BLOCK] = true);
            }
            *place = (hash | 1, at);
        }
    }
    blocks
}

impl Blocks {
    /// Whether runs are worth looking for in haste.
    fn are_worth_it(&self, bits: &[u64], elements: Elements, slack: Slack) -> bool {
        let one_in = if slack > 0 && elements.width == 4 { ONE_IN_OF_SHORT } else { ONE_IN };
        let [differing, again] = self.differing;
        bits.len() < FEW
            || again * one_in > differing
            || self.again * 2 > self.looked_at
            || self.again * one_in > self.looked_at && self.cost_something(bits, elements)
    }

    /// Whether the blocks where most comes again that has equal neighbours cost something as they are: a few different values do
    /// not.
    fn cost_something(&self, bits: &[u64], elements: Elements) -> bool {
        let mut most: Vec<usize> = (0..self.alike.len()).filter(|&block| self.alike[block] > 0).collect();
        most.sort_by_key(|&block| std::cmp::Reverse(self.alike[block]));
        let (mut priced, mut code_bytes) = (0, 0);
        for block in most.into_iter().take(BLOCKS_PRICED) {
            let some = &bits[block * BLOCK..bits.len().min(block * BLOCK + PRICED)];
            let values: Vec<i64> = some.iter().map(|&value| elements.ordered(value)).collect();
            let numbers = Numbers { values: &values, floats: None, is_predicted: false, around: &Around::Line };
            priced += values.len();
            code_bytes += residual::encode(&numbers, Effort::of(0)).len();
        }
        code_bytes * 8 > priced * PRICE_BITS
    }
}

/// What an element of a column is.
pub(super) const COPIED: u8 = 0;
/// Told by its block of nested grids.
pub(super) const TOLD: u8 = 1;
/// Nearly copied.
pub(super) const NEAR: u8 = 2;
pub(super) const LITERAL: u8 = 3;

/// What each element of a column is.
pub(super) struct Marks<'a> {
    exact: &'a [From],
    near: &'a [From],
    /// Of the column, or empty.
    pub cells: &'a [u32],
    /// One of the constants above for each.
    pub kinds: Vec<u8>,
}

impl<'a> Marks<'a> {
    /// Of the column that is at these places.
    pub(super) fn new([exact, near]: [&'a [From]; 2], cells: &'a [u32], own: Range<usize>) -> Self {
        let mut kinds = match near.get(own.clone()) {
            Some(near) => near.iter().map(|&from| if from == 0 { LITERAL } else { NEAR }).collect(),
            None => vec![LITERAL; own.len()],
        };
        kinds.iter_mut().zip(cells).filter(|(_, cell)| **cell != 0).for_each(|(kind, _)| *kind = TOLD);
        if let Some(exact) = exact.get(own) {
            kinds.iter_mut().zip(exact).for_each(|(kind, &from)| *kind = if from == 0 { *kind } else { COPIED });
        }
        Self { exact, near, cells, kinds }
    }

    /// Copies the elements of one place and those after it.
    pub(super) fn copy(&self, mut at: usize, count: usize, bits: &mut [u64], elements: Elements) {
        let mut froms = &self.exact[at..at + count];
        while let [first, ..] = froms {
            // Mostly one run as it stands.
            let run = froms.iter().zip(*first..).take_while(|(from, next)| *from == next).count();
            let source = (*first & !TURNED) as usize - 1;
            if *first & TURNED == 0 && source + run <= at {
                bits.copy_within(source..source + run, at);
            } else {
                (at..).zip(&froms[..run]).for_each(|(at, &from)| bits[at] = copied(from, bits, elements));
            }
            (at, froms) = (at + run, &froms[run..]);
        }
    }

    /// The same where they differ by so many representable numbers.
    pub(super) fn copy_nearly(&self, at: usize, off: &[i64], bits: &mut [u64], elements: Elements) {
        for (at, &off) in (at..).zip(off) {
            bits[at] = elements.unordered(elements.ordered(copied(self.near[at], bits, elements)).wrapping_add(off));
        }
    }

    /// What an element is nearly a copy of.
    #[inline(always)]
    pub(super) fn near_source(&self, at: usize, bits: &[u64], elements: Elements) -> u64 {
        copied(self.near[at], bits, elements)
    }

    pub(super) fn count(&self, kind: u8) -> usize {
        // In pieces whose counts fit a byte, so that many are compared at a time.
        let of = |some: &[u8]| some.iter().map(|&own| u8::from(own == kind)).sum::<u8>();
        self.kinds.chunks(usize::from(u8::MAX)).map(|some| usize::from(of(some))).sum()
    }

    /// The elements of this kind, counted in the column.
    pub(super) fn all(&self, kind: u8) -> impl Iterator<Item = usize> {
        self.kinds.iter().enumerate().filter(move |(_, own)| **own == kind).map(|(n, _)| n)
    }
}

#[inline(always)]
fn copied(from: From, bits: &[u64], elements: Elements) -> u64 {
    let source = bits[(from & !TURNED) as usize - 1];
    if from & TURNED != 0 { elements.negated(source) } else { source }
}

/// Odd multipliers, from the fractions of the golden ratio and of square roots.
pub(super) const MIX: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B];

/// Of each window of [`RUN_MIN`] elements a hash that is the same for the reversed one and whatever the signs are.
fn hashes(bits: &[u64], elements: Elements, slack: Slack) -> impl Iterator<Item = u32> + '_ {
    let mixed = move |value: u64| {
        let value = elements.magnitude(value) >> slack;
        [MIX[0], MIX[1]].map(|odd| {
            let product = value.wrapping_mul(odd);
            product ^ product >> 32
        })
    };
    let [mut a, mut b, mut c] = [[0u64; 2]; 3];
    let each = bits.iter().map(move |&value| {
        let d = mixed(value);
        let sum = (a[0].wrapping_add(d[0])) ^ (b[1].wrapping_add(c[1])).rotate_left(23);
        (a, b, c) = (b, c, d);
        (sum.wrapping_mul(MIX[2]) >> 32) as u32
    });
    each.skip(RUN_MIN - 1)
}

/// For each window that is looked up, of the blocks that repeat one in `part` (a power of 2) as its hash says, the last one
/// before it with the same hash, plus 1; 0 where there is none. Windows are sorted into parts whose tables stay in the cache.
fn before(hashes: &[u32], part: u32, repeat: &[bool]) -> Vec<u32> {
    let of = |hash: u32| (hash >> (u32::BITS - PARTS.trailing_zeros())) as usize;
    let each = |found: &mut dyn FnMut(&[u32], u32)| {
        let blocks = (0u32..).step_by(BLOCK).zip(hashes.chunks(BLOCK)).zip(repeat);
        blocks.filter(|(_, repeat)| **repeat).for_each(|((from, hashes), _)| found(hashes, from));
    };
    let is_looked_up = |hash: u32| hash & (part - 1) == 0;
    let mut ends = [0usize; PARTS];
    each(&mut |hashes, _| hashes.iter().filter(|&&h| is_looked_up(h)).for_each(|&hash| ends[of(hash)] += 1));
    let mut sum = 0;
    for end in &mut ends {
        (*end, sum) = (sum, sum + *end); // the begins, which writing moves on to the ends
    }
    let mut windows = vec![0u64; sum];
    each(&mut |hashes, from| {
        for (at, &hash) in (from..).zip(hashes).filter(|(_, hash)| is_looked_up(**hash)) {
            let end = &mut ends[of(hash)];
            windows[*end] = u64::from(hash) << 32 | u64::from(at);
            *end += 1;
        }
    });
    let mut before = vec![0; hashes.len()];
    let mut table: Vec<u64> = Vec::new(); // hash, and place plus 1
    let mut begin = 0;
    for end in ends {
        let places = ((end - begin) * 2).next_power_of_two();
        table.clear();
        table.resize(places, 0);
        for window in &windows[begin..end] {
            let (hash, at) = (window >> 32, *window as u32);
            let mut place = (hash.wrapping_mul(MIX[0]) >> 32) as usize & (places - 1);
            while table[place] != 0 && table[place] >> 32 != hash {
                place = (place + 1) & (places - 1);
            }
            before[at as usize] = table[place] as u32;
            table[place] = hash << 32 | u64::from(at + 1); // fewer than 2^31
        }
        begin = end;
    }
    before
}

/// How a run may differ from its source: in the order of representable numbers by less than 2 to this. 0: not at all.
pub(super) type Slack = u32;

/// Whether an element is another one, turned or not, or off by no more than slack.
#[inline(always)]
pub(super) fn is_like(
    bits: &[u64],
    (elements, slack): (Elements, Slack),
    source: usize,
    is_turned: bool,
    at: usize,
) -> bool {
    let found = if is_turned { elements.negated(bits[source]) } else { bits[source] };
    found == bits[at]
        || slack > 0 && elements.ordered(found).wrapping_sub(elements.ordered(bits[at])).unsigned_abs() < 1 << slack
}

/// A number of either sign as one of none.
pub(super) fn zigzag(n: i64) -> usize {
    ((n << 1) ^ (n >> 63)) as usize
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(n: usize) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Finds runs greedily, each time the longest of a few. Elements in working order. With slack, runs begin where `done`
/// has nothing yet only. `before` says for windows where they were, `repeat` for blocks of them whether any were there, `depth` how
/// many of these places are looked at.
fn find(
    bits: &[u64],
    known: usize,
    elements: Elements,
    slack: Slack,
    done: &[From],
    (before, repeat): (&[u32], &[bool]),
    (depth, part): (usize, u32),
) -> (Vec<From>, Tokens) {
    let mut tokens = Tokens::default();
    let mut froms: Vec<From> = vec![0; bits.len()];
    if bits.len() < 2 * RUN_MIN || bits.len() >= TURNED as usize {
        return (froms, tokens);
    }
    let is_like = |source: usize, is_turned: bool, at: usize| is_like(bits, (elements, slack), source, is_turned, at);
    // Near runs are never from what is known; exact ones may begin with its first element.
    let (least, goes_on_from) =
        if slack > 0 { (known as i64, known.max(1) as i64) } else { (0, i64::from(known == 0)) };
    let (mut at, mut copied_to) = (known, known);
    let mut expected = least; // where the run before goes on
    while let Some(&first) = before.get(at) {
        let goes_on = expected >= goes_on_from && (expected as usize) < at && at == copied_to;
        if first == 0 && !goes_on && (slack == 0 || !repeat[at / BLOCK]) {
            (at, expected) = (at + 1, expected + 1);
            continue;
        }
        let mut best: (usize, i64, i64, bool) = (RUN_MIN - 1, 0, 0, false); // length, from, direction, turned
        // Low bits may carry into the hash: so a near run may go on where the window looks new.
        if slack == 0 || done[at] == 0 {
            let mut consider = |from: i64, direction: i64| {
                let Ok(first) = usize::try_from(from) else { return };
                let is_turned = !is_like(first, false, at);
                let mut length = 0;
                let mut source = from;
                while at + length < bits.len()
                    && source >= least
                    && source < (at + if direction > 0 { length } else { 0 }) as i64
                    && is_like(source as usize, is_turned, at + length)
                {
                    (length, source) = (length + 1, source + direction);
                }
                if length > best.0 {
                    best = (length, from, direction, is_turned);
                }
            };
            if expected >= goes_on_from && (expected as usize) < at {
                consider(expected, 1);
            }
            // Where few values take turns there are many such windows, and one that is long enough is soon found.
            let differ = bits[at..at + RUN_MIN].windows(2).all(|pair| pair[0] != pair[1]);
            let depth = if differ { depth } else { depth.min(DEPTH_FEW) };
            let places =
                std::iter::successors(first.checked_sub(1), |&at| before[at as usize].checked_sub(1)).take(depth);
            for from in places.map(i64::from) {
                consider(from, 1);
                if elements.is_float && from + RUN_MIN as i64 <= at as i64 {
                    consider(from + RUN_MIN as i64 - 1, -1);
                }
            }
        }
        let (mut length, mut from, direction, is_turned) = best;
        let differ = || bits[at..at + length].windows(2).all(|pair| pair[0] != pair[1]);
        let is_run = length >= RUN_MIN && (length >= RUN_LONG || differ());
        // Back to where it began: perhaps at a window that was not looked up.
        while part > 1 && is_run && at > copied_to {
            let (source, before) = (from - direction, at - 1);
            let is_before = |source: usize| source < before && is_like(source, is_turned, before);
            if source < least || !usize::try_from(source).is_ok_and(is_before) || slack > 0 && done[before] != 0 {
                break;
            }
            (at, from, length, expected) = (before, source, length + 1, expected - 1);
        }
        if is_run {
            put(at - copied_to, &mut tokens.skips);
            put(
                (length - RUN_MIN) << 2 | usize::from(direction < 0) << 1 | usize::from(is_turned),
                &mut tokens.lengths,
            );
            // As a distance to where the run before would go on: small where rows are copied one after the other.
            put(zigzag(from - expected), &mut tokens.froms);
            tokens.count += 1;
            let mut source = from;
            for place in &mut froms[at..at + length] {
                *place = (source as u32 + 1) | if is_turned { TURNED } else { 0 };
                source += direction;
            }
            expected = source;
            copied_to = at + length;
        }
        let length = if is_run { length } else { 1 };
        expected += i64::from(!is_run);
        at += length;
    }
    (froms, tokens)
}

/// The places of all elements from the tokens, where there was 0, and none for those known; `expected` is where the first
/// run is. `None` where they cannot be.
pub(super) fn places(
    froms: &mut [From],
    (known, mut expected): (usize, i64),
    count: usize,
    mut skips: &[u8],
    mut lengths: &[u8],
    mut from_bytes: &[u8],
) -> Option<()> {
    let mut at = known;
    for _ in 0..count {
        let skip = take(&mut skips)?;
        at = at.checked_add(skip)?;
        expected += skip as i64;
        let length = take(&mut lengths)?;
        let (direction, turned) = (if length & 2 == 0 { 1i64 } else { -1 }, if length & 1 == 0 { 0 } else { TURNED });
        let length = (length >> 2) + RUN_MIN;
        let from = expected.checked_add(unzigzag(take(&mut from_bytes)?))?;
        let run = froms.get_mut(at..at.checked_add(length)?)?;
        let mut source = from;
        for (i, place) in run.iter_mut().enumerate() {
            if source < 0 || source >= (at + i) as i64 {
                return None;
            }
            *place = (source as u32 + 1) | turned;
            source += direction;
        }
        (at, expected) = (at + length, source);
    }
    (skips.is_empty() && lengths.is_empty() && from_bytes.is_empty()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOUBLES: Elements = Elements { width: 8, is_big: false, is_float: true };

    proptest! {
        #[test]
        fn every_copy_is_of_an_element_before_and_the_tokens_say_the_same(
            seed in prop::collection::vec((0u64..40, any::<bool>()), 0..60),
            parts in prop::collection::vec((0usize..60, 0usize..30, any::<bool>(), any::<bool>()), 0..12),
            part in prop::sample::select(vec![1u32, 2]),
        ) {
            let mut bits: Vec<u64> = seed.iter().map(|&(v, s)| (v as f64 * if s { -1.5 } else { 1.5 }).to_bits()).collect();
            for (from, length, reverse, turn) in parts {
                let end = (from + length).min(bits.len());
                let mut part = bits[from.min(end)..end].to_vec();
                if reverse { part.reverse() }
                if turn { part.iter_mut().for_each(|b| *b = DOUBLES.negated(*b)) }
                bits.extend(part);
            }
            let (froms, tokens) = find(&bits, 0, DOUBLES, 0, &[], (&before(&hashes(&bits, DOUBLES, 0).collect::<Vec<_>>(), part, &[true]), &[true]), (8, part));
            for (at, &from) in froms.iter().enumerate().filter(|(_, from)| **from != 0) {
                let source = (from & !TURNED) as usize - 1;
                prop_assert!(source < at);
                let value = if from & TURNED != 0 { DOUBLES.negated(bits[source]) } else { bits[source] };
                prop_assert_eq!(value, bits[at]);
            }
            let mut again = vec![0; bits.len()];
            let found = places(&mut again, (0, 0), tokens.count, &tokens.skips, &tokens.lengths, &tokens.froms);
            prop_assert_eq!(found, Some(()));
            prop_assert_eq!(again, froms);
        }

        #[test]
        fn any_tokens_are_places_or_nothing(
            n in 0usize..300, count in 0usize..20, a in prop::collection::vec(any::<u8>(), 0..20),
            b in prop::collection::vec(any::<u8>(), 0..20), c in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut froms = vec![0; n];
            if places(&mut froms, (0, 0), count, &a, &b, &c).is_some() {
                prop_assert!(froms.iter().enumerate().all(|(at, &from)| (from & !TURNED) as usize <= at));
            }
        }
    }

    #[test]
    fn a_mirrored_and_negated_row_is_one_run() {
        let row: Vec<u64> = (1..=50u32).map(|i| f64::from(i).sqrt().to_bits()).collect();
        let mirrored = row.iter().rev().map(|&b| DOUBLES.negated(b));
        let bits: Vec<u64> = row.iter().copied().chain(mirrored).collect();
        let (froms, tokens) = find(
            &bits,
            0,
            DOUBLES,
            0,
            &[],
            (&before(&hashes(&bits, DOUBLES, 0).collect::<Vec<_>>(), 1, &[true]), &[true]),
            (8, 1),
        );
        assert_eq!((tokens.count, froms.iter().filter(|&&f| f != 0).count()), (1, 50));
    }

    #[test]
    fn in_haste_repeats_are_looked_for_where_they_save_something() {
        let noise = |n: u64| (n.wrapping_mul(MIX[0]) >> 12 | 0x3FF0_0000_0000_0000) ^ (n % 7) << 40;
        let is_worth_it = |bits: &[u64]| {
            let blocks = blocks(bits, hashes(bits, DOUBLES, 0), 32);
            blocks.are_worth_it(bits, DOUBLES, 0)
        };
        let own: Vec<u64> = (0..8 * BLOCK as u64).map(noise).collect();
        assert!(!is_worth_it(&own), "nothing comes again");
        let again: Vec<u64> = own.iter().chain(&own[..6000]).copied().collect();
        assert!(is_worth_it(&again), "a tenth comes again");
        let sparse: Vec<u64> = (0..60_000u64).map(|n| if n % 40 == 0 { noise(n % 4000) } else { 0 }).collect();
        // Windows come again where a stretch ends, and cost nothing.
        let long: Vec<u64> = (0..4 * BLOCK as u64).map(|n| noise((n / 90).wrapping_mul(MIX[1]) >> 61)).collect();
        assert!(!is_worth_it(&[&own[..], &long].concat()), "stretches of eight values");
        assert!(is_worth_it(&sparse), "nearly everything comes again");
    }
}
