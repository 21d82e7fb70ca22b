//! Tests TLS between agents, aggregators and commands. Agents, aggregators and commands accept only processes of the
//! same user. Processes of other users get an error that says why. With MCR_TLS=always, connections on the loopback
//! address use TLS too.

use crate::metrics::{metrics_of, scraped, value};
use crate::support::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A home directory.
struct Home {
    dir: TempDir,
}

impl Home {
    /// A home directory without a key.
    fn empty() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    fn new() -> Self {
        let home = Self::empty();
        run(home.mcr().args(["cert", "init"]), 0);
        home
    }

    /// The binary with this home directory.
    fn mcr(&self) -> Command {
        let mut command = mcr();
        command.env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME").env("MCR_TLS", "always");
        // The file does not exist, so the cluster's file of this machine is not read.
        command.env("MCR_CLUSTER", self.path("cluster.toml"));
        command
    }

    /// Like [`Home::mcr`], but without TLS on the loopback address.
    fn plain(&self) -> Command {
        let mut command = self.mcr();
        command.env_remove("MCR_TLS");
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn key(&self) -> PathBuf {
        self.path(".config/mcr/cluster.key")
    }

    fn aggregator(&self) -> (Daemon, String) {
        Daemon::aggregator_by(self.mcr(), self.dir.path(), "a", &self.path("store"), "group-size = 2")
    }

    /// Runs `mcr status`, whose exit status must be `expected`. Returns its output.
    fn status(&self, mut by: Command, address: &str, expected: i32) -> String {
        let said = run(by.args(["status", "--aggregators", address]), expected);
        String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr)
    }
}

const AGENT: &str =
    "ranks = 2\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 50\ncheckpoint-quiet-ms = 100";

fn agent(by: Command, home: &Home, address: &str) -> Daemon {
    let watch = home.path("run");
    std::fs::create_dir_all(&watch).expect("made");
    Daemon::agent_by(by, home.dir.path(), "n", &watch, &[address.to_owned()], AGENT)
}

fn mode_of(path: &Path) -> u32 {
    path.metadata().expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn checkpoints_are_saved_and_restored_over_tls() {
    let home = Home::new();
    let (_aggregator, address) = home.aggregator();
    let agent = agent(home.mcr(), &home, &address);
    agent.wait_for_log("session began");
    (0..2).for_each(|rank| write_rank(&home.path("run"), 1, rank, 200_000));
    wait_complete(&home.path("store"), "sim.it_1");
    assert!(home.status(home.mcr(), &address, 0).contains("sim.it_1"));
    let mut restart = home.mcr();
    restart.args(["restart", "--aggregators", &address, "--store"]).arg(home.path("store"));
    run(restart.arg("--to").arg(home.path("back")), 0);
    assert_same_files(&contents(&home.path("run")), &contents(&home.path("back")));
}

#[test]
fn mcr_run_saves_over_tls_between_its_own_agent_and_aggregator() {
    let home = Home::new();
    std::fs::create_dir(home.path("run")).expect("made");
    let mut command = home.mcr();
    command.args(["run", "--job", "job", "--ranks", "1", "--layout", "{checkpoint}/{rank}", "--create", "--watch"]);
    command.arg(home.path("run")).arg("--store").arg(home.path("store")).arg("--state").arg(home.path("state"));
    let write = format!("mkdir {0}/it_1 && echo 1 > {0}/it_1/0", home.path("run").display());
    run(command.args(["--", "sh", "-c", &write]), 0);
    assert_eq!(list(&home.path("store"))[0]["complete"], true);
}

#[test]
fn the_agent_and_the_aggregator_of_another_user_are_refused() {
    let (alice, bob) = (Home::new(), Home::new());
    let (aggregator, address) = alice.aggregator();
    let said = bob.status(bob.mcr(), &address, 1);
    assert!(said.contains("another certificate authority") && said.contains("mcr cert init"), "{said}");
    let agent = agent(bob.mcr(), &bob, &address);
    agent.wait_for_log("another certificate authority made the certificate of the aggregator");
    let line = aggregator.wait_for_log("a connection is refused");
    assert!(line.contains("peer=\"127.0.0.1:") && line.contains("the client trusts another"), "{line}");
    assert!(alice.status(alice.mcr(), &address, 0).contains("no agent is connected"));
}

#[test]
fn both_sides_read_that_only_one_of_them_uses_tls() {
    let home = Home::new();
    let (aggregator, address) = home.aggregator();
    let said = home.status(home.plain(), &address, 1);
    assert!(said.contains("the aggregator uses TLS, but this process does not"), "{said}");
    aggregator.wait_for_log("the client does not use TLS, but this process does");
    let plain_agent = agent(home.plain(), &home, &address);
    plain_agent.wait_for_log("the aggregator uses TLS, but this process does not");
    let other = Home::new();
    let (_plain, address) =
        Daemon::aggregator_by(other.plain(), other.dir.path(), "p", &other.path("store"), "group-size = 2");
    let said = home.status(home.mcr(), &address, 1);
    assert!(said.contains("the aggregator does not use TLS, but this process does"), "{said}");
    let agent = agent(other.mcr(), &other, &address);
    agent.wait_for_log("the aggregator does not use TLS, but this process does");
}

#[test]
fn a_hundred_silent_connections_keep_nobody_out_and_are_closed() {
    let home = Home::new();
    let (aggregator, address) = home.aggregator();
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).expect("connected")).collect();
    let began = Instant::now();
    home.status(home.mcr(), &address, 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    aggregator.wait_for_log("the client did not finish the TLS handshake within 10000 ms");
    home.status(home.mcr(), &address, 0);
    drop(silent);
}

#[test]
fn listeners_of_other_users_on_the_first_ports_of_the_range_do_not_delay_a_session() {
    let home = Home::new();
    // The ports below the aggregator's port belong to processes that accept connections and never answer.
    let (_aggregator, last, _silent) = (0..20)
        .find_map(|_| {
            let (aggregator, address) = home.aggregator();
            let last: u16 = address.rsplit_once(':')?.1.parse().ok()?;
            let silent: Result<Vec<_>, _> =
                (last - 20..last).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
            Some((aggregator, last, silent.ok()?))
        })
        .expect("a port below which 20 ports are free");
    let agent = agent(home.mcr(), &home, &format!("127.0.0.1:{}-{last}", last - 20));
    let began = Instant::now();
    agent.wait_for_log("session began");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}: {}", began.elapsed(), agent.log());
}

#[test]
fn many_refused_connections_are_few_lines_of_the_log_and_every_one_is_counted() {
    const MANY: usize = 300;
    let home = Home::new();
    let more = "group-size = 2\nmetrics = \"127.0.0.1:0\"";
    let (aggregator, address) = Daemon::aggregator_by(home.mcr(), home.dir.path(), "a", &home.path("store"), more);
    let began = Instant::now();
    for _ in 0..MANY {
        TcpStream::connect(&address).expect("connected").write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    }
    let counted = || value(&scraped(&metrics_of(&aggregator)), "mcr_tls_refused_total{why=\"tls\"}") as usize;
    wait_for("the count of all refused connections", Duration::from_secs(30), || (counted() == MANY).then_some(()));
    let lines = aggregator.log().lines().filter(|line| line.contains("a connection is refused")).count() as u64;
    assert!((1..=began.elapsed().as_secs() + 1).contains(&lines), "{lines} lines in {:?}", began.elapsed());
    home.status(home.mcr(), &address, 0);
}

#[test]
fn a_key_that_others_may_read_or_replace_is_refused() {
    let home = Home::new();
    let (key, dir) = (home.key(), home.path(".config/mcr"));
    assert_eq!((mode_of(&key), mode_of(&dir)), (0o400, 0o700));
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("the mode is set");
    };
    let refused = |why: &str, status| {
        let said = home.status(home.mcr(), "127.0.0.1:1", status);
        assert!(said.contains(why), "{said}");
    };
    set(&key, 0o644);
    refused("cluster.key: it has mode 0644, so other users have access to it; chmod 400", 77);
    set(&key, 0o600);
    set(&dir, 0o770);
    refused("it has mode 0770, so other users may write it", 77);
    set(&dir, 0o700);
    std::fs::rename(&key, home.path("elsewhere")).expect("moved");
    symlink(home.path("elsewhere"), &key).expect("linked");
    refused("it is a symbolic link", 77);
    std::fs::remove_file(&key).expect("removed");
    assert!(Command::new("mkfifo").arg(&key).status().expect("it runs").success());
    refused("it must be a file", 78);
    std::fs::remove_file(&key).expect("removed");
    std::fs::rename(home.path("elsewhere"), &key).expect("moved back");
    // No aggregator listens on the port, but the key is good.
    home.status(home.mcr(), "127.0.0.1:1", 1);
    // `mcr cert init` never replaces a key.
    let before = std::fs::read(&key).expect("readable");
    let said = run(home.mcr().args(["cert", "init"]), 0);
    let said = String::from_utf8(said.stdout).expect("UTF-8");
    assert!(said.contains("exists already; nothing was changed") && said.lines().count() == 1, "{said}");
    assert_eq!(std::fs::read(&key).expect("readable"), before);
    // A key that cannot be used is named, and not replaced.
    set(&key, 0o644);
    let said = run(home.mcr().args(["cert", "init"]), 77);
    assert!(String::from_utf8_lossy(&said.stderr).contains("mode 0644"));
    set(&key, 0o400);
    std::fs::remove_file(dir.join("cluster.pem")).expect("removed");
    let said = run(home.mcr().args(["cert", "init"]), 1);
    let said = String::from_utf8(said.stderr).expect("UTF-8");
    assert!(said.contains("there is a key already, which cannot be used") && said.contains("copy it from"), "{said}");
    assert_eq!(std::fs::read(&key).expect("readable"), before);
}

#[test]
fn several_processes_may_make_the_key_of_a_user_at_the_same_time() {
    let home = Home::empty();
    let all: Vec<_> =
        (0..8).map(|_| home.mcr().args(["cert", "init"]).stdout(Stdio::piped()).spawn().expect("starts")).collect();
    let said = all.into_iter().map(|process| process.wait_with_output().expect("ended"));
    let said: Vec<_> = said.inspect(|output| assert!(output.status.success(), "{output:?}")).collect();
    let made = said.iter().filter(|output| output.stdout.starts_with(b"made "));
    assert_eq!(made.count(), 1);
    home.status(home.mcr(), "127.0.0.1:1", 1);
}

#[test]
fn without_a_key_nothing_listens_on_all_addresses_or_dials_another_node_unless_the_cluster_permits_it() {
    let home = Home::empty();
    let config = home.path("a.toml");
    let text = format!("[anc]\nstore = {:?}\ncreate = true\nlisten = \"0.0.0.0:0\"\n", home.path("store"));
    std::fs::write(&config, text).expect("written");
    let agent_config = home.path("c.toml");
    let text = format!("[cnc]\njob = \"job\"\nwatch = {:?}\naggregators = [\"n1:7117\"]\n", home.dir.path());
    std::fs::write(&agent_config, text).expect("written");
    let says_both_ways_out = |command: &mut Command| {
        let said = String::from_utf8(run(command, 78).stderr).expect("UTF-8");
        assert!(said.contains("mcr cert init") && said.contains("tls = \"off\""), "{said}");
    };
    says_both_ways_out(home.plain().arg("anc").arg("--config").arg(&config));
    says_both_ways_out(home.plain().arg("cnc").arg("--config").arg(&agent_config));
    says_both_ways_out(home.plain().args(["status", "--aggregators", "n1:7117"]));
    std::fs::write(home.path("cluster.toml"), "tls = \"off\"\n").expect("written");
    let daemon = Daemon::start(home.plain().arg("anc").arg("--config").arg(&config));
    daemon.wait_for_log("connections are not encrypted, and users are not checked");
    let port = daemon.address().rsplit_once(':').expect("a port").1.to_owned();
    home.status(home.plain(), &format!("127.0.0.1:{port}"), 0);
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn a_restart_through_an_aggregator_on_another_node_needs_a_key() {
    let home = Home::empty();
    std::fs::create_dir(home.path("run")).expect("made");
    write_rank(&home.path("run"), 1, 0, 1000);
    let mut save = home.mcr();
    run(save.args(["save", "--create", "--job", "job", "--store"]).arg(home.path("store")).arg(home.path("run")), 0);
    let mut restart = home.plain();
    restart.args(["restart", "--aggregators", "n1:7117", "--store"]).arg(home.path("store"));
    let said = run(restart.arg("--to").arg(home.path("back")), 78);
    assert!(String::from_utf8_lossy(&said.stderr).contains("run mcr cert init once"));
}

#[test]
fn a_key_is_replaced_while_daemons_run_and_no_connection_is_refused() {
    let home = Home::new();
    let (aggregator, address) = home.aggregator();
    let agent = agent(home.mcr(), &home, &address);
    agent.wait_for_log("session began");
    let before = std::fs::read(home.key()).expect("readable");
    let mut rotation = home.mcr().args(["cert", "rotate", "--wait", "4"]).spawn().expect("starts");
    let status = loop {
        home.status(home.mcr(), &address, 0);
        if let Some(status) = rotation.try_wait().expect("waited for") {
            break status;
        }
    };
    assert!(status.success());
    assert_ne!(std::fs::read(home.key()).expect("readable"), before);
    assert_eq!(mode_of(&home.key()), 0o400);
    home.status(home.mcr(), &address, 0);
    // An agent that was started with the old key connects to an aggregator that was started with the new key.
    aggregator.kill();
    let more = format!("group-size = 2\nlisten = {address:?}");
    let config = home.path("b.toml");
    std::fs::write(&config, format!("[anc]\nstore = {:?}\n{more}\n", home.path("store"))).expect("written");
    let aggregator = Daemon::start(home.mcr().arg("anc").arg("--config").arg(&config));
    (0..2).for_each(|rank| write_rank(&home.path("run"), 1, rank, 2000));
    wait_complete(&home.path("store"), "sim.it_1");
    for log in [aggregator.log(), agent.log()] {
        assert!(!log.contains("refused") && !log.contains("certificate authority made"), "{log}");
    }
    let files = std::fs::read_dir(home.path(".config/mcr")).expect("readable").count();
    assert_eq!(files, 2, "only the key and the certificate are left");
}

#[test]
fn the_steps_of_a_rotation_can_be_done_one_by_one_and_an_interrupted_one_goes_on() {
    let home = Home::new();
    let step = |args: &[&str]| {
        let said = run(home.mcr().args(["cert", "rotate"]).args(args), 0).stdout;
        String::from_utf8(said).expect("UTF-8")
    };
    let certificates = || {
        let text = std::fs::read_to_string(home.path(".config/mcr/cluster.pem")).expect("readable");
        text.matches("BEGIN CERTIFICATE").count()
    };
    assert!(step(&["--step"]).contains("step 1 of 3") && certificates() == 2);
    // The files look as if the command was killed between the two writes of the first step.
    let both = std::fs::read_to_string(home.path(".config/mcr/cluster.pem")).expect("readable");
    let second = both.rfind("-----BEGIN").expect("two certificates");
    std::fs::write(home.path(".config/mcr/cluster.pem"), &both[..second]).expect("written");
    assert!(step(&["--step"]).contains("step 1 of 3") && certificates() == 2);
    assert!(step(&["--step"]).contains("step 2 of 3") && certificates() == 2);
    let said = step(&["--wait", "0"]);
    assert!(said.contains("step 3 of 3") && !said.contains("step 1") && certificates() == 1, "{said}");
    assert!(step(&["--wait", "0"]).lines().count() == 3 && certificates() == 1);
    let said = run(Home::empty().mcr().args(["cert", "rotate"]), 1);
    assert!(String::from_utf8_lossy(&said.stderr).contains("run mcr cert init once"));
}
