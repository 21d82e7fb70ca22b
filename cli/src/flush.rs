//! `mcr flush`: waits until all files written so far are committed.

use crate::advice::Advised;
use crate::args::FlushArgs;
use crate::cert::security;
use crate::config::{ConfigFile, JOB_MISSING, aggregator_socket_of};
use crate::exit::NOT_COMMITTED;
use crate::found::rank_list;
use crate::output::{print, print_json};
use crate::settings::Settings;
use crate::uncommitted::advice_for_space;
use mcr_cnc::control::{CLIENT_PATIENCE, Reply, ask_for_aggregators, ask_to_flush, socket_of};
use mcr_cnc::dial::dial_address;
use mcr_proto::unix::connect;
use mcr_proto::v1::StatusRequest;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum time to ask an aggregator why ranks are not committed.
const STATUS_MAX: Duration = Duration::from_secs(2);

pub fn run(args: FlushArgs) -> anyhow::Result<ExitCode> {
    let states = state_files(&args)?;
    let timeout = Duration::from_secs(args.timeout);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let replies = runtime.block_on(async {
        let asked: Vec<_> = states.iter().cloned().map(|state| tokio::spawn(ask(state, timeout))).collect();
        let mut replies = Vec::new();
        for reply in asked {
            let failed = |error: tokio::task::JoinError| Err(NoReply { why: error.to_string(), runs: false });
            replies.push(reply.await.unwrap_or_else(failed));
        }
        replies
    });
    let (mut all_reached, mut all_committed) = (true, true);
    let mut lines = Vec::new();
    for (state, reply) in states.iter().zip(replies) {
        match reply {
            Ok(reply) => {
                all_committed &= is_all_committed(&reply);
                match args.json {
                    true => lines.push(serde_json::json!({ "state": state.display().to_string(), "reply": reply })),
                    false => print(&text_of(&reply))?,
                }
            }
            Err(NoReply { why: error, runs }) => {
                all_reached &= runs;
                all_committed = false;
                match args.json {
                    true => lines.push(serde_json::json!({ "state": state.display().to_string(), "error": error })),
                    false => eprintln!("mcr: {error}"),
                }
            }
        }
    }
    if args.json {
        print_json(&serde_json::json!({ "agents": lines }))?;
    }
    Ok(match (all_reached, all_committed) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(NOT_COMMITTED),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The agent of an `mcr run` starts when the first files of the application show the layout, which takes some seconds.
/// A flush waits at most for this time, because some names show the layout only after the next checkpoint, which the
/// application may begin only after the flush.
const AGENT_STARTS: Duration = Duration::from_secs(10);
/// Interval at which an agent that has not started is asked.
const AGAIN: Duration = Duration::from_millis(200);

/// An agent that did not do what was asked.
struct NoReply {
    why: String,
    /// Whether the `mcr run` of the agent is running.
    runs: bool,
}

async fn ask(state: PathBuf, timeout: Duration) -> Result<Reply, NoReply> {
    let socket = socket_of(&state);
    let socket = socket.display();
    let begun = Instant::now();
    let (error, runs) = loop {
        let error = match ask_to_flush(&state, timeout.saturating_sub(begun.elapsed())).await {
            Ok(mut reply) if reply.refused.is_empty() => {
                add_reasons(&state, &mut reply).await;
                return Ok(reply);
            }
            Ok(reply) => return Err(NoReply { why: format!("{socket}: {}", reply.refused), runs: false }),
            Err(error) => error,
        };
        // The aggregator of an `mcr run` starts before the agent, and ends after the agent.
        let runs = connect(&aggregator_socket_of(&state)).await.is_ok();
        let is_absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        if !runs || !is_absent || begun.elapsed() >= timeout.min(AGENT_STARTS) {
            break (error, runs);
        }
        tokio::time::sleep(AGAIN).await;
    };
    let why = match runs {
        true => format!(
            "{socket}: mcr run is running, but its agent does not answer ({error}): the agent waits for files whose \
             names show the layout, or it has ended. Files that were written may not be committed"
        ),
        false if error.kind() == ErrorKind::TimedOut => format!(
            "{socket}: an agent is there, but gave no answer within {} s: its process may be stopped, or its node is \
             very busy; it is not known what is committed",
            timeout.as_secs() + CLIENT_PATIENCE.as_secs()
        ),
        false => format!(
            "{socket}: no agent answers there: {error}. Either it does not run on this node with this state file, or \
             it waits for files whose names show the layout, as its log says"
        ),
    };
    Err(NoReply { why, runs })
}

/// Adds to the ranks that are not committed what the aggregators know: for which ranks they wait, or that the store
/// fails. Nothing is added if an aggregator does not answer.
async fn add_reasons(state: &Path, reply: &mut Reply) {
    if reply.uncommitted.is_empty() {
        return;
    }
    let Ok(addresses) = ask_for_aggregators(state).await else { return };
    for address in addresses {
        let asked = async {
            let security = security(None, std::slice::from_ref(&address)).ok()?;
            let mut client = dial_address(&address, &security).await.ok()?;
            client.status(StatusRequest {}).await.ok()
        };
        let Ok(Some(status)) = tokio::time::timeout(STATUS_MAX, asked).await else { continue };
        for group in status.into_inner().checkpoints {
            for part in reply.uncommitted.iter_mut().filter(|part| part.checkpoint == group.label) {
                match group.phase.as_str() {
                    "gathering" if !group.missing.is_empty() => {
                        part.why.push_str(&format!(": it waits for {}", rank_list(&group.missing)));
                    }
                    "waiting" if !group.reason.is_empty() => {
                        part.why.push_str(&format!(": {}{}", group.reason, advice_for_space(&group.reason)));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn is_all_committed(reply: &Reply) -> bool {
    reply.uncommitted.is_empty() && reply.unreadable.is_empty() && reply.unplaced.is_none()
}

fn text_of(reply: &Reply) -> String {
    let mut text = String::new();
    for part in &reply.committed {
        text.push_str(&format!("committed {} ranks {}\n", shown(&part.checkpoint), part.ranks));
    }
    for part in &reply.uncommitted {
        let (checkpoint, why) = (shown(&part.checkpoint), shown(&part.why));
        text.push_str(&format!("NOT committed {checkpoint} ranks {}: {why}\n", part.ranks));
    }
    for directory in &reply.unreadable {
        text.push_str(&format!(
            "NOT committed: {} cannot be read: {}\n",
            shown(&directory.path),
            shown(&directory.why)
        ));
    }
    if let Some(left) = &reply.unplaced {
        text.push_str(&format!(
            "NOT committed: {} of {} files belong to no checkpoint of the layout (first: {}); name the layout with \
             --layout, or layout in the configuration, or save them with mcr save\n",
            left.files,
            left.of,
            shown(&left.first)
        ));
    }
    if let Some(left) = &reply.unnamed {
        text.push_str(&format!(
            "{} of {} files belong to no checkpoint of the layout and are not saved (first: {})\n",
            left.files,
            left.of,
            shown(&left.first)
        ));
    }
    text.push_str(match (is_all_committed(reply), reply.time_was_up) {
        (true, _) => "everything that was written is committed\n",
        (false, false) => "not everything that was written is committed\n",
        (false, true) => "the time is up; not everything that was written is committed yet\n",
    });
    text
}

/// Replaces control characters, which a terminal would execute.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

fn state_files(args: &FlushArgs) -> anyhow::Result<Vec<PathBuf>> {
    if !args.state.is_empty() {
        return Ok(args.state.clone());
    }
    let file = match &args.config {
        Some(config) => ConfigFile::load(config)?,
        None => match Settings::find_config()? {
            Some(found) => found,
            None if args.job.is_none() => return Err(Advised::new(JOB_MISSING.0, JOB_MISSING.1).into()),
            None => ConfigFile::default(),
        },
    };
    Ok(vec![file.state_file(args.job.clone())?])
}
