//! `mpib lanes`: measures and models the gain of several lanes between two sites for scatter and gather.

use super::room::sizes_fit;
use super::{Common, Failure, all_fit, bytes_not_zero, context, rate};
use clap::Args;
use mpib::collectives::operation::{Collective, Kind, Operation, Setting};
use mpib::comm::Comm;
use mpib::models::lanes::{Chosen, Direction, Lan, MARGIN, PathModel, VARIANTS, Variant, Wan};
use mpib::pathfinder::measure_paths;
use mpib::report::{Line, Plot, Point, Quantity, Report, Row, people, percent, size};
use mpib::stats::StoppingRule;
use mpib::timing::Timer;
use mpib::wan::{Counter, rates};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct Options {
    /// Block sizes, separated by commas
    #[arg(long, value_parser = bytes_not_zero, value_delimiter = ',', default_values_t = [1 << 20])]
    sizes: Vec<usize>,
    /// Rank that scatters and gathers
    #[arg(long, default_value_t = 0)]
    root: usize,
    /// Number of repetitions of each bandwidth measurement; the median counts
    #[arg(long, default_value_t = mpib::pathfinder::RATE_REPS)]
    rate_reps: usize,
    /// The model chooses lanes only if they are faster than linear-nonblocking by at least this fraction
    #[arg(long, default_value_t = MARGIN)]
    margin: f64,
    /// Write figures 4, 5, 9 and 10 of the paper as SVG files into this directory: time over size and time over the
    /// number of lanes, measured and by the models
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Counters of the card through which the root's site sends to the other site, in a file like /proc/net/dev that
    /// rank 0 can read. With this option, --figures also writes figures 7 and 8: the use of the WAN over time with
    /// one lane and with several lanes
    #[arg(long, value_name = "FILE:CARD", requires = "figures")]
    wan_counter: Option<Counter>,
    #[command(flatten)]
    common: Common,
}

pub fn run(comm: &Comm, options: &Options) -> Result<String, Failure> {
    let timing = options.common.begin(comm, "two sites")?;
    let n = comm.size();
    all_fit(&options.sizes, comm.size())?;
    if options.root >= n {
        return Err(Failure::Input(format!("--root is {}; there are {n} ranks, from 0", options.root)));
    }
    // The first rank of a lane collects the blocks of several ranks, as a rank of a tree does.
    let index = |rank: usize| (rank + n - options.root) % n;
    sizes_fit(comm, &options.sizes, |size, rank| Kind::Scatter.bytes_of_rank(size, n, index(rank), true))?;
    if let Some(directory) = &options.figures {
        options.common.output.check_figures(comm, directory, "figure-4.svg")?;
    }
    if !(0.0..1.0).contains(&options.margin) {
        return Err(Failure::Input(format!("--margin is {}; it must be at least 0 and less than 1", options.margin)));
    }
    if !(1..=1000).contains(&options.rate_reps) {
        return Err(Failure::Input(format!("--rate-reps is {}; it must be 1 to 1000", options.rate_reps)));
    }
    if let Some(counter) = &options.wan_counter {
        let read = if comm.rank() == 0 { counter.read().map(|_| ()) } else { Ok(()) };
        comm.agree(read).map_err(|error| Failure::Input(format!("--wan-counter {error}")))?;
    }
    let sites = options.common.sites.two_sites(comm)?;
    let setting = Setting { root: options.root, sites: sites.clone(), ..Setting::default() };
    let largest = options.sizes.iter().copied().max().unwrap_or(1);
    let model = measure_paths(comm, &sites, options.root, largest, options.rate_reps)?;
    let title = format!("{} + {} ranks, root {}", model.near_ranks, model.far_ranks, options.root);
    let journal = options.common.output.journal(comm, title.clone(), timing.rule)?;
    let mut timer = Timer::new(comm)?;
    let mut rows = Vec::new();
    let mut notes = paths(&model);
    let mut found = Vec::new();
    for &size in &options.sizes {
        for (kind, direction) in [(Kind::Scatter, Direction::Scatter), (Kind::Gather, Direction::Gather)] {
            let names = ["native", "linear", "linear-nonblocking"].map(String::from).into_iter();
            let names: Vec<_> = names.chain((1..=model.max_lanes()).map(|p| format!("lanes-{p}"))).collect();
            let mut medians = BTreeMap::new();
            for name in &names {
                let mut operation = Collective::new(kind, name, &setting, n).map_err(Failure::input)?;
                let seconds = timer.measure(&mut operation, size, &timing)?;
                medians.insert(name.clone(), seconds.value(timing.rule.estimate));
                let row = Row::new(format!("{}/{name}", kind.name()), size, seconds, &timing.rule);
                journal.add(&row);
                rows.push(row);
            }
            let choice = Choice::of(&model, direction, size, options.margin, &medians);
            notes.extend(choice.lines(kind.name()));
            found.push(choice.json(kind.name()));
        }
    }
    let mut sizes = options.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let drawn = Drawn { model: &model, rows: &rows, rule: timing.rule, sizes };
    let mut figures = Vec::new();
    if let Some(directory) = &options.figures {
        for (kind, direction, over_size, over_lanes) in
            [(Kind::Scatter, Direction::Scatter, 4, 9), (Kind::Gather, Direction::Gather, 5, 10)]
        {
            let name = |number: usize| directory.join(format!("figure-{number}.svg"));
            figures.push((name(over_size), drawn.over_size(kind, direction).svg()));
            figures.push((name(over_lanes), drawn.over_lanes(&[(kind, direction)]).svg()));
        }
    }
    let both = [(Kind::Scatter, Direction::Scatter), (Kind::Gather, Direction::Gather)];
    let mut uses = Vec::new();
    if let (Some(counter), Some(directory)) = (&options.wan_counter, &options.figures) {
        for ((kind, direction), number) in both.into_iter().zip([7, 8]) {
            let mut lines = Vec::new();
            for count in single_and_several(&model, direction, largest, options.margin) {
                let wan_use = WanUse::measure(comm, counter, &setting, (kind, direction), count, largest)?;
                notes.push(wan_use.note());
                lines.push(Line::new(lanes(count), wan_use.points()));
                uses.push(wan_use.json());
            }
            let title = format!("{} of {}: use of the WAN over time, one run each", kind.name(), size(largest));
            let (x, y) = ("time".into(), "Mbit/s with all headers".into());
            let quantities = (Quantity::Seconds, Quantity::Number);
            let plot = Plot { title, x, y, log: [false; 2], quantities, lines };
            figures.push((directory.join(format!("figure-{number}.svg")), plot.svg()));
        }
    }
    // A plot over one size would be a column of dots.
    let figure = (drawn.sizes.len() == 1).then(|| drawn.over_lanes(&both));
    let report = Report {
        figure,
        title,
        context: context(comm, Some(timer.clock()), &sites)?,
        rule: timing.rule,
        rows,
        notes,
        found: serde_json::json!({ "paths": model, "choices": found, "wan_use": uses }),
        ..Report::default()
    };
    journal.end();
    options.common.output.write_with(comm, &report, &figures)
}

/// The measured times and the models, for figures.
struct Drawn<'r> {
    model: &'r PathModel,
    rows: &'r [Row],
    rule: StoppingRule,
    sizes: Vec<usize>,
}

impl Drawn<'_> {
    /// A measured time as a point at `x`.
    fn point(&self, kind: Kind, name: &str, size: usize, x: f64) -> Option<Point> {
        let name = format!("{}/{name}", kind.name());
        let row = self.rows.iter().find(|row| row.operation == name && row.block_bytes == size)?;
        let y = row.seconds.value(self.rule.estimate);
        let interval = row.seconds.interval(self.rule.estimate);
        Some(interval.map_or(Point::at(x, y), |i| Point { x, y, low: i.low, high: i.high }))
    }

    fn plot(&self, title: String, x: &str, log: [bool; 2], quantity: Quantity, lines: Vec<Line>) -> Plot {
        let bars = lines.iter().flat_map(|line| &line.points).any(|point| point.low != point.high);
        let interval = if bars { format!(", {} interval", percent(self.rule.confidence)) } else { String::new() };
        let y = format!("time ({}{interval})", self.rule.estimate.name());
        Plot { title, x: x.into(), y, log, quantities: (quantity, Quantity::Seconds), lines }
    }

    /// Time over size: linear and each number of lanes, measured and by the overlapped model.
    fn over_size(&self, kind: Kind, direction: Direction) -> Plot {
        let measured = |name: &str| -> Vec<Point> {
            self.sizes.iter().filter_map(|&size| self.point(kind, name, size, size as f64)).collect()
        };
        let predicted = |seconds: &dyn Fn(usize) -> f64| -> Vec<Point> {
            self.sizes.iter().map(|&size| Point::at(size as f64, seconds(size))).collect()
        };
        let linear = predicted(&|size| self.model.linear_nonblocking_seconds(direction, size));
        let mut lines = vec![
            Line::new("linear", measured("linear")),
            Line::new("linear-nonblocking", measured("linear-nonblocking")),
            Line::model("linear-nonblocking, model", linear),
        ];
        for p in 1..=self.model.max_lanes() {
            let seconds = |size| self.model.lanes_seconds(Variant::Overlapped, direction, p, size);
            lines.push(Line::new(lanes(p), measured(&format!("lanes-{p}"))));
            lines.push(Line::model(format!("{}, model", lanes(p)), predicted(&seconds)));
        }
        let title = format!("{} over lanes: time over size", kind.name());
        self.plot(title, "bytes of a block", [true; 2], Quantity::Bytes, lines)
    }

    /// Time over the number of lanes for each size: measured and by each model.
    fn over_lanes(&self, kinds: &[(Kind, Direction)]) -> Plot {
        let mut lines = Vec::new();
        for (&(kind, direction), &bytes) in kinds.iter().flat_map(|k| self.sizes.iter().map(move |s| (k, s))) {
            let name = if kinds.len() > 1 { format!("{}, ", kind.name()) } else { String::new() };
            let all = 1..=self.model.max_lanes();
            let measured = all.clone().filter_map(|p| self.point(kind, &format!("lanes-{p}"), bytes, p as f64));
            lines.push(Line::new(format!("{name}{}", size(bytes)), measured.collect()));
            for (variant, model) in [
                (Variant::Overlapped, "overlapped model"),
                (Variant::Section42, "section 4.2"),
                (Variant::Table1, "table 1"),
            ] {
                let seconds = |p| self.model.lanes_seconds(variant, direction, p, bytes);
                let points = all.clone().map(|p| Point::at(p as f64, seconds(p))).collect();
                lines.push(Line::model(format!("{name}{}, {model}", size(bytes)), points));
            }
        }
        let name = if let [(kind, _)] = kinds { kind.name() } else { "scatter and gather" };
        // The times of different sizes differ by powers of ten.
        let log = [false, self.sizes.len() > 1];
        self.plot(format!("{name}: time over the number of lanes"), "lanes", log, Quantity::Number, lines)
    }
}

fn lanes(count: usize) -> String {
    format!("{count} lane{}", if count == 1 { "" } else { "s" })
}

/// One lane, and the number of lanes that the model chooses, or all lanes if the model chooses none.
fn single_and_several(model: &PathModel, direction: Direction, size: usize, margin: f64) -> Vec<usize> {
    let several = match model.choose(direction, size, margin) {
        Chosen::Lanes(several) if several > 1 => several,
        _ => model.max_lanes(),
    };
    let mut counts = vec![1, several];
    counts.dedup();
    counts
}

/// The rate on the WAN during one scatter or gather. Only rank 0 has rates.
struct WanUse {
    kind: Kind,
    size: usize,
    lanes: usize,
    window_seconds: f64,
    /// Bytes per second in each window.
    rates: Vec<f64>,
}

/// Time between two readings of the counter.
const WAN_INTERVAL: Duration = Duration::from_millis(2);
/// Minimum length of a window. The emulated links send bursts of 4 ms.
const WAN_WINDOW_SECONDS: f64 = 0.01;
/// Maximum number of windows in a figure.
const WAN_WINDOWS_MAX: f64 = 100.0;

impl WanUse {
    /// Runs the operation twice, and watches the counter during the second run. All ranks must call this function.
    fn measure(
        comm: &Comm,
        counter: &Counter,
        setting: &Setting,
        (kind, direction): (Kind, Direction),
        lanes: usize,
        size: usize,
    ) -> Result<Self, Failure> {
        let name = format!("lanes-{lanes}");
        let mut operation = Collective::new(kind, &name, setting, comm.size()).map_err(Failure::input)?;
        operation.prepare(comm, size)?;
        operation.run(comm)?;
        comm.barrier()?;
        let mut run = || operation.run(comm).and_then(|()| comm.barrier());
        let (run, samples) = if comm.rank() == 0 { counter.watch(WAN_INTERVAL, run) } else { (run(), Vec::new()) };
        run?;
        let seconds = samples.last().map_or(0.0, |last| last.seconds);
        let window_seconds = WAN_WINDOW_SECONDS.max(seconds / WAN_WINDOWS_MAX);
        let rates = rates(&samples, direction, window_seconds);
        Ok(Self { kind, size, lanes, window_seconds, rates })
    }

    fn bytes(&self) -> f64 {
        self.rates.iter().sum::<f64>() * self.window_seconds
    }

    fn note(&self) -> String {
        let most = self.rates.iter().copied().fold(0.0, f64::max);
        format!(
            "{} of {} bytes, {}: {:.0} bytes on the WAN in {}; at most {} during {}",
            self.kind.name(),
            self.size,
            lanes(self.lanes),
            self.bytes(),
            people(self.rates.len() as f64 * self.window_seconds),
            rate(most),
            people(self.window_seconds)
        )
    }

    /// The rate in Mbit/s at the middle of each window.
    fn points(&self) -> Vec<Point> {
        let middle = |i: usize| (i as f64 + 0.5) * self.window_seconds;
        self.rates.iter().enumerate().map(|(i, rate)| Point::at(middle(i), rate * 8.0 / 1e6)).collect()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "operation": self.kind.name(),
            "block_bytes": self.size,
            "lanes": self.lanes,
            "window_seconds": self.window_seconds,
            "bytes_per_second": self.rates,
        })
    }
}

/// The measured links, one line each.
pub fn paths(model: &PathModel) -> Vec<String> {
    let lan = |site: &str, lan: &Lan| {
        format!("LAN of {site}: {}, {} one way", rate(lan.bytes_per_second), people(lan.latency_seconds))
    };
    let wan = |way: &str, wan: &Wan| {
        let lanes: Vec<_> = wan.lane_bytes_per_second.iter().map(|&b| rate(b)).collect();
        let root = rate(wan.root_bytes_per_second);
        format!("WAN {way}: each lane has, with 1, 2 ... lanes in use: {}; the root alone has {root}", lanes.join(", "))
    };
    vec![
        lan("the root's site", &model.near_lan),
        lan("the other site", &model.far_lan),
        format!("WAN: {} one way", people(model.wan_latency_seconds)),
        wan("from the root's site (scatter)", &model.from_root),
        wan("to the root's site (gather)", &model.to_root),
    ]
}

/// The modelled times, the measured times, and the conclusions for one block size and one direction.
struct Choice<'m> {
    size: usize,
    direction: Direction,
    model: &'m PathModel,
    medians: &'m BTreeMap<String, f64>,
    by_model: Chosen,
    best_lanes: usize,
    by_clock: String,
}

impl<'m> Choice<'m> {
    fn of(
        model: &'m PathModel,
        direction: Direction,
        size: usize,
        margin: f64,
        medians: &'m BTreeMap<String, f64>,
    ) -> Self {
        let time = |lanes: &usize| medians.get(&format!("lanes-{lanes}")).copied().unwrap_or(f64::INFINITY);
        let best_lanes = (1..=model.max_lanes()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
        let fastest = |lanes: bool| {
            let some = medians.iter().filter(move |(name, _)| name.starts_with("lanes-") == lanes);
            some.min_by(|a, b| a.1.total_cmp(b.1)).map(|(name, time)| (name.as_str(), *time))
        };
        let by_clock = match (fastest(true), fastest(false)) {
            (Some((lanes, time)), Some((_, plain))) if time * (1.0 + margin) < plain => lanes,
            (_, plain) => plain.map_or("native", |(name, _)| name),
        };
        let by_model = model.choose(direction, size, margin);
        Self { size, direction, model, medians, by_model, best_lanes, by_clock: by_clock.into() }
    }

    fn time(&self, name: &str) -> f64 {
        self.medians.get(name).copied().unwrap_or(f64::NAN)
    }

    fn lines(&self, kind: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for lanes in 1..=self.model.max_lanes() {
            let of = |variant| people(self.model.lanes_seconds(variant, self.direction, lanes, self.size));
            lines.push(format!(
                "{kind} of {} bytes, {lanes} lane{}: measured {}, overlapped model {}, section 4.2 {}, table 1 {}",
                self.size,
                if lanes == 1 { "" } else { "s" },
                people(self.time(&format!("lanes-{lanes}"))),
                of(Variant::Overlapped),
                of(Variant::Section42),
                of(Variant::Table1)
            ));
        }
        let single = self.time("lanes-1");
        let best = self.time(&format!("lanes-{}", self.best_lanes));
        lines.push(format!(
            "{kind} of {} bytes: {} measured {}, model {}; best of the lanes {} ({:.2} x over one lane)",
            self.size,
            Chosen::LinearNonblocking.name(),
            people(self.time(&Chosen::LinearNonblocking.name())),
            people(self.model.linear_nonblocking_seconds(self.direction, self.size)),
            self.best_lanes,
            single / best
        ));
        lines.push(format!(
            "{kind} of {} bytes: the model chooses {}; the fastest measured implementation is {}",
            self.size,
            self.by_model.name(),
            self.by_clock
        ));
        lines
    }

    fn json(&self, kind: &str) -> serde_json::Value {
        let models: BTreeMap<String, Vec<f64>> = VARIANTS
            .iter()
            .map(|&v| {
                let times =
                    (1..=self.model.max_lanes()).map(|p| self.model.lanes_seconds(v, self.direction, p, self.size));
                (format!("{v:?}"), times.collect())
            })
            .collect();
        let lanes = match self.by_model {
            Chosen::Lanes(lanes) => Some(lanes),
            Chosen::LinearNonblocking => None,
        };
        serde_json::json!({
            "operation": kind,
            "block_bytes": self.size,
            "measured_seconds": self.medians,
            "model_seconds": models,
            "model_linear_nonblocking_seconds":
                self.model.linear_nonblocking_seconds(self.direction, self.size),
            "chosen_by_model": self.by_model.name(),
            "lanes_by_model": lanes,
            "best_lanes_by_model": self.model.best_lanes(Variant::Overlapped, self.direction, self.size),
            "best_lanes_measured": self.best_lanes,
            "chosen_by_clock": self.by_clock,
        })
    }
}
