//! Remembers which datasets compress much better without their HDF5 filters. The result from one file is reused for
//! other files.

use crate::h5::MappedVariable;
use mcrengine::header::{ElementType, Filter};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// For each name of a dataset: whether its chunks compress much better without their filters. Ranks write similar
/// data, so the result from one rank is reused for datasets of the same name in other files.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<HashMap<Box<str>, Verdict>>);

#[derive(Debug)]
struct Verdict {
    element: ElementType,
    filters: Box<[Filter]>,
    raw_bytes: u64,
    is_worth_it: bool,
    /// Number of datasets for which this verdict may still be used.
    left: u32,
}

impl Verdicts {
    /// Maximum number of names. When this number is reached, all verdicts are discarded. If an application writes the
    /// time step into the names of datasets, every checkpoint has new names.
    const NAMES_MAX: usize = 1 << 13;
    /// Number of datasets for which one verdict is used. After these datasets, the next dataset is sampled again,
    /// because data changes with time.
    pub(super) const USES: u32 = 64;

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Verdict>> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the verdict on an earlier dataset of the same name, element type and filters. The earlier dataset must
    /// have been at least half as long. `None` if there is no such verdict.
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
