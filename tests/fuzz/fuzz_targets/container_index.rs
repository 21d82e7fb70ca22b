//! Parses any bytes as an index. The result is an error, or an index whose functions do not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::container::parse_index;
use std::path::Path;

fuzz_target!(|raw: &[u8]| {
    let Ok(stored) = zstd::bulk::compress(raw, 1) else { return };
    let Ok(index) = parse_index(&stored, raw.len() as u64, Path::new("fuzz")) else { return };
    for (at, header) in index.variables() {
        let bytes: u64 = index.pieces_of(at).map(|(_, piece)| index.all_pieces()[piece].bytes).sum();
        assert!(bytes == 0 || bytes == header.raw_bytes.0);
        assert!(index.placement(at).is_some());
    }
    for file in index.files() {
        assert!(file.check().is_ok());
    }
    for (i, segment) in index.segments().iter().enumerate() {
        let sum: u64 = index.pieces(i as u32).iter().map(|piece| piece.bytes).sum();
        assert_eq!(sum, segment.raw_bytes.0);
    }
});
