//! Removes old checkpoints. Prune never removes a file that a kept checkpoint needs.
//!
//! The order of the steps makes a crash harmless. First prune removes the manifests of a checkpoint, durably, so that
//! the checkpoint stops existing. Then prune removes the containers of the checkpoint, except containers to which an
//! existing manifest refers. One manifest is renamed to the mark `pruned` instead of being removed. A rename needs
//! neither an inode nor a block, so a full store can be pruned.
//!
//! A checkpoint that cannot be read at present may refer to any container. While such a checkpoint exists, nothing is
//! removed, unless the options drop this checkpoint by name.

use crate::container::{ContainerRef, checkpoint_dir, container_name};
use crate::ids::{CheckpointId, GroupId, JobId, natural_cmp};
use crate::incarnation;
use crate::living;
use crate::looking::is_abandoned;
use crate::manifest::{CheckpointState, Condition, NOTE, PRUNED, group_of_manifest, list_remembering};
use crate::parity;
use crate::remembered::Remembered;
use crate::repack::{Repacked, needed_bytes, repack};
use crate::retention::Rules;
use crate::store::{Entry, Store, StoreError, TempFile, visible};
use crate::units::StoredBytes;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

/// The options of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// The rules for complete checkpoints. Without a rule, all complete checkpoints are kept.
    pub keep: Rules,
    /// Checkpoints that are removed even if a rule keeps them.
    pub drop: Vec<CheckpointId>,
    /// Whether incomplete checkpoints older than the newest complete checkpoint are removed too.
    pub incomplete: bool,
    /// Checkpoints that are being written. Prune keeps these checkpoints in every state.
    pub in_flight: Vec<CheckpointId>,
    /// Whether prune only reports which files it would remove.
    pub dry_run: bool,
    /// Checkpoints that a dry run counts as marked as bad, because the real command marks them first.
    pub as_bad: Vec<CheckpointId>,
    /// Checkpoints that a dry run counts as not marked as bad, because the real command removes the marks first.
    pub as_unmarked: Vec<CheckpointId>,
    /// A kept container of a removed checkpoint is rewritten if less than this percentage of the container is needed.
    /// 0 means never.
    pub repack_below_percent: u32,
    /// The present time, in milliseconds since 1970, to judge the age of temporary files. With 0, temporary files are
    /// kept.
    pub now_unix_ms: u64,
}

/// The default of [`PruneOptions::repack_below_percent`].
pub const REPACK_BELOW_PERCENT: u32 = 50;

/// The result of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pruned {
    /// The checkpoints that were removed, complete or not.
    pub checkpoints: Vec<CheckpointId>,
    /// Total length of the removed files.
    pub freed_bytes: StoredBytes,
    /// Containers that are kept although their checkpoint is removed, because a kept checkpoint refers to them.
    pub still_needed: Vec<StillNeeded>,
    /// Containers that were rewritten with only the bytes that are needed. In a dry run, the containers that would be
    /// rewritten; their lengths after rewriting are estimates, which `freed_bytes` includes.
    pub repacked: Vec<Repacked>,
    /// Why rewriting containers with many unneeded bytes failed; `None` if no error occurred.
    pub not_repacked: Option<String>,
    /// Number of empty directories and of temporary files of dead writers that were removed.
    pub left_over: u64,
    /// Checkpoints that cannot be read at present. If the list is not empty, prune stopped and removed no more files.
    pub unreadable: Vec<Unreadable>,
}

/// A container that is kept although its checkpoint is removed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StillNeeded {
    /// The removed checkpoint.
    pub checkpoint: CheckpointId,
    /// The group of the container.
    pub group: GroupId,
    /// Length of the container.
    pub bytes: StoredBytes,
    /// Approximate number of bytes of the container that the kept checkpoints need; `None` if the number is not
    /// known.
    pub needed_bytes: Option<StoredBytes>,
}

/// A checkpoint that cannot be read at present.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Unreadable {
    /// Name of the checkpoint.
    pub checkpoint: CheckpointId,
    /// Why the checkpoint cannot be read.
    pub problems: Vec<String>,
}

/// A temporary file that no process holds belongs to a dead writer if the file was not modified for this time. On a
/// file system without locks, only the age of the file is known.
const DEAD_TEMP_AGE_MS: i64 = 10 * 60 * 1000;
/// The name of the temporary file that a daemon holds while the daemon prunes.
const LOCK: &str = "prune";
/// The directory of the lock file, inside the job's directory. The lock file has a separate directory, because the
/// job's directory may have many entries, and listing it may take a long time.
const LOCK_DIRECTORY: &str = ".prune";

/// Removes the checkpoints that the options name.
///
/// A job should be pruned by one process at a time. If two processes prune a job at the same time, a checkpoint is
/// removed if the options of one of the processes remove the checkpoint. An interrupted prune leaves whole
/// checkpoints, and the next prune continues.
pub fn prune(store: &dyn Store, job: &JobId, options: &PruneOptions) -> Result<Pruned, StoreError> {
    prune_remembering(store, job, options, &mut Remembered::nothing())
}

/// Prunes like [`prune`], for a process that prunes after each commit. Only a few of the remembered checkpoints are
/// read again. Files of dead writers in the directory of a remembered checkpoint are removed only together with the
/// checkpoint.
pub fn prune_remembering(
    store: &dyn Store,
    job: &JobId,
    options: &PruneOptions,
    remembered: &mut Remembered,
) -> Result<Pruned, StoreError> {
    remembered.look_again();
    let mut states = list_remembering(store, job, remembered)?;
    if options.dry_run {
        for state in &mut states {
            if options.as_bad.contains(&state.id) {
                state.bad = Some(String::new());
            }
            if options.as_unmarked.contains(&state.id) {
                state.bad = None;
            }
        }
    }
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
        if options.repack_below_percent > 0 {
            repack_needed(store, job, &left, remembered, options, &mut pruned);
        }
        count_needed(store, job, &left, &mut pruned);
        return Ok(pruned);
    }
    // The oldest checkpoint is removed first, so that an interruption leaves the newest checkpoints.
    doomed.iter().for_each(|state| remembered.forget(&state.id));
    for state in doomed.iter().rev() {
        if remove_manifests(store, job, &state.id, &mut pruned)? || !state.is_pruned {
            pruned.checkpoints.push(state.id.clone());
        }
    }
    // Read the list again. A container is needed if any existing manifest refers to the container, even the manifest
    // of an incomplete checkpoint.
    let left = list_remembering(store, job, remembered)?;
    if is_blocked(&left, options, &mut pruned) {
        return Ok(pruned);
    }
    let needed: Vec<ContainerRef> = left.iter().flat_map(|state| state.references.clone()).collect();
    for state in doomed.iter().rev() {
        remove_rest(store, job, &state.id, &needed, &mut pruned)?;
    }
    remove_left_over(store, job, options, &left, remembered, &mut pruned)?;
    if options.repack_below_percent > 0 {
        repack_needed(store, job, &left, remembered, options, &mut pruned);
    }
    count_needed(store, job, &left, &mut pruned);
    Ok(pruned)
}

/// Rewrites containers of which only a small part is needed. If rewriting fails, only disk space is lost, so the
/// failure is reported and the prune continues.
fn repack_needed(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    remembered: &Remembered,
    options: &PruneOptions,
    pruned: &mut Pruned,
) {
    let percent = options.repack_below_percent;
    // No process writes a group of a checkpoint whose groups are all committed.
    let may_be_written = |id: &CheckpointId| !remembered.knows(id);
    match repack(store, job, states, &held_for_others(pruned), percent, &may_be_written, options.dry_run) {
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

/// The right to prune a job. If the store has locks, only one process has the right at a time.
pub struct PruneLock(#[expect(dead_code, reason = "it is only held")] Box<dyn TempFile>);

/// Takes the right to prune a job. Returns `None` if another process has the right. Fails if the store cannot create
/// a file.
pub fn lock(store: &dyn Store, job: &JobId) -> Result<Option<PruneLock>, StoreError> {
    let dir = &Path::new(job.as_str()).join(LOCK_DIRECTORY);
    store.create_dir(dir)?;
    let ours = store.create_temp(dir, LOCK)?;
    let prefix = format!(".{LOCK}.");
    let is_other = |name: &str| name.starts_with(&prefix) && ours.path().file_name().is_none_or(|ours| ours != name);
    // If two processes try at the same time, both may give up. The next commit will try again.
    let is_taken =
        store.list_dir(dir)?.iter().any(|entry| is_other(&entry.name) && store.is_held(&dir.join(&entry.name)));
    Ok((!is_taken).then_some(PruneLock(ours)))
}

/// Whether prune must stop, because a checkpoint cannot be read. Such a checkpoint may refer to any container.
fn is_blocked(states: &[CheckpointState], options: &PruneOptions, pruned: &mut Pruned) -> bool {
    let blocks = |state: &&CheckpointState| state.is_unreadable && !options.drop.contains(&state.id);
    let blocking = states.iter().filter(blocks);
    let unreadable =
        |state: &CheckpointState| Unreadable { checkpoint: state.id.clone(), problems: state.problems.clone() };
    pruned.unreadable = blocking.map(unreadable).collect();
    !pruned.unreadable.is_empty()
}

/// Whether a running process holds a file of the checkpoint. `false` if the store has no locks.
fn is_being_written(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    let dir = checkpoint_dir(job, id);
    store.list_dir(&dir).is_ok_and(|entries| entries.iter().any(|entry| store.is_held(&dir.join(&entry.name))))
}

/// The checkpoints to remove. `states` and the result are sorted, the newest first.
fn doomed<'a>(
    states: &'a [CheckpointState],
    options: &PruneOptions,
    too_often: Option<&CheckpointId>,
) -> Vec<&'a CheckpointState> {
    let gone = match options.keep.is_empty() {
        true => Vec::new(),
        // A checkpoint that is dropped by name does not count for the rules.
        false => {
            let others: Vec<CheckpointState> =
                states.iter().filter(|state| !options.drop.contains(&state.id)).cloned().collect();
            options.keep.gone(&others, too_often)
        }
    };
    let newest = states.iter().find(|state| state.condition() == Condition::Complete);
    let is_before_newest = |state: &CheckpointState| match (state.place, newest) {
        (_, None) => false,
        // No manifest of the checkpoint can be read. The list has the checkpoint before all that may be older.
        (None, Some(newest)) if state.is_damaged => {
            states.iter().find(|first| first.id == state.id || first.id == newest.id) == Some(newest)
        }
        // No manifest of the checkpoint was written, so its age is judged by its name.
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

/// Removes the manifests of a checkpoint. Returns whether the checkpoint had manifests.
fn remove_manifests(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    pruned: &mut Pruned,
) -> Result<bool, StoreError> {
    let dir = checkpoint_dir(job, id);
    let entries = match store.list_dir(&dir) {
        Err(error) if error.is_not_found() => return Ok(false), // another process removed the directory
        other => other?,
    };
    let mut manifests: Vec<&Entry> =
        entries.iter().filter(|e| !e.is_dir && group_of_manifest(&e.name).is_some()).collect();
    let any = !manifests.is_empty();
    if !entries.iter().any(|entry| entry.name == PRUNED) {
        // If this prune is interrupted, the mark shows the next prune that the remaining files do not belong to a
        // checkpoint that is being written. The mark is a renamed file that would be removed otherwise.
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

/// The groups of a checkpoint whose containers other checkpoints need.
fn needed_groups(needed: &[ContainerRef], id: &CheckpointId) -> Vec<GroupId> {
    needed.iter().filter(|r| r.checkpoint == *id).map(|r| r.group).collect()
}

/// Whether the name is the name of the parity of one of these groups' containers.
fn is_parity_of(groups: &[GroupId], name: &str) -> bool {
    let container = name.strip_suffix(parity::SUFFIX);
    container.is_some_and(|container| groups.iter().any(|group| container_name(*group) == container))
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
        if is_parity_of(&needed, &entry.name) {
            is_empty = false;
            continue;
        }
        let group = needed.iter().find(|group| container_name(**group) == entry.name);
        if let Some(group) = group {
            let bytes = StoredBytes(store.stat(&dir.join(&entry.name)).map_or(0, |stat| stat.bytes));
            pruned.still_needed.push(StillNeeded { checkpoint: id.clone(), group: *group, bytes, needed_bytes: None });
        }
        // A manifest that appeared in the meantime belongs to a writer that uses the name of the checkpoint again.
        if group.is_some() || entry.is_dir || group_of_manifest(&entry.name).is_some() {
            is_empty = false;
        } else if entry.name != PRUNED {
            remove(store, &dir.join(&entry.name), pruned)?;
        }
    }
    let mark = dir.join(PRUNED);
    if is_empty {
        // The mark is removed last. Until then, the mark shows the next prune that the checkpoint was pruned.
        store.sync_dir(&dir)?;
        if entries.iter().any(|entry| entry.name == PRUNED) {
            remove(store, &mark, pruned)?;
        }
        store.remove_dir(&dir)?;
        store.sync_dir(Path::new(job.as_str()))?;
    } else if !entries.iter().any(|entry| entry.name == PRUNED) || store.stat(&mark).is_ok_and(|mark| mark.bytes > 0) {
        // Replace the mark, which was a manifest, by an empty file. If the store has no room for a new file, the mark
        // is not replaced.
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

/// Counts the bytes of a checkpoint that would be removed, and lists the containers that would be kept.
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
            None if is_parity_of(&needed, &entry.name) => {}
            None => pruned.freed_bytes += bytes,
        }
    }
    Ok(())
}

/// Removes directories that hold no finished file, and temporary files of dead writers. The writer of an empty
/// directory may be alive: its disk may have been full, and it tries again later.
fn remove_left_over(
    store: &dyn Store,
    job: &JobId,
    options: &PruneOptions,
    states: &[CheckpointState],
    remembered: &Remembered,
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
    let holders = living::directory(job);
    for dir in dirs.chain(root_too).chain([lock_dir.clone(), holders.clone()]) {
        let entries = match store.list_dir(&dir) {
            Err(error) if error.is_not_found() => continue,
            other => other?,
        };
        let mut left = 0;
        for entry in entries.iter().filter(|entry| !entry.is_dir && !visible(&entry.name)) {
            let path = dir.join(&entry.name);
            // The note of a complete checkpoint stays as long as the checkpoint.
            if entry.name == NOTE && !is_abandoned(&entries) {
                continue;
            }
            if is_dead(&path) {
                remove(store, &path, pruned)?;
                pruned.left_over += 1;
            } else {
                left += 1;
            }
        }
        // If a writer has just created this directory, the writer creates it again. If the directory contains a file
        // by now, the removal fails.
        if dir != root && dir != holders && left == 0 && is_abandoned(&entries) && store.remove_dir(&dir).is_ok() {
            pruned.left_over += u64::from(dir != lock_dir);
        }
    }
    Ok(())
}

fn remove(store: &dyn Store, path: &Path, pruned: &mut Pruned) -> Result<(), StoreError> {
    // The file is removed even if its length is unknown. An unknown length is not counted.
    let bytes = store.stat(path).map_or(0, |stat| stat.bytes);
    store.remove_file(path)?;
    pruned.freed_bytes += StoredBytes(bytes);
    Ok(())
}
