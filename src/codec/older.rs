//! What an older checkpoint has of a segment, as codec `since` needs it.

/// What an older checkpoint has of a segment.
#[derive(Debug, Default)]
pub struct Older {
    /// The raw bytes of one of its segments, still merged.
    pub raw: Vec<u8>,
    /// For each array of the segment that is coded, where its bytes are in these; decoding does not need it.
    pub places: Vec<OlderPlace>,
}

/// Which bytes of an array an older segment has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OlderPlace {
    /// Where they begin in the older segment's raw bytes.
    pub from: usize,
    /// How many bytes of the array come before them.
    pub skip: usize,
    /// How many there are; 0 where it has none.
    pub bytes: usize,
    /// Whether the list that the array is had another length there: then these are all of its bytes, and only rows
    /// that have numbers are known again.
    pub is_other_length: bool,
}
