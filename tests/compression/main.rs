//! Compares the number of stored bytes of checkpoints of simulation codes with expected values, for each profile.
//! `stored_bytes.txt` has the expected values.
//!
//! A change of a codec that makes a set larger fails this test. `MCR_COMPRESSION_WRITE=1` writes the file again.

use mcr_test_support::{clean, contents, run_json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum by which a set may be larger than expected, in 1/1000: 0.5 %.
const LARGER_MAX_PER_MILLE: u64 = 5;
const PROFILES: [&str; 3] = ["fast", "balanced", "max"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Stored bytes by set and profile.
type Table = BTreeMap<(String, String), u64>;

fn read(path: &Path) -> Table {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_else(|| panic!("{}: {line}", path.display())).to_owned();
        ((word(), word()), word().parse().unwrap_or_else(|error| panic!("{}: {line}: {error}", path.display())))
    };
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(line).collect()
}

/// Saves all dumps of a set into one store, the oldest dump first. Returns the bytes of all containers.
fn stored_bytes(set: &Path, profile: &str) -> u64 {
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("store");
    let mut save = clean(Command::new(env!("CARGO_BIN_EXE_mcr")));
    save.args(["save", "--create", "--job", "j", "--profile", profile]).arg(set).arg("--store").arg(&store);
    let saved = run_json(&mut save, 0);
    for line in saved["checkpoints"].as_array().expect("a list") {
        assert_eq!(line["outcome"], "saved", "{}: {line}", set.display());
    }
    contents(&store)
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|is| is == "mcr"))
        .map(|(_, bytes)| bytes.len() as u64)
        .sum()
}

/// Compares every set below a folder with the expected bytes, and prints a line for each set.
fn check(folder: &Path) {
    let path = root().join("tests/compression/stored_bytes.txt");
    let expected = read(&path);
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut sets: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect();
    sets.sort();
    assert!(!sets.is_empty(), "{}: no set of checkpoints", folder.display());
    let (mut found, mut too_large) = (Table::new(), Vec::new());
    for set in &sets {
        let name = set.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        for profile in PROFILES {
            let key = (name.clone(), profile.to_owned());
            let stored = stored_bytes(set, profile);
            let known = expected.get(&key).copied();
            let change = known.map_or("new".to_owned(), |known| {
                format!("{:+.2} %", 100.0 * (stored as f64 - known as f64) / known as f64)
            });
            println!("{name} {profile} {stored} ({change})");
            match known {
                Some(known) if stored * 1000 <= known * (1000 + LARGER_MAX_PER_MILLE) => {}
                _ => too_large.push(format!("{name} {profile}: {stored} bytes, {known:?} expected ({change})")),
            }
            found.insert(key, stored);
        }
    }
    if std::env::var_os("MCR_COMPRESSION_WRITE").is_some() {
        return write(&path, expected, found);
    }
    assert!(
        too_large.is_empty(),
        "{too_large:#?}: a codec got worse, or a set or profile is new; see {}",
        path.display()
    );
}

fn write(path: &Path, mut all: Table, found: Table) {
    let text = std::fs::read_to_string(path).expect("read before");
    let mut text: String =
        text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    all.extend(found);
    for ((set, profile), bytes) in all {
        text.push_str(&format!("{set} {profile} {bytes}\n"));
    }
    std::fs::write(path, text).expect("written");
}

#[test]
fn the_checkpoints_in_the_repository_take_no_more_bytes_than_expected() {
    check(&root().join("tests/data/checkpoints"));
}

#[test]
fn the_larger_checkpoints_take_no_more_bytes_than_expected() {
    match std::env::var_os("MCR_CORPUS") {
        Some(corpus) => check(Path::new(&corpus)),
        None => eprintln!("SKIPPED: the larger sets of checkpoints, because MCR_CORPUS names no folder"),
    }
}
