//! The values of options: numbers of bytes, percentages, and schemes.

use mcr_cnc::config::is_host_and_port;
use mcr_proto::unix;
use mcrengine::parity::ParityPercent;
use mcrengine::plan::Scheme;

/// Parses a number of bytes. K, M, G and T are powers of 1024.
pub fn byte_count(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is not a number of bytes; write for example 1048576, 512M or 2G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(error()),
    };
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

/// Parses a number that must not be 0.
pub fn at_least_one(text: &str) -> Result<std::num::NonZeroU32, String> {
    text.parse().map_err(|_| format!("{text:?} must be a number, at least 1"))
}

pub fn block_bytes(text: &str) -> Result<std::num::NonZeroU32, String> {
    let bytes = byte_count(text)?;
    let bytes = u32::try_from(bytes).ok().and_then(std::num::NonZeroU32::new);
    bytes.ok_or_else(|| format!("{text:?}: a block has 1 byte to 4 GiB"))
}

pub fn scheme(name: &str) -> Result<Scheme, String> {
    let known = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| format!("known schemes: {}", known()))
}

/// Parses the address of an aggregator: `HOST:PORT`, or `unix:PATH` for a socket on this node.
pub fn aggregator_address(text: &str) -> Result<String, String> {
    let is_socket = unix::path_of(text).is_some_and(|path| !path.as_os_str().is_empty());
    match is_socket || is_host_and_port(text) {
        true => Ok(text.to_owned()),
        false => Err("it must be HOST:PORT, as in node17:7117, or unix:PATH".to_owned()),
    }
}

/// A number of percent of parity.
pub fn parity_percent() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=i64::from(ParityPercent::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregator_has_an_address_with_a_port_or_a_socket() {
        for good in ["n1:7117", "127.0.0.1:7117", "[::1]:7117", "unix:/tmp/a.sock"] {
            assert_eq!(aggregator_address(good).as_deref(), Ok(good));
        }
        for bad in ["", "foo", "n1:", ":7117", "n1:x", "n1:70000", "unix:", "http://n1:7117"] {
            assert!(aggregator_address(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_of_bytes_are_read_and_nonsense_is_refused() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4K", 4096), ("64MiB", 64 << 20), ("2 GB", 2 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(byte_count(text), Ok(bytes), "{text:?}");
        }
        for bad in ["", "M", "1.5G", "-1", "1X", "99999999999T"] {
            assert!(byte_count(bad).is_err(), "{bad:?} was taken");
        }
        assert!(at_least_one("0").is_err() && at_least_one("x").is_err() && at_least_one("3").is_ok());
        assert!(block_bytes("0").is_err() && block_bytes("8G").is_err() && block_bytes("1K").is_ok());
    }
}
