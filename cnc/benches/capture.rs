//! Measures how long the description of a checkpoint takes, and how much of this time its map takes.
//!
//! The files are in the page cache, and the benchmark uses one core. Each checkpoint below MCR_CORPUS
//! (`SET/DUMP/...`) is measured separately. The reference is the row `capture whole`, which only reads and hashes the
//! files. Command: `cargo bench -p mcr-cnc [-- PART-OF-A-ROW]`.

use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::{Classic, Library, MapInput, MapSource};
use mcr_cnc::restart::FileRestorer;
use mcr_cnc::source::{Descriptors, OpenFile};
use mcr_test_support::files_below;
use mcrengine::ids::{FilePath, Rank};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const REPETITIONS: usize = 9;

fn main() {
    let Some(root) = std::env::var_os("MCR_CORPUS").map(PathBuf::from) else {
        println!("skipped: MCR_CORPUS names no directory of real checkpoints");
        return;
    };
    println!("fastest and median time of {REPETITIONS} runs, and the rate of the median");
    for set in entries(&root) {
        for dump in entries(&set) {
            checkpoint(&dump);
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path());
    let mut found: Vec<PathBuf> = found.collect();
    found.sort();
    found
}

fn checkpoint(dump: &Path) {
    let (lengths, found): (Vec<u64>, Vec<PathBuf>) = files_below(dump).into_iter().unzip();
    let bytes: u64 = lengths.iter().sum();
    let relative = |f: &PathBuf| {
        let path = f.strip_prefix(dump).expect("below the directory").as_os_str().as_bytes();
        FilePath::new(path).expect("a path")
    };
    let map = |maps: &dyn MapSource| {
        found.iter().fold(0, |datasets, path| {
            let file = File::open(path).expect("open");
            let bytes = file.metadata().expect("metadata").len();
            datasets
                + maps.map(&MapInput { path, file: &file, bytes, whole: None }).map_or(0, |map| map.variables.len())
        })
    };
    let take = |mode| {
        let one = |f: &PathBuf| capture(dump, &relative(f), Rank(0), mode, &Classic).expect("captured");
        found.iter().map(one).collect::<Vec<_>>()
    };
    let captured = take(CaptureMode::Apart);
    let fetch = |to: Option<&Path>| {
        let descriptors = Descriptors::new(64);
        let mut buffer = vec![0; 1 << 20];
        for file in &captured {
            let header = Arc::new(file.header.clone());
            let source = OpenFile::new(dump, Arc::clone(&header), file.fingerprint, &descriptors);
            let restorer = to.map(|to| FileRestorer::create(to, Arc::clone(&header)).expect("created"));
            for (v, variable) in header.variables.iter().enumerate() {
                for at in (0..variable.raw_bytes.0).step_by(1 << 20) {
                    let n = (variable.raw_bytes.0 - at).min(1 << 20) as usize;
                    source.read_raw(v, at, &mut buffer[..n]).expect("read");
                    if let Some(restorer) = &restorer {
                        restorer.write(v, at, &buffer[..n]).expect("written");
                    }
                }
            }
            if let Some(restorer) = restorer {
                restorer.finish(false).expect("identical");
            }
        }
    };
    let to = std::env::temp_dir().join(format!("mcr-bench-{}", std::process::id()));
    println!("{}: {} files, {:.1} MB, {} datasets", dump.display(), found.len(), bytes as f64 / 1e6, map(&Classic));
    let row = |name: &str, work: &mut dyn FnMut()| {
        if std::env::args().skip(1).any(|only| !only.starts_with('-') && !name.contains(&only)) {
            return;
        }
        let (fastest_s, median_s) = timed(work);
        let rate = bytes as f64 / 1e6 / median_s;
        println!("  {name:18} {:8.2} ms {:8.2} ms {rate:8.0} MB/s", fastest_s * 1e3, median_s * 1e3);
    };
    row("map, own parser", &mut || _ = map(&Classic));
    row("map, HDF5 library", &mut || _ = map(&Library));
    row("capture whole", &mut || drop(take(CaptureMode::Whole)));
    row("capture apart", &mut || drop(take(CaptureMode::Apart)));
    row("fetch all", &mut || fetch(None));
    row("fetch and restore", &mut || fetch(Some(&to)));
    // Errors are ignored, because remaining files of a benchmark are harmless.
    let _ = std::fs::remove_dir_all(&to);
}

/// The fastest and the median time, in seconds.
fn timed(work: &mut dyn FnMut()) -> (f64, f64) {
    let mut seconds: Vec<f64> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[REPETITIONS / 2])
}
