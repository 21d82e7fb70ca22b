//! What an older checkpoint has of the same arrays: columns that are known before the first own one is decoded.
//!
//! The encoder finds them in `known.rs`.

use super::super::particles::format::table::Table;
use super::group::{Group, Kind};
use super::layout::Layout;
use super::numbers::Elements;
use crate::codec::array_to_bytes::varint::{put, take};

/// Rows of an older segment that have the numbers of a table's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OlderRows {
    /// The first of the known groups that hold them, one for each column.
    pub first: usize,
    /// Where the numbers are, array by array, and how many: elements of the older segment.
    pub keys: Vec<(usize, usize)>,
    /// Of the groups of the table those that it has, rising, and where the rows of each array begin.
    pub members: Vec<(usize, Vec<usize>)>,
}

/// An array, and a row of it; of a place without any the array is this.
pub(crate) type RowAt = (u32, u32);

pub(crate) const NO_ROW: u32 = u32::MAX;

impl OlderRows {
    /// For each place the row of the older segment that has its number, the first of equals.
    pub(crate) fn rows(&self, table: &Table, older: &[u8], kind: Elements) -> Option<Vec<RowAt>> {
        let mut found = vec![(NO_ROW, 0); table.places()];
        let all = self.keys.iter().try_fold(0usize, |sum, (_, rows)| sum.checked_add(*rows))?;
        (all <= older.len() / kind.width).then_some(())?;
        for (array, &(from, rows)) in (0u32..).zip(&self.keys) {
            let from = from.checked_mul(kind.width)?;
            let numbers = older.get(from..from.checked_add(rows.checked_mul(kind.width)?)?)?;
            for (row, number) in (0u32..).zip(numbers.chunks_exact(kind.width)) {
                let slot = kind.load(number).checked_sub(table.first).and_then(|slot| usize::try_from(slot).ok());
                if let Some(place) = slot.and_then(|slot| found.get_mut(slot))
                    && place.0 == NO_ROW
                {
                    *place = (array, row);
                }
            }
        }
        Some(found)
    }

    /// The columns: of each its known group, its own one, and which lane of that.
    pub(crate) fn columns<'a>(&'a self, groups: &'a [Group]) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let lanes = |&(own, _): &(usize, Vec<usize>)| (0..groups[own].lanes()).map(move |lane| (own, lane));
        self.members.iter().flat_map(lanes).enumerate().map(|(n, (own, lane))| (self.first + n, own, lane))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.first, out);
        put(self.keys.len(), out);
        for &(from, rows) in &self.keys {
            put(from, out);
            put(rows, out);
        }
        put(self.members.len(), out);
        for (own, froms) in &self.members {
            put(*own, out);
            froms.iter().for_each(|&from| put(from, out));
        }
    }

    /// Reads what [`OlderRows::write`] wrote, for the table `t` of these groups.
    pub(crate) fn read(bytes: &mut &[u8], t: usize, table: &Table, groups: &[Group]) -> Option<Self> {
        let mut rows = Self { first: take(bytes)?, ..Self::default() };
        for _ in 0..take(bytes)? {
            rows.keys.push((take(bytes)?, take(bytes)?));
        }
        for _ in 0..take(bytes)? {
            let own = take(bytes)?;
            let is_next = rows.members.last().is_none_or(|(last, _)| *last < own);
            let is_member = own != table.key && groups.get(own).is_some_and(|group| group.table == Some(t));
            (is_next && is_member).then_some(())?;
            rows.members.push((own, (0..rows.keys.len()).map(|_| take(bytes)).collect::<Option<_>>()?));
        }
        let is_known = |(n, ..): (usize, usize, usize)| {
            let group = groups.get(n).filter(|group| group.table.is_none() && group.kind == Kind::Plain);
            group.is_some_and(|group| group.chunk.is_none() && group.arrays == [table.dims])
        };
        let are_known = rows.first <= groups.len() && rows.columns(groups).all(is_known);
        are_known.then_some(rows)
    }
}

/// Fills the known groups that hold rows of an older segment; a place whose number it does not have gets what is
/// before it, or zero. `None` where the older segment is too short, or a group is not known.
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
        let at = rows.rows(table, older, kind)?;
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

/// A group, and a lane of it.
pub(crate) type Like = (usize, usize);

/// What is known beforehand, as the encoder sees it.
#[derive(Default)]
pub(crate) struct Known {
    /// The groups that come first.
    pub groups: Vec<Group>,
    /// Of each of them, which of the own groups it is like, counted from the first own one, and the lane it begins
    /// with.
    pub like: Vec<Like>,
    /// The elements: from where in the older segment, or none for zeros; how many.
    pub runs: Vec<(Option<usize>, usize)>,
}

impl Known {
    /// `None` where the older segment is too short.
    pub(crate) fn fill(&self, older: &[u8], kind: Elements, into: &mut Vec<u8>) -> Option<()> {
        for &(from, count) in &self.runs {
            match from {
                None => into.resize(into.len() + count * kind.width, 0),
                Some(from) => {
                    let from = from.checked_mul(kind.width)?;
                    into.extend_from_slice(older.get(from..from.checked_add(count * kind.width)?)?);
                }
            }
        }
        Some(())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.groups.len(), out);
        put(self.runs.len(), out);
        for &(from, count) in &self.runs {
            put(from.map_or(0, |from| from + 1), out);
            put(count, out);
        }
    }

    /// Reads what [`Known::write`] wrote: how many groups, and their elements, at most `most`.
    pub(crate) fn read(bytes: &mut &[u8], older: &[u8], kind: Elements, most: usize) -> Option<(usize, Vec<u8>)> {
        let groups = take(bytes)?;
        let mut known = Self::default();
        let mut room = most;
        for _ in 0..take(bytes).filter(|&runs| runs <= most)? {
            let (from, count) = (take(bytes)?, take(bytes).filter(|&count| count > 0)?);
            room = room.checked_sub(count)?;
            known.runs.push((from.checked_sub(1), count));
        }
        let mut elements = Vec::with_capacity((most - room) * kind.width);
        known.fill(older, kind, &mut elements)?;
        Some((groups, elements))
    }
}

/// The number of columns of the known groups. `None` if these are in a table, do not have `elements` elements, or do
/// not come before all others.
pub(crate) fn known_columns(layout: &Layout, groups: usize, elements: usize) -> Option<usize> {
    let all_known = layout.groups.get(..groups)?;
    all_known.iter().all(|group| group.table.is_none()).then_some(())?;
    let columns = all_known.iter().map(Group::lanes).sum::<usize>();
    let found = layout.columns.get(..columns)?.iter().map(|column| column.elements).sum::<usize>();
    let are_first = layout.order[..columns].iter().all(|&column| column < columns);
    (are_first && found == elements).then_some(columns)
}
