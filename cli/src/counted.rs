//! The number of ranks, counted from the files that the ranks wrote.
//!
//! `mcr run` on one node sees the files of all ranks. If the number of ranks is not configured, `mcr run` counts the
//! ranks of a completely written checkpoint. A checkpoint is completely written if a later checkpoint has begun, or
//! if the command has ended with success.

use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::{CheckpointLabel, Layout, Linked, Listing, linked, list, sort};
use mcrengine::ids::{CheckpointId, GroupId, Rank};
use mcrengine::manifest;
use mcrengine::store::PosixStore;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Interval of the scans.
const INTERVAL: Duration = Duration::from_secs(2);
/// Source of the number, for messages.
const FROM: &str = "the files of the ranks";

/// Whether the number of ranks must be counted, because the number is neither configured nor known from a checkpoint.
pub fn is_needed(config: &CncConfig, store: &Path) -> bool {
    if config.ranks.is_some() {
        return false;
    }
    let Ok(store) = PosixStore::open(store) else { return false }; // the aggregator has reported the error
    matches!(manifest::newest_of_group(&store, &config.job, GroupId(0), None), Ok(None))
}

/// Waits until the files show the number of ranks, and sets it.
pub async fn wait(config: &mut CncConfig, layout: &Layout) {
    if set(config, layout, false).await {
        return;
    }
    tracing::warn!(
        watch = %config.watch.display(),
        "number of ranks unknown: it is counted in the files of the first checkpoint, and nothing is saved until a \
         second checkpoint begins or the command ends; to save from the first one on, give --ranks, or ranks in mcr.toml"
    );
    while !set(config, layout, false).await {
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Sets the number of ranks if the files show this number. If the layout has no ranks, the number is 1, because all
/// files belong to rank 0. `all_written`: the application will write no more files. Returns whether the number is
/// set.
pub async fn set(config: &mut CncConfig, layout: &Layout, all_written: bool) -> bool {
    if !layout.has_ranks() {
        tracing::info!("the names of the files have no rank: all files belong to rank 0, the only rank");
        (config.ranks, config.ranks_from) = (Some(1), FROM);
        return true;
    }
    let (watch, limits, layout) = (config.watch.clone(), config.scan_limits(), layout.clone());
    let shown = tokio::task::spawn_blocking(move || {
        // A directory that cannot be read now may be readable at the next scan. The agent reports such a directory.
        let listing = list(&watch, &limits).ok()?;
        let linked = linked(&listing, &layout, &watch);
        ranks_shown(listing, &linked, &layout, all_written)
    });
    let Ok(Some((ranks, checkpoint))) = shown.await else { return false };
    tracing::warn!(ranks, %checkpoint, "number of ranks counted in the files; to be sure, give ranks");
    (config.ranks, config.ranks_from) = (Some(ranks), FROM);
    true
}

/// The number of ranks of the completely written checkpoint with the highest rank. `None` if no checkpoint is
/// completely written, or if a rank is missing from this checkpoint. A rank whose file is a link counts, too, although
/// this file is not saved.
fn ranks_shown(listing: Listing, links: &[Linked], layout: &Layout, all_written: bool) -> Option<(u32, CheckpointId)> {
    let scan = sort(listing, layout);
    let last = scan.modified.iter().max_by_key(|(_, at)| **at).map(|(label, _)| label.clone())?;
    let written = scan.checkpoints.iter().filter(|(label, _)| all_written || **label != last);
    let of = |(label, files): (&CheckpointLabel, &Vec<(_, Rank)>)| {
        let links = links.iter().filter(|link| link.is_missing && link.checkpoint == label.0);
        let ranks = files.iter().map(|(_, rank)| *rank).chain(links.map(|link| link.rank));
        (ranks.collect::<BTreeSet<_>>(), label.clone())
    };
    let (ranks, label) = written.map(of).max_by_key(|(ranks, _)| ranks.last().copied())?;
    let count = u32::try_from(ranks.len()).ok()?;
    (ranks.last()?.0 + 1 == count).then(|| (count, label.0.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::FilePath;
    use std::time::SystemTime;

    fn shown(names: &[&str], all_written: bool) -> Option<(u32, String)> {
        let files: Vec<_> = names.iter().map(|name| FilePath::new(name.as_bytes()).expect("a relative path")).collect();
        let modified = (0..names.len()).map(|nth| SystemTime::UNIX_EPOCH + Duration::from_secs(nth as u64)).collect();
        let bytes = vec![1; names.len()];
        let layout = Layout::from_patterns(&["{checkpoint}.r{rank}"], 0).expect("valid");
        let listing = Listing { files, modified, bytes, ..Listing::default() };
        ranks_shown(listing, &[], &layout, all_written).map(|(ranks, label)| (ranks, label.to_string()))
    }

    #[test]
    fn the_number_of_ranks_is_counted_in_a_checkpoint_that_is_written_completely() {
        assert_eq!(shown(&["s1.r0", "s1.r1"], false), None, "more ranks may follow");
        assert_eq!(shown(&["s1.r0", "s1.r1"], true), Some((2, "s1".to_owned())));
        assert_eq!(shown(&["s1.r0", "s1.r1", "s2.r1"], false), Some((2, "s1".to_owned())));
        assert_eq!(shown(&["s1.r0", "s1.r2", "s2.r1"], false), None, "rank 1 is missing");
        assert_eq!(shown(&[], true), None);
    }
}
