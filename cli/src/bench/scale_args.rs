//! The options of `mcr bench scale`.

use std::num::NonZeroU32;
use std::path::PathBuf;

/// A number of aggregators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregators {
    Number(NonZeroU32),
    /// One aggregator for each group.
    Groups,
}

impl std::str::FromStr for Aggregators {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "groups" => Ok(Self::Groups),
            text => text.parse().map(Self::Number).map_err(|_| "not a number above 0, and not `groups`".to_owned()),
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct BenchScaleArgs {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "256,1024", value_name = "NUMBERS")]
    pub ranks: Vec<NonZeroU32>,
    /// GROUP_SIZE: number of ranks merged into one container
    #[arg(long, default_value = "32", value_name = "N")]
    pub group_size: NonZeroU32,
    /// Number of aggregators, or `groups` for one aggregator for each group [default: one for 48 groups]
    #[arg(long, value_name = "N")]
    pub aggregators: Option<Aggregators>,
    /// Minimum number of ranks of each node. Each node has an agent, and at most 100 agents are started
    #[arg(long, default_value = "192", value_name = "N")]
    pub ranks_of_node: NonZeroU32,
    /// Numbers of checkpoints that are in the store before the job begins
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "NUMBERS")]
    pub checkpoints_stored: Vec<u32>,
    /// File that each rank writes, for example a small HDF5 file of your code. Each rank and step gets other
    /// floating-point numbers [default: 4 KiB of numbers]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Time that each operation on the store takes, in microseconds
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub delay: u32,
    /// Number of measured checkpoints of each job; medians are shown
    #[arg(long, default_value = "3", value_name = "N")]
    pub steps: NonZeroU32,
    /// Also let ranks, an aggregator and all daemons fail
    #[arg(long)]
    pub failures: bool,
    /// Write a picture of operations, listings, memory and time (SVG) to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print exact numbers as JSON
    #[arg(long)]
    pub json: bool,
}
