//! The wire's end: gRPC in, checked types and events out. Generated types stop here and in [`crate::fetch`].

use crate::budget::Budget;
use crate::fetch::{AgentLink, Announced, LINK_QUEUE};
use crate::hub::{HubEvent, error_chain};
use crate::restart;
use bytes::{Bytes, BytesMut};
use mcr_proto::convert::file_from_wire;
use mcr_proto::v1::aggregator_server::{Aggregator, AggregatorServer};
use mcr_proto::v1::from_agent::Message as From;
use mcr_proto::v1::to_agent::Message as To;
use mcr_proto::{
    ANNOUNCEMENT_BYTES_MAX, HEARTBEAT_SECONDS, MESSAGE_BYTES_MAX, SILENCE_SECONDS, SOFTWARE, WIRE_VERSION, v1,
};
use mcrengine::header::FileHeader;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use mcrengine::store::Store;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Announcements of one agent that may be half received at a time.
const ASSEMBLIES_MAX: usize = 4;
/// Agents at a time; further ones are turned away.
const SESSIONS_MAX: usize = 4096;
/// Restarts at a time; further ones wait.
const RESTORES_MAX: usize = 4;

/// The service of one aggregator.
#[derive(Clone)]
pub struct Service {
    hub: mpsc::Sender<HubEvent>,
    store: Arc<dyn Store>,
    budget: Arc<Budget>,
    take_apart: bool,
    group_size: u32,
    threads: usize,
    sessions: Arc<AtomicU64>,
    open: Arc<Semaphore>,
    restores: Arc<Semaphore>,
}

impl Service {
    /// A service that reports to a hub and restarts from a store. `take_apart`: agents announce variables, not whole files.
    pub fn new(
        hub: mpsc::Sender<HubEvent>,
        store: Arc<dyn Store>,
        budget: Arc<Budget>,
        take_apart: bool,
        group_size: u32,
        threads: usize,
    ) -> Self {
        let (sessions, open) = (Arc::new(AtomicU64::new(1)), Arc::new(Semaphore::new(SESSIONS_MAX)));
        let restores = Arc::new(Semaphore::new(RESTORES_MAX));
        Self { hub, store, budget, take_apart, group_size, threads, sessions, open, restores }
    }

    /// As tonic wants it, with the wire's limits.
    pub fn into_server(self) -> AggregatorServer<Self> {
        AggregatorServer::new(self)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
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
        let Ok(open) = Arc::clone(&self.open).try_acquire_owned() else {
            return Err(Status::resource_exhausted(format!("{SESSIONS_MAX} agents are connected; add an aggregator")));
        };
        let (out, to_agent) = mpsc::channel(LINK_QUEUE);
        let service = self.clone();
        tokio::spawn(async move {
            let _open = open;
            service.serve_session(request.into_inner(), out).await;
        });
        Ok(Response::new(ReceiverStream::new(to_agent)))
    }

    async fn restore(&self, request: Request<v1::RestoreRequest>) -> Result<Response<Self::RestoreStream>, Status> {
        let request = request.into_inner();
        if request.version != WIRE_VERSION {
            return Err(wrong_version(request.version));
        }
        let bad_name = |error| Status::invalid_argument(format!("{error}"));
        let job: JobId = request.job.parse().map_err(bad_name)?;
        let checkpoint: CheckpointId = request.checkpoint.parse().map_err(bad_name)?;
        let permit =
            Arc::clone(&self.restores).acquire_owned().await.map_err(|_| Status::unavailable("shutting down"))?;
        let (out, frames) = mpsc::channel(LINK_QUEUE);
        let (store, budget, threads) = (Arc::clone(&self.store), Arc::clone(&self.budget), self.threads);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let group = mcrengine::ids::GroupId(request.group);
            let ranks: Vec<Rank> = request.ranks.into_iter().map(Rank).collect();
            let result = restart::send_ranks(&*store, &job, &checkpoint, group, &ranks, threads, &budget, &out);
            if let Err(error) = result {
                tracing::warn!(%job, %checkpoint, group = group.0, error = error_chain(&error), "restart failed");
                let _ = out.blocking_send(Err(restart::to_status(&error)));
            }
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let (reply, status) = oneshot::channel();
        let gone = || Status::unavailable("the aggregator is shutting down");
        self.hub.send(HubEvent::Status(reply)).await.map_err(|_| gone())?;
        status.await.map(Response::new).map_err(|_| gone())
    }
}

fn wrong_version(found: u32) -> Status {
    Status::failed_precondition(format!(
        "wire version {found}; this aggregator ({SOFTWARE}) speaks {WIRE_VERSION}: install one version everywhere"
    ))
}

/// Why a session ended.
struct End {
    reason: String,
    retry: bool,
}

impl Service {
    async fn serve_session(&self, mut from: Streaming<v1::FromAgent>, out: mpsc::Sender<Result<v1::ToAgent, Status>>) {
        let hello = match tokio::time::timeout(Duration::from_secs(SILENCE_SECONDS), from.message()).await {
            Ok(Ok(Some(v1::FromAgent { message: Some(From::Hello(hello)) }))) => self.check_hello(hello),
            _ => Err(End { reason: "the first message must be Hello".into(), retry: false }),
        };
        let (node, job, ranks) = match hello {
            Ok(hello) => hello,
            Err(end) => return goodbye(&out, end).await,
        };
        let link = AgentLink::new(self.sessions.fetch_add(1, Ordering::Relaxed), node, out.clone());
        let session = link.session;
        let welcome = v1::Welcome { version: WIRE_VERSION, take_apart: self.take_apart, software: SOFTWARE.into() };
        link.try_send(To::Welcome(welcome));
        if self.hub.send(HubEvent::Opened { link: Arc::clone(&link), job: job.clone() }).await.is_ok() {
            let end = self.read_messages(&mut from, &link, &job, ranks).await;
            link.end(&end.reason);
            let _ = self.hub.send(HubEvent::Ended { session }).await;
            goodbye(&out, end).await;
        }
    }

    fn check_hello(&self, hello: v1::Hello) -> Result<(String, JobId, u32), End> {
        let refuse = |reason: String| Err(End { reason, retry: false });
        if hello.version != WIRE_VERSION {
            return refuse(wrong_version(hello.version).message().to_owned());
        }
        if hello.group_size != self.group_size {
            return refuse(format!(
                "group-size is {} at the agent and {} at the aggregator; set both to the same",
                hello.group_size, self.group_size
            ));
        }
        match hello.job.parse() {
            Ok(job) => Ok((hello.node.chars().take(255).collect(), job, hello.ranks)),
            Err(error) => refuse(format!("the job's name is refused: {error}")),
        }
    }

    /// Until the stream ends, the agent is silent for too long, or breaks the protocol.
    async fn read_messages(
        &self,
        from: &mut Streaming<v1::FromAgent>,
        link: &Arc<AgentLink>,
        job: &JobId,
        ranks: u32,
    ) -> End {
        let mut assemblies: HashMap<u64, Assembly> = HashMap::new();
        let mut silent_seconds = 0;
        loop {
            let wait = Duration::from_secs(HEARTBEAT_SECONDS);
            let message = match tokio::time::timeout(wait, from.message()).await {
                Err(_) => {
                    silent_seconds += HEARTBEAT_SECONDS;
                    if silent_seconds >= SILENCE_SECONDS {
                        return End {
                            reason: format!("node {} said nothing for {silent_seconds} s", link.node),
                            retry: true,
                        };
                    }
                    link.try_send(To::Heartbeat(v1::Heartbeat {}));
                    continue;
                }
                Ok(Ok(Some(message))) => message.message,
                Ok(Ok(None)) => return End { reason: format!("node {} left", link.node), retry: true },
                Ok(Err(status)) => {
                    return End { reason: format!("node {}: {}", link.node, status.message()), retry: true };
                }
            };
            silent_seconds = 0;
            let broken = |reason: String| End {
                reason: format!("node {} broke the protocol: {reason}", link.node),
                retry: false,
            };
            match message {
                Some(From::Data(data)) => {
                    if let Err(reason) = link.data(&data) {
                        return broken(reason);
                    }
                }
                Some(From::Announce(part)) => match assemble(&mut assemblies, part) {
                    Ok(None) => {}
                    Ok(Some(whole)) => {
                        if let Err(reason) = self.announce(whole, link, job, ranks).await {
                            return broken(reason);
                        }
                    }
                    Err(reason) => return broken(reason),
                },
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
                    let _ = self.hub.try_send(HubEvent::Heard { session: link.session });
                }
                Some(From::Hello(_)) => return broken("a second Hello".into()),
                None => return broken("a message of a kind that this version does not know".into()),
            }
        }
    }

    async fn announce(&self, whole: Assembly, link: &Arc<AgentLink>, job: &JobId, ranks: u32) -> Result<(), String> {
        let Assembly { announce_id, label, rank, bytes, .. } = whole;
        let parsed = tokio::task::spawn_blocking(move || files_of(bytes.freeze(), rank)).await;
        let files = parsed.map_err(|_| "reading an announcement failed".to_owned())??;
        let announced = Announced { link: Arc::clone(link), announce_id, files: Arc::new(files) };
        let event = HubEvent::Announced { announced, job: job.clone(), ranks, label, rank };
        self.hub.send(event).await.map_err(|_| "the aggregator is shutting down".to_owned())
    }
}

/// An announcement whose parts are arriving.
struct Assembly {
    announce_id: u64,
    label: CheckpointId,
    rank: Rank,
    total_bytes: u64,
    bytes: BytesMut,
}

/// Adds a part; gives the whole once it is there.
fn assemble(assemblies: &mut HashMap<u64, Assembly>, part: v1::AnnouncePart) -> Result<Option<Assembly>, String> {
    if part.offset == 0 {
        if part.total_bytes > ANNOUNCEMENT_BYTES_MAX {
            return Err(format!(
                "an announcement of {} bytes; at most {ANNOUNCEMENT_BYTES_MAX} are allowed",
                part.total_bytes
            ));
        }
        if assemblies.len() >= ASSEMBLIES_MAX {
            return Err(format!("more than {ASSEMBLIES_MAX} announcements at a time"));
        }
        let label = part.label.parse().map_err(|error| format!("a checkpoint's name is refused: {error}"))?;
        let (announce_id, rank, total_bytes) = (part.announce_id, Rank(part.rank), part.total_bytes);
        assemblies.insert(announce_id, Assembly { announce_id, label, rank, total_bytes, bytes: BytesMut::new() });
    }
    let Some(assembly) = assemblies.get_mut(&part.announce_id) else {
        return Err(format!("a later part of announcement {}, whose first is missing", part.announce_id));
    };
    let have = assembly.bytes.len() as u64;
    if part.offset != have || have + part.part.len() as u64 > assembly.total_bytes {
        return Err(format!(
            "a part at {} of announcement {}, where {have} bytes were there",
            part.offset, part.announce_id
        ));
    }
    assembly.bytes.extend_from_slice(&part.part);
    match assembly.bytes.len() as u64 == assembly.total_bytes {
        true => Ok(assemblies.remove(&part.announce_id)),
        false => Ok(None),
    }
}

fn files_of(bytes: Bytes, rank: Rank) -> Result<Vec<FileHeader>, String> {
    let announcement =
        v1::Announcement::decode(bytes).map_err(|error| format!("an announcement does not parse: {error}"))?;
    let files: Result<Vec<FileHeader>, _> =
        announcement.files.into_iter().map(|file| file_from_wire(file, rank)).collect();
    let mut files = files.map_err(|error| error_chain(&error))?;
    if files.is_empty() {
        return Err("an announcement without files".into());
    }
    let paths: Vec<_> = files.iter().map(|file| file.path.clone()).collect();
    if !paths.is_sorted_by(|a, b| a < b) {
        return Err("an announcement whose files are not in the order of their paths, or name one twice".into());
    }
    files.shrink_to_fit();
    Ok(files)
}

async fn goodbye(out: &mpsc::Sender<Result<v1::ToAgent, Status>>, end: End) {
    tracing::debug!(reason = end.reason, "session ended");
    let message = v1::ToAgent { message: Some(To::Goodbye(v1::Goodbye { reason: end.reason, retry: end.retry })) };
    let _ = out.send_timeout(Ok(message), Duration::from_secs(1)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, total_bytes: u64, part: &'static [u8]) -> v1::AnnouncePart {
        v1::AnnouncePart {
            announce_id: 1,
            label: "it_1".into(),
            rank: 0,
            total_bytes,
            offset,
            part: Bytes::from_static(part),
        }
    }

    #[test]
    fn parts_in_order_make_an_announcement() {
        let mut open = HashMap::new();
        assert!(assemble(&mut open, part(0, 5, b"abc")).expect("first").is_none());
        let whole = assemble(&mut open, part(3, 5, b"de")).expect("second").expect("whole");
        assert_eq!(&whole.bytes[..], b"abcde");
        assert!(open.is_empty());
    }

    #[test]
    fn parts_that_lie_about_their_length_or_place_are_refused() {
        assert!(assemble(&mut HashMap::new(), part(3, 5, b"de")).is_err(), "the first is missing");
        assert!(assemble(&mut HashMap::new(), part(0, ANNOUNCEMENT_BYTES_MAX + 1, b"")).is_err(), "too long");
        assert!(assemble(&mut HashMap::new(), part(0, 2, b"abc")).is_err(), "longer than it says");
        let mut open = HashMap::new();
        assert!(assemble(&mut open, part(0, 5, b"abc")).is_ok());
        assert!(assemble(&mut open, part(4, 5, b"e")).is_err(), "a gap");
    }
}
