//! Tests of a process that prunes after each commit and remembers the state of the store. The process must make the
//! same decisions as a process that reads the whole store.

use super::*;
use mcrengine::manifest::{Condition, list_remembering};
use mcrengine::marks::mark_bad;
use mcrengine::prune::prune_remembering;
use mcrengine::remembered::Remembered;

fn fault_free(store: &MemoryStore) -> FaultyStore {
    FaultyStore::new(store.clone(), Fault::None)
}

#[test]
fn a_commit_reads_nothing_of_the_checkpoints_that_it_does_not_refer_to() {
    let costs = [3u64, 60].map(|count| {
        let store = MemoryStore::new();
        (1..=count).for_each(|step| flush_step(&store, step, None).expect("writes"));
        let counted = fault_free(&store);
        flush_step(&counted, count + 1, Some(count)).expect("writes");
        (counted.opened(), counted.listed())
    });
    assert_eq!(costs[0], costs[1], "files looked at, names in the directories that were listed");
}

#[test]
fn a_prune_after_each_commit_reads_no_more_with_many_checkpoints_than_with_few() {
    let mut costs = Vec::new();
    for count in [120u32, 300] {
        let (store, mut remembered) = (MemoryStore::new(), Remembered::default());
        (1..=u64::from(count)).for_each(|step| flush_step(&store, step, None).expect("writes"));
        prune_remembering(&store, &job(), &keep(count), &mut remembered).expect("prunes");
        assert_eq!(remembered.len(), count as usize);
        let (mut opened, mut listed) = (0, 0);
        for step in u64::from(count) + 1..=u64::from(count) + 5 {
            flush_step(&store, step, None).expect("writes");
            let counted = fault_free(&store);
            let pruned = prune_remembering(&counted, &job(), &keep(count), &mut remembered).expect("prunes");
            assert_eq!(pruned.checkpoints, [step_id(step - u64::from(count))]);
            // The directory of the job is listed twice: before anything is removed, and afterwards.
            (opened, listed) = (opened + counted.opened(), listed + counted.listed() - 2 * u64::from(count));
        }
        costs.push((opened, listed));
    }
    assert_eq!(costs[0], costs[1], "files looked at, names in the directories of checkpoints");
}

#[test]
fn a_newest_checkpoint_that_was_marked_or_damaged_since_does_not_count_for_what_is_kept() {
    type Change = fn(&MemoryStore);
    let marked: Change = |store| mark_bad(store, &job(), &step_id(3), "diverged").expect("marks");
    let damaged: Change = |store| store.remove_file("wave/DD0003/group-0001.mcr".as_ref()).expect("removes");
    for (change, condition) in [(marked, Condition::Bad), (damaged, Condition::Damaged)] {
        let (store, mut remembered) = (MemoryStore::new(), Remembered::default());
        (1..=3).for_each(|step| flush_step(&store, step, None).expect("writes"));
        let pruned = prune_remembering(&store, &job(), &keep_good(2), &mut remembered).expect("prunes");
        assert_eq!(pruned.checkpoints, [step_id(1)]);
        change(&store);
        flush_step(&store, 4, None).expect("writes");
        let pruned = prune_remembering(&store, &job(), &keep_good(2), &mut remembered).expect("prunes");
        assert_eq!(pruned.checkpoints, [], "{condition}: DD0004 and DD0002 are the two good checkpoints");
        let states = list_remembering(&store, &job(), &mut remembered).expect("lists");
        assert_eq!(states.iter().map(|state| state.condition()).nth(1), Some(condition));
    }
}

fn keep_good(n: u32) -> PruneOptions {
    PruneOptions { incomplete: false, ..keep(n) }
}

#[test]
fn each_remembered_checkpoint_is_looked_at_again_in_its_turn() {
    let (store, mut remembered) = (MemoryStore::new(), Remembered::default());
    (1..=80).for_each(|step| flush_step(&store, step, None).expect("writes"));
    let prune = |remembered: &mut Remembered| {
        prune_remembering(&store, &job(), &keep_good(80), remembered).expect("prunes");
    };
    prune(&mut remembered);
    mark_bad(&store, &job(), &step_id(40), "diverged").expect("marks");
    let mut turns = 0;
    while remembered.knows(&step_id(40)) {
        prune(&mut remembered);
        turns += 1;
        assert!(turns <= 80 / 16, "DD0040 still counts as good after {turns} turns");
    }
    assert!(turns > 1, "only some checkpoints are examined in each turn");
}

#[test]
fn a_job_whose_checkpoints_come_and_go_is_listed_as_if_nothing_were_remembered() {
    let (store, mut remembered) = (MemoryStore::new(), Remembered::default());
    let reuse = mcrengine::reuse::ReuseIndex::empty();
    for step in 1..=40u64 {
        match step % 5 {
            // Only one half of the groups is saved. The other half is saved two steps later.
            0 => {
                let number = mcrengine::ids::GroupId(0);
                flush(&store, &step_id(step), number, &group(0..2, step), &how(step), &reuse)
                    .map(|_| ())
                    .expect("writes")
            }
            2 => flush_step(&store, step - 2, None).and_then(|()| flush_step(&store, step, None)).expect("writes"),
            _ => flush_step(&store, step, (step % 5 == 4).then(|| step - 1)).expect("writes"),
        }
        if step % 7 == 0 {
            prune(&store, &job(), &keep(6)).expect("another process prunes");
            // Another process pruned a checkpoint, but the directory stays because other checkpoints refer to it. The
            // remembering process would notice the change only when it prunes the same checkpoint. So the test calls
            // `look_again`, and the process then reads the store again.
            remembered.look_again();
        }
        if step % 3 == 0 {
            prune_remembering(&store, &job(), &keep_good(5), &mut remembered).expect("prunes");
        }
        let known = list_remembering(&store, &job(), &mut remembered).expect("lists");
        assert_eq!(known, list(&store, &job()).expect("lists"), "step {step}");
    }
    assert!(!remembered.is_empty());
}

#[test]
fn a_prune_that_failed_anywhere_is_gone_on_with_by_the_process_that_remembers() {
    let start = MemoryStore::new();
    (1..=4).for_each(|step| flush_step(&start, step, (step > 1).then(|| step - 1)).expect("writes"));
    let remember = |store: &dyn Store| {
        let mut remembered = Remembered::default();
        list_remembering(store, &job(), &mut remembered).expect("lists");
        assert_eq!(remembered.len(), 4);
        remembered
    };
    let work = |store: &dyn Store| {
        let mut remembered = remember(store);
        prune_remembering(store, &job(), &keep(2), &mut remembered).map(|_| ())
    };
    let count = operations(&start, work);
    for n in 0..count {
        let store = FaultyStore::new(start.crash(Survival::Everything), Fault::Stop { before: n });
        let mut remembered = remember(&store);
        prune_remembering(&store, &job(), &keep(2), &mut remembered).expect_err("stopped");
        let at = format!("before operation {n}");
        let after = store.inner();
        assert!(good(after, &at).starts_with(&[step_id(4), step_id(3)]), "{at}");
        prune_remembering(after, &job(), &keep(2), &mut remembered).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(good(after, &at), [step_id(4), step_id(3)], "{at}");
        let known = list_remembering(after, &job(), &mut remembered).expect("lists");
        assert_eq!(known, list(after, &job()).expect("lists"), "{at}");
    }
}
