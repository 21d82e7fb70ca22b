//! Sends requests to the daemon of this node.

use crate::protocol::{Reply, Request, receive, send};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The daemon's directory.
pub const RUN_DIR: &str = "/run/mcr";
/// Name of the socket in the daemon's directory.
pub const SOCKET: &str = "socket";

/// Sends a request, and waits for the reply. The whole call takes at most `most`, even if the daemon is stopped.
pub fn ask(socket: &Path, request: &Request, most: Duration) -> io::Result<Reply> {
    let (to_us, from_thread) = mpsc::channel();
    let (socket, request): (PathBuf, Request) = (socket.to_owned(), request.clone());
    // If the daemon accepts no connection, connecting waits without a time limit. The thread then stays until this
    // process ends.
    let talk = move || to_us.send(ask_here(&socket, &request, most));
    std::thread::Builder::new().name("ask".into()).spawn(talk)?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} ms", most.as_millis()));
    match from_thread.recv_timeout(most) {
        // The read or write timeout of the socket may expire before `recv_timeout` does.
        Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Err(late()),
        Ok(reply) => reply,
        Err(_) => Err(late()),
    }
}

/// Sends a request, and waits for the reply, on this thread. Writing and reading take at most `most` each, but if the
/// daemon accepts no connection, this call may wait without a time limit.
pub fn ask_here(socket: &Path, request: &Request, most: Duration) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(most))?;
    stream.set_read_timeout(Some(most))?;
    send(&mut stream, request)?;
    receive(&stream)
}
