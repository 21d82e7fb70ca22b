//! Is `mcr save` as fast as `tar | zstd`, and is its result smaller? Is `mcr restart` as fast as unpacking the
//! archive?
//!
//! The input is sets of real checkpoints in the folder that MCR_CORPUS names. All dumps of a set are saved in one
//! run, with a warm page cache. Source, store and targets are on one file system (TMPDIR). The measured time of a
//! command ends when its result is durable. In each round the compared commands run one after the other, in changing
//! order. The whole file system is synced before each command, so that no command waits for writes of an earlier
//! command. Then the bench is repeated with several copies of each dump, saved without reuse, to separate the rate
//! from the fixed costs. Last, one checkpoint of 1 GiB is saved with two profiles. This checkpoint consists of copies
//! of the last dump of the first set, renumbered as more ranks. In the copies, every floating-point number is
//! multiplied by a random factor near 1.
//!
//! Command: `cargo bench -p mcr-cli --bench compare -- [SET...]`. The name of the checkpoint of 1 GiB is `large`.
//! MCR_BENCH_REPETITIONS sets the repetitions (default 15).

use mcr_test_support::measure::{Sample, is_asked_for, repetitions};
use mcr_test_support::{Random, bytes_below, clean, files_below};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SETS: [&str; 3] = ["enzo-cosmology", "enzo-implosionamr", "cactus-qc0-mclachlan"];
/// Number of copies of each dump in the longer runs.
const COPIES: usize = 4;
/// Name of the checkpoint of at least [`LARGE_BYTES`].
const LARGE: &str = "large";
const LARGE_BYTES: u64 = 1 << 30;
/// Each round with the large checkpoint takes a minute, so it is repeated at most this many times.
const LARGE_REPETITIONS_MAX: usize = 5;
/// Standard deviation of the random factors.
const NOISE: f64 = 1e-3;

fn main() {
    let Some(corpus) = std::env::var_os("MCR_CORPUS").map(PathBuf::from).filter(|_| is_asked_for()) else {
        eprintln!("skipped: MCR_CORPUS does not name a folder of checkpoints");
        return;
    };
    let named: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_large_asked_for = named.is_empty() || named.iter().any(|name| name == LARGE);
    let sets = if named.is_empty() { SETS.map(String::from).to_vec() } else { named };
    let n = repetitions(15);
    println!(
        "milliseconds: median [quartiles; extremes] of {n}; ratio: median of mcr divided by median of tar and zstd"
    );
    for set in sets.iter().filter(|set| *set != LARGE) {
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
    let dumps = files_below(&corpus.join(SETS[0]));
    let newest = dumps.iter().map(|(_, path)| path).max();
    if let (true, Some(newest)) = (is_large_asked_for, newest) {
        let work = tempfile::tempdir().expect("a directory");
        let dir = work.path().join(LARGE);
        perturbed_copies(newest.parent().expect("has one"), &dir.join("DD0018"));
        for profile in ["fast", "balanced"] {
            let options = ["--profile", profile, "--layout", "{checkpoint}/DD0018.cpu{rank}"];
            compare(LARGE, &dir, work.path(), &options, n.min(LARGE_REPETITIONS_MAX));
        }
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

/// Writes copies of one dump, renumbered as more ranks, until all files together have at least [`LARGE_BYTES`]. The
/// first copy is exact. In the other copies, every floating-point number is multiplied by a random factor near 1.
fn perturbed_copies(dump: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    let mut files: Vec<PathBuf> = files_below(dump).into_iter().map(|(_, path)| path).collect();
    files.retain(|path| path.to_string_lossy().contains(".cpu"));
    files.sort();
    let mut random = Random::new(1);
    for rank in 0.. {
        let (copy, file) = (rank / files.len(), &files[rank % files.len()]);
        let target = to.join(format!("DD0018.cpu{rank:04}"));
        std::fs::copy(file, &target).expect("copied");
        if copy > 0 {
            let file = hdf5::File::open_rw(&target).expect("an HDF5 file");
            perturb(&file, &mut random);
            file.close().expect("written");
        }
        if rank % files.len() == files.len() - 1 && bytes_below(to) >= LARGE_BYTES {
            break;
        }
    }
}

/// Multiplies every floating-point number of every dataset by a random factor.
fn perturb(group: &hdf5::Group, random: &mut Random) {
    for dataset in group.datasets().expect("readable") {
        let data_type = dataset.dtype().expect("readable");
        if data_type.is::<f32>() || data_type.is::<f64>() {
            let mut values: Vec<f64> = dataset.read_raw().expect("readable");
            values.iter_mut().for_each(|value| *value *= 1.0 + NOISE * noise(random));
            dataset.as_writer().write_raw(&values).expect("written");
        }
    }
    group.groups().expect("readable").iter().for_each(|inner| perturb(inner, random));
}

/// A random number with a mean of 0 and a standard deviation of about 1: the sum of twelve numbers from -0.5 to 0.5.
fn noise(random: &mut Random) -> f64 {
    (0..12).map(|_| (random.next_bits() >> 11) as f64 / (1u64 << 53) as f64 - 0.5).sum()
}
