//! Checks any bytes as a parity file, and mends a container with these bytes. The result is an error, or a copy of
//! the container. The checksums of the headers are made valid, so that the fuzzer reaches the code after the
//! comparison of checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::ids::Digest;
use mcrengine::parity::{HEADER_LEN, check, mend, parity_path};
use mcrengine::store::{MemoryStore, create_dirs};
use std::path::Path;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (container, parity) = input;
    let path = Path::new("job/checkpoint/group-0000.mcr");
    let store = MemoryStore::new();
    create_dirs(&store, Path::new("job/checkpoint")).expect("made");
    store.put(path, container);
    let mut parity = parity.to_vec();
    let mut digest = Digest([0; 32]);
    if parity.len() >= HEADER_LEN {
        parity[..10].copy_from_slice(b"\x89MCP\r\n\x1a\n\x01\x00");
        let crc = crc32c::crc32c(&parity[..HEADER_LEN - 4]);
        parity[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        digest = Digest(parity[24..56].try_into().expect("32 bytes"));
    }
    store.put(&parity_path(path), &parity);
    let _ = check(&store, path, digest, container.len() as u64);
    let _ = mend(&store, path, digest, None, &|_| ());
});
