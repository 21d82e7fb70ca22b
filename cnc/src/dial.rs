//! Connects an agent or a command to an aggregator.

use mcr_proto::tls::{self, Other, Security, sentence_of};
use mcr_proto::unix;
use mcr_proto::v1::aggregator_client::AggregatorClient;
use mcr_proto::{KEEPALIVE_RETRIES, KEEPALIVE_SECONDS, MESSAGE_BYTES_MAX};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// If an address does not answer within this time, the next address is tried as well.
const STAGGER: Duration = Duration::from_millis(50);
/// Maximum number of addresses that are tried at the same time.
const DIALS_MAX: usize = 64;

/// Makes a client for an address, with the limits and deadlines of the protocol.
pub async fn dial_address(address: &str, security: &Security) -> Result<AggregatorClient<Channel>, String> {
    Ok(AggregatorClient::new(connect(address, security).await?)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

/// Connects to an address. The kernel sends keep-alive probes, so this process does not wake up for these probes.
pub(crate) async fn connect(address: &str, security: &Security) -> Result<Channel, String> {
    let socket = unix::path_of(address);
    let host = if socket.is_some() { "localhost" } else { address };
    let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(|error| format!("{address}: {error}"))?;
    let (idle, interval) = KEEPALIVE_SECONDS;
    let endpoint = (endpoint.connect_timeout(Duration::from_secs(10)))
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(idle)))
        .tcp_keepalive_interval(Some(Duration::from_secs(interval)))
        .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let channel = match (socket, security.of_address(address)) {
        (Some(path), _) => unix::channel(&endpoint, path).await,
        (None, Security::Plain) => endpoint.connect().await,
        (None, Security::Tls(identity)) => tls::connect(&endpoint, address, &identity).await,
    };
    channel.map_err(|error| format!("{address}: {}", sentence_of(&error, Other::Aggregator)))
}

/// Connects to one of the addresses, and returns its index. An address that does not answer does not delay the
/// others, because another user's process may listen on the address, and never answer. If several addresses are
/// given, waits at most `patience` after the last address was tried.
pub(crate) async fn connect_to_one(
    addresses: Vec<String>,
    patience: Duration,
    security: &Security,
) -> Result<(usize, Channel), String> {
    if let [address] = addresses.as_slice() {
        return Ok((0, connect(address, security).await?));
    }
    let mut failure = "there is no address".to_owned();
    let mut dials = JoinSet::new(); // Dropping the set ends all attempts.
    let mut pending = BTreeMap::new();
    let mut last = Instant::now();
    let mut addresses = addresses.into_iter().enumerate().peekable();
    loop {
        if dials.len() < DIALS_MAX
            && let Some((index, address)) = addresses.next()
        {
            last = Instant::now();
            let security = security.clone();
            pending.insert(index, address.clone());
            dials.spawn(async move { (index, connect(&address, &security).await) });
        }
        let has_more = addresses.peek().is_some();
        let wait = if has_more && dials.len() < DIALS_MAX { STAGGER } else { patience };
        match tokio::time::timeout_at(last + wait, dials.join_next()).await {
            Ok(Some(Ok((index, Ok(channel))))) => return Ok((index, channel)),
            Ok(Some(Ok((index, Err(reason))))) => {
                pending.remove(&index);
                failure = reason;
            }
            Ok(None) if !has_more => return Err(failure),
            Err(_) if !has_more => {
                let silent = pending.into_values().next().unwrap_or_default();
                return Err(format!("{silent}: no answer within {} ms", patience.as_millis()));
            }
            // An attempt panicked, or further addresses follow.
            Ok(_) | Err(_) => last = Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_aggregator_that_does_not_run_is_reported_in_one_sentence() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let refused = dial_address(&address, &Security::Plain).await.map(drop);
        assert_eq!(refused, Err(format!("{address}: connection refused, no process listens there")));
    }
}
