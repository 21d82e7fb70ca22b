//! The state that all flushes of an aggregator share.

use crate::completes::Completes;
use crate::holders::Holders;
use crate::incarnation::Currents;
use crate::names::Names;
use crate::newest::NewestOfGroups;

/// The state that all flushes of an aggregator share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The newest incarnation of each job.
    pub currents: Currents,
    /// The newest manifest of each group.
    pub newest: NewestOfGroups,
    /// The checkpoints that were found to be complete.
    pub completes: Completes,
    /// The checkpoint names that are in use.
    pub names: Names,
    /// The groups that this aggregator holds, so that no other aggregator saves the same job.
    pub holders: Holders,
}
