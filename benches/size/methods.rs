//! The methods that the benchmark compares: mcr with its profiles, mcr's daemons, and other programs.

use mcr_test_support::measure::process_status;
use mcr_test_support::{Process, clean, wait_for};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of one command.
const DEADLINE: Duration = Duration::from_secs(3600);
const PASSWORD_OF_RESTIC: &str = "a benchmark, not a secret";

/// A way to store a checkpoint.
pub struct Method {
    pub name: &'static str,
    /// The program that must be installed. `None` for mcr.
    needs: Option<&'static str>,
    pub kind: Kind,
}

/// How a method is run.
#[derive(Clone, Copy)]
pub enum Kind {
    /// `mcr save` with this profile.
    Save(&'static str),
    /// An agent and an aggregator with this profile. The files exist before the daemons start.
    Daemons(&'static str),
    /// Command lines for `bash`. `$1` is the source, and `$2` is the target.
    Shell { save: &'static str, restore: Option<&'static str> },
}

/// All methods. Each command ends when its result is durable.
pub const METHODS: [Method; 10] = [
    Method { name: "mcr save, fast", needs: None, kind: Kind::Save("fast") },
    Method { name: "mcr save, balanced", needs: None, kind: Kind::Save("balanced") },
    Method { name: "mcr cnc and anc, fast", needs: None, kind: Kind::Daemons("fast") },
    Method { name: "mcr cnc and anc, balanced", needs: None, kind: Kind::Daemons("balanced") },
    shell("cp", "cp", "cp -r \"$1\" \"$2\" && sync -f \"$2\"", Some("cp -r \"$1\" \"$2\" && sync -f \"$2\"")),
    shell(
        "tar, lz4",
        "lz4",
        "tar c -C \"$1\" . | lz4 -q - \"$2\" && sync \"$2\"",
        Some("mkdir \"$2\" && lz4 -dcq \"$1\" | tar x -C \"$2\" && sync -f \"$2\""),
    ),
    shell("tar, zstd -1", "zstd", "tar c -C \"$1\" . | zstd -q -1 -T0 -o \"$2\" && sync \"$2\"", Some(UNZSTD)),
    shell("tar, zstd -3", "zstd", "tar c -C \"$1\" . | zstd -q -3 -T0 -o \"$2\" && sync \"$2\"", Some(UNZSTD)),
    shell(
        "h5repack, shuffle and gzip -1",
        "h5repack",
        "mkdir \"$2\" && find \"$1\" -type f -printf '%f\\0' | \
         xargs -0 -P \"$(nproc)\" -I{} h5repack -f SHUF -f GZIP=1 \"$1/{}\" \"$2/{}\" && sync -f \"$2\"",
        None, // applications read the new files, which differ from the original files, so nothing is restored
    ),
    shell(
        "restic",
        "restic",
        "restic init -q -r \"$2\" && cd \"$1\" && restic backup -q --no-cache -r \"$2\" . && sync -f \"$2\"",
        Some("restic restore -q --no-cache -r \"$1\" latest --target \"$2\" && sync -f \"$2\""),
    ),
];
const UNZSTD: &str = "mkdir \"$2\" && zstd -dcq \"$1\" | tar x -C \"$2\" && sync -f \"$2\"";

const fn shell(name: &'static str, needs: &'static str, save: &'static str, restore: Option<&'static str>) -> Method {
    Method { name, needs: Some(needs), kind: Kind::Shell { save, restore } }
}

/// Time and memory of a command.
pub struct Measured {
    pub elapsed: Duration,
    /// The peak memory of a process of mcr, in KiB. The value is 0 for other programs.
    pub peak_kib: u64,
}

impl Method {
    /// The program that is missing for this method.
    pub fn missing(&self) -> Option<&'static str> {
        let is_there = |program: &&str| {
            let found = Command::new("bash").args(["-c", "command -v \"$0\"", program]).stdout(Stdio::null()).status();
            found.is_ok_and(|status| status.success())
        };
        self.needs.filter(|program| !is_there(program))
    }

    /// Stores the files of `dir` in `to`. `ranks` is the number of files.
    pub fn save(&self, dir: &Path, to: &Path, ranks: u32) -> Measured {
        match self.kind {
            Kind::Save(profile) => {
                let mut command = mcr();
                command.args(["save", "--create", "--job", "bench", "--layout", LAYOUT, "--profile", profile]);
                command.args(["--ranks", &ranks.to_string(), "--store"]).arg(to).arg(dir);
                run(command)
            }
            Kind::Daemons(profile) => {
                let daemons = Daemons { profile, threads: 0, budget_mib: None };
                run_daemons(&daemons, dir, to, ranks, |_| {})
            }
            Kind::Shell { save, .. } => run(bash(save, dir, to)),
        }
    }

    /// Restores the files from `from` to `to`, which does not exist. `None` if the method cannot restore files.
    pub fn restore(&self, from: &Path, to: &Path) -> Option<Measured> {
        match self.kind {
            Kind::Shell { restore, .. } => restore.map(|line| run(bash(line, from, to))),
            Kind::Save(_) | Kind::Daemons(_) => {
                let mut command = mcr();
                command.args(["restart", "--job", "bench", "--copy", "--to"]).arg(to).arg("--store").arg(from);
                Some(run(command))
            }
        }
    }

    /// Verifies the stored checkpoint. Returns `None` for other programs than mcr.
    pub fn verify(&self, from: &Path) -> Option<Measured> {
        if let Kind::Shell { .. } = self.kind {
            return None;
        }
        let mut command = mcr();
        command.args(["verify", "--job", "bench", "--store"]).arg(from);
        Some(run(command))
    }
}

pub const LAYOUT: &str = "{checkpoint}.rank_{rank}.h5";

/// The settings of the daemons.
pub struct Daemons {
    pub profile: &'static str,
    /// Number of threads of the aggregator; 0: one for each core.
    pub threads: u32,
    /// Memory budget of the aggregator. `None`: the default.
    pub budget_mib: Option<u32>,
}

/// Runs an aggregator and an agent until the checkpoint is complete in the store. Returns the time from the start of
/// the agent. `watch` is called every 5 ms with the process id of the aggregator.
pub fn run_daemons(of: &Daemons, dir: &Path, store: &Path, ranks: u32, mut watch: impl FnMut(u32)) -> Measured {
    let work = tempfile::tempdir_in(store.parent().expect("has one")).expect("a directory");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let config = work.path().join("mcr.toml");
    let text = format!(
        "[anc]\nstore = {store:?}\ncreate = true\nlisten = \"127.0.0.1:{port}\"\nprofile = {:?}\n\
         threads = {}\n{}[cnc]\njob = \"bench\"\nwatch = {dir:?}\nstate-file = {:?}\n\
         aggregators = [\"127.0.0.1:{port}\"]\nlayout = {LAYOUT:?}\nranks = {ranks}\n",
        of.profile,
        of.threads,
        of.budget_mib.map_or(String::new(), |mib| format!("budget-mib = {mib}\n")),
        work.path().join("state")
    );
    std::fs::write(&config, text).expect("written");
    let start = |what: &str| {
        let mut command = mcr();
        command.arg(what).arg("--config").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(&mut command).expect("it starts")
    };
    let aggregator = start("anc");
    wait_for("the aggregator", Duration::from_secs(10), || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let started = Instant::now();
    let agent = start("cnc");
    let is_complete = || {
        let listed = mcr().args(["list", "--json", "--job", "bench", "--store"]).arg(store).output().ok()?;
        let all: serde_json::Value = serde_json::from_slice(&listed.stdout).ok()?;
        (all["checkpoints"].as_array()?.first()?["complete"] == true).then_some(())
    };
    // The list costs processor time, so it is read seldom.
    for look in 0_u32.. {
        assert!(started.elapsed() < DEADLINE, "the checkpoint: not within {} s", DEADLINE.as_secs());
        watch(aggregator.id());
        if look.is_multiple_of(8) && is_complete().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let elapsed = started.elapsed();
    let peak = |process: &Process| process_status(process.id(), "VmHWM").unwrap_or(0);
    let peak_kib = peak(&aggregator).max(peak(&agent));
    for process in [agent, aggregator] {
        process.end("TERM").expect("it ends");
    }
    Measured { elapsed, peak_kib }
}

pub fn mcr() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_mcr")))
}

fn bash(line: &str, from: &Path, to: &Path) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("set -o pipefail; {line}")).arg("bash").arg(from).arg(to);
    command.env("RESTIC_PASSWORD", PASSWORD_OF_RESTIC);
    command
}

/// Runs a command that must succeed. If the command is mcr, reads its peak memory every 5 ms.
fn run(command: Command) -> Measured {
    run_watched(command, |_| {})
}

/// Like [`run`], and calls `watch` every 5 ms with the process id.
pub fn run_watched(mut command: Command, mut watch: impl FnMut(u32)) -> Measured {
    let errors = tempfile::NamedTempFile::new().expect("a file");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.reopen().expect("opened"));
    let is_of_mcr = Path::new(command.get_program()) == Path::new(env!("CARGO_BIN_EXE_mcr"));
    let started = Instant::now();
    let mut process = Process::start(&mut command).expect("it starts");
    let mut peak_kib = 0;
    let status: ExitStatus = loop {
        if let Some(status) = process.0.try_wait().expect("it can be waited for") {
            break status;
        }
        assert!(started.elapsed() < DEADLINE, "{command:?}: not within {} s", DEADLINE.as_secs());
        if is_of_mcr {
            peak_kib = process_status(process.id(), "VmHWM").unwrap_or(0).max(peak_kib);
        }
        watch(process.id());
        std::thread::sleep(Duration::from_millis(5));
    };
    let elapsed = started.elapsed();
    let said = || std::fs::read_to_string(errors.path()).unwrap_or_default();
    assert!(status.success(), "{command:?}: {status}\n{}", said());
    Measured { elapsed, peak_kib }
}

/// Removes a file or a directory, and waits until the disk has nothing left to write.
pub fn remove(path: &PathBuf) {
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    run(bash("sync -f \"$1\"", path.parent().expect("has one"), path));
}
