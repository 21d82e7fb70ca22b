//! Waits for a condition.

use std::time::{Duration, Instant};

/// Time between two calls of `look`.
const STEP: Duration = Duration::from_millis(20);

/// Waits until `look` returns a value. Panics with `what` at the deadline.
pub fn wait_for<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {} s", deadline.as_secs());
        std::thread::sleep(STEP);
    }
}
