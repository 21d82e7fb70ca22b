//! The records of the jobs on this node. The records outlive the daemon, and only the daemon's user can write
//! records.

use crate::facts::JobFacts;
use crate::process::Process;
use crate::protocol::{Places, Standing, StateFile};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A job and its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Record {
    /// The job.
    pub facts: JobFacts,
    /// The aggregator of a job that runs on other nodes. In this case, `facts` has only the name of the record and
    /// the user. `None`: a job of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// The worker. `None` before the worker is started.
    pub worker: Option<Process>,
    /// Whether the job is over. A worker first installs its handler for SIGUSR1 and then reads this field, so it
    /// misses no change.
    pub is_over: bool,
    /// Where the aggregators of the job run, if the worker has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// The state file of the job's agent, if the worker has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_file: Option<StateFile>,
}

/// The directory of the records, `RUN/jobs`.
#[derive(Clone, Debug)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the directory, and creates it with mode 0700 if it does not exist.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join("jobs");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir })
    }

    /// The path of a record. The caller has checked that `job_id` consists of digits, lower-case letters and hyphens.
    pub fn path(&self, job_id: &str) -> PathBuf {
        self.dir.join(format!("{job_id}.json"))
    }

    /// Writes a record atomically.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        let path = self.path(&record.facts.job_id);
        let temporary = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        std::fs::rename(temporary, path)
    }

    /// Removes the record of a job.
    pub fn remove(&self, job_id: &str) {
        let _ = std::fs::remove_file(self.path(job_id)); // if this fails, the next daemon removes the record
    }

    /// Reads a record.
    pub fn read(path: &Path) -> io::Result<Record> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// All records that can be read. Files that are no valid records are removed.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match Self::read(&path) {
                Ok(record) if path == self.path(&record.facts.job_id) => all.push(record),
                _ => std::fs::remove_file(&path)?,
            }
        }
        Ok(all)
    }
}
