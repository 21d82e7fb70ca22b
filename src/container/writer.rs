//! Writes a container: the segments as they arrive, then the index. At most one write buffer of stored bytes stays in
//! memory.

use super::decode::decode;
use super::encode::encode;
use super::index::{ContainerRef, Contents, Index, NO_DIGEST, Source, StoredSegment, Written};
use super::layout::*;
use super::{checkpoint_dir, container_name, container_path};
use crate::classify::VariableRef;
use crate::header::FileHeader;
use crate::ids::{CheckpointId, Digest, GroupId, JobId};
use crate::manifest;
use crate::parity::{self, ParityPercent, parity_path};
use crate::plan::SegmentPlan;
use crate::store::{Entry, Store, StoreError, TempFile, make_dirs, sync_dirs};
use crate::units::StoredBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A container being written under a temporary name. If this value is dropped, no file remains that a reader opens.
pub struct ContainerWriter {
    job: JobId,
    checkpoint: CheckpointId,
    group: GroupId,
    file: FramedFile,
    segments: Vec<Written>,
    /// Whether the directories on the path to the container are durable.
    is_dir_durable: Arc<AtomicBool>,
}

/// A container whose bytes are durable under a temporary name. If this value is dropped, no file remains that a
/// reader opens.
pub struct UnsealedContainer {
    summary: ContainerSummary,
    dirs: UnsyncedDirs,
    path: PathBuf,
    temp: Box<dyn TempFile>,
    /// The parity of the container, durable under a temporary name.
    parity: Option<Box<dyn TempFile>>,
}

/// A container that is durable under its final name. The container becomes part of a checkpoint once it is committed.
#[derive(Debug)]
pub struct SealedContainer {
    pub(crate) summary: ContainerSummary,
    pub(crate) held: Held,
}

/// The properties of a container that its manifest states.
#[derive(Debug)]
pub struct ContainerSummary {
    pub(crate) job: JobId,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) group: GroupId,
    pub(crate) bytes: u64,
    pub(crate) digest: Digest,
    pub(crate) index_digest: Digest,
    pub(crate) index: Index,
}

/// While this value exists, no other process writes the same container.
pub(crate) struct Held(#[expect(dead_code, reason = "it is only held")] Box<dyn TempFile>);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl ContainerWriter {
    /// Creates the directory if it does not exist, and a temporary file in it. Fails with [`StoreError::Committed`]
    /// if this group is already committed, or if a kept checkpoint needs the container that exists under the final
    /// name.
    ///
    /// A group has one writer at a time, from this call until its container is committed or dropped. A second writer
    /// gets [`StoreError::Busy`]. Temporary files that an earlier writer left behind are removed.
    pub fn create(
        store: &dyn Store,
        job: &JobId,
        checkpoint: &CheckpointId,
        group: GroupId,
    ) -> Result<Self, StoreError> {
        let dir = checkpoint_dir(job, checkpoint);
        let name = container_name(group);
        let temp = create_in(store, &dir, &name)?;
        // From here on, a later writer of this group sees this writer's file. An earlier writer still holds its file,
        // or has committed its container. Therefore this function looks for the manifest last. If it looked for the
        // manifest earlier, this writer could replace a container after an earlier writer has committed that
        // container.
        let is_ours = |left: &str| temp.path().file_name().is_some_and(|ours| ours == left);
        let ours = [name.as_str(), &manifest::manifest_name(group)].map(|name| format!(".{name}."));
        let left_over = |left: &str| ours.iter().any(|ours| left.starts_with(ours)) && !is_ours(left);
        // The parity of an uncommitted container does not belong to the new container.
        let parity = parity_path(Path::new(&name));
        let is_stale = |left: &str| left == manifest::PRUNED || Path::new(left) == parity;
        let left: Vec<Entry> =
            (store.list_dir(&dir)?.into_iter()).filter(|e| left_over(&e.name) || is_stale(&e.name)).collect();
        let others = left.iter().map(|left| left.name.as_str()).chain([name.as_str()]);
        if let Some(held) = others.map(|name| dir.join(name)).find(|path| store.is_held(path)) {
            return Err(StoreError::Busy { path: held.with_file_name(&name) });
        }
        manifest::check_not_committed(store, job, checkpoint, group)?;
        for left in left {
            // The mark of a pruned checkpoint is removed too, because the new checkpoint was not pruned.
            store.remove_file(&dir.join(left.name))?;
            store.sync_dir(&dir)?;
        }
        let file = FramedFile::new(temp);
        let (job, checkpoint) = (job.clone(), checkpoint.clone());
        let mut writer = Self { job, checkpoint, group, file, segments: Vec::new(), is_dir_durable: Arc::default() };
        writer.file.put_frame(&file_header())?;
        Ok(writer)
    }

    /// The directories on the path to the container, which are not durable yet. [`UnsealedContainer::seal`] syncs
    /// these directories. The caller may sync the directories earlier, on a thread that only waits for the disk.
    pub fn dirs(&self) -> UnsyncedDirs {
        let dir = checkpoint_dir(&self.job, &self.checkpoint);
        UnsyncedDirs { dir, is_durable: Arc::clone(&self.is_dir_durable) }
    }

    /// Appends a segment. The pieces of a variable must be appended in the order of its bytes.
    pub fn append(&mut self, plan: &SegmentPlan, segment: &StoredSegment) -> Result<(), StoreError> {
        let refuse = |writer: &Self, what: &str| Err(StoreError::Contents { path: writer.path(), what: what.into() });
        let (raw_len, stored_len) = (segment.raw_bytes.0, segment.stored.len() as u64);
        if plan.raw_bytes != segment.raw_bytes || plan.pieces.iter().map(|p| p.bytes).sum::<u64>() != raw_len {
            return refuse(self, "a segment and its plan differ in length");
        }
        if raw_len == 0 || raw_len > SEGMENT_RAW_MAX || stored_len > SEGMENT_STORED_MAX {
            return refuse(
                self,
                "a segment has no raw bytes, more than 1024 MiB of raw bytes, or more than 1088 MiB of stored bytes",
            );
        }
        if self.segments.len() as u64 >= u64::from(u32::MAX) {
            return refuse(self, "the container has more than 2^32 - 1 segments");
        }
        if segment.chain.needs_older() != segment.base.is_some() {
            return refuse(self, "a segment names an older segment that its chain does not need, or the reverse");
        }
        let data_crc = crc32c::crc32c(&segment.stored);
        let header = SegmentHeader { raw_len, stored_len, data_crc, chain: segment.chain.clone() };
        let Some(record) = header.to_record() else {
            return refuse(self, "a chain has more than 6 steps");
        };
        self.file.put_frame(&record)?;
        self.file.put(&segment.stored)?;
        self.segments.push(Written {
            class: plan.class,
            role: plan.role,
            element: plan.element.clone(),
            layout: plan.layout,
            chain: segment.chain.clone(),
            raw_bytes: segment.raw_bytes,
            stored_bytes: StoredBytes(stored_len),
            pieces: plan.pieces.as_slice().into(),
            base: segment.base.clone(),
        });
        Ok(())
    }

    /// Writes the index and the trailer, and syncs the file. The file keeps its temporary name until it is sealed.
    ///
    /// At the same time the encoded index is decoded and compared with `contents`.
    pub fn finish(mut self, contents: Contents) -> Result<UnsealedContainer, StoreError> {
        let path = self.path();
        let refuse = |what: String| StoreError::Contents { path: path.clone(), what };
        let raw = encode(&contents, &self.segments).map_err(|what| refuse(what.into()))?;
        if raw.len() as u64 > INDEX_RAW_MAX {
            let (found, limit) = (raw.len() as u64, INDEX_RAW_MAX);
            return Err(StoreError::TooLarge { path, what: "index", found, limit });
        }
        let read_again = || {
            let index = decode(&raw).map_err(|fault| refuse(fault.sentence()))?;
            check_same(&index, &contents, &self.segments).map_err(|what| refuse(what.into()))?;
            Ok::<_, StoreError>(index)
        };
        let (file, segments) = (&mut self.file, self.segments.len() as u32);
        let write = || {
            let what = "compressing the index";
            let stored = compress(&raw).map_err(|source| StoreError::Io { path: path.clone(), what, source })?;
            Ok::<_, StoreError>((file.finish(segments, raw.len() as u64, &stored)?, Digest::of(&stored)))
        };
        // Writing the index and checking the index are independent, so two threads do both at the same time.
        let (index, written) = std::thread::scope(|scope| {
            let written = scope.spawn(write);
            (read_again(), written.join())
        });
        let index = index?;
        let (digest, index_digest) = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let dirs = self.dirs();
        let Self { job, checkpoint, group, file, .. } = self;
        let summary = ContainerSummary { job, checkpoint, group, bytes: file.bytes, digest, index_digest, index };
        Ok(UnsealedContainer { summary, dirs, path, temp: file.temp, parity: None })
    }

    /// Calls [`ContainerWriter::finish`], then [`UnsealedContainer::seal`].
    pub fn seal(self, store: &dyn Store, contents: Contents) -> Result<SealedContainer, StoreError> {
        let (sealed, ()) = self.finish(contents)?.seal(store, |_| ())?;
        Ok(sealed)
    }

    fn path(&self) -> PathBuf {
        container_path(&self.job, &self.checkpoint, self.group)
    }
}

/// Creates a directory and a temporary file in it. Prune may remove the empty directory before the file is created.
/// Then this function tries again, at most 8 times in all.
fn create_in(store: &dyn Store, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
    const TRIES: u32 = 8;
    for _ in 1..TRIES {
        let made = make_dirs(store, dir).and_then(|()| store.create_temp(dir, name));
        if !made.as_ref().is_err_and(StoreError::is_not_found) {
            return made;
        }
    }
    make_dirs(store, dir)?;
    store.create_temp(dir, name)
}

/// Directories that were created and are not synced yet.
pub struct UnsyncedDirs {
    dir: PathBuf,
    is_durable: Arc<AtomicBool>,
}

impl UnsealedContainer {
    /// Reads the container again, and writes its parity under a temporary name. `memory_bytes` limits the memory that
    /// the computation takes, see [`parity::write`].
    pub fn add_parity(
        &mut self,
        store: &dyn Store,
        percent: ParityPercent,
        memory_bytes: u64,
    ) -> Result<(), StoreError> {
        let digest = self.summary.index_digest;
        self.parity = Some(parity::write(store, self.temp.path(), &self.path, digest, percent, memory_bytes)?);
        Ok(())
    }

    /// Gives the container and its parity their final names, and makes the names durable. `meanwhile` runs on another
    /// thread at the same time, because `meanwhile` waits for the disk too.
    pub fn seal<T: Send>(
        self,
        store: &dyn Store,
        meanwhile: impl FnOnce(&ContainerSummary) -> T + Send,
    ) -> Result<(SealedContainer, T), StoreError> {
        let Self { summary, dirs, path, temp, parity } = self;
        let (sealed, done) = std::thread::scope(|scope| {
            let done = scope.spawn(|| meanwhile(&summary));
            let seal = || {
                dirs.sync(store)?;
                store.rename(temp.path(), &path)?;
                if let Some(parity) = &parity {
                    store.rename(parity.path(), &parity_path(&path))?;
                }
                store.sync_dir(&dirs.dir)
            };
            (seal(), done.join())
        });
        sealed?;
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((SealedContainer { summary, held: Held(temp) }, done))
    }
}

impl UnsyncedDirs {
    /// Makes the directories durable, unless they are durable already.
    pub fn sync(&self, store: &dyn Store) -> Result<(), StoreError> {
        if !self.is_durable.load(Ordering::Acquire) {
            sync_dirs(store, &self.dir)?;
            self.is_durable.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl SealedContainer {
    /// The summary of the container.
    pub fn summary(&self) -> &ContainerSummary {
        &self.summary
    }
}

impl ContainerSummary {
    /// Name of the job.
    pub fn job(&self) -> &JobId {
        &self.job
    }
    /// Name of the checkpoint.
    pub fn checkpoint(&self) -> &CheckpointId {
        &self.checkpoint
    }
    /// Number of the group.
    pub fn group(&self) -> GroupId {
        self.group
    }
    /// Length of the container, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// BLAKE3 of the container's frame ([`ContainerReader::frame_digest`](super::ContainerReader::frame_digest)).
    pub fn digest(&self) -> Digest {
        self.digest
    }
    /// The index of the container.
    pub fn index(&self) -> &Index {
        &self.index
    }
    /// The reference by which a later container names this container.
    pub fn reference(&self) -> Arc<ContainerRef> {
        Arc::new(ContainerRef {
            checkpoint: self.checkpoint.clone(),
            group: self.group,
            digest: self.digest,
            index_digest: self.index_digest,
        })
    }
}

/// Checks that the decoded index agrees with the contents and segments from which it was encoded.
fn check_same(index: &Index, contents: &Contents, segments: &[Written]) -> Result<(), &'static str> {
    let same_base = |entry: &super::SegmentEntry, written: &Written| match (entry.base(), &written.base) {
        (None, None) => entry.dependencies.is_empty(),
        (Some(read), Some(given)) => {
            let container = index.references.get(read.reference as usize);
            container == Some(&given.container) && (read.segment, read.digest) == (given.segment, given.digest)
        }
        _ => false,
    };
    let same_segment = |(entry, written): (&super::SegmentEntry, &Written)| {
        (entry.class, entry.role, &entry.element, entry.layout, &entry.chain)
            == (written.class, written.role, &written.element, written.layout, &written.chain)
            && (entry.raw_bytes, entry.stored_bytes) == (written.raw_bytes, written.stored_bytes)
            && index.pieces[entry.pieces.clone()] == *written.pieces
            && same_base(entry, written)
    };
    let same_file = |(read, given): (&FileHeader, &FileHeader)| {
        let head = |f: &FileHeader| (f.path.clone(), f.rank, f.bytes, f.mode, f.modified_ns, f.digest);
        head(read) == head(given)
            && read.variables.len() == given.variables.len()
            && read.variables.iter().zip(&given.variables).all(|(r, g)| {
                let digest_is_same = match r.raw_bytes.0 >= DIGEST_BYTES_MIN {
                    true => r.digest == g.digest,
                    false => r.digest == NO_DIGEST,
                };
                digest_is_same
                    && (r.role, &r.path, &r.element, &r.shape) == (g.role, &g.path, &g.element, &g.shape)
                    && (r.raw_bytes, &r.filters, &r.extents) == (g.raw_bytes, &g.filters, &g.extents)
            })
    };
    let same_source = |(at, source): &(VariableRef, Source)| match (index.placement(*at), source) {
        (Some(super::Placement::SameAs(a)), Source::SameAs(b)) => a == *b,
        (Some(super::Placement::External { reference, at: a }), Source::External { container, at: b }) => {
            a == *b && index.references[reference as usize] == *container
        }
        _ => false,
    };
    match () {
        () if index.files.len() != contents.files.len() || !index.files.iter().zip(&*contents.files).all(same_file) => {
            Err("the index does not describe its files as they were given")
        }
        () if index.classes != contents.classes => Err("a class does not list its variables in order, once each"),
        () if index.segments.len() != segments.len() || !index.segments.iter().zip(segments).all(same_segment) => {
            Err("the index does not describe its segments as they were planned")
        }
        () if !contents.reused.iter().all(same_source) => Err("the index does not describe reused variables as given"),
        () => Ok(()),
    }
}

/// Compresses an index to its stored form: one zstd frame, at a level that depends on its length.
fn compress(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    // For a longer index, level 9 would save 2 to 10 % of the index (about 0.1 % of a container), and would take five
    // times as long.
    let level = if raw.len() < 0x4000 { 9 } else { 3 };
    let mut encoder = zstd::Encoder::new(Vec::new(), level)?;
    encoder.include_checksum(false)?;
    // Given the length, zstd makes its tables no larger than necessary.
    encoder.set_pledged_src_size(Some(raw.len() as u64))?;
    if raw.len() >= 0x10_0000 {
        // The descriptions of two ranks are similar, but the distance between them exceeds the normal window of the
        // level.
        encoder.long_distance_matching(true)?;
        encoder.window_log(24)?;
    }
    encoder.write_all(raw)?;
    encoder.finish()
}

/// A temporary file with one write buffer. All bytes except the stored bytes of segments are hashed while they are
/// written. The segment headers hold checksums of the stored bytes.
pub(crate) struct FramedFile {
    pub(crate) temp: Box<dyn TempFile>,
    pub(crate) bytes: u64,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

/// Size of the write buffer, in bytes. Longer runs of bytes are written directly. With a larger buffer, the disk
/// would start to write later.
const BUFFER_BYTES: usize = 256 << 10;

impl FramedFile {
    pub(crate) fn new(temp: Box<dyn TempFile>) -> Self {
        Self { temp, bytes: 0, hasher: blake3::Hasher::new(), buffer: Vec::with_capacity(BUFFER_BYTES) }
    }

    pub(crate) fn put_frame(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hasher.update(bytes);
        self.put(bytes)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.bytes += bytes.len() as u64;
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.write_buffer()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            return self.temp.append(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the stored index and the trailer, and syncs the file. `index_raw` is the length of the index before
    /// compression. Returns the digest of the frame.
    fn finish(&mut self, segments: u32, index_raw: u64, index: &[u8]) -> Result<Digest, StoreError> {
        let (index_offset, index_stored) = (self.bytes, index.len() as u64);
        let trailer = Trailer { index_offset, index_stored, index_raw, segments, index_crc: crc32c::crc32c(index) };
        self.put_frame(index)?;
        self.put_frame(&trailer.to_record())?;
        self.write_buffer()?;
        self.temp.sync()?;
        Ok(self.hasher.finalize().into())
    }

    fn write_buffer(&mut self) -> Result<(), StoreError> {
        if !self.buffer.is_empty() {
            self.temp.append(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}
