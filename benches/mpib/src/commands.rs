//! One module for each subcommand, and their common code: options, context, and the output of reports.

pub mod check;
pub mod collective;
pub mod configurations;
pub mod interference;
pub mod jor;
pub mod lanes;
pub mod links;
pub mod merge;
pub mod model;
mod output;
pub mod p2p;
pub mod paths;
pub mod room;
pub mod tune;

use clap::{Args, Subcommand, ValueEnum};
use mpib::clock::Clock;
use mpib::comm::{Comm, CommError};
use mpib::origin::{hosts, mpi_library, processors};
use mpib::pathfinder::PathError;
use mpib::report::{Context, date, settings};
use mpib::sites::{self, SiteError};
use mpib::stats::{Estimate, StoppingRule};
use mpib::timing::{Isolation, Method, Timing};
use std::fmt::Display;
use std::path::PathBuf;

pub use output::{FormatName, Output};

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Round trips between all pairs of ranks
    P2p(p2p::Options),
    /// Collective operations, in one or all implementations
    Collective(collective::Options),
    /// Parameters of the Hockney, LogGP and LMO models, and the predictions of these models
    Model(model::Options),
    /// Scatter and gather between two sites over several lanes: measured and modelled times, and the best number of
    /// lanes
    Lanes(lanes::Options),
    /// The gain from coupling two sites: Jacobi's iteration on both sites, unmodified ("artless") and adapted
    /// ("artful")
    Jor(jor::Options),
    /// The transfer paths of a checkpoint: gathers of groups, TCP, node-local disk and PFS; recommends a group size
    Paths(paths::Options),
    /// The steps of a checkpoint and of a restart in the five configurations of the mcrEngine paper (figures 12 and
    /// 13), measured here, and computed at the size of the paper
    ///
    /// The files are a checkpoint of a real application, one file or several files for each rank of mpib. All groups
    /// work at the same time.
    ///
    /// transfer: the ranks send their files to the aggregator of their group over TCP.
    ///
    /// merge: `mcr save --profile raw` describes the files in memory, and merges their variables into a container in
    /// memory.
    ///
    /// compress: the additional time of `mcr save` with a profile.
    ///
    /// write: all writers write and sync as many bytes as the containers have.
    ///
    /// A restart has the opposite steps: read, decompress, split, transfer.
    ///
    /// whole: all steps of a configuration with aggregation together, through agents and aggregators, which overlap
    /// the steps. Only if each rank has one file.
    ///
    /// At the size of the paper, the time of a step is computed. merge, compress, decompress and split: bytes of the
    /// worker's files x measured processor time for each byte. The worker is the aggregator of a group, or each rank
    /// alone, and has one core. transfer: bytes of a group / measured rate of an aggregator, but at least bytes of
    /// all groups of a node / --full-network. write and read: bytes of all files / compression ratio / --full-store.
    Configurations(configurations::Options),
    /// What a checkpoint costs the application: its allreduce and its halo exchange alone, during gathers, and while
    /// agents and aggregators save
    Interference(interference::Options),
    /// The bandwidth of each node and of its network cards: many senders to one receiver, one sender to many
    /// receivers, and pairs in one direction and in both directions at once
    Links(links::Options),
    /// Rules for Open MPI's collective operations: measures Open MPI's own algorithms of all operations, for several
    /// numbers of ranks, and writes one rules file
    Tune(tune::Options),
    /// Merge reports of several launches of the same command (JSON files of -o): launches differ by more than
    /// repetitions. Runs without mpirun
    Merge(merge::Options),
    /// Check that every implementation of every operation moves the right bytes on this machine
    Check(check::Options),
}

/// Runs a command. Returns the text of the report on rank 0.
pub fn run(comm: &Comm, command: Command) -> Result<String, Failure> {
    match command {
        Command::P2p(options) => p2p::run(comm, &options),
        Command::Collective(options) => collective::run(comm, &options),
        Command::Model(options) => model::run(comm, &options),
        Command::Lanes(options) => lanes::run(comm, &options),
        Command::Jor(options) => jor::run(comm, &options),
        Command::Paths(options) => paths::run(comm, &options),
        Command::Configurations(options) => configurations::run(comm, &options),
        Command::Interference(options) => interference::run(comm, &options),
        Command::Links(options) => links::run(comm, &options),
        Command::Tune(options) => tune::run(comm, &options),
        Command::Check(options) => check::run(comm, &options),
        Command::Merge(options) => merge::run(&options),
    }
}

impl Command {
    /// Whether the command forces algorithms of Open MPI. If so, this process must prepare for these algorithms
    /// before MPI starts.
    pub fn forces_algorithms(&self) -> bool {
        match self {
            Self::Tune(_) => true,
            Self::Collective(options) => options.forces_algorithms(),
            Self::Check(options) => options.forces_algorithms(),
            _ => false,
        }
    }
}

/// The reason why a command has no report.
#[derive(Debug)]
pub enum Failure {
    /// The input is invalid. All ranks find the same error.
    Input(String),
    /// Rank 0 could not write a file, or a check failed. All ranks know the error.
    Output(String),
    /// MPI failed, perhaps only on this rank.
    Comm(CommError),
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        match error {
            CommError::Told(text) => Self::Output(text),
            error => Self::Comm(error),
        }
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Comm(error) => error.into(),
            error => Self::input(error),
        }
    }
}

impl From<mpib::tune::TuneError> for Failure {
    fn from(error: mpib::tune::TuneError) -> Self {
        match error {
            mpib::tune::TuneError::Comm(error) => error.into(),
            mpib::tune::TuneError::Path(error) => error.into(),
            error @ mpib::tune::TuneError::Wrong { .. } => Self::Output(error.to_string()),
            error => Self::input(error),
        }
    }
}

impl Failure {
    pub fn input(error: impl Display) -> Self {
        Self::Input(error.to_string())
    }
}

/// An error if there are fewer ranks than the command needs.
pub fn at_least(comm: &Comm, ranks: usize, what: &str) -> Result<(), Failure> {
    if comm.size() >= ranks {
        return Ok(());
    }
    let (n, s) = (comm.size(), if comm.size() == 1 { "" } else { "s" });
    Err(Failure::Input(format!("{n} rank{s}; {what} needs at least {ranks} (mpirun -n {ranks} mpib ...)")))
}

/// The number of repetitions.
#[derive(Args, Clone)]
pub struct Repetitions {
    /// Minimum number of repetitions
    #[arg(long, default_value_t = 10)]
    min_reps: usize,
    /// Maximum number of repetitions; if it equals --min-reps, the number is fixed
    #[arg(long, default_value_t = 1000)]
    max_reps: usize,
    /// Relative error to reach: half the width of the confidence interval divided by the estimate
    #[arg(long, default_value_t = 0.05)]
    alpha: f64,
    /// Confidence level of the intervals
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// The estimate that must reach alpha
    #[arg(long, value_enum, default_value_t = EstimateName::Median)]
    estimate: EstimateName,
    /// End each series of repetitions, which is one operation at one size, after this time
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum EstimateName {
    /// Arithmetic mean, with an interval from Student's t
    Mean,
    /// Median, with an interval from order statistics
    Median,
}

impl Repetitions {
    pub fn rule(&self) -> Result<StoppingRule, Failure> {
        let estimate = match self.estimate {
            EstimateName::Mean => Estimate::Mean,
            EstimateName::Median => Estimate::Median,
        };
        let &Self { min_reps, max_reps, alpha, confidence, time_limit: max_seconds, .. } = self;
        let rule = StoppingRule { min_reps, max_reps, alpha, confidence, estimate, max_seconds };
        rule.check().map_err(Failure::input)?;
        Ok(rule)
    }
}

/// How a collective operation is timed.
#[derive(Args, Clone)]
pub struct TimingOptions {
    #[command(flatten)]
    repetitions: Repetitions,
    /// The time that is reported
    #[arg(long, value_enum, default_value_t = MethodName::Maximum)]
    method: MethodName,
    /// The isolation of a repetition from the next repetition
    #[arg(long, value_enum, default_value_t = IsolationName::Barrier)]
    isolation: IsolationName,
    /// Number of repetitions before the measurement
    #[arg(long, default_value_t = 3)]
    warm_up: usize,
    /// Use other buffers for each repetition, so that the buffers are not in a cache
    #[arg(long)]
    fresh: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum MethodName {
    /// From the start of the first rank to the end of the last rank, on synchronised clocks
    Global,
    /// The longest time of all ranks, each on its own clock
    Maximum,
    /// The root's time, including confirmations of the other ranks
    Root,
    /// Single tasks, after de Supinski and Karonis
    Specific,
}

#[derive(Clone, Copy, ValueEnum)]
enum IsolationName {
    /// MPI_Barrier
    Barrier,
    /// MPI_Reduce and MPI_Bcast
    Reduce,
    /// Empty messages to rank 0 and back
    PointToPoint,
    /// A common time on synchronised clocks
    StartTime,
    /// No isolation
    Pipelined,
}

impl TimingOptions {
    pub fn timing(&self, ranks: usize) -> Result<Timing, Failure> {
        let method = match self.method {
            MethodName::Global => Method::Global,
            MethodName::Maximum => Method::Maximum,
            MethodName::Root => Method::Root,
            MethodName::Specific => Method::Specific,
        };
        let isolation = match self.isolation {
            IsolationName::Barrier => Isolation::Barrier,
            IsolationName::Reduce => Isolation::Reduce,
            IsolationName::PointToPoint => Isolation::PointToPoint,
            IsolationName::StartTime => Isolation::StartTime,
            IsolationName::Pipelined => Isolation::Pipelined,
        };
        let rule = self.repetitions.rule()?;
        let timing = Timing { method, isolation, rule, warm_up: self.warm_up, fresh_buffers: self.fresh };
        timing.check(ranks).map_err(Failure::input)?;
        Ok(timing)
    }
}

/// The sites of the ranks.
#[derive(Args, Clone)]
pub struct SiteOptions {
    /// Ranks of each site, for example 0-3/4-7
    #[arg(long, value_name = "RANKS", group = "site")]
    sites: Option<String>,
    /// Hosts that match this name (with *) form one site, and all other hosts the other site
    #[arg(long, value_name = "PATTERN", group = "site")]
    site_mask: Option<String>,
    /// A file in which each line has a host name (with *) and the name of its site
    #[arg(long, value_name = "FILE", group = "site")]
    site_file: Option<PathBuf>,
}

impl SiteOptions {
    /// Whether sites were specified.
    pub fn given(&self) -> bool {
        self.sites.is_some() || self.site_mask.is_some() || self.site_file.is_some()
    }

    /// The site of each rank, as specified by the options, or found by round trips. All ranks must call this
    /// function.
    pub fn sites(&self, comm: &Comm) -> Result<Vec<usize>, Failure> {
        if let Some(text) = &self.sites {
            return sites::from_ranks(text, comm.size()).map_err(Failure::input);
        }
        if let Some(pattern) = &self.site_mask {
            return Ok(sites::from_mask(pattern, &hosts(comm)?));
        }
        if let Some(path) = &self.site_file {
            // Rank 0 reads the file, because the file may not exist on other nodes.
            let read = || std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
            let text = comm.agree(if comm.rank() == 0 { read() } else { Ok(String::new()) })?;
            let text = comm.all_bytes(text.as_bytes())?.swap_remove(0);
            return sites::from_file(&String::from_utf8_lossy(&text), &hosts(comm)?).map_err(Failure::input);
        }
        Ok(sites::find(comm)?)
    }

    /// Like [`SiteOptions::sites`], but returns an error if there are not exactly two sites.
    pub fn two_sites(&self, comm: &Comm) -> Result<Vec<usize>, Failure> {
        let sites = self.sites(comm)?;
        sites::two(&sites).map_err(|error: SiteError| {
            let hint = if self.given() { "" } else { "; none were found by round trips: give them with --sites" };
            Failure::Input(format!("{error}{hint}"))
        })?;
        Ok(sites)
    }
}

/// The options of all commands that time collective operations.
#[derive(Args, Clone)]
pub struct Common {
    #[command(flatten)]
    pub timing: TimingOptions,
    #[command(flatten)]
    pub sites: SiteOptions,
    #[command(flatten)]
    pub output: Output,
}

impl Common {
    /// Rejects invalid options and fewer than two ranks before anything is measured. The error names the command
    /// `what`.
    pub fn begin(&self, comm: &Comm, what: &str) -> Result<Timing, Failure> {
        self.output.check(comm, &[])?;
        let timing = self.timing.timing(comm.size())?;
        at_least(comm, 2, what)?;
        Ok(timing)
    }
}

/// The context of this run: command, MPI library, hosts, sites and clocks. All ranks must call this function.
pub fn context(comm: &Comm, clock: Option<&Clock>, sites: &[usize]) -> Result<Context, Failure> {
    let (count, model) = processors();
    let usable = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(Context {
        command: std::env::args().collect::<Vec<_>>().join(" "),
        mpib: env!("CARGO_PKG_VERSION").into(),
        mpi_library: mpi_library(),
        hosts: hosts(comm)?,
        sites: sites.to_vec(),
        clock: clock.map_or("each rank on its own clock".into(), Clock::describe),
        clock_resolution_seconds: mpi::environment::time_resolution(),
        date: date(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()),
        processors: count,
        processors_of_rank_0: usable,
        environment: settings(
            std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?))),
        ),
        machine: format!("{count} x {model}, {}", kernel.trim()),
    })
}

/// Maximum number of bytes in an option. Each command also checks its bytes against the memory.
const MAX_BYTES: usize = 1 << 40;

/// Parses a number of bytes: 64, 4KiB, 1MiB, 2GiB, 87MB.
pub fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" | "K" | "k" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        unit => return Err(format!("unknown unit {unit:?}; there are KiB, MiB, GiB, kB, MB and GB")),
    };
    let number: usize = digits.parse().map_err(|_| "expected a number of bytes, as in 64, 4KiB or 1MiB".to_string())?;
    let bytes = number.checked_mul(unit).filter(|&b| b <= MAX_BYTES);
    bytes.ok_or_else(|| format!("at most {} GiB are allowed", MAX_BYTES >> 30))
}

/// Like [`bytes`], but rejects 0, because no bandwidth can be computed from 0 bytes.
pub fn bytes_not_zero(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0 => Err("a message of 0 bytes has no bandwidth; give a size of at least 1".into()),
        more => Ok(more),
    }
}

/// Maximum bytes of the blocks of all ranks. The root holds these blocks in memory, and operations with different
/// lengths need twice as much memory.
const ALL_BLOCKS_BYTES: usize = 8 << 30;

/// Rejects sizes that would exceed a node's memory.
pub fn all_fit(sizes: &[usize], ranks: usize) -> Result<(), Failure> {
    match sizes.iter().find(|&&size| size.saturating_mul(ranks) > ALL_BLOCKS_BYTES) {
        None => Ok(()),
        Some(size) => Err(Failure::Input(format!(
            "--sizes {size}: blocks for {ranks} ranks are more than the {} GiB that are allowed at a root",
            ALL_BLOCKS_BYTES >> 30
        ))),
    }
}

/// A rate in bits per second as text.
pub fn rate(bytes_per_second: f64) -> String {
    let bits = 8.0 * bytes_per_second;
    if bits >= 1e9 { format!("{:.3} Gbit/s", bits / 1e9) } else { format!("{:.2} Mbit/s", bits / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_limit() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("1M"), Ok(1 << 20));
        assert_eq!((bytes("87MB"), bytes("3GiB")), (Ok(87_000_000), Ok(3 << 30)));
        for bad in ["", "KiB", "-1", "1.5M", "3TB", "4096G", "NaN"] {
            assert!(bytes(bad).is_err(), "{bad:?}");
        }
        assert!(bytes_not_zero("0").expect_err("no bandwidth").contains("0 bytes"));
    }

    #[test]
    fn rates_read_as_networks_do() {
        assert_eq!(rate(12.5e6), "100.00 Mbit/s");
        assert_eq!(rate(1.25e9), "10.000 Gbit/s");
    }
}
