//! The options of `mcr status`.

use crate::args::values::aggregator_address;
use crate::node_socket::NodeSocket;
use clap::Args;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Aggregators to ask (host:port, or unix:PATH on this node; comma-separated) [default: the aggregators of your
    /// jobs that mcr node saves on this node; without such jobs, the aggregators in the settings of the job in this
    /// directory, or of its agent]
    #[arg(long, env = "MCR_AGGREGATORS", value_delimiter = ',', value_name = "ADDRESSES")]
    #[arg(value_parser = aggregator_address)]
    pub aggregators: Vec<String>,
    #[command(flatten)]
    pub node: NodeSocket,
    /// Show a live view until q or Ctrl-C is pressed. If standard output is not a terminal, print the tables at each
    /// interval
    #[arg(long, group = "repeated")]
    pub watch: bool,
    /// With --json, print an object on one line for each event, until Ctrl-C is pressed: a checkpoint is announced,
    /// committed or abandoned, a flush failed, an aggregator is lost or back
    #[arg(long, group = "repeated", requires = "json")]
    pub follow: bool,
    /// Time between two requests to an aggregator, with --watch, --follow or --serve
    #[arg(long, requires = "repeated", default_value_t = 2, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Serve a page for a browser, and print its address. The page shows jobs, checkpoints, progress and errors, live.
    /// Only loopback addresses are possible; a port alone is a port of 127.0.0.1 [default: 127.0.0.1, with a free port]
    #[arg(long, group = "repeated", conflicts_with = "json", num_args = 0..=1, default_missing_value = "0")]
    #[arg(value_parser = loopback, value_name = "ADDRESS:PORT")]
    pub serve: Option<SocketAddr>,
    /// Store whose newest checkpoints the page of --serve shows [default: the variable MCR_STORE]
    #[arg(long, requires = "serve", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print JSON; with --watch, print an object on one line at each interval
    #[arg(long)]
    pub json: bool,
}

/// Parses the address of `--serve`, which must be a loopback address. A port alone is a port of 127.0.0.1.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let address = text.strip_prefix("localhost:").map_or(text.to_owned(), |port| format!("127.0.0.1:{port}"));
    let address: SocketAddr =
        address.parse().map_err(|_| "it must be ADDRESS:PORT, as in 127.0.0.1:8080".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{} is not a loopback address, and the page is not encrypted; serve it on 127.0.0.1, and reach it from \
             another machine with ssh -L {port}:127.0.0.1:{port} HOST",
            address.ip(),
            port = address.port()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_served_and_the_error_names_ssh() {
        for (text, address) in [
            ("0", "127.0.0.1:0"),
            ("8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("127.0.0.2:1", "127.0.0.2:1"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(loopback(text), Ok(address.parse().expect("an address")), "{text}");
        }
        for text in ["0.0.0.0:8080", "10.0.0.7:8080", "[::]:8080"] {
            let error = loopback(text).expect_err(text);
            assert!(
                error.contains("is not a loopback address") && error.contains("ssh -L 8080:127.0.0.1:8080"),
                "{error}"
            );
        }
        for text in ["", "node1:80", "127.0.0.1", "70000", "mylocalhost:80"] {
            assert!(loopback(text).is_err(), "{text}");
        }
    }
}
