//! Advice for a damaged checkpoint that has parity.

use crate::output::name_of;
use crate::store_args::StoreArgs;
use mcrengine::container::{ContainerRef, checkpoint_dir, container_path};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::parity::{SUFFIX, find};
use mcrengine::store::Store;

/// Prints which command may mend a damaged checkpoint, if one of its containers has parity.
/// `references`: the older containers that the checkpoint needs.
pub fn tell_if_mendable(
    store: &dyn Store,
    args: &StoreArgs,
    job: &JobId,
    id: &CheckpointId,
    references: &[ContainerRef],
) {
    let entries = store.list_dir(&checkpoint_dir(job, id)).unwrap_or_default();
    let is_of_older = || {
        let mut older = references.iter();
        older.any(|older| find(store, &container_path(job, &older.checkpoint, older.group)).is_some())
    };
    if entries.iter().any(|entry| entry.name.ends_with(SUFFIX)) || is_of_older() {
        let store = name_of(&args.store);
        eprintln!("mcr: {id} has parity, which may mend it: mcr verify {id} --repair --job {job} --store {store}");
    }
}
