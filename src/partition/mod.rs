//! The partition manager: keeps decoded segments, or other partitions of data, in a buffer of bounded size.
//!
//! Source: J. B. Manzano, G. Gan, J. Ributzka, S. Shrestha and G. R. Gao, *Code Partition and Overlays: A
//! reintroduction to High Performance Computing*, CAPSL Technical Memo 108, University of Delaware, 2011. The paper
//! loads the code of functions into the small local memory of a processor. Here, a partition is any run of bytes that
//! is loaded as a whole, such as a segment of a container. This module does no I/O: the caller provides a [`Loader`],
//! which loads the partitions.
//!
//! | section | part | here |
//! |---|---|---|
//! | 5.2 | partition list | [`PartitionList`] |
//! | 5.3 | partition stack | [`PartitionStack`] |
//! | 5.4, 6 | partition buffer, sub-buffers | [`BufferLayout`], [`PartitionBuffer`] |
//! | 5.5 | partition manager kernel | [`PartitionManager`] |
//! | 6, Table 2 | the four states | [`State`] |
//! | 6.1, 6.2 | replacement policies | [`Policy`], [`Modulus`], [`Lru`] |
//! | 6.3 | victim cache | [`VictimCache`], [`VictimLimits`] |
//! | | the bytes, for several threads | [`SharedBuffer`] |
//! | 7 | number of transfers | [`Counters`], [`replay`] |
//!
//! A partition that needs another partition, such as a segment that is predicted from a base, *calls* the other
//! partition, and the other partition *returns* to its caller. The first call comes from *resident code*, which is in
//! no partition. The partition stack records the sub-buffer of each caller, and the caller resumes in exactly this
//! sub-buffer. A partition to which a call will return may be evicted (state EWOR). When the call returns, the
//! evicted partition is loaded into the same sub-buffer again, or copied from the victim cache.
//!
//! `docs/partition.md` says which policy needs the fewest loads.
//!
//! ```
//! use mcrengine::partition::*;
//! # fn main() -> Result<(), PartitionError> {
//! let list = PartitionList::of_lengths([10, 10, 10])?;
//! let layout = BufferLayout::equal(20, 2)?; // two sub-buffers of 10 bytes
//! let mut manager = PartitionManager::new(list, layout, Modulus::new(), VictimLimits::NONE)?;
//! let chain = manager.open_chain()?;
//! for partition in [0, 1, 2] {
//!     let access = manager.call(chain, PartitionId(partition))?; // 0 calls 1, and 1 calls 2
//!     assert_eq!(access.source, Source::Load);
//! }
//! assert_eq!(manager.state(PartitionId(0)), Ok(State::EvictedForReuse)); // 2 took its sub-buffer
//! assert_eq!(manager.state(PartitionId(1)), Ok(State::Inactive));
//! manager.return_to_caller(chain)?; // 1 is still in its sub-buffer
//! manager.return_to_caller(chain)?; // 0 is loaded again
//! assert_eq!((manager.counters().hits, manager.counters().loads), (1, 4));
//! # Ok(())
//! # }
//! ```

mod buffer;
mod counters;
mod error;
mod ids;
mod layout;
mod list;
mod manager;
mod policy;
mod replay;
mod shared;
mod stack;
mod state;
#[cfg(test)]
mod tests;
mod trace;
mod victims;

pub use buffer::{AccessError, BASES_MAX, Loader, PartitionBuffer};
pub use counters::Counters;
pub use error::PartitionError;
pub use ids::{ChainId, PartitionId, SubBufferId};
pub use layout::{BUFFER_BYTES_MAX, BufferLayout, SUB_BUFFERS_MAX};
pub use list::{PARTITIONS_MAX, Partition, PartitionList};
pub use manager::{Access, CHAINS_MAX, Evicted, PartitionManager, Source};
pub use policy::{Candidate, ClockPro, LIFETIME_MAX, LookAhead, Lru, Modulus, Policy, Resident, Use};
pub use replay::replay;
pub use shared::{AfterUse, InUse, SharedBuffer, SharedLoader};
pub use stack::{DEPTH_MAX, PartitionStack, Placed};
pub use state::{Event, State};
pub use trace::{EVENTS_MAX, Recording, Trace, TraceError, TraceEvent, TraceWriter};
pub use victims::{VICTIMS_MAX, VictimCache, VictimLimits};
