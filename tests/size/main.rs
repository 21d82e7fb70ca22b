//! Measures the time and the memory that a group with one million variables takes. This test is a separate program,
//! because it measures the memory of its process.

#[path = "../support/group.rs"]
mod support;

use mcrengine::classify::{Naming, classify};
use mcrengine::codec::Chain;
use mcrengine::container::*;
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, GroupId, Rank};
use mcrengine::plan::{PlanOptions, Scheme, plan};
use mcrengine::store::MemoryStore;
use mcrengine::units::RawBytes;
use std::time::Instant;
use support::*;

#[test]
fn a_million_variables_take_less_than_a_gib_to_write_and_to_read() {
    let variable = |rank: u64, i: u64| {
        let raw = 8 * (100 + (i * 31 + rank) % 500);
        let offset = 6000 * i;
        VariableHeader {
            role: Role::Array,
            path: format!("/Grid{:08}/Variable_{:02}", rank * 2000 + i / 16, i % 16).into(),
            element: ElementType::F64,
            shape: Shape([raw / 8].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(raw),
            digest: Digest([1; 32]),
            filters: [].into(),
            extents: [Extent { offset, stored_bytes: raw, raw_bytes: raw }].into(),
        }
    };
    let file = |rank: u64| {
        let mut variables: Vec<VariableHeader> = (0..31_250).map(|i| variable(rank, i)).collect();
        let runs: Vec<(u64, u64)> = variables.iter().map(|v| (v.extents[0].offset, v.raw_bytes.0)).collect();
        let bytes = 6000 * 31_250;
        let extents = FileHeader::gaps(&runs, bytes);
        let raw = extents.iter().map(|e| e.raw_bytes).sum();
        let skeleton = VariableHeader {
            role: Role::Skeleton,
            path: "".into(),
            element: ElementType::Bytes,
            shape: Shape([raw].into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(raw),
            digest: Digest([2; 32]),
            filters: [].into(),
            extents,
        };
        variables.insert(0, skeleton);
        FileHeader {
            path: FilePath::new(format!("data.cpu{rank:04}").into_bytes()).expect("valid"),
            rank: Rank(rank as u32),
            bytes,
            kind: Default::default(),
            mode: 0o640,
            modified_ns: 0,
            digest: Digest([3; 32]),
            variables,
        }
    };
    let files: Vec<FileHeader> = (0..32).map(file).collect();
    let started = Instant::now();
    let classes = classify(&files, &Naming::default());
    let plans = plan(&files, &classes, &PlanOptions::default(), |_| false);
    let planned = started.elapsed();
    let store = MemoryStore::new();
    let started = Instant::now();
    let mut writer = ContainerWriter::create(&store, &job(), &checkpoint("a"), GroupId(0)).expect("creates");
    for plan in &plans {
        let segment = StoredSegment { chain: Chain::raw(), raw_bytes: plan.raw_bytes, stored: vec![0; 8], base: None };
        writer.append(plan, &segment).expect("appends");
    }
    drop(plans);
    let contents = Contents { scheme: Scheme::Aware, block_bytes: 0, classes, files: files.into(), reused: vec![] };
    let sealed = writer.seal(&store, contents).expect("seals");
    let written = started.elapsed();
    let variables = sealed.summary().index().variables().count();
    drop(sealed);
    let started = Instant::now();
    let reader = ContainerReader::open(&store, &job(), &checkpoint("a"), GroupId(0)).expect("opens");
    let read = started.elapsed();
    assert_eq!(reader.index().variables().count(), variables);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    println!(
        "{variables} variables: planned in {planned:?}, sealed in {written:?}, read in {read:?}, container {} \
         bytes, peak {} MiB",
        reader.bytes(),
        peak_kib >> 10
    );
    assert!(peak_kib < 1 << 20, "{peak_kib} KiB");
}
