//! The agent's configuration. [`CncOptions`] is the configuration as the operator wrote it. [`CncConfig`] is the
//! checked configuration. Only a check of [`CncOptions`] can create a [`CncConfig`]. Each error names the key and the
//! value, and says how to correct the value.

mod unknown;
mod words;

pub use unknown::{UnknownKey, nearest};
use unknown::{line_of, unknown_keys};
pub use words::plain_words;

use crate::finder::Finder;
use crate::layout::{Explanation, Layout, LayoutError, ScanError, ScanLimits, list};
use crate::settle::{OwnRanks, SettleRules};
use crate::watch::WatchOptions;
use mcr_proto::tls::Security;
use mcr_proto::unix;
use mcrengine::codec::cores;
use mcrengine::ids::{FilePath, GroupId, Grouping, JobId, NameError};
use mcrengine::incarnation::IDENTITY_BYTES_MAX;
use nix::fcntl::OFlag;
use serde::Deserialize;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor, value};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The `[cnc]` table, as the operator wrote it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CncOptions {
    /// Name of the job. A job is one application run with all its restarts. No default. The environment variable
    /// `MCR_JOB` has priority.
    pub job: Option<String>,
    /// The directory below which the application writes its checkpoints. No default.
    pub watch: Option<PathBuf>,
    /// Which files form a checkpoint: the name of a preset, `"guess"`, a pattern, a list of patterns, or a table (see
    /// [`LayoutTable`]). Default `"guess"`.
    pub layout: LayoutOptions,
    /// Number of ranks of the application. Default: `SLURM_NTASKS`, else `SLURM_JOB_NTASKS`, else the number of ranks
    /// of the job's newest checkpoint.
    pub ranks: Option<u32>,
    /// Identity of this start of the job. All agents and restarts of one start have the same identity. Default:
    /// `MCR_INCARNATION`, else SLURM's job id and restart count, else no identity. None means that the job was
    /// started by hand.
    pub incarnation: Option<String>,
    /// The ranks whose files this agent announces, for example `"0-31,64"`. This option is needed if several agents
    /// see the same directory. Default: all ranks.
    pub local_ranks: Option<String>,
    /// Number of ranks in a group. Default 32.
    pub group_size: u32,
    /// `HOST:PORT` of each aggregator, or `HOST:FIRST-LAST` if the aggregator listens on one of these ports. Group g
    /// uses the aggregator at position g modulo the number of aggregators. No default.
    pub aggregators: Vec<String>,
    /// Name of this node, for messages and for the default name of the state file. Default: `SLURMD_NODENAME`, else
    /// the host name.
    pub node: Option<String>,
    /// Memory for variables that are being sent, in MiB, 8 to 1048576. Default 64.
    pub budget_mib: u64,
    /// Number of ranks that are described and hashed at the same time, each on one core, 1 to 64. Default 0, which
    /// means one rank for every 32 cores of the node, at least 1 and at most 4.
    pub capture_threads: u32,
    /// Minimum time at rest of a closed file before it is read, in milliseconds. Default 200.
    pub quiet_ms: u64,
    /// Minimum time at rest of a file if the kernel did not report that the file was closed, in milliseconds. Default
    /// 2000.
    pub scan_quiet_ms: u64,
    /// Minimum time at rest of a file in doubt, in milliseconds. An example of doubt is that the file's length
    /// contradicts its HDF5 superblock. Default 30000.
    pub doubt_quiet_ms: u64,
    /// Minimum time at rest of a checkpoint after its last event, before its ranks count as complete, in
    /// milliseconds. Default 500.
    pub checkpoint_quiet_ms: u64,
    /// Interval between scans of the whole directory, in seconds. 0: no periodic scans. Default: 60 if other nodes
    /// write to the file system, because the kernel does not report their changes, else 0.
    pub rescan_seconds: Option<u64>,
    /// Whether processes on other nodes also write to the watched directory. Default: determined from the type of the
    /// file system.
    pub shared_directory: Option<bool>,
    /// File for the state that a restart of the agent needs. Default: `JOB-NODE.state` in `STATE_DIRECTORY` (as
    /// systemd sets it), in `XDG_STATE_HOME/mcr`, or in `HOME/.local/state/mcr`.
    pub state_file: Option<PathBuf>,
    /// Whether to delete the application's files when their checkpoint is committed. Default false.
    pub delete_after_commit: bool,
    /// First delay before the agent connects again to an aggregator that does not answer, in milliseconds. The delay
    /// doubles after each failure. Default 100.
    pub reconnect_min_ms: u64,
    /// Maximum delay before the agent connects again to an aggregator that does not answer, in seconds. Default 30.
    pub reconnect_max_seconds: u64,
    /// Maximum time for the agent to end, in seconds. In this time the agent reads and sends all written files, and
    /// waits for the commits. Default 20, which is less than SLURM's KillWait of 30 s.
    pub drain_seconds: u64,
    /// `ADDRESS:PORT` at which metrics for Prometheus are served. The caller of `check` parses this text. Default:
    /// none.
    pub metrics: Option<String>,
}

impl Default for CncOptions {
    fn default() -> Self {
        let rules = SettleRules::default();
        Self {
            job: None,
            watch: None,
            layout: LayoutOptions::Named("guess".into()),
            ranks: None,
            incarnation: None,
            local_ranks: None,
            group_size: 32,
            aggregators: Vec::new(),
            node: None,
            budget_mib: 64,
            capture_threads: 0,
            quiet_ms: rules.quiet_ms,
            scan_quiet_ms: rules.scan_quiet_ms,
            doubt_quiet_ms: rules.doubt_quiet_ms,
            checkpoint_quiet_ms: rules.checkpoint_quiet_ms,
            rescan_seconds: None,
            shared_directory: None,
            state_file: None,
            delete_after_commit: false,
            reconnect_min_ms: 100,
            reconnect_max_seconds: 30,
            drain_seconds: 20,
            metrics: None,
        }
    }
}

/// The value of `layout`, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutOptions {
    /// A preset's name, a pattern, or `guess`.
    Named(String),
    /// Patterns or expressions with their options.
    Table(LayoutTable),
}

/// The table `layout = { ... }`. The table must contain exactly one of `preset`, `patterns` and `regex`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LayoutTable {
    /// Name of a preset.
    pub preset: Option<String>,
    /// Globs with `{checkpoint}` and `{rank}`. The first matching glob is used.
    pub patterns: Vec<String>,
    /// Regular expressions with the groups `checkpoint` and `rank`. The first matching expression is used.
    pub regex: Vec<String>,
    /// Number of the application's first rank, 0 or 1. Default 0.
    pub first_rank: u32,
    /// A glob with `{checkpoint}`: the name of a file whose existence marks a checkpoint as complete. Default: none.
    pub complete: Option<String>,
    /// Number of files with which a rank of a checkpoint is complete. Default: none, which means that the number is
    /// unknown.
    pub files_per_rank: Option<u32>,
}

impl<'de> Deserialize<'de> for LayoutOptions {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = LayoutOptions;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a preset's name, \"guess\", a list of patterns, or a table")
            }
            fn visit_str<E>(self, name: &str) -> Result<LayoutOptions, E> {
                Ok(LayoutOptions::Named(name.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LayoutOptions, A::Error> {
                let patterns = Vec::deserialize(value::SeqAccessDeserializer::new(list))?;
                Ok(LayoutOptions::Table(LayoutTable { patterns, ..LayoutTable::default() }))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LayoutOptions, A::Error> {
                LayoutTable::deserialize(value::MapAccessDeserializer::new(map)).map(LayoutOptions::Table)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("{}: cannot be read", file.display())]
    Unreadable {
        /// The configuration file.
        file: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The text is not TOML, or a value has the wrong type.
    #[error("{}:{line}: {what}", file.display())]
    Syntax {
        /// The configuration file.
        file: PathBuf,
        /// Line number, starting at 1.
        line: usize,
        /// The message of the parser.
        what: String,
    },
    /// An unknown key.
    #[error("{0}")]
    UnknownKey(Box<UnknownKey>),
    /// A required key is missing.
    #[error("cnc.{key} is missing; {way_out}")]
    Missing {
        /// The key.
        key: &'static str,
        /// How to correct the error.
        way_out: &'static str,
    },
    /// An invalid value.
    #[error("cnc.{key} is {value}; {way_out}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// How to correct the error.
        way_out: String,
    },
    /// An invalid layout.
    #[error("cnc.layout")]
    Layout(#[from] LayoutError),
}

/// Maximum length of a configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reads and parses a configuration file.
pub fn load_toml<T: DeserializeOwned>(file: &Path) -> Result<T, ConfigError> {
    load(file, &|_| Ok(()))
}

/// Reads and parses a configuration file like [`load_toml`]. For files that the user did not name, but that the
/// program found in a directory. Therefore the file must belong to this user or to root.
pub fn load_found_toml<T: DeserializeOwned>(file: &Path) -> Result<T, ConfigError> {
    let own = nix::unistd::geteuid().as_raw();
    load(file, &|about| match about.uid() {
        owner if owner == own || owner == 0 => Ok(()),
        owner => Err(format!("it belongs to another user (uid {owner}); copy it to a file of your own")),
    })
}

fn load<T: DeserializeOwned>(
    file: &Path,
    check: &dyn Fn(&std::fs::Metadata) -> Result<(), String>,
) -> Result<T, ConfigError> {
    use std::io::{Error, ErrorKind, Read};
    let mut text = String::new();
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, why));
    // Opening a FIFO for reading would wait for a writer.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let open = || std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(file);
    let read = |opened: std::fs::File| {
        let about = opened.metadata()?;
        if !about.is_file() {
            return refuse("it is not a regular file".into());
        }
        check(&about).or_else(refuse)?;
        let length = opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        if length as u64 > FILE_BYTES_MAX {
            return refuse(format!("it has more than {} KiB", FILE_BYTES_MAX >> 10));
        }
        Ok(())
    };
    open().and_then(read).map_err(|source| ConfigError::Unreadable { file: file.to_owned(), source })?;
    parse_toml(&text, file)
}

/// Parses a configuration. `file` is used only in messages. The error for unknown keys names all of them, each with
/// the most similar known key.
pub fn parse_toml<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| match unknown_keys::<T>(text, file) {
        Some(unknown) => ConfigError::UnknownKey(Box::new(unknown)),
        None => {
            let (file, line) = (file.to_owned(), line_of(text, &error));
            ConfigError::Syntax { file, line, what: plain_words(error.message()) }
        }
    })
}

/// The checked configuration of the agent.
#[derive(Clone, Debug)]
pub struct CncConfig {
    /// The job.
    pub job: JobId,
    /// Name of this node.
    pub node: String,
    /// The watched directory.
    pub watch: PathBuf,
    /// Which files form a checkpoint.
    pub layout: LayoutChoice,
    /// Number of ranks. `None` if neither the job nor the configuration states the number.
    pub ranks: Option<u32>,
    /// The source of the number of ranks, for messages.
    pub ranks_from: &'static str,
    /// Identity of this start of the job. Empty if the job was started by hand.
    pub incarnation: String,
    /// The ranks whose files this agent announces.
    pub own: OwnRanks,
    /// Number of ranks in a group, at least 1.
    pub group_size: u32,
    /// Whether only aggregators that serve this start of the job may be used. Aggregators of other jobs may listen on
    /// the same ports.
    pub own_aggregators: bool,
    /// `HOST:PORT` or `HOST:FIRST-LAST` of each aggregator; at least one.
    pub aggregators: Vec<String>,
    /// Finds the aggregators, if their addresses are not configured. With a finder, `aggregators` has only names for
    /// log messages. The program sets this value, not the configuration file.
    pub finder: Option<Arc<dyn Finder>>,
    /// How connections to aggregators are protected. The configuration cannot set this field.
    pub security: Security,
    /// Memory for variables that are being sent, in bytes.
    pub budget_bytes: u64,
    /// Number of ranks that are captured at the same time, at least 1.
    pub capture_threads: usize,
    /// How long files and checkpoints must stay unchanged before they count as finished.
    pub rules: SettleRules,
    /// Interval between scans of the whole directory, see [`CncOptions::rescan_seconds`].
    pub rescan: Option<Duration>,
    /// Whether processes on other nodes also write to the watched directory, see [`CncOptions::shared_directory`].
    pub shared_directory: Option<bool>,
    /// File for the state that a restart of the agent needs.
    pub state_file: PathBuf,
    /// Whether the application's files are deleted when their checkpoint is committed.
    pub delete_after_commit: bool,
    /// First delay before the agent connects to an aggregator again.
    pub reconnect_min: Duration,
    /// Maximum delay before the agent connects to an aggregator again.
    pub reconnect_max: Duration,
    /// Maximum time for the agent to end, see [`CncOptions::drain_seconds`].
    pub drain: Duration,
    /// Time at which this configuration was checked, which is about the start of the process, in nanoseconds since
    /// 1970.
    pub began_ns: i64,
    /// Whether the application had ended with success, with all its processes, before the agent starts. Not a key of
    /// the configuration.
    pub has_ended_well: bool,
    /// Whether the number of ranks was counted in the files of an application that may have failed. Not a key of the
    /// configuration.
    pub are_ranks_uncertain: bool,
    /// Whether the agent starts only after the end of an application that may have failed, because the file names show
    /// no checkpoints. Not a key of the configuration.
    pub is_after_failure: bool,
    /// Files that were written so shortly before the start that their times do not show it, and their modification
    /// times. The application has not written these files.
    pub written_before: BTreeMap<FilePath, SystemTime>,
    /// Paths below [`Self::watch`], relative to it, that do not belong to the application: the store and the state file.
    pub leave_out: Vec<PathBuf>,
}

/// The choice of a layout: a known layout, one checkpoint, or a guess.
#[derive(Clone, Debug)]
pub enum LayoutChoice {
    /// The configuration states the layout.
    Known(Layout),
    /// All files form one checkpoint, which is named after the directory.
    Whole,
    /// The layout must be guessed from the file names.
    Guess,
}

impl LayoutChoice {
    /// Whether file names may contain the number of a rank. The result is true if the layout is not yet guessed.
    pub fn may_have_ranks(&self) -> bool {
        match self {
            Self::Known(layout) => layout.has_ranks(),
            Self::Whole => false,
            Self::Guess => true,
        }
    }
}

impl LayoutOptions {
    /// Checks the layout as the operator wrote it.
    pub fn check(&self) -> Result<LayoutChoice, ConfigError> {
        let table = match self {
            Self::Named(name) if name == "guess" => return Ok(LayoutChoice::Guess),
            Self::Named(name) if name == "single" => return Ok(LayoutChoice::Whole),
            Self::Named(pattern) if pattern.contains('{') => {
                return Ok(LayoutChoice::Known(Layout::from_patterns(&[pattern], 0)?));
            }
            Self::Named(name) => return Ok(LayoutChoice::Known(Layout::named(name)?)),
            Self::Table(table) => table,
        };
        let refuse = |key, value: String, way_out: &str| ConfigError::Value { key, value, way_out: way_out.to_owned() };
        if table.first_rank > 1 {
            return Err(refuse("layout.first-rank", table.first_rank.to_string(), "it must be 0 or 1"));
        }
        if table.files_per_rank == Some(0) {
            return Err(refuse(
                "layout.files-per-rank",
                "0".into(),
                "it must be at least 1; leave it out if it varies",
            ));
        }
        let mut layout = match (&table.preset, &table.patterns[..], &table.regex[..]) {
            (Some(name), [], []) => Layout::named(name)?,
            (None, patterns @ [_, ..], []) => Layout::from_patterns(patterns, table.first_rank)?,
            (None, [], regexes @ [_, ..]) => Layout::from_regexes(regexes, table.first_rank)?,
            (None, [], []) => Layout::from_patterns::<&str>(&[], 0)?,
            _ => {
                let way_out = "it must contain only one of preset, patterns and regex";
                return Err(refuse("layout", "ambiguous".into(), way_out));
            }
        };
        if let Some(complete) = &table.complete {
            layout = layout.with_marker(complete)?;
        }
        if let Some(files) = table.files_per_rank {
            layout = layout.with_files_per_rank(files);
        }
        Ok(LayoutChoice::Known(layout))
    }
}

impl CncOptions {
    /// Checks all values. Defaults come from the environment of this process.
    pub fn check(&self) -> Result<CncConfig, ConfigError> {
        self.check_with(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Checks all values. Defaults come from the given environment.
    pub fn check_with(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<CncConfig, ConfigError> {
        let job = environment("MCR_JOB").or_else(|| self.job.clone()).ok_or(ConfigError::Missing {
            key: "job",
            way_out: "write job = \"NAME\", the same name for a run and its restarts, or set MCR_JOB",
        })?;
        let job: JobId = job.parse().map_err(|error: NameError| ConfigError::Value {
            key: "job",
            value: format!("{job:?}"),
            way_out: format!("it names a directory in the store: {error}"),
        })?;
        let watch = self.watch.clone().filter(|path| !path.as_os_str().is_empty()).ok_or(ConfigError::Missing {
            key: "watch",
            way_out: "write watch = \"DIRECTORY\", where the application writes its checkpoints",
        })?;
        let node = self.node.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| node_name(environment));
        if node.len() > 255 || node.contains(['/', '\0']) {
            let way_out = "it must be a name of at most 255 bytes, without a slash".to_owned();
            return Err(ConfigError::Value { key: "node", value: format!("{node:?}"), way_out });
        }
        let layout = self.layout.check()?;
        let layout_ranks = (!layout.may_have_ranks()).then_some(1);
        let ranks = match self.ranks {
            Some(ranks @ 2..) if layout_ranks.is_some() => {
                let way_out = "the file names of this layout contain no rank, so that all files of a checkpoint \
                               belong to rank 0; leave ranks out, or write {rank} in the layout where a name contains \
                               the rank";
                return Err(ConfigError::Value { key: "ranks", value: ranks.to_string(), way_out: way_out.into() });
            }
            // SLURM's number of tasks is not used here, because this layout has one rank for any number of tasks.
            _ if layout_ranks.is_some() => Some(("the layout, whose names contain no rank", "1".into(), layout_ranks)),
            Some(ranks) => Some(("ranks in [cnc] or --ranks", ranks.to_string(), Some(ranks))),
            None => ["SLURM_NTASKS", "SLURM_JOB_NTASKS"].into_iter().find_map(|name| {
                let value = environment(name)?;
                let ranks = value.parse().ok();
                Some((name, format!("{value} (by {name})"), ranks))
            }),
        };
        let (ranks, ranks_from) = match ranks {
            None => (None, ""),
            Some((from, _, Some(ranks))) if Grouping::new(ranks, 1).is_some() => (Some(ranks), from),
            Some((_, value, _)) => {
                let way_out = format!("it must be 1 to {}", mcrengine::ids::RANKS_MAX);
                return Err(ConfigError::Value { key: "ranks", value, way_out });
            }
        };
        self.check_numbers()?;
        if self.aggregators.is_empty() {
            let way_out = "write aggregators = [\"HOST:PORT\"], one for each aggregator";
            return Err(ConfigError::Missing { key: "aggregators", way_out });
        }
        self.aggregators.iter().try_for_each(|address| check_address(address))?;
        let state_file = match &self.state_file {
            Some(path) => path.clone(),
            None => default_state_directory(environment)
                .ok_or(ConfigError::Missing { key: "state-file", way_out: "write state-file = \"FILE\", or set HOME" })?
                .join(format!("{job}-{node}.state")),
        };
        Ok(CncConfig {
            job,
            node,
            watch,
            layout,
            ranks,
            ranks_from,
            incarnation: incarnation_of(self.incarnation.as_deref(), environment)?,
            own_aggregators: false,
            own: self.local_ranks.as_deref().map_or_else(|| Ok(OwnRanks::all()), own_ranks)?,
            group_size: self.group_size,
            aggregators: self.aggregators.clone(),
            finder: None,
            security: Security::Plain,
            budget_bytes: self.budget_mib << 20,
            capture_threads: match self.capture_threads {
                0 => capture_threads(cores()),
                threads => threads as usize,
            },
            rules: SettleRules {
                quiet_ms: self.quiet_ms,
                scan_quiet_ms: self.scan_quiet_ms,
                doubt_quiet_ms: self.doubt_quiet_ms,
                checkpoint_quiet_ms: self.checkpoint_quiet_ms,
                local: false,
            },
            rescan: self.rescan_seconds.map(Duration::from_secs),
            shared_directory: self.shared_directory,
            state_file,
            delete_after_commit: self.delete_after_commit,
            reconnect_min: Duration::from_millis(self.reconnect_min_ms),
            reconnect_max: Duration::from_secs(self.reconnect_max_seconds),
            drain: Duration::from_secs(self.drain_seconds),
            began_ns: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
            has_ended_well: false,
            are_ranks_uncertain: false,
            is_after_failure: false,
            written_before: BTreeMap::new(),
            leave_out: Vec::new(),
        })
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        for (key, value, range) in [
            ("group-size", u64::from(self.group_size), 1..=u64::from(mcrengine::ids::RANKS_MAX)),
            ("budget-mib", self.budget_mib, 8..=1 << 20),
            ("capture-threads", u64::from(self.capture_threads), 0..=64),
            ("quiet-ms", self.quiet_ms, 0..=DAY_MS),
            ("scan-quiet-ms", self.scan_quiet_ms, 0..=DAY_MS),
            ("doubt-quiet-ms", self.doubt_quiet_ms, 0..=DAY_MS),
            ("checkpoint-quiet-ms", self.checkpoint_quiet_ms, 0..=DAY_MS),
            ("rescan-seconds", self.rescan_seconds.unwrap_or(0), 0..=DAY_MS / 1000),
            ("reconnect-min-ms", self.reconnect_min_ms, 1..=DAY_MS),
            ("reconnect-max-seconds", self.reconnect_max_seconds, 1..=DAY_MS / 1000),
            ("drain-seconds", self.drain_seconds, 1..=DAY_MS / 1000),
        ] {
            if !range.contains(&value) {
                let way_out = format!("it must be {} to {}", range.start(), range.end());
                return Err(ConfigError::Value { key, value: value.to_string(), way_out });
            }
        }
        if self.reconnect_min_ms > self.reconnect_max_seconds * 1000 {
            let value = format!("{} s", self.reconnect_max_seconds);
            let way_out = format!("it must not be below reconnect-min-ms, {} ms", self.reconnect_min_ms);
            return Err(ConfigError::Value { key: "reconnect-max-seconds", value, way_out });
        }
        Ok(())
    }
}

/// Default number of capture threads on a node with this number of cores. The number is small, so that the threads
/// hardly slow the application.
fn capture_threads(cores: usize) -> usize {
    const CORES_PER_THREAD: usize = 32;
    const THREADS_MAX: usize = 4;
    (cores / CORES_PER_THREAD).clamp(1, THREADS_MAX)
}

/// Parses a port, or a range of ports.
fn ports_of(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u16, u16) = (port(first)?, port(last)?);
    (0 < first && first <= last).then_some(first..=last)
}

/// Splits `HOST:FIRST-LAST` into addresses with one port each, in the order in which an agent tries them. If the
/// address has another form, the result is the address itself.
pub fn one_by_one(address: &str) -> Vec<String> {
    if unix::path_of(address).is_some() {
        return vec![address.to_owned()];
    }
    match address.rsplit_once(':').and_then(|(host, ports)| Some((host, ports_of(ports)?))) {
        Some((host, ports)) => ports.map(|port| format!("{host}:{port}")).collect(),
        None => vec![address.to_owned()],
    }
}

/// Whether the text is `HOST:PORT`.
pub fn is_host_and_port(address: &str) -> bool {
    check_address(address).is_ok() && one_by_one(address).len() == 1
}

fn check_address(address: &str) -> Result<(), ConfigError> {
    let plain = |host: &str| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@:[]".contains(c));
    let is_host = |host: &str| match host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => plain(host),
    };
    match address.rsplit_once(':') {
        Some((host, ports)) if is_host(host) && ports_of(ports).is_some() => Ok(()),
        _ => Err(ConfigError::Value {
            key: "aggregators",
            value: format!("{address:?}"),
            way_out: "each must be HOST:PORT or HOST:FIRST-LAST, such as \"node17:7117\", \"node17:7117-7180\" or \
                      \"[fe80::1]:7117\""
                .to_owned(),
        }),
    }
}

/// Parses ranks such as `0-31,64`, in the notation of SLURM and taskset.
fn own_ranks(text: &str) -> Result<OwnRanks, ConfigError> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && last < mcrengine::ids::RANKS_MAX).then_some(first..=last)
    };
    text.split(',').map(range).collect::<Option<_>>().map(OwnRanks::only).ok_or_else(|| ConfigError::Value {
        key: "local-ranks",
        value: format!("{text:?}"),
        way_out: "it must be ranks and ranges of them, such as \"0-31,64\"".to_owned(),
    })
}

/// Name of this node: SLURM's name, else the host name.
pub fn node_name(environment: &dyn Fn(&str) -> Option<String>) -> String {
    environment("SLURMD_NODENAME")
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned()))
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// The absolute path of a directory, without symbolic links. The last component need not exist.
pub fn real_path(dir: &Path) -> String {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let real = std::fs::canonicalize(&dir).ok().or_else(|| {
        let (above, name) = (dir.parent()?, dir.file_name()?);
        Some(std::fs::canonicalize(above).ok()?.join(name))
    });
    real.unwrap_or(dir).to_string_lossy().into_owned()
}

/// Identity of this start of the job: the configured identity, else `MCR_INCARNATION`, else SLURM's job id and
/// restart count. Empty if none of these exists.
pub fn incarnation_of(
    written: Option<&str>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    let text = |name: &str| environment(name).filter(|value| !value.is_empty());
    let slurm = || {
        let job = text("SLURM_JOB_ID")?;
        match text("SLURM_RESTART_COUNT").filter(|count| count != "0") {
            Some(count) => Some(format!("SLURM job {job}, restart {count}")),
            None => Some(format!("SLURM job {job}")),
        }
    };
    let identity = written.map(str::to_owned).or_else(|| text("MCR_INCARNATION")).or_else(slurm).unwrap_or_default();
    match identity.len() <= IDENTITY_BYTES_MAX && !identity.chars().any(char::is_control) {
        true => Ok(identity),
        false => Err(ConfigError::Value {
            key: "incarnation",
            value: format!("{identity:?}"),
            way_out: format!("it must have at most {IDENTITY_BYTES_MAX} bytes, all of them printable"),
        }),
    }
}

/// SLURM's job number and restart count in an identity that [`incarnation_of`] made from SLURM's variables.
pub fn slurm_start(identity: &str) -> Option<(&str, u32)> {
    let job = identity.strip_prefix("SLURM job ")?;
    match job.split_once(", restart ") {
        Some((job, count)) => Some((job, count.parse().ok()?)),
        None => Some((job, 0)),
    }
}

fn default_state_directory(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // `STATE_DIRECTORY` may contain several directories, separated by colons. The first directory is used.
    let systemd = environment("STATE_DIRECTORY").and_then(|all| all.split(':').next().map(PathBuf::from));
    let user = || environment("XDG_STATE_HOME").map(PathBuf::from);
    let home = || environment("HOME").map(|home| Path::new(&home).join(".local/state"));
    systemd.or_else(|| user().or_else(home).map(|directory| directory.join("mcr")))
}

impl CncConfig {
    /// Returns the layout. If necessary, the layout is guessed from the files below the watched directory. If a guess
    /// is not certain, for example because there are no files yet, the caller should guess again later.
    /// `all_written`: the application writes no more files.
    pub fn resolve_layout(&self, all_written: bool) -> Result<(Layout, Option<Explanation>), ScanError> {
        match &self.layout {
            LayoutChoice::Known(layout) => Ok((layout.clone(), None)),
            LayoutChoice::Whole => Ok((Layout::whole(&self.watch), None)),
            LayoutChoice::Guess => {
                let listing = list(&self.watch, &self.scan_limits())?;
                let (layout, explanation) = match all_written {
                    true => Layout::guess(&listing, &self.watch, self.ranks),
                    false => Layout::guess_while_running(&listing, &self.watch, self.ranks),
                };
                Ok((layout, Some(explanation)))
            }
        }
    }

    /// The address of a group's aggregator.
    pub fn aggregator_of(&self, group: GroupId) -> &str {
        &self.aggregators[group.0 as usize % self.aggregators.len()]
    }

    /// The options of the watcher.
    pub fn watch_options(&self) -> WatchOptions {
        let (local, own) = (self.shared_directory.map(|shared| !shared), self.own.clone());
        let limits = self.scan_limits();
        WatchOptions { rules: self.rules, rescan: self.rescan, own, local, limits, ..WatchOptions::default() }
    }

    /// The limits of a scan of the watched directory.
    pub fn scan_limits(&self) -> ScanLimits {
        ScanLimits { leave_out: self.leave_out.clone(), ..ScanLimits::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::{FilePath, Rank};

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct File {
        cnc: CncOptions,
    }

    fn parse(text: &str) -> Result<CncOptions, ConfigError> {
        parse_toml::<File>(text, Path::new("mcr.toml")).map(|file| file.cnc)
    }

    const LEAST: &str =
        "[cnc]\njob = \"heat\"\nwatch = \"/scratch/heat\"\naggregators = [\"io1:7447\", \"[::1]:7447\"]\n";

    /// The printed text of an error and of its cause.
    fn told(error: &dyn std::error::Error) -> String {
        let cause = error.source().map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    }

    fn check(more: &str, environment: &[(&str, &str)]) -> Result<CncConfig, ConfigError> {
        let get = |name: &str| {
            let home = [("HOME", "/home/ann")];
            environment.iter().chain(&home).find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        parse(&format!("{LEAST}{more}")).expect("it parses").check_with(&get)
    }

    #[test]
    fn the_least_configuration_has_documented_defaults() {
        let config = check("node = \"n3\"", &[]).expect("valid");
        assert_eq!((config.job.as_str(), config.watch.as_path()), ("heat", Path::new("/scratch/heat")));
        assert_eq!((config.group_size, config.budget_bytes, config.ranks), (32, 64 << 20, None));
        assert_eq!(config.state_file, Path::new("/home/ann/.local/state/mcr/heat-n3.state"));
        assert!(matches!(config.layout, LayoutChoice::Guess) && !config.delete_after_commit);
        assert_eq!(config.own, OwnRanks::all());
        assert_eq!(config.aggregator_of(GroupId(2)), "io1:7447");
        assert_eq!(config.aggregator_of(GroupId(3)), "[::1]:7447");
        assert_eq!(config.watch_options().rules, SettleRules::default());
        assert_eq!([2, 63, 64, 96, 256].map(capture_threads), [1, 1, 2, 3, 4]);
        assert_eq!(check("capture-threads = 7", &[]).expect("valid").capture_threads, 7);
    }

    #[test]
    fn the_environment_fills_in_and_the_job_is_its_own() {
        let slurm = [("SLURM_NTASKS", "128"), ("SLURMD_NODENAME", "n7"), ("STATE_DIRECTORY", "/var/lib/mcr:/x")];
        let config = check("", &slurm).expect("valid");
        assert_eq!((config.ranks, config.node.as_str()), (Some(128), "n7"));
        assert_eq!(config.state_file, Path::new("/var/lib/mcr/heat-n7.state"));
        assert_eq!(check("ranks = 64", &slurm).expect("valid").ranks, Some(64), "the file has priority over SLURM");
        assert_eq!(check("", &[("MCR_JOB", "other")]).expect("valid").job.as_str(), "other");
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_known_one() {
        let error = parse("[cnc]\njob = \"x\"\nagregators = []\n").expect_err("misspelt").to_string();
        assert_eq!(error, "mcr.toml:3: unknown key \"agregators\" in [cnc]; did you mean \"aggregators\"?");
        let error = parse("[cnc]\ngroup_size = 8\n").expect_err("underscore").to_string();
        assert!(error.contains("did you mean \"group-size\"?"), "{error}");
        let error = parse("[cnc]\nlayout = { pattern = [\"x\"] }\n").expect_err("misspelt").to_string();
        assert!(error.contains("unknown key \"pattern\"") && error.contains("did you mean \"patterns\"?"), "{error}");
        let two = "[cnc]\njob = \"x\"\nagregators = [\"a:1\"]\nranks = 1\nwacht = \"/x\"\n";
        let error = parse(two).expect_err("both are misspelt").to_string();
        let expected = "mcr.toml:3: unknown key \"agregators\" in [cnc]; did you mean \"aggregators\"? \
                        mcr.toml:5: unknown key \"wacht\" in [cnc]; did you mean \"watch\"?";
        assert_eq!(error, expected);
        let error = parse("\n[cnk]\n").expect_err("misspelt").to_string();
        assert!(
            error.contains("unknown key \"cnk\" in the top of the file;") && error.contains("did you mean \"cnc\"?"),
            "{error}"
        );
        let error = parse("[cnc]\nzzz = 1\n").expect_err("nothing like it").to_string();
        assert!(error.contains("the keys are job, watch"), "{error}");
        let error = parse("[cnc]\njob = 3\n").expect_err("not text").to_string();
        assert!(error.starts_with("mcr.toml:2: ") && error.contains("text in quotes"), "{error}");
        assert!(parse("[cnc\n").expect_err("not TOML").to_string().starts_with("mcr.toml:1: "));
    }

    #[test]
    fn refusals_name_the_key_the_value_and_the_way_out() {
        for (more, words) in [
            ("budget-mib = 7", &["cnc.budget-mib is 7", "8 to 1048576"][..]),
            ("group-size = 0", &["cnc.group-size is 0", "1 to"]),
            ("ranks = 0", &["cnc.ranks is 0", "1 to"]),
            ("ranks = 4\nlayout = \"{checkpoint}.h5\"", &["cnc.ranks is 4", "leave ranks out"]),
            ("local-ranks = \"3-1\"", &["cnc.local-ranks is \"3-1\"", "0-31,64"]),
            ("reconnect-min-ms = 60000", &["cnc.reconnect-max-seconds is 30 s", "60000 ms"]),
            ("layout = \"enzzo\"", &["cnc.layout", "\"enzzo\"", "did you mean \"enzo\"?"]),
            ("layout = { patterns = [\"a/{rank}\"] }", &["cnc.layout", "a/{rank}", "{checkpoint}"]),
            ("layout = { preset = \"enzo\", regex = [\"x\"] }", &["cnc.layout", "one of preset, patterns and regex"]),
            ("layout = { preset = \"enzo\", files-per-rank = 0 }", &["files-per-rank is 0", "at least 1"]),
            ("layout = { patterns = [\"{checkpoint}\"], first-rank = 2 }", &["first-rank is 2", "0 or 1"]),
        ] {
            let error = told(&check(more, &[]).expect_err(more));
            assert!(words.iter().all(|word| error.contains(word)), "{more}: {error}");
        }
        let error = check("", &[("SLURM_NTASKS", "many")]).expect_err("no number").to_string();
        assert!(error.contains("many (by SLURM_NTASKS)"), "{error}");
        for bad in ["io1", "io1:", ":7447", "io1:0", "io1:99999", "http://io1:7447", "::1:7447", "[x]:7447", "a b:1"] {
            let error = check_address(bad).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("HOST:PORT"), "{error}");
        }
        for (text, key) in [("", "job"), ("job = \"a\"", "watch"), ("job = \"a\"\nwatch = \"/x\"", "aggregators")] {
            let options = parse(&format!("[cnc]\n{text}\n")).expect("parses");
            let error = options.check_with(&|_| None).expect_err(key).to_string();
            assert!(error.starts_with(&format!("cnc.{key} is missing; write {key} = ")), "{error}");
        }
        let error = check("", &[("MCR_JOB", "a/b")]).expect_err("a slash").to_string();
        assert!(error.contains("cnc.job is \"a/b\"") && error.contains("slash"), "{error}");
    }

    #[test]
    fn layouts_may_be_a_name_a_list_or_a_table() {
        let place = |more: &str, path: &str| {
            let LayoutChoice::Known(layout) = check(more, &[]).expect(more).layout else { return None };
            layout.place(&FilePath::new(path.as_bytes()).expect("valid")).map(|placed| placed.rank)
        };
        assert_eq!(place("layout = \"enzo\"", "DD0007/DD0007.cpu0003"), Some(Some(Rank(3))));
        assert_eq!(place("layout = [\"{checkpoint}/r{rank}\"]", "a/r3"), Some(Some(Rank(3))));
        let table = "layout = { regex = ['(?P<checkpoint>t\\d+)/(?P<rank>\\d+)'], first-rank = 1 }";
        assert_eq!(place(table, "t7/3"), Some(Some(Rank(2))));
        let table = "[cnc.layout]\npatterns = [\"{checkpoint}/r{rank}\"]\ncomplete = \"{checkpoint}/DONE\"";
        assert_eq!(place(table, "t7/DONE"), Some(None));
        assert!(check("local-ranks = \"0-31, 64\"", &[]).expect("valid").own.takes(Rank(64)));
    }
}
