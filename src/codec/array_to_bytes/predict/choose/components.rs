//! Which extent of an array counts the components of a point: each of them is a column of its own then.
//!
//! Points that lie one after the other (`x y z x y z`) have theirs in the last extent, tensors in the last two. Codes
//! for gases and plasmas write all variables of a grid as one array, the variables first; lattice Boltzmann methods
//! do so with their populations, codes with blocks of cells with the variables of each block. There it is measured
//! whether what lies beside each other along an extent is less alike than along the others.

use super::super::format::group::{Dims, Kind, collapse};
use super::super::format::numbers::noise;
use crate::codec::ArrayShape;

/// Components of a point in the last extent, and in the last two.
pub(crate) const LANES_POINT_MAX: usize = 4;
const LANES_TENSOR_MAX: usize = 9;
/// Components along any other extent.
const LANES_MAX: usize = 27;
/// Elements of a component at least, to be measured.
const ELEMENTS_MIN: usize = 1024;
/// Places that are looked at in a column, and arrays.
const PLACES: usize = 512;
const ARRAYS: usize = 8;
/// Neighbours along the extent must differ by this many bits more, on the mean, than along any other. Variables of
/// gases have 3 to 22 more, modes of one field, which may be either, 2 to 5.
const BITS_MORE: f64 = 3.0;
/// If elements next to each other along the extent predict this many bits of how neighbours differ, they are planes
/// of one grid.
const BITS_TOLD: f64 = 0.5;

/// The extents with all components in the last, and how they lie.
pub(crate) type Taken = (Dims, Kind);

/// For each array of a column, none of which is empty, how it is taken apart, if all of them are in one way.
/// `ordered` gives elements of the column as numbers that are near each other where they are alike.
pub(crate) fn of_column(arrays: &[ArrayShape], ordered: impl Fn(usize) -> i64) -> Option<Vec<Taken>> {
    let in_one_way = |of: &dyn Fn(&ArrayShape) -> Option<Taken>| -> Option<Vec<Taken>> {
        let found: Vec<Taken> = arrays.iter().map(of).collect::<Option<_>>()?;
        found.iter().all(|(_, kind)| *kind == found[0].1).then_some(found)
    };
    if let Some(found) = in_one_way(&tensor).or_else(|| in_one_way(&point)) {
        return Some(found);
    }
    let axis = differing(arrays, ordered)?;
    in_one_way(&|array| along(array, axis))
}

/// Extents that are numbers of this machine and that the elements fill; in no chunks.
fn extents(array: &ArrayShape) -> Option<Vec<usize>> {
    let dims: Vec<usize> = array.dims.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
    let elements = dims.iter().try_fold(1usize, |all, &n| all.checked_mul(n))?;
    (array.chunk.is_empty() && elements as u64 == array.elements && elements > 0).then_some(dims)
}

/// Components in extents at the end.
fn at_the_end(grid: &[usize], lanes: usize) -> Taken {
    let [nz, ny, nx] = collapse(grid);
    ([nz, ny, nx * lanes], Kind::Points { lanes, together: 1 })
}

/// A grid of points. What is a list is found by its own extents, as it may lie in chunks.
fn point(array: &ArrayShape) -> Option<Taken> {
    let dims = extents(array)?;
    let (&lanes, grid) = dims.split_last()?;
    let is_grid = (2..=LANES_POINT_MAX).contains(&lanes) && collapse(grid)[1] > 1;
    is_grid.then(|| at_the_end(grid, lanes))
}

/// A list or grid of tensors, one more extent being as short as those of points.
fn tensor(array: &ArrayShape) -> Option<Taken> {
    let dims = extents(array)?;
    let (grid, &[rows, columns]) = dims.split_last_chunk::<2>()?;
    let lanes = rows.checked_mul(columns).filter(|lanes| rows > 1 && columns > 1 && *lanes <= LANES_TENSOR_MAX)?;
    let places: usize = grid.iter().product();
    match collapse(grid) {
        _ if places <= lanes => None,
        [1, 1, _] => Some(([1, places, lanes], Kind::Lanes(lanes))),
        _ => Some(at_the_end(grid, lanes)),
    }
}

/// Components along another extent, counted from the first.
fn along(array: &ArrayShape, axis: usize) -> Option<Taken> {
    let dims = extents(array)?;
    let lanes = *dims.get(axis)?;
    let grid = [&dims[..axis], &dims[axis + 1..]].concat();
    let [nz, ny, nx] = collapse(&grid);
    // Behind others only grids: elements of a mesh with a list of places each lost by it.
    let is_first = dims[..axis].iter().all(|&n| n == 1);
    let are_grids = dims[axis + 1..].iter().filter(|&&n| n > 1).count() > 1;
    let together = if is_first { 0 } else { dims[axis + 1..].iter().product() };
    let is_worth_it = (2..=LANES_MAX).contains(&lanes) && nz * ny * nx >= ELEMENTS_MIN && (is_first || are_grids);
    is_worth_it.then_some(([nz, ny, nx * lanes], Kind::Points { lanes, together }))
}

/// The extent along which elements differ by more than along any other, and are not told by those beside them even
/// where it is known how these differ from their own neighbours, as levels of an atmosphere are.
fn differing(arrays: &[ArrayShape], ordered: impl Fn(usize) -> i64) -> Option<usize> {
    let dims: Vec<Vec<usize>> = arrays.iter().map(extents).collect::<Option<_>>()?;
    let rank = dims.first()?.len();
    let may_be = |axis: &usize| arrays.iter().all(|array| along(array, *axis).is_some());
    let candidates: Vec<usize> = (0..rank.saturating_sub(1)).filter(may_be).collect();
    if candidates.is_empty() || dims.iter().any(|dims| dims.len() != rank) {
        return None;
    }
    let places = places(&dims);
    let apart = |a: usize, b: usize| ordered(a).wrapping_sub(ordered(b));
    // Of a place, steps to the next ones along some axes, if it has those.
    let steps = |(begin, at, dims): &(usize, usize, &[usize]), axes: &[usize]| -> Option<(usize, Vec<usize>)> {
        let stride = |axis: usize| dims[axis + 1..].iter().product::<usize>();
        let has_next = axes.iter().all(|&axis| at / stride(axis) % dims[axis] + 1 < dims[axis]);
        has_next.then(|| (begin.saturating_add(*at), axes.iter().map(|&axis| stride(axis)).collect()))
    };
    let along = |axis: usize| {
        mean(
            places
                .iter()
                .filter_map(|place| steps(place, &[axis]))
                .map(|(at, step)| apart(at.saturating_add(step[0]), at)),
        )
    };
    let all: Vec<f64> = (0..rank).map(along).collect();
    let best = candidates.into_iter().max_by(|&a, &b| all[a].total_cmp(&all[b]))?;
    let others = || (0..rank).filter(|&axis| axis != best && all[axis] > 0.0);
    let most = others().map(|axis| all[axis]).max_by(f64::total_cmp)?;
    let near = others().min_by(|&a, &b| all[a].total_cmp(&all[b]))?;
    let crosswise = places.iter().filter_map(|place| steps(place, &[best, near])).map(|(at, step)| {
        let [beside, next] = [0, 1].map(|n| at.saturating_add(step[n]));
        apart(beside.saturating_add(step[1]), beside).wrapping_sub(apart(next, at))
    });
    (all[best] >= most + BITS_MORE && mean(crosswise) + BITS_TOLD >= all[near]).then_some(best)
}

/// Places that are looked at: where their array begins in the column, where they are in it, its extents.
fn places(dims: &[Vec<usize>]) -> Vec<(usize, usize, &[usize])> {
    let every = dims.len().div_ceil(ARRAYS);
    let each = PLACES.div_ceil(dims.len().clamp(1, ARRAYS));
    let (mut begin, mut found) = (0usize, Vec::new());
    for (nth, dims) in dims.iter().enumerate() {
        let elements: usize = dims.iter().product();
        for n in (nth * each..).take(if nth % every == 0 { each } else { 0 }) {
            let at = (u128::from(noise(n as u32)) * elements as u128) >> 32;
            found.push((begin, at as usize, &dims[..]));
        }
        begin = begin.saturating_add(elements);
    }
    found
}

/// Bits of a difference, on the mean; 0 of none.
fn mean(apart: impl Iterator<Item = i64>) -> f64 {
    let bits = |apart: i64| f64::from(64 - apart.unsigned_abs().leading_zeros());
    let (sum, count) = apart.fold((0.0, 0.0), |(sum, count), apart| (sum + bits(apart), count + 1.0));
    sum / f64::max(count, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dims: &[u64]) -> ArrayShape {
        ArrayShape { elements: dims.iter().product(), dims: dims.to_vec(), ..ArrayShape::default() }
    }

    #[test]
    fn vectors_and_tensors_at_the_end_of_a_grid_are_found_by_their_extents_alone() {
        let of = |dims: &[u64]| of_column(&[array(dims)], |_| 0);
        let points = |lanes| Kind::Points { lanes, together: 1 };
        assert_eq!(of(&[8, 9, 3]), Some(vec![([1, 8, 27], points(3))]));
        assert_eq!(of(&[8, 9, 2, 2]), Some(vec![([1, 8, 36], points(4))]));
        assert_eq!(of(&[100, 3, 3]), Some(vec![([1, 100, 9], Kind::Lanes(9))]));
        assert_eq!(of(&[8, 9]), None);
    }

    #[test]
    fn variables_that_come_first_are_told_from_planes_of_one_grid() {
        let (lanes, side) = (5usize, 40usize);
        let shape = [array(&[lanes as u64, side as u64, side as u64])];
        let at = |n: usize| (n / (side * side), n / side % side, n % side);
        // Each variable has a size of its own, and its elements have nothing to do with those of the others.
        let variables = |n: usize| {
            let (lane, ..) = at(n);
            (lane * lane) as i64 * 1_000_000_000_000 + i64::from(noise(n as u32) % 100_000)
        };
        let together = Kind::Points { lanes, together: 0 };
        assert_eq!(of_column(&shape, variables), Some(vec![([1, side, side * lanes], together)]));
        // Planes are as like each other as rows are.
        let planes = |n: usize| {
            let (plane, y, x) = at(n);
            ((plane + y + x) * 1000) as i64
        };
        assert_eq!(of_column(&shape, planes), None);
    }
}
