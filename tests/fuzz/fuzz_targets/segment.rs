//! Parses any bytes as a segment: a segment header with a valid checksum, then stored bytes that its chain decodes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcrengine::codec::{Chain, Scratch};
use mcrengine::container::parse_segment_header;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    const LEN: usize = 72;
    let Some((record, stored)) = bytes.split_at_checked(LEN) else { return };
    let mut record: [u8; LEN] = record.try_into().expect("it was split there");
    let crc = crc32c::crc32c(&record[..LEN - 4]).to_le_bytes();
    record[LEN - 4..].copy_from_slice(&crc);
    let Ok((raw_bytes, _)) = parse_segment_header(&record, Path::new("fuzz")) else { return };
    let (chain, _) = Chain::from_bytes(&record[28..65]).expect("the header was valid");
    let raw_bytes = raw_bytes.min(1 << 20) as usize;
    if let Ok(raw) = chain.decode(stored, raw_bytes, &mut Scratch::default()) {
        assert_eq!(raw.len(), raw_bytes);
    }
});
