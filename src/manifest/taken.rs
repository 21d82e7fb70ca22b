//! Whether a group may be written, or its place is taken.

use super::format::{Manifest, manifest_path, read_manifest};
use super::list::list;
use super::state::CheckpointState;
use crate::container::{ContainerReader, container_path};
use crate::error::{Advice, ReadError, StoreError};
use crate::ids::{CheckpointId, GroupId, JobId};
use crate::store::Store;

/// Whether the container of a manifest is there and the one that was meant, as far as can be told without reading its
/// segments, which [`verify`](crate::verify::verify) does.
pub fn has_container(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    match ContainerReader::open(store, &manifest.job, &manifest.checkpoint, manifest.group) {
        Ok(found) => {
            Ok((found.bytes(), found.index_digest()) == (manifest.container.bytes, manifest.container.index_digest))
        }
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a group may be written: no valid manifest of it is there beside its container, and no kept checkpoint
/// needs that. Where a container stands, all checkpoints of the job are looked at.
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

/// Whether no valid manifest of a group is there beside its container.
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
        // Missing, or damaged, or its container is: nothing can be restored from it, and it may be replaced.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_referred_to(states: &[CheckpointState], checkpoint: &CheckpointId, group: GroupId) -> bool {
    states.iter().flat_map(|s| &s.references).any(|r| r.checkpoint == *checkpoint && r.group == group)
}
