//! The policy of Belady: the partition that is used last in the future is replaced.
//!
//! Source: L. A. Belady, *A study of replacement algorithms for a virtual-storage computer*, 1966. The paper of the
//! partition manager names this policy as future work ("pre-fetching schemes"). The caller gives the coming uses,
//! because a restart knows all segments that it will read.
//!
//! No policy needs fewer loads if all partitions have the length of a sub-buffer and no call is nested. If calls are
//! nested, a return fixes the sub-buffer. If lengths differ, a long partition may evict a useful short partition. In
//! both cases the choice is good, but another choice may be better.

use super::{Candidate, Policy, Use};
use crate::partition::ids::{PartitionId, SubBufferId};
use std::collections::{HashMap, VecDeque};

/// Replaces the partition whose next use is farthest in the future.
#[derive(Clone, Debug, Default)]
pub struct LookAhead {
    /// For each partition the positions of its coming uses, the next position first.
    coming: HashMap<PartitionId, VecDeque<u64>>,
    /// Number of announced uses.
    announced: u64,
}

impl LookAhead {
    /// The policy for these coming uses: each call, and each return to a partition.
    pub fn new(uses: impl IntoIterator<Item = PartitionId>) -> Self {
        let mut policy = Self::default();
        policy.announce(uses);
        policy
    }

    /// Adds uses that come after all uses that were announced before. Each announced use takes 8 bytes of memory
    /// until the use has happened.
    pub fn announce(&mut self, uses: impl IntoIterator<Item = PartitionId>) {
        for partition in uses {
            self.coming.entry(partition).or_default().push_back(self.announced);
            self.announced += 1;
        }
    }

    /// Takes back the next announced use of a partition, because the use will not happen.
    pub fn withdraw(&mut self, partition: PartitionId) {
        if let Some(uses) = self.coming.get_mut(&partition) {
            uses.pop_front();
            if uses.is_empty() {
                self.coming.remove(&partition);
            }
        }
    }

    /// Position of the next announced use of a partition; `None` if no use is announced.
    pub fn next_use(&self, partition: PartitionId) -> Option<u64> {
        self.coming.get(&partition).and_then(|uses| uses.front().copied())
    }
}

impl Policy for LookAhead {
    fn choose(&mut self, _: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        // Chooses an empty sub-buffer. If no sub-buffer is empty, chooses a partition without further use, or else
        // the partition whose next use is farthest in the future. Of equal candidates, the smallest sub-buffer is
        // chosen, so that large sub-buffers stay free for long partitions.
        let farthest = |candidate: &&Candidate| {
            let next = candidate.resident.map(|resident| self.next_use(resident.partition).unwrap_or(u64::MAX));
            (next.is_none(), next, std::cmp::Reverse((candidate.bytes, candidate.sub_buffer)))
        };
        candidates.iter().max_by_key(farthest).map(|candidate| candidate.sub_buffer)
    }

    /// Each partition has a separate queue of uses. So threads may use the partitions in a slightly different order
    /// than the announced order.
    fn used(&mut self, by: Use) {
        self.withdraw(by.partition);
    }

    fn is_over(&self, partition: PartitionId) -> bool {
        self.next_use(partition).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::policy::Resident;

    fn candidate(sub_buffer: u32, bytes: u64, resident: Option<u32>) -> Candidate {
        let of = |n| Resident { partition: PartitionId(n), bytes: 1, on_return_path: false };
        Candidate { sub_buffer: SubBufferId(sub_buffer), bytes, resident: resident.map(of) }
    }

    #[test]
    fn an_empty_sub_buffer_comes_before_an_unused_partition_and_this_before_the_farthest_use() {
        let mut policy = LookAhead::new([1, 2, 3, 1].map(PartitionId));
        let all = [
            candidate(0, 9, Some(1)),
            candidate(1, 9, Some(3)),
            candidate(2, 9, Some(2)),
            candidate(3, 9, Some(7)),
            candidate(4, 9, None),
            candidate(5, 8, None),
        ];
        let choices: Vec<_> = (1..=6).map(|n| policy.choose(PartitionId(5), &all[..n]).map(|s| s.0)).collect();
        assert_eq!(choices, [Some(0), Some(1), Some(1), Some(3), Some(4), Some(5)]);
        assert_eq!(policy.choose(PartitionId(5), &[]), None);
    }

    #[test]
    fn uses_in_another_order_than_announced_do_not_confuse_the_coming_uses() {
        let mut policy = LookAhead::new([1, 2, 1].map(PartitionId));
        let used = |policy: &mut LookAhead, n| {
            policy.used(Use { partition: PartitionId(n), sub_buffer: SubBufferId(0), is_call: true });
        };
        used(&mut policy, 2);
        used(&mut policy, 8);
        assert_eq!([1, 2, 8].map(|n| policy.next_use(PartitionId(n))), [Some(0), None, None]);
        used(&mut policy, 1);
        policy.announce([PartitionId(2)]);
        assert_eq!([1, 2].map(|n| policy.next_use(PartitionId(n))), [Some(2), Some(3)]);
    }
}
