//! Messages for people about connections that fail, in particular because of TLS.

use mcrengine::error_chain::error_chain;
use rustls::{AlertDescription, CertificateError, Error as Rustls};
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;
use tonic::Status;

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// An aggregator.
    Aggregator,
    /// An agent, or a command.
    Client,
    /// The gate of an aggregator node.
    Gate,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aggregator => "the aggregator",
            Self::Client => "the client",
            Self::Gate => "the gate",
        })
    }
}

/// A connection failed because of TLS. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(pub(super) String);

const REFUSED: &str = "connection refused, no process listens there";
const TIMED_OUT: &str = "does not answer, the connection timed out";
const SAME_SETTING: &str = "use the same setting of tls in the cluster's file on all nodes";
const SAME_FILES: &str = "all nodes need the same files cluster.key and cluster.pem, which mcr cert init makes once \
    for each user";
const GATE_FILES: &str = "the node of the agent needs the file cluster.pem of the gate (directory in [gate]), and \
    the node of the gate needs the file cluster.pem of the user";
const CLOCKS: &str = "compare the clocks of both nodes (date)";

impl TlsError {
    pub(super) fn of(error: &Rustls, other: Other) -> Self {
        Self(sentence(error, other))
    }

    /// The error of a handshake.
    pub(super) fn of_handshake(error: &io::Error, other: Other) -> Self {
        if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            return Self::of(error, other);
        }
        Self(match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                format!(
                    "{other} closed the connection during the TLS handshake; if it does not use TLS, {SAME_SETTING}"
                )
            }
            _ => format!("the TLS handshake failed ({error})"),
        })
    }

    pub(super) fn silent(after: Duration, other: Other) -> Self {
        Self(format!("{other} did not finish the TLS handshake within {} ms", after.as_millis()))
    }
}

/// Says what happened, and what to do.
fn sentence(error: &Rustls, other: Other) -> String {
    use AlertDescription as Alert;
    use CertificateError as Certificate;
    let same_files = if other == Other::Gate { GATE_FILES } else { SAME_FILES };
    match error {
        Rustls::InvalidMessage(_) => format!("{other} does not use TLS, but this process does; {SAME_SETTING}"),
        Rustls::NoCertificatesPresented => format!("{other} has no certificate; {same_files}"),
        Rustls::AlertReceived(Alert::CertificateRequired) => {
            format!("this process has no certificate, but {other} needs one; {same_files}")
        }
        Rustls::InvalidCertificate(Certificate::NotValidForName | Certificate::NotValidForNameContext { .. }) => {
            format!("{other} belongs to another user or to another cluster; this process refuses it")
        }
        Rustls::AlertReceived(Alert::BadCertificate) => {
            format!("{other} belongs to another user or to another cluster; it refuses this process")
        }
        Rustls::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
            format!("another certificate authority made the certificate of {other}; {same_files}")
        }
        Rustls::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            format!("{other} trusts another certificate authority and refuses this process; {same_files}")
        }
        Rustls::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
            format!("by the clock of this node, the certificate of {other} has expired; {CLOCKS}")
        }
        Rustls::InvalidCertificate(Certificate::NotValidYet | Certificate::NotValidYetContext { .. }) => {
            format!("by the clock of this node, the certificate of {other} is not valid yet; {CLOCKS}")
        }
        Rustls::AlertReceived(Alert::CertificateExpired) => {
            format!(
                "by the clock of {other}, the certificate of this process has expired, or is not valid yet; {CLOCKS}"
            )
        }
        Rustls::InvalidCertificate(error) => {
            format!("the certificate of {other} cannot be used ({error}); {same_files}")
        }
        error => format!("TLS failed ({error})"),
    }
}

/// The message for an error of a connection to an aggregator. `None` if TLS is not the cause.
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    explain_of(error, Other::Aggregator)
}

/// A sentence that explains an error of a connection to the process `other`, if TLS is the cause.
pub fn explain_of(error: &(dyn Error + 'static), other: Other) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.find_map(|cause| {
        let of_io =
            cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref).map(|inner| inner as &(dyn Error + 'static));
        [Some(cause), of_io].into_iter().flatten().find_map(|cause| of_one(cause, other))
    })
}

/// One sentence that explains why a connection to the process `other`, or a call over the connection, failed. The
/// answer of the other process to a call is returned unchanged.
pub fn sentence_of(error: &(dyn Error + 'static), other: Other) -> String {
    if let Some(sentence) = explain_of(error, other) {
        return sentence;
    }
    let causes = || std::iter::successors(Some(error), |error| (*error).source());
    if let Some(io) = causes().filter_map(|cause| cause.downcast_ref::<io::Error>()).last() {
        return match io.kind() {
            io::ErrorKind::ConnectionRefused => REFUSED.to_owned(),
            io::ErrorKind::TimedOut => format!("{other} {TIMED_OUT}"),
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => format!("the connection to {other} broke"),
            io::ErrorKind::NotFound => {
                "there is no such socket, so check its path, and whether the process runs".to_owned()
            }
            _ => io.to_string(),
        };
    }
    match (error.downcast_ref::<Status>(), causes().skip(1).last()) {
        // Only an error of the transport has a cause.
        (Some(_), Some(cause)) => format!("the connection to {other} broke ({cause})"),
        (Some(status), None) => status.message().to_owned(),
        (None, _) => error_chain(error),
    }
}

fn of_one(cause: &(dyn Error + 'static), other: Other) -> Option<String> {
    if let Some(TlsError(sentence)) = cause.downcast_ref() {
        return Some(sentence.clone());
    }
    if let Some(error) = cause.downcast_ref() {
        return Some(sentence(error, other));
    }
    if let Some(alert) = alert_in(&cause.to_string()) {
        return Some(sentence(&Rustls::AlertReceived(alert), other));
    }
    // hyper reads the first bytes of TLS as a frame of HTTP/2 with an invalid size, and also those of other programs.
    let uses_tls = cause.to_string().contains("frame with invalid size");
    uses_tls.then(|| {
        format!(
            "{other} uses TLS, but this process does not, or another program answers at this port; check the port, dial \
             {other} by the name of its node instead of a loopback address, or {SAME_SETTING}"
        )
    })
}

/// The alert in the text of an error. After a handshake, an alert arrives in the data of HTTP/2, whose library keeps
/// only the text of the error.
fn alert_in(text: &str) -> Option<AlertDescription> {
    use AlertDescription as Alert;
    const ALERTS: [Alert; 5] = [
        Alert::BadCertificate,
        Alert::CertificateExpired,
        Alert::CertificateRequired,
        Alert::DecryptError,
        Alert::UnknownCA,
    ];
    let (_, name) = text.rsplit_once("received fatal alert: ")?;
    let letters = |text: &str| text.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_lowercase();
    ALERTS.into_iter().find(|alert| letters(&format!("{alert:?}")) == letters(name))
}

/// Whether a sentence of [`sentence_of`] means that the other process has ended or does not answer. The other sentences
/// name another cause, such as a wrong address, a wrong certificate or a wrong clock.
pub fn says_down(sentence: &str) -> bool {
    let is_broken = sentence.contains("the connection to ") && sentence.contains(" broke");
    sentence.ends_with(REFUSED) || sentence.ends_with(TIMED_OUT) || is_broken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a library that has the same text as its cause.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Box<dyn Error + Send + Sync>,
    }

    fn layer(text: &'static str, source: impl Error + Send + Sync + 'static) -> Layer {
        Layer { text, source: Box::new(source) }
    }

    #[test]
    fn a_failed_connection_is_explained_in_one_sentence() {
        let dialled = |kind: io::ErrorKind| {
            let connect = "tcp connect error";
            layer("transport error", layer(connect, layer(connect, io::Error::from(kind))))
        };
        let of = |error: &(dyn Error + 'static)| sentence_of(error, Other::Aggregator);
        for (kind, sentence) in [
            (io::ErrorKind::ConnectionRefused, "connection refused, no process listens there"),
            (io::ErrorKind::TimedOut, "the aggregator does not answer, the connection timed out"),
            (io::ErrorKind::ConnectionReset, "the connection to the aggregator broke"),
        ] {
            assert_eq!(of(&dialled(kind)), sentence);
            assert!(says_down(sentence) && says_down(&format!("n1:7117: {sentence}")));
            assert_eq!(of(&Status::from_error(Box::new(dialled(kind)))), sentence);
        }
        let closed = layer("error reading a body from connection", layer("stream closed", fmt::Error));
        let text = of(&Status::from_error(Box::new(closed)));
        assert_eq!(text, format!("the connection to the aggregator broke ({})", fmt::Error));
        assert_eq!(of(&Status::unavailable("try again in 5 s")), "try again in 5 s");
        assert_eq!(of(&layer("invalid", layer("invalid", fmt::Error))), format!("invalid: {}", fmt::Error));
        let no_socket = of(&dialled(io::ErrorKind::NotFound));
        assert!(no_socket.contains("there is no such socket") && !says_down(&no_socket), "{no_socket}");
    }

    #[test]
    fn an_alert_that_arrives_as_a_text_is_explained_like_an_alert_of_the_handshake() {
        for (alert, says) in [
            ("CertificateExpired", "by the clock of the aggregator, the certificate of this process has expired"),
            ("certificate expired", "compare the clocks of both nodes (date)"),
            ("UnknownCA", "trusts another certificate authority"),
        ] {
            let raw = io::Error::other(format!("received fatal alert: {alert}"));
            let sentence = sentence_of(&layer("connection error", raw), Other::Aggregator);
            assert!(sentence.contains(says) && !says_down(&sentence), "{sentence}");
        }
        let other = io::Error::other("received fatal alert: InternalError");
        assert!(sentence_of(&other, Other::Aggregator).contains("InternalError"));
    }
}
