//! How much time and memory do classifying and planning a million headers take on one core? The goals are at most 2 s
//! and at most 1 GiB.
//!
//! The input is 15,408 ranks of Cactus with 65 variables each, with the names and shapes that Carpet uses. The ranks
//! form 482 groups of 32 ranks. An aggregator has the headers of one group. The bench first plans one group after the
//! other, and then all ranks as one group, which has a million headers in memory.

use mcr_test_support::measure::{Sample, is_asked_for, process_status, repetitions};
use mcrengine::classify::{Naming, classify};
use mcrengine::header::{ElementType, Extent, FileHeader, Role, Shape, VariableHeader};
use mcrengine::ids::{Digest, FilePath, Rank};
use mcrengine::plan::{PlanOptions, plan};
use mcrengine::units::RawBytes;
use std::time::{Duration, Instant};

const RANKS: u32 = 15_408;
const GROUP_SIZE: u32 = 32;
const VARIABLES: usize = 65;
/// Variables of the initial data and of the McLachlan evolution.
const NAMES: [&str; VARIABLES.div_ceil(3)] = [
    "ADMBASE::alp",
    "ADMBASE::betax",
    "ADMBASE::betay",
    "ADMBASE::betaz",
    "ADMBASE::gxx",
    "ADMBASE::gxy",
    "ML_BSSN::phi",
    "ML_BSSN::gt11",
    "ML_BSSN::gt12",
    "ML_BSSN::gt13",
    "ML_BSSN::gt22",
    "ML_BSSN::gt23",
    "ML_BSSN::gt33",
    "ML_BSSN::Xt1",
    "ML_BSSN::Xt2",
    "ML_BSSN::Xt3",
    "ML_BSSN::trK",
    "ML_BSSN::At11",
    "ML_BSSN::At12",
    "ML_BSSN::At13",
    "ML_BSSN::At22",
    "ML_BSSN::At23",
]; // 65 variables: the first 21 names at three refinement levels, and the next name at two levels

fn file(rank: u32) -> FileHeader {
    const POINTS: [u64; 3] = [19, 21, 23];
    let raw_bytes = POINTS.iter().product::<u64>() * 8;
    let variable = |i: usize| {
        let (name, level, component) = (NAMES[i / 3], i % 3, rank);
        let path = format!("{name} it=1024 tl=0 rl={level} c={component}");
        let extent = Extent { offset: 4096 + i as u64 * (raw_bytes + 512), stored_bytes: raw_bytes, raw_bytes };
        VariableHeader {
            role: Role::Array,
            path: path.into(),
            element: ElementType::F64,
            shape: Shape(POINTS.into()),
            chunk: Default::default(),
            raw_bytes: RawBytes(raw_bytes),
            digest: Digest([rank as u8; 32]),
            filters: [].into(),
            extents: [extent].into(),
        }
    };
    FileHeader {
        path: FilePath::new(format!("checkpoint.chkpt.it_1024.file_{rank}.h5").into_bytes()).expect("valid"),
        rank: Rank(rank),
        bytes: 4096 + VARIABLES as u64 * (raw_bytes + 512),
        kind: Default::default(),
        mode: 0o644,
        modified_ns: 0,
        digest: Digest([0; 32]),
        variables: (0..VARIABLES).map(variable).collect(),
    }
}

/// Classifies and plans one group. Returns the time, the number of classes and the number of segments.
fn classify_and_plan(files: &[FileHeader]) -> (Duration, usize, usize) {
    let started = Instant::now();
    let classes = classify(files, &Naming::default());
    let segments = plan(files, &classes, &PlanOptions::default(), |_| false);
    (started.elapsed(), classes.len(), segments.len())
}

fn main() {
    if !is_asked_for() {
        return;
    }
    let (mut by_group, mut at_once) = (Sample::new(), Sample::new());
    let n = repetitions(15);
    let peak_mib = || process_status(std::process::id(), "VmHWM").unwrap_or(0) / 1024;
    for _ in 0..n {
        let mut elapsed = Duration::ZERO;
        for first in (0..RANKS).step_by(GROUP_SIZE as usize) {
            let files: Vec<FileHeader> = (first..(first + GROUP_SIZE).min(RANKS)).map(file).collect();
            elapsed += classify_and_plan(&files).0;
        }
        by_group.push_ms(elapsed);
    }
    let headers = RANKS as usize * VARIABLES;
    println!("{headers} headers; milliseconds: median [quartiles; extremes] of {n}");
    println!("  in groups of {GROUP_SIZE} ranks: {}; peak {} MiB", by_group.show(), peak_mib());
    let files: Vec<FileHeader> = (0..RANKS).map(file).collect();
    let mut found = (0, 0);
    for _ in 0..n {
        let (elapsed, classes, segments) = classify_and_plan(&files);
        at_once.push_ms(elapsed);
        found = (classes, segments);
    }
    let (classes, segments) = found;
    println!(
        "  all ranks as one group: {}; peak {} MiB; {classes} classes, {segments} segments",
        at_once.show(),
        peak_mib()
    );
}
