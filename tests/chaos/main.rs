//! Kills, stops and terminates processes at random for a given time, and checks every restored byte.
//!
//! The application writes bytes that depend only on run, step and rank. Agents and aggregators are killed, stopped
//! and terminated. The store is removed for a short time. The clocks of the nodes are wrong. The application is
//! killed and restarted. At random times, checkpoints are restored with --copy. These rules must hold:
//!
//! - No complete checkpoint is lost.
//! - No restored byte is wrong.
//! - No checkpoint mixes two runs or two steps.
//! - No process hangs.
//! - A restart restores the complete checkpoint that the application wrote last.
//!
//! `MCR_CHAOS_SECONDS` is the duration in seconds (default 120). `MCR_CHAOS_SEED` is the seed of the random choices.
//! The default seed is different in each run, and is printed.

use mcr_test_support::{Process, Random, clean};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RANKS: u32 = 4;
const NODES: usize = 2;
/// Maximum time that a command may take.
const HANG: Duration = Duration::from_secs(90);

/// Sleeps for a random time.
fn pause(random: &mut Random, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(random.below(most_ms)));
}

/// The content of a file: the run and the step that wrote it.
type Content = (u32, u32);

#[derive(Default, Debug)]
struct Counts {
    steps: u32,
    half_steps: u32,
    restarts: u32,
    looks: u32,
    kills: u32,
    stops: u32,
    terms: u32,
    prunes: u32,
    outages: u32,
}

struct World {
    dir: tempfile::TempDir,
    random: Random,
    ports: Vec<u16>,
    daemons: Vec<(String, Option<Process>)>,
    run: u32,
    step: u32,
    /// Error of the clock of each node, in seconds.
    clocks: [i64; NODES],
    counts: Counts,
    /// Names of complete checkpoints that `mcr list` has shown and that are not pruned.
    seen: BTreeSet<String>,
}

fn bytes_of((run, step): Content, rank: u32) -> Vec<u8> {
    let mut bytes = [run, step, rank].map(u32::to_le_bytes).concat();
    let values =
        (0..2000u32).map(|i| (f64::from(i * (rank + 1)) * 0.01 + f64::from(step) * 0.1 + f64::from(run)).sin());
    bytes.extend(values.flat_map(f64::to_le_bytes));
    bytes
}

/// The content of a restored file. Fails if any byte is wrong.
fn content_of(bytes: &[u8], path: &Path) -> Content {
    let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(u32::MAX, u32::from_le_bytes);
    let content = (number(0), number(4));
    assert!(bytes == bytes_of(content, number(8)), "WRONG: {} has a content that was never written", path.display());
    content
}

fn mcr() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_mcr")))
}

impl World {
    fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["run", "store", "logs"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
        }
        let listeners: Vec<_> =
            (0..NODES).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().expect("bound").port()).collect();
        let mut random = Random::new(seed);
        let clocks = [random.below(7) as i64 - 3, random.below(7) as i64 - 3];
        let daemons = Vec::new();
        let (run, step, counts, seen) = (1, 0, Counts::default(), BTreeSet::new());
        let mut world = Self { dir, random, ports, daemons, run, step, clocks, counts, seen };
        world.configure();
        drop(listeners);
        (0..world.daemons.len()).for_each(|nth| world.start(nth));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&mut self) {
        let (store, run) = (self.path("store"), self.path("run"));
        let addresses: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        for (nth, address) in addresses.iter().enumerate() {
            let anc = format!(
                "[anc]\nstore = {store:?}\nlisten = {address:?}\ngroup-size = 2\nthreads = 1\nbudget-mib = \
                 16\nsegment-mib = 1\n"
            );
            let cnc = format!(
                "[cnc]\njob = \"chaos\"\nnode = \"n{nth}\"\nwatch = {run:?}\nlayout = \"{{checkpoint}}/rank_{{rank}}.dat\"\nranks = {RANKS}\n\
                 local-ranks = \"{}-{}\"\ngroup-size = 2\naggregators = {addresses:?}\nstate-file = {:?}\nquiet-ms = 20\n\
                 checkpoint-quiet-ms = 40\nreconnect-min-ms = 50\nreconnect-max-seconds = 1\n",
                2 * nth,
                2 * nth + 1,
                self.path(&format!("state{nth}"))
            );
            for (name, text) in [(format!("anc{nth}"), anc), (format!("cnc{nth}"), cnc)] {
                std::fs::write(self.path(&format!("{name}.toml")), text).expect("written");
                self.daemons.push((name, None));
            }
        }
    }

    fn start(&mut self, nth: usize) {
        let name = self.daemons[nth].0.clone();
        let log = std::fs::File::options().append(true).create(true).open(self.path(&format!("logs/{name}")));
        let mut command = mcr();
        command.arg(&name[..3]).arg("--config").arg(self.path(&format!("{name}.toml")));
        command.stdout(Stdio::null()).stderr(log.expect("a log"));
        self.daemons[nth].1 = Some(Process::start(&mut command).expect("the daemon starts"));
    }

    fn signal(&self, nth: usize, name: &str) {
        let Some(process) = &self.daemons[nth].1 else { return };
        assert!(process.signal(name), "{name} to {}", self.daemons[nth].0);
    }

    /// Waits until a daemon ends.
    fn wait(&mut self, nth: usize) {
        let Some(mut process) = self.daemons[nth].1.take() else { return };
        let end = Instant::now() + HANG;
        while process.0.try_wait().expect("can be waited for").is_none() {
            assert!(Instant::now() < end, "HANG: {} does not end", self.daemons[nth].0);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs `mcr` to its end. Returns its exit status and its output.
    fn mcr(&self, args: &[&str]) -> (i32, String) {
        let out = std::fs::File::create(self.path("out")).expect("made");
        let err = out.try_clone().expect("cloned");
        let store = self.path("store");
        let mut command = mcr();
        command.args(args).args(["--job", "chaos", "--store"]).arg(store).stdout(out).stderr(err);
        let mut child = command.spawn().expect("the command starts");
        let end = Instant::now() + HANG;
        loop {
            if let Some(status) = child.try_wait().expect("can be waited for") {
                let said = std::fs::read_to_string(self.path("out")).expect("readable");
                return (status.code().unwrap_or(-1), said);
            }
            assert!(Instant::now() < end, "HANG: mcr {args:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn write(&mut self, ranks: &[u32]) {
        let content = (self.run, self.step);
        for &rank in ranks {
            let dir = self.path(&format!("run/it_{:06}", self.step));
            std::fs::create_dir_all(&dir).expect("made");
            let (temporary, path) = (dir.join(format!(".t{rank}")), dir.join(format!("rank_{rank}.dat")));
            std::fs::write(&temporary, bytes_of(content, rank)).expect("written");
            let off = self.clocks[rank as usize / 2];
            let now = SystemTime::now();
            let time =
                if off < 0 { now - Duration::from_secs(-off as u64) } else { now + Duration::from_secs(off as u64) };
            let file = std::fs::File::options().write(true).open(&temporary).expect("opened");
            file.set_modified(time).expect("set");
            std::fs::rename(&temporary, &path).expect("renamed");
            pause(&mut self.random, 6);
        }
    }

    fn some_ranks(&mut self) -> Vec<u32> {
        (0..RANKS).filter(|_| self.random.below(2) == 0).collect()
    }

    /// The names of the complete checkpoints, newest first.
    fn complete(&self) -> Vec<String> {
        let (code, said) = self.mcr(&["list", "--json"]);
        if code != 0 {
            return Vec::new(); // the store is removed at this moment, or is still empty
        }
        let all: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let all = all["checkpoints"].as_array().expect("a list").iter();
        all.filter(|c| c["complete"] == true).filter_map(|c| c["checkpoint"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the content of the files that a restart wrote. All files must have the same run and step. `None` if
    /// the restart wrote no file.
    fn restored(&self, to: &Path, what: &str) -> Option<Content> {
        let mut contents = BTreeSet::new();
        let (mut count, mut open) = (0, vec![to.to_owned()]);
        while let Some(at) = open.pop() {
            for entry in std::fs::read_dir(&at).into_iter().flatten() {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|extension| extension == "dat") {
                    count += 1;
                    contents.insert(content_of(&std::fs::read(&path).expect("readable"), &path));
                }
            }
        }
        assert!(contents.len() <= 1, "MIXED by {what}: {contents:?}");
        assert!(count == 0 || count == RANKS, "{what}: {count} files of {RANKS}");
        contents.pop_first()
    }

    fn back(&self) -> PathBuf {
        let to = self.path("back");
        let _ = std::fs::remove_dir_all(&to);
        to
    }

    /// Restores the newest checkpoint with --copy. The restored checkpoint must not be older than the newest
    /// checkpoint that was complete before.
    fn look(&mut self) {
        self.counts.looks += 1;
        let before = self.complete();
        self.check_kept(&before);
        let newest = before.first().map(|id| self.look_at(&["--checkpoint", id, "--exact"]).1);
        let (code, content) = self.look_at(&[]);
        if let Some(Some(newest)) = newest {
            assert!(
                content >= Some(newest),
                "ORDER: {newest:?} was complete, and a restart gives {content:?} (exit {code})"
            );
        }
    }

    fn look_at(&self, more: &[&str]) -> (i32, Option<Content>) {
        let to = self.back();
        let to = to.to_str().expect("UTF-8");
        // This test makes many restarts in a row, so the rule for repeated restarts is switched off.
        let args = [&["restart", "--copy", "--give-up-after", "0", "--to", to], more].concat();
        let (code, said) = self.mcr(&args);
        assert!([0, 1, 2, 3].contains(&code), "{args:?}: exit {code}\n{said}");
        (code, self.restored(Path::new(to), &format!("{args:?}")))
    }

    fn check_kept(&mut self, complete: &[String]) {
        if !complete.is_empty() {
            let lost: Vec<_> = self.seen.iter().filter(|id| !complete.contains(id)).cloned().collect();
            assert!(lost.is_empty(), "LOST: {lost:?} was complete; now {complete:?}");
        }
        self.seen.extend(complete.iter().cloned());
    }

    /// Kills the application and restarts it.
    fn restart(&mut self) {
        self.counts.restarts += 1;
        let before = self.complete();
        let newest = before.first().and_then(|id| self.look_at(&["--checkpoint", id, "--exact"]).1);
        let to = self.back();
        let (code, said) = self.mcr(&["restart", "--give-up-after", "0", "--to", to.to_str().expect("UTF-8")]);
        let content = self.restored(&to, "a restart");
        match code {
            0 | 2 => assert!(content >= newest && content.is_some(), "ORDER: {newest:?}, then {content:?}: {said}"),
            3 => assert!(content.is_none() && newest.is_none(), "{newest:?} was complete, and now a new run: {said}"),
            _ => panic!("a restart failed with {code}: {said}"),
        }
        self.run += 1;
        self.step = content.map_or(0, |(_, step)| step);
    }

    fn act(&mut self) {
        let nth = self.random.below(self.daemons.len() as u64) as usize;
        match self.random.below(100) {
            0..45 => {
                self.counts.steps += 1;
                self.step += 1;
                let mut ranks: Vec<u32> = (0..RANKS).collect();
                ranks.rotate_left(self.random.below(4) as usize);
                self.write(&ranks);
                pause(&mut self.random, 300);
            }
            45..57 => {
                self.counts.half_steps += 1;
                self.step += 1;
                let ranks = self.some_ranks();
                self.write(&ranks);
                pause(&mut self.random, 400);
                self.restart();
            }
            57..65 => self.look(),
            65..76 => {
                self.counts.kills += 1;
                self.signal(nth, "KILL");
                self.wait(nth);
                pause(&mut self.random, 300);
                self.start(nth);
            }
            76..86 => {
                self.counts.stops += 1;
                self.signal(nth, "STOP");
                let ranks = self.some_ranks();
                if self.random.below(2) == 0 {
                    self.step += 1;
                    self.write(&ranks);
                    self.restart();
                } else {
                    pause(&mut self.random, 1500);
                }
                self.signal(nth, "CONT");
            }
            86..92 => {
                self.counts.terms += 1;
                self.signal(nth, "TERM");
                self.wait(nth);
                self.start(nth);
            }
            92..96 => {
                self.counts.prunes += 1;
                let before = self.complete();
                let (code, said) = self.mcr(&["prune", "--keep", "4", "--incomplete"]);
                assert!([0, 1, 4].contains(&code), "prune: exit {code}\n{said}");
                self.seen.clear();
                if let Some(newest) = before.first() {
                    self.seen.insert(newest.clone());
                }
                let complete = self.complete();
                self.check_kept(&complete);
            }
            _ => {
                self.counts.outages += 1;
                std::fs::rename(self.path("store"), self.path("away")).expect("renamed");
                pause(&mut self.random, 800);
                // An aggregator that started while the store was removed must not have created a new store.
                assert!(
                    !self.path("store").exists(),
                    "an aggregator created a store in the place of the removed store"
                );
                std::fs::rename(self.path("away"), self.path("store")).expect("renamed back");
            }
        }
        for nth in 0..self.daemons.len() {
            let ended =
                self.daemons[nth].1.as_mut().and_then(|process| process.0.try_wait().expect("can be waited for"));
            if ended.is_some() {
                self.start(nth); // a supervisor would restart the daemon too
            }
        }
    }

    /// Writes a last step without further faults. Checks that this step is saved, that `mcr verify` and a restart
    /// accept every complete checkpoint, and that the daemons end.
    fn settle(&mut self) {
        self.step += 1;
        self.write(&(0..RANKS).collect::<Vec<_>>());
        let (last, end) = ((self.run, self.step), Instant::now() + HANG);
        while self.look_at(&[]).1 != Some(last) {
            assert!(
                Instant::now() < end,
                "LOST: the last step {last:?} is not the newest; complete: {:?}",
                self.complete()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        let (code, said) = self.mcr(&["verify"]);
        assert!([0, 4].contains(&code), "verify: exit {code}\n{said}");
        for id in self.complete() {
            let (code, content) = self.look_at(&["--checkpoint", &id, "--exact"]);
            assert!(code == 0 && content.is_some(), "{id} is complete, and cannot be restored: exit {code}");
        }
        (0..self.daemons.len()).for_each(|nth| self.signal(nth, "TERM"));
        (0..self.daemons.len()).for_each(|nth| self.wait(nth));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.daemons.iter_mut().for_each(|(_, daemon)| *daemon = None);
        if std::thread::panicking() {
            for (name, _) in &self.daemons {
                let log = std::fs::read_to_string(self.path(&format!("logs/{name}"))).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                eprintln!("--- {name}\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
    }
}

#[test]
fn whatever_is_killed_stopped_or_terminated_nothing_is_lost_wrong_mixed_or_out_of_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seconds = number("MCR_CHAOS_SECONDS").unwrap_or(120);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
    let seed = number("MCR_CHAOS_SEED").unwrap_or_else(now);
    eprintln!("chaos: {seconds} s, MCR_CHAOS_SEED={seed}");
    let mut world = World::new(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        world.act();
    }
    world.settle();
    eprintln!("chaos: 0 lost, 0 wrong, 0 mixed, 0 hangs, 0 in the wrong order; {:?}", world.counts);
}
