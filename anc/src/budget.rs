//! The memory budget. A thread gets a lease before it makes a buffer, and the lease exists as long as the buffer.
//!
//! Segments and announcements share the budget. Announcements get at most half of the budget. Therefore a flush
//! always gets memory for its segments and can finish, even while announcements wait.

use mcrengine::container::SegmentTask;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Limits the bytes in memory for announcements and for segments between fetch and store, over all flushes and
/// restarts of this process.
pub struct Budget {
    total_bytes: u64,
    state: Mutex<State>,
    freed: Condvar,
}

struct State {
    free_bytes: u64,
    /// Bytes that announcements have leased.
    announced_bytes: u64,
    /// Announcements that wait, in the order of arrival. The first queue has the short announcements, which get
    /// memory first. The second queue has the long announcements.
    waiting: [VecDeque<Waiter>; 2],
}

/// An announcement that waits for memory. If the receiver of the lease is dropped, the announcement has stopped
/// waiting.
struct Waiter {
    bytes: u64,
    lease: oneshot::Sender<Lease>,
}

/// Some bytes of the budget. Dropping the lease returns the bytes.
pub struct Lease {
    budget: Arc<Budget>,
    bytes: u64,
    is_announcement: bool,
}

/// How a memory budget is divided between decoded segments and the stored bytes of segments that are being decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Bytes for decoded segments.
    pub decoded_bytes: u64,
    /// Bytes for stored segments.
    pub stored_bytes: u64,
}

impl Shares {
    /// Divides `bytes` in the proportion of the raw and the stored bytes of the tasks.
    pub fn of(bytes: u64, tasks: &[SegmentTask]) -> Self {
        let raw: u64 = tasks.iter().map(|task| task.raw_bytes.0).sum();
        let stored: u64 = tasks.iter().map(|task| task.stored_bytes.0).sum();
        let of_stored = u128::from(bytes) * u128::from(stored) / u128::from((raw + stored).max(1));
        let stored_bytes = u64::try_from(of_stored).unwrap_or(bytes);
        Self { decoded_bytes: bytes - stored_bytes, stored_bytes }
    }
}

/// Maximum length in bytes of a short announcement. One eighth of the announcements' share is reserved for short
/// announcements. Ranks that announce their files as whole files therefore always get memory.
const SHORT_BYTES: u64 = 64 << 10;

impl Budget {
    /// Makes a budget of `total_bytes` bytes.
    pub fn new(total_bytes: u64) -> Arc<Self> {
        let state = State { free_bytes: total_bytes, announced_bytes: 0, waiting: Default::default() };
        Arc::new(Self { total_bytes, state: Mutex::new(state), freed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum number of bytes that all announcements may have leased together, including an announcement of `bytes`
    /// bytes.
    fn announced_max(&self, bytes: u64) -> u64 {
        let half = self.total_bytes / 2;
        if bytes <= SHORT_BYTES { half } else { half - half / 8 }
    }

    /// Waits until `bytes` bytes are free. If `bytes` exceeds the part of the budget that announcements have not
    /// leased, the lease gets only this part, so that no thread waits for ever. Threads take leases in the order of
    /// their work, and a thread that holds a lease can finish without a second lease.
    pub fn lease(self: &Arc<Self>, bytes: u64) -> Lease {
        let takes = |state: &State| bytes.min(self.total_bytes - state.announced_bytes);
        let is_short = |state: &mut State| state.free_bytes < takes(state) + self.promised(state);
        let state = self.freed.wait_while(self.state(), is_short);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let bytes = takes(&state);
        state.free_bytes -= bytes;
        Lease { budget: Arc::clone(self), bytes, is_announcement: false }
    }

    /// Leases `bytes` bytes without waiting, if at least `reserve` bytes stay free. The lease may be held for a long
    /// time. A budget with announcements must not have such leases, because a lease could take bytes that a segment
    /// waits for.
    pub fn lease_spare(self: &Arc<Self>, bytes: u64, reserve: u64) -> Option<Lease> {
        let mut state = self.state();
        let promised = self.promised(&mut state);
        let left = state.free_bytes.checked_sub(bytes).filter(|left| *left >= reserve + promised)?;
        state.free_bytes = left;
        Some(Lease { budget: Arc::clone(self), bytes, is_announcement: false })
    }

    /// Waits for a lease in the queue of announcements. Returns `None` if `bytes` bytes never fit. The caller may
    /// drop the future at any time.
    pub async fn announce(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        if bytes > self.announced_max(bytes) {
            return None;
        }
        let (lease, turn) = oneshot::channel();
        self.state().waiting[usize::from(bytes > SHORT_BYTES)].push_back(Waiter { bytes, lease });
        self.grant();
        turn.await.ok()
    }

    /// Leases bytes for an announcement at once. Returns `None` if the announcement must wait.
    pub fn announce_at_once(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        let mut state = self.state();
        self.promised(&mut state);
        let queue = &state.waiting[usize::from(bytes > SHORT_BYTES)];
        let is_free = queue.is_empty() && self.fits(&state, bytes) && bytes <= state.free_bytes;
        is_free.then(|| self.take(&mut state, bytes))
    }

    /// Whether an announcement of `bytes` bytes fits in the remaining share of announcements. The announcement may
    /// still have to wait for free bytes.
    fn fits(&self, state: &State, bytes: u64) -> bool {
        state.announced_bytes + bytes <= self.announced_max(bytes)
    }

    fn take(self: &Arc<Self>, state: &mut State, bytes: u64) -> Lease {
        state.free_bytes -= bytes;
        state.announced_bytes += bytes;
        Lease { budget: Arc::clone(self), bytes, is_announcement: true }
    }

    /// Bytes that are promised to announcements, so that segments must not take them. Counts the first waiting
    /// announcement of each queue, if this announcement and all leased announcements together are within the limit of
    /// announcements. Removes announcements that have stopped waiting.
    fn promised(&self, state: &mut State) -> u64 {
        let mut promised = 0;
        for nth in 0..state.waiting.len() {
            while state.waiting[nth].front().is_some_and(|waiter| waiter.lease.is_closed()) {
                state.waiting[nth].pop_front();
            }
            let bytes = state.waiting[nth].front().map_or(0, |waiter| waiter.bytes);
            promised += if self.fits(state, bytes) { bytes } else { 0 };
        }
        promised
    }

    /// Gives leases to waiting announcements while there is free memory.
    fn grant(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            self.promised(&mut state);
            let has_room = |queue: &VecDeque<Waiter>| {
                queue.front().is_some_and(|w| w.bytes <= state.free_bytes && self.fits(&state, w.bytes))
            };
            let Some(nth) = state.waiting.iter().position(has_room) else { break };
            let Some(Waiter { bytes, lease }) = state.waiting[nth].pop_front() else { break };
            let leased = self.take(&mut state, bytes);
            // The lock is released first. If the announcement has stopped waiting, the lease is dropped here and
            // takes the lock.
            drop(state);
            drop(lease.send(leased));
        }
    }

    /// Total bytes of the budget.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes that are leased now.
    pub fn leased_bytes(&self) -> u64 {
        self.total_bytes - self.state().free_bytes
    }

    /// Number of announcements that wait for memory.
    pub fn waiting(&self) -> usize {
        let is_waiting = |waiter: &&Waiter| !waiter.lease.is_closed();
        self.state().waiting.iter().flatten().filter(is_waiting).count()
    }

    /// Bytes that are leased to announcements now.
    pub fn announced_bytes(&self) -> u64 {
        self.state().announced_bytes
    }

    /// Maximum number of bytes that a long announcement can lease.
    pub fn announcement_max(&self) -> u64 {
        self.announced_max(u64::MAX)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.free_bytes += self.bytes;
        if self.is_announcement {
            state.announced_bytes -= self.bytes;
        }
        drop(state);
        self.budget.grant();
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn spare_bytes_leave_the_reserve_alone() {
        let budget = Budget::new(100);
        let spare = budget.lease_spare(60, 40);
        assert!(spare.is_some() && budget.lease_spare(1, 40).is_none());
        drop(spare);
        assert!(budget.lease_spare(1, 100).is_none() && budget.lease_spare(0, 100).is_some());
    }

    #[test]
    fn leases_never_add_up_to_more_than_the_budget() {
        let budget = Budget::new(100);
        std::thread::scope(|scope| {
            for i in 0..8u64 {
                let budget = &budget;
                scope.spawn(move || {
                    for n in 0..50 {
                        let _lease = budget.lease((i * 31 + n * 17) % 150);
                        let _announced = budget.announce_at_once((i * 7 + n * 3) % 60);
                        assert!(budget.leased_bytes() <= 100 && budget.announced_bytes() <= 50);
                    }
                });
            }
        });
        assert_eq!((budget.leased_bytes(), budget.announced_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn announcements_wait_for_segments_and_go_before_later_ones() {
        let budget = Budget::new(100);
        let segment = budget.lease(90);
        let announcing = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.announce(40).await }
        });
        let is_waiting = || budget.waiting() == 1;
        while !is_waiting() {
            tokio::task::yield_now().await;
        }
        assert!(budget.lease_spare(5, 0).is_none(), "the free bytes are promised to the announcement");
        drop(segment);
        let announced = announcing.await.expect("no panic").expect("fits");
        assert_eq!((budget.announced_bytes(), budget.leased_bytes()), (40, 40));
        assert_eq!(budget.lease(1000).bytes, 60, "all bytes that announcements have not leased");
        drop(announced);
        assert_eq!((budget.leased_bytes(), budget.waiting()), (0, 0));
    }

    #[tokio::test]
    async fn announcements_have_half_of_the_budget_and_an_eighth_of_that_is_for_short_ones() {
        let budget = Budget::new(16 << 20);
        assert!(budget.announce((7 << 20) + 1).await.is_none(), "the announcement never fits");
        let long = budget.announce(7 << 20).await.expect("fits");
        let next = budget.announce(1 << 20);
        assert!(
            tokio::time::timeout(Duration::from_millis(10), next).await.is_err(),
            "the rest is reserved for short announcements"
        );
        let short: Vec<_> = std::iter::from_fn(|| budget.announce_at_once(SHORT_BYTES)).collect();
        assert_eq!((short.len(), budget.announced_bytes()), (16, 8 << 20));
        drop(long);
        assert!(
            budget.announce_at_once(5 << 20).is_some(),
            "an announcement that no longer waits does not delay another"
        );
    }
}
