//! Tests of parity: each test is repeated for every operation of the store, and stops the store before this
//! operation.

use super::*;
use mcrengine::copy::{MendedBy, Repaired, Route, Side, copy_checkpoint, plan_checkpoint, repair};
use mcrengine::ids::{GroupId, Grouping};
use mcrengine::manifest::read_manifest;
use mcrengine::parity::{MEMORY_BYTES, ParityPercent, parity_path};
use mcrengine::reuse::ReuseIndex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Writes all groups of a step like [`flush_step`]. The containers have parity, unless `percent` is 0.
fn flush_with(store: &dyn Store, step: u64, before: Option<u64>, percent: u32) -> Result<(), StoreError> {
    let mut how = how(step);
    let grouping = Grouping::new(how.draft.ranks, how.draft.group_size).expect("valid");
    for number in (0..grouping.groups()).map(GroupId) {
        let mut reuse = ReuseIndex::empty();
        if let Some(before) = before {
            let manifest = read_manifest(store, &job(), &step_id(before), number)?;
            how.draft.known = manifest.known_containers();
            reuse = ReuseIndex::load(store, &job(), &manifest)?;
        }
        let group = group(grouping.ranks_of(number), step);
        let made = match finish(store, &step_id(step), number, &group, &how, &reuse, None) {
            // An earlier attempt was stopped after it had committed this group.
            Err(StoreError::Committed { .. }) => continue,
            other => other,
        };
        let mut made = made?;
        if let Some(percent) = ParityPercent::new(percent) {
            made.add_parity(store, percent, MEMORY_BYTES)?;
        }
        seal_and_commit(store, made, &how)?;
    }
    Ok(())
}

fn flush_parity(store: &dyn Store, step: u64, before: Option<u64>) -> Result<(), StoreError> {
    flush_with(store, step, before, 10)
}

fn mend(store: &dyn Store, step: u64) -> Repaired {
    let job = job();
    repair(Side { store, job: &job }, None, &step_id(step), &|_| ()).unwrap_or_default()
}

/// The parity files below a checkpoint.
fn parities(store: &MemoryStore, id: &str) -> Vec<PathBuf> {
    let is_one =
        |path: &PathBuf| path.to_string_lossy().contains(id) && path.to_string_lossy().ends_with(".mcr.parity");
    store.paths().into_iter().filter(is_one).collect()
}

/// Fails if a parity file of a checkpoint is damaged or belongs to another container.
fn check_parity(store: &MemoryStore, step: u64, at: &str) {
    let report = verify(store, &job(), &step_id(step), VERIFYING, &|_| ());
    assert!(report.damaged_parity.is_empty(), "{at}: {:?}", report.damaged_parity);
}

#[test]
fn a_committed_container_has_its_parity_wherever_the_flush_was_stopped() {
    let start = MemoryStore::new();
    flush_parity(&start, 1, None).expect("writes");
    let work = |store: &dyn Store| flush_parity(store, 2, Some(1));
    let count = operations(&start, work);
    for n in 0..=count {
        for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }, Fault::Full { from: n }] {
            let store = FaultyStore::new(start.crash(Survival::Everything), fault);
            let result = work(&store);
            // In a full store, files are renamed and synced nevertheless.
            assert!(result.is_ok() == (n == count) || matches!(fault, Fault::Full { .. }), "{fault:?}: {result:?}");
            for survival in survivals().take(6) {
                let at = format!("{fault:?}, {survival:?}");
                let after = store.inner().crash(survival);
                for id in good(&after, &at) {
                    assert_eq!(parities(&after, id.as_str()).len(), 2, "{at}");
                    check_parity(&after, if id == step_id(1) { 1 } else { 2 }, &at);
                }
                // The parity that a stopped flush left does not stay next to a container of a later flush.
                flush_with(&after, 2, Some(1), 0).unwrap_or_else(|error| panic!("{at}: again: {error}"));
                assert_eq!(good(&after, &at), [step_id(2), step_id(1)], "{at}");
                check_parity(&after, 2, &at);
            }
        }
    }
}

#[test]
fn a_container_is_mended_by_its_parity_and_a_crash_leaves_the_old_or_the_new() {
    let whole = MemoryStore::new();
    flush_parity(&whole, 1, None).expect("writes");
    flush_parity(&whole, 2, Some(1)).expect("writes");
    for path in ["wave/DD0001/group-0001.mcr", "wave/DD0002/group-0001.mcr", "wave/DD0002/group-0001.mcr.parity"] {
        let path = Path::new(path);
        let bytes = whole.get(path).expect("there");
        let damaged = whole.crash(Survival::Everything);
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 4;
        damaged.put(path, &flipped);
        let by = if path.extension().is_some_and(|end| end == "mcr") { MendedBy::Parity } else { MendedBy::Container };
        let count = {
            let store = FaultyStore::new(damaged.crash(Survival::Everything), Fault::None);
            let done = mend(&store, 2);
            let mended: Vec<_> = done.mended.iter().map(|file| (file.path.as_path(), file.by)).collect();
            assert_eq!((mended, done.left), (vec![(path, by)], vec![]));
            assert!(store.inner().get(path).as_ref() == Some(&bytes) && store.inner().paths() == whole.paths());
            store.operations()
        };
        for n in 0..count {
            for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }, Fault::Full { from: n }] {
                let store = FaultyStore::new(damaged.crash(Survival::Everything), fault);
                mend(&store, 2);
                for survival in survivals().take(4) {
                    let (after, at) = (store.inner().crash(survival), format!("{path:?}, {fault:?}, {survival:?}"));
                    let found = after.get(path);
                    assert!(found.as_ref() == Some(&flipped) || found.as_ref() == Some(&bytes), "{at}");
                    assert!(mend(&after, 2).left.is_empty(), "{at}");
                    assert!(after.get(path).as_ref() == Some(&bytes), "{at}");
                    assert!(good(&after, &at).contains(&step_id(2)), "{at}");
                }
            }
        }
    }
}

#[test]
fn prune_keeps_the_parity_of_kept_containers_and_removes_the_others() {
    let start = MemoryStore::new();
    flush_parity(&start, 1, None).expect("writes");
    flush_parity(&start, 2, Some(1)).expect("writes");
    flush_parity(&start, 3, Some(1)).expect("writes");
    let drop = |percent| PruneOptions {
        drop: vec![step_id(1), step_id(2)],
        repack_below_percent: percent,
        ..PruneOptions::default()
    };
    let unchanged = start.crash(Survival::Everything);
    prune(&unchanged, &job(), &drop(0)).expect("prunes");
    assert_eq!([1, 2, 3].map(|step| parities(&unchanged, step_id(step).as_str()).len()), [2, 0, 2]);
    check_parity(&unchanged, 3, "kept");
    let dry = PruneOptions { dry_run: true, ..drop(0) };
    let freed = |options| prune(&start.crash(Survival::Everything), &job(), options).expect("prunes").freed_bytes;
    assert!(freed(&dry).0 <= freed(&drop(0)).0, "the parity of a kept container is not counted");
    // A repacked container gets the parity of its new bytes. A prune that is stopped loses no checkpoint.
    let work = |store: &dyn Store| prune(store, &job(), &drop(100)).map(|_| ());
    let count = operations(&start, work);
    for n in 0..=count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Stop { before: n });
        let _ = work(&store);
        for survival in survivals().take(4) {
            let (after, at) = (store.inner().crash(survival), format!("before {n}, {survival:?}"));
            assert!(good(&after, &at).contains(&step_id(3)), "{at}");
            if n == count {
                check_parity(&after, 3, &at);
                let path = Path::new("wave/DD0001/group-0000.mcr");
                assert!(after.get(path) != start.get(path), "it was repacked");
            }
            assert!(mend(&after, 3).left.is_empty(), "{at}");
            check_parity(&after, 3, &at);
        }
    }
    let all = PruneOptions { drop: [1, 2, 3].map(step_id).into(), ..PruneOptions::default() };
    prune(&unchanged, &job(), &all).expect("prunes");
    assert_eq!(parities(&unchanged, "DD").len(), 0);
}

#[test]
fn a_copy_has_parity_if_the_source_has_parity_and_it_is_never_that_of_another_container() {
    let from = MemoryStore::new();
    flush_parity(&from, 1, None).expect("writes");
    flush_with(&from, 2, Some(1), 0).expect("writes");
    let job = job();
    let copy = |from: &MemoryStore, to: &MemoryStore, steps: &[u64]| {
        for step in steps {
            let route = Route { from: Side { store: from, job: &job }, to: Side { store: to, job: &job } };
            let plan = plan_checkpoint(&route, &step_id(*step), &BTreeSet::new()).expect("plans");
            copy_checkpoint(&route, &plan, &|_| ()).expect("copies");
        }
    };
    // Damaged parity of the source is computed again.
    let path = Path::new("wave/DD0001/group-0001.mcr");
    let mut damaged = from.get(&parity_path(path)).expect("there");
    damaged[300] ^= 1;
    let source = from.crash(Survival::Everything);
    source.put(&parity_path(path), &damaged);
    let to = MemoryStore::new();
    copy(&source, &to, &[1, 2]);
    assert!(from.paths().iter().all(|path| from.get(path) == to.get(path)), "the copy has the same bytes");
    // A container with all bytes replaces a repacked container that has parity.
    let repack = PruneOptions { drop: vec![step_id(1)], repack_below_percent: 100, ..PruneOptions::default() };
    prune(&to, &job, &repack).expect("prunes");
    assert!(to.get(path) != from.get(path) && parities(&to, "DD0001").len() == 2);
    for path in parities(&from, "DD0001") {
        from.remove_file(&path).expect("removed");
    }
    copy(&from, &to, &[1]);
    assert!(to.get(path) == from.get(path) && parities(&to, "DD0001").is_empty());
}
