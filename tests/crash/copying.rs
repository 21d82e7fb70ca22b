//! Tests of copies and repairs between two stores. Each test is repeated for every operation of the written store,
//! and stops the store before this operation.

use super::*;
use mcrengine::copy::{CopyError, MendedBy, Route, Side, copy_checkpoint, copy_records, plan_checkpoint, repair};
use mcrengine::ids::JobId;
use mcrengine::incarnation::{self, Draft, Incarnations, Part, note_part};
use mcrengine::manifest::{Condition, Place, read_manifest, state};
use mcrengine::marks::{bad, mark_bad};
use std::collections::BTreeSet;
use std::path::Path;

/// Copies the records and these checkpoints of the job, in the given order.
fn copy(from: &dyn Store, to: &dyn Store, to_job: &JobId, steps: &[u64]) -> Result<(), CopyError> {
    let job = job();
    let route = Route { from: Side { store: from, job: &job }, to: Side { store: to, job: to_job } };
    copy_records(&route, false)?;
    for step in steps {
        let plan = plan_checkpoint(&route, &step_id(*step), &BTreeSet::new())?;
        copy_checkpoint(&route, &plan, &|_| ())?;
    }
    Ok(())
}

fn mend(from: &dyn Store, to: &dyn Store, step: u64) -> Result<mcrengine::copy::Repaired, CopyError> {
    let job = job();
    repair(Side { store: to, job: &job }, Some(Side { store: from, job: &job }), &step_id(step), &|_| ())
}

/// Three checkpoints of two runs. The second run continued from the first checkpoint, and set the second checkpoint
/// aside.
fn two_runs() -> MemoryStore {
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    flush_step(&store, 2, Some(1)).expect("writes");
    flush_step(&store, 3, Some(2)).expect("writes");
    let place = Place { incarnation: 0, written_unix_ms: 1_700_000_000_002 };
    let draft =
        Draft { from: Some((step_id(2), place)), is_restart: true, unfinished: Some(vec![]), ..Draft::default() };
    incarnation::begin(&store, &job(), 0, draft).expect("begins");
    note_part(&store, &job(), 1, "ranks 0-3", &Part::default()).expect("noted");
    store
}

fn files(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let of = |path: &std::path::PathBuf| (path.display().to_string(), store.get(path).expect("there"));
    store.paths().iter().map(of).filter(|(path, _)| !path.contains(".prune")).collect()
}

/// The files without the temporary files that a stopped process leaves.
fn finished(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let is_temporary = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with('.'));
    files(store).into_iter().filter(|(path, _)| !is_temporary(path)).collect()
}

#[test]
fn a_copy_has_the_same_bytes_and_a_restart_makes_the_same_choice() {
    let from = two_runs();
    mark_bad(&from, &job(), &step_id(1), "diverged").expect("marks");
    let to = MemoryStore::new();
    copy(&from, &to, &job(), &[1, 2, 3]).expect("copies");
    assert_eq!(files(&to), files(&from));
    let choice = |store: &MemoryStore| list(store, &job()).expect("lists");
    assert_eq!(choice(&to), choice(&from));
    assert!(choice(&to)[0].is_set_aside && choice(&to)[0].id == step_id(3), "{:?}", choice(&to)[0]);
    assert_eq!(bad(&to, &job(), &step_id(1)).as_deref(), Some("diverged"));
    assert_eq!(good(&to, "the copy"), [step_id(2), step_id(1), step_id(3)]);
}

#[test]
fn a_copy_stopped_anywhere_leaves_whole_checkpoints_and_can_go_on() {
    let from = two_runs();
    let work = |store: &dyn Store| copy(&from, store, &job(), &[1, 2, 3]);
    let counted = FaultyStore::new(MemoryStore::new(), Fault::None);
    work(&counted).expect("copies");
    let count = counted.operations();
    assert!(count > 40, "{count} operations");
    for n in 0..=count {
        for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }, Fault::Full { from: n }] {
            let store = FaultyStore::new(MemoryStore::new(), fault);
            let result = work(&store);
            assert!(result.is_ok() || n < count, "{fault:?}: {result:?}");
            for survival in survivals().take(4) {
                let at = format!("{fault:?}, {survival:?}");
                let after = store.inner().crash(survival);
                let complete = good(&after, &at);
                assert!(result.is_err() || complete.len() == 3, "{at}: what was copied is durable");
                let is_in_order = [&[][..], &[1], &[2, 1], &[2, 1, 3]]
                    .iter()
                    .any(|all| complete.iter().eq(all.iter().map(|step| step_id(*step)).collect::<Vec<_>>().iter()));
                assert!(is_in_order, "{at}: {complete:?}");
                work(&after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
                assert!(finished(&after) == files(&from), "{at}: {:?}", after.paths());
            }
        }
    }
}

#[test]
fn one_checkpoint_is_copied_with_the_containers_that_it_needs_and_nothing_else() {
    let from = MemoryStore::new();
    flush_step(&from, 1, None).expect("writes");
    flush_step_since(&from, 2, 1).expect("writes");
    flush_step(&from, 3, Some(1)).expect("writes");
    let to = MemoryStore::new();
    copy(&from, &to, &job(), &[2]).expect("copies");
    assert_eq!(good(&to, "one"), [step_id(2)]);
    assert_eq!(state(&to, &job(), &step_id(1)).expect("looks").condition(), Condition::Pruned);
    assert_eq!(["DD0001", "DD0003"].map(|id| containers(&to, id)), [2, 0]);
    // The next copy uses the same containers. The older checkpoint itself can be copied later.
    let before = files(&to);
    copy(&from, &to, &job(), &[3]).expect("copies");
    assert!(before.iter().all(|file| files(&to).contains(file)));
    copy(&from, &to, &job(), &[1]).expect("copies");
    assert_eq!(good(&to, "all"), [3, 2, 1].map(step_id));
    assert_eq!(files(&to), files(&from));
    // A second copy writes nothing.
    let idle = FaultyStore::new(to, Fault::Full { from: 0 });
    copy(&from, &idle, &job(), &[1, 2, 3]).expect("nothing is missing");
}

#[test]
fn a_copy_of_a_repacked_container_is_replaced_when_a_checkpoint_needs_more_of_it() {
    let from = MemoryStore::new();
    flush_step(&from, 1, None).expect("writes");
    flush_step(&from, 2, Some(1)).expect("writes");
    let to = MemoryStore::new();
    copy(&from, &to, &job(), &[1, 2]).expect("copies");
    let drop = PruneOptions { drop: vec![step_id(1)], repack_below_percent: 100, ..PruneOptions::default() };
    prune(&to, &job(), &drop).expect("prunes");
    let path = Path::new("wave/DD0001/group-0000.mcr");
    assert!(to.get(path) != from.get(path), "it was repacked");
    // A repacked container is copied without a change.
    let third = MemoryStore::new();
    copy(&to, &third, &job(), &[2]).expect("copies");
    assert_eq!((third.get(path), good(&third, "third")), (to.get(path), vec![step_id(2)]));
    copy(&from, &to, &job(), &[1]).expect("copies");
    assert_eq!((to.get(path), good(&to, "again")), (from.get(path), vec![step_id(2), step_id(1)]));
    // A repacked container never replaces a container with all bytes.
    copy(&third, &from, &job(), &[2]).expect("nothing is missing");
    assert_eq!(from.get(path), to.get(path));
}

#[test]
fn a_copy_to_another_job_has_its_name_and_is_restored_from_it() {
    let from = two_runs();
    let (to, other): (_, JobId) = (MemoryStore::new(), "archive".parse().expect("valid"));
    copy(&from, &to, &other, &[1, 2, 3]).expect("copies");
    let ids: Vec<CheckpointId> = newest_restorable(&to, &other).expect("lists").map(|state| state.id).collect();
    assert_eq!(ids, [step_id(2), step_id(1), step_id(3)]);
    for id in &ids {
        assert!(verify(&to, &other, id, VERIFYING, &|_| ()).is_good());
    }
    let group = mcrengine::ids::GroupId(1);
    let (a, b) = (read_manifest(&from, &job(), &step_id(2), group), read_manifest(&to, &other, &step_id(2), group));
    let (a, mut b) = (a.expect("reads"), b.expect("reads"));
    assert_eq!(b.job, other);
    b.job = job();
    assert_eq!(a, b);
    assert_eq!(Incarnations::load(&to, &other).expect("loads").all()[0].job, other);
    let before = files(&to);
    copy(&from, &to, &other, &[1, 2, 3]).expect("nothing is missing");
    assert_eq!(files(&to), before);
    // A copy to another job of the same store is possible too.
    copy(&from, &from, &other, &[2]).expect("copies");
    assert!(verify(&from, &other, &step_id(2), VERIFYING, &|_| ()).is_good());
}

#[test]
fn nothing_of_the_destination_is_replaced_by_another_checkpoint_or_another_history() {
    let from = two_runs();
    let other = MemoryStore::new();
    let mut how = how(9);
    how.chain = mcrengine::codec::Chain::raw();
    for number in [0, 1] {
        let group = group(number * 2..number * 2 + 2, 7);
        let reuse = mcrengine::reuse::ReuseIndex::empty();
        flush(&other, &step_id(2), mcrengine::ids::GroupId(number), &group, &how, &reuse).expect("writes");
    }
    let refused = |to: &MemoryStore, steps: &[u64]| {
        let before = files(to);
        let error = copy(&from, to, &job(), steps).expect_err("refused");
        assert!(matches!(error, CopyError::Refused { .. }), "{error:?}");
        assert_eq!(files(to), before, "{error}");
        error.to_string()
    };
    assert!(refused(&other, &[2]).contains("a restart would no longer take its checkpoint DD0002"));
    let elsewhere = MemoryStore::new();
    copy(&from, &elsewhere, &job(), &[1]).expect("copies");
    incarnation::begin(&elsewhere, &job(), 1, Draft::default()).expect("begins");
    copy(&from, &elsewhere, &job(), &[2]).expect("the records of the source are there");
    incarnation::begin(&from, &job(), 1, Draft { identity: "x".into(), ..Draft::default() }).expect("begins");
    assert!(refused(&elsewhere, &[3]).contains("incarnation 2 is not that of the source"));
}

#[test]
fn damage_of_the_source_is_never_copied() {
    let from = MemoryStore::new();
    flush_step(&from, 1, None).expect("writes");
    flush_step(&from, 2, Some(1)).expect("writes");
    for path in ["wave/DD0001/group-0001.mcr", "wave/DD0002/group-0001.mcr"] {
        let whole = from.get(Path::new(path)).expect("there");
        for at in (0..whole.len()).step_by(97) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            from.put(Path::new(path), &flipped);
            let to = MemoryStore::new();
            copy(&from, &to, &job(), &[2]).expect_err("the damage is noticed");
            assert_eq!(good(&to, path), [], "{path}, byte {at}");
            assert!(to.get(Path::new(path)).is_none(), "{path}, byte {at}");
        }
        from.put(Path::new(path), &whole);
    }
}

#[test]
fn a_damaged_file_is_mended_from_another_store_and_a_crash_leaves_the_old_or_the_new() {
    let whole = two_runs();
    for path in ["wave/DD0001/group-0001.mcr", "wave/DD0002/group-0001.mcr", "wave/DD0002/group-0000.manifest"] {
        let bytes = whole.get(Path::new(path)).expect("there");
        let flip = |at: usize| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            Some(flipped)
        };
        let damages = [None, flip(0), flip(bytes.len() / 2), flip(bytes.len() - 1), Some(bytes[..40].to_vec())];
        for (nth, damage) in damages.into_iter().enumerate() {
            if path.ends_with("manifest") && damage.is_none() {
                continue; // without its manifest, the group is not committed
            }
            let damaged = whole.crash(Survival::Everything);
            match damage {
                None => damaged.remove_file(Path::new(path)).expect("removes"),
                Some(bytes) => damaged.put(Path::new(path), &bytes),
            }
            let count = {
                let store = FaultyStore::new(damaged.crash(Survival::Everything), Fault::None);
                let done = mend(&whole, &store, 2).expect("mends");
                let mended: Vec<_> = done.mended.iter().map(|file| (file.path.as_path(), file.by)).collect();
                assert_eq!(
                    (mended, done.left),
                    (vec![(Path::new(path), MendedBy::Copy)], vec![]),
                    "{path}, damage {nth}"
                );
                assert_eq!(files(store.inner()), files(&whole));
                store.operations()
            };
            for n in 0..count {
                let store = FaultyStore::new(damaged.crash(Survival::Everything), Fault::Stop { before: n });
                let _ = mend(&whole, &store, 2);
                for survival in survivals().take(3) {
                    let after = store.inner().crash(survival);
                    let found = after.get(Path::new(path));
                    let at = format!("{path}, damage {nth}, before {n}, {survival:?}");
                    assert!(found == damaged.get(Path::new(path)) || found.as_deref() == Some(&bytes), "{at}");
                    assert!(mend(&whole, &after, 2).expect("mends").left.is_empty(), "{at}");
                    assert!(good(&after, &at).contains(&step_id(2)), "{at}");
                }
            }
        }
    }
}

#[test]
fn a_file_is_not_replaced_by_a_damaged_or_another_file() {
    let path = Path::new("wave/DD0002/group-0001.mcr");
    let (damaged, other) = (two_runs(), two_runs());
    let mut bytes = damaged.get(path).expect("there");
    bytes[200] ^= 1;
    damaged.put(path, &bytes);
    let mut more = other.get(path).expect("there");
    more[300] ^= 1;
    let foreign = other.get(Path::new("wave/DD0003/group-0001.mcr")).expect("there");
    for bad in [more, foreign] {
        other.put(path, &bad);
        let done = mend(&other, &damaged, 2).expect("tries");
        assert!(done.mended.is_empty() && done.left.len() == 1, "{done:?}");
        assert_eq!(damaged.get(path).as_ref(), Some(&bytes), "nothing is changed");
        assert!(done.left[0].contains("group-0001.mcr: not mended"), "{:?}", done.left);
    }
    other.remove_file(path).expect("removes");
    assert_eq!(mend(&other, &damaged, 2).expect("tries").left.len(), 1);
}

#[test]
fn a_checkpoint_of_the_same_name_with_other_bytes_is_never_replaced() {
    let step = |seed: u64| {
        let store = MemoryStore::new();
        for number in [0, 1] {
            let group = group(number * 2..number * 2 + 2, seed);
            let reuse = mcrengine::reuse::ReuseIndex::empty();
            flush(&store, &step_id(2), mcrengine::ids::GroupId(number), &group, &how(2), &reuse).expect("writes");
        }
        store
    };
    let (from, to) = (step(7), step(8));
    let before = files(&to);
    let error = copy(&from, &to, &job(), &[2]).expect_err("refused").to_string();
    assert!(error.contains("the destination has another checkpoint with the name DD0002"), "{error}");
    assert_eq!(files(&to), before);
    // The copy is also refused if the other checkpoint is incomplete.
    to.remove_file(Path::new("wave/DD0002/group-0000.manifest")).expect("removes");
    copy(&from, &to, &job(), &[2]).expect_err("refused");
    assert!(good(&to, "neither").is_empty());
    assert_eq!(
        to.get(Path::new("wave/DD0002/group-0001.mcr")).map(|bytes| bytes.len()),
        before.iter().find(|(path, _)| path.ends_with("DD0002/group-0001.mcr")).map(|(_, bytes)| bytes.len())
    );
}
