//! Damages containers that have parity, and their parity files. Then mends the damaged files without another store.

use super::support::*;
use mcrengine::codec::Chain;
use mcrengine::copy::{MendedBy, Repaired, Side, repair};
use mcrengine::header::ElementType;
use mcrengine::ids::GroupId;
use mcrengine::parity::{MEMORY_BYTES, ParityPercent, parity_path};
use mcrengine::reuse::ReuseIndex;
use mcrengine::store::{MemoryStore, Survival};
use mcrengine::verify::verify;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Length of a block, in bytes.
const BLOCK: usize = 4096;
const PERCENT: u32 = 20;

fn container(step: u64) -> PathBuf {
    format!("wave/DD{step:04}/group-0000.mcr").into()
}

/// A store with two checkpoints. Each checkpoint has one container of 6 MiB with 20 % parity: 8 stripes of 193 blocks
/// with 39 parity blocks each.
fn whole() -> MemoryStore {
    let store = MemoryStore::new();
    for step in [1, 2] {
        let part = Part {
            path: "/Grid1/Density".into(),
            element: ElementType::F64,
            raw: bytes(6 << 20, step),
            cuts: vec![],
            filters: vec![],
        };
        let (header, raw) = file(&format!("DD{step:04}/data"), 0, vec![part]);
        let group = Group { files: vec![header], raw: vec![raw] };
        let mut how = how(step);
        how.chain = Chain::raw();
        how.options.segment_bytes = 1 << 20;
        (how.draft.ranks, how.draft.group_size) = (1, 1);
        let made = finish(&store, &step_id(step), GroupId(0), &group, &how, &ReuseIndex::empty(), None);
        let mut made = made.expect("writes");
        made.add_parity(&store, ParityPercent::new(PERCENT).expect("valid"), MEMORY_BYTES).expect("writes");
        seal_and_commit(&store, made, &how).expect("commits");
    }
    store
}

fn mend(store: &MemoryStore) -> Repaired {
    let job = job();
    repair(Side { store, job: &job }, None, &step_id(2), &|_| ()).expect("looks at every file")
}

fn is_good(store: &MemoryStore) -> bool {
    let report = verify(store, &job(), &step_id(2), VERIFYING, &|_| ());
    report.is_good() && report.damaged_parity.is_empty()
}

/// Fills these bytes with zeros.
fn hole(bytes: &[u8], range: Range<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[range].fill(0);
    bytes
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 4;
    bytes
}

#[test]
fn damage_of_a_container_is_mended_by_its_parity() {
    let store = whole();
    let path = container(2);
    let bytes = store.get(&path).expect("there");
    let (len, mib) = (bytes.len(), 1 << 20);
    assert!(is_good(&store) && mend(&store) == Repaired::default());
    let two = hole(&hole(&bytes, 5000..500_000), 4 * mib..4 * mib + 500_000);
    let table = [
        ("a flipped bit", flipped(&bytes, len / 2), 1),
        ("a flipped bit of the header", flipped(&bytes, 3), 1),
        ("a flipped bit of the trailer", flipped(&bytes, len - 1), 1),
        ("a zeroed sector", hole(&bytes, 40 * BLOCK..41 * BLOCK), 1),
        ("4 KiB across two blocks", hole(&bytes, 40 * BLOCK + 9..41 * BLOCK + 9), 2),
        ("a zeroed MiB", hole(&bytes, 3 * mib..4 * mib), 256),
        ("a missing tail", bytes[..len - 300_000].to_vec(), 0),
        ("two holes", two, 0),
        ("more bytes at the end", [&bytes[..], b"more"].concat(), 0),
    ];
    for (name, damaged, blocks) in table {
        let after = store.crash(Survival::Everything);
        after.put(&path, &damaged);
        assert!(!is_good(&after), "{name}: verify notices the damage");
        let done = mend(&after);
        assert!(done.left.is_empty() && done.mended.len() == 1, "{name}: {done:?}");
        assert_eq!((&done.mended[0].path, done.mended[0].by), (&path, MendedBy::Parity), "{name}");
        if blocks > 0 {
            assert_eq!(done.mended[0].bytes, blocks * BLOCK as u64, "{name}");
        }
        assert!(after.get(&path).as_ref() == Some(&bytes) && is_good(&after), "{name}");
        assert_eq!(after.paths(), store.paths(), "{name}: no temporary file is left");
    }
}

#[test]
fn more_damage_than_the_parity_covers_changes_nothing() {
    let store = whole();
    let path = container(2);
    let bytes = store.get(&path).expect("there");
    for damaged in [hole(&bytes, 1 << 20..3 << 20), bytes[..bytes.len() / 2].to_vec(), Vec::new(), vec![1; bytes.len()]]
    {
        store.put(&path, &damaged);
        let done = mend(&store);
        assert!(done.mended.is_empty() && done.left.len() == 1, "{done:?}");
        let reason = &done.left[0];
        assert!(reason.contains("group-0000.mcr: not mended: ") && reason.contains("--from"), "{reason}");
        assert!(
            reason.contains("more blocks than their parity") || reason.contains("more than its parity"),
            "{reason}"
        );
        assert!(store.get(&path).as_ref() == Some(&damaged), "nothing is changed");
    }
    store.put(&parity_path(&path), b"");
    mcrengine::store::Store::remove_file(&store, &parity_path(&path)).expect("removed");
    assert!(mend(&store).left[0].contains("it has no parity; name a store"), "{:?}", mend(&store));
}

#[test]
fn damage_of_the_parity_is_noticed_and_written_again() {
    let store = whole();
    let (path, parity) = (container(2), parity_path(&container(2)));
    let (bytes, whole) = (store.get(&path).expect("there"), store.get(&parity).expect("there"));
    let other = store.get(&parity_path(&container(1))).expect("there");
    let len = whole.len();
    let table = [
        ("its first header", hole(&whole, 0..128), true),
        ("its second header", hole(&whole, len - 128..len), true),
        ("its first sector", hole(&whole, 0..BLOCK), true),
        ("a parity block", flipped(&whole, 2 * BLOCK), true),
        ("its tail", whole[..len - 2 * BLOCK].to_vec(), true),
        ("both headers", hole(&hole(&whole, 0..128), len - 128..len), false),
        ("all bytes", vec![9; len], false),
        ("no bytes", Vec::new(), false),
        ("another container's parity", other, false),
    ];
    for (name, damaged, is_useful) in table {
        let after = store.crash(Survival::Everything);
        after.put(&parity, &damaged);
        let report = verify(&after, &job(), &step_id(2), VERIFYING, &|_| ());
        assert!(report.is_good() && report.damaged_parity.len() == 1, "{name}: {report:?}");
        // The container is damaged too, in a block of stripe 5.
        let both = after.crash(Survival::Everything);
        both.put(&path, &flipped(&bytes, 13 * BLOCK));
        let done = mend(&both);
        assert_eq!(done.mended.iter().any(|file| file.by == MendedBy::Parity), is_useful, "{name}: {done:?}");
        assert_eq!(both.get(&path).as_ref() == Some(&bytes), is_useful, "{name}");
        let done = mend(&after);
        assert!(done.left.is_empty() && done.mended.len() == 1, "{name}: {done:?}");
        assert_eq!((&done.mended[0].path, done.mended[0].by), (&parity, MendedBy::Container), "{name}");
        assert!(is_good(&after), "{name}");
        // If both headers are damaged, the percentage is not known.
        let is_same = after.get(&parity).as_ref() == Some(&whole);
        assert_eq!(is_same, is_useful || name.starts_with("another"), "{name}");
    }
}

#[test]
fn a_damaged_manifest_needs_another_store() {
    let store = whole();
    store.put(Path::new("wave/DD0002/group-0000.manifest"), b"damaged");
    let done = mend(&store);
    assert!(done.mended.is_empty() && done.left.len() == 1, "{done:?}");
    assert!(done.left[0].contains("parity does not cover manifests") && done.left[0].contains("--from"), "{done:?}");
}
