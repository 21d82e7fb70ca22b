//! Finds out whether a guessed layout leaves out files that the application writes.

use crate::layout::Unplaced;
use mcrengine::ids::CheckpointId;
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
    last: Mutex<Option<Looked>>,
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
        Arc::new(Self { look, last: Mutex::new(None) })
    }

    /// The files that the layout leaves out, if they make a checkpoint doubtful, see [`Unplaced::makes_doubtful`]. The
    /// answer is at most as old as the pause between two looks. Must run on a thread that may block.
    pub(super) fn doubt(&self, label: &CheckpointId) -> Option<Unplaced> {
        self.left(label).filter(|left| left.makes_doubtful(label))
    }

    fn left(&self, label: &CheckpointId) -> Option<Unplaced> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = |last: &Looked| match last.of == *label {
            true => PAUSE_MIN.max(last.took * PAUSE_FACTOR),
            false => last.took * PAUSE_FACTOR,
        };
        if let Some(known) = last.as_ref().filter(|last| last.at.elapsed() < pause(last)) {
            return known.left.clone();
        }
        let began = Instant::now();
        let left = (self.look)();
        *last = Some(Looked { of: label.clone(), at: Instant::now(), took: began.elapsed(), left: left.clone() });
        left
    }
}
