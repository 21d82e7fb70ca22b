//! Codec LZ4: the block format without a frame, from the `lz4_flex` crate in safe Rust. Takes any bytes. Restores
//! every bit.
//!
//! Source: lz4_Block_format.md of github.com/lz4/lz4. The original mcrEngine used another Lempel-Ziv coder at this
//! place.

use crate::codec::{BytesCodec, CodecError, CodecId, Work, ids, resize_for_overwrite};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

pub(crate) struct Lz4;

#[derive(Default)]
pub(crate) struct Tables(Option<CompressTable>);

fn failed(source: impl std::error::Error + Send + Sync + 'static) -> CodecError {
    CodecError::Library { codec: "lz4", source: Box::new(source) }
}

impl BytesCodec for Lz4 {
    fn id(&self) -> (CodecId, &'static str) {
        (ids::LZ4, "lz4")
    }

    fn takes(&self, param: u32) -> bool {
        param == 0
    }

    fn max_encoded_bytes(&self, raw_bytes: usize) -> usize {
        get_maximum_output_size(raw_bytes)
    }

    fn encode(&self, _: u32, raw: &[u8], stored: &mut Vec<u8>, work: &mut Work) -> Result<(), CodecError> {
        resize_for_overwrite(stored, self.max_encoded_bytes(raw.len()));
        // Segments below 65535 bytes use a small table, and longer segments a large table. The two tables give
        // different bytes, so only a table of the right size is reused.
        let small = raw.len() < usize::from(u16::MAX);
        let table = match &mut work.kept::<Tables>().0 {
            Some(table) if matches!(table, CompressTable::Small(_)) == small => table,
            other => other.insert(if small { CompressTable::small() } else { CompressTable::large() }),
        };
        let bytes = compress_into_with_table(raw, stored, table).map_err(failed)?;
        stored.truncate(bytes);
        Ok(())
    }

    fn decode(&self, _: u32, stored: &[u8], limit: usize, raw: &mut Vec<u8>, _: &mut Work) -> Result<(), CodecError> {
        resize_for_overwrite(raw, limit);
        let bytes = decompress_into(stored, raw).map_err(failed)?;
        raw.truncate(bytes);
        Ok(())
    }
}
