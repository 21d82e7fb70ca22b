//! Which datasets are much shorter without their filters: what one file has shown is taken for other files too.

use crate::h5::MappedVariable;
use mcrengine::header::{ElementType, Filter};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the chunks of a dataset are much shorter without their filters, by the dataset's name. Ranks are alike, so
/// what one rank's dataset has shown is taken for the datasets of the same name in other files.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<HashMap<Box<str>, Verdict>>);

#[derive(Debug)]
struct Verdict {
    element: ElementType,
    filters: Box<[Filter]>,
    raw_bytes: u64,
    is_worth_it: bool,
    /// For how many more datasets this verdict is used.
    left: u32,
}

impl Verdicts {
    /// At this number of names all verdicts are forgotten: some codes put the time step into the names of datasets.
    const NAMES_MAX: usize = 1 << 13;
    /// How often one verdict is used before it is found anew: data changes with time.
    pub(super) const USES: u32 = 64;

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Verdict>> {
        // Nothing under this lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the chunks of a dataset of the same name, elements and filters, and at least half as long, were much
    /// shorter without their filters. `None`: no verdict.
    pub(super) fn are_worth_it(&self, mapped: &MappedVariable, raw_bytes: u64) -> Option<bool> {
        let mut all = self.lock();
        let known = all.get_mut(&mapped.path).filter(|known| {
            known.element == mapped.element && known.filters == mapped.filters && known.raw_bytes >= raw_bytes / 2
        })?;
        known.left = known.left.checked_sub(1)?;
        Some(known.is_worth_it)
    }

    pub(super) fn note_worth(&self, mapped: &MappedVariable, raw_bytes: u64, is_worth_it: bool) {
        let (element, filters) = (mapped.element.clone(), mapped.filters.clone());
        let verdict = Verdict { element, filters, raw_bytes, is_worth_it, left: Self::USES };
        let mut all = self.lock();
        if all.len() >= Self::NAMES_MAX {
            all.clear();
        }
        all.insert(mapped.path.clone(), verdict);
    }
}
