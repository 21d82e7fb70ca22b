//! What a command does if an application still runs although its `mcr run` was killed.

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
    // The application of a run that goes on is no reason to refuse.
    let restart = |more: &[&str]| {
        let mut restart = mcr();
        restart.args(["restart", "--store"]).arg(&store).arg("--to").arg(&out).args(more);
        restart
    };
    run(&mut restart(&[]), 0);
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
