//! Reads a parity file.

use super::format::{Geometry, HEADER_LEN, ParityHeader, ParityPercent, parse_header, u32_at};
use super::parity_path;
use crate::error::ReadError;
use crate::ids::Digest;
use crate::store::{Store, StoredFile};
use std::path::{Path, PathBuf};

/// A parity file of which at least one of the two headers is valid.
pub(super) struct ParityFile {
    pub(super) header: ParityHeader,
    file: Box<dyn StoredFile>,
    path: PathBuf,
    /// Why the two headers are not both valid and equal; `None` if both headers are valid and equal.
    other: Option<ReadError>,
}

/// A parity file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The percentage for which the parity was written; `None` if both headers are damaged.
    pub percent: Option<u32>,
    /// Length of the parity file, in bytes.
    pub bytes: u64,
}

/// The record of a stripe.
pub(super) struct StripeRecord {
    geometry: Geometry,
    bytes: Vec<u8>,
}

impl StripeRecord {
    /// The recorded checksum of a block. Parity blocks follow the container blocks.
    pub(super) fn crc(&self, nth: u32) -> u32 {
        u32_at(&self.bytes, nth as usize * size_of::<u32>())
    }

    /// A parity block; `None` if the bytes of the block do not agree with its checksum.
    pub(super) fn parity(&self, nth: u32) -> Option<&[u8]> {
        let block = self.geometry.block_bytes as usize;
        let at = self.geometry.table_bytes() + nth as usize * block;
        let bytes = &self.bytes[at..at + block];
        (crc32c::crc32c(bytes) == self.crc(self.geometry.data + nth)).then_some(bytes)
    }
}

impl ParityFile {
    /// Opens the parity of a container. Fails if the parity belongs to another container: the index digest differs,
    /// or the length differs from `bytes`. If `bytes` is `None`, the length is not compared.
    pub(super) fn open(
        store: &dyn Store,
        container: &Path,
        index_digest: Digest,
        bytes: Option<u64>,
    ) -> Result<Self, ReadError> {
        let parity = Self::open_any(store, container)?;
        let foreign = |what, expected: String, found: String| {
            Err(ReadError::Foreign { path: parity.path.clone(), what, expected, found })
        };
        let header = &parity.header;
        if header.index_digest != index_digest {
            let what = "the index digest of the container that the parity covers";
            return foreign(what, index_digest.to_hex(), header.index_digest.to_hex());
        }
        match bytes {
            Some(bytes) if bytes != header.bytes => {
                let what = "the length of the container that the parity covers";
                foreign(what, bytes.to_string(), header.bytes.to_string())
            }
            _ => Ok(parity),
        }
    }

    fn open_any(store: &dyn Store, container: &Path) -> Result<Self, ReadError> {
        let relative = parity_path(container);
        let file = store.open(&relative).map_err(ReadError::from_store)?;
        let path = store.root().join(relative);
        let needed = HEADER_LEN as u64;
        let Some(last) = file.len().checked_sub(needed) else {
            let what = "the parity of a container";
            return Err(ReadError::Cut { path, what, needed: 2 * needed, found: file.len() });
        };
        let read = |at: u64| {
            let mut record = [0; HEADER_LEN];
            read_at(&*file, &path, at, &mut record)?;
            parse_header(&record, &path, at)
        };
        let (header, other) = match (read(0), read(last)) {
            (Ok(head), Ok(tail)) if head == tail => (head, None),
            (Ok(head), Ok(_)) => {
                let (part, what) = ("the parity of a container", "its two headers differ".into());
                (head, Some(ReadError::Invalid { path: path.clone(), part, what }))
            }
            (Ok(head), Err(error)) => (head, Some(error)),
            (Err(error), Ok(tail)) => (tail, Some(error)),
            (Err(error), Err(_)) => return Err(error),
        };
        Ok(Self { header, file, path, other })
    }

    /// Reads the record of a stripe, and verifies the checksum of the other checksums in the record.
    pub(super) fn stripe(&self, stripe: u64) -> Result<StripeRecord, ReadError> {
        let geometry = self.header.geometry;
        let at = geometry.record_at(stripe);
        let mut bytes = vec![0; geometry.record_bytes() as usize]; // at most 2^26 bytes of blocks
        read_at(&*self.file, &self.path, at, &mut bytes)?;
        let table = geometry.table_bytes() - size_of::<u32>();
        let (found, recorded) = (crc32c::crc32c(&bytes[..table]), u32_at(&bytes, table));
        if found != recorded {
            return Err(self.damaged(format!("the checksums of stripe {stripe}"), at, found, recorded));
        }
        Ok(StripeRecord { geometry, bytes })
    }

    /// The path of the parity file, for error messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the parity file, in bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    fn damaged(&self, part: String, at: u64, found: u32, recorded: u32) -> ReadError {
        ReadError::Damaged { path: self.path.clone(), part, at, found, recorded }
    }

    /// Compares every checksum of the parity file.
    fn verify(self) -> Result<(), ReadError> {
        let geometry = self.header.geometry;
        let (needed, found) = (geometry.file_bytes(), self.file.len());
        if let Some(error) = self.other {
            return Err(error);
        }
        if found < needed {
            return Err(ReadError::Cut { path: self.path, what: "the parity of a container", needed, found });
        }
        for stripe in 0..geometry.stripes {
            let record = self.stripe(stripe)?;
            let bad = (0..geometry.parity).find(|nth| record.parity(*nth).is_none());
            if let Some(nth) = bad {
                let block = geometry.block_bytes as usize;
                let at = geometry.table_bytes() + nth as usize * block;
                let found = crc32c::crc32c(&record.bytes[at..at + block]);
                let part = format!("parity block {nth} of stripe {stripe}");
                let recorded = record.crc(geometry.data + nth);
                return Err(self.damaged(part, geometry.record_at(stripe) + at as u64, found, recorded));
            }
        }
        Ok(())
    }
}

/// Verifies the parity of a container without reading the container. Returns `false` if the container has no parity.
/// Fails if the parity is damaged, or belongs to a container with another index digest or length.
pub fn check(store: &dyn Store, container: &Path, index_digest: Digest, bytes: u64) -> Result<bool, ReadError> {
    match ParityFile::open(store, container, index_digest, Some(bytes)) {
        Ok(parity) => parity.verify().map(|()| true),
        Err(ReadError::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The parity file of a container, damaged or not. `None` if the container has no parity file.
pub fn find(store: &dyn Store, container: &Path) -> Option<Found> {
    let bytes = store.stat(&parity_path(container)).ok().filter(|stat| !stat.is_dir)?.bytes;
    let percent = ParityFile::open_any(store, container).ok().map(|parity| parity.header.percent);
    Some(Found { percent, bytes })
}

/// The index digest of the container that the parity covers. `None` if the container has no readable parity.
pub(crate) fn index_digest_of(store: &dyn Store, container: &Path) -> Option<Digest> {
    ParityFile::open_any(store, container).ok().map(|parity| parity.header.index_digest)
}

/// The percentage for which the parity is written again. The result is [`ParityPercent::SUGGESTED`] if the parity
/// file does not show its percentage.
pub fn percent_of(found: &Found) -> ParityPercent {
    found.percent.and_then(ParityPercent::new).unwrap_or(ParityPercent::SUGGESTED)
}

pub(super) fn read_at(file: &dyn StoredFile, path: &Path, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
    let len = into.len() as u64;
    file.read_at(offset, into).map_err(|source| ReadError::Io { path: path.into(), offset, len, source })
}
