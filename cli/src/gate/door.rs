//! Accepts connections to the gate. The number of connections is limited, for all users together and for each user.

use super::refusals::Refusals;
use mcr_proto::tls::HANDSHAKES_MAX;
use mcr_proto::tls::gate::{GateDoor, GateStream};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Maximum number of connections at the same time. Further connections wait.
const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of connections of one user at the same time. Further connections are closed.
const OF_USER_MAX: usize = 256;
/// Time to wait after an error of accepting a connection.
const BACKOFF: Duration = Duration::from_millis(200);

/// Checks and limits that a new connection must pass before it is served.
pub struct Door {
    tls: Arc<GateDoor>,
    handshakes: Arc<Semaphore>,
    users: Users,
    refusals: Arc<Refusals>,
}

impl Door {
    pub fn new(tls: Arc<GateDoor>, refusals: Arc<Refusals>) -> Self {
        Self { tls, handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)), users: Users::default(), refusals }
    }
}

/// The stream of new connections. The task that accepts connections ends when the stream is dropped.
pub fn incoming(listener: TcpListener, door: Door) -> ReceiverStream<io::Result<Connection>> {
    let (to, connections) = mpsc::channel(1);
    tokio::spawn(accept(listener, Arc::new(door), to));
    ReceiverStream::new(connections)
}

async fn accept(listener: TcpListener, door: Arc<Door>, to: mpsc::Sender<io::Result<Connection>>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = to.closed() => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(BACKOFF).await;
                continue;
            }
        };
        let (door, to) = (Arc::clone(&door), to.clone());
        tokio::spawn(async move {
            let peer = address.to_string();
            let (stream, uid) = match door.tls.accept(stream, &door.handshakes).await {
                Ok(accepted) => accepted,
                Err(error) => return door.refusals.log(&peer, None, &error.to_string()),
            };
            match door.users.enter(uid) {
                Some(place) => {
                    let client = Client { uid, peer };
                    // Sending fails only if the gate ends.
                    let _ = to.send(Ok(Connection { stream, client, _place: place, _permit: permit })).await;
                }
                None => {
                    let why = format!("the user has {OF_USER_MAX} connections already");
                    door.refusals.log(&peer, Some(uid), &why);
                }
            }
        });
    }
}

/// The number of connections of each user.
#[derive(Clone, Default)]
struct Users(Arc<Mutex<BTreeMap<u32, usize>>>);

impl Users {
    fn enter(&self, uid: u32) -> Option<Place> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.entry(uid).or_insert(0);
        if *number >= OF_USER_MAX {
            return None;
        }
        *number += 1;
        Some(Place { users: self.clone(), uid })
    }
}

/// One connection in the count of [`Users`]. Dropping this value reduces the count.
struct Place {
    users: Users,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.users.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = all.get_mut(&self.uid) {
            *number -= 1;
            if *number == 0 {
                all.remove(&self.uid);
            }
        }
    }
}

/// The client of a connection. Each request has this value in its extensions.
#[derive(Clone, Debug)]
pub struct Client {
    /// The number of the user, which the client's certificate proves.
    pub uid: u32,
    /// The address and port of the client.
    pub peer: String,
}

/// A connection whose user is known.
pub struct Connection {
    stream: GateStream,
    client: Client,
    _place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        self.client.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connections_of_a_user_have_a_limit_that_concerns_no_other_user() {
        let users = Users::default();
        let mut open: Vec<_> = (0..OF_USER_MAX).map(|_| users.enter(6001).expect("room")).collect();
        assert!(users.enter(6001).is_none() && users.enter(6002).is_some());
        open.pop();
        assert!(users.enter(6001).is_some());
        drop(open);
        assert!(users.0.lock().expect("not poisoned").is_empty());
    }
}
