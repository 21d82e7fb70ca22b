//! The built-in operations, and the names of their implementations.

use crate::models::lanes::Direction;

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
    /// Computes, on each rank, the sum of the doubles of the ranks up to this rank.
    Scan,
    /// Waits for all ranks, without data.
    Barrier,
}

/// All operations.
pub const KINDS: [Kind; 14] = [
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
    Kind::Scan,
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
            Self::Scan => "scan",
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
            Self::AllToAll | Self::AllToAllVarying | Self::Scan => &["native", "linear"],
            Self::AllReduce => &["native", "linear", "binomial", "recursive-doubling"],
            Self::ReduceScatter => &["native", "linear", "binomial"],
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

    pub(super) fn varying(self) -> bool {
        matches!(self, Self::ScatterVarying | Self::GatherVarying | Self::AllGatherVarying | Self::AllToAllVarying)
    }
}
