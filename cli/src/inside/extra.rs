//! The files of a directory that a checkpoint does not have.

use super::sides::Side;
use crate::advice::At;
use anyhow::Context;
use mcrengine::ids::{FilePath, shape_of};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// The regular files below a directory that the checkpoint does not have, sorted. A run directory also has the files
/// of other checkpoints, which are left out: a path that differs from the paths of the checkpoint only in a number
/// that is equal in all of them, such as the number of the step.
pub fn extra_files(dir: &Path, checkpoint: &Side) -> anyhow::Result<Vec<String>> {
    let known: HashSet<FilePath> =
        checkpoint.places().into_iter().map(|place| checkpoint.header(place).path.clone()).collect();
    let steps = Steps::of(known.iter().map(ToString::to_string));
    let mut extra = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(at) = open.pop() {
        let unreadable = || At::new(&at, "the directory cannot be read");
        for entry in std::fs::read_dir(&at).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let (kind, path) = (entry.file_type().with_context(unreadable)?, entry.path());
            // The locks and the directories of moved files of `mcr restart`.
            if entry.file_name().as_encoded_bytes().starts_with(b".mcr-") {
                continue;
            }
            if kind.is_dir() {
                open.push(path);
                continue;
            }
            let below = path.strip_prefix(dir).unwrap_or(&path);
            let is_extra = |path: &FilePath| !known.contains(path) && !steps.is_of_another(&path.to_string());
            if kind.is_file()
                && let Ok(path) = FilePath::new(below.as_os_str().as_encoded_bytes())
                && is_extra(&path)
            {
                extra.push(path.to_string());
            }
        }
    }
    extra.sort_unstable();
    Ok(extra)
}

/// The numbers in the paths of a checkpoint. For each shape of a path: each number of the path, if it is equal in all
/// paths of this shape.
struct Steps(BTreeMap<Vec<u8>, Vec<Option<String>>>);

impl Steps {
    fn of(paths: impl Iterator<Item = String>) -> Self {
        let mut of_shape: BTreeMap<Vec<u8>, Vec<Option<String>>> = BTreeMap::new();
        for path in paths {
            let numbers = numbers_of(&path);
            match of_shape.get_mut(&shape_of(&path)) {
                None => drop(of_shape.insert(shape_of(&path), numbers.map(|n| Some(n.to_owned())).collect())),
                Some(known) => {
                    for (known, number) in known.iter_mut().zip(numbers) {
                        *known = known.take().filter(|known| known == number);
                    }
                }
            }
        }
        Self(of_shape)
    }

    /// Whether a path looks like a file of another checkpoint.
    fn is_of_another(&self, path: &str) -> bool {
        let known = self.0.get(&shape_of(path));
        known.is_some_and(|known| {
            known.iter().zip(numbers_of(path)).any(|(known, number)| known.as_ref().is_some_and(|k| k != number))
        })
    }
}

fn numbers_of(path: &str) -> impl Iterator<Item = &str> {
    path.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_step_is_known_by_its_number_and_a_file_of_another_rank_is_not() {
        let steps = Steps::of(["ck_2.0", "ck_2.1", "log.txt"].map(str::to_owned).into_iter());
        assert!(steps.is_of_another("ck_1.0") && steps.is_of_another("ck_3.7"));
        assert!(!steps.is_of_another("ck_2.7") && !steps.is_of_another("extra") && !steps.is_of_another("log.txt"));
    }
}
