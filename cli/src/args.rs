//! The command line, as clap reads it.

use clap::{Args, Parser, Subcommand};
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
    Save(SaveArgs),
    /// Bring back the newest good checkpoint, every file byte for byte
    ///
    /// Exit status: 0 restored, 1 failed, 2 restored an older checkpoint than asked for, 3 no checkpoint was ever completed (a new run).
    Restart(RestartArgs),
    /// List the checkpoints of a store, newest first
    List(ListArgs),
    /// Show what a checkpoint is made of, class by class
    Show(ShowArgs),
    /// Read a checkpoint whole and prove that every file would come back
    Verify(VerifyArgs),
    /// Delete all but the newest checkpoints
    Prune(PruneArgs),
    /// Run the agent of a compute node
    Cnc(DaemonArgs),
    /// Run an aggregator
    Anc(DaemonArgs),
    /// Run agent and aggregator in one process
    Run(RunArgs),
    /// Ask aggregators what is in flight, what is committed, what is wrong
    Status(StatusArgs),
    /// Check or print a configuration
    Config(ConfigArgs),
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
    /// Which files make a checkpoint: a preset (enzo, cactus, ...), a pattern with {checkpoint} and {rank}, or "guess"
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
    /// MiB of checkpoint in memory at most
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub budget_mib: u64,
    /// Threads; 0: as many as the process may run on
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// MiB that the store takes in a second: codecs are chosen for the least time to code and write; else for the fewest bytes
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub store_rate: Option<u64>,
    /// Do not decode each segment again before it is written
    #[arg(long)]
    pub no_verify: bool,
    /// Store everything, also what the checkpoint before or another rank already holds
    #[arg(long)]
    pub no_reuse: bool,
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
    /// Restore a copy to look at: the application goes on, or is not started from it
    #[arg(long)]
    pub copy: bool,
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
    /// List also what was pruned and stays only for what others refer to
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// How many of the newest complete checkpoints stay
    #[arg(long, value_name = "N")]
    pub keep: std::num::NonZeroU32,
    /// Delete incomplete checkpoints that are older than the newest complete one too
    #[arg(long)]
    pub incomplete: bool,
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
    /// Log lines as JSON
    #[arg(long)]
    pub log_json: bool,
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

fn scheme(name: &str) -> Result<Scheme, String> {
    let known = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("known schemes: {}", known()))
}

/// Some ranks: ranges, each with both ends in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSet(Vec<std::ops::RangeInclusive<u32>>);

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
    fn rank_lists_are_read_and_nonsense_is_refused() {
        let set = ranks("0-3,7").expect("valid");
        assert!(set.contains(Rank(0)) && set.contains(Rank(3)) && set.contains(Rank(7)) && !set.contains(Rank(4)));
        assert_eq!(set.highest(), Rank(7));
        for bad in ["", "a", "3-1", "1-", "-1", "1,,2"] {
            assert!(ranks(bad).is_err(), "{bad:?} was taken");
        }
    }
}
