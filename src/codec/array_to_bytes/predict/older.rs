//! What an older checkpoint has of the same arrays: columns that are known before the first own one is decoded.
//!
//! For each group of own arrays of which the older segment has anything there is a group of just the same arrays, filled
//! with its elements, and with zeros where it has none. These groups come first, and their columns too. Nothing of them is
//! stored but which elements of the older segment they hold: own elements may be copied from them (`repeats.rs`), and
//! each own column may be predicted by its *twin*, the same column of the older checkpoint (`choose.rs`).
//!
//! Particles wander from rank to rank, so that their arrays have another length each time. What has places in a table
//! (`tables.rs`) has a twin whose rows are those of the same numbers, wherever they are in the older segment.

use super::group::{Group, Kind};
use super::layout::Layout;
use super::numbers::Elements;
use super::tables::Table;
use crate::codec::array_to_bytes::varint::{put, take};
use crate::codec::{ArrayShape, Older, OlderPlace};

/// Rows of an older segment that have the numbers of a table's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OlderRows {
    /// The first of the known groups that hold them, one for each column.
    pub first: usize,
    /// Where the numbers are, array by array, and how many: elements of the older segment.
    keys: Vec<(usize, usize)>,
    /// Of the groups of the table those that it has, rising, and where the rows of each array begin.
    pub members: Vec<(usize, Vec<usize>)>,
}

/// Of the places of a table one in so many must have a row in the older segment.
const THERE_PART: usize = 2;

/// An array, and a row of it; of a place without any the array is this.
type RowAt = (u32, u32);

const NO_ROW: u32 = u32::MAX;

impl OlderRows {
    /// What an older segment has of a table's rows, from where it has each array of each group.
    fn of(
        t: usize,
        table: &Table,
        own: &[Group],
        places: &[Vec<&OlderPlace>],
        older: &Older,
        kind: Elements,
    ) -> Option<Self> {
        let elements = |place: &OlderPlace, own: usize| {
            let OlderPlace { from, skip, bytes, is_other_length } = *place;
            let is_there = from.checked_add(bytes).is_some_and(|end| end <= older.raw.len());
            let is_whole = is_there && skip == 0 && (is_other_length || bytes == own * kind.width);
            (is_whole && from % kind.width == 0 && bytes % kind.width == 0)
                .then(|| (from / kind.width, bytes / kind.width))
        };
        let of_group = |n: usize| {
            let arrays = own[n].arrays.iter().map(|dims| dims.iter().product::<usize>());
            places[n].iter().zip(arrays).map(|(place, own)| elements(place, own))
        };
        // Chunks are filled up with zeros, which are no rows.
        let is_zero =
            |n: usize| older.raw.get(n * kind.width..(n + 1) * kind.width).is_none_or(|bytes| kind.load(bytes) == 0);
        let keys: Vec<(usize, usize)> = of_group(table.key)
            .map(Option::unwrap_or_default)
            .map(|(from, all)| (from, (0..all).rev().find(|&row| !is_zero(from + row)).map_or(0, |row| row + 1)))
            .collect();
        let rows_of = |n: usize| -> Option<Vec<usize>> {
            let each = of_group(n).zip(&keys).map(|(found, &(_, rows))| match rows {
                0 => Some(0),
                _ => found.filter(|(_, count)| *count >= rows * own[n].lanes()).map(|(from, _)| from),
            });
            each.collect()
        };
        let members = (own.iter().enumerate()).filter(|(n, group)| group.table == Some(t) && *n != table.key);
        let members: Vec<(usize, Vec<usize>)> = members.filter_map(|(n, _)| Some((n, rows_of(n)?))).collect();
        let rows = Self { first: 0, keys, members };
        let there = rows.rows(table, &older.raw, kind)?.iter().filter(|(array, _)| *array != NO_ROW).count();
        // What is known has no more elements than what is coded.
        let lanes: usize = rows.members.iter().map(|(n, _)| own[*n].lanes()).sum();
        let is_little = lanes * table.places() <= (lanes + 1) * table.slots.len();
        (lanes > 0 && is_little && there * THERE_PART >= table.places()).then_some(rows)
    }

    /// For each place the row of the older segment that has its number, the first of equals.
    fn rows(&self, table: &Table, older: &[u8], kind: Elements) -> Option<Vec<RowAt>> {
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

/// Fills the known groups that hold rows of an older segment; a place whose number it does not have gets what is before it, or
/// zero. `None` where the older segment is too short, or a group is not known.
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
    /// Of each of them, which of the own groups it is like, counted from the first own one, and the lane it begins with.
    pub like: Vec<Like>,
    /// The elements: from where in the older segment, or none for zeros; how many.
    runs: Vec<(Option<usize>, usize)>,
}

impl Known {
    /// For these own groups, made of these arrays; tells their tables which rows are known.
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
            return known; // the arrays do not add up, and are taken as one row of numbers
        }
        let places: Vec<Vec<&OlderPlace>> = (own.iter())
            .map(|group| places.by_ref().take(group.arrays.len()).map(|(_, place)| place).collect())
            .collect();
        for (t, table) in tables.iter_mut().enumerate() {
            table.older = OlderRows::of(t, table, own, &places, older, kind);
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

    /// How many elements.
    pub(crate) fn elements(&self) -> usize {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// The elements, then those of the segment itself. `groups` and `tables` are of all. `None` where the older segment is too
    /// short.
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
        fill_by_number(groups, tables, older, kind, &mut all)?;
        all.extend_from_slice(body);
        Some(all)
    }

    /// `None` where the older segment is too short.
    fn fill(&self, older: &[u8], kind: Elements, into: &mut Vec<u8>) -> Option<()> {
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

/// Which columns are known, and which own ones are like them.
pub(crate) struct Twins {
    /// How many columns are known; they come first.
    pub columns: usize,
    /// How many elements.
    pub elements: usize,
    /// For each column, by its number in the segment's own order, the known one that is like it.
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
            // Of what has places in a table, only what is known by its numbers.
            if table.is_none_or(|table| table.older.as_ref().is_some_and(|rows| n >= rows.first)) {
                (0..layout.groups[n].lanes()).for_each(|lane| of[first[own] + begin + lane] = Some(first[n] + lane));
            }
        }
        let elements = (0..groups).map(|n| layout.elements_of(n)).sum();
        Self { columns, elements, of }
    }

    /// How many columns the known groups have, where these are as a reader needs them: in no table, with so many elements,
    /// and before all others. `None` where they are not.
    pub(crate) fn check(layout: &Layout, groups: usize, elements: usize) -> Option<usize> {
        let all_known = layout.groups.get(..groups)?;
        all_known.iter().all(|group| group.table.is_none()).then_some(())?;
        let columns = all_known.iter().map(Group::lanes).sum::<usize>();
        let found = layout.columns.get(..columns)?.iter().map(|column| column.elements).sum::<usize>();
        let are_first = layout.order[..columns].iter().all(|&column| column < columns);
        (are_first && found == elements).then_some(columns)
    }

    /// The known column that is like an own one, both by their number in the segment's own order.
    pub(crate) fn of(&self, own: usize) -> Option<usize> {
        self.of[own]
    }

    /// The known columns in the order of those that are like them, then these in theirs: what is at the same place in
    /// both then lies at the same distance all along.
    pub(crate) fn first(&self, own: Vec<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = own.iter().filter_map(|&column| self.of[column]).collect();
        let mut is_there = vec![false; self.columns];
        order.iter().for_each(|&column| is_there[column] = true);
        order.extend((0..self.columns).filter(|&column| !is_there[column]));
        order.extend(own);
        order
    }

    /// How many columns before a column its twin is, both by their place in the order of coding.
    pub(crate) fn back(&self, layout: &Layout, place_of: &[usize], column: usize) -> Option<u16> {
        let twin = place_of[self.of[layout.order[column]]?];
        let back = u16::try_from(column - twin).ok()?;
        (layout.columns[twin].arrays == layout.columns[column].arrays).then_some(back)
    }
}

/// What is like in both has one kind: slabs that were joined now are joined then.
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
    /// In elements: from where, how many of the array come before, how many. `None` where there are no whole ones.
    fn elements(&self, width: usize, most: usize, older_bytes: usize) -> Option<(usize, usize, usize)> {
        let Self { from, skip, bytes, is_other_length } = *self;
        let is_whole = [from, skip, bytes].iter().all(|n| n % width == 0) && bytes > 0 && !is_other_length;
        let is_there = skip.checked_add(bytes)? <= most * width && from.checked_add(bytes)? <= older_bytes;
        (is_whole && is_there).then_some((from / width, skip / width, bytes / width))
    }
}
