//! The partition buffer with its bytes, for several threads.
//!
//! The manager is behind a lock, and partitions are loaded outside of the lock. Each partition in the buffer is
//! either being loaded or completely loaded. If a thread needs a partition while another thread loads it, the thread
//! waits for this load. So no partition is loaded twice at the same time.
//!
//! A thread that finds no room waits until another thread has finished with a partition. A thread waits for room only
//! while it uses no partition. Therefore the threads cannot wait for each other for ever, if the buffer has room for
//! the longest partition and for the longest base at the same time. [`BufferLayout::mixed`] makes such a cut.

use super::buffer::AccessError;
use super::counters::Counters;
use super::error::PartitionError;
use super::ids::{ChainId, PartitionId};
use super::layout::BufferLayout;
use super::list::PartitionList;
use super::manager::{Evicted, PartitionManager};
use super::policy::Policy;
use super::trace::{EVENTS_MAX, TraceEvent};
use super::victims::VictimLimits;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Loads partitions for one thread.
pub trait SharedLoader<T> {
    /// The error of a failed load.
    type Error;

    /// The partition that is needed to load `partition`. A base must not have a base.
    fn base(&self, partition: PartitionId) -> Option<PartitionId> {
        let _ = partition;
        None
    }

    /// Loads the partition. `base` is the partition of [`Self::base`].
    fn load(&mut self, partition: PartitionId, base: Option<&T>) -> Result<T, Self::Error>;
}

/// What happens to a partition after its last announced use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterUse {
    /// The partition stays in the buffer until another partition needs the room.
    Keep,
    /// The memory of the partition is freed at once if [`Policy::is_over`] is true for the partition.
    Free,
}

/// A partition buffer for several threads. A partition is any value `T`; the partition list gives its length.
#[derive(Debug)]
pub struct SharedBuffer<P: Policy, T> {
    state: Mutex<State<P, T>>,
    /// Wakes the waiting threads when a load has ended, or when a thread has finished with a partition.
    changed: Condvar,
    after_use: AfterUse,
}

#[derive(Debug)]
struct State<P, T> {
    manager: PartitionManager<P>,
    /// The partitions in the buffer. A partition whose load failed is missing, even if threads still wait for it.
    contents: HashMap<PartitionId, Content<T>>,
    /// Number of threads that use a partition or load a partition.
    users: usize,
    /// The partition that was loaded last.
    last: Option<PartitionId>,
    /// The events so far, if they are recorded.
    events: Option<Vec<TraceEvent>>,
}

#[derive(Debug)]
enum Content<T> {
    Loading,
    Filled(Arc<T>),
}

/// A partition in use. Its sub-buffer is free for other partitions when this value is dropped.
#[derive(Debug)]
pub struct InUse<P: Policy, T> {
    // Fields are dropped in this order. So this thread holds no value whose sub-buffer is free.
    value: Arc<T>,
    _place: Place<P, T>,
    is_loaded: bool,
}

/// The place of a partition in use. The sub-buffer is free for other partitions when this value is dropped.
#[derive(Debug)]
struct Place<P: Policy, T> {
    buffer: Arc<SharedBuffer<P, T>>,
    chain: ChainId,
    partition: PartitionId,
}

impl<P: Policy, T> SharedBuffer<P, T> {
    /// An empty buffer. Sub-buffers take memory only while they hold a partition.
    pub fn new(
        list: PartitionList,
        layout: BufferLayout,
        policy: P,
        after_use: AfterUse,
    ) -> Result<Arc<Self>, PartitionError> {
        let manager = PartitionManager::new(list, layout, policy, VictimLimits::NONE)?;
        let state = State { manager, contents: HashMap::new(), users: 0, last: None, events: None };
        Ok(Arc::new(Self { state: Mutex::new(state), changed: Condvar::new(), after_use }))
    }

    /// Waits for room, and loads the partition if it is not in the buffer. A thread must not call this function
    /// while it has an [`InUse`] of the same buffer, because the thread could wait for its own partition.
    pub fn access<L: SharedLoader<T>>(
        self: &Arc<Self>,
        partition: PartitionId,
        loader: &mut L,
    ) -> Result<InUse<P, T>, AccessError<L::Error>> {
        let base = loader.base(partition);
        loop {
            let mut state = self.lock();
            let chain = state.manager.open_chain()?;
            let mut attempt =
                Attempt { buffer: self, chain, partition, is_begun: false, loading: None, is_over: false };
            let called = loop {
                match state.call(chain, partition, base) {
                    Err(PartitionError::NoRoom { .. }) if state.users > 0 => state = self.wait(state),
                    called => break called,
                }
            };
            if let Err(error) = called {
                drop(state);
                return Err(error.into());
            }
            state.users += 1;
            attempt.is_begun = true;
            // Another thread may be loading the partition.
            while let Some(Content::Loading) = state.contents.get(&partition) {
                state = self.wait(state);
            }
            let found = match state.contents.get(&partition) {
                Some(Content::Filled(value)) => Some(Arc::clone(value)),
                _ => None,
            };
            let is_loaded = found.is_none();
            let value = match found {
                Some(value) => value,
                // The load of the other thread failed. This thread calls the partition again, and loads it.
                None if called == Ok(Called::InBuffer) => {
                    drop(state);
                    continue;
                }
                None => {
                    state.begin(partition);
                    attempt.loading = Some(partition);
                    let of_base = match base {
                        None => {
                            drop(state);
                            None
                        }
                        Some(base) => Some(self.load_base(state, base, loader)?),
                    };
                    let loaded = loader.load(partition, of_base.as_deref());
                    drop(of_base);
                    let value = Arc::new(loaded.map_err(|source| AccessError::Load { partition, source })?);
                    state = self.lock();
                    state.contents.insert(partition, Content::Filled(Arc::clone(&value)));
                    if let Some(base) = base {
                        state.returns(chain);
                        state.free_if_over(base, self.after_use);
                    }
                    value
                }
            };
            attempt.is_over = true;
            state.manager.release(partition)?;
            drop(state);
            self.changed.notify_all();
            let place = Place { buffer: Arc::clone(self), chain, partition };
            return Ok(InUse { value, _place: place, is_loaded });
        }
    }

    /// The wanted partition that a thread should use next. If a wanted partition is in the buffer, the result is this
    /// partition. If not, the result is the first wanted partition from the last loaded partition on. Readers that
    /// choose in this way use the same loads, even if they begin at different times.
    pub fn next_of(&self, wanted: &BTreeSet<PartitionId>) -> Option<PartitionId> {
        let state = self.lock();
        let here = state.contents.keys().filter(|partition| wanted.contains(partition)).min().copied();
        let after = || state.last.and_then(|last| wanted.range(last..).next().copied());
        here.or_else(after).or_else(|| wanted.first().copied())
    }

    /// Whether the partition is in the buffer, or is being loaded.
    pub fn holds(&self, partition: PartitionId) -> bool {
        self.lock().contents.contains_key(&partition)
    }

    /// The counters since the buffer was made.
    pub fn counters(&self) -> Counters {
        self.lock().manager.counters()
    }

    /// Calls `change` with the replacement policy, for example to announce further uses.
    pub fn with_policy<R>(&self, change: impl FnOnce(&mut P) -> R) -> R {
        change(self.lock().manager.policy_mut())
    }

    /// Begins to record all calls and returns.
    pub fn record(&self) {
        self.lock().events.get_or_insert_default();
    }

    /// The list of partitions, and the recorded calls and returns.
    pub fn recorded(&self) -> (PartitionList, Vec<TraceEvent>) {
        let state = self.lock();
        (state.manager.list().clone(), state.events.clone().unwrap_or_default())
    }

    /// Loads the base, or waits for another thread that loads the base. The base was called before.
    fn load_base<'a, L: SharedLoader<T>>(
        &'a self,
        mut state: MutexGuard<'a, State<P, T>>,
        base: PartitionId,
        loader: &mut L,
    ) -> Result<Arc<T>, AccessError<L::Error>> {
        while let Some(Content::Loading) = state.contents.get(&base) {
            state = self.wait(state);
        }
        if let Some(Content::Filled(value)) = state.contents.get(&base) {
            return Ok(Arc::clone(value));
        }
        state.begin(base);
        drop(state);
        let mut loading = Loading { buffer: self, partition: base, is_over: false };
        let value = Arc::new(loader.load(base, None).map_err(|source| AccessError::Load { partition: base, source })?);
        self.lock().contents.insert(base, Content::Filled(Arc::clone(&value)));
        loading.is_over = true;
        self.changed.notify_all();
        Ok(value)
    }

    fn lock(&self) -> MutexGuard<'_, State<P, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<P, T>>) -> MutexGuard<'a, State<P, T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Policy, T> State<P, T> {
    /// Calls a partition. If the partition must be loaded and has a base, also calls the base. Afterwards the
    /// partition and its base have room in the buffer, and the partition is held. If the buffer has no room for both,
    /// the call fails and changes nothing.
    fn call(
        &mut self,
        chain: ChainId,
        partition: PartitionId,
        base: Option<PartitionId>,
    ) -> Result<Called, PartitionError> {
        if self.contents.contains_key(&partition) {
            let access = self.manager.call(chain, partition)?;
            self.note_call(chain, partition, access.evicted);
            self.manager.hold(partition)?;
            return Ok(Called::InBuffer);
        }
        if base == Some(partition) {
            return Err(PartitionError::BaseOfItself(partition));
        }
        // If the base is not in the buffer, the partition must leave room for the base.
        let held = base.filter(|base| self.manager.hold(*base).is_ok());
        let room = match base {
            Some(base) if held.is_none() => self.manager.list().get(base).map(|base| base.bytes.max(1)),
            _ => Ok(0),
        };
        let called = room.and_then(|room| self.manager.call_leaving(chain, partition, room));
        let called = called.and_then(|access| {
            self.note_call(chain, partition, access.evicted);
            self.manager.hold(partition)?;
            let Some(base) = base else { return Ok(Called::ToLoad) };
            let access = self.manager.call(chain, base)?;
            self.note_call(chain, base, access.evicted);
            Ok(Called::ToLoad)
        });
        if let Some(held) = held {
            self.manager.release(held)?;
        }
        called
    }

    fn note_call(&mut self, chain: ChainId, partition: PartitionId, evicted: Option<Evicted>) {
        if let Some(evicted) = evicted {
            self.contents.remove(&evicted.partition);
        }
        self.note(TraceEvent::Call { chain, partition });
    }

    /// The running partition of the chain returns. The caller is held, so it is still in its sub-buffer.
    fn returns(&mut self, chain: ChainId) {
        let returned = self.manager.return_to_caller(chain);
        debug_assert!(returned.is_ok(), "{returned:?}");
        self.note(TraceEvent::Return { chain });
    }

    fn note(&mut self, event: TraceEvent) {
        if let Some(events) = &mut self.events
            && events.len() < EVENTS_MAX
        {
            events.push(event);
        }
    }

    /// This thread begins to load a partition.
    fn begin(&mut self, partition: PartitionId) {
        self.contents.insert(partition, Content::Loading);
        self.last = Some(partition);
    }

    /// The load of a partition failed.
    fn failed(&mut self, partition: PartitionId) {
        if let Some(Content::Loading) = self.contents.get(&partition) {
            self.contents.remove(&partition);
        }
    }

    fn free_if_over(&mut self, partition: PartitionId, after_use: AfterUse) {
        let is_over = after_use == AfterUse::Free && self.manager.policy().is_over(partition);
        if is_over && self.manager.forget(partition).is_ok() {
            self.contents.remove(&partition);
        }
    }
}

/// What a call led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    /// The partition is in the buffer, or another thread loads it.
    InBuffer,
    /// The calling thread must load the partition. Its base is called too.
    ToLoad,
}

/// A call of a partition that has not led to an [`InUse`] yet. If the load fails or panics, the destructor undoes
/// the call. Then one of the threads that wait for the partition can load it.
struct Attempt<'a, P: Policy, T> {
    buffer: &'a SharedBuffer<P, T>,
    chain: ChainId,
    partition: PartitionId,
    /// Whether the partition was called.
    is_begun: bool,
    /// The partition, if this thread loads it.
    loading: Option<PartitionId>,
    is_over: bool,
}

impl<P: Policy, T> Drop for Attempt<'_, P, T> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.buffer.lock();
        if let Some(loading) = self.loading {
            state.failed(loading);
        }
        let depth = state.manager.chain(self.chain).map_or(0, |stack| stack.depth());
        let closed = state.manager.close_chain(self.chain);
        debug_assert!(closed.is_ok(), "{closed:?}");
        (0..depth).for_each(|_| state.note(TraceEvent::Return { chain: self.chain }));
        if self.is_begun {
            state.users -= 1;
            let released = state.manager.release(self.partition);
            debug_assert!(released.is_ok(), "{released:?}");
        }
        if !state.contents.contains_key(&self.partition) {
            // Other threads may wait for the partition. Then the partition keeps its place.
            let _ = state.manager.forget(self.partition);
        }
        drop(state);
        self.buffer.changed.notify_all();
    }
}

/// The load of a base by this thread. If the load fails or panics, the destructor lets another thread load the base.
struct Loading<'a, P: Policy, T> {
    buffer: &'a SharedBuffer<P, T>,
    partition: PartitionId,
    is_over: bool,
}

impl<P: Policy, T> Drop for Loading<'_, P, T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.buffer.lock().failed(self.partition);
            self.buffer.changed.notify_all();
        }
    }
}

impl<P: Policy, T> InUse<P, T> {
    /// Whether this access loaded the partition.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }
}

impl<P: Policy, T> std::ops::Deref for InUse<P, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<P: Policy, T> Drop for Place<P, T> {
    fn drop(&mut self) {
        let mut state = self.buffer.lock();
        state.returns(self.chain);
        let closed = state.manager.close_chain(self.chain);
        debug_assert!(closed.is_ok(), "{closed:?}");
        state.users -= 1;
        state.free_if_over(self.partition, self.buffer.after_use);
        drop(state);
        self.buffer.changed.notify_all();
    }
}
