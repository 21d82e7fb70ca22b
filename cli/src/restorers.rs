//! Receives the bytes of files to be restored, and distinguishes faults of the checkpoint from faults of the
//! receiving side.

use mcr_anc::restart::{Sink, SinkError};
use mcr_cnc::restart::{FileRestorer, RestoreError, Target, VerifiedFile, descriptors_share};
use mcrengine::container::ReadError;
use mcrengine::header::{FileHeader, FileKind};
use mcrengine::ids::FilePath;
use mcrengine::store::Advice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The cause of a failed restart.
pub enum Failure {
    /// A fault in the checkpoint. An older checkpoint may be restorable.
    Checkpoint(anyhow::Error),
    /// The store did not deliver the bytes, or this build cannot read the format. The checkpoint may be good.
    Unreadable(anyhow::Error),
    /// A fault of the target directory or of this node. Every other checkpoint would fail too.
    Receiver(anyhow::Error),
}

/// Converts an error of reading a checkpoint to a [`Failure`]. Only bytes that are missing or wrong are a fault of
/// the checkpoint. An I/O error is no fault of the checkpoint.
pub fn unread(error: ReadError) -> Failure {
    let advice = error.advice();
    of_advice(advice, anyhow::anyhow!(error))
}

/// Converts an error of reading a part of a checkpoint to a [`Failure`]. `advice` is the advice of the error.
pub fn of_advice(advice: Advice, error: anyhow::Error) -> Failure {
    if advice == Advice::OlderCheckpoint { Failure::Checkpoint(error) } else { Failure::Unreadable(error) }
}

/// Converts an error of the receiving side to a [`Failure`].
pub fn receiver(error: anyhow::Error) -> Failure {
    Failure::Receiver(error.context("writing the restored files"))
}

/// The files of a group that are being restored.
pub struct Restorers {
    /// One restorer for each file of the sender's list. `None` for files that are not wanted, and for directories.
    files: Vec<Option<FileRestorer>>,
    /// The wanted directories and their permission bits.
    directories: Vec<(FilePath, u32)>,
}

impl Restorers {
    /// Creates a temporary file for each wanted header.
    pub fn create(
        to: &Arc<Target>,
        files: &[FileHeader],
        wanted: &dyn Fn(&FileHeader) -> bool,
    ) -> Result<Self, Failure> {
        let make = |(place, file): (usize, &FileHeader)| {
            if !wanted(file) || file.kind == FileKind::Directory {
                return Ok(None);
            }
            let named = match file.kind {
                FileKind::HardLink(before) => place.checked_sub(before.get() as usize).map(|at| files[at].path.clone()),
                _ => None,
            };
            FileRestorer::create_in(to, Arc::new(file.clone())).map(|file| Some(file.is_named(named)))
        };
        let all: Result<Vec<_>, RestoreError> = files.iter().enumerate().map(make).collect();
        let directories = files.iter().filter(|file| file.kind == FileKind::Directory && wanted(file));
        let directories = directories.map(|file| (file.path.clone(), file.mode)).collect();
        all.map(|files| Self { files, directories }).map_err(|error| receiver(error.into()))
    }

    /// Takes the directories. Later calls return an empty list.
    pub fn take_directories(&mut self) -> Vec<(FilePath, u32)> {
        std::mem::take(&mut self.directories)
    }
}

impl Sink for Restorers {
    fn write(&self, file: u32, variable: u32, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        match self.files.get(file as usize) {
            Some(Some(restorer)) => Ok(restorer.write(variable as usize, offset, bytes)?),
            _ => Err(format!("bytes for file {file}, which was not asked for").into()),
        }
    }
}

/// Converts an error of a file to a [`Failure`]. Either the disk failed, or the bytes do not agree with the headers.
pub fn sink_failure(error: SinkError) -> Failure {
    let blames_checkpoint = error.downcast_ref::<RestoreError>().is_none_or(RestoreError::blames_checkpoint);
    let error = anyhow::anyhow!(error);
    if blames_checkpoint { Failure::Checkpoint(error) } else { receiver(error) }
}

/// Number of files that are synced at the same time. A file system makes several files durable in one step if they
/// are synced together.
const SYNCS_AT_A_TIME: usize = 16;

/// Compares every file with its digest, on several threads.
pub fn verify_all(restorers: Restorers, threads: usize, sync: bool) -> Result<Vec<VerifiedFile>, Failure> {
    let restorers: Vec<Mutex<Option<FileRestorer>>> =
        restorers.files.into_iter().flatten().map(|r| Mutex::new(Some(r))).collect();
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(restorers.len())), Mutex::new(None));
    std::thread::scope(|scope| {
        let threads = if sync { threads.max(SYNCS_AT_A_TIME) } else { threads };
        // Each thread opens a file and, for a moment, two directories on the path to the file.
        let threads = threads.min(descriptors_share());
        for _ in 0..threads.clamp(1, restorers.len().max(1)) {
            scope.spawn(|| {
                while let Some(restorer) = restorers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(restorer) = restorer.lock().unwrap_or_else(PoisonError::into_inner).take() else {
                        continue;
                    };
                    match restorer.verify(sync) {
                        Ok(file) => done.lock().unwrap_or_else(PoisonError::into_inner).push(file),
                        Err(error) => drop(failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error)),
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(sink_failure(error.into())),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use std::path::PathBuf;

    #[test]
    fn an_error_of_the_file_system_is_no_fault_of_the_checkpoint() {
        let io = |source| ReadError::Io { path: PathBuf::from("c"), offset: 0, len: 8, source };
        for kind in [ErrorKind::TimedOut, ErrorKind::PermissionDenied, ErrorKind::StaleNetworkFileHandle] {
            assert!(matches!(unread(io(Error::from(kind))), Failure::Unreadable(_)), "{kind}");
        }
        assert!(matches!(unread(io(Error::from_raw_os_error(5))), Failure::Unreadable(_)), "EIO");
        assert!(matches!(unread(io(Error::from(ErrorKind::UnexpectedEof))), Failure::Checkpoint(_)), "it is cut");
        assert!(matches!(unread(ReadError::Missing { path: PathBuf::from("c") }), Failure::Checkpoint(_)));
    }
}
