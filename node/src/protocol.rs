//! The protocol over the Unix socket: one request and one reply, each a line of JSON.

use crate::comment::Comment;
use crate::facts::JobFacts;
use crate::metrics::{Page, Report};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

/// Maximum length of a line, in bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 10;

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// A job begins on this node. Only root may send this request, or with `--own` only the daemon's own user.
    Begin(JobFacts),
    /// A job is over: its processes have ended. Only root may send this request, or with `--own` only the daemon's
    /// own user.
    End {
        /// The number of the job.
        job_id: String,
        /// Maximum time to wait until the job's files are committed, in milliseconds.
        wait_ms: u64,
    },
    /// Asks which jobs are saved. The reply contains only the user's own jobs.
    Jobs,
    /// Where the aggregators of a job run, for [`Reply::Jobs`]. The worker of the job sends this request.
    Places {
        /// The number of the job.
        job_id: String,
        /// Where the aggregators run.
        places: Places,
        /// The state file of the job's agent. `mcr status` asks the agent at the socket next to this file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state_file: Option<StateFile>,
    },
    /// The words for `mcr` in the comment of a job. A user sees only the words of the user's own jobs.
    Comment {
        /// The number of the job.
        job_id: String,
    },
    /// Starts the aggregator of a job that runs on other nodes, if the aggregator does not run. This request and the
    /// two requests below are permitted only to the gate, and to root or, with `--own`, to the daemon's own user.
    Stand(Standing),
    /// Asks for the running aggregators of jobs on other nodes.
    Standing,
    /// Asks for the text of the file `cluster.pem` of a user.
    Certificates {
        /// The user's uid.
        uid: u32,
    },
    /// What a worker has counted. Only a worker that a daemon of this node has started may send this request. An
    /// older daemon does not know this request, and refuses it.
    Report(Box<Report>),
    /// The error with which a worker will end. Only a worker that a daemon of this node has started may send this
    /// request. An older daemon does not know this request, and refuses it.
    Failed {
        /// What failed.
        why: String,
    },
    /// Asks for all metrics. The reply names only the user's own jobs, except to root and to accounts of the system.
    Metrics,
}

/// The aggregator of a job that runs on other nodes. Unknown keys are ignored, because records contain this type, see
/// [`crate::record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// 32 hexadecimal digits that identify the start of the job among the user's starts.
    pub key: String,
    /// The user's uid.
    pub uid: u32,
    /// Number of groups that the aggregator will serve.
    pub groups: u32,
    /// Memory that the aggregator may use, in MiB.
    pub budget_mib: u64,
    /// Text for the worker. The worker reads this text as the user. The daemon does not read this text.
    pub settings: String,
}

/// A running aggregator of a job on other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StandingLine {
    /// See [`Standing::key`].
    pub key: String,
    /// The user's uid.
    pub uid: u32,
    /// See [`Standing::groups`].
    pub groups: u32,
    /// See [`Standing::budget_mib`].
    pub budget_mib: u64,
    /// Process number of the worker.
    pub pid: i32,
}

/// The daemon's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    /// A worker was started.
    Begun {
        /// Process number of the worker.
        pid: i32,
    },
    /// The worker of the job has ended, or the job had no worker.
    Ended(End),
    /// The jobs that are saved.
    Jobs(Vec<JobLine>),
    /// The daemon has noted where the aggregators of a job run, or what a worker has counted.
    Noted,
    /// The words for `mcr` in the comment of a job. `None`: the comment has no such words, or the job belongs to
    /// another user.
    Comment(Option<Comment>),
    /// The running aggregators of jobs on other nodes.
    Standing(Vec<StandingLine>),
    /// The text of the file `cluster.pem`.
    Certificates(String),
    /// All metrics.
    Metrics(Box<Page>),
    /// The request is refused. The text says why.
    Refused(String),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum End {
    /// The job was not saved: the job has no `mcr.toml`, or its worker ended without an error before the job.
    NotSaved,
    /// The job was not saved until its end, because its worker failed. The text says why.
    GivenUp(String),
    /// The worker ended with this exit status: 0 if all files are committed, 5 if not.
    Status(i32),
    /// The worker ended. An earlier daemon started the worker, so the exit status of the worker is not known.
    Unknown,
    /// The maximum time to wait has passed, and the worker still commits files.
    StillCommitting,
}

/// A job that is saved. Unknown keys are ignored, because the daemon may be newer than the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobLine {
    /// The number of the job.
    pub job_id: String,
    /// The user's uid.
    pub uid: u32,
    /// Process number of the worker. If `not_saved` is set, the last worker, which has ended.
    pub pid: i32,
    /// Where the aggregators run. `None`: the worker has not reported where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregators: Option<Places>,
    /// The state file of the job's agent. `None`: the worker has not reported the state file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_file: Option<StateFile>,
    /// Why the job is not saved any more: its workers failed. `None`: the job is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_saved: Option<String>,
}

/// The path of the state file of an agent. A user chooses the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateFile(pub String);

/// Maximum length of the path of a state file, in bytes. Linux refuses a longer path.
const STATE_FILE_BYTES_MAX: usize = 4096;

impl StateFile {
    /// Whether the path is absolute, and a terminal can show it.
    pub fn is_valid(&self) -> bool {
        self.0.starts_with('/') && self.0.len() <= STATE_FILE_BYTES_MAX && !self.0.contains(char::is_control)
    }
}

/// Where the aggregators of a job run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Places {
    /// In the worker of the job. The job has only one node.
    Here,
    /// In workers of the job, at `HOST:FIRST-LAST`, where FIRST and LAST limit the port.
    InJob(Vec<String>),
    /// On aggregator nodes, whose gates have the addresses `HOST:PORT`.
    Gates(Vec<String>),
    /// At the addresses `HOST:PORT` of the configuration.
    Configured(Vec<String>),
}

/// Maximum number of addresses in [`Places`]. A report names only this number of addresses.
const PLACES_MAX: usize = 64;
/// Maximum length of an address in [`Places`], in bytes.
const PLACE_BYTES_MAX: usize = 300;

impl Places {
    fn addresses(&self) -> &[String] {
        match self {
            Self::Here => &[],
            Self::InJob(all) | Self::Gates(all) | Self::Configured(all) => all,
        }
    }

    /// Removes addresses beyond the maximum number that a reply may have.
    pub fn truncate(&mut self) {
        if let Self::InJob(all) | Self::Gates(all) | Self::Configured(all) = self {
            all.truncate(PLACES_MAX);
        }
    }

    /// Whether a terminal can show the addresses. A user chooses the addresses, and root reads them.
    pub fn are_valid(&self) -> bool {
        let is_valid = |address: &String| {
            let is_shown = |b: u8| b.is_ascii_alphanumeric() || b".:-_[]%".contains(&b);
            address.len() <= PLACE_BYTES_MAX && address.bytes().all(is_shown)
        };
        self.addresses().len() <= PLACES_MAX && self.addresses().iter().all(is_valid)
    }
}

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            Self::Here => return f.write_str("this node"),
            Self::InJob(_) => "nodes of the job",
            Self::Gates(_) => "gates",
            Self::Configured(_) => "configured",
        };
        write!(f, "{kind}: {}", self.addresses().join(" "))
    }
}

/// Writes a message as one line.
pub fn send<T: Serialize>(stream: &mut UnixStream, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a message from one line. The read timeout of the stream limits the time of each read, and `LINE_BYTES_MAX`
/// limits the length of the line.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(serde_json::from_slice(&line)?),
        _ if line.len() as u64 == LINE_BYTES_MAX => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line has more than {LINE_BYTES_MAX} bytes")))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
