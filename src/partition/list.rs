//! The partition list: where each partition is, and how long it is.
//!
//! Source: section 5.2. In the paper, an entry is an offset in the program image and a size. Here, a `u64` that the
//! caller chooses (an offset, or the number of a segment) replaces the offset, because only the loader uses this
//! number.

use super::error::PartitionError;
use super::ids::PartitionId;

/// Maximum number of partitions of a list. With segments of 16 MiB, this number is sufficient for 16 TiB.
pub const PARTITIONS_MAX: usize = 1 << 20;

/// An entry of the partition list (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Where the loader finds the partition. The manager does not use this number.
    pub place: u64,
    /// Length of the partition in the partition buffer.
    pub bytes: u64,
}

/// The partition list (section 5.2). A [`PartitionId`] is an index of this list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionList {
    partitions: Vec<Partition>,
}

impl PartitionList {
    /// A list of at most [`PARTITIONS_MAX`] partitions.
    pub fn new(partitions: Vec<Partition>) -> Result<Self, PartitionError> {
        if partitions.len() > PARTITIONS_MAX {
            let (found, most) = (partitions.len() as u64, PARTITIONS_MAX as u64);
            return Err(PartitionError::TooMany { what: "partitions", found, most });
        }
        Ok(Self { partitions })
    }

    /// A list of partitions with these lengths in bytes. The place of each partition is its number.
    pub fn of_lengths(lengths: impl IntoIterator<Item = u64>) -> Result<Self, PartitionError> {
        let numbered = (0..).zip(lengths).take(PARTITIONS_MAX + 1);
        Self::new(numbered.map(|(place, bytes)| Partition { place, bytes }).collect())
    }

    /// The entry of a partition.
    pub fn get(&self, partition: PartitionId) -> Result<Partition, PartitionError> {
        let partitions = self.partitions.len();
        self.partitions
            .get(partition.index())
            .copied()
            .ok_or(PartitionError::UnknownPartition { partition, partitions })
    }

    /// Number of partitions.
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Whether the list has no partition.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// All partitions in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, Partition)> {
        (0..).map(PartitionId).zip(self.partitions.iter().copied())
    }

    /// Length of the longest partition; 0 if the list is empty.
    pub fn longest_bytes(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.bytes).max().unwrap_or(0)
    }
}
