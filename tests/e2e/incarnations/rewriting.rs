//! Tests codes that write several files again under the same names at each step.

use super::*;

const FILES_OF_A_RANK: [&str; 3] = ["density", "momentum", "energy"];

/// Writes a step. The pause between two files of a rank is longer than the quiet times of the agent.
fn write_step(site: &Site, step: u32) {
    for name in FILES_OF_A_RANK {
        for rank in 0..2 {
            std::fs::write(site.run_dir().join(format!("restart.{name}{rank}.dat")), bytes_of(1, step, rank))
                .expect("written");
        }
        std::thread::sleep(Duration::from_millis(700));
    }
}

#[test]
fn a_code_that_rewrites_several_files_slowly_gets_no_checkpoint_of_two_steps_and_each_part_is_doubtful() {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    let names = FILES_OF_A_RANK.map(|name| format!("\"{{checkpoint}}.{name}{{rank}}.dat\"")).join(", ");
    site.start_agent(0, &format!("ranks = 2\nlayout = [{names}]"));
    site.agents[0].wait_for_log("session began");
    // The pauses between the steps have different lengths.
    for (step, pause_ms) in [(1, 2_500), (2, 4_500), (3, 2_000), (4, 3_500)] {
        write_step(&site, step);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    let saved = list(&site.store());
    let mut steps = BTreeSet::new();
    for checkpoint in saved.iter().filter(|checkpoint| checkpoint["complete"] == true) {
        let id = checkpoint["checkpoint"].as_str().expect("a name");
        let is_doubtful = checkpoint["doubt"].is_string();
        let (found, said) = site.restart(&["--copy", "--checkpoint", id], if is_doubtful { 2 } else { 0 });
        let is_whole = said.contains("6 files");
        assert_eq!(is_doubtful, !is_whole || found.len() > 1, "{id}: {found:?}, {said}");
        steps.extend(found.into_iter().filter(|_| !is_doubtful));
    }
    assert!(steps.contains(&(1, 2)) && steps.contains(&(1, 4)), "{steps:?}, {saved:?}");
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 4)].into());
}

#[test]
fn a_group_whose_bytes_never_change_is_part_of_every_step_of_an_overwritten_name() {
    let site = Site::new();
    // Files that were written before an agent watches them make an overwritten name doubtful.
    site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    let write = |step: u32| {
        std::fs::create_dir_all(site.run_dir().join("cur")).expect("made");
        for rank in 0..RANKS {
            // Ranks 0 and 1 form one group, whose bytes never change.
            let bytes = bytes_of(1, if rank < 2 { 1 } else { step }, rank);
            std::fs::write(site.run_dir().join(format!("cur/rank_{rank}.dat")), bytes).expect("written");
        }
    };
    for step in 1..=4 {
        write(step);
        wait_complete(&site.store(), &if step == 1 { "cur".to_owned() } else { format!("cur~{step}") });
        assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1), (1, step)].into());
    }
    // If no group changes, there is no new checkpoint, and the agents end with success.
    write(4);
    let store = site.store();
    site.agents.iter().for_each(|agent| agent.signal("TERM"));
    for agent in site.agents {
        assert_eq!(agent.end().0, Some(0));
    }
    assert_eq!(list(&store).len(), 4);
}

#[test]
fn a_step_that_is_begun_again_without_a_restart_is_doubtful_if_groups_of_both_attempts_were_committed() {
    let site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    // The first attempt to write step 2 ended after one group. The second attempt writes all files.
    site.write(1, 2, 2..4);
    site.wait_group(&id(2), 1);
    std::thread::sleep(Duration::from_secs(5));
    // If group 1 were committed first, group 0 would join it under the second name.
    site.write(2, 2, 0..2);
    site.wait_group(&id(2), 0);
    site.write(2, 2, 2..4);
    site.wait_group(&format!("{}~2", id(2)), 1);
    let (found, said) = site.restart(&["--copy", "--checkpoint", &id(2)], 2);
    assert_eq!(found, [(1, 2), (2, 2)].into());
    assert!(said.contains("DOUBTFUL"), "{said}");
    assert_eq!(site.restart(&["--copy"], 2).0, [(1, 1)].into());
}

#[test]
fn a_run_with_more_ranks_than_configured_never_undoes_a_checkpoint_of_the_run_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, data, to) = (dir.path().join("store"), dir.path().join("run"), dir.path().join("to"));
    std::fs::create_dir(&data).expect("made");
    let job_run = |steps: &str, ranks: &str, expected: i32| {
        let script =
            format!("for s in {steps}; do for r in {ranks}; do echo step $s > restart.$r; done; sleep 2; done");
        let mut command = mcr();
        command.args(["run", "--create", "--job", "job", "--ranks", "2", "--layout", "{checkpoint}.{rank}", "--store"]);
        command.arg(&store).arg("--state").arg(dir.path().join("state")).arg("--watch").arg(&data);
        run(command.current_dir(&data).args(["--", "sh", "-c", &script]), expected);
    };
    let complete = || {
        let states = list(&store).into_iter().filter(|checkpoint| checkpoint["state"] == "complete");
        states.map(|checkpoint| checkpoint["checkpoint"].to_string()).collect::<Vec<_>>()
    };
    job_run("1 2", "0 1", 0);
    let before = complete();
    assert!(!before.is_empty());
    run(mcr().args(["restart", "--store"]).arg(&store).arg("--to").arg(&data), 0);
    job_run("3 4", "0 1 2 3", 5);
    assert_eq!(complete(), before);
    run(mcr().args(["restart", "--copy", "--store"]).arg(&store).arg("--to").arg(&to), 0);
    assert_eq!(std::fs::read_to_string(to.join("restart.1")).expect("text"), "step 2\n");
}

#[test]
fn a_new_start_that_writes_the_bytes_of_an_older_run_again_has_the_newest_checkpoint() {
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    let start = |site: &mut Site, identity: &str| {
        (0..2).for_each(|node| site.start_agent(node, &format!("ranks = 4\nincarnation = \"{identity}\"")));
        site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    };
    let end = |site: &mut Site| site.agents.drain(..).for_each(|agent| assert_eq!(agent.stop(), Some(0)));
    start(&mut site, "first");
    for step in 1..=3 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    end(&mut site);
    // The second run begins without a restart. A user gives old files new times, and thereby makes no checkpoint. The
    // files of step 1 keep their times, because an aggregator waits for other groups after identical bytes.
    start(&mut site, "second");
    for file in contents(&site.run_dir()).keys().filter(|file| !file.starts_with(id(1))) {
        let file = std::fs::File::options().write(true).open(site.run_dir().join(file)).expect("opened");
        file.set_modified(SystemTime::now()).expect("set");
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(list(&site.store()).len(), 3);
    // The second run computes step 1 again, and dies.
    std::fs::remove_dir_all(site.run_dir().join(id(1))).expect("removed");
    site.write(1, 1, 0..RANKS);
    let again = format!("{}~2", id(1));
    wait_complete(&site.store(), &again);
    end(&mut site);
    assert_eq!(list(&site.store())[0]["checkpoint"], again.as_str());
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
}

#[test]
fn a_step_that_a_restart_repeats_is_not_doubtful_if_all_its_files_were_created_since() {
    let mut site = Site::new();
    site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    // The first run wrote only a part of step 2, and these files stay. The second run makes a longer pause between two
    // files than there was between the runs, and the agents end before the files have been at rest for this long. So
    // the times do not show which files belong to one step.
    let began = std::time::Instant::now();
    site.write(1, 2, 2..4);
    site.wait_group(&id(2), 1);
    assert_eq!(site.restart(&[], 0).0, [(1, 1)].into());
    let pause = 2 * began.elapsed();
    site.write(2, 2, [3]);
    std::thread::sleep(pause);
    site.write(2, 2, [2, 0, 1]);
    for agent in site.agents.drain(..) {
        assert_eq!(agent.stop(), Some(0));
    }
    wait_complete(&site.store(), &format!("{}~2", id(2)));
    assert_eq!(site.restart(&["--copy"], 0).0, [(2, 2)].into());
}

#[test]
fn a_rank_that_writes_long_after_the_others_is_never_committed_with_their_next_step() {
    for group_size in ["2", "4"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (store, data) = (dir.path().join("store"), dir.path().join("run"));
        std::fs::create_dir(&data).expect("made");
        // Rank 3 writes 1.5 s after the others, and the next step begins 0.4 s later. The script ends itself by a
        // signal, so its end does not show that the last step is whole.
        let script = "for s in 1 2 3 4; do for r in 0 1 2; do echo step $s > state.$r; done; sleep 1.5; \
                      echo step $s > state.3; sleep 0.4; done; kill -9 $$";
        let mut command = mcr();
        command.args(["run", "--create", "--job", "job", "--ranks", "4", "--group-size", group_size]);
        command.args(["--layout", "{checkpoint}.{rank}", "--store"]).arg(&store);
        command.arg("--state").arg(dir.path().join("state")).arg("--watch").arg(&data);
        run(command.current_dir(&data).args(["--", "sh", "-c", script]), 137);
        let states = list(&store);
        assert!(states.iter().any(|state| state["state"] == "complete"), "{states:?}");
        for state in states.iter().filter(|state| state["state"] == "complete") {
            let (id, to) = (state["checkpoint"].as_str().expect("a name"), dir.path().join("to"));
            let mut restart = mcr();
            restart.args(["restart", "--copy", "--job", "job", "--checkpoint", id, "--store"]).arg(&store);
            run(restart.arg("--to").arg(&to), 0);
            let step = |rank: u32| std::fs::read_to_string(to.join(format!("state.{rank}"))).expect("restored");
            assert!((1..4).all(|rank| step(rank) == step(0)), "{id}: {:?}", [0, 1, 2, 3].map(step));
            std::fs::remove_dir_all(&to).expect("removed");
        }
    }
}

/// One group of two ranks on two nodes. The application overwrites `state.0.dat` and `state.1.dat`.
fn one_group_on_two_nodes() -> Site {
    let mut site = Site::empty();
    site.start_aggregator("127.0.0.1:0");
    for rank in 0..2 {
        let more = format!(
            "ranks = 2\ngroup-size = 2\nlocal-ranks = \"{rank}\"\nlayout = \"{{checkpoint}}.{{rank}}.dat\"\n{QUICK}"
        );
        let agent = Daemon::agent(site.dir.path(), &format!("n{rank}"), &site.run_dir(), &site.addresses, &more);
        agent.wait_for_log("session began");
        site.agents.push(agent);
    }
    site
}

fn write_state(site: &Site, step: u32, rank: u32) {
    std::fs::write(site.run_dir().join(format!("state.{rank}.dat")), bytes_of(1, step, rank)).expect("written");
}

#[test]
fn a_node_that_writes_more_than_half_a_step_after_the_other_is_saved_in_each_step() {
    let site = one_group_on_two_nodes();
    for step in 1..=4 {
        write_state(&site, step, 0);
        std::thread::sleep(Duration::from_millis(1_400));
        write_state(&site, step, 1);
        std::thread::sleep(Duration::from_millis(1_000));
    }
    let complete = site.complete();
    assert!(complete.len() >= 3, "{:?}", list(&site.store()));
    for id in complete {
        assert_eq!(site.restart(&["--copy", "--checkpoint", &id], 0).0.len(), 1, "{id} has files of one step");
    }
}

#[test]
fn a_rank_that_died_a_step_before_the_other_is_not_committed_with_it_after_the_aggregator_was_away() {
    let mut site = one_group_on_two_nodes();
    let write_both = |site: &Site, step: u32| (0..2).for_each(|rank| write_state(site, step, rank));
    write_both(&site, 1);
    wait_complete(&site.store(), "state");
    let address = site.addresses[0].clone();
    site.aggregators.pop().expect("an aggregator").kill();
    for step in 2..=3 {
        std::thread::sleep(Duration::from_millis(1_600));
        write_both(&site, step);
    }
    std::thread::sleep(Duration::from_millis(1_600));
    write_state(&site, 4, 0);
    std::thread::sleep(Duration::from_millis(500));
    site.start_aggregator(&address);
    site.agents[1].wait_for_log("compared with state, its files were written");
    site.agents[1].signal("TERM");
    let (code, log) = site.agents.pop().expect("an agent").end();
    assert_eq!(code, Some(5), "{log}");
    assert_eq!(site.complete(), ["state".to_owned()].into());
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
}

#[test]
fn a_node_whose_files_are_replaced_before_they_can_be_read_makes_no_certain_checkpoint_of_two_steps() {
    let mut site = one_group_on_two_nodes();
    // Node 0 begins the next step 20 ms after node 1, so no step is ever at rest.
    for step in 1..=5 {
        write_state(&site, step, 0);
        std::thread::sleep(Duration::from_millis(1_500));
        write_state(&site, step, 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    write_state(&site, 6, 0);
    std::thread::sleep(Duration::from_millis(500));
    for agent in site.agents.drain(..) {
        agent.stop();
    }
    for state in list(&site.store()) {
        let id = state["checkpoint"].as_str().expect("a name");
        let is_certain = state["complete"] == true && state["doubt"].is_null();
        assert!(!is_certain || site.restart(&["--copy", "--checkpoint", id], 0).0.len() == 1, "{state}");
    }
}
