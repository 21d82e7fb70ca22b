//! Copies whose sources are not contiguous. Within a run the step from one source to the next is constant, and may
//! have any length up to [`STEP_MAX`].

use super::copies::{Run, Source, unzigzag};
use crate::codec::array_to_bytes::varint::{put, take};

/// The minimum number of elements of a run.
pub(crate) const RUN_MIN: usize = 3;
/// The maximum step from one source to the next, in elements.
pub(crate) const STEP_MAX: i64 = 1 << 24;

/// Encoded runs, as four lists. Each list has one number for each run: the number of elements before the run, the
/// length of the run with its sign, the first source, or the step.
#[derive(Default)]
pub(crate) struct Strides {
    pub lists: [Vec<u8>; 4],
    pub count: usize,
}

impl Strides {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.count, out);
        for list in &self.lists {
            put(list.len(), out);
            out.extend_from_slice(list);
        }
    }
}

/// The inverse of [`Strides::write`]: adds the runs to `froms`, which then has `len` elements. The first `known`
/// elements are known, and no source is before `least`. Returns `None` if the runs are not valid.
pub(crate) fn read(bytes: &mut &[u8], known: usize, least: usize, len: usize, froms: &mut Vec<Source>) -> Option<()> {
    let count = take(bytes)?;
    let mut lists: [&[u8]; 4] = [&[]; 4];
    for list in &mut lists {
        let len = take(bytes)?;
        (*list, *bytes) = bytes.split_at_checked(len)?;
    }
    if count > 0 {
        froms.resize(len, 0);
    }
    let [skips, lengths, sources, steps] = &mut lists;
    let (mut at, mut expected) = (known, 0i64);
    for _ in 0..count {
        let skip = take(skips)?;
        at = at.checked_add(skip)?;
        expected = expected.checked_add(skip as i64)?;
        let length = take(lengths)?;
        let (length, is_turned) = ((length >> 1) + RUN_MIN, length & 1 == 1);
        let from = expected.checked_add(unzigzag(take(sources)?))?;
        let step = Some(unzigzag(take(steps)?)).filter(|step| step.abs() <= STEP_MAX)?;
        let end = at.checked_add(length).filter(|&end| end <= len)?;
        let last = from.checked_add(step.checked_mul(length as i64 - 1)?)?;
        // The checks of the first and the last source are enough, because sources and places change by constant
        // steps.
        let are_before = from < at as i64 && last < end as i64 - 1 && from.min(last) >= least as i64;
        are_before.then_some(())?;
        let (first, from) = (u32::try_from(at).ok()?, u32::try_from(from).ok()?);
        let (length, step) = (u32::try_from(length).ok()?, i32::try_from(step).ok()?);
        let run = Run { at: first, length, from, step, is_turned };
        run.fill(froms);
        (at, expected) = (end, run.end());
    }
    lists.iter().all(|list| list.is_empty()).then_some(())
}
