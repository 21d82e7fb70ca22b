//! Everything that is written can be read again: properties of random groups, sizes, limits, and the golden files.

#[path = "../support/mod.rs"]
mod support;

mod golden;
mod roundtrip;
mod size;
