//! `mpib configurations`: the steps of a checkpoint and of a restart in the five configurations of mcrEngine's paper,
//! measured here, and computed at the size of the paper.

mod text;

use super::room::{Need, directories_suffice};
use super::{Failure, Output, at_least, bytes_not_zero, context, hosts};
use clap::Args;
use mpib::collectives::operation::Operation;
use mpib::comm::Comm;
use mpib::configurations::full::{
    AGGREGATED, AGNOSTIC, AWARE, COMPRESSED, FullSize, NOTHING, RESTART_STEPS, Rates, SAVE_STEPS,
};
use mpib::configurations::{Coding, FileNames, Restore, Save, Staged, Staging};
use mpib::daemons::{Load, Places, Restart, Stream, find_command};
use mpib::paths::back::TcpScatter;
use mpib::paths::{ReadFiles, TcpGather, WriteFiles};
use mpib::report::{Report, Row};
use mpib::stats::{StoppingRule, Summary};
use mpib::timing::{Timer, Timing};
use std::path::{Path, PathBuf};
use text::Measured;

#[derive(Args)]
pub struct Options {
    /// File of each rank of mpib, with {rank} in place of the rank's number, or {rank:4} for four digits; all nodes
    /// must see the files. Repeat the option if each rank has several files
    #[arg(long, required = true, value_name = "PATH", value_parser = FileNames::parse)]
    files: Vec<FileNames>,
    /// Number of rank 0 in the names of the files
    #[arg(long, default_value_t = 0, value_name = "N")]
    first_rank: usize,
    /// A directory on the parallel file system
    #[arg(long, value_name = "DIR")]
    pfs: PathBuf,
    /// Number of ranks of a group; at most the number of ranks
    #[arg(long, default_value_t = 32, value_name = "N")]
    group: usize,
    /// Data-aware scheme: aware, or aware-block
    #[arg(long, default_value = "aware", value_parser = ["aware", "aware-block"])]
    scheme: String,
    /// Profiles of mcr for the data-aware compression, separated by commas; paper has the codecs of the paper
    #[arg(long, value_delimiter = ',', default_value = "paper,fast")]
    profiles: Vec<String>,
    /// The command `mcr`; default: the first `mcr` in PATH
    #[arg(long, value_name = "FILE", env = "MCR")]
    mcr: Option<PathBuf>,
    /// Number of threads of each `mcr`; in the paper, an aggregator has one core
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// A directory in each node's memory, for copies of the files and for containers
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Number of repetitions; an interval needs at least 6
    #[arg(long, default_value_t = 7, value_name = "N")]
    reps: usize,
    /// End each series of repetitions after this time
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,
    #[command(flatten)]
    full: FullOptions,
    /// Directory for figure-12.svg and figure-13.svg, figure-12-full.svg and figure-13-full.svg (at the size of the
    /// paper), and figures-12-13.csv
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// The size and the machine for which times are computed. The defaults are the values of the paper.
#[derive(Args, Clone)]
struct FullOptions {
    /// Full size: number of ranks
    #[arg(long, default_value_t = 15_408, value_name = "N")]
    full_ranks: usize,
    /// Full size: number of ranks of a group
    #[arg(long, default_value_t = 32, value_name = "N")]
    full_group: usize,
    /// Full size: bytes of each rank. In the paper, each rank of Cactus has 58 to 90 MB, and 87 MB in section VII.B
    #[arg(long, value_parser = bytes_not_zero, default_value = "87MB", value_name = "BYTES")]
    full_bytes: usize,
    /// Full size: number of aggregators on a node, one for each core
    #[arg(long, default_value_t = 12, value_name = "N")]
    full_cores: usize,
    /// Full size: bytes per second of a node's network. InfiniBand QDR, the paper's network, carries 4 GB/s
    #[arg(long, value_parser = bytes_not_zero, default_value = "4GB", value_name = "BYTES")]
    full_network: usize,
    /// Full size: bytes per second of the store. The maximum of the paper's Lustre is 30 GB/s
    #[arg(long, value_parser = bytes_not_zero, default_value = "30GB", value_name = "BYTES")]
    full_store: usize,
}

impl FullOptions {
    fn size(&self) -> Result<FullSize, Failure> {
        let &Self { full_ranks: ranks, full_group: group, full_cores: node_aggregators, .. } = self;
        for (option, value) in [("--full-ranks", ranks), ("--full-group", group), ("--full-cores", node_aggregators)] {
            if value == 0 {
                return Err(Failure::Input(format!("{option} is 0; it must be at least 1")));
            }
        }
        Ok(FullSize {
            ranks,
            group,
            rank_bytes: self.full_bytes,
            node_aggregators,
            node_bytes_per_second: self.full_network,
            store_bytes_per_second: Some(self.full_store),
        })
    }
}

/// The times of `mcr save` and `mcr restart` with one coding, in memory.
struct Coded {
    save: Summary,
    restart: Summary,
    /// Processor time in seconds of all ranks for one run.
    save_processor_seconds: f64,
    restart_processor_seconds: f64,
    /// Bytes of all containers.
    stored_bytes: f64,
}

/// Name of the measurement of all steps together.
const WHOLE: &str = "whole by agents and aggregators";

/// Bytes that an aggregator's connections receive before it continues with the next piece.
const BUFFER_BYTES: usize = 256 << 20;

/// Measures operations, and checks the bytes of each.
struct Meter<'c> {
    comm: &'c Comm,
    timer: Timer,
    timing: Timing,
    /// The mean of the bytes of a rank.
    rank_bytes: usize,
}

impl Meter<'_> {
    fn time(&mut self, operation: &mut dyn Operation) -> Result<Summary, Failure> {
        let seconds = self.timer.measure(operation, self.rank_bytes, &self.timing)?;
        let mut wrong = [f64::from(u8::from(!operation.check(self.comm)?))];
        self.comm.all_max(&mut wrong)?;
        if wrong[0] != 0.0 {
            return Err(Failure::Output(format!("{}: wrong bytes", operation.name())));
        }
        Ok(seconds)
    }

    fn coded(&mut self, staged: &Staged, coding: Coding) -> Result<Coded, Failure> {
        let mut save = Save::new(staged, coding);
        let saved = self.time(&mut save)?;
        let mut restore = Restore::of(&save);
        let restored = self.time(&mut restore)?;
        let sum = |mine: f64| self.comm.all_numbers(mine).map(|all| all.into_iter().sum::<f64>());
        Ok(Coded {
            save: saved,
            restart: restored,
            save_processor_seconds: sum(save.processor_seconds())?,
            restart_processor_seconds: sum(restore.processor_seconds())?,
            stored_bytes: sum(save.stored_bytes() as f64)?,
        })
    }

    /// The time of a checkpoint from files in memory through agents and aggregators to containers on the PFS, and the
    /// time of a restart. `None` if a rank has several files, because the agents could take the first file for a whole
    /// checkpoint while the next file is published.
    fn whole(
        &mut self,
        options: &Options,
        mcr: &Path,
        group: usize,
        coding: Coding,
    ) -> Result<Option<[Summary; 2]>, Failure> {
        let [names] = &options.files[..] else { return Ok(None) };
        let load = Load {
            files: (0..self.comm.size()).map(|rank| names.of(options.first_rank + rank)).collect(),
            scheme: coding.scheme.into(),
            profile: coding.profile.into(),
            threads: options.threads,
        };
        let (memory, store) = (options.memory.clone(), options.pfs.clone());
        let places = Places { mcr: mcr.into(), memory, store, name: "save", load };
        let mut stream = Stream::new(self.comm, group, &places, &hosts(self.comm)?)?;
        let saved = self.time(&mut stream)?;
        let restored = self.time(&mut Restart::of(&stream))?;
        Ok(Some([saved, restored]))
    }

    /// Writes and reads the bytes of all ranks divided by `ratio`.
    fn store(&mut self, pfs: &Path, group: usize, ratio: f64) -> Result<[Summary; 2], Failure> {
        let comm = self.comm;
        let files = || Ok::<_, Failure>(WriteFiles::new(comm, "pfs", pfs, group)?.compressed(ratio));
        Ok([self.time(&mut files()?)?, self.time(&mut ReadFiles::of(files()?))?])
    }
}

/// The time that a coding needs in addition to the coding without compression. The repetitions of both are
/// independent, so the differences of any pairs of repetitions are samples of this time.
fn more(coded: &Summary, raw: &Summary) -> Summary {
    let pairs = coded.samples.iter().zip(&raw.samples);
    let differences: Vec<f64> = pairs.map(|(coded, raw)| coded - raw).collect();
    if differences.is_empty() {
        return coded.clone();
    }
    Summary { samples: differences.clone(), ..Summary::of(&differences, coded.confidence) }
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    at_least(comm, 2, "an aggregation")?;
    let rule = StoppingRule { max_seconds: options.time_limit, ..StoppingRule::fixed(options.reps) };
    rule.check().map_err(Failure::input)?;
    let full = options.full.size()?;
    let n = comm.size();
    let group = options.group.min(n);
    if group < 2 {
        return Err(Failure::Input("--group: a group has at least 2 ranks".into()));
    }
    let Some(mcr) = find_command(options.mcr.as_deref()) else {
        return Err(Failure::Input("no command mcr, which merges and compresses: --mcr FILE, or in PATH".into()));
    };
    let found = std::fs::metadata(&mcr).map(|_| ()).map_err(|e| format!("{}: {e}", mcr.display()));
    comm.agree(found).map_err(|error| Failure::Input(error.to_string()))?;
    if let Some(directory) = &options.figures {
        options.output.check_figures(comm, directory, text::CSV)?;
    }
    let rank_bytes = rank_bytes(comm, options)?;
    places_suffice(comm, options, group, rank_bytes)?;
    let title = format!(
        "Steps of a checkpoint and of a restart: {n} ranks, groups of {group}, {} of files",
        text::megabytes(rank_bytes as f64 * n as f64)
    );
    let journal = options.output.journal(comm, title.clone(), rule)?;
    let Options { files, first_rank, threads, memory, pfs, scheme, .. } = options;
    let (first_rank, threads) = (*first_rank, *threads);
    let staging = Staging { mcr: &mcr, threads, memory, files, first_rank };
    let timing = Timing { rule, warm_up: 1, ..Timing::default() };
    let mut meter = Meter { comm, timer: Timer::new(comm)?, timing, rank_bytes };
    let transfer = meter.time(&mut TcpGather::new(comm, group, BUFFER_BYTES)?)?;
    let transfer_back = meter.time(&mut TcpScatter::new(comm, group, BUFFER_BYTES)?)?;
    let all_bytes = rank_bytes as f64 * n as f64;
    // A rank keeps its own block, so an aggregator receives the blocks of the other ranks.
    let received = rank_bytes as f64 * (group - 1) as f64;
    let plain = |aggregated| Rates {
        configuration: String::new(),
        aggregated,
        ratio: 1.0,
        merge_seconds_per_byte: 0.0,
        compress_seconds_per_byte: 0.0,
        decompress_seconds_per_byte: 0.0,
        split_seconds_per_byte: 0.0,
        to_aggregator_bytes_per_second: received / transfer.median,
        from_aggregator_bytes_per_second: received / transfer_back.median,
        write_bytes_per_second: 0.0,
        read_bytes_per_second: 0.0,
    };
    let mut all: Vec<Measured> = Vec::new();
    let mut rows = Vec::new();
    let mut add = |one: Measured| {
        let steps = |kind: &'static str, names: [&'static str; 4], times: &[Option<Summary>; 4]| {
            let times = names.into_iter().zip(times.clone());
            let rows = times.filter_map(|(step, seconds)| {
                Some(Row::new(format!("{kind}/{}, {step}", one.name), rank_bytes, seconds?, &rule))
            });
            rows.collect::<Vec<_>>()
        };
        let mut all_rows = steps("save", SAVE_STEPS, &one.save);
        all_rows.extend(steps("restart", RESTART_STEPS, &one.restart));
        for (kind, seconds) in ["save", "restart"].into_iter().zip(one.whole.iter().flatten()) {
            all_rows.push(Row::new(format!("{kind}/{}, {WHOLE}", one.name), rank_bytes, seconds.clone(), &rule));
        }
        for row in all_rows {
            journal.add(&row);
            rows.push(row);
        }
        all.push(one);
    };
    let rate = |seconds: &Summary| all_bytes / seconds.median;
    // Without aggregation.
    let [write, read] = meter.store(pfs, 1, 1.0)?;
    let stored_alone = [rate(&write), rate(&read)];
    let rates = |of: &str, base: Rates, [write_bytes_per_second, read_bytes_per_second]: [f64; 2]| Rates {
        configuration: of.into(),
        write_bytes_per_second,
        read_bytes_per_second,
        ..base
    };
    add(Measured {
        name: NOTHING.into(),
        save: [None, None, None, Some(write)],
        restart: [Some(read), None, None, None],
        whole: None,
        rates: rates(NOTHING, plain(false), stored_alone),
    });
    let staged = Staged::new(comm, &staging, 1)?;
    let raw = meter.coded(&staged, Coding { scheme: "agnostic", profile: "raw" })?;
    let gzip = meter.coded(&staged, Coding { scheme: "agnostic", profile: "gzip" })?;
    drop(staged);
    let coded = compression(&gzip, &raw, all_bytes, plain(false));
    let [write, read] = meter.store(pfs, 1, coded.ratio)?;
    add(Measured {
        name: COMPRESSED.into(),
        save: [None, None, Some(more(&gzip.save, &raw.save)), Some(write)],
        restart: [Some(read), Some(more(&gzip.restart, &raw.restart)), None, None],
        whole: None,
        rates: rates(COMPRESSED, coded, stored_alone),
    });
    // With aggregation.
    let [write, read] = meter.store(pfs, group, 1.0)?;
    let stored = [rate(&write), rate(&read)];
    let staged = Staged::new(comm, &staging, group)?;
    let raw = meter.coded(&staged, Coding { scheme: "agnostic", profile: "raw" })?;
    let merged = |raw: &Coded| Rates {
        merge_seconds_per_byte: raw.save_processor_seconds / all_bytes,
        split_seconds_per_byte: raw.restart_processor_seconds / all_bytes,
        ..plain(true)
    };
    add(Measured {
        name: AGGREGATED.into(),
        save: [Some(transfer.clone()), Some(raw.save.clone()), None, Some(write)],
        restart: [Some(read), None, Some(raw.restart.clone()), Some(transfer_back.clone())],
        whole: meter.whole(options, &mcr, group, Coding { scheme: "agnostic", profile: "raw" })?,
        rates: rates(AGGREGATED, merged(&raw), stored),
    });
    let mut aggregated = |meter: &mut Meter, name: String, raw: &Coded, coding: Coding| -> Result<(), Failure> {
        let coded = meter.coded(&staged, coding)?;
        let of = compression(&coded, raw, all_bytes, merged(raw));
        let [write, read] = meter.store(pfs, group, of.ratio)?;
        add(Measured {
            save: [Some(transfer.clone()), Some(raw.save.clone()), Some(more(&coded.save, &raw.save)), Some(write)],
            restart: [
                Some(read),
                Some(more(&coded.restart, &raw.restart)),
                Some(raw.restart.clone()),
                Some(transfer_back.clone()),
            ],
            whole: meter.whole(options, &mcr, group, coding)?,
            rates: rates(&name, of, stored),
            name,
        });
        Ok(())
    };
    aggregated(&mut meter, AGNOSTIC.into(), &raw, Coding { scheme: "agnostic", profile: "gzip" })?;
    let raw = meter.coded(&staged, Coding { scheme, profile: "raw" })?;
    for profile in &options.profiles {
        aggregated(&mut meter, aware(profile), &raw, Coding { scheme, profile })?;
    }
    let words = text::Words { all: &all, full, ranks: n, group, rank_bytes };
    let report = Report {
        title: title.clone(),
        context: context(comm, Some(meter.timer.clock()), &[])?,
        rule,
        notes: words.notes(),
        found: words.json(),
        bars: Some(words.both()),
        rows,
        ..Report::default()
    };
    let figures = options.figures.iter().flat_map(|directory| words.files(directory)).collect::<Vec<_>>();
    journal.end();
    options.output.write_with(comm, &report, &figures)
}

/// Name of the data-aware configuration with a profile.
fn aware(profile: &str) -> String {
    if profile == PAPER { AWARE.into() } else { format!("{AWARE}, {profile}") }
}

/// The profile with the codecs of the paper.
const PAPER: &str = "paper";

/// The rates of a coding with compression.
fn compression(coded: &Coded, raw: &Coded, all_bytes: f64, base: Rates) -> Rates {
    let more = |coded: f64, raw: f64| (coded - raw).max(0.0) / all_bytes;
    Rates {
        ratio: all_bytes / coded.stored_bytes,
        compress_seconds_per_byte: more(coded.save_processor_seconds, raw.save_processor_seconds),
        decompress_seconds_per_byte: more(coded.restart_processor_seconds, raw.restart_processor_seconds),
        ..base
    }
}

/// The mean of the bytes of a rank, as in the paper. Rejects ranks without files.
fn rank_bytes(comm: &Comm, options: &Options) -> Result<usize, Failure> {
    let rank = comm.rank();
    let mine = options.files.iter().try_fold(0, |sum, names| {
        let path = names.of(options.first_rank + rank);
        let found =
            std::fs::metadata(&path).map_err(|e| format!("the file of rank {rank}: {}: {e}", path.display()))?;
        Ok(sum + found.len())
    });
    let mine = comm.agree(mine).map_err(|error: mpib::comm::CommError| Failure::Input(error.to_string()))?;
    let all: f64 = comm.all_numbers(mine as f64)?.into_iter().sum();
    match (all / comm.size() as f64).round() as usize {
        0 => Err(Failure::Input("--files: all files are empty".into())),
        bytes => Ok(bytes),
    }
}

/// Rejects directories without space.
fn places_suffice(comm: &Comm, options: &Options, group: usize, rank_bytes: usize) -> Result<(), Failure> {
    let hosts = hosts(comm)?;
    let led = (0..hosts.len()).filter(|rank| hosts[rank / group * group] == hosts[comm.rank()]).count();
    let here = hosts.iter().filter(|host| **host == hosts[comm.rank()]).count();
    // A step has the files, a container for each coding, and the restored files.
    let codings = 3 + options.profiles.len();
    let memory = rank_bytes.saturating_mul(led.max(here)).saturating_mul(2 + codings);
    directories_suffice(
        comm,
        &[vec![
            Need { option: "--memory", directory: &options.memory, bytes: memory },
            Need { option: "--pfs", directory: &options.pfs, bytes: rank_bytes.saturating_mul(2 * hosts.len()) },
        ]],
    )
}
