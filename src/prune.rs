//! Removing old checkpoints, and never anything that a kept one needs.
//!
//! The order that makes a crash harmless: a checkpoint's manifests first, so that it stops existing; that made durable;
//! then its containers, but for those that a manifest which is still there refers to.

use crate::container::{ContainerRef, checkpoint_dir, container_name};
use crate::ids::{CheckpointId, GroupId, JobId, natural_cmp};
use crate::manifest::{CheckpointState, PRUNED, list};
use crate::store::{Store, StoreError};
use crate::units::StoredBytes;
use std::cmp::Ordering;
use std::num::NonZeroU32;
use std::path::Path;

/// What to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    /// How many of the newest complete checkpoints stay.
    pub keep: NonZeroU32,
    /// Whether what was left incomplete before the newest complete checkpoint goes too.
    pub incomplete: bool,
    /// Checkpoints that are being written, and stay whatever they look like.
    pub in_flight: Vec<CheckpointId>,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Checkpoints that were there, complete or not, and are no longer.
    pub checkpoints: Vec<CheckpointId>,
    /// Length of the files that were removed.
    pub freed_bytes: StoredBytes,
    /// Containers that stay without their checkpoint, because a kept one refers to them.
    pub still_needed: Vec<(CheckpointId, GroupId)>,
}

/// Removes complete checkpoints beyond the newest `keep`, and on request what was left incomplete before the newest.
///
/// One prune at a time for each job. Interrupted at any point, it leaves whole checkpoints, and the next one goes on.
pub fn prune(store: &dyn Store, job: &JobId, options: &PruneOptions) -> Result<Pruned, StoreError> {
    let states = list(store, job)?;
    let mut doomed = doomed(&states, options);
    doomed.retain(|state| state.is_complete() || !is_being_written(store, job, &state.id));
    let mut pruned = Pruned::default();
    // The oldest first, so that what is left after an interruption is the newest.
    for state in doomed.iter().rev() {
        if remove_manifests(store, job, &state.id, &mut pruned)? || !state.is_pruned {
            pruned.checkpoints.push(state.id.clone());
        }
    }
    // Looked up again: what is referred to by a manifest that is still there, whole checkpoint or not.
    let needed: Vec<ContainerRef> = list(store, job)?.into_iter().flat_map(|state| state.references).collect();
    for state in doomed.iter().rev() {
        remove_rest(store, job, &state.id, &needed, &mut pruned)?;
    }
    Ok(pruned)
}

/// Whether a process that lives holds a file of it, as far as the store can tell.
fn is_being_written(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    let dir = checkpoint_dir(job, id);
    store.list_dir(&dir).is_ok_and(|entries| entries.iter().any(|entry| store.is_held(&dir.join(&entry.name))))
}

/// Which checkpoints go. `states` are newest first, and so is what is returned.
fn doomed<'a>(states: &'a [CheckpointState], options: &PruneOptions) -> Vec<&'a CheckpointState> {
    let Some(newest) = states.iter().find(|state| state.is_complete()) else { return Vec::new() };
    let is_before_newest = |state: &CheckpointState| match state.place {
        // No manifest of it can be read, so only its name tells.
        None => natural_cmp(state.id.as_str().as_bytes(), newest.id.as_str().as_bytes()) == Ordering::Less,
        place => place < newest.place,
    };
    let mut complete = 0;
    let mut goes = |state: &CheckpointState| match state.is_complete() {
        true => {
            complete += 1;
            complete > options.keep.get()
        }
        false => state.is_pruned || (options.incomplete && is_before_newest(state)),
    };
    states.iter().filter(|state| goes(state) && !options.in_flight.contains(&state.id)).collect()
}

/// Whether there were any.
fn remove_manifests(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    pruned: &mut Pruned,
) -> Result<bool, StoreError> {
    let dir = checkpoint_dir(job, id);
    let entries = store.list_dir(&dir)?;
    if !entries.iter().any(|entry| entry.name == PRUNED) {
        // Tells the next prune, should this one be interrupted, that what is left was not just being written.
        let mark = store.create_temp(&dir, PRUNED)?;
        store.rename(mark.path(), &dir.join(PRUNED))?;
        store.sync_dir(&dir)?;
    }
    let mut any = false;
    for entry in entries.iter().filter(|entry| !entry.is_dir && entry.name.ends_with(".manifest")) {
        remove(store, &dir.join(&entry.name), pruned)?;
        any = true;
    }
    if any {
        store.sync_dir(&dir)?;
    }
    Ok(any)
}

fn remove_rest(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    needed: &[ContainerRef],
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    let needed: Vec<GroupId> = needed.iter().filter(|r| r.checkpoint == *id).map(|r| r.group).collect();
    let mut is_empty = true;
    for entry in store.list_dir(&dir)? {
        let group = needed.iter().find(|group| container_name(**group) == entry.name);
        if let Some(group) = group {
            pruned.still_needed.push((id.clone(), *group));
        }
        if group.is_some() || entry.is_dir {
            is_empty = false;
        } else if entry.name != PRUNED {
            remove(store, &dir.join(&entry.name), pruned)?;
        }
    }
    if is_empty {
        // The mark goes last: until then the next prune knows what this is.
        store.sync_dir(&dir)?;
        store.remove_file(&dir.join(PRUNED))?;
        store.remove_dir(&dir)?;
        store.sync_dir(Path::new(job.as_str()))?;
    }
    Ok(())
}

fn remove(store: &dyn Store, path: &Path, pruned: &mut Pruned) -> Result<(), StoreError> {
    // A file that cannot be opened goes all the same; only its length is not known.
    if let Ok(file) = store.open(path) {
        pruned.freed_bytes += StoredBytes(file.len());
    }
    store.remove_file(path)
}
