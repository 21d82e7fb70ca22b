//! `mcr advise`: how often to write checkpoints, how the store grows, and what other settings would bring.

pub mod args;
mod choices;
mod growth;
mod history;
mod interval;
mod picture;
mod report;
mod sample;

use crate::common::{one_job, open_store, threads_of};
use crate::exit::Exit;
use crate::output::{human_time, print_json};
use crate::plot::{check_svg, write_svg};
use crate::settings::{Facts, Settings};
use anyhow::bail;
use args::AdviseArgs;
use choices::{Choices, Job};
use growth::checkpoints_after;
use history::{Measured, Restarts, complete, measured, restarts};
use interval::Times;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation::Incarnations;
use mcrengine::manifest;
use mcrengine::retention::Rules;
use sample::{Sample, measure};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Minimum time between two checkpoints for the row `in use`, in seconds. A time below this limit says nothing about
/// the job: the files were copied, or the given time to write a checkpoint is too long.
const INTERVAL_MIN_S: f64 = 0.01;
/// The days after which the size of the store is estimated.
const DAYS: [u32; 3] = [1, 7, 30];

/// The costs of an interval: lost time, and space in the store.
#[derive(Debug, serde::Serialize)]
struct Line {
    /// `in-use`, `young` or `daly`.
    formula: &'static str,
    interval_ms: u64,
    lost_percent: f64,
    bytes_per_day: u64,
    kept: Vec<Kept>,
}

/// The name of the interval of a line.
fn by(line: &Line) -> &'static str {
    match line.formula {
        "young" => "by Young",
        "daly" => "by Daly",
        _ => "in use",
    }
}

/// The checkpoints on disk after a number of days.
#[derive(Debug, serde::Serialize)]
struct Kept {
    days: u32,
    /// Number of checkpoints. `None` if the number is not known.
    count: Option<u64>,
    stored_bytes: Option<u64>,
}

/// Everything that was measured or given.
struct Advice<'a> {
    args: &'a AdviseArgs,
    job: &'a JobId,
    /// The newest complete checkpoint.
    checkpoint: &'a CheckpointId,
    measured: &'a Measured,
    restarts: &'a Restarts,
    times: &'a Times,
    rules: &'a Rules,
    /// Threads of each aggregator, for the choices.
    threads: u32,
    /// What was measured with `--measure`.
    choices: Option<(Sample, Choices)>,
}

pub fn run(args: AdviseArgs) -> anyhow::Result<ExitCode> {
    args.svg.as_deref().map_or(Ok(()), check_svg)?;
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let states = manifest::list(&store, &job)?;
    let incarnations = Incarnations::load(&store, &job)?;
    let measured = measured(&store, &job, &states, &incarnations)?;
    let restarts = restarts(&states, &incarnations);
    let times = times(&args, &job, &measured, &restarts)?;
    let rules = rules(&args);
    let Some(newest) = complete(&states).next() else { bail!("job {job} has no complete checkpoint") };
    let line = |formula: &'static str, interval_s: f64| Line {
        formula,
        interval_ms: (interval_s * 1000.0) as u64,
        lost_percent: (times.lost_percent(interval_s) * 100.0).round() / 100.0,
        bytes_per_day: (measured.stored_bytes as f64 * 86_400.0 / (interval_s + times.write_s)) as u64,
        kept: kept((interval_s + times.write_s) * 1000.0, &rules, measured.stored_bytes),
    };
    let in_use = measured.interval_ms.map(|ms| ms as f64 / 1000.0 - times.write_s).filter(|s| *s >= INTERVAL_MIN_S);
    let mut lines: Vec<Line> = in_use.map(|interval_s| line("in-use", interval_s)).into_iter().collect();
    lines.extend([line("young", times.young_s()), line("daly", times.daly_s())]);
    let started = Instant::now();
    let sample = args.measure.measure.then(|| measure(&store, &job, newest, &args)).transpose()?;
    let choices = sample.map(|sample| {
        let choices = Job::new(&sample, &measured, &times, &args.measure).choices();
        (sample, choices)
    });
    let draw = || match &args.svg {
        Some(file) => write_svg(file, &picture::svg(&job, &times, &rules, measured.stored_bytes, &lines)?),
        None => Ok(()),
    };
    let is_complete = choices.as_ref().is_none_or(|(sample, _)| sample.is_complete());
    let threads = threads_of(args.measure.threads) as u32; // a number of threads is small
    let advice = Advice {
        args: &args,
        job: &job,
        checkpoint: &newest.id,
        measured: &measured,
        restarts: &restarts,
        times: &times,
        rules: &rules,
        threads,
        choices,
    };
    match args.json {
        // The output is one object, so an error must come first.
        true => draw().and_then(|()| print_json(&json(&advice, &lines, started.elapsed().as_millis() as u64)))?,
        false => report::print_all(&advice, &lines).and_then(|()| draw())?,
    }
    Ok(if is_complete { Exit::Done } else { Exit::Partly }.into())
}

/// The times on which the interval depends: given, or measured.
fn times(args: &AdviseArgs, job: &JobId, measured: &Measured, restarts: &Restarts) -> anyhow::Result<Times> {
    let Some(mtbf_s) = args.mtbf.map(|hours| hours * 3600.0).or(restarts.mtbf_s()) else {
        bail!(
            "the time between failures is not known, because job {job} was never restarted from a checkpoint; give \
             --mtbf HOURS"
        );
    };
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let Some(write_s) = args.write_seconds.or(measured.write_ms.map(seconds)) else {
        bail!(
            "the time to write a checkpoint is not known, because all files of a checkpoint have the same time; give \
             --write-seconds SECONDS"
        );
    };
    if args.mtbf.is_none() && mtbf_s < write_s {
        bail!(
            "the time between failures was measured as {}, because job {job} was restarted soon after it had begun. This \
             is less than the {} to write a checkpoint, so no interval can be computed; give --mtbf HOURS",
            human_time(Duration::from_secs_f64(mtbf_s)),
            human_time(Duration::from_secs_f64(write_s)),
        );
    }
    let restart_s = args.restart_seconds.or(measured.restart_ms.map(seconds)).unwrap_or(0.0);
    Ok(Times { write_s, mtbf_s, restart_s, commit_s: seconds(measured.commit_ms) })
}

/// The report as JSON. `elapsed_ms`: the duration of the measurement of the sample.
fn json(advice: &Advice<'_>, lines: &[Line], elapsed_ms: u64) -> Value {
    let Advice { args, job, checkpoint, measured, restarts, times, threads, choices, .. } = advice;
    let ms = |seconds: f64| (seconds * 1000.0) as u64;
    let sample = choices.as_ref().map(|(sample, _)| {
        json!({
            "checkpoint": checkpoint, "profile": sample.in_use, "group_size": sample.group_size,
            "ranks": sample.ranks, "measured_ranks": sample.measured_ranks,
            "measured_file_bytes": sample.measured_file_bytes, "sample_bytes": args.measure.sample,
            "time_limit_seconds": args.measure.time_limit, "threads": threads, "elapsed_ms": elapsed_ms,
            "is_complete": sample.is_complete(), "too_large": sample.too_large,
        })
    });
    let choices = choices.as_ref().map(|(_, choices)| choices);
    let list = |of: &dyn Fn(&Choices) -> Value| choices.map_or(json!([]), of);
    json!({
        "job": job, "mtbf_ms": ms(times.mtbf_s), "write_ms": ms(times.write_s), "restart_ms": ms(times.restart_s),
        "measured": measured, "restarts": restarts, "intervals": lines, "sample": sample,
        "profiles": list(&|choices| json!(choices.profiles)),
        "group_sizes": list(&|choices| json!(choices.group_sizes)),
        "aggregators": list(&|choices| json!(choices.aggregators)),
    })
}

/// The rules on the command line. If there are none, the rules in the settings of the job in this directory.
fn rules(args: &AdviseArgs) -> Rules {
    let given = args.keep.rules();
    if !given.is_empty() {
        return given;
    }
    let settings = Settings::find(&Facts::of_this_process()).ok().flatten();
    let anc = settings.and_then(|settings| settings.config_file().ok()).map(|file| file.anc);
    let of_store = anc.filter(|anc| anc.store == args.store.store).and_then(|anc| anc.check().ok());
    of_store.map(|config| config.hub.keep).unwrap_or_default()
}

fn kept(interval_ms: f64, rules: &Rules, stored_bytes: u64) -> Vec<Kept> {
    let after = |days: u32| {
        let count = checkpoints_after(days, interval_ms, rules);
        Kept { days, count, stored_bytes: count.map(|count| count.saturating_mul(stored_bytes)) }
    };
    DAYS.map(after).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_store_is_the_number_of_kept_checkpoints_times_their_length() {
        let rules = Rules { last: 3, ..Rules::default() };
        let all = kept(3_600_000.0, &rules, 100);
        let sizes: Vec<_> = all.iter().map(|kept| (kept.days, kept.stored_bytes)).collect();
        assert_eq!(sizes, [(1, Some(300)), (7, Some(300)), (30, Some(300))]);
    }
}
