//! How much time does the project's own HDF5 parser save, compared with the HDF5 library in a separate process?
//!
//! Three readers find the datasets of the same files, in turns: the parser (`Classic`), the library in this process
//! (`Library`), and the library in a separate process (`MapWorker`). Agents use the library only in a separate
//! process. The files are in the page cache. The inputs are the checkpoints below MCR_CORPUS (`SET/DUMP/...`), and a
//! generated file with 1,000 datasets in one group, once in the oldest version of the format and once in the newest
//! version. Command: `MCR_CORPUS=DIR cargo bench -p mcr-cnc --bench readers`.

use mcr_cnc::h5::{Classic, Library, MapInput, MapSource, MapWorker, WORKER_ARGUMENT, worker_main};
use mcr_test_support::files_below;
use mcr_test_support::measure::{Sample, is_asked_for, repetitions};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Number of datasets of a generated file.
const DATASETS: usize = 1000;
/// Number of elements of a dataset in a generated file.
const ELEMENTS: usize = 512;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == WORKER_ARGUMENT) {
        return worker_main();
    }
    if !is_asked_for() {
        return ExitCode::SUCCESS;
    }
    let n = repetitions(21);
    println!("milliseconds: median [quartiles; extremes] of {n}");
    let root = std::env::var_os("MCR_CORPUS").map(PathBuf::from);
    let dumps = root.iter().flat_map(|root| entries(root)).flat_map(|set| entries(&set));
    for dump in dumps {
        let is_hdf5 = |path: &PathBuf| map(&Library, path).is_some();
        let files: Vec<PathBuf> = files_below(&dump).into_iter().map(|(_, path)| path).filter(is_hdf5).collect();
        if !files.is_empty() {
            compare(&dump.display().to_string(), &files, n);
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    for (name, is_newest) in [("older.h5", false), ("newest.h5", true)] {
        let path = directory.path().join(name);
        generate(&path, is_newest);
        compare(&format!("generated: {name}"), &[path], n);
    }
    start_of_a_process(&directory.path().join("older.h5"), n);
    ExitCode::SUCCESS
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Writes a file with [`DATASETS`] datasets in one group.
fn generate(path: &Path, is_newest: bool) {
    let file = hdf5::File::with_options()
        .with_fapl(|access| if is_newest { access.libver_latest() } else { access })
        .create(path)
        .expect("created");
    let group = file.create_group("state").expect("created");
    for n in 0..DATASETS {
        let data: Vec<f64> = (0..ELEMENTS).map(|i| (n * ELEMENTS + i) as f64).collect();
        group.new_dataset_builder().with_data(&data).create(format!("field_{n:04}").as_str()).expect("written");
    }
}

/// The number of variables that a reader finds in a file.
fn map(maps: &dyn MapSource, path: &Path) -> Option<usize> {
    let file = File::open(path).expect("opened");
    let bytes = file.metadata().expect("metadata").len();
    maps.map(&MapInput { path, file: &file, bytes, whole: None }).ok().map(|map| map.variables.len())
}

fn worker() -> MapWorker {
    MapWorker::with_command(|| {
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORKER_ARGUMENT);
        Ok(command)
    })
}

/// Compares the readers. The library's process is started before the measurement.
fn compare(name: &str, files: &[PathBuf], repetitions: usize) {
    let worker = worker();
    let readers: [(&str, &dyn MapSource); 3] =
        [("own parser", &Classic), ("library", &Library), ("library, process", &worker)];
    let all = |maps: &dyn MapSource| files.iter().map(|path| map(maps, path)).collect::<Vec<_>>();
    let [parsed, found, by_process] = readers.map(|(_, maps)| all(maps));
    assert!(found == by_process, "the process finds the same as the library");
    let datasets: usize = found.iter().flatten().sum();
    let left = parsed.iter().filter(|file| file.is_none()).count();
    println!("{name}: {} files, {datasets} datasets; the parser leaves {left} files to the library", files.len());
    let mut samples = [const { Sample::new() }; 3];
    for _ in 0..repetitions {
        for (sample, (_, maps)) in samples.iter_mut().zip(&readers) {
            let began = Instant::now();
            std::hint::black_box(all(*maps));
            sample.push_ms(began.elapsed());
        }
    }
    for (sample, (reader, _)) in samples.iter().zip(&readers) {
        println!("  {reader:18} {}", sample.show());
    }
}

/// Measures how long the first file takes if the library's process is not yet running.
fn start_of_a_process(path: &Path, repetitions: usize) {
    let mut sample = Sample::new();
    for _ in 0..repetitions {
        let worker = worker();
        let began = Instant::now();
        std::hint::black_box(map(&worker, path));
        sample.push_ms(began.elapsed());
    }
    println!("generated: older.h5, the first file of a new process\n  {:18} {}", "library, process", sample.show());
}
