//! What was learned about filtered chunks. The results for one file are used for other files.

use crate::h5::MappedVariable;
use mcrengine::header::{ElementType, Filter};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was learned about filtered chunks: whether they are much smaller without filters, and whether their stored
/// bytes can be reproduced. Ranks are alike, so the result of one rank is used for datasets of the same name on other
/// ranks. The same zlib has usually written all chunks.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    worth: HashMap<Box<str>, Verdict>,
    /// For each list of filters: stored bytes that were reproduced, or `None` once a chunk was not reproduced.
    came_back: HashMap<Box<[Filter]>, Option<u64>>,
    is_proof_at_once: bool,
}

#[derive(Debug)]
struct Verdict {
    element: ElementType,
    filters: Box<[Filter]>,
    raw_bytes: u64,
    is_worth_it: bool,
    /// Number of datasets that may still use this verdict.
    left: u32,
}

impl Verdicts {
    /// Maximum number of names. Above it all names are forgotten, because some applications put the time step into
    /// names.
    const NAMES_MAX: usize = 1 << 13;
    /// Number of datasets that may use a verdict. It is limited because the data changes with time.
    pub(super) const USES: u32 = 64;
    /// Maximum number of filter lists that are tracked.
    const FILTERS_MAX: usize = 64;
    /// After this many reproduced stored bytes, further chunks are assumed to be reproducible.
    const SURE_BYTES: u64 = 64 << 10;

    fn lock(&self) -> MutexGuard<'_, Known> {
        // No code that holds this lock panics, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether chunks of a dataset with the same name, type and filters were much smaller without filters. That
    /// dataset must have been at least half as long. `None` if unknown.
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

    /// Whether chunks with these filters were reproduced often enough, without a failure, that the check of further
    /// chunks may wait.
    pub(super) fn are_sure_to_come_back(&self, filters: &[Filter]) -> bool {
        let all = self.lock();
        let came_back = all.came_back.get(filters).copied().flatten();
        !all.is_proof_at_once && came_back.is_some_and(|bytes| bytes >= Self::SURE_BYTES)
    }

    /// Records that this many stored bytes of a chunk were reproduced; `None` if they were not.
    pub(super) fn note_return(&self, filters: &[Filter], stored_bytes: Option<u64>) {
        let mut all = self.lock();
        if let Some(known) = all.came_back.get_mut(filters) {
            *known = known.zip(stored_bytes).map(|(before, more)| before.saturating_add(more));
        } else if all.came_back.len() < Self::FILTERS_MAX {
            all.came_back.insert(filters.into(), stored_bytes);
        }
    }

    /// From now on every chunk is checked at once. Called after a chunk that was assumed to be reproducible was not.
    pub fn prove_at_once(&self) {
        self.lock().is_proof_at_once = true;
    }
}
