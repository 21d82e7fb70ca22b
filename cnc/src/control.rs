//! The agent's control socket, in the same directory as its state file. `mcr flush` and `mcr status` use the socket to
//! reach the agent of this node.
//!
//! The control socket is the unix socket `STATE.sock` with mode 0600. The agent answers only its own user and root.
//! The client sends one line of JSON, `{"version":1,"flush":{"timeout_ms":600000}}` or
//! `{"version":1,"aggregators":true}`. The agent answers with one line, a [`Reply`], and closes the connection.

use crate::agent::{FlushRequest, Flushed, Look};
use crate::drain::RankRanges;
use crate::layout::Unplaced;
use crate::sessions::Sessions;
use mcr_proto::unix::{self, SocketFile};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// Version of the protocol on the socket.
pub const CONTROL_VERSION: u32 = 1;
/// Maximum length of a request, in bytes.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Maximum length of a reply, in bytes.
const REPLY_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of connected clients. Further clients are disconnected.
const CLIENTS_MAX: usize = 16;
/// Maximum time for a client to send its request, and maximum time for a client to receive the reply.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum timeout of a flush, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;

/// A request of a client.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The version of the protocol, [`CONTROL_VERSION`].
    pub version: u32,
    /// The order to wait until all files that were written so far are committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<FlushOrder>,
    /// Whether the client asks for the aggregators with which the agent has a session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aggregators: bool,
}

/// The parameters of a flush.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushOrder {
    /// Maximum time to wait, in milliseconds. At most one day.
    pub timeout_ms: u64,
}

/// The answer of an agent.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Why the agent refused the request. Empty if the agent did what was asked.
    pub refused: String,
    /// The addresses of the aggregators with which the agent has a session, if the client asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregators: Vec<String>,
    /// The ranks that were committed since the request, with the checkpoint's name in the store.
    pub committed: Vec<ReplyRanks>,
    /// The ranks that were written but not committed.
    pub uncommitted: Vec<ReplyRanks>,
    /// Directories that cannot be read. Files that are not committed may be in these directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<ReplyDirectory>,
    /// Whether the flush ended because its maximum time had passed.
    pub time_was_up: bool,
    /// Files that belong to no checkpoint, if a checkpoint may be among them: many files with a guessed layout, or all
    /// files with the layout of the configuration.
    pub unplaced: Option<ReplyFiles>,
    /// Other files that belong to no checkpoint and are not saved.
    #[serde(default)]
    pub unnamed: Option<ReplyFiles>,
}

/// A directory that cannot be read.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyDirectory {
    /// The directory.
    pub path: String,
    /// Why the directory cannot be read.
    pub why: String,
}

/// Files that belong to no checkpoint.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyFiles {
    /// The first of these files.
    pub first: String,
    /// Number of these files.
    pub files: usize,
    /// Number of all files.
    pub of: usize,
}

/// Some ranks of a checkpoint.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplyRanks {
    /// The checkpoint.
    pub checkpoint: String,
    /// The ranks, for example `0-31,40`.
    pub ranks: String,
    /// Why these ranks are not committed. Empty if these ranks are committed.
    pub why: String,
}

impl From<Flushed> for Reply {
    fn from(flushed: Flushed) -> Self {
        let ranks = |ranks: &[_]| RankRanges(ranks).to_string();
        let committed = flushed.committed.iter().map(|(checkpoint, of)| ReplyRanks {
            checkpoint: checkpoint.to_string(),
            ranks: ranks(of),
            why: String::new(),
        });
        let uncommitted = flushed.uncommitted.iter().map(|left| ReplyRanks {
            checkpoint: left.checkpoint.to_string(),
            ranks: ranks(&left.ranks),
            why: left.why.clone(),
        });
        let unreadable = flushed.unreadable.iter().map(|unreadable| ReplyDirectory {
            path: unreadable.path.display().to_string(),
            why: unreadable.why.clone(),
        });
        Self {
            refused: String::new(),
            aggregators: Vec::new(),
            committed: committed.collect(),
            uncommitted: uncommitted.collect(),
            unreadable: unreadable.collect(),
            time_was_up: flushed.time_was_up,
            unplaced: None,
            unnamed: None,
        }
    }
}

/// The parts of an agent that its control socket reaches.
#[derive(Clone)]
pub struct Reached {
    /// The channel that accepts flush requests.
    pub flushes: mpsc::Sender<FlushRequest>,
    /// The aggregators with which the agent has a session.
    pub sessions: Sessions,
    /// Lists the files that belong to no checkpoint. The listing may take long.
    pub look: Look,
}

/// Path of the socket of an agent with this state file.
pub fn socket_of(state_file: &Path) -> PathBuf {
    let mut name = state_file.as_os_str().to_owned();
    name.push(".sock");
    name.into()
}

/// The socket of a running agent. Dropping this value removes the socket.
#[derive(Debug)]
pub struct Control {
    task: tokio::task::JoinHandle<()>,
    _file: SocketFile,
}

impl Control {
    /// Listens on the socket of a state file, and passes requests to the agent. Must be called within a tokio
    /// runtime.
    pub fn listen(state_file: &Path, agent: Reached) -> io::Result<Self> {
        let path = socket_of(state_file);
        let (listener, file) = unix::listen(&path).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                let path = path.display();
                let what =
                    format!("{path}: another agent already uses this socket; give each agent its own state-file");
                io::Error::new(io::ErrorKind::AddrInUse, what)
            }
            _ => error,
        })?;
        Ok(Self { task: tokio::spawn(serve(listener, agent)), _file: file })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: UnixListener, agent: Reached) {
    let clients = Arc::new(tokio::sync::Semaphore::new(CLIENTS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "the control socket cannot accept a connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let Ok(room) = Arc::clone(&clients).try_acquire_owned() else { continue };
        let agent = agent.clone();
        tokio::spawn(async move {
            let _room = room;
            answer(stream, agent).await;
        });
    }
}

async fn answer(stream: UnixStream, agent: Reached) {
    if unix::check_peer(&stream).is_err() {
        return;
    }
    let (from, mut to) = stream.into_split();
    let (mut line, mut from) = (String::new(), BufReader::new(from.take(REQUEST_BYTES_MAX)));
    if !matches!(tokio::time::timeout(CLIENT_PATIENCE, from.read_line(&mut line)).await, Ok(Ok(_))) {
        return;
    }
    let reply = tokio::select! {
        reply = reply_to(&line, agent) => reply,
        // The client has closed the connection, so the answer is not needed.
        _ = from.read_u8() => return,
    };
    let Ok(mut text) = serde_json::to_string(&reply) else { return };
    text.push('\n');
    let _ = tokio::time::timeout(CLIENT_PATIENCE, to.write_all(text.as_bytes())).await;
}

async fn reply_to(line: &str, agent: Reached) -> Reply {
    let refuse = |why: String| Reply { refused: why, ..Reply::default() };
    let request: Request = match serde_json::from_str(line.trim_end()) {
        Ok(request) => request,
        Err(error) => return refuse(format!("the request does not parse: {error}")),
    };
    if request.version != CONTROL_VERSION {
        return refuse(format!(
            "the request has version {}, this agent supports {CONTROL_VERSION}: install one version everywhere",
            request.version
        ));
    }
    let Some(order) = request.flush else {
        let aggregators = if request.aggregators { agent.sessions.addresses() } else { Vec::new() };
        return Reply { aggregators, ..Reply::default() };
    };
    let timeout = Duration::from_millis(order.timeout_ms.min(TIMEOUT_MS_MAX));
    let (reply, flushed) = oneshot::channel();
    if agent.flushes.send(FlushRequest { timeout, reply }).await.is_err() {
        return refuse("the agent is ending".into());
    }
    let Ok(flushed) = flushed.await else {
        return refuse("the agent ended meanwhile; its last log lines list what it saved".into());
    };
    let left = tokio::task::spawn_blocking(move || (agent.look)()).await.ok().flatten();
    let are_many = left.as_ref().is_some_and(|left| left.are_many);
    let left = left.map(|Unplaced { first, files, of, .. }| ReplyFiles { first: first.to_string(), files, of });
    let (unplaced, unnamed) = if are_many { (left, None) } else { (None, left) };
    Reply { unplaced, unnamed, ..Reply::from(flushed) }
}

/// Asks the agent with this state file to flush.
pub async fn ask_to_flush(state_file: &Path, timeout: Duration) -> io::Result<Reply> {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).min(TIMEOUT_MS_MAX);
    let flush = Some(FlushOrder { timeout_ms });
    let request = Request { version: CONTROL_VERSION, flush, aggregators: false };
    ask(state_file, &request, Duration::from_millis(timeout_ms)).await
}

/// Asks the agent with this state file for the aggregators with which it has a session.
pub async fn ask_for_aggregators(state_file: &Path) -> io::Result<Vec<String>> {
    let request = Request { version: CONTROL_VERSION, flush: None, aggregators: true };
    let reply = ask(state_file, &request, Duration::ZERO).await?;
    match reply.refused.is_empty() {
        true => Ok(reply.aggregators),
        false => Err(io::Error::other(reply.refused)),
    }
}

async fn ask(state_file: &Path, request: &Request, wait: Duration) -> io::Result<Reply> {
    let stream = unix::connect(&socket_of(state_file)).await?;
    let (from, mut to) = stream.into_split();
    to.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes()).await?;
    let mut line = String::new();
    let mut from = BufReader::new(from.take(REPLY_BYTES_MAX));
    match tokio::time::timeout(wait + CLIENT_PATIENCE, from.read_line(&mut line)).await {
        Ok(read) => read?,
        Err(_) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the agent did not answer in time")),
    };
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent ended, or has too many clients"));
    }
    Ok(serde_json::from_str(line.trim_end())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn reached(flushes: mpsc::Sender<FlushRequest>, sessions: &Sessions) -> Reached {
        Reached { flushes, sessions: sessions.clone(), look: Arc::new(|| None) }
    }

    #[tokio::test]
    async fn requests_are_answered_over_a_socket_that_only_its_user_can_open() {
        let dir = tempfile::tempdir().expect("a directory");
        // This path is longer than the kernel allows for a socket.
        let state = dir.path().join("d".repeat(120)).join("state");
        let (flushes, mut asked) = mpsc::channel::<FlushRequest>(1);
        let sessions = Sessions::default();
        ["b:1", "a:1", "b:1"].iter().enumerate().for_each(|(link, address)| sessions.began(link, address));
        let control = Control::listen(&state, reached(flushes, &sessions)).expect("listens");
        let mode = std::fs::symlink_metadata(socket_of(&state)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let agent = tokio::spawn(async move {
            let request = asked.recv().await.expect("asked");
            let committed = vec![("a~2".parse().expect("valid"), vec![mcrengine::ids::Rank(3)])];
            request.reply.send(Flushed { committed, ..Flushed::default() }).expect("awaited");
            request.timeout
        });
        let reply = ask_to_flush(&state, Duration::from_secs(7)).await.expect("answered");
        let expected = ReplyRanks { checkpoint: "a~2".into(), ranks: "3".into(), why: String::new() };
        assert_eq!(reply, Reply { committed: vec![expected], ..Reply::default() });
        assert_eq!(agent.await.expect("ended"), Duration::from_secs(7));
        assert_eq!(ask_for_aggregators(&state).await.expect("answered"), ["b:1", "a:1"]);
        sessions.ended(1);
        assert_eq!(ask_for_aggregators(&state).await.expect("answered"), ["b:1"]);
        let (second, _) = mpsc::channel(1);
        let error = Control::listen(&state, reached(second, &sessions)).expect_err("taken").to_string();
        assert!(error.contains("state-file"), "{error}");
        drop(control);
        assert!(!socket_of(&state).exists(), "the socket is removed");
        assert!(ask_to_flush(&state, Duration::from_secs(1)).await.is_err());
    }

    #[tokio::test]
    async fn a_socket_that_a_killed_agent_left_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("state");
        drop(std::os::unix::net::UnixListener::bind(socket_of(&state)).expect("bound"));
        let (flushes, _asked) = mpsc::channel(1);
        Control::listen(&state, reached(flushes, &Sessions::default())).expect("listens");
    }
}
