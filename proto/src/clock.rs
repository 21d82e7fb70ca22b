//! Compares the steady clocks of two processes. Thereby a process can compute how long ago an event happened on
//! another node, even if the time of day on that node is wrong.

use std::sync::OnceLock;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Two steady clocks drift apart by less than this fraction: 1/50,000, or 20 parts in a million.
const DRIFT_DIVISOR: i64 = 50_000;

/// Time of this process's steady clock, in nanoseconds.
pub fn steady_ns() -> i64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    i64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(i64::MAX)
}

/// The offset by which another process's steady clock is ahead of the clock of this process, derived from messages.
///
/// A message that was sent at *t* by the other clock arrives here at *t* - offset + delay. A delay is never negative.
/// Therefore the largest difference *sent* - *arrived* of all messages is the offset minus the delay of the fastest
/// message. A message that was delayed for minutes does not change the result.
#[derive(Debug, Default)]
pub struct PeerClock(Mutex<Option<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    offset_ns: i64,
    at_ns: i64,
}

impl Seen {
    /// Lower bound of the offset at the time `now_ns`.
    fn offset_at(self, now_ns: i64) -> i64 {
        self.offset_ns.saturating_sub(now_ns.saturating_sub(self.at_ns) / DRIFT_DIVISOR)
    }
}

impl PeerClock {
    /// Records that a message arrived now. `sent_ns` is the time at which the message was sent, by the other clock.
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

    /// Converts a time of the other clock to this process's clock. The result is never too early. The result is too
    /// late by at most the delay of the fastest message and the drift since that message. Returns `None` before the
    /// first message.
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
        clock.heard_at(1_000 + ahead_ns, 1_000 + 50); // delay of 50 ns
        // The message is sent one second later, and arrives two minutes after it was sent.
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
