//! The order of points, told by a curve that fills space and by where its cells begin.
//!
//! Codes spread particles over ranks in pieces of such a curve, and keep them in its order (M. S. Warren, J. K.
//! Salmon, "A parallel hashed oct-tree N-body algorithm", Supercomputing 1993; V. Springel et al., "Simulating cosmic
//! structure formation with the GADGET-4 code", Monthly Notices of the RAS 506, 2021). A cube is cut into eight, the
//! eight are passed in some order, and so is each of them, with that order turned or mirrored. Where positions were
//! written right after, they tell all of the order but which piece of the curve each rank has.
//!
//! Which curve it was is learned from the points: how the order of eight is turned in each of them is the same
//! everywhere, be it Hilbert's curve in one of its many forms, or Morton's, which is not turned. Where the cells
//! begin is told by the steps from row to row: few pass a wall between large cells. So it does not matter that some
//! codes move the box before each sorting.

use crate::codec::registers::compiled_twice;

/// Cells along each axis at most: 2 to the power of this, an even number; and how many more levels there are than so
/// many points need where none is crowded.
pub(crate) const LEVELS_MAX: u32 = 20;
/// Octants, and how a cube can be turned and mirrored.
pub(crate) const OCTANTS: usize = 8;
pub(crate) const TURNS: usize = 48;
/// Points whose keys are made together.
const TOGETHER: usize = 64;

/// A curve, and the cube that it fills, again and again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Where the cube begins, and its edge.
    pub origin: [f64; 3],
    pub edge: f64,
    /// How often it is cut: the number of levels, an even one.
    pub levels: u32,
    /// The order in which octants are passed; of each of them, in that order, how the order in it is turned.
    pub first: [u8; OCTANTS],
    pub turns: [u8; OCTANTS],
}

/// What a curve does not tell: for each run of rows that follow it how far from where it would be next it begins, and
/// how many rows it has more than one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub jumps: Vec<i64>,
    pub lengths: Vec<i64>,
}

const PERMUTED: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// An octant, turned: number 8 p + f takes axes as the p-th of [`PERMUTED`] says, then mirrors those with a bit in
/// `f`. The first axis has the highest bit.
pub(crate) fn turned(turn: u8, octant: u8) -> u8 {
    let axes = PERMUTED[usize::from(turn / 8) % 6];
    let moved = (0..3).fold(0, |moved, axis| moved | (octant >> (2 - axes[axis]) & 1) << (2 - axis));
    moved ^ (turn % 8)
}

/// For all ways to turn: the one that is first `b`, then `a`, at `[a][b]`.
pub(crate) fn products() -> Vec<[u8; TURNS]> {
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
pub(crate) fn octants(cell: [u64; 3]) -> u64 {
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
pub(crate) fn whole(x: f64) -> i64 {
    const EXACT: f64 = (1u64 << 52) as f64;
    let x = if x.abs() < EXACT { x } else { 0.0 };
    let n = x as i64;
    n - i64::from(n as f64 > x)
}

/// The cubes that a space is full of, cut into cells.
pub(crate) struct Cells {
    pub origin: [f64; 3],
    pub for_each: f64,
    pub mask: u64,
}

impl Cells {
    /// Bits behind the point that are rounded away, so that what is on a wall is behind it.
    pub(crate) const FINER: u32 = 10;
    /// Of a double between 2^52 and 2^53 the lowest bits are those of a whole number.
    pub(crate) const WHOLE: f64 = (3u64 << 51) as f64;

    /// `None` where the number of cells per unit of length is not a finite positive number.
    pub(crate) fn new(origin: [f64; 3], edge: f64, levels: u32) -> Option<Self> {
        let for_each = (1u64 << (levels + Self::FINER)) as f64 / edge;
        let is_valid = for_each.is_normal() && for_each > 0.0 && origin.iter().all(|x| x.is_finite());
        is_valid.then_some(Self { origin, for_each, mask: (1 << levels) - 1 })
    }

    /// Of a place whose coordinates are finite.
    #[inline(always)]
    pub(crate) fn octants(&self, place: [f64; 3]) -> u64 {
        let cell = |axis: usize| {
            let whole = (place[axis] - self.origin[axis]) * self.for_each + Self::WHOLE;
            whole.to_bits() >> Self::FINER & self.mask
        };
        octants([cell(0), cell(1), cell(2)])
    }
}

impl Curve {
    pub(crate) fn cells(&self) -> Option<Cells> {
        Cells::new(self.origin, self.edge, self.levels)
    }

    /// The places of those points that there are, as they follow the curve; in one cell, rising.
    fn along(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool]) -> Option<Vec<u32>> {
        let place_bits = u64::BITS - (is_one.len() as u64).leading_zeros();
        let mut numbers = self.numbers(point, is_one, place_bits)?;
        sort_by_top(&mut numbers, place_bits, 3 * self.levels);
        Some(numbers.into_iter().map(|number| (number & ((1 << place_bits) - 1)) as u32).collect())
    }

    compiled_twice! {
        /// For each of those points, when the curve passes it, and in the lowest `place_bits` bits its place.
        fn numbers, numbers_avx2 = numbers_here(
            &self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32,
        ) -> Option<Vec<u64>>
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

    /// Reads what [`Curve::write`] wrote, for this number of places.
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

/// Sorts by `bits` bits, the lowest of which is bit `from`: digit by digit, the lowest digit first. The sort is
/// stable.
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

/// The most levels for a number of places: three bits for each level and the number of the place must fit in 64 bits.
pub(crate) fn levels_of(places: usize) -> u32 {
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

    /// Takes `count` points from `from` on, if all of them are left.
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
