//! Holder files: files in the store that running programs lock. While a file is locked, its program is running.
//!
//! The file is `JOB/.holders/.NAME.0123456789abcdef`, and its text describes the program. The operating system
//! removes the lock when the program ends. If the file system has no locks between nodes, a program sees only the
//! locks of programs on the same node.
//!
//! An aggregator that saves group 0 has a file with the NAME `group-0000`. `mcr run` has a file with the NAME `run`,
//! which contains the directory that `mcr run` watches. While `mcr run` runs, a restart into another directory only
//! copies files, and begins no incarnation.

use crate::ids::{Digest, GroupId, JobId};
use crate::store::{Store, StoreError, TempFile, create_dirs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the holder files, inside the job's directory.
const DIRECTORY: &str = ".holders";
/// The NAME in the file of `mcr run`.
const RUN: &str = "run";
/// Maximum length of the text of a holder file, in bytes.
const TEXT_BYTES_MAX: u64 = 16 << 10;
/// A file without a lock is removed if the file is older than this duration. A younger file may not be locked yet.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Whether a running program holds a file of the job. `false` if the store has no locks.
pub(crate) fn is_any_held(store: &dyn Store, job: &JobId) -> Result<bool, StoreError> {
    let dir = directory(job);
    match store.list_dir(&dir) {
        Ok(entries) => Ok(entries.iter().any(|entry| store.is_held(&dir.join(&entry.name)))),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The holder file of `mcr run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivingRun {
    /// Name of the node on which `mcr run` runs.
    pub node: String,
    /// The process id of `mcr run` on the node.
    pub process: u32,
    /// The identity of this start of the job; empty for a start by hand.
    pub identity: String,
    /// The absolute path of the watched directory, without symbolic links. Bytes that are not UTF-8 are replaced.
    pub watch: String,
}

impl LivingRun {
    /// Creates and locks the holder file. The lock ends when the result is dropped. Returns `None` and creates
    /// nothing if the store has no directory of the job yet.
    pub fn hold(&self, store: &dyn Store, job: &JobId) -> Result<Option<Box<dyn TempFile>>, StoreError> {
        match store.stat(Path::new(job.as_str())) {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        }
        let dir = directory(job);
        create_dirs(store, &dir)?;
        others(store, &dir, ".run.", None)?;
        let text = serde_json::to_string(self).map_err(|error| unwritable(&dir.join(RUN), &error))?;
        let mut file = store.create_temp(&dir, RUN)?;
        file.append(text.as_bytes())?;
        Ok(Some(file))
    }

    /// The holder files of all `mcr run` processes that are running now for the job.
    pub fn all(store: &dyn Store, job: &JobId) -> Result<Vec<Self>, StoreError> {
        let parse = |path: &PathBuf| serde_json::from_str(&text_of(store, path)?).ok();
        Ok(others(store, &directory(job), ".run.", None)?.iter().filter_map(parse).collect())
    }
}

impl std::fmt::Display for LivingRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mcr run on {} (process {}), which watches {}", self.node, self.process, self.watch)
    }
}

/// The holder file of an aggregator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHolder {
    /// Description of the aggregator, for people.
    pub who: String,
    /// The directories that the aggregator's agents of the job watch. Each directory is represented by the first 16
    /// hexadecimal digits of the BLAKE3 of its path. Only the 512 smallest representations are kept.
    pub watches: BTreeSet<String>,
}

/// A file without text is read at most `LOOKS_MAX` times. `LOOK_AGAIN` is the wait between two reads.
const LOOKS_MAX: u32 = 40;
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Maximum number of watched directories in a holder file.
pub(crate) const WATCHES_MAX: usize = 512;

/// Short names of directories. A short name is the first 16 hexadecimal digits of the BLAKE3 of the path. Returns the
/// 512 smallest names.
pub(crate) fn digests_of<'a>(directories: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let digest = |directory: &str| Digest::of(directory.as_bytes()).to_hex()[..16].to_owned();
    let all: BTreeSet<String> = directories.map(digest).collect();
    all.into_iter().take(WATCHES_MAX).collect()
}

impl GroupHolder {
    /// Makes a holder. `watches` are the directories that the agents of the job watch.
    pub fn new<'a>(who: String, watches: impl Iterator<Item = &'a str>) -> Self {
        Self { who, watches: digests_of(watches) }
    }
}

/// Takes a group of a job for an identity. The inner result is the holder file, or the description of another holder.
/// The holder file holds the group until the file is dropped.
///
/// The aggregators of one run have agents in common. A conflict exists in two cases. In the first case, another
/// aggregator holds the same group. In the second case, another aggregator holds any group of this job and identity,
/// but no directory is watched by agents of both aggregators. Then the other aggregator saves another run of the same
/// name. For the first group of a process (`is_first`), the files of all groups are read.
pub fn take(
    store: &dyn Store,
    job: &JobId,
    group: GroupId,
    identity: &str,
    holder: &GroupHolder,
    is_first: bool,
) -> Result<Result<Box<dyn TempFile>, String>, StoreError> {
    let dir = directory(job);
    create_dirs(store, &dir)?;
    let of_identity = suffix_of(identity);
    let name = format!("group-{:04}{of_identity}", group.0);
    let prefix = if is_first { ".group-".to_owned() } else { format!(".{name}.") };
    let conflicting = |own: Option<&Path>| -> Result<Option<PathBuf>, StoreError> {
        let is_other = |path: &PathBuf| {
            let other = || serde_json::from_str::<GroupHolder>(&written_text_of(store, path)?).ok();
            let is_apart = || other().is_some_and(|other| other.watches.is_disjoint(&holder.watches));
            held_name(path) == name || (suffix_in(path) == of_identity && is_apart())
        };
        // If several aggregators begin at the same time, the aggregator whose file name sorts first gets the group.
        let goes_first = |path: &PathBuf| own.is_none_or(|own| path.as_path() < own);
        Ok(others(store, &dir, &prefix, own)?.into_iter().filter(goes_first).find(is_other))
    };
    if let Some(other) = conflicting(None)? {
        return Ok(Err(describe(store, &other)));
    }
    let mut file = store.create_temp(&dir, &name)?;
    let text = serde_json::to_string(holder).map_err(|error| unwritable(&dir.join(&name), &error))?;
    file.append(text.as_bytes())?;
    Ok(match conflicting(Some(file.path()))? {
        Some(other) => Err(describe(store, &other)),
        None => Ok(file),
    })
}

fn unwritable(path: &Path, error: &serde_json::Error) -> StoreError {
    StoreError::Contents { path: path.to_owned(), what: format!("its text cannot be written: {error}") }
}

/// The end of the names of holder files of groups that are held for this identity.
fn suffix_of(identity: &str) -> String {
    match identity.is_empty() {
        true => String::new(),
        false => format!("-{}", Digest::of(identity.as_bytes())),
    }
}

/// The result of [`suffix_of`] for the holder file of a group.
fn suffix_in(path: &Path) -> &str {
    held_name(path).trim_start_matches("group-").trim_start_matches(|c: char| c.is_ascii_digit())
}

/// The name that a holder file was created for: its file name without the first dot and the unique end.
fn held_name(path: &Path) -> &str {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    file.rsplit_once('.').map_or(file, |(held, _)| held).trim_start_matches('.')
}

/// Descriptions of the holders of groups of a job, as passed to [`take`].
pub fn holders_of_groups(store: &dyn Store, job: &JobId) -> Result<Vec<String>, StoreError> {
    holders(store, job, |_| true)
}

/// Does the same as [`holders_of_groups`], but only for groups that are held for this identity.
pub fn holders_of_identity(store: &dyn Store, job: &JobId, identity: &str) -> Result<Vec<String>, StoreError> {
    let wanted = suffix_of(identity);
    holders(store, job, |suffix| suffix == wanted)
}

fn holders(store: &dyn Store, job: &JobId, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, StoreError> {
    let held = others(store, &directory(job), ".group-", None)?;
    let wanted = held.iter().filter(|path| is_wanted(suffix_in(path)));
    let mut all: Vec<String> = wanted.map(|path| describe(store, path)).collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

pub(crate) fn directory(job: &JobId) -> PathBuf {
    Path::new(job.as_str()).join(DIRECTORY)
}

/// The files with this prefix that other processes hold. Files of dead processes are removed.
fn others(store: &dyn Store, dir: &Path, prefix: &str, own: Option<&Path>) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match store.list_dir(dir) {
        Err(error) if error.is_not_found() => Vec::new(),
        other => other?,
    };
    let mut held = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.name.starts_with(prefix)) {
        let path = dir.join(&entry.name);
        if own == Some(path.as_path()) {
            continue;
        }
        match store.is_held(&path) {
            true => held.push(path),
            // If the removal fails, the file is removed later.
            false if store.age(&path).is_ok_and(|age| age > DEAD_AFTER) => drop(store.remove_file(&path)),
            false => {}
        }
    }
    Ok(held)
}

fn describe(store: &dyn Store, path: &Path) -> String {
    let holder = text_of(store, path).and_then(|text| serde_json::from_str::<GroupHolder>(&text).ok());
    let who = holder.map(|holder| holder.who).filter(|who| !who.is_empty() && !who.contains(char::is_control));
    who.unwrap_or_else(|| format!("another aggregator ({})", path.display()))
}

/// The text of a holder file. If the file has no text yet, waits until the text is written.
fn written_text_of(store: &dyn Store, path: &Path) -> Option<String> {
    for _ in 0..LOOKS_MAX {
        match text_of(store, path) {
            Some(text) if text.is_empty() => std::thread::sleep(LOOK_AGAIN),
            other => return other,
        }
    }
    None
}

pub(crate) fn text_of(store: &dyn Store, path: &Path) -> Option<String> {
    let file = store.open(path).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().min(TEXT_BYTES_MAX)).ok()?];
    file.read_at(0, &mut bytes).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PosixStore;

    #[test]
    fn a_run_is_known_while_it_lives_and_nothing_is_made_for_a_job_that_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = PosixStore::create(dir.path().join("store")).expect("creates");
        let job: JobId = "job".parse().expect("valid");
        let run = LivingRun { node: "n0".into(), process: 7, identity: String::new(), watch: "/run \u{1b}".into() };
        assert!(run.hold(&store, &job).expect("a store").is_none());
        assert!(!dir.path().join("store/job").exists());
        assert_eq!(LivingRun::all(&store, &job).expect("a store"), []);
        create_dirs(&store, Path::new("job")).expect("made");
        let held = run.hold(&store, &job).expect("a store").expect("the job is there");
        assert_eq!(LivingRun::all(&store, &job).expect("a store"), std::slice::from_ref(&run));
        assert!(holders_of_groups(&store, &job).expect("a store").is_empty());
        let holder = GroupHolder::new("node n0".into(), ["/run"].into_iter());
        let group = take(&store, &job, GroupId(0), "", &holder, true).expect("a store").expect("it is free");
        assert_eq!(holders_of_groups(&store, &job).expect("a store"), ["node n0"]);
        assert_eq!(LivingRun::all(&store, &job).expect("a store").len(), 1);
        drop((held, group));
        assert_eq!(LivingRun::all(&store, &job).expect("a store"), []);
    }

    #[test]
    fn the_holders_of_one_identity_are_told_from_the_holders_of_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = PosixStore::create(dir.path().join("store")).expect("creates");
        let job: JobId = "job".parse().expect("valid");
        let held = ["", "one"].map(|identity| {
            let holder = GroupHolder::new(format!("of {identity:?}"), ["/run"].into_iter());
            take(&store, &job, GroupId(3), identity, &holder, true).expect("a store").expect("it is free")
        });
        assert_eq!(holders_of_groups(&store, &job).expect("a store"), ["of \"\"", "of \"one\""]);
        let cases: [(&str, &[&str]); 3] = [("", &["of \"\""]), ("one", &["of \"one\""]), ("two", &[])];
        for (identity, expected) in cases {
            assert_eq!(holders_of_identity(&store, &job, identity).expect("a store"), expected, "{identity:?}");
        }
        drop(held);
    }
}
