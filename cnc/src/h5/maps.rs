//! Chooses how an HDF5 file is read: with the parser, or with a process that runs the HDF5 library.

use super::classic::Classic;
use super::worker::MapWorker;
use super::{FileMap, H5Error, MapInput, MapSource};
use std::io;
use std::process::Command;

/// The source of maps in production. Normally the parser in `classic.rs` maps a file. If this parser does not support
/// a file, a process that runs the HDF5 library maps the file.
pub struct Maps {
    worker: MapWorker,
}

impl Maps {
    /// Uses this program, started with the argument [`super::WORKER_ARGUMENT`], as the library's process.
    pub fn new() -> Self {
        Self { worker: MapWorker::new() }
    }

    /// Starts the library's process with this command. The `main` of the started program must call
    /// [`super::worker_main`].
    pub fn with_command(command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) -> Self {
        Self { worker: MapWorker::with_command(command) }
    }
}

impl Default for Maps {
    fn default() -> Self {
        Self::new()
    }
}

impl MapSource for Maps {
    fn map(&self, input: &MapInput<'_>) -> Result<FileMap, H5Error> {
        match Classic.map(input) {
            Err(H5Error::NotClassic { .. }) => self.worker.map(input),
            known => known,
        }
    }
}
