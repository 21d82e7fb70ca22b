//! Where one run of the application ends and the next begins, within a job.
//!
//! A run that died may have left a checkpoint half committed: some groups are there, the others never will be. The next
//! run writes a checkpoint of the same name, perhaps with other bytes, and its groups must not complete the dead one. So
//! every restart leaves a mark with its time in the job's directory, and files that were written before and after a mark
//! are never one checkpoint.

use crate::ids::JobId;
use crate::store::{Store, StoreError, create_dirs};
use std::path::{Path, PathBuf};

/// How the name of a mark begins; milliseconds since 1970 follow.
const PREFIX: &str = "run-";
/// The marks that are kept: older ones tell nothing of what is still being written.
const MARKS_MAX: usize = 64;

/// One run of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// As manifests name it; empty before the first restart.
    pub name: String,
    /// When it began, in milliseconds since 1970; `i64::MIN` before the first restart.
    pub began_unix_ms: i64,
}

/// Marks the beginning of a run, at a time in milliseconds since 1970. Marking twice is marking once.
pub fn begin_run(store: &dyn Store, job: &JobId, now_unix_ms: u64) -> Result<(), StoreError> {
    let dir = Path::new(job.as_str());
    create_dirs(store, dir)?;
    let name = format!("{PREFIX}{now_unix_ms}");
    let mut mark = store.create_temp(dir, &name)?;
    mark.sync()?;
    store.rename(mark.path(), &dir.join(&name))?;
    store.sync_dir(dir)?;
    let marks = marks(store, dir)?;
    for (_, name) in &marks[..marks.len().saturating_sub(MARKS_MAX)] {
        store.remove_file(&dir.join(name))?;
    }
    Ok(())
}

/// The run in which files were written whose newest was modified at a time in milliseconds since 1970.
pub fn run_of(store: &dyn Store, job: &JobId, written_unix_ms: i64) -> Result<Run, StoreError> {
    let marks = match marks(store, Path::new(job.as_str())) {
        Err(error) if error.is_not_found() => Vec::new(),
        other => other?,
    };
    let newest = marks.into_iter().rev().find(|(began_unix_ms, _)| *began_unix_ms <= written_unix_ms);
    Ok(match newest {
        Some((began_unix_ms, name)) => Run { name: name.display().to_string(), began_unix_ms },
        None => Run { name: String::new(), began_unix_ms: i64::MIN },
    })
}

/// The marks of a job, the oldest first.
fn marks(store: &dyn Store, dir: &Path) -> Result<Vec<(i64, PathBuf)>, StoreError> {
    let mark = |name: &str| Some((name.strip_prefix(PREFIX)?.parse().ok()?, PathBuf::from(name)));
    let entries = store.list_dir(dir)?;
    let mut marks: Vec<_> = entries.iter().filter(|e| !e.is_dir).filter_map(|entry| mark(&entry.name)).collect();
    marks.sort();
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn files_belong_to_the_run_that_began_before_they_were_written() {
        let (store, job) = (MemoryStore::new(), "j".parse().expect("valid"));
        let run = |ms| run_of(&store, &job, ms).expect("lists").name;
        assert_eq!(run(5), "", "no job, no run");
        begin_run(&store, &job, 1000).expect("marks");
        begin_run(&store, &job, 1000).expect("marks once more");
        begin_run(&store, &job, 2000).expect("marks");
        assert_eq!([run(999), run(1000), run(1999), run(2000)], ["", "run-1000", "run-1000", "run-2000"]);
    }

    #[test]
    fn old_marks_are_let_go() {
        let (store, job) = (MemoryStore::new(), "j".parse().expect("valid"));
        (0..100).for_each(|ms| begin_run(&store, &job, ms).expect("marks"));
        assert_eq!(store.list_dir(Path::new("j")).expect("lists").len(), MARKS_MAX);
        assert_eq!(run_of(&store, &job, 99).expect("lists").name, "run-99");
    }
}
