//! The parameter of the codec: which elements it codes, and how hard the encoder tries.

use super::numbers::Elements;
use crate::codec::BIG_ENDIAN;

/// Bits of the parameter.
const INTEGERS: u32 = 1 << 9;
pub(crate) const BYTES: u32 = 1 << 10;
pub(crate) const EFFORT_SHIFT: u32 = 16;
/// The highest effort; decoding does not depend on it.
pub(crate) const EFFORT_MAX: u32 = 2;

/// The parameter for elements of a width and kind.
pub(crate) fn param(width: u8, is_big: bool, is_float: bool, effort: u32) -> u32 {
    let big = if is_big { BIG_ENDIAN } else { 0 };
    let integers = if is_float { 0 } else { INTEGERS };
    u32::from(width) | big | integers | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

/// The parameter for bytes of which nothing is known.
pub(crate) fn param_of_bytes(effort: u32) -> u32 {
    BYTES | 8 | effort.clamp(1, EFFORT_MAX) << EFFORT_SHIFT
}

pub(crate) fn elements_of(param: u32) -> Elements {
    Elements { width: (param & 0xFF) as usize, is_big: param & BIG_ENDIAN != 0, is_float: param & INTEGERS == 0 }
}

/// Whether a parameter is for bytes of which nothing is known.
pub(crate) fn is_of_bytes(param: u32) -> bool {
    param & BYTES != 0
}
