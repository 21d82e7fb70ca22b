//! Helpers for tests with real processes and real files. The helpers wait with deadlines and do not sleep for fixed
//! times.

pub use mcr_test_support::{assert_same_files, contents, run, run_json, wait_for};

use mcr_test_support::{Process, clean};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The binary under test, without the caller's environment variables that would change its behaviour.
pub fn mcr() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_mcr")))
}

/// `mcr run` for job `job` with two ranks, without its directories and its command.
pub fn mcr_run(layout: &str) -> Command {
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "2", "--layout", layout]);
    command
}

/// The binary under test with a limit of open files.
pub fn mcr_with_files(most: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {most} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_mcr")]);
    clean(command)
}

/// The level of an aggregator's log that has a line for each committed group.
pub const LOG_OF_GROUPS: &str = "info,mcr_anc::hub::flushing=debug";

/// A daemon under test. The process is killed when this value is dropped.
pub struct Daemon {
    process: Process,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    pub fn start(command: &mut Command) -> Self {
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut process = Process::start(command).expect("the daemon starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, lines) = (process.0.stderr.take().expect("piped"), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().expect("not poisoned").push(line);
            }
        });
        Self { process, log }
    }

    /// Starts an aggregator with a store, on a port that the system picks.
    pub fn aggregator(dir: &Path, name: &str, store: &Path, more: &str) -> (Self, String) {
        let mut by = mcr();
        by.env("MCR_LOG", LOG_OF_GROUPS);
        Self::aggregator_by(by, dir, name, store, more)
    }

    /// Starts an aggregator with the given command.
    pub fn aggregator_by(mut by: Command, dir: &Path, name: &str, store: &Path, more: &str) -> (Self, String) {
        let config = dir.join(format!("{name}.toml"));
        let text = format!("[anc]\nstore = {store:?}\ncreate = true\nlisten = \"127.0.0.1:0\"\n{more}\n");
        std::fs::write(&config, text).expect("written");
        let daemon = Self::start(by.arg("anc").arg("--config").arg(&config));
        let address = daemon.address();
        (daemon, address)
    }

    /// Starts an agent that watches a directory.
    pub fn agent(dir: &Path, name: &str, watch: &Path, aggregators: &[String], more: &str) -> Self {
        Self::agent_by(mcr(), dir, name, watch, aggregators, more)
    }

    /// Starts an agent with the given command.
    pub fn agent_by(mut by: Command, dir: &Path, name: &str, watch: &Path, aggregators: &[String], more: &str) -> Self {
        let config = dir.join(format!("{name}.toml"));
        let state = dir.join(format!("{name}.state"));
        let text = format!(
            "[cnc]\njob = \"job\"\nnode = {name:?}\nwatch = {watch:?}\nstate-file = {state:?}\naggregators = \
             {aggregators:?}\n{more}\n"
        );
        std::fs::write(&config, text).expect("written");
        Self::start(by.arg("cnc").arg("--config").arg(&config))
    }

    /// The address on which the aggregator listens, from its log.
    pub fn address(&self) -> String {
        let line = self.wait_for_log("aggregator listens");
        let at = line.split("address=").nth(1).expect("an address in the line");
        at.split_whitespace().next().expect("an address in the line").to_owned()
    }

    pub fn wait_for_log(&self, what: &str) -> String {
        wait_for(what, Duration::from_secs(30), || {
            self.log.lock().expect("not poisoned").iter().find(|line| line.contains(what)).cloned()
        })
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("not poisoned").join("\n")
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().expect("can be waited for").is_some()
    }

    /// Sends SIGKILL. The daemon finishes nothing and reports nothing.
    pub fn kill(mut self) {
        self.process.kill().expect("it can be killed and waited for");
    }

    /// Sends the signal with the given name.
    pub fn signal(&self, name: &str) {
        assert!(self.process.signal(name));
    }

    /// Waits for the end. Returns the exit status and the whole log.
    pub fn end(mut self) -> (Option<i32>, String) {
        let status = wait_for("the end of a daemon", Duration::from_secs(60), || {
            self.process.0.try_wait().expect("can be waited for")
        });
        // All lines are read when the thread that reads the pipe has ended.
        wait_for("the last lines", Duration::from_secs(10), || (Arc::strong_count(&self.log) == 1).then_some(()));
        (status.code(), self.log())
    }

    /// Sends SIGTERM. Returns the exit status.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        wait_for("the end of a daemon after SIGTERM", Duration::from_secs(40), || {
            self.process.0.try_wait().expect("can be waited for")
        })
        .code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill(); // an error is ignored, because the daemon may have ended already
        if std::thread::panicking() {
            eprintln!("--- log of process {}\n{}", self.id(), self.log());
        }
    }
}

/// The numbers of a rank at a step. The numbers are smooth and depend on rank and step.
pub fn field(step: u32, rank: u32, len: usize) -> Vec<f64> {
    (0..len).map(|i| (f64::from(step) * 0.1 + f64::from(rank) + i as f64 * 0.01).sin() * 1e3).collect()
}

/// Writes the file of one rank as an application does, directly under its final name. The HDF5 library writes another
/// file first: a process that another test starts at this moment inherits the library's descriptor, and its children
/// would keep the file open for writing.
pub fn write_rank(dir: &Path, step: u32, rank: u32, len: usize) {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = begin_rank(scratch.path(), step, rank, len);
    let name = Path::new(&file.filename()).file_name().expect("has one").to_owned();
    file.close().expect("closed");
    let bytes = std::fs::read(scratch.path().join(&name)).expect("readable");
    std::fs::write(dir.join(name), bytes).expect("written");
}

/// The file of [`write_rank`], still open for more writes. After the file is closed, opening it again may fail,
/// because of the lock that is explained below.
pub fn begin_rank(dir: &Path, step: u32, rank: u32, len: usize) -> hdf5::File {
    let path = dir.join(format!("sim.it_{step}.rank_{rank}.h5"));
    // HDF5 locks the file. A process that another test starts at this moment inherits the descriptor and holds the
    // lock until that process executes its program.
    let mut created = hdf5::File::create(&path);
    for _ in 0..200 {
        if created.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        created = hdf5::File::create(&path);
    }
    let file = created.expect("created");
    let group = file.create_group("state").expect("created");
    group.new_dataset_builder().with_data(&field(step, rank, len)).create("temperature").expect("written");
    group.new_dataset_builder().with_data(&field(0, rank, len / 2)).create("mesh").expect("written");
    let ids: Vec<i32> = (0..len as i32 / 4).map(|i| i + step as i32).collect();
    group.new_dataset_builder().shuffle().deflate(6).chunk(64).with_data(&ids).create("ids").expect("written");
    file.new_attr::<u32>().create("step").and_then(|a| a.write_scalar(&step)).expect("written");
    file
}

/// The output of `mcr list`, newest first.
pub fn list(store: &Path) -> Vec<serde_json::Value> {
    run_json(mcr().args(["list", "--store"]).arg(store), 0)["checkpoints"].as_array().expect("a list").clone()
}

/// Makes a store that only its user can change, with any umask.
pub fn make_store(path: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).expect("made");
}

/// Waits until a checkpoint is listed as complete.
pub fn wait_complete(store: &Path, id: &str) {
    wait_for(&format!("checkpoint {id} complete"), Duration::from_secs(60), || {
        store
            .exists()
            .then(|| list(store))
            .and_then(|all| all.into_iter().find(|c| c["checkpoint"] == id && c["complete"] == true))
    });
}

/// Makes the work directory and the store of a job of SLURM below `dir`, and the user's file `mcr.toml`. `more` are
/// further lines of this file.
pub fn write_job_files(dir: &Path, job_id: &str, more: &str) {
    std::fs::create_dir_all(dir.join("work/out")).expect("made");
    make_store(&dir.join("store"));
    let settings = format!(
        "job = \"melt{job_id}\"\nwatch = \"out\"\nlayout = \"{{checkpoint}}/rank_{{rank}}.dat\"\nstore = {:?}\n\
         quiet-ms = 20\ncheckpoint-quiet-ms = 40\n{more}",
        dir.join("store")
    );
    std::fs::write(dir.join("work/mcr.toml"), settings).expect("written");
}

/// Waits until the worker of the only listed job has reported. Returns the column "aggregators" of `mcr job list`.
pub fn aggregators_of_the_job(run_dir: &Path) -> String {
    wait_for("the report of a worker", Duration::from_secs(30), || {
        let output = run(mcr().args(["job", "list", "--run-dir"]).arg(run_dir), 0);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let places: Vec<&str> = text.lines().nth(1)?.split_whitespace().skip(3).collect();
        (places != ["-"]).then(|| places.join(" "))
    })
}
