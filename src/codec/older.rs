//! The bytes of a segment in an older checkpoint, as codec `since` uses them.

/// The bytes of a segment in an older checkpoint.
#[derive(Debug, Default)]
pub struct Older {
    /// The raw bytes of the older segment, still merged.
    pub raw: Vec<u8>,
    /// The place of each array of the new segment in `raw`. Decoding does not need the places.
    pub places: Vec<OlderPlace>,
}

/// The part of an array that an older segment contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OlderPlace {
    /// Position of the part in the older segment's raw bytes.
    pub from: usize,
    /// Bytes of the array that come before the part.
    pub skip: usize,
    /// Bytes of the part. 0 if the older segment has no part of the array.
    pub bytes: usize,
    /// Whether the array is a list that has another length in the older segment. If true, the part is the whole list,
    /// and only rows with identification numbers can be matched with rows of the older segment.
    pub is_other_length: bool,
}
