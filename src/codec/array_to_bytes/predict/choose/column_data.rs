//! One column, and the data from which its predictor is chosen.

use super::super::format::copies::Marks;
use super::super::format::layout::Column;
use super::super::format::linear::Place;
use super::super::format::numbers::Elements;
use super::super::format::predictor::{Field, Set};
use super::effort::Effort;

/// The data from which a column's predictor is chosen.
pub(crate) struct Data<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) kind: Elements,
    pub(crate) bits: &'a [u64],
    pub(crate) values: &'a [f64],
    pub(crate) marks: Marks<'a>,
    pub(crate) effort: &'static Effort,
    /// The twin of this column, as its distance before this column.
    pub(crate) twin: Option<u16>,
    /// The twins of the other columns of the family, as distances before this column. Only columns of particles have
    /// such twins.
    pub(crate) family_twins: Vec<u16>,
}

/// The elements to be predicted, with the units to which they belong.
pub(crate) struct Literals {
    pub(crate) elements: Vec<usize>,
    pub(crate) units: Vec<u32>,
    pub(crate) unit_count: usize,
    /// For each element of the column, whether it is in `elements`.
    pub(crate) is_one: Vec<bool>,
}

impl<'a> Data<'a> {
    pub(crate) fn field(&self) -> Field<'_> {
        Field { place: self.place, kind: self.kind, bits: self.bits, values: self.values }
    }

    pub(crate) fn column(&self) -> &Column {
        &self.place.columns[self.place.column]
    }

    /// The errors of a set's predictions, as counts of representable numbers.
    pub(crate) fn errors(&self, set: &Set, literals: &Literals) -> Vec<f64> {
        let mut errors = Vec::with_capacity(literals.elements.len());
        set.each_difference(
            self.field(),
            |n| literals.is_one[n],
            |difference| errors.push(difference.unsigned_abs() as f64),
        );
        errors
    }
}
