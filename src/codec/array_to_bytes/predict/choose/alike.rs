//! When an element counts as a copy of another, exact or near.

use super::super::format::numbers::Elements;

/// How a run may differ from its source: in the order of representable numbers by less than 2 to this. 0: not at all.
pub(crate) type Slack = u32;

/// Slack of near runs, by the width of the elements.
pub(crate) fn slack_of(elements: Elements) -> Slack {
    if elements.width == 4 { 6 } else { 20 }
}

/// Whether an element is another one, turned or not, or off by no more than slack.
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

/// By how many representable numbers an element is off another one, turned or not.
#[inline(always)]
pub(crate) fn off(bits: &[u64], elements: Elements, source: usize, is_turned: bool, at: usize) -> u64 {
    let found = if is_turned { elements.negated(bits[source]) } else { bits[source] };
    elements.ordered(found).wrapping_sub(elements.ordered(bits[at])).unsigned_abs()
}

/// Odd multipliers, from the fractions of the golden ratio and of square roots.
pub(crate) const MIX: [u64; 3] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B];
