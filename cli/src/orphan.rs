//! Finds out that nobody will tell a worker of `mcr node` that its job is over.
//!
//! A worker outlives the restart, the upgrade and the death of its daemon, because the next daemon finds it. But if the
//! package was removed while the job ran, no daemon comes. Then the end of the job's processes is the only sign.

use mcr_node::environment;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A worker is an orphan after this time without a daemon and without a process of its job on this node. An `salloc`
/// may have no process on its nodes between two steps.
const ALONE_MAX: Duration = Duration::from_secs(3600);
/// Replaces [`ALONE_MAX`] in tests, in milliseconds.
const ALONE_VARIABLE: &str = "MCR_TEST_ALONE_MS";
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The flag of a listening socket in /proc/net/unix.
const LISTENS: u32 = 0x1_0000;

/// What a worker knows about its daemon and its job.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The socket on which the daemon serves requests.
    pub socket: PathBuf,
    /// The number of the job.
    pub job_id: String,
}

impl Watch {
    /// Returns when the worker is an orphan.
    pub async fn until_orphaned(&self) {
        let millis = std::env::var(ALONE_VARIABLE).ok().and_then(|text| text.parse().ok());
        let alone_max = millis.map_or(ALONE_MAX, Duration::from_millis);
        let mut alone_since = None;
        loop {
            tokio::time::sleep(CHECK_INTERVAL.min(alone_max / 4)).await;
            let watch = self.clone();
            // If the check fails, the worker is not alone.
            match tokio::task::spawn_blocking(move || watch.is_alone()).await {
                Ok(true) => {
                    if alone_since.get_or_insert_with(Instant::now).elapsed() >= alone_max {
                        tracing::warn!(
                            job_id = self.job_id,
                            socket = %self.socket.display(),
                            waited_seconds = alone_max.as_secs(),
                            "no daemon serves this node, and the job has no process here: the job is taken for over"
                        );
                        return;
                    }
                }
                _ => alone_since = None,
            }
        }
    }

    fn is_alone(&self) -> bool {
        let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        let has_daemon = sockets.is_empty() || (self.socket.exists() && listens(&sockets, &self.socket));
        !has_daemon && environment::of_job(&self.job_id).is_none()
    }
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
        assert!(watch.is_alone());
        let listener = UnixListener::bind(&watch.socket).expect("bound");
        assert!(!watch.is_alone());
        drop(listener);
        let mut process = std::process::Command::new("sleep");
        let mut process = process.arg("600").env("SLURM_JOB_ID", &watch.job_id).spawn().expect("starts");
        assert!(!watch.is_alone());
        process.kill().and_then(|()| process.wait()).expect("ended");
        assert!(watch.is_alone());
    }
}
