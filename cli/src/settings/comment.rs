//! The words for `mcr` in `--comment` of SLURM's `sbatch`: `mcr:job=NAME,watch=DIR` or `mcr:off`.

use anyhow::bail;
use mcr_cnc::config::nearest;
use mcr_node::comment::PREFIX;

/// All keys.
const KEYS: [&str; 3] = ["job", "watch", "off"];

/// Source of the values, for messages.
pub const COMMENT: &str = "--comment";

/// The values of the words of a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobComment {
    /// Name of the job.
    pub job: Option<String>,
    /// The watched directory.
    pub watch: Option<String>,
    /// `mcr node` does not save the job.
    pub is_off: bool,
}

impl JobComment {
    /// Parses words, which are separated by spaces. A value ends at a comma, and cannot be quoted. Each key may be
    /// given only once.
    pub fn parse(words: &str) -> anyhow::Result<Self> {
        let mut comment = Self::default();
        for word in words.split_ascii_whitespace() {
            let keys = word.strip_prefix(PREFIX).unwrap_or(word);
            if word.contains(char::REPLACEMENT_CHARACTER) {
                bail!("{COMMENT}: {word:?} is not UTF-8");
            }
            for part in keys.split(',') {
                let (key, value) = match part.split_once('=') {
                    Some((key, value)) => (key, Some(value)),
                    None => (part, None),
                };
                let is_new = match (key, value.filter(|value| !value.is_empty())) {
                    ("job", Some(value)) => comment.job.replace(value.to_owned()).is_none(),
                    ("watch", Some(value)) => comment.watch.replace(value.to_owned()).is_none(),
                    ("off", None) if value.is_none() => !std::mem::replace(&mut comment.is_off, true),
                    ("job" | "watch", None) => bail!("{COMMENT}: {key} needs a value, as in {PREFIX}{key}=NAME"),
                    ("off", _) => bail!("{COMMENT}: off has no value; write {PREFIX}off"),
                    _ => {
                        let known: Vec<String> = KEYS.map(str::to_owned).into();
                        let the = nearest(key, &known)
                            .map_or_else(|| "the".to_owned(), |near| format!("did you mean {near:?}? The"));
                        bail!("{COMMENT}: unknown key {key:?}; {the} keys are {}", KEYS.join(", "));
                    }
                };
                if !is_new {
                    bail!("{COMMENT}: {key} is given twice");
                }
            }
        }
        Ok(comment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_comment_set_their_own_keys_and_everything_else_is_refused() {
        let comment = |job: Option<&str>, watch: Option<&str>, is_off| JobComment {
            job: job.map(str::to_owned),
            watch: watch.map(str::to_owned),
            is_off,
        };
        for (words, expected) in [
            ("", comment(None, None, false)),
            ("mcr:job=melt,watch=out", comment(Some("melt"), Some("out"), false)),
            ("mcr:watch=a=b mcr:off", comment(None, Some("a=b"), true)),
            ("mcr:job=\"x\"$(id)`id`;", comment(Some("\"x\"$(id)`id`;"), None, false)),
        ] {
            assert_eq!(JobComment::parse(words).expect(words), expected);
        }
        for (words, expected) in [
            ("mcr:", "unknown key \"\"; the keys are job, watch, off"),
            ("mcr:jop=x", "did you mean \"job\"?"),
            ("mcr:store=/bob", "unknown key \"store\""),
            ("mcr:job", "job needs a value, as in mcr:job=NAME"),
            ("mcr:watch=", "watch needs a value"),
            ("mcr:off=no", "off has no value"),
            ("mcr:off=", "off has no value"),
            ("mcr:job=a,job=b", "job is given twice"),
            ("mcr:off mcr:off", "off is given twice"),
            ("mcr:job=\u{fffd}", "is not UTF-8"),
        ] {
            let error = JobComment::parse(words).expect_err(words).to_string();
            assert!(error.starts_with("--comment: ") && error.contains(expected), "{words}: {error}");
        }
    }
}
