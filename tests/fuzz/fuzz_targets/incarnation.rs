//! Parses any bytes as the record of an incarnation. A valid digest is added at the end, so that the rest of the
//! parser is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::ids::Digest;
use mcrengine::incarnation::Incarnation;
use std::path::Path;

fuzz_target!(|text: &[u8]| {
    let path = Path::new("fuzz");
    let _ = Incarnation::parse(text, path);
    let mut signed = [b"mcr-incarnation 1\n", text, b"\n"].concat();
    let digest = Digest::of(&signed);
    signed.extend_from_slice(format!("blake3 {digest}\n").as_bytes());
    if let Ok(record) = Incarnation::parse(&signed, path) {
        assert!(record.number > 0 && record.from.is_some() == record.from_place.is_some());
    }
});
