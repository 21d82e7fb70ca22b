//! The times and lengths that the store of a job already knows: of its newest checkpoints, and of its restarts.

use anyhow::bail;
use mcrengine::container::ContainerReader;
use mcrengine::ids::{GroupId, JobId};
use mcrengine::incarnation::Incarnations;
use mcrengine::manifest::CheckpointState;
use mcrengine::store::Store;
use std::collections::BTreeMap;

/// Maximum number of newest checkpoints that are measured.
const MEASURED_MAX: usize = 8;
/// Maximum number of groups of a checkpoint whose files are looked at.
const GROUPS_MAX: u32 = 64;

/// Maximum time from the last file of a checkpoint to its commit, unless the time between two checkpoints is longer.
/// If the commit was later, the checkpoint did not wait for an aggregator, but for a person. In ms.
const COMMIT_MS_MAX: u64 = 3_600_000;

/// Medians over the newest complete checkpoints of a job.
#[derive(Debug, serde::Serialize)]
pub struct Measured {
    /// Number of measured checkpoints.
    pub count: usize,
    /// Time from the first to the last file of a checkpoint. `None` if this time is not known.
    pub write_ms: Option<u64>,
    /// Time from the last file of a checkpoint until the checkpoint was committed. If the checkpoints were saved much
    /// later than they were written, this is the time of the flush.
    pub commit_ms: u64,
    /// Whether the checkpoints were saved much later than they were written, such as with `mcr save` after the run.
    pub saved_later: bool,
    /// Time in which the aggregators wrote a checkpoint.
    pub flush_ms: u64,
    /// Time between two checkpoints of one start of the job. `None` if there are no two checkpoints.
    pub interval_ms: Option<u64>,
    /// Time in which `mcr restart` restored a checkpoint. `None` if the job was never restarted from a checkpoint.
    pub restart_ms: Option<u64>,
    pub file_bytes: u64,
    pub stored_bytes: u64,
}

/// The past restarts of a job.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub struct Restarts {
    /// Number of restarts from a checkpoint after a start whose checkpoints are known.
    pub count: u64,
    /// Total time from the begin of a start to its last checkpoint, over all starts with known checkpoints.
    pub computed_ms: u64,
}

impl Restarts {
    /// The mean time between two failures in seconds, if every restart was a failure. `None` without a restart.
    pub fn mtbf_s(&self) -> Option<f64> {
        (self.count > 0 && self.computed_ms > 0).then(|| self.computed_ms as f64 / 1000.0 / self.count as f64)
    }
}

/// The restarts of a job. `states` are all its checkpoints, also those that were pruned.
pub fn restarts(states: &[CheckpointState], incarnations: &Incarnations) -> Restarts {
    // The times of the first and of the last checkpoint of each start.
    let mut starts: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for place in states.iter().filter_map(|state| state.place) {
        let time = place.written_unix_ms;
        let (first, last) = starts.entry(place.incarnation).or_insert((time, time));
        (*first, *last) = (time.min(*first), time.max(*last));
    }
    let records = incarnations.all();
    for record in records {
        if let Some((first, _)) = starts.get_mut(&record.number) {
            *first = (*first).min(i64::try_from(record.began_unix_ms).unwrap_or(i64::MAX));
        }
    }
    let computed = starts.values().map(|(first, last)| u64::try_from(last.saturating_sub(*first)).unwrap_or(0));
    // A start that ended without a checkpoint is not counted, because the store does not know how long it computed.
    let is_restart = |number: &u32| incarnations.ended_by(*number).is_some_and(|next| next.from.is_some());
    Restarts { count: starts.keys().filter(|number| is_restart(number)).count() as u64, computed_ms: computed.sum() }
}

/// Measures the newest complete checkpoints of a job.
pub fn measured(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    incarnations: &Incarnations,
) -> anyhow::Result<Measured> {
    let complete: Vec<&CheckpointState> = complete(states).take(MEASURED_MAX).collect();
    if complete.is_empty() {
        bail!("job {job} has no complete checkpoint, so nothing can be measured; save one with mcr save or mcr run");
    }
    let written = |state: &CheckpointState| state.place.map_or(0, |place| place.written_unix_ms);
    let after = |from: i64, to: i64| u64::try_from(to.saturating_sub(from)).unwrap_or(0);
    let committed =
        |state: &CheckpointState| after(written(state), i64::try_from(state.created_unix_ms).unwrap_or(i64::MAX));
    let mut writes = Vec::new();
    for state in &complete {
        writes.extend(write_ms(store, job, state));
    }
    // The time between the checkpoints of two starts also contains the wait for the second start, so it is not an
    // interval.
    let same_start = complete.windows(2).filter(|pair| incarnation(pair[0]) == incarnation(pair[1]));
    let intervals = same_start.map(|pair| after(written(pair[1]), written(pair[0]))).filter(|ms| *ms > 0);
    let all = |of: &dyn Fn(&CheckpointState) -> u64| median(complete.iter().map(|state| of(state)).collect());
    let interval_ms = median(intervals.collect());
    let flush_ms = all(&|state| state.elapsed_ms).unwrap_or(0);
    let commit_max = interval_ms.unwrap_or(0).max(COMMIT_MS_MAX);
    let commit_ms = all(&committed).filter(|ms| *ms <= commit_max);
    let restored = incarnations.all().iter().rev().filter(|record| record.is_restart && record.from.is_some());
    Ok(Measured {
        count: complete.len(),
        write_ms: median(writes),
        commit_ms: commit_ms.unwrap_or(flush_ms),
        saved_later: commit_ms.is_none(),
        flush_ms,
        interval_ms,
        restart_ms: median(restored.take(MEASURED_MAX).map(|record| record.took_ms).collect()),
        file_bytes: all(&|state| state.file_bytes).unwrap_or(0),
        stored_bytes: all(&|state| state.stored_bytes.0).unwrap_or(0),
    })
}

/// The complete checkpoints that were not pruned, the newest first.
pub fn complete(states: &[CheckpointState]) -> impl Iterator<Item = &CheckpointState> {
    states.iter().filter(|state| state.is_complete() && !state.is_pruned)
}

fn incarnation(state: &CheckpointState) -> Option<u32> {
    state.place.map(|place| place.incarnation)
}

/// Time from the first to the last file of a checkpoint. `None` if all files have the same time, or if a container
/// cannot be read.
fn write_ms(store: &dyn Store, job: &JobId, state: &CheckpointState) -> Option<u64> {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for group in (0..state.groups.min(GROUPS_MAX)).map(GroupId) {
        let reader = ContainerReader::open(store, job, &state.id, group).ok()?;
        for file in reader.index().files().iter().filter(|file| file.kind.is_regular()) {
            (first, last) = (first.min(file.modified_ns), last.max(file.modified_ns));
        }
    }
    let ms = u64::try_from(last.saturating_sub(first) / 1_000_000).unwrap_or(0);
    (first < last && ms > 0).then_some(ms)
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        assert_eq!(median(vec![3, 1, 900]), Some(3));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn the_time_between_failures_is_all_computed_time_divided_by_the_restarts() {
        assert_eq!(Restarts { count: 4, computed_ms: 80_000 }.mtbf_s(), Some(20.0));
        assert_eq!(Restarts { count: 0, computed_ms: 80_000 }.mtbf_s(), None);
        assert_eq!(Restarts { count: 2, computed_ms: 0 }.mtbf_s(), None);
    }
}
