//! Numbers up to `u32::MAX` as varints of at most five bytes.

use crate::varint;

/// The most bytes of a varint of 32 bits.
pub(in crate::codec) const VARINT_BYTES_MAX: usize = 5;

/// Appends a number.
pub(in crate::codec) fn put_varint(value: u32, out: &mut Vec<u8>) {
    varint::put_varint(u64::from(value), out);
}

/// Takes a varint from the front of `bytes`. Returns `None` if the varint is incomplete or above `u32::MAX`.
pub(in crate::codec) fn take_varint(bytes: &mut &[u8]) -> Option<u32> {
    varint::take_varint(bytes, VARINT_BYTES_MAX).ok().and_then(|value| u32::try_from(value).ok())
}

/// Appends a count or a position with [`put_varint`].
pub(crate) fn put(n: usize, out: &mut Vec<u8>) {
    put_varint(u32::try_from(n).unwrap_or(u32::MAX), out); // a segment is at most 2^30 bytes
}

/// Takes a count or a position with [`take_varint`].
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
