//! Finds runs of elements that repeat earlier elements, possibly in reverse order, possibly with the opposite sign.
//!
//! The same value occurs several times in ghost zones, in refined levels over coarser levels, in several time levels,
//! and in symmetric halves. Codecs of numbers do not find such repeats. Therefore runs of at least [`RUN_MIN`]
//! elements that occur earlier, in any column of the segment, are copied. The search compares elements, not bytes.
//! All other elements are predicted, and copied neighbours can be used in these predictions too.
//!
//! If source and copy differ only by rounding, the source predicts the copy (*near*). In a symmetric flow that begins
//! to become chaotic, the mirrored element predicts half of the bits (*wide*). Each column is coded with and without
//! wide copies, and the shorter code is used.

use super::super::format::copies::{RUN_MIN, Run, Source, TURNED, zigzag};
use super::super::format::numbers::Elements;
use super::super::format::strides::Strides;
use super::alike::{MIX, Slack, is_like, off, slack_of};
use super::code_numbers::Numbers;
use super::effort::{CopiesEffort, ESTIMATE};
use super::{code_numbers, find_strides};
use crate::codec::array_to_bytes::varint::put;
use crate::codec::threads;
use std::ops::Range;

/// The number of windows in a block. A window is [`RUN_MIN`] consecutive elements. Either all windows of a block are
/// searched, or no window of the block.
const BLOCK: usize = 1 << 13;
/// The minimum number of elements of a run in which some neighbours are equal. Elements with few different values
/// take few bytes even without copies.
const RUN_LONG: usize = 24;
/// The maximum number of earlier places that are compared with a window in which some neighbours are equal.
const DEPTH_FEW: usize = 4;
/// The number of windows that are hashed at a time.
const HASHED: usize = 512;
/// The number of parts into which windows are sorted; a power of 2.
const PARTS: usize = 64;

/// Encoded runs, as three lists. Each list has one number for each run: the number of elements before the run that
/// are not copied, the length of the run with its direction and sign, or the first source.
#[derive(Default)]
pub(crate) struct Tokens {
    pub skips: Vec<u8>,
    pub lengths: Vec<u8>,
    pub froms: Vec<u8>,
    pub count: usize,
}

/// The source of each element, from the runs.
fn filled(runs: &[Run], elements: usize) -> Vec<Source> {
    let mut froms = vec![0; elements];
    runs.iter().for_each(|run| run.fill(&mut froms));
    froms
}

impl Tokens {
    /// Encodes `runs`, which must be sorted by their first element. No run begins before `known`, and no source is
    /// before `least`.
    fn new<'a>(runs: impl IntoIterator<Item = &'a Run>, known: usize, least: usize) -> Self {
        let mut tokens = Self::default();
        let (mut at, mut expected) = (known, least as i64);
        for run in runs {
            let Range { start, end } = run.places();
            expected += (start - at) as i64;
            put(start - at, &mut tokens.skips);
            let ways = usize::from(run.step < 0) << 1 | usize::from(run.is_turned);
            put((run.length as usize - RUN_MIN) << 2 | ways, &mut tokens.lengths);
            // The source is stored as its distance from the end of the previous source. The distance is small if
            // consecutive rows are copied.
            put(zigzag(i64::from(run.from) - expected), &mut tokens.froms);
            tokens.count += 1;
            (at, expected) = (end, run.end());
        }
        tokens
    }

    fn bytes(&self) -> usize {
        self.skips.len() + self.lengths.len() + self.froms.len()
    }
}

/// All runs of a segment: exact copies, and near or wide copies, which are predicted by their source.
pub(crate) struct Runs {
    /// The source of each element in exact runs, then in near runs. The second list is empty if there are no near
    /// runs.
    pub froms: [Vec<Source>; 2],
    pub tokens: [Tokens; 2],
    /// Exact runs with steps, then near runs with steps.
    pub strides: [Strides; 2],
    /// The wide runs, which replace the near runs of some columns.
    pub wide: Option<Wide>,
}

/// Wide runs, which are much less similar to their sources than near runs. It depends on the column whether the
/// sources of wide runs or other terms predict the column better.
pub(crate) struct Wide {
    /// The source of each element.
    pub froms: Vec<Source>,
    runs: Vec<Run>,
    near_runs: Vec<Run>,
    known: usize,
}

impl Wide {
    /// The approximate number of bytes that the runs of these elements take.
    pub(crate) fn bytes(&self, own: Range<usize>) -> usize {
        let of = |at: usize| self.runs.partition_point(|run| (run.at as usize) < at);
        Tokens::new(&self.runs[of(own.start)..of(own.end)], own.start, own.start).bytes()
    }
}

impl Runs {
    /// No runs, for a number of elements.
    pub(crate) fn none(elements: usize) -> Self {
        Self {
            froms: [vec![0; elements], Vec::new()],
            tokens: Default::default(),
            strides: Default::default(),
            wide: None,
        }
    }

    /// Replaces near runs by wide runs in the columns for which `is_taken` is true at the place of an element.
    /// `froms` is not changed, because it is not needed after the elements are coded.
    pub(crate) fn take_wide(&mut self, is_taken: impl Fn(usize) -> bool) {
        let Some(Wide { runs, mut near_runs, known, .. }) = self.wide.take() else { return };
        let taken = |run: &Run| is_taken(run.at as usize);
        if !runs.iter().chain(&near_runs).any(taken) {
            return;
        }
        near_runs.retain(|run| !taken(run));
        near_runs.extend(runs.iter().filter(|run| taken(run)));
        near_runs.sort_unstable_by_key(|run| run.at);
        self.tokens[1] = Tokens::new(&near_runs, known, known);
    }
}

/// The slack of wide copies, by the width of the elements.
fn wide_slack_of(elements: Elements) -> Slack {
    if elements.width == 4 { 14 } else { 43 }
}

/// Finds the runs of a segment, on one or two threads. The first `known` elements are not coded, so they are in no
/// run. Known elements may be sources of exact copies, but not of near copies, because prediction from the twin is
/// better. Near runs do not cross `borders`.
pub(crate) fn find_all(
    bits: &[u64],
    known: usize,
    elements: Elements,
    effort: &CopiesEffort,
    threads: usize,
    borders: &[usize],
) -> Runs {
    let CopiesEffort { window_divisor: part, block_divisor, .. } = *effort;
    let search = |slack: Slack| Search { elements, slack, effort };
    let blocks_of = |slack: Slack| blocks(bits, elements, slack, block_divisor, |_, _| ());
    let is_worth_it = |blocks: &Blocks, slack: Slack| effort.is_thorough || blocks.are_worth_it(bits, elements, slack);
    // If a search is worth its time, the hashes are computed a second time, because keeping the hashes of the first
    // time in new memory would take longer.
    let windows = |slack: Slack, blocks: Blocks| {
        let before = before(&all_hashes(bits, elements, slack), part, &blocks.repeat);
        Windows { before, repeat: blocks.repeat }
    };
    let exactly = || {
        let blocks = blocks_of(0);
        if !is_worth_it(&blocks, 0) {
            return Vec::new();
        }
        find(bits, known, search(0), &[], &windows(0, blocks), &[])
    };
    let (near_slack, wide_slack) = (slack_of(elements), wide_slack_of(elements));
    let nearly = || {
        if !elements.is_float {
            return None;
        }
        // Near matches are wide matches too, because the wide slack is larger.
        let mut likeness = Likeness::default();
        let add = |at, source| likeness.add(bits, elements, at, source);
        let wide = blocks(bits, elements, wide_slack, block_divisor, add);
        if !is_worth_it(&wide, wide_slack) {
            return None;
        }
        let near = blocks_of(near_slack);
        let more = wide.part_again() - near.part_again();
        let is_wide = more * effort.wide_window_divisor > 1.0 && likeness.bits_less() > effort.wide_gain_bits;
        let near = is_worth_it(&near, near_slack).then(|| windows(near_slack, near));
        Some((near, is_wide.then_some(wide)))
    };
    let (exact_runs, nearly) = threads::both(threads, exactly, nearly);
    let exact_tokens = Tokens::new(&exact_runs, known, 0);
    let exact = filled(&exact_runs, bits.len());
    drop(exact_runs);
    let (near, wide) = nearly.unwrap_or_default();
    let near_runs = near.map(|windows| find(bits, known, search(near_slack), &exact, &windows, borders));
    let near_runs = near_runs.unwrap_or_default();
    let near_tokens = Tokens::new(&near_runs, known, known);
    let mut froms = [exact, if near_runs.is_empty() { Vec::new() } else { filled(&near_runs, bits.len()) }];
    let strides = match elements.is_float && elements.width == 8 {
        true => find_strides::find_all(bits, known, elements, effort.stride_min_percent, &mut froms),
        false => Default::default(),
    };
    let wide = wide.and_then(|blocks| {
        let runs = find(bits, known, search(wide_slack), &froms[0], &windows(wide_slack, blocks), borders);
        let mut all = (!runs.is_empty()).then(|| filled(&runs, bits.len()))?;
        // Near copies with steps, which are the near copies outside of `near_runs`, are kept.
        let ends = near_runs.iter().map(Run::places).chain(std::iter::once(bits.len()..bits.len()));
        let mut from = 0;
        for Range { start, end } in ends.filter(|_| !strides[1].is_empty()) {
            let near = froms[1][from..start].iter().zip(&mut all[from..start]);
            near.filter(|(near, _)| **near != 0).for_each(|(near, own)| *own = *near);
            from = end;
        }
        Some(Wide { froms: all, runs, near_runs, known })
    });
    Runs { froms, tokens: [exact_tokens, near_tokens], strides, wide }
}

/// Blocks of windows, and counts of sampled windows that repeat.
struct Blocks {
    /// For each block of windows, whether the block is searched. A block is searched if a sampled window of the block
    /// repeats elsewhere or is constant, or if there is less than one full block.
    repeat: Vec<bool>,
    /// For each block, the number of sampled windows that repeat and in which some neighbours are equal.
    alike: Vec<u32>,
    /// The number of sampled windows that are not constant.
    looked_at: usize,
    /// The number of sampled windows that repeat.
    again: usize,
    /// The number of sampled windows in which no neighbours are equal, and the number of these windows that repeat.
    differing: [usize; 2],
}

/// Compares two predictions of windows: prediction by the earlier window that a window repeats, and prediction of
/// each element by the elements before it.
#[derive(Default)]
struct Likeness {
    /// The number of windows. To each of the other fields, each window adds its mean number of bits per element.
    count: usize,
    /// Bits of the difference to the earlier window, in the direction (forward or backward) with fewer bits.
    off: f64,
    /// Bits of the difference to the previous element.
    same: f64,
    /// Bits of the change from one such difference to the next.
    as_far: f64,
}

impl Likeness {
    fn add(&mut self, bits: &[u64], elements: Elements, at: usize, source: usize) {
        let len = |n: i64| u64::BITS - n.unsigned_abs().leading_zeros();
        let magnitude = |at: usize| elements.magnitude(bits[at]) as i64;
        let off = |source: usize, n: usize| len(magnitude(at + n).wrapping_sub(magnitude(source)));
        let forward: u32 = (0..RUN_MIN).map(|n| off(source + n, n)).sum();
        let reverse: u32 = (0..RUN_MIN).map(|n| off(source + RUN_MIN - 1 - n, n)).sum();
        self.off += f64::from(forward.min(reverse)) / RUN_MIN as f64;
        let ordered: [i64; RUN_MIN] = std::array::from_fn(|n| elements.ordered(bits[at + n]));
        let steps: [i64; RUN_MIN - 1] = std::array::from_fn(|n| ordered[n + 1].wrapping_sub(ordered[n]));
        let turns = steps.windows(2).map(|pair| len(pair[1].wrapping_sub(pair[0])));
        self.same += f64::from(steps.iter().map(|&step| len(step)).sum::<u32>()) / (RUN_MIN - 1) as f64;
        self.as_far += f64::from(turns.sum::<u32>()) / (RUN_MIN - 2) as f64;
        self.count += 1;
    }

    /// The mean number of bits of an element that prediction by an earlier window saves, compared with prediction by
    /// the elements before the element.
    fn bits_less(&self) -> f64 {
        (self.same.min(self.as_far) - self.off) / self.count.max(1) as f64
    }
}

/// With the lower effort, copies are searched only if more than 1 / `REPEAT_DIVISOR` of the sampled windows repeat.
const REPEAT_DIVISOR: usize = 100;
/// The divisor for near copies of elements of 4 bytes. A copy of an element of 4 bytes saves half as many bytes as a
/// copy of an element of 8 bytes, so more windows must repeat.
const REPEAT_DIVISOR_OF_NEAR_FLOATS: usize = 40;
/// If there are fewer elements than this number, copies are always searched.
const ELEMENTS_FEW: usize = 1 << 12;
/// The number of elements of a block that are coded to estimate the cost of the block without copies.
const PRICED: usize = 1 << 10;
/// The number of blocks whose cost is estimated.
const BLOCKS_PRICED: usize = 4;
/// Copies of elements with few different values are searched only if an element takes more than this many bits
/// without copies.
const PRICE_BITS: usize = 2;

/// Samples a share of 1 / `part` of the windows; `part` is a power of 2. Hashes select the windows. A window and its
/// repeat have the same hash, so either both windows are sampled or no window is sampled. Calls
/// `again(place, earlier place)` for repeating windows in which no neighbours are equal.
fn blocks(bits: &[u64], elements: Elements, slack: Slack, part: u32, mut again: impl FnMut(usize, usize)) -> Blocks {
    let places = (bits.len() / part as usize * 4).next_power_of_two().max(64);
    let mut seen: Vec<(u32, u32)> = vec![(0, 0); places]; // each item: a hash or 0, and a place
    let windows = bits.len().saturating_sub(RUN_MIN - 1);
    let mut blocks = Blocks {
        repeat: vec![windows < BLOCK; windows.div_ceil(BLOCK)],
        alike: vec![0; windows.div_ceil(BLOCK)],
        looked_at: 0,
        again: 0,
        differing: [0; 2],
    };
    hashes(bits, elements, slack, |at, hash| {
        if hash & (part - 1) == 0 {
            let window = &bits[at as usize..at as usize + RUN_MIN];
            if window.iter().all(|&value| value == window[0]) {
                blocks.repeat[at as usize / BLOCK] = true;
                return; // constant elements take almost no bytes
            }
            let differ = usize::from(window.windows(2).all(|pair| pair[0] != pair[1]));
            let place = &mut seen[(hash / part) as usize & (places - 1)];
            blocks.looked_at += 1;
            blocks.differing[0] += differ;
            if place.0 == hash | 1 {
                blocks.again += 1;
                blocks.differing[1] += differ;
                if differ > 0 {
                    again(at as usize, place.1 as usize);
                }
                blocks.alike[at as usize / BLOCK] += 1 - differ as u32;
                [at, place.1].into_iter().for_each(|at| blocks.repeat[at as usize / BLOCK] = true);
            }
            *place = (hash | 1, at);
        }
    });
    blocks
}

impl Blocks {
    /// The share of repeating windows among the windows in which no neighbours are equal.
    fn part_again(&self) -> f64 {
        let [differing, again] = self.differing;
        again as f64 / differing.max(1) as f64
    }

    /// Whether, with the lower effort, runs are searched.
    fn are_worth_it(&self, bits: &[u64], elements: Elements, slack: Slack) -> bool {
        let one_in = if slack > 0 && elements.width == 4 { REPEAT_DIVISOR_OF_NEAR_FLOATS } else { REPEAT_DIVISOR };
        let [differing, again] = self.differing;
        bits.len() < ELEMENTS_FEW
            || again * one_in > differing
            || self.again * 2 > self.looked_at
            || self.again * one_in > self.looked_at && self.cost_something(bits, elements)
    }

    /// Returns whether an element takes more than [`PRICE_BITS`] bits without copies. Codes elements of the blocks in
    /// which the most windows repeat and have equal neighbours. Elements with few different values take fewer bits.
    fn cost_something(&self, bits: &[u64], elements: Elements) -> bool {
        let mut most: Vec<usize> = (0..self.alike.len()).filter(|&block| self.alike[block] > 0).collect();
        most.sort_by_key(|&block| std::cmp::Reverse(self.alike[block]));
        let (mut priced, mut code_bytes) = (0, 0);
        for block in most.into_iter().take(BLOCKS_PRICED) {
            let some = &bits[block * BLOCK..bits.len().min(block * BLOCK + PRICED)];
            let values: Vec<i64> = some.iter().map(|&value| elements.ordered(value)).collect();
            let numbers = Numbers { values: &values, floats: None, is_predicted: false };
            priced += values.len();
            code_bytes += code_numbers::encode(&numbers, ESTIMATE).len();
        }
        code_bytes * 8 > priced * PRICE_BITS
    }
}

/// Calls `found(place, hash)` for each window of [`RUN_MIN`] elements, in order. The hash does not depend on the
/// direction of the window, nor on the signs of its elements. Hashes are computed for [`HASHED`] windows at a time,
/// because a processor computes several of them at once.
fn hashes(bits: &[u64], elements: Elements, slack: Slack, mut found: impl FnMut(u32, u32)) {
    let mut mixed = [[0u64; HASHED + RUN_MIN - 1]; 2];
    let mut hashes = [0u32; HASHED];
    let windows = bits.len().saturating_sub(RUN_MIN - 1);
    for from in (0..windows).step_by(HASHED) {
        let count = (windows - from).min(HASHED);
        let some = &bits[from..from + count + RUN_MIN - 1];
        for (mixed, odd) in mixed.iter_mut().zip([MIX[0], MIX[1]]) {
            for (mixed, &value) in mixed.iter_mut().zip(some) {
                let product = (elements.magnitude(value) >> slack).wrapping_mul(odd);
                *mixed = product ^ product >> 32;
            }
        }
        let [outer, inner] = &mixed;
        let pairs = outer.iter().zip(&outer[RUN_MIN - 1..]).zip(inner[1..].iter().zip(&inner[2..]));
        for (hash, ((a, d), (b, c))) in hashes[..count].iter_mut().zip(pairs) {
            let sum = a.wrapping_add(*d) ^ b.wrapping_add(*c).rotate_left(23);
            *hash = (sum.wrapping_mul(MIX[2]) >> 32) as u32;
        }
        (from as u32..).zip(&hashes[..count]).for_each(|(at, &hash)| found(at, hash));
    }
}

/// The hash of each window.
fn all_hashes(bits: &[u64], elements: Elements, slack: Slack) -> Vec<u32> {
    let mut all = Vec::with_capacity(bits.len());
    hashes(bits, elements, slack, |_, hash| all.push(hash));
    all
}

/// For each window that is looked up: the position plus 1 of the last earlier window with the same hash, or 0 if
/// there is no such window. Hashes select a share of 1 / `part` of the windows in repeating blocks; `part` is a power
/// of 2. Windows are first sorted into parts by their hash, so that the hash table of each part stays in the cache.
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
        (*end, sum) = (sum, sum + *end); // the start of each part; the loop below changes the start to the end
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
    let mut table: Vec<u64> = Vec::new(); // each item: a hash, and a place plus 1
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
            table[place] = hash << 32 | u64::from(at + 1); // the value is below 2^31
        }
        begin = end;
    }
    before
}

/// The settings of a search for runs.
#[derive(Clone, Copy)]
struct Search<'a> {
    elements: Elements,
    /// The allowed difference between a copy and its source: 0 for exact copies, larger for near copies, and largest
    /// for wide copies.
    slack: Slack,
    effort: &'a CopiesEffort,
}

/// A window is [`RUN_MIN`] consecutive elements, and [`BLOCK`] windows are a block. For each window, the first element
/// plus 1 of the nearest earlier window with the same hash, or 0. For each block, whether the block is searched.
struct Windows {
    before: Vec<u32>,
    repeat: Vec<bool>,
}

/// Finds runs greedily: at each place, this function uses the best of a few runs, and cuts the run at borders.
///
/// `bits` holds the elements in the order of coding, `known` of them are known before decoding begins, and `borders`
/// are the places where columns begin. A run is *turned* if its sources have the opposite sign. `done` holds the
/// sources of exact copies: if the slack is not 0, runs begin only at elements without a source in `done`.
fn find(
    bits: &[u64],
    known: usize,
    search: Search<'_>,
    done: &[Source],
    windows: &Windows,
    borders: &[usize],
) -> Vec<Run> {
    let (Search { elements, slack, effort }, Windows { before, repeat }) = (search, windows);
    let CopiesEffort { depth, window_divisor: part, .. } = *effort;
    let mut runs = Vec::new();
    if bits.len() < 2 * RUN_MIN || bits.len() >= TURNED as usize {
        return runs;
    }
    let is_like = |source: usize, is_turned: bool, at: usize| is_like(bits, elements, slack, source, is_turned, at);
    // The value of copying an element. An exact or near copy has the value 1. A wide copy has a larger value if its
    // difference has fewer bits.
    let is_wide = slack > slack_of(elements);
    let saves = |source: usize, is_turned: bool, at: usize| match is_wide {
        true => (slack + 1 - (u64::BITS - off(bits, elements, source, is_turned, at).leading_zeros())) as usize,
        false => 1,
    };
    // Known elements are never sources of near runs. The source of an exact run may be the first known element.
    let (least, goes_on_from) =
        if slack > 0 { (known as i64, known.max(1) as i64) } else { (0, i64::from(known == 0)) };
    let (mut at, mut copied_to) = (known, known);
    let mut expected = least; // the source after the end of the previous source
    while let Some(&first) = before.get(at) {
        let goes_on = expected >= goes_on_from && (expected as usize) < at && at == copied_to;
        if first == 0 && !goes_on && (slack == 0 || !repeat[at / BLOCK]) {
            (at, expected) = (at + 1, expected + 1);
            continue;
        }
        let mut best = (0, Run { at: at as u32, length: 0, from: 0, step: 0, is_turned: false });
        // A difference in low bits may change the hash, so a near run may continue at a window whose hash did not
        // occur before.
        if slack == 0 || done[at] == 0 {
            let mut consider = |from: i64, step: i32| {
                let Ok(first) = usize::try_from(from) else { return };
                let is_turned = !is_like(first, false, at);
                let (mut length, mut saved) = (0, 0);
                let mut source = from;
                while at + length < bits.len()
                    && source >= least
                    && source < (at + if step > 0 { length } else { 0 }) as i64
                    && is_like(source as usize, is_turned, at + length)
                {
                    saved += saves(source as usize, is_turned, at + length);
                    (length, source) = (length + 1, source + i64::from(step));
                }
                if length >= RUN_MIN && saved > best.0 {
                    let (at, length, from) = (at as u32, length as u32, first as u32); // the value is below 2^31
                    best = (saved, Run { at, length, from, step, is_turned });
                }
            };
            if expected >= goes_on_from && (expected as usize) < at {
                consider(expected, 1);
            }
            // If elements have few different values, many windows match, and a long run is found after a few
            // comparisons.
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
        let mut run = best.1;
        let length = run.length as usize;
        let differ = || bits[at..at + length].windows(2).all(|pair| pair[0] != pair[1]);
        if length < RUN_MIN || length < RUN_LONG && !differ() {
            (at, expected) = (at + 1, expected + 1);
            continue;
        }
        // Only a share of the positions is looked up, so equal elements may begin before the position that was found.
        // Therefore the run is extended backwards.
        while part > 1 && run.at as usize > copied_to {
            let (source, before) = (run.source(-1), run.at as usize - 1);
            let is_before = |source: usize| source < before && is_like(source, run.is_turned, before);
            if source < least || !usize::try_from(source).is_ok_and(is_before) || slack > 0 && done[before] != 0 {
                break;
            }
            run = Run { at: before as u32, from: source as u32, length: run.length + 1, ..run };
        }
        (at, expected) = (run.places().end, run.end());
        copied_to = at;
        run.cut(borders, |piece| runs.extend((piece.length as usize >= RUN_MIN).then_some(piece)));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::super::format::copies::places;
    use super::super::super::format::strides;
    use super::super::effort::Effort;
    use super::*;
    use proptest::prelude::*;

    const DOUBLES: Elements = Elements { width: 8, is_big: false, is_float: true };

    /// The effort that looks up a share of 1 / `window_divisor` of the windows.
    fn looked_up(window_divisor: u32) -> CopiesEffort {
        CopiesEffort { depth: 8, window_divisor, ..Effort::of(1).copies }
    }

    fn windows(bits: &[u64], divisor: u32) -> Windows {
        let before = before(&all_hashes(bits, DOUBLES, 0), divisor, &[true]);
        Windows { before, repeat: vec![true] }
    }

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
            let windows = windows(&bits, part);
            let search = Search { elements: DOUBLES, slack: 0, effort: &looked_up(part) };
            let runs = find(&bits, 0, search, &[], &windows, &[]);
            let (froms, tokens) = (filled(&runs, bits.len()), Tokens::new(&runs, 0, 0));
            for (at, &from) in froms.iter().enumerate().filter(|(_, from)| **from != 0) {
                let source = (from & !TURNED) as usize - 1;
                prop_assert!(source < at);
                let value = if from & TURNED != 0 { DOUBLES.negated(bits[source]) } else { bits[source] };
                prop_assert_eq!(value, bits[at]);
            }
            let mut again = vec![0; bits.len()];
            let found = places(&mut again, 0, 0, tokens.count, &tokens.skips, &tokens.lengths, &tokens.froms);
            prop_assert_eq!(found, Some(()));
            prop_assert_eq!(again, froms);
        }

        #[test]
        fn near_and_wide_runs_keep_within_columns_and_the_tokens_say_where_they_are(
            seed in prop::collection::vec(any::<u64>(), 0..400), borders in prop::collection::btree_set(0usize..1600, 0..6),
            parts in prop::collection::vec((0usize..300, 0usize..200, any::<bool>(), any::<bool>(), 0u32..46), 0..8),
            known in 0usize..40, taken in any::<u8>(), effort in 1u32..3,
        ) {
            let double = |n: u64| (n >> 12 | 0x3FF0_0000_0000_0000) ^ (n & 3) << 52;
            let mut bits: Vec<u64> = seed.iter().map(|&n| double(n)).collect();
            for (from, length, reverse, turn, off) in parts {
                let mut part: Vec<u64> = bits.iter().skip(from).take(length).copied().collect();
                if reverse { part.reverse() }
                let near = |(n, &b): (usize, &u64)| b ^ (MIX[0].wrapping_mul(n as u64 + 1) >> (64 - off.max(1)));
                bits.extend(part.iter().enumerate().map(near).map(|b| if turn { DOUBLES.negated(b) } else { b }));
            }
            let borders: Vec<usize> = borders.into_iter().collect();
            let column = |at: usize| borders.partition_point(|&border| border <= at);
            let is_taken = |at: usize| taken >> column(at) & 1 == 1;
            let mut runs = find_all(&bits, known, DOUBLES, &Effort::of(effort).copies, 2, &borders);
            // The near sources from which the marks of a column are made.
            let near = match &runs.wide {
                Some(wide) => (0..bits.len())
                    .map(|at| if is_taken(at) { wide.froms[at] } else { runs.froms[1].get(at).copied().unwrap_or(0) })
                    .collect(),
                None => runs.froms[1].clone(),
            };
            let slacks = [slack_of(DOUBLES), if runs.wide.is_some() { wide_slack_of(DOUBLES) } else { 0 }];
            runs.take_wide(is_taken);
            for (at, &from) in near.iter().enumerate().filter(|(_, from)| **from != 0) {
                let (source, is_turned) = ((from & !TURNED) as usize - 1, from & TURNED != 0);
                prop_assert!(at >= known && source < at && source >= known);
                let slack = slacks[usize::from(is_taken(at) && slacks[1] > 0)];
                prop_assert!(off(&bits, DOUBLES, source, is_turned, at) < 1 << slack, "{at} from {source}");
            }
            let mut again = vec![0; bits.len()];
            let tokens = &runs.tokens[1];
            let found =
                places(&mut again, known, known as i64, tokens.count, &tokens.skips, &tokens.lengths, &tokens.froms);
            prop_assert_eq!(found, Some(()));
            let mut written = Vec::new();
            runs.strides[1].write(&mut written);
            prop_assert_eq!(strides::read(&mut written.as_slice(), known, known, bits.len(), &mut again), Some(()));
            prop_assert!(again.iter().all(|&from| from == 0) && near.is_empty() || again == near);
        }

        #[test]
        fn any_tokens_are_places_or_nothing(
            n in 0usize..300, count in 0usize..20, a in prop::collection::vec(any::<u8>(), 0..20),
            b in prop::collection::vec(any::<u8>(), 0..20), c in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut froms = vec![0; n];
            if places(&mut froms, 0, 0, count, &a, &b, &c).is_some() {
                prop_assert!(froms.iter().enumerate().all(|(at, &from)| (from & !TURNED) as usize <= at));
            }
        }
    }

    #[test]
    fn a_mirrored_and_negated_row_is_one_run() {
        let row: Vec<u64> = (1..=50u32).map(|i| f64::from(i).sqrt().to_bits()).collect();
        let mirrored = row.iter().rev().map(|&b| DOUBLES.negated(b));
        let bits: Vec<u64> = row.iter().copied().chain(mirrored).collect();
        let windows = windows(&bits, 1);
        let runs = find(&bits, 0, Search { elements: DOUBLES, slack: 0, effort: &looked_up(1) }, &[], &windows, &[]);
        let (froms, tokens) = (filled(&runs, bits.len()), Tokens::new(&runs, 0, 0));
        assert_eq!((tokens.count, froms.iter().filter(|&&f| f != 0).count()), (1, 50));
    }

    #[test]
    fn a_low_effort_looks_for_repeats_where_they_save_bytes() {
        let noise = |n: u64| (n.wrapping_mul(MIX[0]) >> 12 | 0x3FF0_0000_0000_0000) ^ (n % 7) << 40;
        let is_worth_it = |bits: &[u64]| {
            let blocks = blocks(bits, DOUBLES, 0, 32, |_, _| ());
            blocks.are_worth_it(bits, DOUBLES, 0)
        };
        let own: Vec<u64> = (0..8 * BLOCK as u64).map(noise).collect();
        assert!(!is_worth_it(&own), "no window repeats");
        let again: Vec<u64> = own.iter().chain(&own[..6000]).copied().collect();
        assert!(is_worth_it(&again), "a tenth of the elements repeats");
        let sparse: Vec<u64> = (0..60_000u64).map(|n| if n % 40 == 0 { noise(n % 4000) } else { 0 }).collect();
        // Windows at the ends of runs of equal elements repeat, but take few bytes.
        let long: Vec<u64> = (0..4 * BLOCK as u64).map(|n| noise((n / 90).wrapping_mul(MIX[1]) >> 61)).collect();
        assert!(!is_worth_it(&[&own[..], &long].concat()), "stretches of eight different values");
        assert!(is_worth_it(&sparse), "nearly all elements repeat");
    }
}
