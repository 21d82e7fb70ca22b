//! Finds known columns: elements of the same arrays in an older checkpoint. Known columns are available before the
//! first own column (a column of this segment) is decoded.
//!
//! If the older segment has elements of a group of own arrays, there is a known group with the same arrays. The known
//! group holds the elements of the older segment, and zeros in place of missing elements. Known groups and their
//! columns come before own groups and columns. The stream does not store known elements, only their positions in the
//! older segment. Own elements may be copied from known elements (`find_copies.rs`). The *twin* of an own column is
//! the same column of the older checkpoint, and may predict the own column (`column.rs`).
//!
//! Particles move from rank to rank, so the lengths of their arrays change with each checkpoint. The twin of a column
//! of a table (`particles/`) therefore holds the rows with the same numbers, from any place of the older segment.

use super::super::format::group::{Group, Kind};
use super::super::format::layout::Layout;
use super::super::format::numbers::Elements;
use super::super::format::older::{Known, Like};
use super::super::particles::{Table, fill_known_rows, known_rows};
use crate::codec::{ArrayShape, Older, OlderPlace};

impl Known {
    /// Finds the known groups for the groups `own`, which were made from `arrays`. Stores in each of the `tables` its
    /// rows of the older segment.
    pub(crate) fn new(
        own: &[Group],
        tables: &mut [Table],
        arrays: &[ArrayShape],
        older: &Older,
        kind: Elements,
    ) -> Self {
        let (mut known, width) = (Self::default(), kind.width);
        let mut places = (arrays.iter().zip(&older.places)).filter(|(array, _)| array.elements > 0);
        let arrays_in_all: usize = own.iter().map(|group| group.arrays.len()).sum();
        if older.places.len() != arrays.len() || places.clone().count() != arrays_in_all {
            return known; // the arrays were replaced by one row of numbers
        }
        let places: Vec<Vec<&OlderPlace>> = (own.iter())
            .map(|group| places.by_ref().take(group.arrays.len()).map(|(_, place)| place).collect())
            .collect();
        for (t, table) in tables.iter_mut().enumerate() {
            table.older = known_rows(t, table, own, &places, older, kind);
        }
        for (n, (group, places)) in own.iter().zip(&places).enumerate() {
            let elements = |dims: &[usize; 3]| dims.iter().product::<usize>();
            let found = |place: &OlderPlace, dims| place.elements(width, elements(dims), older.raw.len());
            let found: Vec<_> = places.iter().zip(&group.arrays).map(|(place, dims)| found(place, dims)).collect();
            let is_by_number = group.table.is_some_and(|t| tables[t].older.is_some());
            if is_by_number || found.iter().all(Option::is_none) {
                continue;
            }
            known.groups.push(Group { table: None, ..group.clone() });
            known.like.push((n, 0));
            for (found, dims) in found.into_iter().zip(&group.arrays) {
                let (from, skip, count) = found.unwrap_or((0, 0, 0));
                known.run(None, skip);
                known.run(Some(from), count);
                known.run(None, elements(dims) - skip - count);
            }
        }
        for table in tables {
            let Some(rows) = &mut table.older else { continue };
            rows.first = known.groups.len();
            for (_, member, lane) in rows.columns(own) {
                let is_integer = own[member].is_integer;
                known.groups.push(Group { is_integer, ..Group::new(Kind::Plain, None, vec![table.dims]) });
                known.like.push((member, lane));
                known.run(None, table.dims.iter().product());
            }
        }
        known
    }

    fn run(&mut self, from: Option<usize>, count: usize) {
        match self.runs.last_mut() {
            _ if count == 0 => {}
            Some((None, before)) if from.is_none() => *before += count,
            Some((Some(start), before)) if from == Some(*start + *before) => *before += count,
            _ => self.runs.push((from, count)),
        }
    }

    /// The number of known elements.
    pub(crate) fn elements(&self) -> usize {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// The known elements, then the elements of the segment. `groups` and `tables` include the known groups. `None`
    /// if the older segment is too short.
    pub(crate) fn before(
        &self,
        body: &[u8],
        older: &[u8],
        kind: Elements,
        groups: &[Group],
        tables: &[Table],
    ) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(self.elements() * kind.width + body.len());
        self.fill(older, kind, &mut all)?;
        fill_known_rows(groups, tables, older, kind, &mut all)?;
        all.extend_from_slice(body);
        Some(all)
    }
}

/// The known columns, and the own columns to which they correspond.
pub(crate) struct Twins {
    /// The number of known columns. Known columns come before all other columns.
    pub columns: usize,
    /// The number of known elements.
    pub elements: usize,
    /// The twin of each column. Columns are numbered in the order of the segment.
    of: Vec<Option<usize>>,
}

impl Twins {
    pub(crate) fn new(layout: &Layout, like: &[Like]) -> Self {
        let first = layout.first_columns();
        let groups = like.len();
        let columns = first.get(groups).copied().unwrap_or(0);
        let mut of = vec![None; layout.columns.len()];
        for (n, (like, begin)) in like.iter().enumerate() {
            let own = groups + like;
            let table = layout.groups[own].table.map(|t| &layout.tables[t]);
            // A column of a table has a twin only if rows of the older segment were found by their numbers.
            if table.is_none_or(|table| table.older.as_ref().is_some_and(|rows| n >= rows.first)) {
                (0..layout.groups[n].lanes()).for_each(|lane| of[first[own] + begin + lane] = Some(first[n] + lane));
            }
        }
        let elements = (0..groups).map(|n| layout.elements_of(n)).sum();
        Self { columns, elements, of }
    }

    /// The twin of an own column. Columns are numbered in the order of the segment.
    pub(crate) fn of(&self, own: usize) -> Option<usize> {
        self.of[own]
    }

    /// The order of all columns: first the known columns, in the order of the own columns to which they correspond,
    /// then the own columns. With this order, the distance from an element to the same place in its twin is equal in
    /// all columns.
    pub(crate) fn first(&self, own: Vec<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = own.iter().filter_map(|&column| self.of[column]).collect();
        let mut is_there = vec![false; self.columns];
        order.iter().for_each(|&column| is_there[column] = true);
        order.extend((0..self.columns).filter(|&column| !is_there[column]));
        order.extend(own);
        order
    }

    /// The twin of a column, as its distance before the column in the order of coding.
    pub(crate) fn back(&self, layout: &Layout, place_of: &[usize], column: usize) -> Option<u16> {
        let twin = place_of[self.of[layout.order[column]]?];
        let back = u16::try_from(column - twin).ok()?;
        (layout.columns[twin].arrays == layout.columns[column].arrays).then_some(back)
    }
}

/// Gives known groups the same kind as the own groups to which they correspond. If own slabs were joined, the known
/// slabs are joined too.
pub(crate) fn same_kinds(layout: Layout, like: &[Like]) -> Option<Layout> {
    let mut groups = layout.groups.clone();
    for (n, (own, _)) in like.iter().enumerate() {
        if groups[like.len() + own].table.is_none() {
            groups[n].kind = groups[like.len() + own].kind;
        }
    }
    Layout::new(groups, layout.tables, None)
}

impl OlderPlace {
    /// The position in elements: the first element in the older segment, the number of elements of the array that
    /// come before the part, and the number of elements of the part. `None` if the position does not consist of whole
    /// elements.
    fn elements(&self, width: usize, most: usize, older_bytes: usize) -> Option<(usize, usize, usize)> {
        let Self { from, skip, bytes, is_other_length } = *self;
        let is_whole = [from, skip, bytes].iter().all(|n| n % width == 0) && bytes > 0 && !is_other_length;
        let is_there = skip.checked_add(bytes)? <= most * width && from.checked_add(bytes)? <= older_bytes;
        (is_whole && is_there).then_some((from / width, skip / width, bytes / width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOUBLES: Elements = Elements { width: 8, is_big: false, is_float: true };

    fn bytes(numbers: impl Iterator<Item = f64>) -> Vec<u8> {
        numbers.flat_map(f64::to_le_bytes).collect()
    }

    #[test]
    fn what_an_older_segment_has_comes_first_with_zeros_where_it_has_none_and_is_read_again() {
        let own = vec![Group::new(Kind::Plain, None, vec![[1, 1, 6]]), Group::new(Kind::Plain, None, vec![[1, 1, 4]])];
        let shape = |elements| ArrayShape { elements, dims: vec![elements], ..ArrayShape::default() };
        // The older segment has all elements of the first array except the first two, and no element of the second
        // array.
        let places = vec![OlderPlace { from: 8, skip: 16, bytes: 32, is_other_length: false }, OlderPlace::default()];
        let older = Older { raw: bytes((0..9).map(f64::from)), places };
        let known = Known::new(&own, &mut [], &[shape(6), shape(4)], &older, DOUBLES);
        assert_eq!((known.groups.len(), &known.like[..], known.elements()), (1, &[(0, 0)][..], 6));
        let body = bytes((0..10).map(|n| f64::from(n) * 0.5));
        let groups: Vec<Group> = known.groups.iter().chain(&own).cloned().collect();
        let all = known.before(&body, &older.raw, DOUBLES, &groups, &[]).expect("the older segment is long enough");
        let then = bytes([0.0, 0.0, 1.0, 2.0, 3.0, 4.0].into_iter());
        assert!(all == [&then[..], &body].concat());
        assert!(known.before(&body, &older.raw[..32], DOUBLES, &groups, &[]).is_none(), "the older segment is cut");
        let mut written = Vec::new();
        known.write(&mut written);
        assert_eq!(Known::read(&mut &written[..], &older.raw, DOUBLES, 10), Some((1, then)));
        let layout = Layout::new(groups, Vec::new(), None).expect("a valid layout");
        let twins = Twins::new(&layout, &known.like);
        assert_eq!((twins.columns, twins.of(1), twins.of(2)), (1, Some(0), None));
        assert_eq!(twins.first(vec![2, 1]), [0, 2, 1]);
    }
}
