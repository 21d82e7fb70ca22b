//! Where the block of each rank lies among the blocks of all ranks.

use std::borrow::Cow;

/// The place of each rank's block among all blocks.
pub(super) struct Blocks<'l> {
    lens: &'l [usize],
    starts: Vec<usize>,
}

impl<'l> Blocks<'l> {
    pub(super) fn new(lens: &'l [usize]) -> Self {
        let starts = lens
            .iter()
            .scan(0, |at, len| {
                *at += len;
                Some(*at - len)
            })
            .collect();
        Self { lens, starts }
    }

    pub(super) fn of<'b>(&self, blocks: &'b [u8], rank: usize) -> &'b [u8] {
        &blocks[self.starts[rank]..][..self.lens[rank]]
    }

    pub(super) fn of_mut<'b>(&self, blocks: &'b mut [u8], rank: usize) -> &'b mut [u8] {
        &mut blocks[self.starts[rank]..][..self.lens[rank]]
    }

    pub(super) fn len_of(&self, ranks: &[usize]) -> usize {
        ranks.iter().map(|&r| self.lens[r]).sum()
    }

    /// The concatenated blocks of `ranks`. Adjacent blocks are not copied.
    pub(super) fn bundle<'b>(&self, blocks: &'b [u8], ranks: &[usize]) -> Cow<'b, [u8]> {
        if ranks.windows(2).all(|w| w[1] == w[0] + 1) {
            return Cow::Borrowed(&blocks[self.starts[ranks[0]]..][..self.len_of(ranks)]);
        }
        let mut bundle = Vec::with_capacity(self.len_of(ranks));
        ranks.iter().for_each(|&r| bundle.extend_from_slice(self.of(blocks, r)));
        Cow::Owned(bundle)
    }

    pub(super) fn unbundle(&self, blocks: &mut [u8], ranks: &[usize], bundle: &[u8]) {
        let mut rest = bundle;
        for &rank in ranks {
            let block = rest.split_off(..self.lens[rank]).unwrap_or_default();
            self.of_mut(blocks, rank).copy_from_slice(block);
        }
    }
}
