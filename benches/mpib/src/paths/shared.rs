//! Writing and reading one file that all ranks share, by system calls or by MPI-IO. Each writer has its own range of
//! the file.

use super::{PIECE_BYTES, beside, forget, noise};
use crate::collectives::Result;
use crate::collectives::operation::{Flow, Operation};
use crate::comm::Comm;
use crate::comm::files::{Access, CollectiveFile};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How the ranks access the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Each writer opens the file, writes its range, and syncs the file.
    SystemCalls,
    /// All ranks call MPI_File_write_at_all or MPI_File_read_at_all together. The MPI library may first gather the
    /// bytes on some ranks.
    MpiIo,
}

/// Writes or reads one file of all ranks.
pub struct SharedFile {
    how: How,
    reads: bool,
    what: String,
    path: PathBuf,
    /// If more than 1, the first rank of each group writes the bytes of the group.
    group_size: usize,
    rank: usize,
    block_bytes: usize,
    /// Number of ranks whose bytes this rank writes. The number is 0 on ranks that do not write.
    times: usize,
    bytes: Vec<u8>,
    into: Vec<u8>,
}

impl SharedFile {
    /// `what` is the name of the path, for example `pfs`. With MPI-IO, each rank is a writer, and `group_size` has no
    /// effect. All ranks check that they can write to the directory. All ranks must call this function.
    pub fn new(comm: &Comm, how: How, what: &str, directory: &Path, group_size: usize) -> Result<Self> {
        let group_size = if how == How::MpiIo { 1 } else { group_size.max(1) };
        let rank = comm.rank();
        // All ranks open the same name, so that the file system has to share the file.
        let path = directory.join(format!("mpib-paths-{what}-shared"));
        let tried = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        comm.agree(tried.map(|_| ()).map_err(|e| format!("{}: {e}", path.display())))?;
        let (what, bytes, into) = (what.into(), Vec::new(), Vec::new());
        Ok(Self { how, reads: false, what, path, group_size, rank, block_bytes: 0, times: 0, bytes, into })
    }

    /// The operation that reads the file. The file is written once before the first reading.
    pub fn reading(mut self) -> Self {
        self.reads = true;
        self
    }

    fn offset(&self) -> u64 {
        (self.rank * self.block_bytes) as u64
    }

    fn write(&self, comm: &Comm) -> Result<()> {
        if self.how == How::MpiIo {
            let file = CollectiveFile::open(comm, &self.path, Access::Write)?;
            file.write_at_all(self.offset(), &self.bytes)?;
            file.sync()?;
            return file.close();
        }
        let failed = |error| beside(&self.path.display().to_string(), error);
        if self.rank == 0 {
            File::create(&self.path).map_err(failed)?;
        }
        comm.barrier()?; // nobody may write before the old contents are removed
        let write = || -> std::io::Result<()> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            let mut at = self.offset();
            for piece in (0..self.times).flat_map(|_| self.bytes.chunks(PIECE_BYTES)) {
                file.write_all_at(piece, at)?;
                at += piece.len() as u64;
            }
            file.sync_all()
        };
        if self.times == 0 { Ok(()) } else { write().map_err(failed) }
    }

    /// Reads this rank's range by system calls, in pieces. Returns false if `compare` is set and a byte is wrong.
    fn read(&self, buffer: &mut [u8], compare: bool) -> std::io::Result<bool> {
        if self.times == 0 {
            return Ok(true);
        }
        let file = File::open(&self.path)?;
        let (mut at, mut right) = (self.offset(), true);
        let piece_bytes = buffer.len().max(1);
        for piece in (0..self.times).flat_map(|_| self.bytes.chunks(piece_bytes)) {
            let into = &mut buffer[..piece.len()];
            file.read_exact_at(into, at)?;
            right &= !compare || into == piece;
            at += piece.len() as u64;
        }
        Ok(right)
    }
}

impl Operation for SharedFile {
    fn name(&self) -> String {
        let verb = if self.reads { "read" } else { "write" };
        match (self.how, self.group_size) {
            (How::MpiIo, _) => format!("{verb}/{}, shared file by MPI-IO", self.what),
            (How::SystemCalls, 1) => format!("{verb}/{}, shared file, every rank", self.what),
            (How::SystemCalls, size) => format!("{verb}/{}, shared file, one of {size}", self.what),
        }
    }

    fn flow(&self) -> Flow {
        Flow::Symmetric
    }

    fn prepare(&mut self, comm: &Comm, block_bytes: usize) -> Result<()> {
        let writes = self.rank.is_multiple_of(self.group_size);
        self.times = if writes { self.group_size.min(comm.size() - self.rank) } else { 0 };
        self.block_bytes = block_bytes;
        self.bytes = if writes { noise(self.rank, block_bytes) } else { Vec::new() };
        if self.reads {
            self.write(comm)?;
            self.into = vec![0; if self.how == How::MpiIo { block_bytes } else { PIECE_BYTES }];
            comm.barrier()?;
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        if !self.reads {
            return Ok(());
        }
        forget(&self.path).map_err(|error| beside(&self.path.display().to_string(), error))
    }

    fn run(&mut self, comm: &Comm) -> Result<()> {
        if !self.reads {
            return self.write(comm);
        }
        let mut into = std::mem::take(&mut self.into);
        if self.how == How::MpiIo {
            let file = CollectiveFile::open(comm, &self.path, Access::Read)?;
            file.read_at_all(self.offset(), &mut into)?;
            file.close()?;
        } else {
            self.read(&mut into, false).map_err(|error| beside(&self.path.display().to_string(), error))?;
        }
        self.into = into;
        Ok(())
    }

    fn is_right(&self, _: &Comm) -> bool {
        let read_back = self.read(&mut vec![0; PIECE_BYTES], true).unwrap_or(false);
        read_back && (!(self.reads && self.how == How::MpiIo) || self.into == self.bytes)
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if self.rank == 0 {
            std::fs::remove_file(&self.path).ok(); // the file may not exist
        }
    }
}
