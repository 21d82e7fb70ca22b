//! Varints: numbers in as few bytes as possible. Each byte holds seven bits of the number, the lowest bits first. The
//! top bit is set in every byte except the last byte.

/// Maximum length in bytes of a number of 64 bits.
pub const VARINT_BYTES_MAX: usize = 10;

/// Why bytes are not a valid varint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotANumber {
    /// The bytes end within the number.
    Cut,
    /// The number has more bytes than allowed, or more than 64 bits.
    TooLong,
}

/// Appends a number.
pub fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number of at most `bytes_max` bytes from the front. The number may be longer than necessary.
pub fn take_varint(bytes: &mut &[u8], bytes_max: usize) -> Result<u64, NotANumber> {
    let mut value = 0;
    for nth in 0..bytes_max.min(VARINT_BYTES_MAX) {
        let (&byte, rest) = bytes.split_first().ok_or(NotANumber::Cut)?;
        *bytes = rest;
        if nth + 1 == VARINT_BYTES_MAX && byte > 1 {
            return Err(NotANumber::TooLong);
        }
        value |= u64::from(byte & 0x7F) << (7 * nth);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(NotANumber::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back_and_cut_ones_do_not(value in prop_oneof![any::<u64>(), 0u64..300, Just(u64::MAX)]) {
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            let len = bytes.len();
            prop_assert_eq!(take_varint(&mut &bytes[..], VARINT_BYTES_MAX), Ok(value));
            prop_assert_eq!(take_varint(&mut &bytes[..], len), Ok(value));
            prop_assert_eq!(take_varint(&mut &bytes[..len - 1], VARINT_BYTES_MAX), Err(NotANumber::Cut));
            prop_assert_eq!(take_varint(&mut &bytes[..], len - 1), Err(NotANumber::TooLong));
        }
    }

    #[test]
    fn a_number_has_at_most_64_bits() {
        let long = [0xFF; VARINT_BYTES_MAX + 1];
        assert_eq!(take_varint(&mut &long[..], usize::MAX), Err(NotANumber::TooLong));
        let above = [&long[..VARINT_BYTES_MAX - 1], &[2]].concat();
        assert_eq!(take_varint(&mut &above[..], VARINT_BYTES_MAX), Err(NotANumber::TooLong));
    }
}
