//! The partition buffer with its bytes, for one thread.
//!
//! Source: sections 5.4 and 6. In the paper, the code in a running partition calls the next partition. Here, the
//! caller of [`PartitionBuffer::call`] reads the bytes. If a [`Loader`] needs another partition to load a partition,
//! the other partition is its *base*: the partition calls its base, is loaded, and the base returns.

use super::counters::Counters;
use super::error::PartitionError;
use super::ids::{ChainId, PartitionId, SubBufferId};
use super::layout::BufferLayout;
use super::list::{Partition, PartitionList};
use super::manager::{Access, PartitionManager, Source};
use super::policy::Policy;
use super::victims::VictimLimits;
use std::collections::HashMap;

/// Maximum length of a chain in which each partition needs the next partition as its base. To load such a chain, the
/// buffer needs a sub-buffer for each partition of the chain.
pub const BASES_MAX: usize = 16;

/// Loads partitions, for example by reading and decoding segments.
pub trait Loader {
    /// The error of a failed load.
    type Error;

    /// The partition whose bytes are needed to load `partition`.
    fn base(&self, partition: PartitionId) -> Option<PartitionId> {
        let _ = partition;
        None
    }

    /// Fills `into`, which has `entry.bytes` bytes, with the partition. `base` has the bytes of [`Self::base`].
    /// The old content of `into` is undefined.
    fn load(
        &mut self,
        partition: PartitionId,
        entry: Partition,
        base: Option<&[u8]>,
        into: &mut [u8],
    ) -> Result<(), Self::Error>;
}

/// Why a partition cannot be accessed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError<E> {
    /// The manager refused the request.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The loader failed. All calls that had not returned are given up.
    #[error("partition {partition} cannot be loaded")]
    Load {
        /// The partition that was being loaded.
        partition: PartitionId,
        /// The cause.
        source: E,
    },
}

/// A partition buffer of a fixed number of bytes (section 5.4), with a manager and a loader.
#[derive(Debug)]
pub struct PartitionBuffer<P, L> {
    manager: PartitionManager<P>,
    loader: L,
    chain: ChainId,
    sub_buffers: Vec<Box<[u8]>>,
    /// The partitions whose loads wait for the load of a base, in the order of the calls.
    waiting: Vec<PartitionId>,
    /// The bytes of the victim cache.
    victims: HashMap<PartitionId, Box<[u8]>>,
}

impl<P: Policy, L: Loader> PartitionBuffer<P, L> {
    /// Allocates all sub-buffers of `layout`. The victim cache is allocated when it is needed.
    pub fn new(
        list: PartitionList,
        layout: BufferLayout,
        policy: P,
        victims: VictimLimits,
        loader: L,
    ) -> Result<Self, PartitionError> {
        // A process cannot address more bytes than a `usize` counts.
        let allocate = |(_, bytes): (SubBufferId, u64)| match usize::try_from(bytes) {
            Ok(bytes) => Ok(vec![0; bytes].into()),
            Err(_) => Err(PartitionError::TooMany { what: "bytes", found: bytes, most: usize::MAX as u64 }),
        };
        let sub_buffers = layout.iter().map(allocate).collect::<Result<_, _>>()?;
        let mut manager = PartitionManager::new(list, layout, policy, victims)?;
        let chain = manager.open_chain()?;
        Ok(Self { manager, loader, chain, sub_buffers, waiting: Vec::new(), victims: HashMap::new() })
    }

    /// Calls a partition, and returns its bytes. The partition stays active until the next call or return.
    pub fn call(&mut self, partition: PartitionId) -> Result<&[u8], AccessError<L::Error>> {
        let access = self.manager.call(self.chain, partition)?;
        self.apply(access)?;
        Ok(self.bytes_at(access.sub_buffer, partition))
    }

    /// Returns to the caller, and returns the caller's bytes; `None` if the caller is resident code.
    pub fn return_to_caller(&mut self) -> Result<Option<&[u8]>, AccessError<L::Error>> {
        let Some(access) = self.manager.return_to_caller(self.chain)? else { return Ok(None) };
        self.apply(access)?;
        Ok(Some(self.bytes_at(access.sub_buffer, access.partition)))
    }

    /// Calls a partition, gives its bytes to `read`, and returns.
    pub fn read<R>(
        &mut self,
        partition: PartitionId,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, AccessError<L::Error>> {
        let result = read(self.call(partition)?);
        self.return_to_caller()?;
        Ok(result)
    }

    /// Gives up all calls that have not returned.
    pub fn abandon(&mut self) -> Result<(), PartitionError> {
        self.manager.abandon(self.chain)?;
        self.drop_copies();
        Ok(())
    }

    /// Under memory pressure: frees copies of the victim cache. See [`PartitionManager::give_back_victims`].
    pub fn give_back_victims(&mut self, wanted_bytes: u64) -> u64 {
        let freed = self.manager.give_back_victims(wanted_bytes);
        self.drop_copies();
        freed
    }

    /// The manager.
    pub fn manager(&self) -> &PartitionManager<P> {
        &self.manager
    }

    /// The counters since the buffer was made.
    pub fn counters(&self) -> Counters {
        self.manager.counters()
    }

    /// The replacement policy, for example to announce further uses.
    pub fn policy_mut(&mut self) -> &mut P {
        self.manager.policy_mut()
    }

    /// The loader.
    pub fn loader(&self) -> &L {
        &self.loader
    }

    /// Moves, copies and loads bytes as the access says.
    fn apply(&mut self, access: Access) -> Result<(), AccessError<L::Error>> {
        let Access { partition, sub_buffer, source, evicted } = access;
        if let Some(evicted) = evicted.filter(|evicted| evicted.is_victim) {
            let copy = self.bytes_at(sub_buffer, evicted.partition).into();
            self.victims.insert(evicted.partition, copy);
        }
        let copy = if source == Source::VictimCache { self.victims.remove(&partition) } else { None };
        self.drop_copies();
        match (source, copy) {
            (Source::Resident, _) => Ok(()),
            (Source::Moved { from }, _) => {
                let length = self.length(partition);
                let pair = [from.index(), sub_buffer.index()];
                if let Ok([from, to]) = self.sub_buffers.get_disjoint_mut(pair) {
                    to[..length].copy_from_slice(&from[..length]);
                }
                Ok(())
            }
            (_, Some(copy)) => {
                self.sub_buffers[sub_buffer.index()][..copy.len()].copy_from_slice(&copy);
                Ok(())
            }
            (Source::Load | Source::VictimCache, None) => {
                let loaded = self.load(access);
                if loaded.is_err() {
                    self.manager.abandon(self.chain)?;
                    self.manager.forget(partition)?;
                    self.drop_copies();
                }
                loaded
            }
        }
    }

    /// Loads a partition. If the partition has a base, calls the base first.
    fn load(&mut self, access: Access) -> Result<(), AccessError<L::Error>> {
        let Access { partition, sub_buffer, .. } = access;
        let entry = self.manager.list().get(partition)?;
        let Some(base) = self.loader.base(partition) else { return self.fill(access, entry, None) };
        if base == partition || self.waiting.contains(&base) {
            return Err(PartitionError::BaseOfItself(base).into());
        }
        if self.waiting.len() + 2 > BASES_MAX {
            let (found, most) = (self.waiting.len() as u64 + 2, BASES_MAX as u64);
            return Err(PartitionError::TooMany { what: "bases that need bases", found, most }.into());
        }
        // The hold keeps the sub-buffer of the partition while the base is loaded.
        self.manager.hold(partition)?;
        self.waiting.push(partition);
        let mut load_after_base = || {
            let called = self.manager.call(self.chain, base)?;
            self.apply(called)?;
            self.fill(access, entry, Some(called))?;
            self.manager.return_to_caller(self.chain)?;
            Ok(())
        };
        let result = load_after_base();
        self.waiting.pop();
        self.manager.release(partition)?;
        debug_assert!(result.is_err() || self.manager.sub_buffer_of(partition) == Some(sub_buffer));
        result
    }

    /// Lets the loader fill a sub-buffer.
    fn fill(&mut self, access: Access, entry: Partition, base: Option<Access>) -> Result<(), AccessError<L::Error>> {
        let Access { partition, sub_buffer, .. } = access;
        let length = self.length(partition);
        let mut into = std::mem::take(&mut self.sub_buffers[sub_buffer.index()]);
        let base = base.map(|base| (base.sub_buffer.index(), self.length(base.partition)));
        let base = base.map(|(at, length)| &self.sub_buffers[at][..length]);
        let loaded = self.loader.load(partition, entry, base, &mut into[..length]);
        self.sub_buffers[sub_buffer.index()] = into;
        loaded.map_err(|source| AccessError::Load { partition, source })
    }

    /// Length of a partition. The partition fits into a sub-buffer, so its length is a `usize`.
    fn length(&self, partition: PartitionId) -> usize {
        self.manager.list().get(partition).map_or(0, |entry| entry.bytes as usize)
    }

    fn bytes_at(&self, sub_buffer: SubBufferId, partition: PartitionId) -> &[u8] {
        &self.sub_buffers[sub_buffer.index()][..self.length(partition)]
    }

    fn drop_copies(&mut self) {
        self.victims.retain(|partition, _| self.manager.victims().contains(*partition));
    }
}
