//! The policy Modulus: the sub-buffers are replaced in turn.
//!
//! Source: section 6.1: *next = (next + 1) mod NSB*. Two additions: the first partition takes sub-buffer 0, and a
//! sub-buffer that is not a candidate is skipped. In the paper, all sub-buffers are candidates.

use super::{Candidate, Policy, Use};
use crate::partition::ids::{PartitionId, SubBufferId};

/// Replaces the sub-buffers in turn, like a queue: first in, first out (section 6.1).
#[derive(Clone, Debug, Default)]
pub struct Modulus {
    /// The sub-buffer that was replaced last.
    last: Option<SubBufferId>,
}

impl Modulus {
    /// The policy, before the first partition was loaded.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for Modulus {
    fn choose(&mut self, _: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        self.last = next_in_turn(self.last, candidates.iter().map(|candidate| candidate.sub_buffer));
        self.last
    }

    fn used(&mut self, _: Use) {}
}

/// The first sub-buffer after `last` in the sorted list `sub_buffers`. If no sub-buffer follows `last`, the result is
/// the first sub-buffer of the list.
pub(super) fn next_in_turn(
    last: Option<SubBufferId>,
    sub_buffers: impl Iterator<Item = SubBufferId> + Clone,
) -> Option<SubBufferId> {
    let after = sub_buffers.clone().find(|sub_buffer| Some(*sub_buffer) > last);
    after.or_else(|| sub_buffers.clone().next())
}
