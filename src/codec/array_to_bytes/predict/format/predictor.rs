//! The predictor of one column: how the column is predicted, written and decoded.

use super::copies::{COPIED, DERIVED, LITERAL, Marks, NEAR};
use super::layout::{Array, Column, RowPlace};
use super::linear::{At, Place, STEPS_MAX, Sum, TERMS_MAX, Term};
use super::nested::DerivedCells;
use super::numbers::Elements;
use super::residual;
use super::residual::Decoded;
use crate::codec::array_to_bytes::varint::{put, take};
use crate::codec::registers::compiled_twice;

/// The maximum number of sets of a column.
const SETS_MAX: usize = 16;
/// The minimum number of elements of a unit at the end of an array. A smaller array shares a unit with the next
/// arrays.
const UNIT_MIN: usize = 48;

/// One method of prediction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Set {
    /// Integer sums of neighbours (the Lorenzo predictor) in 1 to 3 dimensions.
    Integer(u8),
    /// The ordered integer of the element at the same place in a known column, plus the Lorenzo sum of the
    /// differences between both columns. The known column comes `back` columns before this column. With 0 dimensions,
    /// the prediction is the ordered integer alone.
    Since { back: u16, dimensions: u8 },
    /// A weighted sum of terms.
    Linear { terms: Vec<Term>, weights: Vec<f64> },
}

/// The sets of a column, and the set that each unit uses. Without sets, the elements are coded without prediction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Predictor {
    pub sets: Vec<Set>,
    pub unit: usize,
    pub which: Vec<u8>,
    /// How cells are computed from the other cells of their blocks. 0 stands for plain means. A larger `n` stands for
    /// means that are weighted by the column that comes `n` columns before this column. `None` if no cells are
    /// computed.
    pub derived: Option<u16>,
}

/// Cuts a column into units. A unit is some rows of a large array, one array, or several small arrays.
pub(crate) struct Units {
    unit: usize,
    filled: usize,
    index: usize,
}

impl Units {
    pub(crate) fn new(unit: usize) -> Self {
        Self { unit, filled: 0, index: 0 }
    }

    /// The unit of the next row.
    pub(crate) fn row(&mut self, array: &Array, i: usize, j: usize) -> usize {
        let (here, [nz, ny, nx]) = (self.index, array.dims);
        self.filled += nx;
        let is_last = i + 1 == nz && j + 1 == ny;
        if self.filled >= self.unit || is_last && self.filled >= UNIT_MIN {
            (self.index, self.filled) = (self.index + 1, 0);
        }
        here
    }

    pub(crate) fn count(&self) -> usize {
        self.index + usize::from(self.filled > 0)
    }
}

/// Calls `row` for each row of a column.
pub(crate) fn rows(column: &Column, row: impl FnMut(RowPlace<'_>) -> Option<()>) -> Option<()> {
    each_row(&column.arrays, column.base).try_for_each(row)
}

#[inline(always)]
fn each_row(arrays: &[Array], base: usize) -> impl Iterator<Item = RowPlace<'_>> {
    arrays.iter().flat_map(move |array| {
        let [nz, ny, nx] = array.dims;
        let row = move |i: usize, j: usize| RowPlace { array, i, j, start: base + array.start + (i * ny + j) * nx };
        (0..nz).flat_map(move |i| (0..ny).map(move |j| row(i, j)))
    })
}

/// If a prediction does not depend on the place in the array, a column is cut into rows of this many elements. Such a
/// row stays in the processor's cache.
const TOGETHER: usize = 1024;

/// The elements of a column as rows of [`TOGETHER`] elements, across the borders of arrays.
fn pieces(column: &Column) -> Vec<Array> {
    let piece = |start| Array { start, dims: [1, 1, TOGETHER.min(column.elements - start)], like: start };
    (0..column.elements).step_by(TOGETHER).map(piece).collect()
}

/// `a - b` in integers of the width of the elements. `a` and `b` are ordered integers of elements (*orders* in
/// section 2.1 of `predict.md`).
pub(crate) fn difference(kind: Elements, a: i64, b: i64) -> i64 {
    if kind.width == 4 { i64::from((a as i32).wrapping_sub(b as i32)) } else { a.wrapping_sub(b) }
}

/// The elements, as bits and as values, and the column that is predicted.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub place: Place<'a>,
    pub kind: Elements,
    pub bits: &'a [u64],
    pub values: &'a [f64],
}

/// The place at which a row is being decoded.
#[derive(Clone, Copy)]
struct Spot<'a> {
    place: Place<'a>,
    kind: Elements,
    row: RowPlace<'a>,
    /// Index of the element in the row.
    k: usize,
}

/// The elements of a segment that are being filled, as bits and as values.
struct Filled<'a> {
    bits: &'a mut [u64],
    values: &'a mut [f64],
}

/// The part of a row that is still to be filled: the sum and the difference of each element, and the position of the
/// first element.
struct Rest<'a> {
    sums: &'a [f64],
    left: &'a [i64],
    from: usize,
}

/// The conversions between sums and values of a periodic column.
struct Wrapping<W, U> {
    /// Converts a sum to a position in the box.
    wrapped: W,
    /// Converts the value of a place to the position as if the box had no end. The second argument is the distance of
    /// the place from the first place.
    unwrapped: U,
}

/// The buffers for the prediction of one row.
#[derive(Default)]
pub(crate) struct Row {
    /// For each element, the sum of all terms that do not read the row itself.
    sums: Vec<f64>,
    later: Vec<(At, f64)>,
    /// For each term in `later`, the distance from the place back to the value of the term, and the weight of the
    /// term. The distances are valid for places from `inner` on.
    backs: Vec<(usize, f64)>,
    inner: usize,
    /// For integer sums, the part of each prediction that comes from other rows. An element is predicted to differ
    /// from its part by the same amount as the previous element. After `predict`, this list holds the complete
    /// predictions.
    integers: Vec<i64>,
}

impl Row {
    /// For all predictions of a row, computes the part that does not need elements of the row itself.
    #[inline(always)]
    fn begin(&mut self, set: &Set, field: Field<'_>, at: RowPlace<'_>) {
        let nx = at.array.dims[2];
        match set {
            Set::Linear { terms, weights } => {
                self.sums.resize(nx, 0.0);
                field.place.add_row(Sum { terms, weights }, at, field.values, &mut self.sums, &mut self.later);
                self.backs.clear();
                self.inner = usize::from(!self.later.is_empty());
                for &(at, weight) in &self.later {
                    let back = if at.steps[0] == 0 && at.steps[1] == 0 { at.steps[2].unsigned_abs() } else { 1 };
                    self.backs.push((usize::from(back), weight));
                    self.inner = self.inner.max(usize::from(back));
                }
            }
            Set::Integer(dimensions) => {
                self.integers.clear();
                self.integers.resize(nx, 0);
                self.add_rows(*dimensions, field, at, true);
            }
            Set::Since { back, dimensions } => {
                self.integers.clear();
                self.integers.resize(nx, 0);
                let then = at.start - field.column().base + field.place.base_of(*back);
                let was = &field.bits[then..][..nx];
                if *dimensions == 0 {
                    self.integers.iter_mut().zip(was).for_each(|(sum, &was)| *sum = field.kind.ordered(was));
                    return;
                }
                add_orders(&mut self.integers, was, field.kind, true);
                self.add_rows(*dimensions, field, at, true);
                self.add_rows(*dimensions, field, RowPlace { start: then, ..at }, false);
            }
        }
    }

    /// Adds the neighbours in other rows to the integer sums, or subtracts the neighbours.
    #[inline(always)]
    fn add_rows(&mut self, dimensions: u8, field: Field<'_>, at: RowPlace<'_>, is_added: bool) {
        let (RowPlace { array, i, j, start }, kind) = (at, field.kind);
        let [_, ny, nx] = array.dims;
        let row = |back: usize| &field.bits[start - back * nx..][..nx];
        if dimensions > 1 && j > 0 {
            add_orders(&mut self.integers, row(1), kind, is_added);
        }
        if dimensions > 2 && i > 0 {
            add_orders(&mut self.integers, row(ny), kind, is_added);
        }
        if dimensions > 2 && i > 0 && j > 0 {
            add_orders(&mut self.integers, row(ny + 1), kind, !is_added);
        }
    }

    /// All predictions of a row whose elements are known.
    fn predict(&mut self, set: &Set, field: Field<'_>, at: RowPlace<'_>) -> &[i64] {
        self.begin(set, field, at);
        let (Field { kind, bits, values, .. }, RowPlace { array, i, j, start }) = (field, at);
        let nx = array.dims[2];
        match set {
            Set::Since { dimensions: 0, .. } => {}
            Set::Integer(_) | Set::Since { .. } => {
                let (mut above, mut before) = (0i64, bits[start..][..nx].iter());
                for sum in &mut self.integers {
                    let own = *sum;
                    *sum = own.wrapping_add(above);
                    above = before.next().map_or(0, |&bits| kind.ordered(bits).wrapping_sub(own));
                }
            }
            Set::Linear { .. } => {
                let inner = self.inner.min(nx);
                for (k, sum) in self.sums[..inner].iter_mut().enumerate() {
                    *sum = field.place.add_later(&self.later, array, [i, j, k], values, *sum);
                }
                for &(back, weight) in self.backs.iter().filter(|_| inner < nx) {
                    let before = &values[start + inner - back..][..nx - inner];
                    self.sums[inner..].iter_mut().zip(before).for_each(|(sum, value)| *sum += weight * value);
                }
                if let Some(wrap) = field.column().wrap {
                    self.sums.iter_mut().for_each(|sum| *sum = wrap.wrapped(*sum));
                }
                match kind.width {
                    4 => self.round::<4>(kind),
                    _ => self.round::<8>(kind),
                }
            }
        }
        &self.integers
    }

    /// Fills `integers` with the elements nearest to the sums.
    fn round<const WIDTH: usize>(&mut self, kind: Elements) {
        let kind = Elements { width: WIDTH, ..kind }; // a width that the compiler knows
        self.integers.clear();
        self.integers.extend(self.sums.iter().map(|&sum| kind.nearest(sum)));
    }

    /// Computes the literals from a place on, using the differences `left`. All elements before this place are known.
    #[inline(always)]
    fn fill(&mut self, set: Option<&Set>, spot: Spot<'_>, left: &[i64], bits: &mut [u64], values: &mut [f64]) {
        let Spot { place, kind, row: RowPlace { array, i, j, start }, k } = spot;
        match set {
            None => {
                let own = &mut bits[start + k..][..left.len()];
                own.iter_mut().zip(left).for_each(|(bits, &order)| *bits = kind.unordered(order));
            }
            Some(Set::Since { dimensions: 0, .. }) => {
                for ((bits, &was), &left) in bits[start + k..].iter_mut().zip(&self.integers[k..]).zip(left) {
                    *bits = kind.unordered(was.wrapping_add(left));
                }
            }
            Some(Set::Integer(_) | Set::Since { .. }) => {
                let before = |k: usize| kind.ordered(bits[start + k]).wrapping_sub(self.integers[k]);
                let mut above = k.checked_sub(1).map_or(0, before);
                let turned = kind.turned();
                for ((bits, &sum), &left) in bits[start + k..].iter_mut().zip(&self.integers[k..]).zip(left) {
                    above = above.wrapping_add(left);
                    *bits = kind.turned_back(sum.wrapping_add(above), turned);
                }
            }
            Some(Set::Linear { .. }) => {
                let to = Filled { bits, values };
                match place.columns[place.column].wrap {
                    None => {
                        self.fill_linear(spot, left, to, Wrapping { wrapped: |sum| sum, unwrapped: |value, _| value })
                    }
                    Some(wrap) => {
                        let unwrapped = |value, k| wrap.unwrapped(value, [i, j, k], array.dims);
                        self.fill_linear(spot, left, to, Wrapping { wrapped: |sum| wrap.wrapped(sum), unwrapped });
                    }
                }
            }
        }
    }

    /// Computes one literal of a row that is not periodic, using the difference `off`. All elements before this
    /// literal are known.
    #[inline(always)]
    fn literal(&self, set: Option<&Set>, spot: Spot<'_>, off: i64, bits: &[u64], values: &[f64]) -> u64 {
        let Spot { place, kind, row: RowPlace { array, i, j, start }, k } = spot;
        let at = start + k;
        match set {
            None => kind.unordered(off),
            Some(Set::Since { dimensions: 0, .. }) => kind.unordered(self.integers[k].wrapping_add(off)),
            Some(Set::Integer(_) | Set::Since { .. }) => {
                let above = if k > 0 { kind.ordered(bits[at - 1]).wrapping_sub(self.integers[k - 1]) } else { 0 };
                kind.unordered(self.integers[k].wrapping_add(above).wrapping_add(off))
            }
            Some(Set::Linear { .. }) => {
                let mut sum = self.sums[k];
                if k < self.inner {
                    sum = place.add_later(&self.later, array, [i, j, k], values, sum);
                } else {
                    self.backs.iter().for_each(|&(back, weight)| sum += weight * values[at - back]);
                }
                kind.above(kind.rounded(if sum.is_nan() { nothing() } else { sum }), off)
            }
        }
    }

    /// Computes literals like `fill`, for weighted sums.
    #[inline(always)]
    fn fill_linear(
        &self,
        spot: Spot<'_>,
        mut left: &[i64],
        to: Filled<'_>,
        wrapping: Wrapping<impl Fn(f64) -> f64, impl Fn(f64, usize) -> f64>,
    ) {
        let Spot { place, kind, row: RowPlace { array, i, j, start }, mut k } = spot;
        let (Filled { bits, values }, Wrapping { wrapped, unwrapped }) = (to, wrapping);
        while let [first, rest @ ..] = left
            && k < self.inner
        {
            let sum = place.add_later(&self.later, array, [i, j, k], values, self.sums[k]);
            bits[start + k] = kind.unordered(kind.nearest(wrapped(sum)).wrapping_add(*first));
            values[start + k] = unwrapped(kind.value(bits[start + k]), k);
            (k, left) = (k + 1, rest);
        }
        if left.is_empty() {
            return;
        }
        let rest = Rest { sums: &self.sums[k..], left, from: start + k };
        let wrapping = Wrapping { wrapped, unwrapped: |value, n| unwrapped(value, k + n) };
        match &self.backs[..] {
            [] => {
                // No element depends on another element of the row, so the compiler can vectorize this loop.
                let (Rest { sums, left, from }, Wrapping { wrapped, unwrapped }) = (rest, wrapping);
                let own = bits[from..].iter_mut().zip(&mut values[from..]);
                for (n, ((bits, value), (&sum, &off))) in own.zip(sums.iter().zip(left)).enumerate() {
                    *bits = kind.unordered(kind.nearest(wrapped(sum)).wrapping_add(off));
                    *value = unwrapped(kind.value(*bits), n);
                }
            }
            [a] => fill_linear(kind, &[*a], rest, Filled { bits, values }, wrapping),
            [a, b] => fill_linear(kind, &[*a, *b], rest, Filled { bits, values }, wrapping),
            [a, b, c] => fill_linear(kind, &[*a, *b, *c], rest, Filled { bits, values }, wrapping),
            all => fill_linear(kind, all, rest, Filled { bits, values }, wrapping),
        }
    }
}

/// The number of elements at the front that have this kind.
#[inline(always)]
fn run_of(kind: u8, kinds: &[u8]) -> usize {
    const TOGETHER: usize = 32;
    let are_all = |some: &[u8; TOGETHER]| some.iter().fold(true, |all, &own| all & (own == kind));
    let whole = kinds.as_chunks::<TOGETHER>().0.iter().take_while(|some| are_all(some)).count() * TOGETHER;
    whole + kinds[whole..].iter().take_while(|&&own| own == kind).count()
}

/// Removes the first `count` numbers from a list, and returns them.
fn split<'a>(list: &mut &'a [i64], count: usize) -> Option<&'a [i64]> {
    let (front, rest) = list.split_at_checked(count)?;
    *list = rest;
    Some(front)
}

/// To each sum, adds the ordered integer of the element with the same index, or subtracts this integer.
#[inline(always)]
fn add_orders(sums: &mut [i64], row: &[u64], kind: Elements, is_added: bool) {
    let both = sums.iter_mut().zip(row);
    match is_added {
        true => both.for_each(|(sum, &bits)| *sum = sum.wrapping_add(kind.ordered(bits))),
        false => both.for_each(|(sum, &bits)| *sum = sum.wrapping_sub(kind.ordered(bits))),
    }
}

impl<'a> Field<'a> {
    pub(crate) fn column(&self) -> &'a Column {
        &self.place.columns[self.place.column]
    }

    /// The differences between the near copies of the column and their sources.
    pub(crate) fn near_differences(self, marks: &Marks<'_>) -> impl Iterator<Item = i64> {
        let Field { kind, bits, .. } = self;
        let ats = marks.all(NEAR).map(move |n| self.column().base + n);
        ats.map(move |at| difference(kind, kind.ordered(bits[at]), kind.ordered(marks.near_source(at, bits, kind))))
    }
}

impl Set {
    /// Calls `found` with the difference of each wanted element of the column.
    pub(crate) fn each_difference(
        &self,
        field: Field<'_>,
        is_wanted: impl Fn(usize) -> bool,
        mut found: impl FnMut(i64),
    ) {
        let (mut row, column) = (Row::default(), field.column());
        let pieces = if self.is_anywhere(column) { pieces(column) } else { Vec::new() };
        let arrays = if pieces.is_empty() { &column.arrays } else { &pieces };
        for at in each_row(arrays, column.base) {
            self.row_differences(&mut row, field, at, &is_wanted, &mut found);
        }
    }

    /// Whether the set predicts each element only from the elements with the same index in other columns, so that the
    /// place in the array does not matter.
    fn is_anywhere(&self, column: &Column) -> bool {
        match self {
            Self::Integer(_) => false,
            Self::Since { dimensions, .. } => *dimensions == 0,
            Self::Linear { terms, .. } => column.wrap.is_none() && terms.iter().all(|term| term.is_of_same_number()),
        }
    }

    /// Whether an element can be decoded only after the previous element of the row, with arithmetic in doubles.
    pub(crate) fn is_one_by_one(&self) -> bool {
        match self {
            Self::Integer(_) | Self::Since { .. } => false,
            Self::Linear { terms, .. } => terms.iter().any(|term| match term {
                Term::Value(At { back: 0, steps }) | Term::Change(At { steps, .. }) => steps[..2] == [0, 0],
                _ => false,
            }),
        }
    }

    pub(crate) fn row_differences(
        &self,
        row: &mut Row,
        field: Field<'_>,
        at: RowPlace<'_>,
        is_wanted: &impl Fn(usize) -> bool,
        found: &mut impl FnMut(i64),
    ) {
        let (nx, start) = (at.array.dims[2], at.start);
        let from = start - field.column().base;
        if !(from..from + nx).any(is_wanted) {
            return;
        }
        let predicted = row.predict(self, field, at);
        let both = field.bits[start..start + nx].iter().zip(predicted).enumerate();
        for (_, (&bits, &predicted)) in both.filter(|(k, _)| is_wanted(from + k)) {
            found(difference(field.kind, field.kind.ordered(bits), predicted));
        }
    }
}

/// Fills the rest of a row. Each prediction is the sum plus the later terms. The value of each later term is at a
/// fixed distance before the place.
#[inline(always)]
fn fill_linear(
    kind: Elements,
    later: &[(usize, f64)],
    rest: Rest<'_>,
    to: Filled<'_>,
    wrapping: Wrapping<impl Fn(f64) -> f64, impl Fn(f64, usize) -> f64>,
) {
    let (Rest { sums, left, from }, Filled { bits, values }) = (rest, to);
    let Wrapping { wrapped, unwrapped } = wrapping;
    // The last value stays in a register, so it is not read from memory again.
    let mut last = if from > 0 { values[from - 1] } else { 0.0 };
    for (n, (&sum, &steps)) in sums.iter().zip(left).enumerate() {
        let at = from + n;
        let mut sum = sum;
        for &(back, weight) in later {
            sum += weight * if back == 1 { last } else { values[at - back] };
        }
        let sum = wrapped(sum);
        let sum = if sum.is_nan() { nothing() } else { sum };
        bits[at] = kind.above(kind.rounded(sum), steps);
        last = unwrapped(kind.value(bits[at]), n);
        values[at] = last;
    }
}

/// The value that replaces a sum that is NaN. The function is `cold`, because such sums are rare.
#[cold]
fn nothing() -> f64 {
    0.0
}

/// The decoded differences of the literals, the near copies and the computed cells of a column.
pub(crate) struct Coded<'a> {
    marks: Marks<'a>,
    left: Decoded,
    near: Vec<i64>,
    derived: Vec<i64>,
}

impl<'a> Coded<'a> {
    /// Decodes the differences. Other columns are not needed for decoding. `buffer` is reused.
    pub(crate) fn new(kind: Elements, codes: [&[u8]; 3], marks: Marks<'a>, buffer: Decoded) -> Option<Self> {
        let [code, near, derived] = codes;
        let numbers = |code: &[u8], count: usize| match count {
            0 => code.is_empty().then(Vec::new),
            count => residual::decode(code, count, |_| 0, Vec::new()),
        };
        let floats = |f: f64| kind.ordered(f.to_bits());
        let left = Decoded::new(code, marks.count(LITERAL), floats, buffer)?;
        let (near, derived) = (numbers(near, marks.count(NEAR))?, numbers(derived, marks.count(DERIVED))?);
        Some(Self { marks, left, near, derived })
    }

    /// Returns the buffer, for another column.
    pub(crate) fn into_buffer(self) -> Decoded {
        self.left
    }
}

impl Predictor {
    pub(crate) fn none() -> Self {
        Self { sets: Vec::new(), unit: 1, which: Vec::new(), derived: None }
    }

    /// A predictor with one set for all units.
    pub(crate) fn of(set: Set) -> Self {
        Self { sets: vec![set], unit: 1, which: Vec::new(), derived: None }
    }

    /// The columns whose values the predictor reads. Each column is given as its distance before this column, in
    /// columns; 0 is this column.
    pub(crate) fn backs(&self) -> impl Iterator<Item = u16> {
        let terms = self.sets.iter().filter_map(|set| match set {
            Set::Linear { terms, .. } => Some(terms),
            Set::Integer(_) | Set::Since { .. } => None,
        });
        terms.flat_map(|terms| terms.iter().flat_map(|term| term.columns()).flatten().chain([0])).chain(self.derived)
    }

    pub(crate) fn set(&self, unit: usize) -> Option<&Set> {
        if self.sets.len() < 2 { self.sets.first() } else { self.sets.get(usize::from(*self.which.get(unit)?)) }
    }

    /// Makes the [`DerivedCells`] that computes cells of a column from the other cells of their blocks.
    pub(crate) fn derived_cells<'a>(&self, place: Place<'a>) -> DerivedCells<'a> {
        let weights = self.derived.filter(|&back| back > 0).map(|back| place.base_of(back));
        DerivedCells::new(&place.columns[place.column], weights)
    }

    compiled_twice! {
        /// Fills the elements of a column from copies, and from predictions plus stored differences. Fills the values
        /// of the column too, if other predictions read these values.
        pub(crate) fn decode, decode_avx2 = decode_here(
            &self, place: Place<'_>, kind: Elements, coded: &Coded<'_>, bits: &mut [u64], values: &mut [f64],
            are_values_read: bool,
        ) -> Option<()>
    }

    #[inline(always)]
    fn decode_here(
        &self,
        place: Place<'_>,
        kind: Elements,
        coded: &Coded<'_>,
        bits: &mut [u64],
        values: &mut [f64],
        are_values_read: bool,
    ) -> Option<()> {
        match kind.width {
            4 => self.decode_elements::<4>(place, kind, coded, bits, values, are_values_read),
            _ => self.decode_elements::<8>(place, kind, coded, bits, values, are_values_read),
        }
    }

    /// Decodes a column of elements of `WIDTH` bytes, row by row. Each row is cut into runs of elements of one kind:
    /// exact copies, near copies, derived cells (computed from their blocks of nested grids) and literals (predicted).
    /// Returns `None` if a code has fewer differences than elements of its kind.
    #[inline(always)]
    fn decode_elements<const WIDTH: usize>(
        &self,
        place: Place<'_>,
        kind: Elements,
        coded: &Coded<'_>,
        bits: &mut [u64],
        values: &mut [f64],
        are_values_read: bool,
    ) -> Option<()> {
        let column = &place.columns[place.column];
        let are_values_read = kind.is_float && are_values_read;
        let marks = &coded.marks;
        // Each list holds one difference for each element of its kind.
        let (mut left, mut near, mut derived) = (coded.left.in_turn(), &coded.near[..], &coded.derived[..]);
        let (mut row, mut units, mut derived_cells) =
            (Row::default(), Units::new(self.unit), self.derived_cells(place));
        let is_anywhere = match &self.sets[..] {
            [] => column.wrap.is_none() || !are_values_read,
            [set] => set.is_anywhere(column),
            _ => false,
        };
        let pieces = if is_anywhere && marks.cells.is_empty() { pieces(column) } else { Vec::new() };
        let arrays = if pieces.is_empty() { &column.arrays } else { &pieces };
        for at_row in each_row(arrays, column.base) {
            let RowPlace { array, i, j, start } = at_row;
            let kind = Elements { width: WIDTH, ..kind }; // a width that the compiler knows
            let nx = array.dims[2];
            let kinds = &marks.kinds[start - column.base..][..nx];
            let set = match self.sets.is_empty() {
                true => None,
                false => Some(self.set(units.row(array, i, j))?),
            };
            if let Some(set) = set
                && kinds.contains(&LITERAL)
            {
                row.begin(set, Field { place, kind, bits, values }, at_row);
            }
            // In a column with derived cells, every second element of a row is derived, so runs have one element.
            let are_single = !marks.cells.is_empty() && column.wrap.is_none() && kinds.contains(&DERIVED);
            let mut k = 0;
            while k < nx {
                let (what, at) = (kinds[k], start + k);
                if are_single && matches!(what, LITERAL | DERIVED) {
                    bits[at] = if what == DERIVED {
                        let n = at - column.base;
                        let order = kind.nearest(derived_cells.value(array, marks.cells[n], n, values));
                        kind.unordered(order.wrapping_add(*derived.split_off_first()?))
                    } else {
                        let off = left.one()?;
                        row.literal(set, Spot { place, kind, row: at_row, k }, off, bits, values)
                    };
                    values[at] = kind.value(bits[at]);
                    k += 1;
                    continue;
                }
                let count = run_of(what, &kinds[k..]);
                match what {
                    COPIED => marks.copy(at, count, bits, kind),
                    NEAR => marks.copy_nearly(at, split(&mut near, count)?, bits, kind),
                    DERIVED => {
                        for (at, &off) in (at..).zip(split(&mut derived, count)?) {
                            let n = at - column.base;
                            let computed = kind.nearest(derived_cells.value(array, marks.cells[n], n, values));
                            bits[at] = kind.unordered(computed.wrapping_add(off));
                            values[at] = kind.value(bits[at]);
                        }
                    }
                    _ => {
                        let left = left.some(count)?;
                        row.fill(set, Spot { place, kind, row: at_row, k }, left, bits, values);
                    }
                }
                if are_values_read && (what != LITERAL || !matches!(set, Some(Set::Linear { .. }))) {
                    let both = values[at..at + count].iter_mut().zip(&bits[at..at + count]);
                    both.for_each(|(value, &bits)| *value = kind.value(bits));
                    if let Some(wrap) = column.wrap {
                        for (k, value) in (k..).zip(&mut values[at..at + count]) {
                            *value = wrap.unwrapped(*value, [i, j, k], array.dims);
                        }
                    }
                }
                k += count;
            }
        }
        Some(())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.derived.map_or(0, |back| usize::from(back) + 1), out);
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

    /// The inverse of [`Predictor::write`], for one column. The first `known` columns are known.
    pub(crate) fn read(bytes: &mut &[u8], place: Place<'_>, known: usize, kind: Elements) -> Option<Self> {
        let Place { columns, column, .. } = place;
        let derived = match take(bytes)? {
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
                    let back = take(bytes).filter(|&back| is_known(back, column, columns, known))?;
                    Set::Since { back: u16::try_from(back).ok()?, dimensions: (number - 5) as u8 }
                }
                4 if kind.is_float => {
                    let count = take(bytes).filter(|&n| n <= TERMS_MAX)?;
                    let terms = (0..count).map(|_| read_term(bytes, place, known)).collect::<Option<Vec<Term>>>()?;
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
            return Some(Self { sets, unit: 1, which: Vec::new(), derived });
        }
        let unit = take(bytes).filter(|&n| n > 0)?;
        let units = take(bytes)?;
        let (which, rest) = bytes.split_at_checked(units)?;
        *bytes = rest;
        which.iter().all(|&set| usize::from(set) < count).then_some(())?;
        Some(Self { sets, unit, which: which.to_vec(), derived })
    }
}

/// Whether the column `back` columns before this column is known and has the same arrays.
fn is_known(back: usize, column: usize, columns: &[Column], known: usize) -> bool {
    let other = column.checked_sub(back).filter(|&other| other < known);
    other.is_some_and(|other| columns[other].arrays == columns[column].arrays)
}

fn write_term(term: Term, out: &mut Vec<u8>) {
    let mut numbers = |all: &[u16]| all.iter().for_each(|&n| put(usize::from(n), out));
    match term {
        Term::One => numbers(&[0]),
        Term::Value(At { back, steps }) | Term::Change(At { back, steps }) => {
            numbers(&[if matches!(term, Term::Value(_)) { 1 } else { 7 }, back]);
            steps.iter().for_each(|&step| put((step + STEPS_MAX) as usize, out));
        }
        Term::Product(a, b) => numbers(&[2, a, b]),
        Term::Quotient(a, b, c) => numbers(&[3, a, b, c]),
        Term::Before(n) => numbers(&[4, u16::from(n)]),
        Term::Index(axis) => numbers(&[6, u16::from(axis)]),
        Term::Power(a, sixths) => numbers(&[5, a, (sixths + 6) as u16]),
    }
}

fn read_term(bytes: &mut &[u8], place: Place<'_>, known: usize) -> Option<Term> {
    let Place { columns, column, .. } = place;
    let back = |bytes: &mut &[u8]| take(bytes).filter(|&n| n <= column).and_then(|n| u16::try_from(n).ok());
    let term = match take(bytes)? {
        0 => Term::One,
        number @ (1 | 7) => {
            let back = back(bytes)?;
            let mut steps = [0; 3];
            for step in &mut steps {
                *step = take(bytes).filter(|&n| n <= 2 * STEPS_MAX as usize)? as i8 - STEPS_MAX;
            }
            let at = At { back, steps };
            match number {
                1 => Term::Value(at),
                _ => is_known(usize::from(back), column, columns, known).then_some(Term::Change(at))?,
            }
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
