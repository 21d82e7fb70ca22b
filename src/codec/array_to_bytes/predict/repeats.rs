//! Runs of elements that were there before, perhaps in reverse, perhaps with the other sign.
//!
//! Ghost zones, refined levels over coarser ones, time levels, symmetric halves: a value occurs several times, and no
//! codec of numbers sees it. So runs of at least [`RUN_MIN`] elements that occur earlier, in any column, are taken out
//! first, element by element, not byte by byte. The window is the whole segment. What is left is predicted with all of
//! its neighbours in place.

use super::layout::{put, take};
use super::numbers::Elements;

/// Of the windows one in so many is looked at, to see whether any come again.
const LOOKED_AT_PART: usize = 32;
/// Elements of a run at least.
const RUN_MIN: usize = 4;
/// And so many where neighbours are equal: few different values cost next to nothing anyhow.
const RUN_LONG: usize = 24;
/// Where an element is copied from: its place plus one, 0 where it is not; the top bit turns the sign.
pub(super) type From = u32;
pub(super) const TURNED: u32 = 1 << 31;
/// Places of the table at most: 16 MiB.
const PLACES_MAX: usize = 1 << 22;

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
    exact: Vec<From>,
    near: Vec<From>,
    pub tokens: [Tokens; 2],
}

/// Slack of near runs, by the width of the elements.
fn slack_of(elements: Elements) -> Slack {
    if elements.width == 4 { 6 } else { 20 }
}

/// Finds the runs of a segment.
/// The first `known` elements need not be found; others may be copied from them, but not nearly: what is near them is
/// better predicted.
pub(super) fn find_all(bits: &[u64], known: usize, elements: Elements, effort: u32) -> Runs {
    let depth = if effort > 1 { (16, 1) } else { (4, 2) };
    let worth = |slack: Slack| effort > 1 || known > 0 && slack == 0 || is_worth(&bits[known..], elements, slack);
    let (exact, exact_tokens) = match worth(0) {
        true => find(bits, known, elements, 0, &[], depth),
        false => (vec![0; bits.len()], Tokens::default()),
    };
    let (near, near_tokens) = match elements.is_float && worth(slack_of(elements)) {
        true => find(bits, known, elements, slack_of(elements), &exact, depth),
        false => (Vec::new(), Tokens::default()),
    };
    let near = if near_tokens.count > 0 { near } else { Vec::new() };
    Runs { exact, near, tokens: [exact_tokens, near_tokens] }
}

/// Whether runs are worth looking for: of the windows whose hash says that they are looked at, all over the segment, how
/// many were there before.
fn is_worth(bits: &[u64], elements: Elements, slack: Slack) -> bool {
    let mut seen: Vec<u32> = vec![0; (bits.len() / LOOKED_AT_PART * 4).next_power_of_two().max(64)];
    let (mut looked_at, mut again) = (0, 0);
    for window in bits.windows(RUN_MIN) {
        let &[a, b, c, d] = window else { continue };
        if [b, c, d] == [a; 3] {
            continue; // a constant costs nothing anyhow
        }
        let hash = hash([a, b, c, d].map(|value| elements.magnitude(value) >> slack));
        if hash >> 32 & (LOOKED_AT_PART as u64 - 1) == 0 {
            let place = hash as usize & (seen.len() - 1);
            let mark = (hash >> 40) as u32 | 1;
            looked_at += 1;
            again += usize::from(seen[place] == mark);
            seen[place] = mark;
        }
    }
    again * 100 > looked_at || bits.len() < 1 << 12
}

impl Runs {
    /// From the lists of tokens.
    pub(super) fn new(exact: Vec<From>, near: Vec<From>) -> Self {
        Self { exact, near, tokens: Default::default() }
    }

    #[inline(always)]
    fn is_exact(&self, at: usize) -> bool {
        self.exact[at] != 0
    }

    #[inline(always)]
    pub(super) fn source(&self, at: usize, bits: &[u64], elements: Elements) -> u64 {
        copied(self.exact[at], bits, elements)
    }

    #[inline(always)]
    pub(super) fn near_source(&self, at: usize, bits: &[u64], elements: Elements) -> u64 {
        copied(self.near[at], bits, elements)
    }
}

/// What each element of a column is: copied, told by its block of nested grids, nearly copied, or literal.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a> {
    pub runs: &'a Runs,
    /// Of the column, or empty.
    pub cells: &'a [u32],
    pub base: usize,
}

impl Marks<'_> {
    #[inline(always)]
    pub(super) fn is_copied(&self, at: usize) -> bool {
        self.runs.is_exact(at)
    }

    #[inline(always)]
    pub(super) fn is_told(&self, at: usize) -> bool {
        self.cells.get(at - self.base).is_some_and(|&cell| cell != 0) && !self.runs.is_exact(at)
    }

    #[inline(always)]
    pub(super) fn is_near(&self, at: usize) -> bool {
        self.runs.near.get(at).is_some_and(|&from| from != 0) && !self.runs.is_exact(at) && !self.is_told(at)
    }

    #[inline(always)]
    pub(super) fn is_literal(&self, at: usize) -> bool {
        !self.runs.is_exact(at) && self.runs.near.get(at).is_none_or(|&from| from == 0) && !self.is_told(at)
    }
}

fn copied(from: From, bits: &[u64], elements: Elements) -> u64 {
    let source = bits[(from & !TURNED) as usize - 1];
    if from & TURNED != 0 { elements.negated(source) } else { source }
}

fn hash(window: [u64; RUN_MIN]) -> u64 {
    let mut sum = 0u64;
    for (value, odd) in window.iter().zip([
        0x9E37_79B9_7F4A_7C15u64,
        0xBB67_AE85_84CA_A73B,
        0x3C6E_F372_FE94_F82B,
        0xA54F_F53A_5F1D_36F1,
    ]) {
        sum = (sum.rotate_left(29) ^ value).wrapping_mul(odd);
    }
    sum ^ sum >> 32
}

/// How a run may differ from its source: in the order of representable numbers by less than 2 to this. 0: not at all.
pub(super) type Slack = u32;

/// Finds runs greedily, each time the longest of a few. Elements in working order. With slack, runs begin where `done`
/// has nothing yet only. Of all windows one in `part` (a power of 2) is looked up and remembered, as its hash says.
pub(super) fn find(
    bits: &[u64],
    known: usize,
    elements: Elements,
    slack: Slack,
    done: &[From],
    (depth, part): (usize, u64),
) -> (Vec<From>, Tokens) {
    let mut tokens = Tokens::default();
    if bits.len() < 2 * RUN_MIN || bits.len() >= TURNED as usize {
        return (vec![0; bits.len()], tokens);
    }
    let mut froms: Vec<From> = vec![0; bits.len()];
    let places = bits.len().next_power_of_two().min(PLACES_MAX);
    let shift = u64::BITS - places.trailing_zeros();
    let mut last = vec![0u32; places];
    // For each place the one before with the same hash, plus one.
    let mut before = vec![0u32; bits.len()];
    let window = |at: usize| [0, 1, 2, 3].map(|i| elements.magnitude(bits[at + i]) >> slack);
    let place_of = |hash: u64| (hash >> shift) as usize & (places - 1);
    let is_one = |hash: u64| hash & (part - 1) == 0;
    let is_like = |source: usize, is_turned: bool, at: usize| {
        let found = if is_turned { elements.negated(bits[source]) } else { bits[source] };
        found == bits[at]
            || slack > 0 && elements.ordered(found).wrapping_sub(elements.ordered(bits[at])).unsigned_abs() < 1 << slack
    };
    if slack == 0 {
        for at in (0..known).take_while(|at| at + RUN_MIN <= bits.len()) {
            let hash = hash(window(at));
            if is_one(hash) {
                before[at] = last[place_of(hash)];
                last[place_of(hash)] = at as u32 + 1;
            }
        }
    }
    // Exact runs begin with what is known, from its first element; near ones are never from there.
    let goes_on_from = if slack == 0 { i64::from(known == 0) } else { known.max(1) as i64 };
    let (mut at, mut copied_to, mut remembered_to) = (known, known, known);
    let mut expected = if slack == 0 { 0 } else { known as i64 }; // where the run before goes on
    while at + RUN_MIN <= bits.len() {
        let forward = window(at);
        let own = hash(forward);
        let goes_on = expected >= goes_on_from && (expected as usize) < at && at == copied_to;
        let mut best: (usize, i64, i64, bool) = (RUN_MIN - 1, 0, 0, false); // length, from, direction, turned
        if (slack == 0 || done[at] == 0) && (goes_on || is_one(own)) {
            let mut consider = |from: i64, direction: i64| {
                let Ok(first) = usize::try_from(from) else { return };
                let is_turned = !is_like(first, false, at);
                let mut length = 0;
                let mut source = from;
                while at + length < bits.len()
                    && source >= 0
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
            let chain = |place: usize| {
                std::iter::successors(last[place].checked_sub(1), |&at| before[at as usize].checked_sub(1)).take(depth)
            };
            chain(place_of(own)).for_each(|from| consider(i64::from(from), 1));
            let [a, b, c, d] = forward;
            let reversed = [d, c, b, a];
            if elements.is_float && reversed != forward {
                for from in chain(place_of(hash(reversed))).filter(|&from| from as usize + RUN_MIN <= at) {
                    consider(i64::from(from) + RUN_MIN as i64 - 1, -1);
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
            if !usize::try_from(source).is_ok_and(is_before) || slack > 0 && done[before] != 0 {
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
            let relative = from - expected;
            put(((relative << 1) ^ (relative >> 63)) as usize, &mut tokens.froms);
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
        for at in (at.max(remembered_to)..at + length).take_while(|at| at + RUN_MIN <= bits.len()) {
            let hash = hash(window(at));
            if is_one(hash) {
                before[at] = last[place_of(hash)];
                last[place_of(hash)] = at as u32 + 1;
            }
        }
        remembered_to = remembered_to.max(at + length);
        expected += i64::from(!is_run);
        at += length;
    }
    (froms, tokens)
}

/// The places of all elements from the tokens, of which there are none for those known; `expected` is where the first run
/// is. `None` where they cannot be.
pub(super) fn places(
    elements: usize,
    (known, mut expected): (usize, i64),
    count: usize,
    mut skips: &[u8],
    mut lengths: &[u8],
    mut from_bytes: &[u8],
) -> Option<Vec<From>> {
    let mut froms: Vec<From> = vec![0; elements];
    let mut at = known;
    for _ in 0..count {
        let skip = take(&mut skips)?;
        at = at.checked_add(skip)?;
        expected += skip as i64;
        let length = take(&mut lengths)?;
        let (direction, turned) = (if length & 2 == 0 { 1i64 } else { -1 }, if length & 1 == 0 { 0 } else { TURNED });
        let length = (length >> 2) + RUN_MIN;
        let relative = take(&mut from_bytes)? as u64;
        let from = expected.checked_add((relative >> 1) as i64 ^ -((relative & 1) as i64))?;
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
    (skips.is_empty() && lengths.is_empty() && from_bytes.is_empty()).then_some(froms)
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
            part in prop::sample::select(vec![1u64, 2]),
        ) {
            let mut bits: Vec<u64> = seed.iter().map(|&(v, s)| (v as f64 * if s { -1.5 } else { 1.5 }).to_bits()).collect();
            for (from, length, reverse, turn) in parts {
                let end = (from + length).min(bits.len());
                let mut part = bits[from.min(end)..end].to_vec();
                if reverse { part.reverse() }
                if turn { part.iter_mut().for_each(|b| *b = DOUBLES.negated(*b)) }
                bits.extend(part);
            }
            let (froms, tokens) = find(&bits, 0, DOUBLES, 0, &[], (8, part));
            for (at, &from) in froms.iter().enumerate().filter(|(_, from)| **from != 0) {
                let source = (from & !TURNED) as usize - 1;
                prop_assert!(source < at);
                let value = if from & TURNED != 0 { DOUBLES.negated(bits[source]) } else { bits[source] };
                prop_assert_eq!(value, bits[at]);
            }
            let again = places(bits.len(), (0, 0), tokens.count, &tokens.skips, &tokens.lengths, &tokens.froms);
            prop_assert_eq!(again, Some(froms));
        }

        #[test]
        fn any_tokens_are_places_or_nothing(
            n in 0usize..300, count in 0usize..20, a in prop::collection::vec(any::<u8>(), 0..20),
            b in prop::collection::vec(any::<u8>(), 0..20), c in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            if let Some(froms) = places(n, (0, 0), count, &a, &b, &c) {
                prop_assert!(froms.iter().enumerate().all(|(at, &from)| (from & !TURNED) as usize <= at));
            }
        }
    }

    #[test]
    fn a_mirrored_and_negated_row_is_one_run() {
        let row: Vec<u64> = (1..=50u32).map(|i| f64::from(i).sqrt().to_bits()).collect();
        let mirrored = row.iter().rev().map(|&b| DOUBLES.negated(b));
        let bits: Vec<u64> = row.iter().copied().chain(mirrored).collect();
        let (froms, tokens) = find(&bits, 0, DOUBLES, 0, &[], (8, 1));
        assert_eq!((tokens.count, froms.iter().filter(|&&f| f != 0).count()), (1, 50));
    }
}
