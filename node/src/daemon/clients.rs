//! The clients of the daemon: their permissions, the number of their connections, and the log of refused requests.

use super::{Daemon, Job, Options};
use crate::process::Process;
use crate::protocol::{Reply, receive, send};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of open connections of each kind of clients. Further connections are closed. The kinds are counted
/// separately, so that no kind can block the requests of another kind.
const CONNECTIONS_MAX: [(Kind, usize); 4] =
    [(Kind::Commands, 64), (Kind::Services, 16), (Kind::Workers, 64), (Kind::Others, 16)];
/// Time between two log lines about refused requests of users without permission to begin or end jobs.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for a client's request, and maximum time to wait until the client has read the reply.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);
/// The uids that systemd gives to services with `DynamicUser=`.
const DYNAMIC_UIDS: std::ops::RangeInclusive<u32> = 61_184..=65_519;

/// A kind of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The user who may begin and end jobs.
    Commands,
    /// The gate, and other accounts of the system.
    Services,
    /// The workers.
    Workers,
    /// All other processes.
    Others,
}

/// The process at the other end of a connection. The kernel reports its user and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) pid: i32,
}

/// The open connections, and the last refused request.
#[derive(Default)]
pub(super) struct Clients {
    connections: [AtomicUsize; CONNECTIONS_MAX.len()],
    /// When the last refused request of a user without permission to begin or end jobs was logged.
    refusal_logged: Mutex<Option<Instant>>,
}

impl Clients {
    /// Counts a connection. `None` if too many connections of this kind are open.
    fn enter(&self, kind: Kind) -> Option<()> {
        let at = CONNECTIONS_MAX.iter().position(|(of, _)| *of == kind)?;
        if self.connections[at].fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX[at].1 {
            self.connections[at].fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(())
    }

    fn leave(&self, kind: Kind) {
        if let Some(at) = CONNECTIONS_MAX.iter().position(|(of, _)| *of == kind) {
            self.connections[at].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Daemon {
    pub(super) fn answer_on_a_thread(self: &Arc<Self>, stream: UnixStream) {
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else { return };
        let peer = Peer { uid: peer.uid(), pid: peer.pid() };
        let kind = self.kind_of(peer);
        let Some(()) = self.clients.enter(kind) else { return };
        let daemon = Arc::clone(self);
        let answer = move || {
            if let Err(error) = daemon.answer(stream, peer) {
                tracing::debug!(%error, "a client was not answered");
            }
            daemon.clients.leave(kind);
        };
        if let Err(error) = std::thread::Builder::new().name("client".into()).stack_size(256 << 10).spawn(answer) {
            self.clients.leave(kind);
            tracing::warn!(%error, "no thread can be started for a client");
        }
    }

    fn kind_of(&self, peer: Peer) -> Kind {
        if self.may_command(peer.uid) {
            Kind::Commands
        } else if self.may_stand(peer.uid) || self.is_of_system(peer.uid) {
            Kind::Services
        } else if self.lock().values().any(|job| is_worker_of(job, peer)) {
            Kind::Workers
        } else {
            Kind::Others
        }
    }

    /// Whether user `uid` may begin and end jobs.
    pub(super) fn may_command(&self, uid: u32) -> bool {
        uid == self.options.own.unwrap_or(0)
    }

    /// Whether the user is an account of the system, which has no jobs.
    pub(super) fn is_of_system(&self, uid: u32) -> bool {
        let Options { own, min_uid, .. } = &self.options;
        own.is_none() && (uid < *min_uid || DYNAMIC_UIDS.contains(&uid))
    }

    /// Whether a refused request of user `uid` is logged. For users without permission to begin or end jobs, one
    /// request in each [`REFUSAL_LOG_INTERVAL`] is logged, so that these users cannot fill the log.
    fn is_logged(&self, uid: u32) -> bool {
        let mut logged = self.clients.refusal_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.is_none_or(|logged| logged.elapsed() >= REFUSAL_LOG_INTERVAL);
        if is_due && !self.may_command(uid) {
            *logged = Some(Instant::now());
        }
        is_due || self.may_command(uid)
    }

    fn answer(&self, mut stream: UnixStream, peer: Peer) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
        stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
        let reply = match receive(&stream) {
            Ok(request) => self.reply(peer, request),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Reply::Refused(format!("not a request: {error}"))
            }
            Err(error) => return Err(error),
        };
        if let (Reply::Refused(why), true) = (&reply, self.is_logged(peer.uid)) {
            tracing::warn!(uid = peer.uid, why, "a request is refused");
        }
        send(&mut stream, &reply)
    }
}

/// Whether the process is the running worker of the job.
pub(super) fn is_worker_of(job: &Job, peer: Peer) -> bool {
    job.facts.uid == peer.uid && job.worker.pid == peer.pid && Process::of(peer.pid) == Some(job.worker)
}
