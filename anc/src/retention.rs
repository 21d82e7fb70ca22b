//! Removes old checkpoints of a job after each one that became complete, on a thread of its own.
//!
//! At most one thread for each job, and one process at a time as far as the store has locks. What fails is logged and
//! tried again after the next checkpoint; nothing depends on it.

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

/// Of a job with more checkpoints than this, old ones are removed after every second commit, with more than twice as
/// many after every third, and so on: to list the directory of the job is what takes longer with each of them.
const EACH_COMMIT_MAX: usize = 1000;
/// Checkpoints of all jobs that are remembered between two commits; with more, all are read anew.
const REMEMBERED_MAX: usize = 32 << 10;

/// What is known of a job since it was last pruned.
#[derive(Default)]
struct Known {
    remembered: Remembered,
    /// Commits since then.
    commits: usize,
}

/// Jobs that are being pruned. If a checkpoint of such a job became complete meanwhile, the job is pruned again, and
/// these checkpoints are in flight then.
#[derive(Default)]
struct AtWork {
    jobs: Mutex<BTreeMap<JobId, Option<Vec<CheckpointId>>>>,
    ended: Condvar,
}

impl AtWork {
    fn jobs(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Option<Vec<CheckpointId>>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns false if the job is being pruned; then it will be pruned again.
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

    /// The checkpoints in flight for the next turn, or `None` if the work on the job is over.
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

/// Prunes jobs by rules. A clone is the same one.
#[derive(Clone)]
pub struct Retention {
    store: Arc<dyn Store>,
    rules: Rules,
    at_work: Arc<AtWork>,
    /// Of the jobs that are not being pruned.
    known: Arc<Mutex<BTreeMap<JobId, Known>>>,
}

impl Retention {
    /// By these rules; without any it does nothing.
    pub fn new(store: Arc<dyn Store>, rules: Rules) -> Self {
        Self { store, rules, at_work: Arc::default(), known: Arc::default() }
    }

    /// Waits until no job is being pruned, or until a time. The last checkpoint of a job is one that counts.
    pub fn finish(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let jobs = self.at_work.jobs();
        // After the time, or a panic elsewhere, the next prune does the rest.
        drop(self.at_work.ended.wait_timeout_while(jobs, left, |jobs| !jobs.is_empty()));
    }

    /// A checkpoint of this job became complete. Returns at once. If the job is being pruned, it is pruned again
    /// afterwards.
    pub fn completed(&self, job: &JobId, in_flight: Vec<CheckpointId>) {
        if self.rules.is_empty() || !self.at_work.begin(job, &in_flight) {
            return;
        }
        let mut known = self.known().remove(job).unwrap_or_default();
        if known.commits < known.remembered.len() / EACH_COMMIT_MAX {
            known.commits += 1;
            self.known().insert(job.clone(), known);
            self.at_work.next(job);
            return;
        }
        known.commits = 0;
        let (this, of) = (self.clone(), job.clone());
        let work = move || {
            let mut next = Some(in_flight);
            while let Some(in_flight) = next {
                // After a panic nothing is remembered.
                let mut remembered = std::mem::take(&mut known.remembered);
                let pruned = unpanicked(|| {
                    this.prune(&of, in_flight, &mut remembered);
                    Ok(remembered)
                });
                match pruned {
                    Ok(remembered) => known.remembered = remembered,
                    Err(error) => {
                        tracing::error!(job = %of, error = error_chain(&error), "removing old checkpoints failed");
                    }
                }
                next = this.at_work.next(&of);
            }
            this.remember(&of, known);
        };
        if let Err(error) = std::thread::Builder::new().name("prune".into()).spawn(work) {
            tracing::warn!(%job, %error, "no thread to remove old checkpoints");
            self.at_work.next(job);
        }
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
            // A store without room is what pruning is for.
            Err(error) => {
                tracing::debug!(%job, error = error_chain(&error), "removing old checkpoints without a lock");
                None
            }
        };
        match prune_remembering(&*self.store, job, &options, remembered) {
            Ok(pruned) if !pruned.unreadable.is_empty() => {
                let ids: Vec<String> = pruned.unreadable.iter().map(|u| u.checkpoint.to_string()).collect();
                let unreadable = ids.join(", ");
                tracing::warn!(%job, unreadable, "no old checkpoint is removed while one cannot be read");
            }
            Ok(pruned) if pruned.checkpoints.is_empty() => {}
            Ok(pruned) => {
                let removed: Vec<String> = pruned.checkpoints.iter().map(ToString::to_string).collect();
                let (removed, freed_bytes) = (removed.join(", "), pruned.freed_bytes.0);
                tracing::info!(%job, removed, freed_bytes, "removed old checkpoints");
            }
            Err(error) => {
                tracing::warn!(%job, error = error_chain(&error), "old checkpoints could not be removed; tried again after the next");
            }
        }
    }
}
