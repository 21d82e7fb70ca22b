//! The addresses that a link tries. They are configured, or gates of aggregator nodes tell them.
//!
//! Each group of ranks must reach one aggregator from all nodes. So all agents of a job try the gates of a place in
//! the same order. An agent goes to the next gate only after a while, and returns as soon as the first gate has an
//! aggregator that answers. If agents use different aggregators for a short time, a checkpoint lacks ranks in each of
//! them and is not committed, but nothing wrong is written.

use crate::config::one_by_one;
use crate::finder::Finder;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A link goes to the next gate after this time without a session.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while the agent drains.
const HURRIED_PATIENCE: Duration = Duration::from_secs(2);

/// The way of a link to its aggregator.
pub(crate) struct Way {
    link: usize,
    finder: Option<Arc<dyn Finder>>,
    /// Position of the gate in the order of this link.
    nth: usize,
    failing_since: Option<Instant>,
    /// `HOST:PORT` of each address.
    addresses: Vec<String>,
    /// The address that is tried next, modulo the number of addresses.
    at: usize,
}

impl Way {
    /// `address`: the configured address, which is not used if there is a finder.
    pub(crate) fn new(link: usize, address: &str, finder: Option<Arc<dyn Finder>>) -> Self {
        let addresses = if finder.is_some() { Vec::new() } else { one_by_one(address) };
        Self { link, finder, nth: 0, failing_since: None, addresses, at: 0 }
    }

    /// Begins to try all addresses once. Fails if there is none.
    pub(crate) async fn begin_round(&mut self) -> Result<(), String> {
        let Some(finder) = &self.finder else { return Ok(()) };
        let found = one_by_one(&finder.find(self.link, self.nth).await?);
        if found != self.addresses {
            (self.addresses, self.at) = (found, 0);
        }
        Ok(())
    }

    /// Number of addresses in a round.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The address to try now.
    pub(crate) fn address(&self) -> &str {
        self.addresses.get(self.at % self.addresses.len().max(1)).map_or("", String::as_str)
    }

    /// The address failed.
    pub(crate) fn next_address(&mut self) {
        self.at += 1;
    }

    /// There was a session.
    pub(crate) fn succeeded(&mut self) {
        self.failing_since = None;
    }

    /// No address of a round led to a session. `now`: when the round ended.
    pub(crate) fn round_failed(&mut self, now: Instant, is_hurried: bool) {
        let gates = self.finder.as_ref().map_or(1, |finder| finder.gates());
        let patience = if is_hurried { HURRIED_PATIENCE } else { PATIENCE };
        if now - *self.failing_since.get_or_insert(now) >= patience && gates > 1 {
            (self.nth, self.failing_since) = ((self.nth + 1) % gates, None);
            tracing::warn!(link = self.link, gate = self.nth, "no aggregator answers; the next gate is asked");
        }
    }

    /// Returns when the first gate has an aggregator again. `answers` says whether an address answers.
    pub(crate) async fn first_is_back<F: Future<Output = bool>>(
        finder: Option<Arc<dyn Finder>>,
        link: usize,
        answers: impl Fn(String) -> F,
    ) {
        let Some(finder) = finder else { return std::future::pending().await };
        loop {
            tokio::time::sleep(finder.return_interval()).await;
            let Ok(found) = finder.find(link, 0).await else { continue };
            for address in one_by_one(&found) {
                if answers(address).await {
                    return;
                }
            }
        }
    }

    /// The finder, if the session is at another gate than the first one.
    pub(crate) fn detour(&self) -> Option<Arc<dyn Finder>> {
        self.finder.clone().filter(|_| self.nth > 0)
    }

    /// The next round begins at the first gate.
    pub(crate) fn go_back(&mut self) {
        (self.nth, self.failing_since) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finder::Later;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Two gates, of which the first one may be down.
    #[derive(Debug)]
    struct Gates {
        first_is_up: AtomicBool,
    }

    impl Finder for Gates {
        fn gates(&self) -> usize {
            2
        }

        fn return_interval(&self) -> Duration {
            Duration::from_millis(1)
        }

        fn find(&self, link: usize, nth: usize) -> Later<'_, Result<String, String>> {
            Box::pin(async move {
                match nth == 0 && !self.first_is_up.load(Ordering::Relaxed) {
                    true => Err("down".to_owned()),
                    false => Ok(format!("g{}:1-2", (link + nth) % 2)),
                }
            })
        }
    }

    #[tokio::test]
    async fn a_link_goes_to_the_next_gate_after_a_while_and_back_when_the_first_one_answers() {
        let gates = Arc::new(Gates { first_is_up: AtomicBool::new(false) });
        let mut way = Way::new(1, "unused", Some(gates.clone()));
        let (began, mut waited) = (Instant::now(), Duration::ZERO);
        while way.begin_round().await.is_err() {
            way.round_failed(began + waited, false);
            waited += Duration::from_secs(1);
        }
        assert!((PATIENCE..PATIENCE * 2).contains(&waited), "{waited:?}");
        assert_eq!((way.address(), way.len()), ("g0:1", 2));
        way.next_address();
        assert_eq!(way.address(), "g0:2");
        way.begin_round().await.expect("found");
        assert_eq!(way.address(), "g0:2", "the address that was found before is tried first");
        way.succeeded();
        let answers = |address: String| async move { address == "g1:2" };
        let back = Way::first_is_back(way.detour(), 1, answers);
        tokio::pin!(back);
        assert!(tokio::time::timeout(Duration::from_millis(30), &mut back).await.is_err());
        gates.first_is_up.store(true, Ordering::Relaxed);
        tokio::time::timeout(Duration::from_secs(30), back).await.expect("the first gate is back");
        way.go_back();
        way.begin_round().await.expect("found");
        assert_eq!(way.address(), "g1:1");
        assert!(way.detour().is_none());
    }

    #[tokio::test]
    async fn a_configured_address_is_never_left() {
        let (mut way, began) = (Way::new(0, "h:7-9", None), Instant::now());
        for round in 0..9 {
            way.begin_round().await.expect("configured");
            way.round_failed(began + PATIENCE * round, true);
        }
        assert_eq!((way.address(), way.len()), ("h:7", 3));
    }
}
