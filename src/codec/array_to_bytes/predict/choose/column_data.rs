//! One column, and all that its predictor is chosen by.

use super::super::format::copies::Marks;
use super::super::format::layout::Column;
use super::super::format::linear::Place;
use super::super::format::numbers::Elements;
use super::super::format::predictor::{Field, Set};
use super::effort::Effort;

/// Everything that a column's predictor is chosen by.
pub(crate) struct Data<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) kind: Elements,
    pub(crate) bits: &'a [u64],
    pub(crate) values: &'a [f64],
    pub(crate) marks: Marks<'a>,
    pub(crate) effort: &'static Effort,
    /// How many columns before the known one is that is like this.
    pub(crate) twin: Option<u16>,
    /// And those that are like the others of the family, of particles.
    pub(crate) family_twins: Vec<u16>,
}

/// Elements that are to be predicted, with the units that they are in.
pub(crate) struct Literals {
    pub(crate) elements: Vec<usize>,
    pub(crate) units: Vec<u32>,
    pub(crate) unit_count: usize,
    /// Of the column's elements, which are among these.
    pub(crate) is_one: Vec<bool>,
}

impl<'a> Data<'a> {
    pub(crate) fn field(&self) -> Field<'_> {
        Field { place: self.place, kind: self.kind, bits: self.bits, values: self.values }
    }

    pub(crate) fn column(&self) -> &Column {
        &self.place.columns[self.place.column]
    }

    /// How far a set's predictions are off, as a count of representable numbers.
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
