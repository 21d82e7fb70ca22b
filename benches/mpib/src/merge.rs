//! Merges reports of several launches of the same command.
//!
//! A launch has its own placement of ranks and buffers, so times of launches differ by far more than the intervals of
//! the repetitions within one launch. The launches are independent, so the interval is computed from one estimate for
//! each launch.

use crate::report::{Report, people, percent};
use crate::stats::{Interval, StoppingRule, Summary, median, t_quantile};
use serde::{Deserialize, Serialize};

/// Reports that cannot be merged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// One launch does not show the difference between launches.
    #[error("{0} report: at least 2 launches of the same command are needed")]
    TooFew(usize),
    /// The reports are of different measurements.
    #[error("{first} and {other} differ in {what}: {one:?} and {two:?}; only launches of the same command are merged")]
    Different {
        /// Name of the first report.
        first: String,
        /// Name of the other report.
        other: String,
        /// What differs.
        what: &'static str,
        /// Value in the first report.
        one: String,
        /// Value in the other report.
        two: String,
    },
    /// No operation and size is in all reports.
    #[error("no operation and size is in all {0} reports")]
    NothingCommon(usize),
}

/// One operation at one size over all launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergedRow {
    /// The operation.
    pub operation: String,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Statistics of the launches' estimates in seconds.
    pub launches: Summary,
    /// Interval of the estimate over launches. The interval is for the median and comes from order statistics. With
    /// too few launches, the interval is for the mean and comes from Student's t.
    pub interval: Option<Interval>,
    /// Interval that contains the estimate of one more launch with the given confidence, from Student's t of the
    /// logarithms.
    pub next_launch: Interval,
    /// Median over launches of the relative error within a launch. `None` if no launch has an interval.
    pub error_within: Option<f64>,
}

/// All launches together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    /// Heading.
    pub title: String,
    /// Command of the first launch.
    pub command: String,
    /// Number of launches.
    pub launches: usize,
    /// Number of operations and sizes that are not in all reports, and therefore left out.
    pub left_out: usize,
    /// Confidence and estimate.
    pub rule: StoppingRule,
    /// The measurements.
    pub rows: Vec<MergedRow>,
}

/// Merges named reports.
pub fn merge(reports: &[(String, Report)]) -> Result<Merged, MergeError> {
    let [(first, base), others @ ..] = reports else { return Err(MergeError::TooFew(0)) };
    if others.is_empty() {
        return Err(MergeError::TooFew(1));
    }
    for (other, report) in others {
        let values = |r: &Report| {
            [
                ("the command", words(&r.context.command)),
                ("the number of ranks", r.context.hosts.len().to_string()),
                ("the MPI library", r.context.mpi_library.clone()),
                ("the version of mpib", r.context.mpib.clone()),
            ]
        };
        for ((what, one), (_, two)) in values(base).into_iter().zip(values(report)) {
            if one != two {
                return Err(MergeError::Different { first: first.clone(), other: other.clone(), what, one, two });
            }
        }
    }
    let estimate = base.rule.estimate;
    let confidence = base.rule.confidence;
    let mut rows = Vec::new();
    for row in &base.rows {
        let same = |report: &Report| {
            let is = |r: &&crate::report::Row| (&r.operation, r.block_bytes) == (&row.operation, row.block_bytes);
            report.rows.iter().find(is).map(|r| (r.seconds.value(estimate), r.relative_error))
        };
        let found: Option<Vec<_>> = reports.iter().map(|(_, report)| same(report)).collect();
        let Some(found) = found else { continue };
        let values: Vec<f64> = found.iter().map(|f| f.0).collect();
        let errors: Vec<f64> = found.iter().filter_map(|f| f.1).collect();
        let launches = Summary::of(&values, confidence);
        rows.push(MergedRow {
            operation: row.operation.clone(),
            block_bytes: row.block_bytes,
            interval: launches.median_interval.or(launches.mean_interval),
            next_launch: next(&values, confidence),
            error_within: (!errors.is_empty()).then(|| median(&errors)),
            launches,
        });
    }
    if rows.is_empty() {
        return Err(MergeError::NothingCommon(reports.len()));
    }
    let most = reports.iter().map(|(_, r)| r.rows.len()).max().unwrap_or(0);
    Ok(Merged {
        title: base.title.clone(),
        command: base.context.command.clone(),
        launches: reports.len(),
        left_out: most - rows.len(),
        rule: base.rule,
        rows,
    })
}

/// Options that name output files, and the format. Launches of one command may differ in these options.
const OUTPUTS: [&str; 6] = ["-o", "--output", "--format", "--figure", "--figures", "--estimates"];
/// An option that names an output file. The option also adds implementations, so launches may differ only in the name.
const RULES: &str = "--rules";

/// The words of a command line, except the path of the program, the names of output files, and the format.
fn words(command: &str) -> String {
    let mut kept = Vec::new();
    let mut words = command.split_whitespace().skip(1);
    while let Some(word) = words.next() {
        let option = word.split_once('=').map_or(word, |(option, _)| option);
        let short = word.starts_with("-o");
        if !(short || option == RULES || OUTPUTS.contains(&option)) {
            kept.push(word);
            continue;
        }
        if option == RULES {
            kept.push(RULES);
        }
        // The name is the next word, or a part of this word.
        if word == option && !(short && word.len() > "-o".len()) {
            words.next();
        }
    }
    kept.join(" ")
}

/// Interval that contains one more value, for values whose logarithms are normally distributed.
fn next(values: &[f64], confidence: f64) -> Interval {
    let logs: Vec<f64> = values.iter().map(|v| v.max(f64::MIN_POSITIVE).ln()).collect();
    let summary = Summary::of(&logs, confidence);
    let n = values.len() as f64;
    let t = t_quantile(0.5 + confidence / 2.0, (n - 1.0).max(1.0));
    let half = t * summary.deviation * (1.0 + 1.0 / n).sqrt();
    Interval { low: (summary.mean - half).exp(), high: (summary.mean + half).exp() }
}

impl Merged {
    /// A table for reading.
    pub fn table(&self) -> String {
        let level = percent(self.rule.confidence);
        let wide = self.rows.iter().map(|r| r.operation.len()).max().unwrap_or(0).max(9);
        let mut out = format!("{}, {} launches\n{:wide$}", self.title, self.launches, "operation");
        let from = format!("{level} from");
        for head in ["bytes", "min", "median", &from, "to", "max", "within", "between", "next from", "to"] {
            out += &format!(" {head:>10}");
        }
        out.push('\n');
        for row in &self.rows {
            let s = &row.launches;
            let ends = row.interval.map_or(["-".into(), "-".into()], |i| [people(i.low), people(i.high)]);
            let [low, high] = ends;
            out += &format!("{:wide$}", row.operation);
            for cell in [
                row.block_bytes.to_string(),
                people(s.min),
                people(s.median),
                low,
                high,
                people(s.max),
                row.error_within.map_or("-".into(), percent),
                percent(s.deviation / s.mean),
                people(row.next_launch.low),
                people(row.next_launch.high),
            ] {
                out += &format!(" {cell:>10}");
            }
            out.push('\n');
        }
        let of = if self.rows.iter().all(|r| r.launches.median_interval.is_some()) {
            format!("the median of the launches' {}s", self.rule.estimate.name())
        } else {
            format!(
                "the mean of the launches' {}s (6 launches give an interval of the median)",
                self.rule.estimate.name()
            )
        };
        out += &format!(
            "{level} from/to: {of}; next from/to: one more launch; within: error a in a launch; between: deviation of \
             the launches\n"
        );
        if self.left_out > 0 {
            out += &format!("{} operations and sizes are not in all reports and are left out\n", self.left_out);
        }
        out
    }

    /// CSV with one line for each operation and size.
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "operation,block_bytes,launches,min_s,median_s,low_s,high_s,max_s,deviation_s,next_low_s,next_high_s,\
             error_within,confidence\n",
        );
        for row in &self.rows {
            let s = &row.launches;
            let ends = row.interval.map_or(",".to_string(), |i| format!("{:e},{:e}", i.low, i.high));
            let within = row.error_within.map_or(String::new(), |e| format!("{e:e}"));
            out += &format!(
                "\"{}\",{},{},{:e},{:e},{ends},{:e},{:e},{:e},{:e},{within},{}\n",
                row.operation.replace('"', "\"\""),
                row.block_bytes,
                s.reps,
                s.min,
                s.median,
                s.max,
                s.deviation,
                row.next_launch.low,
                row.next_launch.high,
                s.confidence
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Context, Row};

    /// A launch whose repetitions are within 1 % of `seconds`.
    fn launch(seconds: f64, command: &str) -> (String, Report) {
        let rule = StoppingRule::default();
        let samples: Vec<f64> = (0..20).map(|i| seconds * (1.0 + f64::from(i - 10) / 1000.0)).collect();
        let context = Context { command: command.into(), hosts: vec!["n".into(); 4], ..Context::default() };
        let rows = vec![Row::new("broadcast/native", 4096, rule.summary(&samples), &rule)];
        let found = serde_json::Value::Null;
        (
            format!("{seconds}.json"),
            Report { title: "broadcast".into(), context, rule, rows, found, ..Report::default() },
        )
    }

    /// Medians of eight launches in microseconds, each with an interval of 0.2 to 1 %.
    const EIGHT: [f64; 8] = [19.67, 18.50, 18.31, 18.72, 18.60, 15.68, 12.98, 10.56];

    #[test]
    fn the_interval_of_launches_is_as_wide_as_launches_differ() {
        let reports: Vec<_> = EIGHT.map(|us| launch(us * 1e-6, "mpib collective broadcast -o a.json")).to_vec();
        let merged = merge(&reports).expect("launches of one command");
        let row = &merged.rows[0];
        let interval = row.interval.expect("eight launches");
        assert!(interval.low < 13.0e-6 && interval.high > 18.6e-6, "{interval:?}");
        assert!(row.next_launch.low < 10.5e-6 && row.next_launch.high > 19.7e-6, "{:?}", row.next_launch);
        assert!(row.error_within.is_some_and(|e| e < 0.01), "within a launch: {row:?}");
        let table = merged.table();
        assert!(table.contains("8 launches") && table.contains("95% from"), "{table}");
        let columns: Vec<_> = merged.csv().lines().map(|l| l.split(',').count()).collect();
        assert_eq!(columns, [13, 13]);
    }

    #[test]
    fn the_interval_of_one_more_launch_contains_it_as_often_as_it_states() {
        // Normal deviates by the sum of twelve uniform numbers of a linear congruential generator.
        let mut state = 12345u64;
        let mut normal = || {
            let mut sum = -6.0;
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += (state >> 11) as f64 / (1u64 << 53) as f64;
            }
            sum
        };
        let held = (0..4000).filter(|_| {
            let values: Vec<f64> = (0..5).map(|_| (0.2 * normal()).exp()).collect();
            let (interval, new) = (next(&values, 0.95), (0.2 * normal()).exp());
            interval.low <= new && new <= interval.high
        });
        let held = held.count() as f64 / 4000.0;
        assert!((held - 0.95).abs() < 0.012, "{held}");
    }

    #[test]
    fn reports_of_other_commands_are_refused() {
        let a = launch(1.0, "/x/mpib collective broadcast --format json");
        let same = launch(1.1, "/y/mpib collective broadcast --output=b.json");
        assert!(merge(&[a.clone(), same]).is_ok());
        let other = merge(&[a.clone(), launch(1.0, "mpib collective broadcast --root 1")]).expect_err("another root");
        assert!(other.to_string().contains("differ in the command"), "{other}");
        let mut few = launch(1.0, "mpib collective broadcast");
        few.1.context.hosts.pop();
        assert!(merge(&[a.clone(), few]).expect_err("fewer ranks").to_string().contains("number of ranks"));
        assert_eq!(merge(&[a]), Err(MergeError::TooFew(1)));
    }

    #[test]
    fn launches_may_differ_in_the_names_of_all_output_files() {
        let plain = "mpib lanes --sizes 64";
        for words in ["-o a.json", "-oa.json", "--output a.json", "--output=a.json", "--format csv", "--figure a.svg"] {
            assert_eq!(super::words(&format!("/x/mpib lanes {words} --sizes 64")), "lanes --sizes 64", "{words}");
        }
        for words in ["--figures a --estimates=b", "--figures=a --estimates b -o c.json"] {
            assert!(merge(&[launch(1.0, plain), launch(1.0, &format!("{plain} {words}"))]).is_ok(), "{words}");
        }
        // With --rules, also Open MPI's own algorithms are measured.
        let with = |words: &str| launch(1.0, &format!("{plain} {words}"));
        assert!(merge(&[with("--rules a"), with("--rules=b")]).is_ok());
        assert!(merge(&[with("--rules a"), launch(1.0, plain)]).is_err());
        assert!(merge(&[with("--rules a --root 1"), with("--rules a --root 2")]).is_err());
    }
}
