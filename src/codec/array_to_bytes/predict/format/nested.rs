//! Nested grids: a coarse cell that is covered by a finer grid holds the mean of the finer cells.
//!
//! Codes with adaptive mesh refinement set coarse cells to these means at every step (M. J. Berger, P. Colella,
//! "Local adaptive mesh refinement for shock hydrodynamics", Journal of Computational Physics 82, 1989, section 2:
//! the conservative averages of fine grids replace coarse values). Densities are averaged directly; velocities and
//! energies are weighted by the density. The shapes of the arrays do not say where a fine grid lies in a coarse grid.
//! The encoder finds the positions by looking up a mean of fine cells among all values. One cell of each block can
//! then be computed from the other cells: the last fine cell, or the coarse cell if the finer grid comes before the
//! coarse grid. The factor of refinement is 2.

use super::layout::{Array, Column};
use super::linear::locate;
use crate::codec::array_to_bytes::varint::{put, take};
use std::ops::Range;

/// A finer array, a coarser array, and the coarse cell that covers the first fine cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub fine: usize,
    pub coarse: usize,
    pub at: [usize; 3],
}

/// For each element of a column, the position of the cells from which the element is computed. For the last fine cell
/// of a block: the position of the coarse cell, plus one. For a coarse cell: the position of the first fine cell of
/// its block, plus one, with bit [`FINE`] set. For any other element: 0.
pub(crate) type Cells = Vec<u32>;

pub(crate) const FINE: u32 = 1 << 31;
/// The number of fine cells of a block in three dimensions.
const CELLS_MAX: usize = 8;

/// The extents of a block, in fine cells.
pub(crate) fn block(dims: [usize; 3]) -> [usize; 3] {
    dims.map(|n| if n > 1 { 2 } else { 1 })
}

pub(crate) fn coarse_dims(dims: [usize; 3]) -> Option<[usize; 3]> {
    let is_even = dims.iter().all(|&n| n == 1 || n % 2 == 0) && dims.iter().filter(|&&n| n > 1).count() >= 2;
    is_even.then(|| dims.map(|n| n.div_ceil(2)))
}

/// The offset of each cell of a block from the first cell of the block, in order.
pub(crate) fn offsets([_, ny, nx]: [usize; 3], block: [usize; 3]) -> impl Iterator<Item = usize> {
    let of = move |i: usize, j: usize, k: usize| (i * ny + j) * nx + k;
    (0..block[0]).flat_map(move |i| (0..block[1]).flat_map(move |j| (0..block[2]).map(move |k| of(i, j, k))))
}

/// The offset of a block's last cell.
pub(crate) fn last_offset([_, ny, nx]: [usize; 3], block: [usize; 3]) -> usize {
    ((block[0] - 1) * ny + block[1] - 1) * nx + block[2] - 1
}

pub(crate) fn element(array: &Array, [i, j, k]: [usize; 3]) -> usize {
    array.start + (i * array.dims[1] + j) * array.dims[2] + k
}

/// The cells of a column that can be computed, given the links of the column. `None` if a link does not fit its
/// arrays.
pub(crate) fn cells(column: &Column, links: &[Link]) -> Option<Cells> {
    let mut cells = vec![0; column.elements];
    // Each finer array must occur in only one link.
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

/// Computes cells of a column from the other cells of their blocks, by plain means or by means weighted by another
/// column.
pub(crate) struct DerivedCells<'a> {
    column: &'a Column,
    /// The first element of the column of weights; `None` for plain means.
    weights: Option<usize>,
    /// The elements of the fine array for which `cells` is valid. `cells` holds the offset of each cell of a block
    /// from the first cell of the block.
    known: Range<usize>,
    cells: [usize; CELLS_MAX],
    count: usize,
}

impl<'a> DerivedCells<'a> {
    pub(crate) fn new(column: &'a Column, weights: Option<usize>) -> Self {
        Self { column, weights, known: 0..0, cells: [0; CELLS_MAX], count: 0 }
    }

    /// The computed value of the cell `at` of the array `own`. `cell` is the entry of this cell in [`Cells`], and is
    /// not 0.
    #[inline(always)]
    pub(crate) fn value(&mut self, own: &Array, cell: u32, at: usize, values: &[f64]) -> f64 {
        let (other, is_coarse) = ((cell & !FINE) as usize - 1, cell & FINE != 0);
        let fine = if is_coarse { other } else { at };
        if !self.known.contains(&fine) {
            self.look_at(if is_coarse { locate(self.column, other) } else { own });
        }
        // All cells of a fine block except the last are known, and the last cell is computed.
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

/// The computable cells of each column; an empty list for a column without such cells. Returns `None` if links do not
/// fit.
pub(crate) fn all_cells(columns: &[Column], nested: &[(usize, Vec<Link>)]) -> Option<Vec<Cells>> {
    let mut all: Vec<Cells> = Vec::new();
    all.resize_with(if nested.is_empty() { 0 } else { columns.len() }, Vec::new);
    for (key, links) in nested {
        all.get(*key)?.is_empty().then_some(())?; // a family has only one list
        let cells = cells(&columns[*key], links)?;
        for (column, own) in columns.iter().zip(&mut all).skip(*key) {
            if column.arrays == columns[*key].arrays {
                own.clone_from(&cells);
            }
        }
    }
    Some(all)
}
