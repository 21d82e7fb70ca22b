//! Parses any bytes as the note of a complete checkpoint. A valid digest is added at the end, so that the rest of the
//! parser is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::ids::{Digest, GroupId};
use mcrengine::manifest::Completion;
use mcrengine::store::{MemoryStore, create_dirs};
use std::path::Path;

fuzz_target!(|text: &[u8]| {
    let (store, dir) = (MemoryStore::new(), Path::new("j/it_1"));
    create_dirs(&store, dir).expect("made");
    let (job, id) = ("j".parse().expect("valid"), "it_1".parse().expect("valid"));
    let mut signed = [b"mcr-complete 1\n", text, b"\n"].concat();
    let digest = Digest::of(&signed);
    signed.extend_from_slice(format!("blake3 {digest}\n").as_bytes());
    for text in [text, &signed] {
        store.put(&dir.join(".complete"), text);
        if let Some(note) = Completion::load(&store, &job, &id) {
            let _ = note.has(GroupId(0), digest);
        }
    }
});
