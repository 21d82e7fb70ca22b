//! How one column is predicted, coded, and read again.

use super::fit::TERMS_MAX;
use super::layout::{Array, Column, put, take};
use super::linear::{At, Place, STEPS_MAX, Term};
use super::nested;
use super::numbers::Elements;
use super::repeats::Marks;
use super::residual::{self, Around, Effort, Numbers};

/// Sets of weights at most.
const SETS_MAX: usize = 16;
/// An array that is smaller shares a choice with those after it.
const UNIT_MIN: usize = 48;

/// One way to predict.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Set {
    /// By integer sums of neighbours, as the Lorenzo predictor, in so many dimensions: 1 to 3.
    Integer(u8),
    /// By the value of the known column so many before, plus the same sum of what the neighbours are beside theirs; in
    /// so many dimensions, 0 for the value alone.
    Since { back: u16, dimensions: u8 },
    /// By a weighted sum of terms.
    Linear { terms: Vec<Term>, weights: Vec<f64> },
}

/// The ways of a column, and which of them each unit takes. Without any its elements are coded as they are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Predictor {
    pub sets: Vec<Set>,
    pub unit: usize,
    pub which: Vec<u8>,
    /// Cells that their blocks tell: by plain means for 0, else weighed by the column so many before.
    pub told: Option<u16>,
}

/// Cuts a column into units: whole arrays, several where they are small, rows of them where they are large.
pub(super) struct Units {
    unit: usize,
    filled: usize,
    index: usize,
}

impl Units {
    pub(super) fn new(unit: usize) -> Self {
        Self { unit, filled: 0, index: 0 }
    }

    /// The unit of the next row.
    pub(super) fn row(&mut self, array: &Array, i: usize, j: usize) -> usize {
        let (here, [nz, ny, nx]) = (self.index, array.dims);
        self.filled += nx;
        let is_last = i + 1 == nz && j + 1 == ny;
        if self.filled >= self.unit || is_last && self.filled >= UNIT_MIN {
            (self.index, self.filled) = (self.index + 1, 0);
        }
        here
    }

    pub(super) fn count(&self) -> usize {
        self.index + usize::from(self.filled > 0)
    }
}

/// Calls for each row: its array, its two outer places, its first element in working order.
pub(super) fn rows(column: &Column, mut row: impl FnMut(&Array, usize, usize, usize) -> Option<()>) -> Option<()> {
    for array in &column.arrays {
        let [nz, ny, nx] = array.dims;
        for i in 0..nz {
            for j in 0..ny {
                row(array, i, j, column.base + array.start + (i * ny + j) * nx)?;
            }
        }
    }
    Some(())
}

/// Literals of a column for which those around them are worth looking at.
const AROUND_MIN: usize = 2048;

fn is_grid(column: &Column) -> bool {
    column.arrays.iter().any(|array| array.dims[0] > 1 || array.dims[1] > 1)
}

/// For each literal those before it along the axes.
fn around(column: &Column, marks: Marks<'_>) -> Vec<Around> {
    let mut numbers = vec![0u32; column.elements]; // of literals, from 1
    let mut around: Vec<Around> = Vec::new();
    rows(column, |array, i, j, start| {
        let [_, ny, nx] = array.dims;
        for k in 0..nx {
            let at = start + k - column.base;
            if marks.is_literal(start + k) {
                let back = |is_there: bool, steps: usize| if is_there { numbers[at - steps] } else { 0 };
                around.push([back(k > 0, 1), back(j > 0, nx), back(i > 0, nx * ny)]);
                numbers[at] = around.len() as u32; // fewer than 2^30
            }
        }
        Some(())
    });
    around
}

/// Neighbours in the Lorenzo predictor's sum, 0 where there are none.
fn integer(
    kind: Elements,
    bits: &[u64],
    at: usize,
    [i, j, k]: [usize; 3],
    [_, ny, nx]: [usize; 3],
    dimensions: u8,
) -> i64 {
    let of = |di: usize, dj: usize, dk: usize| match di > i || dj > j || dk > k {
        true => 0,
        false => kind.ordered(bits[at - (di * ny + dj) * nx - dk]),
    };
    let line = of(0, 0, 1);
    if dimensions < 2 {
        return line;
    }
    let plane = line.wrapping_add(of(0, 1, 0)).wrapping_sub(of(0, 1, 1));
    if dimensions < 3 {
        return plane;
    }
    let behind = of(1, 0, 0).wrapping_sub(of(1, 0, 1)).wrapping_sub(of(1, 1, 0)).wrapping_add(of(1, 1, 1));
    plane.wrapping_add(behind)
}

fn difference(kind: Elements, a: i64, b: i64) -> i64 {
    if kind.width == 4 { i64::from((a as i32).wrapping_sub(b as i32)) } else { a.wrapping_sub(b) }
}

/// The elements that there are, and the column that is predicted.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub place: Place<'a>,
    pub kind: Elements,
    pub bits: &'a [u64],
    pub values: &'a [f64],
}

/// Buffers of a row.
#[derive(Default)]
struct Row {
    sums: Vec<f64>,
    later: Vec<(At, f64)>,
}

impl Row {
    fn begin(&mut self, set: &Set, place: Place<'_>, array: &Array, (i, j): (usize, usize), values: &[f64]) {
        if let Set::Linear { terms, weights } = set {
            self.sums.resize(array.dims[2], 0.0);
            place.add_row((terms, weights), array, (i, j), values, &mut self.sums, &mut self.later);
        }
    }

    #[inline(always)]
    fn predict(&self, set: &Set, field: Field<'_>, array: &Array, [i, j, k]: [usize; 3], at: usize) -> i64 {
        let Field { place, kind, bits, values } = field;
        match set {
            Set::Integer(dimensions) => integer(kind, bits, at, [i, j, k], array.dims, *dimensions),
            Set::Since { back, dimensions } => {
                let then = at - place.base_of(0) + place.base_of(*back);
                let was = kind.ordered(bits[then]);
                let sum = |at: usize| integer(kind, bits, at, [i, j, k], array.dims, *dimensions);
                if *dimensions == 0 { was } else { was.wrapping_add(sum(at)).wrapping_sub(sum(then)) }
            }
            Set::Linear { .. } => {
                let sum = place.add_later(&self.later, array, [i, j, k], values, self.sums[k]);
                kind.nearest(place.columns[place.column].wrap.map_or(sum, |wrap| wrap.wrapped(sum)))
            }
        }
    }
}

impl Set {
    /// Calls with the place and the difference of each wanted element of the column.
    pub(super) fn each_difference(
        &self,
        field: Field<'_>,
        is_wanted: impl Fn(usize) -> bool,
        mut found: impl FnMut(usize, i64),
    ) {
        let mut row = Row::default();
        rows(&field.place.columns[field.place.column], |array, i, j, start| {
            self.row_differences(&mut row, field, array, (i, j, start), &is_wanted, &mut found);
            Some(())
        });
    }

    fn row_differences(
        &self,
        row: &mut Row,
        field: Field<'_>,
        array: &Array,
        (i, j, start): (usize, usize, usize),
        is_wanted: &impl Fn(usize) -> bool,
        found: &mut impl FnMut(usize, i64),
    ) {
        let nx = array.dims[2];
        if !(start..start + nx).any(is_wanted) {
            return;
        }
        row.begin(self, field.place, array, (i, j), field.values);
        for k in (0..nx).filter(|k| is_wanted(start + k)) {
            let at = start + k;
            let predicted = row.predict(self, field, array, [i, j, k], at);
            found(at, difference(field.kind, field.kind.ordered(field.bits[at]), predicted));
        }
    }
}

impl Predictor {
    pub(super) fn none() -> Self {
        Self { sets: Vec::new(), unit: 1, which: Vec::new(), told: None }
    }

    /// One way for all.
    pub(super) fn of(set: Set) -> Self {
        Self { sets: vec![set], unit: 1, which: Vec::new(), told: None }
    }

    fn set(&self, unit: usize) -> Option<&Set> {
        if self.sets.len() < 2 { self.sets.first() } else { self.sets.get(usize::from(*self.which.get(unit)?)) }
    }

    /// The code of a column's elements that are not copied.
    pub(super) fn encode(&self, field: Field<'_>, marks: Marks<'_>, effort: u32) -> Vec<u8> {
        let Field { place, kind, bits, .. } = field;
        let column = &place.columns[place.column];
        let mut left: Vec<i64> = Vec::with_capacity(column.elements);
        let mut floats: Vec<f64> = Vec::new();
        if self.sets.is_empty() {
            for at in (column.base..column.base + column.elements).filter(|&at| marks.is_literal(at)) {
                left.push(kind.ordered(bits[at]));
                if kind.is_float && kind.width == 8 {
                    floats.push(f64::from_bits(bits[at]));
                }
            }
        } else {
            let (mut row, mut units) = (Row::default(), Units::new(self.unit));
            rows(column, |array, i, j, start| {
                let set = self.set(units.row(array, i, j))?;
                let is_wanted = |at: usize| marks.is_literal(at);
                set.row_differences(&mut row, field, array, (i, j, start), &is_wanted, &mut |_, d| left.push(d));
                Some(())
            });
        }
        let floats = (!floats.is_empty()).then_some(floats.as_slice());
        let around =
            if effort > 1 && left.len() >= AROUND_MIN && is_grid(column) { around(column, marks) } else { Vec::new() };
        let is_predicted = !self.sets.is_empty();
        residual::encode(&Numbers { values: &left, floats, is_predicted, around: &around }, Effort::of(effort))
    }

    /// The codes of a column's elements that are nearly copied, and of those that their blocks tell.
    pub(super) fn encode_others(&self, field: Field<'_>, marks: Marks<'_>, effort: u32) -> [Vec<u8>; 2] {
        let Field { place, kind, bits, values } = field;
        let column = &place.columns[place.column];
        let own = || column.base..column.base + column.elements;
        let near: Vec<i64> = (own().filter(|&at| marks.is_near(at)))
            .map(|at| difference(kind, kind.ordered(bits[at]), kind.ordered(marks.runs.near_source(at, bits, kind))))
            .collect();
        let told: Vec<i64> = (own().filter(|&at| marks.is_told(at)))
            .map(|at| difference(kind, kind.ordered(bits[at]), self.told_value(place, kind, marks, at, values)))
            .collect();
        [near, told].map(|left| match left.is_empty() {
            true => Vec::new(),
            false => {
                let numbers = Numbers { values: &left, floats: None, is_predicted: true, around: &[] };
                residual::encode(&numbers, Effort::of(effort))
            }
        })
    }

    fn told_value(&self, place: Place<'_>, kind: Elements, marks: Marks<'_>, at: usize, values: &[f64]) -> i64 {
        let column = &place.columns[place.column];
        let back = self.told.unwrap_or(0);
        let weights = (back > 0).then(|| place.columns[place.column - usize::from(back)].base);
        let own = at - column.base;
        kind.nearest(nested::predict(column, marks.cells[own], own, values, weights))
    }

    /// Fills a column: copies, and predictions plus what is stored.
    pub(super) fn decode(
        &self,
        place: Place<'_>,
        kind: Elements,
        [code, near, told]: [&[u8]; 3],
        marks: Marks<'_>,
        bits: &mut [u64],
        values: &mut [f64],
    ) -> Option<()> {
        let column = &place.columns[place.column];
        let own = column.base..column.base + column.elements;
        let count = |is_one: &dyn Fn(usize) -> bool| own.clone().filter(|&at| is_one(at)).count();
        let numbers = |code: &[u8], count: usize| match count {
            0 => code.is_empty().then(Vec::new),
            count => residual::decode(code, count, |_| 0, Vec::new),
        };
        let literals = count(&|at| marks.is_literal(at));
        let left = residual::decode(code, literals, |f| kind.ordered(f.to_bits()), || around(column, marks))?;
        let (mut left, mut near, mut told) = (
            left.into_iter(),
            numbers(near, count(&|at| marks.is_near(at)))?.into_iter(),
            numbers(told, count(&|at| marks.is_told(at)))?.into_iter(),
        );
        let (mut row, mut units) = (Row::default(), Units::new(self.unit));
        rows(column, |array, i, j, start| {
            let nx = array.dims[2];
            let set = match self.sets.is_empty() {
                true => None,
                false => Some(self.set(units.row(array, i, j))?),
            };
            if let Some(set) = set
                && (start..start + nx).any(|at| marks.is_literal(at))
            {
                row.begin(set, place, array, (i, j), values);
            }
            for k in 0..nx {
                let at = start + k;
                let element = if marks.is_copied(at) {
                    marks.runs.source(at, bits, kind)
                } else if marks.is_told(at) {
                    kind.unordered(self.told_value(place, kind, marks, at, values).wrapping_add(told.next()?))
                } else if marks.is_near(at) {
                    kind.unordered(kind.ordered(marks.runs.near_source(at, bits, kind)).wrapping_add(near.next()?))
                } else {
                    let predicted = set
                        .map_or(0, |set| row.predict(set, Field { place, kind, bits, values }, array, [i, j, k], at));
                    kind.unordered(predicted.wrapping_add(left.next()?))
                };
                bits[at] = element;
                if kind.is_float {
                    let value = kind.value(element);
                    values[at] = column.wrap.map_or(value, |wrap| wrap.unwrapped(value, [i, j, k], array.dims));
                }
            }
            Some(())
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put(self.told.map_or(0, |back| usize::from(back) + 1), out);
        put(self.sets.len(), out);
        for set in &self.sets {
            match set {
                Set::Integer(dimensions) => put(usize::from(*dimensions), out),
                Set::Since { back, dimensions } => {
                    put(5 + usize::from(*dimensions), out);
                    put(usize::from(*back), out);
                }
                Set::Linear { terms, weights } => {
                    put(4, out);
                    put(terms.len(), out);
                    terms.iter().for_each(|term| write_term(*term, out));
                    weights.iter().for_each(|weight| out.extend(weight.to_le_bytes()));
                }
            }
        }
        if self.sets.len() > 1 {
            put(self.unit, out);
            put(self.which.len(), out);
            out.extend_from_slice(&self.which);
        }
    }

    /// Reads what [`Predictor::write`] wrote, for one of these columns, of which so many are known.
    pub(super) fn read(
        bytes: &mut &[u8],
        column: usize,
        columns: &[Column],
        known: usize,
        kind: Elements,
    ) -> Option<Self> {
        let told = match take(bytes)? {
            0 => None,
            n if n <= column + 1 && columns[column + 1 - n].arrays == columns[column].arrays => Some((n - 1) as u16),
            _ => return None,
        };
        let count = take(bytes).filter(|&n| n <= SETS_MAX)?;
        let mut sets = Vec::with_capacity(count);
        for _ in 0..count {
            sets.push(match take(bytes)? {
                dimensions @ 1..=3 => Set::Integer(dimensions as u8),
                number @ 5..=8 => {
                    let back = take(bytes).filter(|&back| back <= column && column - back < known)?;
                    (columns[column - back].arrays == columns[column].arrays).then_some(())?;
                    Set::Since { back: u16::try_from(back).ok()?, dimensions: (number - 5) as u8 }
                }
                4 if kind.is_float => {
                    let count = take(bytes).filter(|&n| n <= TERMS_MAX)?;
                    let terms = (0..count).map(|_| read_term(bytes, column, columns)).collect::<Option<Vec<Term>>>()?;
                    let mut weights = Vec::with_capacity(count);
                    for _ in 0..count {
                        let (weight, rest) = bytes.split_first_chunk::<8>()?;
                        *bytes = rest;
                        weights.push(f64::from_le_bytes(*weight));
                    }
                    Set::Linear { terms, weights }
                }
                _ => return None,
            });
        }
        if count < 2 {
            return Some(Self { sets, unit: 1, which: Vec::new(), told });
        }
        let unit = take(bytes).filter(|&n| n > 0)?;
        let units = take(bytes)?;
        let (which, rest) = bytes.split_at_checked(units)?;
        *bytes = rest;
        which.iter().all(|&set| usize::from(set) < count).then_some(())?;
        Some(Self { sets, unit, which: which.to_vec(), told })
    }
}

fn write_term(term: Term, out: &mut Vec<u8>) {
    let mut numbers = |all: &[u16]| all.iter().for_each(|&n| put(usize::from(n), out));
    match term {
        Term::One => numbers(&[0]),
        Term::Value(At { back, steps }) => {
            numbers(&[1, back]);
            steps.iter().for_each(|&step| put((step + STEPS_MAX) as usize, out));
        }
        Term::Product(a, b) => numbers(&[2, a, b]),
        Term::Quotient(a, b, c) => numbers(&[3, a, b, c]),
        Term::Before(n) => numbers(&[4, u16::from(n)]),
        Term::Index(axis) => numbers(&[6, u16::from(axis)]),
        Term::Power(a, sixths) => numbers(&[5, a, (sixths + 6) as u16]),
    }
}

fn read_term(bytes: &mut &[u8], column: usize, columns: &[Column]) -> Option<Term> {
    let back = |bytes: &mut &[u8]| take(bytes).filter(|&n| n <= column).and_then(|n| u16::try_from(n).ok());
    let term = match take(bytes)? {
        0 => Term::One,
        1 => {
            let back = back(bytes)?;
            let mut steps = [0; 3];
            for step in &mut steps {
                *step = take(bytes).filter(|&n| n <= 2 * STEPS_MAX as usize)? as i8 - STEPS_MAX;
            }
            Term::Value(At { back, steps })
        }
        2 => Term::Product(back(bytes)?, back(bytes)?),
        3 => Term::Quotient(back(bytes)?, back(bytes)?, back(bytes)?),
        5 => Term::Power(back(bytes)?, take(bytes).filter(|&n| n <= 12)? as i8 - 6),
        4 => Term::Before(take(bytes).and_then(|n| u8::try_from(n).ok())?),
        6 => Term::Index(take(bytes).filter(|&axis| axis < 3)? as u8),
        _ => return None,
    };
    let is_like = |back: u16| columns[column - usize::from(back)].arrays == columns[column].arrays;
    (term.is_valid() && term.columns().into_iter().flatten().all(is_like)).then_some(term)
}
