//! Codecs from array to bytes, which turn elements into bytes. Each chain has exactly one such codec.

pub(super) mod columns;
pub(super) mod entropy;
pub(super) mod fpc;
pub(super) mod fpzip;
pub(super) mod mixed;
pub(super) mod pco;
pub(super) mod predict;
pub(super) mod raw;
pub(super) mod runs;
pub(super) mod since;
pub(super) mod varint;
