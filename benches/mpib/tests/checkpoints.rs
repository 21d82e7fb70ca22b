//! JOR as an application: a run that is killed and started again ends with the same bits. Needs `--features hdf5`.
#![cfg(feature = "hdf5")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{MPIB, good, mpib, mpirun};

fn words(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "jor --sites 0-1/2-3 --size 16 --periods 3 --iterations 200 --checkpoint-every 10 --checkpoint-dir {directory}"
    )
}

fn line<'t>(text: &'t str, start: &str) -> &'t str {
    text.lines().find_map(|l| l.strip_prefix(start)).unwrap_or_else(|| panic!("no line {start:?} in {text}"))
}

/// The newest iteration for which at least one file exists.
fn newest(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.file_name());
    let number =
        |name: std::ffi::OsString| name.to_str()?.strip_prefix("jor.chkpt.it_")?.split('.').next()?.parse().ok();
    names.filter_map(number).max().unwrap_or(0)
}

#[test]
fn a_killed_run_continues_and_ends_with_the_same_bits() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (whole, killed) = (directory.path().join("whole"), directory.path().join("killed"));
    let undisturbed = good(mpib(4, &words(&whole)));
    assert!(undisturbed.starts_with("started at iteration 0"), "{undisturbed}");

    // With this pace the run would take 200 iterations of 26 ms.
    let slow = format!("{} --pace 5000,5000", words(&killed));
    let mut child =
        mpirun(4).arg(MPIB).args(slow.split_whitespace()).stdout(Stdio::null()).spawn().expect("timeout(1) runs");
    let deadline = Instant::now() + Duration::from_secs(180);
    while newest(&killed) < 20 {
        assert!(Instant::now() < deadline, "no checkpoint within the deadline");
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it could be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    // timeout(1) passes the signal to mpirun, and mpirun passes it to its ranks.
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill(1) runs");
    child.wait().expect("a child");

    let again = good(mpib(4, &words(&killed)));
    let from: usize = line(&again, "started at iteration ").split(',').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    assert!((10..200).contains(&from), "{again}");
    assert_eq!(line(&again, "digest "), line(&undisturbed, "digest "));

    // The newest file of one rank is truncated, so all ranks start from the previous iteration.
    let path = killed.join("jor.chkpt.it_200.file_2.h5");
    let bytes = std::fs::read(&path).expect("written at the end");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
    let older = good(mpib(4, &words(&killed)));
    assert!(older.starts_with("started at iteration 190"), "{older}");
    assert_eq!(line(&older, "digest "), line(&undisturbed, "digest "));
}

/// Tests the complete path, through agent and aggregator.
#[test]
fn a_run_and_its_daemons_are_killed_and_what_the_store_gives_back_ends_with_the_same_bits() {
    let Some(mcr) = support::mcr() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let undisturbed = good(mpib(4, &words(&path("whole"))));

    std::fs::create_dir(path("run")).expect("made");
    let mut daemon = Command::new(&mcr);
    daemon.args(["run", "--layout", "cactus", "--ranks", "4", "--job", "jor"]).arg("--watch").arg(path("run"));
    daemon.arg("--store").arg(path("store")).arg("--state").arg(path("state"));
    let log = std::fs::File::create(path("log")).expect("a log");
    daemon.stdout(Stdio::null()).stderr(log);
    let mut daemon = daemon.spawn().expect("mcr runs");
    // The run writes one checkpoint per second. Three checkpoints are kept, so the agent has time to read them.
    let slow = words(&path("run")).replace("--checkpoint-every 10", "--checkpoint-every 40") + " --pace 5000,5000";
    let mut ranks = mpirun(4).arg(MPIB).args(slow.split_whitespace()).spawn().expect("timeout(1) runs");
    let deadline = Instant::now() + Duration::from_secs(180);
    let list = || Command::new(&mcr).args(["list", "--store"]).arg(path("store")).output().expect("mcr runs");
    while !support::stdout(&list()).contains("complete") {
        let said = || std::fs::read_to_string(path("log")).unwrap_or_default();
        assert!(Instant::now() < deadline, "no checkpoint was committed: {}", said());
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.kill().expect("it runs");
    daemon.wait().expect("a child");
    Command::new("kill").args(["-TERM", &ranks.id().to_string()]).status().expect("kill(1) runs");
    ranks.wait().expect("a child");

    let mut restart = Command::new(&mcr);
    restart.args(["restart", "--store"]).arg(path("store")).arg("--to").arg(path("back"));
    good(restart.output().expect("mcr runs"));
    let again = good(mpib(4, &words(&path("back"))));
    assert!(!again.starts_with("started at iteration 0"), "nothing was brought back: {again}");
    assert_eq!(line(&again, "digest "), line(&undisturbed, "digest "));
}
