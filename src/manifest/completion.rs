//! The note of a complete checkpoint, which spares other processes the reading of all manifests.
//!
//! The first process that finds a checkpoint complete leaves the note `.complete` in the directory of the checkpoint.
//! The note names the container of each group, so a process accepts the note only if the note names the container
//! that this process committed. A note of an earlier checkpoint of the same name is thereby not accepted. Only
//! aggregators read notes. The manifests alone decide whether a checkpoint exists.

use super::format::{checked_body, manifest_path};
use super::list::state_of_each;
use super::spoiled::SPOILED;
use crate::container::checkpoint_dir;
use crate::error::{ReadError, StoreError};
use crate::ids::{CheckpointId, Digest, GroupId, JobId};
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the note in the directory of the checkpoint.
pub(crate) const NOTE: &str = ".complete";
/// Maximum length of a note, in bytes. A note of this length has room for 100,000 groups.
const NOTE_BYTES_MAX: u64 = 4 << 20;
/// The first line of a note.
const FIRST_LINE: &[u8] = b"mcr-complete 1\n";

/// A complete checkpoint, with the containers of all of its groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    job: JobId,
    checkpoint: CheckpointId,
    /// The first 8 bytes of the digest of each group's container, as a number.
    containers: Vec<u64>,
}

/// The first 8 bytes of a digest.
fn short(digest: Digest) -> u64 {
    digest.0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

impl Completion {
    /// Reads the state of a checkpoint. `None` if the checkpoint is not complete.
    pub fn find(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Result<Option<Self>, ReadError> {
        let mut found = BTreeMap::new();
        let state = state_of_each(store, job, id, &mut |head| {
            found.insert(head.group, short(head.container.digest));
        })?;
        let containers: Vec<u64> = (0..state.groups).filter_map(|group| found.get(&GroupId(group)).copied()).collect();
        let is_complete = state.is_complete() && containers.len() == state.groups as usize;
        Ok(is_complete.then(|| Self { job: job.clone(), checkpoint: id.clone(), containers }))
    }

    /// Reads the note that another process left. `None` if there is no valid note, or if the checkpoint was spoiled.
    pub fn load(store: &dyn Store, job: &JobId, id: &CheckpointId) -> Option<Self> {
        let path = checkpoint_dir(job, id).join(NOTE);
        let file = store.open(&path).ok().filter(|file| file.len() <= NOTE_BYTES_MAX)?;
        let mut text = vec![0; usize::try_from(file.len()).ok()?];
        file.read_at(0, &mut text).ok()?;
        let body = checked_body(&text, &path, "the note").ok()?;
        let note: Self = serde_json::from_slice(body.strip_prefix(FIRST_LINE)?).ok()?;
        let is_spoiled = || !store.stat(&checkpoint_dir(job, id).join(SPOILED)).is_err_and(|e| e.is_not_found());
        (note.job == *job && note.checkpoint == *id && !is_spoiled()).then_some(note)
    }

    /// Leaves the note. The note is not synced, because it may be lost.
    pub fn leave(&self, store: &dyn Store) -> Result<(), StoreError> {
        let dir = checkpoint_dir(&self.job, &self.checkpoint);
        let path = dir.join(NOTE);
        let json = serde_json::to_vec(self)
            .map_err(|error| StoreError::Contents { path: path.clone(), what: error.to_string() })?;
        let body = [FIRST_LINE, &json, b"\n"].concat();
        let mut temp = store.create_temp(&dir, "complete")?;
        temp.append(&body)?;
        temp.append(format!("blake3 {}\n", Digest::of(&body)).as_bytes())?;
        store.rename(temp.path(), &path)
    }

    /// Whether this is the checkpoint that has this container of a group.
    pub fn has(&self, group: GroupId, container: Digest) -> bool {
        self.containers.get(group.0 as usize) == Some(&short(container))
    }
}

/// Whether the manifest of a group exists. Reads no manifest.
pub fn has_manifest(store: &dyn Store, job: &JobId, id: &CheckpointId, group: GroupId) -> Result<bool, StoreError> {
    match store.stat(&manifest_path(job, id, group)) {
        Ok(stat) => Ok(!stat.is_dir),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, create_dirs};

    #[test]
    fn the_note_of_the_first_version_is_read() {
        const NOTE_OF_VERSION_1: &str = "mcr-complete 1\n\
            {\"job\":\"j\",\"checkpoint\":\"it_1\",\"containers\":[3259162333760152049,5259203945481466592]}\n\
            blake3 aedd1469db9b6988e4407e78a28de638b669fa1bd4decbf52cb8547aaef68cf3\n";
        let (store, job, id) = (MemoryStore::new(), "j".parse().expect("valid"), "it_1".parse().expect("valid"));
        create_dirs(&store, &checkpoint_dir(&job, &id)).expect("made");
        store.put(&checkpoint_dir(&job, &id).join(NOTE), NOTE_OF_VERSION_1.as_bytes());
        let note = Completion::load(&store, &job, &id).expect("the note");
        let of = |byte: u8| Digest::of(&[byte]);
        assert!(note.has(GroupId(0), of(0)) && note.has(GroupId(1), of(1)) && !note.has(GroupId(1), of(0)));
    }

    #[test]
    fn a_note_is_accepted_only_for_the_containers_that_it_names_and_only_if_it_is_whole() {
        let (store, job, id) = (MemoryStore::new(), "j".parse().expect("valid"), "it_1".parse().expect("valid"));
        let dir = checkpoint_dir(&job, &id);
        create_dirs(&store, &dir).expect("made");
        assert_eq!(Completion::load(&store, &job, &id), None);
        let of = |byte: u8| Digest::of(&[byte]);
        let note =
            Completion { job: job.clone(), checkpoint: id.clone(), containers: vec![short(of(0)), short(of(1))] };
        note.leave(&store).expect("left");
        let loaded = Completion::load(&store, &job, &id).expect("the note");
        assert_eq!(loaded, note);
        assert_eq!([0, 1, 2].map(|group| loaded.has(GroupId(group), of(1))), [false, true, false]);
        let text = store.get(&dir.join(NOTE)).expect("the note");
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 4;
            store.put(&dir.join(NOTE), &damaged);
            assert_eq!(Completion::load(&store, &job, &id), None, "byte {at} was changed");
            store.put(&dir.join(NOTE), &text[..at]);
            assert_eq!(Completion::load(&store, &job, &id), None, "cut to {at} bytes");
        }
        store.put(&dir.join(NOTE), &text);
        store.put(&dir.join(SPOILED), b"mixed");
        assert_eq!(Completion::load(&store, &job, &id), None, "the checkpoint was spoiled");
        store.remove_file(&dir.join(SPOILED)).expect("removed");
        store.rename(&dir, std::path::Path::new("j/it_2")).expect("renamed");
        assert_eq!(Completion::load(&store, &job, &"it_2".parse().expect("valid")), None, "another checkpoint");
    }
}
