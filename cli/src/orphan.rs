//! Detects orphans: workers of `mcr node` that will never get a message that their job has ended.
//!
//! A worker continues when its daemon is restarted, upgraded or killed, because the next daemon finds the worker. But
//! if the package was removed while the job ran, there is no next daemon. In this case, the worker only sees that the
//! job's processes have ended.
//!
//! If a node was cut off from the network while SLURM started the job again on other nodes, SLURM may never run
//! Epilog on this node. In this case, a record in the store shows that a later start of the job exists.

use mcr_cnc::config::slurm_start;
use mcr_node::client::ask;
use mcr_node::environment;
use mcr_node::protocol::{Places, Request, StateFile};
use mcrengine::ids::JobId;
use mcrengine::incarnation;
use mcrengine::store::PosixStore;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A worker is an orphan after this time without a daemon and without a process of its job on this node. An `salloc`
/// may have no process on its nodes between two steps.
const ALONE_MAX: Duration = Duration::from_secs(3600);
/// Variable that replaces [`ALONE_MAX`] in tests, in milliseconds.
const ALONE_VARIABLE: &str = "MCR_TEST_ALONE_MS";
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of attempts to report the places of the aggregators.
const REPORTS_MAX: u32 = 5;
/// Maximum time to wait for the daemon's answer to a report, and the time between two attempts.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);
/// The flag of a listening socket in /proc/net/unix.
const LISTENS: u32 = 0x1_0000;

/// The start of a job whose files a worker saves.
#[derive(Clone, Debug)]
pub struct Start {
    /// The store; empty if only the aggregators know the store.
    pub store: PathBuf,
    /// The name of the job.
    pub job: JobId,
    /// The identity of the start.
    pub identity: String,
}

impl Start {
    /// Whether SLURM has started the same job again after this start. SLURM starts a job again only if SLURM
    /// considers the earlier start dead.
    fn is_over(&self) -> bool {
        if self.store.as_os_str().is_empty() {
            return false;
        }
        let Ok(store) = PosixStore::open(&self.store) else { return false };
        let newest = incarnation::newest(&store, &self.job).ok().flatten();
        newest.is_some_and(|newest| is_later(&newest.identity, &self.identity))
    }
}

/// Whether both identities are of one SLURM job, and `identity` is the later start.
fn is_later(identity: &str, than: &str) -> bool {
    let starts = slurm_start(identity).zip(slurm_start(than));
    starts.is_some_and(|((job, count), (same_job, earlier))| job == same_job && count > earlier)
}

/// The socket of the daemon and the number of the job that a worker watches.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The socket on which the daemon serves requests.
    pub socket: PathBuf,
    /// The number of the job.
    pub job_id: String,
}

impl Watch {
    /// Reports to the daemon where the aggregators of the job run, and the state file of its agent. Without a report,
    /// the job is saved too.
    pub async fn report(self, mut places: Places, state_file: PathBuf) {
        places.truncate();
        let state_file = std::path::absolute(state_file).ok().and_then(|file| file.into_os_string().into_string().ok());
        let state_file = state_file.map(StateFile).filter(StateFile::is_valid);
        for _ in 0..REPORTS_MAX {
            let (job_id, places, state_file) = (self.job_id.clone(), places.clone(), state_file.clone());
            let (socket, request) = (self.socket.clone(), Request::Places { job_id, places, state_file });
            let asked = tokio::task::spawn_blocking(move || ask(&socket, &request, REPORT_PATIENCE)).await;
            match asked {
                Ok(Err(_)) => tokio::time::sleep(REPORT_PATIENCE).await,
                _ => return,
            }
        }
    }

    /// Returns when the worker is an orphan.
    pub async fn until_orphaned(&self, start: &Start) {
        let millis = std::env::var(ALONE_VARIABLE).ok().and_then(|text| text.parse().ok());
        let alone_max = millis.map_or(ALONE_MAX, Duration::from_millis);
        let mut alone_since = None;
        loop {
            tokio::time::sleep(CHECK_INTERVAL.min(alone_max / 4)).await;
            let (watch, start) = (self.clone(), start.clone());
            // If the check fails, the worker is not alone.
            match tokio::task::spawn_blocking(move || watch.look(&start)).await {
                Ok(Seen::LaterStart) => {
                    tracing::warn!(
                        job_id = self.job_id,
                        "SLURM started the job again on other nodes, and the job has no process here: this start is over"
                    );
                    return;
                }
                Ok(Seen::Nobody) => {
                    if alone_since.get_or_insert_with(Instant::now).elapsed() >= alone_max {
                        tracing::warn!(
                            job_id = self.job_id,
                            socket = %self.socket.display(),
                            waited_seconds = alone_max.as_secs(),
                            "no daemon serves this node, and the job has no process here: the job is treated as ended"
                        );
                        return;
                    }
                }
                _ => alone_since = None,
            }
        }
    }

    fn look(&self, start: &Start) -> Seen {
        if environment::of_job(&self.job_id).is_some() {
            Seen::Somebody
        } else if start.is_over() {
            Seen::LaterStart
        } else if self.has_daemon() {
            Seen::Somebody
        } else {
            Seen::Nobody
        }
    }

    fn has_daemon(&self) -> bool {
        let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        sockets.is_empty() || (self.socket.exists() && listens(&sockets, &self.socket))
    }
}

/// What a worker sees on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// A process of the job, or the daemon, which will report the end of the job.
    Somebody,
    /// Neither a process of the job nor the daemon.
    Nobody,
    /// No process of the job, and a later start of the job on other nodes.
    LaterStart,
}

/// Whether a process listens on a socket. Connecting to the socket would wake the daemon, or let systemd start it.
/// `sockets` is the text of /proc/net/unix.
fn listens(sockets: &str, socket: &Path) -> bool {
    sockets.lines().skip(1).any(|line| {
        let flags = line.split(' ').nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
        // The path is the last field, and may contain spaces.
        flags & LISTENS != 0 && line.ends_with(&format!(" {}", socket.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_without_a_listener_is_told_from_one_with_a_listener_without_a_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a socket");
        let now = || std::fs::read_to_string("/proc/net/unix").expect("readable");
        assert!(!listens(&now(), &path));
        let listener = UnixListener::bind(&path).expect("bound");
        assert!(listens(&now(), &path) && !listens(&now(), &dir.path().join("socket")));
        let connected = UnixStream::connect(&path).expect("connected");
        drop(listener);
        assert!(path.exists() && !listens(&now(), &path), "a connection does not listen");
        drop(connected);
    }

    #[test]
    fn a_worker_is_alone_only_without_a_daemon_and_without_a_process_of_its_job() {
        let dir = tempfile::tempdir().expect("a directory");
        let watch = Watch { socket: dir.path().join("socket"), job_id: format!("7{}", std::process::id()) };
        let job = "job".parse().expect("valid");
        let start = Start { store: PathBuf::new(), job, identity: format!("SLURM job {}", watch.job_id) };
        assert_eq!(watch.look(&start), Seen::Nobody);
        let listener = UnixListener::bind(&watch.socket).expect("bound");
        assert_eq!(watch.look(&start), Seen::Somebody);
        drop(listener);
        let mut process = std::process::Command::new("sleep");
        let mut process = process.arg("600").env("SLURM_JOB_ID", &watch.job_id).spawn().expect("starts");
        // The environment of a process is empty for a moment while the process starts its program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while watch.look(&start) == Seen::Nobody && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(watch.look(&start), Seen::Somebody);
        process.kill().and_then(|()| process.wait()).expect("ended");
        assert_eq!(watch.look(&start), Seen::Nobody);
    }

    #[test]
    fn a_later_start_is_one_of_the_same_job_with_a_higher_restart_count() {
        assert!(is_later("SLURM job 7, restart 1", "SLURM job 7"));
        assert!(is_later("SLURM job 7, restart 10", "SLURM job 7, restart 9"));
        for other in ["SLURM job 7", "SLURM job 8, restart 2", "night 2", ""] {
            assert!(!is_later(other, "SLURM job 7, restart 1"), "{other}");
        }
        assert!(!is_later("SLURM job 7", ""), "a start by hand");
    }
}
