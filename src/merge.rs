//! Merges pieces of many ranks into one segment. [`runs`] gives the place of each byte of each piece in the segment,
//! for merging and for splitting.
//!
//! Source: mcrEngine, SC12, section III-B. *Concatenation* puts the pieces one after the other. *Blocking* works in
//! rounds. Each round takes one block of each piece, until all pieces are used up. A piece that ends early is left
//! out of later rounds. The last block of a piece may be short.
//!
//! [`merge`] and the reader of containers both loop over [`runs`], so that neither can be changed without the other.

use std::num::NonZeroU32;
use std::ops::Range;

/// How pieces follow each other in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One piece after the other.
    Concatenated,
    /// One block of each piece in turn. The value is the length of a block, in bytes.
    Interleaved(NonZeroU32),
}

/// One run of bytes in a piece and in the merged segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the piece.
    pub piece: usize,
    /// Range of bytes in the piece.
    pub in_piece: Range<usize>,
    /// Range of bytes in the segment; as long as `in_piece`.
    pub in_segment: Range<usize>,
}

/// Calls `each` for every run of a segment, in the order of the segment. `lens` are the lengths of the pieces in
/// bytes.
pub fn runs(lens: &[usize], layout: Layout, mut each: impl FnMut(Run)) {
    let longest = lens.iter().copied().max().unwrap_or(0);
    let block = match layout {
        Layout::Concatenated => longest.max(1),
        Layout::Interleaved(block) => block.get() as usize,
    };
    let mut at = 0;
    let mut live: Vec<usize> = (0..lens.len()).filter(|&i| lens[i] > 0).collect();
    let mut from = 0;
    while !live.is_empty() {
        for &piece in &live {
            let n = block.min(lens[piece] - from);
            each(Run { piece, in_piece: from..from + n, in_segment: at..at + n });
            at += n;
        }
        from = from.saturating_add(block);
        live.retain(|&i| lens[i] > from);
    }
}

/// Joins pieces into one segment. The length of the segment is the sum of the lengths of the pieces.
pub fn merge(pieces: &[&[u8]], layout: Layout) -> Vec<u8> {
    let lens: Vec<usize> = pieces.iter().map(|p| p.len()).collect();
    let mut segment = Vec::with_capacity(lens.iter().sum());
    runs(&lens, layout, |run| segment.extend_from_slice(&pieces[run.piece][run.in_piece]));
    segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interleaved(block: u32) -> Layout {
        Layout::Interleaved(NonZeroU32::new(block).expect("not zero"))
    }

    /// Splits a segment, as a reader of containers does.
    fn split(segment: &[u8], lens: &[usize], layout: Layout) -> Vec<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = lens.iter().map(|&n| Vec::with_capacity(n)).collect();
        runs(lens, layout, |run| pieces[run.piece].extend_from_slice(&segment[run.in_segment]));
        pieces
    }

    #[test]
    fn blocks_of_uneven_pieces_take_turns() {
        let pieces: [&[u8]; 4] = [b"aaaaa", b"bb", b"", b"cccc"];
        assert_eq!(merge(&pieces, interleaved(2)), b"aabbccaacca");
        assert_eq!(merge(&pieces, Layout::Concatenated), b"aaaaabbcccc");
        assert_eq!(merge(&[], interleaved(2)), b"");
    }

    proptest! {
        #[test]
        fn split_gives_back_what_merge_was_given(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..12),
            block in prop_oneof![Just(None), (1u32..64).prop_map(Some), Just(Some(u32::MAX))],
        ) {
            let layout = block.map_or(Layout::Concatenated, interleaved);
            let refs: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let lens: Vec<usize> = pieces.iter().map(Vec::len).collect();
            let segment = merge(&refs, layout);
            prop_assert_eq!(segment.len(), lens.iter().sum::<usize>());
            prop_assert_eq!(split(&segment, &lens, layout), pieces);
        }
    }
}
