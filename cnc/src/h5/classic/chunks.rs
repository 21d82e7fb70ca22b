//! Reads the indices of chunks: the version 1 B-tree, and the five indices of data layout 4 (single chunk, implicit,
//! fixed array, extensible array, version 2 B-tree). The chunks are returned in the order of the index, which is the
//! order of the chunks in the array.

use super::parser::{Fields, Parser, not_classic};
use crate::h5::{CHUNKS_MAX, Chunk, H5Error};

/// The kind and the address of the index of a dataset's chunks.
pub(super) enum Index {
    /// Version 1 B-tree.
    Tree1(u64),
    /// The dataset has only one chunk, at this address. If the chunk has filters: the number of its stored bytes, and
    /// its filter mask.
    Single(u64, Option<(u64, u32)>),
    /// All chunks are stored one after the other, beginning at this address.
    Implicit(u64),
    FixedArray(u64),
    ExtensibleArray(u64),
    /// Version 2 B-tree.
    Tree2(u64),
}

/// The format of the elements of an array of chunks.
#[derive(Clone, Copy)]
struct Element {
    /// Width of the field for the stored length, in bytes. 0 if the chunks have no filters.
    len_width: usize,
    /// Length of a chunk without filters, in bytes.
    raw_bytes: u64,
}

/// The header fields of an extensible array that locate its elements.
struct ExtensibleArray {
    element: Element,
    element_bytes: usize,
    max_bits: u32,
    block_elements_min: u64,
    page_elements: u64,
    /// Index of the last element that was set, plus 1.
    end: u64,
}

/// Length in bytes of `count` elements. If the length does not fit into `usize`, the result is `usize::MAX`.
fn bytes_of(count: u64, element_bytes: usize) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(element_bytes)
}

impl Parser<'_> {
    /// All allocated chunks of a dataset with these dimensions, maximum dimensions and chunk dimensions.
    pub(super) fn chunks(
        &mut self,
        index: &Index,
        dims: &[u64],
        max_dims: &[u64],
        chunk_dims: &[u64],
        raw_bytes: u64,
    ) -> Result<Vec<Chunk>, H5Error> {
        let mut chunks = Vec::new();
        match *index {
            Index::Tree1(address) => self.chunk_node(address, None, dims.len() + 1, &mut chunks)?,
            Index::Single(address, filtered) => {
                let (stored_bytes, filter_mask) = filtered.unwrap_or((raw_bytes, 0));
                self.found(&mut chunks, Some(address), stored_bytes, filter_mask)?;
            }
            Index::Implicit(address) => self.implicit(address, dims, max_dims, chunk_dims, raw_bytes, &mut chunks)?,
            Index::FixedArray(address) => self.fixed_array(address, raw_bytes, &mut chunks)?,
            Index::ExtensibleArray(address) => self.extensible_array(address, raw_bytes, &mut chunks)?,
            Index::Tree2(address) => self.chunk_records(address, dims.len(), raw_bytes, &mut chunks)?,
        }
        Ok(chunks)
    }

    /// Adds a chunk. A chunk without an address was never written, and is not added.
    fn found(
        &mut self,
        chunks: &mut Vec<Chunk>,
        address: Option<u64>,
        stored_bytes: u64,
        filter_mask: u32,
    ) -> Result<(), H5Error> {
        let Some(address) = address else { return Ok(()) };
        self.chunks += 1;
        if self.chunks > CHUNKS_MAX {
            return Err(H5Error::TooMany { what: "chunks", limit: CHUNKS_MAX as u64 });
        }
        chunks.push(Chunk { offset: address.saturating_add(self.base), stored_bytes, filter_mask });
        Ok(())
    }

    fn chunk_node(
        &mut self,
        address: u64,
        above: Option<u8>,
        rank: usize,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let (level, children) = self.node(address, 1, above)?;
        let from = address.saturating_add(8 + 2 * self.offset_width as u64);
        let bytes = self.piece(from, children * (8 + 8 * rank + self.offset_width))?;
        let mut fields = Fields { bytes: &bytes, at: from };
        for _ in 0..children {
            self.pay(0, from)?;
            let (stored_bytes, filter_mask) = (u64::from(fields.u32()?), fields.u32()?);
            fields.take(8 * rank)?;
            let child = fields.address(self.offset_width)?;
            match (level, child) {
                (0, child) => self.found(chunks, child, stored_bytes, filter_mask)?,
                (_, Some(child)) => self.chunk_node(child, Some(level), rank, chunks)?,
                (_, None) => {}
            }
        }
        Ok(())
    }

    /// Adds the chunks of an implicit index. The chunks are stored in the order of the grid of the dataset's maximum
    /// dimensions.
    fn implicit(
        &mut self,
        address: u64,
        dims: &[u64],
        max_dims: &[u64],
        chunk_dims: &[u64],
        raw_bytes: u64,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let grid = |dims: &[u64]| -> Vec<u64> {
            dims.iter().zip(chunk_dims).map(|(&dim, &chunk)| dim.div_ceil(chunk.max(1))).collect()
        };
        let (counts, most) = (grid(dims), grid(max_dims));
        let all = |counts: &[u64]| counts.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        let allocated = all(&most).checked_mul(raw_bytes).filter(|&bytes| bytes <= self.bytes);
        if allocated.is_none() || raw_bytes == 0 || counts.iter().zip(&most).any(|(count, most)| count > most) {
            return Err(not_classic("more chunks than fit into the file", address));
        }
        let mut place = vec![0u64; counts.len()];
        for _ in 0..all(&counts) {
            self.pay(0, address)?;
            let nth = place.iter().zip(&most).fold(0, |nth, (at, most)| nth * most + at);
            // The product cannot overflow, because all chunks together are not longer than the file.
            self.found(chunks, Some(address.saturating_add(nth * raw_bytes)), raw_bytes, 0)?;
            for (at, count) in place.iter_mut().zip(&counts).rev() {
                *at += 1;
                if *at < *count {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }

    /// Reads elements of an array from `fields`, which contains at least `count` elements.
    fn elements(
        &mut self,
        element: Element,
        fields: &mut Fields<'_>,
        count: u64,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        for _ in 0..count {
            self.pay(0, fields.at)?;
            let address = fields.address(self.offset_width)?;
            let (stored_bytes, filter_mask) = match element.len_width {
                0 => (element.raw_bytes, 0),
                width => (fields.number(width)?, fields.u32()?),
            };
            self.found(chunks, address, stored_bytes, filter_mask)?;
        }
        Ok(())
    }

    /// Determines the format of an element. The array's header contains the client ID `filtered` (1 if the chunks
    /// have filters, 0 otherwise) and the element width.
    fn element(&self, filtered: u8, element_bytes: usize, raw_bytes: u64, at: u64) -> Result<Element, H5Error> {
        let len_width = match filtered {
            0 => 0,
            1 => element_bytes.saturating_sub(self.offset_width + 4),
            _ => return Err(not_classic("an array whose elements are not chunks", at)),
        };
        let expected = self.offset_width + if filtered == 1 { len_width + 4 } else { 0 };
        if element_bytes != expected || len_width > 8 || filtered == 1 && len_width == 0 {
            return Err(not_classic("chunks described with an unsupported width", at));
        }
        Ok(Element { len_width, raw_bytes })
    }

    /// Reads `len` bytes. The bytes must begin with this signature, followed by version 0.
    fn signed(&mut self, address: u64, signature: &[u8; 4], len: usize) -> Result<Vec<u8>, H5Error> {
        let bytes = self.piece(address, len)?;
        if !bytes.starts_with(signature) || bytes.get(4) != Some(&0) {
            return Err(not_classic("an index of chunks without its signature", address));
        }
        Ok(bytes.into_owned())
    }

    fn fixed_array(&mut self, address: u64, raw_bytes: u64, chunks: &mut Vec<Chunk>) -> Result<(), H5Error> {
        let bytes = self.signed(address, b"FAHD", 8 + self.length_width + self.offset_width)?;
        let mut fields = Fields { bytes: &bytes[5..], at: address };
        let (filtered, element_bytes, page_bits) = (fields.u8()?, usize::from(fields.u8()?), u32::from(fields.u8()?));
        let element = self.element(filtered, element_bytes, raw_bytes, address)?;
        let count = fields.number(self.length_width)?;
        let Some(block) = fields.address(self.offset_width)? else { return Ok(()) };
        if count > self.bytes {
            return Err(not_classic("more chunks than fit into the file", address));
        }
        let page_elements = 1u64.checked_shl(page_bits).unwrap_or(u64::MAX);
        let head = 6 + self.offset_width;
        if count <= page_elements {
            let bytes = self.signed(block, b"FADB", bytes_of(count, element_bytes).saturating_add(head))?;
            return self.elements(element, &mut Fields { bytes: &bytes[head..], at: block }, count, chunks);
        }
        let pages = count.div_ceil(page_elements);
        let bitmap_bytes = pages.div_ceil(8) as usize;
        let bytes = self.signed(block, b"FADB", head + bitmap_bytes)?;
        let from = block.saturating_add((head + bitmap_bytes + 4) as u64);
        self.pages(element, element_bytes, from, &bytes[head..], 0, page_elements, count, chunks)
    }

    /// Reads consecutive pages of elements. A checksum follows each page. If the bit of a page in `bitmap` is not
    /// set, the page was never written.
    #[expect(clippy::too_many_arguments, reason = "the fields that both kinds of array have for their pages")]
    fn pages(
        &mut self,
        element: Element,
        element_bytes: usize,
        from: u64,
        bitmap: &[u8],
        first_bit: u64,
        page_elements: u64,
        count: u64,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let page_bytes = page_elements.saturating_mul(element_bytes as u64).saturating_add(4);
        for page in 0..count.div_ceil(page_elements) {
            self.pay(0, from)?;
            let bit = first_bit + page;
            if bitmap.get((bit / 8) as usize).is_none_or(|byte| byte & (0x80 >> (bit % 8)) == 0) {
                continue;
            }
            let here = page_elements.min(count - page * page_elements);
            let at = from.saturating_add(page.saturating_mul(page_bytes));
            let bytes = self.piece(at, bytes_of(here, element_bytes))?;
            self.elements(element, &mut Fields { bytes: &bytes, at }, here, chunks)?;
        }
        Ok(())
    }

    fn extensible_array(&mut self, address: u64, raw_bytes: u64, chunks: &mut Vec<Chunk>) -> Result<(), H5Error> {
        let bytes = self.signed(address, b"EAHD", 12 + 6 * self.length_width + self.offset_width)?;
        let mut fields = Fields { bytes: &bytes[5..], at: address };
        let (filtered, element_bytes, max_bits) = (fields.u8()?, usize::from(fields.u8()?), u32::from(fields.u8()?));
        let (index_elements, block_elements_min) = (u64::from(fields.u8()?), u64::from(fields.u8()?));
        let (pointers_min, page_bits) = (fields.u8()?, u32::from(fields.u8()?));
        fields.take(4 * self.length_width)?;
        let end = fields.number(self.length_width)?;
        fields.take(self.length_width)?;
        let Some(index_block) = fields.address(self.offset_width)? else { return Ok(()) };
        let element = self.element(filtered, element_bytes, raw_bytes, address)?;
        let odd = || not_classic("an extensible array of an unsupported form", address);
        if max_bits > 63 || page_bits > 63 || !block_elements_min.is_power_of_two() || !pointers_min.is_power_of_two() {
            return Err(odd());
        }
        let super_blocks = 1 + max_bits.checked_sub(block_elements_min.ilog2()).ok_or_else(odd)?;
        let direct = 2 * pointers_min.ilog2();
        let indirect = super_blocks.checked_sub(direct).ok_or_else(odd)?;
        let array = ExtensibleArray {
            element,
            element_bytes,
            max_bits,
            block_elements_min,
            page_elements: 1 << page_bits,
            end,
        };

        let direct_blocks = 2 * (usize::from(pointers_min) - 1);
        let head = 6 + self.offset_width;
        let len =
            head + index_elements as usize * element_bytes + (direct_blocks + indirect as usize) * self.offset_width;
        let bytes = self.signed(index_block, b"EAIB", len)?;
        let (elements, pointers) = bytes[head..].split_at(index_elements as usize * element_bytes);
        let first = index_elements.min(end);
        self.elements(element, &mut Fields { bytes: elements, at: index_block }, first, chunks)?;
        let mut pointers = Fields { bytes: pointers, at: index_block };
        let mut start = index_elements;
        for nth in 0..super_blocks {
            let (blocks, block_elements) = array.super_block(nth);
            if nth >= direct {
                let pointer = pointers.address(self.offset_width)?;
                if let Some(pointer) = pointer.filter(|_| start < end) {
                    self.super_block(&array, pointer, nth, start, chunks)?;
                }
                start = start.saturating_add(blocks.saturating_mul(block_elements));
                continue;
            }
            for _ in 0..blocks {
                let block = pointers.address(self.offset_width)?;
                if let Some(block) = block.filter(|_| start < end) {
                    // A block that the index block refers to directly has no bits for its pages.
                    let count = block_elements.min(end - start);
                    self.data_block(&array, block, block_elements, count, None, chunks)?;
                }
                start = start.saturating_add(block_elements);
            }
        }
        Ok(())
    }

    fn super_block(
        &mut self,
        array: &ExtensibleArray,
        address: u64,
        nth: u32,
        mut start: u64,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let (blocks, block_elements) = array.super_block(nth);
        let pages = if block_elements > array.page_elements { block_elements / array.page_elements } else { 0 };
        let bitmap_bytes = blocks.saturating_mul(pages.div_ceil(8));
        if bitmap_bytes > self.bytes {
            return Err(not_classic("more chunks than fit into the file", address));
        }
        let head = 6 + self.offset_width + array.offset_bytes();
        let len = bytes_of(blocks, self.offset_width).saturating_add(head + bitmap_bytes as usize);
        let bytes = self.signed(address, b"EASB", len)?;
        let (bitmap, pointers) = bytes[head..].split_at(bitmap_bytes as usize);
        let mut pointers = Fields { bytes: pointers, at: address };
        for block in 0..blocks {
            let pointer = pointers.address(self.offset_width)?;
            if start >= array.end {
                break;
            }
            if let Some(pointer) = pointer {
                let count = block_elements.min(array.end - start);
                self.data_block(array, pointer, block_elements, count, Some((bitmap, block * pages)), chunks)?;
            }
            start = start.saturating_add(block_elements);
        }
        Ok(())
    }

    /// Reads the first `count` elements of a data block.
    fn data_block(
        &mut self,
        array: &ExtensibleArray,
        address: u64,
        block_elements: u64,
        count: u64,
        bitmap: Option<(&[u8], u64)>,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let head = 6 + self.offset_width + array.offset_bytes();
        if block_elements <= array.page_elements {
            let bytes = self.signed(address, b"EADB", bytes_of(count, array.element_bytes).saturating_add(head))?;
            let mut fields = Fields { bytes: &bytes[head..], at: address };
            return self.elements(array.element, &mut fields, count, chunks);
        }
        let (bitmap, first) = bitmap.ok_or_else(|| not_classic("pages in a block without a bitmap", address))?;
        self.signed(address, b"EADB", head)?;
        let from = address.saturating_add(head as u64 + 4);
        self.pages(array.element, array.element_bytes, from, bitmap, first, array.page_elements, count, chunks)
    }

    fn chunk_records(
        &mut self,
        address: u64,
        rank: usize,
        raw_bytes: u64,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), H5Error> {
        let tree = self.tree2(address)?;
        let (kind, record_bytes) = (tree.kind, tree.record_bytes);
        let plain = self.offset_width + 8 * rank;
        let element = match kind {
            10 if record_bytes == plain => Element { len_width: 0, raw_bytes },
            11 if (plain + 5..=plain + 12).contains(&record_bytes) => {
                Element { len_width: record_bytes - plain - 4, raw_bytes }
            }
            _ => return Err(not_classic("a B-tree whose records are not chunks", address)),
        };
        self.records(&tree, &mut |parser: &mut Self, record, at| {
            parser.elements(element, &mut Fields { bytes: record, at }, 1, chunks)
        })
    }
}

impl ExtensibleArray {
    /// Number of data blocks of the nth super block, and number of elements in each of these data blocks.
    fn super_block(&self, nth: u32) -> (u64, u64) {
        let shifted = |n: u64, by: u32| n.saturating_mul(1u64.checked_shl(by).unwrap_or(u64::MAX));
        (shifted(1, nth / 2), shifted(self.block_elements_min, nth.div_ceil(2)))
    }

    /// Width in bytes of the field for a block's offset.
    fn offset_bytes(&self) -> usize {
        self.max_bits.div_ceil(8) as usize
    }
}
