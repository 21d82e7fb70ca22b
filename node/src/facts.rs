//! What SLURM's Prolog knows about a job.

use crate::comment::{WORDS_BYTES_MAX, words_of};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::Path;

/// Maximum length of a job number, in digits.
const JOB_ID_DIGITS_MAX: usize = 20;
/// Maximum length of the list of nodes, in bytes.
const NODE_LIST_BYTES_MAX: usize = 32 << 10;
/// Maximum length of the path of a work directory, in bytes (`PATH_MAX`).
const WORK_DIR_BYTES_MAX: usize = 4096;

/// A job on this node, as Prolog's environment describes it. Unknown keys are ignored, because records contain this
/// type, see [`crate::record`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobFacts {
    /// `SLURM_JOB_ID`: a decimal number.
    pub job_id: String,
    /// `SLURM_JOB_RESTART_COUNT`: how often the job was requeued.
    pub restart_count: u32,
    /// `SLURM_JOB_UID`: the user's uid.
    pub uid: u32,
    /// `SLURM_JOB_WORK_DIR`: the directory in which the job runs. The user chooses this path, so it need not be
    /// UTF-8.
    pub work_dir: OsString,
    /// `SLURMD_NODENAME`: SLURM's name of this node.
    pub node: String,
    /// `SLURM_JOB_NUM_NODES`: number of nodes of the job.
    pub nodes: u32,
    /// `SLURM_NODELIST`: the names of the job's nodes, see [`crate::hostlist`]. Empty if the job has one node.
    #[serde(default)]
    pub node_list: String,
    /// `SLURM_JOB_NTASKS`: number of tasks. `None` if the user did not ask for a number of tasks.
    pub tasks: Option<u32>,
    /// The words for `mcr` in `SLURM_JOB_COMMENT`, see [`crate::comment`]. The user wrote this text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// `SLURM_HET_JOB_ID`: the number of the heterogeneous job to which this job belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub het_job_id: Option<String>,
}

/// Why a job is not served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FactsError {
    /// A variable is missing.
    #[error("{0} is not set; this command is for SLURM's Prolog and Epilog")]
    Missing(&'static str),
    /// Each component has a separate Prolog, number and list of nodes, but the ranks of all components form one job.
    #[error(
        "it is a part of the heterogeneous job {0}; mcr node does not save such jobs, so run the agents in its script"
    )]
    Heterogeneous(String),
    /// A variable has an invalid value.
    #[error("{name} is {value:?}; {expected}")]
    Invalid {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable, at most 80 characters.
        value: String,
        /// Description of a valid value.
        expected: &'static str,
    },
}

impl JobFacts {
    /// Reads the variables that SLURM sets for Prolog.
    pub fn of_prolog(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, FactsError> {
        let raw = |name: &'static str| variable(name).ok_or(FactsError::Missing(name));
        let text = |name: &'static str| Ok::<_, FactsError>(raw(name)?.to_string_lossy().into_owned());
        let number = |name: &'static str, value: String| {
            let invalid = || FactsError::Invalid { name, value: shortened(&value), expected: "a number is expected" };
            value.parse::<u32>().map_err(|_| invalid())
        };
        let or = |name: &'static str, default: &str| text(name).unwrap_or_else(|_| default.to_owned());
        Ok(Self {
            job_id: job_id_of(text("SLURM_JOB_ID")?)?,
            restart_count: number("SLURM_JOB_RESTART_COUNT", or("SLURM_JOB_RESTART_COUNT", "0"))?,
            uid: number("SLURM_JOB_UID", text("SLURM_JOB_UID")?)?,
            work_dir: raw("SLURM_JOB_WORK_DIR")?,
            node: text("SLURMD_NODENAME")?,
            nodes: number("SLURM_JOB_NUM_NODES", or("SLURM_JOB_NUM_NODES", "1"))?,
            node_list: text("SLURM_NODELIST").or_else(|_| text("SLURM_JOB_NODELIST")).unwrap_or_default(),
            tasks: text("SLURM_JOB_NTASKS").ok().map(|tasks| number("SLURM_JOB_NTASKS", tasks)).transpose()?,
            comment: variable("SLURM_JOB_COMMENT").map(|comment| words_of(&comment)).unwrap_or_default(),
            het_job_id: text("SLURM_HET_JOB_ID").ok().map(|id| shortened(&id)),
        })
    }

    /// Checks the description of a job that Prolog sent over the socket. Only the daemon calls this function, so the
    /// daemon's log has the reason. SLURM does not log what a successful Prolog prints.
    pub fn check(&self) -> Result<(), FactsError> {
        if let Some(id) = &self.het_job_id {
            return Err(FactsError::Heterogeneous(shortened(id)));
        }
        job_id_of(self.job_id.clone())?;
        if !Path::new(&self.work_dir).is_absolute() || self.work_dir.len() > WORK_DIR_BYTES_MAX {
            let (name, value) = ("SLURM_JOB_WORK_DIR", shortened(&self.work_dir.to_string_lossy()));
            return Err(FactsError::Invalid { name, value, expected: "an absolute path is expected" });
        }
        if self.node_list.len() > NODE_LIST_BYTES_MAX {
            let (name, value) = ("SLURM_NODELIST", shortened(&self.node_list));
            return Err(FactsError::Invalid { name, value, expected: "at most 32768 bytes are expected" });
        }
        if self.comment.len() > WORDS_BYTES_MAX {
            let (name, value) = ("SLURM_JOB_COMMENT", shortened(&self.comment));
            return Err(FactsError::Invalid { name, value, expected: "at most 4096 bytes for mcr are expected" });
        }
        Ok(())
    }
}

/// Checks the number of a job, as SLURM writes it.
pub fn job_id_of(value: String) -> Result<String, FactsError> {
    let is_number = !value.is_empty() && value.len() <= JOB_ID_DIGITS_MAX && value.bytes().all(|b| b.is_ascii_digit());
    match is_number {
        true => Ok(value),
        false => {
            let value = shortened(&value);
            Err(FactsError::Invalid { name: "SLURM_JOB_ID", value, expected: "a number is expected" })
        }
    }
}

fn shortened(value: &str) -> String {
    value.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn of(changes: &[(&str, Option<&[u8]>)]) -> Result<JobFacts, FactsError> {
        let usual: [(&str, &[u8]); 5] = [
            ("SLURM_JOB_ID", b"7"),
            ("SLURM_JOB_UID", b"6001"),
            ("SLURM_JOB_WORK_DIR", b"/home/alice"),
            ("SLURMD_NODENAME", b"n1"),
            ("SLURM_JOB_NUM_NODES", b"4"),
        ];
        let facts = JobFacts::of_prolog(&|name| {
            let changed = changes.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
            let value = changed.unwrap_or_else(|| usual.iter().find(|(n, _)| *n == name).map(|(_, value)| *value));
            value.map(|value| OsString::from_vec(value.to_vec()))
        })?;
        facts.check().map(|()| facts)
    }

    #[test]
    fn prologs_variables_describe_a_job_and_text_of_the_user_is_kept_byte_for_byte() {
        let facts = of(&[]).expect("valid");
        assert_eq!((facts.job_id.as_str(), facts.restart_count, facts.uid, facts.nodes), ("7", 0, 6001, 4));
        for dir in [&b"/home/a b/\"quoted\"\n$(id)"[..], b"/home/\xff\xfe"] {
            let facts = of(&[("SLURM_JOB_WORK_DIR", Some(dir))]).expect("valid");
            let sent = serde_json::to_string(&facts).expect("JSON");
            let back: JobFacts = serde_json::from_str(&sent).expect("JSON");
            assert_eq!(back.work_dir, OsString::from_vec(dir.to_vec()));
        }
        // A daemon of an older version does not know the field.
        assert!(!serde_json::to_string(&facts).expect("JSON").contains("comment"));
        let long = format!("{} mcr:off", "x".repeat(2 * WORDS_BYTES_MAX));
        assert_eq!(of(&[("SLURM_JOB_COMMENT", Some(long.as_bytes()))]).expect("valid").comment, "mcr:off");
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_with_the_name_of_the_variable() {
        let long_word = format!("mcr:job={}", "x".repeat(WORDS_BYTES_MAX));
        for (name, value) in [
            ("SLURM_JOB_ID", Some(&b"../x"[..])),
            ("SLURM_JOB_ID", Some(b"")),
            ("SLURM_JOB_ID", Some(b"123456789012345678901")),
            ("SLURM_JOB_ID", None),
            ("SLURM_JOB_UID", Some(b"-1")),
            ("SLURM_JOB_UID", Some(b"4294967296")),
            ("SLURM_JOB_WORK_DIR", Some(b"relative")),
            ("SLURM_JOB_WORK_DIR", Some(&[b'/'; 5000])),
            ("SLURMD_NODENAME", None),
            ("SLURM_JOB_COMMENT", Some(long_word.as_bytes())),
        ] {
            let error = of(&[(name, value)]).expect_err(name).to_string();
            assert!(error.starts_with(name) && error.len() < 200, "{error}");
        }
        let error = of(&[("SLURM_HET_JOB_ID", Some(b"6"))]).expect_err("a component").to_string();
        assert!(error.starts_with("it is a part of the heterogeneous job 6; "), "{error}");
    }
}
