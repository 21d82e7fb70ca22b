//! Linear predictions: weighted sums of terms. A term is a neighbour, a value of another column at or near the same
//! place, or a product, quotient or power of such values.
//!
//! The neighbours in n dimensions are the neighbours of the Lorenzo predictor (L. Ibarria et al., "Out-of-core
//! compression and decompression of large n-dimensional scalar fields", Eurographics 2003), with fitted weights
//! instead of 1 and -1.
//!
//! Decoding gives the same bits on every host: doubles are added and multiplied in a fixed order, each result is
//! rounded to nearest, and no operations are fused. For each row of an array, the terms that do not read the row
//! itself are added first, in the order of the list. Then the terms that read the row are added, in the order of the
//! list.

use super::layout::{Array, Column, RowPlace};
use crate::codec::registers::compiled_twice;

/// The maximum number of terms of a prediction.
pub(crate) const TERMS_MAX: usize = 32;

/// The position of a value: the column, and the distance from the place that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    /// The number of columns before the predicted column, in the order of coding; 0 is the predicted column itself.
    pub back: u16,
    /// Steps in each dimension, slowest dimension first, from -7 to 7. In the predicted column the steps lead to an
    /// element that is decoded earlier.
    pub steps: [i8; 3],
}

pub(crate) const STEPS_MAX: i8 = 7;

impl At {
    pub(crate) fn column(back: u16) -> Self {
        Self { back, steps: [0; 3] }
    }

    pub(crate) fn own(steps: [i8; 3]) -> Self {
        Self { back: 0, steps }
    }

    /// Whether the value is decoded before the predicted element. In the column itself, the first step that is not 0
    /// must be negative.
    pub(crate) fn is_valid(self) -> bool {
        let first = self.steps.iter().find(|&&s| s != 0).copied();
        self.steps.iter().all(|s| s.unsigned_abs() <= STEPS_MAX.unsigned_abs())
            && (self.back > 0 || first.is_some_and(|s| s < 0))
    }
}

/// A number that a prediction multiplies by a weight and adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Term {
    /// One value.
    Value(At),
    /// The product of the values of two columns at the predicted place.
    Product(u16, u16),
    /// The product of the values of two columns, divided by the value of a third column, at the predicted place.
    Quotient(u16, u16, u16),
    /// The number 1.
    One,
    /// A power of the value of a column at the predicted place. The exponent is given in sixths, and is in
    /// [`SIXTHS`].
    Power(u16, i8),
    /// The value at the same place in an earlier array of the same column with the same extents. The number 1 stands
    /// for the last such array before this array, and 2 stands for the array before the last such array.
    Before(u8),
    /// The index of the place along an axis of its array.
    Index(u8),
    /// The difference between the value of the column itself and the value of an earlier column, both at the same
    /// steps from the place. The earlier column is known from an older checkpoint, so the term is a change over time.
    Change(At),
}

impl Term {
    /// The columns that the term reads, each as its distance before the predicted column.
    pub(crate) fn columns(self) -> [Option<u16>; 3] {
        match self {
            Self::Value(at) | Self::Change(at) => [Some(at.back), None, None],
            Self::Power(a, _) => [Some(a), None, None],
            Self::Product(a, b) => [Some(a), Some(b), None],
            Self::Quotient(a, b, c) => [Some(a), Some(b), Some(c)],
            Self::One | Self::Before(_) | Self::Index(_) => [None; 3],
        }
    }

    /// Whether the term reads only other columns, at the index of the predicted element, so that the place in the
    /// array does not matter.
    pub(crate) fn is_of_same_number(self) -> bool {
        match self {
            Self::Value(At { back, steps }) => back > 0 && steps == [0; 3],
            Self::Product(..) | Self::Quotient(..) | Self::One | Self::Power(..) => true,
            Self::Before(_) | Self::Index(_) | Self::Change(_) => false,
        }
    }

    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Value(at) => at.is_valid(),
            Self::Product(a, b) => a > 0 && b > 0,
            Self::Power(a, sixths) => a > 0 && SIXTHS.contains(&sixths),
            Self::Quotient(a, b, c) => a > 0 && b > 0 && c > 0,
            Self::One => true,
            Self::Before(n) => n == 1 || n == 2,
            Self::Index(axis) => axis < 3,
            Self::Change(At { back, steps }) => back > 0 && At::own(steps).is_valid(),
        }
    }
}

/// All columns, and the number of the column that is predicted.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub columns: &'a [Column],
    pub column: usize,
}

/// The terms of a prediction, and the weight of each term.
#[derive(Clone, Copy)]
pub(crate) struct Sum<'a> {
    pub terms: &'a [Term],
    pub weights: &'a [f64],
}

impl Place<'_> {
    fn own(&self) -> &Column {
        &self.columns[self.column]
    }

    /// The first element of the `n`-th previous array with the same extents; `None` if there is no such array.
    fn like(&self, array: &Array, n: u8) -> Option<usize> {
        let mut at = *array;
        for _ in 0..n {
            if at.like == at.start {
                return None;
            }
            at = *locate(self.own(), at.like);
        }
        Some(self.own().base + at.start)
    }

    pub(crate) fn base_of(&self, back: u16) -> usize {
        self.columns[self.column - usize::from(back)].base
    }

    /// The value that replaces a neighbour outside the array: the previous element along the fastest dimension in
    /// which the place has a previous element.
    #[inline(always)]
    fn before(values: &[f64], at: usize, column_base: usize, [i, j, k]: [usize; 3], [_, ny, nx]: [usize; 3]) -> f64 {
        let back = if k > 0 {
            1
        } else if j > 0 {
            nx
        } else if i > 0 {
            nx * ny
        } else {
            1
        };
        if at >= column_base + back { values[at - back] } else { 0.0 }
    }

    /// The first element of the row from which row (i, j) reads a value, or `None` if the other row is not decoded
    /// yet.
    #[inline(always)]
    fn row_of(&self, at: At, array: &Array, i: usize, j: usize) -> Option<usize> {
        let [nz, ny, nx] = array.dims;
        let near = |index: usize, step: i8, n: usize| index.saturating_add_signed(isize::from(step)).min(n - 1);
        let row = [near(i, at.steps[0], nz), near(j, at.steps[1], ny)];
        let start = self.base_of(at.back) + array.start + (row[0] * ny + row[1]) * nx;
        (at.back > 0 || row < [i, j]).then_some(start)
    }

    /// The value of one term at some places. `add_row` and `add_later` use the same values.
    pub(crate) fn gather(&self, term: Term, places: &[(&Array, [usize; 3])], values: &[f64]) -> Vec<f64> {
        let inside = |array: &Array, [i, j, k]: [usize; 3]| (i * array.dims[1] + j) * array.dims[2] + k;
        let of = |back: u16| {
            let base = self.base_of(back);
            places.iter().map(move |(array, at)| values[base + array.start + inside(array, *at)])
        };
        match term {
            Term::Value(At { back, steps: [0, 0, 0] }) => of(back).collect(),
            Term::Value(at) => (places.iter())
                .map(|&(array, [i, j, k])| match self.row_of(at, array, i, j) {
                    Some(row) => values[row + near_in_row(k, at.steps[2], array.dims[2])],
                    None => self.own_row(at, array, [i, j, k], values),
                })
                .collect(),
            Term::Product(a, b) => of(a).zip(of(b)).map(|(a, b)| a * b).collect(),
            Term::Power(a, sixths) => {
                let own: Vec<f64> = of(a).collect();
                own.chunks(TOGETHER).flat_map(|own| powers(own, sixths).into_iter().take(own.len())).collect()
            }
            Term::Quotient(a, b, c) => of(a).zip(of(b)).zip(of(c)).map(|((a, b), c)| finite(a * b / c)).collect(),
            Term::One => vec![1.0; places.len()],
            Term::Index(axis) => places.iter().map(|(_, at)| at[usize::from(axis)] as f64).collect(),
            Term::Before(n) => (places.iter())
                .map(|&(array, at)| self.like(array, n).map_or(0.0, |start| values[start + inside(array, at)]))
                .collect(),
            Term::Change(At { back, steps }) => {
                let (own, other) = (At::own(steps), self.base_of(back));
                let change = |&(array, at): &(&Array, [usize; 3])| match self.row_of(own, array, at[0], at[1]) {
                    Some(row) => {
                        let from = row + near_in_row(at[2], steps[2], array.dims[2]);
                        values[from] - values[from - self.own().base + other]
                    }
                    None => self.own_row(own, array, at, values) - Self::row_in_order(other, own, array, at, values),
                };
                places.iter().map(change).collect()
            }
        }
    }

    #[inline(always)]
    fn own_row(&self, at: At, array: &Array, place: [usize; 3], values: &[f64]) -> f64 {
        Self::row_in_order(self.own().base, at, array, place, values)
    }

    /// The value at a place of the same row, in the column that begins at `base`. `at` gives the steps to this place.
    #[inline(always)]
    fn row_in_order(base: usize, at: At, array: &Array, [i, j, k]: [usize; 3], values: &[f64]) -> f64 {
        let [_, ny, nx] = array.dims;
        let here = base + array.start + (i * ny + j) * nx + k;
        let back = usize::from(at.steps[2].unsigned_abs());
        match at.steps == [0, 0, at.steps[2]] && back <= k {
            true => values[here - back],
            false => Self::before(values, here, base, [i, j, k], array.dims),
        }
    }

    compiled_twice! {
        /// Adds to `sums` all terms that do not need this row itself, and lists the other terms in `later`.
        pub(crate) fn add_row, add_row_avx2 = add_row_here(
            &self, sum: Sum<'_>, row: RowPlace<'_>, values: &[f64], sums: &mut [f64], later: &mut Vec<(At, f64)>,
        )
    }

    #[inline(always)]
    fn add_row_here(
        &self,
        sum: Sum<'_>,
        row: RowPlace<'_>,
        values: &[f64],
        sums: &mut [f64],
        later: &mut Vec<(At, f64)>,
    ) {
        let (Sum { terms, weights }, RowPlace { array, i, j, .. }) = (sum, row);
        let [_, ny, nx] = array.dims;
        let in_array = array.start + (i * ny + j) * nx;
        let row = |back: u16| &values[self.base_of(back) + in_array..][..nx];
        sums.fill(0.0);
        later.clear();
        for (&term, &weight) in terms.iter().zip(weights) {
            match term {
                Term::Value(at) => match self.row_of(at, array, i, j) {
                    Some(start) => add_shifted(sums, weight, &values[start..start + nx], at.steps[2]),
                    None => later.push((at, weight)),
                },
                Term::Power(a, sixths) => {
                    for (sums, a) in sums.chunks_mut(TOGETHER).zip(row(a).chunks(TOGETHER)) {
                        sums.iter_mut().zip(powers(a, sixths)).for_each(|(sum, power)| *sum += weight * power);
                    }
                }
                Term::Product(a, b) => {
                    for ((sum, a), b) in sums.iter_mut().zip(row(a)).zip(row(b)) {
                        *sum += weight * (a * b);
                    }
                }
                Term::Quotient(a, b, c) => {
                    for (((sum, a), b), c) in sums.iter_mut().zip(row(a)).zip(row(b)).zip(row(c)) {
                        *sum += weight * finite(a * b / c);
                    }
                }
                Term::One => sums.iter_mut().for_each(|sum| *sum += weight),
                Term::Index(2) => sums.iter_mut().enumerate().for_each(|(k, sum)| *sum += weight * k as f64),
                Term::Index(axis) => {
                    let along = weight * if axis == 0 { i } else { j } as f64;
                    sums.iter_mut().for_each(|sum| *sum += along);
                }
                Term::Before(n) => {
                    if let Some(start) = self.like(array, n) {
                        add_shifted(sums, weight, &values[start + (i * ny + j) * nx..][..nx], 0);
                    }
                }
                Term::Change(At { back, steps }) => {
                    let (own, other) = (At::own(steps), self.base_of(back));
                    match self.row_of(own, array, i, j) {
                        Some(start) => {
                            let [here, there] = [start, start - self.own().base + other].map(|at| &values[at..at + nx]);
                            for (k, sum) in sums.iter_mut().enumerate() {
                                let k = near_in_row(k, steps[2], nx);
                                *sum += weight * (here[k] - there[k]);
                            }
                        }
                        // The value of the other column is subtracted now. The value of the column itself is added
                        // when the row is decoded.
                        None => {
                            for (k, sum) in sums.iter_mut().enumerate() {
                                *sum -= weight * Self::row_in_order(other, own, array, [i, j, k], values);
                            }
                            later.push((own, weight));
                        }
                    }
                }
            }
        }
    }

    /// Adds the terms in `later`, which read earlier values of this row.
    #[inline(always)]
    pub(crate) fn add_later(
        &self,
        later: &[(At, f64)],
        array: &Array,
        place: [usize; 3],
        values: &[f64],
        sum: f64,
    ) -> f64 {
        let mut sum = sum;
        for &(at, weight) in later {
            sum += weight * self.own_row(at, array, place, values);
        }
        sum
    }
}

fn near_in_row(k: usize, step: i8, nx: usize) -> usize {
    k.saturating_add_signed(isize::from(step)).min(nx - 1)
}

/// Exponents of [`Term::Power`], in sixths. Densities, lengths, energies and times of one physical state are often
/// proportional to such powers of each other.
pub(crate) const SIXTHS: [i8; 7] = [-6, -4, -3, -2, 2, 3, 4];
/// The number of powers that are computed together, in vector registers.
pub(crate) const TOGETHER: usize = 8;

/// Powers of at most [`TOGETHER`] positive numbers; 0 for a number that is not positive and finite. Cube roots use
/// Halley's iteration instead of a library, so that every host computes the same bits. Each step is done for all
/// numbers before the next step, so that the compiler can vectorize the loops.
#[inline(always)]
pub(crate) fn powers(numbers: &[f64], sixths: i8) -> [f64; TOGETHER] {
    match numbers.first_chunk() {
        Some(numbers) => powers_of_all(numbers, sixths),
        None => {
            let mut all = [0.0; TOGETHER];
            all[..numbers.len()].copy_from_slice(numbers);
            powers_of_all(&all, sixths)
        }
    }
}

#[inline(always)]
fn powers_of_all(numbers: &[f64; TOGETHER], sixths: i8) -> [f64; TOGETHER] {
    // No branch depends on a number, so the compiler can vectorize the loops.
    let is_one = numbers.map(|x| (x > 0.0) & (x < f64::INFINITY));
    let mut found: [f64; TOGETHER] = std::array::from_fn(|n| if is_one[n] { numbers[n] } else { 1.0 });
    let square = |all: &mut [f64; TOGETHER]| all.iter_mut().for_each(|x| *x = *x * *x);
    let invert = |all: &mut [f64; TOGETHER]| all.iter_mut().for_each(|x| *x = 1.0 / *x);
    match sixths {
        -6 => invert(&mut found),
        -4 => {
            roots(&mut found);
            square(&mut found);
            invert(&mut found);
        }
        -3 => {
            found.iter_mut().for_each(|x| *x = x.sqrt());
            invert(&mut found);
        }
        -2 => {
            roots(&mut found);
            invert(&mut found);
        }
        2 => roots(&mut found),
        3 => found.iter_mut().for_each(|x| *x = x.sqrt()),
        _ => {
            roots(&mut found);
            square(&mut found);
        }
    }
    // A power of a positive number is never negative and never NaN, so only infinity must be replaced.
    std::array::from_fn(|n| if is_one[n] & (found[n] < f64::INFINITY) { found[n] } else { 0.0 })
}

/// Cube roots.
#[inline(always)]
fn roots(all: &mut [f64; TOGETHER]) {
    let numbers = *all;
    // The first approximation divides the exponent by 3, and has an error of at most 5 %. Each step triples the
    // number of correct digits.
    *all = numbers.map(|x| f64::from_bits(x.to_bits() / 3 + 0x2A9F_7893_0000_0000));
    for _ in 0..3 {
        for (root, x) in all.iter_mut().zip(numbers) {
            let cube = *root * *root * *root;
            *root = *root * (cube + 2.0 * x) / (2.0 * cube + x);
        }
    }
}

/// One power, computed with [`powers`].
#[cfg(test)]
fn power(x: f64, sixths: i8) -> f64 {
    powers(&[x], sixths)[0]
}

#[inline(always)]
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Computes `sums[k] += weight * row[k + step]`. An index outside the row is replaced by the nearest index inside the
/// row.
#[inline(always)]
fn add_shifted(sums: &mut [f64], weight: f64, row: &[f64], step: i8) {
    let nx = row.len();
    let shift = usize::from(step.unsigned_abs()).min(nx);
    let (inner, edge) = (nx - shift, if step < 0 { row[0] } else { row[nx - 1] });
    if step < 0 {
        sums[..shift].iter_mut().for_each(|sum| *sum += weight * edge);
        sums[shift..].iter_mut().zip(&row[..inner]).for_each(|(sum, value)| *sum += weight * value);
    } else {
        sums[..inner].iter_mut().zip(&row[shift..]).for_each(|(sum, value)| *sum += weight * value);
        sums[inner..].iter_mut().for_each(|sum| *sum += weight * edge);
    }
}

/// The array that holds an element of the column.
pub(crate) fn locate(column: &Column, element: usize) -> &Array {
    // Each array holds at least one element, so no two arrays begin at the same element.
    &column.arrays[column.arrays.partition_point(|array| array.start <= element).saturating_sub(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_what_their_name_says() {
        for x in [1e-90, 1.7e-9, 0.3, 1.0, 2.0, 12345.678, 9e90] {
            for sixths in SIXTHS {
                let (found, expected) = (power(x, sixths), x.powf(f64::from(sixths) / 6.0));
                assert_eq!(powers(&[x; TOGETHER], sixths), [found; TOGETHER]);
                assert!((found / expected - 1.0).abs() < 1e-12, "{x} to the {sixths}/6 is {expected}, not {found}");
            }
        }
        for none in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(power(none, 2), 0.0);
        }
    }
}
