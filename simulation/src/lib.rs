//! Simulates jobs of many ranks in one process, to measure what a checkpoint costs the store and the daemons.
//!
//! Real agents and real aggregators ([`daemons`]) save the files of all ranks ([`simulation`], [`rank_file`]) in a
//! store in memory that counts and delays its operations ([`store`]). `mcr bench scale` and `tests/scale` use this
//! crate.

pub mod daemons;
pub mod rank_file;
pub mod simulation;
pub mod store;
