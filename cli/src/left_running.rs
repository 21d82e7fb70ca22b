//! Finds processes that still run, although their `mcr run` has ended.
//!
//! If `mcr run` is killed, its application may continue. If the application is then started a second time in the same
//! directory, both write the same files, and no checkpoint of either can be trusted. A variable in the environment of
//! the application names its `mcr run` and the watched directory, so that the next command finds these processes.

use crate::advice::Advised;
use mcr_cnc::config::real_path;
use mcr_node::environment;
use mcr_node::process::Process;
use std::path::Path;

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
    let own = std::env::var(VARIABLE).ok();
    let directory = real_path(directory);
    let is_left = |value: &str| own.as_deref() != Some(value) && is_of_ended_run(value, Path::new(&directory));
    let mut left = environment::with_variable(VARIABLE);
    left.retain(|(_, value)| is_left(value));
    left.sort_unstable();
    if left.is_empty() {
        return Ok(());
    }
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut named: Vec<String> = (left.iter().take(NAMED_MAX))
        .map(|(pid, _)| format!("{pid} ({})", name(*pid).trim_end().escape_default()))
        .collect();
    if left.len() > NAMED_MAX {
        named.push(format!("{} more", left.len() - NAMED_MAX));
    }
    let pids: Vec<String> = left.iter().map(|(pid, _)| pid.to_string()).collect();
    let what = format!(
        "processes still run and may write into {directory}, although their mcr run has ended: {}. Files of both runs \
         would mix: {nothing}",
        named.join(", ")
    );
    Err(Advised::new(what, format!("end these processes first: kill {}{other}", pids.join(" "))))
}

fn is_of_ended_run(value: &str, directory: &Path) -> bool {
    let mut parts = value.splitn(3, ' ');
    let (Some(Ok(pid)), Some(Ok(started_ticks)), Some(watch)) =
        (parts.next().map(str::parse), parts.next().map(str::parse), parts.next().map(Path::new))
    else {
        return false;
    };
    let is_near = watch.starts_with(directory) || directory.starts_with(watch);
    is_near && !Process { pid, started_ticks }.is_alive()
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
