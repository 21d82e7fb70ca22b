//! A process with the aggregator of a job that runs on other nodes. `mcr node` starts this process for the gate, as
//! the job's user.
//!
//! The aggregator serves one start of a job. The aggregator ends when the agents of all nodes of the job have left,
//! or when no agent was connected for [`GateOptions::idle_seconds`](crate::settings::GateOptions::idle_seconds).

use crate::cert::security;
use crate::daemon::{at_once, start_aggregator, within_runtime};
use crate::exit::{Exit, NOT_COMMITTED};
use crate::settings::{Facts, Settings, gate_options, may_create};
use crate::signals::Signals;
use crate::uncommitted::report_aggregator;
use anyhow::Context;
use mcr_anc::attendance::Attendance;
use mcr_anc::config::AncConfig;
use mcr_anc::hub::OfJob;
use mcr_node::protocol::Standing;
use nix::unistd::User;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two checks whether the aggregator is still needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The data with which the gate orders an aggregator. The gate sends these data as JSON in [`Standing::settings`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Order {
    /// Identity of the start of the job.
    pub identity: String,
    /// Number of nodes of the job.
    pub nodes: u32,
    /// The settings that the agent sent, see [`Settings::of_gate`].
    pub settings: String,
}

/// Runs the aggregator. The caller has already made this process a process of the user.
pub fn run(standing: &Standing, user: &User) -> anyhow::Result<ExitCode> {
    let not_started = |error: anyhow::Error| {
        tracing::error!(uid = standing.uid, error = format!("{error:#}"), "the aggregator is not started");
        let exit = Exit::of_error(&error);
        // After this exit status, `mcr node` does not start the aggregator again.
        Ok(if exit == Exit::Failed { Exit::Configuration } else { exit }.into())
    };
    let (config, idle_max) = match config(standing, user) {
        Ok(config) => config,
        Err(error) => return not_started(error),
    };
    match within_runtime(serve(config, idle_max)) {
        Err(error) => not_started(error),
        ended => ended,
    }
}

fn config(standing: &Standing, user: &User) -> anyhow::Result<(AncConfig, Duration)> {
    let order: Order = serde_json::from_str(&standing.settings).context("the order of the gate cannot be read")?;
    let options = gate_options()?;
    let facts = Facts::of_job(BTreeMap::new(), user.name.clone(), standing.uid, Path::new("/"));
    let mut anc = Settings::of_gate(&order.settings, &facts)?.anc;
    anc.listen = format!("0.0.0.0:{}", options.ports);
    anc.create |= may_create(&anc.store);
    let mut config = anc.check()?;
    config.security = security(Some(&config.listen), &[])?;
    config.hub.of_job = Some(OfJob { identity: order.identity, nodes: order.nodes as usize });
    Ok((config, Duration::from_secs(options.idle_seconds)))
}

async fn serve(config: AncConfig, idle_max: Duration) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let (bound, nodes) = (config.drain, config.hub.of_job.as_ref().map_or(1, |of_job| of_job.nodes));
    let aggregator = start_aggregator(config).await?;
    tokio::select! {
        () = signals.next() => {}
        why = over(&aggregator.attendance, nodes, idle_max) => tracing::info!(why, "the aggregator ends"),
    }
    let until = Instant::now() + bound;
    let Some(drained) = signals.unless_again(aggregator.drain(until)).await else { return Ok(at_once()) };
    Ok(if report_aggregator(&drained) { ExitCode::SUCCESS } else { ExitCode::from(NOT_COMMITTED) })
}

/// Waits until no agent needs the aggregator. Returns the reason.
async fn over(attendance: &Attendance, nodes: usize, idle_max: Duration) -> &'static str {
    let mut busy = Instant::now();
    loop {
        tokio::time::sleep(CHECK_INTERVAL.min(idle_max)).await;
        if attendance.sessions() > 0 {
            busy = Instant::now();
        } else if attendance.left() >= nodes {
            return "the agents of all nodes of the job have left";
        } else if busy.elapsed() >= idle_max {
            return "no agent was connected for too long";
        }
    }
}
