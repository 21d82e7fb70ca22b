//! The layout of a segment: groups of arrays, and the columns of elements in the order of coding. This order of the
//! elements, column after column, is called *working order*.
//!
//! A segment holds one or several classes of variables. The arrays of one class are contiguous. Each group of arrays
//! becomes one or more columns:
//!
//! - *Lanes*: points with few components (`x y z x y z`), or records of an opaque file, are split into one column for
//!   each component.
//! - *Points*: points of a grid are split in the same way, and each column is a grid. The encoder finds the positions
//!   of the components.
//! - *Join*: arrays that are slabs of one domain are joined along an axis, so that neighbours on two ranks are
//!   neighbours in the column.
//! - *Plain*: the arrays are not changed.

use super::super::particles::{Table, Wrap, read_tables, write_tables};
use super::group::{Dims, Group, Kind, fits, product};
use super::numbers::Elements;
use crate::codec::array_to_bytes::varint::{put, take};
use crate::codec::threads;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The maximum number of lanes of a record.
const LANES_MAX: usize = 4096;
/// The stored number of the kind "grids of points". The number of the kind "lanes" is 3 plus the number of lanes. A
/// record has at least two lanes, so the number of the kind "lanes" is never 4.
const POINTS: usize = 4;
/// The minimum number of elements of the part that one thread loads or stores.
const PART_MIN: usize = 1 << 14;
/// The maximum number of columns of a segment.
pub(crate) const COLUMNS_MAX: usize = 1 << 14;

/// Row (i, j) of an array, as runs of contiguous elements of the stored array. Each run gives its first element in
/// the stored array, its first element in the row, and its length.
pub(crate) fn row_runs(
    dims: Dims,
    chunk: Option<Dims>,
    i: usize,
    j: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let (first, each, count, length) = match chunk {
        None => ((i * dims[1] + j) * dims[2], 0, 1, dims[2]),
        Some(chunk) => {
            let count = [0, 1, 2].map(|d| dims[d] / chunk[d].max(1));
            let before = ((i / chunk[0]) * count[1] + j / chunk[1]) * count[2];
            let inside = ((i % chunk[0]) * chunk[1] + j % chunk[1]) * chunk[2];
            let each = chunk.iter().product::<usize>();
            (before * each + inside, each, count[2], chunk[2])
        }
    };
    (0..count).map(move |n| (first + n * each, n * length, length))
}

/// One array in working order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Array {
    /// The first element of the array, counted from the beginning of its column.
    pub start: usize,
    pub dims: Dims,
    /// The first element of the previous array with the same extents, or of this array if there is no such array.
    pub like: usize,
}

/// One row of an array.
#[derive(Clone, Copy)]
pub(crate) struct RowPlace<'a> {
    pub array: &'a Array,
    /// The two outer indices of the row in the array.
    pub i: usize,
    pub j: usize,
    /// The first element of the row in working order.
    pub start: usize,
}

/// One column in working order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The first element of the column in working order.
    pub base: usize,
    pub elements: usize,
    pub arrays: Vec<Array>,
    /// Whether the elements are integers in a segment of floating-point numbers. Only the encoder uses this field.
    pub is_integer: bool,
    /// Whether the column has one array, whose elements are at the places of a table.
    pub is_placed: bool,
    /// The period, if the elements are positions in a periodic box.
    pub wrap: Option<Wrap>,
}

impl Column {
    /// Turns periodic positions into positions without jumps, for use in predictions.
    pub(crate) fn unwrap(&self, values: &mut [f64]) {
        if let Some(wrap) = &self.wrap {
            let dims @ [_, ny, nx] = self.arrays.first().map_or([1; 3], |array| array.dims);
            for (n, value) in values.iter_mut().enumerate() {
                *value = wrap.unwrapped(*value, [n / nx / ny, n / nx % ny, n % nx], dims);
            }
        }
    }
}

/// The positions of a run of elements in working order.
pub(crate) enum Run<'a> {
    /// The first element, and the number of contiguous elements.
    After(usize, usize),
    /// Columns, and places in these columns. For each place, the run holds one element of each column.
    Placed(&'a [&'a Column], &'a [u32]),
}

/// The layout of a segment: its groups, tables and columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub groups: Vec<Group>,
    /// Tables, whose rows are sorted by number.
    pub tables: Vec<Table>,
    /// The columns, in the order of coding.
    pub columns: Vec<Column>,
    /// For each column, the number of the column in the order of the segment.
    pub order: Vec<usize>,
    /// Whether the stream holds copies with steps (`strides.rs`).
    pub has_strides: bool,
}

impl Group {
    /// The arrays of each column of group number `n`. In a table, the columns with an element for each place come
    /// first. The columns of the rows that are not in the table follow.
    fn working(&self, n: usize, tables: &[Table]) -> Vec<Vec<Dims>> {
        let lanes = self.lanes();
        let elements = |dims: &Dims| dims.iter().product::<usize>();
        if let Some(table) = self.table.and_then(|t| tables.get(t)) {
            let rest: Vec<Dims> = (self.arrays.iter().zip(&table.rows))
                .map(|(dims, kept)| [1, 1, elements(dims) / lanes - kept])
                .filter(|dims| dims[2] > 0)
                .collect();
            let placed = std::iter::repeat_n(vec![table.dims], if table.key == n { 0 } else { lanes });
            return placed.chain(std::iter::repeat_n(rest.clone(), if rest.is_empty() { 0 } else { lanes })).collect();
        }
        let arrays = match self.kind {
            Kind::Plain => self.arrays.clone(),
            Kind::Lanes(lanes) => self.arrays.iter().map(|dims| [1, 1, elements(dims) / lanes]).collect(),
            Kind::Points { lanes, .. } => self.arrays.iter().map(|&[nz, ny, nx]| [nz, ny, nx / lanes]).collect(),
            Kind::Join(axis) => {
                let mut joined = self.arrays.first().copied().unwrap_or([1, 1, 0]);
                joined[axis] *= self.arrays.len();
                vec![joined]
            }
        };
        vec![arrays; lanes]
    }
}

/// The maximum number of elements of a column that fit in the processor's second-level cache with other data.
const NEAR_ELEMENTS: usize = 1 << 16;
/// The maximum number of places of three columns that are interleaved before they are read in random order.
const POINTS_MAX: usize = 1 << 20;

/// The elements of three columns, interleaved, so that one memory access fetches all three elements of a place.
#[derive(Default)]
struct Points {
    /// The first element of the first column.
    base: Option<usize>,
    all: Vec<[u32; 3]>,
}

impl Points {
    /// Interleaves three columns, unless `self` already holds these columns.
    fn of(&mut self, columns: [&Column; 3], bits: &[u64]) -> &[[u32; 3]] {
        if self.base.replace(columns[0].base) != Some(columns[0].base) {
            let [xs, ys, zs] = columns.map(|column| &bits[column.base..][..column.elements]);
            self.all.clear();
            self.all.extend(xs.iter().zip(ys).zip(zs).map(|((&x, &y), &z)| [x as u32, y as u32, z as u32]));
        }
        &self.all
    }
}

/// Reads a column once in order, before it is read in random order. Reading in order is fast, because the processor
/// prefetches. `nearby` holds the first elements of all columns that were read in this way.
fn bring_near(column: &[u64], base: usize, nearby: &mut HashSet<usize>) {
    if column.len() <= NEAR_ELEMENTS && nearby.insert(base) {
        std::hint::black_box(column.iter().step_by(8).fold(0, |all, bits| all ^ bits)); // one element in 64 bytes
    }
}

/// Cuts `all` at some of the positions `ends` into at most `threads` parts of at least `least` elements (the last
/// part may be shorter). Calls `call(range of the ends, first element, elements)` on a separate thread for each part.
fn in_parts<T: Send>(
    ends: &[usize],
    all: &mut [T],
    least: usize,
    threads: usize,
    call: impl Fn(Range<usize>, usize, &mut [T]) + Sync,
) {
    let each = all.len().div_ceil(threads.max(1)).max(least);
    let (mut parts, mut rest, mut first, mut from) = (Vec::new(), all, 0, 0);
    while first < ends.len() {
        let last = (first..ends.len() - 1).find(|&n| ends[n] - from >= each).unwrap_or(ends.len() - 1);
        let (own, others) = std::mem::take(&mut rest).split_at_mut(ends[last] - from);
        parts.push(Mutex::new((first..last + 1, from, own)));
        (rest, first, from) = (others, last + 1, ends[last]);
    }
    threads::all(parts.len(), threads, |n| {
        let mut part = parts[n].lock().unwrap_or_else(PoisonError::into_inner);
        let (which, from, own) = &mut *part;
        call(which.clone(), *from, own);
    });
}

impl Layout {
    /// `order` lists the columns in the order of coding. Returns `None` if `order` is not a permutation of the
    /// columns, or if there are too many columns.
    pub(crate) fn new(groups: Vec<Group>, tables: Vec<Table>, order: Option<Vec<usize>>) -> Option<Self> {
        let mut columns = Vec::new();
        let mut wraps: Vec<_> = tables.iter().map(|table| table.wraps.iter().copied()).collect();
        let known_wraps: HashMap<usize, Wrap> =
            tables.iter().enumerate().flat_map(|(t, table)| table.known_wraps(t, &groups)).collect();
        for (n, group) in groups.iter().enumerate() {
            let placed = group.table.filter(|&t| tables[t].key != n);
            for (c, arrays) in group.working(n, &tables).into_iter().enumerate() {
                let is_placed = placed.is_some() && c < group.lanes();
                let wrap = placed.filter(|_| is_placed).and_then(|t| wraps[t].next()).flatten();
                let wrap = wrap.or_else(|| known_wraps.get(&n).copied());
                let mut start = 0;
                let mut last: HashMap<Dims, usize> = HashMap::new();
                let arrays: Vec<Array> = (arrays.iter())
                    .map(|&dims| {
                        let like = last.insert(dims, start).unwrap_or(start);
                        let array = Array { start, dims, like };
                        start += dims.iter().product::<usize>();
                        array
                    })
                    .collect();
                columns.push(Column {
                    base: 0,
                    elements: start,
                    arrays,
                    is_integer: group.is_integer,
                    is_placed,
                    wrap,
                });
            }
        }
        let order = order.unwrap_or_else(|| (0..columns.len()).collect());
        let mut seen = vec![false; columns.len()];
        if order.len() != columns.len() || columns.len() > COLUMNS_MAX {
            return None;
        }
        for &column in &order {
            if std::mem::replace(seen.get_mut(column)?, true) {
                return None;
            }
        }
        let mut base = 0;
        let columns = (order.iter())
            .map(|&column| {
                let column = Column { base, ..columns[column].clone() };
                base += column.elements;
                column
            })
            .collect();
        Some(Self { groups, tables, columns, order, has_strides: false })
    }

    /// The same layout with another order of columns.
    pub(crate) fn reordered(&self, order: Vec<usize>) -> Option<Self> {
        Self::new(self.groups.clone(), self.tables.clone(), Some(order))
    }

    /// The number of elements in working order. Places without a row are counted, but the numbers of the rows of
    /// tables are not counted.
    pub(crate) fn elements(&self) -> usize {
        self.columns.last().map_or(0, |column| column.base + column.elements)
    }

    /// The number of elements of a group in working order.
    pub(crate) fn elements_of(&self, n: usize) -> usize {
        self.groups[n].working(n, &self.tables).iter().flatten().map(|dims| dims.iter().product::<usize>()).sum()
    }

    /// The number of the first column of each group, in the order of the segment.
    pub(crate) fn first_columns(&self) -> Vec<usize> {
        let count = |(n, group): (usize, &Group)| group.working(n, &self.tables).len();
        let mut first = 0;
        (self.groups.iter().enumerate())
            .map(|group| {
                first += count(group);
                first - count(group)
            })
            .collect()
    }

    /// For each column in the order of the segment, the index of the column in the order of coding.
    pub(crate) fn places(&self) -> Vec<usize> {
        let mut place = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(working, &own)| place[own] = working);
        place
    }

    /// Calls `found` for each column that has an element for each place of a table, with the number of the column in
    /// the order of the segment, the table, and the group.
    pub(crate) fn each_placed(&self, mut found: impl FnMut(usize, usize, &Group)) {
        let mut column = 0;
        for (n, group) in self.groups.iter().enumerate() {
            if let Some(t) = group.table.filter(|&t| self.tables[t].key != n) {
                (column..column + group.lanes()).for_each(|own| found(own, t, group));
            }
            column += group.working(n, &self.tables).len();
        }
    }

    /// Loads the elements of a segment in working order. A place without a row gets the element of the previous
    /// place. All of `bits` is overwritten.
    pub(crate) fn load(&self, body: &[u8], kind: Elements, bits: &mut [u64], threads: usize) {
        self.each_part(bits, threads, |columns, from, bits| {
            self.runs(|at, step, run| {
                // Elements of another part are loaded by the call for the other part.
                let end = bits.len();
                let own = |to: usize| to.checked_sub(from).filter(|&to| to < end);
                match run {
                    Run::After(to, count) => {
                        let Some(to) = own(to) else { return };
                        kind.load_all(&body[at * kind.width..], step, &mut bits[to..to + count]);
                    }
                    Run::Placed(columns, places) => {
                        for (at, column) in (at..).zip(columns) {
                            let Some(to) = own(column.base) else { continue };
                            kind.load_to(&body[at * kind.width..], step, &mut bits[to..], places);
                        }
                    }
                }
            });
            let place = self.places();
            self.each_placed(|own, t, _| {
                if columns.contains(&place[own]) {
                    let column = &self.columns[place[own]];
                    self.tables[t].fill(&mut bits[column.base - from..][..column.elements]);
                }
            });
        });
    }

    /// Computes the values of the columns for which `is_read` is true.
    pub(crate) fn load_values(
        &self,
        bits: &[u64],
        kind: Elements,
        values: &mut [f64],
        is_read: impl Fn(&Column) -> bool + Sync,
        threads: usize,
    ) {
        self.each_part(values, threads, |columns, from, values| {
            for column in self.columns[columns].iter().filter(|column| is_read(column)) {
                let values = &mut values[column.base - from..][..column.elements];
                values.iter_mut().zip(&bits[column.base..]).for_each(|(value, &bits)| *value = kind.value(bits));
                column.unwrap(values);
            }
        });
    }

    /// The inverse of [`Layout::load`], for all elements after the first `known` elements. Known elements are not in
    /// tables.
    pub(crate) fn store(&self, bits: &[u64], kind: Elements, known: usize, body: &mut [u8], threads: usize) {
        let elements = self.groups.iter().map(|group| group.elements().unwrap_or(0));
        let ends: Vec<usize> = elements
            .scan(0, |end, elements| {
                *end += elements;
                Some(end.saturating_sub(known) * kind.width)
            })
            .collect();
        in_parts(&ends, body, PART_MIN * kind.width, threads, |groups, from, body| {
            let (mut nearby, mut points) = (HashSet::new(), Points::default());
            self.runs_of(groups, |at, step, run| {
                let Some(at) = at.checked_sub(known) else { return };
                let Some(own) = body.get_mut(at * kind.width - from..) else { return };
                match run {
                    Run::After(to, count) => kind.store_all(&bits[to..to + count], step, own),
                    Run::Placed(&[x, y, z], places) if kind.width == 4 && x.elements <= POINTS_MAX => {
                        kind.store_points(points.of([x, y, z], bits), places, own);
                    }
                    Run::Placed(columns, places) => {
                        for (lane, column) in columns.iter().enumerate() {
                            bring_near(&bits[column.base..][..column.elements], column.base, &mut nearby);
                            let own = own.get_mut(lane * kind.width..).unwrap_or_default();
                            kind.store_from(&bits[column.base..], places, step, own);
                        }
                    }
                }
            });
        });
        self.keys(|at, key| kind.store(key, &mut body[(at - known) * kind.width..][..kind.width]));
    }

    /// Splits the columns into at most `threads` contiguous parts and calls `call(columns, first element, elements)`
    /// on a separate thread for each part.
    fn each_part<T: Send>(&self, all: &mut [T], threads: usize, call: impl Fn(Range<usize>, usize, &mut [T]) + Sync) {
        let ends: Vec<usize> = self.columns.iter().map(|column| column.base + column.elements).collect();
        in_parts(&ends, all, PART_MIN, threads, call);
    }

    /// Calls `key` for each row with a number. The arguments are the index of the element that holds the number, and
    /// the number.
    pub(crate) fn keys(&self, mut key: impl FnMut(usize, u64)) {
        let mut from = 0;
        for (n, group) in self.groups.iter().enumerate() {
            if let Some(table) = group.table.map(|t| &self.tables[t]).filter(|table| table.key == n) {
                let mut slots = table.slots.iter();
                let mut at = from;
                for (dims, &kept) in group.arrays.iter().zip(&table.rows) {
                    for (row, &slot) in (0..kept).zip(slots.by_ref()) {
                        key(at + row, table.first.wrapping_add(u64::from(slot)));
                    }
                    at += dims.iter().product::<usize>();
                }
            }
            from += group.elements().unwrap_or(0);
        }
    }

    /// Calls `call` for each run of elements. The arguments are the run's first element in the segment, the step
    /// between elements in the segment, and the run's positions in working order.
    pub(crate) fn runs(&self, call: impl FnMut(usize, usize, Run<'_>)) {
        self.runs_of(0..self.groups.len(), call);
    }

    /// Calls `call` for each run of elements of the groups `groups`.
    fn runs_of(&self, groups: Range<usize>, mut call: impl FnMut(usize, usize, Run<'_>)) {
        let place = self.places();
        let (mut from, mut column) = (0, 0);
        for (n, group) in self.groups[..groups.end].iter().enumerate() {
            if n < groups.start {
                from += group.elements().unwrap_or(0);
                column += group.working(n, &self.tables).len();
                continue;
            }
            if let Some(table) = group.table.map(|t| &self.tables[t]) {
                let lanes = group.lanes();
                let rest = column + if table.key == n { 0 } else { lanes };
                let (mut slots, mut start) = (&table.slots[..], 0);
                let placed: Vec<&Column> = (column..rest).map(|own| &self.columns[place[own]]).collect();
                for (dims, &kept) in group.arrays.iter().zip(&table.rows) {
                    let rows = dims.iter().product::<usize>() / lanes;
                    let (own, others) = slots.split_at(kept.min(slots.len()));
                    slots = others;
                    if !placed.is_empty() {
                        call(from, lanes, Run::Placed(&placed, own));
                    }
                    for lane in 0..lanes {
                        if rows > kept {
                            let base = self.columns[place[rest + lane]].base;
                            call(from + kept * lanes + lane, lanes, Run::After(base + start, rows - kept));
                        }
                    }
                    (from, start) = (from + rows * lanes, start + rows - kept);
                }
                column += group.working(n, &self.tables).len();
                continue;
            }
            match group.kind {
                Kind::Plain if group.chunk.is_none() => {
                    let target = &self.columns[place[column]];
                    call(from, 1, Run::After(target.base, target.elements));
                    from += target.elements;
                }
                Kind::Plain => {
                    let mut to = self.columns[place[column]].base;
                    for &dims in &group.arrays {
                        for (i, j) in (0..dims[0]).flat_map(|i| (0..dims[1]).map(move |j| (i, j))) {
                            row_runs(dims, group.chunk, i, j)
                                .for_each(|(at, k, count)| call(from + at, 1, Run::After(to + k, count)));
                            to += dims[2];
                        }
                        from += dims.iter().product::<usize>();
                    }
                }
                Kind::Points { lanes, together } if together != 1 => {
                    let mut start = 0;
                    for dims in &group.arrays {
                        let rows = dims.iter().product::<usize>() / lanes;
                        let together = if together == 0 { rows } else { together };
                        for at in (0..rows).step_by(together) {
                            for lane in 0..lanes {
                                let to = self.columns[place[column + lane]].base + start + at;
                                call(from + at * lanes + lane * together, 1, Run::After(to, together));
                            }
                        }
                        (from, start) = (from + rows * lanes, start + rows);
                    }
                }
                Kind::Lanes(lanes) | Kind::Points { lanes, .. } => {
                    let mut start = 0;
                    for dims in &group.arrays {
                        let rows = dims.iter().product::<usize>() / lanes;
                        for lane in 0..lanes {
                            let to = self.columns[place[column + lane]].base + start;
                            call(from + lane, lanes, Run::After(to, rows));
                        }
                        (from, start) = (from + rows * lanes, start + rows);
                    }
                }
                Kind::Join(axis) => {
                    let base = self.columns[place[column]].base;
                    let whole = group.working(n, &self.tables)[0][0];
                    for (g, dims) in group.arrays.iter().enumerate() {
                        for i in 0..dims[0] {
                            for j in 0..dims[1] {
                                let mut at = [i, j, 0];
                                at[axis] += g * dims[axis];
                                let row = base + (at[0] * whole[1] + at[1]) * whole[2] + at[2];
                                let runs = row_runs(*dims, group.chunk, i, j);
                                runs.for_each(|(at, k, count)| call(from + at, 1, Run::After(row + k, count)));
                            }
                        }
                        from += dims.iter().product::<usize>();
                    }
                }
            }
            column += group.lanes();
        }
    }

    /// The number of columns of the known groups, which are the first `groups` groups. `None` if one of these groups
    /// is in a table, if the groups do not have `elements` elements in all, or if their columns do not come before
    /// all other columns.
    pub(crate) fn known_columns(&self, groups: usize, elements: usize) -> Option<usize> {
        let all_known = self.groups.get(..groups)?;
        all_known.iter().all(|group| group.table.is_none()).then_some(())?;
        let columns = all_known.iter().map(Group::lanes).sum::<usize>();
        let found = self.columns.get(..columns)?.iter().map(|column| column.elements).sum::<usize>();
        let are_first = self.order[..columns].iter().all(|&column| column < columns);
        (are_first && found == elements).then_some(columns)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.groups.len(), out);
        let mut before: Option<&Vec<Dims>> = None;
        for group in &self.groups {
            put(
                match group.kind {
                    Kind::Plain => 0,
                    Kind::Join(axis) => 1 + axis,
                    Kind::Points { .. } => POINTS,
                    Kind::Lanes(lanes) => 3 + lanes,
                },
                out,
            );
            match group.kind {
                Kind::Points { lanes, together: 1 } => put(lanes, out),
                Kind::Points { lanes, together } => [0, lanes, together].iter().for_each(|&n| put(n, out)),
                Kind::Plain | Kind::Lanes(_) | Kind::Join(_) => {}
            }
            let chunk = group.chunk.unwrap_or_default();
            chunk.iter().take(if group.chunk.is_some() { 3 } else { 1 }).for_each(|&n| put(n, out));
            if before == Some(&group.arrays) {
                put(0, out);
                continue;
            }
            before = Some(&group.arrays);
            let mut runs: Vec<(Dims, usize)> = Vec::new();
            for dims in &group.arrays {
                match runs.last_mut() {
                    Some((last, count)) if last == dims => *count += 1,
                    _ => runs.push((*dims, 1)),
                }
            }
            put(runs.len(), out);
            for (dims, count) in runs {
                put(count, out);
                dims.iter().for_each(|&n| put(n, out));
            }
        }
        let is_own = self.order.iter().enumerate().all(|(i, &c)| i == c);
        let flag = |is_set: bool, bit: usize| usize::from(is_set) << bit;
        let older = self.tables.iter().any(|table| table.older.is_some());
        let flags = [!is_own, !self.tables.is_empty(), older, self.has_strides];
        put((0..).zip(flags).map(|(bit, is_set)| flag(is_set, bit)).sum(), out);
        if !self.tables.is_empty() {
            write_tables(&self.tables, &self.groups, older, out);
        }
        if !is_own {
            self.order.iter().for_each(|&c| put(c, out));
        }
    }

    /// The inverse of [`Layout::write`], for a segment of `elements` elements. The allocated memory is at most
    /// proportional to `elements`.
    pub(crate) fn read(bytes: &mut &[u8], elements: usize) -> Option<Self> {
        let mut groups: Vec<Group> = Vec::new();
        let (mut sum, mut columns) = (0usize, 0usize);
        for _ in 0..take(bytes).filter(|&n| n <= COLUMNS_MAX)? {
            let kind = match take(bytes)? {
                0 => Kind::Plain,
                n @ 1..=3 => Kind::Join(n - 1),
                POINTS => {
                    let (lanes, together) = match take(bytes)? {
                        0 => (take(bytes)?, take(bytes)?),
                        lanes => (lanes, 1),
                    };
                    (2..=LANES_MAX).contains(&lanes).then_some(Kind::Points { lanes, together })?
                }
                n @ 5.. if n - 3 <= LANES_MAX => Kind::Lanes(n - 3),
                _ => return None,
            };
            let chunk = match take(bytes)? {
                0 => None,
                n => Some([n, take(bytes)?, take(bytes)?]),
            };
            let mut arrays: Vec<Dims> = Vec::new();
            match take(bytes)? {
                0 => arrays.clone_from(&groups.last()?.arrays),
                runs => {
                    let mut room = elements.checked_sub(sum)?;
                    for _ in 0..runs {
                        let count = take(bytes).filter(|&n| n > 0)?;
                        let dims = [take(bytes)?, take(bytes)?, take(bytes)?];
                        let each = product(&dims).filter(|&n| n > 0)?;
                        room = room.checked_sub(each.checked_mul(count)?)?;
                        arrays.extend(std::iter::repeat_n(dims, count));
                    }
                }
            }
            arrays.iter().all(|dims| fits(dims, chunk)).then_some(())?;
            let group = Group::new(kind, chunk, arrays);
            let count = group.elements()?;
            sum = sum.checked_add(count).filter(|&sum| sum <= elements)?;
            columns += group.lanes();
            match kind {
                Kind::Plain => {}
                Kind::Lanes(n) if group.arrays.iter().all(|dims| dims.iter().product::<usize>() % n == 0) => {}
                Kind::Points { lanes, together } if chunk.is_none() => {
                    let fits =
                        |[z, y, x]: &Dims| x % lanes == 0 && (together == 0 || z * y * x / lanes % together == 0);
                    group.arrays.iter().all(fits).then_some(())?;
                }
                Kind::Join(_) if group.arrays.windows(2).all(|pair| pair[0] == pair[1]) => {}
                Kind::Lanes(_) | Kind::Points { .. } | Kind::Join(_) => return None,
            }
            if columns > COLUMNS_MAX {
                return None;
            }
            groups.push(group);
        }
        let flags = take(bytes).filter(|&flags| flags < 16 && flags & 6 != 4)?;
        let tables = if flags & 2 == 0 { Vec::new() } else { read_tables(bytes, &mut groups, flags & 4 != 0)? };
        if !tables.is_empty() {
            columns = groups.iter().enumerate().map(|(n, group)| group.working(n, &tables).len()).sum();
        }
        let order = match flags & 1 {
            0 => None,
            _ if columns > COLUMNS_MAX => return None,
            _ => Some((0..columns).map(|_| take(bytes)).collect::<Option<Vec<_>>>()?),
        };
        (sum == elements).then_some(())?;
        let layout = Self::new(groups, tables, order)?;
        Some(Self { has_strides: flags & 8 != 0, ..layout })
    }
}
