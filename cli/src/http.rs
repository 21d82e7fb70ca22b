//! An HTTP server for metrics and for the page, by hyper. The server reads requests without a body, and closes the
//! connection after each answer. Clients that send no request cannot keep other clients out.

use crate::output::json_line;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Maximum number of clients that are served at the same time. For a further client, the connection of the client that
/// has sent no request for the longest time is closed. If all clients have sent a request, the further client waits.
const CLIENTS_MAX: usize = 32;
/// Maximum length of the head of a request, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum time in which a client must send the head of its request.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// Maximum time in which a client must send its request and read the answer.
const CLIENT_MAX: Duration = Duration::from_secs(20);
/// Time to wait if no connection can be accepted, for example because no descriptor is free.
const PAUSE: Duration = Duration::from_secs(1);

/// A request: method, path and headers. Its body is not read.
pub type Question = Parts;
/// An answer with a text.
pub type Answer = Response<String>;

/// Answers requests until the returned future is dropped. The number of clients, the length of a request and the time
/// of a connection are bounded. `answer` makes the answer to a request with the method GET or HEAD; other methods are
/// refused.
pub async fn serve<F, Answering>(listener: TcpListener, answer: F)
where
    F: Fn(Question) -> Answering + Clone + Send + 'static,
    Answering: Future<Output = Answer> + Send,
{
    let free = Arc::new(Semaphore::new(CLIENTS_MAX));
    let silent = Silent::default();
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if free.available_permits() == 0 {
            silent.close_oldest();
        }
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (answer, speaks) = (answer.clone(), silent.clone());
        let mut still_silent = silent.lock();
        let served = tokio::spawn(async move {
            let _permit = permit;
            let ended = speaks.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                speaks.remove(number);
                let (question, _) = request.into_parts();
                let is_read = matches!(question.method, Method::GET | Method::HEAD);
                let answering = is_read.then(|| answer(question));
                async move {
                    Ok::<_, Infallible>(match answering {
                        Some(answering) => answering.await,
                        None => wrong_method(),
                    })
                }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
            let served = server.keep_alive(false).serve_connection(TokioIo::new(client), service);
            // A client that breaks the connection, or is too slow, gets no answer.
            let _ = tokio::time::timeout(CLIENT_MAX, served).await;
            ended.remove(number);
        });
        still_silent.push_back((number, served.abort_handle()));
    }
}

/// The clients that have sent no request yet, the oldest first, with their numbers. At most [`CLIENTS_MAX`].
#[derive(Clone, Default)]
struct Silent(Arc<Mutex<VecDeque<(u64, AbortHandle)>>>);

impl Silent {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, AbortHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, number: u64) {
        self.lock().retain(|(other, _)| *other != number);
    }

    fn close_oldest(&self) {
        if let Some((_, client)) = self.lock().pop_front() {
            client.abort();
        }
    }
}

fn wrong_method() -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    answer
}

/// An answer with lines for people.
pub fn text(status: StatusCode, lines: impl Into<String>) -> Answer {
    answer(status, "text/plain; charset=utf-8", lines.into())
}

/// An answer of any type.
pub fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer with a JSON object, with the field `version`.
pub fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    match json_line(value) {
        Ok(line) => answer(status, "application/json", line),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")),
    }
}
