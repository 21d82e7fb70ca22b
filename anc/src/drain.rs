//! Decides when an aggregator ends after a request to end. This code does no I/O, and its callers pass the time.
//!
//! While agents may still announce files, the aggregator continues to gather and to flush, until a time limit.

use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};

/// Time without an event, in milliseconds, after which a checkpoint with missing ranks counts as incomplete. An agent
/// that lost its connection connects again within this time.
pub const GRACE_MS: u64 = 2_000;

/// Numbers of agents and groups that have not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Number of agents that have not yet reported that all written files are announced.
    pub looking: usize,
    /// Number of groups that are being flushed, wait for a flush, or are searched for in the store.
    pub flushing: usize,
    /// Number of groups with missing ranks.
    pub gathering: usize,
    /// Number of committed groups whose agents have not yet been informed that the whole checkpoint is complete. A
    /// group counts if its agents are connected, or if the store was not checked since the drain began.
    pub untold: usize,
}

/// Whether the aggregator continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continue, and decide again at this time in milliseconds, or after the next event.
    GoOn(u64),
    /// End now.
    End,
}

/// Decides at the time `now_ms` whether to continue. `quiet_since_ms` is the time of the last event, and `until_ms`
/// is the time limit.
pub fn decide(in_flight: InFlight, now_ms: u64, quiet_since_ms: u64, until_ms: u64) -> Verdict {
    let InFlight { looking, flushing, gathering, untold } = in_flight;
    let grace_until_ms = quiet_since_ms.saturating_add(GRACE_MS);
    match () {
        () if now_ms >= until_ms => Verdict::End,
        () if looking + flushing + untold > 0 => Verdict::GoOn(until_ms),
        () if gathering > 0 && now_ms < grace_until_ms => Verdict::GoOn(grace_until_ms.min(until_ms)),
        () => Verdict::End,
    }
}

/// A group of a checkpoint that is not committed when the aggregator ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncommitted {
    /// The job.
    pub job: JobId,
    /// The application's name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// The group.
    pub group: GroupId,
    /// Ranks that did not announce their files.
    pub missing: Vec<Rank>,
    /// Why the group is not committed.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: InFlight = InFlight { looking: 0, flushing: 0, gathering: 0, untold: 0 };

    #[test]
    fn an_aggregator_with_nothing_in_flight_ends_at_once() {
        assert_eq!(decide(NOTHING, 5, 5, 20_000), Verdict::End);
    }

    #[test]
    fn it_goes_on_while_agents_may_announce_or_a_group_is_flushed_or_is_not_told_of() {
        for in_flight in [
            InFlight { looking: 1, ..NOTHING },
            InFlight { flushing: 1, ..NOTHING },
            InFlight { untold: 1, gathering: 1, ..NOTHING },
        ] {
            assert_eq!(decide(in_flight, 19_999, 0, 20_000), Verdict::GoOn(20_000));
            assert_eq!(decide(in_flight, 20_000, 0, 20_000), Verdict::End, "the time limit is kept");
        }
    }

    #[test]
    fn ranks_that_are_missing_are_awaited_for_a_short_time_once_no_agent_has_more() {
        let gathering = InFlight { gathering: 1, ..NOTHING };
        assert_eq!(decide(gathering, 1_000, 1_000, 20_000), Verdict::GoOn(3_000));
        assert_eq!(decide(gathering, 3_000, 1_000, 20_000), Verdict::End);
        assert_eq!(decide(gathering, 19_500, 19_000, 20_000), Verdict::GoOn(20_000));
    }
}
