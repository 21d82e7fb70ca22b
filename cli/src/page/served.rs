//! The page of a daemon, at the address of its metrics.

use super::{Page, PageSlot, Source};
use mcr_anc::hub::StatusAsker;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address at which a daemon serves its metrics, and the place of its page. The default serves nothing.
#[derive(Clone, Default)]
pub struct Served {
    /// `None`: the daemon serves no metrics.
    pub address: Option<SocketAddr>,
    pub page: PageSlot,
}

impl Served {
    /// Shows the page of an aggregator that listens on the address `listens`, with the checkpoints of its store. The
    /// page is only served on a loopback address, because HTTP is not encrypted. Logs the address with the token.
    pub fn show(&self, listens: &str, status: StatusAsker, store: PathBuf) {
        let Some(address) = self.address else { return };
        if !address.ip().is_loopback() {
            tracing::info!(%address, "the page of the aggregator is not served: this is not a loopback address");
            return;
        }
        match Page::new(Source::Inside(listens.to_owned(), status), Some(store)) {
            Ok(page) => {
                tracing::info!(url = page.url(address), "the page is served");
                let _ = self.page.set(page); // a process has one aggregator, so there is no page yet
            }
            Err(error) => tracing::warn!(%error, "the page is not served: the system gives no random numbers"),
        }
    }
}
