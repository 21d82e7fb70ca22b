//! What all flushes of an aggregator share.

use crate::holders::Holders;
use crate::incarnation::Currents;
use crate::names::Names;
use crate::newest::NewestOfGroups;

/// What all flushes of an aggregator share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The newest incarnation of each job.
    pub currents: Currents,
    /// The newest manifest of each group.
    pub newest: NewestOfGroups,
    /// Which names are taken.
    pub names: Names,
    /// The groups of jobs without identity that this aggregator saves.
    pub holders: Holders,
}
