//! Remembers which checkpoints are complete. Many groups of one checkpoint are committed at about the same time. Each
//! group asks whether the checkpoint is complete, and an answer may need the manifests of all groups. Therefore one
//! thread reads the store, and the other threads use its answer.

use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest;
use mcrengine::store::Store;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of remembered checkpoints.
const REMEMBERED_MAX: usize = 256;

/// A lock for each checkpoint, with the answer.
type Answers = BTreeMap<(JobId, CheckpointId), Arc<Mutex<bool>>>;

/// The checkpoints that were asked for, and whether each of them was found to be complete.
#[derive(Debug, Default)]
pub struct Completes(Mutex<Answers>);

impl Completes {
    /// Whether a checkpoint of `groups` groups is complete. Most calls only list the directory of the checkpoint,
    /// because a manifest is missing. If another thread reads the state of the same checkpoint, this function waits
    /// for the answer of that thread. If the state cannot be read, the answer is false.
    pub fn of(&self, store: &dyn Store, job: &JobId, id: &CheckpointId, groups: u32) -> bool {
        // The list is read each time, because the checkpoint may have been removed and its name used again.
        if !manifest::has_all_manifests(store, job, id, groups).unwrap_or(false) {
            return false;
        }
        let known = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REMEMBERED_MAX {
                all.clear(); // threads that wait for an answer keep their entry
            }
            Arc::clone(all.entry((job.clone(), id.clone())).or_default())
        };
        let mut is_complete = known.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_complete {
            *is_complete = manifest::state(store, job, id).is_ok_and(|state| state.is_complete());
        }
        *is_complete
    }
}
