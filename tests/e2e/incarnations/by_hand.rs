//! Tests restarts and runs by hand, without identity, of a job whose last start has an identity.

use super::*;

#[test]
fn a_job_whose_last_start_has_an_identity_is_continued_by_hand_only_with_a_name() {
    let site = Site::empty();
    let first = start_run(&site, &site.run_dir(), "first", Some("SLURM job 7"));
    site.write(1, 1, 0..RANKS);
    wait_complete(&site.store(), &id(1));
    let (found, said) = site.restart(&[], 0);
    assert_eq!(found, [(1, 1)].into());
    assert!(said.contains("job job is in use by ") && said.contains("it only copied files"), "{said}");
    first.signal("TERM");
    assert_eq!(first.end().0, Some(0));
    // All processes of the job have ended.
    let last = "the last start of job job is incarnation 1 (SLURM job 7";
    let (found, said) = site.restart(&[], 1);
    assert!(found.is_empty(), "nothing was copied: {said}");
    assert!(said.contains(last) && said.contains("MCR_INCARNATION=NAME") && said.contains("--copy"), "{said}");
    let ran = site.path("ran");
    let mut by_hand = mcr();
    by_hand.args(["run", "--job", "job", "--ranks", "4", "--layout", "{checkpoint}/rank_{rank}.dat", "--store"]);
    by_hand.arg(site.store()).arg("--watch").arg(site.run_dir()).arg("--state").arg(site.path("second"));
    let said = String::from_utf8_lossy(&run(by_hand.args(["--", "touch"]).arg(&ran), 1).stderr).into_owned();
    assert!(said.contains(last) && said.contains("MCR_INCARNATION=NAME"), "{said}");
    assert!(!ran.exists(), "the command did not start");
    assert_eq!(site.restart(&["--copy"], 0).0, [(1, 1)].into());
    assert_eq!(site.restart(&["--incarnation", "by hand"], 0).0, [(1, 1)].into());
    let _third = start_run(&site, &site.run_dir(), "third", Some("by hand"));
    site.write(2, 2, 0..RANKS);
    wait_complete(&site.store(), &id(2));
}

#[test]
fn the_node_that_followed_a_decision_for_a_new_run_restores_the_newest_checkpoint_at_the_next_restart() {
    for nodes in [&["0-1", "2-3"][..], &["0-1"]] {
        let site = Site::empty();
        // On the second site, the node of ranks 2-3 runs no restart before the first start.
        nodes.iter().copied().for_each(|ranks| assert!(site.restart(&["--ranks", ranks], 3).0.is_empty()));
        site.write(1, 1, 0..RANKS);
        let mut save = mcr();
        save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "job"]);
        run(save.args(["--group-size", "2", "--store"]).arg(site.store()), 0);
        for ranks in ["2-3", "0-1"] {
            let (found, said) = site.restart(&["--ranks", ranks], 0);
            assert_eq!(found, [(1, 1)].into(), "{said}");
            assert!(!said.contains("skipped"), "{said}");
        }
    }
}
