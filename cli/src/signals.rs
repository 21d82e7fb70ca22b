//! The signals that end a daemon.

use nix::sys::signal::Signal;

/// Receives SIGTERM, SIGINT and SIGUSR1. `mcr node` sends SIGUSR1 when the job is over. SIGHUP ends no daemon.
pub struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    over: tokio::signal::unix::Signal,
    /// `None` if this process was started with SIGHUP ignored, for example by `nohup`. In this case its children
    /// ignore SIGHUP too.
    hangup: Option<tokio::signal::unix::Signal>,
    /// The signal that was received last.
    pub last: Signal,
}

impl Signals {
    pub fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let (term, int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let hangup = (!is_ignored(Signal::SIGHUP)).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { term, int, over: signal(SignalKind::user_defined1())?, hangup, last: Signal::SIGTERM })
    }

    /// Waits for a signal that ends this process.
    pub async fn next(&mut self) {
        loop {
            self.next_or_hangup().await;
            if self.last != Signal::SIGHUP {
                return;
            }
            tracing::info!("SIGHUP changes nothing: a configuration is read only at the start");
        }
    }

    pub async fn next_or_hangup(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        self.last = tokio::select! {
            _ = self.term.recv() => Signal::SIGTERM,
            _ = self.int.recv() => Signal::SIGINT,
            _ = self.over.recv() => Signal::SIGUSR1,
            _ = hangup => Signal::SIGHUP,
        };
        if self.last != Signal::SIGHUP {
            tracing::info!(signal = self.last.as_str(), "shutting down");
        }
    }

    /// Waits for `end`. Returns `None` if this process receives SIGTERM or SIGINT before `end`. SIGUSR1 changes
    /// nothing.
    pub async fn unless_again<T>(&mut self, end: impl Future<Output = T>) -> Option<T> {
        let again = async {
            loop {
                self.next().await;
                if self.last != Signal::SIGUSR1 {
                    break;
                }
            }
        };
        tokio::select! {
            end = end => Some(end),
            () = again => None,
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
