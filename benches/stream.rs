//! At what rate do an agent and an aggregator on loopback transfer a checkpoint, compared with a bare tonic stream?
//! The goal is 60 % of the rate of the bare stream, with the profile `raw`.
//!
//! *Bare* is one bidirectional stream with messages of 1 MiB. All messages share one payload, and the receiver counts
//! and drops the messages. The HTTP/2 frames have 16 KiB, the default of tonic, or the length that mcrEngine uses. No
//! file is read, checked or written.
//!
//! *Ours* is an agent and an aggregator in this process, each with a runtime with two threads as in the daemons. The
//! HDF5 files of doubles and the store are on a file system in memory (MCR_BENCH_DIR, default /dev/shm). The daemons
//! do all the work of production: each byte is read from its file, sent, compared with the digest of its variable,
//! put in a segment, checksummed, hashed again for the container, written, and synced. *Stream* is the time from the
//! beginning of the flush to the commit. *All* is the time from the beginning of the capture, which reads and hashes
//! every file before it is announced.
//!
//! Before each measurement the bench allocates and frees more memory than the checkpoint needs. The host of a virtual
//! machine may have taken free memory away, and returns this memory slowly. Without this step, waiting for the host
//! would take half of the measured time. MCR_BENCH_COLD=1 skips this step.
//!
//! The measurements of the streams alternate. On a shared machine, wall times are unreliable. So the bench also
//! prints the processor time of this process in nanoseconds per byte, and computes the share of the rate from both
//! times. MCR_BENCH_REPETITIONS sets the repetitions (default 15), and MCR_BENCH_MIB the size of the checkpoint in
//! MiB (default 1024).

use mcr_anc::Aggregator;
use mcr_anc::config::AncOptions;
use mcr_cnc::agent::Agent;
use mcr_cnc::config::{CncOptions, LayoutOptions};
use mcr_cnc::h5::{FileMap, H5Error, MapInput, MapSource, Maps};
use mcr_proto::v1::aggregator_client::AggregatorClient;
use mcr_proto::v1::aggregator_server::{self, AggregatorServer};
use mcr_proto::{FRAME_BYTES, HTTP_FRAME_BYTES, MESSAGE_BYTES_MAX, v1};
use mcr_test_support::bytes_below;
use mcr_test_support::measure::{Sample, is_asked_for, repetitions};
use mcrengine::store::PosixStore;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

const RANKS: u32 = 8;
const DATASETS: usize = 16;

fn main() {
    if !is_asked_for() {
        return;
    }
    let mib = std::env::var("MCR_BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(1024);
    let dir = std::env::var_os("MCR_BENCH_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let dir = tempfile::tempdir_in(dir).expect("a directory");
    let files = dir.path().join("files");
    write_files(&files, mib);
    let bytes = bytes_below(&files);
    let [mut bare, mut bare_as_ours, mut stream, mut all] = [const { Measured::new() }; 4];
    let [mut share, mut share_as_ours, mut share_of_cpu] = [const { Sample::new() }; 3];
    let n = repetitions(15);
    let is_cold = std::env::var_os("MCR_BENCH_COLD").is_some();
    // The first round warms up and is not counted.
    for round in 0..=n {
        let [mut of_bare, mut of_as_ours, mut of_stream, mut of_all] = [Cost::default(); 4];
        for turn in 0..3 {
            if !is_cold {
                have_memory(bytes);
            }
            match (round + turn) % 3 {
                0 => of_bare = bare_stream(bytes, None),
                1 => of_as_ours = bare_stream(bytes, Some(HTTP_FRAME_BYTES)),
                _ => (of_stream, of_all) = through_ours(dir.path(), &files),
            }
        }
        if round > 0 {
            bare.push(bytes, of_bare);
            bare_as_ours.push(bytes, of_as_ours);
            stream.push(bytes, of_stream);
            all.push(bytes, of_all);
            share.push(of_bare.wall_s / of_stream.wall_s * 100.0);
            share_as_ours.push(of_as_ours.wall_s / of_stream.wall_s * 100.0);
            share_of_cpu.push(of_bare.cpu_s / of_stream.cpu_s * 100.0);
        }
    }
    println!("{:.1} MB in {RANKS} files; median [quartiles; extremes] of {n}", bytes as f64 / 1e6);
    bare.print("bare tonic stream of 1 MiB messages");
    bare_as_ours.print("bare tonic stream with the HTTP/2 frame size of mcrEngine");
    stream.print("ours, stream");
    all.print("ours, all");
    println!("  rate of ours, stream, in % of the bare stream: {}", share.show());
    println!("  rate of ours, stream, in % of the bare stream with the same frame size: {}", share_as_ours.show());
    println!("  processor time of the bare stream in % of ours, stream: {}", share_of_cpu.show());
}

/// Allocates, touches and frees a quarter more than `bytes`, so that the system has this much memory ready.
fn have_memory(bytes: u64) {
    drop(std::hint::black_box(vec![1u8; (bytes / 4 * 5) as usize]));
}

/// The wall time and the processor time of a measurement.
#[derive(Clone, Copy, Default)]
struct Cost {
    wall_s: f64,
    cpu_s: f64,
}

/// A point in wall time and in processor time.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    cpu_s: f64,
}

impl Mark {
    fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("known");
        let cpu_us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Self { at: Instant::now(), cpu_s: cpu_us as f64 / 1e6 }
    }

    fn since(self, before: Self) -> Cost {
        Cost { wall_s: (self.at - before.at).as_secs_f64(), cpu_s: self.cpu_s - before.cpu_s }
    }
}

struct Measured {
    mb_per_s: Sample,
    cpu_ns_per_byte: Sample,
}

impl Measured {
    const fn new() -> Self {
        Self { mb_per_s: Sample::new(), cpu_ns_per_byte: Sample::new() }
    }

    fn push(&mut self, bytes: u64, cost: Cost) {
        self.mb_per_s.push(bytes as f64 / 1e6 / cost.wall_s);
        self.cpu_ns_per_byte.push(cost.cpu_s * 1e9 / bytes as f64);
    }

    fn print(&self, what: &str) {
        let (rate, cpu) = (&self.mb_per_s, &self.cpu_ns_per_byte);
        println!("  {what}: {} MB/s; {:.2} ns of processor time for each byte", rate.show(), cpu.median());
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

/// A service that counts the received bytes, and ends its answer when the stream of the client ends.
struct Counter(Arc<AtomicU64>);

#[tonic::async_trait]
impl aggregator_server::Aggregator for Counter {
    type SessionStream = ReceiverStream<Result<v1::ToAgent, Status>>;
    type RestoreStream = ReceiverStream<Result<v1::RestoreFrame, Status>>;

    async fn session(&self, from: Request<Streaming<v1::FromAgent>>) -> Result<Response<Self::SessionStream>, Status> {
        let (out, answer) = tokio::sync::mpsc::channel(1);
        let (mut from, count) = (from.into_inner(), Arc::clone(&self.0));
        tokio::spawn(async move {
            while let Ok(Some(message)) = from.message().await {
                if let Some(v1::from_agent::Message::Data(data)) = message.message {
                    count.fetch_add(data.bytes.len() as u64, Ordering::Relaxed);
                }
            }
            drop(out);
        });
        Ok(Response::new(ReceiverStream::new(answer)))
    }

    async fn restore(&self, _: Request<v1::RestoreRequest>) -> Result<Response<Self::RestoreStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// Sends `bytes` bytes through a bare stream, in HTTP/2 frames of `http_frame_bytes`, or of 16 KiB if this is `None`.
fn bare_stream(bytes: u64, http_frame_bytes: Option<u32>) -> Cost {
    let (near, far) = (runtime(), runtime());
    let count = Arc::new(AtomicU64::new(0));
    let counter = Counter(Arc::clone(&count));
    let address = far.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let service = AggregatorServer::new(counter).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .max_frame_size(http_frame_bytes)
            .tcp_nodelay(true)
            .add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    });
    near.block_on(async {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = channel.tcp_nodelay(true).connect().await.expect("connected");
        let mut client = AggregatorClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (out, queue) = tokio::sync::mpsc::channel(16);
        let payload = bytes::Bytes::from(vec![0x5a; FRAME_BYTES]);
        let mut answer = client.session(ReceiverStream::new(queue)).await.expect("a stream").into_inner();
        let started = Mark::now();
        for i in 0..bytes / FRAME_BYTES as u64 {
            let offset = i * FRAME_BYTES as u64;
            let data = v1::Data { fetch_id: 1, offset, bytes: payload.clone() };
            let message = v1::FromAgent { message: Some(v1::from_agent::Message::Data(data)) };
            out.send(message).await.expect("taken");
        }
        drop(out);
        while let Ok(Some(_)) = answer.message().await {}
        assert_eq!(count.load(Ordering::Relaxed), bytes / FRAME_BYTES as u64 * FRAME_BYTES as u64);
        Mark::now().since(started)
    })
}

/// Reads files like [`Maps`], and records the time when the first file is captured.
struct Noting {
    maps: Maps,
    first: Arc<Mutex<Option<Mark>>>,
}

impl MapSource for Noting {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        self.first.lock().expect("not poisoned").get_or_insert_with(Mark::now);
        self.maps.map(input)
    }
}

/// Saves one checkpoint. Returns the time from the beginning of the flush to the commit, and the time from the
/// beginning of the capture to the commit.
fn through_ours(dir: &Path, files: &Path) -> (Cost, Cost) {
    let (near, far) = (runtime(), runtime());
    let store = dir.join("store");
    let posix = PosixStore::create(&store).expect("a store");
    let anc = AncOptions {
        store: store.clone(),
        listen: "127.0.0.1:0".into(),
        profile: "raw".parse().expect("a profile"),
        ..AncOptions::default()
    };
    let aggregator =
        far.block_on(Aggregator::start(anc.check().expect("a configuration"), Arc::new(posix))).expect("an aggregator");
    let cnc = CncOptions {
        job: Some("bench".into()),
        watch: Some(files.to_owned()),
        layout: LayoutOptions::Named("{checkpoint}.rank_{rank}.h5".into()),
        ranks: Some(RANKS),
        aggregators: vec![aggregator.address.to_string()],
        state_file: Some(dir.join("state")),
        scan_quiet_ms: 10,
        checkpoint_quiet_ms: 10,
        ..CncOptions::default()
    };
    let config = cnc.check_with(&|_: &str| None).expect("a configuration");
    let (layout, _) = config.resolve_layout(false).expect("a layout");
    let first = Arc::new(Mutex::new(None));
    let maps = Arc::new(Noting { maps: Maps::new(), first: Arc::clone(&first) });
    let agent = near.block_on(async { Agent::start_with(config, layout, maps, None) }).expect("an agent");

    let checkpoint = store.join("bench").join("sim.it_1");
    let deadline = Instant::now() + Duration::from_secs(120);
    let wait_for = |is_there: &dyn Fn(&Path) -> bool| {
        while !is_there(&checkpoint) {
            assert!(Instant::now() < deadline, "no commit within two minutes");
            std::thread::sleep(Duration::from_millis(1));
        }
        Mark::now()
    };
    // The container's temporary file is created just before the first fetch.
    let flushing = wait_for(&|dir| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()));
    let committed = wait_for(&|dir| dir.join("group-0000.manifest").exists());
    let captured = first.lock().expect("not poisoned").expect("a file was captured");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    near.block_on(
        agent
            .drain(mcr_cnc::agent::DrainOrder { until: until.into(), processes: mcr_cnc::agent::Processes::EndedWell }),
    );
    far.block_on(aggregator.drain(until));
    std::fs::remove_dir_all(&store).expect("removed");
    std::fs::remove_file(dir.join("state")).expect("removed");
    (committed.since(flushing), committed.since(captured))
}

/// Writes the files of one checkpoint, with doubles that are all different.
fn write_files(dir: &Path, mib: usize) {
    std::fs::create_dir(dir).expect("made");
    let len = (mib << 20) / 8 / RANKS as usize / DATASETS;
    for rank in 0..RANKS {
        let file = hdf5::File::create(dir.join(format!("sim.it_1.rank_{rank}.h5"))).expect("created");
        for dataset in 0..DATASETS {
            let start = f64::from(rank) + dataset as f64 * 0.01;
            let field: Vec<f64> = (0..len).map(|i| (start + i as f64 * 1e-3).sin()).collect();
            let name = format!("field{dataset}");
            file.new_dataset_builder().with_data(&field).create(name.as_str()).expect("written");
        }
        file.close().expect("closed");
    }
}
