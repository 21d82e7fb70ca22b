//! Replacement policies: which sub-buffer a new partition takes (section 6).
//!
//! A policy implements [`Policy`]. [`Modulus`] and [`Lru`] are the policies of the paper. [`LookAhead`] knows which
//! partitions will be used. [`ClockPro`] is a policy of the crate `quick_cache`. A caller can bring another policy.
//!
//! A policy decides only where a *new* partition goes. A partition that resumes after a call goes back to the
//! sub-buffer from which it made the call, whatever the policy is.

mod clock_pro;
mod look_ahead;
mod lru;
mod modulus;

pub use clock_pro::ClockPro;
pub use look_ahead::LookAhead;
pub use lru::{LIFETIME_MAX, Lru};
pub use modulus::Modulus;

use super::ids::{PartitionId, SubBufferId};

/// A sub-buffer that is large enough for the new partition, and that no other chain and no holder uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The sub-buffer.
    pub sub_buffer: SubBufferId,
    /// Length of the sub-buffer.
    pub bytes: u64,
    /// The partition in the sub-buffer, which would be evicted.
    pub resident: Option<Resident>,
}

/// A partition that would be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The partition.
    pub partition: PartitionId,
    /// Length of the partition.
    pub bytes: u64,
    /// Whether a call will return to the partition. If so, the partition becomes EWOR.
    pub on_return_path: bool,
}

/// A use of a partition in a sub-buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The used partition.
    pub partition: PartitionId,
    /// Where the partition is after the use.
    pub sub_buffer: SubBufferId,
    /// Whether the use is a call. If false, the use is the return of a callee to the partition.
    pub is_call: bool,
}

/// Chooses which sub-buffer a new partition takes (section 6).
///
/// The manager calls the functions in this order: `choose` if the partition is in no sub-buffer and no return fixes
/// the sub-buffer, `emptied` if a partition leaves a sub-buffer, then `used`. The same sequence of calls must always
/// lead to the same choices, so that a trace can be repeated.
pub trait Policy {
    /// The sub-buffer for the partition `incoming`. `candidates` are sorted by sub-buffer, and are never empty. If
    /// the result is `None`, or a sub-buffer that is not a candidate, the request fails.
    fn choose(&mut self, incoming: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId>;

    /// A partition was used, and is now in the sub-buffer that `by` names.
    fn used(&mut self, by: Use);

    /// Whether it is known that the partition will not be used again.
    fn is_over(&self, partition: PartitionId) -> bool {
        let _ = partition;
        false
    }

    /// The partition left the sub-buffer: it was evicted, moved, or forgotten after a failed load.
    fn emptied(&mut self, partition: PartitionId, sub_buffer: SubBufferId) {
        let _ = (partition, sub_buffer);
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn choose(&mut self, incoming: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        (**self).choose(incoming, candidates)
    }

    fn used(&mut self, by: Use) {
        (**self).used(by);
    }

    fn is_over(&self, partition: PartitionId) -> bool {
        (**self).is_over(partition)
    }

    fn emptied(&mut self, partition: PartitionId, sub_buffer: SubBufferId) {
        (**self).emptied(partition, sub_buffer);
    }
}
