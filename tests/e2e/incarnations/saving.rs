//! Tests `mcr save` of a job that is restarted at the same time, or that was restarted with fewer ranks.

use super::*;
use std::process::Stdio;

fn save(site: &Site, more: &[&str]) -> Command {
    let mut save = mcr();
    save.arg("save").arg(site.run_dir()).args(["--layout", "{checkpoint}/rank_{rank}.dat", "--job", "job"]);
    save.args(["--group-size", "2", "--store"]).arg(site.store()).args(more);
    save
}

#[test]
fn a_checkpoint_that_a_restart_ends_while_it_is_saved_counts_as_not_saved() {
    for (identity, again) in [("", Some(format!("{}~2", id(2)))), ("one", None)] {
        let site = Site::empty();
        site.write(1, 1, 0..RANKS);
        run(&mut save(&site, &[]), 0);
        site.write(1, 2, 0..RANKS);
        // A process that holds a container of group 1: `mcr save` commits group 0, and waits.
        let dir = site.store().join("job").join(id(2));
        std::fs::create_dir(&dir).expect("made");
        let held = std::fs::File::create(dir.join(".group-0001.mcr.0123456789abcdef")).expect("created");
        held.lock().expect("locked");
        let saving = save(&site, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        site.wait_group(&id(2), 0);
        assert_eq!(site.restart(&["--incarnation", identity], 0).0, [(1, 1)].into());
        drop(held);
        let output = saving.wait_with_output().expect("ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(4), "{out}{err}");
        assert!(out.contains("PARTLY: 1 of 2 checkpoints are in ") && out.contains("not saved: it_000002"), "{out}");
        let why = "it_000002 is not saved: it was incomplete when incarnation 1";
        assert!(err.contains(why) && err.contains("so it never becomes complete; "), "{err}");
        // The error says what the next `mcr save` does.
        match again {
            Some(again) => {
                assert!(err.contains(&format!("save again: the checkpoint then gets the name {again}")), "{err}");
                run(&mut save(&site, &[]), 0);
                assert!(site.complete().contains(&again), "{:?}", site.complete());
            }
            None => {
                assert!(err.contains("save it for a job of another name (--job)"), "{err}");
                run(&mut save(&site, &[]), 4);
            }
        }
    }
}

#[test]
fn a_checkpoint_with_fewer_ranks_than_older_files_is_reported_with_what_the_store_has() {
    let site = Site::empty();
    site.write(1, 1, 0..RANKS);
    run(&mut save(&site, &[]), 0);
    site.write(1, 2, 0..2);
    // With --ranks 2, ranks 2 and 3 of step 1 are too many.
    let there = |step, ranks: u32| format!("; the store has a complete checkpoint {} of {ranks} ranks", id(step));
    let err = |more: &[&str], status| {
        let output = run(&mut save(&site, more), status);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = out.lines().last().unwrap_or_default();
        assert!(last.contains(" of 2 checkpoints are known to be in ") && !last.contains("not saved"), "{last}");
        assert!(last.contains("; incomplete here, and complete under the same name in the store: it_00000"), "{last}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = err(&["--ranks", "2"], 4);
    assert!(said.contains(&format!("--ranks 2 means ranks 0 to 1{}", there(1, 4))), "{said}");
    let (said, hint) = (err(&[], 4), "(it_000001 has 4 ranks; if the job has fewer ranks now, give --ranks)");
    assert!(said.contains(&format!("ranks 2-3 have no file (of 4 ranks) {hint}{}", there(2, 2))), "{said}");
    // The file of rank 2 is missing, but the job has rank 3.
    std::fs::remove_file(site.run_dir().join(id(1)).join("rank_2.dat")).expect("removed");
    let said = err(&[], 1);
    assert!(said.contains(&format!("rank 2 has no file (of 4 ranks){}", there(1, 4))), "{said}");
}
