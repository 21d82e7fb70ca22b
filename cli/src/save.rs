//! `mcr save`: every complete checkpoint below a directory, without any daemon.

use crate::args::{LayoutArgs, SaveArgs};
use crate::common::{layout_of, now_unix_ms, threads_of};
use crate::local::LocalSource;
use crate::output::{Progress, Table, human_rate, human_time, print, print_json, ratio};
use crate::proof::{Leased, NotProven, Provers};
use crate::prune::prune_after;
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_anc::flush::{Flush, FlushError, FlushOptions, Spare, flush_checkpoint, least_budget};
use mcr_anc::instance::{choose_for_all, committed};
use mcr_anc::rate::StoreSpeed;
use mcr_cnc::capture::{CaptureMode, CapturedFile, Verdicts, capture_keeping};
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::h5::Maps;
use mcr_cnc::layout::{ScanLimits, list, sort};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::codec::Apart;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, RANKS_MAX, Rank};
use mcrengine::manifest::{self, Manifest};
use mcrengine::plan::PlanOptions;
use mcrengine::store::{PosixStore, Store, StoreError};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

    let progress = Progress::new("saving", args.json);
    let verdicts = Verdicts::default();
    let save_all = || {
        let save = Save {
            dir: &dir,
            store: &store,
            job: job.clone(),
            grouping,
            options: options.clone(),
            budget: Budget::new(budget_mib(&args) << 20),
            verdicts: &verdicts,
            spare: Spare::default(),
            provers: Provers::new(options.threads),
            turns: Turns::default(),
            args: &args,
        };
        // While checkpoints are coded and synced, the next is captured: reading and waiting for the disk go together.
        std::thread::scope(|scope| {
            let (to_flush, captured) = mpsc::sync_channel(0);
            let (save, found) = (&save, &found);
            scope.spawn(move || {
                // The receiver is gone when a flush has failed.
                found.iter().map(|found| save.capture(found)).all(|captured| to_flush.send(captured).is_ok())
            });
            save.flush_all(captured, &progress).map(|never| match never {})
        })
    };
    let saved = save_all().or_else(|error| {
        if !error.is::<NotProven>() {
            return Err(error);
        }
        // No checkpoint with such a chunk is committed; what is committed by now is found again.
        progress.clear();
        eprintln!("mcr: {error:#}; once more, with a proof for each before anything else");
        verdicts.prove_at_once();
        save_all()
    })?;
    prune_after(&store, &job, args.keep.rules())?;
    Ok(saved)
}

fn job_of(args: &SaveArgs, dir: &Path) -> anyhow::Result<JobId> {
    if let Some(job) = &args.store.job {
        return Ok(job.clone());
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().with_context(|| format!("{}: its name is no job name; give one with --job", dir.display()))
}

fn budget_mib(args: &SaveArgs) -> u64 {
    args.budget_mib.unwrap_or_else(|| args.profile.budget_mib())
}

fn flush_options(args: &SaveArgs) -> anyhow::Result<FlushOptions> {
    let block_bytes = NonZeroU32::new(args.block_bytes).context("--block-bytes must be at least 1")?;
    let budget_bytes = budget_mib(args).saturating_mul(1 << 20);
    let plan = PlanOptions { scheme: args.scheme, block_bytes, ..PlanOptions::of(&args.profile, budget_bytes) };
    let least_mib = least_budget(plan.segment_bytes, &args.profile).div_ceil(1 << 20);
    if budget_mib(args) < least_mib {
        bail!("--budget-mib is {}; it must be at least {least_mib}", budget_mib(args));
    }
    Ok(FlushOptions {
        plan,
        profile: args.profile.clone(),
        verify: !args.no_verify,
        reuse: !args.no_reuse,
        whole_every: if args.no_time { 1 } else { args.whole_every },
        store_speed: args.store_rate.map_or(StoreSpeed::Ignored, |mib| StoreSpeed::Known(mib << 20)),
        threads: threads_of(args.threads),
        ..FlushOptions::default()
    })
}

/// The checkpoints below a directory, in natural order.
pub(crate) fn find_checkpoints(dir: &Path, layout: &LayoutArgs, quiet: bool) -> anyhow::Result<Vec<Found>> {
    let limits = ScanLimits::default();
    let listing = list(dir, &limits)?;
    let layout = layout_of(layout, || Ok((listing.files.clone(), dir.to_owned())), quiet)?;
    let scan = sort(listing, &layout);
    for path in scan.unplaced.iter().take(10) {
        eprintln!("mcr: {path}: belongs to no checkpoint of this layout; left out");
    }
    if scan.unplaced.len() > 10 {
        eprintln!("mcr: ... and {} more files that belong to no checkpoint", scan.unplaced.len() - 10);
    }
    for skipped in scan.skipped.iter().take(10) {
        eprintln!("mcr: {}: {}; left out", skipped.path.display(), skipped.reason);
    }
    let (found, order) = scan.in_order();
    if let Some(line) = order {
        eprintln!("mcr: {line}");
    }
    Ok(found)
}

/// The syncs of some groups are waited for while others are coded. The budget bounds all of them together.
const GROUPS_AT_A_TIME: usize = 3;

/// A file that was captured, with its bytes where the budget has room for them.
struct KeptFile {
    file: CapturedFile,
    image: Option<Arc<Leased>>,
}

/// A checkpoint on its way to the store.
struct Captured {
    label: CheckpointId,
    line: Saved,
    /// By rank, then by path; nothing where `line` says why.
    files: Option<Vec<KeptFile>>,
    started: Instant,
}

/// A group on its way there.
struct Group {
    /// Which line of the report.
    nth: usize,
    /// How many groups older checkpoints of this run have.
    older: usize,
    checkpoint: CheckpointId,
    sequence: u64,
    run: String,
    group: GroupId,
    headers: Arc<Vec<FileHeader>>,
    /// For each header.
    files: Vec<(Fingerprint, Option<Arc<Leased>>)>,
}

/// What whoever writes the report hears.
enum Event {
    /// A checkpoint was captured, or not; so many groups follow.
    Begun { line: Saved, started: Instant, groups: usize },
    /// One is committed, and whether it was before.
    Done { nth: usize, manifest: Box<Manifest>, was_there: bool },
    /// No further checkpoint follows.
    AllBegun,
}

/// Lets no checkpoint exist before an older one of the same run: a command that is stopped leaves no gap, which the next
/// would fill with what then looked newest.
#[derive(Default)]
struct Turns {
    /// Groups that are committed, and whether one failed.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Turns {
    fn done(&self, well: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (state.0 + usize::from(well), state.1 || !well);
        self.changed.notify_all();
    }

    /// Waits until so many groups are committed. Groups are handed out in order and nobody waits for a younger one, so
    /// that there always is one that goes on. False if one failed.
    fn wait(&self, groups: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waiting = |state: &mut (usize, bool)| state.0 < groups && !state.1;
        let state = self.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner);
        !state.1
    }

    /// Waits that long. False if a group failed.
    fn pause(&self, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = self.changed.wait_timeout_while(state, time, |state| !state.1);
        !over.unwrap_or_else(PoisonError::into_inner).0.1
    }
}

/// Tells that a group failed, unless it is told otherwise: a panic on one lane must not let the others wait for ever.
struct Failing<'a>(&'a Turns);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.done(false);
    }
}

struct Save<'a> {
    dir: &'a Path,
    store: &'a dyn Store,
    job: JobId,
    grouping: Grouping,
    options: FlushOptions,
    budget: Arc<Budget>,
    verdicts: &'a Verdicts,
    spare: Spare,
    provers: Provers,
    turns: Turns,
    args: &'a SaveArgs,
}

impl Save<'_> {
    /// Describes the files of one checkpoint, or says why it is not saved.
    fn capture(&self, (label, files): &Found) -> Captured {
        let (started, label) = (Instant::now(), label.clone());
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
        match self.capture_all(files) {
            Ok(files) => Captured { label, line, files: Some(files), started },
            Err(reason) => {
                line.outcome = "failed";
                line.reason = Some(reason);
                Captured { label, line, files: None, started }
            }
        }
    }

    /// Commits what was captured, a few groups at a time, and reports in the order of the checkpoints. An error of the
    /// store ends the whole run.
    ///
    /// Only with an error does it come back. Else the process ends with the report: everything is durable then, and what
    /// thousands of headers take is given back with all of it, sooner than one by one.
    fn flush_all(&self, captured: Receiver<Captured>, progress: &Progress) -> anyhow::Result<Infallible> {
        // What one group may reuse of the checkpoint before must be committed: then each group keeps to its own queue.
        let queues = if self.options.reuse { GROUPS_AT_A_TIME } else { 1 };
        let (to_lanes, queues): (Vec<_>, Vec<_>) = (0..queues).map(|_| mpsc::sync_channel::<Group>(0)).unzip();
        let queues: Vec<_> = queues.into_iter().map(|queue| Arc::new(Mutex::new(queue))).collect();
        let (to_report, events) = mpsc::channel::<anyhow::Result<Event>>();
        std::thread::scope(|scope| {
            for lane in 0..GROUPS_AT_A_TIME {
                let (queue, to_report) = (Arc::clone(&queues[lane % queues.len()]), to_report.clone());
                scope.spawn(move || {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    // Whoever reports is gone when another group has failed: then no further one is begun.
                    while let Ok(group) = next() {
                        let (failing, older) = (Failing(&self.turns), group.older);
                        let _headers = Arc::clone(&group.headers); // not freed before it is told that they are committed
                        let event = self.group(group, progress);
                        let is_well = event.is_ok();
                        // First the reason, then those who wait are told, whose own errors say nothing.
                        let is_over = to_report.send(event).is_err();
                        if is_well {
                            self.turns.wait(older); // one that was there already counts in its turn, too
                            std::mem::forget(failing);
                            self.turns.done(true);
                        }
                        if is_over {
                            break;
                        }
                    }
                });
            }
            drop(queues); // so that whoever fills a queue sees that nobody takes from it any more
            scope.spawn(move || {
                let begun = self.hand_out(captured, &to_lanes, &to_report, progress);
                let _ = to_report.send(begun.map(|()| Event::AllBegun));
            });
            let mut report: Vec<Saved> = Vec::new();
            let mut open: Vec<(usize, Instant)> = Vec::new();
            let (mut all_begun, mut under_way) = (false, 0);
            for event in events {
                match event? {
                    Event::Begun { line, started, groups } => {
                        under_way += groups;
                        report.push(line);
                        open.push((groups, started));
                    }
                    Event::Done { nth, manifest, was_there } => {
                        let (line, (groups, started)) = (&mut report[nth], &mut open[nth]);
                        if !was_there {
                            line.outcome = "saved";
                        }
                        line.checkpoint = Some(manifest.checkpoint.to_string());
                        line.containers += 1;
                        line.file_bytes += manifest.file_bytes();
                        line.stored_bytes += manifest.stored_bytes.0;
                        under_way -= 1;
                        *groups -= 1;
                        if *groups == 0 {
                            line.elapsed_ms = started.elapsed().as_millis() as u64;
                        }
                    }
                    Event::AllBegun => all_begun = true,
                }
                if all_begun && under_way == 0 {
                    progress.clear();
                    print_report(self, &report, self.args.json)?;
                    let saved = report.iter().any(|line| line.checkpoint.is_some());
                    std::process::exit(i32::from(!saved));
                }
            }
            bail!("a group ended without saying how; report this")
        })
    }

    /// Takes checkpoints apart into groups, for the lanes.
    fn hand_out(
        &self,
        captured: Receiver<Captured>,
        to_lanes: &[SyncSender<Group>],
        to_report: &Sender<anyhow::Result<Event>>,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let mut next_sequence = manifest::next_sequence(self.store, &self.job)?;
        let mut older = 0;
        for (nth, Captured { label, mut line, files, started }) in captured.into_iter().enumerate() {
            progress.message(line.label.clone());
            let Some(files) = files else {
                let _ = to_report.send(Ok(Event::Begun { line, started, groups: 0 }));
                continue;
            };
            let groups = self.grouping.groups() as usize;
            let (mut headers, mut rest): (Vec<Vec<_>>, Vec<Vec<_>>) = (vec![Vec::new(); groups], Vec::new());
            rest.resize_with(groups, Vec::new);
            for KeptFile { file: CapturedFile { header, fingerprint }, image } in files {
                let group = self.grouping.group_of(header.rank).0 as usize;
                headers[group].push(header);
                rest[group].push((fingerprint, image));
            }
            let headers: Vec<_> = headers.into_iter().map(Arc::new).collect();
            let (checkpoint, run, begun) = choose_for_all(self.store, &self.job, &label, self.grouping, &headers)?;
            line.outcome = "there already";
            if to_report.send(Ok(Event::Begun { line, started, groups })).is_err() {
                break; // a group has failed, and nobody wants to hear more
            }
            // Where some of it is there, its place is known; so two who save the same at once give the same places.
            let sequence = begun.unwrap_or(next_sequence);
            next_sequence = next_sequence.max(sequence.saturating_add(1));
            for ((group, headers), files) in (0..).map(GroupId).zip(headers).zip(rest) {
                let (checkpoint, run) = (checkpoint.clone(), run.clone());
                let lane = &to_lanes[group.0 as usize % to_lanes.len()];
                let group = Group { nth, older, checkpoint, sequence, run, group, headers, files };
                if lane.send(group).is_err() {
                    return Ok(());
                }
            }
            older += groups;
        }
        Ok(())
    }

    /// Captures files on several threads, and puts them in the order of the flush: by rank, then by path.
    fn capture_all(&self, files: &[(FilePath, Rank)]) -> Result<Vec<KeptFile>, String> {
        let maps = Maps::new();
        // Half of the budget, and no less than what one segment takes: with that, all flushes go on, one after the other.
        // With what several take, up to three quarters, no thread waits for memory.
        let (segment_bytes, profile) = (self.options.plan.segment_bytes, &self.options.profile);
        let of_older = if profile.looks_back() { segment_bytes * profile.memory_per_older_byte() } else { 0 };
        let least = least_budget(segment_bytes, profile) + of_older;
        let total = self.budget.total_bytes();
        let at_a_time = (total / 4 * 3 / least.max(1)).min(self.options.threads as u64);
        let reserve = (total / 2).max(least * at_a_time.max(1));
        let mode = CaptureMode::of(self.options.plan.scheme, &self.options.profile);
        let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())), Mutex::new(None));
        let apart = Apart::default();
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(|| {
                    apart.take_core();
                    while let Some((path, rank)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut leases = Vec::new();
                        let mut keep = |bytes| {
                            let lease = self.budget.lease_spare(bytes, reserve);
                            lease.map(|lease| leases.push(lease)).is_some()
                        };
                        let kept = capture_keeping(self.dir, path, *rank, (mode, self.verdicts), &maps, &mut keep);
                        let leased = |image| Arc::new(Leased { path: path.clone(), image: Arc::new(image), leases });
                        match kept.map(|(file, image)| KeptFile { file, image: image.map(leased) }) {
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
    fn group(&self, group: Group, progress: &Progress) -> anyhow::Result<Event> {
        let Group { nth, older, checkpoint, sequence, run, group, headers, files } = group;
        if let Some(manifest) = committed(self.store, &self.job, &checkpoint, group, self.grouping, &headers)? {
            return Ok(Event::Done { nth, manifest: Box::new(manifest), was_there: true });
        }
        let descriptors = Descriptors::new(256);
        let (mut open, mut kept) = (Vec::with_capacity(files.len()), Vec::new());
        for (header, (fingerprint, leased)) in headers.iter().zip(files) {
            let image = leased.as_ref().map(|leased| Arc::clone(&leased.image));
            kept.extend(leased);
            open.push(OpenFile::new(self.dir, header, fingerprint, &descriptors).with_image(image));
        }
        let source = LocalSource { files: open, threads: self.options.threads };
        let proof = self.provers.begin(kept);
        let may_commit = || proof.finish().is_ok() && self.turns.wait(older);
        let flush = || Flush {
            store: self.store,
            job: self.job.clone(),
            checkpoint: checkpoint.clone(),
            group,
            grouping: self.grouping,
            group_size: self.args.group_size,
            run: run.clone(),
            sequence: Some(sequence),
            files: Arc::clone(&headers),
            source: &source,
            options: &self.options,
            budget: &self.budget,
            spare: &self.spare,
            may_commit: &may_commit,
            observer: progress,
            now_unix_ms: now_unix_ms(),
        };
        let there = || committed(self.store, &self.job, &checkpoint, group, self.grouping, &headers);
        // Both may hold containers that wait for their turn, but whoever is waited for has an older one to commit first: only two
        // that see their checkpoints in different orders can wait for each other. Then this ends it: the first that gives up
        // lets the other go on.
        let deadline = Instant::now() + Duration::from_secs(self.args.wait);
        let (manifest, was_there) = loop {
            let error = match flush_checkpoint(flush()) {
                Ok(manifest) => break (manifest, false),
                Err(error) => error,
            };
            if matches!(error, FlushError::NotItsTurn) {
                proof.finish()?; // or a group before it failed, which tells why
            }
            // Another `mcr save`, or a daemon: what it commits may be what we would have.
            let is_busy = matches!(error, FlushError::Store(StoreError::Busy { .. }));
            if (is_busy || matches!(error, FlushError::Store(StoreError::Committed { .. })))
                && let Some(manifest) = there()?
            {
                break (manifest, true);
            }
            let name = || format!("{checkpoint}, {group}");
            if !is_busy {
                return Err(error).with_context(name);
            }
            if Instant::now() >= deadline {
                let (name, seconds) = (name(), self.args.wait);
                let advice =
                    || format!("{name}: waited {seconds} s; save again when the other has ended, or --wait longer");
                return Err(error).with_context(advice);
            }
            if !self.turns.pause(Duration::from_millis(50 + u64::from(std::process::id() % 100))) {
                return Err(error).with_context(name); // another group has failed, and told why
            }
        };
        drop((source, proof)); // the bytes, then the right to hold them
        Ok(Event::Done { nth, manifest: Box::new(manifest), was_there })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_those_of_older_checkpoints_and_hears_when_one_fails() {
        let turns = Turns::default();
        assert!(turns.wait(0));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.wait(2));
            turns.done(true);
            turns.done(true);
            assert!(waiting.join().expect("no panic"));
            let waiting = scope.spawn(|| turns.wait(3));
            assert!(turns.pause(Duration::from_millis(1)), "none has failed yet");
            drop(Failing(&turns));
            assert!(!waiting.join().expect("no panic"));
        });
        assert!(!turns.pause(Duration::from_secs(600)));
        assert!(!turns.wait(1), "nothing is committed after a failure");
    }
}
