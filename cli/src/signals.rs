//! The signals that end a daemon.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Time that a process may still take to end after a second signal. If everything is committed, the end takes less.
const END_MAX: Duration = Duration::from_millis(500);
/// The same signal counts once within this time. `timeout` and some launchers send a signal to the process and to its
/// group.
const REPEATED_MAX: Duration = Duration::from_millis(200);

/// Receives SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2. Only SIGTERM and SIGINT end a daemon. SIGUSR1 ends a worker
/// of `mcr node`, and `mcr node` sends this signal when the job is over.
pub struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    hangup: Option<tokio::signal::unix::Signal>,
    user_1: Option<tokio::signal::unix::Signal>,
    user_2: Option<tokio::signal::unix::Signal>,
    is_of_worker: bool,
    /// The first signal that ends this process, and when it was received.
    first: Option<(Signal, Instant)>,
    /// Whether the last signal is the first one, received once more at about the same time.
    pub is_repeated: bool,
    /// The signal that was received last.
    pub last: Signal,
}

impl Signals {
    pub fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // If this process was started with an ignored signal, for example by `nohup`, its children ignore it too.
        let unless_ignored = |kind: SignalKind, number| (!is_ignored(number)).then(|| signal(kind)).transpose();
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: unless_ignored(SignalKind::hangup(), Signal::SIGHUP)?,
            user_1: unless_ignored(SignalKind::user_defined1(), Signal::SIGUSR1)?,
            user_2: unless_ignored(SignalKind::user_defined2(), Signal::SIGUSR2)?,
            is_of_worker: false,
            first: None,
            is_repeated: false,
            last: Signal::SIGTERM,
        })
    }

    /// The signals of a worker of `mcr node`.
    pub fn of_worker() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { user_1: Some(signal(SignalKind::user_defined1())?), is_of_worker: true, ..Self::new()? })
    }

    /// Waits for a signal that ends this process.
    pub async fn next(&mut self) {
        loop {
            self.next_of_all().await;
            match self.last {
                _ if self.is_end() => return,
                Signal::SIGHUP => {
                    tracing::info!("SIGHUP changes nothing: a configuration is read only at the start")
                }
                other => tracing::info!("{} changes nothing", other.as_str()),
            }
        }
    }

    /// Waits for any of the signals.
    pub async fn next_of_all(&mut self) {
        async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        self.last = tokio::select! {
            _ = self.term.recv() => Signal::SIGTERM,
            _ = self.int.recv() => Signal::SIGINT,
            () = received(&mut self.hangup) => Signal::SIGHUP,
            () = received(&mut self.user_1) => Signal::SIGUSR1,
            () = received(&mut self.user_2) => Signal::SIGUSR2,
        };
        let is_first = |(signal, at): (Signal, Instant)| signal == self.last && at.elapsed() < REPEATED_MAX;
        self.is_repeated = self.first.is_some_and(is_first);
        if self.is_end() && !self.is_repeated {
            self.first.get_or_insert((self.last, Instant::now()));
            tracing::info!(signal = self.last.as_str(), "shutting down");
        }
    }

    /// Whether the last signal ends this process.
    pub fn is_end(&self) -> bool {
        match self.last {
            Signal::SIGTERM | Signal::SIGINT => true,
            Signal::SIGUSR1 => self.is_of_worker,
            _ => false,
        }
    }

    /// Waits for `end`. Returns `None` if this process receives SIGTERM or SIGINT, and `end` takes longer than 0.5 s
    /// from then on. SIGUSR1 changes nothing, nor does the first signal that is received twice.
    pub async fn unless_again<T>(&mut self, end: impl Future<Output = T>) -> Option<T> {
        let again = async {
            loop {
                self.next().await;
                if self.last != Signal::SIGUSR1 && !self.is_repeated {
                    break;
                }
            }
        };
        let mut end = std::pin::pin!(end);
        tokio::select! {
            end = &mut end => Some(end),
            () = again => tokio::time::timeout(END_MAX, end).await.ok(),
        }
    }
}

/// Whether this process ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_signal_does_not_hide_the_result_of_an_end_that_has_nothing_left_to_commit() {
        let mut signals = Signals::new().expect("signals");
        nix::sys::signal::raise(Signal::SIGTERM).expect("raised");
        signals.next().await;
        let ends_a_little_later = async {
            nix::sys::signal::raise(Signal::SIGTERM).expect("raised");
            tokio::time::sleep(END_MAX + Duration::from_millis(100)).await;
            true
        };
        assert_eq!(signals.unless_again(ends_a_little_later).await, Some(true), "the same signal, received twice");
        let ends_soon = async {
            nix::sys::signal::raise(Signal::SIGTERM).expect("raised");
            tokio::time::sleep(Duration::from_millis(100)).await;
            true
        };
        assert_eq!(signals.unless_again(ends_soon).await, Some(true));
        let never_ends = async {
            nix::sys::signal::raise(Signal::SIGTERM).expect("raised");
            std::future::pending::<bool>().await
        };
        assert_eq!(signals.unless_again(never_ends).await, None);
    }
}
