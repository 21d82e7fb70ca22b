//! `mcr advise`: how often to write checkpoints, and how the store grows.

pub mod args;
mod growth;
mod interval;

use crate::common::{one_job, open_store};
use crate::output::{Table, counted, human_time, print, print_json};
use crate::settings::{Facts, Settings};
use anyhow::bail;
use args::AdviseArgs;
use growth::checkpoints_after;
use interval::Times;
use mcrengine::container::ContainerReader;
use mcrengine::ids::{GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::retention::Rules;
use mcrengine::store::{PosixStore, Store};
use mcrengine::units::human_bytes;
use std::process::ExitCode;
use std::time::Duration;

/// Maximum number of newest checkpoints that are measured.
const MEASURED_MAX: usize = 8;
/// Maximum number of groups of a checkpoint whose files are looked at.
const GROUPS_MAX: u32 = 64;
/// The days after which the size of the store is estimated.
const DAYS: [u32; 3] = [1, 7, 30];

/// Medians over the newest complete checkpoints of a job.
#[derive(Debug, serde::Serialize)]
struct Measured {
    /// Number of measured checkpoints.
    count: usize,
    /// Time from the first to the last file of a checkpoint. `None` if this time is not known.
    write_ms: Option<u64>,
    /// Time from the last file of a checkpoint until the checkpoint was committed.
    commit_ms: u64,
    /// Time in which the aggregators wrote a checkpoint.
    flush_ms: u64,
    /// Time between two checkpoints of one start of the job. `None` if there are no two checkpoints.
    interval_ms: Option<u64>,
    file_bytes: u64,
    stored_bytes: u64,
}

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

/// The checkpoints on disk after a number of days.
#[derive(Debug, serde::Serialize)]
struct Kept {
    days: u32,
    /// Number of checkpoints. `None` if the number is not known.
    count: Option<u64>,
    stored_bytes: Option<u64>,
}

pub fn run(args: AdviseArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let job = one_job(&store, &args.store)?;
    let measured = measured(&store, &job)?;
    let Some(write_s) = args.write_seconds.or(measured.write_ms.map(|ms| ms as f64 / 1000.0)) else {
        bail!(
            "the time to write a checkpoint is not known, because all files of a checkpoint have the same time; give \
             --write-seconds SECONDS"
        );
    };
    let commit_s = measured.commit_ms as f64 / 1000.0;
    let times = Times { write_s, mtbf_s: args.mtbf * 3600.0, restart_s: args.restart_seconds, commit_s };
    let rules = rules(&args);
    let line = |formula: &'static str, interval_s: f64| Line {
        formula,
        interval_ms: (interval_s * 1000.0) as u64,
        lost_percent: (times.lost_share(interval_s) * 1e4).round() / 100.0,
        bytes_per_day: (measured.stored_bytes as f64 * 86_400.0 / (interval_s + write_s)) as u64,
        kept: kept((interval_s + write_s) * 1000.0, &rules, measured.stored_bytes),
    };
    let in_use = measured.interval_ms.map(|ms| (ms as f64 / 1000.0 - write_s).max(0.001));
    let mut lines: Vec<Line> = in_use.map(|interval_s| line("in-use", interval_s)).into_iter().collect();
    lines.extend([line("young", times.young_s()), line("daly", times.daly_s())]);
    if args.json {
        print_json(&serde_json::json!({
            "job": job, "mtbf_ms": (times.mtbf_s * 1000.0) as u64, "write_ms": (write_s * 1000.0) as u64,
            "restart_ms": (args.restart_seconds * 1000.0) as u64, "measured": measured, "intervals": lines,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_text(&args, &job, &measured, &lines, &rules)?;
    Ok(ExitCode::SUCCESS)
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

fn measured(store: &PosixStore, job: &JobId) -> anyhow::Result<Measured> {
    let states = manifest::list(store as &dyn Store, job)?;
    let complete: Vec<&CheckpointState> =
        states.iter().filter(|state| state.is_complete() && !state.is_pruned).take(MEASURED_MAX).collect();
    if complete.is_empty() {
        bail!("job {job} has no complete checkpoint, so nothing can be measured; save one with mcr save or mcr run");
    }
    let written = |state: &CheckpointState| state.place.map_or(0, |place| place.written_unix_ms);
    let after = |from: i64, to: i64| u64::try_from(to.saturating_sub(from)).unwrap_or(0);
    let committed = |state: &CheckpointState| {
        let end_ms = i64::try_from(state.created_unix_ms.saturating_add(state.elapsed_ms)).unwrap_or(i64::MAX);
        after(written(state), end_ms)
    };
    let mut writes = Vec::new();
    for state in &complete {
        writes.extend(write_ms(store, job, state));
    }
    // The time between the checkpoints of two starts also contains the wait for the second start, so it is not an
    // interval.
    let same_start = complete.windows(2).filter(|pair| incarnation(pair[0]) == incarnation(pair[1]));
    let intervals = same_start.map(|pair| after(written(pair[1]), written(pair[0]))).filter(|ms| *ms > 0);
    let all = |of: &dyn Fn(&CheckpointState) -> u64| median(complete.iter().map(|state| of(state)).collect());
    Ok(Measured {
        count: complete.len(),
        write_ms: median(writes),
        commit_ms: all(&committed).unwrap_or(0),
        flush_ms: all(&|state| state.elapsed_ms).unwrap_or(0),
        interval_ms: median(intervals.collect()),
        file_bytes: all(&|state| state.file_bytes).unwrap_or(0),
        stored_bytes: all(&|state| state.stored_bytes.0).unwrap_or(0),
    })
}

fn incarnation(state: &CheckpointState) -> Option<u32> {
    state.place.map(|place| place.incarnation)
}

/// Time from the first to the last file of a checkpoint. `None` if all files have the same time, or if a container
/// cannot be read.
fn write_ms(store: &PosixStore, job: &JobId, state: &CheckpointState) -> Option<u64> {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for group in (0..state.groups.min(GROUPS_MAX)).map(GroupId) {
        let reader = ContainerReader::open(store, job, &state.id, group).ok()?;
        for file in reader.index().files().iter().filter(|file| file.kind.is_regular()) {
            (first, last) = (first.min(file.modified_ns), last.max(file.modified_ns));
        }
    }
    let ms = u64::try_from(last.saturating_sub(first) / 1_000_000).unwrap_or(0);
    (first < last && ms > 0).then_some(ms)
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

fn print_text(
    args: &AdviseArgs,
    job: &JobId,
    measured: &Measured,
    lines: &[Line],
    rules: &Rules,
) -> anyhow::Result<()> {
    let time = |ms: u64| human_time(Duration::from_millis(ms));
    let mut text =
        format!("job {job}, the newest {}, medians:\n", counted(measured.count as u64, "complete checkpoint"));
    match (args.write_seconds, measured.write_ms) {
        (Some(given), _) => text.push_str(&format!("  write    {given} s, as given\n")),
        (None, Some(ms)) => text.push_str(&format!(
            "  write    {}, from the first to the last file; the application may stop longer\n           \
             (--write-seconds)\n",
            time(ms)
        )),
        (None, None) => {}
    }
    text.push_str(&format!("  commit   {} after the last file was written\n", time(measured.commit_ms)));
    text.push_str(&format!("  flush    {} for {}\n", time(measured.flush_ms), human_bytes(measured.file_bytes)));
    text.push_str(&format!("  stored   {} for each checkpoint\n", human_bytes(measured.stored_bytes)));
    text.push_str(match args.restart_seconds > 0.0 {
        true => "\n",
        false => "The time of a restart is not counted (--restart-seconds).\n\n",
    });
    print(&text)?;
    let mut table = Table::new(&[
        "interval",
        ">time between",
        ">lost time",
        ">stored a day",
        ">after 1 day",
        ">after 7 days",
        ">after 30 days",
    ]);
    for line in lines {
        let by = match line.formula {
            "young" => "by Young",
            "daly" => "by Daly",
            _ => "in use",
        };
        let lost = format!("{:.2} %", line.lost_percent);
        let after = line.kept.iter().map(|kept| kept.stored_bytes.map_or("-".to_owned(), human_bytes));
        let first = [by.to_owned(), time(line.interval_ms), lost, human_bytes(line.bytes_per_day)];
        table.row(first.into_iter().chain(after));
    }
    table.print()?;
    let mut notes = String::new();
    notes.push_str(match rules.is_empty() {
        true => "No checkpoint is removed, because no rule of retention is set (--keep, or keep in mcr.toml).\n",
        false => "Containers of removed checkpoints that other checkpoints need are not counted.\n",
    });
    let shortest = lines.iter().map(|line| line.interval_ms).min().unwrap_or(0);
    if measured.flush_ms > shortest {
        notes.push_str(&format!(
            "The aggregators need {} for a checkpoint, so a shorter interval lets checkpoints wait.\n",
            time(measured.flush_ms)
        ));
    }
    print(&format!("\n{notes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        assert_eq!(median(vec![3, 1, 900]), Some(3));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn the_size_of_the_store_is_the_number_of_kept_checkpoints_times_their_length() {
        let rules = Rules { last: 3, ..Rules::default() };
        let all = kept(3_600_000.0, &rules, 100);
        let sizes: Vec<_> = all.iter().map(|kept| (kept.days, kept.stored_bytes)).collect();
        assert_eq!(sizes, [(1, Some(300)), (7, Some(300)), (30, Some(300))]);
    }
}
