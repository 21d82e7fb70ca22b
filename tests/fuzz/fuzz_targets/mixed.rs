//! Decodes any bytes with the codec `mixed`, and encodes any bytes with `mixed`. The bytes to encode repeat words of
//! the input, so that `mixed` finds numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::codec::{Chain, Scratch};

fuzz_target!(|input: (u16, u8, Vec<u8>)| {
    let (raw_bytes, times, bytes) = input;
    let chain = Chain::mixed(1);
    let mut scratch = Scratch::default();
    if let Ok(raw) = chain.decode(&bytes, usize::from(raw_bytes), &mut scratch) {
        assert_eq!(raw.len(), usize::from(raw_bytes));
    }
    let raw = bytes.repeat(usize::from(times));
    let stored = chain.encode(&raw, &[], &mut scratch).expect("any bytes can be coded");
    assert!(chain.gives_back(&stored, &raw, &mut scratch).expect("it decodes"));
});
