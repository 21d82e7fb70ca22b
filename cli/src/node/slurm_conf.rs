//! Reads slurm.conf: `Key=Value` pairs, comments, lines that a backslash joins, and `Include`.

use anyhow::{Context, bail};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum depth of nested `Include` lines.
const DEPTH_MAX: u32 = 8;
/// Maximum size of slurm.conf and all included files together.
const SIZE_MAX_BYTES: u64 = 16 << 20;

/// The values of a slurm.conf.
#[derive(Debug, Default)]
pub struct SlurmConf {
    /// The keys in lower case, and their values, in the order of the lines.
    pairs: Vec<(String, String)>,
    read_bytes: u64,
}

impl SlurmConf {
    /// Reads `file`, and the files that `file` includes.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let mut conf = Self::default();
        conf.add_file(file, 0)?;
        Ok(conf)
    }

    /// All values of a key, in the order of the lines. The case of letters in the key is ignored.
    pub fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        let key = key.to_ascii_lowercase();
        self.pairs.iter().filter(move |(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key. If several lines have the key, the last line counts.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).last()
    }

    fn add_file(&mut self, file: &Path, depth: u32) -> anyhow::Result<()> {
        let text = self.read(file).with_context(|| file.display().to_string())?;
        let directory = file.parent().unwrap_or(Path::new("."));
        for line in whole_lines(&text) {
            let Some(included) = included(&line) else {
                add_pairs(&line, &mut self.pairs);
                continue;
            };
            if depth == DEPTH_MAX {
                bail!("{}: files include each other more than {DEPTH_MAX} times", file.display());
            }
            self.add_file(&directory.join(included), depth + 1)?;
        }
        Ok(())
    }

    fn read(&mut self, file: &Path) -> anyhow::Result<String> {
        // Opening a named pipe must not block.
        let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(file)?;
        if !opened.metadata()?.is_file() {
            bail!("it is not a regular file");
        }
        let mut text = Vec::new();
        opened.take(SIZE_MAX_BYTES + 1 - self.read_bytes).read_to_end(&mut text)?;
        self.read_bytes += text.len() as u64;
        if self.read_bytes > SIZE_MAX_BYTES {
            bail!("slurm.conf and its included files have more than {} MiB", SIZE_MAX_BYTES >> 20);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The lines without comments. A line that ends with a backslash is joined with the next line.
fn whole_lines(text: &str) -> Vec<String> {
    let (mut lines, mut open) = (Vec::new(), String::new());
    for line in text.lines() {
        let line = without_comment(line);
        match line.trim_end().strip_suffix('\\') {
            Some(begin) => open.push_str(begin),
            None => lines.push(std::mem::take(&mut open) + &line),
        }
    }
    lines.push(open);
    lines
}

/// A comment begins with `#`. A backslash before the `#` makes it a part of the value.
fn without_comment(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    for part in line.split_inclusive('#') {
        match part.strip_suffix('#') {
            None => kept.push_str(part),
            Some(before) => match before.strip_suffix('\\') {
                Some(before) => kept.extend([before, "#"]),
                None => {
                    kept.push_str(before);
                    return kept;
                }
            },
        }
    }
    kept
}

/// The file of a line `Include FILE`.
fn included(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let is_include = words.next()?.eq_ignore_ascii_case("include");
    words.next().filter(|_| is_include).filter(|file| !file.starts_with('='))
}

/// Adds the pairs `Key=Value` of a line. A value in quotation marks may contain spaces.
fn add_pairs(line: &str, pairs: &mut Vec<(String, String)>) {
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let Some(after) = after.trim_start().strip_prefix('=') else {
            rest = after.trim_start(); // skips a word without a value
            continue;
        };
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_at(after.find(char::is_whitespace).unwrap_or(after.len())),
        };
        pairs.push((key.to_ascii_lowercase(), value.to_owned()));
        rest = after.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(files: &[(&str, &str)]) -> anyhow::Result<SlurmConf> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        SlurmConf::load(&dir.path().join("slurm.conf"))
    }

    #[test]
    fn keys_have_any_case_and_values_may_be_quoted_continued_and_commented() {
        let text = "# PrologFlags=None\n\
                    PROLOGFLAGS = Alloc,X11 # a comment \\\n\
                    Epilog=\"/etc/with space/*\" prologepilogtimeout=60\n\
                    NodeName=n[1-4] \\\n  CPUs=2 \\\n\tState=UNKNOWN\n\
                    TaskProlog=/a\\#b#c\r\n\
                    Prolog=/one\nProlog=/two\nword\n";
        let conf = load(&[("slurm.conf", text)]).expect("read");
        for (key, value) in [
            ("PrologFlags", "Alloc,X11"),
            ("Epilog", "/etc/with space/*"),
            ("PrologEpilogTimeout", "60"),
            ("CPUs", "2"),
            ("State", "UNKNOWN"),
            ("TaskProlog", "/a#b"),
            ("Prolog", "/two"),
        ] {
            assert_eq!(conf.value(key), Some(value), "{key}");
        }
        assert_eq!(conf.values("prolog").collect::<Vec<_>>(), ["/one", "/two"]);
        assert_eq!(conf.value("word"), None);
    }

    #[test]
    fn included_files_are_read_at_their_place_from_the_directory_of_the_file() {
        let files = [
            ("slurm.conf", "Prolog=/one\ninclude more.conf # nodes\nPrologFlags=Alloc\n"),
            ("more.conf", "Prolog=/two\nPrologFlags=None\n"),
        ];
        let conf = load(&files).expect("read");
        assert_eq!(conf.values("Prolog").collect::<Vec<_>>(), ["/one", "/two"]);
        assert_eq!(conf.value("PrologFlags"), Some("Alloc"));
    }

    #[test]
    fn files_that_include_themselves_are_missing_or_are_too_large_are_refused() {
        let refusal = |text: &str| format!("{:#}", load(&[("slurm.conf", text)]).map(drop).expect_err("refused"));
        assert!(refusal("Include slurm.conf\n").contains("include each other more than 8 times"));
        assert!(refusal("Include missing.conf\n").contains("missing.conf: No such file"));
        assert!(refusal("Include /dev\n").contains("not a regular file"));
        assert!(refusal(&"#".repeat(17 << 20)).contains("more than 16 MiB"));
    }

    #[test]
    fn the_end_of_a_line_is_read_even_if_it_is_the_end_of_the_file() {
        for text in ["Prolog=/one", "Prolog=/one\\", "Prolog=\"/one", "A=\nProlog=/one \\\n"] {
            assert_eq!(load(&[("slurm.conf", text)]).expect("read").value("Prolog"), Some("/one"), "{text}");
        }
        assert_eq!(load(&[("slurm.conf", "")]).expect("read").value("Prolog"), None);
    }
}
