//! The log of refused connections and requests. The number of messages per time is limited, so clients cannot fill
//! the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines of the log.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes one line for each refusal, but at most one line for each [`INTERVAL`].
#[derive(Debug, Default)]
pub struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    /// Number of refusals without a line since the last line.
    left_out: u64,
}

impl Refusals {
    /// `peer` is the address of the client. `uid`: the client's user, if the user is known.
    pub fn log(&self, peer: &str, uid: Option<u32>, reason: &str) {
        if let Some(left_out) = self.due(Instant::now()) {
            tracing::warn!(peer, uid, reason, left_out, "a request is refused");
        }
    }

    /// Counts a refusal. If a line for this refusal may be written, returns the number of refusals since the last
    /// line.
    fn due(&self, now: Instant) -> Option<u64> {
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
    fn many_refusals_are_one_line_that_says_how_many_were_left_out() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.due(now), Some(0));
        assert_eq!((refusals.due(now), refusals.due(now + INTERVAL / 2)), (None, None));
        assert_eq!(refusals.due(now + INTERVAL), Some(2));
        assert_eq!(refusals.due(now + INTERVAL * 2), Some(0));
    }
}
