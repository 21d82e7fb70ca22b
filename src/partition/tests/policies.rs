//! The look-ahead policy against the best possible choices, and Clock-PRO on scans.

use super::*;
use proptest::prelude::*;

/// The fewest loads of any policy, by trying every choice. Calls are flat, and all partitions have equal lengths.
fn fewest_loads(uses: &[u32], sub_buffers: usize) -> u64 {
    // The contents of the buffer, sorted, with the fewest loads that lead to them.
    let mut reached = std::collections::BTreeMap::from([(Vec::new(), 0u64)]);
    for partition in uses {
        let mut next = std::collections::BTreeMap::new();
        let mut add = |mut content: Vec<u32>, loads: u64| {
            content.sort_unstable();
            let best = next.entry(content).or_insert(loads);
            *best = loads.min(*best);
        };
        for (content, loads) in reached {
            if content.contains(partition) {
                add(content, loads);
                continue;
            }
            if content.len() < sub_buffers {
                add([content.as_slice(), &[*partition]].concat(), loads + 1);
                continue;
            }
            for at in 0..content.len() {
                let mut content = content.clone();
                content[at] = *partition;
                add(content, loads + 1);
            }
        }
        reached = next;
    }
    reached.into_values().min().unwrap_or(0)
}

fn flat(uses: &[u32], partitions: u32) -> Trace {
    let steps: Vec<_> = uses.iter().flat_map(|partition| [Some(*partition), None]).collect();
    trace(&vec![1; partitions as usize], &steps)
}

fn loads(trace: &Trace, sub_buffers: usize, policy: impl Policy) -> u64 {
    let layout = BufferLayout::equal(sub_buffers as u64, sub_buffers).expect("few");
    replay(trace, &layout, policy, VictimLimits::NONE).expect("played").loads
}

proptest! {
    #[test]
    fn no_choices_need_fewer_loads_than_the_look_ahead_if_calls_are_flat(
        n in 1usize..5, uses in prop::collection::vec(0u32..7, 0..40),
    ) {
        let trace = flat(&uses, 7);
        let fewest = fewest_loads(&uses, n);
        prop_assert_eq!(loads(&trace, n, LookAhead::new(trace.uses())), fewest);
        for other in [Box::new(Modulus::new()) as Box<dyn Policy>, Box::new(Lru::new()), Box::new(ClockPro::new(n))] {
            prop_assert!(loads(&trace, n, other) >= fewest);
        }
    }

    #[test]
    fn a_trace_has_the_same_loads_each_time(
        n in 1usize..5, steps in prop::collection::vec(0u32..7, 0..200),
    ) {
        let trace = flat(&steps, 7);
        prop_assert_eq!(loads(&trace, n, ClockPro::new(n)), loads(&trace, n, ClockPro::new(n)));
    }
}

#[test]
fn a_loop_over_more_partitions_than_sub_buffers_defeats_both_policies_of_the_paper_but_not_the_look_ahead() {
    let uses: Vec<u32> = (0..10).flat_map(|_| 0..10).collect();
    let trace = flat(&uses, 10);
    assert_eq!([loads(&trace, 8, Modulus::new()), loads(&trace, 8, Lru::new())], [100, 100]);
    assert_eq!(loads(&trace, 8, LookAhead::new(trace.uses())), 30);
    assert!(loads(&trace, 8, ClockPro::new(8)) < 60);
}

#[test]
fn a_scan_does_not_evict_what_clock_pro_has_seen_again() {
    // One of the partitions 0 to 2 is used before every four partitions of a scan over 400 other partitions.
    let uses: Vec<u32> = (3..103).flat_map(|n| [n % 3, n, n + 100, n + 200, n + 300]).collect();
    let trace = flat(&uses, 500);
    let (modulus, lru) = (loads(&trace, 8, Modulus::new()), loads(&trace, 8, Lru::new()));
    let clock_pro = loads(&trace, 8, ClockPro::new(8));
    assert!(clock_pro < lru && lru <= modulus, "{clock_pro}, {lru}, {modulus}");
}

/// A policy that a caller brings. The policy always chooses the same sub-buffer.
struct Always(Option<SubBufferId>);

impl Policy for Always {
    fn choose(&mut self, _: PartitionId, _: &[Candidate]) -> Option<SubBufferId> {
        self.0
    }

    fn used(&mut self, _: Use) {}
}

#[test]
fn a_caller_can_bring_a_policy_and_its_wrong_choice_is_an_error() {
    let (mut manager, chain) = manager(2, 2, Always(Some(SubBufferId(1))), VictimLimits::NONE);
    let at = [0, 1].map(|n| manager.call(chain, PartitionId(n)).expect("callable").sub_buffer.0);
    assert_eq!(at, [1, 1]);
    *manager.policy_mut() = Always(Some(SubBufferId(9)));
    let error = manager.call(chain, PartitionId(0)).expect_err("no such sub-buffer");
    assert_eq!(error.to_string(), "the replacement policy chose sub-buffer 9, which is not a candidate");
    *manager.policy_mut() = Always(None);
    let error = manager.call(chain, PartitionId(0)).expect_err("no choice");
    assert_eq!(error.to_string(), "the replacement policy chose no sub-buffer, which is not a candidate");
    manager.hold(PartitionId(1)).expect("resident");
    *manager.policy_mut() = Always(Some(SubBufferId(1)));
    let error = manager.call(chain, PartitionId(0)).expect_err("held");
    assert_eq!(error, PartitionError::BadChoice(Some(SubBufferId(1))));
    assert_eq!(
        manager.return_to_caller(chain).map(|_| ()),
        Err(PartitionError::PlaceInUse { partition: PartitionId(0), sub_buffer: SubBufferId(1) })
    );
    manager.release(PartitionId(1)).expect("held");
    assert_eq!(manager.release(PartitionId(1)), Err(PartitionError::NotHeld(PartitionId(1))));
    assert!(manager.return_to_caller(chain).is_ok());
}

#[test]
fn the_recorded_order_of_verify_has_the_loads_that_the_documentation_states() {
    let text = include_str!("../../../tests/data/traces/verify-enzo.trace");
    let trace = Trace::parse(text).expect("a valid trace");
    let longest = trace.partitions().longest_bytes();
    let loads = |sub_buffers: u64, policy: Box<dyn Policy>| {
        let layout = BufferLayout::equal(longest * sub_buffers, sub_buffers as usize).expect("a cut");
        replay(&trace, &layout, policy, VictimLimits::NONE).expect("replayed").loads
    };
    for (sub_buffers, of_modulus, of_lru, of_clock, of_look_ahead) in
        [(4, 3698, 3533, 3828, 2359), (8, 2444, 2147, 2196, 1233), (16, 1125, 923, 940, 448), (33, 33, 33, 33, 33)]
    {
        let clock = ClockPro::new(sub_buffers as usize);
        let found = [
            loads(sub_buffers, Box::new(Modulus::new())),
            loads(sub_buffers, Box::<Lru>::default()),
            loads(sub_buffers, Box::new(clock)),
            loads(sub_buffers, Box::new(LookAhead::new(trace.uses()))),
        ];
        assert_eq!(found, [of_modulus, of_lru, of_clock, of_look_ahead], "{sub_buffers} sub-buffers");
    }
}
