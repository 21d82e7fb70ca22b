//! Connections to an aggregator: as many as there are descriptors for, and none that is there for nothing.
//!
//! A connection over which nothing was called for [`IDLE_MAX`] is closed, and sooner where others wait; a session that
//! goes on is a call. Out of descriptors we wait before the next one is taken, and those that are there are served.

use mcr_proto::{KEEPALIVE_RETRIES, KEEPALIVE_SECONDS};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpIncoming};

/// A connection over which nothing was called for this long is closed.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// The same while there is no room for more connections. Our own programs call at once.
const CROWDED_IDLE_MAX: Duration = Duration::from_secs(5);
/// Connections at a time, at most; fewer where there are fewer descriptors.
const CONNECTIONS_MAX: usize = 8192;
/// Descriptors for everything else: containers, older ones that are read, the runtime.
const RESERVE: usize = 256;
/// The first and the longest wait after a connection could not be taken.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How many connections fit into so many descriptors.
fn connections(descriptors: usize) -> usize {
    descriptors.saturating_sub(RESERVE.min(descriptors / 2)).clamp(1, CONNECTIONS_MAX)
}

/// The connections that come in, from a task that ends when nobody takes them any more.
pub fn incoming(listener: TcpListener, idle_max: Duration) -> ReceiverStream<io::Result<Connection>> {
    let descriptors = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let most = connections(descriptors.map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX)));
    let (idle, interval) = KEEPALIVE_SECONDS;
    let accepted = TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(Duration::from_secs(idle)))
        .with_keepalive_interval(Some(Duration::from_secs(interval)))
        .with_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let (to, connections) = mpsc::channel(1);
    tokio::spawn(accept(accepted, to, Arc::new(Semaphore::new(most)), idle_max));
    ReceiverStream::new(connections)
}

async fn accept(
    mut accepted: TcpIncoming,
    to: mpsc::Sender<io::Result<Connection>>,
    room: Arc<Semaphore>,
    idle_max: Duration,
) {
    let mut wait = BACKOFF.0;
    let mut told = false;
    loop {
        if room.available_permits() == 0 && !std::mem::replace(&mut told, true) {
            tracing::warn!(
                "no room for more connections: further ones wait until others end; raise the limit of open files"
            );
        }
        let next = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit,
            () = to.closed() => return,
        };
        let Ok(permit) = next else { return };
        let stream = tokio::select! {
            stream = accepted.next() => stream,
            () = to.closed() => return,
        };
        match stream {
            Some(Ok(stream)) => {
                (wait, told) = (BACKOFF.0, false);
                if to.send(Ok(Connection::new(stream, permit, idle_max))).await.is_err() {
                    return;
                }
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "a connection cannot be taken; trying again, and serving those that are there");
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(BACKOFF.1);
            }
            None => return,
        }
    }
}

/// What is called over a connection; each call finds it among its extensions.
#[derive(Clone, Debug)]
pub struct Calls(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// When the connection was taken.
    since: Instant,
    /// Calls that go on.
    open: AtomicUsize,
    /// When the last one ended, or bytes of its answer were sent, in milliseconds after `since`.
    ended_ms: AtomicU64,
}

/// A call that goes on until this is dropped.
pub struct Call(Calls);

impl Calls {
    fn new() -> Self {
        Self(Arc::new(Counted { since: Instant::now(), open: AtomicUsize::new(0), ended_ms: AtomicU64::new(0) }))
    }

    /// A call begins, if it came over a connection of ours.
    pub fn begin<T>(request: &tonic::Request<T>) -> Option<Call> {
        let calls = request.extensions().get::<Calls>()?.clone();
        calls.0.open.fetch_add(1, Ordering::Relaxed);
        Some(Call(calls))
    }

    fn used(&self) {
        // No connection lives for 500 million years.
        let now_ms = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.ended_ms.store(now_ms, Ordering::Relaxed);
    }

    /// For how long nothing was called; `None` while a call goes on.
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

/// A connection that ends by itself if nothing is called over it.
pub struct Connection {
    stream: TcpStream,
    calls: Calls,
    idle_max: Duration,
    /// When to look next whether it is idle.
    look: Pin<Box<Sleep>>,
    room: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, room: OwnedSemaphorePermit, idle_max: Duration) -> Self {
        let look = Box::pin(tokio::time::sleep(idle_max.min(CROWDED_IDLE_MAX)));
        Self { stream, calls: Calls::new(), idle_max, look, room }
    }

    /// Whether it was there for nothing, for too long. Wakes the task when that may be so.
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
                "nothing was called over this connection",
            )));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.calls.used();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.calls.used();
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
        let mut connections = incoming(listener, Duration::from_millis(50));
        let mut take = async || {
            let client = TcpStream::connect(address).await.expect("connected");
            (client, connections.next().await.expect("listens").expect("taken"))
        };
        let (mut client, mut silent) = take().await;
        client.write_all(b"PRI * HTTP/2.0").await.expect("written");
        let mut preface = [0; 14];
        silent.read_exact(&mut preface).await.expect("the beginning is taken");
        let error = silent.read_exact(&mut preface).await.expect_err("nothing more came").kind();
        assert_eq!(error, io::ErrorKind::TimedOut);
        let (mut client, mut used) = take().await;
        let mut request = tonic::Request::new(());
        request.extensions_mut().insert(used.connect_info());
        let call = Calls::begin(&request).expect("came over a connection");
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
        let error = used.read_u8().await.expect_err("nothing more was called").kind();
        assert_eq!(error, io::ErrorKind::TimedOut);
        assert!(ended.elapsed() >= Duration::from_millis(49), "a while after the call");
    }
}
