//! The parameter of the codec: the type of the elements, and the effort of the encoder.

use super::numbers::Elements;
use crate::codec::BIG_ENDIAN;

/// Bit of the parameter: the elements are integers.
const INTEGERS: u32 = 1 << 9;
/// Bit of the parameter: the elements are bytes of unknown type.
pub(crate) const BYTES: u32 = 1 << 10;
pub(crate) const EFFORT_SHIFT: u32 = 16;
/// The highest effort. Decoding does not depend on the effort.
pub(crate) const EFFORT_MAX: u32 = 2;

/// The parameter for elements of `width` bytes.
pub(crate) fn param(width: u8, is_big: bool, is_float: bool, effort: u32) -> u32 {
    let big = if is_big { BIG_ENDIAN } else { 0 };
    let integers = if is_float { 0 } else { INTEGERS };
    u32::from(width) | big | integers | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

/// The parameter for bytes of unknown type.
pub(crate) fn param_of_bytes(effort: u32) -> u32 {
    BYTES | 8 | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

pub(crate) fn elements_of(param: u32) -> Elements {
    Elements { width: (param & 0xFF) as usize, is_big: param & BIG_ENDIAN != 0, is_float: param & INTEGERS == 0 }
}

/// Whether the parameter is for bytes of unknown type.
pub(crate) fn is_of_bytes(param: u32) -> bool {
    param & BYTES != 0
}
