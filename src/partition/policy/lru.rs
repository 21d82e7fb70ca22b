//! The policy LRU: the sub-buffer with the shortest lifetime is replaced.
//!
//! Source: section 6.2. "Each of the sub-buffers has a lifetime counter which decrements every time that a function
//! is called on another partition", and *next = MIN(LTA)*. If several sub-buffers have the minimum, this group "is
//! managed as if it was a FIFO buffer across different calls of the replacement policy functions".
//!
//! The paper does not say when a lifetime is filled up again. Here, every use fills up the lifetime: a call, a load,
//! and a return. A counter stops at 0. An empty sub-buffer has the lifetime 0.

use super::modulus::next_in_turn;
use super::{Candidate, Policy, Use};
use crate::partition::ids::{PartitionId, SubBufferId};

/// The longest lifetime, in calls. With this lifetime, the policy is exact: only empty sub-buffers have equal
/// lifetimes, until one sub-buffer was not used for 2^32 calls.
pub const LIFETIME_MAX: u32 = u32::MAX;

/// Replaces the sub-buffer that was not used for the longest time (section 6.2).
#[derive(Clone, Debug)]
pub struct Lru {
    /// The lifetime after a use.
    full: u32,
    /// The paper's LTA: the lifetime of each sub-buffer.
    lifetimes: Vec<u32>,
    /// The sub-buffer that was replaced last.
    last: Option<SubBufferId>,
}

impl Lru {
    /// The exact policy.
    pub fn new() -> Self {
        Self::with_lifetime(LIFETIME_MAX)
    }

    /// The policy with a lifetime of `full` calls after a use. All sub-buffers that were not used during the last
    /// `full` calls have the lifetime 0, and are replaced in turn.
    pub fn with_lifetime(full: u32) -> Self {
        Self { full, lifetimes: Vec::new(), last: None }
    }

    /// The lifetime of a sub-buffer, in calls.
    pub fn lifetime(&self, sub_buffer: SubBufferId) -> u32 {
        self.lifetimes.get(sub_buffer.index()).copied().unwrap_or(0)
    }

    fn set(&mut self, sub_buffer: SubBufferId, lifetime: u32) {
        if self.lifetimes.len() <= sub_buffer.index() {
            self.lifetimes.resize(sub_buffer.index() + 1, 0);
        }
        self.lifetimes[sub_buffer.index()] = lifetime;
    }
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Lru {
    fn choose(&mut self, _: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        let sub_buffers = candidates.iter().map(|candidate| candidate.sub_buffer);
        let least = sub_buffers.clone().map(|sub_buffer| self.lifetime(sub_buffer)).min()?;
        let group = sub_buffers.filter(|sub_buffer| self.lifetime(*sub_buffer) == least);
        let next = next_in_turn(self.last, group);
        self.last = next;
        next
    }

    fn used(&mut self, by: Use) {
        if by.is_call {
            self.lifetimes.iter_mut().for_each(|lifetime| *lifetime = lifetime.saturating_sub(1));
        }
        self.set(by.sub_buffer, self.full);
    }

    fn emptied(&mut self, _: PartitionId, sub_buffer: SubBufferId) {
        self.set(sub_buffer, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(lru: &mut Lru, sub_buffers: &[u32]) -> u32 {
        let candidate = |n: &u32| Candidate { sub_buffer: SubBufferId(*n), bytes: 1, resident: None };
        let candidates: Vec<_> = sub_buffers.iter().map(candidate).collect();
        lru.choose(PartitionId(0), &candidates).expect("a candidate").0
    }

    fn used(lru: &mut Lru, sub_buffer: u32, is_call: bool) {
        lru.used(Use { partition: PartitionId(0), sub_buffer: SubBufferId(sub_buffer), is_call });
    }

    #[test]
    fn every_call_on_another_partition_shortens_a_lifetime_by_one_and_a_return_shortens_none() {
        let mut lru = Lru::with_lifetime(2);
        let lifetimes = |lru: &Lru| [0, 1, 2].map(|n| lru.lifetime(SubBufferId(n)));
        used(&mut lru, 0, true);
        used(&mut lru, 1, true);
        assert_eq!(lifetimes(&lru), [1, 2, 0]);
        used(&mut lru, 2, false);
        assert_eq!(lifetimes(&lru), [1, 2, 2]);
        used(&mut lru, 2, true);
        used(&mut lru, 2, true);
        assert_eq!(lifetimes(&lru), [0, 0, 2], "a lifetime stops at 0");
    }

    #[test]
    fn sub_buffers_with_equal_lifetimes_are_replaced_in_turn_across_calls_of_the_policy() {
        let mut lru = Lru::with_lifetime(1);
        let turn = [0; 5].map(|_| choose(&mut lru, &[0, 1, 2]));
        assert_eq!(turn, [0, 1, 2, 0, 1]);
        used(&mut lru, 2, true);
        assert_eq!([choose(&mut lru, &[0, 1, 2]), choose(&mut lru, &[0, 1, 2])], [0, 1], "2 has the lifetime 1");
        assert_eq!(choose(&mut lru, &[2]), 2);
    }
}
