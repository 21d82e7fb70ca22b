//! Which aggregator saves a group of a job whose runs have no identity.
//!
//! Two runs of one name that were started by hand, each with an aggregator of its own, have nothing that tells them apart.
//! So an aggregator holds a file in `JOB/.holders` from its first commit for a group until the last agent of the job has
//! gone, and commits nothing for a group that another aggregator holds. The file is locked, so it ends with its process;
//! where the file system has no locks between nodes, only runs on one node are kept apart.

use crate::group::Key;
use mcrengine::ids::{GroupId, JobId};
use mcrengine::store::{Store, StoreError, TempFile, create_dirs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most bytes of a holder's description.
const TEXT_BYTES_MAX: u64 = 4096;
/// A file that nobody holds is removed when it is this old: a younger one may not be locked yet.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// The groups that this process holds.
#[derive(Default)]
pub struct Holders(Mutex<BTreeMap<(JobId, GroupId), Box<dyn TempFile>>>);

impl std::fmt::Debug for Holders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.lock().unwrap_or_else(PoisonError::into_inner).keys()).finish()
    }
}

impl Holders {
    /// Holds a group, if no other aggregator does; else gives what the other one says of itself. `who` says the same of this
    /// one, for people.
    pub fn hold(&self, store: &dyn Store, key: &Key, who: &str) -> Result<Option<String>, StoreError> {
        let place = (key.job.clone(), key.group);
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&place) {
            return Ok(None);
        }
        let (dir, name) = (Path::new(key.job.as_str()).join(".holders"), format!("group-{:04}", key.group.0));
        create_dirs(store, &dir)?;
        if let Some(other) = others(store, &dir, &name, None)?.pop() {
            return Ok(Some(describe(store, &other)));
        }
        let mut file = store.create_temp(&dir, &name)?;
        file.append(who.as_bytes())?;
        // Of several that began at once the one with the first name goes on.
        let first = others(store, &dir, &name, Some(file.path()))?.into_iter().min();
        if let Some(other) = first.filter(|other| other.as_path() < file.path()) {
            return Ok(Some(describe(store, &other)));
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, file);
        Ok(None)
    }

    /// Holds no group of a job any more. Removes files.
    pub fn release(&self, job: &JobId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (released, kept): (BTreeMap<_, _>, _) =
            std::mem::take(&mut *all).into_iter().partition(|((of, _), _)| of == job);
        *all = kept;
        drop(all);
        drop(released);
    }

    /// Whether any group of a job is held.
    pub fn holds(&self, job: &JobId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().any(|(of, _)| of == job)
    }
}

/// Files of a group that other processes hold. Those of dead ones are removed.
fn others(store: &dyn Store, dir: &Path, name: &str, own: Option<&Path>) -> Result<Vec<PathBuf>, StoreError> {
    let (prefix, mut held) = (format!(".{name}."), Vec::new());
    for entry in store.list_dir(dir)?.into_iter().filter(|entry| entry.name.starts_with(&prefix)) {
        let path = dir.join(&entry.name);
        if own == Some(path.as_path()) {
            continue;
        }
        match store.is_held(&path) {
            true => held.push(path),
            // Whether it goes now or later does not matter.
            false if store.age(&path).is_ok_and(|age| age > DEAD_AFTER) => drop(store.remove_file(&path)),
            false => {}
        }
    }
    Ok(held)
}

fn describe(store: &dyn Store, path: &Path) -> String {
    let read = || {
        let file = store.open(path).ok()?;
        let mut bytes = vec![0; usize::try_from(file.len().min(TEXT_BYTES_MAX)).ok()?];
        file.read_at(0, &mut bytes).ok()?;
        String::from_utf8(bytes).ok().filter(|text| !text.is_empty() && !text.contains(char::is_control))
    };
    read().unwrap_or_else(|| format!("another aggregator ({})", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::store::PosixStore;

    #[test]
    fn of_two_aggregators_one_holds_a_group_until_it_lets_go_of_it_or_dies() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = PosixStore::create(dir.path().join("store")).expect("creates");
        let key = |group| Key {
            job: "job".parse().expect("valid"),
            group: GroupId(group),
            label: "it_1".parse().expect("valid"),
        };
        let (one, two) = (Holders::default(), Holders::default());
        assert_eq!(one.hold(&store, &key(0), "node n0").expect("a store"), None);
        assert_eq!(one.hold(&store, &key(0), "node n0").expect("a store"), None, "it holds it already");
        assert_eq!(two.hold(&store, &key(0), "node n1").expect("a store").as_deref(), Some("node n0"));
        assert_eq!(two.hold(&store, &key(1), "node n1").expect("a store"), None, "another group");
        one.release(&key(0).job);
        assert_eq!(two.hold(&store, &key(0), "node n1").expect("a store"), None);
        assert!(two.holds(&key(0).job) && !one.holds(&key(0).job));
        drop(two);
        assert_eq!(one.hold(&store, &key(1), "node n0").expect("a store"), None, "it is dead");
    }
}
