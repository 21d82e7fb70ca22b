//! At the end of a job, reports paths below the watched directory that the agent could not save, although these paths
//! may belong to a checkpoint. The watcher reports such a path only if the path changes.

use crate::advice::Advised;
use crate::exit::NOT_COMMITTED;
use crate::settings::USER_FILE;
use mcr_cnc::clock::ahead_ns;
use mcr_cnc::companions::is_pointer_name;
use mcr_cnc::config::{CncConfig, LayoutChoice};
use mcr_cnc::layout::of_job::is_batch_output;
use mcr_cnc::layout::pointers::{is_temporary, may_be_left};
use mcr_cnc::layout::{Layout, Linked, Listing, Skipped, linked, list};
use mcr_cnc::watch::Unreadable;
use mcrengine::ids::FilePath;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Logs the paths that could not be saved. Returns `true` if there are no such paths. Logs of the application, and
/// files that match no pattern of the layout, are named too, but do not change the result. `used`: the layout that
/// the agent used, if an agent ran. `known`: the directories that the agent could not read, which are reported
/// elsewhere.
pub fn report(config: &CncConfig, store: &Path, used: Option<&Layout>, known: &[Unreadable]) -> bool {
    // If the directory cannot be read, the agent has reported the error.
    let Ok(mut listing) = list(&config.watch, &config.scan_limits()) else { return true };
    leave_out_store(&mut listing, &config.watch, store);
    if let Some(layout) = used {
        report_by_name(layout, &listing);
    }
    let watch = config.watch.canonicalize().unwrap_or_else(|_| config.watch.clone());
    let is_known = |path: &Path| known.iter().any(|known| watch.join(path).starts_with(&known.path));
    let hides_files = |skipped: &&Skipped| skipped.hides_files && !is_known(&skipped.path);
    let unreadable: Vec<_> = listing.skipped.iter().filter(hides_files).collect();
    if let Some(first) = unreadable.first() {
        tracing::error!(
            exit_status = NOT_COMMITTED, paths = unreadable.len(), first = %first.path.display(), why = first.reason,
            "not committed: these paths cannot be read"
        );
        return false;
    }
    let known = match &config.layout {
        LayoutChoice::Known(layout) => Some(layout),
        LayoutChoice::Whole | LayoutChoice::Guess => None,
    };
    let unnamed = known.map(|layout| unnamed(layout, &listing)).unwrap_or_default();
    if let Some(first) = unnamed.first() {
        tracing::warn!(
            files = unnamed.len(), %first,
            "files in the directories of checkpoints match no pattern of the layout, and are not saved"
        );
    }
    let linked = used.or(known).map(|layout| written_through(config, &listing, layout)).unwrap_or_default();
    if let Some(Linked { checkpoint, rank, link, .. }) = linked.first() {
        tracing::error!(
            exit_status = NOT_COMMITTED, %checkpoint, rank = rank.0, links = linked.len(), first = %link.display(),
            "not committed: the files of ranks are symbolic links to files elsewhere, and only links to directories of \
             the same owner are followed; let the application write files, or watch the directory to which the links \
             lead"
        );
        return false;
    }
    if let (None, Some(link)) = (listing.files.first(), listing.links.first()) {
        tracing::error!(
            exit_status = NOT_COMMITTED, first = %link.display(),
            "not committed: the watched directory holds no files, only symbolic links that are not followed, because \
             they lead to no directory of the same owner; watch the directory to which the link leads"
        );
        return false;
    }
    true
}

/// Reports files that are not saved because of their names.
fn report_by_name(layout: &Layout, listing: &Listing) {
    let left = |is: &dyn Fn(&FilePath) -> bool| {
        let is_saved = |path: &FilePath| layout.place(path).is_some() || layout.attends(path.name());
        let mut left = listing.files.iter().filter(|path| !is_saved(path) && is(path));
        left.next().map(|first| (first.clone(), 1 + left.count()))
    };
    if let Some((first, files)) = left(&|path| layout.may_leave(path)) {
        tracing::info!(files, %first, "files with the names of logs, older copies, plots or inputs are not saved");
    }
    if let Some((first, files)) = left(&|path| is_temporary(path.as_bytes())) {
        tracing::info!(
            files, %first,
            "files with temporary names are not saved: the application renames such a file when the file is whole"
        );
    }
}

/// The paths below the watched directory, relative to it, that do not belong to the application: the store and the
/// agent's state file.
///
/// # Errors
///
/// The watched directory is the store, or is inside the store.
pub fn left_out(watch: &Path, store: &Path, state_file: &Path) -> Result<Vec<PathBuf>, Advised> {
    let Ok(real_watch) = watch.canonicalize() else { return Ok(Vec::new()) };
    let below = |path: PathBuf| path.strip_prefix(&real_watch).ok().map(Path::to_owned);
    let mut left_out = Vec::new();
    if let Ok(real_store) = store.canonicalize() {
        if real_watch.starts_with(&real_store) {
            let (watch_name, store_name) = (watch.display(), store.display());
            let what = format!("{watch_name}: it is inside the store {store_name}, and nothing was started");
            let advice = "watch the directory of the application, or name a store elsewhere";
            return Err(Advised::new(what, advice).at(watch));
        }
        left_out.extend(below(real_store));
    }
    // The state file may not exist yet.
    let directory = state_file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let (Ok(directory), Some(name)) = (directory.canonicalize(), state_file.file_name()) {
        left_out.extend(below(directory.join(name)));
    }
    Ok(left_out)
}

fn leave_out_store(listing: &mut Listing, watch: &Path, store: &Path) {
    if let (Ok(watch), Ok(store)) = (watch.canonicalize(), store.canonicalize())
        && let Ok(below) = store.strip_prefix(watch)
    {
        listing.leave_out(below);
    }
}

/// The files of the application: without the store, the user's settings `mcr.toml`, and the output of a batch script.
pub fn of_the_application(mut listing: Listing, watch: &Path, store: Option<&Path>) -> Listing {
    store.into_iter().for_each(|store| leave_out_store(&mut listing, watch, store));
    let is_of_job = |path: &&FilePath| path.name() == USER_FILE.as_bytes() || is_batch_output(path.name());
    let of_job: Vec<FilePath> = listing.files.iter().filter(is_of_job).cloned().collect();
    of_job.iter().for_each(|path| listing.leave_out(path.as_path()));
    listing
}

/// Whether one of the files was written after this process began.
pub fn was_written(config: &CncConfig, listing: &Listing) -> bool {
    let began = began(config);
    let is_before = |path: &FilePath, modified: &SystemTime| config.written_before.get(path) == Some(modified);
    let mut files = listing.files.iter().zip(&listing.modified);
    files.any(|(path, modified)| *modified >= began && !is_before(path, modified))
}

/// Whether a file of a checkpoint was written after this process began. Must run on a thread that may block.
pub fn has_written(config: &CncConfig, layout: &Layout) -> bool {
    let Ok(listing) = list(&config.watch, &config.scan_limits()) else { return false };
    was_written(config, &listing) && listing.files.iter().any(|path| layout.place(path).is_some())
}

/// Leaves out the files that were not written since this process began.
pub fn only_written(config: &CncConfig, listing: &mut Listing) {
    listing.only_since(began(config));
    listing.leave_out_unchanged(&config.written_before);
}

/// The files whose times may be the times of this process, although they exist before the application starts. Files
/// are found only if this function runs before the application starts.
pub fn written_before(config: &CncConfig) -> BTreeMap<FilePath, SystemTime> {
    let Ok(mut listing) = list(&config.watch, &config.scan_limits()) else { return BTreeMap::new() };
    listing.only_since(began(config));
    listing.files.into_iter().zip(listing.modified).collect()
}

/// The time when this process began, by the clock of the watched file system.
pub fn began(config: &CncConfig) -> SystemTime {
    let began_ns = u64::try_from(config.began_ns.saturating_sub(ahead_ns(&config.watch))).unwrap_or(0);
    // File times advance in steps of up to 10 ms.
    UNIX_EPOCH + Duration::from_nanos(began_ns).saturating_sub(Duration::from_millis(20))
}

/// The files that match no pattern of the layout although they are in the directory of a checkpoint. Pointer files
/// need no pattern.
fn unnamed<'a>(layout: &Layout, listing: &'a Listing) -> Vec<&'a FilePath> {
    let of_checkpoints: BTreeSet<PathBuf> = (listing.files.iter())
        .filter(|path| layout.place(path).is_some())
        .filter_map(|path| layout.own_directory(path))
        .filter(|directory| directory != Path::new(""))
        .collect();
    let is_in_one = |path: &&FilePath| path.as_path().ancestors().skip(1).any(|dir| of_checkpoints.contains(dir));
    let is_beside = |name: &[u8]| is_pointer_name(name) || layout.attends(name);
    let is_unnamed = |path: &&FilePath| layout.place(path).is_none() && !is_beside(path.name());
    listing.files.iter().filter(is_in_one).filter(is_unnamed).collect()
}

/// The links in place of ranks' files that lead to files which the application has written since this process began, or
/// whose rank is missing from a checkpoint. A link to a file of an earlier run is an input of the application.
fn written_through(config: &CncConfig, listing: &Listing, layout: &Layout) -> Vec<Linked> {
    let began = began(config);
    let mut linked = linked(listing, layout, &config.watch);
    linked.retain(|linked| {
        (linked.is_missing || linked.modified >= began) && !may_be_left(linked.link.as_os_str().as_bytes())
    });
    linked
}
