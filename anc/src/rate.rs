//! Measures the write rate of the store.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The average rate of the newest bytes. Older bytes have less weight.
#[derive(Debug, Default)]
pub struct Meter {
    /// Weighted sum of the written bytes, and weighted sum of the seconds of writing.
    sums: Mutex<(f64, f64)>,
}

/// Minimum number of bytes. With fewer bytes the time of a sync dominates, and the rate counts as unknown.
const BYTES_MIN: f64 = 64.0 * 1024.0 * 1024.0;
/// Number of newest bytes that have full weight. The weight of older bytes decreases.
const BYTES_FADE: f64 = 1024.0 * 1024.0 * 1024.0;

impl Meter {
    /// Notes how long writing and syncing a container took.
    pub fn wrote(&self, bytes: u64, time: Duration) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = (sums.0 + bytes as f64, sums.1 + time.as_secs_f64());
        if sums.0 > BYTES_FADE {
            let part = BYTES_FADE / sums.0;
            *sums = (sums.0 * part, sums.1 * part);
        }
    }

    /// Bytes per second. `None` if too few bytes were written.
    pub fn bytes_per_s(&self) -> Option<u64> {
        let (bytes, seconds) = *self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        (bytes >= BYTES_MIN && seconds > 0.0).then(|| (bytes / seconds).max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_newest_bytes_once_there_are_enough() {
        let speed = Meter::default();
        speed.wrote(60 << 20, Duration::from_secs(60));
        assert_eq!(speed.bytes_per_s(), None, "too few bytes for a rate");
        speed.wrote(40 << 20, Duration::from_secs(40));
        assert_eq!(speed.bytes_per_s(), Some(1 << 20));
        for _ in 0..20 {
            speed.wrote(1 << 30, Duration::from_secs(2));
        }
        let rate = speed.bytes_per_s().expect("known");
        assert!((511 << 20..=512 << 20).contains(&rate), "{rate}");
        speed.wrote(0, Duration::from_secs(2));
        assert!(speed.bytes_per_s().is_some_and(|slower| slower < rate));
    }
}
