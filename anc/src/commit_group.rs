//! Commits one group, or finds that another process has committed it.

use crate::flush::{Flush, flush_checkpoint};
use crate::flush_error::FlushError;
use crate::instance::committed;
use mcrengine::manifest::Manifest;
use mcrengine::store::StoreError;

/// A group that is in the store.
pub struct CommittedGroup {
    /// The manifest of the group.
    pub manifest: Manifest,
    /// Whether another process committed the same content before.
    pub was_there: bool,
}

/// Flushes a group. If another process has already committed the same content for this group, the function returns
/// success. While another process writes the group, the function calls `wait_for_other`, which waits for a short
/// time. If `wait_for_other` returns true, the flush is tried again.
pub fn commit_group(flush: &Flush<'_>, wait_for_other: &dyn Fn() -> bool) -> Result<CommittedGroup, FlushError> {
    loop {
        let error = match flush_checkpoint(flush.clone()) {
            Ok(manifest) => return Ok(CommittedGroup { manifest, was_there: false }),
            Err(error) => error,
        };
        let is_busy = matches!(error, FlushError::Store(StoreError::Busy { .. }));
        let is_taken = is_busy || matches!(error, FlushError::Store(StoreError::Committed { .. }));
        let there = || {
            let Flush { store, job, checkpoint, group, grouping, files, .. } = flush;
            committed(*store, job, checkpoint, *group, *grouping, files)
        };
        if is_taken && let Some(manifest) = there()? {
            return Ok(CommittedGroup { manifest, was_there: true });
        }
        if !is_busy || !wait_for_other() {
            return Err(error);
        }
    }
}
