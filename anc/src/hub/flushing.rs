//! Starts the flushes of the hub in order, and handles their ends.

use super::Hub;
use super::event::Flushed;
use super::flush_work::{FlushWork, RankOfFlush};
use super::gather::{Gather, give_back};
use crate::fetch::{Announced, RemoteSource};
use crate::flush_error::FlushError;
use crate::group::{Event, Key, Phase};
use crate::source::FetchError;
use mcrengine::error_chain::error_chain;
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// If the content of a group did not change, the group waits this time for another group that changes. After this
/// time, the agents get the answer that the content is committed.
const UNCHANGED: Duration = Duration::from_secs(30);
/// Replaces [`UNCHANGED`] while an agent of the job or the aggregator ends.
const UNCHANGED_WHILE_LEAVING: Duration = Duration::from_secs(5);

impl Hub {
    /// Starts queued flushes in order. At most one flush runs for each group, and at most the configured number for
    /// all groups.
    pub(super) fn start_flushes(&mut self) {
        let mut waiting = VecDeque::new();
        while let Some(key) = self.queue.pop_front() {
            let busy = |k: &Key| k.job == key.job && k.group == key.group;
            if self.running.len() >= self.options.flushes.max(1)
                || self.running.iter().any(busy)
                || waiting.iter().any(busy)
            {
                waiting.push_back(key);
            } else {
                self.start_flush(key);
            }
        }
        self.queue = waiting;
    }

    fn start_flush(&mut self, key: Key) {
        let Some(gather) = self.gathers.get_mut(&key).filter(|g| matches!(g.phase, Phase::Flushing { .. })) else {
            return;
        };
        // A rank without an announcement is awaited in every phase, because a container must contain all ranks of its
        // group.
        let ranks = gather.grouping.ranks_of(key.group).map(Rank);
        let missing: BTreeSet<Rank> = ranks.filter(|rank| !gather.announced.contains_key(rank)).collect();
        if !missing.is_empty() {
            return self.step(&key, Event::RanksFailed(missing));
        }
        gather.progress = Arc::default();
        let of_job = self.agents.values().filter(|agent| agent.job == key.job);
        let ends = self.draining.is_some() || of_job.clone().any(|agent| agent.leaving_ms.is_some());
        let patience = if ends { UNCHANGED_WHILE_LEAVING } else { UNCHANGED };
        let watches = of_job.map(|agent| agent.link.about.watch.clone());
        let ranks = gather.announced.iter().map(|(rank, announced)| RankOfFlush::new(*rank, announced)).collect();
        let (files, source) = RemoteSource::new(gather.announced.values().cloned(), self.options.fetch_deadline);
        let work = FlushWork {
            store: Arc::clone(&self.store),
            options: self.options.flush.clone(),
            group_size: self.options.group_size,
            spread: self.options.spread,
            budget: Arc::clone(&self.budget),
            key: key.clone(),
            grouping: gather.grouping,
            files,
            source,
            ranks,
            shared: Arc::clone(&self.shared),
            overwritten: gather.overwritten.values().copied().collect(),
            watches: watches.collect(),
            progress: Arc::clone(&gather.progress),
            is_late_part: gather.is_late_part,
            refused_ms: gather.refused_since.map_or(0, |since| since.elapsed().as_millis() as i64),
            may_wait: gather.unchanged_since.is_none_or(|since| since.elapsed() < patience),
        };
        match (self.launch)(work, self.events.clone()) {
            Ok(()) => drop(self.running.insert(key)),
            Err(error) => self.step(&key, Event::StoreFailed(format!("cannot start a thread for the flush: {error}"))),
        }
    }

    /// Handles the end of a group's flush: logs and counts the result, sends the event of the result to the state of
    /// the group, and hands over the ranks that were announced during the flush.
    pub(super) fn flush_ended(&mut self, key: &Key, result: Result<Flushed, FlushError>, elapsed: Duration) {
        self.running.remove(key);
        let elapsed_ms = elapsed.as_millis() as u64;
        let Some(gather) = self.gathers.get_mut(key) else { return };
        gather.flush_ms = elapsed_ms;
        let next = std::mem::take(&mut gather.next);
        let grouping = gather.grouping;
        match result {
            Ok(flushed) => {
                gather.exists = flushed.exists;
                gather.container = Some(flushed.manifest.container.digest);
                gather.raw_bytes = flushed.manifest.raw_bytes;
                gather.stored_bytes = flushed.manifest.stored_bytes;
                gather.refused_since = None;
                if flushed.manifest.doubt.is_none() {
                    let written = gather.announced.iter().map(|(rank, of)| (*rank, of.written_unix_ns));
                    gather.usual_ns = written.collect();
                }
                tracing::debug!(
                    job = %key.job, checkpoint = %flushed.id, group = key.group.0, exists = flushed.exists, was_there = flushed.was_there,
                    raw_bytes = flushed.manifest.raw_bytes.0, stored_bytes = flushed.manifest.stored_bytes.0, elapsed_ms,
                    "committed group"
                );
                if !flushed.was_there {
                    let (raw, stored) = (flushed.manifest.raw_bytes, flushed.manifest.stored_bytes);
                    self.history.committed(&key.job, &flushed.id, raw, stored);
                }
                if flushed.exists {
                    self.history.complete(&key.job, &flushed.id);
                    self.exist_with(&key.job, &flushed.id);
                }
                if flushed.exists && !flushed.was_there {
                    if !self.options.has_agent {
                        let (job, checkpoint, groups) = (&key.job, &flushed.id, grouping.groups());
                        tracing::info!(%job, %checkpoint, groups, "the checkpoint is complete");
                    }
                    let in_flight = self.running.iter().map(|key| key.label.clone()).collect();
                    self.retention.completed(&key.job, in_flight);
                }
                self.step(key, Event::Flushed(flushed.id));
            }
            Err(FlushError::Unchanged) => {
                gather.unchanged_since.get_or_insert_with(Instant::now);
                tracing::debug!(job = %key.job, checkpoint = %key.label, group = key.group.0, "the same bytes again");
                self.step(key, Event::Unchanged);
            }
            Err(error) => {
                let why = error_chain(&error);
                match gather.problem == why {
                    true => tracing::debug!(job = %key.job, checkpoint = %key.label, "flush failed again"),
                    false => tracing::warn!(
                        job = %key.job,
                        checkpoint = %key.label,
                        group = key.group.0,
                        error = why,
                        "flush failed"
                    ),
                }
                self.history.failed(&key.job, format!("the flush of {} failed: {why}", key.label));
                gather.problem = why;
                let event = match &error {
                    FlushError::Stale(ranks) => {
                        gather.refused_since.get_or_insert_with(Instant::now);
                        Self::stale(gather, &key.label, ranks, next.is_empty())
                    }
                    error => {
                        let mut missing = BTreeSet::new();
                        if let FlushError::Fetch(FetchError::Changed { rank, .. }) = error {
                            missing.insert(*rank);
                            if let Some(announced) = gather.announced.remove(rank) {
                                // The agent may not have noticed the change yet. An agent that has noticed the change
                                // announces the files again, and ignores this message.
                                give_back(&announced, &key.label, *rank, error_chain(error), true);
                            }
                        }
                        // A rank is also awaited if the session of its agent has ended. The agent announces the rank
                        // again.
                        let alive = |a: &Announced| self.agents.contains_key(&a.link.session) && !a.link.has_ended();
                        gather.announced.retain(|rank, a| alive(a) || !missing.insert(*rank));
                        // If all agents are still connected, no agent announces again by itself. Then the flush is
                        // tried again, up to the maximum number of attempts.
                        match missing.is_empty() {
                            true => Event::StoreFailed(error_chain(error)),
                            false => Event::RanksFailed(missing),
                        }
                    }
                };
                self.step(key, event);
            }
        }
        // These announcements arrived during the flush. An announcement of the committed content is answered, and
        // other content is handled like a new announcement.
        for (rank, announced) in next {
            self.announced(announced, key.job.clone(), grouping.ranks(), key.label.clone(), rank);
        }
        self.release(&key.job); // the last agent of the job may have disconnected meanwhile
    }

    /// Waits again for ranks whose files belong to another step or incarnation. The agents of these ranks announce
    /// the files when the application has written the files again. If no rank has files of this step, the checkpoint
    /// is abandoned.
    fn stale(gather: &mut Gather, label: &CheckpointId, ranks: &[(Rank, String)], is_last: bool) -> Event {
        // The announcement of such a rank gives no information about the step that the other ranks write.
        gather.overwritten.clear();
        for (rank, reason) in ranks {
            gather.last.remove(rank);
            if let Some(announced) = gather.announced.remove(rank) {
                give_back(&announced, label, *rank, reason.clone(), false);
            }
        }
        match ranks.first() {
            Some((_, reason)) if gather.announced.is_empty() && is_last => Event::Fenced(reason.clone()),
            _ => Event::RanksFailed(ranks.iter().map(|(rank, _)| *rank).collect()),
        }
    }
}
