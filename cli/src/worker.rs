//! `mcr worker`: saves one job on one node, as the job's user. `mcr node` starts this process.

use crate::advice::message_of;
use crate::args::WorkerArgs;
use crate::cert::own_certificates;
use crate::config::ConfigFile;
use crate::daemon::{Aggregators, LOOPBACK, Life, run_worker};
use crate::exit::Exit;
use crate::gates::Wish;
use crate::is_configuration;
use crate::logging::start_logging_and_counting;
use crate::metrics::Metrics;
use crate::orphan::Watch;
use crate::output::print;
use crate::placement::Placement;
use crate::reporter::Reporter;
use crate::settings::{Facts, JobComment, Settings, USER_FILE, gate_options};
use crate::standing;
use anyhow::{Context, bail};
use mcr_cnc::settle::NodeRanks;
use mcr_node::client::{SOCKET, ask};
use mcr_node::comment::Comment;
use mcr_node::protocol::Request;
use mcr_node::record::{Record, Records};
use mcr_node::{environment, user};
use mcr_proto::tls::needs_tls;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of the checks for running processes of the job.
const PROCESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for the first process of the job.
const PROCESS_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Value of oom_score_adj. If no memory is free, the kernel first kills processes with a high value. A worker is less
/// important than its job.
const OOM_SCORE_ADJUSTMENT: &str = "500";
/// The worker runs with a lower priority than the job.
const NICE: i32 = 10;
/// Maximum time to wait until the daemon has noted why this process will end.
const REPORT_MAX: Duration = Duration::from_secs(2);
/// Maximum time in seconds between two attempts of an agent to connect to an aggregator of its job.
const RECONNECT_MAX_SECONDS: u64 = 2;

pub fn run(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let metrics = start_logging_and_counting(false);
    if let Some(uid) = args.certificates {
        return print_certificates(uid);
    }
    let path = args.record.context("the record of the job is not named")?;
    let ended = save_recorded(&path, metrics);
    if let Err(error) = &ended {
        report_failure(&path, error);
    }
    ended
}

/// Becomes the user of the job whose record is at `path`, and saves the job.
fn save_recorded(path: &Path, metrics: Arc<Metrics>) -> anyhow::Result<ExitCode> {
    let record = Records::read(path).with_context(|| path.display().to_string())?;
    let facts = &record.facts;
    let user = user::become_user(facts.uid).with_context(|| format!("becoming user {}", facts.uid))?;
    // If these two calls fail, the job is saved nevertheless.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT);
    let _ = rustix::process::nice(NICE);
    // This thread must not start before this process has become a process of the user.
    let reporter = Reporter::start(metrics, socket_of(path));
    let ended = match &record.standing {
        Some(standing) => standing::run(standing, &user),
        None => save(path, &record, user),
    };
    reporter.end();
    ended
}

/// Reports to the daemon why this process will end, so that `mcr job list` shows it. An older daemon refuses this.
fn report_failure(record: &Path, error: &anyhow::Error) {
    let why = message_of(error);
    // If the daemon does not answer, its log still has the error.
    let _ = ask(&socket_of(record), &Request::Failed { why }, REPORT_MAX);
}

/// Saves the job until it is over. `path`: the path of the record.
fn save(path: &Path, record: &Record, user: nix::unistd::User) -> anyhow::Result<ExitCode> {
    let facts = &record.facts;
    let work_dir = PathBuf::from(&facts.work_dir);
    if let Err(error) = std::env::set_current_dir(&work_dir) {
        tracing::error!(job_id = facts.job_id, work_dir = %work_dir.display(), %error, "the job is not saved");
        report_failure(path, &anyhow::Error::new(error).context(work_dir.display().to_string()));
        return Ok(Exit::Configuration.into());
    }
    let not_saved = |error: anyhow::Error| {
        tracing::error!(job_id = facts.job_id, error = format!("{error:#}"), "the job is not saved");
        report_failure(path, &error);
        let exit = Exit::of_error(&error);
        // If a worker ends with this status, the daemon does not start it again.
        Ok(if exit == Exit::Failed { Exit::Configuration } else { exit }.into())
    };
    match JobComment::parse(&facts.comment) {
        Ok(JobComment { is_off: true, .. }) => {
            tracing::info!(job_id = facts.job_id, "the job is not saved: its --comment has mcr:off");
            return Ok(ExitCode::SUCCESS);
        }
        Ok(_) => {}
        Err(error) => return not_saved(error),
    }
    if facts.comment.is_empty() && !Path::new(USER_FILE).exists() {
        tracing::info!(
            job_id = facts.job_id,
            "the job is not saved: its work directory has no file {USER_FILE}, and its --comment has no word mcr:..."
        );
        return Ok(ExitCode::SUCCESS);
    }
    let Some(variables) = variables_of_job(record, &user) else {
        tracing::info!(job_id = facts.job_id, "the job is not saved: it started no process");
        return Ok(ExitCode::SUCCESS);
    };
    let life = if record.is_over {
        Life::Over
    } else {
        Life::OfJob(Watch { socket: socket_of(path), job_id: facts.job_id.clone() })
    };
    match resolve(record, variables.clone(), user.name, &work_dir) {
        Ok((file, place)) => match run_worker(file, &|name| variables.get(name).cloned(), life, place) {
            Err(error) if Exit::of_error(&error) != Exit::Failed || is_configuration(&error) => not_saved(error),
            ended => ended,
        },
        Err(error) => not_saved(error),
    }
}

/// Prints the certificates of a user, or one line with the reason why the certificates cannot be used. `mcr node`
/// reads the output.
fn print_certificates(uid: u32) -> anyhow::Result<ExitCode> {
    let read = user::become_user(uid).map_err(anyhow::Error::from).and_then(|_| own_certificates());
    match read {
        Ok(text) => print(&text).map(|()| ExitCode::SUCCESS),
        Err(error) => print(&format!("{error:#}\n")).map(|()| Exit::Failed.into()),
    }
}

/// The socket of the daemon. `record` is the path of a record, `RUN/jobs/ID.json`.
fn socket_of(record: &Path) -> PathBuf {
    record.ancestors().nth(2).unwrap_or(Path::new("/")).join(SOCKET)
}

/// The environment of the job's processes. If the job is over and has no process, only the variables that Prolog
/// knew. `None` if the job started no process in [`PROCESS_WAIT_MAX`]. SIGUSR1 ends this process while it waits, and
/// `mcr node` then starts another worker that knows that the job is over.
fn variables_of_job(record: &Record, user: &nix::unistd::User) -> Option<BTreeMap<String, String>> {
    let facts = &record.facts;
    let began = Instant::now();
    // All nodes of a job must use the same number of ranks. The environment of a batch script may not contain this
    // number.
    let is_enough = |variables: &BTreeMap<String, String>| {
        facts.nodes <= 1 || facts.tasks.is_some() || variables.contains_key("SLURM_NTASKS")
    };
    let mut variables = loop {
        match environment::of_job(&facts.job_id) {
            Some(variables) if record.is_over || is_enough(&variables) => break variables,
            Some(_) if began.elapsed() > PROCESS_WAIT_MAX => return None,
            Some(_) => std::thread::sleep(PROCESS_CHECK_INTERVAL),
            None if record.is_over => break BTreeMap::new(),
            None if began.elapsed() > PROCESS_WAIT_MAX => return None,
            None => std::thread::sleep(PROCESS_CHECK_INTERVAL),
        }
    };
    let home = user.dir.to_string_lossy().into_owned();
    for (name, value) in [("SLURM_JOB_ID", &facts.job_id), ("SLURMD_NODENAME", &facts.node), ("HOME", &home)] {
        variables.insert(name.to_owned(), value.clone());
    }
    if let Some(tasks) = facts.tasks {
        variables.entry("SLURM_JOB_NTASKS".to_owned()).or_insert_with(|| tasks.to_string());
        // A step may have fewer tasks than the job.
        if facts.nodes > 1 {
            variables.insert("SLURM_NTASKS".to_owned(), tasks.to_string());
        }
    }
    if facts.restart_count > 0 {
        variables.insert("SLURM_RESTART_COUNT".to_owned(), facts.restart_count.to_string());
    }
    Some(variables)
}

/// The options of the job's agent and aggregator, and where the aggregators are.
fn resolve(
    record: &Record,
    variables: BTreeMap<String, String>,
    user: String,
    work_dir: &Path,
) -> anyhow::Result<(ConfigFile, Aggregators)> {
    let job = &record.facts;
    let mut facts = Facts::of_job(variables, user, job.uid, work_dir);
    if !job.comment.is_empty() {
        let (words, work_dir) = (job.comment.clone(), job.work_dir.clone());
        facts.comment = Some(Comment { uid: job.uid, words, work_dir });
    }
    let Some(settings) = Settings::find(&facts)? else { bail!("{USER_FILE} was removed") };
    let mut file = settings.checked()?;
    file.anc.create |= settings.may_create_store();
    let options = settings.node_options()?;
    let placement = Placement::of(job, &options)?;
    let of_node = |placement: &Placement| {
        let (job_id, node) = (job.job_id.clone(), job.node.clone());
        NodeRanks::new(placement.index, placement.nodes, move || environment::ranks_of(&job_id, &node))
    };
    if !options.gates.is_empty() && file.cnc.aggregators.is_empty() {
        let wish = Wish {
            gates: options.gates.clone(),
            options: gate_options()?,
            nodes: job.nodes.max(1),
            aggregators: options.aggregators,
            budget_bytes: file.anc.check()?.budget_bytes,
            settings: settings.for_gate(),
        };
        file.cnc.reconnect_max_seconds = file.cnc.reconnect_max_seconds.min(RECONNECT_MAX_SECONDS);
        return Ok((file, Aggregators::Gates { wish, ranks: placement.as_ref().map(of_node) }));
    }
    let aggregators = match placement {
        placement if !file.cnc.aggregators.is_empty() => {
            Aggregators::Standing { ranks: placement.as_ref().map(of_node) }
        }
        None => Aggregators::Here { by_socket: !needs_tls(LOOPBACK) },
        Some(placement) => {
            file.anc.listen = format!("0.0.0.0:{}", options.ports);
            // The aggregator on another node may start a few seconds later than this agent.
            file.cnc.reconnect_max_seconds = file.cnc.reconnect_max_seconds.min(RECONNECT_MAX_SECONDS);
            let ranks = of_node(&placement);
            Aggregators::InJob { placement, ranks }
        }
    };
    Ok((file, aggregators))
}
