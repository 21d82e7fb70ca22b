//! Particles: rows with numbers, put in the order of these, and the order that they came in.

pub(super) mod choose;
pub(super) mod format;
