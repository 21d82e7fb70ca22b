//! The newest checkpoint of each group, remembered between flushes.

use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, Manifest};
use mcrengine::store::Store;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The newest manifest of each group that this process committed or looked up, without the list of its files.
/// Manifests never change. If a remembered manifest was removed, the newest manifest is looked up again.
#[derive(Debug, Default)]
pub struct NewestOfGroups(Mutex<HashMap<(JobId, GroupId), Manifest>>);

/// Maximum number of groups that are remembered. If there are more groups, all groups are looked up again.
const NEWEST_MAX: usize = 4096;

impl NewestOfGroups {
    /// The newest checkpoint of a group except `except`. The newest checkpoint is the one that the application wrote
    /// last.
    pub(crate) fn look_up(
        &self,
        store: &dyn Store,
        job: &JobId,
        group: GroupId,
        except: &CheckpointId,
    ) -> Option<Manifest> {
        let known = self.get(job, group).filter(|known| known.checkpoint != *except);
        if known.as_ref().is_some_and(|known| manifest::is_there(store, known)) {
            return known;
        }
        self.forget(job, group);
        let newest = manifest::newest_of_group(store, job, group, Some(except)).ok().flatten()?;
        self.put(&newest);
        Some(newest)
    }

    /// The newest checkpoint of a group. The checkpoint may have been pruned since it was remembered.
    pub(crate) fn of(&self, store: &dyn Store, job: &JobId, group: GroupId) -> Option<Manifest> {
        if let Some(known) = self.get(job, group) {
            return Some(known);
        }
        let newest = manifest::newest_of_group(store, job, group, None).ok().flatten()?;
        self.put(&newest);
        Some(newest)
    }

    fn get(&self, job: &JobId, group: GroupId) -> Option<Manifest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(job.clone(), group)).cloned()
    }

    pub(crate) fn put(&self, manifest: &Manifest) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= NEWEST_MAX {
            all.clear();
        }
        let slot = all.entry((manifest.job.clone(), manifest.group));
        let known = slot.or_insert_with(|| Manifest { files: Vec::new(), ..manifest.clone() });
        if known.place() < manifest.place() {
            *known = Manifest { files: Vec::new(), ..manifest.clone() };
        }
    }

    /// The number of ranks of the newest checkpoint of a job. `None` if no checkpoint is known.
    pub(crate) fn ranks_of(&self, job: &JobId) -> Option<u32> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_job = all.iter().filter(|((of, _), _)| of == job).map(|(_, manifest)| manifest);
        of_job.max_by_key(|manifest| manifest.place()).map(|manifest| manifest.ranks)
    }

    fn forget(&self, job: &JobId, group: GroupId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(job.clone(), group));
    }
}
