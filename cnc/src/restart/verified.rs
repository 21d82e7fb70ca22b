//! Files with verified content, before and after they get their final names.

use super::RestoreError;
use super::directories::directory;
use super::target::Temporary;
use crate::fingerprint::Fingerprint;
use mcrengine::header::FileHeader;
use mcrengine::ids::FilePath;
use nix::unistd::fsync;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// A file with verified content and a temporary name. Dropping this value removes the file.
#[derive(Debug)]
pub struct VerifiedFile {
    pub(super) header: Arc<FileHeader>,
    pub(super) temporary: Temporary,
    /// Fingerprint of the file before the rename. The rename changes the file's change time.
    pub(super) print: Fingerprint,
    /// Whether the file is marked as restored.
    pub(super) is_marked: bool,
    /// The fingerprint of the existing file under the final name, and whether its content is the same. `None` if
    /// there is no existing file of the same length.
    pub(super) compared: Option<(Fingerprint, bool)>,
    /// The path of another file of the checkpoint, if this file is a hard link of the other file.
    pub(super) named: Option<FilePath>,
}

impl VerifiedFile {
    /// Length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    /// Whether this is an ordinary file, not a companion such as a link.
    pub fn is_file(&self) -> bool {
        self.header.kind.is_file()
    }

    /// Renames the file to its final name. An existing file or symbolic link with this name is replaced.
    pub fn publish(self) -> Result<RestoredFile, RestoreError> {
        self.temporary.rename()?;
        Ok(RestoredFile { path: self.header.path.clone(), bytes: self.header.bytes })
    }

    /// The path and fingerprint to record as restored. `None` if the file itself is marked as restored.
    pub(super) fn unmarked(&self) -> Option<(FilePath, Fingerprint)> {
        (!self.is_marked).then(|| (self.header.path.clone(), self.print))
    }
}

/// A restored file under its final name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredFile {
    /// Path below the target directory.
    pub path: FilePath,
    /// Length in bytes.
    pub bytes: u64,
}

/// Syncs `to` and every directory on the way to one of the files, so that the file names are durable.
pub fn sync_dirs(to: &Path, files: &[RestoredFile]) -> Result<(), RestoreError> {
    // A path with one more component represents the directory of this component.
    let mut holders: BTreeSet<Vec<u8>> = BTreeSet::from([b"x".to_vec()]);
    for file in files {
        let bytes = file.path.as_bytes();
        for (at, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b'/') {
            holders.insert([&bytes[..=at], b"x"].concat());
        }
    }
    for holder in holders {
        let path = FilePath::new(holder).expect("a prefix of a path and a letter are a path");
        let fd = directory(to, &path, None)?;
        fsync(fd.as_fd()).map_err(|e| RestoreError::Io {
            path: to.join(path.as_path()).parent().unwrap_or(to).to_owned(),
            what: "syncing the directory",
            source: e.into(),
        })?;
    }
    Ok(())
}
