//! Agents and aggregators as separate processes.

use crate::support::*;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Two compute nodes with four ranks each, and two aggregators with one group each.
struct Cluster {
    dir: TempDir,
    aggregators: Vec<(Daemon, String)>,
    agents: Vec<Daemon>,
}

const RANKS: u32 = 8;
const AGENT: &str =
    "ranks = 8\ngroup-size = 4\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nquiet-ms = 50\ncheckpoint-quiet-ms = 100";

impl Cluster {
    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        (0..2).for_each(|node| std::fs::create_dir(Self::node(dir.path(), node)).expect("made"));
        let mut cluster = Self { dir, aggregators: Vec::new(), agents: Vec::new() };
        let more = format!("group-size = 4\n{more}");
        for i in 0..2 {
            let started = Daemon::aggregator(cluster.dir.path(), &format!("a{i}"), &cluster.store(), &more);
            cluster.aggregators.push(started);
        }
        (0..2).for_each(|node| cluster.start_agent(node));
        cluster
    }

    fn start_agent(&mut self, node: u32) {
        let agent = Daemon::agent(
            self.dir.path(),
            &format!("n{node}"),
            &Self::node(self.dir.path(), node),
            &self.addresses(),
            AGENT,
        );
        self.agents.push(agent);
    }

    fn node(dir: &Path, node: u32) -> PathBuf {
        dir.join(format!("node{node}"))
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn addresses(&self) -> Vec<String> {
        self.aggregators.iter().map(|(_, address)| address.clone()).collect()
    }

    fn write(&self, step: u32) {
        (0..RANKS).for_each(|rank| write_rank(&Self::node(self.dir.path(), rank / 4), step, rank, 2000));
    }

    fn written(&self, step: u32) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
        let all = (0..2).flat_map(|node| contents(&Self::node(self.dir.path(), node)));
        all.filter(|(path, _)| path.to_string_lossy().contains(&format!("it_{step}."))).collect()
    }

    fn restart(&self, more: &[&str]) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
        let to = self.dir.path().join("back");
        let _ = std::fs::remove_dir_all(&to);
        run(mcr().arg("restart").arg("--store").arg(self.store()).arg("--to").arg(&to).args(more), 0);
        contents(&to)
    }
}

#[test]
fn two_agents_and_two_aggregators_make_checkpoints_that_come_back_both_ways() {
    let cluster = Cluster::new("");
    for step in [1, 2] {
        cluster.write(step);
        wait_complete(&cluster.store(), &format!("sim.it_{step}"));
    }
    assert_same_files(&cluster.written(2), &cluster.restart(&[]));
    let through = cluster.addresses().join(",");
    assert_same_files(&cluster.written(2), &cluster.restart(&["--aggregators", &through]));
    assert_same_files(
        &cluster.written(1),
        &cluster.restart(&["--copy", "--aggregators", &through, "--checkpoint", "sim.it_1"]),
    );
    let some = cluster.restart(&["--aggregators", &through, "--ranks", "3-4"]);
    assert_eq!(some.len(), 2);
}

#[test]
fn an_agent_that_was_killed_announces_again_what_was_not_committed() {
    let mut cluster = Cluster::new("");
    cluster.write(1);
    wait_complete(&cluster.store(), "sim.it_1");
    cluster.agents.remove(1).kill();
    cluster.write(2);
    cluster.start_agent(1);
    wait_complete(&cluster.store(), "sim.it_2");
    assert_same_files(&cluster.written(2), &cluster.restart(&[]));
}

#[test]
fn an_agent_that_announces_old_files_again_displaces_no_newer_checkpoint() {
    // A long run on a cluster showed this fault: a restarted agent announced the files of all old steps. The other
    // node knew that these steps were committed. The old steps displaced the newest step, which was never saved.
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let node = |node: u32| dir.path().join(format!("node{node}"));
    (0..2).for_each(|n| std::fs::create_dir(node(n)).expect("made"));
    let (aggregator, address) = Daemon::aggregator(dir.path(), "a", &store, "group-size = 2");
    let agent = |n: u32| {
        let more = AGENT.replace("ranks = 8\ngroup-size = 4", "ranks = 2\ngroup-size = 2");
        Daemon::agent(dir.path(), &format!("n{n}"), &node(n), std::slice::from_ref(&address), &more)
    };
    let (first, second) = (agent(0), agent(1));
    for step in 1..=30 {
        (0..2).for_each(|rank| write_rank(&node(rank), step, rank, 400));
        // At most 8 checkpoints wait, so not all steps are written at once.
        wait_complete(&store, &format!("sim.it_{step}"));
    }
    second.kill();
    // The aggregator remembers only the last 16 committed checkpoints. Without its state file, the agent does not
    // know which files are saved.
    let _ = std::fs::remove_file(dir.path().join("n1.state"));
    write_rank(&node(0), 31, 0, 400);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let second = agent(1);
    aggregator.wait_for_log("already in the store");
    std::thread::sleep(std::time::Duration::from_secs(2));
    write_rank(&node(1), 31, 1, 400);
    wait_complete(&store, "sim.it_31");
    assert_eq!(list(&store).len(), 31);
    for (of, log) in [("aggregator", aggregator.log()), ("agent 0", first.log()), ("agent 1", second.log())] {
        assert!(!log.contains("abandoned"), "{of}: {log}");
    }
}

#[test]
fn an_aggregator_that_was_killed_is_found_again_by_its_agents() {
    let mut cluster = Cluster::new("");
    cluster.write(1);
    wait_complete(&cluster.store(), "sim.it_1");
    let (killed, address) = cluster.aggregators.remove(1);
    killed.kill();
    cluster.write(2);
    let more = format!("group-size = 4\nlisten = {address:?}");
    let config = cluster.dir.path().join("a1.toml");
    std::fs::write(&config, format!("[anc]\nstore = {:?}\ncreate = true\n{more}\n", cluster.store())).expect("written");
    let again = Daemon::start(mcr().arg("anc").arg("--config").arg(&config));
    wait_complete(&cluster.store(), "sim.it_2");
    assert_same_files(&cluster.written(2), &cluster.restart(&[]));
    drop(again);
}

#[test]
fn a_file_that_is_overwritten_in_place_gives_one_checkpoint_for_each_content() {
    let dir = tempfile::tempdir().expect("a directory");
    let (watch, store) = (dir.path().join("run"), dir.path().join("store"));
    std::fs::create_dir(&watch).expect("made");
    let more = ["--job", "job", "--ranks", "2", "--group-size", "2", "--layout", "{checkpoint}.rank_{rank}.h5"];
    let daemon = Daemon::start(
        mcr()
            .arg("run")
            .arg("--watch")
            .arg(&watch)
            .args(["--create", "--store"])
            .arg(&store)
            .args(more)
            .arg("--state")
            .arg(dir.path().join("state")),
    );
    daemon.wait_for_log("session began");
    let mut written = Vec::new();
    for generation in 1..=3usize {
        (0..2).for_each(|rank| write_rank(&watch, 7, rank, 400 + 100 * generation));
        let id = if generation == 1 { "sim.it_7".to_owned() } else { format!("sim.it_7~{generation}") };
        wait_complete(&store, &id);
        written.push((id, contents(&watch)));
    }
    // The log has one line for each checkpoint.
    daemon.wait_for_log("checkpoint saved checkpoint=sim.it_7~3");
    let log = daemon.log();
    let of_checkpoints: Vec<&str> =
        log.lines().filter(|line| line.contains("INFO") && line.contains("checkpoint=")).collect();
    assert_eq!(of_checkpoints.len(), 3, "{log}");
    assert!(of_checkpoints.iter().all(|line| line.contains("checkpoint saved")), "{log}");
    for (id, files) in written {
        let to = dir.path().join(&id);
        run(mcr().arg("restart").args(["--checkpoint", &id]).arg("--store").arg(&store).arg("--to").arg(&to), 0);
        assert_same_files(&files, &contents(&to));
    }
    assert_eq!(daemon.stop(), Some(0), "SIGTERM drains and ends well");
}

#[test]
fn status_tells_who_is_connected_and_who_is_awaited() {
    let cluster = Cluster::new("");
    (0..7).for_each(|rank| write_rank(&Cluster::node(cluster.dir.path(), rank / 4), 1, rank, 500));
    let address = cluster.addresses()[1].clone();
    let waiting = wait_for("group 1 waiting for rank 7", std::time::Duration::from_secs(30), || {
        let status = run_json(mcr().args(["status", "--aggregators", &address]), 0);
        let found = status["aggregators"][0]["checkpoints"].as_array().and_then(|all| all.first().cloned());
        found.filter(|c| c["missing"] == serde_json::json!([7])).map(|_| status)
    });
    assert!(!waiting["aggregators"][0]["agents"].as_array().expect("a list").is_empty());
    let text = run(mcr().args(["status", "--aggregators", &address]), 0);
    assert!(String::from_utf8_lossy(&text.stdout).contains("waiting for rank 7"));
    run(mcr().args(["status", "--aggregators", "127.0.0.1:1"]), 1);
}

#[test]
fn a_checkpoint_whose_last_rank_never_comes_is_given_up_and_the_next_one_is_saved() {
    let cluster = Cluster::new("gather-seconds = 10");
    (0..7).for_each(|rank| write_rank(&Cluster::node(cluster.dir.path(), rank / 4), 1, rank, 500));
    cluster.aggregators[1].0.wait_for_log("abandoned checkpoint");
    cluster.write(2);
    wait_complete(&cluster.store(), "sim.it_2");
    assert_same_files(&cluster.written(2), &cluster.restart(&[]));
}

#[test]
fn an_agent_with_another_group_size_is_refused_and_told_why() {
    let mut cluster = Cluster::new("");
    let agent = AGENT.replace("group-size = 4", "group-size = 8");
    let watch = Cluster::node(cluster.dir.path(), 0);
    let wrong = Daemon::agent(cluster.dir.path(), "wrong", &watch, &cluster.addresses(), &agent);
    let line = wrong.wait_for_log("the aggregator refuses this agent");
    assert!(line.contains("group-size is 8 at the agent and 4 at the aggregator"), "{line}");
    cluster.agents.push(wrong);
}

#[test]
fn an_agent_whose_job_has_a_renamed_directory_in_the_store_is_refused_with_the_name_of_the_other_job() {
    let mut cluster = Cluster::new("");
    let other = cluster.dir.path().join("run of another job");
    std::fs::create_dir(&other).expect("made");
    std::fs::write(other.join("x"), b"1").expect("written");
    run(
        mcr().args(["save", "--job", "other", "--layout", "single"]).arg(&other).arg("--store").arg(cluster.store()),
        0,
    );
    std::fs::rename(cluster.store().join("other"), cluster.store().join("job")).expect("renamed");
    let watch = Cluster::node(cluster.dir.path(), 0);
    let late = Daemon::agent(cluster.dir.path(), "late", &watch, &cluster.addresses(), AGENT);
    let line = late.wait_for_log("the aggregator refuses this agent");
    assert!(line.contains("job has the checkpoints of job other") && line.contains("renamed or copied"), "{line}");
    cluster.agents.push(late);
}

#[test]
fn what_a_dead_run_left_half_committed_is_not_completed_by_the_next_run() {
    let mut cluster = Cluster::new("");
    cluster.write(1);
    wait_complete(&cluster.store(), "sim.it_1");
    // The run is killed after half of its ranks have written step 2.
    let elsewhere = cluster.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    for rank in 0..4 {
        write_rank(&elsewhere, 2, rank, 2000);
        let name = format!("sim.it_2.rank_{rank}.h5");
        let minute_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        let file = std::fs::File::options().write(true).open(elsewhere.join(&name));
        file.and_then(|file| file.set_modified(minute_ago)).expect("its time is set");
        std::fs::rename(elsewhere.join(&name), Cluster::node(cluster.dir.path(), 0).join(&name)).expect("renamed");
    }
    cluster.aggregators[0].0.wait_for_log("committed group job=job checkpoint=sim.it_2");
    std::mem::take(&mut cluster.agents).into_iter().for_each(Daemon::kill);
    (0..2).for_each(|node| std::fs::remove_dir_all(Cluster::node(cluster.dir.path(), node)).expect("removed"));
    (0..2).for_each(|node| std::fs::create_dir(Cluster::node(cluster.dir.path(), node)).expect("made"));
    assert_eq!(cluster.restart(&[]).len(), 8);
    // The next run computes other bytes, and the second half of its step 2 is written first.
    (0..2).for_each(|node| cluster.start_agent(node));
    (4..8).for_each(|rank| write_rank(&Cluster::node(cluster.dir.path(), 1), 2, rank, 3000));
    cluster.aggregators[1].0.wait_for_log("committed group job=job checkpoint=sim.it_2~2");
    (0..4).for_each(|rank| write_rank(&Cluster::node(cluster.dir.path(), 0), 2, rank, 3000));
    wait_complete(&cluster.store(), "sim.it_2~2");
    assert_same_files(&cluster.written(2), &cluster.restart(&[]));
    assert!(list(&cluster.store()).iter().all(|c| c["checkpoint"] != "sim.it_2" || c["complete"] == false));
}

/// Peak resident memory of a process, in MiB.
fn peak_mib(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("running");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") >> 10
}

#[test]
fn an_aggregator_keeps_to_its_budget() {
    // Save a checkpoint of 192 MiB with a budget of 16 MiB.
    let cluster = Cluster::new("budget-mib = 16\nsegment-mib = 1\nprofile = \"raw\"\nthreads = 2");
    (0..RANKS).for_each(|rank| write_rank(&Cluster::node(cluster.dir.path(), rank / 4), 1, rank, 2 << 20));
    wait_complete(&cluster.store(), "sim.it_1");
    for (aggregator, _) in &cluster.aggregators {
        let peak = peak_mib(aggregator.id());
        assert!(peak < 16 + 64, "{peak} MiB resident at its peak");
    }
    for agent in &cluster.agents {
        let peak = peak_mib(agent.id());
        assert!(peak < 64 + 32, "{peak} MiB resident at its peak");
    }
    assert_same_files(&cluster.written(1), &cluster.restart(&[]));
}
