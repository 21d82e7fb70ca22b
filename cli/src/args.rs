//! The command line, as clap reads it.

use crate::exit;
use clap::{Args, Parser, Subcommand};
use mcr_anc::flush::WHOLE_EVERY;
use mcrengine::codec::Profile;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::plan::Scheme;
use std::path::PathBuf;

/// Checkpoint-restart with data-aware aggregation and compression.
///
/// Options beat the environment, the environment beats the configuration, the configuration beats the defaults.
#[derive(Debug, Parser)]
#[command(name = "mcr", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Save every complete checkpoint below a directory, without any daemon
    #[command(after_help = exit::SAVE)]
    Save(SaveArgs),
    /// Bring back the newest good checkpoint, every file byte for byte
    ///
    /// Exit status: 0 restored, 1 failed, 2 restored an older checkpoint than asked for, 3 no checkpoint was ever completed (a new run).
    Restart(RestartArgs),
    /// List the checkpoints of a store, newest first
    #[command(after_help = exit::ALL_OR_NOTHING)]
    List(ListArgs),
    /// Show what a checkpoint is made of, class by class
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Show(ShowArgs),
    /// Read a checkpoint whole and prove that every file would come back
    #[command(after_help = exit::VERIFY)]
    Verify(VerifyArgs),
    /// Delete checkpoints by rules or by name, or mark them as bad
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Prune(PruneArgs),
    /// Run the agent of a compute node
    ///
    /// SIGTERM or SIGINT: it looks at everything once more and waits, at most drain-seconds, until what was written is committed. Exit
    /// status: 0 all committed, 5 not everything that was written was committed (the last log lines name it), 1 it does not start.
    /// A second signal ends it at once.
    Cnc(DaemonArgs),
    /// Run an aggregator
    ///
    /// SIGTERM or SIGINT: it goes on, at most drain-seconds, as long as its agents have or may have something to commit. Exit status: 0
    /// all committed, 5 not everything that was written was committed (the last log lines name it), 1 it does not start. A second
    /// signal ends it at once.
    Anc(AncArgs),
    /// Run agent and aggregator in one process; with -- COMMAND, for as long as that runs
    ///
    /// With a command: it is run as a child, everything it wrote is committed when it ends, and its exit status is that of mcr (128
    /// and the signal's number if a signal ended it; 126 or 127 if it cannot be started). Exit status 5: the command succeeded, and
    /// not everything that was written was committed. Without a command: 0 after SIGTERM or SIGINT, or 5. 1: it does not start.
    /// SIGTERM and SIGINT are passed on to the command; a second one ends mcr at once.
    Run(RunArgs),
    /// Wait until everything that was written so far is committed
    ///
    /// Asks the agents of this node, over the socket beside each one's state file. Exit status: 0 all committed, 5 not all, 1 no agent
    /// was reached.
    Flush(FlushArgs),
    /// Ask aggregators what is in flight, what is committed, what is wrong
    #[command(after_help = exit::STATUS)]
    Status(StatusArgs),
    /// Check or print a configuration
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Config(ConfigArgs),
    /// Measure what compression would bring, on your own checkpoints; writes nothing
    #[command(after_help = exit::BENCH)]
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Directory that holds the containers, on the parallel file system
    #[arg(long, env = "MCR_STORE", value_name = "DIR")]
    pub store: PathBuf,
    /// Job whose checkpoints are meant; needed where the store holds several
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<JobId>,
}

#[derive(Debug, Args)]
pub struct LayoutArgs {
    /// Which files make a checkpoint: a preset (enzo, cactus, ...), a pattern with {checkpoint} and {rank}, "single" for
    /// all files as one checkpoint, or "guess"
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Vec<String>,
    /// Number that the first rank has in patterns
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub first_rank: u32,
}

#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Directory that holds the checkpoint files
    pub dir: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Make the store's directory if it is not there
    #[arg(long)]
    pub create: bool,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Ranks that a complete checkpoint has; found from the files where not given
    #[arg(long)]
    pub ranks: Option<u32>,
    /// GROUP_SIZE: ranks merged into one container
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub group_size: u32,
    /// How variables are put together
    #[arg(long, default_value = "aware", value_parser = scheme, value_name = "SCHEME")]
    pub scheme: Scheme,
    /// Bytes of each rank before the next one's turn, in the block schemes
    #[arg(long, default_value_t = 65536, value_name = "BYTES")]
    pub block_bytes: u32,
    /// fast, balanced or max; or paper, zstd-9, fpzip, ... (an unknown one lists them)
    #[arg(long, default_value = "fast", value_name = "PROFILE")]
    pub profile: Profile,
    /// MiB of checkpoint in memory at most; where not given 256, with balanced 512, with max 1024
    #[arg(long, value_name = "MIB")]
    pub budget_mib: Option<u64>,
    /// Threads; 0: as many as the process may run on
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// MiB that the store takes in a second: codecs are chosen for the least time to code and write; else for the fewest bytes
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub store_rate: Option<u64>,
    /// Do not decode each segment again before it is written
    #[arg(long)]
    pub no_verify: bool,
    /// Store everything, also what the checkpoint before or another rank already holds, and measure all codecs anew
    #[arg(long)]
    pub no_reuse: bool,
    /// Code each checkpoint by itself, not with what older ones hold (which only the profile max does)
    #[arg(long)]
    pub no_time: bool,
    /// With max: one checkpoint of so many at least is coded by itself
    #[arg(long, default_value_t = WHOLE_EVERY, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub whole_every: u32,
    /// Seconds to wait at most for another process that is saving the same group
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub wait: u64,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RestartArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Directory that receives the files
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Checkpoint that is wanted; the newest where not given
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Only these ranks, as in 0-31,40
    #[arg(long, value_parser = ranks, value_name = "RANKS")]
    pub ranks: Option<RankSet>,
    /// Read through these aggregators (host:port, comma-separated) instead of from the store's directory
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub aggregators: Vec<String>,
    /// State file of the agent: if it names a committed checkpoint, an empty store is an error and no new run
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Fail instead of restoring an older checkpoint
    #[arg(long)]
    pub exact: bool,
    /// Only look: decide nothing about what the job goes on from. Always use this while the job is running
    #[arg(long)]
    pub copy: bool,
    /// Identity of this start of the job: all nodes of one start say the same. Else SLURM's job id and restart count
    #[arg(long, env = "MCR_INCARNATION", value_name = "NAME")]
    pub incarnation: Option<String>,
    /// Pass over a checkpoint that was restored this often in a row without a newer one since; 0: never
    #[arg(long, default_value_t = mcrengine::incarnation::GIVE_UP_AFTER as u32, value_name = "N")]
    pub give_up_after: u32,
    /// Say which checkpoint would be restored, and which files would be moved aside; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait until the files are on disk
    #[arg(long)]
    pub no_sync: bool,
    /// MiB of checkpoint in memory at most
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub budget_mib: u64,
    /// Threads; 0: as many as the process may run on
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// List also what was pruned and stays only for what others refer to: how many bytes, and for which checkpoints
    #[arg(long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Checkpoint; the newest where not given
    pub checkpoint: Option<CheckpointId>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Show all classes, not only the largest
    #[arg(long)]
    pub all: bool,
    /// Show the files instead
    #[arg(long)]
    pub files: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Checkpoint; all of the job where not given
    pub checkpoint: Option<CheckpointId>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// MiB of decoded data in memory at most
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub budget_mib: u64,
    /// Threads, of which as many work as there is memory for; 0: as many as the process may run on
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which checkpoints stay. One that any of the rules keeps is kept, and so is the newest good one.
#[derive(Clone, Debug, Default, Args)]
pub struct KeepArgs {
    /// Keep the newest N complete checkpoints
    #[arg(long, visible_alias = "keep-last", value_name = "N")]
    pub keep: Option<std::num::NonZeroU32>,
    /// Keep what was written within this time before the newest: 45s, 30min, 2h, 1d12h, 6w, 3m (months), 1y
    #[arg(long, value_name = "DURATION", value_parser = mcrengine::retention::duration_ms)]
    pub keep_within: Option<u64>,
    /// Keep the newest of each of the last N hours that have checkpoints
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<u32>,
    /// The same for days (UTC)
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u32>,
    /// The same for weeks
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<u32>,
    /// The same for months
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<u32>,
}

#[derive(Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Delete this checkpoint; may be given several times
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub drop: Vec<CheckpointId>,
    /// Delete incomplete and damaged checkpoints that are older than the newest complete one too
    #[arg(long)]
    pub incomplete: bool,
    /// Mark a checkpoint as bad: a restart passes it over unless it is named
    #[arg(long, visible_alias = "bad", value_name = "ID", value_delimiter = ',')]
    pub mark_bad: Vec<CheckpointId>,
    /// Why it is bad
    #[arg(long, value_name = "TEXT", default_value = "marked by hand")]
    pub reason: String,
    /// Take the mark of a bad checkpoint away
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub unmark: Vec<CheckpointId>,
    /// Write anew what stays of a deleted checkpoint where less than this part of it is needed; 0: never
    #[arg(long, value_name = "PERCENT", default_value_t = mcrengine::prune::REPACK_BELOW_PERCENT, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub repack_below: u32,
    /// Only say what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Configuration file
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: PathBuf,
    /// Log lines as JSON
    #[arg(long)]
    pub log_json: bool,
}

#[derive(Debug, Args)]
pub struct AncArgs {
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// Make the store's directory if it is not there, as `create = true` in the aggregator's configuration does
    #[arg(long)]
    pub create: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file; the options below beat it
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory that is watched
    #[arg(long, value_name = "DIR")]
    pub watch: Option<PathBuf>,
    /// Directory that holds the containers
    #[arg(long, env = "MCR_STORE", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Make the store's directory if it is not there
    #[arg(long)]
    pub create: bool,
    /// Name of the job
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<String>,
    /// Ranks of the job
    #[arg(long)]
    pub ranks: Option<u32>,
    /// GROUP_SIZE: ranks merged into one container
    #[arg(long, value_name = "N")]
    pub group_size: Option<u32>,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// State file of the agent
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Address to listen on, for `mcr status`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Seconds that the end may take: what was written is read, sent and committed until then [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub drain_seconds: Option<u64>,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Log lines as JSON
    #[arg(long)]
    pub log_json: bool,
    /// The application, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct FlushArgs {
    /// State file of an agent; several where several agents run on this node
    #[arg(long, value_name = "FILE")]
    pub state: Vec<PathBuf>,
    /// Configuration file of the agent, which names its state file
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the job, from which the state file's name follows where nothing names it
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<String>,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Aggregators to ask (host:port, comma-separated)
    #[arg(long, env = "MCR_AGGREGATORS", value_delimiter = ',', required = true, value_name = "ADDRESSES")]
    pub aggregators: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print every key with its default
    Defaults,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Each codec on each class of variables: ratio, and rates of one core
    Codecs(BenchCodecsArgs),
    /// The tables and figures of the mcrEngine paper (SC12), of your data
    Schemes(BenchSchemesArgs),
}

/// What is measured, and how much of it.
#[derive(Debug, Args)]
pub struct BenchInput {
    /// Directory that holds the checkpoint files
    pub dir: PathBuf,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Ranks that a complete checkpoint has; found from the files where not given
    #[arg(long)]
    pub ranks: Option<u32>,
    /// Checkpoint that is measured; the newest where not given
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Begin nothing new after so many seconds, and say what is missing; 0: no limit
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub time_limit: u64,
    /// MiB of segments in memory at most
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub budget_mib: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchCodecsArgs {
    #[command(flatten)]
    pub input: BenchInput,
    /// Bytes that are measured, as in 64M; of a larger checkpoint only some ranks, but at least one, and of its classes
    /// only some segments
    #[arg(long, default_value = "32M", value_parser = byte_count, value_name = "BYTES")]
    pub sample: u64,
    /// GROUP_SIZE: ranks merged into one container
    #[arg(long, default_value = "32", value_name = "N")]
    pub group_size: std::num::NonZeroU32,
    /// Show the N largest classes, and the sum of the others
    #[arg(long, default_value_t = 12, value_name = "N")]
    pub classes: usize,
    /// What `mcr save --profile` would store and take
    #[arg(long, value_delimiter = ',', default_value = "fast,balanced,max,paper", value_name = "PROFILES")]
    pub profiles: Vec<Profile>,
    /// Times that a segment is coded and decoded; the median counts. What takes long is done less often
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub repetitions: u32,
    /// Threads; 0: as many as the process may run on. Several disturb each other's rates a little
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

#[derive(Debug, Args)]
pub struct BenchSchemesArgs {
    #[command(flatten)]
    pub input: BenchInput,
    /// Bytes of each checkpoint that are measured, as in 1G; of a larger one only some ranks, but at least one
    #[arg(long, default_value = "256M", value_parser = byte_count, value_name = "BYTES")]
    pub sample: u64,
    /// Group sizes, the largest being that of the other figures; those above the number of ranks count as that
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "SIZES")]
    pub group_sizes: Vec<std::num::NonZeroU32>,
    /// Block sizes of the block schemes, as in 4K,64K; the best of them is that of the other figures
    #[arg(long, value_delimiter = ',', default_value = "512,4K,16K,64K,256K,1M", value_parser = block_bytes, value_name = "BYTES")]
    pub block_sizes: Vec<std::num::NonZeroU32>,
    /// Profiles shown beside the paper's chain
    #[arg(long, value_delimiter = ',', default_value = "fast,balanced", value_name = "PROFILES")]
    pub profiles: Vec<Profile>,
    /// Write a picture of each figure (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Threads; 0: as many as the process may run on
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

/// A number of bytes with K, M, G or T for powers of 1024.
fn byte_count(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is no number of bytes; write it as in 1048576, 512M or 2G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(error()),
    };
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

fn block_bytes(text: &str) -> Result<std::num::NonZeroU32, String> {
    let bytes = byte_count(text)?;
    let bytes = u32::try_from(bytes).ok().and_then(std::num::NonZeroU32::new);
    bytes.ok_or_else(|| format!("{text:?}: a block has 1 byte to 4 GiB"))
}

fn scheme(name: &str) -> Result<Scheme, String> {
    let known = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("known schemes: {}", known()))
}

/// Some ranks: ranges, each with both ends in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSet(Vec<std::ops::RangeInclusive<u32>>);

impl std::fmt::Display for RankSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{}-{}", if i == 0 { "" } else { "," }, range.start(), range.end())?;
        }
        Ok(())
    }
}

impl RankSet {
    /// Whether a rank is in it.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank.0))
    }

    /// The highest rank.
    pub fn highest(&self) -> Rank {
        Rank(self.0.iter().map(|range| *range.end()).max().unwrap_or(0))
    }
}

fn ranks(text: &str) -> Result<RankSet, String> {
    let number = |n: &str| n.trim().parse::<u32>().map_err(|_| format!("{n:?} is no rank; write ranks as in 0-31,40"));
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok(first..=last),
            (first, last) => Err(format!("{first}-{last} runs backwards")),
        },
        None => number(part).map(|rank| rank..=rank),
    };
    text.split(',').map(range).collect::<Result<Vec<_>, _>>().map(RankSet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_of_bytes_are_read_and_nonsense_is_refused() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4K", 4096), ("64MiB", 64 << 20), ("2 GB", 2 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(byte_count(text), Ok(bytes), "{text:?}");
        }
        for bad in ["", "M", "1.5G", "-1", "1X", "99999999999T"] {
            assert!(byte_count(bad).is_err(), "{bad:?} was taken");
        }
        assert!(block_bytes("0").is_err() && block_bytes("8G").is_err() && block_bytes("1K").is_ok());
    }

    #[test]
    fn rank_lists_are_read_and_nonsense_is_refused() {
        let set = ranks("0-3,7").expect("valid");
        assert!(set.contains(Rank(0)) && set.contains(Rank(3)) && set.contains(Rank(7)) && !set.contains(Rank(4)));
        assert_eq!(set.highest(), Rank(7));
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2"] {
            assert!(ranks(bad).is_err(), "{bad:?} was taken");
        }
    }
}
