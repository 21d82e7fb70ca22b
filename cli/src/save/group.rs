//! Commits one group of a checkpoint to the store.

use super::capture::{KeptImage, changed};
use super::turns::Turns;
use crate::common::now_unix_ms;
use crate::local::LocalSource;
use crate::output::Progress;
use anyhow::Context;
use mcr_anc::budget::Budget;
use mcr_anc::commit_group::{CommittedGroup, commit_group};
use mcr_anc::flush::{Flush, FlushOptions};
use mcr_anc::flush_error::FlushError;
use mcr_anc::instance::committed;
use mcr_anc::newest::NewestOfGroups;
use mcr_anc::source::FetchError;
use mcr_anc::spare::Spare;
use mcr_cnc::fingerprint::Fingerprint;
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Grouping, JobId};
use mcrengine::manifest::{self, Doubt, Place};
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A captured group.
pub struct Group {
    /// Index of the checkpoint's line in the report.
    pub nth: usize,
    /// Number of groups of all older checkpoints of this run.
    pub older: usize,
    pub checkpoint: CheckpointId,
    pub place: Place,
    /// What is uncertain about the files of the checkpoint.
    pub doubt: Option<Doubt>,
    pub group: GroupId,
    pub headers: Arc<Vec<FileHeader>>,
    /// One entry for each header.
    pub files: Vec<(Fingerprint, Option<KeptImage>)>,
    pub whole: Arc<Whole>,
}

/// The result of the flush of a group. An error that ends the whole run is not a result.
pub enum GroupEnd {
    Committed(Box<CommittedGroup>),
    /// The group cannot be committed, so its checkpoint fails. Other checkpoints continue. The reason is `None` if
    /// another group of the checkpoint gave the reason.
    Failed(Option<String>),
}

/// All files of a checkpoint. If a file changes before the first group is committed, no group of the checkpoint is
/// committed.
pub struct Whole {
    files: Vec<(FilePath, Fingerprint)>,
    /// The reason if a file changed after its capture. The files are checked once, before the first group is
    /// committed.
    changed: OnceLock<Option<String>>,
    /// Whether a group of the checkpoint failed.
    is_failed: AtomicBool,
}

impl Whole {
    pub fn new<'a>(files: impl Iterator<Item = (&'a FilePath, Fingerprint)>) -> Self {
        let files = files.map(|(path, print)| (path.clone(), print)).collect();
        Self { files, changed: OnceLock::new(), is_failed: AtomicBool::new(false) }
    }

    /// The reason if a file changed, so that no group of the checkpoint may be committed.
    fn changed(&self, dir: &Path) -> Option<&str> {
        let is_same = |path: &FilePath, was: &Fingerprint| {
            let is = std::fs::symlink_metadata(dir.join(path.as_path()));
            is.is_ok_and(|is| Fingerprint::of(&is).same_content(was))
        };
        let look = || self.files.iter().find(|(path, was)| !is_same(path, was)).map(|(path, _)| changed(path));
        self.changed.get_or_init(look).as_deref()
    }

    fn may_commit(&self, dir: &Path) -> bool {
        !self.is_failed.load(Ordering::Relaxed) && self.changed(dir).is_none()
    }
}

/// Commits groups. Several threads use the same committer.
pub struct Committer<'a> {
    pub dir: &'a Path,
    pub store: &'a dyn Store,
    pub job: &'a JobId,
    pub grouping: Grouping,
    pub group_size: u32,
    pub options: &'a FlushOptions,
    pub budget: &'a Arc<Budget>,
    /// Maximum time to wait for another process that saves the same group.
    pub wait: Duration,
    pub spare: Spare,
    pub newest: NewestOfGroups,
    /// Number of checkpoints that were found.
    pub checkpoints: usize,
    /// The newest checkpoint in the store when the command began.
    pub newest_saved: Option<(CheckpointId, Place)>,
    pub turns: Turns,
    /// The shapes of names that several checkpoints have. The code does not overwrite such names.
    pub series: BTreeSet<Vec<u8>>,
    /// Checkpoints of which it is uncertain whether their files are all files of one step, each with the reason.
    pub doubts: &'a BTreeMap<CheckpointId, Doubt>,
    /// Files whose times do not show the step of their checkpoint.
    pub not_of_step: &'a BTreeSet<FilePath>,
}

impl Committer<'_> {
    /// Commits one group in its turn, unless the group is in the store already. An error is an error of the store,
    /// and ends the run.
    pub fn commit(&self, group: Group, progress: &Progress) -> anyhow::Result<GroupEnd> {
        let Group { older, checkpoint, place, doubt, group, headers, files, whole, .. } = group;
        if let Some(manifest) = committed(self.store, self.job, &checkpoint, group, self.grouping, &headers)? {
            return Ok(GroupEnd::Committed(Box::new(CommittedGroup { manifest, was_there: true })));
        }
        // If a manifest exists without its container, the flush writes the container again, also if the manifest can
        // stay.
        let is_mended = manifest::read_manifest(self.store, self.job, &checkpoint, group).is_ok();
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
        let may_commit = || match self.turns.wait(older) && whole.may_commit(self.dir) {
            true => Ok(()),
            false => Err(FlushError::NotItsTurn),
        };
        let flush = Flush {
            store: self.store,
            job: self.job.clone(),
            checkpoint: checkpoint.clone(),
            group,
            grouping: self.grouping,
            group_size: self.group_size,
            incarnation: place.incarnation,
            written_unix_ms: place.written_unix_ms,
            first_unix_ms: None,
            doubt,
            files: Arc::clone(&headers),
            source: &source,
            options: self.options,
            budget: self.budget,
            spare: &self.spare,
            newest: &self.newest,
            may_commit: &may_commit,
            observer: progress,
            now_unix_ms,
        };
        // Each of two processes may hold a container that waits for its turn. A process commits its older groups
        // first, so two processes wait for each other only if they commit their checkpoints in different orders. The
        // deadline ends such a wait: when one process stops waiting, the other process continues.
        let deadline = Instant::now() + self.wait;
        let wait_for_other = || {
            let pause = Duration::from_millis(50 + u64::from(std::process::id() % 100));
            Instant::now() < deadline && self.turns.pause(pause)
        };
        let error = match commit_group(&flush, &wait_for_other) {
            Ok(done) => {
                drop((source, leases)); // drops the bytes, then the leases of their memory
                let was_there = done.was_there && !is_mended;
                tracing::debug!(
                    %checkpoint, group = group.0, was_there, raw_bytes = done.manifest.raw_bytes.0,
                    stored_bytes = done.manifest.stored_bytes.0, "the group is in the store"
                );
                return Ok(GroupEnd::Committed(Box::new(CommittedGroup { was_there, ..done })));
            }
            Err(error) => error,
        };
        if let Some(reason) = self.reason_of_checkpoint(&error, &whole) {
            whole.is_failed.store(true, Ordering::Relaxed);
            return Ok(GroupEnd::Failed(reason));
        }
        let name = format!("{checkpoint}, {group}");
        // If this process has not waited, another group has failed and reported the reason.
        let has_waited = matches!(error, FlushError::Store(StoreError::Busy { .. })) && Instant::now() >= deadline;
        let seconds = self.wait.as_secs();
        Err(error).with_context(|| match has_waited {
            true => format!(
                "{name}: waited {seconds} s; save again when the other process has ended, or give a longer --wait"
            ),
            false => name,
        })
    }

    /// The reason of a failure of this checkpoint alone, or `None` if the whole run ends. The inner reason is `None`
    /// if another group of the checkpoint gave the reason.
    fn reason_of_checkpoint(&self, error: &FlushError, whole: &Whole) -> Option<Option<String>> {
        match error {
            FlushError::NotItsTurn if !whole.may_commit(self.dir) => Some(whole.changed(self.dir).map(str::to_owned)),
            FlushError::Fetch(FetchError::Changed { file, .. }) => Some(Some(changed(file))),
            FlushError::Fetch(_) | FlushError::Compress(_) => Some(Some(error_chain(error))),
            // `mcr prune` removed the checkpoint that another process had committed, or the directory that was
            // created for this checkpoint.
            FlushError::Store(why) if why.is_not_found() || matches!(why, StoreError::Committed { .. }) => {
                Some(Some(format!("it was removed from the store while it was being saved; save again ({why})")))
            }
            _ => None,
        }
    }
}
