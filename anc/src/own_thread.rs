//! Runs work that waits for the store on separate threads. The hub waits for this work only at its end.

use crate::flush_error::FlushError;
use crate::unpanicked::unpanicked;
use mcrengine::error_chain::error_chain;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks whether the work has ended.
const INTERVAL: Duration = Duration::from_millis(10);

/// The threads of one hub. Each running thread has a copy of the value.
#[derive(Debug, Default)]
pub(crate) struct OwnThreads(Arc<()>);

impl OwnThreads {
    /// Runs `work` on a new thread. If `work` fails, the log message contains the text `doing`.
    pub(crate) fn run(&self, doing: &'static str, work: impl FnOnce() -> Result<(), FlushError> + Send + 'static) {
        let running = Arc::clone(&self.0);
        let work = move || {
            if let Err(error) = unpanicked(work) {
                tracing::error!(error = error_chain(&error), doing, "background work failed");
            }
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("apart".into()).spawn(work) {
            tracing::error!(%error, doing, "cannot start a thread for background work");
        }
    }

    /// Waits until all work has ended, but at most this time.
    pub(crate) async fn end_within(&self, most: Duration) {
        let until = tokio::time::Instant::now() + most;
        while Arc::strong_count(&self.0) > 1 && tokio::time::Instant::now() < until {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[tokio::test]
    async fn the_end_waits_for_the_work_but_not_for_ever() {
        let (threads, has_ended) = (OwnThreads::default(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&has_ended);
        threads.run("sleeping", move || {
            std::thread::sleep(Duration::from_millis(200));
            ends.store(true, Ordering::Relaxed);
            Ok(())
        });
        let began = Instant::now();
        threads.end_within(Duration::from_millis(20)).await;
        assert!(began.elapsed() >= Duration::from_millis(20));
        threads.end_within(Duration::from_secs(60)).await;
        assert!(has_ended.load(Ordering::Relaxed));
    }
}
