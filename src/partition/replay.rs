//! Counts what a trace would load, with any policy and any buffer.

use super::counters::Counters;
use super::error::PartitionError;
use super::ids::ChainId;
use super::layout::BufferLayout;
use super::manager::PartitionManager;
use super::policy::Policy;
use super::trace::{Trace, TraceEvent};
use super::victims::VictimLimits;
use std::collections::HashMap;

/// Plays a trace, without any bytes. Fails if the buffer has too few sub-buffers for the chains of the trace, because
/// in each chain one partition is active.
pub fn replay<P: Policy>(
    trace: &Trace,
    layout: &BufferLayout,
    policy: P,
    victims: VictimLimits,
) -> Result<Counters, PartitionError> {
    let mut manager = PartitionManager::new(trace.partitions().clone(), layout.clone(), policy, victims)?;
    let mut chains: HashMap<ChainId, ChainId> = HashMap::new();
    for event in trace.events() {
        let (TraceEvent::Call { chain, .. } | TraceEvent::Return { chain }) = *event;
        let chain = match chains.get(&chain) {
            Some(open) => *open,
            None => *chains.entry(chain).or_insert(manager.open_chain()?),
        };
        match *event {
            TraceEvent::Call { partition, .. } => manager.call(chain, partition).map(|_| ())?,
            TraceEvent::Return { .. } => manager.return_to_caller(chain).map(|_| ())?,
        }
    }
    Ok(manager.counters())
}
