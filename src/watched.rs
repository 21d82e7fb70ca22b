//! Notes on the directories from which the last run of a job was saved. A run in other directories is another run.
//!
//! If two runs are started by hand, one after the other, only the directories to which the runs write distinguish the
//! runs. Therefore an aggregator writes a note before the first commit of a run. The note lists the directories that
//! the agents of the run watch. The file is `JOB/.holders/watched`, or `watched-DIGEST` for a run with an identity.
//! The note outlives the aggregator. Unlike the files of [`crate::living`], the note does not show whether the run is
//! alive.

use crate::ids::{Digest, JobId};
use crate::living::{WATCHES_MAX, digests_of, directory, text_of};
use crate::manifest;
use crate::store::{Store, StoreError, create_dirs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The note of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The number of the incarnation; 0 if the job has no incarnation.
    pub incarnation: u32,
    /// The first 16 hexadecimal digits of the BLAKE3 of each directory that an agent watched.
    pub watches: BTreeSet<String>,
}

impl Watched {
    /// Makes a note. `directories` are the directories that the agents of the job watch.
    pub fn new<'a>(incarnation: u32, directories: impl Iterator<Item = &'a str>) -> Self {
        Self { incarnation, watches: digests_of(directories) }
    }

    /// Reads the note for an identity. `None` if there is no note, or if the note cannot be read. A note that cannot
    /// be read is replaced later.
    pub fn load(store: &dyn Store, job: &JobId, identity: &str) -> Option<Self> {
        let text = text_of(store, &directory(job).join(name_of(identity)))?;
        serde_json::from_str(&text).ok()
    }

    /// Whether another run left a partly committed checkpoint, which this run must not complete. `before` is the note
    /// of the other run.
    pub fn would_complete_another_run(
        &self,
        before: &Self,
        store: &dyn Store,
        job: &JobId,
    ) -> Result<bool, StoreError> {
        if before.incarnation != self.incarnation || !before.watches.is_disjoint(&self.watches) {
            return Ok(false);
        }
        let is_half = |state: &manifest::CheckpointState| {
            state.groups > 0
                && !state.is_complete()
                && state.place.is_some_and(|place| place.incarnation == self.incarnation)
        };
        Ok(manifest::list(store, job)?.iter().any(is_half))
    }

    /// Writes the note, durably. If `before` is a note of the same run, the directories of `before` are kept in the
    /// note.
    pub fn note(
        mut self,
        before: Option<Self>,
        store: &dyn Store,
        job: &JobId,
        identity: &str,
    ) -> Result<Self, StoreError> {
        if let Some(before) = before {
            let is_same_run = before.incarnation == self.incarnation && !before.watches.is_disjoint(&self.watches);
            if is_same_run {
                let both = before.watches.union(&self.watches).take(WATCHES_MAX).cloned().collect();
                self.watches = both;
            }
            if self == before {
                return Ok(self);
            }
        }
        let (dir, name) = (directory(job), name_of(identity));
        create_dirs(store, &dir)?;
        let mut file = store.create_temp(&dir, &name)?;
        let text = serde_json::to_string(&self).map_err(|error| StoreError::Contents {
            path: dir.join(&name),
            what: format!("its text cannot be written: {error}"),
        })?;
        file.append(text.as_bytes())?;
        file.sync()?;
        store.rename(file.path(), &dir.join(&name))?;
        store.sync_dir(&dir)?;
        Ok(self)
    }
}

fn name_of(identity: &str) -> String {
    match identity.is_empty() {
        true => "watched".to_owned(),
        false => format!("watched-{}", Digest::of(identity.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PosixStore;

    fn of(incarnation: u32, watches: &[&str]) -> Watched {
        Watched { incarnation, watches: watches.iter().map(|watch| (*watch).to_owned()).collect() }
    }

    #[test]
    fn a_note_grows_with_the_agents_of_a_run_and_is_replaced_by_another_run_or_incarnation() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = PosixStore::create(dir.path().join("store")).expect("creates");
        let job: JobId = "job".parse().expect("valid");
        assert_eq!(Watched::load(&store, &job, ""), None);
        let note = |watched: Watched| {
            let before = Watched::load(&store, &job, "");
            let noted = watched.note(before, &store, &job, "").expect("a store");
            assert_eq!(Watched::load(&store, &job, ""), Some(noted.clone()));
            noted
        };
        assert_eq!(note(of(0, &["a"])), of(0, &["a"]));
        assert_eq!(note(of(0, &["a", "b"])), of(0, &["a", "b"]));
        assert_eq!(note(of(0, &["b", "c"])), of(0, &["a", "b", "c"]));
        assert_eq!(note(of(0, &["d"])), of(0, &["d"]));
        assert_eq!(note(of(1, &["d", "e"])), of(1, &["d", "e"]));
        assert_eq!(Watched::load(&store, &job, "7"), None, "identities are kept apart");
    }
}
