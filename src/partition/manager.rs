//! The partition manager kernel: which partition is in which sub-buffer, and what a call or a return must load.
//!
//! Source: sections 5.5 and 6. The manager does no I/O and holds no bytes. For each call and return, the manager
//! returns an [`Access`], and the owner of the bytes does what the access says. [`super::PartitionBuffer`] is an
//! owner for one thread. An owner for several threads keeps the manager behind a lock, and loads outside of the lock.
//!
//! Additions to the paper: several chains of calls use one buffer, and a caller can hold a partition. A partition
//! that is held, or that runs in another chain, is neither evicted nor moved.

use super::counters::Counters;
use super::error::PartitionError;
use super::ids::{ChainId, PartitionId, SubBufferId};
use super::layout::BufferLayout;
use super::list::{Partition, PartitionList};
use super::policy::{Candidate, Policy, Resident, Use};
use super::stack::{DEPTH_MAX, PartitionStack, Placed};
use super::state::{Event, State};
use super::victims::{VictimCache, VictimLimits};
use std::collections::BTreeMap;

/// Maximum number of open chains.
pub const CHAINS_MAX: usize = 1 << 12;

/// What a call or a return needs. The owner of the bytes does these steps in this order:
///
/// 1. Copy the evicted partition, if it became a victim.
/// 2. Drop the copies that are not in [`PartitionManager::victims`] any more.
/// 3. Fill the sub-buffer as `source` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The used partition, which is active now.
    pub partition: PartitionId,
    /// Where the partition is now.
    pub sub_buffer: SubBufferId,
    /// Where the bytes of the partition come from.
    pub source: Source,
    /// The partition that lost the sub-buffer.
    pub evicted: Option<Evicted>,
}

/// Where the bytes of a partition come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The partition already is in the sub-buffer.
    Resident,
    /// The bytes are in another sub-buffer, which is empty after the move (section 6.2).
    Moved {
        /// The other sub-buffer.
        from: SubBufferId,
    },
    /// The copy in the victim cache (section 6.3). The copy has left the victim cache.
    VictimCache,
    /// Main memory: the partition must be loaded.
    Load,
}

/// A partition that lost its sub-buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The evicted partition.
    pub partition: PartitionId,
    /// Whether the victim cache has a new entry for the partition, so that its bytes must be copied.
    pub is_victim: bool,
}

/// The state of one partition.
#[derive(Clone, Copy, Debug)]
struct Record {
    state: State,
    /// Where the partition is. `Some` if and only if the state is active or in-active.
    sub_buffer: Option<SubBufferId>,
    /// Number of frames of all partition stacks that name the partition. The paper's mask has one bit instead.
    frames: u32,
    /// Number of chains in which the partition runs.
    running: u32,
    /// Number of holds that are not released.
    holds: u32,
}

impl Record {
    const NEW: Self = Self { state: State::Evicted, sub_buffer: None, frames: 0, running: 0, holds: 0 };

    fn is_in_use(&self) -> bool {
        self.running > 0 || self.holds > 0
    }

    /// Applies an event, which must be possible in this state.
    fn apply(&mut self, event: Event) {
        let next = self.state.after(event);
        debug_assert!(next.is_some(), "{event:?} in state {:?}", self.state);
        self.state = next.unwrap_or(self.state);
    }

    fn leave_if_unused(&mut self) {
        if self.state == State::Active && !self.is_in_use() {
            self.apply(Event::Left);
        }
    }
}

/// The partition manager (section 5.5).
#[derive(Debug)]
pub struct PartitionManager<P> {
    list: PartitionList,
    layout: BufferLayout,
    policy: P,
    records: Vec<Record>,
    /// The partition in each sub-buffer.
    residents: Vec<Option<PartitionId>>,
    chains: BTreeMap<ChainId, PartitionStack>,
    victims: VictimCache,
    counters: Counters,
}

impl<P: Policy> PartitionManager<P> {
    /// A manager with an empty buffer. Every partition must fit into at least one sub-buffer.
    pub fn new(
        list: PartitionList,
        layout: BufferLayout,
        policy: P,
        victims: VictimLimits,
    ) -> Result<Self, PartitionError> {
        let largest = layout.largest_bytes();
        if let Some((partition, Partition { bytes, .. })) = list.iter().find(|(_, entry)| entry.bytes > largest) {
            return Err(PartitionError::TooLarge { partition, bytes, largest });
        }
        let (records, residents) = (vec![Record::NEW; list.len()], vec![None; layout.sub_buffers()]);
        let (victims, counters) = (VictimCache::new(victims), Counters::default());
        Ok(Self { list, layout, policy, records, residents, chains: BTreeMap::new(), victims, counters })
    }

    /// Opens a chain of calls, which begins in resident code. At most [`CHAINS_MAX`] chains are open.
    pub fn open_chain(&mut self) -> Result<ChainId, PartitionError> {
        if self.chains.len() >= CHAINS_MAX {
            let found = self.chains.len() as u64 + 1;
            return Err(PartitionError::TooMany { what: "chains", found, most: CHAINS_MAX as u64 });
        }
        let free = (0..).map(ChainId).find(|chain| !self.chains.contains_key(chain));
        let chain = free.ok_or(PartitionError::UnknownChain(ChainId(u32::MAX)))?;
        self.chains.insert(chain, PartitionStack::default());
        Ok(chain)
    }

    /// The running partition of the chain calls `partition`, which becomes active.
    pub fn call(&mut self, chain: ChainId, partition: PartitionId) -> Result<Access, PartitionError> {
        self.call_leaving(chain, partition, 0)
    }

    /// Calls a partition like [`Self::call`], but only if another sub-buffer of `room` bytes can be taken after this
    /// call. Then the partition can be held while its base is called. If `room` is 0, no other sub-buffer is needed.
    pub fn call_leaving(
        &mut self,
        chain: ChainId,
        partition: PartitionId,
        room: u64,
    ) -> Result<Access, PartitionError> {
        let entry = self.list.get(partition)?;
        let stack = self.chain(chain)?;
        if stack.depth() >= DEPTH_MAX {
            let (found, most) = (stack.depth() as u64 + 1, DEPTH_MAX as u64);
            return Err(PartitionError::TooMany { what: "calls that have not returned", found, most });
        }
        let caller = stack.current();
        let sub_buffer = match self.records[partition.index()].sub_buffer {
            Some(own) if self.has_room(room, own, caller) => own,
            Some(_) => return Err(PartitionError::NoRoom { partition }),
            None => self.choose(partition, entry.bytes, caller, room)?,
        };
        self.counters.calls += 1;
        if let Some(caller) = caller {
            let record = &mut self.records[caller.partition.index()];
            record.frames += 1;
            record.running -= 1;
        }
        if let Some(stack) = self.chains.get_mut(&chain) {
            stack.push(Placed { partition, sub_buffer });
        }
        Ok(self.bring(partition, entry, sub_buffer, true, caller))
    }

    /// The running partition of the chain returns. Its caller resumes in the sub-buffer from which the caller made
    /// its call, and becomes active. The result is `None` if the caller is resident code.
    pub fn return_to_caller(&mut self, chain: ChainId) -> Result<Option<Access>, PartitionError> {
        let stack = self.chain(chain)?;
        let callee = stack.current();
        let caller = stack.top().ok_or(PartitionError::NothingToReturn(chain))?;
        let entry = match caller {
            Some(caller) => self.check_return(caller, callee)?,
            None => Partition { place: 0, bytes: 0 }, // resident code is not loaded
        };
        if let Some(stack) = self.chains.get_mut(&chain) {
            stack.pop();
        }
        if let Some(callee) = callee {
            self.records[callee.partition.index()].running -= 1;
        }
        let Some(Placed { partition, sub_buffer }) = caller else {
            self.leave(callee);
            return Ok(None);
        };
        self.counters.returns += 1;
        self.records[partition.index()].frames -= 1;
        Ok(Some(self.bring(partition, entry, sub_buffer, false, callee)))
    }

    /// Gives up all calls of a chain, for example after a failed load. The chain is in resident code again.
    ///
    /// The paper has no such event. If no call returns any more to an EWOR partition, its state becomes evicted, as
    /// if the call had not happened.
    pub fn abandon(&mut self, chain: ChainId) -> Result<(), PartitionError> {
        self.chain(chain)?;
        let Some(stack) = self.chains.insert(chain, PartitionStack::default()) else { return Ok(()) };
        if let Some(current) = stack.current() {
            self.records[current.partition.index()].running -= 1;
            self.leave(Some(current));
        }
        for Placed { partition, .. } in stack.return_path() {
            let record = &mut self.records[partition.index()];
            record.frames -= 1;
            if record.frames == 0 && record.state == State::EvictedForReuse {
                record.state = State::Evicted;
                self.victims.take(partition);
            }
        }
        Ok(())
    }

    /// Gives up all calls of a chain, and closes the chain.
    pub fn close_chain(&mut self, chain: ChainId) -> Result<(), PartitionError> {
        self.abandon(chain)?;
        self.chains.remove(&chain);
        Ok(())
    }

    /// Keeps a partition active in its sub-buffer until it is released. A partition can be held several times.
    pub fn hold(&mut self, partition: PartitionId) -> Result<SubBufferId, PartitionError> {
        self.list.get(partition)?;
        let record = &mut self.records[partition.index()];
        let sub_buffer = record.sub_buffer.ok_or(PartitionError::NotResident(partition))?;
        let too_many = PartitionError::TooMany { what: "holds", found: 1 << 32, most: u32::MAX.into() };
        record.holds = record.holds.checked_add(1).ok_or(too_many)?;
        record.apply(Event::Used);
        Ok(sub_buffer)
    }

    /// Ends one hold of a partition.
    pub fn release(&mut self, partition: PartitionId) -> Result<(), PartitionError> {
        self.list.get(partition)?;
        let record = &mut self.records[partition.index()];
        record.holds = record.holds.checked_sub(1).ok_or(PartitionError::NotHeld(partition))?;
        record.leave_if_unused();
        Ok(())
    }

    /// Removes a partition whose bytes are not valid, because its load failed. No chain may run the partition, and no
    /// caller may hold it.
    pub fn forget(&mut self, partition: PartitionId) -> Result<(), PartitionError> {
        self.list.get(partition)?;
        let record = &mut self.records[partition.index()];
        if record.is_in_use() {
            return Err(PartitionError::InUse(partition));
        }
        if let Some(sub_buffer) = record.sub_buffer.take() {
            record.apply(Event::Replaced { on_return_path: record.frames > 0 });
            self.residents[sub_buffer.index()] = None;
            self.policy.emptied(partition, sub_buffer);
        }
        Ok(())
    }

    /// Under memory pressure: drops the oldest victims until `wanted_bytes` are free (section 6.3: "the victim cache
    /// can be brought down to free up memory"). Returns the number of freed bytes. The owner of the bytes must drop
    /// the copies that are not in [`Self::victims`] any more.
    pub fn give_back_victims(&mut self, wanted_bytes: u64) -> u64 {
        let freed = self.victims.give_back(wanted_bytes);
        self.counters.given_back_bytes += freed;
        freed
    }

    /// The state of a partition.
    pub fn state(&self, partition: PartitionId) -> Result<State, PartitionError> {
        self.list.get(partition).map(|_| self.records[partition.index()].state)
    }

    /// The sub-buffer of a partition; `None` if the partition is in no sub-buffer.
    pub fn sub_buffer_of(&self, partition: PartitionId) -> Option<SubBufferId> {
        self.records.get(partition.index()).and_then(|record| record.sub_buffer)
    }

    /// The partition in a sub-buffer.
    pub fn resident(&self, sub_buffer: SubBufferId) -> Option<PartitionId> {
        self.residents.get(sub_buffer.index()).copied().flatten()
    }

    /// The partition stack of a chain.
    pub fn chain(&self, chain: ChainId) -> Result<&PartitionStack, PartitionError> {
        self.chains.get(&chain).ok_or(PartitionError::UnknownChain(chain))
    }

    /// The partition list.
    pub fn list(&self) -> &PartitionList {
        &self.list
    }

    /// The cut of the partition buffer.
    pub fn layout(&self) -> &BufferLayout {
        &self.layout
    }

    /// The victim cache.
    pub fn victims(&self) -> &VictimCache {
        &self.victims
    }

    /// The counters since the manager was made.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The replacement policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The replacement policy, for example to announce further uses to [`super::LookAhead`].
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Whether a partition is held, or runs in a chain. `own` is the running partition of the asking chain. This
    /// chain leaves `own`, so it does not count as a chain that runs `own`.
    fn is_blocked(&self, partition: PartitionId, own: Option<Placed>) -> bool {
        let record = &self.records[partition.index()];
        let is_own = own.is_some_and(|own| own.partition == partition);
        record.holds > 0 || record.running > u32::from(is_own)
    }

    /// Whether a sub-buffer of at least `room` bytes, other than the sub-buffer `own`, can be taken.
    fn has_room(&self, room: u64, own: SubBufferId, caller: Option<Placed>) -> bool {
        let is_free = |resident: &Option<PartitionId>| !resident.is_some_and(|it| self.is_blocked(it, caller));
        let mut others = self.layout.iter().zip(&self.residents).filter(|((sub_buffer, _), _)| *sub_buffer != own);
        room == 0 || others.any(|((_, length), resident)| length >= room && is_free(resident))
    }

    /// Asks the policy for the sub-buffer of a partition that is in no sub-buffer. If `room` is not 0, another
    /// sub-buffer of `room` bytes stays free.
    fn choose(
        &mut self,
        partition: PartitionId,
        bytes: u64,
        caller: Option<Placed>,
        room: u64,
    ) -> Result<SubBufferId, PartitionError> {
        let mut candidates = Vec::with_capacity(self.residents.len());
        for ((sub_buffer, length), resident) in self.layout.iter().zip(&self.residents) {
            if length < bytes || resident.is_some_and(|resident| self.is_blocked(resident, caller)) {
                continue;
            }
            let resident = match *resident {
                None => None,
                Some(partition) => {
                    let record = &self.records[partition.index()];
                    let is_caller = caller.is_some_and(|caller| caller.partition == partition);
                    let on_return_path = record.frames > 0 || is_caller;
                    Some(Resident { partition, bytes: self.list.get(partition)?.bytes, on_return_path })
                }
            };
            candidates.push(Candidate { sub_buffer, bytes: length, resident });
        }
        candidates.retain(|candidate| self.has_room(room, candidate.sub_buffer, caller));
        if candidates.is_empty() {
            return Err(PartitionError::NoRoom { partition });
        }
        let choice = self.policy.choose(partition, &candidates);
        let is_candidate = |chosen: &SubBufferId| candidates.iter().any(|candidate| candidate.sub_buffer == *chosen);
        choice.filter(is_candidate).ok_or(PartitionError::BadChoice(choice))
    }

    /// The list entry of the caller, if the caller can resume in its sub-buffer now.
    fn check_return(&self, caller: Placed, callee: Option<Placed>) -> Result<Partition, PartitionError> {
        let Placed { partition, sub_buffer } = caller;
        let entry = self.list.get(partition)?;
        let at = self.records[partition.index()].sub_buffer;
        if at == Some(sub_buffer) {
            return Ok(entry);
        }
        let must_move = at.is_some() && self.is_blocked(partition, callee);
        let resident = self.residents[sub_buffer.index()];
        if must_move || resident.is_some_and(|resident| self.is_blocked(resident, callee)) {
            return Err(PartitionError::PlaceInUse { partition, sub_buffer });
        }
        Ok(entry)
    }

    /// Puts a partition into a sub-buffer. If the sub-buffer holds another partition, the other partition is evicted.
    /// `before` is the partition that ran in the chain until now.
    fn bring(
        &mut self,
        partition: PartitionId,
        entry: Partition,
        sub_buffer: SubBufferId,
        is_call: bool,
        before: Option<Placed>,
    ) -> Access {
        let at = self.records[partition.index()].sub_buffer;
        // The copy leaves the victim cache first, so that a cache of one entry has space for the evicted partition.
        let is_victim = at.is_none() && self.victims.take(partition);
        let evicted = if at == Some(sub_buffer) { None } else { self.evict(sub_buffer) };
        let source = match at {
            Some(from) if from == sub_buffer => {
                self.counters.hits += 1;
                Source::Resident
            }
            Some(from) => {
                self.counters.moves += 1;
                self.counters.moved_bytes += entry.bytes;
                self.residents[from.index()] = None;
                self.policy.emptied(partition, from);
                Source::Moved { from }
            }
            None if is_victim => {
                self.counters.victims += 1;
                self.counters.victim_bytes += entry.bytes;
                Source::VictimCache
            }
            None => {
                self.counters.loads += 1;
                self.counters.loaded_bytes += entry.bytes;
                Source::Load
            }
        };
        self.residents[sub_buffer.index()] = Some(partition);
        let record = &mut self.records[partition.index()];
        record.sub_buffer = Some(sub_buffer);
        record.running += 1;
        record.apply(Event::Used);
        self.leave(before);
        self.policy.used(Use { partition, sub_buffer, is_call });
        Access { partition, sub_buffer, source, evicted }
    }

    /// Takes a sub-buffer from its partition.
    fn evict(&mut self, sub_buffer: SubBufferId) -> Option<Evicted> {
        let partition = self.residents[sub_buffer.index()].take()?;
        let record = &mut self.records[partition.index()];
        record.sub_buffer = None;
        record.apply(Event::Replaced { on_return_path: record.frames > 0 });
        let for_reuse = record.state == State::EvictedForReuse;
        self.counters.evictions += 1;
        self.counters.evicted_for_reuse += u64::from(for_reuse);
        let bytes = self.list.get(partition).map_or(0, |entry| entry.bytes);
        let is_victim = for_reuse && self.victims.put(partition, bytes);
        self.counters.kept_bytes += if is_victim { bytes } else { 0 };
        self.policy.emptied(partition, sub_buffer);
        Some(Evicted { partition, is_victim })
    }

    /// Records that one chain no longer runs the partition.
    fn leave(&mut self, left: Option<Placed>) {
        if let Some(left) = left {
            self.records[left.partition.index()].leave_if_unused();
        }
    }
}
