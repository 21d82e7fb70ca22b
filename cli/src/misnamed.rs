//! At the end of `mcr run`, reports files of the application that the layout cannot place.

use crate::exit::NOT_COMMITTED;
use crate::names::Misfit;
use crate::overlooked;
use mcr_cnc::config::{CncConfig, LayoutChoice};
use mcr_cnc::layout::{Unplaced, list};
use mcrengine::store::{PosixStore, Store, visible};
use std::path::Path;

/// Logs an error if the application has written files, but no file matches the layout that the user wrote. Returns
/// whether the error was logged. If the job has checkpoints, there is no error, because matching files may have been
/// deleted after their commit.
pub fn report_misnamed(config: &CncConfig, store: &Path) -> bool {
    let LayoutChoice::Known(layout) = &config.layout else { return false };
    let of_job = PosixStore::open(store).and_then(|store| store.list_dir(Path::new(config.job.as_str())));
    if of_job.is_ok_and(|entries| entries.iter().any(|entry| visible(&entry.name))) {
        return false;
    }
    // If the directory cannot be read, the agent has reported the error.
    let Ok(listing) = list(&config.watch, &config.scan_limits()) else { return false };
    let listing = overlooked::of_the_application(listing, &config.watch, Some(store));
    let files = &listing.files;
    let Some(first) = files.first() else { return false };
    if files.iter().any(|path| layout.place(path).is_some()) || !overlooked::was_written(config, &listing) {
        return false;
    }
    tracing::error!(
        exit_status = NOT_COMMITTED,
        watch = %config.watch.display(), files = files.len(), %first,
        "not committed: no file matches the layout, so nothing was saved; correct --layout, or save the files with \
         mcr save"
    );
    true
}

/// Logs the files that do not fit a guessed layout. Returns whether these files are few, none of them is named as a
/// restart file, and the names of all files show one layout.
pub fn report_misfit(Misfit { left, asks }: Misfit) -> bool {
    let Some(Unplaced { first, files, of, are_many, restart, .. }) = left else {
        if let Some(why) = &asks {
            tracing::error!(
                exit_status = NOT_COMMITTED,
                why,
                "the names of all files do not show the layout: the saved checkpoints may be only parts of \
                 checkpoints; name the layout with --layout, or save the files with mcr save"
            );
        }
        return asks.is_none();
    };
    let (is_restart, first) = (restart.is_some(), restart.unwrap_or(first));
    match is_restart || are_many || asks.is_some() {
        true if is_restart => tracing::error!(
            exit_status = NOT_COMMITTED, files, of, %first, why = asks,
            "not committed: restart files belong to no checkpoint of the layout; name the layout with --layout, or \
             layout in the configuration, or save them with mcr save"
        ),
        true => tracing::error!(
            exit_status = NOT_COMMITTED, files, of, %first, why = asks,
            "not committed: files belong to no checkpoint of the layout; name the layout with --layout, or layout \
             in the configuration, or save them with mcr save"
        ),
        false => {
            tracing::warn!(files, of, %first, "files belong to no checkpoint of the layout and are not saved")
        }
    }
    !is_restart && !are_many && asks.is_none()
}
