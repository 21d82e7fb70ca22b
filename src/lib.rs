//! Decisions and formats of mcrEngine. Knows no socket, runtime or HDF5.

pub mod classify;
pub mod codec;
pub mod filter;
pub mod header;
pub mod ids;
pub mod merge;
pub mod plan;
pub mod units;
