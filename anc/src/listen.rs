//! Connections to an aggregator: as many as there are descriptors for, and none that is there for nothing.
//!
//! A connection that has made no call within [`IDLE_MAX`] is closed. Out of descriptors we wait before the next one is taken,
//! and those that are there are served.

use mcr_proto::{KEEPALIVE_RETRIES, KEEPALIVE_SECONDS};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpIncoming};

/// A connection that made no call for this long is closed.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
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

/// Whether a connection has made a call; each call finds it among its extensions.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<AtomicBool>);

impl Used {
    /// From now on it may be silent for as long as its session allows.
    pub fn mark<T>(request: &tonic::Request<T>) {
        if let Some(used) = request.extensions().get::<Used>() {
            used.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection that ends by itself if nothing is ever called over it.
pub struct Connection {
    stream: TcpStream,
    used: Used,
    /// Taken away when it is known to be used.
    idle: Option<Pin<Box<Sleep>>>,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, room: OwnedSemaphorePermit, idle_max: Duration) -> Self {
        let idle = Some(Box::pin(tokio::time::sleep(idle_max)));
        Self { stream, used: Used::default(), idle, _room: room }
    }

    /// Whether it was there for nothing, for too long. Wakes the task when that is so.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(idle) = &mut self.idle else { return false };
        if idle.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.idle = None;
        !self.used.0.load(Ordering::Relaxed)
    }
}

impl Connected for Connection {
    type ConnectInfo = Used;

    fn connect_info(&self) -> Used {
        self.used.clone()
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
    async fn a_connection_that_calls_nothing_is_closed_and_one_that_did_stays() {
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
        Used::mark(&request);
        let reading = tokio::spawn(async move { used.read_u8().await });
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.write_all(b"x").await.expect("written");
        assert_eq!(reading.await.expect("no panic").expect("still open"), b'x');
    }
}
