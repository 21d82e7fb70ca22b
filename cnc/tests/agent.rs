//! Tests the agent with a simulated aggregator that answers late, twice, or not at all.

use mcr_cnc::agent::{Agent, DrainOrder, Processes};
use mcr_cnc::config::CncOptions;
use mcr_cnc::h5::{FileMap, H5Error, MapInput, MapSource, Maps};
use mcr_cnc::layout::Layout;
use mcr_proto::v1;
use mcr_proto::v1::aggregator_server::{Aggregator, AggregatorServer};
use mcr_proto::v1::from_agent::Message as Hear;
use mcr_proto::v1::to_agent::Message as Say;
use mcr_proto::version::WIRE_VERSIONS;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Maximum time that a test waits for an event that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// A drain order whose deadline is `DEADLINE` after now.
fn soon() -> DrainOrder {
    DrainOrder { until: tokio::time::Instant::now() + DEADLINE, processes: Processes::MayRun }
}

/// One session with the agent, from the aggregator's side.
struct Session {
    from: Streaming<v1::FromAgent>,
    out: mpsc::Sender<Result<v1::ToAgent, Status>>,
}

/// A server that passes every session to the test.
struct Desk(mpsc::Sender<Session>);

#[tonic::async_trait]
impl Aggregator for Desk {
    type SessionStream = ReceiverStream<Result<v1::ToAgent, Status>>;
    type RestoreStream = ReceiverStream<Result<v1::RestoreFrame, Status>>;

    async fn session(&self, from: Request<Streaming<v1::FromAgent>>) -> Result<Response<Self::SessionStream>, Status> {
        let (out, stream) = mpsc::channel(64);
        let _ = self.0.send(Session { from: from.into_inner(), out }).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
    async fn restore(&self, _: Request<v1::RestoreRequest>) -> Result<Response<Self::RestoreStream>, Status> {
        Err(Status::unimplemented("this test has no restore or status"))
    }
    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        Err(Status::unimplemented("this test has no restore or status"))
    }
}

impl Session {
    async fn say(&self, message: Say) {
        self.out.send(Ok(v1::ToAgent { message: Some(message) })).await.expect("the agent listens");
    }

    async fn next(&mut self) -> Hear {
        let next = tokio::time::timeout(DEADLINE, self.from.message()).await.expect("no message within the deadline");
        next.expect("no error").expect("no end").message.expect("a message of a known kind")
    }

    /// The next message that is not a heartbeat.
    async fn hear(&mut self) -> Hear {
        loop {
            match self.next().await {
                Hear::Heartbeat(_) => {}
                message => return message,
            }
        }
    }

    async fn goodbye(&mut self) {
        assert!(matches!(self.hear().await, Hear::Hello(_)));
        self.say(Say::Goodbye(v1::Goodbye { reason: "this agent is refused".into(), retry: false })).await;
    }

    async fn welcome(&mut self) {
        assert!(matches!(self.hear().await, Hear::Hello(_)));
        let software = "test".into();
        self.say(Say::Welcome(v1::Welcome {
            version: *WIRE_VERSIONS.start(),
            take_apart: true,
            software,
            leave_filters: false,
            ..Default::default()
        }))
        .await;
    }

    /// The next announcement. Skips other messages.
    async fn announced(&mut self) -> v1::AnnouncePart {
        loop {
            if let Hear::Announce(part) = self.hear().await {
                return part;
            }
        }
    }

    async fn commit(&self, part: &v1::AnnouncePart, checkpoint: &str, all_groups: bool) {
        let (label, rank, announce_id) = (part.label.clone(), part.rank, part.announce_id);
        let checkpoint = checkpoint.into();
        self.say(Say::Committed(v1::Committed { label, rank, checkpoint, all_groups, announce_id })).await;
    }
}

struct Site {
    dir: tempfile::TempDir,
    agent: Agent,
    sessions: mpsc::Receiver<Session>,
}

impl Site {
    async fn start() -> Self {
        Self::start_with(1, Arc::new(Maps::new())).await
    }

    async fn start_with(capture_threads: u32, maps: Arc<dyn MapSource>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (desk, sessions) = mpsc::channel(4);
        let server = tonic::transport::Server::builder().add_service(AggregatorServer::new(Desk(desk)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let watch = dir.path().join("run");
        std::fs::create_dir(&watch).expect("made");
        let options = CncOptions {
            job: Some("job".into()),
            watch: Some(watch),
            ranks: Some(2),
            aggregators: vec![address.to_string()],
            node: Some("n".into()),
            quiet_ms: 20,
            scan_quiet_ms: 60,
            checkpoint_quiet_ms: 50,
            state_file: Some(dir.path().join("state")),
            delete_after_commit: true,
            reconnect_min_ms: 20,
            reconnect_max_seconds: 1,
            capture_threads,
            ..CncOptions::default()
        };
        let config = options.check().expect("valid");
        let layout = Layout::from_patterns(&["{checkpoint}.rank_{rank}"], 0).expect("valid");
        let agent = Agent::start_with(config, layout, maps, None).expect("starts");
        Self { dir, agent, sessions }
    }

    /// The next session, before its first message.
    async fn dialled(&mut self) -> Session {
        let next = tokio::time::timeout(DEADLINE, self.sessions.recv()).await;
        next.expect("no session in time").expect("the server runs")
    }

    async fn session(&mut self) -> Session {
        let mut session = self.dialled().await;
        session.welcome().await;
        session
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("run").join(name)
    }
}

async fn wait_gone(path: &Path) {
    let until = tokio::time::Instant::now() + DEADLINE;
    while path.exists() {
        assert!(tokio::time::Instant::now() < until, "{} still exists", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_what_was_overwritten_since_neither_forgets_nor_deletes_the_newer_file() {
    let mut site = Site::start().await;
    let file = site.file("restart.rank_0");
    std::fs::write(&file, b"step 1").expect("written");
    let mut session = site.session().await;
    let old = session.announced().await;
    std::fs::write(&file, b"the second step").expect("written");
    let new = session.announced().await;
    assert_ne!(old.announce_id, new.announce_id);
    session.commit(&old, "restart", true).await;
    // In a new session, unanswered announcements are sent again.
    drop(session);
    let mut session = site.session().await;
    assert_eq!(session.announced().await.announce_id, new.announce_id);
    assert_eq!(std::fs::read(&file).expect("still there"), b"the second step");
    session.commit(&new, "restart~2", true).await;
    wait_gone(&file).await;
    site.agent.drain(soon()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_deleted_once_their_own_checkpoint_exists_in_all_groups() {
    let mut site = Site::start().await;
    let (first, second) = (site.file("a.rank_0"), site.file("b.rank_0"));
    std::fs::write(&first, b"first").expect("written");
    let mut session = site.session().await;
    let a = session.announced().await;
    session.commit(&a, "a", false).await;
    std::fs::write(&second, b"second").expect("written");
    let b = session.announced().await;
    session.commit(&b, "b", true).await;
    wait_gone(&second).await;
    assert!(first.exists(), "a file stays until its checkpoint exists in all groups");
    session.commit(&a, "a", true).await;
    wait_gone(&first).await;
    site.agent.drain(soon()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_offers_its_versions_and_begins_no_session_in_another_version() {
    let mut site = Site::start().await;
    std::fs::write(site.file("a.rank_0"), b"bytes").expect("written");
    let mut session = site.dialled().await;
    let Hear::Hello(hello) = session.hear().await else { panic!("no hello") };
    assert_eq!(hello.version..=hello.newest_version, WIRE_VERSIONS);
    let version = WIRE_VERSIONS.end() + 1;
    session.say(Say::Welcome(v1::Welcome { version, take_apart: true, ..Default::default() })).await;
    // The agent connects again, and announces its file only after the aggregator has chosen a version that the agent
    // speaks.
    let part = site.session().await.announced().await;
    assert_eq!(part.rank, 0);
    site.agent.drain(soon()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_refused_keeps_dialling() {
    let mut site = Site::start().await;
    for _ in 0..2 {
        site.dialled().await.goodbye().await;
    }
    std::fs::write(site.file("a.rank_1"), b"bytes").expect("written");
    let mut session = site.session().await;
    let part = session.announced().await;
    assert_eq!(part.rank, 1, "an agent that is accepted at last saves its ranks");
    session.commit(&part, "a", true).await;
    wait_gone(&site.file("a.rank_1")).await;
    site.agent.drain(soon()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_refused_ends_without_waiting_for_an_answer() {
    let mut site = Site::start().await;
    std::fs::write(site.file("a.rank_0"), b"bytes").expect("written");
    let mut session = site.session().await;
    session.announced().await;
    drop(session);
    site.dialled().await.goodbye().await;
    let drained = site.agent.drain(soon()).await;
    let named: Vec<_> = drained.uncommitted.iter().map(|left| (left.checkpoint.as_str(), left.ranks.clone())).collect();
    assert_eq!(named, [("a", vec![mcrengine::ids::Rank(0)])]);
    assert!(!drained.time_was_up && !drained.failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_says_when_it_waits_for_nothing_so_that_it_can_be_silent() {
    let mut site = Site::start().await;
    let mut session = site.session().await;
    let at_rest = |message: Hear| matches!(message, Hear::Heartbeat(v1::Heartbeat { at_rest: true, .. }));
    assert!(at_rest(session.next().await), "an agent without announcements is at rest");
    std::fs::write(site.file("a.rank_0"), b"bytes").expect("written");
    let part = session.announced().await;
    session.commit(&part, "a", true).await;
    while !at_rest(session.next().await) {}
    site.agent.drain(soon()).await;
}

/// A source of maps that returns only when `wanted` captures are calling it at the same time.
struct Together {
    wanted: usize,
    inside: Mutex<HashSet<PathBuf>>,
    most: Mutex<usize>,
    enough: Condvar,
}

impl MapSource for Together {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(inside.insert(input.path.to_owned()), "{} is captured twice at the same time", input.path.display());
        let mut most = self.most.lock().expect("not poisoned");
        *most = inside.len().max(*most);
        let is_enough = *most >= self.wanted;
        drop(most);
        if is_enough {
            self.enough.notify_all();
        }
        let waits = |_: &mut HashSet<PathBuf>| *self.most.lock().expect("not poisoned") < self.wanted;
        let (mut inside, waited) = self.enough.wait_timeout_while(inside, DEADLINE, waits).expect("not poisoned");
        inside.remove(input.path);
        assert!(!waited.timed_out(), "no other capture began within the deadline");
        Err(H5Error::NotHdf5)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_ranks_are_captured_at_a_time_as_the_configuration_says() {
    let (inside, most) = Default::default();
    let maps = Arc::new(Together { wanted: 3, inside, most, enough: Condvar::new() });
    let mut site = Site::start_with(3, maps.clone()).await;
    let mut session = site.session().await;
    for step in 0..6 {
        for rank in 0..2 {
            std::fs::write(site.file(&format!("s{step}.rank_{rank}")), format!("{step} {rank}")).expect("written");
        }
    }
    let mut announced = HashSet::new();
    while announced.len() < 12 {
        let part = session.announced().await;
        session.commit(&part, &part.label, true).await;
        announced.insert((part.label, part.rank));
    }
    assert_eq!(*maps.most.lock().expect("not poisoned"), 3);
    site.agent.drain(soon()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_until_the_checkpoint_exists_in_all_groups_and_says_that_nothing_more_comes() {
    let mut site = Site::start().await;
    let mut session = site.session().await;
    std::fs::write(site.file("a.rank_0"), b"bytes").expect("written");
    let drained = tokio::spawn(site.agent.drain(soon()));
    let part = session.announced().await;
    assert_eq!(session.hear().await, Hear::Looked(v1::Looked { leaving: true }));
    session.commit(&part, "a", false).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!drained.is_finished(), "a drain waits until all groups are committed");
    session.commit(&part, "a", true).await;
    let drained = drained.await.expect("no panic");
    assert_eq!((drained.uncommitted, drained.time_was_up), (vec![], false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_is_about_to_end_hears_when_all_that_was_written_is_announced() {
    let mut site = Site::start().await;
    let mut session = site.session().await;
    std::fs::write(site.file("a.rank_0"), b"bytes").expect("written");
    session.say(Say::Look(v1::Look {})).await;
    let part = session.announced().await;
    assert_eq!(session.hear().await, Hear::Looked(v1::Looked { leaving: false }));
    session.commit(&part, "a", true).await;
    site.agent.drain(soon()).await;
}
