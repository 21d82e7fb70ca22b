//! `mcr bench scale`: measures what a checkpoint costs the store and the daemons, for jobs of many ranks. The command
//! simulates the jobs: the daemons are real, and the store is in memory, and counts and delays its operations.

mod picture;
mod report;

use super::scale_args::{Aggregators, BenchScaleArgs};
use crate::advice::Advised;
use crate::exit::Exit;
use crate::output::{is_quiet, print, print_json, tell};
use crate::plot::{check_svg, write_svg};
use anyhow::Context;
use mcr_simulation::rank_file::RankFile;
use mcr_simulation::simulation::{Cost, FAILURES, Setup, Simulation};
use mcr_simulation::store::{Counts, Kind};
use nix::sys::resource::{Resource, getrlimit};
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

/// Number of groups of one aggregator, if the user gives no number of aggregators.
const GROUPS_OF_AGGREGATOR: u32 = 48;
/// Maximum number of agents. Each agent needs an inotify instance, and Linux permits 128 instances for each user.
const NODES_MAX: u32 = 100;

/// Numbers of operations on the store for each group.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Operations {
    create: f64,
    write: f64,
    sync: f64,
    rename: f64,
    remove: f64,
    open: f64,
    stat: f64,
    list: f64,
    /// Number of names in the listings.
    names: f64,
}

impl Operations {
    fn new(counts: &Counts, groups: u32) -> Self {
        let each = |count: u64| count as f64 / f64::from(groups);
        let of = |kind: Kind| each(counts.of(kind));
        Self {
            create: of(Kind::Create),
            write: of(Kind::Write),
            sync: of(Kind::Sync),
            rename: of(Kind::Rename),
            remove: of(Kind::Remove),
            open: of(Kind::Open),
            stat: of(Kind::Stat),
            list: of(Kind::List),
            names: each(counts.names),
        }
    }

    /// Operations that change the store.
    fn changes(&self) -> f64 {
        self.create + self.write + self.sync + self.rename + self.remove
    }
}

/// A step during which something failed.
#[derive(Clone, Debug, serde::Serialize)]
struct Failed {
    failure: &'static str,
    /// Time from the beginning of the step until a checkpoint was complete again.
    recovery_ms: f64,
    operations_per_group: Operations,
}

/// The measurement of one job. Times and counts are medians over the steps.
#[derive(Clone, Debug, serde::Serialize)]
struct Point {
    ranks: u32,
    groups: u32,
    nodes: u32,
    aggregators: u32,
    stored_checkpoints: u32,
    operations_per_group: Operations,
    /// The operations of the first step, for each group.
    first_operations_per_group: Operations,
    /// Operations of the aggregator that made the most operations.
    busiest_operations: f64,
    commit_ms: f64,
    cpu_ms: f64,
    aggregator_cpu_ms: f64,
    agent_cpu_ms: f64,
    /// `null` for a real file: equal parts of files are not sent, so it is not known how many bytes are of the file.
    wire_bytes_per_rank: Option<f64>,
    /// Memory of all daemons and of the store. `null` if it is not known.
    memory_bytes: Option<u64>,
    failures: Vec<Failed>,
}

/// The data of the report.
#[derive(Clone, Debug, serde::Serialize)]
struct Report {
    group_size: u32,
    steps: u32,
    delay_us: u32,
    /// Bytes of the file of each rank.
    file_bytes: u64,
    points: Vec<Point>,
}

pub fn run(args: BenchScaleArgs) -> anyhow::Result<ExitCode> {
    args.svg.as_deref().map_or(Ok(()), check_svg)?;
    let file = args.file.as_deref().map_or_else(|| Ok(RankFile::numbers()), RankFile::read)?;
    for ranks in &args.ranks {
        check_open_files(&setup(&args, *ranks, 0))?;
    }
    let mut points = Vec::new();
    for stored in &args.checkpoints_stored {
        for ranks in &args.ranks {
            let setup = setup(&args, *ranks, *stored);
            if !args.json && !is_quiet() {
                tell(format!("simulating {} ranks, {stored} stored checkpoints", setup.ranks));
            }
            let point = measure(setup, &file, &args).with_context(|| format!("a job of {ranks} ranks"))?;
            points.push(point);
        }
    }
    let (group_size, steps, delay_us) = (args.group_size.get(), args.steps.get(), args.delay);
    let report = Report { group_size, steps, delay_us, file_bytes: file.len() as u64, points };
    let draw = || args.svg.as_ref().map_or(Ok(()), |path| write_svg(path, &picture::svg(&report)?));
    match args.json {
        // The output is one object, so an error must come first.
        true => draw().and_then(|()| print_json(&report))?,
        false => print(&report::text(&report)).and_then(|()| draw())?,
    }
    Ok(Exit::Done.into())
}

fn setup(args: &BenchScaleArgs, ranks: NonZeroU32, stored: u32) -> Setup {
    let (ranks, group_size) = (ranks.get(), args.group_size.get());
    let groups = ranks.div_ceil(group_size);
    Setup {
        ranks,
        group_size,
        ranks_of_node: args.ranks_of_node.get().max(ranks.div_ceil(NODES_MAX)),
        aggregators: match args.aggregators {
            Some(Aggregators::Number(number)) => number.get(),
            Some(Aggregators::Groups) => groups,
            None => groups.div_ceil(GROUPS_OF_AGGREGATOR),
        },
        stored,
        delay: Duration::from_micros(args.delay.into()),
    }
}

/// Fails if this process may not open as many files as the simulation of a job needs. Each agent has a connection to
/// each aggregator, and each connection needs two descriptors for its ends and two for counting its bytes.
fn check_open_files(setup: &Setup) -> anyhow::Result<()> {
    let (nodes, aggregators) = (u64::from(setup.nodes()), u64::from(setup.aggregators));
    let needed = 4 * nodes * aggregators + 20 * aggregators + 10 * nodes;
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    if needed > limit {
        let ranks = setup.ranks;
        let what = format!(
            "the simulation of {ranks} ranks, {nodes} agents and {aggregators} aggregators opens about {needed} files, \
             and this process may open {limit}"
        );
        return Err(Advised::new(what, "raise the limit (ulimit -n), or give fewer --aggregators").into());
    }
    Ok(())
}

fn measure(setup: Setup, file: &RankFile, args: &BenchScaleArgs) -> anyhow::Result<Point> {
    let memory_before = resident_bytes();
    let mut simulation = Simulation::start(setup, file.clone())?;
    let groups = setup.groups();
    let first = simulation.step(0)?;
    let last = args.steps.get();
    let costs: Vec<Cost> = (1..=last).map(|step| simulation.step(step)).collect::<Result<_, _>>()?;
    let memory_bytes = resident_bytes().zip(memory_before).map(|(after, before)| after.saturating_sub(before));
    let mut failures = Vec::new();
    if args.failures {
        // A failure of ranks takes two steps.
        for (failure, step) in FAILURES.into_iter().zip((last + 1..).step_by(2)) {
            let cost = simulation.step_with(step, failure).with_context(|| failure.name())?;
            let (recovery_ms, operations) = (ms(cost.commit), Operations::new(&cost.counts, groups));
            failures.push(Failed { failure: failure.name(), recovery_ms, operations_per_group: operations });
        }
    }
    simulation.end();
    let median_of = |of: &dyn Fn(&Cost) -> f64| median(costs.iter().map(of).collect());
    let middle = costs.len() / 2;
    let mut by_operations: Vec<&Cost> = costs.iter().collect();
    by_operations.sort_by_key(|cost| cost.counts.operations());
    let counts = by_operations.get(middle).map_or(Counts::default(), |cost| cost.counts);
    Ok(Point {
        ranks: setup.ranks,
        groups,
        nodes: setup.nodes(),
        aggregators: setup.aggregators,
        stored_checkpoints: setup.stored,
        operations_per_group: Operations::new(&counts, groups),
        first_operations_per_group: Operations::new(&first.counts, groups),
        busiest_operations: median_of(&|cost| cost.busiest as f64),
        commit_ms: median_of(&|cost| ms(cost.commit)),
        cpu_ms: median_of(&|cost| ms(cost.cpu)),
        aggregator_cpu_ms: median_of(&|cost| ms(cost.aggregator_cpu)),
        agent_cpu_ms: median_of(&|cost| ms(cost.agent_cpu)),
        wire_bytes_per_rank: (args.file.is_none())
            .then(|| median_of(&|cost| cost.wire_bytes as f64) / f64::from(setup.ranks)),
        memory_bytes,
        failures,
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 if middle > 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values.get(middle).copied().unwrap_or(0.0),
    }
}

/// The memory of this process.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_values_is_between_the_middle_values() {
        assert_eq!([vec![3.0, 1.0, 2.0], vec![4.0, 1.0, 2.0, 3.0], Vec::new()].map(median), [2.0, 2.5, 0.0]);
    }
}
