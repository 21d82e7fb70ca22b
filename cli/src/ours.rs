//! Tells the jobs and checkpoints of mcr from other directories, so that a wrong --store is noticed.

use crate::advice::Advised;
use crate::output::name_of;
use mcrengine::ids::{CheckpointId, JobId};
use mcrengine::manifest::{self, CheckpointState};
use mcrengine::store::{Entry, Store, visible};
use std::path::Path;

/// The directory of a job in which the starts of the job are recorded.
const RECORDS: &str = ".incarnations";
/// Files that mark a checkpoint.
const MARKS: [&str; 6] = ["pruned", "bad", "damaged", "doubtful", "certain", "spoiled"];

/// What a directory holds, from the least to the most certain sign of mcr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    /// Nothing. A writer may have made the directory a moment ago.
    Nothing,
    /// Only files of other programs.
    Other,
    /// The directory cannot be read, so it may have files of mcr.
    Unknown,
    /// A file of mcr: a manifest, a container, the temporary file of a writer, a mark, or a record of a start.
    Ours,
}

/// The jobs of a store: the directories with files of mcr, and the directories that may get such files.
///
/// # Errors
///
/// The store cannot be read, or it holds only directories or files of other programs. `root`: the directory of the
/// store.
pub fn jobs(store: &dyn Store, root: &Path) -> anyhow::Result<Vec<JobId>> {
    let found = manifest::jobs(store)?.into_iter().map(|job| (of_job(store, &job), job)).collect::<Vec<_>>();
    let has = |wanted: Holds| found.iter().any(|(holds, _)| *holds == wanted);
    let has_others = has(Holds::Other) || found.is_empty() && has_files(store)?;
    if has_others && !has(Holds::Ours) {
        let what = format!("{} is no store of mcr: it has other files, and holds no checkpoint", name_of(root));
        return Err(Advised::new(
            what,
            "name a store with --store or MCR_STORE; a new store must be an empty directory",
        )
        .at(root)
        .into());
    }
    Ok(found.into_iter().filter(|(holds, _)| *holds != Holds::Other).map(|(_, job)| job).collect())
}

/// Whether the directory of the store itself has visible files. mcr writes none there.
fn has_files(store: &dyn Store) -> anyhow::Result<bool> {
    let entries = store.list_dir(Path::new(""))?;
    Ok(entries.iter().any(|entry| !entry.is_dir && visible(&entry.name)))
}

/// Whether the directory of this checkpoint has only files of other programs.
pub fn is_foreign(store: &dyn Store, job: &JobId, state: &CheckpointState) -> bool {
    let is_known = state.place.is_some() || state.is_pruned || state.is_damaged || state.is_unreadable;
    !is_known && of_checkpoint(store, &Path::new(job.as_str()).join(state.id.as_str())) == Holds::Other
}

fn of_job(store: &dyn Store, job: &JobId) -> Holds {
    let dir = Path::new(job.as_str());
    let entries = match store.list_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.is_not_found() => return Holds::Nothing,
        Err(_) => return Holds::Unknown,
    };
    if entries.iter().any(|entry| entry.is_dir && entry.name == RECORDS) {
        return Holds::Ours;
    }
    let mut most = Holds::Nothing;
    for entry in entries.iter().filter(|entry| visible(&entry.name)) {
        let is_checkpoint = entry.is_dir && entry.name.parse::<CheckpointId>().is_ok();
        most = most.max(if is_checkpoint { of_checkpoint(store, &dir.join(&entry.name)) } else { Holds::Other });
        if most == Holds::Ours {
            break;
        }
    }
    most
}

fn of_checkpoint(store: &dyn Store, dir: &Path) -> Holds {
    match store.list_dir(dir) {
        Ok(entries) if entries.iter().any(is_ours) => Holds::Ours,
        Ok(entries) if entries.is_empty() => Holds::Nothing,
        Ok(_) => Holds::Other,
        Err(error) if error.is_not_found() => Holds::Nothing,
        Err(_) => Holds::Unknown,
    }
}

/// Whether a file in the directory of a checkpoint has a name that mcr gives. The name of a temporary file is a dot,
/// the final name, a dot, and a unique text.
fn is_ours(entry: &Entry) -> bool {
    let temporary = entry.name.strip_prefix('.').and_then(|name| name.rsplit_once('.')).map(|(name, _)| name);
    let name = temporary.unwrap_or(&entry.name);
    let of_group = name.strip_prefix("group-").and_then(|name| name.split_once('.'));
    let is_of_group = of_group.is_some_and(|(number, end)| {
        number.parse::<u32>().is_ok() && (end.starts_with("mcr") || end.starts_with("manifest"))
    });
    !entry.is_dir && (is_of_group || MARKS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_mcr_are_known_also_while_a_file_is_written() {
        let is_ours = |name: &str| is_ours(&Entry { name: name.to_owned(), is_dir: false });
        for name in ["group-0000.mcr", "group-0012.manifest", ".group-0000.mcr.4f2a", "group-0000.mcr.parity", "bad"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["group", "group-x.mcr", "passwd", ".bashrc", "group-0000.conf"] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
