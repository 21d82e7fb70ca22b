//! Finds processes of an earlier `mcr run` that still run.
//!
//! If `mcr run` is killed, its application may continue. If the application is then started a second time in the same
//! directory, both write the same files, and no checkpoint of either can be trusted. A variable in the environment of
//! the application names its `mcr run` and the watched directory, so that the next command finds these processes. A
//! restart also finds the application of an `mcr run` that still runs, because it would move files of this run away.

use crate::advice::Advised;
use mcr_cnc::config::real_path;
use mcr_node::environment;
use mcr_node::process::Process;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The variable in the environment of the application. The value has the process number and the start time of
/// `mcr run`, and the watched directory.
pub const VARIABLE: &str = "MCR_RUN_OF";
/// Maximum number of processes that an error names.
const NAMED_MAX: usize = 4;

/// The value of [`VARIABLE`] for the application of this process. `None` if the start time of this process is unknown.
pub fn value(watch: &Path) -> Option<String> {
    let own = Process::of(i32::try_from(std::process::id()).ok()?)?;
    Some(format!("{} {} {}", own.pid, own.started_ticks, real_path(watch)))
}

/// Fails if processes of an earlier `mcr run` may still write below `directory`. `nothing`: what was not done, for the
/// error. `other`: another choice of the user; may be empty.
///
/// A process counts if its `mcr run` watched the directory, a directory above it or a directory below it. Processes
/// that started this command do not count.
pub fn check(directory: &Path, nothing: &str, other: &str) -> Result<(), Advised> {
    let directory = real_path(directory);
    let left = others(|value| is_of_ended_run(value, Path::new(&directory)));
    if left.is_empty() {
        return Ok(());
    }
    let what = format!(
        "processes still run and may write into {directory}, although their mcr run has ended: {}. Files of both runs \
         would mix: {nothing}",
        names_of(&left)
    );
    let pids: Vec<String> = left.iter().map(|(pid, _)| pid.to_string()).collect();
    Err(Advised::new(what, format!("end these processes first: kill {}{other}", pids.join(" "))))
}

/// Fails if the application of an `mcr run` that watches `directory` still runs on this node.
pub fn check_living(directory: &Path) -> Result<(), Advised> {
    let directory = real_path(directory);
    let left =
        others(|value| run_of(value).is_some_and(|(run, watch)| watch == Path::new(&directory) && run.is_alive()));
    let Some((run, _)) = left.first().and_then(|(_, value)| run_of(value)) else { return Ok(()) };
    let what = format!(
        "mcr run (process {}) and its application still run and write into {directory}: {}. A restart would move their \
         newest files away: nothing was restored",
        run.pid,
        names_of(&left)
    );
    let advice =
        format!("end the run first: kill {}, or copy a checkpoint into another directory with --copy", run.pid);
    Err(Advised::new(what, advice))
}

/// The directories that living `mcr run`s with an application watch on this node.
pub fn living_watches() -> BTreeSet<PathBuf> {
    let living = others(|value| run_of(value).is_some_and(|(run, _)| run.is_alive()));
    living.iter().filter_map(|(_, value)| run_of(value)).map(|(_, watch)| watch.to_owned()).collect()
}

/// Processes of this node that an `mcr run` has started, with their [`VARIABLE`]. Processes that started this command
/// do not count.
fn others(is_wanted: impl Fn(&str) -> bool) -> Vec<(u32, String)> {
    let own = std::env::var(VARIABLE).ok();
    let mut found = environment::with_variable(VARIABLE);
    found.retain(|(_, value)| own.as_deref() != Some(value) && is_wanted(value));
    found.sort_unstable();
    found
}

fn names_of(left: &[(u32, String)]) -> String {
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut named: Vec<String> = (left.iter().take(NAMED_MAX))
        .map(|(pid, _)| format!("{pid} ({})", name(*pid).trim_end().escape_default()))
        .collect();
    if left.len() > NAMED_MAX {
        named.push(format!("{} more", left.len() - NAMED_MAX));
    }
    named.join(", ")
}

/// The `mcr run` and the directory that a value of [`VARIABLE`] names.
fn run_of(value: &str) -> Option<(Process, &Path)> {
    let mut parts = value.splitn(3, ' ');
    let (pid, started_ticks) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((Process { pid, started_ticks }, Path::new(parts.next()?)))
}

fn is_of_ended_run(value: &str, directory: &Path) -> bool {
    run_of(value).is_some_and(|(run, watch)| {
        let is_near = watch.starts_with(directory) || directory.starts_with(watch);
        is_near && !run.is_alive()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_an_ended_run_in_the_same_directory_count() {
        let own = value(Path::new("/")).expect("this process runs");
        assert!(!is_of_ended_run(&own, Path::new("/scratch/run")), "{own}: it runs");
        let ended = |watch: &str| format!("{} 0 {watch}", std::process::id()); // an earlier process of this number
        for (watch, directory, counts) in [
            ("/scratch/run", "/scratch/run", true),
            ("/scratch/run/out", "/scratch/run", true),
            ("/scratch", "/scratch/run", true),
            ("/scratch/run 2", "/scratch/run", false),
            ("/scratch/run 2", "/scratch/run 2", true),
        ] {
            assert_eq!(is_of_ended_run(&ended(watch), Path::new(directory)), counts, "{watch} {directory}");
        }
        for malformed in ["", "7", "7 8", "x y /scratch"] {
            assert!(!is_of_ended_run(malformed, Path::new("/scratch")), "{malformed}");
        }
    }
}
