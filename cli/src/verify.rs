//! `mcr verify`: reads whole checkpoints and verifies that every file can be restored.

use crate::advice::message_of;
use crate::args::{StoreArgs, VerifyArgs};
use crate::common::{no_checkpoint_named, now_unix_ms, one_job, open_own, open_store, threads_of, write_trace};
use crate::exit::Exit;
use crate::mendable::tell_if_mendable;
use crate::output::{Progress, counted, human_rate, human_time, name_of, note, print, print_json};
use crate::which::checkpoint_of;
use anyhow::bail;
use mcrengine::container::ReadError;
use mcrengine::copy::{MendedBy, MendedFile, Repaired, Side, repair};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation::mend_records;
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::marks::{mark_damaged, unmark_damaged};
use mcrengine::partition::Recording;
use mcrengine::store::{Advice, PosixStore, Store};
use mcrengine::units::{RawBytes, human_bytes};
use mcrengine::verify::{VerifyOptions, VerifyReport, verify_recorded};
use std::process::ExitCode;
use std::time::Instant;

pub fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let store = match args.repair {
        true => open_own(&args.store.store, false, args.shared_store, "")?,
        false => open_store(&args.store)?,
    };
    let job = one_job(&store, &args.store)?;
    let other = other_store(&args)?;
    if args.repair {
        for mended in mend_records(&store, &job, now_unix_ms())? {
            note(format!(
                "{}: it is written again. Which checkpoints start {} of the job had set aside is not known",
                mended.damage, mended.number
            ));
        }
    }
    let states = match &args.checkpoint {
        Some(id) => vec![the_one(&store, &job, id, &args)?],
        None => manifest::list(&store, &job)?.into_iter().filter(|state| !state.is_pruned).collect(),
    };
    // A checkpoint that the user named is always read. Damaged checkpoints are read too, because reading shows the
    // damage.
    let is_read = |state: &CheckpointState| {
        args.checkpoint.is_some() || state.is_complete() || state.is_damaged || state.is_unreadable
    };
    let (states, incomplete): (Vec<_>, Vec<_>) = states.into_iter().partition(is_read);
    let (mut damaged, mut unreadable, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let mut checked = states.len();
    let mut recording = args.trace.as_ref().map(|_| Recording::default());
    for state in states {
        let mut is_complete = state.is_complete();
        let CheckpointState { id, raw_bytes, is_unreadable, doubt, references, .. } = state;
        tracing::info!(checkpoint = %id, raw_bytes = raw_bytes.0, is_complete, "verifying");
        let started = Instant::now();
        let options = VerifyOptions { memory_bytes: args.budget_mib << 20, threads: threads_of(args.threads) };
        let read = |stage: String, recording: &mut Option<Recording>| {
            let progress = Progress::new("verifying", args.json);
            progress.message(stage);
            progress.expect(raw_bytes.0, 1);
            let done = |raw_bytes: RawBytes| progress.done(raw_bytes.0);
            verify_recorded(&store, &job, &id, options, &done, recording)
        };
        let mut report = read(id.to_string(), &mut recording);
        if !report.is_good() && args.checkpoint.is_none() && is_removed(&store, &job, &id) {
            checked -= 1;
            note(format!("{id} was removed while it was verified, as by prune or keep; it does not count"));
            continue;
        }
        let mut repaired = Repaired::default();
        if args.repair && !(report.is_good() && report.damaged_parity.is_empty()) {
            repaired = mend(other.as_ref(), &store, &job, &id);
            if !repaired.mended.is_empty() {
                report = read(format!("{id} again"), &mut None);
                is_complete = manifest::state(&store, &job, &id).is_ok_and(|state| state.is_complete());
            }
        }
        if let Some(text) = needs_more(&report, args.budget_mib) {
            note(format!("{id}: {text}"));
        }
        if !report.is_good() && !args.repair {
            tell_if_mendable(&store, &args.store, &job, &id, &references);
        }
        let elapsed = started.elapsed();
        tracing::info!(
            checkpoint = %id, is_good = report.is_good(), segments = report.segments, mended = repaired.mended.len(),
            "verified"
        );
        if is_complete {
            note_damage(&store, &job, &id, &report);
        }
        let is_damaged = report.problems.iter().any(|problem| problem.advice == Advice::OlderCheckpoint);
        let is_unreadable = is_unreadable || !is_damaged;
        if !report.is_good() {
            if is_unreadable { &mut unreadable } else { &mut damaged }.push(id.to_string());
        }
        let mut problems: Vec<String> = (report.problems.iter())
            .map(|problem| match problem.group {
                Some(group) => format!("group-{:04}: {}", group.0, problem.what),
                None => problem.what.clone(),
            })
            .collect();
        // Every file with bytes in a damaged segment reports the same damage.
        problems.dedup();
        if args.json {
            lines.push(serde_json::json!({
                "mended": repaired.mended, "not_mended": repaired.left, "damaged_parity": report.damaged_parity,
                "job": job, "checkpoint": id, "good": report.is_good(), "complete": is_complete, "problems": problems, "doubt": doubt, "groups": report.groups, "files": report.files,
                "segments": report.segments, "raw_bytes": report.raw_bytes, "stored_bytes": report.stored_bytes,
                "elapsed_ms": elapsed.as_millis() as u64,
            }));
            continue;
        }
        let verdict = match (report.is_good(), is_unreadable) {
            (true, _) => "ok",
            (false, true) => "CANNOT BE READ at present",
            (false, false) => "DAMAGED",
        };
        print(&format!(
            "{id}: {verdict}, {} in {}, {}, {} in {} ({})\n",
            counted(report.files, "file"),
            counted(report.groups, "group"),
            counted(report.segments, "segment"),
            human_bytes(report.raw_bytes.0),
            human_time(elapsed),
            human_rate(report.raw_bytes.0, elapsed),
        ))?;
        problems.iter().try_for_each(|problem| print(&format!("  {problem}\n")))?;
        let mended = repaired.mended.iter().map(|file| mended_line(file, &args));
        let left = repaired.left.iter().map(|reason| format!("  {reason}\n"));
        let parity = report.damaged_parity.iter().map(|reason| parity_line(reason, &id, &args));
        mended.chain(left).chain(parity).try_for_each(|line| print(&line))?;
        if let Some(doubt) = doubt {
            print(&format!("  unchanged since the commit, but doubtful: {doubt}\n"))?;
        }
    }
    if let (Some(file), Some(recording)) = (&args.trace, recording) {
        write_trace(file, recording)?;
    }
    for state in &incomplete {
        let problems = &state.problems;
        if args.json {
            lines.push(serde_json::json!({
                "job": job, "checkpoint": state.id, "good": false, "complete": false, "problems": problems,
            }));
        } else {
            print(&format!("{}: not complete, so a restart does not use it: {}\n", state.id, problems.join("; ")))?;
            if let Some(from) = &args.from {
                let (id, from, store) = (&state.id, name_of(from), name_of(&args.store.store));
                print(&format!(
                    "  if it is complete in {from}, this adds its missing files: mcr copy {id} --from {from} --store \
                     {store} --job {job}\n"
                ))?;
            }
        }
    }
    let exit = match damaged.is_empty() && unreadable.is_empty() {
        false => Exit::Failed,
        true => Exit::of(checked, !incomplete.is_empty()),
    };
    if args.json {
        print_json(&serde_json::json!({ "job": job, "good": exit == Exit::Done, "checkpoints": lines }))?;
    } else {
        print(&format!("{}\n", last_line(&job, checked, [&damaged, &unreadable], &incomplete, exit)))?;
        if !damaged.is_empty() && args.from.is_none() {
            note("if there is a copy of the store, --repair --from COPY replaces damaged and missing files");
        }
    }
    Ok(exit.into())
}

/// Whether the checkpoint was removed since the list of checkpoints was read.
fn is_removed(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    match manifest::state(store, job, id) {
        Ok(state) => state.is_pruned,
        Err(ReadError::Missing { .. }) => true,
        Err(_) => false,
    }
}

/// A sentence if the checkpoint cannot be verified within the memory budget. It is verified nevertheless.
fn needs_more(report: &VerifyReport, budget_mib: u64) -> Option<String> {
    let need = report.decoding_bytes;
    (need > budget_mib.saturating_mul(1 << 19)).then(|| {
        let need = human_bytes(need);
        format!("decoding one of the segments takes up to {need}, more than half of --budget-mib {budget_mib}")
    })
}

/// The store of --from.
fn other_store(args: &VerifyArgs) -> anyhow::Result<Option<PosixStore>> {
    let Some(from) = &args.from else { return Ok(None) };
    let is_same = matches!((from.canonicalize(), args.store.store.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if is_same {
        bail!("--from names the store that is verified; name another store, which has intact copies");
    }
    open_store(&StoreArgs { store: from.clone(), job: None }).map(Some)
}

/// Mends damaged files of a checkpoint by parity, or with the intact files of another store.
fn mend(other: Option<&PosixStore>, store: &PosixStore, job: &JobId, id: &CheckpointId) -> Repaired {
    let from = other.map(|other| Side { store: other, job });
    let failed = |error| Repaired { mended: Vec::new(), left: vec![message_of(&anyhow::Error::from(error))] };
    repair(Side { store, job }, from, id, &|_| ()).unwrap_or_else(failed)
}

/// The line for a mended file.
fn mended_line(file: &MendedFile, args: &VerifyArgs) -> String {
    let (path, bytes) = (file.path.display(), human_bytes(file.bytes));
    match file.by {
        MendedBy::Parity => format!("  mended by parity, {bytes} computed: {path}\n"),
        MendedBy::Copy => {
            let from = args.from.as_deref().map(name_of).unwrap_or_default();
            format!("  mended from {from}, {bytes} copied: {path}\n")
        }
        MendedBy::Container => format!("  parity written again, {bytes}: {path}\n"),
    }
}

/// The line for a parity file that is damaged, and still is damaged after a repair.
fn parity_line(reason: &str, id: &CheckpointId, args: &VerifyArgs) -> String {
    let advice = if args.repair { String::new() } else { format!("; mcr verify {id} --repair writes it again") };
    format!("  a parity file is damaged, which does not affect a restart: {reason}{advice}\n")
}

/// Marks the checkpoint as damaged, or removes the mark. If the store cannot be written, the error is only logged.
fn note_damage(store: &dyn Store, job: &JobId, id: &CheckpointId, report: &VerifyReport) {
    let damage = report.problems.iter().find(|problem| problem.advice == Advice::OlderCheckpoint);
    let noted = match damage {
        _ if report.is_good() => unmark_damaged(store, job, id).map(drop),
        Some(damage) => mark_damaged(store, job, id, &damage.what),
        None => Ok(()),
    };
    if let Err(error) = noted {
        tracing::debug!(checkpoint = %id, %error, "the mark cannot be written");
    }
}

/// The last line of the output: the result, and the missing checkpoints.
fn last_line(
    job: &JobId,
    checked: usize,
    [damaged, unreadable]: [&[String]; 2],
    incomplete: &[CheckpointState],
    exit: Exit,
) -> String {
    let word = match exit {
        Exit::Done => "",
        Exit::Partly => "PARTLY: ",
        _ => "FAILED: ",
    };
    let all = checked + incomplete.len();
    let mut line = format!(
        "{word}{} of {} of job {job} ok",
        checked - damaged.len() - unreadable.len(),
        counted(all as u64, "checkpoint")
    );
    if !unreadable.is_empty() {
        line.push_str(&format!(
            "; cannot be read at present and may be complete: {}; try again",
            unreadable.join(", ")
        ));
    }
    if !damaged.is_empty() {
        line.push_str(&format!("; damaged: {} (`mcr restart` skips it)", damaged.join(", ")));
    }
    if !incomplete.is_empty() {
        let names: Vec<&str> = incomplete.iter().map(|state| state.id.as_str()).collect();
        line.push_str(&format!("; not complete: {}", names.join(", ")));
    }
    line
}

/// The checkpoint that the user named. The error says whether the checkpoint was pruned or does not exist.
fn the_one(store: &dyn Store, job: &JobId, id: &CheckpointId, args: &VerifyArgs) -> anyhow::Result<CheckpointState> {
    let all = manifest::list(store, job)?;
    let id = &checkpoint_of(&all, id)?;
    match all.iter().find(|state| state.id == *id) {
        Some(state) if state.is_pruned => {
            bail!(
                "{id} was pruned, and only containers that other checkpoints need are left; mcr list shows the others"
            )
        }
        Some(_) => Ok(manifest::state(store, job, id)?),
        None => Err(no_checkpoint_named(&args.store.store, job, id, &all).into()),
    }
}
