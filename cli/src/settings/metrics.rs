//! The address at which a daemon of a node serves metrics.

use anyhow::bail;
use std::net::SocketAddr;

/// Parses the value of the key `metrics`. `None`: no metrics are served.
pub(super) fn metrics_address(text: Option<&str>) -> anyhow::Result<Option<SocketAddr>> {
    match text.map(|text| (text, text.parse())) {
        None => Ok(None),
        Some((_, Ok(address))) => Ok(Some(address)),
        Some((text, Err(_))) => bail!("metrics = {text:?}; it must be ADDRESS:PORT, as in \"127.0.0.1:7116\""),
    }
}
