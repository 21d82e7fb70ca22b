//! The bytes of a captured file that stay in memory.

use std::collections::HashMap;

/// The bytes of a captured file that stay in memory. A caller that needs the bytes right after the capture can use
/// them without reading the file again ([`crate::source::OpenFile::with_image`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// All bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// The raw bytes of each chunk of each variable whose filters were removed. The key is the variable's index in
    /// the header.
    pub(crate) chunks: HashMap<usize, Vec<Vec<u8>>>,
}
