//! Copies the records of incarnations to another job, so that a restart from the copy makes the same choice.

use super::{
    Incarnation, Incarnations, RECORDS_READ_MAX, directory, has_any_part, numbers, parts_directory, read, record_name,
    remove_old_records,
};
use crate::copy::{Route, Side};
use crate::error::{CopyError, ReadError, StoreError};
use crate::living::is_any_held;
use crate::manifest::{CheckpointState, Place, with_job};
use crate::store::{Store, create_dirs, visible};
use std::path::{Path, PathBuf};

/// The numbers of the records that the destination lacks, in increasing order. Fails if the destination has another
/// history than the source, or if a running program saves checkpoints of the destination's job. Also fails if, with
/// these records, a restart would no longer use a complete checkpoint of the destination that is not known to be a
/// checkpoint of the source. `theirs` and `ours` are the checkpoints of the source and of the destination.
pub(crate) fn missing_records(
    route: &Route<'_>,
    theirs: &[CheckpointState],
    ours: &[CheckpointState],
) -> Result<Vec<u32>, CopyError> {
    let (from, to) = (numbers(route.from.store, route.from.job)?, numbers(route.to.store, route.to.job)?);
    let refuse = |what: String| CopyError::Refused {
        path: route.to.full_job(),
        what,
        way_out: "copy to a job with another name (--to-job)",
    };
    let (first, last) = (to.first().copied().unwrap_or(u32::MAX), to.last().copied().unwrap_or(0));
    let mut missing = Vec::new();
    for &number in &from {
        if number > last {
            missing.push(number);
        } else if to.contains(&number) {
            let known = read(route.to.store, route.to.job, number)?;
            let other = Incarnation { job: known.job.clone(), ..read(route.from.store, route.from.job, number)? };
            if known != other {
                return Err(refuse(format!("its incarnation {number} is not that of the source")));
            }
        } else if number > first {
            return Err(refuse(format!("it has later incarnations, but not incarnation {number} of the source")));
        }
    }
    let is_gap = |number: &&u32| from.first().is_some_and(|low| low < *number) && from.last() > Some(*number);
    if let Some(number) = to.iter().filter(is_gap).find(|number| !from.contains(number)) {
        return Err(refuse(format!("it has incarnation {number}, which the source does not have")));
    }
    if missing.is_empty() {
        return Ok(missing);
    }
    if is_any_held(route.to.store, route.to.job)? {
        return Err(refuse("a running program saves checkpoints of this job".into()));
    }
    let before = Incarnations::load(route.to.store, route.to.job)?;
    let mut after = before.clone();
    for &number in &missing {
        after.0.push(read(route.from.store, route.from.job, number)?);
    }
    let is_out = |all: &Incarnations, state: &CheckpointState| {
        let out = |place: Place| all.is_dead(&state.id, place) || all.line().set_aside_by(place).is_some();
        state.place.is_some_and(out)
    };
    let is_of_source = |state: &CheckpointState| {
        let is_same = |other: &CheckpointState| (&other.id, other.place) == (&state.id, state.place);
        theirs.iter().any(is_same) || after.0[before.0.len()..].iter().any(|record| record.whole.contains(&state.id))
    };
    let is_hurt = |state: &&CheckpointState| {
        state.is_complete() && is_out(&after, state) && !is_out(&before, state) && !is_of_source(state)
    };
    match ours.iter().find(is_hurt) {
        None => Ok(missing),
        Some(state) => Err(refuse(format!(
            "with the incarnations of the source, a restart would no longer take its checkpoint {}",
            state.id
        ))),
    }
}

/// Copies the records `missing` to the destination. For each of the newest incarnations, also copies one file that
/// shows that a part of the job was restored. The directory of the job must exist in the destination.
pub(crate) fn add_records(route: &Route<'_>, missing: &[u32]) -> Result<(), CopyError> {
    let dir = directory(route.to.store, route.to.job)?;
    if !missing.is_empty() {
        create_dirs(route.to.store, &dir)?;
    }
    for &number in missing {
        let (path, text) = text_of(&route.from, number)?;
        let text = match route.keeps_name() {
            true => text,
            false => with_job(&text, route.to.job, &path, "the record of an incarnation")?,
        };
        let (name, full) = (record_name(number), dir.join(record_name(number)));
        Incarnation::parse(&text, &route.to.full(&full))?;
        let mut temp = route.to.store.create_temp(&dir, &name)?;
        temp.append(&text)?;
        temp.sync()?;
        if !route.to.store.rename_new(temp.path(), &full)? {
            return Err(StoreError::Busy { path: route.to.full(&full) }.into());
        }
        route.to.store.sync_dir(&dir)?;
    }
    let numbers = numbers(route.from.store, route.from.job)?;
    for &number in numbers.iter().rev().take(RECORDS_READ_MAX as usize) {
        copy_one_part(route, number)?;
    }
    if !missing.is_empty() {
        remove_old_records(route.to.store, route.to.job)?;
    }
    Ok(())
}

/// Path and text of a record. The text was checked.
fn text_of(side: &Side<'_>, number: u32) -> Result<(PathBuf, Vec<u8>), CopyError> {
    read(side.store, side.job, number)?;
    let relative = directory(side.store, side.job)?.join(record_name(number));
    let path = side.full(&relative);
    Ok((path.clone(), small_file(side.store, &relative)?))
}

fn small_file(store: &dyn Store, relative: &Path) -> Result<Vec<u8>, CopyError> {
    let file = store.open(relative)?;
    let (path, len) = (store.root().join(relative), file.len());
    if len > super::RECORD_BYTES_MAX {
        let what = format!("it has {len} bytes, more than {}", super::RECORD_BYTES_MAX);
        return Err(ReadError::Invalid { path, part: "the record of an incarnation", what }.into());
    }
    let mut text = vec![0; len as usize];
    file.read_at(0, &mut text).map_err(|source| ReadError::Io { path, offset: 0, len, source })?;
    Ok(text)
}

/// Copies the file of one restored part of an incarnation, if the destination has the record and no such file. One
/// file is enough to count the restarts from a checkpoint.
fn copy_one_part(route: &Route<'_>, number: u32) -> Result<(), CopyError> {
    let Route { from, to } = route;
    if has_any_part(to.store, to.job, number)? || !has_any_part(from.store, from.job, number)? {
        return Ok(());
    }
    if read(to.store, to.job, number).is_err() {
        return Ok(()); // the destination no longer keeps this old record
    }
    let source = parts_directory(from.store, from.job, number)?;
    let entries = from.store.list_dir(&source)?;
    let Some(part) = entries.iter().find(|entry| !entry.is_dir && visible(&entry.name)) else { return Ok(()) };
    let text = small_file(from.store, &source.join(&part.name))?;
    let dir = parts_directory(to.store, to.job, number)?;
    create_dirs(to.store, &dir)?;
    let mut temp = to.store.create_temp(&dir, &part.name)?;
    temp.append(&text)?;
    temp.sync()?;
    to.store.rename(temp.path(), &dir.join(&part.name))?;
    Ok(to.store.sync_dir(&dir)?)
}
