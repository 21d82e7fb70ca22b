//! `mcr save`: every complete checkpoint below a directory, without any daemon.

use crate::args::{LayoutArgs, SaveArgs};
use crate::common::{layout_of, now_unix_ms};
use crate::local::LocalSource;
use crate::output::{Progress, Table, human_rate, human_time, print, print_json, ratio};
use anyhow::{Context, bail};
use mcr_anc::budget::{Budget, Lease};
use mcr_anc::flush::{Flush, FlushError, FlushOptions, flush_checkpoint, least_budget};
use mcr_anc::instance::{choose_for_all, committed};
use mcr_cnc::capture::{CaptureMode, CapturedFile, capture_keeping};
use mcr_cnc::h5::Maps;
use mcr_cnc::layout::{ScanLimits, list, scan};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, RANKS_MAX, Rank};
use mcrengine::manifest::Manifest;
use mcrengine::plan::PlanOptions;
use mcrengine::store::{PosixStore, Store, StoreError};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
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
    file_bytes: u64,
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
        bail!("--group-size must be at least 1, and --ranks 1 to {RANKS_MAX}");
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
    // While one checkpoint is coded and synced, the next is captured: reading and waiting for the disk go together.
    std::thread::scope(|scope| {
        let (to_flush, captured) = mpsc::sync_channel(1);
        let save = &save;
        scope.spawn(move || {
            // The receiver is gone when a flush has failed.
            found.into_iter().map(|found| save.capture(found)).all(|captured| to_flush.send(captured).is_ok())
        });
        for captured in captured {
            progress.message(captured.line.label.clone());
            report.push(save.flush(captured, &progress)?);
        }
        anyhow::Ok(())
    })?;
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
    let (found, order) = scan.in_order();
    if let Some(line) = order {
        eprintln!("mcr: {line}");
    }
    Ok(found)
}

/// One group's syncs are waited for while the next is coded. The budget bounds all of them together.
const GROUPS_AT_A_TIME: usize = 2;

/// How long a group waits for another process that is saving it.
const BUSY_MAX: Duration = Duration::from_secs(600);

/// A file that was captured, with its bytes where the budget has room for them.
struct KeptFile {
    file: CapturedFile,
    image: Option<(Vec<u8>, Lease)>,
}

/// A checkpoint on its way to the store.
struct Captured {
    label: CheckpointId,
    line: Saved,
    /// By rank, then by path; nothing where `line` says why.
    files: Option<Vec<KeptFile>>,
    started: Instant,
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
    /// Describes the files of one checkpoint, or says why it is not saved.
    fn capture(&self, (label, files): Found) -> Captured {
        let started = Instant::now();
        let mut line = Saved {
            label: label.to_string(),
            checkpoint: None,
            outcome: "incomplete",
            reason: None,
            files: files.len() as u64,
            ranks: self.grouping.ranks(),
            containers: 0,
            file_bytes: 0,
            stored_bytes: 0,
            elapsed_ms: 0,
        };
        let present: BTreeSet<Rank> = files.iter().map(|(_, rank)| *rank).collect();
        let missing: Vec<u32> = (0..self.grouping.ranks()).filter(|rank| !present.contains(&Rank(*rank))).collect();
        if !missing.is_empty() {
            let first = missing.iter().take(8).map(u32::to_string).collect::<Vec<_>>().join(", ");
            line.reason = Some(format!("{} of {} ranks have no file: {first}", missing.len(), self.grouping.ranks()));
            return Captured { label, line, files: None, started };
        }
        match self.capture_all(&files) {
            Ok(files) => Captured { label, line, files: Some(files), started },
            Err(reason) => {
                line.outcome = "failed";
                line.reason = Some(reason);
                Captured { label, line, files: None, started }
            }
        }
    }

    /// Commits what was captured, a few groups at a time. An error of the store ends the whole run.
    fn flush(&self, captured: Captured, progress: &Progress) -> anyhow::Result<Saved> {
        let Captured { label, mut line, files, started } = captured;
        let Some(files) = files else { return Ok(line) };
        let mut by_group: Vec<Vec<KeptFile>> = (0..self.grouping.groups()).map(|_| Vec::new()).collect();
        for file in files {
            by_group[self.grouping.group_of(file.file.header.rank).0 as usize].push(file);
        }
        line.outcome = "there already";
        let headers: Vec<Vec<FileHeader>> =
            by_group.iter().map(|files| files.iter().map(|kept| kept.file.header.clone()).collect()).collect();
        let (id, run) = choose_for_all(self.store, &self.job, &label, self.grouping, &headers)?;
        let by_group = by_group.into_iter().zip(headers);
        let lanes = by_group.len().min(GROUPS_AT_A_TIME);
        let groups = Mutex::new((0..).map(GroupId).zip(by_group));
        let (done_to, done) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                let (groups, id, run, done_to) = (&groups, &id, &run, done_to.clone());
                scope.spawn(move || {
                    let next = || groups.lock().unwrap_or_else(PoisonError::into_inner).next();
                    // The receiver is gone when another group has failed: then no further one is begun.
                    while let Some((group, (captured, files))) = next() {
                        if done_to.send(self.group((id, run), group, captured, files, progress)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(done_to);
            for group in done {
                let (manifest, was_there) = group?;
                if !was_there {
                    line.outcome = "saved";
                }
                line.checkpoint = Some(manifest.checkpoint.to_string());
                line.containers += 1;
                line.file_bytes += manifest.file_bytes();
                line.stored_bytes += manifest.stored_bytes.0;
            }
            anyhow::Ok(())
        })?;
        line.elapsed_ms = started.elapsed().as_millis() as u64;
        Ok(line)
    }

    /// Captures files on several threads, and puts them in the order of the flush: by rank, then by path.
    fn capture_all(&self, files: &[(FilePath, Rank)]) -> Result<Vec<KeptFile>, String> {
        let maps = Maps::new();
        // Half of the budget, and no less than what a flush of two groups needs to go on.
        let least = least_budget(self.options.plan.segment_bytes) * GROUPS_AT_A_TIME as u64;
        let reserve = least.max(self.budget.total_bytes() / 2);
        let mode = if self.options.plan.scheme.takes_files_apart() { CaptureMode::Apart } else { CaptureMode::Whole };
        let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(|| {
                    while let Some((path, rank)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut lease = None;
                        let keep = |bytes| {
                            lease = self.budget.lease_spare(bytes, reserve);
                            lease.is_some()
                        };
                        let kept = capture_keeping(self.dir, path, *rank, mode, &maps, keep);
                        match kept.map(|(file, image)| KeptFile { file, image: image.zip(lease) }) {
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
        done.sort_by(|a, b| {
            let (a, b) = (&a.file.header, &b.file.header);
            a.rank.cmp(&b.rank).then_with(|| a.path.cmp(&b.path))
        });
        Ok(done)
    }

    /// Commits one group, unless it is there already.
    fn group(
        &self,
        (checkpoint, run): (&CheckpointId, &str),
        group: GroupId,
        captured: Vec<KeptFile>,
        files: Vec<FileHeader>,
        progress: &Progress,
    ) -> anyhow::Result<(Manifest, bool)> {
        if let Some(manifest) = committed(self.store, &self.job, checkpoint, group, self.grouping, &files)? {
            return Ok((manifest, true));
        }
        let descriptors = Descriptors::new(256);
        let (mut open, mut leases) = (Vec::with_capacity(captured.len()), Vec::new());
        for KeptFile { file, image } in captured {
            let (image, lease) = image.unzip();
            leases.extend(lease);
            let header = Arc::new(file.header);
            open.push(OpenFile::new(self.dir, header, file.fingerprint, &descriptors).with_image(image));
        }
        let source = LocalSource { files: open, threads: self.options.threads };
        let flush = || Flush {
            store: self.store,
            job: self.job.clone(),
            checkpoint: checkpoint.clone(),
            group,
            grouping: self.grouping,
            group_size: self.args.group_size,
            run: run.to_owned(),
            files: files.clone(),
            source: &source,
            options: &self.options,
            budget: &self.budget,
            observer: progress,
            now_unix_ms: now_unix_ms(),
        };
        let deadline = Instant::now() + BUSY_MAX;
        let saved = loop {
            let error = match flush_checkpoint(flush()) {
                Ok(manifest) => break (manifest, false),
                Err(error) => error,
            };
            // Another `mcr save`, or a daemon: what it commits may be what we would have.
            let is_busy = matches!(error, FlushError::Store(StoreError::Busy { .. }));
            if (is_busy || matches!(error, FlushError::Store(StoreError::Committed { .. })))
                && let Some(manifest) = committed(self.store, &self.job, checkpoint, group, self.grouping, &files)?
            {
                break (manifest, true);
            }
            if !is_busy || Instant::now() >= deadline {
                return Err(error).with_context(|| format!("{checkpoint}, {group}"));
            }
            std::thread::sleep(Duration::from_millis(50 + u64::from(std::process::id() % 100)));
        };
        drop((source, leases)); // the bytes, then the right to hold them
        Ok(saved)
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
        ">bytes",
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
            mcrengine::units::human_bytes(line.file_bytes),
            mcrengine::units::human_bytes(line.stored_bytes),
            format!("{:.3}", ratio(line.file_bytes, line.stored_bytes)),
            human_time(elapsed),
            human_rate(line.file_bytes, elapsed),
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
