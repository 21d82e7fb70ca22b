//! The environment of processes. The environment of a job's own processes has more variables than the environment of
//! SLURM's Prolog.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

/// Maximum length of a process's environment, in bytes.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// SLURM sets this variable for Prolog, Epilog and similar scripts. The environment of these scripts lacks variables
/// of the job.
const SCRIPT_CONTEXT: &str = "SLURM_SCRIPT_CONTEXT";

/// Variables with the rank of an MPI process. Each MPI library sets one of these variables for its processes.
const MPI_RANKS: [&str; 3] = ["PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Programs that `mpirun` starts as one task on each node. These programs start the MPI processes of the node.
const LAUNCHERS: [&str; 3] = ["prted", "orted", "hydra_pmi_proxy"];

/// Variables of `mpirun` with the number of MPI processes.
const MPI_SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The environment variables of a process of the job. `None` if no process of this user has `SLURM_JOB_ID` with the
/// value `job_id`. An MPI process or a process of a step is preferred to the batch script. If the number of MPI
/// processes is known, `SLURM_NTASKS` is set to it. Variables that are not UTF-8 are left out.
pub fn of_job(job_id: &str) -> Option<BTreeMap<String, String>> {
    let has = |variables: &BTreeMap<String, String>, name: &str| variables.contains_key(name);
    let all = processes_of(job_id, own_uid()).map(|(_, variables)| variables);
    let mut variables = all.max_by_key(|v| (MPI_SIZES.iter().any(|name| has(v, name)), has(v, "SLURM_STEP_ID")))?;
    if let Some(size) = MPI_SIZES.iter().find_map(|name| variables.get(*name)).cloned() {
        variables.insert("SLURM_NTASKS".to_owned(), size);
    }
    Some(variables)
}

/// The ranks of the job's processes on this node. `node` is SLURM's name of this node.
///
/// The rank comes from a variable that the MPI library sets. If no process has such a variable, the rank is SLURM's
/// number of the task. The task numbers of the launchers are not ranks.
pub fn ranks_of(job_id: &str, node: &str) -> BTreeSet<u32> {
    let number = |variables: &BTreeMap<String, String>, name: &str| variables.get(name)?.parse::<u32>().ok();
    let (mut of_mpi, mut of_slurm) = (BTreeSet::new(), BTreeSet::new());
    for (pid, variables) in processes_of(job_id, own_uid()) {
        if variables.get("SLURMD_NODENAME").is_some_and(|name| name != node) {
            continue;
        }
        of_mpi.extend(MPI_RANKS.iter().find_map(|name| number(&variables, name)));
        // The batch script has a task number too, but the script belongs to no step.
        let is_launcher = || {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            LAUNCHERS.contains(&name.trim_end())
        };
        if variables.contains_key("SLURM_STEP_ID") && !is_launcher() {
            of_slurm.extend(number(&variables, "SLURM_PROCID"));
        }
    }
    if of_mpi.is_empty() { of_slurm } else { of_mpi }
}

/// Whether a process of this user belongs to the job. Only root sees the processes of other users.
pub fn has_process(job_id: &str, uid: u32) -> bool {
    processes_of(job_id, uid).next().is_some()
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// The process number and the value of the variable `name`, for each process of this user that has the variable. The
/// process that calls is left out.
pub fn with_variable(name: &str) -> Vec<(u32, String)> {
    processes_of_user(own_uid()).filter_map(|(pid, mut variables)| Some((pid, variables.remove(name)?))).collect()
}

/// The process number and the variables of each process of this user that belongs to the job. Prolog, Epilog and
/// similar scripts are left out.
fn processes_of(job_id: &str, uid: u32) -> impl Iterator<Item = (u32, BTreeMap<String, String>)> {
    processes_of_user(uid).filter(move |(_, variables)| {
        let is_of_job = variables.get("SLURM_JOB_ID").map(String::as_str) == Some(job_id);
        is_of_job && !variables.contains_key(SCRIPT_CONTEXT)
    })
}

/// The process number and the variables of each process of this user, except the process that calls.
fn processes_of_user(uid: u32) -> impl Iterator<Item = (u32, BTreeMap<String, String>)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).filter_map(move |pid| {
        let is_of_user = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|about| about.uid() == uid);
        Some((pid, is_of_user.then(|| variables_of(pid)).flatten()?))
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

    #[test]
    fn the_ranks_of_a_node_are_those_that_mpi_gave_or_else_the_numbers_of_the_tasks() {
        let id = format!("8{}", std::process::id());
        let mut children = Vec::new();
        let mut start = |variables: &[(&str, &str)]| {
            let mut command = Command::new("sleep");
            command.arg("600").env("SLURM_JOB_ID", &id).env("SLURMD_NODENAME", "n2");
            // The test itself may run within a SLURM job.
            MPI_RANKS.iter().chain(&["SLURM_STEP_ID", "SLURM_PROCID"]).for_each(|name| {
                command.env_remove(name);
            });
            children.push(command.envs(variables.iter().copied()).spawn().expect("starts"));
        };
        start(&[("SLURM_PROCID", "0")]); // the batch script
        assert_eq!(ranks_of(&id, "n2"), [].into());
        start(&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0")]);
        start(&[("SLURM_PROCID", "7"), ("SLURM_STEP_ID", "0"), ("SLURMD_NODENAME", "n1")]);
        assert_eq!(ranks_of(&id, "n2"), [1].into());
        let dir = tempfile::tempdir().expect("a directory");
        let paths = std::env::var_os("PATH").expect("a path");
        let sleep = std::env::split_paths(&paths).map(|dir| dir.join("sleep")).find(|file| file.is_file());
        std::fs::copy(sleep.expect("sleep"), dir.path().join("prted")).expect("copied");
        let mut launcher = Command::new(dir.path().join("prted"));
        launcher.arg("600").env("SLURM_JOB_ID", &id).env("SLURM_STEP_ID", "0").env("SLURM_PROCID", "3");
        let mut launcher = launcher.env("SLURMD_NODENAME", "n2").spawn().expect("starts");
        assert_eq!(ranks_of(&id, "n2"), [1].into(), "the launcher has no rank");
        launcher.kill().and_then(|()| launcher.wait()).expect("ended");
        start(&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("OMPI_COMM_WORLD_RANK", "4")]);
        start(&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("PMIX_RANK", "5")]);
        assert_eq!(ranks_of(&id, "n2"), [4, 5].into());
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).expect("ended");
        }
        assert_eq!(ranks_of(&id, "n2"), [].into());
    }
}
