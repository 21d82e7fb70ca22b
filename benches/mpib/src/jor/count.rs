//! Computes the number of iterations without iterating on all points.
//!
//! The error of an iterate, its difference from the solution, follows the same iteration with a boundary of 0. The
//! iteration is the same for all columns, also at the border of the two sites. So the error is a sum of sines over
//! the columns, each with a factor for every row, and each sine evolves independently. One iteration of a sine takes
//! as many operations as there are rows. Most sines soon become negligible. The remaining work is a hundredth of the
//! work on the points, and less for larger problems: instead of 0.4 N^2 iterations of 2 N^2 points, about 20 N^3
//! operations.
//!
//! The rounding errors differ from the rounding errors of the iteration on the points. The error falls by about a
//! thousandth between two checks, and both computations of the error differ by at most 1e-10. A test compares the
//! counts with counts from the iteration on the points.

use super::Problem;
use std::f64::consts::PI;

/// Sines whose factors are all below this fraction of the target error are dropped. Even the sum of all dropped sines
/// is negligible.
const NEGLIGIBLE: f64 = 1e-16;

/// One sine over the columns, with the factor of each row, including the rows beyond the ends.
struct Mode {
    /// Half of the cosine of the angle between two columns.
    half_cosine: f64,
    number: usize,
    /// The rows above and below the border between the sites. The second half is empty if there is no border.
    halves: [Half; 2],
}

struct Half {
    old: Vec<f64>,
    new: Vec<f64>,
}

impl Half {
    fn new(inner: impl Iterator<Item = f64>) -> Self {
        let old: Vec<f64> = std::iter::once(0.0).chain(inner).chain(std::iter::once(0.0)).collect();
        Self { new: old.clone(), old }
    }

    fn sweep(&mut self, half_cosine: f64) {
        for (new, near) in self.new.iter_mut().skip(1).zip(self.old.windows(3)) {
            *new = 0.25 * (near[0] + near[2]) + half_cosine * near[1];
        }
        let last = self.old.len() - 1;
        (self.new[0], self.new[last]) = (self.old[0], self.old[last]);
        std::mem::swap(&mut self.old, &mut self.new);
    }
}

impl Mode {
    /// Computes `iterations` iterations. The number must be a multiple of `period`.
    fn advance(&mut self, iterations: usize, period: usize) {
        for done in 0..iterations {
            let [upper, lower] = &mut self.halves;
            if lower.old.len() > 2 && done.is_multiple_of(period) {
                let last = upper.old.len() - 1;
                (upper.old[last], lower.old[0]) = (lower.old[1], upper.old[last - 1]);
            }
            upper.sweep(self.half_cosine);
            if lower.old.len() > 2 {
                lower.sweep(self.half_cosine);
            }
        }
    }

    /// The factor of an inner row, counted from 0.
    fn factor(&self, row: usize) -> f64 {
        let [upper, lower] = &self.halves;
        let above = upper.old.len() - 2;
        if row < above { upper.old[row + 1] } else { lower.old[row - above + 1] }
    }

    fn largest(&self) -> f64 {
        self.halves.iter().flat_map(|h| &h.old).fold(0.0, |most: f64, v| most.max(v.abs()))
    }
}

/// The error at all points.
pub(super) struct Error {
    problem: Problem,
    modes: Vec<Mode>,
    /// The sines of k pi / (columns + 1), for two periods, beginning with k = 0.
    sines: Vec<f64>,
}

impl Error {
    /// The error of the start value, which is 0 at all inner points.
    pub(super) fn new(problem: Problem, upper_rows: usize) -> Self {
        let (rows, cols) = (problem.rows, problem.cols);
        let wide = (cols + 1) as f64;
        let sines: Vec<f64> = (0..2 * (cols + 1)).map(|k| (k as f64 * PI / wide).sin()).collect();
        let upper_rows = if upper_rows == 0 { rows } else { upper_rows.min(rows) };
        let mode = |number: usize| {
            let sine = |col: usize| sines[number * col % sines.len()];
            // The coefficient of this sine in x^2 - y^2. The start value is smaller than the solution by this amount.
            let sum = |value: &dyn Fn(f64) -> f64| {
                (1..=cols).map(|c| value(c as f64 / wide) * sine(c)).sum::<f64>() * 2.0 / wide
            };
            let (squares, ones) = (sum(&|x| x * x), sum(&|_| 1.0));
            let factor = |row: usize| (((row + 1) as f64 / wide).powi(2)) * ones - squares;
            let half_cosine = 0.5 * (number as f64 * PI / wide).cos();
            let halves = [Half::new((0..upper_rows).map(factor)), Half::new((upper_rows..rows).map(factor))];
            Mode { half_cosine, number, halves }
        };
        let modes = (1..=cols).map(mode).collect();
        Self { problem, modes, sines }
    }

    fn advance(&mut self, iterations: usize, period: usize, aim: f64) {
        self.modes.iter_mut().for_each(|mode| mode.advance(iterations, period));
        // No factor can grow again, because an iteration takes a mean of the neighbours with weights whose sum is at
        // most 1.
        self.modes.retain(|mode| mode.largest() > NEGLIGIBLE * aim);
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        self.modes.iter().map(|m| m.factor(row) * self.sines[m.number * (col + 1) % self.sines.len()]).sum()
    }

    /// The largest error among the points of every `row_step`-th row and `col_step`-th column, and its place.
    fn largest(&self, row_step: usize, col_step: usize) -> (f64, usize, usize) {
        let mut most = (0.0, 0, 0);
        for row in (row_step / 2..self.problem.rows).step_by(row_step) {
            for col in (col_step / 2..self.problem.cols).step_by(col_step) {
                let value = self.at(row, col).abs();
                if value > most.0 {
                    most = (value, row, col);
                }
            }
        }
        most
    }
}

/// Number of iterations, in whole periods, until the error is a tenth of its start value. The error is checked as
/// often as [`Problem::look_every`] says. If `upper_rows` is 0 or all rows, there is no border.
pub fn iterations(problem: Problem, upper_rows: usize, period: usize) -> usize {
    let mut error = Error::new(problem, upper_rows);
    let aim = problem.start_error() / 10.0;
    let stride = period * problem.look_every(period);
    // A sample of the points can show that the error is still too large. Only all points can show that the error is
    // small enough.
    let steps = ((problem.rows / 32).max(1), (problem.cols / 16).max(1));
    let mut worst = (0, 0);
    let mut done = 0;
    // About 0.4 N^2 iterations are needed at period 1. The limit only prevents an endless loop.
    while done < 1000 * problem.points() {
        error.advance(stride, period, aim);
        done += stride;
        if error.at(worst.0, worst.1).abs() > aim || error.largest(steps.0, steps.1).0 > aim {
            continue;
        }
        let (largest, row, col) = error.largest(1, 1);
        if largest <= aim {
            break;
        }
        worst = (row, col);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jor::Serial;

    /// Counts the iterations by iterating on all points.
    fn by_doing(problem: Problem, upper_rows: usize, period: usize) -> usize {
        let mut serial = Serial::new(problem, upper_rows, period);
        let aim = serial.error() / 10.0;
        let stride = period * problem.look_every(period);
        let mut done = 0;
        loop {
            (0..stride).for_each(|_| serial.step());
            done += stride;
            if serial.error() <= aim {
                return done;
            }
        }
    }

    #[test]
    fn counts_are_those_of_doing_it() {
        for (n, upper_rows, period) in [
            (2, 0, 1),
            (5, 0, 1),
            (16, 0, 1),
            (16, 16, 1),
            (16, 16, 2),
            (16, 21, 8),
            (24, 32, 4),
            (24, 5, 32),
            (33, 40, 7),
            (48, 48, 10),
            (64, 96, 3),
        ] {
            let whole = Problem::whole(n);
            assert_eq!(
                iterations(whole, upper_rows, period),
                by_doing(whole, upper_rows, period),
                "{n} {upper_rows} {period}"
            );
        }
        let half = Problem::half(40);
        assert_eq!(iterations(half, 0, 1), by_doing(half, 0, 1));
    }

    #[test]
    fn the_error_in_sines_is_that_of_the_points() {
        let problem = Problem::whole(12);
        let (mut error, mut serial) = (Error::new(problem, 9), Serial::new(problem, 9, 3));
        for _ in 0..20 {
            let found = error.largest(1, 1).0;
            assert!((found - serial.error()).abs() < 1e-12, "{found}, on the points {}", serial.error());
            (0..3).for_each(|_| serial.step());
            error.advance(3, 3, 1.0);
        }
    }
}
