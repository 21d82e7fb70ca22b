//! Reads pieces of metadata. Each read uses up a part of a budget, so that a damaged file cannot keep the parser busy
//! without end. Also reads the parts of the format that several structures contain.

use crate::h5::datatype::Parsed;
use crate::h5::reader::Reader;
use crate::h5::superblock::{Superblock, Unreadable};
use crate::h5::{H5Error, MappedVariable};
use std::borrow::Cow;
use std::collections::HashMap;

/// Maximum depth of a B-tree. A node of a B-tree in HDF5 has at least two children.
pub(super) const LEVELS_MAX: u8 = 40;
/// Maximum memory for all links of a file, in bytes: their names, and [`LINK_BYTES`] for each link.
pub(super) const LINKS_BYTES_MAX: u64 = 512 << 20;
const LINK_BYTES: u64 = 64;

pub(super) struct Parser<'a> {
    pub(super) reader: Reader<'a>,
    /// Addresses in the file are relative to this offset, which is the position of the superblock.
    pub(super) base: u64,
    /// Length of the file, in bytes.
    pub(super) bytes: u64,
    pub(super) offset_width: usize,
    pub(super) length_width: usize,
    pub(super) steps_left: u64,
    /// Committed datatypes by address.
    pub(super) committed: HashMap<u64, DatatypeMessage>,
    /// Whether a committed datatype is being read. A committed datatype must not refer to another committed datatype.
    pub(super) in_committed: bool,
    /// Number of chunks found so far, in all datasets.
    pub(super) chunks: usize,
    /// Unused part of [`LINKS_BYTES_MAX`], in bytes.
    pub(super) links_bytes_left: u64,
    pub(super) variables: Vec<MappedVariable>,
}

/// A datatype and the width of one element.
pub(super) type DatatypeMessage = (Parsed, u32);

/// A hard link: its name, and the address of the object.
pub(super) type Link = (Box<[u8]>, u64);

/// Reads little-endian fields from a piece of metadata.
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a [u8],
    /// Offset of the piece in the file, for messages.
    pub(super) at: u64,
}

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], H5Error> {
        match self.bytes.split_at_checked(n) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => Err(not_classic("metadata is cut short", self.at)),
        }
    }

    /// Reads a number of up to 8 bytes.
    pub(super) fn number(&mut self, width: usize) -> Result<u64, H5Error> {
        Ok(self.take(width)?.iter().rev().fold(0, |n, &b| (n << 8) | u64::from(b)))
    }

    pub(super) fn u8(&mut self) -> Result<u8, H5Error> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, H5Error> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, H5Error> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads an address. `None` if all bits of the address are set, which means an undefined address.
    pub(super) fn address(&mut self, width: usize) -> Result<Option<u64>, H5Error> {
        let undefined = if width == 8 { u64::MAX } else { (1 << (8 * width)) - 1 };
        Ok(Some(self.number(width)?).filter(|&address| address != undefined))
    }
}

pub(super) fn not_classic(what: &'static str, at: u64) -> H5Error {
    H5Error::NotClassic { what, at }
}

impl<'a> Parser<'a> {
    /// Charges one entry and `bytes` copied bytes to the budget.
    pub(super) fn pay(&mut self, bytes: usize, at: u64) -> Result<(), H5Error> {
        self.steps_left = self
            .steps_left
            .checked_sub(1 + bytes as u64 / 8)
            .ok_or_else(|| not_classic("more metadata than fits into the file", at))?;
        Ok(())
    }

    /// Returns `len` bytes that begin at an address.
    pub(super) fn piece(&mut self, address: u64, len: usize) -> Result<Cow<'a, [u8]>, H5Error> {
        let at = address.saturating_add(self.base);
        self.pay(len, at)?;
        match self.reader.borrowed(at, len) {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => Ok(Cow::Owned(self.reader.get(at, len)?.to_vec())),
        }
    }

    /// Reads the widths of addresses and lengths from the superblock. Returns the address of the root group's header.
    pub(super) fn superblock(&mut self) -> Result<u64, H5Error> {
        let at = self.base;
        let bytes = self.piece(0, (self.bytes - at).min(128) as usize)?;
        let superblock = Superblock::parse(&bytes).map_err(|why| match why {
            Unreadable::Cut => not_classic("metadata is cut short", at),
            Unreadable::Version => not_classic("a superblock of an unknown version", at),
            Unreadable::Width => not_classic("addresses of an unsupported width", at),
        })?;
        let Some(length_width @ (2 | 4 | 8)) = superblock.length_width else {
            return Err(not_classic("addresses of an unsupported width", at));
        };
        (self.offset_width, self.length_width) = (superblock.offset_width, usize::from(length_width));
        if superblock.base != at {
            return Err(not_classic("a superblock that was moved", at));
        }
        // Unlike all other addresses, the address of the end is relative to the first byte of the file.
        if superblock.end > self.bytes {
            return Err(not_classic("a file that was cut short", at));
        }
        if superblock.has_driver {
            return Err(not_classic("a file driver", at));
        }
        superblock.root.ok_or_else(|| not_classic("metadata is cut short", at))
    }

    /// Charges a link with a name of this length to [`LINKS_BYTES_MAX`].
    pub(super) fn keep(&mut self, name_bytes: usize, at: u64) -> Result<(), H5Error> {
        self.links_bytes_left = (self.links_bytes_left)
            .checked_sub(LINK_BYTES + name_bytes as u64)
            .ok_or_else(|| not_classic("names of links with more than 512 MiB", at))?;
        Ok(())
    }

    /// Reads a hard link. Other kinds of links are ignored, because every object of this file also has a hard link.
    pub(super) fn link(&self, body: &mut Fields<'_>) -> Result<Option<Link>, H5Error> {
        let (_version, flags) = (body.u8()?, body.u8()?);
        let kind = if flags & 8 != 0 { body.u8()? } else { 0 };
        body.take(if flags & 4 != 0 { 8 } else { 0 })?;
        body.take(if flags & 16 != 0 { 1 } else { 0 })?;
        let len = body.number(1 << (flags & 3))?;
        let name = body.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        Ok(if kind == 0 { Some((name.into(), body.number(self.offset_width)?)) } else { None })
    }

    /// Reads the header of a B-tree node. Returns the level of the node and the number of its children.
    pub(super) fn node(&mut self, address: u64, kind: u8, above: Option<u8>) -> Result<(u8, usize), H5Error> {
        let bytes = self.piece(address, 8)?;
        let mut fields = Fields { bytes: &bytes, at: address };
        if fields.take(4)? != b"TREE" || fields.u8()? != kind {
            return Err(not_classic("a B-tree node without its signature", address));
        }
        let level = fields.u8()?;
        let falls = match above {
            Some(above) => level.checked_add(1) == Some(above),
            None => level <= LEVELS_MAX,
        };
        if !falls {
            return Err(not_classic("a B-tree whose levels do not fall", address));
        }
        Ok((level, usize::from(fields.u16()?)))
    }
}
