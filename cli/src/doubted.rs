//! At the end of `mcr run`, reports that the newest checkpoint of the run is doubtful.

use crate::exit::NOT_COMMITTED;
use mcr_cnc::config::CncConfig;
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::PosixStore;
use std::path::Path;

/// Logs an error if the newest checkpoint that this run has saved is doubtful. Returns `true` if it is not doubtful,
/// or if the run has saved no checkpoint.
pub fn report(config: &CncConfig, store: &Path) -> bool {
    // A store that does not exist has no checkpoint.
    let Ok(open) = PosixStore::open(store) else { return true };
    let states = match manifest::list(&open, &config.job) {
        Ok(states) => states,
        Err(error) => {
            tracing::warn!(%error, "it is not known whether the newest checkpoint is doubtful; see mcr list");
            return true;
        }
    };
    let Some((newest, why)) = newest_doubt(&states, config.began_ns) else { return true };
    tracing::error!(
        exit_status = NOT_COMMITTED, checkpoint = %newest.id, why,
        "the newest checkpoint is doubtful: a restart takes an older checkpoint if there is one without doubt"
    );
    false
}

/// The newest complete checkpoint that was saved since this time, and the reason for its doubt, if there is one.
/// `states`: the newest checkpoint first. `began_ns`: in nanoseconds since 1970.
fn newest_doubt(states: &[CheckpointState], began_ns: i64) -> Option<(&CheckpointState, &str)> {
    let began_ms = u64::try_from(began_ns / 1_000_000).unwrap_or(0);
    let is_of_this_run = |state: &&CheckpointState| state.is_complete() && state.created_unix_ms >= began_ms;
    let newest = states.iter().find(is_of_this_run)?;
    Some((newest, newest.doubt.as_deref()?))
}
