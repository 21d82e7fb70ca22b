//! The checkpoints of a job that a process remembers. The process need not read all manifests of these checkpoints
//! after each commit.
//!
//! A committed manifest never changes, so a process remembers every checkpoint that it found complete. A remembered
//! checkpoint can later be removed, marked or damaged. Therefore some remembered checkpoints are examined again each
//! time. The newest checkpoints are examined again, because they decide which older checkpoints are removed. A few of
//! the other checkpoints are examined again in turn.

use crate::ids::CheckpointId;
use crate::looking::look::Look;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Maximum number of remembered checkpoints. Each remembered checkpoint takes about 1 KiB. All other checkpoints are
/// examined each time.
const REMEMBERED_MAX: usize = 16 << 10;
/// Number of newest checkpoints that are examined again each time.
const NEWEST_AGAIN: usize = 16;
/// Number of other checkpoints that are examined again each time, in turn.
const OTHERS_AGAIN: usize = 16;

/// The complete checkpoints of one job, in the state in which they were last examined.
#[derive(Debug, Default)]
pub struct Remembered {
    looks: BTreeMap<CheckpointId, Look>,
    /// Of the checkpoints that are examined again in turn, the checkpoint that was examined last. The next turn
    /// starts after this checkpoint.
    turn: Option<CheckpointId>,
    /// If true, nothing is remembered. A program that examines the checkpoints only once sets this field.
    is_off: bool,
}

impl Remembered {
    /// A collection that stays empty.
    pub fn nothing() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    /// Whether this collection always stays empty.
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// Whether a checkpoint is remembered as complete.
    pub fn knows(&self, id: &CheckpointId) -> bool {
        self.looks.contains_key(id)
    }

    /// Number of remembered checkpoints.
    pub fn len(&self) -> usize {
        self.looks.len()
    }

    /// Whether no checkpoint is remembered.
    pub fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    /// Forgets a checkpoint that was changed.
    pub fn forget(&mut self, id: &CheckpointId) {
        self.looks.remove(id);
    }

    /// Forgets the checkpoints that must be examined again this time.
    pub fn look_again(&mut self) {
        let mut newest: Vec<_> = self.looks.values().map(|look| (look.state.place, &look.state.id)).collect();
        let cut = newest.len().saturating_sub(NEWEST_AGAIN);
        if cut > 0 {
            newest.select_nth_unstable(cut);
        }
        let newest: Vec<CheckpointId> = newest.split_off(cut).into_iter().map(|(_, id)| id.clone()).collect();
        let from = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let others: Vec<CheckpointId> =
            self.looks.range((from, Bound::Unbounded)).take(OTHERS_AGAIN).map(|(id, _)| id.clone()).collect();
        // After the last checkpoint, the next call begins with the first checkpoint again.
        self.turn = others.last().filter(|_| others.len() == OTHERS_AGAIN).cloned();
        newest.iter().chain(&others).for_each(|id| self.forget(id));
    }

    pub(crate) fn get(&self, id: &CheckpointId) -> Option<&Look> {
        self.looks.get(id)
    }

    /// Forgets the checkpoints that do not exist any more. `ids` are sorted.
    pub(crate) fn keep_only(&mut self, ids: &[CheckpointId]) {
        self.looks.retain(|id, _| ids.binary_search(id).is_ok());
    }

    /// Remembers a checkpoint if it is complete, not pruned and not marked as bad.
    pub(crate) fn put(&mut self, look: Look) {
        let is_settled = look.state.is_complete() && !look.state.is_pruned && look.state.bad.is_none();
        if is_settled && !self.is_off && self.looks.len() < REMEMBERED_MAX {
            self.looks.insert(look.state.id.clone(), look);
        }
    }
}
