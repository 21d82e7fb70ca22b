//! The times at which the checkpoints of a directory began. These times decide to which checkpoint a pointer file
//! belongs.

use mcrengine::ids::CheckpointId;
use std::collections::BTreeMap;

/// The times at which the checkpoints of a directory began.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// For each label: the time when its oldest file was written, in nanoseconds since 1970.
    begun_ns: BTreeMap<CheckpointId, i64>,
}

impl Timeline {
    /// Adds a file of a checkpoint. `written_ns` is the time when the file was written, in nanoseconds since 1970.
    pub fn add(&mut self, label: &CheckpointId, written_ns: i64) {
        match self.begun_ns.get_mut(label) {
            Some(begun_ns) => *begun_ns = written_ns.min(*begun_ns),
            None => drop(self.begun_ns.insert(label.clone(), written_ns)),
        }
    }

    /// Whether a file of this checkpoint was added.
    pub(crate) fn contains(&self, label: &CheckpointId) -> bool {
        self.begun_ns.contains_key(label)
    }

    /// When the checkpoint began, in nanoseconds since 1970. `None` if no file of it was added.
    pub(crate) fn begun_ns(&self, label: &CheckpointId) -> Option<i64> {
        self.begun_ns.get(label).copied()
    }

    /// The newest of the given checkpoints. Unknown checkpoints are ignored.
    pub(crate) fn newest<'a>(&self, labels: impl Iterator<Item = &'a CheckpointId>) -> Option<&'a CheckpointId> {
        labels.filter_map(|label| Some((self.begun_ns.get(label)?, label))).max().map(|(_, label)| label)
    }

    /// The newest checkpoint that began at or before the time `ns`, in nanoseconds since 1970.
    pub(crate) fn at(&self, ns: i64) -> Option<&CheckpointId> {
        let begun = self.begun_ns.iter().filter(|(_, begun_ns)| **begun_ns <= ns);
        begun.max_by_key(|(_, begun_ns)| **begun_ns).map(|(label, _)| label)
    }
}
