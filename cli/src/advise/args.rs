//! The options of `mcr advise`.

use crate::args::values::{at_least_one, byte_count};
use crate::keep_args::KeepArgs;
use crate::store_args::StoreArgs;
use clap::Args;
use mcrengine::codec::Profile;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Text for `mcr advise --help`.
pub const EXIT: &str = "Exit status: 0 done, 1 failed, 4 partly: --time-limit was reached.";

#[derive(Debug, Args)]
pub struct AdviseArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Mean time between two failures of the whole job, in hours [default: from the restarts of the job, each of
    /// which counts as a failure]
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub mtbf: Option<f64>,
    /// Time for which the application stops to write a checkpoint [default: the time from the first to the last file
    /// of a checkpoint, which is a lower bound]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub write_seconds: Option<f64>,
    /// Time from a failure until the application computes again, including the wait for nodes and the time of mcr
    /// restart [default: the time of mcr restart in earlier restarts of the job, otherwise 0]
    #[arg(long, value_name = "SECONDS", value_parser = not_negative)]
    pub restart_seconds: Option<f64>,
    #[command(flatten)]
    pub keep: KeepArgs,
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Write a picture (SVG) of the lost time by interval, and of the growth of the store
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Also measure other profiles, group sizes and numbers of aggregators, by coding a sample of the newest
    /// checkpoint
    #[arg(long)]
    pub measure: bool,
    /// Profiles to measure, in addition to the profile in use
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "fast,balanced,max",
        value_name = "PROFILES",
        requires = "measure"
    )]
    pub profiles: Vec<Profile>,
    /// Group sizes to measure, in addition to the size in use. mcr measures at most 128 ranks, or one group
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128", value_name = "SIZES", requires = "measure")]
    pub group_sizes: Vec<NonZeroU32>,
    /// Number of aggregators in use
    #[arg(long, default_value = "1", value_parser = at_least_one, value_name = "N", requires = "measure")]
    pub aggregators: NonZeroU32,
    /// Number of threads of each aggregator; 0: one thread for each core that this process may use
    #[arg(long, default_value_t = 0, value_name = "N", requires = "measure")]
    pub threads: usize,
    /// Number of bytes to code for each profile and group size, for example 64M. At least one segment of each class
    /// is coded
    #[arg(long, default_value = "32M", value_parser = byte_count, value_name = "BYTES", requires = "measure")]
    pub sample: u64,
    /// Start no new measurement after this time; 0: no limit
    #[arg(long, default_value_t = 120, value_name = "SECONDS", requires = "measure")]
    pub time_limit: u64,
}

/// The largest number of hours or seconds: about 30 years in seconds.
const NUMBER_MAX: f64 = 1e9;

fn positive(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|number| *number > 0.0)
        .ok_or_else(|| format!("it must be a number above 0, at most {NUMBER_MAX}"))
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text).ok_or_else(|| format!("it must be a number from 0 to {NUMBER_MAX}"))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| (0.0..=NUMBER_MAX).contains(number))
}
