//! A repacked container holds only some segments of the original container. A kept segment may lack some of its
//! pieces.

use super::columns::{Column, Cursor, Parsed};
use super::index::Index;
use super::layout::{FILE_HEADER_LEN, SEGMENT_HEADER_LEN, SEGMENT_STORED_MAX};
use crate::codec::Chain;
use crate::units::StoredBytes;
use std::collections::BTreeSet;

/// Length of the end of the table: the table's length (8 bytes) and its CRC (4 bytes).
pub(super) const TABLE_END_LEN: u64 = 12;

/// The kept part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The whole segment.
    Whole,
    /// Only the pieces with these numbers. The bytes of all other pieces are zero.
    Pieces(BTreeSet<u32>),
}

/// A segment that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptSegment {
    pub(crate) segment: u32,
    pub(crate) stored_bytes: u64,
    pub(crate) chain: Chain,
    pub(crate) kept: Kept,
}

pub(super) fn encode(table: &[KeptSegment]) -> Vec<u8> {
    let mut column = Column::default();
    column.number(table.len() as u64);
    let mut next = 0;
    for KeptSegment { segment, stored_bytes, chain, kept } in table {
        column.number(u64::from(*segment - next));
        column.number(*stored_bytes);
        let mut bytes = Vec::new();
        chain.to_bytes(&mut bytes);
        column.text(&bytes);
        match kept {
            Kept::Whole => column.number(0),
            Kept::Pieces(pieces) => {
                column.number(pieces.len() as u64);
                let mut after = 0;
                for piece in pieces {
                    column.number(u64::from(*piece - after));
                    after = *piece + 1;
                }
            }
        }
        next = *segment + 1;
    }
    column.0
}

/// Decodes a table and compares it with the index of the same container.
pub(super) fn decode(bytes: &[u8], index: &Index) -> Parsed<Vec<KeptSegment>> {
    let mut from = Cursor::new("the table of kept segments", bytes);
    let count = from.count(4)?;
    let mut table = Vec::with_capacity(count);
    let mut next = 0u64;
    for _ in 0..count {
        let segment = next.saturating_add(from.number()?);
        let Some(entry) = usize::try_from(segment).ok().and_then(|n| index.segments().get(n)) else {
            return from.bad("a segment is not in the index");
        };
        let stored_bytes = from.number()?;
        if stored_bytes > SEGMENT_STORED_MAX {
            return from.bad("a segment is larger than 1 GiB");
        }
        let chain = from.text()?;
        let Ok((chain, _)) = Chain::from_bytes(chain) else { return from.bad("a chain cannot be read") };
        let pieces = from.count(1)?;
        let mut kept = BTreeSet::new();
        let mut after = 0u64;
        for _ in 0..pieces {
            let piece = after.saturating_add(from.number()?);
            if piece >= entry.pieces.len() as u64 {
                return from.bad("a piece is not in its segment");
            }
            kept.insert(piece as u32);
            after = piece + 1;
        }
        let kept = if kept.is_empty() { Kept::Whole } else { Kept::Pieces(kept) };
        table.push(KeptSegment { segment: segment as u32, stored_bytes, chain, kept });
        next = segment + 1;
    }
    from.end()?;
    Ok(table)
}

/// Sets the offsets of the kept segments in an index. Segments that are not kept get the offset `u64::MAX`. Returns
/// the end of the last kept segment.
pub(super) fn apply(index: &mut Index, table: &[KeptSegment]) -> u64 {
    let mut at = FILE_HEADER_LEN as u64;
    for segment in &mut index.segments {
        segment.offset = u64::MAX;
    }
    for kept in table {
        let entry = &mut index.segments[kept.segment as usize];
        (entry.offset, entry.stored_bytes, entry.chain) = (at, StoredBytes(kept.stored_bytes), kept.chain.clone());
        at = at.saturating_add(SEGMENT_HEADER_LEN as u64).saturating_add(kept.stored_bytes);
    }
    at
}
