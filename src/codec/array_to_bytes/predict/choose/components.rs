//! Finds the dimension of an array along which the components of points lie. Each component then becomes a column.
//!
//! Contiguous points (`x y z x y z`) have their components in the last dimension. Tensors have their components in
//! the last two dimensions. Codes for gases and plasmas write all variables of a grid as one array, with the
//! variables in the first dimension. Lattice Boltzmann codes write their populations in the same order, and codes
//! with blocks of cells write the variables of each block in the same order. For such arrays, the encoder measures
//! whether neighbours along one dimension differ more than neighbours along the other dimensions.

use super::super::format::group::{Dims, Kind, collapse};
use super::super::format::numbers::noise;
use crate::codec::ArrayShape;

/// The maximum number of components in the last dimension.
pub(crate) const LANES_POINT_MAX: usize = 4;
/// The maximum number of components in the last two dimensions.
const LANES_TENSOR_MAX: usize = 9;
/// The maximum number of components along any other dimension.
const LANES_MAX: usize = 27;
/// Only components with at least this many elements are measured.
const ELEMENTS_MIN: usize = 1024;
/// The number of places of a column that are sampled.
const PLACES: usize = 512;
/// The maximum number of arrays of a column that are sampled.
const ARRAYS: usize = 8;
/// Neighbours along the dimension of components must differ by this many bits more, on average, than neighbours along
/// any other dimension. For variables of gases, the difference is 3 to 22 bits. For modes of one field, which may or
/// may not be components, the difference is 2 to 5 bits.
const BITS_MORE: f64 = 3.0;
/// If neighbours along this dimension predict this many bits of the differences between other neighbours, the
/// dimension counts planes of one grid, not components.
const CROSSWISE_BITS: f64 = 0.5;

/// The extents of an array, where the last extent includes the components of each place, and the positions of the
/// components in the array.
pub(crate) type Taken = (Dims, Kind);

/// For each array of a column, how the array is split into components, if all arrays are split in the same way. No
/// array may be empty. `ordered` gives the ordered integer of an element of the column.
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

/// The extents of an array without chunks. `None` if the extents do not fit in `usize` or do not match the number of
/// elements.
fn extents(array: &ArrayShape) -> Option<Vec<usize>> {
    let dims: Vec<usize> = array.dims.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>()?;
    let elements = dims.iter().try_fold(1usize, |all, &n| all.checked_mul(n))?;
    (array.chunk.is_empty() && elements as u64 == array.elements && elements > 0).then_some(dims)
}

/// A grid whose components are in the last dimensions of the array.
fn at_the_end(grid: &[usize], lanes: usize) -> Taken {
    let [nz, ny, nx] = collapse(grid);
    ([nz, ny, nx * lanes], Kind::Points { lanes, together: 1 })
}

/// A grid of points. `groups.rs` finds lists of points, because lists may be stored in chunks.
fn point(array: &ArrayShape) -> Option<Taken> {
    let dims = extents(array)?;
    let (&lanes, grid) = dims.split_last()?;
    let is_grid = (2..=LANES_POINT_MAX).contains(&lanes) && collapse(grid)[1] > 1;
    is_grid.then(|| at_the_end(grid, lanes))
}

/// A list or grid of tensors: the last two extents are short.
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

/// A grid whose components lie along dimension number `axis`, counted from the first dimension.
fn along(array: &ArrayShape, axis: usize) -> Option<Taken> {
    let dims = extents(array)?;
    let lanes = *dims.get(axis)?;
    let grid = [&dims[..axis], &dims[axis + 1..]].concat();
    let [nz, ny, nx] = collapse(&grid);
    // If this dimension is not the first dimension, the later dimensions must form a grid. Arrays of meshes that list
    // places for each element took more bytes when the arrays were split.
    let is_first = dims[..axis].iter().all(|&n| n == 1);
    let are_grids = dims[axis + 1..].iter().filter(|&&n| n > 1).count() > 1;
    let together = if is_first { 0 } else { dims[axis + 1..].iter().product() };
    let is_worth_it = (2..=LANES_MAX).contains(&lanes) && nz * ny * nx >= ELEMENTS_MIN && (is_first || are_grids);
    is_worth_it.then_some(([nz, ny, nx * lanes], Kind::Points { lanes, together }))
}

/// The dimension along which elements differ more than along any other dimension, if these elements do not predict
/// each other. The levels of an atmosphere are not components: elements differ between levels, but the differences to
/// neighbours in a level are similar in all levels.
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
    // The steps from a place to the next places along some axes; `None` if one of these places is outside the array.
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
    (all[best] >= most + BITS_MORE && mean(crosswise) + CROSSWISE_BITS >= all[near]).then_some(best)
}

/// The sampled places. Each item is the first element of an array, the position of the place in the array, and the
/// extents of the array.
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

/// The mean number of bits of differences; 0 if there are no differences.
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
        // Each variable has a different magnitude, and the elements of different variables are independent.
        let variables = |n: usize| {
            let (lane, ..) = at(n);
            (lane * lane) as i64 * 1_000_000_000_000 + i64::from(noise(n as u32) % 100_000)
        };
        let together = Kind::Points { lanes, together: 0 };
        assert_eq!(of_column(&shape, variables), Some(vec![([1, side, side * lanes], together)]));
        // Neighbouring planes differ as little as neighbouring rows.
        let planes = |n: usize| {
            let (plane, y, x) = at(n);
            ((plane + y + x) * 1000) as i64
        };
        assert_eq!(of_column(&shape, planes), None);
    }
}
