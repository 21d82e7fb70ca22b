//! Ends the hub when the aggregator or its agents end. Also checks which committed checkpoints have become complete.

use super::event::HubEvent;
use super::gather::{Gather, LOOK_LEAVING_MS, LOOK_LONGEST_MS};
use super::{Draining, Hub};
use crate::completes::GroupOf;
use crate::drain::{GRACE_MS, InFlight, Uncommitted, Verdict, decide};
use crate::group::{Event, Failed, Key, Phase, Reason};
use crate::unpanicked::unpanicked;
use mcr_proto::v1;
use mcrengine::ids::{CheckpointId, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

impl Hub {
    /// Ends the wait for missing ranks of a job when all connected agents of the job have reported that they will
    /// announce nothing more. The wait ends `GRACE_MS` milliseconds after the last of these reports.
    pub(super) fn give_up_what_nobody_will_announce(&mut self) {
        if self.absent() > 0 {
            return;
        }
        let now_ms = self.now_ms();
        let mut leaving: BTreeMap<&JobId, bool> = BTreeMap::new();
        for agent in self.agents.values() {
            let is_over = agent.leaving_ms.is_some_and(|ms| now_ms >= ms + GRACE_MS);
            *leaving.entry(&agent.job).or_insert(true) &= is_over;
        }
        for (key, gather) in &mut self.gathers {
            if leaving.get(&key.job) == Some(&true)
                && let Phase::Gathering { deadline_ms, .. } = &mut gather.phase
            {
                *deadline_ms = now_ms.min(*deadline_ms);
            }
        }
    }

    pub(super) fn looked(&mut self, session: u64, leaving: bool) {
        let now_ms = self.now_ms();
        let Some(agent) = self.agents.get_mut(&session) else { return };
        agent.looked = true;
        if leaving {
            agent.leaving_ms = Some(now_ms);
            if self.options.of_job.is_some() {
                self.left.insert(agent.link.node.clone());
            }
        }
        let job = agent.job.clone();
        self.look_soon(|key| key.job == job);
    }

    /// Number of the job's nodes whose agents have not reported their end. The number is always 0 if the aggregator
    /// serves all jobs, because then the number of agents is unknown.
    fn absent(&self) -> usize {
        self.options.of_job.as_ref().map_or(0, |of_job| of_job.nodes.saturating_sub(self.left.len()))
    }

    /// Makes the hub check soon and often whether the other groups of a checkpoint are committed, because ending
    /// agents wait for the result.
    fn look_soon(&mut self, those: impl Fn(&Key) -> bool) {
        let now_ms = self.now_ms();
        for (_, gather) in self.gathers.iter_mut().filter(|(key, _)| those(key)) {
            gather.look = (now_ms, LOOK_LEAVING_MS);
        }
    }

    /// Begins the drain: asks the agents to announce all written files. All work continues until the time `until` at
    /// the latest.
    pub(super) fn begin_drain(&mut self, until: Instant, done: oneshot::Sender<Vec<Uncommitted>>) {
        let now_ms = self.now_ms();
        let left_ms = until.saturating_duration_since(Instant::now()).as_millis() as u64;
        self.draining = Some(Draining { since_ms: now_ms, until_ms: now_ms + left_ms, done, quiet_since_ms: now_ms });
        for agent in self.agents.values_mut().filter(|agent| agent.leaving_ms.is_none()) {
            agent.looked = false;
            agent.link.send(v1::to_agent::Message::Look(v1::Look {}));
        }
        self.look_soon(|_| true);
    }

    pub(super) fn verdict(&self, draining: &Draining) -> Verdict {
        let is = |wanted: fn(&Phase) -> bool| self.gathers.values().filter(|gather| wanted(&gather.phase)).count();
        let nodes: BTreeSet<(&JobId, &str)> = self.agents.values().map(|a| (&a.job, a.link.node.as_str())).collect();
        // The other groups may have been committed in the meantime. The hub checks the store once, even if no agent
        // is connected that could be informed.
        let is_looked_for =
            |gather: &Gather| gather.looked_ms.is_some_and(|ms| ms >= draining.since_ms) && !self.looking;
        let awaits = |key: &Key, gather: &Gather| {
            let has_agent = || gather.untold.values().any(|(node, _)| nodes.contains(&(&key.job, node.as_str())));
            !gather.untold.is_empty() && (!is_looked_for(gather) || has_agent()) && !self.is_overtaken(key, gather)
        };
        let in_flight = InFlight {
            looking: self.agents.values().filter(|agent| !agent.looked).count().max(self.absent()),
            flushing: self.running.len()
                + usize::from(self.searching)
                + is(|phase| matches!(phase, Phase::Flushing { .. } | Phase::Waiting { .. })),
            gathering: self.gathers.iter().filter(|(key, gather)| self.is_given_up(key, gather)).count(),
            untold: self.gathers.iter().filter(|(key, gather)| awaits(key, gather)).count(),
        };
        decide(in_flight, self.now_ms(), draining.quiet_since_ms, draining.until_ms)
    }

    /// Whether this group has a complete checkpoint that arrived later, and was written at the same time or later. In
    /// this case the agents were informed, and do not wait for this checkpoint.
    fn is_overtaken(&self, key: &Key, gather: &Gather) -> bool {
        let is_later = |other: &Gather| other.serial > gather.serial && other.written_ns() >= gather.written_ns();
        (self.gathers.iter())
            .any(|(other, later)| (&other.job, other.group) == (&key.job, key.group) && later.exists && is_later(later))
    }

    /// Whether ranks are missing, and either a rank has announced its files or no later checkpoint is complete.
    fn is_given_up(&self, key: &Key, gather: &Gather) -> bool {
        let is_held = !gather.announced.is_empty();
        matches!(gather.phase, Phase::Gathering { .. }) && (is_held || !self.is_overtaken(key, gather))
    }

    /// Whether all ranks of the checkpoint had announced their files, the checkpoint was abandoned because the store
    /// failed or a newer incarnation had begun, and no later checkpoint is complete.
    fn is_lost(&self, key: &Key, gather: &Gather, reason: &Reason) -> bool {
        let is_loss = matches!(reason, Reason::Store(_) | Reason::Lost(..) | Reason::Crowded | Reason::Fenced(_));
        is_loss && !self.is_overtaken(key, gather)
    }

    /// Ends the hub if a drain was requested and no further work is expected. Abandons the groups that are not
    /// committed, and reports them.
    pub(super) async fn end_if_drained(&mut self) -> bool {
        if self.draining.as_ref().is_none_or(|draining| self.verdict(draining) != Verdict::End) {
            return false;
        }
        let Some(draining) = self.draining.take() else { return false };
        // A mark that a checkpoint is not whole must be in the store before the process ends.
        self.own_threads.end_within(Duration::from_millis(draining.until_ms.saturating_sub(self.now_ms()))).await;
        for agent in self.agents.values().filter(|agent| !agent.looked) {
            tracing::warn!(
                node = agent.link.node,
                job = %agent.job,
                "the agent did not report in time whether there is more to commit"
            );
        }
        let mut uncommitted = Vec::new();
        for (key, gather) in &self.gathers {
            let (missing, why) = match &gather.phase {
                Phase::Gathering { missing, failed, .. } if self.is_given_up(key, gather) => {
                    (missing.iter().copied().collect(), why_missing(failed))
                }
                Phase::Flushing { .. } => (Vec::new(), "its flush did not end in time".to_owned()),
                Phase::Waiting { .. } => (Vec::new(), gather.problem.clone()),
                Phase::Committed(id)
                    if !gather.exists && !gather.untold.is_empty() && !self.is_overtaken(key, gather) =>
                {
                    (Vec::new(), format!("committed as {id}, but not every group of the checkpoint is committed"))
                }
                Phase::Abandoned(reason) if gather.given_up_while_draining || self.is_lost(key, gather, reason) => {
                    match reason {
                        Reason::Missing(ranks) => (ranks.iter().copied().collect(), why_missing(&Failed::default())),
                        Reason::Lost(failed, ranks) => (ranks.iter().copied().collect(), why_missing(failed)),
                        reason => (Vec::new(), reason.to_string()),
                    }
                }
                Phase::Gathering { .. } | Phase::Committed(_) | Phase::Abandoned(_) => continue,
            };
            let (job, checkpoint, group) = (key.job.clone(), key.label.clone(), key.group);
            uncommitted.push(Uncommitted { job, checkpoint, group, missing, why });
        }
        for key in self.gathers.keys().cloned().collect::<Vec<_>>() {
            self.step(&key, Event::Shutdown);
        }
        let _ = draining.done.send(uncommitted);
        true
    }

    /// Checks on a new thread which committed checkpoints have become complete.
    pub(super) fn start_look(&mut self) {
        if self.looking {
            return;
        }
        let now_ms = self.now_ms();
        let hurry = self.draining.is_some() || self.agents.values().any(|agent| agent.leaving_ms.is_some());
        let mut due: BTreeMap<(JobId, CheckpointId), (GroupOf, Vec<Key>)> = BTreeMap::new();
        for (key, gather) in &mut self.gathers {
            let (Phase::Committed(id), Some(container)) = (&gather.phase, gather.container) else { continue };
            if !gather.untold.is_empty() && now_ms >= gather.look.0 {
                let longest_ms = if hurry { LOOK_LEAVING_MS } else { LOOK_LONGEST_MS };
                gather.look = (now_ms + gather.look.1, (gather.look.1 * 2).min(longest_ms));
                gather.looked_ms = Some(now_ms);
                let (job, checkpoint, groups) = (key.job.clone(), id.clone(), gather.grouping.groups());
                let of =
                    GroupOf { job: job.clone(), checkpoint: checkpoint.clone(), groups, group: key.group, container };
                due.entry((job, checkpoint)).or_insert((of, Vec::new())).1.push(key.clone());
            }
        }
        if due.is_empty() {
            return;
        }
        let (store, shared, events) = (Arc::clone(&self.store), Arc::clone(&self.shared), self.events.clone());
        let look = move || {
            let exists = |of: &GroupOf| unpanicked(|| Ok(shared.completes.became(&*store, of))).unwrap_or(false);
            let exist = due.into_values().filter(|(of, _)| exists(of)).flat_map(|(_, keys)| keys).collect();
            // Sending fails only if the hub has ended.
            let _ = events.blocking_send(HubEvent::Exist(exist));
        };
        self.looking = std::thread::Builder::new().name("look".into()).spawn(look).is_ok();
    }

    /// Handles a checkpoint whose last group was committed by this aggregator. The groups of the checkpoint need no
    /// further check in the store.
    pub(super) fn exist_with(&mut self, job: &JobId, id: &CheckpointId) {
        let is_of_it = |gather: &Gather| matches!(&gather.phase, Phase::Committed(of) if of == id);
        let others = self.gathers.iter().filter(|(key, gather)| key.job == *job && is_of_it(gather));
        for key in others.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.exist(&key);
        }
    }

    /// Informs the agents of a group that all groups of the checkpoint are committed.
    pub(super) fn exist(&mut self, key: &Key) {
        let Some(gather) = self.gathers.get_mut(key) else { return };
        let Phase::Committed(id) = &gather.phase else { return };
        gather.exists = true;
        self.history.complete(&key.job, id);
        tracing::debug!(
            job = %key.job,
            checkpoint = %id,
            group = key.group.0,
            "all groups of the checkpoint are committed"
        );
        for (rank, (node, announce_id)) in std::mem::take(&mut gather.untold) {
            let told = v1::Committed {
                label: key.label.to_string(),
                rank: rank.0,
                checkpoint: id.to_string(),
                all_groups: true,
                announce_id,
            };
            // The agent may have a new session, so the agents are selected by their node.
            for agent in self.agents.values().filter(|agent| agent.job == key.job && agent.link.node == node) {
                agent.link.send(v1::to_agent::Message::Committed(told.clone()));
            }
        }
    }
}

/// Why ranks are missing at the end. If the store failed before, this failure is the cause.
fn why_missing(failed: &Failed) -> String {
    match failed.attempts {
        0 => "ranks are missing".to_owned(),
        _ => format!("{failed}; then ranks were lost"),
    }
}
