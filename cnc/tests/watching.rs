//! Tests the watcher on real directories. The tests write complete and incomplete checkpoints in the different ways
//! of applications.

use mcr_cnc::layout::Layout;
use mcr_cnc::settle::{OwnRanks, ReadyRank, SettleRules};
use mcr_cnc::watch::{WatchEvent, WatchOptions, Watcher};
use mcrengine::ids::{FilePath, Rank};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;

/// Maximum time that a test waits for an event that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

const QUICK: SettleRules =
    SettleRules { quiet_ms: 20, scan_quiet_ms: 60, doubt_quiet_ms: 200, checkpoint_quiet_ms: 60, local: true };

fn quick() -> WatchOptions {
    WatchOptions { rules: QUICK, local: Some(true), ..WatchOptions::default() }
}

struct Watched {
    root: PathBuf,
    runtime: tokio::runtime::Runtime,
    events: Receiver<WatchEvent>,
    watcher: Watcher,
}

impl Watched {
    fn start(root: &Path, layout: Layout, options: WatchOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (events, watcher) = Watcher::spawn(root, layout, options).expect("watches");
        Self { root: root.to_owned(), runtime, events, watcher }
    }

    fn next(&mut self) -> WatchEvent {
        let next = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, self.events.recv()).await });
        next.expect("no event within the deadline").expect("the watcher runs")
    }

    /// The next rank that is ready. Skips other events.
    fn ready(&mut self) -> ReadyRank {
        loop {
            if let WatchEvent::Ready(ready) = self.next() {
                return ready;
            }
        }
    }

    /// The next rank that is ready, as a tuple: label, rank, lengths of its files in bytes, and whether it was
    /// announced before.
    fn told(&mut self) -> (String, u32, Vec<u64>, bool) {
        let ready = self.ready();
        let bytes = ready.files.iter().map(|file| file.fingerprint.bytes).collect();
        (ready.checkpoint.to_string(), ready.rank.0, bytes, ready.again)
    }

    /// The next `count` ranks that are ready, sorted.
    fn ranks(&mut self, count: usize) -> Vec<u32> {
        let mut ranks: Vec<_> = (0..count).map(|_| self.ready().rank.0).collect();
        ranks.sort_unstable();
        ranks
    }

    fn write(&self, name: &str, bytes: usize) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(path, vec![b'x'; bytes]).expect("written");
    }
}

/// A layout for files such as `t7/r3`, and for the file `t7/h`, which belongs to no single rank.
fn layout() -> Layout {
    Layout::from_patterns(&["{checkpoint}/r{rank}{,.h5}", "{checkpoint}/h"], 0).expect("valid")
}

fn watch(options: WatchOptions) -> (tempfile::TempDir, Watched) {
    let root = tempfile::tempdir().expect("a directory");
    let watched = Watched::start(root.path(), layout(), options);
    (root, watched)
}

fn told(label: &str, rank: u32, bytes: &[u64], again: bool) -> (String, u32, Vec<u64>, bool) {
    (label.to_owned(), rank, bytes.to_vec(), again)
}

#[test]
fn a_slow_writer_is_waited_for() {
    let (_root, mut w) = watch(quick());
    fs::create_dir(w.root.join("t1")).expect("made");
    let mut slow = File::create(w.root.join("t1/r0")).expect("made");
    for rank in 1..6 {
        slow.write_all(b"more").expect("written");
        // In each round another rank is written and reported. During this time the slow file could settle by mistake.
        w.write(&format!("t1/r{rank}"), 9);
        assert_eq!(w.told(), told("t1", rank, &[9], false));
    }
    drop(slow);
    assert_eq!(w.told(), told("t1", 0, &[20], false));
}

#[test]
fn a_file_or_a_directory_renamed_into_place_is_seen() {
    let (_root, mut w) = watch(quick());
    w.write("t1/part", 5);
    fs::rename(w.root.join("t1/part"), w.root.join("t1/r4")).expect("renamed");
    assert_eq!(w.told(), told("t1", 4, &[5], false));
    w.write("t1/part", 6);
    fs::hard_link(w.root.join("t1/part"), w.root.join("t1/r5")).expect("linked");
    assert_eq!(w.told(), told("t1", 5, &[6], false));
    w.write("t2.temp/below/x", 1);
    w.write("t2.temp/r0", 6);
    assert_eq!(w.told(), told("t2.temp", 0, &[6], false));
    fs::rename(w.root.join("t2.temp"), w.root.join("t2")).expect("renamed");
    let mut vanished = false;
    loop {
        match w.next() {
            WatchEvent::Vanished { checkpoint, .. } => vanished |= checkpoint.as_str() == "t2.temp",
            WatchEvent::Ready(ready) => {
                assert_eq!((ready.checkpoint.as_str(), ready.rank, ready.again), ("t2", Rank(0), false));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(vanished, "no event reported that the old name vanished");
    // The directory is still watched under its new name, and its old name can be used again.
    w.write("t2/r1", 7);
    assert_eq!(w.told(), told("t2", 1, &[7], false));
    w.write("t2.temp/r1", 8);
    assert_eq!(w.told(), told("t2.temp", 1, &[8], false));
}

#[test]
fn directories_that_appear_late_with_files_already_in_them_are_seen() {
    let root = tempfile::tempdir().expect("a directory");
    let layout = Layout::from_patterns(&["**/{checkpoint:t[0-9]+}/**/r{rank}"], 0).expect("valid");
    let mut w = Watched::start(root.path(), layout, quick());
    let mut expected = BTreeMap::new();
    for step in 0..8u32 {
        for rank in 0..8u32 {
            w.write(&format!("a/b{step}/t{step}/c/d{rank}/r{rank}"), 3);
            expected.insert((format!("t{step}"), rank), 1);
        }
    }
    let mut seen = BTreeMap::new();
    while seen.len() < expected.len() {
        let (label, rank, bytes, _) = w.told();
        assert_eq!(bytes, [3]);
        *seen.entry((label, rank)).or_insert(0) += 1;
    }
    assert_eq!(seen, expected, "each rank is reported once");
}

#[test]
fn files_of_no_rank_come_with_rank_0() {
    let (_root, mut w) = watch(quick());
    fs::create_dir(w.root.join("t1")).expect("made");
    let mut open = File::create(w.root.join("t1/r0")).expect("made");
    w.write("t1/h", 2);
    open.write_all(b"rank").expect("written");
    drop(open);
    assert_eq!(w.told(), told("t1", 0, &[2, 4], false));
}

#[test]
fn overwriting_in_place_is_told_again_and_rewriting_nothing_is_not() {
    let (_root, mut w) = watch(quick());
    w.write("t1/r0", 3);
    assert_eq!(w.told(), told("t1", 0, &[3], false));
    for bytes in [5, 4, 4] {
        w.write("t1/r0", bytes);
        assert_eq!(w.told(), told("t1", 0, &[bytes as u64], true));
    }
    // A file that is opened for writing and closed without a write has no new content.
    drop(File::options().append(true).open(w.root.join("t1/r0")).expect("opened"));
    w.write("t1/r1", 6);
    assert_eq!(w.told(), told("t1", 1, &[6], false));
}

#[test]
fn what_vanishes_is_told() {
    let (_root, mut w) = watch(quick());
    w.write("t1/r0", 3);
    w.write("t1/r1", 3);
    assert_eq!(w.ranks(2), [0, 1]);
    fs::remove_file(w.root.join("t1/r1")).expect("removed");
    match w.next() {
        WatchEvent::Vanished { checkpoint, rank, path, was_announced } => {
            assert_eq!((checkpoint.as_str(), rank, path.to_string()), ("t1", Rank(1), "t1/r1".to_owned()));
            assert!(was_announced);
        }
        other => panic!("{other:?}"),
    }
    fs::remove_dir_all(w.root.join("t1")).expect("removed");
    assert!(matches!(w.next(), WatchEvent::Vanished { rank: Rank(0), .. }));
    w.write("t1/r0", 4);
    assert_eq!(w.told(), told("t1", 0, &[4], false));
}

/// A superblock of version 0, which states that the file has `end` bytes.
fn superblock(end: u64) -> Vec<u8> {
    let mut block = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0\0\0\0\0".to_vec();
    for address in [0, u64::MAX, end, u64::MAX] {
        block.extend(address.to_le_bytes());
    }
    block
}

#[test]
fn a_writer_killed_half_way_leaves_nothing_that_is_taken() {
    let (_root, mut w) = watch(quick());
    fs::create_dir(w.root.join("t1")).expect("made");
    fs::write(w.root.join("half"), [superblock(4096), vec![7; 100]].concat()).expect("written");
    // The shell becomes `sleep`, which holds the file open until `sleep` is killed.
    let script = "exec 3>t1/r0.h5; cat half >&3; echo written; exec sleep 600";
    let mut writer = Command::new("sh")
        .args(["-c", script])
        .current_dir(&w.root)
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh is there");
    let mut line = String::new();
    BufReader::new(writer.stdout.take().expect("piped")).read_line(&mut line).expect("read");
    assert_eq!(line, "written\n");
    w.write("t1/r1", 6);
    assert_eq!(w.told(), told("t1", 1, &[6], false), "the half-written file is not ready");
    writer.kill().expect("killed");
    writer.wait().expect("ended");
    match w.next() {
        WatchEvent::Cut { path, why, .. } => {
            assert_eq!(path.to_string(), "t1/r0.h5");
            assert!(why.contains("shorter"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    // The application starts again and writes the complete file.
    fs::write(w.root.join("t1/r0.h5"), [superblock(4096), vec![7; 4096 - 56]].concat()).expect("written");
    assert_eq!(w.told(), told("t1", 0, &[4096], false));
}

#[test]
fn without_the_kernels_events_a_scan_finds_everything() {
    // Without kernel events, as after an overflow of the kernel's queue, no file is reported until a scan is
    // requested.
    let mute = WatchOptions { listen: false, rescan: Some(Duration::ZERO), ..quick() };
    let (_root, mut w) = watch(mute);
    w.write("t1/r0", 3);
    w.write("t1/deeper/x", 3);
    w.write("t1/r1", 3);
    w.watcher.rescan();
    assert_eq!(w.ranks(2), [0, 1]);
    fs::remove_file(w.root.join("t1/r1")).expect("removed");
    w.write("t1/r0", 5);
    w.watcher.rescan();
    let mut vanished = 0;
    let ready = loop {
        match w.next() {
            WatchEvent::Ready(ready) => break ready,
            WatchEvent::Vanished { path, .. } => vanished += usize::from(path.to_string() == "t1/r1"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((ready.rank, ready.again, ready.files[0].fingerprint.bytes, vanished), (Rank(0), true, 5, 1));
}

#[test]
fn a_periodic_scan_finds_what_nobody_told() {
    let mute = WatchOptions { listen: false, rescan: Some(Duration::from_millis(50)), ..quick() };
    let (_root, mut w) = watch(WatchOptions { local: Some(false), ..mute });
    w.write("t1/r0", 3);
    assert_eq!(w.told(), told("t1", 0, &[3], false));
}

#[test]
fn a_watcher_started_in_the_middle_sees_what_is_whole_and_waits_for_the_rest() {
    let (_root, mut w) = watch(quick());
    w.write("t1/r0", 3);
    assert_eq!(w.told(), told("t1", 0, &[3], false));
    let mut open = File::create(w.root.join("t1/r1")).expect("made");
    open.write_all(b"begun").expect("written");
    let root = w.root.clone();
    w.watcher.stop();
    assert_eq!(w.runtime.block_on(w.events.recv()), None, "the stream of events ends with the watcher");
    fs::write(root.join("t1/r2"), "meanwhile").expect("written");
    let mut w = Watched::start(&root, layout(), quick());
    assert_eq!(w.ranks(2), [0, 2]);
    open.write_all(b" and ended").expect("written");
    drop(open);
    assert_eq!(w.told(), told("t1", 1, &[15], false));
}

#[test]
fn a_full_queue_loses_nothing() {
    let (_root, mut w) = watch(WatchOptions { queue: 1, ..quick() });
    for rank in 0..40 {
        w.write(&format!("t1/r{rank}"), 3);
    }
    assert_eq!(w.ranks(40), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_file_that_could_not_be_read_is_told_again_on_request() {
    let (_root, mut w) = watch(quick());
    w.write("t1/r0", 3);
    assert_eq!(w.told(), told("t1", 0, &[3], false));
    w.watcher.look_again(&FilePath::new(&b"t1/r0"[..]).expect("valid"));
    assert_eq!(w.told(), told("t1", 0, &[3], false));
}

/// A watched directory `run` below a temporary directory, with a file that was told.
fn watch_below() -> (tempfile::TempDir, PathBuf, Watched) {
    let parent = tempfile::tempdir().expect("a directory");
    let root = parent.path().join("run");
    fs::create_dir(&root).expect("made");
    let mut w = Watched::start(&root, layout(), quick());
    w.write("t1/r0", 3);
    assert_eq!(w.told(), told("t1", 0, &[3], false));
    (parent, root, w)
}

#[test]
fn a_directory_that_goes_and_comes_back_is_watched_again() {
    let (parent, root, mut w) = watch_below();
    fs::rename(&root, parent.path().join("gone")).expect("renamed");
    loop {
        match w.next() {
            WatchEvent::Trouble(what) => {
                let is_told = what.contains("run") && what.contains("gone") && what.contains("trying again");
                assert!(is_told, "{what}");
                break;
            }
            WatchEvent::Vanished { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    w.write("t2/r0", 4);
    assert_eq!(w.told(), told("t2", 0, &[4], false));
    w.write("t2/r1", 5);
    assert_eq!(w.told(), told("t2", 1, &[5], false));
}

#[test]
fn a_directory_that_does_not_exist_is_named_in_the_error_with_its_cause() {
    let parent = tempfile::tempdir().expect("a directory");
    let missing = parent.path().join("none");
    let error = Watcher::spawn(&missing, layout(), quick()).expect_err("not there");
    assert_eq!(error.to_string(), format!("{}: cannot be watched", missing.display()));
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
}

#[test]
fn a_directory_that_is_removed_and_made_again_is_watched_again_without_a_request() {
    let (_parent, root, mut w) = watch_below();
    fs::remove_dir_all(&root).expect("removed");
    fs::create_dir(&root).expect("made again");
    w.write("t2/r0", 4);
    assert_eq!(w.told(), told("t2", 0, &[4], false));
}

#[test]
fn only_the_ranks_that_are_ours_are_told() {
    let own = OwnRanks::only(vec![2..=3]);
    let (_root, mut w) = watch(WatchOptions { own, ..quick() });
    for rank in 0..5 {
        w.write(&format!("t1/r{rank}"), 3);
    }
    w.write("t1/h", 3);
    assert_eq!(w.ranks(2), [2, 3]);
    w.write("t2/r3", 3);
    assert_eq!(w.told(), told("t2", 3, &[3], false), "no other event in between");
}
