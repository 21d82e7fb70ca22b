//! The aggregators with which an agent has a session now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The addresses of the aggregators with which the agent has a session, by the number of the link. All copies of this
/// value show the same sessions.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<Mutex<BTreeMap<usize, String>>>);

impl Sessions {
    /// Notes that a link has a session.
    pub(crate) fn began(&self, link: usize, address: &str) {
        self.all().insert(link, address.to_owned());
    }

    /// Notes that a link has no session.
    pub(crate) fn ended(&self, link: usize) {
        self.all().remove(&link);
    }

    /// Whether a link has a session.
    pub(crate) fn is_open(&self, link: usize) -> bool {
        self.all().contains_key(&link)
    }

    /// The addresses, without repetition, in the order of the links.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses: Vec<String> = Vec::new();
        for address in self.all().values() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // each change is one call, so the map is always whole
    }
}
