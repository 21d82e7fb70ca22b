//! The agent watches the directory, describes the ranks whose files are finished, announces them to the aggregators,
//! and records which files are committed.
//!
//! One task owns the state. The task receives events from the watcher, from the links, and from the threads that
//! capture files. The task never waits for the end of work. The task starts the work, and the end of the work is an
//! event.

mod before;
mod ending;
mod left_out;
mod saved;
mod task;
mod waits;

pub use ending::{DrainOrder, Drained, FlushRequest, Flushed, Processes};
pub use left_out::Look;

use crate::capture::{CaptureError, CaptureMode, Verdicts, capture, capture_keeping};
use crate::clock::{age_ns, ahead_ns};
use crate::companions::mark_hard_links;
use crate::config::{CncConfig, real_path};
use crate::fingerprint::Fingerprint;
use crate::h5::{MapSource, Maps};
use crate::layout::Layout;
use crate::restored::Restored;
use crate::serve::{GOODBYE_MAX, Held, LinkOptions, News, Order, run_link};
use crate::sessions::Sessions;
use crate::settle::{ReadyRank, SettledFile};
use crate::source::{Descriptors, OpenFile};
use crate::state::{AgentState, Loaded};
use crate::watch::{NO_MARKER, WatchError, WatchEvent, Watcher};
use before::Before;
use ending::{Ending, FLUSHES_MAX, RankKey};
use left_out::LeftOut;
use mcr_proto::clock::steady_ns;
use mcr_proto::convert::file_to_wire;
use mcr_proto::{ANNOUNCEMENT_BYTES_MAX, v1};
use mcrengine::ids::{CheckpointId, FilePath};
use prost::Message;
use saved::Saved;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use task::{Captured, Core, HeldRank, Link, ToDelete};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of ranks that are announced and not yet committed. If there are more ranks, the agent drops the
/// rank that was announced first.
const HELD_MAX: usize = 4096;
/// Maximum number of orders queued for one link. Each announced rank needs two orders: `Hold` and `Forget`.
const ORDERS_MAX: usize = 4 * HELD_MAX;
/// Maximum number of ready ranks that wait for their capture. If this number is reached, the agent accepts no events
/// of the watcher.
const READY_MAX: usize = 4096;
/// Maximum number of messages of the links that are queued for the agent.
const NEWS_MAX: usize = 256;
/// Maximum number of open descriptors for reading the application's files.
const DESCRIPTORS_MAX: usize = 64;
/// Number of file names in the state file above which the agent first removes the names of deleted files.
const STATE_FILES: usize = 16 << 10;
/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The directory cannot be watched.
    #[error("the agent does not start")]
    Watch {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: WatchError,
    },
}

/// A running agent.
pub struct Agent {
    stop: oneshot::Sender<DrainOrder>,
    flushes: mpsc::Sender<FlushRequest>,
    sessions: Sessions,
    ended: tokio::task::JoinHandle<Drained>,
    links: Vec<tokio::task::JoinHandle<()>>,
    first_scan: Option<oneshot::Receiver<()>>,
}

impl Agent {
    /// Watches and serves until [`Agent::drain`] is called. Must be called within a tokio runtime.
    pub fn start(config: CncConfig, layout: Layout) -> Result<Self, AgentError> {
        Self::start_with(config, layout, Arc::new(Maps::new()), None)
    }

    /// Starts an agent like [`Agent::start`], with a layout that was guessed. `left_out` lists the files that the
    /// application has written and that belong to no checkpoint. If there are many, the checkpoints are doubtful.
    pub fn start_with_guess(config: CncConfig, layout: Layout, left_out: Look) -> Result<Self, AgentError> {
        Self::start_with(config, layout, Arc::new(Maps::new()), Some(left_out))
    }

    /// Starts an agent like [`Agent::start_with_guess`], but with the given reader of HDF5 maps.
    pub fn start_with(
        config: CncConfig,
        layout: Layout,
        maps: Arc<dyn MapSource>,
        left_out: Option<Look>,
    ) -> Result<Self, AgentError> {
        let state = match AgentState::load(&config.state_file, &config.job) {
            Loaded::New => AgentState::default(),
            Loaded::Found(state) => state,
            Loaded::Damaged(why) => {
                tracing::warn!(why, "the state file is damaged: every checkpoint is announced again");
                AgentState::default()
            }
        };
        let mut options = config.watch_options();
        // Directories that changed after the last commit may hold a checkpoint that no agent saved.
        let began_ns = config.began_ns.saturating_sub(ahead_ns(&config.watch));
        options.since_ns = state.files.values().map(|was| was.changed_ns).max().map_or(began_ns, |at| at.min(began_ns));
        let before = Arc::new(Before::new(config.watch.clone(), layout.clone(), began_ns));
        let watched = Watcher::spawn(&config.watch, layout, options);
        let (events, mut watcher) =
            watched.map_err(|source| AgentError::Watch { path: config.watch.clone(), source })?;
        let first_scan = watcher.first_scan();
        let (began_ns, (news_to, news)) = (steady_ns(), mpsc::channel(NEWS_MAX));
        let sessions = Sessions::default();
        let (links, link_tasks) = (config.aggregators.iter().enumerate())
            .map(|(link, address)| {
                let (orders, received) = mpsc::channel(ORDERS_MAX);
                let options = LinkOptions {
                    link,
                    address: address.clone(),
                    finder: config.finder.clone(),
                    node: config.node.clone(),
                    job: config.job.clone(),
                    identity: config.incarnation.clone(),
                    own_aggregators: config.own_aggregators,
                    watch: real_path(&config.watch),
                    local_ranks: config.own.text(),
                    ranks: config.ranks.unwrap_or(0),
                    ranks_from: config.ranks_from,
                    began_ns,
                    group_size: config.group_size,
                    reconnect: (config.reconnect_min, config.reconnect_max),
                    budget_bytes: config.budget_bytes / config.aggregators.len().max(1) as u64,
                    security: config.security.clone(),
                    sessions: sessions.clone(),
                };
                let task = tokio::spawn(run_link(options, received, news_to.clone()));
                (Link { orders, mode: None, is_refused: false }, task)
            })
            .unzip();
        let (stop, stopped) = oneshot::channel();
        let (done_to, done) = mpsc::channel(4);
        let (flushes, to_flush) = mpsc::channel(FLUSHES_MAX);
        let newest_ns = state.files.values().map(|was| was.modified_ns).max().unwrap_or(i64::MIN);
        let core = Core {
            has_ended_well: config.has_ended_well,
            config,
            sessions: sessions.clone(),
            watcher,
            maps,
            verdicts: Arc::default(),
            left_out: left_out.map(LeftOut::new),
            before,
            state,
            state_changed: false,
            skipped: Some(Vec::new()),
            vanished: None,
            state_files_max: STATE_FILES,
            links,
            descriptors: Descriptors::new(DESCRIPTORS_MAX),
            ready: VecDeque::new(),
            capturing: BTreeSet::new(),
            held: BTreeMap::new(),
            whole: BTreeSet::new(),
            again: Vec::new(),
            to_delete: VecDeque::new(),
            deleted: VecDeque::new(),
            next_announce: 1,
            given_up: BTreeSet::new(),
            asked_for: BTreeSet::new(),
            done_to,
            left: BTreeMap::new(),
            ending: Ending::new(newest_ns),
            saved: Saved::default(),
        };
        let ended = tokio::spawn(core.run(events, news, done, to_flush, stopped));
        Ok(Self { stop, flushes, sessions, ended, links: link_tasks, first_scan })
    }

    /// Waits until the agent has seen the files that exist, for a limited time. If the application starts later, the
    /// agent sees in which order the application writes its first files.
    pub async fn watches(&mut self) {
        if let Some(first_scan) = self.first_scan.take() {
            let _ = tokio::time::timeout(FIRST_SCAN_MAX, first_scan).await;
        }
    }

    /// The channel that accepts flush requests while the agent runs.
    pub fn flushes(&self) -> mpsc::Sender<FlushRequest> {
        self.flushes.clone()
    }

    /// The aggregators with which the agent has a session, while the agent runs.
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Scans the directory once more, waits until all written files are committed, and ends the agent. The agent ends
    /// at the latest at the time that the order states, even if some files are not committed.
    pub async fn drain(self, order: DrainOrder) -> Drained {
        let _ = self.stop.send(order);
        let drained = self.ended.await.unwrap_or_else(|_| Drained::failed()); // the task panicked, which was logged
        // The links close their sessions. A link that hangs ends with the process.
        let until = tokio::time::Instant::now() + GOODBYE_MAX;
        for link in self.links {
            let _ = tokio::time::timeout_at(until, link).await;
        }
        drained
    }

    /// Ends the agent at once, as SIGKILL would. Another agent with the same state file can continue the work of this
    /// agent.
    pub async fn abandon(self) {
        for link in &self.links {
            link.abort();
        }
        self.ended.abort();
        let _ = self.ended.await; // the task was aborted
    }
}

/// Maximum time to wait for the first scan of a directory.
const FIRST_SCAN_MAX: Duration = Duration::from_secs(10);
/// Maximum number of remembered rejections. A remembered rejection is logged only once. If this number is reached,
/// every rejection is logged.
const GIVEN_UP_MAX: usize = 16 << 10;

impl Core {
    async fn run(
        mut self,
        mut events: mpsc::Receiver<WatchEvent>,
        mut news: mpsc::Receiver<News>,
        mut done: mpsc::Receiver<Captured>,
        mut flushes: mpsc::Receiver<FlushRequest>,
        mut stopped: oneshot::Receiver<DrainOrder>,
    ) -> Drained {
        let mut uncommitted = 0;
        let drained = loop {
            self.start_captures();
            self.report_uncommitted(&mut uncommitted);
            if let Some(drained) = self.step_waits() {
                break drained;
            }
            let due = self.again.iter().map(|(at, _)| *at).chain(self.ending.due()).min();
            // Each arm of `select!` only receives an event, so cancelling an arm loses no work. The timer is disabled
            // if no work is due.
            tokio::select! {
                event = events.recv(), if self.ready.len() < READY_MAX => match event {
                    Some(event) => self.watched(event),
                    None => {
                        tracing::error!("the watcher has ended; the agent ends too, and its supervisor restarts it");
                        break Drained::failed();
                    }
                },
                Some(first) = news.recv() => {
                    self.handle_news(first);
                    while let Ok(next) = news.try_recv() {
                        self.handle_news(next);
                    }
                    if self.state_changed {
                        self.save_state();
                    }
                }
                Some(captured) = done.recv() => self.captured(captured),
                () = tokio::time::sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => self.retry_due(),
                Some(request) = flushes.recv(), if self.ending.has_room() => self.begin_flush(request),
                order = &mut stopped, if !self.ending.is_stopping() => {
                    let until = tokio::time::Instant::now() + self.config.drain;
                    self.begin_stop(order.unwrap_or(DrainOrder { until, processes: Processes::MayRun }));
                }
            }
        };
        match drained.time_was_up {
            true => self.watcher.leave(),
            false => self.watcher.stop(),
        }
        drained
    }

    fn watched(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Ready(ready) => {
                let is_asked_for = self.asked_for.remove(&(ready.checkpoint.clone(), ready.rank));
                let is_committed = |file: &SettledFile| self.state.is_committed(&file.path, &file.fingerprint);
                if !is_asked_for && ready.files.iter().all(is_committed) {
                    let (checkpoint, rank) = (&ready.checkpoint, ready.rank.0);
                    tracing::debug!(%checkpoint, rank, "the files are already committed");
                    if let Some(skipped) = &mut self.skipped {
                        skipped.push(ready);
                    }
                    return;
                }
                self.ending.begins_anew(&(ready.checkpoint.clone(), ready.rank));
                self.left.remove(&(ready.checkpoint.clone(), ready.rank));
                self.again
                    .retain(|(_, waiting)| (&waiting.checkpoint, waiting.rank) != (&ready.checkpoint, ready.rank));
                self.ready.retain(|waiting| (&waiting.checkpoint, waiting.rank) != (&ready.checkpoint, ready.rank));
                self.ready.push_back(ready);
            }
            WatchEvent::Vanished { checkpoint, rank, path, was_announced } => {
                let reason = format!("{path} is gone");
                let was_committed = self.state.files.contains_key(&path);
                // Log only one line for each checkpoint, because a checkpoint may have thousands of files.
                if !was_committed && self.vanished.as_ref() != Some(&checkpoint) {
                    match was_announced {
                        true => {
                            tracing::warn!(
                                %checkpoint,
                                rank = rank.0,
                                %path,
                                "a checkpoint vanished before it was saved"
                            )
                        }
                        false => {
                            tracing::info!(%checkpoint, rank = rank.0, %path, "a file vanished before it was read")
                        }
                    }
                    self.vanished = Some(checkpoint.clone());
                }
                let key = (checkpoint, rank);
                let was_to_be_saved = match was_announced && !was_committed {
                    true => self.to_be_saved(&key).cloned(),
                    false => None,
                };
                self.ending.vanished(&key, was_to_be_saved.as_ref(), format!("{reason}, and was not saved"));
                self.forget(&key, Some(reason));
            }
            WatchEvent::Cut { checkpoint, rank, path, why } => {
                tracing::warn!(%checkpoint, rank = rank.0, %path, why, "a file is incomplete; its checkpoint waits");
            }
            WatchEvent::LeftBehind { pending, directory } => {
                let is_old = pending.modified_ns < self.ending.newest_ns;
                if is_old && (pending.hopeless || pending.why == NO_MARKER) {
                    return; // incomplete files that are older than a saved checkpoint
                }
                let key = (pending.checkpoint, pending.rank);
                self.ending.left_behind(key, &directory, pending.why, pending.modified_ns);
            }
            WatchEvent::Left { directory } => {
                let waiting = self.ready.iter().chain(self.again.iter().map(|(_, ready)| ready));
                let waiting = waiting.map(|ready| (ready.checkpoint.clone(), ready.rank));
                let keys: Vec<RankKey> =
                    waiting.chain(self.capturing.iter().chain(self.held.keys()).cloned()).collect();
                self.left.extend(keys.into_iter().map(|key| (key, directory.clone())));
            }
            WatchEvent::Trouble(what) => tracing::warn!(watch = %self.config.watch.display(), "{what}"),
            WatchEvent::Scanned { request, pending, unreadable } => {
                self.ending.scanned(request, pending, unreadable);
            }
        }
    }

    /// Captures ready ranks whose aggregator has announced its capture mode, up to the configured number at the same
    /// time. A rank that becomes ready again during its capture waits for the end of the capture. Therefore the
    /// newest state of the rank is announced last.
    fn start_captures(&mut self) {
        while self.capturing.len() < self.config.capture_threads {
            let can_start = |ready: &ReadyRank| {
                self.links[self.link_of(ready.rank)].mode.is_some()
                    && !self.capturing.contains(&(ready.checkpoint.clone(), ready.rank))
            };
            let Some(position) = self.ready.iter().position(can_start) else { return };
            let Some(ready) = self.ready.remove(position) else { return };
            self.start_capture(ready);
        }
    }

    fn start_capture(&mut self, ready: ReadyRank) {
        let link = self.link_of(ready.rank);
        let mut mode = self.links[link].mode.unwrap_or(CaptureMode::Apart);
        if self.whole.remove(&(ready.checkpoint.clone(), ready.rank)) {
            mode = CaptureMode::Whole;
        }
        self.capturing.insert((ready.checkpoint.clone(), ready.rank));
        let announce_id = self.next_announce;
        self.next_announce += 1;
        let root = ready.root.clone().unwrap_or_else(|| self.config.watch.as_path().into());
        let (maps, descriptors) = (Arc::clone(&self.maps), Arc::clone(&self.descriptors));
        let (verdicts, left_out, before) =
            (Arc::clone(&self.verdicts), self.left_out.clone(), Arc::clone(&self.before));
        let (done, is_final) = (self.done_to.clone(), self.has_ended_well && self.before.is_later(&ready));
        let CncConfig { are_ranks_uncertain, is_after_failure, .. } = self.config;
        let was_deleted = self.deleted.iter().any(|(label, rank)| (label, *rank) == (&ready.checkpoint, ready.rank));
        tokio::task::spawn_blocking(move || {
            let left = left_out.and_then(|left_out| left_out.doubt(&ready.checkpoint));
            let replaced_ns = ready.doubt_ns.filter(|_| !is_final);
            let (doubt, replaced_ns) = match () {
                () if before.is_mixed(&ready) => (v1::Doubt::Rewriting, None),
                () if replaced_ns.is_some() => (v1::Doubt::Rewriting, replaced_ns),
                () if ready.has_less => (v1::Doubt::Fewer, None),
                () if left.is_some() => (v1::Doubt::LeftOut, None),
                () if was_deleted => (v1::Doubt::Deleted, None),
                () if are_ranks_uncertain => (v1::Doubt::Counted, None),
                () if is_after_failure => (v1::Doubt::FoundAfterEnd, None),
                () if ready.is_last => (v1::Doubt::LastWritten, None),
                () => (v1::Doubt::None, None),
            };
            let left_out = left.map(|left| v1::LeftOut {
                files: left.files as u64,
                of_files: left.of as u64,
                bytes: left.bytes,
                of_bytes: left.of_bytes,
            });
            let known = Known { doubt, replaced_ns, left_out, is_final };
            let result = describe(&root, &ready, known, announce_id, mode, &verdicts, &*maps, &descriptors);
            // Sending fails only if the agent has ended.
            let _ = done.blocking_send(Captured { ready, link, mode, result });
        });
    }

    fn captured(&mut self, captured: Captured) {
        let Captured { ready, link, mode, result } = captured;
        let key = (ready.checkpoint.clone(), ready.rank);
        self.capturing.remove(&key);
        match result {
            Ok(held) => {
                self.forget(&key, None);
                if self.held.len() >= HELD_MAX
                    && let Some(oldest) =
                        self.held.iter().min_by_key(|(_, h)| h.announce_id).map(|(key, _)| key.clone())
                {
                    tracing::warn!(
                        checkpoint = %oldest.0, rank = oldest.1.0,
                        "too many ranks wait for their aggregator; the oldest is dropped"
                    );
                    if let Some(held) = self.forget(&oldest, Some("too many ranks wait".into())) {
                        self.ending.gave_up(&held.ready, "too many ranks waited for their aggregator".into());
                    }
                }
                let (announce_id, held) = (held.announce_id, Arc::new(held));
                if self.links[link].orders.try_send(Order::Hold(held)).is_err() {
                    // The watcher reports an unchanged rank only once, so the agent itself must try again.
                    tracing::error!(link, "the link accepts no orders; the agent announces the rank again later");
                    let at = self.ending.again_at(key, "the link to the aggregator accepts no orders".into());
                    self.again.push((at, ready));
                    return;
                }
                self.held.insert(key, HeldRank { announce_id, link, mode, ready });
            }
            Err((path, error)) if error.is_transient() => {
                tracing::info!(
                    checkpoint = %key.0, rank = key.1.0, %path, %error,
                    "a file changed while it was read; it is read again when it has been at rest"
                );
                if !self.was_left(&ready) {
                    self.watcher.look_again(&path);
                    self.ask_again();
                }
            }
            Err((path, error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(
                    checkpoint = %key.0, rank = key.1.0, %path, %error, cause,
                    "a file cannot be read; the agent tries again later"
                );
                let at = self.ending.again_at(key, format!("{error}: {cause}"));
                self.again.push((at, ready));
            }
        }
    }

    /// Handles the first answer of an aggregator to the question whether the store has checkpoints of the job. If it
    /// has none, the state file and the marks of restored files describe another store or another job, or the store
    /// was purged. Then all files are saved, also the restored ones: they are the newest state of the job.
    fn check_store(&mut self, has_none: bool) {
        let Some(skipped) = self.skipped.take().filter(|_| has_none) else { return };
        if let Some(committed) = self.state.committed.take() {
            tracing::warn!(
                %committed, state_file = %self.config.state_file.display(),
                "the state file names a committed checkpoint, but the store has no checkpoint of this job: it is another \
                 store, or its files were removed; all files are saved again"
            );
            self.state = AgentState::default();
            self.state_changed = true;
            self.ready.extend(skipped);
        }
        self.watcher.take_restored();
    }

    fn handle_news(&mut self, news: News) {
        match news {
            News::Welcome { link, mode, has_none } => {
                (self.links[link].mode, self.links[link].is_refused) = (Some(mode), false);
                self.check_store(has_none);
                // Ranks that were captured in another mode are captured again.
                let other: Vec<RankKey> = (self.held.iter())
                    .filter(|(_, held)| held.link == link && held.mode != mode)
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in other {
                    if let Some(held) = self.forget(&key, Some("captured again in another mode".into())) {
                        self.ready.push_back(held.ready);
                    }
                }
            }
            News::Committed { announce_id, label, rank, checkpoint, exists } => {
                self.committed(announce_id, (label, rank), checkpoint, exists)
            }
            News::Abandoned { announce_id, label, rank, reason, retry, whole } => {
                // A rank that is announced again may be rejected every second, and other ranks may be rejected for
                // the same reason. Each reason is logged only once.
                match self.given_up.len() < GIVEN_UP_MAX && !self.given_up.insert((label.clone(), reason.clone())) {
                    false => {
                        tracing::warn!(
                            checkpoint = %label, rank = rank.0, reason, retry, whole,
                            "the aggregator rejected the rank"
                        );
                    }
                    true => tracing::debug!(checkpoint = %label, rank = rank.0, reason, "rejected again"),
                }
                let key = (label, rank);
                match self.answered(announce_id, &key) {
                    // Announce the rank again at once, with whole files. If the aggregator has no memory for this
                    // announcement either, announce the rank again later.
                    Some(held) if whole && held.mode != CaptureMode::Whole => {
                        if self.whole.len() >= HELD_MAX {
                            self.whole.pop_first();
                        }
                        self.whole.insert(key);
                        self.ready.push_back(held.ready);
                    }
                    Some(held) if retry => {
                        let at = self.ending.again_at(key, reason);
                        self.again.push((at, held.ready));
                    }
                    Some(held) => self.ending.gave_up(&held.ready, reason),
                    None => {}
                }
            }
            News::Changed { announce_id } => {
                let key =
                    self.held.iter().find(|(_, held)| held.announce_id == announce_id).map(|(key, _)| key.clone());
                if let Some(held) =
                    key.and_then(|key| self.forget(&key, None)).filter(|held| !self.was_left(&held.ready))
                {
                    for file in &held.ready.files {
                        self.watcher.look_again(&file.path);
                    }
                    self.ask_again();
                }
            }
            News::Again { label, rank } => {
                if self.asked_for.len() >= HELD_MAX {
                    self.asked_for.pop_first();
                }
                self.asked_for.insert((label.clone(), rank));
                self.watcher.report_again(label, rank);
                self.ask_again();
            }
            News::Look { link } => self.begin_look(link),
            News::Refused { link, reason } => {
                self.links[link].is_refused = true;
                let aggregator = &self.config.aggregators[link];
                tracing::error!(
                    aggregator,
                    reason,
                    "the aggregator refuses this agent; nothing is saved through this aggregator"
                );
            }
        }
    }

    /// Logs the number of ranks that are written and not committed, if the number has changed. Metrics show this
    /// number.
    fn report_uncommitted(&self, last: &mut usize) {
        let now = self.ready.len() + self.capturing.len() + self.again.len() + self.held.len();
        if std::mem::replace(last, now) != now {
            tracing::debug!(job = %self.config.job, ranks = now as u64, "ranks wait for a commit");
        }
    }

    /// Whether the watcher cannot report this rank again, because its directory is not watched any more. Such a rank,
    /// whose files could not be read, is named at the end.
    fn was_left(&mut self, ready: &ReadyRank) -> bool {
        let key = (ready.checkpoint.clone(), ready.rank);
        let Some(directory) = self.left.remove(&key) else { return false };
        let modified_ns = ready.files.iter().map(|file| file.fingerprint.modified_ns).max().unwrap_or(i64::MIN);
        self.ending.left_behind(key, &directory, "its files cannot be read any more", modified_ns);
        true
    }

    /// Finds the announcement that an answer belongs to, and forgets the announcement. `None` if the announcement was
    /// replaced. The answer to a replaced announcement does not apply to the present files, and is ignored.
    fn answered(&mut self, announce_id: u64, key: &RankKey) -> Option<HeldRank> {
        let is_this = self.held.get(key).is_some_and(|held| held.announce_id == announce_id);
        if is_this { self.forget(key, None) } else { None }
    }

    fn committed(&mut self, announce_id: u64, key: RankKey, checkpoint: CheckpointId, exists: bool) {
        let label = key.0.clone();
        if let Some(held) = self.answered(announce_id, &key) {
            self.left.remove(&key);
            tracing::debug!(checkpoint = %checkpoint, rank = key.1.0, exists, "committed");
            let bytes: u64 = held.ready.files.iter().map(|file| file.fingerprint.bytes).sum();
            self.saved.committed(&checkpoint, bytes);
            self.ending.committed(&held.ready, &checkpoint, exists);
            let files: Vec<(FilePath, Fingerprint)> =
                held.ready.files.into_iter().map(|f| (f.path, f.fingerprint)).collect();
            self.state.committed = Some(checkpoint.clone());
            self.state.files.extend(files.iter().cloned());
            self.state_changed = true;
            if self.config.delete_after_commit {
                self.to_delete.push_back(ToDelete { checkpoint: checkpoint.clone(), key, files });
                if self.to_delete.len() > HELD_MAX {
                    self.to_delete.pop_front();
                }
            }
        }
        // The aggregator answers each rank. The line in the log counts all ranks of this agent, so the line is logged
        // only after the answer to the last rank.
        if exists && !self.held.keys().any(|other| other.0 == label) {
            self.saved.exists(&checkpoint);
        }
        if exists {
            self.state_changed |= self.ending.exists(&checkpoint);
            self.delete_committed(&checkpoint);
        }
    }

    /// Deletes the application's files of a checkpoint that all groups have committed, if `delete-after-commit` is
    /// set. Only files that are unchanged since the commit are deleted. Files that a restart wrote are not deleted.
    fn delete_committed(&mut self, checkpoint: &CheckpointId) {
        let (those, others): (VecDeque<_>, _) =
            std::mem::take(&mut self.to_delete).into_iter().partition(|files| files.checkpoint == *checkpoint);
        self.to_delete = others;
        let restored = Restored::load(&self.config.watch);
        for ToDelete { key, files, .. } in those {
            let mut is_deleted = false;
            for (path, fingerprint) in files {
                let full = self.config.watch.join(path.as_path());
                let unchanged =
                    std::fs::symlink_metadata(&full).is_ok_and(|now| Fingerprint::from(&now) == fingerprint);
                if !unchanged || restored.may_be_restored(&path, &fingerprint) {
                    continue;
                }
                match std::fs::remove_file(&full) {
                    Ok(()) => is_deleted = true,
                    Err(error) => tracing::warn!(%path, %error, "cannot delete a committed file"),
                }
            }
            if is_deleted {
                self.deleted.push_back(key);
            }
        }
        let too_many = self.deleted.len().saturating_sub(HELD_MAX);
        self.deleted.drain(..too_many);
    }

    /// Writes the state file, once for all messages that arrived together. If the state file contains too many names,
    /// the names of deleted files are removed first.
    fn save_state(&mut self) {
        self.state_changed = false;
        if self.state.files.len() > self.state_files_max {
            self.state.files.retain(|path, _| self.config.watch.join(path.as_path()).symlink_metadata().is_ok());
            self.state_files_max = STATE_FILES.max(2 * self.state.files.len());
        }
        let (state, config, except) = (&self.state, &self.config, self.ending.files_of_parts());
        if let Err(error) = tokio::task::block_in_place(|| state.save(&config.state_file, &config.job, &except)) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                %error, cause,
                "cannot write the state file: after a restart of the agent every checkpoint is announced again"
            );
        }
    }

    fn forget(&mut self, key: &RankKey, withdraw: Option<String>) -> Option<HeldRank> {
        let held = self.held.remove(key)?;
        let order = Order::Forget { announce_id: held.announce_id, withdraw };
        if self.links[held.link].orders.try_send(order).is_err() {
            tracing::error!(link = held.link, "the link accepts no orders");
        }
        Some(held)
    }

    /// The files of a rank that must still be saved.
    fn to_be_saved(&self, key: &RankKey) -> Option<&ReadyRank> {
        let held = self.held.get(key).map(|held| &held.ready);
        let mut waiting = self.ready.iter().chain(self.again.iter().map(|(_, ready)| ready));
        held.or_else(|| waiting.find(|ready| (&ready.checkpoint, ready.rank) == (&key.0, key.1)))
    }

    fn retry_due(&mut self) {
        let now = tokio::time::Instant::now();
        let (due, later) = std::mem::take(&mut self.again).into_iter().partition(|(at, _)| *at <= now);
        self.again = later;
        self.ready.extend(due.into_iter().map(|(_, ready)| ready));
    }
}

/// What the agent knows about the files of a rank before it reads them.
struct Known {
    /// Why the files may not be all files of one step.
    doubt: v1::Doubt,
    /// When the newest content that the application has replaced was written, if this is the reason for doubt. In
    /// nanoseconds since 1970.
    replaced_ns: Option<i64>,
    /// The files that a guessed layout leaves out, if they are a reason for doubt.
    left_out: Option<v1::LeftOut>,
    /// Whether no file is written again.
    is_final: bool,
}

/// Captures the files of a rank and encodes their announcement. Must run on a thread that may block.
#[expect(clippy::too_many_arguments, reason = "the arguments have nothing in common that a struct could name")]
fn describe(
    root: &std::path::Path,
    ready: &ReadyRank,
    Known { mut doubt, replaced_ns, left_out, is_final }: Known,
    announce_id: u64,
    mode: CaptureMode,
    verdicts: &Verdicts,
    maps: &dyn MapSource,
    descriptors: &Arc<Descriptors>,
) -> Result<Held, (FilePath, CaptureError)> {
    let mut paths: Vec<&FilePath> = ready.files.iter().map(|file| &file.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let (mut captured, mut wire, mut wire_bytes) = (Vec::with_capacity(paths.len()), v1::Announcement::default(), 0);
    let mut newest: Option<Fingerprint> = None;
    for path in paths {
        let fail = |error| (path.clone(), error);
        let file = capture_keeping(root, path, ready.rank, mode, verdicts, maps, &mut |_| false);
        let (mut file, _) = file.map_err(fail)?;
        if file.is_longer && doubt == v1::Doubt::None {
            doubt = v1::Doubt::NotClosed;
        }
        let mut header_bytes = file_to_wire(&file.header).encoded_len();
        if (header_bytes + wire_bytes) as u64 > ANNOUNCEMENT_BYTES_MAX / 2 && mode != CaptureMode::Whole {
            // The description of this file is too long for an announcement, so the file is announced as one variable.
            file = capture(root, path, ready.rank, CaptureMode::Whole, maps).map_err(fail)?;
            header_bytes = file_to_wire(&file.header).encoded_len();
        }
        wire_bytes += header_bytes;
        if newest.is_none_or(|newest| newest.changed_ns < file.fingerprint.changed_ns) {
            newest = Some(file.fingerprint);
        }
        wire.written_unix_ns = wire.written_unix_ns.max(file.fingerprint.written_ns());
        captured.push(file);
    }
    // `None` is the minimum, if it is not known of all files.
    let created_ns = captured.iter().map(|file| file.created_ns).min().flatten();
    let mut described: Vec<_> = captured.into_iter().map(|file| (file.header, file.fingerprint, None)).collect();
    let companions = ready.companions.iter().filter(|companion| !ready.files.iter().any(|f| f.path == companion.path));
    described.extend(companions.map(|one| (one.header(ready.rank), one.fingerprint(), Some(one.image()))));
    described.sort_unstable_by(|(a, ..), (b, ..)| a.path.cmp(&b.path));
    mark_hard_links(described.iter_mut().map(|(header, fingerprint, _)| (header, *fingerprint)));
    let files: Vec<OpenFile> = (described.into_iter())
        .map(|(header, print, image)| OpenFile::new(root, Arc::new(header), print, descriptors).with_image(image))
        .collect();
    wire.files = files.iter().map(|file| file_to_wire(file.header())).collect();
    wire.doubt = doubt.into();
    (wire.interval_ns, wire.first_unix_ns) = (ready.interval_ns, ready.first_ns);
    (wire.left_out, wire.is_final) = (left_out, is_final);
    wire.kept_time_ns = newest.map_or(0, |newest| newest.changed_ns.saturating_sub(wire.written_unix_ns));
    let ahead_ns = ahead_ns(root);
    let on_steady_clock = |file_ns: i64| steady_ns().saturating_sub(age_ns(file_ns, ahead_ns).max(0));
    wire.changed_clock_ns = newest.map_or(i64::MIN, |newest| on_steady_clock(newest.changed_ns));
    wire.created_clock_ns = created_ns.map(on_steady_clock);
    wire.replaced_clock_ns = replaced_ns.map(on_steady_clock);
    let announcement = wire.encode_to_vec().into();
    Ok(Held { announce_id, label: ready.checkpoint.clone(), rank: ready.rank, files, announcement })
}
