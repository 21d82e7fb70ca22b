//! Starts aggregators for jobs that run on other nodes, when the gate of this node asks for them.
//!
//! The gate is a daemon without privileges. The gate can start a worker as a user whose jobs this daemon saves. Only
//! the worker reads the gate's text, after the worker has become the user. The gate can also list the running
//! aggregators, and read the certificate authorities that a user trusts, which are public. This daemon permits
//! nothing else to the gate.

use super::{Daemon, Job};
use crate::facts::JobFacts;
use crate::process::Process;
use crate::protocol::{Reply, Standing, StandingLine};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of running aggregators that the gate has started on this node.
const STANDING_MAX: usize = 256;
/// Maximum length of [`Standing::settings`] in bytes.
const SETTINGS_BYTES_MAX: usize = 16 << 10;
/// Length of [`Standing::key`] in hexadecimal digits.
const KEY_DIGITS: usize = 32;
/// Maximum time to read the certificates of a user. The home directory may be on a file system that hangs.
const READ_MAX: Duration = Duration::from_secs(2);
/// Maximum length of the certificates of a user, in bytes.
const CERTIFICATES_BYTES_MAX: u64 = 32 << 10;
/// Maximum number of processes that read certificates. A process that hangs is counted until it ends.
pub(super) const READERS_MAX: usize = 16;
/// Minimum time from the end of an aggregator with an error to the next start of this aggregator.
const FAILURE_REST: Duration = Duration::from_secs(30);
/// Maximum number of remembered aggregators that ended with an error.
const FAILURES_MAX: usize = 4096;
/// With this argument, a worker only prints the certificates of a user.
pub const CERTIFICATES_ARGUMENT: &str = "--certificates";

/// The aggregators that ended with an error less than [`FAILURE_REST`] ago: the time of the end, and the status.
#[derive(Default)]
pub(super) struct Failures(Mutex<BTreeMap<String, (Instant, ExitStatus)>>);

impl Failures {
    /// Notes the end of an aggregator. The exit statuses 0 and 5 are no errors, because the aggregator has served its
    /// agents.
    pub(super) fn add(&self, id: &str, status: ExitStatus, now: Instant) {
        if !matches!(status.code(), Some(0 | 5)) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, (ended, _)| now.saturating_duration_since(*ended) < FAILURE_REST);
            if all.len() < FAILURES_MAX {
                all.insert(id.to_owned(), (now, status));
            }
        }
    }

    /// The reason why an aggregator must not be started now. `None` if the aggregator may be started.
    fn why(&self, id: &str) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, status) = all.get(id).filter(|(ended, _)| ended.elapsed() < FAILURE_REST)?;
        let rest = FAILURE_REST.as_secs();
        Some(format!("the aggregator ended with {status} less than {rest} s ago; the log of mcr node says why"))
    }
}

impl Daemon {
    /// Whether this user may start aggregators for jobs on other nodes.
    pub(super) fn may_stand(&self, uid: u32) -> bool {
        self.may_command(uid) || self.options.gate == Some(uid)
    }

    /// Starts the aggregator of a job, if it does not run.
    pub(super) fn stand(&self, standing: Standing) -> Reply {
        if let Some(why) = self.not_served(standing.uid).or_else(|| wrong(&standing)) {
            return Reply::Refused(why);
        }
        let id = format!("a{}-{}", standing.uid, standing.key);
        let mut jobs = self.jobs();
        if let Some(job) = jobs.get(&id) {
            return Reply::Begun { pid: job.worker.pid };
        }
        if let Some(why) = self.failures.why(&id) {
            return Reply::Refused(why);
        }
        if jobs.values().filter(|job| job.standing.is_some()).count() >= STANDING_MAX {
            return Reply::Refused(format!("{STANDING_MAX} aggregators run on this node already"));
        }
        let facts = JobFacts {
            job_id: id.clone(),
            restart_count: 0,
            uid: standing.uid,
            work_dir: "/".into(),
            node: String::new(),
            nodes: 1,
            node_list: String::new(),
            tasks: None,
            comment: String::new(),
            het_job_id: None,
        };
        match self.start(&facts, Some(&standing), false) {
            Ok((child, worker)) => {
                tracing::info!(aggregator = id, uid = facts.uid, pid = worker.pid, "an aggregator begins");
                jobs.insert(id, Job { standing: Some(standing), ..Job::new(facts, worker, Some(child)) });
                self.wake();
                Reply::Begun { pid: worker.pid }
            }
            Err(error) => {
                self.records.remove(&id);
                Reply::Refused(format!("the aggregator cannot be started: {error}"))
            }
        }
    }

    /// The running aggregators of jobs on other nodes.
    pub(super) fn standing(&self) -> Reply {
        let jobs = self.jobs();
        let line = |job: &Job| {
            let Standing { key, uid, groups, budget_mib, .. } = job.standing.clone()?;
            Some(StandingLine { key, uid, groups, budget_mib, pid: job.worker.pid })
        };
        Reply::Standing(jobs.values().filter_map(line).collect())
    }

    /// The certificate authorities that a user trusts. A process that has become the user reads the file.
    pub(super) fn certificates(&self, uid: u32) -> Reply {
        if let Some(why) = self.not_served(uid) {
            return Reply::Refused(why);
        }
        if self.readers.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return Reply::Refused("too many certificates are being read; a file system may hang".into());
        }
        let command = self.worker_command().map(|mut command| {
            command.args([CERTIFICATES_ARGUMENT, &uid.to_string()]).stdout(Stdio::piped());
            command
        });
        let mut child = match command.and_then(|mut command| command.spawn()) {
            Ok(child) => child,
            Err(error) => {
                self.readers.fetch_sub(1, Ordering::Relaxed);
                return Reply::Refused(format!("no process can be started: {error}"));
            }
        };
        let read = child.stdout.take().map(|stdout| read_until(stdout, Instant::now() + READ_MAX));
        let text = match read {
            Some(Ok(text)) => text,
            Some(Err(error)) => {
                let _ = child.kill();
                self.end_reader(child);
                return Reply::Refused(format!("the certificates of user {uid} cannot be read: {error}"));
            }
            None => String::new(),
        };
        match self.end_reader(child) {
            Some(0) => Reply::Certificates(text),
            _ => Reply::Refused(text.lines().next().unwrap_or("the certificates cannot be read").to_owned()),
        }
    }

    /// Waits for the end of a process that reads certificates. Returns its exit status, or `None` if the process has
    /// not ended after [`super::KILL_PATIENCE`].
    fn end_reader(&self, mut child: Child) -> Option<i32> {
        let process = i32::try_from(child.id()).ok().and_then(Process::of_child);
        if process.is_none_or(|process| process.wait(super::KILL_PATIENCE)) {
            let status = child.wait().ok().and_then(|status| status.code());
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return status;
        }
        let readers = Arc::clone(&self.readers);
        let wait = move || {
            let _ = child.wait();
            readers.fetch_sub(1, Ordering::Relaxed);
        };
        // If the thread cannot be started, the process is counted until this daemon ends.
        let _ = std::thread::Builder::new().name("reader".into()).stack_size(64 << 10).spawn(wait);
        None
    }
}

/// The error in a request for an aggregator. `None` if the request is valid.
fn wrong(standing: &Standing) -> Option<String> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if standing.key.len() != KEY_DIGITS || !standing.key.bytes().all(is_digit) {
        return Some(format!("the key of an aggregator must have {KEY_DIGITS} hexadecimal digits"));
    }
    (standing.settings.len() > SETTINGS_BYTES_MAX)
        .then(|| format!("the settings of an aggregator have more than {SETTINGS_BYTES_MAX} bytes"))
}

/// Reads everything that a process prints, until the process closes its standard output. Fails at the time `until`,
/// or if the text is longer than [`CERTIFICATES_BYTES_MAX`].
fn read_until(mut stdout: ChildStdout, until: Instant) -> io::Result<String> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match stdout.read(&mut part)? {
            0 => return String::from_utf8(all).map_err(io::Error::other),
            len => all.extend_from_slice(&part[..len]),
        }
        if all.len() as u64 > CERTIFICATES_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("more than {CERTIFICATES_BYTES_MAX} bytes"),
            ));
        }
    }
}
