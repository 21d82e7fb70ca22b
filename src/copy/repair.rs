//! Replaces damaged files of a checkpoint by the intact files of the same name and digest in another store.

use super::container::{check_container, copy_container};
use super::needed::Needed;
use super::plan::{Need, Newer, check_replaceable, expected_text, has_reference};
use super::route::Route;
use crate::container::{checkpoint_dir, container_name, container_path};
use crate::error::{Advice, CopyError, ReadError};
use crate::error_chain::error_chain;
use crate::ids::{CheckpointId, GroupId};
use crate::manifest::{self, CheckpointState, FileTotals, Manifest, manifest_name, manifest_path, read_head};
use crate::store::create_dirs;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The files that were replaced. The paths are relative to the store.
    pub mended: Vec<PathBuf>,
    /// The damaged files that could not be replaced, each with the reason, as sentences.
    pub left: Vec<String>,
}

/// Replaces the damaged and missing containers that a checkpoint of `route.to` needs, and its damaged manifests, by
/// those of `route.from`. The checksums and digests of a new file are verified first. Then one rename replaces the
/// old file, so a failure at any moment leaves the old or the new file. `progress` is called with the number of bytes
/// of each written part.
pub fn repair(route: &Route<'_>, id: &CheckpointId, progress: &dyn Fn(u64)) -> Result<Repaired, CopyError> {
    let (from, to) = (route.from, route.to);
    let state = manifest::state(to.store, to.job, id)?;
    let groups = match state.groups {
        0 => manifest::state(from.store, from.job, id)?.groups,
        groups => groups,
    };
    let (mut done, mut seen) = (Repaired::default(), BTreeSet::new());
    for group in (0..groups).map(GroupId) {
        if let Err(error) = repair_group(route, &state, group, progress, &mut done, &mut seen) {
            done.left.push(error_chain(&error));
        }
    }
    Ok(done)
}

fn repair_group(
    route: &Route<'_>,
    state: &CheckpointState,
    group: GroupId,
    progress: &dyn Fn(u64),
    done: &mut Repaired,
    seen: &mut BTreeSet<(CheckpointId, GroupId)>,
) -> Result<(), CopyError> {
    let (to, id) = (route.to, &state.id);
    let (head, damaged) = match read_head(to.store, to.job, id, group) {
        Ok(head) => (head, None),
        // The group is not committed.
        Err(ReadError::Missing { .. }) => return Ok(()),
        Err(error) if error.advice() == Advice::OlderCheckpoint => {
            let (head, text) = expected_text(route, id, group)?;
            if state.groups > 0 && !state.agrees(&head) {
                let path = to.full(&manifest_path(to.job, id, group));
                let what = "the other store has another checkpoint of this name".into();
                return Err(CopyError::Refused { path, what, way_out: "name the store of the copy with --from" });
            }
            (head, Some(text))
        }
        Err(error) => return Err(error.into()),
    };
    let before = done.left.len();
    let needed = Needed::Own(head.container.clone());
    if !is_intact(check_container(to.store, &container_path(to.job, id, group), &needed))? {
        replace(route, of(id, group, needed), progress, done);
    }
    for (n, reference) in (0u32..).zip(&head.references) {
        let key = (reference.checkpoint.clone(), reference.group);
        if !seen.insert(key) {
            continue;
        }
        let needed = Needed::Reference(reference.index_digest);
        let path = container_path(to.job, &reference.checkpoint, reference.group);
        let newer = Newer { side: route.to, checkpoint: id, group };
        let is_whole = match check_container(to.store, &path, &needed) {
            Ok(_) => has_reference(&to, newer, n, reference)?,
            Err(error) => is_intact(Err(error))?,
        };
        if !is_whole {
            replace(route, of(&reference.checkpoint, reference.group, needed), progress, done);
        }
    }
    match damaged {
        // A manifest is written only if all files that it names are there.
        Some(text) if done.left.len() == before => replace_manifest(route, &head, &text, done),
        _ => Ok(()),
    }
}

/// `false` for damage. Fails if the file cannot be read at present.
fn is_intact(checked: Result<u64, ReadError>) -> Result<bool, ReadError> {
    match checked {
        Ok(_) => Ok(true),
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error),
    }
}

fn of(checkpoint: &CheckpointId, group: GroupId, needed: Needed) -> Need {
    Need { checkpoint: checkpoint.clone(), group, bytes: 0, needed }
}

/// Replaces one container, and notes the result.
fn replace(route: &Route<'_>, need: Need, progress: &dyn Fn(u64), done: &mut Repaired) {
    let path = container_path(route.to.job, &need.checkpoint, need.group);
    match try_replace(route, &need, progress) {
        Ok(()) => done.mended.push(path),
        Err(error) => done.left.push(format!("{}: not mended: {}", path.display(), error_chain(&error))),
    }
}

fn try_replace(route: &Route<'_>, need: &Need, progress: &dyn Fn(u64)) -> Result<(), CopyError> {
    let (from, to) = (route.from, route.to);
    let (source, path) =
        (container_path(from.job, &need.checkpoint, need.group), container_path(to.job, &need.checkpoint, need.group));
    let dir = checkpoint_dir(to.job, &need.checkpoint);
    create_dirs(to.store, &dir)?;
    let copied = copy_container(from.store, &source, &need.needed, to.store, &dir, progress)?;
    check_replaceable(route, need)?;
    if to.store.is_held(&path) {
        let busy = crate::store::StoreError::Busy { path: to.full(&dir.join(container_name(need.group))) };
        return Err(busy.into());
    }
    to.store.rename(copied.path(), &path)?;
    to.store.sync_dir(&dir)?;
    check_container(to.store, &path, &need.needed)?;
    Ok(())
}

fn replace_manifest(
    route: &Route<'_>,
    head: &Manifest<FileTotals>,
    text: &[u8],
    done: &mut Repaired,
) -> Result<(), CopyError> {
    let to = route.to;
    let dir = checkpoint_dir(to.job, &head.checkpoint);
    let path = manifest_path(to.job, &head.checkpoint, head.group);
    let mut temp = to.store.create_temp(&dir, &manifest_name(head.group))?;
    temp.append(text)?;
    temp.sync()?;
    to.store.rename(temp.path(), &path)?;
    to.store.sync_dir(&dir)?;
    done.mended.push(path);
    Ok(())
}
