//! What an older checkpoint has of the same arrays: columns that are known before the first own one is decoded.
//!
//! The encoder finds them in `known.rs`.

use super::group::Group;
use super::numbers::Elements;
use crate::codec::array_to_bytes::varint::{put, take};

/// A group, and a lane of it.
pub(crate) type Like = (usize, usize);

/// What is known beforehand, as the encoder sees it.
#[derive(Default)]
pub(crate) struct Known {
    /// The groups that come first.
    pub groups: Vec<Group>,
    /// Of each of them, which of the own groups it is like, counted from the first own one, and the lane it begins
    /// with.
    pub like: Vec<Like>,
    /// The elements: from where in the older segment, or none for zeros; how many.
    pub runs: Vec<(Option<usize>, usize)>,
}

impl Known {
    /// `None` where the older segment is too short.
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

    /// Reads what [`Known::write`] wrote: how many groups, and their elements, at most `most`.
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
