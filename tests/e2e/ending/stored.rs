//! What an agent says and saves at the end of `mcr run`, if files are in the store already, or are no longer in it.

use super::*;

#[test]
fn files_that_the_state_file_names_as_committed_are_saved_again_if_the_store_has_no_checkpoint_of_the_job() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    run(&mut run_with(dir.path(), &["--", "sh", "-c", WRITE]), 0);
    // Files are not saved again as long as the store has a checkpoint of the job.
    let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", "sleep 1"]), 0);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("the state file names"), "{output:?}");
    for emptied in [store.join("job"), store.clone()] {
        std::fs::remove_dir_all(&emptied).expect("removed");
        let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", "sleep 1"]), 0);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(log.contains("the state file names a committed checkpoint, but the store has no checkpoint"), "{log}");
        assert!(is_complete(dir.path(), "s1"), "{log}");
    }
}

#[test]
fn files_of_an_earlier_run_that_are_in_the_store_are_recognised_without_the_state_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let with = |incarnation: &str, script: &str, status: i32| {
        let _ = std::fs::remove_file(dir.path().join("state")); // as on another node
        let mut command = run_with(dir.path(), &["--", "sh", "-c", script]);
        run(command.env("MCR_INCARNATION", incarnation), status);
    };
    with("first", &format!("{WRITE} sleep 2; {}", WRITE.replace("s1", "s2")), 0);
    let (store, out) = (dir.path().join("store"), dir.path().join("out"));
    let mut restart = mcr();
    restart.args(["restart", "--incarnation", "second", "--store"]).arg(&store).arg("--to").arg(&out);
    run(&mut restart, 0);
    with("second", &format!("sleep 1; {}", WRITE.replace("s1", "s3")), 0);
    assert!(["s1", "s2", "s3"].iter().all(|id| is_complete(dir.path(), id)));
}

#[test]
fn a_run_that_saves_nothing_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(&mut run_with(dir.path(), &["--", "true"]), 0);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("this run saved no checkpoint, and no file of the application was found below the watched"),
        "{log}"
    );
    let output = run(&mut run_with(dir.path(), &["--", "sh", "-c", WRITE]), 0);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("saved no checkpoint"), "{output:?}");
}

#[test]
fn a_store_below_the_watched_directory_is_not_saved_and_a_watched_directory_in_the_store_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = dir.path().join("out");
    let store = watch.join("store");
    make_store(&store);
    let run_in = |watch: &Path, status: i32| {
        let mut command = mcr();
        command.args(["run", "--job", "job", "--ranks", "1", "--layout", "single", "--store"]).arg(&store);
        command.arg("--watch").arg(watch).arg("--state").arg(dir.path().join("out/state")).current_dir(dir.path());
        run(command.args(["--", "sh", "-c", "echo 1 > out/a; sleep 4; echo 2 > out/a; sleep 2"]), status)
    };
    run_in(&watch, 0);
    let saved = list(&store);
    assert_eq!(saved.len(), 2, "{saved:?}");
    assert!(saved.iter().all(|checkpoint| checkpoint["files"] == 1 && checkpoint["complete"] == true), "{saved:?}");
    let output = run_in(&store, 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is inside the store"), "{output:?}");
}

#[test]
fn restored_files_are_saved_if_the_store_has_no_checkpoint_of_the_job_and_only_then() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, out) = (dir.path().join("store"), dir.path().join("out"));
    run(&mut run_with(dir.path(), &["--", "sh", "-c", &format!("{WRITE} sleep 2; {}", WRITE.replace("s1", "s2"))]), 0);
    std::fs::remove_dir_all(&out).expect("removed");
    let restart = || run(mcr().args(["restart", "--job", "job", "--store"]).arg(&store).arg("--to").arg(&out), 0);
    restart();
    let elsewhere = dir.path().join("elsewhere");
    let mut of_other = mcr();
    of_other.args(["run", "--create", "--job", "other", "--ranks", "2", "--layout", "{checkpoint}.rank_{rank}.txt"]);
    of_other.arg("--watch").arg(&out).arg("--store").arg(&elsewhere).arg("--state").arg(dir.path().join("other"));
    run(of_other.args(["--", "sh", "-c", "sleep 1"]).current_dir(&out), 0);
    let saved: Vec<_> =
        list(&elsewhere).iter().map(|one| (one["checkpoint"].clone(), one["complete"].clone())).collect();
    assert_eq!(saved, [("s2".into(), true.into())]);
    restart();
    run(&mut run_with(dir.path(), &["--", "sh", "-c", "sleep 1"]), 0);
    assert_eq!(list(&store).len(), 2, "the store has the restored checkpoint");
}

#[test]
fn a_first_checkpoint_that_a_new_start_writes_at_once_belongs_to_this_start() {
    let dir = tempfile::tempdir().expect("a directory");
    for (start, id) in [("first", "s1"), ("second", "s2"), ("third", "s3")] {
        let mut command = run_with(dir.path(), &["--", "sh", "-c", &WRITE.replace("s1", id)]);
        run(command.env("MCR_INCARNATION", start), 0);
        assert!(is_complete(dir.path(), id), "{id}");
    }
}
