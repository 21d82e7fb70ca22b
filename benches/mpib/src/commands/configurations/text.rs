//! The results of `mpib configurations` as tables, JSON, CSV and pictures.

use mpib::configurations::full::{
    AGNOSTIC, AWARE, COMPRESSED, Compared, FullSize, RESTART_STEPS, Rates, SAVE_STEPS, STATEMENTS,
};
use mpib::report::{Bar, Bars, Quantity, people, percent};
use mpib::stats::{Interval, Summary};
use std::path::{Path, PathBuf};

/// Name of the file with the values of all bars.
pub const CSV: &str = "figures-12-13.csv";

/// A configuration, its measured steps, and its rates. A configuration does not have all steps.
pub struct Measured {
    pub name: String,
    pub save: [Option<Summary>; 4],
    pub restart: [Option<Summary>; 4],
    /// The whole checkpoint and the whole restart through agents and aggregators.
    pub whole: Option<[Summary; 2]>,
    pub rates: Rates,
}

/// The results.
pub struct Words<'m> {
    pub all: &'m [Measured],
    pub full: FullSize,
    pub ranks: usize,
    pub group: usize,
    /// The mean of the bytes of a rank.
    pub rank_bytes: usize,
}

/// Bytes in MB or GB.
pub fn megabytes(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.2} GB", bytes / 1e9) } else { format!("{:.1} MB", bytes / 1e6) }
}

/// One configuration with the times of its steps in seconds.
struct Times {
    name: String,
    /// A step that the configuration does not have is `None`.
    steps: [Option<f64>; 4],
    intervals: [Option<Interval>; 4],
    /// Median of the measured time of all steps together.
    whole: Option<f64>,
}

impl Times {
    fn measured(name: &str, steps: &[Option<Summary>; 4], whole: Option<&Summary>) -> Self {
        Self {
            whole: whole.map(|seconds| seconds.median),
            name: name.into(),
            // The difference of two measurements may be negative by chance.
            steps: steps.each_ref().map(|step| step.as_ref().map(|seconds| seconds.median.max(0.0))),
            intervals: steps.each_ref().map(|step| step.as_ref().and_then(|seconds| seconds.median_interval)),
        }
    }

    /// Only the steps that were measured.
    fn computed(name: &str, measured: &[Option<Summary>; 4], seconds: [f64; 4]) -> Self {
        let steps = std::array::from_fn(|step| measured[step].as_ref().map(|_| seconds[step]));
        Self { name: name.into(), steps, intervals: [None; 4], whole: None }
    }

    fn total(&self) -> f64 {
        self.steps.iter().flatten().sum()
    }

    /// If the interval of each step contains the true time, the sum of the intervals contains the true sum. `None` if
    /// a step has no interval.
    fn interval(&self) -> Option<Interval> {
        let some = self.steps.iter().zip(&self.intervals).filter(|(step, _)| step.is_some());
        some.map(|(_, interval)| *interval).try_fold(Interval { low: 0.0, high: 0.0 }, |sum, interval| {
            interval.map(|i| Interval { low: sum.low + i.low.max(0.0), high: sum.high + i.high.max(0.0) })
        })
    }

    /// A bar with these steps from the bottom to the top.
    fn bar(&self, name: String, steps: [Option<f64>; 4]) -> Bar {
        let values = steps.iter().map(|step| step.unwrap_or(0.0)).collect();
        Bar { name, values, interval: self.interval() }
    }
}

/// The times of all configurations, here or at full size.
struct Figure {
    save: Vec<Times>,
    restart: Vec<Times>,
}

impl Figure {
    fn time(&self, compared: Compared, configuration: &str) -> Option<f64> {
        let of = |all: &[Times]| all.iter().find(|one| one.name == configuration).map(|one| (one.total(), one.steps));
        match compared {
            Compared::Save => of(&self.save).map(|(total, _)| total),
            Compared::Write => of(&self.save)?.1[3],
            Compared::Restart => of(&self.restart).map(|(total, _)| total),
            Compared::Read => of(&self.restart)?.1[0],
        }
    }

    /// By which part the time of a configuration is shorter than the time of another configuration, or how many times
    /// as long it is.
    fn less(&self, compared: Compared, configuration: &str, than: &str) -> String {
        match self.time(compared, configuration).zip(self.time(compared, than)) {
            Some((a, b)) if a <= b => percent(((1.0 - a / b) * 100.0).round() / 100.0),
            Some((a, b)) => format!("{:.2} times", a / b),
            None => "-".into(),
        }
    }
}

impl Words<'_> {
    fn here(&self) -> Figure {
        let of = |one: &Measured, steps, nth: usize| {
            Times::measured(&one.name, steps, one.whole.as_ref().map(|whole| &whole[nth]))
        };
        Figure {
            save: self.all.iter().map(|one| of(one, &one.save, 0)).collect(),
            restart: self.all.iter().map(|one| of(one, &one.restart, 1)).collect(),
        }
    }

    fn computed(&self, full: FullSize) -> Figure {
        let save = |one: &Measured| Times::computed(&one.name, &one.save, full.save(&one.rates));
        let restart = |one: &Measured| Times::computed(&one.name, &one.restart, full.restart(&one.rates));
        Figure { save: self.all.iter().map(save).collect(), restart: self.all.iter().map(restart).collect() }
    }

    /// At full size, with the measured rate of the store.
    fn measured_store(&self) -> FullSize {
        FullSize { store_bytes_per_second: None, ..self.full }
    }

    /// The tables: measured times, times at full size, and the statements of the paper.
    pub fn notes(&self) -> Vec<String> {
        let (full, here, computed) = (&self.full, self.here(), self.computed(self.full));
        let slow = self.computed(self.measured_store());
        let mut lines = Vec::new();
        let ratios = self.all.iter().map(|one| format!("{} {:.2}", one.name, one.rates.ratio));
        lines.push(format!("compression ratios: {}", ratios.collect::<Vec<_>>().join("; ")));
        lines.push(format!("for figures 10 and 11 of the paper (mpib paths --scaling): --schemes {}", self.schemes()));
        lines.push(String::new());
        let measured = format!(
            "Here: {} ranks, groups of {}, {} of each rank",
            self.ranks,
            self.group,
            megabytes(self.rank_bytes as f64)
        );
        lines.extend(tables(&measured, &here, None));
        let store = full.store_bytes_per_second.map_or(0.0, |rate| rate as f64);
        let size = format!(
            "Full size, computed: {} ranks, groups of {}, {} of each rank, {} writers with aggregation, {} nodes of \
             aggregators,\na network of {}/s for each node, a store of {}/s",
            full.ranks,
            full.group,
            megabytes(full.rank_bytes as f64),
            full.aggregators(),
            full.aggregator_nodes(),
            megabytes(full.node_bytes_per_second as f64),
            megabytes(store)
        );
        lines.extend(tables(&size, &computed, Some(&slow)));
        lines.extend(self.comparison(&here, &computed));
        lines
    }

    /// The measured compression ratios as `mpib paths --schemes` takes them. A ratio below 1 is rounded up, because
    /// the option accepts no such ratio.
    fn schemes(&self) -> String {
        let scheme = |one: &Measured| {
            let name = match one.name.as_str() {
                COMPRESSED => "gzip/rank",
                AGNOSTIC => "agnostic",
                AWARE => "aware",
                // A profile other than the profile of the paper.
                name => name.strip_prefix(AWARE)?.trim_start_matches(", "),
            };
            Some(format!("{name}={:.2}", one.rates.ratio.max(1.0)))
        };
        self.all.iter().filter_map(scheme).collect::<Vec<_>>().join(",")
    }

    /// The values that the text of the paper prints beside the values of this run.
    fn comparison(&self, here: &Figure, computed: &Figure) -> Vec<String> {
        let configurations: Vec<&str> =
            self.all.iter().map(|one| one.name.as_str()).filter(|name| name.starts_with(AWARE)).collect();
        let mut lines = vec![
            "By how much data-aware compression is shorter (N times: it is longer). The text of the paper \
             has only these values:"
                .into(),
            line("", ["ALE3D", "Cactus", "here", "full size"].map(String::from)),
        ];
        for statement in &STATEMENTS {
            let what = match statement.compared {
                Compared::Save => "save",
                Compared::Write => "save, write",
                Compared::Restart => "restart",
                Compared::Read => "restart, read",
            };
            for (nth, name) in configurations.iter().enumerate() {
                // The paper knows only its own codecs.
                let paper =
                    [statement.ale3d, statement.cactus].map(|text| if nth == 0 && *name == AWARE { text } else { "-" });
                let less = |figure: &Figure| figure.less(statement.compared, name, statement.than);
                let cells = [paper[0].into(), paper[1].into(), less(here), less(computed)];
                lines.push(line(&format!("{what}: {name} than {}", statement.than), cells));
            }
        }
        let bytes = |of: &Rates| {
            let here = self.rank_bytes as f64 * if of.aggregated { self.group as f64 } else { 1.0 } / of.ratio;
            [megabytes(here), megabytes(self.full.file_bytes(of))]
        };
        for one in self.all {
            let [ale3d, cactus] = match one.name.as_str() {
                AWARE => ["1.3 GB", "1.2 GB"],
                AGNOSTIC => ["1.5 GB", "2.4 GB"],
                _ if !one.rates.aggregated => ["-", "87 MB"],
                _ => ["-", "-"],
            };
            let [here, full] = bytes(&one.rates);
            lines.push(line(&format!("bytes of a writer: {}", one.name), [ale3d.into(), cactus.into(), here, full]));
        }
        lines
    }

    /// The value of each step in each figure.
    fn steps(&self) -> Vec<Step> {
        let sizes = [
            (HERE, self.here()),
            (FULL, self.computed(self.full)),
            (FULL_MEASURED_STORE, self.computed(self.measured_store())),
        ];
        let mut all = Vec::new();
        for (size, figure) in sizes {
            for (number, times, names) in [(12, figure.save, SAVE_STEPS), (13, figure.restart, RESTART_STEPS)] {
                for one in times {
                    for ((step, seconds), interval) in names.into_iter().zip(one.steps).zip(one.intervals) {
                        let Some(seconds) = seconds else { continue };
                        let configuration = one.name.clone();
                        all.push(Step { figure: number, size, configuration, step, seconds, interval });
                    }
                }
            }
        }
        all
    }

    /// All numbers.
    pub fn json(&self) -> serde_json::Value {
        let (here, computed) = (self.here(), self.computed(self.full));
        let statements: Vec<_> = STATEMENTS
            .iter()
            .map(|s| {
                serde_json::json!({
                    "time": format!("{:?}", s.compared).to_lowercase(),
                    "configuration": AWARE,
                    "shorter_than": s.than,
                    "paper_ale3d": s.ale3d,
                    "paper_cactus": s.cactus,
                    "here": here.less(s.compared, AWARE, s.than),
                    "full_size": computed.less(s.compared, AWARE, s.than),
                })
            })
            .collect();
        serde_json::json!({
            "ranks": self.ranks,
            "group": self.group,
            "rank_bytes": self.rank_bytes,
            "full_size": self.full,
            "rates": self.all.iter().map(|one| &one.rates).collect::<Vec<_>>(),
            "steps": self.steps(),
            "statements_of_the_paper": statements,
        })
    }

    /// The files of `--figures`.
    pub fn files(&self, directory: &Path) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        let ranks =
            |ranks, group, bytes| format!("{ranks} ranks, groups of {group}, {} of each rank", megabytes(bytes));
        let here = ranks(self.ranks, self.group, self.rank_bytes as f64);
        let full = ranks(self.full.ranks, self.full.group, self.full.rank_bytes as f64) + ", computed";
        for (figure, size, end, y) in [
            (self.here(), here, "", "time (medians; line: sum of the intervals)"),
            (self.computed(self.full), full, "-full", "time, computed"),
        ] {
            let save = figure.save.iter().map(|one| one.bar(two_lines(&one.name), one.steps)).collect();
            let restart = figure.restart.iter().map(|one| one.bar(two_lines(&one.name), reversed(one.steps))).collect();
            for (number, what, parts, bars) in
                [(12, "Checkpoint", SAVE_STEPS, save), (13, "Restart", reversed(RESTART_STEPS), restart)]
            {
                let picture = picture(format!("{what}: {size}"), y, &parts, bars);
                files.push((directory.join(format!("figure-{number}{end}.svg")), picture.svg()));
            }
        }
        let mut csv = String::from("figure,size,configuration,step,seconds,low_s,high_s\n");
        for Step { figure, size, configuration, step, seconds, interval } in self.steps() {
            let ends = interval.map_or(",".into(), |i| format!("{:e},{:e}", i.low, i.high));
            csv += &format!("{figure},{size},\"{}\",{step},{seconds:e},{ends}\n", configuration.replace('"', "\"\""));
        }
        files.push((directory.join(CSV), csv));
        files
    }

    /// The measured checkpoint and the measured restart in one picture.
    pub fn both(&self) -> Bars {
        let parts: Vec<String> =
            SAVE_STEPS.iter().zip(reversed(RESTART_STEPS)).map(|(save, restart)| both_names(save, restart)).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let figure = self.here();
        let saves = figure.save.iter().map(|one| one.bar(format!("save\n{}", two_lines(&one.name)), one.steps));
        let restarts =
            figure.restart.iter().map(|one| one.bar(format!("restart\n{}", two_lines(&one.name)), reversed(one.steps)));
        let all = saves.chain(restarts).collect();
        let title = format!(
            "Checkpoint and restart: {} ranks, groups of {}, {} of each rank",
            self.ranks,
            self.group,
            megabytes(self.rank_bytes as f64)
        );
        picture(title, "time (medians; line: sum of the intervals)", &parts, all)
    }
}

/// The steps of a restart in the order of a checkpoint, so that a step and its opposite have the same colour.
fn reversed<T: Copy>(steps: [T; 4]) -> [T; 4] {
    let [a, b, c, d] = steps;
    [d, c, b, a]
}

fn both_names(save: &str, restart: &str) -> String {
    if save == restart { save.into() } else { format!("{save}, {restart}") }
}

/// The words for sizes in JSON and CSV: measured here; computed at full size with the rate of `--full-store`; computed
/// at full size with the measured rate of the store.
const HERE: &str = "here";
const FULL: &str = "full";
const FULL_MEASURED_STORE: &str = "full-measured-store";

/// A step of a configuration in a figure.
#[derive(serde::Serialize)]
struct Step {
    figure: u32,
    size: &'static str,
    configuration: String,
    step: &'static str,
    seconds: f64,
    interval: Option<Interval>,
}

/// The name of a configuration in one line, or in two lines at its comma.
fn two_lines(name: &str) -> String {
    name.replace(", ", "\n")
}

fn picture(title: String, y: &str, parts: &[&str], bars: Vec<Bar>) -> Bars {
    let parts = parts.iter().map(ToString::to_string).collect();
    Bars { title, y: y.into(), quantity: Quantity::Seconds, parts, bars }
}

/// Tables of a checkpoint and of a restart. `slow` has the times with the measured rate of the store.
fn tables(title: &str, figure: &Figure, slow: Option<&Figure>) -> Vec<String> {
    let mut lines = vec![title.into()];
    for (what, times, steps, slow, at) in [
        ("save", &figure.save, SAVE_STEPS, slow.map(|slow| &slow.save), 3),
        ("restart", &figure.restart, RESTART_STEPS, slow.map(|slow| &slow.restart), 0),
    ] {
        let mut heads: Vec<String> = steps.iter().map(ToString::to_string).collect();
        heads.push("sum".into());
        let has_whole = times.iter().any(|one| one.whole.is_some());
        heads.extend(has_whole.then(|| "whole".into()));
        heads.extend(slow.map(|_| "this store".into()));
        lines.push(line(what, heads));
        for (nth, one) in times.iter().enumerate() {
            let mut cells: Vec<String> = one.steps.iter().map(|step| step.map_or("-".into(), people)).collect();
            cells.push(people(one.total()));
            cells.extend(has_whole.then(|| one.whole.map_or("-".into(), people)));
            cells.extend(slow.map(|slow| slow[nth].steps[at].map_or("-".into(), people)));
            lines.push(line(&one.name, cells));
        }
    }
    if figure.save.iter().any(|one| one.whole.is_some()) {
        lines.push("whole: all steps together, by agents and aggregators, which overlap the steps".into());
    }
    if slow.is_some() {
        lines.push("this store: write, or read, with the measured rate of --pfs".into());
    }
    lines.push(String::new());
    lines
}

fn line(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells: String = cells.into_iter().map(|cell| format!(" {cell:>11}")).collect();
    format!("{name:44}{cells}")
}
