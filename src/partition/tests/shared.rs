//! The partition buffer for several threads.

use super::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Partition `n` has `lengths[n]` bytes. The value of a partition is its number, and the number of its base.
#[derive(Default)]
struct Store {
    bases: Vec<Option<PartitionId>>,
    loads: AtomicU64,
    /// Partitions whose next load fails. For each entry, one load fails.
    failing: Mutex<Vec<PartitionId>>,
    /// Loaded bytes in memory, and their maximum.
    bytes: AtomicI64,
    bytes_max: AtomicI64,
    pause: Duration,
}

struct Value<'a> {
    partition: PartitionId,
    base: Option<PartitionId>,
    of: &'a Store,
}

impl Drop for Value<'_> {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(1, Ordering::SeqCst);
    }
}

struct OfThread<'a>(&'a Store);

impl<'a> SharedLoader<Value<'a>> for OfThread<'a> {
    type Error = &'static str;

    fn base(&self, partition: PartitionId) -> Option<PartitionId> {
        self.0.bases.get(partition.index()).copied().flatten()
    }

    fn load(&mut self, partition: PartitionId, base: Option<&Value<'a>>) -> Result<Value<'a>, &'static str> {
        let of = self.0;
        of.loads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(of.pause);
        let mut failing = of.failing.lock().expect("not poisoned");
        if let Some(at) = failing.iter().position(|failing| *failing == partition) {
            failing.remove(at);
            return Err("damaged");
        }
        let now = of.bytes.fetch_add(1, Ordering::SeqCst) + 1;
        of.bytes_max.fetch_max(now, Ordering::SeqCst);
        Ok(Value { partition, base: base.map(|base| base.partition), of })
    }
}

fn buffer<P: Policy, T>(
    partitions: usize,
    sub_buffers: u64,
    policy: P,
    after_use: AfterUse,
) -> Arc<SharedBuffer<P, T>> {
    let list = PartitionList::of_lengths(vec![1; partitions]).expect("few partitions");
    let layout = BufferLayout::equal(sub_buffers, sub_buffers as usize).expect("few sub-buffers");
    SharedBuffer::new(list, layout, policy, after_use).expect("partitions of one byte")
}

/// Each thread uses each partition of its list once, and checks its value.
fn use_all<'a, P: Policy + Send>(buffer: &Arc<SharedBuffer<P, Value<'a>>>, of: &'a Store, lists: &[Vec<u32>]) {
    std::thread::scope(|scope| {
        for list in lists {
            scope.spawn(move || {
                for partition in list.iter().map(|n| PartitionId(*n)) {
                    let value = buffer.access(partition, &mut OfThread(of)).expect("loaded");
                    assert_eq!(value.partition, partition);
                    assert_eq!(value.base, OfThread(of).base(partition));
                }
            });
        }
    });
}

#[test]
fn threads_that_need_the_same_partitions_load_each_partition_once() {
    let of = Store { pause: Duration::from_millis(1), ..Store::default() };
    let buffer = buffer(20, 20, Lru::new(), AfterUse::Keep);
    use_all(&buffer, &of, &vec![(0..20).collect(); 8]);
    assert_eq!(of.loads.load(Ordering::SeqCst), 20);
    assert_eq!((buffer.counters().calls, buffer.counters().loads), (160, 20));
}

#[test]
fn threads_with_bases_never_block_each_other_in_a_buffer_of_two_sub_buffers() {
    let bases = (0..12).map(|n| (n < 8).then_some(PartitionId(8 + n % 4))).collect();
    let of = Store { bases, ..Store::default() };
    let buffer = buffer(12, 2, Lru::new(), AfterUse::Keep);
    let orders: Vec<Vec<u32>> =
        (0..6).map(|t| (0..120).map(|n| (n * [1, 5, 7, 11][t % 4] + t as u32) % 12).collect()).collect();
    use_all(&buffer, &of, &orders);
    let most = of.bytes_max.load(Ordering::SeqCst);
    assert!(most <= 3, "{most} partitions in memory: two in the buffer, and one that is being replaced");
}

#[test]
fn a_failed_load_is_an_error_for_one_thread_and_other_threads_load_again() {
    let bases = vec![Some(PartitionId(1)), None];
    let failing = Mutex::new(vec![PartitionId(0), PartitionId(1), PartitionId(0)]);
    let of = Store { bases, failing, pause: Duration::from_millis(5), ..Store::default() };
    let buffer = buffer(2, 2, Lru::new(), AfterUse::Keep);
    let errors: Vec<PartitionId> = std::thread::scope(|scope| {
        let access = || match buffer.access(PartitionId(0), &mut OfThread(&of)) {
            Ok(value) => {
                assert_eq!((value.partition, value.base), (PartitionId(0), Some(PartitionId(1))));
                None
            }
            Err(AccessError::Load { partition, source }) => {
                assert_eq!(source, "damaged");
                Some(partition)
            }
            Err(error) => panic!("{error}"),
        };
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(access)).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut sorted = errors;
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 0, 1].map(PartitionId));
    assert_eq!(buffer.access(PartitionId(0), &mut OfThread(&of)).map(|value| value.is_loaded()).ok(), Some(false));
}

#[test]
fn a_panic_in_a_load_does_not_block_other_threads() {
    struct Panics;
    impl SharedLoader<u8> for Panics {
        type Error = ();
        fn load(&mut self, _: PartitionId, _: Option<&u8>) -> Result<u8, ()> {
            panic!("a bug of a decoder");
        }
    }
    struct Works;
    impl SharedLoader<u8> for Works {
        type Error = ();
        fn load(&mut self, _: PartitionId, _: Option<&u8>) -> Result<u8, ()> {
            Ok(7)
        }
    }
    let buffer = buffer(1, 1, Lru::new(), AfterUse::Keep);
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| drop(buffer.access(PartitionId(0), &mut Panics)));
        assert!(panics.join().is_err());
        assert_eq!(buffer.access(PartitionId(0), &mut Works).map(|value| *value), Ok(7));
    });
}

#[test]
fn a_partition_is_freed_after_its_last_announced_use() {
    let of = Store::default();
    let uses = [0, 1, 0, 2].map(PartitionId);
    let buffer = buffer(3, 3, LookAhead::new(uses), AfterUse::Free);
    let in_memory: Vec<i64> = uses
        .map(|partition| {
            drop(buffer.access(partition, &mut OfThread(&of)).expect("loaded"));
            of.bytes.load(Ordering::SeqCst)
        })
        .into();
    assert_eq!(in_memory, [1, 1, 0, 0]);
    assert_eq!(of.loads.load(Ordering::SeqCst), 3);
}

#[test]
fn a_recorded_order_needs_no_more_loads_than_the_choice_of_belady_and_a_tenth() {
    // Eight readers of 48 partitions begin one after the other, and choose the next partition together.
    let of = Store { pause: Duration::from_micros(300), ..Store::default() };
    let buffer = buffer(48, 12, LookAhead::default(), AfterUse::Keep);
    buffer.record();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut wanted: BTreeSet<PartitionId> = (0..48).map(PartitionId).collect();
                buffer.with_policy(|policy| policy.announce(wanted.iter().copied()));
                while let Some(next) = buffer.next_of(&wanted) {
                    wanted.remove(&next);
                    drop(buffer.access(next, &mut OfThread(&of)).expect("loaded"));
                }
            });
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let (list, events) = buffer.recorded();
    let trace = Trace::new(list, events).expect("a valid trace");
    assert_eq!(trace.uses().len(), 8 * 48);
    let layout = BufferLayout::equal(12, 12).expect("few sub-buffers");
    let best = replay(&trace, &layout, LookAhead::new(trace.uses()), VictimLimits::NONE).expect("replayed").loads;
    let loads = buffer.counters().loads;
    assert!(loads * 10 <= best * 11, "{loads} loads, Belady needs {best}");
    assert!(loads < 8 * 48 / 3, "{loads} loads: readers that begin late read together with the others");
}
