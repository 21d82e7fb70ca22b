//! `mcr copy`: copies checkpoints to another store or job, and copies only what is missing.

pub mod args;

use crate::advice::{Advised, message_of, missing_advice};
use crate::common::{no_checkpoint_named, one_job, open_own, open_store};
use crate::exit::Exit;
use crate::output::{Progress, counted, name_of, print, print_json, printed};
use crate::store_args::StoreArgs;
use crate::which::checkpoint_of;
use anyhow::bail;
use args::CopyArgs;
use mcrengine::copy::{CopyError, Route, Side, copy_checkpoint, copy_records, plan_checkpoint};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::{MemoryStore, Store};
use mcrengine::units::human_bytes;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// The result for one checkpoint.
#[derive(serde::Serialize)]
struct Line {
    checkpoint: CheckpointId,
    outcome: &'static str,
    containers: usize,
    bytes: u64,
    reason: Option<String>,
}

const COPIED: &str = "copied";
const WOULD_COPY: &str = "would-copy";
const THERE: &str = "there-already";
const INCOMPLETE: &str = "incomplete";
const FAILED: &str = "failed";

impl Line {
    fn left_out(checkpoint: CheckpointId, outcome: &'static str, reason: String) -> Self {
        Self { checkpoint, outcome, containers: 0, bytes: 0, reason: Some(reason) }
    }

    fn is_there(&self) -> bool {
        matches!(self.outcome, COPIED | WOULD_COPY | THERE)
    }

    /// The line for people.
    fn text(&self) -> String {
        let id = &self.checkpoint;
        let what = || format!("{}, {}", counted(self.containers as u64, "container"), human_bytes(self.bytes));
        match (self.outcome, &self.reason) {
            (COPIED, _) => format!("{id}: copied, {}\n", what()),
            (WOULD_COPY, _) => format!("{id}: would be copied, {}\n", what()),
            (THERE, _) => format!("{id}: there already\n"),
            (_, reason) => format!("{id}: not copied: {}\n", reason.as_deref().unwrap_or_default()),
        }
    }
}

pub fn run(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let source = StoreArgs { store: args.from.clone(), job: args.store.job.clone() };
    let from = open_store(&source)?;
    let job = one_job(&from, &source)?;
    let to_job = args.to_job.clone().unwrap_or_else(|| job.clone());
    // An unknown checkpoint is an error before the store is created.
    let chosen = chosen(&from, &job, &args)?;
    let to = destination(&args)?;
    if job == to_job && is_same(&args.from, &args.store.store) {
        let what = format!("the source and the destination are job {job} in {}", name_of(&args.from));
        return Err(Advised::new(what, "name another store with --store, or another job with --to-job").into());
    }
    let route = Route { from: Side { store: &from, job: &job }, to: Side { store: &*to, job: &to_job } };
    let progress = Progress::new("copying", args.json);
    let records = copy_records(&route, args.dry_run)?;
    let (mut lines, mut planned) = (Vec::new(), BTreeSet::new());
    let count = chosen.len();
    if !args.json && !args.dry_run {
        progress.expect(bytes_of_all(&route, &chosen), 1);
    }
    for (nth, state) in (1..).zip(chosen) {
        let place = if count > 1 { format!("{} ({nth} of {count})", state.id) } else { state.id.to_string() };
        progress.message(place);
        lines.push(match state.is_complete() {
            true => copy_one(&route, state.id, args.dry_run, &progress, &mut planned),
            false => {
                let reason = format!("it is {}: {}", state.condition(), state.problems.join("; "));
                Line::left_out(state.id, if state.is_damaged { FAILED } else { INCOMPLETE }, reason)
            }
        });
    }
    drop(progress);
    let done = lines.iter().filter(|line| line.is_there()).count();
    let exit = Exit::of(done, done < lines.len());
    printed(print_result(&lines, &args, &job, &to_job, records, exit), || {
        let are = if lines.len() == 1 { "IS" } else { "ARE" };
        let there = format!("{done} of {} {are} in", counted(lines.len() as u64, "chosen checkpoint"));
        (done > 0 && !args.dry_run).then(|| format!("{there} {} (job {to_job})", name_of(&args.store.store)))
    })?;
    Ok(exit.into())
}

/// Prints the result. `job` and `to_job` are the names of the job in the source and in the destination.
fn print_result(
    lines: &[Line],
    args: &CopyArgs,
    job: &JobId,
    to_job: &JobId,
    records: usize,
    exit: Exit,
) -> anyhow::Result<()> {
    if args.json {
        let bytes: u64 = lines.iter().map(|line| line.bytes).sum();
        print_json(&serde_json::json!({
            "job": job, "to_job": to_job, "from": name_of(&args.from), "store": name_of(&args.store.store),
            "dry_run": args.dry_run, "records": records, "bytes": bytes, "checkpoints": lines,
        }))
    } else {
        lines.iter().try_for_each(|line| print(&line.text()))?;
        print(&format!("{}\n", last_line(lines, args, to_job, exit)))
    }
}

/// Opens the store that receives the checkpoints. With `--create --dry-run`, an empty store in memory stands for a
/// directory that does not exist.
fn destination(args: &CopyArgs) -> anyhow::Result<Box<dyn Store>> {
    let path = &args.store.store;
    let is_new = path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if args.create && args.dry_run && is_new {
        return Ok(Box::new(MemoryStore::new()));
    }
    let is_created = args.create && !args.dry_run;
    Ok(Box::new(open_own(path, is_created, args.shared_store, "; or use --create")?))
}

/// The checkpoints to copy, the oldest first, so that an interrupted copy has the older checkpoints.
fn chosen(from: &dyn Store, job: &JobId, args: &CopyArgs) -> anyhow::Result<Vec<CheckpointState>> {
    let mut all = manifest::list(from, job)?;
    let mut named = BTreeSet::new();
    for asked in &args.checkpoints {
        let id = checkpoint_of(&all, asked)?;
        match all.iter().find(|state| state.id == id) {
            Some(state) if state.is_pruned => {
                bail!("{id} was removed by prune; only containers that other checkpoints need are left")
            }
            Some(_) => named.insert(id),
            None => return Err(no_checkpoint_named(&args.from, job, asked, &all).into()),
        };
    }
    all.retain(|state| !state.is_pruned && (args.all || named.contains(&state.id)));
    all.reverse();
    Ok(all)
}

/// Number of bytes that are copied for all these checkpoints. A checkpoint that cannot be copied does not count. These
/// plans are only for the progress, because a copy may fail, and then the plans of later checkpoints are wrong.
fn bytes_of_all(route: &Route<'_>, chosen: &[CheckpointState]) -> u64 {
    let mut planned = BTreeSet::new();
    let bytes_of = |state: &CheckpointState| {
        let plan = plan_checkpoint(route, &state.id, &planned).ok()?;
        planned.extend(plan.containers.iter().map(|need| (need.checkpoint.clone(), need.group)));
        Some(plan.bytes())
    };
    chosen.iter().filter(|state| state.is_complete()).filter_map(bytes_of).sum()
}

/// Plans and copies a checkpoint.
fn copy_one(
    route: &Route<'_>,
    id: CheckpointId,
    dry_run: bool,
    progress: &Progress,
    planned: &mut BTreeSet<(CheckpointId, GroupId)>,
) -> Line {
    let mut attempt = || -> Result<Line, CopyError> {
        let plan = plan_checkpoint(route, &id, planned)?;
        let containers = plan.containers.len();
        tracing::info!(checkpoint = %id, containers, bytes = plan.bytes(), dry_run, "copying");
        if !dry_run {
            copy_checkpoint(route, &plan, &|bytes| progress.done(bytes))?;
        }
        let outcome = match (plan.is_there(), dry_run) {
            (true, _) => THERE,
            (false, true) => WOULD_COPY,
            (false, false) => COPIED,
        };
        if dry_run {
            planned.extend(plan.containers.iter().map(|need| (need.checkpoint.clone(), need.group)));
        }
        Ok(Line { checkpoint: id.clone(), outcome, containers, bytes: plan.bytes(), reason: None })
    };
    attempt().unwrap_or_else(|error| {
        let error = anyhow::Error::from(error);
        let (message, advice) = (message_of(&error), missing_advice(&error));
        let reason = advice.map_or_else(|| message.clone(), |advice| format!("{message}; {advice}"));
        Line::left_out(id.clone(), FAILED, reason)
    })
}

/// Whether two paths name one directory.
fn is_same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The last line of the output: the result, and the checkpoints that are not in the destination.
fn last_line(lines: &[Line], args: &CopyArgs, to_job: &JobId, exit: Exit) -> String {
    let word = match exit {
        Exit::Done => "",
        Exit::Partly => "PARTLY: ",
        _ => "FAILED: ",
    };
    let done = lines.iter().filter(|line| line.is_there()).count();
    let verb = match (args.dry_run, lines.len()) {
        (true, _) => "would be",
        (false, 1) => "is",
        (false, _) => "are",
    };
    let all = counted(lines.len() as u64, "chosen checkpoint");
    let mut text = format!("{word}{done} of {all} {verb} in {} (job {to_job})", name_of(&args.store.store));
    let left: Vec<&str> = lines.iter().filter(|line| !line.is_there()).map(|line| line.checkpoint.as_str()).collect();
    if !left.is_empty() {
        text.push_str(&format!("; not copied: {}", left.join(", ")));
    }
    text
}
