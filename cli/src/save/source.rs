//! Notes from which directory `mcr save` saved a job. The default name of a job is only the last part of a path, so two
//! runs in `a/out` and `b/out` would become one job.

use crate::advice::Advised;
use crate::output::name_of;
use mcrengine::ids::JobId;
use mcrengine::incarnation;
use mcrengine::store::{Store, StoreError};
use mcrengine::watched::Watched;
use std::path::Path;

/// The name of the note, in place of the identity of a run.
const SAVES: &str = "mcr save";

/// The note of this save.
pub struct Source {
    now: Watched,
    before: Option<Watched>,
}

impl Source {
    /// Reads the note of the last save of this job. `dir` is an absolute path without symbolic links.
    pub fn of(store: &dyn Store, job: &JobId, dir: &Path) -> Result<Self, StoreError> {
        let now = Watched::new(incarnation::newest_number(store, job)?, [&*dir.to_string_lossy()].into_iter());
        Ok(Self { now, before: Watched::load(store, job, SAVES) })
    }

    /// Fails if the last save of the job was of another directory, and no restart came after it.
    pub fn refuse_another_run(&self, job: &JobId, dir: &Path) -> Result<(), Advised> {
        let Some(before) = &self.before else { return Ok(()) };
        if before.incarnation != self.now.incarnation || !before.watches.is_disjoint(&self.now.watches) {
            return Ok(());
        }
        let what = format!("{}: the store has a job {job}, which was saved from another directory", name_of(dir));
        let advice = format!(
            "if this is another run, give it a name of its own with --job; if it is the same run, give --job {job}"
        );
        Err(Advised::new(what, advice).at(dir))
    }

    /// Writes the note, durably. `is_named`: the user gave the name of the job. Then the store has a note only if an
    /// earlier save used the default name.
    pub fn note(self, store: &dyn Store, job: &JobId, is_named: bool) -> Result<(), StoreError> {
        if is_named && self.before.is_none() {
            return Ok(());
        }
        self.now.note(self.before, store, job, SAVES).map(|_| ())
    }
}
