//! `mpib paths`: measures the transfer paths of a checkpoint on this machine, and recommends a group size.

use super::room::{Gathers, Need, directories_suffice, memory_suffices};
use super::{Common, Failure, bytes_not_zero, context, hosts};
use clap::Args;
use mpib::collectives::operation::Operation;
use mpib::comm::{Comm, CommError};
use mpib::daemons::{Load, Places, Restart, Stream, find_command};
use mpib::paths::shared::{How, SharedFile};
use mpib::paths::{GroupGather, ReadFiles, TcpGather, WriteFiles};
use mpib::report::{Plot, Quantity, Report, Row, people, size};
use mpib::stats::{Estimate, Interval, StoppingRule, Summary};
use mpib::timing::{Timer, Timing};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    /// Bytes of each rank's checkpoint
    #[arg(long, value_parser = bytes_not_zero, default_value = "1MiB")]
    bytes: usize,
    /// Group sizes to test, separated by commas; sizes above the number of ranks become the number of ranks
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8, 16, 32])]
    groups: Vec<usize>,
    /// Maximum bytes of an aggregator's buffer; larger blocks of a group are gathered in pieces
    #[arg(long, value_parser = bytes_not_zero, default_value = "256MiB")]
    buffer: usize,
    /// Gathers to measure, separated by commas: native, linear-nonblocking, binomial, lanes-1, lanes-2, lanes-4, tcp
    #[arg(long, value_delimiter = ',', default_values_t = GATHERS.map(String::from))]
    gathers: Vec<String>,
    /// A directory on each node's own disk
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// A directory on the parallel file system
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    /// The command `mcr`, for the stream through agent and aggregator; default: the first `mcr` in PATH
    #[arg(long, value_name = "FILE", env = "MCR")]
    mcr: Option<PathBuf>,
    /// A directory in each node's memory, for the files that the stream reads, and without --pfs also for the store
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Write a picture of all paths over the group size (SVG)
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Also measure writing to and reading from the PFS with these numbers of ranks, separated by commas: each rank
    /// alone, and one rank for each group of the largest size in --groups (figures 10 and 11 of mcrEngine's paper);
    /// needs --pfs
    #[arg(long, value_delimiter = ',', value_name = "RANKS", requires = "pfs")]
    scaling: Vec<usize>,
    /// Schemes of --scaling in addition to plain bytes, each with its compression ratio, for example aware=3.1; a
    /// scheme whose name ends in /rank compresses each rank's file alone, without aggregation
    #[arg(long, value_delimiter = ',', value_name = "NAME=RATIO", value_parser = scheme, requires = "scaling")]
    schemes: Vec<Scheme>,
    /// A directory for figure-10.svg and figure-11.svg
    #[arg(long, value_name = "DIR", requires = "scaling")]
    figures: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A scheme, and its compression ratio.
#[derive(Clone, Debug, PartialEq)]
struct Scheme {
    name: String,
    ratio: f64,
    aggregated: bool,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let parts = text.split_once('=').and_then(|(name, ratio)| Some((name, ratio.parse::<f64>().ok()?)));
    match parts {
        Some((name, ratio)) if !name.is_empty() && !name.starts_with(PLAIN) && (1.0..=1e6).contains(&ratio) => {
            let alone = name.strip_suffix("/rank");
            Ok(Scheme { name: alone.unwrap_or(name).into(), ratio, aggregated: alone.is_none() })
        }
        _ => Err("expected a name, not plain, and a ratio of at least 1, as in aware=3.1".into()),
    }
}

/// The measurement of one path at one group size.
struct Way {
    name: &'static str,
    group: usize,
    seconds: Summary,
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    let timing = options.common.begin(comm, "a group")?;
    let n = comm.size();
    let mut groups: Vec<usize> = options.groups.iter().map(|&g| g.min(n)).collect();
    groups.sort_unstable();
    groups.dedup();
    if groups.first().is_none_or(|&g| g < 2) {
        return Err(Failure::Input("--groups: a group has at least 2 ranks".into()));
    }
    if let Some(unknown) = options.gathers.iter().find(|name| !GATHERS.contains(&name.as_str())) {
        return Err(Failure::Input(format!("--gathers {unknown:?}; there are {}", GATHERS.join(", "))));
    }
    let mcr = find_command(options.mcr.as_deref());
    places_suffice(comm, options, &groups, mcr.as_deref())?;
    let measures = |kind: &str| options.gathers.iter().any(|name| name.starts_with(kind));
    memory_suffices(
        comm,
        &Gathers {
            block_bytes: options.bytes,
            buffer_bytes: options.buffer,
            groups: &groups,
            trees: measures("native") || measures("binomial"),
            lanes: measures("lanes-") && options.common.sites.given(),
        },
    )?;
    if let Some(&wrong) = options.scaling.iter().find(|&&ranks| ranks < 1 || ranks > n) {
        return Err(Failure::Input(format!("--scaling {wrong}: it must be from 1 to {n}, the number of ranks")));
    }
    let sites = if options.common.sites.given() { options.common.sites.two_sites(comm)? } else { Vec::new() };
    if let Some(directory) = &options.figures {
        options.common.output.check_figures(comm, directory, FIGURE_10)?;
    }
    options.common.output.check(comm, &options.figure.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let estimate = timing.rule.estimate;
    let title = format!("Transfer paths of {n} ranks, {} bytes each", options.bytes);
    let journal = options.common.output.journal(comm, title.clone(), timing.rule)?;
    let mut timer = Timer::new(comm)?;
    let mut rows = Vec::new();
    let mut ways: Vec<Way> = Vec::new();
    let mut measure = |operation: &mut dyn Operation, name: &'static str, group: usize| -> Result<(), Failure> {
        let seconds = timer.measure(operation, options.bytes, &timing)?;
        let mut wrong = [f64::from(u8::from(!operation.check(comm)?))];
        comm.all_max(&mut wrong)?;
        if wrong[0] != 0.0 {
            return Err(Failure::Output(format!("{}: wrong bytes arrived", operation.name())));
        }
        let row = Row::new(operation.name(), options.bytes, seconds.clone(), &timing.rule);
        journal.add(&row);
        rows.push(row);
        ways.push(Way { name, group, seconds });
        Ok(())
    };
    for &group in &groups {
        for name in GATHERS.into_iter().filter(|name| options.gathers.iter().any(|wanted| wanted == name)) {
            if name == TCP {
                measure(&mut TcpGather::new(comm, group, options.buffer)?, TCP, group)?;
            } else if let Some(mut gather) = GroupGather::new(comm, group, name, &sites, options.buffer)? {
                measure(&mut gather, name, group)?;
            }
        }
    }
    if let Some(directory) = &options.local {
        measure(&mut WriteFiles::new(comm, "local", directory, 1)?, "local disk", 1)?;
    }
    if let Some(directory) = &options.pfs {
        measure(&mut WriteFiles::new(comm, "pfs", directory, 1)?, "pfs", 1)?;
        for &group in &groups {
            measure(&mut WriteFiles::new(comm, "pfs", directory, group)?, "pfs", group)?;
        }
        let shared = |how, group| SharedFile::new(comm, how, "pfs", directory, group);
        for group in [1].into_iter().chain(groups.iter().copied()) {
            measure(&mut shared(How::SystemCalls, group)?, SHARED, group)?;
        }
        measure(&mut shared(How::MpiIo, 1)?, MPI_IO, 1)?;
        measure(&mut shared(How::SystemCalls, 1)?.reading(), READ_SHARED, 1)?;
        measure(&mut shared(How::MpiIo, 1)?.reading(), READ_MPI_IO, 1)?;
        for group in groups.iter().copied().chain([1]) {
            measure(&mut ReadFiles::of(WriteFiles::new(comm, "pfs", directory, group)?), READ, group)?;
        }
    }
    let mut notes = Vec::new();
    match mcr {
        Some(mcr) => {
            let hosts = hosts(comm)?;
            let stores = [(Some(&options.memory), "gather/grpc", GRPC), (options.pfs.as_ref(), "save/grpc", WHOLE)];
            for (&group, (store, name, way)) in groups.iter().flat_map(|g| stores.iter().map(move |s| (g, *s))) {
                let Some(store) = store.cloned() else { continue };
                let load = Load::noise();
                let places = Places { mcr: mcr.clone(), memory: options.memory.clone(), store, name, load };
                let mut stream = Stream::new(comm, group, &places, &hosts)?;
                measure(&mut stream, way, group)?;
                let back = if way == WHOLE { RESTART } else { RESTART_MEMORY };
                measure(&mut Restart::of(&stream), back, group)?;
            }
        }
        None => notes.push("gRPC stream: not measured, no command mcr (--mcr FILE, or in PATH)".into()),
    }
    notes.extend(Recommendation { ways: &ways, n, bytes: options.bytes, estimate }.lines(&groups));
    let mut figures: Vec<_> =
        options.figure.iter().map(|p| (p.clone(), plot(&ways, n, options.bytes, &timing.rule).svg())).collect();
    let group = groups.last().copied().unwrap_or(2);
    let mut scaled = Vec::new();
    for &ranks in &options.scaling {
        for at in scaling(comm, options, &timing, ranks, group)? {
            let row = Row::new(at.operation.clone(), options.bytes, at.seconds.clone(), &timing.rule);
            journal.add(&row);
            rows.push(row);
            scaled.push(at);
        }
    }
    notes.extend(in_words(&scaled, options.bytes, estimate));
    if let Some(directory) = &options.figures {
        for (number, what) in [(10, "Schemes, one writer for each group"), (11, "What aggregation brings")] {
            let title = format!("{what}: {} of each rank, groups of {group}", size(options.bytes));
            let shown = scaled.iter().filter(|at| if number == 10 { at.aggregated } else { at.in_figure_11() });
            let times = shown.map(|at| (at.line.as_str(), at.ranks as f64, &at.seconds));
            let plot = Plot::of_times(title, ("ranks", Quantity::Number), &timing.rule, times);
            figures.push((directory.join(format!("figure-{number}.svg")), plot.svg()));
        }
    }
    let report = Report {
        title,
        context: context(comm, Some(timer.clock()), &sites)?,
        rule: timing.rule,
        rows,
        notes,
        figure: Some(plot(&ways, n, options.bytes, &timing.rule)),
        ..Report::default()
    };
    journal.end();
    options.common.output.write_with(comm, &report, &figures)
}

/// Names of the gathers.
const GATHERS: [&str; 7] = ["native", "linear-nonblocking", "binomial", "lanes-1", "lanes-2", "lanes-4", TCP];
/// The gather over plain TCP connections.
const TCP: &str = "tcp";

/// Rejects directories without space for the files of all ranks, and a command `mcr` that does not exist. All ranks
/// must call this function.
fn places_suffice(comm: &Comm, options: &Options, groups: &[usize], mcr: Option<&Path>) -> Result<(), Failure> {
    let hosts = hosts(comm)?;
    let of = |ranks: usize| options.bytes.saturating_mul(ranks);
    let is_here = |rank: &usize| hosts[*rank] == hosts[comm.rank()];
    let here = (0..hosts.len()).filter(is_here).count();
    let mut steps = Vec::new();
    if let Some(directory) = &options.local {
        steps.push(vec![Need { option: "--local", directory, bytes: of(here) }]);
    }
    if let Some(directory) = &options.pfs {
        steps.push(vec![Need { option: "--pfs", directory, bytes: of(hosts.len()) }]);
    }
    if let Some(mcr) = mcr {
        let found = std::fs::metadata(mcr).map_err(|e| format!("{}: {e}", mcr.display()));
        comm.agree(found.map(|_| ())).map_err(|error| Failure::Input(error.to_string()))?;
        // Two checkpoints exist at the same time: the last checkpoint, and the next or the restored checkpoint.
        let files = || Need { option: "--memory", directory: &options.memory, bytes: of(2 * here) };
        let led = |group: usize| (0..hosts.len()).filter(|rank| is_here(&(rank / group * group))).count();
        let led = groups.iter().map(|&group| led(group)).max().unwrap_or(0);
        steps.push(vec![files(), Need { option: "--memory", directory: &options.memory, bytes: of(2 * led) }]);
        if let Some(directory) = &options.pfs {
            steps.push(vec![files(), Need { option: "--pfs", directory, bytes: of(2 * hosts.len()) }]);
        }
    }
    directories_suffice(comm, &steps)
}

/// A rate in MB/s, the usual unit for storage.
fn megabytes(bytes_per_second: f64) -> String {
    format!("{:.1} MB/s", bytes_per_second / 1e6)
}

/// Path from files in memory to containers in memory, through agents and aggregators.
const GRPC: &str = "grpc";
/// Path from files in memory to containers on the PFS, through agents and aggregators.
const WHOLE: &str = "grpc to pfs";
/// Path from files on the PFS to memory, without mcrEngine.
const READ: &str = "read";
/// Paths from containers to files in memory with `mcr restart`: from containers on the PFS, and from containers in
/// memory.
const RESTART: &str = "restart";
const RESTART_MEMORY: &str = "restart from memory";
/// Paths to and from one file on the PFS that all ranks share, by system calls and by MPI-IO.
const SHARED: &str = "pfs, shared file";
const MPI_IO: &str = "pfs, MPI-IO";
const READ_SHARED: &str = "read, shared file";
const READ_MPI_IO: &str = "read, MPI-IO";
/// Paths that are not gathers, and therefore not part of a recommendation.
const OTHERS: [&str; 10] =
    ["pfs", "local disk", WHOLE, READ, RESTART, RESTART_MEMORY, SHARED, MPI_IO, READ_SHARED, READ_MPI_IO];

/// One point of figures 10 and 11.
struct Scaled {
    operation: String,
    /// Name of its line in a figure.
    line: String,
    scheme: String,
    reads: bool,
    aggregated: bool,
    ranks: usize,
    seconds: Summary,
}

impl Scaled {
    /// Figure 11 compares plain bytes with and without aggregation, and schemes in which each rank compresses its
    /// file alone.
    fn in_figure_11(&self) -> bool {
        !self.aggregated || self.scheme == PLAIN
    }
}

/// One of the files of `--figures`.
const FIGURE_10: &str = "figure-10.svg";
/// The scheme without compression.
const PLAIN: &str = "plain";

/// Measures writing and reading with the first `ranks` ranks: each rank alone, or one rank for each group. Each
/// scheme writes its compressed number of bytes. All ranks must call this function; the other ranks have no data.
fn scaling(
    comm: &Comm,
    options: &Options,
    timing: &Timing,
    ranks: usize,
    group: usize,
) -> Result<Vec<Scaled>, Failure> {
    let part = comm.rank() < ranks;
    let some = comm.split(u16::from(part))?;
    let directory = options.pfs.clone().unwrap_or_default();
    let plain = |aggregated| Scheme { name: PLAIN.into(), ratio: 1.0, aggregated };
    let schemes: Vec<_> = [plain(false), plain(true)].into_iter().chain(options.schemes.iter().cloned()).collect();
    let measure = || -> Result<Vec<Scaled>, CommError> {
        let mut timer = Timer::new(&some)?;
        let mut found = Vec::new();
        for scheme in &schemes {
            let size = if scheme.aggregated { group } else { 1 };
            let files = || Ok(WriteFiles::new(&some, "pfs", &directory, size)?.compressed(scheme.ratio));
            let both: [Box<dyn Operation>; 2] = [Box::new(files()?), Box::new(ReadFiles::of(files()?))];
            for (mut operation, reads) in both.into_iter().zip([false, true]) {
                let seconds = timer.measure(operation.as_mut(), options.bytes, timing)?;
                let mut wrong = [f64::from(u8::from(!operation.is_right(&some)))];
                some.all_max(&mut wrong)?;
                if wrong[0] != 0.0 {
                    return Err(CommError::Told(format!("{}: wrong bytes", operation.name())));
                }
                let (kind, how) =
                    (if reads { "read" } else { "write" }, if size > 1 { "aggregated" } else { "each rank" });
                found.push(Scaled {
                    operation: format!("{}, {} of {ranks} ranks", operation.name(), scheme.name),
                    line: format!("{kind}, {}, {how}", scheme.name),
                    scheme: scheme.name.clone(),
                    reads,
                    aggregated: scheme.aggregated,
                    ranks,
                    seconds,
                });
            }
        }
        Ok(found)
    };
    let mine = match if part { measure() } else { Ok(Vec::new()) } {
        // Only this rank has the error. Other ranks may wait for this rank and cannot be informed.
        Err(error) if !matches!(error, CommError::Told(_)) => return Err(error.into()),
        mine => mine.map_err(|e| e.to_string()),
    };
    Ok(comm.agree(mine)?)
}

/// One sentence for each number of ranks: the gain from aggregation, and the time of each scheme. All rates are of the
/// bytes before compression.
fn in_words(scaled: &[Scaled], bytes: usize, estimate: Estimate) -> Vec<String> {
    let value = |ranks, scheme: &str, aggregated, reads| {
        let at = scaled
            .iter()
            .find(|a| (a.ranks, a.scheme.as_str(), a.aggregated, a.reads) == (ranks, scheme, aggregated, reads));
        at.map_or(f64::NAN, |at| at.seconds.value(estimate))
    };
    let mut counts: Vec<_> = scaled.iter().map(|at| at.ranks).collect();
    counts.dedup();
    let mut lines = Vec::new();
    for ranks in counts {
        let timed = |seconds: f64| time_and_rate(seconds, (bytes * ranks) as f64);
        let compare = |reads| {
            let (separate, aggregated) = (value(ranks, PLAIN, false, reads), value(ranks, PLAIN, true, reads));
            let times = separate / aggregated;
            format!("{} separately and {} aggregated ({times:.2} times)", timed(separate), timed(aggregated))
        };
        lines.push(format!("{ranks} ranks: writing {}, reading {}", compare(false), compare(true)));
        for at in scaled.iter().filter(|at| at.ranks == ranks && at.scheme != PLAIN && !at.reads) {
            let back = value(ranks, &at.scheme, at.aggregated, true);
            let how = if at.aggregated { "aggregated" } else { "separate" };
            let write = timed(at.seconds.value(estimate));
            lines.push(format!("  {}, {how}: {write} to write, {} to read", at.scheme, timed(back)));
        }
    }
    if lines.iter().any(|line| line.starts_with(' ')) {
        lines.push("  the rates of schemes are of the bytes before compression".into());
    }
    lines
}

/// A time with the rate of these bytes.
fn time_and_rate(seconds: f64, bytes: f64) -> String {
    format!("{} ({})", people(seconds), megabytes(bytes / seconds))
}

/// One way to save a checkpoint of all ranks.
struct Candidate {
    name: String,
    /// The estimate in seconds.
    seconds: f64,
    /// `None` with too few repetitions.
    interval: Option<Interval>,
}

impl Candidate {
    /// A way whose steps run one after the other. If each interval contains the true value of its step, the sum of the
    /// intervals contains the sum of the true values.
    fn of(name: String, steps: &[&Summary], estimate: Estimate) -> Self {
        let sum = |a: Interval, b: Interval| Interval { low: a.low + b.low, high: a.high + b.high };
        let intervals: Option<Vec<_>> = steps.iter().map(|s| s.interval(estimate)).collect();
        let interval = intervals.and_then(|all| all.into_iter().reduce(sum));
        Self { name, seconds: steps.iter().map(|s| s.value(estimate)).sum(), interval }
    }
}

/// A sentence about the fastest candidate, or about all candidates whose intervals overlap with the interval of the
/// fastest candidate.
fn conclude(what: &str, mut candidates: Vec<Candidate>, whole_bytes: f64) -> Option<String> {
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let (best, others) = candidates.split_first()?;
    let rate = megabytes(whole_bytes / best.seconds);
    let head = format!("{what}: {}: {}, {rate}", best.name, people(best.seconds));
    let Some(interval) = best.interval else {
        let doubt = if others.is_empty() { "" } else { " (too few repetitions to say that the others are slower)" };
        return Some(head + doubt);
    };
    let same = |other: &&Candidate| other.interval.is_none_or(|o| o.low <= interval.high);
    let equal: Vec<_> = others.iter().filter(same).map(|c| format!("{} ({})", c.name, people(c.seconds))).collect();
    Some(if equal.is_empty() { head } else { format!("{head}; no difference to {}", equal.join(", ")) })
}

/// The measured ways from the ranks to the store, of which the best is recommended.
struct Recommendation<'w> {
    ways: &'w [Way],
    /// Number of ranks.
    n: usize,
    /// Bytes of each rank.
    bytes: usize,
    /// The estimate that is compared.
    estimate: Estimate,
}

impl Recommendation<'_> {
    fn find(&self, group: usize, name: &str) -> Option<&Summary> {
        self.ways.iter().find(|w| w.group == group && w.name == name).map(|w| &w.seconds)
    }

    /// The fastest gather.
    fn gather(&self, group: usize) -> Option<&Way> {
        let some = self.ways.iter().filter(|w| w.group == group && !OTHERS.contains(&w.name));
        some.min_by(|a, b| a.seconds.value(self.estimate).total_cmp(&b.seconds.value(self.estimate)))
    }

    /// The bytes of all ranks.
    fn whole(&self) -> f64 {
        (self.bytes * self.n) as f64
    }

    /// The time of a way, with the rate of the bytes of all ranks.
    fn timed(&self, seconds: &Summary) -> String {
        time_and_rate(seconds.value(self.estimate), self.whole())
    }

    /// A part of a sentence about a way, or nothing if the way was not measured.
    fn part(&self, group: usize, name: &str, before: &str, after: &str) -> String {
        self.find(group, name).map_or(String::new(), |s| format!("{before}{}{after}", self.timed(s)))
    }

    /// Compares the ways: without aggregators, and for each group size the fastest gather plus the writing by the
    /// aggregators. This sum is an upper bound, since gathers and writes overlap in the running system. The measured
    /// time through agents and aggregators is also compared. Without a PFS, only gathers count.
    fn lines(&self, groups: &[usize]) -> Vec<String> {
        let n = self.n;
        let candidate = |name: String, steps: &[&Summary]| Candidate::of(name, steps, self.estimate);
        let mut lines = Vec::new();
        let mut all = Vec::new();
        let mut daemons = Vec::new();
        for &group in groups {
            let aggregators = n.div_ceil(group);
            let count = format!("{aggregators} aggregator{}", if aggregators == 1 { "" } else { "s" });
            let write = self.find(group, "pfs");
            if let Some(fastest) = self.gather(group) {
                lines.push(format!(
                    "groups of {group}: {} to gather by {}{}{}{}{}{}{}",
                    self.timed(&fastest.seconds),
                    fastest.name,
                    self.part(group, "pfs", ", then ", &format!(" to write by {count}")),
                    self.part(group, READ, "; ", &format!(" to read by {count}")),
                    self.part(group, GRPC, "; ", " by grpc"),
                    self.part(group, RESTART_MEMORY, "; ", " to restart from memory"),
                    self.part(group, WHOLE, "; ", &format!(" by {WHOLE}")),
                    self.part(group, RESTART, "; ", " to restart")
                ));
                let steps: Vec<_> = [Some(&fastest.seconds), write].into_iter().flatten().collect();
                let name = format!("group size {group}, {count}, gathered by {}", fastest.name);
                all.push(candidate(name.clone(), &steps));
                if let Some(shared) = self.find(group, SHARED) {
                    all.push(candidate(format!("{name}, one shared file"), &[&fastest.seconds, shared]));
                }
            }
            let through = if write.is_some() { WHOLE } else { GRPC };
            if let Some(seconds) = self.find(group, through) {
                let name = format!("group size {group}, {count}, gathered by {through}");
                daemons.push(candidate(name.clone(), &[seconds]));
                if through == WHOLE {
                    all.push(candidate(name, &[seconds]));
                }
            }
        }
        for (write, read, how) in [
            ("pfs", READ, ""),
            (SHARED, READ_SHARED, ", one shared file"),
            (MPI_IO, READ_MPI_IO, ", one shared file by MPI-IO"),
        ] {
            let Some(seconds) = self.find(1, write) else { continue };
            let read = self.part(1, read, ", and read in ", "");
            lines.push(format!("without aggregators{how}: {n} ranks write in {}{read}", self.timed(seconds)));
            all.push(candidate(format!("without aggregators{how}"), &[seconds]));
        }
        lines.extend(conclude("recommended", all, self.whole()));
        lines.extend(conclude("recommended for the installed mcr", daemons, self.whole()));
        lines
    }
}

fn plot(ways: &[Way], n: usize, bytes: usize, rule: &StoppingRule) -> Plot {
    let times = ways.iter().map(|way| (way.name, way.group as f64, &way.seconds));
    let x = ("group size (1: no aggregators)", Quantity::Number);
    Plot::of_times(format!("{n} ranks, {} each", size(bytes)), x, rule, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_a_name_and_a_ratio() {
        let of = |name: &str, ratio, aggregated| Ok(Scheme { name: name.into(), ratio, aggregated });
        assert_eq!(scheme("aware=3.1"), of("aware", 3.1, true));
        assert_eq!(scheme("gzip/rank=1.5"), of("gzip", 1.5, false));
        for bad in ["", "aware", "aware=", "=2", "plain=2", "aware=0.5", "aware=NaN", "aware=inf"] {
            assert!(scheme(bad).is_err(), "{bad:?}");
        }
    }

    /// A way whose repetitions are all within 2 % of `seconds`.
    fn way(name: &'static str, group: usize, seconds: f64) -> Way {
        let samples: Vec<f64> = (0..9).map(|i| seconds * (1.0 + f64::from(i - 4) / 200.0)).collect();
        Way { name, group, seconds: Summary::of(&samples, 0.95) }
    }

    /// The sentences about the ways of eight ranks with 1 MiB each.
    fn recommend(ways: &[Way], groups: &[usize]) -> Vec<String> {
        Recommendation { ways, n: 8, bytes: 1 << 20, estimate: Estimate::Median }.lines(groups)
    }

    fn recommended(lines: &[String]) -> &str {
        lines.iter().find_map(|l| l.strip_prefix("recommended: ")).expect("a recommendation")
    }

    #[test]
    fn the_least_sum_of_gathering_and_writing_is_recommended() {
        let mut ways =
            vec![way("native", 2, 1.0), way(TCP, 2, 0.9), way("native", 4, 1.5), way(TCP, 4, 2.0), way("pfs", 1, 9.0)];
        let without_pfs = recommend(&ways[..4], &[2, 4]);
        let found = recommended(&without_pfs);
        assert!(found.starts_with("group size 2, 4 aggregators, gathered by tcp: 900.0 ms, 9.3 MB/s"), "{found}");
        ways.extend([way("pfs", 2, 6.0), way("pfs", 4, 3.0)]);
        let lines = recommend(&ways, &[2, 4]);
        assert_eq!(recommended(&lines), "group size 4, 2 aggregators, gathered by native: 4.500 s, 1.9 MB/s");
        ways.extend([way(GRPC, 2, 1.2), way(GRPC, 4, 2.5), way(WHOLE, 2, 4.0), way(WHOLE, 4, 5.0)]);
        let lines = recommend(&ways, &[2, 4]);
        let ending = "; 1.200 s (7.0 MB/s) by grpc; 4.000 s (2.1 MB/s) by grpc to pfs";
        assert!(lines[0].ends_with(ending), "{lines:?}");
        assert!(recommended(&lines).starts_with("group size 2, 4 aggregators, gathered by grpc to pfs"), "{lines:?}");
    }

    #[test]
    fn reading_and_restarting_have_rates_too() {
        let mut ways = vec![way("native", 2, 1.0), way("pfs", 2, 6.0), way(READ, 2, 2.0), way(RESTART, 2, 4.0)];
        ways.extend([way(RESTART_MEMORY, 2, 0.5), way("pfs", 1, 8.0), way(READ, 1, 4.0)]);
        ways.extend([way(SHARED, 1, 8.0), way(READ_SHARED, 1, 2.0), way(MPI_IO, 1, 8.0), way(READ_MPI_IO, 1, 1.0)]);
        let lines = recommend(&ways, &[2]);
        let parts = [
            "groups of 2: 1.000 s (8.4 MB/s) to gather by native",
            "6.000 s (1.4 MB/s) to write by 4",
            "2.000 s (4.2 MB/s) to read by 4 aggregators",
        ];
        assert!(parts.iter().all(|part| lines[0].contains(part)), "{lines:?}");
        assert!(lines[0].contains("500.0 ms (16.8 MB/s) to restart from memory"), "{lines:?}");
        assert!(lines[0].ends_with("; 4.000 s (2.1 MB/s) to restart"), "{lines:?}");
        for (line, end) in [(1, "4.000 s (2.1 MB/s)"), (2, "2.000 s (4.2 MB/s)"), (3, "1.000 s (8.4 MB/s)")] {
            assert!(lines[line].contains("write in 8.000 s (1.0 MB/s), and read in "), "{lines:?}");
            assert!(lines[line].ends_with(end), "{lines:?}");
        }
        let scaled = |scheme: &str, aggregated, reads, seconds: f64| Scaled {
            operation: String::new(),
            line: String::new(),
            scheme: scheme.into(),
            reads,
            aggregated,
            ranks: 4,
            seconds: way("", 1, seconds).seconds,
        };
        let mut all = vec![scaled(PLAIN, false, false, 4.0), scaled(PLAIN, false, true, 2.0)];
        all.extend([scaled(PLAIN, true, false, 2.0), scaled(PLAIN, true, true, 1.0)]);
        all.extend([scaled("aware", true, false, 1.0), scaled("aware", true, true, 0.5)]);
        assert_eq!(
            in_words(&all, 1_000_000, Estimate::Median),
            [
                "4 ranks: writing 4.000 s (1.0 MB/s) separately and 2.000 s (2.0 MB/s) aggregated (2.00 times), \
                 reading 2.000 s (2.0 MB/s) separately and 1.000 s (4.0 MB/s) aggregated (2.00 times)",
                "  aware, aggregated: 1.000 s (4.0 MB/s) to write, 500.0 ms (8.0 MB/s) to read",
                "  the rates of schemes are of the bytes before compression",
            ]
        );
    }

    #[test]
    fn the_recommendation_compares_the_estimate_of_the_option() {
        // The median of `tcp` is the smallest, and the mean of `native` is the smallest.
        let of = |name, samples: [f64; 9]| Way { name, group: 2, seconds: Summary::of(&samples, 0.95) };
        let ways = [of("native", [1.1; 9]), of(TCP, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0])];
        let lines = |estimate| Recommendation { ways: &ways, n: 8, bytes: 1 << 20, estimate }.lines(&[2]);
        assert!(recommended(&lines(Estimate::Median)).contains("gathered by tcp: 1.000 s"));
        assert!(recommended(&lines(Estimate::Mean)).contains("gathered by native: 1.100 s"));
    }

    #[test]
    fn shared_files_are_among_the_ways_that_can_be_recommended() {
        let mut ways = vec![way("native", 2, 1.0), way("pfs", 2, 6.0), way("pfs", 1, 9.0), way(SHARED, 2, 4.0)];
        let lines = recommend(&ways, &[2]);
        assert!(recommended(&lines).starts_with("group size 2, 4 aggregators, gathered by native, one shared file: 5"));
        ways.extend([way(SHARED, 1, 8.0), way(MPI_IO, 1, 2.0), way(READ_MPI_IO, 1, 0.1), way(READ_SHARED, 1, 0.1)]);
        let lines = recommend(&ways, &[2]);
        assert_eq!(recommended(&lines), "without aggregators, one shared file by MPI-IO: 2.000 s, 4.2 MB/s");
        assert!(lines.iter().any(|l| l.starts_with("without aggregators, one shared file: 8 ranks")), "{lines:?}");
    }

    #[test]
    fn writing_without_aggregators_can_be_recommended_and_equal_ways_are_called_equal() {
        // An earlier version reported 26.58 ms "without aggregators", and then recommended "group size 2" with 29.64
        // ms.
        let ways = [way("native", 2, 5e-3), way("pfs", 2, 24.6e-3), way("pfs", 1, 26.58e-3)];
        let lines = recommend(&ways, &[2]);
        assert!(recommended(&lines).starts_with("without aggregators: 26.58 ms"), "{lines:?}");
        assert!(!recommended(&lines).contains("no difference"), "{lines:?}");
        let ways = [way("native", 2, 5e-3), way("pfs", 2, 21.6e-3), way("pfs", 1, 26.5e-3)];
        let lines = recommend(&ways, &[2]);
        let found = recommended(&lines);
        assert!(found.contains("; no difference to group size 2, 4 aggregators, gathered by native"), "{found}");
        let once = |name, group| Way { name, group, seconds: Summary::of(&[1.0], 0.95) };
        let lines = recommend(&[once("native", 2), once("pfs", 2), once("pfs", 1)], &[2]);
        assert!(recommended(&lines).contains("too few repetitions"), "{lines:?}");
    }
}
