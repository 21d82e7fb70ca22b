//! The victim cache: copies of evicted partitions to which a call will return.
//!
//! Source: section 6.3. The paper's cache has one entry, and a bit mask of 128 bits finds the partitions on the
//! partition stack, with false positives. Here, the caller limits the number of entries and the number of bytes. A
//! counter for each partition replaces the mask, so that there are no false positives.

use super::ids::PartitionId;
use std::collections::VecDeque;

/// Maximum number of entries of a victim cache.
pub const VICTIMS_MAX: usize = 1 << 12;

/// The limits of the victim cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimLimits {
    /// Maximum number of copies. 0 switches the victim cache off. More than [`VICTIMS_MAX`] means [`VICTIMS_MAX`].
    pub entries: usize,
    /// Maximum number of bytes of all copies together.
    pub bytes: u64,
}

impl VictimLimits {
    /// No victim cache.
    pub const NONE: Self = Self { entries: 0, bytes: 0 };
    /// The victim cache of the paper: "there is only a single entry" (section 6.3).
    pub const PAPER: Self = Self { entries: 1, bytes: u64::MAX };
}

/// Which partitions have a copy in the victim cache (section 6.3, Figure 7). The bytes of the copies belong to the
/// owner of the partition buffer.
#[derive(Clone, Debug)]
pub struct VictimCache {
    limits: VictimLimits,
    /// The partitions with their lengths, the oldest copy first.
    entries: VecDeque<(PartitionId, u64)>,
    bytes: u64,
}

impl VictimCache {
    pub(super) fn new(limits: VictimLimits) -> Self {
        let limits = VictimLimits { entries: limits.entries.min(VICTIMS_MAX), ..limits };
        Self { limits, entries: VecDeque::new(), bytes: 0 }
    }

    /// Whether the partition has a copy.
    pub fn contains(&self, partition: PartitionId) -> bool {
        self.entries.iter().any(|(entry, _)| *entry == partition)
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of copies.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no copy.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a copy, and drops the oldest copies until the limits are met. Returns false if the copy alone is longer
    /// than the limit.
    pub(super) fn put(&mut self, partition: PartitionId, bytes: u64) -> bool {
        if self.limits.entries == 0 || bytes > self.limits.bytes {
            return false;
        }
        self.take(partition);
        while self.entries.len() >= self.limits.entries || bytes > self.limits.bytes - self.bytes {
            self.drop_oldest();
        }
        self.entries.push_back((partition, bytes));
        self.bytes += bytes;
        true
    }

    /// Removes the copy of a partition. Returns whether there was a copy.
    pub(super) fn take(&mut self, partition: PartitionId) -> bool {
        let at = self.entries.iter().position(|(entry, _)| *entry == partition);
        let removed = at.and_then(|at| self.entries.remove(at));
        self.bytes -= removed.map_or(0, |(_, bytes)| bytes);
        removed.is_some()
    }

    /// Drops the oldest copies until at least `wanted_bytes` are free. Returns the number of freed bytes.
    pub(super) fn give_back(&mut self, wanted_bytes: u64) -> u64 {
        let before = self.bytes;
        while before - self.bytes < wanted_bytes && !self.entries.is_empty() {
            self.drop_oldest();
        }
        before - self.bytes
    }

    fn drop_oldest(&mut self) {
        self.bytes -= self.entries.pop_front().map_or(0, |(_, bytes)| bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(cache: &VictimCache) -> Vec<u32> {
        cache.entries.iter().map(|(partition, _)| partition.0).collect()
    }

    #[test]
    fn a_victim_cache_keeps_the_newest_copies_within_both_limits() {
        let mut cache = VictimCache::new(VictimLimits { entries: 3, bytes: 100 });
        assert!((0..5).all(|n| cache.put(PartitionId(n), 10)));
        assert_eq!((ids(&cache), cache.bytes()), (vec![2, 3, 4], 30));
        assert!(cache.put(PartitionId(9), 85));
        assert_eq!((ids(&cache), cache.bytes()), (vec![4, 9], 95));
        assert!(!cache.put(PartitionId(1), 101), "longer than the limit");
        assert!(cache.take(PartitionId(4)) && !cache.take(PartitionId(4)));
        assert_eq!((ids(&cache), cache.bytes()), (vec![9], 85));
    }

    #[test]
    fn memory_pressure_frees_the_oldest_copies_first_and_all_copies_at_most() {
        let mut cache = VictimCache::new(VictimLimits { entries: 4, bytes: u64::MAX });
        (0..4).for_each(|n| assert!(cache.put(PartitionId(n), 10)));
        assert_eq!((cache.give_back(0), cache.give_back(11)), (0, 20));
        assert_eq!(ids(&cache), [2, 3]);
        assert_eq!((cache.give_back(u64::MAX), cache.give_back(1)), (20, 0));
        assert!(cache.is_empty() && cache.bytes() == 0);
    }

    #[test]
    fn the_cache_of_the_paper_has_one_entry_and_no_cache_has_none() {
        let mut cache = VictimCache::new(VictimLimits::PAPER);
        assert!(cache.put(PartitionId(1), u64::MAX) && cache.put(PartitionId(2), 1));
        assert_eq!((ids(&cache), cache.bytes()), (vec![2], 1));
        assert!(!VictimCache::new(VictimLimits::NONE).put(PartitionId(1), 0));
    }
}
