//! Tests `mcr save` of a job that is restarted at the same time, that was restarted with fewer ranks, or that has the
//! name of another job.

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

/// Saves the directory with the default name of the job. Returns what the command printed.
fn save_by_default_name(dir: &Path, store: &Path, more: &[&str], status: i32) -> String {
    let mut save = mcr();
    save.arg("save").arg(dir).args(["--create", "--layout", "{checkpoint}/rank_{rank}.dat", "--store"]).arg(store);
    let output = run(save.args(more), status);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn two_directories_of_one_name_are_not_saved_as_one_job_unless_the_user_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second, store] = ["a/out", "b/out", "store"].map(|name| dir.path().join(name));
    write_file(&first, 1, 1, 0, None);
    write_file(&second, 2, 2, 0, None);
    let restored_from = |name: &str, expected: &[(u32, u32)]| {
        let to = dir.path().join(name);
        run(mcr().args(["restart", "--copy", "--job", "out", "--store"]).arg(&store).arg("--to").arg(&to), 0);
        let found = contents(&to);
        let of: Vec<_> = found.values().filter(|bytes| bytes.len() > 100).map(|bytes| of(bytes)).collect();
        assert_eq!(of, expected);
    };
    save_by_default_name(&first, &store, &["--keep", "1"], 0);
    let said = save_by_default_name(&second, &store, &["--keep", "1"], 1);
    assert!(said.contains("the store has a job out, which was saved from another directory; if this is"), "{said}");
    assert!(said.contains("--job"), "{said}");
    restored_from("back1", &[(1, 1)]);
    save_by_default_name(&first, &store, &["--keep", "1"], 0);
    // The user says that it is the same job. After that, the first directory is the other one.
    save_by_default_name(&second, &store, &["--keep", "1", "--job", "out"], 0);
    restored_from("back2", &[(2, 2)]);
    save_by_default_name(&first, &store, &["--keep", "1"], 1);
    // A restart continues the job in another directory of the same name.
    let third = dir.path().join("c/out");
    run(mcr().args(["restart", "--job", "out", "--store"]).arg(&store).arg("--to").arg(&third), 0);
    write_file(&third, 3, 3, 0, None);
    save_by_default_name(&third, &store, &[], 0);
    restored_from("back3", &[(3, 3)]);
}

#[test]
fn the_word_latest_means_the_newest_checkpoint_also_if_a_checkpoint_has_this_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let [data, store] = ["run", "store"].map(|name| dir.path().join(name));
    for (step, name) in [(1, "latest"), (2, "it_000002"), (3, "latest")] {
        write_file(&data, 1, step, 0, None);
        let to = data.join(name);
        if to.exists() && step != 2 {
            std::fs::remove_dir_all(&to).expect("removed");
        }
        if step != 2 {
            std::fs::rename(data.join(id(step)), &to).expect("renamed");
        }
        save_by_default_name(&data, &store, &[], 0);
    }
    for (asked, step) in [("latest", 3), ("latest~1", 2), ("latest~2", 1)] {
        let to = dir.path().join(asked);
        let mut restart = mcr();
        restart.args(["restart", "--copy", "--checkpoint", asked, "--store"]).arg(&store).arg("--to").arg(&to);
        run(&mut restart, 0);
        let found = contents(&to);
        let of: Vec<_> = found.values().filter(|bytes| bytes.len() > 100).map(|bytes| of(bytes)).collect();
        assert_eq!(of, [(1, step)], "{asked}");
    }
}
