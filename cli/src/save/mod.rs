//! `mcr save`: saves every complete checkpoint below a directory, without any daemon.
//!
//! ```text
//! capture (a thread) -> hand out in order (a thread) -> lanes (GROUPS_AT_A_TIME threads) -> report (this thread)
//! ```
//!
//! A lane commits a group by the same function as the aggregator's hub, [`mcr_anc::commit_group::commit_group`].

mod capture;
mod group;
mod kept_out;
mod options;
mod report;
mod source;
mod turns;

use crate::args::SaveArgs;
use crate::common::{is_layout_said, open_own, real_directory, renamed};
use crate::found::{Found, find_checkpoints, nothing_found};
use crate::output::{Progress, counted, name_of, note};
use crate::places::Places;
use crate::prune::prune_after;
use crate::remembered::SavedFiles;
use anyhow::bail;
use capture::{Captured, Capturer, KeptFile};
use group::{Committer, Group, Whole};
use kept_out::kept_out;
use mcr_anc::agent_doubt::not_closed;
use mcr_anc::budget::Budget;
use mcr_anc::instance::{choose_for_all, choose_for_companions, cut_since, may_be_reused, rewritten_by_all};
use mcr_anc::names::Names;
use mcr_anc::newest::NewestOfGroups;
use mcr_anc::rewritten::Rewritten;
use mcr_anc::spare::Spare;
use mcr_cnc::capture::Verdicts;
use mcr_cnc::clock::ahead_ns;
use mcr_cnc::fingerprint::Fingerprint;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, RANKS_MAX, Rank, shape_of};
use mcrengine::incarnation::{self, COPIED_NS, Incarnation};
use mcrengine::manifest::{self, CheckpointState, Doubt, Place};
use mcrengine::store::Store;
use options::{budget_mib, flush_options, job_of};
use report::{Event, Report, Saved};
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turns::Turns;

/// Advice if the number of ranks is higher than in the files of a checkpoint.
const FEWER: &str = "if the job has fewer ranks now, give --ranks";

pub fn run(args: SaveArgs) -> anyhow::Result<ExitCode> {
    let dir = real_directory(&args.dir)?;
    let job = job_of(&args, &dir)?;
    let options = flush_options(&args)?;
    if Grouping::new(args.ranks.unwrap_or(1), args.group_size).is_none() {
        bail!("--group-size must be at least 1, and --ranks 1 to {RANKS_MAX}");
    }
    let store = open_own(&args.store.store, args.create, args.shared_store, ", or --create")?;
    if let Some(renamed) = renamed(&store, &args.store.store, &job) {
        return Err(renamed.into());
    }
    let source = Source::of(&store, &job, &dir)?;
    if args.store.job.is_none() {
        source.refuse_another_run(&job, &dir)?;
    }
    let saved = (!is_layout_said(&args.layout)).then(|| SavedFiles::load(&store, &job, &dir));
    let mut found =
        find_checkpoints(&dir, &args.layout, args.ranks, args.json, Some(&args.store.store), saved.as_ref())?;
    tracing::info!(
        %job, store = name_of(&args.store.store), checkpoints = found.checkpoints.len(), bytes = found.bytes,
        "found checkpoints in the directory"
    );
    let newest = manifest::newest_of_group(&store, &job, GroupId(0), None)?;
    let highest = |files: &[(FilePath, Rank)]| files.iter().map(|(_, rank)| rank.0).max().unwrap_or(0);
    let of_files = found.checkpoints.iter().map(|(_, files)| highest(files) + 1).max();
    if let (Some(ranks @ 2..), Some(1), true) = (args.ranks, of_files, args.layout.layout.is_empty()) {
        bail!(
            "{}: --ranks {ranks} is given, but with the layout that was guessed, all files are of rank 0, so that no \
             checkpoint would have all ranks; say with --layout which number is the rank, as in --layout \
             '{{checkpoint}}_{{rank}}.h5'",
            name_of(&dir)
        );
    }
    // The files do not show that all files of a rank are missing. So the number of ranks must come from an option or
    // from the store.
    let sure = newest.as_ref().filter(|newest| newest.has_sure_ranks());
    let before = sure.filter(|newest| args.ranks.is_none() && of_files.is_some_and(|of| of < newest.ranks));
    let ranks = args.ranks.or(before.map(|before| before.ranks)).or(of_files);
    let ranks_from = match (before, args.ranks) {
        (Some(before), _) => Some(format!("{} of this job has {} ranks; {FEWER}", before.checkpoint, before.ranks)),
        // The checkpoint with the most ranks decides, also if an earlier start of the job with more ranks wrote it.
        (None, None) => found
            .checkpoints
            .iter()
            .find(|(_, files)| Some(highest(files) + 1) == ranks)
            .map(|(most, files)| format!("{most} has {} ranks; {FEWER}", highest(files) + 1)),
        (None, Some(_)) => None,
    };
    let grouping = ranks.and_then(|ranks| Grouping::new(ranks, args.group_size));
    if let (Some(age), true, Some(of_files), None, None) =
        (found.newest_age, found.has_ranks, of_files, args.ranks, &newest)
        && found.checkpoints.iter().filter(|(_, files)| highest(files) + 1 == of_files).count() == 1
    {
        note(format!(
            "the number of ranks is {of_files}, as in the newest checkpoint, whose newest file is {} s old; if more ranks \
             may still write, give --ranks",
            age.as_secs()
        ));
    }
    let Some(grouping) = grouping.filter(|_| !found.checkpoints.is_empty()) else {
        return Err(nothing_found(&dir, &args.layout, &found.left_out).into());
    };

    let labels = found.checkpoints.iter().map(|(label, _)| label.label());
    let labels: BTreeSet<&str> = labels.chain(newest.iter().map(|newest| newest.checkpoint.label())).collect();
    let (mut shapes, mut series) = (BTreeSet::new(), BTreeSet::new());
    series.extend(labels.into_iter().map(shape_of).filter(|shape| !shapes.insert(shape.clone())));
    let kept_out = kept_out(&store, &job, &dir, &found.checkpoints, &args.keep.rules())?;
    let (not_kept, checkpoints) = (found.checkpoints.into_iter()).partition(|(label, _)| kept_out.contains(label));
    found.checkpoints = checkpoints;
    let progress = Progress::new("saving", args.json);
    progress.expect(found.bytes, 2); // each byte is counted when it is read, and when it is coded
    let budget = Budget::new(budget_mib(&args) << 20);
    let capturer = Capturer {
        dir: &dir,
        grouping,
        options: &options,
        budget: &budget,
        verdicts: Verdicts::default(),
        companions: &found.companions,
        ranks_from,
        not_whole: &found.not_whole,
    };
    let committer = Committer {
        dir: &dir,
        store: &store,
        job: &job,
        grouping,
        group_size: args.group_size,
        options: &options,
        budget: &budget,
        wait: Duration::from_secs(args.wait),
        spare: Spare::default(),
        newest: NewestOfGroups::default(),
        checkpoints: found.checkpoints.len(),
        newest_saved: newest.map(|newest| (newest.checkpoint.clone(), newest.place())),
        turns: Turns::default(),
        series,
        doubts: &found.doubts,
        not_of_step: &found.not_of_step,
    };
    let began = incarnation::newest_number(&store, &job)?;
    let mut report = save_all(&capturer, &committer, &found, &progress);
    progress.clear();
    report.close(&found.checkpoints, grouping.ranks());
    report.not_kept(&not_kept, grouping.ranks());
    if !incarnation::newest_number(&store, &job).is_ok_and(|newest| newest == began) {
        report.fail_dead(&store, &job);
    }
    report.judge_newest(&store, &job);
    if report.may_prune() {
        if let Err(error) = source.note(&store, &job, args.store.job.is_some()) {
            tracing::warn!(%job, %error, "the directory of this save could not be noted");
        }
        report.pruned(prune_after(&store, &job, args.keep.rules()));
    }
    let exit = report.exit(&found.left_out);
    report.print(&job, &args, &found.left_out, exit)?;
    Ok(exit.into())
}

/// Number of groups that are flushed at the same time. While some groups are synced, other groups are coded. The
/// budget limits the memory of all groups together.
const GROUPS_AT_A_TIME: usize = 3;

/// Captures and commits all checkpoints. The next checkpoint is captured while checkpoints are coded and synced.
///
/// If a file changes or cannot be read, its checkpoint fails. An error of the store ends the whole run.
fn save_all(capturer: &Capturer<'_>, committer: &Committer<'_>, found: &Found, progress: &Progress) -> Report {
    // A group reuses data of the group with the same number in the previous checkpoint, if that group is committed.
    // So all groups with one number are in one queue.
    let queues = if committer.options.reuse { GROUPS_AT_A_TIME } else { 1 };
    let (to_lanes, queues): (Vec<_>, Vec<_>) = (0..queues).map(|_| mpsc::sync_channel::<Group>(0)).unzip();
    let queues: Vec<_> = queues.into_iter().map(|queue| Arc::new(Mutex::new(queue))).collect();
    let (to_hand_out, captured) = mpsc::sync_channel(0);
    let (to_report, events) = mpsc::channel();
    let is_stopped = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Sending fails after a flush has failed, because then the receiver is closed.
            let mut captured = found.checkpoints.iter().map(|found| capturer.capture(found, progress));
            captured.all(|captured| to_hand_out.send(captured).is_ok())
        });
        for lane in 0..GROUPS_AT_A_TIME {
            let lane = Lane {
                queue: Arc::clone(&queues[lane % queues.len()]),
                to_report: to_report.clone(),
                is_stopped,
                committer,
                progress,
            };
            scope.spawn(move || lane.run());
        }
        drop(queues); // the thread that fills a queue notices the end of its lanes only if no other receiver exists
        scope.spawn(move || {
            if let Err(error) = hand_out(committer, captured, &to_lanes, &to_report, progress) {
                let _ = to_report.send(Err(error));
            }
        });
        let mut report = Report::default();
        events.into_iter().for_each(|event| report.take(event));
        report
    })
}

/// The data of a thread that commits the groups of a queue one after the other.
struct Lane<'a> {
    queue: Arc<Mutex<Receiver<Group>>>,
    to_report: Sender<anyhow::Result<Event>>,
    /// Whether the store has failed. If so, no other group is begun.
    is_stopped: &'a AtomicBool,
    committer: &'a Committer<'a>,
    progress: &'a Progress,
}

impl Lane<'_> {
    fn run(self) {
        let next = || self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let (Ok(group), false) = (next(), self.is_stopped.load(Ordering::Relaxed)) {
            let turns = &self.committer.turns;
            let (turn, nth, older, began) = (turns.begin(), group.nth, group.older, Instant::now());
            let end = self.committer.commit(group, self.progress).map(|end| Event::Ended { nth, began, end });
            let is_well = end.is_ok();
            self.is_stopped.fetch_or(!is_well, Ordering::Relaxed);
            // This lane reports its error before the other lanes fail, because their errors are only consequences of
            // this error.
            let is_over = self.to_report.send(end).is_err();
            if is_well {
                turns.wait(older); // a group that was in the store already also waits for its turn
                turn.committed();
            }
            if is_over {
                return;
            }
        }
    }
}

/// The names of the checkpoints that have lost files which others need. Tells the user about them.
fn find_lost(store: &dyn Store, job: &JobId) -> anyhow::Result<BTreeSet<CheckpointId>> {
    let lost = manifest::lost(store, job)?;
    for id in &lost {
        note(format!(
            "a file of {id} that other checkpoints need is missing in the store; mcr verify shows which checkpoints \
             are damaged, and if there is a copy of the store, mcr verify --repair --from COPY mends them"
        ));
    }
    Ok(lost)
}

/// Divides checkpoints into groups, and sends the groups to the lanes, which are the threads that commit groups.
fn hand_out(
    committer: &Committer<'_>,
    captured: Receiver<Captured>,
    to_lanes: &[SyncSender<Group>],
    to_report: &Sender<anyhow::Result<Event>>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let (store, job, grouping): (&dyn Store, _, _) = (committer.store, committer.job, committer.grouping);
    let (names, groups) = (Names::default(), grouping.groups() as usize);
    let incarnation = incarnation::newest(store, job)?;
    let (mut lost, nothing_lost) = (None, BTreeSet::new());
    // The age of the incarnation is read from the store only once. For each checkpoint, the time since then is added
    // before the age is compared with the age of the checkpoint's files.
    let (age_at_first, aged_from) = match &incarnation {
        Some(record) => (incarnation::age(store, job, record.number)?, Instant::now()),
        None => (Duration::ZERO, Instant::now()),
    };
    let mut places = Places::new(incarnation.clone(), committer.newest_saved.clone());
    let mut older = 0;
    for (nth, Captured { label, files_found, files, took }) in captured.into_iter().enumerate() {
        progress.message(label.to_string());
        let line = |outcome| Saved::new(&label, files_found, grouping.ranks(), outcome);
        let files = match files {
            Ok(files) => files,
            Err(why) => {
                let there = complete_in_store(store, job, &label).filter(|_| why.is_incomplete());
                let is_complete_in_store = there.is_some();
                let reason = there.map_or(why.reason.clone(), |there| format!("{}; {there}", why.reason));
                let line = Saved { reason: Some(reason), is_complete_in_store, ..line(why.outcome) };
                let _ = to_report.send(Ok(Event::Begun { line, captured_in: took, groups: 0 }));
                continue;
            }
        };
        let of_checkpoint = files.iter().filter(|kept| !kept.file.header.kind.is_companion());
        let newest = of_checkpoint.clone().map(|kept| kept.file.fingerprint).max_by_key(Fingerprint::written_ns);
        let written_ns = newest.map_or(0, |newest| newest.written_ns());
        let is_of_before = newest.is_some_and(|newest| {
            let is_copy = newest.changed_ns.saturating_sub(written_ns) > COPIED_NS;
            let age_ns = newest.age_ns(ahead_ns(committer.dir));
            let incarnation_age = age_at_first + aged_from.elapsed();
            is_copy || age_ns > i64::try_from(incarnation_age.as_nanos()).unwrap_or(i64::MAX)
        });
        let not_closed = || {
            let longer = of_checkpoint.clone().find(|kept| kept.file.is_longer)?;
            Some(Doubt::of_files(not_closed(&format!("({})", longer.file.header.path))))
        };
        let of_step = of_checkpoint.clone().filter(|kept| !committer.not_of_step.contains(&kept.file.header.path));
        let is_single = !committer.series.contains(&shape_of(label.label()));
        let doubt = doubt_of(&label, of_step).filter(|_| is_single).or_else(|| committer.doubts.get(&label).cloned());
        let doubt = doubt.or_else(not_closed);
        let whole = Arc::new(Whole::new(of_checkpoint.map(|kept| (&kept.file.header.path, kept.file.fingerprint))));
        let (mut headers, mut contents): (Vec<Vec<_>>, Vec<Vec<_>>) = (vec![Vec::new(); groups], Vec::new());
        contents.resize_with(groups, Vec::new);
        for kept in files {
            let group = grouping.group_of(kept.file.header.rank).0 as usize;
            headers[group].push(kept.file.header);
            contents[group].push((kept.file.fingerprint, kept.image));
        }
        let headers: Vec<_> = headers.into_iter().map(Arc::new).collect();
        let written_ms = written_ns / 1_000_000;
        let is_newest = |(_, place): &(CheckpointId, Place)| place.written_unix_ms < written_ms;
        // Only a checkpoint that is not new may have lost a file. All checkpoints are examined once.
        let kept_free = match &mut lost {
            Some(lost) => lost,
            None if committer.newest_saved.as_ref().is_none_or(is_newest) => &nothing_lost,
            None => lost.insert(find_lost(store, job)?),
        };
        let (mut checkpoint, mut begun) = choose_for_all(store, (&names, kept_free), job, &label, grouping, &headers)?;
        let is_too_late = incarnation.as_ref().filter(|_| is_of_before).and_then(|record| too_late(record, written_ms));
        // Only the newest checkpoint is saved again to add links and pointer files that were written after its first
        // save.
        if nth + 1 == committer.checkpoints
            && begun.is_some()
            && is_too_late.is_none()
            && let Some(again) = choose_for_companions(store, &names, job, &checkpoint, &headers)?
        {
            (checkpoint, begun) = (again, None);
        }
        if let (Some(reason), None) = (is_too_late, begun) {
            let line = Saved { reason: Some(reason), ..line("too late") };
            let _ = to_report.send(Ok(Event::Begun { line, captured_in: took, groups: 0 }));
            continue;
        }
        let is_new = begun.is_none() && checkpoint.generation() > 1;
        let doubt = match is_new.then(|| rewritten_by_all(store, &names, job, &label, &headers)).transpose()? {
            Some(Rewritten::Partly(ranks)) => doubt.or(ranks.into_iter().next().map(|(_, why)| Doubt::of_files(why))),
            Some(Rewritten::Unknown(why)) => doubt.or(Some(Doubt::of_step(why))),
            Some(Rewritten::Whole) | None => doubt,
        };
        let is_numbered = begun.is_none() && checkpoint.generation() == 1 && nth + 1 == committer.checkpoints;
        let doubt = match &committer.newest_saved {
            Some((newest, _)) if is_numbered && doubt.is_none() => {
                cut_since(store, job, newest, &headers)?.map(Doubt::of_files)
            }
            _ => doubt,
        };
        let line = Saved { doubt: doubt.as_ref().map(|doubt| doubt.why.clone()), ..line("there already") };
        tracing::info!(%label, %checkpoint, groups, is_begun = begun.is_some(), "saving a checkpoint");
        let begun_event = Event::Begun { line, captured_in: took, groups };
        if to_report.send(Ok(begun_event)).is_err() {
            break; // the report takes no more events
        }
        // If a part of the checkpoint is in the store, its place is known. So two commands that save one checkpoint
        // at the same time give this checkpoint one place.
        let place = places.next(&checkpoint, written_ms, is_of_before, begun);
        if let Some(newest) = &places.older_than {
            note(format!(
                "{checkpoint} was written less than a minute after {newest}, and its number is smaller: it is saved as \
                 the older one, because copied files have such times. To restore it, give --checkpoint {checkpoint}"
            ));
        }
        for ((group, headers), files) in (0..).map(GroupId).zip(headers).zip(contents) {
            let lane = &to_lanes[group.0 as usize % to_lanes.len()];
            let (checkpoint, whole, doubt) = (checkpoint.clone(), Arc::clone(&whole), doubt.clone());
            if lane.send(Group { nth, older, checkpoint, place, doubt, group, headers, files, whole }).is_err() {
                return Ok(()); // the lane has reported the reason
            }
        }
        older += groups;
    }
    Ok(())
}

/// Describes the complete checkpoint with this name in the store. A checkpoint with a smaller number of ranks is not
/// found by the content of its files.
fn complete_in_store(store: &dyn Store, job: &JobId, label: &CheckpointId) -> Option<String> {
    let state = manifest::state(store, job, label).ok().filter(CheckpointState::is_complete)?;
    Some(format!("the store has a complete checkpoint {label} of {}", counted(state.ranks, "rank")))
}

/// The reason why a checkpoint that was written before an incarnation began is not saved. `None` if the checkpoint
/// may be saved. A checkpoint is not saved if the incarnation continues from an older checkpoint, because a node that
/// restores its part later must not get a newer checkpoint.
fn too_late(record: &Incarnation, written_ms: i64) -> Option<String> {
    let (from, at) = (record.from.as_ref()?, record.from_place?);
    let is_one_of_several = record.is_restart && !record.identity.is_empty();
    (is_one_of_several && written_ms > at.written_unix_ms).then(|| {
        format!(
            "it was written before {} began, which continues from {from}; to keep it, save it for a job of another name \
             (--job)",
            record.describe()
        )
    })
}

/// If ranks wrote their files at least this far apart, and the application overwrites its files, the files may be of
/// two steps.
const ONE_STEP_NS: i64 = 1_000_000_000;

/// The doubt whether all files are of one step: the application may overwrite the name of the checkpoint, and the ranks
/// wrote their files far apart.
fn doubt_of<'a>(label: &CheckpointId, files: impl Iterator<Item = &'a KeptFile>) -> Option<Doubt> {
    let mut ranks: BTreeMap<Rank, i64> = BTreeMap::new();
    for KeptFile { file, .. } in files {
        let newest = ranks.entry(file.header.rank).or_insert(i64::MIN);
        *newest = (*newest).max(file.fingerprint.written_ns());
    }
    let (first, last) = (ranks.values().min()?, ranks.values().max()?);
    let apart_ns = last.saturating_sub(*first);
    (may_be_reused(label) && apart_ns >= ONE_STEP_NS).then(|| {
        Doubt::of_step(format!(
            "the name {label} has no number of a step, so the code may overwrite it, and the ranks wrote their files \
             {:.1} s apart: it is uncertain whether the files are of one step",
            apart_ns as f64 / 1e9
        ))
    })
}
