//! Reads a version 2 B-tree. Returns the records of the tree in order, for records of any kind.

use super::parser::{Fields, LEVELS_MAX, Parser, not_classic};
use crate::h5::H5Error;

/// The header of a tree.
pub(super) struct Tree2 {
    /// The kind of the tree's records.
    pub kind: u8,
    /// Length of a record in bytes.
    pub record_bytes: usize,
    /// Address of the root node and number of its records. `None` if the tree is empty.
    root: Option<(u64, u64)>,
    depth: u16,
    /// Maximum number of records in a node.
    records_max: u64,
    /// Width of the field for the number of records in a node, in bytes.
    count_width: usize,
    /// For each level above the leaves: the width in bytes of the field for the number of all records below a child.
    total_widths: Vec<usize>,
}

/// A callback that takes a record and the address of its node.
type Visit<'v, P> = dyn FnMut(&mut P, &[u8], u64) -> Result<(), H5Error> + 'v;

/// Number of bytes of the signature, version, kind and checksum of a node.
const NODE_OVERHEAD_BYTES: u64 = 10;

/// Number of bytes that are needed to store the number `most`.
fn width_of(most: u64) -> usize {
    most.checked_ilog2().unwrap_or(0) as usize / 8 + 1
}

impl Parser<'_> {
    pub(super) fn tree2(&mut self, address: u64) -> Result<Tree2, H5Error> {
        let bytes = self.piece(address, 18 + self.offset_width)?;
        let mut fields = Fields { bytes: &bytes, at: address };
        if fields.take(4)? != b"BTHD" || fields.u8()? != 0 {
            return Err(not_classic("a B-tree without its signature", address));
        }
        let kind = fields.u8()?;
        let (node_bytes, record_bytes, depth) = (u64::from(fields.u32()?), fields.u16()?, fields.u16()?);
        fields.take(2)?;
        let root = fields.address(self.offset_width)?;
        let count = u64::from(fields.u16()?);
        if record_bytes == 0 || depth > u16::from(LEVELS_MAX) {
            return Err(not_classic("a B-tree of an unsupported form", address));
        }
        let record = u64::from(record_bytes);
        let leaf_records = node_bytes.saturating_sub(NODE_OVERHEAD_BYTES) / record;
        let count_width = width_of(leaf_records);
        let (mut below, mut below_width) = (leaf_records, 0);
        let mut total_widths = Vec::with_capacity(usize::from(depth));
        for _ in 0..depth {
            total_widths.push(below_width);
            let pointer = (self.offset_width + count_width + below_width) as u64;
            let records = node_bytes.saturating_sub(NODE_OVERHEAD_BYTES + pointer) / (record + pointer);
            below = records.saturating_add(1).saturating_mul(below).saturating_add(records);
            below_width = width_of(below);
        }
        let root = root.filter(|_| count > 0).map(|root| (root, count));
        let record_bytes = usize::from(record_bytes);
        Ok(Tree2 { kind, record_bytes, root, depth, records_max: leaf_records, count_width, total_widths })
    }

    /// Calls `visit` with every record and the address of the record's node, in order.
    pub(super) fn records(&mut self, tree: &Tree2, visit: &mut Visit<'_, Self>) -> Result<(), H5Error> {
        match tree.root {
            Some((root, count)) => self.tree2_node(tree, root, count, usize::from(tree.depth), visit),
            None => Ok(()),
        }
    }

    fn tree2_node(
        &mut self,
        tree: &Tree2,
        address: u64,
        count: u64,
        level: usize,
        visit: &mut Visit<'_, Self>,
    ) -> Result<(), H5Error> {
        if count > tree.records_max {
            return Err(not_classic("a B-tree node with more records than fit", address));
        }
        // A node has at most 4 GiB, because its length is stored in 4 bytes. So `count` fits into `usize`.
        let count = count as usize;
        let total_width = level.checked_sub(1).map_or(0, |below| tree.total_widths[below]);
        let pointer_bytes = self.offset_width + tree.count_width + total_width;
        let pointers = if level > 0 { (count + 1) * pointer_bytes } else { 0 };
        let bytes = self.piece(address, 6 + count * tree.record_bytes + pointers)?;
        let signature: &[u8; 4] = if level > 0 { b"BTIN" } else { b"BTLF" };
        if !bytes.starts_with(signature) || bytes[4] != 0 || bytes[5] != tree.kind {
            return Err(not_classic("a B-tree node without its signature", address));
        }
        let (records, pointers) = bytes[6..].split_at(count * tree.record_bytes);
        let mut pointers = Fields { bytes: pointers, at: address };
        let mut records = records.chunks_exact(tree.record_bytes);
        for _ in 0..=count {
            if level > 0 {
                let child = pointers.number(self.offset_width)?;
                let child_count = pointers.number(tree.count_width)?;
                pointers.take(total_width)?;
                self.tree2_node(tree, child, child_count, level - 1, visit)?;
            }
            if let Some(record) = records.next() {
                self.pay(0, address)?;
                visit(self, record, address)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_takes_the_bytes_that_its_largest_value_needs() {
        for (most, bytes) in [(0, 1), (1, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3), (u64::MAX, 8)] {
            assert_eq!(width_of(most), bytes, "{most}");
        }
    }
}
