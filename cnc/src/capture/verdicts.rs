//! What was found out about chunks behind filters: what one file has shown speaks for others.

use crate::h5::MappedVariable;
use mcrengine::header::{ElementType, Filter};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was found out about chunks behind filters: whether they are much shorter without, and whether they go back. Ranks are
/// alike, so one that was looked at speaks for others with a dataset of the same name; and one zlib wrote them all.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    worth: HashMap<Box<str>, Verdict>,
    /// By filters: the stored bytes of chunks that came back, or nothing once a chunk did not.
    came_back: HashMap<Box<[Filter]>, Option<u64>>,
    is_proof_at_once: bool,
}

#[derive(Debug)]
struct Verdict {
    element: ElementType,
    filters: Box<[Filter]>,
    raw_bytes: u64,
    is_worth_it: bool,
    /// For how many datasets more it is good.
    left: u32,
}

impl Verdicts {
    /// With so many names all is forgotten: some codes have the time step in them.
    const NAMES_MAX: usize = 1 << 13;
    /// Data changes with time: so often one is used.
    pub(super) const USES: u32 = 64;
    /// Sets of filters that are looked after.
    const FILTERS_MAX: usize = 64;
    /// After so many stored bytes that came back, others are taken to.
    const SURE_BYTES: u64 = 64 << 10;

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing under this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether chunks of a dataset of the same kind with the same name, that was at least half as long, were much shorter
    /// without their filters.
    pub(super) fn are_worth_it(&self, mapped: &MappedVariable, raw_bytes: u64) -> Option<bool> {
        let mut all = self.lock();
        let known = all.worth.get_mut(&mapped.path).filter(|known| {
            known.element == mapped.element && known.filters == mapped.filters && known.raw_bytes >= raw_bytes / 2
        })?;
        known.left = known.left.checked_sub(1)?;
        Some(known.is_worth_it)
    }

    pub(super) fn note_worth(&self, mapped: &MappedVariable, raw_bytes: u64, is_worth_it: bool) {
        let (element, filters) = (mapped.element.clone(), mapped.filters.clone());
        let verdict = Verdict { element, filters, raw_bytes, is_worth_it, left: Self::USES };
        let mut all = self.lock();
        if all.worth.len() >= Self::NAMES_MAX {
            all.worth.clear();
        }
        all.worth.insert(mapped.path.clone(), verdict);
    }

    /// Whether so much came back from behind these filters, and all that was tried, that the proof for others may wait.
    pub(super) fn are_sure_to_come_back(&self, filters: &[Filter]) -> bool {
        let all = self.lock();
        let came_back = all.came_back.get(filters).copied().flatten();
        !all.is_proof_at_once && came_back.is_some_and(|bytes| bytes >= Self::SURE_BYTES)
    }

    /// So many stored bytes of a chunk came back, or they did not.
    pub(super) fn note_return(&self, filters: &[Filter], stored_bytes: Option<u64>) {
        let mut all = self.lock();
        if let Some(known) = all.came_back.get_mut(filters) {
            *known = known.zip(stored_bytes).map(|(before, more)| before.saturating_add(more));
        } else if all.came_back.len() < Self::FILTERS_MAX {
            all.came_back.insert(filters.into(), stored_bytes);
        }
    }

    /// From now on no chunk is taken to come back since others did: one of those did not.
    pub fn prove_at_once(&self) {
        self.lock().is_proof_at_once = true;
    }
}
