//! Finds pointer files of later checkpoints in the target directory. Such a file would lead the application to a
//! checkpoint that is newer than the restored checkpoint.
//!
//! A pointer file has a usual name ([`is_pointer_name`]) and lies in a directory above the checkpoint's files, and it
//! is not part of the checkpoint. The caller compares the times. A pointer file that was written late may name the
//! restored checkpoint. Such a file stays.

use super::later::shape;
use crate::companions::{POINTER_BYTES_MAX, is_pointer_name, words_in};
use mcrengine::ids::{FilePath, natural_cmp};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names in the paths of the restored checkpoint.
pub(super) struct Stale<'a> {
    paths: BTreeSet<&'a FilePath>,
    /// The directories above the files, without the directories of the checkpoint itself.
    directories: BTreeSet<PathBuf>,
    /// The components of the paths by their shapes. They are collected when the first pointer file is found.
    names: OnceCell<BTreeMap<Vec<u8>, BTreeSet<&'a [u8]>>>,
}

impl<'a> Stale<'a> {
    /// `paths`: all files of the checkpoint. `label`: the label of the checkpoint, if it is known.
    pub(super) fn new(paths: BTreeSet<&'a FilePath>, label: Option<&str>) -> Self {
        let is_own = |dir: &Path| label.is_some_and(|label| dir.components().any(|part| part.as_os_str() == label));
        let above = paths.iter().flat_map(|path| path.as_path().ancestors().skip(1));
        let directories = above.filter(|dir| !is_own(dir)).map(Path::to_owned).collect();
        Self { paths, directories, names: OnceCell::new() }
    }

    /// Whether the file has the name and the place of a pointer file. `path` is relative to the target directory.
    pub(super) fn may_be(&self, path: &FilePath) -> bool {
        let directory = path.as_path().parent().unwrap_or(Path::new(""));
        is_pointer_name(path.name()) && self.directories.contains(directory)
    }

    /// Whether the text of a pointer file leads to a later checkpoint. A file that is too long or no text is no
    /// pointer file. A text without a known name may lead to a later checkpoint.
    pub(super) fn leads_on(&self, file: &Path) -> bool {
        let is_short = file.symlink_metadata().is_ok_and(|stat| stat.is_file() && stat.len() <= POINTER_BYTES_MAX);
        let Some(content) = is_short.then(|| std::fs::read(file).ok()).flatten() else { return false };
        let words = words_in(&content);
        let names = self.names.get_or_init(|| self.names());
        let (mut names_this, mut names_later) = (false, false);
        for word in &words {
            let name = word.trim_end_matches('/').rsplit('/').next().unwrap_or(word).as_bytes();
            let Some(known) = names.get(&shape(name)) else { continue };
            names_this |= known.contains(name);
            names_later |= known.iter().all(|known| natural_cmp(name, known).is_gt());
        }
        !words.is_empty() && (names_later || !names_this)
    }

    fn names(&self) -> BTreeMap<Vec<u8>, BTreeSet<&'a [u8]>> {
        let mut names: BTreeMap<Vec<u8>, BTreeSet<&'a [u8]>> = BTreeMap::new();
        for path in &self.paths {
            for name in path.as_bytes().split(|&b| b == b'/') {
                names.entry(shape(name)).or_default().insert(name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_file_is_stale_unless_it_names_the_restored_checkpoint_as_the_newest() {
        let path = |text: &str| FilePath::new(text.as_bytes()).expect("valid");
        let of_checkpoint = ["out/case.cpl.r.0003.nc", "out/case.cam.r.0003.nc", "out/DD0018/x"].map(path);
        let stale = Stale::new(of_checkpoint.iter().collect(), Some("DD0018"));
        assert!(stale.may_be(&path("out/rpointer.drv")) && stale.may_be(&path("latest")));
        assert!(!stale.may_be(&path("out/DD0018/latest")), "the directory belongs to the checkpoint");
        assert!(!stale.may_be(&path("other/latest")) && !stale.may_be(&path("out/state")));
        let dir = tempfile::tempdir().expect("a directory");
        for (text, leads_on) in [
            (&b"case.cpl.r.0004.nc\n"[..], true),
            (b"run a, step 3\n./case.cpl.r.0003.nc\n", false),
            (b"DD0017\nDD0018\n", false),
            (b"DD0017/\nDD0018/\nDD0019/\n", true),
            (b"step 4\n", true),
            (b"", false),
            (b"\xff\xfe", false),
        ] {
            let file = dir.path().join("rpointer.drv");
            std::fs::write(&file, text).expect("written");
            assert_eq!(stale.leads_on(&file), leads_on, "{}", String::from_utf8_lossy(text));
        }
    }
}
