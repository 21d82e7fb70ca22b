//! Tests all files of the real checkpoints below MCR_CORPUS. Without MCR_CORPUS the tests only print that they are
//! skipped.

use crate::support;
use mcr_cnc::h5::{Classic, H5Error, Library, MapInput, MapSource};
use mcrengine::header::Role;
use std::fs::File;

#[test]
fn every_file_comes_back_byte_for_byte() {
    let (mut in_arrays, mut in_files) = (0, 0);
    for (root, name) in support::corpus() {
        let header = support::round_trip(&root, &name, &*support::MAPS, 1 << 20);
        let arrays = header.variables.iter().filter(|v| v.role == Role::Array).map(|v| v.raw_bytes.0).sum::<u64>();
        if header.variables[0].role == Role::Skeleton {
            in_arrays += arrays;
            in_files += header.bytes;
        }
    }
    assert!(in_arrays * 4 >= in_files * 3, "only {in_arrays} of {in_files} bytes of HDF5 files are arrays");
}

#[test]
fn the_own_parser_maps_what_the_library_maps() {
    for (root, name) in support::corpus() {
        let path = root.join(&name);
        let file = File::open(&path).expect("open");
        let bytes = file.metadata().expect("metadata").len();
        let input = MapInput { path: &path, file: &file, bytes, whole: None };
        let ours = match Classic.map(&input) {
            Err(H5Error::NotHdf5) => continue,
            other => other.unwrap_or_else(|e| panic!("{name}: {e}")),
        };
        let theirs = Library.map(&input).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(ours == theirs, "{name}: {} variables instead of {}", ours.variables.len(), theirs.variables.len());
    }
}
