//! Handles two jobs that use the same name at one aggregator.

use super::{GATHERS_MAX, Hub};
use crate::fetch::AgentLink;
use crate::flush_error::FlushError;
use crate::group::Phase;
use crate::incarnation::begin_anew;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::incarnation::{self, Draft};
use mcrengine::manifest;
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The name of this work in the log.
const KEEPING: &str = "separating two jobs with the same name";

impl Hub {
    /// Handles two agents in different directories that announce the same rank. Either two jobs use the same name, or
    /// two nodes of one job do not know their ranks. Nothing is saved until one of the agents ends. A checkpoint that
    /// is saved after the conflict never contains parts that were saved before. Committed checkpoints that contain
    /// files of both agents are marked as not whole.
    pub(super) fn conflict(&mut self, job: &JobId, first: &AgentLink, second: &AgentLink, rank: Rank) {
        if self.conflicts.contains_key(job) || self.conflicts.len() >= GATHERS_MAX {
            return;
        }
        let why = format!(
            "two jobs have the name {job}, or two nodes of one job take their files for those of the same rank: {rank} \
             is saved by node {} from {} and by node {} from {}. Nothing is saved until one of them ends; give one of \
             the jobs another name, or each its own identity (\"incarnation\" in [cnc]); for nodes of one job, set a \
             layout with {{rank}}",
            first.node, first.about.watch, second.node, second.about.watch
        );
        tracing::error!(%job, "{why}");
        self.conflicts.insert(job.clone(), (first.session, second.session, why));
        let mixed = self.mixed(job);
        let (store, job, identity) = (Arc::clone(&self.store), job.clone(), first.about.identity.clone());
        self.own_threads.run(KEEPING, move || {
            spoil(&*store, &job, &mixed)?;
            let number = incarnation::newest_number(&*store, &job).map_err(StoreError::from)?;
            let begun_by = "an aggregator that found two jobs with the same name".to_owned();
            Ok(begin_anew(&*store, &job, number, Draft { identity, begun_by, ..Draft::default() })?)
        });
    }

    /// Marks checkpoints that contain files of two jobs with the same name, if the conflict was detected during their
    /// commit.
    pub(super) fn spoil_mixed(&self, job: &JobId) {
        let mixed = self.mixed(job);
        if mixed.is_empty() {
            return;
        }
        let (store, job) = (Arc::clone(&self.store), job.clone());
        self.own_threads.run(KEEPING, move || spoil(&*store, &job, &mixed));
    }

    /// The checkpoints that this aggregator committed from the agents of both jobs, in one group or in several
    /// groups.
    fn mixed(&self, job: &JobId) -> Vec<(CheckpointId, String)> {
        let Some((first, second, why)) = self.conflicts.get(job) else { return Vec::new() };
        let mut sessions: BTreeMap<&CheckpointId, BTreeSet<u64>> = BTreeMap::new();
        for gather in self.gathers.iter().filter(|(key, _)| key.job == *job).map(|(_, gather)| gather) {
            if let Phase::Committed(id) = &gather.phase {
                sessions.entry(id).or_default().extend(&gather.sessions);
            }
        }
        let of_both = sessions.into_iter().filter(|(_, of)| of.contains(first) && of.contains(second));
        of_both.map(|(id, _)| (id.clone(), format!("the checkpoint has files of both jobs: {why}"))).collect()
    }
}

fn spoil(store: &dyn Store, job: &JobId, mixed: &[(CheckpointId, String)]) -> Result<(), FlushError> {
    for (id, why) in mixed {
        tracing::error!(
            %job,
            checkpoint = %id,
            "the checkpoint has files of two jobs with the same name: marked as incomplete"
        );
        manifest::spoil(store, job, id, why)?;
    }
    Ok(())
}
