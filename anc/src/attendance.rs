//! Counts the agents of an aggregator. An aggregator that serves only one job ends when the agents of the job have
//! left.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers of agents of an aggregator.
#[derive(Debug, Default)]
pub struct Attendance {
    sessions: AtomicUsize,
    left: AtomicUsize,
}

impl Attendance {
    /// Number of open sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    /// Number of nodes whose agents have reported that they end. Always 0 if the aggregator serves all jobs.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, sessions: usize, left: usize) {
        // `sessions` is stored last. So a task that reads `sessions` first also sees the new value of `left`.
        self.left.store(left, Ordering::Release);
        self.sessions.store(sessions, Ordering::Release);
    }
}
