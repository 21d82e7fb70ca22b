//! An HDF5 file with only some of its datasets, so that the HDF5 library reads them.
//!
//! The raw bytes of a chunked dataset are stored chunk by chunk, and only the skeleton of its file says where each
//! chunk belongs. Therefore the file has the skeleton and the wanted variables at their places. The bytes of other
//! variables are neither read nor written.

use crate::advice::At;
use anyhow::Context;
use mcrengine::classify::VariableRef;
use mcrengine::container::VariableReader;
use mcrengine::filter::put_on;
use mcrengine::header::{FileHeader, Role, VariableHeader};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A file that has only the skeleton and some variables. The file is removed when this value is dropped.
pub struct Sparse {
    pub path: PathBuf,
}

impl Sparse {
    /// Makes the file, which must not exist, with the skeleton of `file` and with these variables.
    pub fn new(path: PathBuf, reader: &mut VariableReader, file: u32, variables: &[u32]) -> anyhow::Result<Self> {
        let out = File::options().write(true).create_new(true).open(&path);
        let out = out.with_context(|| At::new(&path, "cannot be created"))?;
        let sparse = Self { path };
        let set = Arc::clone(reader.set());
        let header: &FileHeader = &set.index().files()[file as usize];
        out.set_len(header.bytes)?;
        for (number, variable) in (0..).zip(&header.variables) {
            if variable.role == Role::Skeleton || variables.contains(&number) {
                write_variable(&out, reader, VariableRef { file, variable: number }, variable)?;
            }
        }
        Ok(sparse)
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes the bytes of a variable to their places.
fn write_variable(
    out: &File,
    reader: &mut VariableReader,
    at: VariableRef,
    variable: &VariableHeader,
) -> anyhow::Result<()> {
    const STEP_BYTES: u64 = 1 << 20;
    let mut raw_offset = 0;
    for extent in &variable.extents {
        if !variable.filters.is_empty() {
            let mut raw = vec![0; extent.raw_bytes as usize];
            reader.read(at, raw_offset, &mut raw)?;
            out.write_all_at(&put_on(&variable.filters, &raw)?, extent.offset)?;
        }
        let mut done = if variable.filters.is_empty() { 0 } else { extent.raw_bytes };
        while done < extent.raw_bytes {
            let mut part = vec![0; STEP_BYTES.min(extent.raw_bytes - done) as usize];
            reader.read(at, raw_offset + done, &mut part)?;
            out.write_all_at(&part, extent.offset + done)?;
            done += part.len() as u64;
        }
        raw_offset += extent.raw_bytes;
    }
    Ok(())
}
