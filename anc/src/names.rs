//! Finds which names of checkpoints are in use in a job, without listing the job's directory for each checkpoint.
//!
//! The directory is listed once, and the names are remembered. Afterwards each lookup checks only a few names. An
//! aggregator always uses the next name after the newest name. Therefore the names that other aggregators have used
//! since then follow the known names, unless `prune` has removed some of these names. The directory is listed again
//! if the newest known name is gone, if another incarnation began, or if the list is too old. The maximum age is
//! `REUSED_AGE_MAX` for a name that the application uses repeatedly, and `LIST_AGE_MAX` for a new name. The times of
//! directories are not used, because parallel file systems do not keep them reliably.

use crate::group::Key;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::store::{Store, StoreError};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of contents under one name that are checked, beginning with the newest. Older contents belong to
/// steps that no group can still join.
pub const LOOKED_AT: usize = 32;
/// Maximum age of a list of a job's directory for a label that is not in the list.
const LIST_AGE_MAX: Duration = Duration::from_secs(600);
/// Maximum age of a list of a job's directory for a label that is in the list. An application that overwrites one
/// name may use many generations in ten minutes.
const REUSED_AGE_MAX: Duration = Duration::from_secs(10);
/// Number of consecutive free names after which all later names count as free. One free name is not enough, because
/// `prune` may have removed an abandoned name.
const FREE_IN_A_ROW: u32 = 2;
/// Maximum number of names that one lookup checks. If more names were used since the last lookup, the directory is
/// listed.
const TAKEN_SINCE_MAX: u32 = 64;
/// Maximum number of names of all jobs that are remembered, about 100 bytes each. If there are more names, each
/// lookup lists the directory.
const NAMES_MAX: usize = 128 << 10;

/// The names in use of all jobs that were looked up.
#[derive(Debug, Default)]
pub struct Names(Mutex<HashMap<JobId, Listed>>);

/// The names in a job's directory, as last listed.
#[derive(Debug)]
struct Listed {
    at: Instant,
    incarnation: u32,
    /// The generations of each label, in rising order.
    labels: HashMap<Box<str>, Vec<u32>>,
}

impl Names {
    /// The generations of the newest contents of a label, at most [`LOOKED_AT`], in rising order. Each of these
    /// contents has a directory in the store.
    pub fn newest(&self, store: &dyn Store, key: &Key, incarnation: u32) -> Result<Vec<u32>, StoreError> {
        if let Some(known) = self.known(key, incarnation)
            && let Some(newest) = still_newest(store, key, known)?
        {
            self.put(key, &newest);
            return Ok(newest);
        }
        let at = Instant::now();
        let labels = list(store, &key.job)?;
        let newest = labels.get(key.label.label()).map(|all| last_of(all)).unwrap_or_default();
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.remove(&key.job);
        let others: usize = jobs.values().map(|job| job.labels.len()).sum();
        if others + labels.len() > NAMES_MAX {
            jobs.clear();
        }
        if labels.len() <= NAMES_MAX {
            jobs.insert(key.job.clone(), Listed { at, incarnation, labels });
        }
        Ok(newest)
    }

    fn known(&self, key: &Key, incarnation: u32) -> Option<Vec<u32>> {
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = jobs.get(&key.job).filter(|listed| listed.incarnation == incarnation)?;
        let known = listed.labels.get(key.label.label());
        let age_max = if known.is_some() { REUSED_AGE_MAX } else { LIST_AGE_MAX };
        (listed.at.elapsed() <= age_max).then(|| known.map(|all| last_of(all)).unwrap_or_default())
    }

    fn put(&self, key: &Key, newest: &[u32]) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listed) = jobs.get_mut(&key.job).filter(|_| !newest.is_empty()) else { return };
        if listed.labels.len() >= NAMES_MAX {
            jobs.remove(&key.job);
            return;
        }
        listed.labels.insert(key.label.label().into(), newest.to_vec());
    }
}

fn last_of(all: &[u32]) -> Vec<u32> {
    all[all.len().saturating_sub(LOOKED_AT)..].to_vec()
}

/// The known names, and the names that were used since. `None` if the directory must be listed.
fn still_newest(store: &dyn Store, key: &Key, mut known: Vec<u32>) -> Result<Option<Vec<u32>>, StoreError> {
    if let Some(newest) = known.last()
        && !is_taken(store, key, *newest)?
    {
        return Ok(None);
    }
    let (mut next, mut free) = (known.last().map_or(1, |newest| newest.saturating_add(1)), 0);
    for _ in 0..TAKEN_SINCE_MAX {
        if is_taken(store, key, next)? {
            (free, known) = (0, [known, vec![next]].concat());
        } else {
            free += 1;
        }
        if free == FREE_IN_A_ROW {
            return Ok(Some(last_of(&known)));
        }
        next = next.saturating_add(1);
    }
    Ok(None)
}

fn is_taken(store: &dyn Store, key: &Key, generation: u32) -> Result<bool, StoreError> {
    // No checkpoint has a name that is too long.
    let Ok(id) = key.label.with_generation(generation) else { return Ok(false) };
    match store.stat(&Path::new(key.job.as_str()).join(id.as_str())) {
        Ok(found) => Ok(found.is_dir),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The generations of all labels of a job.
fn list(store: &dyn Store, job: &JobId) -> Result<HashMap<Box<str>, Vec<u32>>, StoreError> {
    let entries = match store.list_dir(Path::new(job.as_str())) {
        Err(error) if error.is_not_found() => Vec::new(),
        other => other?,
    };
    let mut labels: HashMap<Box<str>, BTreeSet<u32>> = HashMap::new();
    for id in entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse::<CheckpointId>().ok()) {
        labels.entry(id.label().into()).or_default().insert(id.generation());
    }
    Ok(labels.into_iter().map(|(label, all)| (label, all.into_iter().collect())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcrengine::ids::GroupId;
    use mcrengine::store::{Fault, FaultyStore, MemoryStore, create_dirs};

    fn key(label: &str) -> Key {
        Key { job: "j".parse().expect("valid"), group: GroupId(0), label: label.parse().expect("valid") }
    }

    fn store(names: impl IntoIterator<Item = String>) -> FaultyStore {
        let store = MemoryStore::new();
        names.into_iter().for_each(|name| create_dirs(&store, &Path::new("j").join(name)).expect("made"));
        FaultyStore::new(store, Fault::None)
    }

    fn take(store: &FaultyStore, name: &str) {
        create_dirs(store.inner(), &Path::new("j").join(name)).expect("made");
    }

    fn newest(names: &Names, store: &FaultyStore, label: &str) -> Vec<u32> {
        names.newest(store, &key(label), 1).expect("looks")
    }

    #[test]
    fn after_the_first_question_the_directory_of_the_job_is_not_listed_again() {
        let mut costs = Vec::new();
        for count in [10, 5000] {
            let (store, names) = (store((0..count).map(|n| format!("it_{n}"))), Names::default());
            assert_eq!(newest(&names, &store, "it_1"), [1]);
            let (opened, listed) = (store.opened(), store.listed());
            for n in 0..20 {
                let label = format!("it_{}", 10_000 + n);
                assert!(newest(&names, &store, &label).is_empty());
                take(&store, &label);
                assert_eq!(newest(&names, &store, &label), [1], "the name was used since");
            }
            costs.push((store.opened() - opened, store.listed() - listed));
        }
        assert_eq!(costs, [(20 * 5, 0), (20 * 5, 0)]);
    }

    #[test]
    fn what_others_took_since_is_found_also_behind_a_name_that_was_given_up() {
        let (store, names) = (store(["a".to_owned(), "a~2".to_owned()]), Names::default());
        assert_eq!(newest(&names, &store, "a"), [1, 2]);
        take(&store, "a~3");
        take(&store, "a~5");
        assert_eq!(newest(&names, &store, "a"), [1, 2, 3, 5]);
        (6..60).for_each(|n| take(&store, &format!("a~{n}")));
        assert_eq!(newest(&names, &store, "a"), (28..60).collect::<Vec<u32>>());
        (60..200).for_each(|n| take(&store, &format!("a~{n}")));
        assert_eq!(
            newest(&names, &store, "a").last(),
            Some(&199),
            "there are more names than are checked one after the other"
        );
    }

    #[test]
    fn an_aggregator_that_stood_still_while_names_were_taken_and_pruned_finds_the_newest() {
        let (store, names) = (store(["a".to_owned(), "a~2".to_owned()]), Names::default());
        assert_eq!(newest(&names, &store, "a"), [1, 2]);
        for gone in ["j/a", "j/a~2"] {
            store.remove_dir(Path::new(gone)).expect("removed");
        }
        take(&store, "a~33");
        assert_eq!(newest(&names, &store, "a"), [33]);
    }

    #[test]
    fn another_incarnation_lists_the_directory_again() {
        let (store, names) = (store(["a".to_owned()]), Names::default());
        assert_eq!(newest(&names, &store, "a"), [1]);
        take(&store, "b~7");
        assert!(newest(&names, &store, "b").is_empty(), "no incarnation uses the seventh name first");
        assert_eq!(names.newest(&store, &key("b"), 2).expect("looks"), [7]);
    }

    #[test]
    fn more_names_than_are_remembered_are_listed_each_time() {
        let (store, names) = (store((0..NAMES_MAX + 1).map(|n| format!("it_{n}"))), Names::default());
        for _ in 0..2 {
            assert_eq!(newest(&names, &store, "it_1"), [1]);
        }
        assert!(names.0.lock().expect("not poisoned").is_empty());
    }
}
