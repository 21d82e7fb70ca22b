//! Writes synthetic checkpoints of any number of ranks and bytes. A seed determines all bytes, so no data is stored.
//!
//! The ranks are blocks of one grid over the unit cube. The file of each rank has these parts, as the checkpoints of
//! simulation codes have them:
//!
//! | part | share of the bytes | what it imitates |
//! |---|---:|---|
//! | `gas` | 45 % | seven fields of doubles on the rank's block, see below |
//! | `Grid...` | 15 % | refined grids: small cubes of single precision, whose number and size differ between ranks |
//! | `particles` | 20 % | positions, velocities and numbers of particles, in the order in which a code keeps them |
//! | `tracers` | 10 % | single precision in chunks that HDF5 has shuffled and deflated |
//! | `tables` | 5 % | tables that are equal on all ranks and at all steps |
//! | `cells` | 5 % | material numbers and flags, which are mostly constant |
//!
//! The velocity of the gas has the spectrum of turbulence. Pressure, temperature and energy are computed from the
//! other fields. Each number of the gas has a random relative error of about 1e-7, because the numbers of a solver
//! are not smooth to the last bit.

use hdf5::Group;
use mcr_test_support::Random;
use std::f64::consts::TAU;
use std::path::{Path, PathBuf};

/// A checkpoint to write.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub ranks: u32,
    /// Bytes of all ranks together. The written checkpoint differs from this number by a few per cent.
    pub bytes: u64,
    pub seed: u64,
}

/// Each field is the sum of this number of waves.
const WAVES: usize = 24;
/// Number of waves in the velocity of particles, whose positions are on no grid.
const WAVES_OF_PARTICLES: usize = 8;
/// Largest wave number, in waves along the edge of the unit cube.
const WAVE_NUMBER_MAX: f64 = 64.0;
/// Maximum relative random error of each number.
const ERROR: f64 = 1e-7;
/// Simulated time between two steps. In this time, large waves move by about a hundredth of the cube.
const STEP_TIME: f64 = 0.01;
/// Bytes of a particle: three positions (double), three velocities (single), the number, and the mass (single).
const PARTICLE_BYTES: u64 = 3 * 8 + 3 * 4 + 8 + 4;
/// Number of fields in the part `gas`.
const GAS_FIELDS: u64 = 7;
/// Number of fields of a refined grid.
const GRID_FIELDS: [&str; 3] = ["Density", "TotalEnergy", "x-velocity"];

/// The name of the file of a rank.
pub fn file_name(step: u32, rank: u32) -> String {
    format!("sim.it_{step:04}.rank_{rank:05}.h5")
}

/// Writes one step of a checkpoint, one file for each rank, below an existing directory. Returns the paths.
pub fn write(spec: &Spec, step: u32, to: &Path) -> hdf5::Result<Vec<PathBuf>> {
    let model = Model::new(spec, step);
    let write_rank = |rank| {
        let path = to.join(file_name(step, rank));
        model.write_rank(rank, &path)?;
        Ok(path)
    };
    (0..spec.ranks).map(write_rank).collect()
}

/// A wave: `amplitude * cos(TAU * k x + phase)`.
#[derive(Clone, Copy)]
struct Wave {
    k: [f64; 3],
    amplitude: f64,
    phase: f64,
}

/// The fields of all ranks at one step.
struct Model {
    spec: Spec,
    step: u32,
    /// Number of blocks along x, y and z.
    blocks: [u32; 3],
    density: Vec<Wave>,
    pressure: Vec<Wave>,
    velocity: [Vec<Wave>; 3],
    tracer: Vec<Wave>,
}

/// A part of the unit cube with equally spaced points.
struct Lattice {
    origin: [f64; 3],
    spacing: [f64; 3],
    /// Number of points along each edge.
    edge: usize,
}

impl Model {
    fn new(spec: &Spec, step: u32) -> Self {
        let mut random = Random::new(spec.seed);
        let time = f64::from(step) * STEP_TIME;
        let mut waves = || waves(&mut random, time);
        let (density, pressure, tracer) = (waves(), waves(), waves());
        Self {
            spec: *spec,
            step,
            blocks: blocks(spec.ranks),
            density,
            pressure,
            velocity: [waves(), waves(), waves()],
            tracer,
        }
    }

    fn write_rank(&self, rank: u32, path: &Path) -> hdf5::Result<()> {
        let bytes = self.spec.bytes / u64::from(self.spec.ranks);
        // The numbers of `random` differ at each step. The numbers of `lasting` are the same at all steps.
        let mut random = seeded(self.spec.seed, rank, self.step + 1);
        let mut lasting = seeded(self.spec.seed, rank, 0);
        let file = hdf5::File::create(path)?;
        let block = self.block(rank, bytes * 45 / 100);
        self.write_gas(&file.create_group("gas")?, &block, &mut random)?;
        self.write_grids(&file, &block, bytes * 15 / 100, &mut lasting, &mut random)?;
        self.write_particles(&file.create_group("particles")?, rank, &block, bytes * 20 / 100, &mut lasting)?;
        self.write_tracers(&file.create_group("tracers")?, &block, bytes * 10 / 100, &mut random)?;
        self.write_tables(&file.create_group("tables")?, bytes * 5 / 100)?;
        self.write_cells(&file.create_group("cells")?, &block, bytes * 5 / 100)?;
        let attribute = file.new_attr::<f64>().create("time")?;
        attribute.write_scalar(&(f64::from(self.step) * STEP_TIME))?;
        file.close()
    }

    /// The block of a rank. `bytes` is the size of its gas.
    fn block(&self, rank: u32, bytes: u64) -> Lattice {
        let [nx, ny, _] = self.blocks;
        let at = [rank % nx, rank / nx % ny, rank / nx / ny];
        let edge = edge_of(bytes / 8 / GAS_FIELDS);
        let width = self.blocks.map(|n| 1.0 / f64::from(n));
        Lattice {
            origin: [0, 1, 2].map(|axis| f64::from(at[axis]) * width[axis]),
            spacing: width.map(|width| width / edge as f64),
            edge,
        }
    }

    fn write_gas(&self, group: &Group, block: &Lattice, random: &mut Random) -> hdf5::Result<()> {
        let shape = [block.edge; 3];
        let mut write = |name: &str, values: &[f64]| {
            let values: Vec<f64> = values.iter().map(|value| value * (1.0 + ERROR * unit(random))).collect();
            group.new_dataset::<f64>().shape(shape).create(name)?.write_raw(&values)
        };
        let density: Vec<f64> = block.sum(&self.density).iter().map(|sum| (0.5 * sum).exp()).collect();
        let waves = block.sum(&self.pressure);
        let pressure: Vec<f64> = density.iter().zip(waves).map(|(d, sum)| d.powf(1.4) * (1.0 + 0.05 * sum)).collect();
        let temperature: Vec<f64> = pressure.iter().zip(&density).map(|(p, d)| p / d).collect();
        let velocity = self.velocity.each_ref().map(|waves| block.sum(waves));
        let energy: Vec<f64> = (0..density.len())
            .map(|i| pressure[i] / 0.4 + 0.5 * density[i] * velocity.iter().map(|v| v[i] * v[i]).sum::<f64>())
            .collect();
        write("density", &density)?;
        write("pressure", &pressure)?;
        write("temperature", &temperature)?;
        write("energy", &energy)?;
        for (name, values) in ["velocity_x", "velocity_y", "velocity_z"].iter().zip(&velocity) {
            write(name, values)?;
        }
        Ok(())
    }

    /// Writes refined grids at random places of the block, with an eighth of the spacing of the block.
    fn write_grids(
        &self,
        file: &Group,
        block: &Lattice,
        bytes: u64,
        lasting: &mut Random,
        random: &mut Random,
    ) -> hdf5::Result<()> {
        let mut left = bytes;
        for number in 1.. {
            let edge = 8 + 2 * lasting.index(9);
            let grid_bytes = (edge * edge * edge * 4 * GRID_FIELDS.len()) as u64;
            if grid_bytes > left {
                break;
            }
            left -= grid_bytes;
            let inside = |axis: usize, place: f64| block.origin[axis] + place * block.spacing[axis] * block.edge as f64;
            let places = [0, 1, 2].map(|_| 0.5 + 0.5 * unit(lasting));
            let grid = Lattice {
                origin: [0, 1, 2].map(|axis| inside(axis, places[axis])),
                spacing: block.spacing.map(|spacing| spacing / 8.0),
                edge,
            };
            let group = file.create_group(&format!("Grid{number:08}"))?;
            let density = grid.sum(&self.density);
            let energy = grid.sum(&self.pressure);
            let velocity = grid.sum(&self.velocity[0]);
            for (name, sum) in GRID_FIELDS.iter().zip([density, energy, velocity]) {
                let values: Vec<f32> =
                    sum.iter().map(|sum| ((0.5 * sum).exp() * (1.0 + ERROR * unit(random))) as f32).collect();
                group.new_dataset::<f32>().shape([edge; 3]).create(*name)?.write_raw(&values)?;
            }
        }
        Ok(())
    }

    /// The particles begin near the points of a lattice and move with the gas. A simulation code keeps its particles
    /// mostly in the order of their numbers. To imitate this order, each block of 64 consecutive particles is
    /// shuffled.
    fn write_particles(
        &self,
        group: &Group,
        rank: u32,
        block: &Lattice,
        bytes: u64,
        lasting: &mut Random,
    ) -> hdf5::Result<()> {
        let count = (bytes / PARTICLE_BYTES) as usize;
        let edge = (count as f64).cbrt().ceil().max(1.0) as usize;
        let time = f64::from(self.step) * STEP_TIME;
        let mut order: Vec<usize> = (0..count).collect();
        for mixed in order.chunks_mut(64) {
            (1..mixed.len()).rev().for_each(|last| mixed.swap(last, lasting.index(last + 1)));
        }
        let mut positions = [const { Vec::new() }; 3];
        let mut velocities = [const { Vec::new() }; 3];
        let mut numbers = Vec::with_capacity(count);
        for nth in order {
            let cell = [nth % edge, nth / edge % edge, nth / edge / edge];
            let width = |axis: usize| block.spacing[axis] * block.edge as f64 / edge as f64;
            let start =
                [0, 1, 2].map(|axis| block.origin[axis] + (cell[axis] as f64 + 0.3 * unit(lasting)) * width(axis));
            for axis in 0..3 {
                let velocity = at_point(&self.velocity[axis][..WAVES_OF_PARTICLES], start);
                positions[axis].push(start[axis] + 0.1 * time * velocity);
                velocities[axis].push((velocity * (1.0 + 0.01 * unit(lasting))) as f32);
            }
            numbers.push(i64::from(rank) * 1_000_000_000 + nth as i64);
        }
        for (axis, name) in ["x", "y", "z"].iter().enumerate() {
            group.new_dataset_builder().with_data(&positions[axis]).create(format!("position_{name}").as_str())?;
            group.new_dataset_builder().with_data(&velocities[axis]).create(format!("velocity_{name}").as_str())?;
        }
        group.new_dataset_builder().with_data(&numbers).create("number")?;
        group.new_dataset_builder().with_data(&vec![1.5e-3f32; count]).create("mass")?;
        Ok(())
    }

    fn write_tracers(&self, group: &Group, block: &Lattice, bytes: u64, random: &mut Random) -> hdf5::Result<()> {
        let edge = edge_of(bytes / 4);
        let spacing = block.spacing.map(|spacing| spacing * block.edge as f64 / edge as f64);
        let lattice = Lattice { origin: block.origin, spacing, edge };
        let values: Vec<f32> = lattice.sum(&self.tracer).iter().map(|sum| (sum + 1e-4 * unit(random)) as f32).collect();
        let chunk = [edge.min(32); 3];
        let builder = group.new_dataset::<f32>().shuffle().deflate(4).chunk(chunk).shape([edge; 3]);
        builder.create("metallicity")?.write_raw(&values)
    }

    fn write_tables(&self, group: &Group, bytes: u64) -> hdf5::Result<()> {
        let mut random = Random::new(self.spec.seed ^ 0x7ab1e);
        let rows = ((bytes / 8) as f64).sqrt().max(1.0) as usize;
        let values: Vec<f64> = (0..rows * rows)
            .map(|i| ((i / rows) as f64 * 0.1).exp() / (1.0 + (i % rows) as f64) * (1.0 + 1e-3 * unit(&mut random)))
            .collect();
        group.new_dataset::<f64>().shape([rows, rows]).create("opacity")?.write_raw(&values)
    }

    /// The material depends on the density. The flag of a cell is set where the density is high.
    fn write_cells(&self, group: &Group, block: &Lattice, bytes: u64) -> hdf5::Result<()> {
        let edge = edge_of(bytes / 5);
        let spacing = block.spacing.map(|spacing| spacing * block.edge as f64 / edge as f64);
        let sum = Lattice { origin: block.origin, spacing, edge }.sum(&self.density);
        let materials: Vec<i32> = sum.iter().map(|sum| (sum * 1.5).round() as i32).collect();
        let flags: Vec<u8> = sum.iter().map(|sum| u8::from(*sum > 1.5)).collect();
        group.new_dataset::<i32>().shape([edge; 3]).create("material")?.write_raw(&materials)?;
        group.new_dataset::<u8>().shape([edge; 3]).create("flag")?.write_raw(&flags)
    }
}

impl Lattice {
    /// The sum of waves at all points, in C order: z is the fastest index.
    fn sum(&self, waves: &[Wave]) -> Vec<f64> {
        let n = self.edge;
        let angle = |wave: &Wave, axis: usize, i: usize| {
            TAU * wave.k[axis] * (self.origin[axis] + i as f64 * self.spacing[axis])
        };
        // cos(a + b) = cos(a) cos(b) - sin(a) sin(b): so the sine and cosine of the angles along z are computed once
        // for each wave.
        let tables: Vec<Vec<(f64, f64)>> = waves
            .iter()
            .map(|wave| (0..n).map(|i| angle(wave, 2, i).sin_cos()).map(|(sin, cos)| (cos, sin)).collect())
            .collect();
        let mut values = vec![0.0; n * n * n];
        for (row, points) in values.chunks_exact_mut(n.max(1)).enumerate() {
            let (x, y) = (row / n, row % n);
            for (wave, table) in waves.iter().zip(&tables) {
                let (sin, cos) = (angle(wave, 0, x) + angle(wave, 1, y) + wave.phase).sin_cos();
                let (sin, cos) = (wave.amplitude * sin, wave.amplitude * cos);
                points.iter_mut().zip(table).for_each(|(point, (c, s))| *point += cos * c - sin * s);
            }
        }
        values
    }
}

/// The sum of waves at one point.
fn at_point(waves: &[Wave], point: [f64; 3]) -> f64 {
    let angle = |wave: &Wave| TAU * (0..3).map(|axis| wave.k[axis] * point[axis]).sum::<f64>() + wave.phase;
    waves.iter().map(|wave| wave.amplitude * angle(wave).cos()).sum()
}

/// Waves of random directions. The wave numbers are spaced equally in their logarithm, so that the amplitude k^(-1/3)
/// gives the energy spectrum k^(-5/3) of turbulence. The phase of a wave changes with the time and the wave number.
fn waves(random: &mut Random, time: f64) -> Vec<Wave> {
    let wave = |nth: usize| {
        let number = WAVE_NUMBER_MAX.powf(nth as f64 / (WAVES - 1) as f64);
        let direction = [0, 1, 2].map(|_| unit(random));
        let length = direction.iter().map(|d| d * d).sum::<f64>().sqrt().max(1e-3);
        let turned = TAU * unit(random) + TAU * time * number.powf(2.0 / 3.0);
        Wave { k: direction.map(|d| d / length * number), amplitude: 0.5 * number.powf(-1.0 / 3.0), phase: turned }
    };
    (0..WAVES).map(wave).collect()
}

/// A random number from -1 to 1.
fn unit(random: &mut Random) -> f64 {
    (random.next_bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Random numbers of a rank and of a purpose.
fn seeded(seed: u64, rank: u32, purpose: u32) -> Random {
    let mut random = Random::new(seed ^ (u64::from(rank) << 32) ^ u64::from(purpose));
    for _ in 0..4 {
        random.next_bits(); // after these steps, seeds that differ in one bit give very different numbers
    }
    random
}

/// The edge of the largest cube with at most this number of points, and at least 1.
fn edge_of(points: u64) -> usize {
    let edge = (points as f64).cbrt() as u64;
    (if (edge + 1).pow(3) <= points { edge + 1 } else { edge.max(1) }) as usize
}

/// Number of blocks along each axis, as equal as the number of ranks allows (like MPI_Dims_create).
fn blocks(ranks: u32) -> [u32; 3] {
    let divisors = |n: u32| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let shapes = divisors(ranks).flat_map(|x| divisors(ranks / x).map(move |y| [x, y, ranks / x / y]));
    shapes.min_by_key(|shape| shape.iter().max().copied().unwrap_or(0)).unwrap_or([ranks, 1, 1])
}
