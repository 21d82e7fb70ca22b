//! Opens a checkpoint to look inside.

use crate::advice::Advised;
use crate::args::StoreArgs;
use crate::common::{no_checkpoint_named, one_job, open_store};
use crate::output::tell;
use crate::which::{checkpoint_of, is_lost, steps_before_latest, tell_of_newer};
use anyhow::bail;
use mcrengine::container::{
    ContainerReader, ContainerSet, ReadError, ReadOrder, SegmentBuffer, SegmentTask, VariableReader,
};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::manifest::{self, CheckpointState, Manifest};
use mcrengine::store::PosixStore;
use std::sync::Arc;

/// A checkpoint with at least one committed group.
pub struct Opened {
    pub store: PosixStore,
    pub job: JobId,
    pub state: CheckpointState,
    /// The manifests of the committed groups, in the order of the groups.
    pub manifests: Vec<Manifest>,
}

impl Opened {
    /// Opens the checkpoint that the user means. Prints a line to standard error if the checkpoint is not complete.
    pub fn new(args: &StoreArgs, asked: &CheckpointId) -> anyhow::Result<Self> {
        let store = open_store(args)?;
        let job = one_job(&store, args)?;
        let all = manifest::list(&store, &job)?;
        let id = checkpoint_of(&all, asked)?;
        let Some(state) = all.iter().find(|state| state.id == id).cloned() else {
            return Err(no_checkpoint_named(&args.store, &job, &id, &all).into());
        };
        if steps_before_latest(&all, asked) == Some(0) {
            tell_of_newer(&all, &id, is_lost);
        }
        if state.is_pruned {
            bail!("{id} was removed by prune; only containers that other checkpoints need are left");
        }
        let mut manifests = Vec::new();
        for group in (0..state.groups).map(GroupId) {
            match manifest::read_manifest(&store, &job, &id, group) {
                Ok(manifest) => manifests.push(manifest),
                Err(ReadError::Missing { .. }) => {} // this group is not committed
                Err(error) => return Err(error.into()),
            }
        }
        if manifests.is_empty() {
            let problems = state.problems.join("; ");
            let advice = match state.is_damaged {
                true => "mcr verify shows what is damaged, and mcr verify --repair repairs what can be repaired",
                false => "mcr list shows the checkpoints that are complete",
            };
            return Err(Advised::new(format!("{id} is {}: {problems}", state.condition()), advice).into());
        }
        if !state.is_complete() {
            let is_readable = |manifest: &&Manifest| ContainerReader::open(&store, &job, &id, manifest.group).is_ok();
            let (there, all) = (manifests.iter().filter(is_readable).count(), state.groups);
            tell(format!("{id} is {}: {there} of {all} groups can be read", state.condition()));
        }
        Ok(Self { store, job, state, manifests })
    }

    /// Opens a checkpoint like [`Opened::new`], for a command that needs all groups. Fails if a group is not
    /// committed.
    pub fn whole(args: &StoreArgs, asked: &CheckpointId) -> anyhow::Result<Self> {
        let opened = Self::new(args, asked)?;
        let (id, there) = (&opened.state.id, opened.manifests.len());
        if there < opened.state.groups as usize {
            let what = format!("{id} has {there} of {} groups, and all are needed", opened.state.groups);
            return Err(Advised::new(what, format!("mcr ls {id} lists the files of the committed groups")).into());
        }
        Ok(opened)
    }

    /// Opens the containers of a group.
    pub fn set(&self, group: GroupId) -> anyhow::Result<Arc<ContainerSet>> {
        Ok(Arc::new(ContainerSet::open(&self.store, &self.job, &self.state.id, group)?))
    }
}

/// A reader for the variables of one file, within a number of bytes.
pub fn reader_of_file(set: Arc<ContainerSet>, file: u32, bytes: u64) -> anyhow::Result<VariableReader> {
    let tasks = set.tasks(|variable| variable.file == file);
    reader_of(set, &tasks, bytes)
}

/// A reader for the variables of these segments, within a number of bytes. One half is for the codecs.
pub fn reader_of(set: Arc<ContainerSet>, tasks: &[SegmentTask], bytes: u64) -> anyhow::Result<VariableReader> {
    Ok(VariableReader::of(Arc::new(SegmentBuffer::new(set, tasks, bytes / 2, ReadOrder::Unknown)?)))
}
