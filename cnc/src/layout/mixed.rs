//! Finds checkpoints whose files were written in two steps.
//!
//! Some applications use a few names in turn, and overwrite the oldest checkpoint. If the process of the application is
//! killed while it overwrites the checkpoint, some files of this checkpoint are the newest files. The remaining files
//! of this checkpoint are older than the same files of another checkpoint. Copies that were made in any order look
//! alike, but there is no pause between copies.
//!
//! If an application numbers its steps, a second run may write some files of a step again, and be killed. The files of
//! this checkpoint are then much further apart than the files of all other steps.

use super::Layout;
use super::walk::Listing;
use mcrengine::ids::{CheckpointId, FilePath, Rank, shape_of};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

/// Minimum time without writing that separates two steps.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Minimum time between two files of one numbered checkpoint that may be of two runs.
const APART_MIN: Duration = Duration::from_secs(60);
/// Two files of one numbered checkpoint may be of two runs if the time between the files is more than this number of
/// times as long as all ranks take for each other step.
const APART_FACTOR: u32 = 10;
/// Minimum number of other checkpoints that show how long the ranks take for a step.
const OTHERS_MIN: usize = 2;

/// A file without the numbers in its name. Two checkpoints have the same file if rank and name are equal.
type Key = (Option<Rank>, Vec<u8>);

/// When the files of a checkpoint were written.
struct Written<'a> {
    files: HashMap<Key, (&'a FilePath, SystemTime)>,
    newest: &'a FilePath,
    /// When the newest file was begun and ended.
    begun: SystemTime,
    ended: SystemTime,
    of_ranks: Vec<OfRank<'a>>,
}

/// When a rank wrote a file.
#[derive(Clone, Copy)]
struct OfRank<'a> {
    rank: Rank,
    path: &'a FilePath,
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
        let new = || Written { files: HashMap::new(), newest: path, begun, ended: *modified, of_ranks: Vec::new() };
        let written = checkpoints.entry(placed.checkpoint).or_insert_with(new);
        let of_rank = placed.rank.map(|rank| OfRank { rank, path, begun, ended: *modified });
        written.of_ranks.extend(of_rank);
        written.files.insert(key, (path, *modified));
        if *modified > written.ended {
            (written.newest, written.begun, written.ended) = (path, begun, *modified);
        }
    }
    let pauses = pauses(writing);
    let mut in_time: Vec<_> = checkpoints.iter().collect();
    in_time.sort_by_key(|(_, written)| written.ended);
    let mut found = of_two_runs(&checkpoints);
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

/// The numbered checkpoints whose ranks wrote their files in two runs, each with the reason. Between two files of such
/// a checkpoint, the ranks wrote no file of it for a time that is longer than [`APART_MIN`], than the shortest time
/// between two other checkpoints, and than [`APART_FACTOR`] times the longest time that the ranks took for another
/// checkpoint. A file that was written all the time, by a slow node, leaves no such time.
/// Checkpoints are compared if their names differ only in their numbers.
fn of_two_runs(checkpoints: &BTreeMap<CheckpointId, Written<'_>>) -> BTreeMap<CheckpointId, String> {
    let mut series: BTreeMap<Vec<u8>, Vec<Ranks<'_>>> = BTreeMap::new();
    for (label, written) in checkpoints {
        if let (true, Some(ranks)) = (label.as_str().bytes().any(|b| b.is_ascii_digit()), Ranks::of(label, written)) {
            series.entry(shape_of(label.as_str())).or_default().push(ranks);
        }
    }
    let mut found = BTreeMap::new();
    for mut steps in series.into_values() {
        steps.sort_by_key(|step| step.took);
        let Some((last, others)) = steps.split_last().filter(|(_, others)| others.len() >= OTHERS_MIN) else {
            continue;
        };
        let mut ends: Vec<SystemTime> = others.iter().map(|step| step.ended).collect();
        ends.sort_unstable();
        let between = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).unwrap_or_default());
        let step = between.min().unwrap_or_default();
        let longest = others.last().map_or(Duration::ZERO, |other| other.took);
        if last.apart > APART_MIN && last.apart > step && last.apart > longest.saturating_mul(APART_FACTOR) {
            let why = format!(
                "the ranks wrote no file of it for {} s between {} and {}, and took at most {:.1} s for each other \
                 step: the files are probably of two runs",
                last.apart.as_secs(),
                last.before,
                last.after,
                longest.as_secs_f64()
            );
            found.insert(last.label.clone(), why);
        }
    }
    found
}

/// When the ranks wrote the files of a checkpoint.
struct Ranks<'a> {
    label: &'a CheckpointId,
    /// Time from the end of the first file to the end of the last file.
    took: Duration,
    ended: SystemTime,
    /// The longest time without writing between two files, and these files.
    apart: Duration,
    before: &'a FilePath,
    after: &'a FilePath,
}

impl<'a> Ranks<'a> {
    /// `None` if fewer than two ranks have files.
    fn of(label: &'a CheckpointId, written: &Written<'a>) -> Option<Self> {
        let mut files = written.of_ranks.clone();
        files.sort_by_key(|file| (file.begun, file.ended));
        let first = files.first()?;
        if files.iter().all(|file| file.rank == first.rank) {
            return None;
        }
        let (mut newest, mut longest) = (first, (Duration::ZERO, first, first));
        for file in &files {
            let pause = file.begun.duration_since(newest.ended).unwrap_or_default();
            if pause > longest.0 {
                longest = (pause, newest, file);
            }
            if file.ended > newest.ended {
                newest = file;
            }
        }
        let oldest = files.iter().map(|file| file.ended).min()?;
        let (apart, before, after) = (longest.0, longest.1.path, longest.2.path);
        let took = newest.ended.duration_since(oldest).unwrap_or_default();
        Some(Self { label, took, ended: newest.ended, apart, before, after })
    }
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
    fn a_numbered_checkpoint_whose_ranks_wrote_much_further_apart_than_in_all_other_steps_is_of_two_runs() {
        let step = |nth: u64, late: u64| {
            let name = |rank: u64| {
                ["rst.1.0", "rst.1.1", "rst.2.0", "rst.2.1", "rst.3.0", "rst.3.1"][(2 * nth + rank) as usize]
            };
            let at = 1000 + nth * 100;
            [(name(0), at, at + 1), (name(1), at + late, at + late + 1)]
        };
        let steps = |late: [u64; 3]| (0..3).flat_map(|nth| step(nth, late[nth as usize])).collect::<Vec<_>>();
        assert_eq!(mixed_of(&steps([0, 0, 9000])), ["3"]);
        assert_eq!(mixed_of(&steps([9000, 1, 0])), ["1"], "not only the newest");
        assert_eq!(mixed_of(&steps([0, 0, 90])), [""; 0], "less than the shortest step");
        assert_eq!(mixed_of(&steps([150, 200, 900])), [""; 0], "each step takes minutes");
        assert_eq!(mixed_of(&steps([0, 9000, 9000])), [""; 0], "two steps look alike");
        assert_eq!(mixed_of(&steps([0, 0, 9000])[2..]), [""; 0], "one other step shows nothing");
        let slow = [("rst.1.0", 0, 1), ("rst.1.1", 0, 1), ("rst.2.0", 100, 101), ("rst.2.1", 100, 101)];
        let slow = [&slow[..], &[("rst.3.0", 200, 201), ("rst.3.1", 200, 9000)]].concat();
        assert_eq!(mixed_of(&slow), [""; 0], "the file of a rank was written all the time");
    }

    #[test]
    fn copies_that_were_made_in_any_order_are_of_one_step() {
        let copies = [("rst.1.0", 16, 19), ("rst.1.1", 10, 12), ("rst.2.0", 12, 14), ("rst.2.1", 14, 16)];
        assert_eq!(mixed_of(&copies), [""; 0]);
    }
}
