//! Tests which files a capture rejects, and how a restored file is verified before it gets its final name.

use crate::support::{MAPS, round_trip};
use crate::write::{FileOptions, Space, Writer, set, smooth};
use hdf5_sys::h5t::H5T_IEEE_F64LE;
use mcr_cnc::capture::{CaptureError, CaptureMode, CapturedFile, capture};
use mcr_cnc::h5::{FileMap, H5Error, MapInput, MapSource};
use mcr_cnc::restart::{FileRestorer, RestoreError, Target};
use mcr_cnc::source::{Descriptors, OpenFile};
use mcrengine::header::{FileHeader, Role};
use mcrengine::ids::{Digest, FilePath, Rank};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

fn take(root: &Path, name: &str, mode: CaptureMode) -> Result<CapturedFile, CaptureError> {
    capture(root, &FilePath::new(name.as_bytes()).expect("valid"), Rank(3), mode, &*MAPS)
}

/// A file with one variable: its header and its bytes.
fn plain(root: &Path, name: &str) -> (Arc<FileHeader>, Vec<u8>) {
    let bytes = smooth(300_000);
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    std::fs::write(&path, &bytes).expect("write");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("mode");
    (Arc::new(take(root, name, CaptureMode::Apart).expect("captured").header), bytes)
}

fn names(directory: &Path) -> Vec<String> {
    let name = |e: std::io::Result<std::fs::DirEntry>| e.expect("an entry").file_name().into_string().expect("a name");
    let mut names: Vec<String> = std::fs::read_dir(directory).expect("readable").map(name).collect();
    names.sort();
    names
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn only_regular_files_are_captured() {
    let root = directory();
    std::fs::write(root.path().join("file"), b"x").expect("write");
    symlink("file", root.path().join("link")).expect("link");
    nix::unistd::mkfifo(&root.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("pipe");
    std::fs::create_dir(root.path().join("directory")).expect("directory");
    for name in ["link", "pipe", "directory"] {
        let error = take(root.path(), name, CaptureMode::Apart).expect_err(name);
        assert!(matches!(error, CaptureError::NotAFile { .. }), "{name}: {error}");
    }
    let error = take(root.path(), "missing", CaptureMode::Apart).expect_err("missing");
    assert!(matches!(error, CaptureError::Vanished { .. }) && error.is_transient(), "{error}");
}

#[test]
fn a_file_taken_whole_is_one_variable_with_the_files_digest() {
    let root = directory();
    let writer = Writer::new(&root.path().join("f.h5"), FileOptions::default());
    writer.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[10]), set::nothing, Some(&smooth(80)));
    drop(writer);
    let header = take(root.path(), "f.h5", CaptureMode::Whole).expect("captured").header;
    assert_eq!((header.variables.len(), header.variables[0].role, header.rank), (1, Role::WholeFile, Rank(3)));
    assert_eq!(header.digest, Digest::of(&std::fs::read(root.path().join("f.h5")).expect("read")));
    assert_eq!(header.variables[0].digest, header.digest);
}

#[test]
fn an_empty_file_comes_back_empty() {
    let root = directory();
    File::create(root.path().join("empty")).expect("create");
    let header = round_trip(root.path(), "empty", &*MAPS, 10);
    assert_eq!((header.bytes, header.variables.len()), (0, 1));
}

/// A source of maps that writes to the file during the capture.
struct Meddler<'a>(&'a (dyn Fn() + Send + Sync));

impl MapSource for Meddler<'_> {
    fn map(&self, _: &MapInput<'_>) -> Result<FileMap, H5Error> {
        (self.0)();
        Err(H5Error::NotHdf5)
    }
}

#[test]
fn a_file_that_is_written_or_cut_meanwhile_is_refused() {
    let root = directory();
    let path = root.path().join("f");
    let append = || {
        File::options().append(true).open(&path).and_then(|mut f| f.write_all(b"more")).expect("append");
    };
    let cut = || {
        File::options().write(true).open(&path).and_then(|f| f.set_len(5_000_000)).expect("cut");
    };
    for meddle in [&append as &(dyn Fn() + Send + Sync), &cut] {
        std::fs::write(&path, smooth(6_000_000)).expect("write");
        let name = FilePath::new(&b"f"[..]).expect("valid");
        let error = capture(root.path(), &name, Rank(0), CaptureMode::Apart, &Meddler(meddle)).expect_err("changed");
        assert!(matches!(error, CaptureError::Changed { .. }) && error.is_transient(), "{error}");
    }
}

#[test]
fn a_captured_file_is_read_while_it_is_the_same_even_under_no_name() {
    let root = directory();
    let (header, bytes) = plain(root.path(), "f");
    let captured = take(root.path(), "f", CaptureMode::Apart).expect("captured");
    let descriptors = Descriptors::new(1);
    let source = OpenFile::new(root.path(), Arc::clone(&header), captured.fingerprint, &descriptors);
    let mut piece = [0; 100];
    source.read_raw(0, 1000, &mut piece).expect("unchanged");
    assert_eq!(piece[..], bytes[1000..1100]);
    assert!(source.read_raw(0, 299_950, &mut piece).is_err(), "past the end");
    assert!(source.read_raw(1, 0, &mut piece).is_err(), "a file with one variable has no variable 1");
    std::fs::remove_file(root.path().join("f")).expect("removed");
    source.read_raw(0, 2000, &mut piece).expect("the descriptor is still open");
    assert_eq!(piece[..], bytes[2000..2100]);
    // Another file takes the only descriptor. Therefore the removed file cannot be read again.
    std::fs::write(root.path().join("g"), b"other").expect("write");
    let other = take(root.path(), "g", CaptureMode::Apart).expect("captured");
    let other = OpenFile::new(root.path(), Arc::new(other.header), other.fingerprint, &descriptors);
    other.read_raw(0, 0, &mut piece[..5]).expect("read");
    let error = source.read_raw(0, 2000, &mut piece).expect_err("gone");
    assert!(matches!(error, CaptureError::Vanished { .. }), "{error}");
    File::options().append(true).open(root.path().join("g")).and_then(|mut f| f.write_all(b"!")).expect("append");
    let error = other.read_raw(0, 0, &mut piece[..5]).expect_err("changed");
    assert!(matches!(error, CaptureError::Changed { .. }), "{error}");
}

#[test]
fn pieces_may_come_in_any_order_from_many_threads_and_twice() {
    let root = directory();
    let writer = Writer::new(&root.path().join("f.h5"), FileOptions::default());
    let deflated = |list| {
        set::chunk(&[1000])(list);
        set::deflate(6)(list);
    };
    writer.dataset("/x", *H5T_IEEE_F64LE, Space::Simple(&[20_000]), deflated, Some(&smooth(160_000)));
    drop(writer);
    let captured = take(root.path(), "f.h5", CaptureMode::Apart).expect("captured");
    let header = Arc::new(captured.header);
    let source = OpenFile::new(root.path(), Arc::clone(&header), captured.fingerprint, &Descriptors::new(8));
    let to = directory();
    let restorer = FileRestorer::create(to.path(), Arc::clone(&header)).expect("created");
    let mut pieces = Vec::new();
    for (v, variable) in header.variables.iter().enumerate() {
        for at in (0..variable.raw_bytes.0).step_by(777) {
            let mut bytes = vec![0; (variable.raw_bytes.0 - at).min(777) as usize];
            source.read_raw(v, at, &mut bytes).expect("read");
            pieces.push((v, at, bytes));
        }
    }
    // First every second piece from the back, then all pieces, then some pieces again.
    let shuffled: Vec<_> =
        pieces.iter().rev().step_by(2).chain(pieces.iter()).chain(pieces.iter().step_by(5)).collect();
    std::thread::scope(|scope| {
        for part in shuffled.chunks(shuffled.len().div_ceil(4)) {
            scope.spawn(|| part.iter().for_each(|(v, at, bytes)| restorer.write(*v, *at, bytes).expect("written")));
        }
    });
    restorer.finish(true).expect("identical");
    assert_eq!(std::fs::read(to.path().join("f.h5")).ok(), std::fs::read(root.path().join("f.h5")).ok());
    assert_eq!(names(to.path()), ["f.h5"]);
}

#[test]
fn files_too_long_or_too_many_for_memory_come_back_too_with_few_descriptors() {
    let root = directory();
    let to = directory();
    let target = Target::with_descriptors(to.path(), 2);
    // Together the short files exceed the limit of memory. One file is too long to be short.
    let many = std::iter::repeat_n(3_900_000, 20).chain([5_000_000]);
    let open: Vec<_> = (many.enumerate())
        .map(|(nth, len)| {
            let name = format!("f{nth}");
            let mut bytes = smooth(len);
            bytes[0] = nth as u8;
            bytes[100_000..400_000].fill(0);
            std::fs::write(root.path().join(&name), &bytes).expect("write");
            let header = take(root.path(), &name, CaptureMode::Apart).expect("captured").header;
            (FileRestorer::create_in(&target, Arc::new(header)).expect("created"), name, bytes)
        })
        .collect();
    let is_ours = |fd: std::io::Result<std::fs::DirEntry>| {
        let open = fd.and_then(|fd| std::fs::read_link(fd.path()));
        open.is_ok_and(|open| open.starts_with(to.path()))
    };
    let ours = std::fs::read_dir("/proc/self/fd").expect("readable").filter_map(|fd| is_ours(fd).then_some(())).count();
    assert_eq!(ours, 2, "number of open descriptors of {} files", open.len());
    for (restorer, name, bytes) in open {
        for at in (0..bytes.len()).step_by(700_001).collect::<Vec<_>>().into_iter().rev() {
            restorer.write(0, at as u64, &bytes[at..bytes.len().min(at + 700_001)]).expect("written");
        }
        restorer.finish(false).expect("identical");
        assert!(std::fs::read(to.path().join(&name)).expect("read") == bytes, "{name}");
    }
}

#[test]
fn wrong_or_missing_bytes_leave_nothing_under_the_final_name() {
    let root = directory();
    let (header, mut bytes) = plain(root.path(), "d/f");
    let to = directory();
    let missing = FileRestorer::create(to.path(), Arc::clone(&header)).expect("created");
    missing.write(0, 0, &bytes[1..]).expect("written");
    let error = missing.finish(false).expect_err("a byte is missing");
    assert!(matches!(error, RestoreError::Incomplete { written: 299_999, .. }), "{error}");
    bytes[70_000] ^= 1;
    let wrong = FileRestorer::create(to.path(), Arc::clone(&header)).expect("created");
    wrong.write(0, 0, &bytes).expect("written");
    assert!(wrong.write(0, 1, &bytes).is_err(), "one byte past the end");
    let error = wrong.finish(false).expect_err("a bit is wrong");
    assert!(matches!(error, RestoreError::Digest { .. }), "{error}");
    drop(FileRestorer::create(to.path(), header).expect("created"));
    assert_eq!(names(to.path()), [""; 0], "neither a temporary file nor its directory is left");
}

#[test]
fn a_restored_file_replaces_what_stands_there_and_follows_no_link() {
    let root = directory();
    let (header, bytes) = plain(root.path(), "d/f");
    let to = directory();
    let outside = directory();
    std::fs::write(outside.path().join("precious"), b"precious").expect("write");
    std::fs::create_dir(to.path().join("d")).expect("directory");
    symlink(outside.path().join("precious"), to.path().join("d/f")).expect("link");
    for _ in 0..2 {
        let restorer = FileRestorer::create(to.path(), Arc::clone(&header)).expect("created");
        restorer.write(0, 0, &bytes).expect("written");
        restorer.finish(false).expect("restored");
    }
    let metadata = to.path().join("d/f").symlink_metadata().expect("metadata");
    assert!(metadata.is_file() && metadata.permissions().mode() & 0o7777 == 0o640);
    assert_eq!(std::fs::read(outside.path().join("precious")).expect("read"), b"precious");

    // Only root can create a directory of another owner.
    let trap = directory();
    symlink(outside.path(), trap.path().join("d")).expect("link");
    if std::os::unix::fs::chown(outside.path(), Some(4321), None).is_err() {
        eprintln!("skipped: only root can create a directory of another owner");
        return;
    }
    let error = FileRestorer::create(trap.path(), header).expect_err("the directory is a link");
    assert!(matches!(error, RestoreError::NotADirectory { .. }), "{error}");
    assert_eq!(names(outside.path()), ["precious"]);
}

#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let root = directory();
    let (header, _) = plain(root.path(), "f");
    let mut bad = FileHeader::clone(&header);
    bad.bytes += 1;
    let to = directory();
    assert!(matches!(FileRestorer::create(to.path(), Arc::new(bad)), Err(RestoreError::Header(_))));
    assert_eq!(names(to.path()), [""; 0]);
}

/// A source of maps that writes to the file at the first call.
struct OneWrite(std::path::PathBuf, std::sync::atomic::AtomicBool);

impl MapSource for OneWrite {
    fn map(&self, _: &MapInput<'_>) -> Result<FileMap, H5Error> {
        if !self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let file = File::options().write(true).open(&self.0).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&file, b"!", 10).expect("written");
        }
        Err(H5Error::NotHdf5)
    }
}

#[test]
fn a_write_of_the_same_length_right_after_the_first_look_is_noticed() {
    let root = directory();
    let path = root.path().join("f");
    let name = FilePath::new(&b"f"[..]).expect("valid");
    // The test is repeated, because a capture that does not wait for the file system's clock fails only sometimes.
    for nth in 0..20 {
        std::fs::write(&path, vec![nth; 5000]).expect("write");
        let maps = OneWrite(path.clone(), Default::default());
        let found = capture(root.path(), &name, Rank(0), CaptureMode::Apart, &maps);
        assert!(matches!(found, Err(CaptureError::Changed { .. })), "{nth}: {found:?}");
    }
}
