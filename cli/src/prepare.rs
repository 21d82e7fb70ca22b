//! Restores one checkpoint in two steps: `prepare` writes and verifies all files under temporary names, and `publish`
//! gives all files their final names.
//!
//! The decision of a restart is recorded between the two steps, while the application's files are still unchanged.

use crate::args::RestartArgs;
use crate::common::{threads_of, write_trace};
use crate::output::{Progress, counted, print, print_json};
use crate::remote;
use crate::restorers::{Failure, Restorers, of_advice, receiver, sink_failure, unread, verify_all};
use anyhow::anyhow;
use mcr_anc::budget::{Budget, Shares};
use mcr_anc::observe::Observer;
use mcr_anc::restart::{RestartError, restore_files};
use mcr_cnc::restart::{
    Aside, MovedBefore, Publish, Recovered, Target, Unreported, VerifiedFile, Why, descriptors_share, is_interrupted,
    publish_all, recover,
};
use mcrengine::container::{ContainerSet, DecodingMemory, ReadOrder, SegmentBuffer};
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId, Rank, natural_cmp, shape_of};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::partition::Recording;
use mcrengine::store::Store;
use mcrengine::verify::{VerifyOptions, verify};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of moved files that are named. Further files are only counted.
const NAMED_MAX: usize = 100;

/// A checkpoint whose files are all verified under temporary names. If this value is dropped, all these files are
/// removed.
pub struct Prepared {
    target: Arc<Target>,
    files: Vec<VerifiedFile>,
    how: Publish,
    /// What a killed restart had moved aside before.
    before: Option<MovedAside>,
}

/// The result of a restart.
pub struct Restored {
    pub files: u64,
    pub file_bytes: u64,
    pub moved_aside: Option<MovedAside>,
    /// To be ended when the user was told about `moved_aside`.
    pub unreported: Option<Unreported>,
}

/// Files that were moved away, for `--json`.
#[derive(serde::Serialize)]
pub struct MovedAside {
    /// The directory to which the files were moved.
    to: PathBuf,
    /// The paths of the files relative to `to`. Before, the files had the same paths relative to the target directory
    /// of the restart.
    files: Vec<String>,
    /// Whether the files may be a whole checkpoint that is newer than the restored checkpoint.
    pub may_be_whole: bool,
}

impl MovedAside {
    /// What a user should know about files that may be a whole checkpoint.
    pub fn newer(&self) -> String {
        format!(
            "files that may be a whole checkpoint, which was not committed; these files are now in {}. To continue \
             from these files instead, end the job, move them back, and run mcr save before mcr restart",
            self.to.display()
        )
    }
}

/// Restores one checkpoint under temporary names. Every group is decoded into temporary files in the directories of
/// the final files, and every file is compared with its digest.
pub fn prepare(
    store: &dyn Store,
    job: &JobId,
    state: &CheckpointState,
    all: &[CheckpointState],
    args: &RestartArgs,
) -> Result<Prepared, Failure> {
    // Complete or undo an interrupted restart before its temporary files are removed.
    let before = tell_recovered(recover(&args.to).map_err(|error| receiver(error.into()))?, &args.to);
    // Each thread may open a file.
    let threads = threads_of(args.threads).min(2 * descriptors_share());
    let target = if args.copy { Target::for_copy(&args.to) } else { Target::new(&args.to) };
    let mut aggregators = remote::Aggregators::new(&args.aggregators).map_err(receiver)?;
    let wanted = |file: &FileHeader| is_wanted(args, file);
    let groups = groups_of(state, args)?;
    let mut how = how(store, job, state, all, args)?;
    let progress = Progress::new("restoring", args.json);
    if args.ranks.is_none() {
        progress.expect(state.raw_bytes.0, 1);
    }
    let mut files: Vec<VerifiedFile> = Vec::new();
    let mut recording = args.trace.as_ref().map(|_| Recording::default());
    for group in groups {
        progress.message(format!("{} {group}", state.id));
        let mut restorers = match args.aggregators.is_empty() || !args.only.is_empty() {
            true => direct(store, job, &state.id, group, &wanted, threads, args, &target, &progress, &mut recording)?,
            false => aggregators.restore_group(job, &state.id, group, &wanted, args, &target, &progress)?,
        };
        how.directories.extend(restorers.take_directories());
        files.extend(verify_all(restorers, threads, !args.no_sync)?);
    }
    if files.is_empty() && !args.only.is_empty() {
        return Err(Failure::Receiver(anyhow!("{} has no file that --only names", state.id)));
    }
    if let (Some(file), Some(recording)) = (&args.trace, recording) {
        write_trace(file, recording).map_err(Failure::Receiver)?;
    }
    Ok(Prepared { target, files, how, before })
}

impl Prepared {
    /// Gives all files their final names, or no file its final name.
    pub fn publish(self) -> Result<Restored, Failure> {
        let Self { target, files, how, before } = self;
        let file_bytes = files.iter().map(VerifiedFile::bytes).sum();
        let file_count = files.iter().filter(|file| file.is_file()).count() as u64;
        let (published, recovered) = publish_all(&target, files, &how).map_err(|error| receiver(error.into()))?;
        let before = tell_recovered(recovered, target.path()).or(before);
        for path in &published.not_made {
            eprintln!(
                "mcr: {}: this link is not restored: it leads to another directory, or a directory exists in its place",
                escaped(path)
            );
        }
        if published.keeps_settings {
            eprintln!(
                "mcr: mcr.toml: the existing file is kept, and the file of the checkpoint, which has other settings, \
                 is not restored"
            );
        }
        for path in &published.through {
            eprintln!("mcr: {}: this is a link; the files below it were restored through it", escaped(path));
        }
        let moved_aside = published.aside_to.map(|name| {
            let to = target.path().join(name);
            tell_aside(&format!("moved aside to {}", to.display()), &published.aside);
            let files = published.aside.iter().map(|aside| escaped(&aside.path)).collect();
            MovedAside { to, files, may_be_whole: published.hides_newer }
        });
        let moved_aside = match before {
            Some(before) if before.may_be_whole || moved_aside.is_none() => Some(before),
            _ => moved_aside,
        };
        let files = file_count - u64::from(published.keeps_settings);
        Ok(Restored { files, file_bytes, moved_aside, unreported: published.unreported })
    }
}

/// A path for a terminal or for JSON. Bytes that are not UTF-8, control characters and backslashes become `\xNN`, so
/// that no two paths look the same.
fn escaped(path: &FilePath) -> String {
    let mut text = String::new();
    for chunk in path.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\x5c"),
                c if c.is_control() => c.to_string().bytes().for_each(|b| text.push_str(&format!("\\x{b:02x}"))),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| text.push_str(&format!("\\x{b:02x}")));
    }
    text
}

/// Tells the user about killed restarts. Returns what the last one had moved aside.
fn tell_recovered(recovered: Recovered, target: &Path) -> Option<MovedAside> {
    let Recovered { completed, undone, aside } = recovered;
    let to = target.display();
    if completed > 0 {
        eprintln!(
            "mcr: {to}: an earlier restart was killed while it renamed files; all of its files have their final \
             names now"
        );
    }
    if undone > 0 {
        eprintln!(
            "mcr: {to}: an earlier restart was killed while it renamed files; everything is as it was before that \
             restart"
        );
    }
    let MovedBefore { to, files, hides_newer } = aside?;
    let (to, count) = (target.join(to), counted(files.len() as u64, "file"));
    eprintln!("mcr: it moved {count} aside to {}", to.display());
    Some(MovedAside { to, files: files.iter().map(escaped).collect(), may_be_whole: hides_newer })
}

fn tell_aside(what: &str, aside: &[Aside]) {
    for Aside { path, why, .. } in aside.iter().take(NAMED_MAX) {
        let why = match why {
            Why::Replaced => "the restored file has another content",
            Why::Newer => "newer than the restored checkpoint",
            Why::Later => "its name is later than the restored checkpoint",
            Why::Link => "a link with the name of a directory of the checkpoint",
            Why::LeadsAside => "a link to what is moved aside",
        };
        eprintln!("mcr: {what}: {} ({why})", escaped(path));
    }
    if aside.len() > NAMED_MAX {
        eprintln!("mcr: {what}: {} more files", aside.len() - NAMED_MAX);
    }
}

/// Whether the user asked for the file.
fn is_wanted(args: &RestartArgs, file: &FileHeader) -> bool {
    args.ranks.as_ref().is_none_or(|ranks| ranks.contains(file.rank))
        && (args.only.is_empty() || args.only.iter().any(|glob| glob.is_for(&file.path)))
}

/// The groups that hold the wanted ranks.
fn groups_of(state: &CheckpointState, args: &RestartArgs) -> Result<Vec<GroupId>, Failure> {
    if let Some(ranks) = &args.ranks
        && ranks.highest().0 >= state.ranks
    {
        let (highest, there) = (ranks.highest().0, state.ranks);
        let id = &state.id;
        return Err(Failure::Receiver(anyhow!("--ranks names rank {highest}; {id} has ranks 0 to {}", there - 1)));
    }
    let grouping = Grouping::new(state.ranks, state.group_size)
        .ok_or_else(|| Failure::Checkpoint(anyhow!("its manifests name no ranks")))?;
    let is_wanted = |group: &GroupId| {
        let wanted = |ranks: &crate::args::RankSet| grouping.ranks_of(*group).any(|rank| ranks.contains(Rank(rank)));
        args.ranks.as_ref().is_none_or(wanted)
    };
    Ok((0..state.groups).map(GroupId).filter(is_wanted).collect())
}

/// The options for publishing the files, and the names of all files of the checkpoint, including files of other
/// ranks.
fn how(
    store: &dyn Store,
    job: &JobId,
    state: &CheckpointState,
    all: &[CheckpointState],
    args: &RestartArgs,
) -> Result<Publish, Failure> {
    let manifests = manifest::manifests(store, job, &state.id).map_err(unread)?;
    let of_checkpoint: BTreeSet<FilePath> =
        manifests.into_iter().flat_map(|manifest| manifest.files).map(|file| file.path).collect();
    let label = names_count_steps(state, all).then(|| state.id.label().to_owned());
    let of_others = if args.copy { BTreeSet::new() } else { files_of_others(store, job, state, all) };
    Ok(Publish { of_checkpoint, of_others, label, is_copy: args.copy, sync: !args.no_sync, ..Publish::default() })
}

/// Maximum number of other names of checkpoints whose files are compared with the restored files.
const OTHER_NAMES_MAX: usize = 4;

/// The files of other checkpoints whose names differ from the restored checkpoint in more than numbers, as `a` and `b`
/// do. The newest checkpoint of each name gives the files. A manifest that cannot be read gives no files.
fn files_of_others(
    store: &dyn Store,
    job: &JobId,
    state: &CheckpointState,
    all: &[CheckpointState],
) -> BTreeSet<FilePath> {
    let mut names = BTreeSet::new();
    let is_other =
        |other: &&CheckpointState| !other.is_pruned && shape_of(other.id.label()) != shape_of(state.id.label());
    let newest_of_name = all.iter().filter(is_other).filter(|other| names.insert(other.id.label().to_owned()));
    let manifests =
        newest_of_name.take(OTHER_NAMES_MAX).filter_map(|other| manifest::manifests(store, job, &other.id).ok());
    manifests.flatten().flat_map(|manifest| manifest.files).map(|file| file.path).collect()
}

/// Whether names increase with the steps, so that a file with a later name than the checkpoint belongs to a later
/// step. False if an older checkpoint of the job has the same name or a later name, because the application uses a
/// few names in turn.
fn names_count_steps(state: &CheckpointState, all: &[CheckpointState]) -> bool {
    let label = state.id.label();
    let is_comparable = |other: &str| shape_of(other) == shape_of(label);
    let is_older = |other: &&CheckpointState| other.place.is_some() && other.place < state.place;
    // The job did not continue from a checkpoint that was set aside or is dead, so the name of such a checkpoint is
    // ignored.
    let is_in_line = |other: &&CheckpointState| !other.is_set_aside && !other.is_dead && !other.is_unfinished;
    let mut older = all.iter().filter(is_older).filter(is_in_line).map(|other| other.id.label());
    !older.any(|other| is_comparable(other) && natural_cmp(other.as_bytes(), label.as_bytes()).is_ge())
}

#[expect(clippy::too_many_arguments, reason = "the arguments have nothing in common that a struct could name")]
fn direct(
    store: &dyn Store,
    job: &JobId,
    checkpoint: &CheckpointId,
    group: GroupId,
    wanted: &dyn Fn(&FileHeader) -> bool,
    threads: usize,
    args: &RestartArgs,
    target: &Arc<Target>,
    observer: &dyn Observer,
    recording: &mut Option<Recording>,
) -> Result<Restorers, Failure> {
    let set = Arc::new(ContainerSet::open(store, job, checkpoint, group).map_err(unread)?);
    let restorers = Restorers::create(target, set.index().files(), wanted)?;
    let chosen: Vec<bool> = set.index().files().iter().map(wanted).collect();
    let tasks = set.tasks(|variable| chosen[variable.file as usize]);
    // One half of the budget is for the codecs.
    let half = args.budget_mib.max(16) << 19;
    let Shares { decoded_bytes, stored_bytes } = Shares::of(half, &tasks);
    let segments = SegmentBuffer::new(set, &tasks, decoded_bytes, ReadOrder::Announced).map_err(unread)?;
    let segments = segments.with_decoding(DecodingMemory::new(half));
    if recording.is_some() {
        segments.record();
    }
    let restored = restore_files(&segments, &tasks, threads, &Budget::new(stored_bytes), observer, &restorers);
    if let Some(recording) = recording {
        recording.add(&segments.recorded());
    }
    match restored {
        Ok(()) => Ok(restorers),
        Err(RestartError::Sink(error)) => Err(sink_failure(error)),
        Err(RestartError::Read(error)) => Err(unread(error)),
        Err(error) => Err(Failure::Unreadable(error.into())),
    }
}

/// The result of `mcr restart --dry-run`.
pub struct Preview {
    files: u64,
    file_bytes: u64,
    aside: Vec<Aside>,
    /// Whether these files may be a whole checkpoint that is newer than the restored checkpoint.
    pub hides_newer: bool,
    is_interrupted: bool,
}

/// Reads and verifies one checkpoint and finds the files that would be moved away. Changes nothing.
pub fn preview(
    store: &dyn Store,
    job: &JobId,
    state: &CheckpointState,
    all: &[CheckpointState],
    args: &RestartArgs,
) -> Result<Preview, Failure> {
    let groups = groups_of(state, args)?;
    let how = how(store, job, state, all, args)?;
    let progress = Progress::new("verifying", args.json);
    progress.message(state.id.to_string());
    progress.expect(state.raw_bytes.0, 1);
    let options = VerifyOptions { memory_bytes: args.budget_mib << 20, threads: threads_of(args.threads) };
    let report = verify(store, job, &state.id, options, &|raw_bytes| progress.done(raw_bytes.0));
    if let Some(problem) = report.problems.first() {
        return Err(of_advice(problem.advice, anyhow!("{}", problem.what)));
    }
    let wanted = |file: &&FileHeader| is_wanted(args, file);
    let mut headers: Vec<FileHeader> = Vec::new();
    for group in groups {
        let set = ContainerSet::open(store, job, &state.id, group).map_err(unread)?;
        headers.extend(set.index().files().iter().filter(wanted).cloned());
    }
    let of_headers: Vec<&FileHeader> = headers.iter().filter(|header| header.kind != FileKind::Directory).collect();
    let (aside, hides_newer) =
        mcr_cnc::restart::preview(&args.to, &of_headers, &how).map_err(|error| receiver(error.into()))?;
    let files = headers.iter().filter(|header| header.kind.is_file()).count() as u64;
    let file_bytes = headers.iter().map(|header| header.bytes).sum();
    Ok(Preview { files, file_bytes, aside, hides_newer, is_interrupted: is_interrupted(&args.to) })
}

impl Preview {
    pub fn print(self, job: &JobId, checkpoint: &CheckpointId, args: &RestartArgs) -> anyhow::Result<()> {
        let Self { files, file_bytes, aside, hides_newer, is_interrupted } = self;
        if args.json {
            let aside: Vec<String> = aside.iter().map(|aside| escaped(&aside.path)).collect();
            return print_json(&serde_json::json!({
                "outcome": "dry-run", "job": job, "checkpoint": checkpoint, "files": files, "file_bytes": file_bytes,
                "would_move_aside": aside, "may_be_whole": hides_newer, "is_interrupted": is_interrupted,
            }));
        }
        print(&format!(
            "would restore {checkpoint}: {}, {}, to {}; {} would be moved aside\n",
            counted(files, "file"),
            mcrengine::units::human_bytes(file_bytes),
            args.to.display(),
            counted(aside.len() as u64, "file")
        ))?;
        tell_aside("would be moved aside", &aside);
        if hides_newer {
            eprintln!(
                "mcr: these files may be a whole newer checkpoint, which was not committed; run mcr save before mcr \
                 restart to continue from it"
            );
        }
        if is_interrupted {
            let to = args.to.display();
            eprintln!(
                "mcr: {to}: an earlier restart was killed while it renamed files; a restart completes or undoes \
                 that first"
            );
        }
        Ok(())
    }
}
