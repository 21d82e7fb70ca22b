//! Decides who may see the page: a request needs the token, and the name of a loopback address.

use crate::http::Question;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::uri::Authority;
use std::fmt;
use std::io::Read;
use std::net::IpAddr;

/// Length of a random text before it is written as hexadecimal digits, in bytes. A guess is right with a probability
/// of 1 in 2^128.
const RANDOM_BYTES: usize = 16;

/// Random hexadecimal digits.
///
/// # Errors
///
/// The system gives no random numbers.
pub fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The secret in the address of the page.
pub struct Token(String);

/// Why a request gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another name than a loopback name: a page of another site may have made the browser ask (DNS rebinding).
    #[error("this page answers only requests for localhost, 127.0.0.1 or [::1]; use ssh -L from another machine")]
    Host,
    /// No token, or another token.
    #[error("the token is missing or wrong; open the whole address that mcr printed, which ends with ?token=...")]
    Token,
}

impl Token {
    /// A new token.
    ///
    /// # Errors
    ///
    /// The system gives no random numbers.
    pub fn new() -> std::io::Result<Self> {
        random_hex().map(Self)
    }

    /// Checks the header `Host` and the token, which is in the header `Authorization` or in the address.
    pub fn check(&self, question: &Question) -> Result<(), Refused> {
        let host = question.headers.get(HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(is_loopback) {
            return Err(Refused::Host);
        }
        let header = question.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let query = question.uri.query().unwrap_or_default();
        let in_address = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        let given = header.or(in_address).unwrap_or_default();
        // Digests of BLAKE3 are compared in constant time, and the digest of a guess says nothing about the token.
        match blake3::hash(given.as_bytes()) == blake3::hash(self.0.as_bytes()) {
            true => Ok(()),
            false => Err(Refused::Token),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a host, with or without a port, is a loopback address or `localhost`.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn question(uri: &str, headers: &[(&str, &str)]) -> Question {
        let request = headers.iter().fold(Request::get(uri), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_the_names_of_loopback_addresses_are_hosts() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:7118", "127.8.8.8", "[::1]", "[::1]:7118"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["", "example.org", "localhost.example.org:80", "10.0.0.7", "0.0.0.0", "[::]", "127.0.0.1.nip.io"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn the_token_is_in_the_header_or_in_the_address_and_a_part_of_it_is_not_enough() {
        let token = Token::new().expect("random numbers");
        assert_eq!(token.0.len(), 2 * RANDOM_BYTES);
        let host = ("host", "localhost:1");
        let bearer = format!("Bearer {token}");
        let uri = |token: &str| format!("/?a=b&token={token}");
        assert_eq!(token.check(&question("/", &[host, ("authorization", &bearer)])), Ok(()));
        assert_eq!(token.check(&question(&uri(&token.0), &[host])), Ok(()));
        assert_eq!(token.check(&question(&uri(&token.0), &[("host", "example.org")])), Err(Refused::Host));
        assert_eq!(token.check(&question(&uri(&token.0), &[])), Err(Refused::Host));
        let other = Token::new().expect("random numbers");
        for uri in ["/".to_owned(), uri(""), uri(&token.0[1..]), uri(&other.0), format!("/?x{}", token.0)] {
            assert_eq!(token.check(&question(&uri, &[host])), Err(Refused::Token), "{uri}");
        }
        let wrong = question(&uri(&token.0), &[host, ("authorization", "Bearer x")]);
        assert_eq!(token.check(&wrong), Err(Refused::Token));
    }
}
