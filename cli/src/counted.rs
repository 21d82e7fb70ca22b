//! The number of ranks, counted from the files that the ranks wrote.
//!
//! `mcr run` on one node sees the files of all ranks. If the number of ranks is not configured, `mcr run` counts the
//! ranks of a completely written checkpoint. A checkpoint is completely written if a later checkpoint has begun, if
//! all of its files were written again (see [`Again`]), or if the command has ended with success. If the command has
//! ended without success, all files are counted, and the checkpoint is doubtful.

use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::{CheckpointLabel, Layout, Linked, Listing, linked, list, sort};
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Rank};
use mcrengine::manifest;
use mcrengine::store::PosixStore;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Interval of the scans.
const INTERVAL: Duration = Duration::from_secs(2);
/// Source of the number, for messages.
pub const FROM: &str = "the files of the ranks";

/// Whether the number of ranks must be counted, because the number is neither configured nor known from a checkpoint.
pub fn is_needed(config: &CncConfig, store: &Path) -> bool {
    if config.ranks.is_some() {
        return false;
    }
    let Ok(store) = PosixStore::open(store) else { return false }; // the aggregator has reported the error
    let newest = manifest::newest_of_group(&store, &config.job, GroupId(0), None);
    newest.is_ok_and(|newest| !newest.is_some_and(|newest| newest.has_sure_ranks()))
}

/// Waits until the files show the number of ranks, and sets it.
pub async fn wait(config: &mut CncConfig, layout: &Layout) {
    let mut again = Again::default();
    if set_or_look(config, layout, false, &mut again).await {
        return;
    }
    tracing::warn!(
        watch = %config.watch.display(),
        "number of ranks unknown: it is counted in the files of the first checkpoint, and nothing is saved until a \
         second checkpoint begins, all files are written again, or the command ends; to save from the first one on, \
         give --ranks, or ranks in mcr.toml"
    );
    while !set_or_look(config, layout, false, &mut again).await {
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The files of one checkpoint as one scan found them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    checkpoint: CheckpointId,
    /// The rank, the number of the inode and the modification time of each file.
    files: BTreeMap<FilePath, (Rank, u64, SystemTime)>,
}

impl Content {
    /// Whether the files are the files of `before`, and each of them was written since. `is_other_file`: whether each
    /// file must also be another file, as after a renaming.
    fn replaces(&self, before: &Self, is_other_file: bool) -> bool {
        self.checkpoint == before.checkpoint
            && self.files.len() == before.files.len()
            && self.files.iter().all(|(path, (_, inode, at))| {
                let before = before.files.get(path);
                before.is_some_and(|(_, then, since)| at > since && (!is_other_file || inode != then))
            })
    }

    /// The number of ranks; `None` if a rank is missing.
    fn ranks(&self) -> Option<u32> {
        let ranks: BTreeSet<Rank> = self.files.values().map(|(rank, ..)| *rank).collect();
        let count = u32::try_from(ranks.len()).ok()?;
        (ranks.last()?.0 + 1 == count).then_some(count)
    }
}

/// Notices that an application has written all files of a checkpoint again under the same names. Then the content
/// before was written completely.
///
/// One look is enough if each file was replaced by another file, because an application renames a file that is whole.
/// Otherwise, an application may still be writing its first checkpoint, with pauses. Then the files must have been at
/// rest, have changed and been at rest again, twice.
#[derive(Debug, Default)]
struct Again {
    first: Option<Content>,
    last: Option<Content>,
    rested: Option<Content>,
    times: u32,
}

impl Again {
    /// Adds the result of a scan. Returns the number of ranks and the checkpoint if they are known.
    fn see(&mut self, content: Content) -> Option<(u32, CheckpointId)> {
        let is_known = self
            .first
            .as_ref()
            .is_some_and(|first| first.checkpoint == content.checkpoint && first.files.keys().eq(content.files.keys()));
        if !is_known {
            *self = Self { first: Some(content.clone()), last: Some(content), ..Self::default() };
            return None;
        }
        let is_renamed = self.first.as_ref().is_some_and(|first| content.replaces(first, true));
        if self.last.as_ref() == Some(&content) && self.rested.as_ref() != Some(&content) {
            let is_again = self.rested.as_ref().is_some_and(|rested| content.replaces(rested, false));
            self.times += u32::from(is_again);
            self.rested = Some(content.clone());
        }
        let found = if is_renamed || self.times >= 2 { content.ranks() } else { None };
        let found = found.map(|ranks| (ranks, content.checkpoint.clone()));
        self.last = Some(content);
        found
    }
}

/// The files of the checkpoint that was written last.
fn newest_content(watch: &Path, listing: &Listing, layout: &Layout) -> Option<Content> {
    let placed = || {
        let files = listing.files.iter().zip(&listing.modified);
        files.filter_map(|(path, at)| Some((path, *at, layout.place(path)?)))
    };
    let checkpoint = placed().max_by_key(|(_, at, _)| *at).map(|(.., placed)| placed.checkpoint)?;
    let of_it = placed().filter(|(.., placed)| placed.checkpoint == checkpoint);
    let files = of_it.map(|(path, at, placed)| {
        let inode = watch.join(path.as_path()).symlink_metadata().ok()?.ino();
        Some((path.clone(), (placed.rank.unwrap_or(Rank(0)), inode, at)))
    });
    let files: Option<BTreeMap<_, _>> = files.collect();
    Some(Content { checkpoint, files: files? })
}

/// Sets the number of ranks if the files show this number. If the layout has no ranks, the number is 1, because all
/// files belong to rank 0. `all_written`: the application will write no more files. Returns whether the number is
/// set.
pub async fn set(config: &mut CncConfig, layout: &Layout, all_written: bool) -> bool {
    set_or_look(config, layout, all_written, &mut Again::default()).await
}

/// Like [`set`]. Files that were written again since earlier scans show the number, too.
async fn set_or_look(config: &mut CncConfig, layout: &Layout, all_written: bool, again: &mut Again) -> bool {
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
        let content = newest_content(&watch, &listing, &layout);
        Some((ranks_shown(listing, &linked, &layout, all_written), content))
    });
    let Ok(Some((shown, content))) = shown.await else { return false };
    let Some((ranks, checkpoint)) = shown.or_else(|| again.see(content?)) else { return false };
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

    fn shown(names: &[&str], all_written: bool) -> Option<(u32, String)> {
        let files: Vec<_> = names.iter().map(|name| FilePath::new(name.as_bytes()).expect("a relative path")).collect();
        let modified = (0..names.len()).map(|nth| SystemTime::UNIX_EPOCH + Duration::from_secs(nth as u64)).collect();
        let bytes = vec![1; names.len()];
        let layout = Layout::from_patterns(&["{checkpoint}.r{rank}"], 0).expect("valid");
        let listing = Listing { files, modified, bytes, ..Listing::default() };
        ranks_shown(listing, &[], &layout, all_written).map(|(ranks, label)| (ranks, label.to_string()))
    }

    fn content(files: &[(u32, u64, u64)]) -> Content {
        let file = |&(rank, inode, at_s): &(u32, u64, u64)| {
            let path = FilePath::new(format!("restart.{rank}").as_bytes()).expect("a relative path");
            (path, (Rank(rank), inode, SystemTime::UNIX_EPOCH + Duration::from_secs(at_s)))
        };
        Content { checkpoint: "restart".parse().expect("valid"), files: files.iter().map(file).collect() }
    }

    fn seen(contents: &[&[(u32, u64, u64)]]) -> Option<u32> {
        let mut again = Again::default();
        contents.iter().filter_map(|files| again.see(content(files))).map(|(ranks, _)| ranks).last()
    }

    #[test]
    fn a_checkpoint_whose_files_were_all_replaced_by_renaming_was_written_completely() {
        assert_eq!(seen(&[&[(0, 1, 10), (1, 2, 10)], &[(0, 3, 20), (1, 4, 20)]]), Some(2));
        assert_eq!(seen(&[&[(0, 1, 10), (1, 2, 10)], &[(0, 3, 20), (1, 2, 10)]]), None, "one rank may follow");
        assert_eq!(seen(&[&[(0, 1, 10)], &[(0, 3, 20), (1, 2, 20)]]), None, "another rank began");
        assert_eq!(seen(&[&[(0, 1, 10), (2, 2, 10)], &[(0, 3, 20), (2, 4, 20)]]), None, "rank 1 is missing");
    }

    #[test]
    fn files_that_change_in_place_are_written_again_only_after_two_rests() {
        let [first, second, third]: [&[_]; 3] = [&[(0, 1, 10)], &[(0, 1, 20)], &[(0, 1, 30)]];
        assert_eq!(seen(&[first, second, third]), None, "the file may still be growing");
        assert_eq!(seen(&[first, first, second, second]), None, "the application may have paused");
        assert_eq!(seen(&[first, first, second, second, third, third]), Some(1));
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
