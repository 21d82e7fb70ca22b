//! TLS between the agents of all users and the gate of an aggregator node.
//!
//! All nodes trust the gate's certificate authority, which is not the authority of a user. An agent asks for the
//! server `uUID.gate.CLUSTER.mcr.internal`. From this name, the gate knows the uid of the agent's user before it
//! answers. The gate then accepts only a certificate that was made by the authority in this user's home directory on
//! the gate's node. So the files in the home directory prove the user, like the file `authorized_keys` of ssh.

use super::{
    ALPN, Authority, BACK_DATED, DOMAIN, HANDSHAKE_MAX, Identity, IdentityError, LIFE, Other, TlsError, check_name,
    cluster_of, leaf, let_reason_arrive, name_of, prepare, roots_of, server_name, too_long,
};
use hyper_util::rt::TokioIo;
use mcrengine::error_chain::error_chain;
use rcgen::{Issuer, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};
use tonic::transport::{Channel, Endpoint};

/// Part of the DNS names of gates. The DNS names of agents and aggregators do not have this part.
const GATE: &str = "gate";
/// Time after which the file of a user is read again.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// Time after which the file of a user is read again, if the file could not be used.
const READ_AGAIN_REFUSED: Duration = Duration::from_secs(5);
/// Maximum number of users' files that are read at the same time. Any process that can connect to the port can cause
/// such a read.
const READS_MAX: usize = 2;
/// Maximum number of users whose file is remembered.
const USERS_MAX: usize = 4096;

/// Reads the authority of the gate.
pub type GateSource = Box<dyn Fn() -> Result<Authority, String> + Send + Sync>;
/// Reads the file `cluster.pem` of a user, as this user. May block for a few seconds.
pub type UserSource = Box<dyn Fn(u32) -> Result<String, String> + Send + Sync>;
/// A connection to a gate whose user is known.
pub type GateStream = server::TlsStream<TcpStream>;

/// The gate's side of TLS. Decides which clients may connect.
pub struct GateDoor {
    provider: Arc<CryptoProvider>,
    source: GateSource,
    users: UserSource,
    known: Mutex<BTreeMap<u32, Arc<Known>>>,
    reads: Semaphore,
}

/// The remembered file of a user.
struct Known {
    read: Instant,
    config: Arc<ServerConfig>,
    /// The DNS name in the certificates of the user, or the reason why the user is refused.
    name: Result<ServerName<'static>, String>,
}

impl Known {
    fn is_new(&self) -> bool {
        self.read.elapsed() < if self.name.is_ok() { READ_AGAIN } else { READ_AGAIN_REFUSED }
    }
}

impl fmt::Debug for GateDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateDoor").finish_non_exhaustive()
    }
}

impl GateDoor {
    /// Fails if the files of the gate cannot be used.
    pub fn new(source: GateSource, users: UserSource) -> Result<Self, String> {
        let files = source()?;
        let door = Self {
            provider: Arc::new(ring::default_provider()),
            source,
            users,
            known: Mutex::default(),
            reads: Semaphore::new(READS_MAX),
        };
        door.config(&files, 0, roots_of(&files.certificates)).map_err(|error| error_chain(&error))?;
        Ok(door)
    }

    /// The handshake with a client. Returns the connection and the uid of the client's user. `handshakes` bounds the
    /// number of handshakes at the same time.
    pub async fn accept(
        self: &Arc<Self>,
        stream: TcpStream,
        handshakes: &Semaphore,
    ) -> Result<(GateStream, u32), TlsError> {
        let silent = |after| TlsError::silent(after, Other::Client);
        // A client that sends nothing does not count as a handshake.
        let _ = tokio::time::timeout(HANDSHAKE_MAX, stream.readable()).await.map_err(|_| silent(HANDSHAKE_MAX))?;
        let _room = handshakes.acquire().await;
        tokio::select! {
            met = self.meet(stream) => met,
            after = too_long(handshakes) => Err(silent(after)),
        }
    }

    async fn meet(self: &Arc<Self>, stream: TcpStream) -> Result<(GateStream, u32), TlsError> {
        let failed = |error: io::Error| TlsError::of_handshake(&error, Other::Client);
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(failed)?;
        let asked = start.client_hello().server_name().map(str::to_owned).unwrap_or_default();
        let uid = uid_of(&asked).ok_or_else(|| {
            TlsError(format!(
                "the client asked for the server {asked:?}, which is no gate; it may be an agent that looks \
                              for an aggregator"
            ))
        })?;
        let known = self.known(uid).await.map_err(TlsError)?;
        let stream = match start.into_stream(Arc::clone(&known.config)).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                let_reason_arrive(stream).await;
                let why = known.name.as_ref().err().map_or_else(|| failed(error).to_string(), Clone::clone);
                return Err(TlsError(format!("user {uid}: {why}")));
            }
        };
        let name = known.name.as_ref().map_err(|why| TlsError(format!("user {uid}: {why}")))?;
        match check_name(&stream, name) {
            Ok(()) => Ok((stream, uid)),
            Err(error) => Err(TlsError::of(&error, Other::Client)),
        }
    }

    /// Returns the remembered file of a user. Reads the file if it is not remembered, or was remembered
    /// too long ago.
    async fn known(self: &Arc<Self>, uid: u32) -> Result<Arc<Known>, String> {
        if let Some(known) = self.remembered(uid) {
            return Ok(known);
        }
        let _read = self.reads.acquire().await;
        if let Some(known) = self.remembered(uid) {
            return Ok(known);
        }
        let door = Arc::clone(self);
        // The file is remembered even if the client disconnects while the file is being read.
        let read = move || {
            let known = Arc::new(door.read(uid)?);
            door.remember(uid, &known);
            Ok(known)
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
    }

    fn remember(&self, uid: u32, known: &Arc<Known>) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= USERS_MAX {
            all.retain(|_, known| known.is_new());
        }
        if all.len() < USERS_MAX {
            all.insert(uid, Arc::clone(known));
        }
    }

    fn remembered(&self, uid: u32) -> Option<Arc<Known>> {
        let all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&uid).filter(|known| known.is_new()).cloned()
    }

    fn read(&self, uid: u32) -> Result<Known, String> {
        let files = (self.source)()?;
        let user = (self.users)(uid).and_then(|certificates| {
            let name = name_of(&certificates, uid).map_err(|error| error_chain(&error))?;
            Ok((name, roots_of(&certificates).map_err(|error| error_chain(&error))?))
        });
        // If a user has no file that can be used, TLS must refuse the client. Therefore the gate then accepts only
        // certificates from its own authority, which makes no certificates of users.
        let (name, roots) = match user {
            Ok((name, roots)) => (Ok(name), Ok(roots)),
            Err(why) => (Err(why), roots_of(&files.certificates)),
        };
        let config = match self.config(&files, uid, roots) {
            Ok(config) => config,
            Err(error) => return Err(error_chain(&error)),
        };
        Ok(Known { read: Instant::now(), config, name })
    }

    fn config(
        &self,
        files: &Authority,
        uid: u32,
        roots: Result<RootCertStore, IdentityError>,
    ) -> Result<Arc<ServerConfig>, IdentityError> {
        let issuer = Issuer::new(super::authority(files.cluster()?)?, KeyPair::from_pem(&files.key)?);
        let now = SystemTime::now();
        let name = gate_name(files.cluster()?, uid)?;
        let (certificate, key) = leaf(&issuer, &name, &(now - BACK_DATED..now + LIFE))?;
        let (roots, provider) = (Arc::new(roots?), Arc::clone(&self.provider));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn gate_name(cluster: &str, uid: u32) -> Result<ServerName<'static>, IdentityError> {
    server_name(format!("u{uid}.{GATE}.{cluster}.{DOMAIN}"))
}

/// The uid in the DNS name of a gate.
fn uid_of(name: &str) -> Option<u32> {
    let (user, rest) = name.split_once('.')?;
    rest.strip_prefix(GATE)?.strip_prefix('.')?;
    let number = user.strip_prefix('u')?;
    let uid: u32 = number.parse().ok()?;
    // A uid with a sign or leading zeros is refused, so each user has only one name.
    (uid.to_string() == number).then_some(uid)
}

/// The agent's side of TLS. Knows the certificate authority of the gates.
#[derive(Clone, Debug)]
pub struct GateTrust {
    cluster: String,
    roots: Arc<RootCertStore>,
}

impl GateTrust {
    /// `certificates` is the text of the gate's file `cluster.pem`.
    pub fn new(certificates: &str) -> Result<Self, IdentityError> {
        let cluster = cluster_of(certificates)?.to_owned();
        Ok(Self { cluster, roots: Arc::new(roots_of(certificates)?) })
    }

    /// Connects to a gate as a user. `endpoint` has the address with `http://`.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        address: &str,
        identity: &Arc<Identity>,
    ) -> Result<Channel, tonic::transport::Error> {
        let (address, identity, trust) = (address.to_owned(), Arc::clone(identity), self.clone());
        let dial = move |_: tonic::codegen::http::Uri| {
            let (address, identity, trust) = (address.clone(), Arc::clone(&identity), trust.clone());
            async move { trust.dial(&address, &identity).await.map(TokioIo::new) }
        };
        endpoint.connect_with_connector(tower::service_fn(dial)).await
    }

    async fn dial(&self, address: &str, identity: &Identity) -> io::Result<client::TlsStream<TcpStream>> {
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            prepare(&stream)?;
            let keys = identity.newest_keys().await;
            let mut config = ClientConfig::builder_with_provider(Arc::clone(&identity.provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .and_then(|builder| {
                    let certificate = vec![keys.certificate.clone()];
                    let builder = builder.with_root_certificates(Arc::clone(&self.roots));
                    builder.with_client_auth_cert(certificate, keys.key.clone_key())
                })
                .map_err(io::Error::other)?;
            config.alpn_protocols = vec![ALPN.to_vec()];
            config.resumption = Resumption::disabled();
            let name = gate_name(&self.cluster, identity.uid).map_err(io::Error::other)?;
            let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
            handshake.await.map_err(|error| io::Error::other(TlsError::of_handshake(&error, Other::Gate)))
        };
        let silent = |_| io::Error::other(TlsError::silent(HANDSHAKE_MAX, Other::Gate));
        tokio::time::timeout(HANDSHAKE_MAX, connect).await.map_err(silent)?
    }
}

#[cfg(test)]
mod tests {
    use super::super::explain_of;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn authority(cluster: &str) -> Authority {
        Authority::make(cluster).expect("made")
    }

    /// A gate. On its node, the users 6001 and 6002 have the files `users`.
    fn door(gate: &Authority, users: [&Authority; 2]) -> Arc<GateDoor> {
        let (gate, users) = (gate.clone(), users.map(|user| user.certificates.clone()));
        let of_user = move |uid: u32| match uid {
            6001 | 6002 => Ok(users[uid as usize - 6001].clone()),
            _ => Err("there is no such user".to_owned()),
        };
        Arc::new(GateDoor::new(Box::new(move || Ok(gate.clone())), Box::new(of_user)).expect("a gate"))
    }

    /// Connects a client to a gate, and lets the gate send one byte. Returns the result of the gate and the result of
    /// the client.
    async fn meet(
        door: &Arc<GateDoor>,
        trust: &Authority,
        client: &Identity,
    ) -> (Result<u32, String>, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let door = Arc::clone(door);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a connection");
            let (mut stream, uid) = door.accept(stream, &Semaphore::new(1)).await.map_err(|error| error.to_string())?;
            stream.write_all(b"x").await.map_err(|error| error.to_string()).map(|()| uid)
        });
        let trust = GateTrust::new(&trust.certificates).expect("trusted");
        let asked = async {
            let mut stream = trust.dial(&address, client).await?;
            stream.read_u8().await.map(drop)
        };
        let told = |error: io::Error| explain_of(&error, Other::Gate).unwrap_or_else(|| error.to_string());
        let asked = asked.await.map_err(told);
        (serving.await.expect("no panic"), asked)
    }

    #[tokio::test]
    async fn a_gate_knows_the_user_by_the_authority_in_the_home_directory_of_the_user() {
        let (gate, alice, bob) = (authority("bed"), authority("alices"), authority("bed"));
        let door = door(&gate, [&alice, &bob]);
        let as_user = |files: &Authority, uid| Identity::new(files, uid).expect("an identity");
        assert_eq!(meet(&door, &gate, &as_user(&alice, 6001)).await, (Ok(6001), Ok(())));
        assert_eq!(meet(&door, &gate, &as_user(&bob, 6002)).await, (Ok(6002), Ok(())));
        // Bob can make every certificate with his own authority, but not with Alice's authority.
        let (at_gate, at_bob) = meet(&door, &gate, &as_user(&bob, 6001)).await;
        assert!(at_gate.expect_err("refused").starts_with("user 6001: "));
        assert!(at_bob.expect_err("refused").contains("the gate trusts another certificate authority"));
        let (at_gate, at_other) = meet(&door, &gate, &as_user(&bob, 7000)).await;
        assert_eq!(at_gate, Err("user 7000: there is no such user".into()));
        assert!(at_other.is_err());
        // The authority of the gate is not the authority of any user.
        let (at_gate, _) = meet(&door, &gate, &as_user(&gate, 7000)).await;
        assert_eq!(at_gate, Err("user 7000: there is no such user".into()));
    }

    #[tokio::test]
    async fn clients_that_stop_in_their_handshakes_make_room_for_others_after_a_second() {
        let (gate, alice) = (authority("bed"), authority("bed"));
        let door = door(&gate, [&alice, &alice]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let room = Arc::new(Semaphore::new(1));
        let next = async || listener.accept().await.expect("a connection").0;
        let serve = |stream| {
            let (door, room) = (Arc::clone(&door), Arc::clone(&room));
            let accept = async move { door.accept(stream, &room).await.map(|(_, uid)| uid).map_err(|e| e.to_string()) };
            tokio::spawn(accept)
        };
        let mut stuck = TcpStream::connect(&address).await.expect("connected");
        stuck.write_all(&[22]).await.expect("the first byte of a handshake");
        let stuck_served = serve(next().await);
        tokio::task::yield_now().await;
        let identity = Identity::new(&alice, 6001).expect("an identity");
        let trust = GateTrust::new(&gate.certificates).expect("trusted");
        let began = Instant::now();
        let served = async { serve(next().await).await.expect("no panic") };
        let (served, dialled) = tokio::join!(served, trust.dial(&address, &identity));
        assert!(dialled.is_ok() && began.elapsed() < Duration::from_secs(5), "{dialled:?}");
        assert_eq!(served, Ok(6001));
        assert!(stuck_served.await.expect("no panic").is_err_and(|why| why.contains("did not finish")));
    }

    #[tokio::test]
    async fn an_agent_refuses_a_gate_that_its_node_does_not_trust() {
        let (gate, alice, other) = (authority("bed"), authority("bed"), authority("bed"));
        let door = door(&gate, [&alice, &alice]);
        let identity = Identity::new(&alice, 6001).expect("an identity");
        for trusted in [&other, &alice] {
            let (at_gate, at_agent) = meet(&door, trusted, &identity).await;
            assert!(at_gate.is_err());
            assert!(at_agent.expect_err("refused").contains("made the certificate of the gate"));
        }
        // The certificates of another cluster have other DNS names.
        let elsewhere = authority("elsewhere");
        let (at_gate, at_agent) = meet(&door, &elsewhere, &identity).await;
        assert!(at_gate.is_err() && at_agent.is_err());
    }

    #[test]
    fn only_the_name_of_a_gate_with_a_plain_number_names_a_user() {
        assert_eq!(uid_of("u6001.gate.bed.mcr.internal"), Some(6001));
        for name in
            ["", "u6001.bed.mcr.internal", "u06001.gate.bed.mcr.internal", "u+1.gate.x", "6001.gate.x", "u1.gatex"]
        {
            assert_eq!(uid_of(name), None, "{name}");
        }
    }
}
