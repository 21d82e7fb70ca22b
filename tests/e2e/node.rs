//! Tests of `mcr node --own`, a daemon that saves the jobs of its own user: jobs begin and end, jobs have one or more
//! nodes, and the daemon is missing, is killed, or does not answer.

use crate::support::*;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A node with the work directory of a job.
struct Site {
    dir: TempDir,
    /// A number that no job of another test has, because workers search the processes of this machine.
    job_id: String,
}

impl Site {
    fn new(job_id: u32) -> Self {
        let site =
            Self { dir: tempfile::tempdir().expect("a directory"), job_id: format!("{}{job_id}", std::process::id()) };
        write_job_files(site.dir.path(), &site.job_id, "");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn daemon(&self) -> Daemon {
        self.daemon_with(&mut mcr())
    }

    /// A daemon whose workers end after `millis` ms without a daemon and without a process of their job. The default
    /// is one hour.
    fn daemon_of_impatient_workers(&self, millis: u32) -> Daemon {
        self.daemon_with(mcr().env("MCR_TEST_ALONE_MS", millis.to_string()))
    }

    fn daemon_with(&self, command: &mut Command) -> Daemon {
        let daemon = Daemon::start(command.args(["node", "--own", "--run-dir"]).arg(self.path("run")));
        daemon.wait_for_log("serving jobs");
        daemon
    }

    /// `mcr job WHAT` with the variables that SLURM sets for Prolog and Epilog.
    fn job(&self, what: &str) -> Command {
        self.job_at(what, &self.path("run"))
    }

    /// Like [`Site::job`], for the daemon with the directory `run_dir`.
    fn job_at(&self, what: &str, run_dir: &Path) -> Command {
        let mut command = mcr();
        command.args(["job", what, "--run-dir"]).arg(run_dir);
        command.env("SLURM_JOB_ID", &self.job_id).env("SLURM_JOB_UID", nix::unistd::geteuid().to_string());
        command.env("SLURM_JOB_WORK_DIR", self.path("work")).env("SLURMD_NODENAME", "n1");
        command.env("SLURM_JOB_NTASKS", "2").env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
        command
    }

    /// Runs a command. Returns its standard error and its duration.
    fn says(&self, command: &mut Command) -> (String, Duration) {
        let began = Instant::now();
        let said = String::from_utf8(run(command, 0).stderr).expect("UTF-8");
        (said, began.elapsed())
    }

    /// Starts a process of the job that writes the steps `first` to `last`.
    fn application(&self, first: u32, last: u32) -> Child {
        let script = format!(
            "for step in $(seq {first} {last}); do mkdir -p out/it_$step; for rank in 0 1; do echo $step $rank > \
             out/it_$step/rank_$rank.dat; done; sleep 0.3; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.path("work"));
        command.env("SLURM_JOB_ID", &self.job_id).env("SLURM_NTASKS", "2").spawn().expect("starts")
    }

    /// Makes a node of a job with several nodes. All nodes are on this machine.
    fn node(&self, name: &str) -> Node<'_> {
        let run = self.path(&format!("run_{name}"));
        let daemon = Daemon::start(
            mcr()
                .env("MCR_CLUSTER", self.path("cluster.toml"))
                .env("MCR_CERT_DIR", self.path("cert"))
                .env("MCR_TLS", "always")
                .args(["node", "--own", "--run-dir"])
                .arg(&run),
        );
        daemon.wait_for_log("serving jobs");
        Node { site: self, name: name.into(), run, daemon }
    }

    fn worker(&self) -> Option<u64> {
        let jobs = run(self.job("list").arg("--json"), 0).stdout;
        let jobs: serde_json::Value = serde_json::from_slice(&jobs).expect("JSON");
        jobs["jobs"].as_array().expect("a list").first().map(|job| job["pid"].as_u64().expect("a number"))
    }

    /// The names of the complete checkpoints, newest first.
    fn complete(&self) -> Vec<String> {
        let all = list(&self.path("store"));
        let complete = all.iter().filter(|c| c["complete"] == true);
        complete.map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect()
    }
}

/// One of several nodes.
struct Node<'s> {
    site: &'s Site,
    name: String,
    run: PathBuf,
    daemon: Daemon,
}

impl Node<'_> {
    fn job(&self, what: &str) -> Command {
        let mut command = self.site.job_at(what, &self.run);
        command.env("SLURMD_NODENAME", &self.name);
        command.env("SLURM_JOB_NUM_NODES", "3").env("SLURM_NODELIST", "n[1-3]").env("SLURM_JOB_NTASKS", "6");
        command
    }

    /// Starts a task of the job on this node. The task writes the steps `first` to `last`.
    fn task(&self, rank: u32, first: u32, last: u32) -> Child {
        let script = format!(
            "for step in $(seq {first} {last}); do mkdir -p out/it_$step; echo $step {rank} > out/it_$step/rank_{rank}.dat; \
             sleep 0.4; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.site.path("work"));
        command.env("SLURM_JOB_ID", &self.site.job_id).env("SLURM_NTASKS", "6").env("SLURM_STEP_ID", "0");
        command.env("SLURM_PROCID", rank.to_string()).env("SLURMD_NODENAME", &self.name);
        command.spawn().expect("starts")
    }
}

/// Port ranges that no other test file uses.
const PORTS: [&str; 3] = ["7311-7314", "7321-7324", "7331-7334"];

/// A site that is shared by the nodes of a job, with one aggregator on n1. `tls` is `on` or `off`.
fn shared_site(number: u32, ports: &str, tls: &str) -> Site {
    let site = Site::new(number);
    if tls == "on" {
        run(mcr().args(["cert", "init", "--dir"]).arg(site.path("cert")), 0);
    }
    let cluster = format!(
        "tls = {tls:?}\n[cnc]\nshared-directory = true\n[node]\naddress = \"127.0.0.1\"\nports = {ports:?}\naggregators = 1\n"
    );
    std::fs::write(site.path("cluster.toml"), cluster).expect("written");
    site
}

#[test]
fn each_node_of_a_job_saves_the_ranks_of_its_own_tasks_and_the_nodes_may_end_in_any_order() {
    let site = shared_site(6, PORTS[0], "on");
    let nodes = ["n1", "n2", "n3"].map(|name| site.node(name));
    for node in &nodes {
        assert_eq!(site.says(&mut node.job("begin")).0, "");
    }
    // The distribution of the tasks is cyclic: ranks 0 and 3 on n1, 1 and 4 on n2, 2 and 5 on n3.
    let mut tasks: Vec<Child> = (0..6).map(|rank| nodes[rank as usize % 3].task(rank, 1, 6)).collect();
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    let shown = aggregators_of_the_job(&nodes[1].run);
    assert!(shown.starts_with("nodes of the job: ") && shown.ends_with(PORTS[0]), "{shown}");
    for task in &mut tasks {
        task.wait().expect("ended");
    }
    // The node with the aggregator ends first, and waits for the other nodes.
    let first = nodes[0].job("end").spawn().expect("starts");
    std::thread::sleep(Duration::from_millis(700));
    for node in [&nodes[2], &nodes[1]] {
        assert_eq!(site.says(&mut node.job("end")).0, "", "{}", node.name);
    }
    let began = Instant::now();
    let first = first.wait_with_output().expect("ended");
    assert!(first.status.success() && began.elapsed() < Duration::from_secs(10), "{first:?}");
    assert_eq!(site.complete().len(), 6);
    for node in &nodes {
        let log = node.daemon.log();
        assert!(!log.contains("two sessions") && !log.contains("not committed"), "{}: {log}", node.name);
    }
}

#[test]
fn two_jobs_whose_aggregators_share_ports_do_not_mix() {
    let sites = [shared_site(7, PORTS[1], "on"), shared_site(8, PORTS[1], "on")];
    let nodes = sites.each_ref().map(|site| ["n1", "n2", "n3"].map(|name| site.node(name)));
    for node in nodes.iter().flatten() {
        assert_eq!(node.site.says(&mut node.job("begin")).0, "");
    }
    let mut tasks: Vec<Child> =
        nodes.iter().flat_map(|nodes| (0..6).map(|rank| nodes[rank as usize / 2].task(rank, 1, 3))).collect();
    for task in &mut tasks {
        task.wait().expect("ended");
    }
    let ends: Vec<Child> = nodes.iter().flatten().map(|node| node.job("end").spawn().expect("starts")).collect();
    for end in ends {
        assert!(end.wait_with_output().expect("ended").status.success());
    }
    for site in &sites {
        let all =
            wait_for("all checkpoints", Duration::from_secs(30), || Some(site.complete()).filter(|c| c.len() == 3));
        assert_eq!(all, ["it_3", "it_2", "it_1"]);
        let jobs = std::fs::read_dir(site.path("store")).expect("readable").flatten();
        let jobs: Vec<_> =
            jobs.map(|entry| entry.file_name()).filter(|name| !name.as_encoded_bytes().starts_with(b".")).collect();
        assert_eq!(jobs, [format!("melt{}", site.job_id).as_str()]);
    }
}

#[test]
fn a_job_of_several_nodes_is_not_saved_without_a_certificate() {
    let site = shared_site(11, PORTS[0], "on");
    std::fs::remove_file(site.path("cert/cluster.key")).expect("removed");
    let node = site.node("n1");
    let mut task = node.task(0, 1, 1);
    assert_eq!(site.says(&mut node.job("begin")).0, "");
    let line = node.daemon.wait_for_log("the job is not saved");
    assert!(line.contains("run mcr cert init once") && line.contains("or write tls = "), "{line}");
    task.wait().expect("ended");
}

#[test]
fn an_aggregator_that_dies_is_started_again_and_what_it_gathered_is_announced_again() {
    let site = shared_site(9, PORTS[2], "off");
    let nodes = ["n1", "n2", "n3"].map(|name| site.node(name));
    for node in &nodes {
        site.says(&mut node.job("begin"));
    }
    // All tasks except one write the last checkpoint. The aggregator is killed while it waits for the last task.
    let mut tasks: Vec<Child> = (0..5).map(|rank| nodes[rank as usize / 2].task(rank, 1, 4)).collect();
    let mut last = nodes[2].task(5, 1, 3);
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    for task in tasks.iter_mut().chain([&mut last]) {
        task.wait().expect("ended");
    }
    let jobs = run(nodes[0].job("list").arg("--json"), 0).stdout;
    let jobs: serde_json::Value = serde_json::from_slice(&jobs).expect("JSON");
    let worker = jobs["jobs"][0]["pid"].as_i64().expect("a number") as i32;
    let worker = nix::unistd::Pid::from_raw(worker);
    nix::sys::signal::kill(worker, nix::sys::signal::Signal::SIGKILL).expect("killed");
    nodes[0].daemon.wait_for_log("the worker of a job died, and was started again");
    nodes[2].task(5, 4, 4).wait().expect("ended");
    let began = Instant::now();
    let ends: Vec<Child> = nodes.iter().map(|node| node.job("end").spawn().expect("starts")).collect();
    for end in ends {
        assert!(end.wait_with_output().expect("ended").status.success());
    }
    assert_eq!(site.complete(), ["it_4", "it_3", "it_2", "it_1"], "{:?}: {}", began.elapsed(), nodes[0].daemon.log());
}

#[test]
fn files_that_two_nodes_announce_are_saved_once_and_both_nodes_end_with_success() {
    let site = Site::new(10);
    let (aggregator, address) = Daemon::aggregator(site.dir.path(), "anc", &site.path("store"), "group-size = 2\n");
    let agents = ["n1", "n2"].map(|node| {
        let more =
            "incarnation = \"SLURM job 10\"\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nranks = 3\ngroup-size = 2\n";
        Daemon::agent(site.dir.path(), node, &site.path("work/out"), std::slice::from_ref(&address), more)
    });
    for agent in &agents {
        agent.wait_for_log("session began");
    }
    for rank in 0..3 {
        write_rank(&site.path("work/out"), 1, rank, 500);
    }
    wait_complete(&site.path("store"), "sim.it_1");
    for agent in agents {
        agent.signal("TERM");
        let (status, log) = agent.end();
        assert_eq!(status, Some(0), "{log}");
    }
    aggregator.signal("TERM");
    let (status, log) = aggregator.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(!log.contains("two sessions") && log.matches("committed group").count() == 2, "{log}");
}

#[test]
fn prolog_and_epilog_are_enough_to_save_the_last_checkpoint_of_a_job() {
    let site = Site::new(1);
    let daemon = site.daemon();
    assert_eq!(site.says(&mut site.job("begin")).0, "");
    site.application(1, 4).wait().expect("ended");
    let (said, took) = site.says(&mut site.job("end"));
    assert_eq!(said, "");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(site.complete().first().map(String::as_str), Some("it_4"));
    assert_eq!(site.worker(), None);
    drop(daemon);
}

#[test]
fn a_worker_outlives_the_daemon_and_the_next_daemon_ends_it() {
    let site = Site::new(2);
    let daemon = site.daemon();
    site.says(&mut site.job("begin"));
    let mut application = site.application(1, 8);
    let worker = site.worker().expect("it runs");
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    daemon.signal("KILL");
    drop(daemon);
    let daemon = site.daemon();
    assert_eq!(site.worker(), Some(worker));
    application.wait().expect("ended");
    assert_eq!(site.says(&mut site.job("end")).0, "");
    assert_eq!(site.complete().first().map(String::as_str), Some("it_8"));
    drop(daemon);
}

#[test]
fn the_end_of_a_job_that_was_over_at_once_is_saved_too() {
    let site = Site::new(3);
    let daemon = site.daemon();
    // The processes of the job have ended before the worker has started.
    site.application(1, 1).wait().expect("ended");
    site.says(&mut site.job("begin"));
    site.says(&mut site.job("end"));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_1"));
    drop(daemon);
}

#[test]
fn a_job_without_settings_or_with_wrong_ones_is_not_touched() {
    let site = Site::new(4);
    let daemon = site.daemon();
    std::fs::write(site.path("work/mcr.toml"), "jop = \"melt\"\n").expect("written");
    let mut application = site.application(1, 20);
    assert_eq!(site.says(&mut site.job("begin")).0, "");
    let line = daemon.wait_for_log("the job is not saved");
    assert!(line.contains("mcr.toml:1: unknown key") && line.contains("did you mean"), "{line}");
    let (said, _) = site.says(&mut site.job("end"));
    assert!(said.is_empty() || said.contains("exit status 78"), "{said}");
    std::fs::remove_file(site.path("work/mcr.toml")).expect("removed");
    site.says(&mut site.job("begin"));
    daemon.wait_for_log("its work directory has no file mcr.toml");
    assert!(application.try_wait().expect("looked").is_none(), "the application still runs");
    application.kill().and_then(|()| application.wait()).expect("ended");
}

#[test]
fn a_job_that_is_not_saved_any_more_is_listed_with_the_reason_until_its_end() {
    let site = Site::new(13);
    let daemon = site.daemon();
    std::fs::write(site.path("work/mcr.toml"), "jop = \"melt\"\n").expect("written");
    let mut application = site.application(1, 20);
    site.says(&mut site.job("begin"));
    daemon.wait_for_log("the worker of a job has ended");
    let why = "its worker ended with exit status 78: ";
    let text = String::from_utf8(run(&mut site.job("list"), 0).stdout).expect("UTF-8");
    assert!(text.contains(why) && text.contains("mcr.toml:1: unknown key"), "{text}");
    let status = run(mcr().args(["status", "--json", "--run-dir"]).arg(site.path("run")), 1).stdout;
    let status = String::from_utf8(status).expect("UTF-8");
    assert!(status.contains("the job is not saved any more") && status.contains("unknown key"), "{status}");
    let end = run_json(&mut site.job("end"), 0);
    assert_eq!(end["outcome"], "not-saved");
    assert!(end["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{end}");
    assert_eq!(site.worker(), None);
    application.kill().and_then(|()| application.wait()).expect("ended");
}

#[test]
fn a_daemon_whose_directory_has_a_relative_path_saves_jobs() {
    let site = Site::new(14);
    let daemon = Daemon::start(mcr().args(["node", "--own", "--run-dir", "run"]).current_dir(site.dir.path()));
    daemon.wait_for_log("serving jobs");
    site.says(&mut site.job("begin"));
    site.application(1, 2).wait().expect("ended");
    site.says(site.job("end").args(["--wait", "60"]));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_2"));
}

#[test]
fn the_comment_of_a_job_names_it_and_a_job_with_a_comment_needs_no_file() {
    let site = Site::new(12);
    let cluster = format!("[anc]\nstore = {:?}\n", site.path("store"));
    std::fs::write(site.path("cluster.toml"), cluster).expect("written");
    std::fs::remove_file(site.path("work/mcr.toml")).expect("removed");
    let daemon = site.daemon_with(mcr().env("MCR_CLUSTER", site.path("cluster.toml")));
    // This command runs like a process of the job. The environment of such a process does not contain the comment.
    let of_job = |args: &[&str]| {
        let mut command = mcr();
        command.args(args).current_dir(site.path("work")).env("SLURM_JOB_ID", &site.job_id);
        command.env("MCR_CLUSTER", site.path("cluster.toml")).env("MCR_RUN_DIR", site.path("run"));
        command
    };
    let name = format!("melt{}", site.job_id);
    let comment = format!("of the site, mcr:job={name},watch=out \"$(touch executed)\"");
    assert_eq!(site.says(site.job("begin").env("SLURM_JOB_COMMENT", &comment)).0, "");
    run(&mut of_job(&["restart"]), 3);
    let shown = run(&mut of_job(&["job", "show", "--json"]), 0).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
    let shown = &shown["settings"];
    assert_eq!((&shown["job"]["value"], &shown["job"]["from"]), (&name.as_str().into(), &"--comment".into()));
    assert_eq!(shown["watch"]["value"], site.path("work/out").to_str().expect("UTF-8"));
    site.application(1, 3).wait().expect("ended");
    assert_eq!(site.says(&mut site.job("end")).0, "");
    assert_eq!(site.complete().first().map(String::as_str), Some("it_3"));
    assert!(!site.path("work/executed").exists());

    // After the end of the job, `mcr job show` knows a comment only from its option --comment.
    let preview = |comment: &str, status| {
        let said = run(of_job(&["job", "show"]).arg("--comment").arg(comment), status);
        String::from_utf8(if status == 0 { said.stdout } else { said.stderr }).expect("UTF-8")
    };
    assert!(preview(&comment, 0).contains(&name) && !preview("of the site", 0).contains(&name));
    assert!(preview("mcr:jop=x", 1).contains("--comment: unknown key \"jop\"; did you mean \"job\"?"));

    // A job with `mcr:off`, or with a comment that cannot be used, is not saved, but continues to run.
    for (comment, said) in
        [("mcr:off", "has mcr:off"), ("mcr:job=", "job needs a value"), ("mcr:job=a/b", "it contains a slash")]
    {
        let mut application = site.application(4, 20);
        assert_eq!(site.says(site.job("begin").env("SLURM_JOB_COMMENT", comment)).0, "");
        let line = daemon.wait_for_log(said);
        assert!(line.contains("the job is not saved"), "{line}");
        assert!(application.try_wait().expect("looked").is_none(), "the application still runs");
        application.kill().and_then(|()| application.wait()).expect("ended");
        site.says(&mut site.job("end"));
    }
    let (said, _) = site.says(site.job("begin").env("SLURM_JOB_COMMENT", format!("mcr:job={}", "x".repeat(5000))));
    assert!(said.contains("the job is not saved: SLURM_JOB_COMMENT is") && said.len() < 300, "{said}");
    assert_eq!(site.complete().len(), 3);
}

#[test]
fn prolog_and_epilog_end_in_time_and_with_success_if_the_daemon_does_not_answer() {
    let site = Site::new(5);
    for what in ["begin", "end"] {
        let (said, took) = site.says(&mut site.job(what));
        assert!(said.contains("mcr node does not answer") && took < Duration::from_millis(2500), "{took:?}: {said}");
    }
    let daemon = site.daemon();
    daemon.signal("STOP");
    let (said, took) = site.says(&mut site.job("begin"));
    assert!(said.contains("no answer within 2000 ms") && took < Duration::from_millis(2500), "{took:?}: {said}");
    let (said, took) = site.says(site.job("end").args(["--wait", "0"]));
    assert!(said.contains("no answer") && took < Duration::from_millis(2500), "{took:?}: {said}");
    daemon.signal("CONT");
    // Without SLURM's variables, the commands print which variable is missing, and succeed.
    let (said, _) = site.says(site.job("begin").env_remove("SLURM_JOB_UID"));
    assert!(said.contains("SLURM_JOB_UID is not set"), "{said}");
    // After SIGCONT, the daemon reads the earlier messages, and may start a worker for the job. `mcr job end` ends
    // this worker.
    std::thread::sleep(Duration::from_millis(500));
    site.says(&mut site.job("end"));
}

/// Runs `mcr node check` with a slurm.conf. Returns the exit status, and the status and the text of each check.
fn check(site: &Site, slurm_conf: &str) -> (Option<i32>, BTreeMap<String, (String, String)>) {
    std::fs::write(site.path("slurm.conf"), slurm_conf).expect("written");
    let mut command = mcr();
    command.args(["node", "check", "--json", "--slurm-conf"]).arg(site.path("slurm.conf"));
    command.arg("--run-dir").arg(site.path("run")).env("MCR_CLUSTER", site.path("cluster.toml"));
    let output = command.output().expect("runs");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |checked: &serde_json::Value, key: &str| checked[key].as_str().unwrap_or_default().to_owned();
    let said = |checked| of(checked, "found") + &of(checked, "advice");
    let line = |checked| (of(checked, "check"), (of(checked, "status"), said(checked)));
    (output.status.code(), all["checks"].as_array().expect("a list").iter().map(line).collect())
}

#[test]
fn the_check_accepts_the_shipped_scripts_and_names_each_part_that_is_wrong() {
    let site = Site::new(10);
    for (script, directory) in [("10-mcr", "prolog.d"), ("90-mcr", "epilog.d")] {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slurm").join(directory);
        std::fs::create_dir(site.path(directory)).expect("made");
        std::fs::copy(shipped.join(script), site.path(directory).join(script)).expect("copied");
    }
    let script = |name: &str, text: &str, mode: u32| {
        std::fs::write(site.path(name), text).expect("written");
        std::fs::set_permissions(site.path(name), std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let root = site.dir.path().display();
    script("epilog.d/10-clean", "#!/bin/sh\npkill -KILL -u \"$SLURM_JOB_UID\"\n", 0o755);
    script("cluster.toml", "[anc]\nstore = \"/lustre/%u/${PROJECT}/%j\"\n", 0o644);
    script("more.conf", &format!("prologflags=X11,alloc\nPrologEpilogTimeout=60\nEpilog={root}/epilog.d/*\n"), 0o644);
    let good = format!("# the cluster\nProlog={root}/prolog.d/10-mcr\nInclude more.conf\n");
    let daemon = site.daemon();

    let (status, all) = check(&site, &good);
    assert!(status == Some(0) && all.values().all(|(status, _)| status == "ok") && all.len() == 8, "{all:#?}");
    // The text output has the same checks as the JSON output.
    let mut command = mcr();
    command.args(["node", "check", "--slurm-conf"]).arg(site.path("slurm.conf"));
    let text = run(command.env("MCR_RUN_DIR", site.path("run")).env("MCR_CLUSTER", site.path("cluster.toml")), 0);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.lines().count() == 8 && text.lines().all(|line| line.starts_with("ok ")), "{text}");

    let bad = |conf: &str, check_name: &str, status: &str, expected: &str| {
        let (exit, all) = check(&site, conf);
        let (found, said) = &all[check_name];
        assert!(exit == Some(1) && found == status && said.contains(expected), "{check_name}: {all:#?}");
    };
    bad(&format!("{good}PrologFlags=Serial\n"), "PrologFlags", "wrong", "set PrologFlags=Alloc");
    bad(&format!("{good}PrologEpilogTimeout=25\n"), "PrologEpilogTimeout", "wrong", "more than 25 s");
    bad(&good.replace("10-mcr", "no-*"), "Prolog", "wrong", "calls mcr job begin");
    bad(&good.replace("Prolog=", "TaskProlog="), "Prolog", "wrong", "not set");
    bad("Include nothing.conf\n", "slurm.conf", "wrong", "nothing.conf");
    script("epilog.d/95-clean", "#!/bin/sh\n/usr/bin/pkill -u x\n", 0o755);
    bad(&good, "Epilog order", "warning", "95-clean runs before");
    script("epilog.d/95-clean", "#!/bin/sh\n# no pkill\n", 0o755);
    assert_eq!(check(&site, &good).0, Some(0));
    script("epilog.d/90-mcr", "#!/bin/sh\nmcr job end --wait=60\n", 0o644);
    bad(&good, "Epilog", "wrong", "chmod 755");
    bad(&good, "PrologEpilogTimeout", "wrong", "waits 60 s");
    script("cluster.toml", "[anc]\nstoer = \"/x\"\n", 0o644);
    bad(&good, "cluster file", "wrong", "stoer");
    let gate = format!("[node]\ngates = [\"agg0:7117\"]\n[gate]\ndirectory = {:?}\n", site.path("gate"));
    script("cluster.toml", &gate, 0o644);
    bad(&good, "gates", "wrong", "gate/cluster.pem");
    run(mcr().args(["cert", "init", "--dir"]).arg(site.path("gate")), 0);
    assert_eq!(check(&site, &good).1["gates"], ("ok".to_owned(), "agg0:7117".to_owned()));
    drop(daemon);
    bad(&good, "mcr node", "wrong", "does not answer");
}

#[test]
fn every_setting_of_the_shipped_cluster_file_is_accepted_and_all_of_them_are_comments() {
    let site = Site::new(11);
    let shipped = include_str!("../../deploy/config/cluster.toml");
    assert!(shipped.lines().all(|line| line.is_empty() || line.starts_with('#')), "a setting is not a comment");
    let settings = shipped.lines().filter_map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')));
    let settings: Vec<&str> = settings.filter(|rest| !rest.is_empty()).collect();
    assert!(["[cnc]", "[anc]", "[node]", "[limits]"].iter().all(|table| settings.contains(table)), "{settings:?}");
    std::fs::write(site.path("cluster.toml"), settings.join("\n")).expect("written");
    let (_, all) = check(&site, "");
    assert_eq!(all["cluster file"].0, "ok", "{all:#?}");
}

#[test]
fn a_worker_without_a_daemon_ends_after_its_job_and_commits_the_last_checkpoint() {
    let site = Site::new(12);
    let daemon = site.daemon_of_impatient_workers(1500);
    site.says(&mut site.job("begin"));
    let mut application = site.application(1, 12);
    let worker = nix::unistd::Pid::from_raw(site.worker().expect("it runs") as i32);
    let is_running =
        || std::fs::read_to_string(format!("/proc/{worker}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    // The daemon and its directory are removed, as if the package was removed. The job runs for 3 s more.
    drop(daemon);
    std::fs::remove_dir_all(site.path("run")).expect("removed");
    application.wait().expect("ended");
    assert!(is_running(), "the job needs its worker");
    wait_for("the end of the worker", Duration::from_secs(30), || (!is_running()).then_some(()));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_12"));
}

#[test]
fn a_worker_with_a_daemon_does_not_end_although_its_job_has_no_process() {
    let site = Site::new(13);
    let daemon = site.daemon_of_impatient_workers(200);
    site.says(&mut site.job("begin"));
    site.application(1, 2).wait().expect("ended");
    let worker = site.worker().expect("it runs");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(site.worker(), Some(worker), "{}", daemon.log());
    site.says(&mut site.job("end"));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_2"));
}

#[test]
fn the_aggregator_of_a_job_on_one_node_has_no_port_and_the_commands_find_it() {
    let site = Site::new(14);
    let daemon = site.daemon();
    site.says(&mut site.job("begin"));
    let mut application = site.application(1, 8);
    let line = daemon.wait_for_log("aggregator listens");
    assert!(line.contains("address=unix:/"), "{line}");
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    let mut status = mcr();
    status.arg("status").current_dir(site.path("work")).env("SLURM_JOB_ID", &site.job_id).env("SLURMD_NODENAME", "n1");
    let said = String::from_utf8(run(&mut status, 0).stdout).expect("UTF-8");
    assert!(said.contains("\nunix:/") && said.contains("n1") && said.contains("committed"), "{said}");
    assert_eq!(aggregators_of_the_job(&site.path("run")), "this node");
    application.wait().expect("ended");
    site.says(&mut site.job("end"));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_8"));
    drop(daemon);
}
