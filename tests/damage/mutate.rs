//! Runs the checks of the fuzz targets in `tests/fuzz` for a short time and with a fixed seed, in every run of the
//! tests.

use super::support::*;
use mcr_test_support::Random;
use mcrengine::container::{ContainerReader, parse_index, parse_segment_header};
use mcrengine::ids::GroupId;
use mcrengine::manifest::Manifest;
use mcrengine::reuse::ReuseIndex;
use mcrengine::store::MemoryStore;
use std::path::Path;

/// Replaces, removes or repeats a few bytes, or sets these bytes to extreme values.
fn mutate(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.index(out.len());
        match random.below(5) {
            0 if !out.is_empty() => out[at] ^= 1 << random.below(8),
            1 if !out.is_empty() => out[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)],
            2 => out.truncate(at),
            3 if !out.is_empty() => drop(out.remove(at)),
            _ => out.insert(at.min(out.len()), random.below(256) as u8),
        }
    }
    out
}

fn sample() -> (MemoryStore, Vec<u8>, u64) {
    let store = MemoryStore::new();
    flush_step(&store, 1, None).expect("writes");
    let manifest = mcrengine::manifest::read_manifest(&store, &job(), &step_id(1), GroupId(0)).expect("reads");
    let reuse = ReuseIndex::load(&store, &job(), &manifest).expect("loads");
    flush(&store, &step_id(2), GroupId(0), &group(0..2, 2), &how(2), &reuse).expect("writes");
    let bytes = store.get(Path::new("wave/DD0002/group-0000.mcr")).expect("there");
    let trailer = bytes.len() - 48;
    let number = |at: usize| u64::from_le_bytes(bytes[trailer + at..trailer + at + 8].try_into().expect("8 bytes"));
    let (offset, stored, raw) = (number(0) as usize, number(8) as usize, number(16));
    let index = bytes[offset..offset + stored].to_vec();
    (store, index, raw)
}

/// Compresses an index to one zstd frame. The index is mutated before the compression, so that the contents of the
/// frame change.
fn frame(raw: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(raw, 1).expect("compresses")
}

#[test]
fn a_mutated_index_is_an_error_or_another_valid_index() {
    let (_, stored, raw_len) = sample();
    let raw = zstd::bulk::decompress(&stored, raw_len as usize).expect("decompresses");
    let path = Path::new("fuzz");
    parse_index(&frame(&raw), raw_len, path).expect("whole");
    let mut random = Random::new(1);
    let mut valid = 0;
    for _ in 0..20_000 {
        let mutated = mutate(&mut random, &raw);
        if let Ok(index) = parse_index(&frame(&mutated), mutated.len() as u64, path) {
            valid += 1;
            // Calls the functions of a parsed index. None of these calls may panic.
            for (at, header) in index.variables() {
                let bytes: u64 = index.pieces_of(at).map(|(_, piece)| index.all_pieces()[piece].bytes).sum();
                assert!(bytes == 0 || bytes == header.raw_bytes.0);
                assert!(index.placement(at).is_some());
            }
            for (i, segment) in index.segments().iter().enumerate() {
                let sum: u64 = index.pieces(i as u32).iter().map(|piece| piece.bytes).sum();
                assert_eq!(sum, segment.raw_bytes.0);
            }
        }
    }
    assert!(valid > 0, "an index with a changed digest or time is still valid");
    for _ in 0..2_000 {
        let _ = parse_index(&mutate(&mut random, &stored), raw_len, path);
    }
    assert!(parse_index(&stored, raw_len + 1, path).is_err() && parse_index(&stored, raw_len - 1, path).is_err());
}

#[test]
fn an_index_cannot_ask_for_more_memory_than_it_has_bytes_for() {
    // Every position of the head column and of the list of columns gets a count that is larger than the number of
    // items.
    let (_, stored, raw_len) = sample();
    let raw = zstd::bulk::decompress(&stored, raw_len as usize).expect("decompresses");
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for at in 0..raw.len() {
        let mutated = [&raw[..at], &huge, &raw[at + 1..]].concat();
        let _ = parse_index(&frame(&mutated), mutated.len() as u64, Path::new("fuzz"));
    }
    // A frame with far more raw bytes than recorded must not be decompressed to its end.
    let bomb = frame(&vec![0; 64 << 20]);
    assert!(parse_index(&bomb, 100, Path::new("fuzz")).is_err());
}

#[test]
fn a_mutated_container_never_panics() {
    let (store, ..) = sample();
    let path = Path::new("wave/DD0002/group-0000.mcr");
    let bytes = store.get(path).expect("there");
    let mut random = Random::new(2);
    for _ in 0..1_000 {
        let mut mutated = mutate(&mut random, &bytes);
        // The checksums of header and trailer are corrected, so that the code after these checks is tested too.
        let (last, len) = (mutated.len().saturating_sub(48), mutated.len());
        if len > 128 {
            let crc = crc32c::crc32c(&mutated[last..last + 36]).to_le_bytes();
            mutated[last + 36..last + 40].copy_from_slice(&crc);
            let crc = crc32c::crc32c(&mutated[..28]).to_le_bytes();
            mutated[28..32].copy_from_slice(&crc);
            let record: &mut [u8; 72] = (&mut mutated[32..104]).try_into().expect("72 bytes");
            let crc = crc32c::crc32c(&record[..68]).to_le_bytes();
            record[68..].copy_from_slice(&crc);
            let _ = parse_segment_header(record, path);
        }
        store.put(path, &mutated);
        let Ok(reader) = ContainerReader::open(&store, &job(), &step_id(2), GroupId(0)) else { continue };
        for segment in 0..reader.index().segments().len() as u32 + 1 {
            let _ = reader.decode_segment(segment, &mut Default::default());
        }
    }
}

#[test]
fn a_mutated_manifest_with_a_right_digest_never_panics() {
    let (store, ..) = sample();
    let path = Path::new("wave/DD0002/group-0000.manifest");
    let text = store.get(path).expect("there");
    let body = &text[..text.len() - 72];
    let mut random = Random::new(3);
    for _ in 0..5_000 {
        let mut mutated = mutate(&mut random, body);
        let digest = mcrengine::ids::Digest::of(&mutated);
        mutated.extend_from_slice(format!("blake3 {digest}\n").as_bytes());
        let _ = Manifest::parse(&mutated, path);
        let _ = Manifest::parse(&mutate(&mut random, &text), path);
    }
}
