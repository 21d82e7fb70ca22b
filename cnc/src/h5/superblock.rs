//! The superblock of an HDF5 file: its position, and the length that it states for the file. Source: HDF5 File Format
//! Specification 3.0, section II.A.

use mcrengine::ids::FilePath;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The first eight bytes of a superblock.
pub const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// The fields of a superblock that this program needs.
pub(super) struct Superblock {
    /// Width of an address in bytes: 2, 4 or 8.
    pub(super) offset_width: usize,
    /// Width of a length in bytes, as stored. `None` if the file ends before this field.
    pub(super) length_width: Option<u8>,
    /// The base address. Other addresses in the file are relative to the base address.
    pub(super) base: u64,
    /// The address of the end of the file, see [`hdf5_end`].
    pub(super) end: u64,
    /// Whether a file driver (family, multi) distributes the data over several files.
    pub(super) has_driver: bool,
    /// Whether HDF5 marked the file as open for writing.
    pub(super) is_marked: bool,
    /// The address of the root group's header. `None` if the file ends before this field.
    pub(super) root: Option<u64>,
}

/// Why a superblock cannot be read.
pub(super) enum Unreadable {
    /// The file ends within the superblock.
    Cut,
    Version,
    Width,
}

impl Superblock {
    /// Reads the fields from the first bytes of a superblock.
    pub(super) fn parse(block: &[u8]) -> Result<Self, Unreadable> {
        let &version = block.get(8).ok_or(Unreadable::Cut)?;
        let (width_at, base_at) = match version {
            0 => (13, 24),
            1 => (13, 28),
            2 | 3 => (9, 12),
            _ => return Err(Unreadable::Version),
        };
        let offset_width = match block.get(width_at) {
            Some(&width @ (2 | 4 | 8)) => usize::from(width),
            Some(_) => return Err(Unreadable::Width),
            None => return Err(Unreadable::Cut),
        };
        let address = |nth: usize| -> Option<u64> {
            let at = base_at + nth * offset_width;
            let digits = block.get(at..at + offset_width)?;
            Some(digits.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        let undefined = u64::MAX >> (64 - 8 * offset_width);
        Ok(Self {
            offset_width,
            length_width: block.get(width_at + 1).copied(),
            base: address(0).ok_or(Unreadable::Cut)?,
            end: address(2).ok_or(Unreadable::Cut)?,
            has_driver: version < 2 && address(3).is_some_and(|driver| driver != undefined),
            is_marked: version >= 2 && block.get(11).is_some_and(|flags| flags & 0b101 != 0),
            // In versions 0 and 1 the address follows the driver and the name of a symbol table entry.
            root: address(if version < 2 { 5 } else { 3 }),
        })
    }
}

/// The offset after `at` at which a superblock may begin. A user block before the superblock has 512 bytes, or a
/// larger power of two.
fn next_offset(at: u64) -> u64 {
    (at * 2).max(512)
}

/// Offset of the superblock: 0, or 512, 1024, 2048, ... after a user block. `None` if the file is not HDF5. If
/// `whole` is given, the bytes come from `whole` and not from the file.
pub fn superblock_offset(file: &File, bytes: u64, whole: Option<&[u8]>) -> io::Result<Option<u64>> {
    let mut at = 0;
    while at + SIGNATURE.len() as u64 <= bytes {
        let mut found = [0; SIGNATURE.len()];
        match whole.and_then(|w| w.get(usize::try_from(at).ok()?..)?.first_chunk()) {
            Some(bytes) => found = *bytes,
            None => file.read_exact_at(&mut found, at)?,
        }
        if found == SIGNATURE {
            return Ok(Some(at));
        }
        at = next_offset(at);
    }
    Ok(None)
}

/// The length of a file, compared with the length that its HDF5 superblock states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file is not HDF5, or its superblock does not determine the length.
    Unknown,
    /// The file has the length that its superblock states.
    Agrees,
    /// The file is longer than its superblock states. HDF5 has not flushed the file since the last write, or a
    /// program appended data.
    Longer,
    /// The file is shorter than its superblock states: a part of the file is missing.
    Shorter,
    /// The file has an HDF5 name, but its superblock was never written.
    Unwritten,
    /// HDF5 marked the file as open for writing: its writer is still active, or has died.
    Marked,
}

/// Number of bytes that are read from the beginning of a superblock. In version 1 with 8-byte addresses, the last
/// address ends at offset 60.
const SUPERBLOCK_BYTES: usize = 64;

/// Compares `bytes`, the length of a file, with the file's HDF5 superblock. `read_at` fills the buffer with bytes
/// from an offset of the file. The result of `read_at` is the number of these bytes, which is smaller than the buffer
/// at the end of the file.
pub fn hdf5_end<E>(
    path: &FilePath,
    bytes: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<End, E> {
    let mut block = [0u8; SUPERBLOCK_BYTES];
    let mut at = 0u64;
    loop {
        block.fill(0);
        let have = if at < bytes { read_at(at, &mut block)?.min(SUPERBLOCK_BYTES) } else { 0 };
        if have >= 8 && block[..8] == SIGNATURE {
            return Ok(end_from(&block[..have], at, bytes));
        }
        let is_begun = (1..8).contains(&bytes) && SIGNATURE.starts_with(&block[..have.min(8)]);
        if at == 0 && is_begun && (bytes >= 4 || is_named_hdf5(path)) {
            return Ok(End::Shorter);
        }
        if at == 0 && block[..8] == [0; 8] && is_named_hdf5(path) {
            // A user block may begin with zeros, so the next possible offset is checked too. A file that contains
            // only zeros has no superblock.
            let mut next = [0u8; 8];
            let user_block = bytes > 512 && read_at(512, &mut next)? == 8 && next == SIGNATURE;
            if !user_block {
                return Ok(End::Unwritten);
            }
        }
        at = next_offset(at);
        if at >= bytes || at > 1 << 30 {
            return Ok(End::Unknown);
        }
    }
}

fn is_named_hdf5(path: &FilePath) -> bool {
    [&b".h5"[..], b".hdf5", b".he5"].iter().any(|extension| path.name().ends_with(extension))
}

fn end_from(block: &[u8], at: u64, bytes: u64) -> End {
    let superblock = match Superblock::parse(block) {
        Ok(superblock) => superblock,
        // The superblock is incomplete only if the file ends within it.
        Err(Unreadable::Cut) => return End::Shorter,
        Err(Unreadable::Version | Unreadable::Width) => return End::Unknown,
    };
    // If a file driver is used, the superblock does not state the length of this file.
    if superblock.has_driver {
        return End::Unknown;
    }
    if superblock.is_marked {
        return End::Marked;
    }
    // The end is relative to the base address. If a user block was inserted later, the base address is wrong, so the
    // found offset of the superblock is used.
    match superblock.end.checked_sub(superblock.base).and_then(|length| length.checked_add(at)) {
        Some(expected) if expected == bytes => End::Agrees,
        Some(expected) if expected < bytes => End::Longer,
        Some(_) => End::Shorter,
        None => End::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a superblock of the given version, which states that the file ends at `end`.
    fn superblock(version: u8, base: u64, end: u64, flags: u8) -> Vec<u8> {
        let mut block = [&SIGNATURE[..], &[version]].concat();
        match version {
            0 => block.extend([0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0]),
            1 => block.extend([0, 0, 0, 0, 8, 8, 0, 4, 0, 16, 0, 0, 0, 0, 0, 32, 0, 0, 0]),
            _ => block.extend([8, 8, flags]),
        }
        for address in [base, u64::MAX, end, u64::MAX] {
            block.extend(address.to_le_bytes());
        }
        block.resize(96, 0);
        block
    }

    fn end_of(name: &str, content: &[u8]) -> End {
        let path = FilePath::new(name.as_bytes()).expect("valid");
        hdf5_end::<()>(&path, content.len() as u64, |at, into| {
            let from = &content[usize::try_from(at).expect("small").min(content.len())..];
            let n = from.len().min(into.len());
            into[..n].copy_from_slice(&from[..n]);
            Ok(n)
        })
        .expect("reads")
    }

    #[test]
    fn superblocks_of_all_versions_tell_where_the_file_ends() {
        for version in 0..=3 {
            let whole = |base, end, flags| superblock(version, base, end, flags);
            assert_eq!(end_of("x", &whole(0, 96, 0)), End::Agrees, "version {version}");
            assert_eq!(end_of("x", &whole(0, 95, 0)), End::Longer, "version {version}");
            assert_eq!(end_of("x", &whole(0, 97, 0)), End::Shorter, "version {version}");
            let user_block = |base, end| [vec![0; 1024], whole(base, end, 0)].concat();
            assert_eq!(end_of("x", &user_block(1024, 1120)), End::Agrees, "version {version}");
            assert_eq!(end_of("x", &user_block(0, 96)), End::Agrees, "user block inserted later; version {version}");
            for cut in 1..96 {
                assert_eq!(end_of("x.h5", &whole(0, 96, 0)[..cut]), End::Shorter, "version {version}, {cut} bytes");
            }
        }
        assert_eq!(end_of("x", &superblock(3, 0, 96, 1)), End::Marked);
        assert_eq!(end_of("x", &superblock(3, 0, 96, 4)), End::Marked);
        assert_eq!(end_of("x", &superblock(9, 0, 96, 0)), End::Unknown);
        assert_eq!(end_of("x.h5", b""), End::Unwritten);
        assert_eq!(end_of("x.h5", &[0; 4096]), End::Unwritten);
        assert_eq!(end_of("x.h5", b"not HDF5, despite its name"), End::Unknown);
        assert_eq!(end_of("x.h5", &[vec![0; 512], superblock(0, 512, 608, 0)].concat()), End::Agrees);
        assert_eq!(end_of("x.bin", b""), End::Unknown);
        assert_eq!(end_of("x.bin", &[0; 4096]), End::Unknown);
    }
}
