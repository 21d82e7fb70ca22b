//! Computes the parity of a container.
//!
//! Several neighbouring stripes are encoded at the same time, so that the container is read in runs of blocks and not
//! in single blocks. The available memory limits the number of these stripes.

use super::blocks::Blocks;
use super::format::{Geometry, ParityHeader, ParityPercent};
use super::parity_path;
use crate::ids::Digest;
use crate::store::{Store, StoreError, TempFile};
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{HighRateEncoder, RateEncoder};
use std::path::Path;

/// The memory, in bytes, that [`write()`] needs to be fast. With more memory, `write` is not faster.
pub const MEMORY_BYTES: u64 = 54 << 20;

/// Writes the parity of a container to a temporary file in the directory of `named`, and syncs the file. The caller
/// renames the file.
///
/// - `read`: the path at which the container is at present.
/// - `named`: the final path of the container.
/// - `index_digest`: the digest by which references name the container.
/// - `memory_bytes`: the maximum memory of this function, see [`MEMORY_BYTES`]. One stripe needs at most 2 MiB, and
///   this function takes the memory of one stripe even if `memory_bytes` is less.
///
/// The same container and percentage give the same bytes on every machine, with any memory.
pub fn write(
    store: &dyn Store,
    read: &Path,
    named: &Path,
    index_digest: Digest,
    percent: ParityPercent,
    memory_bytes: u64,
) -> Result<Box<dyn TempFile>, StoreError> {
    let path = parity_path(named);
    let dir = named.parent().unwrap_or(Path::new(""));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let file = store.open(read)?;
    let bytes = file.len();
    let container = Blocks { file: &*file, bytes };
    let geometry = Geometry::of(bytes, percent);
    let header = ParityHeader { percent: percent.get(), bytes, index_digest, geometry }.to_record();
    let mut temp = store.create_temp(dir, name)?;
    temp.append(&header)?;
    let mut encoder = StripeEncoder { container, geometry, run: Vec::new(), records: Vec::new() };
    // The memory has nine equal parts. Four parts hold the blocks of the stripes. Two parts hold the parity blocks in
    // the encoder, and two parts hold the parity blocks in `records`. One part holds a run of blocks. A stripe has at
    // most half as many parity blocks as container blocks.
    let window_bytes = memory_bytes.min(MEMORY_BYTES) / 9 * 4;
    let wide = (window_bytes / (u64::from(geometry.data) * u64::from(geometry.block_bytes))).max(1);
    let mut stripe = 0;
    while stripe < geometry.stripes {
        let count = wide.min(geometry.stripes - stripe);
        encoder.encode(stripe, count as usize).map_err(|fault| {
            let path = store.root().join(read);
            match fault {
                EncodeFault::Read(source) => StoreError::Io { path, what: "reading", source },
                EncodeFault::Code(error) => StoreError::Contents { path, what: format!("no parity: {error}") },
            }
        })?;
        temp.append(&encoder.records)?;
        stripe += count;
    }
    temp.append(&header)?;
    temp.sync()?;
    Ok(temp)
}

/// Why stripes were not encoded.
enum EncodeFault {
    Read(std::io::Error),
    /// The library does not accept the numbers of blocks. A valid geometry has only numbers that the library accepts.
    Code(reed_solomon_simd::Error),
}

impl From<reed_solomon_simd::Error> for EncodeFault {
    fn from(error: reed_solomon_simd::Error) -> Self {
        Self::Code(error)
    }
}

struct StripeEncoder<'a> {
    container: Blocks<'a>,
    geometry: Geometry,
    /// One run of neighbouring blocks.
    run: Vec<u8>,
    /// The records of the stripes.
    records: Vec<u8>,
}

impl StripeEncoder<'_> {
    /// Makes the records of `count` stripes from number `first`.
    fn encode(&mut self, first: u64, count: usize) -> Result<(), EncodeFault> {
        let Geometry { data, parity, .. } = self.geometry;
        let block = self.geometry.block_bytes as usize;
        let record = self.geometry.record_bytes() as usize;
        let table = self.geometry.table_bytes();
        self.run.resize(count * block, 0);
        self.records.resize(count * record, 0);
        let put_crc = |records: &mut [u8], stripe: usize, nth: u32, bytes: &[u8]| {
            let at = stripe * record + nth as usize * size_of::<u32>();
            records[at..at + size_of::<u32>()].copy_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
        };
        // A long shard is a row of blocks. Byte n of a shard is coded only with byte n of the other shards.
        let mut encoder =
            HighRateEncoder::new(data as usize, parity as usize, count * block, DefaultEngine::new(), None)?;
        for row in 0..data {
            let offset = self.geometry.offset(row, first);
            self.container.read(offset, &mut self.run).map_err(EncodeFault::Read)?;
            for (stripe, bytes) in self.run.chunks_exact(block).enumerate() {
                put_crc(&mut self.records, stripe, row, bytes);
            }
            encoder.add_original_shard(&self.run)?;
        }
        let encoded = encoder.encode()?;
        for (row, shard) in (0..parity).zip(encoded.recovery_iter()) {
            for (stripe, bytes) in shard.chunks_exact(block).enumerate() {
                put_crc(&mut self.records, stripe, data + row, bytes);
                let at = stripe * record + table + row as usize * block;
                self.records[at..at + block].copy_from_slice(bytes);
            }
        }
        for of_stripe in self.records.chunks_exact_mut(record) {
            let (crcs, own) = of_stripe[..table].split_at_mut(table - size_of::<u32>());
            own.copy_from_slice(&crc32c::crc32c(crcs).to_le_bytes());
        }
        Ok(())
    }
}
