//! Answers ranks whose files are already in the store. An agent that starts again announces all files that it finds.
//! The agents of the other ranks know that these checkpoints are committed, and do not announce them again. Therefore
//! the groups of these checkpoints would never be whole. So the hub searches the store for these checkpoints.
//!
//! Some ranks of a checkpoint may write their files again without a change. For example, an application opens restored
//! files for writing, and only reads them. The missing ranks then never announce. Therefore, before the hub abandons a
//! checkpoint whose ranks are missing, it searches the store for a complete checkpoint with the same content.

use super::event::{HubEvent, Searched};
use super::gather::{Gather, Search};
use super::{Hub, Shared, WAITING_MAX};
use crate::completes::GroupOf;
use crate::fetch::Announced;
use crate::flush_error::FlushError;
use crate::group::{Event, Key, Phase};
use crate::instance::is_passed_over;
use crate::unpanicked::unpanicked;
use mcrengine::container::ReadError;
use mcrengine::header::FileHeader;
use mcrengine::ids::Rank;
use mcrengine::incarnation;
use mcrengine::manifest::{self, Manifest, ManifestFile};
use mcrengine::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of checkpoints that one search reads.
const SEARCHED_MAX: usize = 64;
/// Maximum time in milliseconds that a checkpoint waits for the last search before it is abandoned.
pub(super) const LAST_SEARCH_MS: u64 = 10_000;

/// What the hub searches in the store.
struct Wanted {
    key: Key,
    ranks: u32,
    /// For each rank, the number of the announcement and the files of the rank.
    announced: BTreeMap<Rank, (u64, Arc<Vec<FileHeader>>)>,
    /// Whether files with other times of writing count as the same files.
    any_time: bool,
}

/// Whether the files of a rank existed before its agent began to watch.
fn existed_before(announced: &Announced) -> bool {
    announced.changed_clock_ns < announced.link.about.began_clock_ns
}

impl Gather {
    /// Notes whether the announcement needs a search in the store.
    pub(super) fn note_search(&mut self, announced: &Announced) {
        if existed_before(announced) && !announced.files.is_empty() {
            self.search = Search::Due;
        }
    }

    /// When the newest known file of the group was written, in nanoseconds since 1970.
    pub(super) fn written_ns(&self) -> i64 {
        self.last.values().map(|seen| seen.modified_ns).max().unwrap_or(i64::MIN)
    }

    fn needs_search(&self) -> bool {
        matches!(self.search, Search::Due | Search::LastDue)
            && matches!(self.phase, Phase::Gathering { .. })
            && !self.announced.is_empty()
    }

    /// When the hub stops waiting for missing ranks, in milliseconds. `None` if no rank is missing.
    pub(super) fn gives_up_ms(&self) -> Option<u64> {
        match &self.phase {
            Phase::Gathering { deadline_ms, .. } if self.search == Search::LastDue => {
                Some(deadline_ms + LAST_SEARCH_MS)
            }
            Phase::Gathering { deadline_ms, .. } => Some(*deadline_ms),
            _ => None,
        }
    }

    /// Whether the wait for the missing ranks is over, but the last search is not.
    pub(super) fn must_search_first(&mut self, now_ms: u64) -> bool {
        let Phase::Gathering { deadline_ms, .. } = self.phase else { return false };
        if now_ms < deadline_ms || self.search == Search::LastDone || self.announced.is_empty() {
            return false;
        }
        self.search = Search::LastDue;
        self.gives_up_ms().is_some_and(|at_ms| now_ms < at_ms)
    }
}

impl Hub {
    /// Whether the hub must begin a search.
    pub(super) fn search_is_due(&self) -> bool {
        !self.searching && self.gathers.values().any(Gather::needs_search)
    }

    /// Searches on a new thread for checkpoints whose files may already be in the store.
    pub(super) fn start_search(&mut self) {
        if !self.search_is_due() {
            return;
        }
        let wanted: Vec<Wanted> = (self.gathers.iter())
            .filter(|(_, gather)| gather.needs_search())
            .take(SEARCHED_MAX)
            .map(|(key, gather)| Wanted {
                key: key.clone(),
                ranks: gather.grouping.ranks(),
                announced: (gather.announced.iter())
                    .map(|(rank, announced)| (*rank, (announced.announce_id, Arc::clone(&announced.files))))
                    .collect(),
                any_time: gather.search == Search::LastDue,
            })
            .collect();
        let (store, shared, events) = (Arc::clone(&self.store), Arc::clone(&self.shared), self.events.clone());
        let search = move || {
            let searched = wanted.into_iter().map(|wanted| {
                let found = unpanicked(|| find(&*store, &shared, &wanted));
                if let Err(error) = &found {
                    tracing::debug!(checkpoint = %wanted.key.label, %error, "cannot search for a checkpoint");
                }
                let announcements = wanted.announced.iter().map(|(rank, (number, _))| (*rank, *number)).collect();
                Searched { key: wanted.key, announcements, any_time: wanted.any_time, found: found.ok().flatten() }
            });
            // Sending fails only if the hub has ended.
            let _ = events.blocking_send(HubEvent::Searched(searched.collect()));
        };
        self.searching = std::thread::Builder::new().name("search".into()).spawn(search).is_ok();
    }

    /// Handles the results of a search. Checkpoints that were not found wait for their missing ranks.
    pub(super) fn searched(&mut self, all: Vec<Searched>) {
        self.searching = false;
        for Searched { key, announcements, any_time, found } in all {
            let Some(gather) = self.gathers.get_mut(&key).filter(|gather| gather.needs_search()) else { continue };
            let now: BTreeMap<Rank, u64> = gather.announced.iter().map(|(rank, a)| (*rank, a.announce_id)).collect();
            if now != announcements || any_time != (gather.search == Search::LastDue) {
                continue; // a rank has announced or the time is over since, so the next search considers this
            }
            gather.search = if any_time { Search::LastDone } else { Search::Done };
            match found {
                Some((manifest, exists)) => {
                    tracing::info!(
                        job = %key.job, checkpoint = %manifest.checkpoint, group = key.group.0, exists,
                        "these files are already in the store"
                    );
                    gather.exists = exists;
                    gather.container = Some(manifest.container.digest);
                    gather.raw_bytes = manifest.raw_bytes;
                    gather.stored_bytes = manifest.stored_bytes;
                    self.step(&key, Event::Found(manifest.checkpoint));
                }
                None => self.limit_waiting(&key),
            }
        }
    }

    /// Abandons the oldest waiting checkpoints of a group, in the order in which the application wrote them, if more
    /// than [`WAITING_MAX`] wait. A checkpoint that may be in the store does not count before the search.
    pub(super) fn limit_waiting(&mut self, key: &Key) {
        let mut waiting: Vec<(i64, u64, Key)> = (self.gathers.iter())
            .filter(|(other, gather)| {
                other.job == key.job
                    && other.group == key.group
                    && matches!(gather.phase, Phase::Gathering { .. } | Phase::Waiting { .. })
                    && !gather.needs_search()
            })
            .map(|(other, gather)| (gather.written_ns(), gather.serial, other.clone()))
            .collect();
        waiting.sort();
        let excess = waiting.len().saturating_sub(WAITING_MAX);
        for (_, _, oldest) in waiting.into_iter().take(excess) {
            self.step(&oldest, Event::Overtaken);
        }
    }
}

/// The newest manifest of the group that has exactly these files of these ranks. If the times of writing count, the
/// manifest belongs to this incarnation, or its checkpoint is complete. Otherwise only the newest manifest is
/// considered, and only if its checkpoint is complete and may be restored.
fn find(store: &dyn Store, shared: &Shared, wanted: &Wanted) -> Result<Option<(Box<Manifest>, bool)>, FlushError> {
    let Wanted { key, ranks, announced, any_time } = wanted;
    let incarnation = incarnation::newest_number(store, &key.job).map_err(mcrengine::store::StoreError::from)?;
    for generation in shared.names.newest(store, key, incarnation)?.iter().rev() {
        let Ok(id) = key.label.with_generation(*generation) else { continue };
        let manifest = match manifest::read_manifest(store, &key.job, &id, key.group) {
            Ok(manifest) => manifest,
            Err(error @ ReadError::Io { .. }) => return Err(mcrengine::store::StoreError::from(error).into()),
            Err(_) => continue, // pruned, damaged, or not committed by this group
        };
        let has_all = announced.iter().all(|(rank, (_, files))| has_files(&manifest, *rank, files, *any_time));
        let is_same = manifest.ranks == *ranks && has_all;
        if *any_time {
            let exists = shared.completes.is(store, &GroupOf::from(&manifest));
            let may_be_restored = || Ok(!is_passed_over(&manifest::state(store, &key.job, &id)?));
            let is_there = is_same && exists && may_be_restored().map_err(FlushError::Store)?;
            return Ok(is_there.then(|| (Box::new(manifest), true)));
        }
        let exists = is_same && shared.completes.is(store, &GroupOf::from(&manifest));
        if exists || is_same && manifest.incarnation == incarnation {
            return Ok(Some((Box::new(manifest), exists)));
        }
    }
    Ok(None)
}

/// Whether the manifest has exactly these files of a rank. Unless `any_time` is set, the files must have been written
/// at the same times.
fn has_files(manifest: &Manifest, rank: Rank, files: &[FileHeader], any_time: bool) -> bool {
    let saved = manifest.files.iter().filter(|file| file.rank == rank && !file.kind.is_companion());
    let announced = files.iter().filter(|file| !file.kind.is_companion());
    let has = |file: &FileHeader| {
        let is_same_time = |m: &ManifestFile| any_time || m.modified_ns == file.modified_ns;
        (saved.clone()).any(|m| (&m.path, m.digest) == (&file.path, file.digest) && is_same_time(m))
    };
    saved.clone().count() == announced.clone().count() && announced.clone().all(has)
}
