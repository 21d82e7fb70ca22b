//! Codec `columns`: splits records into columns. Each member, and each run of padding, is a column, and a chain of
//! codecs encodes each column. Takes compound elements. Bit-exact, padding included.
//!
//! Source: the column stores of databases, and the shuffle filters of Blosc and HDF5, which split elements into bytes
//! of equal significance. [`crate::codec::encode_best`] chooses the chain of a column by the column's type. A column
//! is never a compound.
//!
//! Payload: a varint with the number of columns. For each column, three fields follow: a varint with the column's
//! bytes per record, the chain as in [`Chain::to_bytes`], and a varint with the number of stored bytes. The stored
//! bytes of all columns come next, one column after the other. The bytes after the last whole record come last.

use super::varint::{VARINT_BYTES_MAX, put_varint, take_varint};
use crate::codec::{
    ArrayCodec, ArrayJob, Chain, CodecError, CodecId, Profile, STEPS_MAX, Scratch, Work, encode_best, ids,
    resize_for_overwrite,
};
use crate::header::{ELEMENT_WIDTH_MAX, ElementType, MEMBERS_MAX, Member};
use std::fmt;

/// The most columns: one for each member, one for the padding before each member, and one for the padding after the
/// last member.
const COLUMNS_MAX: usize = 2 * MEMBERS_MAX + 1;
const CHAIN_BYTES_MAX: usize = 1 + STEPS_MAX * 6;
/// Bytes of records that are split together, so that they stay in the cache.
const TILE_BYTES: usize = 16 << 10;

pub(crate) struct Columns;

#[derive(Default)]
pub(crate) struct Buffers {
    /// The raw bytes of all columns, one column after the other.
    columns: Vec<u8>,
    /// Buffers for the chains of the columns.
    inner: Option<Box<Scratch>>,
}

impl ArrayCodec for Columns {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::COLUMNS, "columns")
    }

    fn takes(&self, param: u32) -> bool {
        (2..=ELEMENT_WIDTH_MAX).contains(&param)
    }

    /// A column is never stored in more bytes than it has, because the raw chain is always a candidate.
    fn max_encoded_bytes(&self, param: u32, raw_bytes: usize) -> usize {
        let columns = COLUMNS_MAX.min(param as usize);
        raw_bytes + VARINT_BYTES_MAX + columns * (2 * VARINT_BYTES_MAX + CHAIN_BYTES_MAX)
    }

    fn memory_to_decode(&self, _: u32) -> u64 {
        5
    }

    fn encode(&self, job: ArrayJob<'_>, stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        let width = job.param as usize;
        let (whole, tail) = job.raw.split_at(job.raw.len() / width * width);
        let records = whole.len() / width;
        let layout = layout(job.param, job.members);
        let Buffers { columns, inner } = work.kept::<Buffers>();
        resize_for_overwrite(columns, whole.len());
        each_run(&layout, width, records, |record, column, bytes| {
            columns[column..column + bytes].copy_from_slice(&whole[record..record + bytes]);
        });
        let inner = inner.get_or_insert_default();
        stored.clear();
        put_varint(layout.len() as u32, stored); // the value is at most COLUMNS_MAX
        let mut rest = columns.as_slice();
        let mut coded = Vec::with_capacity(layout.len());
        for (bytes, element) in &layout {
            let (column, later) = rest.split_at(bytes * records);
            let (chain, column) = encode_best(&Profile::Fast, column, element, &[], false, inner)?;
            put_varint(*bytes as u32, stored); // the value is at most ELEMENT_WIDTH_MAX
            chain.to_bytes(stored);
            put_varint(column.len() as u32, stored); // the value is at most SEGMENT_BYTES_MAX
            coded.push(column);
            rest = later;
        }
        coded.iter().for_each(|column| stored.extend_from_slice(column));
        stored.extend_from_slice(tail);
        Ok(())
    }

    fn decode(
        &self,
        param: u32,
        stored: &[u8],
        raw_bytes: usize,
        raw: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), CodecError> {
        let damaged = |what| CodecError::Damaged { codec: "columns", what };
        const CUT: &str = "the list of columns ends too early";
        let width = param as usize;
        let records = raw_bytes / width;
        let mut rest = stored;
        let count = take_varint(&mut rest).ok_or(damaged(CUT))? as usize;
        if count > COLUMNS_MAX {
            return Err(damaged("too many columns"));
        }
        let mut list = Vec::with_capacity(count);
        let mut left = width;
        for _ in 0..count {
            let bytes = take_varint(&mut rest).ok_or(damaged(CUT))? as usize;
            let (chain, used) = Chain::from_bytes(rest)?;
            rest = &rest[used..];
            let stored_bytes = take_varint(&mut rest).ok_or(damaged(CUT))? as usize;
            if chain.steps().iter().any(|step| [ids::COLUMNS, ids::MIXED].contains(&step.codec)) {
                return Err(damaged("a column contains columns or streams again"));
            }
            left = left
                .checked_sub(bytes)
                .filter(|_| bytes > 0)
                .ok_or(damaged("the columns are wider than the record"))?;
            list.push((bytes, chain, stored_bytes));
        }
        if left != 0 {
            return Err(damaged("the columns are narrower than the record"));
        }
        let Buffers { columns, inner } = work.kept::<Buffers>();
        let inner = inner.get_or_insert_default();
        columns.clear();
        for (bytes, chain, stored_bytes) in &list {
            let (column, later) = rest.split_at_checked(*stored_bytes).ok_or(damaged("a column ends too early"))?;
            columns.extend_from_slice(&chain.decode(column, bytes * records, inner)?);
            rest = later;
        }
        if rest.len() != raw_bytes % width {
            return Err(damaged("the number of bytes after the last record is wrong"));
        }
        resize_for_overwrite(raw, raw_bytes);
        let (whole, tail) = raw.split_at_mut(records * width);
        each_run(&list, width, records, |record, column, bytes| {
            whole[record..record + bytes].copy_from_slice(&columns[column..column + bytes]);
        });
        tail.copy_from_slice(rest);
        Ok(())
    }

    fn show(&self, param: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({param})")
    }
}

/// The columns of a record: the bytes per record and the type of each column. The columns fill the whole record.
///
/// If the members are unknown, or do not fit the width, each 8 bytes become a column.
fn layout(width: u32, members: &[Member]) -> Vec<(usize, ElementType)> {
    let mut columns = Vec::new();
    let mut end = 0;
    let record = ElementType::Compound { width, members: members.into() };
    if record.is_valid() {
        for member in members {
            if member.offset > end {
                columns.push(((member.offset - end) as usize, ElementType::Bytes));
            }
            let bytes = member.count * member.element.width(); // fits the width, because the record is valid
            columns.push((bytes as usize, member.element.clone()));
            end = member.offset + bytes;
        }
    }
    if end == 0 {
        let word = 8.max(width.div_ceil(MEMBERS_MAX as u32));
        columns.extend((0..width / word).map(|_| (word as usize, ElementType::Fixed { width: word })));
        end = width / word * word;
    }
    if end < width {
        columns.push(((width - end) as usize, ElementType::Bytes));
    }
    columns
}

/// Calls `each` for every part of a record that belongs to one column. The arguments are the part's offset in the
/// records, its offset in the columns, and its length in bytes.
fn each_run<T>(columns: &[T], width: usize, records: usize, mut each: impl FnMut(usize, usize, usize))
where
    T: HasBytes,
{
    let tile = (TILE_BYTES / width).max(1);
    for from in (0..records).step_by(tile) {
        let to = records.min(from + tile);
        let mut offset = 0;
        for column in columns {
            let bytes = column.bytes();
            let at = offset * records;
            // If the length is a constant, a copy compiles to one or two instructions.
            match bytes {
                4 => (from..to).for_each(|r| each(r * width + offset, at + r * 4, 4)),
                8 => (from..to).for_each(|r| each(r * width + offset, at + r * 8, 8)),
                _ => (from..to).for_each(|r| each(r * width + offset, at + r * bytes, bytes)),
            }
            offset += bytes;
        }
    }
}

/// A column in the list of the encoder or in the list of the decoder.
trait HasBytes {
    /// Bytes of the column in one record.
    fn bytes(&self) -> usize;
}
impl HasBytes for (usize, ElementType) {
    fn bytes(&self) -> usize {
        self.0
    }
}
impl HasBytes for (usize, Chain, usize) {
    fn bytes(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_padding_fill_the_record() {
        let member = |offset, count, element| Member { offset, count, element };
        let members = [member(4, 1, ElementType::F64), member(12, 3, ElementType::F32)];
        let expected =
            [(4, ElementType::Bytes), (8, ElementType::F64), (12, ElementType::F32), (6, ElementType::Bytes)];
        assert_eq!(layout(30, &members), expected);
        // Without members, or with members that do not fit, each column is a word of 8 bytes.
        let word = (8, ElementType::Fixed { width: 8 });
        assert_eq!(layout(16, &members), [word.clone(), word.clone()]);
        assert_eq!(layout(12, &[]), [word, (4, ElementType::Bytes)]);
        assert!(layout(ELEMENT_WIDTH_MAX, &[]).len() <= COLUMNS_MAX);
    }
}
