//! Restart where something is in its way: aggregators that stand still, few descriptors, files that lie there already.

use crate::support::*;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A store with checkpoints of files that are no HDF5.
struct Site {
    dir: TempDir,
}

impl Site {
    /// Each step as `it_STEP/rank_RANK.dat`, in groups of two ranks.
    fn new(steps: &[u32], ranks: u32) -> Self {
        let site = Self::empty();
        steps.iter().for_each(|step| (0..ranks).for_each(|rank| site.write(&site.data(), *step, rank)));
        site.save("{checkpoint}/rank_{rank}.dat", 2);
        site
    }

    fn empty() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.data()).expect("made");
        site
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("back")
    }

    fn write(&self, dir: &Path, step: u32, rank: u32) {
        let path = dir.join(format!("it_{step}/rank_{rank}.dat"));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, bytes_of(step, rank)).expect("written");
    }

    fn save(&self, layout: &str, group_size: u32) {
        let mut save = mcr();
        save.args(["save", "--create"])
            .arg(self.data())
            .args(["--layout", layout, "--job", "job", "--store"])
            .arg(self.store());
        run(save.args(["--group-size", &group_size.to_string()]), 0);
    }

    fn restart(&self) -> Command {
        let mut restart = mcr();
        restart.arg("restart").arg("--store").arg(self.store()).arg("--to").arg(self.to());
        restart
    }
}

/// The content of a rank's file at a step, which names both.
fn bytes_of(step: u32, rank: u32) -> Vec<u8> {
    format!("step {step} of rank {rank}\n").repeat(200).into_bytes()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_restart_passes_over_aggregators_that_stand_still_and_fails_where_all_do() {
    let site = Site::new(&[1], 6);
    let (stopped, address) = Daemon::aggregator(site.dir.path(), "stopped", &site.store(), "");
    nix_kill(stopped.id(), "-STOP");
    // Nobody ever accepts from this one: the kernel does.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("an address").to_string();
    let started = Instant::now();
    let failed = run(site.restart().args(["--aggregators", &format!("{address},{silent}")]), 1);
    assert!(started.elapsed() < Duration::from_secs(50), "{} s", started.elapsed().as_secs());
    let said = text(&failed.stderr);
    assert!(said.contains(&address) && said.contains(&silent) && said.contains("gave no answer"), "{said}");
    assert!(!site.to().exists(), "a directory was made for a restore that failed");

    let (_good, good) = Daemon::aggregator(site.dir.path(), "good", &site.store(), "");
    let started = Instant::now();
    run(site.restart().args(["--aggregators", &format!("{address},{good}")]), 0);
    assert!(started.elapsed() < Duration::from_secs(25), "asked for each group: {} s", started.elapsed().as_secs());
    assert_same_files(&contents(&site.data()), &contents(&site.to()));
    nix_kill(stopped.id(), "-CONT");
}

fn nix_kill(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().is_ok_and(|status| status.success()));
}

#[test]
fn a_group_of_any_number_of_files_is_restored_with_64_descriptors() {
    let site = Site::empty();
    (0..600).for_each(|rank| site.write(&site.data(), 1, rank));
    site.save("{checkpoint}/rank_{rank}.dat", 1000);
    let (_aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &site.store(), "");
    for more in [&[][..], &["--aggregators", &address]] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]);
        let restart = site.restart();
        limited.arg(restart.get_program()).args(restart.get_args()).args(more);
        run(&mut limited, 0);
        assert_same_files(&contents(&site.data()), &contents(&site.to()));
        std::fs::remove_dir_all(site.to()).expect("removed");
    }
}
