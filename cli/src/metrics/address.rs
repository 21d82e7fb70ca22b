//! The key `metrics`, the address at which a daemon serves metrics.

use std::net::SocketAddr;

/// The value of the key `metrics` is no address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("metrics = {text:?}; it must be ADDRESS:PORT, as in \"127.0.0.1:7118\"")]
pub struct WrongMetrics {
    text: String,
}

/// Parses the value of the key `metrics` of any table. Without the key (`None`), the result is `None`, and no metrics
/// are served.
pub fn metrics_address(text: Option<&str>) -> Result<Option<SocketAddr>, WrongMetrics> {
    let parse = |text: &str| text.parse().map_err(|_| WrongMetrics { text: text.to_owned() });
    text.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_number_and_a_port_and_the_error_shows_an_example() {
        assert_eq!(metrics_address(None), Ok(None));
        for text in ["127.0.0.1:7118", "[::1]:0"] {
            assert_eq!(metrics_address(Some(text)), Ok(text.parse().ok()));
        }
        for text in ["7118", "localhost:7118", "127.0.0.1", ""] {
            let error = metrics_address(Some(text)).expect_err(text).to_string();
            assert!(error.starts_with(&format!("metrics = {text:?}; it must be ADDRESS:PORT, as in")), "{error}");
        }
    }
}
