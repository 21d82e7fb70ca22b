//! Functions that the tests of capture and restore share.

use mcr_cnc::capture::{CaptureMode, capture};
use mcr_cnc::h5::{MapSource, Maps, worker_main};
use mcr_cnc::restart::{FileRestorer, sync_dirs};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::header::{FileHeader, VariableHeader};
use mcrengine::ids::{Digest, FilePath, Rank};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, LazyLock};

/// The source of maps that agents use, with this test program as the library's process.
pub static MAPS: LazyLock<Maps> = LazyLock::new(|| Maps::with_command(worker_command));

/// The environment variable that makes this test program the process that maps files.
const IS_WORKER: &str = "MCR_TEST_IS_WORKER";

/// The command that starts this test program as the process that maps files.
pub fn worker_command() -> std::io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["support::a_worker_that_nobody_asks_leaves_at_once", "--exact", "--nocapture"]).env(IS_WORKER, "1");
    Ok(command)
}

#[test]
fn a_worker_that_nobody_asks_leaves_at_once() {
    if std::env::var_os(IS_WORKER).is_some() {
        let left = worker_main();
        return assert_eq!(left, ExitCode::SUCCESS);
    }
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut command = worker_command().expect("a command");
    let mut worker = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().expect("starts");
    drop((command, ours)); // the process sees a closed socket
    let left = worker.wait().expect("ends");
    assert!(left.success(), "{left}");
}

/// Captures a file. Restores the file from reads of its variables in pieces of `piece_bytes` bytes, and compares all
/// bytes.
pub fn round_trip(root: &Path, name: &str, maps: &dyn MapSource, piece_bytes: usize) -> FileHeader {
    round_trip_as(root, name, (CaptureMode::Apart, maps), piece_bytes)
}

/// Does the same as [`round_trip`], with the given capture mode and source of maps. A map says which bytes of an HDF5
/// file are the raw data of which dataset.
pub fn round_trip_as(
    root: &Path,
    name: &str,
    (mode, maps): (CaptureMode, &dyn MapSource),
    piece_bytes: usize,
) -> FileHeader {
    let path = FilePath::new(name.as_bytes()).expect("a valid path");
    let captured = capture(root, &path, Rank(0), mode, maps).unwrap_or_else(|e| panic!("{name}: {e}"));
    captured.header.check().unwrap_or_else(|e| panic!("{name}: {e}"));
    let header = Arc::new(captured.header);
    let source = OpenFile::new(root, Arc::clone(&header), captured.fingerprint, &Descriptors::new(4));
    let to = tempfile::tempdir().expect("a temporary directory");
    let restorer = FileRestorer::create(to.path(), Arc::clone(&header)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut piece = vec![0; piece_bytes];
    for (v, variable) in header.variables.iter().enumerate() {
        let mut hasher = Vec::new();
        let mut at = 0;
        while at < variable.raw_bytes.0 {
            let n = (variable.raw_bytes.0 - at).min(piece_bytes as u64) as usize;
            source.read_raw(v, at, &mut piece[..n]).unwrap_or_else(|e| panic!("{name}: {e}"));
            restorer.write(v, at, &piece[..n]).unwrap_or_else(|e| panic!("{name}: {e}"));
            if variable.raw_bytes.0 < 1 << 24 {
                hasher.extend_from_slice(&piece[..n]);
            }
            at += n as u64;
        }
        if variable.raw_bytes.0 < 1 << 24 {
            assert_eq!(Digest::of(&hasher), variable.digest, "{name}: digest of {:?}", variable.path);
        }
    }
    let restored = restorer.finish(false).unwrap_or_else(|e| panic!("{name}: {e}"));
    sync_dirs(to.path(), &[restored]).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_same(&root.join(name), &to.path().join(name));
    Arc::unwrap_or_clone(header)
}

/// Compares two files byte by byte, independently of the digest that the restorer computes.
fn assert_same(a: &Path, b: &Path) {
    use std::os::unix::fs::FileExt;
    let open = |p: &Path| std::fs::File::open(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
    let (fa, fb) = (open(a), open(b));
    let len = |f: &std::fs::File| f.metadata().expect("metadata").len();
    assert_eq!(len(&fa), len(&fb), "{}: the length differs", b.display());
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < len(&fa) {
        let n = (len(&fa) - at).min(1 << 20) as usize;
        fa.read_exact_at(&mut x[..n], at).expect("read");
        fb.read_exact_at(&mut y[..n], at).expect("read");
        assert!(x[..n] == y[..n], "{}: the bytes differ after {at}", b.display());
        at += n as u64;
    }
    let modified = |f: &std::fs::File| f.metadata().expect("metadata").modified().expect("a time");
    assert_eq!(modified(&fa), modified(&fb), "{}: the modification time differs", b.display());
}

/// The variables with the path `path`. Each variable is described by its role, type, shape and filters: `Array F64LE
/// [4, 5] []`.
pub fn described(header: &FileHeader, path: &str) -> Vec<String> {
    let line = |v: &VariableHeader| format!("{:?} {} {:?} {:?}", v.role, v.element, v.shape.0, v.filters);
    header.variables.iter().filter(|v| &*v.path == path).map(line).collect()
}

/// All files of the checkpoints below MCR_CORPUS. If MCR_CORPUS is not set, prints a message and returns no files.
pub fn corpus() -> Vec<(PathBuf, String)> {
    let Some(root) = std::env::var_os("MCR_CORPUS") else {
        eprintln!("skipped: MCR_CORPUS names no directory of real checkpoints");
        return Vec::new();
    };
    let root = PathBuf::from(root);
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if let Some(name) = path.strip_prefix(&root).ok().and_then(Path::to_str) {
                found.push((root.clone(), name.to_owned()));
            }
        }
    }
    found.sort();
    found
}
