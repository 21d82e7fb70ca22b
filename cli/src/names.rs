//! Looks again at the names of files while an agent runs with a guessed layout.
//!
//! An agent guesses the layout from the first files. Later files may have other names, such as the second of two names
//! that are used in turn. If they show another layout in which the files so far belong to the same checkpoints, the
//! agent continues with this layout. Otherwise the files are named, because they are not saved.

use mcr_cnc::layout::{Layout, Listing, ScanLimits, Unplaced, list};
use std::path::Path;
use std::time::Duration;

/// Minimum interval of the looks. It is longer if a look takes long.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// What the names of the files show.
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
    // A directory that cannot be read now is reported by the agent.
    let Ok(listing) = list(watch, &ScanLimits::default()) else { return Names::Fit };
    let Some(left) = layout.unplaced(&listing) else { return Names::Fit };
    let (other, explanation) = Layout::guess_while_running(&listing, watch, ranks);
    let is_better = other.unplaced(&listing).is_none_or(|of_other| of_other.files < left.files);
    match explanation.certain && explanation.asks.is_none() && is_better && agree(layout, &other, &listing) {
        true => Names::Other(other),
        false => Names::Left(left),
    }
}

/// Whether all files of the old layout belong to the same checkpoints and ranks in the new one.
fn agree(old: &Layout, new: &Layout, listing: &Listing) -> bool {
    let mut placed = listing.files.iter().filter_map(|path| Some((old.place(path)?, new.place(path))));
    placed.all(|(old, new)| new.is_some_and(|new| (old.checkpoint, old.rank) == (new.checkpoint, new.rank)))
}
