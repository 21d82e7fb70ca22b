//! Logs at the end of a daemon what was not committed.

use crate::advice::full_disk_in;
use crate::exit::NOT_COMMITTED;
use crate::found::rank_list;
use mcr_anc::Aggregator;
use mcr_cnc::drain::{EARLIER_FAILURE, RankRanges, Uncommitted};
use mcr_proto::v1::{CheckpointStatus, StatusReply};
use mcrengine::ids::{JobId, Rank};
use std::collections::BTreeSet;

/// Maximum number of lines about checkpoints that are not committed.
const NAMED_MAX: usize = 64;

/// The state of the aggregator in this process, if the agent could not commit all files.
pub async fn state_of(aggregator: &Aggregator, by_agent: &mcr_cnc::agent::Drained) -> Option<StatusReply> {
    if by_agent.uncommitted.is_empty() {
        return None;
    }
    aggregator.status.ask().await
}

/// Why ranks are not committed, with what the aggregator knows: the missing ranks, or its last error.
fn why_of(left: &Uncommitted, state: Option<(&JobId, &StatusReply)>) -> String {
    let Some((job, state)) = state else { return left.why.clone() };
    let is_it = |c: &&CheckpointStatus| c.job == job.as_str() && c.label == left.checkpoint.as_str();
    let missing: BTreeSet<u32> = state.checkpoints.iter().filter(is_it).flat_map(|c| c.missing.clone()).collect();
    // The agent has ended, so the aggregator also misses the ranks that the agent had announced.
    let missing: Vec<u32> = missing.into_iter().filter(|rank| !left.ranks.contains(&Rank(*rank))).collect();
    if !missing.is_empty() {
        return format!("{}: no agent has announced {}", left.why, rank_list(&missing));
    }
    let error = state.jobs.iter().find(|of| of.job == job.as_str()).map(|of| of.last_error.as_str());
    let Some(error) = error.filter(|error| !error.is_empty()) else { return left.why.clone() };
    // The reason of the agent may contain an older error of the same cause.
    let why = left.why.split(EARLIER_FAILURE).next().unwrap_or(&left.why);
    format!("{why}; the last error of the aggregator: {error}{}", advice_for_space(error))
}

/// The advice for an error of a full file system, with a semicolon before it. Empty for other errors.
pub fn advice_for_space(error: &str) -> &'static str {
    match full_disk_in(error) {
        Some(_) => "; free space in the store's file system, for example with mcr prune",
        None => "",
    }
}

/// Logs the ranks that the agent did not commit. `state`: the job and the state of the aggregator in this process.
/// Returns whether all written files are committed.
pub fn report_agent(drained: &mcr_cnc::agent::Drained, state: Option<(&JobId, &StatusReply)>) -> bool {
    for left in drained.uncommitted.iter().take(NAMED_MAX) {
        let (checkpoint, ranks, why) = (&left.checkpoint, RankRanges(&left.ranks), why_of(left, state));
        tracing::error!(%checkpoint, %ranks, why, "not committed");
    }
    if let Some(first) = drained.unreadable.first() {
        tracing::error!(
            exit_status = NOT_COMMITTED, paths = drained.unreadable.len(), first = %first.path.display(),
            why = first.why, "not committed: these paths cannot be read"
        );
    }
    let all = "ended; all announced files are committed";
    report(drained.uncommitted.len() + drained.unreadable.len(), drained.failed, all)
}

/// Logs the groups that the aggregator did not commit. Returns whether all written files are committed.
pub fn report_aggregator(drained: &mcr_anc::Drained) -> bool {
    for left in drained.uncommitted.iter().take(NAMED_MAX) {
        let (job, checkpoint, group) = (&left.job, &left.checkpoint, left.group.0);
        let why = format!("{}{}", left.why, advice_for_space(&left.why));
        let missing = RankRanges(&left.missing);
        tracing::error!(%job, %checkpoint, group, missing_ranks = %missing, why, "not committed");
    }
    // Groups that were abandoned earlier were reported then.
    report(drained.uncommitted.len(), drained.failed, "ended; no group waits for its commit")
}

/// `all`: the line if nothing is left.
fn report(named: usize, failed: bool, all: &str) -> bool {
    if failed {
        tracing::error!(
            exit_status = NOT_COMMITTED,
            "ended early: it is not known whether everything that was written is committed"
        );
    } else if named > 0 {
        let not_shown = named.saturating_sub(NAMED_MAX);
        tracing::error!(
            exit_status = NOT_COMMITTED,
            not_shown,
            "ended; not everything that was written was committed. Before mcr restart or another \
             job, save the files that still exist with mcr save: mcr restart moves newer files aside"
        );
    } else {
        tracing::info!("{all}");
    }
    named == 0 && !failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcr_proto::v1::JobStatus;

    #[test]
    fn the_reason_names_the_missing_ranks_or_the_full_store_once_with_what_to_do() {
        let job: JobId = "wave".parse().expect("valid");
        let left = Uncommitted {
            checkpoint: "it_7".parse().expect("valid"),
            ranks: vec![Rank(0), Rank(1)],
            why: format!("the aggregator a:1 has not committed it{EARLIER_FAILURE}/s/.tmp1: No space left on device"),
        };
        let gathering = |missing: &[u32]| CheckpointStatus {
            job: "wave".into(),
            label: "it_7".into(),
            phase: "gathering".into(),
            missing: missing.to_vec(),
            ..CheckpointStatus::default()
        };
        let last_error = "the flush of it_7 failed: /s/.tmp2: No space left on device".to_owned();
        let jobs = vec![JobStatus { job: "wave".into(), last_error, ..JobStatus::default() }];
        let full = StatusReply { checkpoints: vec![gathering(&[0, 1])], jobs, ..StatusReply::default() };
        let why = why_of(&left, Some((&job, &full)));
        assert!(why.starts_with("the aggregator a:1 has not committed it; the last error of the aggregator:"), "{why}");
        assert_eq!(why.matches("No space left").count(), 1, "{why}");
        assert!(why.ends_with("; free space in the store's file system, for example with mcr prune"), "{why}");
        let lacking = StatusReply { checkpoints: vec![gathering(&[0, 1, 3])], ..StatusReply::default() };
        assert!(why_of(&left, Some((&job, &lacking))).ends_with(": no agent has announced rank 3"));
        assert_eq!(why_of(&left, None), left.why);
    }
}
