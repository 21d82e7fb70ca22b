//! Finds checkpoints without files or bytes that the checkpoints before them have, for example because the disk was
//! full.
//!
//! Two files are of one kind if their names differ only in numbers. The number of files of a kind may differ from step
//! to step, as with an adaptive mesh, and so may the lengths of the files. Only what all earlier steps have in common
//! is expected of the newest step.

use crate::output::counted;
use mcr_cnc::layout::pointers::{is_temporary, may_be_left};
use mcr_cnc::layout::{Labelled, Layout, Listing};
use mcrengine::ids::{CheckpointId, FilePath, Rank, natural_cmp, shape_of};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of earlier checkpoints that show what each step writes.
const EARLIER_MIN: usize = 2;
/// Minimum number of other earlier checkpoints, if the first one is left out because it has fewer files than they have.
const OTHERS_MIN: usize = 3;
/// A file with fewer bytes than this number may be a text, such as a parameter file with the number of the step. The
/// length of a text changes a little from step to step.
const TEXT_BYTES_MAX: u64 = 64 << 10;
/// A file that may be a text counts as cut if at least its length divided by this number is missing.
const TEXT_CUT_DIVISOR: u64 = 8;

/// The names of a kind of files, without the numbers.
type Shape = Vec<u8>;

/// A kind of files of one rank, or of no single rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    shape: Shape,
    rank: Option<Rank>,
}

/// The files of a checkpoint with their lengths in bytes, without logs and older copies. The files of a kind are in
/// the order of their names.
#[derive(Default)]
struct Content(BTreeMap<Kind, Vec<(FilePath, u64)>>);

/// The files of all checkpoints, with their lengths.
pub struct Contents(BTreeMap<CheckpointId, Content>);

impl Contents {
    pub fn of(listing: &Listing, layout: &Layout) -> Self {
        let mut contents: BTreeMap<CheckpointId, Content> = BTreeMap::new();
        for (path, bytes) in listing.files.iter().zip(&listing.bytes) {
            let Some(placed) = layout.place(path) else { continue };
            if may_be_left(path.as_bytes()) || is_temporary(path.as_bytes()) {
                continue;
            }
            let kind = Kind { shape: shape(path, &placed.checkpoint), rank: placed.rank };
            let content = contents.entry(placed.checkpoint).or_default();
            content.0.entry(kind).or_default().push((path.clone(), *bytes));
        }
        let kinds = contents.values_mut().flat_map(|content| content.0.values_mut());
        kinds.for_each(|files| files.sort_by(|(a, _), (b, _)| natural_cmp(a.as_bytes(), b.as_bytes())));
        Self(contents)
    }

    /// The checkpoints that probably lack files or bytes, each with the reason. `checkpoints`: the oldest first. A
    /// checkpoint lacks bytes if all of its files are empty. Only the newest checkpoint is compared file by file with
    /// the earlier checkpoints.
    pub fn lacking(&self, checkpoints: &[Labelled]) -> BTreeMap<CheckpointId, String> {
        let (mut lacking, mut whole) = (BTreeMap::new(), BTreeMap::<Shape, Vec<&Content>>::new());
        let mut newest = None;
        for (label, _) in checkpoints {
            newest = None;
            let Some(now) = self.0.get(label) else { continue };
            let earlier = whole.entry(series(label)).or_default();
            if now.bytes() == 0 && earlier.last().is_some_and(|last| last.bytes() > 0) {
                let why = "all of its files are empty, and those of the checkpoints before are not: it is uncertain \
                           whether its writer wrote all bytes";
                lacking.insert(label.clone(), why.to_owned());
                continue;
            }
            newest = Some((label, now, earlier.clone()));
            earlier.push(now);
        }
        if let Some((label, now, earlier)) = newest
            && let Some(why) = now.lacks(&earlier)
        {
            lacking.insert(label.clone(), why);
        }
        lacking
    }
}

impl Content {
    fn bytes(&self) -> u64 {
        self.0.values().flatten().fold(0, |sum, (_, bytes)| bytes.saturating_add(sum))
    }

    /// What the checkpoint lacks, compared with the earlier checkpoints of its series. `None` if it lacks nothing.
    fn lacks(&self, earlier: &[&Self]) -> Option<String> {
        let earlier = without_smaller_first(earlier, |content| content.0.values().map(Vec::len).sum());
        let ranks = self.ranks();
        let alike: Vec<&Self> = earlier.iter().copied().filter(|content| content.ranks() == ranks).collect();
        missing_kind(self, earlier, |kind| (&kind.shape, None))
            .or_else(|| missing_kind(self, &alike, |kind| (&kind.shape, kind.rank)))
            .or_else(|| empty_file(self, &alike))
            .or_else(|| cut_file(self, &alike))
    }

    fn ranks(&self) -> BTreeSet<Rank> {
        self.0.keys().filter_map(|kind| kind.rank).collect()
    }
}

/// Leaves out the first of these checkpoints if all others have more files. An application often writes the state at
/// its start without files that it has only later.
pub fn without_smaller_first<T>(earlier: &[T], files: impl Fn(&T) -> usize) -> &[T] {
    match earlier {
        [first, others @ ..]
            if others.len() >= OTHERS_MIN && others.iter().all(|other| files(first) < files(other)) =>
        {
            others
        }
        _ => earlier,
    }
}

/// The reason if all earlier checkpoints have a file of a kind, and the newest checkpoint has none. `part` chooses
/// whether the ranks are compared one by one.
fn missing_kind<'a>(
    now: &'a Content,
    earlier: &[&'a Content],
    part: fn(&'a Kind) -> (&'a Shape, Option<Rank>),
) -> Option<String> {
    let (&last, others) = earlier.split_last().filter(|_| earlier.len() >= EARLIER_MIN)?;
    let kinds = |content: &'a Content| content.0.keys().map(part).collect::<BTreeSet<_>>();
    let mut missing: BTreeSet<_> = kinds(last).difference(&kinds(now)).copied().collect();
    for other in others.iter().rev() {
        if missing.is_empty() {
            return None;
        }
        missing = missing.intersection(&kinds(other)).copied().collect();
    }
    let (_, of_kind) = last.0.iter().find(|(kind, _)| missing.contains(&part(kind)))?;
    let (path, _) = of_kind.first()?;
    Some(format!(
        "it has no file like {path}, and each of the {} before has such a file: it is uncertain whether its writer \
         wrote all files",
        counted(earlier.len() as u64, "checkpoint")
    ))
}

/// The reason if a file is empty, and the same file had bytes in all earlier checkpoints. If the number of files of the
/// kind differs, all files of the kind must have had bytes.
fn empty_file(now: &Content, earlier: &[&Content]) -> Option<String> {
    let had_bytes = |key: &Kind, nth: usize, count: usize| {
        let mut before = earlier.iter().map(|content| content.0.get(key).map_or(&[][..], Vec::as_slice));
        before.all(|files| match files.len() == count {
            true => files.get(nth).is_some_and(|(_, bytes)| *bytes > 0),
            false => !files.is_empty() && files.iter().all(|(_, bytes)| *bytes > 0),
        })
    };
    let last = earlier.last()?;
    let (path, key, nth) = now.0.iter().find_map(|(key, files)| {
        let mut empty = files.iter().enumerate().filter(|(_, (_, bytes))| *bytes == 0);
        let (nth, (path, _)) = empty.find(|(nth, _)| had_bytes(key, *nth, files.len()))?;
        Some((path, key, nth))
    })?;
    let of_last = last.0.get(key)?;
    let (before, bytes) = of_last.get(nth).or(of_last.first())?;
    Some(format!(
        "{path} is empty, and {before} has {}: it is uncertain whether its writer wrote all bytes",
        counted(*bytes, "byte")
    ))
}

/// The reason if a file is shorter than in all earlier checkpoints, and all files of its kind had the same lengths in
/// all earlier checkpoints. The files of the kind must have fewer bytes together, because an application may move data
/// from one file to another.
fn cut_file(now: &Content, earlier: &[&Content]) -> Option<String> {
    let (last, others) = earlier.split_last().filter(|_| earlier.len() >= EARLIER_MIN)?;
    let lengths = |content: &Content, key: &Kind| -> Vec<u64> {
        content.0.get(key).into_iter().flatten().map(|(_, bytes)| *bytes).collect()
    };
    let mut kinds: BTreeMap<&Shape, Vec<&Kind>> = BTreeMap::new();
    now.0.keys().for_each(|key| kinds.entry(&key.shape).or_default().push(key));
    let is_constant = |key: &Kind| {
        let of_last = lengths(last, key);
        of_last.len() == lengths(now, key).len() && others.iter().all(|other| lengths(other, key) == of_last)
    };
    let sum = |content: &Content, keys: &[&Kind]| {
        keys.iter().flat_map(|key| lengths(content, key)).fold(0, u64::saturating_add)
    };
    let cut = |key: &&Kind| {
        let pairs = now.0.get(*key)?.iter().zip(last.0.get(*key)?);
        let is_cut = |now: u64, before: u64| {
            now < before && (before >= TEXT_BYTES_MAX || before - now >= before.div_ceil(TEXT_CUT_DIVISOR))
        };
        pairs.into_iter().find(|((_, bytes), (_, before))| is_cut(*bytes, *before))
    };
    let shrunk = kinds.into_values().filter(|keys| sum(now, keys) < sum(last, keys));
    let ((path, bytes), (_, before)) =
        shrunk.filter(|keys| keys.iter().all(|key| is_constant(key))).find_map(|keys| keys.iter().find_map(cut))?;
    Some(format!(
        "{path} has {}, and the same file of each of the {} before has {before}: it is uncertain whether its writer \
         wrote all bytes",
        counted(*bytes, "byte"),
        counted(earlier.len() as u64, "checkpoint")
    ))
}

/// The path without its numbers. A directory with the name of the checkpoint counts as a number, because the name may
/// be `0.5` or `1e-05`.
fn shape(path: &FilePath, label: &CheckpointId) -> Shape {
    let text = String::from_utf8_lossy(path.as_bytes());
    let parts = text.split('/').map(|part| if part == label.as_str() { "#" } else { part });
    shape_of(&parts.collect::<Vec<_>>().join("/"))
}

/// Checkpoints of one series have equal names without the numbers.
fn series(label: &CheckpointId) -> Shape {
    let label = label.as_str();
    let is_number = label.starts_with(|c: char| c.is_ascii_digit()) && label.parse::<f64>().is_ok();
    if is_number { b"#".to_vec() } else { shape_of(label) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the newest checkpoint lacks. Each checkpoint has files with a name and a number of bytes; `#` in a name
    /// stands for the number of the step.
    fn lacks(steps: &[&[(&str, u64)]]) -> Option<String> {
        let layout = Layout::from_patterns(&["{checkpoint}/r{rank}.*", "{checkpoint}/**"], 0).expect("valid");
        let (mut listing, mut order) = (Listing::default(), Vec::new());
        for (nth, files) in steps.iter().enumerate() {
            for (name, bytes) in *files {
                let path = format!("ck_{nth}/{}", name.replace('#', &nth.to_string()));
                listing.files.push(FilePath::new(path.as_bytes()).expect("valid"));
                listing.bytes.push(*bytes);
            }
            order.push((format!("ck_{nth}").parse().expect("valid"), Vec::new()));
        }
        let mut lacking = Contents::of(&listing, &layout).lacking(&order);
        let newest = order.last().and_then(|(label, _)| lacking.remove(label));
        assert!(lacking.is_empty(), "only the newest checkpoint is compared: {lacking:?}");
        newest
    }

    #[test]
    fn a_kind_of_files_that_each_earlier_step_has_is_expected_of_the_newest_step() {
        let (first, step, model) =
            (&[("model", 9), ("rng", 9), ("config", 9)][..], &[("model", 9), ("rng", 9)][..], &[("model", 9)][..]);
        assert!(lacks(&[first, step, step, model]).is_some_and(|why| why.contains("no file like ck_2/rng")));
        assert_eq!(lacks(&[first, step, step]), None, "one step had a file more");
        assert_eq!(lacks(&[first, model, step, model]), None, "a step without the file");
        assert_eq!(lacks(&[step, model]), None, "one earlier step shows nothing");
        let of_ranks = |both: u64| [("r0.a", 9), ("r0.b", 9), ("r1.a", 9), ("r1.b", 9)].into_iter().take(both as usize);
        let (whole, cut): (Vec<_>, Vec<_>) = (of_ranks(4).collect(), of_ranks(3).collect());
        assert!(lacks(&[&whole, &whole, &cut]).is_some_and(|why| why.contains("no file like ck_1/r1.b")));
        let fewer: Vec<_> = of_ranks(2).collect();
        assert_eq!(lacks(&[&whole, &whole, &fewer]), None, "a run with fewer ranks");
        let logs = [("model", 9), ("run.log", 9), ("model.bak", 9)];
        assert_eq!(lacks(&[&logs, &logs, model]), None, "logs and older copies");
    }

    #[test]
    fn the_first_step_may_have_fewer_files_than_the_others() {
        let (first, step) = (&[("U", 9), ("p", 9)][..], &[("U", 9), ("p", 9), ("phi", 9), ("time", 9)][..]);
        let why = lacks(&[first, step, step, step, first]).expect("the other steps have more files");
        assert!(why.contains("no file like ck_3/phi") && why.contains("each of the 3 checkpoints before"), "{why}");
        assert_eq!(lacks(&[first, step, step, step, step]), None);
        assert_eq!(lacks(&[first, step, step, first]), None, "too few other steps");
        assert_eq!(lacks(&[step, first, step, step, first]), None, "a later step had no more files");
    }

    #[test]
    fn numbers_and_lengths_of_files_that_differ_from_step_to_step_are_no_reason_for_doubt() {
        let mesh = |grids: u64| {
            let names = ["Level_0/D_0", "Level_0/D_1", "Level_1/D_0", "Level_1/D_1", "Level_2/D_0"];
            let files = names.into_iter().take(grids as usize).enumerate();
            files.map(|(nth, name)| (name, 100 * grids + nth as u64)).chain([("Header", 70)]).collect::<Vec<_>>()
        };
        assert_eq!(lacks(&[&mesh(3), &mesh(5), &mesh(4), &mesh(2)]), None);
        let mut cut = mesh(4);
        cut.pop();
        assert!(lacks(&[&mesh(3), &mesh(5), &cut]).is_some_and(|why| why.contains("no file like ck_1/Header")));
        assert_eq!(lacks(&[&[("p", 900)], &[("p", 950)], &[("p", 100)]]), None, "particles");
        assert_eq!(
            lacks(&[&[("r0.p", 500), ("r1.p", 800)], &[("r0.p", 500), ("r1.p", 790)], &[("r0.p", 40), ("r1.p", 90)]]),
            None
        );
        let moved = |a: u64, b: u64| [("r0.p", a), ("r1.p", b)];
        assert_eq!(
            lacks(&[&moved(500, 500), &moved(500, 500), &moved(100, 900)]),
            None,
            "the ranks share the work anew"
        );
        assert_eq!(lacks(&[&[("t", 3000)], &[("t", 3000)], &[("t", 2950)]]), None, "a text");
        assert_eq!(lacks(&[&[("t", 3000)], &[("t", 3000)], &[("t", 4000)]]), None);
    }

    #[test]
    fn a_file_that_is_empty_or_shorter_than_in_all_earlier_steps_is_a_reason_for_doubt() {
        let step = |bytes: u64| [("r0.x", 3000), ("r1.x", bytes), ("data.#", 70_000)];
        assert!(
            lacks(&[&step(3000), &step(0)])
                .is_some_and(|why| why.contains("ck_1/r1.x is empty, and ck_0/r1.x has 3000 bytes"))
        );
        assert!(lacks(&[&step(3000), &step(0), &step(3000), &step(0)]).is_none(), "the file was empty before");
        assert!(lacks(&[&step(2000), &step(3000), &step(0)]).is_some(), "the length differs from step to step");
        assert_eq!(
            lacks(&[&step(3000), &step(100)]),
            None,
            "one earlier step does not show that the length is constant"
        );
        let why = lacks(&[&step(3000), &step(3000), &step(100)]).expect("cut");
        assert!(
            why.contains("ck_2/r1.x has 100 bytes, and the same file of each of the 2 checkpoints before has 3000"),
            "{why}"
        );
        let long = |bytes: u64| [("data.#", bytes)];
        assert!(lacks(&[&long(70_000), &long(70_000), &long(69_999)]).is_some());
        let all = |bytes: u64| [("data.#", bytes), ("more.#", bytes)];
        assert!(lacks(&[&all(50), &all(0)]).is_some_and(|why| why.contains("all of its files are empty")));
        assert_eq!(lacks(&[&all(0), &all(0)]), None);
    }

    #[test]
    fn a_second_step_without_bytes_is_doubtful_too() {
        let layout = Layout::from_patterns(&["{checkpoint}.dat"], 0).expect("valid");
        let (mut listing, mut order) = (Listing::default(), Vec::new());
        for (step, bytes) in [(1, 50), (2, 0), (3, 0)] {
            listing.files.push(FilePath::new(format!("ck_{step}.dat").as_bytes()).expect("valid"));
            listing.bytes.push(bytes);
            order.push((format!("ck_{step}").parse().expect("valid"), Vec::new()));
        }
        let lacking = Contents::of(&listing, &layout).lacking(&order);
        assert_eq!(lacking.keys().map(CheckpointId::as_str).collect::<Vec<_>>(), ["ck_2", "ck_3"]);
    }
}
