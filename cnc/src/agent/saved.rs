//! One line in the log for each checkpoint that is saved.

use mcrengine::ids::CheckpointId;
use std::collections::BTreeMap;

/// Maximum number of checkpoints with some committed groups. If there are more, the first by name is forgotten.
const PARTLY_MAX: usize = 256;

/// The committed ranks of this agent, by checkpoint, until the whole checkpoint is saved.
#[derive(Debug, Default)]
pub(super) struct Saved {
    partly: BTreeMap<CheckpointId, Part>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    ranks: u32,
    bytes: u64,
}

impl Saved {
    /// Records a committed rank with files of this length.
    pub(super) fn committed(&mut self, checkpoint: &CheckpointId, bytes: u64) {
        if self.partly.len() >= PARTLY_MAX && !self.partly.contains_key(checkpoint) {
            self.partly.pop_first();
        }
        let part = self.partly.entry(checkpoint.clone()).or_default();
        part.ranks += 1;
        part.bytes += bytes;
    }

    /// Logs that all groups of a checkpoint are committed, with the ranks of this agent.
    pub(super) fn exists(&mut self, checkpoint: &CheckpointId) {
        if let Some(Part { ranks, bytes }) = self.partly.remove(checkpoint) {
            tracing::info!(checkpoint = %checkpoint, ranks, bytes, "checkpoint saved");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_a_checkpoint_are_counted_until_it_is_saved_and_then_forgotten() {
        let id = |name: &str| name.parse::<CheckpointId>().expect("a name");
        let mut saved = Saved::default();
        saved.committed(&id("it_1"), 10);
        saved.committed(&id("it_1"), 5);
        assert_eq!(saved.partly.get(&id("it_1")), Some(&Part { ranks: 2, bytes: 15 }));
        saved.exists(&id("it_1"));
        assert!(saved.partly.is_empty());
        (0..2 * PARTLY_MAX).for_each(|n| saved.committed(&id(&format!("it_{n:04}")), 1));
        assert_eq!(saved.partly.len(), PARTLY_MAX);
        assert!(saved.partly.contains_key(&id("it_0511")));
    }
}
