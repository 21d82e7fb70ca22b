//! One group committed, by this process or by another one.

use crate::flush::{Flush, flush_checkpoint};
use crate::flush_error::FlushError;
use crate::instance::committed;
use mcrengine::manifest::Manifest;
use mcrengine::store::StoreError;

/// A group that is in the store.
pub struct CommittedGroup {
    /// Its manifest.
    pub manifest: Manifest,
    /// Another process committed the same content.
    pub was_there: bool,
}

/// Flushes a group. Where another process writes the same group or has committed it, the content of that process
/// counts, if it is the same. While another process writes the group, the flush is tried again as long as
/// `wait_for_other` says so, which waits a moment.
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
