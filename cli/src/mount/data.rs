//! The bytes of the files of a mount, within a memory budget.

use super::tree::FileAt;
use mcrengine::container::{ContainerSet, ReadError, ReadOrder, SegmentBuffer, VariableReader};
use mcrengine::ids::{CheckpointId, GroupId, JobId};
use mcrengine::image::FileReader;
use mcrengine::store::PosixStore;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of groups whose segments are in memory. Each group gets an equal part of the budget.
const GROUPS_MAX: usize = 4;
/// Maximum number of files whose readers are in memory. A reader may keep one filtered chunk, of at most 64 MiB.
const READERS_MAX: usize = 32;

type GroupAt = (JobId, CheckpointId, GroupId);
type SharedReader = Arc<Mutex<FileReader>>;

/// Reads files. Several threads may read at the same time.
pub struct Data {
    store: Arc<PosixStore>,
    bytes_of_group: u64,
    recent: Mutex<Recent>,
}

/// The groups and files that were read most recently, in the order of their last use.
#[derive(Default)]
struct Recent {
    groups: Vec<(GroupAt, Arc<SegmentBuffer>)>,
    readers: Vec<(Arc<FileAt>, SharedReader)>,
}

impl Data {
    /// Keeps at most `bytes` bytes of decoded segments.
    pub fn new(store: Arc<PosixStore>, bytes: u64) -> Self {
        Self { store, bytes_of_group: bytes / GROUPS_MAX as u64, recent: Mutex::default() }
    }

    /// Reads up to `bytes` bytes of a file, fewer at its end.
    pub fn read(&self, at: &Arc<FileAt>, offset: u64, bytes: u32) -> Result<Vec<u8>, ReadError> {
        let reader = self.reader(at)?;
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let left = reader.header().bytes.saturating_sub(offset);
        let mut into = vec![0; u64::from(bytes).min(left) as usize];
        let read = reader.read(offset, &mut into);
        reader.rest(); // other readers may need the memory of the last segment
        read.map(|()| into)
    }

    fn reader(&self, at: &Arc<FileAt>) -> Result<SharedReader, ReadError> {
        let mut recent = self.recent();
        if let Some(known) = recent.readers.iter().position(|(file, _)| file == at) {
            let known = recent.readers.remove(known);
            let reader = Arc::clone(&known.1);
            recent.readers.push(known);
            return Ok(reader);
        }
        let segments = self.segments(&mut recent, at)?;
        let reader = FileReader::new(VariableReader::of(Arc::clone(&segments)), at.file);
        let reader = reader.ok_or_else(|| segments.set().no_file(at.file))?;
        let reader = Arc::new(Mutex::new(reader));
        if recent.readers.len() >= READERS_MAX {
            recent.readers.remove(0);
        }
        recent.readers.push((Arc::clone(at), Arc::clone(&reader)));
        Ok(reader)
    }

    fn segments(&self, recent: &mut Recent, at: &FileAt) -> Result<Arc<SegmentBuffer>, ReadError> {
        let key = (at.job.clone(), at.checkpoint.clone(), at.group);
        if let Some(known) = recent.groups.iter().position(|(group, _)| *group == key) {
            let known = recent.groups.remove(known);
            let segments = Arc::clone(&known.1);
            recent.groups.push(known);
            return Ok(segments);
        }
        if recent.groups.len() >= GROUPS_MAX {
            let ((job, checkpoint, group), _) = recent.groups.remove(0);
            let is_of = |file: &FileAt| (&file.job, &file.checkpoint, file.group) == (&job, &checkpoint, group);
            recent.readers.retain(|(file, _)| !is_of(file));
        }
        let set = Arc::new(ContainerSet::open(&*self.store, &at.job, &at.checkpoint, at.group)?);
        let tasks = set.tasks(|_| true);
        let segments = Arc::new(SegmentBuffer::new(set, &tasks, self.bytes_of_group, ReadOrder::Unknown)?);
        recent.groups.push((key, Arc::clone(&segments)));
        Ok(segments)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
