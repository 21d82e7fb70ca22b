//! The aggregator-node component: gathers the headers of a group of ranks, pulls their variables in the order of a plan,
//! merges, compresses and writes them as one container, and on restart does the same upwards.
//!
//! Knows variables, not HDF5. A message's way: [`serve`] checks it, [`hub`] owns what it means, [`group::step`] decides,
//! [`flush::flush_checkpoint`] does the work, [`fetch`] pulls the bytes.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod budget;
pub mod choosing;
pub mod compress;
pub mod config;
pub mod fetch;
pub mod flush;
pub mod group;
pub mod hub;
pub mod instance;
pub mod looking_back;
pub mod observe;
pub mod rate;
pub mod restart;
pub mod retention;
pub mod serve;
pub mod source;

use config::AncConfig;
use hub::{Hub, HubEvent};
use mcr_proto::{HTTP_FRAME_BYTES, KEEPALIVE_RETRIES, KEEPALIVE_SECONDS};
use mcrengine::store::Store;
use serve::Service;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;

/// A running aggregator.
pub struct Aggregator {
    /// Where it listens; the port that was given, if the configuration says 0.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

/// How long a drain may take: inside Slurm's KillWait of 30 s.
const DRAIN: Duration = Duration::from_secs(25);
/// How long agents may take to leave after it.
const GOODBYE: Duration = Duration::from_secs(2);

impl Aggregator {
    /// Listens and serves until [`Aggregator::drain`].
    pub async fn start(config: AncConfig, store: Arc<dyn Store>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let (idle, interval) = KEEPALIVE_SECONDS;
        let incoming = TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .with_keepalive(Some(Duration::from_secs(idle)))
            .with_keepalive_interval(Some(Duration::from_secs(interval)))
            .with_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let budget = budget::Budget::new(config.budget_bytes);
        let flush = &config.hub.flush;
        let takes = (flush.plan.scheme.takes_files_apart(), flush.profile.leaves_filters());
        let (group_size, threads, ranks) = (config.hub.group_size, config.hub.flush.threads, config.hub.ranks);
        let (hub, events, received) = Hub::new(Arc::clone(&store), config.hub, Arc::clone(&budget));
        let service = Service::new(events.clone(), store, budget, takes, group_size, threads).with_ranks(ranks);
        let hub = tokio::spawn(hub.run(received));
        let (stop, stopped) = oneshot::channel::<()>();
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
            let _ = stopped.await;
            let (done, drained) = oneshot::channel();
            // What is flushing is finished; what only gathers is given up, and its files are still on the nodes.
            if events.send(HubEvent::Shutdown(done)).await.is_ok()
                && tokio::time::timeout(DRAIN, drained).await.is_err()
            {
                tracing::warn!(seconds = DRAIN.as_secs(), "a flush did not end in time; its checkpoint does not exist");
            }
            hub.abort();
            let _ = shut.send(());
            // Without the hub every session says goodbye, which takes its last answers along.
            if tokio::time::timeout(GOODBYE, &mut server).await.is_err() {
                server.abort();
            }
        });
        tracing::info!(%address, "aggregator listens");
        Ok(Self { address, stop, ended })
    }

    /// Stops accepting, finishes what is flushing, gives up the rest.
    pub async fn drain(self) {
        let _ = self.stop.send(());
        let _ = self.ended.await;
    }
}
