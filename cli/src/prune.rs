//! `mcr prune`: deletes checkpoints by rules or by name, but no data that a kept checkpoint needs. The command also
//! marks checkpoints as bad.

use crate::advice::Advised;
use crate::args::PruneArgs;
use crate::common::{no_checkpoint_named, now_unix_ms, one_job, open_store};
use crate::output::{Progress, counted, note, print, print_json, printed};
use crate::which::checkpoint_of;
use anyhow::{Context, bail};
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::marks::{bad, mark_bad, unmark_bad};
use mcrengine::prune::{PruneOptions, Pruned, REPACK_BELOW_PERCENT, prune};
use mcrengine::repack::Repacked;
use mcrengine::retention::Rules;
use mcrengine::store::{Entry, Store};
use mcrengine::units::{StoredBytes, human_bytes};
use std::path::Path;
use std::process::ExitCode;

/// The arguments with the IDs that the user means.
fn named(store: &dyn Store, job: &JobId, args: PruneArgs) -> anyhow::Result<PruneArgs> {
    if args.drop.is_empty() && args.mark_bad.is_empty() && args.unmark.is_empty() {
        return Ok(args);
    }
    let all = manifest::list(store, job)?;
    let named = |ids: &[CheckpointId]| ids.iter().map(|id| checkpoint_of(&all, id)).collect::<Result<Vec<_>, _>>();
    Ok(PruneArgs { drop: named(&args.drop)?, mark_bad: named(&args.mark_bad)?, unmark: named(&args.unmark)?, ..args })
}

pub fn run(args: PruneArgs) -> anyhow::Result<ExitCode> {
    let keep = args.keep.rules();
    if keep.is_empty() && args.drop.is_empty() && args.mark_bad.is_empty() && args.unmark.is_empty() && !args.incomplete
    {
        let way_out = "say what to keep (--keep N, --keep-within 2h, --keep-daily N, ...) or what to delete (--drop \
                       ID, --incomplete)";
        return Err(Advised::new("the command line has no rule and names no checkpoint", way_out).into());
    }
    let store = open_store(&args.store)?;
    // A job may have directories even if none of its checkpoints was ever completed.
    let job = match args.store.job.clone().filter(|job| has_directories(&store, job)) {
        Some(job) => job,
        None => one_job(&store, &args.store)?,
    };
    let args = named(&store, &job, args)?;
    check_names(&store, &args.store.store, &job, args.drop.iter().chain(&args.mark_bad).chain(&args.unmark))?;
    let (unmarked, not_marked): (Vec<&CheckpointId>, Vec<&CheckpointId>) =
        args.unmark.iter().partition(|id| bad(&store, &job, id).is_some());
    if !args.dry_run {
        for id in &args.mark_bad {
            mark_bad(&store, &job, id, &args.reason).with_context(|| format!("{id} cannot be marked"))?;
        }
        for id in &unmarked {
            unmark_bad(&store, &job, id).with_context(|| format!("the mark of {id} cannot be removed"))?;
        }
    }
    let options = PruneOptions {
        keep,
        drop: args.drop.clone(),
        incomplete: args.incomplete,
        in_flight: Vec::new(),
        dry_run: args.dry_run,
        as_bad: args.mark_bad.clone(),
        as_unmarked: args.unmark.clone(),
        repack_below_percent: args.repack_below,
        now_unix_ms: now_unix_ms(),
    };
    let prunes = !options.keep.is_empty() || !options.drop.is_empty() || options.incomplete;
    let progress = Progress::new("pruning", args.json);
    progress.message(job.to_string());
    let pruned = if prunes { prune(&store, &job, &options)? } else { Pruned::default() };
    drop(progress);
    for id in &pruned.checkpoints {
        tracing::debug!(checkpoint = %id, dry_run = args.dry_run, "chosen to be removed");
    }
    tracing::info!(
        %job, removed = pruned.checkpoints.len(), freed_bytes = pruned.freed_bytes.0, dry_run = args.dry_run,
        "the rules were applied"
    );
    let code = if pruned.unreadable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let print_result = || -> anyhow::Result<()> {
        if args.json {
            return print_json(&serde_json::json!({
                "job": job, "dry_run": args.dry_run, "removed": pruned.checkpoints, "freed_bytes": pruned.freed_bytes,
                "still_needed": pruned.still_needed, "repacked": pruned.repacked,
                "not_repacked": pruned.not_repacked, "left_over": pruned.left_over, "unreadable": pruned.unreadable,
                "marked_bad": args.mark_bad, "unmarked": unmarked,
            }));
        }
        for id in &args.mark_bad {
            let is = if args.dry_run { "would be" } else { "is" };
            print(&format!("{id} {is} marked as bad: a restart skips it\n"))?;
        }
        for id in &not_marked {
            print(&format!("{id} was not marked as bad: nothing was changed\n"))?;
        }
        for id in &unmarked {
            let is = if args.dry_run { "would no longer be" } else { "is no longer" };
            print(&format!("{id} {is} marked as bad\n"))?;
            if manifest::state(&store, &job, id)?.is_set_aside {
                print(&format!(
                    "since then, a restart continued from an older one and set {id} aside: use --checkpoint {id} to \
                     restore it\n"
                ))?;
            }
        }
        if prunes {
            print(&summary(&pruned, args.dry_run))?;
            if !pruned.checkpoints.is_empty() {
                print(none_left(&manifest::list(&store, &job)?, &pruned.checkpoints, args.dry_run))?;
            } else if let Some(line) = what_stays(&manifest::list(&store, &job)?) {
                print(&line)?;
            }
        }
        Ok(())
    };
    printed(print_result(), || {
        let removed = counted(pruned.checkpoints.len() as u64, "checkpoint");
        (!args.dry_run).then(|| format!("mcr prune IS done, with {removed} removed"))
    })?;
    if args.json {
        return Ok(code);
    }
    for unreadable in &pruned.unreadable {
        let problems = unreadable.problems.join("; ");
        eprintln!("mcr: {} was not read: {problems}", unreadable.checkpoint);
    }
    if !pruned.unreadable.is_empty() {
        eprintln!(
            "mcr: this checkpoint may refer to any container, so nothing more was removed; give this user access to \
             the path if permission is denied, or try again later, or remove the checkpoint too with --drop"
        );
    }
    Ok(code)
}

fn has_directories(store: &dyn Store, job: &JobId) -> bool {
    let is_one = |entry: &Entry| entry.is_dir && entry.name.parse::<CheckpointId>().is_ok();
    store.list_dir(Path::new(job.as_str())).is_ok_and(|entries| entries.iter().any(is_one))
}

/// Removes the checkpoints that the rules do not keep, after a save. Does nothing without rules.
pub fn prune_after(store: &dyn Store, job: &JobId, keep: Rules) -> anyhow::Result<Vec<CheckpointId>> {
    if keep.is_empty() {
        return Ok(Vec::new());
    }
    let options = PruneOptions {
        keep,
        now_unix_ms: now_unix_ms(),
        repack_below_percent: REPACK_BELOW_PERCENT,
        ..PruneOptions::default()
    };
    let pruned =
        prune(store, job, &options).context("everything was saved, but old checkpoints could not be removed")?;
    if let Some(unreadable) = pruned.unreadable.first() {
        bail!(
            "everything was saved; no old checkpoint was removed, because {} cannot be read at present",
            unreadable.checkpoint
        );
    }
    if !pruned.checkpoints.is_empty() {
        note(format!(
            "{} removed, {} freed",
            counted(pruned.checkpoints.len() as u64, "old checkpoint"),
            pruned.freed_bytes
        ));
    }
    Ok(pruned.checkpoints)
}

/// Fails if a named checkpoint does not exist, before anything is changed.
/// `path`: the directory of the store.
fn check_names<'a>(
    store: &dyn Store,
    path: &Path,
    job: &JobId,
    ids: impl Iterator<Item = &'a CheckpointId>,
) -> anyhow::Result<()> {
    for id in ids {
        match manifest::state(store, job, id) {
            Ok(state) if state.is_pruned => {
                bail!("nothing was done: {id} was removed by prune already; mcr list shows the others")
            }
            Ok(_) => {}
            Err(_) => {
                let all = manifest::list(store, job)?;
                return Err(no_checkpoint_named(path, job, id, &all)).context("nothing was done");
            }
        }
    }
    Ok(())
}

/// A line about the checkpoints that a user may want to remove, and that the rules have not removed.
fn what_stays(states: &[CheckpointState]) -> Option<String> {
    const NAMED_MAX: usize = 8;
    let word = |state: &CheckpointState| match () {
        () if state.is_pruned => None,
        () if state.is_damaged || state.found_damaged.is_some() => Some("damaged"),
        () if state.bad.is_some() => Some("bad"),
        () if state.is_set_aside => Some("set aside"),
        () => None,
    };
    let left: Vec<String> =
        states.iter().filter_map(|state| Some(format!("{} ({})", state.id, word(state)?))).collect();
    let more = if left.len() > NAMED_MAX { ", ..." } else { "" };
    let named = left.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!left.is_empty()).then(|| format!("still in the store: {named}{more}; --drop ID removes one\n"))
}

/// A line if prune removed, or would remove, the last complete checkpoint.
fn none_left(all: &[CheckpointState], removed: &[CheckpointId], dry_run: bool) -> &'static str {
    let mut left = all.iter().filter(|state| !state.is_pruned && !removed.contains(&state.id));
    if left.clone().any(CheckpointState::is_complete) {
        return "";
    }
    // If such a checkpoint is left, a restart fails.
    match (left.any(|state| state.is_damaged || state.is_unreadable), dry_run) {
        (true, false) => "no complete checkpoint is left\n",
        (true, true) => "no complete checkpoint would be left\n",
        (false, false) => "no complete checkpoint is left: the next restart starts a new run\n",
        (false, true) => "no complete checkpoint would be left: the next restart would start a new run\n",
    }
}

fn summary(pruned: &Pruned, dry_run: bool) -> String {
    let (verb, mut text) = (if dry_run { "would be removed" } else { "removed" }, String::new());
    for id in &pruned.checkpoints {
        text.push_str(&if dry_run { format!("would remove {id}\n") } else { format!("removed {id}\n") });
    }
    let freed = if dry_run { "would be freed" } else { "freed" };
    text.push_str(&format!(
        "{} {verb}, {} {freed}\n",
        counted(pruned.checkpoints.len() as u64, "checkpoint"),
        pruned.freed_bytes
    ));
    if !pruned.still_needed.is_empty() {
        let bytes: StoredBytes = pruned.still_needed.iter().map(|needed| needed.bytes).sum();
        let needed = pruned.still_needed.iter().map(|one| one.needed_bytes.unwrap_or(one.bytes).0).sum::<u64>();
        let (n, verb) = (pruned.still_needed.len(), if pruned.still_needed.len() == 1 { "stays" } else { "stay" });
        let (containers, it) = (counted(n as u64, "container"), if n == 1 { "it" } else { "them" });
        // Kept checkpoints may name a container without a part of it, for example for an empty variable.
        let refer = match needed {
            0 => format!("name {it}"),
            needed => format!("refer to {} of {it}", human_bytes(needed)),
        };
        text.push_str(&format!("{containers} ({}) {verb}, because kept checkpoints {refer}\n", human_bytes(bytes.0)));
    }
    if !pruned.repacked.is_empty() {
        let sum = |bytes: fn(&Repacked) -> StoredBytes| pruned.repacked.iter().map(bytes).sum::<StoredBytes>();
        let (before, after) = (sum(|one| one.before), sum(|one| one.after));
        let containers = counted(pruned.repacked.len() as u64, "container");
        text.push_str(&match dry_run {
            true => format!("{containers} would be repacked: {before} before, about {after} afterwards\n"),
            false => format!("{containers} repacked: {before} before, {after} now\n"),
        });
    }
    if let Some(error) = &pruned.not_repacked {
        text.push_str(&format!("containers with many unneeded bytes could not be repacked: {error}\n"));
    }
    if pruned.left_over > 0 {
        let what = "empty directories, and temporary files of writers that have ended";
        text.push_str(&format!("{} removed ({what})\n", counted(pruned.left_over, "leftover")));
    }
    text
}
