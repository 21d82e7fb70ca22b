//! Collective operations in several implementations, which can be timed, compared and used.
//!
//! All scatters and gathers accept blocks of different lengths, and every rank must know all lengths. For blocks of
//! equal length, `native` calls MPI_Scatter and MPI_Gather instead of MPI_Scatterv and MPI_Gatherv.
//!
//! The operations take elements of any type with an MPI datatype and without padding ([`Element`]). Lengths of blocks
//! are numbers of elements.

mod blocks;
pub mod kind;
pub mod lanes;
pub mod operation;
pub mod tree;

pub use crate::comm::Element;

use crate::comm::{Comm, CommError, in_bytes};
use blocks::Blocks;
use bytemuck::{cast_slice, cast_slice_mut};
use lanes::Lanes;
use std::borrow::Cow;
use std::ops::AddAssign;
use tree::Tree;

/// The result of an operation; errors come from MPI.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// The algorithm of a scatter or gather.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// The implementation of the MPI library.
    Native,
    /// The blocks travel along a tree. A rank serves its children one after the other.
    Tree(Tree),
    /// The blocks travel along a tree. A rank serves all its children at the same time.
    TreeAtOnce(Tree),
    /// The root serves all ranks at the same time. The sender of a block waits until the receiver reports that it is
    /// ready.
    Ready {
        /// The rank that has all blocks.
        root: usize,
    },
    /// Several lanes between two sites.
    Lanes(Lanes),
}

const TAG: u16 = 100; // TAG + 1 is used too
const READY: u16 = 102;

/// Sends one block of the root to each rank, in rank order. `mine` has `lens[rank]` elements.
pub fn scatter<T: Element>(
    comm: &Comm,
    how: &Algorithm,
    blocks: &[T],
    lens: &[usize],
    mine: &mut [T],
    root: usize,
) -> Result<()> {
    let (blocks, lens, mine): (&[u8], _, &mut [u8]) = (cast_slice(blocks), &*in_bytes::<T>(lens), cast_slice_mut(mine));
    match how {
        Algorithm::Native if equal(lens) => comm.scatter(blocks, mine, root),
        Algorithm::Native => comm.scatter_varying(blocks, lens, mine, root),
        Algorithm::Tree(tree) => scatter_along(comm, tree, false, blocks, lens, mine),
        Algorithm::TreeAtOnce(tree) => scatter_along(comm, tree, true, blocks, lens, mine),
        Algorithm::Ready { .. } => scatter_when_ready(comm, blocks, lens, mine, root),
        Algorithm::Lanes(lanes) => lanes.scatter(comm, blocks, lens, mine, TAG),
    }
}

/// The inverse of [`scatter`].
pub fn gather<T: Element>(
    comm: &Comm,
    how: &Algorithm,
    mine: &[T],
    lens: &[usize],
    blocks: &mut [T],
    root: usize,
) -> Result<()> {
    let (mine, lens, blocks): (&[u8], _, &mut [u8]) = (cast_slice(mine), &*in_bytes::<T>(lens), cast_slice_mut(blocks));
    match how {
        Algorithm::Native if equal(lens) => comm.gather(mine, blocks, root),
        Algorithm::Native => comm.gather_varying(mine, lens, blocks, root),
        Algorithm::Tree(tree) => gather_along(comm, tree, false, mine, lens, blocks),
        Algorithm::TreeAtOnce(tree) => gather_along(comm, tree, true, mine, lens, blocks),
        Algorithm::Ready { .. } => gather_when_ready(comm, mine, lens, blocks, root),
        Algorithm::Lanes(lanes) => lanes.gather(comm, mine, lens, blocks, TAG),
    }
}

fn equal(lens: &[usize]) -> bool {
    lens.windows(2).all(|w| w[0] == w[1])
}

fn scatter_along(
    comm: &Comm,
    tree: &Tree,
    at_once: bool,
    blocks: &[u8],
    lens: &[usize],
    mine: &mut [u8],
) -> Result<()> {
    let me = comm.rank();
    let place = Blocks::new(lens);
    let branches: Vec<_> = tree.children(me).iter().map(|&child| (child, tree.below(child))).collect();
    let received;
    let bundles: Vec<Cow<'_, [u8]>> = match tree.parent(me) {
        None => {
            mine.copy_from_slice(place.of(blocks, me));
            branches.iter().map(|(_, ranks)| place.bundle(blocks, ranks)).collect()
        }
        Some(parent) if branches.is_empty() => return comm.receive(mine, parent, TAG),
        Some(parent) => {
            let mut all = vec![0; place.len_of(&tree.below(me))];
            comm.receive(&mut all, parent, TAG)?;
            received = all;
            let (own, mut rest) = received.split_at(lens[me]);
            mine.copy_from_slice(own);
            let mut cut = std::collections::BTreeMap::new();
            for child in tree.branches(me) {
                cut.insert(child, rest.split_off(..place.len_of(&tree.below(child))).unwrap_or_default());
            }
            branches.iter().map(|(child, _)| Cow::Borrowed(cut.get(child).copied().unwrap_or_default())).collect()
        }
    };
    comm.overlapped(|pending| {
        for ((child, _), bundle) in branches.iter().zip(&bundles) {
            if at_once {
                pending.send(bundle, *child, TAG)?;
            } else {
                comm.send(bundle, *child, TAG)?;
            }
        }
        Ok(())
    })
}

fn gather_along(comm: &Comm, tree: &Tree, at_once: bool, mine: &[u8], lens: &[usize], blocks: &mut [u8]) -> Result<()> {
    let me = comm.rank();
    let place = Blocks::new(lens);
    let below = tree.below(me);
    let parent = tree.parent(me);
    if let (Some(parent), [_]) = (parent, below.as_slice()) {
        return comm.send(mine, parent, TAG);
    }
    let in_place = parent.is_none() && below.windows(2).all(|w| w[1] == w[0] + 1);
    let mut bundle = Vec::new();
    let all: &mut [u8] = if in_place {
        blocks // the root is rank 0 and the branches are consecutive, so the blocks are in rank order
    } else {
        bundle.resize(place.len_of(&below), 0);
        &mut bundle
    };
    let (own, mut rest) = all.split_at_mut(lens[me]);
    own.copy_from_slice(mine);
    let mut branches = std::collections::BTreeMap::new();
    for child in tree.branches(me) {
        branches.insert(child, rest.split_off_mut(..place.len_of(&tree.below(child))).unwrap_or_default());
    }
    comm.overlapped(|pending| {
        // Receive from the children in the reverse order of a scatter. In a binomial tree, the last child has the
        // smallest branch, which is complete first.
        for &child in tree.children(me).iter().rev() {
            let Some(branch) = branches.remove(&child) else { continue };
            if at_once {
                pending.receive(branch, child, TAG)?;
            } else {
                comm.receive(branch, child, TAG)?;
            }
        }
        Ok(())
    })?;
    match parent {
        Some(parent) => comm.send(&bundle, parent, TAG),
        None if in_place => Ok(()),
        None => {
            place.unbundle(blocks, &below, &bundle);
            Ok(())
        }
    }
}

fn scatter_when_ready(comm: &Comm, blocks: &[u8], lens: &[usize], mine: &mut [u8], root: usize) -> Result<()> {
    if comm.rank() != root {
        return comm.overlapped(|pending| {
            pending.receive(mine, root, TAG)?;
            comm.send(&[], root, READY)
        });
    }
    let place = Blocks::new(lens);
    mine.copy_from_slice(place.of(blocks, root));
    let others: Vec<_> = (0..comm.size()).filter(|&r| r != root).collect();
    let mut words = vec![[0u8; 0]; others.len()];
    comm.overlapped(|pending| {
        for (word, &rank) in words.iter_mut().zip(&others) {
            pending.receive(word, rank, READY)?;
        }
        // Serve ranks in the order in which they become ready. `wait_any` also returns the ends of this rank's sends,
        // which are ignored.
        let mut served = 0;
        while served < others.len() {
            let Some(ended) = pending.wait_any()? else { break };
            if let Some(&ready) = others.get(ended.0) {
                pending.send_ready(place.of(blocks, ready), ready, TAG)?;
                served += 1;
            }
        }
        Ok(())
    })
}

fn gather_when_ready(comm: &Comm, mine: &[u8], lens: &[usize], blocks: &mut [u8], root: usize) -> Result<()> {
    if comm.rank() != root {
        comm.receive(&mut [], root, READY)?;
        return comm.overlapped(|pending| pending.send_ready(mine, root, TAG).map(|_| ()));
    }
    let mut rest = blocks;
    comm.overlapped(|pending| {
        for (rank, &len) in lens.iter().enumerate() {
            let block = rest.split_off_mut(..len).unwrap_or_default();
            if rank == root {
                block.copy_from_slice(mine);
            } else {
                pending.receive(block, rank, TAG)?;
                comm.send(&[], rank, READY)?;
            }
        }
        Ok(())
    })
}

/// Sends the root's elements to all ranks along a tree. A rank serves all its children at the same time.
pub fn broadcast_along<T: Element>(comm: &Comm, tree: &Tree, elements: &mut [T]) -> Result<()> {
    let bytes: &mut [u8] = cast_slice_mut(elements);
    if let Some(parent) = tree.parent(comm.rank()) {
        comm.receive(bytes, parent, TAG)?;
    }
    let bytes = &*bytes;
    comm.overlapped(|pending| {
        tree.children(comm.rank()).iter().try_for_each(|&child| pending.send(bytes, child, TAG).map(|_| ()))
    })
}

fn add<T: Element + AddAssign>(into: &mut [T], part: &[T]) {
    into.iter_mut().zip(part).for_each(|(sum, part)| *sum += *part);
}

/// The sum of all ranks' numbers at the root of a tree. On other ranks `into` is only scratch space. The children are
/// added in the order of the tree, so the result does not depend on the order of arrival.
pub fn reduce_along<T: Element + AddAssign>(comm: &Comm, tree: &Tree, numbers: &[T], into: &mut [T]) -> Result<()> {
    let me = comm.rank();
    into.copy_from_slice(numbers);
    let mut part = vec![T::zeroed(); numbers.len()];
    for &child in tree.children(me).iter().rev() {
        comm.receive(cast_slice_mut(&mut part), child, TAG)?;
        add(into, &part);
    }
    let Some(parent) = tree.parent(me) else { return Ok(()) };
    comm.send(cast_slice(into), parent, TAG)
}

/// Sends one block of the root's elements to each rank along a tree. Afterwards `elements` begins with this rank's
/// block.
pub fn scatter_in_place_along<T: Element>(comm: &Comm, tree: &Tree, elements: &mut [T]) -> Result<()> {
    let len = elements.len() / comm.size();
    let mut mine = vec![T::zeroed(); len];
    let lens = vec![len * size_of::<T>(); comm.size()];
    scatter_along(comm, tree, false, cast_slice(elements), &lens, cast_slice_mut(&mut mine))?;
    elements[..len].copy_from_slice(&mine);
    Ok(())
}

/// The sum of all ranks' numbers, of which rank r gets a block of `lens[r]` numbers, along a tree. Afterwards `into`,
/// which is as long as `numbers`, begins with this rank's block.
pub fn reduce_scatter_varying_along<T: Element + AddAssign>(
    comm: &Comm,
    tree: &Tree,
    numbers: &[T],
    lens: &[usize],
    into: &mut [T],
) -> Result<()> {
    reduce_along(comm, tree, numbers, into)?;
    let mut mine = vec![T::zeroed(); lens[comm.rank()]];
    scatter_along(comm, tree, false, cast_slice(into), &in_bytes::<T>(lens), cast_slice_mut(&mut mine))?;
    into[..mine.len()].copy_from_slice(&mine);
    Ok(())
}

/// Block j of rank i becomes block i of rank j. All ranks send to all ranks at the same time.
pub fn all_to_all_at_once<T: Element>(comm: &Comm, out: &[T], blocks: &mut [T]) -> Result<()> {
    let (out, blocks): (&[u8], &mut [u8]) = (cast_slice(out), cast_slice_mut(blocks));
    let (me, n) = (comm.rank(), comm.size());
    let len = out.len() / n;
    let mut rest = &mut *blocks;
    comm.overlapped(|pending| {
        for rank in 0..n {
            let block = rest.split_off_mut(..len).unwrap_or_default();
            if rank == me {
                block.copy_from_slice(&out[me * len..][..len]);
            } else {
                pending.receive(block, rank, TAG)?;
            }
        }
        // Each rank begins with another receiver, so that no rank receives from all ranks at the same time.
        (1..n).map(|i| (me + i) % n).try_for_each(|rank| pending.send(&out[rank * len..][..len], rank, TAG).map(|_| ()))
    })
}

/// Like [`all_to_all_at_once`] for blocks of different lengths: each block that rank r receives has `lens[r]`
/// elements. So this rank sends `lens[r]` elements to each rank r, and receives `lens[own rank]` elements from each
/// rank.
pub fn all_to_all_varying_at_once<T: Element>(comm: &Comm, out: &[T], lens: &[usize], blocks: &mut [T]) -> Result<()> {
    let (out, lens, blocks): (&[u8], _, &mut [u8]) = (cast_slice(out), &*in_bytes::<T>(lens), cast_slice_mut(blocks));
    let (me, n) = (comm.rank(), comm.size());
    let place = Blocks::new(lens);
    let mut rest = &mut *blocks;
    comm.overlapped(|pending| {
        for rank in 0..n {
            let block = rest.split_off_mut(..lens[me]).unwrap_or_default();
            if rank == me {
                block.copy_from_slice(place.of(out, me));
            } else {
                pending.receive(block, rank, TAG)?;
            }
        }
        (1..n).map(|i| (me + i) % n).try_for_each(|rank| pending.send(place.of(out, rank), rank, TAG).map(|_| ()))
    })
}

/// The sum of all ranks' numbers on every rank, by recursive doubling (R. Thakur, R. Rabenseifner, W. Gropp). If the
/// number of ranks is not a power of two, the ranks above the largest power of two first send their numbers to a
/// lower rank. `into` is as long as `numbers`.
pub fn all_reduce_doubling<T: Element + AddAssign>(comm: &Comm, numbers: &[T], into: &mut [T]) -> Result<()> {
    let (me, n) = (comm.rank(), comm.size());
    let power = if n.is_power_of_two() { n } else { n.next_power_of_two() / 2 };
    into.copy_from_slice(numbers);
    let mut part = vec![T::zeroed(); numbers.len()];
    if me >= power {
        comm.send(cast_slice(into), me - power, TAG)?;
        return comm.receive(cast_slice_mut(into), me - power, TAG);
    }
    let extra = me + power < n;
    if extra {
        comm.receive(cast_slice_mut(&mut part), me + power, TAG)?;
        add(into, &part);
    }
    let mut distance = 1;
    while distance < power {
        let partner = me ^ distance;
        comm.overlapped(|pending| {
            pending.send(cast_slice(into), partner, TAG)?;
            comm.receive(cast_slice_mut(&mut part), partner, TAG)
        })?;
        add(into, &part);
        distance *= 2;
    }
    if extra { comm.send(cast_slice(into), me + power, TAG) } else { Ok(()) }
}

/// The sum over the ranks up to this rank: each rank adds its numbers to the sum that the previous rank sends.
pub fn scan_linear<T: Element + AddAssign>(comm: &Comm, numbers: &[T], into: &mut [T]) -> Result<()> {
    let (me, n) = (comm.rank(), comm.size());
    into.copy_from_slice(numbers);
    if me > 0 {
        let mut part = vec![T::zeroed(); numbers.len()];
        comm.receive(cast_slice_mut(&mut part), me - 1, TAG)?;
        add(into, &part);
    }
    if me + 1 < n { comm.send(cast_slice(into), me + 1, TAG) } else { Ok(()) }
}

/// The sum over the ranks before this rank. Rank 0 does not change `into`.
pub fn exclusive_scan_linear<T: Element + AddAssign>(comm: &Comm, numbers: &[T], into: &mut [T]) -> Result<()> {
    let (me, n) = (comm.rank(), comm.size());
    let mut next = numbers.to_vec();
    if me > 0 {
        comm.receive(cast_slice_mut(into), me - 1, TAG)?;
        add(&mut next, into);
    }
    if me + 1 < n { comm.send(cast_slice(&next), me + 1, TAG) } else { Ok(()) }
}

/// A barrier by dissemination (D. Hensgen, R. Finkel, U. Manber), in ceil(log2 n) rounds.
pub fn disseminate(comm: &Comm) -> Result<()> {
    let (me, n) = (comm.rank(), comm.size());
    let mut distance = 1;
    while distance < n {
        comm.overlapped(|pending| {
            pending.send(&[], (me + distance) % n, TAG)?;
            comm.receive(&mut [], (me + n - distance) % n, TAG)
        })?;
        distance *= 2;
    }
    Ok(())
}
