//! `mcr list`: the checkpoints of a store, newest first.

use crate::args::ListArgs;
use crate::common::{no_checkpoint_of, open_existing, open_store, renamed};
use crate::exit::Exit;
use crate::ours;
use crate::output::{
    Paint, Table, counted, human_time, json_word, name_of, or_dash, print, print_json, ratio, tell, tell_error, utc,
};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::repack::{Held, held_for_others};
use mcrengine::store::Store;
use mcrengine::units::human_bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

pub fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let jobs = match &args.store.job {
        Some(job) => vec![job.clone()],
        None => ours::jobs(&store, &args.store.store)?,
    };
    let (mut lines, mut reasons, mut held_lines, mut table) = (
        Vec::new(),
        Vec::new(),
        Vec::new(),
        Table::new(&[
            "job",
            "!checkpoint",
            "state",
            "?saved (UTC)",
            ">ranks",
            "?>files",
            ">bytes",
            ">stored",
            "?>ratio",
            "?>took",
        ]),
    );
    let mut failed = Vec::new();
    for job in &jobs {
        let renamed = renamed(&store, &args.store.store, job);
        let states = match manifest::list(&store as &dyn Store, job) {
            Ok(states) => states,
            Err(error) if args.store.job.is_some() => return Err(error.into()),
            Err(error) => {
                tell_error(&renamed.map_or_else(|| error.into(), Into::into));
                failed.push(job.clone());
                continue;
            }
        };
        reasons.extend(renamed.map(|renamed| format!("{renamed}\n")));
        let states = newest_first(&store, job, states);
        let count = states.len();
        let held = if args.all { held_for_others(&store, job, &states) } else { BTreeMap::new() };
        held_lines.extend(held.iter().filter(|(_, held)| !held.by.is_empty()).map(|(id, held)| held_line(id, held)));
        // Position in the order of the job's checkpoints. The oldest checkpoint has number 1.
        let placed = states.into_iter().enumerate().map(|(nth, state)| (count - nth, state));
        for (place, state) in placed.filter(|(_, state)| args.all || !state.is_pruned) {
            if ours::is_foreign(&store, job, &state) {
                continue;
            }
            let stored = held.get(&state.id).map(|held| held.bytes.0).or(measured(&state, state.stored_bytes.0));
            table.row([
                job.to_string(),
                state.id.to_string(),
                word_of(&state),
                or_dash(measured(&state, utc(state.created_unix_ms))),
                or_dash(measured(&state, state.ranks)),
                or_dash(measured(&state, state.files)),
                or_dash(measured(&state, human_bytes(state.file_bytes))),
                or_dash(stored.map(human_bytes)),
                or_dash(measured(&state, format!("{:.3}", ratio(state.file_bytes, state.stored_bytes.0)))),
                or_dash(measured(&state, human_time(Duration::from_millis(state.elapsed_ms)))),
            ]);
            table.paint(2, paint_of(&state));
            if !state.is_complete() && !state.is_pruned && reasons.len() < REASONS_MAX {
                let why = state.problems.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
                reasons.push(format!("{} is {}: {why}\n", state.id, state.condition()));
            } else if reasons.len() < REASONS_MAX {
                let line = |(mark, why)| format!("{} is {mark}: {why}\n", state.id);
                reasons.extend(marks_of(&state).into_iter().map(line));
            }
            lines.push(to_json(job.as_str(), place, &state, held.get(&state.id)));
        }
    }
    // If the named job has no checkpoint, but other jobs have checkpoints, the name is probably misspelt.
    if let (Some(job), true) = (&args.store.job, lines.is_empty())
        && let Some(none) = no_checkpoint_of(&store, &args.store, job)?
        && !manifest::jobs(&store)?.is_empty()
    {
        return Err(none.advised(&args.store.store).into());
    }
    if args.json {
        let mut json = serde_json::json!({ "checkpoints": lines });
        add_unreadable(&mut json, &failed);
        print_json(&json)?;
    } else if lines.is_empty() && failed.is_empty() {
        print(&format!("no checkpoint in {}\n", name_of(&args.store.store)))?;
    } else if !lines.is_empty() {
        table.print_with(&(reasons.concat() + &held_lines.concat()))?;
    }
    Ok(partly(jobs.len(), &failed))
}

/// Adds the jobs that could not be read to the JSON of a command, if there are such jobs.
pub fn add_unreadable(json: &mut serde_json::Value, failed: &[JobId]) {
    if !failed.is_empty() {
        json["unreadable_jobs"] = failed.iter().map(JobId::as_str).collect();
    }
}

/// The exit status of a command that looked at several jobs and could not read some of them. Names these jobs on
/// standard error.
pub fn partly(jobs: usize, failed: &[JobId]) -> ExitCode {
    let exit = Exit::of(jobs - failed.len(), !failed.is_empty());
    if failed.is_empty() {
        return ExitCode::SUCCESS; // a store without jobs is no failure
    }
    let word = if exit == Exit::Partly { "PARTLY" } else { "FAILED" };
    let names: Vec<&str> = failed.iter().map(JobId::as_str).collect();
    tell(format!("{word}: {} of {} could not be read: {}", names.len(), counted(jobs as u64, "job"), names.join(", ")));
    exit.into()
}

/// The newest checkpoints of all jobs of a store, at most `most`, newest first: the JSON of `mcr list`.
///
/// # Errors
///
/// The store cannot be read.
pub fn newest(store: &Path, most: usize) -> anyhow::Result<serde_json::Value> {
    let (root, store) = (store, open_existing(store)?);
    let mut found = Vec::new();
    for job in ours::jobs(&store, root)? {
        let states = manifest::list(&store as &dyn Store, &job)?;
        let count = states.len();
        let placed = states.into_iter().enumerate();
        let placed = placed.filter(|(_, state)| !state.is_pruned && !ours::is_foreign(&store, &job, state));
        // The newest checkpoints of all jobs are among the newest checkpoints of each job.
        let lines = placed
            .take(most)
            .map(|(nth, state)| (state.created_unix_ms, to_json(job.as_str(), count - nth, &state, None)));
        found.extend(lines);
        found.sort_by_key(|(created_unix_ms, _)| std::cmp::Reverse(*created_unix_ms));
        found.truncate(most);
    }
    let checkpoints: Vec<_> = found.into_iter().map(|(_, line)| line).collect();
    Ok(serde_json::json!({ "checkpoints": checkpoints }))
}

/// Moves the checkpoints without a manifest, which have no place in the order of the job, to the places that the times
/// of their directories show. A checkpoint whose directory has no known time comes last.
pub fn newest_first(store: &dyn Store, job: &JobId, states: Vec<CheckpointState>) -> Vec<CheckpointState> {
    // The name of a damaged checkpoint has determined its place.
    let is_unplaced = |state: &CheckpointState| state.place.is_none() && !state.is_damaged && !state.is_unreadable;
    let (unplaced, placed): (Vec<_>, Vec<_>) = states.into_iter().partition(is_unplaced);
    let of_manifest = |state: CheckpointState| (state.place.map(|_| state.created_unix_ms), state);
    let mut timed: Vec<(Option<u64>, CheckpointState)> = placed.into_iter().map(of_manifest).collect();
    for state in unplaced.into_iter().rev() {
        let modified = store.stat(&Path::new(job.as_str()).join(state.id.as_str()));
        let modified = modified.ok().and_then(|stat| u64::try_from(stat.modified_unix_ms?).ok());
        let is_older = |other: Option<u64>| other.zip(modified).is_some_and(|(other, own)| other <= own);
        let at = timed.iter().position(|(other, _)| is_older(*other)).unwrap_or(timed.len());
        timed.insert(at, (modified, state));
    }
    timed.into_iter().map(|(_, state)| state).collect()
}

/// The value, which comes from the manifests of the checkpoint. `None` if no manifest can be read.
fn measured<T>(state: &CheckpointState, value: T) -> Option<T> {
    state.place.map(|_| value)
}

/// The word for the state, in the table and in JSON.
fn word_of(state: &CheckpointState) -> String {
    marks_of(state).first().map_or_else(|| state.condition().to_string(), |(word, _)| (*word).to_owned())
}

/// The colour of the state.
fn paint_of(state: &CheckpointState) -> Paint {
    match state {
        state if state.is_damaged || state.is_unreadable || state.found_damaged.is_some() => Paint::Bad,
        state if !marks_of(state).is_empty() || !state.is_complete() => Paint::Doubtful,
        _ => Paint::Good,
    }
}

/// Why a restart prefers another checkpoint, although all groups of this checkpoint are committed: each mark of the
/// checkpoint, with its reason.
fn marks_of(state: &CheckpointState) -> Vec<(&'static str, String)> {
    if !state.is_complete() || state.is_pruned {
        return Vec::new();
    }
    let set_aside = || "a restart continued from another checkpoint; --checkpoint ID restores this one".to_owned();
    let marks = [
        ("damaged", state.found_damaged.clone()),
        ("doubtful", state.doubt.clone()),
        ("set aside", state.is_set_aside.then(set_aside)),
        ("bad", state.bad.clone()),
    ];
    marks.into_iter().filter_map(|(word, why)| Some((word, why?))).collect()
}

/// Maximum number of checkpoints for which the list gives the reason of the state. `mcr show ID` prints why a
/// checkpoint is bad, doubtful or not complete.
const REASONS_MAX: usize = 16;
/// Maximum number of checkpoints or problems that a line names. Further checkpoints are only counted.
const NAMED_MAX: usize = 4;

/// A line about the remaining bytes of a pruned checkpoint, and the checkpoints that need these bytes.
fn held_line(id: &CheckpointId, held: &Held) -> String {
    let by: Vec<&str> = held.by.iter().take(NAMED_MAX).map(CheckpointId::as_str).collect();
    let more = held.by.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let needed = match held.needed_bytes {
        Some(needed) => format!("about {} of it are needed", human_bytes(needed.0)),
        None => "the number of needed bytes is not known".to_owned(),
    };
    format!("{id} is pruned; {} are still there for {}{more}, {needed}\n", human_bytes(held.bytes.0), by.join(", "))
}

fn to_json(job: &str, place: usize, state: &CheckpointState, held: Option<&Held>) -> serde_json::Value {
    serde_json::json!({
        "job": job,
        "checkpoint": state.id,
        "state": json_word(&word_of(state)),
        "complete": state.is_complete(),
        "pruned": state.is_pruned,
        "held": held,
        "damaged": state.is_damaged,
        "unreadable": state.is_unreadable,
        "bad": state.bad,
        "problems": state.problems,
        "sequence": place,
        "incarnation": state.place.map(|place| place.incarnation),
        "written_unix_ms": state.place.map(|place| place.written_unix_ms),
        "doubt": state.doubt,
        "dead": state.is_dead,
        "set_aside": state.is_set_aside,
        "ranks": state.ranks,
        "groups": state.groups,
        "group_size": state.group_size,
        "files": state.files,
        "file_bytes": state.file_bytes,
        "raw_bytes": state.raw_bytes,
        "stored_bytes": state.stored_bytes,
        "ratio": measured(state, ratio(state.file_bytes, state.stored_bytes.0)),
        "references": state.references.iter().map(|one| &one.checkpoint).collect::<BTreeSet<_>>(),
        "created_unix_ms": measured(state, state.created_unix_ms),
        "elapsed_ms": measured(state, state.elapsed_ms),
        "scheme": state.scheme.name(),
        "profile": state.profile,
    })
}
