//! A checkpoint as one look at its directory shows it.

use crate::ids::{CheckpointId, GroupId};
use crate::manifest::CheckpointState;

/// A container, as far as a look shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It has this length, and its manifest says no other.
    There(u64),
    /// Its manifest says another length.
    WrongLength(u64),
    /// It is there, and was not looked at.
    Named,
}

/// A checkpoint, and its containers that have to be compared with other checkpoints.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) state: CheckpointState,
    pub(crate) containers: Vec<(GroupId, Found)>,
    /// Containers of other checkpoints, and how long they must be, 0 where that is not known.
    pub(crate) needs: Vec<(CheckpointId, GroupId, u64)>,
}

impl Look {
    pub(crate) fn container(&self, group: GroupId) -> Option<Found> {
        self.containers.iter().find(|(other, _)| *other == group).map(|(_, found)| *found)
    }
}
