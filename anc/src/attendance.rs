//! Which agents an aggregator has. An aggregator that serves one job only ends when its agents have left.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The agents of an aggregator.
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
        // A reader that sees no session sees who has left.
        self.left.store(left, Ordering::Release);
        self.sessions.store(sessions, Ordering::Release);
    }
}
