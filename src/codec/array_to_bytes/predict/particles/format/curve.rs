//! The order of points along a space-filling curve.
//!
//! Simulation codes cut such a curve into one piece for each rank, and keep particles in the order of the curve (M.
//! S. Warren, J. K. Salmon, "A parallel hashed oct-tree N-body algorithm", Supercomputing 1993; V. Springel et al.,
//! "Simulating cosmic structure formation with the GADGET-4 code", Monthly Notices of the RAS 506, 2021). A cube is
//! cut into eight octants, and the curve passes the octants in some order. Each octant is cut in the same way, and
//! its order is the same order rotated or mirrored. If positions are written directly after sorting, the positions
//! determine the order of the particles on each rank, but not which piece of the curve each rank has.
//!
//! The encoder learns the curve from the points. The rotation in each octant is the same at all levels, both for the
//! many forms of Hilbert's curve and for Morton's curve, which has no rotation. The encoder also learns where the
//! cells begin: few steps from row to row cross a wall between large cells. Therefore the order is found even if a
//! code moves the box before each sorting.

use crate::codec::registers::compiled_twice;

/// The maximum number of levels, an even number. A cube has at most 2^`LEVELS_MAX` cells along each axis.
pub(crate) const LEVELS_MAX: u32 = 20;
/// The number of octants of a cube.
pub(crate) const OCTANTS: usize = 8;
/// The number of ways to rotate and mirror a cube.
pub(crate) const TURNS: usize = 48;
/// The number of points whose keys are computed together.
const TOGETHER: usize = 64;

/// A curve, and the cube that it fills. The cube repeats in all directions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// The corner of the cube with the smallest coordinates.
    pub origin: [f64; 3],
    /// The length of an edge of the cube.
    pub edge: f64,
    /// The number of levels: how many times the cube is cut. This number is always even.
    pub levels: u32,
    /// The order in which the curve passes the octants.
    pub first: [u8; OCTANTS],
    /// For each octant, in the order of `first`, the rotation of the order inside this octant.
    pub turns: [u8; OCTANTS],
}

/// The part of an order that a curve does not determine: runs of rows along the curve. For each run, `jumps` holds
/// the distance of the run's beginning from the expected place, and `lengths` holds the number of rows minus one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub jumps: Vec<i64>,
    pub lengths: Vec<i64>,
}

const PERMUTED: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Rotates an octant. Rotation number `8 p + f` permutes the axes by the p-th entry of [`PERMUTED`], then mirrors the
/// axes whose bit is set in `f`. The first axis has the highest bit.
pub(crate) fn turned(turn: u8, octant: u8) -> u8 {
    let axes = PERMUTED[usize::from(turn / 8) % 6];
    let moved = (0..3).fold(0, |moved, axis| moved | (octant >> (2 - axes[axis]) & 1) << (2 - axis));
    moved ^ (turn % 8)
}

/// The table of products of rotations. Entry `[a][b]` is the rotation that applies `b` first, then `a`.
pub(crate) fn products() -> Vec<[u8; TURNS]> {
    let both = |a: usize, b: usize| {
        let axes = PERMUTED[a].map(|axis| PERMUTED[b][axis]);
        PERMUTED.iter().position(|one| *one == axes).unwrap_or(0) as u8
    };
    let axes: [[u8; 6]; 6] = std::array::from_fn(|a| std::array::from_fn(|b| both(a, b)));
    let product = |a: usize, b: usize| axes[a / 8][b / 8] * 8 + turned(a as u8, b as u8 % 8);
    (0..TURNS).map(|a| std::array::from_fn(|b| product(a, b))).collect()
}

/// The octants of a place at all levels, three bits for each level. The largest octant has the highest bits.
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

/// The largest integer that is not above `x`. 0 if `x` is NaN, or so large that doubles have no fraction.
#[inline(always)]
pub(crate) fn whole(x: f64) -> i64 {
    const EXACT: f64 = (1u64 << 52) as f64;
    let x = if x.abs() < EXACT { x } else { 0.0 };
    let n = x as i64;
    n - i64::from(n as f64 > x)
}

/// Space, filled with copies of the curve's cube. Each copy is cut into the same cells.
pub(crate) struct Cells {
    pub origin: [f64; 3],
    pub for_each: f64,
    pub mask: u64,
}

impl Cells {
    /// The number of fraction bits that are dropped. Because these bits are dropped, a place on a wall belongs to the
    /// cell after the wall.
    pub(crate) const FINER: u32 = 10;
    /// Adding this constant gives a double between 2^52 and 2^53, whose lowest bits are an integer.
    pub(crate) const WHOLE: f64 = (3u64 << 51) as f64;

    /// Returns `None` if the number of cells per unit of length is not a finite positive number.
    pub(crate) fn new(origin: [f64; 3], edge: f64, levels: u32) -> Option<Self> {
        let for_each = (1u64 << (levels + Self::FINER)) as f64 / edge;
        let is_valid = for_each.is_normal() && for_each > 0.0 && origin.iter().all(|x| x.is_finite());
        is_valid.then_some(Self { origin, for_each, mask: (1 << levels) - 1 })
    }

    /// The octants of a place. The coordinates must be finite.
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

    /// The places that have a point, in the order of the curve. Places in one cell are in increasing order.
    fn along(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool]) -> Option<Vec<u32>> {
        let place_bits = u64::BITS - (is_one.len() as u64).leading_zeros();
        let mut numbers = self.numbers(point, is_one, place_bits)?;
        sort_by_top(&mut numbers, place_bits, 3 * self.levels);
        Some(numbers.into_iter().map(|number| (number & ((1 << place_bits) - 1)) as u32).collect())
    }

    compiled_twice! {
        /// For each place that has a point: the position along the curve in the high bits, and the place in the
        /// lowest `place_bits` bits.
        fn numbers, numbers_avx2 = numbers_here(
            &self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32,
        ) -> Option<Vec<u64>>
    }

    #[inline(always)]
    fn numbers_here(&self, point: impl Fn(usize) -> [f64; 3], is_one: &[bool], place_bits: u32) -> Option<Vec<u64>> {
        let (cells, steps) = (self.cells()?, self.steps());
        let mut numbers: Vec<u64> = Vec::with_capacity(is_one.len());
        // Each level needs the rotation of the level above, so a processor waits between the levels of one point.
        // Therefore several points are computed at the same time.
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

    /// A cube has 64 octants of octants (cells). For each rotation of the cube and each of these 64 cells: the
    /// position of the cell along the curve (0 to 63), plus 64 times the rotation of the cell.
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

    /// The runs that, together with the curve, determine `order`. Returns `None` if the cube has no valid cells.
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

    /// The inverse of [`Curve::runs`]. Returns `None` if the runs give no order of all points.
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
                next += rows as u32; // the value is at most the number of points
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

    /// The inverse of [`Curve::write`], for a curve through `places` places.
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

/// Sorts by the `bits` bits from bit `from` on, digit by digit, the lowest digit first. The sort is stable.
fn sort_by_top(numbers: &mut Vec<u64>, from: u32, bits: u32) {
    const DIGIT_MAX: u32 = 12;
    let digit_bits = bits.div_ceil(bits.div_ceil(DIGIT_MAX).max(1)).max(1);
    let mut sorted = vec![0; numbers.len()];
    for shift in (0..bits).step_by(digit_bits as usize) {
        let digit = |number: u64| (number >> (from + shift)) as usize & ((1 << digit_bits.min(bits - shift)) - 1);
        let mut next = [0u32; 1 << DIGIT_MAX]; // the sum is below 2^30
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

/// The set of points that are not taken yet.
struct Left {
    /// Leads from each point to the next point that is not taken. The entry of a point that is not taken is the point
    /// itself. The entry of a taken point is a later point, which is not beyond the next point that is not taken. The
    /// entry of the end is the end.
    next: Vec<u32>,
}

impl Left {
    fn new(count: usize) -> Self {
        Self { next: (0..=count as u32).collect() } // the value is below 2^30
    }

    /// The first point from `n` on that is not taken, or the end.
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

    /// Takes `count` points from `from` on, if none of these points is taken yet. Returns whether the points were
    /// taken.
    fn take_run(&mut self, from: u32, count: usize) -> bool {
        let end = self.next.len() - 1;
        let Some(own) = self.next[..end].get_mut(from as usize..).and_then(|own| own.get_mut(..count)) else {
            return false;
        };
        let is_left = own.iter().zip(from..).fold(true, |all, (&next, n)| all & (next == n));
        if is_left {
            own.fill(from + count as u32); // the value is at most the number of points
        }
        is_left
    }
}
