//! Tests with checkpoints of simulation codes: from tests/data, and from the directory that the variable MCR_CORPUS
//! names.

use crate::support::*;
use std::path::{Path, PathBuf};

/// The directories of all available sets of checkpoints. The files of a set are SET/DUMP/FILE.
pub fn sets() -> Vec<PathBuf> {
    let mut roots = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/checkpoints")];
    match std::env::var_os("MCR_CORPUS") {
        Some(corpus) => roots.push(corpus.into()),
        None => eprintln!("SKIPPED: the larger sets of checkpoints, because MCR_CORPUS names no folder"),
    }
    let below = |root: &PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect()
    };
    let mut sets: Vec<PathBuf> = roots.iter().flat_map(below).collect();
    sets.sort();
    assert!(!sets.is_empty());
    sets
}

#[test]
fn every_set_comes_back_byte_for_byte_with_every_scheme_and_the_profiles_that_predict() {
    let dir = tempfile::tempdir().expect("a directory");
    for set in sets() {
        let schemes = ["agnostic", "agnostic-block", "aware", "aware-block"].map(|scheme| (scheme, "fast"));
        for (scheme, profile) in schemes.into_iter().chain([("aware", "balanced"), ("aware", "max")]) {
            let (store, to) = (dir.path().join("store"), dir.path().join("to"));
            let saved = run_json(
                mcr()
                    .args(["save", "--create"])
                    .arg(&set)
                    .args(["--scheme", scheme, "--profile", profile, "--job", "j", "--store"])
                    .arg(&store),
                0,
            );
            for line in saved["checkpoints"].as_array().expect("a list") {
                assert_eq!(line["outcome"], "saved", "{}: {line}", set.display());
                let id = line["checkpoint"].as_str().expect("a name");
                run(mcr().arg("restart").args(["--checkpoint", id]).arg("--store").arg(&store).arg("--to").arg(&to), 0);
            }
            assert_same_files(&contents(&set), &contents(&to));
            std::fs::remove_dir_all(&store).expect("removed");
            std::fs::remove_dir_all(&to).expect("removed");
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() { copy_tree(&path, &target) } else { assert!(std::fs::copy(&path, &target).is_ok()) }
    }
}

#[test]
fn every_set_goes_through_an_agent_and_two_aggregators_with_every_scheme() {
    for set in sets() {
        let dir = tempfile::tempdir().expect("a directory");
        let (watch, store) = (dir.path().join("run"), dir.path().join("store"));
        copy_tree(&set, &watch);
        // The guessed layout gives the number of ranks. The agent guesses in the same way.
        let guess = run_json(
            mcr()
                .args(["save", "--create"])
                .arg(&watch)
                .args(["--job", "g", "--profile", "raw", "--store"])
                .arg(dir.path().join("guess")),
            0,
        );
        let ranks = guess["checkpoints"][0]["ranks"].as_u64().expect("a number");
        let group_size = ranks.div_ceil(2);
        let schemes: &[&str] = if contents(&set).values().map(Vec::len).sum::<usize>() < 8 << 20 {
            &["agnostic", "agnostic-block", "aware", "aware-block"]
        } else {
            &["agnostic-block", "aware"]
        };
        for scheme in schemes {
            let store = store.join(scheme);
            make_store(&store);
            let more = format!("scheme = {scheme:?}\ngroup-size = {group_size}\nspread-seconds = 604800");
            let first = Daemon::aggregator(dir.path(), &format!("{scheme}0"), &store, &more);
            let second = Daemon::aggregator(dir.path(), &format!("{scheme}1"), &store, &more);
            let addresses = [first.1.clone(), second.1.clone()];
            let more = format!(
                "ranks = {ranks}\ngroup-size = {group_size}\nlayout = \"guess\"\nquiet-ms = 20\ncheckpoint-quiet-ms \
                 = 50"
            );
            let agent = Daemon::agent(dir.path(), &format!("agent-{scheme}"), &watch, &addresses, &more);
            let to = dir.path().join(format!("to-{scheme}"));
            for line in guess["checkpoints"].as_array().expect("a list") {
                let id = line["checkpoint"].as_str().expect("a name");
                wait_complete(&store, id);
                let through = addresses.join(",");
                run(
                    mcr()
                        .arg("restart")
                        .args(["--copy", "--checkpoint", id, "--aggregators", &through])
                        .arg("--store")
                        .arg(&store)
                        .arg("--to")
                        .arg(&to),
                    0,
                );
            }
            assert_same_files(&contents(&watch), &contents(&to));
            drop(agent);
        }
    }
}
