//! The state that an agent needs after its own restart: the last committed checkpoint, and the fingerprints of
//! committed files.
//!
//! The state file is a text file: one line of JSON, then the BLAKE3 digest of that line. The file is written under a
//! temporary name, synced and renamed. If the file is missing or empty, the agent starts as in a new run. If the file
//! is damaged, the agent logs a warning and starts as in a new run. The only consequence is that the agent reads the
//! files again.

use crate::fingerprint::Fingerprint;
use mcrengine::ids::{CheckpointId, Digest, FilePath, JobId};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The past of a job, as recorded by an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// The newest committed checkpoint.
    pub committed: Option<CheckpointId>,
    /// The committed files, with their fingerprints at the commit.
    pub files: BTreeMap<FilePath, Fingerprint>,
}

/// The result of reading a state file.
#[derive(Debug, PartialEq, Eq)]
pub enum Loaded {
    /// The file does not exist, is empty, or belongs to another job. The agent starts as in a new run.
    New,
    /// The state of this job.
    Found(AgentState),
    /// The file cannot be used. The text is the reason. The caller logs the reason and continues as for
    /// [`Loaded::New`].
    Damaged(String),
}

/// The agent's state could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: the agent's state cannot be written; correct \"state-file\" in [cnc], or free disk space", path.display())]
pub struct StateError {
    /// The state file.
    path: PathBuf,
    /// The error of the operating system.
    source: io::Error,
}

/// Version of the format. A file with another version is read as [`Loaded::Damaged`].
const VERSION: u32 = 1;
/// Maximum length of a state file, in bytes. A longer file counts as damaged.
const STATE_BYTES_MAX: u64 = 1 << 30;

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    job: JobId,
    committed: Option<CheckpointId>,
    files: Vec<WrittenFile>,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    /// The path. A backslash and each byte that is not printable ASCII are written as `\xNN`, because a path need not
    /// be UTF-8.
    path: String,
    was: Fingerprint,
}

impl AgentState {
    /// Reads the state of a job.
    pub fn load(path: &Path, job: &JobId) -> Loaded {
        let damaged = |why: &str| Loaded::Damaged(format!("{}: {why}; starting as in a new run", path.display()));
        let written: Written = match get(path) {
            Ok(Some(written)) => written,
            Ok(None) => return Loaded::New,
            Err(why) => return damaged(&why),
        };
        if written.version != VERSION {
            return damaged(&format!(
                "the file has version {}, and this program reads version {VERSION}",
                written.version
            ));
        }
        if written.job != *job {
            return Loaded::New;
        }
        let file = |file: WrittenFile| Some((FilePath::new(unescape(&file.path)?).ok()?, file.was));
        match written.files.into_iter().map(file).collect() {
            Some(files) => Loaded::Found(Self { committed: written.committed, files }),
            None => damaged("the file contains an invalid path"),
        }
    }

    /// Writes the state of a job without the files in `except`. Creates the directory of the file if necessary. The old
    /// file is replaced atomically.
    pub fn save(&self, path: &Path, job: &JobId, except: &BTreeSet<&FilePath>) -> Result<(), StateError> {
        let files = self
            .files
            .iter()
            .filter(|(path, _)| !except.contains(path))
            .map(|(path, was)| WrittenFile { path: escape(path.as_bytes()), was: *was });
        let (committed, files) = (self.committed.clone(), files.collect());
        let written = Written { version: VERSION, job: job.clone(), committed, files };
        put(path, &written).map_err(|source| StateError { path: path.to_owned(), source })
    }

    /// Whether the file is committed with the content that the fingerprint `is` identifies.
    pub fn is_committed(&self, path: &FilePath, is: &Fingerprint) -> bool {
        self.files.get(path) == Some(is)
    }
}

/// Reads a record that [`put`] wrote. `None` if the file does not exist or is empty. The error says why the file
/// cannot be used.
pub fn get<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(STATE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(_) if text.trim().is_empty() => return Ok(None),
        Ok(bytes) if bytes as u64 > STATE_BYTES_MAX => return Err("the file is too long".into()),
        Ok(_) => {}
    }
    let (line, digest) = text.trim_end().split_once('\n').ok_or("the file is cut short")?;
    if digest.parse() != Ok(Digest::of(line.as_bytes())) {
        return Err("the checksum does not match".into());
    }
    serde_json::from_str(line).map(Some).map_err(|error| error.to_string())
}

/// Writes a record. Creates the directory of the file if necessary. The old file is replaced atomically.
pub fn put(path: &Path, record: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(record)?;
    let digest = Digest::of(line.as_bytes()).to_hex();
    line.extend(["\n", &digest, "\n"]);
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    // The state file may lie in the watched directory. `layout::is_own_name` recognizes this temporary name, so the
    // agent does not save the temporary file.
    let mut temporary = b".mcr-state-".to_vec();
    temporary.extend_from_slice(name.as_bytes());
    temporary.extend_from_slice(format!("-{}.tmp", std::process::id()).as_bytes());
    let temporary = directory.join(std::ffi::OsStr::from_bytes(&temporary));
    let write = || {
        std::fs::create_dir_all(directory)?;
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b' '..=b'~' if byte != b'\\' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                bytes.push(u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?);
                after
            }
            (b'\\', _) => return None,
            (byte, after) => {
                bytes.push(byte);
                after
            }
        };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobId {
        name.parse().expect("valid")
    }

    fn sample() -> AgentState {
        let was = Fingerprint { device: 1, inode: 2, bytes: 3, modified_ns: -4, changed_ns: i64::MAX };
        let paths = [&b"DD0007/DD0007.cpu0003"[..], b"caf\xe9\\x41 \"\n"];
        let files = paths.into_iter().map(|path| (FilePath::new(path).expect("valid"), was)).collect();
        AgentState { committed: Some("DD0007~2".parse().expect("valid")), files }
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        assert_eq!(AgentState::load(&path, &job("a")), Loaded::New);
        for state in [AgentState::default(), sample()] {
            state.save(&path, &job("a"), &BTreeSet::new()).expect("saved");
            assert_eq!(AgentState::load(&path, &job("a")), Loaded::Found(state));
        }
        assert_eq!(AgentState::load(&path, &job("b")), Loaded::New, "the state of another job is not used");
        std::fs::write(&path, "").expect("emptied");
        assert_eq!(AgentState::load(&path, &job("a")), Loaded::New);
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1, "a temporary file was left");
        let (path, was) = sample().files.pop_first().expect("has files");
        assert!(sample().is_committed(&path, &was));
        assert!(!sample().is_committed(&path, &Fingerprint { bytes: 4, ..was }));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        sample().save(&path, &job("a"), &BTreeSet::new()).expect("saved");
        let whole = std::fs::read(&path).expect("read");
        let last = whole.len() - 1; // the file is also valid without the last newline
        for len in 1..last {
            std::fs::write(&path, &whole[..len]).expect("written");
            assert!(matches!(AgentState::load(&path, &job("a")), Loaded::Damaged(_)), "{len} of {} bytes", whole.len());
        }
        for at in 0..last {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).expect("written");
            assert!(matches!(AgentState::load(&path, &job("a")), Loaded::Damaged(_)), "byte {at}");
        }
    }

    #[test]
    fn a_state_that_cannot_be_written_says_where_and_what_to_do() {
        let error = sample()
            .save(Path::new("/proc/none/state"), &job("a"), &BTreeSet::new())
            .expect_err("no such directory")
            .to_string();
        assert!(error.contains("/proc/none/state") && error.contains("state-file"), "{error}");
    }
}
