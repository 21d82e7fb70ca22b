//! Keeps the question whether files are the ranks of one checkpoint, or one checkpoint each.
//!
//! If an application overwrites `state.0` and `state.1`, the times of the two files differ while the application
//! writes, and after a kill. The times then look like the times of two steps. Therefore only another name answers the
//! question: if the files were steps, the next step would have a new name.

use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::pointers::may_be_left;
use mcr_cnc::layout::{Explanation, Layout, list};
use mcrengine::ids::FilePath;
use std::collections::BTreeSet;

/// A question that was asked.
pub struct Question {
    asks: String,
    /// The names of the files that may be ranks.
    names: BTreeSet<FilePath>,
}

/// Asks an earlier question again, if the guess now has no question and no new name. A new question is kept for the
/// next call. `layout` and `explanation`: the result of the guess.
pub fn keep(config: &CncConfig, layout: &Layout, explanation: &mut Explanation, earlier: &mut Option<Question>) {
    if !explanation.may_be_ranks && (explanation.asks.is_some() || earlier.is_none()) {
        return;
    }
    let Ok(listing) = list(&config.watch, &config.scan_limits()) else { return };
    let is_of_layout = |path: &FilePath| layout.place(path).is_some() && !may_be_left(path.as_bytes());
    let mut names: BTreeSet<FilePath> = listing.files.into_iter().filter(is_of_layout).collect();
    if explanation.may_be_ranks {
        names.extend(earlier.take().into_iter().flat_map(|earlier| earlier.names));
        *earlier = explanation.asks.clone().map(|asks| Question { asks, names });
    } else if let Some(earlier) = earlier.as_ref().filter(|earlier| names.is_subset(&earlier.names)) {
        (explanation.asks, explanation.may_be_ranks) = (Some(earlier.asks.clone()), true);
        (explanation.certain, explanation.awaits_files, explanation.is_whole) = (false, false, false);
    }
}
