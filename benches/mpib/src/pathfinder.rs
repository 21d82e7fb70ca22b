//! Measures the links within and between two sites, for a [`PathModel`].

use crate::collectives::lanes::Lanes;
use crate::comm::{Comm, CommError};
use crate::models::lanes::{Lan, PathModel, Wan};
use crate::p2p::{Fan, fan, quickest_round_trip, streams};
use crate::sites::{self, SiteError};

type Result<T, E = PathError> = std::result::Result<T, E>;

/// Why links cannot be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PathError {
    /// MPI failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// There are not exactly two sites.
    #[error(transparent)]
    Sites(#[from] SiteError),
    /// The sites or the root do not belong to this communicator.
    #[error("there are {ranks} ranks, but sites of {sites} ranks and rank {root} as the root")]
    Ranks {
        /// Number of ranks of the communicator.
        ranks: usize,
        /// Number of ranks that have a site.
        sites: usize,
        /// The root.
        root: usize,
    },
}

/// Usual number of repetitions of each bandwidth measurement. If several connections fill a line, packets are dropped,
/// and about one of three measurements then contains a timeout of TCP. So the median of three is too often wrong.
pub const RATE_REPS: usize = 5;

/// Measures the latencies and bandwidths of a [`PathModel`]: the LAN of both sites, and the WAN in both directions.
/// The bandwidths are measured with messages of `bytes` bytes, and each value is the median of `reps` measurements.
/// `sites` has the site of each rank, and there must be exactly two sites. All ranks must call this function with the
/// same arguments, and all ranks get the same numbers.
pub fn measure_paths(comm: &Comm, sites: &[usize], root: usize, bytes: usize, reps: usize) -> Result<PathModel> {
    if sites.len() != comm.size() || root >= comm.size() {
        return Err(PathError::Ranks { ranks: comm.size(), sites: sites.len(), root });
    }
    sites::two(sites)?;
    let (mut near, far): (Vec<_>, Vec<_>) = (0..comm.size()).partition(|&r| sites[r] == sites[root]);
    near.sort_by_key(|&r| (r != root, r));
    let wan_trip = quickest_round_trip(comm, root, far[0])?;
    let lan = |ranks: &[usize]| -> Result<Option<Lan>> {
        let [first, second, ..] = *ranks else { return Ok(None) };
        let latency_seconds = quickest_round_trip(comm, first, second)? / 2.0;
        let bytes_per_second = streams(comm, &[(first, second)], bytes, 2, reps)?;
        Ok(Some(Lan { latency_seconds, bytes_per_second }))
    };
    let (near_lan, far_lan) = (lan(&near)?, lan(&far)?);
    // A site with one rank has no LAN. The model needs a number, but never multiplies this number by any bytes.
    let none = Lan { latency_seconds: wan_trip / 2.0, bytes_per_second: f64::INFINITY };
    let wan = |direction: Fan| -> Result<Wan> {
        let mut lane_bytes_per_second = Vec::new();
        for lanes in 1..=near.len().min(far.len()) {
            let mut pairs = Lanes::new(sites, root, lanes).map(|l| l.pairs()).unwrap_or_default();
            if direction == Fan::In {
                pairs.iter_mut().for_each(|(near, far)| std::mem::swap(near, far));
            }
            lane_bytes_per_second.push(streams(comm, &pairs, bytes, 2, reps)?);
        }
        let root_bytes_per_second = fan(comm, direction, root, &far, bytes, reps, wan_trip)?;
        Ok(Wan { lane_bytes_per_second, root_bytes_per_second })
    };
    let mut model = PathModel {
        near_ranks: near.len(),
        far_ranks: far.len(),
        wan_latency_seconds: wan_trip / 2.0,
        near_lan: near_lan.or(far_lan).unwrap_or(none),
        far_lan: far_lan.or(near_lan).unwrap_or(none),
        from_root: wan(Fan::Out)?,
        to_root: wan(Fan::In)?,
    };
    let mut numbers: Vec<f64> = model.numbers().into_iter().map(|number| *number).collect();
    comm.broadcast(&mut numbers, root)?;
    model.numbers().into_iter().zip(numbers).for_each(|(number, agreed)| *number = agreed);
    Ok(model)
}
