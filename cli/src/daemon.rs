//! `mcr cnc`, `mcr anc`, `mcr run`: load, build, run, drain.

use crate::args::{DaemonArgs, RunArgs};
use crate::common::layout_of;
use crate::config::ConfigFile;
use anyhow::Context;
use mcr_anc::Aggregator;
use mcr_anc::config::AncConfig;
use mcr_cnc::agent::Agent;
use mcr_cnc::config::CncConfig;
use mcr_cnc::layout::{Layout, ScanLimits, list};
use mcrengine::store::PosixStore;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Log lines go to standard error; MCR_LOG says which (`info` unless set).
fn start_logging(json: bool) {
    let filter = EnvFilter::try_from_env("MCR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // The second start of a test process changes nothing.
    let _ = if json { lines.json().try_init() } else { lines.with_ansi(false).try_init() };
}

pub fn run_cnc(args: DaemonArgs) -> anyhow::Result<ExitCode> {
    start_logging(args.log_json);
    let config = ConfigFile::load(&args.config)?.cnc.check()?;
    runtime(2)?.block_on(async {
        let layout = tokio::select! {
            layout = agent_layout(&config) => layout?,
            signal = wait_for_signal() => return signal.map(|()| ExitCode::SUCCESS),
        };
        let agent = Agent::start(config, layout)?;
        wait_for_signal().await?;
        agent.drain().await;
        Ok(ExitCode::SUCCESS)
    })
}

pub fn run_anc(args: DaemonArgs) -> anyhow::Result<ExitCode> {
    start_logging(args.log_json);
    let config = ConfigFile::load(&args.config)?.anc.check()?;
    runtime(2)?.block_on(async {
        let aggregator = start_aggregator(config).await?;
        wait_for_signal().await?;
        aggregator.drain().await;
        Ok(ExitCode::SUCCESS)
    })
}

pub fn run_both(args: RunArgs) -> anyhow::Result<ExitCode> {
    start_logging(args.log_json);
    let mut file = match &args.config {
        Some(config) => ConfigFile::load(config)?,
        None => ConfigFile::default(),
    };
    // Within one process they meet on a port that the system picks, unless one is asked for.
    file.anc.listen = args.listen.unwrap_or_else(|| "127.0.0.1:0".into());
    file.anc.store = args.store.unwrap_or(file.anc.store);
    file.anc.group_size = args.group_size.unwrap_or(file.anc.group_size);
    let keep = args.keep.rules();
    if !keep.is_empty() {
        file.anc.set_keep(&keep);
    }
    file.cnc.group_size = file.anc.group_size;
    file.cnc.watch = args.watch.or(file.cnc.watch);
    file.cnc.ranks = args.ranks.or(file.cnc.ranks);
    file.cnc.state_file = args.state.or(file.cnc.state_file);
    // What stands on the command line, or by it in the environment, has been chosen already.
    file.cnc.job = args.job.or(file.cnc.job);
    let environment =
        |name: &str| (name != "MCR_JOB").then(|| std::env::var(name).ok()).flatten().filter(|value| !value.is_empty());
    // The address is filled in once it is known; this one only passes the check.
    file.cnc.aggregators = vec!["127.0.0.1:7117".into()];
    let aggregator = file.anc.check()?;
    let mut agent = file.cnc.check_with(&environment)?;
    let asked = match args.layout.layout.is_empty() {
        true => None,
        false => Some(layout_of(&args.layout, || names_below(&agent.watch), false)?),
    };
    runtime(2)?.block_on(async {
        let aggregator = start_aggregator(aggregator).await?;
        agent.aggregators = vec![aggregator.address.to_string()];
        let layout = match asked {
            Some(layout) => layout,
            None => tokio::select! {
                layout = agent_layout(&agent) => layout?,
                signal = wait_for_signal() => return signal.map(|()| ExitCode::SUCCESS),
            },
        };
        let agent = Agent::start(agent, layout)?;
        wait_for_signal().await?;
        agent.drain().await;
        aggregator.drain().await;
        Ok(ExitCode::SUCCESS)
    })
}

async fn start_aggregator(config: AncConfig) -> anyhow::Result<Aggregator> {
    let store = PosixStore::create(&config.store)
        .with_context(|| format!("{}: cannot be used as a store", config.store.display()))?;
    let listen = config.listen;
    Aggregator::start(config, Arc::new(store)).await.with_context(|| format!("listening on {listen}"))
}

/// How often a directory that tells nothing yet is looked at again.
const GUESS_AGAIN: Duration = Duration::from_secs(2);

/// The configured layout, or a guess from what is there, once enough is there to guess from.
async fn agent_layout(config: &CncConfig) -> anyhow::Result<Layout> {
    let mut told = false;
    loop {
        let (layout, guessed) = config.layout.resolve(&config.watch, &ScanLimits::default())?;
        let Some(explanation) = guessed else { return Ok(layout) };
        if explanation.certain {
            for line in &explanation.lines {
                tracing::warn!(line, "no layout is configured; guessed from the names that are there");
            }
            return Ok(layout);
        }
        if !told {
            tracing::warn!(watch = %config.watch.display(), "no layout is configured, and the names that are there do not tell it yet");
            told = true;
        }
        tokio::time::sleep(GUESS_AGAIN).await;
    }
}

fn names_below(dir: &Path) -> anyhow::Result<(Vec<mcrengine::ids::FilePath>, std::path::PathBuf)> {
    let listing = list(dir, &ScanLimits::default())?;
    Ok((listing.files, dir.to_owned()))
}

/// Few threads: they only move frames and timers; files, codecs and the store have threads of their own.
fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(64)
        .enable_all()
        .build();
    runtime.context("no threads for the network")
}

async fn wait_for_signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let name = tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "shutting down");
    Ok(())
}
