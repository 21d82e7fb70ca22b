//! Checks whether a group may be written, or is already committed.

use super::format::{Manifest, manifest_path, read_manifest};
use super::list::list;
use super::state::CheckpointState;
use crate::container::{ContainerReader, container_path};
use crate::error::{Advice, ReadError, StoreError};
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::store::Store;

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
