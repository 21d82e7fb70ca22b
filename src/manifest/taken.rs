//! Checks whether a group may be written, or is already committed.

use super::format::{KnownContainer, Manifest, PRUNED, manifest_path, read_manifest};
use super::list::list;
use super::state::CheckpointState;
use crate::container::{ContainerReader, checkpoint_dir, container_path};
use crate::error::{Advice, ReadError, StoreError};
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::store::Store;
use std::collections::BTreeSet;
use std::path::Path;

/// Whether the container that a manifest names exists and has the length and index that the manifest states. This
/// function does not read the segments; [`verify`](crate::verify::verify) reads the segments.
pub fn has_container(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    match ContainerReader::open(store, &manifest.job, &manifest.checkpoint, manifest.group) {
        Ok(found) => {
            Ok((found.bytes(), found.index_digest()) == (manifest.container.bytes, manifest.container.index_digest))
        }
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the container of an older checkpoint exists and can be opened, so that a new checkpoint may refer to it.
/// Reads the index only if the length is not the length at the commit, as after a repack.
pub fn may_be_referred_to(store: &dyn Store, job: &JobId, known: &KnownContainer) -> Result<(), ReadError> {
    let of = &known.container;
    let relative = container_path(job, &of.checkpoint, of.group);
    let file = store.open(&relative).map_err(ReadError::from_store)?;
    if file.len() == known.bytes {
        return Ok(());
    }
    let path = store.root().join(&relative);
    let found = ContainerReader::from_file(file, path.clone())?.index_digest();
    match found == of.index_digest {
        true => Ok(()),
        false => {
            let what = format!("the digest of the index is {found}, expected {}", of.index_digest);
            Err(ReadError::Invalid { path, part: "the index", what })
        }
    }
}

/// The checkpoints with a container that is missing, or has lost its manifest, although other checkpoints refer to it.
/// Another container must not take its name, because a copy of the missing file would mend the checkpoints.
pub fn lost(store: &dyn Store, job: &JobId) -> Result<BTreeSet<CheckpointId>, StoreError> {
    let states = list(store, job)?;
    let needed: BTreeSet<_> = states.iter().flat_map(|s| &s.references).map(|r| (&r.checkpoint, r.group)).collect();
    let is_missing = |path: &Path| match store.stat(path) {
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    };
    let mut lost = BTreeSet::new();
    for (id, group) in needed {
        let mark = checkpoint_dir(job, id).join(PRUNED);
        let has_lost_manifest =
            || -> Result<bool, StoreError> { Ok(is_missing(&manifest_path(job, id, group))? && is_missing(&mark)?) };
        if is_missing(&container_path(job, id, group))? || has_lost_manifest()? {
            lost.insert(id.clone());
        }
    }
    Ok(lost)
}

/// Fails with [`StoreError::Committed`] if a group must not be written. A group must not be written if it has a valid
/// manifest and the container of this manifest, or if a kept checkpoint needs the container. If a container exists,
/// all checkpoints of the job are examined.
pub(crate) fn check_not_committed(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(), StoreError> {
    check_no_manifest(store, job, checkpoint, group)?;
    let container = container_path(job, checkpoint, group);
    match store.open(&container) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => match is_referred_to(&list(store, job)?, checkpoint, group) {
            true => Err(StoreError::Committed { path: container }),
            false => Ok(()),
        },
    }
}

/// Fails with [`StoreError::Committed`] if a group has a valid manifest and the container that the manifest names.
pub(super) fn check_no_manifest(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
) -> Result<(), StoreError> {
    match read_manifest(store, job, checkpoint, group) {
        Ok(manifest) if has_container(store, &manifest)? => {
            Err(StoreError::Committed { path: manifest_path(job, checkpoint, group) })
        }
        Err(error @ (ReadError::TooNew { .. } | ReadError::Unsupported { .. } | ReadError::Io { .. })) => {
            Err(error.into())
        }
        // The manifest or its container is missing or damaged. Nothing can be restored from these files, so they may
        // be replaced.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_referred_to(states: &[CheckpointState], checkpoint: &CheckpointId, group: GroupId) -> bool {
    states.iter().flat_map(|s| &s.references).any(|r| r.checkpoint == *checkpoint && r.group == group)
}
