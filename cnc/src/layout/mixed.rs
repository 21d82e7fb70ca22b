//! Finds checkpoints whose files were written in two steps, for applications that use a few names in turn.
//!
//! Such an application overwrites the oldest checkpoint. If the process of the application is killed while it
//! overwrites the checkpoint, some files of this checkpoint are the newest files. The remaining files of this
//! checkpoint are older than the same files of another checkpoint. Copies that were made in any order look alike, but
//! there is no pause between copies.

use super::Layout;
use super::walk::Listing;
use mcrengine::ids::{CheckpointId, FilePath, Rank, shape_of};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

/// Minimum time without writing that separates two steps.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// A file without the numbers in its name. Two checkpoints have the same file if rank and name are equal.
type Key = (Option<Rank>, Vec<u8>);

/// When the files of a checkpoint were written.
struct Written<'a> {
    files: HashMap<Key, (&'a FilePath, SystemTime)>,
    newest: &'a FilePath,
    /// When the newest file was begun and ended.
    begun: SystemTime,
    ended: SystemTime,
}

/// The checkpoints whose files were probably written in two steps, each with the reason.
pub fn mixed(listing: &Listing, layout: &Layout) -> BTreeMap<CheckpointId, String> {
    let mut checkpoints: BTreeMap<CheckpointId, Written<'_>> = BTreeMap::new();
    let mut writing: Vec<(SystemTime, SystemTime)> = Vec::new();
    for ((path, modified), begun) in listing.files.iter().zip(&listing.modified).zip(&listing.begun) {
        let Some(placed) = layout.place(path) else { continue };
        let begun = *begun.min(modified);
        writing.push((begun, *modified));
        let key = (placed.rank, shape_of(&String::from_utf8_lossy(path.as_bytes())));
        let new = || Written { files: HashMap::new(), newest: path, begun, ended: *modified };
        let written = checkpoints.entry(placed.checkpoint).or_insert_with(new);
        written.files.insert(key, (path, *modified));
        if *modified > written.ended {
            (written.newest, written.begun, written.ended) = (path, begun, *modified);
        }
    }
    let pauses = pauses(writing);
    let mut in_time: Vec<_> = checkpoints.iter().collect();
    in_time.sort_by_key(|(_, written)| written.ended);
    let mut found = BTreeMap::new();
    for pair in in_time.windows(2) {
        let [(other, before), (label, written)] = pair else { continue };
        let has_pause = pauses.iter().any(|(from, to)| *from >= before.ended && *to <= written.begun);
        let is_older =
            |key: &Key, at: SystemTime| before.files.get(key).is_some_and(|(_, then)| at + PAUSE_MIN <= *then);
        let old = written.files.iter().filter(|(key, (_, at))| is_older(key, *at)).map(|(_, (path, _))| path);
        if let (true, Some(path)) = (has_pause, old.min()) {
            let why = format!(
                "{} was written after {other}, and {path} before {other}: the files are probably of two steps",
                written.newest
            );
            found.insert((*label).clone(), why);
        }
    }
    found
}

/// The times of at least [`PAUSE_MIN`] in which no file was written.
fn pauses(mut writing: Vec<(SystemTime, SystemTime)>) -> Vec<(SystemTime, SystemTime)> {
    writing.sort_unstable();
    let (mut pauses, mut until) = (Vec::new(), None::<SystemTime>);
    for (begun, ended) in writing {
        if let Some(until) = until.filter(|until| *until + PAUSE_MIN <= begun) {
            pauses.push((until, begun));
        }
        until = Some(until.map_or(ended, |until| until.max(ended)));
    }
    pauses
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mixed checkpoints of files with a name, and the times in seconds when the file was begun and ended.
    fn mixed_of(files: &[(&str, u64, u64)]) -> Vec<String> {
        let layout = Layout::from_patterns(&["rst.{checkpoint}.{rank}"], 0).expect("valid");
        let in_ms = files.iter().map(|(name, begun, ended)| (*name, begun * 1000, ended * 1000));
        mixed(&Listing::of_times(in_ms), &layout).into_keys().map(|label| label.to_string()).collect()
    }

    #[test]
    fn a_name_in_turn_that_was_overwritten_by_half_is_of_two_steps() {
        let half = [("rst.1.0", 30, 30), ("rst.1.1", 10, 11), ("rst.2.0", 20, 20), ("rst.2.1", 20, 21)];
        assert_eq!(mixed_of(&half), ["1"]);
        let whole = [("rst.1.0", 30, 30), ("rst.1.1", 30, 31), ("rst.2.0", 20, 20), ("rst.2.1", 20, 21)];
        assert_eq!(mixed_of(&whole), [""; 0]);
        let mesh = [("rst.1.0", 10, 10), ("rst.1.1", 5, 5), ("rst.2.0", 20, 20), ("rst.2.1", 5, 5)];
        assert_eq!(mixed_of(&mesh), [""; 0], "a file of both checkpoints that no step rewrites");
    }

    #[test]
    fn copies_that_were_made_in_any_order_are_of_one_step() {
        let copies = [("rst.1.0", 16, 19), ("rst.1.1", 10, 12), ("rst.2.0", 12, 14), ("rst.2.1", 14, 16)];
        assert_eq!(mixed_of(&copies), [""; 0]);
    }
}
