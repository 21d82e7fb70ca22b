//! Accepts connections to an aggregator. The limit of file descriptors limits the number of connections, and unused
//! connections are closed.
//!
//! A connection without a call for [`IDLE_MAX`] is closed. If other connections wait, this connection is closed
//! sooner. An open session counts as a call. Without free descriptors, new connections wait, and the open connections
//! are served.

use crate::config::AncConfig;
use mcr_proto::log_limit::LogLimit;
use mcr_proto::tls::{self, HANDSHAKES_MAX, Security};
use mcr_proto::unix::{self, SocketFile};
use mcr_proto::{KEEPALIVE_RETRIES, KEEPALIVE_SECONDS};
use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpIncoming};

/// Maximum time that a connection may be open without a call.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// Maximum time that a connection may be open without a call while new connections wait for a file descriptor. Agents
/// and the `mcr` command send their first call right after they connect, so this limit does not close their
/// connections.
const CROWDED_IDLE_MAX: Duration = Duration::from_secs(5);
/// Maximum number of open connections. With few file descriptors the maximum is lower.
const CONNECTIONS_MAX: usize = 8192;
/// Number of file descriptors that are reserved for other uses: new containers, older containers that are read, and
/// the async runtime.
const RESERVE: usize = 256;
/// The first and the longest wait after the acceptance of a connection failed.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Maximum number of connections for this number of file descriptors.
fn connections(descriptors: usize) -> usize {
    descriptors.saturating_sub(RESERVE.min(descriptors / 2)).clamp(1, CONNECTIONS_MAX)
}

/// Where an aggregator listens.
pub enum Listener {
    /// On a port.
    Tcp(TcpListener),
    /// On a socket in the file system.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// The address that agents and commands use to connect.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Self::Unix(_, file) => Ok(unix::address_of(file.path())),
        }
    }
}

/// Listens on the configured socket, or if no socket is configured, on the first free port. If other processes use
/// all ports, the error names the ports.
pub async fn bind(config: &AncConfig) -> io::Result<Listener> {
    if let Some(path) = &config.socket {
        let (listener, file) = unix::listen(path)?;
        // On some network file systems a socket can be created, but no process can connect to it.
        drop(unix::connect(path).await?);
        return Ok(Listener::Unix(listener, file));
    }
    let listen = &config.listen;
    for port in listen.ports.clone() {
        match TcpListener::bind((listen.address, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound.map(Listener::Tcp),
        }
    }
    let why = match listen.ports.clone().count() {
        1 => format!("another process uses {listen}"),
        _ => format!("other processes use all ports of {listen}"),
    };
    Err(io::Error::new(io::ErrorKind::AddrInUse, why))
}

/// The stream of new connections, and the file of the socket, if the listener has one. Dropping the stream ends the
/// task that accepts connections, but does not wait for its end. Therefore the caller removes the file.
pub fn incoming(
    listener: Listener,
    idle_max: Duration,
    security: Security,
) -> (ReceiverStream<io::Result<Connection>>, Option<SocketFile>) {
    let descriptors = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let most = connections(descriptors.map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX)));
    let (idle, interval) = KEEPALIVE_SECONDS;
    let (accepted, file) = match listener {
        Listener::Unix(listener, file) => (Accepted::Unix(listener), Some(file)),
        Listener::Tcp(listener) => {
            let listener = TcpIncoming::from(listener)
                .with_nodelay(Some(true))
                .with_keepalive(Some(Duration::from_secs(idle)))
                .with_keepalive_interval(Some(Duration::from_secs(interval)))
                .with_keepalive_retries(Some(KEEPALIVE_RETRIES));
            (Accepted::Tcp(listener), None)
        }
    };
    let (to, connections) = mpsc::channel(1);
    let door =
        Door { security, handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)), to, idle_max, refusals: Arc::default() };
    tokio::spawn(accept(accepted, door, Arc::new(Semaphore::new(most))));
    (ReceiverStream::new(connections), file)
}

/// The connections to a listener.
enum Accepted {
    Tcp(TcpIncoming),
    Unix(UnixListener),
}

/// An accepted connection.
enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepted {
    /// Returns the next connection. `None` if no further connections follow.
    async fn next(&mut self) -> Option<io::Result<Peer>> {
        match self {
            Self::Tcp(accepted) => accepted.next().await.map(|stream| stream.map(Peer::Tcp)),
            Self::Unix(listener) => Some(listener.accept().await.map(|(stream, _)| Peer::Unix(stream))),
        }
    }
}

/// What the acceptance of a connection needs.
struct Door {
    security: Security,
    /// Permits for TLS handshakes.
    handshakes: Arc<Semaphore>,
    to: mpsc::Sender<io::Result<Connection>>,
    idle_max: Duration,
    refusals: Arc<Refusals>,
}

/// Counts refused connections. At most one line for each second is written into the log.
#[derive(Default)]
struct Refusals(LogLimit);

impl Refusals {
    /// `kind`: the label of the metric.
    fn log(&self, kind: &'static str, peer: &str, reason: &dyn Display) {
        match self.0.due() {
            Some(left_out) => tracing::warn!(kind, peer, %reason, left_out, "a connection is refused"),
            // The metrics count this event too.
            None => tracing::debug!(kind, peer, %reason, "a connection is refused"),
        }
    }
}

impl Door {
    /// Serves a connection, after a handshake if TLS is used. Returns whether the server still takes connections.
    async fn admit(&self, peer: Peer, room: OwnedSemaphorePermit) -> bool {
        let serve = async |stream, room| self.to.send(Ok(Connection::new(stream, room, self.idle_max))).await.is_ok();
        let (stream, identity) = match (peer, &self.security) {
            (Peer::Unix(stream), _) => match unix::check_peer(&stream) {
                Ok(()) => return serve(Stream::Unix(stream), room).await,
                Err(reason) => {
                    self.refusals.log("user", "this node", &reason);
                    return true;
                }
            },
            (Peer::Tcp(stream), Security::Plain) => return serve(Stream::Plain(stream), room).await,
            (Peer::Tcp(stream), Security::Tls(identity)) => (stream, identity),
        };
        let (identity, handshakes) = (Arc::clone(identity), Arc::clone(&self.handshakes));
        let (to, idle_max, refusals) = (self.to.clone(), self.idle_max, Arc::clone(&self.refusals));
        tokio::spawn(async move {
            let peer = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string());
            match tls::accept(&identity, stream, &handshakes).await {
                Ok(stream) => {
                    // If this fails, the aggregator ends.
                    let _ = to.send(Ok(Connection::new(Stream::Tls(Box::new(stream)), room, idle_max))).await;
                }
                // The failure of one connection does not affect other connections.
                Err(error) => refusals.log("tls", &peer, &error),
            }
        });
        true
    }
}

async fn accept(mut accepted: Accepted, door: Door, room: Arc<Semaphore>) {
    let mut wait = BACKOFF.0;
    let mut told = false;
    loop {
        if room.available_permits() == 0 && !std::mem::replace(&mut told, true) {
            tracing::warn!(
                "no room for more connections: new connections wait until others end; raise the limit of open files"
            );
        }
        let next = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit,
            () = door.to.closed() => return,
        };
        let Ok(permit) = next else { return };
        let stream = tokio::select! {
            stream = accepted.next() => stream,
            () = door.to.closed() => return,
        };
        match stream {
            Some(Ok(stream)) => {
                (wait, told) = (BACKOFF.0, false);
                if !door.admit(stream, permit).await {
                    return;
                }
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        %error,
                        "a connection cannot be accepted; trying again, while the open connections are served"
                    );
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
            None => return,
        }
    }
}

/// The calls over a connection. The extensions of each request contain this value.
#[derive(Clone, Debug)]
pub struct Calls(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// When the connection was accepted.
    since: Instant,
    /// Number of running calls.
    open: AtomicUsize,
    /// When the last call ended, or when bytes of an answer were last sent, in milliseconds after `since`.
    ended_ms: AtomicU64,
}

/// A running call. Dropping this value ends the call.
pub struct Call(Calls);

impl Calls {
    fn new() -> Self {
        Self(Arc::new(Counted { since: Instant::now(), open: AtomicUsize::new(0), ended_ms: AtomicU64::new(0) }))
    }

    /// Begins a call, if the request came over a [`Connection`].
    pub fn begin<T>(request: &tonic::Request<T>) -> Option<Call> {
        let calls = request.extensions().get::<Calls>()?.clone();
        calls.0.open.fetch_add(1, Ordering::Relaxed);
        Some(Call(calls))
    }

    fn used(&self) {
        // The number of milliseconds fits in 64 bits for 500 million years.
        let now_ms = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.ended_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The time since the last call. `None` while a call is running.
    fn idle(&self) -> Option<Duration> {
        let ended = Duration::from_millis(self.0.ended_ms.load(Ordering::Relaxed));
        (self.0.open.load(Ordering::Relaxed) == 0).then(|| self.0.since.elapsed().saturating_sub(ended))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.used();
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of a connection.
enum Stream {
    Plain(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls a method of a connection's stream.
macro_rules! on_stream {
    ($connection:expr, $stream:ident => $call:expr) => {
        match &mut $connection.stream {
            Stream::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Unix($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $call
            }
        }
    };
}

/// A connection that closes itself if no call uses it.
pub struct Connection {
    stream: Stream,
    calls: Calls,
    idle_max: Duration,
    /// When to check again whether the connection is idle.
    look: Pin<Box<Sleep>>,
    room: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: Stream, room: OwnedSemaphorePermit, idle_max: Duration) -> Self {
        let look = Box::pin(tokio::time::sleep(idle_max.min(CROWDED_IDLE_MAX)));
        Self { stream, calls: Calls::new(), idle_max, look, room }
    }

    /// Whether the connection was without a call for too long. If the connection may become idle for too long later,
    /// wakes the task at that time.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        while self.look.as_mut().poll(cx).is_ready() {
            let Some(idle) = self.calls.idle() else {
                self.look.as_mut().reset(tokio::time::Instant::now() + self.idle_max);
                continue;
            };
            let crowded_max = self.idle_max.min(CROWDED_IDLE_MAX);
            let is_crowded = self.room.semaphore().available_permits() == 0;
            let left = if is_crowded { crowded_max } else { self.idle_max }.saturating_sub(idle);
            if left.is_zero() {
                return true;
            }
            self.look.as_mut().reset(tokio::time::Instant::now() + left.min(crowded_max));
        }
        false
    }
}

impl Connected for Connection {
    type ConnectInfo = Calls;

    fn connect_info(&self) -> Calls {
        self.calls.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_idle(cx) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no call was made over this connection for too long",
            )));
        }
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.calls.used();
        on_stream!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.calls.used();
        on_stream!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_everything_else() {
        assert_eq!([1 << 20, 1024, 256, 2, 0].map(connections), [CONNECTIONS_MAX, 768, 128, 1, 1]);
    }

    #[tokio::test]
    async fn a_connection_is_closed_when_nothing_was_called_for_a_while_and_stays_while_a_call_goes_on() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (mut connections, _) = incoming(Listener::Tcp(listener), Duration::from_millis(50), Security::Plain);
        let mut take = async || {
            let client = TcpStream::connect(address).await.expect("connected");
            (client, connections.next().await.expect("listens").expect("taken"))
        };
        let (mut client, mut silent) = take().await;
        client.write_all(b"PRI * HTTP/2.0").await.expect("written");
        let mut preface = [0; 14];
        silent.read_exact(&mut preface).await.expect("the first bytes are read");
        let error = silent.read_exact(&mut preface).await.expect_err("no more bytes arrived").kind();
        assert_eq!(error, io::ErrorKind::TimedOut);
        let (mut client, mut used) = take().await;
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(used.connect_info());
        let call = Calls::begin(&request).expect("the request came over a connection");
        let reading = tokio::spawn(async move {
            let read = used.read_u8().await;
            (used, read)
        });
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.write_all(b"x").await.expect("written");
        let (mut used, read) = reading.await.expect("no panic");
        assert_eq!(read.expect("still open while the call goes on"), b'x');
        drop(call);
        let ended = Instant::now();
        let error = used.read_u8().await.expect_err("no further call was made").kind();
        assert_eq!(error, io::ErrorKind::TimedOut);
        assert!(ended.elapsed() >= Duration::from_millis(49), "the idle time begins after the call");
    }
}
