//! Tests of marks, records of incarnations and repacked containers. Each test is repeated for every operation, and
//! stops the store before this operation.

use super::*;
use mcrengine::incarnation::{self, Begun, Draft};
use mcrengine::manifest::{Condition, Place, spoil, state};
use mcrengine::marks::{bad, mark_bad, unmark_bad};
use mcrengine::prune::prune_remembering;
use mcrengine::remembered::Remembered;

fn two_steps() -> MemoryStore {
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    flush_step(&store, 2, Some(1)).expect("writes");
    store
}

/// Stops `work` before and in the middle of each of its operations. Then calls `look` for several choices of the
/// unsynced data that survives. The second argument of `look` is true if `work` has reported success.
fn stopped_anywhere(
    start: &MemoryStore,
    work: impl Fn(&dyn Store) -> Result<(), StoreError>,
    look: impl Fn(&MemoryStore, bool, &str),
) {
    let count = operations(start, &work);
    assert!(count > 1, "{count} operations");
    // If the work has many operations, each choice takes a long time, so fewer choices are tried.
    let choices = if count > 40 { 3 } else { 12 };
    for n in 0..=count {
        for fault in [Fault::Stop { before: n }, Fault::Tear { at: n }] {
            let store = FaultyStore::new(start.crash(Survival::Everything), fault);
            let result = work(&store);
            for survival in survivals().take(choices) {
                let at = format!("{fault:?} of {count}, {survival:?}");
                look(&store.inner().crash(survival), result.is_ok(), &at);
            }
        }
    }
}

#[test]
fn a_mark_stopped_anywhere_is_there_with_its_whole_reason_or_not_at_all() {
    let mark = |store: &dyn Store| mark_bad(store, &job(), &step_id(2), "diverged");
    stopped_anywhere(&two_steps(), mark, |after, is_done, at| {
        let reason = bad(after, &job(), &step_id(2));
        assert!(reason.is_none() && !is_done || reason.as_deref() == Some("diverged"), "{at}: {reason:?}");
        assert_eq!(good(after, at), [step_id(2), step_id(1)], "{at}: a marked checkpoint can still be restored");
        mark(after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
        assert_eq!(state(after, &job(), &step_id(2)).expect("looks").condition(), Condition::Bad, "{at}");
    });
    let marked = two_steps();
    mark(&marked).expect("marks");
    let unmark = |store: &dyn Store| unmark_bad(store, &job(), &step_id(2)).map(|_| ());
    stopped_anywhere(&marked, unmark, |after, is_done, at| {
        let reason = bad(after, &job(), &step_id(2));
        assert!(reason.is_none() || !is_done && reason.as_deref() == Some("diverged"), "{at}: {reason:?}");
        assert_eq!(good(after, at), [step_id(2), step_id(1)], "{at}");
    });
}

#[test]
fn a_checkpoint_that_is_being_called_not_whole_is_so_once_that_was_said_and_the_others_stay_whole() {
    let work = |store: &dyn Store| spoil(store, &job(), &step_id(2), "rank 7 is not taken");
    stopped_anywhere(&two_steps(), work, |after, is_done, at| {
        let found = state(after, &job(), &step_id(2)).expect("looks");
        let is_spoiled = !found.is_complete();
        assert!(is_spoiled || !is_done, "{at}");
        assert!(!is_spoiled || found.problems == ["rank 7 is not taken"], "{at}: {:?}", found.problems);
        let expected: &[CheckpointId] = if is_spoiled { &[step_id(1)] } else { &[step_id(2), step_id(1)] };
        assert_eq!(good(after, at), expected, "{at}");
    });
}

#[test]
fn an_incarnation_begun_and_stopped_anywhere_has_its_whole_record_or_none_and_no_checkpoint_is_lost() {
    let from = Some((step_id(1), Place { incarnation: 0, written_unix_ms: 1_700_000_000_001 }));
    let draft = || Draft {
        identity: "SLURM job 7".into(),
        begun_by: "mcr restart on n1".into(),
        from: from.clone(),
        is_restart: true,
        whole: vec![step_id(2)],
        ..Draft::default()
    };
    let work = |store: &dyn Store| incarnation::begin(store, &job(), 0, draft()).map(|_| ());
    stopped_anywhere(&two_steps(), work, |after, is_done, at| {
        let newest = incarnation::newest(after, &job()).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(newest.is_some() || !is_done, "{at}: a started incarnation is durable");
        assert!(newest.is_none_or(|newest| newest.whole == [step_id(2)]), "{at}");
        // A checkpoint that the incarnation set aside comes last in the list.
        let complete = good(after, at);
        assert!(complete == [step_id(2), step_id(1)] || complete == [step_id(1), step_id(2)], "{at}: {complete:?}");
        // Another process begins the same incarnation. Both processes must get the same decision.
        let other = Draft { from: Some((step_id(2), Place::default())), whole: Vec::new(), ..draft() };
        let begun = incarnation::begin(after, &job(), 0, other).unwrap_or_else(|error| panic!("{at}: {error}"));
        let (Begun::Here(record) | Begun::Other(record)) = begun;
        assert_eq!(incarnation::newest(after, &job()).expect("reads").as_ref(), Some(&record), "{at}");
        assert!(!is_done || record.from == Some(step_id(1)), "{at}: the first decision stays valid");
    });
}

#[test]
fn a_part_that_was_noted_as_restored_is_known_after_a_crash() {
    let start = two_steps();
    let from = Some((step_id(2), Place { incarnation: 0, written_unix_ms: 1_700_000_000_002 }));
    incarnation::begin(&start, &job(), 0, Draft { from, ..Draft::default() }).expect("begins");
    let work = |store: &dyn Store| incarnation::note_part(store, &job(), 1, "ranks 0-1 to /run", &Default::default());
    stopped_anywhere(&start, work, |after, is_done, at| {
        let is_known = incarnation::has_part(after, &job(), 1, "ranks 0-1 to /run").expect("looks");
        assert!(is_known || !is_done, "{at}");
        assert_eq!(incarnation::newest_number(after, &job()).expect("lists"), 1, "{at}");
        assert_eq!(good(after, at), [step_id(2), step_id(1)], "{at}");
    });
}

#[test]
fn a_container_that_is_repacked_a_second_time_is_whole_for_the_rest_at_every_moment() {
    let start = MemoryStore::new();
    flush_step(&start, 1, None).expect("writes");
    // DD0001 contains the bases of nearly all segments of DD0002.
    flush_step_since(&start, 2, 1).expect("writes");
    flush_step(&start, 3, Some(1)).expect("writes");
    let drop = |step: u64| PruneOptions { drop: vec![step_id(step)], repack_below_percent: 100, ..Default::default() };
    let len = |store: &MemoryStore| store.get("wave/DD0001/group-0001.mcr".as_ref()).map_or(0, |bytes| bytes.len());
    let whole = len(&start);
    prune(&start, &job(), &drop(1)).expect("prunes");
    let once = len(&start);
    let work = |store: &dyn Store| prune(store, &job(), &drop(2)).map(|_| ());
    let twice = start.crash(Survival::Everything);
    work(&twice).expect("prunes");
    assert!(once <= whole && len(&twice) < once, "{whole} bytes, then {once}, then {}", len(&twice));
    stopped_anywhere(&start, work, |after, is_done, at| {
        let complete = good(after, at);
        assert!(complete == [step_id(3)] || !is_done && complete == [step_id(3), step_id(2)], "{at}: {complete:?}");
        work(after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
        assert_eq!((good(after, at), len(after)), (vec![step_id(3)], len(&twice)), "{at}");
    });
}

#[test]
fn a_commit_with_its_retention_stopped_anywhere_keeps_as_many_as_the_rule_says() {
    let start = MemoryStore::new();
    (1..=4).for_each(|step| flush_step(&start, step, (step > 1).then(|| step - 1)).expect("writes"));
    let rule = PruneOptions { incomplete: false, repack_below_percent: 100, ..keep(3) };
    let work = |store: &dyn Store| {
        let mut remembered = Remembered::default();
        mcrengine::manifest::list_remembering(store, &job(), &mut remembered)?;
        flush_step(store, 5, Some(4))?;
        prune_remembering(store, &job(), &rule, &mut remembered).map(|_| ())
    };
    let all = [5, 4, 3, 2, 1].map(step_id);
    stopped_anywhere(&start, work, |after, is_done, at| {
        let complete = good(after, at);
        let is_suffix =
            all[..3].starts_with(&complete) || all[1..].starts_with(&complete) || all.starts_with(&complete);
        assert!(complete.len() >= 3 && is_suffix, "{at}: {complete:?}");
        assert!(!is_done || complete == all[..3], "{at}: {complete:?}");
        work(after).unwrap_or_else(|error| panic!("{at}: again: {error}"));
        assert_eq!(good(after, at), all[..3], "{at}");
    });
}
