//! One flush of a group on its own thread. The thread finds the incarnation and the name of the checkpoint, and then
//! commits the group.

use super::event::{Flushed, HubEvent};
use super::gather::{Overwritten, Progress};
use super::shared::Shared;
use crate::budget::Budget;
use crate::commit_group::{CommittedGroup, commit_group};
use crate::completes::GroupOf;
use crate::fetch::{AgentLink, Announced, Doubt, RemoteSource};
use crate::flush::{Flush, FlushOptions};
use crate::flush_error::FlushError;
use crate::group::Key;
use crate::incarnation::{Claim, Current, Refused, begin_anew, now_unix_ms};
use crate::instance::{Instance, Written, choose_instance, has_saved, mixed_attempts};
use crate::spare::Spare;
use crate::unpanicked::unpanicked;
use mcr_proto::clock::steady_ns;
use mcrengine::header::FileHeader;
use mcrengine::ids::{Grouping, Rank, shape_of};
use mcrengine::incarnation::{self, COPIED_NS, Draft};
use mcrengine::living::GroupHolder;
use mcrengine::manifest::{self, Place};
use mcrengine::marks::mark_doubtful;
use mcrengine::store::{Store, StoreError};
use mcrengine::watched::Watched;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Runs a flush on a new thread. The end of the flush becomes an event, even after a panic.
pub(super) fn launch_flush(work: FlushWork, events: mpsc::Sender<HubEvent>) -> std::io::Result<()> {
    let flush = move || {
        let started = Instant::now();
        let key = work.key.clone();
        let result = Box::new(unpanicked(|| work.run()));
        // Sending fails only if the hub has ended.
        let _ = events.blocking_send(HubEvent::FlushEnded { key, result, elapsed: started.elapsed() });
    };
    std::thread::Builder::new().name("flush".into()).spawn(flush).map(drop)
}

/// Files count as written after a commit only if they were written at least this number of nanoseconds after the
/// commit. The clocks of two nodes are compared by messages, with an accuracy of 500 ms.
const CLOCK_MARGIN_NS: i64 = 500_000_000;

/// The input of the thread that flushes one group.
pub(super) struct FlushWork {
    pub(super) store: Arc<dyn Store>,
    pub(super) options: FlushOptions,
    pub(super) group_size: u32,
    /// Maximum time between the writing of the first and of the last file of one checkpoint.
    pub(super) spread: Duration,
    pub(super) budget: Arc<Budget>,
    pub(super) key: Key,
    pub(super) grouping: Grouping,
    pub(super) files: Vec<FileHeader>,
    pub(super) source: RemoteSource,
    pub(super) ranks: Vec<RankOfFlush>,
    pub(super) shared: Arc<Shared>,
    pub(super) overwritten: Vec<Overwritten>,
    /// The directories that the connected agents of the job watch.
    pub(super) watches: BTreeSet<String>,
    pub(super) progress: Arc<Progress>,
    /// Whether a rank wrote a further part of its step after the commit.
    pub(super) is_late_part: bool,
    /// Whether the flush may be tried again later if the content is the committed content.
    pub(super) may_wait: bool,
    /// For how long the files of some ranks have been refused, in milliseconds.
    pub(super) refused_ms: i64,
}

impl FlushWork {
    pub(super) fn run(self) -> Result<Flushed, FlushError> {
        let store = &*self.store;
        let job = self.key.job.clone();
        let current = self.claim()?;
        let incarnation = current.as_ref().map_or(0, |current| current.record.number);
        let began_ns = current.as_ref().filter(|current| current.has_predecessor()).map(|current| current.began_ns);
        let older = current.as_ref().map(|current| self.ranks_of_the_run_before(current)).unwrap_or_default();
        if !older.is_empty() {
            return self.saved_by_the_run_before(incarnation)?.ok_or(FlushError::Stale(older));
        }
        self.hold()?;
        let restored = self.keep_apart_from_older_agents()?;
        self.keep_apart_from_the_run_before(incarnation, &restored)?;
        let mut ranks_ms: Vec<(Rank, i64)> =
            self.ranks.iter().map(|rank| (rank.rank, rank.written_unix_ns / 1_000_000)).collect();
        let intervals_ms = self.ranks.iter().filter_map(|rank| Some((rank.rank, rank.interval_ms?)));
        let intervals_ms: Vec<(Rank, i64)> = intervals_ms.collect();
        let mut firsts_ms: BTreeMap<Rank, i64> =
            self.ranks.iter().filter_map(|rank| Some((rank.rank, rank.first_ms?))).collect();
        let newest_ms = ranks_ms.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
        let went_back_ms = self.clock_went_back_ms(incarnation, newest_ms)?;
        ranks_ms.iter_mut().for_each(|(_, ms)| *ms = ms.saturating_add(went_back_ms));
        firsts_ms.retain(|_, _| went_back_ms == 0); // by the clock before
        let place = self.place(incarnation, newest_ms.saturating_add(went_back_ms))?;
        let written = Written {
            spread: self.spread,
            not_before_ms: Overwritten::not_before_ns(self.overwritten.iter().copied(), began_ns)
                .map(|ns| ns / 1_000_000),
            incarnation: place.incarnation,
            newest_ms: place.written_unix_ms,
            ranks_ms: &ranks_ms,
            doubtful: self.ranks.iter().find_map(|rank| Some((rank.rank, rank.doubt_since(began_ns)?))),
            is_late_part: self.is_late_part,
            is_final: self.ranks.iter().all(|rank| rank.is_final),
            has_ended: self.ranks.iter().any(|rank| rank.is_final),
            may_wait: self.may_wait,
            is_anew: current.as_ref().is_some_and(|current| !current.record.is_restart)
                && self.ranks.iter().all(RankOfFlush::is_created),
            unseen: self.ranks.iter().find(|rank| !rank.was_seen).map(|rank| rank.rank),
            intervals_ms: &intervals_ms,
            firsts_ms: &firsts_ms,
            refused_ms: self.refused_ms,
            is_of_series: self.is_of_series(),
            is_of_one_agent: self.ranks.windows(2).all(|pair| pair[0].link.session == pair[1].link.session),
            set_back: (self.ranks.iter().filter(|rank| rank.was_seen && rank.is_copy()))
                .max_by_key(|rank| rank.kept_time_ns)
                .map(|rank| (rank.rank, rank.kept_time_ns / 1_000_000)),
        };
        let names = &self.shared.names;
        let chosen = choose_instance(store, names, &self.key, self.grouping, &self.files, written)?;
        let still_current = || match incarnation::newest_number(store, &job).map_err(StoreError::from)? {
            number if number == incarnation => Ok(()),
            _ => Err(FlushError::Overtaken),
        };
        let (manifest, was_there) = match chosen {
            Instance::Stale(ranks) => return Err(FlushError::Stale(ranks)),
            Instance::Unchanged => return Err(FlushError::Unchanged),
            Instance::There(manifest) => (*manifest, true),
            Instance::New { checkpoint, doubt, part } => {
                let flush = Flush {
                    store,
                    job: job.clone(),
                    checkpoint,
                    group: self.key.group,
                    grouping: self.grouping,
                    group_size: self.group_size,
                    incarnation: place.incarnation,
                    written_unix_ms: place.written_unix_ms,
                    first_unix_ms: written.first_ms(),
                    doubt,
                    files: self.files.into(),
                    source: &self.source,
                    options: &self.options,
                    budget: &self.budget,
                    spare: &Spare::default(),
                    newest: &self.shared.newest,
                    may_commit: &still_current,
                    observer: &*self.progress,
                    now_unix_ms,
                };
                // If another process is writing the same group, the hub starts the flush again later.
                let CommittedGroup { manifest, was_there } = commit_group(&flush, &|| false)?;
                let mixed = mixed_attempts(store, &self.key, &manifest)?;
                if let Some((part, why)) = part.or(mixed) {
                    tracing::warn!(%job, checkpoint = %part, why, "an older checkpoint is doubtful");
                    mark_doubtful(store, &job, &part, &why)?;
                }
                (manifest, was_there)
            }
        };
        let id = manifest.checkpoint.clone();
        // Whether all groups of the checkpoint are committed. The agents get this value. If the store cannot be read
        // now, the value is `false`, and the hub asks the store again later.
        let exists = self.shared.completes.is(store, &GroupOf::from(&manifest));
        Ok(Flushed { id, manifest, exists, was_there })
    }

    /// Whether the newest checkpoint of the group has another name, which differs only in its numbers.
    fn is_of_series(&self) -> bool {
        let newest = self.shared.newest.of(&*self.store, &self.key.job, self.key.group);
        newest.is_some_and(|newest| {
            let (before, now) = (newest.checkpoint.label(), self.key.label.label());
            before != now && shape_of(before) == shape_of(now)
        })
    }

    /// Refuses to commit if another aggregator saves a run with the same name and identity.
    fn hold(&self) -> Result<(), FlushError> {
        let Some(rank) = self.ranks.first() else { return Ok(()) };
        let who = format!(
            "the aggregator of process {} for node {}, which watches {}",
            std::process::id(),
            rank.link.node,
            rank.link.about.watch
        );
        let holder = GroupHolder::new(who.clone(), self.watches.iter().map(String::as_str));
        match self.shared.holders.hold(&*self.store, &self.key, &rank.link.about.identity, &holder)? {
            None => Ok(()),
            Some(other) => Err(FlushError::Held { job: self.key.job.clone(), who, other }),
        }
    }

    /// Milliseconds by which the clock that sets the files' times went back since the newest checkpoint of this
    /// group. 0 if the clock did not go back. The clock went back if the files were written after the commit of that
    /// checkpoint, although their times are earlier. The order of writing and commit is known without this clock.
    fn clock_went_back_ms(&self, incarnation: u32, newest_ms: i64) -> Result<i64, FlushError> {
        let is_fresh = |rank: &RankOfFlush| rank.was_seen && !rank.is_copy();
        let Some(newest) = self.shared.newest.of(&*self.store, &self.key.job, self.key.group) else { return Ok(0) };
        if newest_ms < newest.written_unix_ms
            && newest.incarnation == incarnation
            && self.ranks.iter().any(RankOfFlush::is_copy)
        {
            tracing::warn!(
                job = %self.key.job,
                checkpoint = %self.key.label,
                group = self.key.group.0,
                newest = %newest.checkpoint,
                seconds = (newest.written_unix_ms - newest_ms) as f64 / 1000.0,
                "the modification times of these files are earlier than those of the newest checkpoint, as `cp -p` leaves \
                 them: the checkpoint counts as older"
            );
        }
        if newest_ms > newest.written_unix_ms || newest.incarnation != incarnation || !self.ranks.iter().all(is_fresh) {
            return Ok(0);
        }
        let committed_ns = match manifest::age(&*self.store, &newest) {
            Ok(age) => i64::try_from(age.as_nanos()).unwrap_or(i64::MAX),
            Err(error) if error.is_not_found() => return Ok(0), // pruned meanwhile
            Err(error) => return Err(error.into()),
        };
        let written_ns = self.ranks.iter().map(|rank| rank.link.clock.to_ours(rank.changed_clock_ns)).min().flatten();
        let Some(written_ns) = written_ns.map(|at| steady_ns().saturating_sub(at)) else { return Ok(0) };
        let after_ns = committed_ns.saturating_sub(written_ns);
        if after_ns < CLOCK_MARGIN_NS {
            return Ok(0);
        }
        let is_at = newest.written_unix_ms.saturating_add(after_ns / 1_000_000);
        let went_back_ms = is_at.saturating_sub(newest_ms);
        let nodes: BTreeSet<&str> = self.ranks.iter().map(|rank| rank.link.node.as_str()).collect();
        tracing::warn!(
            job = %self.key.job,
            checkpoint = %self.key.label,
            group = self.key.group.0,
            ?nodes,
            earlier_than = %newest.checkpoint,
            went_back_seconds = went_back_ms as f64 / 1000.0,
            "the clock that gives these files their times went back: set it right. The checkpoint counts as newer, \
             because it was written later"
        );
        Ok(went_back_ms)
    }

    /// The place of the checkpoint in the order of all checkpoints. Copied files may be older than the checkpoint
    /// from which the run continues. In this case the checkpoint of the copied files gets a place before the
    /// checkpoint from which the run continues, although the copies were made later.
    fn place(&self, incarnation: u32, written_unix_ms: i64) -> Result<Place, FlushError> {
        let place = Place { incarnation, written_unix_ms };
        if incarnation == 0 || !self.ranks.iter().all(RankOfFlush::is_copy) {
            return Ok(place);
        }
        let newest = incarnation::newest(&*self.store, &self.key.job).map_err(StoreError::from)?;
        let Some(newest) = newest else { return Ok(place) };
        // The clock of a node may be wrong. Therefore the files are first compared with the restored files of the
        // same group. If the files are newer than the restored files, the files are not copies of an earlier step. In
        // this case, the clock of the node that wrote the files is behind.
        let restored =
            newest.from.as_ref().map(|from| manifest::read_manifest(&*self.store, &self.key.job, from, self.key.group));
        if let Some(Ok(restored)) = restored
            && written_unix_ms > restored.written_unix_ms
        {
            return Ok(place);
        }
        let Some(older) = newest.place_of_older(written_unix_ms) else { return Ok(place) };
        tracing::warn!(
            job = %self.key.job, checkpoint = %self.key.label, group = self.key.group.0,
            "the modification times of these files are earlier than the start of this run, as `cp -p` leaves them: the \
             checkpoint counts as a checkpoint of an earlier run. If this run wrote the files, a clock is behind"
        );
        Ok(older)
    }

    /// Refuses ranks of older agents. If a job was restarted by hand, an older agent still saves the previous run. An
    /// older agent began before the restart, and watches a directory into which no node restored files. An agent is
    /// only older if another agent watches a directory into which a node restored files. Returns the directories into
    /// which nodes restored files, or no directories if no agent watches one of these directories.
    fn keep_apart_from_older_agents(&self) -> Result<BTreeSet<String>, FlushError> {
        let (store, job) = (&*self.store, &self.key.job);
        let current = self.shared.currents.of(store, job).map_err(FlushError::Store)?;
        let Some(restart) = current.and_then(|current| current.by_hand) else { return Ok(BTreeSet::new()) };
        let began_before = |rank: &&RankOfFlush| {
            let about = &rank.link.about;
            rank.link.clock.to_ours(about.began_clock_ns).is_some_and(|began_ns| began_ns < restart.began_ns)
        };
        if !self.ranks.iter().any(|rank| began_before(&rank)) && self.watches.len() < 2 {
            return Ok(BTreeSet::new());
        }
        let restored = restart.directories(store, job)?;
        if restored.is_disjoint(&self.watches) {
            return Ok(BTreeSet::new());
        }
        let is_older = |rank: &&RankOfFlush| !restored.contains(&rank.link.about.watch) && began_before(rank);
        let refuse = |rank: &RankOfFlush| {
            let why = format!(
                "the agent of node {} was running before the newest restart of job {job}, and watches {}, into which \
                 this restart put no files: its files may belong to the run before. If they do not, start this agent \
                 again",
                rank.link.node, rank.link.about.watch
            );
            (rank.rank, why)
        };
        let older: Vec<_> = self.ranks.iter().filter(is_older).map(refuse).collect();
        if older.is_empty() { Ok(restored) } else { Err(FlushError::Stale(older)) }
    }

    /// Begins another incarnation with this run, if the previous run watched other directories and left a checkpoint
    /// partly committed. Thereby no file of this run completes that checkpoint.
    ///
    /// `restored` are the directories into which nodes restored files. If `restored` is not empty, watched
    /// directories outside `restored` do not count for this run.
    fn keep_apart_from_the_run_before(&self, number: u32, restored: &BTreeSet<String>) -> Result<(), FlushError> {
        let Some(rank) = self.ranks.first() else { return Ok(()) };
        let (store, job, identity) = (&*self.store, &self.key.job, &rank.link.about.identity);
        let of_run = self.watches.iter().filter(|watch| restored.is_empty() || restored.contains(*watch));
        let watched = Watched::new(number, of_run.map(String::as_str));
        let before = Watched::load(store, job, identity);
        if let Some(before) = &before
            && watched.would_complete_another_run(before, store, job)?
        {
            let begun_by = format!("the agent of node {}, which watches {}", rank.link.node, rank.link.about.watch);
            // Files that were written after the agents of this run began to watch belong to this run.
            let since_ns =
                self.ranks.iter().filter_map(|rank| rank.link.clock.to_ours(rank.link.about.began_clock_ns)).min();
            let ago_ns = since_ns.map_or(0, |since_ns| steady_ns().saturating_sub(since_ns));
            let took_ms = u64::try_from(ago_ns / 500_000).unwrap_or(0);
            begin_anew(
                store,
                job,
                number,
                Draft { identity: identity.clone(), begun_by, took_ms, ..Draft::default() },
            )?;
            return Err(FlushError::Overtaken);
        }
        watched.note(before, store, job, identity)?;
        Ok(())
    }

    /// The incarnation that commits, which is the newest incarnation of the job if the agents belong to that
    /// incarnation. `None` if the job has no incarnation.
    fn claim(&self) -> Result<Option<Current>, FlushError> {
        let (mut current, mut fenced) = (None, Vec::new());
        // The store is asked once for each node, and not once for each rank.
        let mut refused: BTreeMap<Claim<'_>, Option<String>> = BTreeMap::new();
        for rank in &self.ranks {
            let claim = Claim { identity: &rank.link.about.identity, node: &rank.link.node };
            let refused = match refused.entry(claim) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    unknown.insert(match self.shared.currents.admit(&*self.store, &self.key.job, claim) {
                        Ok(newest) => {
                            current = newest;
                            None
                        }
                        Err(Refused::Fenced(reason) | Refused::Renamed(reason)) => Some(reason),
                        Err(Refused::Store(error)) => return Err(FlushError::Store(error)),
                    })
                }
            };
            fenced.extend(refused.clone().map(|reason| (rank.rank, reason)));
        }
        if !fenced.is_empty() {
            return Err(FlushError::Stale(fenced));
        }
        Ok(current)
    }

    /// The ranks whose files were written before the incarnation began, with the reasons. Such a rank is awaited
    /// again, because the application is about to write its files again. The times are compared by this process's
    /// steady clock.
    fn ranks_of_the_run_before(&self, current: &Current) -> Vec<(Rank, String)> {
        let mut stale = Vec::new();
        if !current.has_predecessor() {
            return stale;
        }
        for rank in &self.ranks {
            let changed_ns = rank.link.clock.to_ours(rank.changed_clock_ns).unwrap_or(i64::MIN);
            if changed_ns < current.began_ns {
                let seconds = current.began_ns.saturating_sub(changed_ns) as f64 / 1e9;
                let reason = format!(
                    "its files were written {seconds:.1} s before {} of job {}: they belong to the run before and \
                     are not taken",
                    current.record.describe(),
                    self.key.job
                );
                stale.push((rank.rank, reason));
            }
        }
        stale
    }

    /// The complete checkpoint of an earlier run that has exactly these files. The files of earlier steps may be in
    /// the directory of a run, and an agent without its state file announces them again. `None` if there is no such
    /// checkpoint.
    fn saved_by_the_run_before(&self, incarnation: u32) -> Result<Option<Flushed>, FlushError> {
        let (store, job) = (&*self.store, &self.key.job);
        for generation in self.shared.names.newest(store, &self.key, incarnation)?.iter().rev() {
            let Ok(id) = self.key.label.with_generation(*generation) else { continue };
            let Ok(manifest) = manifest::read_manifest(store, job, &id, self.key.group) else { continue };
            if has_saved(&manifest, self.grouping, &self.files)
                && self.shared.completes.is(store, &GroupOf::from(&manifest))
            {
                tracing::info!(%job, checkpoint = %id, group = self.key.group.0, "these files are already in the store");
                return Ok(Some(Flushed { id, manifest, exists: true, was_there: true }));
            }
        }
        Ok(None)
    }
}

/// A rank of a flush, without its files.
pub(super) struct RankOfFlush {
    pub(super) rank: Rank,
    pub(super) link: Arc<AgentLink>,
    pub(super) written_unix_ns: i64,
    pub(super) changed_clock_ns: i64,
    /// Whether the rank's agent was already watching when the files were written.
    pub(super) was_seen: bool,
    /// Newest change time (ctime) of the rank's files, minus the time when the newest file was written, in
    /// nanoseconds. The difference is large if the files are copies that kept the modification times of the
    /// originals.
    kept_time_ns: i64,
    /// When the first of the rank's files was created, by the agent's steady clock. `None` if this is unknown.
    created_clock_ns: Option<i64>,
    doubt: Option<Doubt>,
    /// When the newest of the replaced contents was written, by the agent's steady clock. `None` if this is unknown.
    replaced_clock_ns: Option<i64>,
    /// The time from the rank's content before to this content, in milliseconds. `None` if this is unknown.
    interval_ms: Option<i64>,
    /// When the rank's first content of this run was written, in milliseconds since 1970. `None` if this is unknown.
    first_ms: Option<i64>,
    is_final: bool,
}

impl RankOfFlush {
    pub(super) fn new(rank: Rank, announced: &Announced) -> Self {
        Self {
            rank,
            link: Arc::clone(&announced.link),
            written_unix_ns: announced.written_unix_ns,
            changed_clock_ns: announced.changed_clock_ns,
            was_seen: announced.changed_clock_ns >= announced.link.about.began_clock_ns,
            kept_time_ns: announced.kept_time_ns,
            created_clock_ns: announced.created_clock_ns,
            doubt: announced.doubt,
            replaced_clock_ns: announced.replaced_clock_ns,
            interval_ms: announced.interval_ms,
            first_ms: announced.first_ms,
            is_final: announced.is_final,
        }
    }

    /// Whether all files of the rank were created while the rank's agent was watching. `false` if this is unknown.
    fn is_created(&self) -> bool {
        self.created_clock_ns.is_some_and(|at| at >= self.link.about.began_clock_ns)
    }

    /// The doubt of the agent. The agent does not know when the incarnation began. If the incarnation wrote each file
    /// only once, and the run before wrote all contents that were replaced, then the files are of one step. The times
    /// of the run before are then no reason for doubt. `began_ns`: the beginning of the incarnation, by this process's
    /// steady clock.
    fn doubt_since(&self, began_ns: Option<i64>) -> Option<Doubt> {
        let ours = |clock_ns: Option<i64>| self.link.clock.to_ours(clock_ns?);
        let times = began_ns.zip(ours(self.replaced_clock_ns)).zip(ours(self.created_clock_ns));
        let is_once =
            times.is_some_and(|((began_ns, replaced_ns), created_ns)| replaced_ns < began_ns && began_ns <= created_ns);
        self.doubt.filter(|doubt| *doubt != Doubt::Rewriting || !is_once)
    }

    /// Whether the files are copies that kept the modification times of the originals.
    fn is_copy(&self) -> bool {
        self.kept_time_ns > COPIED_NS
    }
}
