//! Tests of `mcr node`, which saves the jobs of this user: begin, end, and what happens if the daemon is not there.

use crate::support::*;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A node with the work directory of a job.
struct Site {
    dir: TempDir,
    /// A number that no job of another test has, because workers search the processes of this machine.
    job_id: String,
}

impl Site {
    fn new(job_id: u32) -> Self {
        let site =
            Self { dir: tempfile::tempdir().expect("a directory"), job_id: format!("{}{job_id}", std::process::id()) };
        for name in ["work/out", "store"] {
            std::fs::create_dir_all(site.path(name)).expect("made");
        }
        let settings = format!(
            "job = \"melt{}\"\nwatch = \"out\"\nlayout = \"{{checkpoint}}/rank_{{rank}}.dat\"\nstore = {:?}\nquiet-ms = 20\n\
             checkpoint-quiet-ms = 40\n",
            site.job_id,
            site.path("store")
        );
        std::fs::write(site.path("work/mcr.toml"), settings).expect("written");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn daemon(&self) -> Daemon {
        let daemon = Daemon::start(mcr().args(["node", "--own", "--run-dir"]).arg(self.path("run")));
        daemon.wait_for_log("serving jobs");
        daemon
    }

    /// `mcr job WHAT` with the variables that SLURM sets for Prolog and Epilog.
    fn job(&self, what: &str) -> Command {
        let mut command = mcr();
        command.args(["job", what, "--run-dir"]).arg(self.path("run"));
        command.env("SLURM_JOB_ID", &self.job_id).env("SLURM_JOB_UID", nix::unistd::geteuid().to_string());
        command.env("SLURM_JOB_WORK_DIR", self.path("work")).env("SLURMD_NODENAME", "n1");
        command.env("SLURM_JOB_NTASKS", "2").env("SLURM_SCRIPT_CONTEXT", "prolog_slurmd");
        command
    }

    /// Runs `mcr job WHAT`. Returns standard error and the time that it took.
    fn says(&self, command: &mut Command) -> (String, Duration) {
        let began = Instant::now();
        let said = String::from_utf8(run(command, 0).stderr).expect("UTF-8");
        (said, began.elapsed())
    }

    /// A process of the job that writes steps FIRST to LAST.
    fn application(&self, first: u32, last: u32) -> Child {
        let script = format!(
            "for step in $(seq {first} {last}); do mkdir -p out/it_$step; for rank in 0 1; do echo $step $rank > \
             out/it_$step/rank_$rank.dat; done; sleep 0.3; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(self.path("work"));
        command.env("SLURM_JOB_ID", &self.job_id).env("SLURM_NTASKS", "2").spawn().expect("starts")
    }

    fn worker(&self) -> Option<u64> {
        let jobs = run(self.job("list").arg("--json"), 0).stdout;
        let jobs: serde_json::Value = serde_json::from_slice(&jobs).expect("JSON");
        jobs.as_array().expect("a list").first().map(|job| job["pid"].as_u64().expect("a number"))
    }

    /// The names of the complete checkpoints, newest first.
    fn complete(&self) -> Vec<String> {
        let all = list(&self.path("store"));
        let complete = all.iter().filter(|c| c["complete"] == true);
        complete.map(|c| c["checkpoint"].as_str().expect("a name").to_owned()).collect()
    }
}

#[test]
fn prolog_and_epilog_are_enough_to_save_the_last_checkpoint_of_a_job() {
    let site = Site::new(1);
    let daemon = site.daemon();
    assert_eq!(site.says(&mut site.job("begin")).0, "");
    site.application(1, 4).wait().expect("ended");
    let (said, took) = site.says(&mut site.job("end"));
    assert_eq!(said, "");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(site.complete().first().map(String::as_str), Some("it_4"));
    assert_eq!(site.worker(), None);
    drop(daemon);
}

#[test]
fn a_worker_outlives_the_daemon_and_the_next_daemon_ends_it() {
    let site = Site::new(2);
    let daemon = site.daemon();
    site.says(&mut site.job("begin"));
    let mut application = site.application(1, 8);
    let worker = site.worker().expect("it runs");
    wait_for("the first checkpoint", Duration::from_secs(30), || (!site.complete().is_empty()).then_some(()));
    daemon.signal("KILL");
    drop(daemon);
    let daemon = site.daemon();
    assert_eq!(site.worker(), Some(worker));
    application.wait().expect("ended");
    assert_eq!(site.says(&mut site.job("end")).0, "");
    assert_eq!(site.complete().first().map(String::as_str), Some("it_8"));
    drop(daemon);
}

#[test]
fn the_end_of_a_job_that_was_over_at_once_is_saved_too() {
    let site = Site::new(3);
    let daemon = site.daemon();
    // The processes of the job have ended before the worker has started.
    site.application(1, 1).wait().expect("ended");
    site.says(&mut site.job("begin"));
    site.says(&mut site.job("end"));
    assert_eq!(site.complete().first().map(String::as_str), Some("it_1"));
    drop(daemon);
}

#[test]
fn a_job_without_settings_or_with_wrong_ones_is_not_touched() {
    let site = Site::new(4);
    let daemon = site.daemon();
    std::fs::write(site.path("work/mcr.toml"), "jop = \"melt\"\n").expect("written");
    let mut application = site.application(1, 20);
    assert_eq!(site.says(&mut site.job("begin")).0, "");
    let line = daemon.wait_for_log("the job is not saved");
    assert!(line.contains("mcr.toml:1: unknown key") && line.contains("did you mean"), "{line}");
    let (said, _) = site.says(&mut site.job("end"));
    assert!(said.is_empty() || said.contains("exit status 78"), "{said}");
    std::fs::remove_file(site.path("work/mcr.toml")).expect("removed");
    site.says(&mut site.job("begin"));
    daemon.wait_for_log("its work directory has no file mcr.toml");
    assert!(application.try_wait().expect("looked").is_none(), "the application still runs");
    application.kill().and_then(|()| application.wait()).expect("ended");
}

#[test]
fn prolog_and_epilog_end_in_time_and_with_success_if_the_daemon_does_not_answer() {
    let site = Site::new(5);
    for what in ["begin", "end"] {
        let (said, took) = site.says(&mut site.job(what));
        assert!(said.contains("mcr node does not answer") && took < Duration::from_millis(2500), "{took:?}: {said}");
    }
    let daemon = site.daemon();
    daemon.signal("STOP");
    let (said, took) = site.says(&mut site.job("begin"));
    assert!(said.contains("no answer within 2000 ms") && took < Duration::from_millis(2500), "{took:?}: {said}");
    let (said, took) = site.says(site.job("end").args(["--wait", "0"]));
    assert!(said.contains("no answer") && took < Duration::from_millis(2500), "{took:?}: {said}");
    daemon.signal("CONT");
    // Without SLURM's variables the commands say so, and succeed.
    let (said, _) = site.says(site.job("begin").env_remove("SLURM_JOB_UID"));
    assert!(said.contains("SLURM_JOB_UID is not set"), "{said}");
}
