//! `mcr restart`: the newest good checkpoint, every file byte for byte, or an older one, openly.
//!
//! Nothing appears under a final name before every file of the checkpoint is there and equals its digest.

use crate::args::RestartArgs;
use crate::common::{job_of, open_store};
use crate::output::{Progress, human_rate, human_time, print, print_json};
use crate::remote;
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_anc::observe::Observer;
use mcr_anc::restart::{RestartError, Sink, SinkError, restore_files};
use mcr_cnc::restart::{FileRestorer, RestoreError, VerifiedFile, publish_all};
use mcr_cnc::state::{AgentState, Loaded};
use mcrengine::container::ContainerSet;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::{PosixStore, Store};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Exit status: an older checkpoint than asked for was restored.
const OLDER: u8 = 2;
/// Exit status: nothing was ever saved.
const NEW_RUN: u8 = 3;

/// What happened, for `--json`.
#[derive(serde::Serialize)]
struct Report {
    outcome: &'static str,
    job: Option<JobId>,
    checkpoint: Option<CheckpointId>,
    wanted: Option<CheckpointId>,
    files: u64,
    raw_bytes: u64,
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
    let started = Instant::now();
    let store = open_store(&args.store)?;
    let Some(job) = job_of(&store, &args.store)? else { return new_run(&args, None) };
    let all = manifest::list(&store, &job)?;
    if all.is_empty() {
        return new_run(&args, Some(job));
    }
    let candidates = candidates(&all, &args, &job)?;
    let wanted = args.checkpoint.clone().or_else(|| candidates.first().map(|state| state.id.clone()));
    std::fs::create_dir_all(&args.to).with_context(|| format!("{}: cannot be made", args.to.display()))?;

    let mut passed_over = Vec::new();
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
        let is_older = wanted.as_ref() != Some(&state.id);
        let report = Report {
            outcome: if is_older { "older" } else { "restored" },
            job: Some(job.clone()),
            checkpoint: Some(state.id.clone()),
            wanted: wanted.clone(),
            files: restored.files,
            raw_bytes: restored.raw_bytes,
            elapsed_ms: started.elapsed().as_millis() as u64,
            passed_over,
        };
        print_restored(&report, &args, started)?;
        return Ok(ExitCode::from(if is_older { OLDER } else { 0 }));
    }
    let tried = passed_over.iter().map(|p| p.checkpoint.to_string()).collect::<Vec<_>>().join(", ");
    bail!("no checkpoint of job {job} could be restored (tried: {tried}); `mcr verify` tells what is damaged")
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
            Some(position) => position,
            None => bail!("job {job} has no checkpoint {wanted}; `mcr list` shows those it has"),
        },
    };
    let from = &all[first..];
    for state in from.iter().take_while(|state| !state.is_complete()).filter(|state| !state.is_pruned) {
        eprintln!("mcr: {} is not complete and therefore does not exist: {}", state.id, problems_of(state));
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
            raw_bytes: 0,
            elapsed_ms: 0,
            passed_over,
        })?;
    } else {
        print("nothing was saved yet: a new run\n");
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
        mcrengine::units::human_bytes(report.raw_bytes),
        human_time(elapsed),
        human_rate(report.raw_bytes, elapsed),
        args.to.display()
    ));
    if let (Some(wanted), true) = (&report.wanted, report.outcome == "older") {
        print(&format!("this is OLDER than {wanted}, which cannot be restored\n"));
    }
    Ok(())
}

/// Whose fault it is.
pub enum Failure {
    /// Something in the checkpoint; an older one may do.
    Checkpoint(anyhow::Error),
    /// Something where the files go; no other checkpoint will do.
    Receiver(anyhow::Error),
}

struct Restored {
    files: u64,
    raw_bytes: u64,
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
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads.min(1024),
    };
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
    let (files, raw_bytes) = (verified.len() as u64, verified.iter().map(VerifiedFile::bytes).sum());
    publish_all(&args.to, verified, !args.no_sync).map_err(|error| receiver(error.into()))?;
    Ok(Restored { files, raw_bytes })
}

/// Whatever goes wrong where the files are written.
pub fn receiver(error: anyhow::Error) -> Failure {
    Failure::Receiver(error.context("writing the restored files"))
}

/// Files being restored, by their number in the sender's list; `None` are not wanted.
pub struct Restorers(Vec<Option<FileRestorer>>);

impl Restorers {
    /// Makes a temporary file for each wanted header.
    pub fn create(to: &Path, files: &[FileHeader], wanted: &dyn Fn(&FileHeader) -> bool) -> Result<Self, Failure> {
        let make = |file: &FileHeader| match wanted(file) {
            true => FileRestorer::create(to, Arc::new(file.clone())).map(Some),
            false => Ok(None),
        };
        let all: Result<Vec<_>, RestoreError> = files.iter().map(make).collect();
        all.map(Self).map_err(|error| receiver(error.into()))
    }
}

impl Sink for Restorers {
    fn write(&self, file: u32, variable: u32, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        match self.0.get(file as usize) {
            Some(Some(restorer)) => Ok(restorer.write(variable as usize, offset, bytes)?),
            _ => Err(format!("bytes for file {file}, which was not asked for").into()),
        }
    }
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

/// A file that would not take its bytes: the disk's fault, or bytes that do not fit what the headers say.
pub fn sink_failure(error: SinkError) -> Failure {
    let blames_checkpoint = error.downcast_ref::<RestoreError>().is_none_or(RestoreError::blames_checkpoint);
    let error = anyhow::anyhow!(error);
    if blames_checkpoint { Failure::Checkpoint(error) } else { receiver(error) }
}

/// Files that are synced at a time: a file system makes several durable in one step, if they are asked for together.
const SYNCS_AT_A_TIME: usize = 16;

/// Compares every file with its digest, on several threads.
fn verify_all(restorers: Restorers, threads: usize, sync: bool) -> Result<Vec<VerifiedFile>, Failure> {
    let restorers: Vec<Mutex<Option<FileRestorer>>> =
        restorers.0.into_iter().flatten().map(|r| Mutex::new(Some(r))).collect();
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(restorers.len())), Mutex::new(None));
    std::thread::scope(|scope| {
        let threads = if sync { threads.max(SYNCS_AT_A_TIME) } else { threads };
        for _ in 0..threads.clamp(1, restorers.len().max(1)) {
            scope.spawn(|| {
                while let Some(restorer) = restorers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(restorer) = restorer.lock().unwrap_or_else(PoisonError::into_inner).take() else {
                        continue;
                    };
                    match restorer.verify(sync) {
                        Ok(file) => done.lock().unwrap_or_else(PoisonError::into_inner).push(file),
                        Err(error) => drop(failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error)),
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(sink_failure(error.into())),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}
