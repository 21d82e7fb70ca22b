//! Limits how often a line is written into the log, so that clients cannot fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines of the log.
const INTERVAL: Duration = Duration::from_secs(1);

/// Permits one line for each event, but at most one line for each second.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    /// Number of events without a line since the last line.
    left_out: u64,
}

impl LogLimit {
    /// Counts an event. If a line for this event may be written, returns the number of events without a line since
    /// the last line.
    pub fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.logged.is_some_and(|logged| now.saturating_duration_since(logged) < INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_events_are_one_line_that_says_how_many_were_left_out() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.due_at(now), Some(0));
        assert_eq!((limit.due_at(now), limit.due_at(now + INTERVAL / 2)), (None, None));
        assert_eq!(limit.due_at(now + INTERVAL), Some(2));
        assert_eq!(limit.due_at(now + INTERVAL * 2), Some(0));
    }
}
