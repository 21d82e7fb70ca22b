//! Reports the counts of a worker to `mcr node`, whose metrics show the totals of all workers.
//!
//! A worker reports when a count has changed, at most once in [`REST`], and when it ends. Without changes the worker
//! reports once in [`REFRESH`], because a daemon that was started later knows nothing of this worker. A daemon that
//! does not answer changes nothing for the worker, which tries again later.

use crate::metrics::Metrics;
use mcr_node::client::ask_here;
use mcr_node::metrics::{Counts, Report};
use mcr_node::protocol::{Reply, Request};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Minimum time between two reports.
const REST: Duration = Duration::from_secs(1);
/// Time after which a report is repeated although nothing has changed.
const REFRESH: Duration = Duration::from_secs(60);
/// Time from a report that the daemon did not answer to the next report.
const RETRY: Duration = Duration::from_secs(30);
/// Maximum time to wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum time by which the last report delays the end of the worker.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The thread that reports.
pub struct Reporter {
    metrics: Arc<Metrics>,
    end: Arc<End>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

/// Whether the worker ends.
#[derive(Default)]
struct End {
    is_now: Mutex<bool>,
    change: Condvar,
}

impl End {
    /// Waits until the worker ends, at most the time `most`. Returns whether the worker ends.
    fn wait(&self, most: Duration) -> bool {
        let is_now = self.is_now.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.change.wait_timeout_while(is_now, most, |is_now| !*is_now);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Reporter {
    /// Starts the thread. `socket`: the socket of the daemon. If the thread cannot be started, nothing is reported.
    pub fn start(metrics: Arc<Metrics>, socket: PathBuf) -> Self {
        let (end, (running, thread)) = (Arc::<End>::default(), channel());
        let (of_thread, at_end) = (Arc::clone(&metrics), Arc::clone(&end));
        let run = move || {
            let _running = running;
            report(&of_thread, &at_end, |report| ask_here(&socket, &Request::Report(Box::new(report)), PATIENCE));
        };
        if let Err(error) = std::thread::Builder::new().name("report".into()).spawn(run) {
            tracing::debug!(%error, "the metrics of the node do not show this worker");
        }
        Self { metrics, end, thread }
    }

    /// Reports what has changed since the last report.
    pub fn end(self) {
        *self.end.is_now.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.change.notify_all();
        self.metrics.wake();
        let _ = self.thread.recv_timeout(END_PATIENCE); // fails if the thread has ended, or after END_PATIENCE
    }
}

/// Reports until the worker ends, or until the daemon refuses a report.
fn report(metrics: &Metrics, end: &End, ask: impl Fn(Report) -> std::io::Result<Reply>) {
    let mut accepted = Counts::default();
    let mut is_last = false;
    while !is_last {
        metrics.wait(REFRESH);
        is_last = end.wait(Duration::ZERO);
        let report = metrics.report(accepted);
        let is_new = report.counts != accepted;
        let has_content = is_new || report.agents > 0 || report.job.is_some();
        if !has_content || (is_last && !is_new) {
            continue;
        }
        let counts = report.counts;
        let rest = match ask(report) {
            Ok(Reply::Noted) => {
                accepted = counts;
                REST
            }
            // The daemon refuses the report, for example because an older daemon does not know this request. The
            // daemon would log each refusal, so this report is the last report.
            Ok(other) => {
                tracing::info!(reply = ?other, "mcr node takes no report, so its metrics do not show this worker");
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "mcr node does not answer a report");
                metrics.wake();
                RETRY
            }
        };
        if !is_last {
            end.wait(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::CountEvents;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing_subscriber::layer::SubscriberExt;

    /// Metrics with one committed rank.
    fn metrics() -> Arc<Metrics> {
        let metrics = Arc::new(Metrics::new(String::new()));
        let subscriber = tracing_subscriber::registry().with(CountEvents(Arc::clone(&metrics)));
        tracing::subscriber::with_default(subscriber, || tracing::debug!("committed"));
        metrics
    }

    #[test]
    fn a_refused_report_is_the_last_one() {
        let asked = AtomicUsize::new(0);
        report(&metrics(), &End::default(), |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            Ok(Reply::Refused("not a request: unknown variant `report`".into()))
        });
        assert_eq!(asked.into_inner(), 1);
    }

    #[test]
    fn the_end_of_a_worker_reports_what_no_daemon_has_accepted_and_nothing_twice() {
        let (metrics, end) = (metrics(), End::default());
        *end.is_now.lock().expect("not poisoned") = true;
        let reports = Mutex::new(Vec::new());
        report(&metrics, &end, |report| {
            reports.lock().expect("not poisoned").push(report);
            Ok(Reply::Noted)
        });
        let reports = reports.into_inner().expect("not poisoned");
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].counts.ranks_committed, reports[0].accepted), (1, Counts::default()));
        let nothing = Arc::new(Metrics::new(String::new()));
        nothing.wake();
        report(&nothing, &end, |_| panic!("there is nothing to report"));
    }

    #[test]
    fn a_daemon_that_is_missing_does_not_delay_the_end_of_a_worker() {
        let dir = tempfile::tempdir().expect("a directory");
        let began = std::time::Instant::now();
        let reporter = Reporter::start(metrics(), dir.path().join("socket"));
        std::thread::sleep(Duration::from_millis(50));
        reporter.end();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}
