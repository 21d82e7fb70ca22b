//! The mark of a checkpoint that is not whole, whatever its manifests say.

use crate::container::checkpoint_dir;
use crate::error::StoreError;
use crate::ids::{CheckpointId, JobId};
use crate::store::{Store, create_dirs};
use std::path::Path;

/// A directory with a file of this name is of a checkpoint that is not whole, whatever its manifests say; the text
/// says why.
pub(crate) const SPOILED: &str = "spoiled";
/// The most bytes of that text.
const SPOILED_BYTES_MAX: u64 = 1024;

/// Marks a checkpoint as not whole, whatever its manifests say: it has files that were not taken. Durable, and
/// marking twice is marking once.
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

/// What the mark of a checkpoint that is not whole says.
pub(crate) fn spoiled(store: &dyn Store, dir: &Path) -> String {
    let read = || {
        let file = store.open(&dir.join(SPOILED)).ok()?;
        let mut text = vec![0; file.len().min(SPOILED_BYTES_MAX) as usize];
        file.read_at(0, &mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    };
    read().unwrap_or_else(|| "it has files that were not taken".into())
}
