//! Runs work on a thread for which no other thread waits.

use crate::flush_error::FlushError;
use crate::unpanicked::unpanicked;
use mcrengine::error_chain::error_chain;

/// Runs `work`, which waits for the store, on a new thread. If `work` fails, the log message contains the text
/// `doing`.
pub(crate) fn on_own_thread(doing: &'static str, work: impl FnOnce() -> Result<(), FlushError> + Send + 'static) {
    let work = move || {
        if let Err(error) = unpanicked(work) {
            tracing::error!(error = error_chain(&error), doing, "background work failed");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("apart".into()).spawn(work) {
        tracing::error!(%error, doing, "cannot start a thread for background work");
    }
}
