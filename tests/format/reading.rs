//! Tests how often segments are read. The store counts every read.

use super::support::*;
use mcrengine::classify::VariableRef;
use mcrengine::container::{ContainerSet, ReadError, ReadOrder, SegmentBuffer, SegmentTask, Spool, VariableReader};
use mcrengine::header::FileHeader;
use mcrengine::ids::{GroupId, Rank};
use mcrengine::partition::{BufferLayout, LookAhead, Trace, VictimLimits, replay};
use mcrengine::reuse::ReuseIndex;
use mcrengine::store::{Fault, FaultyStore, MemoryStore, Read};
use mcrengine::verify::{VerifyOptions, verify};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const RANKS: u32 = 12;

/// A store with steps 1 and 2 of a group of 12 ranks. Some variables of step 2 are in the container of step 1. If
/// `is_since` is true, some segments of step 2 have bases in this container.
fn counted(is_since: bool) -> FaultyStore {
    let store = MemoryStore::new();
    let write = |step: u64, newest: Option<u64>| {
        let mut how = how(step);
        (how.draft.ranks, how.draft.group_size) = (RANKS, RANKS);
        let newest = newest
            .map(|step| mcrengine::manifest::read_manifest(&store, &job(), &step_id(step), GroupId(0)).expect("reads"));
        let reuse = newest.as_ref().map(|newest| {
            how.draft.known = newest.known_containers();
            ReuseIndex::load(&store, &job(), newest).expect("loads")
        });
        let since = newest.as_ref().filter(|_| is_since);
        let reuse = reuse.unwrap_or_else(ReuseIndex::empty);
        let group = group(0..RANKS, step);
        let made = finish(&store, &step_id(step), GroupId(0), &group, &how, &reuse, since).expect("writes");
        seal_and_commit(&store, made, &how).expect("commits");
    };
    write(1, None);
    write(2, Some(1));
    FaultyStore::new(store, Fault::None)
}

fn open(store: &FaultyStore) -> Arc<ContainerSet> {
    Arc::new(ContainerSet::open(store, &job(), &step_id(2), GroupId(0)).expect("opens"))
}

/// Number of reads of the stored bytes of each segment. Reads of other bytes are not counted.
fn segment_reads(set: &ContainerSet, reads: Vec<Read>) -> BTreeMap<(usize, usize), u64> {
    let mut counts = BTreeMap::new();
    for read in reads {
        for (container, reader) in set.readers().iter().enumerate() {
            let is_there = |at: u64| read.offset == at && reader.path().ends_with(&read.path);
            let segments = reader.index().segments().iter().enumerate();
            // A segment begins with a header of 72 bytes.
            for (segment, _) in segments.filter(|(_, segment)| is_there(segment.offset + 72)) {
                *counts.entry((container, segment)).or_default() += 1;
            }
        }
    }
    counts
}

/// Runs all tasks on several threads, and compares the bytes.
fn run_all(segments: &SegmentBuffer, tasks: &[SegmentTask], threads: usize) {
    let group = group(0..RANKS, 2);
    let queue = segments.queue(tasks);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(task) = queue.take() {
                    let compare = |at: VariableRef, offset: u64, bytes: &[u8]| {
                        let from = offset as usize;
                        assert!(bytes == &group.raw(at)[from..from + bytes.len()], "other bytes");
                        Ok::<(), ReadError>(())
                    };
                    segments.run(task, 1, compare).expect("runs");
                }
            });
        }
    });
}

#[test]
fn a_restart_reads_each_segment_once_even_if_it_is_a_base_or_holds_older_variables() {
    for (is_since, bytes) in [(false, 0), (false, 1 << 20), (true, 1 << 20)] {
        let store = counted(is_since);
        let set = open(&store);
        assert_eq!(set.index().has_bases(), is_since);
        let tasks = set.tasks(|_| true);
        let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, bytes, ReadOrder::Announced).expect("a buffer");
        store.take_reads();
        run_all(&segments, &tasks, 3);
        let counts = segment_reads(&set, store.take_reads());
        assert!(counts.values().all(|reads| *reads == 1), "since {is_since}, {bytes} bytes: {counts:?}");
        assert!(counts.len() >= tasks.len() && counts.keys().any(|(container, _)| *container == 1));
    }
}

#[test]
fn a_restart_of_one_rank_reads_only_the_segments_of_this_rank_and_their_bases() {
    for is_since in [false, true] {
        let store = counted(is_since);
        let set = open(&store);
        let wanted = |file: &FileHeader| file.rank == Rank(7);
        let files: Vec<bool> = set.index().files().iter().map(wanted).collect();
        let tasks = set.tasks(|at| files[at.file as usize]);
        let of_all = set.tasks(|_| true).len();
        assert!(tasks.len() * 2 < of_all, "{} of {of_all} segments", tasks.len());
        let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, 1 << 20, ReadOrder::Announced).expect("a buffer");
        store.take_reads();
        run_all(&segments, &tasks, 2);
        let counts = segment_reads(&set, store.take_reads());
        let of_tasks = tasks.iter().map(|task| (task.container as usize, task.segment as usize));
        let bases = tasks.iter().filter(|task| task.container == 0).filter_map(|task| {
            let base = set.index().segments()[task.segment as usize].base()?;
            Some((base.reference as usize + 1, base.segment as usize))
        });
        let needed: BTreeMap<_, _> = of_tasks.chain(bases).map(|segment| (segment, 1)).collect();
        assert_eq!(counts, needed);
    }
}

#[test]
fn readers_that_begin_at_different_times_read_each_segment_once_within_the_budget() {
    let store = counted(true);
    let set = open(&store);
    let all = set.tasks(|_| true);
    let segments = SegmentBuffer::new(Arc::clone(&set), &all, 1 << 20, ReadOrder::Shared).expect("a buffer");
    store.take_reads();
    std::thread::scope(|scope| {
        for reader in 0..4u32 {
            let (set, segments) = (&set, &segments);
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(u64::from(reader) * 3));
                let files = set.index().files();
                let tasks = set.tasks(|at| files[at.file as usize].rank.0 / 3 == reader);
                run_all(segments, &tasks, 2);
            });
        }
    });
    let counts = segment_reads(&set, store.take_reads());
    assert!(counts.values().all(|reads| *reads == 1), "{counts:?}");
}

#[test]
fn in_a_small_buffer_segments_are_read_at_most_a_tenth_more_often_than_the_choice_of_belady() {
    let store = counted(true);
    let set = open(&store);
    let tasks = set.tasks(|_| true);
    let bytes: u64 = tasks.iter().map(|task| task.raw_bytes.0).sum::<u64>() / 4;
    let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, bytes, ReadOrder::Announced).expect("a buffer");
    segments.record();
    run_all(&segments, &tasks, 2);
    let (list, events) = segments.recorded();
    let layout = BufferLayout::mixed(bytes, list.iter().map(|(_, partition)| partition.bytes), 2).expect("a cut");
    let trace = Trace::new(list, events).expect("a valid trace");
    let best = replay(&trace, &layout, LookAhead::new(trace.uses()), VictimLimits::NONE).expect("replays").loads;
    let loads = segments.counters().loads;
    assert!(loads >= tasks.len() as u64 && loads * 10 <= best * 11, "{loads} loads, Belady needs {best}");
}

/// Keeps all segments in memory.
#[derive(Default)]
struct Kept(Mutex<BTreeMap<u32, Vec<u8>>>);

impl Spool for Kept {
    fn put(&self, segment: u32, bytes: &[u8]) {
        self.0.lock().expect("not poisoned").insert(segment, bytes.into());
    }

    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> bool {
        let kept = self.0.lock().expect("not poisoned");
        let found = kept.get(&segment).and_then(|bytes| bytes.get(offset as usize..offset as usize + into.len()));
        found.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    fn holds(&self, segment: u32) -> bool {
        self.0.lock().expect("not poisoned").contains_key(&segment)
    }
}

#[test]
fn with_a_spool_files_that_are_read_at_the_same_time_decode_no_segment_more_than_twice() {
    let store = counted(false);
    let set = open(&store);
    let tasks = set.tasks(|_| true);
    let segments = SegmentBuffer::new(Arc::clone(&set), &tasks, 0, ReadOrder::Unknown).expect("a buffer");
    let segments = Arc::new(segments.with_spool(Box::new(Kept::default())));
    let (group, mut reader) = (group(0..RANKS, 2), VariableReader::of(segments));
    store.take_reads();
    for round in 0..4u64 {
        for (at, header) in set.index().variables().filter(|(_, header)| header.raw_bytes.0 >= 4) {
            let part = header.raw_bytes.0 / 4;
            let (from, mut into) = (round * part, vec![0; part as usize]);
            reader.read(at, from, &mut into).expect("reads");
            assert!(into == group.raw(at)[from as usize..][..into.len()], "other bytes");
        }
    }
    let counts = segment_reads(&set, store.take_reads());
    assert!(counts.len() == tasks.len() && counts.values().all(|reads| *reads <= 2), "{counts:?}");
    assert!(counts.values().any(|reads| *reads == 2), "the buffer has room for all segments");
}

#[test]
fn verify_reads_each_segment_once_even_if_the_budget_is_a_small_part_of_the_checkpoint() {
    for is_since in [false, true] {
        let store = counted(is_since);
        let set = open(&store);
        let raw: u64 = set.tasks(|_| true).iter().map(|task| task.raw_bytes.0).sum();
        for cache_bytes in [raw * 2, raw / 3] {
            store.take_reads();
            let options = VerifyOptions { memory_bytes: cache_bytes * 2, threads: 2 };
            let report = verify(&store, &job(), &step_id(2), options, &|_| ());
            assert!(report.is_good() && report.files == u64::from(RANKS), "{report:?}");
            let counts = segment_reads(&set, store.take_reads());
            let (reads, segments) = (counts.values().sum::<u64>(), counts.len() as u64);
            assert!(reads * 10 <= segments * 11, "since {is_since}, {cache_bytes}: {counts:?}");
        }
    }
}
