//! The path of a checkpoint for one group: from the headers of its files to a committed manifest.

use crate::budget::Budget;
use crate::choosing::Choosing;
use crate::flush_error::FlushError;
use crate::looking_back::LookingBack;
use crate::newest::NewestOfGroups;
use crate::observe::Observer;
use crate::pipeline::Pipeline;
use crate::plan_segments::{PlanRequest, PlannedSegments, plan_segments};
use crate::rate::Meter;
use crate::source::Source;
use crate::spare::Spare;
use mcrengine::bases::Bases;
use mcrengine::classify::{Naming, VariableClass, VariableRef, classify};
use mcrengine::codec::{Profile, SegmentMemory, StoreRate, cores, threads_of_each};
use mcrengine::container::{self, ContainerSummary, ContainerWriter, Contents, ReadError};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, Grouping, JobId};
use mcrengine::manifest::{self, Doubt, KnownContainer, Manifest, ManifestDraft};
use mcrengine::marks::is_damaged;
use mcrengine::parity::{self, ParityPercent};
use mcrengine::plan::{PlanOptions, SegmentPlan};
use mcrengine::reuse::{ReuseIndex, reusable};
use mcrengine::store::Store;
use std::sync::Arc;
use std::time::Instant;

/// How checkpoints are written, as the operator configured it.
#[derive(Clone, Debug)]
pub struct FlushOptions {
    /// The merge scheme, and the lengths of blocks and segments.
    pub plan: PlanOptions,
    /// How the names of two variables are compared.
    pub naming: Naming,
    /// The codecs that may be used.
    pub profile: Profile,
    /// Whether each segment is decoded and compared before it is written.
    pub verify: bool,
    /// Whether a variable that the newest checkpoint or another rank already holds is stored as a reference only.
    pub reuse: bool,
    /// Of this number of consecutive checkpoints, at least one is coded without older checkpoints. 1 means that every
    /// checkpoint is coded without older checkpoints. A segment is coded with an older segment only if the result is
    /// smaller.
    pub whole_every: u32,
    /// Write rate of the store, in bytes per second, as the operator configured it. Codecs are then chosen for the
    /// shortest time to compress and write. `None`: codecs are chosen for the fewest stored bytes.
    pub store_bytes_per_s: Option<u64>,
    /// Measures the write rate of the store, for the status. The measured rate does not affect the choice of codecs.
    pub meter: Arc<Meter>,
    /// Length of the parity that is written beside each container. `None`: no parity is written.
    pub parity: Option<ParityPercent>,
    /// Number of threads that compress.
    pub threads: usize,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self {
            plan: PlanOptions::default(),
            naming: Naming::default(),
            profile: Profile::Fast,
            verify: true,
            reuse: true,
            whole_every: WHOLE_EVERY,
            store_bytes_per_s: None,
            meter: Arc::default(),
            parity: None,
            threads: cores(),
        }
    }
}

/// Default of [`FlushOptions::whole_every`].
pub const WHOLE_EVERY: u32 = 8;

/// One flush: one group of one checkpoint, from its headers to its manifest.
#[derive(Clone)]
pub struct Flush<'a> {
    /// The store to which the checkpoint is written.
    pub store: &'a dyn Store,
    /// The job.
    pub job: JobId,
    /// The name under which the checkpoint is committed.
    pub checkpoint: CheckpointId,
    /// The group.
    pub group: GroupId,
    /// Which ranks of the job are in which group.
    pub grouping: Grouping,
    /// Number of ranks in a group (GROUP_SIZE).
    pub group_size: u32,
    /// Number of the job's incarnation. 0 means that the job has no incarnation.
    pub incarnation: u32,
    /// When the application wrote the newest of the files, in milliseconds since 1970.
    pub written_unix_ms: i64,
    /// See [`Manifest::first_unix_ms`].
    pub first_unix_ms: Option<i64>,
    /// The files of the group's ranks, in rank order.
    pub files: Arc<Vec<FileHeader>>,
    /// The source of the files' bytes.
    pub source: &'a dyn Source,
    /// How checkpoints are written.
    pub options: &'a FlushOptions,
    /// Limits the memory of all flushes together.
    pub budget: &'a Arc<Budget>,
    /// Buffers that earlier flushes left for reuse. This flush also leaves its buffers here.
    pub spare: &'a Spare,
    /// What is uncertain about the files. `None` if there is no doubt.
    pub doubt: Option<Doubt>,
    /// The newest manifest of each group, if an earlier flush of this process found it.
    pub newest: &'a NewestOfGroups,
    /// Called when the container is durable. The function waits until the older checkpoints of the same caller are
    /// committed. The function returns an error if the group must not be committed, for example because the
    /// incarnation has ended.
    pub may_commit: &'a (dyn Fn() -> Result<(), FlushError> + Sync),
    /// Receives the progress of the flush.
    pub observer: &'a dyn Observer,
    /// Gives the current time in milliseconds since 1970. The flush asks for the time just before it writes the
    /// manifest.
    pub now_unix_ms: fn() -> u64,
}

/// The smallest budget, in bytes, that is enough for segments of `segment_bytes` raw bytes.
pub fn least_budget(segment_bytes: u64, profile: &Profile) -> u64 {
    segment_bytes * profile.memory_per_raw_byte()
}

/// Classifies, plans, fetches, merges, compresses, writes and commits the files of one group. Until the commit at its
/// end, no restart sees the group's part of the checkpoint. After the commit every restart sees this part.
pub fn flush_checkpoint(flush: Flush<'_>) -> Result<Manifest, FlushError> {
    let started = Instant::now();
    let Flush { store, files, options, .. } = &flush;
    // The container is created first, so that a second writer of the same group fails at once.
    let mut container = ContainerWriter::create(*store, &flush.job, &flush.checkpoint, flush.group)?;
    let newest = flush.newest();

    let classes = classify(files, &options.naming);

    let mut bases = flush.bases(newest.as_ref(), &classes);
    let reused = flush.reusable(newest.as_ref());
    let PlannedSegments { segments, bases: found, reused } =
        plan_segments(&flush.plan_request(&classes), reused, bases.as_mut());
    flush.observer.planned(segments.len(), segments.iter().map(|segment| segment.raw_bytes).sum());

    let back = LookingBack::new(bases, found, newest.as_ref().map_or(0, |newest| newest.in_a_row));
    let threads_of_each = flush.threads_of_each(&segments, &back);
    let choosing = Choosing::new(&classes, &options.profile, newest.as_ref(), flush.store_rate(threads_of_each));
    let pipeline = Pipeline {
        source: flush.source,
        files,
        segments: &segments,
        profile: &options.profile,
        verify: options.verify,
        threads: options.threads,
        threads_of_each,
        choosing: &choosing,
        back: &back,
        budget: flush.budget,
        spare: flush.spare,
        observer: flush.observer,
    };
    let writing = pipeline.run(*store, &mut container)?;

    let draft = ManifestDraft {
        incarnation: flush.incarnation,
        written_unix_ms: flush.written_unix_ms,
        first_unix_ms: flush.first_unix_ms,
        doubt: flush.doubt.clone(),
        ranks: flush.grouping.ranks(),
        group_size: flush.group_size,
        profile: options.profile.to_string(),
        created_unix_ms: 0, // set when the manifest is written
        elapsed_ms: started.elapsed().as_millis() as u64,
        in_a_row: back.in_a_row(),
        known: newest.as_ref().map(Manifest::known_containers).unwrap_or_default(),
        decisions: choosing.finish(&flush.checkpoint),
    };
    let finishing = Instant::now();
    let (scheme, block_bytes) = (options.plan.scheme, options.plan.block_bytes.get());
    let mut container =
        container.finish(Contents { scheme, block_bytes, classes, files: Arc::clone(files), reused })?;
    let finishing = finishing.elapsed();
    if let Some(percent) = options.parity {
        // At least half of the budget is never leased for a long time, so this lease is always given.
        let memory_bytes = parity::MEMORY_BYTES.min(flush.budget.total_bytes() / 2);
        let _lease = flush.budget.lease(memory_bytes);
        container.add_parity(*store, percent, memory_bytes)?;
    }
    let sealing = Instant::now();
    let now_unix_ms = flush.now_unix_ms;
    let write = |container: &ContainerSummary| {
        manifest::write(*store, container, ManifestDraft { created_unix_ms: now_unix_ms(), ..draft })
    };
    let (sealed, manifest) = container.seal(*store, write)?;
    options.meter.wrote(sealed.summary().bytes(), writing + finishing + sealing.elapsed());

    let manifest = manifest?;
    (flush.may_commit)()?;
    let manifest = manifest::commit(*store, sealed, manifest)?;
    flush.newest.put(&manifest);
    Ok(manifest)
}

impl Flush<'_> {
    /// The newest checkpoint of this group. `None` if the options do not need the newest checkpoint, or if a container
    /// to which a new checkpoint could refer is marked as damaged. Then all bytes are stored again.
    fn newest(&self) -> Option<Manifest> {
        let wanted = self.options.reuse.then_some(self.newest)?;
        let newest = wanted.look_up(self.store, &self.job, self.group, &self.checkpoint)?;
        let known = newest.known_containers();
        let mut needed: Vec<&CheckpointId> = known.iter().map(|known| &known.container.checkpoint).collect();
        needed.dedup();
        if let Some(damaged) = needed.into_iter().find(|id| is_damaged(self.store, &self.job, id)) {
            tracing::warn!(job = %self.job, checkpoint = %self.checkpoint, %damaged,
                "an older checkpoint is damaged, so its bytes are not reused; storing everything");
            return None;
        }
        let check = |known: &KnownContainer| manifest::may_be_referred_to(self.store, &self.job, known).err();
        if let Some(error) = known.iter().find_map(check) {
            tracing::warn!(job = %self.job, checkpoint = %self.checkpoint, %error,
                "a container of an older checkpoint cannot be read, so its bytes are not reused; storing everything. \
                 mcr verify shows which checkpoints are damaged");
            return None;
        }
        Some(newest)
    }

    /// The variables that the newest checkpoint or another file of this checkpoint already holds. If the newest
    /// checkpoint cannot be read, the flush does not fail, and all variables are stored.
    fn reusable(&self, newest: Option<&Manifest>) -> Vec<(VariableRef, container::Source)> {
        if !self.options.reuse {
            return Vec::new();
        }
        let index = newest.map_or_else(ReuseIndex::empty, |newest| {
            ReuseIndex::load(self.store, &self.job, newest).unwrap_or_else(|error| {
                tracing::warn!(
                    checkpoint = %newest.checkpoint,
                    %error,
                    "cannot reuse the previous checkpoint; storing everything"
                );
                ReuseIndex::empty()
            })
        });
        reusable(&self.files, &index)
    }

    /// The older segments with which new segments may be coded, if the options allow this. If the newest checkpoint
    /// cannot be read, the flush does not fail, and every segment is coded without an older segment.
    fn bases(&self, newest: Option<&Manifest>, classes: &[VariableClass]) -> Option<Bases> {
        let is_wanted = self.options.whole_every > 1 && self.options.profile.looks_back();
        let newest = newest.filter(|_| is_wanted)?;
        let may_go_back = newest.in_a_row.saturating_add(1) < self.options.whole_every;
        let bases = Bases::load(self.store, &self.job, newest, &self.files, classes, may_go_back);
        let warn = |error: &ReadError| {
            tracing::warn!(
                checkpoint = %newest.checkpoint,
                %error,
                "cannot code segments with the previous checkpoint; coding each segment without an older one"
            );
        };
        bases.inspect_err(warn).ok()
    }

    fn plan_request<'a>(&'a self, classes: &'a [VariableClass]) -> PlanRequest<'a> {
        PlanRequest {
            files: &self.files,
            classes,
            options: &self.options.plan,
            profile: &self.options.profile,
            budget_bytes: self.budget.total_bytes(),
        }
    }

    /// Number of threads to use inside each segment. More than one thread helps only if there are fewer large
    /// segments than threads, or if the memory is enough for fewer segments than threads.
    fn threads_of_each(&self, segments: &[SegmentPlan], back: &LookingBack) -> usize {
        let profile = &self.options.profile;
        let largest = segments.iter().max_by_key(|segment| segment.raw_bytes);
        let of_largest = largest.map_or(1, |segment| profile.memory_per_raw_byte_of(&segment.element));
        let per_raw_byte = of_largest + back.memory_per_raw_byte(profile);
        let memory = SegmentMemory { bytes: self.budget.total_bytes(), per_raw_byte };
        threads_of_each(self.options.threads, memory, segments.iter().map(|segment| segment.raw_bytes))
    }

    /// The store's speed and the number of cores that compress. `None` if the choice of codecs does not consider the
    /// speed.
    fn store_rate(&self, threads_of_each: usize) -> Option<StoreRate> {
        let cores = (self.options.threads / threads_of_each.max(1)).max(1) as u32; // at most 1024
        self.options.store_bytes_per_s.map(|bytes_per_s| StoreRate { bytes_per_s, cores })
    }
}
