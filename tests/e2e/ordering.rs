//! The newest checkpoint is the checkpoint that the application wrote last.

use crate::support::*;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn save(dir: &Path) {
    let mut save = mcr();
    save.args(["save", "--create", "--job", "job", "--layout", "{checkpoint}.dat"]).arg(dir.join("data"));
    run(save.arg("--store").arg(dir.join("store")), 0);
}

/// The names in `mcr list`, newest first.
fn listed(dir: &Path) -> Vec<String> {
    let name = |line: &serde_json::Value| line["checkpoint"].as_str().expect("a name").to_owned();
    list(&dir.join("store")).iter().map(name).collect()
}

#[test]
fn checkpoints_whose_numbers_count_down_are_ordered_by_when_they_were_written() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("made");
    let write = |step: u32| {
        std::fs::write(dir.path().join(format!("data/left_{step}.dat")), format!("step {step}")).expect("written");
        std::thread::sleep(Duration::from_millis(300));
    };
    (9..=11).rev().for_each(write);
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_9", "left_10", "left_11"]);
    (7..=8).rev().for_each(write);
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_7", "left_8", "left_9", "left_10", "left_11"]);
}

#[test]
fn copies_with_the_time_of_the_copy_are_ordered_by_their_names() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("data")).expect("made");
    let copied = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    for step in [10, 11, 9] {
        let path = dir.path().join(format!("data/left_{step}.dat"));
        std::fs::write(&path, format!("step {step}")).expect("written");
        std::fs::File::options().append(true).open(path).and_then(|f| f.set_modified(copied)).expect("set");
    }
    save(dir.path());
    assert_eq!(listed(dir.path()), ["left_11", "left_10", "left_9"]);
}
