//! The announcements that arrive in a session. Each announcement waits for memory in the memory budget. The agent
//! sends the parts of a long announcement only after this wait.
//!
//! The first message of an announcement contains the length. A short announcement is complete in this message: it is
//! taken if there is memory, and otherwise its bytes are dropped. When there is memory for the next waiting
//! announcement, the aggregator asks the agent for all parts of this announcement. An announcement that gets no
//! memory in time is returned to the agent. The agent then announces the rank's files as whole files, which takes few
//! bytes.

use crate::budget::{Budget, Lease};
use bytes::BytesMut;
use mcr_proto::{ANNOUNCEMENT_BYTES_MAX, SILENCE_SECONDS, v1};
use mcrengine::ids::{CheckpointId, Rank};
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of partly received announcements of one agent.
const ASSEMBLIES_MAX: usize = 4;
/// Maximum number of announcements of one agent that wait for memory. An agent never holds more announcements.
const OFFERS_MAX: usize = 4096;
/// The longest time that an announcement waits for memory. After this time the agent must announce the rank's files
/// as whole files.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Bytes of memory for each byte of a decoded announcement. The headers of small variables take 3 of the 4 bytes, and
/// other data takes the rest.
const MEMORY_PER_BYTE: u64 = 4;

/// An announcement that waits for memory, and whose length is known.
#[derive(Debug)]
struct Offer {
    announce_id: u64,
    label: CheckpointId,
    rank: Rank,
    total_bytes: u64,
}

/// An announcement whose parts are arriving, or have arrived.
pub(crate) struct Assembly {
    pub announce_id: u64,
    pub label: CheckpointId,
    pub rank: Rank,
    pub total_bytes: u64,
    pub bytes: BytesMut,
    /// The reserved memory for this announcement. An announcement has the headers of the files of a rank.
    pub room: Lease,
    /// When the last part arrived. Before the first part arrives: when the agent was asked for the parts.
    heard: Instant,
}

/// The announcement that gets memory next.
struct Turn {
    offer: Offer,
    until: Instant,
    room: Pin<Box<dyn Future<Output = Option<Lease>> + Send>>,
}

/// The result of waiting for memory.
#[derive(Debug)]
pub(crate) enum Turned {
    /// There is memory, and the agent must send all parts of this announcement.
    Send(v1::Room),
    /// There was no memory in time, or the announcement never fits.
    GivenBack(v1::Abandoned),
}

/// The unfinished announcements of one session.
pub(crate) struct Arriving {
    budget: Arc<Budget>,
    turn_max: Duration,
    offers: VecDeque<Offer>,
    turn: Option<Turn>,
    open: HashMap<u64, Assembly>,
}

fn memory_of(total_bytes: u64) -> u64 {
    total_bytes * MEMORY_PER_BYTE
}

impl Arriving {
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, turn_max: TURN_MAX, offers: VecDeque::new(), turn: None, open: HashMap::new() }
    }

    /// Whether all announcements are finished.
    pub fn is_empty(&self) -> bool {
        self.offers.is_empty() && self.turn.is_none() && self.open.is_empty()
    }

    /// Takes a part of an announcement. Returns the announcement when its last part has arrived. An error means that
    /// the agent broke the protocol.
    pub fn part(&mut self, part: v1::AnnouncePart) -> Result<Option<Assembly>, String> {
        let announce_id = part.announce_id;
        if part.offset == 0 && !self.open.contains_key(&announce_id) {
            return self.first(part);
        }
        let Some(assembly) = self.open.get_mut(&announce_id) else {
            return Err(format!(
                "a later part of announcement {announce_id} arrived, but its first part is missing, or waits for memory"
            ));
        };
        let have = assembly.bytes.len() as u64;
        if part.offset != have || have + part.part.len() as u64 > assembly.total_bytes {
            return Err(format!(
                "a part at byte {} of announcement {announce_id} arrived, but {have} bytes arrived before",
                part.offset
            ));
        }
        assembly.bytes.extend_from_slice(&part.part);
        assembly.heard = Instant::now();
        match assembly.bytes.len() as u64 == assembly.total_bytes {
            true => Ok(self.open.remove(&announce_id)),
            false => Ok(None),
        }
    }

    fn first(&mut self, part: v1::AnnouncePart) -> Result<Option<Assembly>, String> {
        let v1::AnnouncePart { announce_id, label, rank, total_bytes, part, .. } = part;
        if total_bytes > ANNOUNCEMENT_BYTES_MAX {
            return Err(format!(
                "an announcement of {total_bytes} bytes; at most {ANNOUNCEMENT_BYTES_MAX} are allowed"
            ));
        }
        let bytes = part.len() as u64;
        if bytes > total_bytes {
            return Err(format!("{bytes} bytes arrived of announcement {announce_id}, which has {total_bytes}"));
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(format!("more than {OFFERS_MAX} announcements at a time"));
        }
        let label = label.parse().map_err(|error| format!("a checkpoint's name is refused: {error}"))?;
        let offer = Offer { announce_id, label, rank: Rank(rank), total_bytes };
        let is_first = self.offers.is_empty() && self.turn.is_none();
        let at_once = || self.budget.announce_at_once(memory_of(total_bytes));
        match (is_first && bytes == total_bytes).then(at_once).flatten() {
            Some(room) => {
                let mut whole = Assembly::of(offer, room);
                whole.bytes.extend_from_slice(&part);
                Ok(Some(whole))
            }
            None => {
                self.offers.push_back(offer);
                Ok(None)
            }
        }
    }

    /// Forgets an announcement that the agent has dropped.
    pub fn forget(&mut self, announce_id: u64) {
        self.open.remove(&announce_id);
        self.offers.retain(|offer| offer.announce_id != announce_id);
        self.turn.take_if(|turn| turn.offer.announce_id == announce_id);
    }

    /// Waits until there is memory for the next announcement, or until that announcement has waited too long. Waits
    /// for ever if no announcement waits. The caller may drop the future at any time.
    pub async fn turn(&mut self) -> Turned {
        if self.turn.is_none()
            && self.open.len() < ASSEMBLIES_MAX
            && let Some(offer) = self.offers.pop_front()
        {
            let (budget, bytes) = (Arc::clone(&self.budget), memory_of(offer.total_bytes));
            let room = Box::pin(async move { budget.announce(bytes).await });
            self.turn = Some(Turn { offer, until: Instant::now() + self.turn_max, room });
        }
        let room = match &mut self.turn {
            Some(turn) => tokio::time::timeout_at(turn.until, &mut turn.room).await,
            None => std::future::pending().await,
        };
        let Some(Turn { offer, .. }) = self.turn.take() else { return std::future::pending().await };
        match room {
            Ok(Some(room)) => {
                let announce_id = offer.announce_id;
                self.open.insert(announce_id, Assembly::of(offer, room));
                Turned::Send(v1::Room { announce_id })
            }
            Ok(None) => Turned::GivenBack(self.given_back(offer, true)),
            Err(_) => Turned::GivenBack(self.given_back(offer, false)),
        }
    }

    fn given_back(&self, offer: Offer, never_fits: bool) -> v1::Abandoned {
        let Offer { announce_id, label, rank, total_bytes } = offer;
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let (needed, held, most) =
            (memory_of(total_bytes), self.budget.announced_bytes(), self.budget.announcement_max());
        let wanted = if never_fits { needed } else { needed + held };
        // The share of long announcements is 7/16 of the budget.
        let wanted_mib = (wanted.saturating_mul(16) / 7).div_ceil(1 << 20);
        let budget_mib = self.budget.total_bytes() >> 20;
        let wait_s = self.turn_max.as_secs();
        let why = match never_fits {
            true => format!("which never fits: all announcements together may take {}", mib(most)),
            false => format!("and there was no room within {wait_s} s: others take {} of {}", mib(held), mib(most)),
        };
        let reason = format!(
            "the announcement of rank {} takes {}, {why}, 7/16 of budget-mib = {budget_mib}; the agent must \
             announce the files whole, which compresses less; raise the aggregator's budget-mib to \
             {wanted_mib} or more",
            rank.0,
            mib(needed),
        );
        v1::Abandoned { label: label.to_string(), rank: rank.0, reason, retry: true, announce_id, whole: true }
    }

    /// The reason to end the session at the time `now`, if the agent does not send the parts that the aggregator
    /// asked for.
    pub fn stalled(&self, now: Instant) -> Option<String> {
        let is_late = |a: &&Assembly| now.duration_since(a.heard) > Duration::from_secs(SILENCE_SECONDS);
        self.open.values().find(is_late).map(|late| {
            let (have, all) = (late.bytes.len(), late.total_bytes);
            format!(
                "{have} of {all} bytes of the announcement of rank {}, and nothing more for {SILENCE_SECONDS} s",
                late.rank.0
            )
        })
    }

    /// Whether the aggregator has asked the agent for parts that are still missing.
    pub fn awaits_parts(&self) -> bool {
        !self.open.is_empty()
    }
}

impl Assembly {
    fn of(offer: Offer, room: Lease) -> Self {
        let Offer { announce_id, label, rank, total_bytes } = offer;
        // The lease covers more bytes than the capacity of this buffer.
        let bytes = BytesMut::with_capacity(usize::try_from(total_bytes).unwrap_or(0));
        Self { announce_id, label, rank, total_bytes, bytes, room, heard: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn part(announce_id: u64, offset: u64, total_bytes: u64, part: &'static [u8]) -> v1::AnnouncePart {
        let (label, part) = ("it_1".into(), Bytes::from_static(part));
        v1::AnnouncePart { announce_id, label, rank: 0, total_bytes, offset, part, clock_ns: 0 }
    }

    fn arriving() -> Arriving {
        Arriving::new(Budget::new(1 << 20))
    }

    #[tokio::test]
    async fn parts_that_were_asked_for_make_an_announcement_and_give_back_its_room() {
        let mut arriving = arriving();
        assert!(arriving.part(part(1, 0, 5, b"")).expect("an offer").is_none());
        assert!(matches!(arriving.turn().await, Turned::Send(v1::Room { announce_id: 1 })));
        assert!(arriving.part(part(1, 0, 5, b"abc")).expect("first").is_none());
        let whole = arriving.part(part(1, 3, 5, b"de")).expect("second").expect("whole");
        assert_eq!(&whole.bytes[..], b"abcde");
        assert!(arriving.is_empty());
        assert_eq!(arriving.budget.announced_bytes(), 20);
        drop(whole);
        assert_eq!(arriving.budget.announced_bytes(), 0);
    }

    #[tokio::test]
    async fn parts_that_lie_about_their_length_or_place_are_refused() {
        assert!(arriving().part(part(1, 3, 5, b"de")).is_err(), "the first part is missing");
        assert!(arriving().part(part(1, 0, ANNOUNCEMENT_BYTES_MAX + 1, b"")).is_err(), "too long");
        assert!(arriving().part(part(1, 0, 2, b"abc")).is_err(), "longer than the stated length");
        let mut arriving = arriving();
        assert!(arriving.part(part(1, 0, 5, b"abc")).is_ok());
        assert!(arriving.part(part(1, 3, 5, b"de")).is_err(), "the aggregator has not asked for the part yet");
        assert!(matches!(arriving.turn().await, Turned::Send(_)));
        assert!(arriving.part(part(1, 0, 5, b"abc")).is_ok());
        assert!(arriving.part(part(1, 4, 5, b"e")).is_err(), "bytes are missing before the part");
    }

    #[tokio::test]
    async fn one_without_room_in_time_or_at_all_is_given_back_with_the_budget_that_it_needs() {
        let budget = Budget::new(16 << 20);
        let held = budget.announce(6 << 20).await.expect("fits");
        let mut arriving = Arriving { turn_max: Duration::from_millis(10), ..Arriving::new(Arc::clone(&budget)) };
        for (id, mib) in [(1, 40), (2, 1), (3, 1)] {
            assert!(arriving.part(part(id, 0, mib << 20, b"")).expect("an offer").is_none());
        }
        let Turned::GivenBack(never) = arriving.turn().await else { panic!("40 MiB never fit") };
        assert!(never.whole && never.retry && never.reason.contains("budget-mib to 366"), "{}", never.reason);
        let Turned::GivenBack(late) = arriving.turn().await else { panic!("4 MiB do not fit in addition to 6 MiB") };
        assert!(late.whole && late.reason.contains("others take 6.0 MiB of 7.0 MiB"), "{}", late.reason);
        drop(held);
        assert!(matches!(arriving.turn().await, Turned::Send(v1::Room { announce_id: 3 })));
        assert_eq!(arriving.stalled(Instant::now()), None);
        let later = Instant::now() + Duration::from_secs(SILENCE_SECONDS + 1);
        assert!(arriving.stalled(later).is_some_and(|why| why.contains("0 of 1048576 bytes")));
        arriving.forget(3);
        assert!(arriving.is_empty() && budget.leased_bytes() == 0);
    }

    #[tokio::test]
    async fn a_short_one_waits_behind_those_that_came_before() {
        let mut arriving = arriving();
        assert!(arriving.part(part(1, 0, 4, b"")).expect("an offer").is_none());
        assert!(arriving.part(part(2, 0, 4, b"abcd")).expect("whole, but later").is_none());
        assert!(matches!(arriving.turn().await, Turned::Send(v1::Room { announce_id: 1 })));
        assert!(matches!(arriving.turn().await, Turned::Send(v1::Room { announce_id: 2 })));
        assert!(arriving.part(part(2, 0, 4, b"abcd")).expect("again").is_some());
    }
}
