//! The state of the hub, for `mcr status`.

use super::Hub;
use super::gather::Gather;
use crate::group::{Key, Phase};
use mcr_proto::v1;
use std::sync::atomic::{AtomicU64, Ordering};

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
            agents: (self.agents.values())
                .map(|agent| v1::AgentStatus {
                    node: agent.link.node.clone(),
                    job: agent.job.to_string(),
                    connected_ms: agent.connected.elapsed().as_millis() as u64,
                    silent_ms: agent.heard.elapsed().as_millis() as u64,
                    ranks: agent.ranks.iter().take(1024).map(|rank| rank.0).collect(),
                })
                .collect(),
            checkpoints: newest.into_iter().take(64).map(|(key, gather)| gather_status(key, gather)).collect(),
        }
    }
}

fn gather_status(key: &Key, gather: &Gather) -> v1::CheckpointStatus {
    let (phase, reason, missing) = match &gather.phase {
        Phase::Gathering { missing, .. } => {
            ("gathering", String::new(), missing.iter().take(64).map(|r| r.0).collect())
        }
        Phase::Flushing { .. } => ("flushing", String::new(), Vec::new()),
        Phase::Waiting { attempts, .. } => (
            "waiting",
            format!("the flush failed {attempts} times and will be tried again: {}", gather.problem),
            Vec::new(),
        ),
        Phase::Committed(id) => ("committed", id.to_string(), Vec::new()),
        Phase::Abandoned(reason) => ("abandoned", reason.to_string(), Vec::new()),
    };
    let flushing = matches!(gather.phase, Phase::Flushing { .. });
    let done = |so_far: &AtomicU64, whole: u64| if flushing { so_far.load(Ordering::Relaxed) } else { whole };
    v1::CheckpointStatus {
        job: key.job.to_string(),
        label: key.label.to_string(),
        group: key.group.0,
        phase: phase.into(),
        reason,
        missing,
        raw_bytes: done(&gather.progress.raw_bytes, gather.raw_bytes.0),
        stored_bytes: done(&gather.progress.stored_bytes, gather.stored_bytes.0),
        age_ms: gather.since.elapsed().as_millis() as u64,
        flush_ms: gather.flush_ms,
    }
}
