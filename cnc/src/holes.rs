//! Reads sparse files without reading their holes.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Reads a file at given offsets. The zeros of a hole need neither a read nor a page of the kernel's cache.
pub(crate) struct Sparse<'a> {
    file: &'a File,
    has_holes: bool,
    /// The last found hole: its first offset, and the offset after its end.
    hole: (u64, u64),
}

impl<'a> Sparse<'a> {
    pub fn new(file: &'a File) -> io::Result<Self> {
        Ok(Self::of(file, &file.metadata()?))
    }

    /// Makes a reader for a file whose metadata is known.
    pub fn of(file: &'a File, metadata: &Metadata) -> Self {
        // On a compressing file system, a file without holes also has fewer blocks than its length needs. In such a
        // file no hole is found, and the whole file is read.
        let has_holes = metadata.blocks().saturating_mul(512) < metadata.len();
        Self { file, has_holes, hole: (0, 0) }
    }

    /// Fills the buffer with the bytes that begin at `at`. The bytes must lie within the file.
    pub fn read_exact_at(&mut self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let end = at.saturating_add(buffer.len() as u64);
        if self.has_holes && !self.in_hole(at, end) {
            self.hole = (at, self.next_data(at));
        }
        if self.has_holes && self.in_hole(at, end) {
            buffer.fill(0);
            return Ok(());
        }
        self.file.read_exact_at(buffer, at)
    }

    fn in_hole(&self, at: u64, end: u64) -> bool {
        self.hole.0 <= at && end <= self.hole.1
    }

    /// The offset of the next data that begins at or after `at`. Moves the file's read position, which no other code
    /// uses.
    fn next_data(&self, at: u64) -> u64 {
        let Ok(from) = i64::try_from(at) else { return at };
        match lseek(self.file, from, Whence::SeekData) {
            Ok(data) => u64::try_from(data).unwrap_or(at),
            // There is no data between `at` and the end of the file.
            Err(Errno::ENXIO) => self.file.metadata().map_or(at, |m| m.len()),
            Err(_) => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zeros_and_data_as_it_is() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(10 << 20).expect("the length is set");
        file.write_all_at(&[7; 5000], (3 << 20) - 100).expect("written");
        file.write_all_at(&[8; 10], (10 << 20) - 10).expect("written");
        let mut sparse = Sparse::new(&file).expect("metadata");
        assert!(sparse.has_holes, "the file system of temporary files keeps holes");
        let (mut found, mut expected) = (vec![1; 1 << 16], vec![2; 1 << 16]);
        for at in (0..10u64 << 20).step_by(1 << 16) {
            sparse.read_exact_at(&mut found, at).expect("read");
            file.read_exact_at(&mut expected, at).expect("read");
            assert!(found == expected, "at {at}");
        }
        assert!(sparse.read_exact_at(&mut found, (10 << 20) - 10).is_err(), "past the end");
    }
}
