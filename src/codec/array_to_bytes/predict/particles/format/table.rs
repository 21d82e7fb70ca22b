//! Tables whose rows have identification numbers: particles that move from rank to rank and keep their number.
//!
//! A table is an array of distinct integers (the numbers), and other arrays with the same number of rows. If nearly
//! all numbers between the smallest and the largest occur, the rows are sorted by number. Simulations assign the
//! numbers once, at the beginning, row by row of a lattice. Therefore particles that were neighbours on the lattice
//! are neighbours in the sorted table, in up to three dimensions. Tables with the same assignment of numbers (gas and
//! dark matter) have the same places. The original order of the rows is stored too, along a curve (`curve.rs`) or as
//! differences.

use super::super::super::format::group::{Dims, Group, Kind, product};
use super::super::super::format::numbers::Elements;
use super::older_rows::{NO_ROW, OlderRows};
use crate::codec::array_to_bytes::varint::{put, take};

/// The number of empty places is at most the number of rows divided by this divisor, plus [`HOLES_MORE`].
const HOLES_DIVISOR: usize = 32;
/// Number of empty places that every table may have.
const HOLES_MORE: usize = 8;
/// The maximum number of tables of a segment.
pub(crate) const TABLES_MAX: usize = 64;

/// A table: rows that each have a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The group that holds the numbers.
    pub key: usize,
    /// The smallest number.
    pub first: u64,
    /// The extents of the places. There is one place for each number from `first` on.
    pub dims: Dims,
    /// For each array, the count of rows that have an identification number. The rows after them have no number, and
    /// are not moved.
    pub rows: Vec<usize>,
    /// The places without a row, in increasing order.
    pub holes: Vec<u32>,
    /// The place of each row with a number.
    pub slots: Vec<u32>,
    /// For each column of this table, in the order of the segment: the period, if the column is periodic.
    pub wraps: Vec<Option<Wrap>>,
    /// The rows of an older segment whose numbers occur in this table. `None` if there are no such rows.
    pub older: Option<OlderRows>,
}

/// Positions in a periodic box that increase along an axis of the places. If a particle leaves the box on one side
/// and enters the box on the other side, predictions use the position of the particle as if the box had no end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wrap {
    pub axis: usize,
    pub period: f64,
    /// The approximate position of particles at index 0 of the axis.
    pub offset: f64,
}

impl Eq for Wrap {} // no field is NaN

impl Wrap {
    pub(crate) fn is_valid(&self) -> bool {
        self.axis < 3 && self.period.is_normal() && self.period > 0.0 && self.offset.is_finite()
    }

    /// The position as if the box had no end. `at` is the place, and `dims` is the number of places along each axis.
    #[inline(always)]
    pub(crate) fn unwrapped(&self, value: f64, at: [usize; 3], dims: Dims) -> f64 {
        let about = self.offset + self.period / dims[self.axis] as f64 * at[self.axis] as f64;
        // Nearly all positions are within half a period of `about`, and need no division.
        let is_there = (about - value).abs() < self.period * 0.49;
        let rounds = if is_there { 0.0 } else { ((about - value) / self.period + 0.5).floor() };
        let found = value + self.period * rounds;
        if found.is_finite() { found } else { 0.0 }
    }

    /// A predicted position, moved back into the box.
    #[inline(always)]
    pub(crate) fn wrapped(&self, value: f64) -> f64 {
        let is_inside = value > 0.0 && value < self.period;
        if is_inside { value } else { value - self.period * (value / self.period).floor() }
    }
}

/// The maximum number of places for a number of rows.
pub(crate) fn places_max(rows: usize) -> usize {
    rows + rows / HOLES_DIVISOR + HOLES_MORE
}

pub(crate) fn rows_of(group: &Group) -> impl Iterator<Item = usize> {
    let lanes = group.lanes();
    group.arrays.iter().map(move |dims| dims.iter().product::<usize>() / lanes)
}

/// Whether all arrays of a group are lists of numbers or of points.
pub(crate) fn is_list(group: &Group) -> bool {
    match group.kind {
        Kind::Plain => group.arrays.iter().all(|dims| dims[0] == 1 && dims[1] == 1),
        Kind::Lanes(_) => true,
        Kind::Points { .. } | Kind::Join(_) => false,
    }
}

impl Table {
    pub(crate) fn places(&self) -> usize {
        self.dims.iter().product()
    }

    /// Adjusts the indices of groups after `groups` groups were inserted in front.
    pub(crate) fn move_on(&mut self, groups: usize) {
        self.key += groups;
        self.older.iter_mut().flat_map(|rows| &mut rows.members).for_each(|(own, _)| *own += groups);
    }

    pub(crate) fn row_count(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Whether each array of a group has at least as many rows as the matching array of numbers.
    pub(crate) fn fits(&self, group: &Group) -> bool {
        is_list(group)
            && group.arrays.len() == self.rows.len()
            && rows_of(group).zip(&self.rows).all(|(all, kept)| all >= *kept)
    }

    /// The known columns that hold rows of an older segment, with their periods. A known column has the period of the
    /// corresponding column of this segment.
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

    /// Gives each place without a row the value of the place before it.
    pub(crate) fn fill<T: Copy>(&self, values: &mut [T]) {
        for &hole in &self.holes {
            values[hole as usize] = values[(hole as usize).saturating_sub(1)];
        }
    }
}

/// Writes the tables. If `older` is true, the known rows of an older segment are written too.
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

/// The inverse of [`write`]. The order of the rows (`slots`) is filled in later.
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
            holes.push(hole as u32); // the value is below 2^30
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
                1 => Some(OlderRows::read(bytes, t, key, dims, groups)?),
                _ => return None,
            };
        }
        tables.push(table);
    }
    Some(tables)
}

/// Fills the known groups that hold rows of an older segment. If the older segment has no row for a place, the place
/// gets the value of the place before it, or zero. Returns `None` if the older segment is too short, or if a group is
/// not known.
pub(crate) fn fill_by_number(
    groups: &[Group],
    tables: &[Table],
    older: &[u8],
    kind: Elements,
    known: &mut [u8],
) -> Option<()> {
    let w = kind.width;
    for table in tables {
        let Some(rows) = &table.older else { continue };
        let at = rows.rows(table.first, table.places(), older, kind)?;
        let begin: usize = groups[..rows.first].iter().map(|group| group.elements().unwrap_or(0)).sum();
        for (n, own, lane) in rows.columns(groups) {
            let from = begin + (n - rows.first) * table.places();
            let (lanes, froms) = (groups[own].lanes(), &rows.members.iter().find(|(member, _)| *member == own)?.1);
            let column = known.get_mut(from.checked_mul(w)?..(from + table.places()).checked_mul(w)?)?;
            let mut last: &[u8] = &[0; 8][..w];
            for (to, &(array, row)) in column.chunks_exact_mut(w).zip(&at) {
                if array != NO_ROW {
                    let element = froms.get(array as usize)?.checked_add(row as usize * lanes + lane)?;
                    last = older.get(element.checked_mul(w)?..element.checked_add(1)?.checked_mul(w)?)?;
                }
                to.copy_from_slice(last);
            }
        }
    }
    Some(())
}
