//! The test whether an element is an exact or near copy of another element.

use super::super::format::numbers::Elements;

/// The allowed difference between a copy and its source: less than 2^slack representable numbers. With a slack of 0,
/// copy and source must be equal.
pub(crate) type Slack = u32;

/// The slack of near copies, by the width of the elements.
pub(crate) fn slack_of(elements: Elements) -> Slack {
    if elements.width == 4 { 6 } else { 20 }
}

/// Whether an element equals its source, up to the slack. If `is_turned` is true, the source has the opposite sign.
#[inline(always)]
pub(crate) fn is_like(
    bits: &[u64],
    elements: Elements,
    slack: Slack,
    source: usize,
    is_turned: bool,
    at: usize,
) -> bool {
    let found = if is_turned { elements.negated(bits[source]) } else { bits[source] };
    found == bits[at] || slack > 0 && off(bits, elements, source, is_turned, at) < 1 << slack
}

/// The difference between an element and its source, in representable numbers. If `is_turned` is true, the sign of
/// the source is inverted first.
#[inline(always)]
pub(crate) fn off(bits: &[u64], elements: Elements, source: usize, is_turned: bool, at: usize) -> u64 {
    let found = if is_turned { elements.negated(bits[source]) } else { bits[source] };
    elements.ordered(found).wrapping_sub(elements.ordered(bits[at])).unsigned_abs()
}

/// Odd multipliers for hashing: the bits after the binary point of the golden ratio and of square roots.
pub(crate) const MIX: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B];
