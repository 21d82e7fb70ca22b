//! Two jobs of one name at one aggregator.

use super::{GATHERS_MAX, Hub};
use crate::fetch::AgentLink;
use crate::flush_error::FlushError;
use crate::group::Phase;
use crate::incarnation::begin_anew;
use crate::own_thread::on_own_thread;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::incarnation::{self, Draft};
use mcrengine::manifest;
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// For the log.
const KEEPING: &str = "keeping two jobs of one name apart";

impl Hub {
    /// Two agents in different directories take one rank: two jobs of one name. Nothing of either is saved until one
    /// of them ends, and what one of them saves afterwards never joins what was saved before. What was committed from
    /// both before that was found is no checkpoint.
    pub(super) fn conflict(&mut self, job: &JobId, first: &AgentLink, second: &AgentLink, rank: Rank) {
        if self.conflicts.contains_key(job) || self.conflicts.len() >= GATHERS_MAX {
            return;
        }
        let why = format!(
            "two jobs have the name {job}: {rank} is saved by node {} from {} and by node {} from {}. Nothing of either is saved until one \
             of them ends; give one of them another name, or each an identity of its own (\"incarnation\" in [cnc])",
            first.node, first.about.watch, second.node, second.about.watch
        );
        tracing::error!(%job, "{why}");
        self.conflicts.insert(job.clone(), (first.session, second.session, why));
        let mixed = self.mixed(job);
        let (store, job, identity) = (Arc::clone(&self.store), job.clone(), first.about.identity.clone());
        on_own_thread(KEEPING, move || {
            spoil(&*store, &job, &mixed)?;
            let number = incarnation::newest_number(&*store, &job).map_err(StoreError::from)?;
            let begun_by = "an aggregator that found two jobs of one name".to_owned();
            Ok(begin_anew(&*store, &job, number, Draft { identity, begun_by, ..Draft::default() })?)
        });
    }

    /// Marks what was committed from both of two jobs of one name, where that was found while it was being committed.
    pub(super) fn spoil_mixed(&self, job: &JobId) {
        let mixed = self.mixed(job);
        if mixed.is_empty() {
            return;
        }
        let (store, job) = (Arc::clone(&self.store), job.clone());
        on_own_thread(KEEPING, move || spoil(&*store, &job, &mixed));
    }

    /// The checkpoints that this aggregator committed, of one group or of several, from the agents of both jobs.
    fn mixed(&self, job: &JobId) -> Vec<(CheckpointId, String)> {
        let Some((first, second, why)) = self.conflicts.get(job) else { return Vec::new() };
        let mut sessions: BTreeMap<&CheckpointId, BTreeSet<u64>> = BTreeMap::new();
        for gather in self.gathers.iter().filter(|(key, _)| key.job == *job).map(|(_, gather)| gather) {
            if let Phase::Committed(id) = &gather.phase {
                sessions.entry(id).or_default().extend(&gather.sessions);
            }
        }
        let of_both = sessions.into_iter().filter(|(_, of)| of.contains(first) && of.contains(second));
        of_both.map(|(id, _)| (id.clone(), format!("it has files of both: {why}"))).collect()
    }
}

fn spoil(store: &dyn Store, job: &JobId, mixed: &[(CheckpointId, String)]) -> Result<(), FlushError> {
    for (id, why) in mixed {
        tracing::error!(%job, checkpoint = %id, "it has files of two jobs of one name: marked as not whole");
        manifest::spoil(store, job, id, why)?;
    }
    Ok(())
}
