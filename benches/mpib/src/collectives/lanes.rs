//! Scatter and gather between two sites over several lanes at once, after T. Chiba, T. Endo, S. Matsuoka (2009).
//!
//! A lane is a pair of ranks, Dep_send at the root's site and Dep_recv at the other site, with a separate connection
//! over the WAN. Scatter: (1) the root sends the blocks of each lane to its Dep_send over the LAN; (2) each lane
//! transfers its blocks over the WAN, the root's own lane from the start; (3) each Dep_recv distributes the blocks at
//! its site, and the root serves its own site. A gather does these steps in reverse order.
//!
//! Deviation: the root sends on its own lane from the start, and does not finish step 2 before step 3. If LAN and WAN
//! use different network cards, as in the paper's figure, both cards work at the same time.

use super::blocks::Blocks;
use crate::comm::{Comm, CommError};
use crate::models::lanes::share;

/// The role of each rank. Every rank computes all roles from the same data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Ranks of the root's site, the root first.
    near: Vec<usize>,
    /// Ranks whose blocks each lane carries. The first rank of each lane is Dep_recv.
    far: Vec<Vec<usize>>,
}

/// Why lanes are impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LanesError {
    /// There are not exactly two sites.
    #[error("there are {0} sites; lanes need exactly two")]
    Sites(usize),
    /// There are more lanes than ranks at one end.
    #[error("{lanes} lanes; there can be 1 to {most}, the ranks of the smaller site")]
    Count {
        /// Requested number of lanes.
        lanes: usize,
        /// min(n0, n1)
        most: usize,
    },
}

impl Lanes {
    /// `sites` contains the site of each rank.
    pub fn new(sites: &[usize], root: usize, lanes: usize) -> Result<Self, LanesError> {
        let different: std::collections::BTreeSet<_> = sites.iter().collect();
        if different.len() != 2 {
            return Err(LanesError::Sites(different.len()));
        }
        let (mut near, far): (Vec<_>, Vec<_>) = (0..sites.len()).partition(|&r| sites[r] == sites[root]);
        let most = near.len().min(far.len());
        if !(1..=most).contains(&lanes) {
            return Err(LanesError::Count { lanes, most });
        }
        near.sort_by_key(|&r| (r != root, r));
        let mut rest = far.as_slice();
        let far = (0..lanes)
            .map(|lane| rest.split_off(..share(far.len(), lanes, lane)).unwrap_or_default().to_vec())
            .collect();
        Ok(Self { near, far })
    }

    /// The ranks Dep_send and Dep_recv of each lane.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        self.near.iter().zip(&self.far).map(|(&near, far)| (near, far[0])).collect()
    }

    fn lane_of_near(&self, rank: usize) -> Option<usize> {
        self.near[..self.far.len()].iter().position(|&r| r == rank)
    }
    fn lane_of_far(&self, rank: usize) -> Option<usize> {
        self.far.iter().position(|ranks| ranks.contains(&rank))
    }

    /// Scatters blocks of `lens` bytes from the root's `blocks`. Every rank must know all lengths.
    pub fn scatter(
        &self,
        comm: &Comm,
        blocks: &[u8],
        lens: &[usize],
        mine: &mut [u8],
        tag: u16,
    ) -> Result<(), CommError> {
        let (me, root) = (comm.rank(), self.near[0]);
        let place = Blocks::new(lens);
        if me == root {
            mine.copy_from_slice(place.of(blocks, root));
            let bundles: Vec<_> = self.far.iter().map(|ranks| place.bundle(blocks, ranks)).collect();
            return comm.overlapped(|pending| {
                pending.send(&bundles[0], self.far[0][0], tag)?;
                for (bundle, &sender) in bundles.iter().zip(&self.near).skip(1) {
                    comm.send(bundle, sender, tag)?;
                }
                for &rank in &self.near[1..] {
                    comm.send(place.of(blocks, rank), rank, tag)?;
                }
                Ok(())
            });
        }
        if let Some(lane) = self.lane_of_far(me) {
            let ranks = &self.far[lane];
            if me != ranks[0] {
                return comm.receive(mine, ranks[0], tag);
            }
            let mut bundle = vec![0; place.len_of(ranks)];
            comm.receive(&mut bundle, self.near[lane], tag)?;
            let (own, mut rest) = bundle.split_at(lens[me]);
            mine.copy_from_slice(own);
            return comm.overlapped(|pending| {
                for &rank in &ranks[1..] {
                    let block = rest.split_off(..lens[rank]).unwrap_or_default();
                    pending.send(block, rank, tag)?;
                }
                Ok(())
            });
        }
        let Some(lane) = self.lane_of_near(me) else { return comm.receive(mine, root, tag) };
        let mut bundle = vec![0; place.len_of(&self.far[lane])];
        comm.receive(&mut bundle, root, tag)?;
        comm.overlapped(|pending| {
            pending.send(&bundle, self.far[lane][0], tag)?;
            comm.receive(mine, root, tag)
        })
    }

    /// The inverse of [`Lanes::scatter`].
    pub fn gather(
        &self,
        comm: &Comm,
        mine: &[u8],
        lens: &[usize],
        blocks: &mut [u8],
        tag: u16,
    ) -> Result<(), CommError> {
        let (me, root) = (comm.rank(), self.near[0]);
        let place = Blocks::new(lens);
        if me == root {
            let mut bundles: Vec<_> = self.far.iter().map(|ranks| vec![0; place.len_of(ranks)]).collect();
            let mut here: Vec<Vec<u8>> = self.near[1..].iter().map(|&r| vec![0; lens[r]]).collect();
            comm.overlapped(|pending| {
                for (bundle, lane) in bundles.iter_mut().zip(0..) {
                    let from = if lane == 0 { self.far[0][0] } else { self.near[lane] };
                    pending.receive(bundle, from, if lane == 0 { tag } else { tag + 1 })?;
                }
                for (block, &rank) in here.iter_mut().zip(&self.near[1..]) {
                    pending.receive(block, rank, tag)?;
                }
                Ok(())
            })?;
            place.of_mut(blocks, root).copy_from_slice(mine);
            for (block, &rank) in here.iter().zip(&self.near[1..]) {
                place.of_mut(blocks, rank).copy_from_slice(block);
            }
            bundles.iter().zip(&self.far).for_each(|(bundle, ranks)| place.unbundle(blocks, ranks, bundle));
            return Ok(());
        }
        if let Some(lane) = self.lane_of_far(me) {
            let ranks = &self.far[lane];
            if me != ranks[0] {
                return comm.send(mine, ranks[0], tag);
            }
            let mut bundle = vec![0; place.len_of(ranks)];
            let (own, mut rest) = bundle.split_at_mut(lens[me]);
            own.copy_from_slice(mine);
            comm.overlapped(|pending| {
                for &rank in &ranks[1..] {
                    let block = rest.split_off_mut(..lens[rank]).unwrap_or_default();
                    pending.receive(block, rank, tag)?;
                }
                Ok(())
            })?;
            return comm.send(&bundle, self.near[lane], tag);
        }
        let Some(lane) = self.lane_of_near(me) else { return comm.send(mine, root, tag) };
        let mut bundle = vec![0; place.len_of(&self.far[lane])];
        comm.overlapped(|pending| {
            pending.receive(&mut bundle, self.far[lane][0], tag)?;
            comm.send(mine, root, tag)
        })?;
        comm.send(&bundle, root, tag + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_the_far_ranks_and_the_root_has_the_first() {
        let lanes = Lanes::new(&[0, 0, 0, 1, 1, 1, 1], 2, 3).expect("two sites");
        assert_eq!(lanes.near, [2, 0, 1]);
        assert_eq!(lanes.far, [vec![3, 4], vec![5], vec![6]]);
        let other_way = Lanes::new(&[0, 0, 0, 1, 1, 1, 1], 4, 2).expect("two sites");
        assert_eq!((other_way.near, other_way.far), (vec![4, 3, 5, 6], vec![vec![0, 1], vec![2]]));
    }

    #[test]
    fn sites_and_lanes_that_cannot_be_are_refused() {
        assert_eq!(Lanes::new(&[0, 0], 0, 1), Err(LanesError::Sites(1)));
        assert_eq!(Lanes::new(&[0, 1, 2], 0, 1), Err(LanesError::Sites(3)));
        assert_eq!(Lanes::new(&[0, 0, 1], 0, 2), Err(LanesError::Count { lanes: 2, most: 1 }));
        assert_eq!(Lanes::new(&[0, 0, 1], 0, 0), Err(LanesError::Count { lanes: 0, most: 1 }));
    }
}
