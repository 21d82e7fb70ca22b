//! `mcr job`: prints the settings of a job, and reports the begin and the end of a job from SLURM's Prolog and Epilog
//! to the daemon of the node.

use crate::advice::Advised;
use crate::args::{JobArgs, JobCommand};
use crate::node_socket::NodeSocket;
use crate::output::{Table, print, print_json, tell};
use crate::settings::{Facts, Setting, Settings};
use anyhow::{Context, bail};
use mcr_node::client::SOCKET;
use mcr_node::client::ask;
use mcr_node::comment::{Comment, words_of};
use mcr_node::facts::{JobFacts, job_id_of};
use mcr_node::protocol::{End, Reply, Request};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// Maximum time to wait for an answer that needs no work.
const ANSWER_MAX: Duration = Duration::from_secs(2);

pub fn run(args: JobArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        JobCommand::Show { comment, json } => show(comment, json)?,
        JobCommand::List { node, json } => list(&node, json)?,
        // If Prolog or Epilog fails, SLURM drains the node. So these commands always exit with 0.
        JobCommand::Begin { node, wait, json } => {
            report(json, begin(&node, Duration::from_secs(wait)), "the job is not saved")
        }
        JobCommand::End { node, wait, json } => {
            report(json, end(&node, Duration::from_secs(wait)), "the end of the job")
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The result of a command of Prolog or Epilog.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
struct Hooked {
    /// One word with hyphens.
    outcome: &'static str,
    /// Why a person should look. `None` if there is nothing to explain.
    reason: Option<String>,
}

impl Hooked {
    fn of(outcome: &'static str) -> Self {
        Self { outcome, reason: None }
    }
}

/// Tells the reason on standard error, and prints the result if JSON is wanted. `what`: the beginning of the line of an
/// error. If the result cannot be printed, the command succeeds nevertheless.
fn report(json: bool, result: anyhow::Result<Hooked>, what: &str) {
    let hooked =
        result.unwrap_or_else(|error| Hooked { outcome: "failed", reason: Some(format!("{what}: {error:#}")) });
    if let Some(reason) = &hooked.reason {
        tell(reason.clone());
    }
    if json {
        let _ = print_json(&hooked);
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn asked(node: &NodeSocket, request: &Request, most: Duration) -> anyhow::Result<Reply> {
    let socket = node.run_dir.join(SOCKET);
    let reply = ask(&socket, request, most).map_err(|error| {
        let what = format!("mcr node does not answer at {}: {error}", socket.display());
        Advised::new(what, "start mcr node on this node, or name the directory of its socket with --run-dir")
            .at(&socket)
    });
    match reply? {
        Reply::Refused(why) => bail!("{why}"),
        reply => Ok(reply),
    }
}

fn begin(node: &NodeSocket, wait: Duration) -> anyhow::Result<Hooked> {
    let facts = JobFacts::of_prolog(&variable)?;
    match asked(node, &Request::Begin(facts), wait)? {
        Reply::Begun { .. } => Ok(Hooked::of("begun")),
        other => bail!("mcr node answered {other:?}"),
    }
}

/// Reports the end of the job. The result has a reason if it is uncertain whether all files of the job are committed.
fn end(node: &NodeSocket, wait: Duration) -> anyhow::Result<Hooked> {
    let id = variable("SLURM_JOB_ID").context("SLURM_JOB_ID is not set; this command is for SLURM's Epilog")?;
    let job_id = job_id_of(id.to_string_lossy().into_owned())?;
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let request = Request::End { job_id: job_id.clone(), wait_ms };
    let with_reason = |outcome, reason| Hooked { outcome, reason: Some(reason) };
    Ok(match asked(node, &request, wait + ANSWER_MAX)? {
        Reply::Ended(End::NotSaved) => Hooked::of("not-saved"),
        Reply::Ended(End::GivenUp(why)) => {
            with_reason("not-saved", format!("job {job_id}: it was not saved until its end: {why}"))
        }
        Reply::Ended(End::Status(0)) => Hooked::of("committed"),
        Reply::Ended(End::Unknown) => Hooked::of("unknown"),
        Reply::Ended(End::Status(status)) => with_reason(
            "not-committed",
            format!(
                "job {job_id}: not all files are committed, or the newest checkpoint is doubtful (exit status {status}); \
             the log of mcr node names them"
            ),
        ),
        Reply::Ended(End::StillCommitting) => with_reason(
            "committing",
            format!("job {job_id}: files are still being committed after {} s; the worker goes on", wait.as_secs()),
        ),
        other => bail!("mcr node answered {other:?}"),
    })
}

fn list(node: &NodeSocket, json: bool) -> anyhow::Result<()> {
    let Reply::Jobs(jobs) = asked(node, &Request::Jobs, ANSWER_MAX)? else { bail!("mcr node answered something else") };
    if json {
        return print_json(&serde_json::json!({ "jobs": jobs }));
    }
    if jobs.is_empty() {
        return print("no job\n");
    }
    let mut table = Table::new(&["job", ">user", ">process", "~aggregators", "?~not saved any more, because"]);
    for job in jobs {
        let places = job.aggregators.map_or_else(|| "-".to_owned(), |places| places.to_string());
        let (pid, why) = match job.not_saved {
            None => (job.pid.to_string(), String::new()),
            Some(why) => ("-".to_owned(), why),
        };
        table.row([job.job_id, job.uid.to_string(), pid, places, why]);
    }
    table.print()
}

fn show(comment: Option<OsString>, json: bool) -> anyhow::Result<()> {
    let mut facts = Facts::of_this_process();
    if let Some(comment) = comment {
        let (uid, words, work_dir) = (nix::unistd::geteuid().as_raw(), words_of(&comment), facts.directory());
        facts.comment = (!words.is_empty()).then(|| Comment { uid, words, work_dir: work_dir.into() });
    }
    let Some(settings) = Settings::find(&facts)? else {
        let what = "there is no mcr.toml in this directory (or, within a SLURM job, in the directory of the job), and \
                    no /etc/mcr/mcr.toml";
        let way_out = "write mcr.toml in this directory, with the keys job, watch and store, or give --comment";
        return Err(Advised::new(what, way_out).into());
    };
    settings.checked()?;
    let places = settings.aggregator_places();
    let mut values = settings.by_key();
    values.insert("aggregator-places".to_owned(), &places);
    if json {
        let shown = |(key, setting): (String, &Setting)| {
            (key, serde_json::json!({ "value": setting.value, "from": setting.from }))
        };
        let values: serde_json::Map<_, _> = values.into_iter().map(shown).collect();
        return print_json(&serde_json::json!({ "settings": values }));
    }
    let mut table = Table::new(&["key", "~value", "~from"]);
    for (key, setting) in values {
        table.row([key, setting.value.to_string(), setting.from.clone()]);
    }
    table.print()
}
