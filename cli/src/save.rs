//! `mcr save`: every complete checkpoint below a directory, without any daemon.

use crate::args::SaveArgs;
use crate::common::{now_unix_ms, open_or_create, threads_of};
use crate::exit::Exit;
use crate::found::{LeftOut, find_checkpoints, missing_ranks, nothing_found, rank_list};
use crate::local::LocalSource;
use crate::output::{Progress, Table, human_rate, human_time, name_of, print, print_json, ratio, tell};
use crate::places::{Places, newest_saved};
use crate::prune::prune_after;
use anyhow::{Context, bail};
use mcr_anc::budget::{Budget, Lease};
use mcr_anc::flush::{Flush, FlushOptions, flush_checkpoint, least_budget};
use mcr_anc::flush_error::FlushError;
use mcr_anc::instance::{choose_for_all, committed};
use mcr_anc::names::Names;
use mcr_anc::newest::NewestOfGroups;
use mcr_anc::rate::StoreSpeed;
use mcr_anc::source::FetchError;
use mcr_anc::spare::Spare;
use mcr_cnc::capture::{CaptureError, CaptureMode, CapturedFile, Image, Verdicts, capture_keeping};
use mcr_cnc::companions::{Companion, mark_hard_links};
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::h5::Maps;
use mcr_cnc::judge::Judge;
use mcr_cnc::layout::Labelled;
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, RANKS_MAX, Rank};
use mcrengine::incarnation::{self, COPIED_NS};
use mcrengine::manifest::{Manifest, Place};
use mcrengine::plan::PlanOptions;
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
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

pub fn run(args: SaveArgs) -> anyhow::Result<ExitCode> {
    let dir = args.dir.canonicalize().with_context(|| format!("{}: cannot be opened", name_of(&args.dir)))?;
    if !dir.is_dir() {
        bail!("{} is not a directory; give the directory that holds the checkpoints", name_of(&args.dir));
    }
    let job = job_of(&args, &dir)?;
    let options = flush_options(&args)?;
    if Grouping::new(args.ranks.unwrap_or(1), args.group_size).is_none() {
        bail!("--group-size must be at least 1, and --ranks 1 to {RANKS_MAX}");
    }
    let store = open_or_create(&args.store.store, args.create, ", or --create")?;
    let found = find_checkpoints(&dir, &args.layout, args.json, Some(&args.store.store))?;
    let highest = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| rank.0).max().unwrap_or(0);
    let ranks = args.ranks.or_else(|| found.checkpoints.iter().map(|(_, files)| highest(files) + 1).max());
    let grouping = ranks.and_then(|ranks| Grouping::new(ranks, args.group_size));
    let Some(grouping) = grouping.filter(|_| !found.checkpoints.is_empty()) else {
        bail!("{}: {}", name_of(&dir), nothing_found(&args.layout, &found.left_out));
    };

    let progress = Progress::new("saving", args.json);
    progress.expect(2 * found.bytes); // each is read, then coded
    let save = Save {
        dir: &dir,
        store: &store,
        job,
        grouping,
        options,
        budget: Budget::new(budget_mib(&args) << 20),
        verdicts: Verdicts::default(),
        spare: Spare::default(),
        newest: NewestOfGroups::default(),
        names: Names::default(),
        turns: Turns::default(),
        args: &args,
        left_out: &found.left_out,
        companions: &found.companions,
    };
    // While checkpoints are coded and synced, the next is captured: reading and waiting for the disk go together.
    std::thread::scope(|scope| {
        let (to_flush, captured) = mpsc::sync_channel(0);
        let (save, found, progress) = (&save, &found.checkpoints, &progress);
        scope.spawn(move || {
            // The receiver is gone when a flush has failed.
            let mut captured = found.iter().map(|found| save.capture(found, progress));
            captured.all(|captured| to_flush.send(captured).is_ok())
        });
        save.flush_all(captured, found, progress)
    })
}

fn job_of(args: &SaveArgs, dir: &Path) -> anyhow::Result<JobId> {
    if let Some(job) = &args.store.job {
        return Ok(job.clone());
    }
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().with_context(|| format!("{}: its name is no job name; give one with --job", name_of(dir)))
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

/// The syncs of some groups are waited for while others are coded. The budget bounds all of them together.
const GROUPS_AT_A_TIME: usize = 3;

/// A file that was captured, with its bytes where the budget has room for them.
struct KeptFile {
    file: CapturedFile,
    image: Option<KeptImage>,
}

/// The bytes of a file, and the leases of the memory that they take.
struct KeptImage {
    image: Arc<Image>,
    leases: Vec<Lease>,
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
    place: Place,
    group: GroupId,
    headers: Arc<Vec<FileHeader>>,
    /// For each header.
    files: Vec<(Fingerprint, Option<KeptImage>)>,
    whole: Arc<Whole>,
}

/// All files of a checkpoint: its groups are committed together or not at all, as far as a change is seen.
struct Whole {
    files: Vec<(FilePath, Fingerprint)>,
    /// Before the first group is committed: a file that changed since it was captured.
    changed: OnceLock<Option<String>>,
    /// One of its groups failed.
    is_failed: AtomicBool,
}

impl Whole {
    /// Why no group of it may be committed any more.
    fn changed(&self, dir: &Path) -> Option<&str> {
        let is_same = |path: &FilePath, was: &Fingerprint| {
            let is = std::fs::symlink_metadata(dir.join(path.as_path()));
            is.is_ok_and(|is| Fingerprint::of(&is).same_content(was))
        };
        let look = || self.files.iter().find(|(path, was)| !is_same(path, was)).map(|(path, _)| changed(path));
        self.changed.get_or_init(look).as_deref()
    }
}

/// The reason where a file is another one than when it was first looked at, whenever that is seen.
fn changed(path: impl std::fmt::Display) -> String {
    format!("{path} changed while it was saved; save again when its writer has finished")
}

/// What whoever writes the report hears.
enum Event {
    /// A checkpoint was captured, or not; so many groups follow.
    Begun { line: Saved, started: Instant, groups: usize },
    /// One is committed, and whether it was before.
    Done { nth: usize, manifest: Box<Manifest>, was_there: bool },
    /// One cannot be committed, and with it its checkpoint; the others go on. Without a reason another group gave it.
    Failed { nth: usize, reason: Option<String> },
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

/// The turn of one group: reports its end when it is dropped. The group failed unless `is_committed` was set, so that a panic
/// on one lane does not leave the other lanes waiting.
struct Turn<'a> {
    turns: &'a Turns,
    is_committed: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.done(self.is_committed);
    }
}

struct Save<'a> {
    dir: &'a Path,
    store: &'a dyn Store,
    job: JobId,
    grouping: Grouping,
    options: FlushOptions,
    budget: Arc<Budget>,
    verdicts: Verdicts,
    spare: Spare,
    newest: NewestOfGroups,
    names: Names,
    turns: Turns,
    args: &'a SaveArgs,
    left_out: &'a LeftOut,
    companions: &'a BTreeMap<CheckpointId, Vec<Companion>>,
}

impl Save<'_> {
    /// Describes the files of one checkpoint, or says why it is not saved.
    fn capture(&self, (label, files): &Labelled, progress: &Progress) -> Captured {
        let (started, label) = (Instant::now(), label.clone());
        let mut line = self.line(&label, files.len(), "incomplete");
        let present: BTreeSet<Rank> = files.iter().map(|(_, rank)| *rank).collect();
        let surplus: Vec<u32> =
            present.iter().map(|rank| rank.0).filter(|rank| *rank >= self.grouping.ranks()).collect();
        if !surplus.is_empty() {
            let (which, highest) = (rank_list(&surplus), self.grouping.ranks() - 1);
            line.reason = Some(format!("{which} NOT SAVED: --ranks {} means ranks 0 to {highest}", highest + 1));
            return Captured { label, line, files: None, started };
        }
        let missing: Vec<u32> = (0..self.grouping.ranks()).filter(|rank| !present.contains(&Rank(*rank))).collect();
        if !missing.is_empty() {
            line.reason = Some(missing_ranks(&missing, self.grouping.ranks()));
            return Captured { label, line, files: None, started };
        }
        match self.capture_all(files, progress) {
            Ok(mut files) => {
                self.join_companions(&label, &mut files);
                Captured { label, line, files: Some(files), started }
            }
            Err((outcome, reason)) => {
                line.outcome = outcome;
                line.reason = Some(reason);
                Captured { label, line, files: None, started }
            }
        }
    }

    /// Puts what travels with a checkpoint to the files of rank 0, and all of them in the order of the flush: by rank, then by
    /// path.
    fn join_companions(&self, label: &CheckpointId, files: &mut Vec<KeptFile>) {
        for companion in self.companions.get(label).into_iter().flatten() {
            let (header, fingerprint) = (companion.header(Rank(0)), companion.fingerprint());
            // So few bytes that nobody asks the budget for them.
            let image = Some(KeptImage { image: companion.image(), leases: Vec::new() });
            files.push(KeptFile { file: CapturedFile { header, fingerprint }, image });
        }
        files.sort_by(|a, b| {
            let (a, b) = (&a.file.header, &b.file.header);
            a.rank.cmp(&b.rank).then_with(|| a.path.cmp(&b.path))
        });
        mark_hard_links(files.iter_mut().map(|kept| (&mut kept.file.header, kept.file.fingerprint)));
    }

    fn line(&self, label: &CheckpointId, files: usize, outcome: &'static str) -> Saved {
        Saved {
            label: label.to_string(),
            checkpoint: None,
            outcome,
            reason: None,
            files: files as u64,
            ranks: self.grouping.ranks(),
            containers: 0,
            file_bytes: 0,
            stored_bytes: 0,
            elapsed_ms: 0,
        }
    }

    /// Commits what was captured, a few groups at a time, and reports in the order of the checkpoints. A file that changes or
    /// cannot be read fails its checkpoint; an error of the store ends the whole run.
    fn flush_all(
        &self,
        captured: Receiver<Captured>,
        found: &[Labelled],
        progress: &Progress,
    ) -> anyhow::Result<ExitCode> {
        // What one group may reuse of the checkpoint before must be committed: then each group keeps to its own queue.
        let queues = if self.options.reuse { GROUPS_AT_A_TIME } else { 1 };
        let (to_lanes, queues): (Vec<_>, Vec<_>) = (0..queues).map(|_| mpsc::sync_channel::<Group>(0)).unzip();
        let queues: Vec<_> = queues.into_iter().map(|queue| Arc::new(Mutex::new(queue))).collect();
        let (to_report, events) = mpsc::channel::<anyhow::Result<Event>>();
        let is_stopped = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for lane in 0..GROUPS_AT_A_TIME {
                let (queue, to_report) = (Arc::clone(&queues[lane % queues.len()]), to_report.clone());
                scope.spawn(move || {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    // When the store has failed no further group is begun.
                    while let (Ok(group), false) = (next(), is_stopped.load(Ordering::Relaxed)) {
                        let (mut turn, older) = (Turn { turns: &self.turns, is_committed: false }, group.older);
                        let event = self.group(group, progress);
                        let is_well = event.is_ok();
                        is_stopped.fetch_or(!is_well, Ordering::Relaxed);
                        // First the reason, then those who wait are told, whose own errors say nothing.
                        let is_over = to_report.send(event).is_err();
                        if is_well {
                            self.turns.wait(older); // one that was there already counts in its turn, too
                            turn.is_committed = true;
                        }
                        drop(turn);
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
            let (mut all_begun, mut under_way, mut fatal) = (false, 0, None);
            for event in events {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        fatal.get_or_insert(error); // those after it are its consequences
                        continue;
                    }
                };
                match event {
                    Event::Begun { line, started, groups } => {
                        under_way += groups;
                        report.push(line);
                        open.push((groups, started));
                    }
                    Event::Done { nth, manifest, was_there } => {
                        let (line, (groups, started)) = (&mut report[nth], &mut open[nth]);
                        if !was_there && line.reason.is_none() {
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
                    Event::Failed { nth, reason } => {
                        let (line, (groups, started)) = (&mut report[nth], &mut open[nth]);
                        line.outcome = "failed";
                        line.reason = line.reason.take().or(reason);
                        under_way -= 1;
                        *groups -= 1;
                        if *groups == 0 {
                            line.elapsed_ms = started.elapsed().as_millis() as u64;
                        }
                    }
                    Event::AllBegun => all_begun = true,
                }
                if fatal.is_none() && all_begun && under_way == 0 {
                    return self.finish(report, open, found, None, progress);
                }
            }
            match fatal {
                Some(error) => self.finish(report, open, found, Some(error), progress),
                None => bail!("a group ended without saying how; report this"),
            }
        })
    }

    /// Removes what the rules of --keep leave out, and reports.
    fn finish(
        &self,
        mut report: Vec<Saved>,
        open: Vec<(usize, Instant)>,
        found: &[Labelled],
        fatal: Option<anyhow::Error>,
        progress: &Progress,
    ) -> anyhow::Result<ExitCode> {
        progress.clear();
        for (line, (groups, _)) in report.iter_mut().zip(open) {
            // Some of its groups may be committed; without all of them it does not exist.
            if groups > 0 {
                line.outcome = "failed";
                line.reason.get_or_insert_with(|| "the save was ended by an error before it was whole".into());
            }
            if line.reason.is_some() {
                line.checkpoint = None;
            }
        }
        for (label, files) in &found[report.len()..] {
            let mut line = self.line(label, files.len(), "failed");
            line.reason = Some("the save was ended by an error before it was begun".into());
            report.push(line);
        }
        let saved = report.iter().filter(|line| line.checkpoint.is_some()).count();
        let pruned = match fatal.is_none() && saved > 0 {
            true => prune_after(self.store, &self.job, self.args.keep.rules()),
            false => Ok(Vec::new()),
        };
        let (removed, not_pruned) = pruned.map_or_else(|error| (Vec::new(), Some(error)), |removed| (removed, None));
        let is_removed = |line: &Saved| removed.iter().any(|id| Some(id.to_string()) == line.checkpoint);
        for line in report.iter_mut().filter(|line| is_removed(line)) {
            line.outcome = REMOVED;
        }
        let is_partly = saved < report.len() || self.left_out.count > 0 || not_pruned.is_some();
        let exit = Exit::of(saved, is_partly);
        let error = fatal.or(not_pruned).map(|error| format!("{error:#}"));
        print_report(self, &report, exit, error.as_deref())?;
        Ok(exit.into())
    }

    /// Takes checkpoints apart into groups, for the lanes.
    fn hand_out(
        &self,
        captured: Receiver<Captured>,
        to_lanes: &[SyncSender<Group>],
        to_report: &Sender<anyhow::Result<Event>>,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let incarnation = incarnation::newest(self.store, &self.job)?;
        let incarnation_age_ns = match &incarnation {
            Some(record) => {
                i64::try_from(incarnation::age(self.store, &self.job, record.number)?.as_nanos()).unwrap_or(i64::MAX)
            }
            None => 0,
        };
        let mut places = Places::new(incarnation, newest_saved(self.store, &self.job)?);
        let mut older = 0;
        for (nth, Captured { label, mut line, files, started }) in captured.into_iter().enumerate() {
            progress.message(line.label.clone());
            let Some(files) = files else {
                let _ = to_report.send(Ok(Event::Begun { line, started, groups: 0 }));
                continue;
            };
            let groups = self.grouping.groups() as usize;
            let of_checkpoint = files.iter().filter(|kept| !kept.file.header.kind.is_companion());
            let newest = of_checkpoint.map(|kept| kept.file.fingerprint).max_by_key(Fingerprint::written_ns);
            let written_ns = newest.map_or(0, |newest| newest.written_ns());
            let is_of_before = newest.is_some_and(|newest| {
                newest.changed_ns.saturating_sub(written_ns) > COPIED_NS
                    || newest.age_ns(ahead_ns(self.dir)) > incarnation_age_ns
            });
            let (mut headers, mut rest): (Vec<Vec<_>>, Vec<Vec<_>>) = (vec![Vec::new(); groups], Vec::new());
            rest.resize_with(groups, Vec::new);
            for KeptFile { file: CapturedFile { header, fingerprint }, image } in files {
                let group = self.grouping.group_of(header.rank).0 as usize;
                headers[group].push(header);
                rest[group].push((fingerprint, image));
            }
            let headers: Vec<_> = headers.into_iter().map(Arc::new).collect();
            let all = headers.iter().flat_map(|of_group| of_group.iter());
            let of_checkpoint = all.zip(rest.iter().flatten()).filter(|(header, _)| !header.kind.is_companion());
            let whole = Arc::new(Whole {
                files: of_checkpoint.map(|(header, (print, _))| (header.path.clone(), *print)).collect(),
                changed: OnceLock::new(),
                is_failed: AtomicBool::new(false),
            });
            let (checkpoint, begun) =
                choose_for_all(self.store, &self.names, &self.job, &label, self.grouping, &headers)?;
            line.outcome = "there already";
            if to_report.send(Ok(Event::Begun { line, started, groups })).is_err() {
                break; // a group has failed, and nobody wants to hear more
            }
            // Where some of it is there, its place is known; so two who save the same at once give the same places.
            let place = places.next(&checkpoint, written_ns / 1_000_000, is_of_before, begun);
            for ((group, headers), files) in (0..).map(GroupId).zip(headers).zip(rest) {
                let checkpoint = checkpoint.clone();
                let lane = &to_lanes[group.0 as usize % to_lanes.len()];
                let whole = Arc::clone(&whole);
                let group = Group { nth, older, checkpoint, place, group, headers, files, whole };
                if lane.send(group).is_err() {
                    return Ok(());
                }
            }
            older += groups;
        }
        Ok(())
    }

    /// Captures files on several threads, in no order. Or the outcome, and the reason with the name of the file.
    fn capture_all(
        &self,
        files: &[(FilePath, Rank)],
        progress: &Progress,
    ) -> Result<Vec<KeptFile>, (&'static str, String)> {
        let maps = Maps::new();
        let judge = Judge::new(self.dir, files.iter().map(|(path, _)| path));
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
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(|| {
                    while let Some((path, rank)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let fail = |outcome, reason: String| {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((outcome, reason));
                        };
                        let judged = match judge.look_at(path) {
                            Ok(judged) => judged,
                            Err(why) => return fail("incomplete", format!("{path}: {why}")),
                        };
                        let mut leases = Vec::new();
                        let mut keep = |bytes| {
                            let lease = self.budget.lease_spare(bytes, reserve);
                            lease.map(|lease| leases.push(lease)).is_some()
                        };
                        let kept = capture_keeping(self.dir, path, *rank, (mode, &self.verdicts), &maps, &mut keep);
                        let leased = |image| KeptImage { image: Arc::new(image), leases };
                        match kept.map(|(file, image)| KeptFile { file, image: image.map(leased) }) {
                            Ok(kept) if !kept.file.fingerprint.same_content(&judged) => {
                                return fail("failed", changed(path));
                            }
                            Ok(kept) => {
                                progress.done(kept.file.header.bytes);
                                done.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                            }
                            Err(CaptureError::Changed { .. } | CaptureError::Vanished { .. }) => {
                                return fail("failed", changed(path));
                            }
                            Err(error) => return fail("failed", error_chain(&error)),
                        }
                    }
                });
            }
        });
        if let Some(reason) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(reason);
        }
        Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Commits one group, unless it is there already.
    fn group(&self, group: Group, progress: &Progress) -> anyhow::Result<Event> {
        let Group { nth, older, checkpoint, place, group, headers, files, whole } = group;
        let failed = |reason| {
            whole.is_failed.store(true, Ordering::Relaxed);
            Ok(Event::Failed { nth, reason })
        };
        if let Some(manifest) = committed(self.store, &self.job, &checkpoint, group, self.grouping, &headers)? {
            return Ok(Event::Done { nth, manifest: Box::new(manifest), was_there: true });
        }
        let descriptors = Descriptors::new(256);
        let (mut open, mut leases) = (Vec::with_capacity(files.len()), Vec::new());
        for (header, (fingerprint, kept)) in headers.iter().zip(files) {
            let image = kept.map(|KeptImage { image, leases: of_image }| {
                leases.extend(of_image);
                image
            });
            open.push(OpenFile::new(self.dir, header, fingerprint, &descriptors).with_image(image));
        }
        let source = LocalSource { files: open, threads: self.options.threads };
        let is_whole = || !whole.is_failed.load(Ordering::Relaxed) && whole.changed(self.dir).is_none();
        let may_commit = || match self.turns.wait(older) && is_whole() {
            true => Ok(()),
            false => Err(FlushError::NotItsTurn),
        };
        let flush = || Flush {
            store: self.store,
            job: self.job.clone(),
            checkpoint: checkpoint.clone(),
            group,
            grouping: self.grouping,
            group_size: self.args.group_size,
            incarnation: place.incarnation,
            written_unix_ms: place.written_unix_ms,
            doubt: None,
            files: Arc::clone(&headers),
            source: &source,
            options: &self.options,
            budget: &self.budget,
            spare: &self.spare,
            newest: &self.newest,
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
            match &error {
                FlushError::NotItsTurn if !is_whole() => {
                    return failed(whole.changed(self.dir).map(str::to_owned));
                }
                FlushError::Fetch(FetchError::Changed { file, .. }) => return failed(Some(changed(file))),
                FlushError::Fetch(_) | FlushError::Compress(_) => {
                    return failed(Some(error_chain(&error)));
                }
                _ => {}
            }
            // Another `mcr save`, or a daemon: what it commits may be what we would have.
            let is_busy = matches!(error, FlushError::Store(StoreError::Busy { .. }));
            if (is_busy || matches!(error, FlushError::Store(StoreError::Committed { .. })))
                && let Some(manifest) = there()?
            {
                break (manifest, true);
            }
            // A prune beside this save took what another one had committed, or the directory that was made for this
            // one.
            if let FlushError::Store(why) = &error
                && (why.is_not_found() || matches!(why, StoreError::Committed { .. }))
            {
                return failed(Some(format!(
                    "it was removed from the store while it was being saved; save again ({why})"
                )));
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
        drop((source, leases)); // the bytes, then the leases of their memory
        Ok(Event::Done { nth, manifest: Box::new(manifest), was_there })
    }
}

fn print_report(save: &Save<'_>, report: &[Saved], exit: Exit, error: Option<&str>) -> anyhow::Result<()> {
    let store = &save.args.store.store;
    if let Some(error) = error {
        tell(error);
    }
    if save.args.json {
        let outcome = match exit {
            Exit::Done => "saved",
            Exit::Partly => "partly",
            _ => "failed",
        };
        return print_json(&serde_json::json!({
            "job": save.job, "store": name_of(store), "outcome": outcome, "error": error, "checkpoints": report,
            "left_out": save.left_out,
        }));
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
    print(&table.render())?;
    for line in report {
        if let Some(reason) = &line.reason {
            tell(format!("{} is not saved: {reason}", line.label));
        }
    }
    let why = error.map(|error| format!("; {error}")).unwrap_or_default();
    print(&format!("{}{why}\n", last_line(save, report, exit)))
}

/// The outcome of a checkpoint that the rules of --keep removed after it was saved.
const REMOVED: &str = "removed again";

/// How much is saved, and all that is missing.
fn last_line(save: &Save<'_>, report: &[Saved], exit: Exit) -> String {
    const SHOWN_MAX: usize = 8;
    let of_job = if save.args.store.job.is_none() { format!(" (job {})", save.job) } else { String::new() };
    let missing: Vec<&str> =
        report.iter().filter(|line| line.checkpoint.is_none()).map(|line| line.label.as_str()).collect();
    let word = match exit {
        Exit::Done => "",
        Exit::Partly => "PARTLY: ",
        _ => "FAILED: ",
    };
    let removed = report.iter().filter(|line| line.outcome == REMOVED).count();
    let (saved, store) = (report.len() - missing.len() - removed, name_of(&save.args.store.store));
    let mut line = format!("{word}{saved} of {} checkpoints are in {store}{of_job}", report.len());
    if removed > 0 {
        line.push_str(&format!("; {removed} removed by --keep"));
    }
    if !missing.is_empty() {
        let more = missing.len().saturating_sub(SHOWN_MAX);
        line.push_str(&format!("; not saved: {}", missing[..missing.len() - more].join(", ")));
        if more > 0 {
            line.push_str(&format!(" and {more} more"));
        }
    }
    if let Some(sentence) = save.left_out.sentence() {
        line.push_str(&format!("; {sentence}"));
    }
    line
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
            drop(Turn { turns: &turns, is_committed: false });
            assert!(!waiting.join().expect("no panic"));
        });
        assert!(!turns.pause(Duration::from_secs(600)));
        assert!(!turns.wait(1), "nothing is committed after a failure");
    }
}
