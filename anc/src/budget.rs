//! Memory is leased: a buffer exists only while its lease does, and backpressure is that nobody gets a lease.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes that may be in flight between fetch and store, over all flushes and restarts of this process.
pub struct Budget {
    total_bytes: u64,
    free_bytes: Mutex<u64>,
    freed: Condvar,
}

/// Some bytes of the budget, given back on drop.
pub struct Lease {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(total_bytes: u64) -> Arc<Self> {
        Arc::new(Self { total_bytes, free_bytes: Mutex::new(total_bytes), freed: Condvar::new() })
    }

    /// Waits until so many bytes are free. More than the whole budget counts as the whole, so that nobody waits for ever:
    /// leases are taken in the order of work, and whoever holds one needs no second one to finish.
    pub fn lease(self: &Arc<Self>, bytes: u64) -> Lease {
        let bytes = bytes.min(self.total_bytes);
        let free = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free < bytes).unwrap_or_else(PoisonError::into_inner);
        *free -= bytes;
        Lease { budget: Arc::clone(self), bytes }
    }

    /// Some bytes, if afterwards at least `reserve` are free; nobody waits for these.
    pub fn lease_spare(self: &Arc<Self>, bytes: u64, reserve: u64) -> Option<Lease> {
        let mut free = self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let left = free.checked_sub(bytes).filter(|left| *left >= reserve)?;
        *free = left;
        Some(Lease { budget: Arc::clone(self), bytes })
    }

    /// All of it, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What is leased now, in bytes.
    pub fn leased_bytes(&self) -> u64 {
        self.total_bytes - *self.free_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.budget.free_bytes.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                        assert!(budget.leased_bytes() <= 100);
                    }
                });
            }
        });
        assert_eq!(budget.leased_bytes(), 0);
    }
}
