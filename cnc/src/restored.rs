//! Records which files a restart wrote. A restored file is not part of a new checkpoint until the application writes
//! it again.
//!
//! A restart marks each file with an extended attribute before the file gets its final name. Therefore an agent never
//! sees a restored file without a mark.
//!
//! - Attribute: `user.mcr.restored`
//! - Value: `mcr-restored 1 INODE BYTES MODIFIED_NS DEPTH`. The first three numbers are decimal and come from `stat`.
//!   The time is in nanoseconds since 1970. DEPTH is the number of components of the path below the target directory
//!   of the restart.
//!
//! The mark is valid if its first three numbers agree with the file. If a program writes into the file, the file's
//! modification time changes. If a program writes another file under the same name, or copies the file with its
//! attributes, the new file has another inode. The device is not compared, because a network file system has a
//! different device number on each node. The change time is not compared, because a rename changes it.
//!
//! If a file system stores no attributes, a record is written in the target directory of the restart:
//! `.mcr-restored/TIME-WHERE-PROCESS`. The record consists of a line `mcr-restored 1`, a line of JSON, and a line
//! `blake3 HEX` with the digest of the first two lines. The JSON is a list of objects with `path` below the
//! directory, `inode`, `bytes` and `modified_ns`. In `path`, a backslash and each byte that is not printable ASCII is
//! written as `\xNN`. The newest 64 records are kept. A record that cannot be read is ignored.

use crate::fingerprint::Fingerprint;
use crate::here::here;
use crate::sealed;
use crate::state::{escape, unescape};
use mcrengine::ids::FilePath;
use rustix::fs::{XattrFlags, fsetxattr, lgetxattr};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Name of the extended attribute.
const ATTRIBUTE: &str = "user.mcr.restored";
/// The directory of records.
const DIRECTORY: &str = ".mcr-restored";
const KIND: &str = "mcr-restored";
const VERSION: u32 = 1;
/// Maximum number of records in one directory. If there are more records, the oldest records are removed.
const RECORDS_MAX: usize = 64;
/// If a directory changed less than this time ago, it is read again at each use, because a further change may leave
/// its modification time unchanged.
const CLOCK_STEP: Duration = Duration::from_secs(2);
/// Maximum number of directories whose records are cached. If there are more directories, the cache is cleared.
const DIRECTORIES_MAX: usize = 4096;

/// A restored file that could not be marked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: String,
    inode: u64,
    bytes: u64,
    modified_ns: i64,
}

/// The entries of all records of a directory, by path.
type Entries = HashMap<String, Vec<Entry>>;

/// The place where a restart wrote a file, relative to the watched directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The place where the application reads the file. The file belongs to the application's next checkpoint.
    InPlace,
    /// A directory below the watched directory. The file is a copy for inspection, and belongs to no checkpoint.
    Below,
}

/// Marks an open file whose content and modification time are final. `path` is relative to the target directory of
/// the restart.
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

/// The depth in the mark of a file. `None` if the file has no valid mark.
fn marked_depth(path: &Path, is: &Fingerprint) -> Option<usize> {
    let mut found = [0u8; 128];
    let len = lgetxattr(path, ATTRIBUTE, &mut found[..]).ok()?;
    let depth = found.get(..len)?.strip_prefix(value(is).as_bytes())?;
    std::str::from_utf8(depth).ok()?.parse().ok()
}

/// Records the files that could not be marked. Each file has its final path below `to` and its fingerprint. The
/// record is durable when this function returns.
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
    // The name begins with the time, so the order of the names is the order of the records.
    sealed::write(&dir, &format!("{now_ns:020}-{}", here()), KIND, VERSION, &entries, true)?;
    let mut names: Vec<PathBuf> = std::fs::read_dir(&dir)?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    for old in &names[..names.len().saturating_sub(RECORDS_MAX)] {
        let _ = std::fs::remove_file(old); // another restart may have removed the record
    }
    Ok(())
}

/// The marks and records of restored files below a directory.
#[derive(Debug)]
pub struct Restored {
    root: PathBuf,
    /// For each directory: the time of its last change when the directory was read, and its entries.
    records: Mutex<HashMap<PathBuf, (SystemTime, Entries)>>,
}

impl Restored {
    /// Makes the value for the files below `root`. Records are read when they are needed, and again if they have
    /// changed.
    pub fn load(root: &Path) -> Self {
        Self { root: root.to_owned(), records: Mutex::default() }
    }

    /// Where a restart wrote this file. `None` if no restart wrote the file, or if the file has changed since.
    pub fn put(&self, path: &FilePath, is: &Fingerprint) -> Option<Put> {
        let full = self.root.join(path.as_path());
        let of_depth = |depth: usize| if depth < self::depth(path) { Put::Below } else { Put::InPlace };
        // The target directory of the restart may be above or below the root.
        marked_depth(&full, is).map(of_depth).or_else(|| {
            let dir = full.ancestors().skip(1).find(|dir| self.is_recorded(dir, &full, is))?;
            Some(if dir.starts_with(&self.root) && dir != self.root { Put::Below } else { Put::InPlace })
        })
    }

    /// Whether the application may still read this file as a restored file. This is the case if a restart wrote the
    /// file, and also for a copy of a restored file with its attributes and times (`cp -a`), and for a restored file
    /// that was written in place without a change of its length (`touch`, or an HDF5 file that was opened for writing).
    pub fn may_be_restored(&self, path: &FilePath, is: &Fingerprint) -> bool {
        let full = self.root.join(path.as_path());
        let by_mark = || {
            let mut found = [0u8; 128];
            let len = lgetxattr(&full, ATTRIBUTE, &mut found[..]).ok()?;
            let mut words = std::str::from_utf8(found.get(..len)?).ok()?.split(' ').skip(2);
            let inode = words.next()?.parse() == Ok(is.inode);
            let bytes = words.next()?.parse() == Ok(is.bytes);
            let modified_ns = words.next()?.parse() == Ok(is.modified_ns);
            Some(bytes && (inode || modified_ns))
        };
        let is_same = |entry: &Entry| (entry.inode, entry.bytes) == (is.inode, is.bytes);
        by_mark() == Some(true) || full.ancestors().skip(1).any(|dir| self.has_record(dir, &full, is_same))
    }

    /// Whether a restart wrote this file to any place, and the file has not changed since.
    pub fn is_restored(&self, path: &FilePath, is: &Fingerprint) -> bool {
        self.put(path, is).is_some()
    }

    fn is_recorded(&self, dir: &Path, full: &Path, is: &Fingerprint) -> bool {
        let of = |entry: &Entry| (entry.inode, entry.bytes, entry.modified_ns);
        self.has_record(dir, full, |entry| of(entry) == (is.inode, is.bytes, is.modified_ns))
    }

    /// Whether `dir` has a record of the file `full` whose entry is as wanted.
    fn has_record(&self, dir: &Path, full: &Path, is_wanted: impl Fn(&Entry) -> bool) -> bool {
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
        entries.get(&path).is_some_and(|of_path| of_path.iter().any(is_wanted))
    }
}

fn read_records(dir: &Path) -> Entries {
    let Ok(listed) = std::fs::read_dir(dir.join(DIRECTORY)) else { return Entries::new() };
    let mut names: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let mut all = Entries::new();
    for name in names.iter().rev().filter(|name| name.extension().is_none()).take(RECORDS_MAX) {
        match sealed::read::<Vec<Entry>>(name, KIND, VERSION) {
            Ok(entries) => {
                for entry in entries.into_iter().filter(|entry| unescape(&entry.path).is_some()) {
                    let of_path: &mut Vec<Entry> = all.entry(entry.path.clone()).or_default();
                    if !of_path.contains(&entry) {
                        of_path.push(entry);
                    }
                }
            }
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
        assert!(restored.may_be_restored(&renamed, &is(dir.path(), "g")), "with the same length, so it is not deleted");
        made.set_len(3).expect("cut");
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
        let again = Fingerprint { modified_ns: 0, ..was };
        assert!(!above.is_restored(&path, &again) && above.may_be_restored(&path, &again), "it was written again");
        assert!(!above.may_be_restored(&path, &Fingerprint { bytes: 3, ..again }));
        let (_, other) = file(top.path(), "run/it_2/f");
        let was = is(&run, "it_2/f");
        for _ in 0..RECORDS_MAX + 3 {
            record(&run, &[(FilePath::new(&b"it_2/f"[..]).expect("valid"), was)]).expect("recorded");
        }
        assert!(above.is_restored(&other, &was));
        assert!(std::fs::read_dir(run.join(DIRECTORY)).expect("there").count() <= RECORDS_MAX);
    }
}
