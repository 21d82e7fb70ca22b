//! Clocks that nobody sets: how long ago something happened on another node, whatever the time of day is there.

use std::sync::OnceLock;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Two steady clocks drift apart by less than this part: 20 in a million.
const DRIFT_DIVISOR: i64 = 50_000;

/// Nanoseconds of this process's steady clock.
pub fn steady_ns() -> i64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    i64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(i64::MAX)
}

/// How far another process's steady clock is ahead of this one's, as its messages show.
///
/// A message that was sent at *t* there arrives here at *t* - offset + delay. Delays are never negative, so the largest
/// *sent* - *arrived* of all messages is the offset, but for the delay of the quickest message. A message that waited for
/// minutes changes nothing.
#[derive(Debug, Default)]
pub struct PeerClock(Mutex<Option<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    offset_ns: i64,
    at_ns: i64,
}

impl Seen {
    /// The least that the offset can be by now.
    fn offset_at(self, now_ns: i64) -> i64 {
        self.offset_ns.saturating_sub(now_ns.saturating_sub(self.at_ns) / DRIFT_DIVISOR)
    }
}

impl PeerClock {
    /// A message arrived now that was sent at a time of the other clock.
    pub fn heard(&self, sent_ns: i64) {
        self.heard_at(sent_ns, steady_ns());
    }

    fn heard_at(&self, sent_ns: i64, now_ns: i64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offset_ns = sent_ns.saturating_sub(now_ns);
        if seen.is_none_or(|seen| seen.offset_at(now_ns) < offset_ns) {
            *seen = Some(Seen { offset_ns, at_ns: now_ns });
        }
    }

    /// A time of the other clock by this process's: not earlier than it was, and later only by the delay of the quickest
    /// message. `None` before the first message.
    pub fn to_ours(&self, theirs_ns: i64) -> Option<i64> {
        self.to_ours_at(theirs_ns, steady_ns())
    }

    fn to_ours_at(&self, theirs_ns: i64, now_ns: i64) -> Option<i64> {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map(|seen| theirs_ns.saturating_sub(seen.offset_at(now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_waited_does_not_move_the_other_clock() {
        let clock = PeerClock::default();
        assert_eq!(clock.to_ours_at(5, 0), None);
        let ahead_ns = 7_000_000_000;
        clock.heard_at(1_000 + ahead_ns, 1_000 + 50); // 50 ns on its way
        // Sent a second later, read two minutes after that.
        clock.heard_at(1_000_001_000 + ahead_ns, 121_000_001_000);
        let changed_ns = 500_000_000 + ahead_ns;
        let ours_ns = clock.to_ours_at(changed_ns, 121_000_001_000).expect("heard");
        let late_ns = ours_ns - 500_000_000;
        assert!((0..3_000_000).contains(&late_ns), "{late_ns} ns too late");
    }

    #[test]
    fn a_quicker_message_makes_it_exact() {
        let clock = PeerClock::default();
        clock.heard_at(100, 90 + 1_000);
        assert_eq!(clock.to_ours_at(100, 1_090), Some(1_090));
        clock.heard_at(2_000, 1_990 + 3);
        assert_eq!(clock.to_ours_at(2_000, 1_993), Some(1_993));
    }
}
