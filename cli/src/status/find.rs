//! Finds the aggregators of the user's jobs.

use super::args::StatusArgs;
use super::model::SilentAgent;
use crate::advice::Advised;
use crate::config::aggregator_socket_of;
use crate::settings::{Facts, Settings, USER_FILE};
use mcr_cnc::control::{ask_for_aggregators, socket_of};
use mcr_node::client::{SOCKET, ask};
use mcr_node::protocol::{JobLine, Places, Reply, Request};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Maximum time to wait for the daemon of the node.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Maximum number of jobs of the user on this node whose agents are asked.
const JOBS_MAX: usize = 64;
const ADVICE: &str = "name the aggregators with --aggregators HOST:PORT";

/// The aggregators to ask.
#[derive(Debug, Default)]
pub struct Found {
    pub aggregators: Vec<String>,
    pub silent_agents: Vec<SilentAgent>,
}

/// Finds aggregators on the command line. If the command line names none, finds the aggregators of the user's jobs
/// that `mcr node` saves on this node. If there are no such jobs, finds the aggregators of the job in this directory.
/// The error says where aggregators were searched.
pub async fn find(args: &StatusArgs) -> anyhow::Result<Found> {
    if !args.aggregators.is_empty() {
        return Ok(Found { aggregators: args.aggregators.clone(), ..Found::default() });
    }
    let mut tried = Vec::new();
    let of_node = of_node(&args.node.run_dir, &mut tried).await;
    if !of_node.aggregators.is_empty() || !of_node.silent_agents.is_empty() {
        return Ok(of_node);
    }
    let of_settings = of_settings(&mut tried).await?;
    if of_settings.is_empty() {
        return Err(Advised::new(format!("no aggregator is known: {}", tried.join(", ")), ADVICE).into());
    }
    Ok(Found { aggregators: of_settings, ..Found::default() })
}

/// The aggregators of the user's own jobs on this node.
async fn of_node(run_dir: &Path, tried: &mut Vec<String>) -> Found {
    let socket = run_dir.join(SOCKET);
    let shown = socket.display().to_string();
    let asked = tokio::task::spawn_blocking(move || ask(&socket, &Request::Jobs, ANSWER_MAX)).await;
    let jobs = match asked {
        Ok(Ok(Reply::Jobs(jobs))) => jobs,
        Ok(Ok(_)) => return not_found(tried, format!("mcr node at {shown} gave no list of jobs")),
        Ok(Err(error)) => return not_found(tried, format!("mcr node does not answer at {shown} ({error})")),
        Err(error) => return not_found(tried, format!("mcr node at {shown} was not asked ({error})")),
    };
    let own = nix::unistd::geteuid().as_raw();
    // An administrator sees the jobs of all users, but their agents may be at any address that a user chose.
    let own: Vec<JobLine> = jobs.into_iter().filter(|job| job.uid == own).take(JOBS_MAX).collect();
    if own.is_empty() {
        return not_found(tried, format!("mcr node at {shown} saves no job of this user"));
    }
    let mut asked = tokio::task::JoinSet::new();
    own.into_iter().for_each(|job| drop(asked.spawn(of_job(job))));
    let (mut aggregators, mut silent_agents) = (BTreeSet::new(), Vec::new());
    while let Some(of_job) = asked.join_next().await {
        let Ok((addresses, silent)) = of_job else { continue };
        aggregators.extend(addresses);
        silent_agents.extend(silent);
    }
    silent_agents.sort_by(|a, b| a.job_id.cmp(&b.job_id));
    Found { aggregators: aggregators.into_iter().collect(), silent_agents }
}

fn not_found(tried: &mut Vec<String>, why: String) -> Found {
    tried.push(why);
    Found::default()
}

/// The aggregators of a job, which its agent names. If the agent does not answer, the configured aggregators are
/// used.
async fn of_job(job: JobLine) -> (Vec<String>, Option<SilentAgent>) {
    if let Some(why) = job.not_saved {
        let error = format!("the job is not saved any more: {why}");
        return (Vec::new(), Some(SilentAgent { job_id: job.job_id, path: String::new(), error, is_given_up: true }));
    }
    let (path, error) = match &job.state_file {
        None => (String::new(), "mcr node does not know the agent yet".to_owned()),
        Some(file) => match ask_for_aggregators(Path::new(&file.0)).await {
            Ok(aggregators) if !aggregators.is_empty() => return (aggregators, None),
            Ok(_) => (file.0.clone(), "the agent has no session with an aggregator; its log says why".to_owned()),
            Err(error) => (socket_of(Path::new(&file.0)).display().to_string(), error.to_string()),
        },
    };
    let configured = match job.aggregators {
        Some(Places::Configured(addresses)) => addresses,
        _ => Vec::new(),
    };
    (configured, Some(SilentAgent { job_id: job.job_id, path, error, is_given_up: false }))
}

/// The aggregators in the settings of the job in this directory. If the settings name none, the job's agent on this
/// node is asked.
async fn of_settings(tried: &mut Vec<String>) -> anyhow::Result<Vec<String>> {
    let Some(settings) = Settings::find(&Facts::of_this_process())? else {
        tried.push(format!("there is no {USER_FILE} in this directory"));
        return Ok(Vec::new());
    };
    let configured = settings.texts("cnc", "aggregators");
    if !configured.is_empty() {
        return Ok(configured.into_iter().map(str::to_owned).collect());
    }
    tried.push("the settings of the job name no aggregators".to_owned());
    let state_file = match settings.config_file()?.state_file(None) {
        Ok(state_file) => state_file,
        Err(error) => {
            tried.push(format!("the agent of the job is not known ({error:#})"));
            return Ok(Vec::new());
        }
    };
    let own = aggregator_socket_of(&state_file);
    if own.exists() {
        return Ok(vec![mcr_proto::unix::address_of(&own)]);
    }
    let socket = socket_of(&state_file);
    match ask_for_aggregators(&state_file).await {
        Ok(aggregators) if aggregators.is_empty() => {
            tried
                .push(format!("the agent at {} has no session with an aggregator; its log says why", socket.display()));
            Ok(Vec::new())
        }
        Ok(aggregators) => Ok(aggregators),
        Err(error) => {
            tried.push(format!("no agent answers at {} ({error})", socket.display()));
            Ok(Vec::new())
        }
    }
}
