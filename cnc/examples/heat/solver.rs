//! The physics: heat in a block of layered rock with a moving heater, solved with explicit finite differences.
//!
//! Heat spreads faster along x than along z. The conductivity differs from cell to cell. The heater moves on a
//! circle, and a regulator sets its power from the mean temperature of the whole block, so each step needs a sum over
//! all ranks. Every operation has a fixed order. So the same steps give the same bits, with any number of ranks and
//! any interruptions.

use crate::Failure;
use std::f64::consts::TAU;
use std::ops::Range;

/// Factors of the conductivity along x, y and z.
const ANISOTROPY: [f64; 3] = [1.0, 0.7, 0.4];
/// The time step as a fraction of the largest stable time step.
const COURANT: f64 = 0.4;
/// Number of steps in which the heater moves once around its circle.
const ORBIT_STEPS: f64 = 400.0;
/// Radius of the heater, as a fraction of the block's width.
const HEATER_RADIUS: f64 = 0.12;
/// Mean temperature at which the regulator aims.
const TARGET: f64 = 1.0;
/// A cell that exceeds this temperature counts as molten for the rest of the run.
const MELTING_POINT: f64 = 1.5;
/// Value in `melted_step` for a cell that has not melted.
const NEVER: i32 = -1;

/// Number of cells along each axis, at least 2 and at most [`Grid::AXIS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub nx: usize,
    pub ny: usize,
    pub nz: usize,
}

impl Grid {
    /// Maximum number of cells along one axis. With this limit, the memory of a rank stays below 64 GiB even if there
    /// is only one rank.
    pub const AXIS_MAX: usize = 2048;

    /// Number of cells in a plane of constant z.
    pub fn plane(self) -> usize {
        self.nx * self.ny
    }

    /// The planes of a rank. The numbers of planes of any two ranks differ by at most one.
    pub fn planes_of(self, rank: u32, ranks: u32) -> Range<usize> {
        let at = |rank: u32| rank as usize * self.nz / ranks as usize;
        at(rank)..at(rank + 1)
    }
}

/// The communication of the ranks in each step.
pub trait Exchange {
    /// Sends this rank's outermost planes to its neighbours, and fills the ghost planes with the planes of the
    /// neighbours. A ghost plane without a neighbour is not changed.
    fn halo(&mut self, first: &[f64], last: &[f64], below: &mut [f64], above: &mut [f64]) -> Result<(), Failure>;
    /// The sum of the parts of all ranks, added in rank order, so that the result does not depend on the number of
    /// ranks.
    fn sum(&mut self, parts: &[f64]) -> Result<f64, Failure>;
}

/// The state of one rank. `temperature` has one ghost plane before and one ghost plane after the rank's own planes.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub grid: Grid,
    pub planes: Range<usize>,
    pub step: u64,
    /// Mean temperature of all ranks after `step` steps.
    pub mean: f64,
    /// The integral term of the regulator.
    pub integral: f64,
    pub temperature: Vec<f64>,
    /// Conductivity relative to rock, with ghost planes. The conductivity never changes.
    pub conductivity: Vec<f32>,
    /// The step in which each cell melted first, or -1.
    pub melted_step: Vec<i32>,
    /// Whether the heater is on. The heater is off in the test that compares with the exact solution.
    pub heated: bool,
}

impl Block {
    /// The state before the first step: cold rock.
    pub fn cold(grid: Grid, planes: Range<usize>) -> Self {
        let own = planes.len() * grid.plane();
        let with_ghosts = own + 2 * grid.plane();
        let mut conductivity = Vec::with_capacity(with_ghosts);
        for z in 0..planes.len() + 2 {
            // The ghost planes contain the values of the neighbours. At the ends of the whole grid, the ghost planes
            // contain the values of the outermost plane.
            let z = (planes.start + z).saturating_sub(1).min(grid.nz - 1) as f64 / grid.nz as f64;
            for y in 0..grid.ny {
                let y = y as f64 / grid.ny as f64;
                for x in 0..grid.nx {
                    let x = x as f64 / grid.nx as f64;
                    let layer = (TAU * (4.0 * z + 0.5 * (TAU * x).sin())).sin();
                    conductivity.push((0.6 + 0.3 * layer + 0.1 * (TAU * (x - 2.0 * y)).cos()) as f32);
                }
            }
        }
        Self {
            grid,
            step: 0,
            mean: 0.0,
            integral: 0.0,
            temperature: vec![0.0; with_ghosts],
            conductivity,
            melted_step: vec![NEVER; own],
            planes,
            heated: true,
        }
    }

    /// The range of this rank's own planes within an array that has ghost planes.
    pub fn own(&self) -> Range<usize> {
        let plane = self.grid.plane();
        plane..plane + self.planes.len() * plane
    }

    /// Computes one time step: ghost planes, temperatures, molten cells, and the mean.
    pub fn advance(&mut self, exchange: &mut impl Exchange) -> Result<(), Failure> {
        self.fill_ghosts(exchange)?;
        let power = self.regulate();
        self.temperature = self.next_temperature(power);
        self.step += 1;
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let own = self.own();
        for (melted, &t) in self.melted_step.iter_mut().zip(&self.temperature[own]) {
            if *melted == NEVER && t > MELTING_POINT {
                *melted = step;
            }
        }
        let sums: Vec<f64> = self.temperature[self.own()].chunks(self.grid.plane()).map(|p| p.iter().sum()).collect();
        self.mean = exchange.sum(&sums)? / (self.grid.plane() * self.grid.nz) as f64;
        if !self.mean.is_finite() {
            return Err(Failure::Diverged { step: self.step });
        }
        Ok(())
    }

    /// Heat flow through the lower face of each cell. The heat flow is written for inspection, and a restart does not
    /// read it.
    pub fn vertical_flux(&self) -> Vec<f32> {
        let (plane, own) = (self.grid.plane(), self.own());
        own.map(|i| {
            let k = 0.5 * (self.conductivity[i] + self.conductivity[i - plane]);
            k * (self.temperature[i - plane] - self.temperature[i]) as f32 * self.grid.nz as f32
        })
        .collect()
    }

    fn fill_ghosts(&mut self, exchange: &mut impl Exchange) -> Result<(), Failure> {
        let plane = self.grid.plane();
        let (below, rest) = self.temperature.split_at_mut(plane);
        let (own, above) = rest.split_at_mut(self.planes.len() * plane);
        let (first, last) = (&own[..plane], &own[own.len() - plane..]);
        // No heat leaves the block. If there is no neighbour, a ghost cell has the temperature of the adjacent cell.
        below.copy_from_slice(first);
        above.copy_from_slice(last);
        exchange.halo(first, last, below, above)
    }

    /// A proportional-integral regulator: returns the heater's power for the next step.
    fn regulate(&mut self) -> f64 {
        let missing = TARGET - self.mean;
        self.integral = (self.integral + 0.02 * missing).clamp(-5.0, 5.0);
        if self.heated { (60.0 * missing + 10.0 * self.integral).max(0.0) } else { 0.0 }
    }

    /// Length of a step, in units of (block width squared) / (conductivity of rock).
    pub fn dt(&self) -> f64 {
        let Grid { nx, ny, nz } = self.grid;
        let stiffness: f64 = [nx, ny, nz].iter().zip(ANISOTROPY).map(|(&n, a)| a * (n * n) as f64).sum();
        COURANT / (2.0 * stiffness)
    }

    fn next_temperature(&self, power: f64) -> Vec<f64> {
        let Grid { nx, ny, nz } = self.grid;
        let plane = self.grid.plane();
        let dt = self.dt();
        let [ax, ay, az] =
            [(nx, ANISOTROPY[0]), (ny, ANISOTROPY[1]), (nz, ANISOTROPY[2])].map(|(n, a)| 0.5 * dt * a * (n * n) as f64);
        let angle = TAU * self.step as f64 / ORBIT_STEPS;
        let bell = |n: usize, centre: f64| -> Vec<f64> {
            (0..n).map(|i| (-(((i as f64 + 0.5) / n as f64 - centre) / HEATER_RADIUS).powi(2)).exp()).collect()
        };
        let heat_x = bell(nx, 0.5 + 0.3 * angle.cos());
        let heat_y = bell(ny, 0.5 + 0.3 * angle.sin());
        let heat_z = bell(nz, 0.5 + 0.3 * (0.5 * angle).sin());

        let (t, k) = (&self.temperature, &self.conductivity);
        let mut next = t.clone();
        for (z, global_z) in self.planes.clone().enumerate() {
            for (y, heat_y) in heat_y.iter().enumerate() {
                let row = (z + 1) * plane + y * nx;
                let heat_zy = dt * power * 100.0 * heat_z[global_z] * heat_y;
                for (x, heat_x) in heat_x.iter().enumerate() {
                    let i = row + x;
                    let (ti, ki) = (t[i], f64::from(k[i]));
                    let through = |inside: bool, j: usize, a: f64| {
                        if inside { a * (ki + f64::from(k[j])) * (t[j] - ti) } else { 0.0 }
                    };
                    let gain = through(x > 0, i.wrapping_sub(1), ax)
                        + through(x + 1 < nx, i + 1, ax)
                        + through(y > 0, i - nx, ay)
                        + through(y + 1 < ny, i + nx, ay)
                        + through(true, i - plane, az)
                        + through(true, i + plane, az);
                    next[i] = ti + gain + heat_zy * heat_x;
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Alone;
    impl Exchange for Alone {
        fn halo(&mut self, _: &[f64], _: &[f64], _: &mut [f64], _: &mut [f64]) -> Result<(), Failure> {
            Ok(())
        }
        fn sum(&mut self, parts: &[f64]) -> Result<f64, Failure> {
            Ok(parts.iter().sum())
        }
    }

    #[test]
    fn a_cosine_decays_as_fast_as_the_difference_equation_says() {
        let grid = Grid { nx: 16, ny: 6, nz: 5 };
        let mut block = Block::cold(grid, 0..grid.nz);
        block.heated = false;
        block.conductivity.fill(1.0);
        let wave = |i: usize| (0.5 * TAU * (i as f64 + 0.5) / grid.nx as f64).cos();
        for (i, t) in block.temperature.iter_mut().enumerate() {
            *t = wave(i % grid.nx);
        }
        // An eigenvector of the discrete operator with insulated ends: each step multiplies this vector by a constant
        // factor.
        let half_angle = 0.25 * TAU / grid.nx as f64;
        let factor = 1.0 - block.dt() * (grid.nx * grid.nx) as f64 * 4.0 * half_angle.sin().powi(2);
        for _ in 0..50 {
            block.advance(&mut Alone).expect("alone");
        }
        for (i, t) in block.temperature[block.own()].iter().enumerate() {
            let exact = wave(i % grid.nx) * factor.powi(50);
            assert!((t - exact).abs() < 1e-12, "cell {i}: {t}, exact {exact}");
        }
    }

    #[test]
    fn the_regulator_brings_the_block_to_its_target_and_melts_some_of_it() {
        let grid = Grid { nx: 12, ny: 12, nz: 12 };
        let mut block = Block::cold(grid, 0..grid.nz);
        for _ in 0..600 {
            block.advance(&mut Alone).expect("alone");
        }
        assert!((0.8..1.3).contains(&block.mean), "mean {}", block.mean);
        let molten = block.melted_step.iter().filter(|&&step| step != NEVER).count();
        assert!((1..block.melted_step.len()).contains(&molten), "{molten} cells melted");
    }
}
