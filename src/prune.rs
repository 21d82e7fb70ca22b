//! Removing old checkpoints, and never anything that a kept one needs.
//!
//! The order that makes a crash harmless: a checkpoint's manifests first, so that it stops existing; that made durable;
//! then its containers, but for those that a manifest which is still there refers to. The first manifest is not removed: it
//! becomes the mark `pruned` by a rename, which needs neither an inode nor a block, so that a full store can be pruned.
//!
//! What cannot be read just now may refer to anything. While there is such a checkpoint nothing is removed, unless it is
//! dropped by its name.

use crate::container::{ContainerRef, checkpoint_dir, container_name};
use crate::ids::{CheckpointId, GroupId, JobId, natural_cmp};
use crate::incarnation;
use crate::looking::is_abandoned;
use crate::manifest::{CheckpointState, Condition, PRUNED, group_of_manifest, list_remembering};
use crate::remembered::Remembered;
use crate::repack::{Repacked, needed_bytes, repack};
use crate::retention::Rules;
use crate::store::{Entry, Store, StoreError, TempFile, visible};
use crate::units::StoredBytes;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

/// What to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// What stays of the complete checkpoints; with no rule all of them.
    pub keep: Rules,
    /// These go whatever the rules say.
    pub drop: Vec<CheckpointId>,
    /// Whether what was left incomplete before the newest complete checkpoint goes too.
    pub incomplete: bool,
    /// Checkpoints that are being written, and stay whatever they look like.
    pub in_flight: Vec<CheckpointId>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// A container without its checkpoint of which less than so many per cent are needed is written anew with just that. 0: never.
    pub repack_below_percent: u32,
    /// Milliseconds since 1970, to tell how old temporary files are; 0: they stay.
    pub now_unix_ms: u64,
}

/// What [`PruneOptions::repack_below_percent`] is where nobody says another number.
pub const REPACK_BELOW_PERCENT: u32 = 50;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// Checkpoints that were there, complete or not, and are no longer.
    pub checkpoints: Vec<CheckpointId>,
    /// Length of the files that were removed.
    pub freed_bytes: StoredBytes,
    /// Containers that stay without their checkpoint, because a kept one refers to them.
    pub still_needed: Vec<StillNeeded>,
    /// Containers that were written anew with just what is needed of them.
    pub repacked: Vec<Repacked>,
    /// Why containers that hold much that nobody needs were left as they are, if something failed.
    pub not_repacked: Option<String>,
    /// Directories that were empty, and files that writers which are dead left under temporary names.
    pub left_over: u64,
    /// Checkpoints that cannot be read just now. Nothing was removed because of them.
    pub unreadable: Vec<Unreadable>,
}

/// A container that stays without its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StillNeeded {
    /// Whose it was.
    pub checkpoint: CheckpointId,
    /// Of which group.
    pub group: GroupId,
    /// Its length.
    pub bytes: StoredBytes,
    /// How much of it the kept checkpoints need, about; `None` where that cannot be told.
    pub needed_bytes: Option<StoredBytes>,
}

/// A checkpoint that cannot be read just now.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unreadable {
    /// Which one.
    pub checkpoint: CheckpointId,
    /// Why.
    pub problems: Vec<String>,
}

/// A temporary file that nobody holds is from a writer that is dead, once it was not written to for so long. Where the file
/// system has no locks only the time tells.
const DEAD_TEMP_AGE_MS: i64 = 10 * 60 * 1000;
/// The name of the temporary file that a prune of the daemons holds.
const LOCK: &str = "prune";
/// Where it is, in the directory of the job: that one would have to be listed whole to find it.
const LOCK_DIRECTORY: &str = ".prune";

/// Removes what the options say.
///
/// One prune at a time for each job; two at once remove what either would. Interrupted at any point, it leaves whole
/// checkpoints, and the next one goes on.
pub fn prune(store: &dyn Store, job: &JobId, options: &PruneOptions) -> Result<Pruned, StoreError> {
    prune_remembering(store, job, options, &mut Remembered::nothing())
}

/// As [`prune`], for a process that prunes after each commit: what it remembers of complete checkpoints is not read again, but
/// for a part. What dead writers left in the directories of these is only removed with them.
pub fn prune_remembering(
    store: &dyn Store,
    job: &JobId,
    options: &PruneOptions,
    remembered: &mut Remembered,
) -> Result<Pruned, StoreError> {
    remembered.look_again();
    let states = list_remembering(store, job, remembered)?;
    let mut pruned = Pruned::default();
    if is_blocked(&states, options, &mut pruned) {
        return Ok(pruned);
    }
    let too_often = match options.keep.is_empty() {
        true => None,
        false => incarnation::restored_too_often(store, job).map_err(StoreError::from)?,
    };
    let mut doomed = doomed(&states, options, too_often.as_ref());
    doomed.retain(|state| state.is_complete() || state.is_pruned || !is_being_written(store, job, &state.id));
    if options.dry_run {
        let stays = |state: &&CheckpointState| !doomed.iter().any(|gone| gone.id == state.id);
        let needed: Vec<ContainerRef> = states.iter().filter(stays).flat_map(|s| s.references.clone()).collect();
        for state in doomed.iter().rev() {
            if !state.is_pruned {
                pruned.checkpoints.push(state.id.clone());
            }
            count_rest(store, job, &state.id, &needed, &mut pruned)?;
        }
        let left: Vec<CheckpointState> = states.iter().filter(stays).cloned().collect();
        count_needed(store, job, &left, &mut pruned);
        return Ok(pruned);
    }
    // The oldest first, so that what is left after an interruption is the newest.
    doomed.iter().for_each(|state| remembered.forget(&state.id));
    for state in doomed.iter().rev() {
        if remove_manifests(store, job, &state.id, &mut pruned)? || !state.is_pruned {
            pruned.checkpoints.push(state.id.clone());
        }
    }
    // Looked up again: what is referred to by a manifest that is still there, whole checkpoint or not.
    let left = list_remembering(store, job, remembered)?;
    if is_blocked(&left, options, &mut pruned) {
        return Ok(pruned);
    }
    let needed: Vec<ContainerRef> = left.iter().flat_map(|state| state.references.clone()).collect();
    for state in doomed.iter().rev() {
        remove_rest(store, job, &state.id, &needed, &mut pruned)?;
    }
    remove_left_over(store, job, options, (&left, remembered), &mut pruned)?;
    if options.repack_below_percent > 0 {
        repack_needed(store, job, (&left, remembered), options.repack_below_percent, &mut pruned);
    }
    count_needed(store, job, &left, &mut pruned);
    Ok(pruned)
}

/// Makes containers smaller of which little is needed. What fails costs space, and nothing else.
fn repack_needed(
    store: &dyn Store,
    job: &JobId,
    (states, remembered): (&[CheckpointState], &Remembered),
    percent: u32,
    pruned: &mut Pruned,
) {
    // Nobody writes a group of a checkpoint that has them all.
    let may_be_written = |id: &CheckpointId| !remembered.knows(id);
    match repack(store, job, states, &held_for_others(pruned), percent, &may_be_written) {
        Ok(repacked) => {
            for one in &repacked {
                pruned.freed_bytes += StoredBytes(one.before.0.saturating_sub(one.after.0));
                let is_it =
                    |needed: &&mut StillNeeded| (&needed.checkpoint, needed.group) == (&one.checkpoint, one.group);
                pruned.still_needed.iter_mut().filter(is_it).for_each(|needed| needed.bytes = one.after);
            }
            pruned.repacked = repacked;
        }
        Err(error) => pruned.not_repacked = Some(error.to_string()),
    }
}

fn held_for_others(pruned: &Pruned) -> BTreeSet<(CheckpointId, GroupId)> {
    pruned.still_needed.iter().map(|needed| (needed.checkpoint.clone(), needed.group)).collect()
}

fn count_needed(store: &dyn Store, job: &JobId, states: &[CheckpointState], pruned: &mut Pruned) {
    if pruned.still_needed.is_empty() {
        return;
    }
    let bytes = needed_bytes(store, job, states, &held_for_others(pruned));
    for needed in &mut pruned.still_needed {
        needed.needed_bytes = bytes.get(&(needed.checkpoint.clone(), needed.group)).copied();
    }
}

/// A right to prune a job that one process has at a time, as far as the store has locks.
pub struct PruneLock(#[expect(dead_code, reason = "it is only held")] Box<dyn TempFile>);

/// Takes the right to prune a job; `None` where another process has it. Fails where the store takes no file.
pub fn lock(store: &dyn Store, job: &JobId) -> Result<Option<PruneLock>, StoreError> {
    let dir = &Path::new(job.as_str()).join(LOCK_DIRECTORY);
    store.create_dir(dir)?;
    let ours = store.create_temp(dir, LOCK)?;
    let prefix = format!(".{LOCK}.");
    let is_other = |name: &str| name.starts_with(&prefix) && ours.path().file_name().is_none_or(|ours| ours != name);
    // Of two that come at once both may give way; the next commit comes soon.
    let is_taken =
        store.list_dir(dir)?.iter().any(|entry| is_other(&entry.name) && store.is_held(&dir.join(&entry.name)));
    Ok((!is_taken).then_some(PruneLock(ours)))
}

/// Whether something cannot be read that would have to be known.
fn is_blocked(states: &[CheckpointState], options: &PruneOptions, pruned: &mut Pruned) -> bool {
    let blocks = |state: &&CheckpointState| state.is_unreadable && !options.drop.contains(&state.id);
    let blocking = states.iter().filter(blocks);
    let unreadable =
        |state: &CheckpointState| Unreadable { checkpoint: state.id.clone(), problems: state.problems.clone() };
    pruned.unreadable = blocking.map(unreadable).collect();
    !pruned.unreadable.is_empty()
}

/// Whether a process that lives holds a file of it, as far as the store can tell.
fn is_being_written(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    let dir = checkpoint_dir(job, id);
    store.list_dir(&dir).is_ok_and(|entries| entries.iter().any(|entry| store.is_held(&dir.join(&entry.name))))
}

/// Which checkpoints go. `states` are newest first, and so is what is returned.
fn doomed<'a>(
    states: &'a [CheckpointState],
    options: &PruneOptions,
    too_often: Option<&CheckpointId>,
) -> Vec<&'a CheckpointState> {
    let gone = match options.keep.is_empty() {
        true => Vec::new(),
        false => options.keep.gone(states, too_often),
    };
    let newest = states.iter().find(|state| state.condition() == Condition::Complete);
    let is_before_newest = |state: &CheckpointState| match (state.place, newest) {
        (_, None) => false,
        // No manifest of it can be read, so only its name tells.
        (None, Some(newest)) => {
            natural_cmp(state.id.as_str().as_bytes(), newest.id.as_str().as_bytes()) == Ordering::Less
        }
        (place, Some(newest)) => place < newest.place,
    };
    let goes = |state: &CheckpointState| match state.condition() {
        _ if options.drop.contains(&state.id) => true,
        Condition::Complete | Condition::Bad => gone.contains(&state.id),
        Condition::Pruned => true,
        Condition::Incomplete | Condition::Damaged | Condition::Dead => options.incomplete && is_before_newest(state),
        Condition::Unreadable => false,
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
    let entries = match store.list_dir(&dir) {
        Err(error) if error.is_not_found() => return Ok(false), // removed by another one meanwhile
        other => other?,
    };
    let mut manifests: Vec<&Entry> =
        entries.iter().filter(|e| !e.is_dir && group_of_manifest(&e.name).is_some()).collect();
    let any = !manifests.is_empty();
    if !entries.iter().any(|entry| entry.name == PRUNED) {
        // The mark tells the next prune, should this one be interrupted, that what is left was not just being written. It
        // is made of what goes anyway.
        let of_dead = || entries.iter().find(|entry| !entry.is_dir && !visible(&entry.name));
        if let Some(becomes) = manifests.pop().or_else(of_dead) {
            store.rename(&dir.join(&becomes.name), &dir.join(PRUNED))?;
            store.sync_dir(&dir)?;
        }
    }
    let removed = !manifests.is_empty();
    for entry in manifests {
        remove(store, &dir.join(&entry.name), pruned)?;
    }
    if removed {
        store.sync_dir(&dir)?;
    }
    Ok(any)
}

/// The groups of a checkpoint whose containers others need.
fn needed_groups(needed: &[ContainerRef], id: &CheckpointId) -> Vec<GroupId> {
    needed.iter().filter(|r| r.checkpoint == *id).map(|r| r.group).collect()
}

fn remove_rest(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    needed: &[ContainerRef],
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    let needed = needed_groups(needed, id);
    let entries = match store.list_dir(&dir) {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other?,
    };
    let mut is_empty = true;
    for entry in &entries {
        let group = needed.iter().find(|group| container_name(**group) == entry.name);
        if let Some(group) = group {
            let bytes = StoredBytes(store.stat(&dir.join(&entry.name)).map_or(0, |stat| stat.bytes));
            pruned.still_needed.push(StillNeeded { checkpoint: id.clone(), group: *group, bytes, needed_bytes: None });
        }
        // A manifest that came since is of a writer that took the name anew.
        if group.is_some() || entry.is_dir || group_of_manifest(&entry.name).is_some() {
            is_empty = false;
        } else if entry.name != PRUNED {
            remove(store, &dir.join(&entry.name), pruned)?;
        }
    }
    let mark = dir.join(PRUNED);
    if is_empty {
        // The mark goes last: until then the next prune knows what this is.
        store.sync_dir(&dir)?;
        if entries.iter().any(|entry| entry.name == PRUNED) {
            remove(store, &mark, pruned)?;
        }
        store.remove_dir(&dir)?;
        store.sync_dir(Path::new(job.as_str()))?;
    } else if !entries.iter().any(|entry| entry.name == PRUNED) || store.stat(&mark).is_ok_and(|mark| mark.bytes > 0) {
        // An empty mark in place of what was a manifest. By now there is room; where there is none, the other one stays.
        shrink_mark(store, &dir, pruned);
    }
    Ok(())
}

fn shrink_mark(store: &dyn Store, dir: &Path, pruned: &mut Pruned) {
    let bytes = store.stat(&dir.join(PRUNED)).map_or(0, |mark| mark.bytes);
    let empty = store.create_temp(dir, PRUNED).and_then(|mark| store.rename(mark.path(), &dir.join(PRUNED)));
    if empty.and_then(|()| store.sync_dir(dir)).is_ok() {
        pruned.freed_bytes += StoredBytes(bytes);
    }
}

/// What would be removed of a checkpoint, and what would stay.
fn count_rest(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    needed: &[ContainerRef],
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    let needed = needed_groups(needed, id);
    for entry in store.list_dir(&dir)?.iter().filter(|entry| !entry.is_dir) {
        let bytes = StoredBytes(store.stat(&dir.join(&entry.name)).map_or(0, |stat| stat.bytes));
        match needed.iter().find(|group| container_name(**group) == entry.name) {
            Some(group) => pruned.still_needed.push(StillNeeded {
                checkpoint: id.clone(),
                group: *group,
                bytes,
                needed_bytes: None,
            }),
            None => pruned.freed_bytes += bytes,
        }
    }
    Ok(())
}

/// Removes directories in which nothing was ever finished, and temporary files of writers that are dead.
fn remove_left_over(
    store: &dyn Store,
    job: &JobId,
    options: &PruneOptions,
    (states, remembered): (&[CheckpointState], &Remembered),
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let root = Path::new(job.as_str());
    let lock_dir = root.join(LOCK_DIRECTORY);
    let is_dead = |path: &Path| {
        let now_ms = i64::try_from(options.now_unix_ms).unwrap_or(i64::MAX);
        let modified = store.stat(path).ok().and_then(|stat| stat.modified_unix_ms);
        let is_old = modified.is_some_and(|ms| now_ms.saturating_sub(ms) >= DEAD_TEMP_AGE_MS);
        is_old && !store.is_held(path)
    };
    let looked_at = |state: &&CheckpointState| !remembered.knows(&state.id) && !options.in_flight.contains(&state.id);
    let dirs = states.iter().filter(looked_at).map(|state| checkpoint_dir(job, &state.id));
    let root_too = remembered.is_off().then(|| root.to_path_buf());
    for dir in dirs.chain(root_too).chain([lock_dir.clone()]) {
        let entries = match store.list_dir(&dir) {
            Err(error) if error.is_not_found() => continue,
            other => other?,
        };
        let mut left = 0;
        for entry in entries.iter().filter(|entry| !entry.is_dir && !visible(&entry.name)) {
            let path = dir.join(&entry.name);
            if is_dead(&path) {
                remove(store, &path, pruned)?;
                pruned.left_over += 1;
            } else {
                left += 1;
            }
        }
        // A writer that has just made the directory makes it again. One that has put a file there by now keeps it.
        if dir != root && left == 0 && is_abandoned(&entries) && store.remove_dir(&dir).is_ok() {
            pruned.left_over += u64::from(dir != lock_dir);
        }
    }
    Ok(())
}

fn remove(store: &dyn Store, path: &Path, pruned: &mut Pruned) -> Result<(), StoreError> {
    // A file of which nothing is known goes all the same; only its length is not counted.
    let bytes = store.stat(path).map_or(0, |stat| stat.bytes);
    store.remove_file(path)?;
    pruned.freed_bytes += StoredBytes(bytes);
    Ok(())
}
