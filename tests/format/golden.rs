//! Files of every released format can still be read. A golden file is added once and never rewritten.

use super::support::*;
use mcrengine::container::{ContainerReader, ContainerSet};
use mcrengine::ids::GroupId;
use mcrengine::incarnation::{self, Draft};
use mcrengine::manifest::{self, Place};
use mcrengine::parity::{MEMORY_BYTES, ParityPercent, mend, parity_path, write};
use mcrengine::store::{MemoryStore, PosixStore, create_dirs};
use mcrengine::verify::verify;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The files of the golden stores that the tests in this file read.
const LOADED: [&str; 4] = [
    "wave/DD0001/group-0000.mcr",
    "wave/DD0001/group-0000.manifest",
    "wave/DD0002/group-0000.mcr",
    "wave/DD0002/group-0000.manifest",
];

#[test]
fn the_first_version_is_read() {
    let store = PosixStore::open(data().join("v1/store")).expect("opens");
    for (step, before) in [(1, None), (2, Some("DD0001"))] {
        let report = verify(&store, &job(), &step_id(step), VERIFYING, &|_| ());
        assert!(report.is_good(), "{:?}", report.problems);
        assert_eq!((report.groups, report.files), (1, 4));
        let manifest = manifest::read_manifest(&store, &job(), &step_id(step), GroupId(0)).expect("reads");
        let place = Place { incarnation: 1, written_unix_ms: 1_700_000_000_000 + step as i64 };
        assert_eq!((manifest.place(), manifest.ranks), (place, 2));
        assert_eq!(manifest.references.first().map(|r| r.checkpoint.as_str()), before);
        let expected = furnished_group(0..2, step).files;
        let of_manifest: Vec<_> = manifest.files.iter().map(|file| (&file.path, file.digest, file.kind)).collect();
        assert_eq!(of_manifest, expected.iter().map(|file| (&file.path, file.digest, file.kind)).collect::<Vec<_>>());
        let set = ContainerSet::open(&store, &job(), &step_id(step), GroupId(0)).expect("opens");
        let of_index = set.index().files().iter().map(|file| (&file.path, file.kind, file.mode));
        assert!(of_index.eq(expected.iter().map(|file| (&file.path, file.kind, file.mode))));
    }
    let record = incarnation::newest(&store, &job()).expect("reads").expect("there is one");
    assert_eq!((record.number, record.identity.as_str(), record.from), (1, "SLURM job 4711", None));
}

/// A store whose second checkpoint is predicted from segments of the first checkpoint.
const SINCE: &str = "v1/since";

#[test]
fn what_is_coded_with_an_older_checkpoint_is_read() {
    let store = PosixStore::open(data().join(SINCE)).expect("opens");
    for step in [1, 2] {
        let report = verify(&store, &job(), &step_id(step), VERIFYING, &|_| ());
        assert!(report.is_good(), "{:?}", report.problems);
        let manifest = manifest::read_manifest(&store, &job(), &step_id(step), GroupId(0)).expect("reads");
        let expected: Vec<_> = group(0..2, step).files.iter().map(|file| (file.path.clone(), file.digest)).collect();
        let found: Vec<_> = manifest.files.into_iter().map(|file| (file.path, file.digest)).collect();
        assert_eq!(found, expected);
    }
    let set = ContainerSet::open(&store, &job(), &step_id(2), GroupId(0)).expect("opens");
    let bases: Vec<_> = set.index().segments().iter().filter_map(|segment| segment.base()).collect();
    assert!(!bases.is_empty() && bases.iter().all(|base| base.reference == 0), "{bases:?}");
    assert_eq!(set.index().references()[0].checkpoint, step_id(1));
}

/// The parity of the container of DD0001 in the golden store.
const PARITY: &str = "v1/parity/group-0000.mcr.parity";

/// The golden container, and its parity as this build writes it.
fn parity() -> (MemoryStore, Vec<u8>, Vec<u8>) {
    let (store, path) = (MemoryStore::new(), Path::new("wave/DD0001/group-0000.mcr"));
    let container = std::fs::read(data().join("v1/store").join(path)).expect("read");
    create_dirs(&store, Path::new("wave/DD0001")).expect("made");
    store.put(path, &container);
    let digest = ContainerReader::open(&store, &job(), &step_id(1), GroupId(0)).expect("opens").index_digest();
    let written =
        write(&store, path, path, digest, ParityPercent::new(50).expect("valid"), MEMORY_BYTES).expect("written");
    let parity = store.get(written.path()).expect("there");
    (store, container, parity)
}

#[test]
fn parity_of_the_first_version_mends_a_container() {
    let (store, container, written) = parity();
    let golden = std::fs::read(data().join(PARITY)).expect("read");
    assert!(golden == written, "the same container gives the same parity");
    let path = Path::new("wave/DD0001/group-0000.mcr");
    store.put(&parity_path(path), &golden);
    store.put(path, &container[..3000]);
    let digest = ContainerReader::open(
        &PosixStore::open(data().join("v1/store")).expect("opens"),
        &job(),
        &step_id(1),
        GroupId(0),
    );
    let digest = digest.expect("opens").index_digest();
    mend(&store, path, digest, None, &|_| ())
        .map(drop)
        .expect_err("three blocks are lost, and there are two of parity");
    store.put(path, &container[..5000]);
    let mended = mend(&store, path, digest, Some(container.len() as u64), &|_| ()).expect("mends");
    assert!(store.get(mended.temp.path()).as_ref() == Some(&container) && mended.blocks == 2);
}

#[test]
fn every_golden_file_is_loaded_by_a_test() {
    is_loaded(&data().join("v1/store"), &[".incarnations/0001"]);
    is_loaded(&data().join(SINCE), &[]);
}

fn is_loaded(root: &Path, more: &[&str]) {
    let mut found = BTreeSet::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).expect("lists") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => dirs.push(path),
                false => drop(found.insert(path.strip_prefix(root).expect("below").display().to_string())),
            }
        }
    }
    let more = more.iter().map(|name| format!("wave/{name}"));
    let loaded: BTreeSet<String> = LOADED.map(String::from).into_iter().chain(more).collect();
    assert_eq!(found, loaded, "a golden file is added with the test that reads it");
}

/// Writes golden files. Run this test once for a new version of the format:
/// `MCR_WRITE_GOLDEN=v1 cargo test --test format write_golden`.
#[test]
fn write_golden_files_of_a_new_version() {
    let Ok(version) = std::env::var("MCR_WRITE_GOLDEN") else { return };
    if version == SINCE {
        return write_since_golden();
    }
    if version == PARITY {
        let path = data().join(PARITY);
        assert!(!path.exists(), "golden files are never rewritten");
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        return std::fs::write(path, parity().2).expect("written");
    }
    let root = data().join(version).join("store");
    assert!(!root.exists(), "golden files are never rewritten");
    let store = PosixStore::create(root).expect("creates");
    let mut reuse = mcrengine::reuse::ReuseIndex::empty();
    let draft = Draft { identity: "SLURM job 4711".into(), begun_by: "mcr restart on n1".into(), ..Draft::default() };
    incarnation::begin(&store, &job(), 0, draft).expect("begins");
    for step in [1, 2] {
        let mut how = how_in(mcrengine::plan::Scheme::ALL[step as usize + 1], step);
        (how.draft.ranks, how.draft.group_size, how.draft.incarnation) = (2, 2, 1);
        let manifest =
            flush(&store, &step_id(step), GroupId(0), &furnished_group(0..2, step), &how, &reuse).expect("writes");
        reuse = mcrengine::reuse::ReuseIndex::load(&store, &job(), &manifest).expect("loads");
    }
}

fn write_since_golden() {
    let root = data().join(SINCE);
    assert!(!root.exists(), "golden files are never rewritten");
    let store = PosixStore::create(root).expect("creates");
    let mut how = how(1);
    (how.draft.ranks, how.draft.group_size) = (2, 2);
    let first = flush(&store, &step_id(1), GroupId(0), &group(0..2, 1), &how, &mcrengine::reuse::ReuseIndex::empty());
    let first = first.expect("writes");
    let reuse = mcrengine::reuse::ReuseIndex::load(&store, &job(), &first).expect("loads");
    (how.draft.written_unix_ms, how.draft.in_a_row) = (how.draft.written_unix_ms + 1, 1);
    let container = finish(&store, &step_id(2), GroupId(0), &group(0..2, 2), &how, &reuse, Some(&first));
    seal_and_commit(&store, container.expect("writes"), &how).expect("commits");
}
