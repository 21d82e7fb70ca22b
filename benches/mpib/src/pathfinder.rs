//! Measures the links within and between two sites, for a [`PathModel`].

use crate::collectives::Result;
use crate::collectives::lanes::Lanes;
use crate::comm::Comm;
use crate::models::lanes::PathModel;
use crate::p2p::{fan_out, quickest_round_trip, streams};

/// Measures the latencies and bandwidths of a [`PathModel`]. The bandwidths are measured with messages of `bytes`
/// bytes. `sites` must contain exactly two sites. All ranks must call this function.
pub fn measure_paths(comm: &Comm, sites: &[usize], root: usize, bytes: usize, reps: usize) -> Result<PathModel> {
    let (near, far): (Vec<_>, Vec<_>) = (0..comm.size()).partition(|&r| sites[r] == sites[root]);
    let wan_trip = quickest_round_trip(comm, root, far[0])?;
    // A site with one rank has no LAN to measure, so the LAN of the other site is used.
    let lan_pair = match (near.iter().find(|&&r| r != root), far.as_slice()) {
        (Some(&other), _) => Some((root, other)),
        (None, [first, second, ..]) => Some((*first, *second)),
        (None, _) => None,
    };
    let (lan_trip, lan_rate) = match lan_pair {
        Some((i, j)) => {
            let trip = quickest_round_trip(comm, i, j)?;
            (trip, streams(comm, &[(i, j)], bytes, 2, reps)?)
        }
        None => (wan_trip, f64::INFINITY),
    };
    let most = near.len().min(far.len());
    let mut wan = Vec::with_capacity(most);
    for lanes in 1..=most {
        let pairs = Lanes::new(sites, root, lanes).map(|l| l.pairs()).unwrap_or_default();
        wan.push(streams(comm, &pairs, bytes, 2, reps)?);
    }
    Ok(PathModel {
        near_ranks: near.len(),
        far_ranks: far.len(),
        wan_latency_seconds: wan_trip / 2.0,
        lan_latency_seconds: lan_trip / 2.0,
        lan_bytes_per_second: lan_rate,
        wan_bytes_per_second: wan,
        root_wan_bytes_per_second: fan_out(comm, root, &far, bytes, reps, wan_trip)?,
    })
}
