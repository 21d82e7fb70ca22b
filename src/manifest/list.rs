//! Lists the jobs of a store and the checkpoints of a job.

use super::files::FileTotals;
use super::format::{Manifest, Place, group_of_manifest, manifest_name, manifest_path, read_head, read_manifest};
use super::state::CheckpointState;
use crate::container::{checkpoint_dir, container_path};
use crate::error::{ReadError, StoreError};
use crate::ids::{CheckpointId, GroupId, JobId, natural_cmp};
use crate::incarnation::{self, Incarnations};
use crate::remembered::Remembered;
use crate::store::{Store, visible};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Maximum number of checkpoints in which [`foreign_job`] looks for a manifest.
const FOREIGN_LOOKS_MAX: usize = 8;

/// The jobs of a store, sorted by name.
pub fn jobs(store: &dyn Store) -> Result<Vec<JobId>, ReadError> {
    directories(store, Path::new(""))
}

fn directories<T: std::str::FromStr>(store: &dyn Store, dir: &Path) -> Result<Vec<T>, ReadError> {
    let entries = store.list_dir(dir).map_err(ReadError::from_store)?;
    Ok(entries.iter().filter(|e| e.is_dir && visible(&e.name)).filter_map(|e| e.name.parse().ok()).collect())
}

/// Whether the store has a directory of a checkpoint of the job, complete or not. `false` if the job does not exist.
pub fn has_checkpoints(store: &dyn Store, job: &JobId) -> Result<bool, ReadError> {
    match directories::<CheckpointId>(store, Path::new(job.as_str())) {
        Ok(ids) => Ok(!ids.is_empty()),
        Err(ReadError::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of another job whose manifests are in the directory of this job: the directory was renamed or copied.
/// `None` if the manifests name this job, or if there are no manifests that can be read. Reads at most
/// 8 manifests.
pub fn foreign_job(store: &dyn Store, job: &JobId) -> Option<String> {
    let entries = store.list_dir(Path::new(job.as_str())).ok()?;
    let ids = entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse::<CheckpointId>().ok());
    for id in ids.take(FOREIGN_LOOKS_MAX) {
        match read_manifest(store, job, &id, GroupId(0)) {
            Ok(_) => return None,
            // `found` is the place of a group: JOB/CHECKPOINT, GROUP.
            Err(ReadError::Foreign { found, .. }) => {
                let other = found.split('/').next().filter(|other| *other != job.as_str());
                if let Some(other) = other {
                    return Some(other.to_owned());
                }
            }
            Err(_) => {}
        }
    }
    None
}

/// The checkpoints of a job, newest first, complete or not. The list is empty if the job does not exist. If no manifest
/// of a damaged or unreadable checkpoint can be read, only the checkpoints before it are known to be newer, and those
/// after it may be older or newer.
pub fn list(store: &dyn Store, job: &JobId) -> Result<Vec<CheckpointState>, ReadError> {
    list_remembering(store, job, &mut Remembered::nothing())
}

/// Lists checkpoints like [`list`], but does not read the manifests of remembered checkpoints again.
pub fn list_remembering(
    store: &dyn Store,
    job: &JobId,
    remembered: &mut Remembered,
) -> Result<Vec<CheckpointState>, ReadError> {
    Ok(list_judged(store, job, remembered)?.0)
}

/// Lists checkpoints like [`list`], together with the records that decided which of them are dead or set aside. A
/// restart of another node may write a record at any time, so records that are read separately may contradict the
/// list.
pub fn list_with_records(store: &dyn Store, job: &JobId) -> Result<(Vec<CheckpointState>, Incarnations), ReadError> {
    list_judged(store, job, &mut Remembered::nothing())
}

fn list_judged(
    store: &dyn Store,
    job: &JobId,
    remembered: &mut Remembered,
) -> Result<(Vec<CheckpointState>, Incarnations), ReadError> {
    let mut ids: Vec<CheckpointId> = match directories(store, Path::new(job.as_str())) {
        Err(ReadError::Missing { .. }) => Vec::new(),
        other => other?,
    };
    ids.sort_unstable();
    let incarnations = Incarnations::load(store, job)?;
    let line = incarnations.line();
    let mut states = crate::looking::look_at_all(store, job, ids, remembered)?;
    for state in &mut states {
        if let Some(place) = state.place {
            state.judge(place, incarnations.ended_by(place.incarnation), &line);
        }
    }
    let by_name =
        |a: &CheckpointState, b: &CheckpointState| natural_cmp(a.id.as_str().as_bytes(), b.id.as_str().as_bytes());
    states.sort_by(|a, b| b.place.cmp(&a.place).then_with(|| by_name(b, a)));
    let is_placed = |s: &CheckpointState| s.place.is_some() || !(s.is_damaged || s.is_unreadable);
    let (mut placed, unplaced): (Vec<_>, Vec<_>) = states.into_iter().partition(is_placed);
    for state in unplaced {
        let at = match written_before(store, job, &state.id) {
            Some(time) => placed.iter().position(|other| other.place.is_some() && !is_newer(store, job, other, time)),
            None => placed.iter().position(|other| by_name(other, &state).is_lt()),
        };
        placed.insert(at.unwrap_or(placed.len()), state);
    }
    Ok((placed, incarnations))
}

/// A time by which all groups of a checkpoint were written, for a checkpoint without a readable manifest. Both the
/// directory and the containers show such a time, and damage may have changed one of the two. `None` if the store knows
/// no times.
///
/// The name of such a checkpoint does not show its place: `heat_1` may be newer than `min_2`, and a restarted
/// application may write `step_9` after `step_10`.
fn written_before(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<i64> {
    let dir = checkpoint_dir(job, id);
    let of_dir = modified_unix_ms(store, &dir)?;
    let entries = store.list_dir(&dir).unwrap_or_default();
    let groups = entries.iter().filter_map(|entry| group_of_manifest(&entry.name));
    let containers: Option<Vec<i64>> =
        groups.map(|group| modified_unix_ms(store, &container_path(job, id, group))).collect();
    Some(containers.and_then(|times| times.into_iter().max()).map_or(of_dir, |of_containers| of_containers.min(of_dir)))
}

/// Whether a checkpoint was certainly committed after this time of the store. The manifests of a copied store may be
/// newer than the commit, and the clock of the node that wrote the manifests may be wrong. Therefore both times count.
fn is_newer(store: &dyn Store, job: &JobId, state: &CheckpointState, time: i64) -> bool {
    let manifests = (0..state.groups).map(|group| manifest_path(job, &state.id, GroupId(group)));
    let mut written = manifests.filter_map(|path| modified_unix_ms(store, &path)).peekable();
    i64::try_from(state.created_unix_ms).is_ok_and(|created| created > time)
        && written.peek().is_some()
        && written.all(|written| written > time)
}

fn modified_unix_ms(store: &dyn Store, path: &Path) -> Option<i64> {
    store.stat(path).ok()?.modified_unix_ms
}

/// The complete checkpoints of a job, newest first. Checkpoints that a newer incarnation set aside come last. The
/// list includes checkpoints that are marked as bad or doubtful.
pub fn newest_restorable(
    store: &dyn Store,
    job: &JobId,
) -> Result<impl Iterator<Item = CheckpointState> + use<>, ReadError> {
    let (aside, line): (Vec<_>, Vec<_>) =
        list(store, job)?.into_iter().filter(CheckpointState::is_complete).partition(|state| state.is_set_aside);
    Ok(line.into_iter().chain(aside))
}

/// The checkpoints that have a group that is not committed, and that may become newer than `from`. `known` are the
/// states that were read earlier. A checkpoint that is complete or unfinished in `known` is not examined again.
///
/// The groups that are not committed may have newer files than the committed groups, for example because the clocks of
/// two nodes differ. So all unfinished checkpoints of the incarnation of `from` are reported, and of later
/// incarnations.
///
/// A process that begins an incarnation calls this function directly before it writes the record. A writer may still
/// commit a group after the record is written. Such a writer already has a temporary file in the directory of the
/// checkpoint, so this function reports the checkpoint as unfinished.
pub fn unfinished(
    store: &dyn Store,
    job: &JobId,
    known: &[CheckpointState],
    from: Option<Place>,
) -> Result<Vec<CheckpointId>, ReadError> {
    let ids: Vec<CheckpointId> = match directories(store, Path::new(job.as_str())) {
        Err(ReadError::Missing { .. }) => Vec::new(),
        other => other?,
    };
    let known: HashMap<&CheckpointId, &CheckpointState> = known.iter().map(|state| (&state.id, state)).collect();
    let goes = |state: &CheckpointState| {
        let is_of_earlier = |place: Place| from.is_some_and(|from| place.incarnation < from.incarnation);
        state.is_unfinished && !state.is_pruned && !state.place.is_some_and(is_of_earlier)
    };
    let mut unfinished = Vec::new();
    for id in ids {
        let is_it = match known.get(&id) {
            Some(state) if state.is_complete() || state.is_pruned || state.is_unfinished => goes(state),
            _ => match crate::looking::look_at(store, job, &id) {
                Err(ReadError::Missing { .. }) => false,
                state => goes(&state?),
            },
        };
        if is_it {
            unfinished.push(id);
        }
    }
    Ok(unfinished)
}

/// The manifest of this group in the checkpoint that the application wrote last. The checkpoint `except` is ignored.
/// Reads one manifest of each checkpoint.
pub fn newest_of_group(
    store: &dyn Store,
    job: &JobId,
    group: GroupId,
    except: Option<&CheckpointId>,
) -> Result<Option<Manifest>, ReadError> {
    let mut ids: Vec<CheckpointId> = match directories(store, Path::new(job.as_str())) {
        Err(ReadError::Missing { .. }) => Vec::new(),
        other => other?,
    };
    ids.retain(|id| Some(id) != except);
    // A manifest that cannot be read is skipped.
    let place = |id: &CheckpointId| Ok(read_head(store, job, id, group).ok().map(|head| (head.place(), id.clone())));
    let mut places: Vec<(Place, CheckpointId)> =
        crate::looking::side_by_side(&ids, place)?.into_iter().flatten().collect();
    let order = |(a, a_id): &(Place, CheckpointId), (b, b_id): &(Place, CheckpointId)| {
        a.cmp(b).then_with(|| natural_cmp(a_id.as_str().as_bytes(), b_id.as_str().as_bytes()))
    };
    while let Some((newest, _)) = places.iter().enumerate().max_by(|(_, a), (_, b)| order(a, b)) {
        let (_, id) = places.swap_remove(newest);
        // If the checkpoint was removed in the meantime, the next older checkpoint is the newest.
        if let Ok(manifest) = read_manifest(store, job, &id, group) {
            return Ok(Some(manifest));
        }
    }
    Ok(None)
}

/// Whether a checkpoint of `groups` groups has a manifest of each group. Lists one directory, and reads no manifest.
/// A checkpoint that lacks a manifest is not complete.
pub fn has_all_manifests(store: &dyn Store, job: &JobId, id: &CheckpointId, groups: u32) -> Result<bool, StoreError> {
    let names: HashSet<String> =
        store.list_dir(&checkpoint_dir(job, id))?.into_iter().map(|entry| entry.name).collect();
    Ok((0..groups).all(|group| names.contains(&manifest_name(GroupId(group)))))
}

/// The state of one checkpoint. The function examines the directory of the checkpoint, and the containers to which
/// the checkpoint refers.
pub fn state(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<CheckpointState, ReadError> {
    state_of_each(store, job, id, &mut |_| ())
}

/// Reads the state of one checkpoint like [`state`], and calls `each` for each manifest that can be read.
pub(super) fn state_of_each(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    each: &mut dyn FnMut(&Manifest<FileTotals>),
) -> Result<CheckpointState, ReadError> {
    let mut state = crate::looking::look_at_each(store, job, id, each)?;
    if let Some(place) = state.place {
        let has_next = incarnation::newest_number(store, job)? > place.incarnation;
        let all = if has_next { Incarnations::load(store, job)? } else { Incarnations::default() };
        state.judge(place, all.ended_by(place.incarnation), &all.line());
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::unknown_state;
    use crate::store::{MemoryStore, create_dirs};

    #[test]
    fn an_unfinished_checkpoint_whose_committed_group_is_older_may_become_newer() {
        let (store, job) = (MemoryStore::new(), "job".parse::<JobId>().expect("valid"));
        create_dirs(&store, Path::new("job/it_2")).expect("made");
        let at = |incarnation, written_unix_ms| Place { incarnation, written_unix_ms };
        let unfinished_at = |place: Place| {
            let mut state = unknown_state(&"it_2".parse().expect("valid"));
            (state.is_unfinished, state.place) = (true, Some(place));
            state.problems.push("group 1 of 2 is not committed".into());
            unfinished(&store, &job, &[state], Some(at(7, 2000))).expect("listed").len()
        };
        assert_eq!([at(7, 2500), at(7, 1500), at(6, 2500)].map(unfinished_at), [1, 1, 0]);
    }
}
