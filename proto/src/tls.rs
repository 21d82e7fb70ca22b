//! Mutual TLS between agents and aggregators. Each side proves to which user its process belongs, and accepts only
//! processes of the same user.
//!
//! A user has one certificate authority for each cluster. Each process makes its own certificate with the authority's
//! key, in memory, and renews the certificate at two thirds of its life ([`Identity`]). A certificate has the DNS
//! name `uUID.CLUSTER.mcr.internal`. Only TLS 1.3 is spoken, and no session is resumed.

pub mod gate;
mod sentences;

pub use sentences::{Other, TlsError, explain, explain_of, says_down, sentence_of};

use crate::{KEEPALIVE_RETRIES, KEEPALIVE_SECONDS, unix};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::{TlsAcceptor, TlsConnector, server};
use tonic::transport::{Channel, Endpoint};

/// Maximum number of handshakes at the same time. Further handshakes wait until one of them ends.
pub const HANDSHAKES_MAX: usize = 64;
/// Maximum duration of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Maximum duration of a handshake while there are [`HANDSHAKES_MAX`] handshakes. A handshake needs about 2 ms and
/// three packets.
const CROWDED_HANDSHAKE_MAX: Duration = Duration::from_secs(1);
/// Interval of the checks whether there are [`HANDSHAKES_MAX`] handshakes.
const CROWDED_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two checks whether the files of the authority have changed. A check happens only before a new
/// connection.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum duration of a check whether the files of the authority have changed. If the file system hangs, a
/// connection waits for this time at most.
const RELOAD_MAX: Duration = Duration::from_secs(2);
/// Maximum time to wait until the other side has read why its handshake failed.
const REASON_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are read after a handshake has failed. If the other side sends more, the other side
/// may miss the reason of the failure.
const REASON_BYTES_MAX: u64 = 256 << 10;
/// Life of a certificate.
const LIFE: Duration = Duration::from_secs(24 * 3600);
/// The validity of a certificate begins this long before the certificate is made, because the clocks of two nodes
/// differ.
const BACK_DATED: Duration = Duration::from_secs(600);
/// Life of a certificate authority: 10 years.
const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
/// The protocol above TLS, which is HTTP/2.
const ALPN: &[u8] = b"h2";
/// Domain of all DNS names in certificates. ICANN reserved this domain for private use.
const DOMAIN: &str = "mcr.internal";
/// The first and the last line of a certificate in `cluster.pem`.
const BEGIN_LINE: &str = "-----BEGIN CERTIFICATE-----";
const END_LINE: &str = "-----END CERTIFICATE-----";
/// Beginning of the line of `cluster.pem` that names the cluster.
const CLUSTER_LINE: &str = "# mcrEngine cluster ";

/// How an agent or an aggregator protects its connections.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Plaintext.
    #[default]
    Plain,
    /// Mutual TLS.
    Tls(Arc<Identity>),
}

impl Security {
    /// The security of connections to this address, `HOST:PORT`. An aggregator listens on this address, or an agent
    /// connects to this address.
    pub fn of_address(&self, address: &str) -> Self {
        if needs_tls(address) { self.clone() } else { Self::Plain }
    }
}

/// Whether connections to this address, `HOST:PORT`, need TLS. All addresses need TLS, except loopback addresses and
/// sockets in the file system. With `MCR_TLS=always` loopback addresses need TLS too. Only the text of the address
/// decides, because on some distributions the name of a node is a loopback address on the node itself.
pub fn needs_tls(address: &str) -> bool {
    if unix::path_of(address).is_some() {
        return false;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    !is_loopback || std::env::var_os("MCR_TLS").is_some_and(|value| value == "always")
}

/// Why an [`Identity`] cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The cluster's name cannot be part of a DNS name.
    #[error("the cluster's name is {0:?}; it must have 1 to 63 letters (a to z), digits and hyphens, as in my-cluster")]
    Name(String),
    /// The file of certificates does not name the cluster.
    #[error("cluster.pem has no line \"{CLUSTER_LINE}NAME\"")]
    NoCluster,
    /// A key or a certificate cannot be made or read.
    #[error("cluster.key is no private key, or it is damaged")]
    Key(#[from] rcgen::Error),
    /// The file of certificates cannot be read.
    #[error("cluster.pem has no certificates, or it is damaged")]
    Certificates(#[from] rustls::pki_types::pem::Error),
    /// A certificate cannot be used.
    #[error("cluster.pem and cluster.key do not belong together, or are not valid")]
    Tls(#[from] rustls::Error),
    /// There is no certificate authority.
    #[error("cluster.pem has no certificate that can be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The two files of a certificate authority.
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    /// `cluster.key`: the secret key.
    pub key: String,
    /// `cluster.pem`: the certificate. While a key is replaced, the file may have the certificates of both keys.
    pub certificates: String,
}

impl Authority {
    /// Makes a certificate authority for one user of a cluster.
    pub fn make(cluster: &str) -> Result<Self, IdentityError> {
        let key = KeyPair::generate()?;
        let certificate = authority(cluster)?.self_signed(&key)?;
        let certificates = format!("{CLUSTER_LINE}{cluster}\n{}", certificate.pem());
        Ok(Self { key: key.serialize_pem(), certificates })
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> Result<&str, IdentityError> {
        cluster_of(&self.certificates)
    }

    /// Each certificate of the file, and whether it belongs to the key.
    pub fn certificates(&self) -> Result<Vec<(String, bool)>, IdentityError> {
        let cluster = self.cluster()?;
        let mut all = Vec::new();
        for block in self.certificates.split_inclusive(END_LINE).filter(|block| block.contains(END_LINE)) {
            let pem = block.find(BEGIN_LINE).map_or(block, |begin| &block[begin..]).to_owned() + "\n";
            let alone = Self { key: self.key.clone(), certificates: format!("{CLUSTER_LINE}{cluster}\n{pem}") };
            all.push((pem, Identity::new(&alone, 0).is_ok()));
        }
        Ok(all)
    }

    /// Returns the authority of this cluster with this key, and with only the given certificates.
    pub fn with_certificates(&self, certificates: &[String]) -> Result<Self, IdentityError> {
        let certificates = format!("{CLUSTER_LINE}{}\n{}", self.cluster()?, certificates.concat());
        Ok(Self { key: self.key.clone(), certificates })
    }

    /// Makes a certificate for another key of the same cluster.
    pub fn certificate_of(&self, key: &str) -> Result<String, IdentityError> {
        Ok(authority(self.cluster()?)?.self_signed(&KeyPair::from_pem(key)?)?.pem())
    }
}

/// The contents of a certificate authority's own certificate.
fn authority(cluster: &str) -> Result<CertificateParams, IdentityError> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !(1..=63).contains(&cluster.len()) || !cluster.chars().all(is_part) || cluster.trim_matches('-') != cluster {
        return Err(IdentityError::Name(cluster.to_owned()));
    }
    let mut params = CertificateParams::new([])?;
    params.distinguished_name = called(&format!("mcrEngine {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(format!("{cluster}.{DOMAIN}"))],
        excluded_subtrees: Vec::new(),
    });
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - BACK_DATED).into(), (now + AUTHORITY_LIFE).into());
    Ok(params)
}

fn called(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// A function that reads the files of the authority again.
pub type Source = Arc<dyn Fn() -> Result<Authority, String> + Send + Sync>;

/// Makes the certificates of this process, and checks the certificates of other processes.
pub struct Identity {
    provider: Arc<CryptoProvider>,
    uid: u32,
    /// The DNS name of this user. The certificate of the other side must have this name too.
    name: ServerName<'static>,
    life: Duration,
    current: Mutex<Current>,
    /// Reads the files of the authority again. If the source is `None`, the files are read only once.
    source: Option<Source>,
    /// When the files of the authority were last read.
    read_at: tokio::sync::Mutex<Instant>,
    /// Whether a thread is reading the files.
    is_reading: Arc<AtomicBool>,
}

/// The last contents of the files of the authority, and the certificate that was made with these files.
struct Current {
    files: Authority,
    issuer: Issuer<'static, KeyPair>,
    roots: Arc<RootCertStore>,
    keys: Arc<Keys>,
    /// The last logged reason why the files could not be used. A repeated reason is not logged.
    told: String,
}

impl Current {
    fn new(
        files: Authority,
        provider: &Arc<CryptoProvider>,
        name: &ServerName<'static>,
        life: Duration,
    ) -> Result<Self, IdentityError> {
        let issuer = Issuer::new(authority(files.cluster()?)?, KeyPair::from_pem(&files.key)?);
        let (roots, now) = (Arc::new(roots_of(&files.certificates)?), SystemTime::now());
        let keys = Arc::new(keys(&issuer, &roots, provider, name, now - BACK_DATED..now + life)?);
        Ok(Self { files, issuer, roots, keys, told: String::new() })
    }
}

/// A certificate with its key, for both sides of a connection.
struct Keys {
    made: SystemTime,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Identity {
    /// Makes the identity of a user's process, with the user's certificate authority.
    pub fn new(authority: &Authority, uid: u32) -> Result<Self, IdentityError> {
        Self::with_life(authority, uid, LIFE)
    }

    /// Makes the identity read the files again before new connections. The authority can thereby be replaced while
    /// this process runs.
    pub fn reading_again(self, source: Source) -> Self {
        Self { source: Some(source), ..self }
    }

    fn with_life(files: &Authority, uid: u32, life: Duration) -> Result<Self, IdentityError> {
        let name = name_of(&files.certificates, uid)?;
        let provider = Arc::new(ring::default_provider());
        let current = Current::new(files.clone(), &provider, &name, life)?;
        Ok(Self {
            provider,
            uid,
            name,
            life,
            current: Mutex::new(current),
            source: None,
            read_at: tokio::sync::Mutex::new(Instant::now()),
            is_reading: Arc::default(),
        })
    }

    /// The certificate for the next connection. The files are read again first, if the last reading is older than
    /// [`RELOAD_INTERVAL`].
    async fn newest_keys(&self) -> Arc<Keys> {
        if let Some(source) = &self.source {
            let mut read_at = self.read_at.lock().await;
            if read_at.elapsed() >= RELOAD_INTERVAL && !self.is_reading.swap(true, Ordering::AcqRel) {
                let (source, is_reading) = (Arc::clone(source), Arc::clone(&self.is_reading));
                let read = tokio::task::spawn_blocking(move || {
                    let read = source();
                    is_reading.store(false, Ordering::Release);
                    read
                });
                if let Ok(Ok(read)) = tokio::time::timeout(RELOAD_MAX, read).await {
                    self.take(read);
                }
                *read_at = Instant::now();
            }
        }
        self.keys()
    }

    /// Uses the newly read files if they have changed. Files that cannot be used change nothing.
    fn take(&self, read: Result<Authority, String>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = match read {
            Ok(files) if files == current.files => return current.told.clear(),
            Ok(files) => match Current::new(files, &self.provider, &self.name, self.life) {
                Ok(new) => {
                    tracing::info!("the files of the certificate authority have changed and are used from now on");
                    *current = new;
                    return;
                }
                Err(error) => mcrengine::error_chain::error_chain(&error),
            },
            Err(error) => error,
        };
        if failed != current.told {
            tracing::error!(
                error = failed,
                "the new files of the certificate authority cannot be used, so the previous files stay in use; replace \
                 the new files"
            );
            current.told = failed;
        }
    }

    /// The certificate for the next connection. Makes a new certificate if the old certificate has reached two thirds
    /// of its life, or if the clock was set back.
    fn keys(&self) -> Arc<Keys> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        let is_new = match now.duration_since(current.keys.made) {
            Ok(age) => age < self.life * 2 / 3,
            Err(ahead) => ahead.duration() < BACK_DATED,
        };
        if !is_new {
            let valid = now - BACK_DATED..now + self.life;
            match keys(&current.issuer, &current.roots, &self.provider, &self.name, valid) {
                Ok(renewed) => current.keys = Arc::new(renewed),
                Err(error) => {
                    tracing::error!(
                        error = mcrengine::error_chain::error_chain(&error),
                        "the certificate is not renewed"
                    );
                }
            }
        }
        Arc::clone(&current.keys)
    }
}

/// The DNS name in the certificates of a user. `certificates` is the file of the user's authority.
fn name_of(certificates: &str, uid: u32) -> Result<ServerName<'static>, IdentityError> {
    server_name(format!("u{uid}.{}.{DOMAIN}", cluster_of(certificates)?))
}

fn server_name(name: String) -> Result<ServerName<'static>, IdentityError> {
    ServerName::try_from(name).map_err(|error| IdentityError::Name(error.to_string()))
}

/// Makes a certificate with its key.
fn leaf(
    issuer: &Issuer<'static, KeyPair>,
    name: &ServerName<'static>,
    valid: &std::ops::Range<SystemTime>,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), IdentityError> {
    let text = name.to_str().into_owned();
    let mut params = CertificateParams::new([text.clone()])?;
    params.distinguished_name = called(&text);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (params.not_before, params.not_after) = (valid.start.into(), valid.end.into());
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?.der().clone();
    Ok((certificate, PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// The certificate authorities of a file.
fn roots_of(certificates: &str) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(certificates.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

/// The name of the cluster in a file of certificates.
fn cluster_of(certificates: &str) -> Result<&str, IdentityError> {
    let line = certificates.lines().find_map(|line| line.strip_prefix(CLUSTER_LINE));
    Ok(line.ok_or(IdentityError::NoCluster)?.trim())
}

/// Makes a certificate, and checks the certificate like the other side does.
fn keys(
    issuer: &Issuer<'static, KeyPair>,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    name: &ServerName<'static>,
    valid: std::ops::Range<SystemTime>,
) -> Result<Keys, IdentityError> {
    let (certificate, key) = leaf(issuer, name, &valid)?;
    let versions = [&rustls::version::TLS13];
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider)).build()?;
    verifier.verify_client_cert(&certificate, &[], UnixTime::since_unix_epoch(age_of(valid.start + BACK_DATED)))?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.clone()], key.clone_key())?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&versions)?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(vec![certificate.clone()], key.clone_key())?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Keys {
        made: valid.start + BACK_DATED,
        certificate,
        key,
        acceptor: TlsAcceptor::from(Arc::new(server)),
        connector: TlsConnector::from(Arc::new(client)),
    })
}

fn age_of(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Does the handshake of an aggregator with a client. The semaphore `handshakes` has [`HANDSHAKES_MAX`] permits. A
/// client that sends nothing takes no permit.
pub async fn accept(
    identity: &Identity,
    stream: TcpStream,
    handshakes: &Semaphore,
) -> Result<server::TlsStream<TcpStream>, TlsError> {
    let silent = |_| TlsError::silent(HANDSHAKE_MAX, Other::Client);
    let _ = tokio::time::timeout(HANDSHAKE_MAX, stream.readable()).await.map_err(silent)?;
    let _room = handshakes.acquire().await;
    let handshake = identity.newest_keys().await.acceptor.accept(stream).into_fallible();
    let stream = tokio::select! {
        done = handshake => match done {
            Ok(stream) => stream,
            Err((error, stream)) => {
                let_reason_arrive(stream).await;
                return Err(TlsError::of_handshake(&error, Other::Client));
            }
        },
        after = too_long(handshakes) => return Err(TlsError::silent(after, Other::Client)),
    };
    match check_name(&stream, &identity.name) {
        Ok(()) => Ok(stream),
        Err(error) => Err(TlsError::of(&error, Other::Client)),
    }
}

/// Checks the name of a client. rustls checks only the name of a server.
fn check_name(stream: &server::TlsStream<TcpStream>, name: &ServerName<'static>) -> Result<(), rustls::Error> {
    let certificates = stream.get_ref().1.peer_certificates();
    let first = certificates.and_then(<[_]>::first).ok_or(rustls::Error::NoCertificatesPresented)?;
    let valid = webpki::EndEntityCert::try_from(first).and_then(|it| it.verify_is_valid_for_subject_name(name));
    valid.map_err(|_| rustls::CertificateError::NotValidForName.into())
}

/// Waits until a handshake has taken too long, and returns the waited time. The limit is [`CROWDED_HANDSHAKE_MAX`] if
/// `handshakes` has no free permit, and [`HANDSHAKE_MAX`] otherwise.
async fn too_long(handshakes: &Semaphore) -> Duration {
    tokio::time::sleep(CROWDED_HANDSHAKE_MAX).await;
    let mut waited = CROWDED_HANDSHAKE_MAX;
    while waited < HANDSHAKE_MAX && handshakes.available_permits() > 0 {
        tokio::time::sleep(CROWDED_CHECK_INTERVAL).await;
        waited += CROWDED_CHECK_INTERVAL;
    }
    waited
}

/// Reads and drops the bytes that the other side has sent. If a socket is closed while it has unread bytes, the other
/// side does not receive the reason for the failure.
async fn let_reason_arrive(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = stream.take(REASON_BYTES_MAX);
    let _ = tokio::time::timeout(REASON_MAX, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}

/// Connects to an aggregator with TLS. The URL of `endpoint` is the address with `http://` before it.
pub async fn connect(
    endpoint: &Endpoint,
    address: &str,
    identity: &Arc<Identity>,
) -> Result<Channel, tonic::transport::Error> {
    let (address, identity) = (address.to_owned(), Arc::clone(identity));
    let dial = move |_: tonic::codegen::http::Uri| {
        let (address, identity) = (address.clone(), Arc::clone(&identity));
        async move { dial(&address, &identity).await.map(TokioIo::new) }
    };
    endpoint.connect_with_connector(tower::service_fn(dial)).await
}

async fn dial(address: &str, identity: &Identity) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        prepare(&stream)?;
        let handshake = identity.newest_keys().await.connector.connect(identity.name.clone(), stream);
        handshake.await.map_err(|error| io::Error::other(TlsError::of_handshake(&error, Other::Aggregator)))
    };
    let silent = |_| io::Error::other(TlsError::silent(HANDSHAKE_MAX, Other::Aggregator));
    tokio::time::timeout(HANDSHAKE_MAX, connect).await.map_err(silent)?
}

/// Sets the TCP options that tonic sets only on its own connections. Without the keep-alive probes, an agent at rest
/// would not notice that its aggregator has ended.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval) = KEEPALIVE_SECONDS;
    let seconds = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds(idle))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds(interval))?;
    Ok(setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_RETRIES)?)
}

#[cfg(test)]
mod tests;
