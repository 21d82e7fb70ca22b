//! Refined grids: a coarse cell that is covered by a finer grid holds the mean of the finer cells.
//!
//! Codes with adaptive mesh refinement keep that so at every step (M. J. Berger, P. Colella, "Local adaptive mesh
//! refinement for shock hydrodynamics", Journal of Computational Physics 82, 1989, section 2: the conservative averages of
//! fine grids replace coarse values); densities as they are, velocities and energies weighed by the density. Where the
//! grids lie to each other stands nowhere in what we are given, so it is found: a mean of fine cells is looked up among
//! all values. Of the cells of a block then one more is known: the last fine one, or, if the finer grid came first, the
//! coarse one. The factor of refinement is 2.

use super::layout::{Array, Column};
use super::linear::locate;
use crate::codec::array_to_bytes::varint::{put, take};
use std::ops::Range;

/// Coarse cells of an array that are looked up.
const PROBES: usize = 16;
/// A look-up with more hits than this says nothing.
const HITS_MAX: usize = 4;
/// Low bits of doubles, and of floats, in which a mean may differ.
const LOOSE_BITS: [u32; 2] = [20, 5];

/// A finer array and where its first cell lies in a coarser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    fine: usize,
    coarse: usize,
    at: [usize; 3],
}

/// For each element of a column: the coarse element plus one, if it is the last of its block; the first of a fine block
/// plus one, and [`FINE`], if it is the coarse one; else 0.
pub(crate) type Cells = Vec<u32>;

pub(crate) const FINE: u32 = 1 << 31;
/// Cells of a block in three dimensions.
const CELLS_MAX: usize = 8;

/// Cells of a block.
fn block(dims: [usize; 3]) -> [usize; 3] {
    dims.map(|n| if n > 1 { 2 } else { 1 })
}

fn coarse_dims(dims: [usize; 3]) -> Option<[usize; 3]> {
    let is_even = dims.iter().all(|&n| n == 1 || n % 2 == 0) && dims.iter().filter(|&&n| n > 1).count() >= 2;
    is_even.then(|| dims.map(|n| n.div_ceil(2)))
}

/// Offsets of a block's cells from its first, in order.
fn offsets([_, ny, nx]: [usize; 3], block: [usize; 3]) -> impl Iterator<Item = usize> {
    let of = move |i: usize, j: usize, k: usize| (i * ny + j) * nx + k;
    (0..block[0]).flat_map(move |i| (0..block[1]).flat_map(move |j| (0..block[2]).map(move |k| of(i, j, k))))
}

/// The offset of a block's last cell.
fn last_offset([_, ny, nx]: [usize; 3], block: [usize; 3]) -> usize {
    ((block[0] - 1) * ny + block[1] - 1) * nx + block[2] - 1
}

fn element(array: &Array, [i, j, k]: [usize; 3]) -> usize {
    array.start + (i * array.dims[1] + j) * array.dims[2] + k
}

/// Finds which arrays of a column refine which, by its values.
pub(crate) fn find(column: &Column, values: &[f64], is_single: bool) -> Vec<Link> {
    let arrays = &column.arrays;
    if arrays.len() < 2 || arrays.iter().all(|array| coarse_dims(array.dims).is_none()) {
        return Vec::new();
    }
    let own = &values[column.base..column.base + column.elements];
    // Doubles hold floats with 29 bits to spare.
    let loose = if is_single { LOOSE_BITS[1] + 29 } else { LOOSE_BITS[0] };
    let key = |value: f64| value.to_bits() >> loose;
    let mut cells: Vec<(u64, u32)> = own.iter().enumerate().map(|(n, &value)| (key(value), n as u32)).collect();
    cells.sort_unstable();
    let hits = |wanted: u64| {
        let from = cells.partition_point(|&(key, _)| key < wanted);
        cells[from..].iter().take_while(move |&&(key, _)| key == wanted).map(|&(_, n)| n as usize)
    };
    let number = |start: usize| arrays.partition_point(|array| array.start <= start) - 1;
    let mut links = Vec::new();
    for (fine, array) in arrays.iter().enumerate() {
        let Some(coarse) = coarse_dims(array.dims) else { continue };
        let mean = |at: [usize; 3]| {
            let first = element(array, [0, 1, 2].map(|d| at[d] * block(array.dims)[d]));
            let (mut sum, mut count) = (0.0, 0.0);
            for offset in offsets(array.dims, block(array.dims)) {
                (sum, count) = (sum + own[first + offset], count + 1.0);
            }
            sum / count
        };
        let total: usize = coarse.iter().product();
        let place = |n: usize| [n / (coarse[1] * coarse[2]), n / coarse[2] % coarse[1], n % coarse[2]];
        let mut votes: Vec<(usize, [usize; 3], usize)> = Vec::new();
        for probe in 0..PROBES.min(total) {
            let at = place(probe * total / PROBES.min(total));
            let wanted = key(mean(at));
            for candidate in [wanted.wrapping_sub(1), wanted, wanted + 1].into_iter().filter(|_| mean(at) != 0.0) {
                let found: Vec<usize> = hits(candidate).take(HITS_MAX + 1).collect();
                if found.len() > HITS_MAX {
                    continue;
                }
                for n in found {
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
        let is_like = |n: &usize| {
            let at = place(*n);
            let cell = own[element(&arrays[other], [0, 1, 2].map(|d| corner[d] + at[d]))];
            key(cell).abs_diff(key(mean(at))) <= 1
        };
        // A grid without anything in it is like any other.
        if (0..total).filter(is_like).count() * 10 >= total * 7
            && !own[array.start..][..array.dims.iter().product()].iter().all(|&v| v == own[array.start])
        {
            links.push(Link { fine, coarse: other, at: corner });
        }
    }
    links
}

/// Which cells a column's links tell. `None` where a link does not fit its arrays.
pub(crate) fn cells(column: &Column, links: &[Link]) -> Option<Cells> {
    let mut cells = vec![0; column.elements];
    // Each finer array once.
    links.windows(2).all(|pair| pair[0].fine < pair[1].fine).then_some(())?;
    for link in links {
        let (fine, coarse) = (column.arrays.get(link.fine)?, column.arrays.get(link.coarse)?);
        let dims = coarse_dims(fine.dims)?;
        (0..3).all(|d| link.at[d].checked_add(dims[d]).is_some_and(|end| end <= coarse.dims[d])).then_some(())?;
        let steps = block(fine.dims);
        for i in 0..dims[0] {
            for j in 0..dims[1] {
                for k in 0..dims[2] {
                    let at = [i, j, k];
                    let above = element(coarse, [0, 1, 2].map(|d| link.at[d] + at[d]));
                    let first = element(fine, [0, 1, 2].map(|d| at[d] * steps[d]));
                    let last = first + last_offset(fine.dims, steps);
                    if link.coarse < link.fine {
                        cells[last] = above as u32 + 1;
                    } else {
                        cells[above] = (first as u32 + 1) | FINE;
                    }
                }
            }
        }
    }
    Some(cells)
}

/// Tells cells of a column by the others of their blocks: by their mean, or weighed by another column.
pub(crate) struct Teller<'a> {
    column: &'a Column,
    /// Where the weights begin.
    weights: Option<usize>,
    /// The elements of the fine array whose blocks are known, and the cells of a block, from its first one on.
    known: Range<usize>,
    cells: [usize; CELLS_MAX],
    count: usize,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(column: &'a Column, weights: Option<usize>) -> Self {
        Self { column, weights, known: 0..0, cells: [0; CELLS_MAX], count: 0 }
    }

    /// What the cell `at` of the array `own` must be; `cell` is what [`cells`] says of it, and is not 0.
    #[inline(always)]
    pub(crate) fn tell(&mut self, own: &Array, cell: u32, at: usize, values: &[f64]) -> f64 {
        let (other, is_coarse) = ((cell & !FINE) as usize - 1, cell & FINE != 0);
        let fine = if is_coarse { other } else { at };
        if !self.known.contains(&fine) {
            self.look_at(if is_coarse { locate(self.column, other) } else { own });
        }
        // Of a fine block all cells but the last are known, which is the one that is told.
        let (cells, first) = match self.cells[..self.count].split_last() {
            Some((last, cells)) if !is_coarse => (cells, at - last),
            _ => (&self.cells[..self.count], fine),
        };
        let (own, mut sum) = (&values[self.column.base..], 0.0);
        let Some(base) = self.weights else {
            cells.iter().for_each(|cell| sum += own[first + cell]);
            let count = cells.len() as f64;
            return if is_coarse { sum / count } else { own[other] * (count + 1.0) - sum };
        };
        let (weights, mut all) = (&values[base..], 0.0);
        for cell in cells {
            let weight = weights[first + cell];
            sum += weight * own[first + cell];
            all += weight;
        }
        if is_coarse {
            return sum / all;
        }
        let weight = weights[at];
        (own[other] * (all + weight) - sum) / weight
    }

    fn look_at(&mut self, fine: &Array) {
        self.known = fine.start..fine.start + fine.dims.iter().product::<usize>();
        self.count = 0;
        for (to, cell) in self.cells.iter_mut().zip(offsets(fine.dims, block(fine.dims))) {
            *to = cell;
            self.count += 1;
        }
    }
}

pub(crate) fn write(links: &[Link], out: &mut Vec<u8>) {
    put(links.len(), out);
    for link in links {
        put(link.fine, out);
        put(link.coarse, out);
        link.at.iter().for_each(|&n| put(n, out));
    }
}

pub(crate) fn read(bytes: &mut &[u8]) -> Option<Vec<Link>> {
    let count = take(bytes)?;
    (count <= bytes.len()).then_some(())?;
    (0..count)
        .map(|_| {
            Some(Link { fine: take(bytes)?, coarse: take(bytes)?, at: [take(bytes)?, take(bytes)?, take(bytes)?] })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A coarse grid of 12 x 10 cells, and finer ones of which each covers some of them.
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
                let told = Teller::new(&column, None).tell(locate(&column, at), cell, at, &values);
                assert!((told - values[at]).abs() < 1e-14, "{told} instead of {}", values[at]);
                assert!(((cell & !FINE) as usize) <= at, "only what comes before is used");
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
