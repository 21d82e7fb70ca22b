//! The facts about the job: the user, SLURM's variables, the words for `mcr` in the job's comment, and the
//! directories where the user's file may be.

use crate::output::tell;
use anyhow::bail;
use mcr_node::client::{RUN_DIR, SOCKET, ask};
use mcr_node::comment::Comment;
use mcr_node::protocol::{Reply, Request};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time to wait for the daemon of the node.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The facts of a job.
pub struct Facts {
    /// Name of the user.
    user: String,
    /// Numeric id of the user.
    uid: u32,
    /// Directories where the user's file is searched, in this order.
    pub directories: Vec<PathBuf>,
    /// The words for `mcr` in the job's comment.
    pub comment: Option<Comment>,
    variables: Variables,
}

type Variables = Box<dyn Fn(&str) -> Option<String>>;

impl Facts {
    /// The facts of the job to which this process belongs.
    pub fn of_this_process() -> Self {
        let uid = nix::unistd::geteuid();
        // If the user has no name, the number is the name.
        let user = nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
        let facts = Self::new(Box::new(|name| std::env::var(name).ok()), user, uid.as_raw());
        Self { comment: facts.kept_comment(), ..facts }
    }

    /// The facts of another job, with the environment of its processes and its work directory.
    pub fn of_job(variables: BTreeMap<String, String>, user: String, uid: u32, work_dir: &Path) -> Self {
        let facts = Self::new(Box::new(move |name| variables.get(name).cloned()), user, uid);
        Self { directories: vec![work_dir.to_owned()], ..facts }
    }

    #[cfg(test)]
    pub fn of(variables: &dyn Fn(&str) -> Option<String>, user: &str, uid: u32) -> Self {
        let names = ["SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_TASK_ID", "PART"];
        let known: Vec<_> = names.map(|name| (name, variables(name))).into();
        let variables = move |name: &str| known.iter().find(|(known, _)| *known == name).and_then(|(_, v)| v.clone());
        Self::new(Box::new(variables), user.to_owned(), uid)
    }

    fn new(variables: Variables, user: String, uid: u32) -> Self {
        let mut facts = Self { user, uid, directories: Vec::new(), comment: None, variables };
        let submitted = facts.variable("SLURM_SUBMIT_DIR").filter(|_| facts.is_job()).map(PathBuf::from);
        facts.directories = std::env::current_dir().ok().into_iter().chain(submitted).collect();
        facts
    }

    /// The words `mcr:...` of the job's comment, which the daemon of this node keeps. SLURM does not pass the comment
    /// of a job to the processes of the job.
    fn kept_comment(&self) -> Option<Comment> {
        let job_id = self.variable("SLURM_JOB_ID")?;
        let socket = PathBuf::from(self.variable("MCR_RUN_DIR").unwrap_or_else(|| RUN_DIR.to_owned())).join(SOCKET);
        if !socket.exists() {
            return None;
        }
        match ask(&socket, &Request::Comment { job_id }, ANSWER_MAX) {
            Ok(Reply::Comment(comment)) => comment,
            Ok(_) => None, // a daemon of an older version, which keeps no comments
            Err(error) => {
                tell(format!("mcr node does not answer ({error}), so a --comment of this job is not known"));
                None
            }
        }
    }

    /// Whether the job is a job of SLURM.
    pub fn is_job(&self) -> bool {
        self.variable("SLURM_JOB_ID").is_some()
    }

    /// A variable of the job's environment that is not empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name).filter(|value| !value.is_empty())
    }

    /// The first directory where the user's file may be.
    pub fn directory(&self) -> PathBuf {
        self.directories.first().cloned().unwrap_or_else(|| ".".into())
    }

    /// Replaces variables. As in SLURM's file names, `%u` is the user's name, `%U` the user's uid, `%j` the job id, `%A`
    /// the id of a job array, `%a` the index in the array, and `%x` the job's name. `%%` is a
    /// percent sign. `${NAME}` is a variable of the environment. Variables inside the values are not replaced.
    pub fn expand(&self, text: &str) -> anyhow::Result<String> {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(at) = rest.find(['%', '$']) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let (value, len) = match rest.as_bytes() {
                [b'%', b'%', ..] => ("%".to_owned(), 2),
                [b'%', b'u', ..] => (self.user.clone(), 2),
                [b'%', b'U', ..] => (self.uid.to_string(), 2),
                [b'%', b'j', ..] => (self.slurm("%j", &["SLURM_JOB_ID"])?, 2),
                [b'%', b'a', ..] => (self.slurm("%a", &["SLURM_ARRAY_TASK_ID"])?, 2),
                [b'%', b'A', ..] => (self.slurm("%A", &["SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID"])?, 2),
                [b'%', b'x', ..] => (self.slurm("%x", &["SLURM_JOB_NAME"])?, 2),
                [b'$', b'{', ..] if rest.contains('}') => {
                    let end = rest.find('}').unwrap_or(rest.len() - 1);
                    let name = &rest[2..end];
                    let Some(value) = self.variable(name) else {
                        bail!("the variable {name} is not set in this environment, or is empty");
                    };
                    (value, end + 1)
                }
                [b'$', ..] => ("$".to_owned(), 1),
                _ => bail!("a percent sign must be followed by u, U, j, a, A, x or another percent sign"),
            };
            out.push_str(&value);
            rest = &rest[len..];
        }
        out.push_str(rest);
        Ok(out)
    }

    /// The value of the first variable in `names` that is set. In a job that is no array, `%A` is the job's number.
    fn slurm(&self, what: &str, names: &[&str]) -> anyhow::Result<String> {
        match names.iter().find_map(|name| self.variable(name)) {
            Some(value) => Ok(value),
            None => bail!("{what} is known only within a job of SLURM ({} is not set)", names[0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_once_and_unknown_ones_are_refused() {
        let variable = |name: &str| match name {
            "SLURM_JOB_ID" => Some("7".to_owned()),
            "SLURM_JOB_NAME" => Some("%u ${PART}".to_owned()),
            "PART" => Some("b".to_owned()),
            _ => None,
        };
        let facts = Facts::of(&variable, "alice", 6001);
        for (text, expected) in [
            ("%u-%j", "alice-7"),
            ("100%%_%U", "100%_6001"),
            ("%A/%x", "7/%u ${PART}"),
            ("${PART}${PART}$HOME$", "bb$HOME$"),
            ("", ""),
            ("äß%u", "äßalice"),
        ] {
            assert_eq!(facts.expand(text).expect(text), expected);
        }
        for (text, expected) in [
            ("%a", "SLURM_ARRAY_TASK_ID is not set"),
            ("%z", "must be followed by"),
            ("x%", "must be followed by"),
            ("${NO}", "the variable NO is not set"),
        ] {
            let error = facts.expand(text).map(drop).expect_err(text);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
