//! Tests that a failure of any operation of the store loses no complete checkpoint. Afterwards, a restart finds the
//! old or the new checkpoint complete, and a second attempt of the failed work succeeds.
//!
//! The store keeps only synced data. Each test is repeated for every operation, and stops the store before this
//! operation. Then the test examines the store without the unsynced data, with all unsynced data, and with random
//! parts of the unsynced data.

mod copying;
mod parity;
mod records;
mod remembering;
#[path = "../support/group.rs"]
mod support;

use mcrengine::ids::CheckpointId;
use mcrengine::manifest::{list, newest_restorable};
use mcrengine::prune::{PruneOptions, Pruned, prune};
use mcrengine::retention::Rules;
use mcrengine::store::{Advice, Fault, FaultyStore, MemoryStore, Store, StoreError, Survival};
use mcrengine::verify::verify;
use support::*;

/// Choices of the unsynced data that survive a crash: none, all, and ten random parts.
fn survivals() -> impl Iterator<Item = Survival> {
    [Survival::Synced, Survival::Everything].into_iter().chain((1..=10).map(Survival::Some))
}

fn keep(n: u32) -> PruneOptions {
    let keep = Rules { last: n, ..Rules::default() };
    PruneOptions { keep, incomplete: true, ..PruneOptions::default() }
}

fn prune_job(store: &dyn Store, n: u32) -> Result<Pruned, StoreError> {
    prune(store, &job(), &keep(n))
}

/// The complete checkpoints, newest first. Every byte of each checkpoint is verified.
fn good(store: &dyn Store, at: &str) -> Vec<CheckpointId> {
    let complete: Vec<CheckpointId> = newest_restorable(store, &job())
        .unwrap_or_else(|error| panic!("{at}: {error}"))
        .map(|state| state.id)
        .collect();
    for id in &complete {
        let report = verify(store, &job(), id, VERIFYING, &|_| ());
        assert!(report.is_good(), "{at}: {id}: {:?}", report.problems);
        assert_eq!(report.files, 4, "{at}: {id}");
    }
    complete
}

/// Number of containers of a checkpoint. The checkpoint may be incomplete.
fn containers(store: &MemoryStore, id: &str) -> usize {
    let is_one = |path: &String| path.contains(id) && path.ends_with(".mcr");
    store.paths().iter().map(|path| path.display().to_string()).filter(is_one).count()
}

/// Number of operations that the work needs if no operation fails.
fn operations(start: &MemoryStore, work: impl Fn(&dyn Store) -> Result<(), StoreError>) -> u64 {
    let store = FaultyStore::new(start.crash(Survival::Everything), Fault::None);
    work(&store).expect("nothing goes wrong");
    store.operations()
}

#[test]
fn a_flush_stopped_anywhere_leaves_old_or_new_and_can_be_done_again() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    let work = |store: &dyn Store| flush_step(store, 2, Some(1));
    let count = operations(&start, work);
    assert!(count > 20, "{count} operations");
    for n in 0..=count {
        for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }] {
            let store = FaultyStore::new(start.crash(Survival::Everything), fault);
            let result = work(&store);
            assert_eq!(result.is_ok(), n == count, "{fault:?}: {result:?}");
            for survival in survivals() {
                let at = format!("{fault:?}, {survival:?}");
                let after = store.inner().crash(survival);
                let complete = good(&after, &at);
                let old_or_new = complete == [step_id(1)] || complete == [step_id(2), step_id(1)];
                assert!(old_or_new, "{at}: {complete:?}");
                if result.is_ok() {
                    assert_eq!(complete.len(), 2, "{at}: a committed checkpoint exists");
                }
                work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
                assert_eq!(good(&after, &at), [step_id(2), step_id(1)], "{at}");
                let temporary = after.paths().iter().filter(|p| p.to_string_lossy().contains("/.")).count();
                assert!(temporary <= 2, "{at}: {temporary} temporary files are left");
            }
        }
    }
}

#[test]
fn the_first_flush_of_a_job_stopped_anywhere_leaves_nothing_or_all() {
    let work = |store: &dyn Store| flush_step(store, 1, None);
    let count = operations(&MemoryStore::new(), work);
    for n in 0..count {
        let store = FaultyStore::new(MemoryStore::new(), Fault::Stop { before: n });
        work(&store).expect_err("stopped");
        for survival in survivals() {
            let at = format!("before operation {n}, {survival:?}");
            let after = store.inner().crash(survival);
            let complete = good(&after, &at);
            assert!(complete.is_empty() || complete == [step_id(1)], "{at}");
            work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
            assert_eq!(good(&after, &at), [step_id(1)], "{at}");
        }
    }
}

#[test]
fn a_prune_stopped_anywhere_leaves_whole_checkpoints_and_can_go_on() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    flush_step(&start, 2, Some(1)).expect("writes");
    flush_step(&start, 3, Some(2)).expect("writes");
    flush_step(&start, 4, None).expect("writes");
    let all = [4, 3, 2, 1].map(step_id);
    let work = |store: &dyn Store| prune_job(store, 2).map(|_| ());
    let count = operations(&start, work);
    assert!(count > 10, "{count} operations");
    for n in 0..=count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Stop { before: n });
        assert_eq!(work(&store).is_ok(), n == count);
        for survival in survivals() {
            let at = format!("before operation {n}, {survival:?}");
            let after = store.inner().crash(survival);
            let complete = good(&after, &at);
            assert!(complete.starts_with(&all[..2]), "{at}: {complete:?}");
            assert!(complete.iter().all(|id| all.contains(id)), "{at}: {complete:?}");
            work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
            assert_eq!(good(&after, &at), all[..2], "{at}");
            // DD0003 refers to both containers of DD0001, so they stay. DD0003 does not refer to DD0002.
            assert_eq!(["DD0001", "DD0002"].map(|id| containers(&after, id)), [2, 0], "{at}");
            let left: Vec<String> = after.paths().iter().map(|path| path.display().to_string()).collect();
            assert!(!left.iter().any(|path| path.contains("DD0001") && path.ends_with(".manifest")), "{at}");
            // When no checkpoint refers to the containers any more, the containers and their directories are removed
            // too.
            prune_job(&after, 1).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(good(&after, &at), all[..1], "{at}");
            let left = after.list_dir("wave".as_ref()).expect("lists");
            assert_eq!(left.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["DD0004"], "{at}");
        }
    }
}

#[test]
fn what_a_kept_checkpoint_is_coded_with_is_never_pruned() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    flush_step_since(&start, 2, 1).expect("writes");
    flush_step_since(&start, 3, 2).expect("writes");
    let all = [3, 2, 1].map(step_id);
    assert_eq!(good(&start, "whole"), all);
    let work = |store: &dyn Store| prune_job(store, 1).map(|_| ());
    let count = operations(&start, work);
    assert!(count > 10, "{count} operations");
    for n in 0..=count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Stop { before: n });
        assert_eq!(work(&store).is_ok(), n == count);
        for survival in survivals().take(4) {
            let at = format!("before operation {n}, {survival:?}");
            let after = store.inner().crash(survival);
            assert!(good(&after, &at).starts_with(&all[..1]), "{at}");
            work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
            assert_eq!(good(&after, &at), all[..1], "{at}");
            assert_eq!(["DD0001", "DD0002"].map(|id| containers(&after, id)), [2, 0], "{at}");
            // DD0004 is still predicted from DD0001, although the manifests of DD0001 are removed.
            flush_step_since(&after, 4, 3).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(good(&after, &at), [step_id(4), step_id(3)], "{at}");
        }
    }
}

#[test]
fn a_flush_that_looks_back_stopped_anywhere_leaves_the_old_or_the_new() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    let work = |store: &dyn Store| flush_step_since(store, 2, 1);
    let count = operations(&start, work);
    for n in 0..=count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Stop { before: n });
        assert_eq!(work(&store).is_ok(), n == count);
        for survival in survivals().take(4) {
            let at = format!("before operation {n}, {survival:?}");
            let after = store.inner().crash(survival);
            let complete = good(&after, &at);
            assert!(complete == [step_id(1)] || complete == [step_id(2), step_id(1)], "{at}: {complete:?}");
            work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
            assert_eq!(good(&after, &at), [step_id(2), step_id(1)], "{at}");
        }
    }
}

#[test]
fn a_disk_that_fills_up_anywhere_costs_the_new_checkpoint_only() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    let count = operations(&start, |store| flush_step(store, 2, Some(1)));
    for n in 0..count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Full { from: n });
        let result = flush_step(&store, 2, Some(1));
        let at = format!("full from operation {n}");
        // Renames and syncs of directories take no space. Two threads work, so it is not certain which renames and
        // syncs are the last operations.
        assert_eq!(result.is_err(), store.refused() > 0, "{at}: {result:?}");
        assert!(result.is_err() || n + 6 >= count, "{at}: the flush also writes data, not only renames and syncs");
        if let Err(error) = result {
            assert_eq!(error.advice(), Advice::FreeSpace, "{error}");
        }
        let complete = good(store.inner(), &at);
        assert!(complete.contains(&step_id(1)), "{at}");
        let temporary = store.inner().paths().iter().filter(|p| p.to_string_lossy().contains("/.")).count();
        assert_eq!(temporary, 0, "{at}: incomplete files are removed, because the space is needed");
    }
}

#[test]
fn groups_of_two_incarnations_never_make_one_checkpoint() {
    let store = MemoryStore::new();
    let mut how = how(1);
    let reuse = mcrengine::reuse::ReuseIndex::empty();
    let number = mcrengine::ids::GroupId;
    flush(&store, &step_id(1), number(0), &group(0..2, 1), &how, &reuse).expect("writes");
    how.draft.incarnation = 1;
    flush(&store, &step_id(1), number(1), &group(2..4, 1), &how, &reuse).expect("writes");
    let states = list(&store, &job()).expect("lists");
    assert_eq!(states.len(), 1);
    assert!(
        !states[0].is_complete() && states[0].problems[0].contains("another incarnation"),
        "{:?}",
        states[0].problems
    );
}

#[test]
fn what_is_in_flight_or_newer_than_the_newest_is_not_pruned() {
    let store = MemoryStore::new();
    for step in 1..=3 {
        flush_step(&store, step, None).expect("writes");
    }
    let reuse = mcrengine::reuse::ReuseIndex::empty();
    let half = |step: u64| {
        let number = mcrengine::ids::GroupId(0);
        flush(&store, &step_id(step), number, &group(0..2, step), &how(step), &reuse).expect("writes");
    };
    half(4); // this checkpoint is newer than all other checkpoints
    store.remove_file("wave/DD0001/group-0001.manifest".as_ref()).expect("removes"); // older and incomplete
    store.remove_file("wave/DD0002/group-0001.manifest".as_ref()).expect("removes");
    let ids = |pruned: Pruned| pruned.checkpoints;
    let spare = PruneOptions { in_flight: vec![step_id(2)], ..keep(1) };
    let untouched = PruneOptions { incomplete: false, ..keep(1) };
    assert_eq!(ids(prune(&store, &job(), &untouched).expect("prunes")), []);
    assert_eq!(ids(prune(&store, &job(), &spare).expect("prunes")), [step_id(1)]);
    assert_eq!(ids(prune(&store, &job(), &keep(1)).expect("prunes")), [step_id(2)]);
    assert_eq!(list(&store, &job()).expect("lists").len(), 2, "DD0003 is kept, and DD0004 may still become complete");
}

#[test]
fn a_full_store_is_pruned_without_a_new_file() {
    let start = MemoryStore::new();
    for step in 1..=3 {
        flush_step(&start, step, (step > 1).then(|| step - 1)).expect("writes");
    }
    let store = FaultyStore::new(start, Fault::Full { from: 0 });
    let pruned = prune_job(&store, 1).expect("prunes");
    assert_eq!(pruned.checkpoints, [step_id(1), step_id(2)]);
    assert_eq!(good(&store, "full"), [step_id(3)]);
    assert_eq!(["DD0001", "DD0002"].map(|id| containers(store.inner(), id)), [2, 0]);
}

#[test]
fn no_more_than_a_number_of_checkpoints_depend_on_one_container() {
    let store = MemoryStore::new();
    let steps = 3 * u64::from(mcrengine::reuse::DEPENDENTS_MAX);
    flush_step(&store, 1, None).expect("writes");
    (2..=steps).for_each(|step| flush_step(&store, step, Some(step - 1)).expect("writes"));
    let states = list(&store, &job()).expect("lists");
    let mut most = 0;
    for id in (1..=steps).map(step_id) {
        let dependents = states.iter().filter(|s| s.references.iter().any(|r| r.checkpoint == id)).count();
        most = most.max(dependents);
    }
    assert_eq!(most, mcrengine::reuse::DEPENDENTS_MAX as usize);
    assert_eq!(good(&store, "all").len() as u64, steps);
}

#[test]
fn a_dry_run_says_what_would_go_and_changes_nothing() {
    let store = MemoryStore::new();
    (1..=4).for_each(|step| flush_step(&store, step, (step > 1).then(|| step - 1)).expect("writes"));
    let before = store.paths();
    let dry = prune(&store, &job(), &PruneOptions { dry_run: true, ..keep(2) }).expect("looks");
    assert_eq!(store.paths(), before);
    let done = prune_job(&store, 2).expect("prunes");
    assert_eq!((&dry.checkpoints, &dry.still_needed), (&done.checkpoints, &done.still_needed));
    assert_eq!(dry.checkpoints, [step_id(1), step_id(2)]);
    assert_eq!(dry.freed_bytes, done.freed_bytes);
}

#[test]
fn what_is_dropped_goes_and_nothing_else() {
    let store = MemoryStore::new();
    (1..=4).for_each(|step| flush_step(&store, step, None).expect("writes"));
    let drop = PruneOptions { drop: vec![step_id(4), step_id(2)], ..PruneOptions::default() };
    assert_eq!(prune(&store, &job(), &drop).expect("prunes").checkpoints, [step_id(2), step_id(4)]);
    assert_eq!(good(&store, "dropped"), [step_id(3), step_id(1)]);
}

#[test]
fn a_container_that_is_missing_or_cut_makes_its_checkpoint_and_those_that_refer_to_it_damaged() {
    use mcrengine::manifest::{Condition, state};
    let start = MemoryStore::new();
    (1..=3).for_each(|step| flush_step(&start, step, (step > 1).then_some(1)).expect("writes"));
    let path = std::path::Path::new("wave/DD0001/group-0001.mcr");
    let whole = start.get(path).expect("there");
    for is_cut in [false, true] {
        for is_pruned in [false, true] {
            let store = start.crash(Survival::Everything);
            if is_pruned {
                prune(&store, &job(), &PruneOptions { drop: vec![step_id(1)], ..PruneOptions::default() })
                    .expect("prunes");
            }
            match is_cut {
                true => store.put(path, &whole[..whole.len() - 1]),
                false => store.remove_file(path).expect("removes"),
            }
            let states = list(&store, &job()).expect("lists");
            let expected = if is_pruned { Condition::Pruned } else { Condition::Damaged };
            for (id, condition) in [(1, expected), (2, Condition::Damaged), (3, Condition::Damaged)] {
                let one = states.iter().find(|s| s.id == step_id(id)).expect("listed");
                let at = format!("cut {is_cut}, pruned {is_pruned}, {}: {:?}", one.id, one.problems);
                assert_eq!(one.condition(), condition, "{at}");
                assert_eq!(state(&store, &job(), &step_id(id)).expect("looks").condition(), condition, "{at}");
                assert!(is_pruned && id == 1 || one.problems[0].contains("DD0001/group-0001.mcr"), "{at}");
            }
        }
    }
}

#[test]
fn a_container_of_which_little_is_needed_is_repacked_and_a_crash_leaves_it_old_or_new() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    flush_step(&start, 2, Some(1)).expect("writes");
    flush_step(&start, 3, Some(2)).expect("writes");
    let repacking = PruneOptions { repack_below_percent: 100, ..keep(1) };
    let work = |store: &dyn Store| prune(store, &job(), &repacking).map(|_| ());
    let len = |store: &MemoryStore, group: u32| {
        store.get(format!("wave/DD0001/group-{group:04}.mcr").as_ref()).map_or(0, |bytes| bytes.len())
    };
    let whole = prune(&start.crash(Survival::Everything), &job(), &repacking).expect("prunes");
    assert_eq!(whole.repacked.len(), 2, "{whole:?}");
    let count = operations(&start, work);
    for n in 0..=count {
        for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }] {
            let store = FaultyStore::new(start.crash(Survival::Everything), fault);
            let _ = work(&store);
            for survival in survivals() {
                let at = format!("{fault:?}, {survival:?}");
                let after = store.inner().crash(survival);
                assert_eq!(good(&after, &at)[0], step_id(3), "{at}");
                work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
                assert_eq!(good(&after, &at), [step_id(3)], "{at}");
                assert!(
                    (0..2).all(|group| len(&after, group) < len(&start, group)),
                    "{at}: both containers are smaller"
                );
                // The next checkpoint refers to the remaining containers.
                flush_step(&after, 4, Some(3)).unwrap_or_else(|error| panic!("{at}: {error}"));
                assert_eq!(good(&after, &at), [step_id(4), step_id(3)], "{at}");
            }
        }
    }
}

#[test]
fn what_was_taken_out_of_a_container_is_never_given_as_zeros() {
    use mcrengine::container::ContainerReader;
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    let kept = store.crash(Survival::Everything);
    flush_step(&store, 2, Some(1)).expect("writes");
    prune(&store, &job(), &PruneOptions { repack_below_percent: 100, ..keep(1) }).expect("prunes");
    let group = mcrengine::ids::GroupId(0);
    let reader = ContainerReader::open(&store, &job(), &step_id(1), group).expect("opens");
    assert!(reader.is_repacked());
    // If the manifest of the pruned checkpoint is restored by hand, the checkpoint seems complete. Reading the
    // checkpoint must fail, because a part is missing.
    let manifest = std::path::Path::new("wave/DD0001/group-0000.manifest");
    store.put(manifest, &kept.get(manifest).expect("there"));
    let report = verify(&store, &job(), &step_id(1), VERIFYING, &|_| ());
    assert!(report.problems.iter().any(|problem| problem.what.contains("group-0000.mcr")), "{:?}", report.problems);
    assert_eq!(report.files, 0);
    // A checksum or digest covers every bit of the container.
    let path = std::path::Path::new("wave/DD0001/group-0000.mcr");
    let bytes = store.get(path).expect("there");
    for at in (0..bytes.len()).step_by(3) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        store.put(path, &flipped);
        let report = verify(&store, &job(), &step_id(2), VERIFYING, &|_| ());
        assert!(!report.is_good(), "byte {at} of {}", bytes.len());
    }
}
