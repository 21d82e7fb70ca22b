//! The order of points, told by a curve that fills space and by where its cells begin.
//!
//! Codes spread particles over ranks in pieces of such a curve, and keep them in its order (M. S. Warren, J. K. Salmon, "A
//! parallel hashed oct-tree N-body algorithm", Supercomputing 1993; V. Springel et al., "Simulating cosmic structure formation with
//! the GADGET-4 code", Monthly Notices of the RAS 506, 2021). A cube is cut into eight, the eight are passed in some order, and
//! so is each of them, with that order turned or mirrored. Where positions were written right after, they tell all of the
//! order but which piece of the curve each rank has.
//!
//! Which curve it was is learned from the points: how the order of eight is turned in each of them is the same everywhere, be it Hilbert's
//! curve in one of its many forms, or Morton's, which is not turned. Where the cells begin is told by the steps from row to row: few pass a wall
//! between large cells. So it does not matter that some codes move the box before each sorting.

#[cfg(target_arch = "x86_64")]
use crate::codec::registers::has_avx2;

/// Cells along each axis at most: 2 to the power of this, an even number; and how many more levels there are than so many points need
/// where none is crowded.
const LEVELS_MAX: u32 = 20;
const LEVELS_MORE: u32 = 6;
/// Levels by which a curve is learned at most.
const LEARNED_MAX: u32 = 8;
/// Octants, and how a cube can be turned and mirrored.
const OCTANTS: usize = 8;
const TURNS: usize = 48;
/// Rows for each of the cells, 64 in a node, by whose order a curve is learned; and nodes at most.
const ROWS_OF_CELL: usize = 4;
const NODES_MAX: usize = 512;
/// Nodes whose order is tried as the one that the others are turned from.
const FIRST_TRIED: usize = 8;
/// Points whose keys are made together.
const TOGETHER: usize = 64;
/// Parts of half a box, by which walls are first looked for.
const PARTS: usize = 512;
/// The steps that pass a wall must be one in so many of those that pass the one in the middle of all.
const WALL_PART: u32 = 3;
/// By how much each look at smaller cells makes the place of a wall more certain.
const REFINED: f64 = 8.0;
/// By what codes make their cube larger than what they put into it (GADGET-2 and those that began with it).
const LARGER: f64 = 1.001;

/// A curve, and the cube that it fills, again and again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Where the cube begins, and its edge.
    origin: [f64; 3],
    edge: f64,
    /// How often it is cut: the number of levels, an even one.
    levels: u32,
    /// The order in which octants are passed; of each of them, in that order, how the order in it is turned.
    first: [u8; OCTANTS],
    turns: [u8; OCTANTS],
}

/// What a curve does not tell: for each run of rows that follow it how far from where it would be next it begins, and how many
/// rows it has more than one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub jumps: Vec<i64>,
    pub lengths: Vec<i64>,
}

const PERMUTED: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// An octant, turned: number 8 p + f takes axes as the p-th of [`PERMUTED`] says, then mirrors those with a bit in `f`. The first
/// axis has the highest bit.
fn turned(turn: u8, octant: u8) -> u8 {
    let axes = PERMUTED[usize::from(turn / 8) % 6];
    let moved = (0..3).fold(0, |moved, axis| moved | (octant >> (2 - axes[axis]) & 1) << (2 - axis));
    moved ^ (turn % 8)
}

/// For all ways to turn: the one that is first `b`, then `a`, at `[a][b]`.
fn products() -> Vec<[u8; TURNS]> {
    let both = |a: usize, b: usize| {
        let axes = PERMUTED[a].map(|axis| PERMUTED[b][axis]);
        PERMUTED.iter().position(|one| *one == axes).unwrap_or(0) as u8
    };
    let axes: [[u8; 6]; 6] = std::array::from_fn(|a| std::array::from_fn(|b| both(a, b)));
    let product = |a: usize, b: usize| axes[a / 8][b / 8] * 8 + turned(a as u8, b as u8 % 8);
    (0..TURNS).map(|a| std::array::from_fn(|b| product(a, b))).collect()
}

/// The cells of a place at all levels, as octants of three bits, the largest on top.
#[inline(always)]
fn octants(cell: [u64; 3]) -> u64 {
    let spread = |n: u64| {
        let n = (n | n << 32) & 0x001F_0000_0000_FFFF;
        let n = (n | n << 16) & 0x001F_0000_FF00_00FF;
        let n = (n | n << 8) & 0x100F_00F0_0F00_F00F;
        let n = (n | n << 4) & 0x10C3_0C30_C30C_30C3;
        (n | n << 2) & 0x1249_2492_4924_9249
    };
    spread(cell[0]) << 2 | spread(cell[1]) << 1 | spread(cell[2])
}

/// The greatest whole number that is not above `x`; 0 where doubles are no finer than that, or `x` is none.
#[inline(always)]
fn whole(x: f64) -> i64 {
    const EXACT: f64 = (1u64 << 52) as f64;
    let x = if x.abs() < EXACT { x } else { 0.0 };
    let n = x as i64;
    n - i64::from(n as f64 > x)
}

/// The cubes that a space is full of, cut into cells.
struct Cells {
    origin: [f64; 3],
    for_each: f64,
    mask: u64,
}

impl Cells {
    /// Bits behind the point that are rounded away, so that what is on a wall is behind it.
    const FINER: u32 = 10;
    /// Of a double between 2^52 and 2^53 the lowest bits are those of a whole number.
    const WHOLE: f64 = (3u64 << 51) as f64;

    /// `None` where so many cells of an edge are no number to compute with.
    fn new(origin: [f64; 3], edge: f64, levels: u32) -> Option<Self> {
        let for_each = (1u64 << (levels + Self::FINER)) as f64 / edge;
        let is_valid = for_each.is_normal() && for_each > 0.0 && origin.iter().all(|x| x.is_finite());
        is_valid.then_some(Self { origin, for_each, mask: (1 << levels) - 1 })
    }

    /// Of a place whose coordinates are finite.
    #[inline(always)]
    fn octants(&self, place: [f64; 3]) -> u64 {
        let cell = |axis: usize| {
            let whole = (place[axis] - self.origin[axis]) * self.for_each + Self::WHOLE;
            whole.to_bits() >> Self::FINER & self.mask
        };
        octants([cell(0), cell(1), cell(2)])
    }
}

impl Curve {
    /// The curve along which some of so many points follow each other, if there is one; with the edge of the box in which
    /// they go round, if they do.
    pub(crate) fn find(
        point: impl Fn(usize) -> [f64; 3],
        places: usize,
        order: &[u32],
        period: Option<f64>,
    ) -> Option<Self> {
        let mut along = [(); 3].map(|()| Vec::with_capacity(order.len()));
        for &n in order {
            along.iter_mut().zip(point(n as usize)).for_each(|(along, value)| along.push(value));
        }
        let (origin, edge) = match period {
            Some(period) => {
                let mut origin = [0.0; 3];
                for (origin, values) in origin.iter_mut().zip(&along) {
                    *origin = wall(values, period)?;
                }
                (origin, period)
            }
            None => {
                let ends = along.each_ref().map(|values| {
                    values.iter().fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)))
                });
                let edge = ends.iter().fold(0.0, |most: f64, (low, high)| most.max(high - low)) * LARGER;
                (ends.map(|(low, high)| (low + high) / 2.0 - edge / 2.0), edge)
            }
        };
        let levels = ((order.len() / ROWS_OF_CELL).checked_ilog2()? / 3).clamp(2, LEARNED_MAX);
        let (cells, [xs, ys, zs]) = (Cells::new(origin, edge, levels)?, &along);
        let rows = xs.iter().zip(ys).zip(zs).map(|((&x, &y), &z)| cells.octants([x, y, z]));
        let (first, turns, half) = learned(rows, levels, period.is_some())?;
        let begin = |axis: usize| origin[axis] + f64::from(half >> (2 - axis) & 1) * edge / 2.0;
        let levels = levels_of(places).min(order.len().ilog2() / 3 + LEVELS_MORE) & !1;
        let curve = Self { origin: [begin(0), begin(1), begin(2)], edge, levels, first, turns };
        curve.cells().is_some().then_some(curve)
    }

    fn cells(&self) -> Option<Cells> {
        Cells::new(self.origin, self.edge, self.levels)
    }

    /// The places of those points that there are, as they follow the curve; in one cell, rising.
    fn along(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool]) -> Option<Vec<u32>> {
        let place_bits = u64::BITS - (is_one.len() as u64).leading_zeros();
        let mut numbers = self.numbers(point, is_one, place_bits)?;
        sort_by_top(&mut numbers, place_bits, 3 * self.levels);
        Some(numbers.into_iter().map(|number| (number & ((1 << place_bits) - 1)) as u32).collect())
    }

    /// When each of those points is passed, and behind that, in so many bits, its place.
    fn numbers(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32) -> Option<Vec<u64>> {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            #[expect(unsafe_code, reason = "safe where there is AVX2")]
            return unsafe { self.numbers_avx2(point, is_one, place_bits) };
        }
        self.numbers_here(point, is_one, place_bits)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn numbers_avx2(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32) -> Option<Vec<u64>> {
        self.numbers_here(point, is_one, place_bits)
    }

    #[inline(always)]
    fn numbers_here(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32) -> Option<Vec<u64>> {
        let (cells, steps) = (self.cells()?, self.steps());
        let mut numbers: Vec<u64> = Vec::with_capacity(is_one.len());
        // Level by level for some at a time: each waits for the turn of the level above.
        let mut octants = [0; TOGETHER];
        for (block, are_ones) in is_one.chunks(TOGETHER).enumerate() {
            let count = are_ones.len();
            for (n, octants) in octants[..count].iter_mut().enumerate() {
                *octants = cells.octants(point(block * TOGETHER + n));
            }
            let (mut keys, mut turns) = ([0u64; TOGETHER], [0u16; TOGETHER]);
            for pair in (0..self.levels / 2).rev() {
                for ((&octants, key), turn) in octants.iter().zip(&mut keys).zip(&mut turns) {
                    let step = steps[usize::from(*turn) + (octants >> (6 * pair) & 63) as usize];
                    (*key, *turn) = (*key << 6 | u64::from(step & 63), step & !63);
                }
            }
            let places = (block * TOGETHER..).zip(are_ones).zip(&keys);
            numbers.extend(places.filter(|((_, is), _)| **is).map(|((n, _), key)| key << place_bits | n as u64));
        }
        Some(numbers)
    }

    /// For each turn, and each cell two levels down: when it is passed, plus 64 times how it is turned itself.
    fn steps(&self) -> Vec<u16> {
        let products = products();
        let mut one = vec![[(0, 0); OCTANTS]; TURNS];
        for (turn, one) in one.iter_mut().enumerate() {
            for (at, (&first, &own)) in (0u16..).zip(self.first.iter().zip(&self.turns)) {
                one[usize::from(turned(turn as u8, first))] = (at, usize::from(products[turn][usize::from(own)]));
            }
        }
        let two = |cell: usize| {
            let (at, turn) = one[cell >> 6][cell >> 3 & 7];
            let (at_below, turn) = one[turn][cell & 7];
            at << 3 | at_below | (turn as u16) << 6
        };
        (0..TURNS << 6).map(two).collect()
    }

    /// What is left to be told of an order of all points that there are. `None` where there are no cells.
    pub(crate) fn runs(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], order: &[u32]) -> Option<Runs> {
        let along = self.along(point, is_one)?;
        let mut at = vec![0; is_one.len()];
        (0u32..).zip(&along).for_each(|(n, &place)| at[place as usize] = n);
        let mut left = Left::new(along.len());
        let mut runs = Runs::default();
        let mut next = 0;
        for &place in order {
            let (found, expected) = (at[place as usize], left.from(next));
            match runs.lengths.last_mut() {
                Some(length) if found == expected => *length += 1,
                _ => {
                    runs.jumps.push(i64::from(found) - i64::from(expected));
                    runs.lengths.push(0);
                }
            }
            left.take(found);
            next = found + 1;
        }
        Some(runs)
    }

    /// The order that [`Curve::runs`] was given. `None` where there is none.
    pub(crate) fn order(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], runs: &Runs) -> Option<Vec<u32>> {
        let along = self.along(point, is_one)?;
        let mut left = Left::new(along.len());
        let mut order = Vec::with_capacity(along.len());
        let mut next = 0;
        for (&jump, &length) in runs.jumps.iter().zip(&runs.lengths) {
            next = u32::try_from(i64::from(left.from(next)).checked_add(jump)?).ok()?;
            let rows = usize::try_from(length).ok()?.checked_add(1)?;
            (left.is_left(next) && rows <= along.len() - order.len()).then_some(())?;
            if left.take_run(next, rows) {
                order.extend_from_slice(&along[next as usize..][..rows]);
                next += rows as u32; // no more than there are
                continue;
            }
            for _ in 0..rows {
                next = left.from(next);
                order.push(*along.get(next as usize)?);
                left.take(next);
                next += 1;
            }
        }
        (order.len() == along.len()).then_some(order)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.origin.iter().chain([&self.edge]).for_each(|number| out.extend(number.to_le_bytes()));
        out.push(self.levels as u8);
        out.extend(self.first);
        out.extend(self.turns);
    }

    /// Reads what [`Curve::write`] wrote, for so many places.
    pub(crate) fn read(bytes: &mut &[u8], places: usize) -> Option<Self> {
        let number = |bytes: &mut &[u8]| {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Some(*number)
        };
        let mut double = || number(bytes).map(f64::from_le_bytes);
        let (origin, edge) = ([double()?, double()?, double()?], double()?);
        let (&levels, rest) = bytes.split_first()?;
        *bytes = rest;
        let (first, turns) = (number(bytes)?, number(bytes)?);
        let passed = first.iter().fold(0u32, |passed, &octant| passed | 1u32.checked_shl(octant.into()).unwrap_or(0));
        let levels = u32::from(levels);
        let is_valid = levels % 2 == 0
            && levels <= levels_of(places)
            && passed == 0xFF
            && turns.iter().all(|&turn| usize::from(turn) < TURNS);
        is_valid.then_some(Self { origin, edge, levels, first, turns })
    }
}

/// Sorts by so many bits from one on, digit by digit, the lowest first; what is alike stays in its order.
fn sort_by_top(numbers: &mut Vec<u64>, from: u32, bits: u32) {
    const DIGIT_MAX: u32 = 12;
    let digit_bits = bits.div_ceil(bits.div_ceil(DIGIT_MAX).max(1)).max(1);
    let mut sorted = vec![0; numbers.len()];
    for shift in (0..bits).step_by(digit_bits as usize) {
        let digit = |number: u64| (number >> (from + shift)) as usize & ((1 << digit_bits.min(bits - shift)) - 1);
        let mut next = [0u32; 1 << DIGIT_MAX]; // fewer than 2^30 in all
        let next = &mut next[..1 << digit_bits];
        numbers.iter().for_each(|&number| next[digit(number)] += 1);
        next.iter_mut().fold(0, |from, next| from + std::mem::replace(next, from));
        for &number in &*numbers {
            let next = &mut next[digit(number)];
            sorted[*next as usize] = number;
            *next += 1;
        }
        std::mem::swap(numbers, &mut sorted);
    }
}

/// How many levels there may be for so many places: three bits for each, and the number of the place, are one number.
fn levels_of(places: usize) -> u32 {
    ((places as u64).leading_zeros() / 3).min(LEVELS_MAX)
}

/// What is not taken yet, of a row.
struct Left {
    /// Of each, and of the end: itself if it is left, or one that comes after it and not after the next that is.
    next: Vec<u32>,
}

impl Left {
    fn new(count: usize) -> Self {
        Self { next: (0..=count as u32).collect() } // fewer than 2^30
    }

    /// The first from there on that is left, or the end.
    fn from(&mut self, mut n: u32) -> u32 {
        n = n.min(self.next.len() as u32 - 1);
        while self.next[n as usize] != n {
            let after = self.next[self.next[n as usize] as usize];
            self.next[n as usize] = after;
            n = after;
        }
        n
    }

    fn is_left(&self, n: u32) -> bool {
        (n as usize) < self.next.len() - 1 && self.next[n as usize] == n
    }

    fn take(&mut self, n: u32) {
        self.next[n as usize] = n + 1;
    }

    /// Takes so many from there on, if all of them are left.
    fn take_run(&mut self, from: u32, count: usize) -> bool {
        let end = self.next.len() - 1;
        let Some(own) = self.next[..end].get_mut(from as usize..).and_then(|own| own.get_mut(..count)) else {
            return false;
        };
        let is_left = own.iter().zip(from..).fold(true, |all, (&next, n)| all & (next == n));
        if is_left {
            own.fill(from + count as u32); // no more than there are
        }
        is_left
    }
}

/// Where along an axis a cube begins that is as large as the period: fewest steps from row to row pass the two walls in it.
fn wall(values: &[f64], period: f64) -> Option<f64> {
    let parts = 2 * PARTS;
    let per_period = parts as f64 / period;
    let part = |x: f64| whole(x * per_period) as usize & (parts - 1);
    // Of each place for the first wall how many more steps than at the one before pass it or the one half a box behind.
    let mut more = vec![0i64; PARTS];
    let mut passing = 0i64;
    let mut before = part(*values.first()?);
    for &value in values {
        let (a, b) = (before, part(value));
        before = b;
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        // The shorter way round.
        let (from, to) = if high - low <= PARTS { (low, high) } else { (high, low + parts) };
        let [first, behind] = [from, to].map(|at| (at + 1) % PARTS);
        if to - from == PARTS {
            passing += 1;
        } else if from < to {
            passing += i64::from(first > behind);
            more[first] += 1;
            more[behind] -= 1;
        }
    }
    let counts: Vec<i64> = (more.iter())
        .scan(passing, |count, more| {
            *count += more;
            Some(*count)
        })
        .collect();
    let mut sorted = counts.clone();
    sorted.sort_unstable();
    let best = (0..PARTS).min_by_key(|&n| counts[n])?;
    if counts[best] * i64::from(WALL_PART) > sorted[PARTS / 2] {
        return None;
    }
    let mut wall = best as f64 * period / parts as f64;
    let mut reach = period / parts as f64 * 2.0;
    let levels = (values.len().ilog2() / 3).max(1);
    for level in 1..=levels {
        wall = refined(values, wall, reach, period / f64::from(1u32 << level));
        reach /= REFINED;
    }
    Some(wall)
}

/// A wall again, not farther than `reach` from where it was thought to be: the one that fewest steps pass, if there is one every
/// `width`; the middle of where it may be.
fn refined(values: &[f64], wall: f64, reach: f64, width: f64) -> f64 {
    let per_width = 1.0 / width;
    // On which side of the wall that may be near it a value is, is told by where that wall is: cell, or the one before.
    let cell = |x: f64| {
        let t = (x - wall) * per_width;
        let nearest = whole(t + 0.5);
        let off = (t - nearest as f64) * width;
        if off.abs() < reach { (nearest, Some(off)) } else { (nearest - i64::from(off < 0.0), None) }
    };
    // Few values are near one: they are looked for first, several at a time.
    let is_near: Vec<bool> = (values.iter())
        .map(|&x| {
            let t = (x - wall) * per_width;
            let nearest = (t + Cells::WHOLE) - Cells::WHOLE;
            (t - nearest).abs() <= reach * per_width
        })
        .collect();
    // Where the count of steps that pass changes, and by how much.
    let mut changes: Vec<(f64, i32)> = Vec::new();
    for (step, _) in values.windows(2).zip(is_near.windows(2)).filter(|(_, is_near)| is_near[0] | is_near[1]) {
        let (a, b) = (cell(step[0]), cell(step[1]));
        // Left of all walls that may be, both are in their cells.
        let mut now = (a.0, b.0);
        let mut offs = [(a.1, true), (b.1, false)];
        offs.sort_by(|a, b| a.0.unwrap_or(f64::MAX).total_cmp(&b.0.unwrap_or(f64::MAX)));
        for (off, is_first) in offs {
            let Some(off) = off else { continue };
            let passed = i32::from(now.0 != now.1);
            if is_first {
                now.0 -= 1;
            } else {
                now.1 -= 1;
            }
            let change = i32::from(now.0 != now.1) - passed;
            if change != 0 {
                changes.push((off, change));
            }
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut count, mut least, mut from, mut to) = (0, 0, -reach, changes.first().map_or(reach, |change| change.0));
    for (n, (at, change)) in changes.iter().enumerate() {
        count += change;
        if count < least {
            least = count;
            (from, to) = (*at, changes.get(n + 1).map_or(reach, |next| next.0));
        }
    }
    wall + (from + to) / 2.0
}

/// The cells of a node, two levels down, in the order in which rows first come into them.
#[derive(Clone)]
struct Passed {
    seen: u64,
    cells: [u8; 64],
    count: u8,
}

/// A curve by the rows along it: the order of eight, and how it is turned in each of them; and the axes along which the cube
/// begins half of it farther on, if `may_move`: its walls are the same then. `None` where rows follow no curve.
fn learned(rows: impl Iterator<Item = u64>, levels: u32, may_move: bool) -> Option<([u8; OCTANTS], [u8; OCTANTS], u8)> {
    let depth = levels - 2;
    let mut nodes = vec![Passed { seen: 0, cells: [0; 64], count: 0 }; 1 << (3 * depth)];
    for row in rows {
        let (node, cell) = (&mut nodes[(row >> 6) as usize], (row & 63) as u8);
        if node.seen >> cell & 1 == 0 {
            node.seen |= 1 << cell;
            node.cells[usize::from(node.count)] = cell;
            node.count += 1;
        }
    }
    // Those nodes whose octants were all passed, one after the other: the order, and the cells of each.
    let mut passed: Vec<(usize, [u8; OCTANTS], &Passed)> = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let mut order: Vec<u8> = node.cells[..usize::from(node.count)].iter().map(|cell| cell >> 3).collect();
        order.dedup();
        let all = order.iter().fold(0u32, |all, octant| all | 1 << octant);
        if let Ok(order) = <[u8; OCTANTS]>::try_from(order)
            && all == 0xFF
            && passed.len() < NODES_MAX
        {
            passed.push((n, order, node));
        }
    }
    let turn_between = |from: &[u8; OCTANTS], to: &[u8; OCTANTS]| {
        (0..TURNS as u8).find(|&turn| from.iter().zip(to).all(|(&own, &there)| turned(turn, own) == there))
    };
    // Of some the one that most others are turned from.
    let alike = |from: &[u8; OCTANTS]| passed.iter().filter(|(_, to, _)| turn_between(from, to).is_some()).count();
    let tried = passed.iter().step_by(passed.len().div_ceil(FIRST_TRIED).max(1)).map(|(_, order, _)| *order);
    let first = tried.min_by_key(|order| std::cmp::Reverse(alike(order)))?;
    let products = products();
    // When each octant is passed, for each turn.
    let when: Vec<[u8; OCTANTS]> = (0..TURNS as u8)
        .map(|turn| {
            let mut when = [0; OCTANTS];
            (0u8..).zip(&first).for_each(|(at, &own)| when[usize::from(turned(turn, own))] = at);
            when
        })
        .collect();
    let mut votes = [[0u32; TURNS]; OCTANTS];
    let mut turned_nodes: Vec<(usize, u8)> = Vec::new();
    for (n, order, node) in &passed {
        let Some(own) = turn_between(&first, order) else { continue };
        turned_nodes.push((*n, own));
        for (at, octant) in order.iter().enumerate() {
            let of_octant = node.cells[..usize::from(node.count)].iter().filter(|&cell| cell >> 3 == *octant);
            let cells: Vec<u8> = of_octant.map(|cell| cell & 7).collect();
            for turn in 0..TURNS {
                let when = &when[usize::from(products[usize::from(own)][turn])];
                if cells.is_sorted_by_key(|&cell| when[usize::from(cell)]) {
                    votes[at][turn] += cells.len() as u32 - 1;
                }
            }
        }
    }
    let turns = votes.map(|votes| (0..TURNS).max_by_key(|&turn| (votes[turn], TURNS - turn)).unwrap_or(0) as u8);
    // How it begins, so that most nodes are turned as they are.
    let in_node = |half: usize, begin: usize, node: usize| {
        (0..depth).rev().fold(begin, |turn, level| {
            let moved = if level + 1 == depth { half } else { 0 };
            let octant = (node >> (3 * level) & 7) ^ moved;
            usize::from(products[turn][usize::from(turns[usize::from(when[turn][octant])])])
        })
    };
    let right = |half: usize, begin: usize| {
        turned_nodes.iter().filter(|(n, own)| in_node(half, begin, *n) == usize::from(*own)).count()
    };
    let halves = if may_move && depth > 0 { OCTANTS } else { 1 };
    let begins = (0..halves * TURNS).map(|n| (right(n / TURNS, n % TURNS), n));
    let (right, begin) = begins.max_by_key(|&(right, n)| (right, std::cmp::Reverse(n)))?;
    if right * 2 < turned_nodes.len() {
        return None;
    }
    let (half, begin) = (begin / TURNS, begin % TURNS);
    let back = (0..TURNS).find(|&back| products[begin][back] == 0)?;
    let from_begin = |turn: u8| products[usize::from(products[begin][usize::from(turn)])][back];
    Some((first.map(|own| turned(begin as u8, own)), turns.map(from_begin), half as u8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Points anywhere in a box of edge 10 that begins at 0, and how crowded they are.
    fn some(count: usize, seed: u64, crowded: bool) -> [Vec<f64>; 3] {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        [(); 3].map(|()| {
            (0..count)
                .map(|n| match crowded && n % 2 == 0 {
                    true => (next() + next() + next() + next()) * 2.5,
                    false => next() * 10.0,
                })
                .map(|x| f64::from(x as f32))
                .collect()
        })
    }

    /// Hilbert's curve as J. Skilling computes it ("Programming the Hilbert curve", AIP Conference Proceedings 707, 2004), which owes
    /// nothing to turns.
    fn skilling(mut cell: [u64; 3]) -> u64 {
        let mut q = 1 << (LEVELS_MAX - 1);
        while q > 1 {
            let p = q - 1;
            for axis in 0..3 {
                if cell[axis] & q != 0 {
                    cell[0] ^= p;
                } else {
                    let t = (cell[0] ^ cell[axis]) & p;
                    cell[0] ^= t;
                    cell[axis] ^= t;
                }
            }
            q >>= 1;
        }
        (1..3).for_each(|axis| cell[axis] ^= cell[axis - 1]);
        let mut t = 0;
        let mut q = 1 << (LEVELS_MAX - 1);
        while q > 1 {
            if cell[2] & q != 0 {
                t ^= q - 1;
            }
            q >>= 1;
        }
        octants(cell.map(|x| x ^ t))
    }

    /// The order along a curve in a cube that begins there.
    fn sorted(points: &[Vec<f64>; 3], origin: [f64; 3], edge: f64, curve: impl Fn([u64; 3]) -> u64) -> Vec<u32> {
        let cell = |n: u32, axis: usize| {
            let part = (points[axis][n as usize] - origin[axis]) / edge;
            ((part - part.floor()) * (1u64 << LEVELS_MAX) as f64) as u64
        };
        let mut order: Vec<u32> = (0..points[0].len() as u32).collect();
        order.sort_by_key(|&n| (curve([cell(n, 0), cell(n, 1), cell(n, 2)]), n));
        order
    }

    fn at(points: &[Vec<f64>; 3]) -> impl Fn(usize) -> [f64; 3] {
        |n| points.each_ref().map(|values| values[n])
    }

    #[test]
    fn whatever_the_curve_and_wherever_the_box_begins_an_order_along_it_is_told_by_a_few_runs() {
        for (count, crowded) in [(3000, false), (20_000, true)] {
            let points = some(count, 7, crowded);
            let is_one = vec![true; count];
            for origin in [[0.0; 3], [4.27, 3.91, 9.03]] {
                let mirrored = |cell: [u64; 3]| skilling([cell[2], cell[0] ^ ((1 << LEVELS_MAX) - 1), cell[1]]);
                for (curve, name) in
                    [(&octants as &dyn Fn([u64; 3]) -> u64, "Morton"), (&skilling, "Hilbert"), (&mirrored, "mirrored")]
                {
                    // Four ranks, the pieces of the third and the second in turn.
                    let mut order = sorted(&points, origin, 10.0, curve);
                    order.rotate_left(count / 4);
                    order[count / 8..count / 2].rotate_left(count / 5);
                    let found = Curve::find(at(&points), points[0].len(), &order, Some(10.0));
                    let found = found.unwrap_or_else(|| panic!("{name} of {count} from {origin:?} is not found"));
                    let runs = found.runs(at(&points), &is_one, &order).expect("cells");
                    assert!(runs.jumps.len() < 80, "{name} of {count} from {origin:?}: {} runs", runs.jumps.len());
                    assert_eq!(found.order(at(&points), &is_one, &runs), Some(order));
                }
            }
        }
    }

    #[test]
    fn a_cube_around_the_points_is_found_where_they_do_not_go_round() {
        let points = some(8000, 3, true);
        let ends = points.each_ref().map(|x| x.iter().fold((9.0f64, 0.0f64), |(l, h), &x| (l.min(x), h.max(x))));
        let edge = ends.iter().map(|(low, high)| high - low).fold(0.0, f64::max) * 1.001;
        let order = sorted(&points, ends.map(|(low, high)| (low + high) * 0.5 - edge * 0.5), edge, skilling);
        let found = Curve::find(at(&points), points[0].len(), &order, None).expect("it is a curve");
        let runs = found.runs(at(&points), &[true; 8000], &order).expect("cells");
        assert!(runs.jumps.len() < 20, "{} runs", runs.jumps.len());
    }

    #[test]
    fn a_curve_is_learned_where_the_first_cells_are_not_in_its_order() {
        let points = some(20_000, 7, false);
        let mut order = sorted(&points, [0.0; 3], 10.0, skilling);
        // The first two octants of the first node by which it is learned change places.
        let cell = |n: u32| points.each_ref().map(|x| (x[n as usize] / 10.0 * (1u64 << LEVELS_MAX) as f64) as u64);
        let octants_before = |n: u32| skilling(cell(n)) >> (3 * (LEVELS_MAX - 3));
        let [first, two] = [1, 2].map(|end| order.partition_point(|&n| octants_before(n) < end));
        order[..two].rotate_left(first);
        let found = Curve::find(at(&points), 20_000, &order, Some(10.0)).expect("it is a curve");
        let runs = found.runs(at(&points), &[true; 20_000], &order).expect("cells");
        assert!(runs.jumps.len() < 40, "{} runs", runs.jumps.len());
    }

    #[test]
    fn points_in_no_order_follow_no_curve() {
        let points = some(5000, 11, false);
        let order: Vec<u32> = (0..5000).map(|n| n * 1009 % 5000).collect();
        assert_eq!(Curve::find(at(&points), points[0].len(), &order, Some(10.0)), None);
    }

    #[test]
    fn turns_are_all_different_and_make_a_group() {
        let products = products();
        for (a, own) in products.iter().enumerate() {
            assert_eq!((own[0], products[0][a]), (a as u8, a as u8));
            for (b, octant) in (0..TURNS).flat_map(|b| (0..8).map(move |octant| (b, octant))) {
                assert_eq!(turned(own[b], octant), turned(a as u8, turned(b as u8, octant)));
            }
            let mut row = *own;
            row.sort_unstable();
            assert!(row.iter().enumerate().all(|(n, &turn)| n == usize::from(turn)));
        }
    }

    proptest! {
        #[test]
        fn an_order_comes_back_and_any_runs_are_an_order_or_nothing(
            coordinates in prop::collection::vec((-9i32..9, any::<f32>(), prop::sample::select(vec![0.0, 1e300, -1e308])), 1..200),
            holes in prop::collection::vec(any::<bool>(), 200),
            shuffle in any::<u64>(),
            (first, turns) in (Just((0..8).collect::<Vec<u8>>()).prop_shuffle(), prop::array::uniform8(0u8..48)),
            (x, edge, levels) in (any::<f32>(), 1e-3f64..1e3, 0u32..=LEVELS_MAX / 2),
            runs in prop::collection::vec((-40i64..40, -1i64..20), 0..40),
        ) {
            let xs: Vec<f64> = coordinates.iter().map(|c| f64::from(c.0)).collect();
            let ys: Vec<f64> = coordinates.iter().map(|c| if c.1.is_finite() { f64::from(c.1) } else { 0.0 }).collect();
            let zs: Vec<f64> = coordinates.iter().map(|c| c.2).collect();
            let places = xs.len();
            let points = |n: usize| [xs[n], ys[n], zs[n]];
            let is_one = &holes[..places];
            let origin = [if x.is_finite() { f64::from(x) } else { 0.0 }, 0.5, -2.0];
            let curve = Curve { origin, edge, levels: levels * 2, first: first.try_into().expect("eight"), turns };
            let mut written = Vec::new();
            curve.write(&mut written);
            prop_assert_eq!(Curve::read(&mut &written[..], places).is_some(), levels * 2 <= levels_of(places));
            let mut order: Vec<u32> = (0u32..).zip(is_one).filter(|(_, is)| **is).map(|(n, _)| n).collect();
            order.sort_by_key(|&n| (u64::from(n) + 1).wrapping_mul(shuffle | 1));
            let told = curve.runs(points, is_one, &order).expect("cells");
            prop_assert_eq!(curve.order(points, is_one, &told), Some(order.clone()));
            Curve::find(points, places, &order, Some(edge));
            Curve::find(points, places, &order, None);
            let (jumps, lengths) = runs.into_iter().unzip();
            if let Some(found) = curve.order(points, is_one, &Runs { jumps, lengths }) {
                let mut found = found;
                found.sort_unstable();
                order.sort_unstable();
                prop_assert_eq!(found, order);
            }
        }

        #[test]
        fn bytes_are_a_curve_or_none(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            Curve::read(&mut &bytes[..], 1 << 20);
        }
    }
}
