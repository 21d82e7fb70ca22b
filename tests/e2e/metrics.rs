//! Tests the metrics of daemons, also with a real Prometheus, and the lines of the log that are counted.

use crate::support::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The answer of a daemon to a request for metrics.
pub fn scraped(address: &str) -> String {
    scraped_as(address, "*/*")
}

/// The answer to a client that accepts these types.
pub fn scraped_as(address: &str, accept: &str) -> String {
    let mut client = TcpStream::connect(address).expect("connected");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    client.write_all(request.as_bytes()).expect("written");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("read");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// The value of a metric.
pub fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing: {text}")).parse().expect("a number")
}

/// The address of the metrics, from the log.
pub fn metrics_of(daemon: &Daemon) -> String {
    let line = daemon.wait_for_log("metrics are served");
    let at = line.split("address=").nth(1).expect("an address");
    at.split_whitespace().next().expect("an address").to_owned()
}

const LAYOUT: &str = "ranks = 2\nquiet-ms = 20\ncheckpoint-quiet-ms = 40\nlayout = \"{checkpoint}.rank_{rank}.h5\"";

/// An aggregator and an agent with metrics, and the watched directory. The log of both has only errors.
fn site(dir: &Path) -> (Daemon, Daemon, PathBuf) {
    let with_metrics = || {
        let mut command = mcr();
        command.env("MCR_METRICS", "127.0.0.1:0");
        command
    };
    let (aggregator, address) = Daemon::aggregator_by(with_metrics(), dir, "a", &dir.join("store"), "");
    let watch = dir.join("run");
    std::fs::create_dir(&watch).expect("made");
    let agent = Daemon::agent_by(with_metrics(), dir, "n", &watch, &[address], LAYOUT);
    (aggregator, agent, watch)
}

#[test]
fn the_metrics_count_what_is_committed_and_what_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (aggregator, agent, watch) = site(dir.path());
    let (of_aggregator, of_agent) = (metrics_of(&aggregator), metrics_of(&agent));
    assert_eq!(value(&scraped(&of_aggregator), "mcr_checkpoints_committed_total"), 0.0);
    for step in 1..=2 {
        (0..2).for_each(|rank| write_rank(&watch, step, rank, 900));
        wait_complete(&dir.path().join("store"), &format!("sim.it_{step}"));
    }
    let text = wait_for("the second checkpoint", Duration::from_secs(20), || {
        Some(scraped(&of_aggregator)).filter(|text| value(text, "mcr_checkpoints_committed_total") == 2.0)
    });
    assert_eq!((value(&text, "mcr_groups_committed_total"), value(&text, "mcr_agents")), (2.0, 1.0));
    assert!(value(&text, "mcr_bytes_raw_total") > value(&text, "mcr_bytes_stored_total"), "{text}");
    assert!(text.contains("mcr_job_last_commit_timestamp_seconds{job=\"job\",user=\""), "{text}");
    wait_for("the agent's count", Duration::from_secs(20), || {
        let text = scraped(&of_agent);
        assert!(!text.contains("mcr_agents"), "an agent is no aggregator: {text}");
        let uncommitted = text.lines().find(|line| line.starts_with("mcr_job_uncommitted_ranks{job=\"job\""))?;
        assert!(uncommitted.contains("user=\""), "{text}");
        if !uncommitted.ends_with(" 0") {
            return None;
        }
        let counts = ["mcr_checkpoints_saved_total", "mcr_ranks_committed_total"].map(|name| value(&text, name));
        (counts == [2.0, 4.0]).then_some(())
    });
    // The log has one line for each checkpoint, and no line for each rank.
    agent.wait_for_log("checkpoint=sim.it_2 ranks=2 bytes=");
    let log = agent.log();
    assert_eq!(log.matches("checkpoint saved").count(), 2, "{log}");
    assert!(!log.contains(" rank=0 exists="), "{log}");
    let log = aggregator.log();
    assert_eq!(log.matches("INFO the checkpoint is complete").count(), 2, "{log}");
    drop(agent);
    wait_for("no agent", Duration::from_secs(30), || {
        (value(&scraped(&of_aggregator), "mcr_agents") == 0.0).then_some(())
    });
}

#[test]
fn a_port_that_is_in_use_costs_the_metrics_but_no_checkpoint() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("an address").to_string();
    let mut by = mcr();
    by.env("MCR_METRICS", &address);
    let (aggregator, _) = Daemon::aggregator_by(by, dir.path(), "a", &dir.path().join("store"), "");
    assert!(aggregator.log().contains("metrics are not served"), "{}", aggregator.log());
}

#[test]
fn an_option_overrides_the_variable_and_the_variable_overrides_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        listener.local_addr().expect("an address").to_string()
    };
    let started = |name: &str, variable: Option<&str>, option: Option<&str>, file: &str| {
        let mut by = mcr();
        by.envs(variable.map(|value| ("MCR_METRICS", value)));
        let config = dir.path().join(format!("{name}.toml"));
        let store = dir.path().join("store");
        let text = format!("[anc]\nstore = {store:?}\ncreate = true\nlisten = \"127.0.0.1:0\"\nmetrics = {file:?}\n");
        std::fs::write(&config, text).expect("written");
        by.arg("anc").arg("--config").arg(&config).args(option.map(|value| format!("--metrics={value}")));
        let daemon = Daemon::start(&mut by);
        daemon.wait_for_log("aggregator listens");
        metrics_of(&daemon)
    };
    let [of_file, of_variable, of_option] = [(); 3].map(|()| free());
    assert_eq!(started("file", None, None, &of_file), of_file);
    assert_eq!(started("variable", Some(&of_variable), None, &of_file), of_variable);
    assert_eq!(started("option", Some(&of_variable), Some(&of_option), &of_file), of_option);
}

#[test]
fn agent_run_and_node_serve_metrics_at_the_address_in_their_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_aggregator, address) = Daemon::aggregator(dir.path(), "a", &dir.path().join("store"), "");
    let watch = dir.path().join("run");
    std::fs::create_dir(&watch).expect("made");
    let more = format!("{LAYOUT}\nmetrics = \"127.0.0.1:0\"");
    let agent = Daemon::agent(dir.path(), "n", &watch, &[address], &more);
    assert_eq!(value(&scraped(&metrics_of(&agent)), "mcr_checkpoints_saved_total"), 0.0);
    let cluster = dir.path().join("cluster.toml");
    std::fs::write(&cluster, "[anc]\nmetrics = \"127.0.0.1:0\"\n[node]\nmetrics = \"127.0.0.1:0\"\n").expect("written");
    let mut run_both = mcr();
    run_both
        .arg("run")
        .env("MCR_CLUSTER", &cluster)
        .current_dir(dir.path())
        .args(["--job", "j", "--watch"])
        .arg(&watch);
    let run_both = Daemon::start(run_both.arg("--store").arg(dir.path().join("store")));
    assert_eq!(value(&scraped(&metrics_of(&run_both)), "mcr_groups_committed_total"), 0.0);
    let node = |cluster: &Path| {
        let mut node = mcr();
        node.args(["node", "--own", "--run-dir"]).arg(dir.path().join("node")).env("MCR_CLUSTER", cluster);
        Daemon::start(&mut node)
    };
    let of_node = node(&cluster);
    let text = scraped(&metrics_of(&of_node));
    assert_eq!((value(&text, "mcr_jobs_begun_total"), value(&text, "mcr_jobs")), (0.0, 0.0));
    of_node.kill();
    // With a file that cannot be used, the daemon serves jobs, but no metrics.
    std::fs::write(&cluster, "[node]\nmetrics = \"somewhere\"\n").expect("written");
    let of_node = node(&cluster);
    let said = of_node.wait_for_log("the address of the metrics is not known");
    assert!(said.contains("it must be ADDRESS:PORT"), "{said}");
    of_node.wait_for_log("serving jobs");
}

#[test]
fn job_show_prints_the_address_of_the_metrics_and_where_it_comes_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = dir.path().join("cluster.toml");
    std::fs::write(&cluster, "[cnc]\nmetrics = \"127.0.0.1:7118\"\n").expect("written");
    std::fs::write(dir.path().join("mcr.toml"), "job = \"wave\"\n").expect("written");
    let shown = run_json(mcr().args(["job", "show"]).env("MCR_CLUSTER", &cluster).current_dir(dir.path()), 0);
    let metrics = &shown["settings"]["metrics"];
    assert_eq!(metrics["value"], "127.0.0.1:7118", "{shown}");
    assert!(metrics["from"].as_str().is_some_and(|from| from.ends_with("cluster.toml")), "{shown}");
}

/// The directory of promtool and prometheus. `None` if the programs are not installed.
pub fn prometheus() -> Option<PathBuf> {
    let named = std::env::var_os("MCR_TEST_PROMETHEUS").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = named.into_iter().chain(std::env::split_paths(&paths)).find(|dir| dir.join("promtool").exists());
    if found.is_none() {
        eprintln!(
            "SKIPPED: promtool is not installed (package prometheus; or name its directory: MCR_TEST_PROMETHEUS)"
        );
    }
    found
}

#[test]
fn promtool_accepts_the_metrics_and_the_alerts_and_prometheus_scrapes_a_daemon() {
    let Some(programs) = prometheus() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let rules = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus");
    let promtool = |args: &[&str]| {
        let mut command = Command::new(programs.join("promtool"));
        command.args(args).current_dir(&rules);
        command
    };
    run(&mut promtool(&["check", "rules", "alerts.yml"]), 0);
    run(&mut promtool(&["test", "rules", "alerts_test.yml"]), 0);
    let (aggregator, _agent, watch) = site(dir.path());
    let address = metrics_of(&aggregator);
    (0..2).for_each(|rank| write_rank(&watch, 1, rank, 900));
    wait_complete(&dir.path().join("store"), "sim.it_1");
    let config = dir.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n- job_name: mcrengine\n  static_configs:\n  \
         - targets: [{address:?}]\n",
        rules.canonicalize().expect("found").join("alerts.yml")
    );
    std::fs::write(&config, text).expect("written");
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        free.local_addr().expect("an address").port()
    };
    let mut command = Command::new(programs.join("prometheus"));
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let _prometheus = Daemon::start(&mut command);
    let server = format!("http://127.0.0.1:{port}");
    wait_for("a scrape", Duration::from_secs(30), || {
        let mut query = promtool(&["query", "instant", &server, "mcr_checkpoints_committed_total"]);
        let output = query.output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).contains("=> 1 @").then_some(())
    });
}
