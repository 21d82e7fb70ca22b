//! Damages repacked containers, marks and records of incarnations.

use super::*;
use mcrengine::container::{ReadOrder, SegmentBuffer};
use mcrengine::incarnation::{self, Draft, Incarnations};
use mcrengine::manifest::{Condition, Place, spoil, state};
use mcrengine::marks::mark_bad;
use mcrengine::prune::{PruneOptions, prune};
use mcrengine::retention::Rules;
use mcrengine::store::Store;
use std::sync::Arc;

const REPACKED: &str = "wave/DD0001/group-0001.mcr";

/// A checkpoint that refers to the remaining containers of a pruned checkpoint.
fn repacked() -> MemoryStore {
    let store = whole();
    repack(&store);
    store
}

fn repack(store: &MemoryStore) {
    let keep = Rules { last: 1, ..Rules::default() };
    let options = PruneOptions { keep, repack_below_percent: 100, ..PruneOptions::default() };
    let pruned = prune(store, &job(), &options).expect("prunes");
    assert_eq!(pruned.repacked.len(), 2, "{pruned:?}");
}

/// Reads the whole second group of the newest checkpoint. `Err` means that the damage was noticed. Wrong bytes make
/// the test fail.
fn read_all(store: &MemoryStore, at: &str) -> Result<(), ReadError> {
    let group = group(2..4, 2);
    let set = Arc::new(ContainerSet::open(store, &job(), &step_id(2), GroupId(1))?);
    let tasks = set.tasks(|_| true);
    let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, u64::MAX, ReadOrder::Announced)?;
    let mut first = Ok(());
    for task in &tasks {
        let result = segments.run(task, 1, |variable, offset, bytes| {
            let from = offset as usize;
            assert!(bytes == &group.raw(variable)[from..from + bytes.len()], "{at}: wrong bytes");
            Ok::<(), ReadError>(())
        });
        first = first.and(result.map(|_| ()));
    }
    first
}

#[test]
fn every_flipped_bit_of_a_repacked_container_is_noticed_before_wrong_bytes_are_given() {
    let store = repacked();
    read_all(&store, "whole").expect("whole");
    let path = Path::new(REPACKED);
    let bytes = store.get(path).expect("there");
    let mut by_list = 0;
    for at in 0..bytes.len() {
        // Flip each bit outside the stored bytes of segments, and one bit of each stored byte.
        let is_framing = at < 32 + 72 || at + 600 > bytes.len();
        for bit in (0..8).filter(|bit| is_framing || *bit == at % 8) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            store.put(path, &flipped);
            let place = format!("byte {at} of {}, bit {bit}", bytes.len());
            let error = read_all(&store, &place).expect_err(&place);
            assert!(matches!(error.advice(), Advice::OlderCheckpoint | Advice::Upgrade), "{place}: {error}");
            assert!(error.to_string().contains("group-0001"), "{place}: {error} names no container");
            if is_framing && bit == 0 {
                let condition = state(&store, &job(), &step_id(2)).expect("looks").condition();
                by_list += u32::from(condition != Condition::Complete);
            }
        }
    }
    assert!(by_list >= 80, "{by_list}: a list examines the header and the trailer of a shortened container");
}

#[test]
fn every_cut_of_a_repacked_container_is_noticed() {
    let store = repacked();
    let path = Path::new(REPACKED);
    let bytes = store.get(path).expect("there");
    for len in 0..bytes.len() {
        store.put(path, &bytes[..len]);
        let place = format!("{len} of {} bytes", bytes.len());
        let error = read_all(&store, &place).expect_err(&place);
        assert_eq!(error.advice(), Advice::OlderCheckpoint, "{place}: {error}");
        let found = state(&store, &job(), &step_id(2)).expect("looks");
        assert_eq!(found.condition(), Condition::Damaged, "{place}");
        assert!(found.problems[0].contains("group-0001.mcr"), "{place}: {:?}", found.problems);
    }
}

#[test]
fn another_container_in_place_of_a_repacked_one_is_noticed_unless_it_is_the_one_that_it_was_made_of() {
    let store = repacked();
    let stale = other_run();
    let others = [
        ("the other group's", store.get("wave/DD0001/group-0000.mcr".as_ref()), false),
        ("a container with other bytes", stale.get(REPACKED.as_ref()), false),
        ("the newer checkpoint's", store.get("wave/DD0002/group-0001.mcr".as_ref()), false),
        ("no container", None, false),
        ("the container before it was repacked", whole().get(REPACKED.as_ref()), true),
    ];
    for (what, bytes, is_good) in others {
        let after = store.crash(Survival::Everything);
        match bytes {
            Some(bytes) => after.put(REPACKED.as_ref(), &bytes),
            None => after.remove_file(REPACKED.as_ref()).expect("removes"),
        }
        assert_eq!(read_all(&after, what).is_ok(), is_good, "{what}");
        let report = verify(&after, &job(), &step_id(2), VERIFYING, &|_| ());
        assert_eq!(report.is_good(), is_good, "{what}: {:?}", report.problems);
        assert!(report.problems.iter().all(|p| p.advice == Advice::OlderCheckpoint), "{what}: {:?}", report.problems);
    }
}

#[test]
fn a_damaged_container_is_not_repacked_and_stays_as_evidence() {
    let store = whole();
    let path = Path::new(REPACKED);
    let mut bytes = store.get(path).expect("there");
    let reader = ContainerReader::open(&store, &job(), &step_id(1), GroupId(1)).expect("opens");
    // Every segment is damaged, so the needed segments are damaged too.
    for segment in reader.index().segments() {
        bytes[segment.offset as usize + 72] ^= 1;
    }
    store.put(path, &bytes);
    let keep = Rules { last: 1, ..Rules::default() };
    let options = PruneOptions { keep, repack_below_percent: 100, ..PruneOptions::default() };
    let pruned = prune(&store, &job(), &options).expect("prunes");
    assert_eq!(pruned.repacked.iter().map(|one| one.group).collect::<Vec<_>>(), [GroupId(0)], "{pruned:?}");
    assert_eq!(store.get(path).expect("there"), bytes);
    assert!(!verify(&store, &job(), &step_id(2), VERIFYING, &|_| ()).is_good());
}

#[test]
fn a_mark_whose_text_is_damaged_is_a_mark_all_the_same() {
    let texts: [&[u8]; 4] = [b"", b"\xff\xfe\0\x1b[31m", &[b'x'; 9000], b"diver"];
    for text in texts {
        let store = whole();
        mark_bad(&store, &job(), &step_id(2), "diverged").expect("marks");
        store.put("wave/DD0002/bad".as_ref(), text);
        let found = state(&store, &job(), &step_id(2)).expect("looks");
        assert_eq!(found.condition(), Condition::Bad, "{text:?}");
        let reason = found.bad.unwrap_or_default();
        assert!(reason.len() <= 3 * 4096 && !reason.chars().any(char::is_control), "{reason:?}");

        let store = whole();
        spoil(&store, &job(), &step_id(2), "rank 7 is not taken").expect("marks");
        store.put("wave/DD0002/spoiled".as_ref(), text);
        assert_eq!(state(&store, &job(), &step_id(2)).expect("looks").condition(), Condition::Incomplete, "{text:?}");

        let store = repacked();
        store.put("wave/DD0001/pruned".as_ref(), text);
        assert_eq!(state(&store, &job(), &step_id(1)).expect("looks").condition(), Condition::Pruned, "{text:?}");
        assert!(verify(&store, &job(), &step_id(2), VERIFYING, &|_| ()).is_good());
    }
}

#[test]
fn every_damage_to_the_record_of_an_incarnation_is_named_and_no_list_is_made_without_it() {
    let begin = |store: &MemoryStore, job: &mcrengine::ids::JobId, after: u32| {
        let from = Some((step_id(1), Place { incarnation: 0, written_unix_ms: 1_700_000_000_001 }));
        let draft = Draft { from, is_restart: true, whole: vec![step_id(2)], ..Draft::default() };
        incarnation::begin(store, job, after, draft).expect("begins");
    };
    let store = whole();
    begin(&store, &job(), 0);
    begin(&store, &job(), 1);
    let (path, first) = (Path::new("wave/.incarnations/0002"), Path::new("wave/.incarnations/0001"));
    let bytes = store.get(path).expect("there");
    let other = MemoryStore::new();
    begin(&other, &"tide".parse().expect("valid"), 0);
    begin(&other, &"tide".parse().expect("valid"), 1);
    let foreign = other.get(".tide.incarnations/0002".as_ref()).expect("there");
    let stale = store.get(first).expect("there");
    let check = |bytes: &[u8], what: &str| {
        store.put(path, bytes);
        for error in [
            Incarnations::load(&store, &job()).map(|_| ()).expect_err(what),
            list(&store, &job()).map(|_| ()).expect_err(what),
            incarnation::newest(&store, &job()).map(|_| ()).expect_err(what),
        ] {
            assert!(error.to_string().contains(".incarnations/0002"), "{what}: {error} does not name the record");
        }
    };
    check(&foreign, "another job's");
    check(&stale, "an older one");
    (0..bytes.len()).for_each(|len| check(&bytes[..len], &format!("cut after {len} bytes")));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        check(&flipped, &format!("byte {at}"));
    }
    // The store cannot show that a record is missing. The checkpoints stay complete, and the older record decides
    // which checkpoint is set aside.
    store.remove_file(path).expect("removes");
    assert!(list(&store, &job()).expect("lists").iter().all(|state| state.is_complete()));
    store.put(path, &bytes);
    assert_eq!(incarnation::newest_number(&store, &job()).expect("lists"), 2);
}
