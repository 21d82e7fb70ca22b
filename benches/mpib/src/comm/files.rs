//! MPI-IO: one file that all ranks of a communicator open, write and read together.
#![expect(unsafe_code, reason = "calls of the MPI library; each block states its requirements")]

use super::{Comm, Length, Result, check, place, place_mut};
use mpi::ffi;
use std::ffi::{CString, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writing. The file is created if it does not exist, and its old contents are removed.
    Write,
    /// Reading.
    Read,
}

/// A file that all ranks of a communicator have opened. All methods are collective.
///
/// Only [`CollectiveFile::close`] closes the file. After an error, the file stays open until the program ends,
/// because closing needs all ranks.
pub struct CollectiveFile {
    raw: ffi::MPI_File,
}

impl CollectiveFile {
    /// Opens a file. All ranks of the communicator must call this function.
    pub fn open(comm: &Comm, path: &Path, access: Access) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| super::CommError::Beside(format!("{}: the name has a zero byte", path.display())))?;
        let mode = match access {
            Access::Write => ffi::MPI_MODE_CREATE | ffi::MPI_MODE_WRONLY,
            Access::Read => ffi::MPI_MODE_RDONLY,
        };
        // SAFETY: the communicator is valid, the name ends with a zero byte, and MPI fills the handle if it succeeds.
        // Errors of files are returned, because this is the default of MPI for files.
        let raw = unsafe {
            let mut raw = ffi::RSMPI_FILE_NULL;
            let code = ffi::MPI_File_open(comm.raw, name.as_ptr(), mode as c_int, ffi::RSMPI_INFO_NULL, &mut raw);
            check("MPI_File_open", code)?;
            raw
        };
        if access == Access::Write {
            // SAFETY: the handle is valid.
            check("MPI_File_set_size", unsafe { ffi::MPI_File_set_size(raw, 0) })?;
        }
        Ok(Self { raw })
    }

    /// Writes the bytes of each rank at the rank's offset.
    pub fn write_at_all(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = Length::of(bytes.len())?;
        let offset = ffi::MPI_Offset::try_from(offset).unwrap_or(ffi::MPI_Offset::MAX);
        // SAFETY: the handle is valid, and the buffer has `len` readable bytes during the call.
        check("MPI_File_write_at_all", unsafe {
            let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
            ffi::MPI_File_write_at_all(self.raw, offset, place(bytes), len.count, len.kind, status.as_mut_ptr())
        })
    }

    /// Reads the bytes of each rank from the rank's offset. The file must be long enough.
    pub fn read_at_all(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let len = Length::of(bytes.len())?;
        let offset = ffi::MPI_Offset::try_from(offset).unwrap_or(ffi::MPI_Offset::MAX);
        // SAFETY: the handle is valid, and the buffer has `len` writable bytes during the call.
        check("MPI_File_read_at_all", unsafe {
            let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
            ffi::MPI_File_read_at_all(self.raw, offset, place_mut(bytes), len.count, len.kind, status.as_mut_ptr())
        })
    }

    /// Transfers all written bytes to the storage device.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the handle is valid.
        check("MPI_File_sync", unsafe { ffi::MPI_File_sync(self.raw) })
    }

    /// Closes the file.
    pub fn close(mut self) -> Result<()> {
        // SAFETY: the handle is valid, and this value is used for the last time.
        check("MPI_File_close", unsafe { ffi::MPI_File_close(&mut self.raw) })
    }
}
