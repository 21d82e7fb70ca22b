//! The agent's side of the protocol. A link connects to one aggregator, announces ranks, and answers fetches until
//! the agent stops the link.
//!
//! A link outlives its sessions. When a session ends, the link connects again with growing delays, and repeats the
//! announcements of all ranks that are not committed. In this crate, the types generated from the protocol are used
//! only here, and by the function that encodes an announcement.

use crate::capture::CaptureError;
use crate::capture::CaptureMode;
use crate::dial::{connect, connect_to_one};
use crate::finder::Finder;
use crate::memory;
use crate::sessions::Sessions;
use crate::source::OpenFile;
use crate::way::Way;
use bytes::Bytes;
use mcr_proto::clock::steady_ns;
use mcr_proto::data::WithData;
use mcr_proto::tls::{self, Security};
use mcr_proto::v1::aggregator_client::AggregatorClient;
use mcr_proto::v1::from_agent::Message as From;
use mcr_proto::v1::to_agent::Message as To;
use mcr_proto::version::{WIRE_VERSIONS, named};
use mcr_proto::{
    ANNOUNCED_AT_ONCE_BYTES, FETCH_BYTES_MAX, FRAME_BYTES, HEARTBEAT_SECONDS, MESSAGE_BYTES_MAX, SILENCE_SECONDS,
    SOFTWARE, v1,
};
use mcrengine::error_chain::error_chain;
use mcrengine::ids::{CheckpointId, JobId, Rank};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

/// A described rank of a checkpoint. The link holds the rank until the rank is committed.
pub struct Held {
    /// Number of the announcement, unique in this process.
    pub announce_id: u64,
    /// The application's name of the checkpoint.
    pub label: CheckpointId,
    /// The rank.
    pub rank: Rank,
    /// The rank's files, ready to be read.
    pub files: Vec<OpenFile>,
    /// The encoded announcement.
    pub announcement: Bytes,
}

/// An order of the agent to a link.
pub enum Order {
    /// Announce this rank now, and again at the beginning of each session, until [`Order::Forget`].
    Hold(Arc<Held>),
    /// The rank is committed, abandoned or gone. If `withdraw` is given, the link withdraws the announcement.
    Forget {
        /// Number of the announcement.
        announce_id: u64,
        /// The reason, which is sent to the aggregator. The aggregator then forgets the rank too.
        withdraw: Option<String>,
    },
    /// The agent drains. The link connects again after a short delay, even if the last delay was long.
    Hurry,
    /// All written ranks are announced to this aggregator. If `leaving` is true, no further ranks will be announced,
    /// and the link repeats this message in later sessions.
    Looked {
        /// Whether the agent is about to end.
        leaving: bool,
    },
}

/// A report of a link to the agent.
pub enum News {
    /// A session began. The files of this link are captured in the given mode.
    Welcome {
        /// Number of the link.
        link: usize,
        /// The capture mode that the aggregator wants.
        mode: CaptureMode,
        /// Whether the store has no checkpoint of the job.
        has_none: bool,
    },
    /// The group's part of the checkpoint is in the store. The report is repeated when all groups are committed.
    Committed {
        /// Number of the announcement.
        announce_id: u64,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
        /// The checkpoint's name in the store.
        checkpoint: CheckpointId,
        /// Whether all groups of the checkpoint are committed.
        exists: bool,
    },
    /// The aggregator has abandoned this rank.
    Abandoned {
        /// Number of the announcement.
        announce_id: u64,
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
        /// The reason.
        reason: String,
        /// Whether it may help to announce the rank again later.
        retry: bool,
        /// Whether the aggregator had no memory for the announcement. If so, the rank's files must be announced as
        /// whole files, which takes few bytes.
        whole: bool,
    },
    /// The aggregator asks for another announcement of a rank that is committed.
    Again {
        /// The application's name of the checkpoint.
        label: CheckpointId,
        /// The rank.
        rank: Rank,
    },
    /// The content of a file differs from its announcement.
    Changed {
        /// Number of the announcement.
        announce_id: u64,
    },
    /// The aggregator is about to end, and asks the agent to announce all written ranks.
    Look {
        /// Number of the link.
        link: usize,
    },
    /// The aggregator refuses this agent. Another attempt to connect does not help.
    Refused {
        /// Number of the link.
        link: usize,
        /// The reason.
        reason: String,
    },
}

/// Options of a link.
#[derive(Clone)]
pub struct LinkOptions {
    /// Number of the link, as in [`News`].
    pub link: usize,
    /// `host:port` of the aggregator, or `host:first-last`.
    pub address: String,
    /// Finds the aggregator. `None`: the aggregator is at `address`.
    pub finder: Option<Arc<dyn Finder>>,
    /// Host name of this node, for log messages.
    pub node: String,
    /// The job.
    pub job: JobId,
    /// Identity of the job's incarnation. Empty if the job was started by hand.
    pub identity: String,
    /// Whether only aggregators that serve this start of the job may be used.
    pub own_aggregators: bool,
    /// The watched directory, for log messages.
    pub watch: String,
    /// The ranks whose files the agent announces, for example `0-31,64`. Empty: all ranks that the agent finds.
    pub local_ranks: String,
    /// Number of ranks of the job; 0 if unknown.
    pub ranks: u32,
    /// Where the number of ranks comes from, for log messages.
    pub ranks_from: &'static str,
    /// Time at which this process began to watch, in nanoseconds of the process's steady clock.
    pub began_ns: i64,
    /// Number of ranks in a group.
    pub group_size: u32,
    /// The first and the longest delay before the link connects again.
    pub reconnect: (Duration, Duration),
    /// Maximum number of bytes of data in the queue to the network.
    pub budget_bytes: u64,
    /// How connections are protected.
    pub security: Security,
    /// The sessions of the agent.
    pub sessions: Sessions,
}

/// Maximum time to wait until the aggregator has noticed the end of the agent.
pub const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// If an aggregator needs more than this time to refuse an agent, no further address is tried in this round.
const SLOW: Duration = Duration::from_secs(2);
/// The shortest and the longest time that addresses get to answer in a round with several addresses.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The time that addresses get to answer is this multiple of the delay before the next round.
const PATIENCE_FACTOR: u32 = 10;
/// Maximum delay before the link connects again while the agent drains.
const HURRY_DELAY_MAX: Duration = Duration::from_millis(250);

/// The state of a link that outlives its sessions.
#[derive(Default)]
struct Kept {
    held: BTreeMap<u64, Arc<Held>>,
    /// Whether the agent drains.
    hurry: bool,
    /// Whether the agent has announced all ranks and ends soon.
    leaving: bool,
}

impl Kept {
    /// Handles an order when there is no session.
    fn take(&mut self, order: Order) {
        match order {
            Order::Hold(held) => drop(self.held.insert(held.announce_id, held)),
            Order::Forget { announce_id, .. } => drop(self.held.remove(&announce_id)),
            Order::Hurry => self.hurry = true,
            Order::Looked { leaving } => self.leaving |= leaving,
        }
    }
}

/// Runs a link until the channel of orders closes.
pub async fn run_link(options: LinkOptions, mut orders: mpsc::Receiver<Order>, news: mpsc::Sender<News>) {
    let (mut kept, mut told) = (Kept::default(), String::new());
    let mut wait = options.reconnect.0;
    let mut way = Way::new(options.link, &options.address, options.finder.clone());
    // Number of addresses that were tried since the last session or the last wait.
    let mut tried = 0;
    loop {
        // Each round gives the addresses more time to answer.
        let patience = (wait * PATIENCE_FACTOR).clamp(PATIENCE.0, PATIENCE.1);
        let connected = async {
            if tried == 0 {
                way.begin_round().await?;
            }
            connect_to_one(way.next_addresses(tried), patience, &options.security).await
        };
        let connected = tokio::select! {
            connected = connected => connected,
            ended = no_orders(&mut orders, &mut kept) => return ended,
        };
        let mut began = tokio::time::Instant::now();
        let ended = match connected {
            Ok((passed, channel)) => {
                (0..passed).for_each(|_| way.next_address());
                tried += passed;
                began = tokio::time::Instant::now();
                let ended = run_session(&options, &way, channel, &mut orders, &mut kept, &news).await;
                options.sessions.ended(options.link);
                ended
            }
            Err(error) => {
                tried = way.len();
                Ended::Failed(error)
            }
        };
        tried += 1;
        let reason = match ended {
            Ended::NoOrders => return,
            // Another port of the same host may be the right port, for example if the aggregator of another job of
            // this user uses this port.
            Ended::Failed(reason) if tried < way.len() && began.elapsed() < SLOW => {
                tracing::debug!(aggregator = way.address(), reason, "no session; the next port is tried");
                way.next_address();
                continue;
            }
            Ended::Left(reason) => {
                way.succeeded();
                wait = options.reconnect.0;
                reason
            }
            Ended::Returned => {
                way.go_back();
                wait = options.reconnect.0;
                "the first gate has an aggregator again".to_owned()
            }
            Ended::Failed(reason) => {
                way.next_address();
                way.round_failed(tokio::time::Instant::now(), kept.hurry);
                reason
            }
            Ended::Refused(reason) => {
                let refused = News::Refused { link: options.link, reason: reason.clone() };
                if news.send(refused).await.is_err() {
                    return;
                }
                wait = options.reconnect.1;
                reason
            }
        };
        let told_ms = if kept.hurry { wait.min(HURRY_DELAY_MAX) } else { wait }.as_millis() as u64;
        // While the agent drains, the link connects often, so a repeated reason is not logged again.
        match kept.hurry && reason == told {
            true => {
                tracing::debug!(aggregator = options.address, reason, wait_ms = told_ms, "no session; dialling again")
            }
            false => {
                tracing::warn!(aggregator = options.address, reason, wait_ms = told_ms, "no session; dialling again")
            }
        }
        told = reason;
        tried = 0;
        let began = tokio::time::Instant::now();
        loop {
            let until = began + if kept.hurry { wait.min(HURRY_DELAY_MAX) } else { wait };
            tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                order = orders.recv() => match order {
                    None => return,
                    Some(order) => kept.take(order),
                }
            }
        }
        wait = (wait * 2).min(options.reconnect.1);
    }
}

/// Handles orders while the link connects. Returns when the channel of orders closes.
async fn no_orders(orders: &mut mpsc::Receiver<Order>, kept: &mut Kept) {
    while let Some(order) = orders.recv().await {
        kept.take(order);
    }
}

/// How a session ended.
enum Ended {
    /// The channel of orders is closed.
    NoOrders,
    /// The session was established, and has ended.
    Left(String),
    /// The session worked, but ends because the first gate has an aggregator again.
    Returned,
    /// The session was never established.
    Failed(String),
    /// The aggregator refused the session. Another attempt to connect does not help.
    Refused(String),
}

/// The reason why a call failed, as text.
pub fn reason_of(status: &Status) -> String {
    match status.source() {
        Some(_) => tls::sentence_of(status, tls::Other::Aggregator),
        None => tls::explain(status).unwrap_or_else(|| format!("{}: {}", status.code(), status.message())),
    }
}

/// Closes the stream to the aggregator, and waits until the aggregator has noticed the end of the stream. Without the
/// wait, the aggregator may consider the connection lost, and wait for the agent.
async fn say_goodbye(out: Out, sender: Arc<Sender>, mut from: Streaming<v1::ToAgent>) {
    drop((out, sender));
    let until_it_ends = async { while let Ok(Some(_)) = from.message().await {} };
    let _ = tokio::time::timeout(GOODBYE_MAX, until_it_ends).await;
}

type Out = mpsc::Sender<v1::FromAgent>;

/// Maximum number of messages without data in the queue to the network. If the queue is full, the sender waits.
const MESSAGES_MAX: usize = 16;

/// Sends a message, and waits for room in the queue if necessary. If the aggregator accepts no message for
/// `SILENCE_SECONDS`, the connection counts as lost.
async fn send(out: &Out, message: From) -> Result<(), String> {
    let message = v1::FromAgent { message: Some(message) };
    let deadline = Duration::from_secs(SILENCE_SECONDS);
    out.send_timeout(message, deadline)
        .await
        .map_err(|_| format!("the aggregator accepted no message for {SILENCE_SECONDS} s"))
}

/// Runs one session with an aggregator: sends `Hello`, waits for `Welcome`, announces the files that wait for an
/// answer (`kept`) again, and then sends orders and receives messages until the session ends. Returns why it ended.
async fn run_session(
    options: &LinkOptions,
    way: &Way,
    channel: Channel,
    orders: &mut mpsc::Receiver<Order>,
    kept: &mut Kept,
    news: &mpsc::Sender<News>,
) -> Ended {
    // A link holds at most this number of queued frames, and in addition the few frames that are being filled.
    let frames = usize::try_from(options.budget_bytes / FRAME_BYTES as u64).unwrap_or(usize::MAX).clamp(4, 1024) / 2;
    let readers = Semaphore::new((frames / 2).clamp(1, 4));
    let (out, queue) = mpsc::channel::<v1::FromAgent>(MESSAGES_MAX);
    let (data_out, data_queue) = mpsc::channel(frames);
    let sender = Arc::new(Sender { data: data_out, messages: out.clone(), frames: FramePool::new(frames), readers });
    let mut client = AggregatorClient::new(WithData::new(channel, data_queue))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let hello = v1::Hello {
        version: *WIRE_VERSIONS.start(),
        newest_version: *WIRE_VERSIONS.end(),
        node: options.node.clone(),
        job: options.job.to_string(),
        ranks: options.ranks,
        group_size: options.group_size,
        software: SOFTWARE.into(),
        identity: options.identity.clone(),
        watch: options.watch.clone(),
        local_ranks: options.local_ranks.clone(),
        ranks_from: options.ranks_from.into(),
        clock_ns: options.began_ns,
    };
    if let Err(reason) = send(&out, From::Hello(hello)).await {
        return Ended::Failed(reason);
    }
    let deadline = Duration::from_secs(SILENCE_SECONDS);
    let opened = tokio::time::timeout(deadline, client.session(ReceiverStream::new(queue))).await;
    let mut from = match opened {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return Ended::Failed(reason_of(&status)),
        Err(_) => return Ended::Failed("the aggregator did not answer".into()),
    };
    match tokio::time::timeout(deadline, from.message()).await {
        Ok(Ok(Some(v1::ToAgent { message: Some(To::Welcome(welcome)) })))
            if WIRE_VERSIONS.contains(&welcome.version) =>
        {
            if options.own_aggregators && welcome.serves != options.identity {
                return Ended::Failed("an aggregator that does not belong to this start of the job".into());
            }
            tracing::info!(aggregator = way.address(), software = welcome.software, "session began");
            options.sessions.began(options.link, way.address());
            let mode = CaptureMode::wanted(welcome.take_apart, welcome.leave_filters);
            let welcome = News::Welcome { link: options.link, mode, has_none: welcome.has_none };
            if news.send(welcome).await.is_err() {
                return Ended::NoOrders;
            }
        }
        Ok(Ok(Some(v1::ToAgent { message: Some(To::Goodbye(goodbye)) }))) if !goodbye.retry => {
            return Ended::Refused(goodbye.reason);
        }
        Ok(Ok(Some(v1::ToAgent { message: Some(To::Goodbye(goodbye)) }))) => return Ended::Failed(goodbye.reason),
        Ok(Ok(_)) => {
            return Ended::Refused(format!(
                "the aggregator did not answer Hello with a Welcome of {} of the protocol; install the newer release everywhere",
                named(&WIRE_VERSIONS)
            ));
        }
        Ok(Err(status)) => return Ended::Failed(reason_of(&status)),
        Err(_) => return Ended::Failed("the aggregator did not answer Hello".into()),
    }
    for held in kept.held.values() {
        if let Err(reason) = offer(&out, held).await {
            return Ended::Left(reason);
        }
    }
    if kept.leaving
        && let Err(reason) = send(&out, From::Looked(v1::Looked { leaving: true })).await
    {
        return Ended::Left(reason);
    }
    let mut heartbeat = tokio::time::interval(Duration::from_secs(HEARTBEAT_SECONDS));
    heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut heard = tokio::time::Instant::now();
    // Whether the agent has reported to the aggregator that no announcement waits for an answer. After this report no
    // timer runs here, and only the kernel's keep-alive probes check the connection.
    let mut at_rest = false;
    let answers = async |address: String| connect(&address, &options.security).await.is_ok();
    let first_is_back = Way::first_is_back(way.detour(), options.link, answers);
    tokio::pin!(first_is_back);
    loop {
        // Each arm only makes an event, so cancellation loses no work.
        tokio::select! {
            order = orders.recv() => {
                let sent = match order {
                    None => {
                        say_goodbye(out, sender, from).await;
                        return Ended::NoOrders;
                    }
                    Some(Order::Hurry) => {
                        kept.hurry = true;
                        Ok(())
                    }
                    Some(Order::Looked { leaving }) => {
                        kept.leaving |= leaving;
                        send(&out, From::Looked(v1::Looked { leaving })).await
                    }
                    Some(Order::Hold(h)) => {
                        kept.held.insert(h.announce_id, Arc::clone(&h));
                        if std::mem::take(&mut at_rest) {
                            heard = tokio::time::Instant::now();
                            heartbeat.reset();
                        }
                        offer(&out, &h).await
                    }
                    Some(Order::Forget { announce_id, withdraw }) => {
                        let forgotten = kept.held.remove(&announce_id);
                        if kept.held.is_empty() && !at_rest {
                            heartbeat.reset_immediately();
                        }
                        match (forgotten, withdraw) {
                            (Some(h), Some(reason)) => {
                                let label = h.label.to_string();
                                send(&out, From::Withdraw(v1::Withdraw { label, rank: h.rank.0, reason })).await
                            }
                            _ => Ok(()),
                        }
                    }
                };
                if let Err(reason) = sent {
                    return Ended::Left(reason);
                }
            }
            message = from.message() => {
                heard = tokio::time::Instant::now();
                let message = match message {
                    Ok(Some(message)) => message.message,
                    Ok(None) => return Ended::Left("the aggregator closed the session".into()),
                    Err(status) => return Ended::Left(reason_of(&status)),
                };
                match message {
                    Some(To::Goodbye(goodbye)) if goodbye.retry => return Ended::Left(goodbye.reason),
                    Some(To::Goodbye(goodbye)) => return Ended::Refused(goodbye.reason),
                    Some(To::Fetch(fetch)) => {
                        let held = kept.held.get(&fetch.announce_id).cloned();
                        tokio::spawn(answer(fetch, held, Arc::clone(&sender), news.clone()));
                    }
                    Some(To::Room(v1::Room { announce_id })) => {
                        let sent = match kept.held.get(&announce_id) {
                            Some(held) => announce(&out, held).await,
                            None => send(&out, From::Retract(v1::Retract { announce_id })).await,
                        };
                        if let Err(reason) = sent {
                            return Ended::Left(reason);
                        }
                    }
                    Some(To::Look(_)) => {
                        if news.send(News::Look { link: options.link }).await.is_err() {
                            return Ended::NoOrders;
                        }
                    }
                    Some(other) => match news_of(other) {
                        Ok(None) => {}
                        Ok(Some(told)) => {
                            if news.send(told).await.is_err() {
                                return Ended::NoOrders;
                            }
                        }
                        Err(reason) => return Ended::Left(reason),
                    },
                    None => return Ended::Refused("the aggregator sent a message of an unknown kind".into()),
                }
            }
            () = &mut first_is_back => return Ended::Returned,
            _ = heartbeat.tick(), if !at_rest => {
                if heard.elapsed() > deadline {
                    return Ended::Left(format!("the aggregator sent no message for {SILENCE_SECONDS} s"));
                }
                let nothing_waits = kept.held.is_empty();
                let message = From::Heartbeat(v1::Heartbeat { at_rest: nothing_waits, clock_ns: steady_ns() });
                match out.try_send(v1::FromAgent { message: Some(message) }) {
                    Ok(()) if nothing_waits => {
                        at_rest = true;
                        sender.frames.clear();
                        tokio::task::spawn_blocking(memory::give_back);
                    }
                    Ok(()) => {}
                    Err(_) if out.is_closed() => return Ended::Left("the session has ended".into()),
                    Err(_) => {}
                }
            }
        }
    }
}

fn news_of(message: To) -> Result<Option<News>, String> {
    let parse = |label: String| {
        label.parse::<CheckpointId>().map_err(|error| format!("the aggregator sent a bad checkpoint name: {error}"))
    };
    match message {
        To::Committed(v1::Committed { label, rank, checkpoint, all_groups, announce_id }) => {
            let (label, checkpoint) = (parse(label)?, parse(checkpoint)?);
            Ok(Some(News::Committed { announce_id, label, rank: Rank(rank), checkpoint, exists: all_groups }))
        }
        To::Abandoned(v1::Abandoned { label, rank, reason, retry, announce_id, whole }) => {
            Ok(Some(News::Abandoned { announce_id, label: parse(label)?, rank: Rank(rank), reason, retry, whole }))
        }
        To::Again(v1::Again { label, rank }) => Ok(Some(News::Again { label: parse(label)?, rank: Rank(rank) })),
        To::Heartbeat(_) => Ok(None),
        To::Welcome(_) | To::Fetch(_) | To::Goodbye(_) | To::Look(_) | To::Room(_) => Ok(None),
    }
}

/// Sends a short announcement completely. If the announcement is long, sends only its length. The aggregator asks for
/// the announcement when it has memory.
async fn offer(out: &Out, held: &Held) -> Result<(), String> {
    let total_bytes = held.announcement.len();
    if total_bytes <= ANNOUNCED_AT_ONCE_BYTES {
        return announce(out, held).await;
    }
    let (announce_id, label, rank) = (held.announce_id, held.label.to_string(), held.rank.0);
    let (total_bytes, clock_ns) = (total_bytes as u64, steady_ns());
    let part = v1::AnnouncePart { announce_id, label, rank, total_bytes, clock_ns, ..Default::default() };
    send(out, From::Announce(part)).await
}

async fn announce(out: &Out, held: &Held) -> Result<(), String> {
    let total_bytes = held.announcement.len() as u64;
    let mut rest = held.announcement.clone();
    let mut offset = 0;
    loop {
        let part = rest.split_to(rest.len().min(FRAME_BYTES));
        let next = offset + part.len() as u64;
        let (announce_id, label, rank) = (held.announce_id, held.label.to_string(), held.rank.0);
        let clock_ns = steady_ns();
        let part = v1::AnnouncePart { announce_id, label, rank, total_bytes, offset, part, clock_ns };
        send(out, From::Announce(part)).await?;
        offset = next;
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// The queues and buffers for the answers to the fetches of one session.
struct Sender {
    data: mpsc::Sender<v1::Data>,
    messages: Out,
    frames: Arc<FramePool>,
    /// Limits the number of files that are read at the same time.
    readers: Semaphore,
}

/// Reads the ranges of a fetch and sends them in frames. The files are read on threads that may block.
async fn answer(fetch: v1::Fetch, held: Option<Arc<Held>>, sender: Arc<Sender>, news: mpsc::Sender<News>) {
    let Ok(_permit) = sender.readers.acquire().await else { return };
    let (fetch_id, announce_id) = (fetch.fetch_id, fetch.announce_id);
    let runtime = tokio::runtime::Handle::current();
    let to = Arc::clone(&sender);
    let read = tokio::task::spawn_blocking(move || {
        let Some(held) = held else {
            return Err(Unread { reason: "the announcement is not valid any more".into(), changed: true });
        };
        let deadline = Duration::from_secs(SILENCE_SECONDS);
        read_ranges(&fetch, &held, &to.frames, |offset, bytes| {
            let data = v1::Data { fetch_id, offset, bytes };
            runtime.block_on(to.data.send_timeout(data, deadline)).map_err(|_| {
                let reason = format!("the aggregator accepted no message for {SILENCE_SECONDS} s");
                Unread { reason, changed: false }
            })
        })
    })
    .await;
    let unread = match read {
        Ok(Ok(())) => return,
        Ok(Err(unread)) => unread,
        Err(error) => Unread { reason: format!("reading failed: {error}"), changed: false },
    };
    if unread.changed {
        let _ = news.send(News::Changed { announce_id }).await;
    }
    tracing::warn!(announce_id, reason = unread.reason, "a fetch cannot be answered");
    let failed = v1::FetchFailed { fetch_id, reason: unread.reason, changed: unread.changed };
    let _ = send(&sender.messages, From::FetchFailed(failed)).await;
}

/// A pool of frame buffers for reuse. Allocating fresh memory takes longer than reading data into it.
struct FramePool {
    free: Mutex<Vec<Vec<u8>>>,
    /// Maximum number of free buffers in the pool. This number is equal to the maximum number of frames in flight.
    most: usize,
}

impl FramePool {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), most })
    }

    /// Takes a buffer of this length with unspecified content.
    fn take(self: &Arc<Self>, bytes: usize) -> FrameBuffer {
        let mut buffer = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        FrameBuffer { buffer, pool: Arc::clone(self) }
    }

    /// Frees all buffers in the pool.
    fn clear(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }
}

/// A buffer of a pool. Dropping this value returns the buffer to the pool.
struct FrameBuffer {
    buffer: Vec<u8>,
    pool: Arc<FramePool>,
}

impl AsRef<[u8]> for FrameBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.pool.most {
            free.push(std::mem::take(&mut self.buffer));
        }
    }
}

struct Unread {
    reason: String,
    changed: bool,
}

impl std::convert::From<CaptureError> for Unread {
    fn from(error: CaptureError) -> Self {
        Self { changed: error.is_transient(), reason: error_chain(&error) }
    }
}

/// Fills frames with the ranges, in the order of the ranges. A frame may contain many small ranges.
fn read_ranges(
    fetch: &v1::Fetch,
    held: &Held,
    pool: &Arc<FramePool>,
    mut each: impl FnMut(u64, Bytes) -> Result<(), Unread>,
) -> Result<(), Unread> {
    let bad = |reason: String| Unread { reason, changed: false };
    let asked = fetch.ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.bytes));
    if asked != Some(fetch.total_bytes) || fetch.total_bytes > FETCH_BYTES_MAX {
        return Err(bad(format!(
            "the ranges of a fetch do not add up to its {} bytes, or are too long",
            fetch.total_bytes
        )));
    }
    let new_frame = |sent: u64| pool.take((fetch.total_bytes - sent).min(FRAME_BYTES as u64) as usize);
    // Number of bytes of the fetch that were sent, number of bytes in the current frame, and the current frame.
    let (mut sent, mut filled, mut frame) = (0u64, 0, new_frame(0));
    for range in &fetch.ranges {
        let file = held.files.get(range.file as usize).filter(|file| {
            let variable = file.header().variables.get(range.variable as usize);
            variable.is_some_and(|v| range.offset.checked_add(range.bytes).is_some_and(|end| end <= v.raw_bytes.0))
        });
        let Some(file) = file else {
            return Err(bad(format!(
                "file {}, variable {}, {} bytes at {}: there is no such range",
                range.file, range.variable, range.bytes, range.offset
            )));
        };
        let (mut offset, mut left) = (range.offset, range.bytes);
        while left > 0 {
            let bytes = left.min((frame.buffer.len() - filled) as u64);
            let end = filled + bytes as usize;
            file.read_raw(range.variable as usize, offset, &mut frame.buffer[filled..end])?;
            (offset, left, filled) = (offset + bytes, left - bytes, end);
            // The buffer is full. The length of the buffer is the length of a frame, or the number of remaining bytes
            // of the fetch.
            if filled == frame.buffer.len() {
                let next = sent + filled as u64;
                each(sent, Bytes::from_owner(std::mem::replace(&mut frame, new_frame(next))))?;
                (sent, filled) = (next, 0);
            }
        }
    }
    Ok(())
}
