//! The end of a repacked container.

use super::layout::{FILE_HEADER_LEN, SEGMENT_HEADER_LEN, TRAILER_LEN, Trailer};
use super::reader::ContainerReader;
use super::repacked::{KeptSegment, encode};
use crate::error::ReadError;

/// The bytes after the segments of a repacked container: the table of kept segments, the unchanged index of the
/// original container, and the trailer.
pub(crate) fn repacked_tail(reader: &ContainerReader, table: &[KeptSegment]) -> Result<Vec<u8>, ReadError> {
    let index = reader.stored_index()?;
    let segments: u64 = table.iter().map(|kept| SEGMENT_HEADER_LEN as u64 + kept.stored_bytes).sum();
    let mut tail = encode(table);
    let (table_len, table_crc) = (tail.len() as u64, crc32c::crc32c(&tail));
    tail.extend(table_len.to_le_bytes());
    tail.extend(table_crc.to_le_bytes());
    let trailer = Trailer {
        index_offset: FILE_HEADER_LEN as u64 + segments + tail.len() as u64,
        index_stored: index.len() as u64,
        index_raw: reader.index_raw(),
        segments: table.len() as u32, // the value is at most the number of segments in the index
        index_crc: crc32c::crc32c(&index),
    };
    tail.reserve(index.len() + TRAILER_LEN);
    tail.extend_from_slice(&index);
    tail.extend(trailer.to_record());
    Ok(tail)
}
