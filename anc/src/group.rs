//! Decides what happens to one checkpoint of one group. The state is an enum, and one function changes it without
//! I/O, clock or lock.
//!
//! The hub ([`crate::hub`]) owns the state, passes each event to [`step`], and executes the effects that [`step`]
//! returns.

use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use std::collections::BTreeSet;
use std::fmt;

/// Maximum number of flushes that may fail because of the store. After this number, the checkpoint is abandoned.
pub const FLUSH_ATTEMPTS_MAX: u32 = 5;

/// Maximum number of ranks that a reason names.
const RANKS_NAMED_MAX: usize = 8;

/// Time in milliseconds before a flush is tried again, if the flush found that its content is already committed.
const UNCHANGED_MS: u64 = 1000;

/// A checkpoint of a group, as the application names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The job.
    pub job: JobId,
    /// The group.
    pub group: GroupId,
    /// The application's name of the checkpoint.
    pub label: CheckpointId,
}

/// The state of one checkpoint of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The agents have not yet announced the files of all ranks of the group.
    Gathering {
        /// The ranks whose announcements are missing. Never empty.
        missing: BTreeSet<Rank>,
        /// When to stop waiting for the missing ranks, in milliseconds of the clock of the hub.
        deadline_ms: u64,
        /// The earlier flushes that failed because of the store.
        failed: Failed,
    },
    /// `flush_checkpoint` is running. The end of `flush_checkpoint` arrives as [`Event::Flushed`],
    /// [`Event::RanksFailed`] or [`Event::StoreFailed`].
    Flushing {
        /// The earlier flushes that failed because of the store.
        failed: Failed,
    },
    /// The store failed. The flush is tried again at `until_ms`.
    Waiting {
        /// When to try again, in milliseconds of the hub's clock.
        until_ms: u64,
        /// The flushes that have failed because of the store.
        failed: Failed,
    },
    /// The group's manifest is in the store.
    Committed(CheckpointId),
    /// The checkpoint was abandoned, and the agents are informed.
    Abandoned(Reason),
}

/// The flushes of a checkpoint that failed because of the store or of another part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// Number of these flushes.
    pub attempts: u32,
    /// Why the last of these flushes failed. Empty if no flush failed.
    pub why: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the flush failed {}: {}", self.times(), self.why)
    }
}

impl Failed {
    /// The number of flushes, as in `3 times`.
    pub fn times(&self) -> String {
        format!("{} time{}", self.attempts, if self.attempts == 1 { "" } else { "s" })
    }
}

/// Why a checkpoint was abandoned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// These ranks did not announce their files in time.
    Missing(BTreeSet<Rank>),
    /// The store or a node's disk failed repeatedly.
    Store(Failed),
    /// All ranks had announced their files, but the store failed. Before the store worked again, these ranks lost
    /// their agent or their files, and did not announce again in time.
    Lost(Failed, BTreeSet<Rank>),
    /// Too many checkpoints of the group were waiting, and this checkpoint was the oldest.
    Overtaken,
    /// All ranks announced their files, but the store failed, and too many newer checkpoints of the group wait for the
    /// store.
    Crowded,
    /// The files belong to an incarnation of the job that has ended.
    Fenced(String),
    /// The aggregator is shutting down.
    Shutdown,
}

impl Reason {
    /// The reason in one word, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing",
            Self::Store(_) | Self::Lost(..) | Self::Crowded => "store",
            Self::Overtaken => "overtaken",
            Self::Fenced(_) => "fenced",
            Self::Shutdown => "shutdown",
        }
    }

    /// Whether it may help to announce the same checkpoint again later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Store(_) | Self::Crowded | Self::Shutdown => true,
            Self::Missing(_) | Self::Lost(..) | Self::Overtaken | Self::Fenced(_) => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(ranks) => {
                write!(f, "{} of the group's ranks did not announce in time: {}", ranks.len(), first_of(ranks))
            }
            Self::Store(failed) => write!(f, "{failed}"),
            Self::Lost(failed, ranks) => write!(
                f,
                "{failed}; then the agent or the files of {} of the group's ranks were lost: {}",
                ranks.len(),
                first_of(ranks)
            ),
            Self::Overtaken => f.write_str("newer checkpoints arrived before this checkpoint was complete"),
            Self::Crowded => f.write_str("the store failed, and too many newer checkpoints wait for the store"),
            Self::Fenced(reason) => f.write_str(reason),
            Self::Shutdown => f.write_str("the aggregator is shutting down"),
        }
    }
}

/// The numbers of the first ranks.
fn first_of(ranks: &BTreeSet<Rank>) -> String {
    let numbers: Vec<String> = ranks.iter().take(RANKS_NAMED_MAX).map(|rank| rank.0.to_string()).collect();
    format!("{}{}", numbers.join(", "), if ranks.len() > RANKS_NAMED_MAX { ", ..." } else { "" })
}

/// An event that concerns one checkpoint of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank announced its headers, for the first time or again.
    Announced(Rank),
    /// A rank's files are gone or being rewritten, or the rank's agent has disconnected.
    Lost(Rank),
    /// The manifest of the group is in the store.
    Flushed(CheckpointId),
    /// The announced files are already in the store.
    Found(CheckpointId),
    /// The bytes of these ranks could not be fetched, because the agent has disconnected or the files have changed.
    RanksFailed(BTreeSet<Rank>),
    /// The store or another part failed, and may work later. The text is the reason.
    StoreFailed(String),
    /// The flush found that the files belong to an incarnation of the job that has ended.
    Fenced(String),
    /// The flush found that the content is the committed content. If another group changes, this group belongs to the
    /// next checkpoint.
    Unchanged,
    /// Time passed.
    Tick,
    /// Too many checkpoints of this group are waiting, and this checkpoint is the oldest.
    Overtaken,
    /// The aggregator is shutting down.
    Shutdown,
}

/// What the hub must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Run `flush_checkpoint` with the announced files.
    Flush,
    /// Inform the agents of the announced ranks that the group is in the store.
    TellCommitted(CheckpointId),
    /// Inform the agents of the announced ranks that the checkpoint was abandoned.
    TellAbandoned(Reason),
}

/// How long the phases last, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time from the first announcement, or from the loss of a rank, until the checkpoint is abandoned.
    pub gather_ms: u64,
    /// First wait after a failure of the store. Each further wait is twice as long.
    pub retry_ms: u64,
}

/// Returns the phase after an event, and adds to `todo` what the hub must do next. `now_ms` never decreases.
pub fn step(phase: Phase, event: Event, now_ms: u64, times: Times, todo: &mut Vec<Effect>) -> Phase {
    let gather = |missing, failed| Phase::Gathering { missing, deadline_ms: now_ms + times.gather_ms, failed };
    let abandon = |reason: Reason, todo: &mut Vec<Effect>| {
        todo.push(Effect::TellAbandoned(reason.clone()));
        Phase::Abandoned(reason)
    };
    match (phase, event) {
        (Phase::Gathering { mut missing, deadline_ms, failed }, Event::Announced(rank)) => {
            missing.remove(&rank);
            if !missing.is_empty() {
                return Phase::Gathering { missing, deadline_ms, failed };
            }
            todo.push(Effect::Flush);
            Phase::Flushing { failed }
        }
        (Phase::Gathering { mut missing, deadline_ms, failed }, Event::Lost(rank)) => {
            missing.insert(rank);
            Phase::Gathering { missing, deadline_ms, failed }
        }
        (Phase::Gathering { missing, deadline_ms, failed }, Event::Tick) if now_ms >= deadline_ms => {
            // Without the failure of the store, the checkpoint would have been committed before the ranks were lost.
            let reason = if failed.attempts > 0 { Reason::Lost(failed, missing) } else { Reason::Missing(missing) };
            abandon(reason, todo)
        }
        (Phase::Flushing { .. }, Event::Flushed(id)) => {
            todo.push(Effect::TellCommitted(id.clone()));
            Phase::Committed(id)
        }
        (Phase::Gathering { .. } | Phase::Waiting { .. }, Event::Found(id)) => {
            todo.push(Effect::TellCommitted(id.clone()));
            Phase::Committed(id)
        }
        (Phase::Flushing { failed }, Event::RanksFailed(ranks)) if !ranks.is_empty() => gather(ranks, failed),
        // No rank is named as failed, so this event is handled like a failure of the store.
        (phase @ Phase::Flushing { .. }, Event::RanksFailed(_)) => {
            step(phase, Event::StoreFailed("the bytes could not be fetched from any rank".into()), now_ms, times, todo)
        }
        (Phase::Flushing { failed }, Event::StoreFailed(why)) => {
            let failed = Failed { attempts: failed.attempts + 1, why };
            if failed.attempts >= FLUSH_ATTEMPTS_MAX {
                return abandon(Reason::Store(failed), todo);
            }
            wait(failed, now_ms, times)
        }
        (Phase::Flushing { failed }, Event::Unchanged) => Phase::Waiting { until_ms: now_ms + UNCHANGED_MS, failed },
        (Phase::Flushing { .. }, Event::Fenced(reason)) => abandon(Reason::Fenced(reason), todo),
        (Phase::Waiting { until_ms, failed }, Event::Tick) if now_ms >= until_ms => {
            todo.push(Effect::Flush);
            Phase::Flushing { failed }
        }
        (Phase::Waiting { failed, .. }, Event::Lost(rank)) => gather([rank].into(), failed),
        // The agent has connected again or did not receive the answer, so the answer is sent again.
        (Phase::Committed(id), Event::Announced(_)) => {
            todo.push(Effect::TellCommitted(id.clone()));
            Phase::Committed(id)
        }
        // The checkpoint waits because the store failed. The agents announce it again later.
        (Phase::Waiting { failed: Failed { attempts: 1.., .. }, .. }, Event::Overtaken) => {
            abandon(Reason::Crowded, todo)
        }
        (Phase::Gathering { .. } | Phase::Waiting { .. }, Event::Overtaken) => abandon(Reason::Overtaken, todo),
        (Phase::Gathering { .. } | Phase::Waiting { .. }, Event::Shutdown) => abandon(Reason::Shutdown, todo),
        // A running flush is not interrupted. If an agent is lost, the fetches of the flush fail by themselves.
        (
            phase @ Phase::Flushing { .. },
            Event::Announced(_) | Event::Lost(_) | Event::Found(_) | Event::Tick | Event::Overtaken | Event::Shutdown,
        ) => phase,
        (phase @ (Phase::Gathering { .. } | Phase::Waiting { .. }), Event::Tick) => phase,
        (phase @ Phase::Waiting { .. }, Event::Announced(_)) => phase,
        // These events arrived too late and are ignored.
        (
            phase @ (Phase::Gathering { .. } | Phase::Waiting { .. }),
            Event::Flushed(_) | Event::RanksFailed(_) | Event::StoreFailed(_) | Event::Fenced(_) | Event::Unchanged,
        ) => phase,
        (
            over @ (Phase::Committed(_) | Phase::Abandoned(_)),
            Event::Lost(_)
            | Event::Flushed(_)
            | Event::Found(_)
            | Event::RanksFailed(_)
            | Event::StoreFailed(_)
            | Event::Fenced(_)
            | Event::Unchanged
            | Event::Tick
            | Event::Overtaken
            | Event::Shutdown,
        ) => over,
        (over @ Phase::Abandoned(_), Event::Announced(_)) => over,
    }
}

fn wait(failed: Failed, now_ms: u64, times: Times) -> Phase {
    let doublings = failed.attempts.saturating_sub(1).min(FLUSH_ATTEMPTS_MAX);
    Phase::Waiting { until_ms: now_ms + (times.retry_ms << doublings), failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMES: Times = Times { gather_ms: 1000, retry_ms: 10 };

    fn ranks(all: &[u32]) -> BTreeSet<Rank> {
        all.iter().copied().map(Rank).collect()
    }

    fn run(events: Vec<(u64, Event)>) -> (Phase, Vec<Effect>) {
        let mut todo = Vec::new();
        let start = Phase::Gathering { missing: ranks(&[0, 1]), deadline_ms: 1000, failed: Failed::default() };
        let end = events.into_iter().fold(start, |phase, (now_ms, event)| step(phase, event, now_ms, TIMES, &mut todo));
        (end, todo)
    }

    fn id() -> CheckpointId {
        "it_7".parse().expect("valid")
    }

    #[test]
    fn a_group_is_flushed_once_all_ranks_announced_and_told_afterwards() {
        let (phase, todo) = run(vec![
            (0, Event::Announced(Rank(1))),
            (1, Event::Announced(Rank(1))),
            (2, Event::Announced(Rank(0))),
            (9, Event::Flushed(id())),
        ]);
        assert_eq!(phase, Phase::Committed(id()));
        assert_eq!(todo, [Effect::Flush, Effect::TellCommitted(id())]);
    }

    #[test]
    fn a_rank_lost_during_the_flush_is_awaited_and_the_flush_redone() {
        let (phase, todo) = run(vec![
            (0, Event::Announced(Rank(0))),
            (0, Event::Announced(Rank(1))),
            (5, Event::Lost(Rank(1))),
            (6, Event::RanksFailed(ranks(&[1]))),
            (7, Event::Announced(Rank(1))),
        ]);
        assert_eq!(phase, Phase::Flushing { failed: Failed::default() });
        assert_eq!(todo, [Effect::Flush, Effect::Flush]);
    }

    #[test]
    fn a_rank_that_never_comes_ends_in_a_reason_that_names_it() {
        let (phase, todo) = run(vec![(0, Event::Announced(Rank(0))), (999, Event::Tick), (1000, Event::Tick)]);
        assert_eq!(phase, Phase::Abandoned(Reason::Missing(ranks(&[1]))));
        assert_eq!(todo, [Effect::TellAbandoned(Reason::Missing(ranks(&[1])))]);
        assert_eq!(Reason::Missing(ranks(&[1])).to_string(), "1 of the group's ranks did not announce in time: 1");
    }

    #[test]
    fn a_store_that_keeps_failing_is_tried_five_times_with_growing_waits() {
        let mut phase = Phase::Flushing { failed: Failed::default() };
        let mut todo = Vec::new();
        let mut waits = Vec::new();
        let mut now_ms = 0;
        for _ in 0..20 {
            phase = step(phase, Event::StoreFailed("no space".into()), now_ms, TIMES, &mut todo);
            let Phase::Waiting { until_ms, .. } = phase else { break };
            waits.push(until_ms - now_ms);
            now_ms = until_ms;
            phase = step(phase, Event::Tick, now_ms, TIMES, &mut todo);
        }
        assert_eq!(waits, [10, 20, 40, 80]);
        let failed = Failed { attempts: FLUSH_ATTEMPTS_MAX, why: "no space".into() };
        assert_eq!(phase, Phase::Abandoned(Reason::Store(failed)));
    }

    #[test]
    fn a_full_store_is_the_reason_if_the_ranks_are_lost_after_the_flush_failed() {
        let (phase, todo) = run(vec![
            (0, Event::Announced(Rank(0))),
            (0, Event::Announced(Rank(1))),
            (1, Event::StoreFailed("no space".into())),
            (2, Event::Lost(Rank(0))),
            (2, Event::Lost(Rank(1))),
            (1002, Event::Tick),
        ]);
        let reason = Reason::Lost(Failed { attempts: 1, why: "no space".into() }, ranks(&[0, 1]));
        assert_eq!((reason.kind(), reason.may_pass()), ("store", false));
        assert_eq!(
            reason.to_string(),
            "the flush failed 1 time: no space; then the agent or the files of 2 of the group's ranks were lost: 0, 1"
        );
        assert_eq!(todo, [Effect::Flush, Effect::TellAbandoned(reason.clone())]);
        assert_eq!(phase, Phase::Abandoned(reason));
    }

    #[test]
    fn a_checkpoint_that_only_waits_for_the_store_is_announced_again_if_newer_ones_take_its_place() {
        let mut todo = Vec::new();
        let waiting = step(
            Phase::Flushing { failed: Failed::default() },
            Event::StoreFailed("no space".into()),
            0,
            TIMES,
            &mut todo,
        );
        let phase = step(waiting, Event::Overtaken, 1, TIMES, &mut todo);
        assert_eq!(phase, Phase::Abandoned(Reason::Crowded));
        assert!(Reason::Crowded.may_pass() && !Reason::Overtaken.may_pass());
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0u32..2).prop_map(|r| Event::Announced(Rank(r))),
            (0u32..2).prop_map(|r| Event::Lost(Rank(r))),
            Just(Event::Flushed(id())),
            prop::collection::btree_set((0u32..2).prop_map(Rank), 0..2).prop_map(Event::RanksFailed),
            Just(Event::StoreFailed("x".into())),
            Just(Event::Fenced("x".into())),
            Just(Event::Found(id())),
            Just(Event::Unchanged),
            Just(Event::Tick),
            Just(Event::Overtaken),
            Just(Event::Shutdown),
        ]
    }

    proptest! {
        #[test]
        fn at_most_one_flush_runs_and_every_end_is_told_once(script in prop::collection::vec((0u64..400, events()), 0..60)) {
            let (missing, failed) = (ranks(&[0, 1]), Failed::default());
            let (mut phase, mut now_ms) = (Phase::Gathering { missing, deadline_ms: 1000, failed }, 0);
            let (mut running, mut ends) = (false, 0);
            for (later, event) in script {
                now_ms += later;
                // The hub reports the end of a flush only while a flush is running.
                let of_flush = matches!(event, Event::Flushed(_) | Event::RanksFailed(_) | Event::StoreFailed(_)
                    | Event::Fenced(_) | Event::Unchanged);
                if of_flush {
                    if !running { continue }
                    running = false;
                }
                let was_over = matches!(phase, Phase::Committed(_) | Phase::Abandoned(_));
                let mut todo = Vec::new();
                phase = step(phase, event, now_ms, TIMES, &mut todo);
                for effect in todo {
                    match effect {
                        Effect::Flush => { prop_assert!(!running, "two flushes at once"); running = true }
                        Effect::TellCommitted(_) if was_over => {}
                        Effect::TellCommitted(_) | Effect::TellAbandoned(_) => ends += 1,
                    }
                }
                prop_assert_eq!(running, matches!(phase, Phase::Flushing { .. }));
                if let Phase::Gathering { missing, .. } = &phase { prop_assert!(!missing.is_empty()) }
            }
            prop_assert_eq!(ends, u32::from(matches!(phase, Phase::Committed(_) | Phase::Abandoned(_))));
        }
    }
}
