//! Tests that all written bytes can be read again: properties of random groups, sizes, limits, and golden files.

#[path = "../support/group.rs"]
mod support;

mod golden;
mod reading;
mod roundtrip;
mod size;
