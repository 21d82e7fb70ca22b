//! Control groups (version 2): one group for the worker of each job, so that a worker cannot take the memory or the
//! processors of the jobs of its node.
//!
//! ```text
//! mcr-node.service            the group of the daemon's unit, which systemd delegates to the daemon (Delegate=)
//!     daemon/                 the daemon. A group with limits for its children must not have processes itself
//!     job_7/                  the worker of job 7
//! ```
//!
//! If a group cannot be made, the daemon logs a warning, and the job is saved without limits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A limit: the controller, the name of the limit's file, and the value in this file.
type Limit = (&'static str, &'static str, String);

/// Name of the daemon's own group.
const DAEMON: &str = "daemon";
/// systemd runs ExecStopPost= of a delegated unit in this group.
const CONTROL: &str = ".control";
/// Beginning of the name of a job's group. The number of the job follows.
const JOB: &str = "job_";

/// The limits of each worker.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum memory, in MiB. The kernel kills a worker that needs more memory. 0: no limit.
    pub memory_mib: u64,
    /// Weight of a worker if processors are short, from 1 to 10000. The weight of a job is 100.
    pub cpu_weight: u32,
    /// Maximum number of threads.
    pub threads: u32,
}

impl Limits {
    fn files(&self) -> [Limit; 3] {
        let memory = match self.memory_mib {
            0 => "max".to_owned(),
            mib => (mib << 20).to_string(),
        };
        [
            ("memory", "memory.max", memory),
            ("cpu", "cpu.weight", self.cpu_weight.to_string()),
            ("pids", "pids.max", self.threads.to_string()),
        ]
    }
}

/// The reason why workers have no groups.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// The process is in no group of version 2, or in the root group.
    #[error("this process has no control group of version 2 that it may divide")]
    NoGroup,
    /// systemd delegates no controller, or the kernel has none in version 2.
    #[error("the controllers memory, cpu and pids are not delegated to {}", .0.display())]
    NotDelegated(PathBuf),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The groups of the workers on this node.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The group of the daemon's unit.
    base: PathBuf,
    limits: Vec<Limit>,
    /// Controllers that are not delegated.
    missing: Vec<&'static str>,
}

impl Groups {
    /// Divides the group of this process. The process moves to the group `daemon`.
    pub fn of_this_process(limits: &Limits) -> Result<Self, GroupsError> {
        Self::divide(base_of_this_process()?, limits)
    }

    fn divide(base: PathBuf, limits: &Limits) -> Result<Self, GroupsError> {
        let delegated = read(&base.join("cgroup.controllers"))?;
        let is_delegated = |(controller, ..): &Limit| delegated.split_whitespace().any(|name| name == *controller);
        let (limits, missing): (Vec<Limit>, Vec<Limit>) = limits.files().into_iter().partition(is_delegated);
        if limits.is_empty() {
            return Err(GroupsError::NotDelegated(base));
        }
        let groups = Self { base, limits, missing: missing.into_iter().map(|(controller, ..)| controller).collect() };
        let daemon = groups.base.join(DAEMON);
        fs::create_dir(&daemon).or_else(ignore_existing).map_err(of(&daemon))?;
        // The group may also contain workers that an earlier daemon started without groups.
        for pid in read(&groups.base.join("cgroup.procs"))?.split_whitespace() {
            let moved = fs::write(daemon.join("cgroup.procs"), pid);
            if pid == std::process::id().to_string() {
                moved.map_err(of(&daemon.join("cgroup.procs")))?; // another process may have ended
            }
        }
        let control = groups.base.join("cgroup.subtree_control");
        for (controller, ..) in &groups.limits {
            fs::write(&control, format!("+{controller}")).map_err(of(&control))?;
        }
        groups.remove_empty();
        Ok(groups)
    }

    /// Controllers that are not delegated, and whose limits workers do not have.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// Moves the worker of a job into the job's group, even if a limit of the group cannot be set.
    pub fn put(&self, job_id: &str, pid: i32) -> Result<(), GroupsError> {
        let group = self.base.join(format!("{JOB}{job_id}"));
        fs::create_dir(&group).or_else(ignore_existing).map_err(of(&group))?;
        let limits = self.limits.iter().map(|(_, file, value)| (group.join(file), value.clone()));
        let all = limits.chain([(group.join("cgroup.procs"), pid.to_string())]);
        let written: Vec<_> = all.map(|(file, value)| fs::write(&file, value).map_err(of(&file))).collect();
        written.into_iter().collect()
    }

    /// Removes the groups of jobs whose workers have ended. The kernel keeps a group that has a process.
    pub fn remove_empty(&self) {
        for entry in fs::read_dir(&self.base).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(JOB.as_bytes()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Removes the limits from the groups of workers. The next daemon sets the limits again. With limits, systemd cannot
/// start a process in the unit's group, because a group with limits for its children must not contain processes.
pub fn release() -> Result<(), GroupsError> {
    release_at(&base_of_this_process()?)
}

fn release_at(base: &Path) -> Result<(), GroupsError> {
    let control = base.join("cgroup.subtree_control");
    for controller in read(&control)?.split_whitespace() {
        fs::write(&control, format!("-{controller}")).map_err(of(&control))?;
    }
    Ok(())
}

fn base_of_this_process() -> Result<PathBuf, GroupsError> {
    let (groups, mounts) = (read(Path::new("/proc/self/cgroup"))?, read(Path::new("/proc/self/mountinfo"))?);
    base_of(&groups, &mounts).ok_or(GroupsError::NoGroup)
}

/// The directory of the unit's group: `groups` is the content of `/proc/self/cgroup`, and `mounts` of
/// `/proc/self/mountinfo`.
fn base_of(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    let is_part = own.file_name().is_some_and(|name| name == DAEMON || name == CONTROL);
    let unit = if is_part { own.parent()? } else { own };
    // ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS ... - TYPE SOURCE OPTIONS
    let mount =
        mounts.lines().find(|line| line.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("cgroup2 ")))?;
    let mut fields = mount.split(' ').skip(3);
    let (root, mount_point) = (fields.next()?, fields.next()?);
    let below = unit.strip_prefix(root).ok()?;
    (below != Path::new("")).then(|| Path::new(mount_point).join(below))
}

fn read(path: &Path) -> Result<String, GroupsError> {
    fs::read_to_string(path).map_err(of(path))
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> GroupsError {
    let path = path.to_owned();
    move |source| GroupsError::File { path, source }
}

fn ignore_existing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const LIMITS: Limits = Limits { memory_mib: 100, cpu_weight: 20, threads: 300 };

    /// A directory that stands for the group of a unit. The kernel would make the files.
    pub(crate) fn unit(controllers: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let own = format!("1\n{}\n", std::process::id());
        for (name, text) in
            [("cgroup.controllers", controllers), ("cgroup.procs", &own), ("cgroup.subtree_control", "")]
        {
            fs::write(dir.path().join(name), text).expect("written");
        }
        dir
    }

    pub(crate) fn groups(unit: &tempfile::TempDir) -> Groups {
        Groups::divide(unit.path().to_owned(), &LIMITS).expect("divided")
    }

    fn text(unit: &tempfile::TempDir, name: &str) -> String {
        fs::read_to_string(unit.path().join(name)).expect(name)
    }

    #[test]
    fn each_worker_has_a_group_with_limits_and_the_daemon_has_its_own() {
        let unit = unit("cpuset cpu io memory pids\n");
        let groups = groups(&unit);
        assert!(groups.missing().is_empty());
        assert_eq!(text(&unit, "daemon/cgroup.procs"), std::process::id().to_string());
        assert_eq!(text(&unit, "cgroup.subtree_control"), "+pids");
        groups.put("7", 4711).expect("moved");
        for (file, value) in
            [("memory.max", "104857600"), ("cpu.weight", "20"), ("pids.max", "300"), ("cgroup.procs", "4711")]
        {
            assert_eq!(text(&unit, &format!("job_7/{file}")), value);
        }
        groups.put("7", 4712).expect("a worker that is started again moves to the same group");
        // The kernel keeps groups with processes, as this file system keeps directories with files.
        fs::create_dir(unit.path().join("job_8")).expect("made");
        groups.remove_empty();
        assert!(unit.path().join("job_7").exists() && !unit.path().join("job_8").exists());
        assert!(unit.path().join("daemon").exists());
        let unlimited = Limits { memory_mib: 0, ..LIMITS };
        assert_eq!(unlimited.files()[0].2, "max");
    }

    #[test]
    fn only_delegated_controllers_are_used_and_without_them_there_are_no_groups() {
        let some = unit("hugetlb pids");
        let groups = groups(&some);
        assert_eq!(groups.missing(), ["memory", "cpu"]);
        groups.put("7", 4711).expect("moved");
        assert!(!some.path().join("job_7/memory.max").exists() && some.path().join("job_7/pids.max").exists());
        let none = unit("hugetlb");
        let error = Groups::divide(none.path().to_owned(), &LIMITS).map(drop).expect_err("none").to_string();
        assert!(error.starts_with("the controllers memory, cpu and pids are not delegated to /"), "{error}");
        assert!(!none.path().join("daemon").exists(), "nothing is changed");
    }

    #[test]
    fn a_limit_that_cannot_be_set_does_not_keep_the_worker_out_of_its_group() {
        let unit = unit("memory pids");
        let groups = groups(&unit);
        fs::create_dir_all(unit.path().join("job_7/memory.max")).expect("made");
        let error = groups.put("7", 4711).expect_err("a limit is missing").to_string();
        assert!(error.ends_with("job_7/memory.max"), "{error}");
        assert_eq!(text(&unit, "job_7/cgroup.procs"), "4711");
    }

    #[test]
    fn controllers_are_released_so_that_systemd_can_start_the_daemon_again() {
        let unit = unit("memory pids");
        fs::write(unit.path().join("cgroup.subtree_control"), "memory pids\n").expect("written");
        release_at(unit.path()).expect("released");
        assert_eq!(text(&unit, "cgroup.subtree_control"), "-pids");
    }

    #[test]
    fn the_group_of_the_unit_is_found_in_proc() {
        let mounts =
            "21 1 0:5 / /proc rw - proc proc rw\n22 1 0:6 /a /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 c rw\n";
        for (group, expected) in [
            ("9:memory:/x\n0::/a/s.slice/mcr-node.service\n", Some("/sys/fs/cgroup/s.slice/mcr-node.service")),
            ("0::/a/s.slice/mcr-node.service/daemon\n", Some("/sys/fs/cgroup/s.slice/mcr-node.service")),
            ("0::/a/s.slice/mcr-node.service/.control\n", Some("/sys/fs/cgroup/s.slice/mcr-node.service")),
            ("0::/a\n", None),
            ("0::/b/c\n", None),
            ("9:memory:/x\n", None),
        ] {
            assert_eq!(base_of(group, mounts), expected.map(PathBuf::from), "{group}");
        }
        assert_eq!(base_of("0::/x\n", "21 1 0:5 / /proc rw - proc proc rw\n"), None);
    }
}
