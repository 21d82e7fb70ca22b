//! Looks again at the names of files while an agent runs with a guessed layout.
//!
//! An agent guesses the layout from the first files. Later files may have other names, for example if an application
//! uses two names alternately. If all files show another layout, in which the first files belong to the same
//! checkpoints as before, the agent continues with this layout. Otherwise the log names the later files, because they
//! are not saved.

use mcr_cnc::companions::leave_out_pointers;
use mcr_cnc::layout::{Layout, Listing, ScanLimits, Unplaced, list};
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
    /// These files belong to no checkpoint.
    Left(Unplaced),
}

/// Compares the files below a directory with the guessed layout. `ranks`: the number of ranks, if it is known.
pub fn look(watch: &Path, layout: &Layout, ranks: Option<u32>) -> Names {
    // The agent reports a directory that cannot be read.
    let Ok(mut listing) = list(watch, &ScanLimits::default()) else { return Names::Fit };
    leave_out_pointers(&mut listing, watch, layout);
    let Some(left) = layout.unplaced(&listing) else { return Names::Fit };
    let (other, explanation) = Layout::guess_while_running(&listing, watch, ranks);
    let is_better = other.unplaced(&listing).is_none_or(|of_other| of_other.files < left.files);
    match explanation.certain && explanation.asks.is_none() && is_better && agree(layout, &other, &listing) {
        true => Names::Other(other),
        false => Names::Left(left),
    }
}

/// Whether all files of the old layout belong to the same checkpoints and ranks in the new layout.
fn agree(old: &Layout, new: &Layout, listing: &Listing) -> bool {
    let mut placed = listing.files.iter().filter_map(|path| Some((old.place(path)?, new.place(path))));
    placed.all(|(old, new)| new.is_some_and(|new| (old.checkpoint, old.rank) == (new.checkpoint, new.rank)))
}
