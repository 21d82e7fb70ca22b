//! Tests an aggregator over real gRPC with agents that are slow, lost, faulty or hostile, and with stores that fail.

use mcr_anc::Aggregator;
use mcr_anc::config::{AncConfig, AncOptions};
use mcr_proto::convert::file_to_wire;
use mcr_proto::v1;
use mcr_proto::v1::aggregator_client::AggregatorClient;
use mcr_proto::v1::from_agent::Message as Say;
use mcr_proto::v1::to_agent::Message as Hear;
use mcr_proto::version::WIRE_VERSIONS;
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, GroupId, JobId, Rank};
use mcrengine::manifest::{self, Manifest};
use mcrengine::store::{Entry, MemoryStore, Store, StoreError, StoredFile, TempFile};
use mcrengine::units::RawBytes;
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Maximum time that a test waits for an event that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

const WELL: u8 = 0;
const FULL: u8 = 1;
const PANICKING: u8 = 2;

/// A store in memory that can be set to fail.
#[derive(Clone, Default)]
struct Switched {
    inner: MemoryStore,
    state: Arc<AtomicU8>,
}

struct SwitchedTemp(Box<dyn TempFile>, Arc<AtomicU8>);

impl Switched {
    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }
}

fn check(state: &AtomicU8, path: &Path) -> Result<(), StoreError> {
    match state.load(Ordering::SeqCst) {
        FULL => {
            Err(StoreError::Io { path: path.into(), what: "writing", source: std::io::ErrorKind::StorageFull.into() })
        }
        PANICKING => panic!("a mistake in the store"),
        _ => Ok(()),
    }
}

impl Store for Switched {
    fn root(&self) -> &Path {
        self.inner.root()
    }
    fn create_dir(&self, dir: &Path) -> Result<bool, StoreError> {
        self.inner.create_dir(dir)
    }
    fn create_temp(&self, dir: &Path, name: &str) -> Result<Box<dyn TempFile>, StoreError> {
        let temp = self.inner.create_temp(dir, name)?;
        Ok(Box::new(SwitchedTemp(temp, Arc::clone(&self.state))))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.inner.rename(from, to)
    }
    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, StoreError> {
        self.inner.rename_new(from, to)
    }
    fn age(&self, path: &Path) -> Result<Duration, StoreError> {
        self.inner.age(path)
    }
    fn sync_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.inner.sync_dir(dir)
    }
    fn open(&self, path: &Path) -> Result<Box<dyn StoredFile>, StoreError> {
        self.inner.open(path)
    }
    fn list_dir(&self, dir: &Path) -> Result<Vec<Entry>, StoreError> {
        self.inner.list_dir(dir)
    }
    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        self.inner.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> Result<(), StoreError> {
        self.inner.remove_dir(dir)
    }
}

impl TempFile for SwitchedTemp {
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        check(&self.1, self.0.path())?;
        self.0.append(bytes)
    }
    fn sync(&mut self) -> Result<(), StoreError> {
        self.0.sync()
    }
}

fn config(group_size: u32) -> AncConfig {
    let options = AncOptions {
        store: "/memory".into(),
        listen: "127.0.0.1:0".into(),
        group_size,
        segment_mib: 1,
        budget_mib: 8,
        threads: 2,
        ..AncOptions::default()
    };
    let mut config = options.check().expect("valid");
    config.hub.times.retry_ms = 5;
    config
}

struct Site {
    aggregator: Aggregator,
    store: Switched,
}

impl Site {
    async fn start(config: AncConfig) -> Self {
        let store = Switched::default();
        let aggregator = Aggregator::start(config, Arc::new(store.clone())).await.expect("listens");
        Self { aggregator, store }
    }

    async fn connect(&self) -> AggregatorClient<tonic::transport::Channel> {
        let address = format!("http://{}", self.aggregator.address);
        AggregatorClient::connect(address).await.expect("it listens").max_encoding_message_size(64 << 20)
    }

    /// Makes a peer that has sent no message.
    async fn silent(&self) -> Peer {
        let (out, queue) = mpsc::channel(1024);
        let from = self.connect().await.session(ReceiverStream::new(queue)).await.expect("a session").into_inner();
        Peer { out, from, files: BTreeMap::new(), next: 1 }
    }

    /// Makes a peer that has sent `Hello` and received `Welcome`.
    async fn peer(&self, node: &str, ranks: u32, group_size: u32) -> Peer {
        let mut peer = self.silent().await;
        peer.say(Say::Hello(hello(node, ranks, group_size))).await;
        match peer.hear().await {
            Hear::Welcome(_) => peer,
            other => panic!("no welcome: {other:?}"),
        }
    }

    fn manifest(&self, id: &str, group: u32) -> Option<Manifest> {
        manifest::read_manifest(&self.store, &job(), &id.parse().expect("valid"), GroupId(group)).ok()
    }

    /// Waits until the status shows a checkpoint for which `is` returns true, and returns this checkpoint.
    async fn wait_status(&self, what: &str, is: impl Fn(&v1::CheckpointStatus) -> bool) -> v1::CheckpointStatus {
        let mut client = self.connect().await;
        let until = tokio::time::Instant::now() + DEADLINE;
        loop {
            let status = client.status(v1::StatusRequest {}).await.expect("status").into_inner();
            if let Some(found) = status.checkpoints.into_iter().find(&is) {
                return found;
            }
            assert!(tokio::time::Instant::now() < until, "{what}: the status did not change in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn job() -> JobId {
    "job".parse().expect("valid")
}

fn hello(node: &str, ranks: u32, group_size: u32) -> v1::Hello {
    let (job, software) = (job().to_string(), "test".into());
    v1::Hello {
        version: *WIRE_VERSIONS.start(),
        node: node.into(),
        job,
        ranks,
        group_size,
        software,
        ..Default::default()
    }
}

fn files_written(files: &[v1::FileHeader]) -> i64 {
    files.iter().map(|file| file.modified_ns).max().unwrap_or(0)
}

/// A simulated agent.
struct Peer {
    out: mpsc::Sender<v1::FromAgent>,
    from: Streaming<v1::ToAgent>,
    /// The bytes of the file in each announcement.
    files: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Peer {
    async fn say(&self, message: Say) {
        // An error is ignored, because the answer shows whether the aggregator still receives.
        let _ = self.out.send(v1::FromAgent { message: Some(message) }).await;
    }

    async fn hear(&mut self) -> Hear {
        self.hear_end().await.expect("the session has ended")
    }

    /// The next message. `None` at the end of the session.
    async fn hear_end(&mut self) -> Option<Hear> {
        loop {
            let next = tokio::time::timeout(DEADLINE, self.from.message()).await.expect("nothing came in time");
            match next.ok().flatten()?.message.expect("of a kind that is known") {
                Hear::Heartbeat(_) => {}
                message => return Some(message),
            }
        }
    }

    /// Announces one file of a rank. Returns the number of the announcement.
    async fn announce(&mut self, label: &str, rank: u32, bytes: &[u8], modified_ns: i64) -> u64 {
        self.announce_changed(label, rank, bytes, modified_ns, 0).await
    }

    /// Announces one file of a rank. The file changed at the time `changed_clock_ns` of the agent's clock. This clock
    /// is 0 at the start of the session.
    async fn announce_changed(
        &mut self,
        label: &str,
        rank: u32,
        bytes: &[u8],
        modified_ns: i64,
        changed_clock_ns: i64,
    ) -> u64 {
        let announce_id = self.next;
        self.next += 1;
        let files = vec![file_to_wire(&file(rank, bytes, modified_ns))];
        let written_unix_ns = files_written(&files);
        let announcement = v1::Announcement { files, written_unix_ns, changed_clock_ns, ..Default::default() };
        let part = announcement.encode_to_vec();
        let (label, total_bytes) = (label.to_owned(), part.len() as u64);
        self.files.insert(announce_id, bytes.to_vec());
        let (part, clock_ns) = (part.into(), changed_clock_ns);
        let part = v1::AnnouncePart { announce_id, label, rank, total_bytes, offset: 0, part, clock_ns };
        self.say(Say::Announce(part)).await;
        announce_id
    }

    /// Encodes an announcement of one file of a rank.
    fn encoded(&self, rank: u32, bytes: &[u8]) -> Vec<u8> {
        let files = vec![file_to_wire(&file(rank, bytes, 1))];
        v1::Announcement { files, written_unix_ns: 1, ..Default::default() }.encode_to_vec()
    }

    async fn part(&self, label: &str, announce_id: u64, (offset, total_bytes): (usize, usize), part: &[u8]) {
        let (label, part) = (label.to_owned(), part.to_vec().into());
        let (offset, total_bytes) = (offset as u64, total_bytes as u64);
        let part = v1::AnnouncePart { announce_id, label, rank: 0, total_bytes, offset, part, clock_ns: 0 };
        self.say(Say::Announce(part)).await;
    }

    /// Answers fetches until another message arrives.
    async fn serve(&mut self) -> Hear {
        loop {
            match self.hear().await {
                Hear::Fetch(fetch) => self.answer(&fetch).await,
                other => return other,
            }
        }
    }

    async fn answer(&self, fetch: &v1::Fetch) {
        let bytes = &self.files[&fetch.announce_id];
        let joined: Vec<u8> = (fetch.ranges.iter())
            .flat_map(|range| bytes[range.offset as usize..(range.offset + range.bytes) as usize].iter().copied())
            .collect();
        self.say(Say::Data(v1::Data { fetch_id: fetch.fetch_id, offset: 0, bytes: joined.into() })).await;
    }

    async fn committed(&mut self) -> v1::Committed {
        match self.serve().await {
            Hear::Committed(committed) => committed,
            other => panic!("not committed: {other:?}"),
        }
    }

    async fn abandoned(&mut self) -> v1::Abandoned {
        match self.serve().await {
            Hear::Abandoned(abandoned) => abandoned,
            other => panic!("not abandoned: {other:?}"),
        }
    }

    async fn goodbye(&mut self) -> v1::Goodbye {
        match self.hear().await {
            Hear::Goodbye(goodbye) => goodbye,
            other => panic!("no goodbye: {other:?}"),
        }
    }
}

/// A file with one variable that contains all bytes of the file.
fn file(rank: u32, bytes: &[u8], modified_ns: i64) -> FileHeader {
    let (digest, len) = (Digest::of(bytes), bytes.len() as u64);
    FileHeader {
        path: FilePath::new(format!("rank{rank}").into_bytes()).expect("valid"),
        rank: Rank(rank),
        bytes: len,
        kind: Default::default(),
        mode: 0o644,
        modified_ns,
        digest,
        variables: vec![VariableHeader {
            role: Role::WholeFile,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([len].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(len),
            digest,
            filters: [].into(),
            extents: [Extent { offset: 0, stored_bytes: len, raw_bytes: len }].into(),
        }],
    }
}

/// The bytes that a rank saved at a step.
fn saved(rank: u32, step: u8) -> Vec<u8> {
    (0..3000u32).map(|i| (i * (rank + 3)) as u8 ^ step).collect()
}

/// Makes a site with one peer that has the only rank.
async fn alone(config: AncConfig) -> (Site, Peer) {
    let site = Site::start(config).await;
    let peer = site.peer("n", 1, 1).await;
    (site, peer)
}

/// Returns the reason that the status shows for a checkpoint while the store fails and the checkpoint waits. When the
/// store works again, the checkpoint is committed.
async fn waiting_for_the_store(state: u8, retry_ms: u64) -> (Site, String) {
    let mut config = config(1);
    config.hub.times.retry_ms = retry_ms;
    let (site, mut peer) = alone(config).await;
    site.store.set(state);
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    let (waiting, ()) = tokio::join!(
        async {
            let waiting = site.wait_status("waiting", |c| c.phase == "waiting").await;
            site.store.set(WELL);
            waiting
        },
        async { assert_eq!(peer.committed().await.checkpoint, "it_1") }
    );
    (site, waiting.reason)
}

const SECOND_NS: i64 = 1_000_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_a_newer_release_is_served_in_a_version_that_both_speak_or_is_told_which_ones_each_speaks() {
    let site = Site::start(config(2)).await;
    let greeted = async |version, newest_version| {
        let mut peer = site.silent().await;
        peer.say(Say::Hello(v1::Hello { version, newest_version, ..hello("n", 2, 2) })).await;
        peer.hear().await
    };
    // Three agents: an old agent without a range of versions, an agent of this release, and a newer agent.
    for newest in [0, 1, 3] {
        let heard = greeted(1, newest).await;
        assert!(matches!(&heard, Hear::Welcome(welcome) if welcome.version == 1), "{heard:?}");
    }
    let Hear::Goodbye(goodbye) = greeted(2, 3).await else { panic!("no goodbye") };
    let expected = ["the caller speaks versions 2 to 3", "version 1: install the newer release everywhere"];
    assert!(!goodbye.retry && expected.iter().all(|part| goodbye.reason.contains(part)), "{goodbye:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_break_the_protocol_are_told_and_the_others_are_served() {
    let site = Site::start(config(2)).await;
    let mut good = site.peer("good", 2, 2).await;
    good.announce("it_1", 0, &saved(0, 1), 0).await;

    let mut early = site.silent().await;
    early.say(Say::Heartbeat(v1::Heartbeat::default())).await;
    assert!(early.goodbye().await.reason.contains("must be Hello"));

    let mut other = site.silent().await;
    other.say(Say::Hello(hello("n", 2, 7))).await;
    assert!(other.goodbye().await.reason.contains("group-size is 7"));

    let part = |total_bytes, offset, part: &'static [u8]| {
        let (announce_id, label, rank) = (9, "it_1".into(), 1);
        let part = part.into();
        Say::Announce(v1::AnnouncePart { announce_id, label, rank, total_bytes, offset, part, clock_ns: 0 })
    };
    let broken = [
        ("a second Hello", Say::Hello(hello("n", 2, 2))),
        ("at most", part(1 << 40, 0, b"x")),
        ("first part is missing", part(9, 4, b"x")),
        ("which has 2", part(2, 0, b"xyz")),
        ("does not parse", part(7, 0, b"garbage")),
        ("without files", part(0, 0, b"")),
        ("name is refused", Say::Withdraw(v1::Withdraw { label: "../x".into(), rank: 0, reason: String::new() })),
    ];
    for (reason, message) in broken {
        let mut peer = site.peer("bad", 2, 2).await;
        peer.say(message).await;
        let goodbye = peer.goodbye().await;
        assert!(goodbye.reason.contains(reason) && !goodbye.retry, "{goodbye:?}, not {reason}");
        assert!(peer.hear_end().await.is_none(), "the stream ends after the goodbye");
    }

    // This peer sends answers without a request, half an announcement, an announcement of a rank that the job does
    // not have, and a message that is too long.
    let mut odd = site.peer("odd", 2, 2).await;
    odd.say(Say::Data(v1::Data { fetch_id: 77, offset: 5, bytes: vec![1].into() })).await;
    odd.say(Say::FetchFailed(v1::FetchFailed { fetch_id: 78, reason: "?".into(), changed: true })).await;
    odd.say(part(100, 0, b"half")).await;
    assert!(
        matches!(odd.hear().await, Hear::Room(v1::Room { announce_id: 9 })),
        "all parts of the announcement are asked for"
    );
    odd.announce("it_9", 5, &saved(5, 1), 0).await;
    assert!(odd.abandoned().await.reason.contains("NOT SAVED: ranks = 2"));
    odd.say(Say::Withdraw(v1::Withdraw { label: "x".repeat(3 << 20), rank: 0, reason: String::new() })).await;
    while odd.hear_end().await.is_some() {}

    let mut second = site.peer("second", 2, 2).await;
    second.announce("it_1", 1, &saved(1, 1), 0).await;
    let (a, b) = tokio::join!(good.committed(), second.committed());
    assert_eq!((a.checkpoint.as_str(), b.checkpoint.as_str()), ("it_1", "it_1"));
    assert!(a.all_groups);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_aggregator_waits_for_announcements_that_an_agent_offered_before_it_had_looked() {
    let (site, mut peer) = alone(config(1)).await;
    let whole = peer.encoded(0, &saved(0, 1));
    peer.part("it_1", 1, (0, whole.len()), b"").await;
    let Hear::Room(room) = peer.hear().await else { panic!("the aggregator did not ask for the parts") };
    let Site { aggregator, store } = site;
    let drained = tokio::spawn(aggregator.drain(std::time::Instant::now() + DEADLINE));
    assert!(matches!(peer.hear().await, Hear::Look(_)));
    peer.say(Say::Looked(v1::Looked { leaving: true })).await;
    // Messages are read in order, so the answer to the heartbeat shows that the aggregator has read `Looked` too.
    peer.say(Say::Heartbeat(v1::Heartbeat::default())).await;
    let answer = peer.from.message().await.ok().flatten().and_then(|answer| answer.message);
    assert!(matches!(answer, Some(Hear::Heartbeat(_))), "{answer:?}");
    let (first, second) = whole.split_at(whole.len() / 2);
    peer.part("it_1", room.announce_id, (0, whole.len()), first).await;
    peer.part("it_1", room.announce_id, (first.len(), whole.len()), second).await;
    peer.files.insert(room.announce_id, saved(0, 1));
    assert_eq!(peer.committed().await.checkpoint, "it_1");
    assert!(drained.await.expect("no panic").uncommitted.is_empty());
    assert!(manifest::read_manifest(&store, &job(), &"it_1".parse().expect("valid"), GroupId(0)).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_is_answered_so_that_a_session_at_rest_lasts() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    peer.say(Say::Heartbeat(v1::Heartbeat::default())).await;
    let answer = tokio::time::timeout(DEADLINE, peer.from.message()).await.expect("nothing came in time");
    let answer = answer.ok().flatten().and_then(|answer| answer.message);
    assert!(matches!(answer, Some(Hear::Heartbeat(_))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_silent_sessions_do_not_keep_others_from_being_served() {
    let site = Site::start(config(1)).await;
    let mut client = site.connect().await;
    let mut held = Vec::new();
    for _ in 0..60 {
        let (out, queue) = mpsc::channel(1);
        held.push((out, client.session(ReceiverStream::new(queue)).await.expect("a session")));
    }
    let mut peers = Vec::new();
    for _ in 0..200 {
        peers.push(site.silent().await);
    }
    let mut good = site.peer("good", 1, 1).await;
    good.announce("it_1", 0, &saved(0, 1), 0).await;
    assert!(good.committed().await.all_groups);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_does_not_answer_loses_its_session_and_is_served_in_the_next() {
    let mut config = config(1);
    config.hub.fetch_deadline = Duration::from_millis(500);
    let site = Site::start(config).await;
    let mut slow = site.peer("slow", 1, 1).await;
    slow.announce("it_1", 0, &saved(0, 1), 0).await;
    assert!(matches!(slow.hear().await, Hear::Fetch(_)));
    let goodbye = loop {
        match slow.hear().await {
            Hear::Goodbye(goodbye) => break goodbye,
            Hear::Fetch(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(goodbye.retry && goodbye.reason.contains("did not answer"), "{goodbye:?}");
    let mut again = site.peer("slow", 1, 1).await;
    again.announce("it_1", 0, &saved(0, 1), 0).await;
    assert_eq!(again.committed().await.checkpoint, "it_1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_out_of_place_ends_the_session_and_costs_no_checkpoint() {
    let (site, mut peer) = alone(config(1)).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    let Hear::Fetch(fetch) = peer.hear().await else { panic!("no fetch") };
    let misplaced = v1::Data { fetch_id: fetch.fetch_id, offset: 7, bytes: vec![1, 2].into() };
    peer.say(Say::Data(misplaced)).await;
    let goodbye = peer.goodbye().await;
    assert!(!goodbye.retry && goodbye.reason.contains("broke the protocol: data of fetch"), "{goodbye:?}");
    let mut again = site.peer("n", 1, 1).await;
    again.announce("it_1", 0, &saved(0, 1), 0).await;
    assert_eq!(again.committed().await.checkpoint, "it_1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_a_living_agent_cannot_answer_is_tried_again_and_given_up_openly() {
    let (_site, mut peer) = alone(config(1)).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    let refuse = |fetch: v1::Fetch| {
        Say::FetchFailed(v1::FetchFailed { fetch_id: fetch.fetch_id, reason: "bad sector".into(), changed: false })
    };
    let Hear::Fetch(fetch) = peer.hear().await else { panic!("no fetch") };
    peer.say(refuse(fetch)).await;
    assert_eq!(peer.committed().await.checkpoint, "it_1", "the second fetch succeeds");

    peer.announce("it_2", 0, &saved(0, 2), 0).await;
    let mut asked = 0;
    let abandoned = loop {
        match peer.hear().await {
            Hear::Fetch(fetch) => peer.say(refuse(fetch)).await,
            Hear::Abandoned(abandoned) => break abandoned,
            other => panic!("{other:?}"),
        }
        asked += 1;
    };
    assert_eq!(asked, 5);
    assert!(abandoned.retry && abandoned.reason.contains("bad sector"), "{abandoned:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_not_those_announced_are_not_committed_and_their_agent_is_told() {
    let (site, mut peer) = alone(config(1)).await;
    let id = peer.announce("it_1", 0, &saved(0, 1), 0).await;
    peer.files.insert(id, saved(0, 9));
    let abandoned = peer.abandoned().await;
    assert!(abandoned.retry && abandoned.announce_id == id, "{abandoned:?}");
    assert!(site.manifest("it_1", 0).is_none());
    peer.announce("it_1", 0, &saved(0, 9), 0).await;
    assert_eq!(peer.committed().await.checkpoint, "it_1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_is_named_and_tried_again_until_there_is_room() {
    let (site, reason) = waiting_for_the_store(FULL, 100).await;
    assert!(reason.contains("no storage space"), "{reason}");
    assert!(site.manifest("it_1", 0).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_stays_full_gives_the_checkpoint_back_after_five_times() {
    let (site, mut peer) = alone(config(1)).await;
    site.store.set(FULL);
    let id = peer.announce("it_1", 0, &saved(0, 1), 0).await;
    let abandoned = peer.abandoned().await;
    assert!(abandoned.retry && abandoned.announce_id == id, "{abandoned:?}");
    assert!(abandoned.reason.contains("5 times") && abandoned.reason.contains("no storage space"), "{abandoned:?}");
    site.store.set(WELL);
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    assert_eq!(peer.committed().await.checkpoint, "it_1", "the checkpoint gets the first name, which is still free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_that_panics_is_a_flush_that_failed() {
    let (_, reason) = waiting_for_the_store(PANICKING, 50).await;
    assert!(reason.contains("a mistake in the store"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agents_of_every_group_hear_that_a_checkpoint_exists() {
    let site = Site::start(config(1)).await;
    let mut first = site.peer("first", 2, 1).await;
    let id = first.announce("it_1", 0, &saved(0, 1), 0).await;
    assert!(!first.committed().await.all_groups);
    let mut second = site.peer("second", 2, 1).await;
    second.announce("it_1", 1, &saved(1, 1), 0).await;
    assert!(second.committed().await.all_groups);
    let told = first.committed().await;
    assert!(told.all_groups && told.announce_id == id, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_hundreds_of_ranks_hears_of_every_one() {
    const RANKS: u32 = 300;
    let site = Site::start(config(RANKS)).await;
    let mut peer = site.peer("n", RANKS, RANKS).await;
    for rank in 0..RANKS {
        peer.announce("it_1", rank, &saved(rank, 1), 0).await;
    }
    let mut told = std::collections::BTreeSet::new();
    while told.len() < RANKS as usize {
        told.insert(peer.committed().await.rank);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_agents_with_one_rank_the_last_counts_and_the_first_is_told() {
    let site = Site::start(config(2)).await;
    let (mut first, mut last) = (site.peer("first", 2, 2).await, site.peer("last", 2, 2).await);
    let id = first.announce("it_1", 0, &saved(0, 1), 0).await;
    site.wait_status("announced", |c| c.missing == [1]).await;
    last.announce("it_1", 0, &saved(0, 1), 0).await;
    let abandoned = first.abandoned().await;
    assert!(abandoned.announce_id == id && abandoned.reason.contains("node last"), "{abandoned:?}");
    last.announce("it_1", 1, &saved(1, 1), 0).await;
    assert_eq!(last.committed().await.checkpoint, "it_1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_many_ranks_there_are_may_come_from_the_newest_checkpoint() {
    let site = Site::start(config(2)).await;
    let mut unsure = site.peer("unsure", 0, 2).await;
    unsure.announce("it_1", 0, &saved(0, 1), 0).await;
    assert!(unsure.abandoned().await.reason.contains("number of ranks is unknown"));
    let mut sure = site.peer("sure", 1, 2).await;
    sure.announce("it_1", 0, &saved(0, 1), 0).await;
    assert_eq!(sure.committed().await.checkpoint, "it_1");
    unsure.announce("it_2", 0, &saved(0, 2), 0).await;
    assert_eq!(unsure.committed().await.checkpoint, "it_2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_content_that_replaced_another_is_never_committed_with_that_one() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    peer.announce("restart.h5", 0, &saved(0, 1), 1000 * SECOND_NS).await;
    // Rank 0 has already written the next step when the announcement of rank 1 for this step arrives.
    peer.announce("restart.h5", 0, &saved(0, 2), 1060 * SECOND_NS).await;
    let late = peer.announce("restart.h5", 1, &saved(1, 1), 1001 * SECOND_NS).await;
    assert_eq!(peer.abandoned().await.announce_id, late);
    peer.announce("restart.h5", 1, &saved(1, 2), 1061 * SECOND_NS).await;
    assert_eq!(peer.committed().await.checkpoint, "restart.h5");
    let committed = site.manifest("restart.h5", 0).expect("committed");
    let digests: Vec<Digest> = committed.files.iter().map(|f| f.digest).collect();
    assert_eq!(digests, [Digest::of(&saved(0, 2)), Digest::of(&saved(1, 2))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_missed_a_step_does_not_complete_the_others_older_one() {
    let site = Site::start(config(1)).await;
    let (mut zero, mut one) = (site.peer("zero", 2, 1).await, site.peer("one", 2, 1).await);
    for step in 1..=3u8 {
        one.announce("restart.h5", 1, &saved(1, step), i64::from(step) * 60 * SECOND_NS).await;
        assert!(!one.committed().await.all_groups);
    }
    zero.announce("restart.h5", 0, &saved(0, 3), 181 * SECOND_NS).await;
    let committed = zero.committed().await;
    assert_eq!((committed.checkpoint.as_str(), committed.all_groups), ("restart.h5~3", true));
    zero.announce("restart.h5", 0, &saved(0, 4), 241 * SECOND_NS).await;
    let committed = zero.committed().await;
    assert_eq!((committed.checkpoint.as_str(), committed.all_groups), ("restart.h5~4", false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_each_missed_other_steps_never_share_a_checkpoint() {
    let site = Site::start(config(1)).await;
    let (mut zero, mut one) = (site.peer("zero", 2, 1).await, site.peer("one", 2, 1).await);
    let at_ns = |step: u8| i64::from(step) * 3 * SECOND_NS;
    for step in 1..=3u8 {
        one.announce("restart.h5", 1, &saved(1, step), at_ns(step)).await;
        assert!(!one.committed().await.all_groups);
        zero.announce("restart.h5", 0, &saved(0, step), at_ns(step)).await;
        assert!(zero.committed().await.all_groups && one.committed().await.all_groups);
    }
    // Group 0 misses the steps 4 to 8, and group 1 misses step 9.
    for step in 4..=8u8 {
        one.announce("restart.h5", 1, &saved(1, step), at_ns(step)).await;
        assert!(!one.committed().await.all_groups);
    }
    zero.announce("restart.h5", 0, &saved(0, 9), at_ns(9)).await;
    assert_eq!(zero.committed().await.checkpoint, "restart.h5~9");
    one.announce("restart.h5", 1, &saved(1, 10), at_ns(10)).await;
    let committed = one.committed().await;
    assert_eq!((committed.checkpoint.as_str(), committed.all_groups), ("restart.h5~10", false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_was_written_later_is_newer_although_the_clock_of_its_files_went_back() {
    let site = Site::start(config(1)).await;
    let (connected, mut peer) = (std::time::Instant::now(), site.peer("n", 1, 1).await);
    let mut written_ms = Vec::new();
    for (step, at_s) in [(1u8, 5000), (2, 1400), (3, 1401)] {
        let id = format!("it_{step}");
        tokio::time::sleep(Duration::from_millis(700)).await;
        let clock_ns = connected.elapsed().as_nanos() as i64;
        peer.announce_changed(&id, 0, &saved(0, step), at_s * SECOND_NS, clock_ns).await;
        assert_eq!(peer.committed().await.checkpoint, id);
        written_ms.push(site.manifest(&id, 0).expect("committed").written_unix_ms);
    }
    assert!(written_ms.is_sorted() && written_ms[0] == 5_000_000 && written_ms[2] < 5_010_000, "{written_ms:?}");
    // A checkpoint that was written earlier does not count as newer if it is committed later.
    peer.announce_changed("it_0", 0, &saved(0, 0), 1300 * SECOND_NS, 1).await;
    assert_eq!(peer.committed().await.checkpoint, "it_0");
    assert_eq!(site.manifest("it_0", 0).expect("committed").written_unix_ms, 1_300_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_whose_bytes_stay_the_same_is_part_of_the_next_content_too() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    for (step, id) in [(1u8, "restart.h5"), (2, "restart.h5~2")] {
        let at_ns = i64::from(step) * 60 * SECOND_NS;
        peer.announce("restart.h5", 1, &saved(1, 0), at_ns).await;
        peer.announce("restart.h5", 0, &saved(0, step), at_ns).await;
        assert_eq!((peer.committed().await.checkpoint, peer.committed().await.checkpoint), (id.into(), id.into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_ends_says_goodbye_and_the_next_one_knows_what_was_committed() {
    let (site, mut peer) = alone(config(1)).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    assert_eq!(peer.committed().await.checkpoint, "it_1");
    let store = site.store.clone();
    let drained = tokio::spawn(site.aggregator.drain(std::time::Instant::now() + DEADLINE));
    assert_eq!(peer.hear().await, Hear::Look(v1::Look {}), "the aggregator asks for all written files");
    peer.say(Say::Looked(v1::Looked { leaving: false })).await;
    let drained =
        tokio::time::timeout(DEADLINE / 2, drained).await.expect("the aggregator drains in time").expect("no panic");
    assert_eq!(drained, mcr_anc::Drained::default());
    assert!(peer.goodbye().await.retry);
    assert!(peer.hear_end().await.is_none());

    let aggregator = Aggregator::start(config(1), Arc::new(store.clone())).await.expect("listens");
    let site = Site { aggregator, store };
    let mut peer = site.peer("n", 1, 1).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    assert!(
        matches!(peer.hear().await, Hear::Committed(c) if c.checkpoint == "it_1" && c.all_groups),
        "nothing is fetched"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_that_take_nothing_do_not_keep_the_store_from_others() {
    let (site, mut peer) = alone(config(1)).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    peer.committed().await;
    let (version, job) = (*WIRE_VERSIONS.start(), job().to_string());
    let request = |checkpoint: &str| v1::RestoreRequest {
        version,
        job: job.clone(),
        checkpoint: checkpoint.into(),
        group: 0,
        ranks: vec![],
        newest_version: 0,
    };
    let mut client = site.connect().await;
    let mut untaken = Vec::new();
    for _ in 0..8 {
        untaken.push(client.restore(request("it_1")).await.expect("a stream"));
    }
    let mut frames = client.restore(request("it_1")).await.expect("a stream").into_inner();
    let mut ended = false;
    while let Some(frame) = tokio::time::timeout(DEADLINE, frames.message()).await.expect("in time").expect("a frame") {
        ended = matches!(frame.message, Some(v1::restore_frame::Message::End(_)));
    }
    assert!(ended);
    let mut missing = client.restore(request("it_9")).await.expect("a stream").into_inner();
    assert_eq!(missing.message().await.expect_err("the checkpoint does not exist").code(), tonic::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_is_told_to_end_goes_on_gathering_what_its_agents_still_announce() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    let store = site.store.clone();
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    let drained = tokio::spawn(site.aggregator.drain(std::time::Instant::now() + DEADLINE));
    assert_eq!(peer.hear().await, Hear::Look(v1::Look {}));
    peer.announce("it_1", 1, &saved(1, 1), 0).await;
    peer.say(Say::Looked(v1::Looked { leaving: true })).await;
    assert_eq!(peer.committed().await.checkpoint, "it_1");
    assert_eq!(drained.await.expect("no panic"), mcr_anc::Drained::default());
    assert!(mcrengine::manifest::state(&store, &job(), &"it_1".parse().expect("valid")).expect("read").is_complete());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_leave_are_told_at_once_of_a_rank_that_nobody_has_and_how_to_change_the_number_of_ranks() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    peer.say(Say::Looked(v1::Looked { leaving: true })).await;
    let told = peer.abandoned().await;
    assert!(!told.retry && told.reason.contains("did not announce"), "{told:?}");
    assert!(told.reason.contains("; ranks = 2; ") && told.reason.contains("--ranks 1"), "{told:?}");
    site.aggregator.drain(std::time::Instant::now() + DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_whose_agent_does_not_answer_ends_at_its_bound_and_names_what_it_waited_for() {
    let site = Site::start(config(2)).await;
    let mut peer = site.peer("n", 2, 2).await;
    peer.announce("it_1", 0, &saved(0, 1), 0).await;
    site.wait_status("announced", |status| status.missing == [1]).await;
    let (began, bound) = (std::time::Instant::now(), Duration::from_secs(2));
    let drained = site.aggregator.drain(began + bound).await;
    assert!(began.elapsed() <= bound + Duration::from_millis(500), "{:?}", began.elapsed());
    let named: Vec<_> = drained.uncommitted.iter().map(|left| (left.checkpoint.as_str(), &left.missing[..])).collect();
    assert_eq!(named, [("it_1", &[Rank(1)][..])]);
    assert_eq!(peer.hear().await, Hear::Look(v1::Look {}));
}
