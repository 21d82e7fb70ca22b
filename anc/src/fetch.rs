//! Fetches over the network: one link for each agent session, and a source that fetches bytes over the links.
//!
//! Asynchronous tasks receive frames ([`AgentLink::data`]). Flush threads request ranges of bytes, and wait for these
//! bytes with a deadline.

use crate::budget::Lease;
use crate::source::{FetchError, Source, Wanted};
use bytes::Bytes;
use mcr_proto::clock::PeerClock;
use mcr_proto::data::DataFrame;
use mcr_proto::{FETCH_BYTES_MAX, FRAME_BYTES, FRAME_BYTES_MIN, v1};
use mcrengine::header::FileHeader;
use mcrengine::ids::Rank;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::watch;
use tonic::Status;

/// Maximum number of messages in the queue to an agent. If the queue is full, the sender waits.
pub const LINK_QUEUE: usize = 64;
/// Maximum number of the hub's messages in the queue to an agent. An agent may hold fewer announcements than this, so
/// the queue becomes full only if the agent does not receive messages.
const ANSWERS_MAX: usize = 16 << 10;

/// The session of an agent, as the other parts of the aggregator use it.
pub struct AgentLink {
    /// Number of the session, unique in this process.
    pub session: u64,
    /// Host name of the node, for messages.
    pub node: String,
    /// The facts that the agent sent about itself when it connected.
    pub about: About,
    /// The agent's steady clock, derived from its messages.
    pub clock: PeerClock,
    /// The sender of messages to the agent. The sender is dropped when the session ends, so that the stream to the
    /// agent ends too.
    out: Mutex<Option<Frames>>,
    /// The queue of the hub's messages. The hub never waits for an agent.
    answers: tokio::sync::mpsc::Sender<v1::to_agent::Message>,
    /// Whether the session has ended. Tasks can wait for a change.
    ended: watch::Sender<bool>,
    pending: Mutex<Pending>,
    /// Whether data arrived since [`AgentLink::sent_data`] was last called.
    sent_data: AtomicBool,
    /// When the session began.
    began: Instant,
    /// When the last message or the last data arrived, in milliseconds after `began`.
    heard_ms: AtomicU64,
    /// Whether the last announcement or heartbeat said that the agent is at rest ([`mcr_proto::HEARTBEAT_SECONDS`]).
    at_rest: AtomicBool,
    next_fetch: AtomicU64,
    /// The async runtime. Flush threads use the runtime only to wait with a deadline for space in the queue.
    runtime: tokio::runtime::Handle,
}

/// Facts that an agent sends about itself when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The identity of the agent's incarnation. Empty if the job was started by hand.
    pub identity: String,
    /// The directory that the agent watches, for messages.
    pub watch: String,
    /// The ranks whose files the agent announces. Empty means all ranks that the agent finds.
    pub local_ranks: Vec<RangeInclusive<u32>>,
    /// Number of ranks of the job. 0 if the agent does not know the number.
    pub ranks: u32,
    /// Where the number of ranks comes from, for messages.
    pub ranks_from: String,
    /// When the agent began to watch, in nanoseconds of the agent's steady clock. The agent did not watch while files
    /// from before this time were written.
    pub began_clock_ns: i64,
}

impl About {
    /// The number of ranks and where it comes from, and how to change the number. For a checkpoint that lacks ranks.
    pub fn ranks_advice(&self) -> String {
        let ranks = match (self.ranks, self.ranks_from.as_str()) {
            (0, _) => "the number of ranks comes from the newest checkpoint, or from ranks in [anc]".to_owned(),
            (ranks, "") => format!("ranks = {ranks}"),
            (ranks, from) => format!("ranks = {ranks} (from {from})"),
        };
        format!(
            "{ranks}; if fewer ranks write files, give --ranks, or ranks in mcr.toml or [cnc]; if the application \
             writes one file for all ranks, --ranks 1"
        )
    }

    /// Parses ranges of ranks in the format of the agents. `None` if the text is invalid.
    pub fn parse_ranks(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-')?;
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        text.split(',').filter(|part| !part.is_empty()).take(RANGES_MAX).map(range).collect()
    }

    /// Whether the agent takes the files of a rank, according to its own ranges.
    pub fn claims(&self, rank: Rank) -> bool {
        self.local_ranks.iter().any(|range| range.contains(&rank.0))
    }

    /// A rank that is in the ranges of both agents. `None` if there is no such rank.
    pub fn shared_rank(&self, other: &Self) -> Option<Rank> {
        let shared = |a: &RangeInclusive<u32>, b: &RangeInclusive<u32>| {
            let first = *a.start().max(b.start());
            (first <= *a.end().min(b.end())).then_some(Rank(first))
        };
        self.local_ranks.iter().find_map(|a| other.local_ranks.iter().find_map(|b| shared(a, b)))
    }
}

/// Maximum number of ranges of ranks that an agent may send.
const RANGES_MAX: usize = 4096;

type Frames = tokio::sync::mpsc::Sender<Result<v1::ToAgent, Status>>;

#[derive(Default)]
struct Pending {
    slots: HashMap<u64, Slot>,
    /// The reason why the session ended. `None` while the session is open.
    ended: Option<String>,
}

/// A fetch that is in progress.
struct Slot {
    /// Number of bytes that have arrived.
    have: u64,
    total_bytes: u64,
    /// Passes the frames in order to the caller of the fetch, or the reason why no further frames arrive. The number
    /// of frames is limited, because each frame has at least [`FRAME_BYTES_MIN`] bytes.
    frames: mpsc::Sender<Result<Vec<Bytes>, Failed>>,
}

/// How a fetch failed.
struct Failed {
    reason: String,
    changed: bool,
}

impl AgentLink {
    /// Makes a link that sends its messages to `out`. Must be called within a tokio runtime.
    pub fn new(session: u64, node: String, about: About, out: Frames) -> Arc<Self> {
        let clock = PeerClock::default();
        let (pending, next_fetch) = (Mutex::default(), AtomicU64::new(1));
        let (answers, to_send) = tokio::sync::mpsc::channel(ANSWERS_MAX);
        let (ended, runtime) = (watch::Sender::new(false), tokio::runtime::Handle::current());
        let end = ended.subscribe();
        let sending = Mutex::new(Some(out.clone()));
        let link = {
            let (sent_data, at_rest) = (AtomicBool::new(false), AtomicBool::new(false));
            let (began, heard_ms) = (Instant::now(), AtomicU64::new(0));
            Arc::new(Self {
                session,
                node,
                about,
                clock,
                out: sending,
                answers,
                ended,
                pending,
                sent_data,
                began,
                heard_ms,
                at_rest,
                next_fetch,
                runtime,
            })
        };
        link.runtime.spawn(send_answers(to_send, out, Arc::downgrade(&link), end));
        link
    }

    /// Queues a message for the agent without waiting. Messages are sent in order. If the queue is full, the session
    /// is ended. In its next session the agent repeats all announcements that were not answered.
    pub fn send(&self, message: v1::to_agent::Message) {
        if let Err(TrySendError::Full(_)) = self.answers.try_send(message) {
            self.end(&format!("node {} does not receive messages", self.node));
        }
    }

    /// Waits until the session has ended on either side. Returns the reason.
    pub async fn until_ended(&self) -> String {
        // Waiting fails only if the sender is dropped, and `self` owns the sender.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.ended.clone().unwrap_or_default()
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Passes the payload of a received frame to the thread that waits for the payload. If the agent breaks the
    /// protocol, its session ends.
    pub fn data(&self, frame: DataFrame) {
        self.sent_data.store(true, Ordering::Relaxed);
        self.is_alive();
        if let Err(reason) = self.take_data(frame) {
            self.end_with(&format!("node {} broke the protocol: {reason}", self.node), false);
        }
    }

    /// Whether data has arrived since the last call of this function. Data shows that the agent is alive, even if no
    /// message arrives.
    pub fn sent_data(&self) -> bool {
        self.sent_data.swap(false, Ordering::Relaxed)
    }

    /// Notes that a message of the agent has arrived. `at_rest`: whether the message says that the agent waits for no
    /// answer, and sends no further messages.
    pub fn heard(&self, at_rest: bool) {
        self.at_rest.store(at_rest, Ordering::Relaxed);
        self.is_alive();
    }

    /// Whether the agent is at rest. If an agent at rest disappears, the kernel ends its session.
    pub fn is_at_rest(&self) -> bool {
        self.at_rest.load(Ordering::Relaxed)
    }

    /// Time since the last message or the last data of the agent, in milliseconds.
    pub fn silent_ms(&self) -> u64 {
        self.age_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    fn is_alive(&self) {
        self.heard_ms.store(self.age_ms(), Ordering::Relaxed);
    }

    fn age_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn take_data(&self, frame: DataFrame) -> Result<(), String> {
        let bytes = frame.bytes();
        let DataFrame { fetch_id, offset, pieces } = frame;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // No thread waits for the data, because the flush has failed.
        let Some(slot) = pending.slots.get_mut(&fetch_id) else { return Ok(()) };
        let left = slot.total_bytes - slot.have;
        if offset != slot.have || bytes as u64 > left {
            return Err(format!(
                "data of fetch {fetch_id} at {offset} with {bytes} bytes arrived after {} of {} bytes",
                slot.have, slot.total_bytes
            ));
        }
        if bytes > FRAME_BYTES || bytes < FRAME_BYTES_MIN && (bytes as u64) < left {
            return Err(format!(
                "a frame of {bytes} bytes; from {FRAME_BYTES_MIN} to {FRAME_BYTES} are allowed, and fewer in the \
                 last frame of a fetch"
            ));
        }
        slot.have += bytes as u64;
        // Sending fails only if no thread waits for the data.
        let _ = slot.frames.send(Ok(pieces));
        if bytes as u64 == left {
            pending.slots.remove(&fetch_id);
        }
        Ok(())
    }

    /// Handles a fetch that the agent cannot answer.
    pub fn failed(&self, failed: v1::FetchFailed) {
        if let Some(slot) = self.pending.lock().unwrap_or_else(PoisonError::into_inner).slots.remove(&failed.fetch_id) {
            let _ = slot.frames.send(Err(Failed { reason: failed.reason, changed: failed.changed }));
        }
    }

    /// Ends the session. Every fetch in progress and every later fetch fails. The agent may connect again.
    pub fn end(&self, reason: &str) {
        self.end_with(reason, true);
    }

    /// Ends the session like [`AgentLink::end`]. `retry` says whether it helps to connect again. The agent receives
    /// the reason of the first call.
    pub fn end_with(&self, reason: &str, retry: bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.ended.is_none() {
            // This message is queued before other threads can see the end, so that no later message follows it.
            let goodbye = v1::Goodbye { reason: reason.to_owned(), retry };
            let _ = self.answers.try_send(v1::to_agent::Message::Goodbye(goodbye));
        }
        pending.ended.get_or_insert_with(|| reason.to_owned());
        for (_, slot) in pending.slots.drain() {
            let _ = slot.frames.send(Err(Failed { reason: reason.to_owned(), changed: false }));
        }
        drop(pending);
        self.out.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ended.send_replace(true);
    }

    /// Requests ranges of bytes. The answer arrives through the returned receiver. Flush threads call this function.
    fn ask(
        &self,
        announce_id: u64,
        ranges: Vec<v1::Range>,
        total_bytes: u64,
        deadline: Duration,
    ) -> Result<Asked<'_>, Failed> {
        let fetch_id = self.next_fetch.fetch_add(1, Ordering::Relaxed);
        let (frames, answer) = mpsc::channel();
        {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(reason) = &pending.ended {
                return Err(Failed { reason: reason.clone(), changed: false });
            }
            pending.slots.insert(fetch_id, Slot { have: 0, total_bytes, frames });
        }
        let asked = Asked { link: self, fetch_id, answer, until: Instant::now() + deadline, deadline };
        let fetch = v1::Fetch { fetch_id, announce_id, ranges, total_bytes };
        let message = v1::ToAgent { message: Some(v1::to_agent::Message::Fetch(fetch)) };
        let out = self.out.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = match out {
            Some(out) => self.runtime.block_on(out.send_timeout(Ok(message), deadline)).is_ok(),
            None => false,
        };
        if sent {
            return Ok(asked);
        }
        let reason = format!("node {} does not receive requests", self.node);
        self.end(&reason);
        Err(Failed { reason, changed: false })
    }
}

/// Sends the hub's messages, each with a deadline. After the end of the session, the messages that are still queued
/// are sent with a shorter deadline.
async fn send_answers(
    mut answers: tokio::sync::mpsc::Receiver<v1::to_agent::Message>,
    out: Frames,
    link: Weak<AgentLink>,
    mut ended: watch::Receiver<bool>,
) {
    let frame = |message| Ok(v1::ToAgent { message: Some(message) });
    loop {
        let message = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            message = answers.recv() => message,
        };
        let Some(message) = message else { return };
        let deadline = Duration::from_secs(mcr_proto::SILENCE_SECONDS);
        if out.send_timeout(frame(message), deadline).await.is_err() {
            if let Some(link) = link.upgrade() {
                link.end(&format!("node {} does not receive messages", link.node));
            }
            return;
        }
    }
    while let Ok(message) = answers.try_recv() {
        if out.send_timeout(frame(message), Duration::from_secs(1)).await.is_err() {
            return;
        }
    }
}

/// A fetch whose answer is awaited. Dropping this value forgets the fetch.
struct Asked<'a> {
    link: &'a AgentLink,
    fetch_id: u64,
    answer: mpsc::Receiver<Result<Vec<Bytes>, Failed>>,
    /// When the whole answer must have arrived.
    until: Instant,
    deadline: Duration,
}

impl Asked<'_> {
    /// Fills the buffers of the runs, one run after the other, as the bytes arrive. Calls `filled` after each frame
    /// and at the end of each run.
    fn fill<'b>(
        &self,
        into: impl IntoIterator<Item = (usize, &'b mut [u8])>,
        filled: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Failed> {
        let (mut pieces, mut piece) = (Vec::new().into_iter(), Bytes::new());
        for (nth, run) in into {
            let (mut have, mut told) = (0, 0);
            while have < run.len() {
                while piece.is_empty() {
                    match pieces.next() {
                        Some(next) => piece = next,
                        None => {
                            if told < have {
                                filled(nth, &run[told..have]);
                                told = have;
                            }
                            pieces = self.next_frame()?.into_iter();
                        }
                    }
                }
                let bytes = piece.split_to(piece.len().min(run.len() - have));
                run[have..have + bytes.len()].copy_from_slice(&bytes);
                have += bytes.len();
            }
            filled(nth, &run[told..]);
        }
        Ok(())
    }

    fn next_frame(&self) -> Result<Vec<Bytes>, Failed> {
        let wait = self.until.saturating_duration_since(Instant::now());
        self.answer.recv_timeout(wait).unwrap_or_else(|_| {
            let reason = format!("node {} did not answer within {} s", self.link.node, self.deadline.as_secs());
            // The agent counts as lost. In its next session the agent announces its files again.
            self.link.end(&reason);
            Err(Failed { reason, changed: false })
        })
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.link.pending.lock().unwrap_or_else(PoisonError::into_inner).slots.remove(&self.fetch_id);
    }
}

/// The announced files of one rank, and the agent that has them.
#[derive(Clone)]
pub struct Announced {
    /// The session of the agent.
    pub link: Arc<AgentLink>,
    /// The number of the announcement in the session.
    pub announce_id: u64,
    /// The rank's files, in the order of the announcement.
    pub files: Arc<Vec<FileHeader>>,
    /// When the newest file was written, in nanoseconds since 1970 by the clock of its node.
    pub written_unix_ns: i64,
    /// When the newest file was changed, by the agent's steady clock.
    pub changed_clock_ns: i64,
    /// When the first of the files was created, by the agent's steady clock. `None` if this is unknown.
    pub created_clock_ns: Option<i64>,
    /// Time from the newest modification time to the last change of any file, in nanoseconds. The time is long for
    /// files that were copied together with their modification times.
    pub kept_time_ns: i64,
    /// Why the agent doubts that the files are all files of one step.
    pub doubt: Option<Doubt>,
    /// With [`Doubt::Rewriting`]: when the newest of the replaced contents was written, by the agent's steady clock.
    /// `None` if this is unknown.
    pub replaced_clock_ns: Option<i64>,
    /// The time from the rank's content before to this content, in milliseconds. `None` if the application replaced no
    /// content of this run.
    pub interval_ms: Option<i64>,
    /// When the application wrote the rank's first content of this run, in milliseconds since 1970. `None` if this is
    /// unknown.
    pub first_ms: Option<i64>,
    /// Whether the application had ended with success before the agent read the files.
    pub is_final: bool,
    /// The lease for the memory of the announcement. The bytes are returned when the last copy is dropped.
    pub room: Option<Arc<Lease>>,
}

/// Why an agent doubts that the files of a rank are all files of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The application was writing files again under the same names when the agent took them.
    Rewriting,
    /// The layout was guessed, and leaves out a considerable part of the files that the application has written.
    LeftOut(LeftOut),
    /// The rank has fewer files than in its checkpoints before, and wrote no more files for some time.
    Fewer,
    /// An HDF5 file is longer than its superblock states.
    NotClosed,
    /// The agent deleted the files of this checkpoint after the commit, and the application wrote files again.
    Deleted,
    /// The number of ranks was counted in the files of an application that may have failed.
    Counted,
    /// The files were found only after the end of an application that may have failed.
    FoundAfterEnd,
    /// The application failed just after it had written a file whose length nothing confirms.
    LastWritten,
}

/// The files that a guessed layout leaves out, as a part of all files that the application has written. All numbers
/// are 0 if the agent has not sent them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of the files.
    pub files: u64,
    /// Number of all files.
    pub of_files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes of all files.
    pub of_bytes: u64,
}

/// The bytes of a group's files. One or more agents have the files.
pub struct RemoteSource {
    /// For each file of the flush: the place of its announcement, its index in the announcement, its rank and its
    /// path.
    places: Vec<(usize, u32, Rank, String)>,
    announced: Vec<Announced>,
    deadline: Duration,
}

impl RemoteSource {
    /// Returns the list of files for the flush, in rank order, and the source of their bytes. `deadline` is the
    /// maximum duration of one fetch.
    pub fn new(ranks: impl IntoIterator<Item = Announced>, deadline: Duration) -> (Vec<FileHeader>, Self) {
        let mut source = Self { places: Vec::new(), announced: ranks.into_iter().collect(), deadline };
        let mut files = Vec::new();
        for (a, announced) in source.announced.iter().enumerate() {
            for (index, file) in (0u32..).zip(announced.files.iter()) {
                source.places.push((a, index, file.rank, file.path.to_string()));
                files.push(file.clone());
            }
        }
        (files, source)
    }
}

impl Source for RemoteSource {
    fn fetch(&self, wanted: &mut [Wanted<'_>], filled: &mut dyn FnMut(usize, &[u8])) -> Result<(), FetchError> {
        // Each announcement gets one fetch, or several fetches if the fetch would be too long. All fetches are
        // requested before the first answer is awaited.
        struct Batch<'a> {
            announced: &'a Announced,
            rank: Rank,
            file: &'a str,
            ranges: Vec<v1::Range>,
            total_bytes: u64,
            members: Vec<usize>,
        }
        let mut batches: Vec<Batch<'_>> = Vec::new();
        let mut open: HashMap<usize, usize> = HashMap::new();
        // Empty runs are skipped, because the agent sends no answer for them.
        for (i, run) in wanted.iter().enumerate().filter(|(_, run)| !run.into.is_empty()) {
            let (a, file, rank, path) = &self.places[run.variable.file as usize];
            let bytes = run.into.len() as u64;
            let full = |batch: &Batch<'_>| batch.total_bytes + bytes > FETCH_BYTES_MAX || batch.ranges.len() >= 4096;
            let batch = match open.get(a) {
                Some(&b) if !full(&batches[b]) => b,
                _ => {
                    let (announced, ranges, members) = (&self.announced[*a], Vec::new(), Vec::new());
                    batches.push(Batch { announced, rank: *rank, file: path, ranges, total_bytes: 0, members });
                    open.insert(*a, batches.len() - 1);
                    batches.len() - 1
                }
            };
            let range = v1::Range { file: *file, variable: run.variable.variable, offset: run.offset, bytes };
            batches[batch].ranges.push(range);
            batches[batch].total_bytes += bytes;
            batches[batch].members.push(i);
        }
        let lost = |rank: Rank, file: &str, failed: Failed| match failed.changed {
            true => FetchError::Changed { rank, file: file.to_owned() },
            false => FetchError::Lost { rank, reason: failed.reason },
        };
        let mut asked = Vec::with_capacity(batches.len());
        for batch in batches {
            let Batch { announced, rank, file, ranges, total_bytes, members } = batch;
            let answer = announced.link.ask(announced.announce_id, ranges, total_bytes, self.deadline);
            asked.push((answer.map_err(|failed| lost(rank, file, failed))?, rank, file, members));
        }
        // Each run belongs to one batch. The runs of a batch are in the order of the batch's ranges.
        let mut runs: Vec<Option<&mut [u8]>> = wanted.iter_mut().map(|run| Some(&mut *run.into)).collect();
        for (answer, rank, file, members) in asked {
            let into = members.into_iter().filter_map(|i| Some((i, runs[i].take()?)));
            answer.fill(into, filled).map_err(|failed| lost(rank, file, failed))?;
        }
        Ok(())
    }

    /// With four fetches at the same time, the network is busy while some fetches wait for their answers. The memory
    /// budget may lower the number of fetches.
    fn parallel(&self) -> usize {
        4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Linked {
        link: Arc<AgentLink>,
        _taken: tokio::sync::mpsc::Receiver<Result<v1::ToAgent, Status>>,
        _runtime: tokio::runtime::Runtime,
    }

    fn link() -> Linked {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (out, taken) = tokio::sync::mpsc::channel(4);
        let link = runtime.block_on(async { AgentLink::new(1, "n1".into(), About::default(), out) });
        Linked { link, _taken: taken, _runtime: runtime }
    }

    fn data(fetch_id: u64, offset: u64, pieces: &[&'static [u8]]) -> DataFrame {
        DataFrame { fetch_id, offset, pieces: pieces.iter().map(|piece| Bytes::from_static(piece)).collect() }
    }

    fn ask(link: &AgentLink, total_bytes: u64) -> Asked<'_> {
        link.ask(1, vec![], total_bytes, Duration::from_secs(5)).map_err(|failed| failed.reason).expect("open")
    }

    static BYTES: [u8; 3 * FRAME_BYTES_MIN] = {
        let mut bytes = [0; 3 * FRAME_BYTES_MIN];
        let mut i = 0;
        while i < bytes.len() {
            bytes[i] = (i * 7 / 5) as u8;
            i += 1;
        }
        bytes
    };

    #[test]
    fn frames_in_order_fill_the_runs_however_both_are_cut() {
        let linked = link();
        let link = &linked.link;
        let asked = ask(link, BYTES.len() as u64);
        let (first, last) = BYTES.split_at(FRAME_BYTES_MIN + 100);
        link.data(data(asked.fetch_id, 0, &[&first[..7], &first[7..]]));
        link.data(data(asked.fetch_id, first.len() as u64, &[last]));
        let mut filled = vec![0; BYTES.len()];
        let (a, rest) = filled.split_at_mut(3);
        let (b, c) = rest.split_at_mut(FRAME_BYTES_MIN + 500);
        let mut told: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut tell = |nth: usize, bytes: &[u8]| told.push((nth, bytes.to_vec()));
        asked.fill([(7, a), (8, b), (9, c)], &mut tell).map_err(|failed| failed.reason).expect("whole");
        let lens: Vec<(usize, usize)> = told.iter().map(|(nth, bytes)| (*nth, bytes.len())).collect();
        let in_first = FRAME_BYTES_MIN + 97;
        assert_eq!(lens, [(7, 3), (8, in_first), (8, 403), (9, BYTES.len() - FRAME_BYTES_MIN - 503)]);
        assert!(told.into_iter().flat_map(|(_, bytes)| bytes).eq(BYTES), "each byte is reported once, in order");
        assert!(filled == BYTES && !link.has_ended());
        assert!(link.pending.lock().expect("not poisoned").slots.is_empty());
    }

    #[test]
    fn a_frame_out_of_order_or_of_a_wrong_length_ends_the_session() {
        let frames: [(u64, &'static [u8], &str); 4] = [
            (1, &BYTES[1..], "at 1"),
            (0, &BYTES, "after 0 of 49151 bytes"),
            (0, &BYTES[..FRAME_BYTES_MIN - 1], "a frame of 16383 bytes"),
            (0, b"", "a frame of 0 bytes"),
        ];
        for (offset, bytes, why) in frames {
            let linked = link();
            let asked = ask(&linked.link, BYTES.len() as u64 - 1);
            linked.link.data(data(asked.fetch_id, offset, &[bytes]));
            let reason =
                asked.fill([(0, &mut [0u8][..])], &mut |_, _| ()).map_err(|failed| failed.reason).expect_err("refused");
            assert!(reason.contains(why) && linked.link.has_ended(), "{reason}");
        }
        let linked = link();
        assert!(!linked.link.sent_data());
        linked.link.data(data(99, 0, &[b"late"]));
        assert!(!linked.link.has_ended(), "late data does not end the session");
        assert!(linked.link.sent_data() && !linked.link.sent_data(), "late data shows that the sender is alive");
    }

    #[test]
    fn each_message_and_all_data_show_that_the_agent_is_alive() {
        let linked = link();
        let link = &linked.link;
        let wait = || std::thread::sleep(Duration::from_millis(30));
        wait();
        assert!(link.silent_ms() >= 30 && !link.is_at_rest());
        for is_data in [true, false] {
            wait();
            let before = link.silent_ms();
            match is_data {
                true => link.data(data(99, 0, &[b"late"])),
                false => link.heard(false),
            }
            assert!(before >= 30 && link.silent_ms() < before, "data: {is_data}");
        }
        link.heard(true);
        link.data(data(99, 0, &[b"late"]));
        assert!(link.is_at_rest(), "late data does not say that the agent waits for an answer");
        link.heard(false);
        assert!(!link.is_at_rest());
    }

    #[test]
    fn the_end_of_a_session_fails_what_is_under_way_and_what_comes_later() {
        let linked = link();
        let link = &linked.link;
        let asked = ask(link, 5);
        link.end("the node is gone");
        assert_eq!(
            asked.fill([(0, &mut [0u8][..])], &mut |_, _| ()).map_err(|f| f.reason).expect_err("ended"),
            "the node is gone"
        );
        assert!(link.ask(1, vec![], 5, Duration::from_secs(5)).is_err());
    }

    #[test]
    fn an_agent_that_says_nothing_is_given_up_at_the_deadline() {
        let linked = link();
        let link = &linked.link;
        let asked = link.ask(1, vec![], 5, Duration::ZERO).map_err(|_| "ended").expect("open");
        assert!(
            asked
                .fill([(0, &mut [0u8][..])], &mut |_, _| ())
                .map_err(|f| f.reason)
                .expect_err("silent")
                .contains("n1 did not answer")
        );
        assert!(link.has_ended(), "the session ends, so that the agent announces again");
    }
}
