//! Elements as integers of the same order, and as doubles to compute with.

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elements {
    /// Bytes of each: 4 or 8.
    pub width: usize,
    pub is_big: bool,
    pub is_float: bool,
}

impl Elements {
    /// The bits of the element in `bytes`, `width` of them.
    #[inline(always)]
    pub(super) fn load(self, bytes: &[u8]) -> u64 {
        let mut eight = [0; 8];
        match (self.width, self.is_big) {
            (4, false) => eight[..4].copy_from_slice(bytes),
            (4, true) => eight[..4].iter_mut().zip(bytes.iter().rev()).for_each(|(to, from)| *to = *from),
            (_, false) => eight.copy_from_slice(bytes),
            (_, true) => return u64::from_be_bytes(bytes.try_into().unwrap_or(eight)),
        }
        u64::from_le_bytes(eight)
    }

    #[inline(always)]
    pub(super) fn store(self, bits: u64, bytes: &mut [u8]) {
        match (self.width, self.is_big) {
            (4, false) => bytes.copy_from_slice(&(bits as u32).to_le_bytes()),
            (4, true) => bytes.copy_from_slice(&(bits as u32).to_be_bytes()),
            (_, false) => bytes.copy_from_slice(&bits.to_le_bytes()),
            (_, true) => bytes.copy_from_slice(&bits.to_be_bytes()),
        }
    }

    fn top(self) -> u64 {
        1 << (self.width * 8 - 1)
    }

    fn mask(self) -> u64 {
        !0 >> (64 - self.width * 8)
    }

    /// An integer that rises with the number, 0 where the number is: for floats their distance in it is a count of
    /// representable numbers. NaNs lie beyond the infinities.
    #[inline(always)]
    pub(super) fn ordered(self, bits: u64) -> i64 {
        let signed = if self.width == 4 { i64::from(bits as u32 as i32) } else { bits as i64 };
        if self.is_float && signed < 0 { signed ^ ((self.mask() >> 1) as i64) } else { signed }
    }

    /// The bits again; of what is beyond the width the low ones.
    #[inline(always)]
    pub(super) fn unordered(self, ordered: i64) -> u64 {
        let cut = if self.width == 4 { i64::from(ordered as i32) } else { ordered };
        let signed = if self.is_float && cut < 0 { cut ^ ((self.mask() >> 1) as i64) } else { cut };
        signed as u64 & self.mask()
    }

    /// The number to compute with; 0 for what is none.
    #[inline(always)]
    pub(super) fn value(self, bits: u64) -> f64 {
        let value = if self.width == 4 { f64::from(f32::from_bits(bits as u32)) } else { f64::from_bits(bits) };
        if value.is_finite() { value } else { 0.0 }
    }

    /// The element nearest to a prediction, ordered; that of 0 where the prediction is no number.
    #[inline(always)]
    pub(super) fn nearest(self, value: f64) -> i64 {
        let value = if value.is_nan() { 0.0 } else { value };
        let bits = if self.width == 4 { u64::from((value as f32).to_bits()) } else { value.to_bits() };
        self.ordered(bits)
    }

    /// The sign bit turned.
    #[inline(always)]
    pub(super) fn negated(self, bits: u64) -> u64 {
        bits ^ self.top()
    }

    /// Without the sign.
    #[inline(always)]
    pub(super) fn magnitude(self, bits: u64) -> u64 {
        if self.is_float { bits & !self.top() } else { bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_bit_pattern_has_its_place_and_comes_back(
            bits in any::<u64>(), width in prop::sample::select(vec![4usize, 8]), is_big in any::<bool>(), is_float in any::<bool>(),
        ) {
            let elements = Elements { width, is_big, is_float };
            let bits = bits & elements.mask();
            prop_assert_eq!(elements.unordered(elements.ordered(bits)), bits);
            let mut bytes = vec![0; width];
            elements.store(bits, &mut bytes);
            prop_assert_eq!(elements.load(&bytes), bits);
        }

        #[test]
        fn ordered_integers_rise_with_the_numbers(a in any::<f64>(), b in any::<f64>(), c in any::<f32>(), d in any::<f32>()) {
            let doubles = Elements { width: 8, is_big: false, is_float: true };
            let of = |x: f64| doubles.ordered(x.to_bits());
            prop_assert_eq!(a < b, of(a) < of(b) && a != b);
            let floats = Elements { width: 4, is_big: false, is_float: true };
            let of = |x: f32| floats.ordered(u64::from(x.to_bits()));
            prop_assert_eq!(c < d, of(c) < of(d) && c != d);
        }
    }
}
