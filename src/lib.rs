//! Decisions and formats of mcrEngine. Knows no socket, runtime or HDF5.

pub mod classify;
pub mod codec;
pub mod container;
pub mod filter;
pub mod header;
pub mod ids;
pub mod manifest;
pub mod merge;
pub mod plan;
pub mod prune;
pub mod reuse;
pub mod store;
pub mod units;
pub mod verify;
