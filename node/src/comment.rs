//! The words for `mcr` in `--comment` of SLURM's `sbatch`. The other words of a comment belong to the site.
//!
//! SLURM passes the comment of a job to Prolog, but not to the processes of the job. So the daemon keeps the words
//! until the job is over, and sends the words to processes of the job's user.

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Beginning of a word for `mcr`.
pub const PREFIX: &str = "mcr:";
/// Maximum length of the words of a job, in bytes.
pub const WORDS_BYTES_MAX: usize = 4096;
/// Maximum number of jobs whose words are kept. SLURM runs no Epilog on a node that SLURM cannot reach, so the words
/// of such a job are not removed at its end.
const KEPT_MAX: usize = 1024;

/// The words for `mcr` in a comment, separated by spaces. Bytes that are not UTF-8 become U+FFFD.
pub fn words_of(comment: &OsStr) -> String {
    let text = comment.to_string_lossy();
    let words: Vec<_> = text.split_ascii_whitespace().filter(|word| word.starts_with(PREFIX)).collect();
    let mut words = words.join(" ");
    // The length of a request is limited, so words that are too long are cut. The cut text is still longer than
    // [`WORDS_BYTES_MAX`], so the daemon refuses the text.
    if let Some(end) = (WORDS_BYTES_MAX + 1..words.len()).find(|at| words.is_char_boundary(*at)) {
        words.truncate(end);
    }
    words
}

/// The words of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Comment {
    /// The job's user. Other users do not see the words.
    pub uid: u32,
    /// The words, see [`words_of`].
    pub words: String,
    /// The work directory of the job.
    pub work_dir: OsString,
}

/// The directory of the words of all jobs on this node, `RUN/comments`. Only the daemon's user can read the
/// directory.
#[derive(Clone, Debug)]
pub struct Comments {
    dir: PathBuf,
}

impl Comments {
    /// Creates the directory, with mode 0700, if it does not exist.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join("comments");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir })
    }

    /// The file of a job. The caller has checked that `job_id` consists of digits.
    fn path(&self, job_id: &str) -> PathBuf {
        self.dir.join(format!("{job_id}.json"))
    }

    /// Keeps the words of a job. If there are too many jobs, the words of the oldest job are removed.
    pub fn put(&self, job_id: &str, comment: &Comment) -> io::Result<()> {
        let path = self.path(job_id);
        let temporary = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(comment)?)?;
        std::fs::rename(temporary, path)?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let mut all: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Another thread may have removed the file.
            let Ok(written) = entry.metadata().and_then(|about| about.modified()) else { continue };
            all.push((written, entry.path()));
        }
        all.sort();
        for (_, path) in all.iter().take(all.len().saturating_sub(KEPT_MAX)) {
            let _ = std::fs::remove_file(path); // the next call tries again
        }
        Ok(())
    }

    /// The words of a job. `None` if the comment of the job has no words for `mcr`.
    pub fn get(&self, job_id: &str) -> Option<Comment> {
        serde_json::from_slice(&std::fs::read(self.path(job_id)).ok()?).ok()
    }

    /// Removes the words of a job.
    pub fn remove(&self, job_id: &str) {
        let _ = std::fs::remove_file(self.path(job_id)); // most jobs have no words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn only_words_that_begin_with_the_prefix_are_for_mcr() {
        for (comment, words) in [
            (&b"mcr:job=melt,watch=out"[..], "mcr:job=melt,watch=out"),
            (b"project=7 mcr:off\tsee mcr.toml \"mcr:job=x\" xmcr:job=y\n", "mcr:off"),
            (b"mcr:job=a\nmcr:watch=\"b\" $(id)", "mcr:job=a mcr:watch=\"b\""),
            (b"mcr:job=\xff", "mcr:job=\u{fffd}"),
            (b"", ""),
            (b"of the site", ""),
        ] {
            assert_eq!(words_of(OsStr::from_bytes(comment)), words, "{comment:?}");
        }
        let long = words_of(OsStr::new(&format!("mcr:job={}", "\u{e4}".repeat(WORDS_BYTES_MAX))));
        assert!((WORDS_BYTES_MAX + 1..WORDS_BYTES_MAX + 4).contains(&long.len()), "{}", long.len());
    }

    #[test]
    fn the_words_of_a_job_are_kept_and_the_number_of_jobs_has_a_bound() {
        let dir = tempfile::tempdir().expect("a directory");
        let comments = Comments::open(dir.path()).expect("made");
        let comment = Comment { uid: 6001, words: "mcr:off".into(), work_dir: OsStr::from_bytes(b"/a\xff").into() };
        comments.put("7", &comment).expect("written");
        assert_eq!(comments.get("7"), Some(comment.clone()));
        comments.remove("7");
        assert_eq!(comments.get("7"), None);
        for job_id in 0..KEPT_MAX + 5 {
            comments.put(&job_id.to_string(), &comment).expect("written");
        }
        assert_eq!(std::fs::read_dir(dir.path().join("comments")).expect("readable").count(), KEPT_MAX);
        assert!(comments.get("0").is_none() && comments.get(&(KEPT_MAX + 4).to_string()).is_some());
    }
}
