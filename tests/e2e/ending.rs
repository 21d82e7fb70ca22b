//! When a job ends, its last checkpoint is saved within a time limit, or the log names it as not saved.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

mod left;
mod partly;
mod renamed;
mod stored;

/// Each node and each group has two ranks. The quiet times have their default values. The end of a daemon must not
/// wait for the quiet times.
const RANKS: u32 = 4;
const AGENT: &str = "ranks = 4\ngroup-size = 2\nlayout = \"{checkpoint}.rank_{rank}.h5\"\nreconnect-min-ms = 50";
const NOT_COMMITTED: Option<i32> = Some(5);

struct Site {
    dir: TempDir,
    aggregators: Vec<(Daemon, String)>,
    agents: Vec<Daemon>,
}

impl Site {
    fn new(agent: &str, aggregator: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut site = Self { dir, aggregators: Vec::new(), agents: Vec::new() };
        for i in 0..2 {
            let more = format!("group-size = 2\n{aggregator}");
            site.aggregators.push(Daemon::aggregator(site.dir.path(), &format!("a{i}"), &site.store(), &more));
        }
        let addresses: Vec<String> = site.aggregators.iter().map(|(_, address)| address.clone()).collect();
        for node in 0..2 {
            std::fs::create_dir(site.node(node)).expect("made");
            let without = |line: &&str| !(agent.contains("layout") && line.starts_with("layout"));
            let base: Vec<&str> = AGENT.lines().filter(without).collect();
            let more = format!("{}\n{agent}", base.join("\n"));
            let started = Daemon::agent(site.dir.path(), &format!("n{node}"), &site.node(node), &addresses, &more);
            started.wait_for_log("session began");
            site.agents.push(started);
        }
        site
    }

    fn node(&self, node: u32) -> PathBuf {
        self.dir.path().join(format!("node{node}"))
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn write(&self, step: u32) {
        (0..RANKS).for_each(|rank| write_rank(&self.node(rank / 2), step, rank, 900));
    }

    fn wait_group(&self, id: &str, group: u32) {
        let manifest = self.store().join(format!("job/{id}/group-{group:04}.manifest"));
        wait_for("a group", Duration::from_secs(20), || manifest.exists().then_some(()));
    }

    fn is_complete(&self, id: &str) -> bool {
        list(&self.store()).iter().any(|c| c["checkpoint"] == id && c["complete"] == true)
    }

    /// The directory of the site, and all daemons, the aggregators first.
    fn daemons(self) -> (TempDir, Vec<Daemon>) {
        let aggregators = self.aggregators.into_iter().map(|(daemon, _)| daemon);
        (self.dir, aggregators.chain(self.agents).collect())
    }
}

fn is_complete(dir: &Path, id: &str) -> bool {
    list(&dir.join("store")).iter().any(|c| c["checkpoint"] == id && c["complete"] == true)
}

#[test]
fn a_checkpoint_that_was_closed_just_before_the_agents_got_sigterm_is_saved() {
    let mut site = Site::new("", "");
    site.write(1);
    site.agents.iter().for_each(|agent| agent.signal("TERM"));
    for agent in std::mem::take(&mut site.agents) {
        let (status, log) = agent.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(log.contains("all announced files are committed"), "{log}");
    }
    assert!(site.is_complete("sim.it_1"));
}

#[test]
fn daemons_that_all_get_sigterm_at_once_save_the_last_checkpoint_in_whatever_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3]] {
        let site = Site::new("", "");
        site.write(1);
        let (dir, daemons) = site.daemons();
        order.iter().for_each(|which: &usize| daemons[*which].signal("TERM"));
        for (which, daemon) in daemons.into_iter().enumerate() {
            let (status, log) = daemon.end();
            assert_eq!(status, Some(0), "daemon {which}, order {order:?}: {log}");
        }
        assert!(is_complete(dir.path(), "sim.it_1"), "{order:?}");
    }
}

#[test]
fn daemons_with_nothing_to_commit_end_at_once() {
    let site = Site::new("", "");
    site.write(1);
    wait_complete(&site.store(), "sim.it_1");
    let (_dir, daemons) = site.daemons();
    for daemon in daemons {
        let began = Instant::now();
        daemon.signal("TERM");
        let (status, log) = daemon.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}: {log}", began.elapsed());
    }
}

#[test]
fn a_rank_that_is_missing_is_named_and_the_status_says_that_not_everything_is_committed() {
    let site = Site::new("", "");
    (0..3).for_each(|rank| write_rank(&site.node(rank / 2), 1, rank, 900));
    let (dir, daemons) = site.daemons();
    let began = Instant::now();
    daemons.iter().for_each(|daemon| daemon.signal("TERM"));
    let mut logs = String::new();
    for daemon in daemons {
        let (status, log) = daemon.end();
        assert_eq!(status, NOT_COMMITTED, "{log}");
        logs.push_str(&log);
    }
    assert!(began.elapsed() < Duration::from_secs(25), "the bound of 20 s is kept: {:?}", began.elapsed());
    let named = logs.lines().any(|line| line.contains("not committed") && line.contains("missing_ranks=3"));
    assert!(named && logs.contains("checkpoint=sim.it_1 ranks=2"), "{logs}");
    assert!(!is_complete(dir.path(), "sim.it_1"));
}

#[test]
fn a_checkpoint_that_vanished_before_it_was_saved_is_named_at_the_end_unless_a_newer_one_is_committed() {
    for newer in [false, true] {
        let site = Site::new("", "");
        // Rank 3 is missing, so its group cannot be committed.
        (0..3).for_each(|rank| write_rank(&site.node(rank / 2), 1, rank, 900));
        site.wait_group("sim.it_1", 0);
        let file = site.node(1).join("sim.it_1.rank_2.h5");
        wait_for("rank 2 is announced", Duration::from_secs(20), || {
            let status = run(mcr().args(["status", "--json", "--aggregators", &site.aggregators[1].1]), 0);
            String::from_utf8_lossy(&status.stdout).contains("sim.it_1").then_some(())
        });
        std::fs::remove_file(file).expect("removed");
        site.agents[1].wait_for_log("a checkpoint vanished before it was saved");
        if newer {
            site.write(2);
            wait_complete(&site.store(), "sim.it_2");
        }
        let agent = &site.agents[1];
        agent.signal("TERM");
        let (_dir, mut daemons) = site.daemons();
        let (status, log) = daemons.pop().expect("the second agent").end();
        match newer {
            true => assert_eq!(status, Some(0), "{log}"),
            false => {
                assert_eq!(status, NOT_COMMITTED, "{log}");
                let said = "sim.it_1.rank_2.h5 is gone, and was not saved";
                assert!(log.lines().any(|line| line.contains("not committed") && line.contains(said)), "{log}");
            }
        }
    }
}

#[test]
fn a_file_that_stays_open_is_waited_for_until_the_bound_and_named() {
    let site = Site::new("drain-seconds = 2", "");
    let open = std::fs::File::create(site.node(0).join("sim.it_1.rank_0.h5")).expect("made");
    let mut agents = site.agents;
    let agent = agents.remove(0);
    let began = Instant::now();
    agent.signal("TERM");
    let (status, log) = agent.end();
    let took = began.elapsed();
    drop(open);
    assert_eq!(status, NOT_COMMITTED, "{log}");
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
    let last = log.lines().rev().nth(1).expect("two lines");
    assert!(last.contains("checkpoint=sim.it_1 ranks=0") && last.contains("rank_0.h5"), "{log}");
}

#[test]
fn a_file_that_is_closed_during_the_drain_is_saved() {
    let mut site = Site::new("", "");
    site.write(1);
    let last = begin_rank(&site.node(0), 2, 0, 900);
    (1..RANKS).for_each(|rank| write_rank(&site.node(rank / 2), 2, rank, 900));
    site.agents.iter().for_each(|agent| agent.signal("TERM"));
    site.agents[0].wait_for_log("draining");
    last.close().expect("closed");
    for agent in std::mem::take(&mut site.agents) {
        let (status, log) = agent.end();
        assert_eq!(status, Some(0), "{log}");
    }
    assert!(site.is_complete("sim.it_1") && site.is_complete("sim.it_2"));
}

#[test]
fn an_aggregator_that_is_away_costs_the_bound_and_its_ranks_are_named() {
    let mut site = Site::new("drain-seconds = 2", "");
    site.aggregators.remove(1).0.kill();
    site.write(1);
    let began = Instant::now();
    site.agents.iter().for_each(|agent| agent.signal("TERM"));
    for (agent, ranks) in std::mem::take(&mut site.agents).into_iter().zip(["ranks=0-1", "ranks=2-3"]) {
        let (status, log) = agent.end();
        assert_eq!(status, NOT_COMMITTED, "{log}");
        assert!(log.contains(&format!("checkpoint=sim.it_1 {ranks}")), "{log}");
    }
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[test]
fn an_aggregator_whose_agent_stands_still_ends_within_its_bound() {
    let site = Site::new("", "drain-seconds = 2");
    site.agents[0].signal("STOP");
    let mut aggregators = site.aggregators;
    let began = Instant::now();
    let (aggregator, _) = aggregators.remove(0);
    aggregator.signal("TERM");
    let (status, log) = aggregator.end();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}: {log}", began.elapsed());
    assert_eq!(status, Some(0), "nothing was announced: {log}");
}

#[test]
fn where_a_layout_has_a_marker_the_end_waits_for_it_and_names_its_absence() {
    let layout = "layout = { patterns = [\"{checkpoint}.rank_{rank}.h5\"], complete = \"{checkpoint}.done\" }";
    for is_marked in [false, true] {
        let mut site = Site::new(&format!("drain-seconds = 4\n{layout}"), "");
        site.write(1);
        if is_marked {
            (0..2).for_each(|node| std::fs::write(site.node(node).join("sim.it_1.done"), "").expect("written"));
        }
        site.agents.iter().for_each(|agent| agent.signal("TERM"));
        for agent in std::mem::take(&mut site.agents) {
            let (status, log) = agent.end();
            assert_eq!(status, if is_marked { Some(0) } else { NOT_COMMITTED }, "{log}");
            assert_eq!(
                log.contains("the file that marks the checkpoint as complete is not there"),
                !is_marked,
                "{log}"
            );
        }
        assert!(!is_marked || site.is_complete("sim.it_1"));
    }
}

#[test]
fn a_second_signal_ends_a_daemon_at_once() {
    let site = Site::new("", "");
    let _open = std::fs::File::create(site.node(0).join("sim.it_1.rank_0.h5")).expect("made");
    let mut agents = site.agents;
    let agent = agents.remove(0);
    let began = Instant::now();
    agent.signal("TERM");
    agent.wait_for_log("draining");
    agent.signal("INT");
    let (status, log) = agent.end();
    assert_eq!(status, NOT_COMMITTED, "{log}");
    assert!(began.elapsed() < Duration::from_secs(5) && log.contains("second signal"), "{log}");
}

#[test]
fn a_flush_returns_once_everything_written_so_far_is_committed_and_says_what_it_waits_for() {
    let mut site = Site::new("", "");
    site.write(1);
    let states: Vec<PathBuf> = (0..2).map(|node| site.dir.path().join(format!("n{node}.state"))).collect();
    let flush = |expected: i32, timeout: &str| {
        let mut command = mcr();
        command.args(["flush", "--timeout", timeout]);
        for state in &states {
            command.arg("--state").arg(state);
        }
        run_json(&mut command, expected)
    };
    let replies = flush(0, "60");
    assert!(site.is_complete("sim.it_1"));
    assert_eq!(replies["agents"][0]["reply"]["committed"][0]["ranks"], "0-1", "{replies}");
    flush(0, "60"); // there are no new files
    write_rank(&site.node(0), 2, 0, 900);
    let replies = flush(5, "2");
    let left = |replies: &serde_json::Value| replies["agents"][0]["reply"]["uncommitted"][0].clone();
    let why = |replies: &serde_json::Value| left(replies)["why"].as_str().unwrap_or_default().to_owned();
    assert_eq!(left(&replies)["checkpoint"], "sim.it_2", "{replies}");
    assert!(why(&replies).ends_with("has not committed it: it waits for rank 1"), "{replies}");
    site.aggregators.remove(0).0.kill();
    wait_for("the reason", Duration::from_secs(30), || {
        why(&flush(5, "1")).contains("does not answer now").then_some(())
    });
    run(mcr().args(["flush", "--state"]).arg(site.dir.path().join("nobody")), 1);
}

/// `mcr run` with a directory, a store and a state file below `dir`, with two ranks.
fn run_with(dir: &Path, more: &[&str]) -> std::process::Command {
    let mut command = mcr_run("{checkpoint}.rank_{rank}.txt");
    std::fs::create_dir_all(dir.join("out")).expect("made");
    command.arg("--watch");
    command.arg(dir.join("out")).arg("--store").arg(dir.join("store")).arg("--state").arg(dir.join("state"));
    command.args(more).current_dir(dir.join("out"));
    command
}

const WRITE: &str = "echo zero > s1.rank_0.txt; echo one > s1.rank_1.txt;";

#[test]
fn what_a_command_wrote_last_is_committed_when_it_ends_and_its_status_is_given() {
    for (end, status) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143)] {
        let dir = tempfile::tempdir().expect("a directory");
        let began = Instant::now();
        run(&mut run_with(dir.path(), &["--", "sh", "-c", &format!("{WRITE} {end}")]), status);
        assert!(is_complete(dir.path(), "s1"), "{end}");
        assert!(began.elapsed() < Duration::from_secs(10), "quiet times count as over: {:?}", began.elapsed());
    }
}

#[test]
fn restored_files_that_some_ranks_write_again_without_a_change_are_not_reported_as_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    run(&mut run_with(dir.path(), &["--", "sh", "-c", WRITE]), 0);
    let out = dir.path().join("out");
    let restart = || run(mcr().arg("restart").arg("--store").arg(dir.path().join("store")).arg("--to").arg(&out), 0);
    restart();
    run(&mut run_with(dir.path(), &["--", "sh", "-c", "sleep 1; touch s1.rank_0.txt"]), 0);
    // A rank with other content is a new checkpoint, and the other rank is missing.
    restart();
    run(&mut run_with(dir.path(), &["--", "sh", "-c", "sleep 1; echo new > s1.rank_0.txt"]), 5);
}

#[test]
fn what_a_rank_appends_to_its_file_after_the_commit_is_saved_with_the_other_ranks_of_its_step() {
    let dir = tempfile::tempdir().expect("a directory");
    // Most of the bytes come first. So the rank is ready without the rest.
    let long = "-".repeat(80);
    let step = |n: u32| {
        format!(
            "echo zero{n} > s{n}.rank_0.txt; echo one{n}{long} > s{n}.rank_1.txt; sleep 2.5; \
             echo more{n} >> s{n}.rank_1.txt; sleep 2;"
        )
    };
    let script = format!("{} {} {}", step(1), step(2), step(3));
    run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), 0);
    assert!(is_complete(dir.path(), "s2~2") && is_complete(dir.path(), "s3~2"));
    let store = dir.path().join("store");
    let shown = run(mcr().args(["list", "--json", "--store"]).arg(&store), 0);
    let listed: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let state_of = |id: &str| {
        let all = listed["checkpoints"].as_array().expect("a list");
        all.iter().find(|one| one["checkpoint"] == id).map(|one| one["state"].as_str().unwrap_or("").to_owned())
    };
    for part in ["s1", "s2", "s3"].iter().filter(|part| is_complete(dir.path(), &format!("{part}~2"))) {
        assert_eq!(state_of(part).as_deref(), Some("doubtful"), "{part} lacks a part: {listed}");
    }
    let to = dir.path().join("back");
    run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to), 0);
    assert_eq!(std::fs::read_to_string(to.join("s3.rank_1.txt")).expect("restored"), format!("one3{long}\nmore3\n"));
    assert_eq!(std::fs::read_to_string(to.join("s3.rank_0.txt")).expect("restored"), "zero3\n");
}

#[test]
fn without_a_number_of_ranks_mcr_run_counts_the_ranks_of_a_checkpoint_that_is_written_completely() {
    let step = |n: u32| format!("for rank in 0 1 2; do echo $rank > s{n}.rank_$rank.txt; done;");
    let start = |dir: &Path, script: &str, status: i32| {
        let mut command = mcr();
        std::fs::create_dir_all(dir.join("out")).expect("made");
        command.args(["run", "--create", "--job", "job", "--layout", "{checkpoint}.rank_{rank}.txt", "--watch"]);
        command.arg(dir.join("out")).arg("--store").arg(dir.join("store")).arg("--state").arg(dir.join("state"));
        let output = run(command.current_dir(dir.join("out")).args(["--", "sh", "-c", script]), status);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // The command writes one checkpoint and ends with success.
    let dir = tempfile::tempdir().expect("a directory");
    let log = start(dir.path(), &step(1), 0);
    assert!(is_complete(dir.path(), "s1") && log.contains("ranks=3 checkpoint=s1"), "{log}");
    // The command is killed while it writes the second checkpoint.
    let dir = tempfile::tempdir().expect("a directory");
    let log = start(dir.path(), &format!("{} sleep 3; echo 0 > s2.rank_0.txt; sleep 3; kill -9 $$", step(1)), 137);
    assert!(is_complete(dir.path(), "s1") && !is_complete(dir.path(), "s2"), "{log}");
    // The command is killed after its only checkpoint, which may not be written completely.
    let dir = tempfile::tempdir().expect("a directory");
    let log = start(dir.path(), &format!("{} kill -9 $$", step(1)), 137);
    let newest = list(&dir.path().join("store"))[0].clone();
    let doubt = newest["doubt"].as_str().unwrap_or_default();
    assert!(newest["ranks"] == 3 && doubt.contains("the number of ranks was counted in the files after"), "{log}");
    // The next run does not rely on this number.
    let log =
        start(dir.path(), &format!("{} echo 3 > s1.rank_3.txt; sleep 3; echo 0 > s2.rank_0.txt; sleep 3", step(1)), 5);
    assert!(log.contains("ranks=4 checkpoint=s1"), "{log}");
}

#[test]
fn retention_counts_the_last_checkpoint_too_before_the_daemons_end() {
    for _ in 0..4 {
        let dir = tempfile::tempdir().expect("a directory");
        let step = |n: u32| format!("echo zero > s{n}.rank_0.txt; echo one > s{n}.rank_1.txt; sleep 0.05;");
        let script: String = (1..=6).map(step).collect();
        run(&mut run_with(dir.path(), &["--keep", "1", "--", "sh", "-c", &script]), 0);
        let left: Vec<_> = list(&dir.path().join("store")).into_iter().map(|c| c["checkpoint"].clone()).collect();
        assert_eq!(left, ["s6"]);
    }
}

#[test]
fn an_application_that_writes_one_file_for_all_its_tasks_is_saved() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = |layout: &str, tasks: &str| {
        let mut command = mcr();
        std::fs::create_dir_all(dir.path().join(tasks)).expect("made");
        command.args(["run", "--create", "--job", "job", "--layout", layout, "--watch"]).arg(dir.path().join(tasks));
        command.arg("--store").arg(dir.path().join("store")).arg("--state").arg(dir.path().join("state"));
        command.env("SLURM_NTASKS", tasks).current_dir(dir.path().join(tasks));
        command
    };
    run(start("{checkpoint}.h5", "4").args(["--", "sh", "-c", "echo all > s1.h5"]), 0);
    assert!(is_complete(dir.path(), "s1"));

    let refused = run(start("{checkpoint}.h5", "4").args(["--ranks", "4", "--", "true"]), 78);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("ranks is 4") && error.contains("leave ranks out"), "{error}");

    // With a guessed layout, files of more ranks may appear later, so the log says what mcr waits for.
    let script = "echo 1 > chk_0001.h5; sleep 1.2; echo 2 > chk_0002.h5; sleep 3";
    let output = run(start("guess", "3").args(["--", "sh", "-c", script]), 5);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("no file name contains a rank") && log.contains("--ranks 1"), "{log}");
}

#[test]
fn a_layout_that_matches_no_file_is_named_at_the_end_and_gives_5() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", "echo zero > s1.dat"]), 5);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("no file matches the layout") && log.contains("first=s1.dat"), "{log}");
    // Files that belong to no checkpoint do not change the exit status if checkpoints were saved.
    run(&mut run_with(dir.path(), &["--", "sh", "-c", "echo zero > s1.rank_0.txt; echo one > s1.rank_1.txt"]), 0);
    run(&mut run_with(dir.path(), &["--", "true"]), 0);
}

#[test]
fn logs_that_mcr_run_does_not_save_are_named_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "echo zero > s1.rank_0.txt; echo one > s1.rank_1.txt; echo step 1 > run.log; echo > slurm-7.out";
    let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", script]), 0);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        log.contains("files with the names of logs, older copies, plots or inputs are not saved")
            && log.contains("files=2 first=run.log"),
        "{log}"
    );
}

#[test]
fn checkpoints_are_doubtful_if_the_guessed_layout_leaves_out_most_of_what_the_job_writes() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "4", "--watch"]).arg(dir.path());
    command.arg("--store").arg(dir.path().join("store")).arg("--state").arg(dir.path().join("state"));
    // The files with ranks are no checkpoints, and the checkpoints come later.
    let script = "for r in 0 1 2 3; do echo > output_rank$r.txt; done; sleep 4; for s in 1 2 3; do \
                  for r in 0 1 2 3; do echo $s >> output_rank$r.txt; done; head -c 9000 /dev/zero > ck_$s.bin; \
                  sleep 2.5; done";
    run(command.args(["--", "sh", "-c", script]).current_dir(dir.path()), 5);
    let store = dir.path().join("store");
    let doubtful = list(&store).iter().filter(|checkpoint| checkpoint["doubt"].is_string()).count();
    assert!(doubtful > 0, "{:?}", list(&store));
    let newest = &list(&store)[0];
    assert!(newest["doubt"].as_str().is_some_and(|doubt| doubt.contains("layout was guessed")), "{newest}");
}

#[test]
fn a_job_that_writes_nothing_ends_with_0_although_its_directory_has_files_from_before() {
    let layout = ["--layout", "{checkpoint}.rank_{rank}.txt"];
    for (layout, files) in [(&layout[..], &["mcr.toml", "slurm-7.out", "input.dat"][..]), (&[], &["mcr.toml"])] {
        for ranks in ["1", "2"] {
            let dir = tempfile::tempdir().expect("a directory");
            let out = dir.path().join("out");
            std::fs::create_dir(&out).expect("made");
            files.iter().for_each(|name| std::fs::write(out.join(name), "# no setting\n").expect("written"));
            // File times advance in steps of up to 10 ms, so the pause makes these files older than the job.
            std::thread::sleep(Duration::from_millis(50));
            let mut command = mcr();
            command.args(["run", "--create", "--job", "job", "--ranks", ranks]).args(layout).current_dir(&out);
            command.arg("--watch").arg(&out).arg("--state").arg(dir.path().join("state"));
            let output = run(command.arg("--store").arg(dir.path().join("store")).args(["--", "true"]), 0);
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!log.contains("not committed"), "{log}");
            assert!(!dir.path().join("store/job").exists(), "{log}");
        }
    }
}

#[test]
fn a_flush_names_files_that_the_layout_does_not_match_and_gives_5_if_no_file_matches() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "flush() {{ {mcr} flush --state {state} --timeout 20 > {out}.$1 2>&1; echo $? > {out}.$1.status; }}; \
         echo x > notes.dat; flush none; {WRITE} flush some",
        mcr = env!("CARGO_BIN_EXE_mcr"),
        state = dir.path().join("state").display(),
        out = dir.path().join("flush").display()
    );
    run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), 0);
    let text = |name: &str| std::fs::read_to_string(dir.path().join(format!("flush.{name}"))).expect("written");
    assert_eq!(text("none.status").trim(), "5", "{}", text("none"));
    assert!(text("none").contains("NOT committed: 1 of 1 files"), "{}", text("none"));
    assert_eq!(text("some.status").trim(), "0", "{}", text("some"));
    let some = text("some");
    assert!(some.contains("1 of 3 files belong to no checkpoint") && some.contains("(first: notes.dat)"), "{some}");
}

#[test]
fn links_that_are_not_followed_are_named_at_the_end_and_give_5() {
    // In the first case, each rank's file is a link. In the second case, the directory of the output is a link to a
    // missing directory.
    for (script, named) in [
        (
            "mkdir ../data; for rank in 0 1; do echo $rank > ../data/$rank; \
             ln -s ../data/$rank s1.rank_$rank.txt; done",
            "the files of ranks are symbolic links to files elsewhere",
        ),
        ("ln -s ../nowhere out", "holds no files, only symbolic links that are not followed"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", script]), 5);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(log.contains(named), "{log}");
    }
}

#[test]
fn files_in_the_directory_of_a_checkpoint_that_the_layout_does_not_name_are_named_at_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "mkdir it_1; echo 0 > it_1/rank_0.dat; echo mesh > it_1/mesh.txt; echo log > run.txt";
    let log = run_one_rank(dir.path(), "{checkpoint}/rank_{rank}.dat", script, 0);
    assert!(log.contains("files=1 first=it_1/mesh.txt") && is_complete(dir.path(), "it_1"), "{log}");
}

#[test]
fn a_command_that_succeeds_and_whose_checkpoint_is_not_committed_gives_5() {
    for (script, status) in [("echo zero > s1.rank_0.txt", 5), ("echo zero > s1.rank_0.txt; exit 4", 4), ("true", 0)] {
        let dir = tempfile::tempdir().expect("a directory");
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", script]), status);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(log.contains("checkpoint=s1 ranks=0"), status != 0, "{log}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    run(&mut run_with(dir.path(), &["--", "no-such-command-at-all"]), 127);
}

#[test]
fn the_end_does_not_wait_for_a_checkpoint_that_lacks_a_rank_that_is_never_taken() {
    // The other ranks are announced before or after the command ends.
    for seconds in [1, 3] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!("{WRITE} echo five > s1.rank_5.txt; sleep {seconds}");
        let began = Instant::now();
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), 5);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(log.contains("rank 5 NOT SAVED") && log.contains("not committed checkpoint=s1 ranks=0"), "{log}");
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "the bound of the end is 20 s: {:?}\n{log}",
            began.elapsed()
        );
    }
}

#[test]
fn the_standard_streams_of_a_command_are_those_of_mcr() {
    use std::io::Write;
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = run_with(dir.path(), &["--", "sh", "-c", "cat; ulimit -Sn"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
    child.stdin.take().expect("piped").write_all(b"through\n").expect("written");
    let output = child.wait_with_output().expect("it ends");
    let own = std::process::Command::new("sh").args(["-c", "ulimit -Sn"]).output().expect("a shell");
    assert_eq!(output.stdout, [b"through\n", &own.stdout[..]].concat());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_signal_is_passed_on_to_the_command_and_what_it_writes_then_is_saved() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("trap '{WRITE} exit 9' TERM; echo ready > ../ready; while :; do sleep 0.05; done");
    let daemon = Daemon::start(&mut run_with(dir.path(), &["--", "sh", "-c", &script]));
    wait_for("the command", Duration::from_secs(30), || dir.path().join("ready").exists().then_some(()));
    daemon.signal("TERM");
    let (status, log) = daemon.end();
    assert_eq!(status, Some(9), "{log}");
    assert!(is_complete(dir.path(), "s1"), "{log}");
}

#[test]
fn a_command_that_ignores_the_signal_does_not_make_the_end_take_longer_than_its_bound() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM; echo ready > ../ready; exec 2>/dev/null; for i in 1 2 3 4 5 6; do sleep 5; done";
    let daemon = Daemon::start(&mut run_with(dir.path(), &["--drain-seconds", "4", "--", "sh", "-c", script]));
    wait_for("the command", Duration::from_secs(30), || dir.path().join("ready").exists().then_some(()));
    daemon.signal("TERM");
    let began = Instant::now();
    let (status, log) = daemon.end();
    assert!(status == Some(143) && log.contains("the command has not ended after the signal"), "{status:?}: {log}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn a_second_signal_ends_mcr_at_once_while_its_command_runs_and_the_log_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "trap '' TERM INT; echo ready > ../ready; exec 2>/dev/null; for i in 1 2; do sleep 5; done";
    let daemon = Daemon::start(&mut run_with(dir.path(), &["--", "sh", "-c", script]));
    wait_for("the command", Duration::from_secs(30), || dir.path().join("ready").exists().then_some(()));
    let began = Instant::now();
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    daemon.signal("INT");
    let (status, log) = daemon.end();
    assert!(status == NOT_COMMITTED && log.contains("a second signal: ended at once"), "{status:?}: {log}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_signal_that_is_sent_to_the_process_and_to_its_group_at_once_counts_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for rank in 0 1; do echo bytes > s1.rank_$rank.txt; done; echo ready > ../ready; exec sleep 30";
    let daemon = Daemon::start(&mut run_with(dir.path(), &["--", "sh", "-c", script]));
    wait_for("the command", Duration::from_secs(30), || dir.path().join("ready").exists().then_some(()));
    daemon.signal("TERM");
    daemon.signal("TERM");
    let (status, log) = daemon.end();
    assert!(status == Some(143) && is_complete(dir.path(), "s1"), "{status:?}: {log}");
}

#[test]
fn a_file_that_was_cut_when_its_writer_was_killed_makes_no_complete_checkpoint() {
    // The writer ends in the middle of the last file of the third step.
    let steps = "for step in 1 2 3; do for rank in 0 1; do [ $step$rank = 31 ] && head -c 1000 /dev/zero > s3.rank_1.txt \
                 && break; head -c 3000 /dev/zero > s$step.rank_$rank.txt; done; sleep 1; done;";
    for (end, status, newest) in [("kill -KILL $$", 137, "s2"), ("exit 1", 1, "s2"), ("exit 0", 0, "s3")] {
        let dir = tempfile::tempdir().expect("a directory");
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", &format!("{steps} {end}")]), status);
        let log = String::from_utf8_lossy(&output.stderr);
        let complete: Vec<_> = list(&dir.path().join("store")).into_iter().filter(|c| c["complete"] == true).collect();
        assert_eq!(complete.first().map(|c| c["checkpoint"].as_str()), Some(Some(newest)), "{end}: {log}");
        // A program that ended with success has written everything.
        assert_eq!(log.contains("wrote fewer files or bytes"), newest == "s2", "{end}: {log}");
    }
}

/// Runs a script of an application with one rank under `mcr run`. Returns the log.
fn run_one_rank(dir: &Path, layout: &str, script: &str, status: i32) -> String {
    let mut command = mcr();
    std::fs::create_dir_all(dir.join("out")).expect("made");
    command.args(["run", "--create", "--job", "job", "--ranks", "1", "--layout", layout, "--watch"]);
    command.arg(dir.join("out")).arg("--store").arg(dir.join("store")).arg("--state").arg(dir.join("state"));
    let output = run(command.current_dir(dir.join("out")).args(["--", "sh", "-c", script]), status);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A script with four steps that overwrite three files of one rank. The fourth step ends after its first file.
const OVERWRITES: &str = "for step in 1 2 3 4; do for file in coor vel xsc; do echo step $step $file > run.$file.tmp; \
                          mv run.$file.tmp run.$file; [ $step = 4 ] && exit 9; done; SAVE; done";

#[test]
fn a_step_that_overwrote_only_some_of_its_files_is_not_saved_as_a_whole_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = run_one_rank(dir.path(), "single", &OVERWRITES.replace("SAVE", "sleep 3"), 9);
    assert!(log.contains("the files are of two steps"), "{log}");
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    for file in ["coor", "vel", "xsc"] {
        let text = std::fs::read_to_string(back.join(format!("run.{file}"))).expect("restored");
        assert_eq!(text, format!("step 3 {file}\n"));
    }
}

#[test]
fn files_that_a_step_writes_at_different_times_are_not_saved_with_files_of_another_step() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "for step in 1 2 3 4; do echo step $step > WAVECAR; sleep 0.8; [ $step = 4 ] && exit 9; \
                  echo step $step > CHGCAR; sleep 2.2; done";
    let log = run_one_rank(dir.path(), "single", script, 9);
    assert!(log.contains("CHGCAR still has the content of"), "{log}");
    for checkpoint in list(&dir.path().join("store")) {
        let back = tempfile::tempdir().expect("a directory");
        let id = checkpoint["checkpoint"].as_str().expect("a name");
        let doubtful = i32::from(!checkpoint["doubt"].is_null());
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--checkpoint", id, "--store"]).arg(dir.path().join("store"));
        run(restart.arg("--to").arg(back.path()), 2 * doubtful);
        let text = |name: &str| std::fs::read_to_string(back.path().join(name)).ok();
        // Before the second step, the agent cannot know that the application writes CHGCAR again.
        let is_one_step = text("CHGCAR").is_none_or(|of| Some(of) == text("WAVECAR"));
        assert!(is_one_step || doubtful == 1, "{id}: {:?} {:?}\n{log}", text("WAVECAR"), text("CHGCAR"));
    }
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 0);
    for name in ["WAVECAR", "CHGCAR"] {
        assert_eq!(std::fs::read_to_string(back.join(name)).expect("restored"), "step 3\n", "{log}");
    }
}

#[test]
fn files_that_an_application_left_when_it_succeeded_are_final_and_a_doubtful_last_checkpoint_gives_5() {
    // The second step writes only one of the two files.
    let steps = "echo 1 > WAVECAR; echo 1 > CHGCAR; sleep 3; echo 2 > WAVECAR;";
    for (end, status, is_doubted) in
        [("exit 0", 0, false), ("exit 9", 9, true), ("sleep 8 > /dev/null 2>&1 & exit 0", 5, true)]
    {
        let dir = tempfile::tempdir().expect("a directory");
        let log = run_one_rank(dir.path(), "single", &format!("{steps} {end}"), status);
        let newest = list(&dir.path().join("store"))[0].clone();
        assert_eq!(newest["doubt"].is_string(), is_doubted, "{end}: {newest}\n{log}");
        assert_eq!(log.contains("the newest checkpoint is doubtful"), is_doubted, "{end}: {log}");
    }
}

#[test]
fn a_last_step_of_which_only_some_files_were_written_is_doubtful_although_the_command_succeeded() {
    let dir = tempfile::tempdir().expect("a directory");
    // The fourth step writes only one of the files that each of the three steps before has written.
    let script = OVERWRITES.replace("SAVE", "sleep 3").replace("exit 9", "exit 0");
    let log = run_one_rank(dir.path(), "single", &script, 5);
    assert!(log.contains("the newest checkpoint is doubtful"), "{log}");
    let back = dir.path().join("back");
    run(mcr().args(["restart", "--store"]).arg(dir.path().join("store")).arg("--to").arg(&back), 2);
    for file in ["coor", "vel", "xsc"] {
        let text = std::fs::read_to_string(back.join(format!("run.{file}"))).expect("restored");
        assert_eq!(text, format!("step 3 {file}\n"), "{log}");
    }
}

#[test]
fn files_at_equal_intervals_are_no_longer_doubtful_if_the_command_succeeds_and_leaves_them() {
    let rotation = "for file in a b c a b c; do date +%N > chk_$file; sleep 1; done; sleep 5; exit STATUS";
    for (status, state, exit) in [("0", "complete", 0), ("7", "doubtful", 7)] {
        let dir = tempfile::tempdir().expect("a directory");
        let log = run_one_rank(dir.path(), "single", &rotation.replace("STATUS", status), exit);
        let newest = list(&dir.path().join("store"))[0].clone();
        assert_eq!(newest["state"], state, "{log}");
        let text = run_json(mcr().args(["show", "--store"]).arg(dir.path().join("store")), 0).to_string();
        assert!(text.contains("chk_c"), "{text}");
    }
}

#[test]
fn mcr_save_doubts_a_checkpoint_of_which_only_some_files_were_written_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, store) = (dir.path().join("out"), dir.path().join("store"));
    std::fs::create_dir(&data).expect("made");
    let write = |step: u32, files: &[&str]| {
        for file in files {
            std::fs::write(data.join(format!("run.{file}")), format!("step {step} {file}\n")).expect("written");
        }
    };
    let save = |is_doubted: bool| {
        let mut command = mcr();
        command.args(["save", "--create", "--job", "job", "--layout", "single", "--store"]).arg(&store).arg(&data);
        run(&mut command, if is_doubted { 4 } else { 0 })
    };
    let newest = || list(&store)[0].clone();
    for (step, files, is_doubted) in [
        (1, &["coor", "vel"][..], false),
        (2, &["coor"], true),
        (3, &["coor", "vel"], false),
        (4, &["coor", "vel"], false),
        (5, &["vel"], true),
    ] {
        write(step, files);
        save(is_doubted);
        assert_eq!(newest()["state"] == "doubtful", is_doubted, "{step}: {}", newest());
    }
}

#[test]
fn a_command_whose_processes_run_on_after_its_end_is_reported() {
    for background in ["sleep 20", "setsid sleep 20"] {
        let dir = tempfile::tempdir().expect("a directory");
        let script = format!("{WRITE} {background} & sleep 0.5; exit 0");
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", &script]), 0);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("processes of the command still run"), "{background}: {log}");
    }
}

/// Whether this test ignores SIGHUP, as under `nohup`. Processes that the test starts then ignore SIGHUP too. Prints
/// a line if the test is skipped.
fn is_under_nohup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is there").trim();
    let is_ignored = u64::from_str_radix(ignored, 16).expect("a number") & 1 == 1;
    if is_ignored {
        eprintln!("SKIPPED: SIGHUP is ignored, as nohup does");
    }
    is_ignored
}

#[test]
fn a_hangup_ends_no_daemon() {
    if is_under_nohup() {
        return;
    }
    let site = Site::new("", "");
    let node = Daemon::start(mcr().args(["node", "--own", "--run-dir"]).arg(site.dir.path().join("run")));
    node.wait_for_log("serving jobs");
    node.signal("HUP");
    let (dir, daemons) = site.daemons();
    for daemon in &daemons {
        daemon.signal("HUP");
        daemon.wait_for_log("SIGHUP changes nothing");
    }
    (0..RANKS).for_each(|rank| write_rank(&dir.path().join(format!("node{}", rank / 2)), 1, rank, 900));
    wait_complete(&dir.path().join("store"), "sim.it_1");
    for daemon in daemons {
        assert_eq!(daemon.stop(), Some(0));
    }
    run(mcr().args(["job", "list", "--run-dir"]).arg(dir.path().join("run")), 0);
}

/// `mcr run` in the new directory `run`, which it watches. One rank writes the files `CHECKPOINT/0`.
fn mcr_run_with_one_rank(dir: &Path) -> Command {
    let run = dir.join("run");
    std::fs::create_dir(&run).expect("made");
    let mut command = mcr();
    command.args(["run", "--job", "job", "--ranks", "1", "--layout", "{checkpoint}/{rank}", "--create", "--store"]);
    command.arg(dir.join("store")).arg("--state").arg(dir.join("state")).arg("--watch").arg(&run).current_dir(run);
    command
}

#[test]
fn mcr_run_passes_a_hangup_to_its_command_and_saves_what_the_command_then_writes() {
    if is_under_nohup() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = mcr_run_with_one_rank(dir.path());
    let script =
        "trap 'mkdir it_2; echo 2 >it_2/0; exit 0' HUP; mkdir it_1; echo 1 >it_1/0; while :; do sleep 0.05; done";
    let daemon = Daemon::start(command.args(["--", "sh", "-c", script]));
    wait_complete(&dir.path().join("store"), "it_1");
    daemon.signal("HUP");
    let (status, log) = daemon.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(is_complete(dir.path(), "it_2"), "{log}");
}

#[test]
fn sigusr1_and_sigusr2_end_no_daemon() {
    let (dir, daemons) = Site::new("", "").daemons();
    for daemon in &daemons {
        for signal in ["USR1", "USR2"] {
            daemon.signal(signal);
            daemon.wait_for_log(&format!("SIG{signal} changes nothing"));
        }
    }
    (0..RANKS).for_each(|rank| write_rank(&dir.path().join(format!("node{}", rank / 2)), 1, rank, 900));
    wait_complete(&dir.path().join("store"), "sim.it_1");
    for daemon in daemons {
        assert_eq!(daemon.stop(), Some(0));
    }
}

#[test]
fn mcr_run_passes_sigusr1_and_sigusr2_to_its_command_and_runs_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = mcr_run_with_one_rank(dir.path());
    // The signals would end `sleep`, so the signals must reach only the shell.
    let script = "trap 'mkdir it_2; echo 2 >it_2/0' USR1; trap 'mkdir it_3; echo 3 >it_3/0; is_over=1' USR2; \
                  mkdir it_1; echo 1 >it_1/0; while [ ! \"$is_over\" ]; do sleep 0.1 || exit 9; done; exit 7";
    let daemon = Daemon::start(command.args(["--", "sh", "-c", script]));
    wait_complete(&dir.path().join("store"), "it_1");
    daemon.signal("USR1");
    wait_complete(&dir.path().join("store"), "it_2");
    daemon.signal("USR2");
    let (status, log) = daemon.end();
    assert_eq!(status, Some(7), "{log}");
    assert!(is_complete(dir.path(), "it_3"), "{log}");
}
