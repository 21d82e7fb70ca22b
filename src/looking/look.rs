//! The result of examining the directory of one checkpoint.

use crate::ids::{CheckpointId, GroupId};
use crate::manifest::CheckpointState;

/// A container, as the directory of its checkpoint shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The container has this length, and its manifest states the same length.
    There(u64),
    /// The container has this length, but its manifest states another length.
    WrongLength(u64),
    /// The container exists. The length of the container was not read.
    Named,
}

/// The state of a checkpoint, its containers, and the containers of other checkpoints that the checkpoint needs.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) state: CheckpointState,
    pub(crate) containers: Vec<(GroupId, Found)>,
    /// The containers of other checkpoints that the checkpoint needs, with their recorded lengths. An unknown length
    /// is 0.
    pub(crate) needs: Vec<(CheckpointId, GroupId, u64)>,
}

impl Look {
    pub(crate) fn container(&self, group: GroupId) -> Option<Found> {
        self.containers.iter().find(|(other, _)| *other == group).map(|(_, found)| *found)
    }
}
