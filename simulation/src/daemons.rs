//! The daemons of a simulated job: real agents and real aggregators. Each daemon has threads of its own, so that its
//! processor time is known. A proxy before each aggregator counts the bytes on the wire, and keeps the address of the
//! aggregator when the aggregator is started again.

use crate::store::{Counts, SimulatedStore};
use mcr_anc::Aggregator;
use mcr_anc::config::AncOptions;
use mcr_cnc::agent::{Agent, DrainOrder, Processes};
use mcr_cnc::config::CncOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Size of the buffer of a proxy for one direction of a connection, in bytes.
const PROXY_BUFFER_BYTES: usize = 64 << 10;
/// Time in which a daemon finishes its work when it ends.
const DRAIN: Duration = Duration::from_secs(20);

/// A runtime with one thread for tasks, whose threads have this name.
fn runtime(name: String) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()
}

/// An aggregator, and the proxy before it.
pub struct SimulatedAggregator {
    nth: usize,
    group_size: u32,
    /// The address of the proxy.
    pub address: String,
    target: Arc<Mutex<String>>,
    wire_bytes: Arc<AtomicU64>,
    store: SimulatedStore,
    running: Option<(Aggregator, Runtime)>,
}

impl SimulatedAggregator {
    /// Starts an aggregator. The proxy runs on the runtime `proxies`.
    pub fn start(nth: usize, group_size: u32, store: SimulatedStore, proxies: &Runtime) -> anyhow::Result<Self> {
        let listener = proxies.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let (target, wire_bytes) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicU64::new(0)));
        proxies.spawn(forward(listener, Arc::clone(&target), Arc::clone(&wire_bytes)));
        let mut this = Self { nth, group_size, address, target, wire_bytes, store, running: None };
        this.start_again()?;
        Ok(this)
    }

    /// Starts the aggregator, which must not be running.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let text =
            format!("store = \"/none\"\nlisten = \"127.0.0.1:0\"\ngroup-size = {}\nthreads = 1\n", self.group_size);
        let config = toml::from_str::<AncOptions>(&text)?.check()?;
        let runtime = runtime(format!("anc-{}", self.nth))?;
        let aggregator = runtime.block_on(Aggregator::start(config, Arc::new(self.store.clone())))?;
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&aggregator.address);
        self.running = Some((aggregator, runtime));
        Ok(())
    }

    /// Ends the aggregator at once, as a failure of its node does.
    pub fn kill(&mut self) {
        self.store.kill();
        if let Some((_, runtime)) = self.running.take() {
            runtime.shutdown_background();
        }
        self.store = self.store.for_next_process();
    }

    /// Ends the aggregator after its work is done.
    pub fn end(&mut self) {
        if let Some((aggregator, runtime)) = self.running.take() {
            runtime.block_on(aggregator.drain(Instant::now() + DRAIN));
            runtime.shutdown_background();
        }
    }

    /// The operations of this aggregator on the store.
    pub fn counts(&self) -> Counts {
        self.store.counts()
    }

    /// Bytes between this aggregator and its agents, in both directions.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes.load(Ordering::Relaxed)
    }
}

/// Forwards all connections of a listener to the address `target`, and counts the bytes.
async fn forward(listener: TcpListener, target: Arc<Mutex<String>>, bytes: Arc<AtomicU64>) {
    while let Ok((near, _)) = listener.accept().await {
        let to = target.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bytes = Arc::clone(&bytes);
        tokio::spawn(async move {
            let Ok(far) = TcpStream::connect(to).await else { return };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            // The connection ends when one direction ends.
            tokio::select! {
                () = copy(near_in, far_out, &bytes) => {}
                () = copy(far_in, near_out, &bytes) => {}
            }
        });
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, bytes: &AtomicU64) {
    let mut buffer = vec![0; PROXY_BUFFER_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// The agent of one node.
pub struct SimulatedAgent {
    nth: u32,
    /// The ranks of the node.
    pub ranks: std::ops::Range<u32>,
    /// The directory that the agent watches.
    pub watch: PathBuf,
    config: String,
    running: Option<(Agent, Runtime)>,
}

impl SimulatedAgent {
    /// Starts the agent of a node. `dir` is a directory for the files of the ranks and of the agent.
    pub fn start(
        nth: u32,
        ranks: std::ops::Range<u32>,
        all_ranks: u32,
        group_size: u32,
        dir: &Path,
        aggregators: &[&str],
    ) -> anyhow::Result<Self> {
        let (watch, state) = (dir.join(format!("node{nth}")), dir.join(format!("state{nth}")));
        std::fs::create_dir(&watch)?;
        let (first, last) = (ranks.start, ranks.end - 1);
        let config = format!(
            "job = \"job\"\nnode = \"n{nth}\"\nwatch = {watch:?}\nstate-file = {state:?}\n\
             aggregators = {aggregators:?}\nranks = {all_ranks}\nlocal-ranks = \"{first}-{last}\"\n\
             group-size = {group_size}\ncapture-threads = 1\nquiet-ms = 50\ncheckpoint-quiet-ms = 100\n\
             layout = \"{{checkpoint}}.r{{rank}}\"\n"
        );
        let mut this = Self { nth, ranks, watch, config, running: None };
        this.start_again()?;
        Ok(this)
    }

    /// Starts the agent, which must not be running.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        let config = toml::from_str::<CncOptions>(&self.config)?.check()?;
        let (layout, _) = config.resolve_layout(false)?;
        let runtime = runtime(format!("cnc-{}", self.nth))?;
        let agent = runtime.block_on(async { Agent::start(config, layout) })?;
        self.running = Some((agent, runtime));
        Ok(())
    }

    /// Ends the agent at once, as a failure of its node does.
    pub fn kill(&mut self) {
        if let Some((agent, runtime)) = self.running.take() {
            runtime.block_on(agent.abandon());
            runtime.shutdown_background();
        }
    }

    /// Ends the agent after its work is done.
    pub fn end(&mut self) {
        if let Some((agent, runtime)) = self.running.take() {
            let until = Instant::now() + DRAIN;
            runtime.block_on(agent.drain(DrainOrder { until: until.into(), processes: Processes::MayRun }));
            runtime.shutdown_background();
        }
    }
}
