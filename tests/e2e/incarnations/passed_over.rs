//! Tests which checkpoints a restart passes over, because an earlier restart set them aside or they were restored too
//! often, and which checkpoints prune then keeps.

use super::*;

#[test]
fn a_checkpoint_that_was_restored_three_times_without_a_newer_one_is_passed_over_openly() {
    let site = Site::empty();
    for step in 1..=2 {
        site.write(1, step, 0..RANKS);
    }
    save_by_hand(&site, 0);
    for _ in 0..3 {
        assert_eq!(site.restart(&[], 0).0, [(1, 2)].into());
    }
    let (older, said) = site.restart(&[], 2);
    assert_eq!(older, [(1, 1)].into());
    assert!(
        said.contains("restored 3 times in a row") && said.contains("--checkpoint it_000002 restores it"),
        "{said}"
    );
    assert_eq!(site.restart(&["--checkpoint", "it_000002"], 0).0, [(1, 2)].into(), "asked for, it is taken");
    assert_eq!(site.restart(&["--give-up-after", "0", "--copy"], 0).0, [(1, 2)].into());
}

fn mark_of(site: &Site, how: &str, step: u32) -> std::process::Output {
    run(mcr().args(["prune", how, &id(step), "--job", "job", "--store"]).arg(site.store()), 0)
}

#[test]
fn latest_is_what_a_restart_chooses_and_only_its_name_brings_back_a_checkpoint_that_is_marked_as_bad() {
    let site = Site::empty();
    (1..=3).for_each(|step| site.write(1, step, 0..RANKS));
    save_by_hand(&site, 0);
    mark_of(&site, "--mark-bad", 3);
    for asked in [&["--copy"][..], &["--copy", "--checkpoint", "latest"], &["--dry-run", "--checkpoint", "latest"]] {
        let (found, said) = site.restart(asked, 2);
        assert!(asked[0] == "--dry-run" || found == [(1, 2)].into(), "{asked:?}: {said}");
        assert!(said.contains(&format!("{} is skipped: it is marked as bad", id(3))), "{asked:?}: {said}");
    }
    let (found, said) = site.restart(&["--copy", "--checkpoint", "latest~1"], 2);
    assert_eq!(found, [(1, 1)].into());
    assert!(said.contains(&format!("OLDER than {}, which was skipped: it is marked as bad", id(3))), "{said}");
    let (_, said) = site.restart(&["--copy", "--checkpoint", "latest~2"], 1);
    assert!(said.contains("there is no latest~2: a restart chooses among 2 checkpoints"), "{said}");
    let (found, said) = site.restart(&["--copy", "--checkpoint", &id(3)], 2);
    assert!(found == [(1, 3)].into() && said.contains("is marked as BAD"), "{said}");
    let mut list = mcr();
    list.args(["list", "--store"]).arg(site.store());
    let listed = String::from_utf8(run(&mut list, 0).stdout).expect("UTF-8");
    assert!(listed.contains(&format!("{} is bad: marked by hand", id(3))), "{listed}");
    let not_marked = String::from_utf8(mark_of(&site, "--unmark", 2).stdout).expect("UTF-8");
    assert!(not_marked.contains(&format!("{} was not marked as bad", id(2))), "{not_marked}");
    // All nodes may name the checkpoint.
    for ranks in ["0-1", "2-3"] {
        assert_eq!(site.restart(&["--checkpoint", &id(3), "--ranks", ranks], 2).0, [(1, 3)].into(), "{ranks}");
    }
    assert_eq!(std::fs::read_dir(site.store().join("job/.incarnations")).expect("lists").count(), 2, "one decision");
}

#[test]
fn all_nodes_that_ask_for_the_checkpoint_before_the_latest_get_the_same_one() {
    let site = Site::empty();
    (1..=3).for_each(|step| site.write(1, step, 0..RANKS));
    save_by_hand(&site, 0);
    assert_eq!(site.restart(&["--copy", "--checkpoint", "latest"], 0).0, [(1, 3)].into());
    assert_eq!(site.restart(&["--checkpoint", "latest~1", "--ranks", "0-1"], 0).0, [(1, 2)].into());
    let (found, said) = site.restart(&["--checkpoint", "latest~1", "--ranks", "2-3"], 2);
    assert!(found == [(1, 2)].into() && said.contains("which another node decided"), "{said}");
}

#[test]
fn with_exact_a_node_does_not_follow_a_decision_for_an_older_checkpoint() {
    let site = Site::empty();
    (1..=2).for_each(|step| site.write(1, step, 0..RANKS));
    save_by_hand(&site, 0);
    mark_of(&site, "--mark-bad", 2);
    assert_eq!(site.restart(&["--incarnation", "a", "--ranks", "0-1"], 2).0, [(1, 1)].into());
    let (found, said) = site.restart(&["--incarnation", "a", "--ranks", "2-3", "--exact"], 1);
    assert!(found.is_empty() && said.contains("With --exact nothing older than it_000002 is restored"), "{said}");
    assert_eq!(site.restart(&["--incarnation", "a", "--ranks", "2-3"], 2).0, [(1, 1)].into());
}

#[test]
fn a_damaged_record_of_a_start_hides_no_other_job_and_is_written_again_by_verify() {
    let site = Site::empty();
    (1..=2).for_each(|step| site.write(1, step, 0..RANKS));
    save_by_hand(&site, 0);
    let mut save = mcr();
    save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "other"]);
    run(save.arg("--store").arg(site.store()), 0);
    assert_eq!(site.restart(&["--incarnation", "a"], 0).0, [(1, 2)].into());
    let record = site.store().join("job/.incarnations/0001");
    std::fs::write(&record, b"").expect("emptied");
    for command in ["list", "stats"] {
        let output = run(mcr().arg(command).arg("--store").arg(site.store()), 4);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("PARTLY: 1 of 2 jobs could not be read: job"), "{said}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("other"), "{output:?}");
        run(mcr().arg(command).args(["--job", "job", "--store"]).arg(site.store()), 1);
    }
    let (_, said) = site.restart(&["--incarnation", "b"], 1);
    assert!(said.contains("advice: mcr verify --repair writes this small file again"), "{said}");
    let mut of_run = mcr();
    of_run
        .args(["run", "--job", "job", "--ranks", "4", "--store"])
        .arg(site.store())
        .arg("--watch")
        .arg(site.run_dir());
    let output = run(of_run.args(["--", "true"]), 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was started"), "{output:?}");
    let output = run(mcr().args(["verify", "--repair", "--job", "job", "--store"]).arg(site.store()), 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is written again"), "{output:?}");
    assert!(site.store().join("job/.incarnations/0001.damaged").exists());
    assert_eq!(site.restart(&["--incarnation", "b"], 0).0, [(1, 2)].into());
    // The number of the damaged record is not used again.
    assert!(site.store().join("job/.incarnations/0002").exists());
}

#[test]
fn nodes_that_restart_by_hand_one_after_the_other_are_no_crash_loop() {
    let site = Site::empty();
    for step in 1..=2 {
        site.write(1, step, 0..RANKS);
    }
    save_by_hand(&site, 0);
    for node in ["n1", "n2", "n3", "n4"] {
        let to = site.dir.path().join(node);
        let mut restart = mcr();
        restart.env("SLURMD_NODENAME", node).args(["restart", "--job", "job", "--store"]).arg(site.store());
        run(restart.arg("--to").arg(&to), 0);
        assert!(to.join("it_000002").is_dir(), "{node}");
    }
}

#[test]
fn what_was_written_before_the_nodes_of_a_start_decided_is_not_saved_between_their_restarts() {
    let site = Site::empty();
    for step in 1..=2 {
        site.write(1, step, 0..RANKS);
    }
    save_by_hand(&site, 0);
    site.write(1, 3, 0..RANKS);
    std::thread::sleep(Duration::from_millis(50));
    let restart = |node: &str, ranks: &str| {
        let to = site.dir.path().join(node);
        let mut restart = mcr();
        restart.args(["restart", "--incarnation", "i", "--ranks", ranks, "--job", "job", "--store"]);
        run(restart.arg(site.store()).env("SLURMD_NODENAME", node).arg("--to").arg(&to), 0);
        assert!(to.join("it_000002").is_dir() && !to.join("it_000003").exists(), "{node}");
    };
    restart("a", "0");
    let told = String::from_utf8_lossy(&save_by_hand(&site, 4).stderr).into_owned();
    assert!(told.contains("it_000003 is not saved: it was written before incarnation 1"), "{told}");
    restart("b", "1");
}

#[test]
fn prune_keeps_what_a_restart_goes_on_from_although_newer_ones_were_set_aside() {
    let site = Site::new();
    for step in 1..=3 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    let (found, said) = site.restart(&["--checkpoint", &id(2), "--incarnation", "i"], 0);
    assert_eq!(found, [(1, 2)].into());
    assert!(said.contains(&format!("continues from {} from now on", id(2))) && said.contains(&id(3)), "{said}");
    run(mcr().args(["prune", "--keep", "1", "--store"]).arg(site.store()), 0);
    assert_eq!(site.complete(), [id(2), id(3)].into());
    // Another node of the same start can only follow the decision. A restart that names another checkpoint fails.
    assert_eq!(site.restart(&["--incarnation", "i"], 2).0, [(1, 2)].into());
    let (found, said) = site.restart(&["--checkpoint", &id(3), "--incarnation", "i"], 1);
    assert!(found.is_empty() && said.contains("which another node decided"), "{said}");
    // The job is started again.
    let (found, said) = site.restart(&["--incarnation", "k"], 2);
    assert_eq!(found, [(1, 2)].into());
    assert!(said.contains(&format!("this is OLDER than {}, which was skipped: incarnation 1", id(3))), "{said}");
}

#[test]
fn prune_keeps_what_the_job_goes_on_from_although_it_was_restored_too_often_and_newer_ones_were_set_aside() {
    let site = Site::new();
    for step in 1..=3 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    site.restart(&["--checkpoint", &id(1)], 0);
    (0..2).for_each(|_| assert_eq!(site.restart(&[], 2).0, [(1, 1)].into()));
    run(mcr().args(["prune", "--keep", "1", "--job", "job", "--store"]).arg(site.store()), 0);
    assert!(site.complete().contains(&id(1)), "{:?}", site.complete());
    assert_eq!(site.restart(&["--copy", "--checkpoint", &id(1)], 0).0, [(1, 1)].into());
    // If all remaining checkpoints were set aside, a restart restores the newest of these checkpoints, and prints a
    // warning.
    run(mcr().args(["prune", "--drop", &id(1), "--job", "job", "--store"]).arg(site.store()), 0);
    let (found, said) = site.restart(&["--copy"], 2);
    assert!(found == [(1, 3)].into() && said.contains("was SET ASIDE by an earlier restart"), "{said}");
}

#[test]
fn what_a_restart_set_aside_is_not_taken_by_a_later_restart_if_the_newest_is_bad() {
    let site = Site::new();
    for step in 1..=3 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    site.restart(&["--checkpoint", &id(2)], 0);
    site.write(2, 3, 0..RANKS);
    let again = format!("{}~2", id(3));
    wait_complete(&site.store(), &again);
    assert_eq!(site.restart(&[], 0).0, [(2, 3)].into());
    run(mcr().args(["prune", "--mark-bad", &again, "--job", "job", "--store"]).arg(site.store()), 0);
    let (found, said) = site.restart(&["--copy"], 2);
    assert_eq!(found, [(1, 2)].into(), "run 2 never continued from step 3 of run 1: {said}");
    run(mcr().args(["prune", "--unmark", &again, "--keep", "2", "--job", "job", "--store"]).arg(site.store()), 0);
    assert_eq!(site.complete(), [id(2), id(3), again].into());
    assert_eq!(site.restart(&["--copy", "--checkpoint", &id(3)], 0).0, [(1, 3)].into(), "by its name");
}

#[test]
fn restarts_that_failed_do_not_count_as_restarts_in_a_row() {
    let site = Site::new();
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    site.write(1, 2, 0..RANKS);
    wait_complete(&site.store(), &id(2));
    let to = site.path("taken");
    // A directory has the name of a file that the restart must write.
    std::fs::create_dir(&to).expect("made");
    std::fs::create_dir(to.join(id(2))).expect("made");
    std::fs::create_dir(to.join(id(2)).join("rank_1.dat")).expect("made");
    for _ in 0..4 {
        run(mcr().args(["restart", "--job", "job", "--store"]).arg(site.store()).arg("--to").arg(&to), 1);
    }
    assert_eq!(site.restart(&[], 0).0, [(1, 2)].into());
}

#[test]
fn prune_keeps_what_the_next_restart_takes_where_the_newest_was_restored_too_often() {
    let site = Site::new();
    for step in 1..=3 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    for _ in 0..3 {
        assert_eq!(site.restart(&[], 0).0, [(1, 3)].into());
    }
    run(mcr().args(["prune", "--keep", "1", "--store"]).arg(site.store()), 0);
    assert_eq!(site.complete(), [id(2), id(3)].into());
    assert_eq!(site.restart(&[], 2).0, [(1, 2)].into());
}

#[test]
fn a_node_that_follows_a_decision_says_why_the_newest_was_not_taken() {
    let site = Site::new();
    for step in 1..=2 {
        site.write(1, step, 0..RANKS);
        wait_complete(&site.store(), &id(step));
    }
    assert_eq!(site.restart(&["--checkpoint", &id(1), "--ranks", "0-1"], 0).0, [(1, 1)].into());
    let (found, said) = site.restart(&["--ranks", "2-3"], 2);
    assert_eq!(found, [(1, 1)].into());
    let why = format!("OLDER than {}, which was skipped: incarnation 1", id(2));
    assert!(said.contains(&why) && said.contains("which another node decided"), "{said}");
}

fn save_by_hand(site: &Site, status: i32) -> std::process::Output {
    let mut save = mcr();
    save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "job"]);
    run(save.args(["--ranks", "4", "--store"]).arg(site.store()), status)
}

/// Saves steps 1 and 2, and restores step 1 while a part of step 2 is missing.
fn restarted_without(part: &str) -> Site {
    let site = Site::empty();
    for step in 1..=2 {
        site.write(1, step, 0..RANKS);
    }
    save_by_hand(&site, 0);
    let (part, away) = (site.store().join("job").join(part), site.path("away"));
    std::fs::rename(&part, &away).expect("moved away");
    // The exit status is 2 if the list of checkpoints shows that a container is missing.
    let expected = if part.extension().is_some_and(|end| end == "mcr") { 2 } else { 0 };
    assert_eq!(site.restart(&[], expected).0, [(1, 1)].into());
    std::fs::rename(&away, &part).expect("moved back");
    site
}

#[test]
fn a_committed_checkpoint_that_was_only_out_of_reach_during_a_restart_is_set_aside_and_never_dead() {
    for part in ["it_000002/group-0000.mcr", "it_000002/group-0000.manifest", "it_000002"] {
        let site = restarted_without(part);
        let states = || -> Vec<_> { list(&site.store()).iter().map(|c| c["state"].clone()).collect() };
        assert_eq!(states(), ["set-aside", "complete"], "{part}");
        // The next run commits a newer checkpoint, so both earlier checkpoints are older than the newest complete
        // checkpoint.
        std::fs::remove_dir_all(site.run_dir()).expect("removed");
        site.write(2, 3, 0..RANKS);
        save_by_hand(&site, 0);
        run(mcr().args(["prune", "--incomplete", "--job", "job", "--store"]).arg(site.store()), 0);
        assert_eq!(site.complete(), [id(1), id(2), id(3)].into(), "{part}");
        assert_eq!(site.restart(&["--copy"], 0).0, [(2, 3)].into(), "{part}");
        assert_eq!(site.restart(&["--copy", "--checkpoint", &id(2)], 0).0, [(1, 2)].into(), "{part}");
    }
}

#[test]
fn a_checkpoint_with_a_group_that_a_writer_had_begun_when_a_restart_decided_is_dead() {
    let site = restarted_without("it_000002/group-0000.manifest");
    run(std::process::Command::new("rm").arg("-r").arg(site.store().join("job/.incarnations")), 0);
    let manifest = site.store().join("job/it_000002/group-0000.manifest");
    let begun = manifest.with_file_name(".group-0000.manifest.0123456789abcdef");
    std::fs::rename(&manifest, &begun).expect("not committed yet");
    assert_eq!(site.restart(&[], 0).0, [(1, 1)].into());
    std::fs::rename(&begun, &manifest).expect("committed too late");
    let newest = &list(&site.store())[0];
    assert_eq!((&newest["checkpoint"], &newest["state"]), (&id(2).into(), &"dead".into()));
}

#[test]
fn a_step_that_is_written_again_with_the_same_bytes_after_it_was_passed_over_is_the_newest() {
    let again = format!("{}~2", id(2));
    // `mcr save` saves the checkpoints.
    let site = Site::empty();
    (1..=2).for_each(|step| site.write(1, step, 0..RANKS));
    save_by_hand(&site, 0);
    assert_eq!(site.restart(&["--checkpoint", &id(1)], 0).0, [(1, 1)].into());
    save_by_hand(&site, 0);
    assert!(!site.complete().contains(&again), "nothing was written since");
    site.write(1, 2, 0..RANKS);
    save_by_hand(&site, 0);
    assert!(site.complete().contains(&again), "{:?}", site.complete());
    assert_eq!(site.restart(&[], 0).0, [(1, 2)].into());
    save_by_hand(&site, 0);
    assert_eq!(list(&site.store()).len(), 3, "the files are already in the store");
    // Daemons save the checkpoints.
    for passed_over in [&["restart", "--checkpoint"][..], &["prune", "--mark-bad"]] {
        let site = Site::new();
        for step in 1..=2 {
            site.write(1, step, 0..RANKS);
            wait_complete(&site.store(), &id(step));
        }
        match passed_over[0] {
            "restart" => drop(site.restart(&["--checkpoint", &id(1)], 0)),
            _ => drop(run(mcr().args(passed_over).arg(id(2)).args(["--job", "job", "--store"]).arg(site.store()), 0)),
        }
        site.write(1, 2, 0..RANKS);
        wait_complete(&site.store(), &again);
        assert_eq!(site.restart(&[], 0).0, [(1, 2)].into(), "{passed_over:?}");
    }
}

#[test]
fn a_step_that_a_dead_run_saved_by_half_is_saved_whole_although_the_next_run_writes_the_same_bytes() {
    let site = restarted_after_half_of_step_2();
    site.write(1, 2, 0..RANKS);
    wait_complete(&site.store(), &format!("{}~2", id(2)));
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 2)].into());
}
