//! `mpib collective`: times one operation in some or all implementations over sizes, and reports the fastest
//! implementation.

use super::room::Operations;
use super::{Common, Failure, all_fit, bytes, context};
use clap::{Args, ValueEnum};
use mpib::collectives::operation::{AUTO, Collective, Flow, KINDS, Kind, Operation, Setting};
use mpib::comm::Comm;
use mpib::models::lanes::MARGIN;
use mpib::open_mpi;
use mpib::p2p::round_trips;
use mpib::pathfinder::{RATE_REPS, measure_paths};
use mpib::report::{Report, Row};
use mpib::rules;
use mpib::sizes::{Refinement, refine};
use mpib::stats::StoppingRule;
use mpib::timing::{Method, Timer};
use mpib::tune::{Candidates, estimate};
use std::path::PathBuf;

/// Minimum length of the messages that measure the links for `auto`. Shorter messages have no meaningful bandwidth.
const PATHS_LEAST_BYTES: usize = 64 << 10;

#[derive(Args)]
pub struct Options {
    /// The operation
    #[arg(value_enum)]
    operation: KindName,
    /// Implementations, separated by commas; "all" means all implementations
    #[arg(long = "impl", value_delimiter = ',', default_values_t = ["all".to_string()])]
    implementations: Vec<String>,
    /// Block sizes, separated by commas
    #[arg(long, value_parser = bytes, value_delimiter = ',', default_values_t = [64, 1024, 16384, 262_144])]
    sizes: Vec<usize>,
    /// Add sizes where the curve bends (with one implementation), or where another implementation becomes the fastest
    /// (with several implementations)
    #[arg(long)]
    adaptive: bool,
    /// Rank that scatters or gathers
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Also measure Open MPI's own algorithms (coll_tuned_*_algorithm), as open-mpi-1 and so on; --rules includes
    /// this
    #[arg(long)]
    open_mpi: bool,
    /// Write the choice as a rules file for Open MPI's coll_tuned_dynamic_rules_filename, from Open MPI's own
    /// algorithms
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Write the choice as JSON, for a program that uses the library
    #[arg(long, value_name = "FILE")]
    estimates: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The library's operations with their names.
#[derive(Clone, Copy)]
pub struct KindName(pub Kind);

impl ValueEnum for KindName {
    fn value_variants<'a>() -> &'a [Self] {
        const {
            &[
                KindName(KINDS[0]),
                KindName(KINDS[1]),
                KindName(KINDS[2]),
                KindName(KINDS[3]),
                KindName(KINDS[4]),
                KindName(KINDS[5]),
                KindName(KINDS[6]),
                KindName(KINDS[7]),
                KindName(KINDS[8]),
                KindName(KINDS[9]),
                KindName(KINDS[10]),
                KindName(KINDS[11]),
                KindName(KINDS[12]),
                KindName(KINDS[13]),
                KindName(KINDS[14]),
                KindName(KINDS[15]),
            ]
        }
    }
    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

impl Options {
    /// Whether all implementations include Open MPI's algorithms.
    fn all_of_open_mpi(&self) -> bool {
        self.open_mpi || self.rules.is_some()
    }

    /// Whether algorithms of Open MPI are forced.
    pub fn forces_algorithms(&self) -> bool {
        self.all_of_open_mpi() || self.implementations.iter().any(|name| open_mpi::number(name).is_some())
    }
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    let timing = options.common.begin(comm, "a collective operation")?;
    let more: Vec<_> = options.rules.iter().chain(&options.estimates).map(PathBuf::as_path).collect();
    options.common.output.check(comm, &more)?;
    let KindName(kind) = options.operation;
    let n = comm.size();
    all_fit(&options.sizes, comm.size())?;
    if options.root >= n {
        return Err(Failure::Input(format!("--root is {}; there are {n} ranks, from 0", options.root)));
    }
    let sites = if options.common.sites.given() { options.common.sites.two_sites(comm)? } else { Vec::new() };
    let here = sites.iter().filter(|&&s| s == sites[options.root]).count();
    let lanes = if sites.is_empty() { 0 } else { here.min(n - here) };
    let names = if options.implementations.iter().any(|n| n == "all") {
        let own = if options.all_of_open_mpi() { open_mpi::implementations(kind, n) } else { Vec::new() };
        kind.implementations(lanes).into_iter().chain(own).collect()
    } else {
        options.implementations.clone()
    };
    let native = |name: &String| name == "native" || open_mpi::number(name).is_some();
    let operations = Operations {
        kinds: &[kind],
        root: options.root,
        native: names.iter().any(native),
        passes_on: names.iter().any(|name| !native(name) && !name.starts_with("linear")),
    };
    operations.fit(comm, &options.sizes)?;
    let distances = if names.iter().any(|n| n == "sorted") { distances(comm, options.root)? } else { Vec::new() };
    let paths = if names.iter().any(|name| name == AUTO) && !sites.is_empty() {
        let largest = options.sizes.iter().copied().max().unwrap_or(0).max(PATHS_LEAST_BYTES);
        Some(measure_paths(comm, &sites, options.root, largest, RATE_REPS)?)
    } else {
        None
    };
    let setting = Setting { root: options.root, sites: sites.clone(), distances, paths };
    for name in &names {
        Collective::new(kind, name, &setting, n).map_err(Failure::input)?;
    }
    let mut sizes = options.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if kind == Kind::Barrier {
        sizes.truncate(1);
    }
    let title = format!("{} on {n} ranks", kind.name());
    let journal = options.common.output.journal(comm, title.clone(), timing.rule)?;
    let mut timer = Timer::new(comm)?;
    let so_far = journal.clone();
    timer.report_to(move |operation, size, seconds| {
        so_far.add(&Row::new(operation, size, seconds.clone(), &timing.rule));
    });
    let mut notes = Vec::new();
    if let (Some(paths), Some(direction)) = (&setting.paths, kind.direction()) {
        let chosen = |&size: &usize| format!("{} at {size} bytes", paths.choose(direction, size, MARGIN).name());
        notes.push(format!("auto is {}", sizes.iter().map(chosen).collect::<Vec<_>>().join(", ")));
    }
    let symmetric = names.first().is_some_and(|name| {
        Collective::new(kind, name, &setting, n).is_ok_and(|operation| operation.flow() == Flow::Symmetric)
    });
    if timing.method == Method::Specific && symmetric {
        notes.push(format!(
            "{} cannot be divided into single tasks, so these are the longest times of all ranks",
            kind.name()
        ));
    }
    for algorithm in open_mpi::algorithms(kind, n) {
        let name = format!("{}{}", open_mpi::PREFIX, algorithm.number);
        if names.contains(&name) {
            notes.push(format!("{name}: {}", algorithm.name));
        }
    }
    let mut files = Vec::new();
    let rows = if let ([name], true) = (names.as_slice(), options.adaptive) {
        let mut operation =
            Collective::new(kind, name, &setting, n).map_err(Failure::input)?.with_fresh_buffers(timing.fresh_buffers);
        let mut rows = Vec::new();
        refine(&sizes, Refinement::default(), |size| {
            let seconds = timer.measure(&mut operation, size, &timing)?;
            let value = seconds.value(timing.rule.estimate);
            rows.push(Row::new(operation.name(), size, seconds, &timing.rule));
            Ok::<_, Failure>(value)
        })?;
        rows.sort_by_key(|r| r.block_bytes);
        rows
    } else {
        let rounds = if options.adaptive { 8 } else { 0 };
        let of = Candidates { kind, names: &names, setting: &setting };
        let (found, all) = estimate(comm, &mut timer, of, &sizes, &timing, rounds)?;
        let measured: std::collections::BTreeSet<_> = all.iter().map(|a| a.1).collect();
        let mut last = None;
        for size in measured {
            let best = found.best(size).map(String::from);
            if best != last {
                notes.push(format!("from {size} bytes: {}", best.as_deref().unwrap_or("-")));
                last = best;
            }
        }
        if let Some(path) = &options.rules {
            let library = mpi::environment::library_version().unwrap_or_default();
            if rules::Collective::of(kind.name()).is_some_and(|c| c.has_one_rule(&library)) {
                notes.push(format!(
                    "rules: this Open MPI ignores the number of elements for {}: one rule for all sizes, the best overall",
                    kind.name()
                ));
            }
            let chosen = found.chosen(n, &library).ok_or_else(|| {
                Failure::Input(format!("--rules: Open MPI has no rules for {} with these implementations", kind.name()))
            })?;
            files.push((path.clone(), rules::write(vec![chosen])));
        }
        if let Some(path) = &options.estimates {
            files.push((path.clone(), serde_json::to_string_pretty(&found).map_err(Failure::input)?));
        }
        all.into_iter().map(|(operation, bytes, seconds)| Row::new(operation, bytes, seconds, &timing.rule)).collect()
    };
    let report = Report {
        title,
        context: context(comm, Some(timer.clock()), &sites)?,
        rule: timing.rule,
        rows,
        notes,
        found: serde_json::json!({ "timing": timing }),
        ..Report::default()
    };
    journal.end();
    options.common.output.write_with(comm, &report, &files)
}

/// Distance of each rank from the root in seconds: the fastest of ten round trips. All ranks must call this function.
fn distances(comm: &Comm, root: usize) -> Result<Vec<f64>, Failure> {
    let mut distances = vec![0.0; comm.size()];
    for (rank, distance) in distances.iter_mut().enumerate().filter(|(r, _)| *r != root) {
        if [root, rank].contains(&comm.rank()) {
            let trips = round_trips(comm, root, rank, 0, 0, &StoppingRule::fixed(10))?;
            *distance = trips.into_iter().fold(f64::INFINITY, f64::min);
        }
    }
    comm.broadcast(&mut distances, root)?;
    Ok(distances)
}
