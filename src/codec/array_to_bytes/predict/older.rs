//! What an older checkpoint has of the same arrays: columns that are known before the first own one is decoded.
//!
//! For each group of own arrays of which the older segment has anything there is a group of just the same arrays, filled
//! with its elements, and with zeros where it has none. These groups come first, and their columns too. Nothing of them is
//! stored but which elements of the older segment they hold: own elements may be copied from them (`repeats.rs`), and
//! each own column may be predicted by its *twin*, the same column of the older checkpoint (`choose.rs`).

use super::layout::{Group, Layout, put, take};
use super::numbers::Elements;
use crate::codec::{ArrayShape, Older, OlderPlace};

/// What is known beforehand, as the encoder sees it.
#[derive(Default)]
pub(super) struct Known {
    /// The groups that come first.
    pub groups: Vec<Group>,
    /// Of each of them, which of the own groups it is like, counted from the first own one.
    pub like: Vec<usize>,
    /// The elements: from where in the older segment, or none for zeros; how many.
    runs: Vec<(Option<usize>, usize)>,
}

impl Known {
    /// For these own groups, made of these arrays.
    pub(super) fn new(own: &[Group], arrays: &[ArrayShape], older: &Older, width: usize) -> Self {
        let mut known = Self::default();
        let mut places = (arrays.iter().zip(&older.places)).filter(|(array, _)| array.elements > 0);
        let arrays_in_all: usize = own.iter().map(|group| group.arrays.len()).sum();
        if older.places.len() != arrays.len() || places.clone().count() != arrays_in_all {
            return known; // the arrays do not add up, and are taken as one row of numbers
        }
        for (n, group) in own.iter().enumerate() {
            let places: Vec<_> = places.by_ref().take(group.arrays.len()).collect();
            let elements = |dims: &[usize; 3]| dims.iter().product::<usize>();
            let found = |place: &OlderPlace, dims| place.elements(width, elements(dims), older.raw.len());
            let found: Vec<_> = places.iter().zip(&group.arrays).map(|((_, place), dims)| found(place, dims)).collect();
            if found.iter().all(Option::is_none) {
                continue;
            }
            known.groups.push(group.clone());
            known.like.push(n);
            for (found, dims) in found.into_iter().zip(&group.arrays) {
                let (from, skip, count) = found.unwrap_or((0, 0, 0));
                known.run(None, skip);
                known.run(Some(from), count);
                known.run(None, elements(dims) - skip - count);
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
    pub(super) fn elements(&self) -> usize {
        self.runs.iter().map(|(_, count)| count).sum()
    }

    /// The elements, then those of the segment itself.
    pub(super) fn before(&self, body: &[u8], older: &[u8], kind: Elements) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.elements() * kind.width + body.len());
        self.fill(older, kind, &mut all);
        all.extend_from_slice(body);
        all
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

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put(self.groups.len(), out);
        put(self.runs.len(), out);
        for &(from, count) in &self.runs {
            put(from.map_or(0, |from| from + 1), out);
            put(count, out);
        }
    }

    /// Reads what [`Known::write`] wrote: how many groups, and their elements, at most `most`.
    pub(super) fn read(bytes: &mut &[u8], older: &[u8], kind: Elements, most: usize) -> Option<(usize, Vec<u8>)> {
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
pub(super) struct Twins {
    /// How many columns are known; they come first.
    pub columns: usize,
    /// How many elements.
    pub elements: usize,
    /// For each column, by its number in the segment's own order, the known one that is like it.
    of: Vec<Option<usize>>,
}

impl Twins {
    pub(super) fn new(layout: &Layout, like: &[usize]) -> Self {
        let first = layout.first_columns();
        let groups = like.len();
        let columns = first.get(groups).copied().unwrap_or(0);
        let mut of = vec![None; layout.columns.len()];
        for (n, like) in like.iter().enumerate() {
            let own = groups + like;
            if layout.groups[own].table.is_none() {
                (0..layout.groups[n].lanes()).for_each(|lane| of[first[own] + lane] = Some(first[n] + lane));
            }
        }
        let elements = (0..groups).map(|n| layout.elements_of(n)).sum();
        Self { columns, elements, of }
    }

    /// How many columns the known groups have, where these are as a reader needs them: in no table, with so many elements,
    /// and before all others. `None` where they are not.
    pub(super) fn check(layout: &Layout, groups: usize, elements: usize) -> Option<usize> {
        let all_known = layout.groups.get(..groups)?;
        all_known.iter().all(|group| group.table.is_none()).then_some(())?;
        let columns = all_known.iter().map(Group::lanes).sum::<usize>();
        let found = layout.columns.get(..columns)?.iter().map(|column| column.elements).sum::<usize>();
        let are_first = layout.order[..columns].iter().all(|&column| column < columns);
        (are_first && found == elements).then_some(columns)
    }

    /// The known columns in the order of those that are like them, then these in theirs: what is at the same place in
    /// both then lies at the same distance all along.
    pub(super) fn first(&self, own: Vec<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = own.iter().filter_map(|&column| self.of[column]).collect();
        let mut is_there = vec![false; self.columns];
        order.iter().for_each(|&column| is_there[column] = true);
        order.extend((0..self.columns).filter(|&column| !is_there[column]));
        order.extend(own);
        order
    }

    /// How many columns before a column its twin is, both by their place in the order of coding.
    pub(super) fn back(&self, layout: &Layout, place_of: &[usize], column: usize) -> Option<u16> {
        let twin = place_of[self.of[layout.order[column]]?];
        let back = u16::try_from(column - twin).ok()?;
        (layout.columns[twin].arrays == layout.columns[column].arrays).then_some(back)
    }
}

/// What is like in both has one kind: slabs that were joined now are joined then.
pub(super) fn same_kinds(layout: Layout, like: &[usize]) -> Option<Layout> {
    let mut groups = layout.groups.clone();
    for (n, own) in like.iter().enumerate() {
        if groups[like.len() + own].table.is_none() {
            groups[n].kind = groups[like.len() + own].kind;
        }
    }
    Layout::new(groups, layout.tables, None)
}

impl OlderPlace {
    /// In elements: from where, how many of the array come before, how many. `None` where there are no whole ones.
    fn elements(&self, width: usize, most: usize, older_bytes: usize) -> Option<(usize, usize, usize)> {
        let Self { from, skip, bytes } = *self;
        let is_whole = [from, skip, bytes].iter().all(|n| n % width == 0) && bytes > 0;
        let is_there = skip.checked_add(bytes)? <= most * width && from.checked_add(bytes)? <= older_bytes;
        (is_whole && is_there).then_some((from / width, skip / width, bytes / width))
    }
}
