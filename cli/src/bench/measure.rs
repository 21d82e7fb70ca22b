//! Runs the steps of a save on segments of a checkpoint: classify, plan, fetch, merge, encode, decode and compare.
//! Nothing is written to a store. The length of a container is found by writing the container to a store that only
//! counts bytes.

use super::counting::CountingStore;
use super::input::{Captured, Deadline};
use anyhow::{Context, bail};
use mcr_anc::budget::Budget;
use mcr_anc::compress::compress;
use mcr_cnc::capture::CaptureMode;
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::classify::{Naming, VariableClass, classify};
use mcrengine::codec::{Basis, Chain, Profile, Scratch, Step};
use mcrengine::container::{ContainerWriter, Contents, StoredSegment};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, Grouping, JobId};
use mcrengine::merge::{Layout, merge};
use mcrengine::plan::{PlanOptions, Scheme, SegmentPlan, plan};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How segments are encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Coder {
    /// A profile of `mcr save --profile`.
    Profile(Profile),
    /// gzip, then gzip again: the paper's double compression of data of unknown structure.
    GzipTwice,
    /// LZ4 alone.
    Lz4,
    /// pcodec alone, at the level that `fast` uses. pcodec codes only numbers.
    Pco,
    /// Bit shuffle, then zstd.
    Bitshuffle,
    /// Runs of equal elements alone: each run is stored as one element and a count.
    Runs,
}

/// The level of pcodec in the profile `fast`.
const PCO_LEVEL: u32 = 8;
const BITSHUFFLE_ZSTD_LEVEL: u32 = 1;

impl Coder {
    /// The options of the plan for this coder, with the given memory for segments.
    pub fn plan(&self, budget_bytes: u64) -> PlanOptions {
        match self {
            Self::Profile(profile) => PlanOptions::of(profile, budget_bytes),
            Self::GzipTwice | Self::Lz4 | Self::Pco | Self::Bitshuffle | Self::Runs => PlanOptions::default(),
        }
    }

    /// How files are captured for this coder.
    pub fn mode(&self, scheme: Scheme) -> CaptureMode {
        match self {
            Self::Profile(profile) => CaptureMode::of(scheme, profile),
            Self::GzipTwice | Self::Lz4 | Self::Pco | Self::Bitshuffle | Self::Runs => {
                CaptureMode::wanted(scheme.takes_files_apart(), false)
            }
        }
    }

    /// Bytes of memory that encoding needs for each raw byte of a segment.
    pub fn memory_per_raw_byte(&self) -> u64 {
        match self {
            Self::Profile(profile) => profile.memory_per_raw_byte(),
            Self::GzipTwice | Self::Lz4 | Self::Pco | Self::Bitshuffle | Self::Runs => {
                Profile::Fast.memory_per_raw_byte()
            }
        }
    }

    /// Encodes a segment. The result is never longer than the raw bytes.
    pub fn encode(
        &self,
        segment: &SegmentPlan,
        files: &[FileHeader],
        raw: &[u8],
        scratch: &mut Scratch,
    ) -> anyhow::Result<StoredSegment> {
        let chain = match self {
            Self::Profile(profile) => {
                let coded = compress(profile, segment, files, raw, false, &Basis::NOTHING, scratch)?;
                let (chain, stored) = (coded.chain, coded.stored);
                return Ok(StoredSegment { chain, raw_bytes: segment.raw_bytes, stored, base: None });
            }
            Self::Lz4 => Chain::lz4(),
            Self::Pco => Chain::pco(&segment.element, PCO_LEVEL).unwrap_or_else(Chain::raw),
            Self::Bitshuffle => Chain::bitshuffle_zstd(segment.element.width(), BITSHUFFLE_ZSTD_LEVEL),
            Self::Runs => Chain::runs(segment.element.width()).unwrap_or_else(Chain::raw),
            Self::GzipTwice => {
                // The steps of gzip, with the last step twice.
                let once = Chain::gzip(6);
                let twice: Vec<Step> = once.steps().iter().chain(once.steps().last()).copied().collect();
                Chain::new(&twice)?
            }
        };
        let stored = chain.encode(raw, &[], scratch)?;
        let (chain, stored) = if stored.len() < raw.len() { (chain, stored) } else { (Chain::raw(), raw.to_vec()) };
        Ok(StoredSegment { chain, raw_bytes: segment.raw_bytes, stored, base: None })
    }
}

/// The chain of an encoded segment and its stored length.
pub type Coded = (Chain, u64);

/// Gives the raw bytes of the variables of described files.
pub trait RawSource: Sync {
    /// Fills `into` with raw bytes of a variable, from `offset`. `file` and `variable` are indices in the headers.
    fn read_raw(&self, file: usize, variable: usize, offset: u64, into: &mut [u8]) -> anyhow::Result<()>;
}

/// The files of a directory.
impl RawSource for Vec<OpenFile<&FileHeader>> {
    fn read_raw(&self, file: usize, variable: usize, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        Ok(self[file].read_raw(variable, offset, into)?)
    }
}

/// Described files with their bytes, and the limits of threads and memory.
pub struct Bench<'a> {
    /// The files, sorted by rank. The ranks are numbered from 0 without gaps.
    headers: &'a [FileHeader],
    ranks: u32,
    source: Box<dyn RawSource + 'a>,
    pub threads: usize,
    pub budget: &'a Arc<Budget>,
}

/// One group of ranks with its plan.
pub struct Planned<'a> {
    first: usize,
    pub files: &'a [FileHeader],
    pub classes: Vec<VariableClass>,
    pub segments: Vec<SegmentPlan>,
    options: PlanOptions,
}

/// Identifies a segment by the index of its group among the planned groups, and by its index in the group's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub group: usize,
    pub segment: usize,
}

impl<'a> Bench<'a> {
    /// The captured files of a directory.
    pub fn new(dir: &Path, captured: &'a Captured, threads: usize, budget: &'a Arc<Budget>) -> Self {
        const OPEN_MAX: usize = 256;
        let descriptors = Descriptors::new(OPEN_MAX);
        let open: Vec<OpenFile<&FileHeader>> =
            (captured.headers.iter().zip(&captured.fingerprints).zip(&captured.images))
                .map(|((header, print), image)| {
                    OpenFile::new(dir, header, *print, &descriptors).with_image(image.clone())
                })
                .collect();
        Self { headers: &captured.headers, ranks: captured.ranks, source: Box::new(open), threads, budget }
    }

    /// Files whose bytes another source gives. `headers` are sorted by rank, and ranks begin with 0.
    pub fn of(headers: &'a [FileHeader], ranks: u32, source: impl RawSource + 'a, budget: &'a Arc<Budget>) -> Self {
        Self { headers, ranks, source: Box::new(source), threads: 1, budget }
    }

    /// Plans groups of `group_size` ranks in the same way as a save.
    pub fn plan(&self, group_size: u32, options: PlanOptions) -> anyhow::Result<Vec<Planned<'a>>> {
        let grouping = Grouping::new(self.ranks, group_size).context("a group has no ranks")?;
        let headers = self.headers;
        let planned = |group| {
            let ranks = grouping.ranks_of(GroupId(group));
            let place = |rank: u32| headers.partition_point(|header| header.rank.0 < rank);
            let Range { start, end } = place(ranks.start)..place(ranks.end);
            let files = &headers[start..end];
            let classes = classify(files, &Naming::default());
            let segments = plan(files, &classes, &options, |_| false);
            Planned { first: start, files, classes, segments, options }
        };
        Ok((0..grouping.groups()).map(planned).collect())
    }

    /// Calls `work` with the merged raw bytes of each segment, several at the same time within the memory budget.
    /// Work begins in the order of the items. Items that were not begun before the deadline have no result.
    pub fn each<T: Send>(
        &self,
        groups: &[Planned<'_>],
        items: &[Item],
        memory_per_raw_byte: u64,
        deadline: Deadline,
        work: impl Fn(&Planned<'_>, &SegmentPlan, &[u8], &mut Scratch) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<Option<T>>> {
        let mut results: Vec<Option<T>> = Vec::new();
        results.resize_with(items.len(), || None);
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (results, failed) = (Mutex::new(results), Mutex::new(None));
        let one = |item: &Item, scratch: &mut Scratch| {
            let group = &groups[item.group];
            let segment = &group.segments[item.segment];
            let _lease = self.budget.lease(segment.raw_bytes.0.saturating_mul(memory_per_raw_byte));
            let raw = self.fetch(group, segment)?;
            work(group, segment, &raw, scratch)
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, items.len().max(1)) {
                scope.spawn(|| {
                    let mut scratch = Scratch::default();
                    while !stopped.load(Ordering::Relaxed) && !deadline.is_over() {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        let Some(item) = items.get(nth) else { return };
                        match one(item, &mut scratch) {
                            Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner)[nth] = Some(result),
                            Err(error) => {
                                stopped.store(true, Ordering::Relaxed);
                                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Reads the raw bytes of a segment from the files and merges them.
    fn fetch(&self, group: &Planned<'_>, segment: &SegmentPlan) -> anyhow::Result<Vec<u8>> {
        let mut raw = vec![0; usize::try_from(segment.raw_bytes.0)?]; // at most 1 GiB
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(segment.pieces.len());
        let mut rest = raw.as_mut_slice();
        for piece in &segment.pieces {
            let into;
            (into, rest) = rest.split_at_mut(piece.bytes as usize); // at most the length of the segment
            let file = group.first + piece.variable.file as usize;
            self.source.read_raw(file, piece.variable.variable as usize, piece.offset, into)?;
            pieces.push(into);
        }
        match segment.layout {
            Layout::Concatenated => Ok(raw),
            Layout::Interleaved(_) => Ok(merge(&pieces, segment.layout)),
        }
    }

    /// The bytes that a save of these files in groups of this size would store: the containers with index and
    /// skeletons, but not the manifests. Every segment is decoded and compared. `None` if the deadline passed.
    pub fn stored_bytes(
        &self,
        group_size: u32,
        options: PlanOptions,
        coder: &Coder,
        deadline: Deadline,
        done: impl Fn(u64) + Sync,
    ) -> anyhow::Result<Option<u64>> {
        let groups = self.plan(group_size, options)?;
        let items = all_items(&groups);
        let coded =
            self.each(&groups, &items, coder.memory_per_raw_byte(), deadline, |group, segment, raw, scratch| {
                let stored = coder.encode(segment, group.files, raw, scratch)?;
                check(&stored, raw, scratch)?;
                done(raw.len() as u64);
                Ok((stored.chain, stored.stored.len() as u64))
            })?;
        let Some(coded) = coded.into_iter().collect::<Option<Vec<Coded>>>() else { return Ok(None) };
        let mut coded = coded.into_iter();
        let mut sum = 0;
        for group in &groups {
            sum += group.container_bytes(coded.by_ref().take(group.segments.len()))?;
        }
        Ok(Some(sum))
    }
}

/// Every segment of every group, in the order of the plan.
pub fn all_items(groups: &[Planned<'_>]) -> Vec<Item> {
    let of_group = |(group, planned): (usize, &Planned<'_>)| {
        (0..planned.segments.len()).map(move |segment| Item { group, segment }).collect::<Vec<_>>()
    };
    groups.iter().enumerate().flat_map(of_group).collect()
}

/// Fails unless decoding reproduces the raw bytes.
pub fn check(stored: &StoredSegment, raw: &[u8], scratch: &mut Scratch) -> anyhow::Result<()> {
    if !stored.chain.gives_back(&stored.stored, raw, scratch)? {
        bail!(
            "the chain {} did not decode to the {} bytes that it encoded; please report this",
            stored.chain,
            raw.len()
        );
    }
    Ok(())
}

impl Planned<'_> {
    /// Length of a container with segments of these lengths. The length does not depend on the contents of the
    /// segments.
    pub fn container_bytes(&self, coded: impl Iterator<Item = Coded>) -> anyhow::Result<u64> {
        let (job, checkpoint): (JobId, CheckpointId) = ("bench".parse()?, "bench".parse()?);
        let mut writer = ContainerWriter::create(&CountingStore, &job, &checkpoint, GroupId(0))?;
        for (segment, (chain, stored_bytes)) in self.segments.iter().zip(coded) {
            let stored = vec![0; usize::try_from(stored_bytes)?];
            writer.append(segment, &StoredSegment { chain, raw_bytes: segment.raw_bytes, stored, base: None })?;
        }
        let contents = Contents {
            scheme: self.options.scheme,
            block_bytes: self.options.block_bytes.get(),
            classes: self.classes.clone(),
            files: Arc::new(self.files.to_vec()),
            reused: Vec::new(),
        };
        Ok(writer.seal(&CountingStore, contents)?.summary().bytes())
    }
}
