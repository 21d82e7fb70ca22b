//! By how much the numbers of two arrays differ.

use mcrengine::header::{ByteOrder, ElementType};

/// The differences of arrays with equal types and lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Change {
    /// Number of compared elements.
    pub elements: u64,
    /// Number of elements with different bytes.
    pub changed: u64,
    /// The largest absolute difference of two finite numbers; `None` if no numbers differ.
    pub largest_absolute: Option<f64>,
    /// The largest difference of two finite numbers, divided by the larger of their absolute values.
    pub largest_relative: Option<f64>,
    /// Number of changed elements of which at least one is not finite (NaN or infinite).
    pub not_finite: u64,
    /// Sum of the hashes of the changed elements of one side, minus the sum of the other side. 0 if both sides have the
    /// same elements in another order.
    #[serde(skip)]
    balance: u64,
}

impl Change {
    /// Whether both sides have the same elements in another order.
    pub fn is_reordered(&self) -> bool {
        self.changed > 0 && self.balance == 0
    }

    /// Adds the differences of other elements.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.changed += other.changed;
        self.not_finite += other.not_finite;
        self.balance = self.balance.wrapping_add(other.balance);
        self.largest_absolute = larger(self.largest_absolute, other.largest_absolute);
        self.largest_relative = larger(self.largest_relative, other.largest_relative);
    }

    /// Compares whole elements. `a` and `b` have the same length.
    pub fn compare(&mut self, element: &ElementType, a: &[u8], b: &[u8]) {
        let width = element.width() as usize;
        self.elements += (a.len() / width) as u64;
        if a == b {
            return;
        }
        for (a, b) in a.chunks_exact(width).zip(b.chunks_exact(width)).filter(|(a, b)| a != b) {
            self.changed += 1;
            self.balance = self.balance.wrapping_add(hash(a)).wrapping_sub(hash(b));
            let (Some(a), Some(b)) = (number(element, a), number(element, b)) else { continue };
            if !a.is_finite() || !b.is_finite() {
                self.not_finite += 1;
                continue;
            }
            let absolute = (a - b).abs();
            let largest = a.abs().max(b.abs());
            self.largest_absolute = larger(self.largest_absolute, Some(absolute));
            self.largest_relative =
                larger(self.largest_relative, Some(if largest > 0.0 { absolute / largest } else { 0.0 }));
        }
    }
}

/// A hash of the bytes of an element. Equal sums of hashes mean equal elements, except by chance.
fn hash(element: &[u8]) -> u64 {
    let mix = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut state: u64 = element.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

/// The number in the bytes of an element; `None` if the element is not a number.
fn number(element: &ElementType, bytes: &[u8]) -> Option<f64> {
    let bits = |order: ByteOrder| {
        let add = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
        match order {
            ByteOrder::Little => bytes.iter().rev().fold(0, add),
            ByteOrder::Big => bytes.iter().fold(0, add),
        }
    };
    match *element {
        ElementType::Int { width, signed, order } => {
            let unused = 64 - 8 * u32::from(width);
            let signed_value = ((bits(order) << unused) as i64) >> unused;
            Some(if signed { signed_value as f64 } else { bits(order) as f64 })
        }
        ElementType::Float { width: 8, order } => Some(f64::from_bits(bits(order))),
        ElementType::Float { width: 4, order } => Some(f64::from(f32::from_bits(bits(order) as u32))),
        ElementType::Float { order, .. } => Some(half(bits(order) as u16)),
        ElementType::Bytes | ElementType::Fixed { .. } | ElementType::Compound { .. } => None,
    }
}

/// The value of an IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_floats(a: &[f64], b: &[f64]) -> Change {
        let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_be_bytes()).collect::<Vec<u8>>();
        let mut change = Change::default();
        let element = ElementType::Float { width: 8, order: ByteOrder::Big };
        change.compare(&element, &bytes(a), &bytes(b));
        change
    }

    #[test]
    fn the_largest_absolute_and_relative_difference_may_be_of_different_elements() {
        let change = of_floats(&[1.0, 100.0, 5.0], &[2.0, 110.0, 5.0]);
        assert_eq!((change.elements, change.changed, change.not_finite), (3, 2, 0));
        assert_eq!((change.largest_absolute, change.largest_relative), (Some(10.0), Some(0.5)));
        assert_eq!(of_floats(&[1.0], &[1.0]), Change { elements: 1, ..Change::default() });
    }

    #[test]
    fn the_same_numbers_in_another_order_are_found() {
        assert!(of_floats(&[1.0, 2.0, 3.0, 2.0], &[2.0, 3.0, 2.0, 1.0]).is_reordered());
        assert!(!of_floats(&[1.0, 2.0, 3.0], &[2.0, 1.0, 4.0]).is_reordered());
        assert!(!of_floats(&[1.0, 1.0, 2.0], &[2.0, 2.0, 1.0]).is_reordered(), "other counts of the same numbers");
        assert!(!of_floats(&[1.0], &[1.0]).is_reordered(), "nothing changed");
    }

    #[test]
    fn not_a_number_and_infinity_are_counted_and_give_no_difference() {
        let change = of_floats(&[f64::NAN, 1.0, f64::NAN, 0.0], &[f64::NAN, f64::INFINITY, 2.0, -0.0]);
        assert_eq!((change.changed, change.not_finite), (3, 2), "the same NaN is no change");
        assert_eq!((change.largest_absolute, change.largest_relative), (Some(0.0), Some(0.0)), "0 and -0");
    }

    #[test]
    fn integers_and_short_floats_of_both_byte_orders_are_numbers() {
        let (little, big) = (ByteOrder::Little, ByteOrder::Big);
        let int = |width, signed, order| ElementType::Int { width, signed, order };
        assert_eq!(number(&int(2, true, little), &[0xfe, 0xff]), Some(-2.0));
        assert_eq!(number(&int(2, false, big), &[0x01, 0x00]), Some(256.0));
        assert_eq!(number(&int(8, false, little), &[0xff; 8]), Some(u64::MAX as f64));
        let float = |width, order| ElementType::Float { width, order };
        assert_eq!(number(&float(4, little), &1.5f32.to_le_bytes()), Some(1.5));
        assert_eq!(number(&float(2, big), &[0xc1, 0x00]), Some(-2.5));
        assert_eq!(number(&float(2, little), &[1, 0]), Some(2f64.powi(-24)));
        assert_eq!(number(&ElementType::Fixed { width: 3 }, &[1, 2, 3]), None);
    }
}
