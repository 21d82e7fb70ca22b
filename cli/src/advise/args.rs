//! The options of `mcr advise`.

use crate::keep_args::KeepArgs;
use crate::store_args::StoreArgs;
use clap::Args;

#[derive(Debug, Args)]
pub struct AdviseArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Mean time between two failures of the whole job, in hours
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub mtbf: f64,
    /// Time for which the application stops to write a checkpoint [default: the time from the first to the last file
    /// of a checkpoint, which is a lower bound]
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub write_seconds: Option<f64>,
    /// Time from a failure until the application computes again, including the wait for nodes and the time of mcr
    /// restart
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = not_negative)]
    pub restart_seconds: f64,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
