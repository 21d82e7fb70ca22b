//! Tables whose rows have numbers: particles that wander from rank to rank, and keep their number.
//!
//! A table is an array of different integers and others with as many rows. Where nearly all numbers between the least and
//! the greatest are there, the rows are put in the order of the numbers. Numbers are given once, at the beginning, row
//! by row of a lattice: so whatever was near then stands near, in up to three dimensions, and tables that were given
//! numbers alike (gas and dark matter) lie on each other. The order that the rows came in is stored as well, along a
//! curve (`curve.rs`) or as differences.

use super::curve::{Curve, Runs};
use super::fit::{Sampled, select};
use super::group::{Dims, Group, Kind, product};
use super::layout::Layout;
use super::numbers::Elements;
use super::older::OlderRows;
use super::order::{by_size, precision};
use super::residual::{self, Effort, Numbers};
use crate::codec::array_to_bytes::varint::{put, take};
use crate::codec::threads;

/// Rows of a table at least, and columns of real numbers with them.
const ROWS_MIN: usize = 512;
/// Of the places this part may be empty, and a few more.
const HOLES_PART: usize = 32;
const HOLES_MORE: usize = 8;
const TABLES_MAX: usize = 64;
/// Rows by which the two orders are compared.
const SAMPLE: usize = 512;
/// Mean step from row to row, as a part of all extents, over which positions do not tell the order.
const STEP_MAX: f64 = 0.2;
/// How an order is stored: as differences of places, or along a curve.
const STEPS: usize = 0;
const CURVE: usize = 1;
/// A curve that leaves less than a byte for so many rows is as good as any other way.
const CURVE_PART: usize = 16;
/// Positions by which it is decided whether they go round, and pairs of rows by which whether those near in space follow each other.
const LOOKED_AT: usize = 512;
/// How alike distances from the places must be for positions to go round: 1 if all are the same, 0 if they are anyhow.
const SURE_MIN: f64 = 0.5;

/// Rows with numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The group that holds the numbers.
    pub key: usize,
    /// The least number.
    pub first: u64,
    /// A place for each number from there on.
    pub dims: Dims,
    /// How many rows of each array have a number; those after them stay where they are.
    pub rows: Vec<usize>,
    /// Places without a row, rising.
    pub holes: Vec<u32>,
    /// Of each row with a number, its place.
    pub slots: Vec<u32>,
    /// Of each column that has places here, in the segment's own order: how it goes round.
    pub wraps: Vec<Option<Wrap>>,
    /// Rows of an older segment with the same numbers, if it has any.
    pub older: Option<OlderRows>,
}

/// Positions in a periodic box, given out along an axis of the places: those that left on one side and came in on the
/// other are computed with as if they had gone on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wrap {
    pub axis: usize,
    pub period: f64,
    /// Where those at place 0 of the axis are about.
    pub offset: f64,
}

impl Eq for Wrap {} // no part of it is NaN

impl Wrap {
    fn is_valid(&self) -> bool {
        self.axis < 3 && self.period.is_normal() && self.period > 0.0 && self.offset.is_finite()
    }

    /// The position as if it had gone on; `at` is the place, of so many along each axis.
    #[inline(always)]
    pub(crate) fn unwrapped(&self, value: f64, at: [usize; 3], dims: Dims) -> f64 {
        let about = self.offset + self.period / dims[self.axis] as f64 * at[self.axis] as f64;
        // Nearly all are about there: no rounds, for which nobody waits for a quotient.
        let is_there = (about - value).abs() < self.period * 0.49;
        let rounds = if is_there { 0.0 } else { ((about - value) / self.period + 0.5).floor() };
        let found = value + self.period * rounds;
        if found.is_finite() { found } else { 0.0 }
    }

    /// A predicted position, in the box again.
    #[inline(always)]
    pub(crate) fn wrapped(&self, value: f64) -> f64 {
        let is_inside = value > 0.0 && value < self.period;
        if is_inside { value } else { value - self.period * (value / self.period).floor() }
    }

    /// How the positions go round, if they do: along the axis by which they rise as places do. The box ends at a round number.
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

/// Of numbers none of which is NaN, several at a time.
fn least_and_greatest(values: &[f64]) -> (f64, f64) {
    let (mut low, mut high) = ([f64::MAX; 8], [f64::MIN; 8]);
    let (eights, rest) = values.as_chunks::<8>();
    for (n, &value) in eights.iter().flat_map(|eight| eight.iter().enumerate()).chain(rest.iter().enumerate()) {
        low[n] = if value < low[n] { value } else { low[n] };
        high[n] = if value > high[n] { value } else { high[n] };
    }
    (low.into_iter().fold(f64::MAX, f64::min), high.into_iter().fold(f64::MIN, f64::max))
}

/// Numbers in the order of rows, to be had by their places.
struct Placed<'a> {
    values: &'a [f64],
    row_at: &'a [u32],
}

impl Placed<'_> {
    fn at(&self, place: usize) -> f64 {
        self.values[self.row_at[place] as usize]
    }
}

/// How many places there may be for so many rows.
fn places_max(rows: usize) -> usize {
    rows + rows / HOLES_PART + HOLES_MORE
}

fn rows_of(group: &Group) -> impl Iterator<Item = usize> {
    let lanes = group.lanes();
    group.arrays.iter().map(move |dims| dims.iter().product::<usize>() / lanes)
}

/// Lines of numbers or of points.
fn is_list(group: &Group) -> bool {
    match group.kind {
        Kind::Plain => group.arrays.iter().all(|dims| dims[0] == 1 && dims[1] == 1),
        Kind::Lanes(_) => true,
        Kind::Points { .. } | Kind::Join(_) => false,
    }
}

/// Three extents for so many places: a cube, a square, or a line.
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

impl Table {
    pub(crate) fn places(&self) -> usize {
        self.dims.iter().product()
    }

    /// So many groups come before all others.
    pub(crate) fn move_on(&mut self, groups: usize) {
        self.key += groups;
        self.older.iter_mut().flat_map(|rows| &mut rows.members).for_each(|(own, _)| *own += groups);
    }

    fn row_count(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Whether a group has the rows that have numbers, and perhaps more.
    fn fits(&self, group: &Group) -> bool {
        is_list(group)
            && group.arrays.len() == self.rows.len()
            && rows_of(group).zip(&self.rows).all(|(all, kept)| all >= *kept)
    }

    /// The table whose numbers are in this group, which begins at this element.
    fn of(n: usize, group: &Group, from: usize, load: &impl Fn(usize) -> u64) -> Option<Self> {
        if group.kind != Kind::Plain || !is_list(group) {
            return None;
        }
        let mut table = Self { key: n, ..Self::default() };
        let mut keys = Vec::new();
        let mut at = from;
        for all in rows_of(group) {
            // Chunks are filled up with zeros.
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
        table.slots = keys.iter().map(|key| (key - first) as u32).collect(); // fewer than 2^30
        Some(table)
    }

    /// The row at each place; at one without a row, that before it.
    fn row_at(&self) -> Vec<u32> {
        let mut row_at = vec![0; self.places()];
        (0u32..).zip(&self.slots).for_each(|(row, &slot)| row_at[slot as usize] = row);
        self.fill(&mut row_at);
        row_at
    }

    /// Bits for each number less, if rows are in the order of their numbers.
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

    /// How the known columns of the same numbers go round: as their own ones do.
    pub(crate) fn known_wraps(&self, t: usize, groups: &[Group]) -> Vec<(usize, Wrap)> {
        let Some(rows) = &self.older else { return Vec::new() };
        let members = groups.iter().enumerate().filter(|(n, group)| group.table == Some(t) && *n != self.key);
        let own: Vec<(usize, usize)> =
            members.flat_map(|(n, group)| (0..group.lanes()).map(move |lane| (n, lane))).collect();
        let wrap_of = |n: usize, lane: usize| *self.wraps.get(own.iter().position(|&column| column == (n, lane))?)?;
        rows.columns(groups).filter_map(|(known, n, lane)| Some((known, wrap_of(n, lane)?))).collect()
    }

    /// Whether there is a row at each place.
    pub(crate) fn is_row(&self) -> Vec<bool> {
        let mut is_row = vec![true; self.places()];
        self.holes.iter().for_each(|&hole| is_row[hole as usize] = false);
        is_row
    }

    /// Gives each place without a row what is before it.
    pub(crate) fn fill<T: Copy>(&self, values: &mut [T]) {
        for &hole in &self.holes {
            values[hole as usize] = values[(hole as usize).saturating_sub(1)];
        }
    }
}

/// The tables of a segment; its groups are told which one they are of.
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
        // Of a column of real numbers: the bits for each number less, and how it goes round.
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
                // Without a row it may be beyond the end.
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

/// With `older`, also which rows of an older segment are known.
pub(crate) fn write(tables: &[Table], groups: &[Group], older: bool, out: &mut Vec<u8>) {
    put(tables.len(), out);
    for (t, table) in tables.iter().enumerate() {
        put(table.key, out);
        put((table.first & 0xFFFF_FFFF) as usize, out);
        put((table.first >> 32) as usize, out);
        table.dims.iter().for_each(|&n| put(n, out));
        rows_of(&groups[table.key]).zip(&table.rows).for_each(|(all, kept)| put(all - kept, out));
        let mut next = 0;
        for &hole in &table.holes {
            put((hole - next) as usize, out);
            next = hole + 1;
        }
        let members = || groups.iter().enumerate().filter(|(n, group)| group.table == Some(t) && *n != table.key);
        put(members().count(), out);
        members().for_each(|(n, _)| put(n, out));
        for wrap in &table.wraps {
            put(wrap.map_or(0, |wrap| wrap.axis + 1), out);
            if let Some(wrap) = wrap {
                out.extend(wrap.period.to_le_bytes());
                out.extend(wrap.offset.to_le_bytes());
            }
        }
        if older {
            put(usize::from(table.older.is_some()), out);
            table.older.iter().for_each(|rows| rows.write(out));
        }
    }
}

/// Reads what [`write`] wrote; the order of the rows is not there yet.
pub(crate) fn read(bytes: &mut &[u8], groups: &mut [Group], older: bool) -> Option<Vec<Table>> {
    let mut tables = Vec::new();
    for t in 0..take(bytes).filter(|&n| n <= TABLES_MAX)? {
        let key = take(bytes)?;
        let group =
            groups.get(key).filter(|group| group.kind == Kind::Plain && is_list(group) && group.table.is_none())?;
        let first = take(bytes)? as u64 | (take(bytes)? as u64) << 32;
        let dims = [take(bytes)?, take(bytes)?, take(bytes)?];
        let rows: Vec<usize> =
            rows_of(group).map(|all| take(bytes).and_then(|rest| all.checked_sub(rest))).collect::<Option<_>>()?;
        let row_count = rows.iter().sum::<usize>();
        let places = product(&dims).filter(|&places| places > 0 && places <= places_max(row_count))?;
        let mut holes = Vec::new();
        let mut next = 0usize;
        for _ in 0..places.checked_sub(row_count)? {
            let hole = next.checked_add(take(bytes)?).filter(|&hole| hole < places)?;
            holes.push(hole as u32); // fewer than 2^30
            next = hole + 1;
        }
        let mut table = Table { key, first, dims, rows, holes, slots: Vec::new(), wraps: Vec::new(), older: None };
        let mut columns = 0;
        for _ in 0..take(bytes)? {
            let member = take(bytes)?;
            let is_one = member != key && groups.get(member).is_some_and(|g| g.table.is_none() && table.fits(g));
            is_one.then_some(())?;
            (groups[member].table, groups[member].chunk) = (Some(t), None);
            columns += groups[member].lanes();
        }
        for _ in 0..columns {
            let axis = take(bytes)?;
            let mut number = || {
                let (number, rest) = bytes.split_first_chunk::<8>()?;
                *bytes = rest;
                Some(f64::from_le_bytes(*number))
            };
            table.wraps.push(match axis.checked_sub(1) {
                None => None,
                Some(axis) => {
                    Some(Wrap { axis, period: number()?, offset: number()? }).filter(Wrap::is_valid).map(Some)?
                }
            });
        }
        (groups[key].table, groups[key].chunk) = (Some(t), None);
        if older {
            table.older = match take(bytes)? {
                0 => None,
                1 => Some(OlderRows::read(bytes, t, &table, groups)?),
                _ => return None,
            };
        }
        tables.push(table);
    }
    Some(tables)
}

/// The order of a table's rows: what the header says of it, and both codes.
type Order = (Vec<u8>, [Vec<u8>; 2]);

/// Writes the orders of all tables' rows.
pub(crate) fn encode_orders(
    layout: &Layout,
    numbers: (Elements, &[u64]),
    (effort, threads): (u32, usize),
    header: &mut Vec<u8>,
    codes: &mut Vec<u8>,
) {
    for (own, parts) in threads::all(layout.tables.len(), threads, |t| encode_order(layout, t, numbers, effort)) {
        header.extend(own);
        for part in parts {
            put(part.len(), header);
            codes.extend(part);
        }
    }
}

fn encode_order(layout: &Layout, t: usize, (kind, bits): (Elements, &[u64]), effort: u32) -> Order {
    let table = &layout.tables[t];
    let code = |values: &[i64]| match values.is_empty() {
        true => Vec::new(),
        false => residual::encode(&Numbers { values, floats: None, is_predicted: true }, Effort::of(effort)),
    };
    let (three, is_row) = (positions(layout, t, kind, bits), table.is_row());
    let header = |way: usize| {
        let mut header = Vec::new();
        put(way, &mut header);
        three.iter().filter(|_| way > STEPS).flatten().for_each(|&column| put(column, &mut header));
        header
    };
    let mut best: Option<Order> = None;
    let mut take_it = |order: Order| {
        let length = |order: &Order| order.0.len() + order.1.iter().map(Vec::len).sum::<usize>();
        if best.as_ref().is_none_or(|best| length(&order) < length(best)) {
            best = Some(order);
        }
        best.as_ref().map_or(0, length)
    };
    if let Some(columns) = three {
        let point = point(layout, columns, kind, bits);
        // A cube as large as the box, if there is one, or around all points.
        for period in period(layout, columns).into_iter().map(Some).chain([None]) {
            let Some(curve) = Curve::find(&point, table.places(), &table.slots, period) else { continue };
            let Some(Runs { jumps, lengths }) = curve.runs(&point, &is_row, &table.slots) else { continue };
            let mut header = header(CURVE);
            curve.write(&mut header);
            put(jumps.len(), &mut header);
            if take_it((header, [code(&jumps), code(&lengths)])) * CURVE_PART < table.slots.len() {
                return best.unwrap_or_default();
            }
        }
    }
    let mut before = -1;
    let steps: Vec<i64> = (table.slots.iter())
        .map(|&slot| i64::from(slot) - std::mem::replace(&mut before, i64::from(slot)) - 1)
        .collect();
    take_it((header(STEPS), [code(&steps), Vec::new()]));
    best.unwrap_or_default()
}

/// The edge of the box in which positions go round, if it is a cube.
fn period(layout: &Layout, columns: [usize; 3]) -> Option<f64> {
    let [x, y, z] = columns.map(|column| layout.columns[column].wrap.map(|wrap| wrap.period));
    x.filter(|_| x == y && y == z)
}

/// What these columns have at a place.
fn point<'a>(
    layout: &'a Layout,
    columns: [usize; 3],
    kind: Elements,
    bits: &'a [u64],
) -> impl Fn(usize) -> [f64; 3] + 'a {
    let columns = columns.map(|n| &bits[layout.columns[n].base..][..layout.columns[n].elements]);
    move |n| columns.map(|column| kind.value(column[n]))
}

fn points(layout: &Layout, column: usize, kind: Elements, bits: &[u64]) -> Vec<f64> {
    let column = &layout.columns[column];
    bits[column.base..column.base + column.elements].iter().map(|&bits| kind.value(bits)).collect()
}

/// The three columns, in the order of coding, along which rows that follow each other are nearest: points of three
/// components, or where there are none three columns that follow each other.
fn positions(layout: &Layout, t: usize, kind: Elements, bits: &[u64]) -> Option<[usize; 3]> {
    let table = &layout.tables[t];
    let step = |column: usize| {
        let values = points(layout, column, kind, bits);
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)));
        let (mut sum, mut same, mut pairs) = (0.0, 0u32, 0u32);
        for pair in table.slots.windows(2).step_by(table.slots.len().div_ceil(LOOKED_AT).max(1)) {
            pairs += 1;
            let [a, b] = [values[pair[0] as usize], values[pair[1] as usize]];
            sum += (a - b).abs();
            same += u32::from(a == b);
        }
        let mean = sum / f64::from(pairs) / (high - low);
        // What takes few values tells nothing.
        if mean.is_finite() && same * 8 < pairs { mean } else { 1.0 }
    };
    let mut columns: Vec<(usize, usize, f64)> = Vec::new(); // lanes of its group, place in the order of coding, step
    layout.each_placed(|own, table, group| {
        if table == t
            && !group.is_integer
            && let Some(column) = layout.order.iter().position(|&n| n == own)
        {
            columns.push((group.lanes(), column, step(column)));
        }
    });
    let is_point = |three: &[(usize, usize, f64)]| three.iter().all(|(lanes, ..)| *lanes == 3);
    let points = columns.iter().any(|(lanes, ..)| *lanes == 3);
    let triples = (columns.windows(3)).filter(|three| is_point(three) == points);
    let mean = |three: &[(usize, usize, f64)]| three.iter().map(|(.., step)| step / 3.0).sum::<f64>();
    let best = triples.min_by(|a, b| mean(a).total_cmp(&mean(b))).filter(|three| mean(three) < STEP_MAX)?;
    Some([best[0].1, best[1].1, best[2].1])
}

/// The place of each row of all tables, from what [`encode_orders`] wrote.
pub(crate) fn decode_orders(
    layout: &Layout,
    numbers: (Elements, &[u64]),
    threads: usize,
    header: &mut &[u8],
    codes: &mut &[u8],
) -> Option<Vec<Vec<u32>>> {
    let mut stored = Vec::new();
    for table in &layout.tables {
        let mut columns = [0; 3];
        let way = take(header)?;
        if way > STEPS {
            for column in &mut columns {
                *column =
                    take(header).filter(|&n| layout.columns.get(n).is_some_and(|c| c.elements == table.places()))?;
            }
        }
        let curve = match way {
            CURVE => Some((Curve::read(header, table.places())?, take(header)?)),
            _ => None,
        };
        let mut parts: [&[u8]; 2] = [&[]; 2];
        for part in &mut parts {
            let (front, rest) = codes.split_at_checked(take(header)?)?;
            (*part, *codes) = (front, rest);
        }
        stored.push((way, columns, curve, parts));
    }
    let order = |t: usize| decode_order(layout, t, numbers, &stored[t]);
    threads::all(stored.len(), threads, order).into_iter().collect()
}

/// How an order is told, by which columns, by which curve and how many runs along it; and both codes.
type Stored<'a> = (usize, [usize; 3], Option<(Curve, usize)>, [&'a [u8]; 2]);

fn decode_order(
    layout: &Layout,
    t: usize,
    (kind, bits): (Elements, &[u64]),
    (way, columns, curve, parts): &Stored<'_>,
) -> Option<Vec<u32>> {
    let table = &layout.tables[t];
    let numbers = |code: &[u8], count: usize| match count {
        0 => code.is_empty().then(Vec::new),
        count => residual::decode(code, count, |_| 0, Vec::new()),
    };
    if let Some((curve, runs)) = curve {
        (*runs <= table.row_count()).then_some(())?;
        let runs = Runs { jumps: numbers(parts[0], *runs)?, lengths: numbers(parts[1], *runs)? };
        return curve.order(point(layout, *columns, kind, bits), &table.is_row(), &runs);
    }
    (*way == STEPS && parts[1].is_empty()).then_some(())?;
    let mut before = -1i64;
    (numbers(parts[0], table.row_count())?.into_iter())
        .map(|step| {
            before = before.checked_add(1)?.checked_add(step)?;
            u32::try_from(before).ok().filter(|&slot| (slot as usize) < table.places())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_whose_last_array_is_empty_have_places_and_go_round() {
        // 16 x 16 x 16 particles in a box of 100, those of the last planes in the second of three files; then nothing.
        let rows = [3072, 1024, 0];
        let (count, kind) = (4096usize, Elements { width: 4, is_big: false, is_float: true });
        let lists = |kind, lanes: usize| Group::new(kind, None, rows.map(|rows| [1, 1, rows * lanes]).to_vec());
        let keys = Group { is_integer: true, ..lists(Kind::Plain, 1) };
        let mut groups = vec![keys, lists(Kind::Lanes(3), 3)];
        // The rows come in an order that has nothing to do with their numbers.
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
