//! The aggregator node. For a checkpoint, the aggregator gathers the headers (descriptions of the variables) of a
//! group of ranks. Then the aggregator pulls the variables in the order of a plan, merges and compresses the
//! variables, and writes one container. For a restart, the aggregator does the same steps in the opposite order.
//!
//! This crate handles variables and has no HDF5 code. [`serve`] receives and checks messages, [`hub`] holds the
//! state, [`group::step`] decides what to do next, [`flush::flush_checkpoint`] writes a checkpoint, and [`fetch`]
//! pulls the bytes of the variables.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod agent_doubt;
mod announcing;
pub mod attendance;
pub mod budget;
pub mod choosing;
pub mod commit_group;
mod completes;
pub mod compress;
pub mod config;
mod digests;
pub mod drain;
pub mod fetch;
mod fetch_segment;
pub mod flush;
pub mod flush_error;
pub mod group;
pub mod holders;
pub mod hub;
pub mod incarnation;
pub mod instance;
pub mod listen;
pub mod looking_back;
pub mod names;
pub mod newest;
pub mod observe;
mod own_thread;
mod pipeline;
pub mod plan_segments;
pub mod rate;
pub mod restart;
pub mod retention;
pub mod rewritten;
pub mod serve;
pub mod served;
pub mod source;
pub mod spare;
mod unpanicked;

use attendance::Attendance;
use config::AncConfig;
use drain::Uncommitted;
use hub::{Hub, HubEvent, StatusAsker};
use mcr_proto::HTTP_FRAME_BYTES;
use mcrengine::store::Store;
use serve::Service;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A running aggregator.
pub struct Aggregator {
    /// The address on which the aggregator listens. If the configured port is 0, the operating system chose the port.
    pub address: String,
    /// The numbers of agents of the aggregator.
    pub attendance: Arc<Attendance>,
    /// Asks the aggregator for its status.
    pub status: StatusAsker,
    stop: oneshot::Sender<Instant>,
    ended: tokio::task::JoinHandle<Drained>,
}

/// How an aggregator ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Groups that agents had announced completely or partly, and that are not committed.
    pub uncommitted: Vec<Uncommitted>,
    /// Whether the hub ended too early, or did not report in time which groups are committed.
    pub failed: bool,
}

/// Maximum time that a drain reserves for closing the sessions of the agents.
const GOODBYE: Duration = Duration::from_secs(1);

impl Aggregator {
    /// Listens and serves until [`Aggregator::drain`].
    pub async fn start(config: AncConfig, store: Arc<dyn Store>) -> std::io::Result<Self> {
        let listener = listen::bind(&config).await?;
        let address = listener.address()?;
        let security = config.security.of_address(&address);
        let (incoming, socket) = listen::incoming(listener, listen::IDLE_MAX, security);
        let bound = config.drain;
        let budget = budget::Budget::new(config.budget_bytes);
        let flush = &config.hub.flush;
        let (take_apart, leave_filters) = (flush.plan.scheme.takes_files_apart(), flush.profile.leaves_filters());
        let (group_size, threads, ranks) = (config.hub.group_size, config.hub.flush.threads, config.hub.ranks);
        let of_job = config.hub.of_job.clone();
        let (hub, events, received) = Hub::new(Arc::clone(&store), config.hub, Arc::clone(&budget));
        let service = Service::new(events.clone(), store, budget, take_apart, leave_filters, group_size, threads);
        let service = service.with_ranks(ranks).with_of_job(of_job).with_shared(hub.shared());
        let (retention, attendance) = (hub.retention.clone(), hub.attendance());
        let status = StatusAsker::new(events.clone());
        let hub = tokio::spawn(hub.run(received));
        let (stop, stopped) = oneshot::channel::<Instant>();
        let (shut, shutting) = oneshot::channel::<()>();
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .max_frame_size(Some(HTTP_FRAME_BYTES))
            .max_concurrent_streams(64)
            .add_service(service.into_server())
            .serve_with_incoming_shutdown(incoming, async {
                let _ = shutting.await;
            });
        let mut server = tokio::spawn(server);
        let ended = tokio::spawn(async move {
            let until = stopped.await.unwrap_or_else(|_| Instant::now() + bound);
            // A part of the remaining time is reserved for closing the sessions, so that the whole drain ends in
            // time.
            let goodbye = GOODBYE.min(until.saturating_duration_since(Instant::now()) / 4);
            let (done, drained) = oneshot::channel();
            let hub_until = until.checked_sub(goodbye).unwrap_or(until);
            let asked = events.send(HubEvent::Shutdown { until: hub_until, done });
            let answer = async { asked.await.is_ok().then_some(drained.await.ok()).flatten() };
            // The hub ends at the time `hub_until` by itself. The timeout is for a hub that does not answer.
            let last = tokio::time::Instant::from_std(hub_until) + goodbye / 2;
            let uncommitted = tokio::time::timeout_at(last, answer).await.ok().flatten();
            let pruned = tokio::task::spawn_blocking(move || retention.finish(hub_until));
            let _ = tokio::time::timeout_at(last, pruned).await;
            hub.abort();
            let _ = shut.send(());
            // When the hub has ended, each session sends its last answers and closes.
            if tokio::time::timeout(goodbye / 2, &mut server).await.is_err() {
                server.abort();
                let _ = server.await;
            }
            drop(socket); // removes its file
            let failed = uncommitted.is_none();
            Drained { uncommitted: uncommitted.unwrap_or_default(), failed }
        });
        tracing::info!(%address, "aggregator listens");
        Ok(Self { address, attendance, status, stop, ended })
    }

    /// Finishes the checkpoints that agents have announced or may still announce, and abandons all other checkpoints.
    /// Ends the aggregator at the time `until` at the latest.
    pub async fn drain(self, until: Instant) -> Drained {
        let _ = self.stop.send(until);
        // If the task panicked, its panic message was already printed.
        self.ended.await.unwrap_or(Drained { uncommitted: Vec::new(), failed: true })
    }
}
