//! Logs at the end of a daemon what was not committed.

use crate::exit::NOT_COMMITTED;
use mcr_anc::Aggregator;
use mcr_cnc::drain::RankRanges;
use mcrengine::ids::JobId;

/// Maximum number of lines about checkpoints that are not committed.
const NAMED_MAX: usize = 64;

/// The last error of the aggregator in this process, if the agent could not commit all files.
pub async fn last_error(aggregator: &Aggregator, by_agent: &mcr_cnc::agent::Drained, job: &JobId) -> Option<String> {
    if by_agent.uncommitted.is_empty() {
        return None;
    }
    let jobs = aggregator.status.ask().await?.jobs;
    jobs.into_iter().find(|of| of.job == job.as_str()).map(|of| of.last_error).filter(|error| !error.is_empty())
}

/// Logs the ranks that the agent did not commit, and the last error of the aggregator in this process. Returns whether
/// all written files are committed.
pub fn report_agent(drained: &mcr_cnc::agent::Drained, error: Option<String>) -> bool {
    for left in drained.uncommitted.iter().take(NAMED_MAX) {
        let (checkpoint, ranks) = (&left.checkpoint, RankRanges(&left.ranks));
        let why = match &error {
            Some(error) => format!("{}; the last error of the aggregator: {error}", left.why),
            None => left.why.clone(),
        };
        tracing::error!(%checkpoint, %ranks, why, "not committed");
    }
    if let Some(first) = drained.unreadable.first() {
        tracing::error!(
            exit_status = NOT_COMMITTED, paths = drained.unreadable.len(), first = %first.path.display(),
            why = first.why, "not committed: these paths cannot be read"
        );
    }
    report(drained.uncommitted.len() + drained.unreadable.len(), drained.failed)
}

/// Logs the groups that the aggregator did not commit. Returns whether all written files are committed.
pub fn report_aggregator(drained: &mcr_anc::Drained) -> bool {
    for left in drained.uncommitted.iter().take(NAMED_MAX) {
        let (job, checkpoint, group, why) = (&left.job, &left.checkpoint, left.group.0, &left.why);
        let missing = RankRanges(&left.missing);
        tracing::error!(%job, %checkpoint, group, missing_ranks = %missing, why, "not committed");
    }
    report(drained.uncommitted.len(), drained.failed)
}

fn report(named: usize, failed: bool) -> bool {
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
            "ended; not everything that was written was committed. If the same job starts again, it saves the files \
             that still exist. Before another job begins, save them with mcr save"
        );
    } else {
        tracing::info!("ended; all announced files are committed");
    }
    named == 0 && !failed
}
