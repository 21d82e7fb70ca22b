//! Finds the checkpoints of a directory that need not be saved, because the rules of --keep would remove them again at
//! once: enough newer checkpoints are in the store.

use mcr_anc::instance::may_be_reused;
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::layout::Labelled;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::retention::Rules;
use mcrengine::store::{Store, StoreError};
use std::collections::BTreeSet;
use std::path::Path;

/// The names of the checkpoints that the rules would remove at once. `found`: the checkpoints of the directory `dir`,
/// the oldest first. The newest checkpoint, checkpoints that are in the store, and names that the application may
/// overwrite are never among the result.
pub fn kept_out(
    store: &dyn Store,
    job: &JobId,
    dir: &Path,
    found: &[Labelled],
    rules: &Rules,
) -> Result<BTreeSet<CheckpointId>, StoreError> {
    if rules.is_empty() || found.len() < 2 {
        return Ok(BTreeSet::new());
    }
    let mut states = manifest::list(store, job)?;
    let is_there = |label: &CheckpointId, states: &[CheckpointState]| {
        states.iter().any(|state| state.id.label() == label.label() && !state.is_pruned)
    };
    let mut result = BTreeSet::new();
    for (label, files) in &found[..found.len() - 1] {
        if may_be_reused(label) || is_there(label, &states) {
            continue;
        }
        let fingerprints = files.iter().map(|(path, _)| dir.join(path.as_path()).symlink_metadata().ok());
        let written: Option<Vec<i64>> = fingerprints.map(|about| Some(Fingerprint::of(&about?).written_ns())).collect();
        let Some(written_ns) = written.and_then(|times| times.into_iter().max()) else { continue };
        if rules.would_remove(&mut states, label, written_ns / 1_000_000) {
            result.insert(label.clone());
        }
    }
    Ok(result)
}
