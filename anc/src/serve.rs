//! The gRPC service of the aggregator. Converts received messages to checked types and events. Generated types are
//! used only here and in [`crate::fetch`].

use crate::announcing::{Arriving, Assembly, Turned};
use crate::budget::{Budget, Lease};
use crate::fetch::{About, AgentLink, Announced, Doubt, LINK_QUEUE, LeftOut};
use crate::hub::{HubEvent, OfJob, Shared, StatusAsker};
use crate::incarnation::{Claim, Refused, check_directory};
use crate::listen::Calls;
use crate::restart;
use crate::served::{GroupKey, OfGroup, Served};
use bytes::Bytes;
use mcr_proto::convert::file_from_wire;
use mcr_proto::data::{DataFrame, DataSlot, TakesData};
use mcr_proto::v1::aggregator_server::{Aggregator, AggregatorServer};
use mcr_proto::v1::from_agent::Message as From;
use mcr_proto::v1::to_agent::Message as To;
use mcr_proto::version::{WIRE_VERSIONS, choose, named, offered};
use mcr_proto::{MESSAGE_BYTES_MAX, SILENCE_SECONDS, SOFTWARE, v1};
use mcrengine::error_chain::error_chain;
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, GroupId, JobId, Rank};
use mcrengine::incarnation::IDENTITY_BYTES_MAX;
use mcrengine::manifest;
use mcrengine::store::Store;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Maximum number of connected agents. Further agents are refused.
const SESSIONS_MAX: usize = 4096;
/// Maximum number of announcements that are decoded at the same time. During decoding, an announcement takes up to
/// twice the memory that it leased.
const PARSES_MAX: usize = 1;
/// Maximum number of running restarts. Further restarts wait.
const RESTORES_MAX: usize = 16;
/// Interval at which a waiting restart sends an empty frame, so that the receiver does not consider the aggregator
/// dead.
const RESTORE_WAITS: Duration = Duration::from_secs(10);

/// The service of one aggregator.
#[derive(Clone)]
pub struct Service {
    hub: mpsc::Sender<HubEvent>,
    store: Arc<dyn Store>,
    budget: Arc<Budget>,
    take_apart: bool,
    leave_filters: bool,
    group_size: u32,
    threads: usize,
    sessions: Arc<AtomicU64>,
    open: Arc<Semaphore>,
    restores: Arc<Semaphore>,
    served: Arc<Served>,
    parses: Arc<Semaphore>,
    /// Number of ranks of a job, if the agents do not report this number.
    ranks: Option<u32>,
    /// The only start of a job that this service serves. `None`: the service serves all jobs.
    of_job: Option<OfJob>,
    shared: Arc<Shared>,
}

impl Service {
    /// Makes a service that sends events to a hub and serves restarts from a store. `take_apart`: agents announce
    /// variables, not whole files. `leave_filters`: agents keep chunks filtered, unless the chunks are stored in much
    /// fewer bytes without the filters.
    pub fn new(
        hub: mpsc::Sender<HubEvent>,
        store: Arc<dyn Store>,
        budget: Arc<Budget>,
        take_apart: bool,
        leave_filters: bool,
        group_size: u32,
        threads: usize,
    ) -> Self {
        let (sessions, open) = (Arc::new(AtomicU64::new(1)), Arc::new(Semaphore::new(SESSIONS_MAX)));
        let restores = Arc::new(Semaphore::new(RESTORES_MAX));
        let parses = Arc::new(Semaphore::new(PARSES_MAX));
        let (ranks, of_job, shared) = (None, None, Arc::default());
        let served = Arc::new(Served::new(&budget));
        Self {
            hub,
            store,
            budget,
            take_apart,
            leave_filters,
            group_size,
            threads,
            sessions,
            open,
            restores,
            served,
            parses,
            ranks,
            of_job,
            shared,
        }
    }

    /// Makes the service use the state that the hub's flushes share.
    pub fn with_shared(self, shared: Arc<Shared>) -> Self {
        Self { shared, ..self }
    }

    /// Sets the number of ranks of jobs whose agents do not report this number.
    pub fn with_ranks(self, ranks: Option<u32>) -> Self {
        Self { ranks, ..self }
    }

    /// Restricts the service to one start of a job.
    pub fn with_of_job(self, of_job: Option<OfJob>) -> Self {
        Self { of_job, ..self }
    }

    /// Makes the server for tonic, with the limits of the protocol.
    pub fn into_server(self) -> TakesData<AggregatorServer<Self>> {
        let server = AggregatorServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX);
        TakesData(server.max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}

#[tonic::async_trait]
impl Aggregator for Service {
    type SessionStream = ReceiverStream<Result<v1::ToAgent, Status>>;
    type RestoreStream = ReceiverStream<Result<v1::RestoreFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::FromAgent>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let call = Calls::begin(&request);
        let Ok(open) = Arc::clone(&self.open).try_acquire_owned() else {
            return Err(Status::resource_exhausted(format!("{SESSIONS_MAX} agents are connected; add an aggregator")));
        };
        let (out, to_agent) = mpsc::channel(LINK_QUEUE);
        let service = self.clone();
        let slot = request.extensions().get::<DataSlot>().cloned().unwrap_or_default();
        tokio::spawn(async move {
            let (_open, _call) = (open, call);
            service.serve_session(request.into_inner(), &slot, out).await;
        });
        Ok(Response::new(ReceiverStream::new(to_agent)))
    }

    async fn restore(&self, request: Request<v1::RestoreRequest>) -> Result<Response<Self::RestoreStream>, Status> {
        let call = Calls::begin(&request);
        let request = request.into_inner();
        chosen_version(request.version, request.newest_version).map_err(Status::failed_precondition)?;
        let bad_name = |error| Status::invalid_argument(format!("{error}"));
        let job: JobId = request.job.parse().map_err(bad_name)?;
        let checkpoint: CheckpointId = request.checkpoint.parse().map_err(bad_name)?;
        let (out, frames) = mpsc::channel(LINK_QUEUE);
        let (store, budget, threads) = (Arc::clone(&self.store), Arc::clone(&self.budget), self.threads);
        let (restores, served) = (Arc::clone(&self.restores), Arc::clone(&self.served));
        let group = GroupId(request.group);
        let key = GroupKey { job: job.clone(), checkpoint: checkpoint.clone(), group };
        let serve = move |out: mpsc::Sender<_>, permit, of_group: OfGroup| {
            let (_permit, _call) = (permit, call);
            let ranks: Vec<Rank> = request.ranks.into_iter().map(Rank).collect();
            let result = restart::send_ranks(&*store, &of_group, &ranks, threads, &budget, &out);
            if let Err(error) = result {
                tracing::warn!(%job, %checkpoint, group = group.0, error = error_chain(&error), "restart failed");
                // The time limit is short, because a receiver also recognizes a failure if the stream ends without
                // `End`.
                let told = out.send_timeout(Err(restart::to_status(&error)), Duration::from_secs(1));
                let _ = tokio::runtime::Handle::current().block_on(told);
            }
        };
        tokio::spawn(async move {
            // While the restart waits for other restarts, the receiver gets an empty frame periodically.
            let of_group = served.group(key);
            let admitted = async move {
                let is_admitted = served.admit(&of_group).await;
                let permit = restores.acquire_owned().await.ok();
                permit.filter(|_| is_admitted).map(|permit| (permit, of_group))
            };
            let mut admitted = std::pin::pin!(admitted);
            let (permit, of_group) = loop {
                match tokio::time::timeout(RESTORE_WAITS, &mut admitted).await {
                    Ok(Some(admitted)) => break admitted,
                    Ok(None) => {
                        let _ = out.send(Err(Status::unavailable("the aggregator is shutting down"))).await;
                        return;
                    }
                    Err(_) if out.send(Ok(v1::RestoreFrame { message: None })).await.is_err() => return, // no receiver
                    Err(_) => {}
                }
            };
            tokio::task::spawn_blocking(move || serve(out, permit, of_group));
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let _call = Calls::begin(&request);
        let status = StatusAsker::new(self.hub.clone()).ask().await;
        status.map(Response::new).ok_or_else(|| Status::unavailable(SHUTTING_DOWN))
    }
}

/// The version of the protocol for a caller, or the reason why there is no common version.
fn chosen_version(oldest: u32, newest: u32) -> Result<u32, String> {
    let theirs = offered(oldest, newest);
    choose(&WIRE_VERSIONS, &theirs).ok_or_else(|| {
        let (theirs, ours) = (named(&theirs), named(&WIRE_VERSIONS));
        format!(
            "the caller speaks {theirs} of the protocol, and this aggregator ({SOFTWARE}) {ours}: install the newer release \
             everywhere"
        )
    })
}

const SHUTTING_DOWN: &str = "the aggregator is shutting down";

/// Why a session ended.
struct End {
    reason: String,
    retry: bool,
}

impl End {
    /// A reason that may be gone when the agent connects again.
    fn for_now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: true }
    }

    /// A reason that stays valid when the agent connects again.
    fn for_good(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: false }
    }
}

impl Service {
    async fn serve_session(
        &self,
        mut from: Streaming<v1::FromAgent>,
        slot: &DataSlot,
        out: mpsc::Sender<Result<v1::ToAgent, Status>>,
    ) {
        let hello = match tokio::time::timeout(Duration::from_secs(SILENCE_SECONDS), from.message()).await {
            Ok(Ok(Some(v1::FromAgent { message: Some(From::Hello(hello)) }))) => {
                let version = chosen_version(hello.version, hello.newest_version).map_err(End::for_good);
                version.and_then(|version| Ok((version, self.check_hello(hello)?)))
            }
            Ok(Ok(Some(_))) => Err(End::for_good("the first message must be Hello")),
            Err(_) => Err(End::for_now(format!("no Hello within {SILENCE_SECONDS} s"))),
            Ok(Ok(None) | Err(_)) => return,
        };
        let (version, (node, job, about)) = match hello {
            Ok(hello) => hello,
            Err(end) => return goodbye(&out, end).await,
        };
        let has_none = match self.greet(&job, &node, &about).await {
            Ok(has_none) => has_none,
            Err(end) => return goodbye(&out, end).await,
        };
        let ranks = about.ranks;
        let link = AgentLink::new(self.sessions.fetch_add(1, Ordering::Relaxed), node, about, out.clone());
        link.clock.heard(link.about.began_clock_ns);
        let session = link.session;
        let takes = Arc::clone(&link);
        slot.fill(move |frame| takes.data(frame));
        let (take_apart, leave_filters) = (self.take_apart, self.leave_filters);
        let welcome = v1::Welcome {
            version,
            take_apart,
            software: SOFTWARE.into(),
            leave_filters,
            serves: self.of_job.as_ref().map(|of_job| of_job.identity.clone()).unwrap_or_default(),
            has_none,
        };
        drop(out);
        link.send(To::Welcome(welcome));
        let end = match self.hub.send(HubEvent::Opened { link: Arc::clone(&link), job: job.clone() }).await {
            Ok(()) => self.read_messages(&mut from, &link, &job, ranks).await,
            Err(_) => End::for_now(SHUTTING_DOWN),
        };
        tracing::debug!(session, reason = end.reason, "session ended");
        link.end_with(&end.reason, end.retry);
        let _ = self.hub.send(HubEvent::Ended { session }).await;
    }

    /// Checks whether the agent's incarnation may commit. A new identity begins an incarnation. Returns whether the
    /// store has no checkpoint of the job.
    async fn greet(&self, job: &JobId, node: &str, about: &About) -> Result<bool, End> {
        let (shared, store) = (Arc::clone(&self.shared), Arc::clone(&self.store));
        let (job, node, identity) = (job.clone(), node.to_owned(), about.identity.clone());
        let greeting = tokio::task::spawn_blocking(move || {
            check_directory(&*store, &job, &node)?;
            // If the directory cannot be read now, it may have checkpoints.
            let has_none = !manifest::has_checkpoints(&*store, &job).unwrap_or(true);
            shared.currents.admit(&*store, &job, Claim { identity: &identity, node: &node })?;
            Ok(has_none)
        });
        match greeting.await {
            Ok(Ok(has_none)) => Ok(has_none),
            Ok(Err(Refused::Fenced(reason) | Refused::Renamed(reason))) => {
                tracing::error!(reason, "an agent was refused");
                Err(End::for_good(reason))
            }
            // The store may work again before a checkpoint must be committed.
            Ok(Err(Refused::Store(error))) => {
                tracing::warn!(error = error_chain(&error), "the incarnation of a job cannot be read now");
                Ok(false)
            }
            Err(_) => Err(End::for_now("reading the incarnation of the job failed")),
        }
    }

    fn check_hello(&self, hello: v1::Hello) -> Result<(String, JobId, About), End> {
        let refuse = |reason: String| Err(End::for_good(reason));
        if let Some(of_job) = self.of_job.as_ref().filter(|of_job| of_job.identity != hello.identity) {
            // The agent tries the next port of this node.
            return Err(End::for_now(format!("this aggregator serves {} only", of_job.identity)));
        }
        if hello.group_size != self.group_size {
            return refuse(format!(
                "group-size is {} at the agent and {} at the aggregator; set both to the same",
                hello.group_size, self.group_size
            ));
        }
        if hello.identity.len() > IDENTITY_BYTES_MAX || hello.identity.chars().any(char::is_control) {
            return refuse(format!(
                "the identity of the incarnation has {} bytes; at most {IDENTITY_BYTES_MAX}, all printable, are \
                 allowed",
                hello.identity.len()
            ));
        }
        match hello.job.parse() {
            Ok(job) => {
                let Some(local_ranks) = About::parse_ranks(&hello.local_ranks) else {
                    return refuse("the local ranks of the agent cannot be parsed".into());
                };
                let about = About {
                    local_ranks,
                    identity: hello.identity,
                    watch: hello.watch.chars().take(4096).collect(),
                    ranks: hello.ranks,
                    ranks_from: hello.ranks_from.chars().take(255).collect(),
                    began_clock_ns: hello.clock_ns,
                };
                Ok((hello.node.chars().take(255).collect(), job, about))
            }
            Err(error) => refuse(format!("the job's name is refused: {error}")),
        }
    }

    /// Reads messages until the stream ends, the agent is silent for too long, or the agent breaks the protocol.
    async fn read_messages(
        &self,
        from: &mut Streaming<v1::FromAgent>,
        link: &Arc<AgentLink>,
        job: &JobId,
        mut ranks: u32,
    ) -> End {
        let mut arriving = Arriving::new(Arc::clone(&self.budget));
        // The last `Looked` of the agent, if earlier announcements are still unfinished.
        let mut looked = None;
        let mut at_rest = false;
        loop {
            let wait = Duration::from_secs(SILENCE_SECONDS);
            // Each arm only makes an event, so no partly received message is lost. If an agent at rest disappears,
            // the kernel's keepalive ends the connection.
            let heard = tokio::select! {
                heard = from.message() => Some(heard),
                turned = arriving.turn() => {
                    link.send(match turned {
                        Turned::Send(room) => To::Room(room),
                        Turned::GivenBack(abandoned) => {
                            tracing::warn!(
                                label = abandoned.label,
                                rank = abandoned.rank,
                                reason = abandoned.reason,
                                "no room for an announcement"
                            );
                            To::Abandoned(abandoned)
                        }
                    });
                    if arriving.is_empty() {
                        self.tell_looked(&mut looked, link).await;
                    }
                    continue;
                }
                () = tokio::time::sleep(wait), if !at_rest || arriving.awaits_parts() => None,
                reason = link.until_ended() => return End::for_now(reason),
                () = self.hub.closed() => return End::for_now(SHUTTING_DOWN),
            };
            let message = match heard {
                None if link.sent_data() => continue,
                None => {
                    let reason = format!("node {} said nothing for {SILENCE_SECONDS} s", link.node);
                    return End::for_now(reason);
                }
                Some(Ok(Some(message))) => message.message,
                Some(Ok(None)) => {
                    // An agent that has no announcements at its end closes the stream without a message.
                    let _ = self.hub.send(HubEvent::Looked { session: link.session, leaving: true }).await;
                    return End::for_now(format!("node {} left", link.node));
                }
                Some(Err(status)) => {
                    return End::for_now(format!("node {}: {}", link.node, status.message()));
                }
            };
            if let Some(reason) = arriving.stalled(tokio::time::Instant::now()) {
                return End::for_now(format!("node {} sent {reason}", link.node));
            }
            let broken = |reason: String| End::for_good(format!("node {} broke the protocol: {reason}", link.node));
            match &message {
                Some(From::Heartbeat(heartbeat)) => {
                    at_rest = heartbeat.at_rest;
                    link.clock.heard(heartbeat.clock_ns);
                }
                Some(From::Announce(part)) => {
                    at_rest = false;
                    link.clock.heard(part.clock_ns);
                }
                // An agent at rest may still answer a question, and sends no heartbeat after its answer.
                _ => {}
            }
            link.heard(at_rest);
            match message {
                // The server hands data frames of the usual form directly to `DataSlot`. This frame has an unusual
                // form, and may be invalid.
                Some(From::Data(data)) => link.data(DataFrame::from(data)),
                Some(From::Announce(part)) => match arriving.part(part) {
                    Ok(None) => {}
                    Ok(Some(whole)) => {
                        if ranks == 0 {
                            ranks = self.ranks_of(job).await;
                        }
                        if let Err(reason) = self.announce(whole, link, job, ranks).await {
                            return broken(reason);
                        }
                    }
                    Err(reason) => return broken(reason),
                },
                Some(From::Retract(v1::Retract { announce_id })) => arriving.forget(announce_id),
                Some(From::FetchFailed(failed)) => link.failed(failed),
                Some(From::Withdraw(withdraw)) => {
                    let Ok(label) = withdraw.label.parse() else {
                        return broken("a checkpoint's name is refused".into());
                    };
                    let (session, job, rank, reason) =
                        (link.session, job.clone(), Rank(withdraw.rank), withdraw.reason);
                    let _ = self.hub.send(HubEvent::Withdrawn { session, job, label, rank, reason }).await;
                }
                Some(From::Heartbeat(_)) => {
                    // The answer shows the agent that the aggregator is alive. Only the agent measures the interval
                    // of the heartbeats.
                    link.send(To::Heartbeat(v1::Heartbeat { at_rest: false, clock_ns: 0 }));
                }
                Some(From::Looked(said)) => looked = Some(said),
                Some(From::Hello(_)) => return broken("a second Hello".into()),
                None => return broken("a message of a kind that this version does not know".into()),
            }
            if arriving.is_empty() {
                self.tell_looked(&mut looked, link).await;
            }
        }
    }

    /// Informs the hub that the agent has looked for written files. The caller waits until all earlier announcements
    /// have arrived.
    async fn tell_looked(&self, looked: &mut Option<v1::Looked>, link: &AgentLink) {
        if let Some(v1::Looked { leaving }) = looked.take() {
            let _ = self.hub.send(HubEvent::Looked { session: link.session, leaving }).await;
        }
    }

    /// Number of ranks of a job whose agent does not know the number: the configured number, or the number of ranks
    /// of the job's newest checkpoint. 0 if both numbers are unknown.
    async fn ranks_of(&self, job: &JobId) -> u32 {
        if let Some(ranks) = self.ranks {
            return ranks;
        }
        if let Some(ranks) = self.shared.newest.ranks_of(job) {
            return ranks;
        }
        let (store, job) = (Arc::clone(&self.store), job.clone());
        let newest = move || manifest::list(&*store, &job).ok()?.into_iter().find(|c| c.ranks > 0).map(|c| c.ranks);
        tokio::task::spawn_blocking(newest).await.ok().flatten().unwrap_or(0)
    }

    async fn announce(&self, whole: Assembly, link: &Arc<AgentLink>, job: &JobId, ranks: u32) -> Result<(), String> {
        let Assembly { announce_id, label, rank, bytes, room, .. } = whole;
        // Fails only if the semaphore is closed, which never happens.
        let reading = Arc::clone(&self.parses).acquire_owned().await;
        let link = Arc::clone(link);
        let announced = tokio::task::spawn_blocking(move || {
            let _reading = reading;
            announced(bytes.freeze(), rank, announce_id, link, room)
        });
        let announced = announced.await.map_err(|_| "reading an announcement failed".to_owned())??;
        let event = HubEvent::Announced { announced, job: job.clone(), ranks, label, rank };
        self.hub.send(event).await.map_err(|_| "the aggregator is shutting down".to_owned())
    }
}

/// Checks an announcement. `room` is the lease for its memory.
fn announced(
    bytes: Bytes,
    rank: Rank,
    announce_id: u64,
    link: Arc<AgentLink>,
    room: Lease,
) -> Result<Announced, String> {
    let announcement =
        v1::Announcement::decode(bytes).map_err(|error| format!("an announcement does not parse: {error}"))?;
    let left_out = announcement.left_out.as_ref().map(|left| LeftOut {
        files: left.files,
        of_files: left.of_files,
        bytes: left.bytes,
        of_bytes: left.of_bytes,
    });
    let doubt = match announcement.doubt() {
        v1::Doubt::None if announcement.doubt == 0 => None,
        v1::Doubt::LeftOut => Some(Doubt::LeftOut(left_out.unwrap_or_default())),
        v1::Doubt::Fewer => Some(Doubt::Fewer),
        v1::Doubt::NotClosed => Some(Doubt::NotClosed),
        v1::Doubt::Deleted => Some(Doubt::Deleted),
        v1::Doubt::Counted => Some(Doubt::Counted),
        v1::Doubt::FoundAfterEnd => Some(Doubt::FoundAfterEnd),
        v1::Doubt::LastWritten => Some(Doubt::LastWritten),
        // The reason of a newer agent may not be known here.
        v1::Doubt::Rewriting | v1::Doubt::None => Some(Doubt::Rewriting),
    };
    let v1::Announcement { files, written_unix_ns, changed_clock_ns, created_clock_ns, .. } = announcement;
    let v1::Announcement { kept_time_ns, replaced_clock_ns, interval_ns, first_unix_ns, is_final, .. } = announcement;
    let files: Result<Vec<FileHeader>, _> = files.into_iter().map(|file| file_from_wire(file, rank)).collect();
    let mut files = files.map_err(|error| error_chain(&error))?;
    if files.is_empty() {
        return Err("an announcement without files".into());
    }
    let paths: Vec<_> = files.iter().map(|file| file.path.clone()).collect();
    if !paths.is_sorted_by(|a, b| a < b) {
        return Err("the files of an announcement are not in the order of their paths, or a path occurs twice".into());
    }
    if let Some(stray) = FileHeader::stray_link(&files) {
        return Err(format!(
            "{}: the file is announced as a second name of a file that is not in the announcement",
            files[stray].path
        ));
    }
    files.shrink_to_fit();
    Ok(Announced {
        link,
        announce_id,
        files: Arc::new(files),
        written_unix_ns,
        changed_clock_ns,
        created_clock_ns,
        kept_time_ns,
        doubt,
        replaced_clock_ns,
        first_ms: first_unix_ns.map(|ns| ns / 1_000_000),
        interval_ms: Some(i64::try_from(interval_ns / 1_000_000).unwrap_or(i64::MAX)).filter(|ms| *ms > 0),
        is_final,
        room: Some(Arc::new(room)),
    })
}

async fn goodbye(out: &mpsc::Sender<Result<v1::ToAgent, Status>>, end: End) {
    tracing::debug!(reason = end.reason, "session ended");
    let End { reason, retry } = end;
    let message = v1::ToAgent { message: Some(To::Goodbye(v1::Goodbye { reason, retry })) };
    let _ = out.send_timeout(Ok(message), Duration::from_secs(1)).await;
}
