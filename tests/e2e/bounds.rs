//! A daemon stays within its limits of memory, connections and work, for any messages of its peers.

use crate::support::*;
use mcr_proto::convert::file_to_wire;
use mcr_proto::v1::aggregator_client::AggregatorClient;
use mcr_proto::v1::from_agent::Message as Say;
use mcr_proto::v1::to_agent::Message as Hear;
use mcr_proto::version::WIRE_VERSIONS;
use mcr_proto::{ANNOUNCED_AT_ONCE_BYTES, v1};
use mcr_test_support::Process;
use mcr_test_support::measure::process_status;
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, Rank};
use mcrengine::units::RawBytes;
use prost::Message;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const LAYOUT: &str = "layout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20\ncheckpoint-quiet-ms = 50";

/// The value of a line of /proc/PROCESS/status, in KiB.
fn kib(process: u32, field: &str) -> u64 {
    process_status(process, field).expect("it runs")
}

/// Runs a command, which must succeed, and returns its peak memory in KiB.
fn peak_kib(command: &mut Command) -> u64 {
    let mut process = Process::start(command).expect("it starts");
    let mut peak_kib = 0;
    loop {
        if let Some(status) = process.0.try_wait().expect("it can be waited for") {
            assert!(status.success(), "{command:?}: {status}");
            return peak_kib;
        }
        peak_kib = process_status(process.id(), "VmHWM").unwrap_or(0).max(peak_kib);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Processor time that a process has used, in 1/100 s.
fn ticks(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().map(|&nth| fields[nth].parse::<u64>().expect("a number")).sum()
}

/// A simple agent for tests.
struct Peer {
    out: mpsc::Sender<v1::FromAgent>,
    from: Streaming<v1::ToAgent>,
}

impl Peer {
    async fn connect(address: &str, ranks: u32) -> Self {
        let mut client = AggregatorClient::connect(format!("http://{address}")).await.expect("it listens");
        let (out, queue) = mpsc::channel(64);
        let (job, node) = ("job".into(), "by hand".into());
        let hello =
            v1::Hello { version: *WIRE_VERSIONS.start(), node, job, ranks, group_size: ranks, ..Default::default() };
        let peer = |from| Self { out, from };
        let session = client.session(ReceiverStream::new(queue)).await.expect("a session");
        let mut peer = peer(session.into_inner());
        peer.say(Say::Hello(hello)).await;
        assert!(matches!(peer.hear().await, Some(Hear::Welcome(_))));
        peer
    }

    async fn say(&self, message: Say) {
        // If the aggregator has closed the stream, sending fails. The test examines the aggregator's answer instead.
        let _ = self.out.send(v1::FromAgent { message: Some(message) }).await;
    }

    async fn hear(&mut self) -> Option<Hear> {
        loop {
            match self.from.message().await.ok().flatten()?.message? {
                Hear::Heartbeat(_) => {}
                message => return Some(message),
            }
        }
    }

    async fn part(&self, rank: u32, announce_id: u64, (offset, total_bytes): (usize, usize), part: &[u8]) {
        let (label, part) = ("it_1".into(), part.to_vec().into());
        let (offset, total_bytes) = (offset as u64, total_bytes as u64);
        let part = v1::AnnouncePart { announce_id, label, rank, total_bytes, offset, part, clock_ns: 0 };
        self.say(Say::Announce(part)).await;
    }
}

/// An announcement of one file with `variables` small variables.
fn announcement(rank: u32, variables: u64) -> Vec<u8> {
    let variable = |nth: u64| VariableHeader {
        role: if nth == 0 { Role::Skeleton } else { Role::Array },
        path: if nth == 0 { "".into() } else { format!("/state/variable {nth}").into() },
        element: if nth == 0 { ElementType::Bytes } else { ElementType::F64 },
        shape: Shape([if nth == 0 { 8 } else { 1 }].into()),
        chunk: Default::default(),
        raw_bytes: RawBytes(8),
        digest: Digest::of(&nth.to_le_bytes()),
        filters: [].into(),
        extents: [Extent { offset: 8 * nth, stored_bytes: 8, raw_bytes: 8 }].into(),
    };
    let header = FileHeader {
        path: FilePath::new(format!("rank{rank}").into_bytes()).expect("valid"),
        rank: Rank(rank),
        bytes: 8 * variables,
        kind: Default::default(),
        mode: 0o644,
        modified_ns: 1,
        digest: Digest::of(b"file"),
        variables: (0..variables).map(variable).collect(),
    };
    header.check().expect("a sound header");
    let files = vec![file_to_wire(&header)];
    v1::Announcement { files, written_unix_ns: 1, ..Default::default() }.encode_to_vec()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[test]
fn an_agent_at_rest_that_answers_a_question_is_still_at_rest() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "a", &dir.path().join("store"), "group-size = 2");
    let is_at_rest = || {
        let status = run_json(mcr().args(["status", "--aggregators", &address]), 0);
        status["aggregators"][0]["agents"][0]["at_rest"].as_bool().expect("an agent")
    };
    runtime().block_on(async {
        let peer = Peer::connect(&address, 2).await;
        assert!(!is_at_rest());
        peer.say(Say::Heartbeat(v1::Heartbeat { at_rest: true, clock_ns: 0 })).await;
        peer.say(Say::Looked(v1::Looked { leaving: false })).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(is_at_rest());
        peer.part(0, 1, (0, 100), &[0; 50]).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!is_at_rest());
    });
}

#[test]
fn announcements_under_way_stay_within_the_budget_of_an_aggregator_and_others_are_served() {
    const BUDGET_MIB: u64 = 16;
    const RANKS: u32 = 64;
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let more = format!("group-size = {RANKS}\nsegment-mib = 1\nbudget-mib = {BUDGET_MIB}");
    let (aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, &more);
    let before_kib = kib(aggregator.id(), "VmRSS");
    let check = |what: &str| {
        let grown_mib = kib(aggregator.id(), "VmHWM").saturating_sub(before_kib) >> 10;
        // The budget does not include messages that are being read. These messages may take 32 MiB.
        assert!(grown_mib <= BUDGET_MIB + 32, "{what}: {grown_mib} MiB with a budget of {BUDGET_MIB}");
        eprintln!("{what}: {grown_mib} MiB with a budget of {BUDGET_MIB}");
    };
    runtime().block_on(async {
        // 32 peers together send 1 GiB, although the aggregator requested nothing.
        let part = vec![7; 1 << 20];
        let mut rude = Vec::new();
        for _ in 0..32 {
            let peer = Peer::connect(&address, RANKS).await;
            for announce_id in 1..=4 {
                for nth in 0..8 {
                    peer.part(0, announce_id, (nth << 20, 64 << 20), &part).await;
                }
            }
            rude.push(peer);
        }
        let mut heard = Vec::new();
        for peer in &mut rude {
            heard.push(tokio::time::timeout(Duration::from_secs(10), peer.hear()).await.ok().flatten());
        }
        check("peers that do not wait");
        // A peer whose stream was reset has received nothing. Other peers may first receive the answer that the
        // announcement is too large.
        for told in heard.into_iter().flatten() {
            match &told {
                Hear::Abandoned(told) if told.whole && told.reason.contains("never fits") => {}
                Hear::Goodbye(told) if told.reason.contains("waits for memory") => {}
                _ => panic!("{told:?}"),
            }
        }

        // Other peers follow the protocol. Rank 0 is missing, so the announcements of the other ranks stay in memory.
        let mut polite = Vec::new();
        for rank in 1..RANKS {
            let peer = Peer::connect(&address, RANKS).await;
            let whole = announcement(rank, 4000);
            assert!(whole.len() > ANNOUNCED_AT_ONCE_BYTES, "{} bytes", whole.len());
            peer.part(rank, 1, (0, whole.len()), &[]).await;
            polite.push(tokio::spawn(async move {
                let mut peer = peer;
                let told = tokio::time::timeout(Duration::from_secs(5), peer.hear()).await.ok().flatten();
                if let Some(Hear::Room(_)) = &told {
                    for (nth, part) in whole.chunks(1 << 16).enumerate() {
                        peer.part(rank, 1, (nth << 16, whole.len()), part).await;
                    }
                }
                (peer, told)
            }));
        }
        let (mut asked, mut peers) = (0, Vec::new());
        for task in polite {
            let (peer, told) = task.await.expect("no panic");
            match told {
                Some(Hear::Room(_)) => asked += 1,
                None => {} // the aggregator has not answered yet
                other => panic!("{other:?}"),
            }
            peers.push(peer);
        }
        assert!((2..20).contains(&asked), "{asked} peers were asked for their announcements");
        let status = run_json(mcr().args(["status", "--aggregators", &address]), 0);
        let leased = status["aggregators"][0]["leased_bytes"].as_u64().expect("a number");
        assert!((1..=BUDGET_MIB << 20).contains(&leased), "{leased} bytes are leased");
        check("peers that wait for their turn");
        drop((rude, peers));
    });
    let watch = dir.path().join("run");
    std::fs::create_dir(&watch).expect("made");
    let more = format!("ranks = 2\ngroup-size = {RANKS}\n{LAYOUT}");
    let _agent = Daemon::agent(dir.path(), "n", &watch, &[address], &more);
    (0..2).for_each(|rank| write_rank(&watch, 7, rank, 20_000));
    wait_complete(&store, "sim.it_7");
    check("a checkpoint afterwards");
}

/// Writes the file of one rank with `datasets` small datasets.
fn write_many(dir: &Path, step: u32, rank: u32, datasets: usize) {
    let file = begin_rank(dir, step, rank, 2000);
    let group = file.create_group("many").expect("created");
    for nth in 0..datasets {
        let values = field(step, rank + nth as u32, 4);
        group.new_dataset_builder().with_data(&values).create(format!("d{nth}").as_str()).expect("written");
    }
    file.close().expect("closed");
}

#[test]
fn ranks_whose_announcements_never_fit_the_budget_are_saved_with_their_files_whole_and_the_log_says_what_to_raise() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, watch, to) = (dir.path().join("store"), dir.path().join("run"), dir.path().join("back"));
    std::fs::create_dir(&watch).expect("made");
    let (_aggregator, address) =
        Daemon::aggregator(dir.path(), "a", &store, "group-size = 2\nsegment-mib = 1\nbudget-mib = 3");
    let agent = Daemon::agent(dir.path(), "n", &watch, &[address], &format!("ranks = 2\ngroup-size = 2\n{LAYOUT}"));
    write_many(&watch, 1, 0, 6000);
    write_many(&watch, 1, 1, 1500);
    wait_complete(&store, "sim.it_1");
    agent.wait_for_log("never fits");
    let log = agent.log();
    assert!(!log.contains("the announcement of rank 1"), "that one fits: {log}");
    assert!(log.contains("raise the aggregator's budget-mib to "), "{log}");
    run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to), 0);
    assert_same_files(&contents(&watch), &contents(&to));
}

#[test]
fn an_aggregator_out_of_descriptors_serves_who_is_there_rests_and_makes_room_for_who_comes() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, watch) = (dir.path().join("store"), dir.path().join("run"));
    std::fs::create_dir(&watch).expect("made");
    let (aggregator, address) =
        Daemon::aggregator_by(mcr_with_files(64), dir.path(), "a", &store, "group-size = 2\nsegment-mib = 1");
    let more = format!("ranks = 2\ngroup-size = 2\n{LAYOUT}");
    let _agent = Daemon::agent(dir.path(), "n", &watch, std::slice::from_ref(&address), &more);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 2000));
    wait_complete(&store, "sim.it_1");
    // Half of the connections send the preface of HTTP/2. No connection calls a method.
    let idle: Vec<TcpStream> = (0..100)
        .map(|nth| {
            let mut stream = TcpStream::connect(&address).expect("the kernel takes it");
            if nth % 2 == 0 {
                stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("written");
            }
            stream
        })
        .collect();
    aggregator.wait_for_log("no room for more connections");
    (0..2).for_each(|rank| write_rank(&watch, 2, rank, 2000));
    wait_complete(&store, "sim.it_2");
    let used = ticks(aggregator.id());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(aggregator.id()) - used;
    assert!(used <= 40, "{used} hundredths of a second of processor time within two seconds of waiting");
    wait_for("an answer while all the others are there", Duration::from_secs(60), || {
        let status = mcr().args(["status", "--aggregators", &address]).output().expect("it starts");
        status.status.success().then_some(())
    });
    let lines = aggregator.log().lines().count();
    assert!(lines < 100, "{lines} lines in the log");
    drop(idle);
}

#[test]
fn a_file_of_zeros_behind_gzip_costs_what_is_stored_and_not_what_it_inflates_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store, to) = (dir.path().join("data"), dir.path().join("store"), dir.path().join("back"));
    std::fs::create_dir(&data).expect("made");
    {
        let file = hdf5::File::create(data.join("zeros.h5")).expect("created");
        let zeros = vec![0u8; 64 << 20];
        file.new_dataset_builder().deflate(6).chunk(4 << 20).with_data(&zeros).create("x").expect("written");
    }
    let stored_bytes = std::fs::metadata(data.join("zeros.h5")).expect("written").len();
    assert!(stored_bytes < 1 << 20, "{stored_bytes} bytes");
    for profile in ["raw", "fast"] {
        let (store, to) = (store.join(profile), to.join(profile));
        run(mcr().arg("save").arg(&data).args(["--create", "--profile", profile, "--store"]).arg(&store), 0);
        let kept: usize = contents(&store).values().map(Vec::len).sum();
        assert!(kept < 1 << 20, "{profile}: {kept} bytes in the store for a file of {stored_bytes}");
        run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to), 0);
        assert_same_files(&contents(&data), &contents(&to));
    }
}

#[test]
fn a_sparse_file_far_larger_than_the_memory_is_saved_and_restored_and_stays_sparse() {
    const PEAK_KIB: u64 = 256 << 10;
    // BENCHMARKS.md has the result for 100 GiB.
    let gib: u64 = std::env::var("MCR_SPARSE_GIB").map_or(1, |gib| gib.parse().expect("a number of GiB"));
    let bytes = gib << 30;
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store, to) = (dir.path().join("data"), dir.path().join("store"), dir.path().join("back"));
    std::fs::create_dir(&data).expect("made");
    let file = std::fs::File::create(data.join("dump.1.0")).expect("created");
    file.set_len(bytes).expect("as long as this");
    let written: Vec<u8> = (0..1u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for at in [5 << 20, 600 << 20, bytes - written.len() as u64] {
        file.write_all_at(&written, at).expect("written");
    }
    drop(file); // a file that is open for writing is not saved
    let mut save = mcr();
    save.arg("save").arg(&data).args(["--create", "--layout", "dump.{checkpoint}.{rank}", "--ranks", "1"]);
    let begun = Instant::now();
    let saving_kib = peak_kib(save.args(["--budget-mib", "128", "--store"]).arg(&store));
    let saved = begun.elapsed();
    let restoring_kib = peak_kib(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to));
    let restored = begun.elapsed() - saved;
    println!("{gib} GiB: saved in {saved:.1?}, {saving_kib} KiB; restored in {restored:.1?}, {restoring_kib} KiB");
    assert!(saving_kib < PEAK_KIB && restoring_kib < PEAK_KIB, "{saving_kib} KiB, {restoring_kib} KiB");
    let mut files = [data, to].map(|dir| std::fs::File::open(dir.join("dump.1.0")).expect("there"));
    let taken = files[1].metadata().expect("stat").blocks() * 512;
    assert!(taken < 64 << 20, "the restored file takes {taken} bytes");
    let mut pieces = [vec![0; 8 << 20], vec![0; 8 << 20]];
    for at in (0..bytes).step_by(8 << 20) {
        for (file, piece) in files.iter_mut().zip(&mut pieces) {
            file.read_exact(piece).expect("read");
        }
        assert!(pieces[0] == pieces[1], "a byte after byte {at} differs");
    }
}

#[test]
fn decoding_takes_no_more_memory_than_the_budget_or_than_one_segment() {
    const RANKS: u32 = 4;
    const BUDGET_MIB: u64 = 256;
    // A segment of 4-byte floats takes 8 times its 32 MiB while it is decoded. The program takes the rest.
    const PEAK_KIB: u64 = (8 * 32 + BUDGET_MIB / 2 + 32 + 64) << 10;
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store) = (dir.path().join("data"), dir.path().join("store"));
    std::fs::create_dir(&data).expect("made");
    for rank in 0..RANKS {
        let numbers: Vec<f32> = (0..8u32 << 20).map(|n| ((n + rank * 977) as f32 * 1e-4).sin() * 100.0).collect();
        let file = hdf5::File::create(data.join(format!("sim.1.{rank}.h5"))).expect("created");
        let array = file.new_dataset_builder().with_data(&numbers).create("temperature");
        array.and_then(|_| file.close()).expect("written");
    }
    let mut save = mcr();
    save.arg("save").arg(&data).args(["--create", "--layout", "sim.{checkpoint}.{rank}.h5", "--profile", "balanced"]);
    run(save.arg("--store").arg(&store), 0);
    let budget = BUDGET_MIB.to_string();
    let small = |command: &str, more: &[&Path]| {
        let mut mcr = mcr();
        mcr.args([command, "--threads", "4", "--budget-mib", &budget, "--store"]).arg(&store).args(more);
        peak_kib(&mut mcr)
    };
    let peaks =
        [small("verify", &[]), small("restart", &[Path::new("--copy"), Path::new("--to"), &dir.path().join("back")])];
    assert!(peaks.iter().all(|kib| (1..PEAK_KIB).contains(kib)), "{peaks:?} KiB, at most {PEAK_KIB}");
    for rank in 0..RANKS {
        let file = format!("sim.1.{rank}.h5");
        let read = |dir: &Path| std::fs::read(dir.join(&file)).expect("read");
        assert!(read(&data) == read(&dir.path().join("back")), "{file}");
    }
}
