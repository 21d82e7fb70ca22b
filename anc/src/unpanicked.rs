//! Turns a panic into an error.

use crate::flush_error::FlushError;
use std::panic::AssertUnwindSafe;

/// Runs a part of a flush. A panic becomes an error, so that no other thread waits for ever for this part.
pub(crate) fn unpanicked<T>(work: impl FnOnce() -> Result<T, FlushError>) -> Result<T, FlushError> {
    // Unfinished results of the work are dropped with the flush.
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(FlushError::Panicked(text.unwrap_or_else(|| "without a message".into())))
    })
}
