//! Parses any bytes as the text of a manifest. A valid digest is added at the end, so that the rest of the parser is
//! reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::ids::Digest;
use mcrengine::manifest::Manifest;
use std::path::Path;

fuzz_target!(|text: &[u8]| {
    let path = Path::new("fuzz");
    let _ = Manifest::parse(text, path);
    let mut signed = [b"mcr-manifest 1\n", text, b"\n"].concat();
    let digest = Digest::of(&signed);
    signed.extend_from_slice(format!("blake3 {digest}\n").as_bytes());
    if let Ok(manifest) = Manifest::parse(&signed, path) {
        assert!(manifest.group.0 < manifest.groups && manifest.rank_count > 0);
    }
});
