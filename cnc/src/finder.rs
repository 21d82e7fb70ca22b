//! Finds aggregators whose addresses are not configured.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

/// A boxed future, because a trait object cannot have an `async fn`.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds aggregators whose addresses are not configured.
pub trait Finder: Debug + Send + Sync {
    /// Number of gates, at least 1.
    fn gates(&self) -> usize;

    /// Asks a gate for the aggregator of a link, and lets the gate start the aggregator if it does not run. `nth` is
    /// the index of the gate in the order of this link, below [`Finder::gates`]. Returns `HOST:FIRST-LAST`, or the
    /// reason why there is no aggregator.
    fn find(&self, link: usize, nth: usize) -> Later<'_, Result<String, String>>;

    /// Time between two checks whether the first gate has an aggregator again.
    fn return_interval(&self) -> Duration {
        Duration::from_secs(60)
    }
}
