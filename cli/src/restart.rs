//! `mcr restart`: restores the newest good checkpoint byte for byte, and reports which checkpoint was restored.
//!
//! No file gets its final name before all files of the checkpoint are written and their digests are verified.

use crate::advice::{Advised, path_of};
use crate::args::RestartArgs;
use crate::common::{job_of, no_checkpoint_named, no_checkpoint_of, open_store, renamed_away};
use crate::decide::{Decided, Decider, Role, Undecided, names_of};
use crate::guard::warn_of_store;
use crate::left_running;
use crate::list::newest_first;
use crate::mendable::tell_if_mendable;
use crate::not_read::{not_read, way_to_read};
use crate::ours;
use crate::output::{counted, human_rate, human_time, json_word, name_of, print, print_json, tell};
use crate::overlooked::of_the_application;
use crate::prepare::{MovedAside, prepare, preview};
use crate::restorers::Failure;
use crate::series::restart_files_first;
use crate::which::{checkpoint_of, skips_doubtful, steps_before_latest, tell_of_newer};
use anyhow::bail;
use mcr_cnc::layout::pointers::may_be_left;
use mcr_cnc::layout::{ScanLimits, list};
use mcr_cnc::restart::Unreported;
use mcr_cnc::state::{AgentState, Loaded};
use mcrengine::container::ReadError;
use mcrengine::error_chain::error_chain;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::incarnation::{Incarnation, Incarnations, PassedOver};
use mcrengine::manifest::{self, CheckpointState, Condition};
use mcrengine::marks::{mark_bad, mark_damaged};
use mcrengine::store::{Advice, PosixStore, Store};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Exit status: an older checkpoint than the wanted checkpoint was restored.
const OLDER: u8 = 2;
/// Exit status: there is no complete checkpoint.
const NEW_RUN: u8 = 3;

/// The outcome if the restored checkpoint was set aside: an earlier restart continued from an older checkpoint, so the
/// state of the job does not descend from this checkpoint.
const SET_ASIDE: &str = "set aside";

/// The result, for `--json`.
#[derive(serde::Serialize)]
struct Report {
    #[serde(serialize_with = "as_json_word")]
    outcome: &'static str,
    job: Option<JobId>,
    checkpoint: Option<CheckpointId>,
    wanted: Option<CheckpointId>,
    /// Number of the incarnation that continues from the checkpoint; `None` if the restart recorded no decision.
    incarnation: Option<u32>,
    files: u64,
    file_bytes: u64,
    elapsed_ms: u64,
    /// Newer checkpoints that were skipped, and why.
    passed_over: Vec<PassedOver>,
    /// Files that were moved away, because a restored file has the same name or because they belong to a later step.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_aside: Option<MovedAside>,
}

fn as_json_word<S: serde::Serializer>(outcome: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&json_word(outcome))
}

pub fn run(args: RestartArgs) -> anyhow::Result<ExitCode> {
    check_target(&args.to)?;
    check_outside_store(&args.to, &args.store.store)?;
    let is_part = !args.only.is_empty();
    let args = RestartArgs { copy: args.copy || is_part, ..args };
    warn_of_store(&args.store.store);
    restore_newest(args, ATTEMPTS_MAX)
}

/// Refuses a target that cannot become a directory, before anything is decided.
fn check_target(to: &Path) -> anyhow::Result<()> {
    match (to.symlink_metadata(), to.metadata()) {
        (Ok(_), Ok(end)) if !end.is_dir() => {
            let what = "it is not a directory, and files can only be restored into a directory";
            Err(wrong_target(to, what, "give another name"))
        }
        (Ok(link), Err(error)) if link.is_symlink() && error.kind() == std::io::ErrorKind::NotFound => {
            let end = to.read_link().unwrap_or_default();
            let what = format!("it is a symbolic link to {}, which does not exist", end.display());
            Err(wrong_target(to, &what, "create this directory, or remove the link"))
        }
        _ => Ok(()),
    }
}

/// Refuses a target inside the store. `mcr prune` would take the restored files for a part of a checkpoint.
fn check_outside_store(to: &Path, store: &Path) -> anyhow::Result<()> {
    let Ok(store) = store.canonicalize() else { return Ok(()) }; // an error of the store is reported later
    let to_absolute = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
    // The target may not exist yet, so its nearest existing parent directory is compared.
    let above = to_absolute.ancestors().find_map(|dir| dir.canonicalize().ok());
    if above.is_some_and(|above| above.starts_with(&store)) {
        let what = format!(
            "it is inside the store {}, where only mcr may keep files: mcr prune could remove the restored files",
            name_of(&store)
        );
        return Err(wrong_target(to, &what, "give a directory outside the store"));
    }
    Ok(())
}

/// The error for a directory to which no file can be restored.
fn wrong_target(to: &Path, what: &str, advice: &str) -> anyhow::Error {
    Advised::new(format!("--to {}: {what}", name_of(to)), advice).at(to).into()
}

/// Maximum number of attempts. A restart begins again if it could restore none of the checkpoints that it found, and
/// another checkpoint has become complete in the meantime. The cause may be that the checkpoints were pruned. A
/// restart also begins again if another node of the same start decided first, and decided for another checkpoint.
const ATTEMPTS_MAX: u32 = 3;
/// Maximum time to wait for the decision of another node, if the checkpoint of the last decision is gone.
const DECISION_MAX: Duration = Duration::from_secs(10);
/// Time between two checks whether the other node has decided.
const DECISION_INTERVAL: Duration = Duration::from_millis(250);

/// Stands before the reason for which an earlier restart skipped a checkpoint.
const BECAUSE: &str = ", because: ";

/// Restores the newest good checkpoint, or the wanted checkpoint. First the records of the job give this restart its
/// [`Role`]: decide for a new incarnation (`Decide`), follow the decision of another node (`Follow`), only copy files
/// (`Look`), or wait for another node's next decision (`Lost`). Then the candidates are tried, newest first: the files
/// are written under temporary names, the decision is recorded, and the files get their final names. After `attempts`
/// attempts, the function fails.
fn restore_newest(args: RestartArgs, attempts: u32) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let store = open_store(&args.store)?;
    let Some(job) = job_of(&store, &args.store)? else {
        ours::jobs(&store, &args.store.store)?; // fails if this is no store
        return new_run(&args, None, None);
    };
    let asked = args.checkpoint.clone();
    let known = if asked.is_some() { manifest::list(&store, &job)? } else { Vec::new() };
    // `latest` stands for the checkpoint that a restart chooses by itself, `latest~N` for the one N places before.
    let before = asked.as_ref().and_then(|asked| steps_before_latest(&known, asked));
    let named = asked.as_ref().filter(|_| before.is_none()).map(|asked| checkpoint_of(&known, asked)).transpose()?;
    let args = RestartArgs { checkpoint: named, ..args };
    let decider = Decider::new(&store, &job, &args, started)?;
    let (all, incarnations, role) = loop {
        let (all, incarnations) = manifest::list_with_records(&store, &job)?;
        match decider.role(&all, &incarnations)? {
            // Another node may run its restart again and decide soon, so this restart waits for the decision.
            Role::Lost(_) if started.elapsed() < DECISION_MAX => std::thread::sleep(DECISION_INTERVAL),
            Role::Lost(why) => bail!("{why}"),
            role => break (all, incarnations, role),
        }
    };
    if let Role::Look(Some(why)) = &role {
        eprintln!("mcr: {why}");
        return restore_newest(RestartArgs { copy: true, checkpoint: asked, ..args }, attempts);
    }
    let followed = match &role {
        Role::Follow(record) => Some(record),
        Role::Look(_) | Role::Decide { .. } | Role::Lost(_) => None,
    };
    if !matches!(role, Role::Look(_)) {
        left_running::check(
            &args.to,
            "nothing was restored",
            ", or copy the files into another directory with --copy",
        )?;
    }
    if matches!(role, Role::Decide { .. }) {
        left_running::check_living(&args.to)?;
    }
    tracing::info!(
        %job, checkpoints = all.len(), follows_another_node = followed.is_some(),
        "read the list of the job's checkpoints"
    );
    let is_new = match followed {
        Some(record) => record.from.is_none(),
        None => args.checkpoint.is_none() && !all.iter().any(CheckpointState::is_complete),
    };
    // A restart that follows a decision takes the checkpoint of the decision.
    let before = before.filter(|_| followed.is_none()).unwrap_or(0);
    if is_new && before > 0 {
        bail!("there is no latest~{before}: job {job} has no complete checkpoint; `mcr list` shows all checkpoints");
    }
    if is_new {
        if all.is_empty() && followed.is_none() {
            ours::jobs(&store, &args.store.store)?;
        }
        return nothing_restored(&store, &job, &args, &all, &decider, &role);
    }
    if let (Some(record), Some(wanted)) = (followed, &args.checkpoint)
        && record.from.as_ref() != Some(wanted)
    {
        bail!(
            "{} of job {job} continues from {}, which another node decided; {wanted} cannot be restored for it. Use \
             --copy to copy it",
            record.describe(),
            record.from.as_ref().map_or("nothing", CheckpointId::as_str)
        );
    }
    if let (Some(record), true) = (followed, args.exact)
        && let Some(newer) = record.passed_over.first()
    {
        bail!(
            "{} of job {job} continues from {}, which another node decided, because {} was skipped: {}. With --exact \
             nothing older than {} is restored",
            record.describe(),
            record.from.as_ref().map_or("nothing", CheckpointId::as_str),
            newer.checkpoint,
            newer.reason,
            newer.checkpoint
        );
    }
    let mut passed_over = followed.map(|record| passed_over_by(record, &all)).unwrap_or_default();
    let mut candidates: Vec<&CheckpointState> = match followed {
        Some(record) => all.iter().filter(|state| record.from.as_ref() == Some(&state.id)).collect(),
        None => candidates(&store, &all, &args, &job, &incarnations, &mut passed_over)?,
    };
    if before > 0 && before >= candidates.len() {
        let there = counted(candidates.len() as u64, "checkpoint");
        bail!("there is no latest~{before}: a restart chooses among {there}; `mcr list` shows all checkpoints");
    }
    candidates.drain(..before);
    let newest = match before > 0 && passed_over.is_empty() {
        true => candidates.first().copied(),
        false => all.iter().find(|state| state.is_complete() || is_lost(state)),
    };
    let wanted = args.checkpoint.clone().or_else(|| newest.map(|state| state.id.clone()));
    let asks_newest = args.checkpoint.is_none() && before == 0;

    for state in candidates {
        tracing::info!(checkpoint = %state.id, raw_bytes = state.raw_bytes.0, to = name_of(&args.to), "restoring");
        if args.dry_run {
            match preview(&store, &job, state, &all, &args) {
                Ok(preview) => {
                    let hides_newer = preview.hides_newer && asks_newest;
                    preview.print(&job, &state.id, &args)?;
                    tell_marks(state, &args);
                    if args.checkpoint.is_none() {
                        tell_of_incomplete(&store, &job, &all, &state.id);
                    }
                    return Ok(exit_of(outcome_of(state, &args, hides_newer || wanted.as_ref() != Some(&state.id))));
                }
                Err(Failure::Receiver(error)) => return Err(error),
                Err(Failure::Unreadable(error)) => {
                    tell_if_mendable(&store, &args.store, &job, &state.id, &state.references);
                    return Err(unreadable(&state.id, &error));
                }
                Err(Failure::Checkpoint(error)) => {
                    let is_gone = is_removed(&store, &job, &state.id);
                    let reason = if is_gone { REMOVED.to_owned() } else { format!("{error:#}") };
                    eprintln!("mcr: {} cannot be restored: {reason}", state.id);
                    if !is_gone {
                        tell_if_mendable(&store, &args.store, &job, &state.id, &state.references);
                    }
                    passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
                    if args.exact {
                        break;
                    }
                    continue;
                }
            }
        }
        let prepared = match prepare(&store, &job, state, &all, &args) {
            Ok(prepared) => prepared,
            // This node cannot write the files, but the checkpoint is good. Restoring an older checkpoint would fail
            // too.
            Err(Failure::Receiver(error)) => return Err(error),
            Err(Failure::Unreadable(error)) => {
                tell_if_mendable(&store, &args.store, &job, &state.id, &state.references);
                return Err(unreadable(&state.id, &error));
            }
            Err(Failure::Checkpoint(error)) => {
                let is_gone = is_removed(&store, &job, &state.id);
                let reason = if is_gone { REMOVED.to_owned() } else { format!("{error:#}") };
                if let Some(record) = followed {
                    tell_if_mendable(&store, &args.store, &job, &state.id, &state.references);
                    return Err(undo_decision(&store, &job, record, &state.id, &reason));
                }
                eprintln!("mcr: {} cannot be restored: {reason}", state.id);
                if !is_gone {
                    tell_if_mendable(&store, &args.store, &job, &state.id, &state.references);
                    note_damage(&store, &job, &state.id, &error);
                }
                passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
                if args.exact {
                    break;
                }
                continue;
            }
        };
        let incarnation = match &role {
            Role::Look(_) | Role::Lost(_) => None,
            Role::Follow(record) => Some(record.number),
            Role::Decide { after } => match decider.decide(*after, Some(state), &all, &passed_over) {
                Ok(Decided::Here(number)) => Some(number),
                // Another node of the same start decided first.
                Ok(Decided::Other(other)) if other.from.as_ref() == Some(&state.id) => Some(other.number),
                Ok(Decided::Other(other)) => {
                    let tried = passed_over.iter().find(|tried| other.from.as_ref() == Some(&tried.checkpoint));
                    if let Some(tried) = tried {
                        return Err(undo_decision(&store, &job, &other, &tried.checkpoint, &tried.reason));
                    }
                    drop(prepared);
                    if attempts > 1 {
                        return restore_newest(RestartArgs { checkpoint: asked, ..args }, attempts - 1);
                    }
                    bail!("{} of job {job} began in the meantime; run the restart again", other.describe());
                }
                Err(error) if error.is_of_the_store() => bail!("{}", not_recorded(&error)),
                Err(error) => return Err(error.into()),
            },
        };
        let restored = match prepared.publish() {
            Ok(restored) => restored,
            Err(Failure::Receiver(error) | Failure::Unreadable(error) | Failure::Checkpoint(error)) => {
                return Err(error);
            }
        };
        if let Some(number) = incarnation
            && let Err(error) = decider.done(number)
        {
            eprintln!("mcr: the store cannot record that this part is restored ({error})");
        }
        let hides_newer = asks_newest && restored.moved_aside.as_ref().is_some_and(|moved| moved.may_be_whole);
        let is_older = hides_newer
            || wanted.as_ref() != Some(&state.id)
            || followed.is_some_and(|record| !record.passed_over.is_empty());
        tell_marks(state, &args);
        if asked.is_none() && passed_over.is_empty() {
            tell_of_incomplete(&store, &job, &all, &state.id);
        }
        tracing::info!(
            checkpoint = %state.id, incarnation, files = restored.files, bytes = restored.file_bytes, "restored"
        );
        let report = Report {
            outcome: outcome_of(state, &args, is_older),
            job: Some(job.clone()),
            checkpoint: Some(state.id.clone()),
            wanted: wanted.clone(),
            incarnation,
            files: restored.files,
            file_bytes: restored.file_bytes,
            elapsed_ms: started.elapsed().as_millis() as u64,
            passed_over,
            moved_aside: restored.moved_aside,
        };
        let is_sure = all.iter().any(|s| wanted.as_ref() == Some(&s.id) && s.place.is_some());
        if let Err(error) = print_restored(&report, is_sure, state.doubt.as_deref(), &args, started) {
            tell(format!(
                "the files of {} ARE restored, to {}; only this result is not printed",
                state.id,
                args.to.display()
            ));
            return Err(error);
        }
        if let Some(Err(error)) = restored.unreported.map(Unreported::reported) {
            tracing::warn!(%error, "the next restart will tell about the same files that were moved aside");
        }
        return Ok(exit_of(report.outcome));
    }
    let is_new =
        |state: &CheckpointState| state.is_complete() && !all.iter().any(|k| k.is_complete() && k.id == state.id);
    if args.checkpoint.is_none() && !args.exact && attempts > 1 && manifest::list(&store, &job)?.iter().any(is_new) {
        return restore_newest(RestartArgs { checkpoint: asked, ..args }, attempts - 1);
    }
    let tried = passed_over.iter().map(|p| p.checkpoint.to_string()).collect::<Vec<_>>().join(", ");
    let advice = match passed_over.iter().any(|tried| tried.reason == REMOVED) {
        true => "`mcr list` shows what is left",
        false => "`mcr verify` shows what is damaged",
    };
    bail!("no checkpoint of job {job} could be restored (tried: {tried}); {advice}")
}

/// The reason if a checkpoint was removed while it was restored.
const REMOVED: &str = "it was removed from the store during this restart, as by mcr prune";

/// Whether a checkpoint that a restart found at its start was removed since then.
fn is_removed(store: &dyn Store, job: &JobId, id: &CheckpointId) -> bool {
    match manifest::state(store, job, id) {
        Ok(state) => state.is_pruned,
        Err(error) => matches!(error, ReadError::Missing { .. }),
    }
}

/// The outcome of a restart that restores this checkpoint.
fn outcome_of(state: &CheckpointState, args: &RestartArgs, is_older: bool) -> &'static str {
    match () {
        () if is_older => "older",
        // Only checkpoints that were set aside are left.
        () if state.is_set_aside && args.checkpoint.is_none() => SET_ASIDE,
        () if state.bad.is_some() => "bad",
        () if state.doubt.is_some() => "doubtful",
        () => "restored",
    }
}

fn exit_of(outcome: &str) -> ExitCode {
    ExitCode::from(if outcome == "restored" { 0 } else { OLDER })
}

/// Says which newer checkpoint is not restored, because it is incomplete.
fn tell_of_incomplete(store: &PosixStore, job: &JobId, all: &[CheckpointState], restored: &CheckpointId) {
    let all = newest_first(store, job, all.to_vec());
    tell_of_newer(&all, restored, |condition| condition == Condition::Incomplete);
}

/// Says what speaks against the checkpoint that is restored.
fn tell_marks(state: &CheckpointState, args: &RestartArgs) {
    let id = &state.id;
    if let Some(why) = &state.bad {
        eprintln!("mcr: {id} is marked as bad: {why}");
    }
    if let Some(doubt) = &state.doubt {
        eprintln!("mcr: {id} is doubtful: {doubt}");
    }
    if state.is_set_aside && args.checkpoint.is_some() {
        eprintln!("mcr: {id} was set aside: an earlier restart continued from another checkpoint");
    }
}

/// The error if the store does not deliver the bytes of a checkpoint that may be good. An older checkpoint is not
/// restored instead, because the job would then continue from this older checkpoint.
fn unreadable(id: &CheckpointId, error: &anyhow::Error) -> anyhow::Error {
    let way_out = format!(
        "{}. To restore an older checkpoint, give its ID with --checkpoint; mcr list shows the IDs",
        way_to_read(&format!("{error:#}"))
    );
    let what = format!("{id} may be good, but it was not read: {error:#}. Nothing was restored");
    let advised = Advised::with_sentence(what, way_out);
    match path_of(error) {
        Some(path) => advised.at(&path).into(),
        None => advised.into(),
    }
}

/// Makes the error of a restart that cannot restore the checkpoint on which another node decided. Marks the
/// checkpoint as bad, so that the next restart of all nodes decides for another checkpoint.
fn undo_decision(
    store: &PosixStore,
    job: &JobId,
    record: &Incarnation,
    id: &CheckpointId,
    reason: &str,
) -> anyhow::Error {
    let marked = match mark_bad(store, job, id, &format!("a restart could not read it: {reason}")) {
        Ok(()) => {
            "It is marked as bad: run the restart again on all nodes, and an older one will be restored".to_owned()
        }
        Err(error) => format!("It cannot be marked ({error}): run the restart again on all nodes with --checkpoint ID"),
    };
    anyhow::anyhow!("{} continues from {id}, and {id} cannot be restored here: {reason}. {marked}", record.describe())
}

/// Handles a job without a checkpoint to restore: records the decision for a new run, or returns an error.
fn nothing_restored(
    store: &PosixStore,
    job: &JobId,
    args: &RestartArgs,
    all: &[CheckpointState],
    decider: &Decider<'_>,
    role: &Role,
) -> anyhow::Result<ExitCode> {
    if let Some(renamed) = renamed_away(store, &args.store.store, job).filter(|_| all.is_empty()) {
        return Err(renamed.into());
    }
    let left = all.iter().filter(|state| !state.is_pruned);
    let (complete, incomplete): (Vec<_>, Vec<_>) = left.partition(|state| state.is_complete());
    for state in &incomplete {
        eprintln!("mcr: {} is {} ({}): skipped", state.id, state.condition(), problems_of(state));
        if is_lost(state) {
            tell_if_mendable(store, &args.store, job, &state.id, &state.references);
        }
    }
    if !incomplete.is_empty() {
        eprintln!(
            "mcr: if one of these was complete before, part of the file system below {} may be offline: do not begin a new run \
             until it is back",
            args.store.store.display()
        );
    }
    if let Some(unreadable) = all.iter().find(|state| state.is_unreadable) {
        let problems = problems_of(unreadable);
        let what = format!(
            "{} may be complete, but it was not read ({problems}): nothing is restored, and this is not a new run",
            unreadable.id
        );
        return Err(not_read(what, &problems, way_to_read(&problems).to_owned()));
    }
    if let Some(damaged) = all.iter().find(|state| is_lost(state)) {
        bail!(
            "{} was committed and is damaged, and no checkpoint of job {job} can be restored; if there is a copy of \
             the store, mcr verify --repair --from COPY replaces missing and damaged files",
            damaged.id
        );
    }
    if let Role::Decide { after } = role
        && !(all.is_empty() && decider.records_nothing(*after))
    {
        match decider.decide(*after, None, all, &[]) {
            Ok(Decided::Here(number)) => drop(decider.done(number)),
            Ok(Decided::Other(other)) if other.from.is_none() => drop(decider.done(other.number)),
            Ok(Decided::Other(other)) => {
                bail!("{} of job {job} began in the meantime; run the restart again", other.describe())
            }
            Err(error) if error.is_of_the_store() => bail!("{}", not_recorded(&error)),
            Err(error) => return Err(error.into()),
        }
    }
    let mut why = None;
    if let Role::Follow(record) = role {
        // Without this note, a later restart of this part would follow the decision for the new run once more.
        drop(decider.done(record.number));
        let begun = format!("{} of job {job} is a new run, which another node decided", record.describe());
        why = complete.first().map(|newest| format!("{begun}, so {} is not restored", newest.id));
    }
    new_run(args, Some(job.clone()), why)
}

/// Why nothing is restored if the decision cannot be recorded.
fn not_recorded(error: &Undecided) -> String {
    format!(
        "the store cannot record from which checkpoint the job continues: {}. Nothing was restored, because \
         another node of the job could restore another checkpoint. Make room in the store or make it writable; or use \
         --copy, which needs no record, if this is the only node",
        error_chain(error)
    )
}

/// The checkpoints to try, newest first, starting with the checkpoint that the user asked for. Skipped checkpoints
/// are added to `passed_over` with the reason.
fn candidates<'a>(
    store: &PosixStore,
    all: &'a [CheckpointState],
    args: &RestartArgs,
    job: &JobId,
    incarnations: &Incarnations,
    passed_over: &mut Vec<PassedOver>,
) -> anyhow::Result<Vec<&'a CheckpointState>> {
    let first = match &args.checkpoint {
        None => 0,
        Some(wanted) => match all.iter().position(|state| state.id == *wanted) {
            Some(position) if all[position].is_pruned => {
                bail!("{wanted} was removed by prune; `mcr list` shows what is there")
            }
            Some(position) => position,
            None => match no_checkpoint_of(store, &args.store, job)? {
                Some(none) => return Err(none.advised(&args.store.store).into()),
                None => return Err(no_checkpoint_named(&args.store.store, job, wanted, all).into()),
            },
        },
    };
    let from = &all[first..];
    for state in from.iter().take_while(|state| !state.is_complete()).filter(|state| !state.is_pruned) {
        let what = state.condition();
        eprintln!("mcr: {} is {what} ({}): skipped", state.id, problems_of(state));
        if is_lost(state) {
            tell_if_mendable(store, &args.store, job, &state.id, &state.references);
        }
    }
    if let Some(wanted) = &args.checkpoint {
        if args.exact && !from[0].is_complete() {
            bail!("{} cannot be restored: {}", from[0].id, problems_of(&from[0]));
        }
        // If the place of a checkpoint is not known, the checkpoints after it in the list may be newer.
        let is_placed = from[0].is_complete() || from[0].place.is_some();
        let complete: Vec<&CheckpointState> = from.iter().filter(|state| is_placed && state.is_complete()).collect();
        if complete.is_empty() {
            let what = from[0].condition();
            let others: Vec<CheckpointId> =
                all.iter().filter(|state| state.is_complete()).map(|state| state.id.clone()).collect();
            match others.as_slice() {
                [] => bail!(
                    "{wanted} is {what}, and job {job} has no complete checkpoint; `mcr list` shows what is missing"
                ),
                some => bail!(
                    "{wanted} is {what}, and none of the complete checkpoints of job {job} is known to be older: {}. \
                     Give one of them with --checkpoint; `mcr list` shows what is missing",
                    names_of(some)
                ),
            }
        }
        return Ok(complete);
    }
    // The job has not continued from a checkpoint that a restart set aside, so such a checkpoint is not tried.
    let mut chosen: Vec<&CheckpointState> =
        from.iter().filter(|state| state.is_complete() && !state.is_set_aside).collect();
    if chosen.is_empty() {
        chosen = from.iter().filter(|state| state.is_complete()).collect();
    }
    if chosen.is_empty() {
        bail!("job {job} has no complete checkpoint; `mcr list` shows what is missing");
    }
    let outputs = restart_files_first(&mut chosen);
    let newer = || all.iter().take_while(|state| state.id != chosen[0].id);
    if let Some(unreadable) = newer().find(|state| state.is_unreadable) {
        let problems = problems_of(unreadable);
        let is = if unreadable.place.is_some() { "is" } else { "may be" };
        let what = format!("{} {is} the newest, and it was not read ({problems})", unreadable.id);
        let older = format!("{}; --checkpoint {} restores an older one", way_to_read(&problems), chosen[0].id);
        return Err(not_read(what, &problems, older));
    }
    for output in outputs {
        let (id, instead) = (&output.id, &chosen[0].id);
        let reason =
            format!("by the names, {instead} is a restart file, and {id} is not; --checkpoint {id} restores it");
        eprintln!("mcr: {id} is skipped: {reason}");
        passed_over.push(PassedOver { checkpoint: id.clone(), reason });
    }
    let line = incarnations.line();
    for state in newer() {
        let reason = match state.place.and_then(|place| line.set_aside_by(place)) {
            _ if is_lost(state) => problems_of(state),
            Some(record) if state.is_complete() => {
                let from = record.from.as_ref().map_or("nothing", CheckpointId::as_str);
                let reason = format!("{} set it aside and continued from {from}", record.describe());
                let id = &state.id;
                // If the earlier restart could not restore the checkpoint, --checkpoint may not restore it either.
                match record.passed_over.iter().find(|skipped| skipped.checkpoint == *id) {
                    Some(PassedOver { reason: why, .. }) => {
                        // The earlier restart may have skipped the checkpoint because of a restart before it.
                        let why = why.rsplit(BECAUSE).next().unwrap_or(why);
                        tell(format!(
                            "{id} is skipped: {reason}{BECAUSE}{why}. mcr verify {id} shows whether it is good now; \
                             then --checkpoint {id} restores it"
                        ));
                        format!("{reason}{BECAUSE}{why}")
                    }
                    None => {
                        tell(format!("{id} is skipped: {reason}; --checkpoint {id} restores it anyway"));
                        reason
                    }
                }
            }
            _ => continue,
        };
        passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
    }
    if let (Some(lost), true) = (passed_over.first(), args.exact) {
        bail!("{} cannot be restored: {}", lost.checkpoint, lost.reason);
    }
    // A restart with --copy starts no application, so there is no limit for such restarts.
    let limit = if args.copy { 0 } else { args.give_up_after as usize };
    let skips_doubtful = skips_doubtful(chosen.iter().copied());
    let mut kept = None;
    for (n, state) in chosen.iter().enumerate() {
        let reason = if limit > 0 && incarnations.restarts_in_a_row(store, job, &state.id, limit)? >= limit {
            format!(
                "it was restored {limit} times in a row, and nothing newer was committed since; --checkpoint {} \
                 restores it anyway",
                state.id
            )
        } else if let Some(why) = &state.bad {
            format!("it is marked as bad ({why}); --checkpoint {} restores it anyway", state.id)
        } else if let (Some(doubt), true) = (&state.doubt, skips_doubtful) {
            format!("{doubt}; --checkpoint {} restores it anyway", state.id)
        } else {
            kept = Some(n);
            break;
        };
        eprintln!("mcr: {} is skipped: {reason}", state.id);
        passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
    }
    match kept {
        Some(kept) if kept == 0 || !args.exact => {
            Ok(chosen.split_off(kept).into_iter().filter(|state| state.bad.is_none()).collect())
        }
        Some(kept) => bail!(
            "with --exact nothing older than {} is restored, such as {}; the lines above say how to restore it anyway",
            chosen[0].id,
            chosen[kept].id
        ),
        None => {
            bail!("no checkpoint of job {job} is left to restore; the lines above say how to restore one anyway")
        }
    }
}

/// The checkpoints that the deciding restart skipped, and complete checkpoints that are newer than the checkpoint of
/// the decision.
fn passed_over_by(record: &Incarnation, all: &[CheckpointState]) -> Vec<PassedOver> {
    let mut passed_over = record.passed_over.clone();
    for skipped in &mut passed_over {
        skipped.reason = format!("{} (found when {} began)", skipped.reason, record.describe());
    }
    let is_new = |state: &&CheckpointState| !record.passed_over.iter().any(|known| known.checkpoint == state.id);
    let newer = all.iter().take_while(|state| record.from.as_ref() != Some(&state.id));
    for state in newer.filter(|state| state.is_complete()).filter(is_new) {
        let from = record.from.as_ref().map_or("nothing", CheckpointId::as_str);
        let reason = format!("{} continues from {from}, which another node decided", record.describe());
        passed_over.push(PassedOver { checkpoint: state.id.clone(), reason });
    }
    passed_over
}

/// Whether the checkpoint cannot be restored, although its remaining manifests show that it was committed.
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

/// Reports that there is no checkpoint, so that the job begins a new run. Fails if the agent's state file names a
/// committed checkpoint. `why`: the reason, if the job has a complete checkpoint.
fn new_run(args: &RestartArgs, job: Option<JobId>, why: Option<String>) -> anyhow::Result<ExitCode> {
    if let (Some(file), Some(job)) = (&args.state, job.as_ref().or(args.store.job.as_ref()))
        && let Loaded::Found(AgentState { committed: Some(committed), .. }) = AgentState::load(file, job)
    {
        bail!(
            "{} holds no complete checkpoint, but {} says that {committed} was committed: is this the right store?",
            args.store.store.display(),
            file.display()
        );
    }
    if let Some(wanted) = &args.checkpoint {
        bail!("{} holds no complete checkpoint, so no {wanted}", args.store.store.display());
    }
    tell_of_files_in(&args.to);
    let why = match &job {
        _ if why.is_some() => why.unwrap_or_default(),
        Some(job) => match no_checkpoint_of(&open_store(&args.store)?, &args.store, job)? {
            Some(none) => {
                if let Some(near) = &none.near {
                    tell(format!("advice: did you mean {:?}?", near.as_str()));
                }
                none.what
            }
            None => format!("job {:?} has no complete checkpoint", job.as_str()),
        },
        None => format!("{} holds no complete checkpoint", name_of(&args.store.store)),
    };
    if args.json {
        tell(format!("{why}: new run, exit 3"));
        let (outcome, passed_over) = ("new run", Vec::new());
        print_json(&Report {
            outcome,
            job,
            checkpoint: None,
            wanted: None,
            incarnation: None,
            files: 0,
            file_bytes: 0,
            elapsed_ms: 0,
            passed_over,
            moved_aside: None,
        })?;
    } else {
        print(&format!("{why}: new run, exit 3\n"))?;
    }
    Ok(ExitCode::from(NEW_RUN))
}

/// Names a file of the directory in which a new run begins. An earlier start may have ended before its first commit,
/// and the new run may overwrite its files.
fn tell_of_files_in(to: &Path) {
    let Ok(listing) = list(to, &ScanLimits::default()) else { return };
    let mut files = of_the_application(listing, to, None).files;
    files.retain(|path| !may_be_left(path.as_bytes()));
    if let Some(first) = files.first() {
        tell(format!(
            "{} has {} (such as {first}), and nothing is restored. If an earlier start of the job wrote them, mcr save \
             {} saves them before the new run overwrites them",
            to.display(),
            counted(files.len() as u64, "file"),
            to.display()
        ));
    }
}

/// Marks a checkpoint as damaged, so that retention does not count it. If the mark cannot be written, the error is
/// only logged.
fn note_damage(store: &dyn Store, job: &JobId, id: &CheckpointId, error: &anyhow::Error) {
    let damage = error.chain().filter_map(|cause| cause.downcast_ref::<ReadError>());
    let is_damage = damage.map(ReadError::advice).any(|advice| advice == Advice::OlderCheckpoint);
    if is_damage && let Err(error) = mark_damaged(store, job, id, &format!("{error:#}")) {
        tracing::debug!(checkpoint = %id, %error, "the mark cannot be written");
    }
}

/// `is_sure`: whether the place of the wanted checkpoint in the order is known.
fn print_restored(
    report: &Report,
    is_sure: bool,
    doubt: Option<&str>,
    args: &RestartArgs,
    started: Instant,
) -> anyhow::Result<()> {
    if args.json {
        return print_json(report);
    }
    let (Some(checkpoint), elapsed) = (&report.checkpoint, started.elapsed()) else { return Ok(()) };
    print(&format!(
        "restored {checkpoint}: {}, {} in {} ({}), to {}\n",
        counted(report.files, "file"),
        mcrengine::units::human_bytes(report.file_bytes),
        human_time(elapsed),
        human_rate(report.file_bytes, elapsed),
        args.to.display()
    ))?;
    if report.outcome == SET_ASIDE {
        print(&format!("{checkpoint} was SET ASIDE by an earlier restart, and no other checkpoint is left\n"))?;
    }
    if report.outcome == "bad" {
        print(&format!("{checkpoint} is marked as BAD; it was restored because --checkpoint names it\n"))?;
    }
    if let ("doubtful", Some(doubt)) = (report.outcome, doubt) {
        print(&format!("{checkpoint} is DOUBTFUL: {doubt}\n"))?;
    }
    if let (Some(wanted), true) = (&report.wanted, report.outcome == "older") {
        if report.passed_over.is_empty() && *wanted == *checkpoint {
            if let Some(moved) = &report.moved_aside {
                print(&format!("this may be OLDER than {}\n", moved.newer()))?;
            }
            return Ok(());
        }
        let is = if is_sure { "is" } else { "may be" };
        let reason = report.passed_over.iter().find(|passed_over| passed_over.checkpoint == *wanted);
        print(&match reason {
            Some(PassedOver { reason, .. }) => format!("this {is} OLDER than {wanted}, which was skipped: {reason}\n"),
            None => format!("this {is} OLDER than {wanted}, which cannot be restored\n"),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_is_no_longer_in_the_store_was_removed_and_a_damaged_one_was_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = PosixStore::create(dir.path().join("store")).expect("creates");
        let (job, id): (JobId, CheckpointId) = ("job".parse().expect("valid"), "it_1".parse().expect("valid"));
        assert!(is_removed(&store, &job, &id));
        let of_checkpoint = dir.path().join("store/job/it_1");
        std::fs::create_dir_all(&of_checkpoint).expect("made");
        std::fs::write(of_checkpoint.join("group-0000.manifest"), "cut short").expect("written");
        assert!(!is_removed(&store, &job, &id));
    }
}
