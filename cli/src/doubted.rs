//! At the end of `mcr run`, reports that the newest checkpoint of the run is doubtful.

use crate::exit::NOT_COMMITTED;
use crate::overlooked;
use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::list;
use mcrengine::ids::{GroupId, Rank};
use mcrengine::manifest::{self, About, CheckpointState, ManifestFile};
use mcrengine::marks::{doubt, mark_certain};
use mcrengine::store::PosixStore;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// Logs an error if the newest checkpoint that this run has saved is doubtful. Returns `true` if it is not doubtful,
/// or if the run has saved no checkpoint. `has_seen_files`: whether files of checkpoints were below the watched
/// directory during the run. If no checkpoint was saved and the files are gone, logs an error and returns `false`.
/// If the command ended with success, a doubt whether the files are of one step is taken back, if possible.
pub fn report(config: &CncConfig, store: &Path, has_seen_files: bool) -> bool {
    // A store that does not exist has no checkpoint.
    let open = PosixStore::open(store).ok();
    let states = match open.as_ref().map(|open| manifest::list(open, &config.job)) {
        None => Vec::new(),
        Some(Ok(states)) => states,
        Some(Err(error)) => {
            tracing::warn!(%error, "it is not known whether the newest checkpoint is doubtful; see mcr list");
            return true;
        }
    };
    if !states.iter().any(|state| is_of_run(state, config.began_ns)) {
        let listing = list(&config.watch, &config.scan_limits()).ok();
        let is_written = listing.is_some_and(|listing| overlooked::was_written(config, &listing));
        if has_seen_files && !is_written {
            tracing::error!(
                exit_status = NOT_COMMITTED,
                watch = %config.watch.display(),
                "this run saved no checkpoint: the files of a checkpoint were removed before they were saved; to save \
                 from the first checkpoint on, give --ranks and --layout"
            );
            return false;
        }
        if !is_written {
            tracing::warn!(
                watch = %config.watch.display(),
                "this run saved no checkpoint, and no file of the application was found below the watched directory; \
                 if the application has written a checkpoint, give its directory with --watch"
            );
        }
        return true;
    }
    let Some((newest, why)) = newest_doubt(&states, config.began_ns) else { return true };
    if let Some(open) = open.as_ref().filter(|_| config.has_ended_well)
        && doubt(open, &config.job, &newest.id).is_none()
        && is_left_as_saved(open, config, newest)
    {
        let certain = "the command ended with success and left exactly these files";
        match mark_certain(open, &config.job, &newest.id, certain) {
            Ok(()) => {
                tracing::info!(checkpoint = %newest.id, "the newest checkpoint is no longer doubtful: {certain}");
                return true;
            }
            Err(error) => tracing::warn!(%error, "the newest checkpoint cannot be marked as certain"),
        }
    }
    tracing::error!(
        exit_status = NOT_COMMITTED, checkpoint = %newest.id, why,
        "the newest checkpoint is doubtful: a restart takes an older checkpoint if there is one without doubt"
    );
    false
}

/// Whether the watched directory has all files of a checkpoint, with the lengths and the times of the checkpoint, this
/// run has written files of each rank, and the manifests doubt only whether the files are of one step.
fn is_left_as_saved(store: &PosixStore, config: &CncConfig, state: &CheckpointState) -> bool {
    let began = overlooked::began(config);
    // The ranks, and whether this run has written one of their files.
    let mut ranks: BTreeMap<Rank, bool> = BTreeMap::new();
    let mut is_same = |file: &ManifestFile| {
        let Ok(found) = config.watch.join(file.path.as_path()).symlink_metadata() else { return false };
        let of = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let changed_ns = u64::try_from(of(found.ctime(), found.ctime_nsec())).unwrap_or(0);
        *ranks.entry(file.rank).or_default() |= UNIX_EPOCH + Duration::from_nanos(changed_ns) >= began;
        let is_of_time = of(found.mtime(), found.mtime_nsec()) == i128::from(file.modified_ns);
        found.is_file() && found.len() == file.bytes && is_of_time
    };
    let are_same = (0..state.groups).map(GroupId).all(|group| {
        let manifest = manifest::read_manifest(store, &config.job, &state.id, group);
        manifest.is_ok_and(|manifest| {
            manifest.doubt.as_ref().is_none_or(|doubt| doubt.about == About::Step)
                && manifest.files.iter().filter(|file| file.kind.is_regular()).all(&mut is_same)
        })
    });
    are_same && ranks.values().all(|is_written| *is_written)
}

/// The newest complete checkpoint that was saved since this time, and the reason for its doubt, if there is one.
/// `states`: the newest checkpoint first. `began_ns`: in nanoseconds since 1970.
fn newest_doubt(states: &[CheckpointState], began_ns: i64) -> Option<(&CheckpointState, &str)> {
    let newest = states.iter().find(|state| is_of_run(state, began_ns))?;
    Some((newest, newest.doubt.as_deref()?))
}

/// Whether a complete checkpoint was saved since this time, in nanoseconds since 1970.
fn is_of_run(state: &CheckpointState, began_ns: i64) -> bool {
    state.is_complete() && state.created_unix_ms >= u64::try_from(began_ns / 1_000_000).unwrap_or(0)
}
