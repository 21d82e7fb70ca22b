//! Finds out which checkpoints are complete, so that the cost for each group does not grow with the number of groups.
//!
//! A checkpoint is complete if the manifests of all of its groups are valid. To read all manifests for each group
//! would cost groups times groups. Therefore this module first looks for one missing manifest after the other, and
//! remembers where it stopped. The groups are looked at in an order that depends on the own group, so that a process
//! finds a missing manifest soon: if a group is committed when m manifests of n groups are missing, about n / m
//! manifests are looked at. Only a process that finds no missing manifest reads them all, and then leaves a note
//! ([`Completion`]) for the processes that wait.

use mcrengine::ids::{CheckpointId, Digest, GroupId, JobId};
use mcrengine::manifest::{Completion, Manifest, has_all_manifests, has_manifest};
use mcrengine::store::Store;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of remembered checkpoints.
const REMEMBERED_MAX: usize = 256;
/// Maximum number of manifests that a waiting process looks at in one look. Usually another process is reading all
/// manifests at this time, and will leave its note.
const LOOKED_AT_MAX: u32 = 16;
/// Number of looks that find no missing manifest and no note. After these looks, a waiting process reads all manifests
/// itself, because the process that committed the last group may have died.
const PATIENT_LOOKS: u32 = 2;

/// A group of a checkpoint, and the container that this process committed for the group or found in its manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupOf {
    /// The job.
    pub job: JobId,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Number of groups of the checkpoint.
    pub groups: u32,
    /// The group.
    pub group: GroupId,
    /// The digest of the container that the group's manifest names.
    pub container: Digest,
}

impl From<&Manifest> for GroupOf {
    fn from(manifest: &Manifest) -> Self {
        Self {
            job: manifest.job.clone(),
            checkpoint: manifest.checkpoint.clone(),
            groups: manifest.groups,
            group: manifest.group,
            container: manifest.container.digest,
        }
    }
}

/// What this process knows about a checkpoint.
#[derive(Debug, Default)]
struct Known {
    completion: Option<Completion>,
    /// The groups of this process, with their containers.
    own: BTreeMap<GroupId, Digest>,
    /// The group at which the walk over all groups began.
    first: Option<GroupId>,
    /// Number of groups whose manifests were found in the walk.
    walked: u32,
    /// Number of looks that found no missing manifest, and left the reading of all manifests to another process.
    patient: u32,
}

/// A lock for each checkpoint, with the knowledge about the checkpoint.
type All = BTreeMap<(JobId, CheckpointId), Arc<Mutex<Known>>>;

/// The checkpoints that were asked for.
#[derive(Debug, Default)]
pub struct Completes(Mutex<All>);

impl Completes {
    /// Whether the checkpoint of a group is complete. The group's manifest was read or committed just now. If this
    /// process waits for other processes, use [`Completes::became`] instead. If the store cannot be read, the answer
    /// is false.
    pub fn is(&self, store: &dyn Store, of: &GroupOf) -> bool {
        self.look(store, of, true)
    }

    /// Whether the checkpoint of a group has become complete since the group was committed. The answer may be late.
    pub fn became(&self, store: &dyn Store, of: &GroupOf) -> bool {
        self.look(store, of, false)
    }

    fn look(&self, store: &dyn Store, of: &GroupOf, at_once: bool) -> bool {
        let known = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= REMEMBERED_MAX {
                all.clear(); // threads that wait for an answer keep their entry
            }
            Arc::clone(all.entry((of.job.clone(), of.checkpoint.clone())).or_default())
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.look(store, of, at_once)
    }
}

impl Known {
    fn look(&mut self, store: &dyn Store, of: &GroupOf, at_once: bool) -> bool {
        let GroupOf { job, checkpoint: id, group, container, .. } = of;
        // If the group has another container than before, the checkpoint was removed, and its name is used again.
        if self.own.insert(*group, *container).is_some_and(|before| before != *container) {
            *self = Self { own: BTreeMap::from([(*group, *container)]), ..Self::default() };
        }
        if self.is_complete(of) {
            // The names are read again, because manifests may have been removed.
            return !at_once || has_all_manifests(store, job, id, of.groups).unwrap_or(false);
        }
        let walked = self.walked;
        if !self.walk(store, of, if at_once { of.groups } else { walked + 1 }) {
            return false;
        }
        let is_shared = (0..of.groups).any(|group| !self.own.contains_key(&GroupId(group)));
        if is_shared {
            self.completion = Completion::load(store, job, id).filter(|note| note.has(*group, *container));
        }
        if self.is_complete(of) {
            return true;
        }
        let is_patient = !at_once && self.patient < PATIENT_LOOKS;
        if !self.walk(store, of, if is_patient { walked + LOOKED_AT_MAX } else { of.groups }) {
            return false;
        }
        if self.walked < of.groups {
            self.patient += 1;
            return false;
        }
        self.completion = Completion::find(store, job, id).ok().flatten();
        if !self.is_complete(of) {
            *self = Self { own: BTreeMap::from([(*group, *container)]), ..Self::default() };
            return false;
        }
        if let Some(completion) = self.completion.as_ref().filter(|_| is_shared)
            && let Err(error) = completion.leave(store)
        {
            tracing::debug!(%job, checkpoint = %id, %error, "cannot leave the note of the complete checkpoint");
        }
        true
    }

    fn is_complete(&self, of: &GroupOf) -> bool {
        self.completion.as_ref().is_some_and(|completion| completion.has(of.group, of.container))
    }

    /// Continues the walk until `until` groups were found. Returns `false` if a manifest is missing.
    fn walk(&mut self, store: &dyn Store, of: &GroupOf, until: u32) -> bool {
        let first = *self.first.get_or_insert(of.group);
        let stride = stride(of.groups);
        while self.walked < until.min(of.groups) {
            let ahead = u64::from(self.walked) * u64::from(stride);
            let group = GroupId(((u64::from(first.0) + ahead) % u64::from(of.groups)) as u32);
            if !self.own.contains_key(&group) && !has_manifest(store, &of.job, &of.checkpoint, group).unwrap_or(false) {
                return false;
            }
            self.walked += 1;
        }
        true
    }
}

/// The step of a walk that visits all groups. The step is near the golden section, so that the groups that different
/// processes look at first are spread evenly.
fn stride(groups: u32) -> u32 {
    let golden = (f64::from(groups) * 0.618) as u32;
    (golden.max(1)..=groups.max(1)).find(|step| gcd(*step, groups) == 1).unwrap_or(1)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_walk_visits_every_group() {
        for groups in 1..600 {
            let visited: BTreeSet<u32> = (0..groups)
                .map(|nth| (u64::from(nth) * u64::from(stride(groups)) % u64::from(groups)) as u32)
                .collect();
            assert_eq!(visited.len(), groups as usize, "{groups} groups");
        }
    }
}
