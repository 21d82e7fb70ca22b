//! Unsigned integers in as few bytes as they need: seven bits a byte, the lowest first, the top bit set on all but
//! the last.

/// The most bytes of a varint here.
pub(in crate::codec) const VARINT_BYTES_MAX: usize = 5;

/// Appends 7 bits a byte, the lowest first, the top bit set on all but the last.
pub(in crate::codec) fn put_varint(value: u32, out: &mut Vec<u8>) {
    let mut rest = value;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Takes a varint from the front. `None` if it is cut or above `u32::MAX`.
pub(in crate::codec) fn take_varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u64;
    for shift in (0..VARINT_BYTES_MAX as u32).map(|i| i * 7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).ok();
        }
    }
    None
}

/// [`put_varint`] of a count or a place.
pub(crate) fn put(n: usize, out: &mut Vec<u8>) {
    put_varint(u32::try_from(n).unwrap_or(u32::MAX), out); // a segment is at most 2^30 bytes
}

/// [`take_varint`] of a count or a place.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<usize> {
    take_varint(bytes).map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back_and_cut_ones_do_not(value in prop_oneof![any::<u32>(), 0u32..300, Just(u32::MAX)]) {
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            prop_assert!(bytes.len() <= VARINT_BYTES_MAX);
            prop_assert_eq!(take_varint(&mut &bytes[..]), Some(value));
            prop_assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), None);
        }
    }
}
