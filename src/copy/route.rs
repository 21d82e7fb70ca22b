//! The source and the destination of a copy.

use crate::ids::JobId;
use crate::store::Store;
use std::path::{Path, PathBuf};

/// A job in a store.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// The store.
    pub store: &'a dyn Store,
    /// The job.
    pub job: &'a JobId,
}

/// The source and the destination of a copy.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    /// The job whose checkpoints are copied.
    pub from: Side<'a>,
    /// The job that receives the checkpoints.
    pub to: Side<'a>,
}

impl Side<'_> {
    /// The full path of a file or directory, for messages.
    pub(crate) fn full(&self, path: &Path) -> PathBuf {
        self.store.root().join(path)
    }

    /// The full path of the job's directory, for messages.
    pub(crate) fn full_job(&self) -> PathBuf {
        self.full(Path::new(self.job.as_str()))
    }
}

impl Route<'_> {
    /// Whether the two jobs have the same name.
    pub(crate) fn keeps_name(&self) -> bool {
        self.from.job == self.to.job
    }
}
