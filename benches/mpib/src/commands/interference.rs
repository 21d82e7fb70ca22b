//! `mpib interference`: measures what a checkpoint costs the application that keeps running.

use super::room::{Gathers, Need, directories_suffice, memory_suffices, sizes_fit};
use super::{Failure, Output, all_fit, at_least, bytes, bytes_not_zero, context, hosts};
use clap::Args;
use mpib::collectives::operation::{Collective, Kind, Operation, Setting};
use mpib::comm::Comm;
use mpib::daemons::{Load, Places, Stream, find_command};
use mpib::interference::{Halo, TcpLoad, for_some_time, while_saving};
use mpib::report::{Report, Row, people};
use mpib::stats::{Estimate, StoppingRule, Summary};
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub struct Options {
    /// Bytes of the application's messages, separated by commas
    #[arg(long, value_parser = bytes, value_delimiter = ',', default_values_t = [8, 65536])]
    sizes: Vec<usize>,
    /// Bytes of each rank's checkpoint
    #[arg(long, value_parser = bytes_not_zero, default_value = "1MiB")]
    bytes: usize,
    /// Ranks of a group
    #[arg(long, default_value_t = 8)]
    group: usize,
    /// Maximum bytes of an aggregator's buffer
    #[arg(long, value_parser = bytes_not_zero, default_value = "256MiB")]
    buffer: usize,
    /// Number of checkpoints of mcrEngine for each operation and size
    #[arg(long, default_value_t = 10)]
    checkpoints: usize,
    /// Seconds to measure each operation and size alone and under each load except checkpoints
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Confidence level of the intervals
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// The command `mcr`; default: the first `mcr` in PATH. Without this command, only gathers over TCP are measured
    #[arg(long, value_name = "FILE", env = "MCR")]
    mcr: Option<PathBuf>,
    /// A directory in each node's memory, for the files that the agents read
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// A directory on the parallel file system for the containers; default: the directory of --memory
    #[arg(long, value_name = "DIR")]
    pfs: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// What runs while the application's operation is timed.
const ALONE: &str = "alone";
const TCP: &str = "during gathers over TCP";
const WAITING: &str = "while mcr waits for files";
const SAVING: &str = "while mcr saves";

/// Number of parts of a measurement. The mean of each part is a sample.
const PARTS: usize = 20;
const MAX_CHECKPOINTS: usize = 1000;
const MAX_SECONDS: f64 = 86400.0;

/// The application's operation number `index`.
fn operation(index: usize, ranks: usize) -> Result<Box<dyn Operation>, Failure> {
    Ok(match index {
        0 => Box::new(Collective::new(Kind::AllReduce, "native", &Setting::default(), ranks).map_err(Failure::input)?),
        _ => Box::new(Halo::new()),
    })
}
const OPERATIONS: [&str; 2] = ["allreduce", "halo exchange"];

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    at_least(comm, 2, "interference")?;
    let rule_of = |samples: usize| StoppingRule {
        confidence: options.confidence,
        estimate: Estimate::Mean,
        ..StoppingRule::fixed(samples)
    };
    let rule = rule_of(PARTS);
    rule.check().map_err(Failure::input)?;
    let n = comm.size();
    all_fit(&options.sizes, n)?;
    // The halo exchange has two blocks in each direction.
    sizes_fit(comm, &options.sizes, |size, _| size.saturating_mul(4))?;
    if !(options.seconds > 0.0 && options.seconds <= MAX_SECONDS) {
        return Err(Failure::Input(format!("--seconds is {}; it must be more than 0", options.seconds)));
    }
    if options.group < 2 {
        return Err(Failure::Input("--group: a group has at least 2 ranks".into()));
    }
    if !(1..=MAX_CHECKPOINTS).contains(&options.checkpoints) {
        let text = format!("--checkpoints is {}; it must be 1 to {MAX_CHECKPOINTS}", options.checkpoints);
        return Err(Failure::Input(text));
    }
    let group = options.group.min(n);
    let hosts = hosts(comm)?;
    let here = hosts.iter().filter(|h| **h == hosts[comm.rank()]).count();
    let mcr = find_command(options.mcr.as_deref());
    let store = options.pfs.clone().unwrap_or_else(|| options.memory.clone());
    if let Some(mcr) = &mcr {
        let found = std::fs::metadata(mcr).map(|_| ()).map_err(|e| format!("{}: {e}", mcr.display()));
        comm.agree(found).map_err(|error| Failure::Input(error.to_string()))?;
        let of = |ranks: usize| options.bytes.saturating_mul(2 * ranks);
        let files = Need { option: "--memory", directory: &options.memory, bytes: of(here) };
        directories_suffice(comm, &[vec![files, Need { option: "--pfs", directory: &store, bytes: of(n) }]])?;
    }
    let (block_bytes, buffer_bytes) = (options.bytes, options.buffer);
    memory_suffices(comm, &Gathers { block_bytes, buffer_bytes, groups: &[group], trees: false, lanes: false })?;
    let title =
        format!("Operations of {n} ranks during checkpoints of {} bytes per rank, groups of {group}", options.bytes);
    let journal = options.output.journal(comm, title.clone(), rule)?;
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let mut add = |name: &str, load: &str, size: usize, samples: &[f64]| {
        let rule = rule_of(samples.len());
        let row = Row::new(format!("{name}, {load}"), size, rule.summary(samples), &rule);
        journal.add(&row);
        rows.push(row);
    };
    let cases = || (0..OPERATIONS.len()).flat_map(|i| options.sizes.iter().map(move |&size| (i, size)));
    let mut longest = Vec::new();
    let part_seconds = options.seconds / PARTS as f64;
    let mut beside = |load: &str| -> Result<(), Failure> {
        for (i, size) in cases() {
            let found = for_some_time(comm, operation(i, n)?.as_mut(), size, PARTS, part_seconds)?;
            longest.push(longest_of(i, size, load, found.longest));
            add(OPERATIONS[i], load, size, &found.means);
        }
        Ok(())
    };
    beside(ALONE)?;
    let load = TcpLoad::start(comm, group, options.buffer, options.bytes)?;
    beside(TCP)?;
    let gathers = load.stop().map_err(|error| format!("TCP: {error}"));
    comm.agree(gathers)?;
    match mcr {
        None => notes.push("mcrEngine: not measured, no command mcr (--mcr FILE, or in PATH)".into()),
        Some(mcr) => {
            let places =
                Places { mcr, memory: options.memory.clone(), store, name: "interference", load: Load::noise() };
            let mut stream = Stream::new(comm, group, &places, &hosts)?;
            stream.prepare(comm, options.bytes)?;
            // The first checkpoint creates directories.
            while_saving(comm, &mut stream, operation(0, n)?.as_mut(), 8, 1)?;
            let (begun, used) = (Instant::now(), stream.daemons_seconds());
            beside(WAITING)?;
            notes.push(share(comm, WAITING, &stream, begun, used)?);
            let (begun, used) = (Instant::now(), stream.daemons_seconds());
            let mut commits = Vec::new();
            for (i, size) in cases() {
                let checkpoints = options.checkpoints;
                let found = while_saving(comm, &mut stream, operation(i, n)?.as_mut(), size, checkpoints)?;
                longest.push(longest_of(i, size, SAVING, found.longest));
                add(OPERATIONS[i], SAVING, size, &found.means);
                commits.extend(found.commit_seconds);
            }
            notes.push(format!(
                "{} checkpoints in {:.1} s: {} until a checkpoint is committed",
                commits.len(),
                begun.elapsed().as_secs_f64(),
                people(commits.iter().sum::<f64>() / commits.len() as f64)
            ));
            notes.push(share(comm, SAVING, &stream, begun, used)?);
            add("checkpoint", "until it is committed", options.bytes, &commits);
        }
    }
    notes.insert(0, "a repetition of this table is the mean of a part of the measurement, or of a checkpoint".into());
    notes.extend(compare(&rows, &rule));
    let report = Report {
        title,
        context: context(comm, None, &[])?,
        rule,
        rows,
        notes,
        found: serde_json::json!({ "longest_repetitions": longest }),
        ..Report::default()
    };
    journal.end();
    options.output.write(comm, &report)
}

/// How much of a processor the daemons used since `begun`. `used` is their processor time at that moment. All ranks
/// must call this function.
fn share(comm: &Comm, load: &str, stream: &Stream, begun: Instant, used: [f64; 2]) -> Result<String, Failure> {
    let passed = begun.elapsed().as_secs_f64();
    let mut seconds = stream.daemons_seconds();
    seconds.iter_mut().zip(used).for_each(|(now, before)| *now -= before);
    comm.all_max(&mut seconds)?;
    let [agent, aggregator] = seconds.map(|seconds| 100.0 * seconds / passed);
    Ok(format!(
        "{load}, an agent used {agent:.1}% of a processor, and an aggregator {aggregator:.1}% (the largest of all)"
    ))
}

fn longest_of(operation: usize, size: usize, load: &str, seconds: f64) -> serde_json::Value {
    serde_json::json!({ "operation": format!("{}, {load}", OPERATIONS[operation]), "block_bytes": size, "seconds": seconds })
}

/// One sentence for each operation and size: how many times as long the operation takes under each load.
fn compare(rows: &[Row], rule: &StoppingRule) -> Vec<String> {
    let alone = rows.iter().filter_map(|row| Some((row, row.operation.strip_suffix(&format!(", {ALONE}"))?)));
    alone
        .map(|(base, name)| {
            let of = |load: &str| {
                let same =
                    |row: &&Row| row.block_bytes == base.block_bytes && row.operation == format!("{name}, {load}");
                rows.iter().find(same).map(|row| times_as_long(&base.seconds, &row.seconds, rule, load))
            };
            let loads: Vec<_> = [TCP, WAITING, SAVING].into_iter().filter_map(of).collect();
            let time = people(base.seconds.value(rule.estimate));
            format!("{name} of {} bytes: {time} alone; {}", base.block_bytes, loads.join("; "))
        })
        .collect()
}

fn times_as_long(alone: &Summary, beside: &Summary, rule: &StoppingRule, load: &str) -> String {
    let factor = beside.value(rule.estimate) / alone.value(rule.estimate);
    let apart = match (alone.interval(rule.estimate), beside.interval(rule.estimate)) {
        (Some(a), Some(b)) if a.high < b.low || b.high < a.low => "",
        (Some(_), Some(_)) => " (no significant difference)",
        _ => " (too few parts to compare)",
    };
    format!("{factor:.2} times as long{apart} {load}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beside_a_load_are_compared_with_times_alone() {
        let rule = StoppingRule::fixed(20);
        let row = |name: &str, base: f64| {
            let samples: Vec<f64> = (0..20).map(|i| base * (1.0 + f64::from(i) / 1000.0)).collect();
            Row::new(name, 8, rule.summary(&samples), &rule)
        };
        let rows = [
            row("allreduce, alone", 1e-5),
            row("allreduce, during gathers over TCP", 2e-5),
            row("allreduce, while mcr waits for files", 1.001e-5),
        ];
        let lines = compare(&rows, &rule);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("2.00 times as long during gathers over TCP"), "{lines:?}");
        assert!(lines[0].contains("(no significant difference) while mcr waits"), "{lines:?}");
    }
}
