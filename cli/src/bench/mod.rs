//! `mcr bench`: measures compression on the user's own checkpoints, before the user installs the daemons.
//!
//! The command reads checkpoint files and runs the steps of a save on them, up to the stored segments. The command
//! writes only the report. The budget limits the memory for segments. The headers of the measured ranks and a few
//! buffers for each thread need additional memory. After `--time-limit`, no new work begins.
//!
//! `mcr bench partitions` measures no checkpoints, but the replacement policies of the partition buffer. `mcr bench
//! scale` measures simulated jobs.

mod codecs;
mod codecs_plot;
mod codecs_report;
mod counting;
pub mod input;
pub mod measure;
mod paper;
pub mod partition_args;
mod partitions;
pub mod profiles;
mod scale;
pub mod scale_args;
mod schemes;
mod schemes_plot;
mod schemes_report;
mod series;

use crate::args::{BenchArgs, BenchCommand, BenchInput};
use crate::output::counted;
use crate::plot::create_dir;
use anyhow::bail;
use mcr_anc::budget::Budget;
use mcr_anc::flush::least_budget;
use mcrengine::codec::Profile;
use mcrengine::units::human_bytes;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let plots = match &args.command {
        BenchCommand::Codecs(args) => &args.plots,
        BenchCommand::Schemes(args) => &args.plots,
        BenchCommand::Partitions(args) => &args.plots,
        BenchCommand::Scale(_) => &None,
    };
    plots.as_deref().map_or(Ok(()), create_dir)?;
    match args.command {
        BenchCommand::Codecs(args) => codecs::run(args),
        BenchCommand::Schemes(args) => schemes::run(args),
        BenchCommand::Partitions(args) => partitions::run(args),
        BenchCommand::Scale(args) => scale::run(args),
    }
}

/// The memory for segments, if it is enough for these profiles.
fn budget<'a>(input: &BenchInput, profiles: impl Iterator<Item = &'a Profile>) -> anyhow::Result<Arc<Budget>> {
    let budget_bytes = input.budget_mib.saturating_mul(1 << 20);
    let least_of = |profile: &Profile| least_budget(profile.segment_bytes(budget_bytes), profile);
    let least = profiles.map(least_of).max().unwrap_or(0);
    let least_mib = least.div_ceil(1 << 20);
    if input.budget_mib < least_mib {
        bail!("--budget-mib is {}; it must be at least {least_mib} for these profiles", input.budget_mib);
    }
    Ok(Budget::new(budget_bytes))
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// The measured checkpoint, and the measured part of this checkpoint.
#[derive(Clone, Debug, serde::Serialize)]
struct Looked {
    checkpoint: String,
    /// The whole checkpoint.
    ranks: u32,
    files: usize,
    file_bytes: u64,
    /// The measured part of the checkpoint.
    measured_ranks: u32,
    measured_files: usize,
    measured_file_bytes: u64,
}

impl Looked {
    fn new(checkpoint: &input::Checkpoint, captured: &input::Captured) -> Self {
        Self {
            checkpoint: checkpoint.label.to_string(),
            ranks: checkpoint.ranks,
            files: checkpoint.files.len(),
            file_bytes: checkpoint.bytes(),
            measured_ranks: captured.ranks,
            measured_files: captured.files().count(),
            measured_file_bytes: captured.file_bytes(),
        }
    }

    /// Whether some ranks were left out.
    fn is_sample(&self) -> bool {
        self.measured_ranks < self.ranks
    }

    fn sentence(&self) -> String {
        let Self { checkpoint, ranks, files, .. } = self;
        let whole = human_bytes(self.file_bytes);
        match self.is_sample() {
            false => format!(
                "checkpoint {checkpoint}: {}, {}, {whole}, all of it",
                counted(*ranks, "rank"),
                counted(*files as u64, "file")
            ),
            true => format!(
                "checkpoint {checkpoint}: {} of {ranks} ranks, {} of {whole}; the other ranks were not read",
                self.measured_ranks,
                human_bytes(self.measured_file_bytes)
            ),
        }
    }
}

/// The limits of the measurement, and its duration.
#[derive(Clone, Debug, serde::Serialize)]
struct Bounds {
    sample_bytes: u64,
    time_limit_seconds: u64,
    segment_memory_bytes: u64,
    threads: usize,
    elapsed_ms: u64,
    /// Whether everything was measured before the time limit.
    is_complete: bool,
}

impl Bounds {
    fn sentence(&self) -> String {
        let limit = match self.time_limit_seconds {
            0 => "no time limit".to_owned(),
            seconds => format!("at most {seconds} s"),
        };
        let missing = if self.is_complete {
            ""
        } else {
            "\nPARTLY: time limit reached; unmeasured cells show \"-\", and totals over incomplete data are left out"
        };
        format!(
            "Bounds: {} of each checkpoint (--sample; at least one rank), {limit} (--time-limit), {} of segments in memory\n\
             (--budget-mib), {} thread{}. It took {}.{missing}\n",
            human_bytes(self.sample_bytes),
            human_bytes(self.segment_memory_bytes),
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            crate::output::human_time(Duration::from_millis(self.elapsed_ms)),
        )
    }
}
