//! Keeps the layout with which a job was saved before.
//!
//! More files may change a guess: with a second step, the number of the step may look like a rank, and a half-written
//! step may look like the files of another code. If the guess changed, a restart would find parts of checkpoints beside
//! whole ones. So a guess must place the files of the job's newest checkpoints as they were saved. Otherwise, the names
//! of these files alone show the layout, or the user is asked.

use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::{Explanation, Layout, Listing};
use mcrengine::ids::{CheckpointId, FilePath, GroupId, JobId, Rank};
use mcrengine::manifest::{Manifest, ManifestFile, newest_restorable, read_manifest};
use mcrengine::store::{PosixStore, Store};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Maximum number of groups of a checkpoint whose manifests are read.
const GROUPS_MAX: u32 = 256;
/// Number of the newest checkpoints whose files are compared.
const CHECKPOINTS_MAX: usize = 8;

/// The files of the job's newest checkpoints that are in the watched directory.
#[derive(Debug, Default)]
pub struct SavedFiles {
    /// The checkpoint's label, and the file.
    files: BTreeMap<FilePath, (String, ManifestFile)>,
}

impl SavedFiles {
    /// Reads the newest checkpoints of a job. Without checkpoints, or if they cannot be read, there are no files.
    /// `dir`: the watched directory.
    pub fn load(store: &dyn Store, job: &JobId, dir: &Path) -> Self {
        let mut files = BTreeMap::new();
        let newest = newest_restorable(store, job).into_iter().flatten();
        for state in newest.filter(|state| state.groups <= GROUPS_MAX).take(CHECKPOINTS_MAX) {
            let of_group = |group| read_manifest(store, job, &state.id, GroupId(group)).ok();
            // What a failed command left may have been only the first files of a checkpoint.
            let manifests = (0..state.groups).filter_map(of_group).filter(Manifest::has_sure_ranks);
            for file in manifests.flat_map(|manifest| manifest.files) {
                if file.kind.is_regular() && dir.join(file.path.as_path()).exists() {
                    files.entry(file.path.clone()).or_insert_with(|| (state.id.label().to_owned(), file));
                }
            }
        }
        Self { files }.without_whole(dir)
    }

    /// The files without those that were saved as one checkpoint of rank 0, named after the directory. If the first
    /// run writes one checkpoint, its names do not show the layout. As soon as later checkpoints show another layout,
    /// the first one shows nothing.
    fn without_whole(mut self, dir: &Path) -> Self {
        let whole = Layout::whole(dir);
        let label = self.files.keys().find_map(|path| whole.place(path)).map(|placed| placed.checkpoint);
        if let Some(label) = label.filter(|label| !self.are_whole(label)) {
            self.files.retain(|_, file| !is_whole(file, &label));
        }
        self
    }

    /// Whether all files are of one checkpoint that was named after the directory, and of rank 0.
    fn are_whole(&self, directory: &CheckpointId) -> bool {
        !self.files.is_empty() && self.files.values().all(|file| is_whole(file, directory))
    }

    /// A file that the layout places in another checkpoint, or for another rank, than it was saved. The text is for
    /// users.
    fn contradiction(&self, layout: &Layout) -> Option<String> {
        self.files.iter().find_map(|(path, (label, file))| {
            let placed = layout.place(path)?;
            let rank = placed.rank.unwrap_or(Rank(0));
            (placed.checkpoint.as_str() != label || rank != file.rank).then(|| {
                format!("{path} was saved as {label}, {}, and would now be {}, {rank}", file.rank, placed.checkpoint)
            })
        })
    }

    /// Whether the layout places at least half of the files.
    fn are_placed(&self, layout: &Layout) -> bool {
        self.files.keys().filter(|path| layout.place(path).is_some()).count() * 2 >= self.files.len()
    }

    /// The layout that the names of these files show. `None` if they show no layout, or if in this layout a file
    /// belongs to another checkpoint or rank.
    fn guess(&self, dir: &Path, ranks: Option<u32>) -> Option<Layout> {
        if self.files.is_empty() {
            return None;
        }
        let at = |file: &ManifestFile| u64::try_from(file.modified_ns).map_or(Duration::ZERO, Duration::from_nanos);
        let listing = Listing {
            files: self.files.keys().cloned().collect(),
            modified: self.files.values().map(|(_, file)| SystemTime::UNIX_EPOCH + at(file)).collect(),
            bytes: self.files.values().map(|(_, file)| file.bytes).collect(),
            ..Listing::default()
        };
        let (layout, explanation) = Layout::guess_while_running(&listing, dir, ranks);
        let is_shown = explanation.certain && explanation.asks.is_none() && self.are_placed(&layout);
        (is_shown && self.contradiction(&layout).is_none()).then_some(layout)
    }

    /// Like [`Self::keep`], while the application runs. If the guess is not certain yet, the saved files may show the
    /// layout.
    pub fn keep_while_running(
        &self,
        guess: (Layout, Explanation),
        dir: &Path,
        ranks: Option<u32>,
    ) -> (Layout, Explanation) {
        let (layout, explanation) = self.keep(guess, dir, ranks);
        match self.guess(dir, ranks).filter(|_| !explanation.certain) {
            Some(layout) => shown_by_newest(layout),
            None => (layout, explanation),
        }
    }

    /// The layout for all files of the directory: the guess, if it places the saved files as they were saved, or the
    /// layout that the saved files show.
    pub fn keep(
        &self,
        (layout, mut explanation): (Layout, Explanation),
        dir: &Path,
        ranks: Option<u32>,
    ) -> (Layout, Explanation) {
        if self.files.is_empty() {
            return (layout, explanation);
        }
        let whole = Layout::whole(dir);
        let of_directory = self.files.keys().find_map(|path| whole.place(path)).map(|placed| placed.checkpoint);
        let contradiction = self.contradiction(&layout);
        let are_whole = of_directory.as_ref().is_some_and(|label| self.are_whole(label));
        // A layout with checkpoints of other names may take the place of one checkpoint for all files. But a layout
        // that finds ranks in the same checkpoint took the next step for another rank.
        let finds_ranks = || {
            let of_all = self.files.keys().filter_map(|path| layout.place(path));
            layout.has_ranks() && of_all.into_iter().all(|placed| Some(placed.checkpoint) == of_directory)
        };
        if are_whole && (explanation.asks.is_some() || finds_ranks()) {
            let line = "as before: all files are one checkpoint of rank 0".to_owned();
            return (whole, Explanation { lines: vec![line], is_whole: true, ..Explanation::default() });
        }
        if are_whole || (explanation.asks.is_none() && contradiction.is_none()) {
            return (layout, explanation);
        }
        if let Some(layout) = self.guess(dir, ranks) {
            return shown_by_newest(layout);
        }
        let Some(contradiction) = contradiction.filter(|_| explanation.asks.is_none()) else {
            return (layout, explanation);
        };
        explanation.asks = Some(format!(
            "{contradiction}. Say with --layout which files form a checkpoint: a preset, a pattern with \
             {{checkpoint}} and {{rank}}, or \"single\" for all files as one checkpoint"
        ));
        explanation.certain = false;
        (layout, explanation)
    }
}

/// Whether a file was saved in a checkpoint that was named after the directory, as a file of rank 0.
fn is_whole((label, file): &(String, ManifestFile), directory: &CheckpointId) -> bool {
    label == directory.as_str() && file.rank == Rank(0)
}

/// A layout that the files of the newest checkpoints show.
fn shown_by_newest(layout: Layout) -> (Layout, Explanation) {
    let lines = vec![format!("{}: the newest checkpoint shows it", layout.name())];
    (layout, Explanation { lines, certain: true, ..Explanation::default() })
}

/// The files of the job's newest checkpoints, for the agent of `mcr run` with this store. No files if `store` is `None`.
pub async fn load(config: &CncConfig, store: Option<&Path>) -> SavedFiles {
    let Some(store) = store.map(Path::to_owned) else { return SavedFiles::default() };
    let config = config.clone();
    let load = move || Some(SavedFiles::load(&PosixStore::open(store).ok()?, &config.job, &config.watch));
    tokio::task::spawn_blocking(load).await.ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::header::FileKind;
    use mcrengine::ids::Digest;

    /// Files of checkpoints: label, path and rank. Each checkpoint was written a minute after the one before.
    fn saved(files: &[(&str, &str, u32)]) -> SavedFiles {
        let mut labels: Vec<&str> = Vec::new();
        let mut all = BTreeMap::new();
        for (label, path, rank) in files {
            if labels.last() != Some(label) {
                labels.push(label);
            }
            let path = FilePath::new(path.as_bytes()).expect("valid");
            let (rank, digest, kind) = (Rank(*rank), Digest::of(b""), FileKind::default());
            let modified_ns = 1_700_000_000_000_000_000 + labels.len() as i64 * 60_000_000_000;
            let file = ManifestFile { path: path.clone(), rank, bytes: 6000, kind, modified_ns, digest };
            all.insert(path, ((*label).to_owned(), file));
        }
        SavedFiles { files: all }
    }

    const DIR: &str = "/data/run7";

    /// The guess for these files, a minute after each other for each of the steps, after a look at the saved files.
    fn kept(saved: &SavedFiles, steps: &[&[&str]]) -> (Layout, Explanation) {
        let files = steps.iter().zip(1..).flat_map(|(names, nth)| names.iter().map(move |name| (*name, nth * 60)));
        let mut files: Vec<(&str, u64)> = files.collect();
        files.sort_unstable();
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
        let listing = Listing {
            files: files.iter().map(|(name, _)| FilePath::new(name.as_bytes()).expect("valid")).collect(),
            modified: files.iter().map(|(_, seconds)| at(*seconds)).collect(),
            bytes: vec![6000; files.len()],
            ..Listing::default()
        };
        saved.keep(Layout::guess(&listing, Path::new(DIR), None), Path::new(DIR), None)
    }

    fn place(layout: &Layout, path: &str) -> String {
        let placed = layout.place(&FilePath::new(path.as_bytes()).expect("valid")).expect("placed");
        format!("{} {}", placed.checkpoint, placed.rank.map_or(0, |rank| rank.0))
    }

    #[test]
    fn the_names_of_a_checkpoint_show_its_layout_only_if_they_give_the_same_label_and_ranks() {
        let layout = |label: &str, names: &[&str]| {
            let files: Vec<_> = names.iter().zip(0..).map(|(name, rank)| (label, *name, rank)).collect();
            saved(&files).guess(Path::new(DIR), Some(2)).map(|layout| layout.name().to_owned())
        };
        let cactus = ["checkpoint.chkpt.it_192.file_0.h5", "checkpoint.chkpt.it_192.file_1.h5"];
        assert_eq!(layout("checkpoint.chkpt.it_192", &cactus).as_deref(), Some("cactus"));
        assert_eq!(layout("run7", &cactus), None, "another layout saved the files as one checkpoint");
        assert_eq!(layout("checkpoint.chkpt.it_192", &[cactus[1], cactus[0]]), None, "the ranks are others");
        assert_eq!(layout("run7", &["WAVECAR", "CHGCAR"]), None);
    }

    #[test]
    fn a_half_written_step_does_not_change_the_layout_of_a_job() {
        let names = |step: u32| {
            let of = |rank| [format!("{step}/{step}.h5.{rank}"), format!("{step}/{step}_particles.h5.{rank}")];
            (0..4).flat_map(of).collect::<Vec<String>>()
        };
        let steps: Vec<Vec<String>> = (1..=3).map(names).collect();
        let rank = |name: &str| name.rsplit('.').next().and_then(|rank| rank.parse().ok()).expect("a rank");
        let of_store: Vec<(String, &String)> =
            steps.iter().zip(1..).flat_map(|(names, n)| names.iter().map(move |name| (n.to_string(), name))).collect();
        let of_store: Vec<_> =
            of_store.iter().map(|(label, name)| (label.as_str(), name.as_str(), rank(name))).collect();
        let mut there: Vec<Vec<&str>> = steps.iter().map(|names| names.iter().map(String::as_str).collect()).collect();
        there.push(vec!["4/4.h5.0"]);
        let there: Vec<&[&str]> = there.iter().map(Vec::as_slice).collect();
        let (layout, explanation) = kept(&saved(&of_store), &there);
        assert_eq!(explanation.asks, None);
        assert_eq!((place(&layout, "3/3.h5.2"), place(&layout, "3/3_particles.h5.2")), ("3 2".into(), "3 2".into()));
        assert_eq!(place(&layout, "4/4.h5.0"), "4 0");
    }

    #[test]
    fn a_second_step_is_no_second_rank_of_a_job_that_was_saved_as_one_checkpoint_of_one_rank() {
        let first = ["checkpoints/checkpoints_s1.h5", "snapshots/snapshots_s1.h5"];
        let second = ["checkpoints/checkpoints_s2.h5", "snapshots/snapshots_s2.h5"];
        let of_store: Vec<_> = first.iter().map(|name| ("run7", *name, 0)).collect();
        let (layout, explanation) = kept(&saved(&of_store), &[&first, &second]);
        assert_eq!(explanation.asks, None);
        assert!(first.iter().chain(&second).all(|name| place(&layout, name) == "run7 0"), "{layout}");
    }

    #[test]
    fn the_first_checkpoint_of_all_files_does_not_speak_against_a_layout_that_a_later_one_showed() {
        let path = |step: u32| format!("checkpoint-{step}/model.bin");
        let [first, second, third] = [100, 200, 300].map(path);
        let saved = saved(&[("run7", &first, 0), ("checkpoint-200", &second, 0)]).without_whole(Path::new(DIR));
        let (layout, explanation) = kept(&saved, &[&[&first], &[&second], &[&third]]);
        assert_eq!(explanation.asks, None, "{layout}");
        let third = layout.place(&FilePath::new(third.as_bytes()).expect("valid")).expect("placed");
        assert_eq!(third.checkpoint.as_str(), "checkpoint-300");
    }

    #[test]
    fn another_layout_than_that_of_the_stored_checkpoints_is_a_question() {
        let of_store = saved(&[("w_1.a", "w_1.a.0.h5", 0), ("w_1.a", "w_1.b.0.h5", 0)]);
        let names = [["w_1.a.0.h5", "w_1.a.1.h5"], ["w_2.a.0.h5", "w_2.a.1.h5"]];
        let (_, explanation) = kept(&of_store, &[&names[0], &names[1]]);
        let asks = explanation.asks.expect("a question");
        assert!(asks.contains("w_1.a.0.h5 was saved as w_1.a, rank 0, and would now be w_1, rank 0"), "{asks}");
    }
}
