//! Elements as ordered integers, which sort like the numbers, and as doubles for arithmetic.

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements {
    /// The number of bytes of each element: 4 or 8.
    pub width: usize,
    pub is_big: bool,
    pub is_float: bool,
}

impl Elements {
    /// The bits of the element in `bytes`, which has `width` bytes.
    #[inline(always)]
    pub(crate) fn load(self, bytes: &[u8]) -> u64 {
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
    pub(crate) fn store(self, bits: u64, bytes: &mut [u8]) {
        match (self.width, self.is_big) {
            (4, false) => bytes.copy_from_slice(&(bits as u32).to_le_bytes()),
            (4, true) => bytes.copy_from_slice(&(bits as u32).to_be_bytes()),
            (_, false) => bytes.copy_from_slice(&bits.to_le_bytes()),
            (_, true) => bytes.copy_from_slice(&bits.to_be_bytes()),
        }
    }

    /// Loads every `step`-th element, beginning with the first element.
    pub(crate) fn load_all(self, bytes: &[u8], step: usize, to: &mut [u64]) {
        self.loaded(bytes, step, to.iter_mut(), |to, bits| *to = bits);
    }

    /// Loads every `step`-th element as a double.
    pub(crate) fn load_values(self, bytes: &[u8], step: usize, to: &mut [f64]) {
        self.loaded(bytes, step, to.iter_mut(), |to, bits| *to = self.value(bits));
    }

    /// Loads every `step`-th element. The n-th loaded element goes to `to[places[n]]`.
    pub(crate) fn load_to(self, bytes: &[u8], step: usize, to: &mut [u64], places: &[u32]) {
        self.loaded(bytes, step, places.iter(), |&place, bits| to[place as usize] = bits);
    }

    /// Calls `call` with each item of `each` and the bits of the matching element.
    #[inline(always)]
    fn loaded<T>(self, bytes: &[u8], step: usize, each: impl Iterator<Item = T>, mut call: impl FnMut(T, u64)) {
        if self.width == 4 {
            let from = bytes.as_chunks::<4>().0.iter().step_by(step);
            match self.is_big {
                true => each.zip(from).for_each(|(to, &b)| call(to, u64::from(u32::from_be_bytes(b)))),
                false => each.zip(from).for_each(|(to, &b)| call(to, u64::from(u32::from_le_bytes(b)))),
            }
        } else {
            let from = bytes.as_chunks::<8>().0.iter();
            match (self.is_big, step) {
                (false, 1) => each.zip(from).for_each(|(to, &b)| call(to, u64::from_le_bytes(b))),
                (false, _) => each.zip(from.step_by(step)).for_each(|(to, &b)| call(to, u64::from_le_bytes(b))),
                (true, _) => each.zip(from.step_by(step)).for_each(|(to, &b)| call(to, u64::from_be_bytes(b))),
            }
        }
    }

    /// The inverse of [`Elements::load_all`].
    pub(crate) fn store_all(self, from: &[u64], step: usize, bytes: &mut [u8]) {
        if self.width == 8 && !self.is_big && step == 1 {
            return store_few(from, bytes.as_chunks_mut::<8>().0);
        }
        self.stored(from.iter().copied(), step, bytes);
    }

    /// The inverse of [`Elements::load_to`].
    pub(crate) fn store_from(self, from: &[u64], places: &[u32], step: usize, bytes: &mut [u8]) {
        self.stored(places.iter().map(|&place| from[place as usize]), step, bytes);
    }

    /// Stores the three elements of each place next to each other. Each element has 4 bytes.
    pub(crate) fn store_points(self, from: &[[u32; 3]], places: &[u32], bytes: &mut [u8]) {
        let to = bytes.as_chunks_mut::<12>().0.iter_mut().zip(places);
        for (to, &place) in to {
            let point = from[place as usize].map(|b| if self.is_big { b.to_be_bytes() } else { b.to_le_bytes() });
            to.copy_from_slice(point.as_flattened());
        }
    }

    #[inline(always)]
    fn stored(self, from: impl Iterator<Item = u64>, step: usize, bytes: &mut [u8]) {
        if self.width == 4 {
            let to = bytes.as_chunks_mut::<4>().0.iter_mut().step_by(step);
            match self.is_big {
                true => to.zip(from).for_each(|(to, b)| *to = (b as u32).to_be_bytes()),
                false => to.zip(from).for_each(|(to, b)| *to = (b as u32).to_le_bytes()),
            }
        } else {
            let to = bytes.as_chunks_mut::<8>().0.iter_mut();
            match (self.is_big, step) {
                (false, 1) => to.zip(from).for_each(|(to, b)| *to = b.to_le_bytes()),
                (false, _) => to.step_by(step).zip(from).for_each(|(to, b)| *to = b.to_le_bytes()),
                (true, _) => to.step_by(step).zip(from).for_each(|(to, b)| *to = b.to_be_bytes()),
            }
        }
    }

    fn top(self) -> u64 {
        1 << (self.width * 8 - 1)
    }

    #[inline(always)]
    fn mask(self) -> u64 {
        !0 >> (64 - self.width * 8)
    }

    /// The bits that [`Elements::ordered`] inverts in negative numbers.
    #[inline(always)]
    pub(crate) fn turned(self) -> i64 {
        if self.is_float { (self.mask() >> 1) as i64 } else { 0 }
    }

    /// The ordered integer of an element. Ordered integers have the same order as the numbers, and the number 0 has
    /// the ordered integer 0. The difference of the ordered integers of two floats is a count of representable
    /// numbers. NaNs are beyond the infinities.
    #[inline(always)]
    pub(crate) fn ordered(self, bits: u64) -> i64 {
        let signed = if self.width == 4 { i64::from(bits as u32 as i32) } else { bits as i64 };
        signed ^ ((signed >> 63) & self.turned())
    }

    /// Truncates an integer to its low `width` bytes, with sign. Equals `ordered(unordered(integer))`.
    #[inline(always)]
    fn cut(self, ordered: i64) -> i64 {
        if self.width == 4 { i64::from(ordered as i32) } else { ordered }
    }

    /// The inverse of [`Elements::ordered`]. Bits above the width of an element are dropped.
    #[inline(always)]
    pub(crate) fn unordered(self, ordered: i64) -> u64 {
        self.turned_back(ordered, self.turned())
    }

    /// Computes the same result as [`Elements::unordered`]. `turned` is the result of [`Elements::turned`], computed
    /// once for many elements.
    #[inline(always)]
    pub(crate) fn turned_back(self, ordered: i64, turned: i64) -> u64 {
        let cut = self.cut(ordered);
        (cut ^ ((cut >> 63) & turned)) as u64 & self.mask()
    }

    /// The element as a double; 0 if the element is NaN or infinite.
    #[inline(always)]
    pub(crate) fn value(self, bits: u64) -> f64 {
        let value = if self.width == 4 { f64::from(f32::from_bits(bits as u32)) } else { f64::from_bits(bits) };
        if value.is_finite() { value } else { 0.0 }
    }

    /// The ordered integer of the element nearest to a prediction. A prediction of NaN counts as 0.
    #[inline(always)]
    pub(crate) fn nearest(self, value: f64) -> i64 {
        let value = if value.is_nan() { 0.0 } else { value };
        let bits = if self.width == 4 { u64::from((value as f32).to_bits()) } else { value.to_bits() };
        self.ordered(bits)
    }

    /// The bits of the element nearest to a prediction. The prediction must not be NaN.
    #[inline(always)]
    pub(crate) fn rounded(self, value: f64) -> u64 {
        if self.width == 4 { u64::from((value as f32).to_bits()) } else { value.to_bits() }
    }

    /// The float that is `steps` representable numbers above another float: `unordered(ordered(bits) + steps)`. If
    /// both floats have the same sign (the usual case), one addition is enough.
    #[inline(always)]
    pub(crate) fn above(self, bits: u64, steps: i64) -> u64 {
        if self.width == 8 {
            let signed = bits as i64;
            let near = if signed >= 0 { signed.checked_add(steps) } else { signed.checked_sub(steps) };
            if let Some(near) = near
                && (near ^ signed) >= 0
            {
                return near as u64;
            }
        } else {
            let signed = i64::from(bits as u32 as i32);
            let near = if signed >= 0 { signed.wrapping_add(steps) } else { signed.wrapping_sub(steps) };
            if i64::from(near as i32) == near && (near ^ signed) >= 0 {
                return u64::from(near as u32);
            }
        }
        self.unordered(self.ordered(bits).wrapping_add(steps))
    }

    /// The bits with the sign bit inverted.
    #[inline(always)]
    pub(crate) fn negated(self, bits: u64) -> u64 {
        bits ^ self.top()
    }

    /// The bits without the sign bit, if the element is a float.
    #[inline(always)]
    pub(crate) fn magnitude(self, bits: u64) -> u64 {
        if self.is_float { bits & !self.top() } else { bits }
    }
}

/// Stores contiguous doubles, four at a time. Runs are often so short that a call of a copy function would take
/// longer.
#[inline(always)]
fn store_few(from: &[u64], to: &mut [[u8; 8]]) {
    let count = from.len().min(to.len());
    let ((from, few), (to, rest)) = (from[..count].as_chunks::<4>(), to[..count].as_chunks_mut::<4>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.map(u64::to_le_bytes));
    match (few, rest) {
        ([a], [to]) => *to = a.to_le_bytes(),
        ([a, b], [to, to_b]) => (*to, *to_b) = (a.to_le_bytes(), b.to_le_bytes()),
        ([a, b, c], [to, to_b, to_c]) => (*to, *to_b, *to_c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes()),
        _ => {} // no elements remain
    }
}

/// The binary logarithm of a positive number, with an error of at most 0.0002. The result is the exponent plus a
/// polynomial of the mantissa, so that the compiler can vectorize a loop of calls.
#[inline(always)]
pub(crate) fn about_log2(x: f64) -> f64 {
    let bits = x.to_bits();
    // The exponent as the low bits of a double between 2^52 and 2^53.
    let exponent = f64::from_bits(bits >> 52 | 0x4330_0000_0000_0000) - ((1u64 << 52) as f64 + 1023.0);
    let m = f64::from_bits(bits & 0x000F_FFFF_FFFF_FFFF | 0x3FF0_0000_0000_0000);
    // The polynomial is exact at the roots of a Chebyshev polynomial on [1, 2].
    let fourth = 0.626_032_182_163_928 - 0.078_440_676_209_145_8 * m;
    exponent - 2.498_353_148_814_169 + m * (4.029_211_391_071_479 + m * (-2.078_335_168_251_712 + m * fourth))
}

/// A pseudorandom number that depends only on `n`, computed by the finalizer of MurmurHash3 (A. Appleby, public
/// domain).
pub(crate) fn noise(n: u32) -> u32 {
    let mut hash = n.wrapping_add(1).wrapping_mul(0x9E37_79B9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
    hash ^ (hash >> 16)
}

/// The weight of each error: the precision divided by the size of the number. The weight of numbers far below the
/// mean size is limited.
pub(crate) fn by_size(target: &[f64], precision: f64) -> Vec<f64> {
    let mean = target.iter().map(|y| y.abs()).sum::<f64>() / target.len().max(1) as f64;
    let weight = |y: &f64| precision / (y.abs() + mean * 1e-6).max(f64::MIN_POSITIVE);
    target.iter().map(weight).map(|w| if w.is_finite() { w } else { 0.0 }).collect()
}

pub(crate) fn precision(kind: Elements) -> f64 {
    if kind.width == 4 { f64::from(1u32 << 23) } else { (1u64 << 52) as f64 }
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
            // Storing with a step gives the same bytes as storing each element separately. Bytes between and after
            // the elements do not change.
            let all: Vec<u64> = (0..11u64).map(|n| bits.rotate_left(n as u32 * 7) & elements.mask()).collect();
            for (step, count) in [1, 2].into_iter().flat_map(|step| (0..=all.len()).map(move |count| (step, count))) {
                let mut bytes = vec![0xA5; width * (count * step + 9)];
                elements.store_all(&all[..count], step, &mut bytes);
                let mut again = vec![0; count];
                elements.load_all(&bytes, step, &mut again);
                prop_assert_eq!(&again[..], &all[..count]);
                for (n, element) in bytes.chunks_exact(width).enumerate() {
                    match n % step == 0 && n / step < count {
                        true => prop_assert_eq!(elements.load(element), all[n / step]),
                        false => prop_assert!(element.iter().all(|&byte| byte == 0xA5)),
                    }
                }
            }
        }

        #[test]
        fn three_elements_of_each_place_are_stored_together_as_they_are_one_lane_after_the_other(
            points in prop::collection::vec(any::<[u32; 3]>(), 1..40), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
            is_big in any::<bool>(), room in 0..80usize,
        ) {
            let elements = Elements { width: 4, is_big, is_float: true };
            let places: Vec<u32> = picks.iter().map(|pick| pick.index(points.len()) as u32).collect();
            // Both functions store only the places for which there is room.
            let (mut lanes, mut together) = (vec![0xA5; room * 12], vec![0xA5; room * 12]);
            for lane in (0..3).filter(|_| room > 0) {
                let column: Vec<u64> = points.iter().map(|point| u64::from(point[lane])).collect();
                elements.store_from(&column, &places, 3, &mut lanes[lane * 4..]);
            }
            elements.store_points(&points, &places, &mut together);
            prop_assert_eq!(together, lanes);
        }

        #[test]
        fn logarithms_are_off_by_next_to_nothing(mantissa in 1f64..2.0, exponent in -1000i32..1000) {
            let x = mantissa * 2f64.powi(exponent);
            prop_assert!((about_log2(x) - x.log2()).abs() < 2e-4);
        }

        #[test]
        fn what_is_some_numbers_above_is_found_by_one_addition_too(
            bits in any::<u64>(), width in prop::sample::select(vec![4usize, 8]),
            steps in prop_oneof![any::<i64>(), -9i64..9, any::<i32>().prop_map(i64::from)], is_small in any::<bool>(),
        ) {
            let floats = Elements { width, is_big: false, is_float: true };
            let bits = (if is_small { bits & (floats.top() | 7) } else { bits }) & floats.mask();
            prop_assert_eq!(floats.above(bits, steps), floats.unordered(floats.ordered(bits).wrapping_add(steps)));
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
