//! The bytes of a captured file that stay in memory.

use std::collections::HashMap;

/// The bytes of a captured file that stay in memory, so that a caller that needs them right after the capture does
/// not read the file again ([`crate::source::OpenFile::with_image`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// All bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// For each variable whose filters were removed, by its index in the header: the raw bytes of each chunk.
    pub(crate) chunks: HashMap<usize, Vec<Vec<u8>>>,
}
