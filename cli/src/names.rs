//! Looks again at the names of files while an agent runs with a guessed layout.
//!
//! An agent guesses the layout from the first files. Later files may have other names, for example if an application
//! uses two names alternately. If all files show another layout, in which the first files belong to the same
//! checkpoints as before, the agent continues with this layout. Restart files outweigh outputs for analysis: if the
//! first files were only such outputs, they may belong to no checkpoint of the other layout. In all other cases the
//! log names the later files, because they are not saved. If `mcr save` would ask about the same files, the log has
//! this question.

use crate::counted;
use crate::overlooked::only_written;
use mcr_cnc::companions::leave_out_pointers;
use mcr_cnc::config::CncConfig;
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::layout::pointers::may_be_left;
use mcr_cnc::layout::{Explanation, Layout, Listing, Unplaced, list};
use mcr_cnc::restored::{Put, Restored};
use mcrengine::ids::FilePath;
use std::path::Path;
use std::time::Duration;

/// Minimum pause between two looks at the names. After a look of more than 0.5 s, the pause is longer.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// The result of a look at the names of the files.
pub enum Names {
    /// The layout fits.
    Fit,
    /// Another layout fits better.
    Other(Layout),
    /// Files do not fit the layout.
    Misfit(Misfit),
}

/// Files that do not fit a guessed layout.
#[derive(Default)]
pub struct Misfit {
    /// The files that belong to no checkpoint. A restart file among them was written since the agent began.
    pub left: Option<Unplaced>,
    /// The question that `mcr save` asks about the same files, if the guess from all names is not certain.
    pub asks: Option<String>,
}

/// Compares the files below the watched directory with the guessed layout.
pub fn look(config: &CncConfig, layout: &Layout) -> Names {
    // The agent reports a directory that cannot be read.
    let Ok(mut listing) = list(&config.watch, &config.scan_limits()) else { return Names::Fit };
    leave_out_pointers(&mut listing, &config.watch, layout);
    leave_out_copies(&mut listing, &config.watch, layout);
    let mut left = layout.unplaced(&listing);
    // The agent counts one rank if the names that it saw first have no ranks. Later names may have ranks.
    let ranks = config.ranks.filter(|ranks| *ranks > 1 || config.ranks_from != counted::FROM);
    let (other, explanation) = Layout::guess_while_running(&listing, &config.watch, ranks);
    let concerns = left.is_some() || contradicts(layout, &other, &listing, &explanation);
    let asks = explanation.asks.filter(|_| concerns).or_else(|| layout.two_runs(&listing));
    let Some(left_files) = left.as_ref().map(|left| left.files) else {
        return asks.map_or(Names::Fit, |asks| Names::Misfit(Misfit { left: None, asks: Some(asks) }));
    };
    let of_other = other.unplaced(&listing);
    let is_better = of_other.as_ref().is_none_or(|of_other| of_other.files < left_files);
    let has_restart = left.as_ref().is_some_and(|left| left.restart.is_some());
    let adds_restart_files = has_restart && of_other.is_none_or(|of_other| of_other.restart.is_none());
    if explanation.certain && asks.is_none() && is_better && agree(layout, &other, &listing, adds_restart_files) {
        return Names::Other(other);
    }
    // Restart files from before the start may be inputs.
    only_written(config, &mut listing);
    let restart = layout.unplaced(&listing).and_then(|left| left.restart);
    left.iter_mut().for_each(|left| left.restart.clone_from(&restart));
    Names::Misfit(Misfit { left, asks })
}

/// Removes from a listing the copies that a restart put below the watched directory, unless the layout places them.
pub fn leave_out_copies(listing: &mut Listing, watch: &Path, layout: &Layout) {
    let restored = Restored::load(watch);
    let is_copy = |path: &FilePath| {
        let found = watch.join(path.as_path()).symlink_metadata();
        found.is_ok_and(|found| restored.put(path, &Fingerprint::of(&found)) == Some(Put::Below))
    };
    listing.leave_out_files(|path| layout.place(path).is_none() && is_copy(path));
}

/// Whether a question about the names of all files concerns the layout, although the layout places all files. A
/// guess that gives the same checkpoints and ranks may ask only while the application writes a checkpoint.
fn contradicts(old: &Layout, new: &Layout, listing: &Listing, explanation: &Explanation) -> bool {
    !explanation.may_be_ranks && (!old.has_ranks() || !agree(old, new, listing, false))
}

/// Whether all files of the old layout belong to the same checkpoints and ranks in the new layout. If the new layout
/// adds restart files, it need not have outputs for analysis.
fn agree(old: &Layout, new: &Layout, listing: &Listing, adds_restart_files: bool) -> bool {
    listing.files.iter().all(|path| match (old.place(path), new.place(path)) {
        (None, _) => true,
        (Some(old), Some(new)) => (old.checkpoint, old.rank) == (new.checkpoint, new.rank),
        (Some(_), None) => adds_restart_files && may_be_left(path.as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::FilePath;

    #[test]
    fn a_layout_that_adds_restart_files_need_not_have_outputs_for_analysis() {
        let layout = |pattern: &str| Layout::from_patterns(&[pattern], 0).expect("valid");
        let listing = |names: &[&str]| {
            let files = names.iter().map(|name| FilePath::new(name.as_bytes()).expect("valid")).collect();
            Listing { files, ..Listing::default() }
        };
        let (old, new) = (layout("{checkpoint:wrfout_[^/]+}"), layout("wrfrst_{checkpoint}"));
        let all = listing(&["wrfout_d01_1", "wrfout_d01_2", "wrfrst_d01_2"]);
        assert!(agree(&old, &new, &all, true) && !agree(&old, &new, &all, false));
        let (old, all) = (layout("fields_{checkpoint}"), listing(&["fields_1", "wrfrst_d01_2"]));
        assert!(!agree(&old, &new, &all, true), "fields_1 may be a state");
    }
}
