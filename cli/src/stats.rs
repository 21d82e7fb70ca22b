//! `mcr stats`: how much space store, jobs and checkpoints use, what is shared, and what prune would free.

use crate::args::{KeepArgs, StatsArgs};
use crate::common::{no_checkpoint_of, now_unix_ms, open_store, renamed};
use crate::list::{add_unreadable, partly};
use crate::ours;
use crate::output::{Progress, Table, counted, name_of, note, or_dash, print, print_json, ratio, tell_error};
use crate::plot::{self, Figure, Scale};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::parity;
use mcrengine::prune::{PruneOptions, REPACK_BELOW_PERCENT, prune};
use mcrengine::repack::needed_bytes;
use mcrengine::retention::Rules;
use mcrengine::store::{Store, StoreError};
use mcrengine::units::human_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A job.
#[derive(serde::Serialize)]
struct Job {
    job: JobId,
    /// Length of all files of the job.
    disk_bytes: u64,
    /// Length of the parity files. `disk_bytes` contains this length.
    parity_bytes: u64,
    /// Bytes of the files of all complete checkpoints.
    file_bytes: u64,
    /// Length of the remaining files of pruned checkpoints.
    held_bytes: u64,
    /// Bytes in the remaining files of pruned checkpoints that other checkpoints need. `None` if the number is not
    /// known.
    needed_bytes: Option<u64>,
    /// File bytes divided by the bytes on disk. `None` without a complete checkpoint.
    ratio: Option<f64>,
    /// Result of `mcr prune --dry-run`.
    prune: Freed,
    checkpoints: Vec<Line>,
}

/// What `mcr prune` would do.
#[derive(serde::Serialize)]
struct Freed {
    /// The options of `mcr prune`.
    rules: String,
    removed: Vec<CheckpointId>,
    freed_bytes: u64,
}

/// A checkpoint.
#[derive(serde::Serialize)]
struct Line {
    checkpoint: CheckpointId,
    pruned: bool,
    complete: bool,
    /// `None` if no manifest can be read.
    created_unix_ms: Option<u64>,
    file_bytes: u64,
    /// Length of all files of the checkpoint.
    disk_bytes: u64,
    /// Length of the parity files. `disk_bytes` contains this length.
    parity_bytes: u64,
    /// File bytes divided by the bytes on disk. `None` if the checkpoint is not complete.
    ratio: Option<f64>,
    /// Older checkpoints whose containers this checkpoint needs.
    references: BTreeSet<CheckpointId>,
    /// Checkpoints that need a container of this checkpoint.
    needed_by: Vec<CheckpointId>,
    /// Bytes of this checkpoint that other checkpoints need. `None` if the number is not known.
    needed_bytes: Option<u64>,
}

pub fn run(args: StatsArgs) -> anyhow::Result<ExitCode> {
    args.plots.as_deref().map_or(Ok(()), plot::create_dir)?;
    let store = open_store(&args.store)?;
    let names = match &args.store.job {
        Some(job) => vec![job.clone()],
        None => ours::jobs(&store, &args.store.store)?,
    };
    let progress = Progress::new("reading", args.json);
    let (looked_at, mut failed, mut jobs) = (names.len(), Vec::new(), Vec::new());
    for name in names {
        progress.message(name.to_string());
        if let Some(renamed) = renamed(&store, &args.store.store, &name) {
            match args.store.job {
                Some(_) => return Err(renamed.into()),
                None => note(format!("{renamed}")),
            }
        }
        let job = match look_at(&store, &name, &args) {
            Ok(job) => job,
            Err(error) if args.store.job.is_some() => return Err(error),
            Err(error) => {
                tell_error(&error);
                failed.push(name);
                continue;
            }
        };
        if !job.checkpoints.is_empty() {
            jobs.push(job);
        } else if let Some(none) = args.store.job.as_ref().and(no_checkpoint_of(&store, &args.store, &name)?) {
            return Err(none.advised(&args.store.store).into());
        }
    }
    drop(progress);
    let draw = || args.plots.as_ref().map_or(Ok(()), |dir| plot::write(dir, &figures(&jobs)));
    let bytes: u64 = match args.store.job {
        Some(_) => jobs.iter().map(|job| job.disk_bytes).sum(),
        None => bytes_of_store(&store, &jobs)?,
    };
    if args.json {
        let store = name_of(&args.store.store);
        let mut json = serde_json::json!({ "store": store, "disk_bytes": bytes, "jobs": jobs });
        add_unreadable(&mut json, &failed);
        draw()?; // the output is one object, so an error must come first
        print_json(&json)?;
    } else {
        // If no job could be read, there is nothing to print.
        if !jobs.is_empty() || failed.is_empty() {
            print_text(&jobs, bytes, &args)?;
        }
        draw()?;
    }
    Ok(partly(looked_at, &failed))
}

fn look_at(store: &dyn Store, name: &JobId, args: &StatsArgs) -> anyhow::Result<Job> {
    let mut states = manifest::list(store, name)?;
    states.retain(|state| !ours::is_foreign(store, name, state));
    tracing::info!(job = %name, checkpoints = states.len(), "reading the files of the job");
    let mut needed_by: BTreeMap<&CheckpointId, Vec<CheckpointId>> = BTreeMap::new();
    let mut wanted: BTreeSet<(CheckpointId, GroupId)> = BTreeSet::new();
    for state in &states {
        for reference in &state.references {
            wanted.insert((reference.checkpoint.clone(), reference.group));
            let by = needed_by.entry(&reference.checkpoint).or_default();
            if by.last() != Some(&state.id) {
                by.push(state.id.clone());
            }
        }
    }
    let needed = needed_bytes(store, name, &states, &wanted);
    let mut checkpoints = Vec::new();
    for state in &states {
        let dir = Path::new(name.as_str()).join(state.id.as_str());
        let Length { all: disk_bytes, parity: parity_bytes } = length_below(store, &dir)?;
        tracing::debug!(checkpoint = %state.id, disk_bytes, is_pruned = state.is_pruned, "read a checkpoint");
        let of_this = wanted.iter().filter(|(id, _)| *id == state.id);
        let file_bytes = if state.is_complete() { state.file_bytes } else { 0 };
        checkpoints.push(Line {
            checkpoint: state.id.clone(),
            pruned: state.is_pruned,
            complete: state.is_complete(),
            created_unix_ms: state.place.map(|_| state.created_unix_ms),
            file_bytes,
            disk_bytes,
            parity_bytes,
            ratio: state.is_complete().then(|| ratio(file_bytes, disk_bytes)),
            references: state.references.iter().map(|one| one.checkpoint.clone()).collect(),
            needed_by: needed_by.get(&state.id).cloned().unwrap_or_default(),
            needed_bytes: of_this.map(|key| needed.get(key).map(|bytes| bytes.0)).sum(),
        });
    }
    let sum = |of: &dyn Fn(&Line) -> u64| checkpoints.iter().map(of).sum::<u64>();
    let Length { all: disk_bytes, parity: parity_bytes } = length_below(store, Path::new(name.as_str()))?;
    let has_complete = checkpoints.iter().any(|line| line.complete && !line.pruned);
    let file_bytes = sum(&|line| if line.pruned { 0 } else { line.file_bytes });
    Ok(Job {
        disk_bytes,
        parity_bytes,
        file_bytes,
        held_bytes: sum(&|line| if line.pruned { line.disk_bytes } else { 0 }),
        needed_bytes: checkpoints.iter().filter(|line| line.pruned).map(|line| line.needed_bytes).sum(),
        ratio: has_complete.then(|| ratio(file_bytes, disk_bytes)),
        prune: freed_by_prune(store, name, &states, args)?,
        job: name.clone(),
        checkpoints,
    })
}

/// What `mcr prune` would free with the rules of the command line, or with `--keep 1`.
fn freed_by_prune(
    store: &dyn Store,
    job: &JobId,
    states: &[CheckpointState],
    args: &StatsArgs,
) -> anyhow::Result<Freed> {
    let (keep, rules) = match args.keep.rules() {
        rules if rules.is_empty() => (Rules { last: 1, ..rules }, "--keep 1".to_owned()),
        rules => (rules, options_of(&args.keep)),
    };
    if !states.iter().any(CheckpointState::is_complete) {
        return Ok(Freed { rules, removed: Vec::new(), freed_bytes: 0 });
    }
    let options = PruneOptions {
        keep,
        dry_run: true,
        now_unix_ms: now_unix_ms(),
        repack_below_percent: REPACK_BELOW_PERCENT,
        ..PruneOptions::default()
    };
    let pruned = prune(store, job, &options)?;
    Ok(Freed { rules, removed: pruned.checkpoints, freed_bytes: pruned.freed_bytes.0 })
}

/// The options of these rules, as a user types them.
fn options_of(keep: &KeepArgs) -> String {
    let numbers = [
        ("keep", keep.keep.map(|n| n.to_string())),
        ("keep-within", keep.keep_within.map(|ms| format!("{}s", ms / 1000))),
        ("keep-hourly", keep.keep_hourly.map(|n| n.to_string())),
        ("keep-daily", keep.keep_daily.map(|n| n.to_string())),
        ("keep-weekly", keep.keep_weekly.map(|n| n.to_string())),
        ("keep-monthly", keep.keep_monthly.map(|n| n.to_string())),
    ];
    let given = numbers.into_iter().filter_map(|(name, value)| value.map(|value| format!("--{name} {value}")));
    given.collect::<Vec<_>>().join(" ")
}

/// Total lengths of files, in bytes.
#[derive(Clone, Copy, Default)]
struct Length {
    all: u64,
    /// Length of the parity files. `all` contains this length.
    parity: u64,
}

/// Length of all files below a directory of the store. A file that vanishes during the sum counts as 0 bytes.
fn length_below(store: &dyn Store, dir: &Path) -> Result<Length, StoreError> {
    let mut length = Length::default();
    let entries = match store.list_dir(dir) {
        Err(error) if error.is_not_found() => Vec::new(),
        other => other?,
    };
    for entry in entries {
        let path = dir.join(&entry.name);
        let of_entry = match entry.is_dir {
            true => length_below(store, &path)?,
            false => {
                let all = store.stat(&path).map_or(0, |stat| stat.bytes);
                Length { all, parity: if entry.name.ends_with(parity::SUFFIX) { all } else { 0 } }
            }
        };
        length.all += of_entry.all;
        length.parity += of_entry.parity;
    }
    Ok(length)
}

/// Length of all files of the store: of these jobs, and of the files and directories beside them, such as
/// `.JOB.incarnations`. What cannot be read counts as 0 bytes.
fn bytes_of_store(store: &dyn Store, jobs: &[Job]) -> Result<u64, StoreError> {
    let mut bytes: u64 = jobs.iter().map(|job| job.disk_bytes).sum();
    let others = store.list_dir(Path::new(""))?.into_iter();
    for entry in others.filter(|entry| !jobs.iter().any(|job| job.job.as_str() == entry.name)) {
        let path = Path::new(&entry.name);
        bytes += match entry.is_dir {
            true => length_below(store, path).map_or(0, |length| length.all),
            false => store.stat(path).map_or(0, |stat| stat.bytes),
        };
    }
    Ok(bytes)
}

/// The ratios of the complete checkpoints, oldest first.
fn ratios(job: &Job) -> Vec<(&CheckpointId, f64)> {
    let complete = job.checkpoints.iter().rev().filter(|line| line.complete && !line.pruned);
    complete.filter_map(|line| Some((&line.checkpoint, line.ratio?))).collect()
}

/// Maximum number of values in a sparkline.
const SPARKS_MAX: usize = 40;

/// A sparkline with one character for each of the newest values. The lowest value has the lowest bar, and the highest
/// value has the highest bar.
fn sparkline(values: &[f64]) -> String {
    const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(SPARKS_MAX)..];
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Values that are printed as equal have equal bars.
    let spark = |value: &f64| match most - least {
        range if format!("{most:.3}") != format!("{least:.3}") => {
            SPARKS[((value - least) / range * 7.0).round() as usize]
        }
        _ => SPARKS[3],
    };
    values.iter().map(spark).collect()
}

fn figures(jobs: &[Job]) -> Vec<(PathBuf, Figure)> {
    let figure = |job: &Job| {
        let ratios = ratios(job);
        let figure = Figure {
            title: format!("Ratio of the checkpoints of job {}", job.job),
            below: "checkpoint",
            left: "ratio",
            places: ratios.iter().map(|(id, _)| id.to_string()).collect(),
            lines: vec![("bytes on disk".to_owned(), ratios.iter().map(|(_, ratio)| Some(*ratio).into()).collect())],
            bars: false,
            base: 1.0,
            scale: Scale::Linear,
        };
        (PathBuf::from(format!("ratio-{}.svg", job.job)), figure)
    };
    jobs.iter().map(figure).collect()
}

/// `bytes`: length of all files of the store.
fn print_text(jobs: &[Job], bytes: u64, args: &StatsArgs) -> anyhow::Result<()> {
    let count = counted(jobs.len() as u64, "job");
    print(&format!("store {}: {} in {count}\n", name_of(&args.store.store), human_bytes(bytes)))?;
    for job in jobs {
        let there = job.checkpoints.iter().filter(|line| !line.pruned);
        let mut text = format!(
            "\njob {}: {} on disk, {}, {} of files, ratio {}\n",
            job.job,
            human_bytes(job.disk_bytes),
            counted(there.count() as u64, "checkpoint"),
            human_bytes(job.file_bytes),
            or_dash(job.ratio.map(|ratio| format!("{ratio:.3}")))
        );
        let ratios: Vec<f64> = ratios(job).into_iter().map(|(_, ratio)| ratio).collect();
        if let ([first, .., last], true) = (ratios.as_slice(), ratios.len() > 1) {
            text.push_str(&format!("ratio from {first:.3} to {last:.3}: {}\n", sparkline(&ratios)));
        }
        if job.held_bytes > 0 {
            let needed = job.needed_bytes.map_or("an unknown part".to_owned(), human_bytes);
            text.push_str(&format!(
                "pruned checkpoints: {} on disk, of which other checkpoints need {needed}\n",
                human_bytes(job.held_bytes)
            ));
        }
        if job.parity_bytes > 0 {
            text.push_str(&format!("parity: {} on disk\n", human_bytes(job.parity_bytes)));
        }
        text.push_str(&format!(
            "mcr prune with {} would remove {} and free about {}\n\n",
            job.prune.rules,
            counted(job.prune.removed.len() as u64, "checkpoint"),
            human_bytes(job.prune.freed_bytes)
        ));
        print(&text)?;
        table(job, args.all).print()?;
        let hidden = job.checkpoints.len().saturating_sub(SHOWN_MAX);
        if hidden > 0 && !args.all {
            print(&format!("... and {} (--all shows them)\n", counted(hidden as u64, "older checkpoint")))?;
        }
    }
    Ok(())
}

/// Number of checkpoints of a job that are shown without `--all`.
const SHOWN_MAX: usize = 20;

fn table(job: &Job, all: bool) -> Table {
    let mut table = Table::new(&[
        "checkpoint",
        ">files",
        ">on disk",
        "?>parity",
        "?>ratio",
        "?>others need",
        "?~refers to",
        "?~needed by",
    ]);
    let names = |ids: &mut dyn Iterator<Item = &CheckpointId>| {
        let names: Vec<&str> = ids.map(CheckpointId::as_str).collect();
        match names.as_slice() {
            [first, second, rest @ ..] if !rest.is_empty() => format!("{first}, {second} and {} more", rest.len()),
            names => names.join(", "),
        }
    };
    let shown = if all { job.checkpoints.len() } else { SHOWN_MAX };
    for line in job.checkpoints.iter().take(shown) {
        let needed = match (line.needed_by.is_empty(), line.needed_bytes) {
            (true, _) => String::new(),
            (false, needed) => needed.map_or("unknown".to_owned(), human_bytes),
        };
        table.row([
            if line.pruned { format!("{} (pruned)", line.checkpoint) } else { line.checkpoint.to_string() },
            if line.complete { human_bytes(line.file_bytes) } else { "-".to_owned() },
            human_bytes(line.disk_bytes),
            if line.parity_bytes > 0 { human_bytes(line.parity_bytes) } else { String::new() },
            or_dash(line.ratio.map(|ratio| format!("{ratio:.3}"))),
            needed,
            names(&mut line.references.iter()),
            names(&mut line.needed_by.iter()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_goes_from_the_lowest_to_the_highest_value_and_shows_the_newest() {
        assert_eq!(sparkline(&[1.0, 1.5, 2.0]), "▁▅█");
        assert_eq!(sparkline(&[2.0, 2.0]), "▄▄");
        assert_eq!(sparkline(&[2.0001, 2.0002]), "▄▄", "both are printed as 2.000");
        assert_eq!(sparkline(&[]), "");
        let many: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(sparkline(&many).chars().count(), SPARKS_MAX);
        assert!(sparkline(&many).ends_with('█'));
    }
}
