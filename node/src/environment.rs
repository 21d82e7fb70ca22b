//! The environment of a job's own processes, which has more variables than Prolog's environment.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// Maximum length of an environment that is read, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// SLURM sets this variable for Prolog, Epilog and similar scripts, whose environment has less than the job's.
const SCRIPT_CONTEXT: &str = "SLURM_SCRIPT_CONTEXT";

/// The variables of a process of the job, if any process of this user has `SLURM_JOB_ID` with this value. Variables
/// that are not UTF-8 are left out.
pub fn of_job(job_id: &str) -> Option<BTreeMap<String, String>> {
    let own = nix::unistd::geteuid().as_raw();
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).find_map(|pid| {
        let is_own = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|about| about.uid() == own);
        let variables = is_own.then(|| variables_of(pid)).flatten()?;
        let is_of_job = variables.get("SLURM_JOB_ID").map(String::as_str) == Some(job_id);
        (is_of_job && !variables.contains_key(SCRIPT_CONTEXT)).then_some(variables)
    })
}

fn variables_of(pid: u32) -> Option<BTreeMap<String, String>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let variable = |text: &[u8]| {
        let (name, value) = std::str::from_utf8(text).ok()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    Some(bytes.split(|b| *b == 0).filter_map(variable).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_variables_of_a_job_are_those_of_a_process_of_the_same_user() {
        let id = format!("9{}", std::process::id());
        assert_eq!(of_job(&id), None);
        let mut child = Command::new("sleep").arg("600").env("SLURM_JOB_ID", &id).env("PART", "a b\nc").spawn();
        let found = of_job(&id).expect("the process runs");
        assert_eq!(found.get("PART").map(String::as_str), Some("a b\nc"));
        let child = child.as_mut().expect("started");
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(of_job(&id), None);
    }
}
