//! Limits that several steps of the encoder share.

/// Columns that predict each other at most.
pub(crate) const FAMILY_MAX: usize = 32;
/// Below this many elements a column gets no fitted weights.
pub(crate) const FITTED_MIN: usize = 64;
