//! Captures checkpoints: describes their files, and keeps the bytes of files in memory, if the budget has memory for
//! them.

use crate::found::{NotWhole, missing_ranks, rank_list};
use crate::output::Progress;
use mcr_anc::budget::{Budget, Lease};
use mcr_anc::flush::{FlushOptions, least_budget};
use mcr_cnc::capture::{CaptureError, CaptureMode, CapturedFile, Image, Verdicts, capture_keeping};
use mcr_cnc::companions::{Companion, mark_hard_links};
use mcr_cnc::h5::Maps;
use mcr_cnc::judge::Judge;
use mcr_cnc::layout::Labelled;
use mcrengine::error_chain::error_chain;
use mcrengine::ids::{CheckpointId, FilePath, Grouping, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A captured file, with its bytes if the budget has memory for them.
pub struct KeptFile {
    pub file: CapturedFile,
    pub image: Option<KeptImage>,
}

/// The bytes of a file, and the leases of the memory that they take.
pub struct KeptImage {
    pub image: Arc<Image>,
    pub leases: Vec<Lease>,
}

/// A checkpoint after its capture.
pub struct Captured {
    pub label: CheckpointId,
    /// Number of files that were found, without the links, directories and pointer files that accompany them.
    pub files_found: usize,
    /// The files by rank, then by path.
    pub files: Result<Vec<KeptFile>, NotCaptured>,
    /// Time that the capture took.
    pub took: Duration,
}

/// The outcome of a checkpoint without the files of some ranks.
const INCOMPLETE: &str = "incomplete";

/// The reason why a checkpoint is not saved.
pub struct NotCaptured {
    /// The outcome in the report.
    pub outcome: &'static str,
    pub reason: String,
}

impl NotCaptured {
    fn incomplete(reason: String) -> Self {
        Self { outcome: INCOMPLETE, reason }
    }

    fn failed(reason: String) -> Self {
        Self { outcome: "failed", reason }
    }

    pub fn is_incomplete(&self) -> bool {
        self.outcome == INCOMPLETE
    }
}

/// Captures the files of checkpoints.
pub struct Capturer<'a> {
    pub dir: &'a Path,
    pub grouping: Grouping,
    pub options: &'a FlushOptions,
    pub budget: &'a Arc<Budget>,
    pub verdicts: Verdicts,
    pub companions: &'a BTreeMap<CheckpointId, Vec<Companion>>,
    /// The reason why the number of ranks is higher than in the files, and what the user can do.
    pub ranks_from: Option<String>,
    /// Checkpoints that are not saved, each with the reason.
    pub not_whole: &'a [NotWhole],
}

impl Capturer<'_> {
    /// Describes the files of one checkpoint, or gives the reason why the checkpoint is not saved.
    pub fn capture(&self, (label, files): &Labelled, progress: &Progress) -> Captured {
        let (started, label) = (Instant::now(), label.clone());
        let captured = match self.not_whole.iter().find(|not_whole| not_whole.checkpoint == label) {
            Some(not_whole) => Err(NotCaptured::incomplete(not_whole.why.clone())),
            None => self.are_all_ranks_there(files).and_then(|()| self.capture_all(files, progress)),
        };
        let captured = captured.map(|files| self.with_companions(&label, files));
        Captured { label, files_found: files.len(), files: captured, took: started.elapsed() }
    }

    fn are_all_ranks_there(&self, files: &[(FilePath, Rank)]) -> Result<(), NotCaptured> {
        let ranks = self.grouping.ranks();
        let present: BTreeSet<Rank> = files.iter().map(|(_, rank)| *rank).collect();
        let surplus: Vec<u32> = present.iter().map(|rank| rank.0).filter(|rank| *rank >= ranks).collect();
        if !surplus.is_empty() {
            let (which, highest) = (rank_list(&surplus), ranks - 1);
            let reason = format!("{which} NOT SAVED: --ranks {ranks} means ranks 0 to {highest}");
            return Err(NotCaptured::incomplete(reason));
        }
        let missing: Vec<u32> = (0..ranks).filter(|rank| !present.contains(&Rank(*rank))).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => {
                // If a rank with a higher number has files, the number of ranks is not too high.
                let from = self.ranks_from.iter().filter(|_| missing.last() == Some(&(ranks - 1)));
                let from = from.map(|from| format!(" ({from})")).collect::<String>();
                Err(NotCaptured::incomplete(missing_ranks(&missing, ranks) + &from))
            }
        }
    }

    /// Adds the links, directories and pointer files that accompany a checkpoint to the files of their ranks, and puts
    /// all files in the order of the flush: by rank, then by path.
    fn with_companions(&self, label: &CheckpointId, mut files: Vec<KeptFile>) -> Vec<KeptFile> {
        for companion in self.companions.get(label).into_iter().flatten() {
            let (header, fingerprint) = (companion.header(companion.rank), companion.fingerprint());
            // No memory is leased for the bytes of companions, because these bytes are few.
            let image = Some(KeptImage { image: companion.image(), leases: Vec::new() });
            files.push(KeptFile {
                file: CapturedFile { header, fingerprint, created_ns: None, is_longer: false },
                image,
            });
        }
        files.sort_by(|a, b| {
            let (a, b) = (&a.file.header, &b.file.header);
            a.rank.cmp(&b.rank).then_with(|| a.path.cmp(&b.path))
        });
        mark_hard_links(files.iter_mut().map(|kept| (&mut kept.file.header, kept.file.fingerprint)));
        files
    }

    /// Captures files on several threads. The order of the results is arbitrary.
    fn capture_all(&self, files: &[(FilePath, Rank)], progress: &Progress) -> Result<Vec<KeptFile>, NotCaptured> {
        let maps = Maps::new();
        let judge = Judge::new(self.dir, files.iter().map(|(path, _)| path));
        let reserve_bytes = self.reserve_bytes();
        let mode = CaptureMode::of(self.options.plan.scheme, &self.options.profile);
        let capture = |path: &FilePath, rank: Rank| {
            let judged = judge.look_at(path).map_err(|why| NotCaptured::incomplete(format!("{path}: {why}")))?;
            let mut leases = Vec::new();
            let mut keep = |bytes| {
                let lease = self.budget.lease_spare(bytes, reserve_bytes);
                lease.map(|lease| leases.push(lease)).is_some()
            };
            match capture_keeping(self.dir, path, rank, mode, &self.verdicts, &maps, &mut keep) {
                Ok((file, _)) if !file.fingerprint.same_content(&judged) => Err(NotCaptured::failed(changed(path))),
                Ok((file, image)) => {
                    let image = image.map(|image| KeptImage { image: Arc::new(image), leases });
                    Ok(KeptFile { file, image })
                }
                Err(CaptureError::Changed { .. } | CaptureError::Vanished { .. }) => {
                    Err(NotCaptured::failed(changed(path)))
                }
                Err(error) => Err(NotCaptured::failed(error_chain(&error))),
            }
        };
        let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(files.len())), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.clamp(1, files.len().max(1)) {
                scope.spawn(|| {
                    while let Some((path, rank)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match capture(path, *rank) {
                            Ok(kept) => {
                                progress.done(kept.file.header.bytes);
                                done.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                            }
                            Err(why) => {
                                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                                return;
                            }
                        }
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(why),
            None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Number of bytes of the budget that kept files must leave free. The number is at least half of the budget, and
    /// at least the memory for one segment, so that every flush can continue. If several segments are coded at the
    /// same time, the number is at least the memory for all these segments, so that no thread waits for memory. The
    /// memory for several segments counts only up to three quarters of the budget.
    fn reserve_bytes(&self) -> u64 {
        let (segment_bytes, profile) = (self.options.plan.segment_bytes, &self.options.profile);
        let of_older = if profile.looks_back() { segment_bytes * profile.memory_per_older_byte() } else { 0 };
        let least = least_budget(segment_bytes, profile) + of_older;
        let total = self.budget.total_bytes();
        let at_a_time = (total / 4 * 3 / least.max(1)).min(self.options.threads as u64);
        (total / 2).max(least * at_a_time.max(1))
    }
}

/// The reason if a file changed between its capture and the commit of its checkpoint.
pub fn changed(path: impl std::fmt::Display) -> String {
    format!("{path} changed while it was saved; save again when its writer has finished")
}
