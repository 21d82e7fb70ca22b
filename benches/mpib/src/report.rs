//! Results as a table, CSV, JSON with the whole context, a picture (SVG), and a gnuplot script.

use crate::stats::{Estimate, StoppingRule, Summary};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

pub mod plot;
pub use plot::{Bar, Bars, Line, Plot, Point, Quantity, size};

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
    /// Number of processors that rank 0 may use. This number is smaller than `processors` if mpirun binds ranks.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// The picture of this report. `None`: time over size, with one line for each operation.
    #[serde(skip)]
    pub figure: Option<Plot>,
    /// A picture of stacked bars, which replaces the picture of lines.
    #[serde(skip)]
    pub bars: Option<Bars>,
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
            Format::Svg => self.bars.as_ref().map_or_else(|| self.plot().svg(), Bars::svg),
            Format::Gnuplot => self.bars.as_ref().map_or_else(|| self.plot().gnuplot(), Bars::gnuplot),
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

    /// Explains the intervals of the table, and names the series whose intervals are missing or too wide.
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

    /// The picture of this report.
    pub fn plot(&self) -> Plot {
        if let Some(figure) = &self.figure {
            return figure.clone();
        }
        let places = self.rows.iter().map(|row| (row.operation.as_str(), row.block_bytes as f64, &row.seconds));
        Plot::of_times(self.title.clone(), ("bytes of a block", Quantity::Bytes), &self.rule, places)
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
            ..Report::default()
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
        // An earlier version always wrote "95 %" and "median".
        let samples: Vec<f64> = (0..20).map(|i| 1.0 + f64::from(i * i) / 100.0).collect();
        let rule = StoppingRule { confidence: 0.99, estimate: Estimate::Mean, ..StoppingRule::fixed(20) };
        let report = report_of(&samples, rule);
        let table = report.write(Format::Table);
        let heads = table.lines().nth(2).expect("heads").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(heads, "operation bytes reps min mean 99% from to error median p99");
        let interval = Summary::of(&samples, 0.99).mean_interval.expect("20 samples");
        assert!(table.contains(&people(interval.low)) && table.contains(&people(interval.high)), "{table}");
        assert!(report.write(Format::Svg).contains("time (mean, 99% interval)"));
        assert!(report.write(Format::Csv).contains(",0.99,mean,"));
    }

    #[test]
    fn what_has_no_interval_gets_no_bar() {
        // An earlier version drew the range from minimum to maximum of five repetitions as a 95 % interval.
        let report = report_of(&[1.0, 2.0, 3.0, 4.0, 5.0], StoppingRule::fixed(5));
        let line = &report.plot().lines[0].points[0];
        assert_eq!((line.low, line.high), (3.0, 3.0));
        assert!(report.write(Format::Svg).contains(">time (median)<"));
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
        assert_eq!(svg.matches("<circle").count(), 3, "size 0 has its own place on the logarithmic axis");
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
