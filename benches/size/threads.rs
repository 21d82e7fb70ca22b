//! How does the time of a save, of an aggregator and of a restart fall with the number of threads?
//!
//! If the machine has a core for each thread, the time is measured on as many cores as threads. For more threads the
//! time is computed: while the program runs with all its threads on the cores of this machine, every 5 ms the
//! processor time of each thread is read, and which threads are runnable. If `r` threads are runnable and use `c`
//! seconds of processor time in an interval, the interval takes `c / min(r, n)` seconds on `n` cores. An interval in
//! which no thread is runnable waits for the disk or for another process, and takes as long on `n` cores. Because a
//! thread cannot be divided, the time is never shorter than the processor time of the busiest thread. The computed
//! time leaves out that more cores share memory and caches.

use crate::methods::{Daemons, LAYOUT, mcr, remove, run_daemons, run_watched};
use mcr_test_support::bytes_below;
use mcr_test_support::measure::{Sample, repetitions};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Save,
    Aggregator,
    Restart,
}

/// The operations, each with its command. A restart restores what the aggregator before it stored.
const OPERATIONS: [(&str, Operation); 3] =
    [("mcr save", Operation::Save), ("mcr anc", Operation::Aggregator), ("mcr restart", Operation::Restart)];

/// A checkpoint, and where it is stored and restored.
struct Work<'a> {
    dir: &'a Path,
    ranks: u32,
    stored: PathBuf,
    back: PathBuf,
    /// Memory budget of saves and aggregators, in MiB. `None`: the default.
    budget_mib: Option<u32>,
    cores: u32,
}

/// Measures the operations with each number of threads, and prints a table.
pub fn compare(dir: &Path, ranks: u32, threads: &[u32], budget_mib: Option<u32>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let below = |name: &str| dir.parent().expect("has one").join(name);
    let work = Work { dir, ranks, stored: below("stored"), back: below("back"), budget_mib, cores };
    let megabytes = bytes_below(dir) as f64 / 1e6;
    println!("{megabytes:.1} MB, {ranks} ranks, {cores} cores; medians of {}, in seconds", repetitions(3));
    println!("| operation | profile | threads | measured | computed | waiting | one thread | busiest | speed-up |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    for profile in ["fast", "balanced"] {
        for (name, operation) in OPERATIONS {
            let mut single = None;
            for threads in threads {
                print_row((name, operation), profile, *threads, &work, &mut single);
            }
        }
    }
    [&work.stored, &work.back].into_iter().for_each(remove);
}

/// Measures an operation, and prints its row. `single`: the computed time with the first number of threads.
fn print_row(
    (name, operation): (&str, Operation),
    profile: &'static str,
    threads: u32,
    work: &Work<'_>,
    single: &mut Option<f64>,
) {
    let [mut measured, mut computed, mut waiting, mut alone, mut busiest] = [const { Sample::new() }; 5];
    for _ in 0..repetitions(3) {
        eprintln!("{name}, {profile}, {threads} threads");
        let mut parts = Parts::default();
        measured.push(work.run(operation, profile, threads, &mut parts).as_secs_f64());
        computed.push(parts.seconds_on(threads));
        waiting.push(parts.seconds_with(0));
        alone.push(parts.seconds_with(1));
        busiest.push(parts.busiest());
    }
    // The agent takes a part of the cores, so the time of an aggregator alone is always computed.
    let is_measured = threads <= work.cores && operation != Operation::Aggregator;
    let single = *single.get_or_insert(computed.median());
    println!(
        "| {name} | {profile} | {threads} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
        if is_measured { format!("{:.2}", measured.median()) } else { "-".to_owned() },
        computed.median(),
        waiting.median(),
        alone.median(),
        busiest.median(),
        single / computed.median(),
    );
}

impl Work<'_> {
    /// Runs an operation, on as many cores as threads if the machine has them. Returns its time.
    fn run(&self, operation: Operation, profile: &'static str, threads: u32, parts: &mut Parts) -> Duration {
        let mut command = on_cores(threads.min(self.cores));
        match operation {
            Operation::Save => {
                remove(&self.stored);
                command.args(["save", "--create", "--job", "bench", "--layout", LAYOUT, "--profile", profile]);
                command.args(["--ranks", &self.ranks.to_string(), "--store"]).arg(&self.stored).arg(self.dir);
                self.budget_mib.map(|mib| command.args(["--budget-mib", &mib.to_string()]));
            }
            Operation::Aggregator => {
                remove(&self.stored);
                let daemons = Daemons { profile, threads, budget_mib: self.budget_mib };
                let watch = |process| parts.look(process);
                return run_daemons(&daemons, self.dir, &self.stored, self.ranks, watch).elapsed;
            }
            Operation::Restart => {
                remove(&self.back);
                command.args(["restart", "--job", "bench", "--copy", "--to"]).arg(&self.back);
                command.arg("--store").arg(&self.stored);
            }
        }
        command.args(["--threads", &threads.to_string()]);
        run_watched(command, |process| parts.look(process)).elapsed
    }
}

/// mcr on the first cores of this machine.
fn on_cores(cores: u32) -> Command {
    let mcr = mcr();
    let mut command = mcr_test_support::clean(Command::new("taskset"));
    command.args(["--cpu-list", &format!("0-{}", cores - 1)]).arg(mcr.get_program());
    command
}

/// What the threads of a process did, in intervals of about 5 ms.
#[derive(Default)]
struct Parts {
    /// The processor time of each thread up to now, in seconds.
    threads: HashMap<String, f64>,
    last: Option<Instant>,
    intervals: Vec<Interval>,
}

struct Interval {
    seconds: f64,
    /// Processor time of all threads, in seconds.
    cpu: f64,
    /// Number of threads that were running or waiting for a core at the end.
    runnable: u32,
}

impl Parts {
    /// Reads what the threads of the process did since the last call.
    fn look(&mut self, process: u32) {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return };
        let (mut cpu, mut runnable) = (0.0, 0);
        for task in tasks.flatten() {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            // The first number of schedstat is the time on a core, in nanoseconds.
            let Some(ns) = read("schedstat").split(' ').next().and_then(|text| text.parse::<f64>().ok()) else {
                continue;
            };
            let before = self.threads.entry(task.file_name().to_string_lossy().into_owned()).or_default();
            cpu += ns / 1e9 - *before;
            *before = ns / 1e9;
            // The state is the first field after the name, which ends with the last parenthesis.
            runnable += u32::from(read("stat").rsplit(')').next().is_some_and(|rest| rest.starts_with(" R")));
        }
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.intervals.push(Interval { seconds: (now - last).as_secs_f64(), cpu, runnable });
        }
    }

    /// The time with `cores` cores.
    fn seconds_on(&self, cores: u32) -> f64 {
        let of = |part: &Interval| match part.runnable {
            0 => part.seconds.max(part.cpu / f64::from(cores)),
            runnable => part.cpu / f64::from(runnable.min(cores)),
        };
        self.intervals.iter().map(of).sum::<f64>().max(self.busiest())
    }

    /// The part of the time in which this number of threads were runnable. The time does not depend on the number of
    /// cores if the number is 0 or 1.
    fn seconds_with(&self, runnable: u32) -> f64 {
        let parts = self.intervals.iter().filter(|part| part.runnable == runnable);
        parts.map(|part| if runnable == 0 { part.seconds } else { part.cpu }).sum()
    }

    /// Processor time of the busiest thread.
    fn busiest(&self) -> f64 {
        self.threads.values().copied().fold(0.0, f64::max)
    }
}
