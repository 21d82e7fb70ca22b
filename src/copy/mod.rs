//! Copies checkpoints to another store or job, and repairs containers by their parity or from another store.
//!
//! A copy has the bytes of the original: containers as they are, manifests with the name of the destination's job.
//! Containers refer to older containers by the names of checkpoint and group, so a copy keeps these names. Only
//! missing files are copied. All bytes that are copied are compared with their checksums.
//!
//! The order of the steps makes a crash harmless, as for a commit. The records of incarnations are copied first. Then
//! the containers to which the checkpoint refers are copied, then the containers of the checkpoint, then its marks,
//! and its manifests last. Each file is written under a temporary name, synced and renamed. So a checkpoint of the
//! destination is complete only if the destination has all bytes of the checkpoint. If the directory of an older
//! checkpoint has only containers that other checkpoints need, the directory gets the mark `pruned`, as after a
//! prune.

mod container;
mod needed;
mod plan;
mod repair;
mod route;
mod same;

pub use plan::{CheckpointPlan, plan_checkpoint};
pub use repair::{MendedBy, MendedFile, Repaired, repair};
pub use route::{Route, Side};

pub use crate::error::CopyError;

use crate::container::{checkpoint_dir, container_name, container_path};
use crate::ids::{CheckpointId, GroupId};
use crate::incarnation::{add_records, missing_records};
use crate::manifest::{self, PRUNED, group_of_manifest, manifest_name, manifest_path};
use crate::marks;
use crate::parity::{self, parity_path};
use crate::store::{Entry, Store, StoreError, TempFile, create_dirs};
use container::copy_container;
use plan::{Need, expected_text, references_are_there};
use std::path::Path;

/// Copies the records of incarnations that the destination lacks. With `dry_run`, records are only counted. Call this
/// function before checkpoints are copied, so that a restart from the destination never takes a checkpoint that the
/// source has set aside. Returns the number of records.
pub fn copy_records(route: &Route<'_>, dry_run: bool) -> Result<usize, CopyError> {
    let theirs = manifest::list(route.from.store, route.from.job)?;
    let ours = manifest::list(route.to.store, route.to.job)?;
    let missing = missing_records(route, &theirs, &ours)?;
    if !dry_run {
        let of_job = Path::new(route.to.job.as_str());
        if !missing.is_empty() {
            create_dirs(route.to.store, of_job)?;
        }
        add_records(route, &missing)?;
    }
    Ok(missing.len())
}

/// Copies the files that a plan names. Afterwards the checkpoint is complete in the destination. `progress` is called
/// with the number of bytes of each written part.
pub fn copy_checkpoint(route: &Route<'_>, plan: &CheckpointPlan, progress: &dyn Fn(u64)) -> Result<(), CopyError> {
    let (to, id) = (route.to, &plan.checkpoint);
    let dir = checkpoint_dir(to.job, id);
    // While this file is held, prune sees that the checkpoint is being written.
    let mut held: Option<Box<dyn TempFile>> = None;
    for need in &plan.containers {
        let copied = place_container(route, id, need, progress)?;
        if need.checkpoint == *id && held.is_none() {
            held = Some(copied);
        }
    }
    if !plan.is_there() {
        create_dirs(to.store, &dir)?;
    }
    copy_marks(route, id)?;
    if !plan.manifests.is_empty() {
        unmark_pruned(to.store, &dir)?;
    }
    for &group in &plan.manifests {
        let (head, text) = expected_text(route, id, group)?;
        references_are_there(route, id, group, &head.references)?;
        let mut temp = to.store.create_temp(&dir, &manifest_name(group))?;
        temp.append(&text)?;
        temp.sync()?;
        to.store.rename(temp.path(), &manifest_path(to.job, id, group))?;
        held.get_or_insert(temp);
        progress(text.len() as u64);
    }
    to.store.sync_dir(&dir)?;
    let state = manifest::state(to.store, to.job, id)?;
    if !state.is_complete() {
        return Err(CopyError::Refused {
            path: to.full(&dir),
            what: format!("the copy of the checkpoint is not complete: {}", state.problems.join("; ")),
            way_out: "try again when no other program writes or prunes this job",
        });
    }
    Ok(())
}

/// Copies a container to its place in the destination. Returns the file, which is held as long as the value exists.
fn place_container(
    route: &Route<'_>,
    id: &CheckpointId,
    need: &Need,
    progress: &dyn Fn(u64),
) -> Result<Box<dyn TempFile>, CopyError> {
    let (from, to) = (route.from, route.to);
    let dir = checkpoint_dir(to.job, &need.checkpoint);
    create_dirs(to.store, &dir)?;
    let entries = to.store.list_dir(&dir)?;
    check_free(to.store, &dir, &entries, need.group)?;
    if need.checkpoint != *id && !entries.iter().any(|entry| group_of_manifest(&entry.name).is_some()) {
        mark_pruned(to.store, &dir, &entries)?;
    }
    let source = container_path(from.job, &need.checkpoint, need.group);
    let temp = copy_container(from.store, &source, &need.needed, to.store, &dir, progress)?;
    let path = container_path(to.job, &need.checkpoint, need.group);
    // The parity is computed again from the copy, so damage of the source's parity is not copied.
    let percent = parity::find(from.store, &source).map(|found| parity::percent_of(&found));
    let digest = need.needed.index_digest();
    let parity = percent
        .map(|percent| parity::write(to.store, temp.path(), &path, digest, percent, parity::MEMORY_BYTES))
        .transpose()?;
    // Another program may have written another container of this name in the meantime.
    plan::check_replaceable(route, need)?;
    to.store.rename(temp.path(), &path)?;
    let of_copy = parity_path(&path);
    match parity {
        Some(parity) => to.store.rename(parity.path(), &of_copy)?,
        // The destination has the parity of the container that the copy replaces.
        None if entries.iter().any(|entry| dir.join(&entry.name) == of_copy) => to.store.remove_file(&of_copy)?,
        None => {}
    }
    to.store.sync_dir(&dir)?;
    Ok(temp)
}

/// Fails if another process writes the group, and removes temporary files of the group that dead writers left.
fn check_free(store: &dyn Store, dir: &Path, entries: &[Entry], group: GroupId) -> Result<(), CopyError> {
    let ours = [container_name(group), manifest_name(group)];
    let is_of_writer = |name: &str| ours.iter().any(|ours| name.starts_with(&format!(".{ours}.")));
    for entry in entries {
        let path = dir.join(&entry.name);
        if (is_of_writer(&entry.name) || ours.contains(&entry.name)) && store.is_held(&path) {
            return Err(StoreError::Busy { path: store.root().join(dir).join(container_name(group)) }.into());
        }
        if is_of_writer(&entry.name) {
            store.remove_file(&path)?;
        }
    }
    Ok(())
}

/// Marks the directory of a checkpoint that has only containers for other checkpoints.
fn mark_pruned(store: &dyn Store, dir: &Path, entries: &[Entry]) -> Result<(), CopyError> {
    if entries.iter().any(|entry| entry.name == PRUNED) {
        return Ok(());
    }
    let mut mark = store.create_temp(dir, PRUNED)?;
    mark.sync()?;
    store.rename(mark.path(), &dir.join(PRUNED))?;
    Ok(store.sync_dir(dir)?)
}

/// Removes the mark of a pruned checkpoint, because the checkpoint is copied to the destination again.
fn unmark_pruned(store: &dyn Store, dir: &Path) -> Result<(), CopyError> {
    if store.list_dir(dir)?.iter().any(|entry| entry.name == PRUNED) {
        store.remove_file(&dir.join(PRUNED))?;
        store.sync_dir(dir)?;
    }
    Ok(())
}

/// Adds the marks of the checkpoint that the destination lacks.
fn copy_marks(route: &Route<'_>, id: &CheckpointId) -> Result<(), CopyError> {
    type Read = fn(&dyn Store, &crate::ids::JobId, &CheckpointId) -> Option<String>;
    type Put = fn(&dyn Store, &crate::ids::JobId, &CheckpointId, &str) -> Result<(), StoreError>;
    let marks: [(Read, Put); 4] = [
        (marks::bad, marks::mark_bad),
        (marks::damaged, marks::mark_damaged),
        (marks::doubt, marks::mark_doubtful),
        (marks::certain, marks::mark_certain),
    ];
    let (from, to) = (route.from, route.to);
    for (read, put) in marks {
        if let (Some(reason), None) = (read(from.store, from.job, id), read(to.store, to.job, id)) {
            put(to.store, to.job, id, &reason)?;
        }
    }
    Ok(())
}
