//! Under which name a content is committed.
//!
//! Codes that overwrite their checkpoint under one name (`restart.h5`) save another content each time, and a committed
//! checkpoint is never changed. So the first content is `restart.h5`, the next `restart.h5~2`, and so on. Every group
//! finds the number by itself, from the store alone: the first one under which its own manifest is missing and the
//! other groups' files, if there are any, were written at the same time as its own.

use crate::hub::Key;
use mcrengine::container::ReadError;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, Grouping};
use mcrengine::manifest::{self, Manifest};
use mcrengine::store::Store;
use std::time::Duration;

/// What to do with a content.
pub enum Instance {
    /// It is committed already.
    There(Box<Manifest>),
    /// Commit it under this name.
    New(CheckpointId),
}

/// The most contents under one name that are looked at.
const GENERATIONS_MAX: u32 = 1 << 20;

/// Finds the name. `spread` is how far apart the files of one checkpoint may be written.
pub fn choose_instance(
    store: &dyn Store,
    key: &Key,
    grouping: Grouping,
    files: &[FileHeader],
    spread: Duration,
) -> Result<Instance, ReadError> {
    let newest_ms = |files: &[FileHeader]| files.iter().map(|f| f.modified_ns / 1_000_000).max().unwrap_or(0);
    let ours_ms = newest_ms(files);
    let spread_ms = i64::try_from(spread.as_millis()).unwrap_or(i64::MAX);
    for generation in 1..GENERATIONS_MAX {
        let Ok(id) = key.label.with_generation(generation) else { break };
        match manifest::read_manifest(store, &key.job, &id, key.group) {
            Ok(manifest) if same_content(&manifest, grouping, files) => return Ok(Instance::There(Box::new(manifest))),
            Ok(_) => continue,
            Err(ReadError::Missing { .. }) => {}
            // Ours, but not readable: it stays as evidence, and the content is saved under the next name.
            Err(error) if !matches!(error, ReadError::Io { .. }) => continue,
            Err(error) => return Err(error),
        }
        let others = (0..grouping.groups()).map(GroupId).filter(|group| *group != key.group);
        let mut fits = true;
        for group in others.take(64) {
            if let Ok(other) = manifest::read_manifest(store, &key.job, &id, group) {
                fits = other.ranks == grouping.ranks() && (other.written_unix_ms - ours_ms).abs() <= spread_ms;
                break;
            }
        }
        if fits {
            return Ok(Instance::New(id));
        }
    }
    Ok(Instance::New(key.label.clone()))
}

fn same_content(manifest: &Manifest, grouping: Grouping, files: &[FileHeader]) -> bool {
    manifest.ranks == grouping.ranks()
        && manifest.files.len() == files.len()
        && manifest.files.iter().zip(files).all(|(m, f)| m.path == f.path && m.rank == f.rank && m.digest == f.digest)
}
