//! Kernel sums: what the neighbours of a particle tell of its density.
//!
//! Codes of smoothed particle hydrodynamics compute a density as a sum over the neighbours: the mass of each times a
//! kernel of its distance, in units of the particle's own smoothing length (J. J. Monaghan, "Smoothed particle
//! hydrodynamics", Annual Review of Astronomy and Astrophysics 30, 1992; V. Springel, "The cosmological simulation code
//! GADGET-2", Monthly Notices of the RAS 364, 2005, section 3.1; kernels of higher order: W. Dehnen, H. Aly, ibid. 425, 2012).
//! Both lengths and densities are in a checkpoint, so once positions and lengths are known, the densities are but for rounding
//! and for what moved since they were computed.
//!
//! Which columns these are is found by measurement: the sum for some particles, by each column that could be the length and with
//! each kernel, is held against every other column. A sum is one more term of a prediction (`linear.rs`).

use super::layout::{Kind, Layout, put, take};
use super::neighbours::{KERNELS, Kernel, Points, Way};
use super::tables::Table;
use super::tree::square;
use crate::codec::threads;

/// Sums at most.
const SUMS_MAX: usize = 4;
/// Particles at least, and by how many columns are tried.
const PARTICLES_MIN: usize = 512;
const TRIED: usize = 16;
/// Columns that are held against each other at most, and those that are tried as masses.
const COLUMNS_TRIED_MAX: usize = 24;
const MASSES_TRIED_MAX: usize = 8;
/// Neighbours that a particle may have: with fewer the column is no length, more are not looked at.
const NEIGHBOURS_MIN: usize = 8;
const NEIGHBOURS_MAX: usize = 1024;
/// A column is a sum times a constant if it is off by no more than this part, in the middle.
const OFF_MAX: f64 = 0.02;
/// It must vary by so many times what it is off.
const VARIES_MIN: f64 = 8.0;

/// What the radius of the kernel is of the length that codes write: the same, two or three times it, or by the kernel's
/// standard deviation (Dehnen and Aly, table 1: cubic, quintic, C2, C4, C6).
const SCALES: [f64; 8] = [1.0, 2.0, 3.0, 1.825742, 2.195775, 1.936492, 2.207940, 2.449490];

/// For each place of some columns a sum over those around it. Columns are named in the order of coding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sum {
    pub positions: [usize; 3],
    /// Times `scale` it is how far neighbours count.
    pub length: usize,
    /// How much each neighbour counts; all alike without it.
    pub weights: Option<usize>,
    pub kernel: Kernel,
    pub scale: f64,
    /// Whether neighbours are added one after the other, as earlier builds did.
    pub is_in_turn: bool,
    /// Where its values are, among those of all columns and sums.
    pub base: usize,
}

impl Eq for Sum {} // no part of it is NaN

impl Sum {
    pub(super) fn columns(&self) -> impl Iterator<Item = usize> {
        self.positions.into_iter().chain([self.length]).chain(self.weights)
    }

    /// The same, each column under another number.
    pub(super) fn with_columns(&self, number: impl Fn(usize) -> Option<usize>) -> Option<Self> {
        let [x, y, z] = self.positions.map(&number);
        let weights = match self.weights {
            Some(weights) => Some(number(weights)?),
            None => None,
        };
        Some(Self { positions: [x?, y?, z?], length: number(self.length)?, weights, ..*self })
    }

    /// The last column that it needs.
    pub(super) fn last(&self) -> usize {
        self.columns().max().unwrap_or(0)
    }

    /// Whether there are such columns, all alike.
    fn is_valid(&self, layout: &Layout) -> bool {
        let own = layout.columns.get(self.length);
        self.scale.is_normal()
            && self.scale > 0.0
            && own.is_some_and(|own| {
                self.columns().all(|n| layout.columns.get(n).is_some_and(|column| column.arrays == own.arrays))
            })
    }

    /// All sums, of values that are known up to the last column it needs. For elements of 4 bytes they are made of singles.
    pub(super) fn compute(&self, layout: &Layout, values: &[f64], width: usize, threads: usize) -> Vec<f64> {
        let column = |n: usize| {
            let column = &layout.columns[n];
            &values[column.base..column.base + column.elements]
        };
        let table = layout.table_of(self.length);
        let (lengths, weights) = (column(self.length), self.weights.map(column));
        let is_row = table.map_or_else(|| vec![true; lengths.len()], Table::is_row);
        let (positions, periods) = in_box(self.positions, layout, values);
        let points = Points {
            places: positions.each_ref().map(Vec::as_slice),
            periods,
            is_one: &is_row,
            radius: &|n| Some(lengths[n] * self.scale).filter(|r| r.is_finite() && *r > 0.0).unwrap_or(0.0),
            weight: &|n| weights.map_or(1.0, |weights| weights[n]),
        };
        let way = match (self.is_in_turn, width) {
            (true, _) => Way::InTurn,
            (false, 4) => Way::Singles,
            (false, _) => Way::Doubles,
        };
        let mut sums = points.sums(self.kernel, way, threads);
        // A place without a row has what is before it, here as in the columns.
        if let Some(table) = table {
            table.fill(&mut sums);
        }
        sums
    }
}

/// Positions in the box where they go round, and the box's extents, 0 where they do not.
fn in_box(columns: [usize; 3], layout: &Layout, values: &[f64]) -> ([Vec<f64>; 3], [f64; 3]) {
    let columns = columns.map(|n| &layout.columns[n]);
    let positions = columns.map(|column| {
        let finite = |x: f64| if x.is_finite() { x } else { 0.0 };
        let in_box = |x: f64| finite(column.wrap.map_or(x, |wrap| wrap.wrapped(x)));
        values[column.base..column.base + column.elements].iter().map(|&x| in_box(x)).collect()
    });
    (positions, columns.map(|column| column.wrap.map_or(0.0, |wrap| wrap.period)))
}

pub(super) fn write(sums: &[Sum], out: &mut Vec<u8>) {
    put(sums.len(), out);
    for sum in sums {
        sum.positions.iter().for_each(|&n| put(n, out));
        put(sum.length, out);
        put(sum.weights.map_or(0, |n| n + 1), out);
        put(sum.kernel as usize + if sum.is_in_turn { 0 } else { KERNELS.len() }, out);
        out.extend(sum.scale.to_le_bytes());
    }
}

/// Reads what [`write()`] wrote, for these columns.
pub(super) fn read(bytes: &mut &[u8], layout: &Layout) -> Option<Vec<Sum>> {
    let mut sums = Vec::new();
    for _ in 0..take(bytes).filter(|&n| n <= SUMS_MAX)? {
        let positions = [take(bytes)?, take(bytes)?, take(bytes)?];
        let (length, weights) = (take(bytes)?, take(bytes)?.checked_sub(1));
        let number = take(bytes)?;
        let is_in_turn = number < KERNELS.len();
        let kernel = *KERNELS.get(if is_in_turn { number } else { number - KERNELS.len() })?;
        let (scale, rest) = bytes.split_first_chunk::<8>()?;
        *bytes = rest;
        let sum = Sum { positions, length, weights, kernel, scale: f64::from_le_bytes(*scale), is_in_turn, base: 0 };
        sums.push(Some(sum).filter(|sum| sum.is_valid(layout))?);
    }
    Some(sums)
}

/// A sum, and the column that it tells.
pub(super) struct Found {
    pub sum: Sum,
    pub target: usize,
    off: f64,
}

/// The sums that tell a column of the layout, but for the first ones, which are known.
pub(super) fn find(layout: &Layout, values: &[f64], known: usize, threads: usize) -> Vec<Found> {
    let place_of = layout.places();
    let mut best: Vec<Found> = Vec::new();
    for (group, first) in layout.groups.iter().zip(layout.first_columns()) {
        if group.kind != Kind::Lanes(3) {
            continue;
        }
        let positions = [first, first + 1, first + 2].map(|own| place_of[own]);
        let like = &layout.columns[positions[0]];
        if positions[0] < known || like.elements < PARTICLES_MIN {
            continue;
        }
        let others: Vec<usize> = (known..layout.columns.len())
            .filter(|n| !positions.contains(n) && !layout.columns[*n].is_integer)
            .filter(|&n| layout.columns[n].arrays == like.arrays)
            .collect();
        for found in Tried::new(layout, values, positions, &others, threads).sums() {
            match best.iter_mut().find(|other| other.target == found.target) {
                Some(other) if other.off <= found.off => {}
                Some(other) => *other = found,
                None => best.push(found),
            }
        }
    }
    // What tells a column is told by none.
    let tells: Vec<usize> = best.iter().flat_map(|found| found.sum.columns()).collect();
    best.retain(|found| !tells.contains(&found.target));
    best.truncate(SUMS_MAX);
    best
}

/// Some particles, and their neighbours.
struct Tried<'a> {
    positions: [usize; 3],
    /// For each particle the distances to those nearest to it, rising, and which these are.
    near: Vec<Vec<(f64, usize)>>,
    /// Of each column that may be used, by its number: the values, if all of the particles have positive ones.
    columns: Vec<(usize, &'a [f64])>,
    /// Which particles.
    particles: Vec<usize>,
}

impl<'a> Tried<'a> {
    fn new(layout: &Layout, values: &'a [f64], positions: [usize; 3], others: &[usize], threads: usize) -> Self {
        let ([xs, ys, zs], periods) = in_box(positions, layout, values);
        let is_row = layout.table_of(positions[0]).map(Table::is_row);
        let rows: Vec<usize> = (0..xs.len()).filter(|&n| is_row.as_ref().is_none_or(|is_row| is_row[n])).collect();
        let particles: Vec<usize> = (0..TRIED).filter_map(|n| rows.get(n * rows.len() / TRIED).copied()).collect();
        let mut columns = Vec::new();
        for &n in others {
            let column = &layout.columns[n];
            let values = &values[column.base..column.base + column.elements];
            if columns.len() < COLUMNS_TRIED_MAX
                && particles.iter().all(|&particle| values[particle] > 0.0 && values[particle].is_finite())
            {
                columns.push((n, values));
            }
        }
        let mut tried = Self { positions, near: Vec::new(), columns, particles };
        if tried.columns.len() < 2 {
            return tried;
        }
        // Both are in the box.
        let nearer = |off: f64, period: f64| off.abs().min((period - off.abs()).abs());
        let off = |a: f64, b: f64, axis: usize| match periods[axis] > 0.0 {
            true => nearer(a - b, periods[axis]),
            false => a - b,
        };
        tried.near = threads::all(tried.particles.len(), threads, |n| {
            let own = tried.particles[n];
            let mut near: Vec<(f64, usize)> = (rows.iter())
                .map(|&n| (square([off(xs[n], xs[own], 0), off(ys[n], ys[own], 1), off(zs[n], zs[own], 2)]), n))
                .collect();
            if near.len() > NEIGHBOURS_MAX {
                near.select_nth_unstable_by(NEIGHBOURS_MAX, |a, b| a.0.total_cmp(&b.0));
                near.truncate(NEIGHBOURS_MAX);
            }
            near.iter_mut().for_each(|(square, _)| *square = square.sqrt());
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            near
        });
        tried
    }

    /// Each column that is a sum times a constant, with the sum.
    fn sums(&self) -> Vec<Found> {
        let mut found = Vec::new();
        for (length, lengths) in &self.columns {
            if !varies(self.particles.iter().map(|&n| lengths[n]).collect(), 1e-3) {
                continue;
            }
            for scale in SCALES {
                let inside: Vec<&[(f64, usize)]> = (self.particles.iter().zip(&self.near))
                    .map(|(&n, near)| &near[..near.partition_point(|(distance, _)| *distance < lengths[n] * scale)])
                    .collect();
                let is_likely = |near: &&&[(f64, usize)]| (NEIGHBOURS_MIN..NEIGHBOURS_MAX).contains(&near.len());
                if inside.iter().filter(is_likely).count() * 4 < inside.len() * 3 {
                    continue;
                }
                for kernel in KERNELS {
                    self.by(&inside, (*length, lengths), (kernel, scale), &mut found);
                }
            }
        }
        found
    }

    fn by(
        &self,
        inside: &[&[(f64, usize)]],
        (length, lengths): (usize, &[f64]),
        (kernel, scale): (Kernel, f64),
        found: &mut Vec<Found>,
    ) {
        // Equal masses are a constant, which is a weight of the term.
        let differ = |masses: &[f64]| varies(self.particles.iter().map(|&n| masses[n]).collect(), 1e-6);
        let masses = self.columns.iter().filter(|(n, masses)| *n != length && differ(masses)).take(MASSES_TRIED_MAX);
        for weights in std::iter::once(None).chain(masses.copied().map(Some)) {
            let sums: Vec<f64> = (self.particles.iter().zip(inside))
                .map(|(&n, near)| {
                    let radius = lengths[n] * scale;
                    let q: Vec<f64> = near.iter().map(|(distance, _)| distance / radius).collect();
                    let counts: Vec<f64> =
                        near.iter().map(|&(_, other)| weights.map_or(1.0, |(_, masses)| masses[other])).collect();
                    kernel.sum(&q, &counts) / (radius * radius * radius)
                })
                .collect();
            for (target, values) in &self.columns {
                let is_source = *target == length || weights.is_some_and(|(n, _)| n == *target);
                if is_source {
                    continue;
                }
                let ratios = self.particles.iter().zip(&sums).map(|(&n, sum)| values[n] / sum).collect();
                let off = spread(ratios);
                let own: Vec<f64> = self.particles.iter().map(|&n| values[n]).collect();
                if off < OFF_MAX && varies(own, off * VARIES_MIN) {
                    let weights = weights.map(|(n, _)| n);
                    let positions = self.positions;
                    let sum = Sum { positions, length, weights, kernel, scale, is_in_turn: false, base: 0 };
                    found.push(Found { sum, target: *target, off });
                }
            }
        }
    }
}

fn varies(values: Vec<f64>, part: f64) -> bool {
    spread(values) > part
}

/// How far numbers are from the one in the middle, as a part of it, in the middle.
fn spread(mut values: Vec<f64>) -> f64 {
    let middle = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let of_all = middle(&mut values);
    let mut off = values.iter().map(|value| (value / of_all - 1.0).abs()).collect();
    let off = middle(&mut off);
    if off.is_finite() { off } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Group;
    use super::super::tables::Wrap;
    use super::*;

    /// A table of particles in a box that goes round along two axes, with holes: x, y, z, length, mass.
    fn particles(count: usize) -> (Layout, Vec<f64>) {
        let holes = vec![3, 200];
        let places = count + holes.len();
        let group = |kind, lanes| Group { table: Some(0), ..Group::new(kind, None, vec![[1, 1, count * lanes]]) };
        let plain = || group(Kind::Plain, 1);
        let wrap = |axis| Some(Wrap { axis, period: 4.0, offset: 0.0 });
        let table = Table {
            dims: [1, 1, places],
            rows: vec![count],
            holes,
            wraps: vec![wrap(2), None, wrap(2), None, None],
            ..Table::default()
        };
        let groups = vec![plain(), group(Kind::Lanes(3), 3), plain(), plain()];
        let layout = Layout::new(groups, vec![table], Some(vec![0, 1, 2, 3, 4])).expect("adds up");
        let mut state = 5u64;
        let mut some = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let values = (0..5 * places).map(|n| match n / places {
            // Some have gone on beyond the box.
            0..3 => some() * 4.4 - 0.2,
            3 => 0.3 + some() * 0.4,
            _ => 1.0 + some(),
        });
        (layout, values.collect())
    }

    fn every_pair(sum: &Sum, layout: &Layout, values: &[f64]) -> Vec<f64> {
        let places = layout.columns[0].elements;
        let value = |column: usize, n: usize| values[column * places + n];
        let table = layout.table_of(0).expect("they are in one");
        let is_row = table.is_row();
        let each = |n: usize| {
            let radius = value(3, n) * sum.scale;
            let mut total = 0.0;
            for other in (0..places).filter(|&other| is_row[other]) {
                let off = [0, 1, 2].map(|axis| {
                    let off = value(axis, n) - value(axis, other);
                    if axis == 1 { off } else { off - 4.0 * (off / 4.0).round() }
                });
                let distance = square(off).sqrt();
                if distance < radius {
                    let weight = sum.weights.map_or(1.0, |weights| value(weights, other));
                    total += sum.kernel.sum(&[distance / radius], &[weight]);
                }
            }
            total / radius.powi(3)
        };
        let mut sums: Vec<f64> = (0..places).map(each).collect();
        table.fill(&mut sums);
        sums
    }

    #[test]
    fn sums_are_those_over_every_pair_on_any_number_of_threads() {
        let (layout, values) = particles(700);
        for kernel in KERNELS {
            for (weights, scale) in [(None, 1.0), (Some(4), 2.0)] {
                let sum = Sum { positions: [0, 1, 2], length: 3, weights, kernel, scale, is_in_turn: false, base: 0 };
                let found = sum.compute(&layout, &values, 8, 1);
                let bits = |sums: &[f64]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<u64>>();
                assert_eq!(bits(&found), bits(&sum.compute(&layout, &values, 8, 5)));
                let expected = every_pair(&sum, &layout, &values);
                let in_turn = Sum { is_in_turn: true, ..sum.clone() }.compute(&layout, &values, 8, 1);
                for (found, most_off) in [(found, 1e-9), (in_turn, 1e-9), (sum.compute(&layout, &values, 4, 1), 1e-4)] {
                    for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let off = (found - expected).abs();
                        assert!(off <= expected * most_off, "{kernel:?} at {n}: {found}, not {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_column_that_is_a_sum_is_found_with_its_length_its_masses_and_its_kernel() {
        let (layout, mut values) = particles(700);
        let places = layout.columns[0].elements;
        // One more column, of the densities.
        let mut groups = layout.groups.clone();
        groups.push(groups[2].clone());
        let mut tables = layout.tables.clone();
        tables[0].wraps.push(None);
        let with_density = Layout::new(groups, tables, None).expect("adds up");
        for (kernel, weights, scale) in
            [(Kernel::Cubic, None, 2.0), (Kernel::WendlandC4, Some(4), 2.0), (Kernel::Quintic, None, 3.0)]
        {
            let sum = Sum { positions: [0, 1, 2], length: 3, weights, kernel, scale, is_in_turn: false, base: 0 };
            let made = sum.compute(&layout, &values, 8, 1);
            values.truncate(5 * places);
            values.extend(made.iter().enumerate().map(|(n, sum)| sum * (1.0 + (n % 3) as f64 * 1e-6)));
            let found = find(&with_density, &values, 0, 2);
            assert_eq!(found.len(), 1);
            assert_eq!((&found[0].sum, found[0].target), (&sum, 5));
            // Of other particles they are not.
            values[5 * places..].reverse();
            assert!(find(&with_density, &values, 0, 2).is_empty());
        }
    }

    #[test]
    fn where_everything_is_one_place_the_sums_are_nothing_and_soon_made() {
        let (layout, mut values) = particles(20_000);
        let places = layout.columns[0].elements;
        values[..3 * places].fill(1.0);
        let sum = Sum {
            positions: [0, 1, 2],
            length: 3,
            weights: None,
            kernel: Kernel::Cubic,
            scale: 1.0,
            is_in_turn: false,
            base: 0,
        };
        assert!(sum.compute(&layout, &values, 8, 1).iter().all(|&sum| sum == 0.0));
    }

    #[test]
    fn numbers_that_are_none_make_sums_that_are_numbers() {
        let (layout, values) = particles(700);
        for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, 1e300] {
            let values: Vec<f64> = values.iter().enumerate().map(|(n, &v)| if n % 7 == 0 { odd } else { v }).collect();
            for (is_in_turn, width) in [(true, 8), (false, 4), (false, 8)] {
                let (positions, kernel) = ([0, 1, 2], Kernel::WendlandC6);
                let sum = Sum { positions, length: 3, weights: Some(4), kernel, scale: 2.0, is_in_turn, base: 0 };
                assert!(sum.compute(&layout, &values, width, 2).iter().all(|sum| sum.is_finite()));
            }
            find(&layout, &values, 0, 1);
        }
    }
}
