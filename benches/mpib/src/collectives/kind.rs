//! The built-in operations, and the names of their implementations.

use crate::models::lanes::Direction;
use std::ffi::c_int;

/// The name of the implementation of scatter and gather that chooses the number of lanes between two sites.
pub const AUTO: &str = "auto";

/// The built-in operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Sends one block to each rank from the root.
    Scatter,
    /// Scatter with blocks of different lengths, 0 to twice the size.
    ScatterVarying,
    /// Sends one block of each rank to the root.
    Gather,
    /// Gather with blocks of different lengths, 0 to twice the size.
    GatherVarying,
    /// Sends one block of the root to all ranks.
    Broadcast,
    /// Computes a sum of doubles at the root. Sizes are rounded down to whole doubles.
    Reduce,
    /// Sends the block of each rank to all ranks.
    AllGather,
    /// Allgather with blocks of different lengths, 0 to twice the size.
    AllGatherVarying,
    /// Sends a different block from each rank to each rank.
    AllToAll,
    /// All-to-all in which the ranks get blocks of different lengths, 0 to twice the size.
    AllToAllVarying,
    /// Computes a sum of doubles on every rank.
    AllReduce,
    /// Computes a sum of doubles, of which each rank gets one block.
    ReduceScatter,
    /// Computes a sum of doubles, of which the ranks get blocks of different lengths, 0 to twice the size.
    ReduceScatterVarying,
    /// Computes, on each rank, the sum of the doubles of the ranks up to this rank.
    Scan,
    /// Computes, on each rank, the sum of the doubles of the ranks before this rank.
    ExclusiveScan,
    /// Waits for all ranks, without data.
    Barrier,
}

/// All operations.
pub const KINDS: [Kind; 16] = [
    Kind::Scatter,
    Kind::ScatterVarying,
    Kind::Gather,
    Kind::GatherVarying,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllGather,
    Kind::AllGatherVarying,
    Kind::AllToAll,
    Kind::AllToAllVarying,
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::ReduceScatterVarying,
    Kind::Scan,
    Kind::ExclusiveScan,
    Kind::Barrier,
];

impl Kind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scatter => "scatter",
            Self::ScatterVarying => "scatterv",
            Self::Gather => "gather",
            Self::GatherVarying => "gatherv",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "allgather",
            Self::AllGatherVarying => "allgatherv",
            Self::AllToAll => "alltoall",
            Self::AllToAllVarying => "alltoallv",
            Self::AllReduce => "allreduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::ReduceScatterVarying => "reduce_scatterv",
            Self::Scan => "scan",
            Self::ExclusiveScan => "exscan",
            Self::Barrier => "barrier",
        }
    }

    /// Names of the implementations. For scatter and gather with `lanes` > 0, also `lanes-P` for P = 1, 2 ... `lanes`,
    /// and `auto`.
    pub fn implementations(self, lanes: usize) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Scatter | Self::ScatterVarying | Self::Gather | Self::GatherVarying => {
                &["native", "linear", "linear-nonblocking", "linear-ready", "binomial", "traeff", "sorted"]
            }
            Self::Broadcast | Self::Reduce => &["native", "linear", "binomial"],
            Self::AllToAll | Self::AllToAllVarying | Self::Scan | Self::ExclusiveScan => &["native", "linear"],
            Self::AllReduce => &["native", "linear", "binomial", "recursive-doubling"],
            Self::ReduceScatter | Self::ReduceScatterVarying => &["native", "linear", "binomial"],
            Self::AllGather | Self::AllGatherVarying => &["native", "gather-broadcast"],
            Self::Barrier => &["native", "dissemination"],
        };
        let lanes = if self.moves_blocks() { lanes } else { 0 };
        let named = names.iter().map(ToString::to_string);
        let auto = (lanes > 0).then(|| AUTO.to_string());
        named.chain((1..=lanes).map(|p| format!("lanes-{p}"))).chain(auto).collect()
    }

    /// Whether the operation is a scatter or a gather.
    pub fn moves_blocks(self) -> bool {
        self.direction().is_some()
    }

    /// The direction of the blocks of a scatter or a gather. `None` for all other operations.
    pub fn direction(self) -> Option<Direction> {
        match self {
            Self::Scatter | Self::ScatterVarying => Some(Direction::Scatter),
            Self::Gather | Self::GatherVarying => Some(Direction::Gather),
            _ => None,
        }
    }

    /// Bytes of the block of each rank. Blocks of different lengths have 0 to twice the size.
    pub fn lens(self, block_bytes: usize, ranks: usize) -> Vec<usize> {
        let of = |rank| if self.varying() { block_bytes.saturating_mul(2 * rank) / ranks } else { block_bytes };
        (0..ranks).map(of).collect()
    }

    /// Bytes of all buffers of one rank: input, output, and copies. `index` is the number of the rank, counted from
    /// the root. If `passes_on`, ranks also pass on the blocks of other ranks, as in a binomial tree.
    pub fn bytes_of_rank(self, block_bytes: usize, ranks: usize, index: usize, passes_on: bool) -> usize {
        let lens = self.lens(block_bytes, ranks);
        let sum = |lens: &[usize]| lens.iter().copied().fold(0, usize::saturating_add);
        let (mine, total) = (lens[index], sum(&lens));
        // The branch of a binomial tree that begins at this rank. A rank without other ranks in its branch has no copy.
        let branch = if index == 0 { ranks } else { 1 << index.trailing_zeros() };
        let copy = if passes_on && branch > 1 { sum(&lens[index..ranks.min(index.saturating_add(branch))]) } else { 0 };
        match self {
            Self::Scatter | Self::ScatterVarying | Self::Gather | Self::GatherVarying => {
                mine.saturating_add(if index == 0 { total } else { 0 }).saturating_add(copy)
            }
            Self::AllGather | Self::AllGatherVarying => mine.saturating_add(total).saturating_add(copy),
            Self::AllToAll | Self::AllToAllVarying => total.saturating_add(ranks.saturating_mul(mine)),
            Self::Broadcast => block_bytes,
            // The numbers, the sums, and the numbers of another rank.
            Self::Reduce | Self::AllReduce | Self::Scan | Self::ExclusiveScan => block_bytes.saturating_mul(3),
            Self::ReduceScatter | Self::ReduceScatterVarying => total.saturating_mul(3),
            Self::Barrier => 0,
        }
    }

    /// The name of the MPI function of `native` and of Open MPI's algorithms, and the bytes of all of its blocks, if
    /// the function cannot count these bytes. MPI counts and addresses bytes in C's int. The other implementations
    /// send a message for each block, and a message may have any length.
    pub fn too_long(self, block_bytes: usize, ranks: usize) -> Option<(&'static str, usize)> {
        let lens = self.lens(block_bytes, ranks);
        let out = lens.iter().copied().fold(0, usize::saturating_add);
        let (call, bytes) = match self {
            Self::AllGatherVarying => ("MPI_Allgatherv", out),
            Self::AllToAllVarying => {
                let into = lens.iter().copied().max().unwrap_or(0).saturating_mul(ranks);
                ("MPI_Alltoallv", out.max(into))
            }
            // For scatter and gather, `Comm` replaces the function by messages.
            _ => return None,
        };
        (bytes > c_int::MAX as usize).then_some((call, bytes))
    }

    pub(super) fn varying(self) -> bool {
        let moves = matches!(self, Self::ScatterVarying | Self::GatherVarying | Self::AllGatherVarying);
        moves || matches!(self, Self::AllToAllVarying | Self::ReduceScatterVarying)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_pass_on_blocks_need_memory_for_their_branch() {
        let of = |kind: Kind, passes_on| -> Vec<usize> {
            (0..6).map(|index| kind.bytes_of_rank(10, 6, index, passes_on)).collect()
        };
        // The root has its block and all blocks. Ranks 2 and 4 pass on two blocks each.
        assert_eq!(of(Kind::Gather, false), [70, 10, 10, 10, 10, 10]);
        assert_eq!(of(Kind::Scatter, true), [130, 10, 30, 10, 30, 10]);
        assert_eq!(of(Kind::AllToAll, true), [120; 6]);
        assert_eq!(of(Kind::AllReduce, false), [30; 6]);
        assert_eq!(of(Kind::Barrier, true), [0; 6]);
        // Blocks of 0, 3, 6, 10, 13 and 16 bytes: 48 bytes out, and six own blocks in.
        assert_eq!(of(Kind::AllToAllVarying, false), [48, 66, 84, 108, 126, 144]);
    }

    #[test]
    fn blocks_that_mpi_cannot_count_are_found() {
        const GIB: usize = 1 << 30;
        // Four ranks have blocks of 0, 0.5, 1 and 1.5 GiB.
        assert_eq!(Kind::AllGatherVarying.too_long(GIB, 4), Some(("MPI_Allgatherv", 3 * GIB)));
        assert_eq!(Kind::AllGatherVarying.too_long(GIB / 2, 4), None);
        // Each block of the last rank has 0.75 GiB.
        assert_eq!(Kind::AllToAllVarying.too_long(GIB / 2, 4), Some(("MPI_Alltoallv", 3 * GIB)));
        assert_eq!(Kind::GatherVarying.too_long(GIB, 4), None);
        assert_eq!(Kind::AllToAll.too_long(GIB, 4), None);
    }
}
