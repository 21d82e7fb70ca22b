//! The agent: watches, describes what has settled, announces it, and remembers what was committed.
//!
//! One task owns the state and is told events by the watcher, the links, and the thread that captures. It waits for
//! nobody: whatever takes time is started, and its end is one more event.

mod ending;

pub use ending::{DrainOrder, Drained, FlushRequest, Flushed};

use crate::capture::{CaptureError, CaptureMode, Verdicts, capture, capture_keeping};
use crate::clock::ahead_ns;
use crate::companions::mark_hard_links;
use crate::config::{CncConfig, real_path};
use crate::fingerprint::Fingerprint;
use crate::h5::{MapSource, Maps};
use crate::layout::Layout;
use crate::restored::Restored;
use crate::serve::{Held, LinkOptions, News, Order, run_link};
use crate::settle::ReadyRank;
use crate::source::{Descriptors, OpenFile};
use crate::state::{AgentState, Loaded};
use crate::watch::{WatchError, WatchEvent, Watcher};
use ending::Ending;
use mcr_proto::clock::steady_ns;
use mcr_proto::convert::file_to_wire;
use mcr_proto::{ANNOUNCEMENT_BYTES_MAX, v1};
use mcrengine::ids::{CheckpointId, FilePath, GroupId, Rank};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Ranks of checkpoints that are announced and not yet committed; the oldest is let go for a further one.
const HELD_MAX: usize = 4096;
/// Orders that a link may not have taken yet: each held rank is held and forgotten once.
const ORDERS_MAX: usize = 4 * HELD_MAX;
/// Ready ranks that wait to be captured; beyond this the watcher waits.
const READY_MAX: usize = 4096;
/// News that may wait for the agent.
const NEWS_MAX: usize = 256;
/// Descriptors of application files held open at a time, while they are read.
const DESCRIPTORS_MAX: usize = 64;
/// Names of committed files in the state file, before it is looked over for the first time.
const STATE_FILES: usize = 16 << 10;
/// Before a checkpoint that the aggregator gave up for a passing reason is announced again.
const AGAIN: Duration = Duration::from_secs(10);

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The directory cannot be watched.
    #[error("watching {path}", path = .path.display())]
    Watch {
        /// Which.
        path: PathBuf,
        /// Why.
        source: WatchError,
    },
}

/// Flushes and drains at a time; further flushes wait.
const FLUSHES_MAX: usize = 16;

/// A running agent.
pub struct Agent {
    stop: oneshot::Sender<DrainOrder>,
    flushes: mpsc::Sender<FlushRequest>,
    ended: tokio::task::JoinHandle<Drained>,
}

impl Agent {
    /// Watches and serves until [`Agent::drain`]. Within a tokio runtime.
    pub fn start(config: CncConfig, layout: Layout) -> Result<Self, AgentError> {
        Self::start_with(config, layout, Arc::new(Maps::new()))
    }

    /// As [`Agent::start`], with another reader of HDF5 maps.
    pub fn start_with(config: CncConfig, layout: Layout, maps: Arc<dyn MapSource>) -> Result<Self, AgentError> {
        let state = match AgentState::load(&config.state_file, &config.job) {
            Loaded::New => AgentState::default(),
            Loaded::Found(state) => state,
            Loaded::Damaged(why) => {
                tracing::warn!(why, "every checkpoint is announced again");
                AgentState::default()
            }
        };
        let watched = Watcher::spawn(&config.watch, layout, config.watch_options());
        let (events, watcher) = watched.map_err(|source| AgentError::Watch { path: config.watch.clone(), source })?;
        if config.ranks.is_none() {
            tracing::warn!(
                job = %config.job,
                "number of ranks unknown: it is taken from the newest checkpoint of the job, and without one nothing is saved; \
                 give --ranks, or ranks in [cnc], or SLURM_NTASKS"
            );
        }
        let (began_ns, (news_to, news)) = (steady_ns(), mpsc::channel(NEWS_MAX));
        let links = (config.aggregators.iter().enumerate())
            .map(|(link, address)| {
                let (orders, received) = mpsc::channel(ORDERS_MAX);
                let options = LinkOptions {
                    link,
                    address: address.clone(),
                    node: config.node.clone(),
                    job: config.job.clone(),
                    identity: config.incarnation.clone(),
                    watch: real_path(&config.watch),
                    local_ranks: config.own.text(),
                    ranks: config.ranks.unwrap_or(0),
                    ranks_from: config.ranks_from,
                    began_ns,
                    group_size: config.group_size,
                    reconnect: (config.reconnect_min, config.reconnect_max),
                    budget_bytes: config.budget_bytes / config.aggregators.len().max(1) as u64,
                };
                tokio::spawn(run_link(options, received, news_to.clone()));
                Link { orders, mode: None, is_refused: false }
            })
            .collect();
        let (stop, stopped) = oneshot::channel();
        let (done_to, done) = mpsc::channel(4);
        let (flushes, to_flush) = mpsc::channel(FLUSHES_MAX);
        let newest_ns = state.files.values().map(|was| was.modified_ns).max().unwrap_or(i64::MIN);
        let core = Core {
            config,
            watcher,
            maps,
            verdicts: Arc::default(),
            state,
            state_changed: false,
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
            next_announce: 1,
            given_up: BTreeSet::new(),
            done_to,
            ending: Ending::new(newest_ns),
        };
        let ended = tokio::spawn(core.run(events, news, done, to_flush, stopped));
        Ok(Self { stop, flushes, ended })
    }

    /// Where flushes can be asked for, as long as the agent runs.
    pub fn flushes(&self) -> mpsc::Sender<FlushRequest> {
        self.flushes.clone()
    }

    /// Looks at everything once more, waits until what was written is committed, and ends; at the time in the order at
    /// the latest.
    pub async fn drain(self, order: DrainOrder) -> Drained {
        let _ = self.stop.send(order);
        self.ended.await.unwrap_or_else(|_| Drained::failed()) // a mistake of ours; the panic was told
    }
}

struct Link {
    orders: mpsc::Sender<Order>,
    /// Known once a session began.
    mode: Option<CaptureMode>,
    /// The aggregator said last that it will not have this agent; nobody need wait for it.
    is_refused: bool,
}

type RankKey = (CheckpointId, Rank);

struct HeldRank {
    announce_id: u64,
    link: usize,
    mode: CaptureMode,
    ready: ReadyRank,
}

/// The end of a capture.
struct Captured {
    ready: ReadyRank,
    link: usize,
    mode: CaptureMode,
    result: Result<Held, (FilePath, CaptureError)>,
}

struct Core {
    config: CncConfig,
    watcher: Watcher,
    maps: Arc<dyn MapSource>,
    verdicts: Arc<Verdicts>,
    state: AgentState,
    state_changed: bool,
    /// The checkpoint that was last told to have vanished.
    vanished: Option<CheckpointId>,
    /// Names in the state file before it is looked over.
    state_files_max: usize,
    links: Vec<Link>,
    descriptors: Arc<Descriptors>,
    ready: VecDeque<ReadyRank>,
    /// What is being captured; few at a time, so that the application keeps its processors.
    capturing: BTreeSet<RankKey>,
    held: BTreeMap<RankKey, HeldRank>,
    /// Ranks of [`Core::ready`] whose files are announced whole, since the aggregator had no room for more.
    whole: BTreeSet<RankKey>,
    /// Given up for a passing reason; ready again at that time.
    again: Vec<(tokio::time::Instant, ReadyRank)>,
    /// Files of committed checkpoints that wait until their checkpoint exists, all groups included.
    to_delete: VecDeque<(CheckpointId, Vec<(FilePath, Fingerprint)>)>,
    next_announce: u64,
    /// What the log says of ranks that an aggregator gave up.
    given_up: BTreeSet<(CheckpointId, Rank, String)>,
    done_to: mpsc::Sender<Captured>,
    ending: Ending,
}

/// Reasons that are remembered so that they are said once; further ones are said each time.
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
        let drained = loop {
            self.start_captures();
            if let Some(drained) = self.step_waits() {
                break drained;
            }
            let due = self.again.iter().map(|(at, _)| *at).chain(self.ending.due()).min();
            // Each arm only makes an event, so cancellation cuts nothing in half. Nothing due: no timer at all.
            tokio::select! {
                event = events.recv(), if self.ready.len() < READY_MAX => match event {
                    Some(event) => self.watched(event),
                    None => {
                        tracing::error!("the watcher has ended; the agent ends too, so that its supervisor starts it anew");
                        break Drained::failed();
                    }
                },
                Some(first) = news.recv() => {
                    self.told(first);
                    while let Ok(next) = news.try_recv() {
                        self.told(next);
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
                    self.begin_stop(order.unwrap_or(DrainOrder { until, processes_gone: false }));
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
                if ready.files.iter().all(|file| self.state.is_committed(&file.path, &file.fingerprint)) {
                    tracing::debug!(checkpoint = %ready.checkpoint, rank = ready.rank.0, "committed before");
                    return;
                }
                self.ending.begins_anew(&(ready.checkpoint.clone(), ready.rank));
                self.again
                    .retain(|(_, waiting)| (&waiting.checkpoint, waiting.rank) != (&ready.checkpoint, ready.rank));
                self.ready.retain(|waiting| (&waiting.checkpoint, waiting.rank) != (&ready.checkpoint, ready.rank));
                self.ready.push_back(ready);
            }
            WatchEvent::Vanished { checkpoint, rank, path, was_announced } => {
                let reason = format!("{path} is gone");
                let was_committed = self.state.files.contains_key(&path);
                // One line for a checkpoint, which may have thousands of files.
                if !was_committed && self.vanished.as_ref() != Some(&checkpoint) {
                    match was_announced {
                        true => {
                            tracing::warn!(%checkpoint, rank = rank.0, %path, "a checkpoint vanished before it was saved")
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
                tracing::warn!(%checkpoint, rank = rank.0, %path, why, "a file is not whole; its checkpoint waits");
            }
            WatchEvent::Trouble(what) => tracing::warn!(what, "watching"),
            WatchEvent::Scanned { request, pending } => self.ending.scanned(request, pending),
        }
    }

    fn link_of(&self, rank: Rank) -> usize {
        let group = GroupId(rank.0 / self.config.group_size);
        group.0 as usize % self.links.len().max(1)
    }

    /// Captures the first ranks whose aggregators have said how, as many at a time as the configuration allows. A rank that
    /// is ready again while it is captured waits, so that what is found last is what is announced.
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
        let (root, maps, descriptors) =
            (self.config.watch.clone(), Arc::clone(&self.maps), Arc::clone(&self.descriptors));
        let verdicts = Arc::clone(&self.verdicts);
        let done = self.done_to.clone();
        tokio::task::spawn_blocking(move || {
            let result = describe(&root, &ready, announce_id, (mode, &verdicts), &*maps, &descriptors);
            // Only fails when the agent has ended.
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
                    tracing::warn!(checkpoint = %oldest.0, rank = oldest.1.0, "too many ranks wait for their aggregator; the oldest is let go");
                    if let Some(held) = self.forget(&oldest, Some("the agent holds too many".into())) {
                        self.ending.gave_up(&held.ready, "too many ranks waited for their aggregator".into());
                    }
                }
                let (announce_id, held) = (held.announce_id, Arc::new(held));
                if self.links[link].orders.try_send(Order::Hold(held)).is_err() {
                    tracing::error!(link, "the link takes no orders; the rank is announced again at the next rescan");
                    return;
                }
                self.held.insert(key, HeldRank { announce_id, link, mode, ready });
            }
            Err((path, error)) if error.is_transient() => {
                tracing::info!(checkpoint = %key.0, rank = key.1.0, %path, %error, "changed while it was read; read again once it rests");
                self.watcher.look_again(&path);
                self.ask_again();
            }
            Err((path, error)) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(checkpoint = %key.0, rank = key.1.0, %path, %error, cause, "cannot be read; tried again later");
                let at = self.ending.again_at(key, format!("{error}: {cause}"));
                self.again.push((at, ready));
            }
        }
    }

    fn told(&mut self, news: News) {
        match news {
            News::Welcome { link, mode } => {
                (self.links[link].mode, self.links[link].is_refused) = (Some(mode), false);
                // Captured for an aggregator with another scheme or profile: once more.
                let other: Vec<RankKey> = (self.held.iter())
                    .filter(|(_, held)| held.link == link && held.mode != mode)
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in other {
                    if let Some(held) = self.forget(&key, Some("it is described anew for another scheme".into())) {
                        self.ready.push_back(held.ready);
                    }
                }
            }
            News::Committed { announce_id, label, rank, checkpoint, exists } => {
                self.committed(announce_id, (label, rank), checkpoint, exists)
            }
            News::Abandoned { announce_id, label, rank, reason, retry, whole } => {
                // What is retried is given up each second.
                match self.given_up.len() < GIVEN_UP_MAX && !self.given_up.insert((label.clone(), rank, reason.clone()))
                {
                    false => {
                        tracing::warn!(checkpoint = %label, rank = rank.0, reason, retry, whole, "the aggregator gave it up");
                    }
                    true => tracing::debug!(checkpoint = %label, rank = rank.0, reason, "given up again"),
                }
                let key = (label, rank);
                match self.answered(announce_id, &key) {
                    // At once; if the whole files have no room either, as after any other passing reason.
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
                if let Some(held) = key.and_then(|key| self.forget(&key, None)) {
                    for file in &held.ready.files {
                        self.watcher.look_again(&file.path);
                    }
                    self.ask_again();
                }
            }
            News::Look { link } => self.begin_look(link),
            News::Refused { link, reason } => {
                self.links[link].is_refused = true;
                let aggregator = &self.config.aggregators[link];
                tracing::error!(
                    aggregator,
                    reason,
                    "the aggregator will not have this agent; nothing is saved through it"
                );
            }
        }
    }

    /// What an answer is about. An answer to an announcement that was replaced since says nothing about the files that
    /// are there now, and is let pass.
    fn answered(&mut self, announce_id: u64, key: &RankKey) -> Option<HeldRank> {
        let is_this = self.held.get(key).is_some_and(|held| held.announce_id == announce_id);
        if is_this { self.forget(key, None) } else { None }
    }

    fn committed(&mut self, announce_id: u64, key: RankKey, checkpoint: CheckpointId, exists: bool) {
        if let Some(held) = self.answered(announce_id, &key) {
            tracing::info!(checkpoint = %checkpoint, rank = key.1.0, exists, "committed");
            self.ending.committed(&held.ready, &checkpoint, exists);
            let files: Vec<(FilePath, Fingerprint)> =
                held.ready.files.into_iter().map(|f| (f.path, f.fingerprint)).collect();
            self.state.committed = Some(checkpoint.clone());
            self.state.files.extend(files.iter().cloned());
            self.state_changed = true;
            if self.config.delete_after_commit {
                self.to_delete.push_back((checkpoint.clone(), files));
                if self.to_delete.len() > HELD_MAX {
                    self.to_delete.pop_front();
                }
            }
        }
        if exists {
            self.ending.exists(&checkpoint);
            self.delete_committed(&checkpoint);
        }
    }

    /// Deletes the application's files of a checkpoint that exists whole, where the configuration says so, and only files
    /// that are still what was committed. What a restart put there stays.
    fn delete_committed(&mut self, checkpoint: &CheckpointId) {
        let (those, others): (VecDeque<_>, _) =
            std::mem::take(&mut self.to_delete).into_iter().partition(|(id, _)| id == checkpoint);
        self.to_delete = others;
        let restored = Restored::load(&self.config.watch);
        for (path, fingerprint) in those.into_iter().flat_map(|(_, files)| files) {
            let full = self.config.watch.join(path.as_path());
            let unchanged = std::fs::symlink_metadata(&full).is_ok_and(|now| Fingerprint::from(&now) == fingerprint);
            let unchanged = unchanged && !restored.may_be_restored(&path, &fingerprint);
            if unchanged && let Err(error) = std::fs::remove_file(&full) {
                tracing::warn!(%path, %error, "cannot delete a committed file");
            }
        }
    }

    /// Writes the state file, once for all news that came together. Names of files that are gone are let go now and then,
    /// so that it stays as long as the directory.
    fn save_state(&mut self) {
        self.state_changed = false;
        if self.state.files.len() > self.state_files_max {
            self.state.files.retain(|path, _| self.config.watch.join(path.as_path()).symlink_metadata().is_ok());
            self.state_files_max = STATE_FILES.max(2 * self.state.files.len());
        }
        let (state, config) = (&self.state, &self.config);
        if let Err(error) = tokio::task::block_in_place(|| state.save(&config.state_file, &config.job)) {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, cause, "after a restart everything is announced again");
        }
    }

    fn forget(&mut self, key: &RankKey, withdraw: Option<String>) -> Option<HeldRank> {
        let held = self.held.remove(key)?;
        let order = Order::Forget { announce_id: held.announce_id, withdraw };
        if self.links[held.link].orders.try_send(order).is_err() {
            tracing::error!(link = held.link, "the link takes no orders");
        }
        Some(held)
    }

    /// The files of a rank that is to be saved.
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

/// Captures a rank's files and encodes their announcement. Runs on a thread that may block.
fn describe(
    root: &std::path::Path,
    ready: &ReadyRank,
    announce_id: u64,
    (mode, verdicts): (CaptureMode, &Verdicts),
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
        let file = capture_keeping(root, path, ready.rank, (mode, verdicts), maps, &mut |_| false);
        let (mut file, _) = file.map_err(fail)?;
        let mut header_bytes = file_to_wire(&file.header).encoded_len();
        if (header_bytes + wire_bytes) as u64 > ANNOUNCEMENT_BYTES_MAX / 2 && mode != CaptureMode::Whole {
            // A file whose description is as long as a checkpoint is taken whole.
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
    let mut described: Vec<_> = captured.into_iter().map(|file| (file.header, file.fingerprint, None)).collect();
    let companions = ready.companions.iter().filter(|companion| !ready.files.iter().any(|f| f.path == companion.path));
    described.extend(companions.map(|one| (one.header(ready.rank), one.fingerprint(), Some(one.image()))));
    described.sort_unstable_by(|(a, ..), (b, ..)| a.path.cmp(&b.path));
    mark_hard_links(described.iter_mut().map(|(header, fingerprint, _)| (header, *fingerprint)));
    let files: Vec<OpenFile> = (described.into_iter())
        .map(|(header, print, image)| OpenFile::new(root, Arc::new(header), print, descriptors).with_image(image))
        .collect();
    wire.files = files.iter().map(|file| file_to_wire(file.header())).collect();
    wire.kept_time_ns = newest.map_or(0, |newest| newest.changed_ns.saturating_sub(wire.written_unix_ns));
    wire.changed_clock_ns = newest.map_or(i64::MIN, |newest| {
        let age_ns = newest.age_ns(ahead_ns(root));
        steady_ns().saturating_sub(age_ns.max(0))
    });
    let announcement = wire.encode_to_vec().into();
    Ok(Held { announce_id, label: ready.checkpoint.clone(), rank: ready.rank, files, announcement })
}
