//! The coupled-cluster benchmark of C. Clauss, S. Gsell, S. Lankes, T. Bemmerl, "A fair benchmark for evaluating the
//! latent potential of heterogeneous coupled clusters". The benchmark solves Laplace's equation on 2N x N points with
//! Jacobi's iteration (JOR) on two sites. The sites exchange their common border only after a given number of
//! iterations, the period.
//!
//! This file contains the parts without MPI: the points, their distribution over the ranks, and the number of
//! iterations. The boundary values come from x^2 - y^2, for which the five-point stencil is exact. So the error of
//! every iterate is known without computing a second solution. The start value is 0 at all inner points.
//!
//! Deviation: the error is the largest difference from the exact solution. The error is computed after an exchange
//! between the sites, as in the paper, but not after every exchange ([`Problem::look_every`]).

pub mod bench;
#[cfg(feature = "hdf5")]
pub mod checkpoint;
mod count;

pub use count::iterations;

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A rectangle of `rows` x `cols` inner points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// 2N, or N for a run on half of the points.
    pub rows: usize,
    /// N
    pub cols: usize,
}

/// The paper's classes with their N. For class C, the paper prints 1024x1204, which must mean 1024x1024.
pub const CLASSES: [(&str, usize); 5] = [("S", 16), ("W", 128), ("A", 256), ("B", 512), ("C", 1024)];

impl Problem {
    /// 2N x N points.
    pub fn whole(n: usize) -> Self {
        Self { rows: 2 * n, cols: n }
    }

    /// N x N points.
    pub fn half(n: usize) -> Self {
        Self { rows: n, cols: n }
    }

    /// Number of inner points.
    pub fn points(&self) -> usize {
        self.rows * self.cols
    }

    /// The exact solution at row 0..=rows+1, column 0..=cols+1. The outermost points are the boundary.
    pub fn exact(&self, row: usize, col: usize) -> f64 {
        let scale = (self.cols + 1) as f64;
        let (x, y) = (col as f64 / scale, row as f64 / scale);
        x * x - y * y
    }

    /// The error of the start value, which is 0 at all inner points.
    pub fn start_error(&self) -> f64 {
        let rows = (1..=self.rows).flat_map(|r| (1..=self.cols).map(move |c| (r, c)));
        rows.map(|(r, c)| self.exact(r, c).abs()).fold(0.0, f64::max)
    }

    /// Number of exchanges between two computations of the error. Between two computations, the error falls by less
    /// than a thousandth of its start value.
    pub fn look_every(&self, period: usize) -> usize {
        (self.points() / 4096 / period).max(1)
    }
}

/// Ranges of rows and columns of inner points, counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Rows, counted from the top.
    pub rows: Range<usize>,
    /// Columns, counted from the left.
    pub cols: Range<usize>,
}

/// The values of an area, with a border that contains values of neighbours or of the boundary.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    area: Area,
    wide: usize,
    old: Vec<f64>,
    new: Vec<f64>,
}

/// A side of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Above.
    Up,
    /// Below.
    Down,
    /// Smaller columns.
    Left,
    /// Larger columns.
    Right,
}

/// The order of neighbours.
pub const SIDES: [Side; 4] = [Side::Up, Side::Down, Side::Left, Side::Right];

impl Block {
    /// A block with 0 inside, the solution on the boundary, and 0 at the borders with neighbours.
    pub fn new(problem: Problem, area: Area) -> Self {
        let wide = area.cols.len() + 2;
        let mut old = vec![0.0; wide * (area.rows.len() + 2)];
        for r in 0..area.rows.len() + 2 {
            for c in 0..wide {
                let (row, col) = (area.rows.start + r, area.cols.start + c);
                if row == 0 || row == problem.rows + 1 || col == 0 || col == problem.cols + 1 {
                    old[r * wide + c] = problem.exact(row, col);
                }
            }
        }
        Self { area, wide, new: old.clone(), old }
    }

    /// Computes one iteration. Every point is computed by the same expression of the same four values on any rank. No
    /// operations are fused or reordered, so the result has the same bits for any number of ranks.
    pub fn sweep(&mut self) {
        let wide = self.wide;
        for r in 1..=self.area.rows.len() {
            let row = r * wide;
            let (up, here, down) =
                (&self.old[row - wide..row], &self.old[row..row + wide], &self.old[row + wide..row + 2 * wide]);
            // Iterate over all slices together, so that no index is checked.
            let new = self.new[row + 1..row + wide - 1].iter_mut();
            for (((new, up), beside), down) in new.zip(&up[1..]).zip(here.windows(3)).zip(&down[1..]) {
                *new = (((up + beside[0]) + beside[2]) + down) * 0.25;
            }
        }
        std::mem::swap(&mut self.old, &mut self.new);
        // The border is not computed, so it is copied to the other array.
        for side in SIDES {
            for at in self.line(side, 0) {
                self.old[at] = self.new[at];
            }
        }
    }

    /// The largest difference from the exact solution.
    pub fn error(&self, problem: Problem) -> f64 {
        let mut largest: f64 = 0.0;
        for r in 1..=self.area.rows.len() {
            for c in 1..self.wide - 1 {
                let exact = problem.exact(self.area.rows.start + r, self.area.cols.start + c);
                largest = largest.max((self.old[r * self.wide + c] - exact).abs());
            }
        }
        largest
    }

    /// Indices of the points along a side, without corners: of the border (`inside` 0), or of the inner points next
    /// to the border (1).
    fn line(&self, side: Side, inside: usize) -> impl Iterator<Item = usize> + use<> {
        let (high, wide) = (self.area.rows.len() + 2, self.wide);
        let (first, step, count) = match side {
            Side::Up => (inside * wide + 1, 1, wide - 2),
            Side::Down => ((high - 1 - inside) * wide + 1, 1, wide - 2),
            Side::Left => (wide + inside, wide, high - 2),
            Side::Right => (2 * wide - 1 - inside, wide, high - 2),
        };
        (0..count).map(move |i| first + i * step)
    }

    /// The values that a neighbour needs.
    pub fn edge(&self, side: Side) -> Vec<f64> {
        self.line(side, 1).map(|at| self.old[at]).collect()
    }

    /// Stores the values of a neighbour.
    pub fn set_border(&mut self, side: Side, values: impl IntoIterator<Item = f64>) {
        for (at, value) in self.line(side, 0).zip(values) {
            self.old[at] = value;
        }
    }

    /// Number of points in the area.
    pub fn points(&self) -> usize {
        self.area.rows.len() * self.area.cols.len()
    }

    /// All values including the border. With a period above 1, the border is part of the state.
    pub fn state(&self) -> &[f64] {
        &self.old
    }

    /// The inverse of [`Block::state`]. Returns false and changes nothing if the length does not match.
    pub fn set_state(&mut self, state: &[f64]) -> bool {
        if state.len() != self.old.len() {
            return false;
        }
        self.old.copy_from_slice(state);
        self.new.copy_from_slice(state);
        true
    }

    /// The values of the area, row by row.
    pub fn values(&self) -> Vec<f64> {
        let rows = (1..=self.area.rows.len()).flat_map(|r| (1..self.wide - 1).map(move |c| (r, c)));
        rows.map(|(r, c)| self.old[r * self.wide + c]).collect()
    }
}

/// How the area of a site is divided among its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// Whole rows: few long messages. The paper uses strips.
    Strips,
    /// Rectangles that are as square as possible: short messages, and several pairs between the sites. The paper
    /// suggests blocks.
    Blocks,
}

/// The part of the problem that one rank computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The points of the part.
    pub area: Area,
    /// Positions of the neighbours, in the order of [`SIDES`].
    pub neighbours: [Option<usize>; 4],
    /// Whether each neighbour is at the other site, in the order of [`SIDES`].
    pub other_site: [bool; 4],
}

/// Divides `whole` into `parts` ranges whose lengths differ by at most one.
fn cut(whole: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, len) = (whole.start, whole.len());
    (0..parts).map(move |i| start + len * i / parts..start + len * (i + 1) / parts)
}

/// An impossible partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// A part would have no points.
    #[error("{ranks} ranks cannot share {rows} x {cols} points: some rank would have none")]
    TooMany {
        /// Number of ranks of the site.
        ranks: usize,
        /// Number of rows of the site.
        rows: usize,
        /// Number of columns of the site.
        cols: usize,
    },
    /// The blocks of both sites must meet at the border.
    #[error("blocks need equal numbers of ranks in both sites; there are {near} and {far}")]
    Unequal {
        /// Number of ranks of the upper site.
        near: usize,
        /// Number of ranks of the lower site.
        far: usize,
    },
}

/// The parts of the `upper` ranks of the upper site, which have the first `upper_rows` rows, followed by the parts of
/// the lower site. Without lower ranks, the upper site has all rows. The indices are positions, not ranks. The last
/// upper strip and the first lower strip share the border between the sites, so their ranks are the front-ends.
pub fn parts(
    problem: Problem,
    cut_as: Cut,
    upper: usize,
    lower: usize,
    upper_rows: usize,
) -> Result<Vec<Part>, CutError> {
    let upper_rows = if lower == 0 { problem.rows } else { upper_rows };
    if cut_as == Cut::Blocks && lower != 0 && upper != lower {
        return Err(CutError::Unequal { near: upper, far: lower });
    }
    let across = match cut_as {
        Cut::Strips => 1,
        // The largest number of block columns that is not more than the number of block rows.
        Cut::Blocks => (1..=upper).filter(|a| upper.is_multiple_of(*a) && a * a <= upper).max().unwrap_or(1),
    };
    let mut areas = Vec::new();
    for (rows, ranks) in [(0..upper_rows, upper), (upper_rows..problem.rows, lower)] {
        if ranks == 0 {
            continue;
        }
        let down = ranks / across;
        if rows.len() < down || problem.cols < across {
            return Err(CutError::TooMany { ranks, rows: rows.len(), cols: problem.cols });
        }
        for rows in cut(rows, down) {
            areas.extend(cut(0..problem.cols, across).map(|cols| Area { rows: rows.clone(), cols }));
        }
    }
    let total = areas.len();
    let part = |(at, area): (usize, &Area)| {
        let column = at % across;
        let neighbours = [
            at.checked_sub(across),
            Some(at + across).filter(|&n| n < total),
            (column > 0).then(|| at - 1),
            (column + 1 < across).then_some(at + 1),
        ];
        let is_upper = |at: usize| at < upper;
        let other_site = neighbours.map(|n| n.is_some_and(|n| is_upper(n) != is_upper(at)));
        Part { area: area.clone(), neighbours, other_site }
    };
    Ok(areas.iter().enumerate().map(part).collect())
}

/// Number of rows for the upper site if it is `ratio` times as powerful as the lower site. Every rank gets at least
/// one row if there are enough rows.
pub fn balanced_rows(rows: usize, ratio: f64, upper: usize, lower: usize) -> usize {
    // For an infinite ratio, `ratio / (1 + ratio)` would be infinity divided by infinity, which is NaN.
    let share = (rows as f64 / (1.0 + 1.0 / ratio)).round() as usize;
    share.min(rows.saturating_sub(lower)).max(upper.min(rows))
}

/// A solution in one process. The first `upper_rows` rows and the other rows exchange their common border every
/// `period` iterations.
pub struct Serial {
    problem: Problem,
    period: usize,
    halves: Vec<Block>,
    done: usize,
}

impl Serial {
    /// If `upper_rows` is 0 or all rows, there is one area without a border.
    pub fn new(problem: Problem, upper_rows: usize, period: usize) -> Self {
        let cols = 0..problem.cols;
        let rows = [0..upper_rows, upper_rows..problem.rows];
        let areas = rows.into_iter().filter(|r| !r.is_empty()).map(|rows| Area { rows, cols: cols.clone() });
        Self { problem, period, halves: areas.map(|a| Block::new(problem, a)).collect(), done: 0 }
    }

    /// Exchanges the border if the period is over, and then computes one iteration.
    pub fn step(&mut self) {
        if self.done.is_multiple_of(self.period)
            && let [upper, lower] = self.halves.as_mut_slice()
        {
            let (down, up) = (upper.edge(Side::Down), lower.edge(Side::Up));
            upper.set_border(Side::Down, up);
            lower.set_border(Side::Up, down);
        }
        self.halves.iter_mut().for_each(Block::sweep);
        self.done += 1;
    }

    /// The largest difference from the exact solution.
    pub fn error(&self) -> f64 {
        self.halves.iter().map(|h| h.error(self.problem)).fold(0.0, f64::max)
    }

    /// The values of all points, row by row.
    pub fn values(&self) -> Vec<f64> {
        self.halves.iter().flat_map(Block::values).collect()
    }
}

/// The error after each exchange, relative to the error at the start, for a number of iterations: figure 3 of the
/// paper.
pub fn error_evolution(problem: Problem, upper_rows: usize, period: usize, iterations: usize) -> Vec<(usize, f64)> {
    let mut serial = Serial::new(problem, upper_rows, period);
    let start = serial.error();
    let mut points = vec![(0, 1.0)];
    while serial.done < iterations {
        (0..period).for_each(|_| serial.step());
        points.push((serial.done, serial.error() / start));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_solution_is_a_fixed_point() {
        let problem = Problem { rows: 6, cols: 4 };
        let mut block = Block::new(problem, Area { rows: 0..6, cols: 0..4 });
        for r in 1..7 {
            for c in 1..5 {
                let at = r * block.wide + c;
                block.old[at] = problem.exact(r, c);
            }
        }
        block.sweep();
        assert!(block.error(problem) < 1e-15, "{}", block.error(problem));
    }

    #[test]
    fn an_iteration_brings_the_error_down_to_a_tenth_and_counts_grow_with_the_period() {
        let problem = Problem::whole(16);
        let counts: Vec<_> = [1, 2, 4, 8].map(|p| iterations(problem, 16, p)).to_vec();
        let mut serial = Serial::new(problem, 16, 1);
        let start = serial.error();
        (0..counts[0]).for_each(|_| serial.step());
        assert!(serial.error() <= start / 10.0, "{} of {start}", serial.error());
        let mut fewer = Serial::new(problem, 16, 1);
        (0..counts[0] - 1).for_each(|_| fewer.step());
        assert!(fewer.error() > start / 10.0, "one iteration less is not enough");
        assert!(counts.windows(2).all(|w| w[0] <= w[1]), "{counts:?}");
        assert!(counts[3] < 3 * counts[0], "{counts:?}");
    }

    #[test]
    fn a_border_exchanged_every_time_changes_no_bit() {
        let problem = Problem::whole(9);
        let mut whole = Serial::new(problem, 0, 1);
        let mut cut = Serial::new(problem, 7, 1);
        let mut late = Serial::new(problem, 7, 3);
        for _ in 0..50 {
            [&mut whole, &mut cut, &mut late].into_iter().for_each(Serial::step);
        }
        let bits = |s: &Serial| s.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&whole), bits(&cut));
        assert_ne!(bits(&whole), bits(&late), "with a period of 3 it cannot be the same");
    }

    #[test]
    fn parts_cover_every_point_once_and_neighbours_know_each_other() {
        for cut_as in [Cut::Strips, Cut::Blocks] {
            for (upper, lower, rows) in [(4, 4, 20), (1, 1, 16), (6, 6, 16), (5, 0, 32)] {
                let problem = Problem::whole(16);
                let parts = parts(problem, cut_as, upper, lower, rows).expect("fits");
                let mut times = vec![0; problem.points()];
                for part in &parts {
                    for r in part.area.rows.clone() {
                        part.area.cols.clone().for_each(|c| times[r * problem.cols + c] += 1);
                    }
                }
                assert!(times.iter().all(|&t| t == 1), "{cut_as:?} {upper}+{lower}");
                for (at, part) in parts.iter().enumerate() {
                    for (side, back) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
                        let Some(other) = part.neighbours[side] else { continue };
                        assert_eq!(parts[other].neighbours[back], Some(at), "{cut_as:?} {upper}+{lower}");
                        assert_eq!(part.other_site[side], (at < upper) != (other < upper));
                    }
                }
            }
        }
        let unequal = parts(Problem::whole(16), Cut::Strips, 3, 1, 24).expect("strips may be unequal");
        assert_eq!(unequal.iter().map(|p| p.area.rows.len()).collect::<Vec<_>>(), [8, 8, 8, 8]);
        assert!(parts(Problem::whole(16), Cut::Blocks, 3, 1, 24).is_err());
        assert!(parts(Problem::whole(4), Cut::Strips, 5, 1, 4).is_err());
    }

    #[test]
    fn work_is_shared_by_power() {
        assert_eq!(balanced_rows(64, 1.0, 4, 4), 32);
        assert_eq!(balanced_rows(64, 2.0, 4, 4), 43);
        assert_eq!(balanced_rows(64, 1e9, 4, 4), 60);
        assert_eq!(balanced_rows(64, 1e-9, 4, 4), 4);
        assert_eq!(balanced_rows(64, 1e308, 4, 4), 60);
        assert_eq!(balanced_rows(64, 1e-320, 4, 4), 4);
    }

    #[test]
    fn more_ranks_than_rows_and_a_ratio_that_is_no_number_are_no_panic() {
        assert_eq!(balanced_rows(16, 1.0, 9, 9), 9);
        assert_eq!(balanced_rows(2, 1.0, 5, 5), 2);
        assert_eq!(balanced_rows(64, f64::NAN, 4, 4), 4);
    }
}
