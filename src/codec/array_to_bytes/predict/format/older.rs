//! Known columns: elements of the same arrays in an older checkpoint. Known columns are available before the first
//! own column (a column of this segment) is decoded.
//!
//! The encoder finds known columns in `known.rs`.

use super::group::Group;
use super::numbers::Elements;
use crate::codec::array_to_bytes::varint::{put, take};

/// The number of a group, and the number of a lane of this group.
pub(crate) type Like = (usize, usize);

/// The known groups and their elements, as the encoder describes them.
#[derive(Default)]
pub(crate) struct Known {
    /// The known groups, which come before all own groups.
    pub groups: Vec<Group>,
    /// For each known group, the corresponding own group, counted from the first own group, and the first
    /// corresponding lane.
    pub like: Vec<Like>,
    /// The elements in runs: the first element in the older segment (`None` for zeros), and the number of elements.
    pub runs: Vec<(Option<usize>, usize)>,
}

impl Known {
    /// Appends the known elements to `into`. Returns `None` if the older segment is too short.
    pub(crate) fn fill(&self, older: &[u8], kind: Elements, into: &mut Vec<u8>) -> Option<()> {
        for &(from, count) in &self.runs {
            match from {
                None => into.resize(into.len() + count * kind.width, 0),
                Some(from) => {
                    let from = from.checked_mul(kind.width)?;
                    into.extend_from_slice(older.get(from..from.checked_add(count * kind.width)?)?);
                }
            }
        }
        Some(())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(self.groups.len(), out);
        put(self.runs.len(), out);
        for &(from, count) in &self.runs {
            put(from.map_or(0, |from| from + 1), out);
            put(count, out);
        }
    }

    /// The inverse of [`Known::write`]. Returns the number of known groups, and at most `most` elements.
    pub(crate) fn read(bytes: &mut &[u8], older: &[u8], kind: Elements, most: usize) -> Option<(usize, Vec<u8>)> {
        let groups = take(bytes)?;
        let mut known = Self::default();
        let mut room = most;
        for _ in 0..take(bytes).filter(|&runs| runs <= most)? {
            let (from, count) = (take(bytes)?, take(bytes).filter(|&count| count > 0)?);
            room = room.checked_sub(count)?;
            known.runs.push((from.checked_sub(1), count));
        }
        let mut elements = Vec::with_capacity((most - room) * kind.width);
        known.fill(older, kind, &mut elements)?;
        Some((groups, elements))
    }
}
