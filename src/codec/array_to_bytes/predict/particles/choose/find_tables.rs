//! Finds tables: groups whose rows have identification numbers. A table is made if sorting its rows by number saves
//! bytes.

use super::super::super::choose::fit::{Sampled, select};
use super::super::super::format::group::{Dims, Group, Kind};
use super::super::super::format::numbers::{Elements, by_size, precision};
use super::super::format::table::{TABLES_MAX, Table, Wrap, is_list, places_max, rows_of};
use crate::codec::threads;

/// The minimum number of rows of a table.
const ROWS_MIN: usize = 512;
/// The maximum number of rows that are sampled to compare the order by number with the original order.
const SAMPLE: usize = 512;
/// The maximum number of positions that are sampled to decide whether a coordinate is periodic.
const LOOKED_AT: usize = 512;
/// A coordinate counts as periodic only if the concentration of its offsets from the lattice is above this limit (0 =
/// uniform, 1 = identical).
const SURE_MIN: f64 = 0.5;

/// The smallest and the largest value. No value may be NaN. The loop compares eight values at a time.
fn least_and_greatest(values: &[f64]) -> (f64, f64) {
    let (mut low, mut high) = ([f64::MAX; 8], [f64::MIN; 8]);
    let (eights, rest) = values.as_chunks::<8>();
    for (n, &value) in eights.iter().flat_map(|eight| eight.iter().enumerate()).chain(rest.iter().enumerate()) {
        low[n] = if value < low[n] { value } else { low[n] };
        high[n] = if value > high[n] { value } else { high[n] };
    }
    (low.into_iter().fold(f64::MAX, f64::min), high.into_iter().fold(f64::MIN, f64::max))
}

/// Values in the original order of rows, with access by place.
struct Placed<'a> {
    values: &'a [f64],
    row_at: &'a [u32],
}

impl Placed<'_> {
    fn at(&self, place: usize) -> f64 {
        self.values[self.row_at[place] as usize]
    }
}

/// The extents for a number of places: a cube or a square if the number fits exactly, otherwise a line.
fn extents(places: usize) -> Dims {
    let root = |power: f64| (places as f64).powf(1.0 / power).round() as usize;
    let (cube, square) = (root(3.0), root(2.0));
    if cube * cube * cube == places {
        [cube; 3]
    } else if square * square == places {
        [1, square, square]
    } else {
        [1, 1, places]
    }
}

impl Wrap {
    /// The period of positions, if they are periodic, and the axis of places along which they increase. The end of
    /// the box must be a round number.
    fn of(placed: &Placed<'_>, dims: Dims) -> Option<Self> {
        let (low, high) = least_and_greatest(placed.values);
        if !(low >= 0.0 && high > 0.0 && high < 1e300) {
            return None;
        }
        let unit = 10f64.powi(high.log10().floor() as i32);
        let periods = [unit, unit / 10.0, unit / 100.0].map(|unit| (high / unit).ceil() * unit);
        let period = periods.into_iter().find(|period| high > period * 0.99 && low < period * 0.01)?;
        let [_, ny, nx] = dims;
        let places = placed.row_at.len();
        let turn = |axis: usize| {
            let (mut x, mut y) = (0.0, 0.0);
            let step = places.div_ceil(LOOKED_AT) | 1;
            for n in (0..places).step_by(step) {
                let at = [n / (ny * nx), n / nx % ny, n % nx][axis];
                let angle = (placed.at(n) / period - at as f64 / dims[axis] as f64) * std::f64::consts::TAU;
                (x, y) = (x + angle.cos(), y + angle.sin());
            }
            (x.hypot(y) / places.div_ceil(step) as f64, y.atan2(x) / std::f64::consts::TAU * period)
        };
        let turns = (0..3).filter(|&axis| dims[axis] > 1).map(|axis| (turn(axis), axis));
        let ((sure, offset), axis) = turns.max_by(|a, b| a.0.0.total_cmp(&b.0.0))?;
        Some(Self { axis, period, offset }).filter(|wrap| sure > SURE_MIN && wrap.is_valid())
    }
}

impl Table {
    /// The table whose identification numbers are in group `n`. The first element of the group is `from`.
    fn of(n: usize, group: &Group, from: usize, load: &impl Fn(usize) -> u64) -> Option<Self> {
        if group.kind != Kind::Plain || !is_list(group) {
            return None;
        }
        let mut table = Self { key: n, ..Self::default() };
        let mut keys = Vec::new();
        let mut at = from;
        for all in rows_of(group) {
            // Zeros at the end of an array are padding of a chunk, not numbers of rows.
            let kept = (0..all).rev().find(|&row| load(at + row) != 0).map_or(0, |row| row + 1);
            table.rows.push(kept);
            keys.extend((at..at + kept).map(load));
            at += all;
        }
        let (first, last) = (*keys.iter().min()?, *keys.iter().max()?);
        let places = usize::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?;
        if keys.len() < ROWS_MIN || places > places_max(keys.len()) {
            return None;
        }
        let mut is_there = vec![false; places];
        for &key in &keys {
            if std::mem::replace(&mut is_there[(key - first) as usize], true) {
                return None;
            }
        }
        table.first = first;
        table.dims = extents(places);
        table.holes = (0u32..).zip(&is_there).filter(|(_, is)| !**is).map(|(place, _)| place).collect();
        table.slots = keys.iter().map(|key| (key - first) as u32).collect(); // the value is below 2^30
        Some(table)
    }

    /// The row at each place. A place without a row gets the row of the place before it.
    fn row_at(&self) -> Vec<u32> {
        let mut row_at = vec![0; self.places()];
        (0u32..).zip(&self.slots).for_each(|(row, &slot)| row_at[slot as usize] = row);
        self.fill(&mut row_at);
        row_at
    }

    /// Number of bits that sorting the rows by number saves for each element.
    fn gain(&self, placed: &Placed<'_>, kind: Elements) -> f64 {
        let [_, ny, nx] = self.dims;
        let bits = |len: usize, value: &dyn Fn(usize) -> f64, steps: &[usize]| {
            let begin = steps.iter().max().copied().unwrap_or(0);
            let count = SAMPLE.min(len.saturating_sub(begin));
            let at: Vec<usize> = (0..count).map(|n| begin + n * (len - begin) / count).collect();
            let target: Vec<f64> = at.iter().map(|&n| value(n)).collect();
            let weigh = by_size(&target, precision(kind));
            let term =
                |of: &dyn Fn(usize) -> f64| -> Sampled { at.iter().zip(&weigh).map(|(&n, w)| of(n) * w).collect() };
            let terms = (steps.iter()).map(|&step| term(&|n| value(n - step))).chain([term(&|_| 1.0)]).collect();
            let target: Vec<f64> = target.iter().zip(&weigh).map(|(y, w)| y * w).collect();
            select(&target, &vec![0.5; target.len()], terms, 8, 0.01).bits
        };
        let mut steps = vec![1, 2, nx, nx + 1, nx * ny, nx * ny + 1, nx * ny + nx, nx * ny + nx + 1];
        steps.retain(|&step| step < self.places() / 4);
        bits(placed.values.len(), &|n| placed.values[n], &[1, 2, 3]) - bits(self.places(), &|n| placed.at(n), &steps)
    }
}

/// Finds the tables of a segment, and sets the table of each group.
pub(crate) fn find(groups: &mut [Group], body: &[u8], kind: Elements, threads: usize) -> Vec<Table> {
    let load = |n: usize| kind.load(&body[n * kind.width..(n + 1) * kind.width]);
    let begins: Vec<usize> = (groups.iter())
        .scan(0, |at, group| {
            let own = *at;
            *at += rows_of(group).sum::<usize>() * group.lanes();
            Some(own)
        })
        .collect();
    let mut tables: Vec<Table> = Vec::new();
    for n in 0..groups.len() {
        if !groups[n].is_integer || groups[n].table.is_some() || tables.len() == TABLES_MAX {
            continue;
        }
        let Some(mut table) = Table::of(n, &groups[n], begins[n], &load) else { continue };
        let members: Vec<usize> =
            (0..groups.len()).filter(|&m| m != n && groups[m].table.is_none() && table.fits(&groups[m])).collect();
        let columns: Vec<(usize, usize)> =
            members.iter().flat_map(|&m| (0..groups[m].lanes()).map(move |lane| (m, lane))).collect();
        let row_at = table.row_at();
        // For a column of real numbers: the bits that the order of the table saves for each number, and the period.
        let looked_at = threads::all(columns.len(), threads, |n| {
            let (member, lane) = columns[n];
            let (group, lanes) = (&groups[member], groups[member].lanes());
            if group.is_integer {
                return None;
            }
            let mut at = begins[member] + lane;
            let mut values = vec![0.0; table.row_count()];
            let mut rest = &mut values[..];
            for (all, &kept) in rows_of(group).zip(&table.rows) {
                let own;
                (own, rest) = rest.split_at_mut(kept);
                // If no rows are left, the first byte may be beyond the end of `body`.
                kind.load_values(body.get(at * kind.width..).unwrap_or_default(), lanes, own);
                at += all * lanes;
            }
            let placed = Placed { values: &values, row_at: &row_at };
            Some((table.gain(&placed, kind), Wrap::of(&placed, table.dims)))
        });
        let gain: f64 = looked_at.iter().flatten().map(|(gain, _)| gain).sum();
        table.wraps = looked_at.iter().map(|found| found.and_then(|(_, wrap)| wrap)).collect();
        if gain <= 0.0 {
            continue;
        }
        for m in members.into_iter().chain([n]) {
            (groups[m].table, groups[m].chunk) = (Some(tables.len()), None);
        }
        tables.push(table);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_whose_last_array_is_empty_have_places_and_go_round() {
        // There are 16 x 16 x 16 particles in a box of edge 100. The particles of the last planes are in the second
        // of three files, and the third file is empty.
        let rows = [3072, 1024, 0];
        let (count, kind) = (4096usize, Elements { width: 4, is_big: false, is_float: true });
        let lists = |kind, lanes: usize| Group::new(kind, None, rows.map(|rows| [1, 1, rows * lanes]).to_vec());
        let keys = Group { is_integer: true, ..lists(Kind::Plain, 1) };
        let mut groups = vec![keys, lists(Kind::Lanes(3), 3)];
        // The order of the rows is independent of their numbers.
        let number = |row: usize| row * 1365 % count;
        let mut body: Vec<u8> = (0..count).flat_map(|row| (number(row) as u32 + 1).to_le_bytes()).collect();
        for row in 0..count {
            let number = number(row);
            for place in [number / 256, number / 16 % 16, number % 16] {
                let wobble = ((number * 7 + place * 3) % 11) as f32 * 0.1;
                let at = (place as f32 * 6.25 + wobble + 99.5) % 100.0;
                body.extend(at.to_le_bytes());
            }
        }
        let tables = find(&mut groups, &body, kind, 2);
        assert_eq!((tables.len(), groups[0].table, groups[1].table), (1, Some(0), Some(0)));
        assert_eq!((tables[0].first, tables[0].dims, &tables[0].rows[..]), (1, [16; 3], &rows[..]));
        let axes: Vec<usize> = tables[0].wraps.iter().flatten().map(|wrap| wrap.axis).collect();
        assert_eq!(axes, [0, 1, 2]);
        assert!(tables[0].wraps.iter().flatten().all(|wrap| wrap.period == 100.0));
    }

    #[test]
    fn the_least_and_the_greatest_number_are_found_wherever_they_are() {
        for (len, low, high) in [(1, 0, 0), (7, 6, 0), (8, 0, 7), (29, 28, 3), (64, 13, 50)] {
            let mut values: Vec<f64> = (0..len).map(|n| f64::from(n as u8) * 0.5).collect();
            (values[low], values[high]) = (-3.0, 99.0);
            let expected = if low == high { (99.0, 99.0) } else { (-3.0, 99.0) };
            assert_eq!(least_and_greatest(&values), expected, "of {len}");
        }
    }
}
