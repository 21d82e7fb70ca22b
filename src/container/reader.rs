//! Reads a container: the index first, then any segment.

use super::columns::IndexFault;
use super::container_path;
use super::decode::decode;
use super::index::{BaseSegment, Index, Placement, SegmentEntry, StoredSegment};
use super::layout::*;
use super::repacked::{Kept, KeptSegment, TABLE_END_LEN, apply, decode as decode_table};
use crate::classify::VariableRef;
use crate::codec::{CodecError, Scratch};
use crate::error::ReadError;
use crate::ids::{CheckpointId, Digest, GroupId, JobId};
use crate::store::{Store, StoredFile};
use crate::units::RawBytes;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A container open for reading. The header, trailer and index of the container were checked and are valid.
pub struct ContainerReader {
    file: Box<dyn StoredFile>,
    path: PathBuf,
    index_digest: Digest,
    index: Index,
    trailer: Trailer,
    /// For a repacked container: the kept segments, and the kept pieces of each kept segment.
    kept: Option<BTreeMap<u32, Kept>>,
}

impl ContainerReader {
    /// Opens a container and checks all parts except the segments.
    ///
    /// This function does not compare the container with a manifest. [`ContainerSet`](super::ContainerSet) makes this
    /// comparison.
    pub fn open(store: &dyn Store, job: &JobId, checkpoint: &CheckpointId, group: GroupId) -> Result<Self, ReadError> {
        let relative = container_path(job, checkpoint, group);
        let file = store.open(&relative).map_err(ReadError::from_store)?;
        Self::from_file(file, store.root().join(relative))
    }

    /// Opens a container from an open file. `path` appears in error messages only.
    pub fn from_file(file: Box<dyn StoredFile>, path: PathBuf) -> Result<Self, ReadError> {
        let bytes = file.len();
        let needed = (FILE_HEADER_LEN + TRAILER_LEN) as u64;
        if bytes < needed {
            return Err(ReadError::Cut { path, what: "a container", needed, found: bytes });
        }
        let mut header = [0; FILE_HEADER_LEN];
        read_at(&*file, &path, 0, &mut header)?;
        let is_repacked = check_file_header(&header).map_err(|fault| fault.at(&path, "the file header", 0))?;
        let at = bytes - TRAILER_LEN as u64;
        let mut trailer = [0; TRAILER_LEN];
        read_at(&*file, &path, at, &mut trailer)?;
        let trailer = Trailer::from_record(&trailer, bytes).map_err(|fault| fault.at(&path, "the trailer", at))?;

        // The length of the index was compared with the length of the file, so the allocation is bounded.
        let mut stored = vec![0; usize::try_from(trailer.index_stored).map_err(|_| too_long(&path, "the index"))?];
        read_at(&*file, &path, trailer.index_offset, &mut stored)?;
        let found = crc32c::crc32c(&stored);
        if found != trailer.index_crc {
            let (part, at, recorded) = ("the index".into(), trailer.index_offset, trailer.index_crc);
            return Err(ReadError::Damaged { path, part, at, found, recorded });
        }
        let mut index = parse_index(&stored, trailer.index_raw, &path)?;
        if is_repacked {
            let table = read_table(&*file, &path, &trailer, &index)?;
            let end = apply(&mut index, &table.kept);
            if end != table.offset || table.kept.len() as u64 != u64::from(trailer.segments) {
                let what = "the segments do not end where the table begins".into();
                return Err(ReadError::Invalid { path, part: "the table of kept segments", what });
            }
            let kept = table.kept.into_iter().map(|kept| (kept.segment, kept.kept)).collect();
            return Ok(Self { file, path, index_digest: Digest::of(&stored), index, trailer, kept: Some(kept) });
        }
        let invalid = |what: &str| ReadError::Invalid { path: path.clone(), part: "the index", what: what.into() };
        let end = index.segments().last().map_or(FILE_HEADER_LEN as u64, SegmentEntry::end);
        if end != trailer.index_offset || index.segments().len() as u64 != u64::from(trailer.segments) {
            return Err(invalid("the segments do not end where the index begins"));
        }
        Ok(Self { file, path, index_digest: Digest::of(&stored), index, trailer, kept: None })
    }

    /// Whether `mcr prune` has removed unneeded bytes from the container.
    pub fn is_repacked(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether a piece of a segment is in the container. `nth` is the number of the piece in the segment.
    pub fn holds(&self, segment: u32, nth: u32) -> bool {
        match self.kept.as_ref().map(|kept| kept.get(&segment)) {
            None | Some(Some(Kept::Whole)) => true,
            Some(Some(Kept::Pieces(pieces))) => pieces.contains(&nth),
            Some(None) => false,
        }
    }

    /// Whether a whole segment is in the container.
    pub fn holds_whole(&self, segment: u32) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.get(&segment) == Some(&Kept::Whole))
    }

    /// Whether this container still holds all variables and segments that a newer container needs. `of` is the index
    /// of the newer container, and `reference` is the number of this container among its references.
    pub(crate) fn holds_all(&self, of: &Index, reference: u32) -> bool {
        let has = |at: VariableRef| {
            let mut pieces = self.index.pieces_of(at);
            pieces.all(|(n, piece)| self.holds(n, (piece - self.index.segments()[n as usize].pieces.start) as u32))
        };
        self.kept.is_none()
            || of
                .segments()
                .iter()
                .filter_map(SegmentEntry::base)
                .all(|b| b.reference != reference || self.holds_whole(b.segment))
                && of.variables().all(|(at, _)| match of.placement(at) {
                    Some(Placement::External { reference: n, at }) if n == reference => has(at),
                    _ => true,
                })
    }

    /// The index in its stored form.
    pub(crate) fn stored_index(&self) -> Result<Vec<u8>, ReadError> {
        let len = usize::try_from(self.trailer.index_stored).map_err(|_| too_long(&self.path, "the index"))?;
        let mut stored = vec![0; len];
        read_at(&*self.file, &self.path, self.trailer.index_offset, &mut stored)?;
        Ok(stored)
    }

    /// Length of the index after decompression, in bytes.
    pub(super) fn index_raw(&self) -> u64 {
        self.trailer.index_raw
    }

    /// What the container holds.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// BLAKE3 of the stored index. This digest identifies the container.
    pub fn index_digest(&self) -> Digest {
        self.index_digest
    }

    /// Length of the container, in bytes.
    pub fn bytes(&self) -> u64 {
        self.file.len()
    }

    /// Path of the container, for error messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the stored bytes of a segment and compares their checksum. The allocation of `buffer` is reused.
    pub fn read_segment(&self, segment: u32, mut buffer: Vec<u8>) -> Result<StoredSegment, ReadError> {
        let Some(entry) = self.index.segments().get(segment as usize) else {
            return Err(self.invalid("the index", format!("it has no segment {segment}")));
        };
        if self.kept.as_ref().is_some_and(|kept| !kept.contains_key(&segment)) {
            return Err(self.invalid("a segment", format!("segment {segment} was removed by prune")));
        }
        if let Some(dependency) = entry.dependencies.iter().find(|dependency| dependency.base().is_none()) {
            let what = format!("segment {segment} has a dependency of kind {}", dependency.kind);
            return Err(ReadError::Unsupported { path: self.path.clone(), what });
        }
        let mut record = [0; SEGMENT_HEADER_LEN];
        read_at(&*self.file, &self.path, entry.offset, &mut record)?;
        let header = SegmentHeader::from_record(&record)
            .map_err(|fault| fault.at(&self.path, "a segment header", entry.offset))?;
        if (header.raw_len, header.stored_len, &header.chain) != (entry.raw_bytes.0, entry.stored_bytes.0, &entry.chain)
        {
            return Err(self.invalid("a segment header", format!("segment {segment} does not agree with the index")));
        }
        let at = entry.offset + SEGMENT_HEADER_LEN as u64;
        buffer.clear();
        buffer.resize(usize::try_from(header.stored_len).map_err(|_| too_long(&self.path, "a segment"))?, 0);
        read_at(&*self.file, &self.path, at, &mut buffer)?;
        let found = crc32c::crc32c(&buffer);
        if found != header.data_crc {
            let (path, part) = (self.path.clone(), format!("segment {segment}"));
            return Err(ReadError::Damaged { path, part, at, found, recorded: header.data_crc });
        }
        let base = entry.base().and_then(|base| {
            let container = Arc::clone(self.index.references().get(base.reference as usize)?);
            Some(BaseSegment { container, segment: base.segment, digest: base.digest })
        });
        Ok(StoredSegment { chain: header.chain, raw_bytes: entry.raw_bytes, stored: buffer, base })
    }

    /// Reads and decodes a segment. Returns its raw bytes, still merged. If the segment has a base, `scratch` must have
    /// the raw bytes of the base ([`Scratch::set_older`]).
    pub fn decode_segment(&self, segment: u32, scratch: &mut Scratch) -> Result<Vec<u8>, ReadError> {
        let stored = self.read_segment(segment, Vec::new())?;
        let RawBytes(raw_bytes) = stored.raw_bytes;
        let codec = |source| ReadError::Codec { path: self.path.clone(), segment, source };
        let raw_bytes = usize::try_from(raw_bytes).map_err(|_| too_long(&self.path, "a segment"))?;
        let raw = stored.chain.decode(&stored.stored, raw_bytes, scratch).map_err(codec)?;
        if raw.len() != raw_bytes {
            return Err(self.invalid("a segment", format!("{} bytes were decoded, not {raw_bytes}", raw.len())));
        }
        Ok(raw)
    }

    /// Reads all bytes of the container from first to last, and gives them to `put` in parts of at most 1 MiB. Compares
    /// the checksum of each segment. Returns the digest of the frame ([`Self::frame_digest`]). The index and the
    /// trailer were checked when the container was opened.
    pub fn read_all<E: From<ReadError>>(&self, mut put: impl FnMut(&[u8]) -> Result<(), E>) -> Result<Digest, E> {
        let mut frame = blake3::Hasher::new();
        let mut header = [0; FILE_HEADER_LEN];
        read_at(&*self.file, &self.path, 0, &mut header)?;
        frame.update(&header);
        put(&header)?;
        let mut at = FILE_HEADER_LEN as u64;
        for (number, entry) in self.kept_segments() {
            let mut record = [0; SEGMENT_HEADER_LEN];
            read_at(&*self.file, &self.path, entry.offset, &mut record)?;
            let header = SegmentHeader::from_record(&record)
                .map_err(|fault| fault.at(&self.path, "a segment header", entry.offset))?;
            if (header.stored_len, &header.chain) != (entry.stored_bytes.0, &entry.chain) {
                let what = format!("segment {number} does not agree with the index");
                return Err(self.invalid("a segment header", what).into());
            }
            frame.update(&record);
            put(&record)?;
            at = entry.offset + SEGMENT_HEADER_LEN as u64;
            let mut found = 0;
            self.parts(at..entry.end(), |part| {
                found = crc32c::crc32c_append(found, part);
                put(part)
            })?;
            if found != header.data_crc {
                let (path, part) = (self.path.clone(), format!("segment {number}"));
                return Err(ReadError::Damaged { path, part, at, found, recorded: header.data_crc }.into());
            }
            at = entry.end();
        }
        self.parts(at..self.bytes(), |part| {
            frame.update(part);
            put(part)
        })?;
        Ok(frame.finalize().into())
    }

    /// BLAKE3 of all bytes except the stored bytes of the segments. The segment headers are included, and hold
    /// checksums of the stored bytes.
    pub fn frame_digest(&self) -> Result<Digest, ReadError> {
        let mut hasher = blake3::Hasher::new();
        let mut at = FILE_HEADER_LEN as u64;
        self.hash(0..at, &mut hasher)?;
        for (_, segment) in self.kept_segments() {
            self.hash(segment.offset..segment.offset.saturating_add(SEGMENT_HEADER_LEN as u64), &mut hasher)?;
            at = segment.end();
        }
        // The index, or the table of kept segments, follows the last segment. This was checked when the container was
        // opened.
        self.hash(at..self.bytes(), &mut hasher)?;
        Ok(hasher.finalize().into())
    }

    /// The segments in the container with their numbers. In a repacked container, removed segments have no offset, and
    /// are left out.
    fn kept_segments(&self) -> impl Iterator<Item = (u32, &SegmentEntry)> {
        let is_kept = |(n, _): &(u32, &SegmentEntry)| self.kept.as_ref().is_none_or(|kept| kept.contains_key(n));
        (0u32..).zip(self.index.segments()).filter(is_kept)
    }

    fn hash(&self, range: Range<u64>, hasher: &mut blake3::Hasher) -> Result<(), ReadError> {
        self.parts(range, |part| {
            hasher.update(part);
            Ok(())
        })
    }

    /// Reads a range of bytes in parts of at most 1 MiB.
    fn parts<E: From<ReadError>>(
        &self,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const STEP: u64 = 1 << 20;
        let mut buffer = vec![0; STEP.min(range.end.saturating_sub(range.start)) as usize];
        let mut at = range.start;
        while at < range.end {
            let part = &mut buffer[..STEP.min(range.end - at) as usize];
            read_at(&*self.file, &self.path, at, part)?;
            take(part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    pub(super) fn invalid(&self, part: &'static str, what: String) -> ReadError {
        ReadError::Invalid { path: self.path.clone(), part, what }
    }
}

impl SegmentEntry {
    /// Offset of the next segment or of the index.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(SEGMENT_HEADER_LEN as u64).saturating_add(self.stored_bytes.0)
    }
}

/// The table of a repacked container, which lists the kept segments.
struct Table {
    /// Offset of the table, where the last segment ends.
    offset: u64,
    kept: Vec<KeptSegment>,
}

fn read_table(file: &dyn StoredFile, path: &Path, trailer: &Trailer, index: &Index) -> Result<Table, ReadError> {
    let part = "the table of kept segments";
    let invalid = |what: String| ReadError::Invalid { path: path.into(), part, what };
    let short = || invalid("it is longer than the part of the file before it".into());
    let at = trailer.index_offset.checked_sub(TABLE_END_LEN).ok_or_else(short)?;
    let mut end = [0; TABLE_END_LEN as usize];
    read_at(file, path, at, &mut end)?;
    let (len, crc) = end.split_at(8);
    let len = u64::from_le_bytes(len.try_into().expect("8 of 12 bytes"));
    let recorded = u32::from_le_bytes(crc.try_into().expect("4 of 12 bytes"));
    // The length of the table was compared with the length of the file, so the allocation is bounded.
    let offset = at.checked_sub(len).filter(|offset| *offset >= FILE_HEADER_LEN as u64).ok_or_else(short)?;
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| too_long(path, part))?];
    read_at(file, path, offset, &mut bytes)?;
    let found = crc32c::crc32c(&bytes);
    if found != recorded {
        return Err(ReadError::Damaged { path: path.into(), part: part.into(), at: offset, found, recorded });
    }
    let kept = decode_table(&bytes, index).map_err(|fault| invalid(fault.sentence()))?;
    Ok(Table { offset, kept })
}

/// Decompresses and decodes a stored index. The decompressed bytes take at most `raw_bytes` bytes of memory, and at
/// most 1 GiB. The decoded items take more memory.
pub fn parse_index(stored: &[u8], raw_bytes: u64, path: &Path) -> Result<Index, ReadError> {
    let invalid = |what: String| ReadError::Invalid { path: path.into(), part: "the index", what };
    let limit = raw_bytes.min(INDEX_RAW_MAX);
    let mut raw = Vec::new();
    let decompress = |raw: &mut Vec<u8>| -> io::Result<()> {
        let mut decoder = zstd::Decoder::with_buffer(stored)?.single_frame();
        decoder.window_log_max(27)?;
        (&mut decoder).take(limit + 1).read_to_end(raw)?;
        match decoder.finish() {
            [] => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    decompress(&mut raw).map_err(|_| invalid("it cannot be decompressed".into()))?;
    if raw.len() as u64 != raw_bytes {
        return Err(invalid(format!("it has {} bytes, but the trailer states {raw_bytes}", raw.len())));
    }
    decode(&raw).map_err(|fault: IndexFault| match fault.unknown {
        true => ReadError::Unsupported { path: path.into(), what: format!("the index: {}", fault.sentence()) },
        false => invalid(fault.sentence()),
    })
}

/// Parses a segment header. Returns the raw and the stored length.
pub fn parse_segment_header(record: &[u8; SEGMENT_HEADER_LEN], path: &Path) -> Result<(u64, u64), ReadError> {
    let header = SegmentHeader::from_record(record).map_err(|fault| fault.at(path, "a segment header", 0))?;
    Ok((header.raw_len, header.stored_len))
}

fn read_at(file: &dyn StoredFile, path: &Path, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
    let len = into.len() as u64;
    file.read_at(offset, into).map_err(|source| ReadError::Io { path: path.into(), offset, len, source })
}

fn too_long(path: &Path, part: &'static str) -> ReadError {
    ReadError::Invalid { path: path.into(), part, what: "it is too long for the memory of this machine".into() }
}

impl Fault {
    pub(crate) fn at(self, path: &Path, what: &'static str, at: u64) -> ReadError {
        let path = path.to_path_buf();
        match self {
            Self::Mark => ReadError::NotOurs { path, what, at },
            Self::Crc { found, recorded } => ReadError::Damaged { path, part: what.into(), at, found, recorded },
            Self::TooNew(found) => ReadError::TooNew { path, found: u32::from(found), newest: u32::from(VERSION) },
            Self::Flags(flags) => ReadError::Unsupported { path, what: format!("{what} has flags {flags:#x}") },
            Self::Invalid(rule) => ReadError::Invalid { path, part: what, what: rule.into() },
            Self::Chain(error @ CodecError::Unknown { .. }) => {
                ReadError::Unsupported { path, what: format!("{what}: {error}") }
            }
            Self::Chain(error) => ReadError::Invalid { path, part: what, what: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::repacked_tail::repacked_tail;
    use super::*;
    use crate::store::MemoryStore;

    /// A container, repacked so that it keeps only these segments.
    fn repacked(reader: &ContainerReader, segments: &[u32]) -> ContainerReader {
        let mut bytes = repacked_file_header().to_vec();
        let mut table = Vec::new();
        for &segment in segments {
            let StoredSegment { chain, raw_bytes, stored, .. } =
                reader.read_segment(segment, Vec::new()).expect("a good segment");
            let (stored_len, data_crc) = (stored.len() as u64, crc32c::crc32c(&stored));
            let header = SegmentHeader { raw_len: raw_bytes.0, stored_len, data_crc, chain: chain.clone() };
            bytes.extend(header.to_record().expect("a chain of few steps"));
            bytes.extend(stored);
            table.push(KeptSegment { segment, stored_bytes: stored_len, chain, kept: Kept::Whole });
        }
        bytes.extend(repacked_tail(reader, &table).expect("a good index"));
        opened(&bytes)
    }

    fn opened(bytes: &[u8]) -> ContainerReader {
        let (store, path) = (MemoryStore::new(), Path::new("container"));
        store.put(path, bytes);
        ContainerReader::from_file(store.open(path).expect("there"), path.into()).expect("a valid container")
    }

    #[test]
    fn the_frame_of_a_repacked_container_leaves_removed_segments_out() {
        let whole = opened(include_bytes!("../../tests/data/v1/store/wave/DD0001/group-0000.mcr"));
        let count = whole.index().segments().len() as u32;
        assert!(count >= 3, "only {count} segments");
        let subsets: [Vec<u32>; 5] = [(0..count).collect(), vec![0], vec![count - 1], vec![0, count - 1], Vec::new()];
        for kept in subsets {
            let reader = repacked(&whole, &kept);
            let mut frame = blake3::Hasher::new();
            let mut bytes = Vec::new();
            let by_reading_all = reader.read_all(|part| {
                bytes.extend_from_slice(part);
                Ok::<(), ReadError>(())
            });
            // Independently: the bytes without the stored bytes of the kept segments.
            let mut at = FILE_HEADER_LEN;
            frame.update(&bytes[..at]);
            for &segment in &kept {
                frame.update(&bytes[at..at + SEGMENT_HEADER_LEN]);
                at += SEGMENT_HEADER_LEN + whole.index().segments()[segment as usize].stored_bytes.0 as usize;
            }
            frame.update(&bytes[at..]);
            let expected = Digest::from(frame.finalize());
            assert_eq!(reader.frame_digest().expect("readable"), expected, "kept {kept:?}");
            assert_eq!(by_reading_all.expect("readable"), expected, "kept {kept:?}");
        }
    }
}
