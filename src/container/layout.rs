//! The records of fixed length in a container: file header, segment header, trailer. The tables of these records are
//! in docs/format/container.md.

use crate::codec::{Chain, CodecError};

/// The version of containers that this build writes, and the newest version that it reads.
pub const VERSION: u16 = 1;
/// Length of the file header, in bytes.
pub const FILE_HEADER_LEN: usize = 32;
/// Length of a segment header, in bytes.
pub const SEGMENT_HEADER_LEN: usize = 72;
/// Length of the trailer, in bytes.
pub const TRAILER_LEN: usize = 48;
/// Maximum raw length of a segment, in bytes.
pub const SEGMENT_RAW_MAX: u64 = 1 << 30;
/// Maximum stored length of a segment, in bytes. The limit allows for incompressible raw bytes and for the bytes that
/// codecs add.
pub const SEGMENT_STORED_MAX: u64 = SEGMENT_RAW_MAX + (SEGMENT_RAW_MAX >> 4);
/// Maximum length of an index before compression, in bytes.
pub const INDEX_RAW_MAX: u64 = 1 << 30;
/// Minimum raw length of a variable that has a digest in the index, in bytes. Shorter variables have no digest.
pub const DIGEST_BYTES_MIN: u64 = 4096;

const FILE_MAGIC: [u8; 8] = *b"\x89MCR\r\n\x1a\n";
const SEGMENT_MAGIC: [u8; 4] = *b"\x89MS\n";
const END_MAGIC: [u8; 8] = *b"\x89MCRend\n";

mod file_at {
    pub(super) const VERSION: usize = 8;
    pub(super) const FLAGS: usize = 10;
    pub(super) const CRC: usize = 28;
}
mod segment_at {
    pub(super) const FLAGS: usize = 4;
    pub(super) const RAW_LEN: usize = 8;
    pub(super) const STORED_LEN: usize = 16;
    pub(super) const DATA_CRC: usize = 24;
    pub(super) const CHAIN: usize = 28;
    pub(super) const CHAIN_END: usize = CHAIN + 1 + 6 * 6;
    pub(super) const CRC: usize = 68;
}
mod trailer_at {
    pub(super) const INDEX_OFFSET: usize = 0;
    pub(super) const INDEX_STORED: usize = 8;
    pub(super) const INDEX_RAW: usize = 16;
    pub(super) const SEGMENTS: usize = 24;
    pub(super) const INDEX_CRC: usize = 28;
    pub(super) const FLAGS: usize = 32;
    pub(super) const CRC: usize = 36;
    pub(super) const MAGIC: usize = 40;
}
const _: () = assert!(file_at::CRC + size_of::<u32>() == FILE_HEADER_LEN);
const _: () = assert!(segment_at::CHAIN_END <= segment_at::CRC);
const _: () = assert!(segment_at::CRC + size_of::<u32>() == SEGMENT_HEADER_LEN);
const _: () = assert!(trailer_at::MAGIC + END_MAGIC.len() == TRAILER_LEN);

/// The error in a record.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The bytes are not a record of this kind.
    Mark,
    /// The checksum does not agree with the bytes.
    Crc { found: u32, recorded: u32 },
    /// The record was written in a later version of the format.
    TooNew(u16),
    /// The record has flags that a reader must understand and that this build does not know.
    Flags(u32),
    /// A field is out of its range.
    Invalid(&'static str),
    /// The chain of a segment cannot be read.
    Chain(CodecError),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes has N bytes")
}

fn seal<const N: usize>(record: &mut [u8; N], crc_at: usize) {
    let crc = crc32c::crc32c(&record[..crc_at]);
    record[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}
fn check<const N: usize>(record: &[u8; N], crc_at: usize) -> Result<(), Fault> {
    let (found, recorded) = (crc32c::crc32c(&record[..crc_at]), u32_at(record, crc_at));
    if found == recorded { Ok(()) } else { Err(Fault::Crc { found, recorded }) }
}

/// The file header of this version.
pub(crate) fn file_header() -> [u8; FILE_HEADER_LEN] {
    let mut record = [0; FILE_HEADER_LEN];
    record[..FILE_MAGIC.len()].copy_from_slice(&FILE_MAGIC);
    record[file_at::VERSION..][..2].copy_from_slice(&VERSION.to_le_bytes());
    seal(&mut record, file_at::CRC);
    record
}

/// The flag of a repacked container, which has only some segments of the original container. A reader that does not
/// know this flag must refuse the container.
const REPACKED: u16 = 1;

/// The file header of a repacked container.
pub(crate) fn repacked_file_header() -> [u8; FILE_HEADER_LEN] {
    let mut record = file_header();
    record[file_at::FLAGS..][..2].copy_from_slice(&REPACKED.to_le_bytes());
    seal(&mut record, file_at::CRC);
    record
}

/// Checks a file header. Returns whether the container was repacked.
pub(crate) fn check_file_header(record: &[u8; FILE_HEADER_LEN]) -> Result<bool, Fault> {
    if record[..FILE_MAGIC.len()] != FILE_MAGIC {
        return Err(Fault::Mark);
    }
    check(record, file_at::CRC)?;
    let (version, flags) = (u16_at(record, file_at::VERSION), u16_at(record, file_at::FLAGS));
    match version {
        0 => Err(Fault::Invalid("the version is 0")),
        v if v > VERSION => Err(Fault::TooNew(v)),
        _ if flags & 0xff & !REPACKED != 0 => Err(Fault::Flags(u32::from(flags))),
        _ => Ok(flags & REPACKED != 0),
    }
}

/// The record before the stored bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) raw_len: u64,
    pub(crate) stored_len: u64,
    pub(crate) data_crc: u32,
    pub(crate) chain: Chain,
}

impl SegmentHeader {
    /// Returns `None` if the chain does not fit into the record.
    pub(crate) fn to_record(&self) -> Option<[u8; SEGMENT_HEADER_LEN]> {
        let mut record = [0; SEGMENT_HEADER_LEN];
        record[..SEGMENT_MAGIC.len()].copy_from_slice(&SEGMENT_MAGIC);
        record[segment_at::RAW_LEN..][..8].copy_from_slice(&self.raw_len.to_le_bytes());
        record[segment_at::STORED_LEN..][..8].copy_from_slice(&self.stored_len.to_le_bytes());
        record[segment_at::DATA_CRC..][..4].copy_from_slice(&self.data_crc.to_le_bytes());
        let mut chain = Vec::new();
        self.chain.to_bytes(&mut chain);
        record[segment_at::CHAIN..segment_at::CHAIN_END].get_mut(..chain.len())?.copy_from_slice(&chain);
        seal(&mut record, segment_at::CRC);
        Some(record)
    }

    pub(crate) fn from_record(record: &[u8; SEGMENT_HEADER_LEN]) -> Result<Self, Fault> {
        if record[..SEGMENT_MAGIC.len()] != SEGMENT_MAGIC {
            return Err(Fault::Mark);
        }
        check(record, segment_at::CRC)?;
        let flags = u16_at(record, segment_at::FLAGS);
        if flags & 0xff != 0 {
            return Err(Fault::Flags(u32::from(flags)));
        }
        let raw_len = u64_at(record, segment_at::RAW_LEN);
        let stored_len = u64_at(record, segment_at::STORED_LEN);
        if raw_len > SEGMENT_RAW_MAX || stored_len > SEGMENT_STORED_MAX {
            return Err(Fault::Invalid("the segment is larger than 1 GiB"));
        }
        let (chain, _) = Chain::from_bytes(&record[segment_at::CHAIN..segment_at::CHAIN_END]).map_err(Fault::Chain)?;
        Ok(Self { raw_len, stored_len, data_crc: u32_at(record, segment_at::DATA_CRC), chain })
    }
}

/// The record at the end of a container, which says where the index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) index_offset: u64,
    pub(crate) index_stored: u64,
    pub(crate) index_raw: u64,
    pub(crate) segments: u32,
    pub(crate) index_crc: u32,
}

impl Trailer {
    pub(crate) fn to_record(&self) -> [u8; TRAILER_LEN] {
        let mut record = [0; TRAILER_LEN];
        record[trailer_at::INDEX_OFFSET..][..8].copy_from_slice(&self.index_offset.to_le_bytes());
        record[trailer_at::INDEX_STORED..][..8].copy_from_slice(&self.index_stored.to_le_bytes());
        record[trailer_at::INDEX_RAW..][..8].copy_from_slice(&self.index_raw.to_le_bytes());
        record[trailer_at::SEGMENTS..][..4].copy_from_slice(&self.segments.to_le_bytes());
        record[trailer_at::INDEX_CRC..][..4].copy_from_slice(&self.index_crc.to_le_bytes());
        record[trailer_at::MAGIC..].copy_from_slice(&END_MAGIC);
        seal(&mut record, trailer_at::CRC);
        record
    }

    /// Parses and checks a trailer. `file_len` is the length of the whole container.
    pub(crate) fn from_record(record: &[u8; TRAILER_LEN], file_len: u64) -> Result<Self, Fault> {
        if record[trailer_at::MAGIC..] != END_MAGIC {
            return Err(Fault::Mark);
        }
        check(record, trailer_at::CRC)?;
        let flags = u32_at(record, trailer_at::FLAGS);
        if flags & 0xffff != 0 {
            return Err(Fault::Flags(flags));
        }
        let trailer = Self {
            index_offset: u64_at(record, trailer_at::INDEX_OFFSET),
            index_stored: u64_at(record, trailer_at::INDEX_STORED),
            index_raw: u64_at(record, trailer_at::INDEX_RAW),
            segments: u32_at(record, trailer_at::SEGMENTS),
            index_crc: u32_at(record, trailer_at::INDEX_CRC),
        };
        let end =
            trailer.index_offset.checked_add(trailer.index_stored).and_then(|n| n.checked_add(TRAILER_LEN as u64));
        match () {
            () if end != Some(file_len) => Err(Fault::Invalid("the index does not end where the trailer begins")),
            () if trailer.index_offset < FILE_HEADER_LEN as u64 => {
                Err(Fault::Invalid("the index begins in the header"))
            }
            () if trailer.index_raw > INDEX_RAW_MAX => Err(Fault::Invalid("the index is larger than 1 GiB")),
            () if u64::from(trailer.segments) > trailer.index_offset / SEGMENT_HEADER_LEN as u64 => {
                Err(Fault::Invalid("it states more segments than the file has room for"))
            }
            () => Ok(trailer),
        }
    }
}
