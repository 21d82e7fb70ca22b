//! How much memory do an agent and an aggregator use, and how often does an agent at rest wake up?
//!
//! An aggregator with a budget of 128 MiB and an agent with a budget of 64 MiB run as two processes on loopback. The
//! two processes save 2 GB of doubles with the default profile. Goals: the aggregator's peak is below 256 MiB. The
//! agent uses less than 32 MiB at rest, and less than its budget plus 32 MiB at work. An agent that is at rest wakes
//! up for the messages of its session, and every 5 s to check the path of the watched directory. The peak is VmHWM, the
//! memory at rest is VmRSS, and wake-ups are voluntary context switches of all threads in a minute. MCR_BENCH_MIB
//! sets the MiB to save (default 1907), and MCR_BENCH_DIR the directory of the files and the store. MCR_BENCH_PROFILE
//! and MCR_BENCH_BUDGET_MIB set the profile and the budget of the aggregator (defaults fast and 128).
//! MCR_BENCH_SPARSE_GIB adds holes, until all files together have this length (default 0). MCR_BENCH_VARIABLES divides
//! the bytes among this number of HDF5 datasets, in groups of 1,000 (default 0: files without structure).

use mcr_test_support::measure::{is_asked_for, process_status};
use mcr_test_support::{Process, Random, bytes_below, clean};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: u32 = 16;
const REST: Duration = Duration::from_secs(60);

fn main() {
    if !is_asked_for() {
        return;
    }
    let number =
        |name: &str, otherwise: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let mib = number("MCR_BENCH_MIB", 1907) as usize;
    let (sparse_gib, variables) = (number("MCR_BENCH_SPARSE_GIB", 0), number("MCR_BENCH_VARIABLES", 0) as usize);
    let profile = std::env::var("MCR_BENCH_PROFILE").unwrap_or_else(|_| "fast".into());
    let budget_mib = number("MCR_BENCH_BUDGET_MIB", 128);
    let dir = match std::env::var_os("MCR_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    }
    .expect("a directory");
    let (store, files) = (dir.path().join("store"), dir.path().join("files"));
    std::fs::create_dir(&files).expect("made");

    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let config = dir.path().join("mcr.toml");
    let text = format!(
        "[anc]\nstore = {store:?}\ncreate = true\nlisten = \"127.0.0.1:{port}\"\nbudget-mib = {budget_mib}\n\
         profile = {profile:?}\n\
         [cnc]\njob = \"bench\"\nwatch = {files:?}\nstate-file = {:?}\naggregators = [\"127.0.0.1:{port}\"]\n\
         layout = \"{{checkpoint}}.rank_{{rank}}.h5\"\nranks = {RANKS}\nbudget-mib = 64\n",
        dir.path().join("state")
    );
    std::fs::write(&config, text).expect("written");
    let start = |what: &str| {
        let mut command = clean(Command::new(env!("CARGO_BIN_EXE_mcr")));
        command.arg(what).arg("--config").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(&mut command).expect("it starts")
    };
    let (aggregator, agent) = (start("anc"), start("cnc"));
    let (anc, cnc) = (aggregator.id(), agent.id());
    let mib_of = |process, field| process_status(process, field).map_or(f64::NAN, |kib| kib as f64 / 1024.0);
    std::thread::sleep(Duration::from_secs(3));

    let rest = |when: &str| {
        let (before_cnc, before_anc) = (switches(cnc), switches(anc));
        std::thread::sleep(REST);
        let (of_cnc, of_anc) = (switches_since(cnc, &before_cnc), switches_since(anc, &before_anc));
        let seconds = REST.as_secs();
        println!("at rest, {when}: agent {:.1} MiB, {of_cnc} wake-ups in {seconds} s", mib_of(cnc, "VmRSS"));
        println!("at rest, {when}: aggregator {:.1} MiB, {of_anc} wake-ups in {seconds} s", mib_of(anc, "VmRSS"));
    };
    rest("after the start");
    let bytes = match variables {
        0 => write_files(&files, mib, sparse_gib << 30),
        _ => write_variables(&files, mib, variables),
    };
    let started = Instant::now();
    let manifest = store.join("bench").join("sim.it_1").join("group-0000.manifest");
    while !manifest.exists() {
        let limit = Duration::from_secs(300 + 10 * sparse_gib + variables as u64 / 1000);
        assert!(started.elapsed() < limit, "no commit within {} s", limit.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
    let stored = bytes_below(&store);
    println!(
        "{:.1} MB raw, {:.1} MB stored, {:.1} s",
        bytes as f64 / 1e6,
        stored as f64 / 1e6,
        started.elapsed().as_secs_f64()
    );
    println!("peak: aggregator {:.1} MiB with a budget of {budget_mib} MiB and {profile}", mib_of(anc, "VmHWM"));
    println!("peak: agent {:.1} MiB with a budget of 64 MiB", mib_of(cnc, "VmHWM"));
    rest("after the checkpoint");
}

/// Number of voluntary context switches of each current thread of a process.
fn switches(process: u32) -> HashMap<PathBuf, u64> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |path: PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let count =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())?;
        Some((path, count))
    };
    threads.filter_map(|thread| of(thread.path())).collect()
}

/// Number of voluntary context switches since `before`. Threads that have ended since `before` are not counted.
fn switches_since(process: u32, before: &HashMap<PathBuf, u64>) -> u64 {
    let since = |(thread, now): (PathBuf, u64)| now - before.get(&thread).copied().unwrap_or(0).min(now);
    switches(process).into_iter().map(since).sum()
}

/// Writes files of doubles that compress about as well as fields of a simulation: smooth values with noise in the low
/// bits. The files end with holes, so that all files together have at least `least_bytes`.
fn write_files(dir: &Path, mib: usize, least_bytes: u64) -> u64 {
    let each = (mib << 20) / RANKS as usize / 8;
    let file_bytes = (each as u64 * 8).max(least_bytes / u64::from(RANKS));
    let mut noise = Random::new(0x9E37_79B9_7F4A_7C15);
    for rank in 0..RANKS {
        let hidden = dir.join(format!(".{rank}.tmp"));
        let name = hidden.with_file_name(format!("sim.it_1.rank_{rank}.h5"));
        let mut file = std::io::BufWriter::new(std::fs::File::create(&hidden).expect("created"));
        for i in 0..each {
            let value = (f64::from(rank) + i as f64 * 1e-4).sin() * 1e3;
            let noisy = f64::from_bits(value.to_bits() ^ noise.next_bits() >> 40);
            file.write_all(&noisy.to_le_bytes()).expect("written");
        }
        let file = file.into_inner().expect("written");
        file.set_len(file_bytes).and_then(|()| file.sync_all()).expect("synced");
        std::fs::rename(&hidden, name).expect("renamed");
    }
    file_bytes * u64::from(RANKS)
}

/// Writes HDF5 files with this number of datasets of doubles in all files together. Returns the bytes of the files.
fn write_variables(dir: &Path, mib: usize, variables: usize) -> u64 {
    let each = variables.div_ceil(RANKS as usize);
    let len = ((mib << 20) / variables / 8).max(1);
    let mut bytes = 0;
    for rank in 0..RANKS {
        let hidden = dir.join(format!(".{rank}.tmp"));
        let file = hdf5::FileBuilder::new().with_fapl(|p| p.libver_latest()).create(&hidden).expect("created");
        for first in (0..each).step_by(1000) {
            let group = file.create_group(&format!("grid_{:04}", first / 1000)).expect("created");
            for nth in first..(first + 1000).min(each) {
                let value = |i: usize| ((nth + i) as f64 * 1e-4 + f64::from(rank)).sin();
                let values: Vec<f64> = (0..len).map(value).collect();
                group
                    .new_dataset_builder()
                    .with_data(&values)
                    .create(&*format!("v{:03}", nth % 1000))
                    .expect("created");
            }
        }
        file.close().expect("closed");
        bytes += hidden.metadata().expect("written").len();
        std::fs::rename(&hidden, dir.join(format!("sim.it_1.rank_{rank}.h5"))).expect("renamed");
    }
    bytes
}
