//! Files of the job are never part of a checkpoint: the settings, and the files to which a job's output goes.

use crate::support::*;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// The command `mcr run` with one rank in a directory, without the command to run.
fn run_in(dir: &Path, store: &Path, more: &[&str]) -> Command {
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "1", "--watch"]).arg(dir).arg("--store").arg(store);
    command.arg("--state").arg(store.with_extension("state")).args(more).current_dir(dir);
    command
}

#[test]
fn the_output_of_the_job_in_the_watched_directory_is_in_no_checkpoint_and_makes_none_wait() {
    for more in [&["--layout", "single"][..], &[]] {
        let site = tempfile::tempdir().expect("a directory");
        let (dir, store) = (site.path().join("run"), site.path().join("store"));
        fs::create_dir(&dir).expect("made");
        let _open = File::create(dir.join("slurm-7.err")).expect("made");
        let output = || File::create(dir.join("console.txt")).expect("made");
        let mut command = run_in(&dir, &store, more);
        command.args(["--", "sh", "-c", "echo state > WAVECAR; echo more > CHGCAR"]);
        let status = command.stdout(output()).stderr(output()).status().expect("it runs");
        let log = fs::read_to_string(dir.join("console.txt")).expect("there");
        assert_eq!(status.code(), Some(0), "{log}");
        let back = site.path().join("back");
        run(mcr().args(["restart", "--copy", "--job", "job", "--store"]).arg(&store).arg("--to").arg(&back), 0);
        assert!(back.join("WAVECAR").is_file() && back.join("CHGCAR").is_file(), "{log}");
        assert!(!back.join("console.txt").exists() && !back.join("slurm-7.err").exists(), "{log}");
    }
}

#[test]
fn the_settings_in_the_watched_directory_are_in_no_checkpoint() {
    let site = tempfile::tempdir().expect("a directory");
    let (dir, store) = (site.path().join("run"), site.path().join("store"));
    fs::create_dir(&dir).expect("made");
    fs::write(dir.join("state"), "state").expect("written");
    fs::write(dir.join("mcr.toml"), "job = \"job\"\n").expect("written");
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job", "--layout", "single", "--store"]).arg(&store).arg(&dir);
    run(&mut save, 0);
    let back = site.path().join("back");
    run(mcr().args(["restart", "--copy", "--job", "job", "--store"]).arg(&store).arg("--to").arg(&back), 0);
    assert!(back.join("state").is_file() && !back.join("mcr.toml").exists());
}

#[test]
fn files_from_before_the_start_and_files_that_name_checkpoints_make_no_checkpoint_doubtful() {
    let site = tempfile::tempdir().expect("a directory");
    let (dir, store) = (site.path().join("run"), site.path().join("store"));
    fs::create_dir(&dir).expect("made");
    let script = "for n in 1 2 3; do mkdir DD000$n; for end in '' .hierarchy .boundary .cpu0000 .cpu0001; do \
                  echo step $n part $end > DD000$n/data000$n$end; done; echo DD000$n/data000$n >> OutputLog; \
                  sleep 2.5; done";
    let mut command = mcr();
    command.args(["run", "--create", "--job", "job", "--ranks", "2", "--watch"]).arg(&dir).arg("--store").arg(&store);
    command.arg("--state").arg(site.path().join("state")).current_dir(&dir).args(["--", "sh", "-c", script]);
    ["INCAR", "job.sh", "mcr.toml"].iter().for_each(|name| fs::write(dir.join(name), "# input\n").expect("written"));
    let log = String::from_utf8_lossy(&run(&mut command, 0).stderr).into_owned();
    let all = list(&store);
    assert!(all.len() == 3 && all.iter().all(|checkpoint| checkpoint["doubt"].is_null()), "{all:?} {log}");
    assert!(log.contains("files=2 of=17 first=INCAR"), "{log}");
}
