//! Does a checkpoint cost more if the store has more checkpoints? How long does `mcr list` take with many
//! checkpoints?
//!
//! An aggregator and an agent run as two processes on loopback. Four ranks write one HDF5 file each, and a part of
//! each file changes at each step. The store is filled with copies of a real checkpoint under other names. Then more
//! checkpoints are saved one after the other. The bench repeats these steps for each number of checkpoints in the
//! store, and for 1 and 4 groups. Each case is measured without a retention rule, and with a rule that keeps this
//! number of checkpoints. Goals: the processor time of the aggregator for each checkpoint differs by at most 20 %
//! between 10 and 10,000 checkpoints, and `mcr list` with 10,000 checkpoints takes less than a second.
//!
//! The processor time includes all threads of the process, also threads that have ended. Opens and directory listings
//! are system calls. If strace is installed, strace counts these calls while further checkpoints are saved. The first
//! checkpoint after a start reads the whole store once, so its time is printed separately.
//!
//! Command: `cargo bench -p mcr-cli --bench many -- [NUMBER...]`. MCR_BENCH_REPETITIONS sets the number of
//! checkpoints that are saved (default 20). MCR_BENCH_BINARY names another build of `mcr`, for example an older
//! build.

use mcr_test_support::measure::{Sample, is_asked_for, process_status, repetitions};
use mcr_test_support::{Process, clean};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: u32 = 4;
/// Numbers of checkpoints in the store.
const SIZES: [usize; 4] = [10, 100, 1000, 10_000];
/// Numbers of groups. One aggregator has all groups.
const GROUPS: [u32; 2] = [1, 4];
/// Doubles of each rank that change at each step.
const CHANGING: usize = 8 << 10;
/// Doubles of each rank that never change.
const STEADY: usize = 2 << 10;
/// The aggregator is at rest if it uses less than 0.5 ms of processor time in an interval of this length.
const REST: Duration = Duration::from_millis(200);

fn main() {
    if !is_asked_for() {
        return;
    }
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    sizes.sort_unstable();
    let n = repetitions(20);
    println!("processor time in ms for each of {n} further checkpoints: median [quartiles; extremes]");
    for groups in GROUPS {
        let site = Site::new(groups);
        site.save_template();
        let mut bases = [None; 2];
        for size in &sizes {
            for (rule, base) in bases.iter_mut().enumerate() {
                site.fill(*size);
                let keep = if rule == 1 { *size } else { 0 };
                let median = site.measure(*size, keep, n);
                let base = base.get_or_insert(median);
                println!(
                    "    {:+.1} % compared with the smallest number of checkpoints",
                    (median / *base - 1.0) * 100.0
                );
            }
            site.fill(*size);
            let mut listing = Sample::new();
            for _ in 0..5 {
                let began = Instant::now();
                let listed = mcr().args(["list", "--json", "--store"]).arg(&site.store).output().expect("it starts");
                listing.push_ms(began.elapsed());
                assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
            }
            println!("{size:6} checkpoints, {groups} groups: mcr list --json {} ms", listing.show());
        }
    }
}

/// A store, the files of the daemons, and a checkpoint whose copies fill the store.
struct Site {
    dir: tempfile::TempDir,
    store: PathBuf,
    run: PathBuf,
    groups: u32,
    step: std::cell::Cell<usize>,
}

impl Site {
    fn new(groups: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, run) = (dir.path().join("store"), dir.path().join("run"));
        std::fs::create_dir(&run).expect("made");
        Self { dir, store, run, groups, step: std::cell::Cell::new(100_000) }
    }

    fn job(&self) -> PathBuf {
        self.store.join("bench")
    }

    /// Starts an aggregator and an agent. The caller must end the agent before the aggregator.
    fn start(&self, keep: usize) -> (Process, Process) {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let config = self.dir.path().join("mcr.toml");
        let group_size = RANKS / self.groups;
        let (store, run, state) = (&self.store, &self.run, self.dir.path().join("state"));
        let text = format!(
            "[anc]\nstore = {store:?}\ncreate = true\nlisten = \"127.0.0.1:{port}\"\ngroup-size = {group_size}\nkeep = {keep}\n\
             [cnc]\njob = \"bench\"\nwatch = {run:?}\nstate-file = {state:?}\naggregators = [\"127.0.0.1:{port}\"]\n\
             layout = \"{{checkpoint}}.rank_{{rank}}.h5\"\nranks = {RANKS}\ngroup-size = {group_size}\n\
             delete-after-commit = true\n"
        );
        std::fs::write(&config, text).expect("written");
        let start = |what: &str| {
            let log = std::fs::File::create(self.dir.path().join(format!("{what}.log"))).expect("made");
            let mut command = mcr();
            command.arg(what).arg("--config").arg(&config).stdout(Stdio::null()).stderr(log);
            Process::start(&mut command).expect("it starts")
        };
        (start("anc"), start("cnc"))
    }

    /// Saves the next step, and waits until all groups are committed.
    fn save(&self) -> String {
        let step = self.step.get() + 1;
        self.step.set(step);
        let id = format!("it_{step:06}");
        for rank in 0..RANKS {
            let hidden = self.run.join(format!(".{id}.{rank}"));
            let file = hdf5::File::create(&hidden).expect("created");
            let field = |seed: f64, len: usize| -> Vec<f64> {
                (0..len).map(|i| (seed + f64::from(rank) + i as f64 * 0.01).sin() * 1e3).collect()
            };
            let put = |name: &str, values: Vec<f64>| {
                file.new_dataset_builder().with_data(&values).create(name).expect("written");
            };
            put("temperature", field(step as f64 * 0.1, CHANGING));
            put("mesh", field(0.5, STEADY));
            file.close().expect("closed");
            std::fs::rename(&hidden, self.run.join(format!("{id}.rank_{rank}.h5"))).expect("renamed");
        }
        let began = Instant::now();
        let is_there = |group: u32| self.job().join(&id).join(format!("group-{group:04}.manifest")).exists();
        while !(0..self.groups).all(is_there) {
            let log = || std::fs::read_to_string(self.dir.path().join("anc.log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(120), "{id} is not committed within two minutes:\n{}", log());
            std::thread::sleep(Duration::from_millis(2));
        }
        id
    }

    /// Saves one checkpoint with the daemons. Copies of this checkpoint fill the store later.
    fn save_template(&self) {
        let (aggregator, agent) = self.start(0);
        let id = self.save();
        let _ = agent.end("TERM");
        let _ = aggregator.end("TERM");
        std::fs::rename(self.job().join(id), self.dir.path().join("template")).expect("renamed");
    }

    /// Fills the store with `size` copies of the template, in the order of their names, and removes everything else.
    fn fill(&self, size: usize) {
        let template = self.dir.path().join("template");
        let text = |group: u32| std::fs::read_to_string(template.join(format!("group-{group:04}.manifest")));
        let manifests: Vec<String> = (0..self.groups).map(|group| text(group).expect("readable")).collect();
        for entry in std::fs::read_dir(self.job()).expect("a directory") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a UTF-8 name");
            let number = name.strip_prefix("it_").and_then(|number| number.parse().ok());
            if number.is_some_and(|number: usize| number > size) {
                std::fs::remove_dir_all(entry.path()).expect("removed");
            }
        }
        for n in 1..=size {
            let id = format!("it_{n:06}");
            let dir = self.job().join(&id);
            if dir.join(format!("group-{:04}.manifest", self.groups - 1)).exists() {
                continue;
            }
            std::fs::create_dir_all(&dir).expect("made");
            for (group, manifest) in manifests.iter().enumerate() {
                let container = format!("group-{group:04}.mcr");
                std::fs::copy(template.join(&container), dir.join(&container)).expect("copied");
                let manifest = renamed(manifest, &id, n as i64 * 1000);
                std::fs::write(dir.join(format!("group-{group:04}.manifest")), manifest).expect("written");
            }
        }
    }

    /// Saves more checkpoints, and returns the median of the processor time of a checkpoint in milliseconds.
    fn measure(&self, size: usize, keep: usize, n: usize) -> f64 {
        let (aggregator, agent) = self.start(keep);
        let process = aggregator.id();
        let spent = || {
            let before = processor_ms(process);
            self.save();
            at_rest(process) - before
        };
        let first = spent();
        // The second checkpoint is not counted, because retention may still have to remove many checkpoints.
        spent();
        let mut sample = Sample::new();
        (0..n).for_each(|_| sample.push(spent()));
        let rule = if keep > 0 { format!("keep = {keep}") } else { "no rule".to_owned() };
        println!("{size:6} checkpoints, {} groups, {rule}: {}; the first {first:.1}", self.groups, sample.show());
        let counted = (n / 4).max(1);
        match count_calls(process, || (0..counted).for_each(|_| drop((self.save(), at_rest(process))))) {
            Some(calls) => {
                let of = |names: &[&str]| {
                    let sum: u64 =
                        names.iter().filter_map(|name| calls.iter().find(|(n, _)| n == name)).map(|c| c.1).sum();
                    sum as f64 / counted as f64
                };
                let (opens, lists) = (of(&["openat", "open"]), of(&["getdents64"]));
                let stats = of(&["statx", "newfstatat", "fstat"]);
                println!(
                    "    system calls per checkpoint: {opens:.0} opens, {lists:.1} directory reads, {stats:.0} stats"
                );
            }
            None => println!("    system calls were not counted, because strace does not work here"),
        }
        let rss_mib = process_status(process, "VmRSS").map_or(f64::NAN, |kib| kib as f64 / 1024.0);
        println!("    memory of the aggregator afterwards: {rss_mib:.1} MiB");
        let _ = agent.end("TERM");
        let _ = aggregator.end("TERM");
        sample.median()
    }
}

/// A copy of a manifest with another checkpoint name and another time.
fn renamed(manifest: &str, id: &str, written_ms: i64) -> String {
    let end = manifest.rfind("blake3 ").expect("a last line");
    let line = |line: &str| {
        let value = |key: &str, value: String| line.trim_start().starts_with(key).then(|| format!("  {key} {value},"));
        let renamed = value("\"checkpoint\":", format!("{id:?}")).filter(|_| line.starts_with("  \""));
        renamed.or_else(|| value("\"written_unix_ms\":", written_ms.to_string())).unwrap_or_else(|| line.to_owned())
    };
    let text: String = manifest[..end].lines().map(|l| line(l) + "\n").collect();
    format!("{text}blake3 {}\n", mcrengine::ids::Digest::of(text.as_bytes()))
}

fn mcr() -> Command {
    let other = std::env::var_os("MCR_BENCH_BINARY");
    clean(Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_mcr").into())))
}

/// Processor time that a process used so far, in milliseconds.
fn processor_ms(process: u32) -> f64 {
    let clock = clock_getcpuclockid(Pid::from_raw(process.cast_signed())).expect("it runs");
    let time = clock.now().expect("a clock");
    time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6
}

/// Waits until a process is at rest, and returns the processor time that it used so far, in milliseconds.
fn at_rest(process: u32) -> f64 {
    let mut before = processor_ms(process);
    loop {
        std::thread::sleep(REST);
        let now = processor_ms(process);
        if now - before < 0.5 {
            return now;
        }
        before = now;
    }
}

/// Counts each system call of a process during `work` with strace. Returns `None` if strace does not work.
fn count_calls(process: u32, work: impl FnOnce()) -> Option<Vec<(String, u64)>> {
    let report = tempfile::NamedTempFile::new().ok()?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-p", &process.to_string(), "-o"]).arg(report.path());
    let mut strace = Process::start(strace.stderr(Stdio::null()).stdout(Stdio::null())).ok()?;
    std::thread::sleep(Duration::from_millis(500));
    if strace.0.try_wait().ok()?.is_some() {
        return None;
    }
    work();
    let _ = strace.end("INT");
    let text = std::fs::read_to_string(report.path()).ok()?;
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        Some((cells.last()?.to_string(), cells.get(3)?.parse().ok()?))
    };
    Some(text.lines().filter_map(row).collect())
}
