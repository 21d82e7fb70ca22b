//! Removes old checkpoints of a job on a separate thread after a checkpoint became complete.
//!
//! Each job has at most one such thread. If the store supports locks, only one process removes checkpoints of a job
//! at a time. A failure is logged, and the next checkpoint starts another attempt. No other work depends on the
//! removal.

use crate::unpanicked::unpanicked;
use mcrengine::error_chain::error_chain;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::prune::{PruneOptions, REPACK_BELOW_PERCENT, lock, prune_remembering};
use mcrengine::remembered::Remembered;
use mcrengine::retention::Rules;
use mcrengine::store::Store;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of checkpoints of a job for which old checkpoints are removed after each commit. With more
/// checkpoints, old checkpoints are removed after every second commit, with more than twice this number after every
/// third commit, and so on. The reason is that listing the job's directory takes longer with each checkpoint.
const EACH_COMMIT_MAX: usize = 1000;
/// Maximum number of checkpoints of all jobs that are remembered between two commits. If there are more checkpoints,
/// all checkpoints are read again.
const REMEMBERED_MAX: usize = 32 << 10;

/// The remembered state of a job since it was last pruned.
#[derive(Default)]
struct Known {
    remembered: Remembered,
    /// Number of commits since the job was last pruned.
    commits: usize,
}

/// Jobs that are being pruned. If another checkpoint of a job became complete during the pruning, the job is pruned
/// again. The value of such a job is the list of checkpoints in flight at that time.
#[derive(Default)]
struct AtWork {
    jobs: Mutex<BTreeMap<JobId, Option<Vec<CheckpointId>>>>,
    ended: Condvar,
}

impl AtWork {
    fn jobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Option<Vec<CheckpointId>>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to prune a job. If the job is already being pruned, returns false, and the job will be pruned again.
    fn begin(&self, job: &JobId, in_flight: &[CheckpointId]) -> bool {
        match self.jobs().entry(job.clone()) {
            Entry::Occupied(mut again) => {
                again.insert(Some(in_flight.to_vec()));
                false
            }
            Entry::Vacant(new) => {
                new.insert(None);
                true
            }
        }
    }

    /// The checkpoints in flight, if the job must be pruned again. `None` if the work on the job is finished.
    fn next(&self, job: &JobId) -> Option<Vec<CheckpointId>> {
        let mut jobs = self.jobs();
        let again = jobs.get_mut(job).and_then(Option::take);
        if again.is_none() {
            jobs.remove(job);
            self.ended.notify_all();
        }
        again
    }
}

/// Prunes jobs by rules. Clones share their state.
#[derive(Clone)]
pub struct Retention {
    store: Arc<dyn Store>,
    rules: Rules,
    at_work: Arc<AtWork>,
    /// The remembered state of jobs that are not being pruned.
    known: Arc<Mutex<BTreeMap<JobId, Known>>>,
}

impl Retention {
    /// Makes a pruner with these rules. Without any rule the pruner does nothing.
    pub fn new(store: Arc<dyn Store>, rules: Rules) -> Self {
        Self { store, rules, at_work: Arc::default(), known: Arc::default() }
    }

    /// Prunes the jobs whose pruning was postponed. Waits until no job is being pruned, or until the time `until`.
    /// Thereby old checkpoints are also removed after the last checkpoint of a job.
    pub fn finish(&self, until: Instant) {
        let is_due = |(job, known): (&JobId, &Known)| (known.commits > 0).then(|| job.clone());
        let due: Vec<JobId> = self.known().iter().filter_map(is_due).collect();
        for job in due {
            if self.at_work.begin(&job, &[]) {
                self.start(&job, Vec::new());
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let jobs = self.at_work.jobs();
        // If the time has passed, or another thread has panicked, the next pruning removes the remaining checkpoints.
        drop(self.at_work.ended.wait_timeout_while(jobs, left, |jobs| !jobs.is_empty()));
    }

    /// Handles a checkpoint of this job that became complete. Returns at once. If the job is already being pruned,
    /// the job is pruned again afterwards.
    pub fn completed(&self, job: &JobId, in_flight: Vec<CheckpointId>) {
        if self.rules.is_empty() || !self.at_work.begin(job, &in_flight) {
            return;
        }
        match self.is_postponed(job) {
            true => drop(self.at_work.next(job)),
            false => self.start(job, in_flight),
        }
    }

    /// Starts the thread that prunes a job, after [`AtWork::begin`].
    fn start(&self, job: &JobId, in_flight: Vec<CheckpointId>) {
        let (this, of) = (self.clone(), job.clone());
        let work = move || {
            let mut next = Some(in_flight);
            while let Some(in_flight) = next {
                let mut known = this.known().remove(&of).unwrap_or_default();
                known.commits = 0;
                // After a panic the remembered state is dropped.
                let pruned = unpanicked(|| {
                    this.prune(&of, in_flight, &mut known.remembered);
                    Ok(known)
                });
                match pruned {
                    Ok(known) => this.remember(&of, known),
                    Err(error) => {
                        tracing::error!(job = %of, error = error_chain(&error), "removing old checkpoints failed");
                    }
                }
                next = this.at_work.next(&of);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("prune".into()).spawn(work) {
            tracing::warn!(%job, %error, "cannot start a thread to remove old checkpoints");
            self.at_work.next(job);
        }
    }

    /// Whether the job has more than [`EACH_COMMIT_MAX`] checkpoints, and will be pruned after a later commit.
    fn is_postponed(&self, job: &JobId) -> bool {
        let mut all = self.known();
        let Some(known) = all.get_mut(job) else { return false };
        let is_postponed = known.commits < known.remembered.len() / EACH_COMMIT_MAX;
        known.commits += usize::from(is_postponed);
        is_postponed
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, job: &JobId, known: Known) {
        let mut all = self.known();
        let others: usize = all.values().map(|known| known.remembered.len()).sum();
        if others + known.remembered.len() > REMEMBERED_MAX {
            all.clear();
        }
        all.insert(job.clone(), known);
    }

    fn prune(&self, job: &JobId, in_flight: Vec<CheckpointId>, remembered: &mut Remembered) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
        let options = PruneOptions {
            keep: self.rules.clone(),
            in_flight,
            now_unix_ms: now,
            repack_below_percent: REPACK_BELOW_PERCENT,
            ..PruneOptions::default()
        };
        let _lock = match lock(&*self.store, job) {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => return tracing::debug!(%job, "another process is removing old checkpoints"),
            // The lock may have failed because the store is full. If the store is full, pruning is even
            // more important.
            Err(error) => {
                tracing::debug!(%job, error = error_chain(&error), "removing old checkpoints without a lock");
                None
            }
        };
        match prune_remembering(&*self.store, job, &options, remembered) {
            Ok(pruned) if !pruned.unreadable.is_empty() => {
                let ids: Vec<String> = pruned.unreadable.iter().map(|u| u.checkpoint.to_string()).collect();
                let unreadable = ids.join(", ");
                tracing::warn!(%job, unreadable, "no old checkpoint is removed while any checkpoint cannot be read");
            }
            Ok(pruned) if pruned.checkpoints.is_empty() => {}
            Ok(pruned) => {
                let removed: Vec<String> = pruned.checkpoints.iter().map(ToString::to_string).collect();
                let (removed, freed_bytes) = (removed.join(", "), pruned.freed_bytes.0);
                tracing::info!(%job, removed, freed_bytes, "removed old checkpoints");
            }
            Err(error) => {
                tracing::warn!(
                    %job,
                    error = error_chain(&error),
                    "old checkpoints could not be removed; trying again after the next checkpoint"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::store::MemoryStore;

    #[test]
    fn a_job_whose_pruning_was_postponed_is_pruned_before_the_aggregator_ends() {
        let rules = Rules { last: 1, ..Rules::default() };
        let retention = Retention::new(Arc::new(MemoryStore::new()), rules);
        let job: JobId = "job".parse().expect("valid");
        retention.remember(&job, Known { commits: 1, ..Known::default() });
        retention.finish(Instant::now() + std::time::Duration::from_secs(30));
        assert_eq!(retention.known().get(&job).map(|known| known.commits), Some(0));
    }
}
