//! The bytes that are kept of a file that was captured.

use std::collections::HashMap;

/// The bytes that are kept of a file that was captured, so that a caller that needs them right afterwards does not read
/// the file again ([`crate::source::OpenFile::with_image`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// All bytes of the file.
    pub(crate) bytes: Vec<u8>,
    /// The raw bytes of each chunk of the variables that came out of filters, by the variable's number.
    pub(crate) chunks: HashMap<usize, Vec<Vec<u8>>>,
}
