//! What the partition manager counts (section 7.3: "the main metric ... will be the number of DMA transfer").

/// The counters of a partition manager.
///
/// `calls + returns == hits + moves + victims + loads`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Calls of a partition.
    pub calls: u64,
    /// Returns to a partition. Returns to resident code need no partition and are not counted.
    pub returns: u64,
    /// Uses that found the partition in the right sub-buffer.
    pub hits: u64,
    /// Returns that found the partition in another sub-buffer and moved it (section 6.2).
    pub moves: u64,
    /// Uses that found a copy in the victim cache (section 6.3).
    pub victims: u64,
    /// Uses that loaded the partition. The paper's DMA transfers.
    pub loads: u64,
    /// Partitions that lost their sub-buffer and became evicted or EWOR.
    pub evictions: u64,
    /// Evicted partitions that became EWOR, because a call will return to them.
    pub evicted_for_reuse: u64,
    /// Bytes of all loads.
    pub loaded_bytes: u64,
    /// Bytes copied from one sub-buffer to another.
    pub moved_bytes: u64,
    /// Bytes copied to the victim cache.
    pub kept_bytes: u64,
    /// Bytes copied back from the victim cache.
    pub victim_bytes: u64,
    /// Bytes of the victim cache that were given back under memory pressure.
    pub given_back_bytes: u64,
}

impl Counters {
    /// Uses of partitions: calls and returns. Each use enters the partition manager once.
    pub fn uses(&self) -> u64 {
        self.calls + self.returns
    }

    /// Uses for each load (Figure 10 of the paper); 0 if nothing was loaded.
    pub fn uses_per_load(&self) -> f64 {
        if self.loads == 0 { 0.0 } else { self.uses() as f64 / self.loads as f64 }
    }
}
