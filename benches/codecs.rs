//! How fast is each codec on real checkpoints on one core, and what compression ratio does it reach?
//!
//! The input is 1 MiB from the middle of the largest file of each set. The sets are in `tests/data/checkpoints`. If
//! this folder does not exist, the sets are in the folder that MCR_CORPUS names. Artificial data such as zeros and
//! random bits would give misleading results for float codecs. The bytes are interpreted as floats or as doubles: as
//! the type for which shuffle and zstd give the higher ratio. Rates are raw bytes per second. The ratio of each chain
//! and the digest of the slice are printed to standard error.

#![expect(missing_docs, reason = "Criterion's macro makes a public function")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mcr_test_support::files_below;
use mcrengine::codec::{Chain, Profile, Scratch, encode_best};
use mcrengine::header::{ByteOrder, ElementType};
use mcrengine::ids::Digest;
use std::hint::black_box;
use std::path::PathBuf;

const SLICE_BYTES: usize = 1 << 20;

/// The name and the slice of each set.
fn slices() -> Vec<(String, Vec<u8>)> {
    let ours = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/checkpoints"));
    let root = if ours.is_dir() { Some(ours) } else { std::env::var_os("MCR_CORPUS").map(PathBuf::from) };
    let Some(root) = root else {
        eprintln!("skipped: no tests/data/checkpoints, and MCR_CORPUS does not name a folder of checkpoints");
        return Vec::new();
    };
    let mut sets: Vec<PathBuf> = std::fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path()).collect();
    sets.sort();
    let slice = |set: PathBuf| {
        let (_, file) = files_below(&set).pop()?;
        let whole = std::fs::read(file).ok()?;
        let from = whole.len().saturating_sub(SLICE_BYTES) / 2 / 8 * 8;
        let to = whole.len().min(from + SLICE_BYTES);
        Some((set.file_name()?.to_string_lossy().into_owned(), whole[from..to].to_vec()))
    };
    sets.into_iter().filter_map(slice).collect()
}

fn codecs(criterion: &mut Criterion) {
    let mut scratch = Scratch::default();
    for (set, raw) in slices() {
        let mut bytes_as = |width| Chain::shuffle_zstd(width, 1).encode(&raw, &[], &mut scratch).map(|s| s.len());
        let is_floats = bytes_as(4).expect("encodes") < bytes_as(8).expect("encodes");
        let (element, width) = if is_floats { (ElementType::F32, 4) } else { (ElementType::F64, 8) };
        eprintln!("{set}: {} bytes taken as {element}, BLAKE3 {:?}", raw.len(), Digest::of(&raw));
        let best = encode_best(&Profile::Fast, &raw, &element, &[], false, &mut scratch);
        let (chosen, _) = best.expect("encodes");
        let shuffle = Chain::shuffle_zstd(u32::from(width), 1);
        let bitshuffle = Chain::bitshuffle_zstd(u32::from(width), 1);
        let chains = [
            ("fast", chosen),
            ("shuffle-zstd-1", shuffle),
            ("bitshuffle-zstd-1", bitshuffle),
            ("pco-8", Chain::pco(&element, 8).expect("numbers")),
            ("runs", Chain::runs(u32::from(width)).expect("a width")),
            ("zstd-1", Chain::zstd(1)),
            ("zstd-3", Chain::zstd(3)),
            ("zstd-fast-18", Chain::zstd_fast(18)),
            ("lz4", Chain::lz4()),
            ("gzip-6", Chain::gzip(6)),
            ("fpc-2", Chain::fpc(2, ByteOrder::Little)),
            ("fpc-16", Chain::fpc(16, ByteOrder::Little)),
            ("fpzip-1d", Chain::fpzip(width, ByteOrder::Little, 1)),
            ("paper", Chain::paper(&element, true, false)),
        ];
        let mut group = criterion.benchmark_group(&set);
        group.throughput(Throughput::Bytes(raw.len() as u64)).sample_size(10);
        for (name, chain) in chains {
            let stored = chain.encode(&raw, &[], &mut scratch).expect("encodes");
            eprintln!("{set}/{name}: {chain}, ratio {:.3}", raw.len() as f64 / stored.len() as f64);
            group.bench_function(format!("{name}/encode"), |b| {
                b.iter(|| chain.encode(black_box(&raw), &[], &mut scratch).expect("encodes"));
            });
            group.bench_function(format!("{name}/decode"), |b| {
                b.iter(|| chain.decode(black_box(&stored), raw.len(), &mut scratch).expect("decodes"));
            });
        }
        group.bench_function("fast/choose and encode", |b| {
            b.iter(|| encode_best(&Profile::Fast, black_box(&raw), &element, &[], false, &mut scratch));
        });
        group.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
