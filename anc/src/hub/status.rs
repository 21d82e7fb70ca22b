//! The state of the hub, for `mcr status`.

use super::gather::Gather;
use super::{Hub, HubEvent};
use crate::group::{Key, Phase};
use mcr_proto::v1;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Asks a running hub for its state, without a connection.
#[derive(Clone, Debug)]
pub struct StatusAsker(mpsc::Sender<HubEvent>);

impl StatusAsker {
    /// Asks the hub that receives these events.
    pub fn new(hub: mpsc::Sender<HubEvent>) -> Self {
        Self(hub)
    }

    /// The state of the hub. `None` if the hub has ended.
    pub async fn ask(&self) -> Option<v1::StatusReply> {
        let (reply, status) = oneshot::channel();
        self.0.send(HubEvent::Status(reply)).await.ok()?;
        status.await.ok()
    }
}

impl Hub {
    pub(super) fn status(&self) -> v1::StatusReply {
        let mut newest: Vec<(&Key, &Gather)> = self.gathers.iter().collect();
        newest.sort_by_key(|(_, gather)| std::cmp::Reverse(gather.serial));
        v1::StatusReply {
            software: mcr_proto::SOFTWARE.into(),
            uptime_ms: self.now_ms(),
            store: self.store.root().display().to_string(),
            budget_bytes: self.budget.total_bytes(),
            leased_bytes: self.budget.leased_bytes(),
            queued_flushes: self.queue.len() as u32,
            running_flushes: self.running.len() as u32,
            flushes_max: self.options.flushes.max(1) as u32,
            waiting_announcements: self.budget.waiting() as u32,
            store_bytes_per_s: self.options.flush.meter.bytes_per_s().unwrap_or(0),
            jobs: self.history.jobs().collect(),
            agents: (self.agents.values())
                .map(|agent| v1::AgentStatus {
                    node: agent.link.node.clone(),
                    job: agent.job.to_string(),
                    connected_ms: agent.connected.elapsed().as_millis() as u64,
                    silent_ms: agent.link.silent_ms(),
                    ranks: agent.ranks.iter().take(1024).map(|rank| rank.0).collect(),
                    lost: false,
                    at_rest: agent.link.is_at_rest(),
                })
                .chain(self.history.lost_agents())
                .collect(),
            checkpoints: newest.into_iter().take(64).map(|(key, gather)| self.gather_status(key, gather)).collect(),
        }
    }

    fn gather_status(&self, key: &Key, gather: &Gather) -> v1::CheckpointStatus {
        let runs = self.running.contains(key);
        let (phase, reason, missing) = match &gather.phase {
            Phase::Gathering { missing, .. } => {
                ("gathering", String::new(), missing.iter().take(64).map(|r| r.0).collect())
            }
            Phase::Flushing { .. } => (if runs { "flushing" } else { "queued" }, String::new(), Vec::new()),
            Phase::Waiting { failed, .. } if failed.attempts > 0 => {
                let (times, why) = (failed.times(), &failed.why);
                ("waiting", format!("the flush failed {times} and will be tried again: {why}"), Vec::new())
            }
            Phase::Waiting { .. } => ("waiting", gather.problem.clone(), Vec::new()),
            Phase::Committed(id) => ("committed", id.to_string(), Vec::new()),
            Phase::Abandoned(reason) => ("abandoned", reason.to_string(), Vec::new()),
        };
        let progress = &gather.progress;
        let done = |so_far: &AtomicU64, whole: u64| if runs { so_far.load(Ordering::Relaxed) } else { whole };
        v1::CheckpointStatus {
            job: key.job.to_string(),
            label: key.label.to_string(),
            group: key.group.0,
            phase: phase.into(),
            reason,
            missing,
            raw_bytes: done(&progress.raw_bytes, gather.raw_bytes.0),
            stored_bytes: done(&progress.stored_bytes, gather.stored_bytes.0),
            age_ms: gather.since.elapsed().as_millis() as u64,
            flush_ms: if runs { progress.began.elapsed().as_millis() as u64 } else { gather.flush_ms },
            planned_bytes: done(&progress.planned_bytes, 0),
        }
    }
}
