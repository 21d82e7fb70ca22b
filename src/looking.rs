//! Examines a checkpoint: its directory, its manifests and the containers that they name.
//!
//! Three cases are distinguished. In the first case, a file is missing, cut or changed: the checkpoint is damaged. In
//! the second case, a file cannot be read at present, because of an I/O error, a missing permission, or the format of
//! a newer build. Then the checkpoint is not damaged but unreadable, and prune keeps the checkpoint. In the third
//! case, prune is emptying the directory of the checkpoint at this moment. Then the directory is examined again.

pub(crate) mod look;

use crate::container::{ReadError, checkpoint_dir, container_name, container_path};
use crate::error_chain::error_chain;
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::manifest::{
    About, CheckpointState, FileTotals, Manifest, PRUNED, SPOILED, group_of_manifest, manifest_name, manifest_path,
    missing_groups, read_head, spoiled, unknown_state,
};
use crate::marks::{BAD, CERTAIN, DAMAGED, DOUBTFUL, bad, damaged, doubt};
use crate::remembered::Remembered;
use crate::store::{Advice, Entry, Store};
use look::{Found, Look};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Waits between the attempts to read a file, if reading fails with an I/O error.
const RETRY_WAITS_MS: [u64; 3] = [20, 80, 200];
/// Maximum total time of these waits, so that an unreachable store does not block the program for long.
const PATIENCE_MS: u64 = 1500;
/// Maximum number of checkpoints that are examined at the same time. Several threads are used because a parallel file
/// system answers several requests at once.
const THREADS_MAX: usize = 8;
/// Minimum number of checkpoints for which several threads are used.
const THREADED_MIN_CHECKPOINTS: usize = 64;

/// The time that may still be spent on waiting.
pub(crate) struct Patience {
    left_ms: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left_ms: AtomicU64::new(PATIENCE_MS) }
    }
}

impl Patience {
    /// Calls `read`. Waits and calls `read` again if the error may be temporary.
    pub(crate) fn retry<T>(&self, mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, ReadError> {
        for wait_ms in RETRY_WAITS_MS {
            match read() {
                Err(error) if may_pass(&error) => {
                    let take = |left: u64| left.checked_sub(wait_ms);
                    if self.left_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                        return Err(error);
                    }
                    std::thread::sleep(Duration::from_millis(wait_ms));
                }
                other => return other,
            }
        }
        read()
    }
}

/// Whether the same operation may succeed a moment later.
fn may_pass(error: &ReadError) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory};
    let ReadError::Io { source, .. } = error else { return false };
    error.advice() == Advice::Retry && !matches!(source.kind(), IsADirectory | NotADirectory)
}

/// Whether an error means damage. Other errors mean that the file cannot be read at present.
fn is_damage(error: &ReadError) -> bool {
    error.advice() == Advice::OlderCheckpoint
}

/// Examines one checkpoint and the containers to which the checkpoint refers.
pub(crate) fn look_at(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<CheckpointState, ReadError> {
    look_at_each(store, job, id, &mut |_| ())
}

/// Examines one checkpoint like [`look_at`], and calls `each` for each manifest that can be read.
pub(crate) fn look_at_each(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    each: &mut dyn FnMut(&Manifest<FileTotals>),
) -> Result<CheckpointState, ReadError> {
    let patience = Patience::default();
    let mut look = look_inside(store, job, id, &patience, each)?;
    for (older, group, bytes) in std::mem::take(&mut look.needs) {
        check_need(store, job, &mut look.state, Need { older: &older, group, bytes }, None, &patience);
    }
    Ok(again_if_pruned(store, job, look.state, &patience))
}

/// Examines several checkpoints of a job. The result has the order of `ids`. Checkpoints that were removed in the
/// meantime are left out. Remembered checkpoints are not examined again.
pub(crate) fn look_at_all(
    store: &dyn Store,
    job: &JobId,
    ids: Vec<CheckpointId>,
    remembered: &mut Remembered,
) -> Result<Vec<CheckpointState>, ReadError> {
    let patience = Patience::default();
    remembered.keep_only(&ids);
    let unknown: Vec<CheckpointId> = ids.iter().filter(|id| remembered.get(id).is_none()).cloned().collect();
    let mut looks = side_by_side(&unknown, |id| look_inside(store, job, id, &patience, &mut |_| ()))?;
    looks.sort_by(|a, b| a.state.id.cmp(&b.state.id));
    let place = |looks: &[Look], id: &CheckpointId| looks.binary_search_by(|look| look.state.id.cmp(id)).ok();
    for at in 0..looks.len() {
        for (older, group, bytes) in std::mem::take(&mut looks[at].needs) {
            let look = remembered.get(&older).or_else(|| place(&looks, &older).map(|at| &looks[at]));
            let found = look.and_then(|look| look.container(group));
            check_need(store, job, &mut looks[at].state, Need { older: &older, group, bytes }, found, &patience);
        }
    }
    let mut states = HashMap::with_capacity(looks.len());
    for mut look in looks {
        look.state = again_if_pruned(store, job, look.state, &patience);
        states.insert(look.state.id.clone(), look.state.clone());
        remembered.put(look);
    }
    let known = |id: &CheckpointId| remembered.get(id).map(|look| look.state.clone());
    Ok(ids.iter().filter_map(|id| states.remove(id).or_else(|| known(id))).collect())
}

/// Calls `look` for each checkpoint. Many checkpoints are examined on several threads. A missing checkpoint is left
/// out. Any other error is returned.
pub(crate) fn side_by_side<T: Send>(
    ids: &[CheckpointId],
    look: impl Fn(&CheckpointId) -> Result<T, ReadError> + Sync,
) -> Result<Vec<T>, ReadError> {
    let threads = match ids.len() {
        0..THREADED_MIN_CHECKPOINTS => 1,
        _ => crate::codec::cores().clamp(2, THREADS_MAX),
    };
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Result<T, ReadError>)>> = Mutex::new(Vec::with_capacity(ids.len()));
    let work = || {
        let mut mine = Vec::new();
        while let n = next.fetch_add(1, Ordering::Relaxed)
            && let Some(id) = ids.get(n)
        {
            mine.push((n, look(id)));
        }
        found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut mine);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no other thread can be started, this thread does all the work.
            let _ = std::thread::Builder::new().name("list".into()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable_by_key(|(n, _)| *n);
    let is_there = |look: &Result<T, ReadError>| !matches!(look, Err(ReadError::Missing { .. }));
    found.into_iter().map(|(_, look)| look).filter(is_there).collect()
}

/// Examines the directory of a checkpoint, and the containers in this directory. Calls `each` for each manifest that
/// can be read. Fails only if the directory does not exist.
fn look_inside(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    patience: &Patience,
    each: &mut dyn FnMut(&Manifest<FileTotals>),
) -> Result<Look, ReadError> {
    let dir = checkpoint_dir(job, id);
    let mut look = Look { state: unknown_state(id), containers: Vec::new(), needs: Vec::new() };
    let (found, mut containers) = (&mut look.state, HashMap::new());
    let entries = match patience.retry(|| store.list_dir(&dir).map_err(ReadError::from_store)) {
        Ok(entries) => entries,
        Err(error @ ReadError::Missing { .. }) => return Err(error),
        Err(error) => {
            found.cannot_be_read(&error);
            return Ok(look);
        }
    };
    let has = |mark: &str| entries.iter().any(|entry| entry.name == mark);
    found.is_pruned = has(PRUNED);
    if has(BAD) {
        found.bad = bad(store, job, id);
    }
    if has(DAMAGED) {
        found.found_damaged = damaged(store, job, id);
    }
    if has(DOUBTFUL) {
        found.doubt = doubt(store, job, id);
    }
    for group in entries.iter().filter(|entry| !entry.is_dir).filter_map(|entry| group_of_container(&entry.name)) {
        containers.insert(group, Found::Named);
    }
    let mut there: Vec<u32> = Vec::new();
    for group in entries.iter().filter_map(|entry| group_of_manifest(&entry.name)) {
        let manifest = match patience.retry(|| read_head(store, job, id, group)) {
            Err(ReadError::Missing { .. }) => continue, // the file was removed in the meantime
            Err(error) if is_damage(&error) => {
                found.is_damaged = true;
                found.problems.push(error_chain(&error));
                continue;
            }
            Err(error) => {
                found.cannot_be_read(&error);
                continue;
            }
            Ok(mut manifest) => {
                manifest.doubt = manifest.doubt.filter(|doubt| !has(CERTAIN) || doubt.about != About::Step);
                manifest
            }
        };
        each(&manifest);
        let path = container_path(job, id, group);
        match patience.retry(|| store.stat(&path).map_err(ReadError::from_store)) {
            Ok(stat) if !stat.is_dir && stat.bytes == manifest.container.bytes => {
                containers.insert(group, Found::There(stat.bytes));
            }
            Ok(stat) => {
                containers.insert(group, Found::WrongLength(stat.bytes));
                found.is_damaged = true;
                found.problems.push(format!(
                    "{} has {} bytes, but its manifest states {}",
                    store.root().join(&path).display(),
                    stat.bytes,
                    manifest.container.bytes
                ));
            }
            Err(ReadError::Missing { .. }) => {
                containers.remove(&group);
                found.is_damaged = true;
                found.problems.push(format!(
                    "{} does not exist, but {} names it",
                    store.root().join(&path).display(),
                    manifest_name(group)
                ));
            }
            Err(error) => found.cannot_be_read(&error),
        }
        for (n, older) in manifest.references.iter().enumerate() {
            let bytes = manifest.referred.get(n).map_or(0, |referred| referred.bytes);
            look.needs.push((older.checkpoint.clone(), older.group, bytes));
        }
        if there.is_empty() || found.agrees(&manifest) {
            there.push(group.0);
            found.add(manifest);
        } else {
            found.place = found.place.max(Some(manifest.place()));
            found.references.extend(manifest.references);
            found.problems.push(format!(
                "{} states another incarnation, or other numbers of ranks and groups, than the manifests before it",
                dir.join(manifest_name(group)).display()
            ));
        }
    }
    if has(SPOILED) {
        found.problems.push(spoiled(store, &dir));
    }
    there.sort_unstable();
    if let Some(missing) = missing_groups(&there, found.groups) {
        found.problems.push(missing);
    }
    found.is_unfinished = shows_unfinished_group(&entries, found.groups);
    found.references.sort_by(|a, b| (&a.checkpoint, a.group).cmp(&(&b.checkpoint, b.group)));
    found.references.dedup();
    look.containers = containers.into_iter().collect();
    look.needs.sort();
    look.needs.dedup();
    Ok(look)
}

/// Whether the names in the directory of a checkpoint show that one of its groups was not committed. `groups` is 0 if
/// the number of groups is not known.
///
/// A writer has a temporary file in the directory from the first byte that it writes until its manifest is committed.
/// Therefore a container without a manifest and without a temporary file was committed, and its manifest is missing
/// now.
fn shows_unfinished_group(entries: &[Entry], groups: u32) -> bool {
    let group = |name: &str| group_of_manifest(name).or_else(|| group_of_container(name));
    let manifests: BTreeSet<GroupId> = entries.iter().filter_map(|entry| group_of_manifest(&entry.name)).collect();
    let traces: BTreeSet<GroupId> = entries.iter().filter_map(|entry| group(&entry.name)).collect();
    let of_writer = |entry: &Entry| group(entry.name.strip_prefix('.')?.rsplit_once('.')?.0);
    let is_being_written = entries.iter().filter_map(of_writer).any(|group| !manifests.contains(&group));
    is_being_written || (0..groups).any(|group| !traces.contains(&GroupId(group)))
}

/// A container of an older checkpoint to which a checkpoint refers, and the recorded length of the container.
#[derive(Clone, Copy)]
struct Need<'a> {
    older: &'a CheckpointId,
    group: GroupId,
    bytes: u64,
}

/// Checks a container to which a checkpoint refers, and records a missing or damaged container in `state`. `found` is
/// the container as the directory of the older checkpoint shows it, if this directory was examined.
fn check_need(
    store: &dyn Store,
    job: &JobId,
    state: &mut CheckpointState,
    need: Need<'_>,
    found: Option<Found>,
    patience: &Patience,
) {
    let Need { older, group, bytes: recorded } = need;
    let path = container_path(job, older, group);
    let bytes = match found {
        Some(Found::There(bytes) | Found::WrongLength(bytes)) => bytes,
        Some(Found::Named) if recorded == 0 => return,
        // The length of the container is not known, or the container was missing. A missing container may have been
        // written in the meantime.
        Some(Found::Named) | None => match patience.retry(|| store.stat(&path).map_err(ReadError::from_store)) {
            Ok(stat) => stat.bytes,
            Err(ReadError::Missing { .. }) => {
                let path = store.root().join(path);
                state.is_damaged = true;
                state.problems.push(format!("{} does not exist, but {} refers to it", path.display(), state.id));
                return;
            }
            Err(error) => return state.cannot_be_read(&error),
        },
    };
    let is_wrong = match (recorded, found) {
        (0, found) => matches!(found, Some(Found::WrongLength(_))),
        // The length may differ from the recorded length because prune repacked the container.
        (recorded, _) if recorded == bytes => false,
        _ => match crate::repack::is_repacked(store, &path, bytes) {
            Ok(is_repacked) => !is_repacked,
            Err(error) if is_damage(&error) => true,
            Err(error) => return state.cannot_be_read(&error),
        },
    };
    if is_wrong {
        let path = store.root().join(path);
        state.is_damaged = true;
        state.problems.push(match recorded {
            0 => format!(
                "{} does not have the length that its manifest states, and {} refers to it",
                path.display(),
                state.id
            ),
            _ => {
                format!("{} has {bytes} bytes, but {}, which refers to it, states {recorded}", path.display(), state.id)
            }
        });
    }
}

/// If containers of a checkpoint are missing, prune may be removing the checkpoint at this moment. If manifests of
/// the checkpoint are missing too, the checkpoint is examined again.
fn again_if_pruned(store: &dyn Store, job: &JobId, state: CheckpointState, patience: &Patience) -> CheckpointState {
    let is_gone =
        |group: u32| store.stat(&manifest_path(job, &state.id, GroupId(group))).is_err_and(|e| e.is_not_found());
    if !state.is_damaged || state.is_pruned || state.groups == 0 || !(0..state.groups.min(1024)).any(is_gone) {
        return state;
    }
    match look_inside(store, job, &state.id, patience, &mut |_| ()) {
        Ok(look) if look.state.groups == 0 || look.state.is_pruned => look.state,
        _ => state,
    }
}

impl CheckpointState {
    fn cannot_be_read(&mut self, error: &ReadError) {
        self.is_unreadable = true;
        self.problems.push(error_chain(error));
    }
}

/// The group that a container's name states. `None` if this program would spell the name differently.
pub(crate) fn group_of_container(name: &str) -> Option<GroupId> {
    let group = GroupId(name.strip_prefix("group-")?.strip_suffix(".mcr")?.parse().ok()?);
    (container_name(group) == name).then_some(group)
}

/// Whether a checkpoint's directory is empty or holds only temporary files.
pub(crate) fn is_abandoned(names: &[crate::store::Entry]) -> bool {
    names.iter().all(|entry| !entry.is_dir && !crate::store::visible(&entry.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Condition, list, state};
    use crate::store::{Fault, FaultyStore, MemoryStore, create_dirs};
    use std::path::Path;

    fn job() -> JobId {
        "j".parse().expect("valid")
    }

    #[test]
    fn what_cannot_be_read_just_now_is_unreadable_and_not_damaged_nor_incomplete() {
        let store = MemoryStore::new();
        create_dirs(&store, Path::new("j/a")).expect("made");
        store.put(Path::new("j/a/group-0000.manifest"), b"not a manifest");
        let condition = |path: &str, failures: usize| {
            let store = FaultyStore::new(store.clone(), Fault::None).with_failing_reads(path, failures);
            let states = list(&store, &job()).expect("lists");
            states[0].condition()
        };
        assert_eq!(condition("none", 0), Condition::Damaged);
        for path in ["j/a/group-0000.manifest", "j/a"] {
            assert_eq!(condition(path, usize::MAX), Condition::Unreadable, "{path}");
            assert_eq!(condition(path, RETRY_WAITS_MS.len()), Condition::Damaged, "{path}: read at the last attempt");
        }
    }

    #[test]
    fn a_store_that_is_gone_is_not_waited_for_once_for_each_checkpoint() {
        let patience = Patience::default();
        let failing = || {
            let source = io::Error::from_raw_os_error(116);
            Err::<(), _>(ReadError::Io { path: "x".into(), offset: 0, len: 0, source })
        };
        let began = std::time::Instant::now();
        (0..10_000).for_each(|_| drop(patience.retry(failing).expect_err("fails")));
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(patience.left_ms.into_inner() < RETRY_WAITS_MS[0], "the time for waiting is used up only once");
    }

    #[test]
    fn a_checkpoint_that_is_gone_is_no_state() {
        assert!(matches!(
            state(&MemoryStore::new(), &job(), &"a".parse().expect("valid")),
            Err(ReadError::Missing { .. })
        ));
    }
}
