//! The mark `spoiled`: files of the checkpoint were not saved, although its manifests may cover all groups.

use crate::container::checkpoint_dir;
use crate::error::StoreError;
use crate::ids::{CheckpointId, JobId};
use crate::store::{Store, create_dirs};
use std::path::Path;

/// Name of the mark. A checkpoint with this mark is not complete. The text of the mark is the reason.
pub(crate) const SPOILED: &str = "spoiled";
/// Maximum length of the text, in bytes.
const SPOILED_BYTES_MAX: u64 = 1024;

/// Marks a checkpoint as not complete, because some of its files were not saved. The mark is durable. Marking the
/// checkpoint again replaces the reason.
pub fn spoil(store: &dyn Store, job: &JobId, id: &CheckpointId, why: &str) -> Result<(), StoreError> {
    let dir = checkpoint_dir(job, id);
    create_dirs(store, &dir)?;
    let mut mark = store.create_temp(&dir, SPOILED)?;
    let why: String =
        why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SPOILED_BYTES_MAX as usize / 4).collect();
    mark.append(why.as_bytes())?;
    mark.sync()?;
    store.rename(mark.path(), &dir.join(SPOILED))?;
    store.sync_dir(&dir)
}

/// The reason in the mark of a checkpoint.
pub(crate) fn spoiled(store: &dyn Store, dir: &Path) -> String {
    let read = || {
        let file = store.open(&dir.join(SPOILED)).ok()?;
        let mut text = vec![0; file.len().min(SPOILED_BYTES_MAX) as usize];
        file.read_at(0, &mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    read().unwrap_or_else(|| "some of its files were not saved".into())
}
