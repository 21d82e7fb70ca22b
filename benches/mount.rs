//! How fast is a mounted checkpoint read, compared with a restart and with `cp -r` of the original files?
//!
//! Two checkpoints of MCR_BENCH_MIB MiB (default 1024) with profile MCR_BENCH_PROFILE (default `fast`): 64 ranks with
//! one file each, and one file of one rank. In each round, after the page cache was emptied (as root), `cp -r` copies
//! the original files, `mcr restart` restores the checkpoint (both end when all files are durable), and `cat` reads all
//! files of a new mount. `cp` and `mcr restart` run once more with a warm page cache. Another new mount answers reads
//! of 4 KiB at random places of the files. The peak memory of the mount is VmHWM. Goals: `cat` reaches 0.8 of the rate
//! of `mcr restart` with a warm page cache, and a random read takes less than 50 ms. Bytes are compared with the
//! original files in the first round.
//!
//! Command: `cargo bench -p mcr-cli --bench mount`. MCR_BENCH_REPETITIONS sets the repetitions (default 5), and
//! MCR_BENCH_BUDGET_MIB the budget of the mount (default 512).

#[path = "size/generate.rs"]
mod generate;

use generate::Spec;
use mcr_test_support::measure::{Sample, is_asked_for, process_status, repetitions};
use mcr_test_support::{Process, bytes_below, clean, wait_for};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of random reads in each round.
const READS: u64 = 40;

fn main() {
    if !is_asked_for() {
        return;
    }
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (mib, budget_mib) = (number("MCR_BENCH_MIB", 1024u64), number("MCR_BENCH_BUDGET_MIB", 512u64));
    let profile = std::env::var("MCR_BENCH_PROFILE").unwrap_or_else(|_| "fast".into());
    let dir = tempfile::tempdir().expect("a directory");
    println!(
        "| checkpoint, profile {profile} | cp -r, cold, warm | mcr restart, cold, warm | cat | cat / restart | \
         random read | peak |"
    );
    println!("|---|---|---|---|---:|---|---:|");
    for ranks in [64, 1] {
        let site = Site::new(dir.path().join(format!("ranks_{ranks}")), ranks, mib << 20, &profile);
        let mut of = Measured::default();
        for round in 0..repetitions(5) {
            site.round(round == 0, budget_mib, &mut of);
        }
        let rate = |seconds: &Sample| site.raw_bytes as f64 / 1e6 / seconds.median();
        println!(
            "| {ranks} files, {:.0} MB | {:.0}, {:.0} MB/s | {:.0}, {:.0} MB/s | {:.0} MB/s | {:.2} | {} ms | {:.0} \
             MiB |",
            site.raw_bytes as f64 / 1e6,
            rate(&of.copy[0]),
            rate(&of.copy[1]),
            rate(&of.restart[0]),
            rate(&of.restart[1]),
            rate(&of.cat),
            of.restart[1].median() / of.cat.median(),
            of.random.show(),
            of.peak.median()
        );
    }
}

/// Seconds, except for random reads (ms) and the peak (MiB).
#[derive(Default)]
struct Measured {
    /// With a cold and a warm page cache.
    copy: [Sample; 2],
    restart: [Sample; 2],
    cat: Sample,
    random: Sample,
    peak: Sample,
}

struct Site {
    dir: PathBuf,
    raw_bytes: u64,
}

impl Site {
    fn new(dir: PathBuf, ranks: u32, bytes: u64, profile: &str) -> Self {
        let files = dir.join("files");
        std::fs::create_dir_all(&files).expect("made");
        std::fs::create_dir(dir.join("mounted")).expect("made");
        generate::write(&Spec { ranks, bytes, seed: 1 }, 1, &files).expect("written");
        let mut save = clean(Command::new(env!("CARGO_BIN_EXE_mcr")));
        save.args(["save", "--create", "--quiet", "--job", "j", "--profile", profile, "--store"]);
        succeed(save.arg(dir.join("store")).arg(&files));
        Self { raw_bytes: bytes_below(&files), dir }
    }

    fn round(&self, is_first: bool, budget_mib: u64, of: &mut Measured) {
        let (files, store, back) = (self.dir.join("files"), self.dir.join("store"), self.dir.join("back"));
        for warm in [0, 1] {
            if warm == 0 {
                empty_cache();
            } else {
                read_all(&files);
            }
            of.copy[warm].push(timed(&back, Command::new("cp").arg("-r").arg(&files).arg(&back)));
            if warm == 0 {
                empty_cache();
            } else {
                read_all(&store);
            }
            let mut restart = clean(Command::new(env!("CARGO_BIN_EXE_mcr")));
            restart
                .args(["restart", "--quiet", "--give-up-after", "0", "--job", "j", "--store"])
                .arg(&store)
                .arg("--to")
                .arg(&back);
            of.restart[warm].push(timed(&back, &mut restart));
        }
        let (mounted, mount) = self.mount(budget_mib);
        let begin = Instant::now();
        read_all(&mounted);
        of.cat.push(begin.elapsed().as_secs_f64());
        of.peak.push(process_status(mount.id(), "VmHWM").map_or(f64::NAN, |kib| kib as f64 / 1024.0));
        if is_first {
            let checkpoint = std::fs::read_dir(mounted.join("j")).expect("listed").next().expect("one").expect("one");
            succeed(Command::new("diff").arg("-r").arg(&files).arg(checkpoint.path()));
        }
        self.unmount(mount);

        let (mounted, mount) = self.mount(budget_mib);
        let names =
            Command::new("find").arg(&mounted).args(["-type", "f", "-size", "+4k"]).output().expect("it starts");
        let names = String::from_utf8(names.stdout).expect("UTF-8");
        let open: Vec<_> = names.lines().map(|name| std::fs::File::open(name).expect("opened")).collect();
        for n in 1..=READS {
            let file = &open[(n * 7919) as usize % open.len()];
            let len = file.metadata().expect("there").len();
            let (at, mut into) = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (len - 4096), [0; 4096]);
            let begin = Instant::now();
            file.read_exact_at(&mut into, at).expect("read");
            of.random.push_ms(begin.elapsed());
        }
        drop(open);
        self.unmount(mount);
    }

    fn mount(&self, budget_mib: u64) -> (PathBuf, Process) {
        empty_cache();
        let mounted = self.dir.join("mounted");
        let mut mount = clean(Command::new(env!("CARGO_BIN_EXE_mcr")));
        mount.arg("mount").arg(&mounted).arg("--store").arg(self.dir.join("store"));
        mount.arg("--budget-mib").arg(budget_mib.to_string()).stdout(Stdio::null());
        let mount = Process::start(&mut mount).expect("it starts");
        wait_for("the mount", Duration::from_secs(20), || mounted.join("j").is_dir().then_some(()));
        (mounted, mount)
    }

    fn unmount(&self, mut mount: Process) {
        assert!(mount.signal("TERM"));
        assert!(mount.0.wait().expect("waited for").success());
    }
}

/// The time of a command that makes the directory `back`, until all files are durable, in seconds.
fn timed(back: &Path, command: &mut Command) -> f64 {
    let _ = std::fs::remove_dir_all(back);
    succeed(&mut Command::new("sync"));
    let begin = Instant::now();
    succeed(command);
    succeed(Command::new("sync").arg("-f").arg(back));
    let seconds = begin.elapsed().as_secs_f64();
    std::fs::remove_dir_all(back).expect("removed");
    seconds
}

fn read_all(dir: &Path) {
    succeed(
        Command::new("sh").args(["-c", "find \"$0\" -type f -print0 | sort -z | xargs -0 cat > /dev/null"]).arg(dir),
    );
}

/// Empties the page cache. Users other than root cannot do this, so their measurements have a warm page cache.
fn empty_cache() {
    let _ = Command::new("sync").status();
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
