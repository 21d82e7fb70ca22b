//! Tests of directories that the agent cannot read, and of a watched path that later leads to another directory.

use crate::support::*;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const AGENT: &str = "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}/r{rank}.dat\"\nquiet-ms = 50\n\
                     checkpoint-quiet-ms = 100\nreconnect-min-ms = 50";
const NOT_COMMITTED: i32 = 5;
/// The user of the daemons if the tests run as root, because root can read everything.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The binary, as a user without the privileges of root.
fn mcr_of_a_user() -> Command {
    if !is_root() {
        return mcr();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_mcr")]);
    command
}

struct Site {
    dir: TempDir,
}

impl Site {
    /// A site whose files belong to the user of [`mcr_of_a_user`]. `None` if this user cannot run the binary.
    fn of_a_user() -> Option<Self> {
        if !mcr_of_a_user().arg("--version").output().is_ok_and(|output| output.status.success()) {
            eprintln!("SKIPPED: no other user can run the binary");
            return None;
        }
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.run()).expect("made");
        if is_root() {
            for dir in [site.dir.path().to_owned(), site.run()] {
                std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("set");
                chown(dir, Some(NOBODY), Some(NOBODY)).expect("given away");
            }
        }
        Some(site)
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Starts an aggregator and an agent.
    fn start(&self, mcr: fn() -> Command) -> (Daemon, Daemon) {
        let dir = self.dir.path();
        let (aggregator, address) = Daemon::aggregator_by(mcr(), dir, "a", &self.store(), "group-size = 2");
        let agent = Daemon::agent_by(mcr(), dir, "n", &self.run(), &[address], AGENT);
        agent.wait_for_log("session began");
        (aggregator, agent)
    }

    /// Moves a directory into the watched directory. The directory has a checkpoint, but this user cannot read it.
    fn move_in_unreadable(&self, checkpoint: &str) -> PathBuf {
        let (apart, to) = (self.dir.path().join("apart"), self.run().join(checkpoint));
        write(&apart, checkpoint);
        // Without the permission to write, only root can move a directory.
        std::fs::set_permissions(apart.join(checkpoint), std::fs::Permissions::from_mode(0o300)).expect("set");
        std::fs::rename(apart.join(checkpoint), &to).expect("moved");
        to
    }

    fn flush(&self, mut mcr: Command, status: i32) -> String {
        let state = self.dir.path().join("n.state");
        let output = run(mcr.args(["flush", "--timeout", "20", "--state"]).arg(state), status);
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

/// Writes the two ranks of a checkpoint.
fn write(dir: &Path, checkpoint: &str) {
    std::fs::create_dir_all(dir.join(checkpoint)).expect("made");
    for rank in 0..2 {
        std::fs::write(dir.join(format!("{checkpoint}/r{rank}.dat")), format!("{checkpoint} {rank}").repeat(99))
            .expect("written");
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_named_by_each_flush_and_at_the_end_and_is_saved_when_it_can_be_read() {
    let Some(site) = Site::of_a_user() else { return };
    site.move_in_unreadable("lost+found");
    std::thread::sleep(Duration::from_millis(50)); // the clock of a file system advances in steps of up to 10 ms
    let (_aggregator, agent) = site.start(mcr_of_a_user);
    write(&site.run(), "it_1");
    wait_complete(&site.store(), "it_1");
    // A directory that is older than the agent does not count as a checkpoint.
    assert!(agent.wait_for_log("lost+found cannot be read").contains("it is older than this agent"));
    site.flush(mcr_of_a_user(), 0);

    let hidden = site.move_in_unreadable("it_2");
    agent.wait_for_log("it_2 cannot be read: Permission denied");
    for _ in 0..2 {
        let said = site.flush(mcr_of_a_user(), NOT_COMMITTED);
        assert!(
            said.contains(&format!("NOT committed: {} cannot be read: Permission denied", hidden.display())),
            "{said}"
        );
        assert!(
            !said.contains("everything that was written is committed\n") || said.contains("not everything"),
            "{said}"
        );
    }
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o755)).expect("set");
    wait_complete(&site.store(), "it_2"); // without a flush
    site.flush(mcr_of_a_user(), 0);

    let hidden = site.move_in_unreadable("it_3");
    agent.signal("TERM");
    let (status, log) = agent.end();
    assert_eq!(status, Some(NOT_COMMITTED), "{log}");
    let last = log.lines().find(|line| line.contains("not committed: these paths cannot be read")).expect(&log);
    assert!(last.contains(hidden.to_str().expect("UTF-8")) && last.contains("paths=1"), "{log}");
    for name in ["lost+found", "it_2", "it_3"] {
        let warned = log.lines().filter(|line| line.contains(&format!("{name} cannot be read: "))).count();
        assert_eq!(warned, 1, "{name}: {log}");
    }
}

#[test]
fn mcr_run_names_a_directory_that_cannot_be_read_once_at_its_end() {
    let Some(site) = Site::of_a_user() else { return };
    let script = "cd \"$0\" && for k in 1 2; do mkdir it_$k && echo $k > it_$k/r0.dat && echo $k > it_$k/r1.dat; done; \
                  chmod 300 it_2";
    let mut command = mcr_of_a_user();
    command.args([
        "run",
        "--job",
        "job",
        "--layout",
        "{checkpoint}/r{rank}.dat",
        "--ranks",
        "2",
        "--create",
        "--store",
    ]);
    command.arg(site.store()).arg("--watch").arg(site.run()).arg("--state").arg(site.dir.path().join("state"));
    let output = run(command.args(["--", "sh", "-c", script]).arg(site.run()), NOT_COMMITTED);
    let log = String::from_utf8(output.stderr).expect("UTF-8");
    let named: Vec<_> = log.lines().filter(|line| line.contains("these paths cannot be read")).collect();
    assert_eq!(named.len(), 1, "{log}");
    assert!(named[0].contains("it_2"), "{log}");
}

#[test]
fn a_link_to_the_watched_directory_may_be_switched_and_the_checkpoints_in_the_new_directory_are_saved() {
    let site = Site { dir: tempfile::tempdir().expect("a directory") };
    let switch = |to: &str| {
        let (new, link) = (site.dir.path().join(to), site.dir.path().join("link"));
        std::fs::create_dir(&new).expect("made");
        symlink(to, &link).expect("linked");
        std::fs::rename(link, site.run()).expect("switched");
        new
    };
    switch("v1");
    let (_aggregator, agent) = site.start(mcr);
    write(&site.run(), "it_1");
    wait_complete(&site.store(), "it_1");

    let new = switch("v2");
    write(&site.run(), "it_2");
    wait_complete(&site.store(), "it_2"); // without a flush
    let warning = agent.wait_for_log("the path leads to");
    assert!(warning.contains("WARN") && warning.contains(new.to_str().expect("UTF-8")), "{warning}");

    switch("v3");
    write(&site.run(), "it_3");
    site.flush(mcr(), 0);
    wait_complete(&site.store(), "it_3");

    switch("v4");
    write(&site.run(), "it_4");
    agent.signal("TERM");
    let (status, log) = agent.end();
    assert_eq!(status, Some(0), "{log}");
    wait_complete(&site.store(), "it_4");
}

/// Runs a script of an application below `mcr run`. The script begins in the watched directory. Returns the log.
fn run_script(site: &Site, script: &str, status: i32) -> String {
    std::fs::create_dir_all(site.run()).expect("made");
    let script = format!("write() {{ mkdir $1; echo $1 > $1/r0.dat; echo $1 > $1/r1.dat; }}; cd \"$0\"; {script}");
    let mut command = mcr();
    command.args(["run", "--job", "job", "--layout", "{checkpoint}/r{rank}.dat", "--ranks", "2", "--create"]);
    command.arg("--store").arg(site.store()).arg("--watch").arg(site.run());
    command.arg("--state").arg(site.dir.path().join("state"));
    let output = run(command.args(["--", "sh", "-c", &script]).arg(site.run()), status);
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn the_last_checkpoint_in_a_renamed_directory_is_saved_whether_or_not_a_new_directory_takes_its_place() {
    for (script, saved) in [
        ("write it_1; sleep 0.5; cd ..; mv run old; mkdir run; cd run; write it_2", &["it_1", "it_2"][..]),
        ("write it_1; sleep 0.5; cd ..; mv run old; mkdir run; sleep 6; cd run; write it_2", &["it_1", "it_2"]),
        ("write it_1; cd ..; mv run old", &["it_1"]),
        ("write it_1; sleep 0.5; cd ..; mv run old; cd old; write it_2; sleep 4; cd ..; mkdir run", &["it_1", "it_2"]),
    ] {
        let site = Site { dir: tempfile::tempdir().expect("a directory") };
        let log = run_script(&site, script, 0);
        for id in saved {
            let is_complete = list(&site.store()).iter().any(|c| c["checkpoint"] == *id && c["complete"] == true);
            assert!(is_complete, "{script}: {id}: {log}");
        }
    }
}

#[test]
fn a_checkpoint_in_a_renamed_directory_that_cannot_be_saved_is_named_at_the_end_and_gives_5() {
    let site = Site { dir: tempfile::tempdir().expect("a directory") };
    let script = "write it_1; sleep 20 3>>it_1/r1.dat & sleep 0.5; cd ..; mv run old; mkdir run; cd run; write it_2";
    let log = run_script(&site, script, NOT_COMMITTED);
    assert!(log.contains("old was replaced by another directory before the rank was saved"), "{log}");
    assert!(log.contains("not committed checkpoint=it_1"), "{log}");
    assert!(list(&site.store()).iter().any(|c| c["checkpoint"] == "it_2" && c["complete"] == true), "{log}");
}

#[test]
fn a_step_that_the_application_was_appending_to_when_it_died_is_not_saved_as_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, data) = (dir.path().join("store"), dir.path().join("run"));
    std::fs::create_dir(&data).expect("made");
    let script = "for step in 1 2 3; do for part in 1 2 3; do \
                  for rank in 0 1; do echo $step $rank part $part >> ck_$step.$rank; done; \
                  if [ $step$part = 32 ]; then sleep 2.5; kill -9 $$; fi; sleep 1; done; done";
    let mut job_run = mcr();
    job_run.args(["run", "--create", "--job", "job", "--ranks", "2", "--layout", "{checkpoint}.{rank}", "--store"]);
    job_run.arg(&store).arg("--state").arg(dir.path().join("state")).arg("--watch").arg(&data);
    let said = run(job_run.current_dir(&data).args(["--", "sh", "-c", script]), 137).stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("the rank wrote fewer files or bytes than for the checkpoint before"), "{said}");
    let to = dir.path().join("to");
    run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to), 0);
    let whole = "2 1 part 1\n2 1 part 2\n2 1 part 3\n";
    assert_eq!(std::fs::read_to_string(to.join("ck_2.1")).expect("restored"), whole);
}
