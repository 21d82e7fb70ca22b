//! Parses any bytes as an HDF5 file. The result is an error, or a map whose extents are disjoint and within the file.
//!
//! If the input does not begin with the signature, the signature is added. Begin with small files of every kind, for
//! example the files in `tests/data/h5`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcr_cnc::h5::{Classic, MapInput, MapSource, SIGNATURE};
use std::fs::File;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let mut whole = data.to_vec();
    if let Some(signature) = whole.first_chunk_mut() {
        *signature = SIGNATURE;
    }
    // All bytes are in memory, so the parser does not read this file.
    let file = File::open("/dev/null").expect("it is on every machine that fuzzes");
    let bytes = whole.len() as u64;
    let input = MapInput { path: Path::new("fuzz"), file: &file, bytes, whole: Some(&whole) };
    if let Ok(map) = Classic.map(&input) {
        map.check(bytes).expect("a map that was given is sound");
        let skeleton: u64 = map.skeleton(bytes).iter().map(|e| e.stored_bytes).sum();
        let arrays: u64 = map.runs().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(skeleton + arrays, bytes);
    }
});
