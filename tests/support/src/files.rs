//! Functions for the files below a directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lengths and names of all files below a folder.
pub fn files_below(folder: &Path) -> Vec<(u64, PathBuf)> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => files.push((metadata.len(), entry.path())),
                Err(_) => {}
            }
        }
    }
    files.sort();
    files
}

/// Bytes of all files below a folder.
pub fn bytes_below(folder: &Path) -> u64 {
    files_below(folder).iter().map(|(bytes, _)| bytes).sum()
}

/// Every file below a directory, with its bytes.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                let relative = path.strip_prefix(dir).expect("below").to_owned();
                found.insert(relative, std::fs::read(&path).expect("readable"));
            }
        }
    }
    found
}

/// Checks that both directories hold the same files with the same bytes.
pub fn assert_same_files(expected: &BTreeMap<PathBuf, Vec<u8>>, found: &BTreeMap<PathBuf, Vec<u8>>) {
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(expected), names(found));
    for (path, bytes) in expected {
        assert!(found[path] == *bytes, "{} differs", path.display());
    }
}
