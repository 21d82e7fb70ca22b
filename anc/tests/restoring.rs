//! Several restarts read the same group through one aggregator.

#[path = "../../tests/support/group.rs"]
mod support;

use mcr_anc::budget::Budget;
use mcr_anc::restart::send_ranks;
use mcr_anc::served::{GroupKey, Served};
use mcr_proto::v1::restore_frame::Message;
use mcrengine::container::ContainerSet;
use mcrengine::ids::{GroupId, Rank};
use mcrengine::reuse::ReuseIndex;
use mcrengine::store::{Fault, FaultyStore, MemoryStore};
use std::collections::HashSet;
use std::sync::Arc;
use support::*;
use tokio::sync::mpsc;

const RANKS: u32 = 16;

fn saved() -> FaultyStore {
    let store = MemoryStore::new();
    let mut how = how(1);
    (how.draft.ranks, how.draft.group_size) = (RANKS, RANKS);
    flush(&store, &step_id(1), GroupId(0), &group(0..RANKS, 1), &how, &ReuseIndex::empty()).expect("writes");
    FaultyStore::new(store, Fault::None)
}

/// Restores the ranks of eight nodes at the same time. Returns the number of reads of segments, and the number of
/// segments.
async fn eight_nodes(store: &FaultyStore, budget: &Arc<Budget>) -> (usize, usize) {
    let set = ContainerSet::open(store, &job(), &step_id(1), GroupId(0)).expect("opens");
    let begins: HashSet<u64> = set.index().segments().iter().map(|segment| segment.offset + 72).collect();
    store.take_reads();
    let served = Served::new(budget);
    let key = GroupKey { job: job(), checkpoint: step_id(1), group: GroupId(0) };
    let mut nodes = Vec::new();
    for node in 0..8u32 {
        let (of_group, store, budget) = (served.group(key.clone()), store.clone(), Arc::clone(budget));
        assert!(served.admit(&of_group).await);
        let (out, mut frames) = mpsc::channel(4);
        let ranks = [Rank(node * 2), Rank(node * 2 + 1)];
        let sending =
            tokio::task::spawn_blocking(move || send_ranks(&store, &of_group, &ranks, 4, &budget, &out).is_ok());
        let receiving = tokio::spawn(async move {
            let (group, mut raw_bytes, mut is_over) = (group(0..RANKS, 1), 0, false);
            while let Some(frame) = frames.recv().await {
                match frame.expect("no error").message {
                    Some(Message::Data(data)) => {
                        let raw = &group.raw[(node * 2 + data.file) as usize][data.variable as usize];
                        let from = data.offset as usize;
                        assert!(data.bytes == raw[from..from + data.bytes.len()], "other bytes");
                        raw_bytes += data.bytes.len();
                    }
                    Some(Message::End(_)) => is_over = true,
                    _ => {}
                }
            }
            let of_ranks = &group.raw[(node * 2) as usize..(node * 2 + 2) as usize];
            assert_eq!(raw_bytes, of_ranks.iter().flatten().map(Vec::len).sum::<usize>());
            assert!(is_over);
        });
        nodes.push((sending, receiving));
    }
    for (sending, receiving) in nodes {
        assert!(sending.await.expect("no panic"));
        receiving.await.expect("no panic");
    }
    (store.take_reads().iter().filter(|read| begins.contains(&read.offset)).count(), begins.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_nodes_that_restore_their_ranks_at_the_same_time_read_each_segment_once() {
    let (store, budget) = (saved(), Budget::new(16 << 20));
    let (reads, segments) = eight_nodes(&store, &budget).await;
    assert!(segments > 10 && reads == segments, "{reads} reads of {segments} segments");
    assert_eq!(budget.leased_bytes(), 0, "all leases are given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_nodes_finish_with_a_budget_of_a_few_segments() {
    let (store, budget) = (saved(), Budget::new(256 << 10));
    let (reads, segments) = eight_nodes(&store, &budget).await;
    assert!(reads < segments * 8, "{reads} reads of {segments} segments");
}
