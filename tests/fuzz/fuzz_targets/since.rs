//! Any bytes as what is coded with an older segment, and any bytes as that segment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::codec::{Chain, Older, Scratch};
use mcrengine::header::{ByteOrder, ElementType};

fuzz_target!(|input: (u8, u16, Vec<u8>, Vec<u8>)| {
    let (kind, raw_bytes, stored, raw) = input;
    let element = match kind % 4 {
        0 => ElementType::F64,
        1 => ElementType::F32,
        2 => ElementType::Float { width: 8, order: ByteOrder::Big },
        _ => ElementType::Int { width: 4, signed: true, order: ByteOrder::Little },
    };
    let chain = Chain::since(&element, 2).expect("numbers");
    let mut scratch = Scratch::default();
    scratch.set_older(Some(Older { raw, places: Vec::new() }.into()));
    if let Ok(raw) = chain.decode(&stored, usize::from(raw_bytes), &mut scratch) {
        assert_eq!(raw.len(), usize::from(raw_bytes));
    }
});
