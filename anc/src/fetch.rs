//! The wire's side of fetching: one link for each agent session, and a source that pulls over the links.
//!
//! Asynchronous tasks move frames ([`AgentLink::data`]); flush threads wait here, with a deadline, for what they
//! asked for.

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

/// Frames to an agent that may wait; more than that, and whoever sends waits.
pub const LINK_QUEUE: usize = 64;
/// Messages of the hub to an agent that may wait: an answer for each rank that an agent may hold, and more than that.
/// An agent for which more wait is one that takes nothing.
const ANSWERS_MAX: usize = 16 << 10;

/// An agent's session, as the aggregator's other parts see it.
pub struct AgentLink {
    /// Unique in this process.
    pub session: u64,
    /// Host name, for people.
    pub node: String,
    /// What else the agent said of itself.
    pub about: About,
    /// The agent's steady clock, as its messages show it.
    pub clock: PeerClock,
    /// Taken away at the end, so that the stream to the agent ends as well.
    out: Mutex<Option<Frames>>,
    /// The hub's messages; it never waits for an agent.
    answers: tokio::sync::mpsc::Sender<v1::to_agent::Message>,
    /// Whether the session has ended, for those who wait for it.
    ended: watch::Sender<bool>,
    pending: Mutex<Pending>,
    /// Data arrived since [`AgentLink::sent_data`] was asked last.
    sent_data: AtomicBool,
    next_fetch: AtomicU64,
    /// Flush threads are not the runtime's, but wait for room in its queue with a deadline.
    runtime: tokio::runtime::Handle,
}

/// What an agent says of itself when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The identity of its incarnation; empty for a start by hand.
    pub identity: String,
    /// The directory that it watches, for people.
    pub watch: String,
    /// The ranks whose files it takes; none: all that it sees.
    pub local_ranks: Vec<RangeInclusive<u32>>,
    /// Ranks of the job; 0 where it does not know.
    pub ranks: u32,
    /// Where that number comes from, for people.
    pub ranks_from: String,
    /// Its steady clock when it connected: what is older was not seen being written.
    pub began_clock_ns: i64,
}

impl About {
    /// Ranges of ranks as an agent writes them; `None` where they cannot be read.
    pub fn parse_ranks(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-')?;
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        text.split(',').filter(|part| !part.is_empty()).take(RANGES_MAX).map(range).collect()
    }

    /// Whether it says that it takes a rank.
    pub fn claims(&self, rank: Rank) -> bool {
        self.local_ranks.iter().any(|range| range.contains(&rank.0))
    }

    /// A rank that both say they take, if there is one.
    pub fn shared_rank(&self, other: &Self) -> Option<Rank> {
        let shared = |a: &RangeInclusive<u32>, b: &RangeInclusive<u32>| {
            let first = *a.start().max(b.start());
            (first <= *a.end().min(b.end())).then_some(Rank(first))
        };
        self.local_ranks.iter().find_map(|a| other.local_ranks.iter().find_map(|b| shared(a, b)))
    }
}

/// The most ranges of ranks that an agent may say.
const RANGES_MAX: usize = 4096;

type Frames = tokio::sync::mpsc::Sender<Result<v1::ToAgent, Status>>;

#[derive(Default)]
struct Pending {
    slots: HashMap<u64, Slot>,
    /// Set when the session has ended: why.
    ended: Option<String>,
}

/// A fetch under way.
struct Slot {
    /// Bytes that came.
    have: u64,
    total_bytes: u64,
    /// Frames in order, or why there are no more. Bounded by what was asked for: frames are no smaller than
    /// [`FRAME_BYTES_MIN`].
    frames: mpsc::Sender<Result<Vec<Bytes>, Failed>>,
}

/// How a fetch failed.
struct Failed {
    reason: String,
    changed: bool,
}

impl AgentLink {
    /// A link whose messages go to `out`. Within a tokio runtime.
    pub fn new(session: u64, node: String, about: About, out: Frames) -> Arc<Self> {
        let clock = PeerClock::default();
        let (pending, next_fetch) = (Mutex::default(), AtomicU64::new(1));
        let (answers, to_send) = tokio::sync::mpsc::channel(ANSWERS_MAX);
        let (ended, runtime) = (watch::Sender::new(false), tokio::runtime::Handle::current());
        let end = ended.subscribe();
        let sending = Mutex::new(Some(out.clone()));
        let link = {
            let sent_data = AtomicBool::new(false);
            let out = sending;
            Arc::new(Self { session, node, about, clock, out, answers, ended, pending, sent_data, next_fetch, runtime })
        };
        link.runtime.spawn(send_answers(to_send, out, Arc::downgrade(&link), end));
        link
    }

    /// Has a message sent, in order, without waiting for the agent. An agent for which too many wait is ended: it
    /// announces again what was not answered.
    pub fn send(&self, message: v1::to_agent::Message) {
        if let Err(TrySendError::Full(_)) = self.answers.try_send(message) {
            self.end(&format!("node {} takes no messages", self.node));
        }
    }

    /// Until the session has ended, by whoever ended it.
    pub async fn until_ended(&self) -> String {
        // Only fails without a sender, and the sender is in `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.ended.clone().unwrap_or_default()
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// A frame arrived; its payload goes to whoever waits for it, as it is. An agent that does not keep to the protocol
    /// loses its session.
    pub fn data(&self, frame: DataFrame) {
        self.sent_data.store(true, Ordering::Relaxed);
        if let Err(reason) = self.take_data(frame) {
            self.end_with(&format!("node {} broke the protocol: {reason}", self.node), false);
        }
    }

    /// Whether data arrived since this was asked last: a sign of life that no message gives.
    pub fn sent_data(&self) -> bool {
        self.sent_data.swap(false, Ordering::Relaxed)
    }

    fn take_data(&self, frame: DataFrame) -> Result<(), String> {
        let bytes = frame.bytes();
        let DataFrame { fetch_id, offset, pieces } = frame;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // Not awaited any more: the flush that asked has failed since.
        let Some(slot) = pending.slots.get_mut(&fetch_id) else { return Ok(()) };
        let left = slot.total_bytes - slot.have;
        if offset != slot.have || bytes as u64 > left {
            return Err(format!(
                "data of fetch {fetch_id} at {offset} with {bytes} bytes, where {} of {} bytes were there",
                slot.have, slot.total_bytes
            ));
        }
        if bytes > FRAME_BYTES || bytes < FRAME_BYTES_MIN && (bytes as u64) < left {
            return Err(format!(
                "a frame of {bytes} bytes; from {FRAME_BYTES_MIN} to {FRAME_BYTES} are allowed, and fewer in the last of a fetch"
            ));
        }
        slot.have += bytes as u64;
        // Only fails if nobody waits any more.
        let _ = slot.frames.send(Ok(pieces));
        if bytes as u64 == left {
            pending.slots.remove(&fetch_id);
        }
        Ok(())
    }

    /// The agent cannot answer a fetch.
    pub fn failed(&self, failed: v1::FetchFailed) {
        if let Some(slot) = self.pending.lock().unwrap_or_else(PoisonError::into_inner).slots.remove(&failed.fetch_id) {
            let _ = slot.frames.send(Err(Failed { reason: failed.reason, changed: failed.changed }));
        }
    }

    /// The session has ended: every fetch under way and every later one fails. The agent may dial again.
    pub fn end(&self, reason: &str) {
        self.end_with(reason, true);
    }

    /// As [`AgentLink::end`]; `retry`: whether dialling again helps. The first end is the one that the agent is told.
    pub fn end_with(&self, reason: &str, retry: bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.ended.is_none() {
            // Before anybody knows of the end, so that it is the last that is sent.
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

    /// Asks for ranges; the answer comes through the receiver. Called from flush threads.
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
        let reason = format!("node {} takes no requests", self.node);
        self.end(&reason);
        Err(Failed { reason, changed: false })
    }
}

/// Sends the hub's messages, each with a deadline; after the end, quickly, what was already said.
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
                link.end(&format!("node {} takes no messages", link.node));
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

/// An answer that is awaited; dropping it forgets the fetch.
struct Asked<'a> {
    link: &'a AgentLink,
    fetch_id: u64,
    answer: mpsc::Receiver<Result<Vec<Bytes>, Failed>>,
    /// When all of it must be there.
    until: Instant,
    deadline: Duration,
}

impl Asked<'_> {
    /// Fills the runs, one after the other, as their bytes come; tells `filled` after each frame and at the end of each
    /// run.
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
            // It counts as lost, and announces again in its next session.
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

/// What one rank announced, and where it can be had.
#[derive(Clone)]
pub struct Announced {
    /// Whose session.
    pub link: Arc<AgentLink>,
    /// Which announcement of that session.
    pub announce_id: u64,
    /// The rank's files, in the order of the announcement.
    pub files: Arc<Vec<FileHeader>>,
    /// When the newest of them was written, in nanoseconds since 1970 by the clock of its node.
    pub written_unix_ns: i64,
    /// The same by the agent's steady clock.
    pub changed_clock_ns: i64,
    /// How much older the newest of them says it is than the last change of any of them, in nanoseconds: large for
    /// files that were copied with their times.
    pub kept_time_ns: i64,
    /// What it takes of the budget, given back with the last copy.
    pub room: Option<Arc<Lease>>,
}

/// The files of a group, each at some agent.
pub struct RemoteSource {
    /// For each file of the flush: its announcement, the index in it, its rank and path.
    places: Vec<(usize, u32, Rank, String)>,
    announced: Vec<Announced>,
    deadline: Duration,
}

impl RemoteSource {
    /// The list of files for the flush, in rank order, and the source that serves them. `deadline` is how long one
    /// fetch may take.
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
        // One fetch for each agent's announcement, cut where it would be too long; all are asked before any is awaited.
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
        // Nothing is sent for no bytes, and nobody must wait for it.
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
        // Each run goes to one batch, in the order of the batch's ranges.
        let mut runs: Vec<Option<&mut [u8]>> = wanted.iter_mut().map(|run| Some(&mut *run.into)).collect();
        for (answer, rank, file, members) in asked {
            let into = members.into_iter().filter_map(|i| Some((i, runs[i].take()?)));
            answer.fill(into, filled).map_err(|failed| lost(rank, file, failed))?;
        }
        Ok(())
    }

    /// Enough to keep the network busy while answers are awaited; the budget bounds it further.
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
        assert!(told.into_iter().flat_map(|(_, bytes)| bytes).eq(BYTES), "each byte once, in order");
        assert!(filled == BYTES && !link.has_ended());
        assert!(link.pending.lock().expect("not poisoned").slots.is_empty());
    }

    #[test]
    fn a_frame_out_of_order_or_of_a_wrong_length_ends_the_session() {
        let frames: [(u64, &'static [u8], &str); 4] = [
            (1, &BYTES[1..], "at 1"),
            (0, &BYTES, "of 49151 bytes were there"),
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
        assert!(!linked.link.has_ended(), "nobody waits for it any more");
        assert!(linked.link.sent_data() && !linked.link.sent_data(), "but its sender lives");
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
        assert!(link.has_ended(), "its session ends, so that it announces again");
    }
}
