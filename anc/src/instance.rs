//! Chooses the name under which a content is committed. A content is what the files of one step contain.
//!
//! Some applications overwrite their checkpoint under one name (`restart.h5`), with another content at each step. A
//! committed checkpoint is never changed. Therefore the first content is named `restart.h5`, the second
//! `restart.h5~2`, and so on. Every group finds its name from the store alone. The group takes the name under which
//! other groups committed files that were written at the same time as its files. If there is no such name, the group
//! takes the next name that is not in use. So a group that missed a step never joins its newer content to the older
//! content of the other groups.

use crate::agent_doubt::doubt_of_agent;
use crate::fetch;
use crate::group::Key;
use crate::names::Names;
use crate::rewritten::{Rewritten, cut, first_written_after, rewritten};
use doubts::{doubt_of, doubt_of_drift, doubt_of_joining, doubt_of_lag, doubt_of_times};
use in_step::{InStep, doubt_of_rank};
use lag::usual_lag_ms;
use mcrengine::container::ReadError;
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{CheckpointId, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::{self, Doubt, Manifest, ManifestFile, Place, manifest_name};
use mcrengine::store::{Store, StoreError, visible};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use steps::{ONE_STEP_MS, Taken, step_ms, usual_step_ms};

mod doubts;
mod in_step;
mod lag;
mod steps;

pub use steps::{Written, may_be_reused};

/// What to do with a content.
pub enum Instance {
    /// The content is already committed.
    There(Box<Manifest>),
    /// Wait and ask again: the application wrote the committed content again, with the same bytes. Another group may
    /// have changed, and may be committed soon. If so, this group belongs to the next checkpoint, too.
    Unchanged,
    /// Commit the content under a new name.
    New {
        /// The new name.
        checkpoint: CheckpointId,
        /// What is uncertain about the files. `None` if there is no doubt.
        doubt: Option<Doubt>,
        /// A committed checkpoint that lacks files of its step, and the reason for the mark `doubtful`.
        part: Option<(CheckpointId, String)>,
    },
    /// These ranks have files of an earlier step. Each rank has a reason.
    Stale(Vec<(Rank, String)>),
}

/// Chooses the name for a content.
pub fn choose_instance(
    store: &dyn Store,
    names: &Names,
    key: &Key,
    grouping: Grouping,
    files: &[FileHeader],
    written: Written<'_>,
) -> Result<Instance, StoreError> {
    let ours_ms = written.newest_ms;
    let generations = names.newest(store, key, written.incarnation)?;
    let free = generations.last().map_or(1, |newest| newest.saturating_add(1));
    let (mut taken, mut own, mut same) = (Vec::new(), Vec::new(), None);
    for generation in &generations {
        let Ok(id) = key.label.with_generation(*generation) else { continue };
        let (ours, groups) = match manifest::read_manifest(store, &key.job, &id, key.group) {
            Ok(manifest) => {
                if has_saved(&manifest, grouping, files) {
                    return Ok(Instance::There(Box::new(manifest)));
                }
                let is_of_run_before = written.is_anew && manifest.incarnation < written.incarnation;
                if !is_of_run_before && same_content(&manifest, grouping, files) {
                    same = Some(manifest.checkpoint.clone());
                }
                let groups = manifest.groups;
                own.push(manifest);
                (true, groups)
            }
            Err(ReadError::Missing { .. }) => (false, grouping.groups()),
            // The manifest of this group cannot be read. The manifest stays in the store as evidence, and the content
            // gets another name.
            Err(error) if !matches!(error, ReadError::Io { .. }) => (true, grouping.groups()),
            Err(error) => return Err(error.into()),
        };
        let other = match low_group(store, key, &id, groups) {
            Some(other) => Some(other),
            None => {
                let Some(there) = names_in(store, key, &id)? else { continue }; // pruned meanwhile
                other_group(store, key, &id, groups, &there)
            }
        };
        // A group cannot join a checkpoint that has another number of ranks, belongs to another incarnation, or was
        // pruned.
        let is_other = |other: &Manifest| other.ranks != grouping.ranks() || other.incarnation != written.incarnation;
        let ours = ours || other.as_ref().map_or_else(|| is_pruned(store, key, &id), is_other);
        // The times of another incarnation are not comparable with the steps of this incarnation.
        let other = other.filter(|other| other.incarnation == written.incarnation);
        let is_doubtful = other.as_ref().is_some_and(|other| other.doubt.is_some());
        let (other_ms, other_first_ms) =
            (other.as_ref().map(|other| other.written_unix_ms), other.as_ref().and_then(|other| other.first_unix_ms));
        taken.push(Taken { id, ours, other_ms, other_first_ms, is_doubtful });
    }
    own.sort_by_key(Manifest::place);
    let stale = if written.is_late_part { Vec::new() } else { stale_ranks(&own, files, written) };
    if !stale.is_empty() {
        return Ok(Instance::Stale(stale));
    }
    let joined = fitting(&taken, &own, ours_ms, written);
    if let Some(last) = own.last().filter(|last| joined.is_none() && same.as_ref() == Some(&last.checkpoint))
        && !is_passed_over(&manifest::state(store, &key.job, &last.checkpoint)?)
    {
        return Ok(match last.groups > 1 && written.may_wait {
            true => Instance::Unchanged,
            false => Instance::There(Box::new(last.clone())),
        });
    }
    let doubt = if taken.is_empty() { doubt_of(&key.label, written) } else { None };
    let doubt = match rewritten(&own, files) {
        Rewritten::Whole => doubt,
        _ if written.is_late_part => doubt,
        // A script may end with success although the application died within a step.
        Rewritten::Partly(ranks) if written.is_final => {
            doubt.or_else(|| ranks.into_iter().next().map(|(rank, why)| Doubt::of_files(format!("{rank}: {why}"))))
        }
        Rewritten::Partly(ranks) => {
            let awaited = ranks.into_iter().map(|(rank, why)| (rank, format!("{why}; new files are awaited")));
            return Ok(Instance::Stale(awaited.collect()));
        }
        Rewritten::Unknown(_) if written.is_final => doubt,
        Rewritten::Unknown(why) => doubt.or(Some(Doubt::of_step(why))),
    };
    // New files are no reason for doubt if each step has the same name, or if a new run repeats the step.
    let is_step_again = |doubt: &fetch::Doubt| {
        let is_of_this_run = own.last().is_some_and(|last| last.incarnation == written.incarnation);
        *doubt == fetch::Doubt::Deleted && (may_be_reused(&key.label) || !is_of_this_run)
    };
    let doubtful = written.doubtful.filter(|(_, doubt)| !is_step_again(doubt));
    let doubt = doubt.or_else(|| doubtful.map(|(rank, doubt)| doubt_of_agent(rank, doubt)));
    // `begun` is a name under which no group has committed. Another group began to use the name, or this group began
    // to use the name before a failure.
    let begun = taken.iter().rev().take_while(|taken| !taken.ours && taken.other_ms.is_none()).last();
    let doubt = doubt.or_else(|| {
        let is_new = own.iter().filter(|own| own.incarnation == written.incarnation).count() <= 1;
        let joined = joined.filter(|_| is_new)?;
        doubt_of_joining(&key.label, joined, &taken, (written, usual_step_ms(&own)))
    });
    let doubt = doubt.or_else(|| doubt_of_times(&key.label, grouping, &own, written));
    let doubt = doubt.or_else(|| doubt_of_lag(&key.label, &own, (&taken, joined), written));
    let doubt = doubt.or_else(|| doubt_of_rank(&key.label, &own, written));
    let doubt = doubt.or_else(|| doubt_of_drift(&key.label, &own, (&taken, joined), written));
    let checkpoint = match joined.or(begun).map(|taken| &taken.id) {
        Some(id) => id.clone(),
        None => key.label.with_generation(free).unwrap_or_else(|_| key.label.clone()),
    };
    let of_this_run: Vec<&Manifest> = own.iter().filter(|own| own.incarnation == written.incarnation).collect();
    let part = part_of_step(&of_this_run, files).filter(|(part, _)| *part != checkpoint);
    Ok(Instance::New { checkpoint, doubt, part })
}

/// The newest committed content of a run, if it probably lacks files of its step, and the reason. `files` is the next
/// content of the same name.
fn part_of_step(own: &[&Manifest], files: &[FileHeader]) -> Option<(CheckpointId, String)> {
    let (last, late) = (own.last()?, first_written_after(own, files)?);
    let why = format!(
        "the application wrote {} of {} for the first time after the commit: it is uncertain whether the checkpoint has \
         all files of its step",
        late.path, late.rank
    );
    Some((last.checkpoint.clone(), why))
}

/// Finds out after a commit whether the first content of a name has groups of two attempts to write one step. In this
/// case, a group wrote its files, and then the application began the step again without a restart. In the second
/// attempt, all groups wrote their files. The second content of the group that wrote twice is then nearer in time to
/// the contents of the other groups than its first content. Returns the first content and the reason for the mark
/// `doubtful`.
///
/// The group that commits last finds the contents of both groups. Names with three or more contents are not examined,
/// because the length of a step is known for such names.
pub fn mixed_attempts(
    store: &dyn Store,
    key: &Key,
    committed: &Manifest,
) -> Result<Option<(CheckpointId, String)>, StoreError> {
    let (Ok(first), Ok(second)) = (key.label.with_generation(1), key.label.with_generation(2)) else { return Ok(None) };
    if committed.groups < 2 || committed.checkpoint.generation() > 2 {
        return Ok(None);
    }
    let read = |id: &CheckpointId, group: GroupId| match manifest::read_manifest(store, &key.job, id, group) {
        Ok(manifest) => Ok(Some(manifest).filter(|of| of.incarnation == committed.incarnation)),
        Err(error @ ReadError::Io { .. }) => Err(StoreError::from(error)),
        Err(_) => Ok(None), // pruned, damaged, or not committed by this group
    };
    // The group that wrote twice, and a group that wrote once.
    let (twice, once) = match committed.checkpoint.generation() {
        1 => {
            let Some(there) = names_in(store, key, &second)? else { return Ok(None) };
            match other_group(store, key, &second, committed.groups, &there) {
                Some(other) => (other.group, committed.group),
                None => return Ok(None),
            }
        }
        _ => {
            let Some(there) = names_in(store, key, &first)? else { return Ok(None) };
            match other_group(store, key, &first, committed.groups, &there) {
                Some(other) => (committed.group, other.group),
                None => return Ok(None),
            }
        }
    };
    let (Some(before), Some(after), Some(other)) = (read(&first, twice)?, read(&second, twice)?, read(&first, once)?)
    else {
        return Ok(None);
    };
    let apart_ms = |of: &Manifest| of.written_unix_ms.saturating_sub(other.written_unix_ms).saturating_abs();
    let (before_ms, after_ms) = (apart_ms(&before), apart_ms(&after));
    let why = format!(
        "{twice} wrote its files {:.1} s apart from {once}, and then wrote them again, {:.1} s apart: it is uncertain \
         whether the files of all groups are of one step",
        before_ms as f64 / 1000.0,
        after_ms as f64 / 1000.0
    );
    Ok((before_ms > after_ms && before_ms > ONE_STEP_MS).then_some((first, why)))
}

/// The ranks whose files belong to an earlier step, because the application has not overwritten them yet. `own` has
/// the contents that this group committed under the name, the oldest first.
///
/// Files that have not changed since the last commit belong to the committed step. Files also belong to an earlier
/// step if they were written nearer to the committed step than to the newest file, or at least half a step before the
/// newest file, unless the rank wrote its files as late in an earlier content. The length of a step is the median of
/// the previous steps. The time since the last committed step is used only if this step belongs to the same run,
/// because between two runs the application does not compute. Before that, the ranks are compared with an earlier
/// content, see [`InStep::awaited`].
fn stale_ranks(own: &[Manifest], files: &[FileHeader], written: Written<'_>) -> Vec<(Rank, String)> {
    let in_step = InStep::of(own, written);
    let behind = in_step.as_ref().map(|in_step| in_step.awaited(written)).unwrap_or_default();
    if !behind.is_empty() {
        return behind;
    }
    let Some(last) = own.last() else { return Vec::new() };
    let was = |file: &FileHeader| {
        let same = |m: &ManifestFile| {
            (&m.path, m.rank, m.digest, m.modified_ns) == (&file.path, file.rank, file.digest, file.modified_ns)
        };
        last.files.iter().any(same)
    };
    let of_rank = |rank: Rank| files.iter().filter(move |file| file.rank == rank && !file.kind.is_companion());
    let unchanged = |rank: Rank| of_rank(rank).next().is_some() && of_rank(rank).all(was);
    let is_of_run = last.incarnation == written.incarnation;
    let since_last_ms = written.newest_ms.saturating_sub(last.written_unix_ms);
    let step_ms = if is_of_run { step_ms(own, written.newest_ms) } else { usual_step_ms(own) };
    let apart_ms = step_ms.map_or(i64::MAX, |step_ms| step_ms / 2);
    let is_in_step = |rank: Rank| in_step.as_ref().is_some_and(|in_step| in_step.has(rank));
    let mut stale = Vec::new();
    for (rank, rank_ms) in written.ranks_ms {
        let before_ms = written.newest_ms.saturating_sub(*rank_ms);
        if unchanged(*rank) {
            stale.push((*rank, format!("its files are still those of {}; new files are awaited", last.checkpoint)));
        } else if since_last_ms > 0 && before_ms >= apart_ms.max(1) && !is_in_step(*rank) {
            let (seconds, step) = (before_ms as f64 / 1000.0, (apart_ms * 2) as f64 / 1000.0);
            stale.push((
                *rank,
                format!(
                    "its files were written {seconds:.1} s before the newest of the group, and a step takes about {step:.1} s: \
                     the files are of an earlier step; new files are awaited"
                ),
            ));
        }
    }
    // If the files of all ranks are unchanged, the caller finds the content by its digests. The files of all ranks
    // cannot be old, because one rank has the newest file.
    if stale.len() == written.ranks_ms.len() { Vec::new() } else { stale }
}

/// A rank whose files the aggregator refuses.
#[derive(Clone, Copy, Debug)]
pub struct NotTaken {
    /// The rank.
    pub rank: Rank,
    /// When the newest of the rank's files was written, in milliseconds since 1970.
    pub written_ms: i64,
}

/// Marks the content of a label as not whole, because the aggregator refuses the files of a rank. The content may
/// have no committed group. Nothing is marked if the newest generation of the label is complete and has these files
/// of the rank, as after an earlier run with more ranks. Older generations are not examined. A content of an earlier
/// incarnation is never marked. `incarnation`: the number of the newest incarnation of the job.
pub fn spoil_instance(
    store: &dyn Store,
    key: &Key,
    not_taken: NotTaken,
    incarnation: u32,
    spread: Duration,
    why: &str,
) -> Result<(), StoreError> {
    let NotTaken { rank, written_ms } = not_taken;
    // The remembered names are not used, because the content may belong to any incarnation.
    let generations = Names::default().newest(store, key, 0)?;
    let newest = generations.last().copied().unwrap_or(0);
    let name = |generation: u32| key.label.with_generation(generation).unwrap_or_else(|_| key.label.clone());
    let spread_ms = i64::try_from(spread.as_millis()).unwrap_or(i64::MAX);
    let is_it = |place: Option<Place>| {
        place.is_none_or(|place| written_ms.saturating_sub(place.written_unix_ms).saturating_abs() <= spread_ms)
    };
    let id = match newest {
        0 => key.label.clone(),
        newest => {
            let state = manifest::state(store, &key.job, &name(newest))?;
            let has_rank = state.is_complete() && rank.0 < state.ranks;
            match has_rank {
                true if has_files(store, key, &state, not_taken)? => return Ok(()),
                _ if state.place.is_some_and(|place| place.incarnation < incarnation) => name(newest.saturating_add(1)),
                false if is_it(state.place) => name(newest),
                _ => name(newest.saturating_add(1)),
            }
        }
    };
    manifest::spoil(store, &key.job, &id, why)
}

/// Whether a checkpoint has the files of a rank that were written at this time.
fn has_files(
    store: &dyn Store,
    key: &Key,
    state: &manifest::CheckpointState,
    of: NotTaken,
) -> Result<bool, StoreError> {
    let Some(grouping) = Grouping::new(state.ranks, state.group_size) else { return Ok(false) };
    let manifest = manifest::read_manifest(store, &key.job, &state.id, grouping.group_of(of.rank))?;
    let times = manifest.files.iter().filter(|file| file.rank == of.rank).map(|file| file.modified_ns / 1_000_000);
    Ok(times.max() == Some(of.written_ms))
}

/// Chooses the name like [`choose_instance`], for a caller that has the files of all groups, in order. All groups get
/// the same name.
///
/// Returns the newest name under the label whose committed groups have exactly these files. An interrupted run may
/// have committed only some of the groups. Skips a checkpoint that a save cannot make complete: a checkpoint that is
/// dead, marked as damaged, or not complete although all of its groups are in the store. If there is no such name,
/// returns the next name that is not in use. If groups are committed under the name, also returns their place. Never
/// returns a name of `kept_free`.
pub fn choose_for_all(
    store: &dyn Store,
    (names, kept_free): (&Names, &BTreeSet<CheckpointId>),
    job: &JobId,
    label: &CheckpointId,
    grouping: Grouping,
    groups: &[Arc<Vec<FileHeader>>],
) -> Result<(CheckpointId, Option<Place>), StoreError> {
    let key = Key { job: job.clone(), group: GroupId(0), label: label.clone() };
    let generations = names.newest(store, &key, 0)?;
    let free = generations.last().map_or(1, |newest| newest.saturating_add(1));
    'generation: for generation in generations.iter().rev() {
        let Ok(id) = label.with_generation(*generation) else { continue };
        if kept_free.contains(&id) {
            continue;
        }
        let state = match manifest::state(store, job, &id) {
            Err(ReadError::Missing { .. }) => continue, // pruned meanwhile
            other => other?,
        };
        if state.is_pruned || state.is_dead || state.found_damaged.is_some() {
            continue;
        }
        let is_passed_over = is_passed_over(&state);
        if state.is_unreadable {
            // If the directory cannot be listed, this function fails. If the directory can be listed, a newer build
            // may have written the manifests. In this case, this name is skipped.
            names_in(store, &key, &id)?;
        }
        let mut has_all_groups = true;
        for (group, files) in (0..).map(GroupId).zip(groups) {
            match manifest::read_manifest(store, job, &id, group) {
                Ok(manifest) if is_passed_over && are_newer(&manifest, files) => continue 'generation,
                Ok(manifest) if same_content(&manifest, grouping, files) => {
                    // The container is opened only if a part of the checkpoint is missing or damaged.
                    has_all_groups &= state.is_complete() || manifest::has_container(store, &manifest)?;
                }
                Err(ReadError::Missing { .. }) => has_all_groups = false,
                Err(error @ ReadError::Io { .. }) => return Err(error.into()),
                Ok(_) | Err(_) => continue 'generation,
            }
        }
        // Another save may have committed the last group since the state was read.
        let is_complete_now = || manifest::state(store, job, &id).is_ok_and(|state| state.is_complete());
        if has_all_groups && !state.is_complete() && !is_complete_now() {
            continue;
        }
        // A checkpoint with more groups was saved with another number of ranks.
        if state.groups <= grouping.groups() {
            return Ok((id, state.place));
        }
    }
    let unused = (free..=u32::MAX).map_while(|generation| label.with_generation(generation).ok());
    Ok((unused.into_iter().find(|id| !kept_free.contains(id)).unwrap_or_else(|| label.clone()), None))
}

/// The next free name for a committed content, if links or pointer files were added to its files after the commit.
/// Only the paths of links and pointer files count, not their contents. So a pointer file that changes repeatedly
/// makes only one additional checkpoint.
pub fn choose_for_companions(
    store: &dyn Store,
    names: &Names,
    job: &JobId,
    id: &CheckpointId,
    groups: &[Arc<Vec<FileHeader>>],
) -> Result<Option<CheckpointId>, StoreError> {
    let tells = |file: &&FileHeader| matches!(file.kind, FileKind::Pointer | FileKind::SymbolicLink);
    let mut is_new = false;
    for (group, files) in (0..).map(GroupId).zip(groups) {
        if !files.iter().any(|file| tells(&file)) {
            continue;
        }
        let manifest = match manifest::read_manifest(store, job, id, group) {
            Ok(manifest) => manifest,
            Err(ReadError::Missing { .. }) => return Ok(None), // a part of the checkpoint is not yet committed
            Err(error) => return Err(error.into()),
        };
        is_new |= files.iter().filter(tells).any(|file| !manifest.files.iter().any(|there| there.path == file.path));
    }
    let Ok(label) = id.with_generation(1) else { return Ok(None) };
    let key = Key { job: job.clone(), group: GroupId(0), label };
    let newest = if is_new { names.newest(store, &key, 0)?.last().copied() } else { None };
    Ok(newest.and_then(|newest| id.with_generation(newest.saturating_add(1)).ok()))
}

/// Whether the groups of a new content have rewritten all files of a step, and no file was cut. The content is compared
/// with the contents that are committed under the label, see [`rewritten`].
pub fn rewritten_by_all(
    store: &dyn Store,
    names: &Names,
    job: &JobId,
    label: &CheckpointId,
    groups: &[Arc<Vec<FileHeader>>],
) -> Result<Rewritten, StoreError> {
    let key = Key { job: job.clone(), group: GroupId(0), label: label.clone() };
    let generations = names.newest(store, &key, 0)?;
    let (mut partly, mut unknown) = (Vec::new(), None);
    for (group, files) in (0..).map(GroupId).zip(groups) {
        let mut own = Vec::new();
        for id in generations.iter().filter_map(|generation| label.with_generation(*generation).ok()) {
            match manifest::read_manifest(store, job, &id, group) {
                Ok(manifest) => own.push(manifest),
                Err(error @ ReadError::Io { .. }) => return Err(error.into()),
                Err(_) => {} // pruned, incomplete or damaged: gives no information about the steps
            }
        }
        own.sort_by_key(Manifest::place);
        match rewritten(&own, files) {
            Rewritten::Whole => partly.extend(cut(&own, files)),
            Rewritten::Partly(ranks) => partly.extend(ranks),
            Rewritten::Unknown(why) => unknown = unknown.or(Some(why)),
        }
    }
    Ok(match unknown {
        _ if !partly.is_empty() => Rewritten::Partly(partly),
        Some(why) => Rewritten::Unknown(why),
        None => Rewritten::Whole,
    })
}

/// The reason why a file of a new content was probably cut: it has fewer bytes than in another checkpoint. `None` if
/// there is no reason.
pub fn cut_since(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    groups: &[Arc<Vec<FileHeader>>],
) -> Result<Option<String>, StoreError> {
    for (group, files) in (0..).map(GroupId).zip(groups) {
        match manifest::read_manifest(store, job, id, group) {
            Ok(then) => {
                if let Some((_, why)) = cut(&[then], files) {
                    return Ok(Some(why));
                }
            }
            Err(error @ ReadError::Io { .. }) => return Err(error.into()),
            Err(_) => {} // pruned or damaged: gives no information about the lengths
        }
    }
    Ok(None)
}

/// The manifest of a group, if the group's files are already committed under a name.
pub fn committed(
    store: &dyn Store,
    job: &JobId,
    id: &CheckpointId,
    group: GroupId,
    grouping: Grouping,
    files: &[FileHeader],
) -> Result<Option<Manifest>, StoreError> {
    match manifest::read_manifest(store, job, id, group) {
        Ok(manifest) if same_content(&manifest, grouping, files) && manifest::has_container(store, &manifest)? => {
            Ok(Some(manifest))
        }
        Err(error @ ReadError::Io { .. }) => Err(error.into()),
        Ok(_) | Err(_) => Ok(None),
    }
}

/// The name under which other groups committed files of the same step. `None` if there is no such name, or if this
/// group cannot use the name. The files of one step are apart by the usual time, see [`usual_lag_ms`].
/// `own` has the contents that this group committed under the label, the oldest first.
fn fitting<'a>(taken: &'a [Taken], own: &[Manifest], ours_ms: i64, written: Written<'_>) -> Option<&'a Taken> {
    let spread_ms = i64::try_from(written.spread.as_millis()).unwrap_or(i64::MAX);
    let of_this_run = own.iter().filter(|own| own.incarnation == written.incarnation);
    let own_ms: Vec<i64> = of_this_run.map(|own| own.written_unix_ms).collect();
    let of_own_ms = step_ms(own, ours_ms).filter(|step_ms| *step_ms > 0 && !own_ms.is_empty());
    let lag_ms = usual_lag_ms(taken, own, written, of_own_ms);
    let apart_of = |ms: i64, other_ms: i64| ms.saturating_sub(lag_ms).saturating_sub(other_ms).saturating_abs();
    let apart = |other_ms: i64| apart_of(ours_ms, other_ms);
    // Finds the content that is nearest in time, even if this group has a part in that content. If this group has a
    // part in that content, the group's new files belong to a step that the other groups do not have.
    let (nearest, place) = (taken.iter().enumerate())
        .filter_map(|(i, taken)| taken.other_ms.map(|ms| (i, taken, ms)))
        .min_by_key(|(_, _, ms)| apart(*ms))
        .map(|(i, taken, _)| (taken, i))?;
    let other_ms = nearest.other_ms?;
    let is_within_spread = ours_ms.saturating_sub(other_ms).saturating_abs() <= spread_ms;
    let is_overwritten = written.not_before_ms.is_some_and(|ms| other_ms.saturating_add(lag_ms.max(0)) < ms);
    if nearest.ours || !is_within_spread || is_overwritten {
        return None;
    }
    // The length of a step is the time between the nearest content and the previous content, or the usual time between
    // the contents of this group. The shorter time is used, because a group may have missed steps.
    let before_ms = taken[..place].iter().rev().find_map(|taken| taken.other_ms);
    let of_others_ms = before_ms.map(|before_ms| other_ms.saturating_sub(before_ms).saturating_abs());
    let step_ms = [of_others_ms, of_own_ms].into_iter().flatten().min();
    // After the end of the application, the newest content of each group is of its last step.
    let is_newest = taken.iter().all(|taken| taken.other_ms <= nearest.other_ms);
    if written.has_ended && is_newest && step_ms.is_some_and(|step_ms| apart(other_ms) < step_ms) {
        return Some(nearest);
    }
    // If this group wrote an earlier content nearer in time to that content, the content belongs to an earlier step.
    if own_ms.iter().any(|own_ms| apart_of(*own_ms, other_ms) < apart(other_ms)) {
        return None;
    }
    // Files that are newer than the nearest content belong to the content's step only if they are at most half a step
    // newer.
    match step_ms {
        Some(step_ms) if ours_ms.saturating_sub(lag_ms) > other_ms && apart(other_ms) > step_ms / 2 => None,
        _ => Some(nearest),
    }
}

fn directory(key: &Key, id: &CheckpointId) -> std::path::PathBuf {
    Path::new(key.job.as_str()).join(id.as_str())
}

/// The names in the directory of a checkpoint. `None` if the directory does not exist.
fn names_in(store: &dyn Store, key: &Key, id: &CheckpointId) -> Result<Option<BTreeSet<String>>, StoreError> {
    match store.list_dir(&directory(key, id)) {
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
        Ok(entries) => Ok(Some(entries.into_iter().map(|entry| entry.name).filter(|name| visible(name)).collect())),
    }
}

/// Number of groups whose manifests are looked for before the directory of the checkpoint is listed.
const LOW_GROUPS: u32 = 4;

/// The manifest of another group, if one of the first groups is committed. In most cases the directory of the
/// checkpoint, which may have many names, need not be listed.
fn low_group(store: &dyn Store, key: &Key, id: &CheckpointId, groups: u32) -> Option<Manifest> {
    let mut others = (0..groups.min(LOW_GROUPS)).map(GroupId).filter(|group| *group != key.group);
    others.find_map(|group| manifest::read_manifest(store, &key.job, id, group).ok())
}

/// The manifest of another group. The name of this manifest is in `there`.
fn other_group(
    store: &dyn Store,
    key: &Key,
    id: &CheckpointId,
    groups: u32,
    there: &BTreeSet<String>,
) -> Option<Manifest> {
    let mut others = (0..groups).map(GroupId).filter(|group| *group != key.group);
    others.find_map(|group| match there.contains(&manifest_name(group)) {
        true => manifest::read_manifest(store, &key.job, id, group).ok(),
        false => None,
    })
}

fn is_pruned(store: &dyn Store, key: &Key, id: &CheckpointId) -> bool {
    manifest::state(store, &key.job, id).is_ok_and(|state| state.is_pruned)
}

fn same_content(manifest: &Manifest, grouping: Grouping, files: &[FileHeader]) -> bool {
    let saved = manifest.files.iter().filter(|file| !file.kind.is_companion());
    let files = files.iter().filter(|file| !file.kind.is_companion());
    let same = |(m, f): (&ManifestFile, &FileHeader)| m.path == f.path && m.rank == f.rank && m.digest == f.digest;
    manifest.ranks == grouping.ranks() && saved.clone().count() == files.clone().count() && saved.zip(files).all(same)
}

/// Whether a manifest has exactly these files, and no file was written again since.
pub(crate) fn has_saved(manifest: &Manifest, grouping: Grouping, files: &[FileHeader]) -> bool {
    same_content(manifest, grouping, files) && !are_newer(manifest, files)
}

/// Whether a restart skips a checkpoint because of a decision, and not because of the checkpoint's files. If the
/// application writes the content of such a checkpoint again, the content is a new checkpoint. Otherwise the newest
/// state of an application that computes the same numbers again would never be restored.
pub(crate) fn is_passed_over(state: &manifest::CheckpointState) -> bool {
    state.is_dead || state.is_set_aside || state.bad.is_some()
}

/// Whether files were modified later than the files of a manifest. The contents are equal.
fn are_newer(manifest: &Manifest, files: &[FileHeader]) -> bool {
    let newest = |times: &mut dyn Iterator<Item = (bool, i64)>| {
        times.filter(|(is_companion, _)| !is_companion).map(|(_, modified_ns)| modified_ns).max()
    };
    newest(&mut files.iter().map(|file| (file.kind.is_companion(), file.modified_ns)))
        > newest(&mut manifest.files.iter().map(|file| (file.kind.is_companion(), file.modified_ns)))
}

#[cfg(test)]
mod tests {
    use super::steps::tests::{WRITTEN, taken};
    use super::*;
    use crate::hub::tests::manifest_of;
    use mcrengine::store::{Fault, FaultyStore, MemoryStore, create_dirs};

    fn place(all: &[(bool, Option<i64>)], ours_s: i64) -> Option<String> {
        let all: Vec<_> = all.iter().map(|(ours, other_s)| (*ours, other_s.map(|s| s * 1000))).collect();
        fitting(&taken(&all), &[], ours_s * 1000, WRITTEN).map(|taken| taken.id.to_string())
    }

    fn nth(i: usize) -> Option<String> {
        Some(format!("restart.h5~{}", i + 2))
    }

    #[test]
    fn a_group_joins_the_step_at_which_the_others_wrote() {
        assert_eq!(place(&[(false, Some(1000))], 1003), nth(0));
        assert_eq!(place(&[(false, Some(1000))], 990), nth(0), "the group wrote first and commits last");
        assert_eq!(place(&[(true, Some(1000)), (false, Some(1060))], 1063), nth(1));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_listed_is_not_saved_once_more_under_another_name() {
        let (job, label): (JobId, CheckpointId) = ("j".parse().expect("valid"), "a".parse().expect("valid"));
        let store = MemoryStore::new();
        create_dirs(&store, Path::new("j/a")).expect("made");
        store.put(Path::new("j/a/group-0000.manifest"), b"not a manifest");
        let choose = |failures: usize| {
            let store = FaultyStore::new(store.clone(), Fault::None).with_failing_reads("j/a", failures);
            let grouping = Grouping::new(1, 1).expect("one rank");
            choose_for_all(
                &store,
                (&Names::default(), &BTreeSet::new()),
                &job,
                &label,
                grouping,
                &[Arc::new(Vec::new())],
            )
        };
        assert_eq!(choose(0).expect("the store can be read").0.to_string(), "a~2");
        let error = choose(usize::MAX).expect_err("the checkpoint may already be in the store");
        assert!(error.to_string().contains("j/a"), "{error}");
    }

    #[test]
    fn after_the_end_of_the_application_the_newest_contents_of_all_groups_are_of_one_step() {
        let own =
            |at_ms: i64| Manifest { written_unix_ms: at_ms, ..manifest_of(&"restart.h5".parse().expect("valid")) };
        // Each step takes 2.5 s, and this group writes its files 2 s after the other group.
        let (others, before) = ([(false, Some(5_000)), (false, Some(7_500))], [own(2_000), own(4_500), own(7_000)]);
        let joins = |others: &[(bool, Option<i64>)], has_ended| {
            let written = Written { has_ended, ..WRITTEN };
            fitting(&taken(others), &before, 9_500, written).map(|taken| taken.id.to_string())
        };
        assert_eq!(joins(&others, false), None, "the files of the others may be of the step before");
        assert_eq!(joins(&others, true), nth(1));
        assert_eq!(joins(&others[..1], true), None, "the last files of the others are not committed yet");
    }

    #[test]
    fn a_group_that_missed_steps_does_not_join_an_older_one() {
        let missed = [(false, Some(1000)), (false, Some(1060)), (false, Some(1120))];
        assert_eq!(place(&missed, 1121), nth(2), "the first content that lacks the group is of another step");
        assert_eq!(place(&missed, 1181), None, "the others have not committed this step yet");
        assert_eq!(place(&[(false, Some(1000))], 1000 + 601), None, "further apart than one checkpoint's files");
        assert_eq!(
            place(&[(true, Some(1000)), (true, Some(1060))], 1061),
            None,
            "the group is in the nearest content already"
        );
    }

    #[test]
    fn a_first_content_that_groups_wrote_apart_is_doubtful_until_it_is_known_how_long_a_step_takes() {
        let doubt = |label: &str, all: &[(bool, Option<i64>)], ours_ms: i64| {
            let (label, all) = (label.parse().expect("valid"), taken(all));
            let joined = fitting(&all, &[], ours_ms, WRITTEN).expect("joins");
            doubt_of_joining(&label, joined, &all, (Written { newest_ms: ours_ms, ..WRITTEN }, None)).is_some()
        };
        let (first, second) = ((false, Some(100_000)), (false, Some(104_000)));
        assert!(doubt("ck", &[first], 102_500) && doubt("restart.h5", &[first], 97_500));
        assert!(!doubt("ck", &[first], 100_900), "the groups wrote too near to each other for two steps");
        assert!(!doubt("ck_17", &[first], 102_500) && !doubt("ck_17.h5", &[first], 102_500), "numbered");
        assert!(!doubt("ck", &[first, second], 105_500), "a step takes 4 s");
    }

    #[test]
    fn groups_that_join_after_a_restart_are_doubtful_if_they_wrote_more_than_half_a_usual_step_apart() {
        let doubt = |ours_ms: i64, usual_ms: i64| {
            let (label, all) = ("ck".parse().expect("valid"), taken(&[(false, Some(100_000))]));
            let joined = fitting(&all, &[], ours_ms, WRITTEN).expect("joins");
            let written = Written { newest_ms: ours_ms, ..WRITTEN };
            doubt_of_joining(&label, joined, &all, (written, Some(usual_ms))).is_some()
        };
        assert!(doubt(105_000, 5_000), "the other group's step is probably the one before");
        assert!(!doubt(105_000, 60_000), "the ranks of a long step may write seconds apart");
        assert!(!doubt(100_900, 1_000), "the groups wrote too near to each other for two steps");
    }

    #[test]
    fn what_was_overwritten_since_is_not_joined() {
        let written = Written { not_before_ms: Some(1_030_000), ..WRITTEN };
        assert!(fitting(&taken(&[(false, Some(1_000_000))]), &[], 1_060_000, written).is_none());
        let written = Written { not_before_ms: None, ..written };
        assert!(fitting(&taken(&[(false, Some(1_000_000))]), &[], 1_060_000, written).is_some());
    }
}
