//! The three codes of one column: of literals, of near copies, and of cells computed from their blocks.

use super::super::format::copies::{DERIVED, LITERAL, Marks};
use super::super::format::linear::locate;
use super::super::format::predictor::{Field, Predictor, Row, Units, difference, rows};
use super::code_numbers;
use super::code_numbers::Numbers;
use super::effort::NumbersEffort;

impl Predictor {
    /// The code of the literals of a column.
    pub(crate) fn encode(&self, field: Field<'_>, marks: &Marks<'_>, effort: NumbersEffort) -> Vec<u8> {
        let Field { place, kind, bits, .. } = field;
        let column = &place.columns[place.column];
        let mut left: Vec<i64> = Vec::with_capacity(column.elements);
        let mut floats: Vec<f64> = Vec::new();
        if self.sets.is_empty() {
            for at in marks.all(LITERAL).map(|n| column.base + n) {
                left.push(kind.ordered(bits[at]));
                if kind.is_float && kind.width == 8 {
                    floats.push(f64::from_bits(bits[at]));
                }
            }
        } else if let [set] = &self.sets[..] {
            set.each_difference(field, |n| marks.kinds[n] == LITERAL, |d| left.push(d));
        } else {
            let (mut row, mut units) = (Row::default(), Units::new(self.unit));
            rows(column, |at| {
                let set = self.set(units.row(at.array, at.i, at.j))?;
                let is_wanted = |n: usize| marks.kinds[n] == LITERAL;
                set.row_differences(&mut row, field, at, &is_wanted, &mut |d| left.push(d));
                Some(())
            });
        }
        let floats = (!floats.is_empty()).then_some(floats.as_slice());
        let is_predicted = !self.sets.is_empty();
        code_numbers::encode(&Numbers { values: &left, floats, is_predicted }, effort)
    }

    /// The code of a column's near copies, and the code of the cells that are computed from their blocks.
    pub(crate) fn encode_others(&self, field: Field<'_>, marks: &Marks<'_>, effort: NumbersEffort) -> [Vec<u8>; 2] {
        let Field { place, kind, bits, values } = field;
        let column = &place.columns[place.column];
        let near: Vec<i64> = field.near_differences(marks).collect();
        let mut derived_cells = self.derived_cells(place);
        let derived: Vec<i64> = (marks.all(DERIVED))
            .map(|n| {
                let computed = kind.nearest(derived_cells.value(locate(column, n), marks.cells[n], n, values));
                difference(kind, kind.ordered(bits[column.base + n]), computed)
            })
            .collect();
        [near, derived].map(|left| match left.is_empty() {
            true => Vec::new(),
            false => {
                let numbers = Numbers { values: &left, floats: None, is_predicted: true };
                code_numbers::encode(&numbers, effort)
            }
        })
    }
}
