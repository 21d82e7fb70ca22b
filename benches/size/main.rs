//! How fast are checkpoints of a gigabyte saved and restored, compared with other programs, and how small are they?
//!
//! Two checkpoints are stored by each method: a synthetic checkpoint (`generate.rs`), and copies of a real checkpoint
//! from the folder that MCR_CORPUS names (`scaled.rs`). The methods run one after the other, and each round begins
//! with another method. The page cache is warm. Source, store and targets are on one file system (TMPDIR). The
//! measured time of a command ends when its result is durable, and before each command the disk has nothing left to
//! write. Restored files are compared with the original files, byte for byte in the first round.
//!
//! Command: `cargo bench -p mcr-cli --bench size -- --mib 1024 --ranks 64`. MCR_BENCH_REPETITIONS sets the
//! repetitions (default 3). `--generate DIR` only writes the synthetic checkpoint. `--threads 1,2,4,8,16` instead
//! measures how the time of mcr falls with the number of threads (`threads.rs`).

mod generate;
mod methods;
mod scaled;
mod threads;

use clap::Parser;
use generate::Spec;
use mcr_test_support::bytes_below;
use mcr_test_support::measure::{Sample, is_asked_for, repetitions};
use methods::{METHODS, Measured, Method, remove};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options of the benchmark.
#[derive(Parser)]
struct Options {
    /// Size of each checkpoint, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Number of ranks of the synthetic checkpoint
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: u32,
    /// Number that determines all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of steps to write with --generate
    #[arg(long, default_value_t = 1)]
    steps: u32,
    /// Only write the synthetic checkpoint below this directory
    #[arg(long, value_name = "DIR")]
    generate: Option<PathBuf>,
    /// Measure mcr with these numbers of threads
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    threads: Vec<u32>,
    /// Memory budget with --threads, in MiB [default: mcr's own default]
    #[arg(long, value_name = "MIB", requires = "threads")]
    budget_mib: Option<u32>,
    /// The set of the corpus whose newest checkpoint is copied
    #[arg(long, default_value = "enzo-cosmology")]
    set: String,
    /// Only methods whose names contain this text
    #[arg(long, default_value = "")]
    method: String,
    /// Cargo adds this option
    #[arg(long, hide = true)]
    bench: bool,
}

/// The measured values of a method.
#[derive(Default)]
struct Row {
    save: Sample,
    restore: Sample,
    verify: Sample,
    stored: u64,
    peak_kib: u64,
}

impl Row {
    fn took(&mut self, measured: Measured) -> f64 {
        self.peak_kib = self.peak_kib.max(measured.peak_kib);
        measured.elapsed.as_secs_f64()
    }
}

fn main() {
    if !is_asked_for() {
        return;
    }
    let options = Options::parse();
    let spec = Spec { ranks: options.ranks, bytes: options.mib << 20, seed: options.seed };
    if let Some(dir) = &options.generate {
        std::fs::create_dir_all(dir).expect("made");
        for step in 1..=options.steps {
            generate::write(&spec, step, dir).expect("written");
        }
        println!("{}: {} bytes", dir.display(), bytes_below(dir));
        return;
    }
    let work = tempfile::tempdir().expect("a directory");
    let dir = work.path().join("generated");
    std::fs::create_dir(&dir).expect("made");
    generate::write(&spec, 1, &dir).expect("written");
    if !options.threads.is_empty() {
        return threads::compare(&dir, options.ranks, &options.threads, options.budget_mib);
    }
    compare("synthetic", &dir, options.ranks, &options.method);
    remove(&dir);

    let corpus = std::env::var_os("MCR_CORPUS").map(PathBuf::from);
    let Some(dump) = corpus.map(|corpus| scaled::newest_dump(&corpus.join(&options.set))).filter(|d| !d.is_empty())
    else {
        eprintln!("skipped: MCR_CORPUS does not name a folder with HDF5 files of the set {}", options.set);
        return;
    };
    let dir = work.path().join("scaled");
    std::fs::create_dir(&dir).expect("made");
    let ranks = scaled::write(&dump, spec.bytes, options.seed, &dir).expect("written");
    compare(&options.set, &dir, ranks, &options.method);
}

/// Stores and restores the files of a directory by each method, in turns, and prints a table.
fn compare(name: &str, dir: &Path, ranks: u32, only: &str) {
    let raw = bytes_below(dir);
    let work = dir.parent().expect("has one");
    let (stored, back) = (work.join("stored"), work.join("back"));
    let is_possible = |method: &&Method| match method.missing() {
        Some(program) => {
            eprintln!("skipped: {}: {program} is not installed", method.name);
            false
        }
        None => true,
    };
    let methods: Vec<&Method> =
        METHODS.iter().filter(|method| method.name.contains(only)).filter(is_possible).collect();
    let mut rows: Vec<Row> = methods.iter().map(|_| Row::default()).collect();
    let rounds = repetitions(3);
    for round in 0..rounds {
        for turn in 0..methods.len() {
            let nth = (round + turn) % methods.len();
            let (method, row) = (methods[nth], &mut rows[nth]);
            eprintln!("{name}, round {} of {rounds}: {}", round + 1, method.name);
            remove(&stored);
            let measured = method.save(dir, &stored, ranks);
            let seconds = row.took(measured);
            row.save.push(seconds);
            row.stored = if stored.is_dir() { bytes_below(&stored) } else { file_bytes(&stored) };
            remove(&back);
            if let Some(measured) = method.restore(&stored, &back) {
                let seconds = row.took(measured);
                row.restore.push(seconds);
                assert_eq!(bytes_below(&back), raw, "{}: not all bytes were restored", method.name);
                if round == 0 {
                    let same = Command::new("diff").arg("-r").arg(dir).arg(&back).status().expect("it starts");
                    assert!(same.success(), "{}: a restored file differs", method.name);
                }
            }
            if let Some(measured) = method.verify(&stored) {
                let seconds = row.took(measured);
                row.verify.push(seconds);
            }
        }
    }
    [&stored, &back].into_iter().for_each(remove);
    println!(
        "\n{name}: {:.1} MB, {ranks} ranks, {} cores; MB/s of the files: median of {rounds}",
        raw as f64 / 1e6,
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    println!("| method | ratio | save | restore | verify | peak memory, MiB |");
    println!("|---|---:|---:|---:|---:|---:|");
    let rate = |sample: &Sample| match sample.median() {
        seconds if seconds > 0.0 => format!("{:.0}", raw as f64 / 1e6 / seconds),
        _ => "-".to_owned(),
    };
    for (method, row) in methods.iter().zip(&rows) {
        let peak = if row.peak_kib == 0 { "-".to_owned() } else { format!("{:.0}", row.peak_kib as f64 / 1024.0) };
        println!(
            "| {} | {:.3} | {} | {} | {} | {peak} |",
            method.name,
            raw as f64 / row.stored as f64,
            rate(&row.save),
            rate(&row.restore),
            rate(&row.verify)
        );
    }
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}
