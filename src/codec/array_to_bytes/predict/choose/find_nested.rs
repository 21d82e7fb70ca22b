//! Finds nested grids: arrays of a column that are finer grids of parts of other arrays.

use super::super::format::layout::{Array, Column, Layout};
use super::super::format::nested::{Link, block, coarse_dims, element, offsets};
use super::super::format::numbers::Elements;
use super::alike::MIX;
use super::known::Twins;
use super::limits::FITTED_MIN;
use std::collections::HashMap;

/// The maximum number of means of fine cells that are looked up among all values, for each array.
const PROBES: usize = 16;
/// A look-up with more hits than this number is ignored.
const HITS_MAX: usize = 4;
/// The number of low bits in which a mean may differ from the coarse cell: for doubles, and for floats.
const LOOSE_BITS: [u32; 2] = [20, 5];

/// The coordinates of the n-th cell of a grid.
fn place(dims: [usize; 3], n: usize) -> [usize; 3] {
    [n / (dims[1] * dims[2]), n / dims[2] % dims[1], n % dims[2]]
}

/// The places of wanted keys among many keys.
struct Hits(HashMap<u64, Vec<u32>>);

impl Hits {
    /// Looks for the first `HITS_MAX + 1` places of each wanted key. Most keys are not wanted, so a table with a bit
    /// for each hash sorts them out before they are looked up.
    fn find(wanted: impl Iterator<Item = u64>, keys: impl Iterator<Item = u64>) -> Self {
        let mut places: HashMap<u64, Vec<u32>> = wanted.map(|key| (key, Vec::new())).collect();
        let bits = (places.len() * 16).next_power_of_two().max(64);
        let bit_of = |key: u64| (key.wrapping_mul(MIX[0]) >> 32) as usize & (bits - 1);
        let mut is_some = vec![0u64; bits / 64];
        places.keys().map(|&key| bit_of(key)).for_each(|bit| is_some[bit / 64] |= 1 << (bit % 64));
        for (n, key) in (0u32..).zip(keys) {
            let bit = bit_of(key);
            if is_some[bit / 64] >> (bit % 64) & 1 == 1
                && let Some(found) = places.get_mut(&key).filter(|found| found.len() <= HITS_MAX)
            {
                found.push(n);
            }
        }
        Self(places)
    }

    fn of(&self, key: u64) -> &[u32] {
        self.0.get(&key).map_or(&[], Vec::as_slice)
    }
}

/// Finds the links between finer and coarser arrays of a column, from its values.
pub(crate) fn find(column: &Column, values: &[f64], is_single: bool) -> Vec<Link> {
    let arrays = &column.arrays;
    if arrays.len() < 2 || arrays.iter().all(|array| coarse_dims(array.dims).is_none()) {
        return Vec::new();
    }
    let own = &values[column.base..column.base + column.elements];
    // A double has 29 more bits of mantissa than a float.
    let loose = if is_single { LOOSE_BITS[1] + 29 } else { LOOSE_BITS[0] };
    let key = |value: f64| value.to_bits() >> loose;
    let fine_arrays = || arrays.iter().enumerate().filter_map(|(n, array)| Some((n, array, coarse_dims(array.dims)?)));
    let mean = |array: &Array, at: [usize; 3]| {
        let first = element(array, [0, 1, 2].map(|d| at[d] * block(array.dims)[d]));
        let (mut sum, mut count) = (0.0, 0.0);
        for offset in offsets(array.dims, block(array.dims)) {
            (sum, count) = (sum + own[first + offset], count + 1.0);
        }
        sum / count
    };
    // Each place with the key of a mean, and the keys next to this key.
    let probes = |array: &Array, coarse: [usize; 3]| -> Vec<([usize; 3], [u64; 3])> {
        let total: usize = coarse.iter().product();
        let places = (0..PROBES.min(total)).map(|probe| place(coarse, probe * total / PROBES.min(total)));
        let means = places.map(|at| (at, mean(array, at))).filter(|(_, mean)| *mean != 0.0);
        means.map(|(at, mean)| (at, [key(mean).wrapping_sub(1), key(mean), key(mean) + 1])).collect()
    };
    let wanted = fine_arrays().flat_map(|(_, array, coarse)| probes(array, coarse)).flat_map(|(_, keys)| keys);
    let hits = Hits::find(wanted, own.iter().map(|&value| key(value)));
    let number = |start: usize| arrays.partition_point(|array| array.start <= start) - 1;
    let mut links = Vec::new();
    for (fine, array, coarse) in fine_arrays() {
        let mut votes: Vec<(usize, [usize; 3], usize)> = Vec::new();
        for (at, keys) in probes(array, coarse) {
            for found in keys.map(|key| hits.of(key)) {
                if found.len() > HITS_MAX {
                    continue;
                }
                for n in found.iter().map(|&n| n as usize) {
                    let other = number(n);
                    let inside = n - arrays[other].start;
                    let [_, ny, nx] = arrays[other].dims;
                    let cell = [inside / (nx * ny), inside / nx % ny, inside % nx];
                    let Some(corner) = (0..3).map(|d| cell[d].checked_sub(at[d])).collect::<Option<Vec<_>>>() else {
                        continue;
                    };
                    let corner = [corner[0], corner[1], corner[2]];
                    let fits = (0..3).all(|d| corner[d] + coarse[d] <= arrays[other].dims[d]);
                    if !fits || other == fine {
                        continue;
                    }
                    match votes.iter_mut().find(|(o, c, _)| (*o, *c) == (other, corner)) {
                        Some((_, _, count)) => *count += 1,
                        None => votes.push((other, corner, 1)),
                    }
                }
            }
        }
        let Some(&(other, corner, _)) = votes.iter().max_by_key(|(_, _, count)| *count) else { continue };
        let total: usize = coarse.iter().product();
        let is_like = |n: &usize| {
            let at = place(coarse, *n);
            let cell = own[element(&arrays[other], [0, 1, 2].map(|d| corner[d] + at[d]))];
            key(cell).abs_diff(key(mean(array, at))) <= 1
        };
        // A grid of equal values could match any other constant part, so it gets no link.
        if (0..total).filter(is_like).count() * 10 >= total * 7
            && !own[array.start..][..array.dims.iter().product()].iter().all(|&v| v == own[array.start])
        {
            links.push(Link { fine, coarse: other, at: corner });
        }
    }
    links
}

/// For each family of columns, the links, and the number (in the order of the segment) of the column in which the
/// links were found.
pub(crate) fn links(
    layout: &Layout,
    values: &[f64],
    kind: Elements,
    tries_max: usize,
    twins: &Twins,
) -> Vec<(usize, Vec<Link>)> {
    let mut tried: HashMap<&[Array], (usize, bool)> = HashMap::new();
    let mut found = Vec::new();
    for (n, column) in layout.columns.iter().enumerate().skip(twins.columns) {
        let (count, is_found) = tried.entry(&column.arrays).or_default();
        let is_no_grid = column.elements < FITTED_MIN || column.is_integer || column.is_placed;
        if *is_found || *count >= tries_max || is_no_grid {
            continue;
        }
        *count += 1;
        let links = find(column, values, kind.width == 4);
        if !links.is_empty() {
            *is_found = true;
            found.push((layout.order[n], links));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::format::linear::locate;
    use super::super::super::format::nested::DerivedCells;
    use super::super::super::format::nested::FINE;
    use super::super::super::format::nested::cells;
    use super::*;

    /// A coarse grid of 12 x 10 cells, and two finer grids. Each finer grid covers some coarse cells.
    fn grids(order: [usize; 3]) -> (Column, Vec<f64>) {
        let noise = |n: usize| 1.0 + ((n as f64 * 12.9898).sin() * 43758.5453).fract();
        let fine: [([usize; 3], [usize; 3]); 2] = [([1, 8, 6], [0, 1, 2]), ([1, 4, 8], [0, 6, 4])];
        let values: Vec<Vec<f64>> = fine
            .iter()
            .enumerate()
            .map(|(g, (dims, _))| (0..dims[1] * dims[2]).map(|n| noise(n + 1000 * g)).collect())
            .collect();
        let mut coarse: Vec<f64> = (0..120).map(|n| noise(n + 7000)).collect();
        for ((dims, at), values) in fine.iter().zip(&values) {
            for j in 0..dims[1] / 2 {
                for k in 0..dims[2] / 2 {
                    let of = |dj: usize, dk: usize| values[(2 * j + dj) * dims[2] + 2 * k + dk];
                    coarse[(at[1] + j) * 10 + at[2] + k] = (of(0, 0) + of(0, 1) + of(1, 0) + of(1, 1)) / 4.0;
                }
            }
        }
        let all = [([1, 12, 10], coarse), (fine[0].0, values[0].clone()), (fine[1].0, values[1].clone())];
        let mut column =
            Column { base: 0, elements: 0, arrays: Vec::new(), is_integer: false, is_placed: false, wrap: None };
        let mut flat = Vec::new();
        for g in order {
            column.arrays.push(Array { start: flat.len(), dims: all[g].0, like: flat.len() });
            flat.extend_from_slice(&all[g].1);
        }
        column.elements = flat.len();
        (column, flat)
    }

    #[test]
    fn covered_cells_are_found_and_told_by_the_others_of_their_block_in_either_order() {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let (column, values) = grids(order);
            let links = find(&column, &values, false);
            assert_eq!(links.len(), 2);
            let cells = cells(&column, &links).expect("the links fit");
            assert_eq!(cells.iter().filter(|&&cell| cell != 0).count(), 12 + 8);
            for (at, &cell) in cells.iter().enumerate().filter(|(_, cell)| **cell != 0) {
                let computed = DerivedCells::new(&column, None).value(locate(&column, at), cell, at, &values);
                assert!((computed - values[at]).abs() < 1e-14, "{computed} instead of {}", values[at]);
                assert!(((cell & !FINE) as usize) <= at, "only earlier cells are used");
            }
        }
    }

    #[test]
    fn grids_that_have_nothing_to_do_with_each_other_have_no_links() {
        let (column, mut values) = grids([0, 1, 2]);
        values.iter_mut().enumerate().for_each(|(n, value)| *value *= 1.0 + (n as f64).sqrt() * 1e-3);
        assert!(find(&column, &values, false).is_empty());
    }

    #[test]
    fn links_that_do_not_fit_are_refused() {
        let (column, _) = grids([0, 1, 2]);
        for link in [
            Link { fine: 1, coarse: 0, at: [0, 9, 2] },
            Link { fine: 7, coarse: 0, at: [0; 3] },
            Link { fine: 1, coarse: 9, at: [0; 3] },
        ] {
            assert!(cells(&column, &[link]).is_none());
        }
    }
}
