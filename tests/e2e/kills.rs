//! Sends SIGKILL at random moments. After each kill, a restart must restore a complete checkpoint as it was written.

use crate::support::*;
use mcr_test_support::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const AGENT: &str = "ranks = 4\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\nreconnect-min-ms = 50\nreconnect-max-seconds = 1";

struct Site {
    dir: tempfile::TempDir,
    addresses: Vec<String>,
    daemons: Vec<Option<Daemon>>,
    truth: BTreeMap<String, BTreeMap<PathBuf, Vec<u8>>>,
}

impl Site {
    fn start(&mut self, which: usize) {
        let (dir, store) = (self.dir.path().to_owned(), self.dir.path().join("store"));
        let daemon = if which < 2 {
            let listen = self.addresses.get(which).cloned().unwrap_or_else(|| "127.0.0.1:0".into());
            let config = dir.join(format!("a{which}.toml"));
            let text = format!(
                "[anc]\nstore = {store:?}\ncreate = true\nlisten = {listen:?}\ngroup-size = 2\nsegment-mib = \
                 1\nbudget-mib = 16\n"
            );
            std::fs::write(&config, text).expect("written");
            let daemon = Daemon::start(mcr().arg("anc").arg("--config").arg(&config));
            if self.addresses.len() == which {
                self.addresses.push(daemon.address());
            }
            daemon
        } else {
            let name = format!("n{}", which - 2);
            Daemon::agent(&dir, &name, &dir.join(&name), &self.addresses, AGENT)
        };
        self.daemons[which] = Some(daemon);
    }

    fn write(&mut self, step: u32) {
        let mut files = BTreeMap::new();
        for rank in 0..4 {
            let node = self.dir.path().join(format!("n{}", rank / 2));
            write_rank(&node, step, rank, 20_000);
            let name = PathBuf::from(format!("sim.it_{step}.rank_{rank}.h5"));
            files.insert(name.clone(), std::fs::read(node.join(name)).expect("just written"));
        }
        self.truth.insert(format!("sim.it_{step}"), files);
    }

    /// After each kill, a restart restores all files of one step. The step is never older than the step of an earlier
    /// check.
    fn check(&self, seen: &mut u64) {
        let to = self.dir.path().join("back");
        let _ = std::fs::remove_dir_all(&to);
        let store = self.dir.path().join("store");
        let newest = list(&store).into_iter().find(|c| c["complete"] == true);
        let Some(newest) = newest else { return assert_eq!(*seen, 0, "a committed checkpoint is gone") };
        let written = newest["written_unix_ms"].as_u64().expect("a number");
        assert!(written >= *seen, "a committed checkpoint is gone");
        *seen = written;
        let report = run_json(mcr().args(["restart", "--copy"]).arg("--store").arg(&store).arg("--to").arg(&to), 0);
        let id = report["checkpoint"].as_str().expect("a name");
        assert_same_files(&self.truth[id], &contents(&to));
    }
}

fn make_dirs(dir: &Path) {
    ["n0", "n1"].iter().for_each(|name| std::fs::create_dir(dir.join(name)).expect("made"));
    make_store(&dir.join("store"));
}

#[test]
fn whatever_is_killed_whenever_a_restart_gives_a_whole_checkpoint() {
    let kills: u32 = std::env::var("MCR_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let seed = std::env::var("MCR_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) * 7919 + 1);
    eprintln!("MCR_SEED={seed}");
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().expect("a directory");
    make_dirs(dir.path());
    let mut site = Site { dir, addresses: Vec::new(), daemons: vec![None, None, None, None], truth: BTreeMap::new() };
    (0..4).for_each(|which| site.start(which));
    let mut seen = 0;
    for step in 1..=kills {
        site.write(step);
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let victim = random.index(4);
        if let Some(daemon) = site.daemons[victim].take() {
            daemon.kill();
        }
        site.check(&mut seen);
        site.start(victim);
    }
    // Without further kills, the processes that were started again commit the last step.
    wait_complete(&site.dir.path().join("store"), &format!("sim.it_{kills}"));
    site.check(&mut seen);
}
