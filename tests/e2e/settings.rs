//! Tests that commands without options find the settings of the job in `mcr.toml` and in the cluster's file.

use crate::support::*;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The directory of a job, with the user's file and a cluster's file.
struct Site {
    dir: TempDir,
}

impl Site {
    fn new(cluster: &str, user: &str) -> Self {
        let site = Self { dir: tempfile::tempdir().expect("a directory") };
        for name in ["work", "lustre"] {
            std::fs::create_dir(site.path(name)).expect("made");
        }
        make_store(&site.path("lustre/store"));
        let cluster = cluster.replace("LUSTRE", site.path("lustre").to_str().expect("UTF-8"));
        std::fs::write(site.path("cluster.toml"), cluster).expect("written");
        std::fs::write(site.path("work/mcr.toml"), user).expect("written");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `mcr` in the directory of the job.
    fn mcr(&self, args: &[&str]) -> Command {
        let mut command = mcr();
        command.args(args).current_dir(self.path("work"));
        command.env("MCR_CLUSTER", self.path("cluster.toml")).env("XDG_STATE_HOME", self.path("state"));
        command
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_slice(&run(&mut self.mcr(args), 0).stdout).expect("JSON")
    }

    fn refusal(&self, args: &[&str]) -> String {
        // systemd does not restart a daemon that ended with exit status 78.
        let expected = if ["run", "cnc"].contains(&args[0]) { 78 } else { 1 };
        String::from_utf8(run(&mut self.mcr(args), expected).stderr).expect("UTF-8")
    }
}

const CLUSTER: &str = "[anc]\nstore = \"LUSTRE/store\"\nthreads = 1\n\
                       [limits]\nstore = [\"LUSTRE/*\"]\nprofile = [\"fast\", \"balanced\"]\n";
const FOUR_LINES: &str = "job = \"melt\"\nwatch = \"out\"\nlayout = \"{checkpoint}/rank_{rank}.dat\"\nkeep = 2\n";
const APPLICATION: &str = "for step in 1 2 3; do mkdir -p out/it_$step; \
                           for rank in 0 1; do echo $step $rank > out/it_$step/rank_$rank.dat; done; sleep 1.2; done";

#[test]
fn four_lines_beside_the_job_script_are_enough_to_save_and_to_restart() {
    let site = Site::new(CLUSTER, FOUR_LINES);
    std::fs::create_dir(site.path("work/out")).expect("made");
    // At the first start of a job, there is no store. The parent directory belongs to the user, so the store is
    // created.
    std::fs::remove_dir(site.path("lustre/store")).expect("removed");
    run(&mut site.mcr(&["restart"]), 3);
    run(&mut site.mcr(&["run", "--ranks", "2", "--", "sh", "-c", APPLICATION]), 0);
    std::fs::remove_dir_all(site.path("work/out")).expect("removed");
    run(&mut site.mcr(&["restart"]), 0);
    assert_eq!(std::fs::read_to_string(site.path("work/out/it_3/rank_1.dat")).expect("restored"), "3 1\n");
    let list = site.json(&["list", "--json"]);
    let names: Vec<_> =
        list["checkpoints"].as_array().expect("a list").iter().map(|c| c["checkpoint"].as_str()).collect();
    assert_eq!(names, [Some("it_3"), Some("it_2")], "keep = 2 removed the oldest");
    run(&mut site.mcr(&["verify", "it_3"]), 0);
    // Options and variables override the files.
    std::fs::create_dir(site.path("other")).expect("made");
    let other = site.path("other");
    run(site.mcr(&["restart", "--copy"]).arg("--to").arg(&other), 0);
    assert!(other.join("it_3/rank_0.dat").exists());
    run(site.mcr(&["restart", "--to", "none"]).env("MCR_JOB", "another"), 3);
}

#[test]
fn job_show_prints_each_value_and_where_it_comes_from() {
    let site = Site::new(CLUSTER, "watch = \"run_${PART}/%a\"\nprofile = \"balanced\"\n");
    let mut show = site.mcr(&["job", "show", "--json"]);
    show.env("SLURM_JOB_ID", "17").env("SLURM_ARRAY_TASK_ID", "3").env("PART", "b");
    let shown: serde_json::Value = serde_json::from_slice(&run(&mut show, 0).stdout).expect("JSON");
    let of = |key: &str, what: &str| shown["settings"][key][what].as_str().unwrap_or_default().to_owned();
    assert!(of("job", "value").ends_with("-17") && of("job", "from") == "default", "{shown}");
    assert_eq!(of("watch", "value"), site.path("work/run_b/3").display().to_string());
    assert!(of("store", "from").ends_with("cluster.toml") && of("profile", "from").ends_with("work/mcr.toml"));
    assert_eq!(of("aggregator-places", "value"), "nodes of the job");
    let gates = "[cnc]\nbudget-mib = 70\n[anc]\nbudget-mib = 300\n[node]\ngates = [\"agg0:7117\"]\n";
    let other = Site::new(gates, "job = \"melt\"\n").json(&["job", "show", "--json"]);
    let other = &other["settings"];
    assert_eq!(other["aggregator-places"]["value"], "gates: agg0:7117");
    assert_eq!((&other["cnc.budget-mib"]["value"], &other["anc.budget-mib"]["value"]), (&70.into(), &300.into()));
    // A variable that is not set is an error.
    let said = site.refusal(&["job", "show"]);
    assert!(said.contains("mcr.toml: watch = ") && said.contains("the variable PART is not set"), "{said}");
}

#[test]
fn a_file_of_the_user_that_cannot_be_used_is_named_with_its_line_and_the_command_ends() {
    let site = Site::new(CLUSTER, "jop = \"melt\"\n");
    for args in [&["list"][..], &["restart"], &["job", "show"], &["run", "--", "true"]] {
        let said = site.refusal(args);
        assert!(said.contains("mcr.toml:1: unknown key \"jop\"") && said.contains("did you mean \"job\"?"), "{said}");
    }
    std::fs::write(site.path("work/mcr.toml"), "profile = \"max\"\n").expect("written");
    let said = site.refusal(&["list"]);
    assert!(said.contains("profile = \"max\", but the cluster's file permits only [\"fast\", \"balanced\"]"), "{said}");
    std::fs::remove_file(site.path("work/mcr.toml")).expect("removed");
    run(Command::new("mkfifo").arg(site.path("work/mcr.toml")), 0);
    let said = site.refusal(&["list"]);
    assert!(said.contains("it is not a regular file"), "{said}");
    let said = site.refusal(&["cnc", "--config", "mcr.toml"]);
    assert!(said.contains("it is not a regular file"), "{said}");
    // If a command line names the store, the command does not read the unusable `mcr.toml`.
    run(site.mcr(&["list", "--store"]).arg(site.path("lustre/store")), 0);
}

#[test]
fn a_wrong_value_of_the_job_is_named_with_its_line_by_mcr_job_show_and_by_mcr_run() {
    for (line, expected) in [
        ("keep = \"three\"", "mcr.toml:2: keep: the value is the text \"three\""),
        ("group-size = 0", "mcr.toml:2: group-size is 0; it must be "),
        ("scheme = \"awre\"", "did you mean \"aware\"?"),
    ] {
        let site = Site::new(CLUSTER, &format!("job = \"melt\"\n{line}\n"));
        for args in [&["job", "show"][..], &["run", "--", "true"]] {
            let said = site.refusal(args);
            assert!(said.contains(expected), "{args:?}: {said}");
        }
    }
    let said = Site::new(CLUSTER, "job = \"a/b\"\n").refusal(&["list"]);
    assert!(said.contains("mcr.toml:1: job is \"a/b\"") && !said.contains("--job"), "{said}");
}

#[test]
fn a_store_that_is_gone_or_that_no_file_names_is_not_created_again() {
    let site = Site::new(CLUSTER, FOUR_LINES);
    std::fs::create_dir(site.path("work/out")).expect("made");
    run(&mut site.mcr(&["run", "--", "sh", "-c", APPLICATION]), 0);
    // The file system of the store is not mounted.
    let store = site.path("lustre/store");
    std::fs::rename(&store, site.path("elsewhere")).expect("renamed");
    for args in [&["restart"][..], &["list"], &["run", "--", "true"]] {
        let said = String::from_utf8(run(&mut site.mcr(args), 1).stderr).expect("UTF-8");
        assert!(said.contains("no store at ") && !store.exists(), "{args:?}: {said}");
    }
    std::fs::rename(site.path("elsewhere"), &store).expect("renamed");
    let other = site.path("lustre/other");
    for variable in [false, true] {
        let mut command = match variable {
            true => site.mcr(&["run", "--", "true"]),
            false => site.mcr(&["run", "--store", other.to_str().expect("UTF-8"), "--", "true"]),
        };
        if variable {
            command.env("MCR_STORE", &other);
        }
        run(&mut command, 1);
        assert!(!other.exists());
    }
}
