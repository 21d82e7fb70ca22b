//! Each node of a job restores its ranks. All nodes must continue from one checkpoint.

use super::*;

/// A site with four files for each step. `mcr save` has saved all steps.
fn saved(steps: u32) -> Site {
    let site = Site::empty();
    (1..=steps).for_each(|step| save(&site, step));
    site
}

fn save(site: &Site, step: u32) {
    site.write(1, step, 0..RANKS);
    let mut save = mcr();
    save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "job"]);
    run(save.args(["--group-size", "2", "--no-reuse", "--store"]).arg(site.store()), 0);
}

#[test]
fn a_node_restores_what_the_others_restored_although_mcr_save_commits_a_newer_checkpoint_in_between() {
    for identity in [&[][..], &["--incarnation", "start 1"]] {
        let site = saved(1);
        let restart = |ranks: &str, status| site.restart(&[&["--ranks", ranks], identity].concat(), status);
        assert_eq!(restart("0-1", 0).0, [(1, 1)].into());
        save(&site, 2);
        let (second, said) = restart("2-3", 2);
        assert_eq!(second, [(1, 1)].into(), "{said}");
        assert!(said.contains("continues from it_000001, which another node decided"), "{said}");
        // All ranks are restored, so the next restart of any rank belongs to the next start of the job.
        assert_eq!(restart("2-3", 0).0, [(1, 2)].into());
        assert_eq!(restart("0-1", 0).0, [(1, 2)].into());
    }
}

#[test]
fn a_node_fails_if_the_checkpoint_that_the_others_restored_is_dropped_or_marked_as_bad() {
    for change in ["--drop", "--mark-bad"] {
        let site = saved(2);
        let restart = &|ranks: &str, status| site.restart(&["--ranks", ranks, "--incarnation", "start 1"], status);
        assert_eq!(restart("0-1", 0).0, [(1, 2)].into());
        let prune = |more: &[&str]| {
            let output = run(
                mcr().args(["prune", change, "it_000002", "--job", "job"]).args(more).arg("--store").arg(site.store()),
                0,
            );
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(prune(&["--dry-run"]).contains("it_000002") && site.complete().contains("it_000002"));
        let said = prune(&["--dry-run"]);
        assert!(said.contains("would "), "{said}");
        prune(&[]);
        let listed = run(mcr().args(["list", "--job", "job", "--store"]).arg(site.store()), 0);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(listed.contains("it_000002 is bad: marked by hand"), change == "--mark-bad", "{listed}");
        let (second, said) = restart("2-3", 1);
        assert!(second.is_empty() && said.contains("it_000002 was removed or marked as bad since"), "{said}");
        assert!(said.contains("Run the restart again on all nodes"), "{said}");
        // The restart of ranks 2 and 3 waits until the restart of ranks 0 and 1 has decided again.
        std::thread::scope(|scope| {
            let status = 2 * i32::from(change == "--mark-bad");
            let waits = scope.spawn(move || restart("2-3", status).0);
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(restart("0-1", status).0, [(1, 1)].into());
            assert_eq!(waits.join().expect("restored"), [(1, 1)].into());
        });
    }
}

#[test]
fn a_container_that_cannot_be_read_just_now_is_not_damaged_and_no_older_checkpoint_is_restored_instead() {
    let site = saved(2);
    let container = site.store().join("job/it_000002/group-0001.mcr");
    let good = std::fs::read(&container).expect("read");
    std::fs::remove_file(&container).expect("removed");
    // The link points to itself, so nobody can open the container, not even root.
    std::os::unix::fs::symlink("group-0001.mcr", &container).expect("linked");
    let verify = || {
        let output = mcr().args(["verify", "--job", "job", "--store"]).arg(site.store()).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(verify().contains("cannot be read at present and may be complete: it_000002"), "{}", verify());
    // In the first pass, no restart has decided from which checkpoint the job continues. In the second pass, another
    // restart has decided.
    for decided in [false, true] {
        let (files, said) = site.restart(&["--ranks", "2-3", "--incarnation", "start 1"], 1);
        assert!(files.is_empty() && said.contains("was not read"), "{said}");
        let (files, said) = site.restart(&["--ranks", "2-3", "--dry-run"], 1);
        assert!(files.is_empty() && said.contains("was not read"), "{said}");
        std::fs::remove_file(&container).expect("removed");
        std::fs::write(&container, &good).expect("written");
        if !decided {
            site.restart(&["--ranks", "0-1", "--incarnation", "start 1"], 0);
            std::fs::remove_file(&container).expect("removed");
            std::os::unix::fs::symlink("group-0001.mcr", &container).expect("linked");
        }
    }
    assert_eq!(site.restart(&["--ranks", "2-3", "--incarnation", "start 1"], 0).0, [(1, 2)].into());
    assert!(verify().contains("2 of 2 checkpoints of job job ok"), "{}", verify());
}

#[test]
fn an_agent_that_still_saves_the_run_before_never_completes_a_checkpoint_of_the_next_run() {
    for is_first in [true, false] {
        let mut site = Site::empty();
        site.start_aggregator("127.0.0.1:0");
        (0..2).for_each(|node| site.start_agent(node, "ranks = 4"));
        site.write(1, 1, 0..RANKS);
        wait_complete(&site.store(), &id(1));
        // The agent of node 0 dies, and the agent of node 1 continues.
        drop(site.agents.remove(0));
        let (a, b) = (site.path("run-a"), site.path("run-b"));
        for (to, ranks) in [(&a, "0-1"), (&b, "2-3")] {
            let mut restart = mcr();
            restart.args(["restart", "--job", "job", "--store"]).arg(site.store());
            run(restart.arg("--to").arg(to).args(["--ranks", ranks]), 0);
        }
        let write_old = |site: &Site| site.write(1, 2, 2..4);
        if is_first {
            write_old(&site);
            std::thread::sleep(Duration::from_millis(500));
        }
        site.start_agent_of(&a, "a", 0, "ranks = 4");
        site.agents[1].wait_for_log("session began");
        if !is_first {
            write_old(&site);
        }
        (0..2).for_each(|rank| write_file(&a, 2, 2, rank, None));
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(site.complete(), [id(1)].into());
        // The next run is saved after the agent of the previous run has ended.
        drop(site.agents.remove(0));
        site.start_agent_of(&b, "b", 1, "ranks = 4");
        site.agents[1].wait_for_log("session began");
        (0..4).for_each(|rank| write_file(if rank < 2 { &a } else { &b }, 2, 3, rank, None));
        wait_complete(&site.store(), &id(3));
        assert_eq!(site.restart(&["--copy", "--checkpoint", &id(3)], 0).0, [(2, 3)].into());
    }
}

#[test]
fn a_newest_checkpoint_that_is_not_whole_is_named_at_the_end_although_the_agents_were_killed() {
    let mut site = Site::empty();
    (0..2).for_each(|_| site.start_aggregator("127.0.0.1:0"));
    let start = |site: &mut Site| {
        (0..2).for_each(|node| site.start_agent(node, "ranks = 4\ndrain-seconds = 2"));
        site.agents.iter().for_each(|agent| drop(agent.wait_for_log("session began")));
    };
    start(&mut site);
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.write(1, 2, 0..2);
    site.wait_group(&id(2), 0);
    // The agent writes its state file after the answer of the aggregator.
    std::thread::sleep(Duration::from_secs(1));
    site.agents.drain(..).for_each(Daemon::kill);
    start(&mut site);
    std::thread::sleep(Duration::from_secs(1));
    let ended = site.agents.pop().and_then(Daemon::stop);
    assert_eq!(ended, Some(0), "the agent of ranks 2 and 3 has committed all that they wrote");
    let agent = site.agents.pop().expect("the agent of ranks 0 and 1");
    agent.signal("TERM");
    let (status, log) = agent.end();
    assert!(status == Some(5) && log.contains(&format!("not committed checkpoint={}", id(2))), "{status:?} {log}");
}
