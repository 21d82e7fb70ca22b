//! The JSON of `mcr status`.

use super::model::{Aggregator, Model};
use crate::output::json_word;
use mcr_proto::v1;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The whole object.
pub fn of_model(model: &Model, now: Instant) -> Value {
    let agents: Vec<Value> = (model.silent_agents.iter())
        .map(|agent| json!({ "job_id": agent.job_id, "path": agent.path, "error": agent.error }))
        .collect();
    let aggregators: Vec<Value> = model.aggregators.iter().map(|aggregator| of_aggregator(aggregator, now)).collect();
    json!({ "aggregators": aggregators, "silent_agents": agents })
}

fn of_aggregator(aggregator: &Aggregator, now: Instant) -> Value {
    let Some(answer) = aggregator.current() else {
        let error = aggregator.error.as_deref().unwrap_or("no answer yet");
        return json!({ "aggregator": aggregator.address, "error": error, "silent_ms": ms(aggregator.silent_for(now)) });
    };
    let status = &answer.status;
    json!({
        "aggregator": aggregator.address, "software": status.software, "uptime_ms": status.uptime_ms,
        "store": status.store, "silent_ms": ms(aggregator.silent_for(now)), "budget_bytes": status.budget_bytes,
        "leased_bytes": status.leased_bytes, "waiting_announcements": status.waiting_announcements,
        "running_flushes": status.running_flushes, "queued_flushes": status.queued_flushes,
        "flushes_max": status.flushes_max,
        "store_bytes_per_second": (status.store_bytes_per_s > 0).then_some(status.store_bytes_per_s),
        "agents": status.agents.iter().map(of_agent).collect::<Vec<_>>(),
        "checkpoints": status.checkpoints.iter().map(of_checkpoint).collect::<Vec<_>>(),
        "jobs": status.jobs.iter().map(of_job).collect::<Vec<_>>(),
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn of_agent(agent: &v1::AgentStatus) -> Value {
    json!({
        "node": agent.node, "job": agent.job, "connected_ms": agent.connected_ms, "silent_ms": agent.silent_ms,
        "ranks": agent.ranks, "lost": agent.lost, "at_rest": agent.at_rest,
    })
}

fn of_job(job: &v1::JobStatus) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let ago = |text: &str, ms: u64| (!text.is_empty()).then_some(ms);
    json!({
        "job": job.job, "committed_groups": job.committed_groups, "raw_bytes": job.raw_bytes,
        "stored_bytes": job.stored_bytes, "last_checkpoint": text(&job.last_checkpoint),
        "last_commit_ago_ms": ago(&job.last_checkpoint, job.last_commit_ago_ms), "last_error": text(&job.last_error),
        "last_error_ago_ms": ago(&job.last_error, job.last_error_ago_ms),
    })
}

fn of_checkpoint(c: &v1::CheckpointStatus) -> Value {
    // For a committed checkpoint, the field `reason` has its name in the store.
    let is_committed = c.phase == "committed" && !c.reason.is_empty();
    let checkpoint = if is_committed { &c.reason } else { &c.label };
    let reason = (!is_committed && !c.reason.is_empty()).then_some(&c.reason);
    json!({
        "job": c.job, "label": c.label, "checkpoint": checkpoint, "group": c.group, "phase": json_word(&c.phase),
        "reason": reason, "missing": c.missing, "raw_bytes": c.raw_bytes, "stored_bytes": c.stored_bytes,
        "planned_bytes": (c.planned_bytes > 0).then_some(c.planned_bytes), "age_ms": c.age_ms, "flush_ms": c.flush_ms,
    })
}
