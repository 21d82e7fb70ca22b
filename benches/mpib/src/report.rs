//! Results as a table, CSV, JSON with the whole context, a picture (SVG), and a gnuplot script.

use crate::stats::{Estimate, Interval, StoppingRule, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// The context of a result: the command, the machine and the clocks. Without this context, a result is not
/// reproducible.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// The command line.
    pub command: String,
    /// Version of this program.
    pub mpib: String,
    /// The version string of the MPI library.
    pub mpi_library: String,
    /// Host of each rank, in rank order.
    pub hosts: Vec<String>,
    /// Site of each rank, if sites are used.
    pub sites: Vec<usize>,
    /// How the clocks of the ranks were synchronised.
    pub clock: String,
    /// Resolution of the clock in seconds.
    pub clock_resolution_seconds: f64,
    /// Operating system and processors of rank 0.
    pub machine: String,
    /// Date and time of the report in UTC, for example `2026-03-01T09:30:00Z`.
    #[serde(default)]
    pub date: String,
    /// Number of processors of rank 0's host.
    #[serde(default)]
    pub processors: usize,
    /// Number of processors that rank 0 may use. It is smaller if mpirun binds ranks.
    #[serde(default)]
    pub processors_of_rank_0: usize,
    /// Environment variables of rank 0 that configure the MPI library or the job.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// Beginnings of the names of environment variables that configure an MPI library or describe a job. Names with
/// `KEY`, `TOKEN` or `SECRET` are left out.
const SETTINGS: [&str; 11] = [
    "OMPI_MCA_",
    "PRTE_MCA_",
    "MPICH_",
    "MPIR_CVAR_",
    "I_MPI_",
    "UCX_",
    "FI_",
    "PSM2_",
    "OMP_",
    "SLURM_JOB_",
    "SLURM_N",
];

/// The variables of [`Context::environment`].
pub fn settings(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let secret = |name: &str| ["KEY", "TOKEN", "SECRET"].iter().any(|word| name.contains(word));
    // Open MPI passes its own addresses and identifiers to each process; they are different in each launch.
    let own = |name: &str| {
        ["OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix", "OMPI_MCA_shmem_", "OMPI_MCA_initial_wdir"]
            .iter()
            .any(|o| name.starts_with(o))
    };
    all.filter(|(name, _)| SETTINGS.iter().any(|s| name.starts_with(s)) && !secret(name) && !own(name)).collect()
}

/// A time after 1970 as date and time in UTC.
pub fn date(since_1970: std::time::Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years begin in March, so that the leap day is the last day (H. Hinnant, "chrono-compatible low-level date
    // algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// One row: an operation at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation, for example `scatter/binomial`.
    pub operation: String,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Statistics of the time in seconds.
    pub seconds: Summary,
    /// Half the width of the estimate's interval, divided by the estimate: MPIBlib's error a. `None` if there are too
    /// few repetitions for an interval.
    #[serde(default)]
    pub relative_error: Option<f64>,
    /// Whether the error is at most alpha. `None` if the number of repetitions was fixed.
    #[serde(default)]
    pub alpha_reached: Option<bool>,
}

impl Row {
    /// A row of a series that ended by `rule`.
    pub fn new(operation: impl Into<String>, block_bytes: usize, seconds: Summary, rule: &StoppingRule) -> Self {
        let relative_error = Some(seconds.relative_error(rule.estimate)).filter(|e| e.is_finite());
        let alpha_reached = rule.reached(&seconds);
        Self { operation: operation.into(), block_bytes, seconds, relative_error, alpha_reached }
    }
}

/// All results of one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Heading.
    pub title: String,
    /// The context of the results.
    pub context: Context,
    /// The rule for the end of each series, with the level and the estimate of the intervals.
    #[serde(default)]
    pub rule: StoppingRule,
    /// The measurements.
    pub rows: Vec<Row>,
    /// The conclusions, one sentence each.
    pub notes: Vec<String>,
    /// More results, in a form that depends on the command.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub found: serde_json::Value,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table for reading.
    Table,
    /// CSV for spreadsheets.
    Csv,
    /// JSON with all data.
    Json,
    /// An SVG picture.
    Svg,
    /// A gnuplot script with its data.
    Gnuplot,
}

impl Report {
    /// Writes the report in one of the formats. The text ends with a newline.
    pub fn write(&self, format: Format) -> String {
        match format {
            Format::Table => self.table(),
            Format::Csv => self.csv(),
            Format::Json => json(self),
            Format::Svg => self.plot().svg(),
            Format::Gnuplot => self.plot().gnuplot(),
        }
    }

    fn table(&self) -> String {
        let mut out = format!("{}\n{} ranks, {}\n", self.title, self.context.hosts.len(), self.context.clock);
        if !self.rows.is_empty() {
            let estimate = self.rule.estimate;
            let other = if estimate == Estimate::Mean { Estimate::Median } else { Estimate::Mean };
            let level = percent(self.rule.confidence);
            let wide = self.rows.iter().map(|r| r.operation.len()).max().unwrap_or(0).max(9);
            let heads =
                ["bytes", "reps", "min", estimate.name(), &format!("{level} from"), "to", "error", other.name(), "p99"];
            write_row(&mut out, wide, "operation", heads.map(String::from));
            for row in &self.rows {
                let s = &row.seconds;
                let ends = s.interval(estimate).map_or(["-".into(), "-".into()], |i| [people(i.low), people(i.high)]);
                let [low, high] = ends;
                let mark = if row.alpha_reached == Some(false) { "!" } else { "" };
                let cells = [
                    row.block_bytes.to_string(),
                    s.reps.to_string(),
                    people(s.min),
                    people(s.value(estimate)),
                    low,
                    high,
                    row.relative_error.map_or("-".into(), |e| format!("{}{mark}", percent(e))),
                    people(s.value(other)),
                    people(s.p99),
                ];
                write_row(&mut out, wide, &row.operation, cells);
            }
            out += &self.about_intervals();
        }
        self.notes.iter().for_each(|note| out += &format!("{note}\n"));
        out
    }

    /// What the intervals of the table mean, and where they are missing or too wide.
    fn about_intervals(&self) -> String {
        let (rule, level) = (&self.rule, percent(self.rule.confidence));
        let mut out = String::new();
        let wide = self.rows.iter().filter(|r| r.alpha_reached == Some(false)).count();
        if wide > 0 {
            out += &format!(
                "!: alpha not reached: {wide} of {} series ended at --max-reps {}{} with an error above {}\n",
                self.rows.len(),
                rule.max_reps,
                rule.max_seconds.map_or(String::new(), |s| format!(" or --time-limit {s}")),
                percent(rule.alpha)
            );
        }
        if self.rows.iter().any(|r| r.seconds.interval(rule.estimate).is_none()) {
            out += &format!("-: too few repetitions for an interval of the {} at {level}\n", rule.estimate.name());
        }
        if self.rows.iter().any(|r| r.relative_error.is_some()) {
            out += &format!(
                "{level} intervals are of the {} in this launch. Launches differ by more: mpib merge A.json B.json ...\n",
                rule.estimate.name()
            );
        }
        out
    }

    fn csv(&self) -> String {
        let mut out = String::from(
            "operation,block_bytes,reps,min_s,median_s,median_low_s,median_high_s,mean_s,mean_low_s,mean_high_s,deviation_s,p99_s,max_s,confidence,estimate,relative_error,alpha_reached\n",
        );
        for row in &self.rows {
            let s = &row.seconds;
            let ends =
                |i: Option<crate::stats::Interval>| i.map_or(",".to_string(), |i| format!("{:e},{:e}", i.low, i.high));
            let operation = row.operation.replace('"', "\"\"");
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "\"{operation}\",{},{},{:e},{:e},{},{:e},{},{:e},{:e},{:e},{},{},{},{}",
                row.block_bytes,
                s.reps,
                s.min,
                s.median,
                ends(s.median_interval),
                s.mean,
                ends(s.mean_interval),
                s.deviation,
                s.p99,
                s.max,
                s.confidence,
                self.rule.estimate.name(),
                row.relative_error.map_or(String::new(), |e| format!("{e:e}")),
                row.alpha_reached.map_or(String::new(), |reached| reached.to_string())
            );
        }
        out
    }

    /// A plot of time over size, with one line for each operation.
    pub fn plot(&self) -> Plot {
        let places = self.rows.iter().map(|row| (row.operation.as_str(), row.block_bytes as f64, &row.seconds));
        Plot::of_times(self.title.clone(), "bytes of a block", &self.rule, places)
    }
}

/// JSON with one line for each member of an object, and arrays on one line, because there may be many samples.
fn json(report: &Report) -> String {
    let mut out = Vec::new();
    let mut to = serde_json::Serializer::with_formatter(&mut out, ShortArrays(serde_json::ser::PrettyFormatter::new()));
    match report.serialize(&mut to) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned() + "\n",
        Err(error) => format!("{error}\n"),
    }
}

/// Objects as in pretty JSON, arrays as in compact JSON.
struct ShortArrays(serde_json::ser::PrettyFormatter<'static>);

impl serde_json::ser::Formatter for ShortArrays {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }
    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }
    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

fn write_row(out: &mut String, wide: usize, name: &str, cells: [String; 9]) {
    *out += &format!("{name:wide$}");
    cells.iter().for_each(|cell| *out += &format!(" {cell:>10}"));
    out.push('\n');
}

/// Seconds with a suitable unit and four digits.
pub fn people(seconds: f64) -> String {
    let (value, unit) = match seconds.abs() {
        s if s >= 1.0 || s == 0.0 => (seconds, "s"),
        s if s >= 1e-3 => (seconds * 1e3, "ms"),
        s if s >= 1e-6 => (seconds * 1e6, "us"),
        _ => (seconds * 1e9, "ns"),
    };
    let digits = if value.abs() >= 100.0 {
        1
    } else if value.abs() >= 10.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$} {unit}")
}

/// A fraction as a percentage with at most two digits after the point.
pub fn percent(fraction: f64) -> String {
    let text = format!("{:.2}", 100.0 * fraction);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A picture of lines with error bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Whether both axes are logarithmic.
    pub log: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// The points, in the order in which they are connected.
    pub points: Vec<Point>,
}

/// A point with an error bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// x value.
    pub x: f64,
    /// y value.
    pub y: f64,
    /// Lower end of the bar.
    pub low: f64,
    /// Upper end of the bar.
    pub high: f64,
}

impl Point {
    /// A point without an error bar.
    pub fn at(x: f64, y: f64) -> Self {
        Self { x, y, low: y, high: y }
    }
}

const COLOURS: [&str; 8] = ["#1b6ca8", "#c8442d", "#2f8f4e", "#8052a5", "#b8860b", "#3a3a3a", "#d4588f", "#119da4"];
const WIDE: f64 = 860.0;
const HIGH: f64 = 520.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 60.0;

/// An axis, which maps values to the range 0 to 1.
struct Axis {
    log: bool,
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let fits = |v: &f64| v.is_finite() && (!log || *v > 0.0);
        let (low, high) =
            values.filter(fits).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        match (log, low.is_finite()) {
            (true, true) => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                Self { log, low, high: if high > low { high } else { low + 1.0 } }
            }
            (false, true) => {
                let low = low.min(0.0);
                Self { log, low, high: if high > low { low + (high - low) * 1.05 } else { low + 1.0 } }
            }
            (_, false) => Self { log, low: 0.0, high: 1.0 },
        }
    }

    /// The place of a value. `None` if a logarithmic axis cannot show the value.
    fn place(&self, value: f64) -> Option<f64> {
        let value = if self.log { value.log10() } else { value };
        value.is_finite().then(|| (value - self.low) / (self.high - self.low))
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            return (self.low as i32..=self.high as i32).map(|e| 10f64.powi(e)).collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough).unwrap_or(unit);
        let first = (self.low / step).ceil();
        (0..12).map(|i| (first + f64::from(i)) * step).take_while(|t| *t <= self.high).collect()
    }
}

impl Plot {
    /// Estimates with their intervals on logarithmic axes. Each item has the name of its line, its x value, and its
    /// times. A point without an interval has no bar.
    pub fn of_times<'t>(
        title: String,
        x: &str,
        rule: &StoppingRule,
        times: impl IntoIterator<Item = (&'t str, f64, &'t Summary)>,
    ) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        let mut bars = false;
        for (name, x, seconds) in times {
            let y = seconds.value(rule.estimate);
            let interval = seconds.interval(rule.estimate);
            bars |= interval.is_some();
            let Interval { low, high } = interval.unwrap_or(Interval { low: y, high: y });
            let point = Point { x, y, low, high };
            match lines.iter_mut().find(|l| l.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name: name.into(), points: vec![point] }),
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        let estimate = rule.estimate.name();
        let y = if bars {
            format!("seconds ({estimate}, {} interval)", percent(rule.confidence))
        } else {
            format!("seconds ({estimate})")
        };
        Self { title, x: x.into(), y, log: true, lines }
    }

    /// The plot as a self-contained SVG picture.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|l| &l.points);
        let across = Axis::over(points().map(|p| p.x), self.log);
        let up = Axis::over(points().flat_map(|p| [p.low, p.y, p.high]), self.log);
        let (plot_wide, plot_high) = (WIDE - LEFT - RIGHT, HIGH - TOP - BOTTOM);
        let x_at = |v: f64| across.place(v).map(|p| LEFT + p * plot_wide);
        let y_at = |v: f64| up.place(v).map(|p| HIGH - BOTTOM - p * plot_high);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDE} {HIGH}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDE}\" height=\"{HIGH}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
            escape(&self.title)
        );
        for (value, x) in across.ticks().into_iter().filter_map(|t| Some((t, x_at(t)?))) {
            out += &format!(
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/><text x=\"{x:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}</text>\n",
                HIGH - BOTTOM,
                HIGH - BOTTOM + 18.0,
                tick(value)
            );
        }
        for (value, y) in up.ticks().into_iter().filter_map(|t| Some((t, y_at(t)?))) {
            out += &format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{0:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>\n",
                WIDE - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                tick(value)
            );
        }
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dash = if i < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
            let placed: Vec<_> =
                line.points.iter().filter_map(|p| Some((x_at(p.x)?, y_at(p.y)?, y_at(p.low), y_at(p.high)))).collect();
            let path: Vec<_> = placed.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
            out += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"{dash}/>\n", path.join(" "));
            for (x, y, low, high) in placed {
                if let (Some(low), Some(high)) = (low, high) {
                    out += &format!(
                        "<line x1=\"{x:.1}\" y1=\"{low:.1}\" x2=\"{x:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>"
                    );
                }
                out += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\" fill=\"{colour}\"/>\n");
            }
            let y = TOP + 8.0 + 18.0 * i as f64;
            out += &format!(
                "<line x1=\"{0:.1}\" y1=\"{y:.1}\" x2=\"{1:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"{dash}/><text x=\"{2:.1}\" y=\"{3:.1}\">{4}</text>\n",
                WIDE - RIGHT + 12.0,
                WIDE - RIGHT + 34.0,
                WIDE - RIGHT + 40.0,
                y + 4.0,
                escape(&line.name)
            );
        }
        out += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n<text transform=\"translate(20,{:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</svg>\n",
            LEFT + plot_wide / 2.0,
            HIGH - 18.0,
            escape(&self.x),
            TOP + plot_high / 2.0,
            escape(&self.y)
        );
        out
    }

    /// The plot as a gnuplot script that contains its data.
    pub fn gnuplot(&self) -> String {
        let quote = |text: &str| text.replace(['"', '\\', '\n'], " ");
        let mut out = format!(
            "set title \"{}\"\nset xlabel \"{}\"\nset ylabel \"{}\"\nset key outside right\nset grid\n",
            quote(&self.title),
            quote(&self.x),
            quote(&self.y)
        );
        if self.log {
            out += "set logscale xy\n";
        }
        for (i, line) in self.lines.iter().enumerate() {
            out += &format!("$line{i} << END\n");
            line.points.iter().for_each(|p| out += &format!("{:e} {:e} {:e} {:e}\n", p.x, p.y, p.low, p.high));
            out += "END\n";
        }
        let parts = self
            .lines
            .iter()
            .enumerate()
            .map(|(i, line)| format!("$line{i} using 1:2:3:4 with yerrorlines title \"{}\"", quote(&line.name)));
        out + "plot " + &parts.collect::<Vec<_>>().join(", \\\n     ") + "\n"
    }
}

fn tick(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e5 || value.abs() < 1e-3) { format!("{value:.0e}") } else { format!("{value}") }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let row = |operation: &str, block_bytes, base: f64| Row {
            operation: operation.into(),
            block_bytes,
            seconds: Summary::of(&(0..20).map(|i| base * (1.0 + f64::from(i) / 100.0)).collect::<Vec<_>>(), 0.95),
            relative_error: Some(0.045),
            alpha_reached: Some(true),
        };
        Report {
            title: "a < b & \"c\"".into(),
            context: Context { hosts: vec!["n0".into(), "n1".into()], ..Context::default() },
            rule: StoppingRule::default(),
            rows: vec![row("scatter/linear", 0, 1e-5), row("scatter/linear", 64, 2e-5), row("scatter/lanes", 64, 3e-3)],
            notes: vec!["linear is fastest".into()],
            found: serde_json::Value::Null,
        }
    }

    #[test]
    fn json_gives_the_same_report_back() {
        let report = sample();
        let back: Report = serde_json::from_str(&report.write(Format::Json)).expect("our own JSON");
        assert_eq!(back, report);
    }

    #[test]
    fn json_has_samples_date_processors_and_settings_of_the_mpi_library() {
        let context = Context {
            date: date(std::time::Duration::from_secs(1_709_164_800 + 86399)),
            processors: 2,
            environment: settings(
                [
                    ("OMPI_MCA_btl", "self,tcp"),
                    ("UCX_TLS", "rc"),
                    ("UCX_KEY", "x"),
                    ("OMPI_MCA_orte_uri", "x"),
                    ("HOME", "/"),
                ]
                .map(|(n, v)| (n.to_string(), v.to_string()))
                .into_iter(),
            ),
            ..Context::default()
        };
        let report = Report { context, ..report_of(&[3.0, 1.0, 2.0], StoppingRule::fixed(3)) };
        let text = report.write(Format::Json);
        assert!(text.contains("\"samples\": [3.0, 1.0, 2.0]"), "in the order of the repetitions: {text}");
        assert!(text.contains("\"date\": \"2024-02-29T23:59:59Z\"") && text.contains("\"processors\": 2"), "{text}");
        let names: Vec<_> = report.context.environment.keys().map(String::as_str).collect();
        assert_eq!(names, ["OMPI_MCA_btl", "UCX_TLS"]);
        assert_eq!(serde_json::from_str::<Report>(&text).expect("our own JSON"), report);
    }

    #[test]
    fn csv_has_a_column_for_every_head() {
        let csv = sample().write(Format::Csv);
        let columns: Vec<_> = csv.lines().map(|l| l.split(',').count()).collect();
        assert_eq!(columns, [17; 4], "{csv}");
    }

    /// A report of one series that ended by `rule`.
    fn report_of(samples: &[f64], rule: StoppingRule) -> Report {
        Report { rule, rows: vec![Row::new("scatter/linear", 64, rule.summary(samples), &rule)], ..sample() }
    }

    #[test]
    fn intervals_are_labelled_with_the_level_and_the_estimate_that_were_asked_for() {
        // Earlier, "95 %" and "median" stood everywhere.
        let samples: Vec<f64> = (0..20).map(|i| 1.0 + f64::from(i * i) / 100.0).collect();
        let rule = StoppingRule { confidence: 0.99, estimate: Estimate::Mean, ..StoppingRule::fixed(20) };
        let report = report_of(&samples, rule);
        let table = report.write(Format::Table);
        let heads = table.lines().nth(2).expect("heads").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(heads, "operation bytes reps min mean 99% from to error median p99");
        let interval = Summary::of(&samples, 0.99).mean_interval.expect("20 samples");
        assert!(table.contains(&people(interval.low)) && table.contains(&people(interval.high)), "{table}");
        assert!(report.write(Format::Svg).contains("seconds (mean, 99% interval)"));
        assert!(report.write(Format::Csv).contains(",0.99,mean,"));
    }

    #[test]
    fn what_has_no_interval_gets_no_bar() {
        // Earlier, the minimum to maximum of five repetitions was drawn as 95 %.
        let report = report_of(&[1.0, 2.0, 3.0, 4.0, 5.0], StoppingRule::fixed(5));
        let line = &report.plot().lines[0].points[0];
        assert_eq!((line.low, line.high), (3.0, 3.0));
        assert!(report.write(Format::Svg).contains(">seconds (median)<"));
        let table = report.write(Format::Table);
        assert!(table.contains("-: too few repetitions for an interval of the median at 95%"), "{table}");
    }

    #[test]
    fn a_series_that_did_not_reach_alpha_says_so_in_table_csv_and_json() {
        let samples: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 1.0 } else { 2.0 }).collect();
        let report = report_of(&samples, StoppingRule { max_reps: 40, ..StoppingRule::default() });
        let table = report.write(Format::Table);
        assert!(table.contains("33.33%!") && table.contains("!: alpha not reached: 1 of 1 series"), "{table}");
        assert!(report.write(Format::Csv).trim_end().ends_with(",false"), "{}", report.write(Format::Csv));
        let json: serde_json::Value = serde_json::from_str(&report.write(Format::Json)).expect("JSON");
        assert_eq!(json["rows"][0]["alpha_reached"], false);
        assert_eq!(json["rule"]["confidence"], 0.95);
        assert!(json["rows"][0]["relative_error"].as_f64().is_some_and(|a| (a - 1.0 / 3.0).abs() < 0.01), "{json}");
        let fixed = report_of(&samples, StoppingRule::fixed(40));
        assert_eq!(fixed.rows[0].alpha_reached, None, "a fixed number of repetitions has no alpha to reach");
    }

    #[test]
    fn a_picture_has_all_lines_and_no_stray_markup() {
        let svg = sample().write(Format::Svg);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 2, "size 0 has no place on a logarithmic axis");
        assert!(svg.contains("a &lt; b &amp; "), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_picture_of_nothing_is_still_a_picture() {
        let svg = Report { rows: Vec::new(), ..sample() }.write(Format::Svg);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_gnuplot_script_carries_its_data() {
        let script = sample().write(Format::Gnuplot);
        assert_eq!(script.matches("$line0").count(), 2, "{script}");
        assert_eq!(script.matches("\nEND\n").count(), 2, "{script}");
    }

    #[test]
    fn a_table_shows_each_row_and_note() {
        let table = sample().write(Format::Table);
        assert!(table.contains("3.285 ms") && table.ends_with("linear is fastest\n"), "{table}");
    }

    #[test]
    fn times_have_units_people_read() {
        for (seconds, text) in
            [(0.0, "0.000 s"), (1.5, "1.500 s"), (0.0123, "12.30 ms"), (4.5e-6, "4.500 us"), (1.2e-7, "120.0 ns")]
        {
            assert_eq!(people(seconds), text);
        }
    }
}
