//! Work on a thread that nothing waits for.

use crate::flush_error::FlushError;
use crate::unpanicked::unpanicked;
use mcrengine::error_chain::error_chain;

/// Does something that waits for the store on a new thread. A failure is logged as a failure of `doing`.
pub(crate) fn on_own_thread(doing: &'static str, work: impl FnOnce() -> Result<(), FlushError> + Send + 'static) {
    let work = move || {
        if let Err(error) = unpanicked(work) {
            tracing::error!(error = error_chain(&error), doing, "failed");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("apart".into()).spawn(work) {
        tracing::error!(%error, doing, "no thread");
    }
}
