//! Tests that nothing is saved to a store that other users can change, and that files of other users are not read as
//! settings.

use crate::support::*;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A user that is not the user of the test. Only root can give files to this user.
const OTHER: u32 = 4_000_001;

/// A directory with a checkpoint and a store.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(site.path("run")).expect("made");
        write_rank(&site.path("run"), 1, 0, 1000);
        make_store(&site.path("store"));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mcr(&self) -> Command {
        let mut command = mcr();
        command.env("MCR_CLUSTER", self.path("cluster.toml")).env("XDG_STATE_HOME", self.path("state"));
        command.current_dir(self.dir.path());
        command
    }

    /// The commands that write to the store.
    fn writers(&self, store: &Path, more: &[&str]) -> [Command; 3] {
        let config = self.path("anc.toml");
        let text = format!("[anc]\nstore = {store:?}\nlisten = \"127.0.0.1:0\"\n");
        std::fs::write(&config, text).expect("written");
        let (mut save, mut anc, mut run) = (self.mcr(), self.mcr(), self.mcr());
        save.args(["save", "run", "--job", "job", "--store"]).arg(store).args(more);
        anc.args(["anc", "--config"]).arg(config).args(more);
        run.args(["run", "--job", "job", "--layout", "{checkpoint}.rank_{rank}.h5", "--ranks", "1", "--watch", "run"]);
        run.arg("--store").arg(store).args(more).args(["--", "true"]);
        [save, anc, run]
    }

    fn are_refused(&self, store: &Path, more: &[&str], why: &str) {
        for mut command in self.writers(store, more) {
            let said = String::from_utf8(run(&mut command, 77).stderr).expect("UTF-8");
            assert!(said.contains(why), "{said}");
        }
        let files = std::fs::read_dir(store).expect("readable").count();
        assert_eq!(files, 0, "nothing was written");
    }
}

fn set(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
}

#[test]
fn nothing_is_saved_to_a_store_that_a_group_or_everyone_can_change_unless_the_user_shares_it_with_the_group() {
    let site = Site::new();
    let store = site.path("store");
    set(&store, 0o777);
    site.are_refused(&store, &[], "has mode 0777, so all users can change checkpoints; chmod o-w");
    site.are_refused(&store, &["--shared-store"], "so all users can change checkpoints");
    set(&store, 0o770);
    site.are_refused(&store, &[], "has mode 0770, so its group can change checkpoints; chmod go-w");
    let [mut save, _, mut run_it] = site.writers(&store, &["--shared-store"]);
    run(&mut save, 0);
    run(&mut run_it, 0);
    // A store that `mcr.toml` names is refused too.
    std::fs::write(site.path("mcr.toml"), format!("job = \"two\"\nstore = {store:?}\n")).expect("written");
    let found = ["save", "run"];
    run(site.mcr().args(found), 77);
    std::fs::write(site.path("mcr.toml"), format!("job = \"two\"\nstore = {store:?}\nshared-store = true\n"))
        .expect("written");
    run(site.mcr().args(found), 0);
    let cluster = "[limits]\nshared-store = false\n";
    std::fs::write(site.path("cluster.toml"), cluster).expect("written");
    let said = String::from_utf8(run(site.mcr().args(found), 1).stderr).expect("UTF-8");
    assert!(said.contains("permits only false"), "{said}");
}

#[test]
fn a_new_store_has_mode_0700_and_a_restart_warns_of_a_store_that_everyone_can_change() {
    let site = Site::new();
    let store = site.path("new");
    run(site.mcr().args(["save", "run", "--create", "--job", "job", "--store"]).arg(&store), 0);
    assert_eq!(store.metadata().expect("there").permissions().mode() & 0o7777, 0o700);
    let restart = |to: &str| {
        let mut command = site.mcr();
        command.args(["restart", "--copy", "--to", to, "--store"]).arg(&store);
        String::from_utf8(run(&mut command, 0).stderr).expect("UTF-8")
    };
    assert!(!restart("a").contains("the store"));
    set(&store, 0o757);
    assert!(restart("b").contains("so all users can change checkpoints; chmod o-w"));
}

/// Only root can run this test. For other users, the test does nothing.
#[test]
fn a_store_of_another_user_and_a_store_behind_a_link_of_another_user_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let site = Site::new();
    let store = site.path("store");
    symlink(&store, site.path("link")).expect("linked");
    lchown(site.path("link"), Some(OTHER), None).expect("given away");
    site.are_refused(&site.path("link"), &[], "it is a symbolic link of uid 4000001");
    chown(&store, Some(OTHER), None).expect("given away");
    site.are_refused(&store, &[], "it belongs to uid 4000001 (mode 0700), and this process to root (uid 0)");
    let [mut save, ..] = site.writers(&store, &["--shared-store"]);
    run(&mut save, 0);
    // Reading a store of another user needs only the permissions of the file system.
    run(site.mcr().args(["verify", "--store"]).arg(&store), 0);
    // A file `mcr.toml` that belongs to another user is not read.
    std::fs::write(site.path("mcr.toml"), "job = \"job\"\n").expect("written");
    chown(site.path("mcr.toml"), Some(OTHER), None).expect("given away");
    let said = String::from_utf8(run(site.mcr().args(["job", "show"]), 1).stderr).expect("UTF-8");
    assert!(said.contains("mcr.toml") && said.contains("it belongs to another user (uid 4000001)"), "{said}");
}

#[test]
fn a_configuration_that_is_no_small_regular_file_is_refused_at_once() {
    let site = Site::new();
    let (fifo, large) = (site.path("fifo"), site.path("large.toml"));
    run(Command::new("mkfifo").arg(&fifo), 0);
    std::fs::write(&large, "# comment\n".repeat(7000)).expect("written");
    let began = Instant::now();
    for daemon in ["cnc", "anc", "run"] {
        for (file, why) in [
            (&fifo, "it is not a regular file"),
            (&site.path("run"), "it is not a regular file"),
            (&large, "it has more than 64 KiB"),
        ] {
            let mut command = site.mcr();
            command.args([daemon, "--config"]).arg(file).stdin(Stdio::null());
            let said = String::from_utf8(run(&mut command, 78).stderr).expect("UTF-8");
            let lines = said.lines().filter(|line| !line.starts_with("mcr: advice: "));
            assert_eq!(lines.count(), 1, "{said}");
            assert!(said.contains(why) && said.contains(file.to_str().expect("UTF-8")), "{said}");
        }
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// `mcr run` without a command.
fn running(site: &Site, state: &str) -> Daemon {
    let mut command = site.mcr();
    command.args(["run", "--job", "job", "--layout", "{checkpoint}.rank_{rank}.h5", "--ranks", "1", "--watch", "run"]);
    let daemon = Daemon::start(command.args(["--store", "store", "--state", state]));
    daemon.wait_for_log("session began");
    daemon
}

#[test]
fn the_aggregator_of_mcr_run_is_reached_only_by_its_user() {
    let site = Site::new();
    let daemon = running(&site, "state");
    let address = daemon.address();
    let socket = PathBuf::from(address.strip_prefix("unix:").expect("a socket"));
    assert_eq!(socket.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    wait_complete(&site.path("store"), "sim.it_1");
    let status = site.mcr().args(["status", "--aggregators", &address]).output().expect("runs");
    assert!(String::from_utf8_lossy(&status.stdout).contains("sim.it_1"), "{status:?}");
    if nix::unistd::geteuid().is_root() {
        // The aggregator refuses another user, even if the permissions of the socket let this user connect.
        set(site.dir.path(), 0o755);
        set(&socket, 0o666);
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_mcr")]);
        let status = command.args(["status", "--aggregators", &address]).output().expect("runs");
        assert_ne!(status.status.code(), Some(0), "{status:?}");
        assert!(!String::from_utf8_lossy(&status.stdout).contains("sim.it_1"), "{status:?}");
        if status.status.code() == Some(1) {
            daemon.wait_for_log("the other process belongs to user 65534");
        }
    }
    assert_eq!(daemon.stop(), Some(0));
    assert!(!socket.exists(), "the socket is removed");
}

#[test]
fn two_runs_with_one_state_file_have_two_sockets() {
    let site = Site::new();
    let first = running(&site, "state");
    let second = running(&site, "state");
    second.wait_for_log("the aggregator uses another socket");
    assert_ne!(first.address(), second.address());
    for daemon in [&first, &second] {
        run(site.mcr().args(["status", "--aggregators", &daemon.address()]), 0);
    }
    let socket = PathBuf::from(second.address().strip_prefix("unix:").expect("a socket"));
    second.stop();
    assert!(!socket.parent().expect("a directory").exists());
    assert_eq!(first.stop(), Some(0));
}
