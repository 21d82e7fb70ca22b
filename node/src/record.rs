//! The records of the jobs on this node. The records outlive the daemon, and only the daemon's user can write
//! records.
//!
//! A daemon of another version may have written a record, because an update restarts the daemon while jobs run.
//! Therefore a reader ignores unknown keys, and keeps these keys when it writes the record of the same worker again.
//! A record that cannot be read is kept as long as its worker may run. The types of a record must never refuse unknown
//! keys (`deny_unknown_fields`), and a new key must be optional.

use crate::facts::JobFacts;
use crate::process::Process;
use crate::protocol::{Places, Standing, StateFile};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A job and its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    #[serde(default, deserialize_with = "known_or_none", skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// The state file of the job's agent, if the worker has reported it.
    #[serde(default, deserialize_with = "known_or_none", skip_serializing_if = "Option::is_none")]
    pub state_file: Option<StateFile>,
}

/// Reads a value that this version may not know, such as a new variant. The worker reports such a value again.
fn known_or_none<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The keys that this version writes. Other keys belong to another version.
const KEYS: [&str; 6] = ["facts", "standing", "worker", "is-over", "places", "state-file"];

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

    /// Writes a record atomically. Unknown keys in the previous record of the same worker are kept.
    pub fn put(&self, record: &Record) -> io::Result<()> {
        let path = self.path(&record.facts.job_id);
        let mut value = serde_json::to_value(record)?;
        if let (Value::Object(new), Some(old)) = (&mut value, object_at(&path))
            && new.get("worker") == old.get("worker")
        {
            new.extend(old.into_iter().filter(|(key, _)| !KEYS.contains(&key.as_str())));
        }
        let temporary = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(&value)?)?;
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

    /// All records that can be read. Other files are removed, except records that another version may have written for
    /// a worker that may run.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match Self::read(&path) {
                Ok(record) if path == self.path(&record.facts.job_id) => all.push(record),
                Err(error) if may_be_of_another_version(&path) => {
                    tracing::warn!(
                        record = %path.display(), %error,
                        "the record of a job cannot be read, perhaps because a newer mcr node wrote it: the job is \
                         not known to this daemon"
                    );
                }
                _ => std::fs::remove_file(&path)?,
            }
        }
        Ok(all)
    }
}

/// The JSON object in a file.
fn object_at(path: &Path) -> Option<Map<String, Value>> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Whether a file that cannot be read as a record may be the record of a running worker.
fn may_be_of_another_version(path: &Path) -> bool {
    let Some(object) = object_at(path).filter(|_| path.extension().is_some_and(|end| end == "json")) else {
        return false;
    };
    match object.get("worker") {
        Some(Value::Null) => false, // the worker was never started
        Some(worker) => serde_json::from_value(worker.clone()).map_or(true, |worker: Process| worker.is_alive()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn own() -> Process {
        Process::of(std::process::id() as i32).expect("this process runs")
    }

    fn record(job_id: &str, worker: Option<Process>) -> Record {
        let facts = json!({
            "job-id": job_id, "restart-count": 0, "uid": 1000, "work-dir": {"Unix": [47]}, "node": "n1", "nodes": 1,
            "tasks": null,
        });
        let facts = serde_json::from_value(facts).expect("facts");
        Record { facts, standing: None, worker, is_over: false, places: Some(Places::Here), state_file: None }
    }

    fn with(records: &Records, record: &Record, change: impl FnOnce(&mut Value)) -> PathBuf {
        let mut value = serde_json::to_value(record).expect("JSON");
        change(&mut value);
        let path = records.path(&record.facts.job_id);
        std::fs::write(&path, value.to_string()).expect("written");
        path
    }

    #[test]
    fn a_record_with_keys_of_a_newer_version_is_read_and_the_keys_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opened");
        let of_7 = record("7", Some(own()));
        let path = with(&records, &of_7, |value| {
            value["new-key"] = json!({"a": 1});
            value["facts"]["new-fact"] = json!("x");
            value["worker"]["new-number"] = json!(5);
        });
        assert_eq!(records.all().expect("read"), std::slice::from_ref(&of_7));
        // The same worker: a new value of a known key, and the unknown key stays.
        let path_text = || serde_json::from_slice::<Value>(&std::fs::read(&path).expect("read")).expect("JSON");
        with(&records, &of_7, |value| value["new-key"] = json!(1));
        records.put(&Record { is_over: true, ..of_7.clone() }).expect("written");
        assert_eq!((&path_text()["new-key"], &path_text()["is-over"]), (&json!(1), &json!(true)));
        // Another worker: the key described the previous worker.
        let other = Process { started_ticks: 1, ..own() };
        records.put(&Record { worker: Some(other), ..of_7 }).expect("written");
        assert_eq!(path_text().get("new-key"), None);
    }

    #[test]
    fn an_unknown_place_of_aggregators_is_as_if_the_worker_had_not_reported_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opened");
        let of_7 = record("7", Some(own()));
        with(&records, &of_7, |value| {
            value["places"] = json!({"on-the-moon": ["crater"]});
            value["state-file"] = json!(["two", "files"]);
        });
        assert_eq!(records.all().expect("read"), [Record { places: None, ..of_7 }]);
    }

    #[test]
    fn a_record_without_the_keys_of_this_version_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opened");
        let of_7 = record("7", Some(own()));
        with(&records, &of_7, |value| {
            value
                .as_object_mut()
                .expect("an object")
                .retain(|key, _| ["facts", "worker", "is-over"].contains(&key.as_str()));
        });
        assert_eq!(records.all().expect("read"), [Record { places: None, ..of_7 }]);
    }

    #[test]
    fn a_record_that_cannot_be_read_stays_while_its_worker_may_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let records = Records::open(dir.path()).expect("opened");
        let dead = Process { started_ticks: 1, ..own() };
        let unreadable =
            |job_id: &str, worker| with(&records, &record(job_id, worker), |value| value["is-over"] = json!("perhaps"));
        let [living, of_dead, of_none] =
            [("1", Some(own())), ("2", Some(dead)), ("3", None)].map(|(id, w)| unreadable(id, w));
        let other_form = with(&records, &record("4", Some(own())), |value| value["worker"] = json!("unit-4"));
        let garbage = records.path("5");
        std::fs::write(&garbage, "{\"facts\": ").expect("written");
        assert_eq!(records.all().expect("read"), []);
        let there = |path: &PathBuf| path.exists();
        assert_eq!([&living, &other_form].map(there), [true, true]);
        assert_eq!([&of_dead, &of_none, &garbage].map(there), [false, false, false]);
    }
}
