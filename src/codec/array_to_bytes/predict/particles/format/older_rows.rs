//! Rows of an older segment that belong to the same particles as the rows of a table: both rows have the same
//! identification number.

use super::super::super::format::group::{Dims, Group, Kind};
use super::super::super::format::numbers::Elements;
use crate::codec::array_to_bytes::varint::{put, take};

/// The rows of an older segment whose identification numbers are also in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OlderRows {
    /// Index of the first known group that holds these rows. There is one known group for each column.
    pub first: usize,
    /// Where the older segment holds the identification numbers of the rows: for each array, the first element, and
    /// the count of elements.
    pub keys: Vec<(usize, usize)>,
    /// The groups of the table that are also in the older segment, in increasing order. For each group, the first
    /// element of the rows of each array.
    pub members: Vec<(usize, Vec<usize>)>,
}

/// The index of an array, and the index of a row in this array.
pub(crate) type RowAt = (u32, u32);

/// The index that stands in place of an array if a place has no row.
pub(crate) const NO_ROW: u32 = u32::MAX;

impl OlderRows {
    /// For each of `places` places, the first row of the older segment that has the number of the place. The number
    /// of place 0 is `first`, and the number increases by 1 with each place.
    pub(crate) fn rows(&self, first: u64, places: usize, older: &[u8], kind: Elements) -> Option<Vec<RowAt>> {
        let mut found = vec![(NO_ROW, 0); places];
        let all = self.keys.iter().try_fold(0usize, |sum, (_, rows)| sum.checked_add(*rows))?;
        (all <= older.len() / kind.width).then_some(())?;
        for (array, &(from, rows)) in (0u32..).zip(&self.keys) {
            let from = from.checked_mul(kind.width)?;
            let numbers = older.get(from..from.checked_add(rows.checked_mul(kind.width)?)?)?;
            for (row, number) in (0u32..).zip(numbers.chunks_exact(kind.width)) {
                let slot = kind.load(number).checked_sub(first).and_then(|slot| usize::try_from(slot).ok());
                if let Some(place) = slot.and_then(|slot| found.get_mut(slot))
                    && place.0 == NO_ROW
                {
                    *place = (array, row);
                }
            }
        }
        Some(found)
    }

    /// The columns: for each column, the known group, the own group, and the lane of the own group.
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

    /// The inverse of [`OlderRows::write`], for table number `t` of `groups`. The numbers of the rows are in group
    /// `key`. `dims` are the extents of the table's places.
    pub(crate) fn read(bytes: &mut &[u8], t: usize, key: usize, dims: Dims, groups: &[Group]) -> Option<Self> {
        let mut rows = Self { first: take(bytes)?, ..Self::default() };
        for _ in 0..take(bytes)? {
            rows.keys.push((take(bytes)?, take(bytes)?));
        }
        for _ in 0..take(bytes)? {
            let own = take(bytes)?;
            let is_next = rows.members.last().is_none_or(|(last, _)| *last < own);
            let is_member = own != key && groups.get(own).is_some_and(|group| group.table == Some(t));
            (is_next && is_member).then_some(())?;
            rows.members.push((own, (0..rows.keys.len()).map(|_| take(bytes)).collect::<Option<_>>()?));
        }
        let is_known = |(n, ..): (usize, usize, usize)| {
            let group = groups.get(n).filter(|group| group.table.is_none() && group.kind == Kind::Plain);
            group.is_some_and(|group| group.chunk.is_none() && group.arrays == [dims])
        };
        let are_known = rows.first <= groups.len() && rows.columns(groups).all(is_known);
        are_known.then_some(rows)
    }
}
