//! Decodes any header and any codes with `predict`, and with `since` and any base. The target compresses the header,
//! so that inputs reach the code after the decompression.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::codec::{Chain, Older, Scratch};
use mcrengine::header::{ByteOrder, ElementType};

/// Writes 7 bits in each byte, the lowest bits first.
fn put(mut n: usize, out: &mut Vec<u8>) {
    while n > 0x7F {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fuzz_target!(|input: (u8, u16, Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (kind, raw_bytes, header, codes, raw) = input;
    let element = match kind % 4 {
        0 => ElementType::F64,
        1 => ElementType::F32,
        2 => ElementType::Float { width: 8, order: ByteOrder::Big },
        _ => ElementType::Int { width: 4, signed: true, order: ByteOrder::Little },
    };
    let packed = zstd::bulk::compress(&header, 1).expect("it compresses anything");
    let mut stored = Vec::new();
    put(packed.len(), &mut stored);
    put(header.len(), &mut stored);
    stored.extend(packed);
    stored.extend(codes);
    let mut scratch = Scratch::default();
    scratch.set_older(Some(Older { raw, places: Vec::new() }.into()));
    for chain in [Chain::since(&element, 2), Chain::predict(&element, 2)] {
        let chain = chain.expect("numbers");
        if let Ok(raw) = chain.decode(&stored, usize::from(raw_bytes), &mut scratch) {
            assert_eq!(raw.len(), usize::from(raw_bytes));
        }
    }
});
