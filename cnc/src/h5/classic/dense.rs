//! Reads groups that store their links in a fractal heap. A version 2 B-tree has a record for each link: the hash of
//! the link's name, and the link's place in the heap.

use super::parser::{Fields, Link, Parser, not_classic};
use crate::h5::H5Error;

/// The header fields of a fractal heap that locate its objects.
struct Heap {
    at: u64,
    id_bytes: usize,
    /// Number of blocks in a row of the doubling table.
    width: u64,
    /// Length in bytes of the blocks in the first two rows. The length doubles in each later row.
    start_bytes: u64,
    direct_max_bytes: u64,
    /// Width of the field for an offset in the heap, in bytes.
    offset_width: usize,
    /// Width of the field for an object's length, in bytes.
    len_width: usize,
    root: u64,
    /// Number of rows of the root block; 0 if the root block contains objects.
    rows: u32,
}

/// Location of a link in its heap.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    offset: u64,
    len: u64,
    /// Address of the B-tree node with this record.
    at: u64,
}

/// A block that contains links, and the range of offsets that it covers in the heap. The default block contains no
/// links.
#[derive(Default)]
struct Block {
    address: u64,
    from: u64,
    end: u64,
}

/// The location of an object in a heap.
fn place_of(heap: &Heap, id: &[u8], at: u64) -> Result<Place, H5Error> {
    let mut fields = Fields { bytes: id, at };
    // Only version 0 and kind 0 are supported. The library reads files with huge and tiny objects.
    if fields.u8()? & 0xf0 != 0 {
        return Err(not_classic("a link that is not a managed object", at));
    }
    Ok(Place { offset: fields.number(heap.offset_width)?, len: fields.number(heap.len_width)?, at })
}

/// Maximum length of a link in the heap, in bytes.
const LINK_BYTES_MAX: u64 = 64 << 10;

impl Parser<'_> {
    /// Reads the hard links of a dense group.
    pub(super) fn dense_links(&mut self, heap: u64, names: u64, links: &mut Vec<Link>) -> Result<(), H5Error> {
        let heap = self.heap(heap)?;
        let tree = self.tree2(names)?;
        if tree.kind != 5 || tree.record_bytes != 4 + heap.id_bytes {
            return Err(not_classic("a B-tree whose records are not links", names));
        }
        // The records are in the order of the hashes of the names. Here the links are read in the order of their
        // offsets in the heap, because this is faster.
        let mut places = Vec::new();
        self.records(&tree, &mut |parser: &mut Self, record, at| {
            places.push(place_of(&heap, &record[4..], at)?);
            parser.keep(0, at)
        })?;
        places.sort_unstable();
        let mut block = Block::default();
        for Place { offset, len, at } in places {
            if !(block.from..block.end).contains(&offset) {
                block = self.block_of(&heap, offset)?;
            }
            if len > LINK_BYTES_MAX || offset.checked_add(len).is_none_or(|end| end > block.end) {
                return Err(not_classic("a link that passes the end of its block", at));
            }
            let address = block.address.saturating_add(offset - block.from);
            let bytes = self.piece(address, len as usize)?;
            if let Some(link) = self.link(&mut Fields { bytes: &bytes, at })? {
                self.keep(link.0.len(), at)?;
                links.push(link);
            }
        }
        Ok(())
    }

    fn heap(&mut self, address: u64) -> Result<Heap, H5Error> {
        let (offset_width, length_width) = (self.offset_width, self.length_width);
        let bytes = self.piece(address, 22 + 12 * length_width + 3 * offset_width)?;
        let mut fields = Fields { bytes: &bytes, at: address };
        let odd = || not_classic("a heap of links of an unsupported form", address);
        if fields.take(4)? != b"FRHP" || fields.u8()? != 0 {
            return Err(odd());
        }
        let (id_bytes, filters_bytes, _flags) = (usize::from(fields.u16()?), fields.u16()?, fields.u8()?);
        let managed_max_bytes = u64::from(fields.u32()?);
        // Skip the fields for huge objects, free space and totals.
        fields.take(10 * length_width + 2 * offset_width)?;
        let width = u64::from(fields.u16()?);
        let (start_bytes, direct_max_bytes) = (fields.number(length_width)?, fields.number(length_width)?);
        let (offset_bits, _start_rows) = (u32::from(fields.u16()?), fields.u16()?);
        let (root, rows) = (fields.address(offset_width)?.ok_or_else(odd)?, u32::from(fields.u16()?));
        let powers = [width, start_bytes, direct_max_bytes].iter().all(|n| n.is_power_of_two());
        if filters_bytes != 0 || !powers || !(8..=64).contains(&offset_bits) || start_bytes > direct_max_bytes {
            return Err(odd());
        }
        // The library calculates the width of a length from `direct_max_bytes - 1`, because `direct_max_bytes` is a
        // power of two.
        let bytes_for = |most: u64| most.checked_ilog2().map_or(1, |log| log as usize / 8 + 1);
        let len_width = (direct_max_bytes.ilog2() as usize).div_ceil(8).min(bytes_for(managed_max_bytes));
        let heap = Heap {
            at: address,
            id_bytes,
            width,
            start_bytes,
            direct_max_bytes,
            offset_width: offset_bits.div_ceil(8) as usize,
            len_width,
            root,
            rows,
        };
        if heap.id_bytes < 1 + heap.offset_width + heap.len_width {
            return Err(odd());
        }
        Ok(heap)
    }

    /// Finds the direct block that contains an offset of the heap.
    fn block_of(&mut self, heap: &Heap, of: u64) -> Result<Block, H5Error> {
        let outside = || not_classic("a link that is not in its heap", heap.at);
        let found = |address, within: u64, bytes: u64| {
            let from = of - within;
            let end = from.checked_add(bytes).filter(|end| of < *end).ok_or_else(outside)?;
            Ok(Block { address, from, end })
        };
        let (mut address, mut offset, mut rows) = (heap.root, of, heap.rows);
        if rows == 0 {
            return found(address, offset, heap.start_bytes);
        }
        let row_bytes = heap.start_bytes.checked_mul(heap.width).ok_or_else(outside)?;
        let direct_rows = heap.direct_max_bytes.ilog2() - heap.start_bytes.ilog2() + 2;
        let head = 5 + self.offset_width + heap.offset_width;
        loop {
            let row = (offset / row_bytes).checked_ilog2().map_or(0, |log| log + 1);
            if row >= rows {
                return Err(outside());
            }
            let (row_start, block_bytes) = match row {
                0 => (0, heap.start_bytes),
                _ => (row_bytes << (row - 1), heap.start_bytes << (row - 1)),
            };
            offset -= row_start;
            let nth = u64::from(row) * heap.width + offset / block_bytes;
            offset %= block_bytes;
            if !self.piece(address, 5)?.starts_with(b"FHIB\0") {
                return Err(not_classic("a block of a heap without its signature", address));
            }
            let pointer = address.saturating_add(head as u64 + nth * self.offset_width as u64);
            let bytes = self.piece(pointer, self.offset_width)?;
            address = Fields { bytes: &bytes, at: pointer }.address(self.offset_width)?.ok_or_else(outside)?;
            if row < direct_rows {
                return found(address, offset, block_bytes);
            }
            // The number of rows decreases, because a block is never longer than all rows above it.
            rows = (block_bytes / row_bytes).checked_ilog2().ok_or_else(outside)? + 1;
        }
    }
}
