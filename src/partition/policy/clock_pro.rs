//! The policy of the crate `quick_cache`: Clock-PRO with ideas of S3-FIFO.
//!
//! The crate keeps *cold* partitions (used once), *hot* partitions (used again), and the hashes of partitions that
//! were evicted lately. A partition that is used again soon after its eviction becomes hot. So a scan over many
//! partitions evicts only cold partitions.
//!
//! This file keeps the keys of one `quick_cache` equal to the resident partitions. The crate chooses only between the
//! candidates, because all other partitions are pinned during the choice. A sub-buffer holds one partition of any
//! length, so each partition counts as one.

use super::{Candidate, Policy, Use};
use crate::partition::ids::{PartitionId, SubBufferId};
use quick_cache::unsync::Cache;
use quick_cache::{Lifecycle, UnitWeighter};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex, PoisonError};

/// The partitions that may be evicted now.
#[derive(Clone, Debug, Default)]
struct Evictable(Arc<Mutex<BTreeSet<PartitionId>>>);

impl Evictable {
    fn set(&self, partitions: BTreeSet<PartitionId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = partitions;
    }
}

impl Lifecycle<PartitionId, ()> for Evictable {
    /// The evicted partitions, in order.
    type RequestState = Vec<PartitionId>;

    fn is_pinned(&self, partition: &PartitionId, (): &()) -> bool {
        !self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(partition)
    }

    fn on_evict(&self, evicted: &mut Self::RequestState, partition: PartitionId, (): ()) {
        evicted.push(partition);
    }
}

/// A hasher without a random seed, so that a trace always has the same loads.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// Clock-PRO of the crate `quick_cache`.
pub struct ClockPro {
    cache: Cache<PartitionId, (), UnitWeighter, Hasher, Evictable>,
    evictable: Evictable,
    /// The partition that the last choice added. The use of this partition is not yet reported.
    added: Option<PartitionId>,
}

impl ClockPro {
    /// The policy for a buffer of `sub_buffers` sub-buffers.
    pub fn new(sub_buffers: usize) -> Self {
        let evictable = Evictable::default();
        let capacity = sub_buffers.max(1);
        let cache = Cache::with(capacity, capacity as u64, UnitWeighter, Hasher::default(), evictable.clone());
        Self { cache, evictable, added: None }
    }

    /// Adds a partition. Returns the partitions that the crate evicted.
    fn insert(&mut self, partition: PartitionId) -> Vec<PartitionId> {
        let mut evicted = Vec::new();
        self.cache.insert_with_lifecycle(partition, (), &mut evicted);
        evicted
    }
}

impl Policy for ClockPro {
    fn choose(&mut self, incoming: PartitionId, candidates: &[Candidate]) -> Option<SubBufferId> {
        if let Some(empty) = candidates.iter().find(|candidate| candidate.resident.is_none()) {
            return Some(empty.sub_buffer); // `used` adds the partition
        }
        let holding = |partition: PartitionId| {
            let holds = |candidate: &&Candidate| candidate.resident.is_some_and(|r| r.partition == partition);
            candidates.iter().find(holds).map(|candidate| candidate.sub_buffer)
        };
        let residents = candidates.iter().filter_map(|candidate| candidate.resident);
        self.evictable.set(residents.map(|resident| resident.partition).collect());
        let mut evicted = self.insert(incoming).into_iter();
        self.evictable.set(BTreeSet::new());
        self.added = Some(incoming);
        // A buffer with an empty sub-buffer that is not a candidate is not full, so the crate may evict nothing.
        let chosen = evicted.find_map(holding).or_else(|| candidates.first().map(|first| first.sub_buffer));
        for partition in evicted {
            self.insert(partition); // the crate may evict two partitions, but the buffer replaces only one
        }
        chosen
    }

    fn used(&mut self, by: Use) {
        // `get` marks a partition as used again. The use that added the partition does not count.
        let is_added = self.added.take() == Some(by.partition);
        if !is_added && self.cache.get(&by.partition).is_none() {
            self.insert(by.partition);
        }
    }

    fn emptied(&mut self, partition: PartitionId, _: SubBufferId) {
        self.cache.remove(&partition);
    }
}
