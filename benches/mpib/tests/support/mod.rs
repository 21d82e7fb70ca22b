//! Starts ranks and waits for them with a time limit.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const MPIB: &str = env!("CARGO_BIN_EXE_mpib");

/// Time limit in seconds: long enough for a loaded machine with two cores.
const DEADLINE_S: &str = "240";

/// Runs a program with the time limit. At the time limit, mpirun gets a signal first, and then all processes are
/// killed.
pub fn bounded(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=20", DEADLINE_S, program]);
    command
}

/// mpirun with more ranks than cores. The ranks yield the cores to each other.
pub fn mpirun(ranks: usize) -> Command {
    let mut command = in_ranks(bounded("mpirun"));
    command.args(["--bind-to", "none", "-n", &ranks.to_string()]);
    command
}

/// Variables of Open MPI 4 and 5 that allow more ranks than cores, as in the quick start of the README.
pub const MORE_RANKS_THAN_CORES: [(&str, &str); 3] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// Lets each mpirun that the command starts have more ranks than cores.
pub fn in_ranks(mut command: Command) -> Command {
    command.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_btl_base_warn_component_unused", "0"),
    ]);
    command.envs(MORE_RANKS_THAN_CORES);
    command
}

/// Runs `mpib` with these arguments, separated by spaces.
pub fn mpib(ranks: usize, words: &str) -> Output {
    mpirun(ranks).arg(MPIB).args(words.split_whitespace()).output().expect("timeout(1) runs")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The output of a successful run.
pub fn good(output: Output) -> String {
    assert!(output.status.success(), "{}: {}{}", output.status, stdout(&output), stderr(&output));
    stdout(&output)
}

/// The report of a successful run with `--format json`.
pub fn json(output: Output) -> serde_json::Value {
    let text = good(output);
    // A harmless warning of mpirun may precede the report.
    let from = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[from..]).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub fn example(name: &str) -> PathBuf {
    Path::new(MPIB).with_file_name("examples").join(name)
}

/// The path of `mcr`: from the environment variable MCR, or the file that the workspace builds. If there is no file,
/// prints a message and returns `None`.
pub fn mcr() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("MCR") {
        return Some(path.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let built = ["release", "debug"].map(|profile| target.join(profile).join("mcr"));
    let newest = built.into_iter().filter_map(|p| Some((p.metadata().ok()?.modified().ok()?, p))).max();
    if newest.is_none() {
        eprintln!("SKIPPED: needs the command mcr (make build, or MCR=/path/to/mcr)");
    }
    newest.map(|(_, path)| path)
}

/// The children of a process, separated by spaces; for a process with one child, this child.
pub fn children(parent: &str) -> String {
    let found = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    found.trim().to_string()
}
