//! Finds the space-filling curve that rows follow: where its cells begin, and how the order of octants is rotated in
//! each octant.

use super::super::format::curve::{Cells, Curve, OCTANTS, TURNS, levels_of, products, turned, whole};

/// Levels in addition to the number of levels that evenly distributed points need.
const LEVELS_MORE: u32 = 6;
/// The maximum number of levels from which a curve is learned.
const LEARNED_MAX: u32 = 8;
/// The mean number of rows in a cell of the lowest level from which a curve is learned.
const ROWS_OF_CELL: usize = 4;
/// A curve is learned from at most this many nodes. A node is a cube of 64 cells.
const NODES_MAX: usize = 512;
/// The number of nodes whose order is tried as the base order. All other orders are rotations of the base order.
const FIRST_TRIED: usize = 8;
/// The first search for walls divides half a box into this many parts.
const PARTS: usize = 512;
/// A place is a wall only if at most a third of the median number of steps cross it.
const WALL_DIVISOR: u32 = 3;
/// The factor by which the uncertainty of a wall's place decreases with each search in smaller cells.
const REFINED: f64 = 8.0;
/// The factor by which GADGET-2 and its successors make the cube larger than the region of the points.
const LARGER: f64 = 1.001;

impl Curve {
    /// The curve that the rows follow; `None` if the rows follow no curve. `places` is the number of places of the
    /// table, and `period` is the edge of the periodic box, if there is a periodic box.
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
}

/// The coordinate at which the periodic cube begins along an axis. The cube has two walls: its beginning and its
/// middle. At the right coordinate, the fewest steps from row to row cross these walls.
fn wall(values: &[f64], period: f64) -> Option<f64> {
    let parts = 2 * PARTS;
    let per_period = parts as f64 / period;
    let part = |x: f64| whole(x * per_period) as usize & (parts - 1);
    // Two walls divide the box. The second wall is half a box further than the first wall. `more[p]` says how many
    // more steps from row to row cross a wall if the first wall is at place p, compared with place p - 1.
    let mut more = vec![0i64; PARTS];
    let mut passing = 0i64;
    let mut before = part(*values.first()?);
    for &value in values {
        let (a, b) = (before, part(value));
        before = b;
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        // In the periodic box, a step goes in the shorter of the two directions.
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
    if counts[best] * i64::from(WALL_DIVISOR) > sorted[PARTS / 2] {
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

/// Refines the place of a wall within `reach` of its present place. Walls repeat at the distance `width`. The result
/// is the middle of the places at which the fewest steps cross the walls.
fn refined(values: &[f64], wall: f64, reach: f64, width: f64) -> f64 {
    let per_width = 1.0 / width;
    // The cell of a value, and the distance from the present wall if a wall may be near the value. If the wall is
    // moved beyond the value, the value is in the previous cell.
    let cell = |x: f64| {
        let t = (x - wall) * per_width;
        let nearest = whole(t + 0.5);
        let off = (t - nearest as f64) * width;
        if off.abs() < reach { (nearest, Some(off)) } else { (nearest - i64::from(off < 0.0), None) }
    };
    // The few values that are near a wall are found first, in a loop that the compiler can vectorize.
    let is_near: Vec<bool> = (values.iter())
        .map(|&x| {
            let t = (x - wall) * per_width;
            let nearest = (t + Cells::WHOLE) - Cells::WHOLE;
            (t - nearest).abs() <= reach * per_width
        })
        .collect();
    // The places of the wall at which the number of crossing steps changes, and the change.
    let mut changes: Vec<(f64, i32)> = Vec::new();
    for (step, _) in values.windows(2).zip(is_near.windows(2)).filter(|(_, is_near)| is_near[0] | is_near[1]) {
        let (a, b) = (cell(step[0]), cell(step[1]));
        // With the wall at the lowest possible place, both values are in the cells after the wall.
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

/// The cells two levels below a node, in the order in which rows first enter the cells.
#[derive(Clone)]
struct Passed {
    seen: u64,
    cells: [u8; 64],
    count: u8,
}

/// Learns a curve from the rows: the order of octants, the rotation in each octant, and the axes along which the cube
/// begins half an edge later. A cube that is moved by half an edge has the same walls, so these axes must be searched
/// if `may_move` is true. If `may_move` is false, the third result is 0. Returns `None` if the rows follow no curve.
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
    // The nodes in which rows passed all octants, one octant after the other: index, order of octants, cells.
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
    // Some orders are tried as base order. The best base order has the most other orders as rotations.
    let alike = |from: &[u8; OCTANTS]| passed.iter().filter(|(_, to, _)| turn_between(from, to).is_some()).count();
    let tried = passed.iter().step_by(passed.len().div_ceil(FIRST_TRIED).max(1)).map(|(_, order, _)| *order);
    let first = tried.min_by_key(|order| std::cmp::Reverse(alike(order)))?;
    let products = products();
    // For each rotation, the position of each octant in the order.
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
    // Tries each rotation of the largest cube. The best rotation gives the most nodes their observed rotation.
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
    use super::super::super::format::curve::Runs;
    use super::super::super::format::curve::{LEVELS_MAX, octants};
    use super::*;
    use proptest::prelude::*;

    /// Random points in a box of edge 10 that begins at 0. If `crowded` is true, half of the points are nearer to the
    /// middle of the box.
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

    /// Hilbert's curve by the algorithm of J. Skilling ("Programming the Hilbert curve", AIP Conference Proceedings
    /// 707, 2004), which does not use rotations.
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

    /// The order of points along a curve in a cube that begins at `origin`.
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
                    // The order of the rows is shifted, as if several ranks held pieces of the curve in another
                    // order.
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
        let found = Curve::find(at(&points), points[0].len(), &order, None).expect("a curve is found");
        let runs = found.runs(at(&points), &[true; 8000], &order).expect("cells");
        assert!(runs.jumps.len() < 20, "{} runs", runs.jumps.len());
    }

    #[test]
    fn a_curve_is_learned_where_the_first_cells_are_not_in_its_order() {
        let points = some(20_000, 7, false);
        let mut order = sorted(&points, [0.0; 3], 10.0, skilling);
        // The first two octants of the first node that is used for learning are exchanged.
        let cell = |n: u32| points.each_ref().map(|x| (x[n as usize] / 10.0 * (1u64 << LEVELS_MAX) as f64) as u64);
        let octants_before = |n: u32| skilling(cell(n)) >> (3 * (LEVELS_MAX - 3));
        let [first, two] = [1, 2].map(|end| order.partition_point(|&n| octants_before(n) < end));
        order[..two].rotate_left(first);
        let found = Curve::find(at(&points), 20_000, &order, Some(10.0)).expect("a curve is found");
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
            let first = first.try_into().expect("eight octants");
            let curve = Curve { origin, edge, levels: levels * 2, first, turns };
            let mut written = Vec::new();
            curve.write(&mut written);
            prop_assert_eq!(Curve::read(&mut &written[..], places).is_some(), levels * 2 <= levels_of(places));
            let mut order: Vec<u32> = (0u32..).zip(is_one).filter(|(_, is)| **is).map(|(n, _)| n).collect();
            order.sort_by_key(|&n| (u64::from(n) + 1).wrapping_mul(shuffle | 1));
            let stored = curve.runs(points, is_one, &order).expect("cells");
            prop_assert_eq!(curve.order(points, is_one, &stored), Some(order.clone()));
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
