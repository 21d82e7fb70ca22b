//! What a command does if the application of an earlier `mcr run` still runs.

use super::*;

#[test]
fn nothing_is_started_or_restored_beside_an_application_whose_run_was_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, store) = (dir.path().join("out"), dir.path().join("store"));
    run(&mut run_with(dir.path(), &["--", "sh", "-c", WRITE]), 0);
    let mut killed = run_with(dir.path(), &["--", "sh", "-c", "echo $$ > ../process; exec sleep 600"]);
    killed.current_dir(&out).stderr(Stdio::null());
    let mut killed = killed.spawn().expect("starts");
    let written = || std::fs::read_to_string(dir.path().join("process")).ok().filter(|text| text.ends_with('\n'));
    let process = wait_for("the application", Duration::from_secs(20), written).trim().to_owned();
    let restart = |more: &[&str]| {
        let mut restart = mcr();
        restart.args(["restart", "--store"]).arg(&store).arg("--to").arg(&out).args(more);
        restart
    };
    // Beside a run that goes on, a restart would move its newest files away.
    std::fs::write(out.join("s2.rank_0.txt"), "newer").expect("written");
    for more in [&[][..], &["--incarnation", "two"]] {
        let said = String::from_utf8_lossy(&run(&mut restart(more), 1).stderr).into_owned();
        assert!(said.contains("and its application still run and write into"), "{said}");
        assert!(out.join("s2.rank_0.txt").exists(), "{said}");
    }
    run(&mut restart(&["--copy"]), 0);
    std::fs::remove_file(out.join("s2.rank_0.txt")).expect("removed");
    killed.kill().and_then(|()| killed.wait()).expect("ended");
    for (mut command, status) in [
        (run_with(dir.path(), &["--", "true"]), 1),
        (restart(&[]), 1),
        (run_with(&dir.path().join("."), &["--", "true"]), 1),
    ] {
        let output = run(&mut command, status);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("{process} (sleep)")), "{said}");
        assert!(said.contains(&format!("kill {process}")), "{said}");
    }
    run(&mut restart(&["--copy"]), 0);
    assert!(Command::new("kill").arg(&process).status().expect("kill").success());
    wait_for("the end", Duration::from_secs(20), || {
        run_with(dir.path(), &["--", "true"]).status().ok()?.success().then_some(())
    });
    run(&mut restart(&[]), 0);
}

#[test]
fn a_restart_into_another_directory_does_not_end_a_run_that_has_committed_nothing_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("{WRITE} echo ready > ../ready; sleep 3");
    let daemon = Daemon::start(&mut run_with(dir.path(), &["--", "sh", "-c", &script]));
    wait_for("the files", Duration::from_secs(20), || dir.path().join("ready").exists().then_some(()));
    let mut restart = mcr();
    restart.args(["restart", "--job", "job", "--store"]).arg(dir.path().join("store")).arg("--state");
    restart.arg(dir.path().join("state")).arg("--to").arg(dir.path().join("look"));
    let said = String::from_utf8_lossy(&run(&mut restart, 3).stderr).into_owned();
    assert!(said.contains("job job is running and has committed nothing yet"), "{said}");
    let (status, log) = daemon.end();
    assert!(status == Some(0) && is_complete(dir.path(), "s1"), "{status:?}: {log}");
}
