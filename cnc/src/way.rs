//! The addresses that a link tries. The addresses are configured, or the link asks the gates of aggregator nodes for
//! them.
//!
//! The agents on all nodes must send the ranks of one group to the same aggregator. So all agents of a job try the
//! gates for a link in the same order. An agent changes to the next gate only after [`PATIENCE`], and changes back
//! when the first gate has an aggregator that answers. If agents use different aggregators for a short time, each of
//! these aggregators lacks ranks of the checkpoint, and the checkpoint is not committed. No wrong data are written.

use crate::config::one_by_one;
use crate::finder::Finder;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time without a session after which a link changes to the next gate.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time without a session after which a link changes to the next gate while the agent drains.
const HURRIED_PATIENCE: Duration = Duration::from_secs(2);

/// The addresses of the aggregator of a link.
pub(crate) struct Way {
    link: usize,
    finder: Option<Arc<dyn Finder>>,
    /// Index of the current gate in the order of this link. 0: the first gate.
    nth: usize,
    failing_since: Option<Instant>,
    /// `HOST:PORT` of each address to try.
    addresses: Vec<String>,
    /// Index of the current address, modulo the number of addresses.
    at: usize,
}

impl Way {
    /// `address`: the configured address, which is not used if there is a finder.
    pub(crate) fn new(link: usize, address: &str, finder: Option<Arc<dyn Finder>>) -> Self {
        let addresses = if finder.is_some() { Vec::new() } else { one_by_one(address) };
        Self { link, finder, nth: 0, failing_since: None, addresses, at: 0 }
    }

    /// Begins a round, in which each address is tried once. Fails if the gate names no aggregator.
    pub(crate) async fn begin_round(&mut self) -> Result<(), String> {
        let Some(finder) = &self.finder else { return Ok(()) };
        let found = one_by_one(&finder.find(self.link, self.nth).await?);
        if found != self.addresses {
            (self.addresses, self.at) = (found, 0);
        }
        Ok(())
    }

    /// Number of addresses to try in a round.
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// The current address.
    pub(crate) fn address(&self) -> &str {
        self.addresses.get(self.at % self.addresses.len().max(1)).map_or("", String::as_str)
    }

    /// The addresses of this round that are still to be tried, the current address first. `tried`: number of addresses
    /// that were tried in this round.
    pub(crate) fn next_addresses(&self, tried: usize) -> Vec<String> {
        let count = self.len().saturating_sub(tried);
        self.addresses.iter().cycle().skip(self.at % self.len().max(1)).take(count).cloned().collect()
    }

    /// Makes the next address the current address, after the current address has failed.
    pub(crate) fn next_address(&mut self) {
        self.at += 1;
    }

    /// Notes that there was a session.
    pub(crate) fn succeeded(&mut self) {
        self.failing_since = None;
    }

    /// Notes that none of the tried addresses led to a session. If no address has led to a session for [`PATIENCE`],
    /// or for [`HURRIED_PATIENCE`] while the agent drains, changes to the next gate. `now`: the time of the last
    /// attempt. `is_hurried`: whether the agent drains.
    pub(crate) fn round_failed(&mut self, now: Instant, is_hurried: bool) {
        let gates = self.finder.as_ref().map_or(1, |finder| finder.gates());
        let patience = if is_hurried { HURRIED_PATIENCE } else { PATIENCE };
        if now - *self.failing_since.get_or_insert(now) >= patience && gates > 1 {
            (self.nth, self.failing_since) = ((self.nth + 1) % gates, None);
            tracing::warn!(link = self.link, gate = self.nth, "no aggregator answers; the next gate is asked");
        }
    }

    /// Waits until the first gate has an aggregator that answers. `answers` checks whether an address answers.
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

    /// The finder, if the current gate is not the first gate.
    pub(crate) fn detour(&self) -> Option<Arc<dyn Finder>> {
        self.finder.clone().filter(|_| self.nth > 0)
    }

    /// Makes the first gate the current gate.
    pub(crate) fn go_back(&mut self) {
        (self.nth, self.failing_since) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finder::Later;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Two gates. The test decides whether the first gate answers.
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
        way.next_address();
        assert_eq!(
            (way.next_addresses(0).join(" "), way.next_addresses(2).join(" ")),
            ("h:8 h:9 h:7".into(), "h:8".into())
        );
    }
}
