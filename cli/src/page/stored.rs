//! The newest checkpoints of a store, for the page. Reading a store can take long, so the list is read by a thread, not
//! too often, and only while somebody looks at the page.

use crate::advice::Told;
use crate::http::{self, Answer};
use crate::list;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of checkpoints in the list.
const CHECKPOINTS_MAX: usize = 300;
/// Minimum time between two readings of the store.
const EVERY_MIN: Duration = Duration::from_secs(4);
/// Reading the store takes at most one part in this number of the time.
const SHARE_DIVISOR: u32 = 20;
/// Maximum time for which a request waits for the first list.
const FIRST_MAX: Duration = Duration::from_secs(5);
/// Interval of the checks whether the first list is there.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A store, and its last list.
pub struct Stored {
    store: PathBuf,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// The list, or the error as JSON. `None` before the first reading has ended.
    list: Option<Result<Value, Value>>,
    /// When the store may be read again. `None` before the first reading.
    next: Option<Instant>,
    is_reading: bool,
}

impl Stored {
    /// A store that is not read yet.
    pub fn new(store: PathBuf) -> Self {
        Self { store, last: Mutex::default() }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers with the last list, and begins to read the store again if it is time.
    pub async fn answer(self: &Arc<Self>) -> Answer {
        self.read_if_due();
        let until = Instant::now() + FIRST_MAX;
        loop {
            match self.last().list.clone() {
                Some(Ok(list)) => return http::json(StatusCode::OK, &list),
                Some(Err(error)) => return http::json(StatusCode::INTERNAL_SERVER_ERROR, &error),
                None if Instant::now() >= until => break,
                None => {}
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        let (message, advice) = ("the store is still being read", "wait, or look whether the file system answers");
        let told = Told { code: 1, message: message.into(), advice: advice.into(), path: None };
        http::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": told }))
    }

    fn read_if_due(self: &Arc<Self>) {
        let mut last = self.last();
        if last.is_reading || last.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        last.is_reading = true;
        let stored = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let list = list::newest(&stored.store, CHECKPOINTS_MAX);
            let list = list.map_err(|error| json!({ "error": Told::new(&error, 1) }));
            let mut last = stored.last();
            let wait = EVERY_MIN.max(begun.elapsed() * SHARE_DIVISOR);
            *last = Last { list: Some(list), next: Some(Instant::now() + wait), is_reading: false };
        });
    }
}
