//! Sockets in the file system, for the processes of one user on one node.
//!
//! The mode of a socket is 0600. Each side gets the user of the other side from the kernel, and refuses every user
//! except its own user and root. Therefore a socket needs no TLS.

use hyper_util::rt::TokioIo;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};

/// Beginning of the address of an aggregator that listens on a socket. The path of the socket follows.
const PREFIX: &str = "unix:";

/// The address of an aggregator that listens on a socket.
pub fn address_of(path: &Path) -> String {
    format!("{PREFIX}{}", path.display())
}

/// The path of the socket, if the address is the address of a socket.
pub fn path_of(address: &str) -> Option<&Path> {
    address.strip_prefix(PREFIX).map(Path::new)
}

/// A short path of a socket. The kernel limits the path of a socket to 107 bytes, so the short path names the
/// directory by a file descriptor.
struct Short {
    _directory: File,
    path: PathBuf,
}

impl Short {
    fn of(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let directory = File::open(parent)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        Ok(Self { _directory: directory, path })
    }
}

/// The file of a socket. Dropping this value removes the file.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on a socket that only its user can open. Creates missing directories. A socket without a listener is
/// replaced, and a socket with a listener is an error ([`io::ErrorKind::AddrInUse`]). The caller must check the user
/// of each connection with [`check_peer`]. Must be called within a tokio runtime.
pub fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(&Short::of(path)?.path).is_ok() {
        let what = format!("{}: another process already uses this socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    }
    // The socket gets its final name only after the mode of the socket is set. So no process of another user can
    // connect before the mode is set.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = SocketFile(temporary.into());
    let _ = std::fs::remove_file(&temporary.0);
    let listener = UnixListener::bind(&Short::of(&temporary.0)?.path)?;
    std::fs::set_permissions(&temporary.0, Permissions::from_mode(0o600))?;
    std::fs::rename(&temporary.0, path)?;
    Ok((listener, SocketFile(path.to_owned())))
}

/// Refuses the other side of a connection if it belongs neither to this user nor to root.
pub fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let (own, peer) = (nix::unistd::geteuid().as_raw(), stream.peer_cred()?.uid());
    if [own, 0].contains(&peer) {
        return Ok(());
    }
    let why = format!("the other process belongs to user {peer}, and this one to user {own}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Connects to a socket of this user or of root.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(&Short::of(path)?.path).await?;
    check_peer(&stream)?;
    Ok(stream)
}

/// Makes a tonic channel over a socket. The host of `endpoint` is not used.
pub async fn channel(endpoint: &Endpoint, path: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = path.to_owned();
    let dial = move |_: tonic::codegen::http::Uri| {
        let path = path.clone();
        async move { connect(&path).await.map(TokioIo::new) }
    };
    endpoint.connect_with_connector(tower::service_fn(dial)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_only_for_its_user_is_never_taken_from_a_listener_and_goes_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        // The path of this socket is longer than the kernel allows.
        let path = dir.path().join("d".repeat(100)).join("agent.sock");
        let (listener, file) = listen(&path).expect("bound");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        let client = connect(&path).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        assert!(check_peer(&client).is_ok() && check_peer(&server).is_ok());
        let error = listen(&path).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop((listener, file));
        assert!(!path.exists());
        // A killed process leaves its socket in the directory.
        drop(std::os::unix::net::UnixListener::bind(&Short::of(&path).expect("short").path).expect("bound"));
        assert!(path.exists() && listen(&path).is_ok());
        assert_eq!(std::fs::read_dir(path.parent().expect("a parent")).expect("readable").count(), 0);
    }

    #[test]
    fn the_address_of_a_socket_has_its_path() {
        let path = Path::new("/home/a b/x.sock");
        assert_eq!(path_of(&address_of(path)), Some(path));
        assert_eq!(path_of("127.0.0.1:7117"), None);
    }
}
