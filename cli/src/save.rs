//! `mcr save`: every complete checkpoint below a directory, without any daemon.

use crate::args::{LayoutArgs, SaveArgs};
use crate::common::{layout_of, now_unix_ms};
use crate::local::LocalSource;
use crate::output::{Progress, Table, human_rate, human_time, print, print_json, ratio};
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_anc::flush::{Flush, FlushOptions, flush_checkpoint, least_budget};
use mcr_anc::hub::Key;
use mcr_anc::instance::{Instance, Written, choose_instance};
use mcr_cnc::capture::{CaptureMode, CapturedFile, capture};
use mcr_cnc::h5::Maps;
use mcr_cnc::layout::{ScanLimits, list, scan};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, Rank};
use mcrengine::manifest::Manifest;
use mcrengine::plan::PlanOptions;
use mcrengine::store::{PosixStore, Store};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One line of the report.
#[derive(serde::Serialize)]
struct Saved {
    label: String,
    checkpoint: Option<String>,
    outcome: &'static str,
    reason: Option<String>,
    files: u64,
    ranks: u32,
    containers: u32,
    raw_bytes: u64,
    stored_bytes: u64,
    elapsed_ms: u64,
}

/// A checkpoint of the directory, with its files.
type Found = (CheckpointId, Vec<(FilePath, Rank)>);

pub fn run(args: SaveArgs) -> anyhow::Result<ExitCode> {
    let dir = args.dir.canonicalize().with_context(|| format!("{}: cannot be opened", args.dir.display()))?;
    let job = job_of(&args, &dir)?;
    let store = PosixStore::create(&args.store.store)?;
    let options = flush_options(&args)?;
    if Grouping::new(args.ranks.unwrap_or(1), args.group_size).is_none() {
        bail!("--group-size and --ranks must be at least 1");
    }
    let found = find_checkpoints(&dir, &args.layout, args.json)?;
    let highest = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| rank.0).max().unwrap_or(0);
    let ranks = args.ranks.or_else(|| found.iter().map(|(_, files)| highest(files) + 1).max());
    let Some(grouping) = ranks.and_then(|ranks| Grouping::new(ranks, args.group_size)) else {
        bail!("{}: no checkpoint file was found; name the files with --layout", dir.display());
    };

    let save = Save {
        dir: &dir,
        store: &store,
        job,
        grouping,
        options,
        budget: Budget::new(args.budget_mib << 20),
        args: &args,
    };
    let progress = Progress::new("saving", args.json);
    let mut report = Vec::with_capacity(found.len());
    for checkpoint in found {
        progress.message(checkpoint.0.to_string());
        report.push(save.checkpoint(checkpoint, &progress)?);
    }
    drop(progress);
    print_report(&save, &report, args.json)?;
    let saved = report.iter().any(|line| line.checkpoint.is_some());
    Ok(if saved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn job_of(args: &SaveArgs, dir: &Path) -> anyhow::Result<JobId> {
    if let Some(job) = &args.store.job {
        return Ok(job.clone());
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().with_context(|| format!("{}: its name is no job name; give one with --job", dir.display()))
}

fn flush_options(args: &SaveArgs) -> anyhow::Result<FlushOptions> {
    let block_bytes = NonZeroU32::new(args.block_bytes).context("--block-bytes must be at least 1")?;
    let plan = PlanOptions { scheme: args.scheme, block_bytes, ..PlanOptions::default() };
    let least_mib = least_budget(plan.segment_bytes).div_ceil(1 << 20);
    if args.budget_mib < least_mib {
        bail!("--budget-mib is {}; it must be at least {least_mib}", args.budget_mib);
    }
    let defaults = FlushOptions::default();
    let threads = if args.threads == 0 { defaults.threads } else { args.threads.min(1024) };
    Ok(FlushOptions {
        plan,
        profile: args.profile.clone(),
        verify: !args.no_verify,
        reuse: !args.no_reuse,
        threads,
        ..defaults
    })
}

/// The checkpoints below a directory, in natural order.
fn find_checkpoints(dir: &Path, layout: &LayoutArgs, quiet: bool) -> anyhow::Result<Vec<Found>> {
    let limits = ScanLimits::default();
    let layout = layout_of(layout, || Ok((list(dir, &limits)?.files, dir.to_owned())), quiet)?;
    let scan = scan(dir, &layout, &limits)?;
    for path in scan.unplaced.iter().take(10) {
        eprintln!("mcr: {path}: belongs to no checkpoint of this layout; not saved");
    }
    if scan.unplaced.len() > 10 {
        eprintln!("mcr: ... and {} more files that belong to no checkpoint", scan.unplaced.len() - 10);
    }
    for skipped in scan.skipped.iter().take(10) {
        eprintln!("mcr: {}: {}; not saved", skipped.path.display(), skipped.reason);
    }
    Ok(scan.checkpoints.into_iter().map(|(label, files)| (label.0, files)).collect())
}

struct Save<'a> {
    dir: &'a Path,
    store: &'a dyn Store,
    job: JobId,
    grouping: Grouping,
    options: FlushOptions,
    budget: Arc<Budget>,
    args: &'a SaveArgs,
}

impl Save<'_> {
    /// Saves one checkpoint, or says why not. An error of the store ends the whole run.
    fn checkpoint(&self, (label, files): Found, progress: &Progress) -> anyhow::Result<Saved> {
        let started = Instant::now();
        let mut line = Saved {
            label: label.to_string(),
            checkpoint: None,
            outcome: "incomplete",
            reason: None,
            files: files.len() as u64,
            ranks: self.grouping.ranks(),
            containers: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            elapsed_ms: 0,
        };
        let present: BTreeSet<Rank> = files.iter().map(|(_, rank)| *rank).collect();
        let missing: Vec<u32> = (0..self.grouping.ranks()).filter(|rank| !present.contains(&Rank(*rank))).collect();
        if !missing.is_empty() {
            let first = missing.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(", ");
            line.reason = Some(format!("{} of {} ranks have no file: {first}", missing.len(), self.grouping.ranks()));
            return Ok(line);
        }
        let captured = match self.capture_all(&files) {
            Ok(captured) => captured,
            Err(reason) => {
                line.outcome = "failed";
                line.reason = Some(reason);
                return Ok(line);
            }
        };
        line.outcome = "there already";
        let mut by_group: Vec<Vec<CapturedFile>> = (0..self.grouping.groups()).map(|_| Vec::new()).collect();
        for file in captured {
            by_group[self.grouping.group_of(file.header.rank).0 as usize].push(file);
        }
        for (group, files) in (0..).map(GroupId).zip(by_group) {
            let (manifest, was_there) = self.group(&label, group, files, progress)?;
            if !was_there {
                line.outcome = "saved";
            }
            line.checkpoint = Some(manifest.checkpoint.to_string());
            line.containers += 1;
            line.raw_bytes += manifest.raw_bytes.0;
            line.stored_bytes += manifest.stored_bytes.0;
        }
        line.elapsed_ms = started.elapsed().as_millis() as u64;
        Ok(line)
    }

    /// Captures files on several threads, and puts them in the order of the flush: by rank, then by path.
    fn capture_all(&self, files: &[(FilePath, Rank)]) -> Result<Vec<CapturedFile>, String> {
        let maps = Maps::new();
        let mode = if self.options.plan.scheme.takes_files_apart() { CaptureMode::Apart } else { CaptureMode::Whole };
        let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(|| {
                    while let Some((path, rank)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match capture(self.dir, path, *rank, mode, &maps) {
                            Ok(file) => done.lock().unwrap_or_else(PoisonError::into_inner).push(file),
                            Err(error) => {
                                let reason = format!("{path}: {}", mcr_anc::hub::error_chain(&error));
                                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
                                return;
                            }
                        }
                    }
                });
            }
        });
        if let Some(reason) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(reason);
        }
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by(|a, b| a.header.rank.cmp(&b.header.rank).then_with(|| a.header.path.cmp(&b.header.path)));
        Ok(done)
    }

    fn group(
        &self,
        label: &CheckpointId,
        group: GroupId,
        captured: Vec<CapturedFile>,
        progress: &Progress,
    ) -> anyhow::Result<(Manifest, bool)> {
        let files: Vec<FileHeader> = captured.iter().map(|file| file.header.clone()).collect();
        let key = Key { job: self.job.clone(), group, label: label.clone() };
        // Files of a directory at rest need not have been written within any time of one another.
        let written = Written { spread: Duration::MAX, not_before_ms: None };
        let checkpoint = match choose_instance(self.store, &key, self.grouping, &files, written)? {
            Instance::There(manifest) => return Ok((*manifest, true)),
            Instance::New(checkpoint) => checkpoint,
        };
        let descriptors = Descriptors::new(256);
        let open = |file: CapturedFile| OpenFile::new(self.dir, Arc::new(file.header), file.fingerprint, &descriptors);
        let source = LocalSource { files: captured.into_iter().map(open).collect(), threads: self.options.threads };
        let flush = Flush {
            store: self.store,
            job: self.job.clone(),
            checkpoint,
            group,
            grouping: self.grouping,
            group_size: self.args.group_size,
            run: String::new(),
            files,
            source: &source,
            options: &self.options,
            budget: &self.budget,
            observer: progress,
            now_unix_ms: now_unix_ms(),
        };
        let manifest = flush_checkpoint(flush).with_context(|| format!("{label}, {group}"))?;
        Ok((manifest, false))
    }
}

fn print_report(save: &Save<'_>, report: &[Saved], json: bool) -> anyhow::Result<()> {
    if json {
        return print_json(
            &serde_json::json!({ "job": save.job, "store": save.args.store.store, "checkpoints": report }),
        );
    }
    let mut table = Table::new(&[
        "checkpoint",
        "outcome",
        ">ranks",
        ">files",
        ">containers",
        ">raw",
        ">stored",
        ">ratio",
        ">time",
        ">rate",
    ]);
    for line in report {
        let elapsed = Duration::from_millis(line.elapsed_ms);
        table.row([
            line.checkpoint.clone().unwrap_or_else(|| line.label.clone()),
            line.outcome.into(),
            line.ranks.to_string(),
            line.files.to_string(),
            line.containers.to_string(),
            mcrengine::units::human_bytes(line.raw_bytes),
            mcrengine::units::human_bytes(line.stored_bytes),
            format!("{:.3}", ratio(line.raw_bytes, line.stored_bytes)),
            human_time(elapsed),
            human_rate(line.raw_bytes, elapsed),
        ]);
    }
    print(&table.render());
    for line in report {
        if let Some(reason) = &line.reason {
            eprintln!("mcr: {} was not saved: {reason}", line.label);
        }
    }
    let of_job = if save.args.store.job.is_none() { format!(" (job {})", save.job) } else { String::new() };
    let saved = report.iter().filter(|line| line.checkpoint.is_some()).count();
    print(&format!("{saved} of {} checkpoints are in {}{of_job}\n", report.len(), save.args.store.store.display()));
    Ok(())
}
