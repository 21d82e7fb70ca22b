//! `mcr restart`: the newest good checkpoint, every file byte for byte, or an older one, openly.
//!
//! Nothing appears under a final name before every file of the checkpoint is there and equals its digest.

use crate::args::RestartArgs;
use crate::common::{job_of, now_unix_ms, open_store, threads_of};
use crate::output::{Progress, human_rate, human_time, print, print_json};
use crate::remote;
use crate::restorers::{Failure, Restorers, receiver, sink_failure, verify_all};
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_anc::observe::Observer;
use mcr_anc::restart::{RestartError, restore_files};
use mcr_cnc::restart::{VerifiedFile, publish_all};
use mcr_cnc::state::{AgentState, Loaded};
use mcrengine::container::ContainerSet;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::runs::begin_run;
use mcrengine::store::{PosixStore, Store};
use std::process::ExitCode;
use std::time::Instant;

/// Exit status: an older checkpoint than asked for was restored.
const OLDER: u8 = 2;
/// Exit status: no checkpoint was ever completed.
const NEW_RUN: u8 = 3;

/// What happened, for `--json`.
#[derive(serde::Serialize)]
struct Report {
    outcome: &'static str,
    job: Option<JobId>,
    checkpoint: Option<CheckpointId>,
    wanted: Option<CheckpointId>,
    files: u64,
    file_bytes: u64,
    elapsed_ms: u64,
    /// Newer checkpoints that were tried, and what is wrong with them.
    passed_over: Vec<PassedOver>,
}

#[derive(serde::Serialize)]
struct PassedOver {
    checkpoint: CheckpointId,
    reason: String,
}

pub fn run(args: RestartArgs) -> anyhow::Result<ExitCode> {
    restore_newest(args, LOOKS)
}

/// How often a restart looks again where all that it found was pruned meanwhile, since newer ones had been saved.
const LOOKS: u32 = 3;

fn restore_newest(args: RestartArgs, looks: u32) -> anyhow::Result<ExitCode> {
    let (started, started_unix_ms) = (Instant::now(), now_unix_ms());
    let store = open_store(&args.store)?;
    let Some(job) = job_of(&store, &args.store)? else { return new_run(&args, None) };
    let all = manifest::list(&store, &job)?;
    if args.checkpoint.is_none() && !all.iter().any(CheckpointState::is_complete) {
        let incomplete: Vec<_> = all.iter().filter(|state| !state.is_pruned).collect();
        for state in &incomplete {
            eprintln!("mcr: {} is incomplete and therefore does not exist: {}", state.id, problems_of(state));
        }
        if !incomplete.is_empty() {
            eprintln!(
                "mcr: if one of them was complete before, a part of the file system that holds {} is not there; \
                 then do not start anew before it is",
                args.store.store.display()
            );
        }
        if let Some(damaged) = all.iter().find(|state| is_lost(state)) {
            bail!("{} was committed and is damaged, and there is no other checkpoint of job {job}", damaged.id);
        }
        mark_run(&store, &job, started_unix_ms, &args);
        return new_run(&args, Some(job));
    }
    let candidates = candidates(&all, &args, &job)?;
    let newest = all.iter().find(|state| state.is_complete() || is_lost(state));
    let wanted = args.checkpoint.clone().or_else(|| newest.map(|state| state.id.clone()));
    std::fs::create_dir_all(&args.to).with_context(|| format!("{}: cannot be made", args.to.display()))?;

    let lost = all.iter().take_while(|state| state.id != candidates[0].id).filter(|state| is_lost(state));
    let lost = lost.filter(|_| args.checkpoint.is_none());
    let mut passed_over: Vec<_> =
        lost.map(|state| PassedOver { checkpoint: state.id.clone(), reason: problems_of(state) }).collect();
    if let (Some(lost), true) = (passed_over.first(), args.exact) {
        bail!("{} cannot be restored: {}", lost.checkpoint, lost.reason);
    }
    for state in candidates {
        let restored = match restore_checkpoint(&store, &job, state, &args) {
            Ok(restored) => restored,
            // The receiving side failed, not the checkpoint: an older one would fail as well.
            Err(Failure::Receiver(error)) => return Err(error),
            Err(Failure::Checkpoint(error)) => {
                let reason = format!("{error:#}");
                eprintln!("mcr: {} cannot be restored: {reason}", state.id);
                passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
                if args.exact {
                    break;
                }
                continue;
            }
        };
        mark_run(&store, &job, started_unix_ms, &args);
        let is_older = wanted.as_ref() != Some(&state.id);
        let report = Report {
            outcome: if is_older { "older" } else { "restored" },
            job: Some(job.clone()),
            checkpoint: Some(state.id.clone()),
            wanted: wanted.clone(),
            files: restored.files,
            file_bytes: restored.file_bytes,
            elapsed_ms: started.elapsed().as_millis() as u64,
            passed_over,
        };
        print_restored(&report, &args, started)?;
        return Ok(ExitCode::from(if is_older { OLDER } else { 0 }));
    }
    let is_new =
        |state: &CheckpointState| state.is_complete() && !all.iter().any(|k| k.is_complete() && k.id == state.id);
    if args.checkpoint.is_none() && !args.exact && looks > 1 && manifest::list(&store, &job)?.iter().any(is_new) {
        return restore_newest(args, looks - 1);
    }
    let tried = passed_over.iter().map(|p| p.checkpoint.to_string()).collect::<Vec<_>>().join(", ");
    bail!("no checkpoint of job {job} could be restored (tried: {tried}); `mcr verify` tells what is damaged")
}

/// From here on a new run of the application writes: what the one before left half committed is not completed by it.
fn mark_run(store: &PosixStore, job: &JobId, now_unix_ms: u64, args: &RestartArgs) {
    if args.copy {
        return;
    }
    if let Err(error) = begin_run(store, job, now_unix_ms) {
        eprintln!(
            "mcr: the store cannot be told that a new run begins ({error}); prune with --incomplete before it saves"
        );
    }
}

/// The checkpoints to try, newest first, from the one that was asked for downwards.
fn candidates<'a>(
    all: &'a [CheckpointState],
    args: &RestartArgs,
    job: &JobId,
) -> anyhow::Result<Vec<&'a CheckpointState>> {
    let first = match &args.checkpoint {
        None => 0,
        Some(wanted) => match all.iter().position(|state| state.id == *wanted) {
            Some(position) if all[position].is_pruned => {
                bail!("{wanted} was removed by prune; `mcr list` shows what is there")
            }
            Some(position) => position,
            None => bail!("job {job} has no checkpoint {wanted}; `mcr list` shows those it has"),
        },
    };
    let from = &all[first..];
    for state in from.iter().take_while(|state| !state.is_complete()).filter(|state| !state.is_pruned) {
        let what = if is_lost(state) { "is damaged" } else { "is not complete and therefore does not exist" };
        eprintln!("mcr: {} {what}: {}", state.id, problems_of(state));
    }
    if args.checkpoint.is_some() && args.exact && !from[0].is_complete() {
        bail!("{} does not exist: {}", from[0].id, problems_of(&from[0]));
    }
    let complete: Vec<&CheckpointState> = from.iter().filter(|state| state.is_complete()).collect();
    if complete.is_empty() {
        bail!("job {job} has no complete checkpoint; `mcr list` shows what is missing");
    }
    Ok(complete)
}

/// Whether it was committed, as far as what is left of its manifests tells, and cannot be restored.
fn is_lost(state: &CheckpointState) -> bool {
    state.is_damaged && !state.is_pruned
}

fn problems_of(state: &CheckpointState) -> String {
    let mut text = state.problems.iter().take(4).cloned().collect::<Vec<_>>().join("; ");
    if state.problems.len() > 4 {
        text.push_str(&format!("; and {} more", state.problems.len() - 4));
    }
    text
}

/// Nothing was ever saved: a new run, unless the agent remembers a committed checkpoint.
fn new_run(args: &RestartArgs, job: Option<JobId>) -> anyhow::Result<ExitCode> {
    if let (Some(file), Some(job)) = (&args.state, job.as_ref().or(args.store.job.as_ref()))
        && let Loaded::Found(AgentState { committed: Some(committed), .. }) = AgentState::load(file, job)
    {
        bail!(
            "{} holds no checkpoint, but {} says that {committed} was committed: is this the right store?",
            args.store.store.display(),
            file.display()
        );
    }
    if let Some(wanted) = &args.checkpoint {
        bail!("{} holds no checkpoint, so no {wanted}", args.store.store.display());
    }
    if args.json {
        let (outcome, passed_over) = ("new run", Vec::new());
        print_json(&Report {
            outcome,
            job,
            checkpoint: None,
            wanted: None,
            files: 0,
            file_bytes: 0,
            elapsed_ms: 0,
            passed_over,
        })?;
    } else {
        print("no checkpoint was ever completed: a new run\n");
    }
    Ok(ExitCode::from(NEW_RUN))
}

fn print_restored(report: &Report, args: &RestartArgs, started: Instant) -> anyhow::Result<()> {
    if args.json {
        return print_json(report);
    }
    let (Some(checkpoint), elapsed) = (&report.checkpoint, started.elapsed()) else { return Ok(()) };
    print(&format!(
        "restored {checkpoint}: {} files, {} in {} ({}), to {}\n",
        report.files,
        mcrengine::units::human_bytes(report.file_bytes),
        human_time(elapsed),
        human_rate(report.file_bytes, elapsed),
        args.to.display()
    ));
    if let (Some(wanted), true) = (&report.wanted, report.outcome == "older") {
        print(&format!("this is OLDER than {wanted}, which cannot be restored\n"));
    }
    Ok(())
}

struct Restored {
    files: u64,
    file_bytes: u64,
}

/// Restores one checkpoint whole: every group decoded into files beside their final names, every file compared with its
/// digest, and only then all of them renamed.
fn restore_checkpoint(
    store: &PosixStore,
    job: &JobId,
    state: &CheckpointState,
    args: &RestartArgs,
) -> Result<Restored, Failure> {
    if let Some(ranks) = &args.ranks
        && ranks.highest().0 >= state.ranks
    {
        let (highest, there) = (ranks.highest().0, state.ranks);
        return Err(Failure::Receiver(anyhow::anyhow!(
            "--ranks names rank {highest}; {} has ranks 0 to {}",
            state.id,
            there - 1
        )));
    }
    let threads = threads_of(args.threads);
    let wanted = |file: &FileHeader| args.ranks.as_ref().is_none_or(|ranks| ranks.contains(file.rank));
    let grouping = mcrengine::ids::Grouping::new(state.ranks, state.group_size)
        .ok_or_else(|| Failure::Checkpoint(anyhow::anyhow!("its manifests name no ranks")))?;
    let groups = (0..state.groups).map(GroupId).filter(|group| {
        args.ranks
            .as_ref()
            .is_none_or(|ranks| grouping.ranks_of(*group).any(|rank| ranks.contains(mcrengine::ids::Rank(rank))))
    });
    let progress = Progress::new("restoring", args.json);
    let mut verified: Vec<VerifiedFile> = Vec::new();
    for group in groups {
        progress.message(format!("{} {group}", state.id));
        let restorers = match args.aggregators.is_empty() {
            true => direct(store, job, &state.id, group, &wanted, threads, args, &progress)?,
            false => remote::restore_group(job, &state.id, group, &wanted, args, &progress)?,
        };
        verified.extend(verify_all(restorers, threads, !args.no_sync)?);
    }
    let (files, file_bytes) = (verified.len() as u64, verified.iter().map(VerifiedFile::bytes).sum());
    publish_all(&args.to, verified, !args.no_sync).map_err(|error| receiver(error.into()))?;
    Ok(Restored { files, file_bytes })
}

#[expect(clippy::too_many_arguments, reason = "what is restored, and how")]
fn direct(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
    wanted: &dyn Fn(&FileHeader) -> bool,
    threads: usize,
    args: &RestartArgs,
    observer: &dyn Observer,
) -> Result<Restorers, Failure> {
    let set = ContainerSet::open(store, job, checkpoint, group).map_err(|error| Failure::Checkpoint(error.into()))?;
    let restorers = Restorers::create(&args.to, set.index().files(), wanted)?;
    let budget = Budget::new(args.budget_mib.max(16) << 20);
    match restore_files(&set, wanted, threads, &budget, observer, &restorers) {
        Ok(()) => Ok(restorers),
        Err(RestartError::Sink(error)) => Err(sink_failure(error)),
        Err(error) => Err(Failure::Checkpoint(error.into())),
    }
}
