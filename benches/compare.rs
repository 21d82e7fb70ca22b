//! Is `mcr save` as fast as `tar | zstd`, and is its result smaller? Is `mcr restart` as fast as unpacking the
//! archive?
//!
//! The input is sets of real checkpoints in the folder that MCR_CORPUS names. All dumps of a set are saved in one
//! run, with a warm page cache. Source, store and targets are on one file system (TMPDIR). The measured time of a
//! command ends when its result is durable. In each round the compared commands run one after the other, in changing
//! order. The whole file system is synced before each command, so that no command waits for writes of an earlier
//! command. Then the bench is repeated with several copies of each dump, saved without reuse, to separate the rate
//! from the fixed costs. The bench `size` has larger checkpoints.
//!
//! Command: `cargo bench -p mcr-cli --bench compare -- [SET...]`.
//! MCR_BENCH_REPETITIONS sets the repetitions (default 15).

use mcr_test_support::measure::{Sample, is_asked_for, repetitions};
use mcr_test_support::{bytes_below, clean, files_below};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SETS: [&str; 3] = ["enzo-cosmology", "enzo-implosionamr", "cactus-qc0-mclachlan"];
/// Number of copies of each dump in the second comparison of a set, which separates the rate from the fixed costs.
const COPIES: usize = 4;

fn main() {
    let Some(corpus) = std::env::var_os("MCR_CORPUS").map(PathBuf::from).filter(|_| is_asked_for()) else {
        eprintln!("skipped: MCR_CORPUS does not name a folder of checkpoints");
        return;
    };
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let sets = if named.is_empty() { SETS.map(String::from).to_vec() } else { named };
    let n = repetitions(15);
    println!(
        "milliseconds: median [quartiles; extremes] of {n}; ratio: median of mcr divided by median of tar and zstd"
    );
    for set in &sets {
        let dir = corpus.join(set);
        if !dir.is_dir() {
            eprintln!("skipped: {} does not exist", dir.display());
            continue;
        }
        let work = tempfile::tempdir().expect("a directory");
        compare(set, &dir, work.path(), &[], n);
        let copies = work.path().join("copies");
        copy_dumps(&dir, &copies);
        compare(&format!("{set} x {COPIES}"), &copies, work.path(), &["--no-reuse"], n.div_ceil(2));
    }
}

/// Saves and restores one set with `mcr` and with `tar | zstd` alternately.
fn compare(name: &str, dir: &Path, work: &Path, more: &[&str], repetitions: usize) {
    let raw = bytes_below(dir);
    let (store, archive) = (work.join("store"), work.join("archive.tar.zst"));
    let (ours, theirs) = (work.join("ours"), work.join("theirs"));
    let save = || {
        let mut command = mcr();
        command.args(["save", "--create"]).arg(dir).arg("--store").arg(&store).args(["--job", "bench"]).args(more);
        timed(command)
    };
    let pack = || timed(shell("tar c -C \"$1\" . | zstd -q -3 -T2 -o \"$2\" && sync \"$2\"", dir, &archive));
    let restart = |ids: &[String]| {
        ids.iter().fold(Duration::ZERO, |sum, id| {
            let mut command = mcr();
            command.arg("restart").arg("--store").arg(&store).arg("--to").arg(&ours);
            command.args(["--job", "bench", "--exact", "--checkpoint", id]);
            sum + timed(command)
        })
    };
    let unpack_each = "mkdir \"$2\" && zstd -dcq \"$1\" | tar x -C \"$2\" && find \"$2\" -print0 | xargs -0 sync";
    let unpack_all = "mkdir \"$2\" && zstd -dcq \"$1\" | tar x -C \"$2\" && sync -f \"$2\"";
    let remove = |path: &Path| {
        let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        timed(shell("sync -f \"$1\"", work, work));
    };

    let [mut saving, mut packing, mut restarting, mut each, mut all] = [const { Sample::new() }; 5];
    let (mut stored, mut packed) = (0, 0);
    // The first round warms the caches and is not counted.
    for round in 0..=repetitions {
        let (mut saved, mut tarred) = (Duration::ZERO, Duration::ZERO);
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                remove(&store);
                saved = save();
            } else {
                remove(&archive);
                tarred = pack();
            }
        }
        let ids = checkpoints(&store);
        (stored, packed) = (bytes_below(&store), file_bytes(&archive));
        let (mut back, mut synced_each, mut synced_all) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => {
                    remove(&ours);
                    back = restart(&ids);
                }
                1 => {
                    remove(&theirs);
                    synced_each = timed(shell(unpack_each, &archive, &theirs));
                }
                _ => {
                    remove(&theirs);
                    synced_all = timed(shell(unpack_all, &archive, &theirs));
                }
            }
        }
        assert_eq!(bytes_below(&ours), raw, "{name}: not all bytes were restored");
        if round > 0 {
            saving.push_ms(saved);
            packing.push_ms(tarred);
            restarting.push_ms(back);
            each.push_ms(synced_each);
            all.push_ms(synced_all);
        }
    }
    [&store, &archive, &ours, &theirs].into_iter().for_each(|path| remove(path));
    let ratio = |a: &Sample, b: &Sample| a.median() / b.median();
    println!("\n{name}: {:.1} MB", raw as f64 / 1e6);
    println!("  mcr save {:18} {}  {stored} bytes", more.join(" "), saving.show());
    println!("  tar | zstd -3 -T2           {}  {packed} bytes", packing.show());
    println!(
        "    ratio {:.2} of the time, {:.3} of the bytes",
        ratio(&saving, &packing),
        stored as f64 / packed as f64
    );
    println!("  mcr restart                 {}", restarting.show());
    println!("  zstd -d | tar x, sync FILES {}", each.show());
    println!("  zstd -d | tar x, sync -f    {}", all.show());
    println!("    ratio {:.2} and {:.2} of the time", ratio(&restarting, &each), ratio(&restarting, &all));
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}

fn mcr() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_mcr")))
}

/// A command line for `bash`, with two paths.
fn shell(line: &str, first: &Path, second: &Path) -> Command {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("set -o pipefail; {line}")).arg("bash").arg(first).arg(second);
    command
}

/// Runs a command that must succeed, and returns the time that it took.
fn timed(mut command: Command) -> Duration {
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    let started = Instant::now();
    let status = command.status().expect("it starts");
    let elapsed = started.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    elapsed
}

/// The names of the checkpoints in a store, oldest first.
fn checkpoints(store: &Path) -> Vec<String> {
    let listed = mcr().args(["list", "--json", "--job", "bench", "--store"]).arg(store).output().expect("it starts");
    let all: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON on standard output");
    let all = all["checkpoints"].as_array().expect("a list");
    all.iter().rev().filter_map(|state| state["checkpoint"].as_str()).map(str::to_owned).collect()
}

/// Copies the dumps of a set several times. Each copy gets its own checkpoint name.
fn copy_dumps(set: &Path, to: &Path) {
    for (_, file) in files_below(set) {
        let relative = file.strip_prefix(set).expect("below").to_path_buf();
        for copy in 0..COPIES {
            let renamed: PathBuf = relative.iter().map(|part| renumbered(&part.to_string_lossy(), copy)).collect();
            let target = to.join(renamed);
            std::fs::create_dir_all(target.parent().expect("has one")).expect("made");
            std::fs::copy(&file, target).expect("copied");
        }
    }
}

/// The name of a file in a copy. In the second copy `DD0017.cpu0003` becomes `DD1017.cpu0003`, and `it_48.file_0`
/// becomes `it_1048.file_0`.
fn renumbered(name: &str, copy: usize) -> String {
    let at = name.find("it_").map(|at| at + "it_".len()).or_else(|| name.find(|c: char| c.is_ascii_digit()));
    let Some(at) = at.filter(|_| copy > 0) else { return name.to_owned() };
    let (head, tail) = name.split_at(at);
    let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    let number: usize = tail[..digits].parse().expect("digits");
    format!("{head}{:04}{}", number + copy * 1000, &tail[digits..])
}
