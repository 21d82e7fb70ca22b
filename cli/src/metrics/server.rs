//! Answers `GET /metrics`.

use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum length of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Maximum time in which a client must send its request and read the answer.
const CLIENT_MAX: Duration = Duration::from_secs(2);

/// The format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics, for which Prometheus asks.
    OpenMetrics,
    /// The older text format of Prometheus, for other clients, such as curl, and `promtool check metrics`.
    Prometheus,
}

impl Format {
    /// The format for a request: OpenMetrics if the client accepts it.
    fn of(request: &[u8]) -> Self {
        let request = String::from_utf8_lossy(request).to_ascii_lowercase();
        let accepts = |line: &str| line.starts_with("accept:") && line.contains("application/openmetrics-text");
        if request.lines().any(accepts) { Self::OpenMetrics } else { Self::Prometheus }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }

    /// The text of the metrics in a registry.
    pub(super) fn encode(self, registry: &Registry) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = match self {
            Self::OpenMetrics => text::encode(&mut text, registry),
            Self::Prometheus => prometheus_text::encode(&mut text, registry),
        };
        text
    }
}

/// Listens on the address, and answers requests on a thread until the process ends. The thread serves one client at a
/// time, so the memory does not grow with the number of clients. `text` makes the text of all metrics. Returns the
/// address with the port. If the given port is 0, the system chooses the port.
pub fn serve(address: SocketAddr, text: impl Fn(Format) -> String + Send + 'static) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        loop {
            match listener.accept() {
                // A client that breaks the connection gets no answer.
                Ok((client, _)) => drop(answer(client, &text)),
                // No connection could be accepted, for example because no descriptor is free.
                Err(_) => std::thread::sleep(CLIENT_MAX),
            }
        }
    })?;
    Ok(address)
}

fn answer(mut client: TcpStream, text: &impl Fn(Format) -> String) -> std::io::Result<()> {
    let until = Instant::now() + CLIENT_MAX;
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let first = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let format = Format::of(&request);
    let (status, body) = match first.split(|byte| *byte == b' ').collect::<Vec<_>>().as_slice() {
        [b"GET", b"/metrics", ..] => ("200 OK", text(format)),
        [b"GET", ..] => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        format.content_type(),
        body.len()
    );
    client.set_write_timeout(Some(CLIENT_MAX))?;
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(address).expect("connected");
        client.write_all(request).expect("written");
        let mut text = String::new();
        let _ = client.read_to_string(&mut text); // the connection may be reset after the answer
        text
    }

    #[test]
    fn metrics_are_at_one_path_and_a_client_that_says_nothing_does_not_block_others_for_long() {
        let metrics = crate::metrics::Metrics::new("alice".into());
        let address = serve(([127, 0, 0, 1], 0).into(), move |format| metrics.text(format)).expect("served");
        let silent = TcpStream::connect(address).expect("connected");
        let accept = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.5\r\n\r\n";
        for (request, format, is_open) in [
            (accept, Format::OpenMetrics, true),
            ("GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n", Format::Prometheus, false),
        ] {
            let text = ask(address, request.as_bytes());
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains(format.content_type()), "{text}");
            assert_eq!(text.ends_with("# EOF\n"), is_open, "{text}");
            let counter = if is_open { "mcr_store_errors" } else { "mcr_store_errors_total" };
            assert!(text.contains(&format!("# TYPE {counter} counter\nmcr_store_errors_total 0\n")), "{text}");
        }
        drop(silent);
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(address, &[b'x'; 2 * REQUEST_BYTES_MAX]).starts_with("HTTP/1.1 405 "));
    }
}
