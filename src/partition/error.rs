//! The errors of the partition manager.

use super::ids::{ChainId, PartitionId, SubBufferId};

/// Why the partition manager refused a request. After an error, the manager is in the same state as before the
/// request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A list or a size is larger than its limit.
    #[error("{what}: {found} is more than the limit of {most}")]
    TooMany {
        /// The kind of thing that was counted.
        what: &'static str,
        /// The number that was requested.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// The partition buffer has no sub-buffer.
    #[error("the partition buffer has no sub-buffer")]
    NoSubBuffer,
    /// No sub-buffer is large enough for the partition.
    #[error("partition {partition} has {bytes} bytes; the largest sub-buffer has {largest} bytes")]
    TooLarge {
        /// The partition.
        partition: PartitionId,
        /// The length of the partition.
        bytes: u64,
        /// The length of the largest sub-buffer.
        largest: u64,
    },
    /// The partition list has no such partition.
    #[error("partition {partition} is not in the list of {partitions} partitions")]
    UnknownPartition {
        /// The partition.
        partition: PartitionId,
        /// The length of the partition list.
        partitions: usize,
    },
    /// The chain was not opened, or is closed.
    #[error("chain {0} is not open")]
    UnknownChain(ChainId),
    /// A return without a call.
    #[error("chain {0} has no call from which it could return")]
    NothingToReturn(ChainId),
    /// Every sub-buffer that is large enough is in use by a holder or by another chain. The request can be repeated
    /// after a release or after a call of the other chain.
    #[error("partition {partition} has no place: every sub-buffer that is large enough is in use")]
    NoRoom {
        /// The partition.
        partition: PartitionId,
    },
    /// The place to which a chain must return is in use by a holder or by another chain. The request can be repeated.
    #[error("partition {partition} cannot return to sub-buffer {sub_buffer}, which is in use")]
    PlaceInUse {
        /// The partition.
        partition: PartitionId,
        /// The sub-buffer from which the partition made its call.
        sub_buffer: SubBufferId,
    },
    /// The partition is in no sub-buffer.
    #[error("partition {0} is in no sub-buffer")]
    NotResident(PartitionId),
    /// A release without a hold.
    #[error("partition {0} is not held")]
    NotHeld(PartitionId),
    /// The partition is active, so it cannot be forgotten.
    #[error("partition {0} is in use")]
    InUse(PartitionId),
    /// A loader named a base that needs the loaded partition, so that neither can be loaded first.
    #[error("partition {0} needs itself as a base")]
    BaseOfItself(PartitionId),
    /// A replacement policy chose a sub-buffer that was not a candidate.
    #[error("the replacement policy chose {}, which is not a candidate", chosen(.0))]
    BadChoice(Option<SubBufferId>),
}

fn chosen(choice: &Option<SubBufferId>) -> String {
    choice.map_or("no sub-buffer".to_owned(), |sub_buffer| format!("sub-buffer {sub_buffer}"))
}
