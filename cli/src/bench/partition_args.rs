//! The options of `mcr bench partitions`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct BenchPartitionsArgs {
    /// Recorded trace to play in addition to the generated traces; can be repeated. The documentation of the library
    /// describes the format (mcrengine::partition, Trace)
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,
    /// Play only the recorded traces
    #[arg(long, requires = "trace")]
    pub only_traces: bool,
    /// Numbers of sub-buffers. Each sub-buffer has the length of the longest partition of a trace
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_name = "NUMBERS")]
    pub sub_buffers: Vec<NonZeroUsize>,
    /// Number of copies that the victim cache holds in the comparison with and without victim cache; the paper's
    /// victim cache holds 1
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub victims: usize,
    /// Seed of the generated traces
    #[arg(long, default_value_t = 108, value_name = "N")]
    pub seed: u64,
    /// Write a plot of each figure (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Print exact numbers as JSON
    #[arg(long)]
    pub json: bool,
}
