//! `mpib jor`: measures the gain from coupling two sites, for an unmodified program and for an adapted program.

use super::room::ranks_fit;
use super::{Failure, Output, SiteOptions, at_least, context};
use clap::{Args, ValueEnum};
use mpib::comm::Comm;
use mpib::jor::bench::{JorError, Outcome, Plan, balanced, run as bench, solve};
use mpib::jor::{CLASSES, Cut, Problem, Serial, balanced_rows, error_evolution, iterations};
use mpib::report::{Line, Plot, Point, Quantity, Report, Row, people, percent};
use mpib::stats::{Interval, StoppingRule, Summary};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Options {
    /// Problem classes, separated by commas: S, W, A, B and C (N = 16, 128, 256, 512, 1024); figures compare them
    #[arg(long, value_delimiter = ',', default_values_t = ["S".to_string()])]
    class: Vec<String>,
    /// N, instead of a class
    #[arg(long, value_name = "N")]
    size: Option<usize>,
    /// Iterations between exchanges of the sites, separated by commas; the period 1 is always included, and also the
    /// period that is predicted to be the best from probes of an iteration and an exchange
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    periods: Vec<usize>,
    /// Limit each rank of site 0 and of site 1 to this number of points per second, for example 200000,100000
    #[arg(long, value_delimiter = ',', value_name = "POINTS,POINTS")]
    pace: Vec<f64>,
    /// Power of site 0 divided by the power of site 1; default: measured
    #[arg(long)]
    balance: Option<f64>,
    /// How an area is divided among the ranks of a site
    #[arg(long, value_enum, default_value_t = CutName::Strips)]
    cut: CutName,
    /// Ranks of both sites to use, separated by commas, for example 1+1,2+2,4+2; default: all
    #[arg(long, value_delimiter = ',', value_name = "NEAR+FAR")]
    procs: Vec<String>,
    /// Number of repetitions of each run; the median is reported, with an interval from 6 repetitions on; default: 7
    /// for N up to 128, and 1 for larger N, where a run takes minutes
    #[arg(long)]
    reps: Option<usize>,
    /// Confidence level of the intervals
    #[arg(long, default_value_t = 0.95)]
    confidence: f64,
    /// Begin no repetition after this time, for each class, number of ranks and cut; each run is done at least once
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,
    /// Maximum number of iterations of each run (at least one period); the times are scaled to all iterations
    #[arg(long, value_name = "ITERATIONS")]
    sample: Option<usize>,
    /// Compare the result at period 1 with a serial run bit by bit
    #[arg(long)]
    verify: bool,
    /// Write figures 3 and 5 to 9 of the paper as SVG files into this directory
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Run as an application: once, at the first of --periods; write an HDF5 file of each rank to this directory, and
    /// start from the newest iteration that all ranks have
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Iterations between checkpoints
    #[arg(long, default_value_t = 100)]
    checkpoint_every: usize,
    /// Iterations of the application, instead of the number that reduces the error to a tenth
    #[arg(long)]
    iterations: Option<usize>,
    #[command(flatten)]
    sites: SiteOptions,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum CutName {
    /// Whole rows
    Strips,
    /// Rectangles
    Blocks,
    /// First strips, then blocks
    Both,
}

impl From<JorError> for Failure {
    fn from(error: JorError) -> Self {
        match error {
            JorError::Comm(error) => error.into(),
            JorError::Cut(error) => Self::input(error),
        }
    }
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    options.output.check(comm, &[])?;
    at_least(comm, 2, "a coupling of two sites")?;
    let plans = classes(options)?.into_iter().map(|(class, n)| Ok((class, plan(options, n)?)));
    let mut plans = plans.collect::<Result<Vec<_>, Failure>>()?;
    let sites = options.sites.two_sites(comm)?;
    plans.iter_mut().for_each(|(_, plan)| plan.sites.clone_from(&sites));
    let plan = plans[0].1.clone();
    if let Some(directory) = &options.checkpoint_dir {
        return application(comm, options, &plan, directory);
    }
    let of_site = |site| (0..comm.size()).filter(|&r| sites[r] == site).collect::<Vec<_>>();
    let (near, far) = (of_site(0), of_site(1));
    let mut runs = Vec::new();
    for text in &options.procs {
        runs.push(procs(text, near.len(), far.len())?);
    }
    if runs.is_empty() {
        runs.push((near.len(), far.len()));
    }
    let cuts = match options.cut {
        CutName::Strips => vec![Cut::Strips],
        CutName::Blocks => vec![Cut::Blocks],
        CutName::Both => vec![Cut::Strips, Cut::Blocks],
    };
    // Reject invalid partitions before the runs, which may take an hour.
    for (_, plan) in &plans {
        for (&cut, &(upper, lower)) in cuts.iter().flat_map(|c| runs.iter().map(move |r| (c, r))) {
            can_run(plan.n, cut, upper, lower, plan.ratio)?;
        }
        if options.verify {
            can_run(plan.n, Cut::Strips, near.len(), far.len(), plan.ratio)?;
        }
    }
    for (class, plan) in &plans {
        let need = Need { options, plan, runs: &runs, near: &near, far: &far };
        let option = options.size.map_or_else(|| format!("--{class}"), |n| format!("--size {n}"));
        ranks_fit(comm, &option, |rank| need.bytes_of_rank(rank))?;
    }
    if let Some(directory) = &options.figures {
        options.output.check_figures(comm, directory, FIGURE_5)?;
    }
    let points: Vec<_> = plans.iter().map(|(_, plan)| format!("{} x {}", 2 * plan.n, plan.n)).collect();
    let title = format!("JOR, {} points, {} + {} ranks", points.join(", "), near.len(), far.len());
    let rule = plan.rule();
    let journal = options.output.journal(comm, title.clone(), rule)?;
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    let mut all = Vec::new();
    let several = plans.len() > 1;
    for ((class, plan), &(upper, lower)) in plans.iter().flat_map(|p| runs.iter().map(move |r| (p, r))) {
        let chosen: Vec<usize> = near[..upper].iter().chain(&far[..lower]).copied().collect();
        let some = comm.split(u16::from(chosen.contains(&comm.rank())))?;
        let mut sorted = chosen.clone();
        sorted.sort_unstable();
        for &cut in &cuts {
            let plan = Plan { sites: sorted.iter().map(|&r| sites[r]).collect(), cut, ..plan.clone() };
            let cut_name = cut_name(cut);
            let prefix = if several { format!("{class} ") } else { String::new() };
            let row = |name: &str, seconds: &Summary| {
                let name = format!("{prefix}{upper}+{lower} {cut_name}: {name}");
                Row::new(name, BORDER_BYTES * plan.n, seconds.clone(), &plan.rule())
            };
            // Ranks that are not chosen get the results from rank 0, which is always chosen.
            let measure = || bench(&some, &plan, |name, seconds| journal.put(&row(name, seconds)));
            let outcome = if chosen.contains(&comm.rank()) { Some(measure()?) } else { None };
            let text = outcome.map(|o| serde_json::to_vec(&o)).transpose().map_err(Failure::input)?;
            let told = comm.all_bytes(&text.unwrap_or_default())?;
            let told = told.iter().find(|t| !t.is_empty()).map(|t| serde_json::from_slice::<Outcome>(t));
            let outcome = told.transpose().map_err(Failure::input)?.unwrap_or_default();
            if several {
                notes.push(format!("{class}: {} x {} points", 2 * plan.n, plan.n));
            }
            notes.extend(lines(&outcome, upper, lower, cut, &plan));
            rows.extend(outcome.times.iter().map(|(name, seconds)| row(name, seconds)));
            all.push(Run {
                class: class.clone(),
                n: plan.n,
                near: upper,
                far: lower,
                cut,
                confidence: plan.confidence,
                outcome,
            });
        }
        comm.barrier()?;
    }
    if options.verify {
        for (_, plan) in &plans {
            notes.push(verify(comm, plan)?);
        }
    }
    if let Some(directory) = &options.figures {
        let write = || figures(directory, &all).map_err(|e| format!("{}: {e}", directory.display()));
        comm.agree(if comm.rank() == 0 { write() } else { Ok(()) })?;
    }
    let found: Vec<_> = all
        .iter()
        .map(|run| {
            serde_json::json!({
                "class": run.class, "n": run.n, "near": run.near, "far": run.far, "cut": run.cut, "outcome": run.outcome
            })
        })
        .collect();
    let report = Report {
        figure: Some(over_period(&all)),
        title,
        context: context(comm, None, &sites)?,
        rule,
        rows,
        notes,
        found: serde_json::json!({ "n": plan.n, "pace": plan.pace, "runs": found }),
        ..Report::default()
    };
    journal.end();
    options.output.write(comm, &report)
}

/// One run of the benchmark.
struct Run {
    /// The class, or N.
    class: String,
    n: usize,
    near: usize,
    far: usize,
    cut: Cut,
    /// Confidence level of the intervals.
    confidence: f64,
    outcome: Outcome,
}

/// The memory that a problem needs.
struct Need<'o> {
    options: &'o Options,
    plan: &'o Plan,
    /// Ranks of both sites of each run.
    runs: &'o [(usize, usize)],
    near: &'o [usize],
    far: &'o [usize],
}

/// Bytes of a point of an area, which has an old and a new value.
const POINT_BYTES: usize = 2 * size_of::<f64>();

impl Need<'_> {
    /// Bytes of a rank at the same time.
    fn bytes_of_rank(&self, rank: usize) -> usize {
        let whole = POINT_BYTES * Problem::whole(self.plan.n).points();
        // Each site computes the whole problem alone.
        let share = |&(upper, lower): &(usize, usize)| {
            let near = self.near[..upper].contains(&rank).then(|| whole / upper);
            near.or_else(|| self.far[..lower].contains(&rank).then(|| whole / lower)).unwrap_or(0)
        };
        let alone = self.runs.iter().map(share).max().unwrap_or(0);
        // The number of iterations of a period is computed by one rank, and needs as many values as there are points.
        let counts = if rank < self.plan.periods.len().max(2) { whole } else { 0 };
        // A comparison has all points of a serial run, and all points of the ranks twice.
        let verify = if self.options.verify { 2 * whole } else { 0 };
        let figures = if self.options.figures.is_some() && rank == 0 { whole } else { 0 };
        alone.max(counts).max(verify).max(figures)
    }
}

/// The file of `--figures` that is always drawn.
const FIGURE_5: &str = "figure-5.svg";

/// Label of the axis of figure 3.
const ITERATIONS: &str = "iterations";

/// Bytes of one value of the border. The front-ends exchange these values.
const BORDER_BYTES: usize = size_of::<f64>();

/// Rejects numbers of ranks for which a run of both sites together, or of one site alone, has a rank without points.
fn can_run(n: usize, cut: Cut, upper: usize, lower: usize, ratio: Option<f64>) -> Result<(), Failure> {
    let (whole, half) = (Problem::whole(n), Problem::half(n));
    for alone in [upper, lower] {
        mpib::jor::parts(half, cut, alone, 0, half.rows).map_err(Failure::input)?;
    }
    let rows = balanced_rows(whole.rows, ratio.unwrap_or(1.0), upper, lower);
    mpib::jor::parts(whole, cut, upper, lower, rows).map_err(Failure::input)?;
    Ok(())
}

#[cfg(not(feature = "hdf5"))]
fn application(_: &Comm, _: &Options, _: &Plan, _: &Path) -> Result<String, Failure> {
    Err(Failure::Input("--checkpoint-dir: this build has no HDF5 (cargo build --release --features hdf5)".into()))
}

/// A run that writes checkpoints and starts from them. The last line of its output is a digest of all points, which
/// does not depend on how often the run was killed.
#[cfg(feature = "hdf5")]
fn application(comm: &Comm, options: &Options, plan: &Plan, directory: &Path) -> Result<String, Failure> {
    use mpib::jor::bench::solve_from;
    use mpib::jor::checkpoint::Checkpoints;
    let every = options.checkpoint_every;
    if every == 0 {
        return Err(Failure::Input("--checkpoint-every is 0; it must be at least 1".into()));
    }
    let made = std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()));
    comm.agree(made)?;
    let period = options.periods.first().copied().unwrap_or(1).max(1);
    let ratio = plan.ratio.unwrap_or(1.0);
    let of_site = |site| plan.sites.iter().filter(|&&s| s == site).count();
    let whole = Problem::whole(plan.n);
    let rows = balanced_rows(whole.rows, ratio, of_site(0), of_site(1));
    let count = options.iterations.unwrap_or_else(|| iterations(whole, rows, period));
    let checkpoints = Checkpoints::new(directory, comm.rank());
    let mut from = 0;
    let load = |block: &mut mpib::jor::Block| {
        from = checkpoints.newest(comm, block)?;
        Ok(from)
    };
    let after = |iteration: usize, block: &mpib::jor::Block| {
        if iteration.is_multiple_of(every) { checkpoints.save(iteration, block) } else { Ok(()) }
    };
    let values = solve_from(comm, plan, ratio, period, load, count, after)?;
    // FNV-1a over the bits of all points.
    let digest = values
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    Ok(format!("started at iteration {from}, ended at {count}\ndigest {digest:016x}\n"))
}

/// The names and the sizes N of the problems.
fn classes(options: &Options) -> Result<Vec<(String, usize)>, Failure> {
    if let Some(n) = options.size {
        return Ok(vec![(format!("N = {n}"), n)]);
    }
    let of = |text: &String| {
        let class = CLASSES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let (name, n) = class.ok_or_else(|| format!("--class is {text:?}; there are S, W, A, B and C"))?;
        Ok((format!("class {name}"), *n))
    };
    options.class.iter().map(of).collect::<Result<_, String>>().map_err(Failure::Input)
}

/// The plan from the options for 2N x N points, with empty sites.
fn plan(options: &Options, n: usize) -> Result<Plan, Failure> {
    if !(2..=16384).contains(&n) {
        return Err(Failure::Input(format!("--size is {n}; N must be 2 to 16384")));
    }
    let good = |rate: &f64| rate.is_finite() && *rate >= 1.0;
    let pace = match options.pace.as_slice() {
        [] => None,
        [near, far] if good(near) && good(far) => Some([*near, *far]),
        other => {
            return Err(Failure::Input(format!(
                "--pace is {other:?}; it must be two numbers of at least 1, as in 200000,100000"
            )));
        }
    };
    if let Some(ratio) = options.balance.filter(|r| !(r.is_finite() && *r > 0.0)) {
        return Err(Failure::Input(format!("--balance is {ratio}; it must be more than 0")));
    }
    let reps = options.reps.unwrap_or(if n <= 128 { 7 } else { 1 });
    if !(1..=1000).contains(&reps) {
        return Err(Failure::Input(format!("--reps is {reps}; it must be 1 to 1000")));
    }
    let (confidence, max_seconds) = (options.confidence, options.time_limit);
    StoppingRule { confidence, max_seconds, ..StoppingRule::fixed(reps) }.check().map_err(Failure::input)?;
    if options.sample == Some(0) {
        return Err(Failure::Input("--sample is 0; at least 1 iteration is needed".into()));
    }
    let mut periods = options.periods.clone();
    periods.push(1);
    periods.sort_unstable();
    periods.dedup();
    if periods[0] == 0 || periods.len() > 64 || periods.last().is_some_and(|&p| p > 100_000) {
        return Err(Failure::Input("--periods: up to 63 numbers from 1 to 100000".into()));
    }
    Ok(Plan {
        n,
        sites: Vec::new(),
        pace,
        periods,
        cut: Cut::Strips,
        ratio: options.balance,
        reps,
        confidence,
        max_seconds,
        sample: options.sample,
    })
}

fn procs(text: &str, near: usize, far: usize) -> Result<(usize, usize), Failure> {
    let numbers = text.split_once('+').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match numbers {
        Some((a, b)) if (1..=near).contains(&a) && (1..=far).contains(&b) => Ok((a, b)),
        _ => Err(Failure::Input(format!(
            "--procs {text:?}: expected ranks of both sites, at least 1+1 and at most {near}+{far}"
        ))),
    }
}

fn lines(o: &Outcome, near: usize, far: usize, cut: Cut, plan: &Plan) -> Vec<String> {
    let cut = cut_name(cut);
    let mut lines = vec![
        format!(
            "{near} + {far} ranks, {cut}; front-ends: ranks {} and {}, {} there and back",
            o.front_ends[0],
            o.front_ends[1],
            people(o.front_end_seconds)
        ),
        format!(
            "each site alone: {} and {} on N x N, {} and {} on 2N x N",
            people(o.half_seconds[0]),
            people(o.half_seconds[1]),
            people(o.whole_seconds[0]),
            people(o.whole_seconds[1])
        ),
        format!(
            "power ratio {:.3}{} (on 2N x N {:.3}{}{}); balanced: {} of {} rows",
            o.ratio,
            between(o.ratio_interval),
            o.ratio_whole,
            between(o.ratio_whole_interval),
            match o.cache_crossed {
                Some(true) => ": a cache boundary lies between",
                Some(false) => "",
                None => "; too few repetitions to tell a cache boundary",
            },
            o.balanced_rows,
            2 * plan.n
        ),
        format!("transparent: {}", people(o.transparent_seconds)),
        format!(
            "an iteration takes {} and an exchange between the sites {} more: period {} chosen",
            people(o.inner_seconds),
            people(o.exchange_seconds),
            o.chosen_period
        ),
    ];
    for ((period, count, seconds), left) in o.periods.iter().zip(&o.errors_left) {
        let time = people(*seconds);
        let chosen = if *period == o.chosen_period { " (chosen)" } else { "" };
        let left = match plan.sample {
            Some(some) => format!("in proportion to {some} of them"),
            None => format!("{left:.6} of the error is left"),
        };
        lines.push(format!("balanced, period {period}{chosen}: {count} iterations, {time}; {left}"));
    }
    lines.push(format!(
        "artless speedup {:.3}{}, artful speedup {:.3}{} at period {}",
        o.artless,
        between(o.artless_interval),
        o.artful,
        between(o.artful_interval),
        o.best_period
    ));
    if o.artful_interval.is_none() {
        let level = percent(plan.confidence);
        // The probability that all n repetitions are on the same side of the true median is 2 / 2^n.
        let enough = (1.0 - (1.0 - plan.confidence).log2()).ceil();
        let reps = o.times.iter().map(|(_, seconds)| seconds.reps).min().unwrap_or(0);
        let s = if reps == 1 { "" } else { "s" };
        lines.push(format!("{reps} repetition{s}: too few for intervals at {level} (--reps {enough})"));
    }
    lines
}

/// An interval in brackets, or nothing.
fn between(interval: Option<Interval>) -> String {
    interval.map_or(String::new(), |i| format!(" [{:.3} to {:.3}]", i.low, i.high))
}

/// Compares the whole solution at period 1 on all ranks with the solution of one process.
fn verify(comm: &Comm, plan: &Plan) -> Result<String, Failure> {
    let plan = Plan { pace: None, ..plan.clone() };
    let count = iterations(Problem::whole(plan.n), 0, 1).min(1000);
    let together = solve(comm, &plan, plan.ratio.unwrap_or(1.5), 1, count)?;
    let mut serial = Serial::new(Problem::whole(plan.n), 0, 1);
    (0..count).for_each(|_| serial.step());
    let differ = together.iter().zip(serial.values()).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    match differ {
        0 => Ok(format!(
            "period 1, {count} iterations: all {} points are those of a serial run, bit by bit",
            together.len()
        )),
        some => Err(Failure::Output(format!("period 1: {some} points differ from a serial run"))),
    }
}

/// Writes figures 3 and 5 to 9 of the paper, except figures for which the runs contain no data.
fn figures(directory: &Path, runs: &[Run]) -> std::io::Result<()> {
    let write = |name: &str, title: &str, x: &str, y: &str, lines: Vec<Line>| {
        if lines.is_empty() {
            return Ok(());
        }
        // Numbers of ranks are usually powers of two.
        let quantities = (Quantity::Number, Quantity::Number);
        let log = [x != ITERATIONS, false];
        let plot = Plot { title: title.into(), x: x.into(), y: y.into(), log, quantities, lines };
        std::fs::write(directory.join(name), plot.svg())
    };
    let Some(n) = runs.first().map(|run| run.n) else { return Ok(()) };
    let problem = Problem::whole(n);
    let ten = iterations(problem, n, 10).min(20_000);
    let evolution = |period| {
        let points = error_evolution(problem, n, period, ten);
        points.into_iter().map(|(k, e)| Point::at(k as f64, e)).collect()
    };
    let both = vec![Line::new("synchronous", evolution(1)), Line::new("period 10", evolution(10))];
    write("figure-3.svg", "Error over iterations", ITERATIONS, "error", both)?;
    std::fs::write(directory.join(FIGURE_5), over_period(runs).svg())?;
    let nodes = "ranks of each site";
    let artless = |run: &Run| (run.outcome.artless, run.outcome.artless_interval);
    let artful = |run: &Run| (run.outcome.artful, run.outcome.artful_interval);
    let speedup = match runs[0].outcome.artful_interval {
        Some(_) => format!("speedup (median, {} interval)", percent(runs[0].confidence)),
        None => "speedup (median)".into(),
    };
    write("figure-6.svg", "Artless speedup", nodes, &speedup, over_ranks(runs, true, "artless", &artless))?;
    write("figure-7.svg", "Artful speedup", nodes, &speedup, over_ranks(runs, true, "artful", &artful))?;
    let deviation = |run: &Run| (100.0 * (run.outcome.balanced_rows as f64 / run.n as f64 - 1.0), None);
    let mut shares = over_ranks(runs, true, "site 0", &deviation);
    shares.extend(over_ranks(runs, true, "site 1", &|run| (-deviation(run).0, None)));
    write("figure-8.svg", "Load compared with an even one", nodes, "percent", shares)?;
    let mut unequal = over_ranks(runs, false, "artless", &artless);
    unequal.extend(over_ranks(runs, false, "artful", &artful));
    write("figure-9.svg", "Speedup, unequal numbers of ranks", "ranks of site 0", &speedup, unequal)
}

/// Run time over period: figure 5. The times of different classes differ by powers of ten, so both axes are
/// logarithmic.
fn over_period(runs: &[Run]) -> Plot {
    let mut intervals = false;
    let line = |run: &Run| {
        let points = run.outcome.periods.iter().map(|&(period, _, seconds)| {
            let name = balanced(period);
            let times = run.outcome.times.iter().find(|(found, _)| *found == name).map(|(_, times)| times);
            let interval = times.and_then(|times| times.median_interval);
            intervals |= interval.is_some();
            bar(period as f64, seconds, interval)
        });
        Line::new(format!("{}, {}+{} {}", run.class, run.near, run.far, cut_name(run.cut)), points.collect())
    };
    let lines = runs.iter().map(line).collect();
    let y = match runs.first().filter(|_| intervals) {
        Some(run) => format!("time (median, {} interval)", percent(run.confidence)),
        None => "time (median)".into(),
    };
    let quantities = (Quantity::Number, Quantity::Seconds);
    Plot { title: "Run time over period".into(), x: "period".into(), y, log: [true; 2], quantities, lines }
}

/// A point, with a bar if there is an interval.
fn bar(x: f64, y: f64, interval: Option<Interval>) -> Point {
    interval.map_or(Point::at(x, y), |Interval { low, high }| Point { x, y, low, high })
}

fn cut_name(cut: Cut) -> String {
    format!("{cut:?}").to_lowercase()
}

/// A value of a run with its interval.
type Valued<'f> = dyn Fn(&Run) -> (f64, Option<Interval>) + 'f;

/// A value over the ranks of site 0, for equal or for different numbers of ranks of both sites. Each class and cut is
/// a line.
fn over_ranks(runs: &[Run], equal: bool, name: &str, value: &Valued) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for run in runs.iter().filter(|run| (run.near == run.far) == equal) {
        let name = format!("{name}, {}, {}", run.class, cut_name(run.cut));
        let (y, interval) = value(run);
        let point = bar(run.near as f64, y, interval);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line::new(name, vec![point])),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    lines
}
