//! Answers `GET /metrics`, and the requests for the page of an aggregator.

use crate::http::{self, Answer, Question};
use crate::page::PageSlot;
use hyper::StatusCode;
use hyper::header::ACCEPT;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// Maximum number of threads that make the text of the metrics.
const THREADS_MAX: usize = 4;

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
    fn of(question: &Question) -> Self {
        let mut accepted = question.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match accepted.any(|value| value.to_ascii_lowercase().contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
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

/// Listens on the address, and answers requests on a thread until the process ends. `text` makes the text of all
/// metrics. `page`: the page of this daemon, if there is one. Returns the address with the port. If the given port is
/// 0, the system chooses the port.
pub fn serve(
    address: SocketAddr,
    text: impl Fn(Format) -> String + Send + Sync + 'static,
    page: PageSlot,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS_MAX).thread_name("metrics").build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let text = Arc::new(text);
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        runtime.block_on(http::serve(listener, move |question| answer(question, Arc::clone(&text), page.clone())));
    })?;
    Ok(address)
}

async fn answer<T>(question: Question, text: Arc<T>, page: PageSlot) -> Answer
where
    T: Fn(Format) -> String + Send + Sync + 'static,
{
    if question.uri.path() == "/metrics" {
        let format = Format::of(&question);
        // Making the text may take time, because `mcr metrics` asks `mcr node`.
        return match tokio::task::spawn_blocking(move || text(format)).await {
            Ok(text) => http::answer(StatusCode::OK, format.content_type(), text),
            Err(_) => http::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be made\n"),
        };
    }
    match page.get() {
        Some(page) => page.answer(&question).await,
        None => http::text(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HEAD_BYTES_MAX;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(address).expect("connected");
        client.write_all(request).expect("written");
        let mut text = String::new();
        let _ = client.read_to_string(&mut text); // the connection may be reset after the answer
        text
    }

    #[test]
    fn metrics_are_at_one_path_and_a_client_that_says_nothing_does_not_block_others() {
        let metrics = crate::metrics::Metrics::new("alice".into());
        let text = move |format| metrics.text(format);
        let address = serve(([127, 0, 0, 1], 0).into(), text, PageSlot::default()).expect("served");
        // The server closes the connections of silent clients if further clients connect.
        let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).expect("connected")).collect();
        let began = Instant::now();
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        drop(silent);
        let mut silent = TcpStream::connect(address).expect("connected");
        let accept = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,*/*;q=0.5\r\n\r\n";
        for (request, format, is_open) in [
            (accept, Format::OpenMetrics, true),
            ("GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n", Format::Prometheus, false),
        ] {
            let text = ask(address, request.as_bytes());
            let head = text.to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200 ok\r\n") && text.contains(format.content_type()), "{text}");
            assert_eq!(text.ends_with("# EOF\n"), is_open, "{text}");
            let counter = if is_open { "mcr_store_errors" } else { "mcr_store_errors_total" };
            assert!(text.contains(&format!("# TYPE {counter} counter\nmcr_store_errors_total 0\n")), "{text}");
        }
        assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let refused = ask(address, b"POST /metrics HTTP/1.1\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("GET, HEAD"), "{refused}");
        let head = ask(address, b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
        let too_long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * HEAD_BYTES_MAX));
        assert!(!ask(address, too_long.as_bytes()).starts_with("HTTP/1.1 200 "));
        // The server closes the connection of a client that says nothing.
        assert!(matches!(silent.read_to_string(&mut String::new()), Ok(0) | Err(_)));
    }
}
