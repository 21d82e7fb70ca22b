//! Reads blocks of a container. Bytes behind the end of the container count as zeros.

use crate::store::StoredFile;
use std::io;

/// The bytes of a container that parity covers.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) file: &'a dyn StoredFile,
    /// Length of the container when the parity was written. The file may be shorter or longer now.
    pub(super) bytes: u64,
}

impl Blocks<'_> {
    /// Fills `into` with the bytes that start at `offset`.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let there = self.bytes.min(self.file.len()).saturating_sub(offset).min(into.len() as u64) as usize;
        let (there, behind) = into.split_at_mut(there);
        behind.fill(0);
        if there.is_empty() { Ok(()) } else { self.file.read_at(offset, there) }
    }

    /// Reads like [`Self::read`]. If the file system reports an error, each block is read alone. Returns the numbers
    /// of the blocks in `into` that cannot be read.
    pub(super) fn read_possible(&self, offset: u64, into: &mut [u8], block_bytes: usize) -> Vec<usize> {
        if self.read(offset, into).is_ok() {
            return Vec::new();
        }
        let mut at = offset;
        let mut unreadable = Vec::new();
        for (nth, block) in into.chunks_mut(block_bytes).enumerate() {
            if self.read(at, block).is_err() {
                block.fill(0);
                unreadable.push(nth);
            }
            at += block_bytes as u64;
        }
        unreadable
    }
}
