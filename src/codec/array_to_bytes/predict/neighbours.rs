//! Sums over the neighbours of points, of a kernel of the distance: what `kernel.rs` computes with.
//!
//! The points of a leaf of the tree share one list of whatever is near to one of them. All of it is computed with, and counts
//! nothing where it is too far, in sums side by side: there is nothing to decide for each neighbour, and a processor takes as many of
//! them at a time as its registers hold. Where elements are singles, so are the numbers of the sums: twice as many. Every host gets the
//! same, since the order of the list and of the sums is part of the format.

use super::tree::{Node, Tree, square};
#[cfg(target_arch = "x86_64")]
use crate::codec::registers::has_avx2;
use crate::codec::threads;
use std::ops::{Add, Mul, Sub};
use std::sync::{Mutex, PoisonError};

/// Points of a leaf at most; and where sums are made one after the other.
const LEAF: usize = 24;
const LEAF_IN_TURN: usize = 12;
/// Points that are looked at for one leaf at most; beyond it all of its sums are 0.
const LOOKED_AT_MAX: usize = 8192;
/// Leaves that are one piece of work.
const LEAVES: usize = 16;
/// Sums side by side.
const LANES: usize = 16;

/// How much a neighbour counts, by its distance as a part of that where it counts no more. Without what makes the integral 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Cubic = 0,
    Quintic = 1,
    WendlandC2 = 2,
    WendlandC4 = 3,
    WendlandC6 = 4,
}

pub(super) const KERNELS: [Kernel; 5] =
    [Kernel::Cubic, Kernel::Quintic, Kernel::WendlandC2, Kernel::WendlandC4, Kernel::WendlandC6];

/// Numbers with which sums are made: singles or doubles.
trait Real: Copy + Default + PartialOrd + Into<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    fn of(value: f64) -> Self;
    fn root(self) -> Self;

    /// Lists what of a block is near; how many that are. Behind them anything is written. Where there is AVX2, it may be used.
    #[inline(always)]
    fn list<const AVX2: bool>(block: Block<'_, Self>, within: &Within<Self>, to: [&mut [Self; LEAF]; 4]) -> usize {
        list_anywhere(block, within, to)
    }
}

impl Real for f32 {
    #[inline(always)]
    fn list<const AVX2: bool>(block: Block<'_, Self>, within: &Within<Self>, to: [&mut [Self; LEAF]; 4]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if AVX2 {
            #[expect(unsafe_code, reason = "safe where there is AVX2")]
            return unsafe { avx2::list(block, within, to) };
        }
        list_anywhere(block, within, to)
    }

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Kernel {
    /// What a neighbour counts, at this part of the radius.
    #[inline(always)]
    fn at<T: Real>(self, q: T) -> T {
        let above = |limit: f64, q: T| {
            let above = T::of(limit) - q;
            if above > T::default() { above } else { T::default() }
        };
        let times = |factor: f64, x: T| T::of(factor) * x;
        let cube = |x: T| x * x * x;
        let fifth = |x: T| x * x * x * x * x;
        match self {
            Self::Cubic => times(2.0, cube(above(1.0, q))) - times(8.0, cube(above(0.5, q))),
            Self::Quintic => {
                let q = times(3.0, q);
                fifth(above(3.0, q)) - times(6.0, fifth(above(2.0, q))) + times(15.0, fifth(above(1.0, q)))
            }
            Self::WendlandC2 => {
                let p = above(1.0, q);
                p * p * p * p * (T::of(1.0) + times(4.0, q))
            }
            Self::WendlandC4 => {
                let p = cube(above(1.0, q));
                p * p * (T::of(3.0) + times(18.0, q) + times(35.0, q) * q)
            }
            Self::WendlandC6 => {
                let p = above(1.0, q) * above(1.0, q);
                p * p * p * p * (T::of(1.0) + times(8.0, q) + times(25.0, q) * q + times(32.0, cube(q)))
            }
        }
    }

    /// The sum over a list, for one place; distances times `inverse` are parts of the radius.
    #[inline(always)]
    fn total<T: Real>(self, near: &mut Near<T>, place: [T; 3], inverse: T) -> T {
        // A loop for each of them, in which nothing is to be decided.
        match self {
            Self::Cubic => near.total(place, inverse, |q| Self::Cubic.at(q)),
            Self::Quintic => near.total(place, inverse, |q| Self::Quintic.at(q)),
            Self::WendlandC2 => near.total(place, inverse, |q| Self::WendlandC2.at(q)),
            Self::WendlandC4 => near.total(place, inverse, |q| Self::WendlandC4.at(q)),
            Self::WendlandC6 => near.total(place, inverse, |q| Self::WendlandC6.at(q)),
        }
    }

    /// The sum over distances that are known, as parts of the radius, each with its weight.
    pub(super) fn sum(self, parts: &[f64], weights: &[f64]) -> f64 {
        parts.iter().zip(weights).fold(0.0, |sum, (&part, weight)| sum + self.at(part) * weight)
    }
}

/// How sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Of whatever is nearer than the radius, one after the other, in doubles. Read, but no longer written.
    InTurn,
    /// In singles or doubles, as the elements are.
    Singles,
    Doubles,
}

/// Points that are summed over: in a box that goes round where a period is not 0.
pub(super) struct Points<'a> {
    pub places: [&'a [f64]; 3],
    pub periods: [f64; 3],
    /// Which of them there are.
    pub is_one: &'a [bool],
    /// How far others count, and how much each does.
    pub radius: &'a (dyn Fn(usize) -> f64 + Sync),
    pub weight: &'a (dyn Fn(usize) -> f64 + Sync),
}

impl Points<'_> {
    /// For each of them the sum over those around it, 0 where it is no number.
    pub(super) fn sums(&self, kernel: Kernel, way: Way, threads: usize) -> Vec<f64> {
        let tree = Tree::new(self.places, self.is_one, if way == Way::InTurn { LEAF_IN_TURN } else { LEAF });
        let of_each = |of: &dyn Fn(usize) -> f64| tree.order.iter().map(|&n| of(n as usize)).collect();
        let sorted = Sorted {
            places: self.places.map(|axis| of_each(&|n| axis[n])),
            radii: of_each(self.radius),
            weights: of_each(self.weight),
            periods: self.periods,
            tree: &tree,
        };
        let leaves: Vec<&Node> = tree.leaves().map(|(_, leaf)| leaf).collect();
        let pieces: Vec<&[&Node]> = leaves.chunks(LEAVES).collect();
        let (singles, doubles) = match way {
            Way::Singles => (sorted.lists(), Lists::default()),
            Way::InTurn | Way::Doubles => (Lists::default(), sorted.lists()),
        };
        let (of_singles, of_doubles) = (Spare::default(), Spare::default());
        let made = threads::all(pieces.len(), threads, |piece| match way {
            Way::InTurn => of_doubles.with(|around| sorted.sums_in_turn(&doubles, kernel, pieces[piece], around)),
            Way::Singles => of_singles.with(|around| sorted.sums::<f32>(&singles, kernel, pieces[piece], around)),
            Way::Doubles => of_doubles.with(|around| sorted.sums::<f64>(&doubles, kernel, pieces[piece], around)),
        });
        let mut sums = vec![0.0; self.is_one.len()];
        let at = leaves.iter().flat_map(|leaf| tree.order[leaf.from..leaf.to].iter());
        at.zip(made.into_iter().flatten()).for_each(|(&n, sum)| sums[n as usize] = sum);
        sums
    }
}

/// What is around leaves.
#[derive(Default)]
struct Around<T> {
    candidates: Candidates<T>,
    near: Near<T>,
}

/// Memory that one piece of work leaves to the next: no more of it than there are threads.
#[derive(Default)]
struct Spare<T>(Mutex<Vec<Around<T>>>);

impl<T: Real> Spare<T> {
    fn with<R>(&self, work: impl FnOnce(&mut Around<T>) -> R) -> R {
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all().pop();
        let mut around = kept.unwrap_or_default();
        let result = work(&mut around);
        all().push(around);
        result
    }
}

/// Points in the order of their tree.
struct Sorted<'a> {
    tree: &'a Tree,
    places: [Vec<f64>; 3],
    periods: [f64; 3],
    radii: Vec<f64>,
    weights: Vec<f64>,
}

impl Sorted<'_> {
    /// The sums for the points of these leaves.
    fn sums<T: Real>(&self, own: &Lists<T>, kernel: Kernel, leaves: &[&Node], around: &mut Around<T>) -> Vec<f64> {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() && is_x86_feature_detected!("popcnt") {
            #[expect(unsafe_code, reason = "safe where there are AVX2 and more")]
            return match is_x86_feature_detected!("avx512f") {
                true => unsafe { self.sums_avx512::<T>(own, kernel, leaves, around) },
                false => unsafe { self.sums_avx2::<T>(own, kernel, leaves, around) },
            };
        }
        self.sums_anywhere::<T, false>(own, kernel, leaves, around)
    }

    /// The same: the compiler takes twice as many numbers at a time here.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn sums_avx2<T: Real>(&self, own: &Lists<T>, kernel: Kernel, leaves: &[&Node], around: &mut Around<T>) -> Vec<f64> {
        self.sums_anywhere::<T, true>(own, kernel, leaves, around)
    }

    /// And here four times as many.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,popcnt")]
    fn sums_avx512<T: Real>(
        &self,
        own: &Lists<T>,
        kernel: Kernel,
        leaves: &[&Node],
        around: &mut Around<T>,
    ) -> Vec<f64> {
        self.sums_anywhere::<T, true>(own, kernel, leaves, around)
    }

    #[inline(always)]
    fn sums_anywhere<T: Real, const AVX2: bool>(
        &self,
        own: &Lists<T>,
        kernel: Kernel,
        leaves: &[&Node],
        Around { candidates, near }: &mut Around<T>,
    ) -> Vec<f64> {
        let mut sums = Vec::new();
        // Together, unless there is too much around them all.
        let each = if candidates.fill(self, own, leaves, LOOKED_AT_MAX * 4) { leaves.len() } else { 1 };
        for leaves in leaves.chunks(each) {
            let is_whole = each > 1 || candidates.fill(self, own, leaves, LOOKED_AT_MAX);
            for leaf in leaves {
                near.count = 0;
                if is_whole {
                    candidates.list::<AVX2>(own, self.reach(leaf), leaf, near);
                }
                near.fill_up();
                for at in leaf.from..leaf.to {
                    let radius = self.radii[at];
                    let place: [T; 3] = std::array::from_fn(|axis| T::of(self.places[axis][at]));
                    let total: f64 = kernel.total(near, place, T::of(1.0 / radius)).into();
                    let sum = total / (radius * radius * radius);
                    sums.push(if sum.is_finite() { sum } else { 0.0 });
                }
            }
        }
        sums
    }

    /// The same one after the other.
    fn sums_in_turn(
        &self,
        own: &Lists<f64>,
        kernel: Kernel,
        leaves: &[&Node],
        Around { candidates, near }: &mut Around<f64>,
    ) -> Vec<f64> {
        let mut sums = Vec::new();
        for leaf in leaves {
            near.count = 0;
            if candidates.fill(self, own, &[leaf], LOOKED_AT_MAX) {
                candidates.list_all(own, near);
            }
            let [xs, ys, zs, weights] = near.lists.each_ref().map(|list| &list[..near.count]);
            for at in leaf.from..leaf.to {
                let (radius, [x, y, z]) = (self.radii[at], self.places.each_ref().map(|axis| axis[at]));
                let squares = xs.iter().zip(ys).zip(zs).map(|((px, py), pz)| square([px - x, py - y, pz - z]));
                let inside = squares.zip(weights).filter(|(square, _)| *square < radius * radius);
                let total = inside.fold(0.0, |sum, (square, weight)| sum + kernel.at(square.sqrt() / radius) * weight);
                let sum = total / (radius * radius * radius);
                sums.push(if sum.is_finite() { sum } else { 0.0 });
            }
        }
        sums
    }

    /// The same points for sums of these numbers.
    fn lists<T: Real>(&self) -> Lists<T> {
        let [xs, ys, zs] = &self.places;
        let list = |from: &Vec<f64>| from.iter().map(|&x| T::of(x)).chain([T::default(); LEAF]).collect();
        Lists { lists: [list(xs), list(ys), list(zs), list(&self.weights)], count: self.weights.len() }
    }

    /// The largest radius in a leaf.
    fn reach(&self, leaf: &Node) -> f64 {
        self.radii[leaf.from..leaf.to].iter().fold(0.0, |most: f64, &r| most.max(r))
    }
}

/// So many points in the order of their tree: coordinates by axes and weights. Behind them there is a block of anything.
#[derive(Default)]
struct Lists<T> {
    lists: [Vec<T>; 4],
    count: usize,
}

/// The leaves that may be near to some others, in the order of the tree, once for each image of the tree that the periods make: by
/// axes, the first outermost, as it is, behind, before.
#[derive(Default)]
struct Candidates<T> {
    /// Of each leaf the box, and how many points it has.
    low: [Vec<f64>; 3],
    high: [Vec<f64>; 3],
    counts: Vec<usize>,
    /// Where they are: in the lists of all points, or that far behind these in those of images.
    from: Vec<usize>,
    images: Lists<T>,
    points: usize,
    /// Of each leaf the squared distance to one box, and the leaves that are near to it.
    gaps: Vec<f64>,
    close: Vec<usize>,
    open: Vec<u32>,
}

impl<T: Real> Candidates<T> {
    /// Whether all that is around these leaves are no more than so many points, and are here now.
    #[inline(always)]
    fn fill(&mut self, sorted: &Sorted<'_>, own: &Lists<T>, leaves: &[&Node], most: usize) -> bool {
        self.low.iter_mut().chain(&mut self.high).for_each(Vec::clear);
        self.images.lists.iter_mut().for_each(Vec::clear);
        self.counts.clear();
        self.from.clear();
        self.points = 0;
        let low = std::array::from_fn(|axis| leaves.iter().fold(f64::INFINITY, |low, leaf| low.min(leaf.low[axis])));
        let high =
            std::array::from_fn(|axis| leaves.iter().fold(f64::NEG_INFINITY, |high, leaf| high.max(leaf.high[axis])));
        let reach = leaves.iter().map(|leaf| sorted.reach(leaf)).fold(0.0, f64::max);
        let images = sorted.periods.map(|period| [0.0, period, -period]);
        let ways = sorted.periods.map(|period| if period > 0.0 { 3 } else { 1 });
        for &x in &images[0][..ways[0]] {
            for &y in &images[1][..ways[1]] {
                for &z in &images[2][..ways[2]] {
                    self.fill_image(sorted, own.count, (low, high), [x, y, z], reach, most);
                }
            }
        }
        self.points <= most
    }

    #[inline(always)]
    fn fill_image(
        &mut self,
        sorted: &Sorted<'_>,
        all: usize,
        (low, high): ([f64; 3], [f64; 3]),
        shift: [f64; 3],
        reach: f64,
        most: usize,
    ) {
        self.open.clear();
        self.open.push(0);
        while let Some(at) = self.open.pop() {
            let node = &sorted.tree.nodes[at as usize];
            let own_low: [f64; 3] = std::array::from_fn(|axis| node.low[axis] + shift[axis]);
            let own_high: [f64; 3] = std::array::from_fn(|axis| node.high[axis] + shift[axis]);
            let off = |axis: usize| gap((own_low[axis], own_high[axis]), (low[axis], high[axis]));
            if square([off(0), off(1), off(2)]) > reach * reach || self.points > most {
                continue;
            }
            if node.child > 0 {
                self.open.extend([node.child + 1, node.child]); // the first on top
                continue;
            }
            for axis in 0..3 {
                self.low[axis].push(own_low[axis]);
                self.high[axis].push(own_high[axis]);
            }
            self.counts.push(node.to - node.from);
            self.points += node.to - node.from;
            if shift == [0.0; 3] {
                self.from.push(node.from);
                continue;
            }
            self.from.push(all + self.images.lists[0].len());
            let from = sorted.places.iter().chain([&sorted.weights]).zip(shift.into_iter().chain([0.0]));
            for (to, (from, shift)) in self.images.lists.iter_mut().zip(from) {
                let mut block = [T::default(); LEAF];
                block.iter_mut().zip(&from[node.from..node.to]).for_each(|(to, &value)| *to = T::of(value + shift));
                to.extend_from_slice(&block);
            }
        }
    }

    /// A leaf with its points.
    #[inline(always)]
    fn block<'a>(&'a self, own: &'a Lists<T>, n: usize) -> Option<Block<'a, T>> {
        let (lists, from) = match self.from[n].checked_sub(own.count) {
            None => (&own.lists, self.from[n]),
            Some(from) => (&self.images.lists, from),
        };
        let at = |list: &'a Vec<T>| list.get(from..)?.first_chunk();
        let [xs, ys, zs, weights] = lists;
        Some(Block { lists: [at(xs)?, at(ys)?, at(zs)?, at(weights)?], count: self.counts[n] })
    }

    /// Lists all of them.
    fn list_all(&self, own: &Lists<T>, near: &mut Near<T>) {
        near.make_room(self.points);
        for block in (0..self.counts.len()).filter_map(|n| self.block(own, n)) {
            for (to, from) in near.lists.iter_mut().zip(block.lists) {
                to[near.count..][..block.count].copy_from_slice(&from[..block.count]);
            }
            near.count += block.count;
        }
    }

    /// Lists for one of the leaves what is not farther from its box than its largest radius, and in a leaf that is not.
    #[inline(always)]
    fn list<const AVX2: bool>(&mut self, own: &Lists<T>, reach: f64, leaf: &Node, near: &mut Near<T>) {
        self.gaps.clear();
        self.gaps.resize(self.counts.len(), 0.0);
        for axis in 0..3 {
            let own = (leaf.low[axis], leaf.high[axis]);
            for ((square, &low), &high) in self.gaps.iter_mut().zip(&self.low[axis]).zip(&self.high[axis]) {
                let off = gap((low, high), own);
                *square += off * off;
            }
        }
        self.close.resize(self.counts.len(), 0);
        let mut close = 0;
        for (n, &gap) in self.gaps.iter().enumerate() {
            // Written over by the next unless it is near, so that nothing is waited for.
            self.close[close] = n;
            close += usize::from(gap <= reach * reach);
        }
        near.count = 0;
        let looked_at = self.close[..close].iter().map(|&n| self.counts[n]).sum();
        if looked_at > LOOKED_AT_MAX {
            return;
        }
        let limit = T::of(reach) * T::of(reach);
        let within = Within { low: leaf.low.map(T::of), high: leaf.high.map(T::of), limit };
        near.make_room(looked_at);
        for &n in &self.close[..close] {
            let Some(block) = self.block(own, n) else { break }; // there are all
            let Some(to) = near.room() else { break }; // it was made
            near.count += T::list::<AVX2>(block, &within, to);
        }
    }
}

/// The points of a leaf: their coordinates by axes, and their weights. Behind so many there is anything.
#[derive(Clone, Copy)]
struct Block<'a, T> {
    lists: [&'a [T; LEAF]; 4],
    count: usize,
}

/// A box, and the squared distance from it that is near.
struct Within<T> {
    low: [T; 3],
    high: [T; 3],
    limit: T,
}

#[inline(always)]
fn list_anywhere<T: Real>(block: Block<'_, T>, within: &Within<T>, mut to: [&mut [T; LEAF]; 4]) -> usize {
    let [xs, ys, zs, _] = block.lists;
    let off = |place: T, axis: usize| gap((place, place), (within.low[axis], within.high[axis]));
    let mut squares = [T::default(); LEAF];
    for (lane, square) in squares.iter_mut().enumerate() {
        let [x, y, z] = [off(xs[lane], 0), off(ys[lane], 1), off(zs[lane], 2)];
        *square = x * x + y * y + z * z;
    }
    let mut found = 0;
    for (lane, &square) in squares[..block.count].iter().enumerate() {
        // Written over by the next unless it is near, so that nothing is waited for.
        to.iter_mut().zip(block.lists).for_each(|(to, list)| to[found] = list[lane]);
        found += usize::from(square <= within.limit);
    }
    found
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Eight singles at a time: those that are near go to the front by one permutation for each list.

    use super::{Block, LEAF, Within};
    use std::arch::x86_64::{
        __m256, _CMP_LE_OQ, _mm_cvtsi64_si128, _mm256_add_ps, _mm256_cmp_ps, _mm256_cvtepu8_epi32, _mm256_loadu_ps,
        _mm256_max_ps, _mm256_movemask_ps, _mm256_mul_ps, _mm256_permutevar8x32_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm256_sub_ps,
    };

    const LANES: usize = 8;

    /// For each choice of eight lanes their numbers, a byte each, the chosen ones first.
    static CHOSEN: [i64; 256] = chosen();

    const fn chosen() -> [i64; 256] {
        let mut all = [0; 256];
        let mut choice = 0;
        while choice < all.len() {
            let (mut lane, mut at) = (0, 0);
            while lane < LANES {
                if choice >> lane & 1 == 1 {
                    all[choice] |= (lane as i64) << (8 * at);
                    at += 1;
                }
                lane += 1;
            }
            choice += 1;
        }
        all
    }

    /// As [`super::list_anywhere`], and the same.
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn list(block: Block<'_, f32>, within: &Within<f32>, mut to: [&mut [f32; LEAF]; 4]) -> usize {
        let (zero, limit) = (_mm256_setzero_ps(), _mm256_set1_ps(within.limit));
        let mut found = 0;
        for begin in (0..block.count.min(LEAF)).step_by(LANES) {
            let lists: [__m256; 4] = block.lists.map(|list| load(&list[begin..begin + LANES]));
            let square = |place: __m256, axis: usize| {
                let (low, high) = (_mm256_set1_ps(within.low[axis]), _mm256_set1_ps(within.high[axis]));
                let more = _mm256_max_ps(_mm256_sub_ps(place, high), _mm256_sub_ps(low, place));
                let off = _mm256_max_ps(more, zero);
                _mm256_mul_ps(off, off)
            };
            let [xs, ys, zs, _] = lists;
            let sum = _mm256_add_ps(_mm256_add_ps(square(xs, 0), square(ys, 1)), square(zs, 2));
            let near = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(sum, limit)) as usize;
            let choice = near & !(!0 << (block.count - begin).min(LANES));
            let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(CHOSEN[choice]));
            for (to, list) in to.iter_mut().zip(lists) {
                store(&mut to[found..found + LANES], _mm256_permutevar8x32_ps(list, lanes)); // found is at most begin
            }
            found += choice.count_ones() as usize;
        }
        found
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(from: &[f32]) -> __m256 {
        assert!(from.len() >= LANES);
        #[expect(unsafe_code, reason = "there are so many")]
        unsafe {
            _mm256_loadu_ps(from.as_ptr())
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(to: &mut [f32], lanes: __m256) {
        assert!(to.len() >= LANES);
        #[expect(unsafe_code, reason = "there is room for so many")]
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), lanes);
        }
    }
}

/// How far two spans are from each other, 0 if they meet.
#[inline(always)]
fn gap<T: Real>((low, high): (T, T), (other_low, other_high): (T, T)) -> T {
    let (before, behind) = (low - other_high, other_low - high);
    let more = if before > behind { before } else { behind };
    if more > T::default() { more } else { T::default() }
}

/// Whatever may be a neighbour of the points of a leaf: so many places by axes, and weights; behind them there is anything.
#[derive(Default)]
struct Near<T> {
    lists: [Vec<T>; 4],
    count: usize,
    /// How far each of them is from one place, as a part of the radius.
    parts: Vec<T>,
}

impl<T: Real> Near<T> {
    /// For so many, a block more, and what makes up whole lanes.
    fn make_room(&mut self, count: usize) {
        let room = count + LEAF + LANES;
        if self.lists[0].len() < room {
            self.lists.iter_mut().chain([&mut self.parts]).for_each(|list| list.resize(room, T::default()));
        }
    }

    /// That for one block more.
    #[inline(always)]
    fn room(&mut self) -> Option<[&mut [T; LEAF]; 4]> {
        let [xs, ys, zs, weights] = &mut self.lists;
        let from = self.count..;
        Some([
            xs.get_mut(from.clone())?.first_chunk_mut()?,
            ys.get_mut(from.clone())?.first_chunk_mut()?,
            zs.get_mut(from.clone())?.first_chunk_mut()?,
            weights.get_mut(from)?.first_chunk_mut()?,
        ])
    }

    /// As many more as make up whole lanes, which count nothing.
    fn fill_up(&mut self) {
        let whole = self.count.next_multiple_of(LANES);
        self.make_room(whole);
        self.lists.iter_mut().for_each(|list| list[self.count..whole].fill(T::default()));
        self.count = whole;
    }

    #[inline(always)]
    fn total(&mut self, [x, y, z]: [T; 3], inverse: T, of: impl Fn(T) -> T) -> T {
        let [xs, ys, zs, weights] = self.lists.each_ref().map(|list| &list[..self.count]);
        let parts = &mut self.parts[..self.count];
        // In two loops: in one, so much waits for a root that a processor looks no further ahead.
        for (((part, px), py), pz) in parts.iter_mut().zip(xs).zip(ys).zip(zs) {
            let (x, y, z) = (*px - x, *py - y, *pz - z);
            *part = (x * x + y * y + z * z).root() * inverse;
        }
        let mut sums = [T::default(); LANES];
        for (parts, weights) in parts.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                sums[lane] = sums[lane] + of(parts[lane]) * weights[lane];
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                sums[lane] = sums[lane] + sums[lane + half];
            }
            half /= 2;
        }
        sums[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points in a box that goes round along two axes.
    struct Gas {
        places: [Vec<f64>; 3],
        radii: Vec<f64>,
    }

    impl Gas {
        fn new(count: usize, radius: f64) -> Self {
            let mut state = 17u64;
            let mut some = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            let places = [(); 3].map(|()| (0..count).map(|_| some() * 4.0).collect());
            Self { places, radii: (0..count).map(|_| radius * (0.8 + 0.4 * some())).collect() }
        }

        fn sorted<'a>(&'a self, tree: &'a Tree) -> Sorted<'a> {
            let of = |values: &[f64]| tree.order.iter().map(|&n| values[n as usize]).collect();
            Sorted {
                places: self.places.each_ref().map(|axis| of(axis)),
                radii: of(&self.radii),
                weights: tree.order.iter().map(|&n| 1.0 + f64::from(n % 3)).collect(),
                periods: [4.0, 0.0, 4.0],
                tree,
            }
        }

        fn tree(&self) -> Tree {
            Tree::new(self.places.each_ref().map(Vec::as_slice), &vec![true; self.radii.len()], LEAF)
        }
    }

    fn bits(sums: &[f64]) -> Vec<u64> {
        sums.iter().map(|sum| sum.to_bits()).collect()
    }

    fn are_the_same_alone_and_together<T: Real>(some: &Gas) -> Vec<f64> {
        let tree = some.tree();
        let sorted = some.sorted(&tree);
        let own = sorted.lists::<T>();
        let leaves: Vec<&Node> = tree.leaves().map(|(_, leaf)| leaf).collect();
        let mut around = Around::default();
        let of_one = |leaf| sorted.sums_anywhere::<T, false>(&own, Kernel::Cubic, &[leaf], &mut around);
        let alone: Vec<f64> = leaves.iter().copied().flat_map(of_one).collect();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            #[expect(unsafe_code, reason = "there are AVX2 and popcnt")]
            let found = unsafe { sorted.sums_avx2::<T>(&own, Kernel::Cubic, &leaves, &mut around) };
            assert_eq!(bits(&found), bits(&alone), "eight singles at a time");
        }
        for together in [2, LEAVES, leaves.len()] {
            let of_some = |leaves| sorted.sums::<T>(&own, Kernel::Cubic, leaves, &mut around);
            let found: Vec<f64> = leaves.chunks(together).flat_map(of_some).collect();
            assert_eq!(bits(&found), bits(&alone), "{together} leaves at a time");
        }
        alone
    }

    #[test]
    fn sums_are_the_same_with_wide_registers_or_without_and_however_many_leaves_are_summed_over_together() {
        let some = Gas::new(6000, 0.35);
        let singles = are_the_same_alone_and_together::<f32>(&some);
        let doubles = are_the_same_alone_and_together::<f64>(&some);
        for (single, double) in singles.iter().zip(&doubles) {
            assert!((single - double).abs() <= double * 1e-5, "{single} and {double}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_same_of_a_block_is_listed_with_wide_registers_whatever_the_numbers_are() {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("popcnt") {
            eprintln!("skipped: there is no AVX2");
            return;
        }
        let odd = [f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, 1e30, 1e-40, 2.0];
        let mut state = 5u32;
        let mut some = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 28 == 0 { odd[(state >> 8) as usize % odd.len()] } else { (state >> 9) as f32 / 2e6 }
        };
        let mut listed = [0; LEAF + 1];
        for round in 0..4000 {
            let lists: [[f32; LEAF]; 4] = std::array::from_fn(|_| std::array::from_fn(|_| some()));
            let block = Block { lists: lists.each_ref(), count: round % (LEAF + 1) };
            let (low, limit) = ([some(), some(), some()], some());
            let within = Within { low, high: low.map(|low| low + 0.5), limit };
            let (mut own, mut wide) = ([[0f32; LEAF]; 4], [[0f32; LEAF]; 4]);
            let count = list_anywhere(block, &within, own.each_mut());
            #[expect(unsafe_code, reason = "there are AVX2 and popcnt")]
            let found = unsafe { avx2::list(block, &within, wide.each_mut()) };
            assert_eq!(found, count);
            for (own, wide) in own.iter().zip(&wide) {
                let bits = |list: &[f32; LEAF]| list[..count].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(own), bits(wide));
            }
            listed[count] += 1;
        }
        assert!(listed[1..].iter().filter(|&&rounds| rounds > 0).count() > 16, "of {listed:?}");
    }

    #[test]
    fn a_leaf_that_reaches_too_far_has_no_sums_and_takes_none_from_its_fellows() {
        let mut some = Gas::new(6000, 0.35);
        let before = are_the_same_alone_and_together::<f32>(&some);
        some.radii[4711] = 4.0;
        let after = are_the_same_alone_and_together::<f32>(&some);
        let gone = before.iter().zip(&after).filter(|(_, after)| **after == 0.0).count();
        assert!((1..=LEAF).contains(&gone), "{gone} sums are gone");
        let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
        assert_eq!(same + gone, 6000);
    }
}
