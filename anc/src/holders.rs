//! Decides which aggregator saves a group of a job.
//!
//! Two runs can have the same name and the same identity, for example two runs that were started by hand, or two
//! steps of one SLURM job. If each of these runs has its own aggregator, only this module separates the runs. An
//! aggregator holds a file in `JOB/.holders` from its first commit for a group until the last agent of the job has
//! disconnected. An aggregator commits nothing for a group that another aggregator holds for the same identity, or
//! while another aggregator saves another run of the job. If the identities differ, the run with the newer identity
//! is saved. The aggregator locks the file by `flock`, and the kernel removes the lock when the process ends. On a
//! file system without locks between nodes, only runs on the same node are separated.

use crate::group::Key;
use mcrengine::ids::{GroupId, JobId};
use mcrengine::living::{self, GroupHolder};
use mcrengine::store::{Store, StoreError, TempFile};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Job, group and identity.
type Place = (JobId, GroupId, String);

/// The groups that this process holds.
#[derive(Default)]
pub struct Holders(Mutex<BTreeMap<Place, Box<dyn TempFile>>>);

impl std::fmt::Debug for Holders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.lock().unwrap_or_else(PoisonError::into_inner).keys()).finish()
    }
}

impl Holders {
    /// Holds a group for an identity, if no aggregator of another run saves the job. Otherwise returns the
    /// description of that aggregator.
    pub fn hold(
        &self,
        store: &dyn Store,
        key: &Key,
        identity: &str,
        holder: &GroupHolder,
    ) -> Result<Option<String>, StoreError> {
        let place = (key.job.clone(), key.group, identity.to_owned());
        let is_first = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if all.contains_key(&place) {
                return Ok(None);
            }
            !all.keys().any(|(job, _, of)| *job == key.job && of == identity)
        };
        match living::take(store, &key.job, key.group, identity, holder, is_first)? {
            Err(other) => Ok(Some(other)),
            Ok(file) => {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, file);
                Ok(None)
            }
        }
    }

    /// Releases all groups of a job, and removes their files.
    pub fn release(&self, job: &JobId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (released, kept): (BTreeMap<_, _>, _) =
            std::mem::take(&mut *all).into_iter().partition(|((of, _, _), _)| of == job);
        *all = kept;
        drop(all);
        drop(released);
    }

    /// Whether this process holds any group of a job.
    pub fn holds(&self, job: &JobId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().any(|(of, _, _)| of == job)
    }
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
        let of = |who: &str, watch: &'static str| GroupHolder::new(who.to_owned(), [watch].into_iter());
        let (one, two) = (Holders::default(), Holders::default());
        assert_eq!(one.hold(&store, &key(0), "", &of("node n0", "/run")).expect("a store"), None);
        assert_eq!(
            one.hold(&store, &key(0), "", &of("node n0", "/run")).expect("a store"),
            None,
            "the aggregator holds the group already"
        );
        assert_eq!(two.hold(&store, &key(0), "", &of("node n1", "/run")).expect("a store").as_deref(), Some("node n0"));
        assert_eq!(two.hold(&store, &key(1), "", &of("node n1", "/run")).expect("a store"), None, "another group");
        assert_eq!(two.hold(&store, &key(0), "7", &of("node n1", "/run")).expect("a store"), None, "another identity");
        assert_eq!(
            one.hold(&store, &key(0), "7", &of("node n0", "/run")).expect("a store").as_deref(),
            Some("node n1")
        );
        let elsewhere = of("node n1", "/other");
        assert_eq!(
            Holders::default().hold(&store, &key(2), "", &elsewhere).expect("a store").as_deref(),
            Some("node n0"),
            "another run"
        );
        one.release(&key(0).job);
        assert_eq!(two.hold(&store, &key(0), "", &of("node n1", "/run")).expect("a store"), None);
        assert!(two.holds(&key(0).job) && !one.holds(&key(0).job));
        drop(two);
        assert_eq!(
            one.hold(&store, &key(1), "", &of("node n0", "/run")).expect("a store"),
            None,
            "the other aggregator has ended"
        );
    }
}
