//! Finds the layout of the job's newest checkpoint, for a start at which the names of all files do not show a layout.
//! For example, the inputs and outputs next to the checkpoints may have become too many for a guess.

use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::{Layout, Listing};
use mcrengine::ids::{FilePath, GroupId, Rank};
use mcrengine::manifest::{newest_restorable, read_manifest};
use mcrengine::store::PosixStore;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of groups whose manifests are read.
const GROUPS_MAX: u32 = 256;

/// The layout of the job's newest checkpoint, if a file of the checkpoint is in the watched directory, and the names
/// of the checkpoint's files show the layout. `None` also if the store cannot be read.
pub async fn layout_of_newest(config: &CncConfig, store: &Path) -> Option<Layout> {
    let (config, store) = (config.clone(), store.to_owned());
    tokio::task::spawn_blocking(move || find(&config, &store)).await.ok().flatten()
}

fn find(config: &CncConfig, store: &Path) -> Option<Layout> {
    let store = PosixStore::open(store).ok()?;
    let newest = newest_restorable(&store, &config.job).ok()?.next().filter(|newest| newest.groups <= GROUPS_MAX)?;
    let mut files = BTreeMap::new();
    for group in 0..newest.groups {
        let manifest = read_manifest(&store, &config.job, &newest.id, GroupId(group)).ok()?;
        let of_group = manifest.files.into_iter().filter(|file| !file.kind.is_companion());
        files.extend(of_group.map(|file| (file.path, file.rank)));
    }
    let is_there = files.keys().any(|path: &FilePath| config.watch.join(path.as_path()).exists());
    is_there.then(|| layout_of(&files, newest.id.label(), &config.watch, config.ranks)).flatten()
}

/// The layout that the names of a checkpoint's files show. `None` if the names show no layout, or if in this layout a
/// file belongs to another checkpoint or rank.
fn layout_of(files: &BTreeMap<FilePath, Rank>, label: &str, watch: &Path, ranks: Option<u32>) -> Option<Layout> {
    let listing = Listing { files: files.keys().cloned().collect(), ..Listing::default() };
    let (layout, explanation) = Layout::guess_while_running(&listing, watch, ranks);
    let is_same = files.iter().all(|(path, rank)| {
        let placed = layout.place(path);
        placed.is_some_and(|placed| placed.checkpoint.as_str() == label && placed.rank.is_none_or(|of| of == *rank))
    });
    (explanation.certain && explanation.asks.is_none() && is_same).then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_checkpoint_show_its_layout_only_if_they_give_the_same_label_and_ranks() {
        let layout = |label: &str, names: &[&str]| {
            let path = |name: &str| FilePath::new(name.as_bytes()).expect("valid");
            let files = names.iter().zip(0..).map(|(name, rank)| (path(name), Rank(rank))).collect();
            layout_of(&files, label, Path::new("/data/run7"), Some(2)).map(|layout| layout.name().to_owned())
        };
        let cactus = ["checkpoint.chkpt.it_192.file_0.h5", "checkpoint.chkpt.it_192.file_1.h5"];
        assert_eq!(layout("checkpoint.chkpt.it_192", &cactus).as_deref(), Some("cactus"));
        assert_eq!(layout("run7", &cactus), None, "another layout saved the files as one checkpoint");
        assert_eq!(layout("checkpoint.chkpt.it_192", &[cactus[1], cactus[0]]), None, "the ranks are others");
        assert_eq!(layout("run7", &["WAVECAR", "CHGCAR"]), None);
    }
}
