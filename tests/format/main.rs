//! What was written is read again: properties over random groups, sizes, limits, and the golden files.

#[path = "../support/mod.rs"]
mod support;

mod golden;
mod roundtrip;
mod size;
