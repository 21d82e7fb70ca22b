//! Tests the length of an index.

use super::support::*;
use mcrengine::header::ElementType;
use mcrengine::ids::GroupId;
use mcrengine::reuse::ReuseIndex;
use mcrengine::store::MemoryStore;

/// The structure of a real checkpoint of an adaptive mesh: many grids with 16 variables of about 1 KB each.
#[test]
fn eight_thousand_small_variables_take_an_index_of_less_than_60_kb() {
    let store = MemoryStore::new();
    let mut small = Group { files: Vec::new(), raw: Vec::new() };
    let mut grid = 0u64;
    for rank in 0..2u32 {
        let mut parts = Vec::new();
        for _ in 0..255 {
            grid += 1;
            let cells = 4 + (grid * 7919) % 13;
            for variable in 0..16 {
                let raw = vec![variable as u8; (cells * cells * 8) as usize];
                let path = format!("/Grid{grid:08}/Variable_{variable:02}");
                parts.push(Part { path, element: ElementType::F64, raw, cuts: vec![], filters: vec![] });
            }
        }
        let (header, raw) = file(&format!("data.cpu{rank:04}"), rank, parts);
        small.files.push(header);
        small.raw.push(raw);
    }
    let sealed = write(&store, &checkpoint("a"), GroupId(0), &small, &how(1), &ReuseIndex::empty()).expect("writes");
    let sealed = sealed.summary();
    let segments: u64 = sealed.index().segments().iter().map(|s| s.stored_bytes.0 + 72).sum();
    let index_bytes = sealed.bytes() - segments - 32 - 48;
    assert!(index_bytes < 60_000, "{index_bytes} bytes for {} variables", sealed.index().variables().count());
}
