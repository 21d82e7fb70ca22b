//! Computes the damaged blocks of a container from its parity, and writes a whole copy of the container.
//!
//! 1. Each block is compared with its checksum. Blocks of the same stripe are far apart, so runs of neighbouring
//!    blocks are read, and the damaged blocks are noted for each stripe.
//! 2. The damaged blocks of each stripe are computed, and are written to a temporary file, because they may take more
//!    memory than there is.
//! 3. The container is written to a second temporary file from its first to its last byte.

use super::blocks::Blocks;
use super::format::Geometry;
use super::reader::{ParityFile, StripeRecord, read_at};
use crate::error::{ReadError, StoreError};
use crate::ids::Digest;
use crate::store::{Store, StoredFile, TempFile};
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{HighRateDecoder, RateDecoder};
use std::collections::BTreeMap;
use std::path::Path;

/// A whole copy of a container. The copy is durable under a temporary name.
pub struct Mended {
    /// The copy. The caller verifies and renames the copy.
    pub temp: Box<dyn TempFile>,
    /// Number of blocks that were computed from the parity.
    pub blocks: u64,
    /// Total length of the computed blocks, in bytes.
    pub bytes: u64,
}

/// Why a container was not mended by its parity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MendError {
    /// The container has no parity.
    #[error("it has no parity")]
    NoParity,
    /// Too many blocks of a stripe are lost.
    #[error(
        "{stripes} of {of} stripes have lost more blocks than their parity can replace (in all, {blocks} blocks of \
         {block_bytes} bytes are damaged)"
    )]
    Beyond {
        /// Number of stripes that cannot be mended.
        stripes: u64,
        /// Number of all stripes.
        of: u64,
        /// Number of damaged blocks of the container.
        blocks: u64,
        /// Length of a block, in bytes.
        block_bytes: u32,
    },
    /// The end of the container is missing, and is longer than the parity.
    #[error("its last {missing} bytes are missing, which is more than its parity can replace")]
    Cut {
        /// Number of missing bytes.
        missing: u64,
    },
    /// No block differs from its checksum.
    #[error("the parity shows no damaged block")]
    NothingFound,
    /// The parity cannot be used, or the container cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The copy cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Maximum length of a run of blocks that is read at once, in bytes.
const RUN_BYTES: u64 = 1 << 20;

/// Writes a copy of a container with all of its bytes. `index_digest` is the digest that the container must have.
/// `bytes` is the length of the container, if the length is known. The caller compares the copy with its checksums,
/// and renames the copy. `progress` is called with the number of bytes of each written part.
pub fn mend(
    store: &dyn Store,
    container: &Path,
    index_digest: Digest,
    bytes: Option<u64>,
    progress: &dyn Fn(u64),
) -> Result<Mended, MendError> {
    let parity = match ParityFile::open(store, container, index_digest, bytes) {
        Err(ReadError::Missing { .. }) => return Err(MendError::NoParity),
        other => other?,
    };
    let file = store.open(container).map_err(ReadError::from_store)?;
    let missing = parity.header.bytes.saturating_sub(file.len());
    if missing > parity.file_bytes() {
        return Err(MendError::Cut { missing });
    }
    let geometry = parity.header.geometry;
    let (path, blocks) = (store.root().join(container), Blocks { file: &*file, bytes: parity.header.bytes });
    let mender = Mender { parity: &parity, path: &path, geometry, container: blocks };
    let damaged = mender.damaged();
    if damaged.is_empty() && file.len() == parity.header.bytes {
        return Err(MendError::NothingFound);
    }
    let dir = container.parent().unwrap_or(Path::new(""));
    let name = container.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut spill = store.create_temp(dir, name)?;
    let places = mender.compute(&damaged, &mut *spill)?;
    let blocks = places.len() as u64;
    let spilled = store.open(spill.path()).map_err(ReadError::from_store)?;
    let mut temp = store.create_temp(dir, name)?;
    mender.copy(&mut *temp, &places, &*spilled, progress)?;
    temp.sync()?;
    Ok(Mended { temp, blocks, bytes: blocks * u64::from(geometry.block_bytes) })
}

struct Mender<'a> {
    parity: &'a ParityFile,
    /// Path of the container, for error messages.
    path: &'a Path,
    geometry: Geometry,
    container: Blocks<'a>,
}

impl Mender<'_> {
    fn block(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    /// The damaged blocks of each stripe, by their numbers in the stripe. If the checksums of a stripe are damaged,
    /// the blocks of this stripe are not compared with checksums. The checksums of the whole container show later
    /// whether these blocks are damaged.
    fn damaged(&self) -> BTreeMap<u64, Vec<u32>> {
        let wide = (RUN_BYTES / self.block() as u64).max(1);
        let mut damaged: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut run = Vec::new();
        let mut first = 0;
        while first < self.geometry.stripes {
            let count = wide.min(self.geometry.stripes - first);
            let records: Vec<Option<Crcs>> = (first..first + count).map(|stripe| self.crcs(stripe)).collect();
            run.resize(count as usize * self.block(), 0);
            for row in 0..self.geometry.data {
                let unreadable = self.container.read_possible(self.geometry.offset(row, first), &mut run, self.block());
                for (nth, (record, block)) in records.iter().zip(run.chunks_exact(self.block())).enumerate() {
                    let differs = record.as_ref().is_some_and(|crcs| crcs[row as usize] != crc32c::crc32c(block));
                    if differs || unreadable.contains(&nth) {
                        damaged.entry(first + nth as u64).or_default().push(row);
                    }
                }
            }
            first += count;
        }
        damaged
    }

    /// The checksums of the container blocks of a stripe; `None` if the checksums cannot be read or are damaged.
    fn crcs(&self, stripe: u64) -> Option<Crcs> {
        let record = self.parity.stripe(stripe).ok()?;
        Some((0..self.geometry.data).map(|row| record.crc(row)).collect())
    }

    /// Computes the damaged blocks and appends them to `spill`. Returns where each block is in `spill`, by the number
    /// of the block in the container. Fails if a stripe has lost more blocks than its parity can replace.
    fn compute(
        &self,
        damaged: &BTreeMap<u64, Vec<u32>>,
        spill: &mut dyn TempFile,
    ) -> Result<BTreeMap<u64, u64>, MendError> {
        let (mut places, mut beyond, mut at) = (BTreeMap::new(), 0, 0);
        for (&stripe, rows) in damaged {
            let computed = match self.parity.stripe(stripe) {
                Ok(record) => self.decode(stripe, rows, &record)?,
                Err(_) => None,
            };
            let Some(computed) = computed else {
                beyond += 1;
                continue;
            };
            if beyond > 0 {
                continue;
            }
            for ComputedBlock { row, bytes } in computed {
                spill.append(&bytes)?;
                places.insert(u64::from(row) * self.geometry.stripes + stripe, at);
                at += bytes.len() as u64;
            }
        }
        if beyond > 0 {
            let blocks = damaged.values().map(|rows| rows.len() as u64).sum();
            let Geometry { stripes: of, block_bytes, .. } = self.geometry;
            return Err(MendError::Beyond { stripes: beyond, of, blocks, block_bytes });
        }
        Ok(places)
    }

    /// The damaged blocks of a stripe, computed from the other blocks. `None` if too many blocks are lost.
    fn decode(
        &self,
        stripe: u64,
        rows: &[u32],
        record: &StripeRecord,
    ) -> Result<Option<Vec<ComputedBlock>>, MendError> {
        let Geometry { data, parity, .. } = self.geometry;
        let whole: Vec<(u32, &[u8])> = (0..parity).filter_map(|nth| Some((nth, record.parity(nth)?))).collect();
        if whole.len() < rows.len() {
            return Ok(None);
        }
        let code = |error: reed_solomon_simd::Error| {
            let (path, part) = (self.parity.path().to_path_buf(), "a stripe of the parity");
            ReadError::Invalid { path, part, what: error.to_string() }
        };
        let engine = DefaultEngine::new();
        let decoder = HighRateDecoder::new(data as usize, parity as usize, self.block(), engine, None);
        let mut decoder = decoder.map_err(code)?;
        let mut block = vec![0; self.block()];
        for row in (0..data).filter(|row| !rows.contains(row)) {
            let offset = self.geometry.offset(row, stripe);
            let read = self.container.read(offset, &mut block);
            // An earlier step read this block. If the block cannot be read now, the store is changing or failing.
            read.map_err(|source| ReadError::Io { path: self.path.into(), offset, len: block.len() as u64, source })?;
            decoder.add_original_shard(row as usize, &block).map_err(code)?;
        }
        for (nth, bytes) in whole {
            decoder.add_recovery_shard(nth as usize, bytes).map_err(code)?;
        }
        let decoded = decoder.decode().map_err(code)?;
        let block = |(row, bytes): (usize, &[u8])| ComputedBlock { row: row as u32, bytes: bytes.to_vec() };
        Ok(Some(decoded.restored_original_iter().map(block).collect()))
    }

    /// Writes the container with the computed blocks.
    fn copy(
        &self,
        temp: &mut dyn TempFile,
        places: &BTreeMap<u64, u64>,
        spilled: &dyn StoredFile,
        progress: &dyn Fn(u64),
    ) -> Result<(), MendError> {
        let block = self.block() as u64;
        let wide = (RUN_BYTES / block).max(1);
        let bytes = self.container.bytes;
        let mut run = Vec::new();
        let mut first = 0;
        while first * block < bytes {
            let count = wide.min((bytes - first * block).div_ceil(block));
            run.resize((count * block) as usize, 0);
            let unreadable = self.container.read_possible(first * block, &mut run, self.block());
            for nth in 0..count {
                let into = &mut run[(nth * block) as usize..((nth + 1) * block) as usize];
                match places.get(&(first + nth)) {
                    Some(&at) => read_at(spilled, self.path, at, into)?,
                    None if unreadable.contains(&(nth as usize)) => {
                        let source = std::io::Error::from_raw_os_error(nix::errno::Errno::EIO as i32);
                        let offset = (first + nth) * block;
                        return Err(ReadError::Io { path: self.path.into(), offset, len: block, source }.into());
                    }
                    None => {}
                }
            }
            let len = (count * block).min(bytes - first * block) as usize;
            temp.append(&run[..len])?;
            progress(len as u64);
            first += count;
        }
        Ok(())
    }
}

/// The checksums of the container blocks of a stripe.
type Crcs = Vec<u32>;

/// A block of a stripe that was computed from the other blocks.
struct ComputedBlock {
    row: u32,
    bytes: Vec<u8>,
}
