//! `mcr status`: asks aggregators which checkpoints they are saving, which are committed, and which problems they
//! have.

use crate::args::StatusArgs;
use crate::cert::security;
use crate::exit::Exit;
use crate::flush::state_file;
use crate::found::rank_list;
use crate::output::{Table, human_time, json_word, print, print_json};
use crate::settings::{Facts, Settings};
use anyhow::{Context, bail};
use mcr_cnc::control::{ask_for_aggregators, socket_of};
use mcr_cnc::serve::dial_address;
use mcr_proto::tls::{Security, explain};
use mcr_proto::v1;
use mcrengine::units::human_bytes;
use std::process::ExitCode;
use std::time::Duration;

pub fn run(mut args: StatusArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if args.aggregators.is_empty() {
        args.aggregators = runtime.block_on(aggregators_of_agent())?;
    }
    let security = security(None, &args.aggregators)?;
    let (mut silent, mut lines) = (Vec::new(), Vec::new());
    for address in &args.aggregators {
        match runtime.block_on(ask(address, &security)) {
            Ok(status) if args.json => lines.push(to_json(address, &status)),
            Ok(status) => print(&to_text(address, &status))?,
            Err(error) => {
                silent.push(address.as_str());
                lines.push(serde_json::json!({ "aggregator": address, "error": error }));
                if !args.json {
                    print(&format!("no answer from {address} ({})\n", last_cause(&error)))?;
                }
            }
        }
    }
    if args.json {
        print_json(&serde_json::json!({ "aggregators": lines }))?;
    }
    let (asked, silent_count) = (args.aggregators.len(), silent.len());
    let exit = Exit::of(asked - silent_count, silent_count > 0);
    if !args.json && asked > 1 && silent_count > 0 {
        let word = if exit == Exit::Partly { "PARTLY" } else { "FAILED" };
        let silent = silent.join(", ");
        print(&format!("{word}: {} of {asked} aggregators answered; no answer from {silent}\n", asked - silent_count))?;
    }
    Ok(exit.into())
}

/// The aggregators with which the agent of this job on this node has a session.
async fn aggregators_of_agent() -> anyhow::Result<Vec<String>> {
    let hint = "name the aggregators with --aggregators HOST:PORT";
    let Some(settings) = Settings::find(&Facts::of_this_process())? else {
        bail!("there is no mcr.toml in this directory: {hint}");
    };
    let state_file = state_file(settings.config_file()?, None)?;
    let socket = socket_of(&state_file);
    let asked = ask_for_aggregators(&state_file).await;
    let aggregators = asked.with_context(|| format!("{}: no agent answers there; {hint}", socket.display()))?;
    if aggregators.is_empty() {
        bail!("the agent on this node has no session with an aggregator; its log says why");
    }
    Ok(aggregators)
}

/// The last cause of an error, which is the most useful cause. For example, `transport error: tcp connect error:
/// Connection refused (os error 111)` becomes `Connection refused`.
fn last_cause(error: &str) -> String {
    let cause = error.rsplit(": ").next().unwrap_or(error);
    let cause = cause.split(" (os error").next().unwrap_or(cause);
    let mut letters = cause.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

async fn ask(address: &str, security: &Security) -> Result<v1::StatusReply, String> {
    let answer = async {
        let mut client = dial_address(address, security).await?;
        client
            .status(v1::StatusRequest {})
            .await
            .map(tonic::Response::into_inner)
            .map_err(|status| explain(&status).unwrap_or_else(|| status.message().to_owned()))
    };
    tokio::time::timeout(Duration::from_secs(10), answer).await.unwrap_or_else(|_| Err("no answer within 10 s".into()))
}

fn to_json(address: &str, status: &v1::StatusReply) -> serde_json::Value {
    let agents: Vec<_> = (status.agents.iter())
        .map(|a| serde_json::json!({ "node": a.node, "job": a.job, "connected_ms": a.connected_ms, "silent_ms": a.silent_ms, "ranks": a.ranks }))
        .collect();
    let checkpoints: Vec<_> = (status.checkpoints.iter())
        .map(|c| {
            // The reason of a committed checkpoint is its name in the store.
            let is_committed = c.phase == "committed" && !c.reason.is_empty();
            let checkpoint = if is_committed { &c.reason } else { &c.label };
            let reason = (!is_committed && !c.reason.is_empty()).then_some(&c.reason);
            serde_json::json!({
                "job": c.job, "label": c.label, "checkpoint": checkpoint, "group": c.group, "phase": json_word(&c.phase),
                "reason": reason, "missing": c.missing,
                "raw_bytes": c.raw_bytes, "stored_bytes": c.stored_bytes, "age_ms": c.age_ms, "flush_ms": c.flush_ms,
            })
        })
        .collect();
    serde_json::json!({
        "aggregator": address, "software": status.software, "uptime_ms": status.uptime_ms, "store": status.store,
        "budget_bytes": status.budget_bytes, "leased_bytes": status.leased_bytes, "agents": agents, "checkpoints": checkpoints,
    })
}

fn to_text(address: &str, status: &v1::StatusReply) -> String {
    let time = |ms: u64| human_time(Duration::from_millis(ms));
    let mut text = format!(
        "aggregator {address}: {}, up {}, store {}, {} of {} in flight\n",
        status.software,
        time(status.uptime_ms),
        status.store,
        human_bytes(status.leased_bytes),
        human_bytes(status.budget_bytes)
    );
    let mut agents = Table::new(&["~node", "~job", ">ranks", "?>connected", ">last heard"]);
    for agent in &status.agents {
        agents.row([
            agent.node.clone(),
            agent.job.clone(),
            agent.ranks.len().to_string(),
            time(agent.connected_ms),
            time(agent.silent_ms),
        ]);
    }
    let mut checkpoints =
        Table::new(&["job", "~checkpoint", ">group", "phase", "?>raw", "?>stored", "?>age", "?~what"]);
    for c in &status.checkpoints {
        let missing = || format!("waiting for {}", rank_list(&c.missing));
        // The reason of a committed checkpoint is only its name, so it is omitted.
        let reason = || if c.reason == c.label { String::new() } else { c.reason.clone() };
        let what = if c.missing.is_empty() { reason() } else { missing() };
        checkpoints.row([
            c.job.clone(),
            c.label.clone(),
            c.group.to_string(),
            c.phase.clone(),
            human_bytes(c.raw_bytes),
            human_bytes(c.stored_bytes),
            time(c.age_ms),
            what,
        ]);
    }
    match status.agents.is_empty() {
        true => text.push_str("no agent is connected\n"),
        false => text.push_str(&format!("\n{}", agents.render())),
    }
    if !status.checkpoints.is_empty() {
        text.push_str(&format!("\n{}", checkpoints.render()));
    }
    text
}
