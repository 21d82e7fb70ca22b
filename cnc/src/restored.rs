//! Which files a restart put there: they are no new checkpoint until the application writes them again.
//!
//! A restart marks each file before the file has its final name, with an extended attribute, so that an agent never sees
//! a restored file without its mark:
//!
//! | attribute | value |
//! |---|---|
//! | `user.mcr.restored` | `mcr-restored 1 INODE BYTES MODIFIED_NS DEPTH`: the numbers that `stat` gives, in decimal; the time in nanoseconds since 1970; of how many names the path is below the directory that was restored into |
//!
//! The mark holds while the first three numbers are those of the file. A program that writes into the file changes
//! its time; one that writes another file under the name, or copies this one with its attributes, has another inode.
//! The device is not compared: a network file system has another one on each node. The time of the inode is not,
//! since a rename changes it.
//!
//! Where a file system keeps no attributes, the directory that was restored into gets a record,
//! `.mcr-restored/TIME-WHERE-PROCESS`: a line `mcr-restored 1`, a line of JSON (a list of objects with `path` below the
//! directory, `inode`, `bytes`, `modified_ns`; in `path` a byte that is not printable ASCII, and a backslash, is `\xNN`),
//! and a line `blake3 HEX` over both. The newest 64 records are kept. A record that cannot be read counts for nothing.

use crate::fingerprint::Fingerprint;
use crate::restart::here;
use crate::sealed;
use crate::state::{escape, unescape};
use mcrengine::ids::FilePath;
use rustix::fs::{XattrFlags, fsetxattr, lgetxattr};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The attribute.
const ATTRIBUTE: &str = "user.mcr.restored";
/// The directory of records.
const DIRECTORY: &str = ".mcr-restored";
const KIND: &str = "mcr-restored";
const VERSION: u32 = 1;
/// Records in one directory; the oldest go.
const RECORDS_MAX: usize = 64;
/// A directory that changed so lately is read again: its time may not show the next change.
const CLOCK_STEP: Duration = Duration::from_secs(2);
/// Directories whose records are remembered; above, they are read again.
const DIRECTORIES_MAX: usize = 4096;

/// A restored file that could not be marked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: String,
    inode: u64,
    bytes: u64,
    modified_ns: i64,
}

/// Where a restart put a file, as seen from the directory that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Where the application reads it: it belongs to what the application writes next to it.
    InPlace,
    /// Into a directory below the one that is watched: a copy to look at, and part of no checkpoint.
    Below,
}

/// Marks an open file whose content and time are final. `path` is below the directory that is restored into.
pub fn mark(file: &File, path: &FilePath) -> io::Result<()> {
    let is = Fingerprint::of(&file.metadata()?);
    let value = format!("{}{}", value(&is), depth(path));
    fsetxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()).map_err(io::Error::from)
}

fn value(is: &Fingerprint) -> String {
    format!("{KIND} {VERSION} {} {} {} ", is.inode, is.bytes, is.modified_ns)
}

fn depth(path: &FilePath) -> usize {
    path.as_path().components().count()
}

/// The depth in the mark of a file, if it has one that holds.
fn marked_depth(path: &Path, is: &Fingerprint) -> Option<usize> {
    let mut found = [0u8; 128];
    let len = lgetxattr(path, ATTRIBUTE, &mut found[..]).ok()?;
    let depth = found.get(..len)?.strip_prefix(value(is).as_bytes())?;
    std::str::from_utf8(depth).ok()?.parse().ok()
}

/// Records files that could not be marked: where they will stand below `to`, and what they are. Durable when this returns.
pub fn record(to: &Path, files: &[(FilePath, Fingerprint)]) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let dir = to.join(DIRECTORY);
    match DirBuilder::new().mode(0o777).create(&dir) {
        Ok(()) => File::open(to)?.sync_all()?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let entry = |(path, is): &(FilePath, Fingerprint)| Entry {
        path: escape(path.as_bytes()),
        inode: is.inode,
        bytes: is.bytes,
        modified_ns: is.modified_ns,
    };
    let entries: Vec<Entry> = files.iter().map(entry).collect();
    let now_ns = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    // The time first, so that names say which are the oldest.
    sealed::write(&dir, &format!("{now_ns:020}-{}", here()), KIND, VERSION, &entries, true)?;
    let mut names: Vec<PathBuf> = std::fs::read_dir(&dir)?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    for old in &names[..names.len().saturating_sub(RECORDS_MAX)] {
        let _ = std::fs::remove_file(old); // another restart may have removed it
    }
    Ok(())
}

/// What is known of the files below a directory.
#[derive(Debug)]
pub struct Restored {
    root: PathBuf,
    /// By directory: when its records had changed last, and what they say.
    records: Mutex<HashMap<PathBuf, (SystemTime, HashSet<Entry>)>>,
}

impl Restored {
    /// For the files below `root`. Records are read when they are needed, and again when there are others.
    pub fn load(root: &Path) -> Self {
        Self { root: root.to_owned(), records: Mutex::default() }
    }

    /// Whether a restart put this file there, and it is still what the restart put there.
    pub fn put(&self, path: &FilePath, is: &Fingerprint) -> Option<Put> {
        let full = self.root.join(path.as_path());
        let of_depth = |depth: usize| if depth < self::depth(path) { Put::Below } else { Put::InPlace };
        // A restart may have been into a directory above the root, or below.
        marked_depth(&full, is).map(of_depth).or_else(|| {
            let dir = full.ancestors().skip(1).find(|dir| self.is_recorded(dir, &full, is))?;
            Some(if dir.starts_with(&self.root) && dir != self.root { Put::Below } else { Put::InPlace })
        })
    }

    /// Whether it is what a restart put there, or a copy of that with its attributes and times (`cp -a`): the
    /// application reads it as well.
    pub fn may_be_restored(&self, path: &FilePath, is: &Fingerprint) -> bool {
        let copied = || {
            let mut found = [0u8; 128];
            let len = lgetxattr(self.root.join(path.as_path()), ATTRIBUTE, &mut found[..]).ok()?;
            let mut words = std::str::from_utf8(found.get(..len)?).ok()?.split(' ').skip(3);
            Some((words.next()?.parse() == Ok(is.bytes)) && (words.next()?.parse() == Ok(is.modified_ns)))
        };
        copied() == Some(true) || self.is_restored(path, is)
    }

    /// As [`Self::put`], wherever it was put.
    pub fn is_restored(&self, path: &FilePath, is: &Fingerprint) -> bool {
        self.put(path, is).is_some()
    }

    fn is_recorded(&self, dir: &Path, full: &Path, is: &Fingerprint) -> bool {
        let Ok(changed) = std::fs::metadata(dir.join(DIRECTORY)).and_then(|found| found.modified()) else {
            return false;
        };
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= DIRECTORIES_MAX {
            records.clear();
        }
        let is_late = changed.elapsed().map_or(true, |age| age < CLOCK_STEP);
        if is_late || records.get(dir).is_none_or(|(read, _)| *read != changed) {
            records.insert(dir.to_owned(), (changed, read_records(dir)));
        }
        let Some((_, entries)) = records.get(dir) else { return false };
        let Ok(path) = full.strip_prefix(dir) else { return false };
        let path = escape(path.as_os_str().as_bytes());
        entries.contains(&Entry { path, inode: is.inode, bytes: is.bytes, modified_ns: is.modified_ns })
    }
}

fn read_records(dir: &Path) -> HashSet<Entry> {
    let Ok(listed) = std::fs::read_dir(dir.join(DIRECTORY)) else { return HashSet::new() };
    let mut names: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let mut all = HashSet::new();
    for name in names.iter().rev().filter(|name| name.extension().is_none()).take(RECORDS_MAX) {
        match sealed::read::<Vec<Entry>>(name, KIND, VERSION) {
            Ok(entries) => all.extend(entries.into_iter().filter(|entry| unescape(&entry.path).is_some())),
            Err(why) => tracing::warn!(record = %name.display(), why, "the record of a restart cannot be read"),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str) -> (File, FilePath) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, "restored").expect("written");
        (File::options().write(true).open(path).expect("opened"), FilePath::new(name.as_bytes()).expect("valid"))
    }

    fn is(dir: &Path, name: &str) -> Fingerprint {
        Fingerprint::of(&dir.join(name).symlink_metadata().expect("there"))
    }

    #[test]
    fn a_mark_holds_under_another_name_and_not_for_another_content_or_a_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let (made, path) = file(dir.path(), "f");
        let restored = Restored::load(dir.path());
        assert!(!restored.is_restored(&path, &is(dir.path(), "f")), "without a mark");
        if let Err(error) = mark(&made, &path) {
            eprintln!("skipped: no attributes here ({error})");
            return;
        }
        assert_eq!(restored.put(&path, &is(dir.path(), "f")), Some(Put::InPlace));
        let top = dir.path().parent().expect("a directory above");
        let name = format!("{}/f", dir.path().file_name().and_then(|name| name.to_str()).expect("a name"));
        let from_above = FilePath::new(name.as_bytes()).expect("valid");
        assert_eq!(Restored::load(top).put(&from_above, &is(dir.path(), "f")), Some(Put::Below));
        std::fs::rename(dir.path().join("f"), dir.path().join("g")).expect("renamed");
        let renamed = FilePath::new(&b"g"[..]).expect("valid");
        assert!(restored.is_restored(&renamed, &is(dir.path(), "g")), "a rename changes no content");
        let mut copy = std::process::Command::new("cp");
        copy.arg("-a").args([dir.path().join("g"), dir.path().join("h")]);
        assert!(copy.status().is_ok_and(|status| status.success()));
        let copy = FilePath::new(&b"h"[..]).expect("valid");
        assert!(!restored.is_restored(&copy, &is(dir.path(), "h")), "a copy is another file");
        assert!(restored.may_be_restored(&copy, &is(dir.path(), "h")), "and is not deleted");
        made.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        assert!(!restored.is_restored(&renamed, &is(dir.path(), "g")), "it was written again");
        assert!(!restored.may_be_restored(&renamed, &is(dir.path(), "g")));
    }

    #[test]
    fn a_record_is_seen_from_above_and_from_below_and_the_next_one_too() {
        let top = tempfile::tempdir().expect("a directory");
        let (_, path) = file(top.path(), "run/it_1/f");
        let run = top.path().join("run");
        let (above, below) = (Restored::load(top.path()), Restored::load(&run.join("it_1")));
        let (name, was) = (FilePath::new(&b"f"[..]).expect("valid"), is(&run, "it_1/f"));
        assert!(!above.is_restored(&path, &was) && !below.is_restored(&name, &was), "no record yet");
        record(&run, &[(FilePath::new(&b"it_1/f"[..]).expect("valid"), was)]).expect("recorded");
        assert_eq!((above.put(&path, &was), below.put(&name, &was)), (Some(Put::Below), Some(Put::InPlace)));
        assert!(!above.is_restored(&path, &Fingerprint { modified_ns: 0, ..was }), "it was written again");
        let (_, other) = file(top.path(), "run/it_2/f");
        let was = is(&run, "it_2/f");
        for _ in 0..RECORDS_MAX + 3 {
            record(&run, &[(FilePath::new(&b"it_2/f"[..]).expect("valid"), was)]).expect("recorded");
        }
        assert!(above.is_restored(&other, &was));
        assert!(std::fs::read_dir(run.join(DIRECTORY)).expect("there").count() <= RECORDS_MAX);
    }
}
