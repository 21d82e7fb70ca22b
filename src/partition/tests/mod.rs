//! Tests of the whole partition manager: the text of the paper, a model, and the bytes.

mod bytes;
mod model;
mod paper;
mod policies;
mod shared;

use super::*;

/// A manager of partitions of one byte with `sub_buffers` sub-buffers, and its only chain.
fn manager<P: Policy>(
    partitions: usize,
    sub_buffers: usize,
    policy: P,
    victims: VictimLimits,
) -> (PartitionManager<P>, ChainId) {
    let list = PartitionList::of_lengths(vec![1; partitions]).expect("few partitions");
    let layout = BufferLayout::equal(sub_buffers as u64, sub_buffers).expect("few sub-buffers");
    let mut manager = PartitionManager::new(list, layout, policy, victims).expect("partitions of one byte");
    let chain = manager.open_chain().expect("the first chain");
    (manager, chain)
}

/// The calls and returns of one chain of calls. `Some(n)` calls partition `n`; `None` returns.
fn trace(lengths: &[u64], steps: &[Option<u32>]) -> Trace {
    let chain = ChainId(0);
    let event = |step: &Option<u32>| match step {
        Some(partition) => TraceEvent::Call { chain, partition: PartitionId(*partition) },
        None => TraceEvent::Return { chain },
    };
    let list = PartitionList::of_lengths(lengths.iter().copied()).expect("few partitions");
    Trace::new(list, steps.iter().map(event).collect()).expect("a valid trace")
}
