//! A page for a browser that shows the status of aggregators, and the checkpoints of a store.
//!
//! The page is one file, `page.html`. Its script asks for `/status.json` and `/list.json`, which have the JSON of
//! `mcr status --json` and `mcr list --json`. All requests need the token of the address that this process printed,
//! because a loopback address alone does not say which user of the machine asks.
//!
//! The token is not stored in a cookie: a browser sends the cookies of 127.0.0.1 to every port of 127.0.0.1, also to
//! a server of another user. The script sends the token in the header `Authorization`.

mod door;
mod served;
mod stored;

use crate::http::{self, Answer, Question};
use crate::status::json;
use crate::status::model::{Model, Shared, locked};
use door::{Token, random_hex};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY};
use hyper::header::{X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use mcr_anc::hub::StatusAsker;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stored::Stored;

pub use served::Served;

/// The page. `@NONCE@` stands for a random text, which is new in each answer.
const HTML: &str = include_str!("page.html");
/// Maximum time to wait for the status of the aggregator in this process.
const STATUS_MAX: Duration = Duration::from_secs(5);

/// Where the status comes from.
pub enum Source {
    /// Aggregators that another task of this process asks again and again.
    Asked(Shared),
    /// The aggregator in this process, with the address on which it listens.
    Inside(String, StatusAsker),
}

/// The page, and who may see it.
pub struct Page {
    source: Source,
    stored: Option<Arc<Stored>>,
    token: Token,
}

/// The page of a daemon, which exists once its aggregator runs.
pub type PageSlot = Arc<OnceLock<Page>>;

impl Page {
    /// A page with a new token. `store`: the store whose checkpoints the page shows.
    ///
    /// # Errors
    ///
    /// The system gives no random numbers.
    pub fn new(source: Source, store: Option<PathBuf>) -> std::io::Result<Self> {
        Ok(Self { source, stored: store.map(|store| Arc::new(Stored::new(store))), token: Token::new()? })
    }

    /// The address of the page, with the token.
    pub fn url(&self, address: SocketAddr) -> String {
        format!("http://{address}/?token={}", self.token)
    }

    /// The answer to a request with the method GET or HEAD.
    pub async fn answer(&self, question: &Question) -> Answer {
        let mut answer = match self.token.check(question) {
            Err(refused) => http::text(StatusCode::FORBIDDEN, format!("{refused}\n")),
            Ok(()) => self.answer_to_owner(question).await,
        };
        let headers = [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ];
        for (name, value) in headers {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn answer_to_owner(&self, question: &Question) -> Answer {
        match question.uri.path() {
            "/" => html(),
            "/status.json" => http::json(StatusCode::OK, &self.status().await),
            "/list.json" => match &self.stored {
                Some(stored) => stored.answer().await,
                None => http::text(StatusCode::NOT_FOUND, "no store is shown; give --store\n"),
            },
            _ => http::text(StatusCode::NOT_FOUND, "the page is at /, its data at /status.json and /list.json\n"),
        }
    }

    async fn status(&self) -> serde_json::Value {
        match &self.source {
            Source::Asked(model) => json::of_model(&locked(model), Instant::now()),
            Source::Inside(address, asker) => {
                let (mut model, begun) = (Model::default(), Instant::now());
                model.add(std::slice::from_ref(address), begun);
                let status = match tokio::time::timeout(STATUS_MAX, asker.ask()).await {
                    Ok(Some(status)) => Ok(status),
                    Ok(None) => Err("the aggregator is shutting down".to_owned()),
                    Err(_) => Err(format!("no answer within {} s", STATUS_MAX.as_secs())),
                };
                model.note(address, status, Instant::now());
                json::of_model(&model, Instant::now())
            }
        }
    }
}

/// The page, with a policy that lets the browser run only the script of the page, and load nothing from other places.
fn html() -> Answer {
    let Ok(nonce) = random_hex() else {
        return http::text(StatusCode::INTERNAL_SERVER_ERROR, "the system gives no random numbers\n");
    };
    let mut answer = http::answer(StatusCode::OK, "text/html; charset=utf-8", HTML.replace("@NONCE@", &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    // The policy has only printable characters, so it is always a valid header.
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of HTML that would make a browser load something, or run a script outside of the page's own script.
    const OUTSIDE: [&str; 14] = [
        "http:",
        "https:",
        "//cdn",
        "src=",
        "@import",
        "url(",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        " onclick=",
        "javascript:",
    ];

    #[test]
    fn the_page_loads_nothing_from_outside_and_never_makes_markup_of_text() {
        // The name of the namespace of SVG is no address that a browser loads.
        let page = HTML.replace("http://www.w3.org/2000/svg", "");
        for part in OUTSIDE {
            assert!(!page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<script").count(), page.matches("<script nonce=\"@NONCE@\">").count());
        assert_eq!(page.matches("<style").count(), page.matches("<style nonce=\"@NONCE@\">").count());
        assert!(!page.contains(" style=\""), "the policy refuses style attributes");
    }

    #[test]
    fn each_answer_has_a_new_nonce_in_its_policy_and_in_its_script() {
        let nonces: Vec<String> = (0..2)
            .map(|_| {
                let page = html();
                let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text").to_owned();
                let nonce = policy.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next());
                let nonce = nonce.expect("a nonce").to_owned();
                assert!(page.body().contains(&format!("<script nonce=\"{nonce}\">")), "{policy}");
                assert!(!page.body().contains("@NONCE@"));
                nonce
            })
            .collect();
        assert_ne!(nonces[0], nonces[1]);
    }
}
