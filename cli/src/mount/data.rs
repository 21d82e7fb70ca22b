//! The bytes of the files of a mount, within a memory budget.

use super::ahead::Ahead;
use super::spool::SpoolPlace;
use super::tree::{FileAt, GroupAt};
use mcrengine::container::{ContainerSet, DecodingMemory, ReadError, ReadOrder, SegmentBuffer, VariableReader};
use mcrengine::image::FileReader;
use mcrengine::manifest::read_manifest;
use mcrengine::partition::Recording;
use mcrengine::store::PosixStore;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of groups whose segments are in memory. Each group gets an equal part of the budget.
pub const GROUPS_MAX: u64 = 4;
/// Maximum number of readers of files that are kept for the next read.
const READERS_MAX: usize = 32;
/// The part of the budget that the codecs may take.
const DECODING_DIVISOR: u64 = 2;
/// The part of the budget that the filtered chunks of the readers may take. The segments take the rest.
const CHUNKS_DIVISOR: u64 = 8;

/// Reads files. Several threads may read at the same time.
pub struct Data {
    store: Arc<PosixStore>,
    bytes_of_segments: u64,
    bytes_of_chunks: u64,
    /// The memory of the codecs for all groups.
    decoding: Arc<DecodingMemory>,
    spool: Option<SpoolPlace>,
    ahead: Ahead,
    recent: Mutex<Recent>,
    /// The uses of the segments of groups that are closed, if they are recorded.
    recording: Option<Arc<Mutex<Recording>>>,
}

/// The segments of a group. `None` until a thread has opened the group. Other threads that need the group wait.
type Slot = Arc<Mutex<Option<Arc<SegmentBuffer>>>>;

/// The groups and files that were read most recently, in the order of their last use.
#[derive(Default)]
struct Recent {
    groups: Vec<(Arc<GroupAt>, Slot)>,
    /// Readers that no thread uses.
    readers: Vec<(Arc<FileAt>, FileReader)>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The container cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The checkpoint was pruned or replaced while it was mounted.
    #[error("checkpoint {0} was removed or replaced after a program had opened its files: open the files again")]
    Replaced(String),
}

impl Data {
    /// Takes at most `bytes` bytes of memory, or as much as one segment needs, and decodes in advance with `threads`
    /// threads. The uses of segments are added to `recording`, at the latest when this value is dropped.
    pub fn new(
        store: Arc<PosixStore>,
        bytes: u64,
        spool: Option<SpoolPlace>,
        threads: usize,
        recording: Option<Arc<Mutex<Recording>>>,
    ) -> Self {
        let (bytes_of_chunks, of_decoding) = (bytes / CHUNKS_DIVISOR, bytes / DECODING_DIVISOR);
        Self {
            store,
            bytes_of_segments: bytes - bytes_of_chunks - of_decoding,
            bytes_of_chunks,
            decoding: DecodingMemory::new(of_decoding),
            spool,
            ahead: Ahead::new(threads),
            recent: Mutex::default(),
            recording,
        }
    }

    /// Reads up to `bytes` bytes of a file, fewer at its end.
    pub fn read(&self, at: &Arc<FileAt>, offset: u64, bytes: u32) -> Result<Vec<u8>, DataError> {
        let mut reader = self.reader(at)?;
        let left = reader.header().bytes.saturating_sub(offset);
        let mut into = vec![0; u64::from(bytes).min(left) as usize];
        let wanted = self.ahead.note(at, offset, into.len() as u64);
        if wanted > 0 {
            self.ahead.fetch(reader.reader().segments(), reader.upcoming(offset + into.len() as u64, wanted));
        }
        let read = reader.read(offset, &mut into);
        reader.rest(); // other readers may need the memory of the last segment
        self.put_back(at, reader);
        Ok(read.map(|()| into)?)
    }

    /// A reader of the file for this thread.
    fn reader(&self, at: &Arc<FileAt>) -> Result<FileReader, DataError> {
        let slot = {
            let mut recent = self.recent();
            if let Some(known) = recent.readers.iter().rposition(|(file, _)| file == at) {
                return Ok(recent.readers.remove(known).1);
            }
            self.slot(&mut recent, &at.group)
        };
        let segments = self.segments(&slot, &at.group)?;
        let reader = FileReader::new(VariableReader::of(Arc::clone(&segments)), at.file);
        Ok(reader.ok_or_else(|| segments.set().no_file(at.file))?)
    }

    /// Keeps a reader for the next read, and drops the oldest readers if all readers take too much memory.
    fn put_back(&self, at: &Arc<FileAt>, reader: FileReader) {
        let mut recent = self.recent();
        if !recent.groups.iter().any(|(group, _)| *group == at.group) {
            return; // the reader would keep the memory of its group
        }
        recent.readers.push((Arc::clone(at), reader));
        let mut kept_bytes: u64 = recent.readers.iter().map(|(_, reader)| reader.kept_bytes()).sum();
        // The newest reader stays, because the next read probably needs its chunk.
        while recent.readers.len() > READERS_MAX || (recent.readers.len() > 1 && kept_bytes > self.bytes_of_chunks) {
            kept_bytes -= recent.readers.remove(0).1.kept_bytes();
        }
    }

    /// The slot of a group. Drops the group that was not used for the longest time, if there are too many groups.
    fn slot(&self, recent: &mut Recent, at: &Arc<GroupAt>) -> Slot {
        if let Some(known) = recent.groups.iter().position(|(group, _)| group == at) {
            let known = recent.groups.remove(known);
            let slot = Arc::clone(&known.1);
            recent.groups.push(known);
            return slot;
        }
        if recent.groups.len() as u64 >= GROUPS_MAX {
            let (group, slot) = recent.groups.remove(0);
            self.record(&slot);
            recent.readers.retain(|(file, _)| file.group != group);
        }
        let slot = Slot::default();
        recent.groups.push((Arc::clone(at), Arc::clone(&slot)));
        slot
    }

    /// The segments of a group. Opens the group if no other thread has opened it. The lock of all groups is not held
    /// meanwhile, so that a slow store delays only readers of this group.
    fn segments(&self, slot: &Slot, at: &GroupAt) -> Result<Arc<SegmentBuffer>, DataError> {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*slot {
            return Ok(Arc::clone(known));
        }
        let replaced = || DataError::Replaced(at.checkpoint.to_string());
        let set = match ContainerSet::open(&*self.store, &at.job, &at.checkpoint, at.group) {
            Err(ReadError::Missing { .. }) if self.is_removed(at) => return Err(replaced()),
            opened => Arc::new(opened?),
        };
        if set.readers()[0].index_digest() != at.index_digest {
            return Err(replaced());
        }
        let tasks = set.tasks(|_| true);
        let bytes = self.bytes_of_segments / GROUPS_MAX;
        let segments = SegmentBuffer::new(set, &tasks, bytes, ReadOrder::Unknown)?;
        let mut segments = segments.with_decoding(Arc::clone(&self.decoding));
        if let Some(spool) = self.spool.as_ref().and_then(SpoolPlace::make) {
            segments = segments.with_spool(Box::new(spool));
        }
        if self.recording.is_some() {
            segments.record();
        }
        Ok(Arc::clone(slot.insert(Arc::new(segments))))
    }

    fn is_removed(&self, at: &GroupAt) -> bool {
        let manifest = read_manifest(&*self.store, &at.job, &at.checkpoint, at.group);
        matches!(manifest, Err(ReadError::Missing { .. }))
    }

    /// Adds the uses of the segments of a group to the recording.
    fn record(&self, slot: &Slot) {
        let Some(recording) = &self.recording else { return };
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(segments) = &*slot {
            recording.lock().unwrap_or_else(PoisonError::into_inner).add(&segments.recorded());
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.recent().groups);
        groups.iter().for_each(|(_, slot)| self.record(slot));
    }
}
