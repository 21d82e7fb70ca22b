//! Codecs from bytes to bytes. These codecs do not use the type of the elements.

pub(super) mod bitshuffle;
pub(super) mod gzip;
pub(super) mod lz4;
pub(super) mod lzma;
pub(super) mod shuffle;
mod tiles;
pub(super) mod zstd;
