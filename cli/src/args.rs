//! The command line, which clap parses.

pub mod values;

use crate::advise::args::AdviseArgs;
use crate::bench::partition_args::BenchPartitionsArgs;
use crate::bench::scale_args::BenchScaleArgs;
use crate::copy::args::{self as copy, CopyArgs};
use crate::exit;
use crate::globs::FileGlob;
use crate::inside::args::{self, CatArgs, DiffArgs, ExtractArgs, LsArgs};
pub use crate::keep_args::KeepArgs;
use crate::mount::args::{self as mount, MountArgs};
use crate::node_socket::NodeSocket;
pub use crate::ranks::{RankSet, ranks};
use crate::status::args::StatusArgs;
pub use crate::store_args::StoreArgs;
use clap::{Args, Parser, Subcommand};
use mcr_anc::flush::WHOLE_EVERY;
use mcrengine::codec::Profile;
use mcrengine::ids::CheckpointId;
use mcrengine::plan::Scheme;
use std::ffi::OsString;
use std::path::PathBuf;
use values::{aggregator_address, block_bytes, byte_count, parity_percent, scheme};

/// Checkpoint-restart with data-aware aggregation and compression.
///
/// Order of precedence, highest first: option, environment variable, configuration file, default.
#[derive(Debug, Parser)]
#[command(name = "mcr", version, max_term_width = 110, after_long_help = exit::EVERY_COMMAND)]
pub struct Cli {
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// The options for the amount of output. All commands have these options.
#[derive(Clone, Copy, Debug, Args)]
pub struct VerbosityArgs {
    /// Print only results and errors: no progress, no notes, and in a log only warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print log lines to standard error; -vv prints more log lines
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Save every complete checkpoint below a directory, without any daemon
    #[command(after_help = exit::SAVE)]
    Save(SaveArgs),
    /// Restore the newest good checkpoint, every file byte for byte
    #[command(after_help = exit::RESTART)]
    Restart(RestartArgs),
    /// List the checkpoints of a store, newest first
    #[command(after_help = exit::JOBS)]
    List(ListArgs),
    /// Show the classes of a checkpoint, with their sizes and codecs
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Show(ShowArgs),
    /// Read a whole checkpoint and verify that every file can be restored
    #[command(after_help = exit::VERIFY)]
    Verify(VerifyArgs),
    /// List the files of a checkpoint, or their variables
    #[command(after_help = args::LS)]
    Ls(LsArgs),
    /// Write the bytes of one file of a checkpoint to standard output
    #[command(after_help = args::CAT)]
    Cat(CatArgs),
    /// Write a variable of all ranks to a NumPy array or an HDF5 file
    #[command(after_help = args::EXTRACT)]
    Extract(ExtractArgs),
    /// Compare two checkpoints, or a checkpoint and a directory
    ///
    /// Elements are compared in the order of the chunks of a dataset. The filters and the places of the chunks in the
    /// file do not matter. If the dimensions of the chunks differ, different elements are compared; the result says if
    /// both have the same in another order. Chunks that the store keeps as they are in the file (#stored in mcr show)
    /// are decoded if the dataset has at most an eighth of --budget-mib, or else compared as bytes.
    #[command(after_help = args::DIFF)]
    Diff(DiffArgs),
    /// Show all checkpoints as read-only files and directories
    #[command(after_help = mount::HELP)]
    Mount(MountArgs),
    /// Delete checkpoints by rules or by name, or mark checkpoints as bad
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Prune(PruneArgs),
    /// Copy checkpoints to another store or job; copy only what is missing
    #[command(after_help = copy::HELP)]
    Copy(CopyArgs),
    /// Run the agent of a compute node
    ///
    /// After SIGTERM or SIGINT, the agent scans all files once more. The agent waits until all written files are
    /// committed, for at most drain-seconds. A second signal ends the agent within 0.5 s.
    #[command(after_help = exit::AGENT)]
    Cnc(DaemonArgs),
    /// Run an aggregator
    ///
    /// After SIGTERM or SIGINT, the aggregator runs as long as an agent may have files to commit, for at most
    /// drain-seconds. A second signal ends the aggregator within 0.5 s.
    #[command(after_help = exit::AGGREGATOR)]
    Anc(AncArgs),
    /// Run agent and aggregator in one process, until a command ends
    ///
    /// With -- COMMAND, mcr runs COMMAND as a child process. When COMMAND ends, mcr commits all files that COMMAND
    /// wrote. mcr passes SIGTERM and SIGINT on to COMMAND; a second signal ends mcr within 0.5 s. Without a command,
    /// mcr runs until SIGTERM or SIGINT.
    #[command(after_help = exit::RUN)]
    Run(RunArgs),
    /// Wait until all files written so far are committed
    ///
    /// Asks the agents of this node, over the socket next to the state file of each agent.
    #[command(after_help = exit::FLUSH)]
    Flush(FlushArgs),
    /// Show the settings of a job; report its begin and end to mcr node
    #[command(after_help = exit::JOB)]
    Job(JobArgs),
    /// Run the daemon of a node, which saves the jobs of all users
    ///
    /// SLURM's Prolog and Epilog report the begin and the end of each job to the daemon (mcr job begin, mcr job end).
    /// The daemon starts a worker for each job, as the user of the job. If the daemon ends, the workers continue, and
    /// the next daemon finds the workers.
    #[command(after_help = exit::NODE)]
    Node(NodeArgs),
    /// Let jobs of other nodes use aggregators on this node
    ///
    /// This daemon runs on an aggregator node, together with mcr node, and as a user without privileges. The daemon
    /// listens on the network with TLS. The agents of a job ask the gate for an aggregator, and mcr node starts the
    /// aggregator as the user of the job. The options are in the table "gate" of the cluster's file /etc/mcr/mcr.toml.
    #[command(after_help = exit::GATE)]
    Gate(GateArgs),
    /// Serve the metrics of mcr node to Prometheus
    ///
    /// This daemon needs no privileges. At each request over HTTP it asks mcr node at its socket. So mcr node itself
    /// needs no port.
    #[command(after_help = exit::METRICS)]
    Metrics(MetricsArgs),
    /// Save one job on one node; started by mcr node
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Ask aggregators for checkpoints in flight, commits and problems
    ///
    /// Aggregators and agents that do not answer have rows, too.
    #[command(after_help = exit::STATUS)]
    Status(StatusArgs),
    /// Show how much space a store uses, and what prune would free
    ///
    /// "On disk" is the length of all files in the store. Several checkpoints may need one container: "others need"
    /// is the part that other checkpoints need, which stays when the checkpoint is deleted.
    #[command(after_help = exit::JOBS)]
    Stats(StatsArgs),
    /// Advise how often to write checkpoints, and show how the store grows
    ///
    /// mcr computes the intervals with the formulas of Young and of Daly, from the times of the newest checkpoints
    /// and from the mean time between failures. With --measure, mcr also measures what another profile, group size or
    /// number of aggregators would bring. The command changes nothing in the store.
    #[command(after_help = crate::advise::args::EXIT)]
    Advise(AdviseArgs),
    /// List the layouts of widely used applications, with example names
    ///
    /// A layout says which files form a checkpoint, and to which rank each file belongs. mcr guesses the layout.
    /// If the guess is wrong, the option --layout names a preset or patterns.
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Layouts(LayoutsArgs),
    /// Make or replace the key for connections between your nodes
    ///
    /// Your agents and aggregators on different nodes recognize each other by this key.
    #[command(after_help = exit::CERT)]
    Cert(CertArgs),
    /// Check or print a configuration
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Config(ConfigArgs),
    /// Measure codecs and schemes on your checkpoints; change nothing
    ///
    /// Or compare replacement policies of the partition buffer.
    #[command(after_help = exit::BENCH)]
    Bench(BenchArgs),
    /// Write the manual pages and the shell completions below a directory like /usr/share
    #[command(hide = true, after_help = exit::ALL_OR_NOTHING)] // for packages
    Manual(ManualArgs),
}

#[derive(Debug, Args)]
pub struct LayoutArgs {
    /// Which files form a checkpoint: a preset (enzo, cactus, ...), a pattern with {checkpoint} and {rank}, "single"
    /// for all files as one checkpoint, or "guess"
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Vec<String>,
    /// Number of the first rank in file names
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub first_rank: u32,
}

#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Directory that holds the checkpoint files; its name is the default name of the job
    pub dir: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Create the store's directory if it does not exist
    #[arg(long)]
    pub create: bool,
    /// Also use a store if another user owns it, or if members of its Unix group can write to it
    #[arg(long)]
    pub shared_store: bool,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Number of ranks of a complete checkpoint [default: counted in the files; if the job's newest checkpoint in the
    /// store has more ranks, their number]
    #[arg(long)]
    pub ranks: Option<u32>,
    /// GROUP_SIZE: number of ranks merged into one container
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub group_size: u32,
    /// How the variables of the ranks are merged
    #[arg(long, default_value = "aware", value_parser = scheme, value_name = "SCHEME")]
    pub scheme: Scheme,
    /// In the block schemes: number of bytes of one rank before the next rank follows
    #[arg(long, default_value_t = 65536, value_name = "BYTES")]
    pub block_bytes: u32,
    /// Compression: fast, balanced or max; or paper, zstd-9, fpzip, ... (for an unknown name, mcr lists all names)
    #[arg(long, default_value = "fast", value_name = "PROFILE")]
    pub profile: Profile,
    /// Maximum memory for checkpoint data, in MiB [default: 256; 512 with balanced, 1024 with max]
    #[arg(long, value_name = "MIB")]
    pub budget_mib: Option<u64>,
    /// Number of threads; 0: one thread for each core that the process may use
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Write rate of the store in MiB/s. With this option, codecs are chosen for the shortest time to encode and
    /// write; without this option, for the fewest bytes
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub store_rate: Option<u64>,
    /// Skip the verification of segments, which decodes each segment before it is written
    #[arg(long)]
    pub no_verify: bool,
    /// Store all bytes, even if the previous checkpoint or another rank has the same bytes; measure all codecs again
    #[arg(long)]
    pub no_reuse: bool,
    /// Encode each checkpoint without older checkpoints (only the profile max uses older checkpoints)
    #[arg(long)]
    pub no_time: bool,
    /// With the profile max: encode at least every Nth checkpoint without older checkpoints
    #[arg(long, default_value_t = WHOLE_EVERY, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub whole_every: u32,
    /// Length of the parity of each container, in percent of the container; 0: no parity. mcr verify --repair mends
    /// damage by the parity
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = parity_percent())]
    pub parity_percent: u32,
    /// Maximum time to wait for another process that is saving the same group
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
    /// Checkpoint to restore: its ID, the beginning of its ID (no part of a number), latest (the checkpoint that a
    /// restart chooses without this option), or latest~1 (the one before it). Only an ID stands for a checkpoint that
    /// is marked as bad [default: latest]
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Restore only these ranks, for example 0-31,40
    #[arg(long, value_parser = ranks, value_name = "RANKS")]
    pub ranks: Option<RankSet>,
    /// Copy only these files; can be given several times. A pattern without a slash is compared with the name of the
    /// file, a pattern with a slash with the path. Implies --copy, and reads the store's directory
    #[arg(long, value_parser = FileGlob::parse, value_name = "GLOB")]
    pub only: Vec<FileGlob>,
    /// Read through these aggregators (host:port, comma-separated), not from the store's directory
    #[arg(long, value_delimiter = ',', value_parser = aggregator_address, value_name = "ADDRESSES")]
    pub aggregators: Vec<String>,
    /// State file of the agent. If this file names a committed checkpoint, an empty store is an error and not a new
    /// run
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Fail instead of restoring an older checkpoint
    #[arg(long)]
    pub exact: bool,
    /// Only copy the files, without recording from which checkpoint the job continues. Files of newer checkpoints in
    /// the directory stay there. Always use this option while the job is running
    #[arg(long)]
    pub copy: bool,
    /// Identity of this start of the job, the same on all nodes [default: SLURM's job id and restart count]
    #[arg(long, env = "MCR_INCARNATION", value_name = "NAME")]
    pub incarnation: Option<String>,
    /// Skip a checkpoint that was restored N times in a row without a newer checkpoint being saved; 0: never skip
    #[arg(long, default_value_t = mcrengine::incarnation::GIVE_UP_AFTER as u32, value_name = "N")]
    pub give_up_after: u32,
    /// Report which checkpoint would be restored and which files would be moved away; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not wait until the files are on the disk
    #[arg(long)]
    pub no_sync: bool,
    /// Maximum memory for checkpoint data and codecs, in MiB; one segment may need more
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub budget_mib: u64,
    /// Number of threads; 0: one thread for each core that the process may use
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Record the order in which segments are used, for mcr bench partitions --trace
    #[arg(long, value_name = "FILE", hide = true)]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Also list pruned checkpoints whose containers are needed by other checkpoints, with their sizes
    #[arg(long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1 [default: the newest]
    pub checkpoint: Option<CheckpointId>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Show all classes, not only the largest classes
    #[arg(long)]
    pub all: bool,
    /// Show the files, not the classes
    #[arg(long)]
    pub files: bool,
    /// Show also why each codec was chosen
    #[arg(long)]
    pub why: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Checkpoint: its ID, the beginning of its ID (no part of a number), latest, or latest~1 [default: all of the job]
    pub checkpoint: Option<CheckpointId>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Maximum memory for decoded data and codecs, in MiB; one segment may need more
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub budget_mib: u64,
    /// Maximum number of threads; fewer threads are used if the memory does not suffice. 0: one thread for each core
    /// that the process may use
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Mend damaged containers by their parity, or replace damaged containers and manifests by the intact files of
    /// another store (--from), and verify again
    #[arg(long)]
    pub repair: bool,
    /// Directory of another store with copies of the checkpoints, for --repair
    #[arg(long, value_name = "DIR", requires = "repair")]
    pub from: Option<PathBuf>,
    /// With --repair: also use a store if another user owns it, or if members of its Unix group can write to it
    #[arg(long)]
    pub shared_store: bool,
    /// Record the order in which segments are used, for mcr bench partitions --trace
    #[arg(long, value_name = "FILE", hide = true)]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Rules for the checkpoints to keep. A checkpoint is kept if at least one rule keeps it. The newest good checkpoint
/// is always kept.
#[derive(Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Delete this checkpoint; can be given several times. If its files still lie in the run directory, mcr save, or
    /// an agent that lost its state file, saves them again: to keep a bad checkpoint from restarts, use --mark-bad
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub drop: Vec<CheckpointId>,
    /// Also delete incomplete and damaged checkpoints that are older than the newest complete checkpoint
    #[arg(long)]
    pub incomplete: bool,
    /// Mark a checkpoint as bad: a restart skips a bad checkpoint unless --checkpoint names it
    #[arg(long, visible_alias = "bad", value_name = "ID", value_delimiter = ',')]
    pub mark_bad: Vec<CheckpointId>,
    /// Text that says why the checkpoint is bad
    #[arg(long, value_name = "TEXT", default_value = "marked by hand")]
    pub reason: String,
    /// Remove the mark of a bad checkpoint
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub unmark: Vec<CheckpointId>,
    /// Rewrite a container of a deleted checkpoint if other checkpoints need less than this percentage of its bytes;
    /// 0: never
    #[arg(long, value_name = "PERCENT", default_value_t = mcrengine::prune::REPACK_BELOW_PERCENT, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub repack_below: u32,
    /// Only report what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The log and the metrics of a daemon.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// Write the log as JSON
    #[arg(long)]
    pub log_json: bool,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics. Every user who can reach the port can read the
    /// names of jobs and users [default: metrics in the configuration file]
    #[arg(long, env = "MCR_METRICS", value_name = "ADDRESS:PORT")]
    pub metrics: Option<std::net::SocketAddr>,
}

#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Configuration file
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: PathBuf,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct AncArgs {
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// Create the store's directory if it does not exist, like `create = true` in the aggregator's configuration
    #[arg(long)]
    pub create: bool,
    /// Also use a store if another user owns it, or if members of its Unix group can write to it
    #[arg(long)]
    pub shared_store: bool,
    /// Length of the parity of each container, in percent of the container; 0: no parity. mcr verify --repair mends
    /// damage by the parity
    #[arg(long, value_name = "N", value_parser = parity_percent())]
    pub parity_percent: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file; the options below override its values
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory to watch
    #[arg(long, value_name = "DIR")]
    pub watch: Option<PathBuf>,
    /// Directory that holds the containers
    #[arg(long, env = "MCR_STORE", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Create the store's directory if it does not exist
    #[arg(long)]
    pub create: bool,
    /// Also use a store if another user owns it, or if members of its Unix group can write to it
    #[arg(long)]
    pub shared_store: bool,
    /// Name of the job
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<String>,
    /// Number of ranks of the job
    #[arg(long)]
    pub ranks: Option<u32>,
    /// GROUP_SIZE: number of ranks merged into one container
    #[arg(long, value_name = "N")]
    pub group_size: Option<u32>,
    /// Length of the parity of each container, in percent of the container; 0: no parity. mcr verify --repair mends
    /// damage by the parity
    #[arg(long, value_name = "N", value_parser = parity_percent())]
    pub parity_percent: Option<u32>,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// State file of the agent
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Address to listen on, for `mcr status` [default: a socket next to the state file]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Maximum time at the end to read, send and commit the last files [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub drain_seconds: Option<u64>,
    #[command(flatten)]
    pub keep: KeepArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// The application, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct FlushArgs {
    /// State file of an agent; repeat this option if several agents run on this node
    #[arg(long, value_name = "FILE")]
    pub state: Vec<PathBuf>,
    /// Configuration file of the agent, which names its state file
    #[arg(long, env = "MCR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the job; gives the default name of the state file
    #[arg(long, env = "MCR_JOB", value_name = "NAME")]
    pub job: Option<String>,
    /// Maximum time to wait
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct StatsArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Show all checkpoints, not only the newest ones
    #[arg(long)]
    pub all: bool,
    /// Write a plot of the ratio over time (SVG) for each job into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LayoutsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CertArgs {
    #[command(subcommand)]
    pub command: CertCommand,
}

#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// Make cluster.key and cluster.pem, once for each user
    ///
    /// If the files exist and can be used, nothing is changed, so a job script may run this command each time.
    ///
    /// Each agent and aggregator that talks to another node makes its own certificate with these files. The files are
    /// in ~/.config/mcr, so all nodes find them if the nodes share the home directories. Otherwise copy both files to
    /// all nodes. Keep cluster.key secret: a user who has cluster.key can read and write your checkpoints through
    /// your aggregators.
    #[command(after_help = exit::CERT)]
    Init(CertInitArgs),
    /// Replace the key while jobs run
    ///
    /// The replacement takes three steps. First, cluster.pem gets the certificate of a new key, so that all processes
    /// trust both keys. Then the new key replaces the old key. Finally, the certificate of the old key is removed.
    /// Running processes read the files again before each new connection. If the command was interrupted, start it
    /// again: the command continues with the next step.
    #[command(after_help = exit::CERT)]
    Rotate(CertRotateArgs),
}

#[derive(Debug, Args)]
pub struct CertRotateArgs {
    /// Directory of cluster.key and cluster.pem
    #[arg(long, env = "MCR_CERT_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Time between two steps, after which all nodes see the changed files
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub wait: u64,
    /// Do only the next step. Use this option if the nodes do not share the directory, and copy the file that the
    /// command names to all nodes before the next step
    #[arg(long)]
    pub step: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CertInitArgs {
    /// Name of the cluster, as part of the name of each certificate
    #[arg(long, default_value = "cluster", value_name = "CLUSTER")]
    pub name: String,
    /// Directory of cluster.key and cluster.pem; for another directory than the default, set MCR_CERT_DIR for all
    /// processes
    #[arg(long, env = "MCR_CERT_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    pub command: JobCommand,
}

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Show the settings of the job in this directory, and where each value comes from
    ///
    /// The settings come from the cluster's file /etc/mcr/mcr.toml, the user's file mcr.toml, and the words that
    /// begin with mcr: in the job's comment. Other commands use these settings if --store, --to or --config is
    /// missing.
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Show {
        /// Show the settings as for a job with this comment, as in sbatch --comment "mcr:job=NAME,watch=DIR"
        #[arg(long, value_name = "COMMENT")]
        comment: Option<OsString>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// For SLURM's Prolog: report to the daemon of this node that a job begins
    ///
    /// A line on standard error says why a job is not saved.
    #[command(after_help = exit::HOOK)]
    Begin {
        #[command(flatten)]
        node: NodeSocket,
        /// Maximum time to wait for the daemon
        #[arg(long, default_value_t = 2, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
        wait: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// For SLURM's Epilog: report to the daemon of this node that a job is over, and wait until its files are
    /// committed
    ///
    /// The wait must be shorter than SLURM's PrologEpilogTimeout.
    #[command(after_help = exit::HOOK)]
    End {
        #[command(flatten)]
        node: NodeSocket,
        /// Maximum time to wait until the files are committed
        #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
        wait: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the jobs that the daemon of this node saves
    #[command(after_help = exit::ALL_OR_NOTHING)]
    List {
        #[command(flatten)]
        node: NodeSocket,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    #[command(flatten)]
    pub node: NodeSocket,
    /// Save only the jobs of the user who starts this daemon, without root
    #[arg(long)]
    pub own: bool,
    /// Lowest user ID (uid) of the users whose jobs are saved
    #[arg(long, default_value_t = 1000, value_name = "UID")]
    pub min_uid: u32,
    /// User of mcr gate on this node, who may start aggregators for jobs of other nodes
    #[arg(long, env = "MCR_GATE_USER", value_name = "NAME", conflicts_with = "own")]
    pub gate_user: Option<String>,
    /// Put each worker into a separate control group, below the group of this daemon
    ///
    /// For a unit of systemd with Delegate=. If no controller is delegated, the daemon logs one warning, and workers
    /// have no limits.
    #[arg(long)]
    pub cgroups: bool,
    /// With --cgroups: maximum memory of a worker, in MiB; 0: no limit
    ///
    /// A worker needs budget-mib of the tables cnc and anc, and up to 64 MiB more. The kernel kills a worker that
    /// needs more than this maximum. The job of the worker continues.
    #[arg(long, default_value_t = 4096, value_name = "MIB", value_parser = clap::value_parser!(u64).range(..=1 << 24))]
    pub worker_memory_mib: u64,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// For ExecStopPost= of the daemon's unit: let systemd start a process in the unit's control group
    ///
    /// Workers have no limits until the daemon has started. Always succeeds.
    #[command(hide = true)]
    ReleaseCgroups,
    /// Check that SLURM and this node are set up for mcr node
    ///
    /// Compares slurm.conf, the scripts of Prolog and Epilog, the daemon's socket and the cluster's file with the
    /// requirements of mcr node. Prints one line for each check: "ok", "warning" or "wrong", what was found, and what
    /// to do.
    #[command(after_help = exit::NODE_CHECK)]
    Check(NodeCheckArgs),
}

#[derive(Debug, Args)]
pub struct NodeCheckArgs {
    #[command(flatten)]
    pub node: NodeSocket,
    /// SLURM's configuration [default: /etc/slurm/slurm.conf, then /etc/slurm-llnl/slurm.conf]
    #[arg(long, env = "SLURM_CONF", value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// File with the record of the job
    #[arg(required_unless_present = "certificates")]
    pub record: Option<PathBuf>,
    /// Print the file cluster.pem of this user
    #[arg(long, value_name = "UID", conflicts_with = "record")]
    pub certificates: Option<u32>,
}

#[derive(Debug, Args)]
pub struct GateArgs {
    #[command(flatten)]
    pub node: NodeSocket,
    /// Directory in which the gate remembers the gates of each job
    #[arg(long, env = "STATE_DIRECTORY", default_value = "/var/lib/mcr-gate", value_name = "DIR")]
    pub state: PathBuf,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub node: NodeSocket,
    /// Serve the metrics at http://ADDRESS:PORT/metrics. Every user who can reach the port can read the names of jobs
    /// and users
    #[arg(long, env = "MCR_METRICS", default_value = "127.0.0.1:7118", value_name = "ADDRESS:PORT")]
    pub listen: std::net::SocketAddr,
    /// Write the log as JSON
    #[arg(long)]
    pub log_json: bool,
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
        /// Configuration file
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print every key with its default
    Defaults {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure each codec on each class of variables: ratio, and speed on one core
    Codecs(BenchCodecsArgs),
    /// Compute the tables and figures of the mcrEngine paper (SC12) from your checkpoints
    Schemes(BenchSchemesArgs),
    /// Compare replacement policies of the partition buffer, on generated or recorded traces
    Partitions(BenchPartitionsArgs),
    /// Measure what a checkpoint of many ranks costs the store and the daemons, in simulated jobs
    #[command(after_help = exit::ALL_OR_NOTHING)]
    Scale(BenchScaleArgs),
}

/// Options of `mcr bench codecs` and `mcr bench schemes`.
#[derive(Debug, Args)]
pub struct BenchInput {
    /// Directory that holds the checkpoint files
    pub dir: PathBuf,
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Number of ranks of a complete checkpoint [default: found from the files]
    #[arg(long)]
    pub ranks: Option<u32>,
    /// Checkpoint to measure [default: the newest]
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Start no new measurement after this time, and report what was not measured; 0: no limit
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub time_limit: u64,
    /// Maximum memory for segments, in MiB
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
    /// Number of bytes to measure, for example 64M. Of a larger checkpoint, only some ranks (at least one) and only
    /// some segments of each class are measured
    #[arg(long, default_value = "32M", value_parser = byte_count, value_name = "BYTES")]
    pub sample: u64,
    /// GROUP_SIZE: number of ranks merged into one container
    #[arg(long, default_value = "32", value_name = "N")]
    pub group_size: std::num::NonZeroU32,
    /// Show the N largest classes, and the sum of the other classes
    #[arg(long, default_value_t = 12, value_name = "N")]
    pub classes: usize,
    /// Profiles for which to show how many bytes `mcr save --profile` would store, and how long it would take
    #[arg(long, value_delimiter = ',', default_value = "fast,balanced,max,paper", value_name = "PROFILES")]
    pub profiles: Vec<Profile>,
    /// Number of times that a segment is encoded and decoded; the median is shown. Slow steps are repeated fewer
    /// times
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub repetitions: u32,
    /// Write plots of the ratios and of the rates (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Number of threads; 0: one thread for each core that the process may use. Several threads slow each other down
    /// a little
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

#[derive(Debug, Args)]
pub struct BenchSchemesArgs {
    #[command(flatten)]
    pub input: BenchInput,
    /// Number of bytes of each checkpoint to measure, for example 1G. Of a larger checkpoint, only some ranks (at
    /// least one) are measured
    #[arg(long, default_value = "256M", value_parser = byte_count, value_name = "BYTES")]
    pub sample: u64,
    /// Group sizes of figure 7. Figures 6, 8 and 9 use the largest group size. A size above the number of ranks is
    /// replaced by the number of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "SIZES")]
    pub group_sizes: Vec<std::num::NonZeroU32>,
    /// Block sizes of figure 8, for example 4K,64K. The other figures use the best block size
    #[arg(long, value_delimiter = ',', default_value = "512,4K,16K,64K,256K,1M", value_parser = block_bytes, value_name = "BYTES")]
    pub block_sizes: Vec<std::num::NonZeroU32>,
    /// Profiles to show in addition to the paper's chain
    #[arg(long, value_delimiter = ',', default_value = "fast,balanced", value_name = "PROFILES")]
    pub profiles: Vec<Profile>,
    /// Write a plot of each figure (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Number of threads; 0: one thread for each core that the process may use
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

#[derive(Debug, Args)]
pub struct ManualArgs {
    /// Directory that receives man/man1 and the directories of the shells
    pub dir: PathBuf,
}
