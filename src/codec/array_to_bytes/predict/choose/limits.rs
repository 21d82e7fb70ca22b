//! Limits that several steps of the encoder share.

/// The maximum number of columns that may predict each other.
pub(crate) const FAMILY_MAX: usize = 32;
/// A column with fewer elements than this number gets no fitted weights.
pub(crate) const FITTED_MIN: usize = 64;
