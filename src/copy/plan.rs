//! Finds the files of a checkpoint that the destination of a copy lacks.

use super::container::{check_frame, open_needed};
use super::needed::Needed;
use super::route::{Route, Side};
use crate::container::{ContainerReader, ContainerRef, container_path};
use crate::error::{Advice, CopyError, ReadError};
use crate::ids::{CheckpointId, GroupId};
use crate::manifest::{
    self, FileTotals, MANIFEST_BYTES_MAX, Manifest, manifest_path, read_head, read_head_and_text, with_job,
};
use std::collections::BTreeSet;

/// The files that copying a checkpoint will write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPlan {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The containers that the destination lacks. The containers of older checkpoints come first.
    pub containers: Vec<Need>,
    /// The groups whose manifests the destination lacks.
    pub manifests: Vec<GroupId>,
    /// Total length of the manifests in `manifests`.
    pub manifest_bytes: u64,
}

/// A container that the destination lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The checkpoint in whose directory the container is.
    pub checkpoint: CheckpointId,
    /// The group of the container.
    pub group: GroupId,
    /// Length of the container in the source.
    pub bytes: u64,
    /// The properties that the container must have.
    pub(super) needed: Needed,
}

impl CheckpointPlan {
    /// Whether the destination has all files.
    pub fn is_there(&self) -> bool {
        self.containers.is_empty() && self.manifests.is_empty()
    }

    /// Number of bytes that are copied.
    pub fn bytes(&self) -> u64 {
        self.manifest_bytes + self.containers.iter().map(|need| need.bytes).sum::<u64>()
    }
}

/// Finds the files of a complete checkpoint that the destination lacks. `planned` are the containers of plans that
/// will be carried out before this plan.
pub fn plan_checkpoint(
    route: &Route<'_>,
    id: &CheckpointId,
    planned: &BTreeSet<(CheckpointId, GroupId)>,
) -> Result<CheckpointPlan, CopyError> {
    let state = manifest::state(route.from.store, route.from.job, id)?;
    if !state.is_complete() {
        return Err(CopyError::Refused {
            path: route.from.full_job().join(id.as_str()),
            what: format!("it is {}: {}", state.condition(), state.problems.join("; ")),
            way_out: "only a complete checkpoint is copied",
        });
    }
    let mut plan =
        CheckpointPlan { checkpoint: id.clone(), containers: Vec::new(), manifests: Vec::new(), manifest_bytes: 0 };
    let (mut own, mut seen) = (Vec::new(), BTreeSet::new());
    for group in (0..state.groups).map(GroupId) {
        let (head, text) = expected_text(route, id, group)?;
        if !has_manifest(route, &head, &text)? {
            plan.manifests.push(group);
            plan.manifest_bytes += text.len() as u64;
        }
        drop(text);
        for (n, reference) in (0u32..).zip(&head.references) {
            let key = (reference.checkpoint.clone(), reference.group);
            let newer = Newer { side: route.from, checkpoint: id, group };
            if !planned.contains(&key) && !seen.contains(&key) && !has_reference(&route.to, newer, n, reference)? {
                seen.insert(key);
                plan.containers.push(need_of(route, reference)?);
            }
        }
        let key = (id.clone(), group);
        if !planned.contains(&key)
            && let Some(need) = own_need(route, head)?
        {
            own.push(need);
        }
    }
    plan.containers.append(&mut own);
    Ok(plan)
}

/// The manifest of a group in the source, and its text in the destination.
pub(super) fn expected_text(
    route: &Route<'_>,
    id: &CheckpointId,
    group: GroupId,
) -> Result<(Manifest<FileTotals>, Vec<u8>), CopyError> {
    let (head, text) = read_head_and_text(route.from.store, route.from.job, id, group)?;
    if route.keeps_name() {
        return Ok((head, text));
    }
    let path = route.from.full(&manifest_path(route.from.job, id, group));
    let text = with_job(&text, route.to.job, &path, "the manifest")?;
    if text.len() as u64 > MANIFEST_BYTES_MAX {
        let what = format!("with the name of the job {} it would be longer than the format allows", route.to.job);
        return Err(CopyError::Refused { path, what, way_out: "choose a shorter name with --to-job" });
    }
    Ok((head, text))
}

/// Whether the destination has the manifest of a group. A damaged manifest counts as missing. Fails if the
/// destination has the manifest of another checkpoint with this name.
fn has_manifest(route: &Route<'_>, head: &Manifest<FileTotals>, text: &[u8]) -> Result<bool, CopyError> {
    let to = route.to;
    let found = match read_head_and_text(to.store, to.job, &head.checkpoint, head.group) {
        Ok((_, found)) if found == text => return Ok(true),
        Ok((found, _)) => found,
        Err(error) if error.advice() == Advice::OlderCheckpoint => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let what = |one: &Manifest<FileTotals>| (one.place(), one.ranks, one.group_size, one.container.clone());
    match what(&found) == what(head) {
        true => Ok(true), // the same files were saved to both stores
        false => Err(CopyError::Refused {
            path: to.full(&manifest_path(to.job, &head.checkpoint, head.group)),
            what: format!("the destination has another checkpoint with the name {}", head.checkpoint),
            way_out: "copy to a job with another name (--to-job)",
        }),
    }
}

/// The container of a manifest, if the destination lacks it.
fn own_need(route: &Route<'_>, head: Manifest<FileTotals>) -> Result<Option<Need>, CopyError> {
    let (to, group) = (route.to, head.group);
    let needed = Needed::Own(head.container);
    let path = container_path(to.job, &head.checkpoint, group);
    let is_there =
        open_needed(to.store, &path, &needed).and_then(|reader| check_frame(&reader, reader.frame_digest()?, &needed));
    match is_there {
        Ok(()) => return Ok(None),
        Err(error) if error.advice() == Advice::OlderCheckpoint => {} // it is missing or damaged
        Err(error) => return Err(error.into()),
    }
    let bytes = match &needed {
        Needed::Own(own) => own.bytes,
        Needed::Reference(_) => 0,
    };
    let need = Need { checkpoint: head.checkpoint, group, bytes, needed };
    check_replaceable(route, &need)?;
    Ok(Some(need))
}

/// The container of a reference, in the source.
fn need_of(route: &Route<'_>, reference: &ContainerRef) -> Result<Need, CopyError> {
    let (from, ContainerRef { checkpoint, group, index_digest, .. }) = (route.from, reference);
    let bytes = from.store.stat(&container_path(from.job, checkpoint, *group))?.bytes;
    let needed = Needed::Reference(*index_digest);
    let need = Need { checkpoint: checkpoint.clone(), group: *group, bytes, needed };
    check_replaceable(route, &need)?;
    Ok(need)
}

/// A container that refers to older containers.
#[derive(Clone, Copy)]
pub(super) struct Newer<'a> {
    pub(super) side: Side<'a>,
    pub(super) checkpoint: &'a CheckpointId,
    pub(super) group: GroupId,
}

/// Whether a store has the container of reference number `n` of `newer`, with all bytes that `newer` needs. A damaged
/// container counts as missing.
pub(super) fn has_reference(
    side: &Side<'_>,
    newer: Newer<'_>,
    n: u32,
    reference: &ContainerRef,
) -> Result<bool, CopyError> {
    let path = container_path(side.job, &reference.checkpoint, reference.group);
    match open_needed(side.store, &path, &Needed::Reference(reference.index_digest)) {
        Ok(older) if !older.is_repacked() => Ok(true),
        Ok(older) => {
            let newer = ContainerReader::open(newer.side.store, newer.side.job, newer.checkpoint, newer.group)?;
            Ok(older.holds_all(newer.index(), n))
        }
        Err(error) if error.advice() == Advice::OlderCheckpoint => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Fails if a container to which a group refers is no longer in the destination.
pub(super) fn references_are_there(
    route: &Route<'_>,
    id: &CheckpointId,
    group: GroupId,
    references: &[ContainerRef],
) -> Result<(), CopyError> {
    for (n, reference) in (0u32..).zip(references) {
        if !has_reference(&route.to, Newer { side: route.from, checkpoint: id, group }, n, reference)? {
            let path = route.to.full(&container_path(route.to.job, &reference.checkpoint, reference.group));
            let what = format!("{id} needs bytes that it does not have");
            return Err(CopyError::Refused { path, what, way_out: "try again when no other program prunes this job" });
        }
    }
    Ok(())
}

/// Fails if the destination has a file in the place of a container, and a checkpoint of the destination may need
/// bytes of this file that the source does not have.
pub(super) fn check_replaceable(route: &Route<'_>, need: &Need) -> Result<(), CopyError> {
    let (from, to) = (route.from, route.to);
    let path = container_path(to.job, &need.checkpoint, need.group);
    let refuse = |what: String| CopyError::Refused {
        path: to.full(&path),
        what,
        way_out: "copy to a job with another name (--to-job)",
    };
    let found = match ContainerReader::open(to.store, to.job, &need.checkpoint, need.group) {
        Ok(found) => Some(found),
        Err(ReadError::Missing { .. }) => return Ok(()),
        Err(error) if error.advice() == Advice::OlderCheckpoint => None,
        Err(error) => return Err(error.into()),
    };
    let wanted = need.needed.index_digest();
    if found.is_none_or(|found| found.index_digest() != wanted) {
        // The file is damaged, or is another container. The file may be replaced if each manifest of the destination
        // that names this container names the container of the source.
        if let Ok(head) = read_head(to.store, to.job, &need.checkpoint, need.group)
            && head.container.index_digest != wanted
        {
            return Err(refuse("the destination has another container of this name".into()));
        }
        let of_this = |one: &&ContainerRef| (&one.checkpoint, one.group) == (&need.checkpoint, need.group);
        for state in manifest::list(to.store, to.job)? {
            if state.references.iter().filter(of_this).any(|one| one.index_digest != wanted) {
                return Err(refuse(format!(
                    "the destination has another container of this name, and {} needs it",
                    state.id
                )));
            }
        }
    }
    let source = ContainerReader::open(from.store, from.job, &need.checkpoint, need.group)?;
    if !source.is_repacked() {
        return Ok(()); // the source has all bytes of the original container
    }
    let problem = "prune removed bytes from the container of the source";
    if read_head(to.store, to.job, &need.checkpoint, need.group).is_ok() {
        return Err(refuse(format!("{problem}, and the destination still has the checkpoint {}", need.checkpoint)));
    }
    for state in manifest::list(to.store, to.job)? {
        let of_this = |one: &&ContainerRef| (&one.checkpoint, one.group) == (&need.checkpoint, need.group);
        if state.references.iter().find(of_this).is_none() {
            continue;
        }
        // References lead to containers of the same group.
        let newer = ContainerReader::open(to.store, to.job, &state.id, need.group)?;
        let of_this = |one: &std::sync::Arc<ContainerRef>| of_this(&&**one);
        let n = newer.index().references().iter().position(of_this);
        if n.is_some_and(|n| !source.holds_all(newer.index(), n as u32)) {
            return Err(refuse(format!("{problem}, and {} of the destination needs these bytes", state.id)));
        }
    }
    Ok(())
}
