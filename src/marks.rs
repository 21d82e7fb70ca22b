//! Marks on checkpoints: a small file with a reason, in the directory of the checkpoint.
//!
//! - `bad`: a person decided that no restart should continue from the checkpoint, for example because the simulation
//!   diverged. A restart uses the checkpoint only if the user names it.
//! - `damaged`: `mcr verify` or a restart read the checkpoint and found damage that the metadata of the checkpoint do
//!   not show. Retention does not count the checkpoint among the checkpoints that it keeps. A restart still tries the
//!   checkpoint. If `mcr verify` later finds no damage, `mcr verify` removes the mark.
//! - `doubtful`: the application wrote more files of the same step after the checkpoint was committed.
//! - `certain`: the application ended with success and left exactly the files of the checkpoint. So the files are of
//!   one step, although their times did not show this when the checkpoint was committed.

use crate::container::checkpoint_dir;
use crate::ids::{CheckpointId, JobId};
use crate::store::{Store, StoreError};

/// The name of the file of the mark `bad`.
pub(crate) const BAD: &str = "bad";
/// The name of the file of the mark `damaged`.
pub(crate) const DAMAGED: &str = "damaged";
/// The name of the file of the mark `doubtful`.
pub(crate) const DOUBTFUL: &str = "doubtful";
/// The name of the file of the mark `certain`.
pub(crate) const CERTAIN: &str = "certain";
/// Maximum length of a reason, in bytes. A longer reason is cut.
const REASON_BYTES_MAX: usize = 4096;

/// Marks a checkpoint as bad. The mark is durable. Marking the checkpoint again replaces the reason.
pub fn mark_bad(store: &dyn Store, job: &JobId, id: &CheckpointId, reason: &str) -> Result<(), StoreError> {
    put(store, job, id, BAD, reason)
}

/// Removes the mark `bad`, durably. Returns `false` if there was no mark.
pub fn unmark_bad(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<bool, StoreError> {
    take_away(store, job, id, BAD)
}

/// The reason why a checkpoint is marked as bad; `None` if the checkpoint is not marked. A mark that cannot be read
/// counts as a mark.
pub fn bad(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<String> {
    reason_of(store, job, id, BAD)
}

/// Marks a checkpoint as damaged, durably.
pub fn mark_damaged(store: &dyn Store, job: &JobId, id: &CheckpointId, what: &str) -> Result<(), StoreError> {
    put(store, job, id, DAMAGED, what)
}

/// Removes the mark `damaged`, durably. Returns `false` if there was no mark.
pub fn unmark_damaged(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<bool, StoreError> {
    match damaged(store, job, id) {
        Some(_) => take_away(store, job, id, DAMAGED),
        None => Ok(false),
    }
}

/// Whether damage was found in a checkpoint. If the store cannot answer, no damage is assumed.
pub fn is_damaged(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    store.stat(&checkpoint_dir(job, id).join(DAMAGED)).is_ok()
}

/// The damage that was found in a checkpoint; `None` if the checkpoint is not marked as damaged.
pub fn damaged(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<String> {
    reason_of(store, job, id, DAMAGED)
}

/// Marks a checkpoint as doubtful, durably. A restart prefers an older checkpoint without doubt.
pub fn mark_doubtful(store: &dyn Store, job: &JobId, id: &CheckpointId, why: &str) -> Result<(), StoreError> {
    put(store, job, id, DOUBTFUL, why)
}

/// Why a checkpoint was marked as doubtful; `None` if the checkpoint was not marked.
pub fn doubt(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<String> {
    reason_of(store, job, id, DOUBTFUL)
}

/// Marks a checkpoint as certain, durably. Takes back the doubts of its manifests
/// [about the step](crate::manifest::About::Step), but not the mark `doubtful`.
pub fn mark_certain(store: &dyn Store, job: &JobId, id: &CheckpointId, why: &str) -> Result<(), StoreError> {
    put(store, job, id, CERTAIN, why)
}

/// Why a checkpoint was marked as certain; `None` if the checkpoint was not marked.
pub fn certain(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<String> {
    reason_of(store, job, id, CERTAIN)
}

fn put(store: &dyn Store, job: &JobId, id: &CheckpointId, name: &str, reason: &str) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    let mut mark = store.create_temp(&dir, name)?;
    mark.append(one_line(reason).as_bytes())?;
    mark.sync()?;
    store.rename(mark.path(), &dir.join(name))?;
    store.sync_dir(&dir)
}

fn take_away(store: &dyn Store, job: &JobId, id: &CheckpointId, name: &str) -> Result<bool, StoreError> {
    let dir = checkpoint_dir(job, id);
    let was_there = reason_of(store, job, id, name).is_some();
    store.remove_file(&dir.join(name))?;
    store.sync_dir(&dir)?;
    Ok(was_there)
}

fn reason_of(store: &dyn Store, job: &JobId, id: &CheckpointId, name: &str) -> Option<String> {
    let file = match store.open(&checkpoint_dir(job, id).join(name)) {
        Ok(file) => file,
        Err(error) if error.is_not_found() => return None,
        Err(error) => return Some(format!("its mark cannot be read: {error}")),
    };
    let mut text = vec![0; (file.len() as usize).min(REASON_BYTES_MAX)];
    Some(match file.read_at(0, &mut text) {
        Ok(()) => one_line(&String::from_utf8_lossy(&text)),
        Err(error) => format!("its mark cannot be read: {error}"),
    })
}

/// Replaces line ends and other control characters with spaces, and cuts a long text.
fn one_line(reason: &str) -> String {
    let mut line: String = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while line.len() > REASON_BYTES_MAX {
        line.pop();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, Survival, create_dirs};

    #[test]
    fn a_mark_is_durable_with_its_reason_and_can_be_taken_away() {
        let (store, job, id) = (MemoryStore::new(), "j".parse().expect("valid"), "a".parse().expect("valid"));
        assert!(mark_bad(&store, &job, &id, "x").is_err(), "there is no such checkpoint");
        create_dirs(&store, &checkpoint_dir(&job, &id)).expect("made");
        assert_eq!(bad(&store, &job, &id), None);
        mark_bad(&store, &job, &id, "diverged\nat step 7").expect("marks");
        let after = store.crash(Survival::Synced);
        assert_eq!(bad(&after, &job, &id).as_deref(), Some("diverged at step 7"));
        assert!(unmark_bad(&after, &job, &id).expect("unmarks"));
        assert!(!unmark_bad(&after, &job, &id).expect("unmarks once more"));
        assert_eq!(bad(&after.crash(Survival::Synced), &job, &id), None);
        mark_bad(&store, &job, &id, &"x".repeat(10_000)).expect("marks");
        assert_eq!(bad(&store, &job, &id).map(|reason| reason.len()), Some(REASON_BYTES_MAX));
    }
}
