//! The partition buffer: every read gives the bytes of the partition, whatever was moved, copied or loaded before.

use super::*;
use proptest::prelude::*;

/// Fills a partition with a pattern of its number. A partition with a base adds the sum of the bytes of the base.
#[derive(Debug, Default)]
struct Pattern {
    bases: Vec<Option<PartitionId>>,
    /// Loads of this partition fail.
    fails: Option<PartitionId>,
    loads: u64,
}

fn pattern(loader: &[Option<PartitionId>], id: PartitionId, bytes: u64, lengths: &[u64]) -> Vec<u8> {
    let base = loader.get(id.0 as usize).copied().flatten();
    let base = base.map_or(0, |base| pattern(loader, base, lengths[base.0 as usize], lengths).iter().fold(0, sum));
    (0..bytes).map(|n| (id.0 as u8).wrapping_mul(31).wrapping_add(n as u8).wrapping_add(base)).collect()
}

fn sum(sum: u8, byte: &u8) -> u8 {
    sum.wrapping_add(*byte)
}

impl Loader for Pattern {
    type Error = &'static str;

    fn base(&self, partition: PartitionId) -> Option<PartitionId> {
        self.bases.get(partition.0 as usize).copied().flatten()
    }

    fn load(
        &mut self,
        id: PartitionId,
        _: Partition,
        base: Option<&[u8]>,
        into: &mut [u8],
    ) -> Result<(), &'static str> {
        if self.fails == Some(id) {
            return Err("unreadable");
        }
        let base = base.unwrap_or_default().iter().fold(0, sum);
        for (n, byte) in into.iter_mut().enumerate() {
            *byte = (id.0 as u8).wrapping_mul(31).wrapping_add(n as u8).wrapping_add(base);
        }
        self.loads += 1;
        Ok(())
    }
}

fn buffer(lengths: &[u64], n: usize, loader: Pattern, limits: VictimLimits) -> PartitionBuffer<Lru, Pattern> {
    let list = PartitionList::of_lengths(lengths.iter().copied()).expect("few");
    let layout = BufferLayout::equal(list.longest_bytes() * n as u64, n).expect("few");
    PartitionBuffer::new(list, layout, Lru::new(), limits, loader).expect("fits")
}

proptest! {
    #[test]
    fn every_access_gives_the_bytes_of_the_partition(
        n in 2usize..5,
        entries in 0usize..3,
        steps in prop::collection::vec((0u32..5, 0u32..6), 0..200),
    ) {
        let lengths = [9, 1, 0, 300, 40, 41];
        // 3 needs 1, and 5 needs 4.
        let bases = vec![None, None, None, Some(PartitionId(1)), None, Some(PartitionId(4))];
        let loader = Pattern { bases: bases.clone(), ..Pattern::default() };
        let mut buffer = buffer(&lengths, n, loader, VictimLimits { entries, bytes: 320 });
        let mut stack = Vec::new();
        for (what, id) in steps {
            let of = |id: u32| pattern(&bases, PartitionId(id), lengths[id as usize], &lengths);
            match what {
                0..=1 => {
                    prop_assert_eq!(buffer.call(PartitionId(id)).expect("loads"), of(id));
                    stack.push(id);
                }
                2 if stack.pop().is_some() => {
                    let bytes = buffer.return_to_caller().expect("loads");
                    prop_assert_eq!(bytes.map(<[u8]>::to_vec), stack.last().map(|id| of(*id)));
                }
                2 => prop_assert!(buffer.return_to_caller().is_err()),
                3 => prop_assert_eq!(buffer.read(PartitionId(id), <[u8]>::to_vec).expect("loads"), of(id)),
                _ => prop_assert!(buffer.give_back_victims(id.into()) <= 320),
            }
            prop_assert_eq!(buffer.loader().loads, buffer.counters().loads);
        }
    }
}

#[test]
fn a_base_is_loaded_once_for_all_partitions_that_need_it() {
    let bases = [None, Some(0), Some(0), Some(0)].map(|base| base.map(PartitionId)).to_vec();
    let mut buffer = buffer(&[4; 4], 3, Pattern { bases, ..Pattern::default() }, VictimLimits::NONE);
    for id in [1, 2, 3] {
        buffer.read(PartitionId(id), |bytes| assert_eq!(bytes.len(), 4)).expect("loads");
    }
    assert_eq!(buffer.counters().loads, 4, "three partitions and one base");
}

#[test]
fn a_failed_load_leaves_no_half_loaded_partition_in_the_buffer() {
    let bases = [None, Some(0), None].map(|base| base.map(PartitionId)).to_vec();
    let loader = Pattern { bases, fails: Some(PartitionId(0)), loads: 0 };
    let mut buffer = buffer(&[4; 3], 2, loader, VictimLimits::PAPER);
    assert!(buffer.call(PartitionId(2)).is_ok());
    let error = buffer.call(PartitionId(1)).expect_err("its base is unreadable");
    assert_eq!(error, AccessError::Load { partition: PartitionId(0), source: "unreadable" });
    let states = [0, 1, 2].map(|n| buffer.manager().state(PartitionId(n)).expect("listed"));
    assert!(states[..2].iter().all(|state| !state.is_resident()), "{states:?}");
    assert_ne!(states[2], State::EvictedForReuse, "all calls are given up");
    assert_eq!(buffer.return_to_caller().map(|_| ()), Err(PartitionError::NothingToReturn(ChainId(0)).into()));
    assert!(buffer.read(PartitionId(2), |_| ()).is_ok());
}

#[test]
fn bases_without_end_and_too_few_sub_buffers_are_errors() {
    let bases = vec![Some(PartitionId(1)), Some(PartitionId(0)), Some(PartitionId(2))];
    let mut round = buffer(&[1; 3], 3, Pattern { bases, ..Pattern::default() }, VictimLimits::NONE);
    for id in [0, 1, 2] {
        let error = round.call(PartitionId(id)).expect_err("a circle");
        assert!(matches!(error, AccessError::Partition(PartitionError::BaseOfItself(_))), "{error}");
    }
    let bases = |n: u32| (0..n).map(|id| id.checked_sub(1).map(PartitionId)).collect();
    let chain = |n| Pattern { bases: bases(n), ..Pattern::default() };
    let mut deep = buffer(&[1; 40], 40, chain(40), VictimLimits::NONE);
    let error = deep.call(PartitionId(39)).expect_err("too deep").to_string();
    assert_eq!(error, "bases that need bases: 17 is more than the limit of 16");
    assert!(deep.call(PartitionId(15)).is_ok(), "16 partitions");
    let mut narrow = buffer(&[1; 3], 2, chain(3), VictimLimits::NONE);
    let error = narrow.call(PartitionId(2)).expect_err("three partitions in two sub-buffers");
    assert_eq!(error, PartitionError::NoRoom { partition: PartitionId(0) }.into());
    assert!(narrow.call(PartitionId(1)).is_ok());
}
