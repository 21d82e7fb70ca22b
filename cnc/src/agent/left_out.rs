//! Finds out whether a guessed layout leaves out files that the application writes.
//!
//! If no number distinguishes the checkpoints, each step writes the same files again. A file without rank that is
//! written again too, such as `global.bin`, is a part of the state. A log only grows.

use crate::layout::{MaybeShared, Unplaced};
use mcrengine::ids::{CheckpointId, FilePath};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lists the files that belong to no checkpoint.
pub type Look = Arc<dyn Fn() -> Option<Unplaced> + Send + Sync>;

/// Minimum pause between two looks at the directory for ranks of the same checkpoint.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The pause between two looks is at least this factor times the duration of the last look.
const PAUSE_FACTOR: u32 = 20;

/// Looks from time to time for files that belong to no checkpoint.
pub(super) struct LeftOut {
    look: Look,
    looks: Mutex<Looks>,
}

/// The last look, and what the looks before have shown.
#[derive(Default)]
struct Looks {
    last: Option<Looked>,
    shared: Shared,
}

/// The files of [`Unplaced::shared`] in earlier looks.
#[derive(Default)]
struct Shared {
    seen: BTreeMap<FilePath, Seen>,
}

struct Seen {
    last: MaybeShared,
    /// Whether the application replaced the content of the file. `None` if the file has not changed yet.
    is_replaced: Option<bool>,
}

impl Shared {
    /// Whether one of the files is a part of each step: the application replaced its content, or the file was created
    /// with the step and has not changed yet.
    fn has_part(&mut self, files: &[MaybeShared]) -> bool {
        let mut has_part = false;
        for file in files {
            let seen = self.seen.entry(file.path.clone());
            let Seen { last, is_replaced } = seen.or_insert_with(|| Seen { last: file.clone(), is_replaced: None });
            if (last.created, last.modified, last.bytes) != (file.created, file.modified, file.bytes) {
                let is_replacing = last.created != file.created || file.bytes <= last.bytes;
                (*is_replaced, *last) = (Some(is_replacing || *is_replaced == Some(true)), file.clone());
            }
            has_part |= is_replaced.unwrap_or(file.is_of_step);
        }
        let there: BTreeSet<&FilePath> = files.iter().map(|file| &file.path).collect();
        self.seen.retain(|path, _| there.contains(path));
        has_part
    }
}

struct Looked {
    /// The checkpoint that was the reason for the look.
    of: CheckpointId,
    at: Instant,
    took: Duration,
    left: Option<Unplaced>,
}

impl LeftOut {
    pub(super) fn new(look: Look) -> Arc<Self> {
        Arc::new(Self { look, looks: Mutex::default() })
    }

    /// The files that the layout leaves out, if they make a checkpoint doubtful, see [`Unplaced::makes_doubtful`]. The
    /// answer is at most as old as the pause between two looks. Must run on a thread that may block.
    pub(super) fn doubt(&self, label: &CheckpointId) -> Option<Unplaced> {
        self.left(label).filter(|left| left.makes_doubtful(label))
    }

    fn left(&self, label: &CheckpointId) -> Option<Unplaced> {
        let Looks { last, shared } = &mut *self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = |last: &Looked| match last.of == *label {
            true => PAUSE_MIN.max(last.took * PAUSE_FACTOR),
            false => last.took * PAUSE_FACTOR,
        };
        if let Some(known) = last.as_ref().filter(|last| last.at.elapsed() < pause(last)) {
            return known.left.clone();
        }
        let began = Instant::now();
        let mut left = (self.look)();
        if let Some(left) = &mut left {
            left.makes_doubt |= shared.has_part(&std::mem::take(&mut left.shared));
        }
        *last = Some(Looked { of: label.clone(), at: Instant::now(), took: began.elapsed(), left: left.clone() });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn a_file_that_is_replaced_with_each_step_is_a_part_of_the_state_and_a_file_that_grows_is_not() {
        let at = |second: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let file = |(created, modified, bytes, is_of_step): (u64, u64, u64, bool)| MaybeShared {
            path: FilePath::new("f".as_bytes()).expect("valid"),
            bytes,
            created: at(created),
            modified: at(modified),
            is_of_step,
        };
        for (looks, expected) in [
            (&[(10, 10, 5, true), (10, 20, 5, false), (10, 30, 6, false)][..], &[true, true, true][..]),
            (&[(10, 10, 5, true), (20, 20, 9, true)], &[true, true]),
            (&[(1, 10, 5, false), (1, 20, 4, false)], &[false, true]),
            (&[(10, 10, 5, true), (10, 20, 6, false), (10, 30, 7, false)], &[true, false, false]),
            (&[(1, 10, 5, false), (1, 20, 6, false)], &[false, false]),
            (&[(10, 10, 5, true), (10, 10, 5, false)], &[true, false]),
        ] {
            let mut shared = Shared::default();
            let found: Vec<bool> = looks.iter().map(|look| shared.has_part(&[file(*look)])).collect();
            assert_eq!(found, expected, "{looks:?}");
        }
    }
}
